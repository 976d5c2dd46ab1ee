/* What the tests of tensors stored in other ways than dense share. */
#ifndef API_WRAPPERS_H
#define API_WRAPPERS_H
#include "api_seeds.h"
#include <time.h>

#define D(...) DIMS(__VA_ARGS__)

static inline kl_tensor f32(int rank, const int64_t *dims, const float *v)
{
    return kl_input(cpu, KL_F32, rank, dims, v);
}
static inline double seconds(void) /* of the processor: other programs may be running */
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
static inline kl_tensor noise(int rank, const int64_t *dims, uint64_t seed)
{
    return kl_randn(cpu, KL_F32, rank, dims, seed);
}

/* All elements are within the tolerance; both are released. */
static inline bool close(kl_tensor got, kl_tensor want, double tolerance)
{
    int64_t n = kl_numel(got);
    double *a = values_of(got), *b = kl_numel(want) == n ? values_of(want) : NULL;
    bool ok = a && b;
    for (int64_t i = 0; ok && i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance * (1 + fabs(b[i])))) {
            printf("element %lld is %g, not %g\n", (long long)i, a[i], b[i]);
            ok = false;
        }
    free(a);
    free(b);
    kl_release(got);
    kl_release(want);
    return ok;
}

/* The keys that calls of one op hit, outermost first. */
static inline bool op_keys_are(const char *log, const char *op, const char *want)
{
    char got[400] = "", tag[64];
    snprintf(tag, sizeof tag, "op=[%s], key=[", op);
    for (const char *s = log; (s = strstr(s, tag)); s++) {
        const char *key = s + strlen(tag);
        size_t n = strcspn(key, "]"), at = strlen(got);
        snprintf(got + at, sizeof got - at, "%s%.*s", at ? "," : "", (int)n, key);
    }
    if (strcmp(got, want))
        printf("%s: log says %s, not %s\n%s", op, got, want, log);
    return !strcmp(got, want);
}

static inline bool refused(kl_tensor t, kl_status code, const char *why)
{
    bool ok = kl_check(t) == code && says(why);
    kl_release(t);
    kl_clear_error();
    return ok;
}

/* A stage of the open trace. */
static inline const char *stage(const char *name)
{
    static char text[1 << 16];
    const char *path = "stage_of_wrappers.kir";
    OK(kl_dump(NULL, name, path));
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    remove(path);
    text[n] = 0;
    return text;
}

/* d sum(f(x) * seed) / d x[i] by differences, for the float variable x. */
typedef kl_tensor function(kl_tensor x, void *ctx);
static inline bool slopes_are(function *f, void *ctx, kl_tensor x, kl_tensor gradient, double tolerance)
{
    int64_t n = kl_numel(x), dims[KL_MAX_RANK];
    int rank = kl_shape(x, dims);
    double *g = values_of(gradient), *v = values_of(x);
    float *moved = malloc((size_t)n * sizeof *moved);
    bool ok = g && v && moved && kl_numel(gradient) == n;
    for (int64_t i = 0; ok && i < n; i++) {
        double at[2];
        for (int side = 0; side < 2; side++) {
            OK(kl_scope_begin());
            for (int64_t k = 0; k < n; k++)
                moved[k] = (float)v[k] + (k == i ? (side ? 1 : -1) * 0x1p-7f : 0);
            at[side] = (double)kl_item_f32(f(f32(rank, dims, moved), ctx));
            OK(kl_scope_end());
        }
        double slope = (at[1] - at[0]) / 0x1p-6;
        ok = fabs(slope - g[i]) <= tolerance * (1 + fabs(slope));
        if (!ok)
            printf("element %lld: gradient %g, by differences %g\n", (long long)i, g[i], slope);
    }
    free(g);
    free(v);
    free(moved);
    return ok;
}

#define Q(...) ((kl_qscheme){.type = __VA_ARGS__})

/* [5, 4] in coordinates, unordered, one place twice, one element that is not needed. */
static const int32_t at_row[7] = {4, 0, 2, 0, 2, 3, 0}, at_column[7] = {3, 1, 0, 3, 2, 3, 0};
static inline kl_tensor coo(kl_tensor values)
{
    return kl_sparse_coo(values, kl_input(cpu, KL_I32, D(7), at_row), kl_input(cpu, KL_I32, D(7), at_column), 5, 4);
}
/* The same shape in rows, room for two more. */
static inline kl_tensor csr(kl_tensor values)
{
    static const int32_t starts[6] = {0, 2, 2, 4, 5, 5}, columns[7] = {1, 3, 0, 2, 3, 1, 2};
    return kl_sparse_csr(values, kl_input(cpu, KL_I32, D(6), starts), kl_input(cpu, KL_I32, D(7), columns), 4);
}

#endif
