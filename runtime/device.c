/* The devices this machine has, by name.  A device is probed when somebody first asks for it, not before: the
 * probe of cpu opens the LLVM module. */
#include "runtime/runtime.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef KILN_NO_REF
#define HAS_REF false
#else
#define HAS_REF true
#endif

static const char *const name_of[DEVICE_KINDS] = {[DEVICE_REF] = "ref", [DEVICE_CPU] = "cpu"};

static pthread_once_t cpu_once = PTHREAD_ONCE_INIT;
static const struct backend *cpu_backend; /* NULL: cpu does not work, for the reason in cpu_err */
static struct caps cpu_caps;
static struct err cpu_err;
static char cpu_why[sizeof cpu_err.msg + 16];

static void probe_cpu(void)
{
    fork_watch();
    fork_hold();
    const struct backend *b = backend_get("llvm", &cpu_err);
    if (b && b->caps(&cpu_caps, &cpu_err)) cpu_backend = b;
    else snprintf(cpu_why, sizeof cpu_why, "device cpu: %s", cpu_err.msg);
    fork_release();
    if (!cpu_backend) log_put(KL_LOG_WARN, "%s", cpu_why);
}

const char *device_name(int device)
{
    return device >= 0 && device < DEVICE_KINDS ? name_of[device] : "?";
}

const struct backend *device_backend(int device, struct caps *caps)
{
    if (caps) memset(caps, 0, sizeof *caps);
    if (device != DEVICE_CPU) return NULL;
    pthread_once(&cpu_once, probe_cpu);
    if (caps) *caps = cpu_caps;
    return cpu_backend;
}

int device_find(const char *name, struct err *e)
{
    if (name && !strcmp(name, "ref")) {
        if (HAS_REF) return DEVICE_REF;
        err_set(e, KL_ERR_DEVICE, "device ref is not built into this Kiln");
        return -1;
    }
    if (name && !strcmp(name, "cpu")) {
        if (device_backend(DEVICE_CPU, NULL)) return DEVICE_CPU;
        err_set(e, KL_ERR_DEVICE, "%s; use KILN_DEVICE=ref", cpu_why);
        return -1;
    }
    err_set(e, KL_ERR_DEVICE, "unknown device \"%s\": this Kiln has ref and cpu", name ? name : "");
    return -1;
}

bool device_works(unsigned device, struct err *e)
{
    if (device < DEVICE_KINDS) return device_find(name_of[device], e) >= 0;
    return err_set(e, KL_ERR_DEVICE, "there is no device %u: this Kiln has ref and cpu", device);
}

int device_default(const char **why, struct err *e)
{
    *why = "";
    const char *env = getenv("KILN_DEVICE");
    if (env && *env) return device_find(env, e);
    if (device_backend(DEVICE_CPU, NULL)) return DEVICE_CPU;
    *why = cpu_why;
    return device_find("ref", e);
}
