/* Inlining with loops: instructions are renumbered, the parallel loop becomes a serial one, and indices are moved by
 * the first elements of arrays. */
#include "inline.h"
#include <string.h>

bool kernel_may_inline(const struct kernel *k)
{
    for (uint32_t b = 0; b < k->nbuf; b++)
        if (k->buf[b].role != BUF_IN && k->buf[b].role != BUF_OUT && k->buf[b].role != BUF_SCRATCH &&
            k->buf[b].role != BUF_REGISTER)
            return false;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_ATOMIC || (i->op == L_LOOP && (i->kind == LOOP_GRID || i->kind == LOOP_BLOCK)))
            return false;
    }
    return true;
}

static val index_in(struct kernel *into, const struct inline_array *a, val i)
{
    return a->first ? k_prim(into, P_ADD, i, a->first, 0) : i;
}

/* Is it a parallel loop of one iteration? */
static bool is_single(const struct kernel *k, const struct linst *i)
{
    const struct linst *lo = &k->inst[i->a], *hi = &k->inst[i->b];
    return i->op == L_LOOP && i->kind == LOOP_PARALLEL && lo->op == L_CONST && hi->op == L_CONST &&
           hi->imm == lo->imm + 1;
}

static val inline_inst(struct kernel *into, struct linst i, struct inline_array *const *array)
{
    if (i.op == L_ALIAS) {
        const struct inline_array *in = array[(uint32_t)i.imm], *out = array[i.imm >> 32];
        return k_bits(into, KL_BOOL, in->lbuf == out->lbuf && in->first == out->first);
    }
    if (i.op == L_LOOP && i.kind == LOOP_PARALLEL) {
        i.kind = LOOP_SERIAL;
        i.rows = 0;
    }
    if (i.op == L_LOAD || i.op == L_STORE) {
        const struct inline_array *a = array[i.imm];
        i.a = index_in(into, a, i.a);
        i.imm = a->lbuf;
    }
    return k_append(into, i);
}

bool kernel_inline(struct kernel *into, const struct kernel *k, struct inline_array *const *array)
{
    val *map = mem_alloc(k->ninst * sizeof *map);
    if (!map)
        return err_set(&into->err, KL_ERR_MEMORY, "out of memory building kernel %s", into->name);
    for (val v = 1; v < k->ninst && !into->err.code; v++) {
        struct linst i = k->inst[v];
        if (is_single(k, i.op == L_END ? &k->inst[i.a] : &i)) {
            map[v] = map[i.a]; /* the variable is the first value */
            continue;
        }
        i.a = map[i.a];
        i.b = map[i.b];
        i.c = map[i.c];
        i.d = map[i.d];
        if (i.op != L_SYNC && i.op != L_PREFETCH)
            map[v] = inline_inst(into, i, array);
    }
    mem_free(map);
    return !into->err.code;
}

/* ---- by lanes ---- */

struct lanes_inlining {
    struct kernel *into;
    const struct kernel *k;
    struct inline_array *const *array;
    val element, *map;      /* of `into`; per value of k: 0: it depends on the element's number */
    int64_t count;
    val index;              /* of k: the element's number; 0: not known yet */
};

/* Is it an access of the lane's own element, or of the one element that all lanes have? */
static bool access_is_own(struct lanes_inlining *x, const struct linst *i, val pred)
{
    const struct inline_array *a = x->array[i->imm];
    if (pred || i->d || i->cols || (i->op == L_LOAD && i->dtype != a->dtype))
        return false;
    if (a->count == 1)
        return x->k->inst[i->a].op == L_CONST && i->op == L_LOAD;
    x->index = x->index ? x->index : i->a;
    return a->count == x->count && x->index == i->a && x->k->inst[i->a].varying;
}

static val lanes_load(struct lanes_inlining *x, struct inline_array *a)
{
    struct kernel *into = x->into;
    if (!*a->scalar && !a->local)
        *a->scalar = k_load(into, a->lbuf, index_in(into, a, a->count == 1 ? k_int(into, 0) : x->element), 0);
    return *a->scalar;
}

static bool lanes_inst(struct lanes_inlining *x, val v)
{
    struct linst i = x->k->inst[v];
    bool known = (!i.a || x->map[i.a]) && (!i.b || x->map[i.b]) && (!i.c || x->map[i.c]);
    switch (i.op) {
    case L_LOAD:
        x->map[v] = access_is_own(x, &i, i.b) ? lanes_load(x, x->array[i.imm]) : 0;
        return x->map[v];
    case L_STORE:
        if (!access_is_own(x, &i, i.c) || !x->array[i.imm]->local || !x->map[i.b])
            return false;
        *x->array[i.imm]->scalar = k_splat(x->into, x->map[i.b]);
        return true;
    case L_LOOP:
    case L_END:
    case L_PREFETCH:
        return true;
    case L_SPLAT:
        x->map[v] = known ? k_splat(x->into, x->map[i.a]) : 0;
        return true;
    default:
        if (i.op != L_CONST && i.op != L_SLOT && i.op < L_PRIM)
            return false;
        i.a = x->map[i.a];
        i.b = x->map[i.b];
        i.c = x->map[i.c];
        x->map[v] = known ? k_inst(x->into, i.op, i.dtype, i.a, i.b, i.c, i.imm) : 0;
        return true;
    }
}

bool kernel_inline_lanes(struct kernel *into, const struct kernel *k, struct inline_array *const *array, val element,
                         int64_t count)
{
    struct lanes_inlining x = {.into = into, .k = k, .array = array, .element = element, .count = count,
                               .map = mem_alloc(k->ninst * sizeof *x.map)};
    uint32_t vectors = 0;
    bool ok = x.map || err_set(&into->err, KL_ERR_MEMORY, "out of memory building kernel %s", into->name);
    for (val v = 1; v < k->ninst && ok; v++) {
        vectors += k->inst[v].op == L_LOOP && k->inst[v].kind == LOOP_VECTOR;
        ok = vectors <= 1 && lanes_inst(&x, v);
    }
    mem_free(x.map);
    return ok && !into->err.code;
}

/* ---- single elements and whole arrays ---- */

val inline_load(struct kernel *into, struct inline_array *a, int64_t i)
{
    if (a->scalar && a->scalar[i])
        return a->scalar[i];
    val v = k_load(into, a->lbuf, index_in(into, a, k_int(into, i)), 0);
    if (a->scalar)
        a->scalar[i] = v;
    return v;
}

void inline_store(struct kernel *into, struct inline_array *a, int64_t i, val x)
{
    if (a->scalar)
        a->scalar[i] = x;
    else
        k_store(into, a->lbuf, index_in(into, a, k_int(into, i)), x, 0);
}

static void copy_vectors(struct kernel *into, struct inline_array *to, struct inline_array *from, int64_t begin,
                         int64_t end, int64_t width)
{
    val outer = k_loop(into, LOOP_SERIAL, k_int(into, begin), k_int(into, end), width);
    val lane = k_loop(into, LOOP_VECTOR, k_int(into, 0), k_int(into, width), 1);
    val i = k_prim(into, P_ADD, outer, lane, 0);
    k_store(into, to->lbuf, index_in(into, to, i), k_load(into, from->lbuf, index_in(into, from, i), 0), 0);
    k_end(into, lane);
    k_end(into, outer);
}

bool inline_is_same(const struct inline_array *a, const struct inline_array *b)
{
    return !a->scalar && !b->scalar && a->count && a->lbuf == b->lbuf && a->first == b->first && a->count == b->count;
}

void inline_copy(struct kernel *into, struct inline_array *to, struct inline_array *from)
{
    enum { LANES = 16 };
    int64_t done = inline_is_same(to, from) ? to->count : 0;
    for (int64_t width = LANES; width > 1 && !to->scalar && !from->scalar; width /= 2)
        if (to->count - done >= width) {
            int64_t end = to->count - (to->count - done) % width;
            copy_vectors(into, to, from, done, end, width);
            done = end;
        }
    for (; done < to->count; done++)
        inline_store(into, to, done, inline_load(into, from, done));
}

/* ---- work ---- */

/* How often a loop runs, if that is a number; else once. */
static int64_t loop_length(const struct kernel *k, const struct linst *i, uint32_t lanes)
{
    const struct linst *lo = &k->inst[i->a], *hi = &k->inst[i->b];
    if (lo->op != L_CONST || hi->op != L_CONST)
        return 1;
    int64_t n = (int64_t)hi->imm - (int64_t)lo->imm;
    if (i->kind == LOOP_VECTOR)
        return (n + lanes - 1) / lanes;
    return n > 0 ? (n + (int64_t)i->imm - 1) / (int64_t)i->imm : 0;
}

int64_t kernel_work(const struct kernel *k, uint32_t vector_bytes)
{
    enum { F32 = 4 };
    const int64_t max = INT64_MAX / 2;
    uint32_t lanes = vector_bytes > F32 ? vector_bytes / F32 : 1, depth = 0;
    int64_t times[MAX_NEST + 1] = {1}, work = 0;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        int64_t each = i->op == L_CONST || i->op == L_SLOT || i->op == L_CARRY || i->op == L_NEXT ? 0 : 1, n;
        if (i->op == L_MMA)
            each = i->rows * k->inst[i->a].cols * ((i->cols + lanes - 1) / lanes);
        else if (i->cols)
            each = i->rows * ((i->cols + lanes - 1) / lanes);
        if (__builtin_mul_overflow(times[depth], each, &n) || n > max - work)
            return max;
        work += n;
        if (i->op == L_END)
            depth -= depth > 0;
        if ((i->op == L_LOOP || i->op == L_IF) && depth < MAX_NEST) {
            int64_t runs = i->op == L_LOOP ? loop_length(k, i, lanes) : 1;
            if (__builtin_mul_overflow(times[depth], runs, &times[depth + 1]))
                return max;
            depth++;
        }
    }
    return work;
}
