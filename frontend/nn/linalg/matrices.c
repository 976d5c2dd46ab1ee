/* What functions of matrices begin and end with: checks, the batch as one axis, and a matrix of it at a time. */
#include "linalg.h"

struct thread *linalg_begin(const char *op, kl_tensor *a, kl_tensor *b, bool square, struct view *v, struct view *w,
                            struct matrices *x)
{
    struct thread *t = thread_self();
    char ta[SHAPE_TEXT], tb[SHAPE_TEXT];
    if (!t || !describe(t, op, "the matrix", *a, v) || (b && !describe(t, op, "the right side", *b, w)))
        return NULL;
    uint32_t rank = v->shape.rank;
    bool fits = rank >= 2 && (!square || v->shape.dim[rank - 1] == v->shape.dim[rank - 2]);
    if (fits && b)
        fits = w->shape.rank == rank && !memcmp(w->shape.dim, v->shape.dim, (rank - 1) * sizeof *w->shape.dim);
    if (!fits) {
        fail(t, KL_ERR_SHAPE, "%s: needs %s, got %s%s%s", op,
             b ? "[...,n,n] and [...,n,m]" : square ? "[...,n,n]" : "[...,m,n]", shape_text(&v->shape, ta, sizeof ta),
             b ? " and " : "", b ? shape_text(&w->shape, tb, sizeof tb) : "");
        return NULL;
    }
    if (!dtype_is_float(v->dtype) || (b && w->dtype != v->dtype)) {
        fail(t, KL_ERR_TYPE, "%s: needs one floating dtype, got %s%s%s", op, dtype_name(v->dtype),
             b ? " and " : "", b ? dtype_name(w->dtype) : "");
        return NULL;
    }
    if (!axes_are_numbers(t, op, &v->shape, rank - 2, 2) || !(t = checked_begin(op)))
        return NULL;
    *x = (struct matrices){.B = product_of_lengths(v->shape.dim, (int)rank - 2), .n = v->shape.dim[rank - 2],
                           .m = b ? w->shape.dim[rank - 1] : v->shape.dim[rank - 1], .device = v->device};
    x->given = autocast_is_on(t) ? (kl_dtype)dtype_compute(v->dtype) : (kl_dtype)v->dtype;
    if (x->B == INT64_MIN)
        return compose_end(t, kl_none), NULL;
    *a = widen_view(t, *a, v);
    x->dtype = (kl_dtype)v->dtype;
    *a = kl_reshape(*a, 3, (int64_t[]){x->B, x->n, square ? x->n : x->m});
    if (b)
        *b = kl_reshape(widen(t, *b), 3, (int64_t[]){x->B, x->n, x->m});
    return t;
}

kl_tensor linalg_result(const struct matrices *x, const char *op, kl_tensor a, const struct shape *s)
{
    a = reshape_to(op, a, s);
    return x->given != x->dtype ? kl_cast(a, x->given) : a;
}

struct each_matrix { kl_region_fn *fn; const struct matrices *x; };

static kl_status compute_one(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct each_matrix *each = ctx;
    struct matrices one = *each->x;
    kl_tensor matrix[2];
    one.B = 1;
    for (int64_t i = 0; i < nin; i++)
        matrix[i] = kl_unsqueeze(in[i], 0);
    kl_status status = each->fn(&one, matrix, nin, out, nout);
    for (int64_t i = 0; i < nout; i++)
        out[i] = kl_squeeze(out[i], 0);
    return status;
}

kl_status linalg_for_each(kl_region_fn *fn, struct matrices *x, const kl_tensor *in, int64_t nin, kl_tensor *out,
                          int64_t nout)
{
    struct each_matrix each = {fn, x};
    if (x->B == 1 || kl_device_kind_of(x->device) > KL_DEVICE_CPU)
        return fn(x, in, nin, out, nout);
    return kl_scan(compute_one, &each, x->B, 0, NULL, nin, in, nout, false, out);
}

kl_tensor linalg_pad(const struct matrices *x, kl_tensor a)
{
    enum { VECTOR_BYTES = 64 };
    int64_t dims[KL_MAX_RANK], high[3] = {0}, lanes = VECTOR_BYTES / (int64_t)kl_dtype_size(x->dtype);
    kl_shape(a, dims);
    for (int i = 1; i < 3 && x->n > MAX_SMALL && kl_device_kind_of(x->device) <= KL_DEVICE_CPU; i++)
        high[i] = dims[i] > 0 ? (lanes - dims[i] % lanes) % lanes : 0;
    return high[1] + high[2] ? kl_pad(a, NULL, high, 0) : a;
}

kl_tensor linalg_without_pad(kl_tensor a, int axis, int64_t n)
{
    int64_t dims[KL_MAX_RANK];
    kl_shape(a, dims);
    return n >= 0 && dims[axis] != n ? kl_narrow(a, axis, 0, n) : a;
}

int64_t linalg_rows(kl_tensor a)
{
    int64_t dims[KL_MAX_RANK] = {0};
    kl_shape(a, dims);
    return dims[1];
}
