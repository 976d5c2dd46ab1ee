/* Elements at several coordinates, scatters that combine, and borders: against plain loops over random indices, of odd
 * sizes and of nothing, their gradients against differences, and misuse. */
#include "tests/support/api_numbers.h"
#include "tests/support/api_refused.h"

static uint64_t random_state = 88172645463325252u;
static int below(int n)
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (int)(random_state >> 11 & 0xffffff) % n;
}

/* What an index means: its place, or -1 where it is dropped. */
static int64_t meant(int64_t i, int64_t length, unsigned flags)
{
    if (flags & KL_INDEX_FROM_END && i < 0)
        i += length;
    if (i >= 0 && i < length)
        return i;
    return flags & KL_INDEX_DROP ? -1 : i < 0 ? 0 : length - 1;
}

static void combine(double *to, double by, kl_scatter_kind kind)
{
    switch (kind) {
    case KL_SCATTER_SET: *to = by; break;
    case KL_SCATTER_ADD: case KL_SCATTER_MEAN: *to += by; break;
    case KL_SCATTER_MUL: *to *= by; break;
    case KL_SCATTER_MIN: *to = isnan(*to) || isnan(by) ? NAN : fmin(*to, by); break;
    case KL_SCATTER_MAX: *to = isnan(*to) || isnan(by) ? NAN : fmax(*to, by); break;
    }
}

/* a [4, 5, 3] by index [n, 2] */
static void nd(int n, unsigned flags)
{
    double x[60], u[64 * 3], want[64 * 3], all[60];
    int32_t index[128];
    int64_t at[64];
    kl_tensor a = noisy(n, D(4, 5, 3), x), update = noisy(7 * n + 1, D(n, 3), u);
    for (int i = 0; i < n; i++) {
        index[2 * i] = below(8) - 2, index[2 * i + 1] = below(11) - 4;
        int64_t r = meant(index[2 * i], 4, flags), c = meant(index[2 * i + 1], 5, flags);
        at[i] = r < 0 || c < 0 ? -1 : 5 * r + c;
        for (int k = 0; k < 3; k++)
            want[3 * i + k] = at[i] < 0 ? 0 : x[3 * at[i] + k];
    }
    kl_tensor t = i32(D(n, 2), index);
    NEAR(kl_gather_nd(a, t, 0, flags), 3 * n, want, 0);
    for (unsigned kind = KL_SCATTER_SET; kind <= KL_SCATTER_MEAN; kind++) {
        int meets[20];
        for (int i = 0; i < 20; i++)
            meets[i] = 1;
        memcpy(all, x, sizeof all);
        for (int i = 0; i < n; i++) {
            if (at[i] < 0)
                continue;
            meets[at[i]]++;
            for (int k = 0; k < 3; k++)
                combine(&all[3 * at[i] + k], u[3 * i + k], (kl_scatter_kind)kind);
        }
        for (int i = 0; i < 60 && kind == KL_SCATTER_MEAN; i++)
            all[i] /= meets[i / 3];
        bool exact = kind == KL_SCATTER_SET || kind == KL_SCATTER_MIN || kind == KL_SCATTER_MAX;
        NEAR(kl_scatter_nd(a, t, update, (kl_scatter_kind)kind, flags), 60, all, exact ? 0 : 1e-14);
    }
    kl_release(a), kl_release(update), kl_release(t);
}

/* Batches in step: a [2, 3, 4, 2] by [2, 3, 5, 1] gives [2, 3, 5, 2]. */
static void batches(void)
{
    double x[48], want[60];
    int32_t index[30];
    kl_tensor a = noisy(5, D(2, 3, 4, 2), x);
    for (int i = 0; i < 30; i++) {
        index[i] = below(4);
        want[2 * i] = x[8 * (i / 5) + 2 * index[i]], want[2 * i + 1] = x[8 * (i / 5) + 2 * index[i] + 1];
    }
    kl_tensor t = i32(D(2, 3, 5, 1), index), y = kl_gather_nd(a, t, 2, 0);
    SHAPE(y, 2, 3, 5, 2);
    NEAR(y, 60, want, 0);
    kl_release(t), kl_release(a);
}

/* a [3, 4], index [2, 6] along axis 1, or [7, 3] along axis 0 */
static void elements(int axis, unsigned flags)
{
    int rows = axis ? 2 : 7, columns = axis ? 6 : 3, length = axis ? 4 : 3;
    double x[12], u[21], want[21], all[12];
    int64_t index[21];
    kl_tensor a = noisy(40 + axis, D(3, 4), x), update = noisy(60, D(rows, columns), u);
    for (unsigned kind = KL_SCATTER_SET; kind <= KL_SCATTER_MEAN; kind++) {
        int meets[12] = {0};
        memcpy(all, x, sizeof all);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++) {
                index[i * columns + j] = below(3 * length) - length;
                int64_t m = meant(index[i * columns + j], length, flags);
                int64_t at = m < 0 ? -1 : axis ? 4 * i + m : 4 * m + j;
                want[i * columns + j] = at < 0 ? 0 : x[at];
                if (at >= 0) {
                    combine(&all[at], u[i * columns + j], (kl_scatter_kind)kind);
                    meets[at]++;
                }
            }
        for (int i = 0; i < 12 && kind == KL_SCATTER_MEAN; i++)
            all[i] /= 1 + meets[i];
        kl_tensor t = kl_input(dev, KL_I64, D(rows, columns), index);
        NEAR(kl_take_along_axis_with(a, axis - 2, t, flags), rows * columns, want, 0);
        NEAR(kl_put_along_axis_with(a, axis, t, update, (kl_scatter_kind)kind, flags), 12, all, 1e-14);
        kl_release(t);
    }
    kl_release(a), kl_release(update);
}

/* a [3, 4, 5, 2]: [i, :, j] puts the indices first, [:, i, j] in their place. */
static void several(void)
{
    double x[120], first[2 * 3 * 8], place[2 * 3 * 6], all[120];
    int32_t i[3] = {2, 0, -1}, j[2] = {4, 1};
    kl_tensor a = noisy(9, D(3, 4, 5, 2), x), ti = i32(D(3), i), tj = i32(D(2, 1), j);
    memcpy(all, x, sizeof all);
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 3; c++) {
            int p = (i[c] + 3) % 3, q = (i[c] + 4) % 4;
            for (int k = 0; k < 8; k++) {
                first[(r * 3 + c) * 8 + k] = x[((p * 4 + k / 2) * 5 + j[r]) * 2 + k % 2];
                all[((p * 4 + k / 2) * 5 + j[r]) * 2 + k % 2] += 3;
            }
            for (int k = 0; k < 6; k++)
                place[(k / 2 * 6 + r * 3 + c) * 2 + k % 2] = x[((k / 2 * 4 + q) * 5 + j[r]) * 2 + k % 2];
        }
    kl_tensor y = kl_index(a, 3, (kl_tensor[]){ti, kl_none, tj}, KL_INDEX_FROM_END);
    SHAPE(y, 2, 3, 4, 2);
    NEAR(y, 48, first, 0);
    y = kl_index(a, 3, (kl_tensor[]){kl_none, ti, tj}, KL_INDEX_FROM_END);
    SHAPE(y, 3, 2, 3, 2);
    NEAR(y, 36, place, 0);
    kl_tensor three = kl_full(dev, KL_F64, 0, NULL, 3), index[3] = {ti, kl_none, tj};
    NEAR(kl_index_put(a, 3, index, three, KL_SCATTER_ADD, KL_INDEX_FROM_END), 120, all, 1e-15);
    kl_release(three), kl_release(a), kl_release(ti), kl_release(tj);
}

static void special(void)
{
    kl_tensor none = kl_zeros(dev, KL_F32, D(0, 3)), no_index = kl_zeros(dev, KL_I32, D(0, 1));
    kl_tensor index = i32(D(2, 1), (int32_t[]){0, 5}), update = kl_ones(dev, KL_F32, D(2, 3)), y;
    NEAR_LIST(kl_gather_nd(none, index, 0, KL_INDEX_DROP), 0, 0, 0, 0, 0, 0, 0);
    y = kl_scatter_nd(none, index, update, KL_SCATTER_MUL, KL_INDEX_DROP);
    SHAPE(y, 0, 3);
    kl_release(y);
    y = kl_gather_nd(none, no_index, 0, 0);
    SHAPE(y, 0, 3);
    kl_release(y), kl_release(none), kl_release(no_index), kl_release(index), kl_release(update);
    /* a product with zeros, infinities and NaN; u64 beyond i64; halfs round once */
    kl_tensor a = f64(D(3), (double[]){2, 3, INFINITY}), v = f64(D(4), (double[]){0, 5, -2, NAN});
    kl_tensor places = kl_input(dev, KL_U64, D(4), (uint64_t[]){0, 1, UINT64_MAX, UINT64_MAX - 1});
    NEAR_LIST(kl_put_along_axis_with(a, 0, places, v, KL_SCATTER_MUL, 0), 0, 0, 15, NAN);
    NEAR_LIST(kl_put_along_axis_with(a, 0, places, v, KL_SCATTER_MAX, KL_INDEX_DROP), 0, 2, 5, INFINITY);
    NEAR_LIST(kl_take_along_axis_with(a, 0, places, KL_INDEX_DROP | KL_INDEX_FROM_END), 0, 2, 3, 0, 0);
    kl_release(a), kl_release(v), kl_release(places);
    a = kl_full(dev, KL_F16, D(1), 1), v = kl_full(dev, KL_F16, D(3), 1 + 1.0 / 512);
    index = i32(D(3), (int32_t[]){0, 0, 0});
    y = kl_put_along_axis_with(a, 0, index, v, KL_SCATTER_MUL, 0);
    CHECK(kl_dtype_of(y) == KL_F16);
    NEAR_LIST(y, 0, 1 + 6.0 / 1024);
    kl_release(a), kl_release(v), kl_release(index);
}

/* ---- borders ---- */

static int64_t from(int64_t i, int64_t length, kl_border border)
{
    switch (border) {
    case KL_BORDER_EDGE: return i < 0 ? 0 : i >= length ? length - 1 : i;
    case KL_BORDER_WRAP: return ((i % length) + length) % length;
    case KL_BORDER_REFLECT:
        while (length > 1 && (i < 0 || i >= length))
            i = i < 0 ? -i : 2 * (length - 1) - i;
        return length > 1 ? i : 0;
    default:
        while (i < 0 || i >= length)
            i = i < 0 ? -1 - i : 2 * length - 1 - i;
        return i;
    }
}

static void border(int rows, int columns, kl_border b)
{
    double x[32], want[4096];
    int low[2] = {below(12) - 1, below(9)}, high[2] = {below(9), below(4)}, n = 0;
    kl_tensor a = noisy(rows, D(rows, columns), x);
    if (rows == 1)
        low[0] = 3;
    int cut = low[0] < 0;
    for (int i = cut - (cut ? 0 : low[0]); i < rows + high[0]; i++)
        for (int j = -low[1]; j < columns + high[1]; j++)
            want[n++] = x[(cut + from(i - cut, rows - cut, b)) * columns + from(j, columns, b)];
    NEAR(kl_pad_border(a, (int64_t[]){low[0], low[1]}, (int64_t[]){high[0], high[1]}, b), n, want, 0);
    kl_release(a);
}

/* ---- gradients ---- */

static kl_tensor four(void) { return i32(D(4, 1), (int32_t[]){2, 0, 2, 9}); }
static kl_tensor part(kl_tensor x, int from_row, int count) { return kl_narrow(x, 0, from_row, count); }
static kl_tensor g_gather(kl_tensor x) { return kl_gather_nd(x, four(), 0, KL_INDEX_DROP); }
#define G_SCATTER(name, kind)                                                                                          \
    static kl_tensor name(kl_tensor x)                                                                                 \
    {                                                                                                                  \
        return kl_scatter_nd(part(x, 0, 3), four(), part(x, 3, 4), kind, KL_INDEX_DROP);                               \
    }
G_SCATTER(g_set, KL_SCATTER_SET)
G_SCATTER(g_add, KL_SCATTER_ADD)
G_SCATTER(g_mul, KL_SCATTER_MUL)
G_SCATTER(g_min, KL_SCATTER_MIN)
G_SCATTER(g_max, KL_SCATTER_MAX)
G_SCATTER(g_mean, KL_SCATTER_MEAN)
static kl_tensor g_index(kl_tensor x)
{
    kl_tensor i = i32(D(3), (int32_t[]){1, 1, 0});
    return kl_index(x, 3, (kl_tensor[]){i, kl_none, i}, 0);
}
static kl_tensor g_border(kl_tensor x)
{
    return kl_pad_border(x, (int64_t[]){2, 0}, (int64_t[]){4, -1}, KL_BORDER_REFLECT);
}

static void misuse(void)
{
    kl_tensor a = kl_zeros(dev, KL_F32, D(2, 3)), i = kl_zeros(dev, KL_I32, D(2, 3));
    kl_tensor none = kl_zeros(dev, KL_F32, D(0)), one = kl_zeros(dev, KL_I32, D(4, 1));
    REFUSED(kl_gather_nd(a, i, 0, 0), KL_ERR_SHAPE, "gather_nd: ", "[2,3]");
    REFUSED(kl_gather_nd(a, one, -1, 0), KL_ERR_SHAPE, "gather_nd: ", "[4,1]");
    REFUSED(kl_gather_nd(a, one, 1, 0), KL_ERR_SHAPE, "gather_nd: ", "[4,1]", "[2,3]");
    REFUSED(kl_gather_nd(a, a, 0, 0), KL_ERR_TYPE, "gather_nd: ", "integers", "f32");
    REFUSED(kl_gather_nd(a, one, 0, 8), KL_ERR_ARGUMENT, "gather_nd: ", "flags");
    REFUSED(kl_gather_nd(none, one, 0, 0), KL_ERR_SHAPE, "gather_nd: ", "no elements");
    REFUSED(kl_scatter_nd(a, one, a, KL_SCATTER_ADD, 0), KL_ERR_SHAPE, "scatter_nd: ", "[4,3]", "[2,3]");
    REFUSED(kl_scatter_nd(a, one, i, KL_SCATTER_ADD, 0), KL_ERR_TYPE, "scatter_nd: ", "f32", "i32");
    REFUSED(kl_scatter_nd(a, one, a, (kl_scatter_kind)9, 0), KL_ERR_ARGUMENT, "scatter_nd: ", "kinds");
    REFUSED(kl_take_along_axis_with(a, 1, one, 0), KL_ERR_SHAPE, "take_along_axis_with: ", "[4,1]", "[2,3]");
    REFUSED(kl_take_along_axis_with(a, 2, i, 0), KL_ERR_SHAPE, "take_along_axis_with: ", "axis 2");
    REFUSED(kl_put_along_axis_with(a, 0, one, a, KL_SCATTER_SET, 0), KL_ERR_SHAPE, "put_along_axis_with: ", "[4,1]");
    REFUSED(kl_index(a, 3, (kl_tensor[]){i, i, i}, 0), KL_ERR_ARGUMENT, "index: ", "3 indices", "2 axes");
    REFUSED(kl_index(a, 1, &kl_none, 0), KL_ERR_ARGUMENT, "index: ", "kl_none");
    REFUSED(kl_index(a, 2, (kl_tensor[]){i, one}, 0), KL_ERR_SHAPE, "index: ", "[4,1]", "[2,3]");
    REFUSED(kl_pad_border(a, (int64_t[]){0, -4}, NULL, KL_BORDER_EDGE), KL_ERR_SHAPE, "pad_border: ", "axis 1", "-4");
    REFUSED(kl_pad_border(none, (int64_t[]){1}, NULL, KL_BORDER_WRAP), KL_ERR_SHAPE, "pad_border: ", "axis 0", "[0]");
    REFUSED(kl_pad_border(a, NULL, NULL, (kl_border)7), KL_ERR_ARGUMENT, "pad_border: ", "7");
    REFUSED(kl_pad_border(a, (int64_t[]){INT64_MAX, 1}, NULL, KL_BORDER_EDGE), KL_ERR_SHAPE, "pad_border: ");
    kl_release(a), kl_release(i), kl_release(none), kl_release(one);
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    static const int sizes[] = {0, 1, 2, 7, 33, 64};
    for (unsigned flags = 0; flags < 4; flags++) {
        for (int i = 0; i < 6; i++)
            nd(sizes[i], flags);
        elements(0, flags);
        elements(1, flags);
    }
    batches();
    several();
    special();
    for (int k = 0; k < 24; k++)
        border(k % 3 ? 2 + below(5) : 1 + k % 2, 1 + below(5), (kl_border)(k % 4));
    GRADIENT(g_gather, 3, 4);
    GRADIENT(g_set, 7, 4);
    GRADIENT(g_add, 7, 4);
    GRADIENT(g_mul, 7, 4);
    GRADIENT(g_min, 7, 4);
    GRADIENT(g_max, 7, 4);
    GRADIENT(g_mean, 7, 4);
    GRADIENT(g_index, 2, 4, 3);
    GRADIENT(g_border, 3, 4);
    misuse();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
