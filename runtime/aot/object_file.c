/* Programs compiled ahead of time: a file of one or several programs, an object or C, with its C header. */
#include "object.h"
#include "ir/file_signal.h"
#include "ir/text/text.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

struct object_part {
    char prefix[OBJECT_NAME];
    struct program *p;
    unsigned char *image;
    uint32_t image_bytes;
};

struct object_file {
    const struct backend *backend;
    struct caps target;
    bool source;
    struct object_part *part;
    uint32_t n, cap;
    struct text header, functions; /* functions: of C */
    unsigned char *weights;
    size_t weights_bytes;
};

struct object_file *object_file_new(const char *cpu, bool source, struct err *e)
{
    struct object_file *f = mem_alloc(sizeof *f);
    if (!f)
        return err_set(e, KL_ERR_MEMORY, "no memory for an object"), NULL;
    *f = (struct object_file){.source = source, .backend = backend_get(source ? "c" : "llvm", e)};
    if (f->backend && f->backend->target(cpu ? cpu : "baseline", &f->target, e))
        return f;
    object_file_free(f);
    return NULL;
}

void object_file_free(struct object_file *f)
{
    for (uint32_t i = 0; f && i < f->n; i++) {
        program_free(f->part[i].p);
        mem_free(f->part[i].image);
    }
    if (f) {
        mem_free(f->part);
        mem_free(f->header.s);
        mem_free(f->functions.s);
        mem_free(f->weights);
    }
    mem_free(f);
}

static const char *object_processor(const struct object_file *f) { return *f->target.arch ? f->target.arch
    : f->target.name; }

/* Adds the values for the weights file, after those of earlier programs. */
static bool add_weights(struct object_file *f, const struct graph *g, const struct object_options *o, struct err *e)
{
    if (!o->state || !o->weights_separate)
        return true;
    size_t end = object_weight_at(g, o, g->state.n);
    unsigned char *all = mem_alloc(end + 1);
    if (!all)
        return err_set(e, KL_ERR_MEMORY, "no memory for the weights of @%s", g->name);
    memset(all, 0, end + 1); /* padding to the next multiple of 64 is zero */
    if (f->weights)
        memcpy(all, f->weights, f->weights_bytes);
    if (end > o->weights_at)
        object_weights_header(g, o, all + o->weights_at);
    for (uint32_t i = 0; i < g->state.n; i++)
        if (o->state[i])
            memcpy(all + object_weight_at(g, o, i), o->state[i], object_state_bytes(g, i));
    mem_free(f->weights);
    f->weights = all;
    f->weights_bytes = end;
    return true;
}

bool object_file_add(struct object_file *f, const struct graph *g, const struct object_options *options, struct err *e)
{
    struct object_options o = *options;
    struct object_part part = {0};
    o.source = f->source;
    o.weights_at = f->weights_bytes;
    if (!object_prefix(o.prefix ? o.prefix : g->name, o.prefix != NULL, part.prefix, e))
        return false;
    for (uint32_t i = 0; i < f->n; i++)
        if (!strcmp(part.prefix, f->part[i].prefix))
            return err_set(e, KL_ERR_ARGUMENT, "two programs of a file are called '%s'", part.prefix);
    part.p = object_program(g, &o, &f->target, &part.image, &part.image_bytes, e);
    if (!part.p)
        return false;
    char *header = object_header(g, &o, part.prefix, object_processor(f));
    bool ok = header && mem_reserve(&f->part, &f->cap, f->n + 1, sizeof part);
    if (ok) {
        text_put(&f->header, "%s%s", f->n ? "\n" : "", header);
        if (f->source)
            object_functions(&f->functions, g, &o, part.prefix);
    }
    mem_free(header);
    ok = ok && !f->header.failed && !f->functions.failed;
    if (!ok)
        err_set(e, KL_ERR_MEMORY, "no memory for the header of @%s", g->name);
    else
        ok = add_weights(f, g, &o, e);
    if (ok) {
        f->part[f->n++] = part;
        return true;
    }
    program_free(part.p);
    mem_free(part.image);
    return false;
}

/* Joins the C file: declarations, code of the C backend, functions. */
static bool join_source(struct object_file *f, struct code *code, struct err *e)
{
    struct text t = {0};
    text_put(&t, "%s\n%.*s", f->header.s, (int)code->size, (const char *)code->bytes);
    text_put(&t, "%s", f->functions.s);
    mem_free(code->bytes);
    *code = (struct code){.bytes = t.s, .size = t.len};
    return !t.failed || err_set(e, KL_ERR_MEMORY, "out of memory writing the C");
}

/* Sets the parts' numbers of kernels, for which `number` has room; how many there are. */
static uint32_t number_kernels(struct object_parts *part, uint32_t n, uint32_t *number)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; number += part[i++].nkernel) {
        part[i].number = number;
        for (uint32_t k = 0; k < part[i].nkernel; k++) {
            number[k] = count;
            for (uint32_t j = 0; j <= i && number[k] == count; j++) /* an equal one in front */
                for (uint32_t l = 0; l < (j < i ? part[j].nkernel : k) && number[k] == count; l++)
                    if (kernel_same(part[j].kernel[l], part[i].kernel[k]))
                        number[k] = part[j].number[l];
            count += number[k] == count;
        }
    }
    return count;
}

static void object_describe(const struct object_file *f, struct object_made *out)
{
    struct text t = {0};
    for (uint32_t i = 0; i < f->n; i++) {
        int64_t bytes = program_arenas(f->part[i].p);
        out->workspace_bytes = bytes > out->workspace_bytes ? bytes : out->workspace_bytes;
        text_put(&t, "%s%s_run", i ? ", " : "", f->part[i].prefix);
    }
    snprintf(out->functions, sizeof out->functions, "%s", t.s ? t.s : "");
    snprintf(out->cpu, sizeof out->cpu, "%s", object_processor(f));
    mem_free(t.s);
}

bool object_file_finish(struct object_file *f, struct object_made *out, struct err *e)
{
    uint32_t all = 0, kernels = 0;
    for (uint32_t i = 0; i < f->n; i++)
        all += f->part[i].p->nkernel;
    struct object_parts *parts = mem_alloc((f->n + 1) * sizeof *parts);
    uint32_t *number = mem_alloc((all + 1) * sizeof *number);
    *out = (struct object_made){0};
    if (!parts || !number) {
        mem_free(parts);
        mem_free(number);
        return err_set(e, KL_ERR_MEMORY, "no memory for an object");
    }
    for (uint32_t i = 0; i < f->n; i++) {
        const struct object_part *x = &f->part[i];
        parts[i] = (struct object_parts){x->prefix, (const struct kernel *const *)x->p->kernel, x->p->nkernel,
                                         NULL, x->image, x->image_bytes};
    }
    kernels = number_kernels(parts, f->n, number);
    bool ok = !f->n ? err_set(e, KL_ERR_ARGUMENT, "no program was added")
              : !f->header.s ? err_set(e, KL_ERR_ARGUMENT, "its files were made before")
                             : f->backend->object(parts, f->n, &f->target, &out->code, e);
    mem_free(parts);
    mem_free(number);
    ok = ok && (!f->source || join_source(f, &out->code, e));
    if (!ok) {
        object_made_free(out);
        return false;
    }
    object_describe(f, out);
    out->kernels = kernels;
    out->header = f->header.s;
    out->weights = f->weights;
    out->weights_bytes = f->weights_bytes;
    f->header = (struct text){0};
    f->weights = NULL;
    return true;
}

bool object_make(const struct graph *captured, const struct object_options *o, struct object_made *out, struct err *e)
{
    struct object_file *f = object_file_new(o->cpu, o->source, e);
    *out = (struct object_made){0};
    bool ok = f && object_file_add(f, captured, o, e) && object_file_finish(f, out, e);
    object_file_free(f);
    return ok;
}

void object_made_free(struct object_made *made)
{
    mem_free(made->code.bytes);
    mem_free(made->header);
    mem_free(made->weights);
    *made = (struct object_made){0};
}

static bool write_whole(const char *path, const void *bytes, size_t size, struct err *e)
{
    struct whole_file w;
    FILE *f = whole_file_open(&w, path);
    if (f)
        fwrite(bytes, 1, size, f);
    if (whole_file_close(&w))
        return true;
    err_set(e, KL_ERR_IO, "%s: %s", path, strerror(errno));
    if (f)
        remove(path);
    return false;
}

bool object_write(const struct object_made *made, const char *object_path, const char *header_path,
                  const char *weights_path, struct err *e)
{
    if (!write_whole(object_path, made->code.bytes, made->code.size, e))
        return false;
    if (!header_path || write_whole(header_path, made->header, strlen(made->header), e)) {
        if (!made->weights || write_whole(weights_path, made->weights, made->weights_bytes, e))
            return true;
        if (header_path)
            remove(header_path);
    }
    remove(object_path);
    return false;
}
