/* <kiln/file.h>: .npy and .npz written and read here and by numpy; files cut at each byte and files with damaged bytes,
 * which are errors or are read, and never a crash (run by the sanitizers' suite, too).
 * Argument: a Python with numpy, safetensors and gguf; without one python3, and what it lacks is skipped. */
#include "tests/support/api_check.h"
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
    CHECK(kl_file_write(path, KL_FILE_GGUF, 1, item, 0, NULL) == KL_ERR_ARGUMENT && says("does not write gguf"));
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
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }",
         "byte 21, field descr: elements of >f4: big-endian"},
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
        double want[24], turned[24];
        for (int k = 0; k < 24; k++) {
            want[k] = k;
            turned[k % 12 % 4 * 6 + k % 12 / 4 * 2 + k / 12] = k;
        }
        kl_tensor t = kl_file_tensor(f, dev, i == 2 ? "" : "t");
        SHAPE(t, 4, 3, 2);
        NEAR(t, 24, turned, 0);
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
    damage(path_of("real.npy"), "npy");
    damage(path_of("all.npz"), "npz");
    with_numpy();
    char line[300];
    snprintf(line, sizeof line, "rm -r %s", folder);
    CHECK(system(line) == 0);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
