/* Composites that arrange elements or combine them: stack, split, tile, repeat, roll, triangles, eye, linspace, powers
 * with a number, lerp, masked_fill, is_close; gradients and misuse. */
#include "tests/support/api_numbers.h"

static const double six[6] = {1, 2, 3, 4, 5, 6};

static void pieces(void)
{
    kl_tensor a = f64(D(2, 3), six), b = kl_neg(a), stacked;
    stacked = kl_stack(2, (kl_tensor[]){a, b}, 0);
    SHAPE(stacked, 2, 2, 3);
    NEAR_LIST(stacked, 0, 1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6);
    stacked = kl_stack(2, (kl_tensor[]){a, b}, -1);
    SHAPE(stacked, 2, 3, 2);
    NEAR_LIST(stacked, 0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6);
    NEAR_LIST(kl_stack(2, (kl_tensor[]){a, b}, -2), 0, 1, 2, 3, -1, -2, -3, 4, 5, 6, -4, -5, -6);
    stacked = kl_stack(1, &a, 2);
    SHAPE(stacked, 2, 3, 1);
    NEAR(stacked, 6, six, 0);
    kl_tensor part[3];
    CHECK(kl_split(a, 1, 3, NULL, part) == KL_OK);
    SHAPE(part[2], 2, 1);
    NEAR_LIST(part[0], 0, 1, 4);
    NEAR_LIST(part[1], 0, 2, 5);
    NEAR_LIST(part[2], 0, 3, 6);
    CHECK(kl_split(a, -1, 3, (int64_t[]){2, 0, 1}, part) == KL_OK);
    SHAPE(part[1], 2, 0);
    NEAR_LIST(part[0], 0, 1, 2, 4, 5);
    NEAR_LIST(part[2], 0, 3, 6);
    kl_release(part[1]);
    kl_release(a);
    kl_release(b);
}

static void again(void)
{
    kl_tensor a = f64(D(2, 3), six), t = kl_tile(a, (int64_t[]){2, 2});
    SHAPE(t, 4, 6);
    NEAR_LIST(t, 0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6, 1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6);
    NEAR(kl_tile(a, (int64_t[]){1, 1}), 6, six, 0);
    t = kl_tile(a, (int64_t[]){0, 4});
    SHAPE(t, 0, 12);
    kl_release(t);
    t = kl_repeat(a, 1, 2);
    SHAPE(t, 2, 6);
    NEAR_LIST(t, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6);
    NEAR_LIST(kl_repeat(a, 0, 2), 0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6);
    NEAR_LIST(kl_roll(a, 1, 1), 0, 3, 1, 2, 6, 4, 5);
    NEAR_LIST(kl_roll(a, -1, -4), 0, 2, 3, 1, 5, 6, 4);
    NEAR_LIST(kl_roll(a, 0, 3), 0, 4, 5, 6, 1, 2, 3);
    NEAR(kl_roll(a, 0, INT64_MIN), 6, six, 0);
    t = kl_roll(kl_zeros(dev, KL_F32, D(0, 2)), 0, 5);
    SHAPE(t, 0, 2);
    kl_release(t);
    /* as many axes as there can be */
    kl_tensor deep = kl_reshape(a, 8, (int64_t[]){1, 1, 1, 1, 1, 1, 2, 3});
    t = kl_tile(deep, (int64_t[]){1, 1, 1, 1, 1, 2, 1, 1});
    SHAPE(t, 1, 1, 1, 1, 1, 2, 2, 3);
    NEAR_LIST(t, 0, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6);
    kl_release(deep);
    kl_release(a);
}

static void places(void)
{
    kl_tensor a = f64(D(2, 3), six);
    NEAR_LIST(kl_triu(a, 0), 0, 1, 2, 3, 0, 5, 6);
    NEAR_LIST(kl_triu(a, 1), 0, 0, 2, 3, 0, 0, 6);
    NEAR_LIST(kl_tril(a, 0), 0, 1, 0, 0, 4, 5, 0);
    NEAR_LIST(kl_tril(a, -1), 0, 0, 0, 0, 4, 0, 0);
    NEAR(kl_triu(a, -5), 6, six, 0);
    NEAR(kl_tril(a, INT64_MAX), 6, six, 0);
    NEAR_LIST(kl_triu(a, INT64_MAX), 0, 0, 0, 0, 0, 0, 0);
    NEAR_LIST(kl_tril(kl_cast(f64(D(1, 2, 2), (double[]){7, NAN, 7, 7}), KL_I8), 0), 0, 7, 0, 7, 7);
    NEAR_LIST(kl_tril(f64(D(2, 2), (double[]){7, NAN, 7, INFINITY}), 0), 0, 7, 0, 7, INFINITY); /* 0, not 0 times it */
    kl_tensor e = kl_eye(dev, KL_I16, 2, 3);
    CHECK(kl_dtype_of(e) == KL_I16);
    SHAPE(e, 2, 3);
    NEAR_LIST(e, 0, 1, 0, 0, 0, 1, 0);
    kl_tensor l = kl_linspace(dev, KL_F64, -1, 2, 4);
    NEAR_LIST(l, 1e-15, -1, 0, 1, 2);
    NEAR_LIST(kl_linspace(dev, KL_F32, 5, 9, 1), 0, 5);
    double ends[101] = {0};
    kl_tensor fine = kl_linspace(dev, KL_F32, 0.1, 0.7, 101);
    CHECK(kl_read(kl_cast(fine, KL_F64), ends, sizeof ends) == KL_OK);
    CHECK(ends[0] == (double)0.1f && ends[100] == (double)0.7f && fabs(ends[50] - 0.4) < 1e-7);
    e = kl_linspace(dev, KL_F32, 0, 1, 0);
    SHAPE(e, 0);
    kl_release(e);
    kl_release(fine);
    kl_release(a);
}

static void powers(void)
{
    static const double at[5] = {-2, -0.5, 0, 1, 3};
    kl_tensor x = f64(D(5), at), i = kl_cast(x, KL_I32);
    NEAR_LIST(kl_powi(x, 3), 0, -8, -0.125, 0, 1, 27);
    NEAR_LIST(kl_powi(x, 11), 0, -2048, -0x1p-11, 0, 1, 177147);
    NEAR_LIST(kl_powi(x, 0), 0, 1, 1, 1, 1, 1);
    NEAR_LIST(kl_powi(x, -2), 1e-15, 0.25, 4, INFINITY, 1, 1.0 / 9);
    NEAR_LIST(kl_powi(x, 1), 0, -2, -0.5, 0, 1, 3);
    NEAR_LIST(kl_powi(i, 5), 0, -32, 0, 0, 1, 243);
    NEAR_LIST(kl_pow_scalar(x, 2), 0, 4, 0.25, 0, 1, 9);
    NEAR_LIST(kl_pow_scalar(x, 0.5), 1e-15, NAN, NAN, 0, 1, sqrt(3));
    NEAR_LIST(kl_pow_scalar(x, -3), 1e-15, -0.125, -8, INFINITY, 1, 1.0 / 27);
    NEAR_LIST(kl_pow_scalar(x, 0), 0, 1, 1, 1, 1, 1);
    kl_release(x);
    kl_release(i);
}

static void mixtures(void)
{
    kl_tensor a = f64(D(3), (double[]){1, -1, 0.1}), b = f64(D(3), (double[]){3, 1e300, 0.7});
    kl_tensor w = f64(D(4, 1), (double[]){0, 0.25, 0.75, 1});
    kl_tensor mix = kl_lerp(a, b, w);
    SHAPE(mix, 4, 3);
    NEAR_LIST(mix, 1e-15, 1, -1, 0.1, 1.5, 0.25e300, 0.25, 2.5, 0.75e300, 0.55, 3, 1e300, 0.7);
    kl_tensor mask = kl_lt(a, kl_scalar(dev, KL_F64, 1));
    NEAR_LIST(kl_masked_fill(a, mask, -INFINITY), 0, 1, -INFINITY, -INFINITY);
    kl_tensor p = f64(D(7), (double[]){1, 1, 1, INFINITY, INFINITY, NAN, 0});
    kl_tensor q = f64(D(7), (double[]){1.0009, 1.01, 2, INFINITY, 1, NAN, 1e-9});
    NEAR_LIST(kl_is_close(p, q, 1e-3, 1e-8, false), 0, 1, 0, 0, 1, 0, 0, 1);
    NEAR_LIST(kl_is_close(p, q, 0, 1.5, true), 0, 1, 1, 1, 1, 0, 1, 1);
    NEAR_LIST(kl_is_close(q, p, 1, 0, false), 0, 1, 1, 1, 1, 0, 0, 0); /* relative to the second */
    NEAR_LIST(kl_all_close(a, a, 0, 0, false), 0, 1);
    NEAR_LIST(kl_all_close(p, p, 1, 1, false), 0, 0);
    NEAR_LIST(kl_all_close(p, p, 0, 0, true), 0, 1);
    NEAR_LIST(kl_all_close(a, b, 1e-3, 0, true), 0, 0);
    kl_release(a);
    kl_release(b);
    kl_release(w);
    kl_release(mask);
    kl_release(p);
    kl_release(q);
}

static kl_tensor stack_of(kl_tensor x) { return kl_stack(2, (kl_tensor[]){kl_exp(x), x}, 1); }
static kl_tensor second_part(kl_tensor x)
{
    kl_tensor part[2];
    return kl_split(x, 1, 2, (int64_t[]){1, 2}, part) == KL_OK ? kl_square(part[1]) : kl_none;
}
static kl_tensor tile_of(kl_tensor x) { return kl_square(kl_tile(x, (int64_t[]){2, 3})); }
static kl_tensor repeat_of(kl_tensor x) { return kl_square(kl_repeat(x, 1, 2)); }
static kl_tensor roll_of(kl_tensor x) { return kl_mul(kl_roll(x, 1, 1), x); }
static kl_tensor triangles_of(kl_tensor x) { return kl_mul(kl_triu(x, 1), kl_tril(kl_exp(x), 1)); }
static kl_tensor powi_of(kl_tensor x) { return kl_powi(x, 5); }
static kl_tensor powi_zero(kl_tensor x) { return kl_powi(x, 0); } /* its gradient is zeros, not an error */
static kl_tensor inverse_of(kl_tensor x) { return kl_powi(kl_exp(x), -3); }
static kl_tensor power_of(kl_tensor x) { return kl_pow_scalar(kl_exp(x), 1.7); }
static kl_tensor lerp_of(kl_tensor x) { return kl_lerp(x, kl_square(x), kl_sigmoid(x)); }
static kl_tensor filled(kl_tensor x) { return kl_masked_fill(kl_exp(x), kl_lt(x, kl_scalar(dev, KL_F64, 0)), 3); }

static void gradients(void)
{
    GRADIENT(stack_of, 2, 3);
    GRADIENT(second_part, 2, 3);
    GRADIENT(tile_of, 2, 3);
    GRADIENT(repeat_of, 2, 3);
    GRADIENT(roll_of, 2, 3);
    GRADIENT(triangles_of, 3, 3);
    GRADIENT(powi_of, 6);
    GRADIENT(powi_zero, 6);
    GRADIENT(inverse_of, 6);
    GRADIENT(power_of, 6);
    GRADIENT(lerp_of, 6);
    GRADIENT(filled, 6);
}

static void refused(kl_tensor t, kl_status code, const char *why, int line)
{
    check_at(kl_check(t) == code && strstr(kl_last_error(), why), line, why);
    kl_release(t);
    kl_clear_error();
}
#define REFUSED(t, code, why) refused(t, code, why, __LINE__)

static void misuse(void)
{
    kl_tensor a = f64(D(2, 3), six), i = kl_cast(a, KL_I32), b = kl_cast(a, KL_BOOL), v = f64(D(2), six), part[4];
    REFUSED(kl_stack(0, &a, 0), KL_ERR_ARGUMENT, "stack: no tensors");
    REFUSED(kl_stack(2, (kl_tensor[]){a, v}, 0), KL_ERR_SHAPE, "stack: ");
    REFUSED(kl_stack(2, (kl_tensor[]){a, a}, 3), KL_ERR_SHAPE, "axis 3 is out of range for shape [2,3]");
    CHECK(kl_split(a, 1, 2, NULL, part) == KL_ERR_SHAPE && strstr(kl_last_error(), "does not fall into equal 2 parts"));
    CHECK(kl_split(a, 1, 2, (int64_t[]){2, 2}, part) == KL_ERR_SHAPE && strstr(kl_last_error(), "into these 2 parts"));
    CHECK(kl_split(a, 1, 2, (int64_t[]){4, -1}, part) == KL_ERR_SHAPE && part[0].id == 0);
    CHECK(kl_split(a, 1, 0, NULL, part) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "split: no parts"));
    CHECK(kl_split(a, 4, 2, NULL, part) == KL_ERR_SHAPE);
    REFUSED(kl_tile(a, NULL), KL_ERR_ARGUMENT, "tile: times is NULL");
    REFUSED(kl_tile(a, (int64_t[]){1, -1}), KL_ERR_SHAPE, "tile: axis 1 of [2,3] cannot be there -1 times");
    REFUSED(kl_repeat(a, 0, INT64_MAX), KL_ERR_SHAPE, "repeat: axis 0 of [2,3] cannot be there");
    REFUSED(kl_roll(a, 2, 1), KL_ERR_SHAPE, "roll: axis 2 is out of range");
    REFUSED(kl_triu(v, 0), KL_ERR_SHAPE, "triu: needs two axes, got shape [2]");
    REFUSED(kl_eye(dev, KL_F32, -1, 2), KL_ERR_SHAPE, "eye: ");
    REFUSED(kl_linspace(dev, KL_I32, 0, 1, 2), KL_ERR_TYPE, "linspace: needs a floating dtype, got i32");
    REFUSED(kl_linspace(dev, KL_F32, 0, 1, -2), KL_ERR_SHAPE, "linspace: ");
    REFUSED(kl_powi(i, -1), KL_ERR_ARGUMENT, "powi: i32 to the -1 is no integer");
    REFUSED(kl_powi(b, 2), KL_ERR_TYPE, "powi: needs numbers, got bool");
    REFUSED(kl_pow_scalar(i, 2), KL_ERR_TYPE, "pow_scalar: needs a floating dtype, got i32");
    REFUSED(kl_lerp(a, a, i), KL_ERR_TYPE, "lerp: ");
    REFUSED(kl_masked_fill(a, i, 0), KL_ERR_TYPE, "masked_fill: ");
    REFUSED(kl_is_close(i, i, 0, 0, false), KL_ERR_TYPE, "is_close: needs a floating dtype, got i32");
    REFUSED(kl_is_close(a, a, -1, 0, false), KL_ERR_ARGUMENT, "is_close: tolerances -1 and 0 are not both 0 or more");
    REFUSED(kl_all_close(a, a, NAN, 0, false), KL_ERR_ARGUMENT, "all_close: ");
    kl_release(a);
    kl_release(i);
    kl_release(b);
    kl_release(v);
}

static void all(kl_device device)
{
    dev = device;
    pieces();
    again();
    places();
    powers();
    mixtures();
    gradients();
    misuse();
}

int main(void) { return on_devices(all); }
