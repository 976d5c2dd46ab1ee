/* The gradient in weights of convolutions of few filters: a sum for each element of a window and each column
 * (reverse_windows.c), whose lanes are columns and whose chains go down the rows of all images.
 *
 * Of many lines, rows of all images, a task adds the products of some at a time to the sums of all columns and channels
 * that it has, which are in scratch: so it reads what is adjacent in memory, and lines come from the first-level cache
 * for all but the first of the columns. */
#include "lower_direct.h"

/* Adds the products of the tile's rows of windows to the sums of mr rows and n elements. */
static void add_lines(const struct direct *c, const struct direct_tile *t, int64_t mr, int64_t n, val *acc)
{
    struct dot *d = c->d;
    struct kernel *k = d->w->k;
    val column = ix_add(k, t->column, d->w->lane), a[MAX_SUMS];
    for (int64_t r = 0; r < t->rows; r++) {
        val row = ix_add(k, t->row, k_int(k, r)), line = ix_add(k, ix_scale(k, c->outer, c->z->rows), row);
        d->batch_index = ix_add(k, ix_scale(k, c->batch, c->z->columns), column);
        for (int64_t m = 0; m < mr; m++)
            a[m] = dot_element(d, false, ix_add(k, c->m0, k_int(k, m)), line);
        for (int64_t i = 0; i < n; i++) {
            val x = dot_element(d, true, ix_add(k, c->n0, k_int(k, i)), line);
            for (int64_t m = 0; m < mr; m++)
                acc[m * n + i] = dot_multiply_add(k, a[m], x, acc[m * n + i]);
        }
    }
}

/* Adds the products of the lines that a segment's tiles have from `from` to `to`: `lines` at a time, then one at a
 * time. */
static void add_lines_between(const struct direct *c, const struct segment *s, struct direct_tile *t, int64_t lines,
                              val from, val to, int64_t mr, int64_t n, val *acc)
{
    struct kernel *k = c->d->w->k;
    const int64_t first = s->first * c->rows, end = first + (s->count - 1) * c->rows + s->length;
    val carry[MAX_SUMS], zero = k_int(k, 0);
    val at = k_max(k, from, k_int(k, first)), left = k_max(k, ix_sub(k, ix_min(k, to, end), at), zero);
    ix_assume_range(k, left, 0, end - first);
    for (int64_t next; lines; lines = next) {
        next = lines > 1;
        val count = ix_div(k, left, lines), tile = direct_begin_chains(k, count, mr * n, acc, carry);
        t->rows = lines;
        t->row = ix_add(k, at, ix_scale(k, tile, lines));
        ix_assume_range(k, t->row, first, end - lines);
        add_lines(c, t, mr, n, acc);
        direct_end_chains(k, tile, mr * n, acc, carry);
        at = ix_add(k, at, ix_scale(k, count, lines));
        left = ix_sub(k, left, ix_scale(k, count, lines));
    }
}

/* The same of all tiles. */
static void add_segment(const struct direct *c, const struct segment *s, struct direct_tile *t, int64_t mr, int64_t n,
                        val *acc)
{
    struct kernel *k = c->d->w->k;
    val carry[MAX_SUMS], loop = s->count > 1 ? direct_begin_chains(k, k_int(k, s->count), mr * n, acc, carry) : 0;
    t->rows = s->length;
    t->row = ix_scale(k, loop ? ix_add(k, loop, k_int(k, s->first)) : k_int(k, s->first), c->rows);
    add_lines(c, t, mr, n, acc);
    if (loop)
        direct_end_chains(k, loop, mr * n, acc, carry);
}

/* The same of all segments.  Where parts have whole images, but for where a k-block begins or ends within one, these
 * have code of their own. */
static void add_image_between(const struct direct *c, struct direct_tile *t, val from, val to, int64_t mr, int64_t n,
                              val *acc)
{
    const int64_t rows = c->z->rows;
    const bool whole = c->parts->lines % rows == 0;
    struct kernel *k = c->d->w->k;
    val carry[MAX_SUMS];
    if (whole) {
        val zero = k_int(k, 0), all = k_prim(k, P_AND, k_prim(k, P_LE, from, zero, 0),
                                             k_prim(k, P_LE, k_int(k, rows), to, 0), 0);
        val times = k_prim(k, P_SELECT, all, k_int(k, 1), zero);
        ix_assume_range(k, times, 0, 1);
        val once = direct_begin_chains(k, times, mr * n, acc, carry);
        for (unsigned y = 0; y < c->ndown; y++)
            add_segment(c, &c->down[y], t, mr, n, acc);
        direct_end_chains(k, once, mr * n, acc, carry);
        to = k_prim(k, P_SELECT, all, from, to);
        ix_assume_range(k, to, -c->d->size.k, c->d->size.k);
    }
    for (unsigned y = 0; y < c->ndown; y++)
        add_lines_between(c, &c->down[y], t, whole ? 1 : c->down[y].length, from, to, mr, n, acc);
}

/* Adds the products of the task's lines, or of those of the part. */
static void add_lines_of_part(struct direct *c, struct direct_tile *t, int64_t mr, int64_t n, val *acc)
{
    const struct direct_parts *p = c->parts;
    const struct dot *d = c->d;
    const int64_t rows = c->z->rows;
    struct kernel *k = d->w->k;
    val carry[MAX_SUMS], image = 0;
    if (c->z->outer > 1) {
        val first = p ? ix_div(k, p->from, rows) : k_int(k, 0);
        val end = p ? ix_div(k, ix_add(k, p->to, k_int(k, rows - 1)), rows) : ix_div(k, ix_size(k, d->len.k), rows);
        image = k_loop(k, LOOP_SERIAL, first, end, 1);
        ix_bound(k, image, 0, c->z->outer - 1);
        for (int64_t i = 0; i < mr * n; i++)
            acc[i] = carry[i] = k_carry(k, acc[i]);
    }
    c->outer = image ? image : k_int(k, 0);
    val top = ix_scale(k, c->outer, rows);
    if (p && !p->whole)
        add_image_between(c, t, ix_sub(k, p->from, top), ix_sub(k, p->to, top), mr, n, acc);
    for (unsigned y = 0; y < c->ndown && (!p || p->whole); y++)
        add_segment(c, &c->down[y], t, mr, n, acc);
    if (image)
        direct_end_chains(k, image, mr * n, acc, carry);
}

/* The index of sum i of the tile in the task's sums. */
static val sum_index(const struct direct *c, const struct direct_tile *t, val matrix, int64_t i)
{
    struct kernel *k = c->d->w->k;
    const int64_t tiles = dot_parts(c->z->columns, c->d->nr), nr = c->d->nr;
    val tile = ix_add(k, ix_scale(k, matrix, tiles), ix_div(k, t->column, nr));
    return ix_add(k, ix_scale(k, ix_add(k, ix_scale(k, tile, c->parts->each), k_int(k, i)), nr), c->d->w->lane);
}

/* The sums of mr rows and n elements for some columns, of the task's matrix with this number: all of their products and
 * what is computed from them, or those of a part, or what is computed from the sums of all parts. */
static void emit_lines(struct direct *c, struct direct_tile *t, val matrix, int64_t mr, int64_t n)
{
    const struct direct_parts *p = c->parts;
    struct dot *d = c->d;
    struct kernel *k = d->w->k;
    val acc[MAX_SUMS], zero = k_int(k, 0);
    const bool end = p && !p->to;
    dot_begin_columns(d, t->columns);
    val first = p && !end ? k_prim(k, P_EQ, p->here, p->first, 0) : zero;
    for (int64_t i = 0; i < mr * n; i++) {
        acc[i] = k_splat(k, k_bits(k, d->dtype, 0));
        if (p) {
            val before = k_load(k, end && p->sums ? p->sums : p->chains, sum_index(c, t, matrix, i), 0);
            acc[i] = end ? before : k_prim(k, P_SELECT, first, acc[i], before);
        }
    }
    if (!end)
        add_lines_of_part(c, t, mr, n, acc);
    d->batch_index = ix_add(k, ix_scale(k, c->batch, c->z->columns), ix_add(k, t->column, d->w->lane));
    for (int64_t i = 0; i < mr * n; i++)
        if (p && !end)
            k_store(k, p->chains, sum_index(c, t, matrix, i), acc[i], 0);
        else
            dot_epilogue(d, ix_add(k, c->m0, k_int(k, i / n)), ix_add(k, c->n0, k_int(k, i % n)), acc[i]);
    dot_end_columns(d);
}

/* emit_lines for all columns of the `count` matrices of the batch from `first` on. */
static void emit_matrices(struct direct *c, val first, int64_t count, int64_t mr, int64_t n)
{
    struct kernel *k = c->d->w->k;
    val matrix = count > 1 ? k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, count), 1) : 0;
    val number = matrix ? matrix : k_int(k, 0);
    c->batch = ix_add(k, first, number);
    for (unsigned x = 0; x < c->nalong; x++) {
        struct direct_tile t = {.columns = c->along[x].length};
        val along;
        t.column = direct_open_segment(k, &c->along[x], c->d->nr, 0, 0, &along);
        emit_lines(c, &t, number, mr, n);
        direct_close_segment(k, along);
    }
    direct_close_segment(k, matrix);
}

/* Adds the chains of k-block `block` to the sums of those before. */
static void add_chains(const struct direct *c, val block, int64_t matrices)
{
    const struct direct_parts *p = c->parts;
    const int64_t nr = c->d->nr, count = matrices * dot_parts(c->z->columns, nr) * p->each;
    struct kernel *k = c->d->w->k;
    val lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, nr), 1);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, count), 1), at = ix_add(k, ix_scale(k, i, nr), lane);
    val chain = k_load(k, p->chains, at, 0), sum = k_prim(k, P_ADD, k_load(k, p->sums, at, 0), chain, 0);
    k_store(k, p->sums, at, k_prim(k, P_SELECT, k_prim(k, P_EQ, block, k_int(k, 0), 0), chain, sum), 0);
    k_end(k, i);
    k_end(k, lane);
}

/* The sums of `matrices` matrices, some lines at a time: what these have for all matrices is adjacent in memory, and
 * stays in a near cache for all columns. */
static void emit_parts(struct direct *c, val matrix, int64_t matrices, int64_t mr, int64_t n)
{
    struct dot *d = c->d;
    struct kernel *k = d->w->k;
    struct direct_parts *p = c->parts;
    const int64_t lines = p->lines;
    val blocks = k_int(k, d->blocks), length = k_int(k, d->kblock), all = ix_size(k, d->len.k), block = 0;
    val from = k_int(k, 0), to = all;
    if (d->blocks > 1) {
        if (d->symbolic_k)
            dot_symbolic_blocks(d, &blocks, &length);
        block = k_loop(k, LOOP_SERIAL, from, blocks, 1);
        from = ix_mul(k, block, length);
        to = k_min(k, ix_add(k, from, length), all);
        ix_assume_range(k, from, 0, d->size.k);
        ix_assume_range(k, to, 0, d->size.k);
    }
    p->first = ix_div(k, from, lines);
    /* there is a part even where there are no images: it sets the chains to 0 */
    val end = k_max(k, ix_div(k, ix_add(k, to, k_int(k, lines - 1)), lines), ix_add(k, p->first, k_int(k, 1)));
    p->here = k_loop(k, LOOP_SERIAL, p->first, end, 1);
    ix_bound(k, p->here, 0, dot_parts(d->size.k, lines) - 1);
    p->from = k_max(k, from, ix_scale(k, p->here, lines));
    p->to = k_min(k, to, ix_scale(k, ix_add(k, p->here, k_int(k, 1)), lines));
    ix_assume_range(k, p->from, 0, d->size.k);
    ix_assume_range(k, p->to, 0, d->size.k);
    emit_matrices(c, matrix, matrices, mr, n);
    k_end(k, p->here);
    if (block) {
        add_chains(c, block, matrices);
        k_end(k, block);
    }
    p->to = 0;
    emit_matrices(c, matrix, matrices, mr, n);
}

void direct_begin_parts(struct direct *c, struct direct_parts *p, const struct schedule *s, int64_t elements)
{
    const struct dot *d = c->d;
    const int64_t rows = c->z->rows;
    struct kernel *k = d->w->k;
    *p = (struct direct_parts){.each = d->mr * elements, .lines = s->dot_direct.lines};
    p->whole = p->lines % rows == 0 && (d->blocks == 1 || (!d->symbolic_k && d->kblock % rows == 0));
    const int64_t count = s->dot_direct.tiles * dot_parts(c->z->columns, d->nr) * p->each * d->nr;
    p->chains = k_buf(k, BUF_SCRATCH, d->dtype, count, 0);
    if (d->blocks > 1)
        p->sums = k_buf(k, BUF_SCRATCH, d->dtype, count, 0);
    c->parts = p;
}

void direct_emit_sums(struct direct *c, val matrix, int64_t matrices, int64_t mr, int64_t n)
{
    if (c->parts)
        emit_parts(c, matrix, matrices, mr, n);
    else
        emit_matrices(c, matrix, matrices, mr, n);
}
