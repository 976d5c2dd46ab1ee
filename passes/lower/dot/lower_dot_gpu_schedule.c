/* The schedules of products on a GPU: for blocks of threads, for its matrix units' subgroups, and for few rows.  Where
 * the results have too few tiles for the GPU's blocks, the contraction is divided, too (split-K), and the sums of its
 * parts are added by a second phase; whether warps are specialized (producer and consumers) is also chosen here. */
#include "lower_dot.h"
#include "passes/lower/lower_schedule.h"
#include <math.h>

/* A block of ROWS x COLS tiles of MR x NR results each, which processes STEP elements of the contraction at a time;
 * `subgroup` threads compute each tile. */
struct dot_shape { uint16_t mr, nr, rows, cols, step; };

static struct schedule of_shape(const struct dot *d, const struct dot_shape *x, enum sched_kind kind, unsigned subgroup)
{
    struct schedule s = {.kind = (uint16_t)kind, .width = (uint16_t)(x->rows * x->cols * subgroup)};
    s.dot_blocks.mr = x->mr;
    s.dot_blocks.nr = x->nr;
    s.dot_blocks.kc = (uint32_t)d->kblock;
    s.dot_blocks.block_m = x->mr * x->rows;
    s.dot_blocks.block_n = x->nr * x->cols;
    s.dot_blocks.step = x->step;
    return s;
}

/* ---- what blocks of either kind have in common ---- */

/* The number of blocks of a part of the contraction, or more than any grid has. */
static int64_t blocks_of(const struct dot *d, const struct schedule *s)
{
    int64_t of_columns = dot_parts(d->size.n, s->dot_blocks.block_n);
    int64_t of_rows = dot_parts(d->size.m, s->dot_blocks.block_m);
    return of_columns > INT64_MAX / of_rows / d->size.batch ? INT64_MAX : d->size.batch * of_rows * of_columns;
}

static uint32_t split_of(const struct schedule *s)
{
    return s->kind == SCHED_DOT_MATRIX ? s->dot_matrix.split : s->dot_blocks.split;
}

/* Is the number of blocks small enough for the grid? */
static bool fits_grid(const struct dot *d, const struct schedule *s)
{
    return blocks_of(d, s) <= INT32_MAX / dot_splits(d, split_of(s));
}

/* Are there at least as many blocks as the GPU runs at once? */
static bool fills_the_gpu(const struct dot *d, const struct caps *caps, const struct schedule *s)
{
    int64_t blocks = blocks_of(d, s), splits = dot_splits(d, split_of(s));
    return blocks >= (int64_t)caps->threads || blocks * splits >= (int64_t)caps->threads;
}

/* The largest number of parts of a contraction if each has at least `shortest` elements, and all sums need at most
 * `mebibytes` of memory. */
static int64_t max_parts(const struct dot *d, int64_t shortest, int64_t mebibytes)
{
    int64_t by_length = d->size.k / shortest;
    int64_t by_bytes = (mebibytes << 20) / (int64_t)dtype_size(d->dtype) / (d->size.batch * d->size.m * d->size.n);
    return d->symbolic ? 1 : by_length < by_bytes ? by_length : by_bytes;
}

/* Are most results of the blocks within the matrix? */
static bool blocks_are_full(const struct dot *d, const struct schedule *s)
{
    return s->dot_blocks.block_m / 2 < d->size.m && s->dot_blocks.block_n / 2 < d->size.n;
}

/* Why a block is not possible on this target: the first field that is wrong, or NULL. */
struct wrong { const char *field, *why; };

/* The largest number of results of a thread. */
enum { MAX_RESULTS = 64 };

static struct wrong wrong_block(const struct caps *c, const struct schedule *s, unsigned subgroup, int64_t bytes)
{
    unsigned mr = s->dot_blocks.mr, nr = s->dot_blocks.nr, m = s->dot_blocks.block_m, n = s->dot_blocks.block_n;
    unsigned step = s->dot_blocks.step;
    if (!mr || !nr)
        return (struct wrong){"tile", "a tile has rows and columns"};
    if (!m || !n || m % mr || n % nr)
        return (struct wrong){"block", "a block is a whole number of tiles"};
    if (!step)
        return (struct wrong){"step", "a step has elements of the contraction"};
    int64_t threads = (int64_t)(m / mr) * (n / nr) * subgroup, a = (int64_t)m * step, b = (int64_t)n * step;
    if (threads != s->width)
        return (struct wrong){"width", "the block's tiles make another number of threads"};
    if (threads > (int64_t)c->block_threads)
        return (struct wrong){"width", "a block of this target has fewer threads"};
    int64_t max = DOT_MAX_PARTS * (s->kind == SCHED_DOT_MATRIX && s->dot_matrix.async ? DOT_VECTOR : 1);
    if (a % threads || b % threads || a / threads > max || b / threads > max)
        return (struct wrong){"step", "each thread brings the same number of elements of an operand, at most 32"};
    if (bytes > (int64_t)c->shared_bytes)
        return (struct wrong){"step", "the block's shared memory has no room for that"};
    return (struct wrong){0};
}

static bool not_wrong(const struct dot *d, struct wrong w)
{
    return !w.field || reject_schedule(d->w, w.field, "%s: %s", w.field, w.why);
}

/* ---- the graph's order ---- */

static bool dot_is_ordered(const struct dot *d) { return in_graph_order(d->w) && dtype_is_float(d->dtype); }

/* The order's blocks of the contraction are parts, or are added one after the other by the same threads.  true: an
 * order of the schedule may have any parts. */
static bool split_is_ordered(const struct dot *d, uint32_t split)
{
    return !dot_is_ordered(d) || !split || (int64_t)split == d->kblock;
}

/* Of whole steps of so many elements?  The blocks of a contraction with a symbol are as long as its value says. */
static bool blocks_have_steps(const struct dot *d, int64_t step)
{
    return !dot_is_ordered(d) || d->blocks == 1 || (d->symbolic_k ? DOT_BLOCK_MULTIPLE : d->kblock) % step == 0;
}

static bool split_legal(const struct dot *d, uint32_t split)
{
    return split_is_ordered(d, split) || reject_order(d->w, "split");
}

/* ---- tiles of threads ---- */

static bool has_block_copies(const struct schedule *s) { return s->dot_blocks.copy_a || s->dot_blocks.copy_b; }

/* Do the vectors of an operand's step make as many for each thread?  A contraction in parts or in blocks has whole
 * steps. */
static bool divides_vectors(const struct dot *d, const struct schedule *s, bool second)
{
    int64_t vector = dot_vector(d->dtype), side = second ? s->dot_blocks.block_n : s->dot_blocks.block_m;
    int64_t step = s->dot_blocks.step;
    bool parts = s->dot_blocks.split || (dot_is_ordered(d) && d->blocks > 1);
    return vector && s->width && side % vector == 0 && step % vector == 0 && side * step / vector % s->width == 0 &&
           (!parts || d->size.k % step == 0);
}

/* Elements of shared memory for an operand: its steps, of which two have another order if it is copied along the
 * contraction, as is assumed here. */
static int64_t operand_elements(const struct schedule *s, bool second)
{
    int64_t side = second ? s->dot_blocks.block_n : s->dot_blocks.block_m, padded = side + DOT_BLOCK_PAD;
    int64_t stages = has_block_copies(s) ? s->dot_blocks.stages : 2;
    bool copied = second ? s->dot_blocks.copy_b : s->dot_blocks.copy_a;
    return s->dot_blocks.step * (copied ? stages * side + 2 * padded : stages * padded);
}

static int64_t threads_bytes(const struct dot *d, const struct schedule *s)
{
    return (operand_elements(s, false) + operand_elements(s, true)) * (int64_t)dtype_size(d->dtype);
}

static struct wrong wrong_threads(const struct dot *d, const struct caps *c, const struct schedule *s)
{
    if (s->dot_blocks.mr * s->dot_blocks.nr > MAX_RESULTS)
        return (struct wrong){"tile", "a thread has at most 64 results"};
    if (s->dot_blocks.step && s->dot_blocks.split % s->dot_blocks.step)
        return (struct wrong){"split", "a part is a whole number of steps"};
    if (s->dot_blocks.step && !blocks_have_steps(d, s->dot_blocks.step))
        return (struct wrong){"step", "a block of the graph's order is a whole number of steps"};
    if (has_block_copies(s) ? s->dot_blocks.stages < 2 : s->dot_blocks.stages)
        return (struct wrong){"stages", "at least two if an operand is copied, else 0"};
    struct wrong block = wrong_block(c, s, 1, threads_bytes(d, s)); /* first: threads divide vectors */
    if (!block.field && s->dot_blocks.copy_a && !divides_vectors(d, s, false))
        return (struct wrong){"copy_a", "the operand is not of whole vectors for each thread"};
    if (!block.field && s->dot_blocks.copy_b && !divides_vectors(d, s, true))
        return (struct wrong){"copy_b", "the operand is not of whole vectors for each thread"};
    return block;
}

/* Divides the contraction into parts if there are fewer blocks than the device runs at once: into no more than it then
 * runs at once, and into equal parts if there is such a number close to this.  Also if a thread had more iterations
 * than the driver allows. */
static void choose_threads_split(const struct dot *d, const struct caps *c, struct schedule *s)
{
    /* threads of a tile of 64 results each; elements of a part, twice as many with so many results */
    enum { A_PROCESSOR = 512, SHORTEST = 256, MEBIBYTES = 64 };
    bool ordered = dot_is_ordered(d), many = s->dot_blocks.mr * s->dot_blocks.nr == MAX_RESULTS;
    int64_t shortest = ordered ? d->kblock / 2 : many ? 2 * SHORTEST : SHORTEST;
    int64_t blocks = blocks_of(d, s), max = max_parts(d, shortest, MEBIBYTES);
    int64_t step = s->dot_blocks.step, longest = c->loop_limit ? c->loop_limit / 2 : d->size.k;
    if (blocks >= (int64_t)c->threads && d->size.k <= longest)
        return;
    if (ordered) {
        s->dot_blocks.split = d->blocks > 1 && d->blocks <= max ? (uint32_t)d->kblock : 0;
        return;
    }
    int64_t parts = (int64_t)c->threads * A_PROCESSOR / s->width / blocks, needed = dot_parts(d->size.k, longest);
    parts = parts > needed ? parts : needed;
    parts = parts < max ? parts : max;
    for (int64_t equal = parts; equal > 1 && 4 * equal >= 3 * parts; equal--)
        if (d->size.k % (equal * step) == 0) {
            parts = equal;
            break;
        }
    if (parts > 1)
        s->dot_blocks.split = (uint32_t)(dot_parts(dot_parts(d->size.k, parts), step) * step);
}

/* What a product of copied operands takes if its contraction has parts of `split` elements (0: it is whole), in cycles
 * of an H100 without the start of the kernel.  A processor's blocks share its lanes, of which they keep a share busy
 * that depends on the tile; a block of few warps cannot use the lanes of all four schedulers.  So the blocks of the
 * processor that has most decide (wave quantization).  The sums of parts are loaded by a second kernel. */
static double cycles_of(const struct dot *d, const struct caps *c, const struct schedule *s, int64_t split)
{
    enum { LANES = 128, SCHEDULERS = 4, WARP = 32, BEGIN = 32 /* elements of the contraction */, SECOND = 5000,
           BYTES = 26 /* a cycle and processor, most of them from the L2 cache */ };
    int64_t results = (int64_t)s->dot_blocks.block_m * s->dot_blocks.block_n, of_tile = results / s->width;
    int64_t length = split ? split : d->size.k, splits = dot_splits(d, (uint32_t)split);
    int64_t warps = dot_parts(s->width, WARP);
    double busy = of_tile >= 64 ? 0.78 : of_tile >= 32 ? 0.6 : 0.45, rate = LANES * busy;
    double block = (double)(length + BEGIN) * (double)results;
    double all = (double)dot_parts(blocks_of(d, s) * splits, c->threads) * block / rate;
    double alone = block / (rate * (double)(warps < SCHEDULERS ? warps : SCHEDULERS) / SCHEDULERS);
    double bytes = (double)(splits * d->size.batch * d->size.m * d->size.n) * (double)dtype_size(d->dtype);
    return (all > alone ? all : alone) + (splits > 1 ? bytes / (BYTES * (double)c->threads) + SECOND : 0);
}

/* Divides the contraction of copied operands, whole steps, into as many parts as take least time. */
static void choose_copied_split(const struct dot *d, const struct caps *c, struct schedule *s)
{
    enum { SHORTEST = 64, MEBIBYTES = 128, MANY_BLOCKS = 16 /* a processor: all have about as many */ };
    int64_t blocks = blocks_of(d, s), max = max_parts(d, SHORTEST, MEBIBYTES), step = s->dot_blocks.step;
    double best = cycles_of(d, c, s, 0);
    for (int64_t parts = 2; parts <= max && blocks < MANY_BLOCKS * (int64_t)c->threads / (parts - 1); parts++) {
        int64_t split = dot_parts(dot_parts(d->size.k, parts), step) * step;
        double cycles = split < d->size.k ? cycles_of(d, c, s, split) : best;
        if (cycles < best) {
            best = cycles;
            s->dot_blocks.split = (uint32_t)split;
        }
    }
}

/* Copies the operands, with as many stages, up to 4, as let two blocks fit into a processor's shared memory. */
static void choose_block_copies(const struct dot *d, const struct caps *c, struct schedule *s)
{
    enum { STEP = 16, MAX_STAGES = 4, BLOCKS = 2 };
    struct schedule x = *s;
    if (d->size.k > s->dot_blocks.step && blocks_have_steps(d, STEP))
        x.dot_blocks.step = STEP;
    x.dot_blocks.split = 0;
    if (dot_is_ordered(d))
        choose_threads_split(d, c, &x);
    else if (d->size.k % x.dot_blocks.step == 0)
        choose_copied_split(d, c, &x);
    x.dot_blocks.copy_a = x.dot_blocks.copy_b = 1;
    x.dot_blocks.stages = MAX_STAGES;
    while (x.dot_blocks.stages > 2 && BLOCKS * threads_bytes(d, &x) > (int64_t)c->shared_bytes)
        x.dot_blocks.stages--;
    if (!wrong_threads(d, c, &x).field)
        *s = x;
}

/* A product with too few rows or columns to fill the blocks of other shapes, but a long contraction, such as the
 * gradient of a convolution by its weights for an image of one channel.  Its parts occupy the device; with small tiles
 * a block has more threads, which load more at once.  (32 x 9 results of 50176 products each took an H100 16 us, with
 * tiles of 4x4 22 to 32, without blocks 4070.) */
static bool choose_narrow(const struct dot *d, const struct caps *c, struct schedule *s)
{
    enum { LONG = 512 };            /* elements of the contraction */
    static const struct dot_shape tall = {2, 2, 16, 8, 16}, wide = {2, 2, 8, 16, 16};
    if (d->size.m < 1 || d->size.n < 1 || d->size.k < LONG)
        return false;
    *s = of_shape(d, d->size.m < d->size.n ? &wide : &tall, SCHED_DOT_BLOCKS, 1);
    if (wrong_threads(d, c, s).field)
        return false;
    choose_threads_split(d, c, s);
    return true;
}

/* Chooses the largest tiles for which there are as many blocks as the GPU can run at once, and for which most
 * results of a block exist.  If the contraction is long enough, its parts have blocks of their own.  On devices whose
 * lanes should pass common elements to each other (caps.broadcast), the threads of a subgroup have the same rows, and
 * tall tiles load least. */
static bool choose_threads(const struct dot *d, const struct caps *c, struct schedule *s)
{
    enum { TALL = 4 };              /* number of shapes at the start of the table that are for such devices */
    static const struct dot_shape shape[] = {
        {16, 4, 8, 32, 8}, {16, 4, 8, 16, 8}, {16, 4, 4, 16, 8}, {16, 4, 2, 16, 8},
        {8, 8, 16, 16, 8}, {8, 8, 8, 8, 8}, {8, 4, 8, 8, 8}, {4, 4, 8, 8, 8}, {4, 4, 16, 4, 8}, {4, 4, 4, 16, 8}};
    bool found = false, vectors = c->async_copies && dot_has_vectors(d, false) && dot_has_vectors(d, true);
    for (unsigned i = c->broadcast ? 0 : TALL; i < sizeof shape / sizeof *shape; i++) {
        struct schedule x = of_shape(d, &shape[i], SCHED_DOT_BLOCKS, 1);
        /* a later shape is only used if its block has fewer results */
        bool no_smaller = found && x.dot_blocks.block_m * x.dot_blocks.block_n >=
                                       s->dot_blocks.block_m * s->dot_blocks.block_n;
        if (wrong_threads(d, c, &x).field || !blocks_are_full(d, &x) || no_smaller)
            continue;
        choose_threads_split(d, c, &x);
        if (vectors)
            choose_block_copies(d, c, &x);
        *s = x;
        found = true;
        if (fills_the_gpu(d, c, &x))
            break;
    }
    if (!found && !d->symbolic)
        found = choose_narrow(d, c, s);
    if (!found && d->symbolic) { /* there is no other kernel for symbols on a GPU: the one with the shorter side */
        *s = of_shape(d, &shape[sizeof shape / sizeof *shape - (d->size.m < d->size.n ? 1 : 2)], SCHED_DOT_BLOCKS, 1);
        found = !wrong_threads(d, c, s).field;
    }
    return found && fits_grid(d, s);
}

/* ---- tiles of subgroups ---- */

static unsigned factors_of(const struct dot *d) { return d->w->g->node[d->n->in[0]].dtype; }

enum { MAX_SUMS = 64, MAX_ASYNC_SUMS = 128 }; /* sums that a thread holds: with factors in registers, too, or without */

/* Elements of a step of one factor in shared memory, for the larger of its two layouts. */
static int64_t factor_elements(int64_t side, int64_t step, int64_t pad)
{
    int64_t by_k = side * (step + pad), by_side = step * (side + pad);
    return by_k > by_side ? by_k : by_side;
}

/* Elements of a slab of all tiles of a block, if each row has `more` elements of padding. */
static int64_t slab_elements(const struct schedule *s, int64_t more)
{
    const int64_t mr = s->dot_matrix.mr, nr = s->dot_matrix.nr;
    if (!mr || !nr)
        return 0;
    return s->dot_matrix.block_m / mr * s->dot_matrix.unit_m * (s->dot_matrix.block_n / nr * dot_matrix_part(s) + more);
}

enum { PHASES_BYTES = 64 };     /* of the barriers of up to 8 stages */

/* Bytes of shared memory: the steps of both operands and a slab of all tiles. */
static int64_t matrix_bytes(const struct dot *d, const struct schedule *s)
{
    unsigned dtype = factors_of(d);
    int64_t m = s->dot_matrix.block_m, n = s->dot_matrix.block_n, step = s->dot_matrix.step, pad = dot_vector(dtype);
    int64_t elements = s->dot_matrix.async ? (m + n) * step
        : factor_elements(m, step, pad) + factor_elements(n, step, pad);
    int64_t phases = s->dot_matrix.panels ? 2 * PHASES_BYTES : 0;
    int64_t slab = dot_matrix_slab_is_over(s) ? 0 : 4 * slab_elements(s, DOT_PAD);
    return (int64_t)dtype_size(dtype) * s->dot_matrix.stages * elements + slab + phases;
}

/* Does the unit multiply the product's factors? */
static bool unit_takes_factors(const struct dot *d, const struct mma_caps *u)
{
    return u->subgroup && u->dtypes >> factors_of(d) & 1;
}

/* The unit of the record or, if the record leaves it open, the one with the largest tile that divides the record's.  If
 * there is none, any unit for these factors, or the first one. */
static const struct mma_caps *unit_of(const struct dot *d, const struct caps *c, const struct schedule *s)
{
    const struct mma_caps *any = &c->mma[0];
    bool open = !s->dot_matrix.unit_m && !s->dot_matrix.unit_n && !s->dot_matrix.unit_k;
    if (s->dot_matrix.async)
        return &c->mma_async;
    for (unsigned i = MMA_UNITS; i-- > 0;)
        any = unit_takes_factors(d, &c->mma[i]) ? &c->mma[i] : any;
    for (unsigned i = 0; i < MMA_UNITS; i++) {
        const struct mma_caps *u = &c->mma[i];
        if (unit_takes_factors(d, u) &&
            (open ? s->dot_matrix.mr % u->m == 0 && s->dot_matrix.nr % u->n == 0 && s->dot_matrix.step % u->k == 0
                  : s->dot_matrix.unit_m == u->m && s->dot_matrix.unit_n == u->n && s->dot_matrix.unit_k == u->k))
            return u;
    }
    return any;
}

/* Further conditions of an asynchronous unit. */
static struct wrong wrong_async(const struct schedule *s)
{
    if (s->dot_matrix.stages < 3)
        return (struct wrong){"stages", "two steps may be multiplied while another one is on its way"};
    if (s->dot_matrix.step % PANEL_COLUMNS)
        return (struct wrong){"step", "rows are whole panels"};
    if (s->dot_matrix.block_n % PANEL_COLUMNS)
        return (struct wrong){"block", "rows are whole panels"};
    if (!s->dot_matrix.copy_a || !s->dot_matrix.copy_b)
        return (struct wrong){"async", "both operands are copied"};
    if (s->dot_matrix.panels && s->dot_matrix.step > MAX_PANEL_ROWS)
        return (struct wrong){"step", "a panel has at most 256 rows"};
    return (struct wrong){0};
}

static struct wrong wrong_matrix(const struct dot *d, const struct caps *c, const struct schedule *s)
{
    const struct mma_caps *u = unit_of(d, c, s);
    unsigned mr = s->dot_matrix.mr, nr = s->dot_matrix.nr;
    int64_t step = s->dot_matrix.step;
    if (s->dot_matrix.unit_m != u->m || s->dot_matrix.unit_n != u->n || s->dot_matrix.unit_k != u->k)
        return (struct wrong){"unit", "it is another on this target"};
    if (s->dot_matrix.subgroup != u->subgroup)
        return (struct wrong){"subgroup", "it has another length on this target"};
    if (!u->subgroup)
        return (struct wrong){"async", "this target has no such unit"};
    if (mr % u->m || nr % u->n || nr > u->max_n || nr % dot_matrix_part(s) || mr / u->m > DOT_MAX_SLABS ||
        mr * nr > (unsigned)(u->async ? MAX_ASYNC_SUMS : MAX_SUMS) * u->subgroup)
        return (struct wrong){"tile", "a whole number of the unit's tiles, and registers for its sums"};
    if (step % u->k)
        return (struct wrong){"step", "it is a whole number of the unit's steps"};
    if (s->dot_matrix.reordered && (!s->dot_matrix.copy_a || !s->dot_matrix.copy_b || s->dot_matrix.panels))
        return (struct wrong){"reordered", "both operands are copied in vectors"};
    if (s->dot_matrix.panels && (!s->dot_matrix.async || !c->panel_copies))
        return (struct wrong){"panels", "they are for an asynchronous unit of a target that copies panels"};
    if (s->dot_matrix.split % step)
        return (struct wrong){"split", "a part is a whole number of steps"};
    if (s->dot_matrix.stages < 2)
        return (struct wrong){"stages", "while one step is multiplied, another one is on its way"};
    struct wrong w = wrong_block(c, s, u->subgroup, matrix_bytes(d, s));
    if (!w.field && s->dot_matrix.async)
        w = wrong_async(s);
    if (!w.field && slab_elements(s, 0) % s->width)
        return (struct wrong){"block", "each thread has the same number of results of a slab"};
    return w;
}

static void set_unit(const struct dot *d, const struct caps *c, struct schedule *s)
{
    const struct mma_caps *u = unit_of(d, c, s);
    if (!s->dot_matrix.unit_m && !s->dot_matrix.unit_n && !s->dot_matrix.unit_k) {
        s->dot_matrix.unit_m = u->m;
        s->dot_matrix.unit_n = u->n;
        s->dot_matrix.unit_k = u->k;
    }
    if (!s->dot_matrix.subgroup)
        s->dot_matrix.subgroup = u->subgroup;
}

/* Chooses the number of steps in shared memory.  If copies are asynchronous, more steps in flight hide more of the
 * memory's latency: up to 4 steps, if so many blocks then fit into a processor's shared memory, else if one does.
 * Other copies go through registers, one step at a time. */
static void choose_stages(const struct dot *d, const struct caps *c, struct schedule *s, int blocks)
{
    enum { MAX_STAGES = 4, MIN_STAGES = 3 };
    int64_t steps = dot_parts(d->size.k, s->dot_matrix.step) + 1 + s->dot_matrix.async;
    int64_t max = steps < MAX_STAGES ? steps : MAX_STAGES;
    for (; blocks >= 1 && c->async_copies && max >= MIN_STAGES; blocks--)
        for (s->dot_matrix.stages = (uint8_t)max; s->dot_matrix.stages >= MIN_STAGES; s->dot_matrix.stages--)
            if (blocks * matrix_bytes(d, s) <= (int64_t)c->shared_bytes)
                return;
    s->dot_matrix.stages = 2;
}

/* Divides the contraction into parts if the blocks have too few threads to occupy the device, as long as a part has
 * enough elements and the parts' sums need little memory. */
static void choose_split(const struct dot *d, const struct caps *c, struct schedule *s)
{
    enum { A_PROCESSOR = 256, SHORTEST = 256, MEBIBYTES = 64 };
    int64_t step = s->dot_matrix.step, max = max_parts(d, SHORTEST, MEBIBYTES);
    int64_t threads = s->width + dot_matrix_producer(s);
    int64_t parts = dot_parts((int64_t)c->threads * A_PROCESSOR, blocks_of(d, s) * threads);
    parts = parts < max ? parts : max;
    if (parts > 1)
        s->dot_matrix.split = (uint32_t)(dot_parts(dot_parts(d->size.k, parts), step) * step);
}

/* Do both factors have a dtype that the matrix units multiply? */
static bool has_units(const struct dot *d, const struct caps *c)
{
    bool any = unit_takes_factors(d, &c->mma_async);
    for (unsigned i = 0; i < MMA_UNITS; i++)
        any |= unit_takes_factors(d, &c->mma[i]);
    return any && d->w->g->node[d->n->in[1]].dtype == factors_of(d) && d->size.batch >= 1 && d->size.k >= 1;
}

/* Are both operands arrays of vectors in the order of the graph? */
static bool is_copied(const struct dot *d)
{
    enum { SIDE = 64 };
    const struct schedule s = {.width = DOT_VECTOR, .dot_matrix = {.block_m = SIDE, .block_n = SIDE, .step = SIDE}};
    return dot_matrix_copies(d, &s, NULL, false) && dot_matrix_copies(d, &s, NULL, true);
}

static bool has_views(const struct dot *d, const struct schedule *s)
{
    struct dot_view view;
    return dot_view_find(d, s, false, &view) && dot_view_find(d, s, true, &view);
}

/* Estimated cycles of a product by an asynchronous unit.  Blocks run in waves, one on each processor; a step takes as
 * long as its products or its copies, whichever is longer, and a block has no products while it is filled and while its
 * results are stored, unless another block is on its processor.  The constants are an H100's: products and bytes from
 * the L2 cache a cycle, at 718 TFLOP/s of 4096 cubed; results stored, and parts' sums read or written, a cycle. */
static double async_cycles(const struct dot *d, const struct caps *c, const struct schedule *s)
{
    const double products = 2048, copied = 56, stored = 12, summed = 4, fill = 2000, phase = 4000;
    double m = s->dot_matrix.block_m, n = s->dot_matrix.block_n, step = s->dot_matrix.step;
    int64_t splits = dot_splits(d, s->dot_matrix.split), blocks = blocks_of(d, s) * splits;
    int64_t length = splits > 1 ? s->dot_matrix.split : d->size.k;
    double multiply = m * n * step / products, copy = (m + n) * step * (double)dtype_size(factors_of(d)) / copied;
    double own = (double)dot_parts(length, s->dot_matrix.step) * (multiply > copy ? multiply : copy);
    double alone = (fill + m * n / stored) / (s->width > s->dot_matrix.subgroup ? 1 : 2);
    double results = (double)d->size.batch * (double)d->size.m * (double)d->size.n;
    double sums = splits > 1 ? phase + results * (double)(2 * splits) / (summed * c->threads) : 0;
    return (double)dot_parts(blocks, c->threads) * (own + alone) + sums;
}

/* Sets the number of parts of the contraction for which *cycles is least. */
static void choose_async_split(const struct dot *d, const struct caps *c, struct schedule *s, double *cycles)
{
    enum { SHORTEST = 256, MEBIBYTES = 64, MAX_COUNT = 8 };
    int64_t max = max_parts(d, SHORTEST, MEBIBYTES);
    struct schedule x = *s;
    *cycles = async_cycles(d, c, s);
    for (int64_t parts = 2; parts <= MAX_COUNT && parts <= max; parts++) {
        x.dot_matrix.split = (uint32_t)(dot_parts(dot_parts(d->size.k, parts), x.dot_matrix.step) * x.dot_matrix.step);
        double now = fits_grid(d, &x) ? async_cycles(d, c, &x) : INFINITY;
        if (now < *cycles) {
            *cycles = now;
            *s = x;
        }
    }
}

/* Takes the first of n shapes whose tiles occupy the device, or the last one that is possible.  async: tiles for the
 * unit that reads both factors from shared memory, where they have the order that they have in memory; of these it
 * takes the shape, and the parts of the contraction, that take the fewest cycles.  o: the order of the operands; NULL:
 * as in the graph. */
static bool choose_shape(const struct dot *d, const struct caps *c, const struct dot_shape *shape, unsigned n,
                         bool async, const struct dot_order *o, struct schedule *s)
{
    enum { HALF = 2 }; /* bytes of a half: a shape's step is in halves */
    uint32_t subgroup = async ? unit_takes_factors(d, &c->mma_async) * c->mma_async.subgroup
        : unit_of(d, c, &(struct schedule){0})->subgroup;
    bool found = false;
    double min = INFINITY, cycles;
    for (unsigned i = 0; subgroup && has_units(d, c) && i < n; i++) {
        struct schedule x = of_shape(d, &shape[i], SCHED_DOT_MATRIX, subgroup);
        x.dot_matrix.step = (uint16_t)(x.dot_matrix.step * HALF / dtype_size(factors_of(d)));
        x.dot_matrix.async = async;
        set_unit(d, c, &x);
        x.dot_matrix.panels = async && !o && c->panel_copies && has_views(d, &x);
        choose_stages(d, c, &x, async ? 1 : 2);
        x.dot_matrix.copy_a = x.dot_matrix.panels || ((async || o) && dot_matrix_copies(d, &x, o, false));
        x.dot_matrix.copy_b = x.dot_matrix.panels || ((async || o) && dot_matrix_copies(d, &x, o, true));
        x.dot_matrix.reordered = o != NULL;
        if (wrong_matrix(d, c, &x).field || !blocks_are_full(d, &x) || (async && !fits_grid(d, &x)))
            continue;
        if (async)
            choose_async_split(d, c, &x, &cycles);
        if (!async || cycles < min)
            *s = x;
        min = async && cycles < min ? cycles : min;
        found = true;
        if (!async && fills_the_gpu(d, c, &x))
            break;
    }
    if (!found || !fits_grid(d, s))
        return false;
    if (!async)
        choose_split(d, c, s);
    return true;
}

/* Takes two blocks on a processor where the epilogue computes much: one multiplies while the other one computes.  (The
 * derivative of gelu, 58 instructions: 149 us on an H100, with blocks of 128x256 170; gelu, 34: 104 and 104; without
 * an epilogue tiles of 128x128 have 0.67 to 0.9 of the speed of larger ones.) */
static void choose_two_blocks(const struct dot *d, const struct caps *c, struct schedule *s)
{
    enum { MANY_INSTRUCTIONS = 48, WAVES = 4 };
    static const struct dot_shape shape = {64, 128, 2, 1, 64};
    struct schedule x = of_shape(d, &shape, SCHED_DOT_MATRIX, s->dot_matrix.subgroup);
    x.dot_matrix.async = x.dot_matrix.panels = x.dot_matrix.copy_a = x.dot_matrix.copy_b = 1;
    set_unit(d, c, &x);
    choose_stages(d, c, &x, 2);
    if (s->dot_matrix.panels && !s->dot_matrix.split && dtype_is_half(factors_of(d)) && dot_matrix_blocks(&x) > 1 &&
        blocks_of(d, &x) >= WAVES * (int64_t)c->threads && has_views(d, &x) && !wrong_matrix(d, c, &x).field &&
        dot_epilogue_instructions(d) >= MANY_INSTRUCTIONS)
        *s = x;
}

static bool choose_async(const struct dot *d, const struct caps *c, const struct dot_order *o, struct schedule *s)
{
    static const struct dot_shape shape[] = {{64, 256, 2, 1, 64}, {64, 192, 2, 1, 64}, {64, 128, 2, 1, 64},
                                             {64, 128, 1, 1, 64}, {64, 64, 1, 1, 64}};
    if (!choose_shape(d, c, shape, sizeof shape / sizeof *shape, true, o, s))
        return false;
    choose_two_blocks(d, c, s);
    return true;
}

/* Products of a few rows are limited by memory: long steps, of which several are on their way, and the contraction in
 * as many parts as occupy the device.  (Tiles of 16 columns a block, without parts, had 12 KB on their way for each
 * processor of an H100, which needs 20.) */
static bool choose_matrix_few_rows(const struct dot *d, const struct caps *c, const struct dot_order *o,
                                   struct schedule *s)
{
    static const struct dot_shape shape[] = {{16, 16, 1, 4, 64}};
    struct schedule x = *s;
    bool found = d->size.m <= GPU_FEW_ROWS && c->async_copies && choose_shape(d, c, shape, 1, false, o, &x) &&
                 fills_the_gpu(d, c, &x);
    if (found)
        *s = x;
    return found;
}

static bool choose_matrix(const struct dot *d, const struct caps *c, const struct dot_order *o, struct schedule *s)
{
    static const struct dot_shape shape[] = {
        {64, 64, 2, 2, 16}, {64, 32, 2, 4, 32}, {64, 32, 2, 4, 16}, {64, 32, 2, 2, 32}, {32, 32, 2, 2, 32},
        {32, 16, 1, 2, 32}, {16, 32, 2, 1, 32}, {16, 16, 1, 1, 32}};
    static const struct dot_shape small[] = { /* for subgroups of 8 and 16 threads, which have few registers */
        {32, 32, 2, 2, 16}, {16, 32, 2, 2, 16}, {16, 16, 2, 2, 16}, {16, 16, 2, 2, 32}, {16, 16, 1, 1, 16}};
    return choose_matrix_few_rows(d, c, o, s) || choose_shape(d, c, shape, sizeof shape / sizeof *shape, false, o, s) ||
           choose_shape(d, c, small, sizeof small / sizeof *small, false, o, s);
}

/* ---- which family ---- */

/* May blocks of threads compute the product? */
static bool has_blocks(const struct dot *d)
{
    return d->w->chooser->caps->is_gpu && d->dtype != KL_BOOL && d->size.batch >= 1 && d->size.k >= 1;
}

static bool grid_legal(const struct dot *d, const struct schedule *s)
{
    return fits_grid(d, s) || reject_schedule(d->w, "block", "block: there are too many of them");
}

bool dot_blocks_fits(struct dot *d) { return has_blocks(d) && d->unit == 1; }

bool dot_blocks_choose(struct dot *d, struct schedule *s)
{
    return d->w->chooser->want || choose_threads(d, d->w->chooser->caps, s);
}

bool dot_blocks_legal(const struct dot *d, const struct schedule *s)
{
    if (!d->w->chooser->want)
        return grid_legal(d, s);
    if (!dot_kblock_legal(d, s))
        return false;
    if (s->dot_blocks.split && d->symbolic)
        return reject_schedule(d->w, "split", "the contraction has no parts if a length is symbolic");
    if (!not_wrong(d, wrong_threads(d, d->w->chooser->caps, s)) || !split_legal(d, s->dot_blocks.split))
        return false;
    if ((s->dot_blocks.copy_a && !dot_has_vectors(d, false)) || (s->dot_blocks.copy_b && !dot_has_vectors(d, true)))
        return reject_schedule(d->w, s->dot_blocks.copy_a && !dot_has_vectors(d, false) ? "copy_a" : "copy_b",
                               "the operand is no array of vectors");
    return grid_legal(d, s);
}

/* Units add floats in orders of their own. */
bool dot_matrix_fits(struct dot *d)
{
    return has_blocks(d) && !dot_is_ordered(d) && has_units(d, d->w->chooser->caps);
}

bool dot_matrix_choose(struct dot *d, struct schedule *s)
{
    const struct caps *c = d->w->chooser->caps;
    struct dot_order order;
    if (d->w->chooser->want) {
        set_unit(d, c, s);
        if (!s->dot_matrix.stages)
            choose_stages(d, c, s, 2);
        return true;
    }
    if (choose_async(d, c, NULL, s))
        return true;
    if (!is_copied(d) && dot_order_find(d, &order) &&
        (choose_async(d, c, &order, s) || choose_matrix(d, c, &order, s)))
        return true;
    if (!choose_matrix(d, c, NULL, s))
        return false;
    s->dot_matrix.copy_a = dot_matrix_copies(d, s, NULL, false);
    s->dot_matrix.copy_b = dot_matrix_copies(d, s, NULL, true);
    return true;
}

bool dot_matrix_legal(const struct dot *d, const struct schedule *s)
{
    struct dot_order order;
    bool reordered = s->dot_matrix.reordered;
    if (!d->w->chooser->want)
        return grid_legal(d, s);
    if (!dot_kblock_legal(d, s) || !not_wrong(d, wrong_matrix(d, d->w->chooser->caps, s)))
        return false;
    if (reordered && !dot_order_find(d, &order))
        return reject_schedule(d->w, "reordered", "there is no order in which both operands consist of vectors");
    for (int second = 0; second < 2; second++) {
        bool copied = second ? s->dot_matrix.copy_b : s->dot_matrix.copy_a;
        if (copied && !s->dot_matrix.panels && !dot_matrix_copies(d, s, reordered ? &order : NULL, second))
            return reject_schedule(d->w, second ? "copy_b" : "copy_a",
                                   "the operand is not of whole vectors for each thread");
    }
    if (s->dot_matrix.split && d->symbolic)
        return reject_schedule(d->w, "split", "the contraction has no parts if a length is symbolic");
    if (s->dot_matrix.panels && !has_views(d, s))
        return reject_schedule(d->w, "panels",
                               "an operand is no array of whole vectors whose distances are multiples");
    return grid_legal(d, s);
}

/* ---- few rows ---- */

enum { SKINNY_LANES = 64, LANES_ALONG = 32 };

bool gpu_dot_skinny_fits(struct dot *d)
{
    enum { MIN_COUNT = 64 };
    const struct caps *c = d->w->chooser->caps;
    if (dot_is_ordered(d) && (dot_along_k(d, true) || d->unit != 1))
        return false; /* lanes would have parts of the contraction */
    return c->is_gpu && !d->symbolic && c->block_threads >= SKINNY_LANES && d->size.m <= GPU_FEW_ROWS &&
           d->size.m > 0 && d->dtype != KL_BOOL && d->size.batch > 0 && d->size.n >= MIN_COUNT &&
           d->size.k >= MIN_COUNT && d->size.k <= UINT32_MAX;
}

/* Is the kernel for few rows faster than the matrix units? */
static bool prefers_few_rows(const struct dot *d)
{
    bool half = dtype_is_half(d->w->g->node[d->n->in[0]].dtype);
    return !half || d->size.m <= GPU_FEW_ROWS / 2 || dot_is_ordered(d) || !has_units(d, d->w->chooser->caps);
}

bool gpu_dot_skinny_choose(struct dot *d, struct schedule *s)
{
    enum { SHORTEST = 32, A_PROCESSOR = 4 };
    const struct chooser *c = d->w->chooser;
    if (!c->want && !prefers_few_rows(d))
        return false;
    bool along_k = dot_along_k(d, true);
    int64_t each = gpu_skinny_vector_width(d, along_k), columns = SKINNY_LANES * each;
    if (!c->want) {
        s->gpu_dot_skinny.kc = (uint32_t)d->kblock;
        s->gpu_dot_skinny.mr = (uint16_t)d->size.m;
        s->gpu_dot_skinny.nr = (uint16_t)each;
    }
    if (!s->width)
        s->width = along_k ? LANES_ALONG : SKINNY_LANES;
    if (!s->gpu_dot_skinny.split && !along_k) {
        int64_t blocks = d->size.batch * ((d->size.n + columns - 1) / columns);
        int64_t parts = (A_PROCESSOR * (int64_t)c->caps->threads + blocks - 1) / blocks, max = d->size.k / SHORTEST;
        parts = parts > max ? max : parts;
        int64_t step = d->size.k % GPU_SKINNY_TOGETHER ? 1 : GPU_SKINNY_TOGETHER;
        int64_t length = dot_parts(dot_parts(d->size.k, parts), step) * step;
        s->gpu_dot_skinny.split = (uint32_t)(dot_is_ordered(d) ? d->kblock : length);
    }
    return true;
}

bool gpu_dot_skinny_legal(const struct dot *d, const struct schedule *s)
{
    bool along_k = dot_along_k(d, true);
    int64_t each = gpu_skinny_vector_width(d, along_k), split = s->gpu_dot_skinny.split;
    if (!dot_kblock_legal(d, s))
        return false;
    if (s->gpu_dot_skinny.mr != d->size.m || s->gpu_dot_skinny.nr != each)
        return reject_schedule(d->w, "tile", "tile: it is %dx%d here", (int)d->size.m, (int)each);
    if (s->width > d->w->chooser->caps->block_threads)
        return reject_schedule(d->w, "width", "width %u: a block of this target has fewer threads", s->width);
    if (!split_legal(d, (uint32_t)split))
        return false;
    return (along_k ? !split : split <= (d->size.k > d->kblock ? d->size.k : d->kblock)) ||
           reject_schedule(d->w, "split", "split: of columns that are vector, at most the contraction");
}
