/* Chooses the schedules of products on a processor, and of those products on a GPU that do not use blocks of threads:
 * the kind of kernel, its tiles, what is packed, and when the epilogue of a tile is computed.
 *
 * B is read in place where its columns are adjacent in memory.  The exception is a product of many rows with a B that
 * is larger than the second-level cache: B is packed, which takes 2048x2048x2048 from 0.80 of the arithmetic peak to
 * 0.84.  A B that the kernel computes, for example from the integers of quantized weights, is computed while it is
 * packed, or in place if there is only one row tile.
 *
 * A is read in place.  A tile has no more rows than the first-level cache can hold with one cache line each.  At
 * 1024x1024x1024 tiles of 8x32 are 1.2 times as fast as tiles of 14x32.  Tiles of 7x64 are 1.15 times as fast again,
 * because each element of A is multiplied with twice as many columns.  In bf16 6x64 is 1.15 times as fast as 14x32,
 * because widening an element of A takes two instructions.
 *
 * Pairs of bf16 are made of two rows of B while B is packed; that pays with few row tiles, too.  Columns may be
 * adjacent only within runs, as the windows of a convolution are within a row of the image.  Then no tile crosses from
 * one run to the next. */
#include "lower_dot.h"
#include "passes/lower/lower_schedule.h"

enum { MAX_TASK_ROWS = 1 << 30 }; /* the largest number that a schedule record can hold */
enum { MANY_PRODUCTS = 32 }; /* products in a batch that are enough tasks for all threads */
/* The largest group, the dot included, whose epilogue is repeated for every row of a tile and works on the accumulators
 * in registers.  A longer epilogue is a loop over the rows of a copy: as fast or faster, compiled in half the time. */
enum { MAX_INLINE = 4 };

/* What the choice of tiles depends on. */
struct tiling {
    const struct dot *d;
    const struct caps *caps;
    int64_t run;                    /* columns of a run; no tile crosses its end; n: there are no runs */
    bool packs;
    enum sched_epilogue when;
};

/* Rows of a tile if m rows are divided evenly into tiles of at most `most` rows. */
static int64_t even_rows(int64_t m, int64_t max)
{
    int64_t tiles = (m + max - 1) / max;
    return tiles ? (m + tiles - 1) / tiles : 1;
}

/* Rows of a tile, at most `most`.  The tile does not cross the end of a run of rows, unless it had too few rows. */
static int64_t tile_rows(const struct dot *d, int64_t max)
{
    int64_t rows = max;
    while (rows > 1 && d->run_m % rows)
        rows--;
    int64_t m = ix_max(d->w->k, d->len.m);
    return d->run_m < d->size.m && rows >= FEW_ROWS ? rows : even_rows(m, max);
}

/* How many rows of A fit the first-level cache with one cache line each.  A way of the cache has the size of a page, so
 * rows whose distance is a multiple of a large power of two map to a few sets; other rows map to different sets. */
static int64_t rows_in_cache(const struct dot *d, const struct caps *caps)
{
    enum { WAY_BYTES = 4096, MIN_WAYS = 8 };
    if (caps->is_gpu || d->a_step_m <= 0)
        return MAX_ROWS;
    int64_t ways = caps->l1_bytes / WAY_BYTES, step = d->a_step_m * d->element % WAY_BYTES, apart = WAY_BYTES;
    while (apart > LINE_BYTES && step % apart)
        apart /= 2;
    return WAY_BYTES / apart * (ways > MIN_WAYS ? ways : MIN_WAYS);
}

static int64_t vector_lanes(const struct dot *d, const struct caps *caps)
{
    return caps->vector_bytes / (int64_t)dtype_size(d->dtype);
}

static int64_t tile_lanes(const struct dot *d, const struct caps *caps)
{
    int64_t lanes = vector_lanes(d, caps);
    return lanes < 32 ? lanes : 32;
}

/* Do tiles of four vectors of columns pay because of where B is?  They do where each row of B is on another page, of
 * which a tile then reads more: [96,96] by [96,2704] takes 0.85 of the time, [24,48] by [48,10816] 0.57; and where
 * windows are packed, whose panel then has long rows: convolutions 3x3 take 0.94 to 0.98 of the time. */
static bool wide_tiles_pay(const struct tiling *t)
{
    enum { PAGE_BYTES = 4096 };
    const struct dot *d = t->d;
    bool pages = !t->packs && d->b_step_n == 1 && d->b_step_k * d->element >= PAGE_BYTES;
    return !t->caps->is_gpu && (pages || (t->packs && d->columns_run && d->unit == 1));
}

static bool is_widened(const struct dot *d) { return d->unit == 1 && d->element < (int64_t)dtype_size(d->dtype); }

/* Rows of a tile of `vectors` vectors of columns, so that all sums are in registers.  Some registers are kept free: to
 * widen elements of A or to hold a pair of them, for which tiles of four vectors would leave none, for the epilogue of
 * another tile, and where wide_tiles_pay: 7 rows would need the stack.  With such an epilogue 16
 * rows of one vector are as fast as 24 and compile in half the time. */
static int64_t register_rows(const struct tiling *t, int64_t vectors)
{
    enum { PLAIN_ROWS = 24, ROWS_BESIDE = 16 };
    bool less = vectors == 4 && (is_widened(t->d) || t->d->unit > 1 || wide_tiles_pay(t));
    int64_t rows = ((int64_t)t->caps->vector_regs - 4) / vectors - less;
    int64_t max = t->when == EPILOGUE_DURING_NEXT ? ROWS_BESIDE : PLAIN_ROWS;
    return rows < max ? rows : max;
}

/* Do tiles of two vectors leave so many lanes idle that tiles of one vector are faster? */
static bool second_vector_idles(const struct tiling *t)
{
    enum { IDLE = 8 }; /* one idle vector in this many */
    int64_t lanes = tile_lanes(t->d, t->caps), n = t->d->size.n;
    int64_t vectors = dot_parts(n, lanes), pairs = dot_parts(n, 2 * lanes);
    return (2 * pairs - vectors) * IDLE >= 2 * pairs;
}

/* Vectors of columns of a tile in panels of columns that are packed already: those of a whole panel, which are adjacent
 * in memory, where they leave registers for a few rows. */
static int64_t panel_vectors(const struct tiling *t)
{
    int64_t vectors = t->d->panels / tile_lanes(t->d, t->caps);
    while (vectors > 1 && register_rows(t, vectors) < FEW_ROWS)
        vectors /= 2;
    return vectors > 1 ? vectors : 1;
}

/* Vectors of columns in a tile, usually two.  One for few columns, where two vectors leave many lanes idle, and in
 * runs: more rows share each vector, and fewer lanes are idle.  Four where few rows of A stay in the cache or its
 * elements are widened, so that more columns share each element of A, or where wide_tiles_pay, unless the sums kept
 * between k-blocks would need much of the second-level cache. */
static int64_t tile_vectors(const struct tiling *t)
{
    enum { MAX_WIDTH = 64, IDLE = 16 }; /* at most one idle lane in this many */
    const struct dot *d = t->d;
    int64_t lanes = tile_lanes(d, t->caps);
    if (d->panels && !t->caps->is_gpu)
        return panel_vectors(t);
    if (d->size.n <= lanes || t->run < d->size.n || t->when == EPILOGUE_DURING_NEXT ||
        (!t->caps->is_gpu && second_vector_idles(t)))
        return 1;
    int64_t columns = 4 * lanes, over = (columns - d->size.n % columns) % columns, rows = register_rows(t, 4);
    int64_t sums = d->blocks > 1 ? d->size.m * columns * (int64_t)dtype_size(d->dtype) : 0;
    bool fits = !t->caps->is_gpu && dtype_is_float(d->n->dtype) && columns <= MAX_WIDTH &&
                over <= d->size.n / IDLE && rows >= FEW_ROWS;
    bool pays = rows_in_cache(d, t->caps) * 2 < rows * 4 ||
                ((is_widened(d) || wide_tiles_pay(t)) && sums <= t->caps->l2_bytes / 16);
    return fits && pays ? 4 : 2;
}

/* Are rows of B so far apart that those of a k-block do not fit the second-level cache together?  Addresses that differ
 * by a multiple of a large power of two share few of its sets, in huge pages and where the system colours pages. */
static bool rows_meet(const struct tiling *t)
{
    const struct dot *d = t->d;
    int64_t step = d->b_step_k * d->element, rows = d->size.k < d->kblock ? d->size.k : d->kblock;
    return rows * (step & -step) > t->caps->l2_bytes;
}

/* Does it pay to pack columns that are adjacent already?  Yes for a B larger than the second-level cache: its rows are
 * on different pages, and many row tiles read each.  If all its rows begin at the same place of a page, and so meet in
 * a few sets of the caches, fewer rows are enough: 32x1024x1024 takes 0.83 of the time, 16x4096x4096 0.61, of bf16 0.5.
 * Half floats are widened while they are packed, once for all row tiles: 64x1000x1000 takes 0.88 of the time. */
static bool packing_pays(const struct tiling *t)
{
    enum { PAGE_BYTES = 4096, FEW = 16, MANY = 32, VERY_MANY = 512 }; /* rows */
    const struct dot *d = t->d;
    int64_t bytes = d->size.k * d->size.n * (int64_t)dtype_size(d->n->dtype), l2 = t->caps->l2_bytes;
    if (d->b_step_n != 1 || t->run < d->size.n)
        return false;
    if (d->size.m >= FEW && bytes > 4 * l2 && rows_meet(t))
        return true;
    if (d->size.m < MANY)
        return false;
    return d->unit > 1 /* a pair is made of two rows */ || dtype_is_half(d->n->dtype) || bytes > 8 * l2 ||
           (d->b_step_k * d->element % PAGE_BYTES == 0 && bytes > l2 / 4) || (d->size.m >= VERY_MANY && bytes > l2);
}

/* The number of lanes without a column, for tiles of `lanes` lanes. */
static int64_t idle_lanes(int64_t columns, int64_t lanes) { return (lanes - columns % lanes) % lanes; }

/* Columns of a tile within runs: a vector, or half a vector if that saves a quarter of the lanes, costs no more, and
 * enough rows share the loads of B.  A 3x3 convolution to 24 images of 22x22 takes 37 us instead of 46;
 * with an eighth of the lanes saved, 64 images of 56x56 take 1.09 times as long. */
static int64_t run_lanes(const struct tiling *t)
{
    enum { MANY_ROWS = 12, SAVED = 4 };
    int64_t lanes = tile_lanes(t->d, t->caps), half = lanes / 2, run = t->d->whole_run;
    int64_t idle = idle_lanes(run, lanes), saved = idle - idle_lanes(run, half);
    bool pays = t->caps->half_vectors && run && t->d->size.m >= MANY_ROWS && t->d->unit == 1 &&
                saved * SAVED >= run + idle;
    return pays ? half : lanes;
}

/* Columns of a tile of few rows, at least `columns`: each sum is a chain of multiply-adds, of which the processor
 * computes several at a time.  A depthwise convolution 7x7 of 96 images of 32x48, one row for each image, takes 0.55 of
 * the time with tiles of four vectors. */
static int64_t columns_of_few_rows(const struct tiling *t, int64_t columns)
{
    enum { CHAINS = 4, MAX_COLUMNS = 64 };
    const struct dot *d = t->d;
    int64_t lanes = tile_lanes(d, t->caps), of_run = t->run < d->size.n ? t->run : d->size.n;
    if (t->caps->is_gpu || d->panels || d->unit > 1 || d->symbolic_n)
        return columns;
    while (d->size.m * columns / lanes < CHAINS && 2 * columns <= MAX_COLUMNS && columns < of_run)
        columns *= 2;
    return columns;
}

/* A tile's rows and columns. */
static void choose_tile(const struct tiling *t, uint16_t *mr, uint16_t *nr)
{
    const struct dot *d = t->d;
    int64_t vectors = tile_vectors(t), max = register_rows(t, vectors), cached = rows_in_cache(d, t->caps);
    int64_t columns = t->run < d->size.n ? run_lanes(t) : vectors * tile_lanes(d, t->caps);
    /* the lanes of a GPU are threads, and none should be without a column */
    while (t->caps->is_gpu && columns > 1 && columns / 2 >= d->size.n)
        columns /= 2;
    *nr = (uint16_t)columns_of_few_rows(t, columns);
    *mr = (uint16_t)tile_rows(d, cached < max ? cached : max);
}

/* Columns of a tile of so many on a processor, or half of them, or fewer, if there are no more: such vectors need no
 * masks, and fewer of them cross a cache line.  1000 products of 8x8x8 take 0.75 of the time, of 4x4x4 0.55. */
static uint16_t narrow_columns(const struct tiling *t, uint16_t columns)
{
    enum { MIN_COLUMNS = 4 };
    const struct dot *d = t->d;
    bool may = !t->caps->is_gpu && t->run == d->size.n && !d->panels && d->unit == 1;
    while (may && columns / 2 >= MIN_COLUMNS && columns / 2 >= d->size.n)
        columns /= 2;
    return columns;
}

/* Bytes of a row of A in a k-block. */
static int64_t row_bytes(const struct dot *d)
{
    int64_t kc = d->size.k < d->kblock ? d->size.k : d->kblock;
    return (kc > 0 ? kc : 1) * d->element;
}

/* Tasks that there are at least where the data allow it: two for each thread, or `min`. */
static int64_t enough_tasks(const struct caps *caps, int64_t min)
{
    int64_t n = 2 * (int64_t)caps->threads;
    return caps->is_gpu || n < min ? min : n;
}

/* Rows of a task, at most `rows`: so many tiles of mr rows that there are tasks enough, of which the last ones leave
 * few threads idle.  Products that are too small to be shared out stay whole. */
static int64_t shared_rows(const struct tiling *t, int64_t rows, int64_t mr, int64_t nr)
{
    enum { IDLE = 10 }; /* one idle thread in this many tasks */
    const struct dot *d = t->d;
    int64_t columns = t->run < d->size.n ? d->size.n / t->run : dot_parts(d->size.n, nr);
    int64_t across = columns * d->size.batch, wanted = enough_tasks(t->caps, 1), threads = wanted / 2;
    int64_t tiles = dot_parts(d->size.m, mr), min = threads, of = 1;
    double half = (double)d->size.batch * (double)d->size.m * (double)d->size.n * (double)d->size.k / 16;
    bool small = half < 0x1p60 && !lower_grain(2, (int64_t)half);
    if (small || across <= 0 || dot_parts(d->size.m, rows < mr ? mr : rows) * across >= wanted)
        return rows;
    int64_t blocks = dot_parts(wanted, across);
    for (blocks = blocks < tiles ? blocks : tiles; blocks <= tiles && min * IDLE > of; blocks++) {
        int64_t each = dot_parts(tiles, blocks) * mr, tasks = dot_parts(d->size.m, each) * across;
        int64_t idle = (threads - tasks % threads) % threads;
        if (idle * of >= min * tasks)
            continue;
        min = idle;
        of = tasks;
        rows = each;
    }
    return rows;
}

/* Rows of a task.  Where all of B fits half of the second-level cache, a task is one row tile, and adjacent tasks share
 * its rows of A.  Otherwise, and for a batch of many products, a task is as many rows of A as fit that half, and all
 * of them share B.  A packed B is packed once for all rows if the tiles of columns are enough tasks and A is at most
 * twice the second-level cache: 1024x1024x1024 then takes 0.97 of the time and a convolution 3x3, 512->512, 7x7 takes
 * 0.98.  For 2048x2048x2048, whose A is larger, it would take 1.03.  nr: columns of a tile; 0: B is not packed so. */
static int64_t task_rows(const struct tiling *t, int64_t mr, int64_t nr)
{
    enum { MANY_TASKS = 12, CACHES = 2 };
    const struct dot *d = t->d;
    int64_t half = t->caps->l2_bytes / 2, row = row_bytes(d), fit = half / row;
    if (t->packs && nr && !d->symbolic && d->size.m * row <= CACHES * t->caps->l2_bytes &&
        dot_parts(d->size.n, nr) * d->size.batch >= enough_tasks(t->caps, MANY_TASKS))
        fit = d->size.m;
    if (!t->packs && d->size.k * d->size.n <= half / d->element &&
        d->size.batch < enough_tasks(t->caps, MANY_PRODUCTS))
        fit = mr;
    if (nr && !t->caps->is_gpu)
        fit = shared_rows(t, fit, mr, nr);
    int64_t rows = d->size.m <= fit ? d->size.m : even_rows(d->size.m, fit > mr ? fit : mr);
    if (rows < d->size.m)
        rows = (rows + mr - 1) / mr * mr;
    if (rows < 1)
        rows = 1;
    rows = rows > MAX_TASK_ROWS ? MAX_TASK_ROWS / mr * mr : rows;
    return d->symbolic_m ? dot_parts(rows, mr) * mr : rows; /* a whole number of tiles */
}

static bool outgrows_cache(const struct tiling *t, int64_t elements)
{
    return elements > t->caps->l1_bytes / (int64_t)dtype_size(t->d->n->dtype);
}

/* Does it pay to copy columns in runs, so that tiles may cross the ends of runs?  Then all lanes have a column, but a
 * vector of a row is put together from several loads, whose cost all rows of A share.  It pays, too, where a run's
 * columns outgrow the first-level cache, as tiles of two vectors and more read them in order: a convolution 3x3 of 24
 * images of 104x104 takes 0.52 of the time, of 12 of 208x208 0.74. */
static bool packing_runs_pays(const struct tiling *t)
{
    enum { LOAD_COST = 3, ROW_COST = 5, /* in multiplications of a vector */ MANY_ROWS = 12 };
    const struct dot *d = t->d;
    int64_t steps = d->size.k < d->kblock ? d->size.k : d->kblock;
    int64_t lanes = tile_lanes(d, t->caps), loads = 2 + lanes / d->columns_run, cost = LOAD_COST * loads + ROW_COST;
    bool far = d->size.m >= MANY_ROWS && t->caps->vector_regs >= MANY_REGISTERS && outgrows_cache(t, steps * t->run);
    return t->run == d->size.n || far || idle_lanes(t->run, run_lanes(t)) * d->size.m > cost * t->run;
}

/* How B is copied, if it is copied.  Code that transposes is long, so caps.compact avoids it. */
static enum sched_pack pack_by(const struct tiling *t, bool computed)
{
    const struct dot *d = t->d;
    bool along_k = computed ? dot_along_k(d, true) || dot_pairs_along_k(d, true)
                            : d->b_step_k == 1 && !t->caps->compact;
    bool rows = computed ? !along_k : d->b_step_n == 1 || t->run < d->size.n;
    return rows ? PACK_ROWS : along_k ? PACK_SQUARES : PACK_ELEMENTS;
}

/* Are the row tiles alone enough tasks? */
static bool has_row_tasks(const struct tiling *t)
{
    enum { TILE = 16 };
    return dot_parts(t->d->size.m, TILE) * t->d->size.batch >= enough_tasks(t->caps, 1);
}

/* May the epilogue be computed after all tiles of a task's rows, or beside those of the next tile? */
static bool may_sweep(const struct dot *d, const struct schedule *s)
{
    return !s->dot.pack_b && !s->dot.run && dot_sweeps(d->w->g, d->w->anchor);
}

/* Iterations of the loop over the last k-block. */
static int64_t last_visits(const struct dot *d) { return (d->size.k - (d->blocks - 1) * d->kblock) / UNROLL_K; }

/* Chooses when the epilogue is computed.  A long epilogue is computed during the products of the next tile, where a
 * task can compute all columns of its rows.  That needs registers beside a tile of one vector of columns, enough rows
 * to share that vector, an iteration of the loop over k for each row, and row tiles for all threads.  In this way the
 * gradient of a layer's weights, 784x512 from 128 rows, takes 1.10 times as long with Adam as alone; with Adam after
 * all columns it takes 1.15 times as long. */
static void choose_epilogue(struct tiling *t, bool computed, struct schedule *s)
{
    enum { MIN_ROWS = 12 };
    const struct dot *d = t->d;
    t->when = d->w->nmember <= MAX_INLINE || (computed && !t->packs) ? EPILOGUE_IN_TILE
              : may_sweep(d, s) && has_row_tasks(t) ? EPILOGUE_DURING_NEXT : EPILOGUE_AFTER_TILE;
    if (t->when == EPILOGUE_DURING_NEXT) {
        uint16_t mr, nr;
        choose_tile(t, &mr, &nr);
        if (t->caps->is_gpu || t->caps->vector_regs < MANY_REGISTERS || is_widened(d) || mr < MIN_ROWS ||
            last_visits(d) < mr)
            t->when = EPILOGUE_AFTER_ROWS;
    }
}

static bool fetches_a(const struct dot *d)
{
    return d->a_step_m == 1 || (d->a_step_k == 1 && LINE_BYTES / d->element / UNROLL_K);
}

/* The elements of all matrices of a batch, or of one if they are so small that the processor itself reads on from one
 * to the next.  Prefetching them, batches of 4x4x4 take 1.2 of the time, of 8x8x8 1.07, of 16x16x16 1.04, but of
 * 64x64x64 from memory 0.95. */
static int64_t elements_of_batch(const struct dot *d, int64_t elements)
{
    enum { SMALL = 256 };
    return elements > SMALL ? d->size.batch * elements : elements;
}

/* Operands larger than the first-level cache are prefetched.  A is prefetched only where few columns share it, or where
 * the rows of a task do not fit the second-level cache. */
static void choose_prefetch(const struct tiling *t, struct schedule *s)
{
    enum { FEW_TILES = 2 };
    const struct dot *d = t->d;
    bool whole = !s->dot.run;
    bool few = dot_parts(d->size.n, s->dot.nr) <= FEW_TILES &&
               outgrows_cache(t, elements_of_batch(d, d->size.m * d->size.k));
    bool far = t->packs && !d->symbolic && s->dot.rows * row_bytes(d) > t->caps->l2_bytes / 4 * 3;
    s->dot.prefetch_a = !t->caps->is_gpu && fetches_a(d) && (few || far);
    s->dot.prefetch_b = whole && outgrows_cache(t, d->size.k * d->size.n);
    int64_t results = d->size.m * d->size.n;
    s->dot.prefetch_out = whole && outgrows_cache(t, t->caps->is_gpu ? results : elements_of_batch(d, results));
}

int64_t dot_task_columns(const struct dot *d, const struct schedule *s)
{
    if (s->kind == SCHED_DOT && s->dot.epilogue >= EPILOGUE_AFTER_ROWS)
        return 1;
    return s->kind == SCHED_DOT && s->dot.run ? d->size.n / s->dot.run : dot_parts(d->size.n, s->dot.nr);
}

static int64_t dot_grain(const struct dot *d, const struct schedule *s)
{
    bool all = s->dot.run || s->dot.epilogue >= EPILOGUE_AFTER_ROWS;
    int64_t columns = all ? s->dot.run ? s->dot.run : d->size.n : s->dot.nr;
    return lower_grain(d->size.batch * dot_parts(d->size.m, s->dot.rows) * dot_task_columns(d, s),
                       2 * s->dot.rows * columns * d->size.k / 16);
}

/* Of a contraction of symbolic length only runs of a known length are packed.  The epilogue is computed where it does
 * not need the number of rows, which is not known here. */
static void choose_symbolic(struct tiling *t, bool computed, struct schedule *s)
{
    if (t->d->symbolic_k && t->packs && s->dot.pack_by != PACK_STEP_RUNS) {
        t->packs = false;
        s->dot.pack_b = false;
        t->when = computed ? EPILOGUE_IN_TILE : t->when;
    }
    if ((t->d->symbolic_m || t->d->symbolic_n) && t->when >= EPILOGUE_AFTER_ROWS)
        t->when = EPILOGUE_AFTER_TILE;
}

/* Chooses everything that the caller has not given. */
static void choose_all(const struct dot *d, const struct caps *caps, bool computed, struct schedule *s)
{
    struct tiling t = {.d = d, .caps = caps, .run = d->size.n, .when = EPILOGUE_IN_TILE};
    int64_t run = d->whole_run;
    if (run && run >= vector_lanes(d, caps) / 2 && run <= UINT32_MAX)
        t.run = run;
    /* Products on a GPU without blocks of threads have few columns: copying these costs barriers and saves nothing. */
    bool gpu = caps->is_gpu, vector = d->b_step_n == 1 || t.run < d->size.n || d->panels;
    t.packs = !gpu && ((d->b_step_n != 0 && !vector) || packing_pays(&t));
    s->dot.pack_by = (uint8_t)pack_by(&t, computed);
    if (!gpu && d->columns_run && packing_runs_pays(&t)) {
        t.run = d->size.n;
        t.packs = true;
        s->dot.pack_by = PACK_COLUMN_RUNS;
    } else if (!gpu && d->steps_run && !caps->compact && t.run == d->size.n && d->unit == 1) {
        t.packs = true;
        s->dot.pack_by = PACK_STEP_RUNS;
    }
    choose_tile(&t, &s->dot.mr, &s->dot.nr);
    /* each element is computed once, for all rows of the task */
    t.packs |= computed && !gpu && (s->dot.pack_by == PACK_SQUARES || d->size.m > s->dot.mr);
    s->dot.pack_b = t.packs;
    s->dot.run = t.run < d->size.n ? (uint32_t)t.run : 0;
    choose_epilogue(&t, computed, s);
    choose_symbolic(&t, computed, s);
    s->dot.epilogue = (uint8_t)t.when;
    choose_tile(&t, &s->dot.mr, &s->dot.nr);
    s->dot.nr = narrow_columns(&t, s->dot.nr);
    s->dot.rows = t.when >= EPILOGUE_AFTER_ROWS ? s->dot.mr : (uint32_t)task_rows(&t, s->dot.mr, s->dot.nr);
    if (!t.packs)
        s->dot.pack_by = PACK_NONE;
    s->dot.wide = d->unit > 1 && !gpu;
    choose_prefetch(&t, s);
}

/* ---- user-supplied records ---- */

/* What products by tiles and of bytes have in common. */
bool dot_tile_legal(const struct dot *d, const struct schedule *s)
{
    const struct lowering *w = d->w;
    unsigned mr = s->dot.mr, nr = s->dot.nr;
    if (mr < 1 || mr > MAX_ROWS || nr < 1 || nr > 64 || (nr & (nr - 1)))
        return reject_schedule(w, "tile", "a tile has 1 to %d rows and 1, 2, 4 .. 64 columns, not %ux%u", MAX_ROWS, mr,
                               nr);
    if (s->width && s->width != nr)
        return reject_schedule(w, "width", "width %u: that of a product is the %u columns of its tile", s->width, nr);
    return dot_kblock_legal(d, s);
}

bool dot_kblock_legal(const struct dot *d, const struct schedule *s)
{
    return s->dot.kc == (uint32_t)d->kblock ||
           reject_schedule(d->w, "kblock", "kblock %u: it is %u, the order of the graph's sums", s->dot.kc,
                       (uint32_t)d->kblock);
}

static bool task_rows_legal(const struct dot *d, const struct schedule *s, uint32_t rows)
{
    return rows == (d->size.m ? d->size.m : 1) || ((rows < d->size.m || d->symbolic_m) && rows % s->dot.mr == 0) ||
           reject_schedule(d->w, "rows", "rows %u: a task has a whole number of tiles, of %u rows, or all rows", rows,
                       s->dot.mr);
}

static bool pack_legal(const struct dot *d, const struct schedule *s)
{
    unsigned by = s->dot.pack_by;
    if (s->dot.run && s->dot.run != d->whole_run)
        return reject_schedule(d->w, "run", "run %u: the columns are no vector in such runs", s->dot.run);
    if (!s->dot.pack_b && by)
        return reject_schedule(d->w, "pack_by", "pack_by: only with pack_b");
    if ((by == PACK_COLUMN_RUNS && (!d->columns_run || s->dot.run)) ||
        (by == PACK_STEP_RUNS && (!d->steps_run || s->dot.run || d->unit > 1)))
        return reject_schedule(d->w, "pack_by", "pack_by: the second operand has no such runs");
    return s->dot.square <= s->dot.nr ||
           reject_schedule(d->w, "square", "square %u: the tile has %u columns", s->dot.square, s->dot.nr);
}

static bool epilogue_legal(const struct dot *d, bool computed, const struct schedule *s)
{
    unsigned when = s->dot.epilogue;
    if (when > EPILOGUE_IN_TILE && computed && !s->dot.pack_b)
        return reject_schedule(d->w, "epilogue", "epilogue: in_tile, where the second operand is computed in place");
    if (when >= EPILOGUE_AFTER_ROWS && !may_sweep(d, s))
        return reject_schedule(d->w, "epilogue", "epilogue: a task cannot iterate over all columns of its rows");
    if (when == EPILOGUE_DURING_NEXT && last_visits(d) < s->dot.mr)
        return reject_schedule(d->w, "epilogue", "epilogue: the next tile's products are too few for %u rows",
                               s->dot.mr);
    return when < EPILOGUE_AFTER_ROWS || s->dot.rows == s->dot.mr ||
           reject_schedule(d->w, "rows", "rows %u: those of the tile, %u, with this epilogue", s->dot.rows, s->dot.mr);
}

static bool prefetch_legal(const struct dot *d, const struct schedule *s)
{
    if (s->dot.wide && (d->unit == 1 || d->w->chooser->caps->is_gpu))
        return reject_schedule(d->w, "wide", "wide: of products in bf16 dot2 order, on a processor");
    if (s->dot.prefetch_a && !fetches_a(d))
        return reject_schedule(d->w, "prefetch_a", "prefetch_a: the operand has no vector in memory");
    if (s->dot.run && (s->dot.prefetch_b || s->dot.prefetch_out))
        return reject_schedule(d->w, s->dot.prefetch_b ? "prefetch_b" : "prefetch_out",
                           "prefetch_b, prefetch_out: not of tiles within runs");
    return true;
}

/* Lanes of a vector, by which the last columns are narrowed; on a GPU they are not. */
static uint16_t narrowed_lanes(const struct dot *d, const struct caps *caps, unsigned nr)
{
    int64_t lanes = vector_lanes(d, caps);
    return (uint16_t)(caps->is_gpu || lanes > nr ? nr : lanes);
}

/* Fills what a record leaves open. */
static void complete_schedule(const struct dot *d, const struct caps *caps, bool computed, struct schedule *s)
{
    struct tiling t = {.d = d, .caps = caps, .run = s->dot.run ? s->dot.run : d->size.n, .packs = s->dot.pack_b,
                       .when = (enum sched_epilogue)s->dot.epilogue};
    if (!s->width)
        s->width = s->dot.nr;
    if (!s->dot.square)
        s->dot.square = (uint16_t)(caps->vector_bytes / 4 < s->dot.nr ? caps->vector_bytes / 4 : s->dot.nr);
    if (!s->dot.lanes)
        s->dot.lanes = narrowed_lanes(d, caps, s->dot.nr);
    if (s->dot.pack_b && !s->dot.pack_by)
        s->dot.pack_by = (uint8_t)pack_by(&t, computed);
    if (!s->dot.epilogue) {
        choose_epilogue(&t, computed, s);
        if (t.when == EPILOGUE_DURING_NEXT && last_visits(d) < s->dot.mr)
            t.when = EPILOGUE_AFTER_ROWS;
        s->dot.epilogue = (uint8_t)t.when;
    }
    if (!s->dot.rows)
        s->dot.rows = t.when >= EPILOGUE_AFTER_ROWS ? s->dot.mr : (uint32_t)task_rows(&t, s->dot.mr, s->dot.nr);
}

/* Is the second operand computed in this kernel? */
static bool has_computed_operand(const struct dot *d)
{
    bool linear;
    return lower_is_member(d->w, node_operand(d->w->g, d->w->anchor, 1, &linear));
}

bool dot_fits(struct dot *d)
{
    dot_find_steps(d);
    return true;
}

bool dot_choose(struct dot *d, struct schedule *s)
{
    const struct chooser *c = d->w->chooser;
    bool computed = has_computed_operand(d);
    if (!c->want) {
        s->dot.kc = (uint32_t)d->kblock;
        choose_all(d, c->caps, computed, s);
    }
    if (!dot_tile_legal(d, s))
        return false;
    complete_schedule(d, c->caps, computed, s);
    if (!c->want)
        s->grain = dot_grain(d, s);
    return true;
}

bool dot_legal(const struct dot *d, const struct schedule *s)
{
    return task_rows_legal(d, s, s->dot.rows) && pack_legal(d, s) && epilogue_legal(d, has_computed_operand(d), s) &&
           prefetch_legal(d, s);
}

/* ---- products of bytes ---- */

enum { MAX_PANEL = 128 << 10 };
enum { FEW_BYTE_ROWS = 4 }; /* whose sums leave registers for a square of the matrix, or for a line of its columns */

/* Are the second operand's columns in runs, which are copied to be read? */
static bool has_byte_runs(const struct dot *d) { return d->b_step_n == -1 && d->columns_run; }

bool dot_bytes_fits(struct dot *d)
{
    dot_find_steps(d);
    bool rows = (d->b_step_n == 1 && d->b_step_k >= 0) || has_byte_runs(d);
    bool columns = d->b_step_k == 1 && d->b_step_n >= 0;
    return d->n->attr.dot.sum && d->w->chooser->caps->mma_bytes == DOT_GROUP && d->size.batch > 0 && d->size.m > 0 &&
           d->size.n > 0 && d->size.k >= DOT_GROUP && d->size.k <= UINT32_MAX && d->a_step_k == 1 &&
           d->a_step_m >= 0 && d->run_m == d->size.m && (rows || columns);
}

/* Are rows, and columns in runs, all that symbols say the number of?  Then a panel has the whole contraction. */
static bool byte_symbols_fit(const struct dot *d)
{
    enum { WIDEST = 64 }; /* columns of a tile */
    return !d->symbolic ||
           (!d->symbolic_k && d->size.k <= MAX_PANEL / WIDEST && (!d->symbolic_n || has_byte_runs(d)));
}

bool dot_bytes_choose(struct dot *d, struct schedule *s)
{
    const struct caps *caps = d->w->chooser->caps;
    bool open = !d->w->chooser->want;
    if (!byte_symbols_fit(d))
        return !open && reject_schedule(d->w, "panel", "a symbol says how long the contraction is, or how many columns "
                                        "there are, which are not in runs; or the contraction is long");
    struct tiling t = {.d = d, .caps = caps, .run = d->size.n, .packs = true, .when = EPILOGUE_IN_TILE};
    if (open) {
        s->dot_bytes.kc = (uint32_t)d->kblock;
        choose_tile(&t, &s->dot_bytes.mr, &s->dot_bytes.nr);
        bool runs = has_byte_runs(d), few = d->size.m <= FEW_BYTE_ROWS && !runs && !d->symbolic_m;
        if (few) {
            s->dot_bytes.mr = (uint16_t)d->size.m;
            s->dot_bytes.nr = (uint16_t)(d->b_step_n != 1 ? caps->vector_bytes / 4
                                         : d->size.n >= LINE_BYTES ? LINE_BYTES : s->dot_bytes.nr);
        }
        s->dot_bytes.pack_b = runs || (!few && (d->b_step_n != 1 || d->size.m > s->dot_bytes.mr || d->symbolic_m));
        s->dot_bytes.prefetch_b = few && d->size.k * d->size.n > caps->l1_bytes;
    }
    if (!dot_tile_legal(d, s))
        return false;
    if (!s->width)
        s->width = s->dot_bytes.nr;
    if (!s->dot_bytes.rows)
        s->dot_bytes.rows = (uint32_t)task_rows(&t, s->dot_bytes.mr, 0);
    if (!s->dot_bytes.lanes)
        s->dot_bytes.lanes = (uint16_t)(caps->vector_bytes / 4);
    if (!s->dot_bytes.panel) {
        int64_t max = MAX_PANEL / s->dot_bytes.nr / DOT_GROUP * DOT_GROUP, k = d->size.k;
        int64_t panels = s->dot_bytes.pack_b && !d->symbolic ? dot_parts(k, max) : 1;
        s->dot_bytes.panel = (uint32_t)(panels > 1 ? dot_parts(dot_parts(k, panels), DOT_GROUP) * DOT_GROUP : k);
    }
    if (open)
        s->grain = lower_grain(d->size.batch * dot_parts(d->size.m, s->dot_bytes.rows) * dot_task_columns(d, s),
                               2 * (int64_t)s->dot_bytes.rows * s->dot_bytes.nr * d->size.k / 64);
    return true;
}

bool dot_bytes_legal(const struct dot *d, const struct schedule *s)
{
    int64_t panel = s->dot_bytes.panel;
    if (!task_rows_legal(d, s, s->dot_bytes.rows))
        return false;
    if (d->symbolic && panel < d->size.k)
        return reject_schedule(d->w, "panel", "panel %u: all of the contraction, as a length is symbolic",
                               s->dot_bytes.panel);
    if (has_byte_runs(d) && !s->dot_bytes.pack_b)
        return reject_schedule(d->w, "pack_b", "pack_b: columns in runs are packed");
    if (panel != d->size.k && (!s->dot_bytes.pack_b || panel > d->size.k || panel % DOT_GROUP))
        return reject_schedule(d->w, "panel", "panel %u: all of the contraction, or with pack_b a multiple of %d below",
                               s->dot_bytes.panel, DOT_GROUP);
    return !s->dot_bytes.prefetch_b || !s->dot_bytes.pack_b ||
           reject_schedule(d->w, "prefetch_b", "prefetch_b: only without pack_b");
}

/* ---- a few rows with a matrix that is read once ---- */

enum { STRIP_BYTES = 4096, SUMS_BYTES = 16384, SMALL_BYTES = 4 << 20 };

/* Bytes of a matrix from which on this pays.  Tiles read strips from a near cache as well, and where there are many
 * rows the sums of a strip cost more than the matrix, until that comes from memory. */
static int64_t min_bytes(const struct dot *d, const struct caps *c, const struct skinny_order *o)
{
    enum { FEW = 4 };
    return o->along_k ? c->l1_bytes : d->size.m <= FEW ? c->l2_bytes / 4 : 8 * c->l2_bytes;
}

/* May the product be one of these?  Sets d->order. */
bool dot_skinny_fits(struct dot *d)
{
    const struct dot_dims *z = &d->size;
    dot_find_steps(d);
    return !d->w->chooser->caps->is_gpu && !d->even_odd && z->m >= 1 && z->m <= THIN_ROWS && z->n >= 1 && z->k >= 1 &&
           z->batch >= 1 && dot_skinny_order(d, &d->order) && (d->order.along_k || z->m <= THIN_STRIP_ROWS);
}

/* Is it faster than tiles? */
static bool prefers_skinny(const struct dot *d)
{
    const struct caps *caps = d->w->chooser->caps;
    const struct skinny_order *o = &d->order;
    int64_t lanes = vector_lanes(d, caps);
    if (d->size.m > THIN_STRIP_ROWS && caps->vector_bytes < LINE_BYTES)
        return false; /* AVX-512 has a register for a sum of each row, and as many beside them */
    return !d->symbolic && !caps->compact && /* many streams make a long kernel */ d->size.n >= 2 * lanes &&
           d->size.k >= 2 * lanes && d->size.n * d->size.k * o->element / o->packed > min_bytes(d, caps, o);
}

enum { MAX_PAIR_ROWS = 2 }; /* whose sums of twice the columns registers hold */

/* How many elements may be loaded at once, if not one element of the source: squares of small ones then take as many
 * exchanges as squares of floats.  In strips bf16 may be, whose halves of a u32 are floats after one instruction each,
 * and the elements of a byte are. */
static int64_t loads_each(const struct dot *d, const struct skinny_order *o)
{
    unsigned dtype = o->source ? d->w->g->node[o->source].dtype : KL_BOOL;
    bool linear, plain = node_operand(d->w->g, d->w->anchor, 1, &linear) == o->source;
    if (dtype == KL_BOOL || o->element >= 4)
        return 1;
    if (o->packed > 1)
        return o->along_k ? 4 * o->packed : o->packed;
    return o->along_k ? 4 / o->element : plain && dtype == KL_BF16 ? 2 : 1;
}

/* Columns of a strip: of each row of the matrix a page at least, no more than the sums have room for, but two strips
 * where that can be, for two threads.  Not of large matrices of bytes, nor of short rows of halves: 4096 rows of 4096
 * bytes in two strips take 1.35 times as long on one thread, 768 bf16 1.04 and 1.15 times on two; 768 rows of 2304
 * bytes take half as long on two threads. */
static int64_t strip_columns(const struct dot *d, const struct skinny_order *o, int64_t nr)
{
    int64_t min = STRIP_BYTES / o->element * o->packed, max = SUMS_BYTES / (int64_t)dtype_size(d->dtype) / d->size.m;
    int64_t strips = d->size.n / min;
    bool shared = d->size.n * d->size.k <= SMALL_BYTES && d->w->chooser->caps->threads > 1;
    bool whole = o->element == 1 ? o->packed == 1 && !shared
                                 : o->element == 2 && d->size.n * o->element < STRIP_BYTES / 2;
    strips = strips >= 2 ? strips : whole ? 1 : 2;
    if (strips < dot_parts(d->size.n, max))
        strips = dot_parts(d->size.n, max);
    return dot_parts(dot_parts(d->size.n, strips), nr) * nr;
}

/* Cache lines of a row of the matrix at once; two of bf16 have four chains: one row of 4096x4096 takes 0.91. */
static int64_t strip_lines(const struct dot *d, const struct skinny_order *o)
{
    bool two = !o->along_k && o->element == 2 && d->unit == 1 && d->size.m <= MAX_PAIR_ROWS && loads_each(d, o) == 2;
    return two ? 2 : 1;
}

bool dot_skinny_legal(const struct dot *d, const struct schedule *s)
{
    const struct lowering *w = d->w;
    const struct skinny_order *o = &d->order;
    unsigned nr = s->dot_skinny.nr, each = s->dot_skinny.each, step = s->dot_skinny.step;
    bool several = each == loads_each(d, o) && nr > 1 && (o->along_k || nr >= each);
    if (!several && (each != o->packed || (!o->along_k && nr < each)))
        return reject_schedule(w, "each", "each %u: %u or %u of these elements are loaded at once", each,
                           (unsigned)o->packed, (unsigned)loads_each(d, o));
    if (o->along_k ? step != nr * each : step > THIN_STREAMS)
        return reject_schedule(w, "step", o->along_k ? "step %u: the tile's columns times `each`, %u"
                                                 : "step %u: there are at most %u streams", step,
                           o->along_k ? nr * each : (unsigned)THIN_STREAMS);
    if (step % d->unit)
        return reject_schedule(w, "step", "step %u: two elements of the contraction are multiplied at once", step);
    if (o->along_k ? s->dot_skinny.strip != nr : s->dot_skinny.strip % nr != 0)
        return reject_schedule(w, "strip", "strip %u: %s the tile's columns, %u", s->dot_skinny.strip,
                           o->along_k ? "it is" : "a multiple of", nr);
    if (o->along_k && s->dot_skinny.ahead)
        return reject_schedule(w, "ahead", "ahead: only of columns that are vector");
    return !s->dot_skinny.widen || (o->along_k && is_widened(d)) ||
           reject_schedule(w, "widen", "widen: the first operand is not widened");
}

bool dot_skinny_choose(struct dot *d, struct schedule *s)
{
    const struct caps *caps = d->w->chooser->caps;
    const struct skinny_order *o = &d->order;
    bool open = !d->w->chooser->want;
    if (open && !prefers_skinny(d))
        return false;
    if (open) {
        s->dot_skinny.kc = (uint32_t)d->kblock;
        s->dot_skinny.mr = (uint16_t)d->size.m;
        s->dot_skinny.nr = (uint16_t)(o->along_k ? vector_lanes(d, caps) : strip_lines(d, o) * LINE_BYTES / o->element);
        s->dot_skinny.widen = o->along_k && is_widened(d) && d->a_step_k == 1;
    }
    if (!dot_tile_legal(d, s))
        return false;
    if (s->dot_skinny.mr != d->size.m)
        return reject_schedule(d->w, "tile", "tile: it has all rows, %d", (int)d->size.m);
    if (!s->width)
        s->width = s->dot_skinny.nr;
    if (!s->dot_skinny.each)
        s->dot_skinny.each = (uint16_t)(s->dot_skinny.nr > 1 && (o->along_k || d->size.m <= MAX_PAIR_ROWS)
                                          ? loads_each(d, o) : o->packed);
    if (!s->dot_skinny.step)
        s->dot_skinny.step = (uint16_t)(o->along_k ? s->dot_skinny.nr * s->dot_skinny.each
                                                   : THIN_STREAMS / strip_lines(d, o));
    if (!s->dot_skinny.strip)
        s->dot_skinny.strip = o->along_k ? s->dot_skinny.nr : (uint32_t)strip_columns(d, o, s->dot_skinny.nr);
    if (!s->dot_skinny.ahead && !o->along_k) /* of small elements less of each row is in a strip */
        s->dot_skinny.ahead = (uint16_t)(s->dot_skinny.step * (o->element < 4 ? 2 : 1));
    if (open)
        s->grain = lower_grain(d->size.batch * dot_parts(d->size.n, s->dot_skinny.strip),
                               2 * d->size.m * s->dot_skinny.strip * d->size.k / 16);
    return true;
}
