/* kl_bench: runs the rounds of a step, collects its kernels' times and makes the report. */
#include "benchmark.h"
#include "frontend/frontend.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_ROUNDS = 1000, MIN_ROUNDS = 3, ROUNDS = 20, SECONDS = 10 };

struct timed { double *s; int n; int64_t calls, bytes; }; /* seconds a call, of each round that had any */

struct benching {
    kl_bench_fn *step;
    void *ctx;
    int rounds;
    struct samples took[2];
    struct profile profile[2];
    struct timed *timed[2];     /* indexed like the profile's rows */
    uint32_t timed_cap[2];
    struct machine machine;
};

/* Calls the user's step; it must not leave a trace open. */
static kl_status call_step(struct benching *b, int fuse)
{
    struct thread *t = thread_self();
    option_fuse_here(fuse);
    kl_status status = b->step(b->ctx);
    option_fuse_here(-1);
    if (t->tracing) {
        trace_drop(t);
        if (!status)
            status = report(t, KL_ERR_TRACE, "bench: the step leaves a trace open");
    }
    if (status && kl_last_error_code() != status)
        report(t, status, "bench: the step fails: %s", status_name(status));
    return status;
}

static kl_status out_of_memory(void) { return report(thread_self(), KL_ERR_MEMORY, "bench: out of memory"); }

/* Moves the times of a step out of the profile, which is then empty. */
static bool take_times(struct benching *b, int fuse)
{
    struct profile *p = &b->profile[fuse];
    if (!mem_reserve(&b->timed[fuse], &b->timed_cap[fuse], p->n, sizeof *b->timed[fuse]))
        return false;
    for (uint32_t i = 0; i < p->n; i++) {
        struct profile_row *r = &p->row[i];
        struct timed *t = &b->timed[fuse][i];
        if (!r->calls)
            continue;
        if (!t->s && !(t->s = mem_alloc((size_t)b->rounds * sizeof *t->s)))
            return false;
        t->calls = (int64_t)r->calls;
        t->bytes = r->bytes / (int64_t)r->calls;
        t->s[t->n++] = r->seconds / (double)r->calls;
        r->calls = 0;
        r->seconds = 0;
        r->bytes = 0;
    }
    return true;
}

static kl_status measure_one(struct benching *b, int fuse)
{
    double start = b->machine.clock();
    kl_status status = call_step(b, fuse);
    samples_add(&b->took[fuse], b->machine.clock() - start);
    if (status)
        return status;
    profile_here(&b->profile[fuse]);
    status = call_step(b, fuse);
    profile_here(NULL);
    return status || take_times(b, fuse) ? status : out_of_memory();
}

/* Compiles both variants and finds the limits that they need. */
static kl_status compile_both(struct benching *b)
{
    for (int fuse = 0; fuse < 2; fuse++) {
        struct profile seen = {.clock = b->machine.clock};
        profile_here(&seen);
        kl_status status = call_step(b, fuse);
        profile_here(NULL);
        bool ok = true;
        for (uint32_t i = 0; ok && i < seen.n; i++)
            if (seen.row[i].calls && seen.row[i].kernel < PROFILE_COPY)
                ok = machine_want(&b->machine, seen.row[i].x->program->kernel[seen.row[i].kernel]);
        bool any = seen.n > 0;
        profile_free(&seen);
        if (status || !ok)
            return status ? status : out_of_memory();
        if (!any)
            return report(thread_self(), KL_ERR_ARGUMENT, "bench: the step runs nothing on this thread");
    }
    return KL_OK;
}

static kl_status run_rounds(struct benching *b, const kl_bench_options *o)
{
    double end = measure_now() + o->seconds;
    int done = 0;
    for (; done < b->rounds && (done < MIN_ROUNDS || measure_now() < end); done++) {
        for (int fuse = 0; fuse < 2; fuse++) {
            kl_status status = measure_one(b, fuse);
            if (status)
                return status;
        }
        if (!machine_measure(&b->machine))
            return out_of_memory();
        if (o->progress)
            o->progress(o->progress_ctx, done + 1, b->rounds);
    }
    if (o->progress && done < b->rounds)
        o->progress(o->progress_ctx, b->rounds, b->rounds);
    b->rounds = done;
    return KL_OK;
}

/* ---- the report ---- */

static kl_bench_time time_of(const double *s, int n)
{
    return (kl_bench_time){1e6 * measure_quantile(s, n, 0.5), 1e6 * measure_quantile(s, n, 0),
                           1e6 * measure_quantile(s, n, 1)};
}

static void fill_kernel(const struct benching *b, int fuse, uint32_t i, kl_bench_kernel *to, char name[64])
{
    const struct profile_row *r = &b->profile[fuse].row[i];
    const struct timed *t = &b->timed[fuse][i];
    *to = (kl_bench_kernel){.name = name, .fused = fuse, .calls = t->calls, .call = time_of(t->s, t->n)};
    if (r->kernel >= PROFILE_COPY) {
        snprintf(name, 64, "%s", r->kernel == PROFILE_COPY ? "copy" : r->kernel == PROFILE_CUSTOM ? "custom"
                 : "interpreter");
        to->bytes = t->bytes;
        return;
    }
    const struct kernel *k = r->x->program->kernel[r->kernel];
    snprintf(name, 64, "%s", k->name);
    to->bytes = k->bytes;
    to->flops = k->flops;
    to->limit = 1e6 * machine_limit(&b->machine, k);
    to->fraction = to->call.median > 0 ? to->limit / to->call.median : 0;
}

static int by_time(const void *a, const void *b)
{
    const kl_bench_kernel *x = a, *y = b;
    double tx = (double)x->calls * x->call.median, ty = (double)y->calls * y->call.median;
    return x->fused != y->fused ? x->fused - y->fused : (tx < ty) - (tx > ty);
}

static struct report *make_report(const struct benching *b, const char *name)
{
    size_t n = 0, length = strlen(name) + 1;
    for (int fuse = 0; fuse < 2; fuse++)
        for (uint32_t i = 0; i < b->profile[fuse].n; i++)
            n += b->timed[fuse][i].n > 0;
    struct report *r = mem_alloc(sizeof *r);
    if (!r)
        return NULL;
    r->name = mem_alloc(length);
    r->names = mem_alloc((n + 1) * sizeof *r->names);
    r->kernels = mem_alloc((n + 1) * sizeof *r->kernels);
    if (!r->name || !r->names || !r->kernels) {
        kl_bench_free(&r->seen);
        return NULL;
    }
    memcpy(r->name, name, length);
    kl_bench_report *seen = &r->seen;
    *seen = (kl_bench_report){.name = r->name, .threads = (int)b->machine.threads, .rounds = b->rounds,
                              .peak = 1e-9 * machine_peak(&b->machine), .kernel = r->kernels};
    for (int fuse = 0; fuse < 2; fuse++) {
        seen->step[fuse] = time_of(b->took[fuse].s, b->took[fuse].n);
        for (uint32_t i = 0; i < b->profile[fuse].n; i++) {
            if (!b->timed[fuse][i].n)
                continue;
            kl_bench_kernel *k = &r->kernels[seen->nkernel];
            fill_kernel(b, fuse, i, k, r->names[seen->nkernel++]);
            seen->limit += fuse ? (double)k->calls * k->limit : 0;
        }
    }
    qsort(r->kernels, (size_t)seen->nkernel, sizeof *r->kernels, by_time);
    return r;
}

static void end_benching(struct benching *b)
{
    for (int fuse = 0; fuse < 2; fuse++) {
        for (uint32_t i = 0; i < b->timed_cap[fuse]; i++)
            mem_free(b->timed[fuse][i].s);
        mem_free(b->timed[fuse]);
        profile_free(&b->profile[fuse]);
    }
    machine_free(&b->machine);
    mem_free(b);
}

/* Fills in the defaults; false: reported. */
static bool check_options(struct thread *t, kl_bench_fn *step, kl_bench_options *o)
{
    if (!step)
        return report(t, KL_ERR_ARGUMENT, "bench: no step"), false;
    if (o->rounds < 0 || o->rounds > MAX_ROUNDS)
        return report(t, KL_ERR_ARGUMENT, "bench: %d rounds; there may be 1 to %d", o->rounds, (int)MAX_ROUNDS),
            false;
    if (!(o->seconds >= 0))
        return report(t, KL_ERR_ARGUMENT, "bench: %g seconds", o->seconds), false;
    if (t->tracing)
        return report(t, KL_ERR_TRACE, "bench: a trace is open"), false;
    o->rounds = o->rounds ? o->rounds : ROUNDS;
    o->seconds = o->seconds > 0 ? o->seconds : SECONDS;
    return true;
}

kl_bench_report *kl_bench(const char *name, kl_bench_fn *step, void *ctx, const kl_bench_options *options)
{
    struct thread *t = thread_self();
    kl_bench_options o = options ? *options : (kl_bench_options){0};
    if (!t || !check_options(t, step, &o))
        return NULL;
    struct benching *b = mem_alloc(sizeof *b);
    if (!b) {
        out_of_memory();
        return NULL;
    }
    b->step = step;
    b->ctx = ctx;
    b->rounds = o.rounds;
    b->machine.threads = pool_threads();
    b->machine.clock = b->machine.threads == 1 ? measure_cpu_now : measure_now;
    b->profile[0].clock = b->profile[1].clock = b->machine.clock;
    struct report *r = NULL;
    if (!compile_both(b) && !run_rounds(b, &o) && !(r = make_report(b, name && *name ? name : "step")))
        out_of_memory();
    end_benching(b);
    return r ? &r->seen : NULL;
}
