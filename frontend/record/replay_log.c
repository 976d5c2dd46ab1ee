/* Replay logs: a trace that makes the same calls as an earlier one is not recorded a second time.
 *
 * A log is a graph with the calls that made it.  A trace starts on the log of the last trace of its name.  As long as
 * each of its calls equals the log's next one, the call's result is the log's: no shape is inferred, nothing is
 * interned, hashed or allocated, and the graph is only read.  Two calls are equal if op, operands, attributes, given
 * shapes and call site are; nothing else determines what a call adds to a graph.  At the first difference the trace
 * continues on another log with the same beginning.  If there is none, the beginning is copied to a new log and
 * recording continues there.
 *
 * Regions are compared in the same way: the call of a region op contains, besides its operands, the logs of its
 * regions.  These are complete, never change, and are shared by all logs with that call.
 *
 * Each thread has its own logs. */
#include "frontend/frontend.h"
#include <string.h>

enum { MAX_LOGS = 32, LOGS_OF_A_NAME = 4 };

/* ---- a call ---- */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b)); /* usually both are the caller's constant */
}

static bool same_site(const kl_site *a, const kl_site *b)
{
    return b && a->line == b->line && same_text(a->file, b->file) && same_text(a->func, b->func);
}

/* The call site must be equal, because the graph's nodes refer to it. */
static bool site_is(const struct replay_log *p, ref r, const kl_site *site)
{
    uint32_t id = node_at(p->g, r)->site;
    return id ? same_site(&p->g->site[id], site) : !site;
}

/* Lengths of a graph with symbols are numbers of that graph alone: *of is the one whose lengths the target has. */
static bool target_is(const struct replay_log *p, uint32_t id, const struct shape *target, const struct graph *of)
{
    if (id == REPLAY_NONE || !target)
        return id == REPLAY_NONE && !target;
    const struct shape *s = &p->g->shape[id];
    if (p->g == of || !of->symbols)
        return shape_equal(s, target);
    bool same = s->rank == target->rank;
    for (uint32_t i = 0; same && i < s->rank; i++)
        same = dim_same(p->g, s->dim[i], of, target->dim[i]);
    return same;
}

/* The same of the attributes of a key. */
static bool lengths_are(const struct replay_log *p, const struct node *a, const struct node *b, const struct graph *of)
{
    int64_t *x[2], *y[2];
    struct node c = *a, d = *b;
    unsigned n = node_dims(&c, x);
    node_dims(&d, y);
    for (unsigned i = 0; i < n; i++) {
        if (!dim_same(p->g, *x[i], of, *y[i]))
            return false;
        *x[i] = *y[i] = 0;
    }
    return !memcmp(&c, &d, sizeof c);
}

static bool key_is(const struct replay_log *p, const struct node *a, const struct node *b, const struct graph *of)
{
    return p->g == of || !of->symbols || a->op != b->op ? !memcmp(a, b, sizeof *a) : lengths_are(p, a, b, of);
}

static bool same_body(const struct replay_log *a, const struct replay_log *b);

static bool more_is(const struct replay_more *m, const struct replay_extra *x)
{
    if (!m || !x)
        return !m && !x;
    return m->size == x->size && !memcmp(m->bytes, x->bytes, x->size) && same_body(m->body[0], x->body[0]) &&
           same_body(m->body[1], x->body[1]);
}

static bool call_is(const struct replay_log *p, uint32_t at, const struct node *key, const kl_site *site,
                    const struct shape *target, const struct replay_extra *extra, const struct graph *of)
{
    if (at >= p->ncall)
        return false;
    const struct replay_call *c = &p->call[at];
    return key_is(p, &c->key, key, of) && site_is(p, c->result, site) && target_is(p, c->target, target, of) &&
           more_is(c->more, extra);
}

/* Do two logs begin with the same n calls? */
static bool same_beginning(const struct replay_log *a, const struct replay_log *b, uint32_t n)
{
    if (n > b->ncall)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const struct replay_call *x = &a->call[i];
        const kl_site *site = &a->g->site[node_at(a->g, x->result)->site];
        const struct shape *target = x->target == REPLAY_NONE ? NULL : &a->g->shape[x->target];
        struct replay_extra extra;
        if (x->more)
            extra = (struct replay_extra){x->more->bytes, x->more->size, {x->more->body[0], x->more->body[1]}};
        if (!call_is(b, i, &x->key, node_at(a->g, x->result)->site ? site : NULL, target, x->more ? &extra : NULL,
                     a->g))
            return false;
    }
    return true;
}

static bool ends_with(const struct replay_log *p, uint32_t at, const struct output *out, uint32_t nout)
{
    return p->ncall == at && p->g->nout == nout && (!nout || !memcmp(p->g->out, out, nout * sizeof *out));
}

/* Were two regions recorded by the same calls? Usually they are one log. */
static bool same_body(const struct replay_log *a, const struct replay_log *b)
{
    if (a == b || !a || !b)
        return a == b;
    return !a->partial && !b->partial && ends_with(a, b->ncall, b->g->out, b->g->nout) &&
        same_beginning(a, b, a->ncall);
}

/* ---- the additional data of region ops ---- */

static struct replay_more *more_new(const struct replay_extra *x)
{
    struct replay_more *m = mem_alloc(sizeof *m + x->size);
    if (!m)
        return NULL;
    m->refs = 1;
    m->size = x->size;
    memcpy(m->bytes, x->bytes, x->size);
    for (int i = 0; i < 2; i++)
        m->body[i] = replay_body_ref(x->body[i]);
    return m;
}

static void more_drop(struct replay_more *m)
{
    if (!m || --m->refs)
        return;
    replay_body_drop(m->body[0]);
    replay_body_drop(m->body[1]);
    mem_free(m);
}

static void drop_calls(struct replay_log *p)
{
    for (uint32_t i = 0; i < p->ncall; i++)
        more_drop(p->call[i].more);
    p->ncall = 0;
}

/* ---- the list ---- */

/* Graphs have the beginning of a trace's name. */
static bool replay_log_usable(const struct replay_log *p, const char *name)
{
    return p->exec && !strncmp(p->g->name, name, sizeof p->g->name - 1);
}

static void unlink_log(struct trace *tr, struct replay_log *p)
{
    struct replay_log **link = &tr->logs;
    while (*link != p)
        link = &(*link)->next;
    *link = p->next;
}

static void replay_log_push(struct trace *tr, struct replay_log *p)
{
    p->next = tr->logs;
    tr->logs = p;
}

/* Remembers the program that ran it: a weak reference. */
static void replay_set_exec(struct replay_log *p, const struct exec *x)
{
    if (x)
        exec_weak_ref(x);
    exec_weak_unref(p->exec);
    p->exec = x;
}

static void replay_free(struct replay_log *p)
{
    replay_set_exec(p, NULL);
    drop_calls(p);
    graph_free(p->g);
    mem_free(p->call);
    mem_free(p);
}

/* A log to reuse: an empty one, or the least recently used one if there are too many; never `keep`. */
static struct replay_log *reusable_log(struct trace *tr, const char *name, const struct replay_log *keep)
{
    struct replay_log *last = NULL, *last_of_name = NULL;
    uint32_t n = 0, of_name = 0;
    for (struct replay_log *p = tr->logs; p; p = p->next) {
        if (!p->exec)
            return p;
        n++;
        of_name += replay_log_usable(p, name);
        if (p != keep) {
            last = p;
            last_of_name = replay_log_usable(p, name) ? p : last_of_name;
        }
    }
    return of_name >= LOGS_OF_A_NAME ? last_of_name : n >= MAX_LOGS ? last : NULL;
}

/* An empty log, first in the list; NULL: out of memory. */
static struct replay_log *new_log(struct trace *tr, const char *name, const struct replay_log *keep)
{
    struct replay_log *p = reusable_log(tr, name, keep);
    if (p) {
        unlink_log(tr, p);
        replay_set_exec(p, NULL);
        drop_calls(p);
        graph_reset(p->g);
        snprintf(p->g->name, sizeof p->g->name, "%s", name);
    } else if (!(p = mem_alloc(sizeof *p)) || !(p->g = graph_new(name))) {
        mem_free(p);
        return NULL;
    }
    static _Atomic(uint32_t) made;
    p->partial = false;
    p->id = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed) + 1;
    replay_log_push(tr, p);
    return p;
}

static void replay_log_take(struct trace *tr, struct replay_log *p, bool replaying)
{
    tr->log = p;
    tr->r.g = p->g;
    tr->replaying = replaying;
}

bool replay_begin(struct trace *tr, const char *name)
{
    struct replay_log *p = tr->logs;
    while (p && !replay_log_usable(p, name))
        p = p->next;
    bool known = p != NULL;
    if (!p && !(p = new_log(tr, name, NULL)))
        return false;
    tr->at = 0;
    replay_log_take(tr, p, known);
    return p->g->err.code == KL_OK;
}

void replay_free_all(struct trace *tr)
{
    while (tr->logs) {
        struct replay_log *next = tr->logs->next;
        replay_free(tr->logs);
        tr->logs = next;
    }
}

/* ---- logs of regions ---- */

struct replay_log *replay_body_ref(struct replay_log *body)
{
    if (body)
        body->refs++;
    return body;
}

void replay_body_drop(struct replay_log *body)
{
    if (body && !--body->refs)
        replay_free(body);
}

static struct replay_log *body_new(struct graph *g)
{
    struct replay_log *p = g ? mem_alloc(sizeof *p) : NULL;
    if (!p) {
        graph_free(g);
        return NULL;
    }
    p->g = g;
    p->refs = 1;
    return p;
}

bool replay_begin_body(struct trace *tr, const struct trace *outer, uint32_t which, const char *name)
{
    const struct replay_log *p = outer->log;
    uint32_t i = outer->at;
    while (outer->replaying && i < p->ncall && !p->call[i].more)
        i++;
    struct replay_log *body = outer->replaying && i < p->ncall ? p->call[i].more->body[which] : NULL;
    bool known = body && !body->partial && !strcmp(body->g->name, name);
    if (known && !body->g->symbols)
        known = symbols_share(body->g, outer->r.g);
    known = known && body->g->symbols == outer->r.g->symbols; /* lengths are numbers of one table */
    body = known ? replay_body_ref(body) : body_new(graph_new(name));
    if (!body)
        return false;
    tr->at = 0;
    replay_log_take(tr, body, known);
    return true;
}

/* ---- handling a difference ---- */

static ref last_node(const struct replay_call *c)
{
    return c->result + (c->more ? c->key.attr.region.first : 0); /* its results follow it */
}

/* One more than the largest id of the shapes given to the first n calls. */
static uint32_t shapes_of_targets(const struct replay_log *p, uint32_t n)
{
    uint32_t nshape = 0;
    for (uint32_t i = 0; i < n; i++)
        if (p->call[i].target != REPLAY_NONE && p->call[i].target >= nshape)
            nshape = p->call[i].target + 1;
    return nshape;
}

bool replay_leave(struct trace *tr)
{
    struct replay_log *from = tr->log;
    ref last = tr->at ? last_node(&from->call[tr->at - 1]) : NIL;
    struct graph *g = graph_clone_beginning(from->g, last + 1, shapes_of_targets(from, tr->at));
    struct replay_log *p = !g ? NULL : tr->region ? body_new(g) : new_log(tr, from->g->name, from);
    if (p && p->g != g) {
        graph_free(p->g);
        p->g = g;
    } else if (!p && !tr->region) {
        graph_free(g);
    }
    if (p && tr->region)
        graph_move_symbols(g, from->g); /* errors stay in g */
    if (!p || !mem_reserve(&p->call, &p->call_cap, tr->at, sizeof *p->call)) {
        if (tr->region)
            replay_body_drop(p);
        return false;
    }
    for (uint32_t i = 0; i < tr->at; i++) {
        p->call[i] = from->call[i];
        if (p->call[i].more)
            p->call[i].more->refs++;
    }
    p->ncall = tr->at;
    replay_log_take(tr, p, false);
    if (tr->region)
        replay_body_drop(from);
    return true;
}

const struct replay_call *replay_next(struct trace *tr, const struct node *key, const kl_site *site,
                                  const struct shape *target, const struct replay_extra *extra, bool *failed)
{
    *failed = false;
    if (!tr->replaying)
        return NULL;
    if (call_is(tr->log, tr->at, key, site, target, extra, tr->log->g))
        return &tr->log->call[tr->at++];
    for (struct replay_log *p = tr->logs; p; p = p->next)
        if (p != tr->log && replay_log_usable(p, tr->log->g->name) &&
            call_is(p, tr->at, key, site, target, extra, tr->log->g) && same_beginning(tr->log, p, tr->at)) {
            replay_log_take(tr, p, true);
            return &p->call[tr->at++];
        }
    *failed = !replay_leave(tr);
    return NULL;
}

void replay_add(struct trace *tr, const struct node *key, const struct shape *target, const struct replay_extra *extra,
              ref r)
{
    struct replay_log *p = tr->log;
    if (!p || p->partial)
        return;
    struct replay_more *more = extra ? more_new(extra) : NULL;
    struct shape clean = target ? shape_make(target->rank, target->dim) : (struct shape){0};
    uint32_t id = target ? intern_shape_find(p->g, &clean) : REPLAY_NONE;
    bool whole = mem_reserve(&p->call, &p->call_cap, p->ncall + 1, sizeof *p->call) && (!extra || more) &&
                 !(target && id == REPLAY_NONE);
    for (int i = 0; whole && i < 2; i++)
        whole = !more || !more->body[i] || !more->body[i]->partial;
    if (whole) {
        p->call[p->ncall++] = (struct replay_call){.key = *key, .target = id, .result = r, .more = more};
    } else {
        more_drop(more);
        p->partial = true; /* usable for this trace, but not for comparison */
    }
}

/* ---- the end ---- */

bool replay_complete(struct trace *tr, const struct output *out, uint32_t nout, bool *failed)
{
    *failed = false;
    if (!tr->replaying)
        return false;
    if (ends_with(tr->log, tr->at, out, nout))
        return true;
    for (struct replay_log *p = tr->logs; p; p = p->next)
        if (p != tr->log && replay_log_usable(p, tr->log->g->name) && ends_with(p, tr->at, out, nout) &&
            same_beginning(tr->log, p, tr->at)) {
            replay_log_take(tr, p, true);
            return true;
        }
    *failed = !replay_leave(tr);
    return false;
}

void replay_end(struct trace *tr, const struct exec *x, bool fuse, uint64_t schedules)
{
    struct replay_log *p = tr->log;
    replay_set_exec(p, p->partial ? NULL : x);
    p->fuse = fuse;
    p->schedules = schedules;
    if (tr->logs != p) {
        unlink_log(tr, p);
        replay_log_push(tr, p);
    }
}
