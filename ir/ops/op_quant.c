/* quantize and dequantize: small integers with a scale and a zero point for each element (a scale for a tensor, or for
 * each slice of an axis, is passed as a view).
 *
 *   quantize x, scale, zero:     rint(x / scale) + zero, saturated to zero's dtype; a NaN is the zero point
 *   dequantize q, scale, zero:   (q - zero) * scale, in scale's dtype
 *
 * Halves compute in f32; a quantize of f64, or by an f64 scale, in f64.  The gradient treats rint as the identity
 * (straight-through estimator: Bengio, Leonard, Courville: Estimating or propagating gradients through stochastic
 * neurons, 2013) where quantize did not saturate, and is 0 where it did.  It flows from dequantize to quantize,
 * although the value between them is an integer, and to the scale of both (Esser et al.: Learned step size
 * quantization, 2020). */
#include "ir/ir.h"
#include "ir/loop/loop.h"

enum { X, SCALE, ZERO };

static bool check_operands(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const char *name = opinfo[n->op].name;
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    *out = *node_shape(g, n->in[X]);
    for (unsigned i = SCALE; i <= ZERO; i++)
        if (!shape_equal(out, node_shape(g, n->in[i])))
            return err_set(e, KL_ERR_SHAPE, "%s: shapes %s and %s differ", name, shape_text_in(g, out, a, sizeof a),
                           shape_text_in(g, node_shape(g, n->in[i]), b, sizeof b));
    unsigned scale = node_at(g, n->in[SCALE])->dtype, zero = node_at(g, n->in[ZERO])->dtype;
    if (!dtype_is_float(scale))
        return err_set(e, KL_ERR_TYPE, "%s: the scale needs a floating dtype, got %s", name, dtype_name(scale));
    if (zero != KL_I8 && zero != KL_U8)
        return err_set(e, KL_ERR_TYPE, "%s: the zero point needs i8 or u8, got %s", name, dtype_name(zero));
    return attr_clear_rest(n, 0);
}

/* The dtype in which a quantize computes. */
static unsigned wide_dtype(unsigned x, unsigned scale)
{
    return x == KL_F64 || scale == KL_F64 ? KL_F64 : KL_F32;
}

/* ---- quantize ---- */

bool shape_quantize(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    unsigned x = node_at(g, n->in[X])->dtype;
    if (!dtype_is_float(x))
        return err_set(e, KL_ERR_TYPE, "quantize: needs a floating dtype, got %s", dtype_name(x));
    n->dtype = node_at(g, n->in[ZERO])->dtype;
    return check_operands(g, n, out, e);
}

/* Blocks of elements through the same steps as lower_quantize. */
bool eval_quantize(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    enum { BLOCK = 128 }; /* 4 KiB of stack */
    const unsigned from = node_at(g, n->in[X])->dtype, scale = node_at(g, n->in[SCALE])->dtype;
    const unsigned wide = wide_dtype(from, scale);
    const int64_t count = shape_count(&g->shape[n->shape]);
    _Alignas(8) unsigned char x[8 * BLOCK], s[8 * BLOCK], z[8 * BLOCK], none[8 * BLOCK] = {0}; /* of dtype wide */
    bool nan[BLOCK];
    bool ok = true;
    for (int64_t i = 0; ok && i < count; i += BLOCK) {
        const int64_t len = count - i < BLOCK ? count - i : BLOCK;
        ok = scalar_cast(x, wide, (const char *)in[X] + i * (int64_t)dtype_size(from), from, len) &&
             scalar_cast(s, wide, (const char *)in[SCALE] + i * (int64_t)dtype_size(scale), scale, len) &&
             scalar_cast(z, wide, (const char *)in[ZERO] + i, n->dtype, len) &&
             scalar_apply(OP_div, wide, x, (const void *const[]){x, s}, len) &&
             scalar_apply(OP_round, wide, x, (const void *const[]){x}, len) &&
             scalar_apply(OP_is_nan, wide, nan, (const void *const[]){x}, len) &&
             scalar_apply(OP_where, wide, x, (const void *const[]){nan, none, x}, len) &&
             scalar_apply(OP_add, wide, x, (const void *const[]){x, z}, len) &&
             scalar_cast((char *)out + i, n->dtype, x, wide, len);
    }
    return ok;
}

void vjp_quantize(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    const unsigned from = node_at(g, n.in[X])->dtype, scale = node_at(g, n.in[SCALE])->dtype;
    const unsigned wide = wide_dtype(from, scale);
    const double low = n.dtype == KL_I8 ? -128 : 0, high = n.dtype == KL_I8 ? 127 : 255;
    ref s = n_cast(g, n.in[SCALE], wide), ratio = n_div(g, n_cast(g, n.in[X], wide), s);
    ref zero_point = n_cast(g, n.in[ZERO], wide), place = n_add(g, n_round(g, ratio), zero_point);
    ref not_above = n_le(g, place, n_k(g, place, high));
    ref inside = n_and(g, n_ge(g, place, n_k(g, place, low)), not_above);
    ref none = n_k(g, ratio, 0), d = n_div(g, n_where(g, inside, n_cast(g, dy, wide), none), s);
    din[X] = n_cast(g, d, from);
    din[SCALE] = n_cast(g, n_neg(g, n_mul(g, d, n_where(g, inside, ratio, none))), scale);
    din[ZERO] = NIL;
}

uint32_t lower_quantize(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    const unsigned wide = wide_dtype(node_at(l->g, n->in[X])->dtype, node_at(l->g, n->in[SCALE])->dtype);
    val x = k_cast(l->k, l->at(l, n->in[X], coord), wide);
    val s = k_cast(l->k, l->at(l, n->in[SCALE], coord), wide);
    val z = k_cast(l->k, l->at(l, n->in[ZERO], coord), wide);
    x = k_op(l->k, OP_div, (const val[]){x, s});
    x = k_op(l->k, OP_round, (const val[]){x});
    val nan = k_op(l->k, OP_is_nan, (const val[]){x});
    x = k_op(l->k, OP_where, (const val[]){nan, k_const(l->k, wide, 0), x});
    return k_cast(l->k, k_op(l->k, OP_add, (const val[]){x, z}), n->dtype);
}

/* ---- dequantize ---- */

bool shape_dequantize(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    if (!check_operands(g, n, out, e))
        return false;
    unsigned q = node_at(g, n->in[X])->dtype, zero = node_at(g, n->in[ZERO])->dtype;
    n->dtype = node_at(g, n->in[SCALE])->dtype;
    return q == zero || err_set(e, KL_ERR_TYPE, "dequantize: the number is %s, its zero point %s", dtype_name(q),
                                dtype_name(zero));
}

/* Blocks of elements through the same steps as lower_dequantize. */
bool eval_dequantize(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    enum { BLOCK = 256 };
    const unsigned from = node_at(g, n->in[X])->dtype, wide = dtype_compute(n->dtype);
    const int64_t count = shape_count(&g->shape[n->shape]), size = (int64_t)dtype_size(n->dtype);
    _Alignas(8) unsigned char x[8 * BLOCK], s[8 * BLOCK], z[8 * BLOCK]; /* of dtype wide */
    bool ok = true;
    for (int64_t i = 0; ok && i < count; i += BLOCK) {
        const int64_t len = count - i < BLOCK ? count - i : BLOCK;
        ok = scalar_cast(x, wide, (const char *)in[X] + i, from, len) &&
             scalar_cast(s, wide, (const char *)in[SCALE] + i * size, n->dtype, len) &&
             scalar_cast(z, wide, (const char *)in[ZERO] + i, from, len) &&
             scalar_apply(OP_sub, wide, x, (const void *const[]){x, z}, len) &&
             scalar_apply(OP_mul, wide, x, (const void *const[]){x, s}, len) &&
             scalar_cast((char *)out + i * size, n->dtype, x, wide, len);
    }
    return ok;
}

void vjp_dequantize(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    const struct node q = *node_at(g, n.in[X]);
    ref zero_point = n_cast(g, n.in[ZERO], n.dtype), steps = n_sub(g, n_cast(g, n.in[X], n.dtype), zero_point);
    din[X] = q.op == OP_quantize ? n_cast(g, n_mul(g, dy, n.in[SCALE]), node_at(g, q.in[X])->dtype) : NIL;
    din[SCALE] = n_mul(g, dy, steps);
    din[ZERO] = NIL;
}

uint32_t lower_dequantize(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    const unsigned wide = dtype_compute(n->dtype);
    val x = k_cast(l->k, l->at(l, n->in[X], coord), wide);
    val s = k_cast(l->k, l->at(l, n->in[SCALE], coord), wide);
    val z = k_cast(l->k, l->at(l, n->in[ZERO], coord), wide);
    x = k_op(l->k, OP_sub, (const val[]){x, z});
    return k_cast(l->k, k_op(l->k, OP_mul, (const val[]){x, s}), n->dtype);
}
