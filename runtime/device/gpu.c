/* Kernels for GPUs up to their text, without a device. */
#include "codegen/gpu/compilers/compile.h"
#include "codegen/gpu/source.h"
#include "runtime/runtime.h"
#include <string.h>

static const char *language(const char *target) { return target ? target : "cuda"; }

bool gpu_caps(const char *target, struct caps *out, struct err *e)
{
    const struct dialect *d = dialect_find(language(target), e);
    if (d) {
        dialect_caps(d, out);
        dialect_architecture(d, NULL, out);
    }
    return d;
}

static bool print_assembly(const struct kernel *k, const struct dialect *d, FILE *f, struct err *e)
{
    const struct gpu_compiler *c = gpu_compiler_find(d->name, e);
    struct text source = {0};
    struct code text = {0};
    bool ok = c && source_file(k, d, &source, e) && c->compile(source.s, c->arch[0], GPU_ASSEMBLY, &text, e);
    if (ok)
        fwrite(text.bytes, 1, strnlen(text.bytes, text.size), f);
    mem_free(text.bytes);
    mem_free(source.s);
    return ok;
}

/* In languages whose functions have names, the prelude is printed once; in the others each kernel is a file of its
 * own. */
static bool print_source(const struct kernel *k, const struct dialect *d, uint32_t number, FILE *f, struct err *e)
{
    struct text t = {0};
    char entry[32];
    snprintf(entry, sizeof entry, "kernel_%u", number);
    if (d->table || !number)
        dialect_prelude(d, NULL, &t);
    text_put(&t, "\n// %s\n", k->name);
    bool ok = source_kernel(k, d, entry, &t, NULL, e);
    if (ok)
        fputs(t.s, f);
    mem_free(t.s);
    return ok;
}

bool gpu_print(const struct kernel *const *k, uint32_t n, const char *target, const char *stage, FILE *f, struct err *e)
{
    const struct dialect *d = dialect_find(language(target), e);
    if (!d)
        return false;
    if (!strcmp(stage, "llvm"))
        return err_set(e, KL_ERR_ARGUMENT, "kernels for %s have no stage llvm: there are scheduled, source and asm",
                       d->name);
    bool ok = true;
    for (uint32_t i = 0; ok && i < n; i++)
        ok = !strcmp(stage, "scheduled") ? kernel_print(k[i], f) ||
            err_set(e, KL_ERR_IO, "cannot write kernel %s", k[i]->name)
           : !strcmp(stage, "source") ? print_source(k[i], d, i, f, e) : print_assembly(k[i], d, f, e);
    return ok;
}
