/* Recording outside of traces: one graph for the process, the deferred graph.  A read computes the part of it that it
 * needs.
 *
 * A handle with a node in this graph is attached.  It is lazy while it has no buffer.  Otherwise it is a value whose
 * node is a leaf or, if it depends on a tensor marked by kl_requires_grad, the op that made it, so that it stays
 * differentiable.  A node whose value is known keeps it and is read like an input from then on.  Nodes that no attached
 * handle reaches are garbage; a collection copies the others to a new graph. */
#include "frontend/frontend.h"
#include <string.h>

enum {
    OP_NODES = 32,             /* upper bound of the nodes that one op appends, views and leaves included */
    LIMIT = 2048,              /* number of nodes above which lazy handles are computed to keep the graph small */
    HISTORY_LIMIT = 1 << 16,   /* the same while gradients may still be requested */
    SMALL = 64,                /* smaller graphs are not collected */
};
#define PINNED_LIMIT ((size_t)64 << 20) /* bytes of known values above which a collection is useful */

struct deferred {
    struct recording r;
    struct buffer **known;     /* per node: its value, or NULL */
    uint8_t *track;            /* per node: bits of enum track */
    bool *computed;            /* per node: a read has computed it, even if its value was dropped since */
    uint32_t known_cap, track_cap, computed_cap;
    size_t pinned;             /* bytes of known values */
    uint32_t borrowed;         /* known values in the user's memory, which should be released as soon as possible */
};
static struct deferred now, spare;
static uint32_t attached = NO_ENTRY;     /* handles with a node, linked by next and prev */
static uint32_t limit = LIMIT, after_last;  /* collect above `limit`; `after_last`: nodes left by the last collection */
static size_t pinned_limit = PINNED_LIMIT;
static atomic_bool unsettled;              /* see deferred_is_settled */

static bool deferred_make_room(struct deferred *a, uint32_t nodes)
{
    return mem_reserve(&a->known, &a->known_cap, nodes, sizeof *a->known) &&
           mem_reserve(&a->track, &a->track_cap, nodes, sizeof *a->track) &&
           mem_reserve(&a->computed, &a->computed_cap, nodes, sizeof *a->computed);
}

struct recording *deferred_recording(void)
{
    if (!now.r.g && !recording_open(&now.r, "lazy"))
        return NULL;
    return deferred_make_room(&now, now.r.g->nnode + OP_NODES) ? &now.r : NULL;
}

const struct graph *deferred_graph(void)
{
    return now.r.g;
}

bool deferred_room(uint32_t nodes)
{
    return deferred_recording() && deferred_make_room(&now, now.r.g->nnode + nodes);
}

static void deferred_map_insert(struct deferred *a, ref r, struct buffer *b)
{
    a->known[r] = buffer_ref(b);
    a->pinned += b->bytes;
    a->borrowed += b->release != NULL;
    if (b->release)
        atomic_store_explicit(&unsettled, true, memory_order_relaxed);
}

static bool is_derived(ref r)
{
    const struct node *n = node_at(now.r.g, r);
    bool carries = node_carries_gradient(n) && !(n->flags & MARK_STOP), found = false;
    for (unsigned i = 0; carries && !found && i < node_nin(n); i++)
        found = now.track[node_in(now.r.g, n, i)] != UNTRACKED;
    return found;
}

void deferred_added(ref r)
{
    now.known[r] = NULL;
    now.computed[r] = false;
    now.track[r] = is_derived(r) ? DERIVED : UNTRACKED;
}

bool deferred_tracked(ref r)
{
    return now.track[r] != UNTRACKED;
}

void deferred_bind(struct entry *x, ref r)
{
    deferred_unbind(x);
    x->node = r;
    x->prev = NO_ENTRY;
    x->next = attached;
    if (attached != NO_ENTRY)
        entry_at(attached)->prev = x->index;
    attached = x->index;
    atomic_store_explicit(&unsettled, true, memory_order_relaxed);
    if (x->requires_grad)
        now.track[r] |= ORIGIN;
}

void deferred_unbind(struct entry *x)
{
    if (x->node == NIL || x->kind != KIND_VALUE)
        return;
    if (x->prev == NO_ENTRY)
        attached = x->next;
    else
        entry_at(x->prev)->next = x->next;
    if (x->next != NO_ENTRY)
        entry_at(x->next)->prev = x->prev;
    x->node = NIL;
    x->next = x->prev = NO_ENTRY;
}

void deferred_mark(struct entry *x)
{
    x->requires_grad = true;
    if (x->node != NIL)
        now.track[x->node] |= ORIGIN;
}

bool deferred_marked(const bool *reach, struct handle_list *out)
{
    uint32_t n = 0;
    for (uint32_t i = attached; i != NO_ENTRY; i = entry_at(i)->next)
        n++;
    if (!mem_reserve(&out->h, &out->cap, n + 1, sizeof *out->h))
        return false;
    for (uint32_t i = attached; i != NO_ENTRY; i = entry_at(i)->next)
        if (entry_at(i)->requires_grad && reach[entry_at(i)->node])
            out->h[out->n++] = entry_handle(entry_at(i));
    return true;
}

ref deferred_node(struct entry *x, struct err *e)
{
    while (x->busy)
        front_wait();
    if (x->node != NIL)
        return x->node;
    ref r = n_input(now.r.g, x->dtype, &x->shape, x->name);
    if (r == NIL) {
        err_set(e, now.r.g->err.code, "%s", now.r.g->err.msg);
        now.r.g->err.code = KL_OK;
        return NIL;
    }
    now.r.g->node[r].device = x->device;
    deferred_added(r);
    deferred_map_insert(&now, r, x->buffer);
    deferred_bind(x, r);
    return r;
}

/* ---- copying what is needed ---- */

/* Copies one needed node to another recording; map has its operands there. */
static ref copy_node(struct recording *to, ref r, bool as_leaf, const ref *map)
{
    const struct graph *g = now.r.g;
    struct graph *out = to->g;
    struct node n = *node_at(g, r); /* a copy, because a slot's ordinal changes */
    if (as_leaf) {
        out->cur_site = graph_site(out, &g->site[n.site]);
        out->cur_device = n.device;
        return n_input(out, n.dtype, node_shape(g, r), "");
    }
    if (n.op == OP_slot) {
        uint64_t bits = now.r.slot[n.attr.leaf.index];
        n.attr.leaf.index = graph_leaf(out, &out->slot, n.dtype, node_shape(g, r), "");
        if (n.attr.leaf.index == LEAF_NONE || !recording_slot(to, n.attr.leaf.index, bits))
            return NIL;
        return graph_copy_node(out, g, &n, NULL);
    }
    return graph_copy_mapped(out, g, r, map);
}

/* ---- collecting ---- */

static void deferred_forget(struct deferred *a)
{
    for (ref r = 1; a->r.g && r < a->r.g->nnode; r++)
        if (a->known[r])
            front_drop(a->known[r]);
    a->pinned = 0;
    a->borrowed = 0;
}

static void mark_reachable(struct need *need)
{
    for (uint32_t i = attached; i != NO_ENTRY; i = entry_at(i)->next) {
        const struct entry *x = entry_at(i);
        if (!x->buffer)
            need->kind[x->node] |= NEED_VALUE;
        if (now.track[x->node] & DERIVED)
            need->kind[x->node] |= NEED_HISTORY;
    }
    need_spread(need);
}

/* Recomputes which nodes are tracked.  An earlier version of a marked state is no origin any more. */
static void track_anew(void)
{
    memset(now.track, UNTRACKED, now.r.g->nnode);
    for (uint32_t i = attached; i != NO_ENTRY; i = entry_at(i)->next)
        if (entry_at(i)->requires_grad)
            now.track[entry_at(i)->node] = ORIGIN;
    for (ref r = 1; r < now.r.g->nnode; r++)
        now.track[r] |= is_derived(r) ? DERIVED : 0;
}

/* Copies the needed nodes to `spare`; false: out of memory, nothing has changed. */
static bool copy_reachable(const struct need *need, ref *map)
{
    if (!recording_open(&spare.r, "lazy") || !deferred_make_room(&spare, now.r.g->nnode))
        return false;
    for (ref r = 1; r < now.r.g->nnode; r++) {
        if (!need->kind[r])
            continue;
        bool as_leaf = need_ends_at(need, r);
        map[r] = copy_node(&spare.r, r, as_leaf, map);
        if (map[r] == NIL)
            return false;
        spare.known[map[r]] = NULL;
        spare.track[map[r]] = as_leaf ? now.track[r] & ORIGIN : now.track[r];
        spare.computed[map[r]] = now.computed[r];
    }
    return true;
}

/* Updates the handles' nodes; a value whose node was dropped becomes a plain value. */
static void move_handles(const ref *map)
{
    uint32_t next;
    for (uint32_t i = attached; i != NO_ENTRY; i = next) {
        struct entry *x = entry_at(i);
        next = x->next;
        if (map[x->node])
            x->node = map[x->node];
        else
            deferred_unbind(x);
    }
}

void deferred_collect(void)
{
    if (!now.r.g || now.r.g->nnode == 1)
        return;
    uint32_t n = now.r.g->nnode;
    struct need need;
    ref *map = mem_alloc(n * sizeof *map);
    spare.pinned = 0;
    spare.borrowed = 0;
    if (need_init(&need, now.r.g, now.known, now.track) && map) {
        track_anew();
        mark_reachable(&need);
        if (copy_reachable(&need, map)) {
            for (ref r = 1; r < n; r++)
                if (map[r] && now.known[r])
                    deferred_map_insert(&spare, map[r], now.known[r]);
            move_handles(map);
            deferred_forget(&now);
            struct deferred old = now;
            now = spare;
            spare = old;
            recording_open(&spare.r, "lazy");
        }
    }
    need_free(&need);
    mem_free(map);
    after_last = now.r.g->nnode;
    pinned_limit = now.pinned > PINNED_LIMIT / 2 ? 2 * now.pinned : PINNED_LIMIT;
}

/* ---- computing ---- */

/* One program and the destinations of its outputs. */
struct deferred_batch {
    struct recording r;
    kl_tensor *h;              /* handles that get values */
    uint32_t *version, *out;   /* their versions when recorded; the number of their output */
    uint32_t n, nout;
};

static bool batch_room(struct deferred_batch *b, uint32_t nodes, uint32_t handles)
{
    b->h = mem_alloc((handles + 1) * sizeof *b->h);
    b->version = mem_alloc((handles + 1) * sizeof *b->version);
    b->out = mem_alloc((size_t)(nodes + 1) * sizeof *b->out);
    return b->h && b->version && b->out;
}

static void batch_free(struct deferred_batch *b)
{
    recording_close(&b->r);
    recording_free(&b->r);
    mem_free(b->h);
    mem_free(b->version);
    mem_free(b->out);
}

/* Intermediate lazy handles become outputs, too: storing a value now costs one store, recomputing it later the whole
 * chain.  Views that were not requested are excluded: they may be many times larger than their source and are cheap to
 * make. */
static bool batch_outputs(struct deferred_batch *b, const struct need *need, const ref *map, uint32_t *out_of)
{
    for (uint32_t i = attached; i != NO_ENTRY; i = entry_at(i)->next) {
        const struct entry *x = entry_at(i);
        if (!x->buffer && need->kind[x->node] && !op_is_view(node_at(now.r.g, x->node)->op))
            out_of[x->node] = 1;
    }
    for (ref r = 1; r < now.r.g->nnode; r++) { /* in order of recording, so that equal programs are equal graphs */
        if (!out_of[r])
            continue;
        if (!graph_output(b->r.g, OUT_RETURN, map[r], 0))
            return false;
        out_of[r] = ++b->nout;
    }
    for (uint32_t i = attached; i != NO_ENTRY; i = entry_at(i)->next) {
        const struct entry *x = entry_at(i);
        if (x->buffer || !out_of[x->node])
            continue;
        b->h[b->n] = entry_handle(x);
        b->version[b->n] = x->version;
        b->out[b->n++] = out_of[x->node] - 1;
    }
    return true;
}

/* Does computing the node cost anything? */
static bool is_work(unsigned op)
{
    return !op_is_leaf(op) && !op_is_view(op);
}

/* If nodes would be computed a second time, marks every lazy handle that needs one of them, so that there is no third
 * time.  Reading pending values one by one then costs at most twice as much as computing them together.  A state that
 * is assigned in each step of a loop gets its value at the latest when the next step's value is read, so no read goes
 * back to the first step.  Returns whether a handle was marked. */
static bool add_recomputed(struct need *need, uint8_t *again, uint32_t *out_of)
{
    const struct graph *g = now.r.g;
    bool any = false, added = false;
    for (ref r = 1; r < g->nnode; r++) { /* again: the node's value or its history needs such a node */
        const struct node *n = node_at(g, r);
        bool twice = need->kind[r] && !need_ends_at(need, r) && now.computed[r] && is_work(n->op);
        any |= twice;
        again[r] = twice ? NEED_VALUE | NEED_HISTORY : 0;
        for (unsigned i = 0; i < node_nin(n); i++)
            again[r] |= again[node_in(g, n, i)];
        if (n->op == OP_grad && (again[n->in[0]] & NEED_HISTORY))
            again[r] |= NEED_VALUE;
        if (now.known[r])
            again[r] &= NEED_HISTORY;
    }
    for (uint32_t i = attached; any && i != NO_ENTRY; i = entry_at(i)->next) {
        const struct entry *x = entry_at(i);
        if (!x->buffer && (again[x->node] & NEED_VALUE) && x->device != DEVICE_META) {
            added |= !out_of[x->node];
            need->kind[x->node] |= NEED_VALUE;
            out_of[x->node] = 1;
        }
    }
    if (added)
        need_spread(need);
    return added;
}

/* Extracts the nodes that the lazy handles of h need; with *more also those of add_recomputed, and *more becomes
 * whether there were any. */
static bool batch_extract(struct deferred_batch *b, const kl_tensor *h, uint32_t n, bool *more)
{
    uint32_t nodes = now.r.g->nnode, handles = 0;
    for (uint32_t i = attached; i != NO_ENTRY; i = entry_at(i)->next)
        handles++;
    struct need need;
    ref *map = mem_alloc(nodes * sizeof *map);
    uint32_t *out_of = mem_alloc(nodes * sizeof *out_of);
    uint8_t *again = *more ? mem_alloc(nodes * sizeof *again) : NULL;
    bool ok = need_init(&need, now.r.g, now.known, now.track) && map && out_of && (again || !*more) &&
        batch_room(b, nodes, handles) && recording_open(&b->r, "lazy");
    if (ok) {
        track_anew();
        for (uint32_t i = 0; i < n; i++) {
            struct err e;
            e.code = KL_OK;
            const struct entry *x = entry_find(h[i], "", &e);
            if (x && x->kind == KIND_VALUE && !x->buffer)
                out_of[x->node] = 1;
        }
        for (ref r = 1; r < nodes; r++)
            need.kind[r] = out_of[r] ? NEED_VALUE : 0;
        need_spread(&need);
        *more = *more && add_recomputed(&need, again, out_of);
    }
    for (ref r = 1; ok && r < nodes; r++) {
        if (!need.kind[r])
            continue;
        bool as_leaf = need_ends_at(&need, r);
        map[r] = copy_node(&b->r, r, as_leaf, map);
        ok = map[r] != NIL;
        now.computed[r] |= !as_leaf;
        if (ok && as_leaf) {
            ok = recording_input(&b->r, b->r.g->node[map[r]].attr.leaf.index, now.known[r]);
            if (ok)
                buffer_ref(now.known[r]);
        }
    }
    ok = ok && batch_outputs(b, &need, map, out_of);
    need_free(&need);
    mem_free(map);
    mem_free(out_of);
    mem_free(again);
    return ok;
}

static void batch_commit(const struct deferred_batch *b, struct buffer **out)
{
    for (uint32_t i = 0; i < b->n; i++) {
        struct err e;
        e.code = KL_OK;
        struct entry *x = entry_find(b->h[i], "", &e);
        if (!x || x->version != b->version[i] || x->buffer)
            continue; /* released, assigned or computed by another thread meanwhile */
        x->buffer = buffer_ref(out[b->out[i]]);
        if (!now.known[x->node])
            deferred_map_insert(&now, x->node, x->buffer);
    }
}

static bool compute_batch(const kl_tensor *h, uint32_t n, bool *more, struct err *e)
{
    struct deferred_batch b = {0};
    struct buffer **out = NULL;
    bool ok = batch_extract(&b, h, n, more);
    if (ok && b.nout) {
        front_unlock();
        out = mem_alloc(b.nout * sizeof *out);
        uint64_t built = atomic_load(&counters.graphs_built);
        const struct exec *x = out ? exec_get(b.r.g, (int)graph_device(b.r.g), option_fuse(), e) : NULL;
        if (x && atomic_load(&counters.graphs_built) != built)
            gradients_warn(b.r.g);
        ok = x && exec_run_checked(x, b.r.g, b.r.input, NULL, NULL, b.r.slot, out, e);
        exec_unref(x);
        if (!ok && e->code)
            custom_locate(b.r.g, e);
        front_lock();
        if (ok)
            batch_commit(&b, out);
        for (uint32_t i = 0; ok && i < b.nout; i++)
            front_drop(out[i]);
    }
    if (!ok && b.r.g && b.r.g->err.code)
        err_set(e, b.r.g->err.code, "%s", b.r.g->err.msg);
    else if (!ok)
        err_set(e, KL_ERR_MEMORY, "out of memory");
    mem_free(out);
    batch_free(&b);
    return ok;
}

/* If more was computed than requested, the failure may come from the additional part. */
static bool deferred_run_plan(const kl_tensor *h, uint32_t n, struct err *e)
{
    struct err together;
    together.code = KL_OK;
    bool more = true;
    if (compute_batch(h, n, &more, &together))
        return true;
    if (!more || together.code == KL_ERR_CANCELLED) {
        *e = together;
        return false;
    }
    more = false;
    return compute_batch(h, n, &more, e);
}

bool deferred_compute(const kl_tensor *h, uint32_t n, struct err *e)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        struct err ignored;
        ignored.code = KL_OK;
        struct entry *x = entry_find(h[i], "", &ignored);
        bool lazy = x && x->kind == KIND_VALUE && !x->buffer;
        if (lazy && x->device == DEVICE_META) { /* a tensor on device meta has only a shape */
            if (!(x->buffer = meta_value(e)))
                return false;
            deferred_unbind(x);
        } else {
            any |= lazy;
        }
    }
    if (any && !deferred_run_plan(h, n, e))
        return false;
    if (now.r.g && (now.borrowed || now.r.g->nnode > 2 * after_last + SMALL))
        deferred_collect();
    return true;
}

/* ---- keeping it small ---- */

static bool any_history(void)
{
    for (uint32_t i = attached; i != NO_ENTRY; i = entry_at(i)->next)
        if (now.track[entry_at(i)->node] & DERIVED)
            return true;
    return false;
}

/* Drops the history of values. */
static void drop_history(void)
{
    uint32_t next;
    for (uint32_t i = attached; i != NO_ENTRY; i = next) {
        struct entry *x = entry_at(i);
        next = x->next;
        if (x->buffer)
            deferred_unbind(x);
    }
}

bool deferred_is_settled(void)
{
    return !atomic_load_explicit(&unsettled, memory_order_relaxed);
}

bool deferred_compute_device(int device, struct err *e)
{
    uint32_t n = 0, all = 0;
    if (attached == NO_ENTRY) {
        bool ok = deferred_compute(NULL, 0, e);
        atomic_store_explicit(&unsettled, now.borrowed != 0, memory_order_relaxed);
        return ok;
    }
    for (uint32_t i = attached; i != NO_ENTRY; i = entry_at(i)->next)
        all++;
    kl_tensor *h = mem_alloc(all * sizeof *h);
    if (!h)
        return err_set(e, KL_ERR_MEMORY, "out of memory");
    for (uint32_t i = attached; i != NO_ENTRY; i = entry_at(i)->next)
        if (!entry_at(i)->buffer && entry_at(i)->device == device)
            h[n++] = entry_handle(entry_at(i));
    struct err together;
    together.code = KL_OK;
    bool ok = deferred_compute(h, n, &together);
    /* the oldest first, so that the first cause is reported and the others are computed */
    for (uint32_t i = n; !ok && i-- > 0;) {
        struct err one;
        one.code = KL_OK;
        if (!deferred_compute(&h[i], 1, &one) && !e->code)
            *e = one;
    }
    mem_free(h);
    return !e->code;
}

static bool compute_all(void)
{
    uint32_t n = 0;
    for (uint32_t i = attached; i != NO_ENTRY; i = entry_at(i)->next)
        n++;
    kl_tensor *h = mem_alloc((n + 1) * sizeof *h);
    struct err e;
    e.code = KL_OK;
    n = 0;
    for (uint32_t i = attached; h && i != NO_ENTRY; i = entry_at(i)->next)
        if (!entry_at(i)->buffer)
            h[n++] = entry_handle(entry_at(i));
    bool ok = h && deferred_compute(h, n, &e);
    mem_free(h);
    return ok;
}

void deferred_limit(void)
{
    if (!now.r.g || (now.r.g->nnode < limit && now.pinned < pinned_limit))
        return;
    deferred_collect();
    uint32_t n = now.r.g->nnode;
    limit = LIMIT;
    if (n < LIMIT / 2)
        return;
    if (n < HISTORY_LIMIT && any_history()) {
        limit = 2 * n;
        return;
    }
    if (compute_all()) {
        drop_history();
        deferred_collect();
    }
    if (now.r.g->nnode >= LIMIT / 2)
        limit = 2 * now.r.g->nnode; /* out of memory: the next read reports it */
}
