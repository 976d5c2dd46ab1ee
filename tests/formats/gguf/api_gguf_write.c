/* <kiln/formats/file.h>: GGUF written here.  Each type's bytes, as hashes, and its error on normally distributed
 * numbers; metadata of all types; tensors of other files, copied and converted; what cannot be written.  The format's
 * own package reads the same values and quantizes blocks of 32 to the same bits (argument: a Python that has it). */
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <unistd.h>

enum { ROWS = 6, COLUMNS = 1024, ELEMENTS = ROWS * COLUMNS };
static kl_device dev;
static int skipped;
static const char *python = "python3";
static char folder[] = "/tmp/kiln-gguf-XXXXXX", path_text[300];
static float normal[ELEMENTS];

static const char *path_of(const char *name)
{
    snprintf(path_text, sizeof path_text, "%s/%s", folder, name);
    return path_text;
}

static bool py(const char *code)
{
    char line[4000];
    snprintf(line, sizeof line, "cd %s && %s -c \"%s\"", folder, python, code);
    return system(line) == 0;
}

static bool py_has_gguf(void)
{
    char line[400];
    snprintf(line, sizeof line, "%s -c 'import gguf, numpy' 2>/dev/null", python);
    return system(line) == 0;
}

/* About normally distributed: a sum of twelve uniform numbers. */
static void make_normal(void)
{
    uint64_t state = 7;
    for (int i = 0; i < ELEMENTS; i++) {
        float sum = -6;
        for (int k = 0; k < 12; k++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            sum += (float)(state >> 40) * 0x1p-24f;
        }
        normal[i] = sum;
    }
}

static uint64_t hash_of(const uint8_t *bytes, size_t n)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

/* The root of the mean squared difference of a tensor and what was written. */
static double error_of(kl_file *f, const char *name)
{
    kl_tensor t = kl_file_tensor(f, dev, name);
    double *v = values_of(t), sum = 0;
    if (!CHECK(v && kl_numel(t) == ELEMENTS))
        return INFINITY;
    for (int i = 0; i < ELEMENTS; i++)
        sum += (v[i] - (double)normal[i]) * (v[i] - (double)normal[i]);
    free(v);
    kl_release(t);
    return sqrt(sum / ELEMENTS);
}

static const struct type { const char *name; double bits, rms; uint64_t hash; } types[] = {
    {"F32", 32, 0, UINT64_C(0xb8a664506bcd1dd5)},
    {"F16", 16, 0.000207, UINT64_C(0x79c2fa71a08a0276)},
    {"BF16", 16, 0.00167, UINT64_C(0xe685d38bb51e032f)},
    {"Q4_0", 4.5, 0.0843, UINT64_C(0xe6241d52426e359d)},
    {"Q4_1", 5, 0.0774, UINT64_C(0x8c2c765e09f9bb5d)},
    {"Q5_0", 5.5, 0.043, UINT64_C(0xe77dedcd38b6e11b)},
    {"Q5_1", 6, 0.0376, UINT64_C(0x3c3ce8b8df687c9c)},
    {"Q8_0", 8.5, 0.00528, UINT64_C(0x3567b5f8ff32e846)},
    {"Q2_K", 2.625, 0.264, UINT64_C(0xa2977dc6245f2423)},
    {"Q3_K", 3.4375, 0.143, UINT64_C(0x91d68a3ce50705ca)},
    {"Q4_K", 4.5, 0.0697, UINT64_C(0x19e4a7b4c0bcf3a4)},
    {"Q5_K", 5.5, 0.0355, UINT64_C(0xe9e47edb36fef73e)},
    {"Q6_K", 6.5625, 0.0168, UINT64_C(0x8f354508cade53ab)},
    {"IQ4_NL", 4.5, 0.0739, UINT64_C(0xcd96b8aedd5ec8ea)},
    {"IQ4_XS", 4.25, 0.0747, UINT64_C(0x7fe7df810fe9ab41)},
    {"MXFP4", 4.25, 0.1144, UINT64_C(0x5e0e74e93e5afb66)},
};
enum { TYPES = sizeof types / sizeof *types };

static void all_types(void)
{
    kl_file_item items[TYPES];
    static const int64_t dims[] = {ROWS, COLUMNS};
    kl_tensor x = kl_input(dev, KL_F32, 2, dims, normal);
    for (int i = 0; i < TYPES; i++)
        items[i] = i % 2 ? (kl_file_item){.name = types[i].name, .tensor = x, .type = types[i].name}
                         : (kl_file_item){.name = types[i].name, .dtype = KL_F32, .rank = 2,
                                          .dims = dims, .data = normal, .type = types[i].name};
    OK(kl_file_write(path_of("types.gguf"), KL_FILE_GGUF, TYPES, items, 0, NULL));
    kl_release(x);
    kl_file *f = kl_file_open(path_of("types.gguf"));
    if (!CHECK(f && kl_file_count(f) == TYPES))
        return;
    for (uint32_t i = 0; i < TYPES; i++) {
        const struct type *t = &types[i];
        kl_file_entry e;
        device_now = t->name;
        OK(kl_file_get(f, i, &e));
        CHECK(!strcmp(e.name, t->name) && !strcmp(e.type, t->name) && e.rank == 2 && e.dims[1] == COLUMNS);
        CHECK((double)e.bytes * 8 == t->bits * ELEMENTS);
        uint64_t hash = hash_of(kl_file_data(f, t->name), e.bytes);
        double rms = error_of(f, t->name);
        bool same = CHECK(hash == t->hash), near = CHECK(rms <= t->rms);
        if (!same || !near)
            printf("  {\"%s\", %g, %.4g, UINT64_C(0x%016llx)}\n", t->name, t->bits, rms, (unsigned long long)hash);
    }
    device_now = "any";
    kl_file_close(f);
}

/* Metadata of each type, and tensors that begin at multiples of 128. */
static void metadata(void)
{
    static const uint32_t align = 128;
    static const uint64_t large = UINT64_MAX;
    static const double pi = 3.25;
    static const float freq[] = {1, 0.5f, -0.0f};
    static const int16_t small[] = {-3, 9};
    static const uint8_t yes = 1, bytes[] = {1, 255};
    static const char *const words[] = {"<s>", "", "\xc3\xa9"};
    const kl_file_value meta[] = {
        {.key = "general.architecture", .text = "llama"}, {"general.alignment", NULL, KL_U32, false, 0, &align},
        {"large", NULL, KL_U64, false, 1, &large}, {"pi", NULL, KL_F64, false, 1, &pi},
        {"freq", NULL, KL_F32, true, 3, freq}, {"small", NULL, KL_I16, true, 2, small},
        {"yes", NULL, KL_BOOL, false, 1, &yes}, {"bytes", NULL, KL_U8, true, 2, bytes},
        {"words", NULL, KL_DTYPE_COUNT, true, 3, words}, {"none", NULL, KL_I32, true, 0, NULL},
    };
    enum { METAS = sizeof meta / sizeof *meta };
    static const kl_dtype dtypes[] = {KL_F32, KL_F16, KL_BF16, KL_F64, KL_I8, KL_I16, KL_I32, KL_I64};
    kl_file_item items[10];
    for (int i = 0; i < 8; i++)
        items[i] = (kl_file_item){.name = kl_dtype_name(dtypes[i]), .dtype = dtypes[i], .rank = 1,
                                  .dims = (const int64_t[1]){3}, .data = normal};
    static const int64_t three[] = {3}, four[] = {1, 2, 0, 4};
    for (int i = 0; i < 8; i++)
        items[i].dims = three;
    items[8] = (kl_file_item){.name = "none", .dtype = KL_F32, .rank = 4, .dims = four};
    items[9] = (kl_file_item){.name = "one", .dtype = KL_F32, .rank = 0, .data = normal};
    OK(kl_file_write_with(path_of("meta.gguf"), KL_FILE_GGUF, 10, items,
                          &(kl_file_write_options){.nmeta = METAS, .meta = meta}));
    kl_file *f = kl_file_open(path_of("meta.gguf"));
    if (!CHECK(f && kl_file_count(f) == 10 && kl_file_meta_count(f) == METAS))
        return;
    for (uint32_t i = 0; i < METAS; i++) {
        kl_file_meta m;
        OK(kl_file_meta_get(f, i, &m));
        CHECK(!strcmp(m.key, meta[i].key) && m.array == meta[i].array &&
              m.dtype == (meta[i].text ? KL_DTYPE_COUNT : meta[i].dtype) && m.count == (m.array ? meta[i].count : 1));
    }
    CHECK(!strcmp(kl_file_meta_text(f, 0, 0), "llama") && kl_file_meta_i64(f, 1, 0) == 128 &&
          (uint64_t)kl_file_meta_i64(f, 2, 0) == large && kl_file_meta_f64(f, 3, 0) == pi &&
          kl_file_meta_f64(f, 4, 1) == 0.5 && signbit(kl_file_meta_f64(f, 4, 2)) && kl_file_meta_i64(f, 5, 0) == -3 &&
          kl_file_meta_i64(f, 6, 0) == 1 && kl_file_meta_i64(f, 7, 1) == 255 && !*kl_file_meta_text(f, 8, 1) &&
          !strcmp(kl_file_meta_text(f, 8, 2), words[2]));
    for (uint32_t i = 0; i < 10; i++) {
        kl_file_entry e;
        OK(kl_file_get(f, i, &e));
        CHECK(e.dtype == items[i].dtype && e.rank == items[i].rank && !(e.bytes && e.offset % 128));
        CHECK(!e.bytes || !memcmp(kl_file_data(f, e.name), normal, e.bytes));
    }
    kl_file_close(f);
    OK(kl_file_write(path_of("text.gguf"), KL_FILE_GGUF, 0, NULL, 1, &(kl_file_pair){"key", "value"}));
    f = kl_file_open(path_of("text.gguf"));
    CHECK(f && kl_file_count(f) == 0 && !strcmp(kl_file_meta_text(f, 0, 0), "value"));
    kl_file_close(f);
}

/* Numbers between those that f16 and bf16 have; infinities and NaN. */
static void rounding(void)
{
    static const float in[] = {1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 65519, 0x1p-25f, 3 * 0x1p-25f, -0x1.fffp-15f, 0x1p-14f,
                               INFINITY, -INFINITY, NAN, -0.0f, 0x1p-40f};
    static const double f16[] = {1, 1 + 0x1p-9, 65504, 0, 0x1p-23, -0x1p-14, 0x1p-14, INFINITY, -INFINITY, NAN, 0, 0};
    static const double bf16[] = {1, 1, 65536, 0x1p-25, 3 * 0x1p-25, -0x1p-14, 0x1p-14, INFINITY, -INFINITY, NAN, 0,
                                  0x1p-40};
    kl_file_item item[2] = {{.name = "f16", .dtype = KL_F32, .rank = 1, .dims = (int64_t[]){12}, .data = in,
                             .type = "f16"}};
    item[1] = item[0];
    item[1].name = "bf16";
    item[1].type = "bf16";
    OK(kl_file_write(path_of("round.gguf"), KL_FILE_GGUF, 2, item, 0, NULL));
    kl_file *f = kl_file_open(path_of("round.gguf"));
    NEAR(kl_file_tensor(f, dev, "f16"), 12, f16, 0);
    NEAR(kl_file_tensor(f, dev, "bf16"), 12, bf16, 0);
    kl_file_close(f);
}

static char seen[200];
static void note_name(void *ctx, const char *name)
{
    strcat(strcat(ctx, name), " ");
}

/* Tensors of other files: blocks as they are, decoded, and quantized again; of safetensors; into safetensors. */
static void of_files(void)
{
    kl_file *f = kl_file_open(path_of("types.gguf"));
    kl_file_item items[] = {
        {.name = "Q4_K", .file = f}, {.name = "again", .file = f, .from = "Q8_0", .type = "q8_0"},
        {.name = "half", .file = f, .from = "Q8_0", .type = "F16"},
        {.name = "smaller", .file = f, .from = "Q8_0", .type = "Q4_0"},
        {.name = "float", .file = f, .from = "Q6_K", .type = "F32"},
    };
    OK(kl_file_write_with(path_of("copy.gguf"), KL_FILE_GGUF, 5, items,
                          &(kl_file_write_options){.progress = note_name, .ctx = seen}));
    CHECK(!strcmp(seen, "Q4_K again half smaller float "));
    kl_file *copy = kl_file_open(path_of("copy.gguf"));
    kl_file_entry e;
    CHECK(copy && kl_file_count(copy) == 5 && kl_file_get(copy, 0, &e) == KL_OK && !strcmp(e.type, "Q4_K"));
    CHECK(!memcmp(kl_file_data(copy, "Q4_K"), kl_file_data(f, "Q4_K"), ELEMENTS / 256 * 144));
    CHECK(!memcmp(kl_file_data(copy, "again"), kl_file_data(f, "Q8_0"), ELEMENTS / 32 * 34));
    CHECK(fabs(error_of(copy, "half") - error_of(f, "Q8_0")) < 1e-3 && error_of(copy, "smaller") < 0.085);
    kl_tensor q6 = kl_file_tensor(f, dev, "Q6_K");
    double *want = values_of(q6);
    kl_release(q6);
    if (CHECK(want != NULL))
        NEAR(kl_file_tensor(copy, dev, "float"), ELEMENTS, want, 0);
    items[0].type = NULL;
    items[1] = (kl_file_item){.name = "h", .file = f, .from = "F16"};
    OK(kl_file_write(path_of("copy.safetensors"), KL_FILE_SAFETENSORS, 2, items, 0, NULL));
    kl_file_close(copy);
    copy = kl_file_open(path_of("copy.safetensors"));
    CHECK(copy && kl_file_get(copy, 1, &e) == KL_OK && e.dtype == KL_F16);
    CHECK(fabs(error_of(copy, "Q4_K") - error_of(f, "Q4_K")) == 0);
    items[0] = (kl_file_item){.name = "from", .file = copy, .from = "h", .type = "Q5_K"};
    OK(kl_file_write(path_of("back.gguf"), KL_FILE_GGUF, 1, items, 0, NULL));
    kl_file_close(f);
    f = kl_file_open(path_of("back.gguf"));
    CHECK(f && error_of(f, "from") < 0.0356);
    free(want);
    kl_file_close(f);
    kl_file_close(copy);
}

static void refused(const kl_file_item *item, const kl_file_value *meta, kl_status code, const char *words)
{
    kl_file_write_options options = {.nmeta = meta != NULL, .meta = meta};
    char path[300];
    snprintf(path, sizeof path, "%s", path_of("never.gguf"));
    check_at(kl_file_write_with(path, KL_FILE_GGUF, item != NULL, item, &options) == code &&
             strstr(kl_last_error(), words), __LINE__, words);
    CHECK(strstr(kl_last_error(), "never.gguf: ") && access(path, F_OK) != 0);
    kl_clear_error();
}

static void mistakes(void)
{
    static const int64_t row[] = {1, 1, 1, 1, 256}, odd[] = {2, 48};
    static float bad[256];
    kl_file_item x = {.name = "x", .dtype = KL_F32, .rank = 1, .dims = row + 4, .data = bad}, y = x;
    y.type = "Q4_7";
    refused(&y, NULL, KL_ERR_TYPE, "\"x\": GGUF has no type \"Q4_7\"");
    y.type = "IQ2_XS";
    refused(&y, NULL, KL_ERR_TYPE, "\"x\": elements of f32 cannot be written as IQ2_XS");
    y.type = "I32";
    refused(&y, NULL, KL_ERR_TYPE, "\"x\": elements of f32 cannot be written as I32");
    y = x;
    y.dtype = KL_U16;
    refused(&y, NULL, KL_ERR_TYPE, "\"x\": GGUF has no elements of u16");
    y.dtype = KL_I32;
    y.type = "Q8_0";
    refused(&y, NULL, KL_ERR_TYPE, "\"x\": elements of i32 cannot be written as Q8_0");
    y = x;
    y.rank = 5;
    y.dims = row;
    refused(&y, NULL, KL_ERR_ARGUMENT, "\"x\" has 5 dimensions; GGUF has at most 4");
    y.rank = 2;
    y.dims = odd;
    y.type = "Q4_0";
    refused(&y, NULL, KL_ERR_ARGUMENT, "\"x\": blocks of 32 elements of Q4_0 do not divide rows of 48");
    y = x;
    y.name = "a name of more than sixty-three bytes, for which ggml has no memory";
    refused(&y, NULL, KL_ERR_ARGUMENT, "a name has 1 to 63 bytes");
    y.name = "";
    refused(&y, NULL, KL_ERR_ARGUMENT, "a name has 1 to 63 bytes");
    for (int i = 1; i < TYPES; i++) {
        char words[100];
        y = x;
        y.type = types[i].name;
        bad[200] = 3e38f;
        snprintf(words, sizeof words, "which %s cannot hold", y.type);
        if (strcmp(y.type, "BF16"))
            refused(&y, NULL, KL_ERR_ARGUMENT, words);
        bad[200] = 1e9f;
        if (i >= 3 && strcmp(y.type, "MXFP4"))
            refused(&y, NULL, KL_ERR_ARGUMENT, words);
        bad[200] = NAN;
        if (i >= 3)
            refused(&y, NULL, KL_ERR_ARGUMENT, "\"x\": element 200 is nan, which");
        bad[200] = 0;
    }
    static const uint32_t twelve = 12;
    static const char *const texts[] = {"a", NULL};
    static const uint8_t bools[] = {0, 2};
    refused(NULL, &(kl_file_value){"general.alignment", NULL, KL_U32, false, 1, &twelve}, KL_ERR_ARGUMENT,
            "no u32 that is a power of two");
    refused(NULL, &(kl_file_value){.key = "general.alignment", .text = "32"}, KL_ERR_ARGUMENT, "no u32");
    refused(NULL, &(kl_file_value){.key = NULL, .text = "32"}, KL_ERR_ARGUMENT, "the key of metadata 0");
    refused(NULL, &(kl_file_value){"k", NULL, KL_F16, false, 1, &twelve}, KL_ERR_TYPE,
            "metadata \"k\": GGUF has no values of f16");
    refused(NULL, &(kl_file_value){"k", NULL, KL_U8, true, 1, NULL}, KL_ERR_ARGUMENT, "metadata \"k\" has no data");
    refused(NULL, &(kl_file_value){"k", NULL, KL_U8, true, -1, texts}, KL_ERR_ARGUMENT, "metadata \"k\" has no count");
    refused(NULL, &(kl_file_value){"k", NULL, KL_DTYPE_COUNT, true, 2, texts}, KL_ERR_ARGUMENT, "text 1 is NULL");
    refused(NULL, &(kl_file_value){"k", NULL, KL_BOOL, true, 2, bools}, KL_ERR_ARGUMENT, "bool 1 is neither");
    const kl_file_value two[] = {{.key = "k", .text = ""}, {.key = "k", .text = ""}};
    FAILS(kl_file_write_with(path_of("never.gguf"), KL_FILE_GGUF, 0, NULL,
                             &(kl_file_write_options){.nmeta = 2, .meta = two}), KL_ERR_ARGUMENT,
          "two metadata are called \"k\"");
    x.type = "Q4_0";
    FAILS(kl_file_write(path_of("never.npy"), KL_FILE_NPY, 1, &x, 0, NULL), KL_ERR_ARGUMENT, "which is for GGUF");
    kl_file *f = kl_file_open(path_of("types.gguf"));
    refused(&(kl_file_item){.name = "x", .file = f}, NULL, KL_ERR_ARGUMENT, "has no tensor \"x\"");
    kl_file_close(f);
    kl_clear_error();
}

/* What is written is read by gguf's reader; blocks of 32 have the bits that its quantize gives. */
static void with_gguf(void)
{
    if (!py_has_gguf()) {
        printf("SKIP no-tool gguf: %s has no module gguf\n", python);
        skipped++;
        return;
    }
    OK(kl_file_write(path_of("normal.npy"), KL_FILE_NPY, 1, &(kl_file_item){.dtype = KL_F32, .rank = 2,
                     .dims = (int64_t[]){ROWS, COLUMNS}, .data = normal}, 0, NULL));
    CHECK(py("import gguf, numpy as np; from gguf import quants; x = np.load('normal.npy'); "
             "r = gguf.GGUFReader('types.gguf'); assert len(r.tensors) == 16\n"
             "for t in r.tensors:\n"
             "    assert t.name == t.tensor_type.name and list(t.shape) == [1024, 6], t\n"
             "    if t.name[-1] in '01' or t.name in ('BF16', 'MXFP4'):\n"
             "        q = quants.quantize(x, t.tensor_type)\n"
             "        assert (np.array(t.data).view(np.uint8) == q.view(np.uint8)).all()\n"
             "    elif t.name[0] == 'F': assert (np.array(t.data) == x.astype(t.data.dtype)).all(), t.name\n"
             "    np.save(t.name + '.npy', quants.dequantize(t.data, t.tensor_type).astype(np.float32))"));
    kl_file *f = kl_file_open(path_of("types.gguf"));
    for (int i = 0; i < TYPES; i++) {
        char name[20];
        snprintf(name, sizeof name, "%s.npy", types[i].name);
        kl_file *a = kl_file_open(path_of(name));
        kl_tensor t = kl_file_tensor(a, dev, "");
        double *want = values_of(t);
        if (CHECK(want && kl_numel(t) == ELEMENTS))
            NEAR(kl_file_tensor(f, dev, types[i].name), ELEMENTS, want, 0);
        free(want);
        kl_release(t);
        kl_file_close(a);
    }
    kl_file_close(f);
    CHECK(py("import gguf, numpy as np; r = gguf.GGUFReader('meta.gguf'); f = lambda k: r.get_field(k).contents(); "
             "assert r.alignment == 128 and f('general.architecture') == 'llama' and f('large') == 2**64 - 1; "
             "assert f('pi') == 3.25 and f('freq') == [1, 0.5, 0] and f('small') == [-3, 9] and f('yes') is True; "
             "assert f('bytes') == [1, 255] and f('words') == ['<s>', '', chr(233)]; "
             "t = {x.name: x for x in r.tensors}; "
             "assert t['f64'].data.dtype == np.float64 and t['i16'].data.size == 3"));
}

int main(int argc, char **argv)
{
    if (argc > 1 && *argv[1])
        python = argv[1];
    dev = kl_device_named("ref");
    make_normal();
    if (!mkdtemp(folder))
        return 1;
    all_types();
    metadata();
    rounding();
    of_files();
    mistakes();
    with_gguf();
    char line[300];
    snprintf(line, sizeof line, "rm -r %s", folder);
    CHECK(system(line) == 0);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
