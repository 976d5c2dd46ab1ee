/* Vulkan: work: kernels, launches and copies. */
#include "vulkan.h"
#include <string.h>

enum { STAGING = 8 << 20, SMALL = 64 << 10 };

struct driver_kernel { VkPipeline pipeline; };

bool vulkan_queue_new(struct driver_device *d, struct err *e)
{
    VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(struct constants)};
    VkPipelineLayoutCreateInfo l = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .pushConstantRangeCount = 1,
                                    .pPushConstantRanges = &range};
    d->GetDeviceQueue(d->device, d->family, 0, &d->queue);
    VkResult r = d->CreatePipelineLayout(d->device, &l, NULL, &d->layout);
    if (r)
        return vulkan_failed(d, "vkCreatePipelineLayout", r, e);
    return vulkan_batches_new(d, e) && vulkan_memory_new(d, STAGING, true, &d->staging, e);
}

/* ---- kernels ---- */

struct driver_kernel *vulkan_load(struct driver_device *d, const struct gpu_code *code, struct err *e)
{
    VkShaderModuleCreateInfo s = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = code->size,
                                  .pCode = code->binary};
    VkShaderModule module = VK_NULL_HANDLE;
    bool whole = d->subgroup && code->threads % d->subgroup == 0; /* subgroups: as the kernel's source takes them */
    struct driver_kernel *k = mem_alloc(sizeof *k);
    if (!k) {
        err_set(e, KL_ERR_MEMORY, "device %s: no memory to load a kernel", d->name);
        return NULL;
    }
    VkResult r = d->CreateShaderModule(d->device, &s, NULL, &module);
    VkComputePipelineCreateInfo p = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .layout = d->layout,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .flags = whole ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT : 0,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main"}};
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
    vulkan_forget(d);
    d->DestroyPipeline(d->device, k->pipeline, NULL);
    mem_free(k);
}

bool vulkan_launch(struct driver_device *d, const struct launch *l, struct err *e)
{
    struct work op = {.pipeline = l->kernel->pipeline, .b = (uintptr_t)l->slots, .begin = (uint64_t)l->begin,
                      .end = (uint64_t)l->end,
                    .blocks = l->blocks < d->max_blocks ? l->blocks : d->max_blocks};
    char *table = vulkan_data(d, l->n * sizeof(uint64_t), &op.a, e);
    for (uint32_t i = 0; i < l->n && table; i++) {
        uint64_t address = (uintptr_t)l->buffer[i];
        memcpy(table + i * sizeof address, &address, sizeof address);
    }
    return table && vulkan_give(d, &op, e);
}

/* ---- copies ---- */

static bool unknown(const struct driver_device *d, struct err *e)
{
    return err_set(e, KL_ERR_INTERNAL, "device %s: an address is in none of its buffers", d->name);
}

bool vulkan_copy(struct driver_device *d, void *to, const void *from, size_t bytes, struct err *e)
{
    struct work op = {.begin = bytes};
    const struct memory *a = vulkan_find(d, from, bytes, &op.a), *b = vulkan_find(d, to, bytes, &op.b);
    if (!bytes)
        return true;
    if (!a || !b)
        return unknown(d, e);
    op.from = a->buffer;
    op.to = b->buffer;
    return vulkan_give(d, &op, e);
}

/* Few bytes go with the commands; many go at once, part by part. */
bool vulkan_upload(struct driver_device *d, void *to, const void *data, size_t bytes, struct err *e)
{
    VkDeviceSize offset;
    const struct memory *m = vulkan_find(d, to, bytes, &offset);
    for (size_t done = 0, part; done < bytes; done += part) {
        struct work op = {0};
        bool small = bytes <= SMALL;
        part = bytes - done < STAGING ? bytes - done : STAGING;
        if (!m)
            return unknown(d, e);
        char *p = small ? vulkan_data(d, part, &op.a, e) : vulkan_finish(d, e) ? d->staging.mapped : NULL;
        if (!p)
            return false;
        memcpy(p, (const char *)data + done, part);
        op.from = small ? VK_NULL_HANDLE : d->staging.buffer;
        op.to = m->buffer;
        op.b = offset + done;
        op.begin = part;
        if (!vulkan_give(d, &op, e) || !(small || vulkan_submit(d, e)))
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
        struct work op = {.from = m->buffer, .to = d->staging.buffer, .a = offset + done, .begin = part};
        if (!vulkan_give(d, &op, e) || !vulkan_finish(d, e))
            return false;
        memcpy((char *)data + done, d->staging.mapped, part);
    }
    return true;
}
