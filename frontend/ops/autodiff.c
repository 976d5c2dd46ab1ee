/* Autodiff as a property of devices.
 *
 * A handle has a flag for an autodiff device and the strategy that it carries (struct entry's ad).  Nodes have neither:
 * below the handles an autodiff device is its inner one. ad_join combines the strategies of an op's operands before the
 * op is recorded; grad nodes get the strategy as an attribute, for passes/graph/remat.c. */
#include "frontend/layers/wrapper.h"
#include <string.h>

/* ---- strategies, numbered in the order of their first use ---- */

enum { STRATEGIES = 253 };
static struct strategy {
    kl_checkpointing bytes;
    char name[DEVICE_END][48]; /* names of the autodiff devices with the strategy */
} *_Atomic strategy[STRATEGIES + 1];

static const struct strategy *strategy_get(unsigned n)
{
    return n && n <= STRATEGIES ? atomic_load_explicit(&strategy[n], memory_order_acquire) : NULL;
}

bool strategy_valid(unsigned n) { return !n || strategy_get(n); }
const char *strategy_device_name(unsigned n, int device) { return strategy_get(n)->name[device]; }

int64_t strategy_bytes(unsigned n)
{
    const struct strategy *s = strategy_get(n);
    return s ? s->bytes : KL_CHECKPOINT_UNSET;
}

/* "None", "Balanced", "4096 bytes" */
static const char *strategy_text(unsigned n, char *buf, size_t size)
{
    int64_t bytes = strategy_bytes(n);
    if (bytes > 0)
        snprintf(buf, size, "%lld bytes", (long long)bytes);
    else
        snprintf(buf, size, "%s", bytes == KL_CHECKPOINT_BALANCED ? "Balanced" : "None");
    return buf;
}

/* Its number; 0: there are too many, or out of memory.  Needs the lock. */
static unsigned strategy_number(kl_checkpointing bytes)
{
    unsigned n = 1;
    while (n <= STRATEGIES && strategy_get(n) && strategy_get(n)->bytes != bytes)
        n++;
    if (n > STRATEGIES || strategy_get(n))
        return n > STRATEGIES ? 0 : n;
    struct strategy *s = mem_alloc(sizeof *s);
    if (!s)
        return 0;
    s->bytes = bytes;
    for (int d = 0; d < DEVICE_END; d++) {
        const char *inner = device_name(d);
        if (bytes == KL_CHECKPOINT_NONE)
            snprintf(s->name[d], sizeof s->name[d], "autodiff<%s>", inner);
        else if (bytes == KL_CHECKPOINT_BALANCED)
            snprintf(s->name[d], sizeof s->name[d], "autodiff<%s, balanced>", inner);
        else
            snprintf(s->name[d], sizeof s->name[d], "autodiff<%s, %lld bytes>", inner, (long long)bytes);
    }
    atomic_store_explicit(&strategy[n], s, memory_order_release);
    return n;
}

/* ---- devices ---- */

static const char wrapped_device[] = "Autodiff should not wrap an autodiff device.";
static const char wrapped_tensor[] = "Autodiff should not wrap an autodiff tensor.";
static const char plain_tensor[] = "Requires autodiff tensor.";

static kl_device with_strategy(struct thread *t, const char *what, kl_device d, kl_checkpointing bytes)
{
    front_lock();
    unsigned n = strategy_number(bytes);
    front_unlock();
    if (n)
        return (kl_device){n << DEVICE_ID_BITS | (uint32_t)(device_index(d) + 1)};
    report(t, KL_ERR_ARGUMENT, "%s: %lld bytes is one more strategy than the %d that there may be", what,
           (long long)bytes,
           STRATEGIES);
    return (kl_device){0};
}

kl_device kl_device_autodiff(kl_device d)
{
    struct thread *t = thread_self();
    if (!t)
        return (kl_device){0};
    if (!device_valid(d))
        report(t, KL_ERR_DEVICE, "device_autodiff: %u is no device", d.id);
    else if (device_strategy(d))
        report(t, KL_ERR_GRAD, "device_autodiff: %s", wrapped_device);
    else
        return with_strategy(t, "device_autodiff", d, KL_CHECKPOINT_NONE);
    return (kl_device){0};
}

kl_device kl_device_gradient_checkpointing(kl_device d, kl_checkpointing bytes)
{
    static const char what[] = "device_gradient_checkpointing";
    struct thread *t = thread_self();
    if (!t)
        return (kl_device){0};
    if (!device_valid(d))
        report(t, KL_ERR_DEVICE, "%s: %u is no device", what, d.id);
    else if (!device_strategy(d))
        report(t, KL_ERR_GRAD, "%s: device %s is plain: kl_device_autodiff comes first", what, kl_device_name(d));
    else if (bytes < KL_CHECKPOINT_NONE)
        report(t, KL_ERR_ARGUMENT, "%s: %lld is no number of bytes", what, (long long)bytes);
    else
        return with_strategy(t, what, d, bytes);
    return (kl_device){0};
}

kl_device kl_device_inner(kl_device d)
{
    struct thread *t = thread_self();
    if (t && device_valid(d))
        return device_of((unsigned)device_index(d));
    if (t)
        report(t, KL_ERR_DEVICE, "device_inner: %u is no device", d.id);
    return (kl_device){0};
}

bool kl_device_is_autodiff(kl_device d) { return device_valid(d) && device_strategy(d); }

kl_checkpointing kl_device_checkpointing(kl_device d)
{
    return device_valid(d) ? strategy_bytes(device_strategy(d)) : KL_CHECKPOINT_UNSET;
}

/* ---- combining operands ---- */

static bool strategies_meet(unsigned a, unsigned b, struct err *e)
{
    char x[32], y[32];
    return err_set(e, KL_ERR_GRAD, "Autodiff strategy mismatch: %s vs %s. The tensors of an op share one.",
                   strategy_text(a, x, sizeof x), strategy_text(b, y, sizeof y));
}

bool ad_join(uint16_t *ad, const struct entry *first, const struct entry *x, struct err *e)
{
    unsigned a = *ad >> 1, b = x->ad >> 1;
    if (first->device != x->device || (*ad ^ x->ad) & AD_ON)
        return err_set(e, KL_ERR_DEVICE, "operands are on devices %s and %s", kl_device_name(entry_device(first)),
                       kl_device_name(entry_device(x)));
    if (a && b && a != b)
        return strategies_meet(a, b, e);
    *ad |= x->ad; /* an operand without a strategy takes the other's */
    return true;
}

bool ad_to(uint16_t ad, const struct entry *x, kl_device to, struct err *e)
{
    uint16_t there = device_ad(to);
    if ((ad ^ there) & AD_ON)
        return err_set(e, KL_ERR_DEVICE,
                       "the tensor is on %s, which is not for device %s: kl_inner and kl_from_inner lead to and "
                       "from autodiff devices", kl_device_name(entry_device(x)), kl_device_name(to));
    return !(ad & AD_ON) || ad == there || strategies_meet(ad >> 1, there >> 1, e);
}

/* ---- tensors ---- */

/* The autodiff flags of h, and whether it is a float; false: reported. */
static bool read_autodiff_flags(struct thread *t, const char *op, kl_tensor h, uint16_t *ad, bool *real)
{
    struct view v;
    if (!describe(t, op, "the tensor", h, &v))
        return false;
    *ad = entry_peek(h)->ad;
    *real = dtype_is_float(v.dtype);
    return true;
}

/* The same tensor on the other device.  For integers and bools it is the same node; for a float no gradient flows
 * through it. */
static kl_tensor cross_plain(struct thread *t, kl_tensor h, bool stop, uint16_t ad)
{
    kl_tensor y = stop ? kl_detach(h) : wrapper_duplicate(t, h);
    struct entry *x = entry_peek(y);
    if (x && x->kind != KIND_POISON)
        x->ad = ad;
    return y;
}

static kl_tensor level_cross(struct thread *t, kl_tensor h, bool real, uint16_t ad)
{
    const struct wrapper *w = wrapper_of(h, NULL);
    if (!w)
        return cross_plain(t, h, real, ad);
    if (!(t = compose_begin(NULL)))
        return kl_none;
    kl_tensor part[MAX_PARTS] = {{0}};
    for (uint32_t i = 0; i < w->n; i++)
        if (w->part[i].id) { /* gradients flow through integers that were made by rounding */
            bool stop = dtype_is_float(view_of(w->part[i]).dtype) || gradient_flows(t, w->part[i]);
            part[i] = cross_plain(t, w->part[i], stop, ad);
        }
    struct view v = view_of(h);
    kl_tensor y = wrap(t, w->layer, &v, w->n, part, w->number);
    struct entry *x = entry_peek(y);
    if (x && x->kind != KIND_POISON)
        x->ad = ad;
    return compose_end(t, y);
}

kl_tensor kl_inner(kl_tensor h)
{
    struct thread *t = thread_self();
    uint16_t ad;
    bool real;
    if (!t || !read_autodiff_flags(t, "inner", h, &ad, &real))
        return t ? poison(t) : kl_none;
    if (!(ad & AD_ON))
        return refuse(t, KL_ERR_GRAD, "inner: %s", plain_tensor);
    return level_cross(t, h, real, ad & (uint16_t)~AD_ON);
}

kl_tensor kl_from_inner(kl_tensor h)
{
    struct thread *t = thread_self();
    uint16_t ad;
    bool real;
    if (!t || !read_autodiff_flags(t, "from_inner", h, &ad, &real))
        return t ? poison(t) : kl_none;
    if (ad & AD_ON)
        return refuse(t, KL_ERR_GRAD, "from_inner: %s", wrapped_tensor);
    if (!ad)
        ad = device_ad(kl_device_autodiff(device_of(entry_peek(h)->device)));
    return ad ? level_cross(t, h, real, ad | AD_ON) : poison(t);
}

kl_checkpointing kl_checkpointing_of(kl_tensor h)
{
    const struct entry *x = thread_self() ? entry_peek(h) : NULL;
    return x ? strategy_bytes(x->ad >> 1) : KL_CHECKPOINT_UNSET;
}

bool ad_requires(struct thread *t, const char *op, kl_tensor h)
{
    uint16_t ad;
    bool real;
    struct view v;
    if (!read_autodiff_flags(t, op, h, &ad, &real) || !describe(t, op, "the tensor", h, &v))
        return false;
    if (!(ad & AD_ON))
        return fail(t, KL_ERR_GRAD, "%s: %s", op, plain_tensor) == KL_OK;
    return real || fail(t, KL_ERR_TYPE, "%s: Should be float, got %s", op, dtype_name(v.dtype)) == KL_OK;
}

bool ad_replaces(const struct entry *x, const struct entry *gradient, struct err *e)
{
    unsigned a = x->ad >> 1, b = gradient->ad >> 1;
    if (gradient->ad & AD_ON)
        return err_set(e, KL_ERR_GRAD, "%s", wrapped_tensor);
    if (x->device != gradient->device)
        return err_set(e, KL_ERR_DEVICE, "The provided tensors are not on the same backend. Got backends %s and %s.",
                       kl_device_name(device_of(x->device)), kl_device_name(device_of(gradient->device)));
    return !b || a == b || strategies_meet(a, b, e);
}
