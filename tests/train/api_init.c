/* Initial values: ranges and moments against the formulas, orthogonality, the same bits on every device, errors. */
#include "tests/support/api_check.h"
#include <kiln/train.h>

enum { ROWS = 100, COLUMNS = 300, COUNT = ROWS * COLUMNS };

static kl_device dev;

static double *draw(const kl_init *init, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed)
{
    kl_tensor t = kl_init_values(init, dev, dtype, rank, dims, seed);
    CHECK(kl_dtype_of(t) == dtype && has_shape(t, rank, dims));
    double *v = values_of(t);
    CHECK(v != NULL);
    kl_release(t);
    return v ? v : calloc(COUNT, sizeof *v);
}

/* Mean and standard deviation within five standard errors, and all values in a range. */
static void moments(const char *what, const kl_init *init, double mean, double std, double low, double high)
{
    double *v = draw(init, KL_F32, DIMS(ROWS, COLUMNS), 7), m = 0, s = 0, min = v[0], max = v[0];
    for (int i = 0; i < COUNT; i++) {
        m += v[i] / COUNT;
        min = fmin(min, v[i]);
        max = fmax(max, v[i]);
    }
    for (int i = 0; i < COUNT; i++)
        s += (v[i] - m) * (v[i] - m) / COUNT;
    bool ok = fabs(m - mean) <= 5 * std / sqrt(COUNT) && fabs(sqrt(s) - std) <= 5 * std / sqrt(2.0 * COUNT) &&
              min >= low && max <= high;
    if (!CHECK(ok))
        printf("%s: mean %g, std %g, in %g .. %g; expected %g, %g, %g .. %g\n", what, m, sqrt(s), min, max, mean,
               std, low, high);
    free(v);
}

static void distributions(void)
{
    const double inf = INFINITY;
    moments("uniform", &(kl_init){.kind = KL_INIT_UNIFORM, .low = -1, .high = 3}, 1, 4 / sqrt(12), -1, 3);
    moments("normal", &(kl_init){.kind = KL_INIT_NORMAL, .mean = 2, .std = 0.25}, 2, 0.25, -inf, inf);
    double b = sqrt(6.0 / 400);
    kl_init x = {.kind = KL_INIT_XAVIER_UNIFORM, .fan_in = 100, .fan_out = 300};
    moments("xavier uniform", &x, 0, b / sqrt(3), -b, b);
    x.kind = KL_INIT_XAVIER_NORMAL, x.gain = KL_GAIN_TANH;
    moments("xavier normal", &x, 0, 5.0 / 3 * sqrt(2.0 / 400), -inf, inf);
    x.kind = KL_INIT_KAIMING_UNIFORM, x.gain = KL_GAIN_RELU;
    moments("kaiming uniform", &x, 0, sqrt(2.0 / 100), -sqrt(6.0 / 100), sqrt(6.0 / 100));
    x.kind = KL_INIT_KAIMING_NORMAL, x.gain = 0;
    moments("kaiming normal", &x, 0, 0.1, -inf, inf);
    /* of the standard normal in -2 .. 2 the variance is 1 - 4 phi(2) / (2 Phi(2) - 1) */
    double phi = exp(-2) / sqrt(2 * 3.14159265358979323846), inside = erf(2 / sqrt(2));
    kl_init t = {.kind = KL_INIT_TRUNCATED_NORMAL, .mean = 1, .std = 0.02, .low = 1 - 0.04, .high = 1 + 0.04};
    moments("truncated normal", &t, 1, 0.02 * sqrt(1 - 4 * phi / inside), 1 - 0.04 - 1e-7, 1 + 0.04 + 1e-7);
}

/* A truncated normal value is where the distribution function takes a uniform number: it takes it there. */
static void inverse(void)
{
    int64_t dims[1] = {2000};
    kl_init wide = {.kind = KL_INIT_TRUNCATED_NORMAL, .std = 1, .low = -7, .high = 7};
    double *v = draw(&wide, KL_F64, 1, dims, 3), low = erf(-7 / sqrt(2)), high = erf(7 / sqrt(2)), worst = 0;
    kl_tensor t = kl_rand(dev, KL_F64, 1, dims, 3);
    double *u = values_of(t);
    for (int i = 0; u && i < dims[0]; i++) {
        double y = low + (high - low) * u[i], tail = fmin(1 - y, 1 + y);
        double got = y > 0 ? erfc(v[i] / sqrt(2)) : erfc(-v[i] / sqrt(2));
        worst = fmax(worst, fabs(got - tail) / (tail + 1e-12));
    }
    if (!CHECK(u && worst < 1e-10))
        printf("worst relative difference %g\n", worst);
    kl_release(t);
    free(u);
    free(v);
}

static void orthogonal(int64_t a, int64_t b, int64_t c)
{
    int64_t dims[3] = {a, b, c}, rest = b * c, n = a < rest ? a : rest;
    double *v = draw(&(kl_init){.kind = KL_INIT_ORTHOGONAL, .gain = 2}, KL_F64, 3, dims, 11), worst = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++) {
            double dot = i == k ? -4 : 0;
            for (int64_t j = 0; j < (a < rest ? rest : a); j++)
                dot += a < rest ? v[i * rest + j] * v[k * rest + j] : v[j * rest + i] * v[j * rest + k];
            worst = fmax(worst, fabs(dot));
        }
    if (!CHECK(worst < 1e-13))
        printf("[%lld,%lld]: off by %g\n", (long long)a, (long long)rest, worst);
    free(v);
}

static void errors(void)
{
    static const kl_init bad[] = {
        {.kind = KL_INIT_KINDS}, {.kind = KL_INIT_XAVIER_NORMAL}, {.kind = KL_INIT_KAIMING_UNIFORM, .fan_out = 3},
        {.kind = KL_INIT_NORMAL, .std = -1}, {.kind = KL_INIT_UNIFORM, .low = 1}, {.kind = KL_INIT_NORMAL, .mean = NAN},
        {.kind = KL_INIT_TRUNCATED_NORMAL, .low = -1, .high = 1}, {.kind = KL_INIT_ONES, .gain = INFINITY},
        {.kind = KL_INIT_TRUNCATED_NORMAL, .std = 1, .low = 300, .high = 301}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kl_tensor t = kl_init_values(&bad[i], dev, KL_F32, DIMS(3, 4), 1);
        CHECK(kl_check(t) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "init_values"));
        kl_release(t);
    }
    kl_tensor t = kl_init_values(&(kl_init){.kind = KL_INIT_ORTHOGONAL}, dev, KL_F32, DIMS(3), 1);
    CHECK(kl_check(t) == KL_ERR_SHAPE);
    kl_release(t);
    t = kl_init_values(NULL, dev, KL_F32, DIMS(3), 1);
    CHECK(kl_check(t) == KL_ERR_ARGUMENT);
    kl_release(t);
    t = kl_init_values(&(kl_init){.kind = KL_INIT_ORTHOGONAL}, dev, KL_BF16, DIMS(0, 3), 1);
    CHECK(kl_check(t) == KL_OK && kl_dtype_of(t) == KL_BF16);
    kl_release(t);
}

static void all(kl_device device)
{
    dev = device;
    distributions();
    inverse();
    orthogonal(6, 2, 2);
    orthogonal(3, 4, 2);
    orthogonal(40, 40, 1);
    errors();
}

/* A hash of all kinds' bits on one device; 0: it is not there. */
static uint64_t bits_on(const char *name)
{
    kl_device d = kl_device_named(name);
    uint64_t h = 1;
    for (int k = 0; d.id && k < KL_INIT_KINDS; k++) {
        kl_init init = {.kind = (kl_init_kind)k, .std = 1, .low = -1, .high = 1, .fan_in = 5, .fan_out = 6};
        kl_tensor t = kl_init_values(&init, d, KL_F32, DIMS(5, 6), 9);
        uint32_t bits[30] = {0};
        CHECK(kl_read(t, bits, sizeof bits) == KL_OK);
        for (int i = 0; i < 30; i++)
            h = (h ^ bits[i]) * UINT64_C(0x100000001b3);
        kl_release(t);
    }
    return d.id ? h : 0;
}

int main(void)
{
    static const char *const name[] = {"cpu", "vulkan", "cuda", "hip", "autodiff<cpu>", "autodiff<vulkan>"};
    uint64_t ref = bits_on("ref");
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        uint64_t h = bits_on(name[i]);
        device_now = name[i];
        CHECK(!h || !ref || h == ref);
    }
    return on_devices(all);
}
