/* The schedules of elementwise groups, scatters, scans and sorts, and what all choosing shares.
 *
 * On GPUs adjacent threads have adjacent elements of the innermost dimension, so that the accesses of a warp are
 * coalesced; vectorization (`vector`) gives a thread several adjacent elements, which it accesses at once.  Coalescing
 * of operands that are contiguous along another dimension is chosen in gpu/lower_gpu_transpose.c.  On processors such
 * operands are read in tiles (elementwise/lower_transpose.c). */
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

bool anchor_in_graph_order(const struct lowering *w)
{
    return in_graph_order(w) && dtype_is_float(w->g->node[w->anchor].dtype);
}

bool graph_order_legal(const struct lowering *w)
{
    const struct schedule *want = w->chooser->want;
    return !want || !want->graph_order || in_graph_order(w) ||
           reject_schedule(w, NULL, "graph_order: option order says that, no schedule");
}

bool reject_order(const struct lowering *w, const char *field)
{
    return reject_schedule(w, field, "%s: with it sums are not in the graph's order", field);
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

/* Elements of work that pay for starting a task on a thread, which takes microseconds.  No measurement is recorded. */
enum { TASK_WORK = 1 << 15 };

int64_t lower_grain(int64_t extent, int64_t work)
{
    int64_t per = work > 0 ? work : 1;
    bool small = extent < 2 || per <= (2 * TASK_WORK - 1) / extent; /* a product could overflow */
    return small ? 0 : per >= TASK_WORK ? 1 : (TASK_WORK + per - 1) / per;
}

bool results_are_streamed(const struct lowering *w, int64_t bytes)
{
    return bytes >= w->chooser->caps->l3_bytes && !w->assigned && !w->placeholders;
}

/* ---- elementwise groups ---- */

/* Vectors of an iteration of the parallel loop: BLOCK_VECTORS of a group of one part; PART_VECTORS of one of several,
 * where an iteration first finds its part.  SHORT_DIMENSION: elements of an innermost dimension that on a GPU is
 * iterated over together with those around it, since a row of it leaves lanes idle.  BLOCKS_A_PROCESSOR: iterations of
 * a GPU's kernel for each of its processors, so that one that ends early gets another.  No measurement is recorded. */
enum { BLOCK_VECTORS = 16, PART_VECTORS = 64, SHORT_DIMENSION = 256, BLOCKS_A_PROCESSOR = 8 };

bool map_joins(const struct map_part *p, const struct schedule *s)
{
    return s->map.join_short && !p->flat && p->loop.length < SHORT_DIMENSION;
}

/* The part as its loops are. */
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

/* On a processor, operands that fit half of the first-level cache are read in any order: which of them it has then does
 * not depend on it, and squares would take longer to compile. */
static int64_t transpose_bytes(const struct caps *caps) { return caps->l1_bytes / 2; }

bool map_can_transpose(const struct lowering *w, uint32_t parts, int64_t elements)
{
    enum { LARGEST = 8 }; /* bytes of an element */
    const struct schedule *want = w->chooser->want;
    const struct caps *caps = w->chooser->caps;
    if (parts != 1 || (want && want->kind != SCHED_GPU_TRANSPOSE && want->kind != SCHED_TRANSPOSE))
        return false;
    return caps->is_gpu || want || (elements > transpose_bytes(caps) / LARGEST && !caps->compact);
}

/* Lanes of squares: a vector's, or half as many of a side that is so short.  0: it is shorter. */
static int64_t square_lanes(const struct map_facts *f)
{
    int64_t lanes = f->w->chooser->caps->vector_bytes / (f->element / f->loads > 4 ? 8 : 4);
    int64_t side = f->rows < f->columns ? f->rows : f->columns;
    return lanes <= side ? lanes : lanes / 2 <= side ? lanes / 2 : 0;
}

bool transpose_fits(struct map_facts *f) { return f->loads && f->rows && f->columns && f->matrices; }

/* Tiles whose scratch is at most half of the first-level cache, so that it stays there beside what is read and stored;
 * sides of a few cache lines.  What does not come from the second-level cache is prefetched: 4096x4096 f32 take 0.57 of
 * the time, 1000x1000 f32, which the cache half holds, 1.15. */
bool transpose_choose(struct map_facts *f, struct schedule *s)
{
    enum { MIN_SIDE = 16, MAX_SIDE = 256, SIDE_BYTES = 256, CACHES = 4 };
    const struct caps *caps = f->w->chooser->caps;
    int64_t square = square_lanes(f), side = MAX_SIDE;
    if (!f->w->chooser->want) {
        if (square < 2 || f->rows * f->columns * f->matrices * f->element <= transpose_bytes(caps))
            return false;
        while (side > MIN_SIDE && (side * side * f->element > transpose_bytes(caps) ||
                                   side * f->element > SIDE_BYTES * f->loads))
            side /= 2;
        s->transpose.rows = s->transpose.columns = (uint16_t)side;
        int64_t tiles = transpose_parts(f->rows, side) * transpose_parts(f->columns, side) * f->matrices;
        s->transpose.prefetch = f->columns > side &&
                                f->rows * f->columns * f->matrices * f->element > CACHES * caps->l2_bytes;
        s->stream = results_are_streamed(f->w, f->bytes);
        s->grain = lower_grain(tiles, side * side);
    }
    if (!s->width)
        s->width = (uint16_t)map_width(caps, f, s);
    if (!s->transpose.square)
        s->transpose.square = (uint16_t)(square > 0 ? square : 1);
    return true;
}

bool transpose_legal(const struct map_facts *f, const struct schedule *s)
{
    int64_t square = s->transpose.square;
    return (square <= f->rows && square <= f->columns) ||
           reject_schedule(f->w, "square", "square %d: the operand has fewer rows or columns", (int)square);
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

/* ---- scatters, scans, sorts ---- */

/* On a GPU, phases of a thread for each element or chunk. */
static void choose_thread_phases(const struct caps *caps, struct schedule *s)
{
    /* Threads of a block: 32 of these blocks fill a processor, and short arrays have more of them. */
    enum { THREADS = 64 };
    if (!s->width)
        s->width = (uint16_t)(caps->block_threads < THREADS ? caps->block_threads : THREADS);
}

static bool thread_phases_legal(const struct lowering *w, const struct schedule *s)
{
    return s->width <= w->chooser->caps->block_threads ||
           reject_schedule(w, "width", "width %u: a block of this target has fewer threads", s->width);
}

/* The same for kernels whose blocks have `bytes` for each thread, and SHARED_ENDS more, in shared memory.  Larger
 * blocks, up to THREADS, save levels and with them launches, where there is work for all of the device: for so many
 * threads.  Else they have no fewer than FEWEST, two warps.  No measurement is recorded. */
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

enum { SCATTER_BYTES = GPU_SORT_OWN * 2 * sizeof(int32_t) };    /* of a thread: keys and their indices */

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

enum { SCAN_BYTES = 2 * GPU_SCAN_LINES * sizeof(int64_t) };     /* of a thread: two copies of its elements */

bool gpu_scan_fits(struct scan_facts *f)
{
    return f->w->chooser->caps->is_gpu && f->phases && !anchor_in_graph_order(f->w);
}

bool gpu_scan_choose(struct scan_facts *f, struct schedule *s)
{
    const struct chooser *c = f->w->chooser;
    if (f->inner == 1)
        choose_shared_phases(c->caps, f->outer * f->len / GPU_SCAN_LINES, SCAN_BYTES, s);
    else
        choose_thread_phases(c->caps, s);
    if (!c->want && f->inner == 1 && c->caps->in_order)
        s->gpu_scan.one_pass = gpu_scan_parts(f->w, f->outer, f->len, s->width) > 1;
    return true;
}

bool gpu_scan_legal(const struct scan_facts *f, const struct schedule *s)
{
    if (s->gpu_scan.one_pass && (f->inner > 1 || !f->w->chooser->caps->in_order))
        return reject_schedule(f->w, "one_pass", f->inner > 1 ? "one_pass: it is along the last axis"
                                                              : "one_pass: this target's blocks must not wait for "
                                                                "each other");
    return f->inner == 1 ? shared_phases_legal(f->w, SCAN_BYTES, s) : thread_phases_legal(f->w, s);
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

