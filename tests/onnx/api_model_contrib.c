/* Operators of com.microsoft and ai.onnx.ml beside graphs of ONNX's own operators that mean the same, with random
 * operands, fused and unfused (tests/onnx/contrib_models.py compares them with onnxruntime). */
#include "tests/formats/onnx_write.h"
#include "tests/onnx/contrib_rows.h"
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <unistd.h>

enum { UINT8 = 2, INT8 = 3, MAX_OPERANDS = 12, MAX_ELEMENTS = 2048 };
static kl_device dev;
static char path[] = "/tmp/kiln-contrib-XXXXXX";
static uint64_t state = 1;

static unsigned below(unsigned n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(state >> 33) % n;
}

/* ---- operands ---- */

struct operand {
    char name[2];
    int type, rank;
    int64_t dims[4], count;
    union { float f[MAX_ELEMENTS]; uint8_t u[MAX_ELEMENTS]; int32_t i[MAX_ELEMENTS]; int64_t l[MAX_ELEMENTS]; } v;
};

static void operand_put(struct operand *o, char kind, int64_t at, double v)
{
    switch (kind) {
    case 'f': case 'p': o->v.f[at] = (float)v; break;
    case 'i': o->v.i[at] = (int32_t)v; break;
    case 'l': o->v.l[at] = (int64_t)v; break;
    default: o->v.u[at] = (uint8_t)(int)v;
    }
}

static double random_of(char kind)
{
    switch (kind) {
    case 'f': return (double)below(2001) / 1000 - 1;
    case 'p': return (double)(1 + below(100)) / 1000;
    case 'i': case 'l': return below(3);
    default: return kind == 'u' ? (double)below(256) : (double)below(256) - 128;
    }
}

/* Reads "x=f3,8"; what follows it. */
static const char *operand_read(const char *s, struct operand *o)
{
    static const struct { char kind; int type; } types[] = {{'f', FLOAT}, {'p', FLOAT}, {'u', UINT8}, {'s', INT8},
                                                            {'i', INT32}, {'l', INT64}};
    char kind = s[2], *end;
    *o = (struct operand){.name = {s[0], 0}, .count = 1};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        o->type = types[i].kind == kind ? types[i].type : o->type;
    s += 3;
    bool given = *s == '=' || (*s == ':' && s[1] && s[1] != ' '), scalar = *s == ':';
    s += *s == '=' || *s == ':';
    int64_t n = 0;
    for (; *s && *s != ' '; s = end + (*end == ',')) {
        double v = strtod(s, &end);
        if (given)
            operand_put(o, kind, n++, v);
        else
            o->count *= o->dims[o->rank++] = (int64_t)v;
    }
    if (given && !scalar)
        o->rank = 1, o->count = o->dims[0] = n;
    for (int64_t i = 0; !given && i < o->count; i++)
        operand_put(o, kind, i, random_of(kind));
    return s + (*s == ' ');
}

static kl_tensor operand_tensor(const struct operand *o)
{
    kl_dtype d = o->type == FLOAT ? KL_F32 : o->type == UINT8 ? KL_U8 : o->type == INT8 ? KL_I8
                 : o->type == INT32 ? KL_I32 : KL_I64;
    return kl_input(dev, d, o->rank, o->dims, &o->v);
}

/* ---- graphs ---- */

/* A tensor of floats "[f0.5,1]" or bytes "[u0,1]", as an attribute's value. */
static struct pb tensor_value(const char *value)
{
    float f[64];
    uint8_t u[64];
    int64_t n = 0;
    for (const char *s = value + 2; *s != ']' && n < 64; n++) {
        char *end;
        f[n] = strtof(s, &end);
        u[n] = (uint8_t)f[n];
        s = end + (*end == ',');
    }
    bool floats = value[1] == 'f';
    return onnx_tensor("", floats ? FLOAT : UINT8, 1, &n, floats ? (void *)f : u, (size_t)n * (floats ? sizeof *f : 1));
}

/* An attribute "name=value": integers, floats (with a point), text, or lists of them (with a comma), or a tensor. */
static struct pb attribute(const char *name, size_t length, const char *value)
{
    struct pb a = {0}, all = {0};
    size_t n = strcspn(value, " \n");
    bool number = strspn(value, "-0123456789.,e") >= n, list = number && memchr(value, ',', n);
    bool is_float = number && memchr(value, '.', n);
    pb_blob(&a, 1, name, length);
    if (*value == '[') {
        struct pb t = tensor_value(value);
        pb_message(&a, 5, &t);
        pb_int(&a, 20, 4);
        pb_message(&all, 5, &a);
        return all;
    }
    for (const char *s = value; number && s < value + n;) {
        char *end;
        double v = strtod(s, &end);
        float f = (float)v;
        if (is_float) {
            pb_varint(&a, (list ? 7 : 2) << 3 | 5);
            pb_bytes(&a, &f, sizeof f);
        } else {
            pb_int(&a, list ? 8 : 3, (int64_t)v);
        }
        s = end + (*end == ',');
    }
    bool texts = !number && memchr(value, ',', n);
    for (const char *s = value; texts && s < value + n; s += strcspn(s, ", \n") + (s[strcspn(s, ", \n")] == ','))
        pb_blob(&a, 9, s, strcspn(s, ", \n"));
    if (!number && !texts)
        pb_blob(&a, 4, value, n);
    pb_int(&a, 20, !number ? (texts ? 8 : 3) : is_float ? (list ? 6 : 1) : list ? 7 : 2);
    pb_message(&all, 5, &a);
    return all;
}

/* Adds the node of one line; what follows it. */
static const char *add_node(struct pb *g, const char *s)
{
    struct pb n = {0};
    const char *end = s + strcspn(s, "\n"), *domain = strchr(s, '[');
    size_t op = strcspn(s, " [");
    pb_blob(&n, 4, s, op);
    if (domain && domain < end)
        pb_blob(&n, 7, domain + 1, strcspn(domain, "]") - 1);
    s += strcspn(s, " ");
    int field = 1;
    while (s < end && *s != ';') {
        s++;
        size_t length = strcspn(s, " ;\n");
        if (*s == '>')
            field = 2;
        else
            pb_blob(&n, field, s, *s == '-' ? 0 : length);
        s += length;
    }
    while (s < end && (*s == ';' || *s == ' ')) {
        s += strspn(s, "; ");
        size_t length = strcspn(s, "=");
        struct pb a = attribute(s, length, s + length + 1);
        pb_bytes(&n, a.data, a.n);
        free(a.data);
        s += strcspn(s, " \n");
    }
    pb_message(g, 1, &n);
    return end + (*end == '\n');
}

/* Does a node of the text take an operand of this name? */
static bool takes(const char *text, char name)
{
    for (const char *s = text; *s; s++)
        if (*s == name && s > text && s[-1] == ' ' && (s[1] == ' ' || !s[1]))
            return true;
    return false;
}

static bool run(const struct row *r, const char *text, const struct operand *o, int noperands, bool traced,
                kl_tensor *out)
{
    static const char *const result[] = {"a", "b", "c"};
    struct pb g = {0}, m = {0}, set = {0};
    kl_tensor in[MAX_OPERANDS];
    uint32_t nin = 0;
    for (const char *s = text; *s;)
        s = add_node(&g, s);
    pb_text(&g, 2, "g");
    for (int i = 0; i < noperands; i++)
        if (takes(text, o[i].name[0])) {
            onnx_io(&g, 11, o[i].name, o[i].type, o[i].rank, o[i].dims);
            in[nin++] = operand_tensor(&o[i]);
        }
    onnx_initializer(&g, "1", INT64, 1, (int64_t[]){1}, (int64_t[]){1}, sizeof(int64_t));
    bool bytes = r->tolerance == 0 && o[0].type != FLOAT;
    for (int i = 0; i < r->nout; i++)
        onnx_io(&g, 12, result[i], bytes ? o[0].type : FLOAT, 0, NULL);
    pb_int(&m, 1, 10);
    for (int i = 0; i < 3; i++) {
        set = (struct pb){0};
        pb_text(&set, 1, (const char *const[]){"", "com.microsoft", "ai.onnx.ml"}[i]);
        pb_int(&set, 2, i ? 1 : 28);
        pb_message(&m, 8, &set);
    }
    pb_message(&m, 7, &g);
    bool ok = onnx_save(path, m.data, m.n);
    free(m.data);
    kl_model *model = ok ? kl_model_open(dev, path) : NULL;
    if (traced)
        kl_trace_begin("contrib");
    ok = model && kl_model_call(model, nin, in, (uint32_t)r->nout, out) == KL_OK;
    for (int i = 0; ok && traced && i < r->nout; i++)
        kl_keep(out[i]);
    ok &= !traced || kl_trace_end() == KL_OK;
    kl_model_close(model);
    return ok;
}

static void compare(const struct row *r)
{
    static struct operand o[MAX_OPERANDS];
    kl_tensor want[3], got[2][3];
    int n = 0;
    for (const char *s = r->operands; *s;)
        s = operand_read(s, &o[n++]);
    if (!CHECK(run(r, r->other, o, n, false, want)) || !CHECK(run(r, r->one, o, n, false, got[0])) ||
        !CHECK(run(r, r->one, o, n, true, got[1]))) {
        printf("  %s\n", r->one);
        kl_clear_error();
        return;
    }
    for (int i = 0; i < r->nout; i++) {
        double *w = values_of(want[i]), *fused = values_of(got[1][i]), *unfused = values_of(got[0][i]);
        bool ok = w && fused && unfused && kl_dtype_of(want[i]) == kl_dtype_of(got[0][i]) &&
                  kl_numel(want[i]) == kl_numel(got[0][i]);
        ok = ok && NEAR(got[0][i], kl_numel(want[i]), w, r->tolerance);
        if (!CHECK(ok && !memcmp(fused, unfused, (size_t)kl_numel(want[i]) * sizeof *w)))
            printf("  result %d of %s\n", i, r->one);
        free(w);
        free(fused);
        free(unfused);
    }
}

/* ---- blocks of bits ---- */

/* x [2, K] by N rows of K numbers of `bits` bits in blocks of 16, with or without zero points, beside plain loops.
 * integers: x may be rounded to 8 bits in blocks (accuracy_level 4), and is made of numbers that this keeps. */
static void matmul_nbits(int bits, int K, bool zeros, bool integers)
{
    enum { N = 3, SIZE = 16 };
    int blocks = (K + SIZE - 1) / SIZE, bytes = SIZE * bits / 8, zbytes = (blocks * bits + 7) / 8;
    static struct operand o[4];
    char text[200], operands[100];
    snprintf(operands, sizeof operands, "x=f2,%d y=u%d,%d,%d s=p%d z=u%d", K, N, blocks, bytes, N * blocks, N * zbytes);
    snprintf(text, sizeof text, "MatMulNBits" MS " x y s%s > a; K=%d N=%d bits=%d block_size=16%s", zeros ? " z" : "",
             K, N, bits, integers ? " accuracy_level=4" : "");
    int n = 0;
    for (const char *s = operands; *s;)
        s = operand_read(s, &o[n++]);
    struct row r = {operands, text, NULL, 1, 1e-5};
    double want[2 * N];
    for (int k = 0; k < 2 * K && integers; k++) /* multiples of 1/128, of which the largest is 127/128 */
        o[0].v.f[k] = k % SIZE ? (float)(k * 37 % 200 - 100) / 128 : 127.0F / 128;
    for (int row = 0; row < 2; row++)
        for (int c = 0; c < N; c++) {
            double sum = 0;
            for (int k = 0; k < K; k++) {
                int block = k / SIZE, in = k % SIZE, each = 8 / bits, mask = (1 << bits) - 1;
                int q = o[1].v.u[(c * blocks + block) * bytes + in / each] >> (in % each * bits) & mask;
                int byte = o[3].v.u[c * zbytes + block / each];
                int zero = zeros ? byte >> (block % each * bits) & mask : 1 << (bits - 1);
                sum += (double)o[0].v.f[row * K + k] * (q - zero) * (double)o[2].v.f[c * blocks + block];
            }
            want[row * N + c] = sum;
        }
    kl_tensor y;
    if (CHECK(run(&r, text, o, n, true, &y)))
        NEAR(y, 2 * N, want, 1e-4);
}

/* ---- what is refused ---- */

static void refused(const char *operands, const char *text, const char *says)
{
    static struct operand o[MAX_OPERANDS];
    struct row r = {operands, text, NULL, 1, 1};
    kl_tensor y[3];
    int n = 0;
    for (const char *s = operands; *s;)
        s = operand_read(s, &o[n++]);
    kl_clear_error();
    CHECK(!run(&r, text, o, n, false, y));
    if (!CHECK(strstr(kl_last_error(), says) != NULL))
        printf("  %s, not %s\n", kl_last_error(), says);
    kl_clear_error();
}

static void refusals(void)
{
    refused("x=f2,3", "NoSuch" MS " x > a", "com.microsoft.NoSuch");
    refused("x=f2,3", "BiasGelu" ML " x > a", "ai.onnx.ml.BiasGelu");
    refused("x=f2,32 y=u3,2,8 s=p6", "MatMulNBits" MS " x y s > a; K=32 N=3 bits=3 block_size=16", "3 bits");
    refused("x=f2,32 y=u3,2,8 s=p6", "MatMulNBits" MS " x y s > a; K=64 N=3 bits=4 block_size=16", "blocks of 8 bytes");
    refused("x=f2,32 y=u3,2,8 s=p6 z=u2", "MatMulNBits" MS " x y s z > a; K=32 N=3 bits=4 block_size=16",
            "2 zero points of u8 for 3 rows of 2 blocks");
    refused("x=i6,16 k=i2,2 s=p6,2", "GatherBlockQuantized" MS " x k s > a; bits=4 block_size=16 quantize_axis=1",
            "shr: dtypes i32 and u8 differ");
    refused("x=u6 k=i2 s=p6", "GatherBlockQuantized" MS " x k s > a; bits=4 block_size=32 quantize_axis=0",
            "only rows (axis 0) of blocks");
    refused("q=f1,2,24", "MultiHeadAttention" MS " q > a; num_heads=3", "packed operands are not supported");
    refused("q=f1,2,24 k=f1,2,24", "MultiHeadAttention" MS " q k k > a; num_heads=5", "5 heads do not divide");
    refused("q=f1,2,24 k=f1,2,8 n=i=6 m=i:1", "GroupQueryAttention" MS " q k k - - n m > a; num_heads=3 kv_num_heads=1",
            "total_sequence_length is 1 for 2 rows");
    refused("x=f1,2,8 w=f8,25", "Attention" MS " x w > a; num_heads=2", "three matrices side by side");
    refused("x=f3,4 y=f4,5", "FusedGemm" MS " x y > a; activation=Frobnicate", "a fused activation that is not known");
    refused("x=f3,5", "Scaler" ML " x > a; scale=1.0,2.0,", "shapes [3,5] and [1,2] do not broadcast");
    refused("x=f3,3", "TreeEnsemble" ML " x > a; " ENSEMBLE("3,0", "[u0,3]"), "compares feature 3 of 3");
    refused("x=f3,3", "TreeEnsemble" ML " x > a; " ENSEMBLE("1,0", "[u0,7]"), "node 1 has mode 7");
    refused("x=f3,3", "TreeEnsemble" ML " x > a; " ENSEMBLE("1,0", "[u0,6]"), "membership_values is no tensor");
    refused("x=f3,3", "TreeEnsemble" ML " x > a; membership_values=[f1,nan] " ENSEMBLE("1,0", "[u6,6]"),
            "no set for node 1");
    refused("x=f3,3", "TreeEnsemble" ML " x > a; n_targets=-1 " ENSEMBLE("1,0", "[u0,3]"), "0 targets of 5 nodes");
    refused("x=f3,3", "TreeEnsemble" ML " x > a; post_transform=4 " ENSEMBLE("1,0", "[u0,3]"), "none of 0 to 2");
    refused("x=f3,3", "TreeEnsemble" ML " x > a; aggregate_function=9 " ENSEMBLE("1,0", "[u0,3]"),
            "aggregate_function 9");
    refused("x=u1,2,6 w=s6,25 s=p: t=p:", "QAttention" MS " x w - s t > a; num_heads=2", "three matrices side by side");
    refused("x=f2,6 w=f4,3", "NhwcConv" MS " x w > a", "an operand of 2 axes");
    refused("x=f3,3", "TreeEnsembleRegressor" ML " x > a; " STUMP("0,1,2", "7,0,0", "1,0,0", "2,0,0", "1,2"),
            "compares feature 7 of 3");
    refused("x=f3,3", "TreeEnsembleRegressor" ML " x > a; " STUMP("0,1,2", "1,0,0", "5,0,0", "2,0,0", "1,2"),
            "node 0 of tree 0 is followed by none");
    refused("x=f3,3", "TreeEnsembleRegressor" ML " x > a; " STUMP("0,1,2", "1,0,0", "0,0,0", "2,0,0", "1,2"),
            "node 0 of tree 0 is followed by none");
    refused("x=f3,3", "TreeEnsembleRegressor" ML " x > a; " STUMP("0,1,1", "1,0,0", "1,0,0", "1,0,0", "1,1"),
            "node 1 of tree 0 is there twice");
    refused("x=f3,3", "TreeEnsembleRegressor" ML " x > a; " STUMP("0,1,2", "1,0,0", "1,0,0", "2,0,0", "1,3"),
            "weight 1 is of target 0 of node 3");
    refused("x=f3,3", "TreeEnsembleRegressor" ML " x > a; nodes_treeids=0,0,0 nodes_nodeids=0,1,2 "
            "nodes_featureids=1,0,0 nodes_modes=BRANCH_LT,BRANCH_GT,LEAF nodes_values=0.25,0.0,0.0 "
            "nodes_truenodeids=1,0,0 nodes_falsenodeids=2,2,0 "
            "target_treeids=0,0 target_nodeids=1,2 target_ids=0,0 target_weights=2.5,-1.5",
            "or a cycle");
    refused("x=f3,3", "TreeEnsembleRegressor" ML " x > a; nodes_treeids=0,0 nodes_nodeids=0,1,2 "
            "nodes_featureids=1,0,0 nodes_modes=BRANCH_LT,LEAF,LEAF "
            "nodes_values=0.25,0.0,0.0", "nodes_treeids has 2 numbers, not 3");
    refused("x=f3,5", "Normalizer" ML " x > a; norm=L7", "neither MAX, L1 nor L2");
    refused("x=u2,3 s=p: z=u:", "QLinearConcat" MS " s z x s > a; axis=1", "4 operands");
}

int main(int argc, char **argv)
{
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    dev = kl_device_named(argc > 1 ? argv[1] : "cpu");
    device_now = kl_device_name(dev);
    if (!CHECK(dev.id != 0))
        return 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int again = 0; again < 3; again++)
            compare(&rows[i]);
    for (int i = 0; i < 12; i++)
        matmul_nbits((int[]){2, 4, 8}[i % 3], i & 1 ? 40 : 32, i >= 6, false);
    for (int i = 0; i < 12; i++) /* of 2 bits, and with blocks that are not whole: floats, nevertheless */
        matmul_nbits((int[]){2, 4, 8}[i % 3], i & 1 ? 40 : 32, i >= 6, true);
    refusals();
    unlink(path);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
