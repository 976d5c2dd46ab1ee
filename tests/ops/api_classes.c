/* Losses of classes with all options, diagonals, nonzero and unique of a bounded size, einsum with an ellipsis: against
 * plain loops, their gradients, and misuse. */
#include "tests/support/api_numbers.h"
#include "tests/support/api_refused.h"

/* ---- losses: logits [3, 4, 5], classes along axis 1 ---- */

static void losses(int options, bool softmax)
{
    bool weights = options & 1, smooth = options & 2, ignores = options & 4, probable = options & 8;
    double x[60], w[4] = {0.5, 2, 0, 1.25}, p[60], each[15], sum = 0, weight = 0, eps = smooth ? 0.3 : 0;
    int32_t label[15];
    if (probable && ignores)
        return;
    kl_tensor a = noisy(options, D(3, 4, 5), x), tw = weights ? f64(D(4), w) : kl_none, target;
    for (int i = 0; i < 60; i++)
        p[i] = i % 7 ? fabs(noise(300 + i)) : 0;
    for (int i = 0; i < 15; i++)
        label[i] = i == 3 && !ignores ? KL_IGNORED_LABEL : i * 7 % 4;
    for (int n = 0; n < 3; n++)
        for (int k = 0; k < 5; k++) {
            int i = 5 * n + k;
            double total = 0, loss = 0, own = 0;
            for (int c = 0; c < 4; c++)
                total += exp(x[(4 * n + c) * 5 + k]);
            for (int c = 0; c < 4; c++) {
                double l = x[(4 * n + c) * 5 + k] - (softmax ? log(total) : 0), wc = weights ? w[c] : 1;
                double t = probable ? p[(4 * n + c) * 5 + k] : label[i] == c;
                loss -= wc * l * (t * (1 - eps) + eps / 4);
                own += !probable && weights && label[i] == c ? wc : 0;
            }
            own = probable || !weights ? 1 : own;
            if (!probable && label[i] == (ignores ? 2 : KL_IGNORED_LABEL))
                loss = own = 0;
            each[i] = loss, sum += loss, weight += own;
        }
    target = probable ? f64(D(3, 4, 5), p) : i32(D(3, 5), label);
    for (int r = 0; r < 3; r++) {
        kl_class_loss_options o = {tw, eps, ignores, 2, (kl_loss_reduction)r};
        kl_tensor y = softmax ? kl_cross_entropy_with(a, target, &o) : kl_nll_loss_with(a, target, &o);
        double one = r == KL_LOSS_MEAN ? sum / weight : sum;
        NEAR(y, r == KL_LOSS_EACH ? 15 : 1, r == KL_LOSS_EACH ? each : &one, 1e-13);
    }
    kl_release(a), kl_release(target);
    if (weights)
        kl_release(tw);
}

static void loss_shapes(void)
{
    kl_tensor a = f64(D(3), (double[]){0, -INFINITY, 0}), i = kl_full(dev, KL_U64, 0, NULL, 2);
    NEAR_LIST(kl_cross_entropy_with(a, i, NULL), 1e-15, log(2));
    kl_release(i), i = kl_full(dev, KL_I8, 0, NULL, 1);
    NEAR_LIST(kl_cross_entropy_with(a, i, NULL), 0, INFINITY);
    kl_release(i), i = f64(D(3), (double[]){0.5, 0, 0.5});
    NEAR_LIST(kl_cross_entropy_with(a, i, NULL), 1e-15, log(2)); /* not 0 times infinity */
    kl_release(a), kl_release(i);
    a = kl_zeros(dev, KL_F32, D(0, 3)), i = kl_zeros(dev, KL_I32, D(0));
    NEAR_LIST(kl_cross_entropy_with(a, i, NULL), 0, NAN);
    kl_release(a), a = kl_zeros(dev, KL_F16, D(2, 3)), kl_release(i), i = kl_zeros(dev, KL_I32, D(2));
    kl_tensor y = kl_cross_entropy_with(a, i, &(kl_class_loss_options){.smoothing = 0.1});
    CHECK(kl_dtype_of(y) == KL_F16);
    NEAR_LIST(y, 1e-3, log(3));
    kl_release(a), kl_release(i);
}

/* ---- diagonals ---- */

static void diagonals(int rows, int columns, int offset)
{
    double x[2 * 30], want[12], matrix[2 * 100] = {0};
    kl_tensor a = noisy(rows, D(rows, 2, columns), x), y;
    int count = 0;
    for (int i = 0; i < rows; i++)
        count += i + offset >= 0 && i + offset < columns;
    for (int b = 0; b < 2; b++)
        for (int i = 0, k = 0; i < rows; i++)
            if (i + offset >= 0 && i + offset < columns)
                want[b * count + k++] = x[(i * 2 + b) * columns + i + offset];
    y = kl_diagonal(a, offset, 0, 2);
    SHAPE(y, 2, count);
    int m = count + abs(offset);
    for (int b = 0; b < 2; b++)
        for (int k = 0; k < count; k++)
            matrix[(b * m + k + (offset < 0 ? -offset : 0)) * m + k + (offset > 0 ? offset : 0)] = want[b * count + k];
    NEAR(kl_diagonal_matrix(y, offset), 2 * m * m, matrix, 0);
    NEAR(y, 2 * count, want, 0);
    kl_release(a);
}

/* ---- bounded sizes ---- */

static void places_of_nonzeros(void)
{
    double x[12] = {0, 1, NAN, 0, -0.0, 0, 3, 0, 0, 0, 0, -INFINITY};
    kl_tensor a = f64(D(3, 4), x), count;
    NEAR_LIST(kl_nonzero(a, 6, &count), 0, 0, 1, 0, 2, 1, 2, 2, 3, -1, -1, -1, -1);
    NEAR_LIST(count, 0, 4);
    NEAR_LIST(kl_nonzero(a, 2, &count), 0, 0, 1, 0, 2);
    NEAR_LIST(count, 0, 4);
    kl_tensor y = kl_nonzero(a, 0, NULL);
    SHAPE(y, 0, 2);
    kl_release(y), kl_release(a);
    a = kl_input(dev, KL_BOOL, D(5), (bool[]){0, 1, 1, 0, 1});
    NEAR_LIST(kl_nonzero(a, 4, NULL), 0, 1, 2, 4, -1);
    kl_release(a), a = kl_zeros(dev, KL_I32, D(0));
    NEAR_LIST(kl_nonzero(a, 1, &count), 0, -1);
    NEAR_LIST(count, 0, 0);
    kl_release(a);
}

static void distinct(void)
{
    double x[10] = {3, 1, NAN, 3, -0.0, 0, 1, NAN, -INFINITY, 3};
    kl_tensor a = f64(D(2, 5), x), count, inverse, counts;
    NEAR_LIST(kl_unique(a, 7, &count, &inverse, &counts), 0, -INFINITY, 0, 1, 3, NAN, 0, 0);
    NEAR_LIST(count, 0, 5);
    SHAPE(inverse, 2, 5);
    NEAR_LIST(inverse, 0, 3, 2, 4, 3, 1, 1, 2, 4, 0, 3);
    NEAR_LIST(counts, 0, 1, 2, 2, 3, 2, 0, 0);
    NEAR_LIST(kl_unique(a, 2, &count, NULL, NULL), 0, -INFINITY, 0);
    NEAR_LIST(count, 0, 5);
    kl_release(a), a = kl_zeros(dev, KL_U8, D(0, 2));
    NEAR_LIST(kl_unique(a, 2, &count, NULL, &counts), 0, 0, 0);
    NEAR_LIST(count, 0, 0);
    NEAR_LIST(counts, 0, 0, 0);
    kl_release(a), a = kl_input(dev, KL_BOOL, D(3), (bool[]){1, 0, 1});
    NEAR_LIST(kl_unique(a, 2, NULL, NULL, &counts), 0, 0, 1);
    NEAR_LIST(counts, 0, 1, 2);
    kl_release(a);
}

/* ---- einsum ---- */

static void ellipses(void)
{
    double x[2 * 3 * 4], y[3 * 4 * 5], want[2 * 3 * 5] = {0}, sums[3 * 4] = {0}, swapped[24];
    kl_tensor a = noisy(1, D(2, 1, 3, 4), x), b = noisy(9, D(1, 4, 5), y), c = noisy(4, D(2, 3, 4), x), r;
    kl_release(a), a = f64(D(2, 1, 3, 4), x);
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < 4; k++) {
                sums[i * 4 + k] += x[(n * 3 + i) * 4 + k];
                swapped[(k * 2 + n) * 3 + i] = x[(n * 3 + i) * 4 + k];
                for (int j = 0; j < 5; j++)
                    want[(n * 3 + i) * 5 + j] += x[(n * 3 + i) * 4 + k] * y[k * 5 + j];
            }
    r = kl_einsum("...ik,...kj->...ij", 2, (kl_tensor[]){a, b});
    SHAPE(r, 2, 1, 3, 5);
    NEAR(r, 30, want, 1e-14);
    kl_release(b), b = f64(D(4, 5), y);
    NEAR(kl_einsum("...k, kj -> ...j", 2, (kl_tensor[]){c, b}), 30, want, 1e-14);
    NEAR(kl_einsum("...k,kj", 2, (kl_tensor[]){c, b}), 30, want, 1e-14);
    NEAR(kl_einsum("n...->...", 1, &c), 12, sums, 1e-14);
    r = kl_einsum("...k->k...", 1, &c);
    SHAPE(r, 4, 2, 3);
    NEAR(r, 24, swapped, 0);
    r = kl_einsum("i...,...i->...", 2, (kl_tensor[]){b, c}); /* [5] and [2, 3] do not broadcast */
    CHECK(kl_check(r) == KL_ERR_SHAPE);
    kl_release(r);
    kl_release(a), kl_release(b), kl_release(c);
}

/* ---- gradients ---- */

static kl_tensor g_labels(kl_tensor x)
{
    double w[4] = {0.5, 2, 0.1, 1.25};
    kl_class_loss_options o = {f64(D(4), w), 0.2, true, 1, KL_LOSS_MEAN};
    return kl_cross_entropy_with(x, i32(D(3, 2), (int32_t[]){0, 1, 2, 3, 3, 0}), &o);
}
static kl_tensor g_likely(kl_tensor x)
{
    kl_class_loss_options o = {.reduction = KL_LOSS_EACH, .smoothing = 0.1};
    return kl_cross_entropy_with(kl_narrow(x, 0, 0, 3), kl_square(kl_narrow(x, 0, 3, 3)), &o);
}
static kl_tensor g_diagonal(kl_tensor x) { return kl_diagonal_matrix(kl_diagonal(x, 1, 0, 1), -2); }
static kl_tensor g_distinct(kl_tensor x) { return kl_unique(x, 12, NULL, NULL, NULL); }
static kl_tensor g_ellipsis(kl_tensor x) { return kl_einsum("...ij,...kj->...ik", 2, (kl_tensor[]){x, x}); }

static void misuse(void)
{
    kl_tensor a = kl_zeros(dev, KL_F32, D(2, 3)), i = kl_zeros(dev, KL_I32, D(2, 3)), one = kl_zeros(dev, KL_I32, D(2));
    kl_class_loss_options w = {.weight = a}, s = {.smoothing = 1.5}, ignores = {.ignores = true}, r = {.reduction = 7};
    REFUSED(kl_cross_entropy_with(a, i, NULL), KL_ERR_SHAPE, "cross_entropy_with: ", "[2,3]");
    REFUSED(kl_cross_entropy_with(i, one, NULL), KL_ERR_TYPE, "cross_entropy_with: ", "i32");
    REFUSED(kl_nll_loss_with(a, one, &w), KL_ERR_SHAPE, "nll_loss_with: ", "[3]", "[2,3]");
    REFUSED(kl_nll_loss_with(a, one, &s), KL_ERR_ARGUMENT, "nll_loss_with: ", "smoothing");
    REFUSED(kl_nll_loss_with(a, one, &r), KL_ERR_ARGUMENT, "nll_loss_with: ", "reduction");
    REFUSED(kl_nll_loss_with(a, a, &ignores), KL_ERR_ARGUMENT, "nll_loss_with: ", "ignored");
    REFUSED(kl_diagonal(a, 0, 1, -1), KL_ERR_SHAPE, "diagonal: ", "twice");
    REFUSED(kl_diagonal(a, 0, 1, 2), KL_ERR_SHAPE, "diagonal: ", "axis 2");
    REFUSED(kl_diagonal_matrix(a, INT64_MAX - 2), KL_ERR_SHAPE, "diagonal_matrix: ", "[2,3]");
    REFUSED(kl_diagonal(a, INT64_MAX, 5, 1), KL_ERR_SHAPE, "diagonal: ");
    REFUSED(kl_diagonal_matrix(a, INT64_MIN), KL_ERR_SHAPE, "diagonal_matrix: ", "[2,3]");
    REFUSED(kl_nonzero(a, -1, NULL), KL_ERR_SHAPE, "nonzero: ");
    REFUSED(kl_unique(a, -1, NULL, NULL, NULL), KL_ERR_SHAPE, "unique: ");
    REFUSED(kl_einsum("...i...", 1, &a), KL_ERR_ARGUMENT, "einsum: ", "'.'");
    REFUSED(kl_einsum("ijk...", 1, &a), KL_ERR_SHAPE, "einsum: ", "term 1", "[2,3]");
    kl_release(a), kl_release(i), kl_release(one);
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    for (int k = 0; k < 32; k++)
        losses(k & 15, k >> 4);
    loss_shapes();
    for (int offset = -5; offset <= 6; offset++)
        diagonals(3, 5, offset), diagonals(4, 2, offset);
    places_of_nonzeros();
    distinct();
    ellipses();
    GRADIENT(g_labels, 3, 4, 2);
    GRADIENT(g_likely, 6, 4);
    GRADIENT(g_diagonal, 4, 5);
    GRADIENT(g_distinct, 3, 4);
    GRADIENT(g_ellipsis, 2, 3, 4);
    misuse();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
