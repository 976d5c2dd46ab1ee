/* Elementwise groups: one pass over the elements.
 *
 * The loops are the dimensions of the result, merged where every access allows it.  A first build with
 * one loop a dimension shows the accesses as linear forms; neighbours merge when each access steps over
 * them as over one dimension (outer stride = inner stride * inner length). */
#include "lower.h"
#include <string.h>

struct nest { uint32_t n; int64_t size[KL_MAX_RANK]; uint8_t axis_end[KL_MAX_RANK]; }; /* merged dims: size, axes [end of last, end) */

static ref root_of(const struct lowering *w)
{
    ref root = NIL;
    for (uint32_t m = 0; m < w->nmember; m++) {
        ref r = w->member[m];
        if (w->stored[r] && (!root || node_shape(w->g, r)->rank > node_shape(w->g, root)->rank))
            root = r;
    }
    return root;
}

static void store_members(struct lowering *w, const struct shape *s, const val *coord)
{
    lower_point(w);
    for (uint32_t m = 0; m < w->nmember; m++)
        if (w->stored[w->member[m]])
            lower_store(w, w->member[m], s, coord);
}

static bool is_index(const struct kernel *k, val v)
{
    const struct linst *i = &k->inst[v];
    return i->op == L_CONST || i->op == L_LOOP || (i->op >= L_PRIM && i->kind == INST_INDEX);
}

static bool merges(const struct kernel *k, val index, val outer, val inner, int64_t inner_size)
{
    int64_t so, si;
    if (!ix_depends(k, index, outer) && !ix_depends(k, index, inner))
        return true;
    return ix_stride(k, index, outer, &so) && ix_stride(k, index, inner, &si) && so == si * inner_size;
}

/* Every index that is used as an address or as data must allow it. */
bool lower_can_merge(const struct kernel *k, val outer, val inner, int64_t inner_size)
{
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op < L_LOAD || (i->op >= L_PRIM && i->kind == INST_INDEX))
            continue;
        const val operand[3] = {i->a, i->b, i->c};
        for (int o = 0; o < 3; o++)
            if (operand[o] && k->inst[operand[o]].dtype == KL_I64 && is_index(k, operand[o]) &&
                !merges(k, operand[o], outer, inner, inner_size))
                return false;
    }
    return true;
}

/* Builds the group once with a loop per dimension, in a kernel that is thrown away. */
static void find_nest(struct lowering *w, const struct shape *s, struct nest *nest)
{
    struct trial t;
    *nest = (struct nest){0};
    if (trial_begin(&t, w)) {
        struct kernel *k = t.w.k;
        val coord[KL_MAX_RANK] = {0};
        lower_scalars(&t.w);
        for (uint32_t d = 0; d < s->rank; d++)
            coord[d] = s->dim[d] == 1 ? k_int(k, 0) : k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->dim[d]), 1);
        store_members(&t.w, s, coord);
        int last = -1; /* the axis before this one that is not of length 1 */
        for (uint32_t d = 0; d < s->rank; d++) {
            if (s->dim[d] == 1)
                continue;
            if (last >= 0 && lower_can_merge(k, coord[last], coord[d], s->dim[d]))
                nest->size[nest->n - 1] *= s->dim[d];
            else
                nest->size[nest->n++] = s->dim[d];
            nest->axis_end[nest->n - 1] = (uint8_t)(d + 1);
            last = (int)d;
        }
    }
    trial_end(&t, w);
}

/* Coordinates of s from one index per merged dimension. */
static void coords_of(struct kernel *k, const struct shape *s, const struct nest *nest, const val *index, val *coord)
{
    uint32_t axis = 0;
    for (uint32_t d = 0; d < nest->n; d++) {
        struct shape part = {0};
        for (uint32_t a = axis; a < nest->axis_end[d]; a++)
            part.dim[part.rank++] = s->dim[a];
        lower_unflatten(k, &part, index[d], coord + axis);
        axis = nest->axis_end[d];
    }
    for (; axis < s->rank; axis++)
        coord[axis] = k_int(k, 0);
}

struct body { const struct shape *s; const struct nest *nest; val outer[KL_MAX_RANK]; };

/* W elements from `base` along the innermost dimension; only the first `rest` of them if rest > 0. */
static void emit_vector(struct lowering *w, const struct body *b, val base, int64_t rest)
{
    struct kernel *k = w->k;
    val index[KL_MAX_RANK], coord[KL_MAX_RANK] = {0};
    memcpy(index, b->outer, sizeof index);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, w->k->sched.width), 1);
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    index[b->nest->n - 1] = ix_add(k, base, w->lane);
    coords_of(k, b->s, b->nest, index, coord);
    store_members(w, b->s, coord);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

enum { BLOCK_VECTORS = 16 };

/* One dimension: iterations of the parallel loop are blocks of BLOCK_VECTORS vectors. */
static void emit_flat(struct lowering *w, struct body *b, int64_t n)
{
    struct kernel *k = w->k;
    int64_t width = k->sched.width, vectors = n / width, tail = n % width;
    int64_t full = vectors / BLOCK_VECTORS, rest = vectors % BLOCK_VECTORS;
    k->extent = full + (rest || tail);
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    val count = k_int(k, full ? BLOCK_VECTORS : rest);
    if (full && k->extent > full) {
        count = k_prim(k, P_SELECT, k_prim(k, P_LT, p, k_int(k, full), 0), count, k_int(k, rest));
        ix_bound(k, count, 0, BLOCK_VECTORS);
    }
    val first = ix_scale(k, p, BLOCK_VECTORS * width);
    if (full || rest) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), count, 1);
        emit_vector(w, b, ix_add(k, first, ix_scale(k, j, width)), 0);
        k_end(k, j);
    }
    if (tail) {
        val last = full ? k_if(k, k_prim(k, P_EQ, p, k_int(k, full), 0)) : 0;
        emit_vector(w, b, k_int(k, vectors * width), tail);
        if (last)
            k_end(k, last);
    }
    k_end(k, p);
    lower_grain(w, BLOCK_VECTORS * width);
}

/* Several dimensions: the outer ones are the parallel loop, the innermost is walked in vectors. */
static void emit_rows(struct lowering *w, struct body *b)
{
    struct kernel *k = w->k;
    const struct nest *nest = b->nest;
    int64_t n = nest->size[nest->n - 1], width = k->sched.width;
    struct shape outer = {.rank = nest->n - 1};
    k->extent = 1;
    for (uint32_t d = 0; d < outer.rank; d++)
        k->extent *= outer.dim[d] = nest->size[d];
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    lower_unflatten(k, &outer, p, b->outer);
    if (n / width) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, n / width), 1);
        emit_vector(w, b, ix_scale(k, j, width), 0);
        k_end(k, j);
    }
    if (n % width)
        emit_vector(w, b, k_int(k, n / width * width), n % width);
    k_end(k, p);
    lower_grain(w, n);
}

void lower_map(struct lowering *w)
{
    struct kernel *k = w->k;
    struct nest nest;
    const struct shape *s = node_shape(w->g, root_of(w));
    find_nest(w, s, &nest);
    if (!nest.n) { /* a single element */
        nest.n = 1;
        nest.size[0] = 1;
        nest.axis_end[0] = (uint8_t)s->rank;
    }
    k->sched.kind = SCHED_MAP;
    k->sched.width = (uint16_t)lower_width(w, nest.size[nest.n - 1]);
    lower_scalars(w);
    struct body b = {.s = s, .nest = &nest};
    if (nest.n == 1)
        emit_flat(w, &b, nest.size[0]);
    else
        emit_rows(w, &b);
}
