/* Inlining without loops: partial evaluation, as the kernel interpreter runs a kernel (kernel_interp.c), on values of
 * the kernel being built.  What is computed from numbers alone is a number. */
#include "inline.h"
#include "ir/graph/interp.h"
#include <string.h>

struct expansion {
    struct kernel *into;
    const struct kernel *k;
    struct inline_array *const *array;
    uint32_t *at;         /* per value of k: where its lanes, or the elements of its tile, are in `word` */
    val *word;            /* values of `into` */
    val *stop;            /* per loop or if: its END */
    val *next;            /* values of carries on their way to the next iteration */
    int64_t width;        /* lanes of the open vector loop; outside of one 1 */
};

static bool number_of(const struct kernel *k, val v, int64_t *n)
{
    *n = (int64_t)k->inst[v].imm;
    return k->inst[v].op == L_CONST;
}

/* One word of a value, as value_get of the kernel interpreter. */
static val expand_get(const struct expansion *x, val v, int64_t r, int64_t c)
{
    const struct linst *i = &x->k->inst[v];
    const val *w = x->word + x->at[v];
    if (i->cols)
        return w[(i->rows > 1 ? r : 0) * i->cols + (i->cols > 1 ? c : 0)];
    return w[i->varying ? c : 0];
}

static void expand_extent(const struct expansion *x, const struct linst *i, int64_t *rows, int64_t *cols)
{
    *rows = i->cols ? i->rows : 1;
    *cols = i->cols ? i->cols : i->varying ? x->width : 1;
}

static val *expand_word(const struct expansion *x, val v, int64_t r, int64_t c)
{
    const struct linst *i = &x->k->inst[v];
    return &x->word[x->at[v] + (i->cols ? r * i->cols + c : c)];
}

/* ---- primitives ---- */

/* A logical operation one of whose operands is known, or 0. */
static val expand_known(struct kernel *into, unsigned p, val a, val b)
{
    int64_t n;
    if (!number_of(into, a, &n))
        return 0;
    if (p == P_AND && into->inst[a].dtype == KL_BOOL)
        return n ? b : a;
    if (p == P_OR && into->inst[a].dtype == KL_BOOL)
        return n ? a : b;
    return p == P_ADD && into->inst[a].dtype == KL_I64 && !n ? b : 0;
}

static val expand_prim(struct kernel *into, unsigned p, unsigned dtype, const val *in)
{
    uint64_t bits[3] = {0}, result;
    bool known = true;
    int64_t n;
    for (unsigned o = 0; o < 3 && in[o]; o++) {
        known &= number_of(into, in[o], &n);
        bits[o] = (uint64_t)n;
    }
    unsigned from = into->inst[in[p == P_SELECT]].dtype;
    if (known && scalar_prim(p, from, dtype, bits, &result))
        return k_bits(into, dtype, result);
    if (p == P_SELECT && number_of(into, in[0], &n))
        return n ? in[1] : in[2];
    val same = in[1] ? expand_known(into, p, in[0], in[1]) : 0;
    if (!same && in[1])
        same = expand_known(into, p, in[1], in[0]);
    return same ? same : k_inst(into, L_OP(p), dtype, in[0], in[1], in[2], 0);
}

static val index_sum(struct kernel *into, val a, val b)
{
    return expand_prim(into, P_ADD, KL_I64, (const val[3]){a, b});
}

static void expand_primitive(struct expansion *x, val v)
{
    const struct linst *i = &x->k->inst[v];
    const val operand[3] = {i->a, i->b, i->c};
    int64_t rows, cols;
    expand_extent(x, i, &rows, &cols);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            val in[3] = {0};
            for (unsigned o = 0; o < 3 && operand[o]; o++)
                in[o] = expand_get(x, operand[o], r, c);
            *expand_word(x, v, r, c) = expand_prim(x->into, i->op - L_PRIM, i->dtype, in);
        }
}

/* A factor in the dtype of the sum. */
static val expand_factor(struct expansion *x, val v, int64_t r, int64_t c, unsigned dtype)
{
    val f = expand_get(x, v, r, c);
    return x->into->inst[f].dtype == dtype ? f : expand_prim(x->into, P_CAST, dtype, (const val[3]){f});
}

static val expand_even_odd(struct expansion *x, const struct linst *i, int64_t r, int64_t c)
{
    struct kernel *k = x->into;
    val sum[2] = {k_const(k, KL_F32, 0), k_const(k, KL_F32, 0)};
    for (int64_t d = 0; d < x->k->inst[i->a].cols; d += 2)
        dot_even_odd_step(k, dot_pair_of(k, expand_get(x, i->a, r, d), expand_get(x, i->a, r, d + 1)),
                          expand_get(x, i->b, d / 2, c), sum);
    val before = dot_add_flushed(k, expand_get(x, i->c, r, c), k_const(k, KL_F32, -0.0));
    return dot_add_flushed(k, before, dot_even_odd_end(k, EVEN_ODD_BLOCK, sum));
}

static void expand_mma(struct expansion *x, val v)
{
    const struct linst *i = &x->k->inst[v];
    int64_t depth = x->k->inst[i->a].cols;
    for (int64_t r = 0; r < i->rows && i->kind == MMA_EVEN_ODD; r++)
        for (int64_t c = 0; c < i->cols; c++)
            *expand_word(x, v, r, c) = expand_even_odd(x, i, r, c);
    if (i->kind == MMA_EVEN_ODD)
        return;
    for (int64_t r = 0; r < i->rows; r++)
        for (int64_t c = 0; c < i->cols; c++) {
            val sum = expand_get(x, i->c, r, c);
            for (int64_t d = 0; d < depth; d++) {
                val a = expand_factor(x, i->a, r, d, i->dtype), b = expand_factor(x, i->b, d, c, i->dtype);
                if (dtype_is_float(i->dtype))
                    sum = expand_prim(x->into, P_FMA, i->dtype, (const val[3]){a, b, sum});
                else
                    sum = expand_prim(x->into, P_ADD, i->dtype,
                                      (const val[3]){sum, expand_prim(x->into, P_MUL, i->dtype,
                                                                      (const val[3]){a, b})});
            }
            *expand_word(x, v, r, c) = sum;
        }
}

static void expand_lane_reduce(struct expansion *x, val v)
{
    const struct linst *i = &x->k->inst[v];
    val lane[MAX_VECTOR];
    for (int64_t l = 0; l < x->width; l++)
        lane[l] = expand_get(x, i->a, 0, l);
    for (int64_t h = x->width / 2; h; h /= 2)
        for (int64_t l = 0; l < h; l++)
            lane[l] = k_fold_step(x->into, (enum fold)i->imm, lane[l], lane[l + h]);
    *expand_word(x, v, 0, 0) = lane[0];
}

static void expand_interleave(struct expansion *x, val v)
{
    const struct linst *i = &x->k->inst[v];
    int64_t h = (int64_t)i->imm;
    for (int64_t l = 0; l < x->width; l++) {
        bool second = l & h;
        *expand_word(x, v, 0, l) = i->kind == INTERLEAVE_LO
                                       ? expand_get(x, second ? i->b : i->a, 0, second ? l - h : l)
                                       : expand_get(x, second ? i->b : i->a, 0, second ? l : l + h);
    }
}

static void expand_copy(struct expansion *x, val v, val from)
{
    int64_t rows, cols;
    expand_extent(x, &x->k->inst[v], &rows, &cols);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            *expand_word(x, v, r, c) = expand_get(x, from, r, c);
}

static void expand_index(struct expansion *x, val v)
{
    const struct linst *i = &x->k->inst[v];
    for (int64_t n = 0; n < i->rows * i->cols; n++)
        x->word[x->at[v] + n] = k_int(x->into, n);
}

/* ---- memory ---- */

/* The index of element (r, c) of a load or store. */
static val expand_place(struct expansion *x, const struct linst *i, int64_t r, int64_t c)
{
    val at = expand_get(x, i->a, r, c);
    if (!i->d)
        return at;
    val times = k_int(x->into, i->kind == TILE_ROWS ? r : c), rest = k_int(x->into, i->kind == TILE_ROWS ? c : r);
    val by = expand_prim(x->into, P_MUL, KL_I64, (const val[3]){times, expand_get(x, i->d, 0, 0)});
    return index_sum(x->into, index_sum(x->into, at, by), rest);
}

/* One element; 0: it cannot be loaded as a scalar. */
static val load_element(struct expansion *x, const struct linst *i, val at, val where)
{
    struct kernel *into = x->into;
    struct inline_array *a = x->array[i->imm];
    int64_t n, there = 1;
    bool known = number_of(into, at, &n), always = !where || number_of(into, where, &there);
    if (!there)
        return k_bits(into, i->dtype, 0);
    if (a->local) {
        if (!known || n < 0 || n >= a->count)
            return 0;
        if (!a->scalar[n]) /* not stored: any value, which nothing uses */
            a->scalar[n] = k_bits(into, i->dtype, 0);
        return always ? a->scalar[n]
                      : expand_prim(into, P_SELECT, i->dtype,
                                    (const val[3]){where, a->scalar[n], k_bits(into, i->dtype, 0)});
    }
    if (i->dtype == a->dtype && known && always && n >= 0 && n < a->count)
        return inline_load(into, a, n);
    if (a->first)
        at = index_sum(into, at, a->first);
    return i->dtype == a->dtype ? k_load(into, a->lbuf, at, always ? 0 : where)
           : always             ? k_load_wide(into, a->lbuf, at, 0)
                                : 0;
}

static bool expand_load(struct expansion *x, val v)
{
    const struct linst *i = &x->k->inst[v];
    int64_t rows, cols;
    expand_extent(x, i, &rows, &cols);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            val e = load_element(x, i, expand_place(x, i, r, c), i->b ? expand_get(x, i->b, r, c) : 0);
            if (!e)
                return false;
            *expand_word(x, v, r, c) = e;
        }
    return true;
}

static bool store_element(struct expansion *x, struct inline_array *a, val at, val value, val where)
{
    int64_t n, there = 1;
    bool always = !where || number_of(x->into, where, &there);
    if (!there)
        return true;
    if (!number_of(x->into, at, &n) || n < 0 || n >= a->count || (!always && !a->scalar[n]))
        return false;
    a->scalar[n] = always ? value
                          : expand_prim(x->into, P_SELECT, a->dtype, (const val[3]){where, value, a->scalar[n]});
    return true;
}

static bool expand_store(struct expansion *x, val v)
{
    const struct linst *i = &x->k->inst[v], *value = &x->k->inst[i->b];
    int64_t rows, cols;
    expand_extent(x, value->cols ? value : i, &rows, &cols);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            if (!store_element(x, x->array[i->imm], expand_place(x, i, r, c), expand_get(x, i->b, r, c),
                               i->c ? expand_get(x, i->c, r, c) : 0))
                return false;
    return true;
}

/* ---- control flow ---- */

static bool expand_range(struct expansion *x, val first, val end);

static void expand_next(struct expansion *x, val loop)
{
    val end = x->stop[loop], first = end;
    size_t n = 0;
    while (x->k->inst[first - 1].op == L_NEXT)
        first--;
    for (int pass = 0; pass < 2; pass++, n = 0) /* at the same time: a carry may be the next value of another */
        for (val v = first; v < end; v++) {
            const struct linst *i = &x->k->inst[v];
            int64_t rows, cols;
            expand_extent(x, &x->k->inst[i->a], &rows, &cols);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = 0; c < cols; c++, n++)
                    if (pass)
                        *expand_word(x, i->a, r, c) = x->next[n];
                    else
                        x->next[n] = expand_get(x, i->b, r, c);
        }
}

static bool expand_loop(struct expansion *x, val v)
{
    const struct linst *i = &x->k->inst[v];
    int64_t lo, hi;
    if (!number_of(x->into, expand_get(x, i->a, 0, 0), &lo) || !number_of(x->into, expand_get(x, i->b, 0, 0), &hi))
        return false;
    if (i->kind == LOOP_VECTOR) {
        x->width = hi;
        for (int64_t l = 0; l < hi; l++)
            *expand_word(x, v, 0, l) = k_int(x->into, l);
        bool ok = expand_range(x, v + 1, x->stop[v]);
        x->width = 1;
        return ok;
    }
    val body = v + 1;
    for (; x->k->inst[body].op == L_CARRY; body++)
        expand_copy(x, body, x->k->inst[body].a);
    for (int64_t at = lo; at < hi; at += (int64_t)i->imm) {
        *expand_word(x, v, 0, 0) = k_int(x->into, at);
        if (!expand_range(x, body, x->stop[v]))
            return false;
        expand_next(x, v);
        if (at > hi - (int64_t)i->imm)
            break;
    }
    return true;
}

static bool expand_inst(struct expansion *x, val v)
{
    const struct linst *i = &x->k->inst[v];
    switch (i->op) {
    case L_CONST: /* expand_begin has made it */
    case L_SLOT:
    case L_NEXT:
    case L_END:
    case L_SYNC:
    case L_PREFETCH:
        return true;
    case L_ALIAS:
        *expand_word(x, v, 0, 0) = k_bits(x->into, KL_BOOL, 0);
        return true;
    case L_LOAD:
        return expand_load(x, v);
    case L_STORE:
        return expand_store(x, v);
    case L_OUT:
    case L_SPLAT:
        expand_copy(x, v, i->a);
        return true;
    case L_LANE_REDUCE:
        expand_lane_reduce(x, v);
        return true;
    case L_INTERLEAVE:
        expand_interleave(x, v);
        return true;
    case L_INDEX:
        expand_index(x, v);
        return true;
    case L_MMA:
        expand_mma(x, v);
        return true;
    default:
        if (i->op >= L_PRIM)
            expand_primitive(x, v);
        return i->op >= L_PRIM;
    }
}

static bool expand_range(struct expansion *x, val first, val end)
{
    for (val v = first; v < end; v++) {
        const struct linst *i = &x->k->inst[v];
        int64_t taken = 0;
        bool loop = i->op == L_LOOP;
        if (i->op == L_IF && !number_of(x->into, expand_get(x, i->a, 0, 0), &taken))
            return false;
        if (loop ? !expand_loop(x, v) : i->op != L_IF && !expand_inst(x, v))
            return false;
        if (loop || (i->op == L_IF && !taken))
            v = x->stop[v];
        if (x->into->err.code || x->into->ninst > MAX_EXPANDED)
            return false;
    }
    return true;
}

/* Lays out the words of values; returns the words of carries. */
static size_t expand_layout(struct expansion *x, size_t *words)
{
    const struct kernel *k = x->k;
    size_t carried = 0;
    int64_t width = 1;
    *words = 0;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_LOOP && i->kind == LOOP_VECTOR)
            width = (int64_t)k->inst[i->b].imm;
        size_t n = i->cols ? (size_t)i->rows * i->cols : i->varying ? (size_t)width : 1;
        x->at[v] = (uint32_t)*words;
        *words += n;
        carried += i->op == L_CARRY ? n : 0;
        if (i->op == L_END)
            x->stop[i->a] = v;
    }
    return carried;
}

static void expand_begin(struct expansion *x)
{
    for (val v = 1; v < x->k->ninst; v++) {
        const struct linst *i = &x->k->inst[v];
        if (i->op == L_CONST || i->op == L_SLOT)
            x->word[x->at[v]] = k_append(x->into, *i);
    }
}

bool kernel_expand(struct kernel *into, const struct kernel *k, struct inline_array *const *array)
{
    struct expansion x = {.into = into, .k = k, .array = array, .width = 1};
    struct mem_arena mem = {0};
    size_t words = 0, carried = 0;
    x.at = mem_arena_alloc(&mem, k->ninst * sizeof *x.at);
    x.stop = mem_arena_alloc(&mem, k->ninst * sizeof *x.stop);
    if (!mem.failed)
        carried = expand_layout(&x, &words);
    x.word = mem_arena_alloc(&mem, (words + 1) * sizeof *x.word);
    x.next = mem_arena_alloc(&mem, (carried + 1) * sizeof *x.next);
    bool ok = !mem.failed || err_set(&into->err, KL_ERR_MEMORY, "out of memory building kernel %s", into->name);
    if (ok)
        expand_begin(&x);
    ok = ok && expand_range(&x, 1, k->ninst);
    mem_arena_free(&mem);
    return ok;
}
