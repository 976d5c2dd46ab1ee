/* Elementwise ops and views.  The elementwise functions come from ops.def; views convert their arguments to a shape or
 * a permutation.  All use record(). */
#include "frontend/frontend.h"
#include <inttypes.h>
#include <string.h>

/* ---- arguments ---- */

bool shape_of(struct thread *t, const char *op, int rank, const int64_t *dims, struct shape *s)
{
    if (rank < 0 || rank > KL_MAX_RANK) {
        fail(t, KL_ERR_SHAPE, "%s: rank %d is not in 0..%d", op, rank, KL_MAX_RANK);
        return false;
    }
    if (rank && !dims) {
        fail(t, KL_ERR_ARGUMENT, "%s: dims is NULL", op);
        return false;
    }
    *s = shape_make((uint32_t)rank, dims);
    int64_t count;
    bool negative = false;
    char text[SHAPE_TEXT];
    if (shape_numel(s, &count))
        return true;
    struct trace *tr = thread_trace(t);
    struct err e = {.code = KL_OK};
    if (tr && symbolic_lengths(tr->r.g, s, false, &e) && shape_is_legal(tr->r.g, s))
        return true;
    if (e.code) {
        fail(t, e.code, "%s: %s", op, e.msg);
        return false;
    }
    for (int i = 0; i < rank; i++)
        negative |= dims[i] < 0;
    fail(t, KL_ERR_SHAPE, "%s: shape %s has %s", op, shape_text(s, text, sizeof text),
         negative ? "a negative dimension" : "too many elements");
    return false;
}

bool length_add(struct thread *t, int64_t length, int64_t by, int64_t more, int64_t *out)
{
    struct trace *tr = thread_trace(t);
    return dims_sum(tr ? tr->r.g : NULL, 1, &(struct scaled){length, by}, more, out);
}

bool length_divide(struct thread *t, int64_t length, int64_t by, int64_t *out)
{
    struct trace *tr = thread_trace(t);
    return dim_divide(tr ? tr->r.g : NULL, length, by, out);
}

bool length_times(struct thread *t, int64_t a, int64_t b, int64_t *out)
{
    struct trace *tr = thread_trace(t);
    return dim_multiply(tr ? tr->r.g : NULL, a, b, out);
}

bool length_at_most(struct thread *t, int64_t a, int64_t b)
{
    struct trace *tr = thread_trace(t);
    return dim_at_most(tr ? tr->r.g : NULL, a, b);
}

bool axes_are_numbers(struct thread *t, const char *op, const struct shape *s, uint32_t first, uint32_t n)
{
    char text[SHAPE_TEXT];
    for (uint32_t i = first; i < first + n; i++)
        if (s->dim[i] < 0) {
            fail(t, KL_ERR_SHAPE, "%s: axis %u of %s is symbolic, but what is recorded depends on its length", op,
                 i, shape_text(s, text, sizeof text));
            return false;
        }
    return true;
}

bool axis_of(struct thread *t, const char *op, const struct shape *s, int axis, uint32_t *at)
{
    int rank = (int)s->rank;
    char text[SHAPE_TEXT];
    if (axis >= -rank && axis < rank) {
        *at = (uint32_t)(axis < 0 ? axis + rank : axis);
        return true;
    }
    fail(t, KL_ERR_SHAPE, "%s: axis %d is out of range for shape %s", op, axis, shape_text(s, text, sizeof text));
    return false;
}

/* ---- elementwise ---- */

/* Assigned field by field: an initializer also clears the union, which takes longer than dispatch. */
static inline void elementwise_call(struct call *call, const char *name, enum op op, kl_tensor a, kl_tensor b,
                                    kl_tensor c)
{
    call->op = name;
    call->proto = (struct node){.op = (uint16_t)op};
    call->in[0] = a;
    call->in[1] = b;
    call->in[2] = c;
    call->in[3] = kl_none;
    call->has_target = call->failed = false;
    call->device = (kl_device){0};
    call->data = NULL;
    call->symbolic = NULL;
    call->bits = call->keys = call->marks = 0;
}

static kl_tensor ops_elementwise(const char *name, enum op op, kl_tensor a, kl_tensor b, kl_tensor c)
{
    struct call call;
    elementwise_call(&call, name, op, a, b, c);
    return record(&call);
}

/* The variant with a call site, which looks up the thread once, as the plain one. */
static kl_tensor ops_elementwise_at(const kl_site *site, const char *name, enum op op, kl_tensor a, kl_tensor b,
                                    kl_tensor c)
{
    struct call call;
    elementwise_call(&call, name, op, a, b, c);
    return record_at(site, &call);
}

#define EW1(name, ...)                                                          \
    kl_tensor kl_##name(kl_tensor a)                                            \
    {                                                                           \
        return ops_elementwise(#name, OP_##name, a, kl_none, kl_none);          \
    }                                                                           \
    kl_tensor kl_##name##_at(const kl_site *site, kl_tensor a)                  \
    {                                                                           \
        return ops_elementwise_at(site, #name, OP_##name, a, kl_none, kl_none); \
    }
#define EW2(name, ...) BINARY(name, name)
#define EW2_AS(name, public, ...) BINARY(name, public)
#define BINARY(name, public)                                                  \
    kl_tensor kl_##public(kl_tensor a, kl_tensor b)                           \
    {                                                                         \
        return ops_elementwise(#public, OP_##name, a, b, kl_none);            \
    }                                                                         \
    kl_tensor kl_##public##_at(const kl_site *site, kl_tensor a, kl_tensor b) \
    {                                                                         \
        return ops_elementwise_at(site, #public, OP_##name, a, b, kl_none);   \
    }
#define EW3(name, ...)                                                                   \
    kl_tensor kl_##name(kl_tensor a, kl_tensor b, kl_tensor c)                           \
    {                                                                                    \
        return ops_elementwise(#name, OP_##name, a, b, c);                               \
    }                                                                                    \
    kl_tensor kl_##name##_at(const kl_site *site, kl_tensor a, kl_tensor b, kl_tensor c) \
    {                                                                                    \
        return ops_elementwise_at(site, #name, OP_##name, a, b, c);                      \
    }
#include "ir/ops/ops.def"

/* The number is a slot of its own, so that the program does not depend on which numbers are equal. */
#define SCALAR(name, public)                                                          \
    kl_tensor kl_##public##_scalar(kl_tensor a, double value) \
    {                                                                                 \
        return with_number(#public "_scalar", OP_##name, a, value);             \
    }

static kl_tensor with_number(const char *name, enum op op, kl_tensor a, double value)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, name, "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    if (!(t = compose_begin(name)))
        return kl_none;
    kl_tensor number = kl_scalar(v.device, (kl_dtype)v.dtype, value);
    return compose_end(t, ops_elementwise(name, op, a, number, kl_none));
}

SCALAR(add, add)
SCALAR(sub, sub)
SCALAR(mul, mul)
SCALAR(div, div)
SCALAR(max, maximum)
SCALAR(min, minimum)

kl_tensor kl_cast(kl_tensor a, kl_dtype dtype)
{
    struct thread *t = thread_self();
    if (t && (unsigned)dtype >= KL_DTYPE_COUNT)
        return refuse(t, KL_ERR_TYPE, "cast: dtype %u does not exist", (unsigned)dtype);
    struct call c = {.op = "cast", .in = {a}, .proto = {.op = OP_cast, .dtype = (uint8_t)dtype}};
    return record(&c);
}

kl_tensor kl_to(kl_tensor a, kl_device device)
{
    device_dtype(device, KL_FLOAT); /* marks the device as used */
    return record(&(struct call){.op = "to", .proto.op = OP_copy, .in = {a}, .device = device});
}

kl_tensor kl_grad(kl_tensor loss, kl_tensor wrt)
{
    return record(&(struct call){.op = "grad", .proto.op = OP_grad, .in = {loss, wrt}, .must_depend = true});
}

kl_tensor grad_or_zeros(kl_tensor loss, kl_tensor wrt)
{
    return record(&(struct call){.op = "grad", .proto.op = OP_grad, .in = {loss, wrt}});
}

/* ---- views ---- */

kl_tensor reshape_to(const char *op, kl_tensor a, const struct shape *s)
{
    struct call c = {.op = op, .proto.op = OP_reshape, .in = {a}, .has_target = true, .target = *s};
    return record(&c);
}

/* A view of everything, marked like ops recorded in no_grad blocks. */
kl_tensor kl_detach(kl_tensor a)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, "detach", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    struct call c = {.op = "detach", .proto = {.op = OP_reshape, .flags = MARK_STOP}, .in = {a},
                     .has_target = true, .target = v.shape};
    return record(&c);
}

/* The length that is left over for the -1 among dims where lengths are symbolic.  false: reported. */
static bool infer_symbolic(struct thread *t, const struct shape *from, int rank, const int64_t *dims, int64_t *out)
{
    const struct trace *tr = thread_trace(t);
    struct shape given = {0};
    char text[SHAPE_TEXT];
    for (int i = 0; i < rank; i++)
        if (dims[i] != -1)
            given.dim[given.rank++] = dims[i];
    if (tr && shape_rest(tr->r.g, from, &given, out))
        return true;
    fail(t, KL_ERR_SHAPE, "reshape: no length fits the -1 for every value of the symbols of %s",
         shape_text(from, text, sizeof text));
    return false;
}

/* Replaces the one dimension given as -1; false: reported. */
static bool infer_dim(struct thread *t, const struct shape *from, int rank, const int64_t *dims, int64_t *out)
{
    int64_t rest = 1, count;
    int at = -1;
    struct shape lengths = shape_make((uint32_t)rank, dims);
    struct trace *tr = thread_trace(t);
    struct err e = {.code = KL_OK};
    if (tr && !symbolic_lengths(tr->r.g, &lengths, false, &e)) {
        fail(t, e.code, "reshape: %s", e.msg);
        return false;
    }
    memcpy(out, lengths.dim, (size_t)rank * sizeof *out);
    dims = lengths.dim;
    bool symbolic = shape_is_symbolic(from);
    count = symbolic ? 0 : shape_count(from);
    for (int i = 0; i < rank; i++) {
        if (dims[i] == -1 && at >= 0) {
            fail(t, KL_ERR_SHAPE, "reshape: only one dimension may be -1");
            return false;
        }
        if (dims[i] == -1)
            at = i;
        else if (dims[i] < 0 && tr && dim_exists(tr->r.g, dims[i]))
            symbolic = true;
        else if (dims[i] < 0 || __builtin_mul_overflow(rest, dims[i], &rest))
            return true; /* shape_of reports the error */
    }
    if (at < 0)
        return true;
    if (symbolic)
        return infer_symbolic(t, from, rank, dims, &out[at]);
    char text[SHAPE_TEXT];
    if (rest == 0 || count % rest) {
        fail(t, KL_ERR_SHAPE, "reshape: nothing fits the -1: %s has %" PRId64 " elements, the rest of the new "
                                    "shape %" PRId64, shape_text(from, text, sizeof text), count, rest);
        return false;
    }
    out[at] = count / rest;
    return true;
}

kl_tensor kl_reshape(kl_tensor a, int rank, const int64_t *dims)
{
    struct thread *t = thread_self();
    struct view v;
    struct shape s;
    int64_t full[KL_MAX_RANK];
    if (!t || !describe(t, "reshape", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    bool listed = rank > 0 && rank <= KL_MAX_RANK && dims;
    if ((listed && !infer_dim(t, &v.shape, rank, dims, full)) ||
        !shape_of(t, "reshape", rank, listed ? full : dims, &s))
        return poison(t);
    return reshape_to("reshape", a, &s);
}

static kl_tensor permute_to(const char *op, kl_tensor a, const uint8_t *perm)
{
    struct call c = {.op = op, .proto.op = OP_permute, .in = {a}};
    memcpy(c.proto.attr.permute.perm, perm, KL_MAX_RANK);
    return record(&c);
}

kl_tensor kl_permute(kl_tensor a, const int *axes)
{
    struct thread *t = thread_self();
    struct view v;
    uint8_t perm[KL_MAX_RANK] = {0};
    if (!t || !describe(t, "permute", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    if (v.shape.rank && !axes)
        return refuse(t, KL_ERR_ARGUMENT, "permute: axes is NULL");
    for (uint32_t i = 0; i < v.shape.rank; i++) {
        uint32_t at;
        if (!axis_of(t, "permute", &v.shape, axes[i], &at))
            return poison(t);
        perm[i] = (uint8_t)at;
    }
    return permute_to("permute", a, perm);
}

kl_tensor kl_transpose(kl_tensor a, int axis0, int axis1)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t i, j;
    uint8_t perm[KL_MAX_RANK] = {0};
    if (!t || !describe(t, "transpose", "the tensor", a, &v) ||
        !axis_of(t, "transpose", &v.shape, axis0, &i) || !axis_of(t, "transpose", &v.shape, axis1, &j))
        return t ? poison(t) : kl_none;
    for (uint32_t k = 0; k < v.shape.rank; k++)
        perm[k] = (uint8_t)k;
    perm[i] = (uint8_t)j;
    perm[j] = (uint8_t)i;
    return permute_to("transpose", a, perm);
}

/* Aligned at the right: a reshape if the rank grows, then an expand. */
kl_tensor broadcast_to(const char *op, kl_tensor a, const struct shape *from, const struct shape *to)
{
    struct shape aligned = {.rank = to->rank};
    if (from->rank > to->rank) {
        char x[SHAPE_TEXT], y[SHAPE_TEXT];
        return refuse(thread_self(), KL_ERR_SHAPE, "%s: shape %s does not broadcast to %s", op,
                      shape_text(from, x, sizeof x), shape_text(to, y, sizeof y));
    }
    uint32_t lead = to->rank - from->rank;
    for (uint32_t i = 0; i < to->rank; i++)
        aligned.dim[i] = i < lead ? 1 : from->dim[i - lead];
    struct thread *t = compose_begin(op);
    if (!t)
        return kl_none;
    if (lead)
        a = reshape_to(op, a, &aligned);
    struct call c = {.op = op, .proto.op = OP_expand, .in = {a}, .has_target = true, .target = *to};
    return compose_end(t, record(&c));
}

kl_tensor kl_expand(kl_tensor a, int rank, const int64_t *dims)
{
    struct thread *t = thread_self();
    struct view v;
    struct shape s;
    int64_t full[KL_MAX_RANK];
    if (!t || !describe(t, "expand", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    bool listed = rank > 0 && rank <= KL_MAX_RANK && dims;
    int lead = rank - (int)v.shape.rank;
    for (int i = 0; listed && i < rank; i++)
        full[i] = dims[i] == -1 && i >= lead ? v.shape.dim[i - lead] : dims[i];
    if (!shape_of(t, "expand", rank, listed ? full : dims, &s))
        return poison(t);
    return broadcast_to("expand", a, &v.shape, &s);
}

kl_tensor kl_unsqueeze(kl_tensor a, int axis)
{
    struct thread *t = thread_self();
    struct view v;
    char text[SHAPE_TEXT];
    if (!t || !describe(t, "unsqueeze", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    int rank = (int)v.shape.rank, at = axis < 0 ? axis + rank + 1 : axis;
    if (at < 0 || at > rank)
        return refuse(t, KL_ERR_SHAPE, "unsqueeze: axis %d is out of range for shape %s", axis,
                      shape_text(&v.shape, text, sizeof text));
    if (rank == KL_MAX_RANK)
        return refuse(t, KL_ERR_SHAPE, "unsqueeze: %s has as many axes as a tensor can have",
                      shape_text(&v.shape, text, sizeof text));
    memmove(&v.shape.dim[at + 1], &v.shape.dim[at], (size_t)(rank - at) * sizeof v.shape.dim[0]);
    v.shape.dim[at] = 1;
    v.shape.rank++;
    return reshape_to("unsqueeze", a, &v.shape);
}

kl_tensor kl_squeeze(kl_tensor a, int axis)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    char text[SHAPE_TEXT];
    if (!t || !describe(t, "squeeze", "the tensor", a, &v) ||
        !axis_of(t, "squeeze", &v.shape, axis, &at))
        return t ? poison(t) : kl_none;
    if (v.shape.dim[at] != 1)
        return refuse(t, KL_ERR_SHAPE, "squeeze: axis %d of %s does not have length 1", axis,
                      shape_text(&v.shape, text, sizeof text));
    v.shape.rank--;
    memmove(&v.shape.dim[at], &v.shape.dim[at + 1], (v.shape.rank - at) * sizeof v.shape.dim[0]);
    v.shape.dim[v.shape.rank] = 0;
    return reshape_to("squeeze", a, &v.shape);
}
