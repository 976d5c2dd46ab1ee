/* <kiln/formats/file.h>: element types of safetensors that Kiln has no dtype of: 8-bit floats, each code, and complex
 * numbers; read as tensors and converted while a file is written. */
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <unistd.h>

static kl_device dev;
static char path[100];
static const struct type { const char *name; int fraction, bias; bool infinite; } types[] = {
    {"F8_E4M3", 3, 7, false}, {"F8_E5M2", 2, 15, true},
};

/* The value of a code by its definition. */
static double value(const struct type *t, unsigned code)
{
    unsigned low = code & 127, exponent = low >> t->fraction, digits = low & ((1u << t->fraction) - 1);
    double v = exponent ? ldexp(1 + ldexp(digits, -t->fraction), (int)exponent - t->bias)
                        : ldexp(digits, 1 - t->bias - t->fraction);
    if (t->infinite && exponent == 31)
        v = digits ? NAN : INFINITY;
    if (!t->infinite && low == 127)
        v = NAN;
    return code & 128 ? -v : v;
}

static kl_file *made(const char *type, const char *shape, const void *data, size_t n, char bytes[2000])
{
    int length = snprintf(bytes + 8, 900, "{\"t\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[0,%zu]}}", type,
                          shape, n);
    memset(bytes, 0, 8);
    bytes[0] = (char)length;
    memcpy(bytes + 8 + length, data, n);
    kl_file *f = kl_file_open_bytes("types.safetensors", bytes, 8 + (size_t)length + n);
    CHECK(f != NULL);
    return f;
}

/* Written as f32, the values are the same. */
static void converted(kl_file *f, const double *want)
{
    kl_file_item item = {.name = "t", .file = f};
    OK(kl_file_write(path, KL_FILE_GGUF, 1, &item, 0, NULL));
    kl_file *g = kl_file_open(path);
    NEAR(kl_file_tensor(g, dev, "t"), 256, want, 0);
    kl_file_close(g);
    remove(path);
}

static void small_floats(void)
{
    uint8_t codes[256];
    double want[256];
    char bytes[2000];
    for (unsigned i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        for (unsigned i = 0; i < 256; i++)
            want[i] = value(&types[k], i);
        kl_file *f = made(types[k].name, "2,128", codes, 256, bytes);
        kl_file_entry e;
        OK(kl_file_get(f, 0, &e));
        CHECK(e.dtype == KL_F32 && !strcmp(e.type, types[k].name) && e.bytes == 256);
        kl_tensor t = kl_file_tensor(f, dev, "t");
        SHAPE(t, 2, 128);
        CHECK(kl_dtype_of(t) == KL_F32);
        NEAR(t, 256, want, 0);
        converted(f, want);
        kl_file_close(f);
    }
    for (unsigned i = 0; i < 256; i++)
        want[i] = i < 255 ? ldexp(1, (int)i - 127) : NAN;
    kl_file *f = made("F8_E8M0", "256", codes, 256, bytes);
    NEAR(kl_file_tensor(f, dev, "t"), 256, want, 0);
    converted(f, want);
    kl_file_close(f);
}

static void complex_numbers(void)
{
    static const float pairs[] = {1, 2, -3, 0.5f, 0, -1};
    char bytes[2000];
    kl_file *f = made("C64", "3,1", pairs, sizeof pairs, bytes);
    kl_tensor t = kl_file_tensor(f, dev, "t"), re = kl_real(t), im = kl_imag(t);
    CHECK(!strcmp(kl_layer_name(t), "complex"));
    SHAPE(re, 3, 1);
    NEAR_LIST(re, 0, 1, -3, 0);
    NEAR_LIST(im, 0, 2, 0.5, -1);
    kl_release(t);
    FAILS(kl_file_write(path, KL_FILE_GGUF, 1, &(kl_file_item){.name = "t", .file = f}, 0, NULL), KL_ERR_TYPE,
          "\"t\" has elements of C64, which Kiln does not write");
    kl_file_close(f);
    f = made("C64", "", pairs, 8, bytes);
    t = kl_file_tensor(f, dev, "t");
    im = kl_imag(t);
    NEAR_LIST(im, 0, 2);
    kl_release(t);
    kl_file_close(f);
    f = made("C64", "0", pairs, 0, bytes);
    t = kl_file_tensor(f, dev, "t");
    CHECK(kl_numel(t) == 0);
    kl_release(t);
    kl_file_close(f);
    f = made("C64", "1,1,1,1,1,1,1,1", pairs, 8, bytes);
    CHECK(!kl_file_tensor(f, dev, "t").id && kl_last_error_code() == KL_ERR_TYPE &&
          strstr(kl_last_error(), "tensor \"t\" has complex elements and 8 dimensions"));
    kl_clear_error();
    kl_file_close(f);
}

static void test(kl_device device)
{
    dev = device;
    snprintf(path, sizeof path, "/tmp/kiln-file-types-%ld.gguf", (long)getpid());
    small_floats();
    complex_numbers();
}

int main(void)
{
    return on_devices(test);
}
