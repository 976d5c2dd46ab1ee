/* Values that are the same in every call, because they are computed from constants and weights alone: they are computed
 * once, at the first call that needs them, and belong to the model as weights do.  A weight that kl_model_weight has
 * given out can be assigned and differentiated; what is computed from it is recorded in each call. */
#include "onnx.h"
#include <stdlib.h>

/* The most elements that a model holds of what is computed once: so many for each of its initializers' elements .. */
enum { ONCE_GROWTH = 4 };
#define ONCE_FREE (INT64_C(1) << 22) /* .. and so many more */

/* Results that other nodes read without a copy: they are computed once only as operands of what is. */
static bool once_is_view(const struct node *n)
{
    static node_fn *const fn[] = {onnx_reshape, onnx_transpose, onnx_squeeze, onnx_unsqueeze, onnx_flatten,
                                  onnx_identity, onnx_expand};
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++)
        if (n->def->op->fn == fn[i])
            return true;
    return false;
}

static bool once_is_value(const struct value *v)
{
    return v->set && !v->list && !v->varies && v->steady && (!v->weight || !v->weight->taken);
}

/* Is the node no part of a function, which has other operands elsewhere? */
static bool once_is_unique(const struct node *n)
{
    const struct frame *f = n->frame;
    while (f && !f->caller)
        f = f->outer;
    return !f;
}

bool once_is_steady(const struct node *n)
{
    const struct node_def *d = n->def;
    bool steady = d->op && !n->run->folding && (onnx_nin(n) || d->op->fn == onnx_constant) &&
                  d->op->arg != ONNX_NEVER_FOLDED && d->op->fn != onnx_random;
    for (size_t i = 0; i < d->proto->n_attribute; i++)
        steady &= !d->sub[i];
    steady = steady && once_is_unique(n);
    for (uint32_t i = 0; i < onnx_nin(n) && steady; i++) {
        const struct value *v = onnx_value(n, i);
        steady = !v || !v->set || once_is_value(v);
    }
    return steady;
}

static void once_give(struct node *n, const struct once *o)
{
    for (uint32_t i = 0; i < onnx_nout(n); i++) {
        if (!onnx_wants(n, i) || !o->t[i].id)
            continue;
        struct value *v = &n->frame->v[n->def->out[i]];
        onnx_value_clear(v);
        *v = (struct value){.t = o->t[i], .element = o->element[i], .set = true, .steady = true, .held = true,
                           .maker = n};
    }
}

/* Keeps the results; false: they are too large, or no tensors. */
static bool once_keep(struct node *n, struct once *o)
{
    struct kl_model *m = n->run->m;
    int64_t all = 0;
    bool ok = true;
    for (uint32_t i = 0; i < onnx_nout(n); i++) {
        const struct value *v = onnx_wants(n, i) ? &n->frame->v[n->def->out[i]] : NULL;
        ok &= !v || !v->set || (v->t.id && !v->list);
        all = ok && v && v->set ? sat_add(all, kl_numel(v->t)) : all;
    }
    if (!ok || all > m->once_left)
        return false;
    m->once_left -= all;
    for (uint32_t i = 0; i < onnx_nout(n); i++)
        if (onnx_wants(n, i) && n->frame->v[n->def->out[i]].set) {
            o->t[i] = kl_keep(n->frame->v[n->def->out[i]].t);
            o->element[i] = n->frame->v[n->def->out[i]].element;
        }
    return true;
}

static bool once_compute(struct node *n, bool *done);

/* An operand that is a view of weights in the trace is computed outside of it. */
static bool once_operand(struct node *n, uint32_t i)
{
    struct value *v = onnx_value(n, i);
    bool done = true;
    if (!v || !v->set)
        return true;
    if (v->weight)
        n->run->m->weight[v->weight - n->run->m->weight].folded = true;
    else if (v->steady && !v->held && !v->constant)
        return v->maker && once_compute(v->maker, &done) && done;
    return true;
}

/* The same of the operands up to NO_PLACE; operand NULL: of all. */
static bool once_operands(struct node *n, const uint32_t *operand)
{
    bool ok = true;
    for (uint32_t i = 0; ok && (operand ? operand[i] != NO_PLACE : i < onnx_nin(n)); i++)
        ok = once_operand(n, operand ? operand[i] : i);
    return ok;
}

/* Runs the operator outside of the trace and keeps its results; where they are refused, the values that the trace has
 * stay as they are.  false: reported. */
static bool once_run(struct node *n, struct once *o)
{
    struct run *r = n->run;
    uint32_t nout = onnx_nout(n);
    bool tracing = r->tracing, ok = false;
    struct value *before = calloc(nout + 1, sizeof *before);
    for (uint32_t i = 0; before && i < nout; i++)
        if (onnx_wants(n, i)) {
            before[i] = n->frame->v[n->def->out[i]];
            n->frame->v[n->def->out[i]] = (struct value){0};
        }
    r->tracing = false;
    if (before && kl_scope_begin() == KL_OK) {
        ok = run_operator(n);
        o->refused = !ok || !once_keep(n, o);
        kl_scope_end();
    } else {
        onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    }
    r->tracing = tracing;
    for (uint32_t i = 0; before && i < nout; i++)
        if (onnx_wants(n, i)) {
            onnx_value_clear(&n->frame->v[n->def->out[i]]);
            n->frame->v[n->def->out[i]] = before[i];
        }
    free(before);
    return ok;
}

/* Runs the node outside of the trace, or takes what an earlier call has kept.  *done: it has; else the node has to be
 * recorded.  false: reported. */
static bool once_compute(struct node *n, bool *done)
{
    struct run *r = n->run;
    struct node_def *d = &n->frame->g->node[n->def - n->frame->g->node];
    bool ok = true;
    *done = false;
    if (!d->once && (r->m->suspended || r->depth >= DEEPEST))
        return true;
    if (!d->once && !(d->once = once_new(onnx_nout(n))))
        return onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    if (d->once->refused)
        return true;
    r->depth++;
    bool first = !d->once->kept, ready = once_operands(n, NULL);
    r->depth--;
    d->once->refused = first; /* until it is kept */
    if (first && ready && run_suspend(r->m)) {
        ok = once_run(n, d->once);
        run_resume(r->m);
    }
    *done = ok && ready && !d->once->refused;
    d->once->kept |= *done;
    if (*done)
        once_give(n, d->once);
    return ok || kl_fail(kl_last_error_code(), kl_last_error()) == KL_OK; /* in the resumed trace, too */
}

bool once_node(struct node *n, bool *done)
{
    *done = false;
    return once_is_view(n) || once_compute(n, done);
}

/* ---- parts of an operator's work ---- */

/* Are those of the operands that the node has, up to NO_PLACE, computed outside of the trace? */
static bool once_parts_ready(struct node *n, const uint32_t *operand)
{
    bool steady = !n->run->folding && !n->run->m->suspended && once_is_unique(n);
    for (uint32_t i = 0; steady && operand[i] != NO_PLACE; i++) {
        const struct value *v = onnx_value(n, operand[i]);
        steady = !v || !v->set || once_is_value(v);
    }
    return steady && once_operands(n, operand);
}

bool once_is_ready(struct node *n, const uint32_t *operand)
{
    const struct once *part = n->def->part;
    return (!part || !part->refused) && once_parts_ready(n, operand);
}

kl_tensor once_part(struct node *n, uint32_t part, const uint32_t *operand, once_fn *make)
{
    struct run *r = n->run;
    struct node_def *d = &n->frame->g->node[n->def - n->frame->g->node];
    if (!d->part)
        d->part = once_new(ONCE_PARTS);
    if (!d->part || d->part->refused || !once_parts_ready(n, operand))
        return make(n, part);
    if (d->part->t[part].id)
        return d->part->t[part];
    if (!run_suspend(r->m))
        return make(n, part);
    bool tracing = r->tracing;
    kl_tensor t = kl_none;
    r->tracing = false;
    if (kl_scope_begin() == KL_OK) {
        t = make(n, part);
        bool fits = t.id && kl_check(t) == KL_OK && kl_numel(t) <= r->m->once_left;
        r->m->once_left -= fits ? kl_numel(t) : 0;
        t = fits ? kl_keep(t) : kl_none;
        kl_scope_end();
    }
    r->tracing = tracing;
    run_resume(r->m);
    d->part->refused |= !t.id;
    d->part->t[part] = t;
    return t.id ? t : make(n, part);
}

void once_mark(struct node *n)
{
    for (uint32_t i = 0; i < onnx_nout(n); i++) {
        struct value *v = onnx_wants(n, i) ? &n->frame->v[n->def->out[i]] : NULL;
        if (v && v->set)
            v->steady = v->held || v->constant || once_is_view(n);
    }
}

struct once *once_new(uint32_t nout)
{
    struct once *o = calloc(1, sizeof *o);
    if (o) {
        o->n = nout;
        o->t = calloc(nout + 1, sizeof *o->t);
        o->element = calloc(nout + 1, sizeof *o->element);
    }
    if (o && o->t && o->element)
        return o;
    once_free(o);
    return NULL;
}

void once_free(struct once *o)
{
    for (uint32_t i = 0; o && o->t && i < o->n; i++)
        if (o->t[i].id)
            kl_release(o->t[i]);
    if (o) {
        free(o->t);
        free(o->element);
    }
    free(o);
}

int64_t once_budget(const struct kl_model *m)
{
    int64_t all = 0;
    for (uint32_t i = 0; i < m->main->ninitial; i++)
        all = sat_add(all, m->main->initial[i].array->count);
    return sat_add(sat_mul(all, ONCE_GROWTH), ONCE_FREE);
}
