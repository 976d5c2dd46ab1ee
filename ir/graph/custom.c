/* Custom ops: the list of registered ones, and calling their functions.
 *
 * New entries are added at the head and none is removed, so look-ups need no lock. */
#include "custom.h"
#include <stdatomic.h>
#include <string.h>

static _Atomic(struct custom_op *) first = inspect_ops;

static const struct custom_op *find_from(const struct custom_op *op, const char *name)
{
    while (op && strcmp(op->name, name))
        op = op->next;
    return op;
}

const struct custom_op *custom_find(const char *name)
{
    return find_from(atomic_load_explicit(&first, memory_order_acquire), name);
}

bool custom_add(struct custom_op *op, struct err *e)
{
    struct custom_op *head = atomic_load_explicit(&first, memory_order_acquire);
    do {
        if (find_from(head, op->name))
            return err_set(e, KL_ERR_ARGUMENT, "an op of the name \"%s\" is registered already", op->name);
        op->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&first, &head, op, memory_order_acq_rel, memory_order_acquire));
    return true;
}

bool custom_register(const char *name, const kl_custom_op *functions, void *ctx, struct err *e)
{
    struct custom_op *op = mem_alloc(sizeof *op);
    if (!op)
        return err_set(e, KL_ERR_MEMORY, "out of memory");
    snprintf(op->name, sizeof op->name, "%s", name);
    op->functions = *functions;
    op->ctx = ctx;
    if (custom_add(op, e))
        return true;
    mem_free(op);
    return false;
}

/* ---- calling the functions ---- */

kl_type custom_type(unsigned dtype, const struct shape *s)
{
    kl_type t = {.dtype = (kl_dtype)dtype, .rank = (int)s->rank};
    for (uint32_t i = 0; i < s->rank; i++)
        t.dims[i] = s->dim[i];
    return t;
}

/* Is it a length of an operand?  Symbolic lengths of results have to be. */
static bool is_operand_length(const kl_custom_call *call, int64_t dim)
{
    bool found = false;
    for (uint32_t i = 0; i < call->nin; i++)
        for (int k = 0; k < call->in_type[i].rank; k++)
            found |= call->in_type[i].dims[k] == dim;
    return found;
}

/* With `call`, lengths may be symbolic ones of its operands. */
static bool is_type(const kl_type *t, const kl_custom_call *call, struct shape *s)
{
    int64_t n;
    *s = (struct shape){0};
    if ((unsigned)t->dtype >= KL_DTYPE_COUNT || t->rank < 0 || t->rank > KL_MAX_RANK)
        return false;
    *s = shape_make((uint32_t)t->rank, t->dims);
    struct shape numbers = *s; /* graph_shape and the verifier check the product of symbolic lengths */
    for (uint32_t i = 0; i < s->rank; i++)
        if (s->dim[i] < 0 && is_operand_length(call, s->dim[i]))
            numbers.dim[i] = 1;
    return shape_numel(&numbers, &n);
}

char *custom_label(const char *name, char *text)
{
    bool own = !strcmp(name, INSPECT_PRINT) || !strcmp(name, INSPECT_ASSERT);
    snprintf(text, CUSTOM_LABEL, own ? "%s" : "custom \"%s\"", own ? strchr(name, '.') + 1 : name);
    return text;
}

/* Makes an error of a failed function of the op. */
static bool custom_set_error(const char *name, kl_status status, const char *message, struct err *e)
{
    if ((unsigned)status > KL_ERR_CANCELLED)
        status = KL_ERR_INTERNAL;
    char label[CUSTOM_LABEL];
    return err_set(e, status, "%s: %s", custom_label(name, label), *message ? message : status_name(status));
}

static bool any_symbolic(const kl_custom_call *call)
{
    bool any = false;
    for (uint32_t i = 0; i < call->nin; i++)
        for (int k = 0; k < call->in_type[i].rank; k++)
            any |= call->in_type[i].dims[k] < 0;
    return any;
}

bool custom_types(const struct custom_op *op, kl_custom_call *call, kl_type *out, struct err *e)
{
    char message[CUSTOM_MESSAGE] = "";
    call->message = message;
    call->message_bytes = sizeof message;
    memset(out, 0, call->nout * sizeof *out);
    kl_status status = op->functions.types(op->ctx, call, out);
    message[sizeof message - 1] = 0;
    if (status)
        return custom_set_error(op->name, status, message, e);
    for (uint32_t i = 0; i < call->nout; i++) {
        struct shape s;
        if (!is_type(&out[i], call, &s))
            return err_set(e, KL_ERR_SHAPE, "custom \"%s\": the type that it says of result %u is none%s", op->name, i,
                           any_symbolic(call) ? "; a symbolic length of a result must be one of an operand" : "");
    }
    return true;
}

static const struct custom_op *custom_find_op(const struct custom *c, struct err *e)
{
    const struct custom_op *op = custom_find(c->name);
    if (!op) {
        err_set(e, KL_ERR_ARGUMENT, "custom \"%s\": no op of this name is registered", c->name);
        e->call = c->call + 1;
    }
    return op;
}

/* Writes the types of operands, then of results, to `type`: those that the graph has. */
static void node_types(const struct graph *g, const struct node *n, kl_type *type)
{
    const struct custom *c = node_custom(g, n);
    for (uint32_t i = 0; i < node_nin(n); i++)
        *type++ = custom_type(node_at(g, node_in(g, n, i))->dtype, node_shape(g, node_in(g, n, i)));
    for (uint32_t i = 0; i < c->nresult; i++)
        *type++ = custom_type(c->result[i].dtype, &g->shape[c->result[i].shape]);
}

size_t custom_work_bytes(const struct graph *g, const struct node *n)
{
    return (node_nin(n) + (size_t)node_custom(g, n)->nresult) * sizeof(kl_type);
}

enum { ON_HOST = -1 };

static void types_for_values(kl_type *type, uint32_t n, const struct size_values *sizes)
{
    for (uint32_t i = 0; i < n; i++)
        for (int k = 0; k < type[i].rank; k++)
            type[i].dims[k] = size_at(sizes->s, type[i].dims[k], sizes->slot);
}

/* device: ON_HOST, or the device whose addresses these are. */
static bool call_op(const struct graph *g, const struct node *n, int device, const struct size_values *sizes,
                    const void *const *in, void *const *out, void *work, struct err *e)
{
    const struct custom *c = node_custom(g, n);
    const struct custom_op *op = custom_find_op(c, e);
    if (!op)
        return false;
    char message[CUSTOM_MESSAGE] = "";
    node_types(g, n, work);
    if (sizes)
        types_for_values(work, node_nin(n) + c->nresult, sizes);
    kl_custom_call call = {.nin = node_nin(n), .nout = c->nresult, .in_type = work,
                           .out_type = (kl_type *)work + node_nin(n),
                           .attr = c->attr, .attr_bytes = c->nattr, .in = in, .out = out,
                           .message = message, .message_bytes = sizeof message};
    kl_status status = device == ON_HOST ? op->functions.run(op->ctx, &call) : op->run_at(op->ctx, &call, device);
    message[sizeof message - 1] = 0;
    if (!status)
        return true;
    custom_set_error(op->name, status, message, e);
    e->call = c->call + 1;
    return false;
}

bool custom_run(const struct graph *g, const struct node *n, const struct size_values *sizes, const void *const *in,
                void *const *out, void *work, struct err *e)
{
    return call_op(g, n, ON_HOST, sizes, in, out, work, e);
}

bool custom_takes(const struct graph *g, const struct node *n, int device)
{
    const struct custom_op *op = custom_find(node_custom(g, n)->name);
    return op && op->takes && op->takes(op->ctx, device);
}

bool custom_run_at(const struct graph *g, const struct node *n, int device, const struct size_values *sizes,
                   const void *const *in, void *const *out, void *work, struct err *e)
{
    return call_op(g, n, device, sizes, in, out, work, e);
}

/* ---- all custom ops of a graph ---- */

/* Checks that the op still gives the result types that the node records. */
static bool check_node(const struct graph *g, const struct node *n, struct err *e)
{
    const struct custom *c = node_custom(g, n);
    const struct custom_op *op = custom_find_op(c, e);
    if (!op)
        return false;
    uint32_t nin = node_nin(n);
    kl_type *type = mem_alloc(custom_work_bytes(g, n)), *said = mem_alloc(c->nresult * sizeof *said);
    bool ok = type && said;
    kl_custom_call call = {.nin = nin, .nout = c->nresult, .in_type = type, .attr = c->attr, .attr_bytes = c->nattr};
    if (!ok)
        err_set(e, KL_ERR_MEMORY, "custom \"%s\": out of memory", c->name);
    if (ok) {
        node_types(g, n, type);
        ok = custom_types(op, &call, said, e);
    }
    for (uint32_t i = 0; ok && i < c->nresult; i++) {
        struct shape s;
        char a[SHAPE_TEXT], b[SHAPE_TEXT];
        const struct shape *own = &g->shape[c->result[i].shape];
        is_type(&said[i], &call, &s);
        ok = (c->result[i].dtype == (unsigned)said[i].dtype && shape_equal(own, &s)) ||
             err_set(e, KL_ERR_TYPE, "custom \"%s\": result %u is %s%s, and %s%s in the graph", c->name, i,
                     dtype_name((unsigned)said[i].dtype), shape_text_in(g, &s, a, sizeof a),
                     dtype_name(c->result[i].dtype), shape_text_in(g, own, b, sizeof b));
    }
    if (!ok)
        e->call = c->call + 1;
    mem_free(type);
    mem_free(said);
    return ok;
}

bool custom_check(const struct graph *g, struct err *e)
{
    for (ref r = 1; g->ncustom && r < g->nnode; r++)
        if (g->node[r].op == OP_custom && !check_node(g, &g->node[r], e))
            return false;
    for (uint32_t i = 0; i < g->nregion; i++)
        if (!custom_check(g->region[i], e))
            return false;
    return true;
}

bool custom_is_async(const struct graph *g, const struct node *n)
{
    const struct custom_op *op = n->op == OP_custom ? custom_find(node_custom(g, n)->name) : NULL;
    return op && op->async;
}

bool custom_any(const struct graph *g)
{
    bool any = g->ncustom > 0;
    for (uint32_t i = 0; i < g->nregion && !any; i++)
        any = custom_any(g->region[i]);
    return any;
}

uint32_t custom_number(struct graph *g, uint32_t from)
{
    for (uint32_t i = 0; i < g->ncustom; i++)
        g->custom[i].call = from++;
    for (uint32_t i = 0; i < g->nregion; i++)
        from = custom_number(g->region[i], from);
    return from;
}

/* The call site of custom op number *left of g and its regions, in the order of custom_number; NULL: there are
 * fewer. */
static const kl_site *find_site(const struct graph *g, uint32_t *left)
{
    for (ref r = 1; r < g->nnode && *left < g->ncustom; r++)
        if (g->node[r].op == OP_custom && g->node[r].attr.region.length == *left)
            return &g->site[g->node[r].site];
    *left -= g->ncustom;
    for (uint32_t i = 0; i < g->nregion; i++) {
        const kl_site *s = find_site(g->region[i], left);
        if (s)
            return s;
    }
    return NULL;
}

void custom_locate(const struct graph *recorded, struct err *e)
{
    uint32_t left = e->call - 1;
    const kl_site *s = e->call ? find_site(recorded, &left) : NULL;
    size_t n = strlen(e->msg);
    if (s)
        site_text(s, " (recorded at ", ")", e->msg + n, sizeof e->msg - n);
}
