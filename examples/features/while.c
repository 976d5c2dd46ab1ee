/* kl_while: a loop whose number of iterations depends on data, recorded once.  Newton's method finds the square roots
 * of a vector: r becomes (r + a / r) / 2 until no element changes by more than a bound. */
#include <kiln/kiln.h>
#include <stdio.h>

enum { N = 5 };

/* in[0]: r, in[1]: the largest change so far, in[2]: iterations; *ctx: a. */
static kl_status goes_on(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_gt(in[1], kl_full(kl_device_of(in[1]), KL_F32, 0, NULL, 1e-5));
    return KL_OK;
}

static kl_status newton(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    kl_tensor a = *(kl_tensor *)ctx;
    out[0] = kl_mul_scalar(kl_add(in[0], kl_div(a, in[0])), 0.5);
    out[1] = kl_max(kl_abs(kl_sub(out[0], in[0])), 1, (int[]){0}, false);
    out[2] = kl_add_scalar(in[2], 1);
    return KL_OK;
}

int main(void)
{
    static const float number[N] = {1, 2, 10, 1000, 1e6f};
    kl_device dev = kl_device_default();
    kl_tensor a = kl_input(dev, KL_F32, 1, (int64_t[]){N}, number), last[3];
    kl_tensor first[3] = {a, kl_full(dev, KL_F32, 0, NULL, 1), kl_zeros(dev, KL_I32, 0, NULL)};
    float root[N];
    kl_while(goes_on, newton, &a, 3, first, last);
    if (kl_read(last[0], root, sizeof root) != KL_OK) {
        fprintf(stderr, "%s\n", kl_last_error());
        return 1;
    }
    for (int i = 0; i < N; i++)
        printf("sqrt(%g) = %g\n", (double)number[i], (double)root[i]);
    printf("iterations: %lld\n", (long long)kl_item_i64(last[2]));
    return 0;
}
