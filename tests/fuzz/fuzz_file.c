/* Files of tensors (<kiln/formats/file.h>) by libFuzzer: whatever the bytes, a file is opened or is an error, and what
 * an open one has can be read, written as GGUF and loaded as parameters.  With FUZZ_READER=npy (npz, gguf, safetensors)
 * only inputs of this format are run. */
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <stdlib.h>
#include <string.h>

/* The format that the first bytes choose: npy, npz, gguf, otherwise safetensors. */
static const char *format_of(const uint8_t *bytes, size_t n)
{
    return n < 4                          ? "safetensors"
           : !memcmp(bytes, "\x93NUM", 4) ? "npy"
           : !memcmp(bytes, "PK", 2)      ? "npz"
           : !memcmp(bytes, "GGUF", 4)    ? "gguf"
                                          : "safetensors";
}

volatile uint8_t fuzz_file_seen; /* so that what is read has a use */

/* Writes tensor i, converted to a type that its number chooses, or the type that it has. */
static void write_entry(kl_file *f, uint32_t i, const kl_file_entry *e)
{
    static const char *const types[] = {NULL,   "F32",  "F16",  "BF16", "Q4_0", "Q4_1",   "Q5_0",   "Q5_1", "Q8_0",
                                        "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"};
    const char *type = types[(i + e->bytes + (uint8_t)*e->name) % (sizeof types / sizeof *types)];
    kl_file_item item = {.name = "t", .file = f, .from = e->name, .type = type};
    if (kl_file_write("/dev/null", KL_FILE_GGUF, 1, &item, 0, NULL) != KL_OK && !*kl_last_error())
        abort();
}

/* Where part 0 and 1 of a tensor go: any numbers, which are made of its name. */
static kl_status map_entry(void *ctx, const kl_file_entry *e, int64_t part, kl_weight_map *map)
{
    const uint8_t *c = (const uint8_t *)e->name;
    (void)ctx;
    strcpy(map->name, part ? "b" : "a");
    map->transpose = *c & 1;
    map->axis = *c ? c[1] % 3 - 1 : 0;
    map->length = *c >> 1 & 3;
    map->start = part;
    map->at = *c >> 4 & 1;
    map->more = !part;
    return KL_OK;
}

static void load_parameters(kl_file *f, kl_device dev)
{
    kl_params_load_options options = {.map = map_entry, .allow_missing = true};
    kl_params *p = kl_params_new(dev, KL_F32, 1);
    kl_params_add(p, "a", kl_zeros(dev, KL_F32, 1, (int64_t[]){2}));
    kl_params_add(p, "b", kl_zeros(dev, KL_F16, 2, (int64_t[]){1, 32}));
    kl_clear_error();
    if (kl_params_load_file(p, f, &options) != KL_OK && !*kl_last_error())
        abort();
    kl_params_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    kl_device dev = kl_device_ref();
    const char *only = getenv("FUZZ_READER");
    if (only && strcmp(only, format_of(bytes, n)))
        return -1; /* libFuzzer does not keep it */
    kl_clear_error();
    kl_file *f = kl_file_open_bytes("input", bytes, n);
    if (!f && !*kl_last_error())
        abort();
    for (uint32_t i = 0; i < kl_file_count(f); i++) {
        kl_file_entry e;
        if (kl_file_get(f, i, &e) != KL_OK || kl_file_find(f, e.name) != i)
            abort();
        const uint8_t *data = kl_file_data(f, e.name);
        for (size_t k = 0; data && k < e.bytes; k++)
            fuzz_file_seen = data[k];
        kl_tensor t = i % 2 ? kl_file_matrix(f, dev, e.name) : kl_file_tensor(f, dev, e.name);
        void *all = e.bytes < 1 << 16 ? malloc((size_t)(kl_numel(t) + 1) * 8) : NULL;
        if (t.id && all)
            kl_read(t, all, (size_t)kl_numel(t) * kl_dtype_size(kl_dtype_of(t)));
        free(all);
        kl_release(t);
        if (e.bytes < 1 << 16)
            write_entry(f, i, &e);
    }
    if (f)
        load_parameters(f, dev);
    for (uint32_t i = 0; i < kl_file_meta_count(f); i++) {
        kl_file_meta m;
        if (kl_file_meta_get(f, i, &m) != KL_OK)
            abort();
        for (int64_t k = 0; k < m.count && k < 64; k++) {
            const char *s = kl_file_meta_text(f, i, k);
            fuzz_file_seen =
                (uint8_t)(s ? strlen(s) : (size_t)kl_file_meta_i64(f, i, k) + (kl_file_meta_f64(f, i, k) > 0));
        }
    }
    kl_file_close(f);
    return 0;
}
