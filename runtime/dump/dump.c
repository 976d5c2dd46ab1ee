/* Dumps: one stage of a graph in one form, and the files that KILN_DUMP and the API request for each program when it is
 * built: <dir>/<trace>.<stage>.<ext>, with a number behind the trace from its second program on. A file
 * that cannot be written is not an error of the run. */
#include "dump.h"
#include "ir/file_signal.h"
#include "runtime/device/devices.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- one stage ---- */

static const struct stage { const char *name, *ext; } stages[] = {
#define STAGE(name, ext, text) {#name, ext},
#include "stages.def"
};
enum { STAGES = sizeof stages / sizeof *stages };

static bool is_graph(const struct stage *s) { return !strcmp(s->ext, "kir"); }

static const struct stage *stage_by_name(const char *name)
{
    for (unsigned i = 0; i < STAGES; i++)
        if (!strcmp(name, stages[i].name))
            return &stages[i];
    return NULL;
}

bool dump_is_stage(const char *stage) { return stage_by_name(stage); }

const char *dump_stage_names(void)
{
    static const char names[] =
#define STAGE(name, ext, text) " " #name
#include "stages.def"
        ;
    return names + 1;
}

bool dump_is_graph_stage(const char *stage)
{
    const struct stage *s = stage_by_name(stage);
    return s && is_graph(s);
}

bool dump_form_of(const char *path, enum dump_form *form)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    *form = DUMP_TEXT;
    if (dot && (!strcmp(dot, ".dot") || !strcmp(dot, ".gv")))
        *form = DUMP_DOT;
    else if (dot && (!strcmp(dot, ".html") || !strcmp(dot, ".htm")))
        *form = DUMP_HTML;
    return *form != DUMP_TEXT;
}

static bool put_code(const struct program *p, int device, enum emit_kind kind, struct text *t, struct err *e)
{
    for (uint32_t i = 0; i < p->nkernel; i++) {
        struct code text = {0};
        bool ok = device_compile(device, p->kernel[i], kind, &text, e);
        text_put(t, "%s kernel %u: %s\n%.*s", kind == EMIT_LLVM ? ";" : "#", i, p->kernel[i]->name,
                 ok ? (int)text.size : 0,
                 ok ? (const char *)text.bytes : "");
        mem_free(text.bytes);
        if (!ok)
            return false;
    }
    return true;
}

/* Writes the order in which they run, then the kernels. */
static bool dump_put_kernels(const struct program *p, struct text *t, struct err *e)
{
    char *order = program_order(p);
    if (!order)
        return err_set(e, KL_ERR_MEMORY, "out of memory printing the kernels of @%s", p->g->name);
    text_put(t, "%s", p->nkernel ? order : "");
    mem_free(order);
    for (uint32_t i = 0; i < p->nkernel; i++) {
        char *s = kernel_text(p->kernel[i]);
        if (!s)
            return err_set(e, KL_ERR_MEMORY, "out of memory printing kernel %s", p->kernel[i]->name);
        text_put(t, "%s", s);
        mem_free(s);
    }
    return true;
}

static bool put_schedules(const struct program *p, bool fuse, struct text *t, struct err *e)
{
    char *s = schedules_text(p->g->name, !fuse, p->kernel, p->nkernel);
    text_put(t, "%s", s ? s : "");
    mem_free(s);
    return s || err_set(e, KL_ERR_MEMORY, "out of memory printing the schedules of @%s", p->g->name);
}

/* The stages after the passes: kernels as loop IR, their schedules, LLVM IR and assembly. */
static bool put_code_stage(struct trail *trail, const struct dump_request *r, struct text *t, struct err *e)
{
    trail_plan(trail, r);
    const struct program *p = trail->program;
    if (!trail->backend)
        return err_set(e, KL_ERR_ARGUMENT, "device %s runs graphs as they are: it has no stage %s",
                       device_name((int)graph_device(trail->graph[trail->n - 1])), r->stage);
    if (!p)
        return err_set(e, trail->why.code, "%s", trail->why.msg);
    if (r->form == DUMP_DOT)
        return !strcmp(r->stage, "scheduled") ? dot_program(p, t), true
                                              : err_set(e, KL_ERR_ARGUMENT, "stage %s is text: it has no picture",
                                                        r->stage);
    if (!strcmp(r->stage, "scheduled"))
        return dump_put_kernels(p, t, e);
    if (!strcmp(r->stage, "schedules"))
        return put_schedules(p, r->fuse, t, e);
    return put_code(p, trail->device, strcmp(r->stage, "asm") ? EMIT_LLVM : EMIT_ASM, t, e);
}

static bool put_graph_stage(const struct trail *trail, const struct dump_request *r, struct text *t, struct err *e)
{
    uint32_t i = 0;
    while (strcmp(trail->name[i], r->stage))
        i++;
    const struct graph *g = trail->graph[i];
    if (r->form == DUMP_DOT)
        return dot_graph(g, t), true;
    char *why = r->fuse && !strcmp(r->stage, "fused") ? fuse_explain(g) : NULL, *s = graph_text(g);
    text_put(t, "%s%s", why ? why : "", s ? s : "");
    mem_free(why);
    mem_free(s);
    return s || err_set(e, KL_ERR_MEMORY, "out of memory printing @%s", g->name);
}

/* The program's kernels in the language of the GPU a, or of the request's target. */
static bool print_kernels(const struct program *p, const struct accelerator *a, const struct dump_request *r, FILE *f,
                          struct err *e)
{
    const struct kernel *const *k = (const struct kernel *const *)p->kernel;
    struct array_names *names = array_names(p);
    bool ok = !names ? err_set(e, KL_ERR_MEMORY, "out of memory printing the kernels of @%s", p->g->name)
            : a ? gpu_print_for(k, names, p->nkernel, a, r->stage, f, e)
                : gpu_print(k, names, p->nkernel, r->target, r->stage, f, e);
    array_names_free(names, p->nkernel);
    return ok;
}

/* The source of kernels as the graph's device runs them.  *done: it is a GPU. */
static bool put_source(struct trail *trail, const struct dump_request *r, FILE *f, bool *done, struct err *e)
{
    trail_plan(trail, r);
    const struct accelerator *a = trail->backend ? accelerator_get(trail->device) : NULL;
    const struct program *p = trail->program;
    *done = a && !r->target;
    if (!*done)
        return true;
    return p ? print_kernels(p, a, r, f, e) : err_set(e, trail->why.code, "%s", trail->why.msg);
}

/* Kernels for a GPU, in its language, or their schedules. */
static bool put_for_gpu(struct trail *trail, const struct dump_request *r, struct text *t, FILE *f, struct err *e)
{
    bool done = false;
    if (!r->target && r->form == DUMP_TEXT && (!put_source(trail, r, f, &done, e) || done))
        return done;
    struct caps caps;
    bool known = gpu_caps(r->target, &caps, e);
    caps.graph_order = option_graph_order();
    struct program *p = known ? dump_plan(trail, &caps, r->fuse, e) : NULL;
    bool ok = p && (r->form == DUMP_TEXT || err_set(e, KL_ERR_ARGUMENT,
                                                    "kernels for a GPU are text: they have no picture"));
    if (ok && !strcmp(r->stage, "schedules"))
        ok = put_schedules(p, r->fuse, t, e);
    else if (ok)
        ok = print_kernels(p, NULL, r, f, e);
    program_free(p);
    return ok;
}

bool dump_write(const struct graph *captured, const struct dump_request *r, FILE *f, struct err *e)
{
    struct trail trail;
    struct text t = {0};
    bool html = r->form == DUMP_HTML, gpu = !html && (r->target || !strcmp(r->stage, "source"));
    bool ok = trail_make(&trail, captured, r, html, e);
    if (ok && html) {
        trail_plan(&trail, r);
        html_page(&trail, captured, r, &t);
    } else if (ok && dump_is_graph_stage(r->stage)) {
        ok = put_graph_stage(&trail, r, &t, e);
    } else if (ok) {
        ok = gpu ? put_for_gpu(&trail, r, &t, f, e) : put_code_stage(&trail, r, &t, e);
    }
    trail_free(&trail);
    if (ok && t.failed)
        ok = err_set(e, KL_ERR_MEMORY, "out of memory dumping @%s", captured->name);
    if (ok && t.len && fwrite(t.s, 1, t.len, f) != t.len)
        ok = err_set(e, KL_ERR_IO, "cannot write the dump: %s", strerror(errno));
    mem_free(t.s);
    return ok;
}

bool dump_to_file(const struct graph *captured, const struct dump_request *r, const char *path, struct err *e)
{
    struct whole_file w;
    FILE *f = whole_file_open(&w, path);
    bool ok = !f || dump_write(captured, r, f, e);
    return (whole_file_close(&w) || err_set(e, KL_ERR_IO, "%.800s: %s", path, strerror(errno))) && ok;
}

/* ---- files for programs when they are built ---- */

/* The number of programs of each name that were dumped; never freed. */
struct dumped_name {
    struct dumped_name *next;
    atomic_uint programs;
    char trace[];
};
static _Atomic(struct dumped_name *) dumped_names;

/* From 1: which program of its name a new dump is; 0: out of memory. */
static unsigned dump_number(const char *trace)
{
    struct dumped_name *first = atomic_load(&dumped_names), *own = NULL;
    for (;;) {
        struct dumped_name *n = first;
        while (n && strcmp(n->trace, trace))
            n = n->next;
        if (n) {
            mem_free(own);
            return atomic_fetch_add(&n->programs, 1) + 1;
        }
        size_t bytes = strlen(trace) + 1;
        if (!own && !(own = mem_alloc(sizeof *own + bytes)))
            return 0;
        memcpy(own->trace, trace, bytes);
        own->next = first;
        if (atomic_compare_exchange_strong(&dumped_names, &first, own))
            own = NULL;
    }
}

struct dump {
    char dir[1024];
    char trace[80];         /* the name in file names: with the number from the second program of a name on */
    const char *wanted;     /* stages and forms, comma-separated; NULL: all stages as text */
    struct graph *captured; /* for forms that run the passes on the graph again; or NULL */
};

static _Thread_local char *requested; /* by dump_next_to, owned; NULL: none */

void dump_next_to(const char *dir)
{
    mem_free(requested);
    requested = dir && *dir ? mem_text(dir) : NULL;
}

struct dump *dump_begin(const char *trace)
{
    const char *wanted = getenv("KILN_DUMP"), *dir = getenv("KILN_DUMP_DIR");
    if (!requested && !(wanted && *wanted))
        return NULL;
    struct dump *d = mem_alloc(sizeof *d);
    if (!d)
        return NULL;
    d->wanted = requested ? NULL : wanted;
    snprintf(d->dir, sizeof d->dir, "%s", requested ? requested : dir && *dir ? dir : ".");
    dump_next_to(NULL);
    mkdir(d->dir, 0777); /* it may exist already */
    snprintf(d->trace, 64, "%s", *trace ? trace : "graph");
    for (char *p = d->trace; *p; p++) /* the name becomes part of a file name */
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", *p))
            *p = '_';
    unsigned number = d->wanted ? dump_number(d->trace) : 1; /* kl_dump_next asks for one program, in its own folder */
    if (number > 1)
        snprintf(d->trace + strlen(d->trace), sizeof d->trace - strlen(d->trace), ".%u", number);
    return d;
}

void dump_again(const struct dump *d)
{
    if (d && !d->wanted)
        dump_next_to(d->dir);
}

static bool dump_listed(const struct dump *d, const char *word) { return word_listed(d->wanted, word); }

static bool dump_wants_stage(const struct dump *d, const char *stage)
{
    return !d->wanted || dump_listed(d, "all") || dump_listed(d, stage);
}

static void dump_write_file(const struct dump *d, const char *stage, const char *ext, const struct text *t)
{
    char path[sizeof d->dir + sizeof d->trace + 48];
    snprintf(path, sizeof path, "%s/%s%s%s.%s", d->dir, d->trace, *stage ? "." : "", stage, ext);
    struct whole_file w;
    FILE *f = whole_file_open(&w, path);
    if (f && t->len)
        fwrite(t->s, 1, t->len, f);
    whole_file_close(&w);
}

void dump_graph(void *dump, const char *stage, const struct graph *g)
{
    struct dump *d = dump;
    if (!strcmp(stage, "captured") && (dump_listed(d, "html") || dump_wants_stage(d, "source")))
        d->captured = graph_clone(g);
    if (!dump_wants_stage(d, stage))
        return;
    struct text t = {0}, dot = {0};
    struct err e = {0};
    struct trail one = {.name = {stage}, .graph = {(struct graph *)g}, .n = 1};
    put_graph_stage(&one, &(struct dump_request){.stage = stage, .fuse = option_fuse()}, &t, &e);
    dump_write_file(d, stage, "kir", &t);
    if (dump_listed(d, "dot")) {
        dot_graph(g, &dot);
        dump_write_file(d, stage, "dot", &dot);
    }
    mem_free(t.s);
    mem_free(dot.s);
}

/* Writes a form of the program that is made from its captured graph. */
static void write_form(const struct dump *d, const char *name, const struct dump_request *r)
{
    char path[sizeof d->dir + sizeof d->trace + 48];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s.%s", d->dir, d->trace, name);
    if (d->captured)
        dump_to_file(d->captured, r, path, &e);
}

static int device_of_backend(const struct program *p, const struct backend *b)
{
    int d = 0;
    while (d < MAX_DEVICES - 1 && !(p->devices >> d & 1 && device_backend(d, NULL) == b))
        d++;
    return d;
}

void dump_program(struct dump *d, const struct program *p, const struct backend *b, bool fuse)
{
    struct err e = {0};
    for (unsigned i = 0; i < STAGES; i++) {
        const char *stage = stages[i].name;
        struct text t = {0};
        if (is_graph(&stages[i]) || !dump_wants_stage(d, stage))
            continue;
        if (!strcmp(stage, "source")) {
            write_form(d, "source.cu", &(struct dump_request){.stage = stage, .device = -1, .fuse = fuse});
            continue;
        }
        bool always = !strcmp(stage, "scheduled") || !strcmp(stage, "schedules");
        if (!strcmp(stage, "scheduled"))
            dump_put_kernels(p, &t, &e);
        else if (always)
            put_schedules(p, fuse, &t, &e);
        else if (b && !put_code(p, device_of_backend(p, b), strcmp(stage, "asm") ? EMIT_LLVM : EMIT_ASM, &t, &e))
            text_put(&t, "%s\n", e.msg);
        if (t.len || always)
            dump_write_file(d, stage, stages[i].ext, &t);
        mem_free(t.s);
        if (!strcmp(stage, "scheduled") && dump_listed(d, "dot")) {
            struct text dot = {0};
            dot_program(p, &dot);
            dump_write_file(d, stage, "dot", &dot);
            mem_free(dot.s);
        }
    }
    if (dump_listed(d, "html"))
        write_form(d, "html", &(struct dump_request){.form = DUMP_HTML, .device = -1, .fuse = fuse});
}

void dump_end(struct dump *d)
{
    if (d)
        graph_free(d->captured);
    mem_free(d);
}
