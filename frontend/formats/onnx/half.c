/* Half floats in operators that are composed of several ops: computed in f32 and rounded once, as each of Kiln's own
 * functions does (kiln/types.h).  An operator takes such operands by onnx_widened and gives its results by
 * onnx_give_as. */
#include "onnx.h"

kl_dtype onnx_compute_dtype(kl_dtype d) { return d == KL_F16 || d == KL_BF16 ? KL_F32 : d; }

kl_tensor onnx_widened(struct node *n, uint32_t i)
{
    kl_tensor a = onnx_in(n, i);
    kl_dtype d = a.id ? kl_dtype_of(a) : KL_DTYPE_COUNT;
    return d == KL_F16 || d == KL_BF16 ? kl_cast(a, KL_F32) : a;
}

bool onnx_give_as(struct node *n, uint32_t i, kl_tensor t, kl_dtype d)
{
    return onnx_give(n, i, t.id && kl_dtype_of(t) != d ? kl_cast(t, d) : t);
}
