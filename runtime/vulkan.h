/* The driver of Vulkan: what its files share. */
#ifndef KILN_VULKAN_H
#define KILN_VULKAN_H
#define VK_NO_PROTOTYPES
#include "runtime/driver.h"
#include <vulkan/vulkan_core.h>

/* Functions of the loader, of the instance, of a device. */
#define VULKAN_INSTANCE(X)                                                                          \
    X(EnumeratePhysicalDevices) X(GetPhysicalDeviceFeatures2) X(GetPhysicalDeviceProperties2)       \
    X(GetPhysicalDeviceMemoryProperties) X(GetPhysicalDeviceQueueFamilyProperties) X(CreateDevice)  \
    X(GetDeviceProcAddr)
#define VULKAN_DEVICE(X)                                                                            \
    X(GetDeviceQueue) X(CreateBuffer) X(DestroyBuffer) X(GetBufferMemoryRequirements)               \
    X(AllocateMemory) X(FreeMemory) X(BindBufferMemory) X(MapMemory) X(GetBufferDeviceAddress)      \
    X(CreateShaderModule) X(DestroyShaderModule) X(CreateComputePipelines) X(DestroyPipeline)       \
    X(CreatePipelineLayout) X(CreateCommandPool) X(AllocateCommandBuffers) X(ResetCommandPool)      \
    X(BeginCommandBuffer) X(EndCommandBuffer) X(CmdBindPipeline) X(CmdPushConstants)                \
    X(CmdDispatch) X(CmdCopyBuffer) X(CmdPipelineBarrier) X(CreateFence) X(ResetFences)             \
    X(WaitForFences) X(QueueSubmit) X(DestroyDevice) X(DestroyCommandPool) X(DestroyFence)          \
    X(DestroyPipelineLayout)

struct memory {                    /* a buffer with its memory */
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint64_t address;
    size_t bytes;
    char *mapped;                  /* NULL: not seen by the host */
};

struct chunk { struct memory m; size_t used; };

struct driver_device {
    char name[32];                 /* vulkan:0 */
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t family;
    VkPhysicalDeviceMemoryProperties types;
    uint32_t max_blocks;
    VkPipelineLayout layout;
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkFence fence;
    bool recording, lost;
    struct memory *memory; uint32_t nmemory, memory_cap; /* what alloc gave, by address */
    struct chunk *chunk; uint32_t nchunk, chunk_cap;     /* for stage; in use from the first on */
    struct memory staging;         /* on the way between device and host */
#define X(name) PFN_vk##name name;
    VULKAN_DEVICE(X)
#undef X
};

/* ---- vulkan.c ---- */
/* The error of a call; always false. */
bool vulkan_failed(struct driver_device *d, const char *call, VkResult r, struct err *e);

/* ---- vulkan_memory.c ---- */
bool vulkan_memory_new(struct driver_device *d, size_t bytes, bool host, struct memory *out, struct err *e);
void vulkan_memory_free(struct driver_device *d, struct memory *m);
bool vulkan_alloc(struct driver_device *d, size_t bytes, void **address, struct err *e);
void vulkan_release(struct driver_device *d, void *address);
/* The buffer that an address is in, and where; NULL: none that alloc gave. */
const struct memory *vulkan_find(const struct driver_device *d, const void *address, size_t bytes, VkDeviceSize *offset);

/* ---- vulkan_queue.c ---- */
bool vulkan_queue_new(struct driver_device *d, struct err *e);
struct driver_kernel *vulkan_load(struct driver_device *d, const struct gpu_code *code, struct err *e);
void vulkan_unload(struct driver_device *d, struct driver_kernel *k);
bool vulkan_stage(struct driver_device *d, const void *data, size_t bytes, void **address, struct err *e);
bool vulkan_launch(struct driver_device *d, const struct launch *l, struct err *e);
bool vulkan_copy(struct driver_device *d, void *to, const void *from, size_t bytes, struct err *e);
bool vulkan_upload(struct driver_device *d, void *to, const void *data, size_t bytes, struct err *e);
bool vulkan_download(struct driver_device *d, void *data, const void *from, size_t bytes, struct err *e);
bool vulkan_finish(struct driver_device *d, struct err *e);
void vulkan_drop(struct driver_device *d);

#endif
