/* kiln kernel: checks, prints, compiles and runs kernels in text form. */
#include "cli.h"
#include "ir/text/text.h"
#include "runtime/runtime.h"
#include <string.h>

struct buffer_binding { const char *name, *value; };
struct buffer_bindings { struct buffer_binding *v; unsigned n; }; /* room for one per argument */

struct kernel_job {
    const char *file, *stage, *device, *target;
    bool run, bf16_bits;
    struct buffer_bindings in, out, slots;
    const struct kernel *k;
    char **memory;            /* per buffer, to free */
    void **buf;               /* the same, aligned */
    bool *given;              /* per buffer: an input's array was read */
    uint64_t *slot;
    uint32_t nslot;
};

static void kernel_take_binding(struct cli_args *a, void *bindings)
{
    struct buffer_bindings *list = bindings;
    const char *v = cli_value(a), *eq = v ? strchr(v, '=') : NULL;
    if (!v)
        return;
    if (!eq || eq == v || !eq[1])
        a->failed = cli_error("%s needs NAME=VALUE, not '%s'", a->option, v) != CLI_OK;
    else
        list->v[list->n++] = (struct buffer_binding){v, eq + 1};
}

static int parse_args(struct kernel_job *j, int argc, char **argv)
{
    const struct cli_option options[] = {
        {"--stage", .value = &j->stage},
        {"--device", .value = &j->device},
        {"--target", .value = &j->target},
        {"--run", .flag = &j->run, .set = true},
        {"--bf16-bits", .flag = &j->bf16_bits, .set = true},
        {"--input", .take = kernel_take_binding, .ctx = &j->in},
        {"--output", .take = kernel_take_binding, .ctx = &j->out},
        {"--slot", .take = kernel_take_binding, .ctx = &j->slots},
        {.value = &j->file, .needed = true},
        {0},
    };
    size_t room = (size_t)(argc + 1) * sizeof *j->in.v;
    bool ok = (j->in.v = mem_alloc(room)) && (j->out.v = mem_alloc(room)) && (j->slots.v = mem_alloc(room));
    if (!ok)
        return cli_error("out of memory");
    return cli_parse(argc, argv, options, "kernel needs a file") ? CLI_OK : CLI_USAGE;
}

/* ---- printing ---- */

static bool print_stage(const struct kernel *k, const char *stage, const char *target, const char *device)
{
    struct err e = {0};
    struct code text = {0};
    if (!stage || !strcmp(stage, "scheduled"))
        return kernel_print(k, stdout) || (cli_error("cannot write the kernel"), false);
    if (strcmp(stage, "source") && strcmp(stage, "llvm") && strcmp(stage, "asm"))
        return cli_error("no stage of a kernel is called '%s': there are scheduled, source, llvm and asm", stage),
            false;
    if (target || (!strcmp(stage, "source") && !device))
        return gpu_print(&k, NULL, 1, target, stage, stdout, &e) || (cli_error("%s", e.msg), false);
    int d = cli_device(device);
    if (d >= 0 && !strcmp(stage, "source"))
        return (accelerator_get(d) ? gpu_print_for(&k, NULL, 1, accelerator_get(d), stage, stdout, &e)
                                   : gpu_print(&k, NULL, 1, NULL, stage, stdout, &e)) ||
               (cli_error("%s", e.msg), false);
    const struct backend *b = d < 0 ? NULL : device_backend(d, NULL);
    if (d >= 0 && !b)
        return cli_error("device %s runs kernels as they are: it has no stage %s", device_name(d), stage), false;
    if (!b)
        return false;
    bool ok = device_compile(d, k, strcmp(stage, "asm") ? EMIT_LLVM : EMIT_ASM, &text, &e);
    if (ok)
        fwrite(text.bytes, 1, text.size, stdout);
    else
        cli_error("%s", e.msg);
    mem_free(text.bytes);
    return ok;
}

/* ---- running ---- */

/* The buffer "bN=" names, of the role; nbuf: none, and reported. */
static uint32_t find_buffer(const struct kernel_job *j, const struct buffer_binding *b, enum buf_role role)
{
    char name[16];
    size_t n = (size_t)(b->value - 1 - b->name);
    for (uint32_t i = 0; i < j->k->nbuf; i++) {
        snprintf(name, sizeof name, "b%u", i);
        if (j->k->buf[i].role == role && strlen(name) == n && !memcmp(name, b->name, n))
            return i;
    }
    cli_error("kernel %s has no %s buffer '%.*s'", j->k->name, role == BUF_IN ? "input" : "output", (int)n, b->name);
    return j->k->nbuf;
}

static bool load_input(struct kernel_job *j, const struct buffer_binding *b)
{
    struct cli_array a;
    char *bytes;
    uint32_t i = find_buffer(j, b, BUF_IN);
    if (i == j->k->nbuf || !cli_read_array(b->value, &bytes, &a))
        return false;
    bool ok = true;
    const struct lbuf *l = &j->k->buf[i];
    if ((a.dtype != l->dtype && !(j->bf16_bits && l->dtype == KL_BF16 && a.dtype == KL_U16)) ||
               shape_count(&a.shape) != l->count) {
        cli_error("%s: holds %lld elements of %s where b%u has %lld of %s", b->value, (long long)shape_count(&a.shape),
                  dtype_name(a.dtype), i, (long long)l->count, dtype_name(l->dtype));
        ok = false;
    } else if (a.bytes) {
        memcpy(j->buf[i], a.data, a.bytes);
    }
    mem_free(bytes);
    return ok && (j->given[i] = true);
}

static bool make_buffers(struct kernel_job *j)
{
    const struct kernel *k = j->k;
    j->memory = mem_alloc((k->nbuf + 1) * sizeof *j->memory);
    j->buf = mem_alloc((k->nbuf + 1) * sizeof *j->buf);
    j->given = mem_alloc(k->nbuf + 1);
    if (!j->memory || !j->buf || !j->given)
        return cli_error("out of memory"), false;
    for (uint32_t i = 0; i < k->nbuf; i++) {
        size_t bytes = (size_t)k->buf[i].count * dtype_size(k->buf[i].dtype);
        j->memory[i] = mem_alloc(bytes + 64);
        if (!j->memory[i])
            return cli_error("no memory for the %zu bytes of b%u", bytes, i), false;
        j->buf[i] = j->memory[i] + (64 - (uintptr_t)j->memory[i] % 64) % 64;
    }
    return true;
}

/* Slot values are literals of the dtype the kernel reads them as. */
static bool set_slots(struct kernel_job *j)
{
    const struct kernel *k = j->k;
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op == L_SLOT && slot_number(&k->inst[v]) >= j->nslot)
            j->nslot = slot_number(&k->inst[v]) + 1;
    j->slot = mem_alloc(((size_t)j->nslot + 1) * sizeof *j->slot);
    if (!j->slot)
        return cli_error("no memory for %u slots", j->nslot), false;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        const char *why = "has no value: give --slot";
        char name[24];
        bool ok = i->op != L_SLOT;
        snprintf(name, sizeof name, "%u=", slot_number(i));
        for (unsigned s = 0; !ok && s < j->slots.n; s++)
            if (!strncmp(j->slots.v[s].name, name, strlen(name)))
                ok = literal_parse(i->dtype, j->slots.v[s].value, strlen(j->slots.v[s].value), &j->slot[slot_number(i)],
                                   &why);
        if (!ok)
            return cli_error("slot %u of %s: %s", slot_number(i), dtype_name(i->dtype), why), false;
    }
    return true;
}

static bool run_compiled(const struct kernel_job *j, const struct backend *b, struct err *e)
{
    struct code code = {0};
    struct loaded l = {0};
    bool ok = b->compile(j->k, EMIT_OBJECT, &code, e) && object_load(&code, &l, e);
    if (ok)
        l.fn(j->buf, j->slot, 0, j->k->extent);
    object_unload(&l);
    mem_free(code.bytes);
    return ok;
}

static bool give_output(const struct kernel_job *j, uint32_t i)
{
    const struct lbuf *l = &j->k->buf[i];
    struct shape s = shape_make(1, (int64_t[]){l->count});
    struct text t = {0};
    char name[16];
    bool written = false, ok = true;
    snprintf(name, sizeof name, "b%u=", i);
    for (unsigned o = 0; o < j->out.n; o++)
        if (!strncmp(j->out.v[o].name, name, strlen(name))) {
            ok &= cli_write_array(j->out.v[o].value, l->dtype, &s, j->buf[i], j->bf16_bits);
            written = true;
        }
    if (written)
        return ok;
    text_put(&t, "b%u", i);
    cli_show_array(&t, l->dtype, &s, j->buf[i]);
    return ok;
}

static bool cli_kernel_run_kernel(struct kernel_job *j)
{
    struct err e = {0};
    int d = cli_device(j->device);
    const struct backend *b = d < 0 ? NULL : device_backend(d, NULL);
    bool ok = d >= 0 && make_buffers(j) && set_slots(j);
    for (unsigned i = 0; ok && i < j->in.n; i++)
        ok = load_input(j, &j->in.v[i]);
    for (unsigned i = 0; ok && i < j->out.n; i++)
        ok = find_buffer(j, &j->out.v[i], BUF_OUT) < j->k->nbuf;
    for (uint32_t i = 0; ok && i < j->k->nbuf; i++)
        if (j->k->buf[i].role == BUF_IN && !j->given[i])
            ok = (cli_error("b%u has no value: give --input b%u=...", i, i), false);
    if (!ok)
        return false;
    if (!(b ? run_compiled(j, b, &e) : kernel_interp(j->k, j->buf, j->slot, 0, j->k->extent, &e)))
        return cli_error("%s", e.msg), false;
    for (uint32_t i = 0; i < j->k->nbuf; i++)
        if (j->k->buf[i].role == BUF_OUT)
            ok &= give_output(j, i);
    return ok;
}

static bool do_kernels(struct kernel_job *j)
{
    struct kernels k = {0};
    struct err e = {0};
    size_t len;
    char *s = cli_read(j->file, &len);
    bool ok = s && kernel_parse(s, len, strcmp(j->file, "-") ? j->file : "stdin", &lower_families, &k, &e);
    if (s && !ok)
        fprintf(stderr, "%s\n", e.msg);
    if (ok && j->run && k.n != 1)
        ok = (cli_error("%s has %u kernels: --run takes one", j->file, k.n), false);
    if (ok && j->run) {
        j->k = k.v[0];
        ok = cli_kernel_run_kernel(j);
        for (uint32_t i = 0; j->memory && i < j->k->nbuf; i++)
            mem_free(j->memory[i]);
        mem_free(j->memory);
        mem_free(j->buf);
        mem_free(j->given);
        mem_free(j->slot);
    } else {
        for (uint32_t i = 0; ok && i < k.n; i++)
            ok = print_stage(k.v[i], j->stage, j->target, j->device);
    }
    mem_free(s);
    kernels_free(&k);
    return ok;
}

int cli_kernel(int argc, char **argv)
{
    struct kernel_job j = {0};
    int status = parse_args(&j, argc, argv);
    if (!status)
        status = do_kernels(&j) ? CLI_OK : CLI_FAILED;
    mem_free(j.in.v);
    mem_free(j.out.v);
    mem_free(j.slots.v);
    return status;
}
