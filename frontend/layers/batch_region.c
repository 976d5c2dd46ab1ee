/* Batching rules of region ops and custom ops: each region becomes a function that records its graph with a batch.  All
 * carried values and results of a region op are batched as soon as one of its operands is.  A while loop runs until no
 * element's condition is true; an element whose is not keeps its values.  A cond whose condition differs over the batch
 * and a custom op are recorded for each element separately. */
#include "batch.h"

/* One region of an op: its parameters come from the call, its other inputs are known here. */
struct batched_region {
    struct batch *b;
    const struct graph *g;
    kl_tensor *in;            /* by input of the region; parameters: set by the call */
    bool *batched;
    bool all;                 /* results that are not batched become so */
};
struct region_use { struct batched_region part[2]; };

static kl_status run_part(struct batched_region *p, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct batch inner = {.t = p->b->t, .size = p->b->size, .different = p->b->different};
    bool *batched = mem_alloc(nout + 1);
    for (uint32_t i = 0; i < nin; i++)
        p->in[i] = in[i];
    bool ok = batched && batch_graph(&inner, p->g, p->in, p->batched, out, batched);
    for (uint32_t i = 0; i < nout && ok && p->all; i++)
        out[i] = batch_spread(p->b, out[i], batched[i], node_shape(p->g, p->g->out[i].value));
    mem_free(batched);
    return ok ? KL_OK : KL_ERR_MEMORY;
}

static kl_status batch_first_region(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    return run_part(&((struct region_use *)ctx)->part[0], in, nin, out, nout);
}

static kl_status batch_second_region(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    return run_part(&((struct region_use *)ctx)->part[1], in, nin, out, nout);
}

/* State of a region op: operands and destinations of the results. */
struct region_batch {
    struct batch *b;
    ref r;
    const struct node *n;
    kl_tensor *in, *out;      /* changed where they become parameters */
    bool *batched;
    uint32_t nin, nout;
    struct region_use use;
};

static const struct shape *operand_shape(const struct region_batch *a, uint32_t i)
{
    return node_shape(a->b->g, node_in(a->b->g, a->n, i));
}

static void batch_region_spread(struct region_batch *a, uint32_t from, uint32_t count)
{
    for (uint32_t i = from; i < from + count && a->b->size; i++) {
        a->in[i] = batch_spread(a->b, a->in[i], a->batched[i], operand_shape(a, i));
        a->batched[i] = true;
    }
}

/* Region `which`: its first `params` inputs are parameters, batched like the op's operands from number `from` on or,
 * beyond these, batched; its other inputs are the operands from number `rest` on. false: out of memory. */
static bool add_part(struct region_batch *a, uint32_t which, uint32_t params, uint32_t from, uint32_t given,
                     uint32_t rest)
{
    const struct graph *g = node_region(a->b->g, a->n, which);
    struct batched_region *p = &a->use.part[which];
    *p = (struct batched_region){a->b, g, mem_alloc((g->input.n + 1) * sizeof *p->in), mem_alloc(g->input.n + 1),
                       a->b->size != 0};
    for (uint32_t i = 0; p->in && p->batched && i < g->input.n; i++) {
        uint32_t k = i < params ? from + i : rest + i - params;
        bool beyond = i < params && i >= given;
        p->in[i] = beyond ? kl_none : a->in[k];
        p->batched[i] = beyond ? a->b->size != 0 : a->batched[k];
    }
    return p->in && p->batched;
}

static kl_status batch_scan(struct region_batch *a)
{
    uint32_t carried = a->n->attr.region.carried, scanned = a->n->attr.region.scanned;
    bool reverse = a->n->attr.region.flags & REGION_REVERSE, batch = a->b->size != 0;
    batch_region_spread(a, 0, carried);
    for (uint32_t i = carried; i < carried + scanned; i++)
        if (a->batched[i])
            a->in[i] = batch_move_axis(a->in[i], operand_shape(a, i)->rank + 1, 1, 0);
    if (!add_part(a, 0, carried + scanned, 0, carried + scanned, carried + scanned))
        return KL_ERR_MEMORY;
    kl_status status = kl_scan(batch_first_region, &a->use, a->n->attr.region.length, carried, a->in, scanned,
                               a->in + carried,
                               a->nout - carried, reverse, a->out);
    for (uint32_t i = carried; i < a->nout && batch; i++)
        a->out[i] = batch_move_axis(a->out[i], node_shape(a->b->g, a->r + 1 + i)->rank + 1, 1, 0);
    return status;
}

/* Is an element's condition true? */
static kl_status batch_while_condition(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_status status = batch_first_region(ctx, in, nin, out, nout);
    out[0] = kl_any(out[0], 0, NULL, false);
    return status;
}

static kl_status batch_while_body(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_tensor goes_on; /* [batch] */
    kl_status status = batch_first_region(ctx, in, nin, &goes_on, 1);
    if (status == KL_OK)
        status = batch_second_region(ctx, in, nin, out, nout);
    for (int64_t i = 0; i < nout && status == KL_OK; i++) {
        kl_tensor mask = goes_on;
        for (int rank = kl_rank(out[i]); rank > 1; rank--)
            mask = kl_unsqueeze(mask, -1);
        out[i] = kl_where(mask, out[i], in[i]);
    }
    return status;
}

static kl_status batch_while(struct region_batch *a)
{
    uint32_t carried = a->n->attr.region.carried;
    bool batch = a->b->size != 0;
    batch_region_spread(a, 0, carried);
    if (!add_part(a, 0, carried, 0, carried, carried) || !add_part(a, 1, carried, 0, carried, carried))
        return KL_ERR_MEMORY;
    return kl_while(batch ? batch_while_condition : batch_first_region, batch ? batch_while_body : batch_second_region,
                    &a->use, carried, a->in, a->out);
}

/* Records the op with functions for its regions; out[] gets its results. */
static kl_status batch_region_op(struct region_batch *a)
{
    uint32_t carried = a->n->attr.region.carried;
    switch (a->n->op) {
    case OP_cond:
        return !add_part(a, 0, 0, 0, 0, 1) || !add_part(a, 1, 0, 0, 0, 1) ? KL_ERR_MEMORY
               : kl_cond(a->in[0], batch_first_region, batch_second_region, &a->use, 0, NULL, a->nout, a->out);
    case OP_while: return batch_while(a);
    case OP_scan: return batch_scan(a);
    case OP_checkpoint:
        return !add_part(a, 0, a->nin, 0, a->nin, a->nin) ? KL_ERR_MEMORY
               : kl_checkpoint(batch_first_region, &a->use, a->nin, a->in, a->nout, a->out);
    default: { /* custom_grad: the second takes its results and their gradients, too */
        const struct graph *g = node_region(a->b->g, a->n, 1);
        batch_region_spread(a, 0, carried);
        return !add_part(a, 0, carried, 0, carried, carried) ||
                       !add_part(a, 1, g->input.n - (a->nin - carried), 0, carried, carried) ? KL_ERR_MEMORY
               : kl_custom_grad(batch_first_region, batch_second_region, &a->use, carried, a->in, a->nout, a->out);
    }
    }
}

static kl_status batch_custom(struct region_batch *a)
{
    const struct custom *c = node_custom(a->b->g, a->n);
    struct custom_use use = {.op = custom_find(c->name), .table = dispatch_find(c->name), .attr = c->attr,
                             .nattr = c->nattr};
    kl_type *type = mem_alloc(a->nout * sizeof *type);
    for (uint32_t i = 0; type && i < a->nout; i++)
        type[i] = custom_type(c->result[i].dtype, &a->b->g->shape[c->result[i].shape]);
    use.type = type;
    kl_status status = type ? record_custom(c->name, &use, a->nin, a->in, a->nout, a->out) : KL_ERR_MEMORY;
    mem_free(type);
    return status;
}

/* With b->size 0 operands have no batch, otherwise those that are batched do. */
static kl_status batch_with_parts(struct region_batch *a)
{
    unsigned stopped = a->n->flags & MARK_STOP ? 1 : 0;
    a->b->t->no_grad += stopped;
    kl_status status = a->n->op == OP_custom ? batch_custom(a) : batch_region_op(a);
    a->b->t->no_grad -= stopped;
    for (int i = 0; i < 2; i++) {
        mem_free(a->use.part[i].in);
        mem_free(a->use.part[i].batched);
    }
    return status;
}

/* For each element: in[] has its operands, part[] those of all, followed by its own; then stacks the results. */
static kl_status one_by_one(const struct region_batch *whole, kl_tensor *in, bool *batched, kl_tensor *part)
{
    struct batch single = *whole->b;
    int64_t size = whole->b->size;
    kl_status status = KL_OK;
    if (size < 0)
        return fail(whole->b->t, KL_ERR_SHAPE, "vmap: %s is recorded for each element, and the batch has "
                    "a symbolic length", opinfo[whole->n->op].name);
    single.size = 0;
    batch_warn(whole->n->op);
    for (int64_t e = 0; e < size && !status; e++) {
        struct region_batch a = *whole;
        kl_tensor *out = part + (int64_t)whole->nout * size;
        for (uint32_t i = 0; i < a.nin; i++)
            in[i] = a.batched[i] ? batch_pick(a.b, a.in[i], operand_shape(&a, i), e) : a.in[i];
        a.b = &single;
        a.in = in;
        a.batched = batched; /* of none */
        a.out = out;
        status = batch_with_parts(&a);
        for (uint32_t i = 0; i < a.nout && !status; i++)
            part[(int64_t)i * size + e] = out[i];
    }
    for (uint32_t i = 0; i < whole->nout && !status; i++)
        whole->out[i] = kl_stack((int)size, part + (int64_t)i * size, 0);
    return status;
}

void batch_region(struct batch *b, ref r)
{
    const struct node *n = node_at(b->g, r);
    struct region_batch a = {.b = b, .r = r, .n = n, .nin = node_nin(n),
                      .nout = region_results(b->g, n)};
    bool any = false;
    kl_status status = KL_ERR_MEMORY;
    size_t each = b->size < 0 ? 0 : (size_t)b->size; /* one_by_one refuses a symbolic length */
    kl_tensor *in = mem_alloc((2 * (size_t)a.nin + a.nout * (each + 1) + 1) * sizeof *in);
    bool *batched = mem_alloc(2 * (size_t)a.nin + 1);
    a.in = in;
    a.batched = batched;
    a.out = b->h + r + 1; /* its projections follow it */
    for (uint32_t i = 0; in && batched && i < a.nin; i++) {
        ref from = node_in(b->g, n, i);
        a.in[i] = b->h[from];
        any |= a.batched[i] = b->batched[from];
    }
    struct batch none = *b;
    none.size = 0;
    if (!any)
        a.b = &none;
    bool apart = any && (n->op == OP_custom || (n->op == OP_cond && batched[0]));
    if (in && batched)
        status = apart ? one_by_one(&a, in + a.nin, batched + a.nin, in + 2 * (size_t)a.nin) : batch_with_parts(&a);
    if (status && kl_check(a.out[0]) == KL_OK)
        refuse(b->t, status, "vmap: %s failed", opinfo[n->op].name);
    for (uint32_t i = 0; i < a.nout; i++) {
        if (status && !a.out[i].id)
            a.out[i] = poison(b->t);
        b->batched[r + 1 + i] = any;
    }
    mem_free(in);
    mem_free(batched);
}
