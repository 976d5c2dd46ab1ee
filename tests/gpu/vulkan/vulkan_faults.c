/* A loader of Vulkan that passes all on to the real one, counts some calls and lets some fail when it is told to: what
 * api_vulkan.c puts in front of the driver. */
#define VK_NO_PROTOTYPES
#include "vulkan_faults.h"
#include <dlfcn.h>
#include <string.h>
#include <vulkan/vulkan_core.h>

#pragma GCC visibility push(default)
struct vulkan_faults vulkan_faults;
PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance i, const char *name);
#pragma GCC visibility pop

static PFN_vkGetInstanceProcAddr instance_function;
static PFN_vkGetDeviceProcAddr device_function;
static PFN_vkAllocateMemory allocate_memory;
static PFN_vkCreateComputePipelines create_pipelines;
static PFN_vkQueueSubmit queue_submit;
static PFN_vkWaitForFences wait_for_fences;
static PFN_vkBeginCommandBuffer begin_commands;
static PFN_vkCmdPipelineBarrier put_barrier;
static PFN_vkCmdDispatch put_dispatch;
static PFN_vkCreatePipelineCache create_cache;
static PFN_vkGetPipelineCacheData cache_data;

static VkResult VKAPI_CALL allocate(VkDevice d, const VkMemoryAllocateInfo *i, const VkAllocationCallbacks *a,
                                    VkDeviceMemory *out)
{
    vulkan_faults.allocations++;
    vulkan_faults.largest = i->allocationSize > vulkan_faults.largest ? i->allocationSize : vulkan_faults.largest;
    if (vulkan_faults.full && i->allocationSize >= vulkan_faults.full)
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return allocate_memory(d, i, a, out);
}

static VkResult VKAPI_CALL pipelines(VkDevice d, VkPipelineCache c, uint32_t n, const VkComputePipelineCreateInfo *i,
                                     const VkAllocationCallbacks *a, VkPipeline *out)
{
    return vulkan_faults.no_pipelines ? VK_ERROR_INVALID_SHADER_NV : create_pipelines(d, c, n, i, a, out);
}

static VkResult VKAPI_CALL submit(VkQueue q, uint32_t n, const VkSubmitInfo *i, VkFence f)
{
    vulkan_faults.submits++;
    if (vulkan_faults.no_submits)
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    return queue_submit(q, n, i, f);
}

static VkResult VKAPI_CALL wait_fences(VkDevice d, uint32_t n, const VkFence *f, VkBool32 all, uint64_t ns)
{
    vulkan_faults.waits++;
    return vulkan_faults.lost ? VK_ERROR_DEVICE_LOST : wait_for_fences(d, n, f, all, ns);
}

static VkResult VKAPI_CALL begin(VkCommandBuffer c, const VkCommandBufferBeginInfo *i)
{
    vulkan_faults.recordings++;
    return begin_commands(c, i);
}

static void VKAPI_CALL barrier(VkCommandBuffer c, VkPipelineStageFlags from, VkPipelineStageFlags to,
                               VkDependencyFlags f, uint32_t n, const VkMemoryBarrier *m, uint32_t nb,
                               const VkBufferMemoryBarrier *b, uint32_t ni, const VkImageMemoryBarrier *i)
{
    vulkan_faults.barriers++;
    put_barrier(c, from, to, f, n, m, nb, b, ni, i);
}

static void VKAPI_CALL dispatch(VkCommandBuffer c, uint32_t x, uint32_t y, uint32_t z)
{
    vulkan_faults.dispatches++;
    put_dispatch(c, x, y, z);
}

/* A driver whose pipelines have something to keep: Mesa's for processors has nothing but the header.  What it kept is
 * behind the header that it gave. */
static const char kept[] = "a pipeline";
enum { KEPT = sizeof kept };

static VkResult VKAPI_CALL new_cache(VkDevice d, const VkPipelineCacheCreateInfo *i, const VkAllocationCallbacks *a,
                                     VkPipelineCache *out)
{
    VkPipelineCacheCreateInfo own = *i;
    const char *given = i->pInitialData;
    vulkan_faults.caches++;
    if (i->initialDataSize > KEPT && !memcmp(given + i->initialDataSize - KEPT, kept, KEPT)) {
        vulkan_faults.filled++;
        own.initialDataSize -= KEPT;
    }
    return create_cache(d, &own, a, out);
}

static VkResult VKAPI_CALL get_data(VkDevice d, VkPipelineCache c, size_t *size, void *data)
{
    size_t real = data && *size > KEPT ? *size - KEPT : 0;
    VkResult r = cache_data(d, c, data ? &real : size, data);
    if (!r && data)
        memcpy((char *)data + real, kept, KEPT);
    *size = (data ? real : *size) + KEPT;
    return r;
}

#define INSTEAD(function, real, own)                      \
    if (!strcmp(name, function)) {                        \
        *(PFN_vkVoidFunction *)&real = device_function(d, name); \
        return (PFN_vkVoidFunction)own;                   \
    }

static PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice d, const char *name)
{
    INSTEAD("vkAllocateMemory", allocate_memory, allocate)
    INSTEAD("vkCreateComputePipelines", create_pipelines, pipelines)
    INSTEAD("vkQueueSubmit", queue_submit, submit)
    INSTEAD("vkWaitForFences", wait_for_fences, wait_fences)
    INSTEAD("vkBeginCommandBuffer", begin_commands, begin)
    INSTEAD("vkCmdPipelineBarrier", put_barrier, barrier)
    INSTEAD("vkCmdDispatch", put_dispatch, dispatch)
    INSTEAD("vkCreatePipelineCache", create_cache, new_cache)
    INSTEAD("vkGetPipelineCacheData", cache_data, get_data)
    return device_function(d, name);
}

PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance i, const char *name)
{
    if (!instance_function)
        *(void **)&instance_function = dlsym(dlopen(REAL_VULKAN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE),
                                             "vkGetInstanceProcAddr");
    if (strcmp(name, "vkGetDeviceProcAddr"))
        return instance_function(i, name);
    *(PFN_vkVoidFunction *)&device_function = instance_function(i, name);
    return (PFN_vkVoidFunction)device_proc;
}
