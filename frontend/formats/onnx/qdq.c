/* Products and convolutions between a DequantizeLinear and a QuantizeLinear, as quantizers write them, in integers: of
 * an operand in bytes with one scale, and of weights in bytes with a scale for all or for each column,
 *
 *   sum (sa (a - p)) (sb (b - q)) = sa sb sum (a - p)(b - q)
 *
 * whose sum is exact, while the floats' is rounded in an order that ONNX leaves open.  The gradient is that of the
 * product of floats, so that it still flows through the quantization to what is in front of it. */
#include "onnx.h"

/* The DequantizeLinear of bytes, with the scale in f32 for the whole tensor or for each slice of an axis, that gives
 * operand i; NULL: there is none. */
static struct node *qdq_maker(struct node *n, uint32_t i)
{
    const struct value *v = onnx_value(n, i);
    struct node *d = v && v->set ? v->maker : NULL;
    struct type q, s, z;
    if (!d || !d->def->op || d->def->op->fn != onnx_dequantize_linear || onnx_attr_int(d, "block_size", 0) ||
        onnx_attr(d, "output_dtype") || onnx_is_widened(onnx_element(d, 0)) || !onnx_has(d, 1))
        return NULL;
    bool fits = onnx_type(d, 0, &q) && onnx_type(d, 1, &s) && (q.dtype == KL_U8 || q.dtype == KL_I8) &&
                s.dtype == KL_F32 && s.rank <= 1;
    if (fits && onnx_has(d, 2))
        fits = onnx_type(d, 2, &z) && z.rank <= 1 && z.dtype == q.dtype;
    return fits ? d : NULL;
}

/* The number of elements of operand i, a scale or zero point; 1: it has none. */
static int64_t qdq_count(struct node *d, uint32_t i)
{
    struct type t;
    return !onnx_has(d, i) ? 1 : !onnx_type(d, i, &t) ? -1 : t.rank == 1 ? t.dims[0] : 1;
}

/* ---- matrices ---- */

struct qdq { struct node *a, *b; bool down; kl_tensor floats; }; /* down: b's rows are the columns */

/* Operand i of d in the last axis of a product: one number or [N]. */
static kl_tensor qdq_spread(struct node *d, uint32_t i, kl_dtype dtype)
{
    int64_t count = qdq_count(d, i);
    return kl_cast(kl_reshape(onnx_in(d, i), count == 1 ? 0 : 1, &count), dtype);
}

/* The floats of node d, made where a gradient needs them: else a model's program would keep them beside the bytes. */
static kl_tensor qdq_floats(struct node *d)
{
    struct type t;
    if (!onnx_type(d, 0, &t))
        return kl_none;
    kl_tensor zero = onnx_has(d, 2) ? qdq_spread(d, 2, t.dtype) : kl_none;
    return kl_dequantize(onnx_in(d, 0), qdq_spread(d, 1, KL_F32), zero, onnx_attr_int32(d, "axis", 1));
}

/* Part 0 of the weights' node: the sums of their columns less the zero point, [N]; of part 1 down. */
static kl_tensor qdq_columns(struct node *b, uint32_t part)
{
    bool down = part == 1;
    return kl_sum(onnx_less_zero(b, 0, 2, down ? 0 : 1), 1, (int[]){down ? 1 : 0}, false);
}

static kl_status product_forward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct qdq *x = ctx;
    (void)in, (void)nin, (void)nout;
    kl_tensor a = kl_cast(onnx_in(x->a, 0), KL_I32), b = kl_cast(onnx_in(x->b, 0), KL_I32);
    kl_tensor p = onnx_zero_point(x->a, 0, 2, 0), q = onnx_zero_point(x->b, 0, 2, x->down ? 0 : 1);
    kl_tensor y = kl_matmul(a, x->down ? kl_transpose(b, 0, 1) : b);
    if (p.id)
        y = kl_sub(y, kl_mul(kl_reshape(p, 0, NULL),
                             once_part(x->b, x->down, (uint32_t[]){0, 2, NO_PLACE}, qdq_columns)));
    if (q.id)
        y = kl_sub(y, kl_mul(qdq_spread(x->b, 2, KL_I32), kl_sum(a, 1, (int[]){-1}, true)));
    out[0] = kl_mul(kl_cast(y, KL_F32), kl_mul(qdq_spread(x->a, 1, KL_F32), qdq_spread(x->b, 1, KL_F32)));
    return KL_OK;
}

/* Takes the operand, the product and its gradient. */
static kl_status product_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct qdq *x = ctx;
    (void)nin, (void)nout;
    kl_tensor weights = qdq_floats(x->b);
    out[0] = kl_matmul(in[2], x->down ? weights : kl_transpose(weights, 0, 1));
    return KL_OK;
}

bool onnx_qdq_product(struct node *n, bool down, kl_tensor *y)
{
    struct qdq x = {.down = down};
    struct type ta, tb;
    if (n->run->folding || n->run->m->suspended || !(x.a = qdq_maker(n, 0)) || !(x.b = qdq_maker(n, 1)))
        return false;
    const struct value *b = onnx_value(n, 1);
    if (!b->steady || !onnx_type(n, 0, &ta) || !onnx_type(n, 1, &tb) || ta.rank < 2 || tb.rank != 2 ||
        qdq_count(x.a, 1) != 1 || qdq_count(x.a, 2) != 1)
        return false;
    int64_t columns = tb.dims[down ? 0 : 1], scales = qdq_count(x.b, 1), zeros = qdq_count(x.b, 2);
    int axis = -1;
    if ((scales != 1 || zeros != 1) && (!onnx_axis(x.b, onnx_attr_int(x.b, "axis", 1), 2, &axis) || axis != !down))
        return false;
    if ((scales != 1 && scales != columns) || (zeros != 1 && zeros != scales))
        return false;
    x.floats = onnx_in(n, 0);
    return kl_custom_grad(product_forward, product_backward, &x, 1, &x.floats, 1, y) == KL_OK;
}

/* ---- convolutions ---- */

struct qdq_conv {
    struct node *a, *b;
    const struct type *f;
    const struct onnx_windows *s;
    kl_tensor floats;
};

static kl_status conv_forward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct qdq_conv *x = ctx;
    const struct onnx_conv_operands o = {x->a, x->b, 0, 2, 0, 2};
    int64_t dims[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    (void)in, (void)nin, (void)nout;
    kl_tensor y = onnx_bytes_conv(&o, x->f, x->s), scale = qdq_spread(x->b, 1, KL_F32);
    dims[0] = qdq_count(x->b, 1);
    scale = kl_mul(qdq_spread(x->a, 1, KL_F32), kl_reshape(scale, dims[0] == 1 ? 0 : x->s->n + 1, dims));
    out[0] = kl_mul(kl_cast(y, KL_F32), scale);
    return KL_OK;
}

/* Takes the operand, the convolution and its gradient. */
static kl_status conv_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct qdq_conv *x = ctx;
    const struct onnx_windows *s = x->s;
    (void)nin, (void)nout;
    int64_t high[WINDOW_AXES];
    for (int k = 0; k < s->n; k++) { /* less the padded elements that no window reaches */
        int64_t reach = (s->size[k] - 1) * s->dilation[k] + 1 + (s->out[k] - 1) * s->stride[k];
        high[k] = reach - s->in[k] - s->low[k];
    }
    out[0] = kl_conv_transpose(in[2], qdq_floats(x->b), kl_none, s->stride, s->low, high, s->dilation, s->groups);
    return KL_OK;
}

bool onnx_qdq_conv(struct node *n, const struct type *f, const struct onnx_windows *s, kl_tensor *y)
{
    struct qdq_conv x = {.f = f, .s = s};
    if (n->run->folding || n->run->m->suspended || !(x.a = qdq_maker(n, 0)) || !(x.b = qdq_maker(n, 1)))
        return false;
    int64_t scales = qdq_count(x.b, 1);
    int axis = 0;
    const struct onnx_conv_operands o = {x.a, x.b, 0, 2, 0, 2};
    if (!onnx_value(n, 1)->steady || qdq_count(x.a, 1) != 1 || !onnx_bytes_conv_fits(&o, f, s))
        return false;
    for (int k = 0; k < s->n; k++)
        if (s->in[k] < 0) /* conv_backward computes with the lengths */
            return false;
    if (scales != 1 && (scales != f->dims[0] || !onnx_axis(x.b, onnx_attr_int(x.b, "axis", 1), f->rank, &axis) || axis))
        return false;
    x.floats = onnx_in(n, 0);
    return kl_custom_grad(conv_forward, conv_backward, &x, 1, &x.floats, 1, y) == KL_OK;
}
