/* kl_profile: makes rows of kernels and lines from the timeline and the times of programs. */
#include "profile.h"
#include "frontend/frontend.h"
#include "ir/graph/custom.h"
#include "ir/text/text.h"
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 24, LIMIT_ROUNDS = 3 };

kl_profile_row *rows_add(struct profile_rows *t, const char *name, const char *where)
{
    if (!mem_reserve(&t->v, &t->cap, t->n + 1, sizeof *t->v) ||
        !mem_reserve(&t->name, &t->name_cap, t->n + 1, sizeof *t->name))
        return NULL;
    snprintf(t->name[t->n].name, sizeof t->name->name, "%s", name);
    snprintf(t->name[t->n].where, sizeof t->name->where, "%s", where);
    t->v[t->n] = (kl_profile_row){0};
    return &t->v[t->n++];
}

/* ---- rows ---- */

/* State of a loop over all commands of a program that ran. */
struct collecting {
    struct own_profile *p;
    struct machine machine;
    const struct times *times;
    uint32_t *kernel;        /* per kernel of the program, copy and interpreter: index of its row + 1 */
};

static kl_profile_row *kernel_row(struct collecting *c, const struct program *p, const struct command *cmd)
{
    struct profile_rows *rows = &c->p->kernel;
    const char *trace = c->times->x->captured->name;
    uint32_t kernels = c->times->x->program->nkernel;
    uint32_t *at = &c->kernel[cmd->kind == CMD_KERNEL ? cmd->kernel : cmd->kind == CMD_COPY ? kernels : kernels + 1];
    char name[128];
    if (cmd->kind == CMD_CUSTOM) { /* a row for each op */
        snprintf(name, sizeof name, "custom %s", node_custom(p->g, node_at(p->g, cmd->region))->name);
        for (uint32_t i = 0; i < rows->n; i++)
            if (!strcmp(rows->name[i].name, name) && !strcmp(rows->name[i].where, trace))
                return &rows->v[i];
        return rows_add(rows, name, trace);
    }
    if (*at)
        return &rows->v[*at - 1];
    *at = rows->n + 1;
    return rows_add(rows, cmd->kind == CMD_KERNEL ? p->kernel[cmd->kernel]->name : cmd->kind == CMD_COPY ? "copy"
                    : "interpreter",
                    trace);
}

/* The times of all runs of a command. */
static kl_profile_row command_took(const struct collecting *c, const struct program *p, const struct command *cmd)
{
    const struct command_time *t = &c->times->row[cmd->row];
    const struct kernel *k = cmd->kind == CMD_KERNEL ? p->kernel[cmd->kernel] : NULL;
    kl_profile_row r = {.calls = (int64_t)atomic_load(&t->calls), .seconds = 1e-9 * (double)atomic_load(&t->ns)};
    if (k) {
        r.bytes = r.calls * k->bytes;
        r.flops = r.calls * k->flops;
        r.limit = (double)r.calls * machine_limit(&c->machine, k);
    } else if (cmd->kind == CMD_COPY) {
        r.bytes = r.calls * 2 * cmd->bytes;
    }
    return r;
}

static bool add_command(struct collecting *c, const struct program *p, const struct command *cmd,
                        struct line_sites *sites,
                        const struct groups *groups)
{
    kl_profile_row took = command_took(c, p, cmd), *row = took.calls &&
        cmd->kind != CMD_REGION ? kernel_row(c, p, cmd) : NULL;
    if (!took.calls || cmd->kind == CMD_REGION) /* a region op's time is that of its regions' commands */
        return true;
    if (!row)
        return false;
    row->calls += took.calls;
    row->seconds += took.seconds;
    row->bytes += took.bytes;
    row->flops += took.flops;
    row->limit += took.limit;
    return lines_add(sites, &c->p->line, cmd, groups, &took);
}

static bool add_program(struct collecting *c, const struct program *p)
{
    struct line_sites sites;
    struct groups groups = {0};
    bool ok = lines_open(&sites, p->g) && (!p->g->group || groups_make(p->g, &groups));
    for (uint32_t i = 0; ok && i < p->ncmd; i++) {
        ok = add_command(c, p, &p->cmd[i], &sites, &groups);
        for (int k = 0; ok && k < 2; k++)
            ok = !p->cmd[i].sub[k] || add_program(c, p->cmd[i].sub[k]);
    }
    groups_free(&groups);
    lines_close(&sites);
    return ok;
}

/* Requests limits for the kernels that ran. */
static bool want_kernels(struct machine *m, const struct program *p, const struct times *t)
{
    bool ok = true;
    for (uint32_t i = 0; ok && i < p->ncmd; i++) {
        const struct command *c = &p->cmd[i];
        if (c->kind == CMD_KERNEL && !(t->x->interpreted >> c->device & 1) && atomic_load(&t->row[c->row].calls))
            ok = machine_want(m, p->kernel[c->kernel]);
        for (int k = 0; ok && k < 2; k++)
            ok = !c->sub[k] || want_kernels(m, c->sub[k], t);
    }
    return ok;
}

static bool measure_machine(struct machine *m)
{
    bool ok = true;
    for (const struct times *t = NULL; ok && (t = times_next(t));)
        ok = want_kernels(m, t->x->program, t);
    for (int i = 0; ok && m->n && i < LIMIT_ROUNDS; i++)
        ok = machine_measure(m);
    return ok;
}

static bool profile_collect(struct own_profile *p)
{
    struct collecting c = {.p = p, .machine = {.clock = measure_now, .threads = pool_threads()}};
    bool ok = measure_machine(&c.machine);
    for (const struct times *t = NULL; ok && (t = times_next(t));) {
        c.times = t;
        c.kernel = mem_alloc((t->x->program->nkernel + 2) * sizeof *c.kernel);
        ok = c.kernel && add_program(&c, t->x->program);
        mem_free(c.kernel);
    }
    machine_free(&c.machine);
    return ok;
}

/* ---- public functions ---- */

static int by_seconds(const void *a, const void *b)
{
    const kl_profile_row *x = a, *y = b;
    return x->seconds != y->seconds ? (x->seconds < y->seconds) - (x->seconds > y->seconds) : strcmp(x->name, y->name);
}

static void finish_rows(struct profile_rows *t)
{
    double all = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        t->v[i].name = t->name[i].name;
        t->v[i].where = t->name[i].where;
        all += t->v[i].seconds;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        t->v[i].share = all > 0 ? t->v[i].seconds / all : 0;
        t->v[i].fraction = t->v[i].seconds > 0 ? t->v[i].limit / t->v[i].seconds : 0;
    }
    if (t->n)
        qsort(t->v, t->n, sizeof *t->v, by_seconds);
}

static void profile_report_finish(struct own_profile *p)
{
    const struct timeline *t = &p->timeline;
    finish_rows(&p->kernel);
    finish_rows(&p->line);
    p->seen = (kl_profile){.seconds = 1e-9 * (double)(t->end - t->start), .threads = (int)pool_threads(),
                           .recording = 1e-9 * (double)t->total[SPAN_RECORD].ns,
                           .planning = 1e-9 * (double)(t->total[SPAN_PASSES].ns + t->total[SPAN_PLAN].ns),
                           .compiling = 1e-9 * (double)(t->total[SPAN_COMPILE].ns + t->total[SPAN_LOAD].ns),
                           .nkernel = p->kernel.n, .nline = p->line.n, .kernel = p->kernel.v, .line = p->line.v,
                           .dropped = (int64_t)t->dropped};
    for (uint32_t i = 0; i < p->kernel.n; i++)
        p->seen.busy += p->kernel.v[i].seconds;
}

kl_status kl_profile_begin(void)
{
    struct thread *t = thread_self();
    struct err e = {0};
    if (!t)
        return KL_ERR_MEMORY;
    return timeline_start(false, &e) ? KL_OK : report(t, e.code, "profile_begin: %s", e.msg);
}

kl_profile *kl_profile_end(void)
{
    struct thread *t = thread_self();
    struct err e = {0};
    struct own_profile *p = t ? mem_alloc(sizeof *p) : NULL;
    if (!p || !timeline_stop(false, &p->timeline, &e) || !profile_collect(p)) {
        if (t)
            report(t, e.code ? e.code : KL_ERR_MEMORY, "profile_end: %s", e.code ? e.msg : "out of memory");
        kl_profile_free(p ? &p->seen : NULL);
        return NULL;
    }
    profile_report_finish(p);
    return &p->seen;
}

void kl_profile_free(kl_profile *profile)
{
    struct own_profile *p = (struct own_profile *)profile;
    if (!p)
        return;
    timeline_free(&p->timeline);
    mem_free(p->kernel.v);
    mem_free(p->kernel.name);
    mem_free(p->line.v);
    mem_free(p->line.name);
    mem_free(p->table);
    mem_free(p);
}

kl_status kl_profile_trace(const kl_profile *profile, const char *path)
{
    struct thread *t = thread_self();
    struct err e = {0};
    if (!t)
        return KL_ERR_MEMORY;
    if (!profile || !path)
        return report(t, KL_ERR_ARGUMENT, "profile_trace: no %s", profile ? "path" : "profile");
    return timeline_json(&((const struct own_profile *)profile)->timeline, path, &e) ? KL_OK : report_err(&e);
}

/* ---- as text ---- */

/* Cuts a name that is too long: the end of a path is kept, the beginning of a kernel's name. */
static const char *profile_fit_name(const char *s, size_t columns, bool keep_end, char out[64])
{
    size_t n = strlen(s), keep = columns - 3;
    if (n <= columns)
        return s;
    if (keep_end)
        snprintf(out, 64, "...%s", s + n - keep);
    else
        snprintf(out, 64, "%.*s...", (int)keep, s);
    return out;
}

static void put_row(struct text *t, const kl_profile_row *r, bool line)
{
    char name[64], where[64];
    double us = 1e6 * r->seconds;
    text_put(t, "%-36s %-16s %8lld", profile_fit_name(r->name, 36, line, name), profile_fit_name(r->where, 16, false,
                                                                                                 where),
             (long long)r->calls);
    text_time(t, us);
    text_time(t, r->calls ? us / (double)r->calls : 0);
    text_put(t, " %6.1f %% %10.3f %10.3f", 100 * r->share, 1e-6 * (double)r->bytes, 1e-6 * (double)r->flops);
    text_put(t, " %7.1f %8.1f", us > 0 ? 1e-3 * (double)r->bytes / us : 0, us > 0 ? 1e-3 * (double)r->flops / us : 0);
    if (r->fraction > 0)
        text_put(t, " %7.0f %%\n", 100 * r->fraction);
    else
        text_put(t, " %9s\n", "-");
}

static void put_rows(struct text *t, const kl_profile_row *r, int64_t n, bool line)
{
    double rest = 0;
    text_put(t, "\n%-36s %-16s %8s %13s %13s %7s %10s %10s %7s %8s %9s\n", line ? "line" : "kernel",
             line ? "function" : "trace",
             "calls", "time", "a call", "of all", "MB", "Mflop", "GB/s", "GFLOP/s", "of limit");
    for (int64_t i = 0; i < n; i++) {
        if (i < SHOWN)
            put_row(t, &r[i], line);
        else
            rest += r[i].share;
    }
    if (n > SHOWN)
        text_put(t, "and %lld more, %.1f %% of the time\n", (long long)(n - SHOWN), 100 * rest);
}

const char *kl_profile_table(const kl_profile *profile)
{
    struct own_profile *p = (struct own_profile *)profile;
    if (!p || p->table)
        return p ? p->table : "";
    struct text t = {0};
    text_put(&t, "%.3f s on %d thread%s: %.3f s in kernels, %.3f s recording, %.3f s planning, %.3f s compiling\n",
             profile->seconds,
             profile->threads, profile->threads == 1 ? "" : "s", profile->busy, profile->recording, profile->planning,
             profile->compiling);
    put_rows(&t, profile->kernel, profile->nkernel, false);
    put_rows(&t, profile->line, profile->nline, true);
    p->table = text_take(&t);
    return p->table ? p->table : "out of memory\n";
}
