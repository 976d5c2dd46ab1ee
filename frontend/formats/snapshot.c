/* <kiln/formats/snapshot.h>: tensors and variables by name, saved to and loaded from safetensors files. */
#include "tensor_file.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEP_DIGITS = 12 };

struct snapshot_value { /* one of: a tensor, a variable, a number with get and set functions, a device's seeds */
    char *name;
    kl_tensor tensor;
    kl_dtype dtype;          /* dtype of the variable: KL_I64 or KL_F64; KL_U64: seeds */
    void *variable;          /* NULL: a tensor, or seeds */
    kl_snapshot_get *get;    /* NULL: a tensor, variable or seeds */
    kl_snapshot_set *set;
    void *of;
    kl_device device;
    uint64_t number;         /* the seeds, variable or result of `get`, while it is saved or loaded */
    int64_t before;          /* the result of `get` before it was loaded */
};
struct kl_snapshot {
    struct snapshot_value *held;
    uint32_t n, cap;
    char **note;             /* pairs of key and text */
    uint32_t notes;
};

kl_snapshot *kl_snapshot_new(void)
{
    kl_snapshot *c = calloc(1, sizeof *c);
    if (!c)
        kl_fail(KL_ERR_MEMORY, "snapshot_new: out of memory");
    return c;
}

void kl_snapshot_free(kl_snapshot *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->n; i++)
        free(c->held[i].name);
    for (uint32_t i = 0; i < 2 * c->notes; i++)
        free(c->note[i]);
    free(c->held);
    free(c->note);
    free(c);
}

/* ---- what it holds ---- */

static kl_status snapshot_add_value(kl_snapshot *c, const char *name, struct snapshot_value h)
{
    if (!c || !name)
        return kl_fail(KL_ERR_ARGUMENT, "snapshot: no snapshot, or no name");
    for (uint32_t i = 0; i < c->n; i++)
        if (!strcmp(c->held[i].name, name))
            return kl_failf(NULL, KL_ERR_ARGUMENT, "snapshot: it has a \"%.200s\"", name);
    if (c->n == c->cap) {
        uint32_t cap = c->cap ? 2 * c->cap : 32;
        struct snapshot_value *grown = realloc(c->held, cap * sizeof *grown);
        if (!grown)
            return kl_fail(KL_ERR_MEMORY, "snapshot: out of memory");
        c->held = grown;
        c->cap = cap;
    }
    if (!(h.name = strdup(name)))
        return kl_fail(KL_ERR_MEMORY, "snapshot: out of memory");
    c->held[c->n++] = h;
    return KL_OK;
}

kl_status kl_snapshot_tensor(kl_snapshot *c, const char *name, kl_tensor tensor)
{
    kl_status status = kl_check(tensor);
    if (status == KL_OK && *kl_layer_name(tensor))
        status = KL_ERR_TYPE;
    if (status == KL_OK)
        return snapshot_add_value(c, name, (struct snapshot_value){.tensor = tensor});
    return kl_failf(NULL, status, "snapshot: \"%.200s\" is no dense tensor", name ? name : "");
}

static kl_status hold_variable(kl_snapshot *c, const char *name, void *value, kl_dtype dtype)
{
    if (!value)
        return kl_fail(KL_ERR_ARGUMENT, "snapshot: no variable");
    return snapshot_add_value(c, name, (struct snapshot_value){.dtype = dtype, .variable = value});
}
kl_status kl_snapshot_i64(kl_snapshot *c, const char *name, int64_t *value)
{
    return hold_variable(c, name, value, KL_I64);
}
kl_status kl_snapshot_f64(kl_snapshot *c, const char *name, double *value)
{
    return hold_variable(c, name, value, KL_F64);
}

kl_status kl_snapshot_number(kl_snapshot *c, const char *name, kl_snapshot_get *get, kl_snapshot_set *set, void *of)
{
    if (!get || !set)
        return kl_fail(KL_ERR_ARGUMENT, "snapshot: no function");
    return snapshot_add_value(c, name, (struct snapshot_value){.dtype = KL_I64, .get = get, .set = set, .of =
        of});
}

kl_status kl_snapshot_seeds(kl_snapshot *c, kl_device device)
{
    char name[80];
    kl_device_kind kind = kl_device_kind_of(device);
    if (kind >= KL_DEVICE_KINDS)
        return kl_fail(KL_ERR_DEVICE, "snapshot: no device");
    snprintf(name, sizeof name, "seeds.%s:%d", kl_device_kind_name(kind), kl_device_index(device));
    return snapshot_add_value(c, name, (struct snapshot_value){.dtype = KL_U64, .device = device});
}

kl_status kl_snapshot_note(kl_snapshot *c, const char *key, const char *text)
{
    if (!c || !key || !text)
        return kl_fail(KL_ERR_ARGUMENT, "snapshot: no snapshot, key or text");
    char *own = strdup(text), *name = NULL;
    for (uint32_t i = 0; own && i < c->notes; i++)
        if (!strcmp(c->note[2 * i], key)) {
            free(c->note[2 * i + 1]);
            c->note[2 * i + 1] = own;
            return KL_OK;
        }
    char **grown = own ? realloc(c->note, (2 * (size_t)c->notes + 2) * sizeof *grown) : NULL;
    if (grown) {
        c->note = grown;
        name = strdup(key);
    }
    if (!name) {
        free(own);
        return kl_fail(KL_ERR_MEMORY, "snapshot: out of memory");
    }
    c->note[2 * c->notes] = name;
    c->note[2 * c->notes++ + 1] = own;
    return KL_OK;
}

/* ---- saving ---- */

static bool snapshot_ready(const kl_snapshot *c, const char *path)
{
    if (!c || !path)
        return kl_fail(KL_ERR_ARGUMENT, "snapshot: no snapshot, or no path"), false;
    if (kl_tracing())
        return kl_fail(KL_ERR_TRACE, "snapshot: a trace is open"), false;
    return true;
}

kl_status kl_snapshot_save(kl_snapshot *c, const char *path)
{
    if (!snapshot_ready(c, path))
        return kl_last_error_code();
    kl_file_item *item = calloc((size_t)c->n + 1, sizeof *item);
    kl_file_pair *meta = calloc((size_t)c->notes + 2, sizeof *meta);
    kl_status status = KL_OK;
    if (item && meta) {
        for (uint32_t i = 0; i < c->n; i++) {
            struct snapshot_value *h = &c->held[i];
            bool number = !h->variable && !h->tensor.id;
            if (number)
                h->number = h->get ? (uint64_t)h->get(h->of) : kl_seed_state(h->device);
            item[i] = (kl_file_item){.name = h->name, .tensor = h->tensor, .dtype = h->dtype,
                                     .data = number ? &h->number : h->variable};
        }
        meta[0] = (kl_file_pair){"format", "kiln.snapshot"};
        meta[1] = (kl_file_pair){"kiln", kl_version()};
        for (uint32_t i = 0; i < c->notes; i++)
            meta[2 + i] = (kl_file_pair){c->note[2 * i], c->note[2 * i + 1]};
        status = kl_file_write(path, KL_FILE_SAFETENSORS, c->n, item, c->notes + 2, meta);
    } else {
        status = kl_fail(KL_ERR_MEMORY, "snapshot: out of memory");
    }
    free(item);
    free(meta);
    return status;
}

/* ---- loading ---- */

static void shape_words(char *to, size_t size, kl_dtype dtype, int rank, const int64_t *dims)
{
    size_t n = (size_t)snprintf(to, size, "%s[", dtype == KL_DTYPE_COUNT ? "unknown" : kl_dtype_name(dtype));
    for (int k = 0; k < rank; k++)
        n += (size_t)snprintf(to + n, size - n, "%s%" PRId64, k ? "," : "", dims[k]);
    snprintf(to + n, size - n, "]");
}

/* Checks that the file has exactly the entries of the snapshot. */
static bool file_fits(const kl_snapshot *c, const kl_file *f, const char *path, struct file_error *why)
{
    char want[250], have[250];
    for (uint32_t i = 0; i < c->n; i++) {
        const struct snapshot_value *h = &c->held[i];
        int64_t dims[KL_MAX_RANK], at = kl_file_find(f, h->name);
        kl_file_entry e;
        if (at < 0)
            return file_fails(why, KL_ERR_IO, "%.250s has no \"%.200s\"", path, h->name);
        kl_file_get(f, (uint32_t)at, &e);
        int rank = h->tensor.id ? kl_shape(h->tensor, dims) : 0;
        kl_dtype dtype = h->tensor.id ? kl_dtype_of(h->tensor) : h->dtype;
        if (rank < 0)
            return file_fails(why, KL_ERR_HANDLE, "snapshot: the tensor \"%.200s\" was released", h->name);
        if (rank == e.rank && dtype == e.dtype && !(rank && memcmp(dims, e.dims, (size_t)rank * sizeof *dims)))
            continue;
        shape_words(want, sizeof want, dtype, rank, dims);
        shape_words(have, sizeof have, e.dtype, e.rank, e.dims);
        return file_fails(why, KL_ERR_IO, "%.250s: byte %zu, field %.100s: it is %s in the file and %s here", path,
                        e.offset, h->name, have, want);
    }
    for (uint32_t i = 0; i < kl_file_count(f) && kl_file_count(f) != c->n; i++) {
        kl_file_entry e;
        bool known = false;
        kl_file_get(f, i, &e);
        for (uint32_t k = 0; k < c->n; k++)
            known |= !strcmp(c->held[k].name, e.name);
        if (!known)
            return file_fails(why, KL_ERR_IO, "%.250s: byte %zu, field %.100s: it is in the file alone", path, e.offset,
                            e.name);
    }
    return true;
}

/* Assigns in one trace, so that either all tensors are assigned or none. */
static kl_status assign_all(kl_snapshot *c, kl_file *f)
{
    kl_status status = kl_trace_begin("snapshot_load");
    if (status != KL_OK)
        return status;
    bool any = false;
    for (uint32_t i = 0; i < c->n; i++) {
        const struct snapshot_value *h = &c->held[i];
        if (!h->tensor.id)
            continue;
        any = true;
        kl_tensor t = kl_file_tensor(f, kl_device_of(h->tensor), h->name);
        kl_status assigned = kl_assign(h->tensor, t);
        if (status == KL_OK)
            status = assigned;
    }
    if (any)
        return kl_trace_end();
    kl_trace_abandon();
    return KL_OK;
}

/* Reads the numbers of the file, before anything has changed. */
static kl_status read_numbers(kl_snapshot *c, kl_file *f)
{
    for (uint32_t i = 0; i < c->n; i++) {
        struct snapshot_value *h = &c->held[i];
        const void *data = h->tensor.id ? NULL : kl_file_data(f, h->name);
        if (!h->tensor.id && !data)
            return kl_last_error_code();
        if (data)
            memcpy(&h->number, data, sizeof h->number);
    }
    return KL_OK;
}

/* Gives the first n of what is held by functions their numbers of before back. */
static void reset_numbers(kl_snapshot *c, uint32_t n)
{
    while (n-- > 0)
        if (c->held[n].get)
            c->held[n].set(c->held[n].of, c->held[n].before);
}

/* Sets what is held by functions, which may refuse a number: all of them or none. */
static kl_status set_numbers(kl_snapshot *c, const kl_file *f, const char *path)
{
    struct file_error why;
    for (uint32_t i = 0; i < c->n; i++) {
        struct snapshot_value *h = &c->held[i];
        kl_file_entry e;
        if (!h->get)
            continue;
        h->before = h->get(h->of);
        if (h->set(h->of, (int64_t)h->number) == KL_OK)
            continue;
        kl_file_get(f, (uint32_t)kl_file_find(f, h->name), &e);
        file_fails(&why, KL_ERR_IO, "%.250s: byte %zu, field %.100s: %" PRId64 " is refused: %.300s", path, e.offset,
                 h->name, (int64_t)h->number, kl_last_error());
        reset_numbers(c, i);
        return file_error_report(NULL, &why);
    }
    return KL_OK;
}

/* What can fail comes first, and is undone where something fails after it. */
static kl_status load_file(kl_snapshot *c, kl_file *f, const char *path)
{
    struct file_error why;
    if (!file_fits(c, f, path, &why))
        return file_error_report(NULL, &why);
    kl_status status = read_numbers(c, f);
    if (status == KL_OK)
        status = set_numbers(c, f, path);
    if (status != KL_OK)
        return status;
    if ((status = assign_all(c, f)) != KL_OK) {
        file_fails(&why, status, "%s", kl_last_error());
        reset_numbers(c, c->n);
        return file_error_report(NULL, &why);
    }
    for (uint32_t i = 0; i < c->n; i++) {
        struct snapshot_value *h = &c->held[i];
        if (h->variable)
            memcpy(h->variable, &h->number, sizeof h->number);
        else if (!h->get && !h->tensor.id)
            kl_seed(h->device, h->number);
    }
    return KL_OK;
}

kl_status kl_snapshot_load(kl_snapshot *c, const char *path)
{
    if (!snapshot_ready(c, path))
        return kl_last_error_code();
    kl_file *f = kl_file_open(path);
    kl_status status = f ? load_file(c, f, path) : kl_last_error_code();
    kl_file_close(f);
    return status;
}

/* ---- files by step ---- */

/* The step in a file's name; -1: the file does not belong to `name`; *rest: the text after the ending. */
static int64_t snapshot_step(const char *file, const char *name, const char **rest)
{
    static const char ending[] = ".safetensors";
    size_t n = strlen(name);
    int64_t step = 0;
    if (strncmp(file, name, n) || file[n] != '-')
        return -1;
    const char *first = file + n + 1, *p = first;
    for (; *p >= '0' && *p <= '9' && p - first < 18; p++)
        step = step * 10 + (*p - '0');
    if (p - first < STEP_DIGITS || strncmp(p, ending, sizeof ending - 1))
        return -1;
    *rest = p + sizeof ending - 1;
    return step;
}

/* Is it a file that a killed process left while it wrote (.PID.NUMBER.part)? */
static bool is_left_over(const char *rest)
{
    long pid;
    unsigned number;
    int end = 0;
    return sscanf(rest, ".%ld.%u.part%n", &pid, &number, &end) == 2 && end && !rest[end] && pid > 0 &&
           (pid == (long)getpid() || (kill((pid_t)pid, 0) && errno == ESRCH));
}

static int highest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x > y ? -1 : x < y;
}

static void step_path(char *to, size_t size, const char *folder, const char *name, int64_t step)
{
    snprintf(to, size, "%s/%s-%0*" PRId64 ".safetensors", folder, name, STEP_DIGITS, step);
}

/* Lists the steps of the files, the highest first.  `clean`: it removes files that killed processes left.  -1: why has
 * the reason. */
static int64_t steps_in(const char *folder, const char *name, bool clean, int64_t **steps, struct file_error *why)
{
    int64_t n = 0, cap = 0;
    *steps = NULL;
    DIR *d = opendir(folder);
    if (!d && errno == ENOENT)
        return 0;
    if (!d)
        return file_fails(why, KL_ERR_IO, "cannot list %.250s: %s", folder, strerror(errno)), -1;
    for (struct dirent *e; (e = readdir(d));) {
        const char *rest;
        int64_t step = snapshot_step(e->d_name, name, &rest);
        if (step >= 0 && *rest && clean && is_left_over(rest))
            unlinkat(dirfd(d), e->d_name, 0);
        if (step < 0 || *rest)
            continue;
        if (n == cap) {
            cap = cap ? 2 * cap : 16;
            int64_t *grown = realloc(*steps, (size_t)cap * sizeof *grown);
            if (!grown) {
                closedir(d);
                return file_fails(why, KL_ERR_MEMORY, "snapshot: out of memory"), -1;
            }
            *steps = grown;
        }
        (*steps)[n++] = step;
    }
    closedir(d);
    if (n)
        qsort(*steps, (size_t)n, sizeof **steps, highest_first);
    return n;
}

static char *room_for_path(const kl_snapshot *c, const char *folder, const char *name, size_t *size)
{
    if (!snapshot_ready(c, folder && name && !strchr(name, '/') ? folder : NULL))
        return NULL;
    *size = strlen(folder) + strlen(name) + 64;
    char *path = malloc(*size);
    if (!path)
        kl_fail(KL_ERR_MEMORY, "snapshot: out of memory");
    return path;
}

kl_status kl_snapshot_save_step(kl_snapshot *c, const char *folder, const char *name, int64_t step, int keep)
{
    struct file_error why;
    size_t size;
    if (step < 0 || step >= INT64_C(1000000000000000000) || keep < 0)
        return kl_fail(KL_ERR_ARGUMENT, "snapshot_save_step: a step below 0 or above 10^18, or keep below "
                                                 "0");
    char *path = room_for_path(c, folder, name, &size);
    if (!path)
        return kl_last_error_code();
    if (mkdir(folder, 0777) && errno != EEXIST) {
        file_fails(&why, KL_ERR_IO, "cannot make the folder %.250s: %s", folder, strerror(errno));
        free(path);
        return file_error_report(NULL, &why);
    }
    step_path(path, size, folder, name, step);
    kl_status status = kl_snapshot_save(c, path);
    int64_t *steps = NULL, n = status == KL_OK ? steps_in(folder, name, true, &steps, &why) : 0;
    for (int64_t i = keep; keep && i < n; i++) {
        if (steps[i] == step)
            continue;
        step_path(path, size, folder, name, steps[i]);
        unlink(path);
    }
    free(steps);
    free(path);
    return n < 0 ? file_error_report(NULL, &why) : status;
}

kl_status kl_snapshot_load_last(kl_snapshot *c, const char *folder, const char *name, int64_t *step)
{
    struct file_error why;
    size_t size;
    if (step)
        *step = -1;
    char *path = room_for_path(c, folder, name, &size);
    if (!path)
        return kl_last_error_code();
    int64_t *steps, n = steps_in(folder, name, false, &steps, &why);
    kl_status status = n < 0 ? file_error_report(NULL, &why) : KL_OK;
    for (int64_t i = 0; i < n; i++) {
        step_path(path, size, folder, name, steps[i]);
        kl_file *f = kl_file_open(path);
        status = f ? load_file(c, f, path) : kl_last_error_code();
        kl_file_close(f);
        if (i == 0 && status != KL_OK)
            file_fails(&why, status, "%s", kl_last_error());
        if (status == KL_OK && step)
            *step = steps[i];
        if (status != KL_ERR_IO) /* of a damaged file, or one that does not fit */
            break;
    }
    free(steps);
    free(path);
    return n > 0 && status == KL_ERR_IO ? file_error_report(NULL, &why) : status;
}
