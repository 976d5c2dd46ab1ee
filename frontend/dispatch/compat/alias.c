/* Alias keys, which stand for several keys when a kernel is registered, and alternative names of keys. */
#include "frontend/dispatch/dispatch.h"
#include <string.h>

const char *alias_name(kl_key key)
{
    static const char *const name[] = {"Autograd", "Math", "DefaultBackend"};
    return kl_key_is_alias(key) ? name[(unsigned)key - KL_KEY_COUNT] : "UNKNOWN_TENSOR_TYPE_ID";
}

kl_key key_other_name(const char *name)
{
    static const struct { const char *name; kl_key key; } other[] = {
        {"CPUTensorId", KL_KEY_CPU}, {"CUDATensorId", KL_KEY_CUDA},
        {"PrivateUse1_PreAutograd", KL_KEY_AutogradPrivateUse1},
        {"PrivateUse2_PreAutograd", KL_KEY_AutogradPrivateUse2},
        {"PrivateUse3_PreAutograd", KL_KEY_AutogradPrivateUse3}, {"Cpu", KL_KEY_CPU}, {"Cuda", KL_KEY_CUDA},
        {"Nested", KL_KEY_NestedTensor}, {"Vmap", KL_KEY_Batched}, {"CatchAll", KL_KEY_Undefined},
        {"CompositeImplicitAutograd", KL_KEY_Math}, {"CompositeExplicitAutograd", KL_KEY_DefaultBackend}};
    for (unsigned i = 0; i < sizeof other / sizeof *other; i++)
        if (!strcmp(name, other[i].name))
            return other[i].key;
    return KL_KEY_UNKNOWN;
}

bool kl_key_is_alias(kl_key key)
{
    return (unsigned)key >= KL_KEY_COUNT && (unsigned)key <= KL_KEY_DefaultBackend;
}

bool key_in_alias(kl_key key, kl_key alias)
{
    bool backend = key == KL_KEY_Undefined || kl_key_is_backend(key),
        autograd = key_info[key].layer == LAYER_Autograd;
    return alias == KL_KEY_Autograd ? autograd : alias == KL_KEY_Math ? backend || autograd : backend;
}
