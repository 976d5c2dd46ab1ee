/* The gradient in the images of a convolution with strides, by phases.
 *
 * An element of x at position q is in those windows whose element k of the kernel has q + low - k * dilation divisible
 * by the stride.  So positions with the same remainder q % stride, a phase, meet the same elements of the kernel, and
 * are a convolution of dy by these, with stride 1 (the polyphase decomposition of Vaidyanathan 1993, "Multirate Systems
 * and Filter Banks", 4.3).  Together they have the products of the forward convolution, where one convolution of dy
 * with zeros between its elements would have stride times as many along each axis, and gradients of windows that are
 * summed afterwards fill an array as many times x's size as the kernel has elements for each phase.  The results of the
 * phases are stored one after the other and then read interleaved. */
#include "reverse_windows.h"

enum { MAX_PHASES = 16 };

/* A phase along an axis: the elements of the kernel, ascending, and where dy's first is for its first result. */
struct kernel_phase { int64_t first, count, step, start, dilation; };

static struct kernel_phase phase_along(const struct windowed *w, uint32_t i, int64_t remainder)
{
    const int64_t stride = w->stride[i], dilation = w->dilation[i], at = remainder + w->low[i];
    struct kernel_phase p = {.step = 1};
    while (p.step * dilation % stride != 0)
        p.step++;
    while (p.first < p.step && (at - p.first * dilation) % stride != 0)
        p.first++;
    if (p.first == p.step || p.first >= w->size[i])
        return (struct kernel_phase){0};
    p.count = (w->size[i] - 1 - p.first) / p.step + 1;
    p.dilation = p.step * dilation / stride;
    p.start = (at - (p.first + (p.count - 1) * p.step) * dilation) / stride;
    return p;
}

/* How many results a phase has: as many as the longest, of which the last may be behind x's end. */
static int64_t phase_length(const struct windowed *w, const struct shape *like, uint32_t i)
{
    return (like->dim[2 + i] + w->stride[i] - 1) / w->stride[i];
}

/* The phases' results are stored once more than those of one product, and their weights are rearranged, so the kernel
 * has to have many elements, or the images many channels, and an image many positions; the batch may be of any size,
 * as a program for all sizes has the same sums.  On one thread of a Xeon, of the time of summing gradients of windows:
 * 3x3x3 takes 0.5 to 0.6, 5x5 0.75, 7x7 0.5, 3x3 of 128 and 256 channels 0.8 (batch of 8 and 32), 0.85 to 1.1 (batch
 * of 1), of 64 channels 1.0. */
bool windows_have_phases(const struct windowed *w, int64_t depth)
{
    enum { MANY_ELEMENTS = 3, SOME_ELEMENTS = 2, MANY_CHANNELS = 128 }; /* elements for each phase */
    int64_t phases = 1, elements = 1;
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->stride[i] > MAX_PHASES)
            return false;
        phases *= w->stride[i];
        elements *= w->size[i];
    }
    return phases <= MAX_PHASES && elements >= (depth < MANY_CHANNELS ? MANY_ELEMENTS : SOME_ELEMENTS) * phases;
}

/* The results of a phase, [1, groups * depth, N, ..]; remainder: of each axis. */
static ref phase_results(struct graph *g, ref a, ref dy, const struct windowed *w, const struct shape *like,
                         const int64_t *remainder, const union attr *dims)
{
    struct windowed part = *w;
    struct shape s = *node_shape(g, a), flat = s, out = {.rank = BEFORE + w->n, .dim = {1, like->dim[1], like->dim[0]}};
    struct shape each = *like;
    bool none = false;
    flat.dim[2] = s.dim[2] = like->dim[1] / s.dim[0];
    for (uint32_t i = 0; i < w->n; i++)
        s.dim[s.rank++] = w->size[i];
    a = n_reshape(g, a, &s);
    for (uint32_t i = 0; i < w->n; i++) {
        const struct kernel_phase p = phase_along(w, i, remainder[i]);
        const int64_t all = node_shape(g, dy)->dim[BEFORE + i], length = phase_length(w, like, i);
        const int64_t reach = (p.count - 1) * p.dilation, end = p.start + length + reach;
        const int64_t from = p.start > 0 ? p.start : 0, to = end < all ? end : all; /* of dy */
        out.dim[BEFORE + i] = each.dim[2 + i] = length;
        if (!p.count || from >= to) {
            none = true;
            continue;
        }
        if (from > 0 || to < all)
            dy = n_slice(g, dy, BEFORE + i, from, to - from, 1);
        a = n_slice(g, a, BEFORE + i, p.first, p.count, p.step);
        flat.dim[2] *= p.count;
        part.size[i] = p.count;
        part.stride[i] = 1;
        part.dilation[i] = p.dilation;
        part.low[i] = reach - (from - p.start);
        part.high[i] = reach - (end - to);
    }
    return none ? n_broadcast(g, n_const(g, g->node[dy].dtype, dtype_bits(g->node[dy].dtype, 0)), &out) :
           n_reshape(g, windows_convolution(g, n_reshape(g, a, &flat), dy, &part, &each, dims), &out);
}

ref windows_phases(struct graph *g, ref a, ref dy, const struct windowed *w, const struct shape *like,
                   const union attr *dims)
{
    const uint32_t n = w->n;
    ref part[MAX_PHASES] = {NIL};
    unsigned phases = 1;
    int64_t remainder[MAX_AXES];
    /* all [phase.., groups * depth, N, L / stride..] as [N, groups * depth, L] */
    struct shape split = {.rank = 2 * n + 2}, whole = *like;
    uint8_t perm[KL_MAX_RANK] = {(uint8_t)(n + 1), (uint8_t)n};
    split.dim[n] = like->dim[1], split.dim[n + 1] = like->dim[0];
    for (uint32_t i = 0; i < n; i++) {
        phases *= (unsigned)w->stride[i];
        split.dim[i] = w->stride[i];
        split.dim[n + 2 + i] = phase_length(w, like, i);
        whole.dim[2 + i] = w->stride[i] * split.dim[n + 2 + i];
        perm[2 + 2 * i] = (uint8_t)(n + 2 + i);
        perm[3 + 2 * i] = (uint8_t)i;
    }
    for (unsigned p = 0; p < phases; p++) {
        int64_t rest = p;
        for (uint32_t i = n; i-- > 0; rest /= w->stride[i])
            remainder[i] = rest % w->stride[i];
        part[p] = phase_results(g, a, dy, w, like, remainder, dims);
        if (!part[p])
            return NIL;
    }
    ref all = n_concat(g, part, phases, 0);
    all = n_reshape(g, n_permute(g, n_reshape(g, all, &split), perm), &whole);
    for (uint32_t i = 0; i < n; i++)
        if (whole.dim[2 + i] > like->dim[2 + i])
            all = n_slice(g, all, 2 + i, 0, like->dim[2 + i], 1);
    return all;
}
