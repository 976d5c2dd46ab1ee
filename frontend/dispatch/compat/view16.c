/* The 16-bit view of key sets, with eleven keys and five user keys, and its priority order. */
#include "frontend/dispatch/dispatch.h"
#include <kiln/compat.h>

static const uint8_t key_of_16[16] = {
    [KL_KEY16_Cpu] = KL_KEY_CPU, [KL_KEY16_Cuda] = KL_KEY_CUDA, [KL_KEY16_Meta] = KL_KEY_Meta,
    [KL_KEY16_Sparse] = KL_KEY_Sparse, [KL_KEY16_Quantized] = KL_KEY_Quantized, [KL_KEY16_Nested] = KL_KEY_NestedTensor,
    [KL_KEY16_Autocast] = KL_KEY_Autocast, [KL_KEY16_Autograd] = KL_KEY_AutogradOther, [KL_KEY16_Vmap] = KL_KEY_Batched,
    [KL_KEY16_Profiler] = KL_KEY_Profiler, [KL_KEY16_Tracer] = KL_KEY_TracerOuter,
    [11] = KL_KEY_User1, [12] = KL_KEY_User2, [13] = KL_KEY_User3, [14] = KL_KEY_User4, [15] = KL_KEY_User5};

static uint64_t own_of_16(unsigned i)
{
    return key_own((kl_key)key_of_16[i]);
}

kl_keyset kl_keyset_from16(uint16_t bits)
{
    kl_keyset set = {0};
    for (unsigned i = 0; i < 16; i++)
        if (bits >> i & 1)
            set.bits |= own_of_16(i);
    return set;
}

bool kl_keyset_to16(kl_keyset set, uint16_t *bits)
{
    *bits = 0;
    for (unsigned i = 0; i < 16; i++)
        if (set.bits & own_of_16(i))
            *bits |= (uint16_t)(1u << i);
    return kl_keyset_from16(*bits).bits == (set.bits & ~ORDER_16);
}

/* ---- the order of the 16-bit view ---- */

/* Lowest first.  Layers without a number in the view keep their position relative to their neighbours. */
static const uint8_t order_16[LAYER_COUNT - 1] = {
    LAYER_Meta, LAYER_Sparse, LAYER_Quantized, LAYER_Nested, LAYER_Complex, LAYER_Mkldnn, LAYER_CustomRNG,
        LAYER_BackendSelect,
    LAYER_Named, LAYER_Autocast, LAYER_Autograd, LAYER_Tracer, LAYER_Batched, LAYER_VmapMode, LAYER_GenericWrapper,
    LAYER_GenericMode, LAYER_Profiler, LAYER_TracerOuter, LAYER_User1, LAYER_User2, LAYER_User3, LAYER_User4,
        LAYER_User5};

unsigned highest_16(uint64_t layers)
{
    unsigned i = LAYER_COUNT - 1;
    while (--i > 0 && !(layers & LAYER_BIT(order_16[i])))
        ;
    return DEV_BITS + order_16[i] - 1u;
}

uint64_t below_16(uint64_t bits, uint64_t own)
{
    uint64_t below = DEV_MASK | ORDER_16;
    if (!own)
        return bits;
    if (own & DEV_MASK)
        return bits & ((own - 1) | ORDER_16);
    for (unsigned i = 0; LAYER_BIT(order_16[i]) != own; i++)
        below |= LAYER_BIT(order_16[i]);
    return bits & below;
}

kl_keyset kl_keyset_order16(kl_keyset set) { return (kl_keyset){set.bits | ORDER_16}; }
