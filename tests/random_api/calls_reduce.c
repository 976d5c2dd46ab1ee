/* Reductions, scans, products and factors of matrices. */
#include "tests/random_api/calls.h"

kl_tensor make_reduce(struct recording *c, int a)
{
    static kl_tensor (*const functions[])(kl_tensor, int, const int *, bool) = {
        kl_sum, kl_mean, kl_max, kl_min, kl_prod, kl_reduce_and, kl_reduce_or, kl_reduce_xor,
        kl_any, kl_all, kl_logsumexp, kl_norm};
    static const double powers[] = {0, 1, 2, 3, INFINITY, -INFINITY, 0.5};
    kl_tensor x = value_of(c, a);
    int list[KL_MAX_RANK], n = pick_axes(c, a, list);
    const int *axes = n ? list : NULL; /* NULL: all */
    bool keep = chance(c, 2);
    switch (below(c, 16)) {
    case 0: return kl_p_norm(x, ONE_OF(c, powers), n, axes, keep);
    case 1: return kl_var(x, n, axes, keep, below(c, 2));
    case 2: return kl_std(x, n, axes, keep, below(c, 2));
    case 3: return kl_sum(x, n, axes, keep);
    default: return ONE_OF(c, functions)(x, n, axes, keep);
    }
}

kl_tensor make_arg(struct recording *c, int a)
{
    int axis = pick_axis(c, a);
    return chance(c, 2) ? kl_argmax(value_of(c, a), axis) : kl_argmin(value_of(c, a), axis);
}

kl_tensor make_scan(struct recording *c, int a)
{
    kl_tensor x = value_of(c, a);
    int axis = pick_axis(c, a);
    bool reverse = chance(c, 2), exclusive = chance(c, 2);
    switch (below(c, 8)) {
    case 0: return kl_cumsum(x, axis, exclusive, reverse);
    case 1: return kl_cumprod(x, axis, exclusive, reverse);
    case 2: return kl_cummax(x, axis, reverse);
    case 3: return kl_cummin(x, axis, reverse);
    case 4: return kl_cummax_indices(x, axis, reverse, &c->second);
    case 5: return kl_cummin_indices(x, axis, reverse, &c->second);
    case 6: return kl_recurrence(x, pick_like(c, a), axis, reverse);
    default: return kl_logcumsumexp(x, axis);
    }
}

kl_tensor make_matmul(struct recording *c, int a)
{
    int b = pick_broadcast(c, a);
    const struct type *t = &c->p->type[a], *u = &c->p->type[b];
    kl_tensor y = value_of(c, b);
    if (u->rank >= 2 && t->dims[t->rank - 1] != u->dims[u->rank - 2])
        y = kl_transpose(y, -1, -2);
    return kl_matmul(value_of(c, a), y);
}

static kl_tensor gram(kl_tensor x) { return kl_matmul(x, kl_transpose(x, -1, -2)); }

kl_tensor make_gram(struct recording *c, int a) { return gram(value_of(c, a)); }

kl_tensor make_einsum(struct recording *c, int a)
{
    static const char *const two[] = {"ij,ij->i", "ij,ik->jk", "ij,kj->ki", "ij,ij->", "ij,kl->ikjl"};
    static const char *const three[] = {"bij,bik->bjk", "bij,bij->ij", "bij,bkj->ikb", "bij,cij->cb"};
    kl_tensor operands[2] = {value_of(c, a), pick_like(c, a)};
    return kl_einsum(c->p->type[a].rank == 2 ? ONE_OF(c, two) : ONE_OF(c, three), 2, operands);
}

/* Of a a^T + 1, which has an inverse. */
kl_tensor make_matrix(struct recording *c, int a)
{
    kl_tensor x = value_of(c, a), square = gram(x);
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(square, dims);
    if (rank < 2)
        return kl_none;
    kl_tensor one = kl_eye(c->device, KL_F32, dims[rank - 1], dims[rank - 1]);
    square = kl_add(square, kl_cast(one, c->p->type[a].dtype));
    bool upper = chance(c, 2), transposed = chance(c, 2);
    switch (below(c, 6)) {
    case 0: return kl_cholesky(square);
    case 1: return kl_triangular_solve(square, x, upper, transposed);
    case 2: return kl_qr(x, &c->second);
    case 3: return kl_solve(square, x);
    case 4: return kl_inverse(square);
    default: return kl_det(square);
    }
}

kl_tensor make_fourier(struct recording *c, int a)
{
    kl_tensor z = kl_rfft(value_of(c, a), pick_axis(c, a));
    c->second = kl_imag(z);
    return kl_real(z);
}
