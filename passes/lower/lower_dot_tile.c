/* What products on a GPU by threads and by matrix units share, and those of bytes: tiles of the loop IR, and looks at
 * the operands. */
#include "lower_dot.h"

/* ---- tiles ---- */

val dot_splat(struct kernel *k, val x, unsigned rows, unsigned cols)
{
    return k_append(k, (struct linst){.op = L_SPLAT, .dtype = k->inst[x].dtype, .rows = (uint16_t)rows,
                                      .cols = (uint16_t)cols, .a = x});
}

val dot_load(struct kernel *k, uint32_t buf, val index, enum tile_order order, val stride, int64_t rows, int64_t cols,
             val mask)
{
    return k_append(k, (struct linst){.op = L_LOAD, .dtype = k->buf[buf].dtype, .kind = (uint8_t)order,
                                      .rows = (uint16_t)rows,
                                      .cols = (uint16_t)cols, .a = index, .b = mask, .d = stride, .imm = buf});
}

void dot_store(struct kernel *k, uint32_t buf, val index, enum tile_order order, val stride, val value)
{
    k_append(k, (struct linst){.op = L_STORE, .dtype = k->buf[buf].dtype, .kind = (uint8_t)order, .a = index,
                               .b = value,
                               .d = stride, .imm = buf});
}

val dot_shaped(struct kernel *k, val v, val like)
{
    k->inst[v].rows = k->inst[like].rows;
    k->inst[v].cols = k->inst[like].cols;
    return v;
}

val dot_mma(struct kernel *k, enum mma kind, val a, val b, val sum)
{
    val y = dot_shaped(k, k_inst(k, L_MMA, k->inst[sum].dtype, a, b, sum, 0), sum);
    k->inst[y].kind = (uint8_t)kind;
    return y;
}

val dot_carry(struct kernel *k, val init) { return dot_shaped(k, k_carry(k, init), init); }
val dot_out(struct kernel *k, val carry) { return dot_shaped(k, k_out(k, carry), carry); }
void dot_meet(struct kernel *k) { k_inst(k, L_BARRIER, KL_BOOL, 0, 0, 0, 0); }

/* ---- blocks ---- */

int64_t dot_parts(int64_t length, int64_t part) { return (length + part - 1) / part; }

bool dot_fits_grid(const struct dot *d, const struct schedule *s)
{
    return dot_parts(d->size.n, s->block_n) * dot_parts(d->size.m, s->block_m) <= INT32_MAX / d->size.batch;
}

bool dot_occupies(const struct dot *d, const struct schedule *s)
{
    int64_t of_columns = dot_parts(d->size.n, s->block_n), of_rows = dot_parts(d->size.m, s->block_m);
    return of_columns > INT64_MAX / 2 / of_rows / d->size.batch ||
        d->size.batch * of_rows * of_columns >= (int64_t)d->w->caps->threads;
}

struct schedule dot_schedule(const struct dot *d, const struct dot_shape *x, unsigned subgroup)
{
    return (struct schedule){.kind = SCHED_DOT, .width = (uint16_t)(x->rows * x->cols * subgroup), .mr = x->mr,
                             .nr = x->nr,
                             .kc = (uint32_t)d->kblock, .block_m = x->mr * x->rows, .block_n = x->nr * x->cols,
                                 .step = x->step};
}

bool dot_fills(const struct dot *d, const struct schedule *s)
{
    return s->block_m / 2 < d->size.m && s->block_n / 2 < d->size.n;
}

/* Is x below `size`, where it may not be, and is what `there` asks? */
static val also_below(struct kernel *k, val mask, bool may_not, val x, int64_t size)
{
    if (!may_not)
        return mask;
    val in = k_prim(k, P_LT, x, k_int(k, size), 0);
    return mask ? k_prim(k, P_AND, mask, in, 0) : in;
}

val dot_there(const struct dot *d, bool second, int64_t side, bool beyond, val free, val at)
{
    struct kernel *k = d->w->k;
    int64_t size = second ? d->size.n : d->size.m;
    val mask = also_below(k, also_below(k, 0, size % side, free, size), beyond, at, d->size.k);
    if (mask) { /* of those that are */
        ix_bound(k, free, 0, size - 1);
        ix_bound(k, at, 0, d->size.k - 1);
    }
    return mask;
}

val dot_if_there(const struct dot *d, const struct schedule *s, val m, val n)
{
    struct kernel *k = d->w->k;
    const struct dot_dims *size = &d->size;
    val mask = also_below(k, also_below(k, 0, size->m % s->block_m, m, size->m), size->n % s->block_n, n, size->n);
    val inside = mask ? k_if(k, mask) : 0;
    ix_bound(k, m, 0, size->m - 1);
    ix_bound(k, n, 0, size->n - 1);
    return inside;
}

/* ---- operands ---- */

bool dot_along_k(const struct dot *d, bool second)
{
    struct trial t;
    int64_t step_side = 0, step_k = 0;
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        copy.w = &t.w;
        copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, second ? d->size.n : d->size.m), 1);
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k), 1);
        dot_element(&copy, second, i, j);
        for (val v = j; v < k->ninst && step_k != 1; v++) /* the first load that has such neighbours */
            if (k->inst[v].op == L_LOAD && (!ix_stride(k, k->inst[v].a, i, &step_side) ||
                                            !ix_stride(k, k->inst[v].a, j, &step_k)))
                step_side = step_k = 0;
    }
    trial_end(&t, d->w);
    return step_k == 1 && step_side != 1;
}
