/* com.microsoft: activations, normalisation and products that onnxruntime's optimizer fuses. */
#include "frontend/formats/onnx/onnx.h"
#include <math.h>

/* ---- activations ---- */

/* gelu(x + bias): arg 0 by erf, 1 by tanh, where the bias may be left out. */
bool onnx_bias_gelu(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    kl_tensor x = onnx_widened(n, 0);
    if (onnx_has(n, 1))
        x = kl_add(x, onnx_widened(n, 1));
    return onnx_give_as(n, 0, n->def->op->arg ? kl_gelu(x) : kl_gelu_erf(x), t.dtype);
}

/* Number i of attribute `list`, or the attribute `name`: parameters of a fused activation. */
static double activation_number(struct node *n, const char *list, size_t i, const char *name, double without)
{
    const Onnx__AttributeProto *a = onnx_attr(n, list);
    return a && i < a->n_floats ? (double)a->floats[i] : onnx_attr_float(n, name, without);
}

/* The activation that attribute `activation` names, of x; kl_none: reported. */
static kl_tensor fused_activation(struct node *n, kl_tensor x)
{
    kl_dtype d = kl_dtype_of(x);
    kl_tensor zero = onnx_number(n, d, 0), one = onnx_number(n, d, 1);
    if (!onnx_attr(n, "activation") || onnx_attr_is(n, "activation", "", false))
        return x;
    if (onnx_attr_is(n, "activation", "Relu", false))
        return kl_maximum(x, zero);
    if (onnx_attr_is(n, "activation", "Sigmoid", false))
        return kl_sigmoid(x);
    if (onnx_attr_is(n, "activation", "Tanh", false))
        return kl_tanh(x);
    if (onnx_attr_is(n, "activation", "LeakyRelu", false)) {
        double alpha = activation_number(n, "activation_params", 0, "activation_alpha", 0.01f);
        return kl_where(kl_lt(x, zero), kl_mul(x, onnx_number(n, d, alpha)), x);
    }
    if (onnx_attr_is(n, "activation", "HardSigmoid", false)) {
        double alpha = activation_number(n, "activation_params", 0, "activation_alpha", 0.2f);
        double beta = activation_number(n, "activation_params", 1, "activation_beta", 0.5f);
        x = kl_add(kl_mul(x, onnx_number(n, d, alpha)), onnx_number(n, d, beta));
        return kl_minimum(kl_maximum(x, zero), one);
    }
    if (onnx_attr_is(n, "activation", "Clip", false)) {
        double low = activation_number(n, "activation_params", 0, "min", -INFINITY);
        double high = activation_number(n, "activation_params", 1, "max", INFINITY);
        return kl_minimum(kl_maximum(x, onnx_number(n, d, low)), onnx_number(n, d, high));
    }
    return onnx_fails(n, KL_ERR_TYPE, "a fused activation that is not known"), kl_none;
}

/* ---- products ---- */

/* A convolution, plus operand 3 where it has that, and an activation. */
bool onnx_fused_conv(struct node *n)
{
    struct type t;
    kl_tensor y = onnx_conv_of(n);
    if (!y.id || !onnx_type(n, 0, &t))
        return false;
    if (onnx_has(n, 3))
        y = kl_add(y, onnx_in(n, 3));
    y = fused_activation(n, y);
    return y.id && onnx_give(n, 0, y);
}

bool onnx_fused_gemm(struct node *n)
{
    kl_dtype d = KL_F32;
    kl_tensor y = onnx_gemm_of(n, &d);
    return y.id && (y = fused_activation(n, y)).id && onnx_give_as(n, 0, y, d);
}

/* Operand i, transposed as attributes say: `batch` moves its first axis in front of the last one. */
static kl_tensor matmul_operand(struct node *n, uint32_t i, const char *last, const char *batch)
{
    kl_tensor a = onnx_in(n, i);
    struct type t = onnx_type_of(a);
    int order[KL_MAX_RANK];
    if (onnx_attr_int(n, batch, 0) && t.rank > 2) {
        for (int k = 0; k < t.rank; k++)
            order[k] = k == t.rank - 1 ? k : k == t.rank - 2 ? 0 : k + 1;
        a = kl_permute(a, order);
    }
    return onnx_attr_int(n, last, 0) && t.rank > 1 ? kl_transpose(a, t.rank - 2, t.rank - 1) : a;
}

bool onnx_fused_matmul(struct node *n)
{
    double alpha = onnx_attr_float(n, "alpha", 1);
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    kl_tensor a = matmul_operand(n, 0, "transA", "transBatchA"), b = matmul_operand(n, 1, "transB", "transBatchB");
    kl_dtype wide = alpha != 1 ? onnx_compute_dtype(t.dtype) : t.dtype;
    kl_tensor y = kl_matmul(wide == t.dtype ? a : kl_cast(a, wide), wide == t.dtype ? b : kl_cast(b, wide));
    return onnx_give_as(n, 0, alpha == 1 ? y : kl_mul(y, onnx_number(n, wide, alpha)), t.dtype);
}

/* ---- normalisation ---- */

/* x normalised over its last axis, with operands `weight` and `bias`; *mean, unless NULL as for root mean squares, and
 * *inverse: of each row. */
static kl_tensor contrib_normalise(struct node *n, kl_tensor x, uint32_t weight, uint32_t bias, kl_tensor *mean,
                                   kl_tensor *inverse)
{
    int last = onnx_type_of(x).rank - 1;
    kl_tensor y = onnx_normalise(n, x, 1, &last, onnx_attr_float(n, "epsilon", 1e-12f), mean, inverse);
    y = kl_mul(y, onnx_widened(n, weight));
    return onnx_has(n, bias) ? kl_add(y, onnx_widened(n, bias)) : y;
}

/* Results: the norm of operand 0 + operand 1 + bias; its mean; 1 / deviation; the sum.  arg 1: by root mean square,
 * without an operand beta. */
bool onnx_skip_layer_norm(struct node *n)
{
    struct type t;
    bool simplified = n->def->op->arg;
    uint32_t none = UINT32_MAX, bias = simplified ? 3 : 4;
    if (!onnx_type(n, 0, &t))
        return false;
    if (t.rank < 1)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand without axes");
    kl_tensor x = kl_add(onnx_widened(n, 0), onnx_widened(n, 1)), mean = kl_none, inverse;
    if (onnx_has(n, bias))
        x = kl_add(x, onnx_widened(n, bias));
    kl_tensor y = contrib_normalise(n, x, 2, simplified ? none : 3, simplified ? NULL : &mean, &inverse);
    return onnx_give_as(n, 0, y, t.dtype) && (!onnx_wants(n, 1) || simplified || onnx_give(n, 1, mean)) &&
           (!onnx_wants(n, 2) || onnx_give(n, 2, inverse)) && (!onnx_wants(n, 3) || onnx_give_as(n, 3, x, t.dtype));
}

/* Operands: ids and segments [B, S], tables of words, positions and segments, gamma, beta, mask [B, S], positions.
 * Results: the norm of the sum of the three rows; the sum of each row of the mask; the sum. */
bool onnx_embed_layer_norm(struct node *n)
{
    struct type t, ids;
    if (!onnx_type(n, 2, &t) || !onnx_type(n, 0, &ids))
        return false;
    if (ids.rank != 2)
        return onnx_fails(n, KL_ERR_SHAPE, "ids of %d axes", ids.rank);
    kl_tensor mean, inverse;
    kl_tensor positions = onnx_has(n, 8) ? onnx_in(n, 8) : kl_arange(onnx_device(n), KL_I64, ids.dims[1]);
    kl_tensor x = kl_add(kl_take(onnx_widened(n, 2), 0, onnx_in(n, 0)), kl_take(onnx_widened(n, 3), 0, positions));
    if (onnx_has(n, 1) && onnx_has(n, 4))
        x = kl_add(x, kl_take(onnx_widened(n, 4), 0, onnx_in(n, 1)));
    kl_tensor y = contrib_normalise(n, x, 5, 6, &mean, &inverse);
    int last = 1;
    if (onnx_wants(n, 1)) {
        kl_tensor count = onnx_has(n, 7) ? kl_sum(kl_cast(onnx_in(n, 7), KL_I32), 1, &last, false)
                                         : kl_expand(onnx_number(n, KL_I32, 0), 1, ids.dims);
        if (!onnx_give(n, 1, count))
            return false;
    }
    return onnx_give_as(n, 0, y, t.dtype) && (!onnx_wants(n, 2) || onnx_give_as(n, 2, x, t.dtype));
}
