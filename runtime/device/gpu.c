/* Opens libkiln-gpu.so, the code generators of GPUs (codegen/gpu/): when a device with a driver is opened, or kernels
 * are made for a GPU without a device. */
#include "codegen/gpu_codegen.h"
#include "devices.h"
#include "driver.h"
#include <pthread.h>

static const struct gpu_codegen *opened; /* NULL: it cannot be opened; failure has the reason */
static struct err failure;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_gpu_codegen(void)
{
    static const char what[] = "code generators of GPUs", library[] = "libkiln-gpu.so";
    const struct gpu_codegen *(*get)(void);
    if (!library_entry(what, library, "kiln_gpu_codegen", (void **)&get, &failure))
        return;
    const struct gpu_codegen *g = get();
    if (g->abi != GPU_CODEGEN_ABI)
        err_set(&failure, KL_ERR_DEVICE, "%s: %s is of another version of Kiln", what, library);
    else if (mem_used()->alloc && !g->memory(mem_used()))
        err_set(&failure, KL_ERR_INTERNAL, "%s: %s has taken memory before it was opened", what, library);
    else
        opened = g;
}

const struct gpu_codegen *gpu_codegen(struct err *e)
{
    pthread_once(&once, open_gpu_codegen);
    if (!opened)
        err_set(e, failure.code, "%s", failure.msg);
    return opened;
}

bool gpu_caps(const char *target, struct caps *out, struct err *e)
{
    const struct gpu_codegen *g = gpu_codegen(e);
    return g && g->target_caps(target, out, e);
}

bool gpu_print(const struct kernel *const *k, const struct array_names *names, uint32_t n, const char *target,
               const char *stage, FILE *f, struct err *e)
{
    const struct gpu_codegen *g = gpu_codegen(e);
    return g && g->target_print(k, names, n, target, stage, f, e);
}

bool gpu_print_for(const struct kernel *const *k, const struct array_names *names, uint32_t n,
                   const struct accelerator *a, const char *stage, FILE *f, struct err *e)
{
    const struct gpu_codegen *g = gpu_codegen(e);
    return g && g->device_print(k, names, n, accelerator_driver(a)->dialect, accelerator_caps(a)->features, stage, f,
                                e);
}
