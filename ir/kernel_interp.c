/* Runs a kernel without compiling it: the second oracle, with every access bounds-checked, and every load of an output
 * checked to find what the same iteration of the parallel loop has stored.
 *
 * Each value is an array of 64 lanes of 8 bytes, uniform ones in lane 0.  Loops are walked by jumping in
 * the flat array; a vector loop runs its body once on all lanes. */
#include "loop.h"
#include <inttypes.h>
#include <string.h>

enum { LANES = 64 };
typedef uint64_t lanes[LANES];   /* each lane's bits in the low bytes */

struct machine {
    const struct kernel *k;
    void *const *buf;
    const uint64_t *slot;
    int64_t begin, end;
    lanes *v;
    val *stop;                   /* per LOOP or IF: its END */
    int64_t **stored;            /* per output, per element: the turn that last stored it, 0 none */
    int64_t turn;                /* counts the iterations of the parallel loop; 1 outside */
    int width;                   /* lanes of the open vector loop, 1 outside */
    struct err *e;
};

static uint64_t lane(const struct machine *m, val v, int i) { return m->v[v][m->k->inst[v].varying ? i : 0]; }

static int count(const struct machine *m, val v) { return m->k->inst[v].varying ? m->width : 1; }

static uint64_t constant_or_lane(struct machine *m, val v, int i)
{
    const struct linst *n = &m->k->inst[v];
    return n->op == L_CONST ? n->imm : n->op == L_SLOT ? m->slot[n->imm] : lane(m, v, i);
}

/* One primitive on one lane, through the same expressions as everything else: one-element arrays. */
static bool run_prim(struct machine *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const val in[3] = {i->a, i->b, i->c};
    for (int l = 0; l < count(m, v); l++) {
        uint64_t x[3] = {0}, y = 0;
        for (int o = 0; o < 3 && in[o]; o++)
            x[o] = constant_or_lane(m, in[o], l);
        if (!scalar_prim(i->op - L_PRIM, m->k->inst[i->op == L_OP(P_SELECT) ? i->b : i->a].dtype, i->dtype, x, &y))
            return err_set(m->e, KL_ERR_INTERNAL, "kernel %s: %%%u: primitive without meaning for its dtype", m->k->name, v);
        m->v[v][l] = y;
    }
    return true;
}

static bool address(struct machine *m, val v, int l, int64_t *at)
{
    const struct linst *i = &m->k->inst[v];
    const struct lbuf *b = &m->k->buf[i->imm];
    *at = (int64_t)constant_or_lane(m, i->a, l);
    if (*at < 0 || *at >= b->count)
        return err_set(m->e, KL_ERR_INTERNAL, "kernel %s: %%%u accesses element %" PRId64 " of buffer %" PRIu64 ", which has %" PRId64,
                       m->k->name, v, *at, i->imm, b->count);
    return true;
}

static bool run_load(struct machine *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    size_t size = dtype_size(i->dtype);
    for (int l = 0; l < count(m, v); l++) {
        int64_t at;
        m->v[v][l] = 0;
        if (i->b && !constant_or_lane(m, i->b, l))
            continue;
        if (!address(m, v, l, &at))
            return false;
        if (m->stored[i->imm] && m->stored[i->imm][at] != m->turn)
            return err_set(m->e, KL_ERR_INTERNAL, "kernel %s: %%%u loads element %" PRId64 " of buffer %" PRIu64 " before this "
                           "iteration stores it", m->k->name, v, at, i->imm);
        memcpy(&m->v[v][l], (const char *)m->buf[i->imm] + (size_t)at * size, size);
    }
    return true;
}

static bool run_store(struct machine *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    size_t size = dtype_size(m->k->buf[i->imm].dtype);
    bool varying = m->k->inst[i->a].varying || m->k->inst[i->b].varying || (i->c && m->k->inst[i->c].varying);
    for (int l = 0; l < (varying ? m->width : 1); l++) {
        int64_t at;
        if (i->c && !constant_or_lane(m, i->c, l))
            continue;
        if (!address(m, v, l, &at))
            return false;
        uint64_t x = constant_or_lane(m, i->b, l);
        if (m->stored[i->imm])
            m->stored[i->imm][at] = m->turn;
        memcpy((char *)m->buf[i->imm] + (size_t)at * size, &x, size);
    }
    return true;
}

/* acc = f(acc, x) on the bits of one lane: the rows add and max of ops.def. */
static uint64_t fold_lane(enum fold f, unsigned dtype, uint64_t acc, uint64_t x)
{
    uint64_t y = 0;
    scalar_apply(fold_op(f), dtype, &y, (const void *const[]){&acc, &x}, 1);
    return y;
}

static void run_fold(struct machine *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    lanes x;
    for (int l = 0; l < m->width; l++)
        x[l] = constant_or_lane(m, i->a, l);
    for (int h = m->width / 2; h; h /= 2)
        for (int l = 0; l < h; l++)
            x[l] = fold_lane((enum fold)i->imm, i->dtype, x[l], x[l + h]);
    m->v[v][0] = x[0];
}

static void run_mix(struct machine *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    int h = (int)i->imm;
    for (int l = 0; l < m->width; l++) {
        if (i->kind == MIX_LO)
            m->v[v][l] = l & h ? constant_or_lane(m, i->b, l - h) : constant_or_lane(m, i->a, l);
        else
            m->v[v][l] = l & h ? constant_or_lane(m, i->b, l) : constant_or_lane(m, i->a, l + h);
    }
}

static void copy_value(struct machine *m, val to, val from)
{
    for (int l = 0; l < count(m, to); l++)
        m->v[to][l] = constant_or_lane(m, from, l);
}

static bool run_range(struct machine *m, val from, val to);

/* `next` values are taken together at the end of an iteration: a carry may feed another. */
static bool advance(struct machine *m, val loop)
{
    val first = m->stop[loop];
    while (first > loop && m->k->inst[first - 1].op == L_NEXT)
        first--;
    uint32_t n = m->stop[loop] - first;
    lanes *tmp = mem_alloc((n + 1) * sizeof *tmp);
    if (!tmp)
        return err_set(m->e, KL_ERR_MEMORY, "out of memory running kernel %s", m->k->name);
    for (uint32_t j = 0; j < n; j++)
        for (int l = 0; l < m->width; l++)
            tmp[j][l] = constant_or_lane(m, m->k->inst[first + j].b, l);
    for (uint32_t j = 0; j < n; j++)
        memcpy(m->v[m->k->inst[first + j].a], tmp[j], sizeof *tmp);
    mem_free(tmp);
    return true;
}

static bool run_loop(struct machine *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    int64_t lo = (int64_t)constant_or_lane(m, i->a, 0), hi = (int64_t)constant_or_lane(m, i->b, 0);
    if (i->kind == LOOP_VECTOR) {
        m->width = (int)hi;
        for (int l = 0; l < m->width; l++)
            m->v[v][l] = (uint64_t)l;
        bool ok = run_range(m, v + 1, m->stop[v]);
        m->width = 1;
        return ok;
    }
    if (i->kind == LOOP_PARALLEL) {
        lo = m->begin;
        hi = m->end;
    }
    for (val c = v + 1; m->k->inst[c].op == L_CARRY; c++)
        copy_value(m, c, m->k->inst[c].a);
    for (int64_t x = lo; x < hi; x += (int64_t)i->imm) {
        m->v[v][0] = (uint64_t)x;
        m->turn += i->kind == LOOP_PARALLEL;
        if (!run_range(m, v + 1, m->stop[v]) || !advance(m, v))
            return false;
    }
    return true;
}

static bool run_inst(struct machine *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    switch (i->op) {
    case L_CONST:
    case L_SLOT:
    case L_CARRY:
    case L_NEXT:
    case L_END:
    case L_PREFETCH:
        return true;
    case L_LOAD:
        return run_load(m, v);
    case L_STORE:
        return run_store(m, v);
    case L_OUT:
    case L_SPLAT:
        copy_value(m, v, i->a);
        return true;
    case L_MIX:
        run_mix(m, v);
        return true;
    case L_FOLD:
        run_fold(m, v);
        return true;
    default:
        return run_prim(m, v);
    }
}

/* Runs instructions [from, to). */
static bool run_range(struct machine *m, val from, val to)
{
    for (val v = from; v < to; v++) {
        const struct linst *i = &m->k->inst[v];
        bool ok = true;
        if (i->op == L_LOOP)
            ok = run_loop(m, v);
        else if (i->op == L_IF)
            ok = !constant_or_lane(m, i->a, 0) || run_range(m, v + 1, m->stop[v]);
        else
            ok = run_inst(m, v);
        if (!ok)
            return false;
        if (i->op == L_LOOP || i->op == L_IF)
            v = m->stop[v];
    }
    return true;
}

static bool machine_alloc(struct machine *m)
{
    const struct kernel *k = m->k;
    m->v = mem_alloc(k->ninst * sizeof *m->v);
    m->stop = mem_alloc(k->ninst * sizeof *m->stop);
    m->stored = mem_alloc((k->nbuf + 1) * sizeof *m->stored);
    bool ok = m->v && m->stop && m->stored;
    for (uint32_t b = 0; ok && b < k->nbuf; b++)
        if (k->buf[b].role == BUF_OUT)
            ok = (uint64_t)k->buf[b].count <= SIZE_MAX / sizeof **m->stored && (m->stored[b] = mem_alloc((size_t)k->buf[b].count * sizeof **m->stored)) != NULL;
    return ok;
}

static void machine_free(struct machine *m)
{
    for (uint32_t b = 0; m->stored && b < m->k->nbuf; b++)
        mem_free(m->stored[b]);
    mem_free(m->v);
    mem_free(m->stop);
    mem_free(m->stored);
}

bool kernel_interp(const struct kernel *k, void *const *buf, const uint64_t *slot, int64_t begin, int64_t end, struct err *e)
{
    if (!kernel_verify(k, e))
        return false;
    struct machine m = {.k = k, .buf = buf, .slot = slot, .begin = begin, .end = end, .width = 1, .turn = 1, .e = e};
    bool ok = machine_alloc(&m);
    if (ok) {
        for (val v = 1; v < k->ninst; v++)
            if (k->inst[v].op == L_END)
                m.stop[k->inst[v].a] = v;
        ok = run_range(&m, 1, k->ninst);
    } else {
        err_set(e, KL_ERR_MEMORY, "out of memory running kernel %s", k->name);
    }
    machine_free(&m);
    return ok;
}
