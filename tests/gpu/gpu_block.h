/* What a GPU does with the text of a kernel, on this machine: the text is C++ behind gpu_shim, and the threads of a
 * block are coroutines that give way at barriers and where lanes exchange values.  Between these they run one after the
 * other. */
#ifndef GPU_BLOCK_H
#define GPU_BLOCK_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { GPU_BLOCK_THREADS = 1024 };
#define GPU_MAP UINT64_C(0x70616d726f736e65)
/* A tensor map as the emulated TMA loads read it: steps in bytes, a box of 16-bit elements with 128-byte
 * swizzle. */
void gpu_map_make(uint64_t word[16], const void *address, const uint64_t size[3], const uint64_t step[2],
                  const unsigned box[3]);
/* Writes the text of a prelude, and of what comes behind it, as C++.  In front of it stand threads, barriers, shuffles
 * and matrix units under the names of HIP and CUDA; a lane that is none gives back the caller's own value. */
void gpu_shim_write(FILE *f, const char *text);
void gpu_shim_text(FILE *f, const char *text);   /* more of it, behind that */
/* Flags that the text is compiled with. */
#define GPU_SHIM_FLAGS "-std=c++17 -O1 -w -shared -fPIC -ffp-contract=off -fno-strict-aliasing"

/* late: a matrix unit's asynchronous products happen as late as they may.  unfinished: products that nothing has waited
 * for. */
struct gpu_module_code { unsigned *thread, *block, *grid, *size, *unfinished; bool *late; };
/* Of a library (dlopen) that the text became. */
bool gpu_module_code(void *so, struct gpu_module_code *m);
/* Runs call(ctx) in each thread of one block, first to last or last to first; false: they do not meet at the same
 * barriers, or end before they have waited for all products.  One at a time in the process. */
bool gpu_block_run(const struct gpu_module_code *m, unsigned threads, bool backwards, void (*call)(void *ctx),
                   void *ctx);
void gpu_block_free(void);

#endif
