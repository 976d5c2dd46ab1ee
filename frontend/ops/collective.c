/* Collectives as composites of copies and elementwise ops.  As rows of ops.def they would need an order of operations,
 * gradients, lowering and batching rules of their own, and would prevent fusion.  As composites they inherit all of
 * this from their ops, and the order is part of the graph. */
#include "frontend/frontend.h"

struct collective {
    struct thread *t;
    const char *op;
    kl_reduction kind;
    uint32_t n;
    const kl_tensor *in;
    struct view *view;    /* of in[] */
    kl_tensor *out;
};

/* Checks a list; false: reported. */
static bool lists_given(struct thread *t, const char *op, uint32_t n, const void *in, kl_tensor *out)
{
    for (uint32_t i = 0; out && i < n; i++)
        out[i] = kl_none;
    if (t->tracing && t->trace->err.code)
        return false;
    if (!n || !in || !out)
        return fail(t, KL_ERR_ARGUMENT, "%s: %s", op, n ? "a list is NULL"
                    : "needs at least one tensor") == KL_OK;
    return true;
}

/* Looks up the tensors. */
static bool collective_begin(struct collective *c, int64_t n)
{
    c->t = thread_self();
    if (!c->t || !counts_valid(c->t, c->op, COUNTS({"n", n})) ||
        !lists_given(c->t, c->op, c->n, c->in, c->out))
        return false;
    c->view = mem_alloc(c->n * sizeof *c->view);
    if (!c->view)
        return fail(c->t, KL_ERR_MEMORY, "%s: out of memory", c->op) == KL_OK;
    for (uint32_t i = 0; i < c->n; i++) {
        char what[24];
        snprintf(what, sizeof what, "tensor %u", i + 1);
        if (!describe(c->t, c->op, what, c->in[i], &c->view[i]))
            return false;
    }
    return true;
}

static bool views_match(struct collective *c)
{
    for (uint32_t i = 1; i < c->n; i++) {
        const struct view *a = &c->view[0], *b = &c->view[i];
        char ta[SHAPE_TEXT], tb[SHAPE_TEXT];
        if (a->dtype != b->dtype || !shape_equal(&a->shape, &b->shape))
            return fail(c->t, a->dtype == b->dtype ? KL_ERR_SHAPE : KL_ERR_TYPE,
                        "%s: tensor 1 is %s%s, tensor %u is %s%s", c->op, dtype_name(a->dtype),
                        shape_text(&a->shape, ta, sizeof ta), i + 1, dtype_name(b->dtype),
                        shape_text(&b->shape, tb, sizeof tb)) == KL_OK;
    }
    if ((unsigned)c->kind > KL_REDUCE_MIN)
        return fail(c->t, KL_ERR_ARGUMENT, "%s: %u is no reduction", c->op, (unsigned)c->kind) == KL_OK;
    if (c->kind == KL_REDUCE_MEAN && !dtype_is_float(c->view[0].dtype))
        return fail(c->t, KL_ERR_TYPE, "%s: a mean needs a floating dtype, got %s", c->op,
                    dtype_name(c->view[0].dtype)) == KL_OK;
    return true;
}

/* Ends *c; out[] is poison if it failed. */
static kl_status collective_finish(struct collective *c, bool ok)
{
    struct thread *t = c->t;
    mem_free(c->view);
    if (!t)
        return KL_ERR_MEMORY;
    for (uint32_t i = 0; i < c->n && ok; i++)
        ok = kl_check(c->out[i]) == KL_OK;
    for (uint32_t i = 0; c->out && i < c->n && !ok; i++) {
        struct err last = t->last; /* releasing reports no errors of its own */
        kl_release(c->out[i]);
        t->last = last;
        c->out[i] = poison(t);
    }
    return ok ? KL_OK : t->tracing ? t->trace->err.code : t->last.code;
}

static kl_tensor collective_combine(const struct collective *c, kl_tensor a, kl_tensor b)
{
    return c->kind == KL_REDUCE_MAX   ? kl_maximum(a, b)
           : c->kind == KL_REDUCE_MIN ? kl_minimum(a, b)
                                      : kl_add(a, b);
}

/* All tensors, or part `part` of n along axis `axis`, combined on a device in the order of the list. */
static kl_tensor collective_reduce(const struct collective *c, kl_device device, int64_t part, uint32_t axis)
{
    struct thread *t = compose_begin(c->op);
    kl_tensor sum = kl_none;
    if (!t)
        return kl_none;
    for (uint32_t i = 0; i < c->n; i++) {
        int64_t length = part < 0 ? 0 : c->view[i].shape.dim[axis] / c->n;
        kl_tensor own = part < 0 ? c->in[i] : kl_narrow(c->in[i], (int)axis, part * length, length);
        own = kl_to(own, device);
        sum = i ? collective_combine(c, sum, own) : own;
    }
    if (c->kind == KL_REDUCE_MEAN) {
        struct view v = {.dtype = c->view[0].dtype, .device = device};
        sum = kl_div(sum, const_like(&v, c->n));
    }
    return compose_end(t, sum);
}

/* out[i]: `all` on the device of in[i].  Takes `all`. */
static void collective_send(struct collective *c, kl_tensor all)
{
    for (uint32_t i = 0; i < c->n; i++)
        c->out[i] = kl_to(all, c->view[i].device);
    struct err last = c->t->last;
    kl_release(all);
    c->t->last = last;
}

kl_status kl_all_reduce(kl_reduction kind, int64_t n, const kl_tensor *in, kl_tensor *out)
{
    struct collective c = {.op = "all_reduce", .kind = kind, .n = count_or_none(n), .in = in, .out = out};
    bool ok = collective_begin(&c, n) && views_match(&c);
    if (ok)
        collective_send(&c, collective_reduce(&c, c.view[0].device, -1, 0));
    return collective_finish(&c, ok);
}

static kl_tensor gather_all(const struct collective *c, int axis)
{
    kl_tensor *part = mem_alloc(c->n * sizeof *part), all = kl_none;
    struct thread *t = part ? compose_begin(c->op) : NULL;
    if (t) {
        for (uint32_t i = 0; i < c->n; i++)
            part[i] = kl_to(c->in[i], c->view[0].device);
        all = compose_end(t, kl_concat((int)c->n, part, axis));
    } else {
        fail(c->t, KL_ERR_MEMORY, "%s: out of memory", c->op);
    }
    mem_free(part);
    return all;
}

kl_status kl_all_gather(int axis, int64_t n, const kl_tensor *in, kl_tensor *out)
{
    struct collective c = {.op = "all_gather", .n = count_or_none(n), .in = in, .out = out};
    bool ok = collective_begin(&c, n);
    if (ok)
        collective_send(&c, gather_all(&c, axis));
    return collective_finish(&c, ok);
}

kl_status kl_reduce_scatter(kl_reduction kind, int axis, int64_t n, const kl_tensor *in,
                               kl_tensor *out)
{
    struct collective c = {.op = "reduce_scatter", .kind = kind, .n = count_or_none(n), .in = in,
                           .out = out};
    uint32_t at = 0;
    bool ok = collective_begin(&c, n) && views_match(&c) && axis_of(c.t, c.op, &c.view[0].shape, axis, &at);
    char text[SHAPE_TEXT];
    if (ok && c.view[0].shape.dim[at] % c.n)
        ok = fail(c.t, KL_ERR_SHAPE, "%s: axis %u of %s is not %u equal parts", c.op, at,
                  shape_text(&c.view[0].shape, text, sizeof text), c.n) == KL_OK;
    for (uint32_t i = 0; i < c.n && ok; i++)
        out[i] = collective_reduce(&c, c.view[i].device, i, at);
    return collective_finish(&c, ok);
}

kl_status kl_broadcast(kl_tensor a, int64_t n, const kl_device *device, kl_tensor *out)
{
    struct collective c = {.t = thread_self(), .op = "broadcast", .n = count_or_none(n), .out = out};
    bool ok = c.t && counts_valid(c.t, c.op, COUNTS({"n", n})) &&
              lists_given(c.t, c.op, c.n, device, out);
    for (uint32_t i = 0; i < c.n && ok; i++)
        out[i] = kl_to(a, device[i]);
    return collective_finish(&c, ok);
}
