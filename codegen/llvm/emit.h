/* Internal header of the LLVM emitter: one kernel becomes one LLVM function. */
#ifndef KILN_LLVM_EMIT_H
#define KILN_LLVM_EMIT_H
#include "codegen/codegen.h"
#include "ir/loop/loop.h"
#include <llvm-c/Core.h>

enum { MAX_PARTS = 16 };  /* native vectors for the lanes of one varying value */

/* The form of a loop-IR value in LLVM:
 *   uniform  scalar
 *   affine   an index: `scalar` at lane 0, plus `stride` for every `repeat` lanes, plus `within` for each lane among
 *            these; vectors are made only if requested
 *   vector   parts[]
 *   tile     parts[] row by row, each row in the vectors that emit_chunk describes */
enum form { FORM_NONE, FORM_UNIFORM, FORM_AFFINE, FORM_VECTOR, FORM_TILE };
struct emitted {
    enum form form;
    LLVMValueRef scalar;
    unsigned home;                /* number of loops that are open where scalar is made; 0 for a constant */
    uint64_t stride;              /* modulo 2^64, like all index arithmetic */
    unsigned repeat;              /* divides m->native */
    uint64_t within;              /* 0 if repeat is 1 */
    LLVMValueRef *part;           /* MAX_PARTS entries, or those of the tile */
    LLVMBasicBlockRef part_block; /* the block in which part[] of a uniform or affine value was made */
    unsigned part_width;          /* and the number of lanes: a block may have vector loops of several widths */
    bool narrow;                  /* vector: an i64 value whose part[] are i32 (emit_index.c) */
    LLVMValueRef *other;          /* the parts of an i64 value in the other width than part[] */
    LLVMBasicBlockRef other_block; /* the block in which they were made */
    unsigned other_width;
    LLVMValueRef hoisted;         /* scalar as a vector of hoisted_lanes, made before the loop at hoisted_before */
    LLVMBasicBlockRef hoisted_before;
    unsigned hoisted_lanes;
    unsigned number;              /* for a float constant: its position in m->numbers */
    bool transposed;              /* a square's half, which was made with the square (emit_transpose.c) */
};

struct range { int64_t lo, hi; }; /* an interval that contains an i64 value; lo > hi: unknown */

struct emitter {
    const struct kernel *k;
    LLVMContextRef ctx;
    LLVMModuleRef module;
    LLVMBuilderRef b;
    LLVMValueRef fn;
    struct emitted *v;            /* per loop-IR value */
    struct range *range;          /* per loop-IR value */
    uint8_t *quads;               /* per loop-IR value: see emit_bytes.c */
    uint8_t *amx;                 /* per loop-IR value: see emit_amx.c; NULL: the kernel uses no such tiles */
    LLVMValueRef *buf;            /* per lbuf: base pointer */
    LLVMValueRef numbers;         /* all float constants of the kernel in memory, 8 bytes each; NULL: not made yet */
    LLVMBasicBlockRef before;     /* the block from which control enters the innermost open loop; NULL: none is open */
    unsigned depth;               /* number of open loops */
    unsigned width, native, parts; /* lanes of the open vector loop, of one vector, vectors per value */
    unsigned vector_bytes;
    bool x86;                     /* the target is x86-64 */
    bool arm;                     /* it is AArch64 */
    bool vnni;                    /* the processor has instructions that add four products of bytes to a sum */
    bool dotprod, i8mm;           /* AArch64: the same, of bytes that are both signed or not; of u8 by i8 */
    bool bf16;                    /* AArch64: it rounds f32 to bf16 */
    bool dot2;                    /* the processor has an instruction that adds two products of bf16 to a sum */
    LLVMTypeRef i1, i8, i64, ptr;
    struct err *e;
};

/* ---- emit.c ---- */
/* Adds the kernel to the module as a function of that name, for a processor with these features and vector_bytes. */
bool emit_kernel(const struct kernel *k, const char *name, const struct caps *target, LLVMModuleRef module,
                 LLVMContextRef ctx, struct err *e);
LLVMValueRef *emit_parts(struct emitter *m, val v);      /* the value as vectors, in the current block */
LLVMValueRef emit_scalar(struct emitter *m, val v);      /* a uniform value */
/* x was made at the builder's position */
void emit_set_uniform(const struct emitter *m, struct emitted *e, LLVMValueRef x);
LLVMValueRef *emit_new_parts(struct emitter *m, val v);  /* allocates them; NULL: out of memory */

/* ---- emit_invariant.c: values that do not change in a loop are made before it ---- */
LLVMValueRef emit_uniform_vector(struct emitter *m, val v);    /* a uniform value in all lanes */
/* Called before scalar v is emitted, after its operands: if v does not change in the innermost open loop, moves the
 * builder in front of the loop and returns its previous block, to which the caller moves it back.  NULL: v changes. */
LLVMBasicBlockRef emit_leave_loop(struct emitter *m, val v);
void emit_reenter_loop(struct emitter *m, val v, LLVMBasicBlockRef back);
/* is it index arithmetic: a sum, a multiple or a quotient? */
bool emit_is_step(const struct linst *i);
/* Moves the builder to the end of a block, before its branch if it has one; returns its previous block. */
LLVMBasicBlockRef emit_at_end_of(struct emitter *m, LLVMBasicBlockRef block);

/* ---- emit_index.c: i64 values in vectors of i32, where intervals prove that they fit ---- */
bool emit_ranges(struct emitter *m);                           /* fills m->range */
LLVMValueRef *emit_wide_parts(struct emitter *m, val v);       /* a narrow value as vectors of i64 */
LLVMValueRef *emit_index_parts(struct emitter *m, val v);      /* an index, signed, in the narrower of the two widths */
LLVMValueRef emit_steps(struct emitter *m, LLVMTypeRef t, const struct emitted *e, unsigned lane0);
/* a primitive of varying values; false: it does not fit in 32 bits */
bool emit_index_as_i32(struct emitter *m, val v, LLVMValueRef *out);

/* ---- emit_types.c ---- */
/* in registers: bool is i1, a half float is its bits */
LLVMTypeRef type_of(struct emitter *m, unsigned dtype);
LLVMTypeRef type_lanes(LLVMTypeRef t, unsigned lanes);            /* t itself for one lane */
LLVMValueRef const_int(LLVMTypeRef t, uint64_t v);                /* splat for vectors */
LLVMValueRef const_bits(struct emitter *m, unsigned dtype, uint64_t bits);
LLVMValueRef intrinsic(struct emitter *m, const char *name, LLVMTypeRef *overload, unsigned noverload,
                       LLVMValueRef *arg, unsigned narg);
LLVMValueRef splat(struct emitter *m, LLVMValueRef scalar, unsigned lanes);
/* The n > 1 selected lanes of x followed by y, or of x alone if y is NULL. */
LLVMValueRef shuffle(struct emitter *m, LLVMValueRef x, LLVMValueRef y, const unsigned *lane, unsigned n);

/* ---- emit_prim.c: one primitive on scalars or on vectors of any length ---- */
LLVMValueRef emit_prim(struct emitter *m, enum prim p, unsigned from, unsigned to, const LLVMValueRef *arg);

/* ---- emit_nibble.c: numbers that are made of 4 bits ---- */
/* The conversion of such a number to f32, by a table in a register.  false: v is none, or there is no instruction. */
bool emit_nibble(struct emitter *m, val v, LLVMValueRef *out);

/* ---- emit_transpose.c: squares of elements that are loaded and transposed ---- */
/* Emits the exchanges of a square that begins with v; returns the instruction after them.  0: it does not begin one. */
val emit_transpose(struct emitter *m, val v);

/* ---- emit_memory.c ---- */
void emit_load(struct emitter *m, val v);
void emit_store(struct emitter *m, val v);
/* the fence after all stores of a kernel with non-temporal stores */
void emit_stream_end(struct emitter *m);
void emit_prefetch(struct emitter *m, val v);
void emit_atomic(struct emitter *m, val v);
/* of an element, or of a vector of elements */
LLVMValueRef emit_address(struct emitter *m, uint32_t buf, LLVMValueRef index);
/* Adjacent elements from an address on, or the elements at a vector of addresses; mask NULL: all.  With lanes 1 all
 * operands are scalars. */
LLVMValueRef emit_load_lanes(struct emitter *m, unsigned dtype, LLVMValueRef ptr, unsigned lanes, LLVMValueRef mask);
void emit_store_lanes(struct emitter *m, unsigned dtype, LLVMValueRef ptr, unsigned lanes, LLVMValueRef x,
                      LLVMValueRef mask);

/* ---- emit_tile.c ---- */
struct chunk { unsigned lane0, lanes; };
/* part n of a row; lanes 0: there is none */
struct chunk emit_chunk(const struct emitter *m, unsigned cols, unsigned n);
unsigned emit_tile_chunks(const struct emitter *m, unsigned cols);           /* how many there are */
unsigned emit_tile_parts(const struct emitter *m, val v);                    /* the total number of its parts */
/* Chunk n, in a row of `cols`, of row r of a value; a column, a row or a scalar is broadcast. */
LLVMValueRef emit_tile_piece(struct emitter *m, val v, unsigned r, unsigned cols, unsigned n);
LLVMValueRef emit_tile_load_piece(struct emitter *m, const struct linst *i, unsigned r, unsigned n);
LLVMTypeRef emit_tile_part_type(struct emitter *m, const struct linst *i, unsigned part);
void emit_tile_prim(struct emitter *m, val v);
void emit_tile_load(struct emitter *m, val v);
void emit_tile_store(struct emitter *m, val v);
void emit_tile_splat(struct emitter *m, val v);
void emit_tile_index(struct emitter *m, val v);
void emit_mma(struct emitter *m, val v);
LLVMValueRef emit_tile_element(struct emitter *m, val v, unsigned r, unsigned c); /* element (r, c) */

/* ---- emit_amx.c: products of pairs of bf16 in even_odd order, by AMX's tiles where they fit those ---- */
bool emit_find_amx(struct emitter *m, const struct caps *target); /* fills m->amx: which tile register has a value */
bool emit_is_amx(const struct emitter *m, val v);
void emit_amx_begin(struct emitter *m);                        /* at the function's start and end, if it uses them */
void emit_amx_end(struct emitter *m);
void emit_amx_zero(struct emitter *m, val v, val start);       /* clears v's register, if it starts from such zeros */
void emit_amx(struct emitter *m, val v);                       /* instruction v, which is on such a tile */
/* The same product on other processors, whose sums are in part[], n chunks in each row. */
void emit_even_odd(struct emitter *m, val v, LLVMValueRef *part, unsigned n);

/* ---- emit_bytes.c: tiles of four rows of bytes, or several times four, stored column by column ---- */
bool emit_find_quads(struct emitter *m);                       /* fills m->quads: marks these tiles */
bool emit_is_quads(const struct emitter *m, val v);
/* Chunk n of rows 4 four .. 4 four + 3 of a value, of `cols` columns each, column by column. */
LLVMValueRef emit_quads(struct emitter *m, val v, unsigned four, unsigned cols, unsigned n);
LLVMValueRef emit_quads_row(struct emitter *m, LLVMValueRef quads, unsigned row, unsigned lanes);
/* Loads chunk n of all rows, each four of them to the next part[step]. */
void emit_quads_load(struct emitter *m, val v, unsigned n, LLVMValueRef *part, unsigned step);
bool emit_quads_store(struct emitter *m, const struct linst *i, unsigned n); /* false: not such a tile */
/* A product whose sums are in part[], n chunks in each row; false: not such a tile. */
bool emit_quads_mma(struct emitter *m, val v, LLVMValueRef *part, unsigned n);

/* ---- target.c ---- */
bool target_is(const struct caps *c, const char *arch); /* x86_64 or aarch64 */
bool target_has(const struct caps *c, const char *feature);
void target_host_features(char *features, size_t size); /* AArch64: as LLVM's list of them */
/* Sets the registers' size and number, and the supported mma, of a processor with the features of *c. */
void target_vectors(struct caps *c);
/* The processor of that name, except "native" and details that only it knows. false: *e lists the names. */
bool target_named(const char *cpu, struct caps *out, struct err *e);

/* ---- object.c ---- */
/* Fills the module with a program: its kernels, its image, and the functions that users call. */
bool emit_object(const struct object_parts *o, uint32_t n, const struct caps *target, LLVMModuleRef module,
                 LLVMContextRef ctx, struct err *e);

/* ---- version.c ---- */
const char *llvm_version(void);
const char *llvm_file(void); /* of libLLVM */

#endif
