/* Long scans of few rows, in levels.  Each row is divided into chunks, which are reduced to one element each; these
 * elements form the next level, until a row has one chunk.  That chunk is scanned.  Then each lower level is scanned
 * chunk by chunk, where a chunk starts from the result of the chunks before it.  Each chunk has a thread, which
 * accesses several adjacent elements at once where the scanned axis is the last one.  Integer scans, maxima and minima
 * have the same result in any order.  A floating point sum has other rounding errors than the chain of node.h, and
 * smaller ones: an element is behind at most 2 CHUNK additions of each level, so the error of n elements is bounded by
 * 2 CHUNK log(n) / log(CHUNK) times half an ulp of the sum of magnitudes, that of a chain by n times.  Products of
 * floating point numbers are not scanned so (gpu_scan_fits). */
#include "lower_gpu.h"
#include <string.h>

enum { CHUNK = 64, MAX_LEVELS = 12, FEW_ROWS = 1 << 14, LONG_ROW = 256, MOST_NEIGHBOURS = 8 };

struct gpu_scan {
    struct lowering *w;
    const struct node *n;
    enum fold fold;
    unsigned dtype;             /* the dtype of the computation */
    struct split at;
    struct shape outer, inner;  /* the axes before and after the scanned axis */
    int64_t length[MAX_LEVELS]; /* length of a row at each level; level 0 is the operand */
    uint32_t level[MAX_LEVELS]; /* lbuf of each level but 0 */
    uint32_t top;
};

bool gpu_scan_fits(const struct lowering *w)
{
    const struct node *n = &w->g->node[w->anchor];
    struct split at = split_at(&w->g->shape[n->shape], n->attr.axis.axis);
    bool exact = !dtype_is_float(n->dtype) || n->op != OP_cumprod; /* a partial product may overflow although the
                                                                      full product does not */
    return n->op != OP_recurrence && exact && at.len >= LONG_ROW &&
        at.outer * at.inner > 0 && at.outer * at.inner <= FEW_ROWS;
}

/* The position of a thread: row number, chunk, and index in the axes after the scanned one. */
struct chunk { val outer, at, inner; };

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

static val element(const struct gpu_scan *s, uint32_t level, const struct chunk *c, val place)
{
    struct lowering *w = s->w;
    val coord[KL_MAX_RANK] = {0};
    if (level)
        return k_load(w->k, s->level[level], level_index(s, level, c, place), 0);
    element_coord(s, c, place, coord);
    lower_point(w);
    return k_cast(w->k, lower_at(w, s->n->in[0], coord), s->dtype);
}

static void put_level(const struct gpu_scan *s, uint32_t level, const struct chunk *c, val place, val value)
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

/* Number of elements of a level that a thread accesses at once: as many as one access has, if rows consist of them. */
static int64_t scan_neighbours(const struct gpu_scan *s, uint32_t level)
{
    int64_t each = s->at.inner == 1 ? lower_access(s->w) : 1;
    while (s->length[level] % each)
        each /= 2;
    return each;
}

/* Opens a loop over the neighbours of a chunk; the last chunk of a row may have fewer elements. */
static val open_chunk(const struct gpu_scan *s, uint32_t level, const struct chunk *c)
{
    struct kernel *k = s->w->k;
    int64_t length = s->length[level], most = length < CHUNK ? length : CHUNK, each = scan_neighbours(s, level);
    val first = ix_scale(k, c->at, CHUNK), n = k_int(k, most);
    if (length % most) {
        val left = ix_sub(k, k_int(k, length), first);
        n = k_prim(k, P_SELECT, k_prim(k, P_LT, left, n, 0), left, n);
        ix_bound(k, n, 1, most);
    }
    return k_loop(k, LOOP_SERIAL, k_int(k, 0), ix_div(k, n, each), 1);
}

/* Loads element number `number` of the chunk's neighbours i, and returns its index in the row in *place. */
static val chunk_element(const struct gpu_scan *s, uint32_t level, const struct chunk *c, val i, int64_t number,
                         val *place)
{
    struct kernel *k = s->w->k;
    val at = ix_add(k, ix_scale(k, i, scan_neighbours(s, level)), k_int(k, number));
    *place = ix_add(k, ix_scale(k, c->at, CHUNK), at);
    ix_bound(k, *place, 0, s->length[level] - 1);
    return element(s, level, c, *place);
}

static val identity(const struct gpu_scan *s) { return k_bits(s->w->k, s->dtype, fold_identity(s->fold, s->dtype)); }

/* Reduces the chunks of a level to the elements of the next level. */
static void fold_level(const struct gpu_scan *s, uint32_t level)
{
    struct kernel *k = s->w->k;
    struct gpu_phase p;
    int64_t chunks = s->length[level + 1];
    val e = gpu_phase_begin(s->w, &p, s->at.outer * chunks * s->at.inner);
    struct chunk c = chunk_of(s, e, chunks);
    val start = identity(s), i = open_chunk(s, level, &c), acc = k_carry(k, start), sum = acc, place;
    for (int64_t u = 0; u < scan_neighbours(s, level); u++)
        sum = k_fold_step(k, s->fold, sum, chunk_element(s, level, &c, i, u, &place));
    k_next(k, acc, sum);
    k_end(k, i);
    put_level(s, level + 1, &c, c.at, k_out(k, acc));
    gpu_phase_end(s->w, &p);
}

/* Scans the chunks of a level.  The next level has the results of the chunks before each one. */
static void scan_level(const struct gpu_scan *s, uint32_t level)
{
    struct kernel *k = s->w->k;
    struct gpu_phase p;
    int64_t chunks = gpu_parts(s->length[level], CHUNK);
    val e = gpu_phase_begin(s->w, &p, s->at.outer * chunks * s->at.inner), start = identity(s);
    struct chunk c = chunk_of(s, e, chunks);
    if (level < s->top) {
        val is_first = k_prim(k, P_EQ, c.at, k_int(k, 0), 0);
        val before = k_prim(k, P_SELECT, is_first, k_int(k, 0), ix_sub(k, c.at, k_int(k, 1)));
        ix_bound(k, before, 0, chunks - 1);
        start = k_prim(k, P_SELECT, is_first, start, element(s, level + 1, &c, before));
    }
    val i = open_chunk(s, level, &c), acc = k_carry(k, start), last = acc;
    val sum[MOST_NEIGHBOURS], place[MOST_NEIGHBOURS];
    int64_t each = scan_neighbours(s, level);
    for (int64_t u = 0; u < each; u++)
        last = sum[u] = k_fold_step(k, s->fold, last, chunk_element(s, level, &c, i, u, &place[u]));
    for (int64_t u = 0; u < each; u++)
        put_level(s, level, &c, place[u], sum[u]);
    k_next(k, acc, last);
    k_end(k, i);
    gpu_phase_end(s->w, &p);
}

void gpu_scan(struct lowering *w)
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
    for (; s.length[s.top] > CHUNK && s.top + 1 < MAX_LEVELS; s.top++) {
        s.length[s.top + 1] = gpu_parts(s.length[s.top], CHUNK);
        s.level[s.top + 1] = k_buf(w->k, BUF_WORKSPACE, s.dtype, s.at.outer * s.length[s.top + 1] * s.at.inner, 0);
    }
    for (uint32_t level = 0; level < s.top; level++)
        fold_level(&s, level);
    for (uint32_t level = s.top + 1; level-- > 0;)
        scan_level(&s, level);
}
