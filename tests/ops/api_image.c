/* Resizing, sampling, boxes and pools: against plain loops in double, of odd sizes, their gradients, and misuse. */
#include "tests/support/api_numbers.h"
#include "tests/support/api_refused.h"

/* ---- resizing: a row of n to m elements, every mode, by its definition ---- */

static double place_of(int places, double s, int n, int m, int i)
{
    double out = s * n;
    switch (places) {
    case KL_RESIZE_HALF_PIXEL_SYMMETRIC: return n / 2.0 * (1 - m / out) + (i + 0.5) / s - 0.5;
    case KL_RESIZE_HALF_PIXEL_PYTORCH: return m > 1 ? (i + 0.5) / s - 0.5 : 0;
    case KL_RESIZE_CORNERS: return out > 1 ? i * (n - 1.0) / (out - 1) : 0;
    case KL_RESIZE_ASYMMETRIC: return i / s;
    case KL_RESIZE_TF_NEAREST: return (i + 0.5) / s;
    case KL_RESIZE_CROP: return out > 1 ? 0.12 * (n - 1) + i * 0.79 * (n - 1) / (out - 1) : 0.515 * (n - 1);
    default: return (i + 0.5) / s - 0.5;
    }
}

static double held(const double *v, int n, int i) { return v[i < 0 ? 0 : i >= n ? n - 1 : i]; }

static double kernel(int sampling, double d)
{
    d = fabs(d);
    if (sampling == KL_SAMPLING_LINEAR)
        return d < 1 ? 1 - d : 0;
    return d <= 1 ? 1.25 * d * d * d - 2.25 * d * d + 1 : d < 2 ? -0.75 * (d * d * d - 5 * d * d + 8 * d - 4) : 0;
}

static void resize_row(int n, int m, int sampling, int places, int rounding, bool antialias, bool exclude)
{
    double x[48], want[2 * 48], s = (double)m / n;
    kl_tensor a = noisy(n + m, D(2, n), x);
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < m; i++) {
            double p = place_of(places, s, n, m, i), sum = 0, weights = 0, f = antialias && s < 1 ? s : 1;
            if (sampling == KL_SAMPLING_NEAREST) {
                double at = rounding == KL_RESIZE_FLOOR ? floor(p) : rounding == KL_RESIZE_CEIL ? ceil(p)
                            : rounding == KL_RESIZE_HALF_UP ? floor(p + 0.5) : ceil(p - 0.5);
                want[r * m + i] = held(x + r * n, n, (int)at);
                continue;
            }
            for (int k = -200; k < 200; k++) {
                double w = exclude && (k < 0 || k >= n) ? 0 : kernel(sampling, (k - p) * f);
                sum += w * held(x + r * n, n, k);
                weights += w;
            }
            want[r * m + i] = sum / weights;
        }
    double start = 0.12, end = 0.91;
    kl_resize_options o = {.sampling = (kl_sampling)sampling, .coordinates = (kl_resize_coordinates)places,
                           .start = &start, .end = &end, .rounding = (kl_resize_rounding)rounding,
                           .antialias = antialias, .exclude_outside = exclude};
    int axis = -1;
    int64_t size = m;
    kl_trace_begin("resize");
    kl_tensor in_trace = kl_keep(kl_resize(a, 1, &axis, &size, &o));
    OK(kl_trace_end());
    if (!NEAR(in_trace, 2 * m, want, 1e-12) || !NEAR(kl_resize(a, 1, &axis, &size, &o), 2 * m, want, 1e-12))
        printf("%d to %d, sampling %d, places %d, rounding %d\n", n, m, sampling, places, rounding);
    kl_release(a);
}

static void resizes(void)
{
    static const int sizes[][2] = {{5, 10}, {7, 3}, {1, 4}, {4, 1}, {6, 11}, {9, 9}, {16, 5}};
    for (int k = 0; k < 7; k++)
        for (int places = 0; places <= KL_RESIZE_CROP; places++) {
            for (int rounding = 0; rounding < 4; rounding++)
                if (sizes[k][0] != sizes[k][1]) /* halves that rounding errors decide */
                    resize_row(sizes[k][0], sizes[k][1], KL_SAMPLING_NEAREST, places, rounding, false, false);
            resize_row(sizes[k][0], sizes[k][1], KL_SAMPLING_LINEAR, places, 0, k & 1, false);
            resize_row(sizes[k][0], sizes[k][1], KL_SAMPLING_CUBIC, places, 0, k % 3 == 0, places == 0);
        }
    int both[2] = {1, 0};
    kl_tensor a = kl_input(dev, KL_I16, D(2, 2), (int16_t[]){1, 2, 3, 4});
    NEAR_LIST(kl_resize(a, 2, both, (int64_t[]){4, 4}, NULL), 0, 1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4);
    kl_release(a);
    a = f64(D(3), (double[]){1, 2, 3});
    double start = -0.5, end = 1.5;
    NEAR_LIST(kl_resize(a, 1, (int[]){0}, (int64_t[]){5},
                        &(kl_resize_options){.sampling = KL_SAMPLING_LINEAR, .coordinates = KL_RESIZE_CROP,
                                             .start = &start, .end = &end, .fill = true, .value = -7}),
              1e-15, -7, 1, 2, 3, -7);
    kl_release(a);
}

/* ---- sampling ---- */

static double border_place(double x, int n, int border, bool corners)
{
    double low = corners ? 0 : -0.5, span = corners ? n - 1 : n;
    if (border == KL_SAMPLE_REFLECTION && span > 0) {
        double d = fmod(fabs(x - low), 2 * span);
        x = low + (d > span ? 2 * span - d : d);
    }
    return border == KL_SAMPLE_ZEROS ? x : fmin(fmax(span > 0 || border == KL_SAMPLE_BORDER ? x : 0, 0), n - 1);
}

static double at(const double *v, int h, int w, double y, double x, int border, bool corners)
{
    y = border_place(y, h, border, corners), x = border_place(x, w, border, corners);
    return y < 0 || x < 0 || y > h - 1 || x > w - 1 ? 0 : v[(int)y * w + (int)x];
}

static void grids(int h, int w, int sampling, int border, bool corners)
{
    double v[2 * 2 * 30], g[2 * 3 * 4 * 2], want[2 * 2 * 12];
    kl_tensor a = noisy(h, D(2, 2, h, w), v), grid;
    for (int i = 0; i < 48; i++)
        g[i] = 0.9 * noise(17 * i + h + border);
    grid = f64(D(2, 3, 4, 2), g);
    for (int n = 0; n < 2; n++)
        for (int c = 0; c < 2; c++)
            for (int p = 0; p < 12; p++) {
                const double *plane = v + (n * 2 + c) * h * w, *place = g + (n * 12 + p) * 2;
                double x = corners ? (place[0] + 1) / 2 * (w - 1) : ((place[0] + 1) * w - 1) / 2;
                double y = corners ? (place[1] + 1) / 2 * (h - 1) : ((place[1] + 1) * h - 1) / 2, sum = 0;
                if (sampling != KL_SAMPLING_CUBIC) {
                    x = border_place(x, w, border, corners), y = border_place(y, h, border, corners);
                }
                if (sampling == KL_SAMPLING_NEAREST)
                    sum = at(plane, h, w, rint(y), rint(x), border, corners);
                for (int i = -1; i <= 2 && sampling; i++)
                    for (int j = -1; j <= 2; j++)
                        sum += kernel(sampling, y - floor(y) - i) * kernel(sampling, x - floor(x) - j) *
                               at(plane, h, w, floor(y) + i, floor(x) + j, border, corners);
                want[(n * 2 + c) * 12 + p] = sum;
            }
    NEAR(kl_grid_sample(a, grid, (kl_sampling)sampling, (kl_sample_border)border, corners), 48, want, 1e-12);
    kl_release(a), kl_release(grid);
}

static double bilinear(const double *v, int h, int w, double y, double x)
{
    if (y < -1 || y > h || x < -1 || x > w)
        return 0;
    y = fmin(fmax(y, 0), h - 1), x = fmin(fmax(x, 0), w - 1);
    int i = (int)y, j = (int)x, i1 = i + 1 < h ? i + 1 : i, j1 = j + 1 < w ? j + 1 : j;
    double a = y - i, b = x - j;
    return (1 - a) * ((1 - b) * v[i * w + j] + b * v[i * w + j1]) +
           a * ((1 - b) * v[i1 * w + j] + b * v[i1 * w + j1]);
}

static void rois(bool aligned, bool largest)
{
    static const double box[3][4] = {{1, 2, 9, 7}, {-6, -4, 3, 2.5}, {4, 4, 4.1, 4.1}};
    static const int32_t image[3] = {1, 0, 1};
    double v[2 * 3 * 5 * 7], want[3 * 3 * 2 * 3];
    kl_tensor a = noisy(3, D(2, 3, 5, 7), v), boxes = f64(D(3, 4), box[0]), images = i32(D(3), image);
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 3; c++)
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 3; j++) {
                    double off = aligned ? 0.5 : 0, x0 = box[r][0] * 0.5 - off, y0 = box[r][1] * 0.5 - off, sum = 0;
                    double w = box[r][2] * 0.5 - off - x0, h = box[r][3] * 0.5 - off - y0, max = -INFINITY;
                    if (!aligned)
                        w = fmax(w, 1), h = fmax(h, 1);
                    for (int p = 0; p < 2; p++)
                        for (int q = 0; q < 2; q++) {
                            double s = bilinear(v + (image[r] * 3 + c) * 35, 5, 7, y0 + h * (2 * i + p + 0.5) / 4,
                                                x0 + w * (2 * j + q + 0.5) / 6);
                            sum += s / 4, max = fmax(max, s);
                        }
                    want[((r * 3 + c) * 2 + i) * 3 + j] = largest ? max : sum;
                }
    kl_roi_options o = {2, 3, 2, 0.5, aligned, largest};
    NEAR(kl_roi_align(a, boxes, images, &o), 54, want, 1e-12);
    kl_release(a), kl_release(boxes), kl_release(images);
}

/* ---- pools ---- */

static void adaptive(int h, int w, int m, int n)
{
    double x[2 * 7 * 9], mean[2 * 64], max[2 * 64];
    kl_tensor a = noisy(h, D(2, h, w), x);
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                double sum = 0, largest = -INFINITY;
                int y0 = i * h / m, y1 = ((i + 1) * h + m - 1) / m, x0 = j * w / n, x1 = ((j + 1) * w + n - 1) / n;
                for (int y = y0; y < y1; y++)
                    for (int k = x0; k < x1; k++)
                        sum += x[(p * h + y) * w + k], largest = fmax(largest, x[(p * h + y) * w + k]);
                mean[(p * m + i) * n + j] = sum / ((y1 - y0) * (x1 - x0));
                max[(p * m + i) * n + j] = largest;
            }
    NEAR(kl_adaptive_avg_pool(a, 2, (int64_t[]){m, n}), 2 * m * n, mean, 1e-14);
    NEAR(kl_adaptive_max_pool(a, 2, (int64_t[]){m, n}), 2 * m * n, max, 0);
    kl_release(a), a = f64(D(1, 1, 2, 1, 1, 1, h, w), x); /* as many axes as there can be */
    NEAR(kl_adaptive_avg_pool(a, 2, (int64_t[]){m, n}), 2 * m * n, mean, 1e-14);
    kl_release(a);
}

/* windows of 3 by 2, stride 2 and 1, padding 1 and 0 before, 1 and 1 behind, dilation 1 and 2 */
static void places(int h, int w)
{
    double x[2 * 80], want[2 * 80], where[2 * 80], back[2 * 80] = {0};
    int m = (h + 2 - 3) / 2 + 1, n = w + 1 - 3 + 1, count = 0;
    kl_tensor a = noisy(2 * h + w, D(2, h, w), x), p;
    x[3] = NAN;
    kl_release(a);
    a = f64(D(2, h, w), x);
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++, count++) {
                where[count] = -1;
                for (int k = 0; k < 6; k++) {
                    int y = 2 * i + k / 2 - 1, z = j + 2 * (k % 2), e = y * w + z;
                    if (y < 0 || y >= h || z >= w)
                        continue;
                    double v = x[r * h * w + e], best = where[count] < 0 ? -INFINITY : x[r * h * w + (int)where[count]];
                    if (where[count] < 0 || v > best || (isnan(v) && !isnan(best)))
                        where[count] = e;
                }
                want[count] = x[r * h * w + (int)where[count]];
                back[r * h * w + (int)where[count]] = want[count];
            }
    kl_tensor y = kl_max_pool_indices(a, 2, (int64_t[]){3, 2}, (int64_t[]){2, 1}, (int64_t[]){1, 0}, (int64_t[]){1, 1},
                                      (int64_t[]){1, 2}, &p);
    NEAR(kl_add_scalar(y, 0), count, want, 0);
    NEAR(kl_add_scalar(p, 0), count, where, 0);
    NEAR(kl_max_unpool(y, p, 2, (int64_t[]){h, w}), 2 * h * w, back, 0);
    kl_release(a), kl_release(y), kl_release(p);
}

/* ---- gradients ---- */

#define RESIZE(name, kind)                                                                                             \
    static kl_tensor name(kl_tensor x)                                                                                 \
    {                                                                                                                  \
        kl_resize_options o = {.sampling = kind};                                                                      \
        return kl_resize(x, 2, (int[]){0, 1}, (int64_t[]){5, 7}, &o);                                                  \
    }
RESIZE(g_nearest, KL_SAMPLING_NEAREST)
RESIZE(g_linear, KL_SAMPLING_LINEAR)
RESIZE(g_cubic, KL_SAMPLING_CUBIC)

static kl_tensor image_of(int rows)
{
    double x[64];
    return noisy(rows, D(1, 2, 4, 3), x);
}
static kl_tensor g_sampled(kl_tensor x)
{
    double g[16];
    return kl_grid_sample(x, noisy(1, D(1, 2, 3, 2), g), KL_SAMPLING_LINEAR, KL_SAMPLE_ZEROS, false);
}
static kl_tensor g_grid(kl_tensor g)
{
    return kl_grid_sample(image_of(5), g, KL_SAMPLING_LINEAR, KL_SAMPLE_ZEROS, true);
}
static kl_tensor g_grid_cubic(kl_tensor g)
{
    return kl_grid_sample(image_of(6), g, KL_SAMPLING_CUBIC, KL_SAMPLE_REFLECTION, false);
}
static kl_tensor g_boxes(kl_tensor b)
{
    kl_tensor images = i32(D(2), (int32_t[]){0, 0});
    kl_tensor far = kl_add(kl_mul_scalar(kl_square(b), 0.3), f64(D(4), (double[]){0, 0, 1.5, 2}));
    return kl_roi_align(image_of(8), far, images, &(kl_roi_options){2, 2, 2, 1, true, false});
}
static kl_tensor g_average(kl_tensor x) { return kl_adaptive_avg_pool(x, 2, (int64_t[]){3, 2}); }
static kl_tensor g_largest(kl_tensor x) { return kl_adaptive_max_pool(x, 2, (int64_t[]){3, 2}); }
static kl_tensor g_places(kl_tensor x)
{
    kl_tensor p;
    return kl_max_pool_indices(x, 1, (int64_t[]){3}, (int64_t[]){1}, NULL, NULL, NULL, &p);
}
static kl_tensor g_unpool(kl_tensor x)
{
    return kl_max_unpool(x, i32(D(2, 3), (int32_t[]){4, 0, 2, 1, 1, 9}), 1, (int64_t[]){6});
}

/* Options that are zeros are the defaults. */
static void roi_defaults(void)
{
    float two[8], zero[8];
    kl_tensor boxes = f64(D(2, 4), (double[]){0, 0, 3, 2, 1, 0, 2, 3}), images = i32(D(2), (int32_t[]){0, 0});
    kl_tensor a = kl_cast(image_of(8), KL_F32);
    kl_roi_options o = {.height = 2, .width = 2, .samples = 2, .scale = 1};
    boxes = kl_cast(boxes, KL_F32);
    CHECK(kl_read(kl_narrow(kl_roi_align(a, boxes, images, &o), 1, 0, 1), two, sizeof two) == KL_OK);
    o.samples = 0, o.scale = 0;
    CHECK(kl_read(kl_narrow(kl_roi_align(a, boxes, images, &o), 1, 0, 1), zero, sizeof zero) == KL_OK);
    CHECK(!memcmp(two, zero, sizeof two));
}

static void misuse(void)
{
    kl_tensor a = kl_zeros(dev, KL_F32, D(1, 2, 3, 4)), i = kl_zeros(dev, KL_I32, D(2, 3)), p;
    kl_tensor boxes = kl_zeros(dev, KL_F32, D(2, 4)), images = kl_zeros(dev, KL_I32, D(2));
    kl_resize_options linear = {.sampling = KL_SAMPLING_LINEAR};
    kl_roi_options o = {2, 2, 2, 1, true, false}, none = {2, 2, -1, 1, true, false};
    REFUSED(kl_resize(a, 1, (int[]){4}, (int64_t[]){2}, NULL), KL_ERR_SHAPE, "resize: ", "axis 4");
    REFUSED(kl_resize(a, 1, (int[]){1}, (int64_t[]){0}, NULL), KL_ERR_SHAPE, "resize: ", "axis 1", "0 elements");
    REFUSED(kl_resize(a, 2, (int[]){1, 1}, (int64_t[]){2, 2}, NULL), KL_ERR_ARGUMENT, "resize: ", "twice");
    REFUSED(kl_resize(i, 1, (int[]){1}, (int64_t[]){2}, &linear), KL_ERR_TYPE, "resize: ", "i32");
    REFUSED(kl_grid_sample(a, boxes, 0, 0, false), KL_ERR_SHAPE, "grid_sample: ", "[1,2,3,4]", "[2,4]");
    REFUSED(kl_grid_sample(a, a, (kl_sampling)5, 0, false), KL_ERR_SHAPE, "grid_sample: ");
    REFUSED(kl_roi_align(a, images, images, &o), KL_ERR_SHAPE, "roi_align: ", "[2]");
    REFUSED(kl_roi_align(a, boxes, images, &none), KL_ERR_ARGUMENT, "roi_align: ", "samples");
    REFUSED(kl_roi_align(a, boxes, kl_zeros(dev, KL_F32, D(2)), &o), KL_ERR_TYPE, "roi_align: ", "f32");
    REFUSED(kl_adaptive_avg_pool(a, 4, (int64_t[]){1, 1, 1, 1}), KL_ERR_ARGUMENT, "adaptive_avg_pool: ", "4");
    REFUSED(kl_adaptive_avg_pool(i, 1, (int64_t[]){2}), KL_ERR_TYPE, "adaptive_avg_pool: ", "i32");
    REFUSED(kl_adaptive_max_pool(i, 3, (int64_t[]){2, 1, 1}), KL_ERR_SHAPE, "adaptive_max_pool: ", "[2,3]");
    REFUSED(kl_max_pool_indices(a, 1, (int64_t[]){2}, NULL, NULL, NULL, NULL, NULL), KL_ERR_ARGUMENT, "NULL");
    REFUSED(kl_max_pool_indices(a, 1, (int64_t[]){9}, NULL, NULL, NULL, NULL, &p), KL_ERR_SHAPE, "max_pool", "9");
    REFUSED(kl_max_unpool(i, images, 1, (int64_t[]){9}), KL_ERR_SHAPE, "max_unpool: ", "[2,3]", "[2]");
    kl_release(a), kl_release(i), kl_release(boxes), kl_release(images);
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    resizes();
    for (int k = 0; k < 18; k++)
        grids(1 + k % 5, 6 - k % 4, k % 3, k / 3 % 3, k / 9);
    for (int k = 0; k < 4; k++)
        rois(k & 1, k & 2);
    adaptive(7, 9, 3, 4), adaptive(6, 8, 3, 2), adaptive(5, 4, 1, 1), adaptive(3, 2, 5, 7), adaptive(4, 4, 4, 3);
    places(5, 6), places(7, 4), places(8, 9);
    GRADIENT(g_nearest, 3, 4);
    GRADIENT(g_linear, 3, 4);
    GRADIENT(g_cubic, 3, 4);
    GRADIENT(g_sampled, 1, 2, 4, 3);
    GRADIENT(g_grid, 1, 2, 3, 2);
    GRADIENT(g_grid_cubic, 1, 2, 3, 2);
    GRADIENT(g_boxes, 2, 4);
    GRADIENT(g_average, 2, 5, 6);
    GRADIENT(g_largest, 2, 5, 5);
    GRADIENT(g_places, 3, 7);
    GRADIENT(g_unpool, 2, 3);
    roi_defaults();
    misuse();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
