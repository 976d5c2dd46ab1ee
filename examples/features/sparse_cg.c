/* A sparse matrix and conjugate gradients (Hestenes and Stiefel 1952): solves A x = b for the matrix of Poisson's
 * equation on a line, 2 on the diagonal and -1 beside it, without ever making it dense.  The loop is a kl_while. */
#include <kiln/kiln.h>
#include <math.h>
#include <stdio.h>

enum { N = 200, STORED = 3 * N - 2 };

static kl_tensor inner(kl_tensor a, kl_tensor b) { return kl_sum_all(kl_mul(a, b)); }

/* The values of the loop: x, the residual b - A x, the direction, |residual|^2, iterations. */
enum { X, R, P, RR, COUNT, VALUES };

static kl_status goes_on(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_gt(in[RR], kl_full(kl_device_of(in[RR]), KL_F64, 0, NULL, 1e-20));
    return KL_OK;
}

static kl_status iterate(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    const kl_tensor *part = ctx;
    kl_tensor a = kl_sparse_csr(part[0], part[1], part[2], N);
    kl_tensor q = kl_matmul(a, in[P]), step = kl_div(in[RR], inner(in[P], q));
    out[X] = kl_add(in[X], kl_mul(step, in[P]));
    out[R] = kl_sub(in[R], kl_mul(step, q));
    out[RR] = inner(out[R], out[R]);
    out[P] = kl_add(out[R], kl_mul(kl_div(out[RR], in[RR]), in[P]));
    out[COUNT] = kl_add_scalar(in[COUNT], 1);
    return KL_OK;
}

int main(void)
{
    static double value[STORED], x[N];
    static int32_t start[N + 1], column[STORED];
    for (int row = 0, k = 0; row < N; row++) {
        for (int c = row ? row - 1 : 0; c <= row + 1 && c < N; c++, k++) {
            value[k] = c == row ? 2 : -1;
            column[k] = c;
        }
        start[row + 1] = k;
    }
    kl_device dev = kl_device_named("cpu"); /* in f64, which not all devices have */
    kl_tensor part[3] = {kl_input(dev, KL_F64, 1, (int64_t[]){STORED}, value),
                         kl_input(dev, KL_I32, 1, (int64_t[]){N + 1}, start),
                         kl_input(dev, KL_I32, 1, (int64_t[]){STORED}, column)};
    kl_tensor b = kl_full(dev, KL_F64, 2, (int64_t[]){N, 1}, 1), last[VALUES];
    kl_tensor first[VALUES] = {kl_mul_scalar(b, 0), b, b, inner(b, b),
                               kl_zeros(dev, KL_I32, 0, NULL)};
    kl_while(goes_on, iterate, part, VALUES, first, last);
    if (kl_read(last[X], x, sizeof x) != KL_OK) {
        fprintf(stderr, "%s\n", kl_last_error());
        return 1;
    }
    double worst = 0;
    for (int i = 0; i < N; i++) /* the solution is (i + 1) (N - i) / 2 */
        worst = fmax(worst, fabs(x[i] - 0.5 * (i + 1) * (N - i)));
    printf("iterations: %lld, stored: %d of %d, error below 1e-6: %s\n", (long long)kl_item_i64(last[COUNT]), STORED,
           N * N, worst < 1e-6 ? "yes" : "no");
    return 0;
}
