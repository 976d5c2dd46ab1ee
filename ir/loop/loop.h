/* The loop IR: the form of a kernel that code generators take.
 *
 * A kernel is a flat array of instructions; loops nest by LOOP ... END.  Every instruction is an SSA value named by
 * index, of one scalar dtype.  Inside a vector loop the kernel is SPMD: a value that depends on the loop's variable (or
 * on SPLAT) is "varying", one per lane; the others are uniform and computed once.  Control flow is always uniform;
 * lanes differ only through predicates.
 *
 *   loop serial    in order, may carry values
 *   loop reduce    as serial, but it stores nothing and only carries connect its iterations, so that loads of
 *                  later iterations may be issued early
 *   loop unrolled  as serial, between constants, at most MAX_UNROLL iterations, which are written out
 *   loop vector    lo 0, hi a constant W of 1..64, on a GPU of 1..256: all W lanes at once; never nested in another
 *                  vector loop
 *   loop parallel  outermost, 0 to a constant; iterations are independent and are shared out among threads (the kernel
 *                  function gets begin and end). `in_order`: they run in order on one thread, in one call or several,
 *                  and may load what earlier ones stored; scratch memory keeps its values from one to the next
 *   loop grid      the same on a GPU: iterations are blocks. It contains one block loop, and before it only
 *                  arithmetic and loads of inputs. `in_order`: iterations begin in order, though they run at the same
 *                  time, so that a block may wait for words that blocks of earlier iterations publish: those have begun
 *   loop block     directly in a grid loop, 0 to a constant T of 1..1024: T threads. They run independently between
 *                  barriers. All of them must reach every BARRIER, so the conditions on the way to it must be equal
 *                  for all threads. Between two barriers no thread accesses an element that another stores in shared
 *                  or global memory; atomics may access what atomics change. `subgroups N`: N adjacent threads hold
 *                  each of their tiles together, so tiles, their indices and the conditions on the way to them are
 *                  equal for all of these threads.
 *                  An `if` that compares the subgroup's number with a constant gives the block's subgroups roles; a
 *                  BARRIER in it names the number of threads of its role. Roles wait for each other by ARRIVE and AWAIT
 *
 * Carried values: `carry` instructions follow directly after their loop, each with an initial value; several are a
 * tuple. `next` instructions come directly before its end, one per carry; `out` reads a carry's final value after the
 * end (without iterations: the initial value).  A carry is varying if its initial value is.
 *
 * Phases: SYNC, outside of all loops, ends a phase of the kernel.  A phase may load what earlier phases stored in
 * outputs and workspaces; no value except constants is used across phases.  Each phase has at most one parallel or grid
 * loop.  The iterations of a kernel are those of its phases in order, and begin and end of a call count them so.  An
 * executor that runs a kernel in parts finishes one phase before it starts the next.
 *
 * Members: on a GPU a kernel may run for several sets of inputs, outputs and workspaces in one launch
 * (kernel_members.c).
 *
 * Tiles: a value may be a matrix of constant shape, kept in registers.  Primitives apply to its elements; a row [1xN],
 * a column [Mx1] or a scalar is broadcast.  MMA adds a product of two tiles to a third.  Tiles never vary: they are
 * outside of vector loops.
 *
 * Memory: in and out buffers are the kernel's arguments.  A workspace is memory for one run of the kernel, shared by
 * all its iterations.  Shared memory belongs to one block of a grid, register memory to one thread or iteration,
 * scratch to one CPU thread.  All except inputs are undefined at the start. */
#ifndef KILN_LOOP_H
#define KILN_LOOP_H
#include "ir/ir.h"
#include "sched_record.h"

typedef uint32_t val; /* index of an instruction; 0 is no value */
enum {
    MAX_NEST = 32,              /* nesting depth of loops and ifs */
    MAX_UNROLL = 256,
    MAX_VECTOR = 64, MAX_GPU_VECTOR = 256, /* lanes of a vector loop */
    MAX_THREADS = 1024,         /* in a block */
    MAX_SUBGROUP = 128,
    PANEL_COLUMNS = 64, PANEL_ROWS = 8, /* columns of a panel of a shared buffer; rows that are swizzled together */
    MAX_TILE_SIDE = 256, MAX_TILE = 64 * 256, /* elements */
    MAX_SHARED = 256 << 10,     /* bytes of all shared buffers */
    MAX_REGISTER = 64 << 10,    /* bytes of all register buffers */
};

enum lop {
    L_NIL,
    L_CONST, /* imm: the bits; dtype                                                     */
    /* imm: slot ordinal, and << 32 the greatest value that the slot has, which is not below 0 (0: any value); uniform
     * read of a slot */
    L_SLOT,
    /* imm: an input buffer, an output buffer << 32; a uniform bool: are they the same memory, because the program
     * updates a state in place?  Not in a grid loop */
    L_ALIAS,
    /* a lo, b hi (i64, uniform), imm step > 0, kind; rows: of a block, threads in a subgroup; of a parallel or grid
     * loop, 1: in order; value: the variable (i64) */
    L_LOOP,
    L_CARRY, /* a init                                                                   */
    L_NEXT,  /* a carry, b value                                                         */
    L_END,   /* a loop                                                                   */
    L_OUT,   /* a carry                                                                  */
    /* a condition (bool, uniform): runs the instructions up to its END if true.  imm: if not 0, the condition gives a
     * role, and its threads need so many registers */
    L_IF,
    /* a index in elements (i64), b predicate or 0, imm: buffer; lanes with a false predicate give 0.  A tile: d stride,
     * kind: enum tile_order.  Of an output or workspace: only elements that this iteration of the parallel loop, or an
     * earlier phase, has stored.  On a CPU, a u32 of an input with elements of 1 or 2 bytes: the bits of 4 or 2
     * adjacent elements, the first in the lowest */
    L_LOAD,
    L_STORE, /* a index, b value, c predicate or 0, d stride of a tile, imm: buffer, kind as of a load */
    L_PREFETCH, /* a index (i64, uniform), imm: buffer, kind: enum prefetch; accesses nothing, so any index is valid */
    /* a index, b value, c predicate or 0, imm: buffer, kind: enum fold except MUL: combines the element and the value.
     * Integers of 32 and 64 bits, for which the order does not matter */
    L_ATOMIC,
    /* a index in a shared buffer, b index in a global one, c predicate or 0 (false: zeros), rows: elements (4, 8 or 16
     * bytes), of which both indices are multiples, imm: shared buffer, global buffer << 32.  Asynchronous: complete
     * after a WAIT of this thread */
    L_COPY,
    /* a index in a shared buffer of panels, b c d: coordinates in a view, innermost first, imm: shared buffer, view
     * (BUF_VIEW) << 32.  Asynchronous copy of a whole panel: row r, column j is the view's element (b + j, c + r, d),
     * zero if there is no such element.  An ARRIVE expects it */
    L_COPY_PANEL,
    /* a index, imm: buffer of barriers | panels << 32: the thread arrives at a barrier, whose phase is complete after
     * so many arrivals as the buffer says, and when the `panels` copies are complete that directly follow the ARRIVE.
     * A barrier for several arrivals counts each thread of whole subgroups */
    L_ARRIVE,
    /* a index, b n (i64, uniform), imm: buffer of barriers; waits until n phases of the barrier are complete.  n - 1 of
     * them are, or n */
    L_AWAIT,
    L_COMMIT,   /* kind: enum async; ends a batch: the thread's copies, or products, since the last such COMMIT */
    L_WAIT,     /* kind, imm n: waits until all such batches of this thread except the last n are complete */
    /* waits for all threads of the block, or, imm not 0, for the imm threads of the role; makes their stores visible */
    L_BARRIER,
    L_SYNC,     /* the end of a phase                                                       */
    /* a index, b value (u32), c predicate or 0, imm: buffer.  In a grid loop in order: gives a word its value, once.
     * Words are u64 of a workspace, to which an earlier phase has stored zeros; element 0 is the loop's own: it counts
     * the iterations that have begun */
    L_PUBLISH,
    /* a index, b predicate or 0 (false: 0 at once), imm: buffer; the u32 value of a word that an earlier iteration
     * publishes, for which the thread waits.  Orders no other access to memory */
    L_RECEIVE,
    L_SPLAT,    /* a uniform: the same value in every lane, as a varying value; or in every element of a tile */
    /* a varying in W lanes, imm: enum fold; combines lane i with i+W/2, W/4 .. 1 (uniform result).  In a block loop of
     * a tile [MxN]: the same of the N columns of each row, until the C columns of the result [MxC] are left; N and C
     * are powers of two; which zero is the maximum of 0 and -0 is not specified */
    L_LANE_REDUCE,
    /* a, b varying, imm: distance h (a power of two below W), kind: enum interleave; one exchange step of a transpose
     * of W values with W lanes (Eklundh 1972): see enum interleave */
    L_INTERLEAVE,
    L_INDEX,    /* kind: enum tile_order; the numbers of a tile's rows [Mx1] or columns [1xN], i64 */
    L_COLUMNS,  /* a [MxN], imm: columns from this one on, as many as the result has.  In a block loop */
    L_MMA,  /* a [MxK], b [KxN], c [MxN], kind: enum mma; c + a b.  c has the dtype of a and b, or f32 where these are
               half floats, i32 where they are u8 or i8 */
    L_PRIM, /* the first primitive: L_PRIM + enum prim, operands a b c */
};

enum prim {
#define PRIM(NAME, name, ...) P_##NAME,
#include "ir/math/prims.def"
    P_COUNT
};
#define L_OP(prim) (L_PRIM + (prim))

enum { INST_INDEX = 1 };  /* linst.kind of a primitive: index arithmetic made by ix_*, not data */
enum loop_kind { LOOP_SERIAL, LOOP_PARALLEL, LOOP_VECTOR, LOOP_UNROLLED, LOOP_REDUCE, LOOP_GRID, LOOP_BLOCK,
                 LOOP_COUNT };
/* Element (r, c) of a tile in memory: index + r * stride + c, or index + r + c * stride. */
enum tile_order { TILE_ROWS, TILE_COLS, TILE_ORDER_COUNT };
/* MMA_CHAIN: each element is one ascending chain of fma (floats: a and b converted to c's dtype).  MMA_ANY: products
 * are added in any order, as the hardware does.  MMA_ASYNC: as MMA_ANY, but not complete before a WAIT for products:
 * until then the elements of a and b, which are loads from panels of shared memory, must not be stored to, and the
 * result may only be the c of another such mma, or be carried.  a may also be the result of a primitive.
 * MMA_EVEN_ODD: a is bf16, of K <= EVEN_ODD_BLOCK; b is [K/2 x N] of u32, each of two bf16 that follow each other in
 * its column, the first in the lower half; c is f32.  Adds a block in even_odd order (node.h) to c. */
enum mma { MMA_CHAIN, MMA_ANY, MMA_ASYNC, MMA_EVEN_ODD, MMA_COUNT };
/* What COMMIT and WAIT are about: L_COPY, or L_MMA of kind MMA_ASYNC. */
enum async { ASYNC_COPIES, ASYNC_PRODUCTS, ASYNC_COUNT };
/* Lane l of interleave(a, b, h): INTERLEAVE_LO  l & h ? b[l - h] : a[l]      INTERLEAVE_HI  l & h ? b[l] : a[l + h] */
enum interleave { INTERLEAVE_LO, INTERLEAVE_HI, INTERLEAVE_COUNT };
/* Why a cache line is prefetched: to be read one tile later, or to be written soon. */
enum prefetch { PREFETCH_READ, PREFETCH_WRITE, PREFETCH_COUNT };
enum fold { FOLD_ADD, FOLD_MAX, FOLD_MIN, FOLD_MUL, FOLD_COUNT }; /* max and min as in ops.def: NaN if any is NaN */

struct linst {
    uint8_t op, dtype, kind, varying;
    uint16_t rows, cols;    /* a tile's shape; cols 0: no tile */
    val a, b, c, d;
    uint64_t imm;
};
_Static_assert(sizeof(struct linst) == 32, "no padding: kernels are hashed as bytes");

/* BUF_PHASES: barriers of a block, each of which counts its phases; no phase is complete when a block begins.  They are
 * in shared memory.  BUF_VIEW: a view of another buffer, for L_COPY_PANEL. */
enum buf_role { BUF_IN, BUF_OUT, BUF_SCRATCH, BUF_WORKSPACE, BUF_SHARED, BUF_REGISTER, BUF_PHASES, BUF_VIEW,
                BUF_COUNT };
/* Is it not an argument, but the kernel's own memory, or a view? */
static inline bool buf_is_local(unsigned role) { return role >= BUF_SHARED; }
enum { VIEW_DIMS = 3, MAX_PANEL_ROWS = 256, MAX_ARRIVALS = 1 << 10 };
struct lbuf {
    uint8_t dtype, role;
    /* BUF_SHARED: not 0: an array of matrices of so many rows and `id` columns, which lie in panels of PANEL_COLUMNS
     * columns, rows swizzled as matrix units read them.  That changes where an element is, but no index.  0, and `id`
     * is not: the memory is that of buffer id - 1 and of those between the two, which hold no values any more. */
    uint16_t panel_rows;
    /* BUF_IN, BUF_OUT: which of the kernel's arguments; several lbufs may be the same memory only if the program says
     * so (state updated in place, same index).  BUF_PHASES: arrivals that complete a phase.  BUF_VIEW: the lbuf that
     * has the elements */
    uint32_t id;
    int64_t count;          /* elements; scratch and workspace: 64-byte aligned */
    /* BUF_VIEW: the first element and, for each dimension, innermost first, the number of elements and the distance
     * from one to the next.  The innermost distance is 1; first, and the other distances, are whole vectors of 16
     * bytes, and each distance is a multiple of the one before. */
    int64_t first, size[VIEW_DIMS], step[VIEW_DIMS];
};
static inline bool buf_is_over(const struct lbuf *l) { return l->role == BUF_SHARED && !l->panel_rows && l->id; }
_Static_assert(sizeof(struct lbuf) == 72, "no padding: buffers are hashed as bytes");

struct kernel {
    char name[64], file[128]; int line;              /* for messages; not hashed. The user's line; 0: unknown */
    struct linst *inst; uint32_t ninst, inst_cap;    /* inst[0] is NIL */
    struct lbuf *buf;   uint32_t nbuf, buf_cap;
    const struct sched_family *family;               /* NULL: no schedule; not hashed */
    struct sched_record sched;
    int64_t extent;                                  /* iterations: kernel_extent */
    uint32_t members;                                /* sets of arguments; 0: one */
    int64_t flops, bytes;                            /* estimates: arithmetic and memory traffic */
    struct index_table *index;                       /* index.c: linear forms while building */
    /* While building, of a kernel for all values of symbols: what stands in for them in sizes, and their values. */
    const struct placeholders *placeholders;               /* NULL: there are none */
    val symbol[MAX_PLACEHOLDERS];
    struct err err;
};

/* The compiled form, which every code generator makes:
 *   buf[i]   start of lbuf i (scratch: this thread's; shared, register: not read)
 *   slot[i]  the bits of slot i
 *   begin, end   the iterations to run */
typedef void kernel_fn(void *const *buf, const uint64_t *slot, int64_t begin, int64_t end);

/* The products that a GPU's matrix units (tensor cores) support: tiles [m x k] and [k x n], summed in f32. */
struct mma_caps {
    uint16_t subgroup;              /* threads that hold a tile together; 0: no matrix units */
    uint16_t m, n, k;
    uint32_t dtypes;            /* of the factors: a set, one bit each */
    uint16_t max_n;            /* columns that are multiplied at once, at most */
    uint8_t async;              /* 1: MMA_ASYNC of panels in shared memory */
    uint8_t chains;             /* 1: a sum, converted to the dtype of factors, may be a factor a */
};

enum { MMA_UNITS = 2 };         /* most forms of products of a GPU whose factors are in registers */

/* What a pass or a code generator may know of a target. */
struct caps {
    char name[64];              /* e.g. the CPU name; part of disk keys */
    char features[1024];
    char arch[16];              /* aarch64, x86_64: if it is not this machine's; else "" */
    uint32_t vector_bytes;      /* bytes of a register: 16, 32, 64 */
    uint32_t vector_regs;
    uint32_t half_vectors;      /* CPU: 1 if two operations on half a register take no longer than one on all of it */
    uint32_t compact;           /* 1: another compiler translates the kernels, and its time grows with their length */
    uint32_t dot2;              /* CPU: 1 if DOT2 is one fast instruction, for vectors of vector_bytes */
    uint32_t bf16_tiles;        /* CPU: 1 if MMA_EVEN_ODD of [16x16] tiles is one instruction */
    uint32_t mma_bytes;         /* CPU: depth of the fast matrix products of 8-bit integers; 0: none */
    uint32_t threads;           /* GPU: blocks that run concurrently */
    uint32_t loop_limit;        /* GPU: limit of loop iterations of a thread in total; 0: none */
    int64_t l1_bytes, l2_bytes, l3_bytes;
    uint32_t is_gpu;            /* 1: a GPU, 0: a CPU */
    uint32_t block_threads;     /* GPU: maximum threads of a block */
    uint32_t shared_bytes;      /* GPU: shared memory of a block */
    uint32_t broadcast;         /* GPU: lanes of a subgroup that pass each other what all of them read; 0: none */
    uint32_t async_copies;      /* GPU: 1 if copies to shared memory do not occupy their thread */
    uint32_t panel_copies;      /* GPU: 1 if one thread can copy whole panels (L_COPY_PANEL) */
    /* GPU: the forms whose factors are in registers, the largest tile first; those that it has stand at the start */
    struct mma_caps mma[MMA_UNITS];
    struct mma_caps mma_async;  /* GPU: the form whose factors are in shared memory */
    uint32_t members;           /* GPU: 1 if a launch may run a kernel with several members */
    uint32_t in_order;          /* GPU: 1 if a block that has begun goes on while others wait for it */
    /* GPU: 1 if kernels add floats in the order of the graph, and round each fma once (option order); else in that of
     * their schedules */
    uint32_t graph_order;
};

/* Of a SLOT. */
static inline uint32_t slot_number(const struct linst *i) { return (uint32_t)i->imm; }
static inline int64_t slot_max(const struct linst *i) { return (int64_t)(i->imm >> 32); }

/* ---- kernel.c: building and freeing ---- */
struct kernel *kernel_new(const char *name);
void kernel_free(struct kernel *k);
size_t kernel_bytes(const struct kernel *k);      /* bytes of memory that it uses */
uint32_t k_buf(struct kernel *k, enum buf_role role, unsigned dtype, int64_t count, uint32_t id);
val k_inst(struct kernel *k, unsigned op, unsigned dtype, val a, val b, val c, uint64_t imm); /* sets varying */
/* from its operands: the value that i->varying must have */
bool inst_is_varying(const struct kernel *k, const struct linst *i);
val k_append(struct kernel *k, struct linst i);     /* unchanged */
val k_const(struct kernel *k, unsigned dtype, double v);
val k_bits(struct kernel *k, unsigned dtype, uint64_t bits);
val k_int(struct kernel *k, int64_t v);             /* i64 */
val k_loop(struct kernel *k, enum loop_kind kind, val lo, val hi, int64_t step);
val k_loop_in_order(struct kernel *k, enum loop_kind kind, int64_t n); /* parallel or grid, 0 to n */
val k_carry(struct kernel *k, val init);
void k_next(struct kernel *k, val carry, val value);
void k_end(struct kernel *k, val loop);
val k_out(struct kernel *k, val carry);
val k_if(struct kernel *k, val cond);
val k_alias(struct kernel *k, uint32_t in, uint32_t out);
val k_load(struct kernel *k, uint32_t buf, val index, val pred);
val k_load_wide(struct kernel *k, uint32_t buf, val index, val pred); /* a u32 of adjacent elements */
/* The number of elements that a load, or one lane of it, reads. */
static inline unsigned load_elements(const struct kernel *k, const struct linst *i)
{
    return (unsigned)(dtype_size(i->dtype) / dtype_size(k->buf[i->imm].dtype));
}
/* The lbuf that a copy reads. */
static inline uint32_t copy_source(const struct kernel *k, const struct linst *i)
{
    uint32_t from = (uint32_t)(i->imm >> 32);
    return i->op == L_COPY_PANEL ? k->buf[from].id : from;
}
void k_store(struct kernel *k, uint32_t buf, val index, val value, val pred);
void k_prefetch(struct kernel *k, enum prefetch why, uint32_t buf, val index);
void k_publish(struct kernel *k, uint32_t buf, val index, val value, val pred);
val k_receive(struct kernel *k, uint32_t buf, val index, val pred);
val k_splat(struct kernel *k, val a);            /* a itself if it is varying */
val k_lane_reduce(struct kernel *k, enum fold f, val a);
val k_interleave(struct kernel *k, enum interleave m, val a, val b, uint32_t distance);
/* row[i] lane j becomes row[j] lane i; n = W of the open vector loop, a power of two. */
void k_transpose(struct kernel *k, val *row, uint32_t n);
val k_prim(struct kernel *k, enum prim p, val a, val b, val c);
val k_min(struct kernel *k, val a, val b); /* a if it is less than b, else b */
val k_max(struct kernel *k, val a, val b); /* b if a is less than it, else a */
static inline unsigned val_dtype(const struct kernel *k, val v) { return k->inst[v].dtype; }

/* ---- kernel.c: what a finished kernel has ---- */
bool kernel_is_in_order(const struct kernel *k);    /* are its iterations in order, on one thread? */
int64_t kernel_extent(const struct kernel *k);      /* the value that k->extent must have: iterations of all phases */
struct phase { val first, end; int64_t base, extent; }; /* instructions [first, end); base: its first iteration */
/* the next phase; *p starts as zeroes; false: there are no more */
bool kernel_phase(const struct kernel *k, struct phase *p);
/* May instructions [first, end) access a GPU's shared memory?  Barriers of a block (BUF_PHASES) are in it in all
 * phases. */
bool kernel_shares(const struct kernel *k, val first, val end);
const char *kernel_needs_gpu(const struct kernel *k);   /* the first feature that needs a GPU; NULL: none */
bool kernel_has_blocks(const struct kernel *k);         /* does it have a grid loop, whose threads run independently? */
val kernel_end_of(const struct kernel *k, val head);    /* the END of a loop or if */
/* Of a grid loop in order: the buffer of its words; nbuf: it publishes none. */
uint32_t kernel_word_buffer(const struct kernel *k, val loop);

/* ---- index.c: i64 index arithmetic that simplifies itself ----
 * Values made here have a linear form over loop variables and a range, so that the div and mod of views cancel. */
val ix_add(struct kernel *k, val a, val b);
val ix_sub(struct kernel *k, val a, val b);
val ix_scale(struct kernel *k, val a, int64_t c);
/* rounds down; c < 1, a stride of an empty tensor that no iteration uses, gives 0 */
val ix_div(struct kernel *k, val a, int64_t c);
val ix_mod(struct kernel *k, val a, int64_t c);     /* a - c*floor(a/c) */
/* v = d * *q + *rest with 0 <= *rest < d, where d is the largest divisor of c for which v's form proves this; 1: *q is
 * v. */
int64_t ix_split(struct kernel *k, val v, int64_t c, val *q, val *rest);
/* Coefficient of loop variable `var` in v and whether v is linear in it. */
bool ix_stride(struct kernel *k, val v, val var, int64_t *stride);
/* The same of a coefficient that may be a size with symbols. */
bool ix_stride_size(struct kernel *k, val v, val var, struct size *stride);
bool ix_range(const struct kernel *k, val v, int64_t *lo, int64_t *hi);
bool ix_const(const struct kernel *k, val v, int64_t *c);
void ix_bound(struct kernel *k, val v, int64_t lo, int64_t hi); /* asserts lo <= v <= hi */
/* Asserts lo <= v <= hi.  Later forms use v as an atom, not its own form, whose range is less precise. */
void ix_assume_range(struct kernel *k, val v, int64_t lo, int64_t hi);
/* What ix_bound, ix_assume_range and ix_assume_below note is in force up to the end of the loop or if in which they
 * are called, or between these two (index_facts.c).  ix_facts_begin returns what ix_facts_end takes. */
uint32_t ix_facts_begin(const struct kernel *k);
void ix_facts_end(struct kernel *k, uint32_t begin);
bool ix_depends(struct kernel *k, val v, val var);       /* does v depend on var? */
int index_uses(const struct kernel *k, val v, val var);  /* the same for a finished kernel; -1: out of memory */
bool ix_same(const struct kernel *k, val a, val b);       /* equal linear forms */
void index_scope_end(struct kernel *k, val scope);         /* k_end calls it; scope: the loop or if */
void index_free(struct kernel *k);                        /* kernel_free calls it */

/* ---- size.c: sizes with symbols (ir/symbols/README.md, "Sizes") ---- */
void kernel_take_symbols(struct kernel *k, const struct placeholders *s); /* before all else; s may be NULL */
/* size_of_length and size_of_shape of the kernel's symbols. */
struct size kernel_length(const struct kernel *k, int64_t length);
struct size kernel_count(const struct kernel *k, const struct shape *s);
val ix_size(struct kernel *k, struct size size);        /* its value */
int64_t ix_max(const struct kernel *k, struct size size); /* the greatest that it may be */
/* index.c: ix_scale, ix_div and ix_mod by a size. */
val ix_scale_size(struct kernel *k, val a, struct size size);
val ix_div_size(struct kernel *k, val a, struct size size);
val ix_mod_size(struct kernel *k, val a, struct size size);
void ix_assume_below(struct kernel *k, val v, struct size size); /* asserts 0 <= v < size, of a size with symbols */
/* floor(a / by) of a not below 0 and a `by` above 0, which is at most `most`, and what remains. */
val ix_quotient(struct kernel *k, val a, val by, int64_t max, val *rest);
val ix_mul(struct kernel *k, val a, val b);       /* index.c: of two that are not below 0 */
val ix_min(struct kernel *k, val a, int64_t max); /* the smaller one */
/* The kernel cannot be one for all values. */
void kernel_mark_unsupported(struct kernel *k, const char *what);
/* Where all that the parallel loop of a phase does, or the block loop in its grid loop, is in one `if` of iterations
 * below a number made of constants and slots: that number; else 0. */
struct phase;
val kernel_active(const struct kernel *k, const struct phase *p);
/* Of `extent` iterations of a phase, those that do anything. */
int64_t kernel_extent_at(const struct kernel *k, val active, int64_t extent, const uint64_t *slot);

/* ---- kernel_clean.c ---- */
/* Merges equal computations, removes unused ones, renumbers values and moves constants to the front: the form that text
 * reproduces bit for bit.  Ends the building of k. */
bool kernel_clean(struct kernel *k);
/* The last step alone: moves constants to the front, each once, in order of first use. from, if not NULL, maps each new
 * value to its old one; it has room for k->ninst. */
bool kernel_canonicalize(struct kernel *k, val *from);

/* ---- scalar_build.c: the op rows as loop IR ---- */
/* a converted as CAST does, rounded once, with as many primitives as needed. */
val k_cast(struct kernel *k, val a, unsigned dtype);
/* The value of elementwise op for operands in[], by the row's expression.  Half floats compute in f32, except neg and
 * abs, which change the sign bit. */
val k_op(struct kernel *k, unsigned op, const val *in);
/* As op exp, with fewer primitives, for a value known to be at most 0, or NaN. */
val k_exp_nonpositive(struct kernel *k, val a);
val k_threefry(struct kernel *k, unsigned dtype, val seed, val index);
enum op fold_op(enum fold f);                    /* the elementwise op that combines two elements */
val k_fold_step(struct kernel *k, enum fold f, val acc, val x);
uint64_t fold_identity(enum fold f, unsigned dtype);

/* ---- kernel_text.c, kernel_parse.c: kernels as text; the grammar is in README.md ---- */
char *kernel_text(const struct kernel *k);          /* free with mem_free; NULL: out of memory */
bool kernel_print(const struct kernel *k, FILE *f);
struct kernels { struct kernel **v; uint32_t n, cap; };
/* Adds the kernels of a text after verifying them.  f: the families of schedules that they may have; NULL: none.
 * false: "line:column: reason", after the file's name if there is one. */
bool kernel_parse(const char *text, size_t len, const char *file, const struct sched_families *f, struct kernels *out,
                  struct err *e);
void kernels_free(struct kernels *k);
/* ---- kernel_verify.c ---- */
/* false: *e is the rule that is broken, with the instruction (INTERNAL), or there is no memory. */
bool kernel_check(const struct kernel *k, struct err *e);
bool kernel_verify(const struct kernel *k, struct err *e); /* the same with the kernel's name in the text */
/* ---- kernel_verify_tile.c, kernel_verify_threads.c: rules of one instruction ---- */
/* An error of the instruction: rule says what is wrong with it.  false. */
bool kernel_broken(struct err *e, val v, const char *rule);
/* do the shapes of v and its operands fit? */
bool tile_shapes(const struct kernel *k, val v, const char **rule);
/* Called after all other rules: all threads reach each barrier, whole subgroups reach each tile. */
bool threads_verify(const struct kernel *k, struct err *e);
/* ---- kernel_members.c ---- */
enum { MAX_MEMBERS = 128, MAX_MEMBER_ARGUMENTS = 448 };  /* of all members: CUDA and HIP take 4 KB of parameters */
static inline uint32_t kernel_members(const struct kernel *k) { return k->members > 1 ? k->members : 1; }
uint32_t kernel_arguments(const struct kernel *k);       /* inputs, outputs and workspaces of all members */
uint32_t kernel_own_buffers(const struct kernel *k);     /* the number of those that instructions name */
/* The lbuf that a member has for lbuf b of the first one, and back. */
uint32_t kernel_member_buffer(const struct kernel *k, uint32_t b, uint32_t member);
uint32_t kernel_first_buffer(const struct kernel *k, uint32_t b, uint32_t *member);
/* The reason why a kernel of one member cannot have several; NULL: it can. */
const char *kernel_members_conflict(const struct kernel *k);
const char *kernel_members_check(const struct kernel *k);  /* the rule that a kernel with members breaks, or NULL */
/* The kernel of the first member alone; its memory is k's. */
struct kernel kernel_one_member(const struct kernel *k);
/* A new kernel of k, which has one member, and of so many `arguments` (struct lbuf's id).  NULL: out of memory. */
struct kernel *kernel_join(const struct kernel *k, uint32_t members, uint32_t arguments);
/* ---- kernel_interp.c ---- */
/* Runs iterations of a kernel without compiling it.  Every access is checked: bounds, races, loads of elements that
 * were not stored.  A kernel of several phases must be run in one call, because stores of other calls are not known. */
bool kernel_interp(const struct kernel *k, void *const *buf, const uint64_t *slot, int64_t begin, int64_t end,
                   struct err *e);
/* ---- hash: everything but the name ---- */
struct hash128 kernel_hash(const struct kernel *k);
bool kernel_same(const struct kernel *a, const struct kernel *b);

/* ---- lowering one element (struct opinfo.lower) ---- */
struct lower {
    struct kernel *k;
    const struct graph *g;
    /* The element of operand r at coord (rank vals): computed in place, or loaded if r is stored. */
    val (*at)(struct lower *l, ref r, const val *coord);
    /* loads access memory only where this is true, and give 0 elsewhere, because coordinates may be out of range there.
     * 0: everywhere */
    val where;
};
enum fold reduce_fold(unsigned op);              /* op_reduce.c: the combining op of a reduction */
enum fold cumulative_fold(unsigned op);          /* op_cumulative.c: the same for a scan other than recurrence */
/* op_cumulative.c: a scan's next result from the previous one and the operands' elements. */
val cumulative_step(struct kernel *k, unsigned op, val before, val a, val b);
/* op_reduce.c: v as a carry's initial value, made before its loop: splatted if a vector loop is open. */
val lower_lanes(struct lower *l, val v);
val lower_init(struct lower *l, unsigned dtype, uint64_t bits); /* the same for a constant */
/* op_dot.c: two bf16 as DOT2 takes them, low the first; high 0: the second is zero */
val dot_pair_of(struct kernel *k, val low, val high);
/* op_dot.c: even_odd order (node.h).  Adds the products of two such pairs to the sums of the block's even and odd
 * products; the result of a block of that length from these sums; and a sum as the order adds. */
void dot_even_odd_step(struct kernel *k, val a, val b, val sum[2]);
val dot_even_odd_end(struct kernel *k, int64_t length, val sum[2]);
val dot_add_flushed(struct kernel *k, val a, val b);
/* op_select.c: i (i64) where it is within 0..last, as *inside says (0: always); elsewhere some index within. */
val lower_inside(struct kernel *k, val i, int64_t last, val *inside);
/* op_sort.c: an integer whose order is argsort's order of x. */
val lower_sort_key(struct kernel *k, val x, bool descending);
/* op_select.c: an index of any integer dtype as i64, clamped to 0..last. */
val lower_index(struct kernel *k, val i, int64_t last);
/* The same with a last one that the kernel computes; it may be -1, of nothing, where the result is not used. */
val lower_inside_to(struct kernel *k, val i, val last, val *inside);
val lower_index_to(struct kernel *k, val i, val last);

#endif
