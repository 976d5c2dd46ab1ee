/* Operands of products as views for copies of panels (BUF_VIEW): matrices of rows whose columns are adjacent in memory.
 *
 * An operand's columns are along the contraction or along its side, the rows along the other one.  Mostly it is one
 * matrix for each batch.  An array such as attention's result, [batch, heads, tokens, depth], whose product has (heads,
 * depth) as one index and (batch, tokens) as the other, is a matrix of tokens and depth for each head of each batch:
 * what an index exceeds the matrix by counts matrices. */
#include "lower_dot.h"

enum view_index { OUTER_COLUMN, COLUMN, OUTER_ROW, ROW, BATCH, INDICES };

static int64_t view_columns(const struct dot *d, bool second, bool along_k)
{
    return along_k ? d->size.k : second ? d->size.n : d->size.m;
}

/* An index in parts of `inner`: the variables of both loops, of which one that counts to 1 is 0. */
static val open_index(struct kernel *k, int64_t size, int64_t inner, val *outer, val *within)
{
    *outer = size > inner ? k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, size / inner), 1) : 0;
    *within = inner > 1 ? k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, inner), 1) : 0;
    val x = *within ? *within : k_int(k, 0);
    return *outer ? ix_add(k, ix_scale(k, *outer, inner), x) : x;
}

/* Does the operand's address depend linearly on each index, of matrices of v->inner columns and rows?  Sets the
 * distances in elements, 0 for an index that is always 0, and the first element. */
static bool find_distances(const struct dot *d, bool second, const struct dot_view *v, int64_t *step, int64_t *first)
{
    struct trial t;
    bool ok = false;
    const int64_t vector = dot_vector(d->w->g->node[d->n->in[second]].dtype);
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        val of[INDICES] = {0};
        int64_t hi;
        copy.w = &t.w;
        val batch = d->size.batch > 1 ? k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1) : 0;
        copy.batch_index = batch ? batch : k_int(k, 0);
        of[BATCH] = batch;
        val column = open_index(k, view_columns(d, second, v->along_k), v->inner[0], &of[OUTER_COLUMN], &of[COLUMN]);
        val row = open_index(k, view_columns(d, second, !v->along_k), v->inner[1], &of[OUTER_ROW], &of[ROW]);
        val element = dot_stored_element(&copy, second, v->along_k ? row : column, v->along_k ? column : row);
        const struct linst x = k->inst[element];
        ok = !k->err.code && x.op == L_LOAD && !x.b && k->buf[x.imm].role == BUF_IN && ix_range(k, x.a, first, &hi) &&
             *first % vector == 0 && hi < k->buf[x.imm].count &&
             k->buf[x.imm].count % vector == 0; /* it may be one of many arrays that a scan reads in turn */
        for (unsigned i = 0; i < INDICES && ok; i++) {
            step[i] = 0;
            ok = !of[i] || (ix_stride(k, x.a, of[i], &step[i]) && step[i] >= 0 &&
                            (i == COLUMN ? step[i] == 1 : step[i] % vector == 0));
        }
    }
    trial_end(&t, d->w);
    return ok;
}

/* Is it a view, with these distances?  Matrices are at multiples of the smallest distance between two. */
static bool make_view(const struct dot *d, bool second, const int64_t *step, struct dot_view *v)
{
    enum { LONGEST_STEP = 1 << 30 };
    const int64_t count[] = {view_columns(d, second, v->along_k) / v->inner[0],
                             view_columns(d, second, !v->along_k) / v->inner[1], d->size.batch},
                  by[] = {step[OUTER_COLUMN], step[OUTER_ROW], step[BATCH]};
    struct lbuf *b = &v->b;
    int64_t least = 0, last = 0;
    for (unsigned i = 0; i < VIEW_DIMS; i++)
        least = by[i] && (!least || by[i] < least) ? by[i] : least;
    for (unsigned i = 0; i < VIEW_DIMS; i++) {
        if (least && by[i] % least)
            return false;
        v->matrices[i] = least ? by[i] / least : 0;
        last += v->matrices[i] * (count[i] - 1);
    }
    b->size[0] = v->inner[0];
    b->size[1] = v->inner[1];
    b->size[2] = last + 1;
    b->step[0] = 1;
    b->step[1] = v->inner[1] > 1 ? step[ROW] : v->inner[0];
    b->step[2] = least ? least : b->step[1];
    for (unsigned i = 1; i < VIEW_DIMS; i++) /* rows that overlap, or a smaller step further out: no tensor map */
        if (b->step[i] < b->size[0] || b->step[i] % b->step[i - 1] || b->step[i] > LONGEST_STEP ||
            b->size[i] > INT32_MAX)
            return false;
    return true;
}

/* May panels of the schedule's steps be copied from matrices of v->inner columns and rows?  What one copy brings is in
 * one matrix, and no part of the contraction is beyond its end; results beyond the sides are not stored. */
static bool has_whole_panels(const struct dot *d, const struct schedule *s, bool second, const struct dot_view *v)
{
    int64_t columns = view_columns(d, second, v->along_k), rows = view_columns(d, second, !v->along_k);
    int64_t side = second ? s->dot_matrix.block_n : s->dot_matrix.block_m, step = s->dot_matrix.step;
    int64_t loaded = v->along_k ? side : step;
    if (v->inner[0] != columns && (v->inner[0] % PANEL_COLUMNS || (v->along_k && columns % step)))
        return false;
    return v->inner[1] == rows || (loaded && v->inner[1] % loaded == 0);
}

static bool try_view(const struct dot *d, const struct schedule *s, bool second, struct dot_view *v)
{
    int64_t step[INDICES];
    v->b = (struct lbuf){0};
    return has_whole_panels(d, s, second, v) && find_distances(d, second, v, step, &v->b.first) &&
           make_view(d, second, step, v);
}

bool dot_view_find(const struct dot *d, const struct schedule *s, bool second, struct dot_view *v)
{
    const struct graph *g = d->w->g;
    ref array = d->n->in[second];
    v->along_k = dot_along_k(d, second);
    v->inner[0] = view_columns(d, second, v->along_k);
    v->inner[1] = view_columns(d, second, !v->along_k);
    if (d->symbolic) /* a tensor map has numbers */
        return false;
    if (try_view(d, s, second, v))
        return true;
    while (op_is_view(g->node[array].op))
        array = g->node[array].in[0];
    const struct shape *in = node_shape(g, array);
    for (unsigned along = 0; along < 2 && in->rank > 2; along++)
        for (uint32_t a = 0; a + 1 < in->rank; a++) {
            *v = (struct dot_view){.along_k = !along, .inner = {in->dim[in->rank - 1], in->dim[a]}};
            if (v->inner[0] > 0 && v->inner[1] > 0 && view_columns(d, second, v->along_k) % v->inner[0] == 0 &&
                view_columns(d, second, !v->along_k) % v->inner[1] == 0 && try_view(d, s, second, v))
                return true;
        }
    return false;
}
