/* What functions of matrices begin and end with: checks, batches as one axis, halfs in f32. */
#include "solve.h"

bool solve_begin_block(const char *op)
{
    if (kl_composite_begin(op) != KL_OK)
        return kl_failf(NULL, KL_ERR_MEMORY, "%s: out of memory", op), false;
    if (kl_autocast_begin(KL_F32) == KL_OK)
        return true;
    kl_composite_end(0, NULL);
    return false;
}

static bool matrix_is_float(const char *op, kl_tensor a)
{
    kl_dtype d = kl_dtype_of(a);
    bool ok = d == KL_F16 || d == KL_BF16 || d == KL_F32 || d == KL_F64;
    if (!ok)
        kl_failf(NULL, KL_ERR_TYPE, "%s: needs a floating dtype, got %s", op, kl_dtype_name(d));
    return ok;
}

bool solve_begin(const char *op, kl_tensor *a, bool square, struct solve_matrices *x)
{
    char text[SOLVE_SHAPE_TEXT];
    *x = (struct solve_matrices){.op = op, .B = 1};
    if (kl_operand(op, "the matrix", *a, text, sizeof text) != KL_OK)
        return false;
    int r = x->rank = kl_shape(*a, x->dims);
    if (r < 2 || (square && x->dims[r - 1] != x->dims[r - 2]))
        return kl_failf(NULL, KL_ERR_SHAPE, "%s: needs %s, got %s", op, square ? "[...,n,n]" : "[...,m,n]", text),
               false;
    if (x->dims[r - 1] < 0 || x->dims[r - 2] < 0)
        return kl_failf(NULL, KL_ERR_SHAPE, "%s: the last two lengths of %s must be numbers", op, text), false;
    if (!matrix_is_float(op, *a))
        return false;
    for (int i = 0; i < r - 2; i++)
        if ((x->B = kl_length_mul(x->B, x->dims[i])) == INT64_MIN)
            return false;
    x->m = x->dims[r - 2];
    x->n = x->dims[r - 1];
    x->device = kl_device_of(*a);
    x->given = kl_dtype_of(*a);
    x->dtype = x->given == KL_F64 ? KL_F64 : KL_F32;
    if (!solve_begin_block(op))
        return false;
    *a = kl_reshape(x->given == x->dtype ? *a : kl_cast(*a, x->dtype), 3, (int64_t[]){x->B, x->m, x->n});
    return true;
}

int64_t solve_operand(const struct solve_matrices *x, const char *what, int64_t rows, kl_tensor *b)
{
    char text[SOLVE_SHAPE_TEXT];
    int64_t dims[KL_MAX_RANK];
    int r = x->rank;
    bool ok = kl_operand(x->op, what, *b, text, sizeof text) == KL_OK;
    bool fits = ok && kl_shape(*b, dims) == r && !memcmp(dims, x->dims, (size_t)(r - 2) * sizeof *dims) &&
                dims[r - 2] == rows && dims[r - 1] >= 0;
    if (ok && !fits)
        kl_failf(NULL, KL_ERR_SHAPE, "%s: %s must be [...,%" PRId64 ",k] with the batch of the matrices, got %s", x->op,
                 what, rows, text);
    else if (ok && !(fits = kl_dtype_of(*b) == x->given))
        kl_failf(NULL, KL_ERR_TYPE, "%s: %s is %s, the matrix %s", x->op, what, kl_dtype_name(kl_dtype_of(*b)),
                 kl_dtype_name(x->given));
    if (!fits) {
        solve_end(kl_none, 0, NULL);
        return -1;
    }
    *b = kl_reshape(x->given == x->dtype ? *b : kl_cast(*b, x->dtype), 3, (int64_t[]){x->B, rows, dims[r - 1]});
    return dims[r - 1];
}

kl_tensor solve_result(const struct solve_matrices *x, kl_tensor t)
{
    int64_t dims[KL_MAX_RANK], own[KL_MAX_RANK];
    int behind = kl_shape(t, own) - 1, before = x->rank - 2;
    if (behind < 0)
        return t;
    memcpy(dims, x->dims, (size_t)before * sizeof *dims);
    memcpy(dims + before, own + 1, (size_t)behind * sizeof *dims);
    t = kl_reshape(t, before + behind, dims);
    return kl_dtype_of(t) == x->dtype && x->given != x->dtype ? kl_cast(t, x->given) : t;
}

kl_tensor solve_end(kl_tensor first, int64_t n, kl_tensor *const *others)
{
    kl_tensor all[4] = {first};
    int64_t count = first.id != 0;
    for (int64_t i = 0; i < n; i++)
        if (others[i])
            all[count++] = *others[i];
    kl_autocast_end();
    kl_composite_end(count, all);
    return first.id ? first : kl_poison();
}

kl_tensor solve_poison(kl_tensor a)
{
    kl_tensor zero = kl_sum(kl_mul(a, solve_number(a, 0)), 2, (int[]){1, 2}, false);
    return kl_unsqueeze(zero, -1);
}

struct matrix_blocks { kl_region_fn *fn; const struct solve_matrices *x; };

static kl_status block_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct matrix_blocks *b = ctx;
    struct solve_matrices x = *b->x;
    int64_t dims[KL_MAX_RANK] = {0};
    kl_shape(in[0], dims);
    x.B = dims[0];
    return b->fn(&x, in, nin, out, nout);
}

kl_status solve_in_blocks(kl_region_fn *fn, const struct solve_matrices *x, kl_tensor a, kl_tensor *out, int64_t nout)
{
    enum { VECTOR_BYTES = 64, MAX_ROWS = 64 };
    int64_t lanes = VECTOR_BYTES / (int64_t)kl_dtype_size(x->dtype), blocks = (x->B + lanes - 1) / lanes;
    int64_t dims[KL_MAX_RANK] = {0}, shape[KL_MAX_RANK];
    struct solve_matrices whole = *x;
    struct matrix_blocks b = {fn, x};
    kl_shape(a, dims);
    if (x->B <= lanes || dims[1] > MAX_ROWS || dims[2] > MAX_ROWS || kl_device_kind_of(x->device) > KL_DEVICE_CPU)
        return fn(&whole, &a, 1, out, nout);
    if (blocks * lanes > x->B)
        a = kl_pad(a, NULL, (int64_t[]){blocks * lanes - x->B, 0, 0}, 0);
    a = kl_reshape(a, 4, (int64_t[]){blocks, lanes, dims[1], dims[2]});
    kl_status status = kl_scan(block_fn, &b, blocks, 0, NULL, 1, &a, nout, false, out);
    for (int64_t i = 0; i < nout; i++) {
        int rank = kl_shape(out[i], shape) - 1;
        shape[1] *= shape[0];
        out[i] = kl_narrow(kl_reshape(out[i], rank, shape + 1), 0, 0, x->B);
    }
    return status;
}

kl_tensor solve_zeros(kl_tensor a, int rank, const int64_t *dims)
{
    kl_tensor zero = kl_sum(a, 2, (int[]){1, 2}, false);
    for (int i = 1; i < rank; i++)
        zero = kl_unsqueeze(zero, -1);
    return kl_expand(zero, rank, dims);
}

kl_tensor solve_identity(const struct solve_matrices *x, int64_t n)
{
    return kl_expand(kl_eye(x->device, x->dtype, n, n), 3, (int64_t[]){x->B, n, n});
}
