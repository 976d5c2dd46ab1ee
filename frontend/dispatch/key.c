/* Keys and sets of them: names, components, and the view with eleven keys. */
#include "dispatch.h"
#include <ctype.h>
#include <string.h>

const struct key_info key_info[KL_KEY_COUNT] = {
#define X(name, device, layer) {#name, DEV_##device, LAYER_##layer},
    KL_KEYS(X)
#undef X
};
static const char *const alias_name[] = {"Autograd", "Math", "DefaultBackend"};

uint8_t key_at[LAYER_COUNT][32];

void keys_start(void)
{
    for (unsigned layer = 0; layer < LAYER_COUNT; layer++) {
        uint8_t general = 0;
        for (unsigned k = KL_KEY_COUNT; k-- > 0;)
            if (key_info[k].layer == layer && key_info[k].device == DEV_None)
                general = (uint8_t)k; /* the lowest one: AutogradOther, not AutogradNestedTensor */
        for (unsigned dev = 0; dev < DEV_SLOTS; dev++)
            key_at[layer][dev] = general;
    }
    for (unsigned k = 0; k < KL_KEY_COUNT; k++)
        if (key_info[k].device != DEV_None)
            key_at[key_info[k].layer][key_info[k].device] = (uint8_t)k;
    key_at[LAYER_Mkldnn][DEV_None] = KL_KEY_MkldnnCPU;
}

/* ---- keys ---- */

const char *kl_key_name(kl_key key)
{
    unsigned k = (unsigned)key;
    return k < KL_KEY_COUNT ? key_info[k].name
           : k <= KL_KEY_DefaultBackend ? alias_name[k - KL_KEY_COUNT]
           : "UNKNOWN_TENSOR_TYPE_ID";
}

kl_key kl_key_find(const char *name)
{
    static const struct { const char *name; kl_key key; } other[] = {
        {"CPUTensorId", KL_KEY_CPU}, {"CUDATensorId", KL_KEY_CUDA},
        {"PrivateUse1_PreAutograd", KL_KEY_AutogradPrivateUse1},
            {"PrivateUse2_PreAutograd", KL_KEY_AutogradPrivateUse2},
        {"PrivateUse3_PreAutograd", KL_KEY_AutogradPrivateUse3}, {"Cpu", KL_KEY_CPU}, {"Cuda", KL_KEY_CUDA},
        {"Nested", KL_KEY_NestedTensor}, {"Vmap", KL_KEY_Batched}, {"CatchAll", KL_KEY_Undefined},
        {"CompositeImplicitAutograd", KL_KEY_Math}, {"CompositeExplicitAutograd", KL_KEY_DefaultBackend}};
    for (unsigned k = 0; name && k <= KL_KEY_DefaultBackend; k++)
        if (!strcmp(name, kl_key_name((kl_key)k)))
            return (kl_key)k;
    for (unsigned i = 0; name && i < sizeof other / sizeof *other; i++)
        if (!strcmp(name, other[i].name))
            return other[i].key;
    return KL_KEY_UNKNOWN;
}

bool kl_key_is_alias(kl_key key)
{
    return (unsigned)key >= KL_KEY_COUNT && (unsigned)key <= KL_KEY_DefaultBackend;
}

bool kl_key_is_backend(kl_key key)
{
    return (unsigned)key < KL_KEY_COUNT && key != KL_KEY_Undefined && key_info[key].layer <= LAYER_Meta;
}

kl_key kl_key_autograd(kl_key backend)
{
    switch (backend) {
    case KL_KEY_CPU: return KL_KEY_AutogradCPU;
    case KL_KEY_CUDA: return KL_KEY_AutogradCUDA;
    case KL_KEY_XLA: return KL_KEY_AutogradXLA;
    case KL_KEY_XPU: return KL_KEY_AutogradXPU;
    case KL_KEY_NestedTensor: return KL_KEY_AutogradNestedTensor;
    case KL_KEY_PrivateUse1: return KL_KEY_AutogradPrivateUse1;
    case KL_KEY_PrivateUse2: return KL_KEY_AutogradPrivateUse2;
    case KL_KEY_PrivateUse3: return KL_KEY_AutogradPrivateUse3;
    default: return KL_KEY_AutogradOther;
    }
}

bool key_in_alias(kl_key key, kl_key alias)
{
    bool backend = key == KL_KEY_Undefined || kl_key_is_backend(key),
        autograd = key_info[key].layer == LAYER_Autograd;
    return alias == KL_KEY_Autograd ? autograd : alias == KL_KEY_Math ? backend || autograd : backend;
}

unsigned device_component(const char *device)
{
    size_t n = strcspn(device, ":");
    for (unsigned k = KL_KEY_Undefined + 1; k < KL_KEY_COUNT && key_info[k].layer == LAYER_Dense; k++) {
        const char *s = key_info[k].name;
        size_t i = 0;
        while (i < n && s[i] && tolower((unsigned char)s[i]) == tolower((unsigned char)device[i]))
            i++;
        if (i == n && !s[i])
            return key_info[k].device;
    }
    return DEV_None;
}

/* ---- sets ---- */

const uint64_t key_own_bit[KL_KEY_COUNT + 1] = {
#define X(name, device, layer)                                                                                         \
    LAYER_##layer ? LAYER_BIT(LAYER_##layer) : UINT64_C(1) << DEV_##device >> 1, /* None: 0 */
    KL_KEYS(X)
#undef X
        LAYER_BIT(LAYER_Autograd)};
const uint64_t key_below[KL_KEY_COUNT + 1] = {/* of none: all */
#define X(name, device, layer)                                                                                         \
    ((LAYER_##layer ? LAYER_BIT(LAYER_##layer) : UINT64_C(1) << DEV_##device >> 1) - 1) | ORDER_16,
                                              KL_KEYS(X)
#undef X
                                                  (LAYER_BIT(LAYER_Autograd) - 1) |
                                              ORDER_16};

kl_keyset kl_keyset_of(kl_key key)
{
    uint64_t bits = key_own(key);
    if (bits && (unsigned)key < KL_KEY_COUNT && key_info[key].device)
        bits |= DEV_BIT(key_info[key].device);
    if (key == KL_KEY_AutogradNestedTensor)
        bits |= LAYER_BIT(LAYER_Nested);
    return (kl_keyset){bits};
}

kl_keyset kl_keyset_add(kl_keyset set, kl_key key) { return kl_keyset_union(set, kl_keyset_of(key)); }

kl_keyset kl_keyset_remove(kl_keyset set, kl_key key) { return (kl_keyset){set.bits & ~key_own(key)}; }

bool kl_keyset_has(kl_keyset set, kl_key key)
{
    uint64_t bits = kl_keyset_of(key).bits;
    return bits && (set.bits & bits) == bits;
}

kl_key kl_keyset_highest(kl_keyset set)
{
    uint64_t layers = set.bits & COMPONENTS & ~DEV_MASK;
    unsigned dev = top_device(set.bits & COMPONENTS);
    unsigned top = !layers ? DEV_BITS - 1 : set.bits & ORDER_16 ? highest_16(layers)
        : 63 - (unsigned)__builtin_clzll(layers);
    unsigned layer = top + 1 - DEV_BITS;
    kl_key k = KL_KEY_Undefined;
    for (unsigned i = 0; i < KL_KEY_COUNT; i++) /* what key_at says, but this may be a process's first call */
        if (key_info[i].layer == layer && (key_info[i].device ? key_info[i].device == dev : k == KL_KEY_Undefined))
            k = (kl_key)i;
    if (layer == LAYER_Mkldnn)
        k = KL_KEY_MkldnnCPU;
    return layer == LAYER_Autograd ? autograd_key(set.bits, k) : k;
}

kl_keyset kl_keyset_below(kl_keyset set, kl_key key)
{
    return (kl_keyset){(unsigned)key <= KL_KEY_Autograd ? keys_below(set.bits, key) : set.bits};
}

unsigned kl_keyset_count(kl_keyset set) { return (unsigned)__builtin_popcountll(set.bits & ~ORDER_16); }

char *kl_keyset_text(kl_keyset set, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "{");
    for (const char *sep = ""; set.bits && n < size; sep = ", ") {
        kl_key k = kl_keyset_highest(set);
        if (k == KL_KEY_Undefined) /* bits that are no component */
            break;
        n += (size_t)snprintf(buf + n, size - n, "%s%s", sep, kl_key_name(k));
        set = kl_keyset_remove(set, k);
    }
    if (n < size)
        snprintf(buf + n, size - n, "}");
    return buf;
}

/* ---- the view with eleven keys ---- */

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

/* ---- the order of its numbers ---- */

/* Lowest first; those without a number in it stand as elsewhere beside their neighbours. */
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
