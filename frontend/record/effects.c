/* kl_print and kl_assert in the functions that region ops record.
 *
 * A chain of tokens keeps them in order (inspect.c).  A region's chain begins with the token of the enclosing
 * recording, which the region captures like other outside tensors.  Its last token is one more result of the op, and
 * becomes the enclosing recording's token.  A loop carries the token from iteration to iteration.  So the order is that
 * of the iterations, and within one that of the calls.  Recomputation in a backward pass does not print or check again,
 * because nothing reads the tokens of the recomputed nodes. */
#include "frontend/frontend.h"
#include <string.h>

bool effects_reject_in_region(struct thread *t, const kl_site *site, const char *op)
{
    const struct trace *tr = thread_trace(t);
    for (; tr && tr->region; tr = tr->outer) {
        if (tr->silent)
            return fail(t, site, KL_ERR_TRACE, "%s: not inside of the %s of %s", op, tr->silent, tr->region) != KL_OK;
        if (!tr->outer)
            return fail(t, site, KL_ERR_TRACE, "%s: not inside of a function that %s records outside of a trace", op,
                        tr->region) != KL_OK;
    }
    return false;
}

/* The number of the element at position i after the element at position `from` was moved to `to`, before it. */
static uint32_t index_after_move(uint32_t i, uint32_t from, uint32_t to)
{
    return i == to ? from : i > to && i <= from ? i - 1 : i;
}

void effects_move_operand(const struct effects *f, ref *in)
{
    ref token = in[f->from];
    memmove(in + f->to + 1, in + f->to, (f->from - f->to) * sizeof *in);
    in[f->to] = token;
}

/* Moves input number `from` of g to position `to` in the copy; if g has no such number a new input is added there.
 * yield: position of the token among its results; LEAF_NONE: it is not a result. */
static void move_input(struct graph *copy, struct graph *g, ref token, uint32_t from, uint32_t to, uint32_t yield,
                      ref *room)
{
    uint32_t n = g->input.n + (from == g->input.n), results = g->nout;
    struct shape scalar = shape_make(0, NULL);
    ref *in = room, *out = room + n, entry = NIL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = index_after_move(i, from, to);
        const struct leaf *l = k < g->input.n ? &g->input.v[k] : NULL;
        struct shape s = l ? g->shape[l->shape] : scalar;
        in[k] = n_input(copy, l ? l->dtype : KL_U8, &s, l ? l->name : "");
        entry = k == from ? in[k] : entry;
    }
    if (token && !graph_output(g, OUT_RETURN, token, 0))
        err_set(&copy->err, g->err.code, "%s", g->err.msg);
    if (copy->err.code || !graph_splice(copy, g, in, 0, out))
        return;
    ref last = token ? out[results] : entry;
    for (uint32_t i = 0; i <= results; i++) {
        if (i == yield)
            graph_output(copy, OUT_RETURN, last, 0);
        if (i < results)
            graph_output(copy, OUT_RETURN, out[i], 0);
    }
}

bool effects_thread(struct graph **region, ref token, uint32_t from, uint32_t to, uint32_t yield)
{
    struct graph *g = *region, *copy = graph_new(g->name);
    ref *room = mem_alloc((g->input.n + g->nout + 2) * sizeof *room);
    bool ok = copy && room && symbols_share(copy, g);
    if (ok) {
        copy->cur_device = (uint16_t)graph_device(g);
        move_input(copy, g, token, from, to, yield, room);
        ok = !copy->err.code;
    }
    mem_free(room);
    if (!ok) {
        graph_free(copy);
        return false;
    }
    graph_free(g);
    *region = copy;
    return true;
}
