/* The arithmetic of C kernels where the processor has none (codegen/c/prelude.h with KILN_PORTABLE), against this
 * processor's: roots, fused products, rounding and half floats of random bits, of numbers near each other, of subnormal
 * ones, of what overflows, and of every half. */
#define KILN_PORTABLE
#include "tests/support/harness.h"
#if defined(__x86_64__) && defined(__clang__) && __clang_major__ < 15
int main(void)
{
    printf("SKIP no-compiler c: Clang has 16-bit floats from 15 on\n");
    skipped++;
    return finish();
}
#else
#include "ir/math/half.inc"
#include "codegen/c/prelude.h"

static unsigned wrong; /* values so far; the first few are printed */
#define SAME(ok, ...)                  \
    do {                               \
        if (!(ok) && wrong++ < 10)     \
            check(false, __VA_ARGS__); \
    } while (0)
__extension__ typedef _Float16 half;

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint64_t random_bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1du;
}

/* An f64 of any bits, with an exponent near 1, the smallest or the largest, of few digits, or a special number. */
static f64 random_f64(void)
{
    static const f64 special[] = {0.0, -0.0, 1, -1, INFINITY, -INFINITY, NAN, 0x1p-1074, 0x1p-1022, DBL_MAX};
    uint64_t b = random_bits(), mantissa = b & 0xfffffffffffffu, sign = b & (uint64_t)1 << 63;
    switch (random_bits() % 8) {
    case 0: return bits_u64_f64(b);
    case 1: return bits_u64_f64(sign | (1023 - 30 + random_bits() % 60) << 52 | mantissa);
    case 2: return bits_u64_f64(sign | (random_bits() % 64) << 52 | mantissa);
    case 3: return bits_u64_f64(sign | mantissa >> random_bits() % 52);
    case 4: return bits_u64_f64(sign | (2046 - random_bits() % 60) << 52 | mantissa);
    case 5: return bits_u64_f64(sign | (1023 - 60 + random_bits() % 120) << 52 | (mantissa & ~(uint64_t)0xffffffffffu));
    case 6: return special[random_bits() % (sizeof special / sizeof *special)];
    default: return bits_u64_f64(sign | (1023 - 540 + random_bits() % 20) << 52 | mantissa);
    }
}

static f32 random_f32(void)
{
    uint32_t b = (uint32_t)random_bits();
    f64 x = random_f64();
    return random_bits() % 2 ? bits_u32_f32(b) : (f32)x;
}

static bool same_f64(f64 a, f64 b) { return (a != a && b != b) || bits_f64_u64(a) == bits_f64_u64(b); }
static bool same_f32(f32 a, f32 b) { return (a != a && b != b) || bits_f32_u32(a) == bits_f32_u32(b); }

static void products(int times)
{
    for (int i = 0; i < times; i++) {
        volatile f64 a = random_f64(), b = random_f64(), c = random_f64();
        if (i % 3 == 0)
            c = -(a * b); /* what remains is what the product has lost */
        if (i % 3 == 1 && fabs(a * b) < 0x1p900)
            c = a * b * (1 + ldexp((f64)(random_bits() % 8), -(int)(random_bits() % 120)));
        SAME(same_f64(fma_f64(a, b, c), fma(a, b, c)), "fma_f64(%a, %a, %a) is %a, not %a", a, b, c, fma_f64(a, b, c),
              fma(a, b, c));
        volatile f32 x = random_f32(), y = random_f32(), z = random_f32();
        if (i % 3 == 0)
            z = -(x * y);
        SAME(same_f32(fma_f32(x, y, z), fmaf(x, y, z)), "fma_f32(%a, %a, %a) is %a, not %a", x, y, z,
              fma_f32(x, y, z), fmaf(x, y, z));
    }
}

static void roots(int times)
{
    for (int i = 0; i < times; i++) {
        volatile f64 a = random_f64();
        volatile f32 x = random_f32();
        if (i % 2)
            a = fabs(a), x = fabsf(x);
        if (i % 8 == 1)
            a = nextafter(a * a, random_bits() % 2 ? INFINITY : 0); /* next to a square */
        SAME(same_f64(sqrt_f64(a), sqrt(a)), "sqrt_f64(%a) is %a, not %a", a, sqrt_f64(a), sqrt(a));
        SAME(same_f32(sqrt_f32(x), sqrtf(x)), "sqrt_f32(%a) is %a, not %a", x, sqrt_f32(x), sqrtf(x));
        SAME(same_f64(rint_f64(a), rint(a)), "rint_f64(%a) is %a", a, rint_f64(a));
        SAME(same_f32(rint_f32(x), rintf(x)), "rint_f32(%a) is %a", x, rint_f32(x));
    }
}

/* Every half, and numbers at and around the middle of two of them. */
static void halves(void)
{
    for (uint32_t b = 0; b < 1u << 16; b++) {
        union { uint16_t bits; half x; } h = {(uint16_t)b};
        f32 wide = (f32)h.x, next = b & 0x7fff ? f32_f16((f16)(b - 1)) : 0, middle = (wide + next) / 2;
        SAME(same_f32(f32_f16((f16)b), wide), "f16 %04" PRIx32 " is %a, not %a", b, f32_f16((f16)b), wide);
        for (int step = -1; step <= 1; step++) {
            f32 x = step ? nextafterf(middle, step < 0 ? -INFINITY : INFINITY) : middle;
            h.x = (half)x;
            SAME(f16_f32(x) == h.bits || x != x, "f16 of %a is %04x, not %04x", x, f16_f32(x), h.bits);
        }
        SAME(same_f32(f32_bf16((bf16)b), bits_u32_f32(b << 16)), "bf16 %04" PRIx32, b);
        SAME(bf16_f32(f32_bf16((bf16)b)) == ((b & 0x7fff) > 0x7f80 ? b | 64 : b), "bf16 %04" PRIx32 " and back", b);
    }
    for (int i = 0; i < 100000; i++) {
        volatile f32 x = random_f32();
        union { uint16_t bits; half x; } h = {.x = (half)x};
        SAME(f16_f32(x) == h.bits || x != x, "f16 of %a is %04x, not %04x", x, f16_f32(x), h.bits);
        f32 back = f32_bf16(bf16_f32(x)), low = bits_u32_f32(bits_f32_u32(x) & 0xffff0000u);
        bool beyond = fabsf(x) >= 0x1.ffp127f && fabsf(back) > FLT_MAX;
        SAME(x != x || back == x || beyond || fabs((f64)back - x) <= fabs((f64)low - x), "bf16 of %a is %a", x, back);
    }
}

int main(int argc, char **argv)
{
    int times = argc > 1 ? atoi(argv[1]) : 300000;
    products(times);
    check(!wrong, "%u products are wrong", wrong);
    wrong = 0;
    roots(times);
    check(!wrong, "%u roots or roundings are wrong", wrong);
    wrong = 0;
    halves();
    check(!wrong, "%u conversions of halfs are wrong", wrong);
    return finish();
}
#endif
