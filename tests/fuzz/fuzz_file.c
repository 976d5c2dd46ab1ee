/* Files of tensors (<kiln/formats/file.h>) by libFuzzer: whatever the bytes, a file is opened or is an error, and what
 * an open one has can be read.  With FUZZ_READER=npy (npz, gguf, safetensors) only inputs of this format are run. */
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
        kl_tensor t = kl_file_tensor(f, dev, e.name);
        void *all = e.bytes < 1 << 16 ? malloc((size_t)(kl_numel(t) + 1) * 8) : NULL;
        if (t.id && all)
            kl_read(t, all, (size_t)kl_numel(t) * kl_dtype_size(kl_dtype_of(t)));
        free(all);
        kl_release(t);
    }
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
