/* Readers of data and text by libFuzzer: the first byte of an input chooses the reader, the rest is its file.  Whatever
 * the bytes, a file is read or is an error that names it; what was read can be used, and nothing leaks.  With
 * FUZZ_READER=csv (idx, tokens, tokenizer, checkpoint, log, words) only inputs of this reader are run. */
#define _GNU_SOURCE /* memfd_create */
#include "frontend/cli/cli.h"
#include <errno.h>
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES = 2, MAX_IDS = 4096 };
static char path[FILES][40]; /* files in memory */
static int file[FILES] = {-1, -1};

#define MUST(ok) ((ok) ? (void)0 : (fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #ok, kl_last_error()), \
                                    abort()))

static void fill(int i, const uint8_t *data, size_t size)
{
    if (file[i] < 0) {
        file[i] = memfd_create("fuzz", 0);
        snprintf(path[i], sizeof path[i], "/proc/self/fd/%d", file[i]);
    }
    MUST(file[i] >= 0 && !ftruncate(file[i], 0) && pwrite(file[i], data, size, 0) == (ssize_t)size);
}

/* An error names the file. */
static void must_be_named(void) { MUST(strstr(kl_last_error(), "/proc/self/fd/")); }

static void csv(bool header, char separator)
{
    kl_csv c;
    double sum = 0;
    if (kl_csv_open(path[0], separator, header, &c) != KL_OK) {
        must_be_named();
        MUST(!c.data && !c.name && !c.rows);
        return;
    }
    for (int64_t i = 0; i < c.rows * c.columns; i++)
        sum += c.data[i];
    MUST(sum == sum || sum != sum);
    for (int64_t i = 0; c.name && i < c.columns; i++)
        MUST(kl_csv_column(&c, c.name[i]) <= i);
    kl_csv_close(&c);
}

static void idx(void)
{
    kl_idx x;
    int64_t n = 1;
    if (kl_idx_open(path[0], 0, NULL, &x) != KL_OK) {
        must_be_named();
        return;
    }
    for (int i = 0; i < x.rank; i++)
        n *= x.dim[i];
    MUST(n == x.count);
    for (int64_t i = 0; i < n; i++)
        n += x.data[i] > 255;
    kl_idx_close(&x);
}

static void tokens(int width, int64_t skip)
{
    kl_tokens t;
    int32_t ids[16];
    if (kl_tokens_open(path[0], width, skip, &t) != KL_OK) {
        must_be_named();
        return;
    }
    for (int64_t i = 0; i < t.count; i += 16)
        kl_tokens_read(&t, i, t.count - i < 16 ? t.count - i : 16, ids);
    MUST(kl_tokens_read(&t, t.count, 1, ids) != KL_OK);
    kl_tokens_close(&t);
}

/* A vocabulary, and behind the first byte 0 merges; then they encode and decode what the vocabulary has. */
static void tokenizer(const uint8_t *data, size_t size)
{
    static int32_t ids[MAX_IDS];
    static char text[MAX_IDS];
    const uint8_t *cut = memchr(data, 0, size);
    bool binary = size >= 4 && data[3] == 1; /* llm.c's files have zeros, and no merges */
    size_t n = cut && !binary ? (size_t)(cut - data) : size;
    int64_t count, bytes;
    fill(0, data, n);
    fill(1, data + n + (n < size), size - n - (n < size));
    kl_tokenizer *t = kl_tokenizer_open(path[0], n < size ? path[1] : NULL);
    if (!t) {
        must_be_named();
        return;
    }
    for (int64_t i = 0; i < kl_tokenizer_count(t); i++) {
        const char *token = kl_tokenizer_text(t, i, &bytes);
        MUST(bytes >= 0 && (token || !bytes));
        int64_t same = kl_tokenizer_find(t, token, bytes);
        MUST(same < kl_tokenizer_count(t) && (same >= 0 || !bytes));
    }
    int64_t max = size < MAX_IDS ? (int64_t)size : MAX_IDS;
    if (n < size && kl_tokenizer_encode(t, (const char *)data, max, ids, &count) == KL_OK) {
        MUST(kl_tokenizer_decode(t, count, ids, text, sizeof text, &bytes) == KL_OK && bytes == max);
        MUST(!memcmp(text, data, (size_t)max));
    }
    kl_tokenizer_close(t);
}

/* A tokenizer of one file, and behind the last byte 255, if there is one, a text. */
static void tokenizer_file(const uint8_t *data, size_t size)
{
    static int32_t ids[4 * MAX_IDS];
    static char text[16 * MAX_IDS];
    const uint8_t *cut = memrchr(data, 255, size), *words = cut ? cut + 1 : data;
    int64_t count, bytes, n = (int64_t)(data + size - words);
    fill(0, data, cut ? (size_t)(cut - data) : size);
    kl_tokenizer *t = kl_tokenizer_open(path[0], NULL);
    if (!t) {
        must_be_named();
        return;
    }
    for (int plain = 0; plain < 2; plain++)
        if (kl_tokenizer_encode_with(t, (const char *)words, n, &(kl_encode_options){plain, plain}, ids, 4 * MAX_IDS,
                                     &count) == KL_OK)
            MUST(kl_tokenizer_decode(t, count < 4 * MAX_IDS ? count : 4 * MAX_IDS, ids, text, sizeof text, &bytes) ==
                     KL_OK || strstr(kl_last_error(), "too long"));
    kl_tokenizer_close(t);
}

/* A file of tensors as a checkpoint of a variable and two tensors: loaded whole, or they stay what they were. */
static void snapshot(void)
{
    static const float seven[2] = {7, 7};
    kl_device dev = kl_device_ref();
    int64_t step = 7;
    float v[2];
    kl_tensor w = kl_input(dev, KL_F32, 1, (int64_t[]){2}, seven), h = kl_input(dev, KL_F32, 1, (int64_t[]){2}, seven);
    kl_snapshot *c = kl_snapshot_new();
    MUST(c && kl_snapshot_tensor(c, "a", w) == KL_OK && kl_snapshot_tensor(c, "b", h) == KL_OK &&
         kl_snapshot_i64(c, "step", &step) == KL_OK);
    bool loaded = kl_snapshot_load(c, path[0]) == KL_OK;
    if (!loaded)
        must_be_named();
    MUST(kl_read(w, v, sizeof v) == KL_OK && (loaded || (v[0] == 7 && v[1] == 7)));
    MUST(kl_read(h, v, sizeof v) == KL_OK && (loaded || (v[0] == 7 && v[1] == 7)) && (loaded || step == 7));
    kl_snapshot_free(c);
    kl_release(w);
    kl_release(h);
}

/* ---- kiln train-log, whose parts of the command are here ---- */

int cli_error(const char *fmt, ...)
{
    va_list ap;
    char text[64];
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    MUST(*text);
    return CLI_FAILED;
}

/* By rows of options with a value and of plain arguments. */
bool cli_parse(int argc, char **argv, const struct cli_option *rows, const char *needs)
{
    for (int i = 0; i < argc; i++) {
        const struct cli_option *o = rows;
        while (o->value && (o->name ? strcmp(o->name, argv[i]) != 0 : *o->value != NULL))
            o++;
        MUST(o->value && (!o->name || i + 1 < argc));
        *o->value = argv[o->name ? ++i : i];
    }
    return needs != NULL;
}

char *cli_read(const char *name, size_t *len)
{
    FILE *f = fopen(name, "rb");
    char *text = mem_alloc(1 << 16);
    MUST(f && text);
    *len = fread(text, 1, (1 << 16) - 1, f);
    text[*len] = 0;
    fclose(f);
    return text;
}

static void train_log(void)
{
    char *const arguments[] = {path[0], (char *)"-o", (char *)"/dev/null"};
    int status = cli_train_log(3, (char **)arguments);
    MUST(status == CLI_OK || status == CLI_FAILED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char separator[] = {0, ';', '\t', ' '};
    static const char *const reader[] = {"csv", "idx", "tokens", "tokenizer", "checkpoint", "log", "words"};
    const char *only = getenv("FUZZ_READER");
    if (size < 1)
        return 0;
    unsigned which = data[0];
    if (only && strcmp(only, reader[which % 7]))
        return -1; /* libFuzzer does not keep it */
    fill(0, data + 1, size - 1);
    kl_clear_error();
    switch (which % 7) {
    case 0: csv(which / 7 % 2, separator[which / 14 % 4]); break;
    case 1: idx(); break;
    case 2: tokens(1 << which / 7 % 3, which / 21 * 4); break;
    case 3: tokenizer(data + 1, size - 1); break;
    case 4: snapshot(); break;
    case 5: train_log(); break;
    default: tokenizer_file(data + 1, size - 1); break;
    }
    return 0;
}
