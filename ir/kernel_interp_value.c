/* What the kernel interpreter computes from values alone, lane by lane and element by element.
 *
 * A value has a word for each lane or element of a tile, one otherwise; its bits stand in the word's low bytes. */
#include "kernel_interp.h"
#include <string.h>

struct extent value_extent(const struct thread *t, const struct linst *i)
{
    if (i->cols)
        return (struct extent){i->rows, i->cols};
    return (struct extent){1, i->varying ? t->width : 1};
}

uint64_t value_get(const struct machine *m, const struct thread *t, val v, int r, int c)
{
    const struct linst *i = &m->k->inst[v];
    const uint64_t *w = t->v + m->at[v];
    if (i->op == L_CONST)
        return i->imm;
    if (i->op == L_SLOT)
        return m->slot[i->imm];
    if (i->cols)
        return w[(i->rows > 1 ? r : 0) * i->cols + (i->cols > 1 ? c : 0)];
    return w[i->varying ? c : 0];
}

void value_copy(struct machine *m, struct thread *t, val to, val from)
{
    struct extent n = value_extent(t, &m->k->inst[to]);
    for (int r = 0; r < n.rows; r++)
        for (int c = 0; c < n.cols; c++)
            t->v[m->at[to] + (size_t)(r * n.cols + c)] = value_get(m, t, from, r, c);
}

/* One primitive, through the same expressions as everything else. */
static bool run_prim(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    const val in[3] = {i->a, i->b, i->c};
    struct extent n = value_extent(t, i);
    unsigned from = m->k->inst[i->op == L_OP(P_SELECT) ? i->b : i->a].dtype;
    for (int r = 0; r < n.rows; r++)
        for (int c = 0; c < n.cols; c++) {
            uint64_t x[3] = {0}, y = 0;
            for (int o = 0; o < 3 && in[o]; o++)
                x[o] = value_get(m, t, in[o], r, c);
            if (!scalar_prim(i->op - L_PRIM, from, i->dtype, x, &y))
                return err_set(m->e, KL_ERR_INTERNAL, "kernel %s: %%%u: primitive without meaning for its dtype", m->k->name, v);
            t->v[m->at[v] + (size_t)(r * n.cols + c)] = y;
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

static void run_fold(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint64_t x[64];
    for (int l = 0; l < t->width; l++)
        x[l] = value_get(m, t, i->a, 0, l);
    for (int h = t->width / 2; h; h /= 2)
        for (int l = 0; l < h; l++)
            x[l] = fold_lane((enum fold)i->imm, i->dtype, x[l], x[l + h]);
    t->v[m->at[v]] = x[0];
}

static void run_mix(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    int h = (int)i->imm;
    for (int l = 0; l < t->width; l++) {
        uint64_t lo = l & h ? value_get(m, t, i->b, 0, l - h) : value_get(m, t, i->a, 0, l);
        t->v[m->at[v] + (size_t)l] = i->kind == MIX_LO ? lo : l & h ? value_get(m, t, i->b, 0, l) : value_get(m, t, i->a, 0, l + h);
    }
}

static void run_index(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    for (unsigned n = 0; n < (unsigned)i->rows * i->cols; n++)
        t->v[m->at[v] + n] = n;
}

/* acc + a b for one element and one k, in acc's dtype. */
static bool mma_step(const struct machine *m, const struct linst *i, uint64_t a, uint64_t b, uint64_t *acc)
{
    uint64_t x[3] = {a, b, *acc}, product;
    bool ok = true;
    for (int o = 0; o < 2; o++) {
        unsigned from = m->k->inst[o ? i->b : i->a].dtype;
        ok &= from == i->dtype || scalar_prim(P_CAST, from, i->dtype, (uint64_t[]){x[o]}, &x[o]);
    }
    if (dtype_is_float(i->dtype))
        return ok && scalar_prim(P_FMA, i->dtype, i->dtype, x, acc);
    return ok && scalar_prim(P_MUL, i->dtype, i->dtype, x, &product) &&
           scalar_prim(P_ADD, i->dtype, i->dtype, (uint64_t[]){x[2], product}, acc);
}

static bool run_mma(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    int depth = m->k->inst[i->a].cols;
    for (int r = 0; r < i->rows; r++)
        for (int c = 0; c < i->cols; c++) {
            uint64_t acc = value_get(m, t, i->c, r, c);
            for (int k = 0; k < depth; k++)
                if (!mma_step(m, i, value_get(m, t, i->a, r, k), value_get(m, t, i->b, k, c), &acc))
                    return err_set(m->e, KL_ERR_INTERNAL, "kernel %s: %%%u: mma without meaning for its dtypes", m->k->name, v);
            t->v[m->at[v] + (size_t)(r * i->cols + c)] = acc;
        }
    return true;
}

bool value_run(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    switch (i->op) {
    case L_OUT:
    case L_SPLAT:
        value_copy(m, t, v, i->a);
        return true;
    case L_MIX:
        run_mix(m, t, v);
        return true;
    case L_FOLD:
        run_fold(m, t, v);
        return true;
    case L_INDEX:
        run_index(m, t, v);
        return true;
    case L_MMA:
        return run_mma(m, t, v);
    default:
        return run_prim(m, t, v);
    }
}
