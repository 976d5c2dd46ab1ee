/* Merge sort by ranks.  An element's rank is the number of smaller elements plus the number of equal ones before it;
 * the element is stored at this index.  Each element has a thread.  First tiles are sorted, by counting ranks.  Then
 * pairs of neighbouring runs are merged, one phase for each doubling of the run length: the rank is the element's
 * index in its own run plus the number of elements of the other run before it, found by binary search.  The sort is
 * stable, so the result does not depend on the order in which threads run. */
#include "lower_gpu.h"
#include <string.h>

enum { TILE = 64 };

/* Two pairs of arrays; each phase reads one pair and stores the other. */
struct merge {
    struct gpu_sort *s;
    uint32_t key[2], place[2];
    val base, mine;             /* for a search: index of the first element of the other run; the thread's key */
    val is_left;
    int from;
};

static val load_key(const struct merge *m, val at) { return k_load(m->s->w->k, m->key[m->from], at, 0); }

/* The number of the thread's row, and the index of its element in this row. */
static void row_of(const struct gpu_sort *s, val e, val *row, val *at)
{
    *row = ix_div(s->w->k, e, s->length);
    *at = ix_mod(s->w->k, e, s->length);
}

static void fill_keys(struct merge *m)
{
    struct gpu_sort *s = m->s;
    struct kernel *k = s->w->k;
    struct gpu_phase p;
    val row, at, e = gpu_phase_begin(s->w, &p, s->rows * s->length);
    row_of(s, e, &row, &at);
    k_store(k, m->key[0], e, s->key(s->ctx, row, at), 0);
    gpu_phase_end(s->w, &p);
}

/* Stores the element with index `place` at index `rank` of the row. */
static void put_ranked(const struct merge *m, val row, val rank, val key, val place, bool last)
{
    struct gpu_sort *s = m->s;
    struct kernel *k = s->w->k;
    gpu_index(k, rank, s->length);
    if (last && s->result) {
        s->result(s->ctx, row, rank, place);
        return;
    }
    val to = ix_add(k, ix_scale(k, row, s->length), rank);
    k_store(k, m->key[!m->from], to, key, 0);
    k_store(k, m->place[!m->from], to, place, 0);
}

static void sort_tiles(struct merge *m)
{
    struct gpu_sort *s = m->s;
    struct kernel *k = s->w->k;
    struct gpu_phase p;
    val row, at, e = gpu_phase_begin(s->w, &p, s->rows * s->length);
    int64_t side = s->length < TILE ? s->length : TILE;
    row_of(s, e, &row, &at);
    val tile = ix_scale(k, ix_div(k, at, TILE), TILE), start = ix_add(k, ix_scale(k, row, s->length), tile);
    val own = ix_mod(k, at, TILE), key = load_key(m, e);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, side), 1), count = k_carry(k, k_int(k, 0));
    val there = s->length % side ? k_prim(k, P_LT, ix_add(k, tile, j), k_int(k, s->length), 0) : 0;
    val other = k_load(k, m->key[m->from], ix_add(k, start, j), there);
    val tie = k_prim(k, P_AND, k_prim(k, P_EQ, other, key, 0), k_prim(k, P_LT, j, own, 0), 0);
    val before = k_prim(k, P_OR, k_prim(k, P_LT, other, key, 0), tie, 0);
    if (there)
        before = k_prim(k, P_AND, before, there, 0);
    k_next(k, count, k_prim(k, P_ADD, count, k_cast(k, before, KL_I64), 0));
    k_end(k, j);
    val rank = k_prim(k, P_ADD, tile, k_out(k, count), 0);
    put_ranked(m, row, rank, key, k_cast(k, at, s->place_type), s->length <= TILE);
    gpu_phase_end(s->w, &p);
    m->from = !m->from;
}

/* Is element i of the other run before the thread's element?  Of equal elements, those of the left run are first. */
static val other_is_before(void *ctx, val i)
{
    const struct merge *m = ctx;
    struct kernel *k = m->s->w->k;
    val key = load_key(m, k_prim(k, P_ADD, m->base, i, 0));
    return k_prim(k, P_SELECT, m->is_left, k_prim(k, P_LT, key, m->mine, 0), k_prim(k, P_LE, key, m->mine, 0));
}

static val smaller(struct kernel *k, val a, int64_t b)
{
    return k_prim(k, P_SELECT, k_prim(k, P_LT, a, k_int(k, b), 0), a, k_int(k, b));
}

static void merge_runs(struct merge *m, int64_t run)
{
    struct gpu_sort *s = m->s;
    struct kernel *k = s->w->k;
    struct gpu_phase p;
    val row, at, e = gpu_phase_begin(s->w, &p, s->rows * s->length);
    row_of(s, e, &row, &at);
    val pair = ix_scale(k, ix_div(k, at, 2 * run), 2 * run), own = ix_mod(k, at, run);
    m->is_left = k_prim(k, P_LT, ix_mod(k, at, 2 * run), k_int(k, run), 0);
    val middle = smaller(k, ix_add(k, pair, k_int(k, run)), s->length);
    val end = smaller(k, ix_add(k, pair, k_int(k, 2 * run)), s->length);
    val right = k_prim(k, P_SUB, end, middle, 0), n = k_prim(k, P_SELECT, m->is_left, right, k_int(k, run));
    val first = k_prim(k, P_SELECT, m->is_left, middle, pair);
    val none = k_prim(k, P_EQ, n, k_int(k, 0), 0); /* the value that is then loaded is not used */
    first = k_prim(k, P_SELECT, none, pair, first);
    m->base = k_prim(k, P_ADD, ix_scale(k, row, s->length), first, 0);
    m->mine = load_key(m, e);
    val place = k_load(k, m->place[m->from], e, 0);
    val others = gpu_search(k, n, run, other_is_before, m);
    put_ranked(m, row, k_prim(k, P_ADD, ix_add(k, pair, own), others, 0), m->mine, place, 2 * run >= s->length);
    gpu_phase_end(s->w, &p);
    m->from = !m->from;
}

void gpu_sort(struct gpu_sort *s)
{
    struct merge m = {.s = s};
    struct kernel *k = s->w->k;
    for (int i = 0; i < 2; i++) {
        m.key[i] = k_buf(k, BUF_WORKSPACE, s->key_type, s->rows * s->length, 0);
        m.place[i] = k_buf(k, BUF_WORKSPACE, s->place_type, s->rows * s->length, 0);
    }
    fill_keys(&m);
    sort_tiles(&m);
    for (int64_t run = TILE; run < s->length; run *= 2)
        merge_runs(&m, run);
    s->sorted = m.key[m.from];
    s->places = m.place[m.from];
}

/* ---- argsort ---- */

struct argsort {
    struct lowering *w;
    const struct node *n;
    const struct shape *s;
    struct shape rows;          /* shape without the sorted axis */
};

static void argsort_coord(const struct argsort *a, val row, val at, val *coord)
{
    lower_unflatten(a->w->k, &a->rows, row, coord);
    coord[a->n->attr.sort.axis] = at;
}

static val argsort_key(void *ctx, val row, val place)
{
    const struct argsort *a = ctx;
    val coord[KL_MAX_RANK] = {0};
    argsort_coord(a, row, place, coord);
    lower_point(a->w);
    return lower_sort_key(a->w->k, lower_at(a->w, a->n->in[0], coord), a->n->attr.sort.descending);
}

static void argsort_result(void *ctx, val row, val rank, val place)
{
    const struct argsort *a = ctx;
    struct kernel *k = a->w->k;
    val coord[KL_MAX_RANK] = {0};
    argsort_coord(a, row, rank, coord);
    k_store(k, lower_buffer(a->w, a->w->anchor, BUF_OUT), lower_flatten(k, a->s, coord), place, 0);
}

void gpu_argsort(struct lowering *w)
{
    struct argsort a = {.w = w, .n = &w->g->node[w->anchor], .s = node_shape(w->g, w->anchor)};
    unsigned from = dtype_compute(w->g->node[a.n->in[0]].dtype);
    a.rows = *a.s;
    a.rows.dim[a.n->attr.sort.axis] = 1;
    struct gpu_sort s = {.w = w, .rows = shape_count(&a.rows), .length = a.s->dim[a.n->attr.sort.axis], .ctx = &a,
                         .key_type = from == KL_F32 ? KL_I32 : from == KL_F64 ? KL_I64 : from == KL_BOOL ? KL_U8 : from,
                         .place_type = a.n->dtype, .key = argsort_key, .result = argsort_result};
    gpu_sort(&s);
}
