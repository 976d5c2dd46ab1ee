/* Vulkan: memory.  A block is a Vulkan buffer; most blocks contain many of the runtime's buffers, because a driver may
 * limit the number of allocations, and each takes long. */
#include "vulkan.h"
#include <inttypes.h>
#include <string.h>

enum { ALIGNED = 64 };            /* alignment in bytes; kernels need it to access several elements at once */

/* The first allowed memory type that has all the flags; -1: none. */
static int memory_type(const struct driver_device *d, uint32_t allowed, VkMemoryPropertyFlags flags)
{
    for (uint32_t i = 0; i < d->types.memoryTypeCount; i++)
        if ((allowed >> i & 1) && (d->types.memoryTypes[i].propertyFlags & flags) == flags)
            return (int)i;
    return -1;
}

static int choose_type(const struct driver_device *d, uint32_t allowed, bool host)
{
    VkMemoryPropertyFlags seen = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    int type = host ? memory_type(d, allowed, seen | VK_MEMORY_PROPERTY_HOST_CACHED_BIT)
                    : memory_type(d, allowed, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    return type >= 0 ? type : memory_type(d, allowed, host ? seen : 0);
}

bool vulkan_memory_new(struct driver_device *d, size_t bytes, bool host, struct memory *out, struct err *e)
{
    VkBufferCreateInfo b = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes,
                            .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                     VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT};
    VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                       .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkMemoryAllocateInfo a = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &flags};
    VkMemoryRequirements need;
    *out = (struct memory){.bytes = bytes};
    if (bytes > d->max_bytes)
        return err_set(e, KL_ERR_MEMORY, "device %s: a buffer of %zu bytes, where its driver has at most %" PRIu64,
                       d->name, bytes, d->max_bytes);
    VkResult r = d->CreateBuffer(d->device, &b, NULL, &out->buffer);
    if (r)
        return vulkan_failed(d, "vkCreateBuffer", r, e);
    d->GetBufferMemoryRequirements(d->device, out->buffer, &need);
    int type = choose_type(d, need.memoryTypeBits, host);
    a.allocationSize = need.size;
    a.memoryTypeIndex = type < 0 ? 0 : (uint32_t)type;
    r = type < 0 ? VK_ERROR_OUT_OF_DEVICE_MEMORY : d->AllocateMemory(d->device, &a, NULL, &out->memory);
    r = r ? r : d->BindBufferMemory(d->device, out->buffer, out->memory, 0);
    r = r || !host ? r : d->MapMemory(d->device, out->memory, 0, VK_WHOLE_SIZE, 0, (void **)&out->mapped);
    if (r) {
        vulkan_memory_free(d, out);
        return vulkan_failed(d, "vkAllocateMemory", r, e);
    }
    VkBufferDeviceAddressInfo of = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = out->buffer};
    out->address = d->GetBufferDeviceAddress(d->device, &of);
    if (out->address % ALIGNED == 0)
        return true;
    vulkan_memory_free(d, out);
    return err_set(e, KL_ERR_DEVICE, "device %s: its driver's buffers do not begin at multiples of %d bytes", d->name,
                   ALIGNED);
}

void vulkan_memory_free(struct driver_device *d, struct memory *m)
{
    if (m->buffer)
        d->DestroyBuffer(d->device, m->buffer, NULL);
    if (m->memory)
        d->FreeMemory(d->device, m->memory, NULL);
    *m = (struct memory){0};
}

bool vulkan_memory_grow(struct driver_device *d, struct memory *m, size_t bytes, struct err *e)
{
    enum { MIN_BYTES = 64 << 10 };
    size_t size = MIN_BYTES;
    if (bytes <= m->bytes)
        return true;
    while (size < bytes)
        size *= 2;
    vulkan_forget(d);               /* command buffers that use it */
    vulkan_memory_free(d, m);
    return vulkan_memory_new(d, size, true, m, e);
}

/* ---- many buffers in one allocation ---- */

enum { BLOCK = 64 << 20, LARGE = BLOCK / 4, GRAIN = 256 }; /* bytes; a large buffer gets a block of its own */

/* The number + 1 of the last block that begins at or before an address. */
static uint32_t place_of(const struct driver_device *d, uint64_t address)
{
    uint32_t lo = 0, hi = d->nblock;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (d->block[mid].m.address <= address)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The number of b's range that begins at an offset. */
static uint32_t range_of(const struct block *b, uint64_t offset)
{
    uint32_t lo = 0, hi = b->n;
    while (lo + 1 < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (b->range[mid].offset <= offset)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static void range_remove(struct block *b, uint32_t i)
{
    memmove(b->range + i, b->range + i + 1, (b->n - i - 1) * sizeof *b->range);
    b->n--;
}

/* Takes the first free range of b that is long enough, and splits it.  Returns b->n if there is none, or no memory for
 * the list. */
static uint32_t range_take(struct block *b, uint64_t bytes)
{
    uint32_t i = 0;
    while (i < b->n && (b->range[i].used || b->range[i].bytes < bytes))
        i++;
    if (i == b->n || !mem_reserve(&b->range, &b->cap, b->n + 1, sizeof *b->range))
        return b->n;
    struct range *r = &b->range[i];
    if (r->bytes > bytes) {
        memmove(r + 2, r + 1, (b->n - i - 1) * sizeof *r);
        r[1] = (struct range){r->offset + bytes, r->bytes - bytes, false};
        b->n++;
    }
    *r = (struct range){r->offset, bytes, true};
    return i;
}

static void range_give_back(struct block *b, uint32_t i)
{
    b->range[i].used = false;
    for (int step = 0; step < 2; step++) { /* merges it with the range after it, then with the one before it */
        uint32_t first = step ? i - 1 : i;
        if ((step && !i) || first + 1 >= b->n || b->range[first].used || b->range[first + 1].used)
            continue;
        b->range[first].bytes += b->range[first + 1].bytes;
        range_remove(b, first + 1);
    }
}

static struct block *block_new(struct driver_device *d, size_t bytes, struct err *e)
{
    struct block b = {0};
    if (!mem_reserve(&d->block, &d->block_cap, d->nblock + 1, sizeof *d->block) ||
        !mem_reserve(&b.range, &b.cap, 1, sizeof *b.range)) {
        err_set(e, KL_ERR_MEMORY, "device %s: no memory for the list of its buffers", d->name);
        return NULL;
    }
    if (!vulkan_memory_new(d, bytes, false, &b.m, e)) {
        mem_free(b.range);
        return NULL;
    }
    b.range[b.n++] = (struct range){0, bytes, false};
    uint32_t at = place_of(d, b.m.address);
    memmove(d->block + at + 1, d->block + at, (d->nblock - at) * sizeof b);
    d->block[at] = b;
    d->nblock++;
    return &d->block[at];
}

static void block_free(struct driver_device *d, uint32_t at)
{
    vulkan_forget(d);
    vulkan_memory_free(d, &d->block[at].m);
    mem_free(d->block[at].range);
    memmove(d->block + at, d->block + at + 1, (d->nblock - at - 1) * sizeof *d->block);
    d->nblock--;
}

/* Takes a range of an existing block, else of a new one.  If there is no memory for a block of the usual size, the new
 * block has the size of the buffer. */
bool vulkan_alloc(struct driver_device *d, size_t bytes, void **address, struct err *e)
{
    struct block *b = NULL;
    struct err ignored = {0};
    uint32_t i = 0;
    bytes = bytes ? (bytes + GRAIN - 1) / GRAIN * GRAIN : GRAIN;
    if (d->lost)
        return vulkan_failed(d, "vkAllocateMemory", VK_ERROR_DEVICE_LOST, e);
    for (uint32_t n = 0; n < d->nblock && !b && bytes < LARGE; n++)
        if ((i = range_take(&d->block[n], bytes)) < d->block[n].n)
            b = &d->block[n];
    if (!b) {
        b = bytes < LARGE ? block_new(d, BLOCK, &ignored) : NULL;
        b = b ? b : block_new(d, bytes, e);
        if (!b)
            return false;
        i = range_take(b, bytes);
        if (i == b->n)
            return err_set(e, KL_ERR_MEMORY, "device %s: no memory for the list of its buffers", d->name);
    }
    *address = (void *)(uintptr_t)(b->m.address + b->range[i].offset);
    return true;
}

/* A block without used ranges is freed. */
void vulkan_release(struct driver_device *d, void *address)
{
    struct err ignored = {0};
    uint32_t at = place_of(d, (uintptr_t)address);
    if (!at)
        return;
    struct block *b = &d->block[at - 1];
    vulkan_finish(d, &ignored); /* a device that is lost uses no memory */
    range_give_back(b, range_of(b, (uintptr_t)address - b->m.address));
    if (b->n == 1 && !b->range[0].used)
        block_free(d, at - 1);
}

const struct memory *vulkan_find(const struct driver_device *d, const void *address, size_t bytes, VkDeviceSize *offset)
{
    uint32_t at = place_of(d, (uintptr_t)address);
    const struct memory *m = at ? &d->block[at - 1].m : NULL;
    *offset = m ? (uintptr_t)address - m->address : 0;
    return m && *offset <= m->bytes && bytes <= m->bytes - *offset ? m : NULL;
}
