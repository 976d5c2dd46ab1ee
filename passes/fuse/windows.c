/* Images that a product reads through windows, as those of a convolution. */
#include "ir/loop/loop.h"
#include "passes/passes.h"

/* Do zeros that pad r writes surround images [image, channel, y, x] along y or x? */
static bool is_image_border(const struct graph *g, ref r)
{
    const struct node *n = &g->node[r], *value = &g->node[n->in[1]];
    return op_is_masked(n->op) && value->op == OP_const && !value->attr.konst.bits && !n->attr.pad.interior &&
           n->attr.pad.low >= 0 && n->attr.pad.high >= 0 && n->attr.pad.axis >= 2;
}

/* ---- the views from a product to the images ---- */

enum { IMAGE, Y, X, CHANNEL, KERNEL_Y, KERNEL_X, INDICES };

struct window_views {
    struct lower l;             /* first, because lowering rules get a pointer to it */
    val index[KL_MAX_RANK];     /* the index at which the images are read */
};

static val window_views_at(struct lower *l, ref r, const val *coord)
{
    struct window_views *v = (struct window_views *)l;
    if (op_is_view(l->g->node[r].op))
        return opinfo[l->g->node[r].op].lower(l, r, coord);
    for (uint32_t d = 0; d < node_shape(l->g, r)->rank; d++)
        v->index[d] = coord[d];
    return k_int(l->k, 0);
}

/* The coordinate of axis `axis` is that of index a, times *step, plus that of b, times *other, and nothing else; b may
 * be INDICES, none. */
static bool index_follows(struct window_views *v, const val *at, unsigned axis, unsigned a, int64_t *step, unsigned b,
                          int64_t *other)
{
    struct kernel *k = v->l.k;
    int64_t low, high, stride, bounds = 0;
    *step = *other = 0;
    for (unsigned i = 0; i < INDICES; i++) {
        int64_t length;
        if (!at[i])
            continue;
        if (!ix_stride(k, v->index[axis], at[i], &stride) || stride < 0 || (stride && i != a && i != b) ||
            !ix_range(k, at[i], &low, &length))
            return false;
        bounds += stride * length;
        if (i == a)
            *step = stride;
        if (i == b)
            *other = stride;
    }
    return ix_range(k, v->index[axis], &low, &high) && !low && high == bounds;
}

static bool find_steps(const struct graph *g, const struct node *n, struct image_windows *w)
{
    const int64_t length[INDICES] = {w->images, w->out_h, w->out_w, w->channels, w->kernel_h, w->kernel_w};
    const struct shape *s = node_shape(g, n->in[1]);
    struct window_views v = {.l = {.k = kernel_new("windows"), .g = g, .at = window_views_at}};
    struct kernel *k = v.l.k;
    val at[INDICES], coord[KL_MAX_RANK] = {0}, loop[INDICES];
    uint8_t fr[KL_MAX_RANK];
    int64_t one, none;
    if (!k)
        return false;
    for (unsigned i = 0; i < INDICES; i++) {
        loop[i] = length[i] > 1 ? k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, length[i]), 1) : 0;
        at[i] = loop[i] ? loop[i] : k_int(k, 0);
    }
    for (uint32_t d = 0; d < s->rank; d++)
        coord[d] = k_int(k, 0);
    dot_free_axes(s->rank, n->attr.dot.batch_b, n->attr.dot.nbatch, n->attr.dot.con_b, n->attr.dot.ncon, fr);
    for (unsigned i = 0; i < 3; i++)
        coord[fr[i]] = at[IMAGE + i];
    val rest = ix_add(k, ix_scale(k, ix_add(k, ix_scale(k, at[CHANNEL], w->kernel_h), at[KERNEL_Y]), w->kernel_w),
                      at[KERNEL_X]);
    for (unsigned i = n->attr.dot.ncon; i-- > 0;) {
        unsigned axis = axis_get(n->attr.dot.con_b, i);
        coord[axis] = i ? ix_mod(k, rest, s->dim[axis]) : rest;
        rest = ix_div(k, rest, s->dim[axis]);
    }
    window_views_at(&v.l, n->in[1], coord);
    bool ok = !k->err.code && index_follows(&v, loop, 0, IMAGE, &one, INDICES, &none) && (one == 1 || w->images == 1) &&
              index_follows(&v, loop, 1, CHANNEL, &one, INDICES, &none) && (one == 1 || w->channels == 1) &&
              index_follows(&v, loop, 2, Y, &w->stride_h, KERNEL_Y, &w->dilation_h) &&
              index_follows(&v, loop, 3, X, &w->stride_w, KERNEL_X, &w->dilation_w);
    kernel_free(k);
    return ok;
}

bool windows_find(const struct graph *g, ref dot, struct image_windows *w)
{
    const struct node *n = &g->node[dot];
    const struct shape *b = node_shape(g, n->in[1]);
    int64_t size[2];
    unsigned found = 0;
    ref v;
    uint8_t fr[KL_MAX_RANK];
    if (!op_is_product(n->op) || shape_is_symbolic(b))
        return false;
    for (v = n->in[1]; op_is_view(g->node[v].op); v = g->node[v].in[0])
        if (g->node[v].op == OP_window) {
            if (found == 2)
                return false;
            size[found++] = g->node[v].attr.window.size;
        }
    const struct shape *s = node_shape(g, v);
    if (found != 2 || s->rank != 4 || shape_is_symbolic(s) || !node_numel(g, n->in[1]) ||
        dot_sizes(g, n).batch != 1 ||
        dot_free_axes(b->rank, n->attr.dot.batch_b, n->attr.dot.nbatch, n->attr.dot.con_b, n->attr.dot.ncon, fr) != 3)
        return false;
    *w = (struct image_windows){.images = b->dim[fr[0]], .out_h = b->dim[fr[1]], .out_w = b->dim[fr[2]],
                          .channels = s->dim[1], .kernel_h = size[1], .kernel_w = size[0], .high = s->dim[2],
                          .wide = s->dim[3], .end_y = s->dim[2], .end_x = s->dim[3]};
    if (w->images != s->dim[0] || dot_sizes(g, n).k != w->channels * w->kernel_h * w->kernel_w || !find_steps(g, n, w))
        return false;
    for (; is_image_border(g, v) && node_is_view(g, v); v = g->node[v].in[0]) {
        const union attr *a = &g->node[v].attr;
        *(a->pad.axis == 2 ? &w->first_y : &w->first_x) += a->pad.low;
        *(a->pad.axis == 2 ? &w->end_y : &w->end_x) -= a->pad.high;
    }
    w->array = v;
    w->before_y = w->first_y;
    w->before_x = w->first_x;
    w->height = node_shape(g, v)->dim[2];
    w->width = node_shape(g, v)->dim[3];
    w->outside = w->height != w->high || w->width != w->wide;
    return true;
}

/* Results of a tile: a divisor of a row's, so that it takes no masks.  Seven are fourteen chains of two vectors, which
 * is what a processor of four or five cycles for a multiply-add needs, and leave registers. */
int64_t windows_tile(int64_t row)
{
    static const uint8_t by_preference[] = {7, 8, 6, 10, 9};
    for (unsigned i = 0; i < sizeof by_preference; i++)
        if (row % by_preference[i] == 0)
            return by_preference[i];
    return 0;
}

bool windows_read_pays(const struct graph *g, ref dot, const struct image_windows *w)
{
    const struct node *n = &g->node[dot];
    const int64_t tile = windows_tile(w->out_w), reach = (w->kernel_w - 1) * w->dilation_w;
    return n->dtype == KL_F32 && g->node[n->in[0]].dtype == KL_F32 && g->node[n->in[1]].dtype == KL_F32 &&
           !n->attr.dot.order && w->kernel_w > 1 && w->kernel_w <= MAX_WINDOW && w->kernel_h > 1 &&
           (int64_t)n->attr.dot.kblock >= w->kernel_w && dot_sizes(g, n).m % WINDOWS_CHANNELS == 0 && tile &&
           (!w->outside || /* a tile at each side */
            (w->first_x <= tile * w->stride_w && (w->out_w - tile - 1) * w->stride_w + reach < w->end_x));
}
