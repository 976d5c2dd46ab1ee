/* What region ops take and give, and how they run: the one driver of loops and branches, which the interpreter
 * and the executor hand their own way of computing a region. */
#include "custom.h"
#include <string.h>

uint32_t op_regions(unsigned op)
{
    return op == OP_scan || op == OP_checkpoint ? 1 : op_is_region(op) && op != OP_custom ? 2 : 0;
}

/* The region whose yields are the node's results. */
static const struct graph *body_of(const struct graph *g, const struct node *n)
{
    return node_region(g, n, n->op == OP_while);
}

uint32_t region_results(const struct graph *g, const struct node *n)
{
    return n->op == OP_custom ? node_custom(g, n)->nresult : body_of(g, n)->nout;
}

unsigned region_result(const struct graph *g, const struct node *n, uint32_t i, struct shape *s)
{
    if (n->op == OP_custom) {
        *s = g->shape[node_custom(g, n)->result[i].shape];
        return node_custom(g, n)->result[i].dtype;
    }
    const struct graph *body = body_of(g, n);
    const struct node *yield = node_at(body, body->out[i].value);
    *s = body->shape[yield->shape];
    if (n->op == OP_scan && i >= n->attr.region.carried) {
        if (s->rank < KL_MAX_RANK)
            memmove(s->dim + 1, s->dim, s->rank * sizeof *s->dim);
        s->dim[0] = n->attr.region.length;
        s->rank++;
    }
    return yield->dtype;
}

size_t region_result_bytes(const struct graph *g, const struct node *n, uint32_t i)
{
    struct shape s;
    unsigned dtype = region_result(g, n, i, &s);
    return (size_t)shape_count(&s) * dtype_size(dtype);
}

/* ---- at work ---- */

static size_t round64(size_t n) { return (n + 63) / 64 * 64; }

/* Pointers to a region's parameters and yields, the condition's result, and a second place for carried values. */
size_t region_work_bytes(const struct graph *g, const struct node *n)
{
    if (n->op == OP_custom)
        return custom_work_bytes(g, n);
    if (!op_is_control(n->op) || n->op == OP_cond)
        return 0;
    size_t bytes = round64((node_nin(n) + region_results(g, n)) * sizeof(void *)) + 64;
    for (uint32_t i = 0; i < n->attr.region.carried; i++)
        bytes += round64(region_result_bytes(g, n, i));
    return bytes;
}

struct loop {
    const struct region_call *c;
    uint32_t carried;
    const void **in;   /* this round's parameters */
    void **out;        /* this round's yields */
    bool *more;        /* what the condition gave */
    char *second;      /* carried values of every other round; the results' own memory has the others */
};

static struct loop loop_begin(const struct region_call *c)
{
    struct loop l = {.c = c, .carried = c->n->attr.region.carried, .in = c->pointers ? (const void **)c->pointers : c->work};
    uint32_t nin = node_nin(c->n), nout = region_results(c->g, c->n);
    l.out = (void **)l.in + nin;
    l.more = (bool *)((char *)c->work + round64((nin + nout) * sizeof(void *)));
    l.second = (char *)l.more + 64;
    for (uint32_t i = 0; i < nin; i++)
        l.in[i] = c->in[i];
    for (uint32_t i = 0; i < nout; i++)
        l.out[i] = c->out[i];
    return l;
}

/* Where this round's carried yields go: never where it reads them. */
static void aim(struct loop *l, bool second)
{
    char *at = l->second;
    for (uint32_t i = 0; i < l->carried; i++) {
        l->out[i] = second ? at : l->c->out[i];
        at += round64(region_result_bytes(l->c->g, l->c->n, i));
    }
}

static void carry(struct loop *l)
{
    for (uint32_t i = 0; i < l->carried; i++)
        l->in[i] = l->out[i];
}

/* The last carried values become the results, wherever they are. */
static bool loop_end(const struct loop *l)
{
    for (uint32_t i = 0; i < l->carried; i++) {
        size_t bytes = region_result_bytes(l->c->g, l->c->n, i);
        if (l->in[i] == l->c->out[i] || !bytes)
            continue;
        if (!l->c->move)
            memcpy(l->c->out[i], l->in[i], bytes);
        else if (!l->c->move(l->c->ctx, l->c->out[i], l->in[i], bytes))
            return false;
    }
    return true;
}

static bool peek(const struct region_call *c, const void *at, bool *value)
{
    if (c->peek)
        return c->peek(c->ctx, at, value);
    *value = *(const bool *)at;
    return true;
}

static bool run_while(const struct region_call *c)
{
    struct loop l = loop_begin(c);
    for (bool second = false;; second = !second) {
        if (!c->run(c->ctx, 0, l.in, (void *const[]){l.more}))
            return false;
        bool more;
        if (!peek(c, l.more, &more))
            return false;
        if (!more)
            break;
        aim(&l, second);
        if (!c->run(c->ctx, 1, l.in, l.out))
            return false;
        carry(&l);
    }
    return loop_end(&l);
}

static size_t slice_bytes(size_t bytes, int64_t length) { return length ? bytes / (size_t)length : 0; }

/* The last round yields into the results themselves. */
static bool run_scan(const struct region_call *c)
{
    const struct node *n = c->n;
    struct loop l = loop_begin(c);
    int64_t length = n->attr.region.length;
    uint32_t nout = region_results(c->g, n);
    for (int64_t k = 0; k < length; k++) {
        size_t at = (size_t)(n->attr.region.flags & REGION_REVERSE ? length - 1 - k : k);
        for (uint32_t i = l.carried; i < l.carried + n->attr.region.scanned; i++)
            l.in[i] = (const char *)c->in[i] + at * slice_bytes(node_bytes(c->g, node_in(c->g, n, i)), length);
        for (uint32_t i = l.carried; i < nout; i++)
            l.out[i] = (char *)c->out[i] + at * slice_bytes(region_result_bytes(c->g, n, i), length);
        aim(&l, (length - 1 - k) & 1);
        if (!c->run(c->ctx, 0, l.in, l.out))
            return false;
        carry(&l);
    }
    return loop_end(&l);
}

bool region_run(const struct region_call *c)
{
    bool first;
    switch (c->n->op) {
    case OP_cond: return peek(c, c->in[0], &first) && c->run(c->ctx, first ? 0 : 1, c->in + 1, c->out);
    case OP_while: return run_while(c);
    case OP_scan: return run_scan(c);
    default: return c->run(c->ctx, 0, c->in, c->out); /* checkpoint, custom_grad */
    }
}
