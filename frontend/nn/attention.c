/* Attention: op attention on operands whose leading axes are broadcast to one shape. */
#include "frontend/frontend.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The leading axes of an operand, and its last two. */
struct attention_operand { struct shape lead; int64_t rows, columns; };

static bool attention_split_shape(const struct shape *s, struct attention_operand *p)
{
    if (s->rank < 2)
        return false;
    *p = (struct attention_operand){*s, s->dim[s->rank - 2], s->dim[s->rank - 1]};
    p->lead.rank -= 2;
    return true;
}

/* h, of shape s, with these axes before its own last two. */
static kl_tensor nn_attention_spread(kl_tensor h, const struct shape *s, const struct shape *lead,
                                     int64_t rows, int64_t columns)
{
    struct shape all = *lead;
    all.dim[all.rank++] = rows;
    all.dim[all.rank++] = columns;
    return shape_equal(s, &all) ? h : broadcast_to("attention", h, s, &all);
}

static const char *const what[] = {"q", "k", "v", "the mask"};

/* Axis `from_end` of operand i must be as long as that of operand j. */
static kl_tensor lengths_differ(struct thread *t, const struct view *v, unsigned i, unsigned j, unsigned from_end)
{
    const struct shape *a = &v[i].shape, *b = &v[j].shape;
    char one[SHAPE_TEXT], two[SHAPE_TEXT];
    return refuse(t, KL_ERR_SHAPE, "attention: axis %u of %s %s has length %" PRId64 ", axis %u of %s %s has %" PRId64,
                      a->rank - from_end, what[i], shape_text(a, one, sizeof one), a->dim[a->rank - from_end],
                  b->rank - from_end, what[j], shape_text(b, two, sizeof two), b->dim[b->rank - from_end]);
}

/* The leading axes of operands i and j do not broadcast: reports the last one that does not. */
static kl_tensor leads_differ(struct thread *t, const struct view *v, unsigned i, unsigned j)
{
    const struct shape *a = &v[i].shape, *b = &v[j].shape;
    for (unsigned k = 3; k <= a->rank && k <= b->rank; k++)
        if (a->dim[a->rank - k] != b->dim[b->rank - k] && a->dim[a->rank - k] != 1 && b->dim[b->rank - k] != 1)
            return lengths_differ(t, v, i, j, k);
    char q[SHAPE_TEXT], k[SHAPE_TEXT], w[SHAPE_TEXT];
    return refuse(t, KL_ERR_SHAPE, "attention: the leading axes of q %s, k %s and v %s do not broadcast",
                  shape_text(&v[0].shape, q, sizeof q), shape_text(&v[1].shape, k, sizeof k),
                  shape_text(&v[2].shape, w, sizeof w));
}

kl_tensor kl_attention(kl_tensor q, kl_tensor k, kl_tensor v, kl_tensor mask, bool causal)
{
    return attention_scaled(q, k, v, mask, causal, 0);
}

kl_tensor attention_scaled(kl_tensor q, kl_tensor k, kl_tensor v, kl_tensor mask, bool causal, double scale)
{
    const kl_tensor in[] = {q, k, v, mask};
    struct thread *t = thread_self();
    struct view view[4] = {{0}};
    struct attention_operand p[3];
    char text[SHAPE_TEXT];
    for (unsigned i = 0; i < 4 && t; i++)
        if ((i < 3 || mask.id) && !describe(t, "attention", what[i], in[i], &view[i]))
            t = NULL;
    if (!t)
        return op_failed();
    unsigned dtype = view[0].dtype;
    if (!dtype_is_float(dtype) || view[1].dtype != dtype || view[2].dtype != dtype)
        return refuse(t, KL_ERR_TYPE, "attention: needs one floating dtype, got %s, %s and %s", dtype_name(dtype),
                      dtype_name(view[1].dtype), dtype_name(view[2].dtype));
    for (unsigned i = 0; i < 3; i++)
        if (!attention_split_shape(&view[i].shape, &p[i]))
            return refuse(t, KL_ERR_SHAPE, "attention: %s has shape %s: two axes at least are needed", what[i],
                          shape_text(&view[i].shape, text, sizeof text));
    if (p[0].columns != p[1].columns)
        return lengths_differ(t, view, 0, 1, 1);
    if (p[1].rows != p[2].rows)
        return lengths_differ(t, view, 1, 2, 2);
    struct shape lead = p[0].lead;
    if (!broadcast_shape(&lead, &p[1].lead))
        return leads_differ(t, view, 0, 1);
    if (!broadcast_shape(&lead, &p[2].lead))
        return leads_differ(t, view, p[0].lead.rank > p[1].lead.rank ? 0 : 1, 2);
    if (mask.id && view[3].dtype != KL_BOOL && view[3].dtype != KL_I32 && view[3].dtype != KL_I64)
        return refuse(t, KL_ERR_TYPE, "attention: the mask must be bool, or i32 or i64 bounds, got %s",
                      dtype_name(view[3].dtype));
    struct shape seen = lead, all;
    seen.dim[seen.rank++] = p[0].rows;
    seen.dim[seen.rank++] = view[3].dtype == KL_BOOL ? p[1].rows : 2;
    all = seen;
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    if (mask.id && (!broadcast_shape(&all, &view[3].shape) || !shape_equal(&all, &seen)))
        return refuse(t, KL_ERR_SHAPE, "attention: a mask of shape %s does not broadcast to %s",
                      shape_text(&view[3].shape, a, sizeof a), shape_text(&seen, b, sizeof b));
    if ((scale == 0 && !axes_are_numbers(t, "attention", &view[0].shape, view[0].shape.rank - 1, 1)) ||
        !(t = checked_begin("attention")))
        return op_failed();
    struct call c = {.op = "attention", .proto = {.op = OP_attention, .nin = mask.id ? 4 : 3}};
    int64_t depth = p[0].columns;
    if (scale == 0)
        scale = depth ? 1 / sqrt((double)depth) : 1;
    c.proto.attr.attention.scale = dtype_bits(KL_F64, scale);
    c.proto.attr.attention.causal = causal;
    for (unsigned i = 0; i < 3; i++)
        c.in[i] = nn_attention_spread(in[i], &view[i].shape, &lead, p[i].rows, p[i].columns);
    if (mask.id)
        c.in[3] = shape_equal(&view[3].shape, &seen) ? mask : broadcast_to("attention", mask, &view[3].shape, &seen);
    return compose_end(t, record(&c));
}
