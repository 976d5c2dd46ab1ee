/* Plug-ins: loads and checks them, and adapts them to struct driver. */
#include "plugin.h"
#include "runtime/runtime.h"
#include <dlfcn.h>
#include <kiln/plugin.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LENGTH = 15 };

struct plugin {
    const kl_plugin *fn;
    char name[DEVICES_A_KIND][NAME_MAX_LENGTH + 3];
};
static struct plugin plugin[PLUGINS_MAX];
static atomic_uint loaded;                 /* number of plug-ins that are loaded completely */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

/* ---- what Kiln does for them ---- */

struct kl_plugin_kernel {
    struct kernels parsed;                 /* contains one kernel */
    char *text;
};

static bool plugin_failed(const kl_plugin_error *from, struct err *e)
{
    return err_set(e, from->code ? from->code : KL_ERR_DEVICE, "%.*s", (int)sizeof from->message - 1, from->message);
}

static const char *host_text(const kl_plugin_kernel *k) { return k->text; }

static bool host_run(const kl_plugin_kernel *k, void *const *buffer, const uint64_t *slots, int64_t begin, int64_t end,
                     kl_plugin_error *out)
{
    struct err e;
    e.code = KL_OK;
    if (kernel_interp(k->parsed.v[0], buffer, slots, begin, end, &e))
        return true;
    out->code = e.code;
    snprintf(out->message, sizeof out->message, "%.*s", (int)sizeof out->message - 1, e.msg);
    return false;
}

static const kl_plugin_host host = {.version = KL_PLUGIN_VERSION, .text = host_text, .run = host_run};

/* ---- a plug-in as a driver ---- */

struct driver_device { const kl_plugin *fn; kl_plugin_device *own; };
struct driver_kernel { kl_plugin_kernel kernel; void *loaded; };

#define CALL(d, function, ...)                                                                     \
    kl_plugin_error why = {0};                                                                     \
    return (d)->fn->function((d)->own, __VA_ARGS__, &why) || plugin_failed(&why, e)

static unsigned plugin_count(const struct plugin *p, struct err *e)
{
    kl_plugin_error why = {0};
    unsigned n = p->fn->count(&why);
    if (!n)
        plugin_failed(&why, e);
    return n < DEVICES_A_KIND ? n : DEVICES_A_KIND;
}

/* The name and the dtypes are part of the keys of kernels on disk.  The planner plans as for a processor with vectors
 * of 16 bytes. */
static void plugin_describe(const kl_plugin_about *about, struct caps *caps)
{
    *caps = (struct caps){.vector_bytes = 16, .vector_regs = 32, .threads = 1,
                          .l1_bytes = 32 << 10, .l2_bytes = 1 << 20, .l3_bytes = 32 << 20};
    snprintf(caps->name, sizeof caps->name, "%.*s", (int)sizeof about->name - 1, about->name);
    size_t n = 0;
    for (unsigned t = 0; t < KL_DTYPE_COUNT; t++)
        if (about->dtypes >> t & 1)
            n += (size_t)snprintf(caps->features + n, sizeof caps->features - n, "+%s", dtype_name(t));
}

static struct driver_device *plugin_open_device(const struct plugin *p, unsigned index, struct caps *caps,
                                                struct err *e)
{
    kl_plugin_error why = {0};
    kl_plugin_about about = {0};
    unsigned n = plugin_count(p, e);
    struct driver_device *d = index < n ? mem_alloc(sizeof *d) : NULL;
    if (index >= n && n)
        err_set(e, KL_ERR_DEVICE, "there is no device %s, there are %u", p->name[index], n);
    else if (!d && n)
        err_set(e, KL_ERR_MEMORY, "no memory for device %s", p->name[index]);
    if (!d)
        return NULL;
    d->fn = p->fn;
    d->own = p->fn->open(index, &about, &why);
    if (d->own && about.dtypes >> KL_F32 & 1) {
        plugin_describe(&about, caps);
        return d;
    }
    if (d->own)
        err_set(e, KL_ERR_DEVICE, "it does not compute with f32");
    else
        plugin_failed(&why, e);
    mem_free(d);
    return NULL;
}

static bool plugin_alloc(struct driver_device *d, size_t bytes, void **address, struct err *e)
{
    CALL(d, alloc, bytes, address);
}
static void plugin_release(struct driver_device *d, void *address) { d->fn->release(d->own, address); }

static void kernel_end(struct driver_kernel *k)
{
    kernels_free(&k->kernel.parsed);
    mem_free(k->kernel.text);
    mem_free(k);
}

/* The code is the kernel's text (backend_plugin), with its terminating zero. */
static struct driver_kernel *plugin_load_kernel(struct driver_device *d, const struct gpu_code *code, struct err *e)
{
    kl_plugin_error why = {0};
    struct driver_kernel *k = mem_alloc(sizeof *k);
    if (k)
        k->kernel.text = mem_alloc(code->size);
    if (!k || !k->kernel.text) {
        mem_free(k);
        err_set(e, KL_ERR_MEMORY, "no memory to load a kernel");
        return NULL;
    }
    memcpy(k->kernel.text, code->binary, code->size);
    bool ok = kernel_parse(k->kernel.text, strlen(k->kernel.text), "kernel", &lower_families, &k->kernel.parsed, e);
    if (ok && d->fn->load && !d->fn->load(d->own, &k->kernel, &k->loaded, &why))
        ok = plugin_failed(&why, e);
    if (ok)
        return k;
    kernel_end(k);
    return NULL;
}

static void plugin_unload(struct driver_device *d, struct driver_kernel *k)
{
    kl_plugin_error ignored = {0};
    if (d->fn->unload) {
        d->fn->finish(d->own, &ignored); /* the kernel may be in use */
        d->fn->unload(d->own, k->loaded);
    }
    kernel_end(k);
}

static bool plugin_launch(struct driver_device *d, const struct launch *l, struct err *e)
{
    const kl_plugin_launch own = {.kernel = &l->kernel->kernel, .loaded = l->kernel->loaded, .buffer = l->buffer,
                                  .count = l->n,
                                  .slots = l->slots, .begin = l->begin, .end = l->end};
    CALL(d, launch, &own);
}

static bool plugin_copy(struct driver_device *d, void *to, const void *from, size_t bytes, struct err *e)
{
    CALL(d, copy, to, from, bytes);
}

static bool plugin_upload(struct driver_device *d, void *to, const void *data, size_t bytes, struct err *e)
{
    CALL(d, upload, to, data, bytes);
}

static bool plugin_download(struct driver_device *d, void *data, const void *from, size_t bytes, struct err *e)
{
    CALL(d, download, data, from, bytes);
}

static bool plugin_peer_copy(struct driver_device *d, void *to, struct driver_device *source, const void *from,
                             size_t bytes,
                 struct err *e)
{
    CALL(d, peer, to, source->own, from, bytes);
}

static bool plugin_finish(struct driver_device *d, struct err *e)
{
    kl_plugin_error why = {0};
    return d->fn->finish(d->own, &why) || plugin_failed(&why, e);
}

static void plugin_drop(struct driver_device *d)
{
    if (d->fn->drop)
        d->fn->drop(d->own);
}

#define DRIVER(i)                                                                           \
    static unsigned count_##i(struct err *e) { return plugin_count(&plugin[i], e); }        \
    static struct driver_device *open_##i(unsigned index, struct caps *caps, struct err *e) \
    {                                                                                       \
        return plugin_open_device(&plugin[i], index, caps, e);                              \
    }
DRIVER(0)
DRIVER(1)
DRIVER(2)
#define AS_DRIVER(i)                                                                                        \
    {.name = plugin[i].name[0], .dialect = "glsl", .backend = &backend_plugin, .serial = true,              \
     .count = count_##i, .open = open_##i,                                                                  \
     .alloc = plugin_alloc, .release = plugin_release, .load = plugin_load_kernel, .unload = plugin_unload, \
     .launch = plugin_launch, .copy = plugin_copy, .upload = plugin_upload,                                 \
     .download = plugin_download, .finish = plugin_finish, .drop = plugin_drop}
static struct driver driver[PLUGINS_MAX] = {AS_DRIVER(0), AS_DRIVER(1), AS_DRIVER(2)};

const struct driver *plugin_driver(unsigned i)
{
    return i < atomic_load_explicit(&loaded, memory_order_acquire) ? &driver[i] : NULL;
}

const char *plugin_device_name(unsigned i, unsigned index)
{
    return i < atomic_load_explicit(&loaded, memory_order_acquire) ? plugin[i].name[index] : NULL;
}

/* ---- loading ---- */

static bool good_name(const char *s)
{
    size_t n = s ? strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789") : 0;
    return n && n <= NAME_MAX_LENGTH && !s[n] && *s > '9';
}

/* Does another kind of device have this name? */
static bool name_taken(const char *name)
{
    size_t n = strlen(name);
    for (int d = 0; d < DEVICE_END; d++) {
        const char *other = device_name(d);
        if (strcspn(other, ":") == n && !strncmp(other, name, n))
            return true;
    }
    return false;
}

static const char *missing_function(const kl_plugin *p)
{
    return !p->count ? "count" : !p->open ? "open" : !p->alloc ? "alloc" : !p->release ? "release" : !p->launch
        ? "launch"
           : !p->copy ? "copy" : !p->upload ? "upload" : !p->download ? "download" : !p->finish ? "finish"
           : p->load && !p->unload ? "unload" : NULL;
}

static bool is_sound(const kl_plugin *p, const char *path, struct err *e)
{
    if (p->version != KL_PLUGIN_VERSION)
        return err_set(e, KL_ERR_DEVICE, "plugin_load: %s was built for version %u of plug-ins, this Kiln has %u", path,
                       p->version,
                       KL_PLUGIN_VERSION);
    if (!good_name(p->name))
        return err_set(e, KL_ERR_DEVICE,
                       "plugin_load: %s calls its devices \"%.20s\": it takes lower-case letters and digits, a "
                       "letter first, at most %d", path, p->name ? p->name : "", NAME_MAX_LENGTH);
    const char *missing = missing_function(p);
    return !missing || err_set(e, KL_ERR_DEVICE, "plugin_load: %s has no function %s", path, missing);
}

static bool plugin_add(const kl_plugin *p, const char *path, struct err *e)
{
    unsigned n = atomic_load(&loaded);
    for (unsigned i = 0; i < n; i++)
        if (plugin[i].fn == p)
            return true;
    if (!is_sound(p, path, e))
        return false;
    if (name_taken(p->name))
        return err_set(e, KL_ERR_DEVICE, "plugin_load: %s: there are devices called %s already", path, p->name);
    if (n == PLUGINS_MAX)
        return err_set(e, KL_ERR_DEVICE, "plugin_load: %s: %d plug-ins are loaded, and no more can be", path,
                       PLUGINS_MAX);
    plugin[n].fn = p;
    driver[n].peer = p->peer ? plugin_peer_copy : NULL;
    for (int i = 0; i < DEVICES_A_KIND; i++)
        snprintf(plugin[n].name[i], sizeof plugin[n].name[i], "%s:%d", p->name, i);
    atomic_store_explicit(&loaded, n + 1, memory_order_release);
    return true;
}

/* The caller holds the lock.  A shared object that is rejected is closed; one that is used is never closed. */
static bool load_one(const char *path, struct err *e)
{
    const kl_plugin *(*entry)(const kl_plugin_host *);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return err_set(e, KL_ERR_DEVICE, "plugin_load: %s", dlerror());
    *(void **)&entry = dlsym(so, "kl_plugin_entry");
    const kl_plugin *p = entry ? entry(&host) : NULL;
    bool ok = p ? plugin_add(p, path, e)
                : err_set(e, KL_ERR_DEVICE,
                          entry ? "plugin_load: %s has no use for this Kiln, of version %u of plug-ins"
                                                  : "plugin_load: %s is no plug-in: it has no function kl_plugin_entry",
                          path, KL_PLUGIN_VERSION);
    if (!ok)
        dlclose(so);
    return ok;
}

static bool load_locked(const char *path, struct err *e)
{
    fork_watch();
    fork_hold();
    pthread_mutex_lock(&loading);
    bool ok = load_one(path, e);
    pthread_mutex_unlock(&loading);
    fork_release();
    return ok;
}

static char environment_why[512]; /* the first error of loading */

static void load_environment(void)
{
    const char *s = getenv("KILN_PLUGINS");
    while (s && *s) {
        struct err e = {0};
        char path[4096];
        size_t n = strcspn(s, ":");
        snprintf(path, sizeof path, "%.*s", (int)n, s);
        if (n && !(n < sizeof path ? load_locked(path, &e) : err_set(&e, KL_ERR_DEVICE,
                                                                     "plugin_load: a path is too long"))) {
            log_put(KL_LOG_WARN, "KILN_PLUGINS: %s", e.msg);
            if (!*environment_why)
                snprintf(environment_why, sizeof environment_why, "KILN_PLUGINS: %.480s", e.msg);
        }
        s += n + (s[n] == ':');
    }
}

void plugins_from_environment(const char **why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_environment);
    if (why)
        *why = environment_why;
}

bool plugin_load(const char *path, struct err *e)
{
    plugins_from_environment(NULL);
    return path ? load_locked(path, e) : err_set(e, KL_ERR_ARGUMENT, "plugin_load: path is NULL");
}
