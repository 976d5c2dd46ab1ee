/* Devices: enumeration, capabilities, random seeds, waiting.  Included by <kiln/kiln.h>, which declares
 * kl_device_default, kl_device_named and kl_sync; <kiln/autodiff.h> declares devices that record for gradients.
 *
 * A device has a kind and an index within it: vulkan:1 is kind KL_DEVICE_VULKAN, index 1.  The kinds are the same in
 * every build; a device that is not built in, or has no driver or no hardware, is reported as unavailable with the
 * reason.  One program may use all devices at the same time.  No op names a device: it runs on the device of its
 * operands. */
#ifndef KILN_DEVICE_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_DEVICE_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- enumeration ---- */

/* The device of that kind and index.  [errors DEVICE: {0}, with the reason it cannot be used] */
KL_API kl_device kl_device_get(kl_device_kind kind, int index);
static inline kl_device kl_device_ref(void) { return kl_device_get(KL_DEVICE_REF, 0); }
static inline kl_device kl_device_cpu(void) { return kl_device_get(KL_DEVICE_CPU, 0); }
static inline kl_device kl_device_cuda(int index) { return kl_device_get(KL_DEVICE_CUDA, index); }
static inline kl_device kl_device_hip(int index) { return kl_device_get(KL_DEVICE_HIP, index); }
static inline kl_device kl_device_vulkan(int index) { return kl_device_get(KL_DEVICE_VULKAN, index); }
/* The number of devices of a kind; 0 sets kl_last_error to the reason.  [errors DEVICE: -1: there is no such kind] */
KL_API int64_t kl_device_count(kl_device_kind kind);
KL_API const char *kl_device_kind_name(kl_device_kind kind); /* "cpu"; "unknown" */
KL_API kl_device_kind kl_device_kind_of(kl_device device);   /* KL_DEVICE_KINDS for what is no device */
KL_API int kl_device_index(kl_device device);                /* its index within its kind; -1 for no device */

/* Kinds for kl_device_enumerate, combined with |. */
#define KL_DEVICES(kind) (UINT32_C(1) << (kind))
/* devices whose memory is the program's own */
#define KL_DEVICES_HOST (KL_DEVICES(KL_DEVICE_REF) | KL_DEVICES(KL_DEVICE_CPU))
#define KL_DEVICES_GPU \
    (KL_DEVICES(KL_DEVICE_CUDA) | KL_DEVICES(KL_DEVICE_HIP) | KL_DEVICES(KL_DEVICE_VULKAN) | \
     KL_DEVICES(KL_DEVICE_METAL))
#define KL_DEVICES_ALL (~KL_DEVICES(KL_DEVICE_META)) /* devices that compute */
/* Writes the devices of these kinds that work to out[0..room) and returns how many there are, which may be more. */
KL_API int64_t kl_device_enumerate(uint32_t kinds, int64_t room, kl_device *out);

/* ---- element types ---- */

enum {
    KL_USE_STORAGE = 1,    /* tensors of the dtype may be stored */
    KL_USE_ARITHMETIC = 2, /* ops compute with the dtype */
    KL_USE_ACCELERATED = 4 /* kernels use vector and tile instructions for the dtype */
};
/* How a device uses a dtype: a set of these flags. 0: recording such a tensor is an error.  [errors DEVICE: 0] */
KL_API unsigned kl_device_dtype_usage(kl_device device, kl_dtype dtype);
KL_API bool kl_device_supports(kl_device device, kl_dtype dtype); /* storage and arithmetic */
/* Sets the dtypes that KL_FLOAT and KL_INT mean on a device, at first f32 and i32.  It can be called once, before the
 * device's first tensor.  [errors DEVICE; TYPE "UnsupportedDType": no float, no integer, or not one that the device
 * has; ARGUMENT "AlreadyInitialized": it has, or had, a tensor, or was configured] */
KL_API kl_status kl_device_configure(kl_device device, kl_dtype real, kl_dtype integer);
KL_API kl_dtype kl_device_float(kl_device device); /* [errors DEVICE: KL_DTYPE_COUNT] */
KL_API kl_dtype kl_device_int(kl_device device);

/* The device's default quantization. */
typedef enum kl_quant_store {
    KL_QUANT_NATIVE,    /* one integer for each element */
    KL_QUANT_PACKED_U32 /* four integers in a 32-bit word, the first in the low bits */
} kl_quant_store;
typedef struct kl_quant_scheme {
    kl_dtype value;       /* the dtype that KL_QUANT stands for */
    bool symmetric;       /* the zero point is 0 */
    bool per_tensor;      /* one scale for all elements */
    kl_quant_store store; /* the storage that the device prefers */
} kl_quant_scheme;
/* An autodiff device has the scheme of its inner device.  [errors DEVICE: all 0] */
KL_API kl_quant_scheme kl_device_quant_scheme(kl_device device);

/* ---- random numbers ---- */

/* Restarts the device's sequence of seeds from `seed`; other devices are unchanged.  Initially it starts from 0. */
KL_API kl_status kl_seed(kl_device device, uint64_t seed);
/* The next seed of the device's sequence, for kl_rand and similar functions: kl_rand(dev, KL_F32, 1, dims,
 * kl_next_seed(dev)).  After the same kl_seed the sequence is the same.  Any thread may call it.  [errors DEVICE: 0] */
KL_API uint64_t kl_next_seed(kl_device device);
/* The position in the device's sequence of seeds: kl_seed of this number continues the sequence from here.  [errors
 * DEVICE: 0] */
KL_API uint64_t kl_seed_state(kl_device device);

/* ---- work ---- */

/* Submits what was recorded outside of traces for this device and has no value yet. kl_sync reports errors of that
 * work.  Nothing of an open trace is submitted before its end.  [errors DEVICE] */
KL_API kl_status kl_flush(kl_device device);
/* The stream that orders the device's work, a CUstream or hipStream_t, for other libraries in the process.  Work put on
 * it before a call of Kiln's is done before the work that the call submits.  NULL: the device has none.  [errors
 * DEVICE: NULL] */
KL_API void *kl_device_stream(kl_device device);

#ifdef __cplusplus
}
#endif
#endif
#endif
