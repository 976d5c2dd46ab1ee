/* Initial values of parameters.  They are computed on the host, so that they have the same bits on every device. */
#include "train.h"

struct init_call {
    const kl_site *site;
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

static kl_tensor init_scaled(const struct init_call *c, kl_tensor a, double scale, double offset)
{
    if (scale != 1)
        a = kl_mul_scalar_at(c->site, a, scale);
    return offset != 0 ? kl_add_scalar_at(c->site, a, offset) : a;
}

static kl_tensor init_uniform(const struct init_call *c, double low, double high)
{
    return init_scaled(c, kl_rand_at(c->site, c->device, c->dtype, c->rank, c->dims, c->seed), high - low, low);
}

static kl_tensor init_normal(const struct init_call *c, double mean, double std)
{
    return init_scaled(c, kl_randn_at(c->site, c->device, c->dtype, c->rank, c->dims, c->seed), std, mean);
}

/* ---- truncated normal: the inverse of the distribution function at a uniform number ---- */

/* The x with erf(x) = y, |y| < 1, in f64.  It starts with Winitzki's approximation, whose relative error is at most
 * 2e-3, and does three steps of Halley's method, whose convergence is cubic; the error is then that of rounding. */
static kl_tensor init_erf_inverse(const kl_site *site, kl_tensor y)
{
    const double a = 0.147, pi = 3.14159265358979323846;
    kl_tensor log1 = kl_log1p_at(site, kl_neg_at(site, kl_mul_at(site, y, y)));
    kl_tensor b = kl_add_scalar_at(site, kl_mul_scalar_at(site, log1, 0.5), 2 / (pi * a));
    kl_tensor root = kl_sqrt_at(site, kl_sub_at(site, kl_mul_at(site, b, b), kl_mul_scalar_at(site, log1, 1 / a)));
    kl_tensor x = kl_copysign_at(site, kl_sqrt_at(site, kl_maximum_scalar_at(site, kl_sub_at(site, root, b), 0)), y);
    for (int i = 0; i < 3; i++) {
        /* f = erf(x) - y, f' = 2/sqrt(pi) e^(-x x), f'' = -2 x f'.  The step is x - u / (1 + x u) with u = f / f'. */
        kl_tensor f = kl_sub_at(site, kl_erf_at(site, x), y);
        kl_tensor u = kl_mul_at(site, kl_mul_scalar_at(site, f, sqrt(pi) / 2), kl_exp_at(site, kl_mul_at(site, x, x)));
        x = kl_sub_at(site, x, kl_div_at(site, u, kl_add_scalar_at(site, kl_mul_at(site, x, u), 1)));
    }
    return x;
}

static kl_tensor init_truncated(const struct init_call *c)
{
    const kl_init *k = c->init;
    const double root2 = 1.4142135623730951;
    double low = erf((k->low - k->mean) / k->std / root2), high = erf((k->high - k->mean) / k->std / root2);
    kl_tensor x = init_erf_inverse(c->site, init_uniform(c, low, high));
    x = init_scaled(c, x, k->std * root2, k->mean);
    return kl_clamp_at(c->site, x, k->low, k->high);
}

/* ---- orthogonal: Gram and Schmidt's method, each column twice, on normal numbers ---- */

struct init_frame { const kl_site *site; int64_t rows; };

/* in: the matrix [rows, columns] of the columns made so far and zeros; a new column [rows]; its number.  Subtracts from
 * the new column its projections on the others, scales it to length 1 and stores it in the matrix. */
static kl_status init_column(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    const struct init_frame *f = ctx;
    const kl_site *s = f->site;
    (void)nin;
    (void)nout;
    kl_tensor v = in[1];
    for (int i = 0; i < 2; i++) {
        kl_tensor along = kl_matmul_at(s, v, in[0]);                                  /* [columns] */
        v = kl_sub_at(s, v, kl_matmul_at(s, in[0], along));
    }
    v = kl_div_at(s, v, kl_norm_at(s, v, 0, NULL, true));
    kl_tensor start[2] = {kl_none, in[2]};
    out[0] = kl_dynamic_update_at(s, in[0], kl_unsqueeze_at(s, v, -1), start);
    return KL_OK;
}

static kl_tensor init_orthogonal(const struct init_call *c, double gain)
{
    int64_t first = c->dims[0], rest = 1;
    for (int i = 1; i < c->rank; i++)
        rest *= c->dims[i];
    bool tall = first >= rest;
    struct init_frame f = {.site = c->site, .rows = tall ? first : rest};
    int64_t columns = tall ? rest : first, dims[2] = {f.rows, columns}, across[2] = {columns, f.rows};
    kl_tensor q = kl_zeros_at(c->site, c->device, c->dtype, 2, dims), out[1] = {q};
    if (columns) {
        kl_tensor rows[2] = {kl_randn_at(c->site, c->device, c->dtype, 2, across, c->seed),
                             kl_arange_at(c->site, c->device, KL_I32, columns)};
        kl_scan_at(c->site, init_column, &f, columns, 1, &q, 2, rows, 0, false, out);
    }
    q = tall ? out[0] : kl_transpose_at(c->site, out[0], 0, 1);
    return init_scaled(c, kl_reshape_at(c->site, q, c->rank, c->dims), gain, 0);
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
    case KL_INIT_ZEROS: return kl_zeros_at(c->site, c->device, c->dtype, c->rank, c->dims);
    case KL_INIT_ONES: return kl_ones_at(c->site, c->device, c->dtype, c->rank, c->dims);
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

kl_tensor kl_init_values_at(const kl_site *site, const kl_init *k, kl_device device, kl_dtype dtype, int rank,
                            const int64_t *dims, uint64_t seed)
{
    const char *fault = k ? init_fault(k, rank, dims) : "init is NULL";
    if (fault) {
        kl_failf(site, KL_ERR_ARGUMENT, "init_values: %s", fault);
        return kl_poison();
    }
    if (k->kind == KL_INIT_ORTHOGONAL && rank < 2) {
        kl_failf(site, KL_ERR_SHAPE, "init_values: %d axes; an orthogonal matrix has at least 2", rank);
        return kl_poison();
    }
    bool wide = dtype == KL_F64 || k->kind == KL_INIT_ORTHOGONAL || k->kind == KL_INIT_TRUNCATED_NORMAL;
    struct init_call c = {site, k, init_host(device), wide ? KL_F64 : KL_F32, rank, dims, seed};
    if (kl_composite_begin("init_values") != KL_OK)
        return kl_poison();
    kl_tensor t = init_record(&c);
    if (dtype != c.dtype)
        t = kl_cast_at(site, t, dtype == KL_FLOAT ? kl_dtype_of(kl_zeros_at(site, device, KL_FLOAT, 0, NULL)) : dtype);
    if (c.device.id != device.id)
        t = kl_to_at(site, t, device);
    kl_composite_end(1, &t);
    return t;
}
