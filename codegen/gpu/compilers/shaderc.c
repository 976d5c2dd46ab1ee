/* GLSL to SPIR-V.  Finds shaderc, which a library next to this one contains. */
#include "codegen/gpu/shaderc/shaderc.h"
#include "compile.h"
#include <pthread.h>
#include <string.h>

static const struct shaderc_module *module;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct err failure;

static void open_module(void)
{
    const struct shaderc_module *(*get)(void);
    if (!library_entry("shaderc", "libkiln-shaderc.so", "kiln_shaderc", (void **)&get, &failure))
        return;
    const struct shaderc_module *m = get();
    if (m->abi == SHADERC_ABI)
        module = m;
    else
        err_set(&failure, KL_ERR_DEVICE, "shaderc: libkiln-shaderc.so is of another version of Kiln");
}

static bool is_open(struct err *e)
{
    pthread_once(&once, open_module);
    return module || err_set(e, failure.code, "%s", failure.msg);
}

static bool shaderc_version(char *out, size_t size, struct err *e)
{
    if (!is_open(e))
        return false;
    module->version(out, size);
    return true;
}

static bool shaderc_compile(const char *source, const char *arch, enum gpu_output what, struct code *out, struct err *e)
{
    bool ok = false;
    const char *bytes, *log;
    *out = (struct code){0};
    if (!is_open(e))
        return false;
    if (strcmp(arch, "vulkan1.2"))
        return err_set(e, KL_ERR_ARGUMENT, "shaderc compiles for vulkan1.2, not for %s", arch);
    void *result = module->compile(source, strlen(source), what == GPU_ASSEMBLY, &ok, &bytes, &out->size, &log);
    if (!result)
        return err_set(e, KL_ERR_MEMORY, "out of memory compiling with shaderc");
    if (!ok)
        gpu_refused("shaderc", log, e);
    else if (!(out->bytes = mem_alloc(out->size)))
        ok = err_set(e, KL_ERR_MEMORY, "out of memory compiling with shaderc");
    else
        memcpy(out->bytes, bytes, out->size);
    module->release(result);
    if (!ok)
        *out = (struct code){0};
    return ok;
}

static const char *const architectures[] = {"vulkan1.2", NULL};
extern const struct gpu_compiler compiler_glsl;
const struct gpu_compiler compiler_glsl = {"glsl", architectures, shaderc_version, shaderc_compile};
