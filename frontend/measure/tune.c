/* kl_tune: the program of a trace by its name, and what came of its kernels as text. */
#include "frontend/frontend.h"
#include "runtime/program/tune.h"
#include <kiln/measure.h>

enum { MAX_SECONDS = 86400 };

/* ctx of both: the caller's options. */
static void describe_kernel(void *ctx, const struct tune_kernel *k)
{
    const kl_tune_options *o = ctx;
    char *before = schedule_line(&k->before), *after = schedule_line(&k->after);
    kl_tuned_kernel seen = {k->name, before ? before : "", after ? after : "", {k->seconds[0], k->seconds[1]},
                            (int)k->tried, k->complete};
    if (o->kernel)
        o->kernel(o->ctx, &seen);
    mem_free(before);
    mem_free(after);
}

static void print_progress(void *ctx, int done, int total)
{
    const kl_tune_options *o = ctx;
    if (o->progress)
        o->progress(o->ctx, done, total);
}

kl_status kl_tune_with(const char *trace, const kl_tune_options *options)
{
    struct thread *t = thread_self();
    struct err e = {0};
    struct tune_result r;
    if (!t)
        return KL_ERR_MEMORY;
    static const kl_tune_options defaults = {0};
    options = options ? options : &defaults;
    if (!trace)
        return report(t, KL_ERR_ARGUMENT, "tune: the trace's name is NULL");
    if (!(options->seconds >= 0 && options->seconds <= MAX_SECONDS))
        return report(t, KL_ERR_ARGUMENT, "tune: %g seconds; there may be 0 to %d", options->seconds, (int)MAX_SECONDS);
    if (t->tracing)
        return report(t, KL_ERR_TRACE, "tune: a trace is open");
    const struct exec *x = exec_named(trace);
    if (!x)
        return report(t, KL_ERR_ARGUMENT, "tune: no trace of the name \"%s\" has run", trace);
    kl_tune_options own = *options;
    own.seconds = own.seconds > 0 ? own.seconds : KL_TUNE_SECONDS;
    struct tune_options o = {.seconds = own.seconds, .again = true, .progress = print_progress,
                             .found = describe_kernel, .ctx = &own};
    bool ok = x->fuse || err_set(&e, KL_ERR_ARGUMENT, "tune: trace \"%s\" ran unfused: only fused kernels are tuned",
                                 trace);
    ok = ok && tune_program(x, &o, &r, &e);
    if (ok && r.changed) { /* compiled now, not when it runs next */
        const struct exec *next = exec_get(x->captured, x->device, x->fuse, &e);
        ok = next != NULL;
        if (next) /* it takes the place of the program that ran last (exec_named) */
            atomic_store(&((struct exec *)next)->ran, atomic_load(&x->ran));
        exec_unref(next);
    }
    exec_unref(x);
    return ok ? KL_OK : report(t, e.code, "%s", e.msg);
}

kl_status kl_tune(const char *trace, double seconds)
{
    return kl_tune_with(trace, &(kl_tune_options){.seconds = seconds});
}
