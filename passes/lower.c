/* One group to one kernel: picks the schedule, evaluates members in place, keeps the kernel's arguments. */
#include "lower.h"
#include <string.h>

#define PERMANENT UINT32_MAX    /* memo.point of scalars computed before the loops */
#define WALKED (UINT32_MAX - 1) /* and of nodes whose operands fix_scalars has seen */

static struct lowering *self(struct lower *l) { return (struct lowering *)l; }

static bool fail(struct lowering *w) { return err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering @%s", w->g->name); }

uint32_t lower_buffer(struct lowering *w, ref r, enum buf_role role)
{
    uint32_t *slot = role == BUF_IN ? &w->read_buf[r] : &w->write_buf[r];
    if (*slot)
        return *slot - 1;
    if (!mem_reserve(&w->out->arg, &w->arg_cap, w->out->narg + 1, sizeof *w->out->arg)) {
        fail(w);
        return 0;
    }
    uint32_t id = w->out->narg++;
    w->out->arg[id] = (struct arg){r, role};
    uint32_t b = k_buf(w->k, role, w->g->node[r].dtype, node_numel(w->g, r), id);
    *slot = b + 1;
    return b;
}

void lower_point(struct lowering *w) { w->point++; }

val lower_flatten(struct kernel *k, const struct shape *s, const val *coord)
{
    val i = k_int(k, 0);
    int64_t stride = 1;
    for (uint32_t d = s->rank; d-- > 0;) {
        if (s->dim[d] != 1)
            i = ix_add(k, i, ix_scale(k, coord[d], stride));
        stride *= s->dim[d];
    }
    return i;
}

void lower_unflatten(struct kernel *k, const struct shape *s, val i, val *coord)
{
    int64_t stride[KL_MAX_RANK], n = 1;
    int first = -1;
    for (uint32_t d = s->rank; d-- > 0;) {
        stride[d] = n;
        n *= s->dim[d];
        if (s->dim[d] != 1)
            first = (int)d;
    }
    for (uint32_t d = 0; d < s->rank; d++) {
        if (s->dim[d] <= 1)
            coord[d] = k_int(k, 0);
        else if ((int)d == first)
            coord[d] = ix_div(k, i, stride[d]);
        else
            coord[d] = ix_mod(k, ix_div(k, i, stride[d]), s->dim[d]);
    }
}

static val load(struct lowering *w, ref r, const val *coord)
{
    val i = lower_flatten(w->k, node_shape(w->g, r), coord);
    bool lanes = w->pred && w->lane && ix_depends(w->k, i, w->lane);
    return k_load(w->k, lower_buffer(w, r, BUF_IN), i, lanes ? w->pred : 0);
}

static bool in_memory(const struct lowering *w, ref r)
{
    const struct node *n = &w->g->node[r];
    if (node_is_stored_leaf(w->g, r))
        return true;
    return !op_is_view(n->op) && !op_is_leaf(n->op) && w->g->group[r] != GROUP_NONE && w->g->group[r] != w->group;
}

static val compute(struct lowering *w, ref r, const val *coord)
{
    const struct node *n = &w->g->node[r];
    if (r == w->anchor)
        return w->anchor_value;
    if (w->row_copy && w->row_copy[r])
        return k_load(w->k, w->row_copy[r] - 1, w->column, w->pred);
    if (in_memory(w, r))
        return load(w, r, coord);
    if (!op_is_elementwise(n->op))
        return opinfo[n->op].lower(&w->l, r, coord);
    val in[MAX_OPERANDS];
    for (unsigned i = 0; i < n->nin; i++)
        in[i] = lower_at(w, n->in[i], coord);
    return k_op(w->k, n->op, in);
}

val lower_at(struct lowering *w, ref r, const val *coord)
{
    struct memo *m = &w->memo[r];
    uint32_t rank = node_shape(w->g, r)->rank;
    if (m->point == PERMANENT || (m->point == w->point && !memcmp(m->coord, coord, rank * sizeof *coord)))
        return m->value;
    val v = compute(w, r, coord);
    m->point = w->point;
    m->value = v;
    memcpy(m->coord, coord, rank * sizeof *coord);
    return v;
}

void lower_fix(struct lowering *w, ref r, val value) { w->memo[r] = (struct memo){.point = PERMANENT, .value = value}; }

static val at_callback(struct lower *l, ref r, const val *coord) { return lower_at(self(l), r, coord); }

void lower_store(struct lowering *w, ref r, const struct shape *s, const val *coord)
{
    const struct shape *mine = node_shape(w->g, r);
    val i = lower_flatten(w->k, s, coord), c[KL_MAX_RANK] = {0};
    if (shape_equal(s, mine))
        memcpy(c, coord, sizeof c);
    else
        lower_unflatten(w->k, mine, i, c);
    val v = lower_at(w, r, c);
    if (w->stored[r])
        k_store(w->k, lower_buffer(w, r, BUF_OUT), i, v, w->pred);
}

void lower_prefetch(struct lowering *w, const struct shape *s, const val *coord)
{
    val i = lower_flatten(w->k, s, coord);
    int64_t numel = shape_count(s);
    for (ref r = 1; r < w->g->nnode; r++) {
        if (w->g->group[r] != w->group)
            continue;
        if (w->stored[r])
            k_prefetch(w->k, PREFETCH_WRITE, lower_buffer(w, r, BUF_OUT), i);
        for (unsigned o = 0; o < w->g->node[r].nin && r != w->anchor; o++) {
            bool linear;
            ref x = node_operand(w->g, r, o, &linear);
            if (linear && node_numel(w->g, x) == numel && w->g->group[x] != w->group && in_memory(w, x))
                k_prefetch(w->k, PREFETCH_READ, lower_buffer(w, x, BUF_IN), i);
        }
    }
}

/* Walks what member r is computed from inside this kernel and fixes every outside scalar on the way. */
static void fix_scalars(struct lowering *w, ref r)
{
    const struct node *n = &w->g->node[r];
    for (unsigned i = 0; i < n->nin; i++) {
        ref s = n->in[i];
        if (w->memo[s].point == PERMANENT)
            continue;
        if (node_numel(w->g, s) == 1 && w->g->group[s] != w->group) {
            bool linear;
            if (w->g->group[node_source(w->g, s, &linear)] == w->group)
                continue;
            val zero[KL_MAX_RANK];
            for (int d = 0; d < KL_MAX_RANK; d++)
                zero[d] = k_int(w->k, 0);
            lower_at(w, s, zero);
            w->memo[s].point = PERMANENT;
        } else if (!in_memory(w, s) && w->memo[s].point != WALKED) {
            w->memo[s].point = WALKED;
            fix_scalars(w, s);
        }
    }
}

void lower_scalars(struct lowering *w)
{
    lower_point(w);
    for (ref r = 1; r < w->g->nnode; r++)
        if (w->g->group[r] == w->group)
            fix_scalars(w, r);
}

enum { TASK_WORK = 1 << 15 }; /* elements of work that pay for handing a task to a thread */

void lower_grain(struct lowering *w, int64_t work)
{
    int64_t per = work > 0 ? work : 1;
    struct kernel *k = w->k;
    bool small = k->extent < 2 || per <= (2 * TASK_WORK - 1) / k->extent; /* a product could overflow */
    k->sched.grain = small ? 0 : per >= TASK_WORK ? 1 : (TASK_WORK + per - 1) / per;
}

enum { FEW_ELEMENTS = 1 << 13 }; /* computed in microseconds by whatever code */

uint32_t lower_width(const struct lowering *w, int64_t n)
{
    uint32_t native = w->caps->vector_bytes / 4, width = 4 * native;
    uint32_t ops = 0;
    int64_t most = 0;
    for (ref r = 1; r < w->g->nnode; r++)
        if (w->g->group[r] == w->group) {
            ops++;
            most = node_numel(w->g, r) > most ? node_numel(w->g, r) : most;
        }
    if (!w->anchor && most <= FEW_ELEMENTS) /* what counts is how soon it is compiled: LLVM's time goes with the width */
        width = native;
    else if (ops > 8) /* several results in flight hide latency already; more would spill */
        width = 2 * native;
    if (width > 64)
        width = 64;
    while (width > 1 && width / 2 >= n)
        width /= 2;
    while (width > native && width > n) /* a whole register and a tail rather than mostly empty lanes */
        width /= 2;
    return width;
}

bool lower_in_prologue(const struct lowering *w, ref r)
{
    /* Pass fuse gives a reduce a prologue only if its operand and its result differ in size. */
    int64_t in = node_numel(w->g, w->g->node[w->anchor].in[0]);
    return node_numel(w->g, r) == in && in != node_numel(w->g, w->anchor);
}

/* Sums that a graph of absurd size would overflow stay at the largest number. */
static int64_t estimated(double v) { return v < 0x1p63 ? (int64_t)v : INT64_MAX; }

static void estimate(struct lowering *w)
{
    double bytes = 0, flops = 0;
    for (uint32_t i = 0; i < w->out->narg; i++)
        bytes += (double)node_bytes(w->g, w->out->arg[i].node);
    for (ref r = 1; r < w->g->nnode; r++) {
        const struct node *n = &w->g->node[r];
        if (w->g->group[r] != w->group || op_is_view(n->op))
            continue;
        if (n->op == OP_dot) {
            struct dot_dims d = dot_sizes(w->g, n);
            flops += 2 * (double)d.batch * (double)d.m * (double)d.n * (double)d.k;
        } else {
            flops += (double)node_numel(w->g, op_is_reduce(n->op) ? n->in[0] : r);
        }
    }
    w->k->bytes = estimated(bytes);
    w->k->flops = estimated(flops);
}

static void name_kernel(struct lowering *w)
{
    int at = snprintf(w->k->name, sizeof w->k->name, "k%u", w->group);
    for (ref r = 1; r < w->g->nnode && at < (int)sizeof w->k->name - 1; r++)
        if (w->g->group[r] == w->group)
            at += snprintf(w->k->name + at, sizeof w->k->name - (size_t)at, "_%s", opinfo[w->g->node[r].op].name);
}

static void run_schedule(struct lowering *w)
{
    for (ref r = 1; r < w->g->nnode; r++)
        if (w->g->group[r] == w->group && op_is_anchor(w->g->node[r].op))
            w->anchor = r;
    if (!w->anchor)
        lower_map(w);
    else if (w->g->node[w->anchor].op == OP_dot)
        lower_dot_group(w);
    else if (w->g->node[w->anchor].op == OP_scatter)
        lower_scatter_group(w);
    else if (w->g->node[w->anchor].op == OP_argsort)
        lower_argsort_group(w);
    else if (op_is_cumulative(w->g->node[w->anchor].op))
        lower_cumulative_group(w);
    else if (lower_has_rows(w))
        lower_rows(w);
    else
        lower_reduce(w);
}

static bool scratch_alloc(struct lowering *w)
{
    size_t n = w->g->nnode;
    w->read_buf = mem_alloc(n * sizeof *w->read_buf);
    w->write_buf = mem_alloc(n * sizeof *w->write_buf);
    w->memo = mem_alloc(n * sizeof *w->memo);
    return w->k && w->read_buf && w->write_buf && w->memo;
}

static void scratch_free(struct lowering *w)
{
    mem_free(w->read_buf);
    mem_free(w->write_buf);
    mem_free(w->memo);
}

bool trial_begin(struct trial *t, const struct lowering *w)
{
    *t = (struct trial){.w = *w};
    t->w.out = &t->out;
    t->w.arg_cap = 0;
    t->w.l.k = t->w.k = kernel_new("trial");
    return scratch_alloc(&t->w);
}

void trial_end(struct trial *t, struct lowering *w)
{
    if (!t->w.k || !t->w.memo || !t->w.read_buf || !t->w.write_buf)
        fail(w);
    else if (t->w.k->err.code && !w->k->err.code)
        w->k->err = t->w.k->err;
    kernel_free(t->w.k);
    mem_free(t->out.arg);
    scratch_free(&t->w);
}

bool lower_group(const struct graph *g, uint32_t group, const struct caps *caps, struct lowered *out, struct err *e)
{
    *out = (struct lowered){.k = kernel_new("")};
    bool *stored = mem_alloc(g->nnode * sizeof *stored);
    struct lowering w = {.k = out->k, .g = g, .group = group, .caps = caps, .stored = stored, .out = out};
    w.l = (struct lower){.k = out->k, .g = g, .at = at_callback};
    bool ok = scratch_alloc(&w) && stored;
    if (!ok) {
        err_set(e, KL_ERR_MEMORY, "out of memory lowering @%s", g->name);
    } else {
        groups_stored(g, stored);
        name_kernel(&w);
        w.k->extent = 1;
        run_schedule(&w);
        estimate(&w);
        ok = kernel_clean(w.k) ? kernel_verify(w.k, e) : err_set(e, w.k->err.code, "%s", w.k->err.msg);
    }
    mem_free(stored);
    scratch_free(&w);
    if (!ok) {
        kernel_free(out->k);
        mem_free(out->arg);
        *out = (struct lowered){0};
    }
    return ok;
}
