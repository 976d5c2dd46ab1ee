/* The schedules of sums over blocks of products of integers, on a processor. */
#include "lower_dot.h"
#include "passes/lower/lower_schedule.h"

enum { MAX_BLOCK = 256, SCALED_ROWS = 8, STRIP_VECTORS = 4, FEW_STRIPS = 16 };

/* Can instructions for bytes multiply the operands?  The elements of a column have to be adjacent in memory. */
static bool has_byte_order(struct block_dot *s)
{
    const struct dot *d = &s->d;
    int64_t group;
    if (d->w->chooser->caps->mma_bytes != DOT_GROUP || !dot_skinny_order(d, &s->order))
        return false;
    group = DOT_GROUP * s->order.packed;
    return s->order.along_k && s->order.element == 1 && s->order.source && d->size.k > 0 &&
           d->size.k % group == 0 && d->size.k / s->order.packed <= MAX_BLOCK && d->con.rank == 1;
}

bool dot_scaled_fits(struct block_dot *s)
{
    bool processor = !s->d.w->chooser->caps->is_gpu;
    s->has_order = processor && has_byte_order(s);
    return processor;
}

bool dot_scaled_choose(struct block_dot *s, struct schedule *to)
{
    const struct dot *d = &s->d;
    const struct caps *caps = d->w->chooser->caps;
    bool open = !d->w->chooser->want;
    if (open) {
        int64_t tiles = dot_parts(d->size.m, SCALED_ROWS);
        to->dot_scaled.mr = (uint16_t)dot_parts(d->size.m, tiles);
        to->dot_scaled.nr = (uint16_t)(caps->vector_bytes / 4);
        to->dot_scaled.bytes = s->has_order;
    }
    unsigned mr = to->dot_scaled.mr, nr = to->dot_scaled.nr;
    if (mr < 1 || mr > MAX_ROWS || nr < 1 || nr > 64 || (nr & (nr - 1)))
        return reject_schedule(d->w, "tile", "a tile has 1 to %d rows and 1, 2, 4 .. 64 columns, not %ux%u", MAX_ROWS,
                               mr, nr);
    if (!to->width)
        to->width = (uint16_t)nr;
    if (!to->dot_scaled.strip) {
        int64_t several = (int64_t)STRIP_VECTORS * nr;
        to->dot_scaled.strip = (uint32_t)(d->size.n / several >= FEW_STRIPS ? several : nr);
    }
    if (open)
        to->grain = lower_grain(dot_parts(d->size.n, to->dot_scaled.strip),
                                d->size.m * to->dot_scaled.strip * d->size.k * d->size.batch / 16);
    return true;
}

bool dot_scaled_legal(const struct block_dot *s, const struct schedule *to)
{
    const struct lowering *w = s->d.w;
    unsigned nr = to->dot_scaled.nr;
    if (to->width != nr)
        return reject_schedule(w, "width", "width %u: that of a product is the %u columns of its tile", to->width, nr);
    if (to->dot_scaled.strip % nr)
        return reject_schedule(w, "strip", "strip %u: a multiple of the tile's columns, %u", to->dot_scaled.strip, nr);
    return !to->dot_scaled.bytes || s->has_order ||
           reject_schedule(w, "bytes", "bytes: the columns of the second operand are no bytes that are adjacent");
}
