/* Long scans: what the lower_gpu_scan*.c share. */
#ifndef KILN_LOWER_GPU_SCAN_H
#define KILN_LOWER_GPU_SCAN_H
#include "lower_gpu.h"

enum { GPU_SCAN_LEVELS = 12, GPU_SCAN_MAX_VECTOR_WIDTH = 8 };

struct gpu_scan {
    struct lowering *w;
    const struct node *n;
    enum fold fold;
    unsigned dtype;             /* the dtype of the computation */
    struct split at;
    struct shape outer, inner;  /* the axes before and after the scanned axis */
    int64_t length[GPU_SCAN_LEVELS]; /* length of a row at each level; level 0 is the operand */
    uint32_t level[GPU_SCAN_LEVELS]; /* lbuf of each level but 0 */
    uint32_t top;
    uint32_t half[2];           /* of scans in tiles, lbufs in shared memory: GPU_SCAN_LINES results of each thread */
    bool one_pass;              /* tiles wait for those before them; then there is one level */
    uint32_t words;             /* lbuf of what they publish */
};

/* The position of a thread: row number, chunk, and index in the axes after the scanned one. */
struct chunk { val outer, at, inner; };

/* ---- lower_gpu_scan.c ---- */
/* Element `place` of the row at a level. */
val gpu_scan_element(const struct gpu_scan *s, uint32_t level, const struct chunk *c, val place);
void gpu_scan_put(const struct gpu_scan *s, uint32_t level, const struct chunk *c, val place, val value);
val gpu_scan_identity(const struct gpu_scan *s);

/* ---- lower_gpu_scan_tiles.c ---- */
int64_t gpu_scan_tiles(const struct gpu_scan *s, uint32_t level); /* tiles of a row of the level */
void gpu_scan_fold_tiles(const struct gpu_scan *s, uint32_t level);
void gpu_scan_scan_tiles(const struct gpu_scan *s, uint32_t level);

/* ---- lower_gpu_scan_pass.c ---- */
/* A tile that waits for those before it in its row.  shared: lbuf with room for two values of each thread. */
struct scan_back { val t, outer, tile, own; int64_t tiles; uint32_t shared; };
void gpu_scan_clear_words(struct gpu_scan *s, int64_t tiles); /* a phase */
/* Publishes the fold of the tile, and returns that of all tiles of the row before it. */
val gpu_scan_before_tile(const struct gpu_scan *s, const struct scan_back *b);

#endif
