/* Images that a product reads through windows, as those of a convolution. */
#include "ir/loop/loop.h"
#include "passes/passes.h"

enum { BEFORE = 2, /* axes of images before the spatial ones */
       MAX_GAP = 4 }; /* from an element to the next: a tile has code for each of so many positions */

/* Does pad r write zeros around images [image, channel, spatial..] along a spatial axis, or between their elements? */
static bool is_image_border(const struct graph *g, ref r)
{
    const struct node *n = &g->node[r], *value = &g->node[n->in[1]];
    return op_is_masked(n->op) && value->op == OP_const && !value->attr.konst.bits && n->attr.pad.low >= 0 &&
           n->attr.pad.high >= 0 && n->attr.pad.axis >= BEFORE;
}

/* ---- the views from a product to the images ---- */

enum { IMAGE, POSITION, CHANNEL = POSITION + 3, ELEMENT, GROUP = ELEMENT + 3, INDICES };

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

/* Sets strides and dilations, and says whether the second operand has these windows; n has `axes` spatial axes. */
static bool find_steps(const struct graph *g, const struct node *n, unsigned axes, struct image_windows *w)
{
    const int64_t length[INDICES] = {w->images, w->z.out, w->y.out, w->x.out, w->channels, w->z.kernel, w->y.kernel,
                                     w->x.kernel, w->groups};
    const struct shape *s = node_shape(g, n->in[1]);
    struct window_views v = {.l = {.k = kernel_new("windows"), .g = g, .at = window_views_at}};
    struct kernel *k = v.l.k;
    val at[INDICES], coord[KL_MAX_RANK] = {0}, loop[INDICES];
    uint8_t fr[KL_MAX_RANK], con[KL_MAX_RANK];
    const unsigned lead = 3 - axes; /* of the three axes, those that the images lack */
    int64_t one, none, group;
    if (!k)
        return false;
    for (unsigned i = 0; i < INDICES; i++) {
        loop[i] = length[i] > 1 ? k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, length[i]), 1) : 0;
        at[i] = loop[i] ? loop[i] : k_int(k, 0);
    }
    for (uint32_t d = 0; d < s->rank; d++)
        coord[d] = k_int(k, 0);
    unsigned frees = dot_free_axes(s->rank, n->attr.dot.batch_b, n->attr.dot.nbatch, n->attr.dot.con_b,
                                   n->attr.dot.ncon, fr);
    for (unsigned i = 0; i < n->attr.dot.ncon; i++)
        con[i] = axis_get(n->attr.dot.con_b, i);
    const uint8_t *positions = w->contracted ? con : fr, *elements = w->contracted ? fr : con;
    coord[positions[0]] = at[IMAGE];
    if (n->attr.dot.nbatch)
        coord[axis_get(n->attr.dot.batch_b, 0)] = at[GROUP];
    for (unsigned i = lead; i < 3; i++)
        coord[positions[1 + i - lead]] = at[POSITION + i];
    val rest = at[CHANNEL];
    for (unsigned i = 0; i < 3; i++)
        rest = ix_add(k, ix_scale(k, rest, length[ELEMENT + i]), at[ELEMENT + i]);
    for (unsigned i = w->contracted ? frees : n->attr.dot.ncon; i-- > 0;) {
        unsigned axis = elements[i];
        coord[axis] = i ? ix_mod(k, rest, s->dim[axis]) : rest;
        rest = ix_div(k, rest, s->dim[axis]);
    }
    window_views_at(&v.l, n->in[1], coord);
    bool ok = !k->err.code && index_follows(&v, loop, 0, IMAGE, &one, INDICES, &none) && (one == 1 || w->images == 1) &&
              index_follows(&v, loop, 1, CHANNEL, &one, GROUP, &group) && (one == 1 || w->channels == 1) &&
              (group == w->channels || w->groups == 1);
    for (unsigned i = lead; i < 3 && ok; i++) {
        struct window_axis *a = &w->axis[i];
        ok = index_follows(&v, loop, BEFORE + i - lead, POSITION + i, &a->stride, ELEMENT + i, &a->dilation);
        a->stride += a->out == 1; /* any */
        a->dilation += a->kernel == 1;
    }
    kernel_free(k);
    return ok;
}

/* Sets the kernel's lengths: those of the windows, `found` of them from the last axis on, in some of the axes. */
static bool find_kernel(const struct graph *g, const struct node *n, unsigned axes, const int64_t *size, unsigned found,
                        struct image_windows *w)
{
    for (unsigned set = 1; set < 1u << axes; set++) {
        unsigned used = 0;
        for (unsigned i = 0; i < axes; i++) {
            bool has = set >> i & 1;
            w->axis[2 - i].kernel = has && used < found ? size[used] : 1;
            used += has;
        }
        if (used == found && find_steps(g, n, axes, w))
            return true;
    }
    return false;
}

/* Windows whose positions are contracted, or are free axes. */
static bool find_contracted(const struct graph *g, ref dot, bool contracted, struct image_windows *w)
{
    const struct node *n = &g->node[dot];
    const struct shape *b = node_shape(g, n->in[1]);
    const struct dot_dims d = dot_sizes(g, n);
    int64_t size[3], elements = 1;
    unsigned found = 0;
    ref v;
    uint8_t position[KL_MAX_RANK];
    for (v = n->in[1]; op_is_view(g->node[v].op); v = g->node[v].in[0])
        if (g->node[v].op == OP_window) {
            if (found == 3)
                return false;
            elements *= size[found++] = g->node[v].attr.window.size;
        }
    const struct shape *s = node_shape(g, v);
    unsigned positions = dot_free_axes(b->rank, n->attr.dot.batch_b, n->attr.dot.nbatch, n->attr.dot.con_b,
                                       n->attr.dot.ncon, position);
    if (contracted)
        positions = n->attr.dot.ncon;
    for (unsigned i = 0; i < positions && contracted; i++)
        position[i] = axis_get(n->attr.dot.con_b, i);
    if (found < 2 || (s->rank != BEFORE + 2 && s->rank != BEFORE + 3) || shape_is_symbolic(s) ||
        !node_numel(g, n->in[1]) || !d.m || n->attr.dot.nbatch > 1 || s->dim[1] % d.batch ||
        (contracted ? d.n : d.k) != s->dim[1] / d.batch * elements || positions != s->rank - 1 ||
        b->dim[position[0]] != s->dim[0])
        return false;
    const unsigned axes = s->rank - BEFORE, lead = 3 - axes;
    *w = (struct image_windows){.images = s->dim[0], .groups = d.batch, .channels = s->dim[1] / d.batch,
                                .contracted = contracted};
    w->filters = d.m % WINDOWS_CHANNELS ? WINDOWS_CHANNELS / 2 : WINDOWS_CHANNELS;
    for (unsigned i = 0; i < 3; i++)
        w->axis[i] = i < lead ? (struct window_axis){1, 1, 1, 1, 1, 0, 1, 0, 1, 1} :
            (struct window_axis){.out = b->dim[position[1 + i - lead]], .all = s->dim[BEFORE + i - lead],
                                 .end = s->dim[BEFORE + i - lead], .gap = 1};
    if (!find_kernel(g, n, axes, size, found, w))
        return false;
    for (; is_image_border(g, v) && node_is_view(g, v); v = g->node[v].in[0]) {
        const union attr *pad = &g->node[v].attr;
        struct window_axis *a = &w->axis[pad->pad.axis - BEFORE + lead];
        const bool apart = pad->pad.interior > 0; /* zeros between elements */
        if (a->gap > 1 || (apart && (contracted || a->stride > 1 || a->dilation > 1 || pad->pad.interior >= MAX_GAP)))
            break;
        a->first += pad->pad.low;
        a->end -= pad->pad.high;
        a->gap += pad->pad.interior;
    }
    w->array = v;
    for (unsigned i = lead; i < 3; i++) {
        struct window_axis *a = &w->axis[i];
        a->before = a->first;
        a->length = node_shape(g, v)->dim[BEFORE + i - lead];
        w->outside |= a->length != a->all;
    }
    return true;
}

bool windows_find(const struct graph *g, ref dot, struct image_windows *w)
{
    const struct node *n = &g->node[dot];
    return op_is_product(n->op) && !shape_is_symbolic(node_shape(g, n->in[1])) &&
           (find_contracted(g, dot, false, w) || find_contracted(g, dot, true, w));
}

unsigned windows_segments(const struct window_axis *a, struct window_segment *s)
{
    unsigned n = 0;
    for (int64_t o = 0; o < a->out; o++) {
        uint32_t in = 0;
        for (int64_t i = 0; i < a->kernel; i++) {
            int64_t x = o * a->stride + i * a->dilation;
            in |= (uint32_t)(x >= a->first && x < a->end) << i;
        }
        if (n && s[n - 1].in == in) {
            s[n - 1].end = o + 1;
            continue;
        }
        if (n == WINDOW_SEGMENTS)
            return 0;
        s[n++] = (struct window_segment){o, o + 1, in};
    }
    return n;
}

/* A tile has one or two vectors of filters, of which 27 or 14 rows are in registers with what they are multiplied
 * by. */
int64_t windows_tile_rows(const struct image_windows *w)
{
    const int64_t max = w->filters == WINDOWS_CHANNELS ? 14 : 27;
    return w->y.kernel * w->x.kernel <= max ? w->y.kernel : w->x.kernel <= max ? 1 : 0;
}

/* Results of a tile: a divisor of a row's, so that it takes no masks.  Seven are fourteen chains of two vectors, which
 * is what a processor of four or five cycles for a multiply-add needs, and leave registers. */
static int64_t windows_tile(int64_t row, int64_t filters)
{
    static const uint8_t two_vectors[] = {7, 8, 6, 10, 9}, one_vector[] = {14, 16, 12, 10, 15, 9, 8, 7};
    const bool two = filters == WINDOWS_CHANNELS;
    const uint8_t *by_preference = two ? two_vectors : one_vector;
    for (unsigned i = 0; i < (two ? sizeof two_vectors : sizeof one_vector); i++)
        if (row % by_preference[i] == 0)
            return by_preference[i];
    return 0;
}

/* With zeros between the images' elements, results as far apart as these meet the same columns of the kernel. */
int64_t windows_tile_results(const struct image_windows *w)
{
    const struct window_axis *x = &w->x;
    const int64_t apart = x->gap > 1 && x->out % x->gap == 0 ? windows_tile(x->out / x->gap, w->filters) : 0;
    return apart ? apart : windows_tile(x->out, w->filters);
}

/* Are there enough tiles for each channel that is packed, does each multiply enough, and is its code for the images'
 * sides short?  On one thread with AVX-512, 75 elements of all channels take 1.3 of the time of packed windows, 108
 * take 0.85, 147 as long. */
static bool weights_pay(const struct image_windows *w)
{
    enum { MIN_RESULTS = 96, MIN_ELEMENTS = 4, MAX_PIECES = 16 };
    struct window_segment s[WINDOW_SEGMENTS];
    const int64_t rows = windows_tile_rows(w);
    if (rows * w->x.kernel < MIN_ELEMENTS || w->channels * w->z.kernel * w->y.kernel * w->x.kernel < MIN_RESULTS)
        return false;
    const unsigned of_rows = rows == w->y.kernel ? windows_segments(&w->y, s) : 1, pieces = windows_segments(&w->x, s);
    return of_rows > 0 && pieces > 0 && of_rows * pieces <= MAX_PIECES;
}

/* Of few products for each result, as of one channel with a volume, addresses take too much of the time. */
static bool results_pay(const struct graph *g, ref dot, const struct image_windows *w)
{
    enum { MIN_PRODUCTS = 64 };
    const struct window_axis *x = &w->x;
    const int64_t tile = windows_tile_results(w), span = tile * windows_apart(x, tile);
    const int64_t reach = (x->kernel - 1) * x->dilation;
    const struct node *n = &g->node[dot];
    return x->kernel <= MAX_WINDOW && (w->z.kernel == 1 || dot_sizes(g, n).k >= MIN_PRODUCTS) &&
           (int64_t)n->attr.dot.kblock >= x->kernel && tile &&
           (!w->outside || /* a tile at each side */
            (x->first <= span * x->stride && (x->out - span - 1) * x->stride + reach < x->end));
}

bool windows_would_pay(const struct graph *g, ref dot, const struct image_windows *w)
{
    const struct node *n = &g->node[dot];
    return w->x.kernel > 1 && w->y.kernel * w->z.kernel > 1 &&
           dot_sizes(g, n).m % (w->groups > 1 ? WINDOWS_CHANNELS / 2 : WINDOWS_CHANNELS) == 0 &&
           (w->contracted ? weights_pay(w) : results_pay(g, dot, w));
}

bool windows_read_pays(const struct graph *g, ref dot, const struct image_windows *w)
{
    const struct node *n = &g->node[dot];
    return n->dtype == KL_F32 && g->node[n->in[0]].dtype == KL_F32 && g->node[n->in[1]].dtype == KL_F32 &&
           !n->attr.dot.order && windows_would_pay(g, dot, w);
}
