/* Long scans along the last axis, in tiles: a block of threads has a tile of a row, a few lines of as many accesses as
 * it has threads, so that threads next to each other access memory next to each other.
 *
 * In levels, as in lower_gpu_scan.c: the tiles of a row are reduced to one element each, which form the next level,
 * until a row has one tile.  Then each level is scanned, beginning with the last: each thread scans the elements of its
 * accesses, the block scans the threads' results in shared memory (Hillis, Steele, 1986), and a tile starts from the
 * result of the tiles before it. */
#include "lower_gpu_scan.h"

enum { LINES = GPU_SCAN_LINES, MAX_COUNT = GPU_SCAN_MAX_VECTOR_WIDTH };

/* The tiles of one level, and the thread of the phase that is emitted. */
struct scan_tiles {
    const struct gpu_scan *s;
    uint32_t level;
    int64_t each, lines, side, count;   /* elements of an access; lines of a tile; elements of a tile; tiles of a row */
    int64_t whole, rest;                /* whole accesses of a row; elements behind them */
    uint32_t half[2];                   /* shared: a thread's result of each line, before and after a step */
    struct gpu_phase phase;
    val t, outer, tile;                 /* thread; row; tile of the row */
    val ends, end[MAX_COUNT];           /* does the thread have the rest, by itself?  its elements */
};

static int64_t threads_of(const struct scan_tiles *x) { return x->s->w->k->sched.width; }

/* Are arrays accessed in their own order?  Then accesses to a single row are aligned, whatever its length. */
static bool is_linear(const struct lowering *w)
{
    bool all = true;
    for (uint32_t m = 0; m < w->nmember; m++)
        for (unsigned i = 0; i < w->g->node[w->member[m]].nin; i++) {
            bool linear;
            ref r = w->member[m], in = w->g->node[r].in[i];
            ref x = r == w->anchor ? node_source(w->g, in, &linear) : node_operand(w->g, r, i, &linear);
            all &= linear || !lower_in_memory(w, x) || node_numel(w->g, x) == 1;
        }
    return all;
}

/* Finds the tiles of rows of so many elements, for blocks of so many threads.  single: of a single row, which no block
 * changes: then a thread without an access may load one of another tile. */
static void find_tiles_of(struct scan_tiles *x, const struct lowering *w, bool single, int64_t length, int64_t threads)
{
    x->each = lower_access(w); /* as many as one access has, if rows consist of them */
    while (length % x->each && !(single && length > x->each && is_linear(w)))
        x->each /= 2;
    int64_t line = threads * x->each;
    x->whole = length / x->each;
    x->rest = length % x->each;
    x->lines = gpu_parts(length, line) < LINES ? gpu_parts(length, line) : LINES;
    x->side = x->lines * line;
    x->count = gpu_parts(length, x->side);
}

int64_t gpu_scan_parts(const struct lowering *w, int64_t rows, int64_t length, int64_t threads)
{
    struct scan_tiles x = {0};
    find_tiles_of(&x, w, rows == 1, length, threads);
    return x.count;
}

static void find_tiles(struct scan_tiles *x, const struct gpu_scan *s, uint32_t level)
{
    *x = (struct scan_tiles){.s = s, .level = level, .half = {s->half[0], s->half[1]}};
    find_tiles_of(x, s->w, s->at.outer == 1 && !level, s->length[level], threads_of(x));
}

int64_t gpu_scan_tiles(const struct gpu_scan *s, uint32_t level)
{
    struct scan_tiles x;
    find_tiles(&x, s, level);
    return x.count;
}

/* Element number i of the row of the thread's tile. */
static val scan_tile_load(const struct scan_tiles *x, val i)
{
    const struct chunk c = {x->outer, 0, k_int(x->s->w->k, 0)};
    ix_bound(x->s->w->k, i, 0, x->s->length[x->level] - 1);
    return gpu_scan_element(x->s, x->level, &c, i);
}

static void scan_tile_store(const struct scan_tiles *x, val i, val value)
{
    const struct chunk c = {x->outer, 0, k_int(x->s->w->k, 0)};
    ix_bound(x->s->w->k, i, 0, x->s->length[x->level] - 1);
    gpu_scan_put(x->s, x->level, &c, i, value);
}

/* The elements behind the whole accesses are those of the access that follows: of a thread of the last tile. */
static void load_rest(struct scan_tiles *x)
{
    struct lowering *w = x->s->w;
    val last = k_prim(w->k, P_EQ, x->tile, k_int(w->k, x->count - 1), 0);
    x->ends = k_prim(w->k, P_AND, last, k_prim(w->k, P_EQ, x->t, k_int(w->k, x->whole % threads_of(x)), 0), 0);
    w->l.where = x->ends;
    for (int64_t u = 0; u < x->rest; u++)
        x->end[u] = scan_tile_load(x, k_int(w->k, x->whole * x->each + u));
    w->l.where = 0;
}

/* Is it the line of that access? */
static bool has_rest(const struct scan_tiles *x, int64_t line)
{
    return x->rest && x->whole / threads_of(x) % x->lines == line;
}

static void begin_tiles(struct scan_tiles *x)
{
    struct kernel *k = x->s->w->k;
    x->t = (x->s->one_pass ? gpu_blocks_begin_in_order : gpu_blocks_begin)(x->s->w, &x->phase,
                                                                           x->s->at.outer * x->count);
    x->outer = ix_div(k, x->phase.grid, x->count);
    x->tile = ix_mod(k, x->phase.grid, x->count);
    if (x->rest)
        load_rest(x);
}

static void scan_barrier(const struct scan_tiles *x) { k_inst(x->s->w->k, L_BARRIER, KL_BOOL, 0, 0, 0, 0); }

/* The first element of the thread's access of a line, in its row; *there: does it exist?  0: it does. */
static val access_at(const struct scan_tiles *x, int64_t line, val *there)
{
    struct kernel *k = x->s->w->k;
    int64_t length = x->s->length[x->level], threads = threads_of(x);
    val number = ix_add(k, ix_scale(k, x->tile, x->lines * threads), ix_add(k, x->t, k_int(k, line * threads)));
    *there = length % x->side ? k_prim(k, P_LT, number, k_int(k, x->whole), 0) : 0;
    return number;
}

/* Loads the elements of an access, and returns them folded one by one.  Elements that do not exist are the identity. */
static void load_access(const struct scan_tiles *x, int64_t line, val *folded)
{
    const struct gpu_scan *s = x->s;
    struct kernel *k = s->w->k;
    val there, number = access_at(x, line, &there), none = gpu_scan_identity(s), acc = none;
    if (there) /* another access, which exists */
        number = ix_min(k, number, x->whole - 1);
    for (int64_t u = 0; u < x->each; u++) {
        val e = scan_tile_load(x, ix_add(k, ix_scale(k, number, x->each), k_int(k, u)));
        e = there ? k_prim(k, P_SELECT, there, e, none) : e;
        e = has_rest(x, line) && u < x->rest ? k_prim(k, P_SELECT, x->ends, x->end[u], e) : e;
        acc = k_fold_step(k, s->fold, acc, e);
        folded[u] = acc;
    }
}

/* Reduces the tiles of a level to the elements of the next one. */
void gpu_scan_fold_tiles(const struct gpu_scan *s, uint32_t level)
{
    struct kernel *k = s->w->k;
    struct scan_tiles x;
    val folded[MAX_COUNT], sum = 0;
    find_tiles(&x, s, level);
    begin_tiles(&x);
    for (int64_t line = 0; line < x.lines; line++) {
        load_access(&x, line, folded);
        sum = line ? k_fold_step(k, s->fold, sum, folded[x.each - 1]) : folded[x.each - 1];
    }
    for (int64_t apart = threads_of(&x) / 2; apart > 0; apart /= 2) {
        k_store(k, x.half[0], x.t, sum, 0);
        scan_barrier(&x);
        val other = ix_add(k, x.t, k_int(k, apart)); /* threads beyond the last one that counts add what is not used */
        other = ix_min(k, other, threads_of(&x) - 1);
        sum = k_fold_step(k, s->fold, sum, k_load(k, x.half[0], other, 0));
        scan_barrier(&x);
    }
    val first = k_if(k, k_prim(k, P_EQ, x.t, k_int(k, 0), 0));
    const struct chunk c = {x.outer, x.tile, k_int(k, 0)};
    gpu_scan_put(s, level + 1, &c, x.tile, sum);
    k_end(k, first);
    gpu_phase_end(s->w, &x.phase);
}

static val result_at(const struct scan_tiles *x, int64_t line, val thread)
{
    return ix_add(x->s->w->k, k_int(x->s->w->k, line * threads_of(x)), thread);
}

/* Scans the threads' results of each line in shared memory.  Returns the array that has them. */
static uint32_t scan_block(const struct scan_tiles *x, const val *own)
{
    struct kernel *k = x->s->w->k;
    val none = gpu_scan_identity(x->s);
    int now = 0;
    for (int64_t line = 0; line < x->lines; line++)
        k_store(k, x->half[0], result_at(x, line, x->t), own[line], 0);
    scan_barrier(x);
    for (int64_t apart = 1; apart < threads_of(x); apart *= 2, now = !now) {
        val has = k_prim(k, P_LT, x->t, k_int(k, apart), 0), before = ix_sub(k, x->t, k_int(k, apart));
        before = k_prim(k, P_SELECT, has, k_int(k, 0), before);
        ix_bound(k, before, 0, threads_of(x) - 1);
        for (int64_t line = 0; line < x->lines; line++) {
            val a = k_load(k, x->half[now], result_at(x, line, before), 0);
            val b = k_load(k, x->half[now], result_at(x, line, x->t), 0);
            a = k_prim(k, P_SELECT, has, none, a);
            k_store(k, x->half[!now], result_at(x, line, x->t), k_fold_step(k, x->s->fold, a, b), 0);
        }
        scan_barrier(x);
    }
    return x->half[now];
}

/* The result of all tiles of the row before this one, from the next level, or from these tiles.  line: the threads'
 * result of each line; spare: an array in shared memory that has no values. */
static val before_tile(const struct scan_tiles *x, const val *line, uint32_t spare)
{
    const struct gpu_scan *s = x->s;
    struct kernel *k = s->w->k;
    if (s->one_pass) {
        struct scan_back b = {.t = x->t, .outer = x->outer, .tile = x->tile, .own = line[0], .tiles = x->count,
                              .shared = spare};
        for (int64_t i = 1; i < x->lines; i++)
            b.own = k_fold_step(k, s->fold, b.own, line[i]);
        return gpu_scan_before_tile(s, &b);
    }
    val is_first = k_prim(k, P_EQ, x->tile, k_int(k, 0), 0), none = gpu_scan_identity(s);
    if (x->level == s->top)
        return none;
    val before = k_prim(k, P_SELECT, is_first, k_int(k, 0), ix_sub(k, x->tile, k_int(k, 1)));
    ix_bound(k, before, 0, x->count - 1);
    const struct chunk c = {x->outer, 0, k_int(k, 0)};
    return k_prim(k, P_SELECT, is_first, none, gpu_scan_element(s, x->level + 1, &c, before));
}

void gpu_scan_scan_tiles(const struct gpu_scan *s, uint32_t level)
{
    struct kernel *k = s->w->k;
    struct scan_tiles x;
    val folded[LINES][MAX_COUNT], own[LINES], sum[LINES];
    find_tiles(&x, s, level);
    begin_tiles(&x);
    for (int64_t line = 0; line < x.lines; line++) {
        load_access(&x, line, folded[line]);
        own[line] = folded[line][x.each - 1];
    }
    uint32_t scanned = scan_block(&x, own);
    for (int64_t line = 0; line < x.lines; line++)
        sum[line] = k_load(k, scanned, k_int(k, (line + 1) * threads_of(&x) - 1), 0);
    val start = before_tile(&x, sum, scanned == x.half[0] ? x.half[1] : x.half[0]);
    val is_first = k_prim(k, P_EQ, x.t, k_int(k, 0), 0);
    val before = ix_sub(k, x.t, k_int(k, 1)), none = gpu_scan_identity(s);
    before = k_prim(k, P_SELECT, is_first, k_int(k, 0), before);
    ix_bound(k, before, 0, threads_of(&x) - 1);
    for (int64_t line = 0; line < x.lines; line++) {
        val there, number = access_at(&x, line, &there);
        val threads = k_prim(k, P_SELECT, is_first, none, k_load(k, scanned, result_at(&x, line, before), 0));
        val base = k_fold_step(k, s->fold, start, threads);
        start = k_fold_step(k, s->fold, start, sum[line]);
        val open = there ? k_if(k, there) : 0;
        for (int64_t u = 0; u < x.each; u++)
            scan_tile_store(&x, ix_add(k, ix_scale(k, number, x.each), k_int(k, u)),
                            k_fold_step(k, s->fold, base, folded[line][u]));
        if (open)
            k_end(k, open);
        open = has_rest(&x, line) ? k_if(k, x.ends) : 0;
        for (int64_t u = 0; open && u < x.rest; u++)
            scan_tile_store(&x, k_int(k, x.whole * x.each + u), k_fold_step(k, s->fold, base, folded[line][u]));
        if (open)
            k_end(k, open);
    }
    gpu_phase_end(s->w, &x.phase);
}
