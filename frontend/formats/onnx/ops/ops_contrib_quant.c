/* com.microsoft: operators of quantized numbers, and products with weights in blocks of a few bits. */
#include "frontend/formats/onnx/onnx.h"

/* Operand i, one number or one for each column of the last axis, as f32; kl_none: it has none. */
static kl_tensor scale_of(struct node *n, uint32_t i)
{
    struct type t;
    if (!onnx_has(n, i) || !onnx_type(n, i, &t))
        return kl_none;
    kl_tensor s = kl_cast(onnx_in(n, i), KL_F32);
    return t.rank == 1 && t.dims[0] == 1 ? kl_reshape(s, 0, NULL) : s;
}

/* (operand - zero point) * scale in f32, of operands i, scale and zero. */
static kl_tensor dequantize_operand(struct node *n, uint32_t i, uint32_t scale, uint32_t zero)
{
    kl_tensor q = kl_cast(onnx_in(n, i), KL_F32), z = scale_of(n, zero), s = scale_of(n, scale);
    q = z.id ? kl_sub(q, z) : q;
    return s.id ? kl_mul(q, s) : q;
}

/* Result 0: y quantized by operands scale and zero, in the dtype of operand 0. */
static bool give_in_steps(struct node *n, kl_tensor y, uint32_t scale, uint32_t zero)
{
    struct type t;
    uint32_t first = n->def->op->fn == onnx_qlinear_concat ? 2 : 0;
    if (!onnx_type(n, first, &t))
        return false;
    if (t.dtype != KL_U8 && t.dtype != KL_I8)
        return onnx_fails(n, KL_ERR_TYPE, "an operand of %s", kl_dtype_name(t.dtype));
    kl_tensor z = onnx_has(n, zero) ? kl_reshape(onnx_in(n, zero), 0, NULL) : kl_none;
    return onnx_give(n, 0, kl_quantize(y, kl_reshape(onnx_in(n, scale), 0, NULL), z, t.dtype, 0));
}

/* arg 0 the sum, 1 the product, of operands 0 to 2 and 3 to 5. */
bool onnx_qlinear_binary(struct node *n)
{
    kl_tensor a = dequantize_operand(n, 0, 1, 2), b = dequantize_operand(n, 3, 4, 5);
    return give_in_steps(n, n->def->op->arg ? kl_mul(a, b) : kl_add(a, b), 6, 7);
}

/* arg 0 Sigmoid, 1 LeakyRelu */
bool onnx_qlinear_unary(struct node *n)
{
    kl_tensor x = dequantize_operand(n, 0, 1, 2), zero = onnx_number(n, KL_F32, 0);
    kl_tensor alpha = onnx_number(n, KL_F32, onnx_attr_float(n, "alpha", 0.01f));
    return give_in_steps(n, n->def->op->arg ? kl_where(kl_lt(x, zero), kl_mul(x, alpha), x) : kl_sigmoid(x), 3, 4);
}

bool onnx_qlinear_softmax(struct node *n)
{
    struct type t;
    int axis;
    if (!onnx_type(n, 0, &t) || !onnx_axis(n, onnx_attr_int(n, "axis", -1), t.rank, &axis))
        return false;
    if (onnx_attr_int(n, "opset", 13) < 13 && axis != t.rank - 1)
        return onnx_fails(n, KL_ERR_ARGUMENT, "axis %d of an opset before 13, which flattens what follows", axis);
    return give_in_steps(n, kl_softmax(dequantize_operand(n, 0, 1, 2), axis), 3, 4);
}

/* Operands: the result's scale and zero point, then three for each part. */
bool onnx_qlinear_concat(struct node *n)
{
    enum { PARTS = 256 };
    kl_tensor part[PARTS];
    struct type t;
    int axis;
    uint32_t count = onnx_nin(n) < 2 ? 0 : (onnx_nin(n) - 2) / 3;
    if (!count || count > PARTS || onnx_nin(n) != 2 + 3 * count)
        return onnx_fails(n, KL_ERR_ARGUMENT, "%u operands, which are not 2 and 3 for each of up to %d parts",
                          onnx_nin(n), PARTS);
    if (!onnx_type(n, 2, &t) || !onnx_axis(n, onnx_attr_int(n, "axis", 0), t.rank, &axis))
        return false;
    for (uint32_t i = 0; i < count; i++)
        part[i] = dequantize_operand(n, 2 + 3 * i, 3 + 3 * i, 4 + 3 * i);
    return give_in_steps(n, kl_concat((int)count, part, axis), 0, 1);
}

bool onnx_qlinear_average_pool(struct node *n)
{
    if (onnx_attr_int(n, "channels_last", 0))
        return onnx_fails(n, KL_ERR_ARGUMENT, "channels_last is not supported");
    kl_tensor y = onnx_average_pool_of(n, dequantize_operand(n, 0, 1, 2));
    return y.id && give_in_steps(n, y, 3, 4);
}

bool onnx_qlinear_global_average_pool(struct node *n)
{
    struct type t;
    int axes[KL_MAX_RANK], count = 0;
    if (!onnx_type(n, 0, &t))
        return false;
    bool last = onnx_attr_int(n, "channels_last", 0);
    for (int i = 1; i < t.rank; i++)
        if (last ? i < t.rank - 1 : i > 1)
            axes[count++] = i;
    return give_in_steps(n, kl_mean(dequantize_operand(n, 0, 1, 2), count, axes, true), 3, 4);
}

/* ---- products ---- */

/* Sums y of products in f32: times both scales, plus a bias.  Scales of b may be one for each column. */
static kl_tensor product_of_steps(struct node *n, kl_tensor y, kl_tensor sa, kl_tensor sb, uint32_t bias)
{
    y = kl_mul(kl_cast(y, KL_F32), kl_mul(sa, sb));
    return onnx_has(n, bias) ? kl_add(y, kl_cast(onnx_in(n, bias), KL_F32)) : y;
}

bool onnx_matmul_integer_to_float(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 2, &t))
        return false;
    kl_tensor y = product_of_steps(n, onnx_integer_matmul(n), scale_of(n, 2), scale_of(n, 3), 6);
    return onnx_give_as(n, 0, y, t.dtype);
}

/* a is quantized to u8 by its own range, as DynamicQuantizeLinear does. */
bool onnx_dynamic_quantize_matmul(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    kl_tensor x = kl_cast(onnx_in(n, 0), KL_F32), low, point, scale = onnx_range_scale(n, x, &low);
    scale = kl_where(kl_eq(scale, onnx_number(n, KL_F32, 0)), onnx_number(n, KL_F32, 1), scale);
    kl_tensor a = onnx_range_quantize(n, x, low, scale, &point);
    kl_tensor y = product_of_steps(n, onnx_integer_product(n, a, kl_cast(point, KL_I32)), scale, scale_of(n, 2), 4);
    return onnx_give_as(n, 0, y, t.dtype);
}

/* ---- blocks of a few bits ---- */

/* Bytes [.., n] as u8 [.., n * 8 / bits], the lowest bits first. */
static kl_tensor unpack_bits(struct node *n, kl_tensor bytes, int64_t bits)
{
    struct type t = onnx_type_of(bytes);
    int64_t each = 8 / bits;
    kl_tensor part[4], mask = onnx_number(n, KL_U8, (double)((1 << bits) - 1));
    if (each == 1 || t.rank < 1)
        return bytes;
    for (int64_t i = 0; i < each; i++)
        part[i] = kl_and(kl_shr(bytes, onnx_number(n, KL_U8, (double)(i * bits))), mask);
    t.dims[t.rank - 1] = sat_mul(t.dims[t.rank - 1], each);
    return kl_reshape(kl_stack((int)each, part, -1), t.rank, t.dims);
}

/* The zero points of blocks, operand i: floats, or bytes with several in each of `rows` rows; f32 [rows, blocks]. */
static kl_tensor block_zeros(struct node *n, uint32_t i, int64_t bits, int64_t rows, int64_t blocks)
{
    struct type t;
    if (!onnx_has(n, i))
        return onnx_number(n, KL_F32, (double)(1 << (bits - 1)));
    if (!onnx_type(n, i, &t))
        return kl_none;
    kl_tensor z = onnx_in(n, i);
    if (onnx_is_float(t.dtype))
        return kl_cast(kl_reshape(z, 2, (int64_t[]){rows, blocks}), KL_F32);
    int64_t bytes = (blocks * bits + 7) / 8;
    if (t.dtype != KL_U8 || kl_numel(z) != sat_mul(rows, bytes))
        return onnx_fails(n, KL_ERR_SHAPE, "%lld zero points of %s for %lld rows of %lld blocks",
                          (long long)kl_numel(z), kl_dtype_name(t.dtype), (long long)rows, (long long)blocks), kl_none;
    z = unpack_bits(n, kl_reshape(z, 2, (int64_t[]){rows, bytes}), bits);
    return kl_cast(kl_narrow(z, 1, 0, blocks), KL_F32);
}

/* The zero points of blocks as u8 [rows, blocks], of those that block_zeros has checked to be bytes or not given. */
static kl_tensor block_zero_bytes(struct node *n, uint32_t i, int64_t bits, int64_t rows, int64_t blocks)
{
    int64_t dims[2] = {rows, blocks};
    if (!onnx_has(n, i))
        return kl_expand(onnx_number(n, KL_U8, (double)(1 << (bits - 1))), 2, dims);
    int64_t bytes = (blocks * bits + 7) / 8;
    return kl_narrow(unpack_bits(n, kl_reshape(onnx_in(n, i), 2, (int64_t[]){rows, bytes}), bits), 1, 0, blocks);
}

/* Is the product one of integers, of activations rounded to 8 bits in the weights' blocks?  accuracy_level 4 allows it.
 * Products of integers have lengths that are numbers. */
static bool is_integer_nbits(struct node *n, const struct type *t, int64_t bits, int64_t K, int64_t size)
{
    struct type z;
    bool numbers = t->rank > 0 && t->dtype == KL_F32 && K % size == 0;
    for (int i = 0; i < t->rank; i++)
        numbers &= t->dims[i] >= 0;
    return numbers && onnx_attr_int(n, "accuracy_level", 0) == 4 && (bits == 4 || bits == 8) &&
           (!onnx_has(n, 3) || (onnx_type(n, 3, &z) && z.dtype == KL_U8));
}

static kl_tensor integer_nbits(struct node *n, const struct type *t, int64_t bits, int64_t N, int64_t size)
{
    int64_t K = t->dims[t->rank - 1], rows = 1, dims[KL_MAX_RANK];
    for (int i = 0; i + 1 < t->rank; i++)
        rows *= dims[i] = t->dims[i];
    dims[t->rank - 1] = N;
    const kl_qscheme of_a = {.type = KL_Q_I8, .axis = 1, .block = size};
    const kl_qscheme of_b = {.type = bits == 4 ? KL_Q_U4 : KL_Q_U8, .axis = 1, .block = size};
    kl_tensor bytes = kl_reshape(onnx_in(n, 1), 2, (int64_t[]){N, K * bits / 8});
    kl_tensor scale = kl_reshape(kl_cast(onnx_in(n, 2), KL_F32), 2, (int64_t[]){N, K / size});
    kl_tensor w = kl_quantized(bytes, of_b, scale, block_zero_bytes(n, 3, bits, N, K / size));
    kl_tensor a = kl_to_quantized(kl_reshape(onnx_in(n, 0), 2, (int64_t[]){rows, K}), of_a, kl_none, kl_none);
    return kl_reshape(kl_matmul(a, kl_transpose(w, 0, 1)), t->rank, dims);
}

/* Operands: a [.., K], bytes [N, blocks, bytes of a block], scales [N, blocks], zero points, -, bias [N]. */
bool onnx_matmul_nbits(struct node *n)
{
    struct type t, b;
    int64_t K = onnx_attr_int(n, "K", 0), N = onnx_attr_int(n, "N", 0), bits = onnx_attr_int(n, "bits", 4);
    int64_t size = onnx_attr_int(n, "block_size", 0);
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &b))
        return false;
    if ((bits != 2 && bits != 4 && bits != 8) || size < 16 || (size & (size - 1)) || size > 1 << 20 || K < 1 || N < 1)
        return onnx_fails(n, KL_ERR_ARGUMENT, "K %lld, N %lld, %lld bits, blocks of %lld", (long long)K, (long long)N,
                          (long long)bits, (long long)size);
    int64_t blocks = K / size + (K % size != 0), bytes = size * bits / 8;
    if (b.dtype != KL_U8 || kl_numel(onnx_in(n, 1)) != sat_mul(N, sat_mul(blocks, bytes)))
        return onnx_fails(n, KL_ERR_SHAPE, "weights of %s with %lld elements, not %lld rows of %lld blocks of %lld "
                          "bytes",
                          kl_dtype_name(b.dtype), (long long)kl_numel(onnx_in(n, 1)), (long long)N, (long long)blocks,
                          (long long)bytes);
    if (onnx_has(n, 4))
        return onnx_fails(n, KL_ERR_ARGUMENT, "g_idx is not supported");
    kl_tensor zero = block_zeros(n, 3, bits, N, blocks);
    if (!zero.id)
        return false;
    int64_t by_block[3] = {N, blocks, 1};
    kl_tensor q = unpack_bits(n, kl_reshape(onnx_in(n, 1), 3, (int64_t[]){N, blocks, bytes}), bits);
    kl_tensor scale = kl_reshape(kl_cast(onnx_in(n, 2), KL_F32), 3, by_block);
    zero = onnx_has(n, 3) ? kl_reshape(zero, 3, by_block) : zero;
    kl_tensor w = kl_mul(kl_sub(kl_cast(q, KL_F32), zero), scale);
    w = kl_narrow(kl_reshape(w, 2, (int64_t[]){N, blocks * size}), 1, 0, K);
    kl_tensor y = is_integer_nbits(n, &t, bits, K, size) && t.dims[t.rank - 1] == K
        ? integer_nbits(n, &t, bits, N, size)
        : kl_matmul(onnx_in(n, 0), kl_transpose(kl_dtype_of(w) == t.dtype ? w : kl_cast(w, t.dtype), 0, 1));
    if (onnx_has(n, 5))
        y = kl_add(y, onnx_in(n, 5));
    return onnx_give(n, 0, y);
}

/* Rows of a table in blocks along its last axis: operands table, indices, scales, zero points. */
bool onnx_gather_block_quantized(struct node *n)
{
    struct type t, s;
    int64_t size = onnx_attr_int(n, "block_size", 128), bits = onnx_attr_int(n, "bits", 4);
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 2, &s))
        return false;
    int32_t element = onnx_element(n, 0);
    bool packed = !onnx_is_widened(element) && bits < 8;
    int gather, along;
    if (!onnx_axis(n, onnx_attr_int(n, "gather_axis", 0), t.rank, &gather) ||
        !onnx_axis(n, onnx_attr_int(n, "quantize_axis", 1), t.rank, &along))
        return false;
    if (t.rank < 2 || gather != 0 || along != t.rank - 1 || size < 1 || (bits != 4 && bits != 8) || s.rank != t.rank)
        return onnx_fails(n, KL_ERR_ARGUMENT, "only rows (axis 0) of blocks of 4 or 8 bits along the last axis are "
                          "supported");
    kl_tensor index = onnx_in(n, 1), q = kl_take(onnx_in(n, 0), 0, index), scale = kl_take(onnx_in(n, 2), 0, index);
    q = kl_cast(packed ? unpack_bits(n, q, bits) : q, KL_F32);
    struct type r = onnx_type_of(scale), c = onnx_type_of(q);
    if (r.rank < 1 || c.rank < 1)
        return false;
    int64_t blocks = r.dims[r.rank - 1], columns = c.dims[c.rank - 1];
    kl_tensor wide = kl_narrow(kl_repeat(kl_cast(scale, KL_F32), r.rank - 1, size), r.rank - 1, 0, columns);
    bool is_signed = t.dtype == KL_I8;
    kl_tensor zero = onnx_number(n, KL_F32, is_signed ? 0 : (double)(1 << (bits - 1)));
    if (onnx_has(n, 3)) {
        zero = kl_take(onnx_in(n, 3), 0, index);
        zero = packed ? kl_narrow(unpack_bits(n, zero, bits), r.rank - 1, 0, blocks) : zero;
        zero = kl_narrow(kl_repeat(kl_cast(zero, KL_F32), r.rank - 1, size), r.rank - 1, 0, columns);
    }
    return onnx_give_as(n, 0, kl_mul(kl_sub(q, zero), wide), s.dtype);
}
