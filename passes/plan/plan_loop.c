/* A scan whose body is small is one kernel: the kernels of the body, one after the other, in a loop on one thread.
 *
 * The body's program is planned as for any region, and its kernels are inlined (ir/loop/inline.h).  Either all loops
 * are written out, and the carried values are scalars, which processors keep in registers; or the kernels' vector loops
 * stay, and carried values are arrays in scratch memory; or elements are lanes (plan_loop_lanes.c).  What takes less
 * work is chosen.  What is the same in all iterations is computed before the loop.  The bits are those of the
 * body's kernels: no operation changes, and none changes its place.
 *
 * A run asks between kernels whether it is cancelled.  A loop of more than plan_loop_part_work instructions, which take
 * a few tenths of a second, is cut into parts, the kernel's iterations in order, and a run asks between these, too.
 * Iterations that carry nothing, such as those over the matrices of a batch, are shared out over threads instead, in
 * parts of plan_loop_task_work instructions.
 *
 * Loops whose kernels are shared out over threads are commands of their own. */
#include "plan_loop.h"

int64_t plan_loop_part_work = 1 << 28, plan_loop_task_work = 1 << 14;

/* ---- which loops ---- */

static bool is_on_processor(const struct planner *p, unsigned device)
{
    const struct target_set *t = p->targets;
    for (uint32_t i = 0; i < t->n; i++)
        if (!t->v[i].devices || t->v[i].devices >> device & 1)
            return !t->v[i].caps->is_gpu;
    return false;
}

static const struct kernel *kernel_of(const struct loop_kernel *b, const struct command *c)
{
    return b->p->root->p->kernel[c->kernel];
}

static bool command_may_inline(const struct loop_kernel *b, const struct command *c)
{
    if (c->kind == CMD_COPY)
        return c->device == c->from;
    if (c->kind == CMD_REGION)
        return loop_cond_fits(b, c);
    return c->kind == CMD_KERNEL && !kernel_of(b, c)->sched.grain && kernel_may_inline(kernel_of(b, c));
}

/* Has each value of the body a number of elements, whatever the symbols' values? */
static bool has_constant_sizes(const struct loop_kernel *b)
{
    const struct placeholders *s = &b->p->root->p->placeholders;
    for (ref r = 1; r < b->body->nnode && s->n; r++)
        if (!size_is_constant(size_of_shape(s, node_shape(b->body, r))))
            return false;
    return true;
}

bool loop_region_fits(const struct loop_kernel *b)
{
    if (!is_on_processor(b->p, b->n->device) || b->sub->pitch || b->p->p->pitch)
        return false;
    for (uint32_t i = 0; i < b->sub->ncmd; i++)
        if (!command_may_inline(b, &b->sub->cmd[i]))
            return false;
    return has_constant_sizes(b);
}

/* ---- memory ---- */

bool loop_array_in_memory(struct loop_kernel *b, struct inline_array *a, unsigned dtype, int64_t count)
{
    *a = (struct inline_array){.count = count, .dtype = (uint8_t)dtype, .local = true};
    b->bytes += count <= MAX_BYTES ? plan_round64(count * (int64_t)dtype_size(dtype)) : MAX_BYTES + 1;
    if (b->bytes > MAX_BYTES)
        return false;
    a->lbuf = k_buf(b->k, BUF_SCRATCH, dtype, count, 0);
    return true;
}

bool loop_array(struct loop_kernel *b, struct inline_array *a, unsigned dtype, int64_t count)
{
    if (!b->scalars)
        return loop_array_in_memory(b, a, dtype, count);
    *a = (struct inline_array){.count = count, .dtype = (uint8_t)dtype, .local = true};
    a->scalar = count <= MAX_INLINE_SCALARS ? mem_arena_alloc(&b->mem, (size_t)(count + 1) * sizeof(val)) : NULL;
    return a->scalar;
}

bool loop_array_outside(struct loop_kernel *b, struct inline_array *a, uint32_t lbuf, val first, int64_t count)
{
    *a = (struct inline_array){.lbuf = lbuf, .first = first, .count = count, .dtype = b->k->buf[lbuf].dtype};
    if (b->scalars && count <= MAX_INLINE_SCALARS)
        a->scalar = mem_arena_alloc(&b->mem, (size_t)(count + 1) * sizeof(val));
    return !b->mem.failed;
}

struct inline_array *loop_argument(struct loop_kernel *b, const struct command *c, uint32_t i)
{
    switch (c->arg[i].kind) {
    case LOC_INPUT: return &b->input[c->arg[i].index];
    case LOC_OUT:   return &b->yield[c->arg[i].index];
    case LOC_ARENA:
    case LOC_LAYOUT: return &b->value[c->value[i]];
    default:        return NULL;
    }
}

/* The array of a value of the body that is in the arena: that of an earlier value at the same offset, if it has the
 * same elements, for the two are never needed at the same time. */
static bool value_make(struct loop_kernel *b, struct inline_array *a, ref r, const struct loc *l)
{
    unsigned dtype = b->body->node[r].dtype;
    int64_t count = node_numel(b->body, r);
    for (uint32_t i = 0; i < b->narena && !b->scalars && l->kind == LOC_ARENA; i++)
        if (b->arena[i].offset == l->offset && b->arena[i].a->dtype == dtype && b->arena[i].a->count == count) {
            *a = *b->arena[i].a;
            return true;
        }
    if (!loop_array(b, a, dtype, count))
        return false;
    if (l->kind == LOC_ARENA && b->narena < MAX_ARENA_ARRAYS)
        b->arena[b->narena++] = (struct arena_array){l->offset, a};
    return true;
}

/* Makes what the commands of the body store. */
static bool make_values(struct loop_kernel *b)
{
    for (uint32_t i = 0; i < b->nout; i++) {
        const struct node *y = &b->body->node[b->body->out[i].value];
        if (!b->yield[i].count && !loop_array(b, &b->yield[i], y->dtype, node_numel(b->body, b->body->out[i].value)))
            return false;
    }
    for (uint32_t c = 0; c < b->sub->ncmd; c++)
        for (uint32_t i = 0; i < b->sub->cmd[c].narg; i++) {
            const struct command *m = &b->sub->cmd[c];
            struct inline_array *a = loop_argument(b, m, i);
            bool arena = m->arg[i].kind == LOC_ARENA || m->arg[i].kind == LOC_LAYOUT;
            if (arena && m->value[i] && !a->local && !value_make(b, a, m->value[i], &m->arg[i]))
                return false;
        }
    return true;
}

/* ---- the body ---- */

static bool inline_command(struct loop_kernel *b, const struct command *c)
{
    if (c->kind == CMD_COPY) {
        inline_copy(b->k, loop_argument(b, c, 0), loop_argument(b, c, 1));
        return true;
    }
    if (c->kind == CMD_REGION)
        return loop_inline_cond(b, c);
    const struct kernel *k = kernel_of(b, c);
    struct inline_array **array = mem_arena_alloc(&b->mem, (k->nbuf + 1) * sizeof *array);
    for (uint32_t i = 0; array && i < k->nbuf; i++) {
        if ((array[i] = loop_argument(b, c, i)))
            continue;
        if (!(array[i] = mem_arena_alloc(&b->mem, sizeof *array[i])))
            return false;
        if (!loop_array(b, array[i], k->buf[i].dtype, k->buf[i].count))
            return false;
    }
    return array && (b->scalars ? kernel_expand(b->k, k, array) : kernel_inline(b->k, k, array));
}

bool loop_inline_region(struct loop_kernel *b)
{
    if (!make_values(b))
        return false;
    for (uint32_t c = 0; c < b->sub->ncmd; c++)
        if (!inline_command(b, &b->sub->cmd[c]))
            return false;
    return true;
}

/* Does the command read its argument i? */
static bool is_read(const struct loop_kernel *b, const struct command *m, uint32_t i)
{
    if (m->kind == CMD_REGION)
        return i < node_nin(node_at(b->body, m->region));
    return m->kind == CMD_COPY ? i == 1 : kernel_of(b, m)->buf[i].role == BUF_IN;
}

static bool yield_is_read(const struct loop_kernel *b, uint32_t yield)
{
    for (uint32_t c = 0; c < b->sub->ncmd; c++) {
        const struct command *m = &b->sub->cmd[c];
        for (uint32_t i = 0; i < m->narg; i++)
            if (m->arg[i].kind == LOC_OUT && m->arg[i].index == yield && is_read(b, m, i))
                return true;
    }
    return false;
}

/* The part of iteration `at` of an array whose axis 0 is the iterations'. */
static val slice_first(struct loop_kernel *b, val at, int64_t count) { return ix_scale(b->k, at, count); }

/* Is carried value i read only before its next value is complete, by the kernel that stores that only at elements which
 * it overwrites then, or by a cond, which copies its results when it has computed all?  A sum that each iteration adds
 * to is. */
static bool carry_is_overwritten(struct loop_kernel *b, uint32_t i)
{
    const struct command *writer = NULL;
    for (uint32_t c = 0; c < b->sub->ncmd; c++) {
        const struct command *m = &b->sub->cmd[c];
        for (uint32_t a = 0; a < m->narg; a++) {
            if (m->arg[a].kind == LOC_INPUT && m->arg[a].index == i && writer)
                return false;
            if (m->arg[a].kind != LOC_OUT || m->arg[a].index != i || is_read(b, m, a))
                continue;
            if (m->kind == CMD_COPY)
                return false;
            for (uint32_t in = 0; in < m->narg && m->kind == CMD_KERNEL; in++)
                if (m->arg[in].kind == LOC_INPUT && m->arg[in].index == i &&
                    !plan_kernel_overwrites(b->p, m->kernel, in, a))
                    return false;
            writer = m;
            break;
        }
    }
    return writer;
}

/* The next values of carried arrays that may be stored in their place: with no copy at the end of an iteration. */
static void carries_in_place(struct loop_kernel *b)
{
    for (uint32_t i = 0; i < b->n->attr.region.carried && !b->scalars; i++)
        if (b->input[i].count && carry_is_overwritten(b, i))
            b->yield[i] = b->input[i];
}

/* Operands that are not carried, and stacked results that are stored as they are computed. */
static bool open_iteration(struct loop_kernel *b, val at)
{
    uint32_t carried = b->n->attr.region.carried;
    for (uint32_t i = carried; i < b->nin; i++) {
        const struct leaf *in = &b->body->input.v[i];
        int64_t count = shape_count(&b->body->shape[in->shape]);
        bool scanned = i < carried + b->n->attr.region.scanned;
        if (!loop_array_outside(b, &b->input[i], i, scanned ? slice_first(b, at, count) : 0, count))
            return false;
    }
    for (uint32_t i = carried; i < b->nout && !b->scalars; i++) {
        int64_t count = node_numel(b->body, b->body->out[i].value);
        if (b->result[i] && count && !yield_is_read(b, i) &&
            !loop_array_outside(b, &b->yield[i], b->result[i] - 1, slice_first(b, at, count), count))
            return false;
    }
    return true;
}

static bool close_iteration(struct loop_kernel *b, val at)
{
    for (uint32_t i = b->n->attr.region.carried; i < b->nout; i++) {
        struct inline_array to = {.lbuf = b->result[i] - 1, .first = slice_first(b, at, b->yield[i].count),
                                  .count = b->yield[i].count};
        if (b->result[i] && b->yield[i].local)
            inline_copy(b->k, &to, &b->yield[i]);
    }
    return !b->k->err.code;
}

/* Scalars: the carries of the loop, which follow it directly. */
static void open_carries(struct loop_kernel *b)
{
    for (uint32_t i = 0; i < b->n->attr.region.carried && b->scalars; i++)
        for (int64_t e = 0; e < b->input[i].count; e++)
            b->input[i].scalar[e] = k_carry(b->k, b->first[i].scalar[e]);
}

/* Their next values; result: those after the loop, in the place of the yields. */
static void close_carries(struct loop_kernel *b, val loop)
{
    uint32_t carried = b->n->attr.region.carried;
    for (uint32_t i = 0; i < carried; i++)
        if (!b->scalars && b->yield[i].lbuf != b->input[i].lbuf)
            inline_copy(b->k, &b->input[i], &b->yield[i]);
    for (uint32_t i = 0; i < carried && b->scalars; i++)
        for (int64_t e = 0; e < b->input[i].count; e++)
            k_next(b->k, b->input[i].scalar[e], b->yield[i].scalar[e]);
    k_end(b->k, loop);
    for (uint32_t i = 0; i < carried && b->scalars; i++)
        for (int64_t e = 0; e < b->input[i].count; e++)
            b->input[i].scalar[e] = k_out(b->k, b->input[i].scalar[e]);
}

/* The first part begins with the carried values that the caller has, each other part with those that the part before
 * has left in scratch memory. */
static bool load_carried_of_part(struct loop_kernel *b, val part)
{
    struct kernel *k = b->k;
    struct inline_array *to = b->scalars ? b->kept : b->input;
    for (uint32_t i = 0; i < b->n->attr.region.carried && b->scalars; i++)
        if (!loop_array_in_memory(b, &b->kept[i], b->first[i].dtype, b->first[i].count))
            return false;
    val first = k_if(k, k_prim(k, P_EQ, part, k_int(k, 0), 0));
    for (uint32_t i = 0; i < b->n->attr.region.carried; i++)
        inline_copy(k, &to[i], &b->first[i]);
    k_end(k, first);
    for (uint32_t i = 0; i < b->n->attr.region.carried && b->scalars; i++)
        if (!loop_array_outside(b, &b->first[i], b->kept[i].lbuf, 0, b->kept[i].count))
            return false;
    return true;
}

/* Carried values as the caller has them; where they are during the loop. */
static bool load_carried(struct loop_kernel *b, val part)
{
    uint32_t carried = b->n->attr.region.carried;
    for (uint32_t i = 0; i < carried; i++) {
        int64_t count = shape_count(&b->body->shape[b->body->input.v[i].shape]);
        if (!loop_array_outside(b, &b->first[i], i, 0, count) ||
            !loop_array(b, &b->input[i], b->body->input.v[i].dtype, count))
            return false;
    }
    if (b->parts > 1 && carried && !load_carried_of_part(b, part))
        return false;
    for (uint32_t i = 0; i < carried; i++) {
        for (int64_t e = 0; e < b->first[i].count && b->scalars; e++)
            inline_load(b->k, &b->first[i], e);
        if (!b->scalars && b->parts == 1)
            inline_copy(b->k, &b->input[i], &b->first[i]);
    }
    return true;
}

static void store_carried(struct loop_kernel *b, val part)
{
    struct kernel *k = b->k;
    uint32_t carried = b->n->attr.region.carried;
    for (uint32_t i = 0; i < carried && b->scalars && b->parts > 1; i++)
        inline_copy(k, &b->kept[i], &b->input[i]);
    val last = b->parts > 1 && carried ? k_if(k, k_prim(k, P_EQ, part, k_int(k, b->parts - 1), 0)) : 0;
    for (uint32_t i = 0; i < carried; i++) {
        struct inline_array to = {.lbuf = b->result[i] - 1, .count = b->input[i].count};
        if (b->result[i])
            inline_copy(k, &to, &b->input[i]);
    }
    if (last)
        k_end(k, last);
}

static bool loop_emit(struct loop_kernel *b)
{
    struct kernel *k = b->k;
    kernel_take_symbols(k, &b->p->root->p->placeholders);
    k->extent = b->parts;
    bool in_order = b->parts > 1 && b->n->attr.region.carried;
    val part = in_order ? k_loop_in_order(k, LOOP_PARALLEL, b->parts)
                        : k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, b->parts), 1);
    k->sched.grain = b->parts > 1 && !in_order;
    val length = ix_size(k, kernel_length(k, b->n->attr.region.length)), first = k_int(k, 0), end = length;
    if (!load_carried(b, part))
        return false;
    if (b->parts > 1) {
        first = ix_scale(k, part, b->each);
        end = ix_add(k, first, ix_min(k, ix_sub(k, length, first), b->each));
    }
    val loop = k_loop(k, LOOP_SERIAL, first, end, 1);
    open_carries(b);
    carries_in_place(b);
    val at = loop;
    if (b->n->attr.region.flags & REGION_REVERSE)
        at = ix_sub(k, ix_sub(k, length, k_int(k, 1)), loop);
    if (!open_iteration(b, at) || !loop_inline_region(b) || !close_iteration(b, at))
        return false;
    close_carries(b, loop);
    store_carried(b, part);
    k_end(k, part);
    return kernel_hoist(k, loop);
}

/* ---- the kernel ---- */

int64_t loop_times_length(const struct loop_kernel *b, double each)
{
    double n = each * (double)size_max(&b->p->root->p->placeholders,
                                       size_of_length(&b->p->root->p->placeholders, b->n->attr.region.length));
    return n < 0x1p62 ? (int64_t)n : INT64_MAX / 2;
}

double loop_region_flops(const struct loop_kernel *b)
{
    double flops = 0;
    for (uint32_t c = 0; c < b->sub->ncmd; c++)
        if (b->sub->cmd[c].kind == CMD_KERNEL)
            flops += (double)kernel_of(b, &b->sub->cmd[c])->flops;
    return flops;
}

bool loop_begin(struct loop_kernel *b, const struct lowered *l, bool scalars)
{
    const struct graph *g = b->p->g;
    b->k = kernel_new("loop");
    b->scalars = scalars;
    b->bytes = 0;
    b->narena = 0;
    b->mem = (struct mem_arena){0};
    b->result = mem_arena_alloc(&b->mem, (b->nout + 1) * sizeof *b->result);
    b->input = mem_arena_alloc(&b->mem, (b->nin + 1) * sizeof *b->input);
    b->first = mem_arena_alloc(&b->mem, (b->nin + 1) * sizeof *b->first);
    b->kept = mem_arena_alloc(&b->mem, (b->nin + 1) * sizeof *b->kept);
    b->yield = mem_arena_alloc(&b->mem, (b->nout + 1) * sizeof *b->yield);
    b->value = mem_arena_alloc(&b->mem, b->body->nnode * sizeof *b->value);
    if (!b->k || b->mem.failed)
        return plan_no_memory(b->p);
    b->k->extent = 1;
    for (uint32_t i = 0; l && i < l->narg; i++) {
        ref r = l->arg[i].node;
        uint32_t lbuf = k_buf(b->k, l->arg[i].role, g->node[r].dtype, node_numel(g, r), i);
        if (i >= b->nin)
            b->result[g->node[r].attr.proj.index] = lbuf + 1;
    }
    return true;
}

struct kernel *loop_finish(struct loop_kernel *b, bool emitted, int64_t flops)
{
    struct kernel *k = b->k;
    if (k)
        k->placeholders = NULL; /* it outlives them */
    bool ok = emitted && kernel_clean(k);
    if (k && (b->mem.failed || k->err.code))
        plan_no_memory(b->p);
    mem_arena_free(&b->mem);
    for (uint32_t i = 0; ok && i < k->nbuf; i++)
        if (k->buf[i].role == BUF_IN || k->buf[i].role == BUF_OUT)
            k->bytes += k->buf[i].count * (int64_t)dtype_size(k->buf[i].dtype);
    if (k)
        k->flops = flops;
    if (ok && kernel_verify(k, b->p->e))
        return k;
    kernel_free(k);
    return NULL;
}

int64_t loop_work(const struct loop_kernel *b, const struct kernel *k)
{
    const struct target_set *t = b->p->targets;
    uint32_t loops = 0;
    for (val v = 1; v < k->ninst; v++)
        loops += k->inst[v].op == L_LOOP;
    return kernel_work(k, t->v[0].caps->vector_bytes) + KERNEL_WORK * (int64_t)loops;
}

/* The same of all iterations. */
static int64_t loop_work_of_all(const struct loop_kernel *b, int64_t work)
{
    struct size length = size_of_length(&b->p->root->p->placeholders, b->n->attr.region.length);
    return size_is_constant(length) ? work : loop_times_length(b, (double)work);
}

enum loop_form { LOOP_IN_MEMORY, LOOP_SCALARS, LOOP_LANES };

/* NULL: it cannot be this form, or *p->e. */
static struct kernel *loop_make(struct loop_kernel *b, const struct lowered *l, enum loop_form form)
{
    bool emitted = loop_begin(b, l, form == LOOP_SCALARS) && (form == LOOP_LANES ? loop_lanes_emit(b) : loop_emit(b));
    return loop_finish(b, emitted, loop_times_length(b, loop_region_flops(b)));
}

/* The kernel in parts, if it takes more instructions than a part has.  Iterations that carry nothing do not depend on
 * each other: their parts are shared out over threads.  Otherwise parts run in order; NULL: an iteration takes more, or
 * the device, which has a driver, starts all of a kernel at once. */
static struct kernel *loop_divide(struct loop_kernel *b, const struct lowered *l, enum loop_form form, struct kernel *k,
                                  int64_t work)
{
    int64_t all = loop_work_of_all(b, work), length = loop_times_length(b, 1);
    bool in_order = b->n->attr.region.carried;
    int64_t most = in_order ? plan_loop_part_work : plan_loop_task_work;
    if (all <= most || (!in_order && length < 2))
        return k;
    kernel_free(k);
    b->each = (int64_t)((double)length * (double)most / (double)all);
    b->each = b->each < 1 && !in_order ? 1 : b->each;
    if (form == LOOP_LANES || b->each < 1 || (in_order && b->n->device > KL_DEVICE_CPU))
        return NULL;
    b->parts = (length + b->each - 1) / b->each;
    k = loop_make(b, l, form);
    b->parts = 1;
    return k;
}

bool plan_loop(struct planner *p, uint32_t group, const struct program *sub)
{
    struct lowered *l = &p->low[group];
    const struct node *n = &p->g->node[p->non_fusible[group]];
    struct loop_kernel b = {.p = p, .n = n, .body = sub->g, .sub = sub, .nin = node_nin(n),
                            .nout = region_results(p->g, n), .parts = 1};
    int64_t min = INT64_MAX;
    if (n->op != OP_scan || !loop_region_fits(&b))
        return true;
    for (int form = LOOP_LANES; form >= LOOP_IN_MEMORY && !p->e->code; form--) {
        struct kernel *k = loop_make(&b, l, (enum loop_form)form);
        int64_t work = k ? loop_work(&b, k) : 0;
        if (!k || work >= min || (form != LOOP_IN_MEMORY && k->ninst > MAX_CODE)) {
            kernel_free(k);
            continue;
        }
        if (!(k = loop_divide(&b, l, (enum loop_form)form, k, work)))
            continue;
        min = work;
        kernel_free(l->k);
        l->k = k;
    }
    if (p->e->code) {
        kernel_free(l->k);
        l->k = NULL;
    }
    return !p->e->code;
}
