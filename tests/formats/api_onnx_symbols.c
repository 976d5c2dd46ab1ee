/* ONNX's own models (Debian: libonnx-testdata) with symbolic lengths in place of the inputs' numbers: for each length
 * that the inputs' axes have, all axes of that length are one symbol.  A model is refused while it is recorded, with a
 * reason, or it gives the shapes and bits that it gives with numbers: no operator may compute with a symbol as with a
 * number.
 *
 * Argument: a part of the names of the models that are run; without it, all. */
#include "tests/formats/onnx_write.h"
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <dirent.h>
#include <unistd.h>

enum { MAX_VALUES = 16, MAX_LENGTHS = 16, MAX_BYTES = 1 << 16 };
static const char data[] = "/usr/share/libonnx-testdata/data/node";
static char path[] = "/tmp/kiln-symbols-XXXXXX";
static kl_device dev;
static unsigned same, refused, unsupported;

/* ---- a model without the shapes of its inputs, which are numbers ---- */

static const uint8_t *varint(const uint8_t *p, const uint8_t *end, uint64_t *v)
{
    *v = 0;
    for (unsigned shift = 0; p < end && shift < 64; shift += 7) {
        *v |= (uint64_t)(*p & 0x7f) << shift;
        if (!(*p++ & 0x80))
            return p;
    }
    return end;
}

/* Copies a message without the field that `way` leads to: fields of messages in one another, then 0. */
static void copy_without(const uint8_t *p, const uint8_t *end, const uint32_t *way, struct pb *to)
{
    while (p < end) {
        uint64_t tag, n;
        const uint8_t *from = p;
        p = varint(p, end, &tag);
        if ((tag & 7) == 2) {
            p = varint(p, end, &n);
            p += n;
        } else if ((tag & 7) == 0) {
            p = varint(p, end, &n);
        } else {
            p += (tag & 7) == 1 ? 8 : 4;
        }
        if (tag >> 3 != *way || (tag & 7) != 2) {
            pb_bytes(to, from, (size_t)(p - from));
        } else if (way[1]) {
            struct pb part = {0};
            copy_without(p - n, p, way + 1, &part);
            pb_message(to, (int)*way, &part);
        }
    }
}

static bool write_without_shapes(const char *folder)
{
    static const uint32_t to_shape[] = {7, 11, 2, 1, 2, 0}; /* graph, input, type, tensor type, shape */
    static uint8_t bytes[MAX_BYTES];
    char name[600];
    snprintf(name, sizeof name, "%s/model.onnx", folder);
    FILE *f = fopen(name, "rb");
    size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f)
        fclose(f);
    struct pb m = {0};
    if (n && n < sizeof bytes)
        copy_without(bytes, bytes + n, to_shape, &m);
    bool ok = m.n && onnx_save(path, m.data, m.n);
    free(m.data);
    return ok;
}

/* ---- inputs and results on the host ---- */

struct value { kl_dtype dtype; int rank; int64_t dims[KL_MAX_RANK]; void *elements; size_t bytes; };

static bool value_read(kl_tensor t, struct value *v)
{
    *v = (struct value){.dtype = kl_dtype_of(t)};
    v->rank = kl_shape(t, v->dims);
    v->bytes = v->rank < 0 ? 0 : (size_t)kl_numel(t) * kl_dtype_size(v->dtype);
    v->elements = v->rank < 0 ? NULL : malloc(v->bytes + 1);
    return v->elements && kl_read(t, v->elements, v->bytes) == KL_OK;
}

static bool value_same(const struct value *a, const struct value *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && !memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) &&
           !memcmp(a->elements, b->elements, a->bytes);
}

static void values_free(struct value *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        free(v[i].elements);
        v[i].elements = NULL;
    }
}

static bool inputs_read(const char *folder, const kl_model *m, struct value *in)
{
    char name[600];
    for (uint32_t i = 0; i < kl_model_inputs(m); i++) {
        snprintf(name, sizeof name, "%s/test_data_set_0/input_%u.pb", folder, i);
        kl_tensor t = kl_model_read_tensor(dev, name);
        bool ok = t.id && value_read(t, &in[i]);
        kl_release(t);
        if (!ok)
            return false;
    }
    return true;
}

/* ---- a call in a trace ---- */

/* Numbers that say how something is done are made before the trace, which can read them; others are its inputs. */
static bool is_control(const struct value *v)
{
    return v->rank <= 1 && (v->dtype == KL_I64 || v->dtype == KL_I32 || v->dtype == KL_BOOL || v->rank == 0);
}

/* Loads the model, whose random operators draw the same numbers in its first call, and calls it.  Axes of this length
 * are the symbol; 0: none are. */
static kl_status call(const struct value *in, int64_t length, struct value *out)
{
    kl_model *m = kl_model_open(dev, path);
    kl_tensor x[MAX_VALUES], y[MAX_VALUES];
    uint32_t nin = kl_model_inputs(m), nout = kl_model_outputs(m);
    for (uint32_t i = 0; i < nin; i++)
        if (is_control(&in[i]))
            x[i] = kl_input(dev, in[i].dtype, in[i].rank, in[i].dims, in[i].elements);
    kl_clear_error();
    kl_trace_begin("model");
    for (uint32_t i = 0; i < nin; i++) {
        int64_t lengths[KL_MAX_RANK];
        for (int k = 0; k < in[i].rank; k++)
            lengths[k] = in[i].dims[k] == length ? kl_symbol("N", 1, 64) : in[i].dims[k];
        if (!is_control(&in[i]))
            x[i] = kl_input_symbolic(dev, in[i].dtype, in[i].rank, lengths, in[i].dims, in[i].elements);
    }
    kl_status s = kl_model_call(m, nin, x, nout, y);
    for (uint32_t i = 0; s == KL_OK && i < nout; i++)
        kl_keep(y[i]);
    kl_model_close(m);
    if (s != KL_OK) {
        kl_trace_abandon();
        return s;
    }
    s = kl_trace_end();
    for (uint32_t i = 0; s == KL_OK && i < nout; i++) {
        if (!value_read(y[i], &out[i]))
            s = kl_last_error_code();
        kl_release(y[i]);
    }
    return s;
}

static void compared(const char *name, uint32_t nout, const struct value *in, const struct value *fixed, int64_t length)
{
    struct value out[MAX_VALUES] = {{0}};
    kl_status s = call(in, length, out);
    bool number = strstr(kl_last_error(), "-16777") || strstr(kl_last_error(), "-10485"); /* a symbol's */
    if (s != KL_OK) {
        refused++;
        if (!CHECK(s != KL_ERR_INTERNAL && *kl_last_error() && !number))
            printf("  %s with a symbol for %lld\n", name, (long long)length);
        return;
    }
    bool ok = true;
    for (uint32_t i = 0; i < nout; i++)
        ok &= value_same(&out[i], &fixed[i]);
    same += ok;
    if (!CHECK(ok))
        printf("  %s with a symbol for %lld: other values or shapes\n", name, (long long)length);
    values_free(out, nout);
}

static void model(const char *name)
{
    char folder[500];
    struct value in[MAX_VALUES] = {{0}}, fixed[MAX_VALUES] = {{0}};
    int64_t length[MAX_LENGTHS];
    int n = 0;
    snprintf(folder, sizeof folder, "%s/%s", data, name);
    kl_model *m = write_without_shapes(folder) ? kl_model_open(dev, path) : NULL;
    bool ok = m && kl_model_inputs(m) <= MAX_VALUES && kl_model_outputs(m) <= MAX_VALUES &&
              inputs_read(folder, m, in) && call(in, 0, fixed) == KL_OK;
    unsupported += !ok;
    for (uint32_t i = 0; ok && i < kl_model_inputs(m); i++)
        for (int k = 0; !is_control(&in[i]) && k < in[i].rank; k++) {
            int seen = 0;
            while (seen < n && length[seen] != in[i].dims[k])
                seen++;
            if (seen == n && n < MAX_LENGTHS && in[i].dims[k] >= 1 && in[i].dims[k] <= 64)
                length[n++] = in[i].dims[k];
        }
    for (int i = 0; i < n; i++)
        compared(name, kl_model_outputs(m), in, fixed, length[i]);
    values_free(in, MAX_VALUES);
    values_free(fixed, MAX_VALUES);
    kl_model_close(m);
}

int main(int argc, char **argv)
{
    dev = kl_device_named("ref");
    if (!CHECK(mkstemp(path) >= 0 && dev.id != 0))
        return 1;
    DIR *d = opendir(data);
    for (struct dirent *e; d && (e = readdir(d));)
        if (*e->d_name != '.' && (argc < 2 || strstr(e->d_name, argv[1])))
            model(e->d_name);
    if (d)
        closedir(d);
    else
        printf("SKIP no-data onnx: libonnx-testdata is not installed\n");
    printf("%u with the same bits, %u refused, %u models not supported in a trace\n", same, refused, unsupported);
    CHECK(!d || argc > 1 || same > 500); /* it compares at all */
    unlink(path);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, !d);
    return failed != 0;
}
