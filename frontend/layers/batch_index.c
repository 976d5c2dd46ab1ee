/* Batching rules of ops that select elements by computed indices.  If only the data is batched, they are the same op
 * with its axis shifted by one.  A batched index becomes one into an axis that contains the whole batch: element i
 * of the batch starts at i times that axis's length.  A dynamic slice or update then has an index of consecutive
 * numbers. */
#include "batch.h"
#include <string.h>

/* An operand, [before, length, behind] around the op's axis; rows: before * behind.  All may be symbolic. */
struct around { int64_t before, length, behind, rows; };

/* false: reported */
static bool batch_other_axes(const struct batch *b, const struct shape *s, uint32_t axis, struct around *x)
{
    char text[SHAPE_TEXT];
    *x = (struct around){1, s->dim[axis], 1, 1};
    bool ok = true;
    for (uint32_t i = 0; i < s->rank; i++)
        ok = ok && (i == axis || length_times(b->t, i < axis ? x->before : x->behind, s->dim[i],
                                              i < axis ? &x->before : &x->behind));
    return (ok && length_times(b->t, x->before, x->behind, &x->rows)) ||
           fail(b->t, KL_ERR_SHAPE, "vmap: the rows of %s are a product of more than two symbols",
                shape_text(s, text, sizeof text)) == KL_OK;
}

/* As many times this length as the batch has elements. */
static int64_t of_batch(const struct batch *b, int64_t length)
{
    int64_t all;
    return length_times(b->t, b->size, length, &all) ? all : INT64_MIN; /* which is refused as a length */
}

static kl_tensor batch_reshape(kl_tensor h, uint32_t rank, const int64_t *dims)
{
    struct shape s = shape_make(rank, dims);
    return reshape_to("vmap", h, &s);
}

/* [B, before, length, behind] as rows: [B * length, before * behind]. */
static kl_tensor as_rows(const struct batch *b, kl_tensor h, struct around a)
{
    h = batch_reshape(h, 4, (int64_t[]){b->size, a.before, a.length, a.behind});
    h = kl_permute(h, (int[]){0, 2, 1, 3});
    return batch_reshape(h, 2, (int64_t[]){of_batch(b, a.length), a.rows});
}

static kl_tensor from_rows(const struct batch *b, kl_tensor h, struct around a, const struct shape *s)
{
    struct shape all = batch_shape(b, s);
    h = batch_reshape(h, 4, (int64_t[]){b->size, a.length, a.before, a.behind});
    return reshape_to("vmap", kl_permute(h, (int[]){0, 2, 1, 3}), &all);
}

/* Indices [B, n] within an axis of this length as row numbers: [B * n]. */
static kl_tensor row_numbers(const struct batch *b, kl_tensor index, int64_t n, int64_t length)
{
    struct view v;
    if (!describe(b->t, "vmap", "the index", index, &v))
        return index;
    const struct view wide = {.dtype = KL_I64, .device = v.device, .shape = {.rank = 1, .dim = {length}}};
    kl_tensor own = kl_iota(v.device, KL_I64, 2, (int64_t[]){b->size, n}, 0);
    kl_tensor first = kl_mul(own, count_like(b->t, "vmap", &wide, 1, 0));
    return batch_reshape(kl_add(held_index(index, &v, length, 1), first), 1, (int64_t[]){of_batch(b, n)});
}

/* The indices [B, n] of a window at a computed start [B], clamped so that the window fits. */
static kl_tensor window_numbers(const struct batch *b, kl_tensor start, int64_t n, int64_t length)
{
    struct view v;
    if (!describe(b->t, "vmap", "the start", start, &v))
        return start;
    kl_tensor from = batch_reshape(held_index(start, &v, length, n), 2, (int64_t[]){b->size, 1});
    return kl_add(from, kl_arange(v.device, KL_I64, n));
}

static kl_tensor batch_gather_axis(const struct batch *b, kl_tensor a, bool batched, struct around x,
                          kl_tensor index, int64_t n, const struct shape *s)
{
    struct call c = {.op = "gather", .proto.op = OP_gather};
    struct shape all = batch_shape(b, s);
    if (batched) {
        c.in[0] = as_rows(b, a, x);
        c.in[1] = row_numbers(b, index, n, x.length);
        x.length = n;
        return from_rows(b, record(&c), x, s);
    }
    c.proto.attr.axis.axis = 1;
    c.in[0] = batch_reshape(a, 3, (int64_t[]){x.before, x.length, x.behind});
    c.in[1] = batch_reshape(index, 1, (int64_t[]){of_batch(b, n)});
    kl_tensor h = batch_reshape(record(&c), 4, (int64_t[]){x.before, b->size, n, x.behind});
    return reshape_to("vmap", kl_permute(h, (int[]){1, 0, 2, 3}), &all);
}

/* All of them batched. */
static kl_tensor batch_scatter_axis(const struct batch *b, kl_tensor a, struct around x, kl_tensor index,
                           int64_t n, kl_tensor update, uint32_t kind, const struct shape *s)
{
    struct call c = {.op = "scatter", .proto.op = OP_scatter};
    c.proto.attr.scatter.kind = kind;
    c.in[0] = as_rows(b, a, x);
    c.in[1] = row_numbers(b, index, n, x.length);
    c.in[2] = as_rows(b, update, (struct around){x.before, n, x.behind, x.rows});
    return from_rows(b, record(&c), x, s);
}

/* The index or start is the same for all: the other operands get the batch. */
static kl_tensor same_index(const struct batch *b, ref r, const kl_tensor *in, const bool *batched, unsigned index)
{
    const struct node *n = node_at(b->g, r);
    struct call c = {.op = opinfo[n->op].name, .proto = {.op = n->op, .attr = n->attr}};
    c.proto.flags = n->flags & MARK_STOP;
    for (unsigned i = 0; i < n->nin; i++)
        c.in[i] = i == index ? in[i] : batch_spread(b, in[i], batched[i], node_shape(b->g, n->in[i]));
    c.proto.attr.axis.axis++; /* the axis is at the same position in the attributes of all four */
    return record(&c);
}

kl_tensor batch_indexed(struct batch *b, ref r, const kl_tensor *in, const bool *batched)
{
    const struct graph *g = b->g;
    const struct node *n = node_at(g, r);
    const struct shape *s = node_shape(g, r);
    uint32_t axis = n->attr.axis.axis;
    struct around x;
    unsigned index = n->op == OP_dynamic_update ? 2 : 1;
    if (!batched[index])
        return same_index(b, r, in, batched, index);
    if (!batch_other_axes(b, node_shape(g, n->in[0]), axis, &x))
        return poison(b->t);
    unsigned stopped = n->flags & MARK_STOP ? 1 : 0;
    b->t->no_grad += stopped;
    kl_tensor a = n->op == OP_scatter || n->op == OP_dynamic_update
                      ? batch_spread(b, in[0], batched[0], node_shape(g, n->in[0])) : in[0], y;
    if (n->op == OP_gather) {
        y = batch_gather_axis(b, a, batched[0], x, in[1], node_shape(g, n->in[1])->dim[0], s);
    } else if (n->op == OP_dynamic_slice) {
        int64_t count = n->attr.slice.count;
        y = batch_gather_axis(b, a, batched[0], x, window_numbers(b, in[1], count, x.length), count, s);
    } else if (n->op == OP_scatter) {
        kl_tensor update = batch_spread(b, in[2], batched[2], node_shape(g, n->in[2]));
        y = batch_scatter_axis(b, a, x, in[1], node_shape(g, n->in[1])->dim[0], update, n->attr.scatter.kind, s);
    } else {
        int64_t count = node_shape(g, n->in[1])->dim[axis];
        kl_tensor update = batch_spread(b, in[1], batched[1], node_shape(g, n->in[1]));
        y = batch_scatter_axis(b, a, x, window_numbers(b, in[2], count, x.length), count, update, SCATTER_SET, s);
    }
    b->t->no_grad -= stopped;
    return y;
}
