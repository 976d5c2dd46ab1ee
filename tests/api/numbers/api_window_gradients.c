/* Gradients of convolutions and of transposed ones against their definitions: windows of every stride, dilation and
 * padding, in groups, small ones and such as are computed by phases (passes/graph/reverse_phases.c). */
#include "tests/support/api_check.h"

static kl_device dev;
#define D(...) DIMS(__VA_ARGS__)

static uint64_t state = 88172645463325252u;
static int below(int n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int)(state % (uint64_t)n);
}

/* A convolution of small [N, groups * depth, small..] and large [N, groups * filters, large..] images: small has an
 * element for each window of large.  Axes behind n have length 1. */
struct geometry {
    int n;
    int64_t batch, groups, depth, filters, large[3], small[3], size[3], stride[3], dilation[3], low[3], high[3];
};

enum { MAX_COUNT = 1 << 17 };

static double small_v[MAX_COUNT], large_v[MAX_COUNT], weights_v[MAX_COUNT], result[3][MAX_COUNT];

static int64_t product(const int64_t *v) { return v[0] * v[1] * v[2]; }

/* -1, 0 and 1: sums are exact. */
static kl_tensor random_tensor(kl_dtype dtype, int rank, const int64_t *dims, double *v)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    CHECK(n <= MAX_COUNT);
    for (int64_t i = 0; i < n && i < MAX_COUNT; i++)
        v[i] = below(3) - 1;
    kl_tensor wide = kl_input(dev, KL_F64, rank, dims, v), t = kl_cast(wide, dtype);
    kl_release(wide);
    return t;
}

/* The element of the large images along axis i that element k of window o is; -1: outside of them. */
static int64_t place(const struct geometry *w, int i, int64_t o, int64_t k)
{
    int64_t at = o * w->stride[i] + k * w->dilation[i] - w->low[i];
    return at >= 0 && at < w->large[i] ? at : -1;
}

/* Adds all products of a group's channel of one image with a filter's: s, l and w are these, out what each would get
 * if the sums were its own. */
static void add_channel(const struct geometry *g, const double *s, const double *l, const double *w, double *out_s,
                        double *out_l, double *out_w)
{
    const int64_t *o = g->small, *z = g->size;
    for (int64_t y = 0; y < product(o); y++)
        for (int64_t k = 0; k < product(z); k++) {
            int64_t a = place(g, 0, y / (o[1] * o[2]), k / (z[1] * z[2]));
            int64_t b = place(g, 1, y / o[2] % o[1], k / z[2] % z[1]), c = place(g, 2, y % o[2], k % z[2]);
            if (a < 0 || b < 0 || c < 0)
                continue;
            int64_t x = (a * g->large[1] + b) * g->large[2] + c;
            out_s[y] += l[x] * w[k];
            out_l[x] += s[y] * w[k];
            out_w[k] += s[y] * l[x];
        }
}

/* result[0] of the small images, [1] of the large ones, [2] of weights [groups * depth, filters, size..]. */
static void by_definition(const struct geometry *g)
{
    const int64_t ns = product(g->small), nl = product(g->large), nk = product(g->size);
    memset(result, 0, sizeof result);
    for (int64_t i = 0; i < g->batch * g->groups * g->depth * g->filters; i++) {
        int64_t f = i % g->filters, m = i / g->filters, group = m / g->depth % g->groups; /* m: of image and depth */
        int64_t image = m / (g->depth * g->groups), large = (image * g->groups + group) * g->filters + f;
        int64_t w = m % (g->groups * g->depth) * g->filters + f;
        add_channel(g, small_v + m * ns, large_v + large * nl, weights_v + w * nk, result[0] + m * ns,
                    result[1] + large * nl, result[2] + w * nk);
    }
}

/* The large images are convolved, or the small ones by a transposed convolution: both gradients, and the gradient of
 * that in the images with respect to the result's, which is the convolution again. */
static void check_case(const struct geometry *g, kl_dtype dtype, bool transposed, int line)
{
    int64_t s[5] = {g->batch, g->groups * g->depth}, l[5] = {g->batch, g->groups * g->filters};
    int64_t w[5] = {g->groups * g->depth, g->filters};
    for (int i = 0; i < g->n; i++)
        s[2 + i] = g->small[i], l[2 + i] = g->large[i], w[2 + i] = g->size[i];
    const int rank = 2 + g->n;
    kl_scope_begin();
    kl_tensor ts = random_tensor(dtype, rank, s, small_v), tl = random_tensor(dtype, rank, l, large_v);
    kl_tensor tw = random_tensor(dtype, rank, w, weights_v), x = transposed ? ts : tl, dy = transposed ? tl : ts;
    by_definition(g);
    kl_requires_grad(x);
    kl_requires_grad(tw);
    kl_requires_grad(dy);
    kl_tensor y = (transposed ? kl_conv_transpose : kl_conv)(x, tw, kl_none, g->stride, g->low, g->high, g->dilation,
                                                             (int)g->groups);
    int64_t dims[KL_MAX_RANK];
    kl_tensor dx[2], in[] = {x, tw};
    bool same = check_at(kl_shape(y, dims) == rank && !memcmp(dims, transposed ? l : s, (size_t)rank * sizeof *dims),
                         line, "the shape");
    if (same) {
        kl_grads(kl_sum_all(kl_mul(y, dy)), 2, in, dx);
        kl_tensor again = kl_grad(kl_sum_all(kl_mul(dx[0], x)), dy);
        const double *of_x = result[!transposed], *of_y = result[transposed];
        near_at(y, kl_numel(y), of_y, 0, line);
        near_at(dx[0], kl_numel(x), of_x, 0, line);
        near_at(dx[1], kl_numel(tw), result[2], 0, line);
        near_at(again, kl_numel(dy), of_y, 0, line);
    }
    OK(kl_scope_end());
}

/* Sets the large images' length from the windows, `extra` elements behind the last of which are in none. */
static bool set_lengths(struct geometry *g, const int64_t *extra)
{
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        g->large[i] = (g->small[i] - 1) * g->stride[i] + (g->size[i] - 1) * g->dilation[i] + 1 - g->low[i] -
                      g->high[i] + extra[i];
        ok &= g->large[i] > 0 && g->large[i] + g->low[i] > 0;
    }
    return ok;
}

static struct geometry random_geometry(int n, bool transposed)
{
    struct geometry g;
    int64_t extra[3];
    do {
        g = (struct geometry){n, 1 + below(2), 1 + below(2), 1 + below(3), 1 + below(3), {1, 1, 1}, {1, 1, 1},
                              {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0}, {0}};
        memset(extra, 0, sizeof extra);
        for (int i = 0; i < n; i++) {
            g.small[i] = 1 + below(n == 1 ? 20 : n == 2 ? 6 : 3);
            g.size[i] = 1 + below(5);
            g.stride[i] = 1 + below(4);
            g.dilation[i] = 1 + below(2);
            g.low[i] = below(4) - 1;
            g.high[i] = below(4) - 1;
            extra[i] = transposed ? 0 : below((int)g.stride[i]);
        }
    } while (!set_lengths(&g, extra));
    return g;
}

/* Large enough for phases: windows of 5x5 to 3x3x3, of which the last ones are cut off, or which reach far. */
static void large_cases(void)
{
    static const struct { struct geometry g; int64_t extra[3]; } each[] = {
        {{3, 1, 1, 20, 6, {0}, {4, 5, 7}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, {0}},
        {{3, 2, 1, 32, 8, {0}, {3, 9, 5}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {0, 1, 2}, {1, 0, 2}}, {1, 0, 1}},
        {{3, 1, 2, 9, 33, {0}, {2, 8, 8}, {2, 3, 4}, {1, 2, 2}, {1, 1, 2}, {0, 1, 3}, {1, 1, 3}}, {0, 1, 1}},
        {{2, 2, 1, 22, 7, {0}, {10, 14}, {5, 5}, {2, 2}, {1, 1}, {2, 2}, {2, 2}}, {0}},
        {{2, 1, 1, 30, 35, {0}, {13, 10}, {7, 5}, {3, 2}, {1, 2}, {3, 4}, {3, 4}}, {2, 1}},
        {{2, 1, 2, 12, 33, {0}, {16, 9}, {4, 6}, {2, 4}, {2, 1}, {3, 1}, {2, 2}}, {0, 3}},
        {{2, 1, 1, 17, 130, {0}, {9, 15}, {3, 3}, {2, 2}, {1, 1}, {1, 0}, {0, 1}}, {1, 0}},
        {{1, 1, 1, 48, 40, {0}, {131}, {7}, {2}, {1}, {3}, {3}}, {1}},
        {{1, 2, 1, 40, 40, {0}, {128}, {9}, {3}, {2}, {8}, {0}}, {2}}};
    static const kl_dtype dtypes[] = {KL_F32, KL_F64, KL_F32, KL_F16};
    for (unsigned i = 0; i < sizeof each / sizeof *each; i++)
        for (int transposed = 0; transposed < 1 + (int)(i % 2); transposed++) {
            struct geometry g = each[i].g;
            for (int k = 0; k < 3; k++) {
                g.size[k] += !g.size[k], g.stride[k] += !g.stride[k], g.dilation[k] += !g.dilation[k];
                g.small[k] += !g.small[k];
            }
            const int64_t none[3] = {0};
            if (CHECK(set_lengths(&g, transposed ? none : each[i].extra)))
                check_case(&g, dtypes[i % 4], transposed, __LINE__ * 100 + (int)i);
        }
}

static void test(kl_device d)
{
    static const kl_dtype dtypes[] = {KL_F64, KL_F32, KL_F32, KL_F16};
    dev = d;
    for (int i = 0; i < 24; i++) {
        struct geometry g = random_geometry(1 + i % 3, i & 1);
        check_case(&g, dtypes[i % 4], i & 1, i);
    }
    large_cases();
}

int main(void)
{
    return on_devices(test);
}
