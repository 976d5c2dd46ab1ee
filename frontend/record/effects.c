/* kl_print and kl_assert.
 *
 * In a trace they are nodes.  A chain of tokens keeps them in order; the last token is an output of the program without
 * a handle.  Outside of traces they run immediately.
 *
 * In the functions that region ops record, a region's chain begins with the token of the enclosing recording, which the
 * region captures like other outside tensors.  Its last token is one more result of the op, and becomes the enclosing
 * recording's token.  A loop carries the token from iteration to iteration.  So the order is that of the iterations,
 * and within one that of the calls.  Recomputation in a backward pass does not print or check again, because nothing
 * reads the tokens of the recomputed nodes. */
#include "frontend/frontend.h"
#include <string.h>

/* ---- in regions ---- */

bool effects_reject_in_region(struct thread *t, const char *op)
{
    const struct trace *tr = thread_trace(t);
    for (; tr && tr->region; tr = tr->outer) {
        if (tr->silent)
            return fail(t, KL_ERR_TRACE, "%s: not inside of the %s of %s", op, tr->silent, tr->region) != KL_OK;
        if (!tr->outer)
            return fail(t, KL_ERR_TRACE, "%s: not inside of a function that %s records outside of a trace", op,
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

/* ---- the calls ---- */

static bool failed_trace(const struct thread *t) { return t->tracing && t->trace->err.code; }

/* The token of the previous such node, on x's device; kl_none: there is none, or an error was reported. */
static kl_tensor last_token(struct thread *t, const char *op, kl_tensor x)
{
    struct view v;
    return describe(t, op, "operand 1", x, &v) ? region_token(t, v.device) : kl_none;
}

static kl_status record_look(struct thread *t, const char *op, const char *name, kl_tensor x, const char *text)
{
    kl_type type = {.dtype = KL_U8, .rank = 0};
    kl_tensor in[2] = {x, last_token(t, op, x)}, out = kl_none;
    struct custom_use use = {.op = custom_find(name), .attr = *text ? text : NULL, .nattr = strlen(text),
                             .type = &type};
    if (failed_trace(t))
        return t->trace->err.code;
    kl_status status = record_custom(op, &use, in[1].id ? 2 : 1, in, 1, &out);
    if (!status)
        t->trace->token = out;
    return status;
}

static kl_status look_now(struct thread *t, const char *op, const char *name, kl_tensor x, const char *text)
{
    struct view v;
    if (!describe(t, op, "operand 1", x, &v))
        return t->last.code;
    kl_type type[2] = {custom_type(v.dtype, &v.shape), {.dtype = KL_U8}};
    size_t bytes = (size_t)shape_count(&v.shape) * dtype_size(v.dtype);
    void *data = mem_alloc(bytes + 1);
    uint8_t token;
    char message[CUSTOM_MESSAGE] = "";
    kl_custom_call call = {.nin = 1, .nout = 1, .in_type = type, .out_type = type + 1, .attr = text,
                           .attr_bytes = strlen(text),
                           .in = (const void *const[]){data}, .out = (void *const[]){&token}, .message = message,
                           .message_bytes = sizeof message};
    const struct custom_op *c = custom_find(name);
    kl_status status = data ? kl_read(x, data, bytes)
        : report(t, KL_ERR_MEMORY, "%s: out of memory", op);
    if (!status && (status = c->functions.run(c->ctx, &call)))
        report(t, status, "%s: %s", op, message);
    mem_free(data);
    return status;
}

static kl_status inspect_look(const char *op, const char *name, kl_tensor x, const char *text)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t)
        return KL_ERR_MEMORY;
    text = text ? text : "";
    if (failed_trace(t))
        return t->trace->err.code;
    if (effects_reject_in_region(t, op))
        return KL_ERR_TRACE;
    if (strlen(text) > INSPECT_TEXT)
        return fail(t, KL_ERR_ARGUMENT, "%s: a text has at most %d bytes", op, INSPECT_TEXT);
    if (!describe(t, op, "operand 1", x, &v))
        return t->last.code;
    if (*kl_layer_name(x)) { /* the elements printed are those of a plain tensor */
        if (!compose_begin_on(t, NULL))
            return fail(t, KL_ERR_MEMORY, "%s: out of memory", op);
        kl_status status = inspect_look(op, name, kl_dense(x), text);
        compose_end_all(t, NULL, 0);
        return status;
    }
    if (device_index(v.device) == DEVICE_META)
        return fail(t, KL_ERR_DEVICE, "%s: " META_HAS_NO_DATA, op);
    if (!strcmp(name, INSPECT_ASSERT) && v.dtype != KL_BOOL)
        return fail(t, KL_ERR_TYPE, "%s: the condition is %s, not bool", op, dtype_name(v.dtype));
    return t->tracing ? record_look(t, op, name, x, text) : look_now(t, op, name, x, text);
}

kl_tensor kl_print(kl_tensor x, const char *label)
{
    return inspect_look("print", INSPECT_PRINT, x, label) ? op_failed() : x;
}

kl_status kl_assert(kl_tensor condition, const char *message)
{
    return inspect_look("assert", INSPECT_ASSERT, condition, message);
}

void kl_set_print(void (*print)(void *ctx, const char *line), void *ctx)
{
    inspect_printer(print, ctx);
}
