/* Reductions, and operators along one axis. */
#include "frontend/formats/onnx/onnx.h"
#include <string.h>

enum { RED_SUM, RED_MEAN, RED_MAX, RED_MIN, RED_PROD, RED_L1, RED_L2, RED_LOG_SUM, RED_LOG_SUM_EXP, RED_SUM_SQUARE };

/* The mean of integers, rounded toward zero as onnxruntime does, of `count` elements each. */
static kl_tensor integer_mean(struct node *n, kl_tensor a, int count, const int *axes, bool keep, int64_t elements)
{
    kl_dtype wide = kl_dtype_of(a) == KL_U64 ? KL_U64 : KL_I64;
    kl_tensor sum = kl_sum(kl_cast(a, wide), count, axes, keep);
    return kl_div(sum, kl_length_scalar(onnx_device(n), wide, elements));
}

/* a: floats, but of halfs f32, or integers; `elements` of it for each of the result, or a symbolic length */
static kl_tensor onnx_reduce_axes(struct node *n, kl_tensor a, int count, const int *axes, bool keep, int64_t elements)
{
    switch (n->def->op->arg) {
    case RED_SUM: return kl_sum(a, count, axes, keep);
    case RED_MEAN: return onnx_is_float(kl_dtype_of(a)) ? kl_mean(a, count, axes, keep)
                                                        : integer_mean(n, a, count, axes, keep, elements);
    case RED_MAX: return kl_dtype_of(a) == KL_BOOL ? kl_any(a, count, axes, keep) : kl_max(a, count, axes, keep);
    case RED_MIN: return kl_dtype_of(a) == KL_BOOL ? kl_all(a, count, axes, keep) : kl_min(a, count, axes, keep);
    case RED_PROD: return kl_prod(a, count, axes, keep);
    case RED_L1: return kl_sum(kl_abs(a), count, axes, keep);
    case RED_L2: return kl_sqrt(kl_sum(kl_square(a), count, axes, keep));
    case RED_LOG_SUM: return kl_log(kl_sum(a, count, axes, keep));
    case RED_LOG_SUM_EXP: return kl_logsumexp(a, count, axes, keep);
    default: return kl_sum(kl_square(a), count, axes, keep);
    }
}

/* What is left of the reduction over no axes: what it does to each element. */
static kl_tensor reduced_element(struct node *n, kl_tensor a)
{
    switch (n->def->op->arg) {
    case RED_L1: case RED_L2: return kl_abs(a);
    case RED_LOG_SUM: return kl_log(a);
    case RED_SUM_SQUARE: return kl_square(a);
    default: return a;
    }
}

/* Operand 0 in the dtype to compute in: floats for roots and logarithms of integers, f32 for half floats. */
static kl_tensor reduce_operand(struct node *n, kl_dtype d)
{
    int arg = n->def->op->arg;
    bool direct = arg == RED_MAX || arg == RED_MIN; /* no rounding */
    bool needs_float = arg == RED_L2 || arg == RED_LOG_SUM || arg == RED_LOG_SUM_EXP;
    if (onnx_is_float(d) || !needs_float)
        return direct ? onnx_in(n, 0) : onnx_widened(n, 0);
    return kl_cast(onnx_in(n, 0), kl_device_supports(onnx_device(n), KL_F64) ? KL_F64 : KL_F32);
}

bool onnx_reduce(struct node *n)
{
    struct type t;
    int axes[KL_MAX_RANK];
    int64_t elements = 1;
    bool keep = onnx_attr_int(n, "keepdims", 1);
    if (!onnx_type(n, 0, &t))
        return false;
    int count = onnx_axes(n, "axes", 1, t.rank, axes);
    if (count == -2)
        return false;
    kl_tensor a = reduce_operand(n, t.dtype);
    if (count <= 0 && onnx_attr_int(n, "noop_with_empty_axes", 0))
        return onnx_give_as(n, 0, reduced_element(n, a), t.dtype);
    if (count <= 0)
        for (count = 0; count < t.rank; count++)
            axes[count] = count;
    for (int i = 0; i < count; i++)
        if ((elements = kl_length_mul(elements, t.dims[axes[i]])) == INT64_MIN)
            return false;
    if (t.rank == 0) /* of one number: kl_sum of no axes is the number */
        return onnx_give_as(n, 0, onnx_reduce_axes(n, a, 0, NULL, keep, 1), t.dtype);
    return onnx_give_as(n, 0, onnx_reduce_axes(n, a, count, axes, keep, elements), t.dtype);
}

/* arg 0 ArgMax, 1 ArgMin */
bool onnx_arg(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int axis;
    if (!onnx_type(n, 0, &t) || !onnx_axis(n, onnx_attr_int(n, "axis", 0), t.rank, &axis))
        return false;
    bool last = onnx_attr_int(n, "select_last_index", 0);
    if (last)
        a = kl_flip(a, 1, &axis);
    kl_tensor at = kl_cast(n->def->op->arg ? kl_argmin(a, axis) : kl_argmax(a, axis), KL_I64);
    if (last)
        at = kl_sub(kl_length_scalar(onnx_device(n), KL_I64, kl_length_sub(t.dims[axis], 1)), at);
    t.dims[axis] = 1;
    return onnx_give(n, 0, onnx_attr_int(n, "keepdims", 1) ? kl_reshape(at, t.rank, t.dims) : at);
}

/* arg 0 CumSum, 1 CumProd */
bool onnx_cumsum(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int64_t axis;
    int at;
    if (!onnx_type(n, 0, &t) || !onnx_known_int(n, 1, &axis) || !onnx_axis(n, axis, t.rank, &at))
        return false;
    bool exclusive = onnx_attr_int(n, "exclusive", 0), reverse = onnx_attr_int(n, "reverse", 0);
    return onnx_give(n, 0, n->def->op->arg ? kl_cumprod(a, at, exclusive, reverse)
                                           : kl_cumsum(a, at, exclusive, reverse));
}

bool onnx_topk(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), indices = kl_none;
    struct type t;
    int64_t k = onnx_attr_int(n, "k", 0);
    int axis;
    if (!onnx_type(n, 0, &t) || !onnx_axis(n, onnx_attr_int(n, "axis", -1), t.rank, &axis) ||
        (n->def->opset >= 10 && !onnx_known_int(n, 1, &k)))
        return false;
    kl_tensor v = kl_topk(a, k, axis, onnx_attr_int(n, "largest", 1), &indices);
    return onnx_give(n, 0, v) && onnx_give(n, 1, kl_cast(indices, KL_I64));
}

/* ---- products ---- */

enum { PANEL = 64 }; /* columns: four vectors of the widest processors */

/* Operand 1 or its transpose, [K, N], as [panels, K, PANEL], with zeros behind the last column. */
static kl_tensor product_panels(struct node *n, uint32_t down)
{
    kl_tensor b = down ? kl_transpose(onnx_in(n, 1), 0, 1) : onnx_in(n, 1);
    struct type t = onnx_type_of(b);
    int64_t panels = (t.dims[1] + PANEL - 1) / PANEL;
    b = kl_pad(b, (int64_t[]){0, 0}, (int64_t[]){0, panels * PANEL - t.dims[1]}, 0);
    return kl_permute(kl_reshape(b, 3, (int64_t[]){t.dims[0], panels, PANEL}), (int[]){1, 0, 2});
}

/* Does it pay to keep operand 1 in panels?  It does for a large f32 matrix on a processor, whose rows are on a page
 * each, which many rows of the first operand are multiplied with: 40 rows with [120, 18710] take 0.4 of the time. */
static bool product_packs(struct node *n)
{
    enum { LEAST_ROWS = 9, LARGE = 1 << 18 };
    struct type a, b;
    int64_t rows = 1;
    if (onnx_device(n).id != kl_device_cpu().id || !onnx_type(n, 0, &a) || !onnx_type(n, 1, &b))
        return false;
    for (int i = 0; i + 1 < a.rank; i++)
        rows = a.dims[i] < 0 ? 0 : sat_mul(rows, a.dims[i]);
    return a.dtype == KL_F32 && b.dtype == KL_F32 && b.rank == 2 && rows >= LEAST_ROWS && b.dims[0] >= PANEL &&
           b.dims[1] >= PANEL && sat_mul(b.dims[0], b.dims[1]) >= LARGE &&
           once_is_ready(n, (uint32_t[]){1, NO_PLACE});
}

/* Operand 0 times operand 1, or its transpose. */
static kl_tensor product_of(struct node *n, bool down)
{
    kl_tensor a = onnx_in(n, 0), b = onnx_in(n, 1);
    struct type t;
    if (!product_packs(n) || !onnx_type(n, 1, &t))
        return kl_matmul(a, down ? kl_transpose(b, 0, 1) : b);
    int64_t depth = t.dims[down], columns = t.dims[!down], panels = (columns + PANEL - 1) / PANEL;
    b = kl_permute(once_part(n, down, (uint32_t[]){1, NO_PLACE}, product_panels), (int[]){1, 0, 2});
    b = kl_reshape(b, 2, (int64_t[]){depth, panels * PANEL});
    return kl_matmul(a, kl_narrow(b, 1, 0, columns));
}

bool onnx_matmul(struct node *n)
{
    kl_tensor y;
    return onnx_give(n, 0, onnx_qdq_product(n, false, &y) ? y : product_of(n, false));
}

/* Half floats are multiplied as by kl_linear, or in f32 where the product is scaled. */
kl_tensor onnx_gemm_of(struct node *n, kl_dtype *dtype)
{
    double alpha = onnx_attr_float(n, "alpha", 1), beta = onnx_attr_float(n, "beta", 1);
    bool scaled = alpha != 1 || (beta != 1 && onnx_has(n, 2));
    struct type t;
    if (!onnx_type(n, 0, &t))
        return kl_none;
    *dtype = t.dtype;
    bool across = onnx_attr_int(n, "transA", 0), down = onnx_attr_int(n, "transB", 0);
    kl_tensor r;
    if (scaled || across) {
        kl_tensor a = scaled ? onnx_widened(n, 0) : onnx_in(n, 0), b = scaled ? onnx_widened(n, 1) : onnx_in(n, 1);
        if (across || !onnx_qdq_product(n, down, &r))
            r = kl_matmul(across ? kl_transpose(a, 0, 1) : a, down ? kl_transpose(b, 0, 1) : b);
    } else if (!onnx_qdq_product(n, down, &r)) {
        r = product_of(n, down);
    }
    if (alpha != 1)
        r = kl_mul(r, onnx_number(n, kl_dtype_of(r), alpha));
    if (onnx_has(n, 2)) {
        kl_tensor c = scaled ? onnx_widened(n, 2) : onnx_in(n, 2);
        r = kl_add(r, beta == 1 ? c : kl_mul(c, onnx_number(n, kl_dtype_of(c), beta)));
    }
    return r;
}

bool onnx_gemm(struct node *n)
{
    kl_dtype d = KL_F32;
    kl_tensor r = onnx_gemm_of(n, &d);
    return r.id && onnx_give_as(n, 0, r, d);
}

bool onnx_einsum(struct node *n)
{
    const Onnx__AttributeProto *a = onnx_attr(n, "equation");
    char text[400];
    kl_tensor in[16];
    size_t used = 0;
    struct type t;
    if (!a || !a->has_s || a->s.len >= sizeof text || onnx_nin(n) > 16)
        return onnx_fails(n, KL_ERR_ARGUMENT, "no equation, or one too long, or more than 16 operands");
    for (size_t i = 0; i < a->s.len; i++)
        if (a->s.data[i] != ' ')
            text[used++] = (char)a->s.data[i];
    text[used] = 0;
    for (uint32_t i = 0; i < onnx_nin(n); i++)
        in[i] = onnx_nin(n) > 2 ? onnx_widened(n, i) : onnx_in(n, i); /* one product rounds once anyhow */
    return onnx_type(n, 0, &t) && onnx_give_as(n, 0, kl_einsum(text, (int)onnx_nin(n), in), t.dtype);
}

bool onnx_det(struct node *n) { return onnx_give(n, 0, kl_det(onnx_in(n, 0))); }
