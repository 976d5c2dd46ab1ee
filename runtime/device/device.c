/* The devices of this machine, by name.  A device is opened when it is used for the first time, and not before. */
#define _GNU_SOURCE /* pthread_getattr_np */
#include "plugin.h"
#include "runtime/runtime.h"
#include "runtime/thread.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef KILN_NO_REF
#define HAS_REF false
#else
#define HAS_REF true
#endif

/* Each kind has DEVICES_A_KIND numbers.  The name of a kind without a number is its first device. */
#define NAMES(first, name)                                                                                       \
    [first] = name ":0", [first + 1] = name ":1", [first + 2] = name ":2", [first + 3] = name ":3",              \
    [first + 4] = name ":4", [first + 5] = name ":5", [first + 6] = name ":6", [first + 7] = name ":7"
static const char *const name_of[DEVICE_END] = {[DEVICE_REF] = "ref", [DEVICE_CPU] = "cpu", [DEVICE_META] = "meta",
                                                NAMES(DEVICE_CUDA, "cuda"),
                                                NAMES(DEVICE_HIP, "hip"), NAMES(DEVICE_VULKAN, "vulkan")};
static const char known[] =
    "ref, cpu, cuda, hip and vulkan, with a number where there are several of these three (vulkan:1), "
                            "meta, which knows shapes only, and those of plug-ins (KILN_PLUGINS)";

static pthread_once_t cpu_once = PTHREAD_ONCE_INIT;
static const struct backend *cpu_backend; /* NULL: cpu does not work; cpu_err has the reason */
static struct caps cpu_caps;
static struct err cpu_err;
static char cpu_why[sizeof cpu_err.msg + 16];

static void probe_cpu(void)
{
    fork_watch();
    fork_hold();
    const struct backend *b = cpu_generator(&cpu_err);
    if (b && b->caps(&cpu_caps, &cpu_err)) cpu_backend = b;
    else snprintf(cpu_why, sizeof cpu_why, "device cpu: %s", cpu_err.msg);
    fork_release();
    if (!cpu_backend) log_put(KL_LOG_WARN, "%s", cpu_why);
}

/* NULL: no device has this number. */
static const char *find_name(int device)
{
    if (device < 0 || device >= DEVICE_END) return NULL;
    unsigned in_plugins = (unsigned)(device - DEVICE_PLUGIN);
    return device < DEVICE_PLUGIN ? name_of[device] : plugin_device_name(in_plugins / DEVICES_A_KIND,
                                                                         in_plugins % DEVICES_A_KIND);
}

const char *device_name(int device)
{
    const char *name = find_name(device);
    return name ? name : "?";
}

const struct backend *device_backend(int device, struct caps *caps)
{
    if (caps) memset(caps, 0, sizeof *caps);
    struct accelerator *a = accelerator_get(device);
    if (a && caps) *caps = *accelerator_caps(a);
    if (a) return accelerator_backend(a);
    if (device != DEVICE_CPU) return NULL;
    pthread_once(&cpu_once, probe_cpu);
    if (caps) *caps = cpu_caps;
    return cpu_backend;
}

/* ---- compiling, on a stack that is large enough ---- */

struct compilation {
    int device;
    const struct kernel *k;
    enum emit_kind kind;
    struct code *out;
    struct err *e;
    bool ok;
};

static void *compile_kernel(void *compilation)
{
    struct compilation *c = compilation;
    const struct accelerator *a = accelerator_get(c->device);
    const struct backend *b = device_backend(c->device, NULL);
    c->ok = a ? b->compile_for(c->k, accelerator_caps(a), c->kind, c->out, c->e)
              : b->compile(c->k, c->kind, c->out, c->e);
    return NULL;
}

/* Bytes of this thread's stack below this function's frame; SIZE_MAX: not known. */
static size_t stack_left(void)
{
    pthread_attr_t attr;
    void *low = NULL;
    size_t size = 0;
    char here;
    if (pthread_getattr_np(pthread_self(), &attr)) return SIZE_MAX;
    bool found = !pthread_attr_getstack(&attr, &low, &size);
    pthread_attr_destroy(&attr);
    uintptr_t at = (uintptr_t)&here, begin = (uintptr_t)low;
    return found && at > begin && at - begin <= size ? at - begin : SIZE_MAX; /* a fiber has a stack of its own */
}

bool device_compile(int device, const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e)
{
    struct compilation c = {device, k, kind, out, e, false};
    pthread_t thread;
    if (stack_left() < THREAD_MIN_STACK / 2 && thread_start(&thread, NULL, compile_kernel, &c))
        pthread_join(thread, NULL);
    else
        compile_kernel(&c);
    return c.ok;
}

/* Device ref follows cpu: the same orders of sums, the same kernels in what is shown of them. */
static const uint64_t hosts = UINT64_C(1) << DEVICE_REF | UINT64_C(1) << DEVICE_CPU;

static bool multiplies_bf16(const struct graph *g)
{
    bool found = false;
    for (ref r = 1; r < g->nnode && !found; r++) /* a product's gradients are products, so they need no separate
                                                    check */
        found = op_is_product(g->node[r].op) && g->node[r].dtype == KL_BF16;
    for (uint32_t i = 0; i < g->nregion && !found; i++) found = multiplies_bf16(g->region[i]);
    return found;
}

uint64_t device_bf16_dot2(const struct graph *g)
{
    struct caps caps;
    if (!(graph_devices(g) & hosts) || !multiplies_bf16(g)) return 0;
    device_backend(DEVICE_CPU, &caps);
    return caps.dot2 ? hosts : 0;
}

uint64_t device_bf16_tiles(const struct graph *g)
{
    struct caps caps;
    if (!(graph_devices(g) & hosts) || !multiplies_bf16(g)) return 0;
    device_backend(DEVICE_CPU, &caps);
    return caps.bf16_tiles ? hosts : 0;
}

static bool has_attention(const struct graph *g)
{
    bool found = false;
    for (ref r = 1; r < g->nnode && !found; r++) found = op_is_attention(g->node[r].op);
    for (uint32_t i = 0; i < g->nregion && !found; i++) found = has_attention(g->region[i]);
    return found;
}

static bool has_windows(const struct graph *g)
{
    bool found = false;
    for (ref r = 1; r < g->nnode && !found; r++) found = g->node[r].op == OP_window;
    for (uint32_t i = 0; i < g->nregion && !found; i++) found = has_windows(g->region[i]);
    return found;
}

static bool has_products(const struct graph *g)
{
    bool found = false;
    for (ref r = 1; r < g->nnode && !found; r++) found = op_is_product(g->node[r].op);
    for (uint32_t i = 0; i < g->nregion && !found; i++) found = has_products(g->region[i]);
    return found;
}

struct processor device_processor(const struct graph *g)
{
    struct caps caps;
    if (!(graph_devices(g) & hosts)) return (struct processor){0};
    bool attention = has_attention(g), products = has_products(g);
    if (!attention && !products && !has_windows(g)) return (struct processor){.devices = hosts};
    device_backend(DEVICE_CPU, &caps);
    return (struct processor){hosts, attention ? caps.threads : 0, lower_reads_windows(&caps),
                              products ? caps.l1_bytes : 0};
}

uint64_t device_gpus(const struct graph *g)
{
    uint64_t devices = graph_devices(g) & ~hosts, gpus = 0;
    for (int d = 0; devices >> d; d++) {
        struct caps caps;
        if (devices >> d & 1 && d != DEVICE_META && device_backend(d, &caps) && caps.is_gpu) gpus |= UINT64_C(1) << d;
    }
    return gpus;
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
    if (name && !strcmp(name, "meta")) return DEVICE_META;
    const char *plugins;
    plugins_from_environment(&plugins);
    for (int d = DEVICE_HOSTS; name && d < DEVICE_END; d++) {
        const char *own = find_name(d);
        size_t kind = own ? strcspn(own, ":") : 0;
        if (!kind || (strcmp(name, own) && (d % DEVICES_A_KIND || strlen(name) != kind ||
                                            strncmp(name, own, kind)))) continue;
        struct err why = {0};
        if (accelerator_open(d, &why)) return d;
        bool named = !strncmp(why.msg, "device ", 7); /* the driver's message already names the device */
        err_set(e, why.code, "%s%s%s%s", named ? "" : "device ", named ? "" : own, named ? "" : ": ", why.msg);
        return -1;
    }
    if (name && !strcmp(name, "metal")) err_set(e, KL_ERR_DEVICE,
                                                "device metal: it is Apple's, and this Kiln is built without it");
    else err_set(e, KL_ERR_DEVICE, "unknown device \"%s\": there are %s%s%s", name ? name : "", known,
                 *plugins ? "; " : "", plugins);
    return -1;
}

bool device_works(unsigned device, struct err *e)
{
    const char *name = device < DEVICE_END ? find_name((int)device) : NULL;
    if (device == DEVICE_META) return err_set(e, KL_ERR_DEVICE, "device meta has no data, so nothing runs on it");
    if (name) return accelerator_get((int)device) || device_find(name, e) >= 0;
    return err_set(e, KL_ERR_DEVICE, "there is no device %u: there are %s", device, known);
}

uint32_t device_dtypes(int device)
{
    const struct accelerator *a = accelerator_get(device);
    return a ? accelerator_dtypes(a) : (UINT32_C(1) << KL_DTYPE_COUNT) - 1;
}

/* Each form and the dtypes of its factors; nothing without matrix units. */
static void describe_units(const struct caps *caps, char *out, size_t size)
{
    int n = 0;
    for (unsigned i = 0; i < MMA_UNITS && caps->mma[i].subgroup; i++) {
        const struct mma_caps *u = &caps->mma[i];
        n += snprintf(out + n, size - (size_t)n, "%s %ux%ux%u of", i ? "," : ", tensor cores", u->m, u->n, u->k);
        for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++)
            if (u->dtypes >> dtype & 1)
                n += snprintf(out + n, size - (size_t)n, " %s", dtype_name(dtype));
    }
}

static void list_one(int device, void (*line)(void *ctx, const char *name, bool works, const char *text), void *ctx)
{
    struct err e = {0};
    struct caps caps;
    char text[sizeof caps.name + sizeof caps.features + 128];
    bool works = device_find(device_name(device), &e) >= 0;
    if (works) device_backend(device, &caps);
    int n = works ? snprintf(text, sizeof text, "%s %s", device == DEVICE_REF ? "the interpreter" : caps.name,
                             device >= DEVICE_HOSTS ? caps.features : "") : 0;
    if (works && device >= DEVICE_HOSTS)
        describe_units(&caps, text + n, sizeof text - (size_t)n);
    const char *why = strncmp(e.msg, "device ", 7) ? e.msg : strstr(e.msg, ": ") ? strstr(e.msg, ": ") + 2 : e.msg;
    line(ctx, device_name(device), works, works ? text : why);
}

void device_list(void (*line)(void *ctx, const char *name, bool works, const char *text), void *ctx)
{
    struct err e = {0};
    const char *plugins;
    plugins_from_environment(&plugins);
    for (int d = 0; d < DEVICE_END; d++) {
        unsigned n = driver_of(d) ? accelerator_count(d, &e) : 1;
        if (find_name(d) && (unsigned)(d < DEVICE_HOSTS ? 0 : d % DEVICES_A_KIND) < (n ? n : 1)) list_one(d, line, ctx);
    }
    if (*plugins) line(ctx, "plug-in", false, plugins);
}

/* ---- kinds ---- */

static const struct { const char *name; int first; } kinds[KL_DEVICE_KINDS] = {
    [KL_DEVICE_REF] = {"ref", DEVICE_REF},    [KL_DEVICE_CPU] = {"cpu", DEVICE_CPU},
    [KL_DEVICE_CUDA] = {"cuda", DEVICE_CUDA}, [KL_DEVICE_HIP] = {"hip", DEVICE_HIP},
    [KL_DEVICE_VULKAN] = {"vulkan", DEVICE_VULKAN}, [KL_DEVICE_METAL] = {"metal", -1},
    [KL_DEVICE_PLUGIN1] = {"plug-in 1", DEVICE_PLUGIN}, [KL_DEVICE_PLUGIN2] =
        {"plug-in 2", DEVICE_PLUGIN + DEVICES_A_KIND},
    [KL_DEVICE_PLUGIN3] = {"plug-in 3", DEVICE_PLUGIN + 2 * DEVICES_A_KIND}, [KL_DEVICE_META] = {"meta", DEVICE_META}};

const char *device_kind_name(unsigned kind) { return kind < KL_DEVICE_KINDS ? kinds[kind].name : "unknown"; }

unsigned device_kind(int device)
{
    unsigned kind = 0;
    for (unsigned k = 0; k < KL_DEVICE_KINDS; k++)
        if (kinds[k].first <= device && kinds[k].first >= kinds[kind].first) kind = k;
    return kind;
}

int device_number(unsigned kind, unsigned index, struct err *e)
{
    if (kind >= KL_DEVICE_KINDS) {
        err_set(e, KL_ERR_DEVICE, "unknown kind of device %u", kind);
        return -1;
    }
    unsigned max = kinds[kind].first < 0 ? 0 : kinds[kind].first < DEVICE_CUDA ? 1 : DEVICES_A_KIND;
    if (!max) return device_find(kinds[kind].name, e);
    const char *name = index < max ? find_name(kinds[kind].first + (int)index) : NULL;
    if (name) return device_find(name, e);
    if (index < max) err_set(e, KL_ERR_DEVICE, "device %s:%u: no such plug-in is loaded", kinds[kind].name, index);
    else err_set(e, KL_ERR_DEVICE, "device %s:%u: there are at most %u of its kind", kinds[kind].name, index, max);
    return -1;
}

unsigned device_kind_count(unsigned kind, struct err *e)
{
    unsigned n = 0;
    if (kind < KL_DEVICE_KINDS && kinds[kind].first >= DEVICE_CUDA && find_name(kinds[kind].first)) {
        n = accelerator_count(kinds[kind].first, e);
        return n < DEVICES_A_KIND ? n : DEVICES_A_KIND;
    }
    return device_number(kind, 0, e) >= 0;
}

/* ---- the default ---- */

static const unsigned preferred[] = {KL_DEVICE_CUDA, KL_DEVICE_HIP, KL_DEVICE_CPU, KL_DEVICE_REF};
static pthread_once_t default_once = PTHREAD_ONCE_INIT;
static int default_device = -1;
static char default_why[1200]; /* why the devices before the default one do not work */
static struct err default_err;

static void choose_default(void)
{
    size_t n = 0;
    for (unsigned i = 0; i < sizeof preferred / sizeof *preferred && default_device < 0; i++) {
        struct err e = {0};
        default_device = device_number(preferred[i], 0, &e);
        if (default_device >= 0) break;
        default_err = e;
        int more = snprintf(default_why + n, sizeof default_why - n, "%s%s", n ? "; " : "", e.msg);
        n = n + (size_t)more < sizeof default_why ? n + (size_t)more : sizeof default_why - 1;
    }
}

int device_default(const char **why, struct err *e)
{
    *why = "";
    const char *env = getenv("KILN_DEVICE");
    if (env && *env) return device_find(env, e);
    pthread_once(&default_once, choose_default);
    *why = default_why;
    if (default_device < 0) *e = default_err;
    return default_device;
}
