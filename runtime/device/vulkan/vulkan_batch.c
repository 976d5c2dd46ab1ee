/* Vulkan: batches of commands.  Commands are collected in a list until they are submitted as one command buffer.  A
 * barrier is recorded before the first command, and before each command that reads memory that was written since the
 * last barrier, or writes memory that was read or written since then.  If a step has the same commands as the step
 * before, the command buffer that was recorded for them is submitted again, with other bytes in its data.  A few
 * batches may be in flight at once; the queue executes them in order. */
#include "vulkan.h"
#include <string.h>

enum { DATA = 64 << 10 };

static bool batch_new(struct driver_device *d, struct batch *b, struct err *e)
{
    VkCommandPoolCreateInfo p = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .queueFamilyIndex = d->family};
    VkFenceCreateInfo f = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VkResult r = d->CreateCommandPool(d->device, &p, NULL, &b->pool);
    VkCommandBufferAllocateInfo c = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = b->pool,
                                     .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1};
    r = r ? r : d->AllocateCommandBuffers(d->device, &c, &b->commands);
    r = r ? r : d->CreateFence(d->device, &f, NULL, &b->fence);
    return !r || vulkan_failed(d, "vkCreateCommandPool", r, e);
}

bool vulkan_batches_new(struct driver_device *d, struct err *e)
{
    for (unsigned i = 0; i < BATCHES; i++)
        if (!batch_new(d, &d->batch[i], e))
            return false;
    return true;
}

void vulkan_batches_free(struct driver_device *d)
{
    for (unsigned i = 0; i < BATCHES; i++) {
        vulkan_memory_free(d, &d->batch[i].data);
        d->DestroyFence(d->device, d->batch[i].fence, NULL);
        d->DestroyCommandPool(d->device, d->batch[i].pool, NULL);
        mem_free(d->batch[i].op);
    }
    mem_free(d->op);
    mem_free(d->data);
    vulkan_lists_free(d);
}

/* ---- adding commands ---- */

char *vulkan_data(struct driver_device *d, size_t bytes, uint64_t *at, struct err *e)
{
    size_t end = d->used + ((bytes + 63) & ~(size_t)63);
    if (end > UINT32_MAX / 2 || !mem_reserve(&d->data, &d->data_cap, (uint32_t)end, 1)) {
        err_set(e, KL_ERR_MEMORY, "device %s: no memory for what goes with its commands", d->name);
        return NULL;
    }
    *at = d->used;
    d->used = (uint32_t)end;
    return d->data + *at;
}

/* Does a command that accesses this memory conflict with a command since the last barrier? */
static bool must_wait(const struct driver_device *d, const struct touched *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (const struct touched *o = d->touched; o < d->touched + d->ntouched; o++)
            if ((t[i].written || o->written) && t[i].begin < o->end && o->begin < t[i].end)
                return true;
    return d->ntouched + n > MAX_TOUCHED;
}

bool vulkan_give(struct driver_device *d, const struct work *op, const struct touched *t, uint32_t n, struct err *e)
{
    static const struct touched all = {0, UINT64_MAX, true};
    if (d->lost)
        return vulkan_failed(d, "vkQueueSubmit", VK_ERROR_DEVICE_LOST, e);
    if (!mem_reserve(&d->op, &d->op_cap, d->nop + 1, sizeof *d->op))
        return err_set(e, KL_ERR_MEMORY, "device %s: no memory for the list of its commands", d->name);
    d->repeated = 0;
    bool few = n <= MAX_TOUCHED, waits = !d->nop || must_wait(d, few ? t : &all, few ? n : 1);
    if (waits)
        d->ntouched = 0;
    memcpy(d->touched + d->ntouched, few ? t : &all, (few ? n : 1) * sizeof *t);
    d->ntouched += few ? n : 1;
    d->op[d->nop] = *op;
    d->op[d->nop++].waits = waits;
    return true;
}

void vulkan_drop(struct driver_device *d)
{
    d->nop = d->used = d->ntouched = 0;
    d->repeated = 0;
}

/* ---- recording ---- */

/* Records a barrier: commands after it, in stages `to`, see what commands before it have stored. */
static void vulkan_batch_order(struct driver_device *d, VkCommandBuffer c, VkPipelineStageFlags to,
                               VkAccessFlags access)
{
    VkMemoryBarrier b = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                         .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                             .dstAccessMask = access};
    d->CmdPipelineBarrier(c, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT, to, 0, 1, &b, 0,
                          NULL, 0, NULL);
}

static void vulkan_batch_put(struct driver_device *d, const struct batch *b, const struct work *op)
{
    if (op->pipeline) {
        struct constants c = {b->data.address + op->a, op->b, (int64_t)op->begin, (int64_t)op->end};
        d->CmdBindPipeline(b->commands, VK_PIPELINE_BIND_POINT_COMPUTE, op->pipeline);
        d->CmdPushConstants(b->commands, d->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof c, &c);
        d->CmdDispatch(b->commands, (uint32_t)op->blocks, 1, 1);
    } else if (!op->to) {
        if (!op->a)
            d->CmdResetQueryPool(b->commands, d->times, 0, 2);
        d->CmdWriteTimestamp(b->commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, d->times, (uint32_t)op->a);
    } else {
        d->CmdCopyBuffer(b->commands, op->from ? op->from : b->data.buffer, op->to, 1,
                         &(VkBufferCopy){op->a, op->b, op->begin});
    }
}

/* Records the pending commands in b. */
static VkResult batch_record_commands(struct driver_device *d, struct batch *b)
{
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    b->recorded = false;
    VkResult r = d->ResetCommandPool(d->device, b->pool, 0);
    r = r ? r : d->BeginCommandBuffer(b->commands, &begin);
    for (uint32_t i = 0; i < d->nop && !r; i++) {
        if (d->op[i].waits)
            vulkan_batch_order(d, b->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                               VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                                   VK_ACCESS_TRANSFER_WRITE_BIT);
        vulkan_batch_put(d, b, &d->op[i]);
    }
    if (!r)
        vulkan_batch_order(d, b->commands, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
    r = r ? r : d->EndCommandBuffer(b->commands);
    if (!r && mem_reserve(&b->op, &b->cap, d->nop, sizeof *b->op)) { /* without memory for the copy, the batch can be
                                                                        submitted only once */
        memcpy(b->op, d->op, d->nop * sizeof *b->op);
        b->n = d->nop;
        b->recorded = true;
    }
    return r;
}

/* ---- submitting ---- */

/* Waits for a batch if it was submitted. */
static VkResult wait_fence(struct driver_device *d, struct batch *b)
{
    VkResult r = b->flying ? d->WaitForFences(d->device, 1, &b->fence, VK_TRUE, UINT64_MAX) : VK_SUCCESS;
    r = r || !b->flying ? r : d->ResetFences(d->device, 1, &b->fence);
    b->flying &= r != 0 && !d->lost && r != VK_ERROR_DEVICE_LOST;
    return r;
}

static bool is_given(const struct driver_device *d, const struct batch *b)
{
    return b->recorded && b->n == d->nop && b->data.bytes >= d->used && !memcmp(b->op, d->op, d->nop * sizeof *b->op);
}

/* Chooses the batch for submitting the pending commands: a finished one that has exactly these commands recorded, else
 * a finished one, else the oldest. */
static struct batch *vulkan_batch_choose(struct driver_device *d)
{
    struct batch *best = NULL;
    for (struct batch *b = d->batch; b < d->batch + BATCHES; b++) {
        if (b->flying && d->GetFenceStatus(d->device, b->fence) == VK_SUCCESS)
            b->flying = d->ResetFences(d->device, 1, &b->fence) != VK_SUCCESS;
        if (!b->flying && is_given(d, b))
            return b;
        if (!best || b->flying < best->flying || (b->flying == best->flying && b->age < best->age))
            best = b;
    }
    return best;
}

static bool make_data(struct driver_device *d, struct batch *b, struct err *e)
{
    size_t bytes = DATA;
    if (d->used <= b->data.bytes)
        return true;
    while (bytes < d->used)
        bytes *= 2;
    vulkan_memory_free(d, &b->data);
    b->recorded = false;
    return vulkan_memory_new(d, bytes, true, &b->data, e);
}

static bool submit_batch(struct driver_device *d, struct batch *b, struct err *e)
{
    VkSubmitInfo s = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &b->commands};
    VkResult r = wait_fence(d, b);
    if (!r && !make_data(d, b, e))
        return false;
    r = r || is_given(d, b) ? r : batch_record_commands(d, b);
    if (!r && d->used)
        memcpy(b->data.mapped, d->data, d->used);
    r = r ? r : d->QueueSubmit(d->queue, 1, &s, b->fence);
    b->flying |= !r;
    b->age = ++d->age;
    return !r || vulkan_failed(d, "vkQueueSubmit", r, e);
}

bool vulkan_submit(struct driver_device *d, struct err *e)
{
    if (d->lost)
        return vulkan_failed(d, "vkQueueSubmit", VK_ERROR_DEVICE_LOST, e);
    if (d->nop)
        vulkan_list_keep(d);
    bool ok = !d->nop || submit_batch(d, vulkan_batch_choose(d), e);
    d->list = ok ? d->list : 0;
    vulkan_drop(d);
    return ok;
}

bool vulkan_wait(struct driver_device *d, uint64_t age, struct err *e)
{
    VkResult r = VK_SUCCESS;
    for (struct batch *b = d->batch; b < d->batch + BATCHES && !r; b++)
        if (b->flying && b->age <= age) /* the queue executes batches in order */
            r = wait_fence(d, b);
    return !r || vulkan_failed(d, "vkWaitForFences", r, e);
}

bool vulkan_finish(struct driver_device *d, struct err *e)
{
    bool ok = vulkan_submit(d, e);
    VkResult r = VK_SUCCESS;
    for (struct batch *b = d->batch; b < d->batch + BATCHES; b++) {
        VkResult own = wait_fence(d, b);
        r = r ? r : own;
    }
    return ok && (!r || vulkan_failed(d, "vkWaitForFences", r, e));
}

void vulkan_forget(struct driver_device *d)
{
    for (unsigned i = 0; i < BATCHES; i++)
        d->batch[i].recorded = false;
    vulkan_lists_forget(d);
}

/* ---- times ---- */

/* When the time is taken, all commands before it have ended, and no command after it has begun. */
static bool take_time(struct driver_device *d, uint64_t which, struct err *e)
{
    const struct touched all = {0, UINT64_MAX, true};
    return vulkan_give(d, &(struct work){.a = which}, &all, 1, e);
}

bool vulkan_time_begin(struct driver_device *d, struct err *e)
{
    if (!d->tick_mask || !(d->tick > 0))
        return err_set(e, KL_ERR_DEVICE, "device %s: its queue has no clock", d->name);
    return take_time(d, 0, e);
}

bool vulkan_time_end(struct driver_device *d, double *seconds, struct err *e)
{
    uint64_t time[2];
    if (!take_time(d, 1, e) || !vulkan_finish(d, e))
        return false;
    VkResult r = d->GetQueryPoolResults(d->device, d->times, 0, 2, sizeof time, time, sizeof *time,
                                        VK_QUERY_RESULT_64_BIT);
    *seconds = d->tick * (double)((time[1] - time[0]) & d->tick_mask);
    return !r || vulkan_failed(d, "vkGetQueryPoolResults", r, e);
}
