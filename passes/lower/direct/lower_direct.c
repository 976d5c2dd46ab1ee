/* Direct convolutions: products of few rows with windows that are read in place, as those of depthwise and grouped
 * convolutions are, and their gradients.
 *
 * Lanes are adjacent columns of an image.  A tile has some rows of columns, one below the other, and all or some rows
 * of the first operand; the elements of a window are unrolled, so that what several windows of a tile have in common is
 * loaded once.  Padding is read under masks, where it is: tiles that have none have code of their own.  Nothing is
 * copied, and each chain has all of its products in ascending order. */
#include "lower_direct.h"

enum { MIN_LEFT_OUT = 16 }; /* of shorter chains, finding a -0 takes longer than all products */

/* ---- the tiles of an axis ---- */

/* The second operand's element i of the window, in channel `channel`, at the lane's column. */
static val window_element(struct dot *d, val batch, val outer, val row, val column, val channel, int64_t i)
{
    const struct dot_direct *z = &d->direct;
    struct kernel *k = d->w->k;
    val at = ix_add(k, ix_scale(k, channel, z->window), k_int(k, i));
    val line = ix_add(k, ix_scale(k, outer, z->rows), row);
    if (!z->in_batch)
        return dot_stored_element(d, true, ix_add(k, ix_scale(k, line, z->columns), column), at);
    d->batch_index = ix_add(k, ix_scale(k, batch, z->columns), column);
    return dot_stored_element(d, true, at, line);
}

/* Does a tile, whose first row and column these are, read any padding? */
static bool reads_padding(const struct dot *d, const struct direct_tile *size, int64_t row, int64_t column)
{
    struct trial t;
    bool any = true;
    if (trial_begin(&t, d->w)) {
        const struct dot_direct *z = &d->direct;
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        int64_t channels = (z->in_batch ? d->size.n : d->size.k) / z->window;
        int64_t batch = d->size.batch / (z->in_batch ? z->columns : 1), last = size->rows - 1;
        copy.w = &t.w;
        val matrix = copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, batch), 1);
        val outer = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, z->outer), 1);
        val channel = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, channels), 1);
        val lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, dot_parts(size->columns, z->step_columns)), 1);
        val first = ix_scale(k, lane, z->step_columns);
        int64_t phases = z->step_columns < size->columns ? z->step_columns : size->columns;
        any = false;
        for (int64_t i = 0; i < (last ? 2 : 1) * phases * z->window && !any; i++) {
            int64_t at = column + i / z->window % phases, r = i / z->window / phases * last;
            val x = window_element(&copy, matrix, outer, k_int(k, row + r), ix_add(k, k_int(k, at), first), channel,
                                   i % z->window);
            any = (k->inst[x].op == L_LOAD && k->inst[x].b) || k->inst[x].op == L_OP(P_SELECT);
        }
    }
    trial_end(&t, d->w);
    return any;
}

/* An axis of `length` elements in segments: at both ends those of tiles that read padding, those between, and a last
 * tile that is shorter.  place: of a tile on the other axis. */
static unsigned find_segments(const struct dot *d, bool across, int64_t length, int64_t tile, int64_t place,
                              struct segment *s)
{
    enum { MAX_EDGE = 2 }; /* tiles */
    int64_t full = length / tile, low = 0, high = 0;
    unsigned n = 0;
    struct direct_tile t = {.rows = across ? 1 : tile, .columns = across ? tile : 1};
    place -= place % (across ? d->direct.step_rows : d->direct.step_columns);
    bool edges = full > 0;
    for (; edges && low < full && reads_padding(d, &t, across ? place : low * tile, across ? low * tile : place); low++)
        edges = low < MAX_EDGE;
    for (int64_t at; edges && high < full - low; high++) {
        at = (full - 1 - high) * tile;
        if (!reads_padding(d, &t, across ? place : at, across ? at : place))
            break;
        edges = high < MAX_EDGE;
    }
    if (!edges) {
        low = full;
        high = 0;
    }
    const struct segment all[] = {{0, low, tile}, {low, full - low - high, tile}, {full - high, high, tile},
                                  {full, length % tile != 0, length % tile}};
    for (unsigned i = 0; i < MAX_SEGMENTS; i++)
        if (all[i].count > 0)
            s[n++] = all[i];
    return n;
}

/* Opens the loop over a segment's tiles, of those from `from` to `to` (0: all), and returns the first element of the
 * tile.  tile: the length of a whole one.  *loop: 0 if there is none. */
val direct_open_segment(struct kernel *k, const struct segment *s, int64_t tile, val from, val to, val *loop)
{
    val first = k_int(k, s->first), end = k_int(k, s->first + s->count);
    *loop = 0;
    if (!to && s->count == 1)
        return k_int(k, s->first * tile);
    if (to) {
        first = k_max(k, first, from);
        end = ix_min(k, to, s->first + s->count);
    }
    *loop = k_loop(k, LOOP_SERIAL, first, end, 1);
    ix_bound(k, *loop, s->first, s->first + s->count - 1);
    return s->count == 1 ? k_int(k, s->first * tile) : ix_scale(k, *loop, tile);
}

void direct_close_segment(struct kernel *k, val loop)
{
    if (loop)
        k_end(k, loop);
}

/* A loop that carries sums. */
val direct_begin_chains(struct kernel *k, val count, int64_t n, val *acc, val *carry)
{
    val loop = k_loop(k, LOOP_SERIAL, k_int(k, 0), count, 1);
    for (int64_t i = 0; i < n; i++)
        acc[i] = carry[i] = k_carry(k, acc[i]);
    return loop;
}

void direct_end_chains(struct kernel *k, val loop, int64_t n, val *acc, const val *carry)
{
    for (int64_t i = 0; i < n; i++)
        k_next(k, carry[i], acc[i]);
    k_end(k, loop);
    for (int64_t i = 0; i < n; i++)
        acc[i] = k_out(k, carry[i]);
}

/* ---- lanes of the second operand's columns ---- */

static val first_element(const struct direct *c, int64_t row, val at, int64_t i)
{
    struct kernel *k = c->d->w->k;
    return c->holds ? c->a[row * c->d->size.k + i] : dot_element(c->d, false, ix_add(k, c->m0, k_int(k, row)), at);
}

static bool is_zero(const struct kernel *k, val x) { return k->inst[x].op == L_CONST && !k->inst[x].imm; }

/* Adds the products of a window's elements in channel `channel`, all or without those that are 0 for each lane.  Are
 * some left out?  Each sum has them in the window's order; between sums they are in the order of the window's elements,
 * or of the rows of the image (dot_direct_reads_rows), of which each is then loaded once. */
static bool add_window(const struct direct *c, const struct direct_tile *t, val column, val channel, int64_t mr,
                       bool all, val *acc)
{
    struct kernel *k = c->d->w->k;
    const bool by_rows = dot_direct_reads_rows(c->d);
    const int64_t columns = by_rows ? c->z->kernel_columns : 1, rows = c->z->window / columns;
    bool some = false;
    for (int64_t n = 0; n < columns * (rows + (by_rows ? t->rows - 1 : 0)); n++)
        for (int64_t r = 0; r < t->rows; r++) {
            const int64_t i = n - (by_rows ? r * columns : 0);
            if (i < 0 || i >= c->z->window)
                continue;
            val at = ix_add(k, ix_scale(k, channel, c->z->window), k_int(k, i));
            val x = window_element(c->d, 0, c->outer, ix_add(k, t->row, k_int(k, r)), column, channel, i);
            bool out = !all && is_zero(k, x);
            some |= out;
            for (int64_t m = 0; m < mr && !out; m++)
                acc[m * t->rows + r] = dot_multiply_add(k, first_element(c, m, at, i), x, acc[m * t->rows + r]);
        }
    return some;
}

static bool add_windows(const struct direct *c, const struct direct_tile *t, val column, int64_t mr, bool all, val *acc)
{
    struct kernel *k = c->d->w->k;
    int64_t n = mr * t->rows, channels = c->d->size.k / c->z->window;
    val carry[MAX_SUMS];
    for (int64_t i = 0; i < n; i++)
        acc[i] = k_splat(k, k_bits(k, c->d->dtype, 0));
    if (channels == 1)
        return add_window(c, t, column, k_int(k, 0), mr, all, acc);
    val loop = direct_begin_chains(k, k_int(k, channels), n, acc, carry);
    bool some = add_window(c, t, column, loop, mr, all, acc);
    direct_end_chains(k, loop, n, acc, carry);
    return some;
}

/* 1 if sums that lack products with zeros are to be computed with all of them, because one is -0 or a factor of the
 * zeros is not finite, in any lane; else 0. */
static val sums_are_special(const struct direct *c, const val *acc, int64_t n)
{
    struct kernel *k = c->d->w->k;
    val least[MAX_SUMS];
    for (int64_t i = 0; i < n; i++) /* -0 has the least bits of all, as i32 */
        least[i] = k_inst(k, L_OP(P_BITS), KL_I32, acc[i], 0, 0, 0);
    for (; n > 1; n = (n + 1) / 2) /* a tree: a chain of minimums would take as long as the products */
        for (int64_t i = 0; i < n / 2; i++)
            least[i] = k_fold_step(k, FOLD_MIN, least[i], least[n - 1 - i]);
    val negative = k_splat(k, k_bits(k, KL_I32, 0x80000000)), max = k_load(k, c->max_magnitude, c->d->w->lane, 0);
    val infinite = k_prim(k, P_LE, k_splat(k, k_bits(k, KL_I32, 0x7f800000)), max, 0);
    val all = k_lane_reduce(k, FOLD_MIN, k_prim(k, P_SELECT, infinite, negative, least[0]));
    val times = k_prim(k, P_SELECT, k_prim(k, P_EQ, all, k_bits(k, KL_I32, 0x80000000), 0), k_int(k, 1), k_int(k, 0));
    ix_assume_range(k, times, 0, 1);
    return times;
}

/* The sums of the tile's windows that begin at the lanes' columns, in all channels.  Leaving out fma(a, 0, acc) keeps
 * each bit, but where a is infinite or NaN, or a sum is -0; then they are computed again. */
static void sum_windows(const struct direct *c, const struct direct_tile *t, val column, int64_t mr, val *acc)
{
    struct kernel *k = c->d->w->k;
    const int64_t n = mr * t->rows;
    val carry[MAX_SUMS];
    if (!add_windows(c, t, column, mr, !c->has_zeros, acc))
        return;
    val again = direct_begin_chains(k, sums_are_special(c, acc, n), n, acc, carry);
    add_windows(c, t, column, mr, true, acc);
    direct_end_chains(k, again, n, acc, carry);
}

/* Sets `max_magnitude` for mr rows of the first operand. */
static void find_max_magnitude(const struct direct *c, int64_t mr)
{
    struct lowering *w = c->d->w;
    struct kernel *k = w->k;
    const int64_t size = c->d->size.k, lanes = c->d->nr, parts = dot_parts(size, lanes);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, lanes), 1);
    val zero = k_splat(k, k_bits(k, KL_I32, 0)), step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, mr * parts), 1);
    val carry = k_carry(k, zero), at = ix_add(k, ix_scale(k, ix_mod(k, step, parts), lanes), w->lane);
    w->pred = size % lanes ? k_prim(k, P_LT, at, k_int(k, size), 0) : 0;
    val x = dot_element(c->d, false, ix_add(k, c->m0, ix_div(k, step, parts)), at);
    val bits = k_inst(k, L_OP(P_BITS), KL_I32, k_prim(k, P_ABS, x, 0, 0), 0, 0, 0);
    if (w->pred)
        bits = k_prim(k, P_SELECT, w->pred, bits, zero);
    k_next(k, carry, k_fold_step(k, FOLD_MAX, carry, bits));
    w->pred = 0;
    k_end(k, step);
    k_store(k, c->max_magnitude, w->lane, k_out(k, carry), 0);
    k_end(k, w->lane);
    w->lane = 0;
}

/* Stores result i of the tile. */
static void store_window(const struct direct *c, const struct direct_tile *t, val column, int64_t i, val sum)
{
    struct kernel *k = c->d->w->k;
    val row = ix_add(k, ix_add(k, ix_scale(k, c->outer, c->z->rows), t->row), k_int(k, i % t->rows));
    dot_epilogue(c->d, ix_add(k, c->m0, k_int(k, i / t->rows)), ix_add(k, ix_scale(k, row, c->z->columns), column),
                 sum);
}

static void emit_window_tile(const struct direct *c, const struct direct_tile *t, int64_t mr)
{
    struct kernel *k = c->d->w->k;
    val acc[MAX_SUMS];
    dot_begin_columns(c->d, t->columns);
    val column = ix_add(k, t->column, c->d->w->lane);
    sum_windows(c, t, column, mr, acc);
    for (int64_t i = 0; i < mr * t->rows; i++)
        store_window(c, t, column, i, acc[i]);
    dot_end_columns(c->d);
}

/* The sum of the lane's column `at`, whose vector begins with column `first`, from those of a row of the tile, which
 * begin at `row`: vectors of every step-th column.  Two are interleaved in registers. */
static val sum_of_column(const struct direct *c, int64_t row, val at, int64_t first)
{
    const int64_t step = c->z->step_columns, nr = c->d->nr;
    struct lowering *w = c->d->w;
    struct kernel *k = w->k;
    if (step != 2)
        return k_load(k, c->sums, ix_add(k, k_int(k, row), ix_add(k, ix_scale(k, ix_mod(k, at, step), nr),
                                                                  ix_div(k, at, step))), w->pred);
    val a = k_load(k, c->sums, ix_add(k, k_int(k, row), w->lane), 0);
    val b = k_load(k, c->sums, ix_add(k, k_int(k, row + nr), w->lane), 0);
    for (uint32_t h = 1; h < nr; h *= 2) {
        val low = k_interleave(k, INTERLEAVE_LO, a, b, h);
        b = k_interleave(k, INTERLEAVE_HI, a, b, h);
        a = low;
    }
    return first ? b : a;
}

/* The same where zeros are between the images' elements: lanes are windows that begin at elements, or as far behind
 * them, so that all have the same zeros.  Their sums are put in order in scratch. */
static void emit_stepped_tile(const struct direct *c, const struct direct_tile *t, int64_t mr)
{
    const int64_t step = c->z->step_columns, n = mr * t->rows, nr = c->d->nr;
    struct dot *d = c->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    val acc[MAX_SUMS];
    for (int64_t phase = 0; phase < step && phase < t->columns; phase++) {
        dot_begin_columns(d, dot_parts(t->columns - phase, step));
        sum_windows(c, t, ix_add(k, ix_add(k, t->column, k_int(k, phase)), ix_scale(k, w->lane, step)), mr, acc);
        for (int64_t i = 0; i < n; i++)
            k_store(k, c->sums, ix_add(k, k_int(k, (i * step + phase) * nr), w->lane), acc[i], 0);
        dot_end_columns(d);
    }
    for (int64_t first = 0; first < t->columns; first += nr) {
        dot_begin_columns(d, t->columns - first < nr ? t->columns - first : nr);
        val at = ix_add(k, k_int(k, first), w->lane);
        for (int64_t i = 0; i < n; i++)
            store_window(c, t, ix_add(k, t->column, at), i, sum_of_column(c, i * step * nr, at, first));
        dot_end_columns(d);
    }
}

/* Widens all channels of the task's image into scratch, from which its tiles then read it. */
static void widen_images(const struct direct *c, const struct image_windows *images, uint32_t buf)
{
    struct lowering *w = c->d->w;
    struct kernel *k = w->k;
    const int64_t count = images->channels * windows_channel(images), lanes = c->d->nr, whole = count / lanes;
    const val image = ix_add(k, ix_scale(k, c->outer, images->groups), c->d->batch_index);
    val coord[KL_MAX_RANK] = {0}, first = ix_scale(k, image, count);
    for (int64_t tail = 0; tail < 2; tail++) {
        if (tail ? count == whole * lanes : !whole)
            continue;
        val loop = tail ? 0 : k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), 1);
        w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, lanes), 1);
        w->pred = tail ? k_prim(k, P_LT, w->lane, k_int(k, count - whole * lanes), 0) : 0;
        if (tail)
            ix_bound(k, w->lane, 0, count - whole * lanes - 1);
        val at = ix_add(k, loop ? ix_scale(k, loop, lanes) : k_int(k, whole * lanes), w->lane);
        lower_unflatten(k, node_shape(w->g, images->array), ix_add(k, first, at), coord);
        lower_point(w);
        k_store(k, buf, at, lower_at(w, images->array, coord), w->pred);
        k_end(k, w->lane);
        w->lane = w->pred = 0;
        if (loop)
            k_end(k, loop);
    }
    w->copied.node = images->array;
    w->copied.buf = buf;
    w->copied.first = first;
    lower_point(w);
}

/* The tiles of some rows of the first operand, of those from `from` to `to` one below the other. */
static void emit_window_tiles(struct direct *c, val from, val to, int64_t mr)
{
    struct kernel *k = c->d->w->k;
    int64_t size = c->d->size.k;
    if (c->has_zeros)
        find_max_magnitude(c, mr);
    c->holds = size == c->z->window && mr * size <= MAX_HELD;
    for (int64_t i = 0; c->holds && i < mr * size; i++)
        c->a[i] = dot_element(c->d, false, ix_add(k, c->m0, k_int(k, i / size)), k_int(k, i % size));
    for (unsigned y = 0; y < c->ndown; y++) {
        struct direct_tile t = {.rows = c->down[y].length};
        val down, along;
        t.row = direct_open_segment(k, &c->down[y], c->rows, from, to, &down);
        for (unsigned x = 0; x < c->nalong; x++) {
            t.columns = c->along[x].length;
            t.column = direct_open_segment(k, &c->along[x], c->d->nr * c->z->step_columns, 0, 0, &along);
            (c->z->step_columns > 1 ? emit_stepped_tile : emit_window_tile)(c, &t, mr);
            direct_close_segment(k, along);
        }
        direct_close_segment(k, down);
    }
}

/* ---- tasks ---- */

/* Opens an if for the parts of `size` in an axis, or for the last one, which is shorter.  Sets *first, and *part to
 * its length.  false: there is no such part. */
static bool begin_part(struct kernel *k, int64_t length, int64_t size, bool last, val number, val *first,
                       int64_t *part, val *open)
{
    int64_t parts = dot_parts(length, size), rest = length % size, full = parts - (rest != 0);
    if (last ? !rest : !full)
        return false;
    *open = rest && full ? k_if(k, k_prim(k, last ? P_EQ : P_LT, number, k_int(k, full), 0)) : 0;
    *first = last ? k_int(k, full * size) : full == 1 ? k_int(k, 0) : ix_scale(k, number, size);
    *part = last ? rest : size;
    return true;
}

void dot_direct_emit(struct dot *d, const struct schedule *s)
{
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    const struct dot_direct *z = &d->direct;
    struct segment down[MAX_SEGMENTS], along[MAX_SEGMENTS];
    struct direct c = {.d = d, .z = z, .rows = s->dot_direct.rows, .down = down, .along = along};
    struct direct_parts in_parts = {0};
    struct tasks t;
    d->mr = s->dot_direct.mr;
    d->nr = d->lanes = s->dot_direct.nr;
    int64_t each = s->dot_direct.tiles, blocks = z->in_batch ? 1 : dot_parts(dot_parts(z->rows, c.rows), each);
    int64_t matrices = z->in_batch ? each : 1;
    int64_t elements = z->in_batch ? s->dot_direct.elements : 1, of = z->in_batch ? d->size.n : 1;
    int64_t groups = dot_parts(d->size.m, d->mr), parts = dot_parts(of, elements), mr, n;
    int64_t images = z->in_batch ? d->size.batch / z->columns / matrices : d->size.batch * z->outer;
    val active = 0;
    c.nalong = find_segments(d, true, z->columns, d->nr * z->step_columns, z->rows / 2, along);
    c.ndown = find_segments(d, false, z->rows, c.rows, z->columns / 2, down);
    if (z->step_columns > 1)
        c.sums = k_buf(k, BUF_SCRATCH, d->dtype, c.rows * d->mr * z->step_columns * d->nr, 0);
    if (z->in_batch && (d->blocks > 1 || s->dot_direct.lines < d->size.k))
        direct_begin_parts(&c, &in_parts, s, elements);
    c.has_zeros = (z->step_columns > 1 || z->step_rows > 1) && d->size.k >= MIN_LEFT_OUT;
    if (c.has_zeros)
        c.max_magnitude = k_buf(k, BUF_SCRATCH, KL_I32, d->nr, 0);
    struct image_windows array;
    const bool widens = s->dot_direct.widen && dot_direct_copies(d, &array);
    const uint32_t copy = !widens ? 0 : k_buf(k, BUF_SCRATCH, KL_F32, array.channels * windows_channel(&array), 0);
    lower_scalars(w);
    if (d->symbolic) {
        val some = ix_mul(k, ix_size(k, d->len.batch), z->in_batch ? k_int(k, 1) : ix_size(k, d->len.n));
        active = ix_div(k, some, z->in_batch ? z->columns * matrices : z->rows * z->columns);
        active = ix_scale(k, active, blocks * groups * parts);
    }
    val p = lower_tasks(w, images * blocks * groups * parts, active, &t), from = 0, to = 0, rows, columns;
    val part = ix_mod(k, p, parts), rest = ix_div(k, p, parts), group = ix_mod(k, rest, groups);
    rest = ix_div(k, rest, groups);
    c.batch = ix_div(k, rest, blocks);
    if (!z->in_batch) {
        c.outer = ix_div(k, c.batch, d->size.batch); /* an image's channels follow each other, as in memory */
        d->batch_index = ix_mod(k, c.batch, d->size.batch);
    }
    if (blocks > 1) {
        from = ix_scale(k, ix_mod(k, rest, blocks), each);
        to = ix_add(k, from, k_int(k, each));
    }
    if (widens)
        widen_images(&c, &array, copy);
    for (int i = 0; i < 4; i++) {
        if (!begin_part(k, d->size.m, d->mr, i & 1, group, &c.m0, &mr, &rows))
            continue;
        if (begin_part(k, of, elements, i & 2, part, &c.n0, &n, &columns)) {
            if (z->in_batch)
                direct_emit_sums(&c, ix_scale(k, c.batch, matrices), matrices, mr, n);
            else
                emit_window_tiles(&c, from, to, mr);
            direct_close_segment(k, columns);
        }
        direct_close_segment(k, rows);
    }
    w->copied.node = NIL;
    lower_tasks_end(w, &t);
}
