/* Long scans along the last axis in one pass over memory: decoupled look-back (Merrill and Garland, 2016) in a fixed
 * order of additions.
 *
 * A block publishes the fold of its tile, and waits for what the tiles before it in the row have published.  There, as
 * it is usually done, a block takes of each tile before it whatever it has published so far, its own fold or that of
 * all tiles up to it, so that the rounding of floats depends on timing.  Here it does not.  A row's tiles are in groups
 * of as many tiles as a block has threads:
 *
 *   before(tile) = before(group) + (the folds of the group's earlier tiles, folded in a fixed tree)
 *   before(next group) = before(group) + (that fold of the last tile + its own fold)
 *
 * Each thread waits for one of the group's tiles.  Only the chain from group to group is serial, with a step of about
 * 1 us (an H100's store to L2, and the load that sees it).  A step of 256 tiles of 16 KB is 8 MB read and written, for
 * which that memory takes 2.7 us.  A chain from tile to tile would be limited to a ninetieth of the memory's speed, one
 * of groups of 32 tiles, a warp's lanes, to a third.
 *
 * Words, in this order: the count of the iterations that have begun; the fold of each tile; `before` of each group.  A
 * word has 32 bits, so a value of 64 is two. */
#include "lower_gpu_scan.h"

static int64_t words_of_value(const struct gpu_scan *s) { return dtype_size(s->dtype) > sizeof(uint32_t) ? 2 : 1; }
static int64_t groups_of(const struct gpu_scan *s, int64_t tiles) { return gpu_parts(tiles, s->w->k->sched.width); }

void gpu_scan_clear_words(struct gpu_scan *s, int64_t tiles)
{
    enum { EACH = 2 }; /* words of a thread, one access */
    struct kernel *k = s->w->k;
    struct gpu_phase p;
    int64_t values = s->at.outer * (tiles + groups_of(s, tiles));
    int64_t threads = gpu_parts(1 + values * words_of_value(s), EACH);
    s->words = k_buf(k, BUF_WORKSPACE, KL_U64, EACH * threads, 0);
    val e = gpu_phase_begin(s->w, &p, threads), zero = k_bits(k, KL_U64, 0);
    for (int64_t i = 0; i < EACH; i++)
        k_store(k, s->words, ix_add(k, ix_scale(k, e, EACH), k_int(k, i)), zero, 0);
    gpu_phase_end(s->w, &p);
}

/* ---- values and words ---- */

static val bits_as(struct kernel *k, val v, unsigned dtype)
{
    return val_dtype(k, v) == dtype ? v : k_inst(k, L_OP(P_BITS), dtype, v, 0, 0, 0);
}

static void publish_value(const struct gpu_scan *s, val number, val value, val where)
{
    struct kernel *k = s->w->k;
    unsigned size = (unsigned)dtype_size(s->dtype);
    val at = ix_add(k, ix_scale(k, number, words_of_value(s)), k_int(k, 1));
    if (size < sizeof(uint32_t)) {
        k_publish(k, s->words, at, k_cast(k, value, KL_U32), where);
    } else if (size == sizeof(uint32_t)) {
        k_publish(k, s->words, at, bits_as(k, value, KL_U32), where);
    } else {
        val bits = bits_as(k, value, KL_U64), high = k_prim(k, P_SHR, bits, k_bits(k, KL_U64, 32), 0);
        k_publish(k, s->words, at, k_cast(k, bits, KL_U32), where);
        k_publish(k, s->words, ix_add(k, at, k_int(k, 1)), k_cast(k, high, KL_U32), where);
    }
}

/* The value where `where` is true, else some value. */
static val receive_value(const struct gpu_scan *s, val number, val where)
{
    struct kernel *k = s->w->k;
    unsigned size = (unsigned)dtype_size(s->dtype);
    val at = ix_add(k, ix_scale(k, number, words_of_value(s)), k_int(k, 1));
    val low = k_receive(k, s->words, at, where);
    if (size < sizeof(uint32_t))
        return k_cast(k, low, s->dtype);
    if (size == sizeof(uint32_t))
        return bits_as(k, low, s->dtype);
    val high = k_receive(k, s->words, ix_add(k, at, k_int(k, 1)), where);
    val upper = k_prim(k, P_SHL, k_cast(k, high, KL_U64), k_bits(k, KL_U64, 32), 0);
    return bits_as(k, k_prim(k, P_OR, upper, k_cast(k, low, KL_U64), 0), s->dtype);
}

/* ---- the fold of what is before ---- */

/* Folds the threads' values, of which each thread has one, by two steps in shared memory: each of `parts` threads folds
 * every parts-th value, and every thread folds their results. */
static val fold_threads(const struct gpu_scan *s, const struct scan_back *b, val own)
{
    struct kernel *k = s->w->k;
    int64_t threads = k->sched.width, parts = 1;
    val sum = 0;
    while (parts * parts < threads)
        parts *= 2;
    k_store(k, b->shared, b->t, own, 0);
    k_inst(k, L_BARRIER, KL_BOOL, 0, 0, 0, 0);
    val some = k_if(k, k_prim(k, P_LT, b->t, k_int(k, parts), 0));
    for (int64_t i = 0; i < threads / parts; i++) {
        val at = ix_add(k, b->t, k_int(k, i * parts));
        ix_bound(k, at, 0, threads - 1);
        val x = k_load(k, b->shared, at, 0);
        sum = i ? k_fold_step(k, s->fold, sum, x) : x;
    }
    k_store(k, b->shared, ix_add(k, b->t, k_int(k, threads)), sum, 0);
    k_end(k, some);
    k_inst(k, L_BARRIER, KL_BOOL, 0, 0, 0, 0);
    for (int64_t i = 0; i < parts; i++) {
        val x = k_load(k, b->shared, k_int(k, threads + i), 0);
        sum = i ? k_fold_step(k, s->fold, sum, x) : x;
    }
    return sum;
}

/* The number of the word of a group's `before`. */
static val group_number(const struct gpu_scan *s, const struct scan_back *b, val group)
{
    struct kernel *k = s->w->k;
    val number = ix_add(k, ix_scale(k, b->outer, groups_of(s, b->tiles)), group);
    return ix_add(k, number, k_int(k, s->at.outer * b->tiles));
}

val gpu_scan_before_tile(const struct gpu_scan *s, const struct scan_back *b)
{
    struct kernel *k = s->w->k;
    int64_t each = k->sched.width;
    val leads = k_prim(k, P_EQ, b->t, k_int(k, 0), 0), none = gpu_scan_identity(s);
    val group = ix_div(k, b->tile, each), member = ix_mod(k, b->tile, each);
    val row = ix_scale(k, b->outer, b->tiles), first = ix_add(k, row, ix_scale(k, group, each));
    publish_value(s, ix_add(k, row, b->tile), b->own, leads);
    val earlier = k_prim(k, P_LT, b->t, member, 0), other = receive_value(s, ix_add(k, first, b->t), earlier);
    val sum = fold_threads(s, b, k_prim(k, P_SELECT, earlier, other, none));
    if (b->tiles <= each)
        return sum;
    val with_own = k_fold_step(k, s->fold, sum, b->own); /* before the next word comes */
    val later = k_prim(k, P_LT, k_int(k, 0), group, 0), before = receive_value(s, group_number(s, b, group), later);
    before = k_prim(k, P_SELECT, later, before, none);
    val ends = k_prim(k, P_AND, leads, k_prim(k, P_EQ, member, k_int(k, each - 1), 0), 0);
    val more = k_prim(k, P_LT, b->tile, k_int(k, b->tiles - 1), 0);
    publish_value(s, group_number(s, b, ix_add(k, group, k_int(k, 1))), k_fold_step(k, s->fold, before, with_own),
                  k_prim(k, P_AND, ends, more, 0));
    return k_fold_step(k, s->fold, before, sum);
}
