/* <kiln/formats/dlpack.h>: makes DLPack structs of tensors and tensors of DLPack structs, in version 1.0 and in the
 * older layout. */
#include "frontend/formats/file_open.h"
#include <kiln/formats/dlpack.h>
#include <stdlib.h>
#include <string.h>

/* The layouts of dlpack.h. */
enum { DLPACK_MAJOR = 1, DLPACK_MINOR = 0, DLPACK_READ_ONLY = 1 };
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_ROCM = 10, DL_ROCM_HOST = 11 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };
struct dl_tensor {
    void *data;
    struct { int32_t type, id; } device;
    int32_t rank;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *dims, *strides; /* strides in elements; NULL: row-major */
    uint64_t byte_offset;
};
struct DLManagedTensor {
    struct dl_tensor t;
    void *ctx;
    void (*deleter)(struct DLManagedTensor *self);
};
struct DLManagedTensorVersioned {
    struct { uint32_t major, minor; } version;
    void *ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    struct dl_tensor t;
};

static const struct { uint8_t code, bits; } dl_types[KL_DTYPE_COUNT] = {
    [KL_BOOL] = {DL_BOOL, 8}, [KL_U8] = {DL_UINT, 8}, [KL_U16] = {DL_UINT, 16}, [KL_U32] = {DL_UINT, 32},
    [KL_U64] = {DL_UINT, 64}, [KL_I8] = {DL_INT, 8}, [KL_I16] = {DL_INT, 16}, [KL_I32] = {DL_INT, 32},
    [KL_I64] = {DL_INT, 64}, [KL_F16] = {DL_FLOAT, 16}, [KL_BF16] = {DL_BFLOAT, 16}, [KL_F32] = {DL_FLOAT, 32},
    [KL_F64] = {DL_FLOAT, 64},
};

static bool dlpack_fails(kl_status code, const char *what, long long number)
{
    kl_failf(NULL, code, "dlpack: %s (%lld)", what, number);
    return false;
}

/* ---- giving ---- */

struct dlpack_exported { /* the memory of a struct that Kiln gives */
    struct DLManagedTensorVersioned versioned;
    struct DLManagedTensor plain;
    kl_memory_hold *hold;
    int64_t dims[KL_MAX_RANK], strides[KL_MAX_RANK];
};

static void given_free(void *g)
{
    kl_memory_release(((struct dlpack_exported *)g)->hold);
    free(g);
}
static void delete_versioned(struct DLManagedTensorVersioned *self) { given_free(self->ctx); }
static void delete_plain(struct DLManagedTensor *self) { given_free(self->ctx); }

static struct dlpack_exported *dlpack_export_struct(kl_tensor tensor)
{
    kl_device device = kl_device_of(tensor);
    kl_device_kind kind = kl_device_kind_of(device);
    int32_t type = kind == KL_DEVICE_CUDA ? DL_CUDA : kind == KL_DEVICE_HIP ? DL_ROCM
                   : kind < KL_DEVICE_KINDS && KL_DEVICES(kind) & KL_DEVICES_HOST ? DL_CPU : 0;
    if (kl_check(tensor) == KL_OK && !type)
        return dlpack_fails(KL_ERR_DEVICE, "it has no such device", kind), NULL;
    struct dlpack_exported *g = calloc(1, sizeof *g);
    if (!g)
        return dlpack_fails(KL_ERR_MEMORY, "out of memory", sizeof *g), NULL;
    struct dl_tensor *t = &g->plain.t;
    if (!(g->hold = kl_memory_of(tensor, &t->data))) {
        free(g);
        return NULL;
    }
    kl_dtype dtype = kl_dtype_of(tensor);
    t->device.type = type;
    t->device.id = type == DL_CPU ? 0 : kl_device_index(device);
    t->rank = kl_shape(tensor, g->dims);
    t->dtype.code = dl_types[dtype].code;
    t->dtype.bits = dl_types[dtype].bits;
    t->dtype.lanes = 1;
    t->dims = g->dims;
    t->strides = g->strides;
    int64_t step = 1;
    for (int k = t->rank; k--; step *= g->dims[k] > 0 ? g->dims[k] : 1)
        g->strides[k] = step;
    g->plain.ctx = g->versioned.ctx = g;
    g->plain.deleter = delete_plain;
    g->versioned.deleter = delete_versioned;
    g->versioned.version.major = DLPACK_MAJOR;
    g->versioned.version.minor = DLPACK_MINOR;
    g->versioned.flags = DLPACK_READ_ONLY;
    g->versioned.t = *t;
    return g;
}

struct DLManagedTensorVersioned *kl_to_dlpack(kl_tensor tensor)
{
    struct dlpack_exported *g = dlpack_export_struct(tensor);
    return g ? &g->versioned : NULL;
}
struct DLManagedTensor *kl_to_dlpack_unversioned(kl_tensor tensor)
{
    struct dlpack_exported *g = dlpack_export_struct(tensor);
    return g ? &g->plain : NULL;
}

/* ---- taking ---- */

struct taken { void (*release)(void *ctx); void *ctx; };

static void delete_theirs(void *ctx)
{
    struct DLManagedTensorVersioned *m = ctx;
    if (m->deleter)
        m->deleter(m);
}
static void delete_theirs_plain(void *ctx)
{
    struct DLManagedTensor *m = ctx;
    if (m->deleter)
        m->deleter(m);
}

static bool device_taken(const struct dl_tensor *t, kl_device *device)
{
    kl_device_kind kind;
    switch (t->device.type) {
    case DL_CUDA: kind = KL_DEVICE_CUDA; break;
    case DL_ROCM: kind = KL_DEVICE_HIP; break;
    case DL_CPU: case DL_CUDA_HOST: case DL_ROCM_HOST: {
        kl_device cpu[2];
        *device = kl_device_enumerate(KL_DEVICES(KL_DEVICE_CPU), 1, cpu) ? cpu[0] : kl_device_ref();
        return true;
    }
    default: return dlpack_fails(KL_ERR_DEVICE, "devices of another kind", t->device.type);
    }
    *device = kl_device_get(kind, t->device.id);
    return device->id || dlpack_fails(KL_ERR_DEVICE, kl_last_error(), t->device.id);
}

static bool dtype_taken(const struct dl_tensor *t, kl_dtype *dtype)
{
    for (*dtype = KL_BOOL; *dtype < KL_DTYPE_COUNT; (*dtype)++)
        if (t->dtype.lanes == 1 && dl_types[*dtype].code == t->dtype.code && dl_types[*dtype].bits == t->dtype.bits)
            return true;
    return dlpack_fails(KL_ERR_TYPE, "elements that Kiln does not have: code, bits, lanes",
                        t->dtype.code * 1000000LL + t->dtype.bits * 1000 + t->dtype.lanes);
}

/* Orders axes by their strides, the largest first.  Returns whether the elements are contiguous in this order. */
static bool axes_by_stride(const struct dl_tensor *t, int *axes)
{
    int64_t step = 1;
    for (int k = 0; k < t->rank; k++) {
        int at = k;
        for (; at > 0 && t->strides && t->strides[axes[at - 1]] < t->strides[k]; at--)
            axes[at] = axes[at - 1];
        axes[at] = k;
    }
    for (int i = t->rank; i-- && t->strides; step *= t->dims[axes[i]])
        if (t->dims[axes[i]] != 1 && t->strides[axes[i]] != step)
            return false;
    return true;
}

/* Copies elements with any strides to row-major order. */
static void gather_elements(const struct dl_tensor *t, const char *from, char *to, int64_t count, size_t size)
{
    int64_t at[KL_MAX_RANK] = {0}, offset = 0;
    for (int64_t i = 0; i < count; i++) {
        memcpy(to + (size_t)i * size, from + offset * (int64_t)size, size);
        for (int k = t->rank - 1; k >= 0; k--) {
            offset += t->strides[k];
            if (++at[k] < t->dims[k])
                break;
            offset -= t->strides[k] * t->dims[k];
            at[k] = 0;
        }
    }
}

static kl_tensor take_scattered(const struct dl_tensor *t, kl_device device, kl_dtype dtype, char *data, size_t bytes)
{
    size_t size = kl_dtype_size(dtype);
    char *copy = t->device.type == DL_CUDA || t->device.type == DL_ROCM ? NULL : malloc(bytes + 1);
    if (!copy) {
        bool host = t->device.type != DL_CUDA && t->device.type != DL_ROCM;
        dlpack_fails(host ? KL_ERR_MEMORY : KL_ERR_SHAPE,
                     host ? "out of memory" : "elements on a GPU that are not adjacent: make it contiguous first",
                     (long long)bytes);
        return kl_none;
    }
    gather_elements(t, data, copy, (int64_t)(bytes / size), size);
    return kl_wrap_device(device, dtype, t->rank, t->dims, copy, free, copy);
}

/* *owned: the tensor has taken over the memory and will release it. */
static kl_tensor dlpack_import_tensor(const struct dl_tensor *t, struct taken theirs, bool *owned)
{
    kl_device device = {0};
    kl_dtype dtype;
    int64_t count, dims[KL_MAX_RANK];
    int axes[KL_MAX_RANK], back[KL_MAX_RANK];
    size_t bytes;
    static char nothing[64];
    if (t->rank < 0 || t->rank > KL_MAX_RANK || (t->rank && !t->dims))
        return dlpack_fails(KL_ERR_SHAPE, "the number of dimensions", t->rank), kl_none;
    if (!device_taken(t, &device) || !dtype_taken(t, &dtype))
        return kl_none;
    if (!dims_bytes(t->rank, t->dims, kl_dtype_size(dtype), &count, &bytes))
        return dlpack_fails(KL_ERR_SHAPE, "a dimension below 0, or too many elements; dimensions", t->rank),
               kl_none;
    if (bytes && !t->data)
        return dlpack_fails(KL_ERR_ARGUMENT, "data is NULL; bytes", (long long)bytes), kl_none;
    char *data = bytes ? (char *)t->data + t->byte_offset : nothing;
    if (!bytes)
        return kl_zeros(device, dtype, t->rank, t->dims);
    if (!axes_by_stride(t, axes) || (uintptr_t)data % kl_dtype_size(dtype)) {
        if (t->strides)
            return take_scattered(t, device, dtype, data, bytes);
        return dlpack_fails(KL_ERR_ARGUMENT, "data is not aligned to an element; bytes",
                            (long long)kl_dtype_size(dtype)), kl_none;
    }
    bool moved = false;
    for (int i = 0; i < t->rank; i++) {
        dims[i] = t->dims[axes[i]];
        back[axes[i]] = i;
        moved |= axes[i] != i;
    }
    *owned = true;
    kl_tensor flat = kl_wrap_device(device, dtype, t->rank, dims, data, theirs.release, theirs.ctx);
    if (!moved)
        return flat;
    kl_tensor permuted = kl_permute(flat, back);
    kl_release(flat);
    return permuted;
}

kl_tensor kl_from_dlpack(struct DLManagedTensorVersioned *m)
{
    bool owned = false;
    if (!m)
        return dlpack_fails(KL_ERR_ARGUMENT, "no struct", 0), kl_none;
    if (m->version.major != DLPACK_MAJOR) { /* all fields but the deleter may have another place */
        dlpack_fails(KL_ERR_ARGUMENT, "another major version", m->version.major);
        delete_theirs(m);
        return kl_none;
    }
    kl_tensor t = dlpack_import_tensor(&m->t, (struct taken){delete_theirs, m}, &owned);
    if (!owned)
        delete_theirs(m);
    return t;
}

kl_tensor kl_from_dlpack_unversioned(struct DLManagedTensor *m)
{
    bool owned = false;
    if (!m)
        return dlpack_fails(KL_ERR_ARGUMENT, "no struct", 0), kl_none;
    kl_tensor t = dlpack_import_tensor(&m->t, (struct taken){delete_theirs_plain, m}, &owned);
    if (!owned)
        delete_theirs_plain(m);
    return t;
}
