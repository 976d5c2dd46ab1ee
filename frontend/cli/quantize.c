/* kiln quantize: writes the tensors of a file as GGUF, matrices in a smaller type.  Tensors are converted one after
 * another while they are written, from the mapped file. */
#include "cli.h"
#include "job.h"
#include <ctype.h>
#include <inttypes.h>
#include <kiln/train.h>
#include <string.h>

/* Types that matrices can get, and their numbers as general.file_type of llama.cpp. */
static const struct quantize_type {
    const char *name;
    uint32_t file_type;
    int64_t block;           /* elements of the last axis that it stores together */
    double bits;             /* of an element */
    const char *fallback;    /* for rows that blocks do not divide; NULL: the tensor stays as it is */
} quantize_types[] = {
    {"F32", 0, 1, 32, NULL}, {"F16", 1, 1, 16, NULL}, {"BF16", 32, 1, 16, NULL},
    {"Q4_0", 2, 32, 4.5, NULL}, {"Q4_1", 3, 32, 5, NULL}, {"Q5_0", 8, 32, 5.5, NULL}, {"Q5_1", 9, 32, 6, NULL},
    {"Q8_0", 7, 32, 8.5, NULL}, {"Q2_K", 10, 256, 2.625, "Q4_0"}, {"Q3_K", 11, 256, 3.4375, "Q4_0"},
    {"Q4_K", 14, 256, 4.5, "Q5_0"}, {"Q5_K", 16, 256, 5.5, "Q5_1"}, {"Q6_K", 18, 256, 6.5625, "Q8_0"},
    {"IQ4_NL", 25, 32, 4.5, NULL}, {"IQ4_XS", 30, 256, 4.25, "IQ4_NL"}, {"MXFP4", 38, 32, 4.25, NULL},
};
enum { QUANTIZE_TYPES = sizeof quantize_types / sizeof *quantize_types };

static const struct quantize_type *find_type(const char *name)
{
    for (int i = 0; name && i < QUANTIZE_TYPES; i++) {
        const char *a = quantize_types[i].name, *b = name;
        while (*a && toupper((unsigned char)*b) == *a)
            a++, b++;
        if (!*a && !*b)
            return &quantize_types[i];
    }
    return NULL;
}

struct quantize {
    const char *in, *out, *type_name, *embedding_name;
    const struct quantize_type *type, *embedding; /* embedding NULL: embeddings stay as they are */
    kl_file *file;
    kl_file_item *item;
    kl_file_value *meta;
    void **own;              /* data of the metadata */
    int64_t n, nmeta, done;
    uint32_t file_type, version;
    uint64_t bytes;          /* of the elements that are written */
};

/* ---- which type a tensor gets ---- */

/* Does the name of a tensor say that it is a table of embeddings?  These are the names of GGUF, Llama's and GPT-2's
 * files. */
static bool is_embedding(const char *name)
{
    static const char *const words[] = {"embd", "embed", "wte.", "wpe."};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i]))
            return true;
    return false;
}

/* NULL: it stays as it is. */
static const struct quantize_type *type_of_entry(const struct quantize *q, const kl_file_entry *e)
{
    bool is_float = e->dtype == KL_F16 || e->dtype == KL_BF16 || e->dtype == KL_F32 || e->dtype == KL_F64;
    const struct quantize_type *t = is_embedding(e->name) ? q->embedding : q->type;
    if (!is_float || e->rank < 2)
        return NULL;
    while (t && e->dims[e->rank - 1] % t->block)
        t = find_type(t->fallback);
    return t;
}

/* ---- metadata: the file's, and what quantization adds ---- */

static bool take_meta(struct quantize *q, uint32_t i)
{
    kl_file_meta m;
    kl_file_meta_get(q->file, i, &m);
    if (!strcmp(m.key, "general.file_type") || !strcmp(m.key, "general.quantization_version"))
        return true;
    kl_file_value *v = &q->meta[q->nmeta++];
    *v = (kl_file_value){.key = m.key, .dtype = m.dtype, .array = m.array, .count = m.count};
    if (m.dtype == KL_DTYPE_COUNT && !m.array) {
        v->text = kl_file_meta_text(q->file, i, 0);
        return true;
    }
    size_t size = m.dtype == KL_DTYPE_COUNT ? sizeof(char *) : kl_dtype_size(m.dtype);
    char *data = q->own[i] = mem_alloc((size_t)m.count * size + 1);
    for (int64_t k = 0; data && k < m.count; k++) {
        const char *text = kl_file_meta_text(q->file, i, k);
        double d = kl_file_meta_f64(q->file, i, k);
        float f = (float)d;
        int64_t whole = kl_file_meta_i64(q->file, i, k); /* little-endian, as the file */
        const void *from = m.dtype == KL_DTYPE_COUNT ? (const void *)&text : m.dtype == KL_F32 ? (const void *)&f
                           : m.dtype == KL_F64 ? (const void *)&d : (const void *)&whole;
        memcpy(data + (size_t)k * size, from, size);
    }
    v->data = data;
    return data || cli_error("out of memory") == CLI_OK;
}

static bool take_metadata(struct quantize *q)
{
    int64_t n = kl_file_meta_count(q->file);
    q->meta = mem_alloc((size_t)(n + 2) * sizeof *q->meta);
    q->own = mem_alloc((size_t)(n + 1) * sizeof *q->own);
    if (!q->meta || !q->own)
        return cli_error("out of memory") == CLI_OK;
    for (uint32_t i = 0; i < n; i++)
        if (!take_meta(q, i))
            return false;
    q->file_type = q->type->file_type;
    q->version = 2; /* of the layouts of blocks, which all readers of today have */
    q->meta[q->nmeta++] = (kl_file_value){.key = "general.file_type", .dtype = KL_U32, .data = &q->file_type};
    q->meta[q->nmeta++] = (kl_file_value){.key = "general.quantization_version", .dtype = KL_U32, .data = &q->version};
    return true;
}

/* ---- the file ---- */

static bool take_tensors(struct quantize *q)
{
    q->n = kl_file_count(q->file);
    q->item = mem_alloc((size_t)(q->n + 1) * sizeof *q->item);
    if (!q->item)
        return cli_error("out of memory") == CLI_OK;
    for (uint32_t i = 0; i < q->n; i++) {
        kl_file_entry e;
        kl_file_get(q->file, i, &e);
        const struct quantize_type *t = type_of_entry(q, &e);
        q->item[i] = (kl_file_item){.name = e.name, .file = q->file, .type = t ? t->name : NULL};
    }
    return true;
}

/* A line before each tensor is written. */
static void print_progress(void *ctx, const char *name)
{
    struct quantize *q = ctx;
    kl_file_entry e;
    kl_file_get(q->file, (uint32_t)kl_file_find(q->file, name), &e);
    const struct quantize_type *t = type_of_entry(q, &e);
    int64_t count = 1;
    printf("[%" PRId64 "/%" PRId64 "] %s [", ++q->done, q->n, name);
    for (int k = 0; k < e.rank; k++) {
        printf("%s%" PRId64, k ? "," : "", e.dims[k]);
        count *= e.dims[k];
    }
    printf("] %s%s%s\n", e.type, t ? " -> " : "", t ? t->name : "");
    fflush(stdout);
    q->bytes += t ? (uint64_t)((double)count * t->bits / 8) : e.bytes;
}

static bool quantize_file(struct quantize *q)
{
    q->file = kl_file_open(q->in);
    if (!q->file)
        return cli_error("%s", kl_last_error()) == CLI_OK;
    if (!take_metadata(q) || !take_tensors(q))
        return false;
    kl_file_write_options options = {.nmeta = q->nmeta, .meta = q->meta, .progress = print_progress, .ctx = q};
    if (kl_file_write_with(q->out, KL_FILE_GGUF, q->n, q->item, &options) != KL_OK)
        return cli_error("%s", kl_last_error()) == CLI_OK;
    printf("%s: %" PRId64 " tensors, %" PRIu64 " bytes of elements\n", q->out, q->n, q->bytes);
    return true;
}

static bool take_type(const char *option, const char *name, const struct quantize_type **to)
{
    *to = find_type(name);
    if (*to || !name)
        return true;
    fprintf(stderr, "kiln: %s %s: the types are", option, name);
    for (int i = 0; i < QUANTIZE_TYPES; i++)
        fprintf(stderr, " %s", quantize_types[i].name);
    fputc('\n', stderr);
    return false;
}

int cli_quantize(int argc, char **argv)
{
    struct quantize q = {0};
    const struct cli_option options[] = {
        {"--type", .value = &q.type_name, .needed = true}, {"--embedding", .value = &q.embedding_name},
        {.value = &q.in, .needed = true}, {.value = &q.out, .needed = true}, {0}};
    if (!cli_parse(argc, argv, options, "quantize needs a file to read, one to write, and --type") ||
        !take_type("--type", q.type_name, &q.type) || !take_type("--embedding", q.embedding_name, &q.embedding))
        return CLI_USAGE;
    bool ok = quantize_file(&q);
    for (int64_t i = 0; q.own && i < kl_file_meta_count(q.file); i++)
        mem_free(q.own[i]);
    mem_free(q.own);
    mem_free(q.meta);
    mem_free(q.item);
    kl_file_close(q.file);
    return ok ? CLI_OK : CLI_FAILED;
}
