/* Vulkan: cooperative matrices, which a subgroup multiplies together (VK_KHR_cooperative_matrix), of f16 and, with
 * VK_KHR_shader_bfloat16, of bf16.  The structures are declared here, because Vulkan's headers may be older than these
 * extensions; their layouts and numbers are those of the Vulkan specification. */
#include "codegen/gpu_codegen.h"
#include "vulkan.h"
#include <string.h>

enum {
    MATRIX_FEATURES = 1000506000, MATRIX_PROPERTIES = 1000506001, MATRIX_DEVICE_PROPERTIES = 1000506002,
    BFLOAT16_FEATURES = 1000141000
};
enum { COMPONENT_F16 = 0, COMPONENT_F32 = 1, COMPONENT_BF16 = 1000141000, SCOPE_SUBGROUP = 3 };

/* VkCooperativeMatrixPropertiesKHR and VkPhysicalDeviceCooperativeMatrixPropertiesKHR */
struct matrix_sizes {
    VkStructureType type;
    void *next;
    uint32_t m, n, k;
    int32_t a, b, c, result;
    VkBool32 saturating;
    int32_t scope;
};
struct matrix_stages { VkStructureType type; void *next; VkShaderStageFlags stages; };

typedef VkResult(VKAPI_PTR *matrix_sizes_function)(VkPhysicalDevice p, uint32_t *n, struct matrix_sizes *out);

enum { MAX_SIZES = 128, MAX_EXTENSIONS = 1024 };

/* ---- what the device has ---- */

static bool has_extension(const struct vulkan_instance *i, VkPhysicalDevice p, const char *name)
{
    uint32_t n = MAX_EXTENSIONS;
    VkExtensionProperties *e = mem_alloc(n * sizeof *e);
    bool found = false;
    if (e && i->EnumerateDeviceExtensionProperties(p, NULL, &n, e) >= 0)
        for (uint32_t k = 0; k < n; k++)
            found |= !strcmp(e[k].extensionName, name);
    mem_free(e);
    return found;
}

/* Can lower_dot_matrix.c divide tiles into matrices of these sizes, with factors' rows of whole vectors? */
static bool is_possible(const struct matrix_sizes *s)
{
    enum { MIN_SIDE = 8, MAX_SIDE = 32 };
    const uint32_t length[3] = {s->m, s->n, s->k};
    for (int i = 0; i < 3; i++)
        if (length[i] < MIN_SIDE || length[i] > MAX_SIDE || (length[i] & (length[i] - 1)))
            return false;
    return s->c == COMPONENT_F32 && s->result == COMPONENT_F32 && !s->saturating && s->scope == SCOPE_SUBGROUP;
}

/* The largest possible sizes for factors of this component type; `same`: which must be these.  NULL: there are none. */
static const struct matrix_sizes *largest_matrix_sizes(const struct matrix_sizes *s, uint32_t n, int32_t factors,
                                          const struct matrix_sizes *same)
{
    const struct matrix_sizes *best = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (is_possible(&s[i]) && s[i].a == factors && s[i].b == factors &&
            (!same || (s[i].m == same->m && s[i].n == same->n && s[i].k == same->k)) &&
            (!best || s[i].m * s[i].n * s[i].k > best->m * best->n * best->k))
            best = &s[i];
    return best;
}

static void put_sizes(struct vulkan_matrices *out, const char *word, const struct matrix_sizes *s)
{
    size_t n = strlen(out->words);
    snprintf(out->words + n, sizeof out->words - n, "%s%ux%ux%u", word, s->m, s->n, s->k);
}

/* Without factors of bf16 their extension is not enabled. */
static void choose_sizes(struct vulkan_matrices *out, const struct matrix_sizes *s, uint32_t n, bool bf16)
{
    const struct matrix_sizes *half = largest_matrix_sizes(s, n, COMPONENT_F16, NULL);
    const struct matrix_sizes *brain = bf16 ? largest_matrix_sizes(s, n, COMPONENT_BF16, half) : NULL;
    if (half)
        put_sizes(out, VULKAN_MATRIX_F16, half);
    if (brain)
        put_sizes(out, VULKAN_MATRIX_BF16, brain);
    out->bfloat16.type = out->bfloat16.matrix = brain != NULL;
}

/* Chains the extensions' features behind `f`, as far as the device has the extensions, and asks for them. */
static void matrix_query_features(const struct vulkan_instance *i, VkPhysicalDevice p, bool bf16,
                                  struct vulkan_matrices *m)
{
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &m->features};
    m->features = (struct vulkan_matrix_features){.sType = (VkStructureType)MATRIX_FEATURES,
                                                  .pNext = bf16 ? &m->bfloat16 : NULL};
    m->bfloat16 = (struct vulkan_bfloat16_features){.sType = (VkStructureType)BFLOAT16_FEATURES};
    i->GetPhysicalDeviceFeatures2(p, &f);
}

void vulkan_matrices_find(const struct vulkan_instance *i, VkPhysicalDevice p, struct vulkan_matrices *out)
{
    static const char matrix[] = "VK_KHR_cooperative_matrix", bfloat16[] = "VK_KHR_shader_bfloat16";
    matrix_sizes_function list;
    uint32_t n = MAX_SIZES;
    *out = (struct vulkan_matrices){0};
    *(PFN_vkVoidFunction *)&list = i->get(i->instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    if (!list || !has_extension(i, p, matrix))
        return;
    matrix_query_features(i, p, has_extension(i, p, bfloat16), out);
    struct matrix_stages stages = {.type = (VkStructureType)MATRIX_DEVICE_PROPERTIES};
    VkPhysicalDeviceProperties2 q = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &stages};
    struct matrix_sizes *s = mem_alloc(n * sizeof *s);
    i->GetPhysicalDeviceProperties2(p, &q);
    for (uint32_t k = 0; s && k < n; k++)
        s[k].type = (VkStructureType)MATRIX_PROPERTIES;
    if (s && out->features.matrix && stages.stages & VK_SHADER_STAGE_COMPUTE_BIT && list(p, &n, s) >= 0)
        choose_sizes(out, s, n, out->bfloat16.type && out->bfloat16.matrix);
    mem_free(s);
    out->features.robust = out->bfloat16.dot = VK_FALSE;
    out->features.pNext = NULL;
    if (*out->words)
        out->extension[out->nextension++] = matrix;
    if (out->bfloat16.type) {
        out->extension[out->nextension++] = bfloat16;
        out->features.pNext = &out->bfloat16;
    }
}
