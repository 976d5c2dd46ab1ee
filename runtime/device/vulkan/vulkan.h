/* The driver of Vulkan: what its files share. */
#ifndef KILN_VULKAN_H
#define KILN_VULKAN_H
#define VK_NO_PROTOTYPES
#include "runtime/device/driver.h"
#include <vulkan/vulkan_core.h>

/* Functions of the loader, of the instance, of a device. */
#define VULKAN_INSTANCE(X)                                                                          \
    X(EnumeratePhysicalDevices) X(GetPhysicalDeviceFeatures2) X(GetPhysicalDeviceProperties2)       \
    X(GetPhysicalDeviceMemoryProperties) X(GetPhysicalDeviceQueueFamilyProperties) X(CreateDevice)  \
    X(GetDeviceProcAddr) X(EnumerateDeviceExtensionProperties)
#define VULKAN_DEVICE(X)                                                                            \
    X(GetDeviceQueue) X(CreateBuffer) X(DestroyBuffer) X(GetBufferMemoryRequirements)               \
    X(AllocateMemory) X(FreeMemory) X(BindBufferMemory) X(MapMemory) X(GetBufferDeviceAddress)      \
    X(CreateShaderModule) X(DestroyShaderModule) X(CreateComputePipelines) X(DestroyPipeline)       \
    X(CreatePipelineCache) X(DestroyPipelineCache) X(GetPipelineCacheData)                          \
    X(CreatePipelineLayout) X(CreateCommandPool) X(AllocateCommandBuffers) X(ResetCommandPool)      \
    X(BeginCommandBuffer) X(EndCommandBuffer) X(CmdBindPipeline) X(CmdPushConstants)                \
    X(CmdDispatch) X(CmdCopyBuffer) X(CmdPipelineBarrier) X(CreateFence) X(ResetFences) X(GetFenceStatus) \
    X(WaitForFences) X(QueueSubmit) X(DestroyDevice) X(DestroyCommandPool) X(DestroyFence)          \
    X(DestroyPipelineLayout) X(CreateQueryPool) X(DestroyQueryPool) X(CmdResetQueryPool) X(CmdWriteTimestamp) \
    X(GetQueryPoolResults)

struct memory {                    /* a buffer with its memory */
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint64_t address;
    size_t bytes;
    char *mapped;                  /* NULL: the host cannot access it */
};

/* One allocation of the driver's memory, from which alloc takes many buffers. */
struct range { uint64_t offset, bytes; bool used; };
struct block {
    struct memory m;
    struct range *range; uint32_t n, cap; /* in order, without gaps; neighbouring free ranges are merged */
};

/* A command.  Bytes from the host are in the batch's data, at an offset, and may differ each time the batch is
 * submitted. */
struct work {
    VkPipeline pipeline;           /* of a launch; NULL: the command is a copy */
    VkBuffer from, to;             /* of a copy; from NULL: the batch's data; to NULL: time a is measured */
    /* launch: a is the offset of the table of buffers, b the slots' address, begin and end are the iterations;
     * copy: a and b are the offsets in `from` and `to`, begin is the number of bytes */
    uint64_t a, b, begin, end, blocks;
    uint64_t waits;                /* 1: a barrier precedes the command */
};

/* Addresses that a command reads or writes. */
struct touched { uint64_t begin, end; bool written; };

struct batch {                     /* of commands, submitted together */
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkFence fence;
    struct memory data;
    struct work *op; uint32_t n, cap; /* the commands that are recorded in the command buffer */
    bool recorded;                 /* the command buffer may be submitted again */
    bool flying;                   /* it was submitted and may not have finished */
    uint64_t age;                  /* number of its last submission */
};
/* A list of commands that was submitted: `first` copies, then launches, and the data of the launches, which begin at
 * `begin`. */
struct vulkan_list {
    uint64_t number;               /* 0: there is no list here */
    struct work *op; uint32_t n, op_cap, first;
    char *data; uint32_t begin, bytes, data_cap;
};
/* Memory of the host that a copy goes through, as large as the largest one so far. */
struct staging { struct memory m; uint64_t age; /* the number of the last batch that uses it */ };
enum { BATCHES = 4, UPLOADS = 2, MAX_TOUCHED = 128, LISTS = 8 };

struct driver_device {
    char name[32];                 /* vulkan:0 */
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t family;
    VkPhysicalDeviceMemoryProperties types;
    uint32_t max_blocks;
    uint64_t max_bytes;            /* of a buffer */
    char cache_id[64];             /* names the device and driver whose pipelines are kept on disk */
    uint32_t subgroup;             /* threads of a subgroup that exchange values; 0: kernels do not use subgroups */
    VkPipelineLayout layout;
    VkQueryPool times;             /* for the begin and the end of a measured time */
    double tick;                   /* seconds of one unit of these; 0: the queue has no clock */
    uint64_t tick_mask;            /* their valid bits */
    bool lost;
    struct block *block; uint32_t nblock, block_cap;     /* the memory for alloc, sorted by address */
    struct staging upload[UPLOADS], download; unsigned next_upload; /* uploads take turns */
    struct work *op; uint32_t nop, op_cap;                 /* commands that are not submitted yet, with data */
    struct touched touched[MAX_TOUCHED]; uint32_t ntouched; /* memory that these access since their last barrier */
    char *data; uint32_t used, data_cap;
    struct batch batch[BATCHES];
    uint64_t age;
    struct vulkan_list lists[LISTS];
    uint64_t list_number;          /* of the list that was kept last */
    uint64_t list;                 /* number of the list that was submitted last; 0: it was not kept */
    uint64_t repeated;             /* number of the list that the collected commands repeat; 0: of none */
    unsigned issued;               /* lists that were submitted since vulkan_list_issued */
#define X(name) PFN_vk##name name;
    VULKAN_DEVICE(X)
#undef X
};

/* ---- vulkan.c ---- */
struct vulkan_instance {
    PFN_vkGetInstanceProcAddr get;
    VkInstance instance;
#define X(name) PFN_vk##name name;
    VULKAN_INSTANCE(X)
#undef X
};
/* Sets *e to the error of a call.  Always returns false. */
bool vulkan_failed(struct driver_device *d, const char *call, VkResult r, struct err *e);

/* ---- vulkan_matrix.c ---- */
/* VkPhysicalDeviceCooperativeMatrixFeaturesKHR and VkPhysicalDeviceShaderBfloat16FeaturesKHR */
struct vulkan_matrix_features { VkStructureType sType; void *pNext; VkBool32 matrix, robust; };
struct vulkan_bfloat16_features { VkStructureType sType; void *pNext; VkBool32 type, dot, matrix; };

/* The matrices that a device multiplies: their words in its features ("": none), and the extensions and features to
 * enable for them, from `features` on.  It points into itself. */
struct vulkan_matrices {
    char words[64];
    struct vulkan_matrix_features features;
    struct vulkan_bfloat16_features bfloat16;
    const char *extension[2]; uint32_t nextension;
};
void vulkan_matrices_find(const struct vulkan_instance *i, VkPhysicalDevice p, struct vulkan_matrices *out);

/* ---- vulkan_memory.c ---- */
bool vulkan_memory_new(struct driver_device *d, size_t bytes, bool host, struct memory *out, struct err *e);
void vulkan_memory_free(struct driver_device *d, struct memory *m);
/* Makes host memory of at least this size.  No batch in flight may use it. */
bool vulkan_memory_grow(struct driver_device *d, struct memory *m, size_t bytes, struct err *e);
bool vulkan_alloc(struct driver_device *d, size_t bytes, void **address, struct err *e);
void vulkan_release(struct driver_device *d, void *address);
/* The buffer that contains an address, and the offset in it; NULL: the address is not from alloc. */
const struct memory *vulkan_find(const struct driver_device *d, const void *address, size_t bytes,
                                 VkDeviceSize *offset);

/* ---- vulkan_batch.c ---- */
struct constants { uint64_t buffers, slots; int64_t begin, end; }; /* push constants: open_glsl of source.c */
bool vulkan_batches_new(struct driver_device *d, struct err *e);
void vulkan_batches_free(struct driver_device *d);
/* Reserves bytes in the data of the command that is added next; *at is their offset.  NULL: *e. */
char *vulkan_data(struct driver_device *d, size_t bytes, uint64_t *at, struct err *e);
/* Adds a command that touches n ranges.  A barrier precedes it if it conflicts with a command since the last one. */
bool vulkan_give(struct driver_device *d, const struct work *op, const struct touched *t, uint32_t n, struct err *e);
bool vulkan_submit(struct driver_device *d, struct err *e);
bool vulkan_wait(struct driver_device *d, uint64_t age, struct err *e); /* for batches up to number `age` */
bool vulkan_finish(struct driver_device *d, struct err *e);
bool vulkan_time_begin(struct driver_device *d, struct err *e);
bool vulkan_time_end(struct driver_device *d, double *seconds, struct err *e);
void vulkan_drop(struct driver_device *d);
/* Marks all batches as not recorded, because an object that they use will be destroyed. */
void vulkan_forget(struct driver_device *d);

/* ---- vulkan_list.c: `list` and `repeat` of struct driver ---- */
void vulkan_lists_free(struct driver_device *d);
void vulkan_lists_forget(struct driver_device *d); /* an object that they use will be destroyed */
void vulkan_list_keep(struct driver_device *d);    /* the collected commands are submitted now */
uint64_t vulkan_list_issued(struct driver_device *d);
bool vulkan_repeat(struct driver_device *d, uint64_t list, const struct memory_range *v, uint32_t n, bool *done,
                   struct err *e);

/* ---- vulkan_pipeline.c ---- */
struct driver_kernel { VkPipeline pipeline; };
struct driver_kernel *vulkan_load(struct driver_device *d, const struct gpu_code *code, struct err *e);
void vulkan_unload(struct driver_device *d, struct driver_kernel *k);

/* ---- vulkan_queue.c ---- */
bool vulkan_queue_new(struct driver_device *d, struct err *e);
bool vulkan_launch(struct driver_device *d, const struct launch *l, struct err *e);
bool vulkan_copy(struct driver_device *d, void *to, const void *from, size_t bytes, struct err *e);
bool vulkan_upload(struct driver_device *d, void *to, const void *data, size_t bytes, struct err *e);
bool vulkan_download(struct driver_device *d, void *data, const void *from, size_t bytes, struct err *e);

#endif
