/* What the tests of the public interface share: counting checks, and comparing tensors. */
#ifndef API_CHECK_H
#define API_CHECK_H
#include <kiln/kiln.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;
static const char *device_now = "any";

/* A call that fails with this code and these words. */
#define FAILS(call, code, words) \
    check_at((call) == (code) && strstr(kl_last_error(), words), __LINE__, #call " says " words)

#define CHECK(ok) check_at((ok), __LINE__, #ok)
/* A call that returns a status and should be KL_OK. */
#define OK(call) check_at((call) == KL_OK, __LINE__, #call)

static inline bool check_at(bool ok, int line, const char *what)
{
    if (ok)
        return passed++, true;
    failed++;
    printf("FAIL line %d on %s: %s (%s)\n", line, device_now, what, kl_last_error());
    return false;
}

#define DIMS(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}
#define AXES(...) (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__}

/* All elements as doubles; the caller frees.  NULL: could not be read. */
static inline double *values_of(kl_tensor t)
{
    int64_t n = kl_numel(t);
    kl_dtype dtype = kl_dtype_of(t);
    size_t size = kl_dtype_size(dtype);
    char *raw = n < 0 ? NULL : malloc((size_t)n * size + 1);
    double *v = n < 0 ? NULL : malloc(((size_t)n + 1) * sizeof *v);
    if (!raw || !v || kl_read(t, raw, (size_t)n * size) != KL_OK) {
        free(raw);
        free(v);
        return NULL;
    }
    for (int64_t i = 0; i < n; i++) {
        const void *p = raw + (size_t)i * size;
        switch (dtype) {
        case KL_BOOL: case KL_U8: v[i] = *(const uint8_t *)p; break;
        case KL_U16: v[i] = *(const uint16_t *)p; break;
        case KL_U32: v[i] = *(const uint32_t *)p; break;
        case KL_U64: v[i] = (double)*(const uint64_t *)p; break;
        case KL_I8: v[i] = *(const int8_t *)p; break;
        case KL_I16: v[i] = *(const int16_t *)p; break;
        case KL_I32: v[i] = *(const int32_t *)p; break;
        case KL_I64: v[i] = (double)*(const int64_t *)p; break;
        case KL_F16: {
            uint16_t h = *(const uint16_t *)p;
            int exponent = h >> 10 & 31, fraction = h & 1023;
            double x = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent ? ldexp(fraction + 1024, exponent - 25) : ldexp(fraction, -24);
            v[i] = h >> 15 ? -x : x;
            break;
        }
        case KL_BF16: {
            uint32_t bits = (uint32_t)*(const uint16_t *)p << 16;
            float f;
            memcpy(&f, &bits, sizeof f);
            v[i] = (double)f;
            break;
        }
        case KL_F32: v[i] = (double)*(const float *)p; break;
        case KL_F64: v[i] = *(const double *)p; break;
        case KL_DTYPE_COUNT: break;
        }
    }
    free(raw);
    return v;
}

/* t has n elements, each within tolerance of want's, absolutely and relatively; releases t. */
#define NEAR(t, n, want, tolerance) near_at(t, n, want, tolerance, __LINE__)
static inline bool near_at(kl_tensor t, int64_t n, const double *want, double tolerance, int line)
{
    double *v = kl_numel(t) == n ? values_of(t) : NULL;
    bool ok = v != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        bool same = isnan(want[i]) ? isnan(v[i]) : isinf(want[i]) ? v[i] == want[i]
                                                 : fabs(v[i] - want[i]) <= tolerance * (1 + fabs(want[i]));
        if (!same) {
            printf("line %d: element %lld is %.17g, not %.17g\n", line, (long long)i, v[i], want[i]);
            ok = false;
        }
    }
    free(v);
    check_at(ok, line, "values");
    if (t.id)
        kl_release(t);
    return ok;
}
#define NEAR_LIST(t, tolerance, ...) \
    NEAR(t, (int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), ((double[]){__VA_ARGS__}), tolerance)

/* t has this shape. */
#define SHAPE(t, ...) check_at(has_shape(t, DIMS(__VA_ARGS__)), __LINE__, "shape " #__VA_ARGS__)
static inline bool has_shape(kl_tensor t, int rank, const int64_t *dims)
{
    int64_t d[KL_MAX_RANK];
    return kl_shape(t, d) == rank && (rank <= 0 || !memcmp(d, dims, (size_t)rank * sizeof *d));
}

/* Runs a test on the device KILN_DEVICE names, or on each that this build has. */
static inline int on_devices(void (*test)(kl_device))
{
    static const char *const host[] = {"ref", "cpu"};
    const char *only = getenv("KILN_DEVICE");
    int devices = 0;
    for (int i = 0; i < 3; i++) {
        const char *const name = i < 2 ? host[i] : only && strcmp(only, host[0]) && strcmp(only, host[1]) ? only : "";
        kl_device dev = !*name || (only && strcmp(only, name)) ? (kl_device){0} : kl_device_named(name);
        if (!dev.id)
            continue;
        devices++;
        device_now = name;
        test(dev);
    }
    device_now = "any";
    kl_clear_error();
    CHECK(devices > 0);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
#endif
