/* The schedules of elementwise groups, rows, reductions, scatters, scans and sorts, and what all choosing shares.
 *
 * On GPUs adjacent threads have adjacent elements of the innermost dimension, so that the accesses of a warp are
 * coalesced; vectorization (`vector`) gives a thread several adjacent elements, which it accesses at once.  Coalescing
 * of operands that are contiguous along another dimension is chosen in gpu/lower_gpu_transpose.c. */
#include "lower_schedule.h"
#include "passes/lower/gpu/lower_gpu.h"
#include <stdarg.h>

/* ---- what all families share ---- */

bool chooser_find(struct chooser *c, const struct target_set *targets, unsigned device)
{
    c->target = 0;
    while (c->target + 1 < targets->n && targets->v[c->target].devices &&
           !(targets->v[c->target].devices >> device & 1))
        c->target++;
    c->caps = targets->v[c->target].caps;
    return c->caps->is_gpu;
}

struct hash128 chooser_hash(const struct chooser *c) { return bytes_hash(c->caps, sizeof *c->caps); }

bool reject_schedule(const struct lowering *w, const char *field, const char *fmt, ...)
{
    struct err *e = &w->k->err;
    if (e->code)
        return false;
    va_list ap;
    va_start(ap, fmt);
    err_set_v(e, KL_ERR_ARGUMENT, fmt, ap);
    e->field = field;
    va_end(ap);
    return false;
}

bool schedule_width_is(const struct lowering *w, const struct schedule *s, unsigned own)
{
    return s->width == own ||
           reject_schedule(w, "width", "width %u: it is %u here, the order of the graph's sums", s->width, own);
}

/* Elements of the largest member, computed in microseconds by whatever code.  With one register's width, and without
 * LLVM's loop strength reduction, 300 random graphs took 8.5 s of processor time instead of 10.7. */
enum { FEW_ELEMENTS = 1 << 13 };

struct loop_facts lower_loop(const struct lowering *w, int64_t length)
{
    int64_t max = 0;
    for (uint32_t m = 0; m < w->nmember; m++)
        max = node_numel(w->g, w->member[m]) > max ? node_numel(w->g, w->member[m]) : max;
    return (struct loop_facts){length, w->nmember, !w->anchor && max <= FEW_ELEMENTS};
}

uint32_t lower_native(const struct caps *caps) { return caps->is_gpu ? 64 : caps->vector_bytes / 4; }

uint32_t lower_width(const struct caps *caps, const struct loop_facts *f)
{
    uint32_t native = lower_native(caps), width = 4 * native;
    if (f->few) /* what counts is how soon it is compiled: LLVM's time goes with the width */
        width = native;
    else if (f->ops > 8) /* several results in flight hide latency already; more would spill */
        width = 2 * native;
    if (width > 64)
        width = 64;
    while (width > 1 && width / 2 >= f->length)
        width /= 2;
    while (width > native && width > f->length) /* a whole register and a tail rather than mostly empty lanes */
        width /= 2;
    return width;
}

enum { TASK_WORK = 1 << 15 }; /* elements of work that pay for starting a task on a thread */

int64_t lower_grain(int64_t extent, int64_t work)
{
    int64_t per = work > 0 ? work : 1;
    bool small = extent < 2 || per <= (2 * TASK_WORK - 1) / extent; /* a product could overflow */
    return small ? 0 : per >= TASK_WORK ? 1 : (TASK_WORK + per - 1) / per;
}

/* Are results stored non-temporally?  Where the kernel's arrays fill the last cache, what it has stored first is gone
 * when it ends, and writing it there costs reading it, too.  But a state's next value goes where the old one was just
 * read. */
static bool results_are_streamed(const struct lowering *w, int64_t bytes)
{
    return bytes >= w->chooser->caps->l3_bytes && !w->assigned && !w->placeholders;
}

/* ---- elementwise groups ---- */

enum { BLOCK_VECTORS = 16, PART_VECTORS = 64 };

enum { SHORT_DIMENSION = 256, BLOCKS_A_PROCESSOR = 8 };

bool map_joins(const struct map_part *p, const struct schedule *s)
{
    return s->map.join_short && !p->flat && p->loop.length < SHORT_DIMENSION;
}

/* The part as it is walked. */
static struct map_part walked_part(const struct map_part *p, const struct schedule *s)
{
    struct map_part own = *p;
    if (map_joins(p, s)) {
        own.loop.length *= own.outer;
        own.outer = 1;
        own.flat = true;
    }
    return own;
}

int64_t map_vector_width(const struct schedule *s) { return s->map.vector ? s->map.vector : 1; }

int64_t map_block(const struct map_part *p, const struct schedule *s)
{
    if (!s->map.tasks)
        return s->map.vectors;
    int64_t block = p->loop.length * p->outer / (s->width * map_vector_width(s)) / s->map.tasks;
    return block < 1 ? 1 : block > s->map.vectors ? s->map.vectors : block;
}

int64_t map_blocks(const struct map_part *p, const struct schedule *s)
{
    struct map_part own = walked_part(p, s);
    int64_t step = map_block(&own, s) * map_vector_width(s) * s->width;
    return own.outer * (own.flat || s->map.tasks ? (own.loop.length + step - 1) / step : 1);
}

int64_t map_iterations(const struct map_part *p, const struct schedule *s)
{
    return (map_blocks(p, s) + p->run - 1) / p->run;
}

/* Lanes for a part.  Two vectors hide each other's latency, where there is much work on one the processor finds more in
 * the next iterations.  Unless each primitive waits for the last in a long chain, which fills what the processor looks
 * ahead: then two or four vectors that are computed side by side take less time, though LLVM takes longer to compile
 * them.  Four only where all their values have registers. */
static uint32_t part_width(const struct caps *caps, const struct map_part *p)
{
    /* Primitives an element, of all (WORK) or of the longest chain (CHAIN).  WORK_OF_TWO was measured with bench
     * compile_kernel: with 4 vectors of an exp, or 2 of a chain of tanh, code takes within 6 % the time of 2 and 1, and
     * compiling takes 3.1 instead of 2.6 ms and 6.5 instead of 2.9 ms.  Of the others no measurement is recorded. */
    enum { WORK_OF_TWO = 48, CHAIN_OF_TWO = 40, CHAIN_OF_FOUR = 50, WORK_OF_FOUR = 128 };
    uint32_t width = lower_width(caps, &p->loop), native = lower_native(caps), max = native;
    if (p->work <= WORK_OF_TWO || p->depth > CHAIN_OF_TWO)
        max = 2 * native;
    if (p->depth > CHAIN_OF_FOUR && p->work <= WORK_OF_FOUR && p->wide < p->work / 4)
        max = 4 * native;
    return width > max ? max : width;
}

static uint32_t map_width(const struct caps *caps, const struct map_facts *f, const struct schedule *s)
{
    uint32_t width = 0, native = lower_native(caps); /* what LLVM takes to compile goes with width and parts */
    for (uint32_t i = 0; i < f->parts; i++) {
        struct map_part p = walked_part(&f->part[i], s);
        uint32_t own = part_width(caps, &p);
        width = own > width ? own : width;
    }
    return f->parts > 1 && width > native ? native : width;
}

/* Vector width of each lane of a GPU: as many as one access has, of 16 bytes of the largest elements, unless that
 * leaves
 * lanes or processors without work, or takes too many registers. */
static uint16_t gpu_vector_width(const struct caps *caps, const struct map_facts *f, const struct schedule *s)
{
    /* MAX_WORK: primitives of a lane, all its elements together.  MIN_LANES: lanes that a row has, and the device twice
     * for each of its processors.  No measurement is recorded. */
    enum { MAX_WORK = 640, MIN_LANES = 64 };
    int64_t min = 0;
    for (uint32_t i = 0; i < f->parts; i++) {
        struct map_part p = walked_part(&f->part[i], s);
        int64_t n = p.loop.length, all = n * p.outer, each = p.access;
        while (each > 1 && (p.work * each > MAX_WORK || (!p.flat && n % each) || n < each * MIN_LANES ||
                            all < each * MIN_LANES * 2 * (int64_t)caps->threads))
            each /= 2;
        min = !min || each < min ? each : min;
    }
    return min > 1 ? (uint16_t)min : 0;
}

static int64_t map_grain(const struct map_facts *f, const struct schedule *s)
{
    int64_t extent = 0, work = 1;
    for (uint32_t i = 0; i < f->parts; i++) {
        struct map_part p = walked_part(&f->part[i], s);
        int64_t own = p.flat ? map_block(&p, s) * map_vector_width(s) * s->width : p.loop.length;
        own *= f->part[i].run;
        extent += map_iterations(&f->part[i], s);
        work = own > work ? own : work;
    }
    return lower_grain(extent, work);
}

/* Has no part an element?  All such kernels do the same, nothing: they have the same record. */
static bool map_is_empty(const struct map_facts *f)
{
    for (uint32_t i = 0; i < f->parts; i++)
        if (f->part[i].loop.length && f->part[i].outer)
            return false;
    return true;
}

bool map_can_transpose(const struct lowering *w, uint32_t parts)
{
    const struct schedule *want = w->chooser->want;
    return w->chooser->caps->is_gpu && parts == 1 && (!want || want->kind == SCHED_GPU_TRANSPOSE);
}

static bool can_transpose_wide(const struct map_facts *f)
{
    const struct caps *caps = f->w->chooser->caps;
    return f->transposed_wide && caps->block_threads >= GPU_TRANSPOSE_WIDE &&
           f->transposed_shared <= (int64_t)caps->shared_bytes;
}

bool gpu_transpose_fits(struct map_facts *f) { return f->transposed; }

bool gpu_transpose_choose(struct map_facts *f, struct schedule *s)
{
    if (!s->width)
        s->width = can_transpose_wide(f) ? GPU_TRANSPOSE_WIDE : GPU_TRANSPOSE_SIDE;
    if (!f->w->chooser->want) {
        s->stream = results_are_streamed(f->w, f->bytes);
        s->grain = lower_grain(f->transposed, GPU_TRANSPOSE_SIDE * GPU_TRANSPOSE_SIDE);
    }
    return true;
}

bool gpu_transpose_legal(const struct map_facts *f, const struct schedule *s)
{
    return s->width == GPU_TRANSPOSE_SIDE || (s->width == GPU_TRANSPOSE_WIDE && can_transpose_wide(f)) ||
           reject_schedule(f->w, "width", "width %u: it is %u, the side of a tile, or %u where both lengths are"
                           " multiples of an access and the tile fits shared memory", s->width,
                           (unsigned)GPU_TRANSPOSE_SIDE, (unsigned)GPU_TRANSPOSE_WIDE);
}

bool map_fits(struct map_facts *f)
{
    (void)f;
    return true;
}

bool map_choose(struct map_facts *f, struct schedule *s)
{
    const struct caps *caps = f->w->chooser->caps;
    bool open = !f->w->chooser->want, empty = map_is_empty(f);
    if (open && caps->is_gpu)
        s->map.join_short = true; /* lanes take more elements at once than such a dimension has */
    if (!s->width)
        s->width = (uint16_t)map_width(caps, f, s);
    if (!s->map.vectors)
        s->map.vectors = f->parts > 1 && !empty ? PART_VECTORS : BLOCK_VECTORS;
    if (open) {
        if (caps->is_gpu) {
            s->map.vector = gpu_vector_width(caps, f, s);
            s->map.tasks = BLOCKS_A_PROCESSOR * caps->threads;
        }
        s->stream = results_are_streamed(f->w, empty ? 0 : f->bytes);
        s->grain = map_grain(f, s);
    }
    return true;
}

bool map_legal(const struct map_facts *f, const struct schedule *s)
{
    return s->map.vector < 2 || (f->w->chooser->caps->is_gpu && s->map.tasks) ||
           reject_schedule(f->w, "vector", "vector: those of one access are for GPUs, with tasks");
}

/* ---- rows ---- */

/* Lanes of sums of 64 numeric lanes: fewer only where the rest would hold nothing but the identity. */
static uint16_t numeric_lanes(int64_t length)
{
    uint16_t width = 64;
    while (width > 1 && width / 2 >= length)
        width /= 2;
    return width;
}

/* Threads of a GPU's block for a row of so many elements, `each` adjacent elements in each access, `full` elements
 * being worth
 * a thread. */
static uint16_t gpu_row_width(const struct caps *caps, int64_t length, int64_t each, int64_t full)
{
    int64_t width = 64;
    while (width * full < length && 2 * width <= (int64_t)caps->block_threads && width < MAX_GPU_VECTOR)
        width *= 2;
    while (width > 1 && width / 2 * each >= length)
        width /= 2;
    return (uint16_t)width;
}

static int64_t gpu_row_vector_width(int64_t length, int64_t access)
{
    while (access > 1 && length < 32 * access)
        access /= 2;
    return access;
}

/* Elements of each thread of a row. */
static int64_t held_elements(const struct rows_facts *f, int64_t width, int64_t each)
{
    return (f->length + width * each - 1) / (width * each) * each;
}

/* A row whose threads have few elements each stays in a GPU's registers; others are walked. */
static void choose_gpu_rows(const struct caps *caps, const struct rows_facts *f, struct schedule *s)
{
    /* Elements: FULL, worth a thread; MAX_COUNT, that a thread may hold.  MAX_WORK: elements of a thread times members
     * of the group, each a value in a register and code that is written out.  No measurement is recorded. */
    enum { FULL = 32, MAX_COUNT = 64, MAX_WORK = 1 << 11 };
    int64_t each = gpu_row_vector_width(f->length, f->access);
    s->width = gpu_row_width(caps, f->length, each, FULL);
    int64_t held = held_elements(f, s->width, each);
    bool holds = held <= MAX_COUNT && held * (int64_t)f->members <= MAX_WORK;
    s->rows.held = holds ? (uint16_t)held : 0;
    s->rows.vector = holds ? (uint16_t)(each > 1 ? each : 0) : f->symbolic ? 0 : (uint16_t)each;
}

bool rows_fits(struct rows_facts *f) { return f->reduces; }

bool rows_choose(struct rows_facts *f, struct schedule *s)
{
    const struct lowering *w = f->w;
    bool open = !w->chooser->want;
    if (open && w->chooser->caps->is_gpu && f->length)
        choose_gpu_rows(w->chooser->caps, f, s);
    if (!s->width)
        s->width = numeric_lanes(f->length);
    if (open) {
        f->find(f, s);
        s->rows.keep = s->rows.vector && !s->rows.held ? 0 : f->keep;
        s->stream = results_are_streamed(w, f->bytes);
        s->grain = lower_grain(f->rows, f->length * (f->reduces + 1));
    }
    return true;
}

bool rows_legal(const struct rows_facts *f, const struct schedule *s)
{
    const struct lowering *w = f->w;
    const struct caps *caps = w->chooser->caps;
    int64_t each = s->rows.vector ? s->rows.vector : 1;
    if (s->rows.keep & ~f->may_keep)
        return reject_schedule(w, "keep", "keep: only of members that several walks over the row need");
    if (s->rows.vector && !s->rows.held && (!caps->is_gpu || f->symbolic || s->rows.keep))
        return reject_schedule(w, "vector", "vector: of rows that a GPU's threads hold in registers, or walk over "
                           "without keep");
    if (!caps->is_gpu)
        return !s->rows.held ? schedule_width_is(w, s, numeric_lanes(f->length))
            : reject_schedule(w, "held", "held: a GPU's threads hold rows in registers");
    if (s->width > caps->block_threads)
        return reject_schedule(w, "width", "width %u: a block of this target has fewer threads", s->width);
    return !s->rows.held || (s->rows.held == held_elements(f, s->width, each) && !s->rows.keep) ||
           reject_schedule(w, s->rows.keep ? "keep" : "held",
                           "held: %d elements of the row for each thread, and no keep",
                       (int)held_elements(f, s->width, each));
}

/* ---- reductions ---- */

enum { MIN_EPILOGUE_WORK = 4, MIN_BLOCKS = 16, MAX_BLOCK_VECTORS = 16 };
enum { MAX_LINES = 8, ROWS_AHEAD = 8, FAR_BYTES = 512, MANY_BYTES = 1 << 20 };
enum { MIN_ROW = 256, SMALL_ARRAY = 1 << 16 }; /* bytes: of a row worth a prefetch, of an array that stays cached */

int64_t reduce_inner(const struct reduce_facts *f, uint32_t axes)
{
    int64_t n = 1;
    for (uint32_t d = f->kept.rank - axes; d < f->kept.rank; d++)
        n *= f->kept.dim[d];
    return n;
}

/* The last kept axes that lanes lie in: those which all accesses step over as over one, windows for example being
 * contiguous only within a row of the image.  All of them where that would leave less than half a vector. */
static uint16_t reduce_axes(const struct caps *caps, const struct reduce_facts *f)
{
    return (uint16_t)(f->merged_length < (int64_t)caps->vector_bytes / f->compute / 2 ? f->max : f->merged);
}

/* Is the epilogue to be computed for blocks of rows?  As scalars it takes `work` instructions a row, beside one for
 * each vector of the row's elements; where that is a small part of the time, a block would only make tasks larger.
 * Several vectors, so that the first results have reached the cache before they are read as a vector. */
static void choose_row_block(const struct caps *caps, const struct reduce_facts *f, struct schedule *s)
{
    int64_t lanes = caps->vector_bytes / 4, vectors = MAX_BLOCK_VECTORS, results = shape_count(&f->kept);
    if (caps->is_gpu || f->symbolic || !f->kept.rank || results < MIN_BLOCKS * lanes)
        return;
    uint16_t axes = reduce_axes(caps, f);
    int64_t inner = reduce_inner(f, axes);
    while (vectors > 1 && (lanes * vectors > inner || MIN_BLOCKS * lanes * vectors > results))
        vectors /= 2;
    if (f->work < MIN_EPILOGUE_WORK || (int64_t)f->work * lanes < f->len || inner < lanes / 2)
        return;
    s->row_reduce.lanes = (uint16_t)lanes;
    s->row_reduce.vectors = (uint16_t)vectors;
    s->row_reduce.axes = axes;
}

static bool row_block_legal(const struct lowering *w, const struct reduce_facts *f, const struct schedule *s)
{
    if (s->row_reduce.ahead && (w->chooser->caps->is_gpu || f->symbolic))
        return reject_schedule(w, "ahead", "ahead: on a processor, of rows without symbols");
    if (!s->row_reduce.lanes)
        return (!s->row_reduce.vectors && !s->row_reduce.axes) ||
               reject_schedule(w, s->row_reduce.vectors ? "vectors" : "axes",
                               "vectors, axes: only of blocks, with lanes");
    if (w->chooser->caps->is_gpu)
        return reject_schedule(w, "lanes", "lanes: blocks of rows are for processors");
    if (!s->row_reduce.vectors)
        return reject_schedule(w, "vectors", "vectors: a block of rows has at least one");
    return s->row_reduce.axes <= f->kept.rank ||
           reject_schedule(w, "axes", "axes %u: there are %u", s->row_reduce.axes, f->kept.rank);
}

/* Long rows of a large array are prefetched so far ahead: a sum of 64 MB takes 0.76 of the time so, with half of the
 * distance 0.79, with twice of it 0.9, for processors prefetch less far, and not beyond a page. */
static void choose_row_prefetch(const struct caps *caps, const struct reduce_facts *f, struct schedule *s)
{
    enum { AHEAD_BYTES = 6144, LONG_ROW = 4 * AHEAD_BYTES };
    if (!caps->is_gpu && !f->symbolic && f->len * f->element >= LONG_ROW && f->bytes >= MANY_BYTES)
        s->row_reduce.ahead = (uint16_t)(AHEAD_BYTES / f->element);
}

/* On a GPU, whose threads share a row, no other family fits. */
static bool has_gpu_rows(const struct reduce_facts *f) { return f->w->chooser->caps->is_gpu && f->len && f->is_row; }

bool row_reduce_fits(struct reduce_facts *f) { return f->lanes && !has_gpu_rows(f); }

bool row_reduce_choose(struct reduce_facts *f, struct schedule *s)
{
    const struct chooser *c = f->w->chooser;
    if (!s->width)
        s->width = numeric_lanes(f->len);
    if (!c->want) {
        choose_row_block(c->caps, f, s);
        choose_row_prefetch(c->caps, f, s);
        int64_t rows = (int64_t)s->row_reduce.lanes * s->row_reduce.vectors;
        int64_t inner = rows ? reduce_inner(f, s->row_reduce.axes) : 1, results = shape_count(&f->kept);
        int64_t blocks = rows ? (inner + rows - 1) / rows : 1;
        s->grain = lower_grain(inner ? results / inner * blocks : 0, f->len * (rows ? rows : 1));
    }
    return true;
}

bool row_reduce_legal(const struct reduce_facts *f, const struct schedule *s)
{
    return schedule_width_is(f->w, s, numeric_lanes(f->len)) && row_block_legal(f->w, f, s);
}

/* Where few rows are reduced, their array is in the cache when its next columns are: the same columns of the next array
 * are prefetched.  Many rows lie too far apart for it to be done by the processor, and with a prologue only a few of
 * them are in flight at a time. */
static void choose_prefetch(const struct caps *caps, const struct reduce_facts *f, struct schedule *s)
{
    int64_t inner = reduce_inner(f, s->column_reduce.axes), bytes = inner * f->element;
    int64_t arrays = inner ? shape_count(&f->kept) / inner : 0, len = f->len ? f->len : 1;
    bool small = arrays > 1 && bytes >= MIN_ROW && bytes * f->len <= SMALL_ARRAY;
    bool far = bytes >= FAR_BYTES && f->prologue && !s->column_reduce.short_rows;
    if ((!small && !far) || !f->len || caps->is_gpu || f->bytes < MANY_BYTES)
        return;
    int64_t lines = (s->width * f->element + LINE_BYTES - 1) / LINE_BYTES;
    s->column_reduce.lines = (uint16_t)(lines < MAX_LINES ? lines : MAX_LINES);
    s->column_reduce.ahead = (uint16_t)(small ? (ROWS_AHEAD + f->len - 1) / len * f->len : ROWS_AHEAD);
}

/* Vectors of results of a task whose rows are read from left to right, a page of each: where rows are a page or longer,
 * one vector's elements are too few in a page for the processor to prefetch them.  0: one vector, whose sums stay in
 * registers. */
static uint16_t row_vectors(const struct caps *caps, const struct reduce_facts *f, const struct schedule *s)
{
    enum { PAGE = 4096, LONG = 256, TASKS = 2 };
    int64_t inner = reduce_inner(f, s->column_reduce.axes), width = s->width, vectors = PAGE / (width * f->element);
    int64_t arrays = inner ? shape_count(&f->kept) / inner : 0;
    if (caps->is_gpu || f->symbolic || f->prologue || s->column_reduce.short_rows || f->bytes < MANY_BYTES ||
        f->bytes <= caps->l2_bytes || inner * f->element < PAGE || f->len < LONG)
        return 0;
    while (vectors > 1 && (inner % (vectors * width) ||
                           arrays * (inner / (vectors * width)) < TASKS * (int64_t)caps->threads))
        vectors /= 2;
    return vectors > 1 ? (uint16_t)vectors : 0;
}

static bool row_vectors_legal(const struct lowering *w, const struct reduce_facts *f, const struct schedule *s)
{
    int64_t step = (int64_t)s->column_reduce.vectors * s->width;
    return !step || (!w->chooser->caps->is_gpu && !f->symbolic && !s->column_reduce.short_rows &&
                     !s->column_reduce.lines && reduce_inner(f, s->column_reduce.axes) % step == 0) ||
           reject_schedule(w, "vectors", "vectors: on a processor, of columns without symbols that they divide, without"
                       " prefetches");
}

enum { SHORTEST_PART = 16, LONG_COLUMN = 128 }; /* least elements of a part, and of a column that has parts */

/* Columns for each lane of a GPU: as many as one access has, unless that leaves lanes or processors without work, or
 * takes too many registers. */
static uint16_t column_vector_width(const struct caps *caps, const struct reduce_facts *f, const struct schedule *s)
{
    enum { OPS = 32, A_PROCESSOR = 2 };
    int64_t inner = reduce_inner(f, s->column_reduce.axes), each = f->access;
    int64_t parts = f->len < LONG_COLUMN ? 1 : f->len / SHORTEST_PART;
    if (!caps->is_gpu || f->symbolic || !inner || !f->len || s->column_reduce.axes > f->merged)
        return 0;
    while (each > 1 && (inner % each || inner < each * s->width || f->ops * each > OPS ||
                        shape_count(&f->kept) / (each * s->width) < A_PROCESSOR * (int64_t)caps->threads / parts))
        each /= 2;
    return each > 1 ? (uint16_t)each : 0;
}

/* On a GPU that the blocks of columns do not fill, elements of a column in each of its parts; 0: it has no parts. */
static uint32_t split_length(const struct caps *caps, const struct reduce_facts *f, int64_t blocks)
{
    enum { A_PROCESSOR = 8 };
    int64_t wanted = A_PROCESSOR * (int64_t)caps->threads, max = f->len / SHORTEST_PART;
    int64_t parts = blocks ? (wanted + blocks - 1) / blocks : 0;
    parts = parts > max ? max : parts;
    return !caps->is_gpu || f->len < LONG_COLUMN || parts < 2 || f->len > UINT32_MAX ? 0
        : (uint32_t)((f->len + parts - 1) / parts);
}

static bool columns_legal(const struct lowering *w, const struct reduce_facts *f, const struct schedule *s)
{
    bool short_rows = s->column_reduce.short_rows;
    if (short_rows != f->lanes || (short_rows && (!f->short_rows || w->chooser->caps->is_gpu)))
        return reject_schedule(w, "short_rows", "short_rows: %s", f->lanes ? "these rows are not of so few elements"
                                                                      : "the graph's sums are of columns");
    if (s->column_reduce.axes > f->max)
        return reject_schedule(w, "axes", "axes %u: lanes may lie in the last %u", s->column_reduce.axes, f->max);
    if (s->column_reduce.split && (!w->chooser->caps->is_gpu || s->column_reduce.split >= f->len))
        return reject_schedule(w, "split", "split: only on a GPU, in parts of fewer elements than a column has");
    int64_t each = s->column_reduce.vector, inner = reduce_inner(f, s->column_reduce.axes);
    if (each && (!w->chooser->caps->is_gpu || f->symbolic || inner % each))
        return reject_schedule(w, "vector", "vector: on a GPU, of columns without symbols that they divide");
    return !s->column_reduce.lines == !s->column_reduce.ahead ||
           reject_schedule(w, s->column_reduce.lines ? "lines" : "ahead", "lines, ahead: a prefetch has both");
}

/* Rows of a few elements are themselves the lanes, on processors. */
bool column_reduce_fits(struct reduce_facts *f) { return (!f->lanes || f->short_rows) && !has_gpu_rows(f); }

bool column_reduce_choose(struct reduce_facts *f, struct schedule *s)
{
    const struct caps *caps = f->w->chooser->caps;
    bool open = !f->w->chooser->want;
    if (open && f->lanes && caps->is_gpu)
        return false;
    if (open) {
        s->column_reduce.short_rows = f->lanes;
        s->column_reduce.axes = reduce_axes(caps, f);
    }
    int64_t inner = reduce_inner(f, s->column_reduce.axes);
    if (!s->width)
        s->width = (uint16_t)lower_width(caps, &(struct loop_facts){inner, f->ops, false});
    if (open) {
        s->column_reduce.vector = column_vector_width(caps, f, s);
        int64_t each = s->column_reduce.vector, width = s->width * (each ? each : 1);
        int64_t blocks = inner ? shape_count(&f->kept) / inner * ((inner + width - 1) / width) : 0;
        choose_prefetch(caps, f, s);
        uint32_t length = !size_is_constant(kernel_length(f->w->k, inner)) ? 0 : split_length(caps, f, blocks);
        s->column_reduce.split = length;
        s->column_reduce.vectors = s->column_reduce.lines ? 0 : row_vectors(caps, f, s);
        if (s->column_reduce.vectors) {
            width *= s->column_reduce.vectors;
            blocks /= s->column_reduce.vectors;
        }
        s->grain = lower_grain(length ? blocks * ((f->len + length - 1) / length) + blocks : blocks, f->len * width);
    }
    return true;
}

bool column_reduce_legal(const struct reduce_facts *f, const struct schedule *s)
{
    return columns_legal(f->w, f, s) && row_vectors_legal(f->w, f, s);
}

/* Parts of few long rows, so that each processor has some: elements of one, a multiple of what the threads access at
 * once.  0: there are rows enough. */
static uint32_t gpu_row_split(const struct caps *caps, const struct reduce_facts *f, int64_t width, int64_t each)
{
    enum { A_PROCESSOR = 4, MIN_COUNT = 4096 }; /* parts; elements worth a block and a sum in memory */
    int64_t rows = shape_count(&f->kept), wanted = A_PROCESSOR * (int64_t)caps->threads, step = width * each;
    if (rows < 1 || 2 * rows > wanted || f->len < 2 * MIN_COUNT)
        return 0;
    int64_t parts = wanted / rows < f->len / MIN_COUNT ? wanted / rows : f->len / MIN_COUNT;
    parts = parts < width ? parts : width; /* a thread for each in the second phase */
    int64_t length = ((f->len + parts - 1) / parts + step - 1) / step * step;
    return length < f->len && length <= UINT32_MAX ? (uint32_t)length : 0;
}

static bool gpu_row_split_legal(const struct lowering *w, const struct reduce_facts *f, const struct schedule *s)
{
    int64_t length = s->gpu_row_reduce.split;
    return !length || (length < f->len && (f->len + length - 1) / length <= s->width) ||
           reject_schedule(w, "split", "split: less than a row, in no more parts than there are threads");
}

bool gpu_row_reduce_fits(struct reduce_facts *f) { return has_gpu_rows(f); }

bool gpu_row_reduce_choose(struct reduce_facts *f, struct schedule *s)
{
    enum { FULL = 16 };
    const struct chooser *c = f->w->chooser;
    int64_t each = gpu_row_vector_width(f->len, f->access);
    if (!s->width)
        s->width = gpu_row_width(c->caps, f->len, each, FULL);
    if (!c->want) {
        s->gpu_row_reduce.vector = each > 1 ? (uint16_t)each : 0;
        s->grain = lower_grain(shape_count(&f->kept), f->len);
        s->gpu_row_reduce.split = gpu_row_split(c->caps, f, s->width, each);
    }
    return true;
}

bool gpu_row_reduce_legal(const struct reduce_facts *f, const struct schedule *s)
{
    return (s->width <= f->w->chooser->caps->block_threads ||
            reject_schedule(f->w, "width", "width %u: a block of this target has fewer threads", s->width)) &&
           gpu_row_split_legal(f->w, f, s);
}

/* ---- scatters, scans, sorts ---- */

/* On a GPU, phases of a thread for each element or chunk. */
static void choose_thread_phases(const struct caps *caps, struct schedule *s)
{
    enum { THREADS = 64 };      /* 32 of these blocks fill a multiprocessor, and short arrays have more of them */
    if (!s->width)
        s->width = (uint16_t)(caps->block_threads < THREADS ? caps->block_threads : THREADS);
}

static bool thread_phases_legal(const struct lowering *w, const struct schedule *s)
{
    return s->width <= w->chooser->caps->block_threads ||
           reject_schedule(w, "width", "width %u: a block of this target has fewer threads", s->width);
}

/* The same for kernels whose blocks have `bytes` for each thread, and SHARED_ENDS more, in shared memory.  Larger
 * blocks save launches, where there is work for all of the device: for so many threads. */
enum { SHARED_ENDS = 64 };

static void choose_shared_phases(const struct caps *caps, int64_t threads, int64_t bytes, struct schedule *s)
{
    enum { THREADS = 256, FEWEST = 64 };
    if (s->width)
        return;
    for (s->width = THREADS; s->width > 2; s->width /= 2)
        if (s->width <= caps->block_threads && s->width * bytes + SHARED_ENDS <= caps->shared_bytes)
            break;
    while (s->width > FEWEST && threads / s->width < caps->threads)
        s->width /= 2;
}

static bool shared_phases_legal(const struct lowering *w, int64_t bytes, const struct schedule *s)
{
    const struct caps *caps = w->chooser->caps;
    unsigned width = s->width;
    if (width < 2 || (width & (width - 1)))
        return reject_schedule(w, "width", "width %u: it is a power of two here, at least 2", width);
    return (width <= caps->block_threads && width * bytes + SHARED_ENDS <= caps->shared_bytes) ||
           reject_schedule(w, "width", "width %u: a block of this target has fewer threads or less shared memory",
                           width);
}

enum { SCATTER_BYTES = GPU_SORT_OWN * 2 * sizeof(int32_t) };    /* of a thread: keys and their places */

bool gpu_scatter_fits(struct scatter_facts *f)
{
    return f->w->chooser->caps->is_gpu && f->outer * f->len * f->inner > 0;
}

bool gpu_scatter_choose(struct scatter_facts *f, struct schedule *s)
{
    if (f->count > GPU_SCATTER_FEW)
        choose_shared_phases(f->w->chooser->caps, f->count / GPU_SORT_OWN, SCATTER_BYTES, s);
    else
        choose_thread_phases(f->w->chooser->caps, s);
    return true;
}

bool gpu_scatter_legal(const struct scatter_facts *f, const struct schedule *s)
{
    return f->count > GPU_SCATTER_FEW ? shared_phases_legal(f->w, SCATTER_BYTES, s) : thread_phases_legal(f->w, s);
}

bool scatter_fits(struct scatter_facts *f)
{
    (void)f;
    return true;
}

bool scatter_choose(struct scatter_facts *f, struct schedule *s)
{
    const struct chooser *c = f->w->chooser;
    struct loop_facts inner = lower_loop(f->w, f->inner), panel = lower_loop(f->w, f->len * f->inner);
    if (!s->width)
        s->width = (uint16_t)lower_width(c->caps, &inner);
    if (!s->scatter.copy)
        s->scatter.copy = (uint16_t)lower_width(c->caps, &panel);
    if (!c->want) {
        int64_t width = s->width;
        s->grain = lower_grain(f->outer * ((f->inner + width - 1) / width),
                               (f->len + f->count) * (f->inner < width ? f->inner : width));
    }
    return true;
}

/* The table of fields says all. */
bool scatter_legal(const struct scatter_facts *f, const struct schedule *s)
{
    (void)f;
    (void)s;
    return true;
}

enum { SCAN_BYTES = 2 * GPU_SCAN_LINES * sizeof(int64_t) };     /* of a thread: two copies of its elements */

bool gpu_scan_fits(struct scan_facts *f) { return f->w->chooser->caps->is_gpu && f->phases; }

bool gpu_scan_choose(struct scan_facts *f, struct schedule *s)
{
    if (f->inner == 1)
        choose_shared_phases(f->w->chooser->caps, f->outer * f->len / GPU_SCAN_LINES, SCAN_BYTES, s);
    else
        choose_thread_phases(f->w->chooser->caps, s);
    return true;
}

bool gpu_scan_legal(const struct scan_facts *f, const struct schedule *s)
{
    return f->inner == 1 ? shared_phases_legal(f->w, SCAN_BYTES, s) : thread_phases_legal(f->w, s);
}

bool cumulative_fits(struct scan_facts *f)
{
    (void)f;
    return true;
}

bool cumulative_choose(struct scan_facts *f, struct schedule *s)
{
    const struct chooser *c = f->w->chooser;
    struct loop_facts inner = lower_loop(f->w, f->inner);
    if (!s->width)
        s->width = f->inner > 1 ? (uint16_t)lower_width(c->caps, &inner) : 1;
    if (!c->want)
        s->grain = lower_grain(f->len ? f->outer * ((f->inner + s->width - 1) / s->width) : 0, f->len * s->width);
    return true;
}

bool cumulative_legal(const struct scan_facts *f, const struct schedule *s)
{
    return f->inner > 1 || schedule_width_is(f->w, s, 1);
}

bool gpu_sort_fits(struct sort_facts *f)
{
    return f->w->chooser->caps->is_gpu && f->rows * f->len > 0 && f->len <= INT32_MAX;
}

bool gpu_sort_choose(struct sort_facts *f, struct schedule *s)
{
    choose_shared_phases(f->w->chooser->caps, f->rows * f->len / GPU_SORT_OWN, GPU_SORT_OWN * f->element, s);
    return true;
}

bool gpu_sort_legal(const struct sort_facts *f, const struct schedule *s)
{
    return shared_phases_legal(f->w, GPU_SORT_OWN * f->element, s);
}

bool sort_fits(struct sort_facts *f)
{
    (void)f;
    return true;
}

bool sort_choose(struct sort_facts *f, struct schedule *s)
{
    const struct chooser *c = f->w->chooser;
    struct loop_facts row = lower_loop(f->w, f->len);
    if (!s->width)
        s->width = (uint16_t)lower_width(c->caps, &row);
    if (!c->want)
        s->grain = lower_grain(f->rows, f->len * (1 + f->levels));
    return true;
}

bool sort_legal(const struct sort_facts *f, const struct schedule *s)
{
    (void)f;
    (void)s;
    return true;
}
