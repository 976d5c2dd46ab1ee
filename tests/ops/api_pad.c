/* Pads: their values against a model over dtypes, amounts, lengths and ways to read them, fused and unfused, and how
 * many kernels they take. */
#include "tests/support/api_check.h"

static kl_device dev;

static uint64_t state = 0x9e3779b97f4a7c15u;
static int below(int n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int)(state % (uint64_t)n);
}

enum { RANK = 3, MAX_COUNT = 4096, WIDEST = 8 };

/* A padded array of bytes: elements of `size` bytes, those outside `from` being the value's. */
struct padded { int64_t from[RANK], low[RANK], high[RANK], to[RANK]; size_t size; unsigned char x[MAX_COUNT * WIDEST],
                value[WIDEST]; };

static const unsigned char *element(const struct padded *p, const int64_t *at)
{
    int64_t i = 0;
    for (int d = 0; d < RANK; d++) {
        int64_t from = at[d] - p->low[d];
        if (from < 0 || from >= p->from[d])
            return p->value;
        i = i * p->from[d] + from;
    }
    return p->x + (size_t)i * p->size;
}

/* Do y's elements have the bytes of the padded array from `start` on? */
static void check_part(const struct padded *p, const int64_t *start, kl_tensor y)
{
    static unsigned char got[MAX_COUNT * WIDEST];
    int64_t dims[KL_MAX_RANK], at[RANK], n = 0;
    CHECK(kl_shape(y, dims) == RANK && kl_numel(y) <= MAX_COUNT);
    if (kl_numel(y))
        OK(kl_read(y, got, (size_t)kl_numel(y) * p->size));
    bool same = true;
    for (int64_t i = 0; i < dims[0]; i++)
        for (int64_t j = 0; j < dims[1]; j++)
            for (int64_t k = 0; k < dims[2]; k++, n++) {
                memcpy(at, (int64_t[]){i + start[0], j + start[1], k + start[2]}, sizeof at);
                same &= !memcmp(got + (size_t)n * p->size, element(p, at), p->size);
            }
    CHECK(same);
}

/* One array padded by some amounts, 0 among them, read whole and as two slices of which a kernel has need at once. */
static void one_case(kl_dtype dtype, bool empty)
{
    static double wide[MAX_COUNT];
    static struct padded p;
    int64_t count = 1, zero[RANK] = {0}, start[RANK], stop[RANK];
    p.size = kl_dtype_size(dtype);
    for (int d = 0; d < RANK; d++) {
        p.from[d] = empty && d == 1 ? 0 : 1 + below(d == 2 ? 40 : 5);
        p.low[d] = below(3) * below(3);
        p.high[d] = below(3) * below(2);
        p.to[d] = p.low[d] + p.from[d] + p.high[d];
        start[d] = p.to[d] ? below((int)p.to[d]) : 0;
        stop[d] = start[d] + below((int)(p.to[d] - start[d]) + 1);
        count *= p.from[d];
    }
    for (int i = 0; i < count; i++)
        wide[i] = dtype == KL_BOOL ? below(2) : below(100);
    bool real = dtype == KL_F16 || dtype == KL_BF16 || dtype == KL_F32 || dtype == KL_F64;
    double value = real && below(3) == 0 ? NAN : dtype == KL_BOOL ? 1 : 7;
    kl_scope_begin();
    kl_tensor x = kl_cast(kl_input(dev, KL_F64, RANK, p.from, wide), dtype);
    if (count)
        OK(kl_read(x, p.x, (size_t)count * p.size));
    OK(kl_read(kl_scalar(dev, dtype, value), p.value, p.size));
    OK(kl_sync(dev));
    kl_trace_begin("pads");
    kl_tensor whole = kl_keep(kl_pad(x, p.low, p.high, value));
    OK(kl_trace_end());
    check_part(&p, zero, whole);
    kl_trace_begin("parts of pads");
    kl_tensor pad = kl_pad(x, p.low, p.high, value), one = kl_slice(pad, start, stop, NULL);
    kl_tensor other = kl_where(kl_eq(one, one), one, kl_slice(pad, start, stop, NULL)); /* itself, read by a kernel */
    kl_keep(other);
    OK(kl_trace_end());
    check_part(&p, start, other);
    OK(kl_scope_end());
}

static int64_t kernels_now(void)
{
    kl_run_info info = {0};
    OK(kl_trace_info(&info));
    return info.kernels;
}

enum { N = 40 };

/* A five-point stencil over a padded state, all of it one kernel. */
static void stencil(void)
{
    static float before[N][N], after[N][N];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            before[i][j] = (float)below(64);
    kl_tensor x = kl_input(dev, KL_F32, DIMS(N, N), before);
    kl_trace_begin("stencil");
    kl_tensor p = kl_pad(x, (int64_t[]){1, 1}, (int64_t[]){1, 1}, 3);
    kl_tensor n = kl_slice(p, (int64_t[]){0, 1}, (int64_t[]){N, N + 1}, NULL);
    kl_tensor s = kl_slice(p, (int64_t[]){2, 1}, (int64_t[]){N + 2, N + 1}, NULL);
    kl_tensor w = kl_slice(p, (int64_t[]){1, 0}, (int64_t[]){N + 1, N}, NULL);
    kl_tensor e = kl_slice(p, (int64_t[]){1, 2}, (int64_t[]){N + 1, N + 2}, NULL);
    kl_tensor y = kl_keep(kl_sub(kl_add(kl_add(n, s), kl_add(w, e)), kl_mul_scalar(x, 4)));
    OK(kl_trace_end());
    if (strcmp(device_now, "ref"))
        CHECK(kernels_now() == 1);
    OK(kl_read(y, after, sizeof after));
    bool same = true;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float want = (i ? before[i - 1][j] : 3) + (i + 1 < N ? before[i + 1][j] : 3) +
                         ((j ? before[i][j - 1] : 3) + (j + 1 < N ? before[i][j + 1] : 3)) - 4 * before[i][j];
            same &= after[i][j] == want;
        }
    CHECK(same);
    kl_release(y);
    kl_release(x);
}

/* All axes of a pad that is stored are one kernel, and a padded row sum is one, too. */
static void kernels(void)
{
    kl_tensor x = kl_rand(dev, KL_F32, DIMS(9, 10, 11), 1);
    OK(kl_sync(dev));
    kl_trace_begin("three axes");
    kl_tensor y = kl_keep(kl_pad(x, (int64_t[]){1, 2, 3}, (int64_t[]){3, 2, 1}, 0));
    OK(kl_trace_end());
    if (strcmp(device_now, "ref"))
        CHECK(kernels_now() == 1);
    kl_trace_begin("windows");
    kl_tensor z = kl_sum(kl_window(kl_pad(x, NULL, (int64_t[]){0, 0, 4}, 1), 2, 5, 2, 1), AXES(-1), false);
    kl_keep(z);
    OK(kl_trace_end());
    if (strcmp(device_now, "ref"))
        CHECK(kernels_now() == 1);
    kl_release(x);
    kl_release(y);
    kl_release(z);
}

/* A chain of maps that is padded is one kernel with the pad, in odd sizes and of nothing at all, and has the bits that
 * its parts have. */
static void padded_maps(void)
{
    static float apart[64 * 64], joined[64 * 64];
    static const int64_t sizes[][2] = {{9, 11}, {1, 1}, {33, 31}, {0, 7}, {7, 0}, {40, 48}};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int fuse = 0; fuse < 2; fuse++) {
            OK(kl_set_option("fuse", fuse));
            kl_tensor x = kl_randn(dev, KL_F32, 2, sizes[i], 3);
            OK(kl_sync(dev));
            kl_trace_begin("padded maps");
            kl_tensor y = kl_mul(kl_exp(x), kl_sqrt(x)); /* NaN below 0 */
            kl_tensor z = kl_keep(kl_pad(y, (int64_t[]){1, 2}, (int64_t[]){3, 4}, -0.0));
            OK(kl_trace_end());
            if (fuse && strcmp(device_now, "ref"))
                CHECK(kernels_now() == 1);
            OK(kl_read(z, fuse ? joined : apart, (size_t)kl_numel(z) * sizeof *joined));
            if (fuse)
                CHECK(!memcmp(apart, joined, (size_t)kl_numel(z) * sizeof *joined));
            kl_release(x);
            kl_release(z);
        }
}

/* A step of a stencil on a state with a border: its inside and the border are one kernel. */
static void bordered(void)
{
    kl_tensor u = kl_rand(dev, KL_F32, DIMS(N + 2, N + 2), 5);
    OK(kl_sync(dev));
    kl_trace_begin("bordered");
    kl_tensor n = kl_slice(u, (int64_t[]){0, 1}, (int64_t[]){N, N + 1}, NULL);
    kl_tensor s = kl_slice(u, (int64_t[]){2, 1}, (int64_t[]){N + 2, N + 1}, NULL);
    kl_assign(u, kl_pad(kl_mul(n, s), (int64_t[]){1, 1}, (int64_t[]){1, 1}, 0));
    OK(kl_trace_end());
    if (strcmp(device_now, "ref"))
        CHECK(kernels_now() == 1);
    kl_release(u);
}

static void test(kl_device d)
{
    static const kl_dtype dtypes[] = {KL_BOOL, KL_I8, KL_U8, KL_I16, KL_U16, KL_I32, KL_U32, KL_I64, KL_U64, KL_F16,
                                      KL_BF16,
                                      KL_F32, KL_F64};
    dev = d;
    for (int fuse = 0; fuse < 2; fuse++) {
        OK(kl_set_option("fuse", fuse));
        for (unsigned i = 0; i < 3 * sizeof dtypes / sizeof *dtypes; i++)
            one_case(dtypes[i / 3], i % 3 == 2 && i % 2);
    }
    stencil();
    kernels();
    padded_maps();
    bordered();
}

int main(void) { return on_devices(test); }
