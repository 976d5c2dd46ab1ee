/* The schedules of products by a processor's tiles of bf16. */
#include "lower_dot_tiles.h"

bool dot_tiles_fits(struct dot *d)
{
    dot_find_steps(d);
    return d->even_odd && d->w->chooser->caps->bf16_tiles && !d->symbolic && d->size.batch > 0 && d->size.m > 0 &&
           d->size.n > 0 && d->size.k > 0 && d->size.k <= UINT32_MAX;
}

/* Can A be read in place? */
static bool a_is_in_place(const struct dot *d)
{
    return d->a_step_k == 1 && d->a_step_m >= 0 && d->run_m == d->size.m && d->size.m % SIDE == 0 &&
           d->size.k % DEPTH == 0;
}

/* Columns of a task with pack_a: all, or the largest divisor, in whole tiles, by which there are enough tasks. */
static int64_t task_columns(const struct dot *d, const struct schedule *s)
{
    const struct caps *caps = d->w->chooser->caps;
    int64_t nr = s->dot_tiles.nr, rows = dot_parts(d->size.m, s->dot_tiles.rows) * d->size.batch;
    int64_t wanted = caps->threads > 1 ? dot_parts(2 * (int64_t)caps->threads, rows) : 1, runs = wanted;
    while (runs > 1 && runs < 2 * wanted && (d->size.n % runs || d->size.n / runs % nr))
        runs++;
    return wanted < 2 || runs >= 2 * wanted ? 0 : d->size.n / runs;
}

/* Rows of a task: as many of A as stay in the second-level cache. */
static uint32_t tiles_task_rows(const struct dot *d, const struct schedule *s)
{
    enum { MAX_PACKED = 512, SHARE = 3 };
    const struct caps *caps = d->w->chooser->caps;
    int64_t mr = s->dot_tiles.mr, length = s->dot_tiles.pack_a ? tiles_rounded(d->size.k, DEPTH) : s->dot_tiles.panel;
    int64_t each = length * d->element;
    int64_t fit = caps->l2_bytes / SHARE / each, across = dot_parts(d->size.n, s->dot_tiles.nr) * d->size.batch;
    if (s->dot_tiles.pack_a && fit > MAX_PACKED)
        fit = MAX_PACKED;
    int64_t blocks = dot_parts(d->size.m, fit > mr ? fit : mr);
    if (!s->dot_tiles.pack_a && caps->threads > 1 && blocks * across < 2 * (int64_t)caps->threads)
        blocks = dot_parts(2 * (int64_t)caps->threads, across);
    int64_t rows = tiles_rounded(dot_parts(d->size.m, blocks), mr);
    return (uint32_t)(rows < d->size.m ? rows : d->size.m);
}

bool dot_tiles_choose(struct dot *d, struct schedule *s)
{
    enum { PANEL = 512 };
    bool open = !d->w->chooser->want;
    if (open) {
        s->dot_tiles.kc = (uint32_t)d->kblock;
        s->dot_tiles.mr = 2 * SIDE;
        s->dot_tiles.nr = 2 * SIDE;
        s->dot_tiles.pack_a = !a_is_in_place(d);
    }
    if (!dot_tile_legal(d, s))
        return false;
    if (!s->width)
        s->width = s->dot_tiles.nr;
    if (!s->dot_tiles.panel) {
        int64_t panels = dot_parts(d->size.k, PANEL), k = d->size.k;
        s->dot_tiles.panel = (uint32_t)(panels > 1 ? tiles_rounded(dot_parts(k, panels), DEPTH) : k);
    }
    if (!s->dot_tiles.rows)
        s->dot_tiles.rows = tiles_task_rows(d, s);
    if (open && s->dot_tiles.pack_a)
        s->dot_tiles.run = (uint32_t)task_columns(d, s);
    if (open) {
        int64_t columns = !s->dot_tiles.pack_a ? s->dot_tiles.nr : s->dot_tiles.run ? s->dot_tiles.run : d->size.n;
        s->grain = lower_grain(d->size.batch * dot_parts(d->size.m, s->dot_tiles.rows) * dot_parts(d->size.n, columns),
                               2 * (int64_t)s->dot_tiles.rows * columns * d->size.k / 64);
    }
    return true;
}

bool dot_tiles_legal(const struct dot *d, const struct schedule *s)
{
    const struct lowering *w = d->w;
    int64_t down = s->dot_tiles.mr / SIDE, across = s->dot_tiles.nr / SIDE, panel = s->dot_tiles.panel;
    int64_t rows = s->dot_tiles.rows, run = s->dot_tiles.run;
    if (s->dot_tiles.mr % SIDE || s->dot_tiles.nr % SIDE || down * across + down + across > REGISTERS)
        return reject_schedule(w, "tile", "tile %ux%u: sides are multiples of %d, and %d registers hold it and its "
                               "factors", s->dot_tiles.mr, s->dot_tiles.nr, SIDE, REGISTERS);
    if (rows != d->size.m && (rows > d->size.m || rows % s->dot_tiles.mr))
        return reject_schedule(w, "rows", "rows %d: a task has a whole number of tiles, of %u rows, or all rows",
                               (int)rows, s->dot_tiles.mr);
    if (panel != d->size.k && (panel > d->size.k || panel % DEPTH))
        return reject_schedule(w, "panel", "panel %d: all of the contraction, or a multiple of %d below", (int)panel,
                               DEPTH);
    if (!s->dot_tiles.pack_a && !a_is_in_place(d))
        return reject_schedule(w, "pack_a", "pack_a: the first operand cannot be read in place");
    return !run || (s->dot_tiles.pack_a && d->size.n % run == 0 && run % s->dot_tiles.nr == 0) ||
           reject_schedule(w, "run", "run %d: with pack_a whole tiles of columns that divide all", (int)run);
}
