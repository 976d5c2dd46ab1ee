/* kl_squash, kl_tanhshrink and kl_turn, which the README's recipes add: values and gradients through the public
 * headers. */
#include <kiln/kiln.h>
#include <math.h>
#include <stdio.h>

enum { N = 5 };
static const double x[N] = {-30, -1.5, 0, 0.25, 4};
static int passed, failed;

static double squash(double a) { return a / (1 + fabs(a)); }
static double squash_slope(double a) { return 1 / ((1 + fabs(a)) * (1 + fabs(a))); }
static double tanhshrink(double a) { return a - tanh(a); }
static double tanhshrink_slope(double a) { return tanh(a) * tanh(a); }
static double before(double a) /* the element before it, the last one before the first */
{
    for (int i = 0; i < N; i++)
        if (x[i] == a)
            return x[(i + N - 1) % N];
    return NAN;
}
static double behind(double a)
{
    for (int i = 0; i < N; i++)
        if (x[i] == a)
            return x[(i + 1) % N];
    return NAN;
}

static void compare(const char *what, kl_tensor t, double (*expected)(double))
{
    double got[N];
    bool ok = kl_read(t, got, sizeof got) == KL_OK;
    for (int i = 0; i < N; i++)
        ok = ok && fabs(got[i] - expected(x[i])) <= 1e-14;
    if (!ok)
        printf("FAIL %s %s\n", what, kl_last_error());
    *(ok ? &passed : &failed) += 1;
}

int main(void)
{
    kl_device dev = kl_device_default();
    kl_tensor a = kl_input(dev, KL_F64, 1, (int64_t[]){N}, x);
    kl_requires_grad(a);
    compare("squash", kl_squash(a), squash);
    compare("squash's gradient", kl_grad(kl_squash(a), a), squash_slope);
    compare("tanhshrink", kl_tanhshrink(a), tanhshrink);
    compare("tanhshrink's gradient", kl_grad(kl_tanhshrink(a), a), tanhshrink_slope);
    compare("turn", kl_turn(a, -1), before);
    compare("turn's gradient", kl_grad(kl_mul(kl_turn(a, 0), kl_detach(a)), a), behind);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
