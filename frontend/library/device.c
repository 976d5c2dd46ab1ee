/* The public functions for devices: names and kinds, element types, seeds, and waiting for them. */
#include "frontend/frontend.h"
#include <kiln/plugin.h>
#include <stdlib.h>
#include <string.h>

bool device_valid(kl_device d)
{
    int i = device_index(d);
    return i >= 0 && i < DEVICE_END && (i < DEVICE_HOSTS || i == DEVICE_META || accelerator_get(i)) &&
        strategy_valid(device_strategy(d));
}

/* The thread, and the device's number in *index; NULL: an invalid device, reported. */
static struct thread *device_thread(const char *what, kl_device d, int *index)
{
    struct thread *t = thread_self();
    *index = device_index(d);
    if (!t || device_valid(d))
        return t;
    report(t, KL_ERR_DEVICE, "%s: %u is no device", what, d.id);
    return NULL;
}

/* ---- names and kinds ---- */

static kl_device device_or_report(int index, const struct err *e)
{
    if (index >= 0)
        return device_of((unsigned)index);
    report_err(e);
    return (kl_device){0};
}

kl_device kl_device_default(void)
{
    struct err e;
    const char *why;
    e.code = KL_OK;
    return device_or_report(device_default(&why, &e), &e);
}

kl_status kl_plugin_load(const char *path)
{
    struct err e;
    e.code = KL_OK;
    return plugin_load(path, &e) ? KL_OK : report_err(&e);
}

const char *kl_device_fallback_reason(void)
{
    struct err e;
    const char *why;
    e.code = KL_OK;
    device_default(&why, &e);
    return why;
}

/* "autodiff<cpu>", "autodiff<cpu, balanced>", "autodiff<cpu, 4096 bytes>"; strategy: what is behind the comma. */
static kl_device autodiff_named(const char *name, size_t n)
{
    char inner[32], strategy[40] = "", *end;
    size_t comma = strcspn(name, ","), length = comma < n ? comma : n;
    snprintf(inner, sizeof inner, "%.*s", (int)length, name);
    if (comma < n)
        snprintf(strategy, sizeof strategy, "%.*s", (int)(n - comma - 2), name + comma + 2);
    long long bytes = strtoll(strategy, &end, 10);
    kl_device d = kl_device_named(inner);
    if (!d.id || !(d = kl_device_autodiff(d)).id || comma >= n)
        return d;
    if (!strcmp(strategy, "balanced"))
        return kl_device_gradient_checkpointing(d, KL_CHECKPOINT_BALANCED);
    if (end != strategy && !strcmp(end, " bytes") && bytes > 0)
        return kl_device_gradient_checkpointing(d, bytes);
    struct err e;
    e.code = KL_OK;
    err_set(&e, KL_ERR_DEVICE, "no strategy is called \"%s\": there are \"balanced\" and \"4096 bytes\"", strategy);
    return device_or_report(-1, &e);
}

kl_device kl_device_named(const char *name)
{
    static const char before[] = "autodiff<";
    size_t n = name ? strlen(name) : 0, skip = sizeof before - 1;
    struct err e;
    e.code = KL_OK;
    if (n > skip && n < 80 && !strncmp(name, before, skip) && name[n - 1] == '>')
        return autodiff_named(name + skip, n - skip - 1);
    return device_or_report(device_find(name, &e), &e);
}

const char *kl_device_name(kl_device d)
{
    if (!device_valid(d))
        return "none";
    return device_strategy(d) ? strategy_device_name(device_strategy(d), device_index(d))
        : device_name(device_index(d));
}

kl_device kl_device_get(kl_device_kind kind, int index)
{
    struct err e;
    e.code = KL_OK;
    return device_or_report(device_number(kind, index < 0 ? UINT32_MAX : (unsigned)index, &e), &e);
}

int64_t kl_device_count(kl_device_kind kind)
{
    struct err e;
    e.code = KL_OK;
    unsigned n = device_kind_count(kind, &e);
    if (!n)
        report_err(&e);
    return (unsigned)kind < KL_DEVICE_KINDS ? (int)n : -1;
}

const char *kl_device_kind_name(kl_device_kind kind) { return device_kind_name(kind); }

kl_device_kind kl_device_kind_of(kl_device d)
{
    return device_valid(d) ? (kl_device_kind)device_kind(device_index(d)) : KL_DEVICE_KINDS;
}

int kl_device_index(kl_device d)
{
    int i = device_index(d);
    return !device_valid(d) ? -1 : i < DEVICE_CUDA ? 0 : i % DEVICES_A_KIND;
}

int64_t kl_device_enumerate(uint32_t kinds, int64_t room, kl_device *out)
{
    uint32_t n = 0;
    for (unsigned k = 0; k < KL_DEVICE_KINDS; k++) {
        struct err e;
        e.code = KL_OK;
        unsigned count = kinds >> k & 1 ? device_kind_count(k, &e) : 0;
        for (unsigned i = 0; i < count; i++) {
            int d = device_number(k, i, &e);
            if (d >= 0 && n++ < room)
                out[n - 1] = device_of((unsigned)d);
        }
    }
    return n;
}

/* ---- element types ---- */

/* Settings of each device; an autodiff device has those of its inner device. */
static struct settings {             /* all but the atomics under the lock */
    _Atomic(uint8_t) real, integer;  /* 0: not configured */
    _Atomic(bool) used;              /* it has, or had, a tensor */
    bool configured;
    uint64_t seed, given;            /* seed: start of its sequence; given: number of seeds taken from it */
    struct err first;                /* the first error in work that was submitted */
    _Atomic(bool) failed;            /* there is one */
} settings[DEVICE_END];

unsigned kl_device_dtype_usage(kl_device d, kl_dtype dtype)
{
    int i;
    if (!device_thread("device_dtype_usage", d, &i) || (unsigned)dtype >= KL_DTYPE_COUNT ||
        !(device_dtypes(i) >> dtype & 1))
        return 0;
    bool fast = i == DEVICE_CPU && dtype != KL_BOOL && dtype_compute(dtype) == (unsigned)dtype;
    return KL_USE_STORAGE | KL_USE_ARITHMETIC | (fast ? KL_USE_ACCELERATED : 0);
}

bool kl_device_supports(kl_device d, kl_dtype dtype)
{
    const unsigned both = KL_USE_STORAGE | KL_USE_ARITHMETIC;
    return (kl_device_dtype_usage(d, dtype) & both) == both;
}

static bool kl_device_fits(int device, kl_dtype real, kl_dtype integer)
{
    uint32_t has = device_dtypes(device);
    return (unsigned)real < KL_DTYPE_COUNT && (unsigned)integer < KL_DTYPE_COUNT && dtype_is_float(real) &&
           integer != KL_BOOL && !dtype_is_float(integer) && has >> real & 1 && has >> integer & 1;
}

kl_status kl_device_configure(kl_device d, kl_dtype real, kl_dtype integer)
{
    int i;
    struct thread *t = device_thread("device_configure", d, &i);
    if (!t)
        return KL_ERR_DEVICE;
    if (!kl_device_fits(i, real, integer))
        return report(t, KL_ERR_TYPE,
                      "device_configure: UnsupportedDType: %s and %s are no float and integer that device "
                      "%s has", kl_dtype_name(real), kl_dtype_name(integer), kl_device_name(d));
    struct settings *s = &settings[i];
    front_lock();
    bool late = s->configured || atomic_load(&s->used);
    if (!late) {
        atomic_store(&s->real, (uint8_t)real);
        atomic_store(&s->integer, (uint8_t)integer);
        s->configured = true;
    }
    front_unlock();
    return late ? report(t, KL_ERR_ARGUMENT, "device_configure: AlreadyInitialized: device %s %s", kl_device_name(d),
                         s->configured ? "was configured before" : "has had tensors") : KL_OK;
}

kl_dtype kl_device_float(kl_device d)
{
    int i;
    uint8_t own = device_thread("device_float", d, &i) ? atomic_load(&settings[i].real) : KL_DTYPE_COUNT;
    return own ? (kl_dtype)own : KL_F32;
}

kl_dtype kl_device_int(kl_device d)
{
    int i;
    uint8_t own = device_thread("device_int", d, &i) ? atomic_load(&settings[i].integer) : KL_DTYPE_COUNT;
    return own ? (kl_dtype)own : KL_I32;
}

kl_dtype device_dtype(kl_device d, kl_dtype dtype)
{
    if (!device_valid(d))
        return dtype == KL_FLOAT ? KL_F32 : dtype == KL_INT ? KL_I32 : dtype;
    struct settings *s = &settings[device_index(d)];
    if (!atomic_load_explicit(&s->used, memory_order_relaxed))
        atomic_store(&s->used, true);
    return dtype == KL_FLOAT ? kl_device_float(d) : dtype == KL_INT ? kl_device_int(d) : dtype;
}

kl_quant_scheme kl_device_quant_scheme(kl_device d)
{
    int i;
    if (!device_thread("device_quant_scheme", d, &i))
        return (kl_quant_scheme){0};
    return (kl_quant_scheme){KL_I8, true, true, device_is_host(i) ? KL_QUANT_NATIVE : KL_QUANT_PACKED_U32};
}

/* ---- random numbers ---- */

kl_status kl_seed(kl_device d, uint64_t seed)
{
    int i;
    if (!device_thread("seed", d, &i))
        return KL_ERR_DEVICE;
    front_lock();
    settings[i].seed = seed;
    settings[i].given = 0;
    front_unlock();
    return KL_OK;
}

/* SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014),
 * after `more` seeds. */
static uint64_t seed_state(int i, uint64_t more)
{
    front_lock();
    settings[i].given += more;
    uint64_t z = settings[i].seed + settings[i].given * UINT64_C(0x9E3779B97F4A7C15);
    front_unlock();
    return z;
}

uint64_t kl_seed_state(kl_device d)
{
    int i;
    return device_thread("seed_state", d, &i) ? seed_state(i, 0) : 0;
}

uint64_t kl_next_seed(kl_device d)
{
    int i;
    if (!device_thread("next_seed", d, &i))
        return 0;
    uint64_t z = seed_state(i, 1);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* ---- work ---- */

void *kl_device_stream(kl_device d)
{
    int i;
    struct accelerator *a = device_thread("device_stream", d, &i) ? accelerator_get(i) : NULL;
    return a ? accelerator_stream(a) : NULL;
}

/* Programs run inside the call that submits them, so submitting computes.  Needs the lock. */
static void submit_pending(int device)
{
    struct err e;
    e.code = KL_OK;
    if (!deferred_compute_device(device, &e) && !settings[device].first.code) {
        settings[device].first = e;
        atomic_store(&settings[device].failed, true);
    }
}

kl_status kl_flush(kl_device d)
{
    int i;
    if (!device_thread("flush", d, &i))
        return KL_ERR_DEVICE;
    front_lock();
    submit_pending(i);
    front_unlock();
    return KL_OK;
}

kl_status kl_sync(kl_device d)
{
    int i;
    struct thread *t = device_thread("sync", d, &i);
    if (!t)
        return KL_ERR_DEVICE;
    struct err e, late;
    struct accelerator *a = accelerator_get(i);
    late.code = e.code = KL_OK;
    if (!deferred_is_settled() || atomic_load(&settings[i].failed)) {
        front_lock();
        submit_pending(i);
        if (settings[i].first.code) /* else its text is not copied */
            e = settings[i].first;
        settings[i].first.code = KL_OK;
        atomic_store(&settings[i].failed, false);
        front_unlock();
    }
    if (a && !accelerator_finish(a, &late) && !e.code) {
        if (late.code == KL_ERR_CANCELLED)
            return report(t, late.code, "sync: %s", late.msg);
        e = late;
    }
    return e.code ? report(t, e.code, "sync: An error happened during execution. Caused by: %s", e.msg) : KL_OK;
}
