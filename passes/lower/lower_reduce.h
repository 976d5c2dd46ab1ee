/* Lowering of a reduce: what the kernels of processors (lower_reduce.c) and of rows on GPUs (gpu/lower_gpu_rows.c)
 * share. */
#ifndef KILN_LOWER_REDUCE_H
#define KILN_LOWER_REDUCE_H
#include "lower_schedule.h"

enum { REDUCE_LINES = 8, REDUCE_VECTOR_WIDTH =
    8 }; /* the largest number of cache lines that are prefetched for each row,
                                                     and of columns of a lane */

struct reduce {
    struct lowering *w;
    const struct node *n;
    enum fold fold;
    struct shape in;          /* operand's shape */
    struct shape red, kept;   /* the lengths of the reduced and of the kept axes, in order */
    struct size len;          /* reduced elements per result */
    int64_t chunk;
    val kept_coord[KL_MAX_RANK]; /* of kept, at the current result */
    /* coordinates of the cache lines that a vector of results needs from a row and that are prefetched */
    val line_coord[REDUCE_LINES][KL_MAX_RANK];
    struct split_columns *split; /* NULL: columns are not split */
    /* If each > 1, a lane reduces so many adjacent columns at these coordinates of kept. */
    uint32_t each;
    val lane;                    /* gpu_row_reduce: the thread's number among those of its row */
    val adjacent[REDUCE_VECTOR_WIDTH][KL_MAX_RANK];
};

static inline const struct schedule *reduce_schedule(const struct reduce *r) { return schedule_of(r->w->k); }
/* Computes the coordinates, in the operand, of reduced element i of the result at `kept`. */
void reduce_operand_coord(const struct reduce *r, val i, const val *kept, val *coord);
/* Computes the operand at reduced element i, and stores members of the prologue that other kernels read. */
val reduce_element(const struct reduce *r, val i);
val reduce_identity(const struct reduce *r);
/* The number of parts of `length` elements of a row or column, for these values of the symbols. */
val reduce_parts(const struct reduce *r, int64_t length);

/* ---- gpu/lower_gpu_columns.c ---- */
static inline uint32_t reduce_vector_width(const struct reduce *r) { return r->each ? r->each : 1; }
/* Sets the coordinates of the lane's columns, of which `first` is the index in the kept axes `inner`; nouter: the kept
 * axes before these, whose coordinates are set. */
void reduce_set_adjacent(struct reduce *r, const struct shape *inner, uint32_t nouter, val first);
struct reduce reduce_at_vector_element(const struct reduce *r, uint32_t n); /* the reduce at adjacent column n */
/* Element i of each adjacent column, or of the only one; stores members of the prologue that other kernels read. */
void reduce_vector_elements(const struct reduce *r, val i, val *x);
/* The n elements i[0], i[1] .. of the row at kept_coord, in the same way. */
void reduce_row_elements(const struct reduce *r, const val *i, uint32_t n, val *x);
/* Computes and stores what is computed from the result; from that of each adjacent column, or of the only one. */
void reduce_epilogue(const struct reduce *r, val result);
void reduce_epilogues(const struct reduce *r, const val *result);

/* ---- lower_reduce_wide.c ---- */
/* Reduces blocks of several vectors of the columns `inner`, for each of `outer`. */
void reduce_wide_columns(struct reduce *r, const struct shape *inner, const struct shape *outer);

/* ---- gpu/lower_gpu_rows.c ---- */
void gpu_reduce_rows(struct reduce *r);
/* Reduces the sums of each result's parts, lbuf `sums` [parts, results], by all threads of a block, for as many
 * adjacent results as an access has.  inner, outer: the kept axes, those that lanes lie in and those before them. */
void gpu_reduce_parts(struct reduce *r, uint32_t sums, int64_t parts, const struct shape *inner,
                      const struct shape *outer);

#endif
