/* Positions of tokens, and rotary embedding: angles, and the divisors by which models take more positions than they
 * were trained on. */
#include "cache.h"

kl_tensor kl_nn_positions(kl_device device, int64_t n, const kl_nn_cache *cache)
{
    if (kl_composite_begin("nn_positions") != KL_OK)
        return kl_poison();
    kl_tensor at = cache ? cache_positions(cache, n) : kl_arange(device, KL_I32, n);
    kl_composite_end(1, &at);
    return at;
}

/* [L, D/2], or of positions [B, L] [B, 1.., L, D/2], for x [B, ..., L, D] */
static kl_tensor rotary_angles(kl_tensor x, kl_tensor positions, const kl_nn_rotary_options *o, int64_t width)
{
    kl_dtype wide = kl_dtype_of(x) == KL_F64 ? KL_F64 : KL_F32;
    kl_tensor number = kl_arange(kl_device_of(x), wide, width / 2);
    kl_tensor speed = kl_exp(kl_mul_scalar(number, -2 * log(o->base) / (double)width));
    if (o->factors.id)
        speed = kl_div(speed, kl_cast(o->factors, wide));
    kl_tensor at = kl_cast(positions, wide);
    for (int axes = 2; kl_rank(positions) == 2 && axes < kl_rank(x) - 1; axes++)
        at = kl_unsqueeze(at, 1);
    return kl_mul(kl_unsqueeze(at, -1), speed);
}

/* Rotates pairs x = (a, b): (a cos - b sin, b cos + a sin). */
static kl_tensor rotary_rotate(kl_tensor x, kl_tensor positions, const kl_nn_rotary_options *o)
{
    int64_t dims[KL_MAX_RANK + 1], width, half;
    bool interleaved = o->interleaved;
    int rank = kl_shape(x, dims), pair = interleaved ? rank : rank - 1; /* the axis of length 2 */
    width = dims[rank - 1], half = width / 2;
    kl_tensor angle = rotary_angles(x, positions, o, width), c = kl_cos(angle), s = kl_sin(angle);
    if (o->attention_factor != 0 && o->attention_factor != 1) {
        c = kl_mul_scalar(c, o->attention_factor);
        s = kl_mul_scalar(s, o->attention_factor);
    }
    c = kl_cast(c, kl_dtype_of(x)), s = kl_cast(s, kl_dtype_of(x));
    dims[rank - 1] = interleaved ? half : 2;
    dims[rank] = interleaved ? 2 : half;
    kl_tensor pairs = kl_reshape(x, rank + 1, dims), part[2];
    for (int i = 0; i < 2; i++)
        part[i] = kl_squeeze(kl_narrow(pairs, pair, i, 1), pair);
    kl_tensor rotated[2] = {kl_sub(kl_mul(part[0], c), kl_mul(part[1], s)),
                           kl_add(kl_mul(part[1], c), kl_mul(part[0], s))};
    kl_tensor y = kl_stack(2, rotated, pair == rank ? -1 : pair);
    dims[rank - 1] = width;
    return kl_reshape(y, rank, dims);
}

kl_tensor kl_nn_rotary(kl_tensor x, kl_tensor positions, double base, bool interleaved)
{
    if (kl_check(x) == KL_OK && !(base > 0)) {
        kl_failf(NULL, KL_ERR_SHAPE, "nn_rotary: base %g", base);
        return kl_poison();
    }
    return kl_nn_rotary_with(x, positions, &(kl_nn_rotary_options){.base = base, .interleaved = interleaved});
}

kl_tensor kl_nn_rotary_with(kl_tensor x, kl_tensor positions, const kl_nn_rotary_options *options)
{
    kl_nn_rotary_options o = options ? *options : (kl_nn_rotary_options){0};
    double base = o.base == 0 ? 10000 : o.base;
    o.base = base;
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(x, dims);
    if (kl_check(x) == KL_OK && (rank < 2 || rank >= KL_MAX_RANK || dims[rank - 1] % 2 || !(base > 0))) {
        kl_failf(NULL, KL_ERR_SHAPE, "nn_rotary: %d axes, the last of %lld elements, base %g", rank,
                (long long)(rank > 0 ? dims[rank - 1] : 0), base);
        return kl_poison();
    }
    if (kl_composite_begin("nn_rotary") != KL_OK)
        return kl_poison();
    kl_tensor y = rank < 2 ? kl_neg(x) /* a failing op on x, whose error describes x */
                           : rotary_rotate(x, positions, &o);
    kl_composite_end(1, &y);
    return y;
}

/* ---- divisors ---- */

static const double ROUND = 2 * 3.14159265358979323846; /* radians of a whole turn */

/* From 0 at `low` to 1 at `high`. */
static double rotary_ramp(double x, double low, double high)
{
    return fmin(fmax((x - low) / (high > low ? high - low : 1e-3), 0), 1);
}

/* The number of the pair that turns so many times in the original positions: not whole. */
static double rotary_pair(const kl_nn_rotary_scaling *s, int64_t width, double times)
{
    return (double)width * log(s->original / (times * ROUND)) / (2 * log(s->base));
}

/* The share of pair i's own speed that is kept; the rest is divided by the factor. */
static double rotary_kept(const kl_nn_rotary_scaling *s, int64_t width, int64_t i)
{
    if (s->kind == KL_NN_ROTARY_LLAMA3)
        return rotary_ramp(s->original / ROUND * pow(s->base, -2 * (double)i / (double)width), s->low, s->high);
    if (s->kind == KL_NN_ROTARY_LINEAR)
        return 0;
    double first = fmax(floor(rotary_pair(s, width, s->fast)), 0);
    double last = fmin(ceil(rotary_pair(s, width, s->slow)), (double)width - 1);
    return 1 - rotary_ramp((double)i, first, last);
}

static double number_or(double x, double missing) { return x == 0 ? missing : x; }

kl_status kl_nn_rotary_divisors(int64_t width, const kl_nn_rotary_scaling *scaling, float *divisors,
                                double *attention_factor)
{
    static const char op[] = "nn_rotary_divisors";
    if (!scaling || !divisors)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: an argument is NULL", op);
    kl_nn_rotary_scaling s = *scaling;
    s.base = number_or(s.base, 10000), s.factor = number_or(s.factor, 1);
    s.low = number_or(s.low, 1), s.high = number_or(s.high, 4);
    s.fast = number_or(s.fast, 32), s.slow = number_or(s.slow, 1);
    bool linear = s.kind == KL_NN_ROTARY_LINEAR;
    if (width < 2 || width % 2 || (unsigned)s.kind > KL_NN_ROTARY_YARN)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: kind %d, %lld elements", op, (int)s.kind, (long long)width);
    const double numbers[] = {s.factor, s.low, s.high, s.fast, s.slow, linear ? 1 : s.original, s.base - 1};
    static const char *const names[] = {"factor", "low", "high", "fast", "slow", "original", "base - 1"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!(numbers[i] > 0 && numbers[i] < INFINITY))
            return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: %s is %g", op, names[i], numbers[i]);
    if (!(s.attention_factor >= 0 && s.attention_factor < INFINITY))
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: attention_factor is %g", op, s.attention_factor);
    for (int64_t i = 0; i < width / 2; i++) {
        double kept = rotary_kept(&s, width, i);
        divisors[i] = (float)(1 / (kept + (1 - kept) / s.factor));
    }
    if (attention_factor)
        *attention_factor = s.kind != KL_NN_ROTARY_YARN ? 1
                          : number_or(s.attention_factor, s.factor > 1 ? 1 + log(s.factor) / 10 : 1);
    return KL_OK;
}
