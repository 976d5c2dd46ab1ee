/* Choosing schedules: the part of lowering that knows the target.
 *
 * For each kind of group it is found out what its families need to know (its facts, which no target changes).  A
 * family chooses a record by them, and emits a kernel from group and record.  A user-supplied record is taken as it is
 * where that is legal; fields it leaves open (struct sched_field.chosen) are chosen as well. */
#ifndef KILN_LOWER_SCHEDULE_H
#define KILN_LOWER_SCHEDULE_H
#include "lower.h"

struct chooser {
    const struct caps *caps;
    uint32_t target;                    /* its number among the program's targets */
    const struct schedule *want;        /* user-supplied; NULL: all is chosen */
};

/* ---- families.c ---- */
/* Selects the family of a group of this kind (families.def), chooses or checks its record, and emits the kernel.  With
 * an error, of a user-supplied record that is refused, or where the record is all that is asked for, nothing is
 * emitted.  facts, group: FACTS_x and struct x of the kind. */
enum group_kind {
#define GROUP(group, lower, condition) GROUP_##group,
#include "families.def"
    GROUP_COUNT };
void select_family(struct lowering *w, enum group_kind kind, void *facts, void *group);

/* ---- lower_schedule.c ---- */
/* Sets the target: the one of a device.  Is it a GPU? */
bool chooser_find(struct chooser *c, const struct target_set *targets, unsigned device);
/* Of all that is known of the target: what lowering does not read can only make kernels be lowered again. */
struct hash128 chooser_hash(const struct chooser *c);
/* Does the target's kernel fold floats in the order of the graph?  And the anchor, is it of floats, too? */
static inline bool in_graph_order(const struct lowering *w) { return w->chooser->caps->graph_order; }
bool anchor_in_graph_order(const struct lowering *w);
/* Refuses a user-supplied record that is for a program in the graph's order where the target's has the schedule's. */
bool graph_order_legal(const struct lowering *w);
/* Refuses a field with which the kernel would not follow the graph's order; false. */
bool reject_order(const struct lowering *w, const char *field);
/* Refuses the user-supplied record; false. */
bool reject_schedule(const struct lowering *w, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Are results stored non-temporally?  Where the kernel's arrays, of so many bytes, fill the last cache, what it has
 * stored first is gone when it ends, and writing it there costs reading it, too.  But a state's next value goes where
 * the old one was just read. */
bool results_are_streamed(const struct lowering *w, int64_t bytes);
/* Refuses a width other than `own`, which is part of the order of sums. */
bool schedule_width_is(const struct lowering *w, const struct schedule *s, unsigned own);

/* A vector loop: over how many elements, how many ops for each; are there so few elements in all that only the time to
 * compile counts? */
struct loop_facts { int64_t length; uint32_t ops; bool few; };
struct loop_facts lower_loop(const struct lowering *w, int64_t length);
/* Lanes of a register of 4-byte elements; on a GPU a block's threads, whole warps of any maker's: fewer leave some
 * idle. */
uint32_t lower_native(const struct caps *caps);
uint32_t lower_width(const struct caps *caps, const struct loop_facts *f);
/* The size of a task: iterations of a loop of so many, each of so much work in elements. */
int64_t lower_grain(int64_t extent, int64_t work);

struct map_part {
    struct loop_facts loop;         /* the innermost */
    uint32_t work;                  /* primitives an element; */
    uint32_t depth;                 /*   of the longest chain, each of which needs the last; */
    uint32_t wide;                  /*   on numbers of 8 bytes: two registers a vector */
    int64_t access;                 /* adjacent elements that one access of a GPU has */
    bool flat;                      /* one dimension: iterations are blocks of vectors, else the outer dimensions */
    int64_t outer;
    /* blocks, or rows, of an iteration of the parallel loop: several where most iterations have nothing to do, a
     * window of a state in place */
    int64_t run;
};
/* transposed: blocks for a non-contiguous operand (gpu/lower_gpu_transpose.c); 0: there is none.
 * transposed_wide: a thread may access several adjacent elements at once, if a block has transposed_shared bytes.
 * On a processor: rows and columns of such operands, elements along the dimensions in which they and the results are
 * contiguous; the bytes of an element of each, together; and their number. */
struct map_facts {
    const struct lowering *w;
    const struct map_part *part;
    uint32_t parts;
    int64_t bytes, transposed, transposed_shared;
    bool transposed_wide;
    int64_t rows, columns, matrices, element, loads;
};
/* May the kernel be one with such blocks, or tiles?  Only then is it found out whether there is such an operand. */
bool map_can_transpose(const struct lowering *w, uint32_t parts, int64_t elements);
/* Tiles of `each` elements of a side that has `length`. */
static inline int64_t transpose_parts(int64_t length, int64_t each) { return (length + each - 1) / each; }
/* Are all dimensions of a part iterated over as one? */
bool map_joins(const struct map_part *p, const struct schedule *s);
int64_t map_vector_width(const struct schedule *s);   /* that a lane computes */
/* Vectors of a block; blocks, or rows, of a part; parallel iterations of a part. */
int64_t map_block(const struct map_part *p, const struct schedule *s);
int64_t map_blocks(const struct map_part *p, const struct schedule *s);
int64_t map_iterations(const struct map_part *p, const struct schedule *s);
/* From which kernels are emitted. */
struct elementwise {
    struct lowering *w;
    const struct map_part *part;
    uint32_t parts;
    struct body *body;                  /* of each part: elementwise/lower_map.c */
    struct gpu_transpose *transpose;
    struct transpose *tiles;            /* on a processor */
};

struct rows_facts {
    struct lowering *w;
    int64_t rows, length, bytes;
    uint32_t reduces, members;
    uint32_t columns;               /* sums of columns; their rows, a multiple of which each part has; and chunk */
    int64_t column_rows, column_chunk;
    int64_t access;                 /* adjacent elements that one access of a GPU may have in every row */
    bool symbolic;                  /* the length depends on symbols */
    bool chunks;                    /* a row may have several chunks of the graph's order */
    int64_t chunk;                  /* elements of one, if that is a number and the same for all reduces, else 0 */
    uint64_t may_keep, keep;        /* members whose rows a later pass reads; for which keeping them pays */
    /* Fills `keep` and `bytes`, which are needed where there is no user-supplied record, for a kernel of *s. */
    void (*find)(struct rows_facts *f, const struct schedule *s);
    const struct rows *of;
};
/* A GPU that iterates over a row: elements that a lane loads before it uses one. */
static inline int64_t rows_group(const struct schedule *s)
{
    enum { GROUP = 8, VECTORS = 4 };
    return s->rows.vector < GROUP / VECTORS ? GROUP : VECTORS * s->rows.vector;
}
struct reduce_facts {
    const struct lowering *w;
    bool lanes;                     /* of 64 numeric lanes */
    int64_t chunk;                  /* elements of a chunk of that order */
    bool symbolic;                  /* the graph has symbols for lengths */
    bool short_rows;                /* rows of a few elements, of enough results, without symbols */
    int64_t len;                    /* elements of a result */
    struct shape kept;              /* lengths of the kept axes */
    uint32_t max;                  /* the last kept axes that lanes may lie in */
    uint32_t merged;                /* of these, those which all accesses step over as over one; */
    int64_t merged_length;          /*   how many results they have */
    uint32_t work;                  /* of the epilogue, primitives a result */
    uint32_t ops;                   /* members that count for the width of columns */
    int64_t bytes;                  /* of the operand */
    int64_t element, compute;       /* bytes of the operand's elements, and of those that are added up */
    bool prologue;                  /* the operand is computed here */
    bool is_row;                    /* adjacent elements along the last axis are reduced into one result */
    int64_t access;                 /* adjacent elements that one access of a GPU has */
};
/* Results of the last `axes` kept axes. */
int64_t reduce_inner(const struct reduce_facts *f, uint32_t axes);

struct scatter_facts { const struct lowering *w; int64_t outer, len, inner, count; };
/* phases: a GPU may scan chunks of the row, in any order of sums */
struct scan_facts { const struct lowering *w; int64_t outer, len, inner; bool phases; };
struct sort_facts { const struct lowering *w; int64_t rows, len, levels, element /* bytes of a key and its place */; };

/* ---- lower_attention_schedule.c ---- */
enum gradient_kind { GRADIENT_NONE, GRADIENT_ONE, GRADIENT_BOTH };  /* both: in q, and in k and v, by one kernel */
struct attention_facts {
    const struct lowering *w;
    enum gradient_kind gradient;
    int64_t l, m, d, e;             /* rows that are lanes, and that are iterated over; columns of q, k, of v */
    int64_t block;                  /* rows of one block of the numeric order */
    int64_t element;                /* bytes of what is summed */
    int64_t matrices;               /* that have results */
    bool half;                      /* those iterated over are of half floats */
    bool computes;                  /* k or v is computed in the kernel */
    bool keys;                      /* of a gradient: in k and v */
    bool views;                     /* TMA loads can take the operands */
    bool blocks;                    /* blocks of threads with register tiles can compute it */
    unsigned factors;               /* dtype + 1 of the operands that a GPU's matrix units could multiply; 0: none */
};

/* ---- the families' functions (families.def) ---- */
#define FACTS_elementwise struct map_facts
#define FACTS_rows struct rows_facts
#define FACTS_reduce struct reduce_facts
#define FACTS_dot struct dot
#define FACTS_block_dot struct block_dot
#define FACTS_scatter struct scatter_facts
#define FACTS_scan struct scan_facts
#define FACTS_sort struct sort_facts
#define FACTS_attention struct attention_facts
#define GROUP(group, lower, condition) struct group;
#define DECLARE_fits(...) __VA_ARGS__
#define DECLARE_legal(...) __VA_ARGS__
#define DECLARE_always(...)
#define DECLARE_any(...)
#define FAMILY(KIND, word, group, fits, legal, propose) \
    DECLARE_##fits(bool word##_fits(FACTS_##group *f);) \
    bool word##_choose(FACTS_##group *f, struct schedule *s); \
    DECLARE_##legal(bool word##_legal(const FACTS_##group *f, const struct schedule *s);) \
    void word##_emit(struct group *g, const struct schedule *s);
#include "families.def"

#endif
