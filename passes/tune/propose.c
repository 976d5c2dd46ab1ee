/* What each family's kernels may vary in, one or two fields at a time: the functions that the rows of families.def
 * name. */
#include "propose.h"

static uint32_t at_least_one(uint32_t n) { return n ? n : 1; }

/* ---- products on a processor, by tiles ---- */

static struct dot_dims dot_of(const struct proposals *p) { return dot_sizes(p->g, &p->g->node[p->anchor]); }

static uint32_t vector_lanes(const struct proposals *p)
{
    return p->caps->vector_bytes / (uint32_t)dtype_size(dtype_compute(p->g->node[p->anchor].dtype));
}

/* Rows of a tile that has as many vectors in a row as `vectors`, out of `share` quarters of the registers, such that
 * the tiles of all rows are equally tall. */
static uint16_t rows_of_tile(const struct proposals *p, int64_t rows, uint32_t vectors, uint32_t share)
{
    enum { RESERVED = 4, MAX_ROWS = 24 }; /* registers for the operands; rows beyond which kernels only get longer */
    int64_t free_registers = (int64_t)p->caps->vector_regs - RESERVED, max = free_registers / vectors * share / 4;
    max = max > MAX_ROWS ? MAX_ROWS : max < 1 ? 1 : max;
    int64_t tiles = (rows + max - 1) / max;
    return (uint16_t)(tiles ? (rows + tiles - 1) / tiles : 1);
}

static void propose_dot_tiles(struct proposals *p)
{
    static const struct { uint8_t vectors, share; } shapes[] = {{2, 4}, {4, 4}, {1, 4}, {2, 3}, {4, 3}, {1, 3},
                                                                {2, 2}, {1, 2}};
    const uint32_t lanes = vector_lanes(p);
    const int64_t rows = dot_of(p).m;
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct schedule s = {.kind = SCHED_DOT, .grain = p->own.grain};
        if (p->own.kind == SCHED_DOT)
            s = p->own;
        s.dot.kc = p->own.dot.kc;
        s.dot.nr = (uint16_t)(shapes[i].vectors * lanes);
        s.width = s.dot.nr;
        s.dot.mr = rows_of_tile(p, rows, shapes[i].vectors, shapes[i].share);
        s.dot.rows = s.dot.square = 0; /* as lowering chooses for such a tile */
        if (s.dot.nr <= MAX_LANES)
            propose_schedule(p, s);
    }
}

/* Rows that a task iterates over for each tile of columns: one tile, all, twice and half as many as now. */
static void propose_rows_of_task(struct proposals *p, int64_t rows)
{
    const uint32_t mr = at_least_one(p->own.dot.mr), tiles = p->own.dot.rows / mr;
    const int64_t choices[] = {mr, rows, 2 * (int64_t)tiles * mr, (int64_t)(tiles / 2) * mr};
    for (unsigned i = 0; i < sizeof choices / sizeof *choices; i++) {
        struct schedule s = p->own;
        s.dot.rows = (uint32_t)choices[i];
        if (choices[i] > 0 && choices[i] <= rows)
            propose_schedule(p, s);
    }
}

static void propose_epilogues(struct proposals *p)
{
    for (unsigned when = EPILOGUE_IN_TILE; when < EPILOGUE_COUNT && p->members > 1; when++) {
        struct schedule s = p->own;
        s.dot.epilogue = (uint8_t)when;
        s.dot.rows = 0;
        propose_schedule(p, s);
    }
}

void propose_tiles(struct proposals *p)
{
    if (p->caps->is_gpu)
        return;
    struct schedule s = p->own;
    s.dot.pack_b = !s.dot.pack_b;
    s.dot.pack_by = PACK_NONE;
    s.dot.rows = 0;
    propose_schedule(p, s);
    propose_dot_tiles(p);
    propose_rows_of_task(p, dot_of(p).m);
    propose_epilogues(p);
}

/* Streams of the matrix, lines of it; or tiles after all. */
void propose_skinny(struct proposals *p)
{
    for (uint16_t step = 1; step <= 16; step = (uint16_t)(2 * step)) {
        struct schedule few = p->own;
        few.dot_skinny.step = step;
        few.dot_skinny.ahead = 0;
        propose_schedule(p, few);
    }
    for (unsigned nr = vector_lanes(p); nr <= MAX_LANES; nr *= 2) {
        struct schedule few = p->own;
        few.width = few.dot_skinny.nr = (uint16_t)nr;
        few.dot_skinny.step = few.dot_skinny.each = few.dot_skinny.ahead = 0;
        few.dot_skinny.strip = 0;
        propose_schedule(p, few);
    }
    propose_dot_tiles(p);
}

/* ---- products on a GPU, by blocks of threads ---- */

static void propose_block(struct proposals *p, int rows, int columns, int tile_rows, int tile_columns, int step)
{
    struct schedule s = p->own;
    int threads = s.width, tiles = 0;
#define SCALED(field, by) \
    (s.dot_blocks.field = (uint16_t)((by) > 0 ? s.dot_blocks.field << (by) : s.dot_blocks.field >> -(by)))
    SCALED(block_m, rows);
    SCALED(block_n, columns);
    SCALED(mr, tile_rows);
    SCALED(nr, tile_columns);
    SCALED(step, step);
#undef SCALED
    tiles = rows + columns - tile_rows - tile_columns;
    s.width = (uint16_t)(tiles > 0 ? threads << tiles : threads >> -tiles);
    const uint16_t mr = s.dot_blocks.mr, nr = s.dot_blocks.nr, m = s.dot_blocks.block_m, n = s.dot_blocks.block_n;
    /* a tile that does not consist of the unit's has another unit, which lowering chooses */
    if (s.kind == SCHED_DOT_MATRIX &&
        (mr % at_least_one(s.dot_matrix.unit_m) || nr % at_least_one(s.dot_matrix.unit_n)))
        s.dot_matrix.unit_m = s.dot_matrix.unit_n = s.dot_matrix.unit_k = 0;
    if (m && n && mr && nr && s.dot_blocks.step && s.width)
        propose_schedule(p, s);
}

void propose_blocks(struct proposals *p)
{
    static const int8_t by[][5] = {{0, 0, 0, 0, 1}, {0, 0, 0, 0, -1}, {1, 0, 0, 0, 0}, {0, 1, 0, 0, 0},
                                   {-1, 0, 0, 0, 0}, {0, -1, 0, 0, 0}, {1, 0, 1, 0, 0}, {0, 1, 0, 1, 0},
                                   {-1, 0, -1, 0, 0}, {0, -1, 0, -1, 0}, {0, 0, 1, 0, 0}, {0, 0, 0, 1, 0},
                                   {0, 0, -1, 0, 0}, {0, 0, 0, -1, 0}, {1, -1, 0, 0, 0}, {-1, 1, 0, 0, 0}};
    for (unsigned i = 0; i < sizeof by / sizeof *by; i++)
        propose_block(p, by[i][0], by[i][1], by[i][2], by[i][3], by[i][4]);
}

/* The other units that hold a tile in as many threads. */
static void propose_units(struct proposals *p)
{
    for (unsigned i = 0; i < MMA_UNITS; i++) {
        const struct mma_caps *u = &p->caps->mma[i];
        struct schedule s = p->own;
        s.dot_matrix.unit_m = u->m;
        s.dot_matrix.unit_n = u->n;
        s.dot_matrix.unit_k = u->k;
        if (u->subgroup == s.dot_matrix.subgroup)
            propose_schedule(p, s);
    }
}

/* ---- lanes and threads ---- */

/* Twice and half the lanes, and what is beyond these. */
void propose_widths(struct proposals *p)
{
    static const int8_t by[] = {1, -1, 2, -2};
    const unsigned max = p->caps->is_gpu ? p->caps->block_threads : MAX_LANES;
    for (unsigned i = 0; i < sizeof by / sizeof *by; i++) {
        struct schedule s = p->own;
        unsigned width = by[i] > 0 ? (unsigned)s.width << by[i] : (unsigned)s.width >> -by[i];
        s.width = (uint16_t)width;
        if (width >= 1 && width <= max)
            propose_schedule(p, s);
    }
}

/* On a GPU: half the vector width of a lane; twice or half as many vectors for a thread, or iterations for the device.
 * */
static void propose_shares(struct proposals *p)
{
    struct schedule s = p->own;
    s.map.vector /= 2;
    propose_schedule(p, s);
    for (int up = 0; up < 2; up++) {
        s = p->own;
        s.map.vectors = (uint16_t)(up ? 2 * s.map.vectors : s.map.vectors / 2);
        if (s.map.vectors)
            propose_schedule(p, s);
        s = p->own;
        s.map.tasks = up ? 2 * s.map.tasks : s.map.tasks / 2;
        if (s.map.tasks)
            propose_schedule(p, s);
    }
}

/* ---- on a GPU: the fields of a family that are no order of its sums ---- */

/* Steps of a product on matrix units in shared memory; warps specialized or not, with as many steps as lowering
 * chooses. */
static void propose_stages(struct proposals *p)
{
    static const int8_t by[] = {1, -1};
    for (unsigned i = 0; i < sizeof by / sizeof *by; i++) {
        struct schedule s = p->own;
        s.dot_matrix.stages = (uint8_t)(s.dot_matrix.stages + by[i]);
        propose_schedule(p, s);
    }
    struct schedule s = p->own;
    s.dot_matrix.panels = !s.dot_matrix.panels;
    s.dot_matrix.stages = 0;
    propose_schedule(p, s);
}

/* Rows of a block of attention, with the threads that these take; steps in shared memory. */
void propose_attention_matrix(struct proposals *p)
{
    for (int up = 0; up < 2; up++) {
        struct schedule s = p->own;
        s.width = (uint16_t)(up ? 2 * s.width : s.width / 2);
        s.attention_matrix.rows = 0; /* as many as so many threads have */
        propose_schedule(p, s);
        s = p->own;
        s.attention_matrix.stages = (uint8_t)(up ? s.attention_matrix.stages + 1 : s.attention_matrix.stages - 1);
        propose_schedule(p, s);
    }
}

/* Rows of a block of attention by register tiles, with the threads that these take. */
void propose_attention_blocks(struct proposals *p)
{
    for (int up = 0; up < 2; up++) {
        struct schedule s = p->own;
        s.attention_blocks.rows = (uint16_t)(up ? 2 * s.attention_blocks.rows : s.attention_blocks.rows / 2);
        s.width = 0;
        propose_schedule(p, s);
    }
}

/* Twice and half the columns that a thread sums; one is written as 0. */
static void propose_column_vectors(struct proposals *p)
{
    uint16_t each = (uint16_t)at_least_one(p->own.column_reduce.vector);
    for (int up = 0; up < 2; up++) {
        struct schedule s = p->own;
        s.column_reduce.vector = (uint16_t)(up ? 2 * each : each > 2 ? each / 2 : 0);
        propose_schedule(p, s);
    }
}

/* Rows that their threads do not hold in registers, where the threads have the same elements then; and which members
 * are kept in scratch rather than computed twice: none, or one more or less than now. */
static void propose_kept(struct proposals *p)
{
    struct schedule s = p->own;
    if (s.rows.held) {
        s.rows.held = 0;
        if (!s.rows.vector)
            propose_schedule(p, s);
        return;
    }
    s.rows.keep = 0;
    propose_schedule(p, s);
    for (uint32_t m = 0; m < p->members && m < 64; m++) {
        s = p->own;
        s.rows.keep ^= UINT64_C(1) << m;
        propose_schedule(p, s);
    }
}

/* Non-temporal stores or not, where what is stored does not fit the second-level cache anyway. */
static void propose_stream(struct proposals *p)
{
    struct schedule s = p->own;
    s.stream = !s.stream;
    if (s.stream ? p->k->bytes > p->caps->l2_bytes : true)
        propose_schedule(p, s);
}

/* ---- families that vary several of these ---- */

void propose_nothing(struct proposals *p)
{
    (void)p; /* lanes are the order of the sum, or not by themselves to be changed */
}

void propose_matrix(struct proposals *p)
{
    propose_units(p);
    propose_blocks(p);
    propose_stages(p);
}

/* The threads of a column are an order of its sum; those with columns of their own are not. */
void propose_gpu_skinny(struct proposals *p)
{
    if (p->own.gpu_dot_skinny.split)
        propose_widths(p);
}

void propose_columns(struct proposals *p)
{
    propose_widths(p);
    if (p->caps->is_gpu)
        propose_column_vectors(p);
}

void propose_map(struct proposals *p)
{
    propose_widths(p);
    if (p->caps->is_gpu)
        propose_shares(p);
    else
        propose_stream(p);
}

/* Tiles of half and of twice a side. */
void propose_transpose(struct proposals *p)
{
    enum { MAX_SIDE = 256 };
    propose_widths(p);
    for (int side = 0; side < 4; side++) {
        struct schedule s = p->own;
        uint16_t *n = side / 2 ? &s.transpose.columns : &s.transpose.rows;
        *n = (uint16_t)(side % 2 ? *n * 2 : *n / 2);
        if (*n >= s.transpose.square && *n <= MAX_SIDE)
            propose_schedule(p, s);
    }
    propose_stream(p);
}

void propose_rows(struct proposals *p)
{
    if (p->caps->is_gpu)
        propose_kept(p);
    else
        propose_stream(p);
}
