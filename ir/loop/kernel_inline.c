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

static val inline_inst(struct kernel *into, struct linst i, struct inline_array *const *array)
{
    if (i.op == L_ALIAS) /* the program that has the kernels updates nothing in place */
        return k_bits(into, KL_BOOL, 0);
    if (i.op == L_LOOP && i.kind == LOOP_PARALLEL)
        i.kind = LOOP_SERIAL;
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

void inline_copy(struct kernel *into, struct inline_array *to, struct inline_array *from)
{
    enum { LANES = 16 };
    int64_t done = 0;
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
