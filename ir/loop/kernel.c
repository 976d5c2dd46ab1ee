/* Kernels: building, hashing, freeing, and what a finished one has.  Instructions are appended without checks;
 * kernel_verify finds errors.  A failed allocation sets k->err once. */
#include "loop.h"
#include <string.h>

struct kernel *kernel_new(const char *name)
{
    struct kernel *k = mem_alloc(sizeof *k);
    if (!k)
        return NULL;
    snprintf(k->name, sizeof k->name, "%s", name);
    k->extent = 1;
    if (!mem_reserve(&k->inst, &k->inst_cap, 64, sizeof *k->inst)) {
        mem_free(k);
        return NULL;
    }
    k->ninst = 1; /* inst[0] is NIL: mem_reserve gives zeroes */
    return k;
}

size_t kernel_bytes(const struct kernel *k)
{
    return sizeof *k + k->inst_cap * sizeof *k->inst + k->buf_cap * sizeof *k->buf;
}

void kernel_free(struct kernel *k)
{
    if (!k)
        return;
    index_free(k);
    mem_free(k->inst);
    mem_free(k->buf);
    mem_free(k);
}

uint32_t k_buf(struct kernel *k, enum buf_role role, unsigned dtype, int64_t count, uint32_t id)
{
    if (!mem_reserve(&k->buf, &k->buf_cap, k->nbuf + 1, sizeof *k->buf)) {
        err_set(&k->err, KL_ERR_MEMORY, "out of memory building kernel %s", k->name);
        return 0;
    }
    k->buf[k->nbuf] = (struct lbuf){.dtype = (uint8_t)dtype, .role = (uint8_t)role, .id = id, .count = count};
    return k->nbuf++;
}

bool inst_is_varying(const struct kernel *k, const struct linst *i)
{
    if (i->op == L_SPLAT)
        return !i->cols;
    if (i->op == L_LANE_REDUCE || i->op == L_CONST || i->op == L_SLOT || i->op == L_ALIAS)
        return false;
    if (i->op == L_LOOP)
        return i->kind == LOOP_VECTOR;
    return k->inst[i->a].varying || k->inst[i->b].varying || k->inst[i->c].varying;
}

val k_append(struct kernel *k, struct linst i)
{
    if (!mem_reserve(&k->inst, &k->inst_cap, k->ninst + 1, sizeof *k->inst)) {
        err_set(&k->err, KL_ERR_MEMORY, "out of memory building kernel %s", k->name);
        return 0;
    }
    k->inst[k->ninst] = i;
    return k->ninst++;
}

/* The shape of a value that is computed from tiles, element by element or row by row. */
static void kernel_infer_shape(const struct kernel *k, struct linst *i)
{
    const struct linst *in[3] = {&k->inst[i->a], &k->inst[i->b], &k->inst[i->c]};
    bool folds = i->op == L_LANE_REDUCE && in[0]->cols;
    for (int o = 0; o < 3 && (i->op >= L_PRIM || i->op == L_CARRY || i->op == L_OUT || folds); o++) {
        i->rows = in[o]->cols && in[o]->rows > i->rows ? in[o]->rows : i->rows;
        i->cols = in[o]->cols > i->cols ? in[o]->cols : i->cols;
    }
    i->cols = folds ? 1 : i->cols;
}

val k_inst(struct kernel *k, unsigned op, unsigned dtype, val a, val b, val c, uint64_t imm)
{
    struct linst i = {.op = (uint8_t)op, .dtype = (uint8_t)dtype, .a = a, .b = b, .c = c, .imm = imm};
    kernel_infer_shape(k, &i);
    i.varying = inst_is_varying(k, &i);
    return k_append(k, i);
}

val k_bits(struct kernel *k, unsigned dtype, uint64_t bits) { return k_inst(k, L_CONST, dtype, 0, 0, 0, bits); }
val k_const(struct kernel *k, unsigned dtype, double v) { return k_bits(k, dtype, dtype_bits(dtype, v)); }
val k_int(struct kernel *k, int64_t v) { return k_bits(k, KL_I64, (uint64_t)v); }

val k_loop(struct kernel *k, enum loop_kind kind, val lo, val hi, int64_t step)
{
    val v = k_inst(k, L_LOOP, KL_I64, lo, hi, 0, (uint64_t)step);
    if (v) {
        k->inst[v].kind = (uint8_t)kind;
        k->inst[v].varying = kind == LOOP_VECTOR;
    }
    return v;
}

val k_loop_in_order(struct kernel *k, enum loop_kind kind, int64_t n)
{
    val v = k_loop(k, kind, k_int(k, 0), k_int(k, n), 1);
    if (v)
        k->inst[v].rows = 1;
    return v;
}

val k_if(struct kernel *k, val cond) { return k_inst(k, L_IF, KL_BOOL, cond, 0, 0, 0); }
val k_carry(struct kernel *k, val init) { return k_inst(k, L_CARRY, k->inst[init].dtype, init, 0, 0, 0); }
void k_next(struct kernel *k, val carry, val value) { k_inst(k, L_NEXT, k->inst[value].dtype, carry, value, 0, 0); }
val k_out(struct kernel *k, val carry) { return k_inst(k, L_OUT, k->inst[carry].dtype, carry, 0, 0, 0); }

void k_end(struct kernel *k, val loop)
{
    k_inst(k, L_END, KL_BOOL, loop, 0, 0, 0);
    index_scope_end(k, loop);
}

val k_load(struct kernel *k, uint32_t buf, val index, val pred)
{
    return k_inst(k, L_LOAD, buf < k->nbuf ? k->buf[buf].dtype : KL_BOOL, index, pred, 0, buf);
}

val k_load_wide(struct kernel *k, uint32_t buf, val index, val pred)
{
    return k_inst(k, L_LOAD, KL_U32, index, pred, 0, buf);
}

void k_store(struct kernel *k, uint32_t buf, val index, val value, val pred)
{
    k_inst(k, L_STORE, k->inst[value].dtype, index, value, pred, buf);
}

void k_publish(struct kernel *k, uint32_t buf, val index, val value, val pred)
{
    k_inst(k, L_PUBLISH, k->inst[value].dtype, index, value, pred, buf);
}

val k_receive(struct kernel *k, uint32_t buf, val index, val pred)
{
    return k_inst(k, L_RECEIVE, KL_U32, index, pred, 0, buf);
}

uint32_t kernel_word_buffer(const struct kernel *k, val loop)
{
    val v = loop + 1;
    while (v < k->ninst && k->inst[v].op != L_PUBLISH && !(k->inst[v].op == L_END && k->inst[v].a == loop))
        v++;
    return v < k->ninst && k->inst[v].op == L_PUBLISH && k->inst[v].imm < k->nbuf ? (uint32_t)k->inst[v].imm : k->nbuf;
}

void k_prefetch(struct kernel *k, enum prefetch why, uint32_t buf, val index)
{
    val v = k_inst(k, L_PREFETCH, KL_BOOL, index, 0, 0, buf);
    k->inst[v].kind = why;
}

val k_alias(struct kernel *k, uint32_t in, uint32_t out)
{
    return k_inst(k, L_ALIAS, KL_BOOL, 0, 0, 0, in | (uint64_t)out << 32);
}

val k_splat(struct kernel *k, val a)
{
    return k->inst[a].varying ? a : k_inst(k, L_SPLAT, k->inst[a].dtype, a, 0, 0, 0);
}
val k_lane_reduce(struct kernel *k, enum fold f, val a)
{
    return k_inst(k, L_LANE_REDUCE, k->inst[a].dtype, a, 0, 0, f);
}

val k_interleave(struct kernel *k, enum interleave m, val a, val b, uint32_t distance)
{
    val v = k_inst(k, L_INTERLEAVE, k->inst[a].dtype, a, b, 0, distance);
    if (v)
        k->inst[v].kind = (uint8_t)m;
    return v;
}

void k_transpose(struct kernel *k, val *row, uint32_t n)
{
    for (uint32_t h = 1; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i++) {
            if (i & h)
                continue;
            val lo = k_interleave(k, INTERLEAVE_LO, row[i], row[i + h], h),
                hi = k_interleave(k, INTERLEAVE_HI, row[i], row[i + h], h);
            row[i] = lo;
            row[i + h] = hi;
        }
}

static const char result_kind[P_COUNT] = {
#define PRIM(NAME, name, n, result, doc) [P_##NAME] = (#result)[0],
#include "ir/math/prims.def"
};

val k_prim(struct kernel *k, enum prim p, val a, val b, val c)
{
    char kind = result_kind[p];
    unsigned dtype = kind == 'B' ? (unsigned)KL_BOOL : k->inst[kind == '2' ? b : kind == '3' ? c : a].dtype;
    return k_inst(k, L_OP(p), dtype, a, b, c, 0);
}

val k_min(struct kernel *k, val a, val b) { return k_prim(k, P_SELECT, k_prim(k, P_LT, a, b, 0), a, b); }

val k_max(struct kernel *k, val a, val b) { return k_prim(k, P_SELECT, k_prim(k, P_LT, a, b, 0), b, a); }

/* Copies the fields that determine the code into one array for hashing. */
static struct hash128 header_hash(const struct kernel *k)
{
    struct { struct sched_record s; int64_t extent; uint32_t ninst, nbuf; } h;
    memset(&h, 0, sizeof h);
    h.s = k->sched;
    h.extent = k->extent;
    h.ninst = k->ninst;
    h.nbuf = k->nbuf;
    return bytes_hash(&h, sizeof h);
}

struct hash128 kernel_hash(const struct kernel *k)
{
    struct hash128 part[3] = {header_hash(k), bytes_hash(k->inst, k->ninst * sizeof *k->inst),
                              bytes_hash(k->buf, k->nbuf * sizeof *k->buf)};
    return bytes_hash(part, sizeof part);
}

bool kernel_same(const struct kernel *a, const struct kernel *b)
{
    struct hash128 ha = header_hash(a), hb = header_hash(b);
    return ha.lo == hb.lo && ha.hi == hb.hi && a->ninst == b->ninst && a->nbuf == b->nbuf &&
           !memcmp(a->inst, b->inst, a->ninst * sizeof *a->inst) &&
               (!a->nbuf || !memcmp(a->buf, b->buf, a->nbuf * sizeof *a->buf));
}

/* ---- what a finished kernel has ---- */

bool kernel_is_in_order(const struct kernel *k)
{
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op == L_LOOP)
            return k->inst[v].kind == LOOP_PARALLEL && k->inst[v].rows;
    return false;
}

bool kernel_phase(const struct kernel *k, struct phase *p)
{
    val v = p->end ? p->end + 1 : 1;
    if (p->end ? p->end >= k->ninst : k->ninst == 0)
        return false;
    int64_t base = p->base + p->extent;
    *p = (struct phase){v, k->ninst, base, base < INT64_MAX};
    for (; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_SYNC) {
            p->end = v;
            break;
        }
        if (i->op == L_LOOP && (i->kind == LOOP_PARALLEL || i->kind == LOOP_GRID)) {
            int64_t n = i->b < v && k->inst[i->b].op == L_CONST ? (int64_t)k->inst[i->b].imm : 0;
            if (n < 0 || __builtin_mul_overflow(n, (int64_t)kernel_members(k), &n))
                n = n < 0 ? 0 : INT64_MAX;
            p->extent = n > INT64_MAX - p->base ? INT64_MAX - p->base : n;
        }
    }
    return true;
}

bool kernel_shares(const struct kernel *k, val first, val end)
{
    bool shares = false;
    for (uint32_t b = 0; b < k->nbuf; b++)
        shares |= k->buf[b].role == BUF_PHASES;
    for (val v = first; v < end && !shares; v++) {
        const struct linst *i = &k->inst[v];
        bool access = i->op == L_LOAD || i->op == L_STORE || i->op == L_ATOMIC;
        unsigned role = access ? k->buf[i->imm].role : BUF_IN;
        shares = role == BUF_SHARED || role == BUF_SCRATCH || i->op == L_COPY;
    }
    return shares;
}

int64_t kernel_extent(const struct kernel *k)
{
    struct phase p = {0};
    while (kernel_phase(k, &p))
        ;
    return p.base + p.extent;
}

bool kernel_has_blocks(const struct kernel *k)
{
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op == L_LOOP && k->inst[v].kind == LOOP_GRID)
            return true;
    return false;
}

val kernel_end_of(const struct kernel *k, val head)
{
    val end = head + 1;
    while (k->inst[end].op != L_END || k->inst[end].a != head)
        end++;
    return end;
}

const char *kernel_needs_gpu(const struct kernel *k)
{
    if (kernel_members(k) > 1)
        return "members";
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_LOOP && i->kind == LOOP_VECTOR && k->inst[i->b].imm > MAX_VECTOR)
            return "a vector loop of more than 64 lanes";
        if (i->op == L_LOOP && i->kind == LOOP_GRID)
            return "a grid loop"; /* everything else for a GPU is inside one */
    }
    return NULL;
}
