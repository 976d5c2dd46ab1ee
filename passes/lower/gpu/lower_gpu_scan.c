/* Long scans of few rows, in levels.  Each row is divided into chunks, which are reduced to one element each; these
 * elements form the next level, until a row has one chunk.  That chunk is scanned.  Then each lower level is scanned
 * chunk by chunk, where a chunk starts from the result of the chunks before it.  Each chunk has a thread; threads next
 * to each other are adjacent along the last axis.  Where that is the scanned axis itself, the chunks are tiles of
 * blocks (lower_gpu_scan_tiles.c).  Integer scans, maxima and minima have the same result in any order.  A floating
 * point sum has other rounding errors than the chain of node.h, and smaller ones: an element is behind at most 2 CHUNK
 * additions of each level, so the error of n elements is bounded by 2 CHUNK log(n) / log(CHUNK) times half an ulp of
 * the sum of magnitudes, that of a chain by n times.  Products of floating point numbers are not scanned so
 * (gpu_scan_is_long).
 *
 * These read the operand twice, so they run at two thirds of the speed of a copy.  Along the last axis blocks may wait
 * for each other instead, where the schedule says so: decoupled look-back, in one pass (lower_gpu_scan_pass.c). */
#include "lower_gpu_scan.h"
#include <string.h>

enum { CHUNK = 64, FEW_ROWS = 1 << 14, LONG_ROW = 256 };

bool gpu_scan_is_long(const struct lowering *w)
{
    const struct node *n = &w->g->node[w->anchor];
    struct split at = split_at(&w->g->shape[n->shape], n->attr.axis.axis);
    bool exact = !dtype_is_float(n->dtype) || n->op != OP_cumprod; /* a partial product may overflow although the
                                                                      full product does not */
    return n->op != OP_recurrence && exact && at.len >= LONG_ROW &&
        at.outer * at.inner > 0 && at.outer * at.inner <= FEW_ROWS;
}

static struct chunk chunk_of(const struct gpu_scan *s, val e, int64_t chunks)
{
    struct kernel *k = s->w->k;
    val rest = ix_div(k, e, s->at.inner);
    return (struct chunk){ix_div(k, rest, chunks), ix_mod(k, rest, chunks), ix_mod(k, e, s->at.inner)};
}

static void element_coord(const struct gpu_scan *s, const struct chunk *c, val place, val *coord)
{
    struct kernel *k = s->w->k;
    lower_unflatten(k, &s->outer, c->outer, coord);
    coord[s->outer.rank] = place;
    lower_unflatten(k, &s->inner, c->inner, coord + s->outer.rank + 1);
}

static val level_index(const struct gpu_scan *s, uint32_t level, const struct chunk *c, val place)
{
    struct kernel *k = s->w->k;
    val row = ix_add(k, ix_scale(k, c->outer, s->length[level]), place);
    return ix_add(k, ix_scale(k, row, s->at.inner), c->inner);
}

val gpu_scan_element(const struct gpu_scan *s, uint32_t level, const struct chunk *c, val place)
{
    struct lowering *w = s->w;
    val coord[KL_MAX_RANK] = {0};
    if (level)
        return k_load(w->k, s->level[level], level_index(s, level, c, place), 0);
    element_coord(s, c, place, coord);
    lower_point(w);
    return k_cast(w->k, lower_at(w, s->n->in[0], coord), s->dtype);
}

void gpu_scan_put(const struct gpu_scan *s, uint32_t level, const struct chunk *c, val place, val value)
{
    struct lowering *w = s->w;
    val coord[KL_MAX_RANK] = {0};
    if (level) {
        k_store(w->k, s->level[level], level_index(s, level, c, place), value, 0);
        return;
    }
    element_coord(s, c, place, coord);
    lower_point(w);
    w->anchor_value = k_cast(w->k, value, s->n->dtype);
    lower_store(w, w->anchor, &w->g->shape[s->n->shape], coord);
}

/* Opens a loop over the elements of a chunk; the last chunk of a row may have fewer elements. */
static val open_chunk(const struct gpu_scan *s, uint32_t level, const struct chunk *c)
{
    struct kernel *k = s->w->k;
    int64_t length = s->length[level], max = length < CHUNK ? length : CHUNK;
    val first = ix_scale(k, c->at, CHUNK), n = k_int(k, max);
    if (length % max) {
        val left = ix_sub(k, k_int(k, length), first);
        n = k_min(k, left, n);
        ix_bound(k, n, 1, max);
    }
    return k_loop(k, LOOP_SERIAL, k_int(k, 0), n, 1);
}

/* Loads element i of the chunk, and returns its index in the row in *place. */
static val chunk_element(const struct gpu_scan *s, uint32_t level, const struct chunk *c, val i, val *place)
{
    struct kernel *k = s->w->k;
    *place = ix_add(k, ix_scale(k, c->at, CHUNK), i);
    ix_bound(k, *place, 0, s->length[level] - 1);
    return gpu_scan_element(s, level, c, *place);
}

val gpu_scan_identity(const struct gpu_scan *s) { return k_bits(s->w->k, s->dtype, fold_identity(s->fold, s->dtype)); }

/* Reduces the chunks of a level to the elements of the next level. */
static void fold_level(const struct gpu_scan *s, uint32_t level)
{
    struct kernel *k = s->w->k;
    struct gpu_phase p;
    int64_t chunks = s->length[level + 1];
    val e = gpu_phase_begin(s->w, &p, s->at.outer * chunks * s->at.inner);
    struct chunk c = chunk_of(s, e, chunks);
    val start = gpu_scan_identity(s), i = open_chunk(s, level, &c), acc = k_carry(k, start), place;
    k_next(k, acc, k_fold_step(k, s->fold, acc, chunk_element(s, level, &c, i, &place)));
    k_end(k, i);
    gpu_scan_put(s, level + 1, &c, c.at, k_out(k, acc));
    gpu_phase_end(s->w, &p);
}

/* Scans the chunks of a level.  The next level has the results of the chunks before each one. */
static void scan_level(const struct gpu_scan *s, uint32_t level)
{
    struct kernel *k = s->w->k;
    struct gpu_phase p;
    int64_t chunks = gpu_parts(s->length[level], CHUNK);
    val e = gpu_phase_begin(s->w, &p, s->at.outer * chunks * s->at.inner), start = gpu_scan_identity(s);
    struct chunk c = chunk_of(s, e, chunks);
    if (level < s->top) {
        val is_first = k_prim(k, P_EQ, c.at, k_int(k, 0), 0);
        val before = k_prim(k, P_SELECT, is_first, k_int(k, 0), ix_sub(k, c.at, k_int(k, 1)));
        ix_bound(k, before, 0, chunks - 1);
        start = k_prim(k, P_SELECT, is_first, start, gpu_scan_element(s, level + 1, &c, before));
    }
    val i = open_chunk(s, level, &c), acc = k_carry(k, start), place;
    val sum = k_fold_step(k, s->fold, acc, chunk_element(s, level, &c, i, &place));
    gpu_scan_put(s, level, &c, place, sum);
    k_next(k, acc, sum);
    k_end(k, i);
    gpu_phase_end(s->w, &p);
}

void gpu_scan(struct lowering *w, bool one_pass)
{
    const struct node *n = &w->g->node[w->anchor];
    const struct shape *out = &w->g->shape[n->shape];
    struct gpu_scan s = {.w = w, .n = n, .fold = cumulative_fold(n->op), .dtype = dtype_compute(n->dtype),
                         .at = split_at(out, n->attr.axis.axis)};
    for (uint32_t d = 0; d < out->rank; d++) {
        struct shape *to = d < n->attr.axis.axis ? &s.outer : &s.inner;
        if (d != n->attr.axis.axis)
            to->dim[to->rank++] = out->dim[d];
    }
    s.length[0] = s.at.len;
    bool tiles = s.at.inner == 1;
    for (int i = 0; i < 2 && tiles; i++)
        s.half[i] = k_buf(w->k, BUF_SHARED, s.dtype, GPU_SCAN_LINES * w->k->sched.width, 0);
    s.one_pass = tiles && one_pass && gpu_scan_tiles(&s, 0) > 1;
    if (s.one_pass)
        gpu_scan_clear_words(&s, gpu_scan_tiles(&s, 0));
    for (; !s.one_pass && s.top + 1 < GPU_SCAN_LEVELS; s.top++) {
        int64_t parts = tiles ? gpu_scan_tiles(&s, s.top) : gpu_parts(s.length[s.top], CHUNK);
        if (parts <= 1)
            break;
        s.length[s.top + 1] = parts;
        s.level[s.top + 1] = k_buf(w->k, BUF_WORKSPACE, s.dtype, s.at.outer * s.length[s.top + 1] * s.at.inner, 0);
    }
    for (uint32_t level = 0; level < s.top; level++)
        (tiles ? gpu_scan_fold_tiles : fold_level)(&s, level);
    for (uint32_t level = s.top + 1; level-- > 0;)
        (tiles ? gpu_scan_scan_tiles : scan_level)(&s, level);
}
