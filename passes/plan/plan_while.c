/* The body of a while that is small runs several iterations in one kernel, with the condition before each.
 *
 * The driver of loops (ir/graph/region_run.c) runs the condition, and then the body, which replaces the carried values.
 * Where the program of the body is such a kernel, what it leaves are the carried values of up to MAX_ITERATIONS
 * iterations, and the driver asks whether the run is cancelled once for all of them.  Carried values are in scratch
 * memory: how often a loop of a kernel runs is known before it begins, so the iterations that are left do nothing. */
#include "plan_loop.h"

enum { MAX_ITERATIONS = 256, MAX_CALL_WORK = 1 << 22 };

static void while_region(struct loop_kernel *b, const struct program *sub)
{
    b->sub = sub;
    b->body = sub->g;
    b->narena = 0;
}

/* The kernel's first lbufs: the operands, then all carried values. */
static void while_arguments(struct loop_kernel *b)
{
    for (uint32_t i = 0; i < b->nin + b->nout; i++) {
        const struct leaf *in = &b->body->input.v[i < b->nin ? i : i - b->nin];
        int64_t count = shape_count(&b->body->shape[in->shape]);
        uint32_t lbuf = k_buf(b->k, i < b->nin ? BUF_IN : BUF_OUT, in->dtype, count, i);
        if (i >= b->nin)
            b->result[i - b->nin] = lbuf + 1;
    }
}

/* Operands, and the carried values: in memory, and in one form also scalars. */
static bool while_operands(struct loop_kernel *b)
{
    for (uint32_t i = 0; i < b->nin; i++) {
        const struct leaf *in = &b->body->input.v[i];
        int64_t count = shape_count(&b->body->shape[in->shape]);
        struct inline_array *a = i < b->n->attr.region.carried ? &b->first[i] : &b->input[i];
        if (!loop_array_outside(b, a, i, 0, count))
            return false;
        if (a == &b->first[i] && !loop_array_in_memory(b, &b->input[i], in->dtype, count))
            return false;
        if (a == &b->first[i])
            inline_copy(b->k, &b->input[i], a);
    }
    return true;
}

/* The elements of the carried values in this iteration. */
static bool while_load_carried(struct loop_kernel *b)
{
    for (uint32_t i = 0; i < b->n->attr.region.carried && b->scalars; i++) {
        struct inline_array *a = &b->input[i];
        if (a->count > MAX_INLINE_SCALARS || !(a->scalar = mem_arena_alloc(&b->mem, (size_t)(a->count + 1) *
                                                                           sizeof *a->scalar)))
            return false;
        for (int64_t e = 0; e < a->count; e++)
            inline_load(b->k, a, e);
    }
    return true;
}

/* The condition; `more`: where its value is kept. */
static bool while_condition(struct loop_kernel *b, const struct program *sub, struct inline_array *more, val *holds)
{
    struct inline_array *yield = b->yield, *value = b->value, own = {0};
    while_region(b, sub);
    b->yield = &own;
    b->value = mem_arena_alloc(&b->mem, b->body->nnode * sizeof *b->value);
    uint32_t nout = b->nout;
    b->nout = 1;
    bool ok = b->value && loop_inline_region(b);
    if (ok) {
        *holds = inline_load(b->k, &own, 0);
        inline_store(b->k, more, 0, *holds);
    }
    b->nout = nout;
    b->yield = yield;
    b->value = value;
    return ok;
}

static bool while_emit(struct loop_kernel *b, struct program *const *sub)
{
    struct kernel *k = b->k;
    struct inline_array more;
    while_arguments(b);
    val task = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, 1), 1), holds = 0;
    if (!while_operands(b) || !loop_array_in_memory(b, &more, KL_BOOL, 1))
        return false;
    inline_store(k, &more, 0, k_bits(k, KL_BOOL, 1));
    val loop = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, MAX_ITERATIONS), 1);
    val begun = k_if(k, inline_load(k, &more, 0));
    if (!while_load_carried(b) || !while_condition(b, sub[0], &more, &holds))
        return false;
    val again = k_if(k, holds);
    while_region(b, sub[1]);
    if (!loop_inline_region(b))
        return false;
    for (uint32_t i = 0; i < b->nout; i++) {
        b->input[i].scalar = NULL;
        inline_copy(k, &b->input[i], &b->yield[i]);
    }
    k_end(k, again);
    k_end(k, begun);
    k_end(k, loop);
    for (uint32_t i = 0; i < b->nout; i++) {
        struct inline_array to = {.lbuf = b->result[i] - 1, .count = b->input[i].count};
        inline_copy(k, &to, &b->input[i]);
    }
    k_end(k, task);
    return !k->err.code;
}

/* The program of the body as this kernel, whose lbufs are the operands, then the carried values. */
static struct program *while_program(struct planner *p, uint32_t group, const struct graph *body, const struct node *n,
                                     const struct kernel *k)
{
    unsigned device = n->device;
    uint32_t nin = node_nin(n);
    struct program *sub = mem_alloc(sizeof *sub);
    struct command *c = sub ? sub->cmd = mem_alloc(sizeof *c) : NULL;
    if (c) {
        *c = (struct command){.kind = CMD_KERNEL, .device = (uint16_t)device, .narg = k->nbuf};
        c->arg = mem_alloc(k->nbuf * sizeof *c->arg);
        c->value = mem_alloc(k->nbuf * sizeof *c->value);
        sub->in_place = mem_alloc((body->nout + 1) * sizeof *sub->in_place);
        sub->ncmd = 1;
    }
    if (!c || !c->arg || !c->value || !sub->in_place || !plan_number_kernel(p, group, &c->kernel)) {
        plan_free_program(sub);
        return plan_no_memory(p), NULL;
    }
    sub->g = (struct graph *)body;
    sub->devices = (uint64_t)1 << device;
    sub->max_args = k->nbuf;
    for (uint32_t i = 0; i < k->nbuf; i++)
        if (k->buf[i].role == BUF_SCRATCH) {
            c->arg[i] = (struct loc){.kind = LOC_SCRATCH, .offset = sub->scratch_bytes};
            sub->scratch_bytes += plan_round64(k->buf[i].count * (int64_t)dtype_size(k->buf[i].dtype));
        } else {
            bool in = i < nin;
            c->arg[i] = (struct loc){.kind = in ? LOC_INPUT : LOC_OUT, .index = in ? i : i - nin};
            c->value[i] = in ? NIL : node_stored(body, body->out[i - nin].value);
        }
    return sub;
}

/* Replaces the body's program by the kernel; first: kernels of the whole before those of the body. */
static bool while_replace(struct planner *p, uint32_t group, struct kernel *k, uint32_t first)
{
    struct lowered *l = &p->low[group];
    struct program **body = &p->sub[group][1];
    const struct graph *g = (*body)->g;
    const struct node *n = &p->g->node[p->non_fusible[group]];
    l->k = k;
    if (!plan_share_kernel(p, group))
        return false;
    plan_drop_kernels(p->root, first);
    plan_free_program(*body);
    *body = while_program(p, group, g, n, l->k);
    l->k = NULL; /* a region op has none */
    if (!*body)
        return false;
    struct program *whole = p->p;
    whole->scratch_bytes = (*body)->scratch_bytes > whole->scratch_bytes ? (*body)->scratch_bytes
                                                                         : whole->scratch_bytes;
    whole->max_args = (*body)->max_args > whole->max_args ? (*body)->max_args : whole->max_args;
    return true;
}

bool plan_while(struct planner *p, uint32_t group, uint32_t first)
{
    const struct node *n = &p->g->node[p->non_fusible[group]];
    struct program *const *sub = p->sub[group];
    struct loop_kernel b = {.p = p, .n = n, .nin = node_nin(n), .nout = region_results(p->g, n)};
    struct kernel *best = NULL;
    int64_t min = MAX_CALL_WORK;
    for (int i = 0; i < 2; i++) {
        while_region(&b, sub[i]);
        if (n->op != OP_while || !loop_region_fits(&b))
            return true;
    }
    for (int scalars = 1; scalars >= 0 && !p->e->code; scalars--) {
        while_region(&b, sub[1]);
        bool emitted = loop_begin(&b, NULL, scalars) && while_emit(&b, sub);
        struct kernel *k = loop_finish(&b, emitted, 0);
        int64_t work = k ? loop_work(&b, k) : min;
        bool better = work < min && (!scalars || k->ninst <= MAX_CODE);
        kernel_free(better ? best : k);
        best = better ? k : best;
        min = better ? work : min;
    }
    if (best && p->e->code)
        kernel_free(best);
    return !p->e->code && (!best || while_replace(p, group, best, first));
}
