/* Tapes: a trace recorded like an earlier one is not recorded again.
 *
 * A tape is a graph with the calls that made it.  A trace starts on the tape of the last trace of its name, and as
 * long as each of its calls equals the tape's next one - op, operands, attributes, shapes given, call site, and nothing else
 * decides what a call adds to a graph - the call's result is the tape's: no shape is inferred, nothing is interned,
 * hashed or allocated, and the graph is only read.  At the first difference another tape with the same beginning is
 * taken; where there is none, the beginning is copied to a new one, on which the trace goes on recording.
 *
 * Each thread has tapes of its own. */
#include "frontend.h"
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

static bool call_is(const struct tape *p, uint32_t at, const struct node *key, const kl_site *site,
                    const struct shape *target)
{
    if (at >= p->ncall)
        return false;
    const struct tape_call *c = &p->call[at];
    return !memcmp(&c->key, key, sizeof *key) && site_is(p, c->result, site) && target_is(p, c->target, target);
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
        if (!call_is(b, i, &x->key, node_at(a->g, x->result)->site ? site : NULL, target))
            return false;
    }
    return true;
}

/* ---- the list ---- */

static bool usable(const struct tape *p, const char *name)
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

static void push(struct trace *tr, struct tape *p)
{
    p->next = tr->tapes;
    tr->tapes = p;
}

static void tape_free(struct tape *p)
{
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
        of_name += usable(p, name);
        if (p != keep) {
            last = p;
            last_of_name = usable(p, name) ? p : last_of_name;
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
        p->exec = NULL;
        graph_reset(p->g);
        snprintf(p->g->name, sizeof p->g->name, "%s", name);
    } else if (!(p = mem_alloc(sizeof *p)) || !(p->g = graph_new(name))) {
        mem_free(p);
        return NULL;
    }
    p->ncall = 0;
    p->partial = false;
    push(tr, p);
    return p;
}

static void take(struct trace *tr, struct tape *p, bool replaying)
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
    while (p && !usable(p, cut))
        p = p->next;
    bool known = p != NULL;
    if (!p && !(p = fresh(tr, cut, NULL)))
        return false;
    tr->at = 0;
    take(tr, p, known);
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

/* ---- a difference ---- */

/* Goes on to record, on a copy of what was the same. */
static bool leave(struct trace *tr)
{
    const struct tape *from = tr->tape;
    struct tape *p = fresh(tr, from->g->name, from);
    ref last = tr->at ? from->call[tr->at - 1].result : NIL;
    struct graph *g = p && mem_reserve(&p->call, &p->call_cap, tr->at, sizeof *p->call)
                          ? graph_clone_beginning(from->g, last + 1) : NULL;
    if (!g)
        return false;
    graph_free(p->g);
    p->g = g;
    if (tr->at)
        memcpy(p->call, from->call, tr->at * sizeof *p->call);
    p->ncall = tr->at;
    take(tr, p, false);
    return true;
}

const struct tape_call *tape_next(struct trace *tr, const struct node *key, const kl_site *site,
                                  const struct shape *target, bool *failed)
{
    *failed = false;
    if (!tr->replaying)
        return NULL;
    if (call_is(tr->tape, tr->at, key, site, target))
        return &tr->tape->call[tr->at++];
    for (struct tape *p = tr->tapes; p; p = p->next)
        if (p != tr->tape && usable(p, tr->tape->g->name) && call_is(p, tr->at, key, site, target) &&
            same_beginning(tr->tape, p, tr->at)) {
            take(tr, p, true);
            return &p->call[tr->at++];
        }
    *failed = !leave(tr);
    return NULL;
}

void tape_add(struct trace *tr, const struct node *key, const struct shape *target, ref r)
{
    struct tape *p = tr->tape;
    if (!p || p->partial)
        return;
    if (!mem_reserve(&p->call, &p->call_cap, p->ncall + 1, sizeof *p->call)) {
        p->partial = true; /* good for this trace, not to compare with */
        return;
    }
    uint32_t id = target ? intern_shape_find(p->g, target) : TAPE_NONE;
    p->partial = target && id == TAPE_NONE;
    p->call[p->ncall++] = (struct tape_call){.key = *key, .target = id, .result = r};
}

bool tape_partial(struct trace *tr)
{
    if (tr->replaying && !leave(tr))
        return false;
    if (tr->tape)
        tr->tape->partial = true;
    return true;
}

/* ---- the end ---- */

static bool ends_with(const struct tape *p, uint32_t at, const struct output *out, uint32_t nout)
{
    return p->ncall == at && p->g->nout == nout && (!nout || !memcmp(p->g->out, out, nout * sizeof *out));
}

bool tape_complete(struct trace *tr, const struct output *out, uint32_t nout, bool *failed)
{
    *failed = false;
    if (!tr->replaying)
        return false;
    if (ends_with(tr->tape, tr->at, out, nout))
        return true;
    for (struct tape *p = tr->tapes; p; p = p->next)
        if (p != tr->tape && usable(p, tr->tape->g->name) && ends_with(p, tr->at, out, nout) &&
            same_beginning(tr->tape, p, tr->at)) {
            take(tr, p, true);
            return true;
        }
    *failed = !leave(tr);
    return false;
}

void tape_end(struct trace *tr, const struct exec *x, bool fuse, uint64_t schedules)
{
    struct tape *p = tr->tape;
    p->exec = p->partial ? NULL : x;
    p->fuse = fuse;
    p->schedules = schedules;
    if (tr->tapes != p) {
        unlink_tape(tr, p);
        push(tr, p);
    }
}
