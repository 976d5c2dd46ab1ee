/* The code cache: kernel -> loaded code, shared by all programs.  Below it is the disk cache (disk.c), which is
 * searched before a kernel is compiled.  An entry is kept while a program uses it; unused entries are freed when
 * programs are evicted.
 *
 * Compilers for GPUs take long to start: NVRTC 24 ms, hiprtc 5.2 150 ms.  So the kernels of a program are compiled
 * several at once, as functions of one module.  The driver keeps a module while one of its kernels is loaded. */
#include "cache.h"
#include "codegen/gpu_code.h"
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
    c->family = k->family;
    c->sched = k->sched;
    c->extent = k->extent;
    c->members = k->members;
    c->flops = k->flops;
    c->bytes = k->bytes;
    return c;
}

/* module: as for accelerator_load. */
static bool code_load(struct code_entry *c, const struct code *code, const struct code *module, struct err *e)
{
    struct accelerator *a = accelerator_get(c->device);
    if (!a) return object_load(code, &c->loaded, e);
    c->on = accelerator_load(a, c->kernel, code, module, e);
    return c->on;
}

static void code_unload(struct code_entry *c)
{
    if (c->on) accelerator_unload(accelerator_get(c->device), c->on);
    else object_unload(&c->loaded);
}

/* ---- modules of several kernels: one entry on disk for the binary, beside a small one for each kernel ---- */

/* The binaries that were read for the kernels of one call of code_get. */
struct modules { struct hash128 hash[MODULE_KERNELS]; struct disk_code read[MODULE_KERNELS]; uint32_t n; };

static bool module_key(struct disk_key *key, struct hash128 hash)
{
    char text[64];
    snprintf(text, sizeof text, "module %016llx%016llx", (unsigned long long)hash.hi, (unsigned long long)hash.lo);
    return disk_key_text(key, text, "module");
}

/* NULL: it is not on disk. */
static const struct code *module_read(struct modules *m, struct hash128 hash)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (same_key(m->hash[i], hash)) return &m->read[i].code;
    struct disk_key key = {0};
    struct disk_code *found = &m->read[m->n];
    bool ok = module_key(&key, hash) && disk_load(&key, found);
    disk_key_free(&key);
    if (!ok) return NULL;
    m->hash[m->n++] = hash;
    return &found->code;
}

static bool load_from_disk(struct code_entry *c, const struct disk_key *key, struct modules *m)
{
    struct disk_code found;
    struct err ignored = {0};
    bool ok = disk_load(key, &found);
    if (ok) {
        struct hash128 hash;
        bool shared = gpu_code_module(&found.code, &hash);
        const struct code *module = shared ? module_read(m, hash) : NULL;
        ok = (module || !shared) && code_load(c, &found.code, module, &ignored);
        mem_free(found.file);
    }
    count_one(ok ? &counters.disk_hits : &counters.disk_misses);
    return ok;
}

/* ---- making the code of new entries ---- */

/* Entries that one thread makes. */
struct making {
    const struct backend *b;
    struct caps caps;
    bool keep;                     /* new code is stored on disk */
    uint32_t n;
    struct code_entry *c[MODULE_KERNELS];
    uint32_t of[MODULE_KERNELS];   /* their numbers for the caller of code_get */
    bool keyed[MODULE_KERNELS];    /* its code may be stored on disk */
    bool loaded[MODULE_KERNELS];
    uint32_t made;                 /* the first `made` are complete; if these are not all, `err` is the next one's */
    struct err err;
};

/* Writes code to disk after it was loaded once; the key needs the code generator's version, which is known by then
 * (cpu.c). */
static void code_store_on_disk(const struct making *m, uint32_t i, const struct code *code)
{
    struct disk_key key = {0};
    if (m->keep && m->keyed[i] && disk_key_make(&key, m->c[i]->kernel, m->b, &m->caps)) disk_store(&key, code);
    disk_key_free(&key);
}

static bool code_generate(struct making *m, uint32_t i)
{
    struct code_entry *c = m->c[i];
    struct code code = {0};
    count_one(&counters.compiles);
    if (!device_compile(c->device, c->kernel, EMIT_OBJECT, &code, &m->err))
        return false;
    bool ok = code_load(c, &code, NULL, &m->err);
    if (ok) code_store_on_disk(m, i, &code);
    mem_free(code.bytes);
    return ok;
}

static void log_made(const struct code_entry *c, const char *how, int64_t began)
{
    log_put(KL_LOG_DEBUG, "kernel %s: %s in %.3f ms", c->kernel->name, how, 1e-6 * (double)(timeline_now() - began));
}

static void load_all(struct making *m)
{
    struct modules modules = {.n = 0};
    for (uint32_t i = 0; i < m->n; i++) {
        struct disk_key key = {0};
        int64_t began = timeline_now();
        m->keyed[i] = option_cache_bytes() > 0 && disk_key_make(&key, m->c[i]->kernel, m->b, &m->caps);
        m->loaded[i] = m->keyed[i] && load_from_disk(m->c[i], &key, &modules);
        disk_key_free(&key);
        if (!m->loaded[i]) continue;
        span_end(SPAN_LOAD, m->c[i]->kernel->name, began);
        log_made(m->c[i], "loaded from disk", began);
    }
    for (uint32_t i = 0; i < modules.n; i++) mem_free(modules.read[i].file);
}

/* Compiles those that are not loaded as one module, whose time in the timeline has the name of its first kernel.  What
 * is not loaded afterwards has to be compiled alone; its error is then that of one kernel. */
static void generate_module(struct making *m)
{
    const struct kernel *k[MODULE_KERNELS];
    struct code code[MODULE_KERNELS], module;
    struct hash128 hash;
    struct disk_key key = {0};
    struct err ignored = {0};
    uint32_t at[MODULE_KERNELS], n = 0;
    int64_t began = timeline_now();
    for (uint32_t i = 0; i < m->n; i++) {
        if (m->loaded[i]) continue;
        k[n] = m->c[i]->kernel;
        at[n++] = i;
    }
    if (n < 2 || !m->b->compile_module || !m->b->compile_module(k, n, &m->caps, code, &module, &ignored)) return;
    if (m->keep && m->keyed[at[0]] && gpu_code_module(&code[0], &hash) && module_key(&key, hash))
        disk_store(&key, &module);
    disk_key_free(&key);
    span_end(SPAN_COMPILE, k[0]->name, began);
    for (uint32_t i = 0; i < n; i++) {
        m->loaded[at[i]] = code_load(m->c[at[i]], &code[i], &module, &ignored);
        if (m->loaded[at[i]]) {
            count_one(&counters.compiles);
            code_store_on_disk(m, at[i], &code[i]);
            log_made(m->c[at[i]], "compiled in a module", began);
        }
        mem_free(code[i].bytes);
    }
    mem_free(module.bytes);
}

static bool generate_alone(struct making *m, uint32_t i)
{
    int64_t began = timeline_now();
    m->loaded[i] = code_generate(m, i);
    span_end(SPAN_COMPILE, m->c[i]->kernel->name, began);
    if (m->loaded[i]) log_made(m->c[i], "compiled", began);
    return m->loaded[i];
}

/* Completes an entry whose code is loaded. */
static bool keep_copy(struct code_entry *c, struct err *e)
{
    if (!(c->copy = copy_kernel(c->kernel)))
        return err_set(e, KL_ERR_MEMORY, "no memory to cache kernel %s", c->kernel->name);
    if (device_is_host(c->device)) c->symbols = debugger_register(c->kernel, &c->loaded);
    c->bytes = (int64_t)(sizeof *c + c->loaded.map_size + kernel_bytes(c->copy) + debugger_bytes(c->symbols));
    return true;
}

static void code_make_all(struct making *m, int device)
{
    m->b = device_backend(device, &m->caps);
    load_all(m);
    generate_module(m);
    while (m->made < m->n && (m->loaded[m->made] || generate_alone(m, m->made)) &&
           keep_copy(m->c[m->made], &m->err)) m->made++;
    for (uint32_t i = m->made; i < m->n; i++)
        if (m->loaded[i]) code_unload(m->c[i]);
}

/* ---- the table ---- */

static struct code_entry *code_find(struct hash128 key, int device, const struct kernel *k)
{
    struct code_entry *c = cache_codes[key.lo % CACHE_BUCKETS];
    while (c && !(same_key(c->key, key) && c->device == device && kernel_same(c->kernel, k))) c = c->next;
    return c;
}

/* Takes the code that is ready, and inserts entries for what is not in the table: the caller makes them.  Returns how
 * many kernels other threads, or the caller itself, are making.  *room: false if there is no memory.  Needs the
 * lock. */
static uint32_t code_claim(const struct kernel *const *k, const struct hash128 *key, uint32_t n, int device,
                      struct code_entry **out, struct making *m, bool *room)
{
    uint32_t waits = 0;
    for (uint32_t i = 0; i < n && *room; i++) {
        struct code_entry *c = out[i] ? NULL : code_find(key[i], device, k[i]);
        if (out[i]) continue;
        if (c && c->ready) {
            c->users++;
            out[i] = c;
            count_one(&counters.kernel_hits);
        } else if (c) {
            waits++;
        } else if ((*room = (c = mem_alloc(sizeof *c)) != NULL)) {
            struct code_entry **bucket = &cache_codes[key[i].lo % CACHE_BUCKETS];
            *c = (struct code_entry){.key = key[i], .kernel = k[i], .device = device, .users = 1, .next = *bucket};
            *bucket = c;
            m->of[m->n] = i;
            m->c[m->n++] = c;
            count_one(&counters.kernel_misses);
        }
    }
    return waits;
}

/* Ends the making of entries; those that failed are removed, and threads that wait for them search again.  Needs the
 * lock. */
static void code_finish(struct making *m, struct code_entry **out)
{
    for (uint32_t i = 0; i < m->n; i++) {
        struct code_entry *c = m->c[i], **p = &cache_codes[c->key.lo % CACHE_BUCKETS];
        if (i < m->made) {
            c->kernel = c->copy;
            c->ready = true;
            cache_bytes += c->bytes;
            out[m->of[i]] = c;
        } else {
            while (*p != c) p = &(*p)->next;
            *p = c->next;
            mem_free(c);
        }
    }
    pthread_cond_broadcast(&cache_changed);
}

uint32_t code_get(const struct kernel *const *k, uint32_t n, int device, bool keep, struct code_entry **out,
                  struct err *e)
{
    struct hash128 key[MODULE_KERNELS];
    for (uint32_t i = 0; i < n; i++) {
        key[i] = kernel_hash(k[i]);
        out[i] = NULL;
    }
    for (uint32_t waits = 1; waits;) {
        struct making m = {.keep = keep};
        bool room = true;
        pthread_mutex_lock(&cache_lock);
        while ((waits = code_claim(k, key, n, device, out, &m, &room)) && !m.n && room)
            pthread_cond_wait(&cache_changed, &cache_lock);
        pthread_mutex_unlock(&cache_lock);
        if (m.n) {
            fork_hold();
            code_make_all(&m, device);
            fork_release();
            pthread_mutex_lock(&cache_lock);
            code_finish(&m, out);
            pthread_mutex_unlock(&cache_lock);
        }
        if (m.made < m.n) {
            *e = m.err;
            return m.of[m.made];
        }
        if (!room) {
            err_set(e, KL_ERR_MEMORY, "no memory to cache %u kernels", n);
            return 0;
        }
    }
    return n;
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
        code_unload(c);
        kernel_free(c->copy);
        mem_free(c);
        count_one(&counters.kernels_evicted);
    }
}
