/* The schedule of a product on a processor, and on a GPU of one that is not for blocks of threads: tiles, what is
 * packed, and when the epilogue of a tile is computed.
 *
 * B is read in place where its columns are neighbours in memory, but for products of many rows with a B beyond the
 * second-level cache: packing takes 2048x2048x2048 from 0.80 of the arithmetic peak to 0.84.  A B that the kernel
 * computes, as from the integers of quantized weights, is computed as it is packed, or in place if there is but one row
 * tile.  A is read in place, by tiles of no more rows than the first-level cache holds a line of each: at
 * 1024x1024x1024 tiles of 8x32 instead of 14x32 are 1.2 times as fast, and of 7x64, whose elements of A serve twice as
 * many columns, 1.15 times as fast as those; in bf16 6x64 is 1.15 times as fast as 14x32, for each element of A takes
 * two instructions to widen.  Pairs of bf16 are put together from two rows of B as they are packed, which pays with few
 * row tiles, too.  Columns may be neighbours only within runs, as the windows of a convolution are within a
 * row of the image: then no tile crosses from one run to the next. */
#include "lower_dot.h"

enum { MAX_STEP = 4 }; /* of a vector's elements that are loaded as whole vectors, of which some are picked */
enum { MOST_TASK_ROWS = 1 << 30 }; /* that a record can say */
enum { MANY_PRODUCTS = 32 }; /* of a batch: enough tasks for all threads, and each walks its rows */
enum { FEW_ROWS = 6 }; /* of a tile that shares B's vectors too little */
/* Members of a group, the dot included, whose epilogue stands at the end of every row of a tile, on the accumulators
 * where they are.  A longer one is a loop over the rows of a copy: as fast or faster, compiled in half the time. */
enum { MAX_INLINE = 4 };

/* Even row tiles, at most `most` rows each. */
static int64_t even_rows(int64_t m, int64_t most)
{
    int64_t tiles = (m + most - 1) / most;
    return tiles ? (m + tiles - 1) / tiles : 1;
}

/* Rows of a tile, at most `most`: of one that crosses no run of rows, if it has not too few. */
static int64_t tile_rows(const struct dot *d, int64_t most)
{
    int64_t rows = most;
    while (rows > 1 && d->run_m % rows)
        rows--;
    int64_t m = d->symbolic_m ? size_most(d->w->k->stand_ins, d->size.m) : d->size.m;
    return d->run_m < d->size.m && rows >= FEW_ROWS ? rows : even_rows(m, most);
}

/* How far apart in memory elements x are as loop variable v goes by one, as dot_find_steps says it. */
static int64_t step_of(struct kernel *k, val x, val v)
{
    int64_t step = 0;
    return k->inst[x].op == L_LOAD && !ix_stride(k, k->inst[x].a, v, &step) ? -1 : step;
}

/* The same for steps of k of the second operand, each being number i of `run` number o. */
static int64_t k_step(const struct dot *d, int64_t run)
{
    struct kernel *k = d->w->k;
    val n = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.n), 1);
    val o = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, run ? d->size.k / run : 0), 1);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, run), 1);
    int64_t step = step_of(k, dot_stored_element(d, true, n, ix_add(k, ix_scale(k, o, run), i)), i);
    k_end(k, i);
    k_end(k, o);
    k_end(k, n);
    return step;
}

/* The same for rows of the first operand or columns of the second, each being number i of `run` number o. */
static int64_t side_step(const struct dot *d, bool second, int64_t run)
{
    struct kernel *k = d->w->k;
    val o = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, run ? (second ? d->size.n : d->size.m) / run : 0), 1);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, run), 1);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k), 1);
    int64_t step = step_of(k, dot_stored_element(d, second, ix_add(k, ix_scale(k, o, run), i), j), i);
    k_end(k, j);
    k_end(k, i);
    k_end(k, o);
    return step;
}

/* An operand's two, along its rows or columns and along k. */
static void operand_steps(const struct dot *d, bool second, int64_t *side, int64_t *along_k)
{
    struct kernel *k = d->w->k;
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, second ? d->size.n : d->size.m), 1);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k), 1);
    val x = dot_stored_element(d, second, i, j);
    *side = step_of(k, x, i);
    *along_k = step_of(k, x, j);
    k_end(k, j);
    k_end(k, i);
}

/* Steps of k whose places in memory are fixed distances behind the first one's: the whole of a small window of a
 * convolution, or a row of it.  0: there are no such. */
static int64_t find_period(const struct dot *d)
{
    enum { MOST = 16 };
    struct kernel *k = d->w->k;
    int64_t row = 0;
    for (int64_t period = MOST; period > 1; period--) {
        if (d->size.k % period)
            continue;
        val n = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.n), 1);
        val o = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k / period), 1);
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, period), 1);
        val x = dot_stored_element(d, true, n, ix_add(k, ix_scale(k, o, period), i));
        bool outer = step_of(k, x, o) > 0, inner = step_of(k, x, i) > 0;
        k_end(k, i);
        k_end(k, o);
        k_end(k, n);
        if (outer)
            return period;
        if (inner && !row)
            row = period;
    }
    return row;
}

void dot_find_steps(struct dot *d)
{
    struct trial t;
    d->run = d->size.n;
    d->run_m = d->size.m;
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        int64_t run = 1, lanes = d->w->caps->vector_bytes / (int64_t)dtype_size(d->dtype);
        copy.w = &t.w;
        copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        operand_steps(&copy, true, &d->b_step_n, &d->b_step_k);
        operand_steps(&copy, false, &d->a_step_m, &d->a_step_k);
        bool apart = d->b_step_n == -1, apart_k = d->b_step_k == -1;
        int64_t step_n = 0;
        for (uint32_t axis = d->free_b.rank; apart && axis-- > 1;) {
            run *= d->free_b.dim[axis];
            int64_t step = run > 1 ? side_step(&copy, true, run) : 0;
            if (step > 0 && step <= MAX_STEP && (!step_n || step <= step_n)) {
                d->pack_run = run;
                step_n = step;
            }
            if (run >= lanes / 2 && step == 1) {
                d->run = run;
                d->b_step_n = 1;
            }
        }
        int64_t step_k = 0;
        run = 1;
        for (uint32_t axis = d->con.rank; apart_k && axis-- > 1;) {
            run *= d->con.dim[axis];
            int64_t step = run > 1 ? k_step(&copy, run) : 0;
            if (step > 0 && step <= MAX_STEP && (!step_k || step <= step_k)) {
                d->pack_run_k = run;
                step_k = step;
            }
        }
        if (apart && apart_k)
            d->period_k = find_period(&copy);
        for (run = MAX_ROWS; d->a_step_m == -1 && run >= FEW_ROWS; run--) {
            int64_t step = d->size.m % run ? -1 : side_step(&copy, false, run);
            if (step >= 0) {
                d->run_m = run;
                d->a_step_m = step;
            }
        }
    }
    trial_end(&t, d->w);
}

/* So many rows of A have a line each in the first-level cache.  A way of it is a page, so rows that lie a multiple of a
 * large power of two apart share a few of its sets; others share none. */
static int64_t rows_in_cache(const struct dot *d)
{
    enum { WAY_BYTES = 4096, MIN_WAYS = 8 };
    if (d->w->caps->block_threads || d->a_step_m <= 0)
        return MAX_ROWS;
    int64_t ways = d->w->caps->l1_bytes / WAY_BYTES, step = d->a_step_m * d->element % WAY_BYTES, apart = WAY_BYTES;
    while (apart > LINE_BYTES && step % apart)
        apart /= 2;
    return WAY_BYTES / apart * (ways > MIN_WAYS ? ways : MIN_WAYS);
}

static int64_t tile_lanes(const struct dot *d)
{
    int64_t lanes = d->w->caps->vector_bytes / (int64_t)dtype_size(d->dtype);
    return lanes < 32 ? lanes : 32;
}

static bool is_widened(const struct dot *d) { return d->unit == 1 && d->element < (int64_t)dtype_size(d->dtype); }

/* Rows of a tile of so many vectors of columns that have registers, which are kept for a few things more: where A is
 * widened, element by element, or a pair, four vectors leave none for that; another tile's epilogue takes some, and 16
 * rows of one vector are as fast as 24 then, and compiled in half the time. */
static int64_t register_rows(const struct dot *d, int64_t vectors)
{
    enum { MOST_ROWS = 24, ROWS_BESIDE = 16 };
    int64_t rows = ((int64_t)d->w->caps->vector_regs - 4) / vectors -
                   (vectors == 4 && (is_widened(d) || d->unit > 1));
    int64_t most = d->when == EPILOGUE_DURING_NEXT ? ROWS_BESIDE : MOST_ROWS;
    return rows < most ? rows : most;
}

/* Are so many lanes of tiles of two vectors idle that tiles of one are faster? */
static bool second_vector_idles(const struct dot *d)
{
    enum { IDLE = 8 }; /* at least one vector in so many */
    int64_t lanes = tile_lanes(d), vectors = dot_parts(d->size.n, lanes), pairs = dot_parts(d->size.n, 2 * lanes);
    return (2 * pairs - vectors) * IDLE >= 2 * pairs;
}

/* Vectors of columns in a tile.  Two; one for few columns, where two leave many lanes idle, and in runs: more rows
 * share each vector, and fewer lanes are idle.  Four, so that more columns share each element of A, where few rows of A
 * stay in the cache, and where its elements are widened, unless sums between k-blocks need much of the next cache. */
static int64_t tile_vectors(const struct dot *d)
{
    enum { MAX_WIDTH = 64, IDLE = 16 }; /* at most one lane in so many */
    if (d->size.n <= tile_lanes(d) || d->run < d->size.n || d->when == EPILOGUE_DURING_NEXT ||
        (!d->w->caps->block_threads && second_vector_idles(d)))
        return 1;
    int64_t columns = 4 * tile_lanes(d), over = (columns - d->size.n % columns) % columns, rows = register_rows(d, 4);
    int64_t sums = d->blocks > 1 ? d->size.m * columns * (int64_t)dtype_size(d->dtype) : 0;
    bool fits = !d->w->caps->block_threads && dtype_is_float(d->n->dtype) && columns <= MAX_WIDTH &&
        over <= d->size.n / IDLE &&
                rows >= FEW_ROWS;
    bool pays = rows_in_cache(d) * 2 < rows * 4 || (is_widened(d) && sums <= d->w->caps->l2_bytes / 16);
    return fits && pays ? 4 : 2;
}

/* Columns that are neighbours already: rows of a B beyond the second-level cache lie far apart in it, on pages of their
 * own, and many row tiles read each.  Half floats are widened as they are packed, once for all row tiles: tiles of four
 * vectors do not read them often enough for that. */
static bool packing_pays(const struct dot *d)
{
    enum { MANY_ROWS = 512, MANY_HALF_ROWS = 256, MANY_PAIR_ROWS = 32 };
    if (d->b_step_n != 1 || d->run < d->size.n)
        return false;
    if (d->unit > 1) /* pairs are put together from two rows */
        return d->size.m >= MANY_PAIR_ROWS;
    return (dtype_is_half(d->n->dtype) && d->size.m >= MANY_HALF_ROWS && tile_vectors(d) < 4) ||
           (d->size.m >= MANY_ROWS && d->size.k * d->size.n > d->w->caps->l2_bytes / (int64_t)dtype_size(d->n->dtype));
}

void dot_choose_tiles(struct dot *d)
{
    const struct caps *c = d->w->caps;
    int64_t vectors = tile_vectors(d), most = register_rows(d, vectors), cached = rows_in_cache(d);
    if (cached < most)
        most = cached;
    d->nr = vectors * tile_lanes(d);
    /* a GPU's lanes are threads: none without a column */
    while (c->block_threads && d->nr > 1 && d->nr / 2 >= d->size.n)
        d->nr /= 2;
    d->mr = tile_rows(d, most);
    if (d->w->override) {
        d->mr = d->w->override->mr;
        d->nr = d->w->override->nr;
    }
    d->square = c->vector_bytes / 4;
    if (d->square > d->nr)
        d->square = (uint32_t)d->nr;
    /* Where all of B stays in half of the second-level cache, a task is one row tile: neighbouring tasks share
     * its rows of A.  Else, and where there are many products, a task is as many rows of A as stay there while it
     * walks them, so that they share B. */
    int64_t size = d->element, kc = d->size.k < d->kblock ? d->size.k : d->kblock;
    int64_t fit = c->l2_bytes / 2 / ((kc > 0 ? kc : 1) * size);
    if (!d->packs && d->size.k * d->size.n <= c->l2_bytes / 2 / size && d->size.batch < MANY_PRODUCTS)
        fit = d->mr;
    d->mblock = d->size.m <= fit ? d->size.m : even_rows(d->size.m, fit > d->mr ? fit : d->mr);
    if (d->mblock < d->size.m)
        d->mblock = (d->mblock + d->mr - 1) / d->mr * d->mr;
    if (d->mblock < 1)
        d->mblock = 1;
    if (d->mblock > MOST_TASK_ROWS)
        d->mblock = MOST_TASK_ROWS / d->mr * d->mr;
    int64_t rows = d->w->override ? d->w->override->rows : 0;
    if (rows && (rows == d->size.m || (rows < d->size.m && rows % d->mr == 0)))
        d->mblock = rows;
}

/* A long epilogue.  Where a task can walk all columns of its rows, it is computed during the products of the next tile,
 * if registers are left for that beside a tile of one vector of columns, whose rows are enough to share the vector and
 * few enough to have a visit of the loop over k each.  So the gradient of a layer's weights, 784x512 from 128 rows,
 * with Adam behind it takes 1.10 times as long as alone; with Adam after all columns, 1.15 times. */
static void choose_when(struct dot *d, enum sched_epilogue wanted)
{
    enum { MANY_REGISTERS = 32, MIN_ROWS = 12 };
    const struct caps *c = d->w->caps;
    d->when = EPILOGUE_AFTER_TILE;
    if (wanted == EPILOGUE_AFTER_TILE || d->packs || d->run < d->size.n || !dot_sweeps(d->w->g, d->w->anchor))
        return;
    int64_t visits = (d->size.k - (d->blocks - 1) * d->kblock) / UNROLL_K;
    d->when = EPILOGUE_DURING_NEXT;
    dot_choose_tiles(d);
    bool pays = wanted == EPILOGUE_DURING_NEXT || d->mr >= MIN_ROWS;
    if (wanted == EPILOGUE_AFTER_ROWS || c->block_threads || c->vector_regs < MANY_REGISTERS || is_widened(d) ||
        !pays || visits < d->mr) {
        d->when = EPILOGUE_AFTER_ROWS;
        dot_choose_tiles(d);
    }
    d->mblock = d->mr;
}

/* Lanes without a column where so many lie in tiles of so many. */
static int64_t idle_lanes(int64_t columns, int64_t lanes) { return (lanes - columns % lanes) % lanes; }

/* Columns in runs: may tiles cross them, the columns being copied?  Then all lanes have a column, but a vector of a row
 * is put together from some loads, which all rows of A share. */
static bool packing_runs_pays(const struct dot *d)
{
    enum { LOAD_COST = 3, ROW_COST = 5 }; /* in multiplications of a vector */
    int64_t lanes = tile_lanes(d), loads = 2 + lanes / d->pack_run, cost = LOAD_COST * loads + ROW_COST;
    if (d->run == d->size.n)
        return true;
    return idle_lanes(d->run, lanes) * d->size.m > cost * d->run;
}

/* What is copied in runs, and how. */
static void choose_runs(struct dot *d, bool packs)
{
    bool columns = packs && d->pack_run && packing_runs_pays(d);
    bool steps = packs && !columns && d->pack_run_k && d->run == d->size.n && d->unit == 1;
    if (columns) {
        d->run = d->size.n;
        d->b_step_n = -1;
    }
    d->pack_run = columns ? d->pack_run : 0;
    d->pack_run_k = steps ? d->pack_run_k : 0;
    d->packs |= columns || steps;
}

void dot_choose(struct dot *d)
{
    const struct lowering *w = d->w;
    enum sched_epilogue wanted = w->override ? (enum sched_epilogue)w->override->epilogue : EPILOGUE_NONE;
    /* On a GPU what is no product for blocks has few columns: copying them costs barriers and saves nothing. */
    bool linear, gpu = w->caps->block_threads, computed = lower_is_member(w, node_operand(w->g, w->anchor, 1, &linear));
    d->packs = w->override ? w->override->pack_b : !gpu && ((d->b_step_n != 0 && d->b_step_n != 1) || packing_pays(d));
    d->pack_run_k = w->caps->compact ? 0 : d->pack_run_k; /* transposing is long */
    choose_runs(d, w->override ? w->override->pack_b : !gpu && !computed);
    d->squares = computed ? dot_along_k(d, true) : d->b_step_k == 1 && !w->caps->compact;
    d->rows = computed ? !d->squares : d->b_step_n == 1;
    dot_choose_tiles(d);
    if (computed && !w->override && !gpu && (d->squares || d->size.m > d->mr)) {
        d->packs = true; /* each element is computed once, for all rows of the task */
        dot_choose_tiles(d);
    }
    bool apart = wanted ? wanted > EPILOGUE_IN_TILE : w->nmember > MAX_INLINE;
    if (apart && (d->packs || !computed))
        choose_when(d, wanted);
}
