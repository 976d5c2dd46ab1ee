/* The schedules of elementwise groups, rows, reductions, scatters, scans and sorts, and what all choosing shares. */
#include "lower_schedule.h"
#include <stdarg.h>

/* ---- what all families share ---- */

void chooser_find(struct chooser *c, const struct target_set *targets, unsigned device)
{
    c->target = 0;
    while (c->target + 1 < targets->n && targets->v[c->target].devices &&
           !(targets->v[c->target].devices >> device & 1))
        c->target++;
    c->caps = targets->v[c->target].caps;
}

struct hash128 chooser_hash(const struct chooser *c) { return bytes_hash(c->caps, sizeof *c->caps); }

bool schedule_no(const struct lowering *w, const char *field, const char *fmt, ...)
{
    char why[sizeof w->chooser->refusal->why];
    va_list ap;
    va_start(ap, fmt);
    format_text_v(why, sizeof why, fmt, ap);
    va_end(ap);
    return sched_refuse(w->chooser->refusal, field, "%s", why);
}

bool schedule_wanted(const struct lowering *w, enum sched_kind kind)
{
    return w->chooser->want && w->chooser->want->kind == kind;
}

bool schedule_begin(const struct lowering *w, enum sched_kind kind, struct schedule *s)
{
    const struct schedule *want = w->chooser->want;
    *s = want ? *want : (struct schedule){.kind = (uint16_t)kind};
    return s->kind == kind || schedule_no(w, NULL, "the kernel's kind is not a choice");
}

bool schedule_end(struct lowering *w, const struct schedule *s, bool legal)
{
    legal = legal && (!w->chooser->want || sched_in_range(s, w->chooser->refusal));
    w->k->sched = *s;
    if (!legal && !w->k->err.code)
        err_set(&w->k->err, KL_ERR_ARGUMENT, "%s: %s", w->k->name, w->chooser->refusal->why);
    return legal && !w->chooser->only && !w->k->err.code;
}

bool schedule_width_is(const struct lowering *w, const struct schedule *s, unsigned own)
{
    return s->width == own ||
           schedule_no(w, "width", "width %u: it is %u here, the order of the graph's sums", s->width, own);
}

enum { FEW_ELEMENTS = 1 << 13 }; /* computed in microseconds by whatever code */

struct loop_facts lower_loop(const struct lowering *w, int64_t length)
{
    int64_t most = 0;
    for (uint32_t m = 0; m < w->nmember; m++)
        most = node_numel(w->g, w->member[m]) > most ? node_numel(w->g, w->member[m]) : most;
    return (struct loop_facts){length, w->nmember, !w->anchor && most <= FEW_ELEMENTS};
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

enum { TASK_WORK = 1 << 15 }; /* elements of work that pay for handing a task to a thread */

int64_t lower_grain(int64_t extent, int64_t work)
{
    int64_t per = work > 0 ? work : 1;
    bool small = extent < 2 || per <= (2 * TASK_WORK - 1) / extent; /* a product could overflow */
    return small ? 0 : per >= TASK_WORK ? 1 : (TASK_WORK + per - 1) / per;
}

/* Are results stored non-temporally?  Where the kernel's arrays fill the last cache, what it has stored first is gone
 * when it ends, and writing it there costs reading it, too.  But a state's next value goes where the old one was just
 * read. */
static bool streams(const struct lowering *w, int64_t bytes)
{
    return bytes >= w->chooser->caps->l3_bytes && !w->assigned;
}

/* ---- elementwise groups ---- */

enum { BLOCK_VECTORS = 16, PART_VECTORS = 64 };

int64_t map_iterations(const struct map_part *p, const struct schedule *s)
{
    int64_t step = (int64_t)s->map.vectors * s->width;
    return p->flat ? (p->loop.length + step - 1) / step : p->outer;
}

/* Lanes for a part: two vectors, which hide each other's latency, or one where there is much work on it.  The processor
 * finds more in the next iterations, unless the work is so long that it sees no next iteration; four vectors would be
 * no faster, and what LLVM takes to compile goes with their number. */
static uint32_t part_width(const struct caps *caps, const struct map_part *p)
{
    enum { MUCH = 48, LONG = 160 };
    uint32_t width = lower_width(caps, &p->loop), native = lower_native(caps);
    uint32_t most = p->work <= MUCH || p->work > LONG ? 2 * native : native;
    return width > most ? most : width;
}

static uint32_t map_width(const struct caps *caps, const struct map_facts *f)
{
    uint32_t width = 0, native = lower_native(caps); /* what LLVM takes to compile goes with width and parts */
    for (uint32_t i = 0; i < f->parts; i++) {
        uint32_t own = part_width(caps, &f->part[i]);
        width = own > width ? own : width;
    }
    return f->parts > 1 && width > native ? native : width;
}

static int64_t map_grain(const struct map_facts *f, const struct schedule *s)
{
    int64_t extent = 0, work = 1, block = (int64_t)s->map.vectors * s->width;
    for (uint32_t i = 0; i < f->parts; i++) {
        int64_t own = f->part[i].flat ? block : f->part[i].loop.length;
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

bool choose_map(struct lowering *w, const struct map_facts *f, struct schedule *s)
{
    const struct caps *caps = w->chooser->caps;
    bool empty = map_is_empty(f);
    bool legal = schedule_begin(w, SCHED_MAP, s);
    if (legal && !s->width)
        s->width = (uint16_t)map_width(caps, f);
    if (legal && !s->map.vectors)
        s->map.vectors = f->parts > 1 && !empty ? PART_VECTORS : BLOCK_VECTORS;
    if (!w->chooser->want) {
        s->stream = streams(w, empty ? 0 : f->bytes);
        s->grain = map_grain(f, s);
    }
    return schedule_end(w, s, legal);
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

bool choose_rows(struct lowering *w, struct rows_facts *f, rows_find *find, void *ctx, struct schedule *s)
{
    bool legal = schedule_begin(w, SCHED_ROWS, s);
    if (legal && !s->width)
        s->width = numeric_lanes(f->length);
    legal = legal && schedule_width_is(w, s, numeric_lanes(f->length)) &&
            (!(s->rows.keep & ~f->may_keep) ||
             schedule_no(w, "keep", "keep: only of members that several walks over the row need"));
    if (!w->chooser->want) {
        find(w, s, f, ctx);
        s->rows.keep = f->keep;
        s->stream = streams(w, f->bytes);
        s->grain = lower_grain(f->rows, f->length * (f->reduces + 1));
    }
    return schedule_end(w, s, legal);
}

/* ---- reductions ---- */

enum { MIN_EPILOGUE_WORK = 4, MIN_BLOCKS = 16, MAX_BLOCK_VECTORS = 16 };
enum { MAX_LINES = 8, LINE_BYTES = 64, ROWS_AHEAD = 8, FAR_BYTES = 2048, MANY_BYTES = 1 << 20 };
enum { LEAST_ROW = 256, SMALL_ARRAY = 1 << 16 }; /* bytes: of a row worth a prefetch, of an array that stays cached */

int64_t reduce_inner(const struct reduce_facts *f, uint32_t axes)
{
    int64_t n = 1;
    for (uint32_t d = f->kept.rank - axes; d < f->kept.rank; d++)
        n *= f->kept.dim[d];
    return n;
}

/* The last kept axes that lanes lie in: those which all accesses step over as over one, windows for example being
 * neighbours only within a row of the image.  All of them where that would leave less than half a vector. */
static uint16_t reduce_axes(const struct caps *caps, const struct reduce_facts *f)
{
    return (uint16_t)(f->merged_length < (int64_t)caps->vector_bytes / f->compute / 2 ? f->most : f->merged);
}

/* Is the epilogue to be computed for blocks of rows?  As scalars it takes `work` instructions a row, beside one for
 * each vector of the row's elements; where that is a small part of the time, a block would only make tasks larger.
 * Several vectors, so that the first results have reached the cache before they are read as a vector. */
static void choose_row_block(const struct caps *caps, const struct reduce_facts *f, struct schedule *s)
{
    int64_t lanes = caps->vector_bytes / 4, vectors = MAX_BLOCK_VECTORS, results = shape_count(&f->kept);
    if (caps->is_gpu || !f->kept.rank || results < MIN_BLOCKS * lanes)
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
    if (!s->row_reduce.lanes)
        return (!s->row_reduce.vectors && !s->row_reduce.axes) ||
               schedule_no(w, s->row_reduce.vectors ? "vectors" : "axes", "vectors, axes: only of blocks, with lanes");
    if (w->chooser->caps->is_gpu)
        return schedule_no(w, "lanes", "lanes: blocks of rows are for processors");
    if (!s->row_reduce.vectors)
        return schedule_no(w, "vectors", "vectors: a block of rows has at least one");
    return s->row_reduce.axes <= f->kept.rank ||
           schedule_no(w, "axes", "axes %u: there are %u", s->row_reduce.axes, f->kept.rank);
}

static bool choose_row_reduce(struct lowering *w, const struct reduce_facts *f, struct schedule *s)
{
    bool legal = schedule_begin(w, SCHED_ROW_REDUCE, s);
    if (legal && !s->width)
        s->width = numeric_lanes(f->len);
    if (!w->chooser->want)
        choose_row_block(w->chooser->caps, f, s);
    legal = legal && schedule_width_is(w, s, numeric_lanes(f->len)) && row_block_legal(w, f, s);
    if (!w->chooser->want) {
        int64_t rows = (int64_t)s->row_reduce.lanes * s->row_reduce.vectors;
        int64_t inner = rows ? reduce_inner(f, s->row_reduce.axes) : 1, results = shape_count(&f->kept);
        int64_t blocks = rows ? (inner + rows - 1) / rows : 1;
        s->grain = lower_grain(inner ? results / inner * blocks : 0, f->len * (rows ? rows : 1));
    }
    return schedule_end(w, s, legal);
}

/* Where few rows are reduced, their array is in the cache when its next columns are: the same columns of the next array
 * are prefetched.  Many rows lie too far apart for it to be done by the processor, and with a prologue only a few of
 * them are in flight at a time. */
static void choose_prefetch(const struct caps *caps, const struct reduce_facts *f, struct schedule *s)
{
    int64_t inner = reduce_inner(f, s->column_reduce.axes), bytes = inner * f->element;
    int64_t arrays = inner ? shape_count(&f->kept) / inner : 0, len = f->len ? f->len : 1;
    bool small = arrays > 1 && bytes >= LEAST_ROW && bytes * f->len <= SMALL_ARRAY;
    bool far = bytes >= FAR_BYTES && f->prologue && !s->column_reduce.short_rows;
    if ((!small && !far) || caps->is_gpu || f->bytes < MANY_BYTES)
        return;
    int64_t lines = (s->width * f->element + LINE_BYTES - 1) / LINE_BYTES;
    s->column_reduce.lines = (uint16_t)(lines < MAX_LINES ? lines : MAX_LINES);
    s->column_reduce.ahead = (uint16_t)(small ? (ROWS_AHEAD + f->len - 1) / len * f->len : ROWS_AHEAD);
}

static bool columns_legal(const struct lowering *w, const struct reduce_facts *f, const struct schedule *s)
{
    bool short_rows = s->column_reduce.short_rows;
    if (short_rows != f->lanes || (short_rows && (!f->short_rows || w->chooser->caps->is_gpu)))
        return schedule_no(w, "short_rows", "short_rows: %s", f->lanes ? "these rows are not of so few elements"
                                                                      : "the graph's sums are of columns");
    if (s->column_reduce.axes > f->most)
        return schedule_no(w, "axes", "axes %u: lanes may lie in the last %u", s->column_reduce.axes, f->most);
    return !s->column_reduce.lines == !s->column_reduce.ahead ||
           schedule_no(w, s->column_reduce.lines ? "lines" : "ahead", "lines, ahead: a prefetch has both");
}

static bool choose_columns(struct lowering *w, const struct reduce_facts *f, struct schedule *s)
{
    const struct caps *caps = w->chooser->caps;
    bool legal = schedule_begin(w, SCHED_COLUMN_REDUCE, s);
    if (!w->chooser->want) {
        s->column_reduce.short_rows = f->lanes;
        s->column_reduce.axes = reduce_axes(caps, f);
    }
    legal = legal && columns_legal(w, f, s);
    if (legal && !s->width)
        s->width = (uint16_t)lower_width(caps, &(struct loop_facts){reduce_inner(f, s->column_reduce.axes), f->ops,
                                                                     false});
    if (legal && !w->chooser->want) {
        int64_t inner = reduce_inner(f, s->column_reduce.axes), width = s->width;
        choose_prefetch(caps, f, s);
        s->grain = lower_grain(inner ? shape_count(&f->kept) / inner * ((inner + width - 1) / width) : 0,
                               f->len * width);
    }
    return schedule_end(w, s, legal);
}

/* Rows of a few elements are themselves the lanes, on processors. */
bool choose_reduce(struct lowering *w, const struct reduce_facts *f, struct schedule *s)
{
    bool columns = !f->lanes || (f->short_rows && !w->chooser->caps->is_gpu);
    if (f->lanes && f->short_rows && w->chooser->want)
        columns = schedule_wanted(w, SCHED_COLUMN_REDUCE);
    return columns ? choose_columns(w, f, s) : choose_row_reduce(w, f, s);
}

/* ---- scatters, scans, sorts ---- */

bool choose_scatter(struct lowering *w, const struct scatter_facts *f, struct schedule *s)
{
    const struct caps *caps = w->chooser->caps;
    bool legal = schedule_begin(w, SCHED_SCATTER, s);
    struct loop_facts inner = lower_loop(w, f->inner), panel = lower_loop(w, f->len * f->inner);
    if (legal && !s->width)
        s->width = (uint16_t)lower_width(caps, &inner);
    if (legal && !s->scatter.copy)
        s->scatter.copy = (uint16_t)lower_width(caps, &panel);
    if (!w->chooser->want) {
        int64_t width = s->width;
        s->grain = lower_grain(f->outer * ((f->inner + width - 1) / width),
                               (f->len + f->count) * (f->inner < width ? f->inner : width));
    }
    return schedule_end(w, s, legal);
}

bool choose_cumulative(struct lowering *w, const struct scan_facts *f, struct schedule *s)
{
    bool legal = schedule_begin(w, SCHED_CUMULATIVE, s);
    struct loop_facts inner = lower_loop(w, f->inner);
    if (legal && !s->width)
        s->width = f->inner > 1 ? (uint16_t)lower_width(w->chooser->caps, &inner) : 1;
    legal = legal && (f->inner > 1 || schedule_width_is(w, s, 1));
    if (!w->chooser->want)
        s->grain = lower_grain(f->len ? f->outer * ((f->inner + s->width - 1) / s->width) : 0, f->len * s->width);
    return schedule_end(w, s, legal);
}

bool choose_sort(struct lowering *w, const struct sort_facts *f, struct schedule *s)
{
    bool legal = schedule_begin(w, SCHED_SORT, s);
    struct loop_facts row = lower_loop(w, f->len);
    if (legal && !s->width)
        s->width = (uint16_t)lower_width(w->chooser->caps, &row);
    if (!w->chooser->want)
        s->grain = lower_grain(f->rows, f->len * (1 + f->levels));
    return schedule_end(w, s, legal);
}
