/* Tensors shared with other libraries of the process without a copy, by DLPack's structs.  Included by <kiln/kiln.h>;
 * the structs themselves are those of <dlpack/dlpack.h>, which Kiln does not need: version 1, and the ones without a
 * version of before.
 *
 * Devices of kinds ref and cpu are kDLCPU, cuda is kDLCUDA, hip is kDLROCM.  Element types are Kiln's own, one lane.
 *
 * Streams: what Kiln gives is computed, whatever stream its consumer reads it on; the consumer is done with it when it
 * calls the deleter.  What Kiln takes is complete, or will be by work that is on kl_device_stream of its device: that
 * is the stream to hand to a producer (`__dlpack__(stream=..)`). */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_DLPACK_H
#define KILN_DLPACK_H

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* The tensor's value of now, row-major and read-only; its deleter is to be called once, on any thread.  An assignment
 * to the tensor does not change it.  NULL: it failed.
 * [errors as kl_memory_of; DEVICE: vulkan, or a plug-in's; MEMORY] */
KL_API_AT struct DLManagedTensorVersioned *kl_to_dlpack(kl_tensor tensor);
KL_API_AT struct DLManagedTensor *kl_to_dlpack_unversioned(kl_tensor tensor);

/* A tensor of another library, on the device where it is: kDLCPU and memory pinned by a GPU's driver become device cpu,
 * or ref in a build without that.  Axes in any order are taken without a copy; elements that are not adjacent are
 * copied, which is done for the host only.  The struct is Kiln's from here on: its deleter is called when no one uses
 * the memory any more, on any thread, also after an error.
 * [new handle; errors ARGUMENT: NULL, or another major version; TYPE: elements that Kiln does not have; SHAPE: more
 * dimensions than KL_MAX_RANK, elements of a GPU that are not adjacent; DEVICE; MEMORY] */
KL_API_AT kl_tensor kl_from_dlpack(struct DLManagedTensorVersioned *tensor);
KL_API_AT kl_tensor kl_from_dlpack_unversioned(struct DLManagedTensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
