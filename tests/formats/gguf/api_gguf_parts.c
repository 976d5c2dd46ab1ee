/* GGUF files in parts: opened through the first one as if they were one file; parts that are missing, cut off, renamed
 * or of another file are named. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PARTS = 3, EACH = 2, ROWS = 3, COLUMNS = 32 };
static char folder[] = "/tmp/kiln-parts-XXXXXX";

static const char *part_path(const char *base, int i)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s-%05d-of-%05d.gguf", folder, base, i + 1, PARTS);
    return path;
}

static float element(int tensor, int i) { return (float)(tensor * 1000 + i) / 8; }

/* Part i with the tensors from number `first` on, which says that it is part `no` of `count`, of `total` tensors. */
static void write_part(const char *base, int i, int first, uint16_t no, uint16_t count, int32_t total)
{
    float data[EACH][ROWS * COLUMNS];
    char names[EACH][16];
    kl_file_item items[EACH];
    static const int64_t dims[] = {ROWS, COLUMNS};
    for (int k = 0; k < EACH; k++) {
        for (int j = 0; j < ROWS * COLUMNS; j++)
            data[k][j] = element(first + k, j);
        snprintf(names[k], sizeof names[k], "t%d", first + k);
        items[k] = (kl_file_item){.name = names[k], .dtype = KL_F32, .rank = 2, .dims = dims,
                                  .data = data[k], .type = k ? "F32" : "F16"};
    }
    const kl_file_value meta[] = {{.key = "split.no", .dtype = KL_U16, .data = &no},
                                  {.key = "split.count", .dtype = KL_U16, .data = &count},
                                  {.key = "split.tensors.count", .dtype = KL_I32, .data = &total},
                                  {.key = "general.name", .text = "in parts"}};
    kl_file_write_options options = {.nmeta = i ? 3 : 4, .meta = meta};
    OK(kl_file_write_with(part_path(base, i), KL_FILE_GGUF, EACH, items, &options));
}

static void write_parts(const char *base)
{
    for (int i = 0; i < PARTS; i++)
        write_part(base, i, i * EACH, (uint16_t)i, PARTS, PARTS * EACH);
}

static void read_whole(void)
{
    kl_file *f = kl_file_open(part_path("m", 0));
    if (!CHECK(f && kl_file_count(f) == PARTS * EACH && kl_file_format_of(f) == KL_FILE_GGUF))
        return;
    CHECK(!strcmp(kl_file_meta_text(f, kl_file_meta_find(f, "general.name"), 0), "in parts"));
    for (int t = 0; t < PARTS * EACH; t++) {
        char name[16];
        kl_file_entry e;
        snprintf(name, sizeof name, "t%d", t);
        OK(kl_file_get(f, t, &e));
        CHECK(!strcmp(e.name, name) && kl_file_find(f, name) == t && kl_file_data(f, name));
        kl_tensor x = kl_file_tensor(f, kl_device_default(), name);
        double *v = values_of(x);
        for (int i = 0; v && i < ROWS * COLUMNS; i++)
            CHECK(fabs(v[i] - (double)element(t, i)) <= (t % EACH ? 0 : 1.0));
        CHECK(v);
        free(v);
        kl_release(x);
    }
    kl_file_close(f);
}

static void refused(const char *path, const char *words)
{
    kl_file *f = kl_file_open(path);
    check_at(!f && kl_last_error_code() == KL_ERR_IO && strstr(kl_last_error(), words), __LINE__, words);
    kl_file_close(f);
}

static void refusals(void)
{
    char other[128];
    struct stat st;
    write_parts("m");
    refused(part_path("m", 1), "it is part 2 of 3; all are opened through the first, m-00001-of-00003.gguf");
    snprintf(other, sizeof other, "%s/other.gguf", folder);
    OK(rename(part_path("m", 0), other) ? KL_ERR_IO : KL_OK);
    refused(other, "the first of 3 parts is named ..-00001-of-00003.gguf");
    write_parts("m");
    unlink(part_path("m", 2));
    refused(part_path("m", 0), "m-00003-of-00003.gguf: No such file");
    write_parts("m");
    CHECK(stat(part_path("m", 1), &st) == 0 && truncate(part_path("m", 1), st.st_size - 200) == 0);
    refused(part_path("m", 0), "m-00002-of-00003.gguf");
    refused(part_path("m", 0), "the file is cut off");
    write_parts("m");
    write_part("m", 1, EACH, 2, PARTS, PARTS * EACH);
    refused(part_path("m", 0), "m-00002-of-00003.gguf says that it is part 3 of 3, not 2 of 3");
    write_part("m", 1, EACH, 1, 4, PARTS * EACH);
    refused(part_path("m", 0), "says that it is part 2 of 4, not 2 of 3");
    write_part("m", 1, 0, 1, PARTS, PARTS * EACH);
    refused(part_path("m", 0), "two tensors are called \"t");
    write_parts("m");
    write_part("m", 0, 0, 0, PARTS, 7);
    refused(part_path("m", 0), "the parts have 6 tensors, not 7");
    FILE *f = fopen(part_path("m", 1), "wb");
    CHECK(f && fputs("text", f) >= 0 && fclose(f) == 0);
    refused(part_path("m", 0), "m-00002-of-00003.gguf is no gguf file");
    write_parts("m");
    static char bytes[1 << 14];
    f = fopen(part_path("m", 0), "rb");
    size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    CHECK(f && fclose(f) == 0);
    CHECK(!kl_file_open_bytes("memory", bytes, n) && strstr(kl_last_error(), "bytes without a path cannot"));
    unlink(other);
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    write_parts("m");
    read_whole();
    refusals();
    for (int i = 0; i < PARTS; i++)
        unlink(part_path("m", i));
    CHECK(!rmdir(folder));
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
