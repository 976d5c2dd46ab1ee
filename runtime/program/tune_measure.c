/* Runs programs for the tuner and measures each kernel: on a device with a driver by the device's events around its
 * launches (driver.h), else by the host's clock.
 *
 * A program is run as a whole, or each kernel that is measured right behind the command before it, so that it finds in
 * the caches what that left there: its operands, or not.  Region ops and custom ops are left out, because their values
 * may decide how long they take, or they call the user; the kernels of regions are measured by the region alone, as a
 * program of its own.  The values are made up (values.c).  That is safe: a kernel stays within its arrays whatever the
 * values are. */
#include "tune_measure.h"
#include "runtime/measure/measure.h"
#include <string.h>

static bool measure_fill(const struct measured *m, const struct leaves *l, unsigned op, struct buffer **to,
                         struct err *e)
{
    for (uint32_t i = 0; i < l->n; i++) {
        int64_t n = shape_count(&m->g->shape[l->v[i].shape]);
        int device = exec_leaf_device(m->g, m->device, op, i);
        bool ok = to[i] ? values_write(to[i], l->v[i].dtype, n, e)
                        : (to[i] = values_buffer(device, l->v[i].dtype, n, e)) != NULL;
        if (!ok) return false;
    }
    return true;
}

bool measured_open(struct measured *m, const struct graph *g, int device, struct err *e)
{
    *m = (struct measured){.g = g, .device = device};
    m->input = mem_alloc((g->input.n + 1) * sizeof *m->input);
    m->state = mem_alloc((g->state.n + 1) * sizeof *m->state);
    m->out = mem_alloc((g->nout + 1) * sizeof *m->out);
    m->exclusive = mem_alloc((g->state.n + 1) * sizeof *m->exclusive);
    m->slot = mem_alloc((g->slot.n + 1) * sizeof *m->slot);
    m->launches = mem_alloc((g->ngroup + 1) * sizeof *m->launches);
    if (!m->launches || !m->input || !m->state || !m->out || !m->exclusive || !m->slot)
        return err_set(e, KL_ERR_MEMORY, "no memory to tune graph %s", g->name);
    for (uint32_t i = 0; i < g->state.n; i++) m->exclusive[i] = true;
    for (uint32_t i = 0; i < g->slot.n; i++) m->slot[i] = values_slot(g->slot.v[i].dtype);
    bool host = device_is_host(device) && !(graph_devices(g) >> DEVICE_HOSTS);
    m->clock = pool_threads() == 1 && host ? measure_cpu_now : measure_now;
    return measure_fill(m, &g->input, OP_input, m->input, e) && measured_reset(m, e);
}

bool measured_reset(struct measured *m, struct err *e)
{
    return measure_fill(m, &m->g->state, OP_state, m->state, e);
}

static void unref_all(struct buffer **b, uint32_t n)
{
    for (uint32_t i = 0; b && i < n; i++) buffer_unref(b[i]);
    mem_free(b);
}

void measured_close(struct measured *m)
{
    if (!m->g) return;
    unref_all(m->input, m->g->input.n);
    unref_all(m->state, m->g->state.n);
    unref_all(m->out, m->g->nout);
    mem_free(m->exclusive);
    mem_free(m->slot);
    mem_free(m->launches);
    *m = (struct measured){0};
}

/* ---- one way to compute the program ---- */

/* Sets the tuner's number for each kernel of the program.  A kernel that has several has no time of its own. */
static void number_kernels(struct variant *v)
{
    const struct program *p = v->x->program;
    for (uint32_t i = 0; i < p->ncmd; i++) {
        const struct command *c = &p->cmd[i];
        if (c->kind != CMD_KERNEL) continue;
        uint32_t number = v->of_group[c->group], *at = &v->number[c->kernel];
        if (*at && *at != number) v->merged = true;
        *at = number;
    }
}

/* Commands whose values may decide how long they take, or that call the user. */
static bool is_left_out(const struct command *c) { return c->kind == CMD_REGION || c->kind == CMD_CUSTOM; }

void variant_all(struct variant *v)
{
    for (uint32_t i = 0; i < v->x->program->ncmd; i++) v->skip[i] = is_left_out(&v->x->program->cmd[i]);
}

bool variant_only(struct variant *v, const bool *wanted, uint32_t n)
{
    enum { CALLS = 2 }; /* of a kernel: the first, and the next but two */
    const struct program *p = v->x->program;
    uint32_t *seen = mem_alloc((n + 1) * sizeof *seen);
    for (uint32_t i = 0; seen && i < p->ncmd; i++) {
        uint32_t number = p->cmd[i].kind == CMD_KERNEL ? v->of_group[p->cmd[i].group] : 0;
        bool runs = number && wanted[number - 1] && seen[number]++ % 3 == 0 && seen[number] <= 3 * CALLS;
        v->skip[i] = !runs;
        if (runs && i > 0) v->skip[i - 1] = is_left_out(&p->cmd[i - 1]); /* what is in the caches when it begins */
    }
    mem_free(seen);
    return seen != NULL;
}

bool variant_make(struct variant *v, const struct measured *m, const uint32_t *of_group, const struct tuned *tuned,
                  struct err *e)
{
    *v = (struct variant){.profile.clock = m->clock, .of_group = of_group};
    if (!(v->x = exec_variant(m->g, m->device, tuned, e))) return false;
    v->number = mem_alloc((v->x->program->nkernel + 1) * sizeof *v->number);
    v->skip = mem_alloc((v->x->program->ncmd + 1) * sizeof *v->skip);
    v->launches = mem_alloc((v->x->program->nkernel + 1) * sizeof *v->launches);
    if (!v->number || !v->skip || !v->launches)
        return err_set(e, KL_ERR_MEMORY, "no memory to tune graph %s", m->g->name);
    v->x->skip = v->skip;
    variant_all(v);
    number_kernels(v);
    return true;
}

void variant_free(struct variant *v)
{
    profile_free(&v->profile);
    mem_free(v->number);
    mem_free(v->skip);
    mem_free(v->launches);
    exec_variant_free(v->x);
    *v = (struct variant){0};
}

/* One run; a state that was not updated in place has moved to where its new value is. */
static bool run_once(struct variant *v, struct measured *m, struct err *e)
{
    if (!exec_run(v->x, m->input, m->state, m->exclusive, m->slot, m->out, e)) return false;
    for (uint32_t k = 0; k < m->g->nout; k++) {
        const struct output *o = &m->g->out[k];
        struct buffer **old = o->kind == OUT_ASSIGN ? &m->state[o->state] : &m->out[k], *gone = *old;
        if (o->kind == OUT_ASSIGN) *old = m->out[k];
        buffer_unref(gone);
        m->out[k] = NULL;
    }
    return true;
}

bool variant_run(struct variant *v, struct measured *m, int times, double *took, double *whole, struct err *e)
{
    bool ok = true;
    for (uint32_t i = 0; i < v->x->program->nkernel; i++)
        v->launches[i] = v->number[i] ? m->launches[v->number[i] - 1] : 1;
    v->profile.launches = v->launches;
    profile_here(&v->profile);
    for (int i = 0; ok && i < times; i++) ok = run_once(v, m, e);
    profile_here(NULL);
    *whole = 0;
    for (uint32_t i = 0; i < v->profile.n; i++) {
        struct profile_row *r = &v->profile.row[i];
        uint32_t number = r->kernel < PROFILE_COPY ? v->number[r->kernel] : 0;
        if (number) took[number - 1] += r->seconds;
        *whole += r->seconds;
        r->seconds = 0;
        r->calls = 0;
        r->bytes = 0;
    }
    return ok;
}
