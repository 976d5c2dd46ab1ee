/* What composites share that are plain functions of ordinary calls: numbers, and products of lengths. */
#ifndef KILN_NN_COMPOSE_H
#define KILN_NN_COMPOSE_H
#include "frontend/frontend.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* [] A number compiled in. */
static inline kl_tensor number(kl_tensor like, kl_dtype dtype, double value)
{
    return kl_const(kl_device_of(like), dtype, value);
}

/* The same in the dtype of `like`. */
static inline kl_tensor same_number(kl_tensor like, double value)
{
    return kl_const(kl_device_of(like), kl_dtype_of(like), value);
}

static inline int64_t product_of(const int64_t *v, int n)
{
    int64_t p = 1;
    for (int i = 0; i < n; i++)
        p *= v[i];
    return p;
}

/* The same of lengths, which may be symbolic; INT64_MIN: reported. */
static inline int64_t product_of_lengths(const int64_t *v, int n)
{
    int64_t p = 1;
    for (int i = 0; i < n && p != INT64_MIN; i++)
        p = kl_length_mul(p, v[i]);
    return p;
}

#endif
