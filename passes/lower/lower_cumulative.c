/* Lowers cumulative ops: each row is accumulated in ascending order (node.h, "Numeric order").
 *
 * Iterations of the parallel loop are rows.  If axes follow the scanned one, an iteration is a vector of neighbouring
 * rows, one in each lane; else it is one row, element by element. */
#include "lower_schedule.h"
#include "passes/lower/gpu/lower_gpu.h"
#include <string.h>

struct scan {
    struct lowering *w;
    const struct node *n;
    struct shape outer, inner;   /* lengths of the axes before and after the scanned one */
    int64_t len;
    val coord[KL_MAX_RANK];      /* coordinates of the current row */
};

/* Computes the operands at element `place` of the row. */
static void lower_cumulative_operands(struct scan *s, val place, val *x)
{
    struct lowering *w = s->w;
    s->coord[s->n->attr.axis.axis] = place;
    lower_point(w);
    for (unsigned i = 0; i < s->n->nin; i++)
        x[i] = k_cast(w->k, lower_at(w, s->n->in[i], s->coord), dtype_compute(s->n->dtype));
}

static void lower_cumulative_store(struct scan *s, val result)
{
    struct lowering *w = s->w;
    w->anchor_value = k_cast(w->k, result, s->n->dtype);
    lower_store(w, w->anchor, &w->g->shape[s->n->shape], s->coord);
}

/* Scans the rows of the open vector loop, or a single row. */
static void lower_cumulative_emit_rows(struct scan *s)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    val x[2] = {0};
    lower_cumulative_operands(s, k_int(k, 0), x);
    val first = lower_lanes(&w->l, x[s->n->op == OP_recurrence]);
    lower_cumulative_store(s, first);
    if (s->len == 1)
        return;
    val place = k_loop(k, LOOP_SERIAL, k_int(k, 1), k_int(k, s->len), 1);
    val acc = k_carry(k, first);
    lower_cumulative_operands(s, place, x);
    val y = cumulative_step(k, s->n->op, acc, x[0], x[1]);
    lower_cumulative_store(s, y);
    k_next(k, acc, y);
    k_end(k, place);
}

/* Scans W neighbouring rows from `base` on; only the first `rest` of them if rest > 0. */
static void lower_cumulative_emit_block(struct scan *s, val base, int64_t rest)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    lower_unflatten(k, &s->inner, ix_add(k, base, w->lane), s->coord + s->outer.rank + 1);
    lower_cumulative_emit_rows(s);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* Scans block number `block` of the rows: a whole one, or the last one of `tail` rows. */
static void emit_blocks(struct scan *s, val block, int64_t full, int64_t tail)
{
    struct kernel *k = s->w->k;
    if (full) {
        val in_full = tail ? k_if(k, k_prim(k, P_LT, block, k_int(k, full), 0)) : 0;
        lower_cumulative_emit_block(s, ix_scale(k, block, k->sched.width), 0);
        if (in_full)
            k_end(k, in_full);
    }
    if (tail) {
        val in_tail = full ? k_if(k, k_prim(k, P_EQ, block, k_int(k, full), 0)) : 0;
        lower_cumulative_emit_block(s, k_int(k, full * k->sched.width), tail);
        if (in_tail)
            k_end(k, in_tail);
    }
}

void lower_cumulative_group(struct lowering *w)
{
    const struct node *n = &w->g->node[w->anchor];
    const struct shape *out = &w->g->shape[n->shape];
    struct split at = split_at(out, n->attr.axis.axis);
    struct scan s = {.w = w, .n = n, .len = at.len};
    for (uint32_t d = 0; d < out->rank; d++) {
        struct shape *to = d < n->attr.axis.axis ? &s.outer : &s.inner;
        if (d != n->attr.axis.axis)
            to->dim[to->rank++] = out->dim[d];
    }
    struct scan_facts facts = {w, at.outer, at.len, at.inner, gpu_scan_is_long(w)};
    select_family(w, GROUP_scan, &facts, &s);
}

void gpu_scan_emit(struct scan *s, const struct schedule *schedule)
{
    gpu_scan(s->w, schedule->gpu_scan.one_pass);
}

void cumulative_emit(struct scan *s, const struct schedule *schedule)
{
    struct kernel *k = s->w->k;
    int64_t width = schedule->width, rows = shape_count(&s->inner);
    int64_t full = rows / width, tail = rows % width, blocks = full + (tail != 0);
    k->extent = s->len ? shape_count(&s->outer) * blocks : 0;
    lower_scalars(s->w);
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    if (k->extent) {
        lower_unflatten(k, &s->outer, ix_div(k, p, blocks), s->coord);
        for (uint32_t d = 0; d < s->inner.rank; d++)
            s->coord[s->outer.rank + 1 + d] = k_int(k, 0);
        if (rows > 1)
            emit_blocks(s, ix_mod(k, p, blocks), full, tail);
        else
            lower_cumulative_emit_rows(s);
    }
    k_end(k, p);
}
