/* Blocks: what a thread begins and ends around calls: scopes, no_grad and autocast blocks, composites, and suspensions
 * of its trace.
 *
 * A function of the user's that Kiln calls while it records, and what runs while a trace is suspended, see the blocks
 * around them but cannot end them: the thread's `floor` has their numbers.  What they begin has to end there. */
#include "frontend/frontend.h"
#include <kiln/extend.h>

/* ---- scopes ---- */

bool scope_note(struct thread *t, kl_tensor h)
{
    if (!t->nscope)
        return true;
    if (!mem_reserve(&t->made, &t->made_cap, t->nmade + 1, sizeof *t->made))
        return false;
    t->made[t->nmade++] = h.id;
    return true;
}

static bool scope_push(struct thread *t, unsigned composite)
{
    if (!mem_reserve(&t->scope, &t->scope_cap, t->nscope + 1, sizeof *t->scope))
        return false;
    t->scope[t->nscope++] = (struct scope){t->nmade, composite};
    return true;
}

/* Releases what was made in the innermost scope except the results, which move to the enclosing scope. */
static void scope_pop(struct thread *t, const kl_tensor *result, uint32_t n)
{
    uint32_t from = t->scope[--t->nscope].from, mine = from;
    front_lock();
    for (uint32_t i = from; i < t->nmade; i++) {
        uint64_t id = t->made[i];
        bool kept = false;
        for (uint32_t k = 0; k < n; k++)
            kept |= result[k].id == id;
        if (kept && t->nscope)
            t->made[mine++] = id; /* an earlier position is free */
        else if (id && !kept)
            handle_end((kl_tensor){id}, DEATH_SCOPE);
    }
    front_unlock();
    t->nmade = mine;
}

kl_status kl_scope_begin(void)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (region_refuses(t, "scope_begin"))
        return KL_ERR_TRACE;
    return scope_push(t, 0) ? KL_OK : report(t, KL_ERR_MEMORY, "scope_begin: out of memory");
}

kl_status kl_scope_end(void)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (region_refuses(t, "scope_end"))
        return KL_ERR_TRACE;
    if (t->nscope == t->floor.scopes)
        return fail(t, KL_ERR_ARGUMENT, "scope_end: %s",
                    t->nscope ? "the scope was begun outside of this function or suspension" : "no scope is open");
    if (t->scope[t->nscope - 1].composite)
        return fail(t, KL_ERR_ARGUMENT, "scope_end: a composite was begun after the scope");
    scope_pop(t, NULL, 0);
    return KL_OK;
}

/* ---- no_grad blocks ---- */

kl_status kl_no_grad_begin(void)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    t->no_grad++;
    return KL_OK;
}

kl_status kl_no_grad_end(void)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (t->no_grad == t->floor.no_grad)
        return fail(t, KL_ERR_ARGUMENT, "no_grad_end: %s",
                    t->no_grad ? "the block was begun before this trace, function or suspension"
                               : "no block is open");
    t->no_grad--;
    return KL_OK;
}

bool kl_grad_enabled(void)
{
    struct thread *t = thread_self();
    return !t || !t->no_grad;
}

/* ---- composites ---- */

bool compose_begin_on(struct thread *t, const char *name)
{
    if (!mem_reserve(&t->narrow, &t->narrow_cap, t->depth + 1, sizeof *t->narrow) ||
        (!t->tracing && !scope_push(t, t->depth + 1)))
        return false;
    if (t->depth == t->floor.composites)
        t->composite = name;
    t->narrow[t->depth++] = (struct narrow){KL_DTYPE_COUNT};
    return true;
}

/* NULL: out of memory, which is reported; the composite returns kl_none. */
struct thread *compose_begin(const char *name)
{
    struct thread *t = thread_self();
    if (!t || compose_begin_on(t, name))
        return t;
    fail(t, KL_ERR_MEMORY, "%s: out of memory", name);
    return NULL;
}

/* The innermost composite's scope, which it has if it was begun outside of a trace, and those begun inside of it. */
static void compose_pop(struct thread *t, const kl_tensor *result, uint32_t n)
{
    uint32_t i = t->nscope;
    while (i > t->floor.scopes && t->scope[i - 1].composite != t->depth)
        i--;
    while (i > t->floor.scopes && t->nscope >= i)
        scope_pop(t, result, n);
}

void compose_end_all(struct thread *t, const kl_tensor *result, uint32_t n)
{
    compose_pop(t, result, n);
    if (--t->depth == t->floor.composites)
        t->composite = NULL;
}

kl_tensor compose_end(struct thread *t, kl_tensor result)
{
    result = narrowed(t, result);
    compose_end_all(t, &result, 1);
    return result;
}

/* ---- functions of the user's ---- */

static struct block_counts blocks_count(const struct thread *t)
{
    return (struct block_counts){t->no_grad, autocast_depth(t), t->depth, t->nscope, name_scope_depth(t)};
}

void blocks_enter(struct thread *t, struct blocks *outer)
{
    *outer = (struct blocks){.floor = t->floor, .open = blocks_count(t), .composite = t->composite,
                             .included = t->included, .excluded = t->excluded, .vmap = t->vmap,
                             .suspension = t->suspension};
    t->floor = outer->open;
    t->composite = NULL;
    t->suspension = NULL;
}

void blocks_leave(struct thread *t, const struct blocks *outer)
{
    t->floor = outer->floor;
    t->no_grad = outer->open.no_grad;
    t->composite = outer->composite;
    t->included = outer->included;
    t->excluded = outer->excluded;
    t->vmap = outer->vmap;
    t->suspension = outer->suspension;
}

static const char *trace_resume_inner(struct thread *t);

bool blocks_resume(struct thread *t)
{
    bool any = t->suspension;
    while (t->suspension)
        trace_resume_inner(t);
    return any;
}

const char *blocks_end_open(struct thread *t)
{
    const char *open = blocks_resume(t) ? "kl_trace_resume" : NULL;
    if (trace_is_refused(t)) {
        trace_drop(t);
        open = "kl_trace_end";
    }
    for (; t->nscope > t->floor.scopes; scope_pop(t, NULL, 0))
        open = open ? open : t->scope[t->nscope - 1].composite ? "kl_composite_end" : "kl_scope_end";
    if (t->depth > t->floor.composites)
        open = open ? open : "kl_composite_end";
    if (autocast_depth(t) > t->floor.autocast)
        open = open ? open : "kl_autocast_end";
    if (t->no_grad > t->floor.no_grad)
        open = open ? open : "kl_no_grad_end";
    if (name_scope_depth(t) > t->floor.names)
        open = open ? open : "kl_name_end";
    name_scopes_end(t, t->floor.names);
    autocast_end_to(t, t->floor.autocast);
    t->depth = t->floor.composites;
    t->no_grad = t->floor.no_grad;
    return open;
}

/* ---- suspensions ---- */

struct suspension {
    bool tracing;
    struct blocks outer;
};

kl_status kl_trace_suspend(void)
{
    struct thread *t = thread_self();
    struct suspension *s = t ? mem_alloc(sizeof *s) : NULL;
    if (!s)
        return t ? fail(t, KL_ERR_MEMORY, "trace_suspend: out of memory") : KL_ERR_MEMORY;
    blocks_enter(t, &s->outer);
    t->suspension = s;
    s->tracing = t->tracing;
    t->tracing = false;
    t->floor.no_grad = ++t->no_grad;
    t->included = t->excluded = 0;
    t->vmap = NULL;
    return KL_OK;
}

/* Ends the innermost suspension; returns what was begun in it and did not end there, or NULL. */
static const char *trace_resume_inner(struct thread *t)
{
    struct suspension *s = t->suspension;
    t->suspension = NULL;
    const char *open = blocks_end_open(t);
    blocks_leave(t, &s->outer);
    t->tracing = s->tracing;
    mem_free(s);
    return open;
}

kl_status kl_trace_resume(void)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (!t->suspension)
        return fail(t, KL_ERR_TRACE, "trace_resume: nothing is suspended");
    const char *open = trace_resume_inner(t);
    return open ? fail(t, KL_ERR_TRACE, "trace_resume: since trace_suspend %s is missing", open) : KL_OK;
}
