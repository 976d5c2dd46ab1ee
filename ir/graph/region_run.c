/* Runs region ops: the only driver of loops and branches.  The interpreter, the executor and the runtime of programs
 * compiled ahead of time call it with their own function for running a region.  It does not use graphs. */
#include "ir/ir.h"
#include <string.h>

static size_t region_run_round64(size_t n) { return (n + 63) / 64 * 64; }

struct region_loop {
    const struct region_call *c;
    uint32_t carried;
    const void **in;   /* parameters of this iteration */
    void **out;        /* yields of this iteration */
    size_t *bytes;     /* per operand and result: of a carried value, of one iteration's part of another one */
    bool *more;        /* result of the condition */
    char *second;      /* carried values of every other iteration; the memory of the results has those of the others */
};

static size_t slice_bytes(size_t bytes, int64_t length) { return length ? bytes / (size_t)length : 0; }

static struct region_loop loop_begin(const struct region_call *c)
{
    struct region_loop l = {.c = c, .carried = c->carried, .in = c->pointers ? (const void **)c->pointers : c->work};
    uint32_t nin = c->nin, nout = c->nout;
    l.out = (void **)l.in + nin;
    l.bytes = (size_t *)(void *)(l.out + nout);
    l.more = (bool *)((char *)c->work + region_run_round64((nin + nout) * (sizeof(void *) + sizeof(size_t))));
    l.second = (char *)l.more + 64;
    for (uint32_t i = 0; i < nin; i++)
        l.in[i] = c->in[i];
    for (uint32_t i = 0; i < nout; i++)
        l.out[i] = c->out[i];
    for (uint32_t i = l.carried; i < l.carried + c->scanned; i++)
        l.bytes[i] = slice_bytes(c->bytes(c, false, i), c->length);
    for (uint32_t i = 0; i < nout; i++)
        l.bytes[nin + i] = i < l.carried ? c->bytes(c, true, i) : slice_bytes(c->bytes(c, true, i), c->length);
    return l;
}

/* Sets where this iteration's carried yields are written: never where they are read. */
static void set_yields(struct region_loop *l, bool second)
{
    char *at = l->second;
    for (uint32_t i = 0; i < l->carried; i++) {
        l->out[i] = second ? at : l->c->out[i];
        at += region_run_round64(l->bytes[l->c->nin + i]);
    }
}

static void loop_carry_values(struct region_loop *l)
{
    for (uint32_t i = 0; i < l->carried; i++)
        l->in[i] = l->out[i];
}

/* Copies the last carried values to the results unless they are there. */
static bool loop_end(const struct region_loop *l)
{
    for (uint32_t i = 0; i < l->carried; i++) {
        size_t bytes = l->bytes[l->c->nin + i];
        if (l->in[i] == l->c->out[i] || !bytes)
            continue;
        if (!l->c->move)
            memcpy(l->c->out[i], l->in[i], bytes);
        else if (!l->c->move(l->c->ctx, l->c->out[i], l->in[i], bytes))
            return false;
    }
    return true;
}

static bool region_peek_bool(const struct region_call *c, const void *at, bool *value)
{
    if (c->peek)
        return c->peek(c->ctx, at, value);
    *value = *(const bool *)at;
    return true;
}

static bool run_while(const struct region_call *c)
{
    struct region_loop l = loop_begin(c);
    for (bool second = false;; second = !second) {
        if (!c->run(c->ctx, 0, l.in, (void *const[]){l.more}))
            return false;
        bool more;
        if (!region_peek_bool(c, l.more, &more))
            return false;
        if (!more)
            break;
        set_yields(&l, second);
        if (!c->run(c->ctx, 1, l.in, l.out))
            return false;
        loop_carry_values(&l);
    }
    return loop_end(&l);
}

/* The last iteration yields directly into the results. */
static bool run_scan(const struct region_call *c)
{
    struct region_loop l = loop_begin(c);
    int64_t length = c->length;
    for (int64_t k = 0; k < length; k++) {
        size_t at = (size_t)(c->reverse ? length - 1 - k : k);
        for (uint32_t i = l.carried; i < l.carried + c->scanned; i++)
            l.in[i] = (const char *)c->in[i] + at * l.bytes[i];
        for (uint32_t i = l.carried; i < c->nout; i++)
            l.out[i] = (char *)c->out[i] + at * l.bytes[c->nin + i];
        set_yields(&l, (length - 1 - k) & 1);
        if (!c->run(c->ctx, 0, l.in, l.out))
            return false;
        loop_carry_values(&l);
    }
    return loop_end(&l);
}

bool region_run(const struct region_call *c)
{
    bool first;
    switch (c->op) {
    case OP_cond: return region_peek_bool(c, c->in[0], &first) && c->run(c->ctx, first ? 0 : 1, c->in + 1, c->out);
    case OP_while: return run_while(c);
    case OP_scan: return run_scan(c);
    default: return c->run(c->ctx, 0, c->in, c->out); /* checkpoint, custom_grad */
    }
}
