/* Whether a graph can be recorded where it stands, tried outside of the open trace: on tensors of the same types, which
 * are not computed.  An op that fails in a trace fails the trace, so it cannot be tried there. */
#include "onnx.h"
#include <stdlib.h>

/* The tensors of all values that the graph can refer to, while others are in their place. */
struct probe { kl_tensor *t; size_t n, cap; };

static bool probe_keep(struct probe *p, kl_tensor t)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 64;
        kl_tensor *more = realloc(p->t, cap * sizeof *more);
        if (!more)
            return false;
        p->t = more;
        p->cap = cap;
    }
    p->t[p->n++] = t;
    return true;
}

/* Does the value have a type that a tensor can be made of?  A list, or a symbolic length, has none. */
static bool probe_can_replace(const struct value *v)
{
    struct type y = v->t.id ? onnx_type_of(v->t) : (struct type){.rank = 0};
    bool numbers = y.rank >= 0 && !v->list;
    for (int i = 0; i < y.rank; i++)
        numbers &= y.dims[i] >= 0;
    return numbers;
}

/* Puts zeros in the place of tensors; false: it cannot, or there is no memory.  Types are read before the trace is
 * suspended, whose tensors cannot be used then. */
static bool probe_replace(struct node *n, struct probe *p)
{
    struct type *type = NULL;
    bool ok = true;
    for (struct frame *f = n->frame; ok && f; f = f->outer)
        for (uint32_t i = 0; ok && i < f->g->nvalue; i++)
            ok = probe_can_replace(&f->v[i]) && probe_keep(p, f->v[i].t);
    if (!ok || !(type = calloc(p->n + 1, sizeof *type)))
        return false;
    for (size_t i = 0; i < p->n; i++)
        if (p->t[i].id)
            type[i] = onnx_type_of(p->t[i]);
    bool suspended = run_suspend(n->run->m);
    if (!suspended || kl_scope_begin() != KL_OK) {
        if (suspended)
            run_resume(n->run->m);
        free(type);
        return false;
    }
    size_t k = 0;
    for (struct frame *f = n->frame; f; f = f->outer)
        for (uint32_t i = 0; i < f->g->nvalue; i++, k++)
            if (f->v[i].t.id)
                f->v[i].t = kl_zeros(n->run->m->device, type[k].dtype, type[k].rank, type[k].dims);
    free(type);
    return true;
}

static void probe_restore(struct node *n, struct probe *p)
{
    size_t k = 0;
    for (struct frame *f = n->frame; f; f = f->outer)
        for (uint32_t i = 0; i < f->g->nvalue; i++)
            f->v[i].t = p->t[k++];
    kl_scope_end();
    run_resume(n->run->m);
}

enum probe_result onnx_probe(struct node *n, const struct graph_def *g, struct type *result, uint32_t nout)
{
    struct run *r = n->run, before = *r;
    struct probe p = {NULL, 0, 0};
    struct value *out = calloc(g->nout + 1, sizeof *out);
    enum probe_result fits = PROBE_UNKNOWN;
    if (out && !r->m->suspended && probe_replace(n, &p)) {
        fits = graph_run(n, g, NULL, 0, out) ? PROBE_FITS : PROBE_FAILS;
        for (uint32_t i = 0; fits == PROBE_FITS && i < nout; i++)
            if (out[i].t.id)
                result[i] = onnx_type_of(out[i].t);
            else if (out[i].known && !out[i].known->symbolic)
                result[i] = array_type(out[i].known);
            else
                fits = PROBE_UNKNOWN;
        for (uint32_t i = 0; i < g->nout; i++)
            onnx_value_clear(&out[i]);
        probe_restore(n, &p);
        r->reported = before.reported;
        r->draws = before.draws;
        r->seed = before.seed;
        r->varied = before.varied;
        kl_clear_error();
    }
    free(out);
    free(p.t);
    return fits;
}
