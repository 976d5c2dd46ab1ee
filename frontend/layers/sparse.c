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

static kl_tensor sparse_make(struct thread *t, const struct sparse *x)
{
    const int64_t number[WRAPPER_NUMBERS] = {COO};
    return wrap(t, &layer_sparse, &x->v, 3, (kl_tensor[]){x->values, x->index[0], x->index[1]}, number);
}

/* The same matrix with other values, which may be of another dtype. */
static kl_tensor with_values(struct thread *t, kl_tensor h, kl_tensor values)
{
    const struct wrapper *w = wrapper_of(h, &layer_sparse);
    struct view v = view_of(h);
    v.dtype = view_of(values).dtype;
    return wrap(t, &layer_sparse, &v, 3, (kl_tensor[]){values, w->part[1], w->part[2]}, w->number);
}

static kl_tensor sparse_zeros(const struct view *like, uint32_t rank, const int64_t *dims)
{
    static const struct shape scalar;
    struct shape s = shape_make(rank, dims);
    return broadcast_to("sparse", const_like(like, 0), &scalar, &s);
}

/* The row of each element: the number of rows, except the first, that have started up to its position. */
static kl_tensor rows_of_starts(kl_tensor starts, int64_t rows, int64_t bound)
{
    struct view v = view_of(starts);
    int64_t counts = bound + 1; /* rows may start after the last element */
    kl_tensor later = kl_narrow(starts, 0, 1, rows > 0 ? rows - 1 : 0);
    kl_tensor one = broadcast_to("sparse", const_like(&v, 1), &(struct shape){0},
                                 &(struct shape){.rank = 1, .dim = {rows > 0 ? rows - 1 : 0}});
    kl_tensor begun = kl_index_add(sparse_zeros(&v, 1, &counts), 0, later, one);
    return kl_narrow(kl_cumsum(begun, 0, false, false), 0, 0, bound);
}

static struct sparse sparse_of(kl_tensor h)
{
    const struct wrapper *w = wrapper_of(h, &layer_sparse);
    struct sparse x = {.v = view_of(h), .bound = view_of(w->part[0]).shape.dim[0], .values = w->part[0],
                       .index = {w->part[1], w->part[2]}};
    if (w->number[0] == CSR)
        x.index[0] = rows_of_starts(w->part[1], x.v.shape.dim[0], x.bound);
    return x;
}

/* The position of each element in the matrix, row-major. */
static kl_tensor sparse_flat_indices(const struct sparse *x)
{
    const struct view wide = {.dtype = shape_count(&x->v.shape) > INT32_MAX ? KL_I64 : KL_I32, .device = x->v.device};
    kl_tensor row = kl_cast(x->index[0], (kl_dtype)wide.dtype),
        column = kl_cast(x->index[1], (kl_dtype)wide.dtype);
    return kl_add(kl_mul(row, const_like(&wide, (double)x->v.shape.dim[1])), column);
}

/* A plain matrix plus the elements. */
static kl_tensor sparse_add_to(const struct sparse *x, kl_tensor matrix)
{
    struct shape flat = {.rank = 1, .dim = {shape_count(&x->v.shape)}};
    kl_tensor sum = kl_index_add(reshape_to("sparse", matrix, &flat), 0, sparse_flat_indices(x), x->values);
    return reshape_to("sparse", sum, &x->v.shape);
}

static kl_tensor sparse_dense(struct thread *t, kl_tensor h)
{
    (void)t;
    struct sparse x = sparse_of(h);
    return sparse_add_to(&x, sparse_zeros(&x.v, 2, x.v.shape.dim));
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
static kl_tensor gather_rows(kl_tensor x, const struct shape *shape, uint32_t axis, kl_tensor index)
{
    int order[KL_MAX_RANK] = {(int)axis};
    for (uint32_t i = 0, k = 1; i < shape->rank; i++)
        if (i != axis)
            order[k++] = (int)i;
    return kl_take(axis ? kl_permute(x, order) : x, 0, index);
}

/* The values broadcast to `rest` elements. */
static kl_tensor values_beside(const struct sparse *x, uint32_t rest)
{
    struct shape one = {.rank = rest + 1, .dim = {x->bound}};
    for (uint32_t i = 1; i <= rest; i++)
        one.dim[i] = 1;
    return reshape_to("sparse", x->values, &one);
}

static kl_tensor sparse_product(struct thread *t, const struct call *c)
{
    bool right = !wrapper_of(c->in[0], &layer_sparse);
    if (c->proto.attr.dot.nbatch || c->proto.attr.dot.ncon != 1)
        return sparse_densify(t, c);
    kl_tensor other = c->in[!right];
    if (wrapper_of(other, &layer_sparse))
        other = sparse_dense(t, other);
    struct sparse x = sparse_of(c->in[right]);
    struct view d = view_of(other);
    uint32_t con = axis_get(right ? c->proto.attr.dot.con_b : c->proto.attr.dot.con_a, 0);
    uint32_t at = axis_get(right ? c->proto.attr.dot.con_a : c->proto.attr.dot.con_b, 0);
    if (at >= d.shape.rank || con > 1 || d.shape.dim[at] != x.v.shape.dim[con] || d.dtype != x.v.dtype)
        return sparse_densify(t, c); /* the plain op reports the error */
    kl_tensor rows = kl_mul(gather_rows(other, &d.shape, at, x.index[con]), values_beside(&x, d.shape.rank - 1));
    int64_t dims[KL_MAX_RANK] = {x.v.shape.dim[!con]};
    for (uint32_t i = 0, k = 1; i < d.shape.rank; i++)
        if (i != at)
            dims[k++] = d.shape.dim[i];
    kl_tensor sum = kl_index_add(sparse_zeros(&x.v, d.shape.rank, dims), 0, x.index[!con], rows);
    if (!right)
        return sum;
    int last[KL_MAX_RANK]; /* the matrix's axis follows the other's */
    for (uint32_t i = 0; i < d.shape.rank; i++)
        last[i] = (int)((i + 1) % d.shape.rank);
    return kl_permute(sum, last);
}

/* ---- elementwise ---- */

static kl_tensor sum_of_two(struct thread *t, const struct call *c)
{
    bool minus = c->proto.op == OP_sub;
    bool first = wrapper_of(c->in[0], &layer_sparse), second = wrapper_of(c->in[1], &layer_sparse);
    struct view a = view_of(c->in[0]), b = view_of(c->in[1]);
    if (!shape_equal(&a.shape, &b.shape) || a.dtype != b.dtype)
        return sparse_densify(t, c);
    struct sparse x = sparse_of(c->in[!first]);
    if (!second)
        return sparse_add_to(&x, minus ? kl_neg(c->in[1]) : c->in[1]);
    struct sparse y = first ? sparse_of(c->in[1]) : x;
    if (minus)
        y.values = kl_neg(y.values);
    if (!first)
        return sparse_add_to(&y, c->in[0]);
    struct sparse both = {.v = a, .values = kl_concat(2, (kl_tensor[]){x.values, y.values}, 0)};
    for (unsigned i = 0; i < 2; i++) {
        kl_dtype wide = view_of(x.index[i]).dtype == KL_I64 || view_of(y.index[i]).dtype == KL_I64 ? KL_I64 : KL_I32;
        kl_tensor part[] = {kl_cast(x.index[i], wide), kl_cast(y.index[i], wide)};
        both.index[i] = kl_concat(2, part, 0);
    }
    return sparse_make(t, &both);
}

/* Multiplies by a plain tensor, of which only the stored positions are read. */
static kl_tensor sparse_scaled(struct thread *t, const struct call *c)
{
    unsigned at = !wrapper_of(c->in[0], &layer_sparse);
    kl_tensor other = c->in[!at];
    if (wrapper_of(other, &layer_sparse))
        other = sparse_dense(t, other);
    struct view v = view_of(c->in[at]), d = view_of(other);
    struct shape all = v.shape, flat = {.rank = 1, .dim = {shape_count(&v.shape)}}, none = {0};
    bool number = shape_count(&d.shape) == 1 && d.shape.rank <= 2;
    if (d.dtype != v.dtype || !broadcast_shape(&all, &d.shape) || !shape_equal(&all, &v.shape) ||
        (c->proto.op == OP_div && (at || !number)))
        return sparse_densify(t, c);
    kl_tensor values = wrapper_of(c->in[at], &layer_sparse)->part[0];
    if (number)
        return with_values(t, c->in[at], call_with(c, values, reshape_to(c->op, other, &none), kl_none));
    struct sparse x = sparse_of(c->in[at]);
    if (!shape_equal(&d.shape, &all))
        other = broadcast_to(c->op, other, &d.shape, &all);
    kl_tensor there = kl_take(reshape_to(c->op, other, &flat), 0, sparse_flat_indices(&x));
    return with_values(t, c->in[at], kl_mul(values, there));
}

/* ---- the others ---- */

static kl_tensor sparse_sum(const struct call *c)
{
    struct sparse x = sparse_of(c->in[0]);
    uint32_t axes = c->proto.attr.reduce.axes & 3;
    struct shape kept = x.v.shape;
    for (unsigned i = 0; i < 2; i++)
        kept.dim[i] = axes >> i & 1 ? 1 : kept.dim[i];
    kl_tensor y;
    if (axes == 3) {
        y = kl_sum_all(x.values);
    } else {
        unsigned left = axes == 1;
        y = kl_index_add(sparse_zeros(&x.v, 1, &x.v.shape.dim[left]), 0, x.index[left], x.values);
    }
    return reshape_to(c->op, y, &kept);
}

static kl_tensor sparse_transpose(struct thread *t, const struct call *c)
{
    struct sparse x = sparse_of(c->in[0]), y = x;
    bool swap = c->proto.attr.permute.perm[0] == 1;
    for (unsigned i = 0; i < 2 && swap; i++) {
        y.index[i] = x.index[!i];
        y.v.shape.dim[i] = x.v.shape.dim[!i];
    }
    return sparse_make(t, &y);
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
    case OP_neg: case OP_cast: return with_values(t, c->in[0], call_with(c, w->part[0], kl_none, kl_none));
    case OP_permute: return sparse_transpose(t, c);
    case OP_sum:
        return c->proto.attr.reduce.axes ? sparse_sum(c) : sparse_densify(t, c);
    case OP_reshape: /* of the same shape: kl_detach */
        v = view_of(c->in[0]);
        if (shape_equal(&v.shape, &c->target)) {
            struct call same = *c;
            same.target = view_of(w->part[0]).shape;
            return with_values(t, c->in[0], call_with(&same, w->part[0], kl_none, kl_none));
        }
        return sparse_densify(t, c);
    default: return sparse_densify(t, c);
    }
}

const struct layer layer_sparse = {.name = "sparse", .key = LAYER_Sparse, .grad_parts = 1, .call = call_sparse,
                                   .dense = sparse_dense};

/* ---- making them ---- */

/* A part as a plain vector; false: reported. */
static bool sparse_check_vector(struct thread *t, const char *op, const char *what, kl_tensor h, int64_t length,
                   bool index)
{
    struct view v;
    char text[SHAPE_TEXT];
    if (!describe(t, op, what, h, &v))
        return false;
    if (wrapper_of(h, NULL))
        return fail(t, KL_ERR_TYPE, "%s: %s is a plain tensor, not a %s one", op, what, kl_layer_name(h)) == KL_OK;
    if (v.shape.rank != 1 || (length >= 0 && v.shape.dim[0] != length))
        return fail(t, KL_ERR_SHAPE, "%s: %s has shape %s, not [%s]", op, what, shape_text(&v.shape, text, sizeof text),
                    length >= 0 ? "as many as there are values" : "n") == KL_OK;
    if (index ? v.dtype != KL_I32 && v.dtype != KL_I64 : v.dtype == KL_BOOL)
        return fail(t, KL_ERR_TYPE, "%s: %s is %s, not %s", op, what, dtype_name(v.dtype),
                    index ? "i32 or i64" : "a number") == KL_OK;
    return true;
}

static bool matrix_fits(struct thread *t, const char *op, int64_t rows, int64_t columns)
{
    const int64_t dims[] = {rows, columns};
    struct shape s;
    return shape_of(t, op, 2, dims, &s);
}

kl_tensor kl_sparse_coo(kl_tensor values, kl_tensor rows, kl_tensor columns, int64_t nrows, int64_t ncolumns)
{
    struct thread *t = checked_begin("sparse_coo");
    if (!t)
        return op_failed();
    if (!sparse_check_vector(t, "sparse_coo", "the values", values, -1, false) ||
        !matrix_fits(t, "sparse_coo", nrows, ncolumns))
        return compose_end(t, poison(t));
    struct view v = view_of(values);
    int64_t bound = v.shape.dim[0];
    if (!sparse_check_vector(t, "sparse_coo", "the rows", rows, bound, true) ||
        !sparse_check_vector(t, "sparse_coo", "the columns", columns, bound, true))
        return compose_end(t, poison(t));
    kl_tensor index[] = {rows, columns};
    const int64_t dims[] = {nrows, ncolumns};
    for (unsigned i = 0; i < 2; i++) { /* clamped once, so that every op uses the same positions */
        struct view n = view_of(index[i]);
        kl_tensor last = const_like(&n, (double)(dims[i] ? dims[i] - 1 : 0));
        index[i] = kl_maximum(kl_minimum(index[i], last), const_like(&n, 0));
    }
    struct sparse x = {.v = {v.dtype, shape_make(2, dims), v.device}, .bound = bound, .values = values,
                       .index = {index[0], index[1]}};
    return compose_end(t, sparse_make(t, &x));
}

static kl_tensor make_csr(struct thread *t, kl_tensor values, kl_tensor starts, kl_tensor columns, int64_t ncolumns)
{
    struct view v = view_of(values), n = view_of(columns);
    int64_t bound = v.shape.dim[0], rows = view_of(starts).shape.dim[0] - 1;
    const int64_t number[WRAPPER_NUMBERS] = {CSR};
    kl_tensor last = const_like(&n, (double)(ncolumns ? ncolumns - 1 : 0));
    columns = kl_maximum(kl_minimum(columns, last), const_like(&n, 0));
    kl_tensor counts = kl_lt(kl_arange(v.device, (kl_dtype)view_of(starts).dtype, bound),
                             kl_narrow(starts, 0, rows, 1));
    values = kl_where(counts, values, const_like(&v, 0));
    struct view m = {v.dtype, shape_make(2, (int64_t[]){rows, ncolumns}), v.device};
    return wrap(t, &layer_sparse, &m, 3, (kl_tensor[]){values, starts, columns}, number);
}

kl_tensor kl_sparse_csr(kl_tensor values, kl_tensor starts, kl_tensor columns, int64_t ncolumns)
{
    struct thread *t = checked_begin("sparse_csr");
    if (!t)
        return op_failed();
    if (!sparse_check_vector(t, "sparse_csr", "the values", values, -1, false) ||
        !sparse_check_vector(t, "sparse_csr", "the starts", starts, -1, true) ||
        !sparse_check_vector(t, "sparse_csr", "the columns", columns, view_of(values).shape.dim[0], true))
        return compose_end(t, poison(t));
    int64_t rows = view_of(starts).shape.dim[0] - 1;
    if (rows < 0)
        return compose_end(t,
                           refuse(t, KL_ERR_SHAPE, "sparse_csr: the starts are one more than the rows, not none"));
    if (!matrix_fits(t, "sparse_csr", rows, ncolumns))
        return compose_end(t, poison(t));
    return compose_end(t, make_csr(t, values, starts, columns, ncolumns));
}

kl_tensor kl_to_sparse(kl_tensor a, int64_t bound)
{
    struct view v;
    struct thread *t = floats_begin("to_sparse", a, &v);
    char text[SHAPE_TEXT];
    if (!t)
        return op_failed();
    int64_t count = shape_count(&v.shape);
    if (v.shape.rank != 2 || count > INT32_MAX)
        return compose_end(t,
                           refuse(t, KL_ERR_SHAPE, "to_sparse: needs a matrix of up to 2^31 - 1 elements, got %s",
                                     shape_text(&v.shape, text, sizeof text)));
    if (bound < 0 || bound > count)
        return compose_end(t, refuse(t, KL_ERR_ARGUMENT,
                                     "to_sparse: a bound of %" PRId64 " for %" PRId64 " elements", bound, count));
    if (wrapper_of(a, NULL))
        a = kl_dense(a);
    const struct view index = {.dtype = KL_I32, .device = v.device};
    const struct shape flat = {.rank = 1, .dim = {count}}, none = {0}, all = {.rank = 1, .dim = {bound}};
    const int row = 1;
    kl_tensor x = reshape_to("to_sparse", a, &flat), there = kl_ne(a, const_like(&v, 0));
    kl_tensor order = kl_argsort(reshape_to("to_sparse", kl_cast(there, KL_U8), &flat), 0, true);
    kl_tensor place = kl_narrow(order, 0, 0, bound), width = const_like(&index, (double)v.shape.dim[1]);
    kl_tensor in_row = kl_sum(kl_cast(there, KL_I32), 1, &row, false);
    kl_tensor first = broadcast_to("to_sparse", const_like(&index, 0), &none, &(struct shape){.rank = 1, .dim = {1}});
    kl_tensor starts = kl_concat(2, (kl_tensor[]){first, kl_cumsum(in_row, 0, false, false)}, 0);
    kl_tensor stored = kl_narrow(starts, 0, v.shape.dim[0], 1);
    kl_tensor too_many = broadcast_to("to_sparse", kl_gt(stored, const_like(&index, (double)bound)),
                                      &(struct shape){.rank = 1, .dim = {1}}, &all);
    kl_tensor values = kl_where(too_many, const_like(&v, (double)NAN), kl_take(x, 0, place));
    return compose_end(t, make_csr(t, values, starts, kl_rem(place, width), v.shape.dim[1]));
}

kl_tensor kl_sampled_matmul(kl_tensor a, kl_tensor b, kl_tensor pattern)
{
    struct view va, vb, vp;
    struct thread *t = checked_begin("sampled_matmul");
    char x[SHAPE_TEXT], y[SHAPE_TEXT], z[SHAPE_TEXT];
    if (!t)
        return op_failed();
    if (!describe(t, "sampled_matmul", "operand 1", a, &va) ||
        !describe(t, "sampled_matmul", "operand 2", b, &vb) ||
        !describe(t, "sampled_matmul", "the pattern", pattern, &vp))
        return compose_end(t, poison(t));
    if (!wrapper_of(pattern, &layer_sparse))
        return compose_end(t, refuse(t, KL_ERR_TYPE, "sampled_matmul: the pattern is a sparse tensor"));
    if (va.dtype != vp.dtype || vb.dtype != vp.dtype)
        return compose_end(t, refuse(t, KL_ERR_TYPE, "sampled_matmul: dtypes %s, %s and %s differ",
                                     dtype_name(va.dtype),
                                     dtype_name(vb.dtype), dtype_name(vp.dtype)));
    if (va.shape.rank != 2 || vb.shape.rank != 2 || va.shape.dim[1] != vb.shape.dim[0] ||
        va.shape.dim[0] != vp.shape.dim[0] ||
        vb.shape.dim[1] != vp.shape.dim[1])
        return compose_end(t, refuse(t, KL_ERR_SHAPE, "sampled_matmul: shapes %s, %s and %s do not fit",
                                     shape_text(&va.shape, x, sizeof x), shape_text(&vb.shape, y, sizeof y),
                                     shape_text(&vp.shape, z, sizeof z)));
    struct sparse p = sparse_of(pattern);
    const int one = 1;
    kl_tensor rows = kl_take(a, 0, p.index[0]), columns = gather_rows(b, &vb.shape, 1, p.index[1]);
    kl_tensor products = kl_sum(kl_mul(rows, columns), 1, &one, false);
    kl_tensor zero = const_like(&vp, 0), values = kl_where(kl_ne(p.values, zero), products, zero);
    return compose_end(t, with_values(t, pattern, values));
}
