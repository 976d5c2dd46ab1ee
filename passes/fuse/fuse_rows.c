/* Row kernels: several reductions over the same rows, with the elementwise values around them.
 *
 * A row is the elements that a reduction over the last axes combines into one: R rows of L elements.  In a row kernel
 * every member has one value for each element (full) or one for each row, in the row-major order of the same R x L
 * elements:
 *
 *   reductions        read full members and make one value for each row
 *   full members      read full members element by element, and values of rows repeated along the row
 *   values of rows    read values of rows
 *
 * so an iteration needs no other row, and a row stays in the first-level cache while its kernel loops over it several
 * times.  On a GPU there may also be
 *
 *   sums of columns   read full members and make one value for each column, or for each column of a part of the rows
 *
 * of which a block of threads adds up those of its rows (lower/gpu/lower_gpu_row_columns.c).  Softmax, layer norm,
 * cross entropy and their gradients are such kernels.  The order of a row's sum does not change: rows of several chunks
 * of lanes (node.h, "Numeric order") are iterated chunk by chunk. */
#include "fuse.h"

/* LONGEST: elements of a row that a second-level cache still has when it is read again */
enum { FEW_ROWS = 64, MUCH_WORK = 1 << 16, LONGEST = 1 << 17 };

bool reduce_rows(const struct graph *g, ref r, struct row_space *s)
{
    const struct node *n = &g->node[r];
    if (!op_is_reduce(n->op) || n->attr.reduce.lanes != 64)
        return false;
    const struct shape *in = node_shape(g, n->in[0]);
    *s = (struct row_space){1, 1};
    for (uint32_t d = 0; d < in->rank; d++) {
        bool reduced = n->attr.reduce.axes >> d & 1;
        if (!reduced && s->length > 1 && in->dim[d] != 1)
            return false;
        *(reduced ? &s->length : &s->rows) *= in->dim[d];
    }
    uint64_t chunk = n->attr.reduce.chunk;
    return s->rows > 0 && s->length > 1 &&
           ((uint64_t)s->length <= chunk ||
            (!g->symbols && s->length <= LONGEST && chunk % n->attr.reduce.lanes == 0));
}

static bool is_full(const struct graph *g, ref r, const struct row_space *s)
{
    return node_numel(g, r) == s->rows * s->length;
}

static bool axis_is(const struct graph *g, const struct node *n, uint32_t d, bool reduced)
{
    return node_shape(g, n->in[0])->dim[d] == 1 || reduced == (n->attr.reduce.axes >> d & 1);
}

bool reduce_columns(const struct graph *g, ref r, const struct row_space *s, int64_t *rows)
{
    const struct node *n = &g->node[r];
    if (!op_is_reduce(n->op) || n->attr.reduce.lanes != 1 || g->symbols || !is_full(g, n->in[0], s))
        return false;
    uint32_t d = node_shape(g, n->in[0])->rank;
    int64_t length = 1;
    for (; d && axis_is(g, n, d - 1, false); d--)
        length *= node_shape(g, n->in[0])->dim[d - 1];
    while (d && axis_is(g, n, d - 1, true))
        d--;
    while (d && axis_is(g, n, d - 1, false))
        d--;
    *rows = node_numel(g, n->in[0]) / node_numel(g, r);
    return !d && length == s->length && *rows > 1;
}

/* May a row kernel add up the columns that r reduces, too?  In the graph's order its blocks have the rows of a chunk
 * each, so a part must have whole ones. */
static bool may_add_columns(const struct fuser *f, ref r, const struct row_space *s)
{
    enum { MAX_LENGTH = 4096 }; /* elements of a row: as many columns' sums are in registers beside it */
    int64_t rows, chunk = (int64_t)f->g->node[r].attr.reduce.chunk;
    return f->gpus >> f->g->node[r].device & 1 && s->length <= MAX_LENGTH && reduce_columns(f->g, r, s, &rows) &&
           (rows <= chunk || rows % chunk == 0);
}

/* Is v, of full size, a value of rows repeated along the row? There must be exactly one expand on the way, and it
 * repeats the last axes. */
static bool repeats_rows(const struct graph *g, ref v, const struct row_space *s)
{
    bool expanded = false;
    for (; op_is_view(g->node[v].op); v = g->node[v].in[0]) {
        if (g->node[v].op == OP_reshape)
            continue;
        if (g->node[v].op != OP_expand || expanded)
            return false;
        const struct shape *out = node_shape(g, v), *in = node_shape(g, g->node[v].in[0]);
        int64_t rows = 1;
        uint32_t d = 0;
        for (; d < out->rank && in->dim[d] == out->dim[d] && rows * out->dim[d] <= s->rows; d++)
            rows *= out->dim[d];
        for (; d < out->rank; d++)
            if (in->dim[d] != 1)
                return false;
        if (rows != s->rows)
            return false;
        expanded = true;
    }
    return expanded;
}

/* What a row kernel of some groups would reduce. */
struct row_reduces {
    uint32_t rows, columns;
    bool chunks;        /* are there rows of several chunks of lanes? */
    int64_t block;      /* rows of a chunk of the columns; 0: there are none */
};

/* Adds reduce r; false: it cannot be in a kernel over these rows. */
static bool add_reduce(const struct fuser *f, ref r, const struct row_space *s, struct row_reduces *all)
{
    struct row_space own;
    int64_t rows, chunk = (int64_t)f->g->node[r].attr.reduce.chunk;
    if (reduce_rows(f->g, r, &own)) {
        all->rows++;
        all->chunks |= own.length > chunk;
        return own.rows == s->rows && own.length == s->length;
    }
    if (!may_add_columns(f, r, s))
        return false;
    reduce_columns(f->g, r, s, &rows);
    int64_t block = rows < chunk ? rows : chunk, before = all->block;
    all->block = block;
    all->columns++;
    return !before || before == block;
}

/* Does r read what a sum of columns in its own group makes? */
static bool reads_columns(const struct fuser *f, ref r, const struct row_space *s)
{
    for (unsigned i = 0; i < f->g->node[r].nin; i++) {
        bool linear;
        int64_t rows;
        ref x = node_operand(f->g, r, i, &linear);
        if (group_of(f, x) == group_of(f, r) && reduce_columns(f->g, x, s, &rows))
            return true;
    }
    return false;
}

/* Can every member of the group be in a kernel over these rows, by its own shape and op? */
static bool has_rows(const struct fuser *f, uint32_t id, const struct row_space *s, struct row_reduces *all)
{
    for (ref r = f->group[id].first; r; r = f->next[r]) {
        if (op_is_reduce(f->g->node[r].op)) {
            if (!add_reduce(f, r, s, all))
                return false;
        } else if (op_is_anchor(f->g->node[r].op) || op_is_non_fusible(f->g->node[r].op)) {
            return false;
        } else if (!is_full(f->g, r, s) && node_numel(f->g, r) != s->rows) {
            return false;
        }
        if (reads_columns(f, r, s))
            return false;
    }
    return all->rows <= MAX_ROW_REDUCES && all->columns <= MAX_ROW_COLUMNS && !(all->columns && all->chunks);
}

/* Does `to` read the results of `from`, and only in ways that a row kernel can? */
static bool reads_rows(const struct fuser *f, uint32_t from, uint32_t to, const struct row_space *s, bool *reads)
{
    for (ref r = f->group[to].first; r; r = f->next[r])
        for (unsigned i = 0; i < f->g->node[r].nin; i++) {
            bool linear;
            ref x = node_operand(f->g, r, i, &linear);
            if (group_of(f, x) != from)
                continue;
            *reads = true;
            const struct node *n = &f->g->node[r];
            int64_t rows;
            if (reduce_columns(f->g, x, s, &rows))
                return false;
            bool same = linear && (op_is_reduce(n->op) || node_numel(f->g, x) == node_numel(f->g, r));
            bool repeated = !op_is_select(n->op) && !op_is_reduce(n->op) && is_full(f->g, r, s) &&
                            node_numel(f->g, x) == s->rows && repeats_rows(f->g, n->in[i], s);
            if (!same && !repeated)
                return false;
        }
    return true;
}

bool fuse_has_rows(const struct fuser *f, uint32_t id, struct row_space *s)
{
    for (ref r = f->group[id].first; r; r = f->next[r])
        if (reduce_rows(f->g, r, s))
            return true;
    return false;
}

bool fuse_rows_all(struct fuser *f, const uint32_t *id, uint32_t n)
{
    struct row_space s;
    struct row_reduces all = {0};
    uint32_t nodes = 0;
    bool rows = false, reads = false;
    for (uint32_t i = 0; i < n && !rows; i++)
        rows = fuse_has_rows(f, id[i], &s);
    for (uint32_t i = 0; i < n && rows; i++) {
        nodes += f->group[id[i]].nodes;
        rows = has_rows(f, id[i], &s, &all);
        for (uint32_t k = 0; k < i && rows; k++)
            rows = reads_rows(f, id[k], id[i], &s, &reads);
    }
    return rows && nodes <= MAX_GROUP_NODES && !(s.rows < FEW_ROWS && s.rows * s.length > MUCH_WORK);
}

const char *fuse_rows_conflict(struct fuser *f, uint32_t a, uint32_t b)
{
    struct row_space s;
    struct row_reduces all = {0};
    bool reads = false;
    if (!fuse_has_rows(f, a, &s) && !fuse_has_rows(f, b, &s))
        return "no rows";
    if (s.rows < FEW_ROWS && s.rows * s.length > MUCH_WORK)
        return "few long rows: each kernel divides its own rows among threads";
    if (!has_rows(f, a, &s, &all) || !has_rows(f, b, &s, &all))
        return all.rows > MAX_ROW_REDUCES || all.columns > MAX_ROW_COLUMNS ? "too many reduces for one kernel"
            : "not of the same rows";
    return reads_rows(f, a, b, &s, &reads) && reads_rows(f, b, a, &s, &reads) ? NULL : "needs other rows than its own";
}
