/* Models that Kiln writes of every dtype: what an ONNX operator does not take is written between casts, or refused;
 * casts of floats saturate and integers divided by 0 are 0, as in Kiln.  Each model gives the same bits when it is read
 * back; with a Python that has onnx (the argument) its checker takes all of them.
 *
 * The pairs of operator and dtype that need a cast are those of ONNX 1.15's type constraints at opset 18. */
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <unistd.h>

static kl_device dev;
static char folder[] = "/tmp/kiln-types-XXXXXX";

typedef kl_tensor net(kl_tensor a, kl_tensor b);
#define NET(name, call) static kl_tensor name(kl_tensor a, kl_tensor b) { (void)b; return call; }
NET(f_abs, kl_abs(a))
NET(f_neg, kl_neg(a))
NET(f_sign, kl_sign(a))
NET(f_exp, kl_exp(a))
NET(f_sin, kl_sin(a))
NET(f_atan, kl_atan(a))
NET(f_tanh, kl_tanh(a))
NET(f_erf, kl_erf(a))
NET(f_sqrt, kl_sqrt(kl_abs(a)))
NET(f_round, kl_round(a))
NET(f_floor, kl_floor(a))
NET(f_trunc, kl_trunc(a))
NET(f_is_nan, kl_is_nan(a))
NET(f_is_finite, kl_is_finite(a))
NET(f_add, kl_add(a, b))
NET(f_sub, kl_sub(a, b))
NET(f_mul, kl_mul(a, b))
NET(f_div, kl_div(a, b))
NET(f_rem, kl_rem(a, b))
NET(f_max, kl_maximum(a, b))
NET(f_pow, kl_pow(kl_abs(a), b))
NET(f_eq, kl_eq(a, b))
NET(f_ne, kl_ne(a, b))
NET(f_lt, kl_lt(a, b))
NET(f_ge, kl_ge(a, b))
NET(f_and, kl_and(a, b))
NET(f_where, kl_where(kl_eq(a, b), a, b))
NET(f_sum, kl_sum(a, AXES(1), false))
NET(f_prod, kl_prod(a, AXES(1), false))
NET(f_reduce_max, kl_max(a, AXES(1), false))
NET(f_reduce_min, kl_min(a, AXES(0), true))
NET(f_cumsum, kl_cumsum(a, 1, false, false))
NET(f_argmax, kl_argmax(a, 1))
NET(f_sort, kl_sort(a, 1, false))
NET(f_matmul, kl_matmul(a, kl_transpose(b, 0, 1)))
NET(f_concat, kl_concat(2, ((kl_tensor[]){a, b}), 0))
NET(f_pad, kl_pad(a, NULL, ((int64_t[]){1, 1}), 1))
NET(f_gather, kl_take(a, 0, kl_cast(b, KL_I32)))
NET(f_scatter, kl_index_add(a, 0, kl_input(dev, KL_I32, 1, (int64_t[]){3}, ((int32_t[]){2, 0, 1})), b))
NET(f_softmax, kl_softmax(a, 1))
NET(f_to_u8, kl_cast(a, KL_U8))
NET(f_to_i8, kl_cast(a, KL_I8))
NET(f_to_u16, kl_cast(a, KL_U16))
NET(f_to_i32, kl_cast(a, KL_I32))
NET(f_to_u32, kl_cast(a, KL_U32))
NET(f_to_i64, kl_cast(a, KL_I64))
NET(f_to_u64, kl_cast(a, KL_U64))
NET(f_to_bool, kl_cast(a, KL_BOOL))
NET(f_to_bf16, kl_cast(a, KL_BF16))
NET(f_window, kl_max_pool(a, 2, ((int64_t[]){2, 2}), NULL, ((int64_t[]){1, 0}), NULL, NULL))

#define B(d) (1u << (d))
#define SMALL (B(KL_U8) | B(KL_U16) | B(KL_I8) | B(KL_I16))
/* needs: the dtypes of which the operator has to be written between casts */
static const struct { const char *name; net *fn; unsigned needs; double tolerance; } nets[] = {
#define ROW(name, needs, tolerance) {#name, f_##name, needs, tolerance}
    ROW(abs, 0, 0), ROW(neg, B(KL_U8) | B(KL_U16) | B(KL_U32) | B(KL_U64), 0), ROW(sign, 0, 0), ROW(exp, 0, 0),
    ROW(sin, B(KL_BF16), 0), ROW(atan, B(KL_BF16), 0), ROW(tanh, 0, 0), ROW(erf, 0, 0), ROW(sqrt, 0, 0),
    ROW(round, B(KL_BF16), 0), ROW(floor, 0, 0), ROW(trunc, 0, 0), ROW(is_nan, 0, 0),
    ROW(is_finite, B(KL_F16) | B(KL_BF16), 0), ROW(add, 0, 0), ROW(sub, 0, 0), ROW(mul, 0, 0), ROW(div, 0, 0),
    ROW(rem, 0, 0), ROW(max, 0, 0), ROW(pow, 0, 0), ROW(eq, 0, 0), ROW(ne, 0, 0), ROW(lt, B(KL_BOOL), 0),
    ROW(ge, B(KL_BOOL), 0), ROW(and, 0, 0), ROW(where, 0, 0), ROW(sum, SMALL, 1e-2), ROW(prod, SMALL, 1e-2),
    ROW(reduce_max, B(KL_U16) | B(KL_I16), 0), ROW(reduce_min, B(KL_U16) | B(KL_I16), 0), ROW(cumsum, SMALL, 1e-2),
    ROW(argmax, B(KL_U16) | B(KL_I16), 0), ROW(sort, B(KL_BF16), 0), ROW(matmul, SMALL, 1e-2), ROW(concat, 0, 0),
    ROW(pad, 0, 0), ROW(gather, 0, 0), ROW(scatter, 0, 1e-2), ROW(softmax, 0, 1e-2), ROW(to_u8, 0, 0),
    ROW(to_i8, 0, 0), ROW(to_u16, 0, 0), ROW(to_i32, 0, 0), ROW(to_u32, 0, 0), ROW(to_i64, 0, 0), ROW(to_u64, 0, 0),
    ROW(to_bool, 0, 0), ROW(to_bf16, 0, 0), ROW(window, B(KL_U16) | B(KL_I16), 0),
};

static kl_status call_net(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = (*(net *const *)ctx)(in[0], in[1]);
    return KL_OK;
}

/* [3, 4] with the numbers that differ between kinds of numbers: 0, -1, beyond each integer's range, NaN. */
static kl_tensor numbers(kl_dtype d, int which, bool large)
{
    static const double small[2][12] = {{1, 2, 0, 3, 5, 1, 2, 4, 0, 7, 1, 2}, {3, 0, 2, -1, 4, 6, 1, 0, 2, -1, 1, 5}},
                        wide[2][12] = {{300, -5, 3e10, -3e10, NAN, 7.9, 0x1p31, 65535.5, -129, 1e19, -0.9, INFINITY},
                                       {0, -1, 2, -1, 3, 0, -1, 7, 100, -1, 2, 5}};
    bool floats = d == KL_F16 || d == KL_BF16 || d == KL_F32 || d == KL_F64;
    double v[12];
    for (int i = 0; i < 12; i++)
        v[i] = large && (floats || which) ? wide[which][i] : small[which][i];
    kl_tensor t = kl_cast(kl_input(dev, KL_F64, DIMS(3, 4), v), d);
    if (!large || floats || which || d == KL_BOOL)
        return t;
    /* of integers the lowest number, which divided by -1 is itself */
    double lowest = d == KL_I8 ? -128 : d == KL_I16 ? -32768 : d == KL_I32 ? -0x1p31 : d == KL_I64 ? -0x1p63 : 200;
    return kl_cast(kl_full(dev, KL_F64, DIMS(3, 4), lowest), d);
}

static bool has_text(const char *path, const char *word)
{
    static char text[1 << 16];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0, size = strlen(word);
    if (f)
        fclose(f);
    for (size_t i = 0; i + size <= n; i++)
        if (!memcmp(text + i, word, size))
            return true;
    return false;
}

static bool same_values(kl_tensor got, kl_tensor want, double tolerance)
{
    double *x = values_of(got), *y = values_of(want);
    int64_t n = kl_numel(want);
    bool ok = x && y && kl_numel(got) == n && kl_dtype_of(got) == kl_dtype_of(want);
    for (int64_t i = 0; ok && i < n; i++) {
        ok = x[i] == y[i] || (isnan(x[i]) && isnan(y[i])) || fabs(x[i] - y[i]) <= tolerance * (1 + fabs(y[i]));
        if (!ok)
            printf("  element %lld is %.17g, not %.17g\n", (long long)i, x[i], y[i]);
    }
    free(x);
    free(y);
    return ok;
}

static void check_net(size_t i, kl_dtype d)
{
    net *fn = nets[i].fn;
    char path[200], label[60];
    snprintf(path, sizeof path, "%s/%s_%s.onnx", folder, nets[i].name, kl_dtype_name(d));
    snprintf(label, sizeof label, "%s of %s", nets[i].name, kl_dtype_name(d));
    device_now = label;
    kl_scope_begin();
    kl_tensor in[2] = {numbers(d, 0, false), numbers(d, 1, false)}, want = fn(in[0], in[1]), got;
    if (kl_check(want) == KL_OK) { /* the dtype has this op */
        kl_status s = kl_model_save(path, call_net, &fn, 2, in, (const char *[]){"a", "b"}, 1, (const char *[]){"y"});
        if (s == KL_ERR_TYPE)
            CHECK(strstr(kl_last_error(), "ONNX"));
        else if (OK(s) && nets[i].needs >> d & 1)
            CHECK(has_text(path, "Cast"));
        kl_model *m = s == KL_OK ? kl_model_open(dev, path) : NULL;
        for (int large = 0; m && large < 2; large++) {
            in[0] = numbers(d, 0, large);
            in[1] = numbers(d, 1, large);
            CHECK(kl_model_call(m, 2, in, 1, &got) == KL_OK && same_values(got, fn(in[0], in[1]), nets[i].tolerance));
        }
        kl_model_close(m);
    }
    kl_clear_error();
    kl_scope_end();
}

static const char script[] =
    "import glob, onnx\n"
    "n = 0\n"
    "for path in sorted(glob.glob('*.onnx')):\n"
    "    onnx.checker.check_model(onnx.load(path), full_check=True)\n"
    "    n += 1\n"
    "print(n, 'models pass the checker')\n";

/* 1: skipped */
static int check_by_onnx(const char *python)
{
    char line[600], path[200];
    snprintf(line, sizeof line, "%s -c 'import onnx' 2>/dev/null", python);
    if (system(line)) {
        printf("SKIP no-tool onnx: %s has no module onnx\n", python);
        return 1;
    }
    snprintf(path, sizeof path, "%s/check.py", folder);
    FILE *f = fopen(path, "w");
    if (f)
        fputs(script, f), fclose(f);
    snprintf(line, sizeof line, "cd %s && %s check.py", folder, python);
    fflush(stdout);
    device_now = "onnx";
    CHECK(f && system(line) == 0);
    return 0;
}

int main(int argc, char **argv)
{
    if (!mkdtemp(folder))
        return 1;
    dev = kl_device_named("ref");
    if (!dev.id)
        dev = kl_device_default();
    kl_model *probe = kl_model_open(dev, "/nonexistent.onnx");
    bool reads = !probe && !strstr(kl_last_error(), "reads no ONNX");
    for (size_t i = 0; reads && i < sizeof nets / sizeof *nets; i++)
        for (kl_dtype d = 0; d < KL_DTYPE_COUNT; d++)
            check_net(i, d);
    int skipped = check_by_onnx(argc > 1 ? argv[1] : "python3");
    char line[100];
    snprintf(line, sizeof line, "rm -r %s", folder);
    CHECK(system(line) == 0);
    if (!reads)
        printf("SKIP not-built onnx: %s\n", kl_last_error());
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped + !reads);
    return failed != 0;
}
