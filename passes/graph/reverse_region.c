/* Gradients of region ops.  The gradient of a region is a region.  Its parameters are those of the region and the
 * gradients of its yields; it recomputes the values it needs, and yields the gradients of the parameters.
 *
 *   cond         a cond of the branches' gradients
 *   scan         a scan in the other direction; the first scan stacks the carried values that it needs
 *   checkpoint   a checkpoint, marked so that its recomputed values are not merged with the first ones
 *   custom_grad  the nodes of its second region
 *   custom       none but that of the custom_grad around it
 *   while        none: the number of iterations, and so the size of what must be kept, is not known */
#include "reverse.h"
#include "passes/passes.h"
#include <string.h>

static ref zeros_of_shape(struct graph *g, unsigned dtype, const struct shape *s, uint16_t device)
{
    g->cur_device = device;
    return n_broadcast(g, n_const(g, dtype, 0), s);
}

static void reverse_region_no_memory(struct graph *g)
{
    err_set(&g->err, KL_ERR_MEMORY, "out of memory differentiating @%s", g->name);
}

/* State of a region op's gradient: which operands get a gradient, which results have one, and lists for the node being
 * built. */
struct back {
    struct mem_arena mem;
    struct reverse *v;
    struct graph *t;
    ref r;
    struct node n;          /* a copy: building reallocates the array */
    uint32_t nin, nout;
    const ref *dy;          /* per result; NIL: none */
    bool *wanted;           /* per operand */
    bool *given;            /* per result: it has a gradient */
    ref *in; uint32_t count; /* operands of the node being built */
    ref *result;
};

static ref reverse_region_operand(const struct back *b, uint32_t i)
{
    return b->t->operand[b->n.attr.region.operands + i];
}

static bool back_begin(struct back *b, struct reverse *v, ref r, const ref *dy)
{
    struct graph *t = v->t;
    *b = (struct back){.v = v, .t = t, .r = r, .n = t->node[r], .dy = dy};
    b->nin = node_nin(&b->n);
    b->nout = region_results(t, &b->n);
    size_t max = 3 * (size_t)b->nin + 2 * (size_t)b->nout + 1; /* scan's backward pass has the most operands */
    b->wanted = mem_arena_alloc(&b->mem, b->nin * sizeof *b->wanted);
    b->given = mem_arena_alloc(&b->mem, b->nout * sizeof *b->given);
    b->in = mem_arena_alloc(&b->mem, max * sizeof *b->in);
    b->result = mem_arena_alloc(&b->mem, max * sizeof *b->result);
    if (b->mem.failed) {
        reverse_region_no_memory(t);
        return false;
    }
    for (uint32_t i = 0; i < b->nin; i++)
        b->wanted[i] = v->needed[reverse_region_operand(b, i)] &&
            dtype_is_float(t->node[reverse_region_operand(b, i)].dtype);
    for (uint32_t i = 0; i < b->nout; i++)
        b->given[i] = dy[i] != NIL;
    return true;
}

static void back_end(struct back *b) { mem_arena_free(&b->mem); }

static void reverse_region_push(struct back *b, ref r) { b->in[b->count++] = r; }

static void push_given(struct back *b, uint32_t from)
{
    for (uint32_t i = from; i < b->nout; i++)
        if (b->given[i])
            reverse_region_push(b, b->dy[i]);
}

/* The sum of the gradients of the nodes that read parameter i. */
static ref parameter_gradient(struct reverse *v, uint32_t i, uint16_t device)
{
    struct graph *g = v->t;
    ref sum = NIL;
    for (ref r = 1; r < v->n; r++)
        if (g->node[r].op == OP_input && g->node[r].attr.leaf.index == i && v->adjoint[r])
            sum = sum ? n_add(g, sum, v->adjoint[r]) : v->adjoint[r];
    const struct leaf l = g->input.v[i];
    struct shape s = g->shape[l.shape];
    return sum ? sum : zeros_of_shape(g, l.dtype, &s, device);
}

/* g is a copy of a region without outputs: runs the sweep from its yields. */
static void differentiate_region(struct graph *g, const struct graph *region, uint64_t gpus, const bool *wanted,
                                 const bool *given)
{
    struct reverse v = {.gpus = gpus};
    uint32_t parameters = g->input.n;
    uint16_t device = g->cur_device; /* the op's device, which is that of its operands and results */
    if (!reverse_begin(&v, g)) {
        reverse_region_no_memory(g);
        reverse_end(&v);
        return;
    }
    for (ref r = 1; r < v.n; r++)
        if (g->node[r].op == OP_input && wanted[g->node[r].attr.leaf.index])
            reverse_want(&v, r);
    for (uint32_t i = 0; i < region->nout; i++)
        if (given[i])
            reverse_root(&v, region->out[i].value);
    reverse_mark(&v);
    for (uint32_t i = 0; i < region->nout; i++) {
        ref y = region->out[i].value;
        struct shape s = *node_shape(g, y);
        if (given[i])
            reverse_add(&v, y, n_input(g, g->node[y].dtype, &s, ""));
    }
    reverse_sweep(&v);
    for (uint32_t i = 0; i < parameters; i++)
        if (wanted[i])
            graph_output(g, OUT_RETURN, parameter_gradient(&v, i, device), 0);
    reverse_end(&v);
}

/* The gradient of region `which`: takes the parameters, then the gradients of the given yields. */
static struct graph *region_gradient(struct back *b, uint32_t which, const bool *wanted, const bool *given)
{
    const struct graph *region = node_region(b->t, &b->n, which);
    struct graph *g = graph_clone_part(region);
    if (!g) {
        reverse_region_no_memory(b->t);
        return NULL;
    }
    g->nout = 0;
    g->cur_device = b->n.device;
    g->cur_site = 0;
    differentiate_region(g, region, b->v->gpus, wanted, given);
    if (!g->err.code)
        pass_dce(g, NULL);
    if (!g->err.code)
        return g;
    err_set(&b->t->err, g->err.code, "%s", g->err.msg);
    graph_free(g);
    return NULL;
}

static ref reverse_region_build(struct back *b, unsigned op, union attr attr, struct graph *const *region)
{
    struct node n = {.op = (uint16_t)op, .attr = attr};
    return graph_add_region(b->t, &n, b->in, b->count, region);
}

/* Results from number k on are the gradients of the wanted operands from `first` up to `end`: adds them. */
static uint32_t add_region_gradients(struct back *b, ref node, uint32_t k, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; node && i < end; i++)
        if (b->wanted[i])
            reverse_add(b->v, reverse_region_operand(b, i), n_proj(b->t, node, k++));
    return k;
}

/* ---- cond, checkpoint ---- */

static void cond_back(struct back *b)
{
    struct graph *region[2];
    for (uint32_t i = 0; i < 2; i++)
        region[i] = region_gradient(b, i, b->wanted + 1, b->given);
    if (!region[0] || !region[1]) {
        graph_free(region[0]);
        graph_free(region[1]);
        return;
    }
    for (uint32_t i = 0; i < b->nin; i++)
        reverse_region_push(b, reverse_region_operand(b, i));
    push_given(b, 0);
    add_region_gradients(b, reverse_region_build(b, OP_cond, (union attr){0}, region), 0, 1, b->nin);
}

static void checkpoint_back(struct back *b)
{
    struct graph *region = region_gradient(b, 0, b->wanted, b->given);
    union attr attr = {0};
    attr.region.flags = REGION_REMAT;
    if (!region)
        return;
    for (uint32_t i = 0; i < b->nin; i++)
        reverse_region_push(b, reverse_region_operand(b, i));
    push_given(b, 0);
    add_region_gradients(b, reverse_region_build(b, OP_checkpoint, attr, &region), 0, 0, b->nin);
}

/* ---- custom_grad ---- */

static void custom_back(struct back *b)
{
    struct graph *t = b->t;
    uint32_t own = b->n.attr.region.carried, k = 0;
    for (uint32_t i = 0; i < own; i++)
        reverse_region_push(b, reverse_region_operand(b, i));
    for (uint32_t i = 0; i < b->nout; i++)
        reverse_region_push(b, n_proj(t, b->r, i));
    for (uint32_t i = 0; i < b->nout; i++) {
        struct shape s;
        unsigned dtype = region_result(t, &b->n, i, &s);
        if (dtype_is_float(dtype))
            reverse_region_push(b, b->dy[i] ? b->dy[i] : zeros_of_shape(t, dtype, &s, b->n.device));
    }
    for (uint32_t i = own; i < b->nin; i++)
        reverse_region_push(b, reverse_region_operand(b, i));
    if (!graph_splice(t, node_region(t, &b->n, 1), b->in, 0, b->result))
        return;
    for (uint32_t i = 0; i < own; i++)
        if (dtype_is_float(t->node[reverse_region_operand(b, i)].dtype)) {
            if (b->wanted[i])
                reverse_add(b->v, reverse_region_operand(b, i), b->result[k]);
            k++;
        }
}

/* ---- scan ---- */

/* A node of g that reads input i; NIL: none does. */
static ref input_node(const struct graph *g, uint32_t i)
{
    for (ref r = 1; r < g->nnode; r++)
        if (g->node[r].op == OP_input && g->node[r].attr.leaf.index == i)
            return r;
    return NIL;
}

/* The carried values i of all iterations: a result of the scan, which is changed to yield them if necessary. */
static ref carried_values(struct back *b, uint32_t i)
{
    struct graph *body = node_region(b->t, &b->n, 0);
    uint32_t k = b->n.attr.region.carried;
    while (k < body->nout && !(node_at(body, body->out[k].value)->op == OP_input &&
                               node_at(body, body->out[k].value)->attr.leaf.index == i))
        k++;
    if (k == body->nout && !graph_output(body, OUT_RETURN, input_node(body, i), 0)) {
        err_set(&b->t->err, body->err.code, "%s", body->err.msg);
        return NIL;
    }
    return n_proj(b->t, b->r, k);
}

static ref new_input(struct graph *g, const struct graph *like, ref r, bool slice)
{
    struct shape s = *node_shape(like, r);
    if (slice)
        s = shape_make(s.rank - 1, s.dim + 1);
    return n_input(g, node_at(like, r)->dtype, &s, "");
}

/* The body of the backward scan, around the gradient of the forward body.  Parameters: carried gradients, carried sums,
 * scanned values, then the other values it reads. */
static struct graph *backward_body(struct back *b, const struct graph *gradient, const bool *used, uint32_t floats,
                                   uint32_t sums)
{
    const struct node *n = &b->n;
    uint32_t carried = n->attr.region.carried, cut = carried + n->attr.region.scanned, extra = b->nin, k = 0;
    struct graph *g = graph_new(node_region(b->t, n, 0)->name);
    ref *in = mem_alloc((b->nin + b->nout) * sizeof *in), *own = mem_alloc(b->count * sizeof *own);
    bool ok = g && in && own;
    if (!ok)
        reverse_region_no_memory(b->t);
    if (ok) {
        symbols_share(g, b->t);
        g->cur_device = n->device; /* errors stay in g, and graph_add_region passes them on */
        for (uint32_t i = 0; i < b->count; i++)
            own[i] = new_input(g, b->t, b->in[i], i >= floats + sums && i < b->count - (b->nin - cut));
        k = floats + sums;
        for (uint32_t i = 0; i < cut; i++) /* carried values and slices that the gradient reads */
            if (used[i])
                in[i] = own[k++];
        for (uint32_t i = 0, f = 0; i < carried; i++)
            if (b->given[i])
                in[extra++] = own[f++];
        for (uint32_t i = carried; i < b->nout; i++)
            if (b->given[i])
                in[extra++] = own[k++];
        for (uint32_t i = cut; i < b->nin; i++)
            in[i] = own[k++];
        ok = graph_splice(g, gradient, in, 0, b->result);
        uint32_t slices = 0, at = 0;
        for (uint32_t i = carried; i < cut; i++)
            slices += b->wanted[i];
        for (; at < floats; at++)
            graph_output(g, OUT_RETURN, b->result[at], 0);
        for (uint32_t i = 0; i < sums; i++)
            graph_output(g, OUT_RETURN, n_add(g, own[floats + i], b->result[floats + slices + i]), 0);
        for (uint32_t i = 0; i < slices; i++)
            graph_output(g, OUT_RETURN, b->result[floats + i], 0);
    }
    mem_free(in);
    mem_free(own);
    return g;
}

/* Operands: gradients of the carried results, sums from 0, carried values and slices that the gradient reads, gradients
 * of the stacked results, the other values it reads. */
static uint32_t push_scan(struct back *b, const bool *used, uint32_t carried, uint32_t cut)
{
    struct graph *t = b->t;
    for (uint32_t i = 0; i < b->nin; i++) {
        struct shape s = *node_shape(t, reverse_region_operand(b, i));
        unsigned dtype = t->node[reverse_region_operand(b, i)].dtype;
        if (i < carried ? b->given[i] : i >= cut && b->wanted[i])
            reverse_region_push(b, i < carried && b->dy[i] ? b->dy[i] : zeros_of_shape(t, dtype, &s, b->n.device));
    }
    uint32_t before = b->count;
    for (uint32_t i = 0; i < cut; i++)
        if (used[i])
            reverse_region_push(b, i < carried ? carried_values(b, i) : reverse_region_operand(b, i));
    push_given(b, carried);
    uint32_t scanned = b->count - before;
    for (uint32_t i = cut; i < b->nin; i++)
        reverse_region_push(b, reverse_region_operand(b, i));
    return scanned;
}

static void scan_with(struct back *b, const struct graph *gradient, bool *used)
{
    const struct node *n = &b->n;
    uint32_t carried = n->attr.region.carried, cut = carried + n->attr.region.scanned, floats = 0, sums = 0;
    for (uint32_t i = 0; i < b->nin; i++) {
        used[i] = input_node(gradient, i) != NIL;
        floats += i < carried && b->given[i];
        sums += i >= cut && b->wanted[i];
    }
    union attr attr = n->attr;
    attr.region.carried = floats + sums;
    attr.region.scanned = push_scan(b, used, carried, cut);
    if (b->t->err.code) /* the carried values of all iterations may be too large */
        return;
    attr.region.flags ^= REGION_REVERSE;
    struct graph *body = backward_body(b, gradient, used, floats, sums);
    ref back = reverse_region_build(b, OP_scan, attr, &body);
    uint32_t k = add_region_gradients(b, back, 0, 0, carried);
    k = add_region_gradients(b, back, k, cut, b->nin);
    add_region_gradients(b, back, k, carried, cut);
}

static void scan_back(struct back *b)
{
    /* Gradients of all floating carried values are carried, whether they are used or not. */
    for (uint32_t i = 0; i < b->n.attr.region.carried; i++)
        b->wanted[i] = b->given[i] = dtype_is_float(b->t->node[reverse_region_operand(b, i)].dtype);
    struct graph *gradient = region_gradient(b, 0, b->wanted, b->given);
    bool *used = mem_alloc(b->nin * sizeof *used);
    if (gradient && used)
        scan_with(b, gradient, used);
    else
        reverse_region_no_memory(b->t);
    graph_free(gradient);
    mem_free(used);
}

/* ---- while ---- */

static void while_back(struct back *b)
{
    const kl_site *s = &b->t->site[b->n.site];
    char at[300] = "";
    if (b->n.site)
        snprintf(at, sizeof at, " (recorded at %.250s:%d)", s->file, s->line);
    err_set(&b->t->err, KL_ERR_GRAD,
            "while: no gradient flows back through a loop of unknown length%s; scan has one", at);
}

void reverse_region(struct reverse *v, ref r, const ref *dy)
{
    struct back b;
    if (back_begin(&b, v, r, dy))
        switch (b.n.op) {
        case OP_cond:        cond_back(&b); break;
        case OP_while:       while_back(&b); break;
        case OP_scan:        scan_back(&b); break;
        case OP_checkpoint:  checkpoint_back(&b); break;
        case OP_custom_grad: custom_back(&b); break;
        case OP_custom:      vjp_custom(v->t, r, NIL, NULL); break;
        }
    back_end(&b);
}
