/* Row kernels: what lower_rows.c and lower_rows_gpu.c share. */
#ifndef KILN_LOWER_ROWS_H
#define KILN_LOWER_ROWS_H
#include "lower_schedule.h"

struct rows {
    struct lowering *w;
    struct row_space space;
    struct shape shape;         /* of the operand of the first reduce */
    struct shape row;           /* the axes of a row */
    val row_coord[KL_MAX_RANK]; /* coordinates of the current row in the other axes */
    val index;                  /* number of the row */
    ref reduce[MAX_ROW_REDUCES]; /* a pass for each; one more pass follows */
    uint32_t nreduce;
    ref column[MAX_ROW_COLUMNS]; /* on a GPU: sums of columns */
    uint32_t ncolumn;
    bool *fixed;                /* per member: it has one value for the row, which has been computed */
    uint32_t *first;            /* per member: the pass that computes it first; nreduce + 1: none */
    uint32_t *cost;             /* per member: instructions to compute it in its first pass, in a trial */
    bool *need;                 /* per member: does the current pass compute it? */
    bool trial;                 /* the kernel is discarded: it is built to find what members cost, */
    bool weighing;              /*   from the first elements of each pass */
    uint64_t keep;              /* members, by bit, whose rows are kept in scratch */
    int64_t each;               /* on a GPU: adjacent elements that a lane holds; 0: none */
    uint32_t nheld;             /* number of elements that a lane holds: of the row, or of a group of its elements */
    uint32_t late;              /* reduces, by bit, that the last pass folds */
    bool grouped;               /* they are of a group: */
    val base;                   /*   its first element; 0: the row's first */
    int64_t left;               /* elements from there to the end of the row, or of the group */
    uint32_t sums;              /* of a lane, for each reduce: in the graph's order one for each adjacent element */
    int64_t chunk;              /* elements of a chunk of that order, where a row has several; 0: it has one */
    int64_t segments;           /* parts of a row in that order, each held by the threads of 64 lanes; 1: it is whole */
    val start;                  /* of several segments: the first element that the thread holds */
    struct held_element *held;
    val *there;                 /* per element: the condition that it is within the row; 0: always true */
};

/* ---- lower_rows.c ---- */
bool rows_is_full(const struct rows *s, ref r);           /* has member r one value for each element? */
struct size rows_length(const struct rows *s);            /* elements of a row */
void rows_compute_members(struct rows *s, uint32_t pass); /* those that s->need says, at the current element */
val rows_operand(const struct rows *s, const struct node *n); /* of reduce n at the current element, computed before */
void rows_store_members(struct rows *s);
void rows_load_operands(struct rows *s);                  /* what members read from memory at the current element */
/* Gives r, which has one value for the row, its value, and stores it. */
void rows_fix(struct rows *s, ref r, val value);

void rows_emit_row(struct rows *s);                       /* all passes of the row, in the open vector loop */

/* ---- gpu/lower_gpu_row_columns.c ---- the rows of a kernel with sums of columns; kept: the axes before a row's */
void rows_emit_columns(struct rows *s, const struct shape *kept);

/* ---- lower_rows_gpu.c ---- */
/* The place of element e that the thread holds: sets the current column, and the condition that it is there. */
void rows_at_held_place(struct rows *s, uint32_t e);
/* The operand of reduce n at element e in the last pass, after rows_emit_row; `none` where there is no element. */
val rows_held_operand(struct rows *s, const struct node *n, uint32_t e, val none);
/* Loads all that members read from memory at element e, before any of them waits for a reduce. */
void rows_load_held(struct rows *s, uint32_t e);
void rows_leave_held(struct rows *s);
uint32_t rows_held_there(const struct rows *s);           /* elements that there are at all */
/* The registers that hold rows or groups of their elements, as the schedule says; s->each is 0 without them. */
void rows_make_held(struct rows *s);
void rows_free_held(struct rows *s);
void rows_reduce_held(struct rows *s, uint32_t pass);     /* the whole pass of a reduce */
void rows_store_held(struct rows *s);                     /* the last pass */
/* The later reduce that can share the pass of reduce `pass`, by online softmax; 0: there is none. */
uint32_t rows_online_sum(const struct rows *s, uint32_t pass);
void rows_reduce_online(struct rows *s, uint32_t pass, uint32_t sum_reduce);
void rows_find_late(struct rows *s);                      /* sets s->late; uses s->need */

#endif
