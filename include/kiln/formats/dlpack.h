/* Tensors shared with other libraries of the process without a copy, by DLPack's structs.  Included by <kiln/kiln.h>;
 * the structs are declared in <dlpack/dlpack.h>, which is not needed to build Kiln: version 1, and the older structs
 * without a version.
 *
 * Devices of kinds ref and cpu are kDLCPU, cuda is kDLCUDA, hip is kDLROCM.  Element types are Kiln's own, one lane.
 *
 * Streams: a tensor that Kiln exports is computed, so its consumer can read it on any stream; the consumer calls the
 * deleter when it is done.  A tensor that Kiln imports must be complete, or be filled by work on kl_device_stream of
 * its device: pass that stream to the producer (`__dlpack__(stream=..)`). */
#ifndef KILN_DLPACK_H
#define KILN_DLPACK_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* Exports the tensor's current value, row-major and read-only.  The consumer calls its deleter once, on any thread.  A
 * later assignment to the tensor does not change it.  NULL: it failed.  [errors as kl_memory_of; DEVICE: vulkan, or a
 * plug-in's; MEMORY] */
KL_API_AT struct DLManagedTensorVersioned *kl_to_dlpack(kl_tensor tensor);
KL_API_AT struct DLManagedTensor *kl_to_dlpack_unversioned(kl_tensor tensor);

/* Imports a tensor of another library on its device: kDLCPU and memory pinned by a GPU's driver become device cpu, or
 * ref in a build without it.  Axes in any order are imported without a copy.  Elements that are not adjacent are
 * copied; this is supported on the host only.  Kiln owns the struct from here on, also after an error: it calls the
 * deleter when nothing uses the memory any more, on any thread.  [new handle; errors ARGUMENT: NULL, or another major
 * version; TYPE: elements that Kiln does not have; SHAPE: more dimensions than KL_MAX_RANK, elements of a GPU that are
 * not adjacent; DEVICE; MEMORY] */
KL_API_AT kl_tensor kl_from_dlpack(struct DLManagedTensorVersioned *tensor);
KL_API_AT kl_tensor kl_from_dlpack_unversioned(struct DLManagedTensor *tensor);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/formats/dlpack.h> /* made from the prototypes marked KL_API_AT */
#endif
