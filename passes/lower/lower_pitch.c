/* Pitches: intermediates of a GPU whose rows are further apart in memory than they are long.
 *
 * A TMA load takes rows that begin at multiples of 16 bytes, and so does a copy to shared memory or a store of a
 * vector.  Behind rows of another length, such as a vocabulary's 50257 logits, there are unused elements, up to a
 * multiple of 64 bytes.
 * These have no value: a kernel may load and store anything there, as the threads of a row do that access whole
 * vectors, and no result depends on it.  Inputs, states and outputs have no pitch, nor has what anything but a kernel
 * reads: their memory is laid out by their shape.
 *
 * Only operands and results of large products get a pitch: other kernels gain little by it. */
#include "lower_schedule.h"

enum { ACCESS_BYTES = 16, PITCH_BYTES = 64 };

/* The stored value that operand i of r reads through views, if it is an intermediate; else NIL. */
static ref intermediate_of(const struct graph *g, ref x)
{
    while (op_is_view(g->node[x].op))
        x = g->node[x].in[0];
    return g->group[x] == GROUP_NONE ? NIL : x;
}

/* Elements from row to row, if the rows of r need a pitch; else 0. */
static int64_t pitch_of(const struct graph *g, ref r)
{
    enum { SHORTEST = 512 };        /* bytes of a row, of which the padding is a small part */
    const struct shape *s = node_shape(g, r);
    int64_t size = (int64_t)dtype_size(g->node[r].dtype), row = s->rank > 1 ? s->dim[s->rank - 1] : 0;
    if (row * size < SHORTEST || row * size % ACCESS_BYTES == 0 || shape_count(s) == row)
        return 0;
    return (row * size + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES / size;
}

static bool is_large(const struct graph *g, ref r)
{
    const double large = 1e6;       /* operations */
    if (!op_is_product(g->node[r].op))
        return false;
    struct dot_dims d = dot_sizes(g, &g->node[r]);
    return 2 * (double)d.batch * (double)d.m * (double)d.n * (double)d.k >= large;
}

/* Does the product's device copy such elements to shared memory: tensors for matrix units, or vectors for threads? */
static bool copies_operand(const struct target_set *t, const struct node *n)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (!t->v[i].devices || t->v[i].devices >> n->device & 1)
            return dtype_is_half(n->dtype) ? t->v[i].caps->panel_copies
                                           : n->dtype == KL_F32 && t->v[i].caps->async_copies;
    return false;
}

/* Does the kernel of r's group store it element by element, by lower_put? */
static bool is_put(const struct groups *s, const struct graph *g, ref r)
{
    uint32_t group = g->group[r];
    for (uint32_t i = s->first[group]; i < s->first[group + 1]; i++) {
        unsigned op = g->node[s->member[i]].op;
        if (op_is_non_fusible(op) || op_is_attention(op) || op_is_cumulative(op) || op == OP_scatter ||
            op == OP_argsort || op == OP_dynamic_update)
            return false;
    }
    return true;
}

/* Takes the pitch from what a region, a copy or a custom op reads. */
static void clear_read_otherwise(const struct graph *g, int64_t *pitch)
{
    for (ref r = 1; r < g->nnode; r++)
        for (unsigned i = 0; op_is_non_fusible(g->node[r].op) && i < node_nin(&g->node[r]); i++)
            pitch[intermediate_of(g, node_in(g, &g->node[r], i))] = 0;
    for (uint32_t i = 0; i < g->nout; i++)
        pitch[intermediate_of(g, g->out[i].value)] = 0;
    pitch[NIL] = 0;
}

bool lower_pitches(const struct graph *g, const struct target_set *t, const struct groups *s, int64_t *pitch)
{
    for (ref r = 1; r < g->nnode; r++) {
        if (!is_large(g, r) || !copies_operand(t, &g->node[g->node[r].in[0]]))
            continue;
        for (unsigned i = 0; i < g->node[r].nin; i++) {
            ref x = intermediate_of(g, g->node[r].in[i]);
            if (x && s->stored[x] && is_put(s, g, x))
                pitch[x] = pitch_of(g, x);
        }
        uint32_t group = g->group[r];
        for (uint32_t i = s->first[group]; i < s->first[group + 1]; i++)
            if (s->stored[s->member[i]] && is_put(s, g, r))
                pitch[s->member[i]] = pitch_of(g, s->member[i]);
    }
    clear_read_otherwise(g, pitch);
    bool any = false;
    for (ref r = 1; r < g->nnode; r++)
        any |= pitch[r] != 0;
    return any;
}

int64_t pitched_numel(const struct graph *g, const int64_t *pitch, ref r)
{
    const struct shape *s = node_shape(g, r);
    int64_t n = node_numel(g, r);
    return pitch && pitch[r] && n ? n / s->dim[s->rank - 1] * pitch[r] : n;
}

/* ---- accesses ---- */

enum { MAX_ACCESS = 8 /* elements */ };

static int64_t smaller_element(const struct lowering *w, ref r, int64_t elements, int64_t min)
{
    int64_t own = (int64_t)dtype_size(w->g->node[r].dtype);
    return node_numel(w->g, r) >= elements && own < min ? own : min;
}

int64_t lower_access_smallest(const struct lowering *w, int64_t elements)
{
    int64_t min = ACCESS_BYTES;
    for (uint32_t m = 0; m < w->nmember; m++) {
        ref r = w->member[m];
        min = w->stored[r] ? smaller_element(w, r, elements, min) : min;
        for (unsigned i = 0; i < w->g->node[r].nin; i++) {
            bool linear;
            ref x = node_operand(w->g, r, i, &linear);
            min = lower_in_memory(w, x) ? smaller_element(w, x, elements, min) : min;
        }
    }
    return ACCESS_BYTES / (min < ACCESS_BYTES / MAX_ACCESS ? ACCESS_BYTES / MAX_ACCESS : min);
}

int64_t lower_access(const struct lowering *w)
{
    int64_t max = ACCESS_BYTES / MAX_ACCESS;
    for (uint32_t m = 0; m < w->nmember; m++) {
        const struct node *n = &w->g->node[w->member[m]];
        int64_t own = w->stored[w->member[m]] ? (int64_t)dtype_size(n->dtype) : 1;
        max = own > max ? own : max;
        for (unsigned i = 0; i < n->nin; i++) {
            bool linear;
            ref x = node_operand(w->g, w->member[m], i, &linear);
            int64_t read = (int64_t)dtype_size(w->g->node[x].dtype);
            if (lower_in_memory(w, x) && node_numel(w->g, x) > 1)
                max = read > max ? read : max;
        }
    }
    return ACCESS_BYTES / max;
}

/* The largest power of two, at most `access`, of which a size is a multiple for all values of its symbols. */
static int64_t access_of_size(struct size s, int64_t access)
{
    while (!size_divides(s, access))
        access /= 2;
    return access;
}

/* Arrays of rows: `access` elements of each begin at a multiple of as many in every row.  smallest: bytes of the
 * smallest elements, of those of 2 bytes or more. */
struct row_arrays {
    struct size row;
    int64_t elements, access, smallest;
    bool any;
};

static void row_arrays_add(struct row_arrays *a, const struct lowering *w, ref x)
{
    const struct shape *shape = node_shape(w->g, x);
    int64_t bytes = (int64_t)dtype_size(w->g->node[x].dtype);
    if (node_numel(w->g, x) != a->elements)
        return;
    bool padded = w->pitch[x] && size_equal(a->row, size_constant(shape->dim[shape->rank - 1]));
    int64_t access = access_of_size(padded ? size_constant(w->pitch[x]) : a->row, MAX_ACCESS);
    a->access = access < a->access ? access : a->access;
    a->smallest = bytes < a->smallest && bytes > 1 ? bytes : a->smallest;
    a->any = true;
}

int64_t lower_row_access(const struct lowering *w, struct size row, int64_t elements)
{
    struct row_arrays a = {row, elements, MAX_ACCESS, ACCESS_BYTES, false};
    for (uint32_t m = 0; m < w->nmember; m++) {
        ref r = w->member[m];
        if (w->stored[r] && !op_is_reduce(w->g->node[r].op))
            row_arrays_add(&a, w, r);
        for (unsigned i = 0; i < w->g->node[r].nin; i++) {
            bool linear;
            ref x = node_operand(w->g, r, i, &linear);
            if (lower_in_memory(w, x))
                row_arrays_add(&a, w, x);
        }
    }
    int64_t most = a.smallest < ACCESS_BYTES ? ACCESS_BYTES / a.smallest : MAX_ACCESS;
    return !a.any ? access_of_size(row, MAX_ACCESS) : a.access < most ? a.access : most;
}
