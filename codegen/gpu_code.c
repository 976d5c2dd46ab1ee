/* Reads and writes the block of bytes that a kernel's code for a GPU is. */
#include "gpu_code.h"
#include <stddef.h>
#include <string.h>

struct gpu_image_head {
    char magic[8];
    uint32_t threads, nbuf, dynamic_bytes, nview, table, none;
    char function[GPU_FUNCTION_SIZE];
    struct hash128 module;         /* as in struct gpu_code */
    uint64_t size;                 /* size of the binary; 0 if it is a module's.  Before the binary come the bytes of
                                      `local`, one per buffer, padded to a multiple of 8, and the views */
};
static const char magic[8] = {'K', 'I', 'L', 'N', 'G', 'P', 'U', '5'};

static size_t round_up_8(size_t n) { return (n + 7) & ~(size_t)7; }

static bool read_head(const struct code *c, struct gpu_image_head *h)
{
    if (c->size < sizeof *h)
        return false;
    memcpy(h, c->bytes, sizeof *h);
    return !memcmp(h->magic, magic, sizeof magic);
}

bool gpu_code_module(const struct code *c, struct hash128 *module)
{
    struct gpu_image_head h;
    *module = read_head(c, &h) ? h.module : (struct hash128){0};
    return module->lo || module->hi;
}

bool gpu_code_open(const struct code *c, const struct code *module, struct gpu_code *out, struct err *e)
{
    struct gpu_image_head h;
    bool ok = read_head(c, &h), shared = ok && (h.module.lo || h.module.hi);
    size_t before = ok ? sizeof h + round_up_8(h.nbuf) + h.nview * sizeof(struct gpu_view) : 0;
    if (!ok || c->size < before || c->size - before != h.size || !h.threads || h.threads > MAX_THREADS ||
        h.nview > h.nbuf || !memchr(h.function, 0, sizeof h.function) || (shared && !module))
        return err_set(e, KL_ERR_COMPILE, "the code of a kernel for a GPU is damaged");
    const char *at = c->bytes;
    const uint8_t *local = (const uint8_t *)at + sizeof h;
    *out = (struct gpu_code){.threads = h.threads, .nbuf = h.nbuf, .table = h.table, .dynamic_bytes = h.dynamic_bytes,
                             .local = local, .view = (const void *)(local + round_up_8(h.nbuf)), .nview = h.nview,
                             .function = at + offsetof(struct gpu_image_head, function), .module = h.module,
                             .binary = shared ? module->bytes : at + before, .size = shared ? module->size : h.size};
    return true;
}

/* View number b of the kernel. */
static struct gpu_view view_of(const struct kernel *k, const struct source_info *info, uint32_t b)
{
    const struct lbuf *l = &k->buf[b];
    struct gpu_view v = {.dtype = l->dtype, .cols = PANEL_COLUMNS, .first = l->first};
    for (uint32_t of = 0; of < l->id; of++)
        v.argument += !info->local[of];
    for (val i = 1; i < k->ninst; i++)
        if (k->inst[i].op == L_COPY_PANEL && k->inst[i].imm >> 32 == b)
            v.rows = k->buf[(uint32_t)k->inst[i].imm].panel_rows;
    memcpy(v.size, l->size, sizeof v.size);
    memcpy(v.step, l->step, sizeof v.step);
    return v;
}

bool gpu_code_join(const struct source_info *info, const struct kernel *k, const char *function,
                   const struct code *binary, struct hash128 module, struct code *out, struct err *e)
{
    uint32_t nbuf = k->nbuf, nview = 0;
    for (uint32_t b = 0; b < nbuf; b++)
        nview += k->buf[b].role == BUF_VIEW;
    struct gpu_image_head h = {.nview = nview, .threads = info->threads, .nbuf = nbuf, .table = kernel_members(k) > 1,
                               .dynamic_bytes = info->dynamic_bytes, .module = module,
                               .size = binary ? binary->size : 0};
    memcpy(h.magic, magic, sizeof magic);
    snprintf(h.function, sizeof h.function, "%s", function);
    size_t before = sizeof h + round_up_8(nbuf) + nview * sizeof(struct gpu_view);
    out->size = before + h.size;
    char *p = out->bytes = mem_alloc(out->size); /* the memory is zero */
    if (!p)
        return err_set(e, KL_ERR_MEMORY, "out of memory compiling a kernel");
    memcpy(p, &h, sizeof h);
    for (uint32_t b = 0; b < nbuf; b++)
        p[sizeof h + b] = info->local[b];
    for (uint32_t b = 0, n = 0; b < nbuf; b++)
        if (k->buf[b].role == BUF_VIEW) {
            struct gpu_view v = view_of(k, info, b);
            memcpy(p + sizeof h + round_up_8(nbuf) + n++ * sizeof v, &v, sizeof v);
        }
    if (binary)
        memcpy(p + before, binary->bytes, binary->size);
    return true;
}
