/* <kiln/formats/file.h>: .npy and .npz written and read here and by numpy; files cut at each byte, and damaged ones,
 * which are errors or are read, and never a crash (run by the sanitizers' suite, too).
 * Argument: a Python with numpy, safetensors and gguf; without one python3, and what it lacks is skipped. */
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <sys/stat.h>
#include <unistd.h>

static kl_device dev;
static int skipped;
static const char *python = "python3";
static char folder[] = "/tmp/kiln-file-XXXXXX", path_text[300];

static const char *path_of(const char *name)
{
    snprintf(path_text, sizeof path_text, "%s/%s", folder, name);
    return path_text;
}

static bool says(const char *text)
{
    if (strstr(kl_last_error(), text))
        return true;
    printf("  \"%s\" has no \"%s\"\n", kl_last_error(), text);
    return false;
}

static uint8_t *file_bytes(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    uint8_t *all = malloc(1 << 20);
    *n = f && all ? fread(all, 1, 1 << 20, f) : 0;
    if (f)
        fclose(f);
    return all;
}

/* Runs a line of Python in the folder. false: it failed. */
static bool py(const char *code)
{
    char line[4000];
    snprintf(line, sizeof line, "cd %s && %s -c \"%s\"", folder, python, code);
    return system(line) == 0;
}
static bool py_has(const char *module, const char *what)
{
    char code[80];
    snprintf(code, sizeof code, "import %s", module);
    char line[400];
    snprintf(line, sizeof line, "%s -c '%s' 2>/dev/null", python, code);
    if (system(line) == 0)
        return true;
    printf("SKIP no-tool %s: %s has no module %s\n", what, python, module);
    skipped++;
    return false;
}

/* All that can be asked of an open file. */
static void ask_all(kl_file *f)
{
    for (uint32_t i = 0; i < kl_file_count(f); i++) {
        kl_file_entry e;
        if (kl_file_get(f, i, &e) != KL_OK || kl_file_find(f, e.name) != i || !e.type)
            CHECK(!"an entry that cannot be found");
        const uint8_t *data = kl_file_data(f, e.name);
        for (size_t k = 0, sum = 0; data && k < e.bytes; k++)
            if ((sum += data[k]) == SIZE_MAX)
                return;
        kl_tensor t = kl_file_tensor(f, dev, e.name);
        free(values_of(t));
        kl_release(t);
    }
    for (uint32_t i = 0; i < kl_file_meta_count(f); i++) {
        kl_file_meta m;
        if (kl_file_meta_get(f, i, &m) != KL_OK)
            CHECK(!"metadata that cannot be read");
        for (int64_t k = 0; k < m.count && k < 100; k++) {
            const char *s = kl_file_meta_text(f, i, k);
            if (s ? strlen(s) > 1 << 20 : (kl_file_meta_f64(f, i, k), kl_file_meta_i64(f, i, k)) == 77)
                return;
        }
    }
}

static void ask_bytes(const uint8_t *bytes, size_t n, int *opened)
{
    uint8_t *copy = malloc(n ? n : 1); /* so that the sanitizer sees what is read beyond its end */
    memcpy(copy, bytes, n);
    kl_clear_error();
    kl_file *f = kl_file_open_bytes("damaged", copy, n);
    *opened += f != NULL;
    if (f)
        ask_all(f);
    else if (!strstr(kl_last_error(), "damaged: byte "))
        CHECK(!"a message that names file and byte"), says("byte");
    kl_file_close(f);
    free(copy);
}

/* Cut at each byte it cannot be opened; with any bytes replaced it can or not. */
static void damage(const char *path, const char *what)
{
    size_t n;
    uint8_t *all = file_bytes(path, &n);
    int opened = 0, whole = 0, changed = 0;
    device_now = what;
    CHECK(n > 40 && n < 1 << 20);
    for (size_t cut = 0; cut < n; cut++)
        ask_bytes(all, cut, &opened);
    CHECK(opened == 0);
    ask_bytes(all, n, &whole);
    CHECK(whole == 1);
    uint64_t seed = 12345;
    for (int round = 0; round < 2000; round++) {
        uint8_t *copy = malloc(n);
        memcpy(copy, all, n);
        for (int k = 0; k <= round % 4; k++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            size_t at = (size_t)(seed >> 33) % (round % 2 ? n : n < 400 ? n : 400);
            copy[at] = round % 3 ? (uint8_t)(seed >> 20) : "\xff\x00\x80\x7f"[seed >> 20 & 3];
        }
        ask_bytes(copy, n, &changed);
        free(copy);
    }
    CHECK(changed < 2000);
    device_now = "any";
    free(all);
}

static const float six[6] = {1, -2, 3.5f, 4, 5, -6};

/* Of each type that the format has: what is written comes back. */
static void round_trip(kl_file_format format, const char *name)
{
    static const uint64_t bits[4] = {0x3ff0000000000000, 0xc000000000000001, 0x7ff8000000000000, 1};
    static const uint8_t bools[4] = {1, 0, 0, 1};
    kl_file_item items[KL_DTYPE_COUNT + 2];
    char names[KL_DTYPE_COUNT][8];
    uint32_t n = 0;
    for (int d = 0; d < KL_DTYPE_COUNT; d++) {
        if (d == KL_BF16 && format == KL_FILE_NPZ)
            continue;
        snprintf(names[d], sizeof names[d], "t.%s", kl_dtype_name((kl_dtype)d));
        int64_t two_two[] = {2, 2};
        items[n++] = (kl_file_item){.name = names[d], .tensor = kl_input(dev, (kl_dtype)d, 2, two_two,
                                                                       d == KL_BOOL ? (const void *)bools : bits)};
    }
    const char *path = path_of(name);
    items[n++] = (kl_file_item){.name = "none", .dtype = KL_F32, .rank = 2, .dims = (int64_t[]){3, 0}};
    items[n++] = (kl_file_item){.name = "\xc3\xa9 \"\\\n", .dtype = KL_F64, .rank = 0, .data = bits};
    OK(kl_file_write(path, format, n, items, 0, NULL));
    kl_file *f = kl_file_open(path);
    if (!CHECK(f && kl_file_format_of(f) == format && kl_file_count(f) == n))
        return;
    for (uint32_t i = 0; i < n; i++) {
        kl_file_entry e;
        int64_t at = kl_file_find(f, items[i].name);
        if (!CHECK(at >= 0 && kl_file_get(f, (uint32_t)at, &e) == KL_OK))
            continue;
        kl_tensor t = kl_file_tensor(f, dev, items[i].name);
        if (!items[i].tensor.id) {
            CHECK(kl_dtype_of(t) == items[i].dtype && kl_rank(t) == items[i].rank);
            kl_release(t);
            continue;
        }
        size_t size = kl_dtype_size(e.dtype);
        char back[32];
        OK(kl_read(t, back, 4 * size));
        CHECK(e.rank == 2 && e.dims[1] == 2 && e.bytes == 4 * size &&
              !memcmp(back, e.dtype == KL_BOOL ? (const void *)bools : bits, 4 * size) &&
              !memcmp(back, kl_file_data(f, e.name), 4 * size));
        CHECK(e.offset % size == 0); /* so it can be mapped */
        kl_release(t);
        kl_release(items[i].tensor);
    }
    kl_file_close(f);
}

static void lasting(void)
{
    const char *path = path_of("lasting.npz");
    kl_file_item item = {.name = "x", .dtype = KL_F32, .rank = 1, .dims = (int64_t[]){6}, .data = six};
    OK(kl_file_write(path, KL_FILE_NPZ, 1, &item, 0, NULL));
    kl_file *f = kl_file_open(path);
    kl_tensor x = kl_file_tensor(f, dev, "x");
    kl_requires_grad(x);
    kl_file_close(f); /* the tensor stays */
    for (int i = 0; i < 2; i++) {
        OK(kl_trace_begin("assign"));
        OK(kl_assign(x, kl_mul_scalar(x, 2)));
        OK(kl_trace_end());
    }
    NEAR_LIST(x, 0, 4, -8, 14, 16, 20, -24);
    f = kl_file_open(path); /* and the file, too */
    NEAR_LIST(kl_file_tensor(f, dev, "x"), 0, 1, -2, 3.5, 4, 5, -6);
    OK(kl_trace_begin("inside"));
    kl_tensor y = kl_keep(kl_add(kl_file_tensor(f, dev, "x"), kl_scalar(dev, KL_F32, 1)));
    OK(kl_trace_end());
    NEAR_LIST(y, 0, 2, -1, 4.5, 5, 6, -5);
    CHECK(!kl_file_tensor(f, dev, "y").id && says("lasting.npz has no tensor \"y\""));
    CHECK(kl_file_get(f, 1, &(kl_file_entry){0}) == KL_ERR_ARGUMENT && kl_file_find(f, "y") == -1);
    /* it is replaced while it is mapped */
    kl_tensor old = kl_file_tensor(f, dev, "x");
    float other[6] = {0};
    item.data = other;
    OK(kl_file_write(path, KL_FILE_NPZ, 1, &item, 0, NULL));
    NEAR_LIST(old, 0, 1, -2, 3.5, 4, 5, -6);
    kl_file_close(f);
    kl_file_close(NULL);
}

static void mistakes(void)
{
    kl_file_item item[2] = {{.name = "x", .dtype = KL_F32, .rank = 1, .dims = (int64_t[]){6}, .data = six}};
    item[1] = item[0];
    const char *path = path_of("none.npz");
    CHECK(kl_file_write(path, KL_FILE_NPZ, 2, item, 0, NULL) == KL_ERR_ARGUMENT && says("two items are called \"x\""));
    CHECK(kl_file_write(path, KL_FILE_NPY, 2, item, 0, NULL) == KL_ERR_ARGUMENT && says("has one array, not 2"));
    CHECK(kl_file_write(path, KL_FILE_FORMATS, 1, item, 0, NULL) == KL_ERR_ARGUMENT && says("does not write unknown"));
    item[0].data = NULL;
    CHECK(kl_file_write(path, KL_FILE_NPZ, 1, item, 0, NULL) == KL_ERR_ARGUMENT && says("neither a tensor"));
    item[0].dtype = KL_BF16;
    item[0].data = six;
    CHECK(kl_file_write(path, KL_FILE_NPZ, 1, item, 0, NULL) == KL_ERR_TYPE && says("have no bf16"));
    item[0] = (kl_file_item){.name = "x", .tensor = {12345}};
    CHECK(kl_file_write(path, KL_FILE_NPZ, 1, item, 0, NULL) == KL_ERR_HANDLE);
    CHECK(access(path, F_OK) != 0);
    CHECK(kl_file_write("/nowhere/x.npy", KL_FILE_NPY, 1, &item[1], 0, NULL) == KL_ERR_IO && says("/nowhere/x.npy"));
    CHECK(kl_file_write("/dev/full", KL_FILE_NPY, 1, &item[1], 0, NULL) == KL_ERR_IO && says("cannot write /dev/full"));
    CHECK(access("/dev/full", F_OK) == 0);
    CHECK(!kl_file_open(path) && says("cannot open") && kl_last_error_code() == KL_ERR_IO);
    CHECK(!kl_file_open(folder) && says("not a regular file"));
    /* what is written beside is gone */
    char line[400];
    snprintf(line, sizeof line, "! ls %s | grep part", folder);
    CHECK(system(line) == 0);
    /* a link stays one */
    OK(kl_file_write(path_of("real.npy"), KL_FILE_NPY, 1, &item[1], 0, NULL));
    char real[300], link[300];
    snprintf(real, sizeof real, "%s", path_of("real.npy"));
    snprintf(link, sizeof link, "%s", path_of("link.npy"));
    struct stat st;
    CHECK(chmod(real, 0640) == 0 && symlink("real.npy", link) == 0);
    OK(kl_file_write(link, KL_FILE_NPY, 1, &item[1], 0, NULL));
    CHECK(lstat(link, &st) == 0 && S_ISLNK(st.st_mode) && stat(real, &st) == 0 && (st.st_mode & 0777) == 0640);
}

/* .npy headers that are wrong, each in one way: the byte and field of the message. */
static void npy_mistakes(void)
{
    static const struct { const char *dict, *message; } bad[] = {
        {"{'descr': '>c8', 'fortran_order': False, 'shape': (2,), }",
         "byte 21, field descr: elements of >c8, which Kiln does not have"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }", "elements of <c8, which Kiln does not have"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", "a structured or missing element type"},
        {"{'descr': '<f4', 'fortran_order': Perhaps, 'shape': (2,), }", "field fortran_order: expected True or False"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, -1), }", "field shape: a dimension is missing"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,2), }", "more than 8 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, }", "lacks descr, fortran_order or shape"},
        {"{'descr': '<f4', 'descr': '<f4', 'shape': (2,), }", "an unknown or repeated key"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "8 bytes of elements where the shape needs 12"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (8,), }", "a bool is"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char bytes[200] = "\x93NUMPY\x01\x00\x76";
        memset(bytes + 10, ' ', 118);
        memcpy(bytes + 10, bad[i].dict, strlen(bad[i].dict));
        memcpy(bytes + 128, six, 8);
        kl_file *f = kl_file_open_bytes("bad.npy", bytes, 136);
        CHECK((!f || !kl_file_data(f, "")) && says("bad.npy: byte ") && says(bad[i].message));
        kl_file_close(f);
    }
}

/* Headers as others write them, and elements whose first byte is the highest: each is [2, 3] of 1 to 6. */
static void npy_of_others(void)
{
    static const struct { const char *dict; kl_dtype dtype; bool turned; } good[] = {
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }", KL_F32, true},
        {"{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2, 3)}", KL_F32, false},
        {"{'shape' : (2,3) ,\t'descr' :'<f4','fortran_order':False}", KL_F32, false},
        {"{'descr': 'float32', 'fortran_order': False, 'shape': (2L, 3L)}", KL_F32, false},
        {"{'descr': 'f4', 'fortran_order': False, 'shape': (2L, 3L, ), }", KL_F32, false},
        {"{'descr': '<f', 'fortran_order': False, 'shape': (2, 3), }", KL_F32, false},
        {"{'descr': '=f4', 'fortran_order': False, 'shape': (2, 3), }", KL_F32, false},
        {"{'descr': '>f8', 'fortran_order': False, 'shape': (2, 3), }", KL_F64, true},
        {"{'descr': '>i2', 'fortran_order': False, 'shape': (2, 3), }", KL_I16, true},
        {"{'descr': '>u8', 'fortran_order': False, 'shape': (2, 3), }", KL_U64, true},
        {"{'descr': '>i4', 'fortran_order': True, 'shape': (3, 2), }", KL_I32, true},
        {"{'descr': 'int64', 'fortran_order': False, 'shape': (2, 3), }", KL_I64, false},
        {"{'descr': '>u1', 'fortran_order': False, 'shape': (2, 3), }", KL_U8, false},
        {"{'descr': '|i1', 'fortran_order': False, 'shape': (2, 3), }", KL_I8, false},
        {"{'descr': '?', 'fortran_order': False, 'shape': (6,)}", KL_BOOL, false},
    };
    static const double numbers[6] = {1, 2, 3, 4, 5, 6};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint8_t bytes[200] = "\x93NUMPY\x01\x00\x76", own[48];
        size_t size = kl_dtype_size(good[i].dtype);
        memset(bytes + 10, ' ', 118);
        memcpy(bytes + 10, good[i].dict, strlen(good[i].dict));
        OK(kl_read(kl_cast(kl_input(dev, KL_F64, 1, (int64_t[]){6}, numbers), good[i].dtype), own, 6 * size));
        for (size_t k = 0; k < 6 * size; k++)
            bytes[128 + (good[i].turned ? k / size * size + size - 1 - k % size : k)] = own[k];
        kl_file *f = kl_file_open_bytes("theirs.npy", bytes, 128 + 6 * size);
        if (!CHECK(f != NULL))
            printf("  %s\n", good[i].dict);
        kl_tensor t = f ? kl_file_tensor(f, dev, "") : kl_none;
        CHECK(kl_dtype_of(t) == good[i].dtype);
        if (good[i].dtype == KL_BOOL)
            NEAR_LIST(t, 0, 1, 1, 1, 1, 1, 1);
        else if (strstr(good[i].dict, "True"))
            NEAR_LIST(t, 0, 1, 4, 2, 5, 3, 6);
        else
            NEAR(t, 6, numbers, 0);
        kl_file_close(f);
    }
}

/* ---- safetensors ---- */

static kl_file *safe_open(const char *header, size_t data, char *bytes)
{
    size_t n = strlen(header);
    memset(bytes, 0, 8);
    bytes[0] = (char)n;
    bytes[1] = (char)(n >> 8);
    memcpy(bytes + 8, header, n);
    memset(bytes + 8 + n, 1, data);
    kl_clear_error();
    return kl_file_open_bytes("bad.safetensors", bytes, 8 + n + data);
}

#define ONE(type, shape, at) \
    "{\"a\":{\"dtype\":\"" type "\",\"shape\":[" shape "],\"data_offsets\":[" at "]}}"
static void safetensors_mistakes(void)
{
    static const struct { const char *header, *message; size_t data; } bad[] = {
        {ONE("F32", "2", "0,4"), "byte 13, field data_offsets: \"a\" has 0 to "
         "4 where its shape needs 8 bytes", 8},
        {ONE("F32", "2", "0,8"), "the file is cut off", 7},
        {ONE("F32", "2", "0,8"), "1 bytes that no tensor has", 9},
        {ONE("F32", "2", "4,12"), "begins after the end", 12},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
         "\"data_offsets\":[1,3]}}", "\"b\" begins before the end", 3},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],"
         "\"data_offsets\":[1,2]}}", "field name: two tensors are called \"a\"", 2},
        {ONE("Q7", "2", "0,8"), "field dtype: \"a\" has elements of the unknown "
         "type \"Q7\"", 8},
        {ONE("U8", "-1", "0,8"), "field shape: expected a whole number", 8},
        {ONE("U8", "1.5", "0,8"), "field shape: expected a whole number", 8},
        {ONE("U8", "9223372036854775808", "0,8"), "2^63 or more", 8},
        {ONE("U8", "4611686018427387904,4", "0,8"), "\"a\" is too large", 8},
        {ONE("U8", "1,1,1,1,1,1,1,1,8", "0,8"), "more than 8 dimensions", 8},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8]}}", "lacks dtype, shape or data_offsets", 8},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", "tensor \"a\" has it twice", 8},
        {"{\"a\":{\"colour\":\"U8\"}}", "field colour: tensor \"a\" has it beside", 8},
        {"{\"__metadata__\":{\"a\":1}}", "field a: expected '\"'", 0},
        {"{} x", "something follows", 0}, {"{\"a", "a string without an end", 0}, {"{\"\\q\":{}}", "unknown escape", 0},
        {"{\"\\ud800\":{}}", "unknown escape", 0}, {"{\"\\u0000\":{}}", "a zero character", 0},
        {"{\"\xff\":{}}", "no UTF-8", 0}, {"{\"\xed\xa0\x80\":{}}", "no UTF-8", 0}, {"{,}", "expected '\"'", 0},
        {"{\"a\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]},}", "field name: expected '\"'", 2},
    };
    char bytes[400];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        device_now = bad[i].message;
        kl_file *f = safe_open(bad[i].header, bad[i].data, bytes);
        CHECK(!f && says("bad.safetensors: byte ") && says(bad[i].message));
        kl_file_close(f);
    }
    device_now = "any";
    kl_file *f = safe_open("{\"a\":{\"dtype\":\"F6_E3M2\",\"shape\":[4],\"data_offsets\":[0,3]},"
                           "\"\\u00e9\\ud83d\\ude00\":"
                           "{\"shape\":[], \"data_offsets\":[3, 4],\"dtype\":\"BOOL\"}}  ", 4, bytes);
    kl_file_entry e;
    CHECK(f && kl_file_get(f, 0, &e) == KL_OK && e.dtype == KL_DTYPE_COUNT && e.bytes == 3);
    CHECK(!strcmp(e.type, "F6_E3M2"));
    CHECK(!kl_file_tensor(f, dev, "a").id && kl_last_error_code() == KL_ERR_TYPE &&
          says("tensor \"a\" has elements of F6_E3M2"));
    CHECK(kl_file_data(f, "a") != NULL);
    NEAR_LIST(kl_file_tensor(f, dev, "\xc3\xa9\xf0\x9f\x98\x80"), 0, 1);
    kl_file_close(f);
    kl_file_item item = {.name = "__metadata__", .dtype = KL_F32, .data = six};
    const char *path = path_of("never.safetensors");
    CHECK(kl_file_write(path, KL_FILE_SAFETENSORS, 1, &item, 0, NULL) == KL_ERR_ARGUMENT && says("__metadata__"));
    item.name = "\xff";
    CHECK(kl_file_write(path, KL_FILE_SAFETENSORS, 1, &item, 0, NULL) == KL_ERR_ARGUMENT);
    CHECK(access(path, F_OK) != 0);
}

static void safetensors_metadata(void)
{
    kl_file_pair meta[] = {{"step", "17"}, {"text\n", "\"quoted\" \xc3\xa9"}};
    const char *path = path_of("meta.safetensors");
    OK(kl_file_write(path, KL_FILE_SAFETENSORS, 0, NULL, 2, meta));
    kl_file *f = kl_file_open(path);
    kl_file_meta m;
    CHECK(f && kl_file_count(f) == 0 && kl_file_meta_count(f) == 2);
    OK(kl_file_meta_get(f, 1, &m));
    CHECK(!strcmp(m.key, meta[1].key) && m.count == 1 && !m.array && m.dtype == KL_DTYPE_COUNT);
    CHECK(!strcmp(kl_file_meta_text(f, 1, 0), meta[1].value) && !kl_file_meta_text(f, 1, 1));
    CHECK(kl_file_meta_find(f, "step") == 0 && kl_file_meta_find(f, "other") == -1 &&
          isnan(kl_file_meta_f64(f, 0, 0)) && kl_file_meta_get(f, 2, &m) == KL_ERR_ARGUMENT);
    kl_file_close(f);
    /* elements lie in the file as they do in memory: nothing is copied */
    kl_file_item item = {.name = "x", .dtype = KL_F32, .rank = 1, .dims = (int64_t[]){6}, .data = six};
    OK(kl_file_write(path, KL_FILE_SAFETENSORS, 1, &item, 2, meta));
    f = kl_file_open(path);
    NEAR_LIST(kl_file_tensor(f, dev, "x"), 0, 1, -2, 3.5, 4, 5, -6);
    kl_file_close(f);
    kl_tensor zeros = kl_zeros(dev, KL_F32, 1, (int64_t[]){1 << 18});
    item.tensor = zeros;
    OK(kl_file_write(path_of("large.safetensors"), KL_FILE_SAFETENSORS, 1, &item, 0, NULL));
    kl_release(zeros);
    kl_memory_use before, after;
    f = kl_file_open(path_of("large.safetensors"));
    OK(kl_memory_used(dev, &before));
    kl_tensor x = kl_file_tensor(f, dev, "x");
    CHECK(kl_item_f32(kl_sum_all(x)) == 0);
    OK(kl_memory_used(dev, &after));
    CHECK(after.live - before.live < 4096); /* bytes, of 2^20 */
    kl_release(x);
    kl_file_close(f);
}

static void with_safetensors(void)
{
    if (!py_has("safetensors.numpy", "safetensors"))
        return;
    CHECK(py("from safetensors import safe_open; f = safe_open('all.safetensors', 'np'); k = list(f.keys()); "
             "assert len(k) == 15, k; assert f.get_tensor('t.f64')[0][0] == 1.0; "
             "assert f.get_tensor('t.bool').tolist() == [[True, False], [False, True]]; "
             "assert f.get_slice('none').get_shape() == [3, 0]"));
    CHECK(py("from safetensors import safe_open; f = safe_open('meta.safetensors', 'np'); "
             "assert f.metadata()['step'] == '17' and len(f.metadata()) == 2; "
             "assert f.get_tensor('x').tolist() == [1, -2, 3.5, 4, 5, -6]"));
    CHECK(py("import numpy as np; from safetensors.numpy import save_file; "
             "save_file({'b': np.arange(6, dtype=np.float32).reshape(2, 3), 'a': np.array([True]), "
             "'h': np.ones(3, np.float16)}, 'theirs.safetensors', {'who': 'them'})"));
    kl_file *f = kl_file_open(path_of("theirs.safetensors"));
    CHECK(f && kl_file_count(f) == 3 && !strcmp(kl_file_meta_text(f, 0, 0), "them"));
    NEAR_LIST(kl_file_tensor(f, dev, "b"), 0, 0, 1, 2, 3, 4, 5);
    NEAR_LIST(kl_file_tensor(f, dev, "h"), 0, 1, 1, 1);
    kl_file_close(f);
}

/* ---- GGUF ---- */

struct gguf { uint8_t v[4096]; size_t n; };
static void gguf_put(struct gguf *g, unsigned bytes, uint64_t v)
{
    for (; bytes--; v >>= 8)
        g->v[g->n++] = (uint8_t)v;
}
static void gguf_text(struct gguf *g, const char *s)
{
    gguf_put(g, 8, strlen(s));
    memcpy(g->v + g->n, s, strlen(s));
    g->n += strlen(s);
}
static void gguf_tensor(struct gguf *g, const char *name, unsigned type, uint64_t inner, uint64_t outer, uint64_t at)
{
    gguf_text(g, name);
    gguf_put(g, 4, outer ? 2 : 1);
    gguf_put(g, 8, inner);
    if (outer)
        gguf_put(g, 8, outer);
    gguf_put(g, 4, type);
    gguf_put(g, 8, at);
}

/* Metadata of all types, and tensors: f32 [2,4], f16 [16], bf16 [16], q8_0 [2,32], q4_0 [1,64], q4_K [256] */
static struct gguf gguf_made(void)
{
    struct gguf g = {.n = 0};
    memcpy(g.v, "GGUF", 4);
    g.n = 4;
    gguf_put(&g, 4, 3);
    gguf_put(&g, 8, 6);
    gguf_put(&g, 8, 6);
    gguf_text(&g, "general.architecture");
    gguf_put(&g, 4, 8);
    gguf_text(&g, "llama");
    gguf_text(&g, "general.alignment");
    gguf_put(&g, 4, 4);
    gguf_put(&g, 4, 32);
    gguf_text(&g, "llama.rope.freq_base");
    gguf_put(&g, 4, 6);
    gguf_put(&g, 4, 0x461c4000); /* 10000 */
    gguf_text(&g, "tokenizer.ggml.tokens");
    gguf_put(&g, 4, 9);
    gguf_put(&g, 4, 8);
    gguf_put(&g, 8, 3);
    gguf_text(&g, "<s>");
    gguf_text(&g, "");
    gguf_text(&g, "word");
    gguf_text(&g, "sizes");
    gguf_put(&g, 4, 9);
    gguf_put(&g, 4, 3);
    gguf_put(&g, 8, 2);
    gguf_put(&g, 2, 7);
    gguf_put(&g, 2, (uint16_t)-9);
    gguf_text(&g, "flag");
    gguf_put(&g, 4, 7);
    gguf_put(&g, 1, 1);
    gguf_tensor(&g, "f32", 0, 4, 2, 0);
    gguf_tensor(&g, "f16", 1, 16, 0, 32);
    gguf_tensor(&g, "bf16", 30, 16, 0, 64);
    gguf_tensor(&g, "q8", 8, 32, 2, 96);
    gguf_tensor(&g, "q4", 2, 64, 1, 192);
    gguf_tensor(&g, "other", 12, 256, 0, 256);
    while (g.n % 32)
        g.n++;
    size_t data = g.n;
    for (int i = 0; i < 8; i++) {
        float v = (float)i - 3.5f;
        memcpy(g.v + g.n, &v, 4);
        g.n += 4;
    }
    for (int i = 0; i < 32; i++)
        gguf_put(&g, 2, i < 16 ? 0x3c00 : 0xbf80); /* 1; -1 */
    for (int block = 0; block < 2; block++) {
        gguf_put(&g, 2, block ? 0x3800 : 0x0001); /* 0.5; 2^-24 */
        for (int i = 0; i < 32; i++)
            gguf_put(&g, 1, (uint8_t)(i * 8 - 128));
    }
    while (g.n < data + 192)
        g.n++;
    for (int block = 0; block < 2; block++) {
        gguf_put(&g, 2, block ? 0xc000 : 0x3c00); /* -2; 1 */
        for (int i = 0; i < 16; i++)
            gguf_put(&g, 1, (unsigned)(i | (15 - i) << 4));
    }
    while (g.n < data + 256 + 144)
        g.n++;
    return g;
}

static void gguf(void)
{
    struct gguf g = gguf_made();
    FILE *out = fopen(path_of("made.gguf"), "wb");
    CHECK(out && fwrite(g.v, 1, g.n, out) == g.n);
    if (out)
        fclose(out);
    kl_file *f = kl_file_open(path_of("made.gguf"));
    if (!CHECK(f && kl_file_format_of(f) == KL_FILE_GGUF && kl_file_count(f) == 6 && kl_file_meta_count(f) == 6))
        return;
    kl_file_meta m;
    OK(kl_file_meta_get(f, 3, &m));
    CHECK(m.array && m.count == 3 && !strcmp(kl_file_meta_text(f, 3, 2), "word") && !*kl_file_meta_text(f, 3, 1));
    CHECK(kl_file_meta_f64(f, 2, 0) == 10000 && kl_file_meta_i64(f, 2, 0) == 10000 && kl_file_meta_i64(f, 4, 1) == -9 &&
          kl_file_meta_f64(f, 4, 0) == 7 && kl_file_meta_i64(f, 5, 0) == 1 && !kl_file_meta_text(f, 5, 0));
    double q8[64], q4[64];
    for (int i = 0; i < 64; i++) {
        q8[i] = (i % 32 * 8 - 128) * (i < 32 ? 0x1p-24 : 0.5);
        q4[i] = ((i % 32 < 16 ? i % 32 : 31 - i % 32) - 8) * (i < 32 ? 1.0 : -2.0);
    }
    kl_tensor t = kl_file_tensor(f, dev, "f32");
    SHAPE(t, 2, 4);
    NEAR_LIST(t, 0, -3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5);
    kl_release(kl_file_tensor(f, dev, "f16"));
    NEAR_LIST(kl_slice(kl_file_tensor(f, dev, "bf16"), (int64_t[]){0}, (int64_t[]){2}, (int64_t[]){1}), 0, -1, -1);
    t = kl_file_tensor(f, dev, "q8");
    SHAPE(t, 2, 32);
    char text[200];
    CHECK(!strcmp(kl_layer_name(t), "quantized"));
    CHECK(!strcmp(kl_layer_text(t, text, sizeof text), "quantized f32[2,32]: i8[2,32] f32[2,1] none"));
    NEAR(t, 64, q8, 0);
    t = kl_file_tensor(f, dev, "q4");
    SHAPE(t, 1, 64);
    CHECK(!strcmp(kl_layer_text(t, text, sizeof text), "quantized f32[1,64]: u8[1,32] f32[1,2] none"));
    kl_tensor ones = kl_ones(dev, KL_F32, 2, (int64_t[]){64, 1});
    NEAR_LIST(kl_matmul(t, ones), 0, -16 + 32); /* the blocks' sums */
    kl_release(ones);
    NEAR(t, 64, q4, 0);
    kl_file_entry e;
    OK(kl_file_get(f, 5, &e));
    CHECK(e.dtype == KL_F32 && e.bytes == 144 && !strcmp(e.type, "Q4_K"));
    kl_file_close(f);
    /* a type that nobody knows is no reason to refuse the other tensors */
    g = gguf_made();
    for (size_t i = 0; i + 5 < g.n; i++)
        if (!memcmp(g.v + i, "other", 5))
            g.v[i + 5 + 4 + 8] = 77;
    f = kl_file_open_bytes("newer.gguf", g.v, g.n);
    if (CHECK(f && kl_file_get(f, 5, &e) == KL_OK)) {
        CHECK(e.dtype == KL_DTYPE_COUNT && e.bytes == 144 && !strcmp(e.type, "type 77") && kl_file_data(f, "other"));
        CHECK(!kl_file_tensor(f, dev, "other").id && says("elements of type 77, which Kiln does not read"));
        NEAR_LIST(kl_file_tensor(f, dev, "f32"), 0, -3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5);
    }
    kl_file_close(f);
    damage(path_of("made.gguf"), "gguf");
    static const struct { size_t at; uint8_t to; const char *message; } bad[] = {
        {4, 4, "byte 4, field version: 4 is neither 2 nor 3"}, {7, 1, "big-endian"},
        {24, 255, "byte 24, field key: a text of"},
        {52, 99, "field general.architecture: values of the unknown type 99"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        g = gguf_made();
        g.v[bad[i].at] = bad[i].to;
        if (bad[i].at == 24)
            memset(g.v + 24, 255, 7);
        f = kl_file_open_bytes("bad.gguf", g.v, g.n);
        CHECK(!f && says("bad.gguf: byte ") && says(bad[i].message));
        kl_file_close(f);
    }
}

static void with_gguf(void)
{
    if (!py_has("gguf", "gguf"))
        return;
    CHECK(py("import gguf, numpy as np; from gguf import quants, GGMLQuantizationType as T; "
             "r = np.random.default_rng(1); a = r.standard_normal((3, 64)).astype(np.float32); "
             "w = gguf.GGUFWriter('theirs.gguf', 'llama'); w.add_uint32('n', 5); w.add_array('words', ['a', 'b']); "
             "w.add_tensor('f32', a); w.add_tensor('f16', a.astype(np.float16))\n"
             "for n, t in (('q8', T.Q8_0), ('q4', T.Q4_0), ('bf16', T.BF16), ('q41', T.Q4_1), ('q50', T.Q5_0), "
             "('q51', T.Q5_1)):\n"
             "    q = quants.quantize(a, t); w.add_tensor(n, q, raw_dtype=t); "
             "np.save(n + '.npy', quants.dequantize(q, t))\n"
             "w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()"));
    kl_file *f = kl_file_open(path_of("theirs.gguf"));
    if (!CHECK(f && kl_file_count(f) == 8 && kl_file_meta_find(f, "n") >= 0))
        return;
    static const char *const names[] = {"q8", "q4", "bf16", "q41", "q50", "q51"};
    for (int i = 0; i < 6; i++) {
        char name[20];
        snprintf(name, sizeof name, "%s.npy", names[i]);
        kl_file *a = kl_file_open(path_of(name));
        kl_tensor t = kl_file_tensor(a, dev, "");
        double *want = values_of(t);
        if (CHECK(want != NULL))
            NEAR(kl_file_tensor(f, dev, names[i]), 192, want, 0);
        free(want);
        kl_release(t);
        kl_file_close(a);
    }
    kl_file_close(f);
    CHECK(py("from gguf import GGUFReader; r = GGUFReader('made.gguf'); assert len(r.tensors) == 6"));
}

/* What numpy says of files made here, and files that it makes. */
static void with_numpy(void)
{
    if (!py_has("numpy", "numpy"))
        return;
    CHECK(py("import numpy as np; z = np.load('all.npz'); assert len(z.files) == 14; "
             "assert z['t.f64'].dtype == np.float64 and z['t.f64'][0][0] == 1.0; assert z['t.bool'].tolist() == "
             "[[True, False], [False, True]]; assert z['none'].shape == (3, 0); "
             "assert all(z['t.' + n].dtype.kind == k for n, k in (('u8', 'u'), ('i64', 'i'), ('f16', 'f')))"));
    CHECK(py("import numpy as np; a = np.load('real.npy'); assert a.tolist() == [1, -2, 3.5, 4, 5, -6]"));
    CHECK(py("import numpy as np; a = np.arange(24, dtype=np.float32).reshape(2, 3, 4); "
             "np.savez('theirs.npz', a=a, t=a.T, b=a > 5, h=a.astype(np.float16), one=np.int64(7), none=a[:0]); "
             "np.savez_compressed('small.npz', a=a, t=a.T, big=np.zeros((300, 300))); np.save('t.npy', a.T)"));
    static const char *const files[] = {"theirs.npz", "small.npz", "t.npy"};
    for (int i = 0; i < 3; i++) {
        kl_file *f = kl_file_open(path_of(files[i]));
        if (!CHECK(f != NULL))
            continue;
        double want[24], permuted[24];
        for (int k = 0; k < 24; k++) {
            want[k] = k;
            permuted[k % 12 % 4 * 6 + k % 12 / 4 * 2 + k / 12] = k;
        }
        kl_tensor t = kl_file_tensor(f, dev, i == 2 ? "" : "t");
        SHAPE(t, 4, 3, 2);
        NEAR(t, 24, permuted, 0);
        if (i < 2)
            NEAR(kl_file_tensor(f, dev, "a"), 24, want, 0);
        if (i == 0) {
            CHECK(kl_file_count(f) == 6);
            NEAR(kl_file_tensor(f, dev, "h"), 24, want, 0);
            NEAR_LIST(kl_file_tensor(f, dev, "one"), 0, 7);
        }
        kl_file_close(f);
    }
    damage(path_of("small.npz"), "small.npz");
}

int main(int argc, char **argv)
{
    if (argc > 1 && *argv[1])
        python = argv[1];
    dev = kl_device_named("ref");
    if (!mkdtemp(folder))
        return 1;
    round_trip(KL_FILE_NPZ, "all.npz");
    lasting();
    mistakes();
    npy_mistakes();
    npy_of_others();
    damage(path_of("real.npy"), "npy");
    damage(path_of("all.npz"), "npz");
    with_numpy();
    round_trip(KL_FILE_SAFETENSORS, "all.safetensors");
    safetensors_mistakes();
    safetensors_metadata();
    damage(path_of("all.safetensors"), "safetensors");
    with_safetensors();
    gguf();
    with_gguf();
    char line[300];
    snprintf(line, sizeof line, "rm -r %s", folder);
    CHECK(system(line) == 0);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
