/* Random numbers, by Kiln's generator, which differs from that of the framework that exported the model. */
#include "frontend/formats/onnx/onnx.h"
#include <string.h>

/* The seed of the node: its attribute, else its position in the graph, so that nodes draw different numbers. */
static uint64_t random_seed_of(const struct node *n)
{
    const Onnx__AttributeProto *a = onnx_attr(n, "seed");
    uint64_t seed = 0;
    if (a && a->has_f)
        memcpy(&seed, &a->f, sizeof a->f);
    return seed << 32 | (uint64_t)n->def->site->line;
}

/* arg 0 RandomUniform, 1 RandomNormal, 2 and 3 the same Like */
bool onnx_random(struct node *n)
{
    int arg = n->def->op->arg;
    struct type t = {.dtype = KL_F32};
    if (arg >= 2 && !onnx_type(n, 0, &t))
        return false;
    if (arg < 2 && (t.rank = onnx_attr_ints(n, "shape", t.dims, KL_MAX_RANK)) < 0)
        return t.rank == -2 ? false : onnx_fails(n, KL_ERR_ARGUMENT, "it has no shape");
    for (int i = 0; arg < 2 && i < t.rank; i++)
        if (t.dims[i] < 0)
            return onnx_fails(n, KL_ERR_SHAPE, "a length of %lld", (long long)t.dims[i]);
    if (onnx_attr_int(n, "dtype", 0))
        t.dtype = onnx_dtype(onnx_attr_int32(n, "dtype", 0));
    if (t.dtype == KL_DTYPE_COUNT)
        return onnx_fails(n, KL_ERR_TYPE, "it has no numbers of this type");
    kl_dtype d = t.dtype == KL_F64 ? KL_F64 : KL_F32;
    bool normal = arg % 2;
    kl_tensor r = normal ? kl_randn(onnx_device(n), d, t.rank, t.dims, random_seed_of(n))
                         : kl_rand(onnx_device(n), d, t.rank, t.dims, random_seed_of(n));
    double low = normal ? onnx_attr_float(n, "mean", 0) : onnx_attr_float(n, "low", 0);
    double by = normal ? onnx_attr_float(n, "scale", 1) : onnx_attr_float(n, "high", 1) - low;
    r = kl_add(kl_mul(r, onnx_number(n, d, by)), onnx_number(n, d, low));
    return onnx_give(n, 0, d == t.dtype ? r : kl_cast(r, t.dtype));
}

bool onnx_bernoulli(struct node *n)
{
    kl_tensor p = onnx_in(n, 0);
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    int32_t to = onnx_attr_int32(n, "dtype", 0);
    kl_tensor r = kl_rand(onnx_device(n), KL_F32, t.rank, t.dims, random_seed_of(n));
    kl_tensor is = kl_lt(r, kl_cast(p, KL_F32));
    if (to && onnx_dtype(to) == KL_DTYPE_COUNT)
        return onnx_fails(n, KL_ERR_TYPE, "it has no numbers of this type");
    return onnx_give(n, 0, kl_cast(is, to ? onnx_dtype(to) : t.dtype));
}
