/* Stable merge sort in tiles.  A block of threads sorts a tile, or several tiles of short rows: each thread sorts OWN
 * adjacent elements in registers, then the runs are merged in shared memory.  Further phases merge pairs of runs in
 * memory, one phase for each doubling of the run length: a block finds by binary search which elements of the two runs
 * its tile of the result consists of (merge path: Odeh, Green, Mwassi, Shmueli, Birk, 2012), loads these to shared
 * memory, and each thread merges OWN of them.
 *
 * Positions in a tile and in a row are i32, so a row has fewer than 2^31 elements.  Positions that do not exist are
 * replaced by ones that do, rather than masked: all threads of a block reach each barrier.  Elements beyond the end of
 * a row have the greatest key and the last positions, so they are sorted behind all others. */
#include "lower_gpu.h"
#include <string.h>

enum { OWN = GPU_SORT_OWN };

struct merge {
    struct gpu_sort *s;
    int64_t lanes, tile, tiles, side;   /* threads of a tile; its elements; tiles of a row; tiles of a block */
    uint32_t key[2], place[2];          /* workspaces: each phase but the first reads one pair and stores the other */
    uint32_t tile_key, tile_place;      /* the block's tiles in shared memory */
    uint32_t ends;                      /* in shared memory: where the elements of the left run begin and end */
    int from;                           /* number of the pair of the last phase */
    struct gpu_phase phase;
    val t, row, first, own;             /* the thread; its row; the first elements of the tile and of the thread */
    val exists;                         /* its tile exists; 0: always */
};

struct gpu_own { val key[OWN], place[OWN]; };

/* ---- i32 ---- */

static val k_int32(struct kernel *k, int64_t v) { return k_bits(k, KL_I32, (uint32_t)v); }
static val k_add32(struct kernel *k, val a, val b) { return k_prim(k, P_ADD, a, b, 0); }
static val k_sub32(struct kernel *k, val a, val b) { return k_prim(k, P_SUB, a, b, 0); }
static val more_of(struct kernel *k, val a, val b) { return k_prim(k, P_SELECT, k_prim(k, P_LT, a, b, 0), b, a); }

/* ---- merge path ---- */

/* Two runs, one behind the other, in a pair of arrays of `count` elements: they begin at base + first. */
struct runs {
    uint32_t key, place;
    int64_t count;
    val base, first;                /* i64, 0: it is 0; i32 */
    val left, right;                /* i32: their lengths */
};

/* The index of element i of both runs. */
static val at_runs(struct kernel *k, const struct runs *r, val i)
{
    val at = k_cast(k, k_add32(k, r->first, i), KL_I64);
    return gpu_index(k, r->base ? ix_add(k, r->base, at) : at, r->count);
}

/* How many of the first d elements of the merged runs are of the left run: a binary search among at most `max`
 * candidates.  When it has ended, or where a run has no element, another element is loaded and not used. */
static val merge_path(struct kernel *k, const struct runs *r, val d, int64_t max)
{
    int64_t steps = 0;
    for (int64_t left = max; left > 0; left /= 2)
        steps++;
    val zero = k_int32(k, 0), one = k_int32(k, 1), last = k_sub32(k, k_add32(k, r->left, r->right), one);
    val low = more_of(k, k_sub32(k, d, r->right), zero), high = k_min(k, d, r->left);
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, steps), 1), lo = k_carry(k, low), hi = k_carry(k, high);
    val open = k_prim(k, P_LT, lo, hi, 0), middle = k_prim(k, P_SHR, k_add32(k, lo, hi), one, 0);
    val other = k_add32(k, r->left, k_sub32(k, k_sub32(k, d, one), middle));
    val mine = k_load(k, r->key, at_runs(k, r, k_min(k, middle, last)), 0);
    val theirs = k_load(k, r->key, at_runs(k, r, k_min(k, more_of(k, other, zero), last)), 0);
    val before = k_prim(k, P_AND, open, k_prim(k, P_LE, mine, theirs, 0), 0);
    val after = k_prim(k, P_AND, open, k_prim(k, P_LT, theirs, mine, 0), 0);
    val up = k_prim(k, P_SELECT, before, k_add32(k, middle, one), lo), down = k_prim(k, P_SELECT, after, middle, hi);
    k_next(k, lo, up);
    k_next(k, hi, down);
    k_end(k, step);
    return k_out(k, lo);
}

/* The elements from number d on of the merged runs, as many as a thread has. */
static void merge_own(struct kernel *k, const struct runs *r, val d, int64_t max, struct gpu_own *out)
{
    val total = k_add32(k, r->left, r->right), last = k_sub32(k, total, k_int32(k, 1)), one = k_int32(k, 1);
    d = k_min(k, d, total);
    val i = merge_path(k, r, d, max), j = k_add32(k, r->left, k_sub32(k, d, i));
    val left = k_load(k, r->key, at_runs(k, r, k_min(k, i, last)), 0);
    val right = k_load(k, r->key, at_runs(k, r, k_min(k, j, last)), 0);
    for (int u = 0; u < OWN; u++) {
        val has_left = k_prim(k, P_LT, i, r->left, 0), has_right = k_prim(k, P_LT, j, total, 0);
        val is_less = k_prim(k, P_AND, has_right, k_prim(k, P_LT, right, left, 0), 0);
        val take = k_prim(k, P_OR, is_less, k_prim(k, P_NOT, has_left, 0, 0), 0); /* the right one */
        val from = k_prim(k, P_SELECT, take, j, i), next = k_min(k, k_add32(k, from, one), last);
        out->key[u] = k_prim(k, P_SELECT, take, right, left);
        out->place[u] = k_load(k, r->place, at_runs(k, r, k_min(k, from, last)), 0);
        val x = k_load(k, r->key, at_runs(k, r, next), 0);
        val up = k_add32(k, from, one);
        i = k_prim(k, P_SELECT, take, i, up);
        j = k_prim(k, P_SELECT, take, up, j);
        left = k_prim(k, P_SELECT, take, left, x);
        right = k_prim(k, P_SELECT, take, x, right);
    }
}

/* ---- phases ---- */

static void begin_tiles(struct merge *m)
{
    struct gpu_sort *s = m->s;
    struct kernel *k = s->w->k;
    int64_t all = s->rows * m->tiles;
    m->t = gpu_blocks_begin(s->w, &m->phase, gpu_parts(all, m->side));
    val number = ix_add(k, ix_scale(k, m->phase.grid, m->side), ix_div(k, m->t, m->lanes));
    m->exists = all % m->side ? k_prim(k, P_LT, number, k_int(k, all), 0) : 0;
    if (m->exists) {
        number = k_prim(k, P_SELECT, m->exists, number, k_int(k, all - 1));
        ix_bound(k, number, 0, all - 1);
    }
    m->row = ix_div(k, number, m->tiles);
    m->first = ix_scale(k, ix_mod(k, number, m->tiles), m->tile);
    m->own = ix_add(k, m->first, ix_scale(k, ix_mod(k, m->t, m->lanes), OWN));
}

/* Does element `at` of the row exist?  0: it does. */
static val is_there(const struct merge *m, val at)
{
    struct kernel *k = m->s->w->k;
    if (m->s->length % m->tile == 0)
        return m->exists;
    val in = k_prim(k, P_LT, at, k_int(k, m->s->length), 0);
    return m->exists ? k_prim(k, P_AND, m->exists, in, 0) : in;
}

/* Stores elements `first` to `end` - 1 of the thread's, sorted, at their positions of the row.  Keys are stored before
 * indices: NVRTC does not join stores to adjacent elements between which it finds stores to another array. */
static void store_sorted_run(const struct merge *m, const struct gpu_own *own, int first, int end, bool last)
{
    struct gpu_sort *s = m->s;
    struct kernel *k = s->w->k;
    val at[OWN];
    for (int u = first; u < end; u++) {
        at[u] = ix_add(k, m->own, k_int(k, u));
        ix_bound(k, at[u], 0, s->length - 1);
        if (last && s->result)
            s->result(s->ctx, m->row, at[u], own->place[u]);
        else
            k_store(k, m->key[!m->from], ix_add(k, ix_scale(k, m->row, s->length), at[u]), own->key[u], 0);
    }
    for (int u = first; u < end && !(last && s->result); u++)
        k_store(k, m->place[!m->from], ix_add(k, ix_scale(k, m->row, s->length), at[u]), own->place[u], 0);
}

static void put_own(struct merge *m, const struct gpu_own *own, bool last)
{
    int64_t length = m->s->length;
    struct kernel *k = m->s->w->k;
    int each = length % OWN ? 1 : OWN; /* so many elements of a thread exist or none of them does */
    for (int u = 0; u < OWN; u += each) {
        val there = is_there(m, ix_add(k, m->own, k_int(k, u))), open = there ? k_if(k, there) : 0;
        store_sorted_run(m, own, u, u + each, last);
        if (open)
            k_end(k, open);
    }
    m->from = !m->from;
}

/* ---- sorting a tile ---- */

static void load_own(const struct merge *m, struct gpu_own *own)
{
    struct gpu_sort *s = m->s;
    struct kernel *k = s->w->k;
    bool whole = s->length % OWN == 0, all = s->length % m->tile == 0;
    val first = m->own, greatest = k_bits(k, s->key_type, fold_identity(FOLD_MIN, s->key_type));
    if (whole && !all) /* adjacent elements, as one access has them */
        first = ix_scale(k, ix_min(k, ix_div(k, m->own, OWN), s->length / OWN - 1), OWN);
    for (int u = 0; u < OWN; u++) {
        val at = ix_add(k, m->own, k_int(k, u)), from = ix_add(k, first, k_int(k, u));
        if (!whole)
            from = ix_min(k, from, s->length - 1);
        ix_bound(k, from, 0, s->length - 1);
        own->key[u] = s->key(s->ctx, m->row, from);
        own->place[u] = k_cast(k, at, s->place_type);
        if (!all)
            own->key[u] = k_prim(k, P_SELECT, k_prim(k, P_LT, at, k_int(k, s->length), 0), own->key[u], greatest);
    }
}

/* Sorts the thread's elements: odd-even transposition, which is stable because only adjacent elements are exchanged. */
static void sort_own(struct kernel *k, struct gpu_own *own)
{
    for (int round = 0; round < OWN; round++)
        for (int u = round & 1; u + 1 < OWN; u += 2) {
            val a = own->key[u], b = own->key[u + 1], p = own->place[u], q = own->place[u + 1];
            val swap = k_prim(k, P_LT, b, a, 0);
            own->key[u] = k_prim(k, P_SELECT, swap, b, a);
            own->key[u + 1] = k_prim(k, P_SELECT, swap, a, b);
            own->place[u] = k_prim(k, P_SELECT, swap, q, p);
            own->place[u + 1] = k_prim(k, P_SELECT, swap, p, q);
        }
}

static void put_shared(const struct merge *m, const struct gpu_own *own)
{
    struct kernel *k = m->s->w->k;
    for (int u = 0; u < OWN; u++)
        k_store(k, m->tile_key, ix_add(k, ix_scale(k, m->t, OWN), k_int(k, u)), own->key[u], 0);
    for (int u = 0; u < OWN; u++)
        k_store(k, m->tile_place, ix_add(k, ix_scale(k, m->t, OWN), k_int(k, u)), own->place[u], 0);
}

static void sort_barrier(const struct merge *m) { k_inst(m->s->w->k, L_BARRIER, KL_BOOL, 0, 0, 0, 0); }

/* Merges the runs of the block's tiles, in rounds of twice the length, until each tile is one run. */
static void merge_shared(const struct merge *m, struct gpu_own *own)
{
    struct kernel *k = m->s->w->k;
    int64_t rounds = 0;
    for (int64_t lanes = m->lanes; lanes > 1; lanes /= 2)
        rounds++;
    put_shared(m, own);
    sort_barrier(m);
    val round = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, rounds), 1);
    val run = k_prim(k, P_SHL, k_int32(k, OWN), k_cast(k, round, KL_I32), 0), one = k_int32(k, 1);
    val at = k_cast(k, ix_scale(k, m->t, OWN), KL_I32), d = k_prim(k, P_AND, at, k_sub32(k, k_add32(k, run, run), one),
                                                                   0);
    const struct runs r = {m->tile_key, m->tile_place, m->side * m->tile, 0, k_sub32(k, at, d), run, run};
    merge_own(k, &r, d, m->tile / 2, own);
    sort_barrier(m);
    put_shared(m, own);
    sort_barrier(m);
    k_end(k, round);
    for (int u = 0; u < OWN; u++) {
        val i = ix_add(k, ix_scale(k, m->t, OWN), k_int(k, u));
        own->key[u] = k_load(k, m->tile_key, i, 0);
    }
    for (int u = 0; u < OWN; u++)
        own->place[u] = k_load(k, m->tile_place, ix_add(k, ix_scale(k, m->t, OWN), k_int(k, u)), 0);
}

static void sort_tiles(struct merge *m)
{
    struct gpu_own own;
    begin_tiles(m);
    load_own(m, &own);
    sort_own(m->s->w->k, &own);
    if (m->lanes > 1)
        merge_shared(m, &own);
    put_own(m, &own, m->tiles == 1);
    gpu_phase_end(m->s->w, &m->phase);
}

/* ---- merging runs in memory ---- */

/* Loads the tile's elements: those of the left run, of which there are `left`, from number `a` on, then those of the
 * right run, which begin at number b of both runs. */
static void bring_tile(const struct merge *m, const struct runs *r, val a, val left, val b)
{
    struct kernel *k = m->s->w->k;
    val last = k_sub32(k, k_add32(k, r->left, r->right), k_int32(k, 1)), x[OWN], from[OWN];
    for (int u = 0; u < OWN; u++) {
        x[u] = ix_add(k, m->t, k_int(k, u * m->lanes));
        val i = k_cast(k, x[u], KL_I32), of_left = k_prim(k, P_LT, i, left, 0);
        val number = k_prim(k, P_SELECT, of_left, k_add32(k, a, i), k_add32(k, b, k_sub32(k, i, left)));
        from[u] = at_runs(k, r, k_min(k, number, last));
    }
    for (int u = 0; u < OWN; u++)
        k_store(k, m->tile_key, x[u], k_load(k, r->key, from[u], 0), 0);
    for (int u = 0; u < OWN; u++)
        k_store(k, m->tile_place, x[u], k_load(k, r->place, from[u], 0), 0);
}

/* One block merges one tile of the result of runs of `run` elements. */
static void merge_runs(struct merge *m, int64_t run)
{
    struct gpu_sort *s = m->s;
    struct kernel *k = s->w->k;
    int64_t all = s->rows * s->length, half = m->lanes / 2;
    begin_tiles(m);
    val pair = ix_scale(k, ix_div(k, m->first, 2 * run), 2 * run), left = ix_sub(k, k_int(k, s->length), pair);
    val first = ix_min(k, left, run), both = ix_min(k, left, 2 * run);
    struct runs r = {m->key[m->from], m->place[m->from], all, ix_scale(k, m->row, s->length), k_cast(k, pair, KL_I32),
                     k_cast(k, first, KL_I32), k_cast(k, ix_sub(k, both, first), KL_I32)};
    val begin = k_cast(k, ix_sub(k, m->first, pair), KL_I32), total = k_add32(k, r.left, r.right);
    val end = k_min(k, k_add32(k, begin, k_int32(k, m->tile)), total);
    val number = ix_div(k, m->t, half), is_begin = k_prim(k, P_EQ, number, k_int(k, 0), 0);
    val path = merge_path(k, &r, k_prim(k, P_SELECT, is_begin, begin, end), run);
    val writes = k_if(k, k_prim(k, P_EQ, ix_mod(k, m->t, half), k_int(k, 0), 0));
    k_store(k, m->ends, number, path, 0);
    k_end(k, writes);
    sort_barrier(m);
    val a = k_load(k, m->ends, k_int(k, 0), 0), z = k_load(k, m->ends, k_int(k, 1), 0), of_left = k_sub32(k, z, a);
    bring_tile(m, &r, a, of_left, k_add32(k, r.left, k_sub32(k, begin, a)));
    sort_barrier(m);
    struct runs in = {m->tile_key, m->tile_place, m->tile, 0, k_int32(k, 0), of_left,
                      k_sub32(k, k_sub32(k, end, begin), of_left)};
    struct gpu_own own;
    merge_own(k, &in, k_cast(k, ix_scale(k, m->t, OWN), KL_I32), m->tile, &own);
    put_own(m, &own, 2 * run >= s->length);
    gpu_phase_end(s->w, &m->phase);
}

void gpu_sort(struct gpu_sort *s)
{
    struct merge m = {.s = s, .from = 1, .lanes = 1};
    struct kernel *k = s->w->k;
    int64_t width = k->sched.width;
    while (m.lanes * OWN < s->length && 2 * m.lanes <= width)
        m.lanes *= 2;
    m.tile = m.lanes * OWN;
    m.tiles = gpu_parts(s->length, m.tile);
    m.side = width / m.lanes;
    for (int i = 0; i < 2; i++) {
        m.key[i] = k_buf(k, BUF_WORKSPACE, s->key_type, s->rows * s->length, 0);
        m.place[i] = k_buf(k, BUF_WORKSPACE, s->place_type, s->rows * s->length, 0);
    }
    m.tile_key = k_buf(k, BUF_SHARED, s->key_type, width * OWN, 0);
    m.tile_place = k_buf(k, BUF_SHARED, s->place_type, width * OWN, 0);
    m.ends = k_buf(k, BUF_SHARED, KL_I32, 2, 0);
    sort_tiles(&m);
    for (int64_t run = m.tile; run < s->length; run *= 2)
        merge_runs(&m, run);
    s->sorted = m.key[m.from];
    s->indices = m.place[m.from];
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
