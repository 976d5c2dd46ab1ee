/* Models that Kiln writes: read back they give the same, as they do by onnx's checker and onnxruntime.
 *
 * Argument: a Python with onnx and onnxruntime; without one python3, and what it lacks is skipped. */
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <kiln/train.h>
#include <unistd.h>

static kl_device dev;
static char folder[] = "/tmp/kiln-model-XXXXXX";
static const char *python = "python3";

typedef kl_tensor net(const kl_tensor *in);

static kl_status call_net(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = (*(net **)ctx)(in);
    return KL_OK;
}

static kl_tensor numbers(kl_dtype dtype, int rank, const int64_t *dims, int seed)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    float *v = malloc(((size_t)n + 1) * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)((i * 7 + seed * 3) % 13) / 4 - 1.3f;
    kl_tensor t = kl_input(dev, KL_F32, rank, dims, v);
    free(v);
    return dtype == KL_F32 ? t : kl_cast(t, dtype);
}
#define NUMBERS(seed, ...) numbers(KL_F32, DIMS(__VA_ARGS__), seed)

/* ---- functions of one or two inputs [4, 6] f32 ---- */

static kl_tensor weight;
static kl_tensor f_linear(const kl_tensor *in) { return kl_relu(kl_linear(in[0], weight, kl_none)); }
static kl_tensor f_rational(const kl_tensor *in)
{
    return kl_div(kl_sub(in[0], in[1]), kl_add_scalar(kl_square(in[1]), 1));
}
static kl_tensor f_functions(const kl_tensor *in)
{
    kl_tensor p = kl_add_scalar(kl_abs(in[0]), 0.5), y = kl_add(kl_exp(in[0]), kl_log(p));
    y = kl_add(y, kl_add(kl_tanh(in[0]), kl_erf(in[1])));
    y = kl_add(y, kl_add(kl_sqrt(p), kl_rsqrt(p)));
    y = kl_add(y, kl_add(kl_sin(in[0]), kl_sigmoid(in[1])));
    y = kl_add(y, kl_add(kl_floor(in[0]), kl_round(in[1])));
    y = kl_add(y, kl_add(kl_trunc(in[0]), kl_expm1(in[1])));
    return kl_add(y, kl_add(kl_log1p(p), kl_exp2(in[1])));
}
static kl_tensor f_compare(const kl_tensor *in)
{
    kl_tensor a = kl_lt(in[0], in[1]), b = kl_ne(in[0], kl_abs(in[0]));
    return kl_where(kl_and(a, kl_not(b)), in[0], kl_maximum(in[1], kl_mul_scalar(in[0], 2)));
}
static kl_tensor f_softmax(const kl_tensor *in) { return kl_softmax(in[0], 1); }
static kl_tensor f_norm(const kl_tensor *in) { return kl_layer_norm(in[0], 1, kl_none, kl_none, 1e-5); }
static kl_tensor f_views(const kl_tensor *in)
{
    kl_tensor t = kl_permute(in[0], (int[]){1, 0});                                    /* [6, 4] */
    t = kl_flip(kl_reshape(t, DIMS(3, 8)), AXES(0, 1));
    t = kl_slice(t, (int64_t[]){0, 1}, (int64_t[]){3, 7}, (int64_t[]){2, 3});
    return kl_concat(2, (kl_tensor[]){t, kl_mul_scalar(t, 2)}, 1);
}
static kl_tensor f_pad(const kl_tensor *in)
{
    return kl_pad(in[0], (int64_t[]){1, 2}, (int64_t[]){0, 1}, 0.5);
}
static kl_tensor f_reduce(const kl_tensor *in)
{
    kl_tensor a = kl_sum(in[0], AXES(0), true), b = kl_mean(in[0], AXES(1), true);
    return kl_add(kl_add(a, b), kl_sub(kl_max(in[0], AXES(1), true), kl_min(in[1], AXES(0), true)));
}
static kl_tensor f_conv(const kl_tensor *in)
{
    kl_tensor x = kl_reshape(kl_concat(2, in, 0), DIMS(1, 2, 4, 6));
    kl_tensor w = kl_reshape(kl_narrow(kl_reshape(weight, DIMS(30)), 0, 0, 18), DIMS(3, 1, 2, 3));
    x = kl_conv(x, kl_concat(2, (kl_tensor[]){w, kl_neg(w)}, 1), kl_none, NULL, (int64_t[]){1, 1}, (int64_t[]){1, 1},
                NULL, 1);
    return kl_max_pool(x, 2, (int64_t[]){2, 2}, NULL, NULL, NULL, NULL);
}
static kl_tensor f_attention(const kl_tensor *in)
{
    kl_tensor q = kl_reshape(in[0], DIMS(2, 4, 3)), k = kl_reshape(in[1], DIMS(2, 4, 3));
    return kl_attention(q, k, kl_mul_scalar(k, 3), kl_none, true);
}
static kl_tensor f_gather(const kl_tensor *in)
{
    kl_tensor index = kl_reshape(kl_narrow(in[1], 1, 0, 1), DIMS(4));
    return kl_take(in[0], 0, kl_cast(kl_mul_scalar(index, 3), KL_I32)); /* some out of range */
}
static kl_tensor f_sort(const kl_tensor *in)
{
    return kl_add(kl_sort(in[0], 1, true), kl_cumsum(in[1], 1, false, false));
}
static kl_tensor f_batched(const kl_tensor *in)
{
    kl_tensor a = kl_reshape(in[0], DIMS(2, 4, 3)), b = kl_reshape(in[1], DIMS(2, 3, 4));
    return kl_matmul(a, b);
}
static kl_tensor f_einsum(const kl_tensor *in) { return kl_einsum("ab,cb->ca", 2, in); }
static kl_tensor f_gradient(const kl_tensor *in)
{
    return kl_grad(kl_sum_all(kl_tanh(kl_matmul(in[0], weight))), weight);
}
static kl_tensor f_half(const kl_tensor *in)
{
    return kl_cast(kl_mul(kl_cast(in[0], KL_F16), kl_cast(in[1], KL_F16)), KL_F32);
}

static kl_tensor index_of(kl_tensor a, int64_t n) /* some out of range */
{
    kl_tensor i = kl_cast(kl_mul_scalar(kl_narrow(kl_reshape(a, DIMS(24)), 0, 0, n), 3), KL_I32);
    return n == 4 ? kl_reshape(i, DIMS(2, 2)) : i;
}
static kl_tensor f_scatter(const kl_tensor *in)
{
    kl_tensor rows = kl_narrow(in[1], 1, 0, 3), columns = kl_reshape(kl_narrow(in[0], 1, 0, 4), DIMS(4, 2, 2));
    kl_tensor y = kl_index_add(in[0], 1, index_of(in[1], 3), rows);
    y = kl_index_max(y, 1, index_of(in[0], 4), columns);
    y = kl_index_min(y, 0, kl_narrow(index_of(in[1], 3), 0, 0, 2), kl_narrow(in[1], 0, 0, 2));
    return kl_index_copy(y, 1, kl_const(dev, KL_I32, 2), kl_reshape(kl_narrow(in[1], 1, 0, 1), DIMS(4)));
}
static kl_tensor f_along(const kl_tensor *in)
{
    kl_tensor at = kl_argsort(in[1], 1, false);
    return kl_add(kl_take_along_axis(in[0], 1, at), kl_add_along_axis(in[0], 1, at, in[1]));
}
static kl_tensor f_dynamic(const kl_tensor *in)
{
    kl_tensor i = kl_reshape(kl_narrow(index_of(in[0], 3), 0, 0, 1), 0, NULL), start[2] = {kl_none, i};
    kl_tensor part = kl_dynamic_slice(in[0], start, (int64_t[]){4, 2});
    return kl_dynamic_update(in[1], kl_mul_scalar(part, 2), start);
}
static kl_tensor f_quantize(const kl_tensor *in)
{
    kl_tensor scale = kl_add_scalar(kl_abs(kl_reshape(kl_narrow(in[1], 0, 0, 1), DIMS(6))), 0.01);
    kl_tensor zero = kl_cast(kl_full(dev, KL_F32, DIMS(6), 3), KL_I8), one = kl_const(dev, KL_F32, 0.02);
    kl_tensor q = kl_quantize(in[0], scale, zero, KL_I8, 1), all = kl_quantize(in[1], one, kl_none, KL_U8, 0);
    return kl_add(kl_dequantize(q, scale, zero, 1), kl_dequantize(all, one, kl_none, 0));
}
static kl_status step_of(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor square = kl_matmul(weight, kl_permute(weight, (int[]){1, 0}));
    out[0] = kl_tanh(kl_add(kl_matmul(kl_reshape(in[0], DIMS(1, 6)), square), kl_reshape(in[1], DIMS(1, 6))));
    out[0] = kl_reshape(out[0], DIMS(6));
    out[1] = kl_mul(out[0], in[1]);
    return KL_OK;
}
static kl_tensor scan_of(const kl_tensor *in, bool reverse)
{
    kl_tensor out[2] = {kl_none, kl_none}, first = kl_reshape(kl_narrow(in[1], 0, 0, 1), DIMS(6));
    kl_scan(step_of, NULL, 4, 1, &first, 1, in, 1, reverse, out);
    return kl_add(out[1], out[0]);
}
static kl_tensor f_scan(const kl_tensor *in) { return scan_of(in, false); }
static kl_tensor f_scan_reverse(const kl_tensor *in) { return scan_of(in, true); }
static kl_status doubled(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_mul_scalar(in[0], 2);
    return KL_OK;
}
static kl_tensor f_repeat(const kl_tensor *in)
{
    kl_tensor out = kl_none;
    kl_scan(doubled, NULL, 3, 1, in, 0, NULL, 0, false, &out);
    return out;
}
static kl_status small(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_lt(kl_sum_all(kl_square(in[0])), kl_const(dev, KL_F32, 1000));
    return KL_OK;
}
static kl_tensor f_while(const kl_tensor *in)
{
    kl_tensor out = kl_none;
    kl_while(small, doubled, NULL, 1, in, &out);
    return out;
}
static kl_status negated(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_neg(in[0]);
    return KL_OK;
}
static kl_tensor f_cond(const kl_tensor *in)
{
    kl_tensor out[2] = {kl_none, kl_none}, big = kl_gt(kl_sum_all(in[0]), kl_sum_all(in[1]));
    kl_cond(big, doubled, negated, NULL, 1, in, 1, &out[0]);
    kl_cond(kl_not(big), doubled, negated, NULL, 1, in, 1, &out[1]);
    return kl_concat(2, out, 0);
}

static const struct { const char *name; net *fn; double tolerance; } nets[] = {
    {"scatter", f_scatter, 1e-6}, {"along", f_along, 1e-6}, {"dynamic", f_dynamic, 0}, {"quantize", f_quantize, 1e-6},
    {"scan", f_scan, 1e-5}, {"scan_reverse", f_scan_reverse, 1e-5}, {"repeat", f_repeat, 0}, {"while", f_while, 0},
    {"cond", f_cond, 0},
    {"linear", f_linear, 1e-5}, {"rational", f_rational, 1e-6}, {"functions", f_functions, 1e-5},
    {"compare", f_compare, 0}, {"softmax", f_softmax, 1e-6}, {"norm", f_norm, 1e-5}, {"views", f_views, 0},
    {"pad", f_pad, 0}, {"reduce", f_reduce, 1e-5}, {"conv", f_conv, 1e-5}, {"attention", f_attention, 1e-5},
    {"gather", f_gather, 0}, {"sort", f_sort, 1e-5}, {"batched", f_batched, 1e-5}, {"einsum", f_einsum, 1e-5},
    {"gradient", f_gradient, 1e-5}, {"half", f_half, 2e-3},
};

static void check_net(const char *name, net *fn, double tolerance)
{
    static const char *const in_names[] = {"first", "second"}, *const out_names[] = {"result"};
    char path[200];
    snprintf(path, sizeof path, "%s/%s.onnx", folder, name);
    device_now = name;
    kl_tensor in[2] = {NUMBERS(1, 4, 6), NUMBERS(2, 4, 6)}, other[2] = {NUMBERS(5, 4, 6), NUMBERS(9, 4, 6)}, got;
    if (!OK(kl_model_save(path, call_net, &fn, 2, in, in_names, 1, out_names)))
        return;
    kl_model *m = kl_model_open(dev, path);
    if (!CHECK(m != NULL))
        return;
    kl_model_value v;
    CHECK(kl_model_inputs(m) == 2 && kl_model_input(m, 1, &v) == KL_OK && !strcmp(v.name, "second") && v.dims[1] == 6);
    CHECK(kl_model_outputs(m) == 1 && kl_model_output(m, 0, &v) == KL_OK && !strcmp(v.name, "result"));
    OK(kl_model_call(m, 2, other, 1, &got));
    kl_tensor want = fn(other);
    double *w = values_of(want);
    int64_t n = kl_numel(want);
    CHECK(kl_rank(got) == kl_rank(want) && v.rank == kl_rank(want));
    if (CHECK(w != NULL))
        NEAR(got, n, w, tolerance);
    free(w);
    snprintf(path, sizeof path, "%s/%s.npz", folder, name); /* for other readers */
    kl_file_item items[3] = {{.name = "first", .tensor = other[0]}, {.name = "second", .tensor = other[1]},
                             {.name = "result", .tensor = want}};
    OK(kl_file_write(path, KL_FILE_NPZ, 3, items, 0, NULL));
    kl_release(want);
    kl_model_close(m);
}

/* Checks all models and compares their results; the tolerance is that of the names. */
static const char script[] =
    "import glob, numpy, onnx, onnxruntime\n"
    "for path in sorted(glob.glob('*.onnx')):\n"
    "    onnx.checker.check_model(onnx.load(path), full_check=True)\n"
    "    data = numpy.load(path[:-5] + '.npz')\n"
    "    s = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])\n"
    "    y = s.run(None, {i.name: data[i.name] for i in s.get_inputs()})[0]\n"
    "    assert y.shape == data['result'].shape, path\n"
    "    worst = float(numpy.max(numpy.abs(y - data['result'])))\n"
    "    assert worst <= (2e-3 if path == 'half.onnx' else 2e-5), (path, worst)\n"
    "    print(path, worst)\n";

/* 1: skipped */
static int check_by_others(void)
{
    char line[600], path[200];
    snprintf(line, sizeof line, "%s -c 'import onnx, onnxruntime' 2>/dev/null", python);
    if (system(line)) {
        printf("SKIP no-tool onnx: %s has no modules onnx and onnxruntime\n", python);
        return 1;
    }
    snprintf(path, sizeof path, "%s/check.py", folder);
    FILE *f = fopen(path, "w");
    if (f)
        fputs(script, f), fclose(f);
    snprintf(line, sizeof line, "cd %s && %s check.py", folder, python);
    fflush(stdout);
    device_now = "onnxruntime";
    CHECK(f && system(line) == 0);
    return 0;
}

/* ---- what cannot be written ---- */

static kl_tensor f_random(const kl_tensor *in) { return kl_add(in[0], kl_rand(dev, KL_F32, DIMS(4, 6), 3)); }
static kl_tensor f_fails(const kl_tensor *in) { return kl_matmul(in[0], in[1]); }
static kl_tensor f_other(const kl_tensor *in) { return weight.id ? weight : in[0]; }

static void check_errors(void)
{
    char path[200];
    net *fn = f_random;
    kl_tensor in[2] = {NUMBERS(1, 4, 6), NUMBERS(2, 4, 6)};
    snprintf(path, sizeof path, "%s/bad.onnx", folder);
    device_now = "errors";
    CHECK(kl_model_save(path, call_net, &fn, 2, in, NULL, 1, NULL) == KL_ERR_TYPE);
    CHECK(strstr(kl_last_error(), "random") && strstr(kl_last_error(), "[4,6]") &&
          strstr(kl_last_error(), "api_model_save.c:"));
    fn = f_fails;
    CHECK(kl_model_save(path, call_net, &fn, 2, in, NULL, 1, NULL) == KL_ERR_SHAPE);
    fn = f_other;
    CHECK(kl_model_save(path, call_net, &fn, 2, in, NULL, 1, NULL) == KL_ERR_ARGUMENT);
    fn = f_rational;
    CHECK(kl_model_save("/nonexistent/x.onnx", call_net, &fn, 2, in, NULL, 1, NULL) == KL_ERR_IO);
    CHECK(kl_model_save(NULL, call_net, &fn, 2, in, NULL, 1, NULL) == KL_ERR_ARGUMENT);
    const char *const twice[] = {"x", "x"}, *const empty[] = {"", "y"};
    CHECK(kl_model_save(path, call_net, &fn, 2, in, twice, 1, NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_model_save(path, call_net, &fn, 2, in, empty, 1, NULL) == KL_ERR_ARGUMENT);
    kl_trace_begin("open");
    CHECK(kl_model_save(path, call_net, &fn, 2, in, NULL, 1, NULL) == KL_ERR_TRACE);
    kl_trace_end();
    CHECK(access(path, F_OK) != 0); /* nothing was left */
    OK(kl_model_save(path, call_net, &fn, 2, in, NULL, 1, NULL)); /* the next call works */
    unlink(path);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        python = argv[1];
    if (!mkdtemp(folder))
        return 1;
    dev = kl_device_named("cpu");
    if (!dev.id)
        dev = kl_device_named("ref");
    weight = kl_keep(NUMBERS(3, 6, 5));
    kl_requires_grad(weight);
    kl_model *probe = kl_model_open(dev, "/nonexistent.onnx");
    bool reads = !probe && !strstr(kl_last_error(), "reads no ONNX");
    for (size_t i = 0; reads && i < sizeof nets / sizeof *nets; i++)
        check_net(nets[i].name, nets[i].fn, nets[i].tolerance);
    int skipped = check_by_others();
    check_errors();
    char line[100];
    snprintf(line, sizeof line, "rm -r %s", folder);
    CHECK(system(line) == 0);
    if (!reads)
        printf("SKIP not-built onnx: %s\n", kl_last_error());
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped + !reads);
    return failed != 0;
}
