/* Dispatch keys and sets of them: names and components. */
#include "dispatch.h"
#include <ctype.h>
#include <string.h>

const struct key_info key_info[KL_KEY_COUNT] = {
#define X(name, device, layer) {#name, DEV_##device, LAYER_##layer},
    KL_KEYS(X)
#undef X
};

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
    return k < KL_KEY_COUNT ? key_info[k].name : alias_name(key);
}

kl_key kl_key_find(const char *name)
{
    for (unsigned k = 0; name && k <= KL_KEY_DefaultBackend; k++)
        if (!strcmp(name, kl_key_name((kl_key)k)))
            return (kl_key)k;
    return name ? key_other_name(name) : KL_KEY_UNKNOWN;
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
const uint64_t key_below[KL_KEY_COUNT + 1] = {/* for no key: all components */
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
    for (unsigned i = 0; i < KL_KEY_COUNT; i++) /* the same as key_at, which may not be filled before the first call */
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

int64_t kl_keyset_count(kl_keyset set) { return __builtin_popcountll(set.bits & ~ORDER_16); }

char *kl_keyset_text(kl_keyset set, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "{");
    for (const char *sep = ""; set.bits && n < size; sep = ", ") {
        kl_key k = kl_keyset_highest(set);
        if (k == KL_KEY_Undefined) /* the set has no component bits */
            break;
        n += (size_t)snprintf(buf + n, size - n, "%s%s", sep, kl_key_name(k));
        set = kl_keyset_remove(set, k);
    }
    if (n < size)
        snprintf(buf + n, size - n, "}");
    return buf;
}
