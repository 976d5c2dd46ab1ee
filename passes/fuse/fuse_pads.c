/* Pads: which are evaluated in the kernels that read them, and which compute their operand.
 *
 * A pad read at indices other than the reader's own, such as through a window or a slice, would end the kernel and be
 * stored.  Instead its readers can load the operand under a mask.  That pays as long as the position along the padded
 * axis has a constant stride.  A reshape in between that joins rows of different axes makes the position a division and
 * the load a gather for each lane, which is slower than an array that is written and read once.  It also pays where a
 * product reads the windows of an image in place (windows.c), and leaves out the products of zeros around it.
 *
 * A stored pad can compute its elementwise operand, at the index where it reads it. */
#include "fuse.h"
#include "ir/loop/loop.h"

/* How a node is read. */
enum { READ_STORED = 1, /* as an array in memory: by the graph's outputs, regions, copies */
       READ_REPEATEDLY = 2, /* each element repeatedly, by an anchor that needs it in memory */
       READ_SHIFTED = 4, /* at indices other than the reader's own */
       READ_WINDOWS = 8 }; /* by a product that reads the windows of what is padded in place, without the zeros */

/* Does r read its second operand in place, under masks where that is padded? */
static bool reads_in_place(const struct graph *g, ref r, const struct pass_options *o)
{
    return !(o->gpus >> g->node[r].device & 1) && dot_is_direct(g, r);
}

static bool reads_repeatedly(unsigned op) { return op_is_anchor(op) && !op_is_reduce(op); }

/* How r, read in the ways of `own`, reads its operands. */
static uint8_t operand_reading(const struct graph *g, ref r, uint8_t own)
{
    const struct node *n = &g->node[r];
    if (op_is_view(n->op))
        return n->op == OP_reshape ? own : (own & (READ_REPEATEDLY | READ_WINDOWS)) | READ_SHIFTED;
    if (op_is_non_fusible(n->op))
        return READ_STORED;
    return reads_repeatedly(n->op) ? READ_REPEATEDLY : op_is_select(n->op) ? READ_SHIFTED : 0;
}

/* Will product r read the windows of an image in place, and leave out the zeros that pads would write around it?  Sets
 * the image. */
static bool leaves_out_border(const struct graph *g, ref r, const struct processor *p, ref *image)
{
    struct image_windows w;
    if (!p->reads_windows || !(p->devices >> g->node[r].device & 1) || !windows_find(g, r, &w) || !w.outside ||
        !windows_read_pays(g, r, &w))
        return false;
    const struct node *n = &g->node[*image = w.array];
    return !op_is_view(n->op) && (!op_is_leaf(n->op) || node_is_stored_leaf(g, w.array)) && n->dtype == KL_F32 &&
           node_numel(g, w.array) > 1;
}

/* Pads that are only read at other indices, and whose value is a number, get no group: their readers evaluate them. */
static void find_shifted(struct graph *g, const struct pass_options *o, uint8_t *read)
{
    ref image;
    for (uint32_t i = 0; i < g->nout; i++)
        read[g->out[i].value] |= READ_STORED;
    for (uint32_t i = 0; i < g->noperand; i++)
        read[g->operand[i]] |= READ_STORED;
    for (ref r = g->nnode; r-- > 1;) {
        const struct node *n = &g->node[r];
        if (op_is_masked(n->op)) {
            unsigned value = g->node[n->in[1]].op;
            bool moved = ((read[r] & ~READ_WINDOWS) == READ_SHIFTED || (!read[r] && node_numel(g, r) == 1)) &&
                (value == OP_const || value == OP_slot);
            g->group[r] = moved ? GROUP_NONE : 0;
        }
        for (unsigned i = 0; i < n->nin; i++)
            if (i == 1 && leaves_out_border(g, r, &o->processor, &image)) {
                read[n->in[i]] |= READ_WINDOWS;
                read[image] |= READ_REPEATEDLY;
            } else if (i == 1 && reads_in_place(g, r, o)) {
                read[n->in[i]] |= READ_SHIFTED;
            } else {
                read[n->in[i]] |= operand_reading(g, r, read[r]);
            }
    }
}

/* ---- paths of views from a reader's index to the operand's ---- */

struct pad_views {
    struct lower l;             /* first, because lowering rules get a pointer to it */
    val loop[KL_MAX_RANK];      /* loop variables of the reader's axes, 0 for those of length 1 */
    uint32_t rank;
    ref uneven;                 /* the first pad that is read without a constant stride; NIL: none */
    ref end;                    /* the node at the end of the views */
    val index[KL_MAX_RANK];     /* the index at which it is read */
};

static bool steps_evenly(const struct pad_views *w, val v)
{
    bool even = true;
    for (uint32_t d = 0; d < w->rank && even; d++) {
        int64_t stride;
        even = !w->loop[d] || ix_stride(w->l.k, v, w->loop[d], &stride);
    }
    return even;
}

static val pad_views_at(struct lower *l, ref r, const val *coord)
{
    struct pad_views *w = (struct pad_views *)l;
    const struct node *n = &l->g->node[r];
    uint32_t rank = node_shape(l->g, r)->rank;
    if (op_is_view(n->op))
        return opinfo[n->op].lower(l, r, coord);
    if (node_is_view(l->g, r)) { /* a pad evaluated by its readers */
        uint32_t axis = n->attr.pad.axis;
        val at[KL_MAX_RANK] = {0};
        for (uint32_t d = 0; d < rank; d++)
            at[d] = coord[d];
        if (!steps_evenly(w, coord[axis])) {
            w->uneven = r;
            return k_int(l->k, 0);
        }
        at[axis] = ix_div(l->k, ix_sub(l->k, coord[axis], k_int(l->k, n->attr.pad.low)), n->attr.pad.interior + 1);
        return pad_views_at(l, n->in[0], at);
    }
    w->end = r;
    for (uint32_t d = 0; d < rank; d++)
        w->index[d] = coord[d];
    return k_int(l->k, 0);
}

/* Follows the views from operand v, read at each index of its own shape.  The caller frees w->l.k; NULL: out of memory.
 * */
static void walk_from(struct pad_views *w, const struct graph *g, ref v)
{
    const struct shape *s = node_shape(g, v);
    val coord[KL_MAX_RANK] = {0};
    *w = (struct pad_views){.l = {.k = kernel_new("views"), .g = g, .at = pad_views_at}, .rank = s->rank};
    if (!w->l.k)
        return;
    for (uint32_t d = 0; d < s->rank; d++) {
        if (s->dim[d] > 1)
            w->loop[d] = k_loop(w->l.k, LOOP_SERIAL, k_int(w->l.k, 0), k_int(w->l.k, s->dim[d]), 1);
        coord[d] = w->loop[d] ? w->loop[d] : k_int(w->l.k, 0);
    }
    pad_views_at(&w->l, v, coord);
}

/* Stores the first pad below v that a reader of v cannot read with a constant stride. false: out of memory. */
static bool store_uneven(struct graph *g, ref v)
{
    struct pad_views w;
    bool any = false;
    for (ref r = v; node_is_view(g, r); r = g->node[r].in[0])
        any |= op_is_masked(g->node[r].op);
    if (!any)
        return true;
    walk_from(&w, g, v);
    bool ok = w.l.k && w.l.k->err.code == KL_OK;
    if (ok && w.uneven)
        g->group[w.uneven] = 0;
    kernel_free(w.l.k);
    return ok;
}

bool fuse_pads_choose(struct graph *g, const struct pass_options *o)
{
    ref image;
    uint8_t *read = mem_alloc(g->nnode);
    bool ok = read;
    if (ok)
        find_shifted(g, o, read);
    mem_free(read);
    for (uint32_t i = 0; i < g->nout && ok; i++)
        ok = store_uneven(g, g->out[i].value);
    for (ref r = g->nnode; r-- > 1 && ok;) /* readers first: a pad that becomes stored is a reader itself */
        for (unsigned i = 0; ok && !node_is_view(g, r) && i < g->node[r].nin; i++)
            ok = (i == 1 && (reads_in_place(g, r, o) || leaves_out_border(g, r, &o->processor, &image))) ||
                 store_uneven(g, g->node[r].in[i]);
    return ok;
}

/* Only views, slices and pads evaluated by their readers may be between the pad and x.  Each element of x must be read
 * at most once, and adjacent elements of the pad must be adjacent in x. */
bool fuse_pads_evenly(const struct graph *g, ref pad, ref x)
{
    struct pad_views w;
    const struct shape *s = node_shape(g, x);
    int64_t stride = 1, first;
    for (ref v = g->node[pad].in[0]; v != x; v = g->node[v].in[0])
        if (node_numel(g, v) > node_numel(g, g->node[v].in[0]) && !op_is_masked(g->node[v].op))
            return false;
    if (!node_numel(g, x))
        return true;
    walk_from(&w, g, g->node[pad].in[0]);
    bool ok = w.l.k && w.end == x;
    val place = ok ? k_int(w.l.k, 0) : 0;
    for (uint32_t d = s->rank; ok && d-- > 0; stride *= s->dim[d]) {
        ok = steps_evenly(&w, w.index[d]);
        place = ix_add(w.l.k, place, ix_scale(w.l.k, w.index[d], stride));
    }
    for (uint32_t d = w.rank; ok && d-- > 0;)
        if (w.loop[d]) {
            ok = ix_stride(w.l.k, place, w.loop[d], &first) && first == 1;
            break;
        }
    ok = ok && w.l.k->err.code == KL_OK;
    kernel_free(w.l.k);
    return ok;
}
