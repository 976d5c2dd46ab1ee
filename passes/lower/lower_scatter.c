/* Lowers scatters, in the order that node.h specifies ("Numeric order").
 *
 * An iteration of the parallel loop computes a panel of the result: all elements along the axis, for one row of the
 * axes before it and one vector of adjacent elements in the axes after it (all of these, if they do not fill a
 * vector).
 * It copies the first operand there, then loops over the index and combines the update.  So each element is
 * computed by one iteration, which takes its updates in order, for any number of threads.  A sum of half floats is
 * kept in an f32 panel in scratch and rounded at the end.  If the first operand is a state, which may be updated in
 * place, the kernel compares the two addresses and copies nothing then: only the update's elements are stored. */
#include "lower_schedule.h"
#include "passes/lower/gpu/lower_gpu.h"
#include <string.h>

/* Computes the coordinates of the element at `place` of the axis (in the result or the update) and inner index
 * `col`. */
static void scatter_coordinates(const struct scatter *s, val place, val col, val *coord)
{
    uint32_t axis = s->n->attr.scatter.axis;
    memcpy(coord, s->outer_coord, s->outer.rank * sizeof *coord);
    coord[axis] = place;
    lower_unflatten(s->w->k, &s->inner, col, coord + axis + 1);
}

/* The index of element (place, col) in the accumulator. */
static val acc_index(const struct scatter *s, val place, val col)
{
    struct kernel *k = s->w->k;
    val coord[KL_MAX_RANK] = {0};
    if (s->scratch)
        return ix_add(k, ix_scale(k, place, s->pitch), s->whole ? col : s->w->lane);
    scatter_coordinates(s, place, col, coord);
    return lower_flatten(k, s->s, coord);
}

/* Copies one element of the panel: the first operand's value to the accumulator, or the sum in scratch to the
 * output. */
static void copy_element(const struct scatter *s, val place, val col, bool in)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    val coord[KL_MAX_RANK] = {0}, at = acc_index(s, place, col);
    scatter_coordinates(s, place, col, coord);
    lower_point(w);
    if (in) {
        k_store(k, s->acc, at, k_cast(k, lower_at(w, s->n->in[0], coord), s->dtype), w->pred);
    } else {
        val sum = k_cast(k, k_load(k, s->acc, at, w->pred), s->n->dtype);
        k_store(k, lower_buffer(w, w->anchor, BUF_OUT), lower_flatten(k, s->s, coord), sum, w->pred);
    }
}

/* Copies a panel of whole rows, as one run of elements, in vectors of any length. */
static void copy_flat(struct scatter *s, bool in)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    int64_t n = s->at.len * s->at.inner, width = schedule_of(k)->scatter.copy, tail = n % width;
    for (int part = 0; part < 2; part++) {
        if (part ? !tail : n < width)
            continue;
        val j = part ? 0 : k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, n / width), 1);
        val base = part ? k_int(k, n - tail) : ix_scale(k, j, width);
        w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, width), 1);
        w->pred = part ? k_prim(k, P_LT, w->lane, k_int(k, tail), 0) : 0;
        val e = ix_add(k, base, w->lane), place = ix_div(k, e, s->at.inner);
        copy_element(s, place, ix_sub(k, e, ix_scale(k, place, s->at.inner)), in);
        k_end(k, w->lane);
        w->lane = w->pred = 0;
        if (j)
            k_end(k, j);
    }
}

/* Copies the columns of the panel, inside its vector loop. */
static void copy_columns(struct scatter *s, val col, bool in)
{
    struct kernel *k = s->w->k;
    val place = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->at.len), 1);
    copy_element(s, place, col, in);
    k_end(k, place);
}

/* Emits the loop over the index.  An iteration may load what an earlier one has stored. */
static void bring_in(struct scatter *s, val col)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), ix_size(k, kernel_length(k, s->count)), 1), coord[KL_MAX_RANK] = {0};
    lower_point(w);
    val place = lower_index(k, lower_at(w, s->n->in[1], &i), s->at.len - 1), at = acc_index(s, place, col);
    scatter_coordinates(s, i, col, coord);
    val x = k_cast(k, lower_at(w, s->n->in[2], coord), s->dtype);
    if (s->op != OP_nil)
        x = k_op(k, s->op, (const val[]){k_load(k, s->acc, at, w->pred), x});
    k_store(k, s->acc, at, x, w->pred);
    k_end(k, i);
}

/* Begins the vector loop over the columns from `base` on; only the first `rest` lanes if rest > 0.  The column. */
static val scatter_columns_begin(struct scatter *s, val base, int64_t rest)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    return ix_add(k, base, w->lane);
}

/* The copy of a panel of a state, unless it is updated in place. */
static void copy_state(struct scatter *s, val base, int64_t rest)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    val in_place = k_alias(k, lower_buffer(w, s->state, BUF_IN), lower_buffer(w, w->anchor, BUF_OUT));
    val copies = k_if(k, k_prim(k, P_NOT, in_place, 0, 0));
    if (s->whole) {
        copy_flat(s, true);
    } else {
        copy_columns(s, scatter_columns_begin(s, base, rest), true);
        k_end(k, w->lane);
        w->lane = w->pred = 0;
    }
    k_end(k, copies);
}

static void emit_panel(struct scatter *s, val base, int64_t rest)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    if (s->state)
        copy_state(s, base, rest);
    else if (s->whole)
        copy_flat(s, true);
    val col = scatter_columns_begin(s, base, rest);
    if (!s->whole && !s->state)
        copy_columns(s, col, true);
    if (s->count)
        bring_in(s, col);
    if (!s->whole && s->scratch)
        copy_columns(s, col, false);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
    if (s->whole && s->scratch)
        copy_flat(s, false);
}

static void emit_scatter(struct scatter *s)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    int64_t width = k->sched.width, full = s->at.inner / width, tail = s->at.inner % width, blocks = full + (tail != 0);
    k->extent = s->at.outer * blocks;
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    lower_unflatten(k, &s->outer, ix_div(k, p, blocks), s->outer_coord);
    val block = ix_mod(k, p, blocks);
    if (full) {
        val in_full = tail ? k_if(k, k_prim(k, P_LT, block, k_int(k, full), 0)) : 0;
        emit_panel(s, ix_scale(k, block, width), 0);
        if (in_full)
            k_end(k, in_full);
    }
    if (tail) {
        val in_tail = full ? k_if(k, k_prim(k, P_EQ, block, k_int(k, full), 0)) : 0;
        emit_panel(s, k_int(k, full * width), tail);
        if (in_tail)
            k_end(k, in_tail);
    }
    k_end(k, p);
}

void lower_scatter_group(struct lowering *w)
{
    const struct node *n = &w->g->node[w->anchor];
    struct scatter s = {.w = w, .n = n, .s = node_shape(w->g, w->anchor),
                        .at = split_at(node_shape(w->g, w->anchor), n->attr.scatter.axis),
                        .count = node_shape(w->g, n->in[1])->dim[0],
                        .op = scatter_op((enum scatter_kind)n->attr.scatter.kind), .dtype = n->dtype};
    for (uint32_t d = 0; d < s.s->rank; d++) {
        struct shape *to = d < n->attr.scatter.axis ? &s.outer : &s.inner;
        if (d != n->attr.scatter.axis)
            to->dim[to->rank++] = s.s->dim[d];
    }
    if (s.op == OP_add && dtype_is_half(n->dtype))
        s.dtype = KL_F32;
    struct scatter_facts facts = {w, s.at.outer, s.at.len, s.at.inner, s.count};
    select_family(w, GROUP_scatter, &facts, &s);
}

/* The state that is the first operand, or a reshape of it, of a scatter that may be its next value; or NIL. */
static ref scatter_state(const struct scatter *s)
{
    const struct lowering *w = s->w;
    bool linear;
    ref from = node_source(w->g, s->n->in[0], &linear);
    bool state = linear && w->g->node[from].op == OP_state;
    return state && w->assigned && !w->placeholders && !s->scratch ? from : NIL;
}

void scatter_emit(struct scatter *s, const struct schedule *schedule)
{
    struct kernel *k = s->w->k;
    s->whole = s->at.inner <= schedule->width;
    s->pitch = s->whole ? s->at.inner : schedule->width;
    s->scratch = s->dtype != s->n->dtype;
    s->state = scatter_state(s);
    s->acc = s->scratch ? k_buf(k, BUF_SCRATCH, KL_F32, s->at.len * s->pitch, 0)
                        : lower_buffer(s->w, s->w->anchor, BUF_OUT);
    lower_scalars(s->w);
    emit_scatter(s);
}

void gpu_scatter_emit(struct scatter *s, const struct schedule *schedule)
{
    (void)schedule;
    gpu_scatter(s);
}
