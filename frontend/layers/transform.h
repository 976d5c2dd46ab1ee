/* Internal header of transforms (vmap, autocast and others): each is a kernel for all ops under its key (dispatch/),
 * registered when it is first used. */
#ifndef KILN_TRANSFORM_INTERNAL_H
#define KILN_TRANSFORM_INTERNAL_H
#include "frontend/frontend.h"

/* The guards of a thread, to restore them. */
struct thread_layers { uint64_t included, excluded; };
static inline struct thread_layers layers_save(const struct thread *t)
{
    return (struct thread_layers){t->included, t->excluded};
}
static inline void layers_restore(struct thread *t, struct thread_layers s)
{
    t->included = s.included;
    t->excluded = s.excluded;
}

/* ---- vmap.c ---- */
/* A function that is being recorded for a batch. */
struct vmap {
    const struct vmap *outer;
    kl_randomness randomness;
    const struct trace *trace;   /* that records the function */
};

/* ---- autocast.c ---- */
enum { AUTOCAST_DEEPEST = 32 };  /* nested blocks */

#endif
