/* The schedules of attention and its gradient: how many queries (or keys) are lanes, and how many rows of the other
 * side are processed at a time. */
#include "lower_attention.h"

/* NATIVE_VECTORS: registers of a row of lanes.  MAX_ONE_LANES: lanes for elements of v, for one query; COMPUTED_LANES:
 * where v is computed, usually of blocks of so many with one scale */
enum { NATIVE_VECTORS = 2, MAX_ONE_LANES = 64, COMPUTED_LANES = 32 };

/* Lanes of a native vector, if squares of them are transposed in registers; 0 on a GPU. */
static int64_t square_lanes(const struct caps *caps, const struct attention_facts *f)
{
    int64_t lanes = caps->vector_bytes / f->element;
    return caps->is_gpu ? 0 : lanes > MAX_SQUARE ? MAX_SQUARE : lanes;
}

static int64_t tile_width(const struct caps *caps, const struct attention_facts *f)
{
    int64_t width = NATIVE_VECTORS * caps->vector_bytes / f->element;
    while (width > 1 && width / 2 >= f->l)
        width /= 2;
    return width;
}

static int64_t attention_grain(const struct attention_facts *f, int64_t width)
{
    int64_t tiles = (f->l + width - 1) / width, de = f->d + f->e;
    return lower_grain(f->matrices * tiles, width * (f->gradient ? 2 * f->m * de + 2 * de : f->m * de + de) / 16);
}

/* May each query be processed by itself, with `keys` keys as the lanes of its scores? */
static bool one_fits(const struct attention_facts *f, int64_t keys)
{
    return !f->gradient && keys >= 2 && f->block % (ONE_SQUARES * keys) == 0;
}

bool attention_one_fits(struct attention_facts *f) { return !f->gradient; }

/* For a single query keys are the lanes, if squares are transposed in registers. */
bool attention_one_choose(struct attention_facts *f, struct schedule *s)
{
    const struct chooser *c = f->w->chooser;
    if (!c->want && (tile_width(c->caps, f) != 1 || !one_fits(f, square_lanes(c->caps, f))))
        return false;
    int64_t lanes = f->computes ? COMPUTED_LANES : MAX_ONE_LANES;
    while (lanes > 1 && lanes / 2 >= f->e)
        lanes /= 2;
    if (!s->width)
        s->width = 1;
    if (!s->attention_one.keys)
        s->attention_one.keys = (uint16_t)square_lanes(c->caps, f);
    if (!s->attention_one.rows)
        s->attention_one.rows = (uint16_t)(ONE_SQUARES * s->attention_one.keys);
    if (!s->attention_one.lanes)
        s->attention_one.lanes = (uint16_t)lanes;
    if (!c->want)
        s->grain = attention_grain(f, 1);
    return true;
}

bool attention_one_legal(const struct attention_facts *f, const struct schedule *s)
{
    if (s->width != 1)
        return reject_schedule(f->w, "width", "width %u: a query by itself has 1", s->width);
    if (!one_fits(f, s->attention_one.keys))
        return reject_schedule(f->w, "keys", "keys %u: %d times as many, at least 2, divide the block of %d",
                               s->attention_one.keys, ONE_SQUARES, (int)f->block);
    return s->attention_one.rows == ONE_SQUARES * s->attention_one.keys ||
           reject_schedule(f->w, "rows", "rows %u: they are %d times the keys", s->attention_one.rows, ONE_SQUARES);
}

/* Do the rows, the squares and the widening fit?  If not, the refusal says why. */
static bool tile_is_legal(const struct lowering *w, const struct attention_facts *f, const struct schedule *s)
{
    bool legal = f->block % s->attention.rows == 0 ||
                 reject_schedule(w, "rows", "rows %u: they do not divide the block of %d", s->attention.rows,
                             (int)f->block);
    legal = legal && (!s->attention.square || (s->width % s->attention.square == 0 && s->attention.square > 1) ||
                      reject_schedule(w, "square", "square %u: it divides the width, %u", s->attention.square,
                                      s->width));
    return legal && (f->half || f->computes || !s->attention.widen ||
                     reject_schedule(w, "widen", "widen: these are no half floats, and not computed"));
}

bool attention_fits(struct attention_facts *f) { return !f->gradient; }
bool attention_grad_fits(struct attention_facts *f) { return f->gradient == GRADIENT_ONE; }

bool attention_choose(struct attention_facts *f, struct schedule *s)
{
    const struct caps *caps = f->w->chooser->caps;
    int64_t rows = caps->vector_regs >= 32 ? MAX_ROWS : MAX_ROWS / 2, square = square_lanes(caps, f);
    while (f->block % rows)
        rows--;
    if (!s->width)
        s->width = (uint16_t)tile_width(caps, f);
    if (!s->attention.rows)
        s->attention.rows = (uint16_t)rows;
    if (!f->w->chooser->want) {
        s->attention.square = square >= 2 && s->width % square == 0 ? (uint16_t)square : 0;
        s->attention.widen = (f->half || f->computes) && !caps->is_gpu;
        s->grain = attention_grain(f, s->width);
    }
    return true;
}

bool attention_grad_choose(struct attention_facts *f, struct schedule *s) { return attention_choose(f, s); }
bool attention_legal(const struct attention_facts *f, const struct schedule *s) { return tile_is_legal(f->w, f, s); }
bool attention_grad_legal(const struct attention_facts *f, const struct schedule *s) { return attention_legal(f, s); }

/* Both gradients: a tile of queries is a block of the numeric order, or has all queries. */
static bool both_fits(const struct attention_facts *f, int64_t width)
{
    return width == f->block || (width < f->block && width >= f->l);
}

bool attention_both_fits(struct attention_facts *f) { return f->gradient == GRADIENT_BOTH; }

bool attention_both_choose(struct attention_facts *f, struct schedule *s)
{
    const struct caps *caps = f->w->chooser->caps;
    int64_t native = caps->vector_bytes / f->element, sums = caps->vector_regs / 2, square = square_lanes(caps, f);
    int64_t width = f->block, columns = f->d > f->e ? f->d : f->e, lanes = NATIVE_VECTORS * native;
    while (width > 1 && width / 2 >= f->l)
        width /= 2;
    while (lanes > 1 && lanes / 2 >= columns)
        lanes /= 2;
    if (!s->width)
        s->width = (uint16_t)width;
    int64_t rows = s->width ? sums * native / s->width : 1;
    rows = rows > MAX_ROWS ? MAX_ROWS : rows;
    while (rows > 1 && f->block % rows)
        rows--;
    if (!s->attention.rows)
        s->attention.rows = (uint16_t)(rows < 1 ? 1 : rows);
    if (!s->attention.lanes)
        s->attention.lanes = (uint16_t)lanes;
    if (!f->w->chooser->want) {
        s->attention.square = square >= 2 && s->width % square == 0 ? (uint16_t)square : 0;
        s->attention.widen = f->half;
        s->grain = lower_grain(f->matrices, f->l * (2 * f->m * columns + 2 * columns) / 16);
    }
    return true;
}

bool attention_both_legal(const struct attention_facts *f, const struct schedule *s)
{
    if (!both_fits(f, s->width))
        return reject_schedule(f->w, "width", "width %u: it is the block of %d, or less that has all queries", s->width,
                               (int)f->block);
    return tile_is_legal(f->w, f, s);
}

/* ---- on a GPU's matrix units ---- */

/* The elements of a row of the operands that a block has in shared memory. */
static int64_t matrix_row(const struct attention_facts *f, bool async)
{
    int64_t d = attention_padded(f->d), e = f->e ? attention_padded(f->e) : 0;
    return d + e + (async ? 0 : ATTENTION_PAD + (e ? ATTENTION_PAD : 0));
}

enum { PHASES_BYTES = 512 };    /* of the barriers of up to 8 stages */

static int64_t matrix_shared(const struct attention_facts *f, const struct schedule *s)
{
    bool async = s->attention_matrix.async;
    int64_t rows = s->attention_matrix.rows, iterated = (int64_t)s->attention_matrix.step * s->attention_matrix.stages;
    int64_t own = f->gradient ? matrix_row(f, async) : attention_padded(f->d) + (async ? 0 : ATTENTION_PAD);
    bool in_place = !async && (f->gradient || f->d == f->e); /* results take the place of own rows */
    int64_t results = in_place ? 0 : f->keys ? matrix_row(f, false)
                                             : attention_padded(f->gradient ? f->d : f->e) + ATTENTION_PAD;
    int64_t phases = s->attention_matrix.panels ? PHASES_BYTES : 0;
    if (s->attention_matrix.panels && f->keys)
        phases += iterated * (int64_t)sizeof(float) * 2; /* statistics */
    return 2 * (rows * (own + results) + iterated * matrix_row(f, async)) + phases; /* 2 bytes of an element */
}

/* Does a GPU have this unit, for the operands? */
static bool has_unit(const struct mma_caps *u, const struct attention_facts *f)
{
    enum { MAX_COLUMNS = 256 };
    bool panels = !u->async || (f->d % PANEL_COLUMNS == 0 && f->e % PANEL_COLUMNS == 0);
    return u->subgroup && u->chains && f->factors && u->dtypes >> (f->factors - 1) & 1 && f->d <= MAX_COLUMNS &&
           f->e <= MAX_COLUMNS && panels;
}

/* The only unit of a target for the operands, or a unit that is not for them. */
static const struct mma_caps *attention_unit(const struct caps *c, const struct attention_facts *f, bool async)
{
    const struct mma_caps *u = &c->mma[0];
    for (unsigned i = MMA_UNITS; i-- > 0;)
        u = has_unit(&c->mma[i], f) ? &c->mma[i] : u;
    return async ? &c->mma_async : u;
}

/* Does a GPU have any unit for the operands? */
static bool has_matrix_units(const struct caps *c, const struct attention_facts *f)
{
    return has_unit(&c->mma_async, f) || has_unit(attention_unit(c, f, false), f);
}

bool attention_matrix_legal(const struct attention_facts *f, const struct schedule *s)
{
    const struct lowering *w = f->w;
    const struct caps *c = w->chooser->caps;
    const struct mma_caps *u = attention_unit(c, f, s->attention_matrix.async);
    int64_t rows = s->attention_matrix.rows, step = s->attention_matrix.step;
    if (!has_unit(u, f))
        return reject_schedule(w, "async", "async: this target has no such unit for rows of so many elements");
    if (s->attention_matrix.unit_m != u->m || s->attention_matrix.unit_n != u->n || s->attention_matrix.unit_k != u->k)
        return reject_schedule(w, "unit", "unit: it is another on this target");
    if (s->attention_matrix.subgroup != u->subgroup)
        return reject_schedule(w, "subgroup", "subgroup: it has another length on this target");
    if (rows % u->m || rows / u->m * u->subgroup != s->width)
        return reject_schedule(w, "rows", "rows %d: each subgroup has %u of them", (int)rows, u->m);
    if (s->width > c->block_threads)
        return reject_schedule(w, "width", "width %u: a block of this target has fewer threads", s->width);
    if (step % u->k || step % u->n)
        return reject_schedule(w, "step", "step %d: it is a whole number of the unit's steps", (int)step);
    if (s->attention_matrix.panels && (!u->async || !c->panel_copies || !f->views))
        return reject_schedule(w, "panels",
                               "panels: they are for an asynchronous unit of a target that copies panels, and "
                           "for operands that are arrays of whole vectors whose distances are multiples");
    if (s->attention_matrix.panels && rows > MAX_PANEL_ROWS)
        return reject_schedule(w, "rows", "rows %d: a panel has at most %d", (int)rows, MAX_PANEL_ROWS);
    if (s->attention_matrix.stages < 2)
        return reject_schedule(w, "stages", "while one step is multiplied, another one is on its way");
    return matrix_shared(f, s) <= (int64_t)c->shared_bytes ||
           reject_schedule(w, "rows", "rows, step and stages: shared memory has no room for them");
}

/* Registers of a thread limit a step: it has a row of scores for each of its rows (of a gradient two), and all columns
 * of its totals.  Consumer threads (warp specialization) have twice as many. */
static uint16_t matrix_step(const struct attention_facts *f, bool panels)
{
    enum { LONG = 64, SHORT = 32, FEW = 64, MANY = 128 };
    int64_t totals = !f->gradient ? f->e : f->keys ? f->d + f->e : f->d, max = f->gradient ? FEW : MANY;
    if (panels)
        return totals <= max ? 2 * LONG : totals <= 2 * MANY ? LONG : SHORT;
    return totals <= max ? LONG : SHORT;
}

static void fill_matrix(const struct caps *c, const struct attention_facts *f, struct schedule *s)
{
    enum { SUBGROUPS = 4, ASYNC_SUBGROUPS = 2 };
    const struct mma_caps *u = attention_unit(c, f, s->attention_matrix.async);
    int async = f->l > u->m ? ASYNC_SUBGROUPS : 1;
    if (!s->attention_matrix.unit_m && !s->attention_matrix.unit_n && !s->attention_matrix.unit_k) {
        s->attention_matrix.unit_m = u->m;
        s->attention_matrix.unit_n = u->n;
        s->attention_matrix.unit_k = u->k;
    }
    if (!s->attention_matrix.subgroup)
        s->attention_matrix.subgroup = u->subgroup;
    if (!s->attention_matrix.rows)
        s->attention_matrix.rows = (uint16_t)(s->width && u->subgroup ? s->width / u->subgroup * u->m
                                              : (u->async ? async : SUBGROUPS) * u->m);
    if (!s->width && u->m)
        s->width = (uint16_t)(s->attention_matrix.rows / u->m * u->subgroup);
    if (!s->attention_matrix.stages)
        s->attention_matrix.stages = 2;
    if (!s->attention_matrix.step)
        for (s->attention_matrix.step = matrix_step(f, s->attention_matrix.panels); s->attention_matrix.step > u->k;
             s->attention_matrix.step /= 2)
            if (matrix_shared(f, s) <= (int64_t)c->shared_bytes && s->attention_matrix.step / 2 < f->m)
                break;
}

/* Are there enough rows for a block of this unit, and memory for its smallest step? */
static bool prefers_matrix_units(const struct caps *c, const struct attention_facts *f, bool async)
{
    struct schedule s = {.kind = SCHED_ATTENTION_MATRIX, .attention_matrix.async = async,
                         .attention_matrix.panels = async && f->views && c->panel_copies};
    const struct mma_caps *u = attention_unit(c, f, async);
    if (!c->is_gpu || !has_unit(u, f) || f->l < u->m || f->m < u->k)
        return false;
    fill_matrix(c, f, &s);
    return s.width <= c->block_threads && matrix_shared(f, &s) <= (int64_t)c->shared_bytes;
}

bool attention_matrix_fits(struct attention_facts *f)
{
    const struct caps *c = f->w->chooser->caps;
    return f->gradient != GRADIENT_BOTH && c->is_gpu && !in_graph_order(f->w) && has_matrix_units(c, f);
}

bool attention_matrix_choose(struct attention_facts *f, struct schedule *s)
{
    const struct chooser *c = f->w->chooser;
    if (!c->want) {
        bool async = prefers_matrix_units(c->caps, f, true);
        if (!async && !prefers_matrix_units(c->caps, f, false))
            return false;
        s->attention_matrix.async = async;
        s->attention_matrix.panels = async && f->views && c->caps->panel_copies;
    }
    fill_matrix(c->caps, f, s);
    return true;
}

/* ---- on a GPU, by blocks of threads with register tiles ---- */

/* Threads side by side: each has up to 8 columns of results and at least 4 rows of a step; 0: there are too many
 * columns. */
static int64_t blocks_across(const struct attention_facts *f)
{
    enum { FEW = 64, MANY = 128, SIDE = 8 };
    int64_t columns = f->d > f->e ? f->d : f->e;
    return columns <= FEW ? SIDE : columns <= MANY ? 2 * SIDE : 0;
}

static int64_t blocks_groups(const struct attention_facts *f) { return f->gradient ? 2 : 1; }

static int64_t blocks_shared(const struct attention_facts *f, int64_t rows)
{
    enum { STEP = ATTENTION_BLOCK_STEP, ELEMENT = 4 };
    int64_t pitch = attention_block_pitch(f->d, f->e, blocks_across(f)), max = rows > STEP ? rows : STEP;
    return ELEMENT * (blocks_groups(f) * rows * (pitch + STEP + 4) + 2 * STEP * pitch + ATTENTION_BLOCK_ROWS * max);
}

/* Its steps are others than the blocks of the graph's order, and its exponentials are base-2. */
bool attention_blocks_fits(struct attention_facts *f)
{
    return f->gradient != GRADIENT_BOTH && f->blocks && !in_graph_order(f->w);
}

/* Are threads without work in blocks of so few rows, or are matrix units faster? */
static bool prefers_other_than_blocks(const struct caps *c, const struct attention_facts *f)
{
    enum { FEWEST = 32, MIN_COUNT = 64 };
    return !blocks_across(f) || f->l < FEWEST || f->m < FEWEST ||
           blocks_shared(f, MIN_COUNT) > (int64_t)c->shared_bytes || prefers_matrix_units(c, f, true) ||
           prefers_matrix_units(c, f, false);
}

/* Two blocks of 128 rows have room on a processor of NVIDIA's, for 64 columns; so do those of 64 rows of a gradient. */
bool attention_blocks_choose(struct attention_facts *f, struct schedule *s)
{
    enum { TILE = ATTENTION_BLOCK_TILE, ROWS = 128, MIN_COUNT = 64, BLOCKS = 2 };
    const struct caps *c = f->w->chooser->caps;
    if (!f->w->chooser->want && prefers_other_than_blocks(c, f))
        return false;
    int64_t across = blocks_across(f), each = TILE, fill = BLOCKS * (c->threads ? c->threads : 1);
    bool max = !f->gradient && f->matrices * ((f->l + ROWS - 1) / ROWS) >= fill &&
               blocks_shared(f, ROWS) <= (int64_t)c->shared_bytes;
    if (!s->attention_blocks.rows)
        s->attention_blocks.rows = s->width && across ? (uint16_t)(s->width / (across * blocks_groups(f)) * each)
                                                      : max ? ROWS : MIN_COUNT;
    if (!s->width)
        s->width = (uint16_t)(s->attention_blocks.rows / each * across * blocks_groups(f));
    return true;
}

bool attention_blocks_legal(const struct attention_facts *f, const struct schedule *s)
{
    const struct lowering *w = f->w;
    const struct caps *c = w->chooser->caps;
    int64_t rows = s->attention_blocks.rows, across = blocks_across(f), each = ATTENTION_BLOCK_TILE;
    if (!across || !f->blocks)
        return reject_schedule(w, NULL, "attention_blocks: rows are of 8, 16, .. 128 elements of f32");
    if (rows < each || rows % each || rows / each * across * blocks_groups(f) != s->width ||
        rows * ATTENTION_BLOCK_STEP / 4 % s->width || s->width < rows)
        return reject_schedule(w, "rows", "rows %d: each of the threads of %d side by side has %d", (int)rows,
                               (int)across, (int)each);
    if (s->width > c->block_threads)
        return reject_schedule(w, "width", "width %u: a block of this target has fewer threads", s->width);
    return blocks_shared(f, rows) <= (int64_t)c->shared_bytes ||
           reject_schedule(w, "rows", "rows: shared memory has no room for them");
}
