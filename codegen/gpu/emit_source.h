/* What the files of the source emitter share. */
#ifndef KILN_EMIT_SOURCE_H
#define KILN_EMIT_SOURCE_H
#include "source.h"

enum { PANEL_PLACE = 1024 };     /* bytes of the text of an index */
enum { MAX_OPERAND = 64, MAX_THREAD_TILE = 256 }; /* bytes of an operand's text; elements of a tile */

/* The use of a tile by a matrix unit.  A tile that is no factor has the layout of sums, also if it is not of sums; of
 * one column [Mx1] or one row [1xN] a thread has the elements that belong to its elements of the whole tile. */
enum source_role { ROLE_NONE, ROLE_A, ROLE_B, ROLE_SUM, ROLE_SUM_USED, ROLE_COLUMN, ROLE_ROW };

/* Adjacent elements that are accessed at once: the first and the last of their instructions, this element's number, and
 * how many there are; 0: the access is not part of a pack. */
struct pack { val first, last; uint8_t at, count; };

/* An earlier load of the same buffer, or copy to or from it, whose index plus `by` is this one's index; of == 0: there
 * is none. */
struct near { val of; int32_t by; };

struct emitter {
    struct mem_arena mem;   /* of the arrays below */
    const struct kernel *k;
    const struct dialect *d;
    struct text *t;
    struct err *e;
    struct source_info info;
    uint8_t *barrier;             /* per instruction: a barrier is emitted before it */
    uint8_t *apart;               /* per value: an index that is another one in each lane */
    uint8_t *narrow;              /* per value: an i64 that is computed in 32 bits */
    struct pack *pack;            /* per load and store */
    struct near *near;            /* per load that is no pack, and copy, in CUDA and HIP */
    struct near *near_source;     /* per copy: of its source */
    uint8_t *needed;              /* per value: the text uses it */
    uint8_t *uniform;             /* per value: it is the same in all lanes of a subgroup; of a load: and all lanes are
                                     active */
    uint8_t *known;               /* per value: a compiler may find that it is a constant */
    /* per value: part of an accumulation chain, that is a carried value or an fma that adds to one */
    uint8_t *chain;
    uint32_t width;               /* lanes of the open vector loop; 1 outside of vector loops */
    uint32_t shuffle;             /* lanes that exchange values without memory in this kernel; 0: none */
    bool own_threads;             /* the kernel has block loops, so its threads may differ in control flow */
    bool shares;                  /* the kernel has shared memory */
    bool chained;                 /* it has products of tiles as chains of fma, not in the graph's order */
    /* threads that hold a tile together; without a matrix unit each of them has the whole tile, and the first one
     * stores it */
    unsigned subgroup;
    const struct matrix_unit *unit; /* the unit whose subgroups hold the kernel's tiles; NULL: no matrix unit is used */
    struct matrix_unit own_unit;  /* the device's opaque unit */
    uint8_t *role;                /* per value, if there is a unit: the enum source_role of a tile */
    uint8_t *vectors;             /* per buffer, for an opaque unit: an array of vectors of 16 bytes; NULL: none is */
    /* per value, for an asynchronous unit: the sums are in the variables of value `of` from number `at` on, because
     * products add to them in place */
    struct sums { val of; uint32_t at; bool changed, begun; } *sums; /* changed: products have been added to them
                                     since. begun: a product's own sums have been given their first values */
    bool fenced;                  /* the variables are fenced, because products of a batch have begun */
    struct phase phase;           /* the phase that is being emitted */
    bool copying;                 /* has the kernel asynchronous copies, which are emitted as such? */
    val copies;                   /* for COPIES_LATE: the first copy whose elements are not stored yet; 0: there is
                                     none */
    /* the element of a tile that is being emitted; with a unit, col is the number of the lane's variable */
    unsigned row, col;
    val tile;                     /* with a unit: the tile that it is an element of; 0: none */
    unsigned depth;
};

static inline void source_line(struct emitter *m) { text_put(m->t, "%*s", 4 * (int)m->depth, ""); }

/* ---- source.c ---- */
/* Fails: the kernel has no source in this dialect because of `what`.  Returns false. */
bool source_refuse(struct emitter *m, const char *what);

/* ---- source_inst.c ---- */
bool source_inst(struct emitter *m, val v);       /* emits v; false: it has no source */
/* Calls `what` for each element of v; for an L_NEXT for each element of the next value. */
void source_each_element(struct emitter *m, val v, void (*what)(struct emitter *, val));

/* ---- source_control.c ---- */
void source_open_loop(struct emitter *m, val v);
void source_end_nest(struct emitter *m, val end); /* the end of a loop or a condition */

/* ---- source_value.c ---- */
/* The text of v.  If v is a tile, its element (row, col); a value with one row or one column, or no tile, is the same
 * for all rows or columns. */
const char *source_operand(const struct emitter *m, val v, char out[MAX_OPERAND]);
/* The same for an index; *fits: whether it is computed in 32 bits. */
const char *source_index(const struct emitter *m, val v, bool *fits, char out[MAX_OPERAND]);
bool source_hides_zeros(const struct emitter *m);   /* are zeros numbers that the compiler does not know? */
void source_prim(struct emitter *m, val v);       /* each of these declares v */
void source_mma(struct emitter *m, val v);
void source_fold(struct emitter *m, val v);
/* Emits low = f(low, high) of fold v, which is NaN if any of both is NaN. */
void source_fold_step(struct emitter *m, val v, const char *low, const char *high);
/* Folds the variables y[0 .. count) until `left` are left, those that are half as far apart as there are at a time. */
void source_fold_variables(struct emitter *m, val v, unsigned count, unsigned left);
void source_interleave(struct emitter *m, val v);
const char *source_bits(unsigned dtype, const char *bits, char *out, size_t size); /* the expression of a value whose
                                                                                      bits are the u64 expression
                                                                                      `bits` */
void source_declare(struct emitter *m, val v);    /* emits the start of a line: "const f32 v7 = " */
/* The type of v's variables, and the qualifier of their declaration; `changes`: they are not constant. */
const char *source_type(const struct emitter *m, val v);
const char *source_qualifier(const struct emitter *m, val v, bool changes);
/* The type in which values of this dtype are exchanged.  The array in shared memory is named x_TYPE. */
const char *exchange_type(unsigned dtype);
/* Does lane reduction or interleave v, in a loop of `width` lanes, exchange values through memory? */
bool exchanges(const struct emitter *m, val v, uint32_t width);

/* ---- source_memory.c ---- */
void source_load(struct emitter *m, val v);       /* for a tile: element (row, col) */
void source_store(struct emitter *m, val v);      /* a store or an atomic */
void source_copy(struct emitter *m, val v);
/* Stores the elements that copies have loaded.  It is emitted before an instruction that may end their scope. */
void source_land(struct emitter *m, val before);
const char *source_memory_type(unsigned dtype);   /* the type of a buffer's elements */
bool source_is_common(const struct kernel *k, uint32_t b); /* may a thread load an element that another thread has
                                                              stored? */
/* The index of access i; for a tile that of element (row, col).  Returns whether it is computed in 32 bits. */
bool source_memory_place(const struct emitter *m, const struct linst *i, bool tile, char out[3 * MAX_OPERAND]);
/* Emits the element of buffer b at an index; fits: the index is computed in 32 bits. */
void source_memory_element(struct emitter *m, uint32_t b, const char *index, bool fits);

/* ---- source_matrix.c ---- */
void source_matrix(struct emitter *m);            /* chooses the unit and sets role and sums */
unsigned source_elements(const struct emitter *m, val v); /* number of variables that a thread has for v */
void source_matrix_load(struct emitter *m, val v);  /* if there is a unit, each of these handles a whole tile */
void source_matrix_store(struct emitter *m, val v);
void source_matrix_mma(struct emitter *m, val v);
/* The variable of tile v that belongs to variable m->col of tile m->tile. */
void source_matrix_name(const struct emitter *m, val v, char out[MAX_OPERAND]);
struct sums source_matrix_place(const struct emitter *m, val v, unsigned n); /* variable n of tile v */
/* While roles are found for m->unit: */
bool source_matrix_stride(const struct emitter *m, val v);   /* is v a constant that offsets can have? */
/* Gives v a role.  false: it has another one. */
bool source_matrix_take(struct emitter *m, val v, enum source_role role);
bool source_matrix_chained(struct emitter *m, val v); /* makes v, sums that are converted to halves, a factor a */
bool source_matrix_whole(const struct emitter *m, val v);    /* is v no factor, or no tile? */
bool source_matrix_shape(struct emitter *m, val v);   /* gives a tile that is no factor its role */
bool source_matrix_folds(const struct emitter *m, const struct linst *i); /* can the unit's lanes do fold i? */
void source_matrix_number(struct emitter *m, val v);  /* element m->col of the numbers of rows or columns */
void source_matrix_fold(struct emitter *m, val v);
void source_matrix_factor(struct emitter *m, val v);  /* sums that are converted to a factor */

/* ---- source_async.c ---- */
static inline bool source_is_async(const struct emitter *m) { return m->unit && m->unit->caps.async; }
/* Can an asynchronous unit process the kernel's tiles?  Sets role and sums. */
bool source_async(struct emitter *m);
bool source_matrix_in_place(const struct emitter *m, val v); /* does v use the variables of another value, which hold
                                                                its sums? */
/* Writes the expression that maps an index of buffer b to the element's place in panels.  Returns false if b has no
 * panels or there is no such unit. */
bool source_panel_place(const struct emitter *m, uint32_t b, val index, char *out, size_t size);
void source_async_load(struct emitter *m, val v);
void source_async_mma(struct emitter *m, val v);
/* Wait v has completed all products: from here on their sums may be read. */
void source_async_resolve(struct emitter *m, val v);

/* ---- source_opaque.c ---- */
static inline bool source_is_opaque(const struct emitter *m) { return m->unit && m->unit->opaque; }
/* Can the device's opaque unit process the kernel's tiles?  Sets unit and role. */
bool source_opaque(struct emitter *m);
/* Is b an array of vectors of 16 bytes? */
static inline bool source_has_vectors(const struct emitter *m, uint32_t b) { return m->vectors && m->vectors[b]; }
void source_opaque_types(struct emitter *m);      /* emits the types of matrices and the functions on them */
void source_opaque_load(struct emitter *m, val v);
void source_opaque_mma(struct emitter *m, val v);
void source_opaque_store(struct emitter *m, val v);
void source_opaque_splat(struct emitter *m, val v);

/* ---- source_panels.c ---- */
void source_begin_phases(struct emitter *m);      /* at the start of a block: the barriers with phases */
void source_end_phases(struct emitter *m);
void source_registers(struct emitter *m, uint64_t registers); /* at the start of a role; 0: unchanged */
/* The blocks that a processor has registers for if each role has the number that it names; 0: no role names any. */
unsigned source_role_blocks(const struct emitter *m);
void source_copy_panel(struct emitter *m, val v);
void source_arrive(struct emitter *m, val v);
void source_await(struct emitter *m, val v);

/* ---- source_range.c ---- */
bool source_ranges(struct emitter *m);            /* sets narrow; false: out of memory */
bool source_fits(const struct emitter *m, val v); /* v is narrow, or an i64 constant that fits 32 bits */

/* ---- source_linear.c ---- */
/* An index as a linear expression: constant + the sum of by[t] * term[t].  Returns false if it has too many terms or a
 * factor overflows. */
enum { LINEAR_TERMS = 12 };
struct linear { unsigned n; val term[LINEAR_TERMS]; int64_t by[LINEAR_TERMS], constant; };
bool source_linear(const struct kernel *k, val index, struct linear *out);
bool source_linear_multiple(const struct linear *l, int64_t n);     /* whatever its terms are, is it a multiple of n? */
/* Is b - a a constant?  It is stored in *by. */
bool source_linear_apart(const struct linear *a, const struct linear *b, int64_t *by);
/* Does access v, in a kernel without block loops, have the same element, value and condition in all lanes?  If it is a
 * store, the first thread does it. */
bool source_is_of_one_thread(const struct emitter *m, val v);
/* Sets pack and near; called after source_order.  Returns false if it is out of memory. */
bool source_packs(struct emitter *m);

/* ---- source_pack.c ---- */
void source_pack_types(struct emitter *m);        /* emits GLSL's types of packs in memory */
bool source_needs(struct emitter *m);             /* sets needed; called after source_packs; false: out of memory */
void source_load_pack(struct emitter *m, val v);  /* declares v, an element of a pack */
void source_store_pack(struct emitter *m, val v); /* stores a whole pack; v is its last store */
/* In GLSL: loads the vector of copy v, and stores its elements to shared memory. */
void source_load_vector(struct emitter *m, val v);
void source_store_vector(struct emitter *m, val v);

/* ---- source_broadcast.c ---- */
bool source_uniform(struct emitter *m);           /* sets `uniform` if there are broadcasts; false: out of memory */
bool source_is_broadcast(const struct emitter *m, val v);
void source_broadcast(struct emitter *m, val v);  /* declares v, a tile that is the same in all lanes */

/* ---- source_order.c ---- */
bool source_may_share(const struct kernel *k, uint32_t b, uint32_t o); /* may input b be the memory of output o? */
/* Sets barrier and apart.  Returns false if it is out of memory. */
bool source_order(struct emitter *m);

#endif
