/* The thread pool. */
#ifndef KILN_POOL_H
#define KILN_POOL_H
#include "codegen/codegen.h"
#include "ir/ir.h"
#include "passes/passes.h"
#include <stdatomic.h>

/* ---- pool.c: the thread pool; the caller is worker 0 ----
 *
 * Calls fn on contiguous shares of 0..extent, each of at least `grain` iterations (0: one share, in the caller).  Any
 * thread may call, also from inside a job.  Only one job at a time is shared out; others run entirely in their callers.
 * fn runs in the default floating-point environment, which is restored afterwards. */
#define POOL_MAX_THREADS 1024
typedef void pool_fn(void *ctx, int64_t begin, int64_t end, unsigned worker);
void pool_run(pool_fn *fn, void *ctx, int64_t extent, int64_t grain); /* returns when all of 0..extent is done */
/* The same with at most max_workers workers, for callers with a fixed number of per-worker areas. */
void pool_run_max(pool_fn *fn, void *ctx, int64_t extent, int64_t grain, unsigned max_workers);
/* Several ranges without a barrier between them: a worker continues with its share of the next range when it has
 * finished its share of one.  Ranges of equal extent and grain are divided in the same way; worker 0 runs all of a
 * range of grain 0.  A movable range that is alone is run in pieces, and what a slow worker has not begun moves to
 * others: fn is called several times by a worker, and may get less than `grain` iterations. */
struct pool_part { int64_t extent, grain; bool movable; };
typedef void pool_part_fn(void *ctx, uint32_t part, int64_t begin, int64_t end, unsigned worker);
/* The number of shares that a part is cut into. */
static inline unsigned pool_shares(const struct pool_part *part, unsigned max)
{
    if (part->extent <= 0) return 0;
    if (max == 1) return 1; /* without a division, which a small kernel would notice */
    int64_t worth = part->grain > 0 ? part->extent / part->grain : 1;
    return worth >= max ? max : worth > 1 ? (unsigned)worth : 1;
}
void pool_run_parts(pool_part_fn *fn, void *ctx, const struct pool_part *part, uint32_t n, unsigned max_workers);
/* Runs parts of one share each on this thread, which has entered the floating-point environment of jobs. */
void pool_run_alone(pool_part_fn *fn, void *ctx, const struct pool_part *part, uint32_t n);
unsigned pool_threads_parse(const char *text); /* 1 to POOL_MAX_THREADS; 0: NULL, or no valid number */
/* KILN_THREADS or the option, else the number of processors that this process may use */
unsigned pool_threads(void);
void pool_set_threads(unsigned n);       /* 0: the default */
void pool_use(const kl_pool *host);      /* jobs run on the host's threads; NULL: on the pool's own again */

#endif
