/* Kernels that compute values (`run`), registered for an op and a backend: the call becomes a node of op custom that
 * names the kernel.  For an op of ops.def the attributes of that node contain the node that the op would have, so that
 * the op's own rule gives the type.  The op itself records the gradient, from the same operands. */
#include "frontend/frontend.h"
#include <stdatomic.h>
#include <string.h>

/* ---- the custom op of a kernel ---- */

struct adapter {
    struct adapter *next;
    const struct dispatch_op *op;
    kl_kernel fn;
    const struct custom_op *custom;
};
static struct adapter *adapters; /* guarded by the lock of dispatch; never freed, like custom ops */

/* The fields of a node of ops.def besides its operands. */
struct kernel_attributes {
    struct node proto;
    uint64_t has_target;
    struct shape target;
};

static kl_status backend_kernel_run(void *ctx, const kl_custom_call *call)
{
    const struct adapter *a = ctx;
    kl_custom_call plain = *call;
    if (a->op->graph_op) { /* its attributes are not the user's */
        plain.attr = NULL;
        plain.attr_bytes = 0;
    }
    return a->fn.run(a->fn.ctx, &plain);
}

static kl_status types_of_user_op(void *ctx, const kl_custom_call *call, kl_type *out)
{
    const struct adapter *a = ctx;
    const struct custom_op *op = custom_find(a->op->name);
    return op ? op->functions.types(op->ctx, call, out) : KL_ERR_ARGUMENT;
}

static kl_status types_of_graph_op(void *ctx, const kl_custom_call *call, kl_type *out)
{
    const struct adapter *a = ctx;
    const struct kernel_attributes *at = call->attr;
    struct graph *g = call->attr_bytes == sizeof *at && at->proto.op == a->op->graph_op && call->nin <= MAX_OPERANDS
                          ? graph_new("type") : NULL;
    if (!g)
        return KL_ERR_INTERNAL;
    struct node n = at->proto;
    for (uint32_t i = 0; i < call->nin; i++) {
        struct shape s = shape_make((uint32_t)call->in_type[i].rank, call->in_type[i].dims);
        n.in[i] = n_input(g, call->in_type[i].dtype, &s, "");
    }
    ref r = g->err.code ? NIL : graph_add(g, &n, at->has_target ? &at->target : NULL);
    kl_status status = g->err.code;
    if (r)
        out[0] = custom_type(node_at(g, r)->dtype, node_shape(g, r));
    else
        snprintf(call->message, call->message_bytes, "%s", g->err.msg);
    graph_free(g);
    return status;
}

static bool takes_kernels(const struct dispatch_op *op)
{
    unsigned o = op->graph_op;
    return !o || (opinfo[o].nin && o != OP_copy && o != OP_grad && o != OP_proj);
}

const struct custom_op *backend_custom(const struct dispatch_op *op, const kl_kernel *fn, struct err *e)
{
    static unsigned number;
    if (!takes_kernels(op)) {
        err_set(e, KL_ERR_ARGUMENT, "%s has no values that a kernel could compute", op->name);
        return NULL;
    }
    const struct custom_op *own = op->graph_op ? NULL : custom_find(op->name);
    if (own && own->functions.run == fn->run && own->ctx == fn->ctx)
        return own;
    for (const struct adapter *a = adapters; a; a = a->next)
        if (a->op == op && a->fn.run == fn->run && a->fn.ctx == fn->ctx)
            return a->custom;
    struct adapter *a = mem_alloc(sizeof *a);
    char name[CUSTOM_NAME];
    if (!a) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return NULL;
    }
    *a = (struct adapter){.next = adapters, .op = op, .fn = *fn};
    snprintf(name, sizeof name, "%.48s@%u", op->name, ++number);
    kl_custom_op functions = {.types = op->graph_op ? types_of_graph_op : types_of_user_op, .run = backend_kernel_run};
    if (!custom_register(name, &functions, a, e)) {
        mem_free(a);
        return NULL;
    }
    a->custom = custom_find(name);
    adapters = a;
    return a->custom;
}

/* ---- recording a call ---- */

struct backend_use {
    struct kl_call *call;
    struct custom_use custom;
};

static kl_status backend_kernel_value(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct backend_use *u = ctx;
    return record_custom(call_label(u->call), &u->custom, nin, in, nout, out);
}

/* The operands are followed by the result and its gradient: computes the gradient of sum(op(operands) * gradient) with
 * respect to each operand. */
static kl_status backend_kernel_gradient(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct backend_use *u = ctx;
    struct call again = *u->call->graph;
    uint32_t n = u->call->nin, k = 0;
    memcpy(again.in, in, n * sizeof *in);
    kl_tensor loss = kl_sum(kl_mul(record(&again), in[nin - 1]), 0, NULL, false);
    for (uint32_t i = 0; i < n && k < nout; i++)
        if (dtype_is_float(kl_dtype_of(in[i])))
            out[k++] = grad_or_zeros(loss, in[i]);
    return KL_OK;
}

/* Expands operands of an elementwise op to their common shape, as for the op's node; false: reported. */
static bool backend_kernel_broadcast(struct kl_call *c, struct view *v)
{
    struct shape all = v[0].shape;
    for (uint32_t i = 1; i < c->nin; i++)
        if (!broadcast_shape(&all, &v[i].shape)) {
            char x[SHAPE_TEXT], y[SHAPE_TEXT];
            return fail(c->t, KL_ERR_SHAPE, "%s: shapes %s and %s do not broadcast", call_label(c),
                        shape_text(&all, x, sizeof x), shape_text(&v[i].shape, y, sizeof y)) == KL_OK;
        }
    for (uint32_t i = 0; i < c->nin; i++)
        if (!shape_equal(&v[i].shape, &all)) {
            c->in[i] = broadcast_to(call_label(c), c->in[i], &v[i].shape, &all);
            v[i].shape = all;
        }
    return true;
}

static kl_status record_graph_op(struct kl_call *c, const struct custom_op *op)
{
    struct call *g = c->graph;
    struct kernel_attributes at;
    kl_type type[MAX_OPERANDS + 1];
    struct view v[MAX_OPERANDS];
    struct err e;
    bool floats = false, ok = true;
    e.code = KL_OK;
    for (uint32_t i = 0; i < c->nin && ok; i++) {
        char what[32];
        snprintf(what, sizeof what, "operand %u", i + 1);
        ok = describe(c->t, call_label(c), what, c->in[i], &v[i]) &&
             (!shape_is_symbolic(&v[i].shape) ||
              fail(c->t, KL_ERR_SHAPE, "%s: its kernel, one of a program, is for lengths that are numbers",
                   call_label(c)) == KL_OK);
    }
    ok = ok && (!op_is_elementwise(g->proto.op) || backend_kernel_broadcast(c, v));
    if (ok) {
        memset(&at, 0, sizeof at);
        at.proto = g->proto;
        at.proto.nin = (uint8_t)c->nin;
        at.has_target = g->has_target;
        if (g->has_target)
            at.target = shape_make(g->target.rank, g->target.dim);
        for (uint32_t i = 0; i < c->nin; i++) {
            type[i] = custom_type(v[i].dtype, &v[i].shape);
            floats |= dtype_is_float(v[i].dtype);
        }
        kl_custom_call call = {.nin = c->nin, .nout = 1, .in_type = type, .attr = &at, .attr_bytes = sizeof at};
        ok = custom_types(op, &call, &type[c->nin], &e) || fail(c->t, e.code, "%s: %s", call_label(c), e.msg) == KL_OK;
    }
    if (!ok) {
        c->out[0] = poison(c->t);
        return c->t->tracing ? c->t->trace->err.code : c->t->last.code;
    }
    struct backend_use u = {c, {.op = op, .attr = &at, .nattr = sizeof at, .type = &type[c->nin]}};
    if (floats && dtype_is_float(type[c->nin].dtype))
        return record_custom_grad(call_label(c), backend_kernel_value, backend_kernel_gradient, &u, c->nin,
                                  c->in, 1, c->out);
    return record_custom(call_label(c), &u.custom, c->nin, c->in, 1, c->out);
}

kl_status backend_record(struct kl_call *c, const struct op_kernel *k)
{
    if (!c->graph)
        return c->region ? record_with(c->region, k->custom)
                         : record_custom_by(c->op->name, k->custom, c->nin, c->in, c->nout, c->out);
    if (!compose_begin_on(c->t, NULL)) {
        fail(c->t, KL_ERR_MEMORY, "%s: out of memory", call_label(c));
        c->out[0] = poison(c->t);
        return KL_ERR_MEMORY;
    }
    c->t->plain++; /* views and the gradient's ops made here are not calls of the user */
    kl_status status = record_graph_op(c, k->custom);
    c->t->plain--;
    compose_end(c->t, c->out[0]);
    return status;
}
