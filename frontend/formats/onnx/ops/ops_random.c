/* Random numbers, by Kiln's generator, which differs from that of the framework that exported the model.
 *
 * Each operator of a call draws other numbers, each round of a loop and each call of a function, too, and each call of
 * the model: its seed is folded from the call's and the operator's number in the call.  A model that is loaded again
 * draws the same numbers again. */
#include "frontend/formats/onnx/onnx.h"
#include <string.h>

/* ---- seeds ---- */

/* Spreads the bits of a number over all of the result (the finalizer of splitmix64, Steele et al. 2014). */
static uint64_t splitmix64_finalize(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* The seed of the call, or of the round that is recorded: [] u64. */
static kl_tensor seed_of_run(struct node *n)
{
    struct run *r = n->run;
    if (r->folding && r->rounds)
        return onnx_fails(n, KL_ERR_TRACE, "random numbers of a loop's rounds are not known while recording"), kl_none;
    if (r->folding)
        return kl_random_seed(onnx_device(n), splitmix64_finalize(r->m->calls));
    if (!r->seed.id) {
        r->seed = kl_random_seed(onnx_device(n), splitmix64_finalize(r->m->calls));
        kl_set_name(r->seed, "random_seed"); /* a frozen step or a compiled program gets another one by this name */
    }
    return r->seed;
}

kl_tensor onnx_random_seed(struct node *n)
{
    const Onnx__AttributeProto *a = onnx_attr(n, "seed");
    uint32_t own = 0;
    if (a && a->has_f)
        memcpy(&own, &a->f, sizeof own);
    if (a && a->has_i) /* Dropout's is an integer */
        own = (uint32_t)a->i;
    n->draw = n->draw ? n->draw : ++n->run->draws;
    double which = (double)(splitmix64_finalize((uint64_t)own << 32 | n->draw) >> 12); /* a whole number below 2^52 */
    kl_tensor seed = seed_of_run(n);
    return seed.id ? kl_random_fold_in(seed, onnx_number(n, KL_I64, which)) : kl_none;
}

bool onnx_draws(const struct graph_def *g)
{
    for (uint32_t i = 0; i < g->nnode; i++) {
        const struct node_def *d = &g->node[i];
        node_fn *fn = d->op ? d->op->fn : NULL;
        if (fn == onnx_random || fn == onnx_bernoulli || fn == onnx_dropout || (d->function && onnx_draws(d->function)))
            return true;
        for (size_t k = 0; d->sub && k < d->proto->n_attribute; k++)
            if (d->sub[k] && onnx_draws(d->sub[k]))
                return true;
    }
    return false;
}

kl_tensor onnx_round_begin(struct node *n, const struct graph_def *g, kl_tensor round)
{
    kl_tensor around = n->run->seed;
    n->run->rounds++;
    if (around.id && onnx_draws(g))
        n->run->seed = kl_random_fold_in(around, round);
    return around;
}

void onnx_round_end(struct node *n, kl_tensor around)
{
    n->run->rounds--;
    n->run->seed = around;
}

void onnx_region_seed(struct node *n, const struct graph_def *g)
{
    if (!n->run->folding && onnx_draws(g))
        seed_of_run(n);
}

/* ---- operators ---- */

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
    kl_tensor seed = onnx_random_seed(n);
    kl_tensor r = normal ? kl_randn_seeded(seed, d, t.rank, t.dims) : kl_rand_seeded(seed, d, t.rank, t.dims);
    double low = normal ? onnx_attr_float(n, "mean", 0) : onnx_attr_float(n, "low", 0);
    double by = normal ? onnx_attr_float(n, "scale", 1) : onnx_attr_float(n, "high", 1) - low;
    r = kl_add(kl_mul(r, onnx_number(n, d, by)), onnx_number(n, d, low));
    return onnx_give_as(n, 0, r, t.dtype);
}

bool onnx_bernoulli(struct node *n)
{
    kl_tensor p = onnx_in(n, 0);
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    int32_t to = onnx_attr_int32(n, "dtype", 0);
    kl_tensor r = kl_rand_seeded(onnx_random_seed(n), KL_F32, t.rank, t.dims);
    kl_tensor is = kl_lt(r, kl_cast(p, KL_F32));
    if (to && onnx_dtype(to) == KL_DTYPE_COUNT)
        return onnx_fails(n, KL_ERR_TYPE, "it has no numbers of this type");
    return onnx_give(n, 0, kl_cast(is, to ? onnx_dtype(to) : t.dtype));
}
