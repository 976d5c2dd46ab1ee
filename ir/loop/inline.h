/* Internal header of inlining: a kernel, whole, as a part of another one that is being built, on one thread.
 *
 * The memory of the inlined kernel's arguments is described by arrays.  kernel_inline keeps its loops.  kernel_expand
 * writes them out by partial evaluation: lanes and elements of tiles become scalars, indices become numbers, and
 * arrays of which the scalars are known (scalar replacement) are not in memory at all. */
#ifndef KILN_IR_INLINE_H
#define KILN_IR_INLINE_H
#include "loop.h"

struct inline_array {
    uint32_t lbuf;           /* of the kernel being built; of a local array of scalars: none */
    val first;               /* index of the array's first element in the lbuf; 0: it is 0 */
    int64_t count;           /* elements */
    uint8_t dtype;
    bool local;              /* only the kernel being built accesses it; else it is only read */
    val *scalar;             /* per element: its value, 0: not loaded or not stored yet; NULL: it is in memory */
};

enum {
    MAX_INLINE_SCALARS = 4096,    /* elements of an array whose scalars are kept */
    MAX_EXPANDED = 1 << 15,       /* instructions written out, before those without use are removed */
};

/* Has the kernel only what inlining knows: no blocks of threads, no atomics, no role but those of a processor? */
bool kernel_may_inline(const struct kernel *k);
/* Appends k's instructions to `into`; array[b]: the memory of k's lbuf b.  false: out of memory, into->err. */
bool kernel_inline(struct kernel *into, const struct kernel *k, struct inline_array *const *array);
/* The same without loops.  false: it has one whose length is not a number, accesses a local array at an index that is
 * not, or is too long; or into->err. */
bool kernel_expand(struct kernel *into, const struct kernel *k, struct inline_array *const *array);
/* The same, inside of a vector loop whose lanes are elements: one value a lane for each array of `count` elements,
 * whose number is `element`; arrays of one element are the same for all lanes.  scalar[0] of an array is its value.
 * false: an element needs others, or into->err. */
bool kernel_inline_lanes(struct kernel *into, const struct kernel *k, struct inline_array *const *array, val element,
                         int64_t count);
/* Element i of an array, and its new value. */
val inline_load(struct kernel *into, struct inline_array *a, int64_t i);
void inline_store(struct kernel *into, struct inline_array *a, int64_t i, val x);
/* Are both the same memory? */
bool inline_is_same(const struct inline_array *a, const struct inline_array *b);
/* Copies all elements, in vector loops where one of the two is in memory; none where both are the same. */
void inline_copy(struct kernel *into, struct inline_array *to, struct inline_array *from);
/* Moves what each iteration of a serial loop does alike to before it; before kernel_clean.  false: out of memory,
 * k->err. */
bool kernel_hoist(struct kernel *k, val loop);
/* What running the kernel takes about, in instructions of so many bytes: loops of numbers count as often as they run,
 * others once. */
int64_t kernel_work(const struct kernel *k, uint32_t vector_bytes);

/* ---- ../math/kernel_ranges.c, which kernel_clean calls ---- */
/* Replaces selects of comparisons of floats that are always true or always false by the chosen operand.  false: out of
 * memory. */
bool kernel_choose_known(struct kernel *k);

#endif
