/* Gradients of convolutions: what the gradient in the images of one convolution and of one with phases share. */
#ifndef KILN_REVERSE_WINDOWS_H
#define KILN_REVERSE_WINDOWS_H
#include "reverse.h"

enum { MAX_AXES = 3, BEFORE = 3 }; /* axes of windows; before them [N, groups, depth], and [groups, filters, depth] */

/* x [N, groups * depth, L...], padded, as windows [N, groups, depth * size.., O...]; gap: from an element of x to the
 * next, more than 1 only where stride is 1. */
struct windowed {
    ref x;
    uint32_t n;
    int64_t size[MAX_AXES], stride[MAX_AXES], dilation[MAX_AXES], low[MAX_AXES], high[MAX_AXES], gap[MAX_AXES];
};

/* ---- reverse_windows.c ---- */
/* The gradient in x, of shape *like, of the product of a [groups, filters, depth * size..] and windows of x whose
 * result has the gradient dy [groups, filters, N, O...]: one product with windows of dy, [groups, depth, N, L...].
 * dims: of the first product. */
ref windows_convolution(struct graph *g, ref a, ref dy, const struct windowed *w, const struct shape *like,
                        const union attr *dims);
/* ---- reverse_phases.c ---- */
/* The same of windows with strides, by a convolution for each phase of x's positions; [N, groups * depth, L...]. */
ref windows_phases(struct graph *g, ref a, ref dy, const struct windowed *w, const struct shape *like,
                   const union attr *dims);
/* Is that faster than summing the gradients of windows, of images with many positions?  depth: channels of a group. */
bool windows_have_phases(const struct windowed *w, int64_t depth);

#endif
