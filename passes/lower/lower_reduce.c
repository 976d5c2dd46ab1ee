/* Groups around a reduce, in the order that pass numerics wrote (ir.h, "Numeric order").
 *
 * lanes 64: the innermost axis is reduced.  One result per parallel iteration; the 64 numeric lanes are
 *   the lanes of one vector loop, folded once per chunk.
 * lanes 1: the innermost axis is kept.  The lanes of the vector loop are neighbouring results, each one
 *   ascending chain; iterations of the parallel loop are blocks of them. */
#include "lower.h"
#include <string.h>

struct reduce {
    struct lowering *w;
    const struct node *n;
    enum fold fold;
    struct shape in;          /* operand's shape */
    struct shape red, kept;   /* the lengths of the reduced and of the kept axes, in order */
    int64_t len, chunk;       /* reduced elements per result */
    val kept_coord[KL_MAX_RANK]; /* of kept, at the current result */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Coordinates in the operand of reduced element i of the current result. */
static void operand_coord(const struct reduce *r, val i, val *coord)
{
    val red[KL_MAX_RANK];
    uint32_t nred = 0, nkept = 0;
    lower_unflatten(r->w->k, &r->red, i, red);
    for (uint32_t d = 0; d < r->in.rank; d++)
        coord[d] = r->n->attr.reduce.axes >> d & 1 ? red[nred++] : r->kept_coord[nkept++];
}

/* The operand at reduced element i; members of the prologue that outlive the kernel are stored on the way. */
static val element(const struct reduce *r, val i)
{
    struct lowering *w = r->w;
    val coord[KL_MAX_RANK] = {0};
    operand_coord(r, i, coord);
    lower_point(w);
    for (uint32_t m = 0; m < w->nmember; m++)
        if (w->stored[w->member[m]] && lower_in_prologue(w, w->member[m]))
            lower_store(w, w->member[m], &r->in, coord);
    return k_cast(w->k, lower_at(w, r->n->in[0], coord), dtype_compute(r->n->dtype));
}

/* Stores what is made of the result. */
static void epilogue(const struct reduce *r, val result)
{
    struct lowering *w = r->w;
    val coord[KL_MAX_RANK] = {0};
    uint32_t nkept = 0;
    for (uint32_t d = 0; d < r->in.rank; d++)
        coord[d] = r->n->attr.reduce.axes >> d & 1 ? k_int(w->k, 0) : r->kept_coord[nkept++];
    lower_point(w);
    w->anchor_value = k_cast(w->k, result, r->n->dtype);
    const struct shape *out = &w->g->shape[r->n->shape];
    for (uint32_t m = 0; m < w->nmember; m++)
        if (w->stored[w->member[m]] && !lower_in_prologue(w, w->member[m]))
            lower_store(w, w->member[m], out, coord);
}

static val identity(const struct reduce *r)
{
    unsigned dtype = dtype_compute(r->n->dtype);
    return k_bits(r->w->k, dtype, fold_identity(r->fold, dtype));
}

/* One chunk of `count` elements from `base` into the open vector loop's lanes, folded. */
static val lane_chunk(const struct reduce *r, val base, int64_t count)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    int64_t width = k->sched.width, tail = count % width;
    val acc = k_splat(k, identity(r));
    if (count / width) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, count / width), 1);
        val c = k_carry(k, acc);
        val x = element(r, ix_add(k, ix_add(k, base, ix_scale(k, j, width)), w->lane));
        k_next(k, c, k_fold_step(k, r->fold, c, x));
        k_end(k, j);
        acc = k_out(k, c);
    }
    if (tail) {
        w->pred = k_prim(k, P_LT, w->lane, k_int(k, tail), 0);
        val x = element(r, ix_add(k, ix_add(k, base, k_int(k, count - tail)), w->lane));
        acc = k_prim(k, P_SELECT, w->pred, k_fold_step(k, r->fold, acc, x), acc);
        w->pred = 0;
    }
    return k_fold(k, r->fold, acc);
}

/* One chunk as an ascending chain in every lane. */
static val chain_chunk(const struct reduce *r, val base, int64_t count)
{
    struct kernel *k = r->w->k;
    val init = k_splat(k, identity(r));
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, count), 1);
    val c = k_carry(k, init);
    val x = element(r, ix_add(k, base, j));
    k_next(k, c, k_fold_step(k, r->fold, c, x));
    k_end(k, j);
    return k_out(k, c);
}

static val one_chunk(const struct reduce *r, val base, int64_t count)
{
    return r->n->attr.reduce.lanes == 64 ? lane_chunk(r, base, count) : chain_chunk(r, base, count);
}

/* All chunks of the current result.  Starting from the identity gives the bits of starting from the first
 * chunk: a chunk's result is never -0, because its lanes start from +0. */
static val all_chunks(const struct reduce *r)
{
    struct kernel *k = r->w->k;
    int64_t full = r->len / r->chunk, rest = r->len % r->chunk;
    if (r->len <= r->chunk)
        return one_chunk(r, k_int(k, 0), r->len);
    bool lanes = r->n->attr.reduce.lanes == 64;
    val init = lanes ? identity(r) : k_splat(k, identity(r));
    val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, full), 1);
    val total = k_carry(k, init);
    k_next(k, total, k_fold_step(k, r->fold, total, one_chunk(r, ix_scale(k, c, r->chunk), r->chunk)));
    k_end(k, c);
    val sum = k_out(k, total);
    return rest ? k_fold_step(k, r->fold, sum, one_chunk(r, k_int(k, full * r->chunk), rest)) : sum;
}

static void emit_lanes(struct reduce *r)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    k->sched.kind = SCHED_ROW_REDUCE;
    k->sched.width = 64; /* fewer lanes only where the rest would hold nothing but the identity */
    while (k->sched.width > 1 && k->sched.width / 2 >= r->len)
        k->sched.width /= 2;
    k->extent = shape_count(&r->kept);
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    lower_unflatten(k, &r->kept, p, r->kept_coord);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    epilogue(r, all_chunks(r));
    k_end(k, w->lane);
    w->lane = 0;
    k_end(k, p);
    lower_grain(w, r->len);
}

/* W neighbouring results from `base`; only the first `rest` of them if rest > 0. */
static void emit_block(struct reduce *r, const struct shape *inner, val base, int64_t rest, uint32_t nouter)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    lower_unflatten(k, inner, ix_add(k, base, w->lane), r->kept_coord + nouter);
    epilogue(r, all_chunks(r));
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* How many of the last `most` kept axes every access steps over as over one: windows, for example, are neighbours only
 * within a row of the image.  All of them where that would leave less than half a vector. */
static uint32_t merged_axes(const struct reduce *r, uint32_t most)
{
    struct trial t;
    uint32_t n = most;
    if (trial_begin(&t, r->w)) {
        struct reduce copy = *r;
        struct kernel *k = t.w.k;
        copy.w = &t.w;
        lower_scalars(&t.w);
        for (uint32_t d = 0; d < r->kept.rank; d++)
            copy.kept_coord[d] = r->kept.dim[d] == 1 ? k_int(k, 0) : k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, r->kept.dim[d]), 1);
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, r->len), 1), inner = 0;
        epilogue(&copy, element(&copy, i));
        int64_t length = 1, inner_size = 1;
        for (n = 0; n < most; n++) {
            uint32_t d = r->kept.rank - 1 - n;
            if (r->kept.dim[d] == 1)
                continue;
            if (inner && !lower_can_merge(k, copy.kept_coord[d], inner, inner_size))
                break;
            inner = copy.kept_coord[d];
            length *= inner_size = r->kept.dim[d];
        }
        if (length < (int64_t)(r->w->caps->vector_bytes / dtype_size(dtype_compute(r->n->dtype)) / 2))
            n = most;
    }
    trial_end(&t, r->w);
    return n;
}

static void emit_columns(struct reduce *r)
{
    struct lowering *w = r->w;
    struct kernel *k = w->k;
    /* The vector loop runs over the kept axes behind the last reduced one. */
    struct shape inner = {0}, outer = {0};
    uint32_t last = 0;
    for (uint32_t d = 0; d < r->in.rank; d++)
        if (r->n->attr.reduce.axes >> d & 1 && r->in.dim[d] != 1)
            last = d;
    uint32_t behind = 0;
    for (uint32_t d = last + 1; d < r->in.rank; d++)
        behind += !(r->n->attr.reduce.axes >> d & 1);
    uint32_t merged = merged_axes(r, behind);
    for (uint32_t d = 0; d < r->kept.rank; d++) {
        struct shape *to = d + merged >= r->kept.rank ? &inner : &outer;
        to->dim[to->rank++] = r->kept.dim[d];
    }
    int64_t n = shape_count(&inner);
    k->sched.kind = SCHED_COLUMN_REDUCE;
    k->sched.width = (uint16_t)lower_width(w, n);
    int64_t width = k->sched.width, full = n / width, tail = n % width, blocks = full + (tail != 0);
    k->extent = shape_count(&outer) * blocks;
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    if (blocks) {
        lower_unflatten(k, &outer, ix_div(k, p, blocks), r->kept_coord);
        val block = ix_mod(k, p, blocks);
        if (full) {
            val in_full = tail ? k_if(k, k_prim(k, P_LT, block, k_int(k, full), 0)) : 0;
            emit_block(r, &inner, ix_scale(k, block, width), 0, outer.rank);
            if (in_full)
                k_end(k, in_full);
        }
        if (tail) {
            val in_tail = full ? k_if(k, k_prim(k, P_EQ, block, k_int(k, full), 0)) : 0;
            emit_block(r, &inner, k_int(k, full * width), tail, outer.rank);
            if (in_tail)
                k_end(k, in_tail);
        }
    }
    k_end(k, p);
    lower_grain(w, r->len * width);
}

void lower_reduce(struct lowering *w)
{
    const struct node *n = &w->g->node[w->anchor];
    struct reduce r = {.w = w, .n = n, .fold = reduce_fold(n->op), .in = *node_shape(w->g, n->in[0])};
    for (uint32_t d = 0; d < r.in.rank; d++) {
        struct shape *to = n->attr.reduce.axes >> d & 1 ? &r.red : &r.kept;
        to->dim[to->rank++] = r.in.dim[d];
    }
    r.len = shape_count(&r.red);
    r.chunk = least((int64_t)n->attr.reduce.chunk, r.len > 0 ? r.len : 1);
    lower_scalars(w);
    if (n->attr.reduce.lanes == 64)
        emit_lanes(&r);
    else
        emit_columns(&r);
}
