/* The declarations of HIP's functions (runtime/device/stream.def), constants and layouts against those of its header,
 * where that is installed: what differs does not compile. */
#include "tests/support/harness.h"

#ifdef HAVE_HIP_HEADER
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <stddef.h>
typedef hipError_t gpu_result;
typedef void *gpu_address;
#if HIP_VERSION_MAJOR < 6
typedef void *gpu_source;
#else
typedef const void *gpu_source;
#endif
typedef hipDeviceAttribute_t gpu_attribute;
typedef hipStream_t gpu_stream;
typedef hipEvent_t gpu_event;
typedef hipModule_t gpu_module;
typedef hipFunction_t gpu_function;
typedef hipGraph_t gpu_graph;
typedef hipGraphExec_t gpu_exec;
typedef hipGraphNode_t gpu_node;
typedef const hipKernelNodeParams *gpu_hip_node;
#define SAME(function, parameters) \
    _Static_assert(__builtin_types_compatible_p(gpu_result parameters, __typeof__(function)), #function);
#define BOTH(field, cuda, hip, parameters) SAME(hip, parameters)
#define HIP(field, function, parameters) SAME(function, parameters)
#include "runtime/device/stream.def"
_Static_assert(hipErrorOutOfMemory == 2 && hipErrorNoDevice == 100 && hipErrorInvalidDevice == 101 &&
               hipErrorPeerAccessAlreadyEnabled == 704 && hipErrorDeinitialized == 4 &&
                   hipErrorECCNotCorrectable == 214 &&
               hipErrorIllegalAddress == 700 && hipErrorLaunchTimeOut == 702 && hipErrorContextIsDestroyed == 709 &&
               hipErrorAssert == 710 && hipErrorLaunchFailure == 719 && hipErrorUnknown == 999, "errors");
_Static_assert(hipStreamNonBlocking == 1 && hipEventDisableTiming == 2 && hipHostMallocPortable == 1, "flags");
#define AT(field, bytes) (offsetof(hipKernelNodeParams, field) == bytes)
_Static_assert(AT(blockDim, 0) && AT(extra, 16) && AT(func, 24) && AT(gridDim, 32) && AT(kernelParams, 48) &&
               AT(sharedMemBytes, 56), "struct hip_node");
_Static_assert(hipDeviceAttributeL2CacheSize == 19 && hipDeviceAttributeMultiprocessorCount == 63, "attributes");
_Static_assert(offsetof(hipDeviceProp_t, gcnArchName) == (HIP_VERSION_MAJOR < 6 ? 396 : 1160) &&
               sizeof(hipDeviceProp_t) <= 4096, "properties");
enum { HAVE_HEADER = 1 };
#else
enum { HAVE_HEADER = 0 };
#endif

int main(void)
{
    passed += HAVE_HEADER; /* or this would not be a program */
    if (!HAVE_HEADER) {
        printf("SKIP no-header hip: hip/hip_runtime_api.h is not installed\n");
        skipped++;
    }
    return finish();
}
