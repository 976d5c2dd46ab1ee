/* CUDA and HIP: devices with a stream, their memory and their kernels. */
#include "stream.h"
#include <dlfcn.h>
#include <string.h>

/* Libraries are never closed, because drivers have threads and exit handlers. */
bool stream_library_open(const char *path, const char *const *library, const char *const *name, void *const *fn,
                         unsigned min, unsigned n, const char *hint, struct err *e)
{
    void *so = NULL;
    const char *const only[] = {path, NULL};
    if (path)
        library = only;
    for (const char *const *l = library; *l && !so; l++)
        so = dlopen(*l, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!so)
        return err_set(e, KL_ERR_DEVICE, "%s (%s)", dlerror(), hint);
    for (unsigned i = 0; i < n; i++) {
        void *f = dlsym(so, name[i]);
        if (!f && i < min)
            return err_set(e, KL_ERR_DEVICE, "the driver is too old: %s has no function %s", library[0], name[i]);
        memcpy(fn[i], &f, sizeof f);
    }
    return true;
}

/* After one of these errors a context only returns the error again; kernels that ran may have stored anything
 * anywhere. */
static bool loses_device(gpu_result r)
{
    static const int16_t lost[] = {4 /* deinitialized */,
                                   214 /* memory */,
                                   220 /* link */,
                                   226 /* contained */,
                                   700 /* illegal address */,
                                   702 /* timeout */,
                                   709 /* context destroyed */,
                                   710 /* assert */,
                                   714,
                                   715,
                                   716,
                                   717,
                                   718,
                                   719 /* launch failed */,
                                   999 /* unknown */};
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++)
        if (r == lost[i])
            return true;
    return false;
}

static bool was_lost(const struct driver_device *d, struct err *e)
{
    return err_set(e, KL_ERR_DEVICE, "device %s was lost; values on it are gone, other devices go on", d->name);
}

bool stream_ok(struct driver_device *d, gpu_result r, const char *call, struct err *e)
{
    if (!r)
        return true;
    if (r == GPU_OUT_OF_MEMORY)
        return err_set(e, KL_ERR_MEMORY, "device %s: out of memory %s", d->name, call);
    if (d->lost)
        return was_lost(d, e);
    if (!loses_device(r))
        return err_set(e, KL_ERR_DEVICE, "device %s: %s gives %s", d->name, call, d->l->error(r));
    d->lost = true;
    return err_set(e, KL_ERR_DEVICE, "device %s was lost: %s gives %s; values on it are gone, other devices go on",
                   d->name, call,
                   d->l->error(r));
}

/* ---- a device ---- */

static void close_device(struct driver_device *d, void (*last)(struct driver_device *d))
{
    if (!d->l->enter(d)) {
        for (int i = 0; i < HALVES; i++)
            if (d->half[i].done)
                d->l->event_free(d->half[i].done);
        const gpu_event others[] = {d->here, d->uploaded, d->timer[0], d->timer[1]};
        for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
            if (others[i])
                d->l->event_free(others[i]);
        stream_flights_free(d);
        if (d->copies)
            d->l->stream_free(d->copies);
        if (d->stream)
            d->l->stream_free(d->stream);
        d->l->leave(d);
    }
    last(d);
    mem_free(d);
}

static bool make_stream(struct driver_device *d, struct err *e)
{
    gpu_result r = d->l->enter(d);
    if (r)
        return stream_ok(d, r, "making its context current", e);
    r = d->l->stream_new(&d->stream, GPU_NON_BLOCKING);
    r = r ? r : d->l->stream_new(&d->copies, GPU_NON_BLOCKING);
    r = r ? r : d->l->event_new(&d->here, GPU_NO_TIMING);
    r = r ? r : d->l->event_new(&d->uploaded, GPU_NO_TIMING);
    for (int i = 0; i < 2; i++)
        r = r ? r : d->l->event_new(&d->timer[i], 0);
    for (int i = 0; i < FLIGHTS; i++)
        r = r ? r : d->l->event_new(&d->flight[i].done, GPU_NO_TIMING);
    for (int i = 0; i < HALVES; i++)
        r = r ? r : d->l->event_new(&d->half[i].done, GPU_NO_TIMING);
    d->l->leave(d);
    return stream_ok(d, r, "making a stream", e);
}

struct driver_device *stream_open(const struct stream_library *l, unsigned index, struct caps *caps,
                                  bool (*first)(struct driver_device *d, struct caps *caps, struct err *e),
                                  void (*last)(struct driver_device *d), struct err *e)
{
    unsigned n = l->driver->count(e);
    if (index >= n) {
        if (n)
            err_set(e, KL_ERR_DEVICE, "there is no device %s:%u, there are %u", l->driver->name, index, n);
        return NULL;
    }
    struct driver_device *d = mem_alloc(sizeof *d);
    if (!d) {
        err_set(e, KL_ERR_MEMORY, "no memory for device %s:%u", l->driver->name, index);
        return NULL;
    }
    d->l = l;
    d->index = (int)index;
    snprintf(d->name, sizeof d->name, "%s:%u", l->driver->name, index);
    if (!first(d, caps, e)) {
        mem_free(d);
        return NULL;
    }
    d->processors = caps->threads;
    if (make_stream(d, e))
        return d;
    close_device(d, last);
    return NULL;
}

/* ---- memory: single allocations; buffer.c keeps freed ones for later use ---- */

bool stream_alloc(struct driver_device *d, size_t bytes, void **address, struct err *e)
{
    gpu_result r = d->l->enter(d);
    if (r || d->lost)
        return r ? stream_ok(d, r, "making its context current", e) : was_lost(d, e);
    r = d->l->alloc(address, bytes);
    d->l->leave(d);
    return stream_ok(d, r, "allocating", e);
}

/* If a graph uses this memory, its address is set again before the graph's next launch. */
void stream_release(struct driver_device *d, void *address)
{
    struct err ignored = {0};
    stream_finish(d, &ignored); /* a device that is lost uses no memory */
    if (d->l->enter(d))
        return;
    d->l->free(address);
    d->l->leave(d);
}

/* ---- kernels ---- */

/* Ends one use of a module; between enter and leave. */
static void module_leave(struct driver_device *d, struct stream_module *m)
{
    if (--m->users)
        return;
    struct stream_module **p = &d->modules;
    while (*p != m)
        p = &(*p)->next;
    *p = m->next;
    d->l->module_free(m->module);
    mem_free(m);
}

/* Gives *m a new use of the kernel's module.  It is *m, which has been allocated, unless the module is loaded already.
 * If this fails, *m is freed.  Between enter and leave. */
static gpu_result module_use(struct driver_device *d, const struct gpu_code *code, struct stream_module **m)
{
    const struct hash128 hash = code->module;
    struct stream_module *found = hash.lo || hash.hi ? d->modules : NULL;
    while (found && (found->hash.lo != hash.lo || found->hash.hi != hash.hi))
        found = found->next;
    gpu_result r = found ? 0 : d->l->module_new(&(*m)->module, code->binary);
    if (found || r) {
        mem_free(*m);
        *m = found;
    } else {
        (*m)->hash = hash;
        (*m)->next = d->modules;
        d->modules = *m;
    }
    if (!r)
        (*m)->users++;
    return r;
}

struct driver_kernel *stream_load(struct driver_device *d, const struct gpu_code *code, struct err *e)
{
    struct driver_kernel *k = mem_alloc(sizeof *k);
    struct view_maps *view = mem_alloc(code->nview * sizeof *view);
    struct stream_module *m = mem_alloc(sizeof *m);
    gpu_result r = k && view && m ? d->l->enter(d) : 0;
    if (!k || !view || !m || r || d->lost) {
        if (!k || !view || !m)
            err_set(e, KL_ERR_MEMORY, "device %s: no memory to load a kernel", d->name);
        else if (r)
            stream_ok(d, r, "making its context current", e);
        else {
            d->l->leave(d);
            was_lost(d, e);
        }
        mem_free(m);
        mem_free(view);
        mem_free(k);
        return NULL;
    }
    k->view = view;
    k->nview = code->nview;
    for (uint32_t i = 0; i < code->nview; i++)
        view[i].view = code->view[i];
    k->threads = code->threads;
    k->nbuf = code->nbuf;
    k->table = code->table;
    k->shared = code->dynamic_bytes;
    r = module_use(d, code, &m);
    gpu_result found = r ? r : d->l->function(&k->function, m->module, code->function);
    if (!found && k->shared && d->l->allow_shared)
        found = d->l->allow_shared(k->function, k->shared);
    if (!r && found)
        module_leave(d, m);
    d->l->leave(d);
    k->module = m;
    if (!found)
        return k;
    stream_ok(d, found, "loading a kernel", e);
    mem_free(view);
    mem_free(k);
    return NULL;
}

void stream_unload(struct driver_device *d, struct driver_kernel *k)
{
    struct err ignored = {0};
    stream_finish(d, &ignored);
    if (!d->l->enter(d)) {
        stream_forget_graphs(d);
        module_leave(d, k->module);
        d->l->leave(d);
    }
    mem_free(k->view);
    mem_free(k);
}

uint32_t stream_resident(struct driver_device *d, const struct driver_kernel *k)
{
    int blocks = 0;
    if (d->lost || d->l->enter(d))
        return 0;
    gpu_result r = d->l->occupancy(&blocks, k->function, (int)k->threads, k->shared);
    d->l->leave(d);
    return r || blocks < 1 ? 0 : (uint32_t)blocks * d->processors;
}

void *stream_handle(struct driver_device *d) { return d->stream; }
