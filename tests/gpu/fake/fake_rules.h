/* What NVIDIA's driver refuses, by its documentation (CUDA Driver API: cuTensorMapEncodeTiled, cuLaunchKernel), and the
 * errors that it then gives.  fake_gpu.c applies the rules; driver_rules.c tests each of them. */
#ifndef FAKE_RULES_H
#define FAKE_RULES_H
#include "runtime/device/stream.h"

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400,
       NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719 };
enum { ALWAYS_SHARED = 48 << 10, MAX_DYNAMIC = 227 << 10 }; /* bytes of a block; more than ALWAYS must be allowed */

/* The arguments of cuTensorMapEncodeTiled, in their order. */
struct map_request {
    const gpu_map *map;
    gpu_map_dtype dtype;
    unsigned rank;
    void *address;
    const uint64_t *size, *step;
    const unsigned *box, *element_step;
    gpu_map_interleave interleave;
    gpu_map_swizzle swizzle;
    gpu_map_promotion promotion;
    gpu_map_fill fill;
};
/* Only 16-bit elements in 3 dimensions with 128-byte swizzle are known here. */
bool fake_map_is_valid(const struct map_request *m);
uint64_t fake_map_bytes(const struct map_request *m); /* from the address to the end of the array */

/* Is a launch of a grid of blocks in one dimension within the limits of every GPU since Hopper?  allowed: bytes of
 * dynamic shared memory that the function was given; parameters: bytes of all of them. */
static inline bool fake_launch_is_valid(const unsigned grid[3], const unsigned block[3], unsigned shared,
                                        unsigned allowed, unsigned parameters)
{
    enum { MAX_GRID = 0x7fffffff, MAX_BLOCK_THREADS = 1024, PARAMETERS_LIMIT = 4096 };
    return grid[0] && grid[0] <= MAX_GRID && grid[1] == 1 && grid[2] == 1 && block[0] &&
           block[0] <= MAX_BLOCK_THREADS && block[1] == 1 && block[2] == 1 && shared <= MAX_DYNAMIC &&
           shared <= (allowed > ALWAYS_SHARED ? allowed : ALWAYS_SHARED) && parameters <= PARAMETERS_LIMIT;
}

void *fake_image_load(const void *image); /* the library in a module's image (fake_compiler.c); NULL: it is none */

#endif
