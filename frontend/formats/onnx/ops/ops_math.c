/* Elementwise operators. */
#include "frontend/formats/onnx/onnx.h"
#include <string.h>

bool onnx_unary(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    return onnx_give(n, 0, n->def->op->unary(a));
}

/* Before opset 7 the second operand was broadcast only where attribute `broadcast` said so, from `axis` on. */
static kl_tensor second_operand(struct node *n)
{
    kl_tensor b = onnx_in(n, 1);
    struct type a, t;
    if (n->def->opset >= 7 || onnx_attr_int(n, "broadcast", 0) == 0 || !onnx_attr(n, "axis") ||
        !onnx_type(n, 0, &a) || !onnx_type(n, 1, &t))
        return b;
    int64_t dims[KL_MAX_RANK];
    int axis;
    if (!onnx_axis(n, onnx_attr_int(n, "axis", 0), a.rank, &axis))
        return kl_none;
    for (int i = 0; i < a.rank; i++)
        dims[i] = i >= axis && i - axis < t.rank ? t.dims[i - axis] : 1;
    return kl_reshape(b, a.rank, dims);
}

bool onnx_binary(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), b = second_operand(n);
    return onnx_give(n, 0, n->def->op->binary(a, b));
}

static bool is_float_type(kl_dtype d) { return d == KL_F16 || d == KL_BF16 || d == KL_F32 || d == KL_F64; }

/* arg: 0 sum, 1 mean, 2 max, 3 min */
bool onnx_variadic(struct node *n)
{
    int arg = n->def->op->arg;
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    kl_tensor r = onnx_widened(n, 0);
    for (uint32_t i = 1; i < onnx_nin(n); i++) {
        kl_tensor b = onnx_widened(n, i);
        r = arg == 2 ? kl_maximum(r, b) : arg == 3 ? kl_minimum(r, b) : kl_add(r, b);
    }
    if (arg == 1)
        r = kl_div(r, onnx_number(n, kl_dtype_of(r), onnx_nin(n)));
    return onnx_give_as(n, 0, r, t.dtype);
}

/* ---- powers ---- */

/* base ^ e for integers of one dtype, e >= 0, modulo the dtype's range, by squaring.  Of an exponent over 62 only the
 * parity counts: such powers of numbers other than -1, 0 and 1 are outside of every range. */
static kl_tensor integer_power(struct node *n, kl_tensor base, kl_tensor e)
{
    kl_dtype d = kl_dtype_of(base), de = kl_dtype_of(e);
    kl_tensor zero = onnx_number(n, de, 0), one = onnx_number(n, de, 1), last = onnx_number(n, de, 62);
    kl_tensor left = kl_where(kl_gt(e, last), kl_add(last, kl_and(e, one)), e), r = onnx_number(n, d, 1);
    for (int bit = 0; bit < 6; bit++) {
        r = kl_where(kl_ne(kl_and(left, one), zero), kl_mul(r, base), r);
        left = kl_shr(left, one);
        base = bit < 5 ? kl_mul(base, base) : base;
    }
    return r;
}

/* The same for any integers e: 1 / base^-e rounded toward zero, which is 0 but for 1 and -1. */
static kl_tensor any_integer_power(struct node *n, kl_tensor base, kl_tensor e)
{
    kl_dtype d = kl_dtype_of(base), de = kl_dtype_of(e);
    if (de == KL_U8 || de == KL_U16 || de == KL_U32 || de == KL_U64)
        return integer_power(n, base, e);
    kl_tensor below = kl_lt(e, onnx_number(n, de, 0)), up = integer_power(n, base, kl_where(below, kl_neg(e), e));
    kl_tensor unit = kl_eq(base, onnx_number(n, d, 1));
    if (d == KL_I8 || d == KL_I16 || d == KL_I32 || d == KL_I64)
        unit = kl_or(unit, kl_eq(base, onnx_number(n, d, -1)));
    return kl_where(below, kl_where(unit, up, onnx_number(n, d, 0)), up);
}

/* Integers to the power of floats: exact for whole exponents, else rounded toward zero, as onnxruntime does. */
static kl_tensor fractional_power(struct node *n, kl_tensor a, kl_tensor b)
{
    kl_device device = onnx_device(n);
    kl_dtype dtype = kl_dtype_of(a), wide = kl_device_supports(device, KL_F64) ? KL_F64 : KL_F32;
    kl_tensor e = kl_cast(b, wide), whole = kl_cast(e, KL_I64), r = kl_pow(kl_cast(a, wide), e);
    /* 4 ^ 0.5 may be a rounding below 2 */
    double unit = wide == KL_F64 ? 0x1p-51 : 0x1p-22;
    kl_tensor small = kl_lt(kl_abs(r), onnx_number(n, wide, 0.25 / unit));
    r = kl_where(small, kl_mul(r, onnx_number(n, wide, 1 + unit)), r);
    return kl_where(kl_eq(kl_cast(whole, wide), e), any_integer_power(n, a, whole), kl_cast(r, dtype));
}

/* A float to the power of b.  Integers beyond f32's are exponents in f64, where the device has that. */
static kl_tensor float_power(struct node *n, kl_tensor a, kl_tensor b)
{
    kl_dtype d = kl_dtype_of(a), db = kl_dtype_of(b);
    bool large = db == KL_I32 || db == KL_U32 || db == KL_I64 || db == KL_U64;
    kl_dtype wide = (large || db == KL_F64) && kl_device_supports(onnx_device(n), KL_F64) ? KL_F64 : d;
    return kl_pow(wide == d ? a : kl_cast(a, wide), db == wide ? b : kl_cast(b, wide));
}

bool onnx_pow(struct node *n)
{
    const struct array *v = onnx_numbers(n, 1);
    struct type x, y;
    if (!onnx_type(n, 0, &x) || !onnx_type(n, 1, &y))
        return false;
    kl_tensor a = onnx_widened(n, 0), b = second_operand(n);
    if (v && v->count == 1) {
        double e = array_float(v, 0);
        if (e >= (is_float_type(x.dtype) ? -8 : 0) && e <= 64 && e == (int)e) {
            kl_tensor r = kl_powi(a, (int)e);
            while (x.rank < y.rank) /* the number of its axes counts for the shape of the result */
                r = kl_unsqueeze(r, 0), x.rank++;
            return onnx_give_as(n, 0, r, x.dtype);
        }
    }
    kl_tensor r = is_float_type(x.dtype) ? float_power(n, a, b)
                  : is_float_type(y.dtype) ? fractional_power(n, a, b) : any_integer_power(n, a, b);
    return onnx_give_as(n, 0, r, x.dtype);
}

/* a - floor(a / b) b, as C's and Python's functions treat zeros and infinities: a zero has the sign of b, a finite a
 * and an infinite b leave a or, where the signs differ, b. */
static kl_tensor float_mod(struct node *n, kl_tensor a, kl_tensor b)
{
    kl_dtype d = kl_dtype_of(a);
    kl_tensor zero = onnx_number(n, d, 0), r = kl_fmod(a, b);
    r = kl_where(kl_lt(kl_mul(kl_sign(r), kl_sign(b)), zero), kl_add(r, b), r);
    return kl_where(kl_eq(r, zero), kl_copysign(zero, b), r);
}

bool onnx_mod(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), b = onnx_in(n, 1);
    if (onnx_attr_int(n, "fmod", 0))
        return onnx_give(n, 0, kl_fmod(a, b));
    if (!is_float_type(kl_dtype_of(a)))
        return onnx_give(n, 0, kl_mod(a, b));
    if (n->def->opset < 28)
        return onnx_fails(n, KL_ERR_TYPE, "floats need fmod=1 before opset 28");
    return onnx_give(n, 0, float_mod(n, a, b));
}

/* A count below 0 or beyond the width leaves what extending the sign gives: 0, or -1 of a negative number. */
bool onnx_bit_shift(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), b = onnx_in(n, 1);
    bool left = onnx_attr_is(n, "direction", "LEFT", false);
    if (!left && !onnx_attr_is(n, "direction", "RIGHT", false))
        return onnx_fails(n, KL_ERR_ARGUMENT, "its direction is neither LEFT nor RIGHT");
    kl_dtype d = kl_dtype_of(a);
    kl_tensor zero = onnx_number(n, d, 0), last = onnx_number(n, d, (double)kl_dtype_size(d) * 8 - 1);
    kl_tensor inside = kl_and(kl_ge(b, zero), kl_le(b, last));
    kl_tensor beyond = left ? zero : kl_where(kl_lt(a, zero), kl_shr(a, last), zero);
    return onnx_give(n, 0, kl_where(inside, left ? kl_shl(a, b) : kl_shr(a, b), beyond));
}

bool onnx_sign(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    kl_dtype dtype = kl_dtype_of(a);
    if (is_float_type(dtype))
        return onnx_give(n, 0, kl_sign(a));
    kl_tensor zero = onnx_number(n, dtype, 0);
    return onnx_give(n, 0, kl_sub(kl_cast(kl_gt(a, zero), dtype), kl_cast(kl_lt(a, zero), dtype)));
}

bool onnx_is_inf(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    kl_dtype dtype = kl_dtype_of(a);
    kl_tensor high = kl_eq(a, onnx_number(n, dtype, __builtin_inf()));
    kl_tensor low = kl_eq(a, onnx_number(n, dtype, -__builtin_inf()));
    bool want_high = onnx_attr_int(n, "detect_positive", 1), want_low = onnx_attr_int(n, "detect_negative", 1);
    if (!want_high && !want_low)
        return onnx_give(n, 0, kl_ne(kl_is_nan(a), kl_is_nan(a)));
    return onnx_give(n, 0, want_high && want_low ? kl_or(high, low) : want_high ? high : low);
}

bool onnx_where(struct node *n)
{
    kl_tensor c = onnx_in(n, 0), a = onnx_in(n, 1), b = onnx_in(n, 2);
    return onnx_give(n, 0, kl_where(c, a, b));
}

bool onnx_identity(struct node *n)
{
    const struct value *v = onnx_value(n, 0);
    return v && v->set ? onnx_give_value(n, 0, v) : onnx_fails(n, KL_ERR_ARGUMENT, "it needs an operand");
}

/* ---- activations ---- */

static kl_tensor math_mul_scalar(struct node *n, kl_tensor a, double v)
{
    return v == 1 ? a : kl_mul(a, onnx_number(n, kl_dtype_of(a), v));
}
static kl_tensor math_add_scalar(struct node *n, kl_tensor a, double v)
{
    return v == 0 ? a : kl_add(a, onnx_number(n, kl_dtype_of(a), v));
}
static kl_tensor math_clamp(struct node *n, kl_tensor a, double low, double high)
{
    kl_dtype d = kl_dtype_of(a);
    return kl_minimum(kl_maximum(a, onnx_number(n, d, low)), onnx_number(n, d, high));
}

bool onnx_relu(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    return onnx_give(n, 0, kl_maximum(a, onnx_number(n, kl_dtype_of(a), 0)));
}

bool onnx_leaky_relu(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    kl_tensor a = onnx_widened(n, 0), zero = onnx_number(n, kl_dtype_of(a), 0);
    kl_tensor r = kl_where(kl_lt(a, zero), math_mul_scalar(n, a, onnx_attr_float(n, "alpha", 0.01f)), a);
    return onnx_give_as(n, 0, r, t.dtype);
}

bool onnx_prelu(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), slope = onnx_in(n, 1), zero = onnx_number(n, kl_dtype_of(a), 0);
    struct type x, s;
    if (!onnx_type(n, 0, &x) || !onnx_type(n, 1, &s))
        return false;
    if (n->def->opset < 7 && s.rank == 1 && x.rank > 2) { /* one number for each channel */
        int64_t dims[KL_MAX_RANK] = {s.dims[0], 1, 1, 1, 1, 1, 1, 1};
        slope = kl_reshape(slope, x.rank - 1, dims);
    }
    return onnx_give(n, 0, kl_where(kl_lt(a, zero), kl_mul(a, slope), a));
}

/* gamma (alpha e^x - alpha) up to 0: arg 0 Elu, 1 Selu, 2 Celu (x / alpha) */
bool onnx_elu(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    kl_tensor a = onnx_widened(n, 0), zero = onnx_number(n, kl_dtype_of(a), 0);
    int arg = n->def->op->arg;
    double alpha = onnx_attr_float(n, "alpha", arg == 1 ? 1.6732632423543772 : 1);
    double gamma = arg == 1 ? onnx_attr_float(n, "gamma", 1.0507009873554804) : 1;
    kl_tensor x = kl_minimum(a, zero); /* so that nothing overflows above 0 */
    kl_tensor low = kl_expm1(arg == 2 ? kl_div(x, onnx_number(n, kl_dtype_of(a), alpha)) : x);
    return onnx_give_as(n, 0, math_mul_scalar(n, kl_where(kl_gt(a, zero), a, math_mul_scalar(n, low, alpha)), gamma),
                        t.dtype);
}

static kl_tensor hard_sigmoid(struct node *n, kl_tensor a, double alpha, double beta)
{
    return math_clamp(n, math_add_scalar(n, math_mul_scalar(n, a, alpha), beta), 0, 1);
}

bool onnx_hard_sigmoid(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    double alpha = onnx_attr_float(n, "alpha", 0.2f), beta = onnx_attr_float(n, "beta", 0.5);
    return onnx_give_as(n, 0, hard_sigmoid(n, onnx_widened(n, 0), alpha, beta), t.dtype);
}

bool onnx_hard_swish(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    kl_tensor a = onnx_widened(n, 0);
    return onnx_give_as(n, 0, kl_mul(a, hard_sigmoid(n, a, 1.0 / 6, 0.5)), t.dtype);
}

bool onnx_thresholded_relu(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    kl_tensor a = onnx_widened(n, 0), zero = onnx_number(n, kl_dtype_of(a), 0);
    kl_tensor above = kl_gt(a, onnx_number(n, kl_dtype_of(a), onnx_attr_float(n, "alpha", 1)));
    return onnx_give_as(n, 0, kl_where(above, a, zero), t.dtype);
}

bool onnx_softsign(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    kl_tensor a = onnx_widened(n, 0);
    return onnx_give_as(n, 0, kl_div(a, math_add_scalar(n, kl_abs(a), 1)), t.dtype);
}

bool onnx_shrink(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    double bias = onnx_attr_float(n, "bias", 0), lambda = onnx_attr_float(n, "lambd", 0.5);
    kl_tensor x = onnx_widened(n, 0);
    if (!is_float_type(t.dtype))
        x = kl_cast(x, kl_device_supports(onnx_device(n), KL_F64) ? KL_F64 : KL_F32);
    kl_dtype d = kl_dtype_of(x);
    kl_tensor low = kl_lt(x, onnx_number(n, d, -lambda)), high = kl_gt(x, onnx_number(n, d, lambda));
    kl_tensor inside = kl_where(high, math_add_scalar(n, x, -bias), onnx_number(n, d, 0));
    return onnx_give_as(n, 0, kl_where(low, math_add_scalar(n, x, bias), inside), t.dtype);
}

bool onnx_gelu(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    return onnx_give(n, 0, onnx_attr_is(n, "approximate", "tanh", false) ? kl_gelu(a) : kl_gelu_erf(a));
}

/* a sigmoid(alpha a): arg 0 Swish; 1 SwiGLU, times operand 1; 2 QuickGelu */
bool onnx_swish(struct node *n)
{
    struct type t, s;
    int arg = n->def->op->arg;
    if (!onnx_type(n, 0, &t) || (arg == 1 && !onnx_type(n, 1, &s)))
        return false;
    if (arg == 1 && (s.rank != t.rank || memcmp(s.dims, t.dims, (size_t)t.rank * sizeof *t.dims)))
        return onnx_fails(n, KL_ERR_SHAPE, "the gate and the value differ in their shapes");
    kl_tensor a = onnx_widened(n, 0);
    kl_tensor r = kl_mul(a, kl_sigmoid(math_mul_scalar(n, a, onnx_attr_float(n, "alpha", arg == 2 ? 1.702f : 1))));
    return onnx_give_as(n, 0, arg == 1 ? kl_mul(r, onnx_widened(n, 1)) : r, t.dtype);
}

bool onnx_clip(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    kl_dtype d = kl_dtype_of(a);
    if (n->def->opset < 11) {
        if (onnx_attr(n, "min"))
            a = kl_maximum(a, onnx_number(n, d, onnx_attr_float(n, "min", 0)));
        if (onnx_attr(n, "max"))
            a = kl_minimum(a, onnx_number(n, d, onnx_attr_float(n, "max", 0)));
    } else {
        if (onnx_has(n, 1))
            a = kl_maximum(a, onnx_in(n, 1));
        if (onnx_has(n, 2))
            a = kl_minimum(a, onnx_in(n, 2));
    }
    return onnx_give(n, 0, a);
}

/* ---- along an axis: arg 0 Softmax, 1 LogSoftmax, 2 Hardmax ---- */

static kl_tensor hard_max(struct node *n, kl_tensor a, int axis)
{
    struct type t = onnx_type_of(a);
    kl_tensor at = kl_argmax(a, axis);
    t.dims[axis] = 1;
    at = kl_reshape(at, t.rank, t.dims);
    struct type whole = onnx_type_of(a);
    kl_tensor is = kl_eq(kl_iota(onnx_device(n), kl_dtype_of(at), whole.rank, whole.dims, axis), at);
    return kl_cast(is, t.dtype);
}

bool onnx_softmax(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int axis, at, arg = n->def->op->arg;
    if (!onnx_type(n, 0, &t) ||
        !onnx_axis(n, onnx_attr_int(n, "axis", n->def->opset < 13 ? 1 : -1), t.rank, &axis))
        return false;
    at = axis;
    if (n->def->opset < 13) { /* the operand is taken as a matrix: axes before it are rows, the others columns */
        int64_t dims[2] = {onnx_lengths_product(t.dims, axis),
                           onnx_lengths_product(t.dims + axis, t.rank - axis)};
        if (dims[0] == INT64_MIN || dims[1] == INT64_MIN)
            return false;
        a = kl_reshape(a, 2, dims);
        at = 1;
    }
    kl_tensor r = arg == 0 ? kl_softmax(a, at) : arg == 1 ? kl_log_softmax(a, at) : hard_max(n, a, at);
    return onnx_give(n, 0, n->def->opset < 13 ? kl_reshape(r, t.rank, t.dims) : r);
}
