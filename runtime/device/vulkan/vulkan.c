/* Vulkan: finds the loader and its devices, and opens one.  A device must have Vulkan 1.2, addresses of buffers and
 * 64-bit integers.  A library that a driver has opened is never closed, because it has threads and exit handlers. */
#include "runtime/device/driver.h"
#ifdef KILN_VULKAN
#include "vulkan.h"
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

enum { MAX_COUNT = 8 };

static struct vulkan_instance vk;
static struct {
    uint32_t n;
    VkPhysicalDevice device[MAX_COUNT];
    struct err err;
} found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

bool vulkan_failed(struct driver_device *d, const char *call, VkResult r, struct err *e)
{
    d->lost |= r == VK_ERROR_DEVICE_LOST;
    if (r == VK_ERROR_OUT_OF_HOST_MEMORY || r == VK_ERROR_OUT_OF_DEVICE_MEMORY)
        return err_set(e, KL_ERR_MEMORY, "device %s: %s: out of memory", d->name, call);
    if (r == VK_ERROR_DEVICE_LOST)
        return err_set(e, KL_ERR_DEVICE, "device %s was lost; values on it are gone, other devices go on", d->name);
    return err_set(e, KL_ERR_DEVICE, "device %s: %s gives error %d", d->name, call, (int)r);
}

/* ---- the instance ---- */

static bool open_loader(void)
{
    void *so = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!so)
        return err_set(&found.err, KL_ERR_DEVICE, "%s (Debian: libvulkan1, and a driver such as mesa-vulkan-drivers)",
                       dlerror());
    *(void **)&vk.get = dlsym(so, "vkGetInstanceProcAddr");
    return vk.get || err_set(&found.err, KL_ERR_DEVICE, "libvulkan.so.1 has no vkGetInstanceProcAddr");
}

static bool open_instance(void)
{
    VkApplicationInfo a = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .pEngineName = "kiln",
                           .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo i = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &a};
    PFN_vkCreateInstance create;
    *(PFN_vkVoidFunction *)&create = vk.get(NULL, "vkCreateInstance");
    VkResult r = create ? create(&i, NULL, &vk.instance) : VK_ERROR_INITIALIZATION_FAILED;
    if (r)
        return err_set(&found.err, KL_ERR_DEVICE, r == VK_ERROR_INCOMPATIBLE_DRIVER ? "there is no driver of Vulkan"
                                               : "vkCreateInstance gives error %d", (int)r);
#define X(name) *(PFN_vkVoidFunction *)&vk.name = vk.get(vk.instance, "vk" #name);
    VULKAN_INSTANCE(X)
#undef X
    return true;
}

static unsigned rank_of(VkPhysicalDevice p)
{
    static const unsigned rank[] = {[VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU] = 4,
                                    [VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU] = 3,
                                    [VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU] = 2, [VK_PHYSICAL_DEVICE_TYPE_CPU] = 1};
    VkPhysicalDeviceProperties2 q = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    vk.GetPhysicalDeviceProperties2(p, &q);
    return q.properties.deviceType <= VK_PHYSICAL_DEVICE_TYPE_CPU ? rank[q.properties.deviceType] : 0;
}

/* In the loader's order, but with GPUs before software devices. */
static void vulkan_find_devices(void)
{
    if (!open_loader() || !open_instance())
        return;
    found.n = MAX_COUNT;
    VkResult r = vk.EnumeratePhysicalDevices(vk.instance, &found.n, found.device);
    if (r < 0 || !found.n) {
        found.n = 0;
        err_set(&found.err, KL_ERR_DEVICE, "there is no driver of Vulkan for any device");
    }
    for (uint32_t i = 1; i < found.n; i++)
        for (uint32_t k = i; k && rank_of(found.device[k]) > rank_of(found.device[k - 1]); k--) {
            VkPhysicalDevice p = found.device[k];
            found.device[k] = found.device[k - 1];
            found.device[k - 1] = p;
        }
}

static unsigned vulkan_count(struct err *e)
{
    pthread_once(&once, vulkan_find_devices);
    if (!found.n)
        err_set(e, found.err.code, "%s", found.err.msg);
    return found.n;
}

/* ---- one device ---- */

struct features {
    VkPhysicalDeviceFeatures2 all;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceVulkan13Features v13;
    struct vulkan_matrices matrices;
};

/* The features of Vulkan 1.3 are queried only if the device has this version. */
static void features_chain(struct features *f, bool has_13)
{
    *f = (struct features){.all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &f->v11},
                           .v11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &f->v12},
                           .v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                   .pNext = has_13 ? &f->v13 : NULL},
                           .v13 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES}};
}

static bool compute_family(struct driver_device *d, struct err *e)
{
    VkQueueFamilyProperties family[16];
    uint32_t n = 16;
    vk.GetPhysicalDeviceQueueFamilyProperties(d->physical, &n, family);
    for (d->family = 0; d->family < n; d->family++)
        if (family[d->family].queueFlags & VK_QUEUE_COMPUTE_BIT) {
            uint32_t bits = family[d->family].timestampValidBits;
            d->tick_mask = bits < 64 ? (UINT64_C(1) << bits) - 1 : UINT64_MAX;
            return true;
        }
    return err_set(e, KL_ERR_DEVICE, "device %s has no queue for computing", d->name);
}

/* The size of a subgroup whose lanes can exchange values of all types, if a block can consist of full subgroups; 0:
 * kernels cannot use subgroups. */
static uint32_t usable_subgroup_size(const VkPhysicalDeviceVulkan11Properties *p, const struct features *f)
{
    bool exchange = (p->subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) &&
        (p->subgroupSupportedOperations & VK_SUBGROUP_FEATURE_SHUFFLE_BIT);
    uint32_t n = p->subgroupSize;
    return exchange && f->v12.shaderSubgroupExtendedTypes && f->v13.computeFullSubgroups && n > 1 && n <= 128 &&
        !(n & (n - 1)) ? n : 0;
}

/* The limits of threads and bytes of shared memory of a block, up to what kernels use. */
static uint32_t block_threads(const VkPhysicalDeviceLimits *l)
{
    uint32_t max = l->maxComputeWorkGroupInvocations;
    max = max < l->maxComputeWorkGroupSize[0] ? max : l->maxComputeWorkGroupSize[0];
    return max < MAX_GPU_VECTOR ? max : MAX_GPU_VECTOR;
}

static uint32_t shared_bytes(const VkPhysicalDeviceLimits *l)
{
    const uint32_t max = 48 << 10;
    return l->maxComputeSharedMemorySize < max ? l->maxComputeSharedMemorySize : max;
}

/* Sets the dtypes of the device and its limits from the features that it reports. */
static void vulkan_describe(const VkPhysicalDeviceProperties *p, const VkPhysicalDeviceVulkan12Properties *driver,
                            const VkPhysicalDeviceVulkan11Properties *groups, const struct features *f,
                            uint32_t subgroup, const char *matrices, struct caps *caps)
{
    char limits[192];
    int n = snprintf(limits, sizeof limits, "+threads%u+shared%u", block_threads(&p->limits), shared_bytes(&p->limits));
    if (subgroup)
        n += snprintf(limits + n, sizeof limits - (size_t)n, "+subgroup%u", subgroup);
    if (subgroup && p->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU &&
        (groups->subgroupSupportedOperations & VK_SUBGROUP_FEATURE_BALLOT_BIT))
        n += snprintf(limits + n, sizeof limits - (size_t)n, "+broadcast%u", subgroup);
    bool zeros = driver->shaderSignedZeroInfNanPreserveFloat32 &&
        (driver->shaderSignedZeroInfNanPreserveFloat64 || !f->all.features.shaderFloat64);
    snprintf(limits + n, sizeof limits - (size_t)n, "%s%s", zeros ? "+signed_zeros" : "", matrices);
    bool b16 = f->v11.storageBuffer16BitAccess && f->all.features.shaderInt16, b8 = f->v12.storageBuffer8BitAccess &&
        f->v12.shaderInt8;
    if (p->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU)
        caps->threads = 1; /* a core computes few large kernels better than many small ones */
    if (driver->driverID == VK_DRIVER_ID_MESA_LLVMPIPE)
        caps->loop_limit = 65535; /* Mesa's LP_MAX_TGSI_LOOP_ITERATIONS: the limit of the iterations of all loops of a
                                     shader together */
    snprintf(caps->name, sizeof caps->name, "%.63s", p->deviceName);
    snprintf(caps->features, sizeof caps->features,
             "+f32+i32+u32+i64+u64%s%s%s%s driver %.99s %.99s (%u), Vulkan %u.%u",
             b8 ? "+bool+i8+u8" : "", b16 ? "+i16+u16+f16+bf16" : "", f->all.features.shaderFloat64 ? "+f64" : "",
             limits, driver->driverName, driver->driverInfo, p->driverVersion, VK_API_VERSION_MAJOR(p->apiVersion),
                 VK_API_VERSION_MINOR(p->apiVersion));
}

static void set_limits(struct driver_device *d, const VkPhysicalDeviceProperties *p, uint64_t max_allocated,
                       uint64_t most_of_buffer)
{
    d->max_blocks = p->limits.maxComputeWorkGroupCount[0];
    d->tick = 1e-9 * (double)p->limits.timestampPeriod;
    d->max_bytes = most_of_buffer && most_of_buffer < max_allocated ? most_of_buffer : max_allocated;
    int n = snprintf(d->cache_id, sizeof d->cache_id, "%08x %08x %08x ", p->vendorID, p->deviceID, p->driverVersion);
    for (unsigned i = 0; i < VK_UUID_SIZE; i++)
        n += snprintf(d->cache_id + n, sizeof d->cache_id - (size_t)n, "%02x", p->pipelineCacheUUID[i]);
}

/* Enables what kernels with cooperative matrices use, if the device has all of it. */
static void ask_matrices(const struct driver_device *d, struct features *f, const struct features *has)
{
    f->matrices = (struct vulkan_matrices){0};
    if (!d->subgroup || !has->v12.vulkanMemoryModel || !has->v12.shaderFloat16 || !has->all.features.shaderInt16 ||
        !has->v11.storageBuffer16BitAccess)
        return;
    vulkan_matrices_find(&vk, d->physical, &f->matrices);
    if (!f->matrices.nextension)
        return;
    f->v12.vulkanMemoryModel = f->v12.shaderFloat16 = VK_TRUE;
    f->v13.pNext = &f->matrices.features;
}

/* Enables the features of the device that kernels can use, and no others. */
static bool ask_features(struct driver_device *d, struct features *f, struct caps *caps, struct err *e)
{
    VkPhysicalDeviceVulkan13Properties buffers = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES};
    VkPhysicalDeviceVulkan11Properties lanes = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES};
    VkPhysicalDeviceVulkan12Properties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES,
                                                 .pNext = &lanes};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &driver};
    struct features has;
    vk.GetPhysicalDeviceProperties2(d->physical, &p);
    if (p.properties.apiVersion >= VK_API_VERSION_1_3) {
        lanes.pNext = &buffers;
        vk.GetPhysicalDeviceProperties2(d->physical, &p);
    }
    features_chain(&has, p.properties.apiVersion >= VK_API_VERSION_1_3);
    features_chain(f, p.properties.apiVersion >= VK_API_VERSION_1_3);
    if (p.properties.apiVersion < VK_API_VERSION_1_2)
        return err_set(e, KL_ERR_DEVICE, "device %s (%s) has Vulkan %u.%u, not 1.2", d->name, p.properties.deviceName,
                       VK_API_VERSION_MAJOR(p.properties.apiVersion), VK_API_VERSION_MINOR(p.properties.apiVersion));
    vk.GetPhysicalDeviceFeatures2(d->physical, &has.all);
    if (!has.v12.bufferDeviceAddress || !has.all.features.shaderInt64)
        return err_set(e, KL_ERR_DEVICE, "device %s (%s) has no %s", d->name, p.properties.deviceName,
                       has.all.features.shaderInt64 ? "addresses of buffers" : "64-bit integers");
    f->all.features.shaderInt64 = f->v12.bufferDeviceAddress = VK_TRUE;
    f->all.features.shaderFloat64 = has.all.features.shaderFloat64;
    f->all.features.shaderInt16 = has.all.features.shaderInt16;
    f->v11.storageBuffer16BitAccess = has.v11.storageBuffer16BitAccess;
    f->v12.storageBuffer8BitAccess = has.v12.storageBuffer8BitAccess;
    f->v12.shaderInt8 = has.v12.shaderInt8;
    f->v12.shaderBufferInt64Atomics = has.v12.shaderBufferInt64Atomics;
    d->subgroup = usable_subgroup_size(&lanes, &has);
    f->v12.shaderSubgroupExtendedTypes = f->v13.computeFullSubgroups = d->subgroup != 0;
    ask_matrices(d, f, &has);
    set_limits(d, &p.properties, lanes.maxMemoryAllocationSize, buffers.maxBufferSize);
    vulkan_describe(&p.properties, &driver, &lanes, &has, d->subgroup, f->matrices.words, caps);
    return true;
}

static bool vulkan_create_device(struct driver_device *d, const struct features *f, struct err *e)
{
    float priority = 1;
    VkDeviceQueueCreateInfo q = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueFamilyIndex = d->family,
                                 .queueCount = 1,
                                 .pQueuePriorities = &priority};
    VkDeviceCreateInfo c = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &f->all, .queueCreateInfoCount = 1,
                            .pQueueCreateInfos = &q,
                            .enabledExtensionCount = f->matrices.nextension,
                            .ppEnabledExtensionNames = f->matrices.extension};
    VkResult r = vk.CreateDevice(d->physical, &c, NULL, &d->device);
    if (r)
        return vulkan_failed(d, "vkCreateDevice", r, e);
#define X(name) *(PFN_vkVoidFunction *)&d->name = vk.GetDeviceProcAddr(d->device, "vk" #name);
    VULKAN_DEVICE(X)
#undef X
    vk.GetPhysicalDeviceMemoryProperties(d->physical, &d->types);
    return true;
}

static void vulkan_destroy_device(struct driver_device *d)
{
    if (d->device) {
        for (unsigned i = 0; i < UPLOADS; i++)
            vulkan_memory_free(d, &d->upload[i].m);
        vulkan_memory_free(d, &d->download.m);
        vulkan_batches_free(d);
        d->DestroyPipelineLayout(d->device, d->layout, NULL);
        d->DestroyQueryPool(d->device, d->times, NULL);
        d->DestroyDevice(d->device, NULL);
    }
    mem_free(d);
}

static struct driver_device *vulkan_open_device(unsigned index, struct caps *caps, struct err *e)
{
    struct features f;
    if (index >= vulkan_count(e)) {
        if (found.n)
            err_set(e, KL_ERR_DEVICE, "there is no device vulkan:%u, there are %u", index, found.n);
        return NULL;
    }
    struct driver_device *d = mem_alloc(sizeof *d);
    if (!d) {
        err_set(e, KL_ERR_MEMORY, "no memory for device vulkan:%u", index);
        return NULL;
    }
    snprintf(d->name, sizeof d->name, "vulkan:%u", index);
    d->physical = found.device[index];
    if (ask_features(d, &f, caps, e) && compute_family(d, e) && vulkan_create_device(d, &f, e) && vulkan_queue_new(d,
                                                                                                                   e))
        return d;
    vulkan_destroy_device(d);
    return NULL;
}

const struct driver driver_vulkan = {.name = "vulkan", .dialect = "glsl",
                                     .count = vulkan_count, .open = vulkan_open_device,
                                     .alloc = vulkan_alloc, .release = vulkan_release,
                                     .load = vulkan_load, .unload = vulkan_unload,
                                     .launch = vulkan_launch, .copy = vulkan_copy, .upload = vulkan_upload,
                                     .download = vulkan_download, .submit = vulkan_submit, .finish = vulkan_finish,
                                     .list = vulkan_list_issued, .repeat = vulkan_repeat, .drop = vulkan_drop,
                                     .time_begin = vulkan_time_begin, .time_end = vulkan_time_end};
#else
const struct driver driver_vulkan = {.name = "vulkan", .dialect = "glsl",
                                     .absent = "Vulkan is not built into this Kiln"};
#endif
