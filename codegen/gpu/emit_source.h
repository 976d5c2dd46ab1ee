/* What the files of the source emitter share. */
#ifndef KILN_EMIT_SOURCE_H
#define KILN_EMIT_SOURCE_H
#include "source.h"

enum { PANEL_PLACE = 1024 };     /* bytes of the text of an index */
enum { MAX_OPERAND = 64, MAX_THREAD_TILE = 256 }; /* bytes of an operand's text; elements of a tile */

/* What a tile is to a matrix unit. */
enum source_role { ROLE_NONE, ROLE_A, ROLE_B, ROLE_SUM, ROLE_SUM_USED };

/* Neighbours that are accessed at once: the first and the last of them in the order of the instructions, the number of
 * this one, and how many there are; 0: none. */
struct pack { val first, last; uint8_t at, count; };

struct emitter {
    const struct kernel *k;
    const struct dialect *d;
    struct text *t;
    struct err *e;
    struct source_info info;
    uint8_t *barrier;             /* per instruction: a barrier stands in front of it */
    uint8_t *affine;              /* per value: lanes are equally far apart, */
    int64_t *stride;              /* so far */
    uint8_t *narrow;              /* per value: an i64 that is computed in 32 bits */
    struct pack *pack;            /* per load and store */
    uint8_t *known;               /* per value: a compiler may find it to be a constant */
    /* per value: part of an accumulation chain: part of an accumulation chain: a carried value, or products added to
     * one */
    uint8_t *chain;
    uint32_t width;               /* lanes of the open vector loop; 1 outside */
    uint32_t shuffle;             /* lanes that exchange values without memory, of this kernel's; 0: none */
    bool own_threads;             /* the kernel has block loops: threads are its own affair; */
    bool shares;                  /* they have shared memory */
    /* threads that hold a tile together: without a unit each has all of it, the first one stores */
    unsigned subgroup;
    const struct matrix_unit *unit; /* whose subgroups' tiles the kernel has; NULL: no matrix unit's */
    uint8_t *role;                /* per value, with a unit: enum source_role of a tile */
    /* per value, with an asynchronous unit: the value whose variables, from this one on, hold these sums: products add
     * to them in place */
    struct sums { val of; uint32_t at; } *sums;
    bool fenced;                  /* the variables are fenced: products of a batch have begun */
    struct phase phase;           /* that is being written */
    val copies;                   /* with COPIES_LATE: the first that has not landed; 0: all have */
    /* the element of a tile that is being written; with a unit col: the lane's variable */
    unsigned row, col;
    unsigned depth;
};

static inline void source_line(struct emitter *m) { text_put(m->t, "%*s", 4 * (int)m->depth, ""); }

/* ---- source_value.c ---- */
/* Of a tile, the element at row, col; what is one row, one column or no tile stands for all of them. */
const char *source_operand(const struct emitter *m, val v, char out[MAX_OPERAND]);
/* The same of an index, in 32 bits if it fits them; *fits says so. */
const char *source_index(const struct emitter *m, val v, bool *fits, char out[MAX_OPERAND]);
void source_prim(struct emitter *m, val v);       /* each declares v */
void source_mma(struct emitter *m, val v);
void source_fold(struct emitter *m, val v);
void source_interleave(struct emitter *m, val v);
const char *source_bits(unsigned dtype, const char *bits, char *out, size_t size); /* a value from a u64 of its bits */
void source_declare(struct emitter *m, val v);    /* the start of a line: "const f32 v7 = " */
/* The type that v's dtype is exchanged as; its array in shared memory is called x_TYPE. */
const char *exchange_type(unsigned dtype);
/* does fold or mix v of a loop of so many lanes use it? */
bool exchanges(const struct emitter *m, val v, uint32_t width);

/* ---- source_memory.c ---- */
void source_load(struct emitter *m, val v);       /* of a tile, the element at row, col */
void source_store(struct emitter *m, val v);      /* or an atomic */
void source_copy(struct emitter *m, val v);
/* stores what copies have loaded; stands in front of whatever may end their scope */
void source_land(struct emitter *m, val before);
const char *source_memory_type(unsigned dtype);   /* of a buffer's elements */
bool source_is_common(const struct kernel *k, uint32_t b); /* may a thread load what another has stored? */

/* ---- source_matrix.c ---- */
void source_matrix(struct emitter *m);            /* sets unit, role and sums */
unsigned source_elements(const struct emitter *m, val v); /* variables that a thread has for v, a tile or none */
void source_matrix_load(struct emitter *m, val v);  /* each of a whole tile, where there is a unit */
void source_matrix_store(struct emitter *m, val v);
void source_matrix_mma(struct emitter *m, val v);

/* ---- source_async.c ---- */
static inline bool source_is_async(const struct emitter *m) { return m->unit && m->unit->caps.async; }
/* Are the kernel's tiles an asynchronous unit's?  Sets role and sums. */
bool source_async(struct emitter *m);
bool source_matrix_in_place(const struct emitter *m, val v); /* has it the variables of another value, with its sums? */
/* The index of an element of shared memory as that of its place; false: it is no panel's, or there is no such unit. */
bool source_panel_place(const struct emitter *m, uint32_t b, val index, char *out, size_t size);
void source_async_load(struct emitter *m, val v);
void source_async_mma(struct emitter *m, val v);

/* ---- source_range.c ---- */
bool source_ranges(struct emitter *m);            /* which values are narrow; false: out of memory */
bool source_fits(const struct emitter *m, val v); /* a narrow value, or an i64 constant like one */

/* ---- source_linear.c ---- */
/* An index: constant + the sum of by[t] * term[t].  false: it has too many terms, or overflows. */
enum { LINEAR_TERMS = 12 };
struct linear { unsigned n; val term[LINEAR_TERMS]; int64_t by[LINEAR_TERMS], constant; };
bool source_linear(const struct kernel *k, val index, struct linear *out);
/* Is b always so much larger than a? */
bool source_linear_apart(const struct linear *a, const struct linear *b, int64_t *by);
bool source_packs(struct emitter *m);             /* behind source_order; false: out of memory */

/* ---- source_order.c ---- */
bool source_may_share(const struct kernel *k, uint32_t b, uint32_t o); /* may input b be the memory of output o? */
/* Where barriers must stand, and which indices are affine; false: out of memory. */
bool source_order(struct emitter *m);

#endif
