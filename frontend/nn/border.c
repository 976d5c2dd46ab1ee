/* Tensors extended beyond their borders by their own elements: a gather with an index computed from the position. */
#include "frontend/nn/compose.h"

/* The source index of each element of an axis of `length` with low elements before and high after. */
static kl_tensor border_index(kl_device device, int64_t length, int64_t low, int64_t high, kl_border border)
{
    kl_tensor i = kl_arange(device, KL_I64, low + length + high);
    i = kl_sub(i, number(i, KL_I64, (double)low));
    if (border == KL_BORDER_EDGE || length == 1) /* gather clamps the index */
        return i;
    if (border == KL_BORDER_WRAP)
        return kl_mod(i, number(i, KL_I64, (double)length));
    /* the period of reflection; a repeated border counts twice */
    int64_t period = border == KL_BORDER_REFLECT ? 2 * (length - 1) : 2 * length;
    i = kl_mod(i, number(i, KL_I64, (double)period));
    return kl_minimum(i, kl_sub(number(i, KL_I64, (double)(border == KL_BORDER_REFLECT ? period : period - 1)), i));
}

kl_tensor kl_pad_border(kl_tensor a, const int64_t *low, const int64_t *high, kl_border border)
{
    static const char op[] = "pad_border";
    struct thread *t = thread_self();
    struct view v;
    char text[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", a, &v))
        return op_failed();
    if ((unsigned)border > KL_BORDER_SYMMETRIC)
        return refuse(t, KL_ERR_ARGUMENT, "%s: there is no border %d", op, (int)border);
    struct shape out = v.shape;
    int64_t start[KL_MAX_RANK], stop[KL_MAX_RANK];
    for (uint32_t i = 0; i < v.shape.rank; i++) {
        int64_t l = low ? low[i] : 0, h = high ? high[i] : 0, d = v.shape.dim[i];
        start[i] = 0;
        stop[i] = d;
        if (!l && !h) /* the length may have symbols */
            continue;
        bool fits = l >= -d && h >= -d && !__builtin_add_overflow(d, l, &out.dim[i]) &&
                    !__builtin_add_overflow(out.dim[i], h, &out.dim[i]);
        if (fits) {
            start[i] = l < 0 ? -l : 0;
            stop[i] = h < 0 ? d + h : d;
        }
        if (!fits || stop[i] < start[i] || (stop[i] == start[i] && (l > 0 || h > 0)))
            return refuse(t, KL_ERR_SHAPE, "%s: axis %u of %s cannot be padded by %" PRId64 " and %" PRId64, op,
                          i, shape_text(&v.shape, text, sizeof text), l, h);
    }
    if (!shape_of(t, op, (int)out.rank, out.dim, &out) || !(t = checked_begin(op)))
        return op_failed();
    a = kl_slice(a, start, stop, NULL);
    for (uint32_t i = 0; i < v.shape.rank; i++) {
        int64_t l = low && low[i] > 0 ? low[i] : 0, h = high && high[i] > 0 ? high[i] : 0;
        if (l || h)
            a = kl_take(a, (int)i, border_index(v.device, stop[i] - start[i], l, h, border));
    }
    return compose_end(t, a);
}
