/* The code generator of devices whose plug-in compiles by itself: the code is the kernel's text. */
#include "gpu_code.h"
#include "ir/text/text.h"
#include "plugin_sources.h"
#include <string.h>

static bool plugin_text(const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e)
{
    char *text = kernel_text(k);
    struct source_info info = {.threads = 1, .local = mem_alloc(k->nbuf + 1)};
    *out = (struct code){0};
    bool ok = (text && info.local) || err_set(e, KL_ERR_MEMORY, "out of memory compiling a kernel");
    struct code binary = {text, ok ? strlen(text) + 1 : 0};
    if (ok && kind == EMIT_OBJECT)
        ok = gpu_code_join(&info, k, "kernel", &binary, (struct hash128){0}, out, e);
    else if (ok) /* there is no other stage: a plug-in gets the kernel's text */
        *out = (struct code){text, binary.size - 1};
    if (!ok || kind == EMIT_OBJECT)
        mem_free(text);
    mem_free(info.local);
    return ok;
}

static bool plugin_for(const struct kernel *k, const struct caps *target, enum emit_kind kind, struct code *out,
                       struct err *e)
{
    (void)target;
    return plugin_text(k, kind, out, e);
}

static const char *plugin_version(void) { return "plug-in, sources " PLUGIN_SOURCES; }

const struct backend backend_plugin = {.name = "plug-in", .abi = KERNEL_ABI, .version = plugin_version,
                                       .compile = plugin_text, .compile_for = plugin_for};
