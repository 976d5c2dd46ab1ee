/* Attention by matrix units: which operands the units can take, and their arrays as views of three dimensions, from
 * which TMA loads take panels. */
#include "lower_attention_tiles.h"
#include <string.h>

/* An operand as an array in memory: elements from row to row, from column to column, and along each coordinate of the
 * matrix. */
struct panel_array { int64_t first, row, column, lead[KL_MAX_RANK]; };

/* Is operand `which`, of which rows x columns are read, an array?  *vectors: vectors of `each` adjacent columns begin
 * at multiples of so many. */
static bool is_array(const struct attention *a, unsigned which, int64_t rows, int64_t columns, int64_t each,
                     struct panel_array *at, bool *vectors)
{
    struct trial t;
    bool ok = false;
    if (trial_begin(&t, a->w)) {
        struct attention copy = *a;
        struct kernel *k = t.w.k;
        int64_t high;
        val v[KL_MAX_RANK];
        copy.w = &t.w;
        for (unsigned i = 0; i < a->lead.rank; i++)
            v[i] = copy.coord[i] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->lead.dim[i]), 1);
        val row = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, rows), 1),
            column = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, columns), 1);
        val element = attention_stored(&copy, which, row, column);
        const struct linst *x = &k->inst[element];
        ok = !k->err.code && x->op == L_LOAD && !x->b && k->buf[x->imm].role == BUF_IN &&
             ix_range(k, x->a, &at->first, &high) && ix_stride(k, x->a, row, &at->row) &&
             ix_stride(k, x->a, column, &at->column) && at->row >= 0 && at->column >= 0;
        *vectors = ok && at->column == 1 && at->row % each == 0 && at->first % each == 0 &&
                   k->buf[x->imm].count % each == 0;
        for (unsigned i = 0; i < a->lead.rank && ok; i++) {
            ok = ix_stride(k, x->a, v[i], &at->lead[i]);
            *vectors &= ok && at->lead[i] % each == 0;
        }
    }
    trial_end(&t, a->w);
    return ok;
}

bool attention_find_steps(struct tiles *s)
{
    const struct attention *a = s->a;
    struct panel_array at = {0};
    int64_t queries = s->keys ? a->m : a->l, keys = s->keys ? a->l : a->m;
    bool vectors, ok = true;
    if (a->mask || a->bounds) {
        ok = is_array(a, MASK, queries, a->mask ? keys : 2, VECTOR, &at, &vectors);
        s->mask_step[0] = at.row;
        s->mask_step[1] = at.column;
        ok = ok && (a->bounds || s->mask_step[1] == 1); /* of a tile's rows or columns one has adjacent elements */
    }
    if (ok && s->gradient) {
        ok = is_array(a, STATS, queries, STAT_COUNT, VECTOR, &at, &vectors) && at.column == 1;
        s->stat_step = at.row;
    }
    return ok;
}

/* The rows of operand `which` that are read.  keys: of a gradient in k and v. */
static int64_t rows_of(const struct attention *a, unsigned which, bool gradient, bool keys)
{
    return (gradient ? (which == X) != keys : which == Q) ? a->l : a->m;
}

static bool is_vectors(const struct attention *a, unsigned which, bool gradient, bool keys, struct panel_array *at)
{
    bool vectors;
    return is_array(a, which, rows_of(a, which, gradient, keys), a->columns[which], VECTOR, at, &vectors) && vectors;
}

bool attention_has_accesses(const struct attention *a, unsigned which, bool gradient, bool keys, int64_t each)
{
    struct panel_array at;
    bool vectors;
    return a->w->g->node[a->n->in[which]].dtype == KL_F32 &&
           is_array(a, which, rows_of(a, which, gradient, keys), a->columns[which], each, &at, &vectors) && vectors;
}

bool attention_has_adjacent_statistics(const struct attention *a, bool keys, int64_t each)
{
    struct panel_array at;
    bool vectors;
    int64_t queries = keys ? a->m : a->l;
    bool ok = is_array(a, STATS, queries, STAT_COUNT, each, &at, &vectors) && at.column == 1 &&
              at.row == STAT_COUNT && at.first % each == 0 && queries * STAT_COUNT % each == 0;
    for (unsigned i = 0; ok && i < a->lead.rank; i++)
        ok = at.lead[i] % each == 0;
    return ok;
}

bool attention_has_blocks(const struct attention *a)
{
    enum { FAR = 1 << 30 };
    return a->w->gpu && !a->w->placeholders && a->dtype == KL_F32 &&
        a->block == ATTENTION_BLOCK_STEP &&
           a->d > 0 && a->d % VECTOR == 0 && a->e % VECTOR == 0 && a->l > 0 && a->m > 0 && a->l < FAR && a->m < FAR &&
           shape_count(&a->lead) > 0 && (a->e || a->n->op == OP_attention_stats);
}

bool attention_has_matrices(const struct attention *a, bool gradient, bool keys)
{
    const struct graph *g = a->w->g;
    const struct node *n = a->n;
    struct tiles s = {.a = (struct attention *)a, .gradient = gradient, .keys = keys};
    enum { FAR = 1 << 30 };
    unsigned dtype = g->node[n->in[K]].dtype, last = gradient || !a->e ? K : V;
    if (!a->w->gpu || a->w->placeholders || !dtype_is_half(dtype) || a->d < 1 || a->d % VECTOR ||
        a->e % VECTOR || a->l < 1 || a->m < 1 || a->l >= FAR || a->m >= FAR || shape_count(&a->lead) < 1 ||
        (!a->e && n->op != OP_attention_stats) || (n->op != OP_attention_stats && n->dtype != dtype) ||
        (gradient && dtype != KL_BF16)) /* f16 has too few exponents for ds */
        return false;
    for (unsigned i = Q; i <= last; i++) {
        struct panel_array at;
        if (g->node[n->in[i]].dtype != dtype || !is_vectors(a, i, gradient, keys, &at))
            return false;
    }
    return attention_find_steps(&s);
}

/* ---- views ---- */

/* Coordinates of the matrix whose elements are nearer to each other than rows are are part of the column.  The others
 * are multiples of the smallest distance, which is that of the view's last dimension. */
bool attention_view(const struct attention *a, unsigned which, bool gradient, bool keys, struct attention_view *v)
{
    enum { LONGEST_STEP = 1 << 30 };
    struct panel_array at = {0};
    int64_t rows = rows_of(a, which, gradient, keys), matrix = 0;
    *v = (struct attention_view){0};
    if (!is_vectors(a, which, gradient, keys, &at))
        return false;
    struct lbuf *l = &v->view;
    *l = (struct lbuf){.first = at.first, .size = {a->columns[which], rows, 1}, .step = {1, at.row, at.row}};
    for (unsigned i = 0; i < a->lead.rank; i++) {
        if (at.lead[i] < 0)
            return false;
        if (at.lead[i] >= at.row && a->lead.dim[i] > 1)
            matrix = !matrix || at.lead[i] < matrix ? at.lead[i] : matrix;
    }
    l->step[2] = matrix ? matrix : at.row;
    for (unsigned i = 0; i < a->lead.rank; i++) {
        bool column = at.lead[i] < at.row;
        if (a->lead.dim[i] == 1 || !at.lead[i])
            continue;
        if (!column && at.lead[i] % matrix)
            return false;
        v->column[i] = column ? at.lead[i] : 0;
        v->matrix[i] = column ? 0 : at.lead[i] / matrix;
        l->size[0] += (a->lead.dim[i] - 1) * v->column[i];
        l->size[2] += (a->lead.dim[i] - 1) * v->matrix[i];
    }
    for (unsigned i = 1; i < VIEW_DIMS; i++) /* rows that overlap, or a smaller step further out: no tensor map */
        if (l->step[i] < l->size[0] || l->step[i] % l->step[i - 1] || l->step[i] > LONGEST_STEP ||
            l->size[i] > INT32_MAX)
            return false;
    return l->size[0] <= INT32_MAX;
}

bool attention_has_views(const struct attention *a, bool gradient, bool keys)
{
    struct attention_view v;
    unsigned last = gradient || !a->e ? K : V;
    for (unsigned i = Q; i <= last; i++)
        if (!attention_view(a, i, gradient, keys, &v))
            return false;
    return true;
}
