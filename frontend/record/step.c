/* Frozen steps: the program of a trace with its states, data and scalars, run without recording. */
#include "frontend/frontend.h"
#include <inttypes.h>
#include <string.h>

struct slot_name { char name[24]; uint32_t slot; };
struct step_input { uint32_t ordinal; unsigned device; };

struct kl_step {
    struct mem_arena mem;   /* of the arrays below */
    const struct exec *exec;     /* a reference */
    struct graph *g;             /* as recorded, used for outputs and messages */
    struct binding *bound;       /* per state */
    struct step_input *given; uint32_t ngiven; /* the inputs passed at each run */
    struct buffer **data;        /* per input: the recorded data, NULL for those passed */
    uint64_t *slot;              /* per slot: the recorded value */
    struct shape *actual;        /* of a graph with symbols, per input: its array's as recorded; else NULL */
    int64_t *length;             /* of a graph with symbols, per slot: the length that it is, or 0; else NULL */
    struct slot_name *name; uint32_t nname;
    uint32_t nkept;              /* number of kept tensors, which are the first outputs */
    size_t room_bytes;           /* what a run needs (step_make_room) */
    uint16_t *ad;                /* ad of each output, as in struct entry */
    _Atomic(void *) room;        /* memory of a run that has ended, for the next one; NULL: none is free */
};

/* ---- making ---- */

static bool find_inputs(kl_step *s, struct trace *tr, const kl_tensor *in, struct err *e)
{
    for (uint32_t i = 0; i < s->ngiven; i++) {
        char what[32];
        snprintf(what, sizeof what, "input %u", i + 1);
        struct entry *x = entry_find(in[i], what, e);
        if (!x)
            return false;
        const struct node *n = x->kind == KIND_TEMP && x->trace == tr ? node_at(tr->r.g, x->node) : NULL;
        if (!n || n->op != OP_input)
            return err_set(e, KL_ERR_ARGUMENT, "%s was not made by kl_input or kl_wrap in trace \"%s\"", what,
                           tr->r.g->name);
        s->given[i] = (struct step_input){n->attr.leaf.index, n->device};
        if (!s->data[n->attr.leaf.index])
            return err_set(e, KL_ERR_ARGUMENT, "%s is given twice", what);
        s->data[n->attr.leaf.index] = NULL;
    }
    return true;
}

/* Finds the temporaries that are slots and have names. */
static void find_names(kl_step *s, const struct trace *tr)
{
    for (uint32_t i = tr->temps; i != NO_ENTRY; i = entry_at(i)->next) {
        const struct entry *x = entry_at(i);
        const struct node *n = x->kind == KIND_TEMP || x->kind == KIND_DEAD ? node_at(tr->r.g, x->node) : NULL;
        if (!n || n->op != OP_slot || !x->name[0] || s->nname == tr->r.g->slot.n)
            continue;
        struct slot_name *name = &s->name[s->nname++];
        snprintf(name->name, sizeof name->name, "%.23s", x->name);
        name->slot = n->attr.leaf.index;
    }
}

/* Marks the slots that a run can set by their names. */
static void mark_named(const struct trace *tr, bool *named)
{
    for (uint32_t i = tr->temps; i != NO_ENTRY; i = entry_at(i)->next) {
        const struct entry *x = entry_at(i);
        const struct node *n = x->kind == KIND_TEMP || x->kind == KIND_DEAD ? node_at(tr->r.g, x->node) : NULL;
        if (n && n->op == OP_slot && x->name[0])
            named[n->attr.leaf.index] = true;
    }
}

/* The first slot without a name that has the same number as slot i. */
static uint32_t first_equal(const struct recording *r, const bool *named, uint32_t i)
{
    const struct leaf *slot = r->g->slot.v;
    for (uint32_t k = 0; k < i && !named[i]; k++)
        if (!named[k] && slot[k].dtype == slot[i].dtype && r->slot[k] == r->slot[i])
            return k;
    return i;
}

struct graph *step_merge_numbers(const struct trace *tr)
{
    const struct graph *g = tr->r.g;
    uint32_t n = g->slot.n, merged = 0;
    bool *named = n && !g->symbols ? mem_alloc(n * sizeof *named) : NULL; /* zeroed */
    uint32_t *first = named ? mem_alloc(n * sizeof *first) : NULL;
    if (first)
        mark_named(tr, named);
    for (uint32_t i = 0; i < n && first; i++)
        merged += (first[i] = first_equal(&tr->r, named, i)) != i;
    struct graph *copy = merged ? graph_clone(g) : NULL;
    for (ref r = 1; copy && r < copy->nnode; r++)
        if (copy->node[r].op == OP_slot)
            copy->node[r].attr.leaf.index = first[copy->node[r].attr.leaf.index];
    mem_free(first);
    mem_free(named);
    return copy;
}

/* Slots that are lengths, and the shapes of arrays that give them. */
static bool copy_symbolic(kl_step *s, const struct recording *r)
{
    const struct graph *g = r->g;
    s->actual = mem_arena_alloc(&s->mem, (g->input.n + 1) * sizeof *s->actual);
    s->length = mem_arena_alloc(&s->mem, (g->slot.n + 1) * sizeof *s->length);
    for (uint32_t i = 0; s->actual && i < g->input.n && i < r->actual_cap; i++)
        s->actual[i] = r->actual[i];
    for (uint32_t i = 0; s->length && i < g->slot.n && i < r->length_cap; i++)
        s->length[i] = r->length[i];
    return s->actual && s->length;
}

static size_t bytes_of_room(const struct graph *g, uint32_t nkept)
{
    size_t numbers = g->slot.n + (g->symbols ? g->symbols->n : 0), shapes = g->symbols ? g->input.n : 0;
    return (g->input.n + nkept + g->state.n + g->nout + numbers) * sizeof(uint64_t) + shapes * sizeof(struct shape) +
           g->state.n;
}

static bool step_fill(kl_step *s, struct trace *tr, const kl_tensor *in, struct err *e)
{
    const struct graph *g = tr->r.g;
    s->g = graph_clone(g);
    s->bound = mem_arena_alloc(&s->mem, tr->nbound * sizeof *s->bound);
    s->given = mem_arena_alloc(&s->mem, s->ngiven * sizeof *s->given);
    s->data = mem_arena_alloc(&s->mem, g->input.n * sizeof *s->data);
    s->slot = mem_arena_alloc(&s->mem, g->slot.n * sizeof *s->slot);
    s->name = mem_arena_alloc(&s->mem, g->slot.n * sizeof *s->name);
    s->ad = mem_arena_alloc(&s->mem, (tr->nkeep + 1) * sizeof *s->ad);
    if (!s->g || s->mem.failed)
        return err_set(e, KL_ERR_MEMORY, "out of memory");
    if (g->symbols && !copy_symbolic(s, &tr->r))
        return err_set(e, KL_ERR_MEMORY, "out of memory");
    if (g->slot.n)
        memcpy(s->slot, tr->r.slot, g->slot.n * sizeof *s->slot);
    if (g->input.n)
        memcpy(s->data, tr->r.input, g->input.n * sizeof *s->data);
    for (uint32_t i = 0; i < tr->nbound; i++)
        s->bound[i] = (struct binding){.h = tr->bound[i].h, .entry = tr->bound[i].entry,
                                       .assigned = tr->bound[i].assigned};
    find_names(s, tr);
    s->nkept = tr->nkeep;
    s->room_bytes = bytes_of_room(s->g, s->nkept);
    for (uint32_t i = 0; i < tr->nkeep; i++)
        s->ad[i] = entry_at((uint32_t)tr->keep[i].id)->ad;
    bool ok = find_inputs(s, tr, in, e);
    for (uint32_t i = 0; i < g->input.n; i++)
        if (s->data[i])
            buffer_ref(s->data[i]);
    return ok;
}

static kl_step *step_freeze(struct trace *tr, uint32_t n, const kl_tensor *in, struct err *e)
{
    const struct exec *x = trace_program(tr, true, e);
    if (!x && !e->code)
        err_set(e, KL_ERR_ARGUMENT, "trace \"%s\" keeps and assigns nothing", tr->r.g->name);
    kl_step *s = x ? mem_alloc(sizeof *s) : NULL;
    if (!s) {
        exec_unref(x);
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return NULL;
    }
    s->exec = x;
    s->ngiven = n;
    if (step_fill(s, tr, in, e))
        return s;
    kl_step_free(s);
    return NULL;
}

kl_step *kl_trace_end_step(int64_t n, const kl_tensor *in)
{
    struct thread *t = thread_self();
    if (!t || region_refuses(t, "trace_end_step"))
        return NULL;
    if (!t->tracing) {
        report(t, KL_ERR_TRACE, "trace_end_step: no trace is open");
        return NULL;
    }
    struct trace *tr = t->trace;
    struct err e;
    e.code = KL_OK;
    kl_step *s = NULL;
    span_end(SPAN_RECORD, tr->r.g->name, tr->began);
    if (tr->err.code)
        t->last = tr->err;
    else if (!counts_valid(t, "trace_end_step", COUNTS({"ninputs", n})))
        ;
    else if (n && !in)
        report(t, KL_ERR_ARGUMENT, "trace_end_step: %" PRId64 " inputs at NULL", n);
    else if (!(s = step_freeze(tr, (uint32_t)n, in, &e)))
        report(t, e.code, "trace_end_step: trace \"%s\": %s", tr->r.g->name, e.msg);
    if (!s)
        tr->err = t->last;
    trace_drop(t);
    return s;
}

void kl_step_free(kl_step *s)
{
    if (!s)
        return;
    front_lock();
    for (uint32_t i = 0; s->g && s->data && i < s->g->input.n; i++)
        front_drop(s->data[i]);
    front_unlock();
    exec_unref(s->exec);
    graph_free(s->g);
    mem_arena_free(&s->mem);
    mem_free(atomic_load(&s->room));
    mem_free(s);
}

int64_t kl_step_outputs(const kl_step *s)
{
    return s ? (int)s->nkept : -1;
}

/* ---- running ---- */

/* The arrays of a run, in one block. */
struct step_run {
    const kl_step *s;
    struct launch l;
    struct buffer **input;       /* with references to the first `taken` of those passed */
    uint32_t taken, made;        /* made: number of new handles in kept[] */
    uint64_t *slot;
    struct shape *actual;        /* per input, of a graph with symbols */
    struct entry **kept;
};

enum { SMALL_ROOM = 512 };       /* bytes; so much is on the stack */

static void *step_make_room(struct step_run *r, char *small)
{
    const kl_step *s = r->s;
    const struct graph *g = s->g;
    uint32_t numbers = g->slot.n + (g->symbols ? g->symbols->n : 0), shapes = g->symbols ? g->input.n : 0;
    char *p = s->room_bytes <= SMALL_ROOM ? small : atomic_exchange(&((kl_step *)s)->room, NULL);
    if (!p && !(p = mem_alloc(s->room_bytes)))
        return NULL;
    r->input = (void *)p;
    r->kept = (void *)(r->input + g->input.n);
    struct buffer **state = (void *)(r->kept + s->nkept), **out = state + g->state.n;
    r->slot = (void *)(out + g->nout);
    r->actual = (void *)(r->slot + numbers);
    r->l = (struct launch){.g = g, .bound = s->bound, .nbound = g->state.n, .nkept = s->nkept, .frozen = true,
                           .slot = r->slot, .state = state, .out = out, .exclusive = (void *)(r->actual + shapes)};
    if (g->input.n)
        memcpy(r->input, s->data, g->input.n * sizeof *r->input);
    if (shapes)
        memcpy(r->actual, s->actual, shapes * sizeof *r->actual);
    if (g->slot.n)
        memcpy(r->slot, s->slot, g->slot.n * sizeof *r->slot);
    return p;
}

static bool first_of_name(const kl_step *s, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++)
        if (!strcmp(s->name[i].name, s->name[k].name))
            return false;
    return true;
}

/* Converts the given numbers to the dtypes of their slots. */
static bool set_slots(struct step_run *r, int64_t n, const kl_slot *slots, struct err *e)
{
    const kl_step *s = r->s;
    for (int64_t i = 0; i < n; i++) {
        bool known = false;
        for (uint32_t k = 0; k < s->nname && slots[i].name; k++)
            if (!strcmp(s->name[k].name, slots[i].name)) {
                r->slot[s->name[k].slot] = dtype_bits(s->g->slot.v[s->name[k].slot].dtype, slots[i].value);
                known = true;
            }
        if (known)
            continue;
        char list[256] = "";
        for (uint32_t k = 0, at = 0; k < s->nname && at < sizeof list; k++)
            if (first_of_name(s, k))
                at += (uint32_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", s->name[k].name);
        return err_set(e, KL_ERR_ARGUMENT, "there is no number named \"%s\": %s%s", slots[i].name ? slots[i].name : "",
                       list[0] ? "the names are " : "none has a name", list);
    }
    return true;
}

static bool input_fits(const struct graph *g, uint32_t i, const struct leaf *l, unsigned device, const struct entry *x,
                       struct err *e)
{
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    const struct shape *want = &g->shape[l->shape];
    if (x->dtype != l->dtype)
        return err_set(e, KL_ERR_TYPE, "input %u is %s, not %s as recorded", i + 1, dtype_name(x->dtype),
                       dtype_name(l->dtype));
    if (!shape_is_symbolic(want) && !shape_equal(&x->shape, want))
        return err_set(e, KL_ERR_SHAPE, "input %u has shape %s, not %s as recorded", i + 1,
                       shape_text(&x->shape, a, sizeof a), shape_text(want, b, sizeof b));
    if (x->device != device)
        return err_set(e, KL_ERR_DEVICE, "input %u is on device %s, not %s as recorded", i + 1,
                       kl_device_name(device_of(x->device)), kl_device_name(device_of(device)));
    return true;
}

/* Input i is no value that a step can take. */
static bool input_refuse(uint32_t i, kl_tensor in, struct err *e)
{
    char what[32];
    snprintf(what, sizeof what, "input %u", i + 1);
    const struct entry *x = entry_find(in, what, e);
    if (!x)
        return false;
    if (x->kind == KIND_POISON)
        return *e = x->cause->err, false;
    if (x->kind == KIND_WRAPPER)
        return wrapper_refuse(x, what, e);
    return err_set(e, KL_ERR_TRACE, "%s belongs to a trace that is open on another thread", what);
}

/* Takes a reference to the value of each input that is passed, the step has those to the others.  Needs the lock and
 * may release it temporarily. */
static bool take_inputs(struct step_run *r, const kl_tensor *in, struct err *e)
{
    const kl_step *s = r->s;
    for (uint32_t i = 0; i < s->ngiven; i = r->taken) {
        const struct entry *x = entry_peek(in[i]);
        uint32_t at = s->given[i].ordinal;
        if (!x || x->kind != KIND_VALUE)
            return input_refuse(i, in[i], e);
        if (!input_fits(s->g, i, &s->g->input.v[at], s->given[i].device, x, e))
            return false;
        if (s->g->symbols)
            r->actual[at] = x->shape;
        if (x->busy) {
            if (!front_wait_cancellable(e))
                return false;
        } else if (!x->buffer) {
            if (!deferred_compute(&in[i], 1, e))
                return false;
        } else {
            r->input[at] = buffer_ref(x->buffer), r->taken++;
        }
    }
    return true;
}

/* Handles for the outputs; needs the lock. */
static bool make_handles(struct step_run *r, struct err *e)
{
    for (; r->made < r->s->nkept; r->made++) {
        struct entry *x = r->kept[r->made] = entry_new();
        if (!x)
            return err_set(e, KL_ERR_MEMORY, "out of memory");
        x->kind = KIND_VALUE;
        x->ad = r->s->ad[r->made];
    }
    return true;
}

/* The lock is taken a second time only if the run assigns states or has failed: nobody else knows its new handles. */
static bool step_execute(struct step_run *r, const kl_tensor *in, kl_tensor *out, struct err *e)
{
    const kl_step *s = r->s;
    front_lock();
    bool taken = take_inputs(r, in, e) && make_handles(r, e) &&
                 (!s->g->symbols || symbolic_values(s->g, r->actual, s->length, r->slot, e)) && launch_take(&r->l, e);
    front_unlock();
    bool ok = taken;
    if (ok) {
        const struct exec *x = s->exec->variants ? exec_pick(s->exec, r->slot, e) : s->exec;
        ok = x && exec_run_checked(x, s->g, r->input, r->l.state, r->l.exclusive, r->slot, r->l.out, e);
        if (s->exec->variants)
            exec_unref(x);
        if (!ok)
            custom_locate(s->g, e);
    }
    bool locked = !ok || r->l.assigns;
    if (locked)
        front_lock();
    if (ok)
        launch_commit(&r->l, r->kept);
    if (taken)
        launch_unmark(&r->l);
    for (uint32_t i = 0; i < r->made; i++) {
        if (ok)
            out[i] = entry_handle(r->kept[i]);
        else
            entry_free(r->kept[i], DEATH_RELEASED);
    }
    if (locked)
        front_unlock();
    if (taken)
        launch_drop(&r->l);
    for (uint32_t i = 0; i < r->taken; i++)
        buffer_unref(r->input[s->given[i].ordinal]);
    return ok;
}

static bool counts_fit(const kl_step *s, int64_t n, const kl_tensor *in, int64_t nslots, const kl_slot *slots,
                       int64_t nout, const kl_tensor *out, struct err *e)
{
    if (n == s->ngiven && nout == s->nkept && !nslots && (in || !n) && (out || !nout))
        return true;
    char text[80];
    const struct named_count *bad = first_bad_count(COUNTS({"ninputs", n}, {"nslots", nslots}, {"noutputs", nout}));
    if (bad)
        return err_set(e, KL_ERR_ARGUMENT, "%s", bad_count_text(bad, text, sizeof text));
    if (n != s->ngiven || (n && !in))
        return err_set(e, KL_ERR_ARGUMENT, "takes %u inputs, got %" PRId64 "%s", s->ngiven, n,
                       n && !in ? " at NULL" : "");
    if (nslots && !slots)
        return err_set(e, KL_ERR_ARGUMENT, "%" PRId64 " numbers at NULL", nslots);
    if (nout != s->nkept || (nout && !out))
        return err_set(e, KL_ERR_ARGUMENT, "has %u outputs, not %" PRId64 "%s", s->nkept, nout,
                       nout && !out ? " at NULL" : "");
    return true;
}

static kl_status step_run(struct thread *t, const kl_step *s, int64_t n, const kl_tensor *in, int64_t nslots,
                          const kl_slot *slots, int64_t nout, kl_tensor *out)
{
    if (t->tracing && region_refuses(t, "step_run"))
        return KL_ERR_TRACE;
    if (!s)
        return fail(t, KL_ERR_ARGUMENT, "step_run: no step");
    if (t->tracing)
        return fail(t, KL_ERR_TRACE, "step_run: step \"%s\": trace \"%s\" is open", s->g->name, t->trace->r.g->name);
    struct err e;
    e.code = KL_OK;
    struct step_run r;           /* step_make_room sets the rest */
    r.s = s, r.taken = r.made = 0;
    _Alignas(16) char small[SMALL_ROOM];
    void *room = NULL;
    int64_t began = span_begin();
    bool ok = counts_fit(s, n, in, nslots, slots, nout, out, &e) &&
              ((room = step_make_room(&r, small)) || err_set(&e, KL_ERR_MEMORY, "out of memory")) &&
              set_slots(&r, nslots, slots, &e) && step_execute(&r, in, out, &e);
    if (room && room != small)
        mem_free(atomic_exchange(&((kl_step *)s)->room, room));
    span_end(SPAN_STEP, s->g->name, began);
    return ok ? KL_OK : report(t, e.code, "step_run: step \"%s\": %s", s->g->name, e.msg);
}

kl_status kl_step_run(const kl_step *s, int64_t n, const kl_tensor *in, int64_t nslots,
                      const kl_slot *slots, int64_t nout, kl_tensor *out)
{
    struct thread *t = thread_self();
    kl_status status = t ? step_run(t, s, n, in, nslots, slots, nout, out) : KL_ERR_MEMORY;
    for (uint32_t i = 0; status && out && i < count_or_none(nout); i++)
        out[i] = kl_none;
    return status;
}
