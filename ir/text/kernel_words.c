/* The words of the kernel language, by number. */
#include "kernel_text.h"
#include <string.h>

#define WORDS(list) {list, sizeof list / sizeof *list}

static const char *const prims[P_COUNT] = {
#define PRIM(NAME, name, ...) [P_##NAME] = #name,
#include "ir/math/prims.def"
};
static const char *const loops[LOOP_COUNT] = {
    [LOOP_SERIAL] = "serial", [LOOP_PARALLEL] = "parallel", [LOOP_VECTOR] = "vector",
    [LOOP_UNROLLED] = "unrolled", [LOOP_REDUCE] = "reduce", [LOOP_GRID] = "grid", [LOOP_BLOCK] = "block"};
static const char *const folds[FOLD_COUNT] = {
    [FOLD_ADD] = "add", [FOLD_MAX] = "max", [FOLD_MIN] = "min", [FOLD_MUL] = "mul"};
static const char *const interleaves[INTERLEAVE_COUNT] = {[INTERLEAVE_LO] = "lo", [INTERLEAVE_HI] = "hi"};
static const char *const prefetches[PREFETCH_COUNT] = {[PREFETCH_READ] = "read", [PREFETCH_WRITE] = "write"};
static const char *const roles[BUF_COUNT] = {[BUF_IN] = "in", [BUF_OUT] = "out", [BUF_SCRATCH] = "scratch",
    [BUF_WORKSPACE] = "workspace", [BUF_SHARED] = "shared", [BUF_REGISTER] = "register", [BUF_PHASES] = "phases",
    [BUF_VIEW] = "view"};
static const char *const tile_orders[TILE_ORDER_COUNT] = {[TILE_ROWS] = "rows", [TILE_COLS] = "columns"};
static const char *const mmas[MMA_COUNT] = {[MMA_CHAIN] = "chain", [MMA_ANY] = "any", [MMA_ASYNC] = "async",
                                            [MMA_EVEN_ODD] = "even_odd"};
static const char *const asyncs[ASYNC_COUNT] = {[ASYNC_COPIES] = "copies", [ASYNC_PRODUCTS] = "products"};
const struct words prim_words = WORDS(prims), loop_words = WORDS(loops), fold_words = WORDS(folds),
                   interleave_words = WORDS(interleaves), prefetch_words = WORDS(prefetches), role_words = WORDS(roles),
                   tile_words = WORDS(tile_orders), mma_words = WORDS(mmas), async_words = WORDS(asyncs);

int words_find(const struct words *w, struct word name)
{
    for (unsigned i = 0; i < w->n; i++)
        if (word_is(name, w->v[i]))
            return (int)i;
    return -1;
}
