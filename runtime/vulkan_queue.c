/* Vulkan: work.  Commands are recorded into one command buffer, each behind all before it, and submitted by finish. */
#include "runtime/vulkan.h"
#include <string.h>

enum { CHUNK = 1 << 20, STAGING = 8 << 20, SMALL = 64 << 10 };

struct driver_kernel { VkPipeline pipeline; };
struct constants { uint64_t buffers, slots; int64_t begin, end; }; /* as in open_glsl of source.c */

bool vulkan_queue_new(struct driver_device *d, struct err *e)
{
    VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(struct constants)};
    VkPipelineLayoutCreateInfo l = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .pushConstantRangeCount = 1,
                                    .pPushConstantRanges = &range};
    VkCommandPoolCreateInfo p = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .queueFamilyIndex = d->family};
    VkFenceCreateInfo f = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    d->GetDeviceQueue(d->device, d->family, 0, &d->queue);
    VkResult r = d->CreatePipelineLayout(d->device, &l, NULL, &d->layout);
    r = r ? r : d->CreateCommandPool(d->device, &p, NULL, &d->pool);
    VkCommandBufferAllocateInfo c = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = d->pool,
                                     .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1};
    r = r ? r : d->AllocateCommandBuffers(d->device, &c, &d->commands);
    r = r ? r : d->CreateFence(d->device, &f, NULL, &d->fence);
    return r ? vulkan_failed(d, "vkCreateCommandPool", r, e) : vulkan_memory_new(d, STAGING, true, &d->staging, e);
}

/* ---- kernels ---- */

struct driver_kernel *vulkan_load(struct driver_device *d, const struct gpu_code *code, struct err *e)
{
    VkShaderModuleCreateInfo s = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = code->size, .pCode = code->binary};
    VkShaderModule module = VK_NULL_HANDLE;
    struct driver_kernel *k = mem_alloc(sizeof *k);
    if (!k) {
        err_set(e, KL_ERR_MEMORY, "device %s: no memory to load a kernel", d->name);
        return NULL;
    }
    VkResult r = d->CreateShaderModule(d->device, &s, NULL, &module);
    VkComputePipelineCreateInfo p = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO, .layout = d->layout,
                                     .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                               .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module, .pName = "main"}};
    r = r ? r : d->CreateComputePipelines(d->device, VK_NULL_HANDLE, 1, &p, NULL, &k->pipeline);
    if (module)
        d->DestroyShaderModule(d->device, module, NULL);
    if (!r)
        return k;
    vulkan_failed(d, "vkCreateComputePipelines", r, e);
    mem_free(k);
    return NULL;
}

void vulkan_unload(struct driver_device *d, struct driver_kernel *k)
{
    struct err ignored = {0};
    vulkan_finish(d, &ignored);
    d->DestroyPipeline(d->device, k->pipeline, NULL);
    mem_free(k);
}

/* ---- the batch ---- */

static bool record(struct driver_device *d, struct err *e)
{
    VkCommandBufferBeginInfo b = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                  .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    if (d->lost)
        return vulkan_failed(d, "vkQueueSubmit", VK_ERROR_DEVICE_LOST, e);
    if (d->recording)
        return true;
    VkResult r = d->BeginCommandBuffer(d->commands, &b);
    d->recording = !r;
    return !r || vulkan_failed(d, "vkBeginCommandBuffer", r, e);
}

/* All that follows sees what was stored so far, in stages `to`. */
static void order(struct driver_device *d, VkPipelineStageFlags to, VkAccessFlags access)
{
    VkMemoryBarrier b = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                         .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT, .dstAccessMask = access};
    d->CmdPipelineBarrier(d->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT, to, 0, 1, &b, 0,
                          NULL, 0, NULL);
}

static void order_work(struct driver_device *d)
{
    order(d, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
          VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT);
}

static VkResult reset(struct driver_device *d)
{
    d->recording = false;
    for (uint32_t i = 0; i < d->nchunk; i++)
        d->chunk[i].used = 0;
    return d->ResetCommandPool(d->device, d->pool, 0);
}

void vulkan_drop(struct driver_device *d) { reset(d); }

bool vulkan_finish(struct driver_device *d, struct err *e)
{
    VkSubmitInfo s = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &d->commands};
    if (!d->recording)
        return !d->lost || vulkan_failed(d, "vkQueueSubmit", VK_ERROR_DEVICE_LOST, e);
    d->recording = false;
    order(d, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
    VkResult r = d->EndCommandBuffer(d->commands);
    r = r ? r : d->QueueSubmit(d->queue, 1, &s, d->fence);
    r = r ? r : d->WaitForFences(d->device, 1, &d->fence, VK_TRUE, UINT64_MAX);
    r = r ? r : d->ResetFences(d->device, 1, &d->fence);
    VkResult again = reset(d);
    r = r ? r : again;
    return !r || vulkan_failed(d, "vkQueueSubmit", r, e);
}

/* ---- what kernels are given ---- */

/* Room for bytes that the device reads in this batch: *c and where in it. */
static bool chunk_room(struct driver_device *d, size_t bytes, struct chunk **c, size_t *at, struct err *e)
{
    bytes = (bytes + 63) & ~(size_t)63;
    for (uint32_t i = 0; i < d->nchunk; i++)
        if (bytes <= d->chunk[i].m.bytes - d->chunk[i].used) {
            *c = &d->chunk[i];
            *at = (*c)->used;
            (*c)->used += bytes;
            return true;
        }
    if (!mem_reserve(&d->chunk, &d->chunk_cap, d->nchunk + 1, sizeof *d->chunk))
        return err_set(e, KL_ERR_MEMORY, "device %s: no memory for the arguments of kernels", d->name);
    *c = &d->chunk[d->nchunk];
    if (!vulkan_memory_new(d, bytes > CHUNK ? bytes : CHUNK, true, &(*c)->m, e))
        return false;
    (*c)->used = bytes;
    *at = 0;
    d->nchunk++;
    return true;
}

bool vulkan_stage(struct driver_device *d, const void *data, size_t bytes, void **address, struct err *e)
{
    struct chunk *c;
    size_t at;
    if (!record(d, e) || !chunk_room(d, bytes, &c, &at, e))
        return false;
    if (bytes)
        memcpy(c->m.mapped + at, data, bytes);
    *address = (void *)(uintptr_t)(c->m.address + at);
    return true;
}

bool vulkan_launch(struct driver_device *d, const struct launch *l, struct err *e)
{
    void *table;
    uint64_t address[256];
    if (l->n > sizeof address / sizeof *address)
        return err_set(e, KL_ERR_COMPILE, "device %s: a kernel has %u arguments", d->name, l->n);
    for (uint32_t i = 0; i < l->n; i++)
        address[i] = (uintptr_t)l->buffer[i];
    if (!vulkan_stage(d, address, l->n * sizeof *address, &table, e))
        return false;
    struct constants c = {(uintptr_t)table, (uintptr_t)l->slots, l->begin, l->end};
    d->CmdBindPipeline(d->commands, VK_PIPELINE_BIND_POINT_COMPUTE, l->kernel->pipeline);
    d->CmdPushConstants(d->commands, d->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof c, &c);
    d->CmdDispatch(d->commands, l->blocks < d->max_blocks ? l->blocks : d->max_blocks, 1, 1);
    order_work(d);
    return true;
}

/* ---- copies ---- */

static bool unknown(const struct driver_device *d, struct err *e)
{
    return err_set(e, KL_ERR_INTERNAL, "device %s: an address is in none of its buffers", d->name);
}

bool vulkan_copy(struct driver_device *d, void *to, const void *from, size_t bytes, struct err *e)
{
    VkBufferCopy c = {.size = bytes};
    const struct memory *a = vulkan_find(d, from, bytes, &c.srcOffset), *b = vulkan_find(d, to, bytes, &c.dstOffset);
    if (!bytes)
        return true;
    if (!a || !b)
        return unknown(d, e);
    if (!record(d, e))
        return false;
    d->CmdCopyBuffer(d->commands, a->buffer, b->buffer, 1, &c);
    order_work(d);
    return true;
}

/* Few bytes wait with the arguments of kernels; many go at once, part by part. */
bool vulkan_upload(struct driver_device *d, void *to, const void *data, size_t bytes, struct err *e)
{
    VkDeviceSize offset;
    const struct memory *m = vulkan_find(d, to, bytes, &offset);
    for (size_t done = 0, part; done < bytes; done += part) {
        bool small = bytes <= SMALL;
        size_t at = 0;
        struct chunk *c = NULL;
        part = bytes - done < STAGING ? bytes - done : STAGING;
        if (!m)
            return unknown(d, e);
        if (!record(d, e) || (small && !chunk_room(d, part, &c, &at, e)))
            return false;
        const struct memory *through = small ? &c->m : &d->staging;
        memcpy(through->mapped + at, (const char *)data + done, part);
        d->CmdCopyBuffer(d->commands, through->buffer, m->buffer, 1, &(VkBufferCopy){at, offset + done, part});
        order_work(d);
        if (!small && !vulkan_finish(d, e))
            return false;
    }
    return true;
}

bool vulkan_download(struct driver_device *d, void *data, const void *from, size_t bytes, struct err *e)
{
    VkDeviceSize offset;
    const struct memory *m = vulkan_find(d, from, bytes, &offset);
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < STAGING ? bytes - done : STAGING;
        if (!m)
            return unknown(d, e);
        if (!record(d, e))
            return false;
        d->CmdCopyBuffer(d->commands, m->buffer, d->staging.buffer, 1, &(VkBufferCopy){offset + done, 0, part});
        if (!vulkan_finish(d, e))
            return false;
        memcpy((char *)data + done, d->staging.mapped, part);
    }
    return true;
}
