/* The declarations of CUDA's functions (runtime/device/stream.def) and constants against those of its header, where
 * that is installed: what differs does not compile. */
#include "tests/support/harness.h"

#ifdef HAVE_CUDA_HEADER
#include <cuda.h>
#include <stddef.h>
typedef CUresult gpu_result;
typedef CUdeviceptr gpu_address;
typedef const void *gpu_source;
typedef CUdevice_attribute gpu_attribute;
typedef CUfunction_attribute gpu_function_attribute;
typedef CUstream gpu_stream;
typedef CUevent gpu_event;
typedef CUmodule gpu_module;
typedef CUfunction gpu_function;
typedef CUgraph gpu_graph;
typedef CUgraphExec gpu_exec;
typedef CUgraphNode gpu_node;
typedef const CUDA_KERNEL_NODE_PARAMS *gpu_cuda_node;
typedef CUcontext gpu_context;
typedef CUtensorMap gpu_map;
typedef CUtensorMapDataType gpu_map_dtype;
typedef CUtensorMapInterleave gpu_map_interleave;
typedef CUtensorMapSwizzle gpu_map_swizzle;
typedef CUtensorMapL2promotion gpu_map_promotion;
typedef CUtensorMapFloatOOBfill gpu_map_fill;
#define SAME(function, parameters) \
    _Static_assert(__builtin_types_compatible_p(gpu_result parameters, __typeof__(function)), #function);
#define BOTH(field, cuda, hip, parameters) SAME(cuda, parameters)
#define CUDA(field, function, parameters) SAME(function, parameters)
#define CUDA_LATER(field, function, parameters) SAME(function, parameters)
#include "runtime/device/stream.def"
_Static_assert(CUDA_ERROR_OUT_OF_MEMORY == 2 && CUDA_ERROR_STUB_LIBRARY == 34 && CUDA_ERROR_NO_DEVICE == 100 &&
               CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED == 704 && CUDA_ERROR_DEINITIALIZED == 4 &&
                   CUDA_ERROR_ECC_UNCORRECTABLE == 214 &&
               CUDA_ERROR_NVLINK_UNCORRECTABLE == 220 && CUDA_ERROR_ILLEGAL_ADDRESS == 700 &&
                   CUDA_ERROR_LAUNCH_TIMEOUT == 702 &&
               CUDA_ERROR_CONTEXT_IS_DESTROYED == 709 && CUDA_ERROR_ASSERT == 710 && CUDA_ERROR_LAUNCH_FAILED == 719 &&
               CUDA_ERROR_UNKNOWN == 999, "errors");
_Static_assert(CU_STREAM_NON_BLOCKING == 1 && CU_EVENT_DISABLE_TIMING == 2 && CU_MEMHOSTALLOC_PORTABLE == 1,
               "flags");
#define AT(field, bytes) (offsetof(CUDA_KERNEL_NODE_PARAMS, field) == bytes)
_Static_assert(AT(func, 0) && AT(gridDimX, 8) && AT(blockDimX, 20) && AT(sharedMemBytes, 32) && AT(kernelParams, 40) &&
               AT(extra, 48), "struct cuda_node");
_Static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == 75 &&
               CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == 76 &&
               CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE == 38 && CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == 16 &&
               CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8, "attributes");
_Static_assert(CU_TENSOR_MAP_DATA_TYPE_FLOAT16 == 6 && CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 == 9 &&
               CU_TENSOR_MAP_INTERLEAVE_NONE == 0 && CU_TENSOR_MAP_SWIZZLE_128B == 3 &&
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B == 2 && CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE == 0 &&
               sizeof(CUtensorMap) == 128, "tensor maps");
enum { HAVE_HEADER = 1 };
#else
enum { HAVE_HEADER = 0 };
#endif

int main(void)
{
    passed += HAVE_HEADER; /* or this would not be a program */
    if (!HAVE_HEADER) {
        printf("SKIP no-header cuda: cuda.h is not installed\n");
        skipped++;
    }
    return finish();
}
