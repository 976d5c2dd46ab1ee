/* Convolutions that read the windows of images in place (lower_windows.c), of two and of three axes, and gradients in
 * their weights, with one group of channels and with several: borders that are stored and that are not, wider than
 * tiles, on all sides of the image; zeros between the images' elements; kernels of one element along an axis; blocks
 * and parts of a contraction that begin and end anywhere; weights that are not finite, and sums of -0, whose products
 * with zeros count.
 *
 *   image_windows [COUNT [SEED [VARIANTS [COMPILE]]]]     VARIANTS and COMPILE as those of small_scopes */
#include "tests/support/cases/kernel_cases.h"
#include <stdlib.h>

enum { PLAIN, INFINITE, TINY, VALUES };
enum { BORDER_INSIDE, BORDER_READ, BORDER_BELOW, FORMS }; /* who else reads the border, or is below it */

struct image_case {
    int64_t images, groups, channels, filters, block;
    int64_t kernel[3], stride[3], dilation[3], low[3], high[3], out[3], gap[3];
    unsigned axes, values, form;
    bool gradient;          /* in weights: positions are contracted */
    bool transposed;        /* weights [contraction, filters]; of a gradient dy [filters, images, positions] */
};

static int64_t one_of(struct rng *r, const int64_t *from, unsigned n) { return from[rng_below(r, n)]; }
#define ONE_OF(r, ...) \
    one_of(r, (const int64_t[]){__VA_ARGS__}, (unsigned)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t)))

static struct image_case any_case(struct rng *r)
{
    const int64_t groups = ONE_OF(r, 1, 1, 2, 3);
    struct image_case c = {.images = ONE_OF(r, 1, 1, 2), .groups = groups, .channels = ONE_OF(r, 1, 2, 3, 9),
                           .filters = groups > 1 ? ONE_OF(r, 16, 32, 48) : ONE_OF(r, 32, 32, 64),
                           .block = ONE_OF(r, 0, 0, 8, 10, 12, 18, 20, 27),
                           .axes = 2 + (unsigned)rng_below(r, 2)};
    for (unsigned i = 0; i < c.axes; i++) {
        c.kernel[i] = ONE_OF(r, 2, 3, 3, 3, 4);
        c.stride[i] = ONE_OF(r, 1, 1, 2, 3);
        c.dilation[i] = ONE_OF(r, 1, 1, 1, 2);
        c.gap[i] = c.stride[i] == 1 && c.dilation[i] == 1 ? ONE_OF(r, 1, 1, 2, 3) : 1;
        c.low[i] = ONE_OF(r, 0, 1, 1, 2, 5, 9);
        c.high[i] = ONE_OF(r, 0, 1, 1, 2, 4, 8);
        c.out[i] = i == c.axes - 1 ? ONE_OF(r, 6, 7, 8, 9, 10, 12, 14, 21) : ONE_OF(r, 1, 2, 3, 5);
    }
    if (c.axes == 3) /* no window along an axis, or one along all */
        *(rng_below(r, 2) ? &c.kernel[0] : &c.kernel[1]) = ONE_OF(r, 1, 2, 3, 3);
    c.values = (unsigned)rng_below(r, VALUES);
    c.form = (unsigned)rng_below(r, FORMS);
    c.gradient = rng_below(r, 2);
    int64_t steps = 1; /* enough of them for these kernels (windows_read_pays), mostly */
    for (unsigned i = 0; i < c.axes; i++)
        steps *= c.kernel[i];
    const int64_t least = rng_below(r, 8) == 0 ? 1 : c.gradient ? 96 : c.axes == 3 ? 64 : 1;
    while (c.channels * steps < least)
        c.channels++;
    c.transposed = rng_below(r, 3) == 0;
    return c;
}

/* The image's length along an axis; at least 1, for which the border may have to be shorter, or longer to end with an
 * element. */
static int64_t image_length(struct image_case *c, unsigned i)
{
    int64_t all = (c->out[i] - 1) * c->stride[i] + (c->kernel[i] - 1) * c->dilation[i] + 1;
    while (all - c->low[i] - c->high[i] < 1)
        *(c->low[i] > c->high[i] ? &c->low[i] : &c->high[i]) -= 1;
    c->high[i] += (all - c->low[i] - c->high[i] - 1) % c->gap[i];
    return (all - c->low[i] - c->high[i] - 1) / c->gap[i] + 1;
}

static ref scaled(struct graph *g, ref x, double by) { return n_mul(g, x, n_k(g, x, by)); }

static struct graph *convolution(struct image_case *c)
{
    struct graph *g = graph_new("image_windows");
    const uint32_t axes = c->axes, last = axes + 1;
    struct shape s = {.rank = 2 + axes, .dim = {c->images, c->groups * c->channels}};
    const unsigned grouped = c->groups > 1; /* axes of groups */
    int64_t steps = c->channels;
    for (uint32_t i = 0; i < axes; i++) {
        s.dim[2 + i] = image_length(c, i);
        steps *= c->kernel[i];
    }
    int64_t even = s.dim[last] % 2 == 0;
    if (c->form == BORDER_BELOW)
        s.dim[last] = (s.dim[last] + 1) / 2;
    struct shape sw = {.rank = 2 + grouped, .dim = {c->groups}};
    sw.dim[grouped] = c->transposed ? steps : c->filters;
    sw.dim[grouped + 1] = c->transposed ? c->filters : steps;
    if (c->gradient) { /* [groups, filters, images, ..] or [images, groups, filters, ..] */
        const unsigned at = c->transposed ? 0 : 1;
        sw = (struct shape){.rank = 2 + grouped + axes, .dim = {c->images, c->images, c->images}};
        if (grouped)
            sw.dim[at] = c->groups;
        sw.dim[at + grouped] = c->filters;
        for (uint32_t i = 0; i < axes; i++)
            sw.dim[2 + grouped + i] = c->out[i];
    }
    ref x = n_input(g, KL_F32, &s, "x"), w = n_input(g, KL_F32, &sw, "w"), zero = n_const(g, KL_F32, 0);
    if (c->values == INFINITE) /* the larger ones become infinite */
        w = n_add(g, w, scaled(g, n_exp(g, scaled(g, w, 60)), 1e-30));
    if (c->values == TINY) {
        w = scaled(g, w, 1e-30);
        x = scaled(g, x, 1e-30);
    }
    if (c->form == BORDER_BELOW) /* zeros between the elements, which are stored */
        x = n_pad(g, x, zero, last, 0, even, 1);
    for (uint32_t i = 0; i < axes; i++)
        if (c->low[i] || c->high[i] || c->gap[i] > 1)
            x = n_pad(g, x, zero, 2 + i, c->low[i], c->high[i], c->gap[i] - 1);
    if (c->form == BORDER_READ)
        graph_output(g, OUT_RETURN, x, 0);
    for (uint32_t i = 0; i < axes; i++)
        x = n_window(g, x, 2 + i, c->kernel[i], c->stride[i], c->dilation[i]);
    union attr perm = {0};
    struct shape to = {.rank = 2 + grouped + axes, .dim = {c->images, c->groups}};
    to.dim[1 + grouped] = steps;
    for (uint32_t i = 0; i < 2 + 2 * axes; i++) /* [image, channel, kernel.., out..] */
        perm.permute.perm[i] = (uint8_t)(i < 2 ? i : i < 2 + axes ? i + axes : i - axes);
    for (uint32_t i = 0; i < axes; i++)
        to.dim[2 + grouped + i] = c->out[i];
    x = n_reshape(g, n_permute(g, x, perm.permute.perm), &to);
    union attr d = {.dot = {.nbatch = (uint8_t)grouped, .batch_b = grouped, .ncon = 1,
                            .con_a = !c->transposed + grouped, .con_b = 1 + grouped}};
    if (c->gradient) {
        d.dot.ncon = (uint8_t)(1 + axes);
        d.dot.batch_a = grouped && !c->transposed;
        d.dot.con_a = d.dot.con_b = 0;
        for (unsigned i = 0; i < 1 + axes; i++) {
            d.dot.con_a = axis_put(d.dot.con_a, i, i ? 1 + grouped + i : c->transposed ? 1 + grouped : 0);
            d.dot.con_b = axis_put(d.dot.con_b, i, i ? 1 + grouped + i : 0);
        }
    }
    ref y = n_dot(g, w, x, &d);
    if (c->block && !g->err.code) {
        g->node[y].attr.dot.kblock = (uint32_t)c->block;
        g->node[y].attr.dot.lanes = 1;
    }
    static const uint8_t images_first[][KL_MAX_RANK] = {{1, 0, 2, 3, 4}, {2, 0, 1, 3, 4, 5}};
    y = n_neg(g, y);
    graph_output(g, OUT_RETURN, c->gradient ? y : n_permute(g, y, images_first[grouped]), 0);
    return g;
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 40, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    static struct kernel_cases k;
    kernel_cases_init(&k, seed);
    k.variants = argc > 3 ? (unsigned)atoi(argv[3]) : 4;
    k.compile_every = argc > 4 ? (unsigned)atoi(argv[4]) : 20;
    k.verbose = getenv("KERNEL_CASES_VERBOSE") != NULL;
    unsigned wide = 0;
    while (wide < k.processors && !lower_reads_windows(&k.target[wide]))
        wide++;
    if (!check(wide < k.processors, "a target reads windows in place"))
        return finish();
    for (uint64_t i = 0; i < count && k.failures < 5; i++) {
        struct rng r = {(seed + i) * UINT64_C(0x9e3779b97f4a7c15) | 1};
        rng_next(&r);
        struct image_case c = any_case(&r);
        struct graph *g = convolution(&c);
        char what[32];
        snprintf(what, sizeof what, "case %" PRIu64, seed + i);
        k.r.s = r.s | 1;
        k.target[wide].l1_bytes = rng_below(&r, 2) ? 2 << 10 : 32 << 10; /* with parts of blocks, and without */
        if (check(!g->err.code, "%s: %s", what, g->err.msg))
            passed += kernel_cases_run(&k, g, wide, rng_below(&r, 8) != 0, what);
        graph_free(g);
    }
    uint64_t cases = k.kinds[SCHED_DOT_WINDOWS], gradients = k.kinds[SCHED_DOT_WINDOWS_WEIGHTS];
    kernel_cases_print(&k);
    check(cases > count / 2 && gradients > count / 2,
          "%" PRIu64 " kernels, and %" PRIu64 " of gradients, read windows in place", cases, gradients);
    return finish();
}
