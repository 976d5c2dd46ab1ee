/* The loop IR: what a kernel is before any code generator sees it.
 *
 * A kernel is a flat array of instructions; loops nest by LOOP ... END.  Every instruction is an SSA
 * value named by index, of one scalar dtype.  Inside a vector loop the kernel is SPMD: a value that
 * depends on the loop's variable (or on SPLAT) is "varying", one per lane, the rest are uniform and
 * computed once.  Control flow is always uniform; lanes differ only through predicates.
 *
 *   loop serial    in order, may carry values
 *   loop reduce    the same, but nothing else connects its iterations: it stores nothing, so that loads of later
 *                  iterations may be issued early
 *   loop unrolled  the same as serial, between constants, at most MAX_UNROLL times: written out one after the other
 *   loop vector    lo 0, hi a constant W of 1..64: all W lanes at once; never nested in another vector loop
 *   loop parallel  outermost, 0 to a constant; iterations are independent and are shared out among threads (the kernel
 *                  function gets begin and end)
 *   loop grid      the same on a GPU: iterations are blocks.  All that it does is in its one block loop, but for
 *                  arithmetic and loads of inputs in front of it
 *   loop block     directly in a grid loop, 0 to a constant T of 1..1024: T threads.  They go their own ways, but meet
 *                  at every BARRIER, which none may miss: what decides whether it is reached is the same for all.
 * Between two barriers no thread touches what another stores in shared or global memory (atomics, among themselves,
 * apart).  `subgroups N`: N neighbouring threads hold each of their tiles together, so tiles and their indices are the
 * same for all of them, as is what decides whether they are reached
 *
 * Carried values: `carry` instructions stand directly behind their loop, each with an initial value; several are a
 * tuple. `next` instructions stand directly before its end, one per carry; `out` reads a carry's final value after the
 * end (with no iteration: the initial value).  A carry is varying if its initial value is.
 *
 * Phases: SYNC, outside of all loops, ends a phase of the kernel.  All that one phase has stored in outputs and
 * workspaces the next may load; values do not pass, but for constants.  Each phase has at most one parallel or
 * grid loop.  A kernel's iterations are those of its phases one after the other: begin and end of a call are counted
 * so, and what runs a kernel in parts runs one phase to its end before the next.
 *
 * Tiles: a value may be a matrix of constant shape, kept in registers.  Primitives take them element by element; a row
 * [1xN], a column [Mx1] or a scalar stands for all rows or columns.  MMA adds a product of two tiles to a third.  Tiles
 * do not vary: they stand outside of vector loops.
 *
 * Memory: in and out are the kernel's arguments, workspace is memory for this run of the kernel alone, shared by all
 * its iterations; shared belongs to one block of a grid, register to one thread or iteration, scratch to one thread of
 * a CPU. All but in start undefined. */
#ifndef KILN_LOOP_H
#define KILN_LOOP_H
#include "ir/ir.h"

typedef uint32_t val; /* index of an instruction; 0 is "none" */
enum {
    MAX_NEST = 32,              /* loops and ifs, one in the other */
    MAX_UNROLL = 256,
    MAX_THREADS = 1024,         /* of a block */
    MAX_SUBGROUP = 64,
    MAX_TILE_SIDE = 256, MAX_TILE = 4096, /* elements */
    MAX_SHARED = 256 << 10,     /* bytes of all shared buffers */
    MAX_REGISTER = 64 << 10,    /* bytes of all register buffers */
};

enum lop {
    L_NIL,
    L_CONST, /* imm: the bits; dtype                                                     */
    L_SLOT,  /* imm: slot ordinal; uniform read of a slot                                */
    L_LOOP,  /* a lo, b hi (i64, uniform), imm step > 0, kind; of a block rows: threads of a subgroup; value: the
                variable (i64) */
    L_CARRY, /* a init                                                                   */
    L_NEXT,  /* a carry, b value                                                         */
    L_END,   /* a loop                                                                   */
    L_OUT,   /* a carry                                                                  */
    L_IF,    /* a condition (bool, uniform): runs up to its END once or not at all        */
    L_LOAD,  /* a index in elements (i64), b predicate or 0, imm: buffer; false lanes give 0.  A tile: d stride, kind:
                enum tile_order.  Of an output or workspace: an element that this iteration of the parallel loop, or
                an earlier phase, has stored.  On a processor, u32 of an input of 1 or 2 bytes an element: the bits of
                4 or 2 neighbours, the first in the lowest */
    L_STORE, /* a index, b value, c predicate or 0, d stride of a tile, imm: buffer, kind as of a load */
    L_PREFETCH, /* a index (i64, uniform), imm: buffer, kind: enum prefetch; no access: any index is legal */
    L_ATOMIC,   /* a index, b value, c predicate or 0, imm: buffer, kind: enum fold but MUL: what is there and the value
                   become one.  Integers of 32 and 64 bits: their order does not show */
    L_COPY,     /* a index in a shared buffer, b index in a global one, c predicate or 0 (false: zeros), rows: elements
                   (4, 8 or 16 bytes), of which both indices are multiples, imm: shared buffer, global buffer << 32.
                   Starts; lands at a WAIT of this thread */
    L_COMMIT,   /* the thread's copies since the last one become a batch                     */
    L_WAIT,     /* imm n: all batches of this thread but the last n have landed              */
    L_BARRIER,  /* all threads of the block, and what they have stored                      */
    L_SYNC,     /* the end of a phase                                                       */
    L_SPLAT,    /* a uniform: the same value in every lane, as a varying value; or in every element of a tile */
    L_LANE_REDUCE,     /* a varying in W lanes, imm: enum fold; lanes folded i with i+W/2, W/4 .. 1 (uniform) */
    /* a, b varying, imm: distance h (a power of two below W), kind: enum interleave; one exchange step of a transpose
     * of W values with W lanes (Eklundh 1972): see enum interleave */
    L_INTERLEAVE,
    L_INDEX,    /* kind: enum tile_order; the numbers of a tile's rows [Mx1] or columns [1xN], i64 */
    L_MMA,  /* a [MxK], b [KxN], c [MxN], kind: enum mma; c + a b.  c has the dtype of a and b, or f32 where these are
               half floats, i32 where they are u8 or i8 */
    L_PRIM, /* first of the primitives: L_PRIM + enum prim, operands a b c               */
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
/* An element of MMA_CHAIN is one ascending chain of fma (floats: a and b converted to c's dtype); MMA_ANY adds the
 * products in any order, as the hardware does. */
enum mma { MMA_CHAIN, MMA_ANY, MMA_COUNT };
/* Lane l of interleave(a, b, h): INTERLEAVE_LO  l & h ? b[l - h] : a[l]      INTERLEAVE_HI  l & h ? b[l] : a[l + h] */
enum interleave { INTERLEAVE_LO, INTERLEAVE_HI, INTERLEAVE_COUNT };
/* What for a line of memory is brought nearer: to be read a tile from now, to be written soon. */
enum prefetch { PREFETCH_READ, PREFETCH_WRITE, PREFETCH_COUNT };
enum fold { FOLD_ADD, FOLD_MAX, FOLD_MIN, FOLD_MUL, FOLD_COUNT }; /* max and min as in ops.def: NaN if any is NaN */

struct linst {
    uint8_t op, dtype, kind, varying;
    uint16_t rows, cols;    /* a tile's shape; cols 0: no tile */
    val a, b, c, d;
    uint64_t imm;
};
_Static_assert(sizeof(struct linst) == 32, "no padding: kernels are hashed as bytes");

enum buf_role { BUF_IN, BUF_OUT, BUF_SCRATCH, BUF_WORKSPACE, BUF_SHARED, BUF_REGISTER, BUF_COUNT };
/* The kernel's own memory, which is no argument. */
static inline bool buf_is_local(unsigned role) { return role == BUF_SHARED || role == BUF_REGISTER; }
struct lbuf {
    uint8_t dtype, role;
    uint16_t pad;
    uint32_t id;            /* BUF_IN, BUF_OUT: which of the kernel's arguments; several lbufs may share memory
                               only where the program says so (state updated in place, same index) */
    int64_t count;          /* elements; scratch and workspace: 64-byte aligned */
};

/* Every scheduling decision of one kernel, so that a tuner edits only this. */
struct schedule {
    uint16_t kind;          /* enum sched_kind */
    uint16_t width;         /* lanes of the vector loops */
    uint16_t mr, nr;        /* dot: register tile rows and columns */
    uint32_t kc;            /* dot: contraction block, equal to the node's kblock */
    /* dot on a processor by tiles: rows that a task walks for each tile of columns.  0 in a record that is handed in:
     * as chosen; so with `epilogue` */
    uint32_t rows;
    int64_t grain;          /* parallel iterations worth one task; 0: never split */
    /* dot on a GPU: rows and columns of a block of threads; width: its threads. As many threads as tiles: each has one.
     * More: the subgroups of the matrix units do (caps.mma) */
    uint16_t block_m, block_n;
    /* the same: elements of the contraction that the block holds in shared memory at a time.  dot of a few rows on a
     * processor: that it reads from a matrix read once at a time; 0: by tiles instead */
    uint16_t step;
    uint8_t pack_b;         /* dot: the second operand is copied into scratch panels first */
    uint8_t stream;         /* map, rows: results are stored non-temporally, where vectors lie at whole registers */
    uint8_t epilogue;       /* dot on a processor by tiles: enum sched_epilogue */
    uint8_t pad[7];
};
_Static_assert(sizeof(struct schedule) == 40, "no padding: schedules are hashed and compared as bytes");
enum sched_kind { SCHED_MAP, SCHED_ROW_REDUCE, SCHED_COLUMN_REDUCE, SCHED_ROWS, SCHED_DOT, SCHED_SCATTER,
                  SCHED_CUMULATIVE, SCHED_SORT, SCHED_ATTENTION, SCHED_COUNT };

/* When the epilogue of a tile's products is computed: on the accumulators; or from a copy of them, after the tile,
 * after all tiles of its rows, or during the products of the tile to the right. */
enum sched_epilogue { EPILOGUE_NONE, EPILOGUE_IN_TILE, EPILOGUE_AFTER_TILE, EPILOGUE_AFTER_ROWS, EPILOGUE_DURING_NEXT,
                      EPILOGUE_COUNT };

/* What a user or a tuner hands in: the records of some kernels of some graphs, each with the place of its text. */
enum sched_field { FIELD_NAME, FIELD_KIND, FIELD_WIDTH, FIELD_TILE, FIELD_BLOCK, FIELD_STEP, FIELD_KBLOCK, FIELD_ROWS,
                   FIELD_PACK_B, FIELD_EPILOGUE, FIELD_STREAM, FIELD_GRAIN, FIELD_COUNT };
struct sched_line {
    char kernel[64];
    struct schedule sched;
    uint32_t line, column[FIELD_COUNT]; /* from 1; column 0: the field is not in the text */
};
struct sched_section {      /* those of the kernels of one graph */
    char graph[64];         /* "": of every graph that has no section of its own */
    bool unfused;           /* for its unfused kernels, not its fused ones */
    char file[256];         /* for messages; may be "" */
    struct sched_line *v; uint32_t n, cap;
};
struct sched_sections { struct sched_section *v; uint32_t n, cap; };

struct kernel {
    char name[64], file[128]; int line;              /* for people; outside the hash.  The user's line; 0: unknown */
    struct linst *inst; uint32_t ninst, inst_cap;    /* inst[0] is NIL */
    struct lbuf *buf;   uint32_t nbuf, buf_cap;
    struct schedule sched;
    int64_t extent;                                  /* iterations: kernel_extent */
    int64_t flops, bytes;                            /* estimates: arithmetic and memory traffic */
    struct index_table *index;                       /* index.c: linear forms while building */
    /* While building, of a kernel for all values of symbols: what stands in for them in sizes, and their values. */
    const struct stand_ins *stand_ins;               /* NULL: there are none */
    val symbol[MAX_STAND_INS];
    struct err err;
};

/* The compiled form every code generator makes:
 *   buf[i]   start of lbuf i (scratch: this thread's; shared, register: not read)
 *   slot[i]  the bits of slot i
 *   begin, end   the iterations to run */
typedef void kernel_fn(void *const *buf, const uint64_t *slot, int64_t begin, int64_t end);

/* What the matrix units of a GPU (tensor cores) multiply: tiles [m x k] and [k x n] of halves, summed in f32. */
struct mma_caps {
    uint16_t subgroup;              /* threads that hold a tile together; 0: there are no such units */
    uint16_t m, n, k;
    uint32_t dtypes;            /* of the factors: a set, by bit */
};

/* What a pass or a code generator may know of a target. */
struct caps {
    char name[64];              /* e.g. the CPU name; part of disk keys */
    char features[1024];
    char arch[16];              /* aarch64, x86_64: where it is not this machine's; else "" */
    uint32_t vector_bytes;      /* of one register: 16, 32, 64 */
    uint32_t vector_regs;
    uint32_t compact;           /* 1: another compiler translates the kernels, in a time that goes with their length */
    uint32_t mma_bytes;         /* of a CPU: depth of the mma of 8-bit integers that it is quick at; 0: none */
    uint32_t threads;           /* of a GPU: blocks that run at once */
    uint32_t loop_limit;        /* of a GPU: iterations of loops in all that a thread is good for; 0: any number */
    int64_t l1_bytes, l2_bytes, l3_bytes;
    uint32_t block_threads;     /* of a GPU: most threads of a block; 0: no GPU */
    uint32_t shared_bytes;      /* of a GPU: of a block */
    struct mma_caps mma;
    /* Of a program on several devices: these are for the devices of this set (by bit; 0: all), the others' are next. */
    uint64_t devices;
    const struct caps *next;
};

/* ---- kernel.c: building and freeing ---- */
struct kernel *kernel_new(const char *name);
void kernel_free(struct kernel *k);
size_t kernel_bytes(const struct kernel *k);      /* the memory that it takes */
uint32_t k_buf(struct kernel *k, enum buf_role role, unsigned dtype, int64_t count, uint32_t id);
val k_inst(struct kernel *k, unsigned op, unsigned dtype, val a, val b, val c, uint64_t imm); /* sets varying */
bool inst_is_varying(const struct kernel *k, const struct linst *i); /* by its operands: what i->varying must be */
val k_append(struct kernel *k, struct linst i);     /* as it stands */
val k_const(struct kernel *k, unsigned dtype, double v);
val k_bits(struct kernel *k, unsigned dtype, uint64_t bits);
val k_int(struct kernel *k, int64_t v);             /* i64 */
val k_loop(struct kernel *k, enum loop_kind kind, val lo, val hi, int64_t step);
val k_carry(struct kernel *k, val init);
void k_next(struct kernel *k, val carry, val value);
void k_end(struct kernel *k, val loop);
val k_out(struct kernel *k, val carry);
val k_if(struct kernel *k, val cond);
val k_load(struct kernel *k, uint32_t buf, val index, val pred);
val k_load_wide(struct kernel *k, uint32_t buf, val index, val pred); /* a u32 of neighbours */
/* How many elements a load reads, or one lane of it. */
static inline unsigned load_elements(const struct kernel *k, const struct linst *i)
{
    return (unsigned)(dtype_size(i->dtype) / dtype_size(k->buf[i->imm].dtype));
}
void k_store(struct kernel *k, uint32_t buf, val index, val value, val pred);
void k_prefetch(struct kernel *k, enum prefetch why, uint32_t buf, val index);
val k_splat(struct kernel *k, val a);            /* a itself if it varies already */
val k_lane_reduce(struct kernel *k, enum fold f, val a);
val k_interleave(struct kernel *k, enum interleave m, val a, val b, uint32_t distance);
/* row[i] lane j becomes row[j] lane i; n = W of the open vector loop, a power of two. */
void k_transpose(struct kernel *k, val *row, uint32_t n);
val k_prim(struct kernel *k, enum prim p, val a, val b, val c);
static inline unsigned val_dtype(const struct kernel *k, val v) { return k->inst[v].dtype; }

/* ---- index.c: i64 index arithmetic that simplifies itself ----
 * Values made here carry a linear form over loop variables and a range, so views (div, mod) fold away. */
val ix_add(struct kernel *k, val a, val b);
val ix_sub(struct kernel *k, val a, val b);
val ix_scale(struct kernel *k, val a, int64_t c);
/* floor; c < 1, a stride of an empty tensor that no iteration uses, gives 0 */
val ix_div(struct kernel *k, val a, int64_t c);
val ix_mod(struct kernel *k, val a, int64_t c);     /* a - c*floor(a/c) */
/* v = d * *q + *rest with 0 <= *rest < d, d being the largest divisor of c for which v's form says so; 1: *q is v. */
int64_t ix_split(struct kernel *k, val v, int64_t c, val *q, val *rest);
/* Coefficient of loop variable `var` in v and whether v is linear in it. */
bool ix_stride(struct kernel *k, val v, val var, int64_t *stride);
bool ix_range(const struct kernel *k, val v, int64_t *lo, int64_t *hi);
bool ix_const(const struct kernel *k, val v, int64_t *c);
void ix_bound(struct kernel *k, val v, int64_t lo, int64_t hi); /* promises lo <= v <= hi */
/* Promises lo <= v <= hi; later values have v whole in their forms, not what it is made of, whose ranges say less. */
void ix_whole(struct kernel *k, val v, int64_t lo, int64_t hi);
bool ix_depends(struct kernel *k, val v, val var);       /* does v use var at all? */
int index_uses(const struct kernel *k, val v, val var);  /* the same of a kernel that is not built; -1: out of memory */
bool ix_same(const struct kernel *k, val a, val b);       /* equal linear forms */
void index_scope_end(struct kernel *k);                   /* k_end calls it */
void index_free(struct kernel *k);                        /* kernel_free calls it */

/* ---- size.c: sizes with symbols (ir/symbols/README.md) ---- A size is a product of lengths of the graph, and nothing
 * else: a number that a schedule chose may have one of the primes by chance. */
void kernel_take_symbols(struct kernel *k, const struct stand_ins *s); /* before all else; s may be NULL */
bool ix_symbolic(const struct kernel *k, int64_t size);
val ix_size(struct kernel *k, int64_t size);        /* its value */
/* index.c: ix_scale, ix_div and ix_mod by a size. */
val ix_scale_size(struct kernel *k, val a, int64_t size);
val ix_div_size(struct kernel *k, val a, int64_t size);
val ix_mod_size(struct kernel *k, val a, int64_t size);
val ix_times(struct kernel *k, val a, val b);       /* index.c: of two that are not below 0 */
val ix_least(struct kernel *k, val a, int64_t most); /* the smaller one */
bool size_divides(const struct kernel *k, int64_t size, int64_t by); /* is it a multiple, whatever the symbols are? */
/* The kernel cannot be one for all values. */
void kernel_refuse(struct kernel *k, const char *what);
/* Where all that the parallel loop does is in one `if` of iterations below a number made of constants and slots: that
 * number; else 0. */
val kernel_active(const struct kernel *k);
int64_t kernel_extent_at(const struct kernel *k, val active, const uint64_t *slot); /* iterations that do anything */

/* ---- kernel_clean.c ---- */
/* Equal computations in reach become one, unused ones go, values are renumbered, constants stand in front: the form
 * that text gives back bit for bit.  Ends the building of k. */
bool kernel_clean(struct kernel *k);
/* The last of these alone: constants to the front, each once, in order of first use.  from, if not NULL, gets for every
 * value the one it was before; it has room for k->ninst. */
bool kernel_settle(struct kernel *k, val *from);

/* ---- scalar_build.c: the op rows as loop IR ---- */
/* a converted as CAST does, rounded once, by as many primitives as that takes. */
val k_cast(struct kernel *k, val a, unsigned dtype);
/* The value of elementwise op for operands in[], by the row's expression; half floats through f32, but for neg and abs,
 * which change the sign bit. */
val k_op(struct kernel *k, unsigned op, const val *in);
/* As op exp, in fewer primitives, for a value that is known not to be above 0, or NaN. */
val k_exp_down(struct kernel *k, val a);
val k_threefry(struct kernel *k, unsigned dtype, val seed, val index);
enum op fold_op(enum fold f);                    /* the elementwise op that folds one element into another */
val k_fold_step(struct kernel *k, enum fold f, val acc, val x);
uint64_t fold_identity(enum fold f, unsigned dtype);

/* ---- kernel_text.c, kernel_parse.c: kernels as text; the grammar stands in README.md ---- */
char *kernel_text(const struct kernel *k);          /* free with mem_free; NULL: out of memory */
bool kernel_print(const struct kernel *k, FILE *f);
struct kernels { struct kernel **v; uint32_t n, cap; };
/* Adds the kernels of a text, which verify then.  false: "line:column: reason", behind the file's name if there is
 * one. */
bool kernel_parse(const char *text, size_t len, const char *file, struct kernels *out, struct err *e);
void kernels_free(struct kernels *k);
/* ---- schedule_text.c: schedules as text, in the form that stage "schedules" of a dump prints ---- */
/* Adds the sections of a text.  false: "file:line:column: reason". */
bool schedules_parse(const char *text, size_t len, const char *file, struct sched_sections *out, struct err *e);
void schedules_free(struct sched_sections *s);
/* The section of graph `graph` with the schedules of these kernels. */
/* mem_free it; NULL: no memory */
char *schedules_text(const char *graph, bool unfused, struct kernel *const *k, uint32_t n);
char *schedule_line(const struct schedule *s);      /* "schedule map width 32 ..."; mem_free it; NULL: no memory */
/* false: "file:line:column: reason", at the field, or where the line begins if the text does not have it. */
bool schedule_refuse(const struct sched_section *s, const struct sched_line *l, enum sched_field f, struct err *e,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* ---- kernel_verify.c ---- */
struct flaw { val at; const char *rule; };          /* at 0: the kernel as a whole; rule NULL: out of memory */
bool kernel_check(const struct kernel *k, struct flaw *f);
bool kernel_verify(const struct kernel *k, struct err *e); /* the flaw as an error */
int64_t kernel_extent(const struct kernel *k);      /* what k->extent must be: iterations of all phases */
struct phase { val first, end; int64_t base, extent; }; /* instructions [first, end); the first of its iterations */
/* the next phase; *p starts as zeroes; false: there is none */
bool kernel_phase(const struct kernel *k, struct phase *p);
const char *kernel_needs_gpu(const struct kernel *k);   /* what of it only a GPU runs; NULL: nothing */
/* ---- kernel_verify_tile.c, kernel_verify_threads.c: rules of one instruction ---- */
/* are the shapes of v and its operands right? */
bool tile_shapes(const struct kernel *k, val v, const char **rule);
/* After all other rules: barriers are met by all threads, tiles by whole subgroups. */
bool threads_meet(const struct kernel *k, struct flaw *f);
/* ---- kernel_interp.c ---- */
/* Runs iterations of a kernel without compiling it; every access is checked: bounds, races, loads of what was not
 * stored. A kernel of several phases is run in one call: what another call has stored is not known. */
bool kernel_interp(const struct kernel *k, void *const *buf, const uint64_t *slot, int64_t begin, int64_t end,
                   struct err *e);
/* ---- hash: everything but the name ---- */
struct hash128 kernel_hash(const struct kernel *k);
bool kernel_same(const struct kernel *a, const struct kernel *b);

/* ---- lowering one element (struct opinfo.lower) ---- */
struct lower {
    struct kernel *k;
    const struct graph *g;
    /* The element of operand r at coord (rank vals): computed in place, or a load where r is stored. */
    val (*at)(struct lower *l, ref r, const val *coord);
    val where;  /* loads read memory only where this is true, and give 0 elsewhere: coordinates there may lie outside
                   their arrays.  0: everywhere */
};
enum fold reduce_fold(unsigned op);              /* op_reduce.c: how a reduce folds */
enum fold cumulative_fold(unsigned op);          /* op_cumulative.c: the same for a scan but recurrence */
/* op_cumulative.c: a scan's next result from the one before and the operands' elements. */
val cumulative_step(struct kernel *k, unsigned op, val before, val a, val b);
/* op_reduce.c: v as a carry's initial value, made before its loop: in every lane where a vector loop is open. */
val lower_lanes(struct lower *l, val v);
val lower_init(struct lower *l, unsigned dtype, uint64_t bits); /* the same for a constant */
/* op_select.c: i (i64) where it is within 0..last, as *inside says, 0: always; else some other index within. */
val lower_inside(struct kernel *k, val i, int64_t last, val *inside);
/* op_sort.c: an integer whose order is the one that argsort wants of x. */
val lower_sort_key(struct kernel *k, val x, bool descending);
/* op_select.c: an index of any integer dtype as i64, held within 0..last. */
val lower_index(struct kernel *k, val i, int64_t last);

#endif
