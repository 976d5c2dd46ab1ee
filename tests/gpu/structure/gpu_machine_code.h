/* Counts of instructions in NVIDIA's machine code since Volta. */
#ifndef GPU_MACHINE_CODE_H
#define GPU_MACHINE_CODE_H
#include "codegen/gpu/compilers/compile.h"
#include <stdint.h>

/* Of all kernels of a case; global: accesses to global memory, but for those to words of blocks in order; barriers,
 * registers and shared: the largest kernel's; blocks and threads: of the launch that has the fewest threads in all. */
struct counts {
    unsigned kernels, global, wide, barriers, local, registers, hmma, hgmma, ffma, shared, async, panels;
    unsigned blocks, threads;
    /* of the smallest loop with instructions of the matrix unit: these, and all others */
    unsigned products, others;
    /* not in the table: LDGSTS of 16 bytes; calls, as of divisions that look at their operands; loads from shared
     * memory; steps in shared memory of a product; elements of the largest array that a kernel stores; the most loads
     * of 16 bytes from global memory that stand together, without arithmetic between them; all instructions,
     * without those of functions that the kernel calls */
    unsigned async_wide, calls, loads, stages, burst, in_flight, instructions;
    /* loops most of whose instructions are FFMA; of the one that has the fewest FFMA for each access to shared memory,
     * these two */
    unsigned ffma_loops, loop_ffma, loop_shared;
    int64_t largest;
};

/* Adds the counts of one kernel.  false: the code is no ELF file. */
bool machine_code_count(const struct code *code, struct counts *c);
/* Adds the loops of FFMA that one kernel, or one loop, has. */
void machine_code_count_ffma_loop(const struct counts *loop, struct counts *c);
const char *machine_code_disassembler(void); /* $KILN_NVDISASM, or nvdisasm on the path; "-": there is none */
/* Adds the counts in the disassembler's listing of the code.  false: it fails. */
bool machine_code_listing(const struct code *code, struct counts *c);

#endif
