/* <kiln/formats/weights.h>: parameters of a tree from tensors of a file.  First the parts of tensors that make each
 * parameter are found and checked; then values are made, of the file's mapping where no element changes; then all are
 * assigned. */
#include "tensor_file.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements of a tensor that become elements of a parameter. */
struct weight_part {
    int param;
    kl_file_entry entry;
    kl_weight_map map;
    int64_t size;          /* elements of the axis */
    bool whole;            /* all of the tensor */
};
struct weight_load {
    kl_params *params;
    kl_file *file;
    const kl_params_load_options *options;
    struct weight_part *part;
    int64_t n, cap;
    bool *seen;            /* of each parameter: something in the file is for it */
    kl_tensor *value;      /* of each parameter; kl_none: it keeps its value */
    int64_t problems, left_out;
    char text[700];        /* the problems, as far as there is room */
    size_t used;
};

/* ---- what does not fit ---- */

static void load_problem(struct weight_load *w, const char *fmt, ...) KL_PRINTF(2, 3);
static void load_problem(struct weight_load *w, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (w->options->problem)
        w->options->problem(w->options->ctx, text);
    w->problems++;
    if (w->used + strlen(text) + 3 > sizeof w->text)
        w->left_out++;
    else
        w->used += (size_t)snprintf(w->text + w->used, sizeof w->text - w->used, "%s%s", w->used ? "; " : "", text);
}

static kl_status load_report(const struct weight_load *w)
{
    char more[60] = "";
    if (w->left_out)
        snprintf(more, sizeof more, "; and %" PRId64 " more", w->left_out);
    return kl_failf(NULL, KL_ERR_IO, "params_load: %.200s: %s%s", w->file->path, w->text, more);
}

static const char *load_shape(char text[250], kl_dtype dtype, int rank, const int64_t *dims)
{
    size_t n = (size_t)snprintf(text, 250, "%s[", dtype == KL_DTYPE_COUNT ? "" : kl_dtype_name(dtype));
    for (int k = 0; k < rank; k++)
        n += (size_t)snprintf(text + n, 250 - n, "%s%" PRId64, k ? "," : "", dims[k]);
    snprintf(text + n, 250 - n, "]");
    return text;
}

/* ---- parts of tensors ---- */

static bool load_is_float(kl_dtype d) { return d == KL_F16 || d == KL_BF16 || d == KL_F32 || d == KL_F64; }

/* Applies the map to the tensor's shape.  false: it does not fit it. */
static bool load_part_shape(struct weight_load *w, struct weight_part *p, int64_t dims[KL_MAX_RANK])
{
    const kl_file_entry *e = &p->entry;
    const kl_weight_map *m = &p->map;
    char shape[250];
    memcpy(dims, e->dims, KL_MAX_RANK * sizeof *dims);
    if (m->transpose && e->rank < 2)
        return load_problem(w, "\"%.100s\" has %d axes and cannot be transposed", e->name, e->rank), false;
    if (m->transpose) {
        dims[e->rank - 1] = e->dims[e->rank - 2];
        dims[e->rank - 2] = e->dims[e->rank - 1];
    }
    bool cut = m->start || m->length || m->at;
    if (cut && (m->axis < 0 || m->axis >= e->rank || m->start < 0 || m->length < 0 || m->at < 0 ||
                m->start > dims[m->axis] || m->length > dims[m->axis] - m->start)) {
        load_problem(w, "\"%.100s\" is %s and has no %" PRId64 " elements from %" PRId64 " on along axis %d", e->name,
                     load_shape(shape, KL_DTYPE_COUNT, e->rank, dims), m->length, m->start, m->axis);
        return false;
    }
    p->size = m->length ? m->length : e->rank && m->axis >= 0 && m->axis < e->rank ? dims[m->axis] - m->start : 1;
    p->whole = !m->start && (!e->rank || m->axis >= e->rank || m->axis < 0 || p->size == dims[m->axis]);
    if (!p->whole)
        dims[m->axis] = p->size;
    return true;
}

/* Does the part have the parameter's dtype, and its shape but for the axis along which there are other parts? */
static bool load_part_fits(struct weight_load *w, struct weight_part *p)
{
    int64_t dims[KL_MAX_RANK], want[KL_MAX_RANK];
    char here[250], there[250];
    kl_param is;
    if (!load_part_shape(w, p, dims))
        return false;
    kl_params_get(w->params, p->param, &is);
    int rank = kl_shape(is.tensor, want), axis = p->map.axis;
    kl_dtype dtype = kl_dtype_of(is.tensor);
    if (p->entry.dtype == KL_DTYPE_COUNT)
        return load_problem(w, "\"%.100s\" has elements of %.40s, which Kiln does not read", p->entry.name,
                            p->entry.type), false;
    bool fits = rank == p->entry.rank && (dtype == p->entry.dtype ||
                                          (load_is_float(dtype) && load_is_float(p->entry.dtype)));
    for (int k = 0; fits && k < rank; k++)
        fits = dims[k] == want[k] || (k == axis && dims[k] <= want[k] && p->map.at <= want[k] - dims[k]);
    if (!fits)
        load_problem(w, "byte %zu, field %.100s: it is %s in the file and %s as \"%.100s\" here", p->entry.offset,
                     p->entry.name, load_shape(there, p->entry.dtype, p->entry.rank, dims),
                     load_shape(here, dtype, rank, want), is.name);
    return fits;
}

static kl_status load_add_part(struct weight_load *w, const struct weight_part *p)
{
    if (w->n == w->cap) {
        int64_t cap = w->cap ? 2 * w->cap : 64;
        struct weight_part *grown = realloc(w->part, (size_t)cap * sizeof *grown);
        if (!grown)
            return kl_failf(NULL, KL_ERR_MEMORY, "params_load: out of memory");
        w->part = grown;
        w->cap = cap;
    }
    w->part[w->n++] = *p;
    return KL_OK;
}

static kl_status load_map_entry(struct weight_load *w, const kl_file_entry *entry)
{
    struct weight_part p = {.entry = *entry};
    kl_status status = KL_OK;
    for (int64_t part = 0; status == KL_OK && (!part || p.map.more); part++) {
        p.map = (kl_weight_map){.name = ""};
        snprintf(p.map.name, sizeof p.map.name, "%s", entry->name);
        if (w->options->map)
            status = w->options->map(w->options->ctx, entry, part, &p.map);
        p.map.name[KL_PARAM_NAME + 1] = 0;
        if (status != KL_OK || !*p.map.name)
            continue;
        p.param = kl_params_index(w->params, p.map.name);
        if (p.param >= 0)
            w->seen[p.param] = true;
        if (p.param >= 0)
            status = load_part_fits(w, &p) ? load_add_part(w, &p) : KL_OK;
        else if (!w->options->allow_unexpected)
            load_problem(w, "byte %zu, field %.100s: the tree has no \"%.100s\"", entry->offset, entry->name,
                         p.map.name);
    }
    return status;
}

static int load_part_order(const void *a, const void *b)
{
    const struct weight_part *x = a, *y = b;
    if (x->param != y->param)
        return x->param < y->param ? -1 : 1;
    return x->map.at != y->map.at ? (x->map.at < y->map.at ? -1 : 1) : 0;
}

/* Checks that the parts from `first` to `end` make all of a parameter. */
static void load_check_parts(struct weight_load *w, const struct weight_part *first, const struct weight_part *end)
{
    int64_t dims[KL_MAX_RANK], at = 0;
    kl_param is;
    kl_params_get(w->params, first->param, &is);
    int rank = kl_shape(is.tensor, dims), axis = first->map.axis;
    if (!rank || axis < 0 || axis >= rank) {
        if (end - first > 1)
            load_problem(w, "\"%.100s\" gets more than one tensor", is.name);
        return;
    }
    for (const struct weight_part *p = first; p < end; p++) {
        if (p->map.axis != axis) {
            load_problem(w, "\"%.100s\" gets parts along axis %d and axis %d", is.name, axis, p->map.axis);
            return;
        }
        if (p->map.at != at) {
            load_problem(w, "\"%.100s\" gets elements %" PRId64 " to %" PRId64 " of axis %d %s", is.name,
                         p->map.at < at ? p->map.at : at, p->map.at < at ? at : p->map.at, axis,
                         p->map.at < at ? "twice" : "from nowhere");
            return;
        }
        at += p->size;
    }
    if (at != dims[axis])
        load_problem(w, "\"%.100s\" gets elements %" PRId64 " to %" PRId64 " of axis %d from nowhere", is.name, at,
                     dims[axis], axis);
}

static void load_check_params(struct weight_load *w)
{
    int64_t at = 0;
    for (int i = 0; i < kl_params_count(w->params); i++) {
        kl_param is;
        int64_t first = at;
        kl_params_get(w->params, i, &is);
        while (at < w->n && w->part[at].param == i)
            at++;
        if (at > first)
            load_check_parts(w, &w->part[first], &w->part[at]);
        else if (!w->seen[i] && !w->options->allow_missing)
            load_problem(w, "the file has nothing for \"%.200s\"", is.name);
    }
    if (!w->n && !w->problems && kl_file_count(w->file))
        load_problem(w, "none of its %" PRId64 " tensors is in the tree", kl_file_count(w->file));
}

/* Finds the parts that make the parameters, and all that does not fit. */
static kl_status load_plan(struct weight_load *w)
{
    for (uint32_t i = 0; i < kl_file_count(w->file); i++) {
        kl_file_entry e;
        kl_file_get(w->file, i, &e);
        kl_status status = load_map_entry(w, &e);
        if (status != KL_OK)
            return status;
    }
    if (w->n)
        qsort(w->part, (size_t)w->n, sizeof *w->part, load_part_order);
    load_check_params(w);
    return w->problems ? load_report(w) : KL_OK;
}

/* ---- values ---- */

/* A tensor, or whole rows of it, in the file's mapping; kl_none without an error: its elements have to be converted. */
static kl_tensor load_mapped(struct weight_load *w, const struct weight_part *p, kl_tensor to)
{
    kl_file *f = w->file;
    kl_tensor t = kl_none;
    struct file_entry *e = file_entry_named(&f, p->entry.name), cut;
    char layer[200], own[200];
    kl_layer_text(to, own, sizeof own);
    if (p->map.transpose || e->complex || (*own && !p->whole) || !file_entry_is_read(f, e))
        return kl_none;
    if (e->blocks && !*own) /* quantized elements, as floats */
        return p->whole && kl_dtype_of(to) == KL_F32 ? file_decoded_tensor(f, e, kl_device_of(to)) : kl_none;
    if (e->blocks) {
        t = kl_file_tensor(w->file, kl_device_of(to), p->entry.name);
        if (!strcmp(kl_layer_text(t, layer, sizeof layer), own))
            return t;
        kl_release(t);
        return kl_none;
    }
    int64_t before = 1, dims[KL_MAX_RANK];
    int rank = kl_shape(to, dims);
    for (int k = 0; !p->whole && k < p->map.axis; k++)
        before *= dims[k];
    if (*own || before != 1 || e->is.dtype != kl_dtype_of(to))
        return kl_none;
    cut = *e;
    if (!p->whole) {
        cut.is.bytes = e->is.bytes / (size_t)e->is.dims[p->map.axis] * (size_t)p->size;
        cut.data += e->is.bytes / (size_t)e->is.dims[p->map.axis] * (size_t)p->map.start;
    }
    return file_mapped_tensor(f, &cut, kl_device_of(to), e->is.dtype, rank, dims);
}

/* Records a part as elements of the parameter, in a trace. */
static kl_tensor load_converted(struct weight_load *w, const struct weight_part *p, kl_tensor to)
{
    int rank = p->entry.rank;
    int64_t start[KL_MAX_RANK] = {0}, stop[KL_MAX_RANK], step[KL_MAX_RANK];
    kl_tensor t = kl_file_tensor(w->file, kl_device_of(to), p->entry.name);
    if (*kl_layer_name(t))
        t = kl_dense(t);
    if (p->map.transpose)
        t = kl_transpose(t, rank - 2, rank - 1);
    if (!p->whole) {
        kl_shape(t, stop);
        for (int k = 0; k < rank; k++)
            step[k] = 1;
        start[p->map.axis] = p->map.start;
        stop[p->map.axis] = p->map.start + p->size;
        t = kl_slice(t, start, stop, step);
    }
    return kl_dtype_of(t) == kl_dtype_of(to) ? t : kl_cast(t, kl_dtype_of(to));
}

/* One parameter's value from its parts, by ops in a trace of its own: memory for one conversion is in use. */
static kl_status load_convert(struct weight_load *w, const struct weight_part *part, int64_t n, kl_tensor to,
                              kl_tensor *value)
{
    kl_tensor *all = calloc((size_t)n, sizeof *all);
    if (!all)
        return kl_failf(NULL, KL_ERR_MEMORY, "params_load: out of memory");
    kl_status status = kl_trace_begin("params_load");
    if (status == KL_OK) {
        for (int64_t i = 0; i < n; i++)
            all[i] = load_converted(w, &part[i], to);
        *value = kl_keep(n == 1 ? all[0] : kl_concat(n, all, part->map.axis));
        status = kl_trace_end();
    }
    free(all);
    return status;
}

static kl_status load_values(struct weight_load *w)
{
    for (int64_t first = 0, end; first < w->n; first = end) {
        struct weight_part *p = &w->part[first];
        kl_param is;
        kl_params_get(w->params, p->param, &is);
        for (end = first + 1; end < w->n && w->part[end].param == p->param;)
            end++;
        kl_tensor *value = &w->value[p->param];
        if (end - first == 1)
            *value = load_mapped(w, p, is.tensor);
        if (value->id)
            continue;
        kl_status status = load_convert(w, p, end - first, is.tensor, value);
        if (status != KL_OK)
            return status;
    }
    return KL_OK;
}

static kl_status load_assign(struct weight_load *w)
{
    kl_status status = KL_OK;
    for (int i = 0; status == KL_OK && i < kl_params_count(w->params); i++) {
        kl_param is;
        kl_params_get(w->params, i, &is);
        if (w->value[i].id)
            status = kl_assign(is.tensor, w->value[i]);
    }
    return status;
}

kl_status kl_params_load_file(kl_params *params, kl_file *file, const kl_params_load_options *options)
{
    static const kl_params_load_options strict;
    struct weight_load w = {.params = params, .file = file, .options = options ? options : &strict};
    if (!params || !file)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "params_load: no %s", params ? "file" : "tree");
    if (kl_tracing())
        return kl_failf(NULL, KL_ERR_TRACE, "params_load: a trace is open");
    w.value = calloc((size_t)kl_params_count(params) + 1, sizeof *w.value);
    w.seen = calloc((size_t)kl_params_count(params) + 1, sizeof *w.seen);
    kl_status status = w.value && w.seen ? load_plan(&w) : kl_failf(NULL, KL_ERR_MEMORY, "params_load: out of memory");
    if (status == KL_OK)
        status = load_values(&w);
    if (status == KL_OK)
        status = load_assign(&w);
    for (int64_t i = 0; w.value && i < kl_params_count(params); i++)
        if (w.value[i].id && kl_check(w.value[i]) != KL_ERR_HANDLE)
            kl_release(w.value[i]);
    free(w.value);
    free(w.seen);
    free(w.part);
    return status;
}

kl_status kl_params_load(kl_params *params, const char *path, const kl_params_load_options *options)
{
    if (!params || !path)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "params_load: no %s", params ? "path" : "tree");
    kl_file *file = kl_file_open(path);
    kl_status status = file ? kl_params_load_file(params, file, options) : kl_last_error_code();
    kl_file_close(file);
    return status;
}
