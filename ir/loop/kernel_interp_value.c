/* Instructions of the kernel interpreter that compute values without memory, lane by lane and element by element.
 *
 * A value has one word for each lane or element of a tile, otherwise one; its bits are in the word's low bytes. */
#include "ir/math/half.h"
#include "kernel_interp.h"
#include <math.h>
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
        return m->slot[slot_number(i)];
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

/* One primitive, by the same expressions as the graph interpreter. */
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
                return err_set(m->e, KL_ERR_INTERNAL, "kernel %s: %%%u: primitive without meaning for its dtype",
                               m->k->name, v);
            t->v[m->at[v] + (size_t)(r * n.cols + c)] = y;
        }
    return true;
}

/* acc = f(acc, x) on the bits of one lane, by the rows of ops.def. */
static uint64_t fold_lane(enum fold f, unsigned dtype, uint64_t acc, uint64_t x)
{
    uint64_t y = 0;
    scalar_apply(fold_op(f), dtype, &y, (const void *const[]){&acc, &x}, 1);
    return y;
}

static void run_fold(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint64_t x[MAX_GPU_VECTOR > MAX_TILE_SIDE ? MAX_GPU_VECTOR : MAX_TILE_SIDE];
    int rows = i->cols ? i->rows : 1, cols = i->cols ? i->cols : 1, width = i->cols ? m->k->inst[i->a].cols : t->width;
    for (int r = 0; r < rows; r++) {
        for (int l = 0; l < width; l++)
            x[l] = value_get(m, t, i->a, r, l);
        for (int h = width / 2; h >= cols; h /= 2)
            for (int l = 0; l < h; l++)
                x[l] = fold_lane((enum fold)i->imm, i->dtype, x[l], x[l + h]);
        memcpy(&t->v[m->at[v] + (size_t)(r * cols)], x, (size_t)cols * sizeof *x);
    }
}

static void run_interleave(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    int h = (int)i->imm;
    for (int l = 0; l < t->width; l++) {
        uint64_t lo = l & h ? value_get(m, t, i->b, 0, l - h) : value_get(m, t, i->a, 0, l);
        t->v[m->at[v] + (size_t)l] = i->kind == INTERLEAVE_LO ? lo : l & h ? value_get(m, t, i->b, 0, l)
            : value_get(m, t, i->a, 0, l + h);
    }
}

static void run_index(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    for (unsigned n = 0; n < (unsigned)i->rows * i->cols; n++)
        t->v[m->at[v] + n] = n;
}

/* The elements of a factor in the sum's dtype. */
static bool interp_value_widen(const struct machine *m, const struct thread *t, val v, unsigned to, uint64_t *out)
{
    const struct linst *i = &m->k->inst[v];
    bool ok = true;
    for (int e = 0; e < i->rows * i->cols && ok; e++) {
        out[e] = t->v[m->at[v] + (size_t)e];
        ok = i->dtype == to || scalar_prim(P_CAST, i->dtype, to, (uint64_t[]){out[e]}, &out[e]);
    }
    return ok;
}

/* acc + x y. */
static bool mma_step(unsigned dtype, uint64_t x, uint64_t y, uint64_t *acc)
{
    uint64_t product;
    if (dtype == KL_F32) { /* as P_FMA, without the dispatch by dtype */
        float f[3];
        uint32_t bits[3] = {(uint32_t)x, (uint32_t)y, (uint32_t)*acc};
        memcpy(f, bits, sizeof f);
        f[0] = fmaf(f[0], f[1], f[2]);
        memcpy(bits, f, sizeof *bits);
        *acc = bits[0];
        return true;
    }
    if (dtype_is_float(dtype))
        return scalar_prim(P_FMA, dtype, dtype, (uint64_t[]){x, y, *acc}, acc);
    return scalar_prim(P_MUL, dtype, dtype, (uint64_t[]){x, y}, &product) &&
           scalar_prim(P_ADD, dtype, dtype, (uint64_t[]){*acc, product}, acc);
}

/* One element of MMA_EVEN_ODD: row x of `depth` elements times a column of pairs. */
static uint64_t mma_even_odd(const uint64_t *x, const uint64_t *y, int depth, int cols, uint64_t acc)
{
    float sum[2] = {0, 0}, c;
    uint32_t bits = (uint32_t)acc;
    memcpy(&c, &bits, sizeof c);
    for (int k = 0; k < depth; k++) {
        const struct bf16 a = {(uint16_t)x[k]}, b = {(uint16_t)(y[k / 2 * cols] >> 16 * (k % 2))};
        sum[k % 2] = fma_flushed(bf16_value(a), bf16_value(b), sum[k % 2]);
    }
    c = fma_flushed(1, fma_flushed(1, sum[0], sum[1]), c);
    memcpy(&bits, &c, sizeof bits);
    return bits;
}

static bool run_mma(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    int depth = m->k->inst[i->a].cols;
    uint64_t *x = m->factor, *y = m->factor + MAX_TILE;
    bool ok = i->kind != MMA_ASYNC || memory_begin_product(m, t, v);
    bool even_odd = i->kind == MMA_EVEN_ODD;
    ok = ok && interp_value_widen(m, t, i->a, even_odd ? KL_BF16 : i->dtype, x) &&
         interp_value_widen(m, t, i->b, even_odd ? KL_U32 : i->dtype, y);
    for (int r = 0; r < i->rows && ok; r++)
        for (int c = 0; c < i->cols && ok; c++) {
            uint64_t acc = value_get(m, t, i->c, r, c);
            if (even_odd)
                acc = mma_even_odd(x + r * depth, y + c, depth, i->cols, acc);
            for (int k = 0; k < depth && ok && !even_odd; k++)
                ok = mma_step(i->dtype, x[r * depth + k], y[k * i->cols + c], &acc);
            t->v[m->at[v] + (size_t)(r * i->cols + c)] = acc;
        }
    if (!ok && !m->e->code)
        err_set(m->e, KL_ERR_INTERNAL, "kernel %s: %%%u: mma without meaning for its dtypes", m->k->name, v);
    return ok;
}

bool value_run(struct machine *m, struct thread *t, val v)
{
    const struct linst *i = &m->k->inst[v];
    switch (i->op) {
    case L_ALIAS:
        t->v[m->at[v]] = m->buf[(uint32_t)i->imm] == m->buf[i->imm >> 32];
        return true;
    case L_OUT:
    case L_SPLAT:
        value_copy(m, t, v, i->a);
        return true;
    case L_INTERLEAVE:
        run_interleave(m, t, v);
        return true;
    case L_LANE_REDUCE:
        run_fold(m, t, v);
        return true;
    case L_INDEX:
        run_index(m, t, v);
        return true;
    case L_COLUMNS:
        for (int r = 0; r < i->rows; r++)
            for (int c = 0; c < i->cols; c++)
                t->v[m->at[v] + (size_t)(r * i->cols + c)] = value_get(m, t, i->a, r, c + (int)i->imm);
        return true;
    case L_MMA:
        return run_mma(m, t, v);
    default:
        return run_prim(m, t, v);
    }
}
