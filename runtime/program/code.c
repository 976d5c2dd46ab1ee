/* The code cache: kernel -> loaded code, shared by all programs.  Below it is the disk cache (disk.c), which is
 * searched before a kernel is compiled.  An entry is kept while a program uses it; unused entries are freed when
 * programs are evicted. */
#include "cache.h"
#include "runtime/profile/debugger.h"
#include <string.h>

struct code_entry *cache_codes[CACHE_BUCKETS];

static struct kernel *copy_kernel(const struct kernel *k)
{
    struct kernel *c = kernel_new(k->name);
    if (!c) return NULL;
    if (!mem_reserve(&c->inst, &c->inst_cap, k->ninst, sizeof *k->inst) ||
        !mem_reserve(&c->buf, &c->buf_cap, k->nbuf, sizeof *k->buf)) {
        kernel_free(c);
        return NULL;
    }
    memcpy(c->inst, k->inst, k->ninst * sizeof *k->inst);
    if (k->nbuf) memcpy(c->buf, k->buf, k->nbuf * sizeof *k->buf);
    c->ninst = k->ninst;
    c->nbuf = k->nbuf;
    c->sched = k->sched;
    c->extent = k->extent;
    c->flops = k->flops;
    c->bytes = k->bytes;
    return c;
}

static bool code_load(struct code_entry *c, const struct code *code, struct err *e)
{
    struct accelerator *a = accelerator_get(c->device);
    if (!a) return object_load(code, &c->loaded, e);
    c->on = accelerator_load(a, c->kernel, code, e);
    return c->on;
}

static void unload(struct code_entry *c)
{
    if (c->on) accelerator_unload(accelerator_get(c->device), c->on);
    else object_unload(&c->loaded);
}

static bool load_from_disk(struct code_entry *c, const struct disk_key *key)
{
    struct disk_code found;
    struct err ignored = {0};
    bool ok = disk_load(key, &found);
    if (ok) {
        ok = code_load(c, &found.code, &ignored);
        mem_free(found.file);
    }
    count_one(ok ? &counters.disk_hits : &counters.disk_misses);
    return ok;
}

/* Writes generated code to disk after it was loaded once; the key needs the code generator's version, which is known by
 * then (cpu.c). */
static bool generate(struct code_entry *c, bool keep, struct err *e)
{
    struct disk_key key = {0};
    struct code code = {0};
    struct caps caps;
    const struct backend *b = device_backend(c->device, &caps);
    count_one(&counters.compiles);
    if (!(device_is_host(c->device) ? b->compile(c->kernel, EMIT_OBJECT, &code, e)
                                    : b->compile_for(c->kernel, &caps, EMIT_OBJECT, &code, e)))
        return false;
    bool ok = code_load(c, &code, e);
    if (ok && keep && disk_key_make_for(&key, c->kernel, b, &caps)) disk_store(&key, &code);
    disk_key_free(&key);
    mem_free(code.bytes);
    return ok;
}

static bool code_compile(struct code_entry *c, bool keep, struct err *e)
{
    struct disk_key key = {0};
    struct caps caps;
    const struct backend *b = device_backend(c->device, &caps);
    int64_t began = timeline_now();
    bool keyed = option_cache_bytes() > 0 && disk_key_make_for(&key, c->kernel, b, &caps);
    bool found = keyed && load_from_disk(c, &key);
    bool ok = found || generate(c, keyed && keep, e);
    span_end(found ? SPAN_LOAD : SPAN_COMPILE, c->kernel->name, began);
    if (ok) log_put(KL_LOG_DEBUG, "kernel %s: %s in %.3f ms", c->kernel->name, found ? "loaded from disk" : "compiled",
                    1e-6 * (double)(timeline_now() - began));
    disk_key_free(&key);
    if (!ok) return false;
    if ((c->copy = copy_kernel(c->kernel))) {
        if (device_is_host(c->device)) c->symbols = debugger_register(c->kernel, &c->loaded);
        c->bytes = (int64_t)(sizeof *c + c->loaded.map_size + kernel_bytes(c->copy) + debugger_bytes(c->symbols));
        return true;
    }
    unload(c);
    return err_set(e, KL_ERR_MEMORY, "no memory to cache kernel %s", c->kernel->name);
}

struct code_entry *code_get(const struct kernel *k, int device, bool keep, struct err *e)
{
    struct hash128 key = kernel_hash(k);
    struct code_entry **bucket = &cache_codes[key.lo % CACHE_BUCKETS], *c;
    pthread_mutex_lock(&cache_lock);
    for (;;) {
        for (c = *bucket; c; c = c->next)
            if (same_key(c->key, key) && c->device == device && kernel_same(c->kernel, k)) break;
        if (!c || c->ready) break;
        pthread_cond_wait(&cache_changed, &cache_lock);
    }
    bool build = !c && (c = mem_alloc(sizeof *c));
    if (c) c->users++;
    if (build) {
        c->key = key;
        c->kernel = k;
        c->device = device;
        c->next = *bucket;
        *bucket = c;
    }
    pthread_mutex_unlock(&cache_lock);
    count_one(c && !build ? &counters.kernel_hits : &counters.kernel_misses);
    if (!c) err_set(e, KL_ERR_MEMORY, "no memory to cache kernel %s", k->name);
    if (!build) return c;

    fork_hold();
    bool ok = code_compile(c, keep, e);
    fork_release();
    pthread_mutex_lock(&cache_lock);
    if (ok) {
        c->kernel = c->copy;
        c->ready = true;
        cache_bytes += c->bytes;
    } else {
        struct code_entry **p = bucket;
        while (*p != c) p = &(*p)->next;
        *p = c->next;
        mem_free(c); /* waiting threads search again */
    }
    pthread_cond_broadcast(&cache_changed);
    pthread_mutex_unlock(&cache_lock);
    return ok ? c : NULL;
}


void code_take(struct code_entry *c, struct code_entry **list)
{
    struct code_entry **p = &cache_codes[c->key.lo % CACHE_BUCKETS];
    while (*p != c) p = &(*p)->next;
    *p = c->next;
    cache_bytes -= c->bytes;
    c->next = *list;
    *list = c;
}

void code_take_unused(struct code_entry **list)
{
    for (unsigned i = 0; i < CACHE_BUCKETS; i++)
        for (struct code_entry *c = cache_codes[i], *next; c; c = next) {
            next = c->next;
            if (!c->users) code_take(c, list);
        }
}

void code_free(struct code_entry *list)
{
    for (struct code_entry *c = list, *next; c; c = next) {
        next = c->next;
        debugger_unregister(c->symbols);
        unload(c);
        kernel_free(c->copy);
        mem_free(c);
        count_one(&counters.kernels_evicted);
    }
}
