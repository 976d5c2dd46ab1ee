/* Epilogues of products: what the group computes from a result, where the product is stored. */
#include "lower_dot.h"

void dot_result_coord(const struct dot *d, val m, val n, val *coord)
{
    struct kernel *k = d->w->k;
    lower_unflatten(k, &d->batch, d->batch_index, coord);
    lower_unflatten(k, &d->free_a, m, coord + d->batch.rank);
    lower_unflatten(k, &d->free_b, n, coord + d->batch.rank + d->free_a.rank);
}

void dot_find_permute(struct dot *d)
{
    struct lowering *w = d->w;
    uint64_t results = UINT64_C(1) << w->place[w->anchor]; /* the product and what is computed from it */
    for (uint32_t m = 0; m < w->nmember; m++) {
        const struct node *n = &w->g->node[w->member[m]];
        for (unsigned i = 0; i < n->nin && w->member[m] != w->anchor; i++) {
            bool linear;
            ref s = node_operand(w->g, w->member[m], i, &linear), source;
            ref permute = op_is_view(n->op) ? node_permute(w->g, w->member[m], &source)
                          : linear ? NIL : node_permute(w->g, n->in[i], &source);
            if (!lower_is_member(w, s) || !(results >> w->place[s] & 1))
                continue;
            results |= UINT64_C(1) << m;
            if (permute)
                d->permute = permute;
            if (permute || d->permuted >> w->place[s] & 1)
                d->permuted |= UINT64_C(1) << m;
        }
    }
}

void dot_permuted_coord(const struct dot *d, ref r, const val *coord, val *to)
{
    struct kernel *k = d->w->k;
    const struct node *n = &d->w->g->node[r];
    const struct shape *s = node_shape(d->w->g, r);
    val from[KL_MAX_RANK] = {0};
    if (lower_is_member(d->w, r) && !op_is_view(n->op)) {
        lower_unflatten(k, s, lower_flatten(k, &d->out, coord), to);
        return;
    }
    dot_permuted_coord(d, n->in[0], coord, from);
    if (n->op == OP_reshape)
        lower_unflatten(k, s, lower_flatten(k, node_shape(d->w->g, n->in[0]), from), to);
    for (uint32_t i = 0; i < s->rank && n->op == OP_permute; i++)
        to[i] = from[n->attr.permute.perm[i]];
}

/* Begins the evaluation of members at a result: its coordinates, and those in the permute's result. */
static void epilogue_begin(const struct dot *d, const struct dot_at *at, val *coord, val *permuted)
{
    struct lowering *w = d->w;
    ix_assume_below(w->k, at->m, d->len.m);
    ix_assume_below(w->k, at->n, d->len.n);
    dot_result_coord(d, at->m, at->n, coord);
    if (d->permute)
        dot_permuted_coord(d, d->permute, coord, permuted);
    lower_point(w);
    w->anchor_value = k_cast(w->k, at->sum, d->n->dtype);
}

/* Stored member i. */
static struct element epilogue_element(const struct dot *d, uint32_t i, const val *coord, const val *permuted)
{
    bool other = d->permute && d->permuted >> i & 1;
    return lower_element(d->w, d->w->member[i], other ? node_shape(d->w->g, d->permute) : &d->out,
                         other ? permuted : coord);
}

/* Is stored node r, of the product's shape, in rows of at least so many elements in memory? */
static bool has_columns(const struct dot *d, ref r, int64_t columns)
{
    return shape_equal(node_shape(d->w->g, r), &d->out) && d->w->pitch[r] >= columns;
}

/* Evaluates all stored members at a result of a trial's kernel.  *n: its column.  Returns false after an error. */
static bool try_epilogue(const struct dot *d, struct trial *t, val *n)
{
    struct dot copy = *d;
    struct kernel *k = t->w.k;
    val coord[KL_MAX_RANK] = {0}, permuted[KL_MAX_RANK] = {0};
    copy.w = &t->w;
    copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
    val m = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.m), 1);
    *n = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.n), 1);
    epilogue_begin(&copy, &(struct dot_at){m, *n, k_bits(k, KL_F32, 0)}, coord, permuted);
    for (uint32_t i = 0; i < t->w.nmember; i++)
        if (t->w.stored[t->w.member[i]])
            epilogue_element(&copy, i, coord, permuted);
    return !k->err.code;
}

/* Does the epilogue only load what has a value, or unused memory, in all of these columns? */
static bool loads_columns(const struct dot *d, int64_t columns)
{
    struct trial t;
    bool ok = false;
    if (trial_begin(&t, d->w)) {
        struct kernel *k = t.w.k;
        val n;
        ok = try_epilogue(d, &t, &n);
        for (val v = 1; v < k->ninst && ok; v++)
            if (k->inst[v].op == L_LOAD && ix_depends(k, k->inst[v].a, n))
                ok = has_columns(d, t.out.arg[k->buf[k->inst[v].imm].id].node, columns);
    }
    trial_end(&t, d->w);
    return ok;
}

int64_t dot_epilogue_instructions(const struct dot *d)
{
    int64_t instructions = 0;
    struct trial t;
    if (trial_begin(&t, d->w)) {
        struct kernel *k = t.w.k;
        val n;
        if (try_epilogue(d, &t, &n))
            for (val v = 1; v < k->ninst; v++)
                instructions += k->inst[v].op >= L_PRIM && k->inst[v].dtype != KL_I64;
    }
    trial_end(&t, d->w);
    return instructions;
}

void dot_find_columns(struct dot *d)
{
    int64_t columns = (d->size.n + DOT_VECTOR - 1) / DOT_VECTOR * DOT_VECTOR;
    bool ok = !d->symbolic && !d->permute && columns > d->size.n && d->out.rank &&
              d->out.dim[d->out.rank - 1] == d->size.n;
    for (uint32_t i = 0; i < d->w->nmember && ok; i++)
        ok = !d->w->stored[d->w->member[i]] || has_columns(d, d->w->member[i], columns);
    d->columns = d->size.n;
    if (ok && loads_columns(d, columns))
        d->columns = columns;
}

void dot_epilogue(const struct dot *d, val m, val n, val result)
{
    struct lowering *w = d->w;
    val coord[KL_MAX_RANK] = {0}, permuted[KL_MAX_RANK] = {0};
    epilogue_begin(d, &(struct dot_at){m, n, result}, coord, permuted);
    for (uint32_t i = 0; i < w->nmember; i++)
        if (w->stored[w->member[i]]) {
            struct element e = epilogue_element(d, i, coord, permuted);
            lower_put(w, &e);
        }
}

void dot_epilogue_together(const struct dot *d, const struct dot_at *at, int64_t count)
{
    struct lowering *w = d->w;
    struct element *e = mem_alloc((size_t)count * w->nmember * sizeof *e);
    if (!e) {
        err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering %s", w->k->name);
        return;
    }
    for (int64_t u = 0; u < count; u++) {
        val coord[KL_MAX_RANK] = {0}, permuted[KL_MAX_RANK] = {0};
        epilogue_begin(d, &at[u], coord, permuted);
        for (uint32_t i = 0; i < w->nmember; i++)
            if (w->stored[w->member[i]])
                e[i * count + u] = epilogue_element(d, i, coord, permuted);
    }
    for (uint32_t i = 0; i < w->nmember; i++)
        for (int64_t u = 0; u < count && w->stored[w->member[i]]; u++)
            lower_put(w, &e[i * count + u]);
    mem_free(e);
}
