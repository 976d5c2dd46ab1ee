/* Lowers elementwise groups: one pass over the elements.
 *
 * The loops are the dimensions of the result; neighbouring dimensions are merged where every access allows it.  A first
 * build with one loop for each dimension gives each access as a linear form.  Two neighbouring dimensions are merged if
 * every access steps over both as over one dimension (outer stride = inner stride * inner length).
 *
 * A group may consist of several parts: members of different parts do not read each other or the same array
 * (fuse_parts.c makes such groups).  Each part has its own range of iterations of the parallel loop, and its own loops
 * inside.
 *
 * A dynamic_update of a state stores all elements, or, where the program updates the state in place, only the window.
 * One kernel does both, because the executor decides at each run whether a buffer may be overwritten. */
#include "lower_transpose.h"
#include "passes/lower/gpu/lower_gpu.h"
#include <string.h>

/* Blocks of an iteration of a kernel that, where a state is updated in place, stores only a window of it: 3 MB are
 * 12,000 rows of 64 floats, and skipping each in an iteration of its own takes 10 us. */
enum { WINDOW_RUN = 64 };

struct nest {
    uint32_t n;                        /* merged dimensions: size, axes [end of the previous one, end) */
    struct size size[KL_MAX_RANK];
    uint8_t axis_end[KL_MAX_RANK];
    uint32_t work, depth;              /* primitives per element; length of the longest chain of dependent ones */
    uint32_t wide;                     /* primitives on numbers of 8 bytes, whose vectors take two registers */
};

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

static bool dimensions_merge(struct kernel *k, val index, val outer, val inner, struct size inner_size)
{
    struct size so, si;
    if (!ix_depends(k, index, outer) && !ix_depends(k, index, inner))
        return true;
    return ix_stride_size(k, index, outer, &so) && ix_stride_size(k, index, inner, &si) &&
           size_equal(so, size_mul(si, inner_size));
}

/* Can two dimensions be merged?  Every index that is used as an address or as data must allow it. */
bool lower_can_merge(struct kernel *k, val outer, val inner, struct size inner_size)
{
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op < L_LOAD || (i->op >= L_PRIM && i->kind == INST_INDEX))
            continue;
        const val operand[3] = {i->a, i->b, i->c};
        for (int o = 0; o < 3; o++)
            if (operand[o] && k->inst[operand[o]].dtype == KL_I64 && is_index(k, operand[o]) &&
                !dimensions_merge(k, operand[o], outer, inner, inner_size))
                return false;
    }
    return true;
}

/* Counts the arrays that the kernel reads and writes, each once. */
struct arrays { struct arg *v; uint32_t n, cap; int64_t bytes; };

static void add_arrays(struct lowering *w, const struct lowered *l, struct arrays *a)
{
    for (uint32_t i = 0; i < l->narg; i++) {
        uint32_t at = 0;
        while (at < a->n && (a->v[at].node != l->arg[i].node || a->v[at].role != l->arg[i].role))
            at++;
        if (at < a->n)
            continue;
        if (!mem_reserve(&a->v, &a->cap, a->n + 1, sizeof *a->v)) {
            err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering @%s", w->g->name);
            return;
        }
        a->v[a->n++] = l->arg[i];
        a->bytes += (int64_t)node_bytes(w->g, l->arg[i].node);
    }
}

/* Counts the primitives on elements of a kernel, and those of the longest chain of dependent ones, where slow
 * primitives count as four. */
static void count_primitives(const struct kernel *k, struct nest *nest, struct err *e)
{
    enum { SLOW = 4 };
    uint32_t *depth = mem_alloc(k->ninst * sizeof *depth);
    if (!depth) {
        err_set(e, KL_ERR_MEMORY, "out of memory counting primitives");
        return;
    }
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        bool counts = i->op >= L_PRIM && i->kind != INST_INDEX;
        nest->work += counts;
        nest->wide += counts && dtype_size(i->dtype) > 4;
        const val operand[] = {i->a, i->b, i->c};
        for (unsigned o = 0; counts && o < 3; o++)
            depth[v] = operand[o] < v && depth[operand[o]] > depth[v] ? depth[operand[o]] : depth[v];
        depth[v] += !counts ? 0 : i->op == L_OP(P_DIV) || i->op == L_OP(P_SQRT) ? SLOW : 1;
        nest->depth = depth[v] > nest->depth ? depth[v] : nest->depth;
    }
    mem_free(depth);
}

/* Builds the group once with a loop for each dimension, in a kernel that is discarded. */
static void find_nest(struct lowering *w, const struct shape *s, struct nest *nest, struct arrays *arrays)
{
    struct trial t;
    *nest = (struct nest){0};
    if (trial_begin(&t, w)) {
        struct kernel *k = t.w.k;
        val coord[KL_MAX_RANK] = {0};
        lower_scalars(&t.w);
        for (uint32_t d = 0; d < s->rank; d++)
            coord[d] = s->dim[d] == 1 ? k_int(k, 0)
                       : k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, ix_max(k, kernel_length(k, s->dim[d]))), 1);
        store_members(&t.w, s, coord);
        count_primitives(k, nest, &w->k->err);
        int last = -1; /* the previous axis whose length is not 1 */
        for (uint32_t d = 0; d < s->rank; d++) {
            if (s->dim[d] == 1)
                continue;
            struct size length = kernel_length(k, s->dim[d]);
            if (last >= 0 && lower_can_merge(k, coord[last], coord[d], length))
                nest->size[nest->n - 1] = size_mul(nest->size[nest->n - 1], length);
            else
                nest->size[nest->n++] = length;
            nest->axis_end[nest->n - 1] = (uint8_t)(d + 1);
            last = (int)d;
        }
        add_arrays(w, &t.out, arrays);
    }
    trial_end(&t, w);
}

void lower_map_coords(struct kernel *k, const struct map_loops *m, const val *index, val *coord)
{
    uint32_t axis = 0;
    for (uint32_t d = 0; d < m->n; d++) {
        struct shape part = {0};
        for (uint32_t a = axis; a < m->axis_end[d]; a++)
            part.dim[part.rank++] = m->s->dim[a];
        lower_unflatten(k, &part, index[d], coord + axis);
        axis = m->axis_end[d];
    }
    for (; axis < m->s->rank; axis++)
        coord[axis] = k_int(k, 0);
}

static struct map_loops loops_of(const struct shape *s, const struct nest *nest)
{
    struct map_loops m = {.s = s, .n = nest->n};
    memcpy(m.size, nest->size, sizeof m.size);
    memcpy(m.axis_end, nest->axis_end, sizeof m.axis_end);
    return m;
}

/* Computes the coordinates of s from one index for each merged dimension. */
static void coords_of(struct kernel *k, const struct shape *s, const struct nest *nest, const val *index, val *coord)
{
    struct map_loops m = loops_of(s, nest);
    lower_map_coords(k, &m, index, coord);
}

struct body {               /* the loops of one part */
    const ref *member; uint32_t nmember;
    const struct shape *s;
    struct nest nest;
    int64_t block, blocks;  /* vectors of a block; number of blocks, or of rows where an iteration is a row */
    int64_t run, extent;    /* blocks of an iteration; number of iterations */
    val active;             /* number of iterations with work, where sizes have symbols; else 0 */
    int64_t each;           /* number of neighbouring elements that a lane computes */
    val outer[KL_MAX_RANK];
    ref window;             /* a dynamic_update of a state, the only stored member; NIL: there is none */
};

static struct size innermost(const struct body *b) { return b->nest.size[b->nest.n - 1]; }

/* Computes the stored members at `each` adjacent elements from `first` on, then stores all of them, so that the loads
 * of one
 * do not wait for the stores of another. */
static void store_vector(struct lowering *w, const struct body *b, val first)
{
    struct kernel *k = w->k;
    uint32_t n = w->nmember * (uint32_t)b->each, at = 0;
    struct element *element = mem_alloc(n * sizeof *element);
    for (int64_t u = 0; element && u < b->each; u++) {
        val index[KL_MAX_RANK], coord[KL_MAX_RANK] = {0};
        memcpy(index, b->outer, sizeof index);
        index[b->nest.n - 1] = ix_add(k, first, k_int(k, u));
        coords_of(k, b->s, &b->nest, index, coord);
        lower_point(w);
        for (uint32_t m = 0; m < w->nmember; m++)
            if (w->stored[w->member[m]])
                element[at++] = lower_element(w, w->member[m], b->s, coord);
    }
    uint32_t members = at / (uint32_t)b->each;
    for (uint32_t m = 0; m < members; m++)
        for (uint32_t u = 0; u < (uint32_t)b->each; u++)
            lower_put(w, &element[u * members + m]);
    if (!element)
        err_set(&k->err, KL_ERR_MEMORY, "out of memory lowering @%s", w->g->name);
    mem_free(element);
}

/* Emits vectors of W lanes from `base` along the innermost dimension; only the first `rest` lanes if rest is not 0. */
static void emit_vector(struct lowering *w, const struct body *b, val base, val rest)
{
    struct kernel *k = w->k;
    val index[KL_MAX_RANK], coord[KL_MAX_RANK] = {0};
    memcpy(index, b->outer, sizeof index);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    int64_t number;
    w->pred = rest ? k_prim(k, P_LT, w->lane, rest, 0) : 0;
    if (rest && ix_const(k, rest, &number)) /* the other lanes access no memory */
        ix_bound(k, w->lane, 0, number - 1);
    index[b->nest.n - 1] = ix_add(k, base, ix_scale(k, w->lane, b->each));
    if (b->each > 1) {
        store_vector(w, b, index[b->nest.n - 1]);
    } else {
        coords_of(k, b->s, &b->nest, index, coord);
        store_members(w, b->s, coord);
    }
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* Emits the last `tail` elements of the innermost dimension, from `base` on. */
static void emit_tail(struct lowering *w, struct body *b, int64_t base, int64_t tail)
{
    int64_t each = b->each, width = w->k->sched.width;
    if (tail % each == 0) {
        emit_vector(w, b, k_int(w->k, base), k_int(w->k, tail / each));
        return;
    }
    for (b->each = 1; tail > 0; base += width, tail -= width) /* fewer than `each` times */
        emit_vector(w, b, k_int(w->k, base), tail < width ? k_int(w->k, tail) : 0);
    b->each = each;
}

/* Emits block p of the innermost dimension, where an iteration is a block of vectors. */
static void emit_flat(struct lowering *w, struct body *b, val p)
{
    struct kernel *k = w->k;
    int64_t n = innermost(b).bound, width = k->sched.width * b->each, vectors = n / width, tail = n % width;
    int64_t full = vectors / b->block, rest = vectors % b->block, step = b->block * width;
    int64_t blocks = (n + step - 1) / step;
    val count = k_int(k, full ? b->block : rest);
    if (full && blocks > full) {
        count = k_prim(k, P_SELECT, k_prim(k, P_LT, p, k_int(k, full), 0), count, k_int(k, rest));
        ix_bound(k, count, 0, b->block);
    }
    val first = ix_scale(k, p, b->block * width);
    if (full || rest) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), count, 1);
        emit_vector(w, b, ix_add(k, first, ix_scale(k, j, width)), 0);
        k_end(k, j);
    }
    if (tail) {
        val last = full ? k_if(k, k_prim(k, P_EQ, p, k_int(k, full), 0)) : 0;
        emit_tail(w, b, vectors * width, tail);
        if (last)
            k_end(k, last);
    }
}

/* Emits the whole vectors of `length` elements from `first` on, at most `most`, then the elements of a last vector.
 * The length is a multiple of the adjacent elements that a lane computes. */
static void emit_symbolic_run(struct lowering *w, const struct body *b, val first, val length, int64_t max, bool whole)
{
    struct kernel *k = w->k;
    int64_t width = k->sched.width * b->each;
    val count = ix_min(k, ix_div(k, length, width), max), j = k_loop(k, LOOP_SERIAL, k_int(k, 0), count, 1);
    emit_vector(w, b, ix_add(k, first, ix_scale(k, j, width)), 0);
    k_end(k, j);
    if (whole)
        return;
    val rest = k_prim(k, P_SUB, length, ix_scale(k, count, width), 0), more = k_prim(k, P_LT, k_int(k, 0), rest, 0);
    val last = k_if(k, k_prim(k, P_AND, more, k_prim(k, P_LT, count, k_int(k, max), 0), 0));
    ix_assume_range(k, rest, 0, width - 1);
    emit_vector(w, b, ix_add(k, first, ix_scale(k, count, width)), ix_div(k, rest, b->each));
    k_end(k, last);
}

/* As emit_flat, for a size with symbols. */
static void emit_symbolic_flat(struct lowering *w, struct body *b, val p)
{
    struct kernel *k = w->k;
    struct size n = innermost(b);
    int64_t width = k->sched.width * b->each;
    val first = ix_scale(k, p, b->block * width), length = k_prim(k, P_SUB, ix_size(k, n), first, 0);
    ix_assume_range(k, length, 0, n.bound);
    emit_symbolic_run(w, b, first, length, b->block, size_divides(n, width));
}

/* The number of elements of the dimensions but for the innermost one. */
static struct size outer_count(const struct body *b)
{
    struct size n = size_constant(1);
    for (uint32_t d = 0; d + 1 < b->nest.n; d++)
        n = size_mul(n, b->nest.size[d]);
    return n;
}

/* The number of blocks of vectors of the innermost dimension: at most, and for these values of the symbols. */
static int64_t max_blocks(const struct body *b)
{
    int64_t rows = outer_count(b).bound;
    return b->blocks / (rows ? rows : 1);
}

static val blocks_now(struct kernel *k, const struct body *b)
{
    int64_t step = b->block * b->each * k->sched.width;
    return size_is_constant(innermost(b)) ? k_int(k, max_blocks(b))
                                          : ix_div(k, ix_add(k, ix_size(k, innermost(b)), k_int(k, step - 1)), step);
}

/* Emits iterations that are blocks of vectors of a row; the rows of the outer dimensions follow one another. */
static void emit_blocks_of_rows(struct lowering *w, struct body *b, val p)
{
    struct kernel *k = w->k;
    val block, row = ix_quotient(k, p, blocks_now(k, b), max_blocks(b), &block);
    lower_unflatten_sizes(k, b->nest.size, b->nest.n - 1, row, b->outer);
    if (size_is_constant(innermost(b)))
        emit_flat(w, b, block);
    else
        emit_symbolic_flat(w, b, block);
}

/* Emits several dimensions: the iterations are over the outer ones, and a loop over vectors over the innermost. */
static void lower_map_emit_rows(struct lowering *w, struct body *b, val p)
{
    struct kernel *k = w->k;
    struct size size = innermost(b);
    int64_t n = size.bound, width = k->sched.width;
    lower_unflatten_sizes(k, b->nest.size, b->nest.n - 1, p, b->outer);
    if (!size_is_constant(size)) {
        emit_symbolic_run(w, b, k_int(k, 0), ix_size(k, size), n, size_divides(size, width));
        return;
    }
    if (n / width) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, n / width), 1);
        emit_vector(w, b, ix_scale(k, j, width), 0);
        k_end(k, j);
    }
    if (n % width)
        emit_vector(w, b, k_int(k, n / width * width), k_int(k, n % width));
}

/* The number of iterations of a part that have work, for any values of the symbols. */
static val active_iterations(struct kernel *k, const struct body *b)
{
    struct size rows = outer_count(b);
    bool blocks = b->nest.n == 1 || schedule_of(k)->map.tasks;
    if (size_is_constant(rows) && (!blocks || size_is_constant(innermost(b))))
        return k_int(k, b->extent);
    return blocks ? ix_mul(k, ix_size(k, rows), blocks_now(k, b)) : ix_size(k, rows);
}

/* Sets the members of w to those of the part. */
static void lower_map_enter(struct lowering *w, const struct body *b)
{
    w->member = b->member;
    w->nmember = b->nmember;
}

/* Emits all dimensions as a single one. */
static void join_dimensions(struct nest *nest)
{
    while (nest->n > 1) {
        nest->size[nest->n - 2] = size_mul(nest->size[nest->n - 2], nest->size[nest->n - 1]);
        nest->axis_end[nest->n - 2] = nest->axis_end[nest->n - 1];
        nest->n--;
    }
}

/* The part's dynamic_update of a state, if that is all that it stores: where the state is updated in place, only the
 * window has to be stored. */
static ref find_window(const struct lowering *w, const struct body *b)
{
    ref window = NIL;
    uint32_t stored = 0;
    for (uint32_t m = 0; m < b->nmember; m++)
        if (w->stored[b->member[m]]) {
            window = b->member[m];
            stored++;
        }
    const struct node *n = &w->g->node[window];
    bool update = stored == 1 && n->op == OP_dynamic_update && w->g->node[n->in[0]].op == OP_state;
    bool known = !w->placeholders && !shape_is_symbolic(node_shape(w->g, window));
    return update && known && w->assigned && !w->gpu ? window : NIL;
}

/* The greatest number of adjacent elements, up to `access`, that divides a size whatever its symbols are. */
static int64_t whole_accesses(struct size size, int64_t access)
{
    while (access > 1 && !size_is_constant(size) && !size_divides(size, access))
        access /= 2;
    return access;
}

/* Elements of the largest result. */
static int64_t max_elements(const struct lowering *w)
{
    int64_t max = 1;
    for (uint32_t m = 0; m < w->nmember; m++)
        max = w->stored[w->member[m]] && node_numel(w->g, w->member[m]) > max ? node_numel(w->g, w->member[m]) : max;
    return max;
}

static void find_loops(struct lowering *w, struct body *b, struct map_part *part, struct arrays *arrays)
{
    lower_map_enter(w, b);
    b->s = node_shape(w->g, root_of(w));
    find_nest(w, b->s, &b->nest, arrays);
    if (!b->nest.n) { /* a single element */
        b->nest.n = 1;
        b->nest.size[0] = size_constant(1);
        b->nest.axis_end[0] = (uint8_t)b->s->rank;
    }
    const struct nest *nest = &b->nest;
    *part = (struct map_part){.loop = lower_loop(w, innermost(b).bound), .work = nest->work,
                              .depth = nest->depth, .wide = nest->wide,
                              .access = lower_access_smallest(w, max_elements(w)), .flat = nest->n == 1,
                              .outer = outer_count(b).bound};
    b->window = find_window(w, b);
    part->run = b->run = b->window ? WINDOW_RUN : 1;
    part->access = whole_accesses(innermost(b), part->access);
    part->access = whole_accesses(size_mul(innermost(b), outer_count(b)), part->access); /* if they are joined */
}

/* ---- windows of states ---- */

/* Stores W elements from `first` on of a row of the window, which is contiguous; only `rest` of them if it is not 0.
 * outer: coordinates before the axis. */
static void emit_window_vector(struct lowering *w, const struct body *b, val start, const val *outer, val first,
                               int64_t rest)
{
    struct kernel *k = w->k;
    const struct node *n = &w->g->node[b->window];
    uint32_t axis = n->attr.axis.axis;
    struct shape inner = {0};
    for (uint32_t d = axis + 1; d < b->s->rank; d++)
        inner.dim[inner.rank++] = b->s->dim[d];
    val at[KL_MAX_RANK] = {0};
    memcpy(at, outer, axis * sizeof *at);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    if (rest) /* the other lanes access no memory */
        ix_bound(k, w->lane, 0, rest - 1);
    val element = ix_add(k, first, w->lane), row = ix_div(k, element, shape_count(&inner));
    lower_unflatten(k, &inner, ix_mod(k, element, shape_count(&inner)), at + axis + 1);
    lower_point(w);
    at[axis] = row;
    val value = lower_at(w, n->in[1], at);
    at[axis] = ix_add(k, start, row);
    k_store(k, lower_buffer(w, b->window, BUF_OUT), lower_flatten(k, b->s, at), value, w->pred);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* Stores the window's rows p, p + extent, ...: a row has all elements of the axis and those behind it. */
static void emit_window(struct lowering *w, const struct body *b, val p)
{
    struct kernel *k = w->k;
    const struct node *n = &w->g->node[b->window];
    uint32_t axis = n->attr.axis.axis;
    int64_t count = node_shape(w->g, n->in[1])->dim[axis], width = k->sched.width;
    struct split split = split_at(b->s, axis);
    struct shape outer = {.rank = axis};
    memcpy(outer.dim, b->s->dim, axis * sizeof *outer.dim);
    int64_t length = count * split.inner, whole = length / width * width;
    val coord[KL_MAX_RANK] = {0};
    if (!length || !split.outer)
        return;
    val row = k_loop(k, LOOP_SERIAL, p, k_int(k, split.outer), b->extent);
    ix_bound(k, row, 0, split.outer - 1);
    lower_unflatten(k, &outer, row, coord);
    lower_point(w);
    const val none[KL_MAX_RANK] = {0};
    val start = lower_index(k, lower_at(w, n->in[2], none), b->s->dim[axis] - count);
    if (whole) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), width);
        emit_window_vector(w, b, start, coord, j, 0);
        k_end(k, j);
    }
    if (length > whole)
        emit_window_vector(w, b, start, coord, k_int(k, whole), length - whole);
    k_end(k, row);
}

/* Emits block p, or row p, of a part. */
static void emit_elements(struct lowering *w, struct body *b, val p)
{
    if (b->nest.n == 1 && !size_is_constant(innermost(b)))
        emit_symbolic_flat(w, b, p);
    else if (b->nest.n == 1)
        emit_flat(w, b, p);
    else if (schedule_of(w->k)->map.tasks)
        emit_blocks_of_rows(w, b, p);
    else
        lower_map_emit_rows(w, b, p);
}

static void emit_part(struct lowering *w, struct body *b, val p)
{
    struct kernel *k = w->k;
    lower_map_enter(w, b);
    if (!b->window) {
        emit_elements(w, b, p);
        return;
    }
    uint32_t in = lower_buffer(w, w->g->node[b->window].in[0], BUF_IN), out = lower_buffer(w, b->window, BUF_OUT);
    val in_place = k_alias(k, in, out), copies = k_if(k, k_prim(k, P_NOT, in_place, 0, 0));
    val first = ix_scale(k, p, b->run), rest = k_prim(k, P_SUB, k_int(k, b->blocks), first, 0);
    val q = k_loop(k, LOOP_SERIAL, k_int(k, 0), ix_min(k, rest, b->run), 1), block = ix_add(k, first, q);
    ix_bound(k, block, 0, b->blocks - 1);
    emit_elements(w, b, block);
    k_end(k, q);
    k_end(k, copies);
    val stores = k_if(k, in_place);
    emit_window(w, b, p);
    k_end(k, stores);
}

/* Emits a part for iterations first .. end - 1 of the parallel loop, which it counts from 0. */
static void emit_share(struct lowering *w, struct body *b, val p, val first, val end)
{
    struct kernel *k = w->k;
    val from = k_prim(k, P_LE, first, p, 0), to = k_prim(k, P_LT, p, end, 0);
    val share = k_if(k, k_prim(k, P_AND, from, to, 0)), own = k_prim(k, P_SUB, p, first, 0);
    ix_bound(k, own, 0, b->extent - 1);
    emit_part(w, b, own);
    k_end(k, share);
}

static void emit_parts(struct lowering *w, struct body *b, const struct map_part *part, uint32_t n)
{
    struct kernel *k = w->k;
    struct tasks t;
    int64_t extent = 0;
    val active = k_int(k, 0);
    for (uint32_t i = 0; i < n; i++) {
        if (map_joins(&part[i], schedule_of(k)))
            join_dimensions(&b[i].nest);
        b[i].each = map_vector_width(schedule_of(k));
        b[i].block = map_block(&part[i], schedule_of(k));
        b[i].blocks = map_blocks(&part[i], schedule_of(k));
        extent += b[i].extent = map_iterations(&part[i], schedule_of(k));
        b[i].active = active_iterations(k, &b[i]);
        active = ix_add(k, active, b[i].active);
    }
    val p = lower_tasks(w, extent, active, &t), first = k_int(k, 0);
    for (uint32_t i = 0; i < n; i++) {
        val end = ix_add(k, first, b[i].active);
        if (n == 1)
            emit_part(w, &b[i], p);
        else if (b[i].extent)
            emit_share(w, &b[i], p, first, end);
        first = end;
    }
    lower_tasks_end(w, &t);
}

static uint32_t top_of(uint32_t *parent, uint32_t m)
{
    while (parent[m] != m)
        m = parent[m] = parent[parent[m]];
    return m;
}

/* Writes the members, sorted by part, to `member`, and the parts to b.  Returns the number of parts. */
static uint32_t find_parts(struct lowering *w, ref *member, uint32_t *parent, struct body *b)
{
    uint32_t parts = 0, n = 0;
    for (uint32_t m = 0; m < w->nmember; m++)
        parent[m] = m;
    for (uint32_t m = 0; m < w->nmember; m++)
        for (unsigned i = 0; i < w->g->node[w->member[m]].nin; i++) {
            bool linear;
            ref x = node_operand(w->g, w->member[m], i, &linear);
            if (lower_is_member(w, x))
                parent[top_of(parent, m)] = top_of(parent, w->place[x]);
            else if (linear && node_numel(w->g, x) > 1 && node_numel(w->g, x) == node_numel(w->g, w->member[m]))
                parent[top_of(parent, m)] = top_of(parent, lower_reader(w, x, m));
        }
    for (uint32_t top = 0; top < w->nmember; top++) {
        if (parent[top] != top)
            continue;
        b[parts] = (struct body){.member = member + n};
        for (uint32_t m = 0; m < w->nmember; m++)
            if (top_of(parent, m) == top)
                member[n++] = w->member[m];
        b[parts].nmember = (uint32_t)(member + n - b[parts].member);
        parts++;
    }
    return parts;
}

void map_emit(struct elementwise *e, const struct schedule *s)
{
    (void)s; /* the kernel has it */
    lower_scalars(e->w);
    emit_parts(e->w, e->body, e->part, e->parts);
}

void gpu_transpose_emit(struct elementwise *e, const struct schedule *s)
{
    (void)s;
    lower_map_enter(e->w, &e->body[0]);
    gpu_transpose(e->w, e->transpose);
}

void transpose_emit(struct elementwise *e, const struct schedule *s)
{
    (void)s;
    lower_map_enter(e->w, &e->body[0]);
    struct element *element = mem_alloc((e->w->nmember + 1) * sizeof *element);
    if (element)
        transpose_tiles(e->tiles, element);
    else
        err_set(&e->w->k->err, KL_ERR_MEMORY, "out of memory lowering @%s", e->w->g->name);
    mem_free(element);
}

/* Finds the transposed operands of a group on a processor, of lengths without symbols. */
static void find_tiles(struct lowering *w, const struct body *b, struct transpose *t, struct map_facts *f)
{
    enum { SHORTEST = 2 };
    const struct map_loops *m = t->m;
    int64_t matrices = 1;
    for (uint32_t d = 0; d < m->n; d++)
        if (!size_is_constant(m->size[d]))
            return;
    if (m->n < 2 || m->size[m->n - 1].bound < SHORTEST || b->window)
        return;
    struct element *element = mem_alloc((w->nmember + 1) * sizeof *element);
    if (element && transpose_find(t, SHORTEST, element)) {
        for (uint32_t l = 0; l < t->loads.n; l++)
            if (t->loads.transposed[l]) {
                f->element += (int64_t)dtype_size(t->loads.dtype[l]);
                f->loads++;
            }
        for (uint32_t d = 0; d + 1 < m->n; d++)
            matrices *= d == t->across ? 1 : m->size[d].bound;
        f->rows = m->size[t->across].bound;
        f->columns = m->size[m->n - 1].bound;
        f->matrices = matrices;
    }
    mem_free(element);
}

void lower_map(struct lowering *w)
{
    const ref *all = w->member;
    uint32_t n = w->nmember;
    ref *member = mem_alloc(n * sizeof *member);
    uint32_t *parent = mem_alloc(n * sizeof *parent);
    struct body *b = mem_alloc(n * sizeof *b);
    struct map_part *part = mem_alloc(n * sizeof *part);
    struct arrays arrays = {0};
    struct gpu_transpose transpose = {0};
    if (member && parent && b && part) {
        struct map_facts facts = {.w = w, .part = part, .parts = find_parts(w, member, parent, b)};
        for (uint32_t i = 0; i < facts.parts; i++)
            find_loops(w, &b[i], &part[i], &arrays);
        facts.bytes = arrays.bytes;
        struct map_loops loops = loops_of(b[0].s, &b[0].nest);
        struct transpose tiles = {.w = w, .m = &loops};
        if (map_can_transpose(w, facts.parts, shape_count(b[0].s))) {
            if (w->gpu)
                facts.transposed = gpu_transpose_find(w, &loops, &transpose);
            else
                find_tiles(w, &b[0], &tiles, &facts);
        }
        facts.transposed_wide = transpose.read > 0;
        facts.transposed_shared = transpose.shared;
        w->member = all;
        w->nmember = n;
        struct elementwise all_parts = {w, part, facts.parts, b, &transpose, &tiles};
        select_family(w, GROUP_elementwise, &facts, &all_parts);
        w->member = all;
        w->nmember = n;
    } else {
        err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering @%s", w->g->name);
    }
    mem_free(arrays.v);
    mem_free(member);
    mem_free(parent);
    mem_free(b);
    mem_free(part);
}
