/* The schedules of convolutions whose windows are read in place. */
#include "lower_windows.h"

enum { MAX_IMAGE_ROWS = 4096 }; /* of a task with whole images, whose sums are in scratch */

/* Rows of results of all images; of an image where a symbol says how many there are. */
static int64_t image_rows(const struct dot *d)
{
    const struct image_windows *win = &d->windows;
    return (d->symbolic_n ? 1 : win->images) * win->z.out * win->y.out;
}

static int64_t largest_divisor(int64_t n, int64_t max)
{
    while (max > 1 && n % max)
        max--;
    return max > 1 ? max : 1;
}

/* Of `all` tiles of the results of NR channels those of a task: a divisor, at most `max`, and fewer where tasks would
 * be too few for all threads. */
static int64_t choose_part(const struct dot *d, const struct caps *caps, unsigned nr, int64_t all, int64_t max)
{
    int64_t groups = d->size.m / nr * d->size.batch, tasks = 2 * (int64_t)caps->threads;
    int64_t min_parts = dot_parts(tasks, groups);
    return largest_divisor(all, max < all / min_parts ? max : all / min_parts);
}

/* Sums of each channel that a task has at most: a share of the second-level cache. */
static int64_t max_results(const struct caps *caps, unsigned nr)
{
    enum { SHARE = 10 };
    return caps->l2_bytes / SHARE / (int64_t)sizeof(float) / nr;
}

/* The rows of a task: whole images, or a part of one, unless that would be far fewer than of all rows. */
static int64_t choose_sized_rows(const struct dot *d, const struct caps *caps, unsigned nr)
{
    const struct image_windows *win = &d->windows;
    const int64_t image = win->z.out * win->y.out, tasks = 2 * (int64_t)caps->threads;
    const int64_t min_parts = dot_parts(tasks, d->size.m / nr * d->size.batch); /* of all rows */
    const int64_t max = max_results(caps, nr) / win->x.out;
    const int64_t limit = max < win->images * image / min_parts ? max : win->images * image / min_parts;
    const int64_t any = largest_divisor(win->images * image, limit);
    const int64_t even = limit < image ? largest_divisor(image, limit)
                                       : image * largest_divisor(win->images, limit / image);
    return 2 * even >= any ? even : any;
}

/* Rows of results of a task; where a symbol says how many images there are, of whole images or of a part of one.  Of
 * small images there are several, for which weights are packed once, but not so many that tasks would be too few for
 * all threads with the greatest number of images. */
static int64_t choose_rows(const struct dot *d, const struct caps *caps, unsigned nr)
{
    enum { ENOUGH = 1024 }; /* results of a channel */
    const int64_t all = image_rows(d), columns = d->windows.x.out, groups = d->size.m / nr * d->size.batch;
    if (!d->symbolic_n)
        return choose_sized_rows(d, caps, nr);
    const int64_t rows = choose_part(d, caps, nr, all, max_results(caps, nr) / columns);
    if (rows < all)
        return rows;
    int64_t images = dot_parts(ENOUGH, all * columns), max = d->windows.images * groups / (2 * (int64_t)caps->threads);
    return all * (images < max ? images : max > 1 ? max : 1);
}

bool lower_reads_windows(const struct caps *caps)
{
    enum { WIDE = 64 }; /* bytes */
    return !caps->is_gpu && caps->vector_regs >= MANY_REGISTERS && caps->vector_bytes >= WIDE && !caps->compact;
}

/* Channels of images in a part of a k-block: the weights of a part stay in the first-level cache, while all rows of the
 * task are multiplied with them, or those that meet the same ones. */
static int64_t choose_channels(const struct dot *d, const struct caps *caps, unsigned mr, unsigned nr)
{
    const struct image_windows *win = &d->windows;
    int64_t bytes = (d->blocks > 1 ? d->kblock : d->size.k) * nr * d->element, max = caps->l1_bytes * 5 / 8;
    bytes /= windows_apart(&win->x, mr) * win->y.gap * win->z.gap;
    return dot_parts(dot_windows_block_channels(d), dot_parts(bytes, max));
}

static bool tile_divides(const struct dot *d, const struct schedule *s)
{
    return (d->windows.x.out % s->dot_windows.mr == 0 && d->size.m % s->dot_windows.nr == 0) ||
           reject_schedule(d->w, "tile", "tile %ux%u: it divides the results of a row and the channels",
                           s->dot_windows.mr, s->dot_windows.nr);
}

bool dot_windows_choose(struct dot *d, struct schedule *s)
{
    const struct caps *caps = d->w->chooser->caps;
    bool open = !d->w->chooser->want;
    if (open) {
        if (!lower_reads_windows(caps) || !windows_read_pays(d->w->g, d->w->anchor, &d->windows))
            return false;
        s->dot_windows.kc = (uint32_t)d->kblock;
        s->dot_windows.mr = (uint16_t)windows_tile_results(&d->windows);
        s->dot_windows.nr = (uint16_t)d->windows.filters;
    }
    if (!dot_tile_legal(d, s) || !tile_divides(d, s))
        return false;
    unsigned nr = s->dot_windows.nr;
    if (!s->width)
        s->width = (uint16_t)nr;
    if (!s->dot_windows.square)
        s->dot_windows.square = (uint16_t)(caps->vector_bytes / 4 < nr ? caps->vector_bytes / 4 : nr);
    if (!s->dot_windows.channels)
        s->dot_windows.channels = (uint32_t)choose_channels(d, caps, s->dot_windows.mr, nr);
    if (!s->dot_windows.rows)
        s->dot_windows.rows = (uint32_t)choose_rows(d, caps, nr);
    if (open) { /* a task's work: products by sixteens, and each result once more, which is transposed and stored */
        int64_t results = (int64_t)s->dot_windows.rows * d->windows.x.out * nr;
        s->grain = lower_grain(d->size.n / d->windows.x.out / s->dot_windows.rows * d->size.batch * (d->size.m / nr),
                               2 * results * d->size.k / 16 + results);
    }
    return true;
}

bool dot_windows_legal(const struct dot *d, const struct schedule *s)
{
    const int64_t rows = s->dot_windows.rows;
    if (s->dot_windows.square > s->dot_windows.nr)
        return reject_schedule(d->w, "square", "square %u: the tile has %u channels", s->dot_windows.square,
                               s->dot_windows.nr);
    if (d->symbolic_n)
        return image_rows(d) % rows == 0 || (rows % image_rows(d) == 0 && rows <= MAX_IMAGE_ROWS) ||
               reject_schedule(d->w, "rows", "rows %u: they are whole images, or divide one's rows",
                               s->dot_windows.rows);
    return image_rows(d) % rows == 0 ||
           reject_schedule(d->w, "rows", "rows %u: they divide the rows of all images", s->dot_windows.rows);
}

bool dot_windows_weights_choose(struct dot *d, struct schedule *s)
{
    const struct caps *caps = d->w->chooser->caps;
    const struct image_windows *win = &d->windows;
    bool open = !d->w->chooser->want;
    if (open) {
        if (!lower_reads_windows(caps) || !windows_read_pays(d->w->g, d->w->anchor, win))
            return false;
        s->dot_windows_weights.kc = (uint32_t)d->kblock;
        s->dot_windows_weights.mr = (uint16_t)(windows_tile_rows(win) * win->x.kernel);
        s->dot_windows_weights.nr = (uint16_t)win->filters;
    }
    unsigned mr = s->dot_windows_weights.mr, nr = s->dot_windows_weights.nr;
    if (!dot_tile_legal(d, s))
        return false;
    if ((mr != win->x.kernel && mr != windows_plane_steps(win)) || d->size.m % nr)
        return reject_schedule(d->w, "tile", "tile %ux%u: it has a row or a plane of the kernel, and divides channels",
                               mr, nr);
    if (!s->width)
        s->width = (uint16_t)nr;
    if (!s->dot_windows_weights.square)
        s->dot_windows_weights.square = (uint16_t)(caps->vector_bytes / 4 < nr ? caps->vector_bytes / 4 : nr);
    const int64_t tiles = windows_weight_tiles(d, mr);
    if (!s->dot_windows_weights.tiles)
        s->dot_windows_weights.tiles = (uint32_t)choose_part(d, caps, nr, tiles, max_results(caps, nr) / mr);
    if (open) {
        int64_t results = (int64_t)s->dot_windows_weights.tiles * mr * nr;
        s->grain = lower_grain(tiles / s->dot_windows_weights.tiles * d->size.batch * (d->size.m / nr),
                               2 * results * d->size.k / 16 + results);
    }
    return true;
}

bool dot_windows_weights_legal(const struct dot *d, const struct schedule *s)
{
    if (s->dot_windows_weights.square > s->dot_windows_weights.nr)
        return reject_schedule(d->w, "square", "square %u: the tile has %u channels", s->dot_windows_weights.square,
                               s->dot_windows_weights.nr);
    struct window_segment segments[WINDOW_SEGMENTS];
    if (!windows_segments(&d->windows.x, segments) || (s->dot_windows_weights.mr == windows_plane_steps(&d->windows) &&
                                                       !windows_segments(&d->windows.y, segments)))
        return reject_schedule(d->w, "tile", "tile %ux%u: zeros around the images give too many kinds of positions",
                               s->dot_windows_weights.mr, s->dot_windows_weights.nr);
    return windows_weight_tiles(d, s->dot_windows_weights.mr) % s->dot_windows_weights.tiles == 0 ||
           reject_schedule(d->w, "tiles", "tiles %u: they divide all tiles of a channel", s->dot_windows_weights.tiles);
}
