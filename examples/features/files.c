/* Tensors in files: writes two tensors as safetensors and as NumPy's .npz, and reads them back.
 *
 *     files FOLDER */
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 3, COLUMNS = 4 };

static int failed(void) { return fprintf(stderr, "%s\n", kl_last_error()), 1; }

/* Are the weights of the file those that were written?  Prints what the file has. */
static bool same(const char *path, kl_device dev, const float *wanted)
{
    kl_file *f = kl_file_open(path); /* mapped; its first bytes say which format it is */
    if (!f)
        return false;
    for (uint32_t i = 0; i < kl_file_count(f); i++) {
        kl_file_entry e;
        if (kl_file_get(f, i, &e) == KL_OK)
            printf("%s: %s %s, rank %d, %zu bytes\n", kl_file_format_name(kl_file_format_of(f)), e.name, e.type, e.rank,
                   e.bytes);
    }
    kl_tensor w = kl_file_tensor(f, dev, "fc.weight");
    kl_file_close(f); /* w stays */
    float got[ROWS * COLUMNS];
    bool ok = kl_read(w, got, sizeof got) == KL_OK && !memcmp(got, wanted, sizeof got);
    kl_release(w);
    return ok;
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : ".";
    char path[4096];
    float weights[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        weights[i] = (float)i / 8;
    static const int64_t labels[ROWS] = {7, 1, 4};
    kl_device dev = kl_device_default();
    kl_tensor w = kl_input(dev, KL_F32, 2, (int64_t[]){ROWS, COLUMNS}, weights);
    const kl_file_item items[] = {
        {.name = "fc.weight", .tensor = w},                                                     /* a tensor */
        {.name = "labels", .dtype = KL_I64, .rank = 1, .dims = (int64_t[]){ROWS}, .data = labels}}; /* an array */
    static const kl_file_pair about[] = {{"made by", "examples/features/files.c"}};

    snprintf(path, sizeof path, "%s/kiln-files.safetensors", folder);
    if (kl_file_write(path, KL_FILE_SAFETENSORS, 2, items, 1, about) != KL_OK || !same(path, dev, weights))
        return failed();
    snprintf(path, sizeof path, "%s/kiln-files.npz", folder); /* numpy.load reads it */
    if (kl_file_write(path, KL_FILE_NPZ, 2, items, 0, NULL) != KL_OK || !same(path, dev, weights))
        return failed();
    kl_release(w);
    printf("the same weights\n");
    return 0;
}
