/* kl_backward: a grad node for each marked tensor that the loss depends on, and the container of these gradients;
 * kl_grads: gradients of chosen tensors. */
#include "frontend/frontend.h"
#include <string.h>

struct kl_gradients {
    struct item { kl_tensor of, gradient; } *item;
    uint32_t n, cap;
};

/* ---- dependences of the loss ---- */

/* The nodes that a gradient flows to from node `from`; NULL: out of memory. */
static bool *nodes_reached_from(const struct graph *g, ref from)
{
    bool *reach = mem_alloc(g->nnode * sizeof *reach);
    if (reach)
        reach[from] = true;
    for (ref r = reach ? from : 0; r > 0; r--) {
        const struct node *n = node_at(g, r);
        if (!reach[r] || n->flags & MARK_STOP || !node_carries_gradient(n))
            continue;
        for (unsigned i = 0; i < node_nin(n); i++)
            reach[node_in(g, n, i)] = true;
    }
    return reach;
}

static bool marked_in_trace(const struct trace *tr, const bool *reach, struct handle_list *out)
{
    uint32_t n = tr->nbound;
    for (uint32_t i = tr->temps; i != NO_ENTRY; i = entry_at(i)->next)
        n++;
    if (!mem_reserve(&out->h, &out->cap, n + 1, sizeof *out->h))
        return false;
    for (uint32_t i = 0; i < tr->nbound; i++) {
        const struct entry *x = entry_peek(tr->bound[i].h);
        if (x && x->requires_grad && reach[tr->bound[i].node])
            out->h[out->n++] = tr->bound[i].h;
    }
    for (uint32_t i = tr->temps; i != NO_ENTRY; i = entry_at(i)->next) {
        const struct entry *x = entry_at(i);
        if (x->kind == KIND_TEMP && x->requires_grad && reach[x->node])
            out->h[out->n++] = entry_handle(x);
    }
    return true;
}

/* The handles that kl_requires_grad marked and a gradient of h flows to; false: *e. */
static bool marked_below(struct thread *t, kl_tensor h, struct handle_list *out, struct err *e)
{
    struct trace *tr = thread_trace(t);
    bool *reach = NULL, ok = false;
    if (!tr)
        front_lock();
    else
        tr->site = t->site;
    if (tr || deferred_recording()) {
        ref r = node_of_handle(tr, h, "the tensor", e);
        reach = r ? nodes_reached_from(tr ? tr->r.g : deferred_graph(), r) : NULL;
        ok = reach && (tr ? marked_in_trace(tr, reach, out) : deferred_marked(reach, out));
    }
    if (!tr)
        front_unlock();
    mem_free(reach);
    return ok || e->code ? ok : err_set(e, KL_ERR_MEMORY, "out of memory");
}

bool gradient_flows(struct thread *t, kl_tensor h)
{
    struct handle_list list = {0};
    struct err e;
    e.code = KL_OK;
    bool flows = marked_below(t, h, &list, &e) && list.n;
    mem_free(list.h);
    return flows;
}

bool kl_is_tracked(kl_tensor h)
{
    struct thread *t = thread_self();
    return t && kl_check(h) == KL_OK && dtype_is_float(kl_dtype_of(h)) && gradient_flows(t, h);
}

/* ---- making gradients ---- */

/* On the inner device, and not differentiable. */
static kl_tensor gradients_gradient(struct thread *t, kl_tensor loss, kl_tensor of)
{
    t->no_grad++;
    kl_tensor g = grad_or_zeros(loss, of);
    t->no_grad--;
    struct entry *x = entry_peek(g);
    if (!x || x->kind == KIND_POISON)
        return kl_none;
    x->ad &= (uint16_t)~AD_ON;
    return t->tracing ? g : kl_keep(g); /* belongs to no scope */
}

kl_gradients *kl_backward(kl_tensor loss)
{
    struct thread *t = thread_self();
    struct handle_list list = {0};
    struct err e;
    e.code = KL_OK;
    if (!t || !ad_requires(t, "backward", loss))
        return NULL;
    kl_gradients *g = mem_alloc(sizeof *g);
    bool ok = g && marked_below(t, loss, &list, &e);
    if (ok && !list.n)
        ok = err_set(&e, KL_ERR_GRAD, "Operation not marked for autodiff.");
    if (ok && !mem_reserve(&g->item, &g->cap, list.n, sizeof *g->item))
        ok = err_set(&e, KL_ERR_MEMORY, "out of memory");
    if (!ok)
        fail(t, e.code ? e.code : KL_ERR_MEMORY, "backward: %s", e.code ? e.msg : "out of memory");
    for (uint32_t i = 0; i < list.n && ok; i++) {
        struct item x = {list.h[i], gradients_gradient(t, loss, list.h[i])};
        ok = x.gradient.id;
        if (ok)
            g->item[g->n++] = x;
    }
    mem_free(list.h);
    if (ok)
        return g;
    kl_gradients_free(g);
    return NULL;
}

/* ---- of chosen tensors ---- */

/* The variable's node in a trace, or (NULL) outside of traces; NIL: it has none.  false: kl_grad has an error of its
 * own for such a variable, or does more than one gradient for it. */
static bool variable_node(struct trace *tr, kl_tensor variable, ref *node)
{
    const struct binding *b = tr ? trace_binding(tr, variable) : NULL;
    const struct entry *x = entry_peek(variable);
    bool here = x && (tr ? x->kind == KIND_TEMP && x->trace == tr : x->kind == KIND_VALUE);
    *node = b ? b->node : here ? x->node : NIL;
    return x && x->kind != KIND_WRAPPER && !(b && b->assigned) && (tr || (*node && deferred_tracked(*node)));
}

/* Does the loss depend on one of n tensors, at least?  Also true: kl_grad will report why it is not known. */
static bool loss_reaches_some(struct trace *tr, kl_tensor loss, int n, const kl_tensor *wrt)
{
    const struct entry *x = entry_peek(loss);
    if (!x || !(tr ? x->kind == KIND_TEMP && x->trace == tr : x->kind == KIND_VALUE && x->node != NIL))
        return true;
    ref *to = mem_alloc((size_t)n * sizeof *to);
    bool *reached = mem_alloc((size_t)n), some = !to || !reached;
    for (int i = 0; i < n && !some; i++)
        some = !variable_node(tr, wrt[i], &to[i]);
    some = some || !gradient_reaches_each(tr ? tr->r.g : deferred_graph(), x->node, to, (uint32_t)n, reached);
    for (int i = 0; i < n && !some; i++)
        some = reached[i];
    mem_free(to);
    mem_free(reached);
    return some;
}

/* It is checked where a trace is recorded, not where it is replayed. */
bool grads_check_dependence(struct thread *t, const char *op, kl_tensor loss, int n, const kl_tensor *wrt)
{
    struct trace *tr = thread_trace(t);
    if (!n || (tr && (tr->err.code || tr->replaying)))
        return true;
    if (!tr)
        front_lock();
    bool some = loss_reaches_some(tr, loss, n, wrt);
    if (!tr)
        front_unlock();
    return some || fail(t, KL_ERR_GRAD, "%s: the loss depends on none of the %d tensors", op, n) == KL_OK;
}

kl_status kl_grads(kl_tensor loss, int64_t n, const kl_tensor *wrt, kl_tensor *gradients)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (!counts_valid(t, "grads", COUNTS({"n", n})))
        return t->last.code;
    if (n > 0 && (!wrt || !gradients))
        return fail(t, KL_ERR_ARGUMENT, "grads: %d tensors at %s", (int)n, wrt ? "an array" : "NULL");
    kl_status s = grads_check_dependence(t, "grads", loss, (int)n, wrt) ? KL_OK : KL_ERR_GRAD;
    for (int64_t i = 0; i < n; i++) {
        gradients[i] = s == KL_OK ? grad_or_zeros(loss, wrt[i]) : kl_none;
        if (s == KL_OK && (s = kl_check(gradients[i])) != KL_OK)
            while (i >= 0) { /* sets kl_none from here on */
                kl_release(gradients[i]);
                gradients[i--] = kl_none;
            }
    }
    return s;
}

/* ---- the container ---- */

static struct item *item_of(const kl_gradients *g, kl_tensor t)
{
    for (uint32_t i = 0; g && t.id && i < g->n; i++)
        if (g->item[i].of.id == t.id)
            return &g->item[i];
    return NULL;
}

kl_tensor kl_gradients_get(const kl_gradients *g, kl_tensor t)
{
    const struct item *x = item_of(g, t);
    return x ? x->gradient : kl_none;
}

kl_tensor kl_gradients_remove(kl_gradients *g, kl_tensor t)
{
    struct item *x = item_of(g, t);
    kl_tensor gradient = x ? x->gradient : kl_none;
    if (x)
        *x = g->item[--g->n];
    return gradient;
}

/* Gradients of a trace are released with it. */
static void gradients_drop(kl_tensor gradient)
{
    if (entry_peek(gradient))
        kl_release(gradient);
}

static bool gradients_fits(struct thread *t, kl_tensor of, kl_tensor gradient)
{
    static const char op[] = "gradients_replace";
    struct view v, w;
    struct err e;
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    e.code = KL_OK;
    if (!describe(t, op, "the tensor", of, &v) || !describe(t, op, "the gradient", gradient, &w))
        return false;
    if (!ad_replaces(entry_peek(of), entry_peek(gradient), &e))
        return fail(t, e.code, "%s: %s", op, e.msg) == KL_OK;
    if (v.dtype != w.dtype)
        return fail(t, KL_ERR_TYPE, "%s: the tensor is %s, the gradient %s", op, dtype_name(v.dtype),
                    dtype_name(w.dtype)) == KL_OK;
    return shape_equal(&v.shape, &w.shape) ||
           fail(t, KL_ERR_SHAPE, "%s: the tensor is %s, the gradient %s", op, shape_text(&v.shape, a, sizeof a),
                shape_text(&w.shape, b, sizeof b)) == KL_OK;
}

kl_status kl_gradients_replace(kl_gradients *g, kl_tensor of, kl_tensor gradient)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (!g)
        return fail(t, KL_ERR_ARGUMENT, "gradients_replace: the gradients are NULL");
    if (!gradients_fits(t, of, gradient))
        return t->tracing ? t->trace->err.code : t->last.code;
    struct item *x = item_of(g, of);
    if (!x && !mem_reserve(&g->item, &g->cap, g->n + 1, sizeof *g->item))
        return fail(t, KL_ERR_MEMORY, "gradients_replace: out of memory");
    if (x)
        gradients_drop(x->gradient);
    else
        x = &g->item[g->n++];
    *x = (struct item){of, t->tracing ? gradient : kl_keep(gradient)};
    return KL_OK;
}

int64_t kl_gradients_count(const kl_gradients *g) { return g ? g->n : 0; }

void kl_gradients_free(kl_gradients *g)
{
    for (uint32_t i = 0; g && i < g->n; i++)
        gradients_drop(g->item[i].gradient);
    if (g)
        mem_free(g->item);
    mem_free(g);
}
