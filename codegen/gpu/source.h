/* Kernels as source text for GPU compilers: one emitter, three dialects.
 *
 * Blocks of threads divide the iterations of the parallel loop; a block's next iteration is as many ahead as the grid
 * has blocks.  The lanes of a vector loop are threads of a block, which has as many threads as the widest vector loop
 * has lanes.  In a narrower loop several threads compute the same lane and one of them stores.  Every thread computes
 * uniform values for itself, so control flow is the same for all threads.  If the kernel has block loops, their
 * iterations are the block's threads, which may differ in control flow; a tile is as many variables as it has
 * elements.  Indices that fit are computed in 32 bits (source_range.c).  Scratch belongs to a block: it is in shared
 * memory as far as there is room, else a part of an argument.
 *
 *   cuda, hip   NAME(buffers, slots, begin, end), a kernel with C linkage
 *               With members (kernel_members.c) the buffers are one parameter, a struct of their addresses.
 *   glsl        main; push constants: the addresses of a table of the buffers and of the slots, then begin and end.
 *               So buffers may have any size and address, and there may be any number of slots
 *
 * A launch executes one phase of the kernel: begin and end are numbers of its iterations.  Buffers are passed in order,
 * without scratch in shared memory; each other scratch buffer needs `count` elements for each block of the grid. */
#ifndef KILN_SOURCE_H
#define KILN_SOURCE_H
#include "codegen/gpu_code.h"
#include "codegen/gpu_codegen.h"
#include "ir/loop/loop.h"
#include "ir/text/text.h"

/* Which elements of a tile a lane of a subgroup holds for a matrix unit.  Element e is at row (or column) lane / div %
 * mod * scale + at[e]; if div2 is not 0, lane / div2 % mod2 * scale2 is added. */
struct fragment_axis { uint8_t div, mod, scale, at[16], div2, mod2, scale2; };
struct fragment { uint8_t elements; struct fragment_axis row, col; };

/* A matrix unit: factors a [m x k] and b [k x n] and sums [m x n], as its instruction takes them in the lanes'
 * registers.  A register holds one f32, or a pair of halves that are adjacent along k. */
struct matrix_unit {
    const char *prelude;          /* follows the dialect's prelude; defines the instructions as mma_f16(sum .., a .., b
                                     ..), mma_bf16 and mma_f32, as far as the unit has them */
    struct mma_caps caps;
    uint32_t (*dtypes)(const char *arch); /* the dtypes of factors on this architecture, as a set of bits */
    struct fragment a, b, sum;    /* an asynchronous unit has only the one of sums, and a's number of elements; an
                                     opaque unit has none; a, b: of halves */
    struct fragment a_f32, b_f32; /* of f32 */
    /* 1: the lanes' elements of a tile are unknown (Vulkan's cooperative matrices): a factor is loaded from shared
     * memory and sums are stored, and nothing else is done with them */
    bool opaque;
    /* the prelude has rows_2(registers .., row) and rows_4, and their transposing forms rows_2_transposed and
     * rows_4_transposed, which load a matrix of 8x8 halves into each register; lane number lane gives the address
     * of row
     * lane % 8 of matrix lane / 8 % 4 */
    bool rows;
};

/* How copies to shared memory are done: loads of vectors, which are stored at the wait; or the language's asynchronous
 * copies (sm_80 and later: kernels with copies are only made for these). */
enum source_copies { COPIES_LATE, COPIES_ASYNC };

struct dialect {
    const char *name;
    const char *prelude, *halves; /* emitted once, before kernels; halves: the functions of ir/math/half.inc */
    const char *words;            /* the same: functions of blocks in order; NULL: none may wait for another */
    const char *thread, *block, *grid; /* u32: number of the thread in its block, number of the block, number of
                                          blocks */
    const char *barrier;          /* waits for the threads of the block; what they have stored anywhere is then visible
                                     to each other */
    const char *shared;           /* qualifier of a declaration of shared memory */
    const char *local, *exact;    /* qualifiers of the declaration of a value, and of a float */
    const char *i64, *u64, *f64;  /* suffixes of literals */
    const char *address;          /* operator before an element that an atomic changes */
    const char *subscript;        /* converts a 64-bit index to the type that arrays take */
    const char *lane;             /* like thread, but neighbouring numbers are in one subgroup; NULL: this is true of
                                     thread */
    uint32_t shuffle;             /* lanes that exchange values without memory; 0: none */
    bool signed_zeros;            /* a shader can ask that no zero's sign, infinity or NaN is lost */
    uint32_t broadcast;           /* lanes of a subgroup that should pass each other what all of them read; 0: none */
    uint32_t threads;             /* the largest block that every device has */
    uint32_t shared_bytes;        /* bytes of declared arrays that a block may have */
    uint32_t dynamic_bytes;       /* largest array that a launch may give a block; 0: none */
    uint32_t (*shared_bytes_of)(const char *arch); /* shared memory of a block on this architecture; NULL:
                                                      shared_bytes */
    enum source_copies copies;
    bool packs;                   /* adjacent elements are loaded and stored at once */
    bool table;                   /* buffers are addresses in a table, not arguments */
    /* units that some of its devices have, the largest first; NULL: no more, or none */
    const struct matrix_unit *matrix[MMA_UNITS], *matrix_async;
    struct mma_caps opaque;       /* the opaque unit of the device; subgroup 0: none */
    const char *arch;             /* the architecture that is compiled for without a device */
};

/* ---- dialect.c ---- */
const struct dialect *dialect_find(const char *name, struct err *e); /* NULL: *e lists the dialects */
/* The dialect for a device with these features (caps.features); NULL: for no specific device.  In a Vulkan device's
 * features these words, each followed by a number, replace the values that every device has: +threads and +shared:
 * threads and bytes of shared memory of a block; +subgroup: threads of a subgroup, whose lanes exchange values;
 * +broadcast: lanes of a subgroup on a device where loads of one element by all lanes cost as much as loads of
 * different elements; +matrix_f16_MxNxK, +matrix_bf16_MxNxK: a subgroup multiplies such matrices.  +signed_zeros
 * has no number. */
struct dialect dialect_for(const struct dialect *d, const char *features);
/* Writes the text that precedes kernels for a device with these features; NULL: for no specific device.  A device
 * without +fma rounds a product before the addition.  For it fma is computed by other means, except in accumulation
 * chains, where every device adds as it does natively. */
void dialect_prelude(const struct dialect *d, const char *features, struct text *out);
/* The capabilities for lowering kernels without a specific GPU; they do not include matrix units. */
void dialect_caps(const struct dialect *d, struct caps *out);
/* Sets the limits of a device with these features. */
void dialect_limits(const struct dialect *d, const char *features, struct caps *out);
/* Sets the matrix units and the shared memory of an architecture, which is the first word of the features.  NULL: of
 * the default architecture. */
void dialect_architecture(const struct dialect *d, const char *features, struct caps *out);

/* ---- matrix.c ---- */
extern const struct matrix_unit matrix_nvidia, matrix_nvidia_async, matrix_amd_32, matrix_amd_16;
uint32_t matrix_nvidia_shared(const char *arch);  /* bytes of shared memory that a block may have */

/* ---- source.c ---- */
/* Appends kernel k as a function named `entry`, without the prelude.  Returns false if the dialect cannot express k; *e
 * says why.  info may be NULL; free it with source_info_free. */
bool source_kernel(const struct kernel *k, const struct dialect *d, const char *entry, struct text *out,
                   struct source_info *info, struct err *e);
void source_info_free(struct source_info *i);
/* ---- source_range.c ---- */
/* The largest number of iterations of each loop, by its instruction; NULL: no memory.  The caller frees it. */
int64_t *source_iterations(const struct kernel *k);
/* An upper bound for the number of loop iterations that a thread executes in one iteration of the parallel loop. */
int64_t source_steps(const struct kernel *k, const struct phase *p);
/* Appends a whole file: the prelude and one kernel named `kernel`. */
bool source_file(const struct kernel *k, const struct dialect *d, struct text *out, struct err *e);

/* ---- build.c ---- */
/* compile_for: compiles for a device with these caps; for cuda and hip the architecture is the first word of its
 * features.  compile: compiles for a device with all features and the default architecture. */
extern const struct backend backend_cuda, backend_hip, backend_vulkan;

/* ---- target.c: struct gpu_codegen's functions of these names ---- */
bool target_caps(const char *target, struct caps *out, struct err *e);
bool target_print(const struct kernel *const *k, const struct array_names *names, uint32_t n, const char *target,
                  const char *stage, FILE *f, struct err *e);
bool device_print(const struct kernel *const *k, const struct array_names *names, uint32_t n, const char *language,
                  const char *features, const char *stage, FILE *f, struct err *e);

/* ---- source_names.c ---- */
/* Appends the text of kernel k with its arrays' names behind their numbers: b3 becomes b3_weight.  names may be NULL;
 * then only memory of the kernel's own is named. */
void source_put_named(struct text *out, const struct kernel *k, const struct array_names *names, const char *source);
/* Appends comment lines: the kernel's name and user's line, its schedule, its launch and its arrays. */
void source_put_title(struct text *out, const struct kernel *k, const struct array_names *names,
                      const struct source_info *info);

#endif
