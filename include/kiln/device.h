/* Devices: which there are, what they can do, their random numbers, waiting for them.  Included by <kiln/kiln.h>, which
 * has kl_device_default, kl_device_named and kl_sync; <kiln/autodiff.h> has devices that record for gradients.
 *
 * A device is of a kind, and has a number in it: vulkan:1 is kind KL_DEVICE_VULKAN, number 1.  Every kind has its
 * number in every build; what is not built in, has no driver or no hardware is said not to be there, with the reason.
 * One program may use all of them at once, and no op names one: it runs where its operands are. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_DEVICE_H
#define KILN_DEVICE_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- which there are ---- */

/* The device of that kind and number.  [errors DEVICE: {0}, with the reason it cannot be used] */
KL_API kl_device kl_device_get(kl_device_kind kind, int index);
static inline kl_device kl_device_ref(void) { return kl_device_get(KL_DEVICE_REF, 0); }
static inline kl_device kl_device_cpu(void) { return kl_device_get(KL_DEVICE_CPU, 0); }
static inline kl_device kl_device_cuda(int index) { return kl_device_get(KL_DEVICE_CUDA, index); }
static inline kl_device kl_device_hip(int index) { return kl_device_get(KL_DEVICE_HIP, index); }
static inline kl_device kl_device_vulkan(int index) { return kl_device_get(KL_DEVICE_VULKAN, index); }
/* How many there are of a kind: 0 with the reason in kl_last_error.  [errors DEVICE: -1: there is no such kind] */
KL_API int kl_device_count(kl_device_kind kind);
KL_API const char *kl_device_kind_name(kl_device_kind kind); /* "cpu"; "unknown" */
KL_API kl_device_kind kl_device_kind_of(kl_device device);   /* KL_DEVICE_KINDS for what is no device */
KL_API int kl_device_index(kl_device device);                /* its number in its kind; -1 */

/* Kinds for kl_device_enumerate, with | between. */
#define KL_DEVICES(kind) (UINT32_C(1) << (kind))
#define KL_DEVICES_HOST (KL_DEVICES(KL_DEVICE_REF) | KL_DEVICES(KL_DEVICE_CPU)) /* memory is the program's own */
#define KL_DEVICES_GPU \
    (KL_DEVICES(KL_DEVICE_CUDA) | KL_DEVICES(KL_DEVICE_HIP) | KL_DEVICES(KL_DEVICE_VULKAN) | \
     KL_DEVICES(KL_DEVICE_METAL))
#define KL_DEVICES_ALL (~KL_DEVICES(KL_DEVICE_META)) /* that compute */
/* Writes the devices of these kinds that work to out[0..room) and returns how many there are, which may be more. */
KL_API uint32_t kl_device_enumerate(uint32_t kinds, kl_device *out, uint32_t room);

/* ---- element types ---- */

enum {
    KL_USE_STORAGE = 1,    /* tensors of it may be there */
    KL_USE_ARITHMETIC = 2, /* ops compute with it */
    KL_USE_ACCELERATED = 4 /* directly, in vectors and register tiles */
};
/* What a device does with a dtype: a set of these; 0: such a tensor is refused when it is recorded.  [errors DEVICE:
 * 0] */
KL_API unsigned kl_device_dtype_usage(kl_device device, kl_dtype dtype);
KL_API bool kl_device_supports(kl_device device, kl_dtype dtype); /* storage and arithmetic */
/* What KL_FLOAT and KL_INT mean on a device: f32 and i32 unless it was configured, once, before its first tensor.
 * [errors DEVICE; TYPE "UnsupportedDType": no float, no integer, or not one that the device has; ARGUMENT
 * "AlreadyInitialized": it has, or had, a tensor, or was configured] */
KL_API kl_status kl_device_configure(kl_device device, kl_dtype real, kl_dtype integer);
KL_API kl_dtype kl_device_float(kl_device device); /* [errors DEVICE: KL_DTYPE_COUNT] */
KL_API kl_dtype kl_device_int(kl_device device);

/* How tensors are quantized by default. */
typedef enum kl_quant_store {
    KL_QUANT_NATIVE,    /* one integer an element */
    KL_QUANT_PACKED_U32 /* four to a 32-bit word, the first in the low bits */
} kl_quant_store;
typedef struct kl_quant_scheme {
    kl_dtype value;       /* KL_QUANT means this one */
    bool symmetric;       /* the zero point is 0 */
    bool per_tensor;      /* one scale for all elements */
    kl_quant_store store; /* how the device likes to have them */
} kl_quant_scheme;
/* An autodiff device has its inner one's.  [errors DEVICE: all 0] */
KL_API kl_quant_scheme kl_device_quant_scheme(kl_device device);

/* ---- random numbers ---- */

/* The device's seeds from here on are those that follow `seed`; other devices' stay.  Without it they follow 0. */
KL_API kl_status kl_seed(kl_device device, uint64_t seed);
/* The device's next seed, for kl_rand and its like: kl_rand(dev, KL_F32, 1, dims, kl_next_seed(dev)).  After the same
 * kl_seed the same ones come in the same order.  Any thread may ask.  [errors DEVICE: 0] */
KL_API uint64_t kl_next_seed(kl_device device);
/* Where the device's seeds are: after kl_seed of this number the same ones come as would now.  [errors DEVICE: 0] */
KL_API uint64_t kl_seed_state(kl_device device);

/* ---- work ---- */

/* Hands over what was recorded outside of traces for this device and has no value yet; what goes wrong there is for
 * kl_sync to say.  In a trace nothing is handed over before its end.  [errors DEVICE] */
KL_API kl_status kl_flush(kl_device device);
/* The stream that orders the device's work, a CUstream or hipStream_t, for other libraries in the process: what is put
 * on it before a call of Kiln's is done before what that call gives the device.  NULL: the device has none. [errors
 * DEVICE: NULL] */
KL_API void *kl_device_stream(kl_device device);

#ifdef __cplusplus
}
#endif
#endif
