/* Initial values of parameters.  They are computed on the host, so that they have the same bits on every device. */
#include "train.h"

struct init_call {
    const kl_init *init;
    kl_device device;     /* a device of the host */
    kl_dtype dtype;       /* the dtype of the computation */
    int rank;
    const int64_t *dims;
    uint64_t seed;
};

/* The device that computes values for a device: a device of the host computes its own; for other devices it is cpu, or
 * ref if cpu does not work. */
static kl_device init_host(kl_device device)
{
    const char *name = kl_device_name(kl_device_inner(device));
    bool own = !strcmp(name, "cpu") || !strcmp(name, "ref") || !strcmp(name, "meta");
    if (own)
        return device;
    kl_device host = kl_device_named("cpu");
    if (!host.id)
        host = kl_device_named("ref");
    return host.id && kl_device_is_autodiff(device) ? kl_device_autodiff(host) : host;
}

static kl_tensor init_scaled(kl_tensor a, double scale, double offset)
{
    if (scale != 1)
        a = kl_mul_scalar(a, scale);
    return offset != 0 ? kl_add_scalar(a, offset) : a;
}

static kl_tensor init_uniform(const struct init_call *c, double low, double high)
{
    return init_scaled(kl_rand(c->device, c->dtype, c->rank, c->dims, c->seed), high - low, low);
}

static kl_tensor init_normal(const struct init_call *c, double mean, double std)
{
    return init_scaled(kl_randn(c->device, c->dtype, c->rank, c->dims, c->seed), std, mean);
}

/* ---- truncated normal: the inverse of the distribution function at a uniform number ---- */

/* The x with erf(x) = y, |y| < 1, in f64.  It starts with Winitzki's approximation, whose relative error is at most
 * 2e-3, and does three steps of Halley's method, whose convergence is cubic; the error is then that of rounding. */
static kl_tensor init_erf_inverse(kl_tensor y)
{
    const double a = 0.147, pi = 3.14159265358979323846;
    kl_tensor log1 = kl_log1p(kl_neg(kl_mul(y, y)));
    kl_tensor b = kl_add_scalar(kl_mul_scalar(log1, 0.5), 2 / (pi * a));
    kl_tensor root = kl_sqrt(kl_sub(kl_mul(b, b), kl_mul_scalar(log1, 1 / a)));
    kl_tensor x = kl_copysign(kl_sqrt(kl_maximum_scalar(kl_sub(root, b), 0)), y);
    for (int i = 0; i < 3; i++) {
        /* f = erf(x) - y, f' = 2/sqrt(pi) e^(-x x), f'' = -2 x f'.  The step is x - u / (1 + x u) with u = f / f'. */
        kl_tensor f = kl_sub(kl_erf(x), y);
        kl_tensor u = kl_mul(kl_mul_scalar(f, sqrt(pi) / 2), kl_exp(kl_mul(x, x)));
        x = kl_sub(x, kl_div(u, kl_add_scalar(kl_mul(x, u), 1)));
    }
    return x;
}

static kl_tensor init_truncated(const struct init_call *c)
{
    const kl_init *k = c->init;
    const double root2 = 1.4142135623730951;
    double low = erf((k->low - k->mean) / k->std / root2), high = erf((k->high - k->mean) / k->std / root2);
    kl_tensor x = init_erf_inverse(init_uniform(c, low, high));
    x = init_scaled(x, k->std * root2, k->mean);
    return kl_clamp(x, k->low, k->high);
}

/* ---- orthogonal: Gram and Schmidt's method, each column twice, on normal numbers ---- */

/* in: the matrix [rows, columns] of the columns made so far and zeros; a new column [rows]; its number.  Subtracts from
 * the new column its projections on the others, scales it to length 1 and stores it in the matrix. */
static kl_status init_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx;
    (void)nin;
    (void)nout;
    kl_tensor v = in[1];
    for (int i = 0; i < 2; i++) {
        kl_tensor along = kl_matmul(v, in[0]);                                  /* [columns] */
        v = kl_sub(v, kl_matmul(in[0], along));
    }
    v = kl_div(v, kl_norm(v, 0, NULL, true));
    kl_tensor start[2] = {kl_none, in[2]};
    out[0] = kl_dynamic_update(in[0], kl_unsqueeze(v, -1), start);
    return KL_OK;
}

static kl_tensor init_orthogonal(const struct init_call *c, double gain)
{
    int64_t first = c->dims[0], rest = 1;
    for (int i = 1; i < c->rank; i++)
        rest *= c->dims[i];
    bool tall = first >= rest;
    int64_t columns = tall ? rest : first, length = tall ? first : rest;
    int64_t dims[2] = {length, columns}, across[2] = {columns, length};
    kl_tensor q = kl_zeros(c->device, c->dtype, 2, dims), out[1] = {q};
    if (columns) {
        kl_tensor rows[2] = {kl_randn(c->device, c->dtype, 2, across, c->seed),
                             kl_arange(c->device, KL_I32, columns)};
        kl_scan(init_column, NULL, columns, 1, &q, 2, rows, 0, false, out);
    }
    q = tall ? out[0] : kl_transpose(out[0], 0, 1);
    return init_scaled(kl_reshape(q, c->rank, c->dims), gain, 0);
}

/* ---- the call ---- */

/* Returns what is wrong with the fields; NULL: nothing. */
static const char *init_fault(const kl_init *k, int rank, const int64_t *dims)
{
    bool xavier = k->kind == KL_INIT_XAVIER_NORMAL || k->kind == KL_INIT_XAVIER_UNIFORM;
    bool kaiming = k->kind == KL_INIT_KAIMING_NORMAL || k->kind == KL_INIT_KAIMING_UNIFORM;
    bool cut = k->kind == KL_INIT_TRUNCATED_NORMAL;
    if ((unsigned)k->kind >= KL_INIT_KINDS)
        return "no such kind";
    if (rank < 0 || rank > KL_MAX_RANK || (rank && !dims))
        return "no shape";
    if (!isfinite(k->gain))
        return "gain is not finite";
    if ((xavier && (k->fan_in < 0 || k->fan_out < 0 || k->fan_in + k->fan_out < 1)) || (kaiming && k->fan_in < 1))
        return "fan_in and fan_out must be counts of numbers";
    if ((k->kind == KL_INIT_NORMAL || cut) && !(isfinite(k->mean) && isfinite(k->std) && k->std >= 0))
        return "mean and std must be finite, std from 0 on";
    if ((k->kind == KL_INIT_UNIFORM || cut) && !(k->low <= k->high))
        return "low is above high";
    if (cut && !(k->std > 0 && erf((k->low - k->mean) / k->std / 1.5) < erf((k->high - k->mean) / k->std / 1.5)))
        return "no part of the distribution lies between low and high";
    return NULL;
}

static kl_tensor init_record(const struct init_call *c)
{
    const kl_init *k = c->init;
    double gain = k->gain != 0 ? k->gain : 1, fans = (double)k->fan_in + (double)k->fan_out, in = (double)k->fan_in;
    switch (k->kind) {
    case KL_INIT_ZEROS: return kl_zeros(c->device, c->dtype, c->rank, c->dims);
    case KL_INIT_ONES: return kl_ones(c->device, c->dtype, c->rank, c->dims);
    case KL_INIT_UNIFORM: return init_uniform(c, k->low, k->high);
    case KL_INIT_NORMAL: return init_normal(c, k->mean, k->std);
    case KL_INIT_TRUNCATED_NORMAL: return init_truncated(c);
    case KL_INIT_XAVIER_UNIFORM: return init_uniform(c, -gain * sqrt(6 / fans), gain * sqrt(6 / fans));
    case KL_INIT_XAVIER_NORMAL: return init_normal(c, 0, gain * sqrt(2 / fans));
    case KL_INIT_KAIMING_UNIFORM: return init_uniform(c, -gain * sqrt(3 / in), gain * sqrt(3 / in));
    case KL_INIT_KAIMING_NORMAL: return init_normal(c, 0, gain / sqrt(in));
    case KL_INIT_ORTHOGONAL: return init_orthogonal(c, gain);
    case KL_INIT_KINDS: break;
    }
    return kl_none;
}

kl_tensor kl_init_values(const kl_init *k, kl_device device, kl_dtype dtype, int rank,
                         const int64_t *dims, uint64_t seed)
{
    const char *fault = k ? init_fault(k, rank, dims) : "init is NULL";
    if (fault) {
        kl_failf(NULL, KL_ERR_ARGUMENT, "init_values: %s", fault);
        return kl_poison();
    }
    if (k->kind == KL_INIT_ORTHOGONAL && rank < 2) {
        kl_failf(NULL, KL_ERR_SHAPE, "init_values: %d axes; an orthogonal matrix has at least 2", rank);
        return kl_poison();
    }
    bool wide = dtype == KL_F64 || k->kind == KL_INIT_ORTHOGONAL || k->kind == KL_INIT_TRUNCATED_NORMAL;
    struct init_call c = {k, init_host(device), wide ? KL_F64 : KL_F32, rank, dims, seed};
    if (kl_composite_begin("init_values") != KL_OK)
        return kl_poison();
    kl_tensor t = init_record(&c);
    if (dtype != c.dtype)
        t = kl_cast(t, dtype == KL_FLOAT ? kl_dtype_of(kl_zeros(device, KL_FLOAT, 0, NULL)) : dtype);
    if (c.device.id != device.id)
        t = kl_to(t, device);
    kl_composite_end(1, &t);
    return t;
}
