/* Operators of half floats: the results are those of the same operator in f32, rounded once, for each operator of
 * frontend/formats/onnx/ops.def that computes with floats (onnx_half.def).  Numbers are small, of order one, and so
 * large that their squares are no f16. */
#include "tests/formats/onnx_write.h"
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <unistd.h>

enum { FLOAT16 = 10, BFLOAT16 = 16, UINT8 = 2, INT8 = 3, OPERANDS = 9, RESULTS = 3, MAX_COUNT = 1 << 9 };
struct half_case { const char *op; int opset; const char *in; int nout; const char *attributes; int ulps; };
static const struct half_case cases[] = {
#define HALF(...) {__VA_ARGS__},
#include "tests/onnx/onnx_half.def"
#undef HALF
};

/* Operators without arithmetic on floats: they move, compare or count elements, or take none. */
static const char without[] =
    " And ArgMax ArgMin BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike "
    "CenterCropPad Compress Concat ConcatFromSequence Constant ConstantOfShape ConvInteger DepthToSpace "
    "Equal Expand EyeLike Flatten Gather GatherElements GatherND Greater GreaterOrEqual Hardmax Identity If "
    "IsInf IsNaN Less LessOrEqual Loop MatMulInteger MaxUnpool NonZero Not OneHot Optional "
    "OptionalGetElement OptionalHasElement Or Pad QLinearConv Reshape ReverseSequence Scan Scatter "
    "SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap "
    "Shape Size Slice SpaceToDepth Split SplitToSequence Squeeze TensorScatter Tile TopK Transpose Trilu "
    "Unique Unsqueeze Upsample Where Xor "
    /* of f32 and f64 only, or made in f64 and cast */
    "Adagrad Adam BlackmanWindow DynamicQuantizeLinear Gradient HammingWindow HannWindow MelWeightMatrix Momentum "
    "NonMaxSuppression RandomNormal RandomUniform TfIdfVectorizer ";

static kl_device dev, host;
static char path[] = "/tmp/kiln-half-XXXXXX";

/* ---- operands ---- */

struct operand { char kind; int rank; int64_t dims[KL_MAX_RANK], count; double v[MAX_COUNT]; };

/* Reproducible floats of about this size, as the half dtype has them. */
static void fill(struct operand *o, kl_dtype half, double scale, int seed, bool positive)
{
    for (int64_t i = 0; i < o->count; i++) {
        double v = sin(1.7 * (double)i + 3.1 * seed + 0.3) * 1.9 * scale;
        o->v[i] = positive ? fabs(v) + scale : v;
    }
    double *as = values_of(kl_cast(kl_input(host, KL_F64, 1, &o->count, o->v), half));
    if (CHECK(as != NULL))
        memcpy(o->v, as, (size_t)o->count * sizeof *as);
    free(as);
}

/* Reads one operand's text, of onnx_half.def; what follows it. */
static const char *operand_read(const char *s, struct operand *o, kl_dtype half, double scale, int seed)
{
    *o = (struct operand){.kind = *s == '[' || *s == '+' ? 'x' : *s, .count = 1};
    bool positive = *s == '+', shape = *s == '[' || s[1] == '[';
    for (char *end; *s && *s != ' ' && *s != '-'; s = end) {
        double v = strtod(s + (*s == '[' || *s == ':' || *s == ','), &end);
        if (*s == ']' || !strchr("[:,", *s)) { /* the closing bracket, or the operand's letter */
            end = (char *)(uintptr_t)(s + 1);
            continue;
        }
        if (shape)
            o->count *= o->dims[o->rank++] = (int64_t)v;
        else
            o->v[o->dims[0]++] = v;
    }
    if (!shape) {
        o->count = o->dims[0];
        o->rank = strchr("ITbz", o->kind) ? 0 : 1;
    } else if (o->kind == 'x') {
        fill(o, half, scale, seed, positive);
    } else {
        for (int64_t i = 0; i < o->count; i++) /* integers; as an index: below 3 */
            o->v[i] = o->kind == 'i' ? (double)(i * 7 % 3) : o->kind == 'w' ? 123457.0 * (double)(i - 2)
                      : (double)(i * 37 % 120);
    }
    if (o->kind == 't' || o->kind == 'T') {
        int64_t n = o->count;
        double *as = values_of(kl_cast(kl_input(host, KL_F64, 1, &n, o->v), half));
        if (CHECK(as != NULL))
            memcpy(o->v, as, (size_t)n * sizeof *as);
        free(as);
    }
    s += *s == '-';
    return s + (*s == ' ');
}

static kl_dtype operand_dtype(const struct operand *o, kl_dtype d)
{
    switch (o->kind) {
    case 'i': case 'I': return KL_I64;
    case 'b': return KL_BOOL;
    case 'f': return KL_F32;
    case 'u': case 'z': return KL_U8;
    case 's': return KL_I8;
    case 'w': return KL_I32;
    default: return d;
    }
}

static int element_of(kl_dtype d)
{
    return d == KL_F16 ? FLOAT16 : d == KL_BF16 ? BFLOAT16 : d == KL_I64 ? INT64 : d == KL_BOOL ? BOOL
           : d == KL_U8 ? UINT8 : d == KL_I8 ? INT8 : d == KL_I32 ? INT32 : FLOAT;
}

/* ---- models ---- */

static struct pb attribute(const char *name, size_t length, char kind, const char *value, size_t size)
{
    struct pb a = {0}, all = {0};
    char text[80];
    snprintf(text, sizeof text, "%.*s", (int)size, value);
    pb_blob(&a, 1, name, length);
    if (kind == 'i')
        pb_int(&a, 3, atoi(text));
    if (kind == 's')
        pb_text(&a, 4, text);
    if (kind == 'f') {
        float f = strtof(text, NULL);
        pb_varint(&a, 2 << 3 | 5);
        pb_bytes(&a, &f, 4);
    }
    for (char *p = text; kind == 'l' && *p; p += *p == ',')
        pb_int(&a, 8, strtol(p, &p, 10));
    pb_int(&a, 20, kind == 'i' ? 2 : kind == 's' ? 3 : kind == 'f' ? 1 : 7);
    pb_message(&all, 5, &a);
    return all;
}

static struct pb attributes(const char *s)
{
    struct pb all = {0};
    while (*s) {
        size_t name = strcspn(s, "="), size = strcspn(s + name + 3, " ");
        struct pb one = attribute(s, name, s[name + 1], s + name + 3, size);
        pb_bytes(&all, one.data, one.n);
        free(one.data);
        s += name + 3 + size;
        s += *s == ' ';
    }
    return all;
}

/* Calls the operator with floats of dtype d; integers are initializers. */
static bool call(const struct half_case *c, struct operand *in, int nin, kl_dtype d, kl_tensor *out)
{
    struct pb g = {0};
    char names[40] = "", results[20] = "";
    kl_tensor x[OPERANDS];
    uint32_t nx = 0;
    for (int i = 0; i < nin; i++)
        sprintf(names + strlen(names), in[i].kind == '-' ? "%s-" : "%sx%d", i ? " " : "", i);
    for (int i = 0; i < c->nout; i++)
        sprintf(results + strlen(results), "%sy%d", i ? " " : "", i);
    onnx_node(&g, c->op, names, results, attributes(c->attributes));
    pb_text(&g, 2, "half");
    for (int i = 0; i < nin; i++) {
        char name[4] = {'x', (char)('0' + i), 0};
        kl_dtype e = operand_dtype(&in[i], d);
        if (in[i].kind == '-')
            continue;
        kl_tensor t = kl_cast(kl_input(host, KL_F64, in[i].rank, in[i].dims, in[i].v), e);
        uint64_t raw[MAX_COUNT];
        size_t bytes = (size_t)in[i].count * kl_dtype_size(e);
        CHECK(kl_read(t, raw, bytes) == KL_OK);
        if (in[i].kind == 'x') {
            x[nx++] = kl_input(dev, e, in[i].rank, in[i].dims, raw);
            onnx_io(&g, 11, name, element_of(e), in[i].rank, in[i].dims);
        } else {
            onnx_initializer(&g, name, element_of(e), in[i].rank, in[i].dims, raw, bytes);
        }
    }
    for (int i = 0; i < c->nout; i++)
        onnx_io(&g, 12, (char[]){'y', (char)('0' + i), 0}, element_of(d), 0, NULL);
    struct pb m = onnx_model(&g, c->opset);
    bool ok = onnx_save(path, m.data, m.n);
    free(m.data);
    kl_model *model = ok ? kl_model_open(dev, path) : NULL;
    ok = model && kl_model_call(model, nx, x, (uint32_t)c->nout, out) == KL_OK;
    kl_model_close(model);
    return ok;
}

/* ---- comparing ---- */

/* A unit in the last place of a half float of this size. */
static double unit_of(double v, kl_dtype half)
{
    int e;
    frexp(v, &e);
    int min = half == KL_F16 ? -13 : -125;
    return ldexp(1, (e < min ? min : e) - (half == KL_F16 ? 11 : 8));
}

static bool compare(const struct half_case *c, kl_dtype half, double scale, kl_tensor got, kl_tensor want)
{
    bool rounds = kl_dtype_of(got) == half;
    double *x = values_of(got), *y = values_of(rounds ? kl_cast(want, half) : want);
    int64_t n = kl_numel(got);
    bool ok = x && y && n == kl_numel(want) && (rounds || kl_dtype_of(got) == kl_dtype_of(want));
    double largest = 0;
    for (int64_t i = 0; ok && i < n; i++)
        largest = isfinite(y[i]) ? fmax(largest, fabs(y[i])) : largest;
    for (int64_t i = 0; ok && i < n; i++) {
        bool same = x[i] == y[i] || (isnan(x[i]) && isnan(y[i])) ||
                    (rounds && fabs(x[i] - y[i]) <= c->ulps * unit_of(largest, half));
        if (!same)
            printf("%s '%s' %s of %s, size %g: element %lld is %.9g, not %.9g\n", c->op, c->in, c->attributes,
                   kl_dtype_name(half), scale, (long long)i, x[i], y[i]);
        ok = same;
    }
    free(x);
    free(y);
    return ok;
}

static void check_case(const struct half_case *c, kl_dtype half, double scale)
{
    struct operand *in = calloc(OPERANDS, sizeof *in);
    kl_tensor narrow[RESULTS], wide[RESULTS];
    int nin = 0;
    if (!in)
        return;
    kl_scope_begin();
    for (const char *s = c->in; *s; nin++)
        s = operand_read(s, &in[nin], half, scale, nin);
    bool ok = call(c, in, nin, half, narrow) && call(c, in, nin, KL_F32, wide);
    if (!check_at(ok, __LINE__, c->op))
        printf("%s '%s': %s\n", c->op, c->in, kl_last_error());
    for (int i = 0; ok && i < c->nout; i++)
        check_at(compare(c, half, scale, narrow[i], wide[i]), __LINE__, c->op);
    kl_scope_end();
    free(in);
}

/* Every operator of the importer is a case or in the list of those without arithmetic, and none is in both. */
static void complete(void)
{
    static const char *const names[] = {
#define ANY 0
#define OP(name, ...) name,
#define UNARY(name, ...) name,
#define BINARY(name, ...) name,
#include "frontend/formats/onnx/ops.def"
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char word[60];
        snprintf(word, sizeof word, " %s ", names[i]);
        int have = strstr(without, word) != NULL;
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
            if (!strcmp(cases[k].op, names[i])) {
                have += 1;
                break;
            }
        if (!check_at(have == 1, __LINE__, "is a case of onnx_half.def, or in `without`"))
            printf("  %s\n", names[i]);
    }
}

static void on_device(kl_device d)
{
    static const double scales[] = {1, 200, 0.01};
    dev = d;
    host = kl_device_named("ref");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int s = 0; s < 3; s++)
            for (int h = 0; h < 2; h++)
                check_case(&cases[i], h ? KL_BF16 : KL_F16, scales[s]);
}

int main(void)
{
    int f = mkstemp(path);
    if (f < 0)
        return 1;
    close(f);
    complete();
    int status = on_devices(on_device);
    unlink(path);
    return status;
}
