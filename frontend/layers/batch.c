/* Records a graph with batched inputs: the loop over its nodes, and the rules of all ops except those in batch_index.c
 * and batch_region.c.  An op's batching class (ops.def) selects the rule.  AXIS ops become the same op with its axes
 * shifted by one; RULE ops have a rule here, or are recorded for each element of the batch.
 *
 * The gradient of a batched loss with respect to a batched value is that of the sum, because element i of the loss
 * depends only on element i of the value.  With respect to a value w that is not batched, each element has its own
 * gradient.  So the nodes between w and the loss are recorded a second time, with w expanded over the batch. */
#include "batch.h"
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

/* The second recording for gradients: h and batched by node, up to `upto`. */
struct per_element {
    kl_tensor *h;
    bool *batched;
    bool *again;              /* depends on an expanded variable */
    bool *variable;           /* its gradient is requested */
    ref upto;
};

/* ---- shared by the rules ---- */

static const kl_site *batch_site(const struct batch *b, ref r)
{
    const struct node *n = node_at(b->g, r);
    return n->site ? &b->g->site[n->site] : b->site;
}

struct shape batch_shape(const struct batch *b, const struct shape *s)
{
    struct shape out = {.rank = s->rank + 1, .dim = {b->size}};
    memcpy(out.dim + 1, s->dim, s->rank * sizeof *s->dim);
    return out;
}

kl_tensor batch_spread(const struct batch *b, kl_tensor h, bool batched, const struct shape *s)
{
    struct shape all = batch_shape(b, s);
    return batched ? h : broadcast_to("vmap", h, s, &all);
}

kl_tensor batch_move_axis(kl_tensor h, uint32_t rank, uint32_t from, uint32_t to)
{
    int axes[KL_MAX_RANK] = {0};
    if (from == to)
        return h;
    for (uint32_t i = 0, old = 0; i < rank; i++) {
        if (i == to) {
            axes[i] = (int)from;
            continue;
        }
        old += old == from;
        axes[i] = (int)old++;
    }
    return kl_permute(h, axes);
}

kl_tensor batch_pick(const struct batch *b, kl_tensor h, const struct shape *s, int64_t i)
{
    (void)b;
    return reshape_to("vmap", kl_narrow(h, 0, i, 1), s);
}

void batch_warn(unsigned op)
{
    static atomic_bool said[OP_COUNT];
    if (!atomic_exchange_explicit(&said[op], true, memory_order_relaxed))
        log_put(KL_LOG_WARN,
                "vmap: Batching rule not implemented for %s falling back to slow (for loop and stack) implementation",
                opinfo[op].name);
}

/* ---- one node ---- */

static bool keeps_dtype(unsigned op)
{
    return op == OP_cast || op == OP_bitcast || op == OP_const || op == OP_iota || op == OP_random ||
        op == OP_argsort ||
           op == OP_quantize;
}
static bool keeps_shape(unsigned op) { return op == OP_reshape || op == OP_expand || op == OP_iota || op == OP_random; }

/* Fills *c with the node's call, except for operands and rare fields.  It runs for every node. */
static inline void call_like(struct call *c, const struct batch *b, ref r)
{
    const struct node *n = node_at(b->g, r);
    c->op = opinfo[n->op].name;
    c->device = device_like(n->device, b->on);
    c->data = NULL;
    c->bits = c->keys = c->marks = 0;
    c->symbolic = NULL;
    c->failed = c->has_target = false;
    c->proto = (struct node){.op = n->op, .flags = n->flags & MARK_STOP, .attr = n->attr};
}

/* The call on other operands, with a result of this shape if the caller chooses it; otherwise there is no target. */
static void call_of(struct call *c, const struct batch *b, ref r, const kl_tensor in[MAX_OPERANDS],
                    const struct shape *s)
{
    const struct node *n = node_at(b->g, r);
    call_like(c, b, r);
    c->proto.dtype = keeps_dtype(n->op) ? n->dtype : 0;
    c->proto.nin = op_varies(n->op) ? n->nin : 0;
    memcpy(c->in, in, sizeof c->in);
    if ((c->has_target = keeps_shape(n->op)))
        c->target = *s;
}

/* Casts wide operands to the dtype of one that is not wide, if that has become a half. */
static void narrow_wide(const struct batch *b, ref r, struct call *c)
{
    const struct node *n = node_at(b->g, r);
    unsigned dtype = KL_DTYPE_COUNT;
    for (unsigned i = 0; i < n->nin; i++) {
        const struct entry *x = entry_peek(c->in[i]);
        dtype = x && !b->wide[n->in[i]] && dtype_is_half(x->dtype) ? x->dtype : dtype;
    }
    for (unsigned i = 0; i < n->nin && dtype != KL_DTYPE_COUNT; i++)
        if (b->wide[n->in[i]])
            c->in[i] = kl_cast(c->in[i], (kl_dtype)dtype);
}

static kl_tensor batch_plain(const struct batch *b, ref r, const kl_tensor *in)
{
    struct call c;
    call_of(&c, b, r, in, node_shape(b->g, r));
    if (b->wide)
        narrow_wide(b, r, &c);
    return record(&c);
}

/* Records the op for each element, then stacks the results. */
static kl_tensor one_by_one(struct batch *b, ref r, const kl_tensor *in, const bool *batched)
{
    const struct node *n = node_at(b->g, r);
    if (b->size < 0)
        return refuse(b->t, KL_ERR_SHAPE, "vmap: %s is recorded for each element, and the batch has a symbolic "
                      "length", opinfo[n->op].name);
    kl_tensor *part = mem_alloc((size_t)b->size * sizeof *part);
    if (!part)
        return refuse(b->t, KL_ERR_MEMORY, "vmap: out of memory");
    batch_warn(n->op);
    for (int64_t i = 0; i < b->size; i++) {
        kl_tensor own[MAX_OPERANDS] = {{0}};
        for (unsigned k = 0; k < n->nin; k++)
            own[k] = batched[k] ? batch_pick(b, in[k], node_shape(b->g, n->in[k]), i) : in[k];
        part[i] = batch_plain(b, r, own);
    }
    kl_tensor h = kl_stack((int)b->size, part, 0);
    mem_free(part);
    return h;
}

/* Shifts a list of axes by one, with axis 0 added first if requested. */
static uint32_t shift_axes(uint32_t list, unsigned n, bool first)
{
    uint32_t out = 0;
    for (unsigned i = 0; i < n; i++)
        out = axis_put(out, i + first, axis_get(list, i) + 1);
    return out;
}

/* Two batched operands: one more batch axis.  One: the batch is a free axis of its operand; in the result it comes
 * after the batch axes and, if it is the second operand's, after the first one's free axes. */
static kl_tensor batch_dot(struct batch *b, ref r, const kl_tensor *in, const bool *batched)
{
    const struct node *n = node_at(b->g, r);
    struct call c;
    call_of(&c, b, r, in, NULL);
    bool both = batched[0] && batched[1];
    unsigned nbatch = n->attr.dot.nbatch, ncon = n->attr.dot.ncon;
    if (batched[0]) {
        c.proto.attr.dot.batch_a = shift_axes(n->attr.dot.batch_a, nbatch, both);
        c.proto.attr.dot.con_a = shift_axes(n->attr.dot.con_a, ncon, false);
    }
    if (batched[1]) {
        c.proto.attr.dot.batch_b = shift_axes(n->attr.dot.batch_b, nbatch, both);
        c.proto.attr.dot.con_b = shift_axes(n->attr.dot.con_b, ncon, false);
    }
    c.proto.attr.dot.nbatch = (uint8_t)(nbatch + both);
    kl_tensor y = record(&c);
    uint32_t at = both ? 0 : batched[0] ? nbatch : node_shape(b->g, n->in[0])->rank - ncon;
    return batch_move_axis(y, node_shape(b->g, r)->rank + 1, at, 0);
}

/* Shifts the axes in an op's attributes by one. */
static void shift_attributes(struct node *n, uint32_t rank)
{
    for (const struct attr_info *i = opinfo[n->op].attr; i && i->word; i++) {
        if (i->kind == ATTR_AXIS)
            attr_set(&n->attr, i->at, i->size, attr_get(&n->attr, i->at, i->size) + 1);
        else if (i->kind == ATTR_AXES)
            attr_set(&n->attr, i->at, i->size, attr_get(&n->attr, i->at, i->size) << 1);
        else if (i->kind == ATTR_PERM) {
            uint8_t *perm = (uint8_t *)&n->attr + i->at;
            memmove(perm + 1, perm, rank);
            perm[0] = 0;
            for (uint32_t k = 1; k <= rank; k++)
                perm[k]++;
        }
    }
}

/* The same op with one more leading axis on all operands. */
static kl_tensor by_axis(struct batch *b, ref r, const kl_tensor *in, const bool *batched)
{
    const struct node *n = node_at(b->g, r);
    struct shape all = batch_shape(b, node_shape(b->g, r));
    struct call c;
    call_of(&c, b, r, in, &all);
    bool spreads = !op_is_masked(n->op);
    for (unsigned i = 0; i < n->nin && spreads; i++)
        c.in[i] = batch_spread(b, in[i], batched[i], node_shape(b->g, n->in[i]));
    shift_attributes(&c.proto, node_shape(b->g, n->in[0])->rank);
    return record(&c);
}

static bool has_room(const struct batch *b, ref r) { return node_shape(b->g, r)->rank < KL_MAX_RANK; }

static kl_tensor no_room(const struct batch *b, ref r)
{
    char text[SHAPE_TEXT];
    return refuse(b->t, KL_ERR_SHAPE, "vmap: %s gives %s, which has no room for the batch's axis",
                  opinfo[node_at(b->g, r)->op].name, shape_text(node_shape(b->g, r), text, sizeof text));
}

/* Elementwise nodes, the most frequent ones: operands are broadcast, batched or not.  The call is filled in here
 * without copies. */
static void batch_elementwise(struct batch *b, ref r)
{
    const struct node *n = node_at(b->g, r);
    struct call c;
    bool any = false;
    call_like(&c, b, r);
    for (unsigned i = 0; i < n->nin; i++) {
        c.in[i] = b->h[n->in[i]];
        any |= b->batched[n->in[i]];
    }
    if (!any && b->wide)
        narrow_wide(b, r, &c);
    b->batched[r] = any;
    b->h[r] = any && !has_room(b, r) ? no_room(b, r) : record(&c);
}

struct node_use { struct batch *b; ref r; };

static kl_status record_plain(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct node_use *use = ctx;
    kl_tensor all[MAX_OPERANDS] = {{0}}; /* plain reads that many */
    (void)nout;
    memcpy(all, in, (nin < MAX_OPERANDS ? nin : MAX_OPERANDS) * sizeof *all);
    out[0] = batch_plain(use->b, use->r, all);
    return KL_OK;
}

/* Random bits with a seed for each element of the batch. */
static kl_tensor random_bits(struct batch *b, ref r, kl_tensor seeds)
{
    struct node_use use = {b, r};
    kl_tensor y = kl_none;
    kl_scan(record_plain, &use, b->size, 0, NULL, 1, &seeds, 1, false, &y);
    return y;
}

static kl_tensor batch_rule(struct batch *b, ref r, const kl_tensor *in, const bool *batched)
{
    const struct node *n = node_at(b->g, r);
    if (!has_room(b, r))
        return no_room(b, r);
    if (op_is_product(n->op))
        return batch_dot(b, r, in, batched);
    if (op_is_masked(n->op) && batched[1])
        return one_by_one(b, r, in, batched);
    switch (n->op) {
    case OP_random: return random_bits(b, r, in[0]);
    case OP_dynamic_slice: case OP_dynamic_update: case OP_gather: case OP_scatter:
        return batch_indexed(b, r, in, batched);
    case OP_reshape: case OP_argsort: return by_axis(b, r, in, batched);
    default:
        return strcmp(opinfo[n->op].batching, "AXIS") ? one_by_one(b, r, in, batched) : by_axis(b, r, in, batched);
    }
}

static kl_tensor batch_grad(struct batch *b, ref r, bool *batched);

/* Records node r, whose operands are recorded. */
static void batch_node(struct batch *b, ref r)
{
    const struct node *n = node_at(b->g, r);
    kl_tensor in[MAX_OPERANDS] = {{0}};
    bool of[MAX_OPERANDS], any = false;
    if (op_is_elementwise(n->op)) {
        batch_elementwise(b, r);
        return;
    }
    if (op_is_region(n->op)) {
        batch_region(b, r);
        return;
    }
    for (unsigned i = 0; i < n->nin; i++) {
        in[i] = b->h[n->in[i]];
        any |= of[i] = b->batched[n->in[i]];
    }
    b->batched[r] = any;
    if (n->op == OP_grad) {
        b->h[r] = batch_grad(b, r, &b->batched[r]);
    } else if (n->op == OP_random && b->different && b->size && !any) {
        struct shape all = batch_shape(b, node_shape(b->g, r));
        struct call c;
        call_of(&c, b, r, in, &all);
        b->batched[r] = true;
        b->h[r] = record(&c);
    } else {
        b->h[r] = any ? batch_rule(b, r, in, of) : batch_plain(b, r, in);
    }
}

/* ---- gradients ---- */

/* Outside of traces only marked tensors have a history.  A view of the user's tensor is marked, so that the tensor
 * itself is not. */
static void mark_variable(struct batch *b, ref r, kl_tensor *h)
{
    const struct node *n = node_at(b->g, r);
    struct view v;
    if (b->t->tracing || !dtype_is_float(n->dtype) || !describe(b->t, "grad", "the variable", *h, &v))
        return;
    *h = reshape_to("grad", *h, &v.shape);
    kl_requires_grad(*h);
}

/* Records all nodes from the unbatched variables up to node `last` a second time, with the variables expanded over the
 * batch. */
static void record_per_element(struct batch *b, ref last)
{
    struct per_element *e = b->each;
    const kl_site *outer = b->t->site;
    struct batch again = *b;
    again.h = e->h;
    again.batched = e->batched;
    for (ref r = e->upto + 1; r <= last; r++) {
        const struct node *n = node_at(b->g, r);
        bool depends = false;
        b->t->site = batch_site(b, r);
        for (unsigned i = 0; i < node_nin(n) && b->live[r]; i++)
            depends |= e->again[node_in(b->g, n, i)];
        if (!depends) {
            e->h[r] = b->h[r];
            e->batched[r] = b->batched[r];
        } else if (n->op != OP_proj) { /* set by its region op */
            batch_node(&again, r);
        }
        if (b->live[r] && e->variable[r] && !e->batched[r]) {
            e->h[r] = batch_spread(b, e->h[r], false, node_shape(b->g, r));
            e->batched[r] = depends = true;
            mark_variable(b, r, &e->h[r]);
        }
        e->again[r] = depends;
    }
    b->t->site = outer;
    e->upto = e->upto < last ? last : e->upto;
}

static kl_tensor batch_grad(struct batch *b, ref r, bool *batched)
{
    const struct node *n = node_at(b->g, r);
    ref loss = n->in[0], variable = n->in[1];
    struct per_element *e = b->each;
    *batched = b->batched[loss] || b->batched[variable];
    if (!b->batched[loss] || b->batched[variable])
        return grad_or_zeros(b->h[loss], b->h[variable]);
    record_per_element(b, loss > variable ? loss : variable);
    return grad_or_zeros(e->h[loss], e->h[variable]);
}

/* ---- the loop over the nodes ---- */

static void mark_live(struct batch *b)
{
    const struct graph *g = b->g;
    for (uint32_t i = 0; i < g->nout; i++)
        b->live[g->out[i].value] = true;
    for (ref r = g->nnode - 1; r > 0; r--) {
        const struct node *n = node_at(g, r);
        for (unsigned i = 0; b->live[r] && i < node_nin(n); i++)
            b->live[node_in(g, n, i)] = true;
        if (b->live[r] && n->op == OP_grad && b->each)
            b->each->variable[n->in[1]] = true;
    }
}

static void batch_map_nodes(struct batch *b, const kl_tensor *in, const bool *batched)
{
    for (ref r = 1; r < b->g->nnode; r++) {
        const struct node *n = node_at(b->g, r);
        b->t->site = batch_site(b, r);
        if (n->op == OP_input) {
            b->h[r] = in[n->attr.leaf.index];
            b->batched[r] = batched[n->attr.leaf.index];
        } else if (b->live[r] && n->op != OP_proj) {
            batch_node(b, r);
        }
        if (b->live[r] && b->each->variable[r])
            mark_variable(b, r, &b->h[r]);
    }
    b->t->site = b->site;
}

bool batch_graph(struct batch *b, const struct graph *g, const kl_tensor *in, const bool *batched, kl_tensor *out,
                 bool *out_batched)
{
    uint32_t n = g->nnode;
    struct per_element each = {0};
    kl_tensor *h = mem_alloc(2 * (size_t)n * sizeof *h);
    bool *flag = mem_alloc(5 * (size_t)n);
    bool ok = h && flag;
    const struct entry *first = g->input.n ? entry_peek(in[0]) : NULL;
    if (first)
        b->on = entry_device(first);
    if (ok) {
        b->g = g;
        b->h = h;
        b->batched = flag;
        b->live = flag + n;
        each = (struct per_element){h + n, flag + 2 * (size_t)n, flag + 3 * (size_t)n, flag + 4 * (size_t)n, NIL};
        b->each = &each;
        mark_live(b);
        b->site = b->t->site;
        batch_map_nodes(b, in, batched);
    }
    for (uint32_t i = 0; i < g->nout; i++) {
        ref r = g->out[i].value;
        out[i] = ok ? b->h[r] : kl_none;
        out_batched[i] = ok && b->batched[r];
        struct view v;
        if (ok && node_at(g, r)->op == OP_input && describe(b->t, "vmap", "the result", out[i], &v))
            out[i] = reshape_to("vmap", out[i], &v.shape); /* a result is a new handle */
    }
    mem_free(h);
    mem_free(flag);
    return ok;
}
