/* Barriers with phases, and copies of panels, of the kernel interpreter.
 *
 * A copy of a panel is complete when the phase is that expects it, and no sooner.  Three rules are checked, of which
 * none depends on the order in which the threads run: a thread loads an element of a panel only if it has waited for
 * the phase that completed the copy; a thread copies to an element only if every thread that multiplied it has arrived
 * at a barrier after its products were complete, and the copying thread has waited for that barrier's phase; a barrier
 * is never more than one phase ahead of the phase that a thread waits for, because the hardware distinguishes only odd
 * phases from even ones.
 *
 * Phases also order accesses to shared memory that is no panel: what a thread accesses before it arrives is before what
 * another thread does after it has waited for the phase of that arrival.  Vector clocks find this order (Mattern 1989).
 */
#include "kernel_interp.h"
#include <inttypes.h>
#include <string.h>

static bool phase_fail(const struct machine *m, val v, const char *why)
{
    return err_set(m->e, KL_ERR_INTERNAL, "kernel %s: %%%u %s", m->k->name, v, why);
}

/* The number of the barrier that instruction v names. */
static bool find_barrier(const struct machine *m, const struct thread *t, val v, uint32_t *number)
{
    const struct linst *i = &m->k->inst[v];
    uint32_t buf = (uint32_t)i->imm;
    int64_t at = (int64_t)value_get(m, t, i->a, 0, 0);
    if (at < 0 || at >= m->k->buf[buf].count)
        return phase_fail(m, v, "is of a barrier that its buffer does not have");
    *number = m->barrier_at[buf] + (uint32_t)at;
    return true;
}

/* ---- copies ---- */

/* An element of a view, as an index of the buffer that has it; -1: there is none. */
static int64_t view_element(const struct lbuf *view, const int64_t from[VIEW_DIMS], int r, int c)
{
    const int64_t at[VIEW_DIMS] = {from[0] + c, from[1] + r, from[2]};
    int64_t index = view->first;
    for (unsigned d = 0; d < VIEW_DIMS; d++) {
        if (at[d] < 0 || at[d] >= view->size[d])
            return -1;
        index += at[d] * view->step[d];
    }
    return index;
}

static struct mark *panel_mark(const struct machine *m, const struct panel_copy *p, int r, int c, int64_t *at)
{
    uint32_t to = (uint32_t)m->k->inst[p->v].imm;
    *at = p->to + (int64_t)r * m->k->buf[to].id + c;
    return &m->mark[to][*at];
}

static void complete_panel(struct machine *m, const struct panel_copy *p)
{
    const struct linst *i = &m->k->inst[p->v];
    uint32_t to = (uint32_t)i->imm;
    const struct lbuf *view = &m->k->buf[i->imm >> 32];
    size_t size = dtype_size(view->dtype);
    for (int r = 0; r < m->k->buf[to].panel_rows; r++)
        for (int c = 0; c < PANEL_COLUMNS; c++) {
            int64_t at, from = view_element(view, p->from, r, c);
            struct mark *k = panel_mark(m, p, r, c, &at);
            if (from < 0)
                memset(m->buf[to] + (size_t)at * size, 0, size);
            else
                memcpy(m->buf[to] + (size_t)at * size, m->buf[view->id] + (size_t)from * size, size);
            k->stored = (struct last_access){m->iteration, m->interval, BY_SEVERAL};
            k->copy_barrier = p->barrier;
            k->copy_phase = m->barrier[p->barrier].done;
        }
}

/* ---- clocks ---- */

static void join_clocks(const struct machine *m, uint32_t *to, const uint32_t *from)
{
    for (uint32_t x = 0; x < m->nthread; x++)
        to[x] = to[x] < from[x] ? from[x] : to[x];
}

static uint32_t thread_number(const struct machine *m, const struct thread *t) { return (uint32_t)(t - m->thread); }

static struct access_order *order_of(const struct machine *m, uint32_t buf, int64_t at)
{
    struct access_order *o = m->order[buf] ? &m->order[buf][at] : NULL;
    if (o && o->iteration != m->iteration)
        *o = (struct access_order){.iteration = m->iteration};
    return o;
}

bool phase_order_load(const struct machine *m, const struct thread *t, uint32_t buf, int64_t at)
{
    struct access_order *o = order_of(m, buf, at);
    uint32_t self = thread_number(m, t), n = 0;
    if (!o)
        return false;
    while (n < o->loads && n < MAX_LOADERS && o->loader[n] != self)
        n++;
    if (n < MAX_LOADERS) {
        o->loader[n] = self;
        o->load_clock[n] = t->clock[self];
    }
    o->loads = n < o->loads ? o->loads : n + 1;
    return o->storer == self || t->clock[o->storer] >= o->store_clock;
}

bool phase_order_store(const struct machine *m, const struct thread *t, uint32_t buf, int64_t at)
{
    struct access_order *o = order_of(m, buf, at);
    uint32_t self = thread_number(m, t);
    if (!o)
        return false;
    bool ordered = (o->storer == self || t->clock[o->storer] >= o->store_clock) && o->loads <= MAX_LOADERS;
    for (uint32_t n = 0; n < o->loads && ordered; n++)
        ordered = o->loader[n] == self || t->clock[o->loader[n]] >= o->load_clock[n];
    *o = (struct access_order){.iteration = m->iteration, .storer = self, .store_clock = t->clock[self]};
    return ordered;
}

/* ---- phases ---- */

/* Begins the next phase if all that the current one waits for has happened. */
static void end_phase(struct machine *m, uint32_t number)
{
    struct barrier *b = &m->barrier[number];
    uint32_t left = 0;
    if (b->arrived < b->arrivals || b->expected)
        return;
    b->done++;
    b->arrived = 0;
    join_clocks(m, b->done_clock, b->arrived_clock);
    for (uint32_t i = 0; i < m->npanel; i++) {
        if (m->panel[i].barrier == number)
            complete_panel(m, &m->panel[i]);
        else
            m->panel[left++] = m->panel[i];
    }
    m->npanel = left;
}

bool phase_copy(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct lbuf *to = &m->k->buf[(uint32_t)i->imm];
    struct panel_copy p = {.v = v, .to = (int64_t)value_get(m, t, i->a, 0, 0), .barrier = t->expecting};
    const val from[VIEW_DIMS] = {i->b, i->c, i->d};
    int64_t matrix = (int64_t)to->panel_rows * to->id;
    for (unsigned d = 0; d < VIEW_DIMS; d++)
        p.from[d] = (int64_t)value_get(m, t, from[d], 0, 0);
    if (p.to < 0 || p.to >= to->count || p.to % matrix >= to->id || p.to % PANEL_COLUMNS)
        return phase_fail(m, v, "copies to where no panel begins");
    for (int r = 0; r < to->panel_rows; r++)
        for (int c = 0; c < PANEL_COLUMNS; c++) {
            int64_t at;
            struct mark *k = panel_mark(m, &p, r, c, &at);
            bool current = k->iteration == m->iteration;
            if (current && (k->multiplying || k->unreleased ||
                            (k->release_phase && t->awaited[k->release_barrier] < k->release_phase)))
                return phase_fail(m, v, "copies to a panel whose readers it has not waited for");
            if (k->stored.iteration == m->iteration && k->stored.by == IN_FLIGHT)
                return phase_fail(m, v, "copies to a panel that another copy fills");
            k->stored = (struct last_access){m->iteration, m->interval, IN_FLIGHT};
        }
    if (!mem_reserve(&m->panel, &m->panel_cap, m->npanel + 1, sizeof *m->panel))
        return err_set(m->e, KL_ERR_MEMORY, "out of memory running kernel %s", m->k->name);
    m->panel[m->npanel++] = p;
    m->barrier[p.barrier].expected--;
    end_phase(m, p.barrier);
    return true;
}

const char *phase_load_flaw(const struct thread *t, const struct mark *k)
{
    if (k->stored.by == IN_FLIGHT)
        return ", whose copy is not complete";
    return t->awaited[k->copy_barrier] < k->copy_phase ? ", whose copy it has not waited for" : NULL;
}

/* ---- phases ---- */

bool phase_arrive(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint32_t number, left = 0, panels = (uint32_t)(i->imm >> 32);
    if (!find_barrier(m, t, v, &number))
        return false;
    for (uint32_t f = 0; f < t->nfactor; f++) {
        if (t->factor[f].complete)
            memory_mark_factor(m, &t->factor[f], 0, -1, number, m->barrier[number].done + 1);
        else
            t->factor[left++] = t->factor[f];
    }
    t->nfactor = left;
    t->expecting = number;
    join_clocks(m, m->barrier[number].arrived_clock, t->clock);
    t->clock[thread_number(m, t)]++;
    m->barrier[number].arrived++;
    m->barrier[number].expected += panels;
    end_phase(m, number);
    return true;
}

bool phase_await(struct machine *m, struct thread *t, val v, bool *ready)
{
    const struct linst *i = &m->k->inst[v];
    uint64_t n = value_get(m, t, i->b, 0, 0);
    uint32_t number;
    if (!find_barrier(m, t, v, &number))
        return false;
    uint64_t done = m->barrier[number].done;
    if ((int64_t)n < 0 || done > n || done + 1 < n)
        return err_set(m->e, KL_ERR_INTERNAL, "kernel %s: %%%u waits for %" PRId64 " phases of a barrier that has "
                       "completed %" PRIu64, m->k->name, v, (int64_t)n, done);
    *ready = done == n;
    if (*ready) {
        t->awaited[number] = n;
        join_clocks(m, t->clock, m->barrier[number].done_clock);
        m->moved = true; /* it may come back to the same instruction, in the next iteration of a loop */
    }
    return true;
}

void phase_begin_block(struct machine *m)
{
    for (uint32_t b = 0; b < m->k->nbuf; b++)
        for (int64_t i = 0; m->k->buf[b].role == BUF_PHASES && i < m->k->buf[b].count; i++) {
            struct barrier *x = &m->barrier[m->barrier_at[b] + i];
            *x = (struct barrier){.arrivals = m->k->buf[b].id, .arrived_clock = x->arrived_clock,
                                  .done_clock = x->done_clock};
            memset(x->arrived_clock, 0, m->nthread * sizeof *x->arrived_clock);
            memset(x->done_clock, 0, m->nthread * sizeof *x->done_clock);
        }
    for (uint32_t x = 0; x < m->nthread && m->nbarrier; x++) {
        memset(m->thread[x].clock, 0, m->nthread * sizeof *m->thread[x].clock);
        m->thread[x].clock[x] = 1;
    }
    m->npanel = 0;
}

bool phase_end_block(struct machine *m)
{
    return !m->npanel || phase_fail(m, m->panel[0].v, "is not complete at the end of its block");
}
