/* Vulkan: memory.  Every block is a buffer whose address kernels are given. */
#include "runtime/vulkan.h"
#include <string.h>

/* The first type of memory allowed that has all the flags; -1: none. */
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
    return true;
}

void vulkan_memory_free(struct driver_device *d, struct memory *m)
{
    if (m->buffer)
        d->DestroyBuffer(d->device, m->buffer, NULL);
    if (m->memory)
        d->FreeMemory(d->device, m->memory, NULL);
    *m = (struct memory){0};
}

/* The number of the last block that begins at or below an address, + 1. */
static uint32_t place_of(const struct driver_device *d, uint64_t address)
{
    uint32_t lo = 0, hi = d->nmemory;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (d->memory[mid].address <= address)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

bool vulkan_alloc(struct driver_device *d, size_t bytes, void **address, struct err *e)
{
    struct memory m;
    if (!mem_reserve(&d->memory, &d->memory_cap, d->nmemory + 1, sizeof *d->memory))
        return err_set(e, KL_ERR_MEMORY, "device %s: no memory for the list of its buffers", d->name);
    if (!vulkan_memory_new(d, bytes, false, &m, e))
        return false;
    uint32_t at = place_of(d, m.address);
    memmove(d->memory + at + 1, d->memory + at, (d->nmemory - at) * sizeof m);
    d->memory[at] = m;
    d->nmemory++;
    *address = (void *)(uintptr_t)m.address;
    return true;
}

void vulkan_release(struct driver_device *d, void *address)
{
    struct err ignored = {0};
    uint32_t at = place_of(d, (uintptr_t)address);
    if (!at || d->memory[at - 1].address != (uintptr_t)address)
        return;
    vulkan_finish(d, &ignored); /* a device that is lost uses nothing */
    vulkan_memory_free(d, &d->memory[at - 1]);
    memmove(d->memory + at - 1, d->memory + at, (d->nmemory - at) * sizeof *d->memory);
    d->nmemory--;
}

const struct memory *vulkan_find(const struct driver_device *d, const void *address, size_t bytes, VkDeviceSize *offset)
{
    uint32_t at = place_of(d, (uintptr_t)address);
    const struct memory *m = at ? &d->memory[at - 1] : NULL;
    *offset = m ? (uintptr_t)address - m->address : 0;
    return m && *offset <= m->bytes && bytes <= m->bytes - *offset ? m : NULL;
}
