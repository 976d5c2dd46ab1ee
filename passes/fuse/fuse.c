/* Groups nodes into kernels.
 *
 * In: a graph without grad nodes.  Out: g->group, and copies of nodes; no value changes.
 *
 * 1.  Every computed node starts as its own group.  Scalars made of few leaves and patterns made of indices have none:
 * each kernel that needs one computes it.  A region op and its results are a group; a copy is a group.
 * 2.  Each pair of groups of which one reads the other, or which read the same array, is a candidate.  Candidates that
 * may be one kernel (fuse_rules.c) are in a priority queue, ordered by the bytes that fusing them saves.  The best pair
 * is fused first.  A score is recomputed when its candidate is taken from the queue.
 * 3.  Rejected candidates are tried again after all others, because a group on an indirect path between the two may
 * have been fused with one of them; row kernels take along what is on such a path if these are values of rows.
 * 4.  Values that are cheaper to recompute than to store get copies (fuse_remat.c), and steps 1 to 3 are repeated.
 * 5.  Independent updates become parts of one kernel (fuse_parts.c). */
#include "fuse.h"
#include <string.h>

static bool is_compute(const struct node *n)
{
    return op_is_map(n->op) || n->op == OP_bitcast || op_is_quant(n->op) || n->op == OP_random ||
           op_is_select(n->op) || op_is_anchor(n->op);
}

/* Can r be computed from leaves in at most that many steps, without the result of a kernel? arrays: leaves may be
 * arrays. */
static bool is_leaf_expression(struct fuser *f, ref r, uint32_t max, bool arrays)
{
    const struct graph *g = f->g;
    f->cost[r] = 1;
    for (unsigned i = 0; i < g->node[r].nin; i++) {
        bool linear;
        ref s = node_operand(g, r, i, &linear);
        f->cost[r] += f->cost[s];
        if (group_of(f, s) != GROUP_NONE || (!arrays && node_is_stored_leaf(g, s)) || f->cost[r] > max)
            return false;
    }
    return true;
}

/* A scalar whose operands are leaves or such scalars, in few steps. */
static bool is_free_scalar(struct fuser *f, ref r)
{
    return !op_is_anchor(f->g->node[r].op) && node_numel(f->g, r) == 1 &&
           is_leaf_expression(f, r, MAX_FREE_SCALAR, true);
}

/* A pattern, such as a causal mask: computed from indices and constants in few steps, and read element by element.
 * Every kernel that needs one computes it.  It is never in memory, and kernels are not candidates only because they use
 * the same pattern. */
static bool is_pattern(struct fuser *f, ref r)
{
    const struct graph *g = f->g;
    unsigned op = g->node[r].op;
    if (!op_is_map(op) || fuse_work(op) > 1 || f->output[r] || f->viewed[r] ||
        !is_leaf_expression(f, r, MAX_PATTERN, false))
        return false;
    for (uint32_t k = f->readers[r]; k < f->readers[r + 1]; k++)
        if (!op_is_map(g->node[f->reader[k]].op))
            return false;
    return true;
}

/* Lists the readers of every node. */
static bool list_readers(struct fuser *f)
{
    const struct graph *g = f->g;
    uint32_t n = 0;
    bool linear;
    for (ref r = 1; r < g->nnode; r++)
        for (unsigned i = 0; !node_is_view(g, r) && i < node_nin(&g->node[r]); i++, n++)
            f->readers[node_operand(g, r, i, &linear) + 1]++;
    f->reader = mem_arena_alloc(&f->mem, (n + 1) * sizeof *f->reader);
    if (!f->reader)
        return false;
    for (ref r = 0; r < g->nnode; r++)
        f->readers[r + 1] += f->readers[r];
    for (ref r = g->nnode; r-- > 1;) /* backwards, so that every list is ascending when its end has become its start */
        for (unsigned i = 0; !node_is_view(g, r) && i < node_nin(&g->node[r]); i++)
            f->reader[--f->readers[node_operand(g, r, i, &linear) + 1]] = r;
    memmove(f->readers, f->readers + 1, g->nnode * sizeof *f->readers);
    f->readers[g->nnode] = n;
    return true;
}

uint32_t fuse_group(struct fuser *f, ref r)
{
    uint32_t id = f->ngroup++;
    const struct node *n = &f->g->node[r];
    bool anchor = op_is_anchor(n->op) || op_is_non_fusible(n->op);
    f->group[id] = (struct group){.first = r, .last = r, .low = r, .high = r, .anchor = anchor ? r : NIL,
                                  .numel = node_numel(f->g, r),
                                  .run = fuse_run(f->g, r),
                                  .nodes = 1, .reads = n->nin, .device = n->device,
                                      .non_fusible = op_is_non_fusible(n->op),
                                  .remat = n->flags & MARK_REMAT};
    f->g->group[r] = id;
    return id;
}

void fuse_member(struct fuser *f, uint32_t id, ref r)
{
    struct group *b = &f->group[id];
    f->g->group[r] = id;
    f->next[b->last] = r;
    b->last = b->high = r;
    int64_t run = fuse_run(f->g, r);
    b->run = run < b->run ? run : b->run;
    b->nodes++;
    b->reads += f->g->node[r].nin;
}

void fuse_absorb(struct fuser *f, uint32_t a, uint32_t b)
{
    struct group *ga = &f->group[a], *gb = &f->group[b];
    for (ref r = gb->first; r; r = f->next[r])
        f->g->group[r] = a;
    f->next[ga->last] = gb->first;
    ga->last = gb->last;
    ga->low = ga->low < gb->low ? ga->low : gb->low;
    ga->high = ga->high > gb->high ? ga->high : gb->high;
    ga->run = ga->run < gb->run ? ga->run : gb->run;
    ga->nodes += gb->nodes;
    ga->reads += gb->reads;
    ga->remat |= gb->remat;
    if (!ga->anchor)
        ga->anchor = gb->anchor;
    gb->merged = true;
}

/* Makes groups of copies, and of region ops with their results. */
static void group_non_fusible(struct fuser *f, ref r)
{
    const struct node *n = &f->g->node[r];
    if (op_is_non_fusible(n->op))
        fuse_group(f, r);
    if (n->op != OP_proj)
        return;
    fuse_member(f, group_of(f, n->in[0]), r);
}

static void single_groups(struct fuser *f, bool scalars)
{
    struct graph *g = f->g;
    for (ref r = 1; r < g->nnode; r++)
        if (op_is_non_fusible(g->node[r].op) || g->node[r].op == OP_proj)
            group_non_fusible(f, r);
        else if (is_compute(&g->node[r]) && !node_is_view(g, r) &&
                 (scalars || op_is_masked(g->node[r].op) || !(is_free_scalar(f, r) || is_pattern(f, r))))
            fuse_group(f, r);
}

/* ---- the queue ---- */

struct fuse_candidate {
    double score;
    ref a, b;           /* members of two groups: b reads a, or both read shared */
    ref shared;
    bool blocked;       /* a path between the groups was found */
};

struct queue {
    struct fuse_candidate *v; uint32_t n, cap;         /* a heap with the best candidate on top */
    struct fuse_candidate *later; uint32_t nlater, later_cap; /* rejected candidates, to be tried again */
    bool failed;
};

static bool candidate_is_better(const struct fuse_candidate *x, const struct fuse_candidate *y)
{
    if (x->score != y->score)
        return x->score > y->score;
    return x->b != y->b ? x->b < y->b : x->a != y->a ? x->a < y->a : x->shared < y->shared;
}

static void fuse_push(struct queue *q, struct fuse_candidate c)
{
    if (!mem_reserve(&q->v, &q->cap, q->n + 1, sizeof *q->v)) {
        q->failed = true;
        return;
    }
    uint32_t i = q->n++;
    for (; i && candidate_is_better(&c, &q->v[(i - 1) / 2]); i = (i - 1) / 2)
        q->v[i] = q->v[(i - 1) / 2];
    q->v[i] = c;
}

static struct fuse_candidate queue_pop(struct queue *q)
{
    struct fuse_candidate top = q->v[0], x = q->v[--q->n];
    uint32_t i = 0;
    for (uint32_t c; (c = 2 * i + 1) < q->n; i = c) {
        c += c + 1 < q->n && candidate_is_better(&q->v[c + 1], &q->v[c]);
        if (!candidate_is_better(&q->v[c], &x))
            break;
        q->v[i] = q->v[c];
    }
    if (q->n)
        q->v[i] = x;
    return top;
}

static void retry_later(struct queue *q, struct fuse_candidate c)
{
    if (mem_reserve(&q->later, &q->later_cap, q->nlater + 1, sizeof *q->later))
        q->later[q->nlater++] = c;
    else
        q->failed = true;
}

static struct verdict fuse_evaluate(struct fuser *f, const struct fuse_candidate *c, bool paths)
{
    uint32_t a = group_of(f, c->a), b = group_of(f, c->b);
    return c->shared ? fuse_score_siblings(f, a, b, c->shared, paths) : fuse_score_group(f, a, b, paths);
}

/* Adds a candidate to the queue with its current score. */
static void fuse_enqueue(struct fuser *f, struct queue *q, struct fuse_candidate c)
{
    struct verdict v = fuse_evaluate(f, &c, false);
    if (v.join == JOIN_NONE) {
        retry_later(q, c);
        return;
    }
    c.score = fuse_score(f, group_of(f, c.a), group_of(f, c.b), c.shared, v.join);
    fuse_push(q, c);
}

static bool reads_whole(const struct fuser *f, ref r, ref x)
{
    for (unsigned i = 0; i < f->g->node[r].nin; i++) {
        bool linear;
        if (node_operand(f->g, r, i, &linear) == x && linear && node_numel(f->g, r) == node_numel(f->g, x))
            return true;
    }
    return false;
}

static void enqueue_all(struct fuser *f, struct queue *q)
{
    for (ref x = 1; x < f->g->nnode; x++) {
        ref before = NIL;               /* the last reader that may have a sibling */
        bool array = group_of(f, x) != GROUP_NONE || node_is_stored_leaf(f->g, x);
        for (uint32_t i = f->readers[x]; i < f->readers[x + 1]; i++) {
            ref r = f->reader[i];
            if (group_of(f, r) == GROUP_NONE || (i > f->readers[x] && r == f->reader[i - 1]))
                continue;
            if (group_of(f, x) != GROUP_NONE && group_of(f, x) != group_of(f, r))
                fuse_enqueue(f, q, (struct fuse_candidate){.a = x, .b = r});
            if (!array || !reads_whole(f, r, x))
                continue;
            if (before)
                fuse_enqueue(f, q, (struct fuse_candidate){.a = before, .b = r, .shared = x});
            before = r;
        }
    }
}

/* Does a group before `to` read values of `from` and have at most that many? */
static bool has_small_reader(const struct fuser *f, uint32_t from, uint32_t to, int64_t max)
{
    for (ref r = f->group[from].first; r; r = f->next[r])
        for (uint32_t k = f->readers[r]; k < f->readers[r + 1]; k++) {
            uint32_t id = group_of(f, f->reader[k]);
            if (id != GROUP_NONE && id != from && f->group[id].numel <= max && f->group[id].rank < f->group[to].rank)
                return true;
        }
    return false;
}

/* The groups of candidate c could be one kernel but for paths between them.  If these go through values of rows only,
 * and all of it can be one row kernel, fuses the earlier group with those values and then with the later one.  A value
 * on the path that is fused with another kernel first, say a weight of rows with the sum of the loss, would keep the
 * two apart for ever.  Returns whether any were fused. */
static bool fuse_through_rows(struct fuser *f, const struct fuse_candidate *c)
{
    enum { MAX_BETWEEN = 12, MUCH_SMALLER = 16 };
    uint32_t v[MAX_BETWEEN + 2] = {group_of(f, c->a), group_of(f, c->b)};
    bool later = f->group[v[1]].rank < f->group[v[0]].rank;
    uint32_t from = v[later], to = v[!later], at = from;
    int64_t full = f->group[from].numel > f->group[to].numel ? f->group[from].numel : f->group[to].numel;
    if (!has_small_reader(f, from, to, full / MUCH_SMALLER))
        return false;
    uint32_t n = fuse_order_between(f, from, to, v + 1, MAX_BETWEEN);
    for (uint32_t i = 1; i <= n; i++)
        if (f->group[v[i]].numel > full / MUCH_SMALLER)
            return false;
    v[0] = from;
    v[n + 1] = to;
    if (!n || !fuse_rows_all(f, v, n + 2))
        return false;
    for (uint32_t i = 1; i <= n + 1; i++) {
        enum join join = fuse_score_group(f, at, v[i], true).join;
        if (join == JOIN_NONE)
            return i > 1;
        fuse_join(f, at, v[i], join);
        at = f->group[at].merged ? v[i] : at;
    }
    return true;
}

/* A candidate with a path between its groups: tries it with what is on the path, in the order of row kernels, and if
 * that does not help, later. Returns whether any were fused. */
static bool fuse_blocked(struct fuser *f, struct queue *q, struct fuse_candidate c)
{
    uint32_t a = group_of(f, c.a), b = group_of(f, c.b);
    if (!c.blocked) {
        c.blocked = true;
        c.score = fuse_score(f, a, b, c.shared, JOIN_ROWS);
        fuse_push(q, c);
        return false;
    }
    bool any = fuse_through_rows(f, &c);
    c.blocked = false;
    if (group_of(f, c.a) != group_of(f, c.b))
        retry_later(q, c);
    return any;
}

/* Fuses the best candidates until none is left.  Returns whether any were fused. */
static bool fuse_best_first(struct fuser *f, struct queue *q)
{
    bool any = false;
    while (q->n && !q->failed) {
        struct fuse_candidate c = queue_pop(q);
        uint32_t a = group_of(f, c.a), b = group_of(f, c.b);
        if (a == b)
            continue;
        struct verdict v = fuse_evaluate(f, &c, false);
        double score = v.join == JOIN_NONE ? 0 : fuse_score(f, a, b, c.shared, v.join);
        if (v.join != JOIN_NONE && score < c.score) {
            c.score = score;
            fuse_push(q, c);
            continue;
        }
        if (v.join == JOIN_NONE) {
            retry_later(q, c);
        } else if (fuse_evaluate(f, &c, true).join == JOIN_NONE) {
            any |= fuse_blocked(f, q, c);
        } else {
            fuse_join(f, a, b, v.join);
            any = true;
        }
    }
    return any;
}

enum { MAX_ROUNDS = 16 };

static bool fuse_all(struct fuser *f)
{
    struct queue q = {0};
    fuse_attention(f);
    fuse_attention_gradients(f);
    fuse_block_dots(f);
    enqueue_all(f, &q);
    for (int round = 0; fuse_best_first(f, &q) && round < MAX_ROUNDS; round++) {
        uint32_t n = q.nlater;
        q.nlater = 0;
        for (uint32_t i = 0; i < n; i++) /* fuse_enqueue may add q.later[i] again, at or before its position */
            if (group_of(f, q.later[i].a) != group_of(f, q.later[i].b))
                fuse_enqueue(f, &q, q.later[i]);
    }
    mem_free(q.v);
    mem_free(q.later);
    return !q.failed;
}

/* Makes a group for a value that no kernel stores and that is not in memory. */
static void fuse_store(struct fuser *f, ref v)
{
    bool linear;
    ref s = node_source(f->g, v, &linear), permute = fuse_stored_permute(f, v);
    if (permute) {
        f->group[group_of(f, s)].permute = permute;
        f->permuted[v] = true;
        fuse_member(f, group_of(f, s), v);
        return;
    }
    if (group_of(f, v) == GROUP_NONE && (!linear || (group_of(f, s) == GROUP_NONE && !node_is_stored_leaf(f->g, s))))
        fuse_group(f, v);
}

static void store_whole(struct fuser *f)
{
    for (uint32_t i = 0; i < f->g->nout; i++)
        fuse_store(f, f->g->out[i].value);
    for (uint32_t i = 0; i < f->g->noperand; i++)
        fuse_store(f, f->g->operand[i]);
    for (ref r = 1; r < f->g->nnode; r++)
        if (f->g->node[r].op == OP_copy)
            fuse_store(f, f->g->node[r].in[0]);
}

/* Numbers the remaining groups 0, 1, ... in the order of their first nodes. */
static void renumber_groups(struct fuser *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->ngroup; i++)
        if (!f->group[i].merged)
            f->seen[i] = n++;
    for (ref r = 1; r < f->g->nnode; r++)
        if (f->g->group[r] != GROUP_NONE)
            f->g->group[r] = f->seen[f->g->group[r]];
    f->g->ngroup = n;
}

bool fuser_open(struct fuser *f, struct graph *g)
{
    uint32_t n = g->nnode;
    *f = (struct fuser){.g = g};
    f->group = mem_arena_alloc(&f->mem, n * sizeof *f->group);
    f->next = mem_arena_alloc(&f->mem, n * sizeof *f->next);
    f->readers = mem_arena_alloc(&f->mem, (n + 1) * sizeof *f->readers);
    f->output = mem_arena_alloc(&f->mem, n * sizeof *f->output);
    f->viewed = mem_arena_alloc(&f->mem, n * sizeof *f->viewed);
    f->permuted = mem_arena_alloc(&f->mem, n * sizeof *f->permuted);
    f->prologue = mem_arena_alloc(&f->mem, n * sizeof *f->prologue);
    f->cost = mem_arena_alloc(&f->mem, n * sizeof *f->cost);
    f->marked = mem_arena_alloc(&f->mem, n * sizeof *f->marked);
    f->seen = mem_arena_alloc(&f->mem, n * sizeof *f->seen);
    f->stack = mem_arena_alloc(&f->mem, n * sizeof *f->stack);
    if (f->mem.failed || !list_readers(f))
        return false;
    for (uint32_t i = 0; i < g->nout; i++) {
        bool linear;
        ref s = node_source(g, g->out[i].value, &linear);
        f->output[linear ? s : g->out[i].value] = true;
        f->viewed[s] |= !linear;
    }
    return true;
}

void fuser_close(struct fuser *f) { mem_arena_free(&f->mem); }

/* Makes one grouping. remat: if values should be recomputed, the graph is replaced by one with their copies and without
 * groups (1). -1: g->err. */
static int group_all(struct graph *g, bool unfused, bool remat, const struct pass_options *o)
{
    struct fuser f = {0};
    int changed = 0;
    mem_free(g->group);
    g->group = mem_alloc(g->nnode * sizeof *g->group);
    for (ref r = 0; g->group && r < g->nnode; r++)
        g->group[r] = GROUP_NONE;
    for (ref r = 1; g->group && unfused && r < g->nnode; r++)
        g->group[r] = op_is_masked(g->node[r].op) ? 0 : GROUP_NONE;
    bool ok = g->group && (unfused || fuse_pads_choose(g, o)) && fuser_open(&f, g);
    if (ok) {
        f.processor = o->processor;
        f.gpus = o->gpus;
        single_groups(&f, unfused);
        ok = unfused || (fuse_order(&f) && fuse_all(&f));
        store_whole(&f);
        changed = ok && remat ? fuse_remat(&f) : 0;
        ok = ok && changed >= 0;
        ok = ok && (unfused || changed || fuse_parts(&f));
        if (!changed)
            renumber_groups(&f);
    }
    fuser_close(&f);
    if (!ok)
        err_set(&g->err, KL_ERR_MEMORY, "out of memory fusing @%s", g->name);
    return ok ? changed : -1;
}

int pass_fuse(struct graph *g, const struct pass_options *o)
{
    if (g->symbols) /* kernels need known sizes */
        return 0;
    int changed = group_all(g, !o->fuse, o->fuse, o);
    if (changed > 0)
        changed = pass_dce(g, o) < 0 ? -1 : group_all(g, !o->fuse, false, o);
    return changed < 0 ? -1 : 1;
}
