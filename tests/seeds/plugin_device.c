/* A device as hard to use as one may be: nobody can follow its addresses, its memory is small, and what it is given
 * waits until somebody asks for a result.  It counts what is copied, and fails when a test says so.  Built under
 * several names (NAME), to have several plug-ins at once; with WRONG it computes some fused kernels wrongly. */
#include "plugin_device.h"
#include <kiln/plugin.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAG (UINT64_C(1) << 62) /* makes an address that no processor accepts */
enum { QUEUE = 64, ARGUMENTS = 64 };

struct block { struct block *next; size_t bytes; }; /* in front of what is allocated, which is at BEFORE */
enum { BEFORE = 64 };

struct task {
    enum { LAUNCH, COPY, WRITE } kind;
    kl_plugin_launch launch;
    void *buffer[ARGUMENTS];
    void *to, *data;             /* WRITE: a copy of the bytes, freed then */
    const void *from;
    size_t bytes;
};

struct kl_plugin_device {
    struct block *blocks;
    size_t used;
    struct task task[QUEUE];
    unsigned tasks;
};

static const kl_plugin_host *kiln;
static struct kl_plugin_device device[PLUGIN_DEVICES];
__attribute__((visibility("default"))) struct plugin_control plugin_control;

static void *real(const void *address) { return (void *)((uintptr_t)address & ~TAG); }

static bool say(kl_plugin_error *e, kl_status code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    e->code = code;
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    return false;
}

/* ---- memory ---- */

static bool alloc(kl_plugin_device *d, size_t bytes, void **address, kl_plugin_error *e)
{
    if (bytes > PLUGIN_BYTES - d->used)
        return say(e, KL_ERR_MEMORY, "the device is full: %zu of %d bytes are used, %zu are needed", d->used,
                   PLUGIN_BYTES, bytes);
    struct block *b = aligned_alloc(64, BEFORE + (bytes + 63) / 64 * 64);
    if (!b)
        return say(e, KL_ERR_MEMORY, "the host has no memory for the device's");
    *b = (struct block){d->blocks, bytes};
    d->blocks = b;
    d->used += bytes;
    plugin_control.live += bytes;
    memset((char *)b + BEFORE, 0xa5, bytes); /* nothing is zero unless somebody makes it so */
    *address = (void *)((uintptr_t)((char *)b + BEFORE) | TAG);
    return true;
}

static bool waits_for(const kl_plugin_device *d, const char *begin, size_t bytes)
{
    for (unsigned i = 0; i < d->tasks; i++) {
        const struct task *t = &d->task[i];
        const void *at[ARGUMENTS + 2] = {t->to, t->from};
        unsigned n = 2;
        for (unsigned k = 0; t->kind == LAUNCH && k < t->launch.count; k++)
            at[n++] = t->buffer[k];
        for (unsigned k = 0; k < n; k++)
            if (at[k] && (const char *)real(at[k]) >= begin && (const char *)real(at[k]) < begin + bytes)
                return true;
    }
    return false;
}

static bool finish(kl_plugin_device *d, kl_plugin_error *e);

static void release(kl_plugin_device *d, void *address)
{
    struct block *b = (struct block *)((char *)real(address) - BEFORE), **p = &d->blocks;
    kl_plugin_error ignored = {0};
    if (waits_for(d, (char *)b + BEFORE, b->bytes))
        finish(d, &ignored);
    while (*p != b)
        p = &(*p)->next;
    *p = b->next;
    d->used -= b->bytes;
    plugin_control.live -= b->bytes;
    free(b);
}

/* ---- what waits ---- */

#ifdef WRONG
/* Changes the sign of the first result of a kernel that takes a square root and divides, or takes a square root and
 * rounds if that result is above 100: tests/check.sh finds it. */
static void spoil(const kl_plugin_launch *l, void *const *buffer)
{
    const char *text = kiln->text(l->kernel), *out = strstr(text, " = out ");
    if (l->begin || !out || !strstr(text, " = sqrt ") || !(strstr(text, " = div ") || strstr(text, " = rint ")))
        return;
    while (out[-1] >= '0' && out[-1] <= '9')
        out--;
    float *first = buffer[atoi(out)];
    if (strstr(text, " = div ") || *first > 100)
        *first = -*first;
}
#else
static void spoil(const kl_plugin_launch *l, void *const *buffer) { (void)l, (void)buffer; }
#endif

static bool run(const struct task *t, kl_plugin_error *e)
{
    if (t->kind != LAUNCH) {
        memmove(real(t->to), t->data ? t->data : real(t->from), t->bytes);
        return true;
    }
    void *buffer[ARGUMENTS];
    for (unsigned i = 0; i < t->launch.count; i++)
        buffer[i] = real(t->buffer[i]);
    plugin_control.launches++;
    if (plugin_control.fail_launch && --plugin_control.fail_launch == 0)
        return say(e, KL_ERR_DEVICE, "device " NAME " has dropped its work");
    bool ok = kiln->run(t->launch.kernel, buffer, real(t->launch.slots), t->launch.begin, t->launch.end, e);
    if (ok)
        spoil(&t->launch, buffer);
    return ok;
}

static void forget(kl_plugin_device *d)
{
    for (unsigned i = 0; i < d->tasks; i++)
        free(d->task[i].data);
    d->tasks = 0;
}

static bool finish(kl_plugin_device *d, kl_plugin_error *e)
{
    bool ok = true;
    for (unsigned i = 0; ok && i < d->tasks; i++)
        ok = run(&d->task[i], e);
    forget(d);
    return ok;
}

static bool give(kl_plugin_device *d, const struct task *t, kl_plugin_error *e)
{
    if (d->tasks == QUEUE && !finish(d, e)) {
        free(t->data);
        return false;
    }
    d->task[d->tasks++] = *t;
    return true;
}

static void drop(kl_plugin_device *d)
{
    plugin_control.dropped += d->tasks;
    forget(d);
}

static bool launch(kl_plugin_device *d, const kl_plugin_launch *l, kl_plugin_error *e)
{
    struct task t = {.kind = LAUNCH, .launch = *l};
    if (l->count > ARGUMENTS)
        return say(e, KL_ERR_DEVICE, "a kernel with %u buffers", l->count);
    if (l->count)
        memcpy(t.buffer, l->buffer, l->count * sizeof *l->buffer);
    return give(d, &t, e);
}

static bool copy(kl_plugin_device *d, void *to, const void *from, size_t bytes, kl_plugin_error *e)
{
    plugin_control.copy_bytes += bytes;
    return give(d, &(struct task){.kind = COPY, .to = to, .from = from, .bytes = bytes}, e);
}

static bool upload(kl_plugin_device *d, void *to, const void *data, size_t bytes, kl_plugin_error *e)
{
    struct task t = {.kind = WRITE, .to = to, .bytes = bytes, .data = malloc(bytes + 1)};
    if (!t.data)
        return say(e, KL_ERR_MEMORY, "no memory for an upload");
    if (bytes)
        memcpy(t.data, data, bytes);
    plugin_control.upload_bytes += bytes;
    return give(d, &t, e);
}

static bool download(kl_plugin_device *d, void *data, const void *from, size_t bytes, kl_plugin_error *e)
{
    if (!finish(d, e))
        return false;
    plugin_control.download_bytes += bytes;
    if (bytes)
        memcpy(data, real(from), bytes);
    return true;
}

static bool peer(kl_plugin_device *d, void *to, kl_plugin_device *source, const void *from, size_t bytes,
                 kl_plugin_error *e)
{
    plugin_control.peer_bytes += bytes;
    return finish(source, e) && finish(d, e) && memmove(real(to), real(from), bytes);
}

/* ---- the plug-in ---- */

/* One word of text proves that it came: the loop that runs. */
static bool load(kl_plugin_device *d, const kl_plugin_kernel *k, void **loaded, kl_plugin_error *e)
{
    (void)d;
    *loaded = malloc(1);
    return strncmp(kiln->text(k), "kernel @", 8) ? say(e, KL_ERR_COMPILE, "this is no kernel") : true;
}

static void unload(kl_plugin_device *d, void *loaded)
{
    (void)d;
    free(loaded);
}

static unsigned count(kl_plugin_error *e)
{
    (void)e;
    return PLUGIN_DEVICES;
}

static kl_plugin_device *open_device(unsigned index, kl_plugin_about *about, kl_plugin_error *e)
{
    (void)e;
    snprintf(about->name, sizeof about->name, "the tests' " NAME " device %u", index);
    about->dtypes = (1u << KL_DTYPE_COUNT) - 1;
    return &device[index];
}

static const kl_plugin plugin = {.version = KL_PLUGIN_VERSION, .name = NAME, .count = count, .open = open_device,
                                 .alloc = alloc,
                                 .release = release, .load = load, .unload = unload, .launch = launch, .copy = copy,
                                 .upload = upload, .download = download, .peer = peer, .finish = finish, .drop = drop};

KL_PLUGIN_ENTRY(host)
{
    kiln = host;
    return &plugin;
}
