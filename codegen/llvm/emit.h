/* The LLVM emitter's own header: one kernel in, one LLVM function out. */
#ifndef KILN_LLVM_EMIT_H
#define KILN_LLVM_EMIT_H
#include "codegen/codegen.h"
#include "ir/loop/loop.h"
#include <llvm-c/Core.h>

enum { MAX_PARTS = 16 };  /* native vectors that hold the lanes of one varying value */

/* What one loop-IR value is in LLVM:
 *   uniform  scalar
 *   affine   an index that grows by `stride` every `repeat` lanes from `scalar` at lane 0, and by `within` from lane to
 *            lane of those; vectors only if asked for
 *   vector   parts[]
 *   tile     parts[] row by row, each row in the vectors that emit_chunk names */
enum form { FORM_NONE, FORM_UNIFORM, FORM_AFFINE, FORM_VECTOR, FORM_TILE };
struct emitted {
    enum form form;
    LLVMValueRef scalar;
    unsigned home;                /* how many loops are open where scalar is made; 0 for a constant */
    uint64_t stride;              /* modulo 2^64, as all index arithmetic */
    unsigned repeat;              /* divides m->native */
    uint64_t within;              /* 0 where repeat is 1 */
    LLVMValueRef *part;           /* MAX_PARTS entries, or those of the tile */
    LLVMBasicBlockRef part_block; /* where part[] of a uniform or affine value was made, */
    unsigned part_width;          /*   and for how many lanes: a block may hold vector loops of several widths */
    bool narrow;                  /* vector: an i64 value whose part[] are i32 (emit_index.c) */
    LLVMValueRef *other;          /* the parts of an i64 value in the width that part[] has not, */
    LLVMBasicBlockRef other_block; /*  made in this block */
    unsigned other_width;
    LLVMValueRef hoisted;         /* scalar as a vector of hoisted_lanes, made before the loop at hoisted_before */
    LLVMBasicBlockRef hoisted_before;
    unsigned hoisted_lanes;
    unsigned number;              /* of a float constant: its place in m->numbers */
};

struct range { int64_t lo, hi; }; /* an interval that holds an i64 value; lo > hi: nothing is known */

struct emitter {
    const struct kernel *k;
    LLVMContextRef ctx;
    LLVMModuleRef module;
    LLVMBuilderRef b;
    LLVMValueRef fn;
    struct emitted *v;            /* per loop-IR value */
    struct range *range;          /* per loop-IR value */
    uint8_t *quads;               /* per loop-IR value: see emit_bytes.c */
    LLVMValueRef *buf;            /* per lbuf: base pointer */
    LLVMValueRef numbers;         /* all float constants of the kernel in memory, 8 bytes each; NULL: not yet made */
    LLVMBasicBlockRef before;     /* where control comes from that enters the innermost open loop; NULL: none is open */
    unsigned depth;               /* loops that are open */
    unsigned width, native, parts; /* lanes of the open vector loop, of one vector, vectors per value */
    unsigned vector_bytes;
    bool x86;                     /* of the kind x86-64 */
    bool vnni;                    /* the processor adds four products of bytes to a sum, */
    bool dot2;                    /*   or two of bf16 */
    LLVMTypeRef i1, i8, i64, ptr;
    struct err *e;
};

/* ---- emit.c ---- */
/* Adds the kernel as a function of that name to the module, for a processor of these features and vector_bytes. */
bool emit_kernel(const struct kernel *k, const char *name, const struct caps *target, LLVMModuleRef module,
                 LLVMContextRef ctx, struct err *e);
LLVMValueRef *emit_parts(struct emitter *m, val v);      /* the value as vectors, in the current block */
LLVMValueRef emit_scalar(struct emitter *m, val v);      /* a uniform value */
void emit_set_uniform(const struct emitter *m, struct emitted *e, LLVMValueRef x); /* x was made where the builder is */
LLVMValueRef *emit_new_parts(struct emitter *m, val v);  /* room for them; NULL: out of memory */

/* ---- emit_invariant.c ---- what does not change in a loop, made before it */
LLVMValueRef emit_uniform_vector(struct emitter *m, val v);    /* a uniform value in all lanes */
/* Before and behind the making of scalar v, its operands made: the builder leaves the innermost open loop if v does not
 * change there, and goes back to where it was.  NULL: it does change. */
LLVMBasicBlockRef emit_leave_loop(struct emitter *m, val v);
void emit_enter_again(struct emitter *m, val v, LLVMBasicBlockRef back);
/* of index arithmetic: a sum, a multiple or a quotient */
bool emit_is_step(const struct linst *i);
/* Builds on at the end of a block, before its branch if it has one; where the builder was. */
LLVMBasicBlockRef emit_at_end_of(struct emitter *m, LLVMBasicBlockRef block);

/* ---- emit_index.c ---- i64 values in vectors of i32, where intervals say that they fit */
bool emit_ranges(struct emitter *m);                           /* fills m->range */
bool emit_fits(const struct emitter *m, val v);
LLVMValueRef *emit_narrow_parts(struct emitter *m, val v);     /* a value that fits, as vectors of i32 */
LLVMValueRef *emit_wide_parts(struct emitter *m, val v);       /* a narrow value as vectors of i64 */
LLVMValueRef *emit_index_parts(struct emitter *m, val v);      /* an index, signed, in the narrower of the two */
LLVMValueRef emit_steps(struct emitter *m, LLVMTypeRef t, const struct emitted *e, unsigned lane0);
/* a primitive of varying values; false: not in 32 bits */
bool emit_narrow(struct emitter *m, val v, LLVMValueRef *out);

/* ---- emit_types.c ---- */
LLVMTypeRef type_of(struct emitter *m, unsigned dtype);           /* in registers: bool is i1, a half float its bits */
LLVMTypeRef type_lanes(LLVMTypeRef t, unsigned lanes);            /* t itself for one lane */
LLVMValueRef const_int(LLVMTypeRef t, uint64_t v);                /* splat for vectors */
LLVMValueRef const_bits(struct emitter *m, unsigned dtype, uint64_t bits);
LLVMValueRef intrinsic(struct emitter *m, const char *name, LLVMTypeRef *overload, unsigned noverload,
                       LLVMValueRef *arg, unsigned narg);
LLVMValueRef splat(struct emitter *m, LLVMValueRef scalar, unsigned lanes);
/* Lanes of x, and behind them of y, or of x alone for NULL: n > 1 of them. */
LLVMValueRef shuffle(struct emitter *m, LLVMValueRef x, LLVMValueRef y, const unsigned *lane, unsigned n);

/* ---- emit_prim.c ---- one primitive on scalars or on vectors of any length */
LLVMValueRef emit_prim(struct emitter *m, enum prim p, unsigned from, unsigned to, const LLVMValueRef *arg);

/* ---- emit_memory.c ---- */
void emit_load(struct emitter *m, val v);
void emit_store(struct emitter *m, val v);
void emit_stream_end(struct emitter *m);                 /* the fence behind all stores of a kernel that streams */
void emit_prefetch(struct emitter *m, val v);
void emit_atomic(struct emitter *m, val v);
/* of an element, or of a vector of them */
LLVMValueRef emit_address(struct emitter *m, uint32_t buf, LLVMValueRef index);
/* Neighbours from an address on, or what is at a vector of addresses; mask NULL: all.  For lanes 1 all are scalars. */
LLVMValueRef emit_load_lanes(struct emitter *m, unsigned dtype, LLVMValueRef ptr, unsigned lanes, LLVMValueRef mask);
void emit_store_lanes(struct emitter *m, unsigned dtype, LLVMValueRef ptr, unsigned lanes, LLVMValueRef x,
                      LLVMValueRef mask);

/* ---- emit_tile.c ---- */
struct chunk { unsigned lane0, lanes; };
/* part n of a row; lanes 0: there is none */
struct chunk emit_chunk(const struct emitter *m, unsigned cols, unsigned n);
unsigned emit_tile_parts(const struct emitter *m, val v);                    /* how many it has in all */
/* Row r of a value, its chunk n of a row of `cols`: a column, a row or a scalar stands for all. */
LLVMValueRef emit_tile_piece(struct emitter *m, val v, unsigned r, unsigned cols, unsigned n);
LLVMValueRef emit_tile_load_piece(struct emitter *m, const struct linst *i, unsigned r, unsigned n);
LLVMTypeRef emit_tile_part_type(struct emitter *m, const struct linst *i, unsigned part);
void emit_tile_prim(struct emitter *m, val v);
void emit_tile_load(struct emitter *m, val v);
void emit_tile_store(struct emitter *m, val v);
void emit_tile_splat(struct emitter *m, val v);
void emit_tile_index(struct emitter *m, val v);
void emit_mma(struct emitter *m, val v);

/* ---- emit_bytes.c ---- tiles of four rows of bytes, kept column by column */
bool emit_find_quads(struct emitter *m);                       /* fills m->quads: which those are */
bool emit_is_quads(const struct emitter *m, val v);
/* Chunk n of a value of four rows of `cols`, column by column. */
LLVMValueRef emit_quads(struct emitter *m, val v, unsigned cols, unsigned n);
LLVMValueRef emit_quads_row(struct emitter *m, LLVMValueRef quads, unsigned row, unsigned lanes);
LLVMValueRef emit_quads_load(struct emitter *m, val v, unsigned n);
bool emit_quads_store(struct emitter *m, const struct linst *i, unsigned n); /* false: not one for these */
/* A product whose sums are in part[], n chunks a row; false: not one for these. */
bool emit_quads_mma(struct emitter *m, val v, LLVMValueRef *part, unsigned n);

/* ---- target.c ---- */
bool target_is(const struct caps *c, const char *arch); /* x86_64 or aarch64 */
bool target_has(const struct caps *c, const char *feature);
/* The registers' bytes and number, and what mma takes, of a processor with the features of *c, which it fills in. */
void target_vectors(struct caps *c);
/* The processor of that name, "native" and what only it knows apart.  false: *e lists the names. */
bool target_named(const char *cpu, struct caps *out, struct err *e);

/* ---- object.c ---- */
/* Fills the module with a program: its kernels, its image, and the functions that users call. */
bool emit_object(const struct object_parts *o, uint32_t n, const struct caps *target, LLVMModuleRef module,
                 LLVMContextRef ctx, struct err *e);

/* ---- version.c ---- */
const char *llvm_version(void);
const char *llvm_file(void); /* of libLLVM */

#endif
