/* kiln summary: lists the tensors of a file, or the inputs, outputs and weights of an ONNX model. */
#include "cli.h"
#include "job.h"
#include "ir/text/text.h"
#include <kiln/onnx.h>
#include <kiln/train.h>
#include <inttypes.h>
#include <string.h>

enum { NAME_MAX = 60, VALUES_SHOWN = 6, VALUE_BYTES = 60 };

struct summary_row { const char *name, *type; char shape[SHAPE_TEXT]; uint64_t count, bytes; };

/* ---- as text ---- */

/* "1.5 MiB"; below 1 KiB without a unit. */
static const char *format_bytes(uint64_t bytes, char buf[32])
{
    static const char units[] = "KMGTPE";
    int unit = -1;
    uint64_t tenths = bytes;
    for (; tenths >= (unit < 0 ? 1024 : 10240); unit++)
        tenths = unit < 0 ? tenths * 10 / 1024 : tenths / 1024;
    if (unit < 0)
        snprintf(buf, 32, "%" PRIu64 " bytes", bytes);
    else
        snprintf(buf, 32, "%" PRIu64 ".%u %ciB", tenths / 10, (unsigned)(tenths % 10), units[unit]);
    return buf;
}

/* Lengths by symbol, or ? for any. */
static void put_shape(char *to, size_t size, int rank, const int64_t *dims, const char *const *symbol)
{
    size_t n = (size_t)snprintf(to, size, rank < 0 ? "of any shape" : "[");
    for (int k = 0; k < rank && n < size; k++)
        n += dims[k] >= 0 ? (size_t)snprintf(to + n, size - n, "%s%" PRId64, k ? "," : "", dims[k])
                          : (size_t)snprintf(to + n, size - n, "%s%.60s", k ? "," : "",
                                             symbol && symbol[k] ? symbol[k] : "?");
    if (rank >= 0 && n < size)
        snprintf(to + n, size - n, "]");
}

static void print_quoted(const char *s)
{
    struct text t = {0};
    char cut[VALUE_BYTES + 1];
    snprintf(cut, sizeof cut, "%s", s);
    text_quoted(&t, cut);
    printf("%s%s", t.failed ? "out of memory" : t.s, strlen(s) > VALUE_BYTES ? ".." : "");
    mem_free(t.s);
}

static void print_number(const kl_file *f, uint32_t i, int64_t k, kl_dtype dtype)
{
    double d = kl_file_meta_f64(f, i, k);
    if (dtype == KL_F32 || dtype == KL_F64)
        format_file(stdout, "%.9g", d);
    else if (dtype == KL_U64)
        printf("%" PRIu64, (uint64_t)kl_file_meta_i64(f, i, k));
    else
        printf("%" PRId64, kl_file_meta_i64(f, i, k));
}

static void print_meta(const kl_file *f, uint32_t i)
{
    kl_file_meta m;
    kl_file_meta_get(f, i, &m);
    printf("  %s =", m.key);
    for (int64_t k = 0; k < m.count && k < VALUES_SHOWN; k++) {
        printf(" ");
        if (m.dtype == KL_DTYPE_COUNT)
            print_quoted(kl_file_meta_text(f, i, k));
        else
            print_number(f, i, k, m.dtype);
    }
    if (m.count > VALUES_SHOWN)
        printf(" and %" PRId64 " more", m.count - VALUES_SHOWN);
    printf("\n");
}

/* A line each, in columns, and their sums. */
static void print_rows(const struct summary_row *row, uint32_t n)
{
    size_t name = 0, type = 0, shape = 0;
    uint64_t count = 0, bytes = 0;
    char size[32];
    for (uint32_t i = 0; i < n; i++) {
        size_t w = strlen(row[i].name);
        name = w > name ? w : name;
        w = strlen(row[i].type);
        type = w > type ? w : type;
        w = strlen(row[i].shape);
        shape = w > shape ? w : shape;
        count += row[i].count;
        bytes += row[i].bytes;
    }
    name = name > NAME_MAX ? NAME_MAX : name;
    for (uint32_t i = 0; i < n; i++)
        printf("  %-*s  %-*s  %-*s  %" PRIu64 "\n", (int)name, *row[i].name ? row[i].name : "(no name)", (int)type,
               row[i].type, (int)shape, row[i].shape, row[i].bytes);
    printf("total: %u tensor%s, %" PRIu64 " elements, %" PRIu64 " bytes (%s)\n", n, n == 1 ? "" : "s", count, bytes,
           format_bytes(bytes, size));
}

/* ---- files of tensors ---- */

static int summary_file(const char *path)
{
    kl_file *f = kl_file_open(path);
    uint32_t n = kl_file_count(f);
    struct summary_row *row = mem_alloc(((size_t)n + 1) * sizeof *row);
    if (!f || !row) {
        kl_file_close(f);
        mem_free(row);
        return cli_error("%s", f ? "out of memory" : kl_last_error());
    }
    for (uint32_t i = 0; i < n; i++) {
        kl_file_entry e;
        kl_file_get(f, i, &e);
        row[i] = (struct summary_row){.name = e.name, .type = e.type, .count = 1, .bytes = e.bytes};
        put_shape(row[i].shape, sizeof row[i].shape, e.rank, e.dims, NULL);
        for (int k = 0; k < e.rank; k++)
            row[i].count *= (uint64_t)e.dims[k];
    }
    printf("%s: %s\n", path, kl_file_format_name(kl_file_format_of(f)));
    if (kl_file_meta_count(f))
        printf("metadata:\n");
    for (uint32_t i = 0; i < kl_file_meta_count(f); i++)
        print_meta(f, i);
    printf("tensors (name, type, shape, bytes):\n");
    print_rows(row, n);
    mem_free(row);
    kl_file_close(f);
    return CLI_OK;
}

/* ---- models ---- */

static void print_value(const kl_model_value *v)
{
    char shape[SHAPE_TEXT];
    put_shape(shape, sizeof shape, v->rank, v->dims, v->symbol);
    printf("  %s  %s  %s\n", v->name, v->dtype == KL_DTYPE_COUNT ? "of any type" : kl_dtype_name(v->dtype), shape);
}

static int summary_model(const char *path)
{
    kl_model *m = kl_model_open(kl_device_named("ref"), path);
    uint32_t n = m ? kl_model_weights(m) : 0;
    struct summary_row *row = mem_alloc(((size_t)n + 1) * sizeof *row);
    if (!m || !row) {
        kl_model_close(m);
        mem_free(row);
        return cli_error("%s", m ? "out of memory" : kl_last_error());
    }
    kl_model_value v;
    printf("%s: onnx\ninputs (name, type, shape):\n", path);
    for (uint32_t i = 0; i < kl_model_inputs(m) && kl_model_input(m, i, &v) == KL_OK; i++)
        print_value(&v);
    printf("outputs:\n");
    for (uint32_t i = 0; i < kl_model_outputs(m) && kl_model_output(m, i, &v) == KL_OK; i++)
        print_value(&v);
    for (uint32_t i = 0; i < n; i++) {
        int64_t dims[KL_MAX_RANK];
        kl_tensor t = kl_model_weight(m, kl_model_weight_name(m, i));
        kl_dtype dtype = kl_dtype_of(t);
        int rank = kl_shape(t, dims);
        row[i] = (struct summary_row){.name = kl_model_weight_name(m, i), .type = kl_dtype_name(dtype),
                                      .count = (uint64_t)kl_numel(t)};
        row[i].bytes = row[i].count * kl_dtype_size(dtype);
        put_shape(row[i].shape, sizeof row[i].shape, rank, dims, NULL);
    }
    printf("weights (name, type, shape, bytes):\n");
    print_rows(row, n);
    mem_free(row);
    kl_model_close(m);
    return CLI_OK;
}

int cli_summary(int argc, char **argv)
{
    const char *path = NULL;
    if (!cli_parse(argc, argv, (struct cli_option[]){{.value = &path, .needed = true}, {0}}, "summary needs a file"))
        return CLI_USAGE;
    return cli_is_model(path) ? summary_model(path) : summary_file(path);
}
