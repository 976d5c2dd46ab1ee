/* HIP C through hiprtc.  Its library is $KILN_HIP_COMPILER, or a separate library since HIP 5.6, and the HIP runtime
 * before. */
#include "rtc.h"
#include <stdlib.h>

static void hiprtc_open_library(void);
/* Each operation is rounded once: no contraction, no flushing of subnormal numbers, no approximations. */
static const char *const option[] = {"-ffp-contract=off", "-fno-fast-math", "-fhip-fp32-correctly-rounded-divide-sqrt",
                                     "-std=c++17", NULL};
static struct rtc hiprtc = {.name = "hiprtc", .file = "kiln.hip", .option = option, .open = hiprtc_open_library,
                            .once = PTHREAD_ONCE_INIT};

static void hiprtc_open_library(void)
{
    static const char *const name[] = {"hiprtcVersion", "hiprtcCreateProgram", "hiprtcCompileProgram",
                                       "hiprtcGetProgramLogSize",
                                       "hiprtcGetProgramLog", "hiprtcGetCodeSize", "hiprtcGetCode",
                                           "hiprtcDestroyProgram"};
    void *const fn[] = {&hiprtc.version, &hiprtc.create, &hiprtc.compile, &hiprtc.log_size, &hiprtc.log,
                        &hiprtc.binary_size, &hiprtc.binary, &hiprtc.destroy};
    static const char *const usual[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libamdhip64.so.6", "libamdhip64.so.5",
                                        "libamdhip64.so", NULL};
    const char *const given[] = {getenv("KILN_HIP_COMPILER"), NULL}, *const *library = given[0] ? given : usual;
    gpu_library(hiprtc.name, library, name, fn, sizeof fn / sizeof *fn, &hiprtc.failure);
}

static bool hiprtc_version(char *out, size_t size, struct err *e) { return rtc_version(&hiprtc, out, size, e); }

/* HIP's runtime holds a lock while it compiles, and version 5.2 crashes in a thread that waits for this lock if the
 * runtime does not know the thread.  So threads wait here. */
static bool hiprtc_compile(const char *source, const char *arch, enum gpu_output what, struct code *out, struct err *e)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one);
    bool ok = rtc_compile(&hiprtc, source, arch, what, out, e);
    pthread_mutex_unlock(&one);
    return ok;
}

static const char *const architectures[] = {"gfx90a", "gfx1030", NULL};
extern const struct gpu_compiler compiler_hip;
const struct gpu_compiler compiler_hip = {"hip", architectures, hiprtc_version, hiprtc_compile};
