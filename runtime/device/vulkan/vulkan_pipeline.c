/* Vulkan: pipelines, which are kernels that the driver has compiled.  The driver's data for a pipeline
 * (VkPipelineCache) is an entry of the disk cache, next to the kernel's entry.  Its key consists of the device, the
 * driver and the SPIR-V.  If the driver cannot use an entry, it compiles the kernel. */
#include "runtime/program/program.h"
#include "vulkan.h"
#include <inttypes.h>

/* ---- the entry ---- */

static bool pipeline_key(const struct driver_device *d, const struct gpu_code *code, struct disk_key *key)
{
    struct hash128 h = bytes_hash(code->binary, code->size);
    char text[192];
    snprintf(text, sizeof text, "pipeline of Vulkan\n%s\n%016" PRIx64 "%016" PRIx64 " %zu\n", d->cache_id, h.hi, h.lo,
             code->size);
    return disk_key_text(key, text, "pipeline");
}

/* Makes a cache with the entry's data.  VK_NULL_HANDLE: the driver cannot make one, and the pipeline is made without
 * it. */
static VkPipelineCache open_cache(struct driver_device *d, const struct disk_code *entry)
{
    VkPipelineCacheCreateInfo c = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
                                   .initialDataSize = entry->code.size, .pInitialData = entry->code.bytes};
    VkPipelineCache cache = VK_NULL_HANDLE;
    return d->CreatePipelineCache(d->device, &c, NULL, &cache) ? VK_NULL_HANDLE : cache;
}

/* Writes the entry, unless the cache contains only its header. */
static void keep_cache(struct driver_device *d, VkPipelineCache cache, const struct disk_key *key)
{
    struct code data = {0};
    if (d->GetPipelineCacheData(d->device, cache, &data.size, NULL) ||
        data.size <= sizeof(VkPipelineCacheHeaderVersionOne) || !(data.bytes = mem_alloc(data.size)))
        return;
    if (!d->GetPipelineCacheData(d->device, cache, &data.size, data.bytes))
        disk_store(key, &data);
    mem_free(data.bytes);
}

/* ---- kernels ---- */

static VkResult make_pipeline(struct driver_device *d, const VkComputePipelineCreateInfo *p,
                              const struct gpu_code *code, VkPipeline *out)
{
    struct disk_key key;
    struct disk_code entry = {0};
    bool known = pipeline_key(d, code, &key), kept = known && disk_load(&key, &entry);
    VkPipelineCache cache = known ? open_cache(d, &entry) : VK_NULL_HANDLE;
    VkResult r = d->CreateComputePipelines(d->device, cache, 1, p, NULL, out);
    if (!r && !kept && cache)
        keep_cache(d, cache, &key);
    if (cache)
        d->DestroyPipelineCache(d->device, cache, NULL);
    mem_free(entry.file);
    disk_key_free(&key);
    return r;
}

struct driver_kernel *vulkan_load(struct driver_device *d, const struct gpu_code *code, struct err *e)
{
    VkShaderModuleCreateInfo s = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = code->size,
                                  .pCode = code->binary};
    VkShaderModule module = VK_NULL_HANDLE;
    bool whole = d->subgroup && code->threads % d->subgroup == 0; /* as where the kernel's source uses subgroups */
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
    r = r ? r : make_pipeline(d, &p, code, &k->pipeline);
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
