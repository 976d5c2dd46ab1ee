/* Sparse: matrices in coordinates or rows.  Products are gathers, multiplications with the values and sums by index,
 * which fuse into one kernel; linear ops work on the values; other ops densify. */
#include "wrapper.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { COO, CSR };

/* A sparse matrix in coordinates, independent of its storage. */
struct sparse {
    struct view v;               /* the matrix */
    int64_t bound;
    kl_tensor values, index[2];  /* row and column of each */
};

static kl_tensor sparse_make(struct thread *t, const kl_site *site, const struct sparse *x)
{
    const int64_t number[WRAPPER_NUMBERS] = {COO};
    return wrap(t, site, &layer_sparse, &x->v, 3, (kl_tensor[]){x->values, x->index[0], x->index[1]}, number);
}

/* The same matrix with other values, which may be of another dtype. */
static kl_tensor with_values(struct thread *t, const kl_site *site, kl_tensor h, kl_tensor values)
{
    const struct wrapper *w = wrapper_of(h, &layer_sparse);
    struct view v = view_of(h);
    v.dtype = view_of(values).dtype;
    return wrap(t, site, &layer_sparse, &v, 3, (kl_tensor[]){values, w->part[1], w->part[2]}, w->number);
}

static kl_tensor sparse_zeros(const kl_site *site, const struct view *like, uint32_t rank, const int64_t *dims)
{
    static const struct shape scalar;
    struct shape s = shape_make(rank, dims);
    return broadcast_to(site, "sparse", const_like(site, like, 0), &scalar, &s);
}

/* The row of each element: the number of rows, except the first, that have started up to its position. */
static kl_tensor rows_of_starts(const kl_site *s, kl_tensor starts, int64_t rows, int64_t bound)
{
    struct view v = view_of(starts);
    int64_t counts = bound + 1; /* rows may start after the last element */
    kl_tensor later = kl_narrow_at(s, starts, 0, 1, rows > 0 ? rows - 1 : 0);
    kl_tensor one = broadcast_to(s, "sparse", const_like(s, &v, 1), &(struct shape){0},
                                 &(struct shape){.rank = 1, .dim = {rows > 0 ? rows - 1 : 0}});
    kl_tensor begun = kl_index_add_at(s, sparse_zeros(s, &v, 1, &counts), 0, later, one);
    return kl_narrow_at(s, kl_cumsum_at(s, begun, 0, false, false), 0, 0, bound);
}

static struct sparse sparse_of(const kl_site *site, kl_tensor h)
{
    const struct wrapper *w = wrapper_of(h, &layer_sparse);
    struct sparse x = {.v = view_of(h), .bound = view_of(w->part[0]).shape.dim[0], .values = w->part[0],
                       .index = {w->part[1], w->part[2]}};
    if (w->number[0] == CSR)
        x.index[0] = rows_of_starts(site, w->part[1], x.v.shape.dim[0], x.bound);
    return x;
}

/* The position of each element in the matrix, row-major. */
static kl_tensor sparse_flat_indices(const kl_site *s, const struct sparse *x)
{
    const struct view wide = {.dtype = shape_count(&x->v.shape) > INT32_MAX ? KL_I64 : KL_I32, .device = x->v.device};
    kl_tensor row = kl_cast_at(s, x->index[0], (kl_dtype)wide.dtype),
        column = kl_cast_at(s, x->index[1], (kl_dtype)wide.dtype);
    return kl_add_at(s, kl_mul_at(s, row, const_like(s, &wide, (double)x->v.shape.dim[1])), column);
}

/* A plain matrix plus the elements. */
static kl_tensor sparse_add_to(const kl_site *s, const struct sparse *x, kl_tensor matrix)
{
    struct shape flat = {.rank = 1, .dim = {shape_count(&x->v.shape)}};
    kl_tensor sum = kl_index_add_at(s, reshape_to(s, "sparse", matrix, &flat), 0, sparse_flat_indices(s, x), x->values);
    return reshape_to(s, "sparse", sum, &x->v.shape);
}

static kl_tensor sparse_dense(struct thread *t, const kl_site *site, kl_tensor h)
{
    (void)t;
    struct sparse x = sparse_of(site, h);
    return sparse_add_to(site, &x, sparse_zeros(site, &x.v, 2, x.v.shape.dim));
}

static kl_tensor sparse_densify(struct thread *t, const struct call *c)
{
    if (t->watch)
        dispatch_note(t, &graph_ops[c->proto.op], (kl_key)key_at[LAYER_Sparse][top_device(device_keys(view_of(
                      c->in[wrapper_of(c->in[0], &layer_sparse) ? 0 : wrapper_of(c->in[1], &layer_sparse) ? 1
                            : 2]).device))], "densify");
    return call_dense(t, c, &layer_sparse);
}

/* ---- products ---- */

/* The rows of a plain tensor at the index of each element: [bound, rest]. */
static kl_tensor gather_rows(const kl_site *s, kl_tensor x, const struct shape *shape, uint32_t axis, kl_tensor index)
{
    int order[KL_MAX_RANK] = {(int)axis};
    for (uint32_t i = 0, k = 1; i < shape->rank; i++)
        if (i != axis)
            order[k++] = (int)i;
    return kl_take_at(s, axis ? kl_permute_at(s, x, order) : x, 0, index);
}

/* The values broadcast to `rest` elements. */
static kl_tensor values_beside(const kl_site *s, const struct sparse *x, uint32_t rest)
{
    struct shape one = {.rank = rest + 1, .dim = {x->bound}};
    for (uint32_t i = 1; i <= rest; i++)
        one.dim[i] = 1;
    return reshape_to(s, "sparse", x->values, &one);
}

static kl_tensor sparse_product(struct thread *t, const struct call *c)
{
    const kl_site *s = c->site;
    bool right = !wrapper_of(c->in[0], &layer_sparse);
    if (c->proto.attr.dot.nbatch || c->proto.attr.dot.ncon != 1)
        return sparse_densify(t, c);
    kl_tensor other = c->in[!right];
    if (wrapper_of(other, &layer_sparse))
        other = sparse_dense(t, s, other);
    struct sparse x = sparse_of(s, c->in[right]);
    struct view d = view_of(other);
    uint32_t con = axis_get(right ? c->proto.attr.dot.con_b : c->proto.attr.dot.con_a, 0);
    uint32_t at = axis_get(right ? c->proto.attr.dot.con_a : c->proto.attr.dot.con_b, 0);
    if (at >= d.shape.rank || con > 1 || d.shape.dim[at] != x.v.shape.dim[con] || d.dtype != x.v.dtype)
        return sparse_densify(t, c); /* the plain op reports the error */
    kl_tensor rows = kl_mul_at(s, gather_rows(s, other, &d.shape, at, x.index[con]),
                               values_beside(s, &x, d.shape.rank - 1));
    int64_t dims[KL_MAX_RANK] = {x.v.shape.dim[!con]};
    for (uint32_t i = 0, k = 1; i < d.shape.rank; i++)
        if (i != at)
            dims[k++] = d.shape.dim[i];
    kl_tensor sum = kl_index_add_at(s, sparse_zeros(s, &x.v, d.shape.rank, dims), 0, x.index[!con], rows);
    if (!right)
        return sum;
    int last[KL_MAX_RANK]; /* the matrix's axis follows the other's */
    for (uint32_t i = 0; i < d.shape.rank; i++)
        last[i] = (int)((i + 1) % d.shape.rank);
    return kl_permute_at(s, sum, last);
}

/* ---- elementwise ---- */

static kl_tensor sum_of_two(struct thread *t, const struct call *c)
{
    const kl_site *s = c->site;
    bool minus = c->proto.op == OP_sub;
    bool first = wrapper_of(c->in[0], &layer_sparse), second = wrapper_of(c->in[1], &layer_sparse);
    struct view a = view_of(c->in[0]), b = view_of(c->in[1]);
    if (!shape_equal(&a.shape, &b.shape) || a.dtype != b.dtype)
        return sparse_densify(t, c);
    struct sparse x = sparse_of(s, c->in[!first]);
    if (!second)
        return sparse_add_to(s, &x, minus ? kl_neg_at(s, c->in[1]) : c->in[1]);
    struct sparse y = first ? sparse_of(s, c->in[1]) : x;
    if (minus)
        y.values = kl_neg_at(s, y.values);
    if (!first)
        return sparse_add_to(s, &y, c->in[0]);
    struct sparse both = {.v = a, .values = kl_concat_at(s, 2, (kl_tensor[]){x.values, y.values}, 0)};
    for (unsigned i = 0; i < 2; i++) {
        kl_dtype wide = view_of(x.index[i]).dtype == KL_I64 || view_of(y.index[i]).dtype == KL_I64 ? KL_I64 : KL_I32;
        kl_tensor part[] = {kl_cast_at(s, x.index[i], wide), kl_cast_at(s, y.index[i], wide)};
        both.index[i] = kl_concat_at(s, 2, part, 0);
    }
    return sparse_make(t, s, &both);
}

/* Multiplies by a plain tensor, of which only the stored positions are read. */
static kl_tensor sparse_scaled(struct thread *t, const struct call *c)
{
    const kl_site *s = c->site;
    unsigned at = !wrapper_of(c->in[0], &layer_sparse);
    kl_tensor other = c->in[!at];
    if (wrapper_of(other, &layer_sparse))
        other = sparse_dense(t, s, other);
    struct view v = view_of(c->in[at]), d = view_of(other);
    struct shape all = v.shape, flat = {.rank = 1, .dim = {shape_count(&v.shape)}}, none = {0};
    bool number = shape_count(&d.shape) == 1 && d.shape.rank <= 2;
    if (d.dtype != v.dtype || !broadcast_shape(&all, &d.shape) || !shape_equal(&all, &v.shape) ||
        (c->proto.op == OP_div && (at || !number)))
        return sparse_densify(t, c);
    kl_tensor values = wrapper_of(c->in[at], &layer_sparse)->part[0];
    if (number)
        return with_values(t, s, c->in[at], call_with(c, values, reshape_to(s, c->op, other, &none), kl_none));
    struct sparse x = sparse_of(s, c->in[at]);
    if (!shape_equal(&d.shape, &all))
        other = broadcast_to(s, c->op, other, &d.shape, &all);
    kl_tensor there = kl_take_at(s, reshape_to(s, c->op, other, &flat), 0, sparse_flat_indices(s, &x));
    return with_values(t, s, c->in[at], kl_mul_at(s, values, there));
}

/* ---- the others ---- */

static kl_tensor sparse_sum(const struct call *c)
{
    const kl_site *s = c->site;
    struct sparse x = sparse_of(s, c->in[0]);
    uint32_t axes = c->proto.attr.reduce.axes & 3;
    struct shape kept = x.v.shape;
    for (unsigned i = 0; i < 2; i++)
        kept.dim[i] = axes >> i & 1 ? 1 : kept.dim[i];
    kl_tensor y;
    if (axes == 3) {
        y = kl_sum_all_at(s, x.values);
    } else {
        unsigned left = axes == 1;
        y = kl_index_add_at(s, sparse_zeros(s, &x.v, 1, &x.v.shape.dim[left]), 0, x.index[left], x.values);
    }
    return reshape_to(s, c->op, y, &kept);
}

static kl_tensor sparse_transpose(struct thread *t, const struct call *c)
{
    struct sparse x = sparse_of(c->site, c->in[0]), y = x;
    bool swap = c->proto.attr.permute.perm[0] == 1;
    for (unsigned i = 0; i < 2 && swap; i++) {
        y.index[i] = x.index[!i];
        y.v.shape.dim[i] = x.v.shape.dim[!i];
    }
    return sparse_make(t, c->site, &y);
}

static kl_tensor call_sparse(struct thread *t, const struct call *c)
{
    const struct wrapper *w = wrapper_of(c->in[0], &layer_sparse);
    struct view v;
    if (op_is_product(c->proto.op))
        return sparse_product(t, c);
    switch (c->proto.op) {
    case OP_add: case OP_sub: return sum_of_two(t, c);
    case OP_mul: case OP_div: return sparse_scaled(t, c);
    case OP_neg: case OP_cast: return with_values(t, c->site, c->in[0], call_with(c, w->part[0], kl_none, kl_none));
    case OP_permute: return sparse_transpose(t, c);
    case OP_sum:
        return c->proto.attr.reduce.axes ? sparse_sum(c) : sparse_densify(t, c);
    case OP_reshape: /* of the same shape: kl_detach */
        v = view_of(c->in[0]);
        if (shape_equal(&v.shape, &c->target)) {
            struct call same = *c;
            same.target = view_of(w->part[0]).shape;
            return with_values(t, c->site, c->in[0], call_with(&same, w->part[0], kl_none, kl_none));
        }
        return sparse_densify(t, c);
    default: return sparse_densify(t, c);
    }
}

const struct layer layer_sparse = {.name = "sparse", .key = LAYER_Sparse, .grad_parts = 1, .call = call_sparse,
                                   .dense = sparse_dense};

/* ---- making them ---- */

/* A part as a plain vector; false: reported. */
static bool sparse_check_vector(struct thread *t, const kl_site *site, const char *op, const char *what, kl_tensor h,
                                int64_t length,
                   bool index)
{
    struct view v;
    char text[SHAPE_TEXT];
    if (!describe(t, site, op, what, h, &v))
        return false;
    if (wrapper_of(h, NULL))
        return fail(t, site, KL_ERR_TYPE, "%s: %s is a plain tensor, not a %s one", op, what,
                    kl_layer_name(h)) == KL_OK;
    if (v.shape.rank != 1 || (length >= 0 && v.shape.dim[0] != length))
        return fail(t, site, KL_ERR_SHAPE, "%s: %s has shape %s, not [%s]", op, what,
                    shape_text(&v.shape, text, sizeof text),
                    length >= 0 ? "as many as there are values" : "n") == KL_OK;
    if (index ? v.dtype != KL_I32 && v.dtype != KL_I64 : v.dtype == KL_BOOL)
        return fail(t, site, KL_ERR_TYPE, "%s: %s is %s, not %s", op, what, dtype_name(v.dtype),
                    index ? "i32 or i64" : "a number") == KL_OK;
    return true;
}

static bool matrix_fits(struct thread *t, const kl_site *site, const char *op, int64_t rows, int64_t columns)
{
    const int64_t dims[] = {rows, columns};
    struct shape s;
    return shape_of(t, site, op, 2, dims, &s);
}

kl_tensor kl_sparse_coo_at(const kl_site *site, kl_tensor values, kl_tensor rows, kl_tensor columns, int64_t nrows,
                           int64_t ncolumns)
{
    struct thread *t = checked_begin(site, "sparse_coo");
    if (!t)
        return op_failed();
    if (!sparse_check_vector(t, site, "sparse_coo", "the values", values, -1, false) ||
        !matrix_fits(t, site, "sparse_coo", nrows, ncolumns))
        return compose_end(t, poison(t));
    struct view v = view_of(values);
    int64_t bound = v.shape.dim[0];
    if (!sparse_check_vector(t, site, "sparse_coo", "the rows", rows, bound, true) ||
        !sparse_check_vector(t, site, "sparse_coo", "the columns", columns, bound, true))
        return compose_end(t, poison(t));
    kl_tensor index[] = {rows, columns};
    const int64_t dims[] = {nrows, ncolumns};
    for (unsigned i = 0; i < 2; i++) { /* clamped once, so that every op uses the same positions */
        struct view n = view_of(index[i]);
        kl_tensor last = const_like(site, &n, (double)(dims[i] ? dims[i] - 1 : 0));
        index[i] = kl_maximum_at(site, kl_minimum_at(site, index[i], last), const_like(site, &n, 0));
    }
    struct sparse x = {.v = {v.dtype, shape_make(2, dims), v.device}, .bound = bound, .values = values,
                       .index = {index[0], index[1]}};
    return compose_end(t, sparse_make(t, site, &x));
}

static kl_tensor make_csr(struct thread *t, const kl_site *site, kl_tensor values, kl_tensor starts, kl_tensor columns,
                          int64_t ncolumns)
{
    struct view v = view_of(values), n = view_of(columns);
    int64_t bound = v.shape.dim[0], rows = view_of(starts).shape.dim[0] - 1;
    const int64_t number[WRAPPER_NUMBERS] = {CSR};
    kl_tensor last = const_like(site, &n, (double)(ncolumns ? ncolumns - 1 : 0));
    columns = kl_maximum_at(site, kl_minimum_at(site, columns, last), const_like(site, &n, 0));
    kl_tensor counts = kl_lt_at(site, kl_arange_at(site, v.device, (kl_dtype)view_of(starts).dtype, bound),
                                kl_narrow_at(site, starts, 0, rows, 1));
    values = kl_where_at(site, counts, values, const_like(site, &v, 0));
    struct view m = {v.dtype, shape_make(2, (int64_t[]){rows, ncolumns}), v.device};
    return wrap(t, site, &layer_sparse, &m, 3, (kl_tensor[]){values, starts, columns}, number);
}

kl_tensor kl_sparse_csr_at(const kl_site *site, kl_tensor values, kl_tensor starts, kl_tensor columns, int64_t ncolumns)
{
    struct thread *t = checked_begin(site, "sparse_csr");
    if (!t)
        return op_failed();
    if (!sparse_check_vector(t, site, "sparse_csr", "the values", values, -1, false) ||
        !sparse_check_vector(t, site, "sparse_csr", "the starts", starts, -1, true) ||
        !sparse_check_vector(t, site, "sparse_csr", "the columns", columns, view_of(values).shape.dim[0], true))
        return compose_end(t, poison(t));
    int64_t rows = view_of(starts).shape.dim[0] - 1;
    if (rows < 0)
        return compose_end(t,
                           refuse(t, site, KL_ERR_SHAPE,
                                  "sparse_csr: the starts are one more than the rows, not none"));
    if (!matrix_fits(t, site, "sparse_csr", rows, ncolumns))
        return compose_end(t, poison(t));
    return compose_end(t, make_csr(t, site, values, starts, columns, ncolumns));
}

kl_tensor kl_to_sparse_at(const kl_site *site, kl_tensor a, int64_t bound)
{
    struct view v;
    struct thread *t = floats_begin(site, "to_sparse", a, &v);
    char text[SHAPE_TEXT];
    if (!t)
        return op_failed();
    int64_t count = shape_count(&v.shape);
    if (v.shape.rank != 2 || count > INT32_MAX)
        return compose_end(t,
                           refuse(t, site, KL_ERR_SHAPE, "to_sparse: needs a matrix of up to 2^31 - 1 elements, got %s",
                                     shape_text(&v.shape, text, sizeof text)));
    if (bound < 0 || bound > count)
        return compose_end(t, refuse(t, site, KL_ERR_ARGUMENT,
                                     "to_sparse: a bound of %" PRId64 " for %" PRId64 " elements", bound, count));
    if (wrapper_of(a, NULL))
        a = kl_dense_at(site, a);
    const struct view index = {.dtype = KL_I32, .device = v.device};
    const struct shape flat = {.rank = 1, .dim = {count}}, none = {0}, all = {.rank = 1, .dim = {bound}};
    const int row = 1;
    kl_tensor x = reshape_to(site, "to_sparse", a, &flat), there = kl_ne_at(site, a, const_like(site, &v, 0));
    kl_tensor order = kl_argsort_at(site, reshape_to(site, "to_sparse", kl_cast_at(site, there, KL_U8), &flat), 0,
                                    true);
    kl_tensor place = kl_narrow_at(site, order, 0, 0, bound), width = const_like(site, &index, (double)v.shape.dim[1]);
    kl_tensor in_row = kl_sum_at(site, kl_cast_at(site, there, KL_I32), 1, &row, false);
    kl_tensor first = broadcast_to(site, "to_sparse", const_like(site, &index, 0), &none,
                                   &(struct shape){.rank = 1, .dim = {1}});
    kl_tensor starts = kl_concat_at(site, 2, (kl_tensor[]){first, kl_cumsum_at(site, in_row, 0, false, false)}, 0);
    kl_tensor stored = kl_narrow_at(site, starts, 0, v.shape.dim[0], 1);
    kl_tensor too_many = broadcast_to(site, "to_sparse", kl_gt_at(site, stored,
                                                                  const_like(site, &index, (double)bound)),
                                      &(struct shape){.rank = 1, .dim = {1}}, &all);
    kl_tensor values = kl_where_at(site, too_many, const_like(site, &v, (double)NAN), kl_take_at(site, x, 0, place));
    return compose_end(t, make_csr(t, site, values, starts, kl_rem_at(site, place, width), v.shape.dim[1]));
}

kl_tensor kl_sampled_matmul_at(const kl_site *site, kl_tensor a, kl_tensor b, kl_tensor pattern)
{
    struct view va, vb, vp;
    struct thread *t = checked_begin(site, "sampled_matmul");
    char x[SHAPE_TEXT], y[SHAPE_TEXT], z[SHAPE_TEXT];
    if (!t)
        return op_failed();
    if (!describe(t, site, "sampled_matmul", "operand 1", a, &va) ||
        !describe(t, site, "sampled_matmul", "operand 2", b, &vb) ||
        !describe(t, site, "sampled_matmul", "the pattern", pattern, &vp))
        return compose_end(t, poison(t));
    if (!wrapper_of(pattern, &layer_sparse))
        return compose_end(t, refuse(t, site, KL_ERR_TYPE, "sampled_matmul: the pattern is a sparse tensor"));
    if (va.dtype != vp.dtype || vb.dtype != vp.dtype)
        return compose_end(t, refuse(t, site, KL_ERR_TYPE, "sampled_matmul: dtypes %s, %s and %s differ",
                                     dtype_name(va.dtype),
                                     dtype_name(vb.dtype), dtype_name(vp.dtype)));
    if (va.shape.rank != 2 || vb.shape.rank != 2 || va.shape.dim[1] != vb.shape.dim[0] ||
        va.shape.dim[0] != vp.shape.dim[0] ||
        vb.shape.dim[1] != vp.shape.dim[1])
        return compose_end(t, refuse(t, site, KL_ERR_SHAPE, "sampled_matmul: shapes %s, %s and %s do not fit",
                                     shape_text(&va.shape, x, sizeof x), shape_text(&vb.shape, y, sizeof y),
                                     shape_text(&vp.shape, z, sizeof z)));
    struct sparse p = sparse_of(site, pattern);
    const int one = 1;
    kl_tensor rows = kl_take_at(site, a, 0, p.index[0]), columns = gather_rows(site, b, &vb.shape, 1, p.index[1]);
    kl_tensor products = kl_sum_at(site, kl_mul_at(site, rows, columns), 1, &one, false);
    kl_tensor zero = const_like(site, &vp, 0), values = kl_where_at(site, kl_ne_at(site, p.values, zero), products,
                                                                    zero);
    return compose_end(t, with_values(t, site, pattern, values));
}
