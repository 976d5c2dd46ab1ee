/* Diagonals, which are views, and results of a bounded size: kept elements are counted, and each moves to the position
 * given by its count. */
#include "frontend/nn/compose.h"

/* ---- diagonals ---- */

kl_tensor kl_diagonal(kl_tensor a, int64_t offset, int axis0, int axis1)
{
    static const char op[] = "diagonal";
    struct thread *t = thread_self();
    struct view v;
    uint32_t i0, i1;
    if (!t || !describe(t, op, "the tensor", a, &v) || !axis_of(t, op, &v.shape, axis0, &i0) ||
        !axis_of(t, op, &v.shape, axis1, &i1))
        return op_failed();
    if (i0 == i1)
        return refuse(t, KL_ERR_SHAPE, "%s: axis %d twice", op, axis0);
    int64_t rows = v.shape.dim[i0], columns = v.shape.dim[i1], dims[KL_MAX_RANK];
    int order[KL_MAX_RANK], at = 0;
    for (uint32_t i = 0; i < v.shape.rank; i++)
        if (i != i0 && i != i1) {
            order[at] = (int)i;
            dims[at++] = v.shape.dim[i];
        }
    order[at] = (int)i0;
    order[at + 1] = (int)i1;
    int64_t left = offset >= 0 ? columns - offset : columns, up = offset >= 0 ? rows : rows + offset;
    int64_t count = left < up ? left : up, step = columns + 1;
    if (offset <= -rows || offset >= columns)
        count = 0;
    int64_t start = count ? offset >= 0 ? offset : -offset * columns : 0;
    if (!axes_are_numbers(t, op, &v.shape, i0, 1) || !axes_are_numbers(t, op, &v.shape, i1, 1) ||
        !(t = checked_begin(op)))
        return op_failed();
    dims[at] = rows * columns; /* in row-major order the diagonal is every (columns + 1)-th element */
    kl_tensor flat = kl_reshape(kl_permute(a, order), at + 1, dims);
    return compose_end(t, slice_of(op, flat, (uint32_t)at, start, count, count > 1 ? step : 1));
}

kl_tensor kl_diagonal_matrix(kl_tensor a, int64_t offset)
{
    static const char op[] = "diagonal_matrix";
    struct thread *t = thread_self();
    struct view v;
    char text[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", a, &v))
        return op_failed();
    int64_t n = v.shape.rank ? v.shape.dim[v.shape.rank - 1] : 0, m;
    int64_t far = offset > INT64_MIN && offset < 0 ? -offset : offset;
    bool fits = v.shape.rank >= 1 && v.shape.rank < KL_MAX_RANK && offset > INT64_MIN &&
                !__builtin_add_overflow(n, far, &m) && m < INT64_C(1) << 31;
    if (!fits)
        return refuse(t, KL_ERR_SHAPE, "%s: no matrix of %s with offset %" PRId64, op,
                      shape_text(&v.shape, text, sizeof text), offset);
    struct shape s = v.shape, flat = v.shape;
    uint32_t last = v.shape.rank - 1;
    if (!axes_are_numbers(t, op, &v.shape, last, 1))
        return op_failed();
    s.dim[last] = m;
    s.dim[s.rank++] = m;
    if (!shape_of(t, op, (int)s.rank, s.dim, &s) || !(t = checked_begin(op)))
        return op_failed();
    if (n == 0)
        return compose_end(t, kl_zeros(v.device, (kl_dtype)v.dtype, (int)s.rank, s.dim));
    /* m zeros after each element; then as many before and after all elements as fill a matrix */
    int64_t low[KL_MAX_RANK] = {0}, high[KL_MAX_RANK] = {0}, stop[KL_MAX_RANK];
    high[last + 1] = m;
    a = kl_pad(kl_unsqueeze(a, -1), NULL, high, 0);
    flat.dim[last] = n * (m + 1);
    a = reshape_to(op, a, &flat);
    low[last] = offset >= 0 ? far : far * m;
    high[last + 1] = 0;
    high[last] = m * m - low[last] - n * (m + 1);
    high[last] = high[last] < 0 ? 0 : high[last];
    memcpy(stop, flat.dim, sizeof stop);
    stop[last] = m * m;
    a = kl_pad(a, low, high, 0);
    return compose_end(t, reshape_to(op, kl_slice(a, NULL, stop, NULL), &s));
}

/* ---- bounded sizes ---- */

/* [n] positions among the kept elements, `size` for the others; *count: the number of kept elements. */
static kl_tensor kept_indices(kl_tensor kept, int64_t size, kl_tensor *count)
{
    kl_tensor one = kl_cast(kept, KL_I64), upto = kl_cumsum(one, 0, true, false);
    *count = kl_sum_all(one);
    return kl_where(kept, upto, number(one, KL_I64, (double)size));
}

static bool bounded_begin(const char *op, kl_tensor a, int64_t size, struct view *v, struct thread **t)
{
    *t = thread_self();
    struct shape s;
    return *t && describe(*t, op, "the tensor", a, v) && shape_of(*t, op, 1, &size, &s) &&
           (*t = checked_begin(op)) != NULL;
}

kl_tensor kl_nonzero(kl_tensor a, int64_t size, kl_tensor *count)
{
    static const char op[] = "nonzero";
    struct view v;
    struct thread *t;
    if (count)
        *count = kl_none;
    if (!bounded_begin(op, a, size, &v, &t))
        return op_failed();
    int64_t n = product_of_lengths(v.shape.dim, (int)v.shape.rank), column[2] = {size, 1};
    kl_tensor flat = kl_reshape(a, 1, &n), all, index[KL_MAX_RANK];
    kl_tensor kept = v.dtype == KL_BOOL ? flat : kl_ne(flat, same_number(flat, 0));
    kl_tensor indices = kept_indices(kept, size, &all), minus = number(all, KL_I64, -1);
    kl_tensor from = kl_put_along_axis_with(kl_expand(minus, 1, &size), 0, indices, kl_arange(v.device, KL_I64, n),
                                         KL_SCATTER_SET, KL_INDEX_DROP);
    kl_tensor none = kl_lt(from, number(from, KL_I64, 0));
    for (int i = (int)v.shape.rank - 1; i >= 0; i--) {
        kl_tensor length = kl_length_scalar(v.device, KL_I64, v.shape.dim[i]);
        index[i] = kl_reshape(kl_where(none, minus, kl_rem(from, length)), 2, column);
        from = kl_div(from, length);
    }
    kl_tensor results[2] = {v.shape.rank ? kl_concat((int)v.shape.rank, index, 1)
                                         : kl_zeros(v.device, KL_I64, 2, (int64_t[]){size, 0}), all};
    compose_end_all(t, results, 1 + (count != NULL));
    if (count)
        *count = all;
    return results[0];
}

kl_tensor kl_unique(kl_tensor a, int64_t size, kl_tensor *count, kl_tensor *inverse, kl_tensor *counts)
{
    static const char op[] = "unique";
    struct view v;
    struct thread *t;
    kl_tensor *const to[3] = {count, inverse, counts};
    for (int i = 0; i < 3; i++)
        if (to[i])
            *to[i] = kl_none;
    if (!bounded_begin(op, a, size, &v, &t))
        return op_failed();
    if (!axes_are_numbers(t, op, &v.shape, 0, v.shape.rank))
        return compose_end(t, poison(t));
    int64_t n = shape_count(&v.shape), one = 1;
    kl_tensor flat = kl_reshape(a, 1, &n), order = kl_argsort(flat, 0, false), sorted = kl_take(flat, 0, order);
    kl_tensor first = kl_ones(v.device, KL_BOOL, 1, n ? &one : &n);
    if (n > 1) { /* an element that differs from the one before it */
        kl_tensor x = kl_narrow(sorted, 0, 1, n - 1), before = kl_narrow(sorted, 0, 0, n - 1), other = kl_ne(x, before);
        if (dtype_is_float(v.dtype))
            other = kl_and(other, kl_not(kl_and(kl_is_nan(x), kl_is_nan(before))));
        first = kl_concat(2, (kl_tensor[]){first, other}, 0);
    }
    kl_tensor last = number(first, KL_I64, 1), ones = kl_ones(v.device, KL_I64, 1, &n);
    kl_tensor firsts = kl_cast(first, KL_I64), indices = kl_sub(kl_cumsum(firsts, 0, false, false), last);
    kl_tensor results[4];
    results[0] = kl_put_along_axis_with(kl_zeros(v.device, (kl_dtype)v.dtype, 1, &size), 0, indices, sorted,
                                        KL_SCATTER_SET, KL_INDEX_DROP);
    results[1] = kl_sum_all(firsts);
    results[2] = reshape_to(op, kl_put_along_axis_with(kl_zeros(v.device, KL_I64, 1, &n), 0, order, indices,
                                                          KL_SCATTER_SET, 0), &v.shape);
    results[3] = kl_put_along_axis_with(kl_zeros(v.device, KL_I64, 1, &size), 0, indices, ones, KL_SCATTER_ADD,
                                        KL_INDEX_DROP);
    uint32_t wanted = 1;
    for (int i = 0; i < 3; i++)
        if (to[i])
            *to[i] = results[wanted++] = results[1 + i];
    compose_end_all(t, results, wanted);
    return results[0];
}
