/* Shapes as plain values; graph_shape interns them. */
#include "ir/ir.h"
#include <inttypes.h>
#include <string.h>

/* 8-byte elements must stay below 2^62 bytes, with empty axes counted as 1, so that no stride or
 * product of axes can overflow later. */
#define MAX_COUNT (INT64_C(1) << 59)

bool shape_numel(const struct shape *s, int64_t *n)
{
    int64_t full = 1;
    bool empty = false;
    *n = 0;
    if (s->rank > KL_MAX_RANK)
        return false;
    for (uint32_t i = 0; i < s->rank; i++) {
        int64_t d = s->dim[i];
        if (d < 0)
            return false;
        if (d == 0) {
            empty = true;
            continue;
        }
        if (full > (MAX_COUNT - 1) / d)
            return false;
        full *= d;
    }
    *n = empty ? 0 : full;
    return true;
}

int64_t shape_count(const struct shape *s)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < s->rank; i++)
        n *= s->dim[i];
    return n;
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, a->rank * sizeof a->dim[0]) == 0;
}

const struct graph *(*_Atomic shape_text_graph)(void);

const char *shape_text(const struct shape *s, char *buf, size_t n)
{
    size_t at = 0;
    const struct graph *(*graph)(void) = shape_is_symbolic(s) ? shape_text_graph : NULL;
    if (graph && graph())
        return shape_text_in(graph(), s, buf, n);
    for (uint32_t i = 0; i < s->rank && i < KL_MAX_RANK && at < n; i++)
        at += s->dim[i] <= SYMBOLIC_DIM
                  ? (size_t)snprintf(buf + at, n - at, "%s?", i ? "," : "[")
                  : (size_t)snprintf(buf + at, n - at, "%s%" PRId64, i ? "," : "[", s->dim[i]);
    if (at < n)
        snprintf(buf + at, n - at, s->rank ? "]" : "[]");
    return buf;
}

struct shape shape_make(uint32_t rank, const int64_t *dim)
{
    struct shape s = {.rank = rank};
    for (uint32_t i = 0; i < rank && i < KL_MAX_RANK; i++)
        s.dim[i] = dim[i];
    return s;
}

struct shape coord_strides(const struct shape *s)
{
    struct shape t = {.rank = s->rank};
    int64_t step = 1;
    for (uint32_t i = s->rank; i-- > 0;) {
        t.dim[i] = step;
        step *= s->dim[i];
    }
    return t;
}
