/* The schedules of direct convolutions. */
#include "lower_direct.h"
#include "passes/lower/windows/lower_windows.h"

/* The elements of all windows through which the second operand views an array. */
static int64_t window_elements(const struct dot *d)
{
    const struct graph *g = d->w->g;
    int64_t n = 1;
    for (ref r = d->n->in[1]; node_is_view(g, r); r = g->node[r].in[0])
        if (g->node[r].op == OP_window && n <= MAX_ELEMENTS)
            n *= g->node[r].attr.window.size;
    return n;
}

/* Zeros between the images' elements are those of pads; other axes than the last two have code for any place. */
static void find_steps(const struct dot *d, struct dot_direct *z)
{
    const struct graph *g = d->w->g;
    z->step_rows = z->step_columns = 1;
    for (ref r = d->n->in[1]; node_is_view(g, r); r = g->node[r].in[0]) {
        const struct node *n = &g->node[r];
        uint32_t behind = op_is_masked(n->op) ? node_shape(g, r)->rank - n->attr.pad.axis : 0;
        if (behind == 1 && n->attr.pad.interior < MAX_STEP)
            z->step_columns = n->attr.pad.interior + 1;
        else if (behind == 2 && n->attr.pad.interior < MAX_STEP)
            z->step_rows = n->attr.pad.interior + 1;
    }
    z->step_rows = z->rows > 1 && !z->in_batch ? z->step_rows : 1;
    z->step_columns = z->in_batch ? 1 : z->step_columns;
}

/* struct dot_direct, kernel_columns */
static int64_t find_kernel_columns(const struct dot *d)
{
    const struct graph *g = d->w->g;
    for (ref r = d->n->in[1]; node_is_view(g, r); r = g->node[r].in[0])
        if (g->node[r].op == OP_window) /* of an image's last axis */
            return g->node[r].attr.window.stride == 1 ? g->node[r].attr.window.size : 1;
    return 1;
}

bool dot_direct_reads_rows(const struct dot *d)
{
    enum { MANY_ELEMENTS = 25, MANY_COLUMNS = 16 }; /* of a window; of an image */
    const struct dot_direct *z = &d->direct;
    return d->size.m == 1 && !z->in_batch && z->kernel_columns > 1 && z->window >= MANY_ELEMENTS &&
           z->columns > MANY_COLUMNS && z->step_rows == 1 && z->step_columns == 1;
}

/* Are the numbers of images, and of what is in a batch beside the columns, all that symbols say? */
static bool symbols_count_images(const struct dot *d)
{
    const struct kernel *k = d->w->k;
    const struct dot_direct *z = &d->direct;
    return !d->symbolic ||
           (!d->symbolic_m && size_is_constant(kernel_length(k, z->rows)) &&
            size_is_constant(kernel_length(k, z->columns)) &&
            (z->in_batch ? !d->symbolic_n : !d->symbolic_k && size_is_constant(d->len.batch)));
}

/* Is the second operand computed here, by more than a cast, as of half floats? */
static bool computes_operand(const struct lowering *w)
{
    bool linear;
    ref r = node_operand(w->g, w->anchor, 1, &linear);
    return lower_is_member(w, r) &&
           (w->g->node[r].op != OP_cast || !lower_in_memory(w, node_operand(w->g, r, 0, &linear)));
}

bool dot_direct_copies(const struct dot *d, struct image_windows *images)
{
    const struct graph *g = d->w->g;
    return !d->symbolic && !d->direct.in_batch && windows_find(g, d->w->anchor, images) && !images->contracted &&
           lower_is_member(d->w, images->array) && images->images == d->direct.outer;
}

bool dot_direct_fits(struct dot *d)
{
    const struct lowering *w = d->w;
    if (w->chooser->caps->is_gpu || !dot_is_direct(w->g, w->anchor) || d->unit != 1 || computes_operand(w))
        return false;
    struct dot_direct *z = &d->direct;
    uint32_t last = d->b.rank - 1;
    *z = (struct dot_direct){.columns = d->b.dim[last], .rows = 1, .window = window_elements(d),
                             .kernel_columns = find_kernel_columns(d)};
    for (unsigned i = 0; i < d->n->attr.dot.nbatch; i++)
        z->in_batch |= axis_get(d->n->attr.dot.batch_b, i) == last;
    const struct shape *rows = z->in_batch ? &d->con : &d->free_b;
    if (z->in_batch && rows->rank > 0)
        z->rows = rows->dim[rows->rank - 1];
    else if (!z->in_batch && rows->rank > 2)
        z->rows = rows->dim[rows->rank - 2];
    z->outer = z->in_batch ? d->size.k / z->rows : d->size.n / z->columns / z->rows;
    find_steps(d, z);
    if (!symbols_count_images(d))
        return false;
    return z->window <= MAX_ELEMENTS && (z->in_batch ? d->size.n : d->size.k) % z->window == 0;
}

/* Parts of at most `max` into which a length is divided evenly. */
static int64_t even_part(int64_t length, int64_t max) { return dot_parts(length, dot_parts(length, max)); }

/* Bytes of an image's columns, in one channel. */
static int64_t image_bytes(const struct dot *d) { return d->direct.rows * d->direct.columns * (int64_t)sizeof(float); }

/* Of lanes in the batch: lines, of whole images or of a part of one, whose products are added at a time.  What both
 * operands have of them fits the first-level cache. */
static int64_t lines_of_part(const struct dot *d, const struct caps *caps, const struct schedule *s)
{
    enum { MIN_LINES = 28 }; /* pay for loading and storing the sums */
    const struct dot_direct *z = &d->direct;
    int64_t bytes = 2 * z->columns * (int64_t)sizeof(float), max = caps->l1_bytes * 5 / 8 / bytes;
    max = max > MIN_LINES ? max : MIN_LINES;
    if (d->size.n > s->dot_direct.elements) /* code for each of several parts of a large window is read more often */
        max = DOT_BLOCK;
    int64_t lines = max < z->rows ? even_part(z->rows, max) : max / z->rows * z->rows;
    return lines < d->size.k ? lines : d->size.k;
}

/* Matrices of a task: so many that what a task reads of an image is adjacent for two pages, in parts. */
static int64_t matrices_of_task(const struct dot *d, const struct caps *caps, const struct schedule *s)
{
    enum { ADJACENT_BYTES = 8192 };
    int64_t all = d->size.batch / d->direct.columns, tasks = 2 * (int64_t)caps->threads;
    int64_t max = dot_parts(ADJACENT_BYTES, image_bytes(d));
    if (max > all / tasks)
        max = all / tasks;
    if (!size_is_constant(d->len.batch) || (s->dot_direct.lines == d->size.k && d->blocks == 1))
        return 1;
    while (max > 1 && all % max)
        max--;
    return max > 1 ? max : 1;
}

/* Of lanes in the batch: rows of the first operand and elements of windows, each of which loads a vector a product. */
static void choose_sums(const struct dot *d, const struct caps *caps, struct schedule *s)
{
    enum { MAX_ROWS_OF_SUMS = 4, BESIDE = 8, MAX_LINES = 4 };
    int64_t sums = (int64_t)caps->vector_regs - BESIDE, mr = s->dot_direct.mr;
    int64_t elements = sums / mr > 1 ? sums / mr : 1;
    if (!s->dot_direct.elements)
        s->dot_direct.elements = (uint16_t)even_part(d->size.n, elements < MAX_SUMS ? elements : MAX_SUMS);
    if (!s->dot_direct.rows)
        s->dot_direct.rows = (uint32_t)even_part(d->direct.rows, MAX_LINES);
    if (!s->dot_direct.lines)
        s->dot_direct.lines = (uint32_t)lines_of_part(d, caps, s);
    if (!s->dot_direct.tiles)
        s->dot_direct.tiles = (uint32_t)matrices_of_task(d, caps, s);
}

/* Of lanes in columns: rows of these, and tiles, fewer in a task where tasks would be too few for all threads. */
static void choose_windows(const struct dot *d, const struct caps *caps, int64_t sums, struct schedule *s)
{
    enum { MAX_TILE_ROWS = 8 };
    const struct dot_direct *z = &d->direct;
    int64_t each = s->dot_direct.mr * dot_parts(s->dot_direct.nr, caps->vector_bytes / 4);
    int64_t max = sums / each > 1 ? sums / each : 1;
    if (!s->dot_direct.rows) {
        int64_t rows = even_part(z->rows, max < MAX_TILE_ROWS ? max : MAX_TILE_ROWS);
        rows = dot_parts(rows, z->step_rows) * z->step_rows;
        s->dot_direct.rows = (uint32_t)(rows < z->rows ? rows : z->rows);
    }
    int64_t tiles = dot_parts(z->rows, s->dot_direct.rows);
    if (!s->dot_direct.lines)
        s->dot_direct.lines = 1;
    if (!s->dot_direct.tiles) {
        int64_t blocks = dot_parts(2 * (int64_t)caps->threads, d->size.batch * z->outer);
        s->dot_direct.tiles = (uint32_t)dot_parts(tiles, blocks < tiles ? blocks : tiles);
    }
}

/* Is each element of an image multiplied so often that it is faster to widen it once, into scratch, than where it is
 * loaded for each element of a window?  On one thread with AVX-512 bf16 7x7 of 96 channels of 56x56 takes 0.86 of the
 * time, 3x3 in groups of 8 channels 0.87, depthwise 3x3 with every second window 1.4. */
static bool widening_pays(const struct dot *d, const struct caps *caps)
{
    enum { MANY_PRODUCTS = 25 };
    struct image_windows images;
    return d->size.m * d->direct.window >= MANY_PRODUCTS && dot_direct_copies(d, &images) &&
           images.channels * windows_channel(&images) * (int64_t)sizeof(float) <= caps->l2_bytes / 2;
}

bool dot_direct_choose(struct dot *d, struct schedule *s)
{
    enum { MAX_TILE_SUMS = 16, ROWS_OF_SUMS = 4 };
    const struct caps *caps = d->w->chooser->caps;
    const struct dot_direct *z = &d->direct;
    bool open = !d->w->chooser->want;
    const int64_t vectors = dot_direct_reads_rows(d) && caps->vector_regs >= MANY_REGISTERS ? 2 : 1;
    int64_t sums = (int64_t)caps->vector_regs / 2 < MAX_TILE_SUMS ? (int64_t)caps->vector_regs / 2 : MAX_TILE_SUMS;
    if (open && lower_reads_windows(caps) && windows_facts(d) && windows_read_pays(d->w->g, d->w->anchor, &d->windows))
        return false; /* filters as lanes leave none unused */
    if (open) { /* two rows of columns share the first operand's elements, which are loaded for each product */
        s->dot_direct.kc = (uint32_t)d->kblock;
        s->dot_direct.mr = (uint16_t)even_part(d->size.m, z->in_batch ? ROWS_OF_SUMS : sums / 2);
        s->dot_direct.nr = (uint16_t)(caps->vector_bytes / 4 * vectors);
        s->dot_direct.widen = widening_pays(d, caps);
    }
    if (!dot_tile_legal(d, s))
        return false;
    if (!s->width)
        s->width = s->dot_direct.nr;
    if (z->in_batch)
        choose_sums(d, caps, s);
    else
        choose_windows(d, caps, sums, s);
    if (open) { /* a task's work: products by sixteens */
        int64_t groups = dot_parts(d->size.m, s->dot_direct.mr);
        int64_t tasks = z->in_batch ? d->size.batch / z->columns / s->dot_direct.tiles * groups *
                                          dot_parts(d->size.n, s->dot_direct.elements)
                        : d->size.batch * z->outer * groups *
                              dot_parts(dot_parts(z->rows, s->dot_direct.rows), s->dot_direct.tiles);
        int64_t products = s->dot_direct.tiles * d->size.k *
                           (z->in_batch ? s->dot_direct.elements : (int64_t)s->dot_direct.rows);
        s->grain = lower_grain(tasks, 2 * products * z->columns * s->dot_direct.mr / 16);
    }
    return true;
}

bool dot_direct_legal(const struct dot *d, const struct schedule *s)
{
    const struct dot_direct *z = &d->direct;
    struct image_windows images;
    if (s->dot_direct.widen && !dot_direct_copies(d, &images))
        return reject_schedule(d->w, "widen", "widen: of images of two axes that are not widened in memory");
    int64_t rows = s->dot_direct.rows, beside = z->in_batch ? s->dot_direct.elements : rows;
    if (beside * s->dot_direct.mr > MAX_SUMS || rows > z->rows || rows > MAX_SUMS)
        return reject_schedule(d->w, "rows", "rows %u: at most the image's, %d, and %d vectors of sums in a tile",
                               s->dot_direct.rows, (int)z->rows, MAX_SUMS);
    if (z->in_batch ? s->dot_direct.elements < 1 || s->dot_direct.elements > d->size.n : s->dot_direct.elements)
        return reject_schedule(d->w, "elements", "elements %u: of windows, where lanes are of the batch, else 0",
                               s->dot_direct.elements);
    if (z->in_batch ? s->dot_direct.lines > d->size.k : s->dot_direct.lines != 1)
        return reject_schedule(d->w, "lines", "lines %u: at most all, where lanes are of the batch, else 1",
                               s->dot_direct.lines);
    if (z->in_batch)
        return s->dot_direct.tiles == 1 ||
               (size_is_constant(d->len.batch) && d->size.batch / z->columns % s->dot_direct.tiles == 0) ||
               reject_schedule(d->w, "tiles", "tiles %u: they divide the matrices of a batch, whose number is known",
                               s->dot_direct.tiles);
    return s->dot_direct.tiles <= dot_parts(z->rows, rows) ||
           reject_schedule(d->w, "tiles", "tiles %u: there are not so many", s->dot_direct.tiles);
}
