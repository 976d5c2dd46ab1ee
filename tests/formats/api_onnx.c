/* The models that ONNX's own project tests backends with (Debian: libonnx-testdata), each with inputs and outputs.
 *
 * Arguments: a device, the list of models that pass (tests/formats/onnx_passes.def), and, if only some are to run, a
 * part of their names.  Each model runs in a trace, fused, and outside of one, unfused; where a trace does not know a
 * number that decides a shape, only outside.  The results have to be the same bits, and as close to the expected ones
 * as ONNX's own test driver asks.  A model that is in the list has to pass; KILN_BLESS=1 adds those that pass to it.
 *
 * KILN_TEST_ONNX names another folder of such models.  ONNX's Python package writes one (FOLDER/node must exist):
 * `python -m onnx.backend.test.cmd_tools generate-data -o FOLDER`. */
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <dirent.h>
#include <sys/stat.h>

enum { MAX_VALUES = 64, MAX_MODELS = 4096, MAX_OPERATORS = 256 };
enum outcome { PASSED, WRONG, UNSUPPORTED };

static const char *data = "/usr/share/libonnx-testdata/data";
static kl_device device;
static bool verbose;

/* ---- the operators of a file, read from its bytes: a model (7) has a graph (1), a node's operator is field 4 ---- */

static struct operators { char name[MAX_OPERATORS][64]; int count[MAX_OPERATORS][3], n; } operators;

static const uint8_t *varint(const uint8_t *p, const uint8_t *end, uint64_t *v)
{
    *v = 0;
    for (unsigned shift = 0; p < end && shift < 64; shift += 7) {
        *v |= (uint64_t)(*p & 0x7f) << shift;
        if (!(*p++ & 0x80))
            return p;
    }
    return end;
}

static void count_operator(const uint8_t *name, size_t len, enum outcome o, uint64_t *seen)
{
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)len, (const char *)name);
    int i = 0;
    while (i < operators.n && strcmp(operators.name[i], text))
        i++;
    if (i == MAX_OPERATORS || seen[i / 64] >> i % 64 & 1)
        return;
    seen[i / 64] |= UINT64_C(1) << i % 64;
    if (i == operators.n)
        memcpy(operators.name[operators.n++], text, sizeof text);
    operators.count[i][o]++;
}

/* path: the fields that lead to the operators */
static void count_operators(const uint8_t *p, const uint8_t *end, const uint32_t *path, enum outcome o, uint64_t *seen)
{
    while (p < end) {
        uint64_t tag, n;
        p = varint(p, end, &tag);
        if ((tag & 7) == 2) {
            p = varint(p, end, &n);
            if (n > (uint64_t)(end - p))
                return;
            if (tag >> 3 == path[0] && !path[1])
                count_operator(p, n, o, seen);
            else if (tag >> 3 == path[0])
                count_operators(p, p + n, path + 1, o, seen);
            p += n;
        } else if ((tag & 7) == 0) {
            p = varint(p, end, &n);
        } else {
            p += (tag & 7) == 1 ? 8 : 4;
        }
    }
}

static void note(const char *folder, enum outcome o)
{
    char path[600];
    uint64_t seen[MAX_OPERATORS / 64 + 1] = {0};
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    FILE *f = fopen(path, "rb");
    static uint8_t bytes[1 << 22];
    size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f)
        fclose(f);
    count_operators(bytes, bytes + n, (uint32_t[]){7, 1, 4, 0}, o, seen);
}

/* ---- one model ---- */

static int read_all(const char *folder, const char *what, kl_tensor *t)
{
    int n = 0;
    for (; n < MAX_VALUES; n++) {
        char path[600];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s_%d.pb", folder, what, n);
        if (stat(path, &st))
            break;
        t[n] = kl_model_read_tensor(device, path);
        if (!t[n].id)
            return -1;
    }
    return n;
}

/* ONNX's files hold bf16 as its bits. */
static void bits_to_bf16(kl_tensor *t, kl_dtype dtype)
{
    if (dtype == KL_BF16 && kl_dtype_of(*t) == KL_U16)
        *t = kl_bitcast(*t, KL_BF16);
}

static bool same_type(kl_tensor a, kl_tensor b)
{
    int64_t x[KL_MAX_RANK], y[KL_MAX_RANK];
    int rank = kl_shape(a, x);
    return kl_dtype_of(a) == kl_dtype_of(b) && rank >= 0 && rank == kl_shape(b, y) &&
           !memcmp(x, y, (size_t)rank * sizeof *x);
}

static bool close_to(const char *name, int k, kl_tensor got, kl_tensor want)
{
    if (!same_type(got, want)) {
        int64_t d[KL_MAX_RANK], e[KL_MAX_RANK];
        int r = kl_shape(got, d), s = kl_shape(want, e);
        printf("WRONG %s: output %d is %s[", name, k, kl_dtype_name(kl_dtype_of(got)));
        for (int i = 0; i < r; i++)
            printf("%s%lld", i ? "," : "", (long long)d[i]);
        printf("], not %s[", kl_dtype_name(kl_dtype_of(want)));
        for (int i = 0; i < s; i++)
            printf("%s%lld", i ? "," : "", (long long)e[i]);
        printf("]\n");
        return false;
    }
    double *a = values_of(got), *b = values_of(want);
    bool ok = a && b;
    kl_dtype d = kl_dtype_of(want);
    bool is_float = d == KL_F16 || d == KL_BF16 || d == KL_F32 || d == KL_F64;
    double relative = d == KL_BF16 ? 0x1p-7 : 1e-3; /* what wrote the files cut bits off; ONNX says round */
    if ((d == KL_BF16 || d == KL_F16) && (strstr(name, "attention") || strstr(name, "_expanded")))
        relative = d == KL_BF16 ? 0x1p-6 : 0x1p-9; /* after several roundings: two units in the last place */
    /* rounding errors of f32 where zeros are exact; onnxruntime's polynomial of tanh */
    double absolute = strstr(name, "dft_inverse") || strstr(name, "FastGelu") ? 1e-6 : 1e-7;
    for (int64_t i = 0, n = kl_numel(want); ok && i < n; i++) {
        ok = a[i] == b[i] || (a[i] != a[i] && b[i] != b[i]) ||
             (is_float && fabs(a[i] - b[i]) <= absolute + relative * fabs(b[i]));
        if (!ok)
            printf("WRONG %s: output %d[%lld] is %.9g, not %.9g\n", name, k, (long long)i, a[i], b[i]);
    }
    if (!a || !b)
        printf("WRONG %s: output %d: %s\n", name, k, kl_last_error());
    free(a);
    free(b);
    return ok;
}

/* NaNs may differ in their bits. */
static bool same_bits(const char *name, int k, kl_tensor a, kl_tensor b)
{
    double *x = values_of(a), *y = values_of(b);
    bool ok = x && y && same_type(a, b);
    for (int64_t i = 0, n = kl_numel(a); ok && i < n; i++)
        ok = (x[i] == y[i] && signbit(x[i]) == signbit(y[i])) || (x[i] != x[i] && y[i] != y[i]);
    if (!ok)
        printf("WRONG %s: output %d is not the same fused and unfused\n", name, k);
    free(x);
    free(y);
    return ok;
}

static kl_status call(kl_model *m, bool traced, const char *name, int nin, const kl_tensor *in, int nout,
                      kl_tensor *out)
{
    kl_set_option("fuse", traced);
    if (!traced)
        return kl_model_call(m, (uint32_t)nin, in, (uint32_t)nout, out);
    kl_trace_begin(name);
    kl_status status = kl_model_call(m, (uint32_t)nin, in, (uint32_t)nout, out);
    for (int i = 0; status == KL_OK && i < nout; i++)
        kl_keep(out[i]);
    kl_status end = kl_trace_end();
    return status ? status : end;
}

/* Of one way to run it; *traced_ok: whether a trace could. */
static enum outcome run_set(kl_model *m, const char *name, const char *folder, bool *traced_ok)
{
    kl_tensor in[MAX_VALUES], want[MAX_VALUES], out[2][MAX_VALUES];
    int nin = read_all(folder, "input", in), nwant = read_all(folder, "output", want);
    if (nin < 0 || nwant < 0 || (uint32_t)nwant > kl_model_outputs(m)) {
        if (verbose)
            printf("UNSUPPORTED %s: %s\n", name, kl_last_error());
        return UNSUPPORTED;
    }
    for (int i = 0; i < nin; i++) {
        kl_model_value v;
        if (kl_model_input(m, (uint32_t)i, &v) == KL_OK)
            bits_to_bf16(&in[i], v.dtype);
    }
    for (int i = 0; i < nwant; i++) {
        kl_model_value v;
        if (kl_model_output(m, (uint32_t)i, &v) == KL_OK)
            bits_to_bf16(&want[i], v.dtype);
    }
    enum outcome o = PASSED;
    for (int traced = 1; traced >= 0 && o == PASSED; traced--) {
        kl_status status = call(m, traced, name, nin, in, nwant, out[traced]);
        if (status == KL_ERR_TRACE && traced) {
            *traced_ok = false;
            continue;
        }
        if (status && verbose)
            printf("UNSUPPORTED %s: %s\n", name, kl_last_error());
        o = status ? UNSUPPORTED : PASSED;
        for (int i = 0; i < nwant && o == PASSED; i++)
            if (!close_to(name, i, out[traced][i], want[i]))
                o = WRONG;
    }
    for (int i = 0; i < nwant && o == PASSED && *traced_ok; i++)
        if (!same_bits(name, i, out[0][i], out[1][i]))
            o = WRONG;
    return o;
}

/* Models whose expected results are not what they say: random numbers of NumPy's generator; of test_adam_multiple,
 * those of an epsilon that is not in the model. */
static bool has_other_results(const char *name)
{
    static const char *const other[] = {
        "node/test_training_dropout", "node/test_training_dropout_mask", "node/test_training_dropout_default",
        "node/test_training_dropout_default_mask", "node/test_adam_multiple",
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (!strcmp(name, other[i]))
            return true;
    return strstr(name, "bernoulli") != NULL;
}

static enum outcome run_model(const char *folder, const char *name, bool *traced_ok)
{
    char path[600];
    *traced_ok = true;
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    kl_scope_begin();
    kl_model *m = kl_model_open(device, path);
    enum outcome o = m && !has_other_results(name) ? PASSED : UNSUPPORTED;
    if (!m && verbose)
        printf("UNSUPPORTED %s: %s\n", name, kl_last_error());
    for (int set = 0; o == PASSED; set++) {
        struct stat st;
        snprintf(path, sizeof path, "%s/test_data_set_%d", folder, set);
        if (stat(path, &st))
            break;
        o = run_set(m, name, path, traced_ok);
    }
    kl_model_close(m);
    kl_scope_end();
    return o;
}

/* ---- all of them ---- */

static struct list { char name[MAX_MODELS][120]; int n; } models, listed;

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

static void find_models(const char *group, const char *part)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", data, group);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (!strncmp(e->d_name, "test_", 5) && models.n < MAX_MODELS && (!part || strstr(e->d_name, part)))
            snprintf(models.name[models.n++], sizeof models.name[0], "%s/%.90s", group, e->d_name);
    if (d)
        closedir(d);
}

static bool read_list(const char *path)
{
    FILE *f = fopen(path, "r");
    while (f && listed.n < MAX_MODELS && fgets(listed.name[listed.n], sizeof listed.name[0], f)) {
        listed.name[listed.n][strcspn(listed.name[listed.n], "\n")] = 0;
        listed.n += listed.name[listed.n][0] != 0;
    }
    if (f)
        fclose(f);
    return f != NULL;
}

static bool is_listed(const char *name)
{
    return bsearch(name, listed.name, (size_t)listed.n, sizeof listed.name[0], by_name) != NULL;
}

static void write_list(const char *path, const bool *ok)
{
    for (int i = 0, n = listed.n; i < models.n; i++)
        if (ok[i] && listed.n < MAX_MODELS) {
            bool there = false;
            for (int k = 0; k < n; k++)
                there |= !strcmp(listed.name[k], models.name[i]);
            if (!there)
                snprintf(listed.name[listed.n++], sizeof listed.name[0], "%s", models.name[i]);
        }
    qsort(listed.name, (size_t)listed.n, sizeof listed.name[0], by_name);
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < listed.n; i++)
        fprintf(f, "%s\n", listed.name[i]);
    if (!f || fclose(f))
        printf("FAIL cannot write %s\n", path);
}

static void print_operators(void)
{
    printf("operator: models passed, wrong, unsupported\n");
    for (int i = 0; i < operators.n; i++) {
        const int *c = operators.count[i];
        printf("  %s: %d %d %d\n", operators.name[i], c[PASSED], c[WRONG], c[UNSUPPORTED]);
    }
}

int main(int argc, char **argv)
{
    static const char *const groups[] = {"node", "pytorch-converted", "pytorch-operator", "simple"};
    static bool ok[MAX_MODELS];
    struct stat st;
    int count[3] = {0}, only_eager = 0, lost = 0;
    const char *list = argc > 2 ? argv[2] : NULL, *part = argc > 3 ? argv[3] : NULL;
    verbose = part || getenv("KILN_BLESS");
    if (getenv("KILN_TEST_ONNX"))
        data = getenv("KILN_TEST_ONNX");
    if (stat(data, &st)) {
        printf("SKIP no-data onnx: %s is not there\n0 passed, 0 failed, 1 skipped\n", data);
        return 0;
    }
    device = kl_device_named(argc > 1 ? argv[1] : "ref");
    device_now = kl_device_name(device);
    CHECK(device.id != 0);
    CHECK(!list || read_list(list));
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        find_models(groups[i], part);
    qsort(models.name, (size_t)models.n, sizeof models.name[0], by_name);
    for (int i = 0; i < models.n; i++) {
        char folder[300];
        bool traced_ok;
        snprintf(folder, sizeof folder, "%s/%s", data, models.name[i]);
        enum outcome o = run_model(folder, models.name[i], &traced_ok);
        note(folder, o);
        count[o]++;
        ok[i] = o == PASSED;
        only_eager += ok[i] && !traced_ok;
        if (list && !ok[i] && is_listed(models.name[i])) {
            printf("LOST %s: it is in %s: %s\n", models.name[i], list, kl_last_error());
            lost++;
        }
    }
    print_operators();
    printf("%d models: %d passed (%d of them not in a trace), %d wrong, %d unsupported\n", models.n, count[PASSED],
           only_eager, count[WRONG], count[UNSUPPORTED]);
    if (list && getenv("KILN_BLESS"))
        write_list(list, ok);
    CHECK(models.n > 0);
    CHECK(count[WRONG] == 0);
    CHECK(lost == 0);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
