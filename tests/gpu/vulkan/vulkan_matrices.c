/* A loader of Vulkan that passes all on to the real one, and says that devices have cooperative matrices
 * (VK_KHR_cooperative_matrix, VK_KHR_shader_bfloat16).  It makes the device without them: matrix_compiler.c compiles
 * kernels to code that needs none. */
#define VK_NO_PROTOTYPES
#include "vulkan_matrices.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <vulkan/vulkan_core.h>

#pragma GCC visibility push(default)
struct vulkan_matrices_loader vulkan_matrices;
PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance i, const char *name);
#pragma GCC visibility pop

/* From the Vulkan specification: the structures' types, VkComponentTypeKHR and VkScopeKHR. */
enum {
    MATRIX_FEATURES = 1000506000, MATRIX_DEVICE_PROPERTIES = 1000506002, BFLOAT16_FEATURES = 1000141000,
    FLOAT16 = 0, FLOAT32 = 1, BFLOAT16 = 1000141000, WORKGROUP = 2, SUBGROUP = 3
};
static const char matrix_name[] = "VK_KHR_cooperative_matrix", bfloat16_name[] = "VK_KHR_shader_bfloat16";

struct matrix_sizes { /* VkCooperativeMatrixPropertiesKHR */
    VkStructureType type;
    void *next;
    uint32_t m, n, k;
    int32_t a, b, c, result;
    VkBool32 saturating;
    int32_t scope;
};
struct flags { VkStructureType type; void *next; VkBool32 flag[3]; };

static PFN_vkGetInstanceProcAddr instance_function;
static PFN_vkGetPhysicalDeviceFeatures2 real_features;
static PFN_vkGetPhysicalDeviceProperties2 real_properties;
static PFN_vkEnumerateDeviceExtensionProperties real_extensions;
static PFN_vkCreateDevice real_create;

/* The structure of a type in a chain; NULL: it is not there. */
static struct flags *chained(const void *chain, int type)
{
    const struct flags *f = chain;
    while (f && (int)f->type != type)
        f = f->next;
    return (struct flags *)f;
}

static void VKAPI_CALL features(VkPhysicalDevice p, VkPhysicalDeviceFeatures2 *f)
{
    struct flags *matrix = chained(f, MATRIX_FEATURES), *bfloat16 = chained(f, BFLOAT16_FEATURES);
    real_features(p, f);
    if (matrix)
        matrix->flag[0] = matrix->flag[1] = VK_TRUE;
    if (bfloat16)
        bfloat16->flag[0] = bfloat16->flag[1] = bfloat16->flag[2] = VK_TRUE;
}

static void VKAPI_CALL properties(VkPhysicalDevice p, VkPhysicalDeviceProperties2 *q)
{
    struct flags *stages = chained(q, MATRIX_DEVICE_PROPERTIES);
    real_properties(p, q);
    if (stages)
        stages->flag[0] = VK_SHADER_STAGE_COMPUTE_BIT;
}

static VkResult VKAPI_CALL extensions(VkPhysicalDevice p, const char *layer, uint32_t *n, VkExtensionProperties *e)
{
    uint32_t max = *n, more = 1 + vulkan_matrices.bf16;
    VkResult r = real_extensions(p, layer, n, e);
    if (r || (e && *n + more > max))
        return r ? r : VK_INCOMPLETE;
    for (uint32_t i = 0; e && i < more; i++)
        snprintf(e[*n + i].extensionName, sizeof e->extensionName, "%s", i ? bfloat16_name : matrix_name);
    *n += more;
    return r;
}

/* The sizes, among others that kernels cannot use. */
static VkResult VKAPI_CALL sizes(VkPhysicalDevice p, uint32_t *n, struct matrix_sizes *out)
{
    const uint32_t m = vulkan_matrices.m, c = vulkan_matrices.n, k = vulkan_matrices.k;
    const struct matrix_sizes list[] = {
        {.m = 2 * m, .n = c, .k = k, .result = FLOAT16, .scope = SUBGROUP}, /* all components are of f16 */
        {.m = m, .n = 2 * c, .k = k, .c = FLOAT32, .result = FLOAT32, .scope = WORKGROUP},
        {.m = m, .n = c, .k = 2 * k, .c = FLOAT32, .result = FLOAT32, .saturating = VK_TRUE, .scope = SUBGROUP},
        {.m = 64, .n = 64, .k = 64, .c = FLOAT32, .result = FLOAT32, .scope = SUBGROUP},
        {.m = m, .n = c, .k = k, .c = FLOAT32, .result = FLOAT32, .scope = SUBGROUP},
        {.m = m, .n = 2 * c, .k = k, .a = BFLOAT16, .b = BFLOAT16, .c = FLOAT32, .result = FLOAT32, .scope = SUBGROUP},
        {.m = m, .n = c, .k = k, .a = BFLOAT16, .b = BFLOAT16, .c = FLOAT32, .result = FLOAT32, .scope = SUBGROUP}};
    const uint32_t all = sizeof list / sizeof *list - (vulkan_matrices.bf16 ? 0 : 2);
    (void)p;
    for (uint32_t i = 0; out && i < all && i < *n; i++)
        out[i] = list[i];
    *n = out && *n < all ? *n : all;
    return VK_SUCCESS;
}

/* Removes the structures of a type from a chain that does not begin with one. */
static void unchain(void *chain, int type)
{
    for (struct flags *f = chain; f; f = f->next)
        while (f->next && (int)((struct flags *)f->next)->type == type)
            f->next = ((struct flags *)f->next)->next;
}

static bool is_listed(const VkDeviceCreateInfo *c, const char *name)
{
    for (uint32_t i = 0; i < c->enabledExtensionCount; i++)
        if (!strcmp(c->ppEnabledExtensionNames[i], name))
            return true;
    return false;
}

static VkResult VKAPI_CALL create(VkPhysicalDevice p, const VkDeviceCreateInfo *c, const VkAllocationCallbacks *a,
                                  VkDevice *out)
{
    VkDeviceCreateInfo own = *c;
    const VkPhysicalDeviceVulkan12Features *v12 =
        (const void *)chained(c->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
    const struct flags *matrix = chained(c->pNext, MATRIX_FEATURES), *bfloat16 = chained(c->pNext, BFLOAT16_FEATURES);
    vulkan_matrices.asked = matrix && matrix->flag[0] && !matrix->flag[1] && is_listed(c, matrix_name) && v12 &&
        v12->vulkanMemoryModel && v12->shaderFloat16 && vulkan_matrices.bf16 == is_listed(c, bfloat16_name) &&
        (bfloat16 && bfloat16->flag[0] && !bfloat16->flag[1] && bfloat16->flag[2]) == vulkan_matrices.bf16;
    own.enabledExtensionCount = 0;
    unchain((void *)own.pNext, MATRIX_FEATURES);
    unchain((void *)own.pNext, BFLOAT16_FEATURES);
    return real_create(p, &own, a, out);
}

#define INSTEAD(function, real, own)                          \
    if (!strcmp(name, function)) {                            \
        *(PFN_vkVoidFunction *)&real = instance_function(i, name); \
        return (PFN_vkVoidFunction)own;                       \
    }

PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance i, const char *name)
{
    if (!instance_function)
        *(void **)&instance_function = dlsym(dlopen(REAL_VULKAN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE),
                                             "vkGetInstanceProcAddr");
    INSTEAD("vkGetPhysicalDeviceFeatures2", real_features, features)
    INSTEAD("vkGetPhysicalDeviceProperties2", real_properties, properties)
    INSTEAD("vkEnumerateDeviceExtensionProperties", real_extensions, extensions)
    INSTEAD("vkCreateDevice", real_create, create)
    if (!strcmp(name, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"))
        return (PFN_vkVoidFunction)sizes;
    return instance_function(i, name);
}
