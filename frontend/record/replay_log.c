/* Tapes: a trace recorded like an earlier one is not recorded again.
 *
 * A tape is a graph with the calls that made it.  A trace starts on the tape of the last trace of its name, and as
 * long as each of its calls equals the tape's next one - op, operands, attributes, shapes given, call site, and nothing
 * else decides what a call adds to a graph - the call's result is the tape's: no shape is inferred, nothing is
 * interned, hashed or allocated, and the graph is only read.  At the first difference another tape with the same
 * beginning is taken; where there is none, the beginning is copied to a new one, on which the trace goes on recording.
 *
 * What a function of the user's records for a region is compared in the same way: the call of a region op has, beside
 * its operands, the tapes of its regions, which are complete, never change, and are shared by all tapes with that call.
 *
 * Each thread has tapes of its own. */
#include "frontend/frontend.h"
#include <string.h>

enum { TAPES = 32, TAPES_OF_A_NAME = 4 };

/* ---- a call ---- */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b)); /* as a rule the caller's constant is the same one */
}

static bool same_site(const kl_site *a, const kl_site *b)
{
    return b && a->line == b->line && same_text(a->file, b->file) && same_text(a->func, b->func);
}

/* Made at the same place: the graph names its call sites, so its nodes must be from there too. */
static bool site_is(const struct tape *p, ref r, const kl_site *site)
{
    uint32_t id = node_at(p->g, r)->site;
    return id ? same_site(&p->g->site[id], site) : !site;
}

static bool target_is(const struct tape *p, uint32_t id, const struct shape *target)
{
    return id == TAPE_NONE ? !target : target && shape_equal(&p->g->shape[id], target);
}

static bool same_body(const struct tape *a, const struct tape *b);

static bool more_is(const struct tape_more *m, const struct tape_extra *x)
{
    if (!m || !x)
        return !m && !x;
    return m->size == x->size && !memcmp(m->bytes, x->bytes, x->size) && same_body(m->body[0], x->body[0]) &&
           same_body(m->body[1], x->body[1]);
}

static bool call_is(const struct tape *p, uint32_t at, const struct node *key, const kl_site *site,
                    const struct shape *target, const struct tape_extra *extra)
{
    if (at >= p->ncall)
        return false;
    const struct tape_call *c = &p->call[at];
    return !memcmp(&c->key, key, sizeof *key) && site_is(p, c->result, site) && target_is(p, c->target, target) &&
           more_is(c->more, extra);
}

/* Do two tapes begin with the same n calls? */
static bool same_beginning(const struct tape *a, const struct tape *b, uint32_t n)
{
    if (n > b->ncall)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const struct tape_call *x = &a->call[i];
        const kl_site *site = &a->g->site[node_at(a->g, x->result)->site];
        const struct shape *target = x->target == TAPE_NONE ? NULL : &a->g->shape[x->target];
        struct tape_extra extra;
        if (x->more)
            extra = (struct tape_extra){x->more->bytes, x->more->size, {x->more->body[0], x->more->body[1]}};
        if (!call_is(b, i, &x->key, node_at(a->g, x->result)->site ? site : NULL, target, x->more ? &extra : NULL))
            return false;
    }
    return true;
}

static bool ends_with(const struct tape *p, uint32_t at, const struct output *out, uint32_t nout)
{
    return p->ncall == at && p->g->nout == nout && (!nout || !memcmp(p->g->out, out, nout * sizeof *out));
}

/* Are two regions recorded by the same calls?  As a rule they are one tape. */
static bool same_body(const struct tape *a, const struct tape *b)
{
    if (a == b || !a || !b)
        return a == b;
    return !a->partial && !b->partial && ends_with(a, b->ncall, b->g->out, b->g->nout) &&
        same_beginning(a, b, a->ncall);
}

/* ---- what calls of region ops have ---- */

static struct tape_more *more_new(const struct tape_extra *x)
{
    struct tape_more *m = mem_alloc(sizeof *m + x->size);
    if (!m)
        return NULL;
    m->refs = 1;
    m->size = x->size;
    memcpy(m->bytes, x->bytes, x->size);
    for (int i = 0; i < 2; i++)
        m->body[i] = tape_body_ref(x->body[i]);
    return m;
}

static void more_drop(struct tape_more *m)
{
    if (!m || --m->refs)
        return;
    tape_body_drop(m->body[0]);
    tape_body_drop(m->body[1]);
    mem_free(m);
}

static void drop_calls(struct tape *p)
{
    for (uint32_t i = 0; i < p->ncall; i++)
        more_drop(p->call[i].more);
    p->ncall = 0;
}

/* ---- the list ---- */

static bool replay_log_usable(const struct tape *p, const char *name)
{
    return p->exec && !strcmp(p->g->name, name);
}

static void unlink_tape(struct trace *tr, struct tape *p)
{
    struct tape **link = &tr->tapes;
    while (*link != p)
        link = &(*link)->next;
    *link = p->next;
}

static void replay_log_push(struct trace *tr, struct tape *p)
{
    p->next = tr->tapes;
    tr->tapes = p;
}

/* Which program ran it: a weak reference. */
static void tape_set_exec(struct tape *p, const struct exec *x)
{
    if (x)
        exec_weak_ref(x);
    exec_weak_unref(p->exec);
    p->exec = x;
}

static void tape_free(struct tape *p)
{
    tape_set_exec(p, NULL);
    drop_calls(p);
    graph_free(p->g);
    mem_free(p->call);
    mem_free(p);
}

/* A tape to use again: one that holds nothing, else the one used longest ago of too many, but `keep`. */
static struct tape *worn_out(struct trace *tr, const char *name, const struct tape *keep)
{
    struct tape *last = NULL, *last_of_name = NULL;
    uint32_t n = 0, of_name = 0;
    for (struct tape *p = tr->tapes; p; p = p->next) {
        if (!p->exec)
            return p;
        n++;
        of_name += replay_log_usable(p, name);
        if (p != keep) {
            last = p;
            last_of_name = replay_log_usable(p, name) ? p : last_of_name;
        }
    }
    return of_name >= TAPES_OF_A_NAME ? last_of_name : n >= TAPES ? last : NULL;
}

/* An empty tape, first in the list; NULL: out of memory. */
static struct tape *fresh(struct trace *tr, const char *name, const struct tape *keep)
{
    struct tape *p = worn_out(tr, name, keep);
    if (p) {
        unlink_tape(tr, p);
        tape_set_exec(p, NULL);
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

static void replay_log_take(struct trace *tr, struct tape *p, bool replaying)
{
    tr->tape = p;
    tr->r.g = p->g;
    tr->replaying = replaying;
}

bool tape_begin(struct trace *tr, const char *name)
{
    char cut[sizeof tr->r.g->name];
    snprintf(cut, sizeof cut, "%s", name);
    struct tape *p = tr->tapes;
    while (p && !replay_log_usable(p, cut))
        p = p->next;
    bool known = p != NULL;
    if (!p && !(p = fresh(tr, cut, NULL)))
        return false;
    tr->at = 0;
    replay_log_take(tr, p, known);
    return p->g->err.code == KL_OK;
}

void tape_free_all(struct trace *tr)
{
    while (tr->tapes) {
        struct tape *next = tr->tapes->next;
        tape_free(tr->tapes);
        tr->tapes = next;
    }
}

/* ---- tapes of regions ---- */

struct tape *tape_body_ref(struct tape *body)
{
    if (body)
        body->refs++;
    return body;
}

void tape_body_drop(struct tape *body)
{
    if (body && !--body->refs)
        tape_free(body);
}

static struct tape *body_new(struct graph *g)
{
    struct tape *p = g ? mem_alloc(sizeof *p) : NULL;
    if (!p) {
        graph_free(g);
        return NULL;
    }
    p->g = g;
    p->refs = 1;
    return p;
}

bool tape_begin_body(struct trace *tr, const struct trace *outer, uint32_t which, const char *name)
{
    const struct tape *p = outer->tape;
    uint32_t i = outer->at;
    while (outer->replaying && i < p->ncall && !p->call[i].more)
        i++;
    struct tape *body = outer->replaying && i < p->ncall ? p->call[i].more->body[which] : NULL;
    bool known = body && !body->partial && !strcmp(body->g->name, name);
    body = known ? tape_body_ref(body) : body_new(graph_new(name));
    if (!body)
        return false;
    tr->at = 0;
    replay_log_take(tr, body, known);
    return true;
}

/* ---- a difference ---- */

static ref last_node(const struct tape_call *c)
{
    return c->result + (c->more ? c->key.attr.region.first : 0); /* its results stand behind it */
}

/* Shapes of the graph that the first n calls were given, by their ids: one more than the largest. */
static uint32_t shapes_of_targets(const struct tape *p, uint32_t n)
{
    uint32_t nshape = 0;
    for (uint32_t i = 0; i < n; i++)
        if (p->call[i].target != TAPE_NONE && p->call[i].target >= nshape)
            nshape = p->call[i].target + 1;
    return nshape;
}

/* Goes on to record, on a copy of what was the same. */
static bool replay_log_leave(struct trace *tr)
{
    struct tape *from = tr->tape;
    ref last = tr->at ? last_node(&from->call[tr->at - 1]) : NIL;
    struct graph *g = graph_clone_beginning(from->g, last + 1, shapes_of_targets(from, tr->at));
    struct tape *p = !g ? NULL : tr->region ? body_new(g) : fresh(tr, from->g->name, from);
    if (p && p->g != g) {
        graph_free(p->g);
        p->g = g;
    } else if (!p && !tr->region) {
        graph_free(g);
    }
    if (!p || !mem_reserve(&p->call, &p->call_cap, tr->at, sizeof *p->call)) {
        if (tr->region)
            tape_body_drop(p);
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
        tape_body_drop(from);
    return true;
}

const struct tape_call *tape_next(struct trace *tr, const struct node *key, const kl_site *site,
                                  const struct shape *target, const struct tape_extra *extra, bool *failed)
{
    *failed = false;
    if (!tr->replaying)
        return NULL;
    if (call_is(tr->tape, tr->at, key, site, target, extra))
        return &tr->tape->call[tr->at++];
    for (struct tape *p = tr->tapes; p; p = p->next)
        if (p != tr->tape && replay_log_usable(p, tr->tape->g->name) && call_is(p, tr->at, key, site, target, extra) &&
            same_beginning(tr->tape, p, tr->at)) {
            replay_log_take(tr, p, true);
            return &p->call[tr->at++];
        }
    *failed = !replay_log_leave(tr);
    return NULL;
}

void tape_add(struct trace *tr, const struct node *key, const struct shape *target, const struct tape_extra *extra,
              ref r)
{
    struct tape *p = tr->tape;
    if (!p || p->partial)
        return;
    struct tape_more *more = extra ? more_new(extra) : NULL;
    uint32_t id = target ? intern_shape_find(p->g, target) : TAPE_NONE;
    bool whole = mem_reserve(&p->call, &p->call_cap, p->ncall + 1, sizeof *p->call) && (!extra || more) &&
                 !(target && id == TAPE_NONE);
    for (int i = 0; whole && i < 2; i++)
        whole = !more || !more->body[i] || !more->body[i]->partial;
    if (whole) {
        p->call[p->ncall++] = (struct tape_call){.key = *key, .target = id, .result = r, .more = more};
    } else {
        more_drop(more);
        p->partial = true; /* good for this trace, not to compare with */
    }
}

/* ---- the end ---- */

bool tape_complete(struct trace *tr, const struct output *out, uint32_t nout, bool *failed)
{
    *failed = false;
    if (!tr->replaying)
        return false;
    if (ends_with(tr->tape, tr->at, out, nout))
        return true;
    for (struct tape *p = tr->tapes; p; p = p->next)
        if (p != tr->tape && replay_log_usable(p, tr->tape->g->name) && ends_with(p, tr->at, out, nout) &&
            same_beginning(tr->tape, p, tr->at)) {
            replay_log_take(tr, p, true);
            return true;
        }
    *failed = !replay_log_leave(tr);
    return false;
}

void tape_end(struct trace *tr, const struct exec *x, bool fuse, uint64_t schedules)
{
    struct tape *p = tr->tape;
    tape_set_exec(p, p->partial ? NULL : x);
    p->fuse = fuse;
    p->schedules = schedules;
    if (tr->tapes != p) {
        unlink_tape(tr, p);
        replay_log_push(tr, p);
    }
}
