/* One group to one kernel: picks the schedule, evaluates members in place, keeps the kernel's arguments.
 *
 * Whatever is kept per node is made once for all groups of a graph and marked with the number of the lowering that
 * wrote it, so that a group costs what its own nodes cost. */
#include "lower_schedule.h"
#include <stdatomic.h>
#include <string.h>

/* memo.point of scalars computed before the loops, and of nodes whose operands fix_scalars has seen; those of an
 * earlier lower_scalars are stale like any other. */
static uint32_t memo_permanent(const struct lowering *w) { return UINT32_MAX - 2 * w->epoch; }
static uint32_t memo_visited(const struct lowering *w) { return memo_permanent(w) - 1; }

static struct lowering *lowering_of(struct lower *l) { return (struct lowering *)l; }

static bool lower_fail(struct lowering *w)
{
    return err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering @%s", w->g->name);
}

static struct node_state *state_of(struct lowering *w, ref r)
{
    struct node_state *s = &w->state[r];
    if (s->stamp != w->mine)
        *s = (struct node_state){.stamp = w->mine};
    return s;
}

uint32_t lower_buffer(struct lowering *w, ref r, enum buf_role role)
{
    struct node_state *s = state_of(w, r);
    uint32_t *slot = role == BUF_IN ? &s->read_buf : &s->write_buf;
    if (*slot)
        return *slot - 1;
    if (!mem_reserve(&w->out->arg, &w->arg_cap, w->out->narg + 1, sizeof *w->out->arg)) {
        lower_fail(w);
        return 0;
    }
    uint32_t id = w->out->narg++;
    w->out->arg[id] = (struct arg){r, role};
    uint32_t b = k_buf(w->k, role, w->g->node[r].dtype, pitched_numel(w->g, w->pitch, r), id);
    *slot = b + 1;
    return b;
}

uint32_t lower_reader(struct lowering *w, ref r, uint32_t m)
{
    struct node_state *s = state_of(w, r);
    if (!s->reader)
        s->reader = m + 1;
    return s->reader - 1;
}

void lower_point(struct lowering *w) { w->point++; }

/* The index in memory of an element of stored node r. */
static val lower_place(struct lowering *w, ref r, const val *coord)
{
    const struct shape *s = node_shape(w->g, r);
    if (!w->pitch[r])
        return lower_flatten(w->k, s, coord);
    struct shape rows = *s;
    rows.dim[rows.rank - 1] = w->pitch[r];
    return lower_flatten(w->k, &rows, coord);
}

/* What the thread has loaded for the current element of its row is not loaded again. */
static val load_once(struct lowering *w, uint32_t buf, val index, val pred)
{
    struct held_element *h = w->held;
    for (uint32_t i = 0; i < h->n; i++)
        if (h->load[i].buf == buf && ix_same(w->k, h->load[i].index, index))
            return h->load[i].value;
    val v = k_load(w->k, buf, index, pred);
    if (mem_reserve(&h->load, &h->cap, h->n + 1, sizeof *h->load))
        h->load[h->n++] = (struct held_load){buf, index, v};
    return v;
}

static val counted_load(struct lowering *w, uint32_t buf, val index, val pred)
{
    struct map_loads *l = w->loads;
    uint32_t number = l->number++;
    if (number < MAX_MAP_LOADS && l->mode == LOADS_FROM_SCRATCH && l->transposed[number])
        return k_load(w->k, l->scratch[number], l->at, w->pred);
    val v = k_load(w->k, buf, index, pred);
    if (number < MAX_MAP_LOADS) {
        l->index[number] = index;
        l->value[number] = v;
        l->dtype[number] = val_dtype(w->k, v);
    }
    return v;
}

/* The predicate of an access to element `coord` of r if the elements behind its row's last one are padding, so that
 * threads may access whole vectors there; else 0. */
static val pred_in_padding(struct lowering *w, ref r, const val *coord)
{
    if (!w->pred_padded || !w->pitch[r])
        return 0;
    uint32_t last = node_shape(w->g, r)->rank - 1;
    for (uint32_t d = 0; d < last; d++)
        if (ix_depends(w->k, coord[d], w->lane))
            return 0;
    return ix_same(w->k, coord[last], w->column) ? w->pred_padded : 0;
}

static val lower_load(struct lowering *w, ref r, const val *coord)
{
    const bool copied = r == w->copied.node;
    const uint32_t buf = copied ? w->copied.buf : lower_buffer(w, r, BUF_IN);
    val i = copied ? ix_sub(w->k, lower_place(w, r, coord), w->copied.first) : lower_place(w, r, coord);
    val padded = pred_in_padding(w, r, coord), there = padded ? padded : w->pred;
    val where = w->l.where;
    bool part = where && w->k->inst[where].varying; /* of the lanes that exist: the others may say anything */
    bool lanes = there && (w->pred_all || (w->lane && (part || ix_depends(w->k, i, w->lane))));
    val pred = lanes ? there : 0;
    if (where)
        pred = pred ? k_prim(w->k, P_AND, pred, where, 0) : where;
    if (w->loads)
        return counted_load(w, buf, i, pred);
    return w->held && !where ? load_once(w, buf, i, pred) : k_load(w->k, buf, i, pred);
}

bool lower_in_memory(const struct lowering *w, ref r)
{
    const struct node *n = &w->g->node[r];
    if (node_is_stored_leaf(w->g, r))
        return true;
    return !op_is_view(n->op) && !op_is_leaf(n->op) && w->g->group[r] != GROUP_NONE && w->g->group[r] != w->group;
}

/* Is no element of r above 0, but for NaN?  x less the largest of its row, as in softmax; -|x|; and the one of x and -x
 * below 0, as in sigmoid. */
static bool never_above_zero(const struct graph *g, ref r)
{
    const struct node *n = &g->node[r], *x;
    switch (n->op) {
    case OP_sub:
        x = &g->node[n->in[1]];
        return x->op == OP_expand && g->node[x->in[0]].op == OP_reduce_max && g->node[x->in[0]].in[0] == n->in[0];
    case OP_neg:
        x = &g->node[n->in[0]];
        return x->op == OP_abs && dtype_is_float(x->dtype);
    case OP_where:
        x = &g->node[n->in[0]];
        return x->op == OP_lt && x->in[0] == n->in[1] && node_is_const(g, x->in[1], 0) &&
               g->node[n->in[2]].op == OP_neg && g->node[n->in[2]].in[0] == n->in[1];
    default:
        return false;
    }
}

bool lower_exp_nonpositive(const struct graph *g, const struct node *n) { return never_above_zero(g, n->in[0]); }

/* Is each element of r from 1 to 2, or NaN?  1 + e^x of x not above 0, as in sigmoid. */
static bool from_one_to_two(const struct graph *g, ref r)
{
    const struct node *n = &g->node[r];
    for (unsigned i = 0; n->op == OP_add && i < 2; i++) {
        const struct node *e = &g->node[n->in[i]];
        if (e->op == OP_exp && lower_exp_nonpositive(g, e) && node_is_const(g, n->in[!i], 1))
            return true;
    }
    return false;
}

/* The value of an elementwise node from those of its operands: with fewer primitives where their range is known. */
static val elementwise_value(struct lowering *w, const struct node *n, const val *in)
{
    if (n->op == OP_exp && lower_exp_nonpositive(w->g, n))
        return k_exp_nonpositive(w->k, in[0]);
    bool may_approximate = w->gpu && !w->k->sched.graph_order;
    if (n->op == OP_recip && n->dtype == KL_F32 && may_approximate && from_one_to_two(w->g, n->in[0]))
        return k_prim(w->k, P_RECIP, in[0], 0, 0);
    return k_op(w->k, n->op, in);
}

static val compute_node(struct lowering *w, ref r, const val *coord)
{
    const struct node *n = &w->g->node[r];
    if (r == w->anchor)
        return w->anchor_value;
    if (w->held && lower_is_member(w, r) && w->held->member[w->place[r]])
        return w->held->member[w->place[r]];
    if (w->row_copy && lower_is_member(w, r) && w->row_copy[w->place[r]])
        return k_load(w->k, w->row_copy[w->place[r]] - 1, w->column, w->pred);
    if (lower_in_memory(w, r) || r == w->copied.node)
        return lower_load(w, r, coord);
    if (!op_is_elementwise(n->op))
        return opinfo[n->op].lower(&w->l, r, coord);
    val in[MAX_OPERANDS];
    for (unsigned i = 0; i < n->nin; i++)
        in[i] = lower_at(w, n->in[i], coord);
    return elementwise_value(w, n, in);
}

val lower_at(struct lowering *w, ref r, const val *coord)
{
    struct node_state *s = state_of(w, r);
    uint32_t rank = node_shape(w->g, r)->rank;
    if (s->memo.point == memo_permanent(w) || (s->memo.point == w->point && s->memo.where == w->l.where &&
                                          !memcmp(s->memo.coord, coord, rank * sizeof *coord)))
        return s->memo.value;
    bool outermost = !w->evaluating;
    uint32_t facts = ix_facts_begin(w->k);
    w->evaluating = true;
    val v = compute_node(w, r, coord);
    if (outermost) { /* what was noted of coordinates is true of this element */
        ix_facts_end(w->k, facts);
        w->evaluating = false;
    }
    s->memo.point = w->point;
    s->memo.where = w->l.where;
    s->memo.value = v;
    memcpy(s->memo.coord, coord, rank * sizeof *coord);
    return v;
}

void lower_fix(struct lowering *w, ref r, val value)
{
    struct node_state *s = state_of(w, r);
    s->memo.point = memo_permanent(w);
    s->memo.value = value;
}

void lower_unfix(struct lowering *w, ref r) { state_of(w, r)->memo.point = 0; }

static val at_callback(struct lower *l, ref r, const val *coord) { return lower_at(lowering_of(l), r, coord); }

struct element lower_element(struct lowering *w, ref r, const struct shape *s, const val *coord)
{
    const struct shape *mine = node_shape(w->g, r);
    val i = lower_flatten(w->k, s, coord), c[KL_MAX_RANK] = {0};
    if (shape_equal(s, mine))
        memcpy(c, coord, sizeof c);
    else
        lower_unflatten(w->k, mine, i, c);
    return (struct element){r, w->pitch[r] ? lower_place(w, r, c) : i, lower_at(w, r, c), pred_in_padding(w, r, c)};
}

void lower_put(struct lowering *w, const struct element *e)
{
    if (w->stored[e->r])
        k_store(w->k, lower_buffer(w, e->r, BUF_OUT), e->index, e->value, e->padded ? e->padded : w->pred);
}

void lower_store(struct lowering *w, ref r, const struct shape *s, const val *coord)
{
    struct element e = lower_element(w, r, s, coord);
    lower_put(w, &e);
}

enum { MAX_FETCHED = 8 };

/* The array in which operand i of r lies in the operand's own order, from element *first on; NIL: none does.  It may be
 * a part of a larger array, cut out of its outermost axis. */
static ref lower_array_of(const struct lowering *w, ref r, unsigned i, int64_t *first)
{
    const struct graph *g = w->g;
    const struct placeholders *s = w->placeholders;
    ref x = g->node[r].in[i];
    for (*first = 0; node_is_view(g, x); x = g->node[x].in[0]) {
        const struct node *n = &g->node[x];
        const struct shape *from = node_shape(g, n->in[0]);
        struct split at = slice_step(n) ? split_at(from, n->attr.slice.axis) : (struct split){0};
        if (slice_step(n) == 1 && at.outer == 1 && size_is_constant(size_of_length(s, n->attr.slice.start)))
            *first += n->attr.slice.start * at.inner;
        else if (n->op != OP_reshape)
            return NIL;
    }
    return x;
}

void lower_prefetch_load(struct lowering *w, val load, val first)
{
    struct kernel *k = w->k;
    if (k->inst[load].op != L_LOAD)
        return;
    for (val v = first; v < load; v++)
        if (k->inst[v].op == L_LOAD && ix_depends(k, k->inst[load].a, v))
            return;
    k_prefetch(k, PREFETCH_READ, (uint32_t)k->inst[load].imm, k->inst[load].a);
}

/* Do so many elements of node r take whole lines? */
static bool are_whole_lines(const struct lowering *w, ref r, int64_t elements)
{
    return elements * (int64_t)dtype_size(w->g->node[r].dtype) % LINE_BYTES == 0;
}

void lower_prefetch(struct lowering *w, const struct shape *s, const val *coord, int64_t elements)
{
    val i = lower_flatten(w->k, s, coord);
    int64_t numel = shape_count(s), first[MAX_FETCHED];
    ref read[MAX_FETCHED];
    uint32_t nread = 0, nwritten = 0;
    for (uint32_t m = 0; m < w->nmember; m++) {
        ref r = w->member[m];
        for (unsigned o = 0; o < w->g->node[r].nin && r != w->anchor && nread < MAX_FETCHED; o++) {
            bool known = false;
            ref x = lower_array_of(w, r, o, &first[nread]);
            for (uint32_t j = 0; j < nread; j++)
                known |= read[j] == x && first[j] == first[nread];
            if (x && !known && node_numel(w->g, w->g->node[r].in[o]) == numel && !lower_is_member(w, x) &&
                lower_in_memory(w, x))
                read[nread++] = x;
        }
    }
    for (uint32_t j = 0; j < nread; j++)
        if (are_whole_lines(w, read[j], elements))
            k_prefetch(w->k, PREFETCH_READ, lower_buffer(w, read[j], BUF_IN), ix_add(w->k, i, k_int(w->k, first[j])));
    for (uint32_t m = 0; m < w->nmember; m++)
        if (w->stored[w->member[m]] && node_numel(w->g, w->member[m]) == numel && nwritten++ >= nread &&
            are_whole_lines(w, w->member[m], elements))
            k_prefetch(w->k, PREFETCH_WRITE, lower_buffer(w, w->member[m], BUF_OUT), i);
}

/* Walks what member r is computed from inside this kernel and fixes every outside scalar on the way. */
static void fix_scalars(struct lowering *w, ref r)
{
    const struct node *n = &w->g->node[r];
    for (unsigned i = 0; i < n->nin; i++) {
        ref s = n->in[i];
        struct node_state *state = state_of(w, s);
        if (state->memo.point == memo_permanent(w))
            continue;
        if (node_numel(w->g, s) == 1 && !lower_is_member(w, s)) {
            bool linear;
            if (lower_is_member(w, node_source(w->g, s, &linear)))
                continue;
            val zero[KL_MAX_RANK];
            for (int d = 0; d < KL_MAX_RANK; d++)
                zero[d] = k_int(w->k, 0);
            lower_at(w, s, zero);
            state->memo.point = memo_permanent(w);
        } else if (!lower_in_memory(w, s) && state->memo.point != memo_visited(w)) {
            state->memo.point = memo_visited(w);
            fix_scalars(w, s);
        }
    }
}

void lower_scalars(struct lowering *w)
{
    lower_point(w);
    w->epoch++;
    for (uint32_t m = 0; m < w->nmember; m++)
        fix_scalars(w, w->member[m]);
}

void lower_next_phase(struct lowering *w)
{
    k_append(w->k, (struct linst){.op = L_SYNC});
    kernel_take_symbols(w->k, w->k->placeholders);
    lower_scalars(w);
}

static void open_guard(struct kernel *k, struct tasks *t)
{
    int64_t number;
    if (t->active && !ix_const(k, t->active, &number))
        t->guard = k_if(k, k_prim(k, P_LT, t->loop, t->active, 0));
}

val lower_tasks(struct lowering *w, int64_t extent, val active, struct tasks *t)
{
    struct kernel *k = w->k;
    k->extent = extent;
    *t = (struct tasks){.loop = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, extent), 1), .active = active};
    open_guard(k, t);
    return t->loop;
}

val lower_blocks(struct lowering *w, int64_t extent, val active, struct tasks *t)
{
    struct kernel *k = w->k;
    k->extent = extent;
    *t = (struct tasks){.loop = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, extent), 1), .active = active};
    return t->loop;
}

val lower_threads(struct lowering *w, int64_t threads, struct tasks *t)
{
    t->block = k_loop(w->k, LOOP_BLOCK, k_int(w->k, 0), k_int(w->k, threads), 1);
    open_guard(w->k, t);
    return t->block;
}

void lower_tasks_end(struct lowering *w, const struct tasks *t)
{
    if (t->guard)
        k_end(w->k, t->guard);
    if (t->block)
        k_end(w->k, t->block);
    k_end(w->k, t->loop);
}

bool lower_in_prologue(const struct lowering *w, ref r)
{
    /* Pass fuse gives a reduce a prologue only if its operand and its result differ in size. */
    int64_t in = node_numel(w->g, w->g->node[w->anchor].in[0]);
    return node_numel(w->g, r) == in && in != node_numel(w->g, w->anchor);
}

/* Sums that a graph of absurd size would overflow stay at the largest number. */
static int64_t clamp_estimate(double v) { return v < 0x1p63 ? (int64_t)v : INT64_MAX; }

/* Elements that member r reads through its operand i, whose stored value is x: those of the smallest view on the way,
 * and no more than r has where it selects elements (a gather, a dynamic slice). */
static int64_t elements_read(const struct graph *g, ref r, unsigned i, ref x)
{
    ref at = node_in(g, &g->node[r], i);
    int64_t n = node_numel(g, x);
    if (op_is_select(g->node[r].op) || op_is_view(g->node[r].op))
        n = node_numel(g, r) < n ? node_numel(g, r) : n;
    for (; at != x; at = g->node[at].in[0])
        n = node_numel(g, at) < n ? node_numel(g, at) : n;
    return n;
}

/* Is member r a dynamic_update or scatter of a state of which the kernel stores only what is new where it is in place
 * (lower_map.c, lower_scatter.c)? */
static bool stores_window(const struct lowering *w, ref r)
{
    const struct kernel *k = w->k;
    bool update = w->g->node[r].op == OP_dynamic_update || w->g->node[r].op == OP_scatter;
    for (val v = 1; v < k->ninst && update; v++)
        if (k->inst[v].op == L_ALIAS && w->out->arg[k->buf[k->inst[v].imm >> 32].id].node == r)
            return true;
    return false;
}

/* Bytes of argument x of the kernel that are read or written: all of a result, but for windows of states. */
static double bytes_touched(const struct lowering *w, ref x)
{
    double all = (double)node_numel(w->g, x), read = 0;
    for (uint32_t m = 0; m < w->nmember; m++) {
        const struct node *n = &w->g->node[w->member[m]];
        bool linear;
        if ((w->member[m] == x || node_operand(w->g, w->member[m], 0, &linear) == x) &&
            stores_window(w, w->member[m]))
            return w->member[m] == x ? (double)node_bytes(w->g, n->in[n->op == OP_scatter ? 2 : 1]) : 0;
    }
    for (uint32_t m = 0; m < w->nmember; m++) {
        const struct node *n = &w->g->node[w->member[m]];
        if (w->member[m] == x)
            return (double)node_bytes(w->g, x);
        for (unsigned i = 0; i < node_nin(n); i++) {
            bool linear, again = false;
            for (unsigned k = 0; k < i; k++)
                again |= node_in(w->g, n, k) == node_in(w->g, n, i);
            if (!again && node_operand(w->g, w->member[m], i, &linear) == x)
                read += (double)elements_read(w->g, w->member[m], i, x);
        }
    }
    return (read < all && read > 0 ? read : all) * (double)dtype_size(w->g->node[x].dtype);
}

/* Bytes and operations are 0, not known, where they depend on data: attention's ranges of keys. */
static void estimate_kernel(struct lowering *w)
{
    double bytes = 0, flops = 0;
    bool known = true;
    for (uint32_t i = 0; i < w->out->narg; i++)
        bytes += bytes_touched(w, w->out->arg[i].node);
    for (uint32_t m = 0; m < w->nmember; m++) {
        ref r = w->member[m];
        const struct node *n = &w->g->node[r];
        if (op_is_view(n->op))
            continue;
        if (n->op == OP_dot) {
            struct dot_dims d = dot_sizes(w->g, n);
            flops += 2 * (double)d.batch * (double)d.m * (double)d.n * (double)d.k;
        } else if (op_is_attention(n->op)) {
            /* attention_stats has the attention's scores; half of the products of a gradient in k and v beside that in
             * q are that one's */
            flops += r == w->anchor ? attention_flops(w->g, n)
                : n->op == OP_attention_grad ? attention_flops(w->g, n) / 2 : 0;
            known &= !attention_has_ranges(w->g, n);
        } else {
            flops += (double)node_numel(w->g, op_is_reduce(n->op) ? n->in[0] : stores_window(w, r) ? n->in[1] : r);
        }
    }
    w->k->bytes = known ? clamp_estimate(bytes) : 0;
    w->k->flops = known ? clamp_estimate(flops) : 0;
    w->k->placeholders = NULL; /* it outlives them */
}

static bool shape_has_symbol(const struct lowering *w, ref r)
{
    const struct shape *s = node_shape(w->g, r);
    bool any = false;
    for (uint32_t i = 0; i < s->rank; i++)
        any |= !size_is_constant(kernel_length(w->k, s->dim[i]));
    return any;
}

/* Has a member, or what it reads, a symbol in its shape? */
static bool is_symbolic(const struct lowering *w)
{
    bool any = false;
    for (uint32_t m = 0; m < w->nmember && w->k->placeholders && !any; m++) {
        const struct node *n = &w->g->node[w->member[m]];
        any |= shape_has_symbol(w, w->member[m]);
        for (unsigned i = 0; i < n->nin; i++)
            any |= shape_has_symbol(w, n->in[i]);
    }
    return any;
}

/* Finds the kind of the group, whose function selects a family (lower_as_family). */
static void select_group(struct lowering *w)
{
    for (uint32_t m = 0; m < w->nmember; m++)
        if (op_is_anchor(w->g->node[w->member[m]].op))
            w->anchor = w->member[m];
    unsigned op = w->anchor ? w->g->node[w->anchor].op : OP_nil;
    if (op && (op_is_cumulative(op) || op == OP_argsort) && is_symbolic(w)) {
        kernel_mark_unsupported(w->k, "a sort or a scan is made for lengths that are numbers");
        return;
    }
#define GROUP(group, lower, condition) \
    if (condition) { \
        lower(w); \
        return; \
    }
#include "families.def"
}

bool trial_begin(struct trial *t, const struct lowering *w)
{
    *t = (struct trial){.w = *w};
    t->w.out = &t->out;
    t->w.arg_cap = 0;
    t->w.copied.node = NIL;
    t->w.l.k = t->w.k = kernel_new("trial");
    if (t->w.k)
        kernel_take_symbols(t->w.k, w->k->placeholders);
    t->w.state = w->trial_state;
    t->w.mine = ++*w->stamp;
    return t->w.k;
}

void trial_end(struct trial *t, struct lowering *w)
{
    if (!t->w.k)
        lower_fail(w);
    else if (t->w.k->err.code && !w->k->err.code)
        w->k->err = t->w.k->err;
    kernel_free(t->w.k);
    mem_free(t->out.arg);
}

/* ---- all groups of a graph ---- */

struct lowerer {
    const struct graph *g;
    const struct target_set *targets;
    const struct placeholders *placeholders;
    struct groups groups;
    struct node_state *state[2];
    bool *assigned;                /* per group: a member is the next value of a state */
    int64_t *pitch;                /* per node: lower_pitch.c */
    bool pitched;                  /* any is not 0 */
    struct lower_key key;
    uint32_t hashed;               /* number + 1 of the target whose hash is `target` */
    struct hash128 target;
    uint32_t stamp, first;
};

_Atomic(uint64_t) lower_misses;

static void find_assigned(struct lowerer *s)
{
    const struct graph *g = s->g;
    for (uint32_t i = 0; i < g->nout; i++) {
        uint32_t id = g->group[node_stored(g, g->out[i].value)];
        if (g->out[i].kind == OUT_ASSIGN && id != GROUP_NONE)
            s->assigned[id] = true;
    }
}

struct lowerer *lowerer_new(const struct graph *g, const struct target_set *targets, uint32_t first,
                            struct memo_pack *pack, const struct placeholders *placeholders)
{
    struct lowerer *s = mem_alloc(sizeof *s);
    if (!s)
        return NULL;
    *s = (struct lowerer){.g = g, .targets = targets, .first = first, .key.pack = pack,
                          .placeholders = placeholders};
    bool ok = groups_make(g, &s->groups);
    for (int i = 0; i < 2; i++)
        ok &= (s->state[i] = mem_alloc(g->nnode * sizeof *s->state[i])) != NULL;
    ok &= (s->assigned = mem_alloc((g->ngroup + 1) * sizeof *s->assigned)) != NULL;
    ok &= (s->key.mark = mem_alloc(g->nnode * sizeof *s->key.mark)) != NULL;
    ok &= (s->pitch = mem_alloc(g->nnode * sizeof *s->pitch)) != NULL;
    if (ok) {
        find_assigned(s);
        if (!placeholders || !placeholders->n)
            s->pitched = lower_pitches(g, targets, &s->groups, s->pitch);
        return s;
    }
    lowerer_free(s);
    return NULL;
}

void lowerer_free(struct lowerer *s)
{
    if (!s)
        return;
    groups_free(&s->groups);
    mem_free(s->state[0]);
    mem_free(s->state[1]);
    mem_free(s->assigned);
    mem_free(s->pitch);
    lower_key_free(&s->key);
    mem_free(s);
}

const struct groups *lowerer_groups(const struct lowerer *s) { return &s->groups; }
const int64_t *lowerer_pitch(const struct lowerer *s) { return s->pitched ? s->pitch : NULL; }

/* The user's line: that of the anchor, else that of the last node, whose value all the others are for. */
static void name_line(struct kernel *k, const struct graph *g, const ref *member, uint32_t n)
{
    const kl_site *s = NULL;
    for (uint32_t m = 0; m < n; m++) {
        s = &g->site[g->node[member[m]].site];
        if (op_is_anchor(g->node[member[m]].op))
            break;
    }
    k->file[0] = '\0';
    k->line = 0;
    if (s && s->file && s->line > 0) {
        snprintf(k->file, sizeof k->file, "%s", s->file);
        k->line = s->line;
    }
}

void lower_name(const struct lowerer *s, uint32_t group, struct kernel *k)
{
    const uint32_t *first = &s->groups.first[group];
    const ref *member = s->groups.member + first[0];
    int at = snprintf(k->name, sizeof k->name, "k%u", s->first + group);
    for (uint32_t m = 0; m < first[1] - first[0] && at < (int)sizeof k->name - 1; m++)
        at += snprintf(k->name + at, sizeof k->name - (size_t)at, "_%s", opinfo[s->g->node[member[m]].op].name);
    name_line(k, s->g, member, first[1] - first[0]);
}

static struct hash128 target_hash(struct lowerer *s, const struct chooser *c)
{
    if (s->hashed != c->target + 1) {
        s->target = chooser_hash(c);
        s->hashed = c->target + 1;
    }
    return s->target;
}

static bool build_kernel(struct lowering *w, struct err *e)
{
    w->l = (struct lower){.k = w->k, .g = w->g, .at = at_callback};
    w->k->extent = 1;
    kernel_take_symbols(w->k, w->placeholders);
    const struct chooser *c = w->chooser;
    /* before anything is computed from its numbers */
    if (!c->want || sched_in_range(&sched_families[c->want->kind], &c->want->record, &w->k->err))
        select_group(w);
    if (w->k->err.code == KL_ERR_COMPILE) /* what else is wrong with it does not matter */
        return *e = w->k->err, false;
    estimate_kernel(w);
    return kernel_clean(w->k) ? kernel_verify(w->k, e) : (*e = w->k->err, false);
}

#ifndef NDEBUG
/* Does lowering group w give what was found for it? */
static bool verify_memo_hit(const struct lowering *w, struct err *e)
{
    struct lowered fresh = {.k = kernel_new(w->k->name)};
    struct lowering v = *w;
    v.out = &fresh;
    v.k = fresh.k;
    v.mine = ++*w->stamp;
    bool ok = fresh.k ? build_kernel(&v, e) : err_set(e, KL_ERR_MEMORY, "out of memory lowering @%s", w->g->name);
    bool same = ok && kernel_same(fresh.k, w->k) && fresh.narg == w->out->narg &&
                fresh.k->flops == w->k->flops && fresh.k->bytes == w->k->bytes &&
                (!fresh.narg || !memcmp(fresh.arg, w->out->arg, fresh.narg * sizeof *fresh.arg));
    if (ok && !same)
        err_set(e, KL_ERR_INTERNAL, "kernel %s: one of an equal key was another", w->k->name);
    kernel_free(fresh.k);
    mem_free(fresh.arg);
    return same;
}
#endif

/* Finds the kernel, or makes it and keeps it. */
static bool find_or_build(struct lowerer *s, struct lowering *w, struct err *e)
{
    const struct chooser *c = w->chooser;
    bool keyed = !w->placeholders && lower_key_make(&s->key, w, target_hash(s, c));
    w->out->group = keyed ? s->key.hash : (struct hash128){0};
    keyed = keyed && (!c->want || lower_key_schedule(&s->key, c->want));
    if (keyed && lower_memo_find(&s->key, w->k, w->out)) {
#ifndef NDEBUG
        return verify_memo_hit(w, e);
#else
        return true;
#endif
    }
    atomic_fetch_add_explicit(&lower_misses, 1, memory_order_relaxed);
    if (!build_kernel(w, e))
        return false;
    if (keyed)
        lower_memo_add(&s->key, w->out);
    return true;
}

/* The kernel of these members, which have group `group`. */
static bool lower_members(struct lowerer *s, uint32_t group, const ref *member, uint32_t nmember,
                          const struct schedule *want, struct lowered *out, struct err *e)
{
    struct chooser c = {.want = want};
    *out = (struct lowered){.k = kernel_new("")};
    if (!out->k)
        return err_set(e, KL_ERR_MEMORY, "out of memory lowering @%s", s->g->name);
    struct lowering w = {.k = out->k, .g = s->g, .group = group, .chooser = &c, .out = out,
                         .placeholders = s->placeholders && s->placeholders->n ? s->placeholders : NULL,
                         .member = member, .nmember = nmember,
                         .place = s->groups.place, .stored = s->groups.stored, .pitch = s->pitch, .state = s->state[0],
                         .trial_state = s->state[1], .stamp = &s->stamp, .mine = ++s->stamp};
    w.gpu = chooser_find(&c, s->targets, s->g->node[w.member[0]].device);
    w.assigned = s->assigned[group];
    lower_name(s, group, out->k);
    if (find_or_build(s, &w, e))
        return true;
    kernel_free(out->k);
    mem_free(out->arg);
    *out = (struct lowered){0};
    return false;
}

static uint32_t members_of(const struct lowerer *s, uint32_t group, const ref **member)
{
    const uint32_t *first = &s->groups.first[group];
    *member = s->groups.member + first[0];
    return first[1] - first[0];
}

bool lower_group(struct lowerer *s, uint32_t group, const struct schedule *want, struct lowered *out, struct err *e)
{
    const ref *member;
    uint32_t n = members_of(s, group, &member);
    return lower_members(s, group, member, n, want, out, e);
}

bool lower_groups(struct lowerer *s, struct graph *g, const uint32_t *group, uint32_t n, const struct schedule *want,
                  struct lowered *out, struct err *e)
{
    const ref *member;
    uint32_t count = 0, most = 1;
    for (uint32_t i = 0; i < n; i++)
        most += members_of(s, group[i], &member);
    ref *all = mem_alloc(most * sizeof *all);
    if (!all)
        return err_set(e, KL_ERR_MEMORY, "out of memory lowering @%s", g->name);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t own = members_of(s, group[i], &member);
        s->assigned[group[0]] |= s->assigned[group[i]];
        for (uint32_t m = 0; m < own; m++) {
            g->group[member[m]] = group[0];
            s->groups.place[member[m]] = count;
            all[count++] = member[m];
        }
    }
    bool ok = lower_members(s, group[0], all, count, want, out, e);
    mem_free(all);
    return ok;
}

void lowerer_look(const struct lowerer *s, uint32_t group, const struct graph **g, const struct caps **caps, ref *dot,
                  uint32_t *members)
{
    const ref *member;
    *members = members_of(s, group, &member);
    *g = s->g;
    struct chooser c = {0};
    chooser_find(&c, s->targets, s->g->node[member[0]].device);
    *caps = c.caps;
    *dot = NIL;
    for (uint32_t m = 0; m < *members; m++)
        if (s->g->node[member[m]].op == OP_dot)
            *dot = member[m];
}
