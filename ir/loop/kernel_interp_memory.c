/* Memory of the kernel interpreter.  Every access is bounds-checked.  A load of an element that the kernel itself must
 * have stored is an error if it was not stored.  Two iterations, or two threads between two barriers, must not access
 * the same element if one of them stores it; the last accesses to each element are recorded to check that. */
#include "kernel_interp.h"
#include <inttypes.h>
#include <string.h>

enum access { LOADS, STORES, UPDATES };
static const char at_once[] = ", which another iteration, thread or copy uses at the same time";

static bool interp_memory_fail(const struct machine *m, val v, uint32_t buf, int64_t at, const char *what,
                               const char *why)
{
    return err_set(m->e, KL_ERR_INTERNAL, "kernel %s: %%%u %s element %" PRId64 " of buffer %u%s", m->k->name, v, what,
                   at, buf, why);
}

static bool in_bounds(const struct machine *m, val v, uint32_t buf, int64_t at)
{
    int64_t count = m->k->buf[buf].count;
    if (at >= 0 && at < count)
        return true;
    return err_set(m->e, KL_ERR_INTERNAL,
                   "kernel %s: %%%u accesses element %" PRId64 " of buffer %u, which has %" PRId64,
                   m->k->name, v, at, buf, count);
}

/* Shared memory belongs to one block, so accesses by another block are outdated. */
static bool is_current(const struct machine *m, const struct last_access *t, bool shared)
{
    return t->iteration && (shared ? t->iteration == m->iteration : t->iteration >= m->phase_iteration);
}

static bool access_conflicts(const struct machine *m, const struct last_access *t, int32_t self, bool shared)
{
    return is_current(m, t, shared) &&
           (t->iteration != m->iteration || t->by == IN_FLIGHT || (t->interval == m->interval && t->by != self));
}

static bool access_races(const struct machine *m, const struct mark *k, int32_t self, enum access what, bool shared)
{
    return access_conflicts(m, &k->stored, self, shared) || (what != UPDATES && access_conflicts(m, &k->updated, self,
                                                                                                 shared)) ||
           (what != LOADS && access_conflicts(m, &k->loaded, self, shared));
}

static void record_repeated(const struct machine *m, struct last_access *t, int32_t self, bool shared)
{
    bool past = !is_current(m, t, shared), first = past || t->interval != m->interval;
    t->by = first || t->by == self ? self : BY_SEVERAL;
    t->iteration = past ? m->iteration : t->iteration;
    t->interval = m->interval;
}

/* Checks and records an access to one element. */
static bool interp_memory_note(struct machine *m, const struct thread *t, val v, uint32_t buf, int64_t at, int32_t self,
                               enum access what)
{
    static const char *const verb[] = {"loads", "stores", "updates"};
    struct mark *k = m->mark[buf] ? &m->mark[buf][at] : NULL;
    bool shared = m->k->buf[buf].role == BUF_SHARED;
    if (!k)
        return true;
    bool stored = k->stored.iteration && (k->stored.iteration == m->iteration ||
                                          (k->stored.iteration < m->phase_iteration && !shared));
    if (what == LOADS && !stored)
        return interp_memory_fail(m, v, buf, at, verb[what],
                                  shared ? " before this block stores it" : " before this iteration stores it");
    if (what == UPDATES && !k->stored.iteration)
        return interp_memory_fail(m, v, buf, at, verb[what], " before anything is stored there");
    if (m->by_phases[buf]) {
        const char *flaw = what == LOADS ? phase_load_flaw(t, k) : ", which copies of panels fill";
        return !flaw || interp_memory_fail(m, v, buf, at, verb[what], flaw);
    }
    bool ordered = what == LOADS    ? phase_order_load(m, t, buf, at)
                   : what == STORES ? phase_order_store(m, t, buf, at)
                                    : false;
    bool races = access_races(m, k, self, what, shared) && (!ordered || k->stored.by == IN_FLIGHT);
    if (races || (what != LOADS && k->multiplying && k->iteration == m->iteration))
        return interp_memory_fail(m, v, buf, at, verb[what], at_once);
    if (what == STORES)
        k->stored = (struct last_access){m->iteration, m->interval, self};
    else
        record_repeated(m, what == LOADS ? &k->loaded : &k->updated, self, shared);
    return true;
}

static char *interp_memory_element(const struct machine *m, const struct thread *t, uint32_t buf, int64_t at)
{
    const struct lbuf *b = &m->k->buf[buf];
    char *start = b->role == BUF_REGISTER ? t->private + m->private_at[buf] : m->buf[buf];
    return start + (size_t)at * dtype_size(b->dtype);
}

/* The index of element (r, c) of a load or store. */
static int64_t interp_memory_place(const struct machine *m, const struct thread *t, const struct linst *i, int r, int c)
{
    uint64_t at = value_get(m, t, i->a, r, c);
    if (!i->d)
        return (int64_t)at;
    uint64_t stride = value_get(m, t, i->d, 0, 0), row = (uint64_t)r, col = (uint64_t)c;
    return (int64_t)(i->kind == TILE_ROWS ? at + row * stride + col : at + row + col * stride);
}

bool memory_load(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    struct extent n = value_extent(t, i);
    uint32_t buf = (uint32_t)i->imm;
    for (int r = 0; r < n.rows; r++)
        for (int c = 0; c < n.cols; c++) {
            uint64_t *to = &t->v[m->at[v] + (size_t)(r * n.cols + c)];
            *to = 0;
            if (i->b && !value_get(m, t, i->b, r, c))
                continue;
            int64_t at = interp_memory_place(m, t, i, r, c), last = at + (int64_t)load_elements(m->k, i) - 1;
            if (!in_bounds(m, v, buf, at) || !in_bounds(m, v, buf, last) ||
                !interp_memory_note(m, t, v, buf, at, i->cols ? t->subgroup : t->self, LOADS))
                return false;
            memcpy(to, interp_memory_element(m, t, buf, at), dtype_size(i->dtype));
        }
    return true;
}

bool memory_store(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v], *x = &m->k->inst[i->b];
    /* a store varies if any of its operands does */
    struct extent n = x->cols ? value_extent(t, x) : value_extent(t, i);
    uint32_t buf = (uint32_t)i->imm;
    for (int r = 0; r < n.rows; r++)
        for (int c = 0; c < n.cols; c++) {
            if (i->c && !value_get(m, t, i->c, r, c))
                continue;
            int64_t at = interp_memory_place(m, t, i, r, c);
            if (!in_bounds(m, v, buf, at) || !interp_memory_note(m, t, v, buf, at, x->cols ? t->subgroup : t->self,
                                                                 STORES))
                return false;
            uint64_t bits = value_get(m, t, i->b, r, c);
            memcpy(interp_memory_element(m, t, buf, at), &bits, dtype_size(x->dtype));
        }
    return true;
}

bool memory_atomic(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint32_t buf = (uint32_t)i->imm;
    unsigned dtype = m->k->buf[buf].dtype;
    struct extent n = value_extent(t, i);
    for (int c = 0; c < n.cols; c++) {
        if (i->c && !value_get(m, t, i->c, 0, c))
            continue;
        int64_t at = (int64_t)value_get(m, t, i->a, 0, c);
        if (!in_bounds(m, v, buf, at) || !interp_memory_note(m, t, v, buf, at, t->self, UPDATES))
            return false;
        uint64_t old = 0, x = value_get(m, t, i->b, 0, c), sum = 0;
        memcpy(&old, interp_memory_element(m, t, buf, at), dtype_size(dtype));
        scalar_apply(fold_op((enum fold)i->kind), dtype, &sum, (const void *const[]){&old, &x}, 1);
        memcpy(interp_memory_element(m, t, buf, at), &sum, dtype_size(dtype));
    }
    return true;
}

/* ---- words of blocks in order: here one block runs after the other, so a word that is not there never will be ---- */

enum { WORD_PUBLISHED = 32 };   /* the bit above the value */
static const char not_clear[] = ", which no earlier phase has set to zero";

/* Has an earlier phase stored zero to a word? */
static bool word_is_clear(const struct machine *m, uint32_t buf, int64_t at)
{
    const struct last_access *stored = &m->mark[buf][at].stored;
    uint64_t word;
    memcpy(&word, m->buf[buf] + (size_t)at * sizeof word, sizeof word);
    return stored->iteration && stored->iteration < m->phase_iteration && !word;
}

bool memory_begin_in_order(struct machine *m, val loop)
{
    uint32_t buf = kernel_word_buffer(m->k, loop);
    return in_bounds(m, loop, buf, 0) && (word_is_clear(m, buf, 0) ||
                                          interp_memory_fail(m, loop, buf, 0, "counts in", not_clear));
}

bool memory_publish(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint32_t buf = (uint32_t)i->imm;
    if (i->c && !value_get(m, t, i->c, 0, 0))
        return true;
    int64_t at = (int64_t)value_get(m, t, i->a, 0, 0);
    uint64_t word = value_get(m, t, i->b, 0, 0) | UINT64_C(1) << WORD_PUBLISHED;
    if (!in_bounds(m, v, buf, at))
        return false;
    if (!at || !word_is_clear(m, buf, at))
        return interp_memory_fail(m, v, buf, at, "publishes", at ? not_clear : ", the count of iterations");
    memcpy(m->buf[buf] + (size_t)at * sizeof word, &word, sizeof word);
    m->mark[buf][at].stored = (struct last_access){m->iteration, m->interval, t->self};
    return true;
}

bool memory_receive(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint32_t buf = (uint32_t)i->imm;
    uint64_t *to = &t->v[m->at[v]], word;
    *to = 0;
    if (i->b && !value_get(m, t, i->b, 0, 0))
        return true;
    int64_t at = (int64_t)value_get(m, t, i->a, 0, 0);
    if (!in_bounds(m, v, buf, at))
        return false;
    const struct last_access *stored = &m->mark[buf][at].stored;
    if (!at || stored->iteration < m->phase_iteration || stored->iteration >= m->iteration)
        return interp_memory_fail(m, v, buf, at, "receives", ", which no earlier iteration publishes");
    memcpy(&word, m->buf[buf] + (size_t)at * sizeof word, sizeof word);
    *to = (uint32_t)word;
    return true;
}

/* ---- asynchronous copies: they complete as late as allowed, so that a load that is too early is found ---- */

bool memory_copy(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint32_t to = (uint32_t)i->imm, from = (uint32_t)(i->imm >> 32);
    struct async_copy f = {v, (int64_t)value_get(m, t, i->a, 0, 0), (int64_t)value_get(m, t, i->b, 0, 0),
                           i->c && !value_get(m, t, i->c, 0, 0), t->batch};
    if (f.to % i->rows || (f.from % i->rows && !f.zero))
        return err_set(m->e, KL_ERR_INTERNAL,
                       "kernel %s: %%%u copies %u elements from %" PRId64 " to %" PRId64 ", no multiples of it",
            m->k->name, v, i->rows,
                       f.from, f.to);
    for (int n = 0; n < i->rows; n++) {
        if (!in_bounds(m, v, to, f.to + n) || !interp_memory_note(m, t, v, to, f.to + n, t->self, STORES))
            return false;
        m->mark[to][f.to + n].stored.by = IN_FLIGHT;
        if (!f.zero && (!in_bounds(m, v, from, f.from + n) ||
                        !interp_memory_note(m, t, v, from, f.from + n, t->self, LOADS)))
            return false;
    }
    if (!mem_reserve(&t->flight, &t->flight_cap, t->nflight + 1, sizeof *t->flight))
        return err_set(m->e, KL_ERR_MEMORY, "out of memory running kernel %s", m->k->name);
    t->flight[t->nflight++] = f;
    return true;
}

static void complete_copy(struct machine *m, struct thread *t, const struct async_copy *f)
{
    const struct linst *i = &m->k->inst[f->v];
    uint32_t to = (uint32_t)i->imm, from = (uint32_t)(i->imm >> 32);
    size_t size = dtype_size(m->k->buf[to].dtype);
    for (int n = 0; n < i->rows; n++) {
        m->mark[to][f->to + n].stored = (struct last_access){m->iteration, m->interval, t->self};
        if (f->zero)
            memset(interp_memory_element(m, t, to, f->to + n), 0, size);
        else
            memcpy(interp_memory_element(m, t, to, f->to + n), interp_memory_element(m, t, from, f->from + n), size);
    }
}

bool memory_complete_copies(struct machine *m, struct thread *t, uint64_t last)
{
    uint32_t left = 0;
    for (uint32_t f = 0; f < t->nflight; f++) {
        if (t->flight[f].batch + last < t->batch)
            complete_copy(m, t, &t->flight[f]);
        else
            t->flight[left++] = t->flight[f];
    }
    t->nflight = left;
    return true;
}

/* ---- asynchronous products: their factors may be read until they are complete ---- */

/* Counts the elements of a factor among those that are multiplied, by 1 or -1, and among those that are not released;
 * phase: releases them in this one of the barrier. */
void memory_mark_factor(struct machine *m, const struct async_factor *f, int multiplying, int unreleased,
                        uint32_t barrier, uint64_t phase)
{
    const struct linst *i = &m->k->inst[f->v];
    uint32_t buf = (uint32_t)i->imm;
    int64_t stride = (int64_t)m->k->inst[i->d].imm;
    for (int r = 0; r < i->rows; r++)
        for (int c = 0; c < i->cols; c++) {
            struct mark *k = &m->mark[buf][i->kind == TILE_ROWS ? f->at + r * stride + c : f->at + r + c * stride];
            bool current = k->iteration == m->iteration;
            k->multiplying = (current ? k->multiplying : 0) + (uint32_t)multiplying;
            k->unreleased = (current ? k->unreleased : 0) + (uint32_t)unreleased;
            k->release_phase = current ? k->release_phase : 0;
            k->iteration = m->iteration;
            if (phase) {
                k->release_barrier = barrier;
                k->release_phase = phase;
            }
        }
}

bool memory_begin_product(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    if (!mem_reserve(&t->factor, &t->factor_cap, t->nfactor + 2, sizeof *t->factor))
        return err_set(m->e, KL_ERR_MEMORY, "out of memory running kernel %s", m->k->name);
    for (int o = m->k->inst[i->a].op != L_LOAD; o < 2; o++) { /* a may be in registers */
        val load = o ? i->b : i->a;
        if (!t->leads && !m->by_phases[m->k->inst[load].imm])
            continue; /* only phases distinguish the threads of a subgroup */
        struct async_factor f = {.v = load, .at = (int64_t)value_get(m, t, m->k->inst[load].a, 0, 0),
                                 .batch = t->products};
        memory_mark_factor(m, &f, 1, 0, 0, 0);
        t->factor[t->nfactor++] = f;
    }
    return true;
}

void memory_complete_products(struct machine *m, struct thread *t, uint64_t last)
{
    uint32_t left = 0;
    for (uint32_t f = 0; f < t->nfactor; f++) {
        struct async_factor *x = &t->factor[f];
        bool ends = !x->complete && x->batch + last < t->products, kept = m->by_phases[m->k->inst[x->v].imm];
        if (ends)
            memory_mark_factor(m, x, -1, kept, 0, 0);
        x->complete |= ends;
        if (!ends || kept)
            t->factor[left++] = *x;
    }
    t->nfactor = left;
    for (val v = 1; v < m->k->ninst; v++)
        if (t->unfinished[v] && t->unfinished[v] + last < t->products)
            t->unfinished[v] = 0;
}
