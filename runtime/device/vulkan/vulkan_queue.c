/* Vulkan: launches and copies. */
#include "vulkan.h"
#include "runtime/device/devices.h"
#include <string.h>

/* The largest copy between host and device, and the largest upload that is part of the commands' data, in bytes. */
enum { MAX_STAGING = 64 << 20, SMALL = 64 << 10 };

bool vulkan_queue_new(struct driver_device *d, struct err *e)
{
    VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(struct constants)};
    VkPipelineLayoutCreateInfo l = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .pushConstantRangeCount = 1,
                                    .pPushConstantRanges = &range};
    d->GetDeviceQueue(d->device, d->family, 0, &d->queue);
    VkResult r = d->CreatePipelineLayout(d->device, &l, NULL, &d->layout);
    if (r)
        return vulkan_failed(d, "vkCreatePipelineLayout", r, e);
    VkQueryPoolCreateInfo q = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                               .queryType = VK_QUERY_TYPE_TIMESTAMP, .queryCount = 2};
    r = d->CreateQueryPool(d->device, &q, NULL, &d->times);
    if (r)
        return vulkan_failed(d, "vkCreateQueryPool", r, e);
    return vulkan_batches_new(d, e);
}

/* ---- launches ---- */

static struct touched touched_range(uint64_t begin, uint64_t bytes, bool written)
{
    return (struct touched){begin, begin + bytes < begin ? UINT64_MAX : begin + bytes, written};
}

bool vulkan_launch(struct driver_device *d, const struct launch *l, struct err *e)
{
    struct work op = {.pipeline = l->kernel->pipeline, .b = (uintptr_t)l->slots, .begin = (uint64_t)l->begin,
                      .end = (uint64_t)l->end, .blocks = l->blocks < d->max_blocks ? l->blocks : d->max_blocks};
    struct touched t[MAX_TOUCHED] = {touched_range(0, UINT64_MAX, true)};
    uint32_t n = 1;
    char *table = vulkan_data(d, l->n * sizeof(uint64_t), &op.a, e);
    for (uint32_t i = 0; i < l->n && table; i++) {
        uint64_t address = (uintptr_t)l->buffer[i];
        memcpy(table + i * sizeof address, &address, sizeof address);
    }
    if (l->use && l->n < MAX_TOUCHED) {
        for (uint32_t i = 0; i < l->n; i++)
            t[i] = touched_range((uintptr_t)l->buffer[i], l->use[i].bytes, l->use[i].written);
        t[l->n] = touched_range((uintptr_t)l->slots, l->slots != NULL, false);
        n = l->n + 1;
    }
    return table && vulkan_give(d, &op, t, n, e);
}

/* ---- copies ---- */

static bool unknown_memory(const struct driver_device *d, struct err *e)
{
    return err_set(e, KL_ERR_INTERNAL, "device %s: an address is in none of its buffers", d->name);
}

static bool give_copy(struct driver_device *d, VkBuffer to, uint64_t to_offset, uint64_t to_address, VkBuffer from,
                      uint64_t from_offset, uint64_t from_address, size_t bytes, struct err *e)
{
    const struct work op = {.from = from, .to = to, .a = from_offset, .b = to_offset, .begin = bytes};
    const struct touched t[2] = {touched_range(to_address, bytes, true), touched_range(from_address, bytes, false)};
    return vulkan_give(d, &op, t, 2, e);
}

bool vulkan_copy(struct driver_device *d, void *to, const void *from, size_t bytes, struct err *e)
{
    VkDeviceSize a, b;
    const struct memory *m = vulkan_find(d, from, bytes, &a), *n = vulkan_find(d, to, bytes, &b);
    if (!bytes)
        return true;
    if (!m || !n)
        return unknown_memory(d, e);
    return give_copy(d, n->buffer, b, (uintptr_t)to, m->buffer, a, (uintptr_t)from, bytes, e);
}

/* Memory for a part of an upload, which no batch in flight uses.  NULL: *e. */
static struct staging *take_staging(struct driver_device *d, size_t bytes, struct err *e)
{
    struct staging *s = &d->upload[d->next_upload];
    d->next_upload = (d->next_upload + 1) % UPLOADS;
    return vulkan_wait(d, s->age, e) && vulkan_memory_grow(d, &s->m, bytes, e) ? s : NULL;
}

/* A small upload is part of the commands' data.  A large one is copied part by part; the host copies one part while the
 * device copies the part before. */
bool vulkan_upload(struct driver_device *d, void *to, const void *data, size_t bytes, struct err *e)
{
    VkDeviceSize offset;
    const struct memory *m = vulkan_find(d, to, bytes, &offset);
    for (size_t done = 0, part; done < bytes; done += part) {
        uint64_t at = 0, address = (uintptr_t)to + done;
        part = bytes - done < MAX_STAGING ? bytes - done : MAX_STAGING;
        if (!m)
            return unknown_memory(d, e);
        struct staging *s = bytes <= SMALL ? NULL : take_staging(d, part, e);
        char *p = s ? s->m.mapped : bytes <= SMALL ? vulkan_data(d, part, &at, e) : NULL;
        if (!p)
            return false;
        memcpy(p, (const char *)data + done, part);
        if (!give_copy(d, m->buffer, offset + done, address, s ? s->m.buffer : VK_NULL_HANDLE, at,
                       s ? s->m.address : 0, part, e) || (s && !vulkan_submit(d, e)))
            return false;
        if (s)
            s->age = d->age;
    }
    return true;
}

bool vulkan_download(struct driver_device *d, void *data, const void *from, size_t bytes, struct err *e)
{
    VkDeviceSize offset;
    const struct memory *m = vulkan_find(d, from, bytes, &offset), *host = &d->download.m;
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < MAX_STAGING ? bytes - done : MAX_STAGING;
        if (!m)
            return unknown_memory(d, e);
        if (!vulkan_memory_grow(d, &d->download.m, part, e) ||
            !give_copy(d, host->buffer, 0, host->address, m->buffer, offset + done, (uintptr_t)from + done, part, e) ||
            !vulkan_finish(d, e))
            return false;
        memcpy((char *)data + done, host->mapped, part);
    }
    return true;
}
