/* kl_check_bits: the program of a trace on a device beside the interpreter, by what frontend/check/ has. */
#include "frontend/check/check.h"
#include "frontend/frontend.h"
#include "frontend/ops/ops.h"
#include <string.h>

enum { SYMBOL_VALUE = 37 };  /* of symbols, or the nearest one that they may have: above a vector's lanes, and odd */

/* Gives every symbol a value.  false: *e. */
static bool bind_symbols(struct graph *g, struct err *e)
{
    for (uint32_t i = 0; g->symbols && i < g->symbols->n; i++) {
        const struct symbol *s = &g->symbols->v[i];
        int64_t value = s->low > SYMBOL_VALUE ? s->low : s->high < SYMBOL_VALUE ? s->high : SYMBOL_VALUE;
        if (!graph_symbol_set(g, i, value, e))
            return false;
    }
    return graph_bind(g) >= 0 || err_set(e, g->err.code, "%s", g->err.msg);
}

/* Makes one space of several. */
static void squeeze_spaces(char *text)
{
    char *to = text;
    for (const char *from = text; from && *from; from++)
        if (*from != ' ' || from[1] != ' ')
            *to++ = *from;
    if (to)
        *to = 0;
}

/* Says what differs first.  Returns false. */
static bool report_place(const struct graph *g, int device, bool fuse, const struct check_values *v, uint32_t output,
                         const struct difference *d, struct err *e)
{
    struct check_place p = {0};
    if (!check_locate(g, device, fuse, 0, v, NULL, &p, e)) {
        check_place_free(&p);
        return false;
    }
    squeeze_spaces(p.node);
    char *text = p.kernel ? NULL : check_difference_text(node_at(g, g->out[output].value)->dtype, d);
    err_set(e, KL_ERR_CHECK, "output %u of @%s on %s, %s, has other bits than the interpreter's%s%s%s%s%s%s: %s",
            output, g->name, device_name(device), fuse ? "fused" : "unfused", p.pass ? ", first after pass " : "",
            p.pass ? p.pass : "", p.kernel ? ", first in kernel " : "", p.kernel ? p.kernel : "",
            p.node ? ", of node " : "", p.node ? p.node : "", p.kernel ? p.difference : text ? text : "");
    mem_free(text);
    check_place_free(&p);
    return false;
}

static bool same_bits(const struct graph *g, int device, bool fuse, const struct check_values *v,
                      const struct check_outputs *want, struct err *e)
{
    struct check_outputs have = {0};
    struct difference d;
    bool same = check_run(g, device, fuse, v, &have, e);
    uint32_t k = 0;
    for (; same && k < g->nout; k++) {
        ref r = g->out[k].value;
        if (!check_same(node_at(g, r)->dtype, want->data[k], have.data[k], node_numel(g, r), 0, &d))
            break;
    }
    check_outputs_free(&have);
    return same && (k == g->nout || report_place(g, device, fuse, v, k, &d, e));
}

static bool check_graph(struct graph *g, int device, struct err *e)
{
    struct check_values v = {0};
    struct check_outputs want = {0};
    bool ok = bind_symbols(g, e) && check_values_made_up(&v, g, 1, e) && check_reference(g, device, &v, &want, e) &&
              same_bits(g, device, false, &v, &want, e) && same_bits(g, device, true, &v, &want, e);
    check_outputs_free(&want);
    check_values_free(&v);
    return ok;
}

kl_status kl_check_bits(const char *trace, kl_device device)
{
    struct thread *t = thread_self();
    struct err e = {0};
    if (!t)
        return KL_ERR_MEMORY;
    if (!trace)
        return report(t, KL_ERR_ARGUMENT, "check_bits: the trace's name is NULL");
    if (device.id && !device_valid(device))
        return report(t, KL_ERR_DEVICE, "check_bits: %u is no device", device.id);
    if (t->tracing)
        return report(t, KL_ERR_TRACE, "check_bits: a trace is open");
    const struct exec *x = exec_named(trace);
    if (!x)
        return report(t, KL_ERR_ARGUMENT, "check_bits: no trace of the name \"%s\" has run", trace);
    struct graph *g = graph_clone(x->captured);
    int on = device.id ? device_index(device) : x->device;
    exec_unref(x);
    bool ok = g ? check_graph(g, on, &e) : err_set(&e, KL_ERR_MEMORY, "out of memory: @%s", trace);
    graph_free(g);
    return ok ? KL_OK : report(t, e.code, "check_bits: %s", e.msg);
}
