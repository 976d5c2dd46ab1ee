/* HIP C through hiprtc, which is a library of its own since HIP 5.6 and in the HIP runtime's before; or $KILN_HIP_COMPILER. */
#include "compile.h"
#include <pthread.h>
#include <stdlib.h>

typedef struct program *program;
typedef int result; /* 0: success */

static struct {
    result (*version)(int *major, int *minor);
    result (*create)(program *p, const char *source, const char *name, int headers, const char *const *header, const char *const *include);
    result (*compile)(program p, int n, const char *const *option);
    result (*log_size)(program p, size_t *size), (*log)(program p, char *out);
    result (*code_size)(program p, size_t *size), (*code)(program p, char *out);
    result (*destroy)(program *p);
} hiprtc;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct err failure;

static void open_library(void)
{
    static const char *const name[] = {"hiprtcVersion", "hiprtcCreateProgram", "hiprtcCompileProgram", "hiprtcGetProgramLogSize",
                                       "hiprtcGetProgramLog", "hiprtcGetCodeSize", "hiprtcGetCode", "hiprtcDestroyProgram"};
    void *const fn[] = {&hiprtc.version, &hiprtc.create, &hiprtc.compile, &hiprtc.log_size, &hiprtc.log,
                        &hiprtc.code_size, &hiprtc.code, &hiprtc.destroy};
    static const char *const usual[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so", NULL};
    const char *const given[] = {getenv("KILN_HIP_COMPILER"), NULL}, *const *library = given[0] ? given : usual;
    gpu_library("hiprtc", library, name, fn, sizeof fn / sizeof *fn, &failure);
}

static bool is_open(struct err *e)
{
    pthread_once(&once, open_library);
    return !failure.code || err_set(e, failure.code, "%s", failure.msg);
}

static bool version(char *out, size_t size, struct err *e)
{
    int major = 0, minor = 0;
    if (!is_open(e))
        return false;
    if (hiprtc.version(&major, &minor))
        return err_set(e, KL_ERR_DEVICE, "hiprtc does not say its version");
    snprintf(out, size, "hiprtc %d.%d", major, minor);
    return true;
}

static bool get(program p, struct code *out, struct err *e)
{
    if (hiprtc.code_size(p, &out->size) || !out->size)
        return err_set(e, KL_ERR_COMPILE, "hiprtc gives no code");
    if (!(out->bytes = mem_alloc(out->size)))
        return err_set(e, KL_ERR_MEMORY, "out of memory compiling with hiprtc");
    return !hiprtc.code(p, out->bytes) || err_set(e, KL_ERR_COMPILE, "hiprtc gives no code");
}

static bool refused(program p, struct err *e)
{
    size_t size = 0;
    char *log = hiprtc.log_size(p, &size) ? NULL : mem_alloc(size + 1);
    bool ok = gpu_refused("hiprtc", log && !hiprtc.log(p, log) ? log : "it does not say why", e);
    mem_free(log);
    return ok;
}

/* One rounding each: nothing contracted, flushed or approximated. */
static bool compile(const char *source, const char *arch, enum gpu_output what, struct code *out, struct err *e)
{
    char target[64];
    const char *const option[] = {target, "-ffp-contract=off", "-fno-fast-math", "-fhip-fp32-correctly-rounded-divide-sqrt", "-std=c++17"};
    program p = NULL;
    *out = (struct code){0};
    if (!is_open(e))
        return false;
    if (what != GPU_BINARY)
        return err_set(e, KL_ERR_ARGUMENT, "hiprtc gives binaries only, no assembly");
    snprintf(target, sizeof target, "--gpu-architecture=%s", arch);
    bool ok = !hiprtc.create(&p, source, "kiln.hip", 0, NULL, NULL) || err_set(e, KL_ERR_MEMORY, "hiprtc makes no program");
    if (ok && hiprtc.compile(p, sizeof option / sizeof *option, option))
        ok = refused(p, e);
    else if (ok)
        ok = get(p, out, e);
    if (p)
        hiprtc.destroy(&p);
    if (!ok) {
        mem_free(out->bytes);
        *out = (struct code){0};
    }
    return ok;
}

static const char *const architectures[] = {"gfx90a", "gfx1030", NULL};
extern const struct gpu_compiler compiler_hip;
const struct gpu_compiler compiler_hip = {"hip", architectures, version, compile};
