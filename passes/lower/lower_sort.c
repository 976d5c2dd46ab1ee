/* Lowers argsort: a bottom-up merge sort of keys and indices (Knuth, The Art of Computer Programming 3, 5.2.4).  An
 * iteration of the parallel loop sorts one row of the axis.
 *
 * Keys are integers with the order that is wanted (lower_sort_key).  Each level of the merge moves keys and indices
 * from one pair of scratch arrays to the other; levels are unrolled, so that their run lengths and arrays are
 * constants.  A merge step selects instead of branching, because a branch on which side is next would be
 * mispredicted. */
#include "lower_schedule.h"
#include "passes/lower/gpu/lower_gpu.h"
#include <string.h>

struct sort {
    struct lowering *w;
    const struct node *n;
    const struct shape *s;
    val row_coord[KL_MAX_RANK];   /* of the axes but the sorted one, whose coordinate is added */
    int64_t len;
    unsigned key_type;
    uint32_t key[2], place[2];    /* scratch lbufs */
};

static val min_int(struct kernel *k, val a, int64_t max, bool needed)
{
    val m = k_int(k, max);
    return needed ? k_min(k, a, m) : a;
}

static void sort_coordinates(const struct sort *s, val at, val *coord)
{
    memcpy(coord, s->row_coord, s->s->rank * sizeof *coord);
    coord[s->n->attr.sort.axis] = at;
}

static val key_at(const struct sort *s, val at)
{
    val coord[KL_MAX_RANK] = {0};
    sort_coordinates(s, at, coord);
    lower_point(s->w);
    return lower_sort_key(s->w->k, lower_at(s->w, s->n->in[0], coord), s->n->attr.sort.descending);
}

/* Stores keys and indices of elements base .. base + W - 1; only of the first `rest` of them if rest > 0. */
static void fill_vector(const struct sort *s, val base, int64_t rest)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    w->pred = rest ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
    val at = ix_add(k, base, w->lane);
    k_store(k, s->key[0], at, k_splat(k, key_at(s, at)), w->pred);
    k_store(k, s->place[0], at, k_cast(k, at, s->n->dtype), w->pred);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

static void lower_sort_fill(const struct sort *s)
{
    struct kernel *k = s->w->k;
    int64_t width = k->sched.width, tail = s->len % width;
    if (s->len / width) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->len / width), 1);
        fill_vector(s, ix_scale(k, j, width), 0);
        k_end(k, j);
    }
    if (tail)
        fill_vector(s, k_int(k, s->len - tail), tail);
}

static void store_result(const struct sort *s, val at, val place)
{
    struct kernel *k = s->w->k;
    val coord[KL_MAX_RANK] = {0};
    sort_coordinates(s, at, coord);
    k_store(k, lower_buffer(s->w, s->w->anchor, BUF_OUT), lower_flatten(k, s->s, coord), place, 0);
}

/* Merges neighbouring runs from arrays `from` to the other arrays, or on the last level to the output.  A side without
 * further elements is read at lo, and that value is not used. */
static void merge_level(const struct sort *s, int64_t run, int from)
{
    struct kernel *k = s->w->k;
    bool last = 2 * run >= s->len, ragged = s->len % (2 * run) != 0;
    val lo = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->len), 2 * run);
    val mid = min_int(k, k_prim(k, P_ADD, lo, k_int(k, run), 0), s->len, ragged);
    val hi = min_int(k, k_prim(k, P_ADD, lo, k_int(k, 2 * run), 0), s->len, ragged);
    val at = k_loop(k, LOOP_SERIAL, lo, hi, 1), i = k_carry(k, lo);
    val j = k_prim(k, P_ADD, k_prim(k, P_SUB, at, i, 0), mid, 0);
    val left = k_prim(k, P_LT, i, mid, 0), right = k_prim(k, P_LT, j, hi, 0);
    val i_held = k_prim(k, P_SELECT, left, i, lo), j_held = k_prim(k, P_SELECT, right, j, lo);
    val ki = k_load(k, s->key[from], i_held, 0), kj = k_load(k, s->key[from], j_held, 0);
    val less = k_prim(k, P_AND, right, k_prim(k, P_LT, kj, ki, 0), 0);
    val take = k_prim(k, P_AND, left, k_prim(k, P_NOT, less, 0, 0), 0);
    val place = k_load(k, s->place[from], k_prim(k, P_SELECT, take, i_held, j_held), 0);
    if (last) {
        store_result(s, at, place);
    } else {
        k_store(k, s->key[!from], at, k_prim(k, P_SELECT, take, ki, kj), 0);
        k_store(k, s->place[!from], at, place, 0);
    }
    k_next(k, i, k_prim(k, P_ADD, i, k_cast(k, take, KL_I64), 0));
    k_end(k, at);
    k_end(k, lo);
}

void lower_argsort_group(struct lowering *w)
{
    struct sort s = {.w = w, .n = &w->g->node[w->anchor], .s = node_shape(w->g, w->anchor)};
    uint32_t axis = s.n->attr.sort.axis;
    struct shape rows = *s.s;
    unsigned from = dtype_compute(w->g->node[s.n->in[0]].dtype);
    s.len = rows.dim[axis];
    rows.dim[axis] = 1;
    s.key_type = from == KL_F32 ? KL_I32 : from == KL_F64 ? KL_I64 : from == KL_BOOL ? KL_U8 : from;
    struct sort_facts facts = {.w = w, .rows = shape_count(&rows), .len = s.len,
                               .element = (int64_t)(dtype_size(s.key_type) + dtype_size(s.n->dtype))};
    for (int64_t run = 1; run < s.len; run *= 2)
        facts.levels++;
    select_family(w, GROUP_sort, &facts, &s);
}

void gpu_sort_emit(struct sort *s, const struct schedule *schedule)
{
    (void)schedule;
    gpu_argsort(s->w);
}

void sort_emit(struct sort *s, const struct schedule *schedule)
{
    struct kernel *k = s->w->k;
    struct shape rows = *s->s;
    (void)schedule;
    rows.dim[s->n->attr.sort.axis] = 1;
    k->extent = shape_count(&rows);
    for (int i = 0; i < 2 && s->len > 1; i++) {
        s->key[i] = k_buf(k, BUF_SCRATCH, s->key_type, s->len, 0);
        s->place[i] = k_buf(k, BUF_SCRATCH, s->n->dtype, s->len, 0);
    }
    lower_scalars(s->w);
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    lower_unflatten(k, &rows, p, s->row_coord);
    int levels = 0;
    if (s->len == 1)
        store_result(s, k_int(k, 0), k_bits(k, s->n->dtype, 0));
    if (s->len > 1)
        lower_sort_fill(s);
    for (int64_t run = 1; run < s->len; run *= 2)
        merge_level(s, run, levels++ & 1);
    k_end(k, p);
}
