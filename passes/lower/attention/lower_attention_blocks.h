/* Internal header of attention by blocks of threads with register tiles: the state of one block. */
#ifndef KILN_LOWER_ATTENTION_BLOCKS_H
#define KILN_LOWER_ATTENTION_BLOCKS_H
#include "lower_attention_tiles.h"

enum { MR = ATTENTION_BLOCK_TILE, EACH = 4 /* elements of an access */, AHEAD = 4 /* such steps, written out */,
       MAX_PARTS = 2 /* of a thread's columns */ };

struct blocks {
    struct tiles s;
    int64_t groups, threads;            /* of threads, and threads of one */
    int64_t down, across;               /* threads of a group: rows x columns */
    int64_t score_across, splits;       /* of the threads across, those with a part of scores: of other rows of the
                                           step, and for other columns of the contraction (split-K) */
    int64_t iterated_rows, parts;         /* of a thread: rows of a step; EACH columns each */
    int64_t pitch, weight_pitch;        /* elements from row to row */
    int64_t own_elements, weight_elements, iterated_elements;
    uint32_t own, iterated[2], weight;    /* lbufs: of each group; k and v, or both in the first one; of each group */
    uint32_t row[ATTENTION_BLOCK_ROWS]; /* lbufs with an element for each row: enum row_buffer */
    uint32_t stats;                     /* lbuf: those of a query beside each other */
    bool stat_vectors;                  /* they are copied in vectors */
    uint32_t mine;                      /* lbuf in registers */
    bool vectors[3];                    /* operands that are copied in vectors */
    val group, i, j;                    /* the thread's group, and its place there */
    val score_j, split;                 /* j in the products that are scores: which rows, which part of the columns */
};
enum row_buffer { ROW_MAX, ROW_SUM, ROW_SHRINK, ROW_LOW, ROW_HIGH };

/* ---- lower_attention_blocks_pairs.c: what is computed from scores, in shared memory ---- */
/* Attention: a row for each thread.  Begins the rows' maxima and sums, and which keys they attend to. */
void blocks_start_rows(const struct blocks *b);
/* Scores of the step become weights. */
void blocks_soften_rows(const struct blocks *b);
void blocks_store_stats(const struct blocks *b);    /* as store_stats of lower_attention.c */
/* Gradient: the statistics of the block's own queries, or of those of a step, from row `first` on.  They may be copies,
 * which belong to the next batch. */
void blocks_load_statistics(const struct blocks *b, val first);
/* Scores and dp of the step become p, for keys, and ds. */
void blocks_gradient_of_pairs(const struct blocks *b);

#endif
