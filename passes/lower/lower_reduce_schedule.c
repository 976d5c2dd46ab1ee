/* The schedules of rows and of reductions. */
#include "lower_schedule.h"

/* ---- rows ---- */

/* Lanes of sums of 64 numeric lanes: fewer only where the rest would hold nothing but the identity. */
static uint16_t numeric_lanes(int64_t length)
{
    uint16_t width = 64;
    while (width > 1 && width / 2 >= length)
        width /= 2;
    return width;
}

/* FEW_THREADS: fewer than are wanted for each of the GPU's processors.  No measurement is recorded. */
enum { WARP = 32, FEW_THREADS = 256 };

/* Threads of a GPU's block for a row of so many elements, `each` adjacent elements in each access, `full` elements
 * being worth a thread. */
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

/* In the graph's order: the numeric lanes of a thread, which are adjacent elements.  They divide a chunk.  Fewer where
 * there would be too few threads, or blocks, which have the threads of a row, of less than a warp. */
static int64_t ordered_vector_width(const struct caps *caps, int64_t length, int64_t rows, int64_t access,
                                    int64_t chunk)
{
    int64_t each = gpu_row_vector_width(length, access), lanes = numeric_lanes(length);
    int64_t chunks = length > chunk ? length / chunk : 1;
    while (each > 1 && (lanes / each < WARP || (length > chunk && chunk % each) ||
                        rows * chunks * (lanes / each) < FEW_THREADS * (int64_t)caps->threads))
        each /= 2;
    return each;
}

/* Has the record the numeric lanes of `rows` rows, `each` of them a thread? */
static bool ordered_block_legal(const struct lowering *w, const struct schedule *s, int64_t length, int64_t each,
                                int64_t chunk, int64_t rows)
{
    int64_t lanes = numeric_lanes(length);
    if (each > lanes || (length > chunk && chunk % each))
        return reject_order(w, "vector");
    return schedule_width_is(w, s, (uint16_t)(lanes / each * rows));
}

static bool ordered_lanes_legal(const struct lowering *w, const struct schedule *s, int64_t length, int64_t each,
                                int64_t chunk)
{
    return ordered_block_legal(w, s, length, each, chunk, 1);
}

/* May a row be in segments (lower_rows_gpu.c), with so many adjacent elements a thread? */
static bool may_have_segments(const struct rows_facts *f, int64_t each)
{
    return !f->columns && !f->symbolic && !f->chunks && numeric_lanes(f->length) == 64 && each <= 64;
}

enum { MAX_SEGMENTS = 4 /* each thread adds up its elements so often */, MAX_SEGMENT_THREADS = 128 /* of a row */ };

/* Elements of each thread of a row. */
static int64_t held_elements(const struct rows_facts *f, int64_t width, int64_t each)
{
    return (f->length + width * each - 1) / (width * each) * each;
}

/* Rows of which a block of threads adds up the columns: few enough for several blocks on each of the GPU's processors,
 * but each of them stores a sum of each column.  In the graph's order they are those of a chunk. */
static int64_t column_block(const struct caps *caps, const struct rows_facts *f)
{
    enum { A_PROCESSOR = 6, MAX_ROWS = 64 }; /* no measurement is recorded */
    int64_t block = 1;
    if (caps->graph_order)
        return f->column_chunk;
    while (block < MAX_ROWS && f->column_rows % (2 * block) == 0 &&
           f->rows / (2 * block) >= A_PROCESSOR * (int64_t)caps->threads)
        block *= 2;
    return block;
}

/* Elements of a thread times members of the group, each a value in a register and code that is written out.  No
 * measurement is recorded. */
enum { MAX_WORK = 1 << 11 };

/* A row in the graph's order whose threads hold it: the widest accesses, then the fewest threads, whose sums go through
 * the fewest segments.  Instructions of a softmax of f32, beside those of the schedule's order: 4,096 elements in 2
 * segments of 16 threads 0.98 (4 segments of 16: 1.16, 2 of 32 with half as wide accesses: 1.03), 8,000 in 4 of 16
 * 1.04, 12,000 in 4 of 32, with half as wide accesses, 1.07.  Longer rows have chunks. */
static bool choose_segments(const struct caps *caps, const struct rows_facts *f, int64_t min_width, struct schedule *s,
                            int64_t *each, int64_t *held)
{
    /* MAX_COUNT: elements that a thread may hold.  WORTH: what folds more sums at the end is worth it only for so many
     * elements: for 8 adjacent ones, of bf16, 64 of them, for 4 adjacent ones 8. */
    enum { MAX_COUNT = 128, WORTH = 8 };
    for (int64_t e = gpu_row_vector_width(f->length, f->access); e; e /= 2)
        for (int64_t w = min_width; w <= MAX_SEGMENT_THREADS && w <= (int64_t)caps->block_threads; w *= 2) {
            int64_t n = held_elements(f, w, e), segments = w * e / 64;
            bool holds = n <= MAX_COUNT && n * (int64_t)f->members <= MAX_WORK;
            if (!holds || !segments || segments > MAX_SEGMENTS || n * WORTH < e * e * e)
                continue;
            s->width = (uint16_t)w;
            *each = e;
            *held = n;
            return true;
        }
    return false;
}

/* A row whose threads have few elements each stays in a GPU's registers; others are iterated over. */
static void choose_gpu_rows(const struct caps *caps, const struct rows_facts *f, struct schedule *s)
{
    /* Elements: FULL, worth a thread, or FULL_COLUMNS, where it has sums of columns, too; MAX_COUNT, that a thread may
     * hold.  No measurement is recorded. */
    enum { FULL = 32, FULL_COLUMNS = 16, MAX_COUNT = 64 };
    bool ordered = caps->graph_order, chunks = ordered && f->chunks;
    int64_t each = !ordered ? gpu_row_vector_width(f->length, f->access)
        : f->symbolic || (chunks && !f->chunk) ? 1
        : ordered_vector_width(caps, f->length, f->rows, f->access, chunks ? f->chunk : f->length);
    s->width = ordered ? (uint16_t)(numeric_lanes(f->length) / each)
                       : gpu_row_width(caps, f->length, each, f->columns ? FULL_COLUMNS : FULL);
    if (!ordered && s->width > WARP && f->length % (s->width * each) && f->length % (s->width / 2 * each) == 0)
        s->width /= 2; /* then all threads have whole vectors */
    int64_t held = held_elements(f, s->width, each);
    bool holds = f->columns || (held <= MAX_COUNT && held * (int64_t)f->members <= MAX_WORK && !chunks);
    bool few = f->rows * WARP < FEW_THREADS * (int64_t)caps->threads;
    if (ordered && may_have_segments(f, 1) && (!few || !holds))
        holds |= choose_segments(caps, f, few ? MAX_SEGMENT_THREADS : WARP, s, &each, &held);
    s->rows.block = f->columns ? (uint32_t)column_block(caps, f) : 0;
    s->rows.held = holds ? (uint16_t)held : 0;
    s->rows.vector = holds ? (uint16_t)(each > 1 ? each : 0)
        : f->symbolic || (chunks && !f->chunk) ? 0 : (uint16_t)each;
}

bool rows_fits(struct rows_facts *f) { return f->reduces; }

bool rows_choose(struct rows_facts *f, struct schedule *s)
{
    const struct lowering *w = f->w;
    bool open = !w->chooser->want;
    if (open && w->chooser->caps->is_gpu && f->length)
        choose_gpu_rows(w->chooser->caps, f, s);
    if (!s->width)
        s->width = (uint16_t)(numeric_lanes(f->length) / (s->rows.vector && w->chooser->caps->is_gpu
                                                          && w->chooser->caps->graph_order ? s->rows.vector : 1));
    if (open) {
        f->find(f, s);
        s->rows.keep = s->rows.vector && !s->rows.held ? 0 : f->keep;
        s->stream = results_are_streamed(w, f->bytes);
        s->grain = lower_grain(f->rows, f->length * (f->reduces + 1));
    }
    return true;
}

/* Is the record one in the order of the graph: a thread for so many numeric lanes as it has adjacent elements? */
static bool ordered_rows_legal(const struct rows_facts *f, const struct schedule *s)
{
    int64_t each = s->rows.vector ? s->rows.vector : 1;
    if ((f->symbolic && each > 1) || (f->chunks && !f->chunk && s->rows.vector))
        return reject_order(f->w, "vector");
    if (f->chunks && s->rows.held)
        return reject_order(f->w, "held");
    for (int64_t n = 2; s->rows.held && may_have_segments(f, each) && n <= MAX_SEGMENTS; n *= 2)
        if (s->width == n * 64 / each)
            return true;
    return ordered_lanes_legal(f->w, s, f->length, each, f->chunks ? f->chunk : f->length);
}

static bool row_columns_legal(const struct rows_facts *f, const struct schedule *s)
{
    if (!f->columns)
        return !s->rows.block || reject_schedule(f->w, "block", "block: the group has no sums of columns");
    if (!s->rows.held)
        return reject_schedule(f->w, "held", "held: threads that add up columns hold their rows");
    if (!s->rows.block || f->column_rows % s->rows.block)
        return reject_schedule(f->w, "block", "block: columns have %d rows, which it must divide", (int)f->column_rows);
    return !f->w->chooser->caps->graph_order || s->rows.block == f->column_chunk || reject_order(f->w, "block");
}

bool rows_legal(const struct rows_facts *f, const struct schedule *s)
{
    const struct lowering *w = f->w;
    const struct caps *caps = w->chooser->caps;
    int64_t each = s->rows.vector ? s->rows.vector : 1;
    if (s->rows.keep & ~f->may_keep)
        return reject_schedule(w, "keep", "keep: only of members that several passes over the row need");
    if (s->rows.vector && !s->rows.held && (!caps->is_gpu || f->symbolic || s->rows.keep))
        return reject_schedule(w, "vector", "vector: of rows that a GPU's threads hold in registers, or iterate over "
                           "without keep");
    if (!caps->is_gpu && s->rows.block)
        return reject_schedule(w, "block", "block: sums of columns are a GPU's");
    if (!caps->is_gpu)
        return !s->rows.held ? schedule_width_is(w, s, numeric_lanes(f->length))
            : reject_schedule(w, "held", "held: a GPU's threads hold rows in registers");
    if ((caps->graph_order && !ordered_rows_legal(f, s)) || !row_columns_legal(f, s))
        return false;
    if (s->width > caps->block_threads)
        return reject_schedule(w, "width", "width %u: a block of this target has fewer threads", s->width);
    return !s->rows.held || (s->rows.held == held_elements(f, s->width, each) && !s->rows.keep) ||
           reject_schedule(w, s->rows.keep ? "keep" : "held",
                           "held: %d elements of the row for each thread, and no keep",
                       (int)held_elements(f, s->width, each));
}

/* ---- reductions ---- */

enum { MANY_BYTES = 1 << 20 };  /* of an operand that is larger than the first caches: what a prefetch can be worth */

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
    /* MIN_EPILOGUE_WORK: primitives a result.  MIN_BLOCKS: blocks that there are at least, for the threads to share.
     * MAX_BLOCK_VECTORS: vectors of a block.  A tanh or pow of sums over a short last axis took 8 to 20 times as long
     * without blocks; of the bounds no measurement is recorded. */
    enum { MIN_EPILOGUE_WORK = 4, MIN_BLOCKS = 16, MAX_BLOCK_VECTORS = 16 };
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

/* On a GPU, whose threads share a row, no other family fits.  In the graph's order a row has 64 lanes. */
static bool has_gpu_rows(const struct reduce_facts *f)
{
    bool rows = anchor_in_graph_order(f->w) ? f->lanes && !f->symbolic : f->is_row;
    return f->w->chooser->caps->is_gpu && f->len && rows;
}

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
    /* MAX_LINES: cache lines of a row that are prefetched.  ROWS_AHEAD: rows from the one at hand to the one that is.
     * Bytes: MIN_ROW, of a row worth a prefetch; SMALL_ARRAY, of an array that stays cached; FAR_BYTES, of rows so far
     * apart that the processor does not prefetch them.  No measurement is recorded. */
    enum { MAX_LINES = 8, ROWS_AHEAD = 8, MIN_ROW = 256, SMALL_ARRAY = 1 << 16, FAR_BYTES = 512 };
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
    /* PAGE: bytes within which processors prefetch.  LONG: rows for which sums in scratch pay.  TASKS: for each thread,
     * at least.  The sum of 4096x4096 over axis 0 takes 2.73 instead of 4.60 ms on one thread, of squares of bf16 1.9
     * instead of 5.1, of products of two bf16 5.1 instead of 6.5; of the bounds no measurement is recorded. */
    enum { PAGE = 4096, LONG = 256, TASKS = 2 };
    int64_t inner = reduce_inner(f, s->column_reduce.axes), width = s->width, vectors = PAGE / (width * f->element);
    int64_t arrays = inner ? shape_count(&f->kept) / inner : 0;
    if (caps->is_gpu || f->symbolic || s->column_reduce.short_rows || f->bytes < MANY_BYTES ||
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

/* Elements, at least, of a part and of a column that has parts.  No measurement is recorded. */
enum { SHORTEST_PART = 16, LONG_COLUMN = 128 };

/* Columns for each lane of a GPU: as many as one access has, unless that leaves lanes or processors without work, or
 * takes too many registers. */
static uint16_t column_vector_width(const struct caps *caps, const struct reduce_facts *f, const struct schedule *s)
{
    /* OPS: members times columns of a lane, each a register.  A_PROCESSOR: blocks that there are for each of the GPU's
     * processors, at least.  No measurement is recorded. */
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

/* On a GPU that the blocks of columns do not fill, elements of a column in each of its parts; 0: it has no parts.  In
 * the graph's order the parts are its chunks. */
static uint32_t split_length(const struct caps *caps, const struct reduce_facts *f, int64_t blocks)
{
    enum { A_PROCESSOR = 8 };   /* blocks wanted for each of the GPU's processors; no measurement is recorded */
    if (anchor_in_graph_order(f->w))
        return !f->symbolic && f->chunk < f->len && blocks && blocks < A_PROCESSOR * (int64_t)caps->threads
            ? (uint32_t)f->chunk : 0;
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
    if (s->column_reduce.split && anchor_in_graph_order(w) && s->column_reduce.split != f->chunk)
        return reject_order(w, "split");
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
        uint32_t length = !size_is_constant(kernel_length(f->w->k, inner)) ? 0 : split_length(caps, f, blocks);
        s->column_reduce.split = length;
        s->column_reduce.vectors = row_vectors(caps, f, s);
        if (!s->column_reduce.vectors) {
            choose_prefetch(caps, f, s);
        } else {
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
    /* A_PROCESSOR: parts wanted for each of the GPU's processors.  MIN_COUNT: elements worth a block and a sum in
     * memory.  No measurement is recorded. */
    enum { A_PROCESSOR = 4, MIN_COUNT = 4096 };
    int64_t rows = shape_count(&f->kept), wanted = A_PROCESSOR * (int64_t)caps->threads, step = width * each;
    if (anchor_in_graph_order(f->w))
        return f->chunk < f->len && 2 * rows <= wanted ? (uint32_t)f->chunk : 0;
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
    if (anchor_in_graph_order(w))
        return !length || (length == f->chunk && length < f->len) || reject_order(w, "split");
    return !length || (length < f->len && (f->len + length - 1) / length <= s->width) ||
           reject_schedule(w, "split", "split: less than a row, in no more parts than there are threads");
}

static int64_t at_least_one(uint32_t n) { return n ? n : 1; }

/* Adjacent elements, and rows of a block. */
static int64_t row_adjacent(const struct schedule *s) { return at_least_one(s->gpu_row_reduce.vector); }
static int64_t row_count(const struct schedule *s) { return at_least_one(s->gpu_row_reduce.rows); }

/* Short rows of a GPU, which have fewer than a warp's accesses of 16 bytes: several in a block, so that each thread has
 * such an access and blocks have whole warps.  In the graph's order a row's threads are its 64 lanes.  False: there are
 * other rows. */
static bool choose_short_rows(const struct reduce_facts *f, struct schedule *s)
{
    /* A_PROCESSOR: blocks of more than a warp wanted for each of the GPU's processors.  No measurement is recorded. */
    enum { THREADS = 128, A_PROCESSOR = 8 };
    const struct caps *caps = f->w->chooser->caps;
    bool ordered = anchor_in_graph_order(f->w);
    int64_t each = f->access, lanes = 1, rows = THREADS, count = shape_count(&f->kept);
    if (f->symbolic || f->len >= WARP * each || f->len % each ||
        (ordered && (each > numeric_lanes(f->len) || (f->len > f->chunk && f->chunk % each))))
        return false;
    while (lanes * each < f->len)
        lanes *= 2;
    if (ordered)
        lanes = numeric_lanes(f->len) / each;
    rows /= lanes;
    while (rows > 1 && (count % rows || rows * lanes > (int64_t)caps->block_threads ||
                        (rows * lanes > WARP && count / rows < A_PROCESSOR * (int64_t)caps->threads)))
        rows /= 2;
    if (rows < 2 || rows * lanes < WARP)
        return false;
    s->width = (uint16_t)(rows * lanes);
    s->gpu_row_reduce.vector = each > 1 ? (uint16_t)each : 0;
    s->gpu_row_reduce.rows = (uint16_t)rows;
    return true;
}

static bool short_rows_legal(const struct reduce_facts *f, const struct schedule *s)
{
    int64_t rows = s->gpu_row_reduce.rows;
    return rows < 2 || (!f->symbolic && !s->gpu_row_reduce.split && rows <= s->width &&
                        shape_count(&f->kept) % rows == 0) ||
           reject_schedule(f->w, "rows", "rows: of rows without symbols, which they divide, a lane at least for each");
}

bool gpu_row_reduce_fits(struct reduce_facts *f) { return has_gpu_rows(f); }

bool gpu_row_reduce_choose(struct reduce_facts *f, struct schedule *s)
{
    enum { FULL = 16 };         /* elements of a row that are worth a thread; no measurement is recorded */
    const struct chooser *c = f->w->chooser;
    bool ordered = anchor_in_graph_order(f->w), open = !c->want;
    if (open && choose_short_rows(f, s)) {
        s->grain = lower_grain(shape_count(&f->kept) / s->gpu_row_reduce.rows, f->len * s->gpu_row_reduce.rows);
        return true;
    }
    int64_t each = !open && ordered ? row_adjacent(s)
        : ordered ? ordered_vector_width(c->caps, f->len, shape_count(&f->kept), f->access, f->chunk)
                           : gpu_row_vector_width(f->len, f->access);
    if (!s->width)
        s->width = ordered ? (uint16_t)(numeric_lanes(f->len) / each * row_count(s))
                           : gpu_row_width(c->caps, f->len, each, FULL);
    if (open) {
        s->gpu_row_reduce.vector = each > 1 ? (uint16_t)each : 0;
        s->grain = lower_grain(shape_count(&f->kept), f->len);
        s->gpu_row_reduce.split = gpu_row_split(c->caps, f, s->width, each);
    }
    return true;
}

bool gpu_row_reduce_legal(const struct reduce_facts *f, const struct schedule *s)
{
    if (anchor_in_graph_order(f->w) &&
        !ordered_block_legal(f->w, s, f->len, row_adjacent(s), f->chunk, row_count(s)))
        return false;
    return short_rows_legal(f, s) && (s->width <= f->w->chooser->caps->block_threads ||
            reject_schedule(f->w, "width", "width %u: a block of this target has fewer threads", s->width)) &&
           gpu_row_split_legal(f->w, f, s);
}
