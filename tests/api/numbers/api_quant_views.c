/* Views of quantized tensors: whatever the scheme, a chain of views gives the same floats, to the bit, as the views of
 * the floats that the tensor stands for, is still quantized, and passes the same gradient but for rounding. */
#include "tests/support/api_check.h"
#include "tests/support/sanitize.h"
#include <kiln/storage.h>

static kl_device dev;
static uint32_t seed;

static int pick(int n)
{
    seed = seed * 1664525 + 1013904223;
    return (int)((uint64_t)seed * (uint32_t)n >> 32);
}

static char chain[500];
static void note(const char *what, kl_tensor x)
{
    int64_t d[KL_MAX_RANK];
    int rank = kl_shape(x, d);
    size_t n = strlen(chain);
    n += (size_t)snprintf(chain + n, sizeof chain - n, " %s [", what);
    for (int i = 0; i < rank && n < sizeof chain; i++)
        n += (size_t)snprintf(chain + n, sizeof chain - n, "%s%lld", i ? "," : "", (long long)d[i]);
    if (n < sizeof chain)
        snprintf(chain + n, sizeof chain - n, "]");
}

/* A random shape of that many elements. */
static int factor(int64_t n, int64_t *dims)
{
    int rank = 0;
    while (rank < 4 && (n > 1 || pick(3) == 0)) {
        int64_t d = 1 + pick((int)n);
        while (n % d)
            d--;
        dims[rank] = rank == 3 ? n : d;
        n /= dims[rank++];
    }
    if (n > 1 || !rank)
        dims[rank++] = n;
    return rank;
}

enum { RESHAPE, PERMUTE, EXPAND, NARROW, STEPS, FLIP, UNSQUEEZE, DYNAMIC, VIEWS };

/* One random view, the same of each of the n tensors, which have one shape. */
static void random_view(int n, kl_tensor *x)
{
    static const char *const names[VIEWS] = {"reshape", "permute", "expand", "narrow", "slice", "flip", "unsqueeze",
                                             "dynamic_slice"};
    int64_t d[KL_MAX_RANK], to[KL_MAX_RANK], start[KL_MAX_RANK] = {0}, step[KL_MAX_RANK], count = kl_numel(x[0]);
    int rank = kl_shape(x[0], d), kind = pick(VIEWS), perm[KL_MAX_RANK], axis = rank ? pick(rank) : 0, newrank = rank;
    kl_tensor at[KL_MAX_RANK];
    if (!rank || rank > 5)
        kind = RESHAPE;
    if (kind == RESHAPE)
        newrank = factor(count, to);
    for (int i = 0; i < rank; i++) {
        perm[i] = i;
        step[i] = 1;
        if (kind != RESHAPE)
            to[i] = d[i];
        if (kind == EXPAND && d[i] == 1 && pick(2) && count < 2000)
            to[i] = 1 + pick(4);
    }
    for (int i = rank - 1; i > 0; i--) {
        int k = pick(i + 1), was = perm[i];
        perm[i] = perm[k], perm[k] = was;
    }
    if (kind == STEPS || kind == NARROW || kind == DYNAMIC) {
        start[axis] = pick((int)d[axis]);
        to[axis] = start[axis] + 1 + pick((int)(d[axis] - start[axis]));
        step[axis] = kind == STEPS ? 1 + pick(4) : 1;
    }
    for (int i = 0; kind == DYNAMIC && i < rank; i++) {
        to[i] = i == axis ? to[i] - start[i] : d[i];
        at[i] = kl_input(dev, KL_I64, 0, NULL, &start[i]);
    }
    for (int i = 0; i < n; i++)
        x[i] = kind == RESHAPE ? kl_reshape(x[i], newrank, to) : kind == PERMUTE ? kl_permute(x[i], perm)
             : kind == EXPAND ? kl_expand(x[i], rank, to) : kind == NARROW ? kl_narrow(x[i], axis, start[axis],
                                                                                       to[axis] - start[axis])
             : kind == STEPS ? kl_slice(x[i], start, to, step) : kind == FLIP ? kl_flip(x[i], 1, &axis)
             : kind == UNSQUEEZE ? kl_unsqueeze(x[i], axis) : kl_dynamic_slice(x[i], at, to);
    note(names[kind], x[0]);
}

/* A tensor whose slices and blocks have very different sizes, in a random scheme. */
static kl_tensor random_quantized(kl_tensor *floats, bool marked)
{
    int64_t d[KL_MAX_RANK];
    int rank = 1 + pick(4), grain = pick(3);
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= d[i] = 1 + pick(i ? 6 : 8);
    kl_qscheme s = {.type = (kl_qtype)pick(3), .per_axis = grain == 1, .axis = pick(rank)};
    if (s.type == KL_Q_I4) {
        d[rank - 1] *= 2;
        count *= 2;
    }
    if (grain == 2)
        for (s.block = 1 + pick((int)d[s.axis]); d[s.axis] % s.block;)
            s.block--;
    float *v = malloc((size_t)count * sizeof *v);
    for (int64_t i = 0; i < count; i++)
        v[i] = ldexpf((float)(pick(2001) - 1000), pick(3) - 2 * (int)(i % 13));
    *floats = kl_keep(kl_input(dev, KL_F32, rank, d, v));
    free(v);
    if (marked)
        kl_requires_grad(*floats);
    kl_tensor q = kl_to_quantized(*floats, s, kl_none, kl_none);
    snprintf(chain, sizeof chain, "%s %s axis %d block %d:", s.type == KL_Q_I8 ? "i8" : s.type == KL_Q_U8 ? "u8" : "i4",
             grain ? grain == 1 ? "per_axis" : "blocks" : "one scale", s.axis, (int)s.block);
    note("quantized", q);
    return q;
}

/* tolerance 0: to the bit */
static bool same(kl_tensor a, kl_tensor b, double tolerance)
{
    double *x = values_of(a), *y = values_of(b);
    int64_t n = kl_numel(a);
    bool equal = x && y && n == kl_numel(b);
    for (int64_t i = 0; equal && i < n; i++)
        equal = fabs(x[i] - y[i]) <= tolerance * fabs(y[i]) || (isnan(x[i]) && isnan(y[i]));
    free(x);
    free(y);
    return equal;
}

/* A chain of views, outside of traces or in one; marked: with a gradient. */
static bool one(bool traced, bool marked)
{
    kl_tensor floats, x[2], g[2] = {kl_none, kl_none};
    OK(kl_scope_begin());
    kl_tensor q = kl_keep(random_quantized(&floats, marked));
    if (traced)
        OK(kl_trace_begin("views"));
    x[0] = q;
    x[1] = kl_dense(q);
    for (int i = 1 + pick(4); i > 0; i--)
        random_view(2, x);
    bool quantized = !strcmp(kl_layer_name(x[0]), "quantized");
    kl_tensor dense = kl_dense(x[0]);
    if (marked)
        for (int i = 0; i < 2; i++) {
            kl_tensor weight = kl_add_scalar(kl_cos(kl_detach(x[1])), 2), loss;
            loss = kl_sum_all(kl_mul(i ? x[1] : dense, weight));
            g[i] = kl_keep(kl_grad(loss, floats));
        }
    kl_keep(dense);
    kl_keep(x[1]);
    bool ok = !traced || kl_trace_end() == KL_OK;
    ok = ok && quantized && same(dense, x[1], 0) && (!marked || same(g[0], g[1], 1e-5));
    if (!ok)
        printf("seed chain%s%s:%s: %s\n", traced ? ", traced" : "", marked ? ", marked" : "", chain, kl_last_error());
    kl_clear_error();
    kl_release(floats);
    kl_release(q);
    OK(kl_scope_end());
    return ok;
}

static void test(kl_device d)
{
    dev = d;
    bool ok = true;
    int count = *SANITIZE ? 15 : 150; /* compiling kernels with a sanitizer's checks takes ten times as long */
    for (int i = 0; i < count && ok; i++)
        ok &= one(i % 2, false);
    CHECK(ok);
    for (int i = 0; i < count && ok; i++)
        ok &= one(false, true);
    CHECK(ok);
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 17;
    return on_devices(test);
}
