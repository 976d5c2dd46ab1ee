/* ONNX models in place of a graph's text: run on arrays directly, or captured as a graph whose states are the model's
 * weights and constants. */
#include "job.h"
#include "frontend/export/export.h"
#include "frontend/frontend.h"
#include "ir/text/text.h"
#include <kiln/onnx.h>
#include <kiln/train.h>
#include <inttypes.h>
#include <string.h>

enum { VALUES_MAX = 256 };

struct cli_model {
    kl_model *m;
    const char *path;                    /* its file, for messages and as the place of its inputs */
    bool takes_arrays;                   /* the command has --input */
    bool takes_ranges;                   /* a length may have a range, --bind NAME=LOW..HIGH: it becomes a symbol */
    uint32_t nin, nout;
    kl_model_value *in, *out;
    int64_t (*dims)[KL_MAX_RANK];        /* of inputs */
    struct job_array *array;             /* arrays for the inputs; bytes NULL: none */
    uint32_t runs;                       /* of kiln run */
    struct job_array *given;             /* of each run in turn, which `array` then refers to; or NULL */
    int64_t (*lengths)[KL_MAX_RANK];     /* of inputs in the graph, symbols among them; NULL: those of the arrays */
    kl_tensor *t;                        /* inputs, then outputs */
    struct cli_values values;            /* of symbols */
};

bool cli_is_model(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".onnx");
}

static void cli_model_free(struct cli_model *c)
{
    struct job_array *owned = c->given ? c->given : c->array;
    for (uint32_t i = 0; owned && i < (c->given ? c->runs : 1) * c->nin; i++)
        mem_free(owned[i].bytes);
    mem_free(c->given);
    mem_free(c->lengths);
    mem_free(c->in);
    mem_free(c->out);
    mem_free(c->dims);
    mem_free(c->array);
    mem_free(c->t);
    kl_model_close(c->m);
}

/* ---- arrays from files ---- */

static bool read_pb(const char *path, char **bytes, struct cli_array *out)
{
    kl_tensor t = kl_model_read_tensor(kl_device_default(), path);
    int64_t dims[KL_MAX_RANK];
    int rank = t.id ? kl_shape(t, dims) : -1;
    *bytes = NULL;
    if (rank >= 0) {
        *out = (struct cli_array){.dtype = kl_dtype_of(t), .shape.rank = (uint32_t)rank,
                            .bytes = (size_t)kl_numel(t) * kl_dtype_size(kl_dtype_of(t))};
        memcpy(out->shape.dim, dims, (size_t)rank * sizeof *dims);
        *bytes = mem_alloc(out->bytes + 1);
        out->data = *bytes;
    }
    bool ok = *bytes && kl_read(t, *bytes, out->bytes) == KL_OK;
    kl_release(t);
    if (ok)
        return true;
    cli_error("%s: %s", path, kl_last_error());
    mem_free(*bytes);
    *bytes = NULL;
    return false;
}

/* Copies the elements, which may have been unpacked or transposed. */
static bool read_npy(const char *path, const char *all, size_t len, char **bytes, struct cli_array *out)
{
    kl_file *f = kl_file_open_bytes(path, all, len);
    kl_file_entry e;
    if (f && kl_file_format_of(f) != KL_FILE_NPY)
        return kl_file_close(f), cli_error("%s: not a .npy array", path), false;
    const void *data = f && kl_file_get(f, 0, &e) == KL_OK ? kl_file_data(f, "") : NULL;
    if (data && (*bytes = mem_alloc(e.bytes + 1))) {
        memcpy(*bytes, data, e.bytes);
        *out = (struct cli_array){e.dtype, {.rank = (uint32_t)e.rank}, *bytes, e.bytes};
        memcpy(out->shape.dim, e.dims, (size_t)e.rank * sizeof *e.dims);
    } else {
        cli_error("%s", data ? "out of memory" : kl_last_error());
    }
    kl_file_close(f);
    return *bytes != NULL;
}

bool cli_read_array(const char *path, char **bytes, struct cli_array *out)
{
    size_t len, n = strlen(path);
    *bytes = NULL;
    if (n > 3 && !strcmp(path + n - 3, ".pb"))
        return read_pb(path, bytes, out);
    char *all = cli_read(path, &len);
    bool ok = all && read_npy(path, all, len, bytes, out);
    mem_free(all);
    return ok;
}

/* ---- inputs ---- */

static bool model_load(struct cli_model *c, const char *path, const char *device)
{
    kl_device d = device ? kl_device_named(device) : kl_device_default();
    c->path = path;
    c->m = d.id ? kl_model_open(d, path) : NULL;
    if (!c->m)
        return cli_error("%s", kl_last_error()), false;
    c->nin = kl_model_inputs(c->m);
    c->nout = kl_model_outputs(c->m);
    c->in = mem_alloc((c->nin + 1) * sizeof *c->in);
    c->out = mem_alloc((c->nout + 1) * sizeof *c->out);
    c->dims = mem_alloc((c->nin + 1) * sizeof *c->dims);
    c->array = mem_alloc((c->nin + 1) * sizeof *c->array);
    c->t = mem_alloc((c->nin + c->nout + 1) * sizeof *c->t);
    if (!c->in || !c->out || !c->dims || !c->array || !c->t)
        return cli_error("out of memory"), false;
    for (uint32_t i = 0; i < c->nin; i++)
        kl_model_input(c->m, i, &c->in[i]);
    for (uint32_t i = 0; i < c->nout; i++)
        kl_model_output(c->m, i, &c->out[i]);
    return true;
}

/* The input or output that an option means: the one with this name, which may look like a number, else the one with
 * this number.  n: there is none. */
static uint32_t value_meant(const struct job_value *b, const kl_model_value *v, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && (strlen(v[i].name) != b->name_len || memcmp(v[i].name, b->name, b->name_len)))
        i++;
    if (i < n)
        return i;
    for (i = 0; i < n && !job_is_called(b, i, v[i].name);)
        i++;
    return i;
}

static bool model_arrays(struct cli_model *c, struct job_value *bind, unsigned nbind)
{
    for (unsigned k = 0; k < nbind; k++) {
        uint32_t i;
        if (strcmp(bind[k].option, "--input")) {
            if (!strcmp(bind[k].option, "--output"))
                continue;
            return cli_error("%s: a model has inputs and outputs only", bind[k].option), false;
        }
        i = value_meant(&bind[k], c->in, c->nin);
        if (i == c->nin)
            return cli_error("--input: the model has no input '%.*s'", (int)bind[k].name_len, bind[k].name), false;
        struct job_array *a = &c->array[i];
        mem_free(a->bytes);
        a->from = &bind[k];
        bind[k].leaf = i + 1;
        if (!cli_read_array(bind[k].value, &a->bytes, &a->array))
            return false;
    }
    return true;
}

/* The number of the value of --bind or of an array's shape with the name; values->n: there is none. */
static unsigned value_named(const struct cli_values *v, const char *name)
{
    unsigned i = 0;
    while (name && i < v->n && (strlen(name) != v->len[i] || memcmp(name, v->name[i], v->len[i])))
        i++;
    return name ? i : v->n;
}

static bool symbol_known(const struct cli_model *c, const char *name, int64_t *value)
{
    const struct cli_values *v = &c->values;
    unsigned i = value_named(v, name);
    if (i == v->n)
        return false;
    *value = v->value[i];
    return v->high[i] == v->value[i] || c->takes_ranges ||
           !cli_error("--bind %s: a length of a model has one value here, not %" PRId64 "..%" PRId64, name,
                      v->value[i], v->high[i]);
}

/* An input whose type or shape nothing says.  false. */
static bool input_unknown(const struct cli_model *c, const kl_model_value *v, const char *what)
{
    if (c->takes_arrays)
        cli_error("input '%s' of the model has %s: give --input %s=FILE", v->name, what, v->name);
    else
        cli_error("input '%s' of the model has %s, which only an array for it could say: --input of run, bench, "
                  "profile and tune", v->name, what);
    return false;
}

/* Is each --bind for a length of an input?  Of several files one may be without it. */
static bool values_meant(const struct cli_model *c)
{
    for (unsigned at = 0; at < c->values.n && !c->values.some; at++) {
        bool found = false;
        for (uint32_t i = 0; i < c->nin; i++)
            for (int k = 0; k < c->in[i].rank; k++)
                found |= value_named(&c->values, c->in[i].symbol[k]) == at;
        if (!found)
            return cli_error("--bind: no input of the model has a length '%.*s'", (int)c->values.len[at],
                             c->values.name[at]), false;
    }
    return true;
}

/* Shapes from the arrays, from --bind, and from the lengths that these give to symbols. */
static bool model_shapes(struct cli_model *c, const struct cli_values *values)
{
    if (values)
        c->values = *values;
    if (!values_meant(c))
        return false;
    for (uint32_t i = 0; i < c->nin; i++) {
        const struct job_array *a = &c->array[i];
        if (!a->bytes)
            continue;
        memcpy(c->dims[i], a->array.shape.dim, a->array.shape.rank * sizeof **c->dims);
        c->in[i].rank = (int)a->array.shape.rank;
        c->in[i].dtype = (kl_dtype)a->array.dtype;
        for (uint32_t k = 0; k < a->array.shape.rank; k++) {
            const char *s = c->in[i].symbol[k];
            int64_t v;
            if (s && !symbol_known(c, s, &v) && c->values.n < MAX_SYMBOLS) {
                c->values.name[c->values.n] = s;
                c->values.len[c->values.n] = strlen(s);
                c->values.value[c->values.n] = c->values.high[c->values.n] = a->array.shape.dim[k];
                c->values.n++;
            }
        }
    }
    for (uint32_t i = 0; i < c->nin; i++) {
        const kl_model_value *v = &c->in[i];
        if (c->array[i].bytes)
            continue;
        if (v->rank < 0 || v->dtype == KL_DTYPE_COUNT)
            return input_unknown(c, v, v->rank < 0 ? "no shape" : "no type");
        for (int k = 0; k < v->rank; k++) {
            c->dims[i][k] = v->dims[k];
            if (v->dims[k] >= 0 || (v->symbol[k] && symbol_known(c, v->symbol[k], &c->dims[i][k])))
                continue;
            if (v->symbol[k])
                return cli_error("symbol %s has no value: give --bind %s=NUMBER", v->symbol[k], v->symbol[k]), false;
            char what[64];
            snprintf(what, sizeof what, "an axis %d of any length", k);
            return input_unknown(c, v, what);
        }
    }
    return true;
}

/* Makes tensors for the inputs that may determine a shape, or for the others. */
static bool model_tensors(struct cli_model *c, kl_device d, bool numbers)
{
    for (uint32_t i = 0; i < c->nin; i++) {
        const struct job_array *a = &c->array[i];
        const kl_model_value *v = &c->in[i];
        size_t bytes = dtype_size(v->dtype);
        if ((a->bytes && !dtype_is_float(v->dtype)) != numbers)
            continue;
        for (int k = 0; k < v->rank; k++)
            if (__builtin_mul_overflow(bytes, (size_t)c->dims[i][k], &bytes))
                return cli_error("input '%s' is too large", v->name), false;
        char *zeros = a->bytes ? NULL : mem_alloc(bytes + 1);
        if (!a->bytes && !zeros)
            return cli_error("out of memory"), false;
        const kl_site site = {c->path, (int)i + 1, "input"};
        c->t[i] = c->lengths ? kl_input_symbolic_at(&site, d, v->dtype, v->rank, c->lengths[i], c->dims[i],
                                                    a->bytes ? a->array.data : zeros)
                             : kl_input_at(&site, d, v->dtype, v->rank, c->dims[i], a->bytes ? a->array.data : zeros);
        mem_free(zeros);
        if (kl_check(c->t[i]) != KL_OK)
            return cli_error("%s", kl_last_error()), false;
        kl_set_name(c->t[i], v->name);
    }
    return true;
}

/* ---- kiln run ---- */

/* Is it the `run`-th --output (from 0) of output k? */
static bool output_of_run(const struct job *j, const struct cli_model *c, unsigned bind, uint32_t k, uint32_t run)
{
    uint32_t before = 0;
    for (unsigned i = 0; i <= bind; i++)
        before += !strcmp(j->bind[i].option, "--output") && value_meant(&j->bind[i], c->out, c->nout) == k;
    return !strcmp(j->bind[bind].option, "--output") && value_meant(&j->bind[bind], c->out, c->nout) == k &&
           (c->runs == 1 || before == run + 1);
}

/* Prints the texts of an output of strings, or the keys of a table's columns. */
static void show_texts(const struct cli_model *c, uint32_t k, const int64_t *number, int64_t count)
{
    enum { SHOWN_MAX = 32 };
    const kl_model_value *v = &c->out[k];
    struct text line = {0};
    count = v->keys ? v->dims[1] : count;
    text_put(&line, v->keys ? "  keys" : "  texts");
    for (int64_t i = 0; i < count && i < SHOWN_MAX; i++) {
        const char *s = v->keys ? v->keys[i] : kl_model_string(c->m, number[i]);
        text_put(&line, " ");
        text_quoted(&line, s ? s : "");
    }
    printf("%s%s\n", line.failed ? "" : line.s, count > SHOWN_MAX ? " .." : "");
    mem_free(line.s);
}

static bool show_or_write(struct job *j, const struct cli_model *c, uint32_t k, uint32_t run)
{
    kl_tensor t = c->t[c->nin + k];
    int64_t dims[KL_MAX_RANK];
    struct shape s = {.rank = (uint32_t)kl_shape(t, dims)};
    memcpy(s.dim, dims, s.rank * sizeof *dims);
    unsigned dtype = kl_dtype_of(t);
    size_t bytes = (size_t)kl_numel(t) * dtype_size(dtype);
    char *data = mem_alloc(bytes + 1);
    bool ok = data && kl_read(t, data, bytes) == KL_OK, written = false;
    if (!ok)
        cli_error("%s", data ? kl_last_error() : "out of memory");
    for (unsigned i = 0; ok && i < j->nbind; i++)
        if (output_of_run(j, c, i, k, run)) {
            ok = cli_write_array(j->bind[i].value, dtype, &s, data, j->bf16_bits);
            written = true;
        }
    if (ok && (!written || j->hashes)) {
        struct text line = {0};
        text_put(&line, "return %u ", k);
        text_quoted(&line, c->out[k].name);
        job_show_result(j, &line, dtype, &s, data);
        if (!j->hashes && (c->out[k].strings || c->out[k].keys))
            show_texts(c, k, (const int64_t *)data, kl_numel(t));
    }
    mem_free(data);
    return ok;
}

static bool outputs_named(const struct job *j, const struct cli_model *c)
{
    for (unsigned i = 0; i < j->nbind; i++) {
        bool found = value_meant(&j->bind[i], c->out, c->nout) < c->nout;
        if (!strcmp(j->bind[i].option, "--output") && !found) {
            cli_error("--output: the model has no output '%.*s'", (int)j->bind[i].name_len, j->bind[i].name);
            return false;
        }
    }
    return true;
}

/* Reads the arrays of all runs: run r takes the r-th --input of each name, or the only one. */
static bool arrays_of_runs(struct cli_model *c, struct job *j)
{
    uint32_t *times = mem_alloc((c->nin + 1) * sizeof *times);
    bool ok = times != NULL || !cli_error("out of memory");
    c->runs = 1;
    for (unsigned k = 0; ok && k < j->nbind; k++) {
        if (!strcmp(j->bind[k].option, "--output"))
            continue;
        uint32_t i = strcmp(j->bind[k].option, "--input") ? c->nin : value_meant(&j->bind[k], c->in, c->nin);
        if (strcmp(j->bind[k].option, "--input"))
            ok = !cli_error("%s: a model has inputs and outputs only", j->bind[k].option);
        else if (i == c->nin)
            ok = !cli_error("--input: the model has no input '%.*s'", (int)j->bind[k].name_len, j->bind[k].name);
        else if (++times[i] > c->runs)
            c->runs = times[i];
    }
    for (uint32_t i = 0; ok && i < c->nin; i++)
        if (!times[i])
            ok = !cli_error("input %u '%s' has no value: give --input %u=FILE", i, c->in[i].name, i);
        else if (times[i] != 1 && times[i] != c->runs)
            ok = !cli_error("input '%s' is given %u times, and another %u times", c->in[i].name, times[i], c->runs);
    if (ok && !(c->given = mem_alloc(((size_t)c->runs * c->nin + 1) * sizeof *c->given)))
        ok = !cli_error("out of memory");
    memset(times, 0, times ? (c->nin + 1) * sizeof *times : 0);
    for (unsigned k = 0; ok && k < j->nbind; k++) {
        if (strcmp(j->bind[k].option, "--input"))
            continue;
        uint32_t i = value_meant(&j->bind[k], c->in, c->nin);
        struct job_array *a = &c->given[(size_t)times[i]++ * c->nin + i];
        a->from = &j->bind[k];
        ok = cli_read_array(j->bind[k].value, &a->bytes, &a->array);
    }
    mem_free(times);
    return ok;
}

static const struct job_array *array_of_run(const struct cli_model *c, uint32_t run, uint32_t i)
{
    const struct job_array *a = &c->given[(size_t)run * c->nin + i];
    return a->bytes ? a : &c->given[i];
}

static bool run_begins(struct cli_model *c, struct job *j, uint32_t run)
{
    for (uint32_t i = 0; i < c->nin; i++)
        c->array[i] = *array_of_run(c, run, i);
    return model_shapes(c, &j->values);
}

/* The name of a length as that of a symbol, or another one for names that no symbol can have. */
static const char *length_name(const char *name, uint32_t i, int axis, char *buf, size_t size)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.";
    bool fits = name && strlen(name) < 24 && strspn(name, letters) == strlen(name) && strcspn(name, letters + 52);
    if (fits)
        return name;
    snprintf(buf, size, "in%u.%d", i, axis);
    return buf;
}

/* Lengths for which --bind has a range become symbols with these bounds.  false: out of memory. */
static bool find_ranges(struct cli_model *c)
{
    bool any = false;
    for (unsigned i = 0; i < c->values.n; i++)
        any |= c->values.high[i] != c->values.value[i];
    if (!any)
        return true;
    if (!(c->lengths = mem_alloc((c->nin + 1) * sizeof *c->lengths)))
        return cli_error("out of memory"), false;
    for (uint32_t i = 0; i < c->nin; i++)
        for (int k = 0; k < c->in[i].rank; k++) {
            char buf[24];
            unsigned at = value_named(&c->values, c->in[i].symbol[k]);
            bool range = at < c->values.n && c->values.high[at] != c->values.value[at];
            c->lengths[i][k] = c->dims[i][k];
            if (range)
                c->lengths[i][k] = kl_symbol(length_name(c->in[i].symbol[k], i, k, buf, sizeof buf),
                                             c->values.value[at], c->values.high[at]);
        }
    return true;
}

/* Lengths that differ among the runs become symbols, bounded by the runs.  false: there are none, or an array's rank
 * is another one. */
static bool find_lengths(struct cli_model *c)
{
    bool any = false;
    c->lengths = mem_alloc((c->nin + 1) * sizeof *c->lengths);
    for (uint32_t i = 0; c->lengths && i < c->nin; i++) {
        const struct shape *first = &array_of_run(c, 0, i)->array.shape;
        for (uint32_t k = 0; k < first->rank; k++) {
            const char *name = c->in[i].rank == (int)first->rank ? c->in[i].symbol[k] : NULL;
            int64_t low = first->dim[k], high = low;
            char buf[24];
            /* all axes with the name have one symbol, so all of them are within its bounds */
            for (uint32_t r = 0; r < c->runs; r++)
                for (uint32_t m = 0; m < c->nin; m++) {
                    const struct shape *s = &array_of_run(c, r, m)->array.shape;
                    for (uint32_t x = 0; x < s->rank; x++) {
                        const char *other = c->in[m].rank == (int)s->rank ? c->in[m].symbol[x] : NULL;
                        if ((m != i || x != k) && !(name && other && !strcmp(name, other)))
                            continue;
                        low = s->dim[x] < low ? s->dim[x] : low;
                        high = s->dim[x] > high ? s->dim[x] : high;
                    }
                }
            for (uint32_t r = 0; r < c->runs; r++)
                if (array_of_run(c, r, i)->array.shape.rank != first->rank)
                    return false;
            c->lengths[i][k] = low == high ? low : kl_symbol(length_name(name, i, (int)k, buf, sizeof buf), low, high);
            any |= low != high;
        }
    }
    return any;
}

/* Calls the model, in a trace in which lengths are symbols. */
static bool call_with_lengths(struct cli_model *c, kl_device d)
{
    kl_trace_begin("model");
    bool ok = model_tensors(c, d, true) && model_tensors(c, d, false) &&
              kl_model_call(c->m, c->nin, c->t, c->nout, c->t + c->nin) == KL_OK;
    for (uint32_t k = 0; ok && k < c->nout; k++)
        kl_keep(c->t[c->nin + k]);
    if (!ok)
        kl_trace_abandon();
    return ok && kl_trace_end() == KL_OK;
}

/* Calls the model outside of a trace, where values that determine a shape can be read. */
static bool call_with_numbers(struct cli_model *c, kl_device d)
{
    if (!model_tensors(c, d, true) || !model_tensors(c, d, false))
        return false;
    return kl_model_call(c->m, c->nin, c->t, c->nout, c->t + c->nin) == KL_OK ||
           cli_error("%s", kl_last_error()) == CLI_OK;
}

static bool model_run_once(struct cli_model *c, struct job *j, uint32_t run)
{
    kl_device d = j->device_name ? kl_device_named(j->device_name) : kl_device_default();
    if (!run_begins(c, j, run))
        return false;
    bool ok = c->lengths && call_with_lengths(c, d);
    if (!ok && c->lengths) {
        fprintf(stderr, "kiln: each length is compiled for itself: %s\n", kl_last_error());
        mem_free(c->lengths);
        c->lengths = NULL;
        kl_clear_error();
    }
    ok = ok || call_with_numbers(c, d);
    for (uint32_t k = 0; ok && k < c->nout; k++)
        ok = show_or_write(j, c, k, run);
    for (uint32_t i = c->lengths ? c->nin : 0; ok && i < c->nin + c->nout; i++)
        kl_release(c->t[i]); /* a trace's inputs have ended with it */
    return ok;
}

bool cli_model_run(struct job *j)
{
    struct cli_model c = {.runs = 1, .takes_arrays = true};
    bool ok = model_load(&c, j->file, j->device_name) && outputs_named(j, &c) && arrays_of_runs(&c, j);
    if (ok && (c.runs == 1 || !find_lengths(&c))) {
        mem_free(c.lengths);
        c.lengths = NULL;
    }
    int64_t graphs = 0;
    for (uint32_t run = 0; ok && run < c.runs; run++) {
        ok = model_run_once(&c, j, run);
        graphs = run ? graphs : kl_counter("graphs_built");
    }
    graphs = kl_counter("graphs_built") - graphs;
    if (ok && c.runs > 1)
        fprintf(stderr, "kiln: %u runs; those after the first built %lld graphs%s%s\n", c.runs, (long long)graphs,
                graphs && c.lengths ? ": " : "", graphs && c.lengths ? kl_trace_miss() : "");
    cli_model_free(&c);
    return ok;
}

/* ---- a model as a graph ---- */

/* The file's name as that of a graph. */
static void graph_name_of(const char *path, char *to, size_t size)
{
    const char *slash = strrchr(path, '/');
    size_t n = 0;
    for (const char *p = slash ? slash + 1 : path; *p && strcmp(p, ".onnx") && n + 1 < size; p++)
        to[n++] = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ? *p : '_';
    to[n] = 0;
}

/* Records the model in a trace, which stays open; values that determine shapes are read before it. false: reported, and
 * no trace is open. */
static bool model_record(struct cli_model *c, const char *path, const char *device, bool *numbers_outside)
{
    kl_device d = device ? kl_device_named(device) : kl_device_default();
    char name[64];
    graph_name_of(path, name, sizeof name);
    for (int outside = 0; outside < 2; outside++) {
        bool ok = !outside || model_tensors(c, d, true);
        kl_trace_begin(name);
        ok = ok && (outside || model_tensors(c, d, true)) && model_tensors(c, d, false);
        if (!ok) {
            kl_trace_abandon();
            return false;
        }
        kl_status status = kl_model_call(c->m, c->nin, c->t, c->nout, c->t + c->nin);
        *numbers_outside = outside;
        if (status == KL_OK) {
            for (uint32_t k = 0; k < c->nout; k++)
                kl_keep(c->t[c->nin + k]);
            return true;
        }
        kl_trace_abandon();
        if (status != KL_ERR_TRACE)
            break;
    }
    return cli_error("%s", kl_last_error()), false;
}

static void name_outputs(struct graph *g, const struct cli_model *c)
{
    uint32_t n = g->nout;
    for (g->nout = 1; g->nout <= n && g->nout <= c->nout; g->nout++) /* graph_name_output names the last output */
        graph_name_output(g, c->out[g->nout - 1].name, strlen(c->out[g->nout - 1].name), true);
    g->nout = n;
}

/* The recording of the open trace, and the trace in *tr; its inputs have the model's names. */
static struct graph *model_captured(struct cli_model *c, bool numbers_outside, struct job *j)
{
    struct err e = {0};
    struct trace *tr = thread_self()->trace;
    struct graph *g = trace_so_far(tr, &e);
    uint32_t at = 0;
    if (!g)
        return cli_error("%s", e.msg), NULL;
    for (int numbers = 1; numbers >= 0; numbers--) /* in the order of model_record */
        for (uint32_t i = 0; i < c->nin; i++) {
            bool number = c->array[i].bytes && !dtype_is_float(c->in[i].dtype);
            uint32_t leaf = UINT32_MAX;
            if (number != numbers)
                continue;
            if (!(number && numbers_outside) && at < g->input.n) {
                leaf = at++;
                snprintf(g->input.v[leaf].name, sizeof g->input.v[leaf].name, "%s", c->in[i].name);
            }
            for (unsigned b = 0; j && b < j->nbind; b++)
                if (j->bind[b].leaf == i + 1 && !j->bind[b].done) {
                    j->bind[b].leaf = leaf == UINT32_MAX ? leaf : leaf + 1;
                    j->bind[b].done = true;
                }
        }
    name_outputs(g, c);
    return g;
}

struct graph *cli_model_graph(const char *path, const char *device, const struct cli_values *values)
{
    struct cli_model c = {.takes_ranges = true};
    bool outside;
    struct graph *g = NULL;
    if (model_load(&c, path, device) && model_shapes(&c, values) && find_ranges(&c) &&
        model_record(&c, path, device, &outside)) {
        g = model_captured(&c, outside, NULL);
        kl_trace_abandon();
    }
    cli_model_free(&c);
    return g;
}

bool cli_model_compile(const char *path, const struct cli_values *values, kl_object *object, const char *prefix)
{
    struct cli_model c = {.takes_ranges = true};
    bool outside, ok = model_load(&c, path, "cpu") && model_shapes(&c, values) && find_ranges(&c) &&
                       model_record(&c, path, "cpu", &outside);
    if (ok && kl_object_add(object, prefix) != KL_OK)
        ok = cli_error("%s", kl_last_error()) == CLI_OK;
    cli_model_free(&c);
    return ok;
}

/* ---- a model's graph and its values, for kiln bench and kiln profile ---- */

static bool take_state(struct job *j, uint32_t i, kl_tensor t)
{
    struct err e = {0};
    size_t bytes = (size_t)kl_numel(t) * kl_dtype_size(kl_dtype_of(t));
    char *data = mem_alloc(bytes + 1);
    bool suspended = kl_trace_suspend() == KL_OK, ok = suspended && data && kl_read(t, data, bytes) == KL_OK;
    if (suspended)
        kl_trace_resume();
    if (!ok)
        return mem_free(data), cli_error("%s", kl_last_error()), false;
    j->state[i] = buffer_new(exec_leaf_device(j->g, j->device, OP_state, i), bytes, &e);
    ok = j->state[i] && buffer_write(j->state[i], data, bytes, &e);
    mem_free(data);
    return ok || (cli_error("%s", e.msg), false);
}

bool cli_model_open(struct job *j)
{
    struct cli_model c = {.takes_arrays = true};
    uint32_t inside = 0;
    bool outside, ok = model_load(&c, j->file, j->device_name) && model_arrays(&c, j->bind, j->nbind) &&
                       model_shapes(&c, &j->values) && model_record(&c, j->file, j->device_name, &outside);
    if (ok) {
        for (uint32_t i = 0; i < c.nin; i++)
            inside += !(outside && c.array[i].bytes && !dtype_is_float(c.in[i].dtype));
        j->g = model_captured(&c, outside, j);
        ok = j->g && job_make_room(j);
        struct trace *tr = thread_self()->trace;
        for (uint32_t i = 0; ok && i < j->g->state.n; i++)
            ok = take_state(j, i, tr->bound[i].h);
        for (uint32_t i = 0; ok && i < j->g->slot.n; i++) {
            j->slot[i] = tr->r.slot[i];
            j->have_slot[i] = true;
        }
        for (uint32_t i = 0; ok && i < j->g->input.n; i++)
            if (i >= inside) /* an output that is a constant */
                j->input[i] = buffer_ref(tr->r.input[i]);
        kl_trace_abandon();
        j->values.n = 0; /* these were the values of the model's symbols */
    }
    cli_model_free(&c);
    return ok;
}

/* ---- kiln export: a graph's text as a model ---- */

int cli_export(int argc, char **argv)
{
    struct cli_values values = {0};
    const char *file = NULL, *out = NULL;
    const struct cli_option options[] = {{"-o", .value = &out, .needed = true}, {.value = &file, .needed = true},
                                         {"--bind", .take = cli_bind_option, .ctx = &values}, {0}};
    if (!cli_parse(argc, argv, options, "export needs a file and -o"))
        return CLI_USAGE;
    struct err e = {0};
    struct graph *g = cli_load(file, &values);
    bool ok = g && cli_bind(g);
    if (ok && !export_file(g, out, &e))
        ok = cli_error("%s: %s", file, e.msg) == CLI_OK;
    graph_free(g);
    return ok ? CLI_OK : CLI_FAILED;
}
