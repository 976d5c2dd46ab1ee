/* Householder's reflections of vectors of all matrices of a batch, [n, B]. */
#include "eigen.h"

kl_tensor solve_column_sum(kl_tensor a)
{
    kl_tensor twice = kl_concat(2, (kl_tensor[]){a, a}, 1); /* adjacent elements are added in another order */
    int64_t dims[2];
    kl_shape(a, dims);
    return kl_narrow(kl_sum(twice, 1, (int[]){0}, true), 1, 0, dims[1]);
}

kl_tensor solve_column_pick(kl_tensor is, kl_tensor a)
{
    return kl_sum(kl_where(is, a, solve_number(a, 0)), 1, (int[]){0}, true);
}

kl_tensor solve_outer(kl_tensor b, kl_tensor c) { return kl_mul(kl_unsqueeze(b, 1), kl_unsqueeze(c, 0)); }

struct solve_reflector solve_reflector(kl_tensor a, kl_tensor rows, kl_tensor first)
{
    kl_tensor zero = solve_number(a, 0), one = solve_number(a, 1), is_first = kl_eq(rows, first);
    kl_tensor own = solve_column_pick(is_first, a), rest = kl_where(kl_gt(rows, first), a, zero);
    double tiny = solve_tiny(kl_dtype_of(a));
    kl_tensor square = solve_column_sum(kl_mul(rest, rest)), some = kl_gt(square, solve_number(a, tiny * tiny));
    kl_tensor size = kl_sqrt(kl_fma(own, own, square));
    size = kl_where(kl_lt(own, zero), size, kl_neg(size));
    kl_tensor difference = kl_where(some, kl_sub(own, size), one);
    kl_tensor tau = kl_where(some, kl_div(difference, kl_where(some, kl_neg(size), one)), zero);
    return (struct solve_reflector){kl_where(is_first, one, kl_div(rest, difference)), tau, kl_where(some, size, own)};
}
