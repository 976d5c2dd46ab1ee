/* Drawing a token of each row of logits: penalty, filters, temperature, and one uniform number a row. */
#include "frontend/nn/compose.h"

/* A number that a frozen step can be given anew, by this name. */
static kl_tensor sample_number(kl_tensor like, const char *name, double value)
{
    kl_tensor x = kl_scalar(kl_device_of(like), kl_dtype_of(like), value);
    kl_set_name(x, name);
    return x;
}

/* The logits of the recent tokens are lowered: CTRL's rule (Keskar et al. 2019). */
static kl_tensor sample_penalized(kl_tensor logits, const struct view *v, const kl_sample_options *o)
{
    if (!o->recent.id || o->penalty == 0 || o->penalty == 1)
        return logits;
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(o->recent, dims);
    kl_device device = kl_device_of(logits);
    kl_tensor none = kl_zeros(device, KL_I32, (int)v->shape.rank, v->shape.dim);
    kl_tensor ones = kl_ones(device, KL_I32, rank, dims);
    kl_tensor seen = kl_put_along_axis_with(none, -1, o->recent, ones, KL_SCATTER_MAX, KL_INDEX_DROP);
    kl_tensor p = sample_number(logits, "sample.penalty", o->penalty), zero = same_number(logits, 0);
    kl_tensor lower = kl_where(kl_gt(logits, zero), kl_div(logits, p), kl_mul(logits, p));
    return kl_where(kl_gt(seen, number(seen, KL_I32, 0)), lower, logits);
}

/* What is drawn from, along the last axis. */
struct candidates {
    kl_tensor logit;
    kl_tensor token;              /* kl_none: they are all, in the order of the vocabulary; else the largest first */
};

static struct candidates sample_candidates(kl_tensor logits, int64_t vocabulary, const kl_sample_options *o)
{
    struct candidates c = {logits, kl_none};
    if (o->top_k > 0 && o->top_k < vocabulary) {
        c.logit = kl_topk(logits, o->top_k, -1, true, &c.token);
    } else if (o->top_p > 0 && o->top_p < 1) {
        c.token = kl_argsort(logits, -1, true);
        c.logit = kl_take_along_axis(logits, -1, c.token);
    }
    return c;
}

/* Weights of the candidates, 1 for the largest; 0 of what the filters leave out. */
static kl_tensor sample_weights(kl_tensor logit, const kl_sample_options *o)
{
    int last = -1;
    kl_tensor below = kl_sub(logit, kl_max(logit, 1, &last, true)), zero = same_number(logit, 0), keep = kl_none;
    if (o->top_p > 0 && o->top_p < 1) {
        kl_tensor w = kl_exp(below), p = sample_number(logit, "sample.top_p", o->top_p);
        keep = kl_lt(kl_cumsum(w, -1, true, false), kl_mul(p, kl_sum(w, 1, &last, true)));
    }
    if (o->min_p > 0) {
        kl_tensor enough = kl_ge(below, kl_log(sample_number(logit, "sample.min_p", o->min_p)));
        keep = keep.id ? kl_and(keep, enough) : enough;
    }
    kl_tensor w = kl_exp(kl_div(below, sample_number(logit, "sample.temperature", o->temperature)));
    return keep.id ? kl_where(keep, w, zero) : w;
}

/* [..., 1] Uniform in (0, 1], multiples of 2^-24: of the row's seed, or of the seed and the row's number. */
static kl_tensor sample_uniform(kl_tensor seed, const struct view *v)
{
    int64_t dims[KL_MAX_RANK];
    int rank = (int)v->shape.rank - 1;
    kl_device device = kl_device_of(seed);
    kl_tensor row = kl_zeros(device, KL_I64, 0, NULL);
    memcpy(dims, v->shape.dim, (size_t)rank * sizeof *dims);
    if (kl_rank(seed) == 0)
        row = kl_reshape(kl_arange(device, KL_I64, product_of(dims, rank)), rank, dims);
    kl_tensor bits = kl_shr_logical(kl_random_fold_in(seed, row), number(seed, KL_U64, 40));
    kl_dtype dtype = v->dtype == KL_F64 ? KL_F64 : KL_F32;
    kl_tensor u = kl_add_scalar(kl_cast(bits, dtype), 1);
    return kl_unsqueeze(kl_mul(u, same_number(u, 0x1p-24)), -1);
}

/* The first candidate up to which the weights sum to the uniform number's part of all.  If there is none, or no weight,
 * because sums are rounded, the one with the largest logit, which no filter leaves out. */
static kl_tensor sample_draw(const struct candidates *c, kl_tensor weight, kl_tensor uniform)
{
    int last = -1;
    kl_tensor sum = kl_cumsum(weight, -1, false, false), part = kl_mul(uniform, kl_max(sum, 1, &last, true));
    kl_tensor hit = kl_and(kl_ge(sum, part), kl_gt(weight, same_number(weight, 0)));
    kl_tensor first = kl_argmax(kl_cast(hit, KL_I32), -1);
    kl_tensor at = kl_where(kl_any(hit, 1, &last, false), first, kl_argmax(c->logit, -1));
    if (!c->token.id)
        return at;
    return kl_cast(kl_squeeze(kl_take_along_axis(c->token, -1, kl_unsqueeze(at, -1)), -1), KL_I32);
}

static bool sample_options_valid(struct thread *t, const kl_sample_options *o)
{
    bool valid = o->temperature >= 0 && o->temperature < (double)INFINITY && o->top_k >= 0 && o->top_p >= 0 &&
                 o->top_p <= 1 && o->min_p >= 0 && o->min_p <= 1 && o->penalty >= 0 && o->penalty < (double)INFINITY;
    if (!valid)
        fail(t, KL_ERR_ARGUMENT, "sample: temperature %g, top_k %" PRId64 ", top_p %g, min_p %g, penalty %g",
             o->temperature, o->top_k, o->top_p, o->min_p, o->penalty);
    return valid;
}

/* Rows of other tensors are the logits' rows; axes: those behind the rows' axes. */
static bool sample_rows_fit(struct thread *t, const char *what, kl_tensor x, const struct view *v, uint32_t axes)
{
    struct view o;
    char tx[SHAPE_TEXT], tv[SHAPE_TEXT];
    if (!describe(t, "sample", what, x, &o))
        return false;
    uint32_t rows = v->shape.rank - 1;
    if (o.shape.rank == rows + axes && !memcmp(o.shape.dim, v->shape.dim, rows * sizeof *v->shape.dim))
        return true;
    return fail(t, KL_ERR_SHAPE, "sample: %s %s has other rows than the logits %s", what,
                shape_text(&o.shape, tx, sizeof tx), shape_text(&v->shape, tv, sizeof tv)) == KL_OK;
}

static bool sample_valid(struct thread *t, kl_tensor seed, const struct view *v, const kl_sample_options *o)
{
    char text[SHAPE_TEXT];
    if (v->shape.rank < 1 || v->shape.dim[v->shape.rank - 1] < 1)
        return fail(t, KL_ERR_SHAPE, "sample: logits %s", shape_text(&v->shape, text, sizeof text)) == KL_OK;
    struct view s;
    if (!axes_are_numbers(t, "sample", &v->shape, 0, (int)v->shape.rank) || !sample_options_valid(t, o) ||
        (o->recent.id && !sample_rows_fit(t, "recent", o->recent, v, 1)))
        return false;
    if (o->temperature == 0)
        return true;
    if (!describe(t, "sample", "the seed", seed, &s))
        return false;
    if (s.dtype != KL_U64)
        return fail(t, KL_ERR_TYPE, "sample: the seed is %s, not u64", dtype_name(s.dtype)) == KL_OK;
    return s.shape.rank == 0 || sample_rows_fit(t, "the seed", seed, v, 0);
}

kl_tensor kl_sample(kl_tensor logits, kl_tensor seed, const kl_sample_options *options)
{
    const kl_sample_options o = options ? *options : (kl_sample_options){0};
    struct view v;
    struct thread *t = floats_begin("sample", logits, &v);
    if (!t)
        return op_failed();
    if (!sample_valid(t, seed, &v, &o))
        return compose_end(t, poison(t));
    kl_tensor wide = kl_detach(dtype_is_half(v.dtype) ? kl_cast(logits, KL_F32) : logits);
    wide = sample_penalized(wide, &v, &o);
    if (o.temperature == 0)
        return compose_end(t, kl_argmax(wide, -1));
    struct candidates c = sample_candidates(wide, v.shape.dim[v.shape.rank - 1], &o);
    return compose_end(t, sample_draw(&c, sample_weights(c.logit, &o), sample_uniform(seed, &v)));
}
