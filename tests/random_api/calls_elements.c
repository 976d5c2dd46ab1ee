/* Calls that work element by element. */
#include "tests/random_api/calls.h"

typedef kl_tensor unary_fn(kl_tensor);
typedef kl_tensor binary_fn(kl_tensor, kl_tensor);

static kl_tensor celu(kl_tensor a) { return kl_celu(a, 1.5); }
static kl_tensor elu(kl_tensor a) { return kl_elu(a, 0.7); }
static kl_tensor leaky_relu(kl_tensor a) { return kl_leaky_relu(a, 0.1); }
static kl_tensor hard_sigmoid(kl_tensor a) { return kl_hard_sigmoid(a, 1. / 6, 0.5); }
static kl_tensor clamp(kl_tensor a) { return kl_clamp(a, -1, 1); }
static kl_tensor power(kl_tensor a) { return kl_pow_scalar(a, 2.5); }

kl_tensor make_unary(struct recording *c, int a)
{
    static unary_fn *const functions[] = {
        kl_neg,   kl_abs,     kl_exp,     kl_exp2,    kl_expm1,    kl_log,         kl_log2,    kl_log10,     kl_log1p,
        kl_sin,   kl_cos,     kl_tan,     kl_asin,    kl_acos,     kl_atan,        kl_sinh,    kl_cosh,      kl_tanh,
        kl_asinh, kl_acosh,   kl_atanh,   kl_erf,     kl_erfc,     kl_erfinv,      kl_sqrt,    kl_rsqrt,     kl_recip,
        kl_cbrt,  kl_square,  kl_floor,   kl_ceil,    kl_round,    kl_trunc,       kl_sign,    kl_lgamma,    kl_digamma,
        kl_relu,  kl_sigmoid, kl_silu,    kl_gelu,    kl_gelu_erf, kl_log_sigmoid, kl_softplus, kl_softsign, kl_mish,
        kl_selu,  celu,       elu,        leaky_relu, clamp,       hard_sigmoid,   power,      kl_hard_swish,
        kl_is_nan, kl_is_finite, kl_is_inf};
    return ONE_OF(c, functions)(value_of(c, a));
}

kl_tensor make_binary(struct recording *c, int a)
{
    static binary_fn *const functions[] = {kl_add, kl_sub,   kl_mul,      kl_div,       kl_maximum,       kl_minimum,
                                           kl_pow, kl_atan2, kl_hypot,    kl_copysign,  kl_div_trunc, kl_div_floor,
                                           kl_mod, kl_fmod,  kl_logaddexp, kl_nextafter};
    kl_tensor b = value_of(c, pick_broadcast(c, a));
    if (chance(c, 17))
        return kl_lerp(value_of(c, a), b, pick_like(c, a));
    if (chance(c, 17))
        return kl_fma(value_of(c, a), b, pick_like(c, a));
    return ONE_OF(c, functions)(value_of(c, a), b);
}

kl_tensor make_integers(struct recording *c, int a)
{
    static binary_fn *const functions[] = {kl_add, kl_sub, kl_mul, kl_div, kl_and, kl_or, kl_xor, kl_shl, kl_shr,
                                           kl_shr_logical, kl_rem, kl_mod, kl_div_floor, kl_maximum, kl_minimum};
    kl_tensor b = value_of(c, pick_broadcast(c, a));
    switch (below(c, 16)) {
    case 0: return kl_popcount(value_of(c, a));
    case 1: return kl_clz(value_of(c, a));
    case 2: return kl_powi(value_of(c, a), below(c, 6));
    case 3: return kl_not(value_of(c, a));
    default: return ONE_OF(c, functions)(value_of(c, a), b);
    }
}

kl_tensor make_compare(struct recording *c, int a)
{
    static binary_fn *const functions[] = {kl_eq, kl_ne, kl_lt, kl_le, kl_gt, kl_ge};
    kl_tensor b = value_of(c, pick_broadcast(c, a));
    return ONE_OF(c, functions)(value_of(c, a), b);
}

kl_tensor make_where(struct recording *c, int a)
{
    int b = pick(c, NUMBERS, 0, KL_MAX_RANK);
    kl_tensor yes = value_of(c, b);
    return c->missing ? kl_none : kl_where(value_of(c, a), yes, pick_like(c, b));
}

kl_tensor make_cast(struct recording *c, int a) { return kl_cast(value_of(c, a), pick_dtype(c)); }

kl_tensor make_scalar(struct recording *c, int a)
{
    switch (below(c, 6)) {
    case 0: return kl_add_scalar(value_of(c, a), 3);
    case 1: return kl_mul_scalar(value_of(c, a), 2);
    case 2: return kl_div_scalar(value_of(c, a), 3);
    case 3: return kl_maximum_scalar(value_of(c, a), 1);
    case 4: return kl_minimum_scalar(value_of(c, a), 100);
    default: return kl_sub_scalar(value_of(c, a), 1);
    }
}

kl_tensor make_quantize(struct recording *c, int a)
{
    kl_tensor scale = kl_const(c->device, KL_F32, 0.1);
    kl_tensor q = kl_quantize(value_of(c, a), scale, kl_none, chance(c, 2) ? KL_I8 : KL_U8, 0);
    return chance(c, 2) ? q : kl_dequantize(q, scale, kl_none, 0);
}

kl_tensor make_float8(struct recording *c, int a)
{
    kl_float8 format = (kl_float8)below(c, 4);
    kl_tensor x = value_of(c, a), one = kl_cast(kl_const(c->device, KL_F32, 1), c->p->type[a].dtype);
    bool decoded = chance(c, 2);
    if (!decoded) /* no NaN: its sign, which depends on the processor, would be a bit of the result */
        x = kl_where(kl_is_nan(x), one, x);
    kl_tensor bytes = kl_float8_encode(x, format, chance(c, 2));
    return !decoded ? bytes : kl_float8_decode(bytes, format, c->p->type[a].dtype);
}

/* Random numbers, or numbers of places, of a's shape. */
kl_tensor make_random(struct recording *c, int a)
{
    int64_t dims[KL_MAX_RANK];
    int rank = symbolic_shape(c, a, dims);
    kl_dtype dtype = c->p->type[a].dtype;
    if (c->missing)
        return kl_none;
    uint64_t seed = rng_next(&c->r);
    if (chance(c, 2))
        return kl_rand(c->device, chance(c, 2) ? KL_F32 : KL_F64, rank, dims, seed);
    if (is_float(dtype))
        return kl_dropout(value_of(c, a), 0.3, seed, true);
    return rank ? kl_iota(c->device, dtype, rank, dims, pick_axis(c, a)) : kl_none;
}
