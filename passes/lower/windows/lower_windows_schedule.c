/* The schedules of convolutions whose windows are read in place. */
#include "lower_windows.h"

/* Rows of results of all images. */
static int64_t image_rows(const struct image_windows *win) { return win->images * win->z.out * win->y.out; }

/* Rows of results of a task: their number divides all rows, and there are at most `most` results for each channel.
 * Fewer where tasks would be too few for all threads. */
static int64_t choose_rows(const struct dot *d, const struct caps *caps, unsigned nr, int64_t most)
{
    const struct image_windows *win = &d->windows;
    int64_t all = image_rows(win), rows = most / win->x.out, groups = d->size.m / nr;
    int64_t tasks = 2 * (int64_t)caps->threads, fewest = dot_parts(tasks, groups);
    if (rows > all / fewest)
        rows = all / fewest;
    while (rows > 1 && all % rows)
        rows--;
    return rows > 1 ? rows : 1;
}

bool lower_reads_windows(const struct caps *caps)
{
    enum { MANY_REGISTERS = 32, WIDE = 64 };
    return !caps->is_gpu && caps->vector_regs >= MANY_REGISTERS && caps->vector_bytes >= WIDE && !caps->compact;
}

/* Channels of images in a part of a k-block: the weights of a part stay in the first-level cache, while all rows of the
 * task are multiplied with them. */
static int64_t choose_channels(const struct dot *d, const struct caps *caps, unsigned nr)
{
    int64_t bytes = (d->blocks > 1 ? d->kblock : d->size.k) * nr * d->element, most = caps->l1_bytes * 5 / 8;
    return dot_parts(dot_windows_block_channels(d), dot_parts(bytes, most));
}

static bool tile_divides(const struct dot *d, const struct schedule *s)
{
    return (d->windows.x.out % s->dot_windows.mr == 0 && d->size.m % s->dot_windows.nr == 0) ||
           reject_schedule(d->w, "tile", "tile %ux%u: it divides the results of a row and the channels",
                           s->dot_windows.mr, s->dot_windows.nr);
}

bool dot_windows_choose(struct dot *d, struct schedule *s)
{
    enum { SUMS_BYTES_SHARE = 10 }; /* of the second-level cache */
    const struct caps *caps = d->w->chooser->caps;
    bool open = !d->w->chooser->want;
    if (open) {
        if (!lower_reads_windows(caps) || !windows_read_pays(d->w->g, d->w->anchor, &d->windows))
            return false;
        s->dot_windows.kc = (uint32_t)d->kblock;
        s->dot_windows.mr = (uint16_t)windows_tile(d->windows.x.out);
        s->dot_windows.nr = (uint16_t)(2 * caps->vector_bytes / 4);
    }
    if (!dot_tile_legal(d, s) || !tile_divides(d, s))
        return false;
    unsigned nr = s->dot_windows.nr;
    if (!s->width)
        s->width = (uint16_t)nr;
    if (!s->dot_windows.square)
        s->dot_windows.square = (uint16_t)(caps->vector_bytes / 4 < nr ? caps->vector_bytes / 4 : nr);
    if (!s->dot_windows.channels)
        s->dot_windows.channels = (uint32_t)choose_channels(d, caps, nr);
    if (!s->dot_windows.rows)
        s->dot_windows.rows = (uint32_t)choose_rows(d, caps, nr, caps->l2_bytes / SUMS_BYTES_SHARE / 4 / nr);
    if (open) { /* a task's work: products by sixteens, and each result once more, which is transposed and stored */
        int64_t results = (int64_t)s->dot_windows.rows * d->windows.x.out * nr;
        s->grain = lower_grain(image_rows(&d->windows) / s->dot_windows.rows * (d->size.m / nr),
                               2 * results * d->size.k / 16 + results);
    }
    return true;
}

bool dot_windows_legal(const struct dot *d, const struct schedule *s)
{
    const struct image_windows *win = &d->windows;
    if (s->dot_windows.square > s->dot_windows.nr)
        return reject_schedule(d->w, "square", "square %u: the tile has %u channels", s->dot_windows.square,
                               s->dot_windows.nr);
    return image_rows(win) % s->dot_windows.rows == 0 ||
           reject_schedule(d->w, "rows", "rows %u: they divide the rows of all images", s->dot_windows.rows);
}
