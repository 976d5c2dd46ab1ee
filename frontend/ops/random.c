/* Random numbers of a distribution, made from random bits by ordinary ops. */
#include "frontend/frontend.h"

/* The source of the bits: a tensor, or a number and a device. */
struct random_source {
    kl_tensor seed; /* kl_none: number */
    kl_device device;
    uint64_t number;
};

/* The highest `digits` bits of random words as floats 0 .. 2^digits - 1, exactly. */
static kl_tensor random_integers(const struct random_source *s, kl_dtype dtype, int rank, const int64_t *dims,
                                 int digits)
{
    bool wide = dtype == KL_F64;
    kl_dtype word = wide ? KL_U64 : KL_U32;
    if (!wide && dtype != KL_F32)
        return refuse(thread_self(), KL_ERR_TYPE, "makes f32 and f64, not %s", kl_dtype_name(dtype));
    double below = (double)(UINT64_C(1) << ((wide ? 64 : 32) - digits));
    kl_tensor bits = s->seed.id ? kl_random_bits_seeded(s->seed, word, rank, dims)
                                : kl_random_bits(s->device, word, rank, dims, s->number);
    return kl_cast(kl_div(bits, kl_const(s->device, word, below)), dtype);
}

/* A source with this seed; false: reported. */
static bool source_of(struct thread *t, const char *op, kl_tensor seed, struct random_source *s)
{
    struct view v;
    if (!describe(t, op, "the seed", seed, &v))
        return false;
    *s = (struct random_source){.seed = seed, .device = v.device};
    return true;
}

static kl_tensor random_uniform(const char *op, const struct random_source *s, kl_dtype dtype, int rank,
                         const int64_t *dims)
{
    struct thread *t = compose_begin(op);
    if (!t)
        return kl_none;
    dtype = device_dtype(s->device, dtype);
    int digits = dtype == KL_F64 ? 53 : 24;
    kl_tensor k = random_integers(s, dtype, rank, dims, digits);
    kl_tensor unit = kl_const(s->device, dtype, 1 / (double)(UINT64_C(1) << digits));
    return compose_end(t, kl_mul(k, unit));
}

kl_tensor kl_rand(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed)
{
    return random_uniform("rand", &(struct random_source){.device = device, .number = seed}, dtype, rank, dims);
}

kl_tensor kl_rand_seeded(kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims)
{
    struct thread *t = thread_self();
    struct random_source s;
    if (!t || !source_of(t, "rand_seeded", seed, &s))
        return t ? poison(t) : kl_none;
    return random_uniform("rand_seeded", &s, dtype, rank, dims);
}

/* ---- normal numbers: Wichura's AS 241, the inverse of the normal distribution function ---- */

enum { TERMS = 8 };
/* Numerator and denominator, lowest power first, near the middle, towards the tails and in the far tails. */
static const double middle[2][TERMS] = {
    {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3},
    {1, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4,
     3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3}};
static const double tail[2][TERMS] = {
    {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4},
    {1, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
     1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9}};
static const double far_tail[2][TERMS] = {
    {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7},
    {1, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4,
     1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15}};

struct maker { /* builds on one device in one dtype */
    kl_device device;
    kl_dtype dtype;
};

static kl_tensor ops_random_number(const struct maker *m, double v)
{
    return kl_const(m->device, m->dtype, v);
}

static kl_tensor random_polynomial(const struct maker *m, kl_tensor x, const double *c)
{
    kl_tensor y = ops_random_number(m, c[TERMS - 1]);
    for (int i = TERMS - 2; i >= 0; i--)
        y = kl_add(kl_mul(y, x), ops_random_number(m, c[i]));
    return y;
}

static kl_tensor random_ratio(const struct maker *m, kl_tensor x, const double c[2][TERMS])
{
    return kl_div(random_polynomial(m, x, c[0]), random_polynomial(m, x, c[1]));
}

/* p is in (0, 1) and 1 - p is exact. */
static kl_tensor inverse_normal(const struct maker *m, kl_tensor p)
{
    kl_tensor q = kl_sub(p, ops_random_number(m, 0.5));
    kl_tensor near = kl_mul(q, random_ratio(m, kl_sub(ops_random_number(m, 0.180625), kl_square(q)), middle));
    kl_tensor edge = kl_minimum(p, kl_sub(ops_random_number(m, 1), p));
    kl_tensor r = kl_sqrt(kl_neg(kl_log(edge)));
    kl_tensor size = random_ratio(m, kl_sub(r, ops_random_number(m, 1.6)), tail);
    if (m->dtype == KL_F64) { /* an f32 has at least 2^-24 to the edge: r stays below 5 */
        kl_tensor beyond = random_ratio(m, kl_sub(r, ops_random_number(m, 5)), far_tail);
        size = kl_where(kl_gt(r, ops_random_number(m, 5)), beyond, size);
    }
    kl_tensor off = kl_where(kl_lt(q, ops_random_number(m, 0)), kl_neg(size), size);
    return kl_where(kl_le(kl_abs(q), ops_random_number(m, 0.425)), near, off);
}

/* Evenly in (0, 1), 1 - p exact: odd multiples of half a unit. */
static kl_tensor open_uniform(const struct maker *m, const struct random_source *s, int rank, const int64_t *dims)
{
    int digits = m->dtype == KL_F64 ? 52 : 23; /* one less than a float has: (k + 0.5) / 2^digits is exact */
    kl_tensor k = random_integers(s, m->dtype, rank, dims, digits);
    kl_tensor unit = ops_random_number(m, 1 / (double)(UINT64_C(1) << digits));
    return kl_mul(kl_add(k, ops_random_number(m, 0.5)), unit);
}

static kl_tensor random_gaussian(const char *op, const struct random_source *s, kl_dtype dtype, int rank,
                        const int64_t *dims)
{
    struct thread *t = compose_begin(op);
    if (!t)
        return kl_none;
    struct maker m = {s->device, device_dtype(s->device, dtype)};
    return compose_end(t, inverse_normal(&m, open_uniform(&m, s, rank, dims)));
}

kl_tensor kl_randn(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed)
{
    return random_gaussian("randn", &(struct random_source){.device = device, .number = seed}, dtype, rank, dims);
}

kl_tensor kl_randn_seeded(kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims)
{
    struct thread *t = thread_self();
    struct random_source s;
    if (!t || !source_of(t, "randn_seeded", seed, &s))
        return t ? poison(t) : kl_none;
    return random_gaussian("randn_seeded", &s, dtype, rank, dims);
}

/* ---- sampling an index: the largest of the logits with Gumbel noise ---- */

static kl_tensor random_categorical(kl_tensor logits, const struct view *v, int axis, const struct random_source *s)
{
    kl_dtype dtype = v->dtype == KL_F64 ? KL_F64 : KL_F32;
    struct maker m = {s->device, dtype};
    kl_tensor u = open_uniform(&m, s, (int)v->shape.rank, v->shape.dim);
    kl_tensor noise = kl_neg(kl_log(kl_neg(kl_log(u))));
    kl_tensor wide = v->dtype == dtype ? logits : kl_cast(logits, dtype);
    return kl_argmax(kl_add(wide, noise), axis);
}

kl_tensor kl_categorical(kl_tensor logits, int axis, kl_tensor seed)
{
    struct view v;
    struct random_source s;
    struct thread *t = floats_begin("categorical", logits, &v);
    uint32_t at;
    if (!t)
        return op_failed();
    kl_tensor y = axis_of(t, "logits", &v.shape, axis, &at) && source_of(t, "the draw", seed, &s)
                      ? random_categorical(logits, &v, axis, &s) : poison(t);
    return compose_end(t, y);
}

/* ---- seeds from seeds ----
 * By the mixing function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014),
 * which is one to one: the seed is mixed with a number that says what it is for, then again with each index. */

static const uint64_t GOLDEN = UINT64_C(0x9e3779b97f4a7c15);
static const uint64_t FOR_SPLIT = UINT64_C(0x73706c6974), FOR_FOLD = UINT64_C(0x666f6c64);

/* A constant with all its bits. */
static kl_tensor random_word(const struct maker *m, uint64_t bits)
{
    struct call c = {.op = "const", .device = m->device,
                     .proto = {.op = OP_const, .dtype = KL_U64, .attr.konst.bits = bits}};
    return record(&c);
}

static kl_tensor xor_shifted(const struct maker *m, kl_tensor x, int count)
{
    return kl_xor(x, kl_shr(x, ops_random_number(m, count)));
}

static kl_tensor random_mix(const struct maker *m, kl_tensor x)
{
    x = kl_mul(xor_shifted(m, x, 30), random_word(m, UINT64_C(0xbf58476d1ce4e5b9)));
    x = kl_mul(xor_shifted(m, x, 27), random_word(m, UINT64_C(0x94d049bb133111eb)));
    return xor_shifted(m, x, 31);
}

static kl_tensor random_derive_seed(const struct maker *m, kl_tensor seed, uint64_t purpose, kl_tensor index)
{
    kl_tensor own = random_mix(m, kl_xor(seed, random_word(m, purpose)));
    return random_mix(m, kl_add(own, kl_mul(index, random_word(m, GOLDEN))));
}

/* Starts composite `op` of a seed; NULL: reported, and op_failed() is the result. */
static struct thread *seed_begin(const char *op, kl_tensor seed, struct view *v, struct maker *m)
{
    struct thread *t = thread_self();
    if (!t || !describe(t, op, "the seed", seed, v))
        return NULL;
    if (v->dtype != KL_U64)
        return fail(t, KL_ERR_TYPE, "%s: the seed must be u64, got %s", op, dtype_name(v->dtype)), NULL;
    *m = (struct maker){v->device, KL_U64};
    return checked_begin(op);
}

kl_tensor kl_random_split(kl_tensor seed, int64_t n)
{
    struct view v;
    struct maker m;
    struct thread *t = seed_begin("random_split", seed, &v, &m);
    if (!t)
        return op_failed();
    kl_tensor y = v.shape.rank ? refuse(t, KL_ERR_SHAPE, "the seed must be a scalar, got rank %u", v.shape.rank)
                  : n < 1      ? refuse(t, KL_ERR_SHAPE, "%lld seeds: at least 1 is needed", (long long)n)
                               : random_derive_seed(&m, seed, FOR_SPLIT, kl_arange(v.device, KL_U64, n));
    return compose_end(t, y);
}

kl_tensor kl_random_fold_in(kl_tensor seed, kl_tensor data)
{
    struct view v, w;
    struct maker m;
    struct thread *t = seed_begin("random_fold_in", seed, &v, &m);
    if (!t)
        return op_failed();
    kl_tensor y = kl_none;
    if (!describe(t, "the data", "the tensor", data, &w))
        y = poison(t);
    else if (dtype_is_float(w.dtype) || w.dtype == KL_BOOL)
        y = refuse(t, KL_ERR_TYPE, "the data must be integers, got %s", dtype_name(w.dtype));
    else
        y = random_derive_seed(&m, seed, FOR_FOLD, w.dtype == KL_U64 ? data : kl_cast(data, KL_U64));
    return compose_end(t, y);
}

/* ---- from a generator of the user's ---- */

typedef kl_tensor sampler(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed);

static kl_tensor random_sample(const char *op, sampler *make, const kl_generator *g, kl_device device,
                        kl_dtype dtype, int rank, const int64_t *dims)
{
    struct thread *t = thread_self();
    if (!t)
        return kl_none;
    uint64_t keys = g ? kl_keyset_of(g->key).bits : 0, before = t->generator;
    if (!keys || keys & DEV_MASK)
        return refuse(t, KL_ERR_ARGUMENT, "%s: %s", op, g ? "the generator's key is no layer" : "generator is NULL");
    t->generator = keys;
    kl_tensor h = make(device, dtype, rank, dims, g->seed);
    t->generator = before;
    return h;
}

#define FROM(name)                                                                      \
    kl_tensor kl_##name##_from(const kl_generator *g, kl_device device, kl_dtype dtype, \
                               int rank,                                                \
                               const int64_t *dims)                                     \
    {                                                                                   \
        return random_sample(#name "_from", kl_##name, g, device, dtype, rank, dims);   \
    }
FROM(random_bits)
FROM(rand)
FROM(randn)
