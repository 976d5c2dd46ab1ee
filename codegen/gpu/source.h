/* Kernels as source text for the compilers of GPUs: one emitter, three dialects.
 *
 * A block of threads runs iterations of the parallel loop, in steps of the grid's size.  The lanes of a vector loop are
 * the threads of a block, which has as many as the widest such loop; in a narrower loop several threads compute the
 * same lane and one of them stores.  What is uniform every thread computes for itself, so that control flow is the same
 * for all.  Where the kernel has block loops, its threads are the block's, and each goes its own way; a tile is as many
 * variables as it has elements.  Indices that fit are computed in 32 bits (source_range.c).  Scratch is the block's:
 * shared memory as far as it goes, else a part of an argument.
 *
 *   cuda, hip   NAME(buffers, slots, begin, end), a kernel with C linkage
 *   glsl        main; push constants: the addresses of a table of the buffers' and of the slots, then begin and end. So
 *               buffers may be of any size and start anywhere, and there may be any number of slots
 *
 * A launch is of one of the kernel's phases: begin and end are among its iterations.
 *
 * Buffers are passed in order, without the scratch that is in shared memory; the scratch that is not needs
 * count elements for each block of the grid. */
#ifndef KILN_SOURCE_H
#define KILN_SOURCE_H
#include "ir/loop/loop.h"
#include "ir/text/text.h"

/* Where a lane of a subgroup has the elements of a tile that it holds for a matrix unit: element e lies at
 * lane / div % mod * scale + at[e] of either axis; where there is a second divisor, so much more. */
struct fragment_axis { uint8_t div, mod, scale, at[8], div2, mod2, scale2; };
struct fragment { uint8_t elements; struct fragment_axis row, col; };

/* A matrix unit: a [m x k], b [k x n] and sum [m x n] as its instruction wants them in the lanes' registers.  Halves
 * are neighbours in pairs along k, a pair a register. */
struct matrix_unit {
    const char *prelude;          /* behind the dialect's: the instructions, mma_f16(sum .., a .., b ..) and mma_bf16 */
    struct mma_caps caps;
    uint32_t (*dtypes)(const char *arch); /* of the factors on this architecture: a set, by bit */
    struct fragment a, b, sum;    /* an asynchronous unit: of the sums alone */
    /* the prelude has rows_2(registers .., row) and rows_4, and the same _turned: 8x8 halves for each register, of
     * which lane / 8 % 4 says where row lane % 8 lies */
    bool rows;
};

/* Copies to shared memory: element by element at once; loads of vectors at once and stores where they land; or by the
 * language's own instructions (of sm_80: what has copies is made for those). */
enum source_copies { COPIES_ELEMENTS, COPIES_LATE, COPIES_ASYNC };

struct dialect {
    const char *name;
    const char *prelude;          /* stands once in front of kernels */
    const char *thread, *block, *grid; /* u32: number of the thread, of its block, and how many blocks there are */
    const char *barrier;          /* threads of the block, and what they have stored anywhere */
    const char *shared;           /* in front of a declaration of shared memory */
    const char *local, *exact;    /* in front of the declaration of a value, and of one of a float */
    const char *i64, *u64, *f64;  /* suffixes of literals */
    const char *address;          /* in front of an element that an atomic changes */
    const char *subscript;        /* converts an index of 64 bits to what arrays take */
    const char *lane;             /* like thread, neighbours in one subgroup; NULL: thread is */
    uint32_t shuffle;             /* lanes that exchange values without memory; 0: none */
    uint32_t threads;             /* most of a block that every device has */
    uint32_t shared_bytes;        /* of a block: arrays that are declared */
    uint32_t dynamic_bytes;       /* the most that a launch may give, as one array; 0: none */
    uint32_t (*shared_bytes_of)(const char *arch); /* of a block on this architecture; NULL: shared_bytes */
    enum source_copies copies;
    bool packs;                   /* neighbours are loaded and stored at once, by the prelude's pack<T, n> */
    bool table;                   /* buffers are addresses in a table, not passed */
    const struct matrix_unit *matrix, *matrix_async; /* what some of its devices have; NULL: nothing */
    const char *arch;             /* of a device that is not at hand */
};

/* What a launch must know of a kernel's source. */
struct source_info {
    uint32_t threads;             /* of a block */
    uint32_t shared_bytes;
    uint32_t dynamic_bytes;       /* of these, those that the launch must give */
    bool *local;                 /* per buffer: declared in the function, no argument */
};

/* ---- dialect.c ---- */
const struct dialect *dialect_find(const char *name, struct err *e); /* NULL: *e names those that there are */
/* The same for a device whose caps.features are these; NULL: for one that is not at hand.  In GLSL lanes exchange
 * values by the subgroups of N threads that a device with +subgroupN has. */
struct dialect dialect_for(const struct dialect *d, const char *features);
/* What stands in front of kernels for a device whose caps.features are these; of a device that is not at hand: NULL.  A
 * device without +fma rounds a product before it is added to.  Then fma is computed by other means, but where sums of
 * products are accumulated: there every device adds as it does. */
void dialect_prelude(const struct dialect *d, const char *features, struct text *out);
/* What lowerings may know of a GPU that is not at hand, matrix units apart. */
void dialect_caps(const struct dialect *d, struct caps *out);
/* And of its matrix units and shared memory, by its architecture: features begin with it, as caps.features do.  NULL:
 * that of a device that is not at hand. */
void dialect_architecture(const struct dialect *d, const char *features, struct caps *out);

/* ---- matrix.c ---- */
extern const struct matrix_unit matrix_nvidia, matrix_nvidia_async, matrix_amd;
uint32_t matrix_nvidia_shared(const char *arch);  /* bytes of shared memory that a block may have */

/* ---- source.c ---- */
/* Adds kernel k as a function called `entry`; not the prelude.  false: *e says what of k the dialect cannot say.
 * info may be NULL; source_info_free it. */
bool source_kernel(const struct kernel *k, const struct dialect *d, const char *entry, struct text *out,
                   struct source_info *info, struct err *e);
void source_info_free(struct source_info *i);
/* ---- source_range.c ---- */
/* Iterations of the loops that a thread goes through for one iteration of the parallel loop, at most. */
int64_t source_steps(const struct kernel *k);
/* A whole file: the prelude and one kernel called `kernel`. */
bool source_file(const struct kernel *k, const struct dialect *d, struct text *out, struct err *e);

#endif
