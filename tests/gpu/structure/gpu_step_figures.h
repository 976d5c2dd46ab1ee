/* What of a whole training step's kernels costs time, for the bounds of gpu_structure on GPT-2's step. */
#ifndef GPU_STEP_FIGURES_H
#define GPU_STEP_FIGURES_H
#include "gpu_machine_code.h"
#include "passes/passes.h"

/* One kernel of a program: what its machine code has, and how often a step launches it. */
struct step_kernel {
    const struct kernel *k;
    struct counts c;                /* blocks, threads: of its smallest launch */
    unsigned launches;
    unsigned narrow;                /* accesses in its text of less than 16 bytes, */
    int64_t narrow_bytes;           /* and the bytes of the arrays that have such; of workspaces, which are written and
                                       read, twice */
};

struct step_figures {
    unsigned launches;              /* of kernels, and copies */
    /* products of more than 1 GFLOP whose operands do not come by TMA loads or cp.async of 16 bytes */
    unsigned unstaged_products;
    /* that move more than 1 % of the step's bytes, of which more than 2 % by accesses below 16 bytes */
    unsigned narrow_kernels;
    /* reads and writes of arrays of at least `large` elements, except reads of products */
    unsigned large_passes;
    unsigned local_kernels;         /* with accesses to local memory */
};

struct step_figures step_figures(const struct program *p, const struct step_kernel *v, int64_t large);
/* Prints the kernels, the most expensive first, and which of the figures count each. */
void step_print(const struct program *p, struct step_kernel *v, int64_t large);

#endif
