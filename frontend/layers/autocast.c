/* Autocast: casts operands before an op is recorded, by the op's policy (the autocast column of ops.def):
 *
 *   LOWER    to the block's dtype: products
 *   FP32     to f32: ops that lose precision or range in a narrow type
 *   PROMOTE  to the widest of the operands' dtypes
 *   ANY      not at all
 *
 * Only f16, bf16 and f32 are cast; a call with an f64 operand is unchanged.  Composites whose first step would lose
 * precision (softmax, norms, losses) widen their operands themselves (nn/widen.c).  A narrow copy of a tensor from
 * outside of the trace, such as a weight, is made once for each block. */
#include "transform.h"
#include <string.h>

enum policy { ANY, LOWER, FP32, PROMOTE };
enum { NARROWED = 256 };      /* copies that are remembered; a power of two */

/* A narrow copy; valid while the tensor has the same value. */
struct narrowed {
    kl_tensor from, to;
    const struct trace *tr;   /* NULL: outside of traces */
    ref node;                 /* in the trace: the version of `from` */
    uint32_t version;         /* outside */
    uint8_t dtype;
};
struct autocast {
    uint8_t dtype[AUTOCAST_DEEPEST];
    unsigned depth;
    struct narrowed of[NARROWED];
};

static const struct autocast *autocast_is_active(const struct thread *t)
{
    const struct autocast *a = t->autocast;
    return a && a->depth && (t->included & ~t->excluded & LAYER_BIT(LAYER_Autocast)) ? a : NULL;
}
static kl_dtype block_dtype(const struct autocast *a) { return (kl_dtype)a->dtype[a->depth - 1]; }

enum { CAST = 1u << KL_F16 | 1u << KL_BF16 | 1u << KL_F32 };
static bool is_cast(unsigned dtype) { return dtype < KL_DTYPE_COUNT && CAST >> dtype & 1; }

/* ---- narrow copies ---- */

/* The values that identify a copy; false: none of this tensor can be remembered. */
static bool describe_copy(const struct thread *t, kl_tensor h, kl_dtype dtype, struct narrowed *n)
{
    struct entry *x = entry_peek(h);
    const struct trace *tr = thread_trace(t);
    if (!x || x->kind != KIND_VALUE)
        return false;
    struct binding *b = tr ? trace_binding(t->trace, h) : NULL;
    *n = (struct narrowed){.from = h, .tr = tr, .node = b ? b->node : NIL, .version = tr ? 0 : x->version,
                           .dtype = (uint8_t)dtype};
    return true;
}

static bool still_good(const struct narrowed *old, const struct narrowed *now)
{
    const struct entry *x = entry_peek(old->to);
    return old->from.id == now->from.id && old->tr == now->tr && old->node == now->node &&
        old->version == now->version &&
           old->dtype == now->dtype && x && x->kind == (now->tr ? KIND_TEMP : KIND_VALUE) &&
               (!now->tr || x->trace == now->tr);
}

/* Outside of traces a copy is kept for the block. */
static void autocast_forget(struct narrowed *n)
{
    if (n->to.id && !n->tr) {
        front_lock();
        if (entry_peek(n->to))
            handle_end(n->to, DEATH_SCOPE);
        front_unlock();
    }
    n->to = kl_none;
}

static kl_tensor autocast_narrow(struct thread *t, kl_tensor h, kl_dtype dtype)
{
    struct narrowed now, *n = &t->autocast->of[(uint32_t)h.id * UINT32_C(0x9E3779B1) >> 24 & (NARROWED - 1)];
    if (!describe_copy(t, h, dtype, &now))
        return kl_cast(h, dtype);
    if (still_good(n, &now))
        return n->to;
    kl_tensor to = kl_cast(h, dtype);
    if (kl_check(to) != KL_OK)
        return to;
    if (now.tr)
        now.node = trace_binding(t->trace, h)->node; /* the node to which the cast may have bound it */
    else
        kl_keep(to);
    autocast_forget(n);
    *n = now;
    return n->to = to;
}

/* ---- the layer ---- */

static const uint8_t policy_of[OP_COUNT] = {
#define ST(name, min, max, traits, attributes, autocast, ...) [OP_##name] = autocast,
#define EW1(name, types, value, ga, autocast, doc) [OP_##name] = autocast,
#define EW2(name, types, value, ga, gb, autocast, doc) [OP_##name] = autocast,
#define EW3(name, types, value, ga, gb, gc, autocast, doc) [OP_##name] = autocast,
#include "ir/ops/ops.def"
};

/* The dtype to which operands of other dtypes are cast if autocast is active; KL_DTYPE_COUNT: there are none. */
static inline unsigned autocast_target_dtype(const struct thread *t, const struct call *call, uint32_t nin,
                                             struct entry *const *found)
{
    const struct autocast *a = t->autocast;
    enum policy policy = policy_of[call->proto.op];
    uint32_t dtypes = 0;
    if (!a || !a->depth || policy == ANY)
        return KL_DTYPE_COUNT;
    for (uint32_t i = 0; i < nin; i++) {
        dtypes |= UINT32_C(1) << entry_dtype(found[i]);
        if (found[i] && found[i]->kind == KIND_WRAPPER) /* the layer's ops on its parts are cast instead */
            return KL_DTYPE_COUNT;
    }
    uint32_t cast = dtypes & CAST;
    unsigned to = policy == LOWER ? block_dtype(a) : KL_F32; /* the widest of several */
    bool stay = dtypes >> KL_F64 & 1 || !(cast & ~(UINT32_C(1) << to)) || (policy == PROMOTE && !(cast & (cast - 1)));
    return stay ? (unsigned)KL_DTYPE_COUNT : to;
}

static bool nothing_to_cast(const struct thread *t, const struct call *call, uint32_t nin, struct entry *const *found)
{
    return autocast_target_dtype(t, call, nin, found) == KL_DTYPE_COUNT;
}

static kl_status autocast_call(void *ctx, kl_call *c, kl_keyset keys)
{
    (void)ctx, (void)keys;
    unsigned dtype = c->graph && autocast_is_active(c->t) ? autocast_target_dtype(c->t, c->graph, c->nin, call_found(c))
        : (unsigned)KL_DTYPE_COUNT;
    bool casts = dtype != KL_DTYPE_COUNT, scope = casts && !c->t->tracing; /* of the casts */
    if (scope && !compose_begin_on(c->t, NULL))
        return fail(c->t, KL_ERR_MEMORY, "%s: out of memory", call_label(c));
    if (casts) {
        struct thread_layers before = layers_save(c->t);
        c->t->excluded |= COMPONENTS & ~keys_below(COMPONENTS | (c->keys & ORDER_16), KL_KEY_Autocast);
        for (uint32_t i = 0; i < c->nin; i++) {
            unsigned d = entry_dtype(entry_peek(c->in[i]));
            if (is_cast(d) && d != dtype)
                c->in[i] = dtype == KL_F32 ? kl_cast(c->in[i], KL_F32)
                    : autocast_narrow(c->t, c->in[i], (kl_dtype)dtype);
        }
        layers_restore(c->t, before);
        c->reads = 0;
    }
    kl_status status = kl_redispatch_below(c);
    if (scope)
        compose_end_all(c->t, c->out, c->nout);
    return status;
}

bool autocast_is_on(const struct thread *t)
{
    return autocast_is_active(t) != NULL;
}

bool autocast_refuses(struct thread *t, const char *op, const char *instead)
{
    return autocast_is_active(t) &&
           fail(t, KL_ERR_TYPE, "%s: unsafe to autocast: the probabilities that it takes have lost what a narrow "
                "dtype cannot hold. Use %s, which takes what they are made of and is safe, or compute in a block "
                "kl_autocast_begin(KL_F32)",
                op, instead) != KL_OK;
}

/* ---- blocks ---- */

static void autocast_include_key(struct thread *t)
{
    const struct autocast *a = t->autocast;
    bool on = a->depth && block_dtype(a) != KL_F32;
    t->included = (t->included & ~LAYER_BIT(LAYER_Autocast)) | (on ? LAYER_BIT(LAYER_Autocast) : 0);
}

unsigned autocast_depth(const struct thread *t) { return t->autocast ? t->autocast->depth : 0; }

void autocast_end_to(struct thread *t, unsigned depth)
{
    if (autocast_depth(t) == depth)
        return;
    t->autocast->depth = depth;
    for (unsigned i = 0; i < NARROWED && !depth; i++)
        autocast_forget(&t->autocast->of[i]);
    autocast_include_key(t);
}

kl_status kl_autocast_begin(kl_dtype dtype)
{
    static const struct transform layer = {.kernel = {.name = "autocast policies", .call = autocast_call},
                                           .idle = nothing_to_cast};
    struct thread *t = thread_self();
    struct err e;
    e.code = KL_OK;
    if (!t)
        return KL_ERR_MEMORY;
    if (!is_cast(dtype))
        return fail(t, KL_ERR_TYPE,
                    "autocast_begin: products are computed in f16 or bf16 (f32: in a block without it), not %s",
                    (unsigned)dtype < KL_DTYPE_COUNT ? dtype_name(dtype) : "a dtype that does not exist");
    if (!t->autocast && !(t->autocast = mem_alloc(sizeof *t->autocast)))
        return fail(t, KL_ERR_MEMORY, "autocast_begin: out of memory");
    if (t->autocast->depth == AUTOCAST_DEEPEST)
        return fail(t, KL_ERR_ARGUMENT, "autocast_begin: more than %d blocks in one another", AUTOCAST_DEEPEST);
    if (!dispatch_layer(NULL, KL_KEY_Autocast, &layer, &e))
        return fail(t, e.code, "autocast_begin: %s", e.msg);
    t->autocast->dtype[t->autocast->depth++] = (uint8_t)dtype;
    autocast_include_key(t);
    return KL_OK;
}

kl_status kl_autocast_end(void)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    unsigned depth = autocast_depth(t);
    if (depth == t->floor.autocast)
        return fail(t, KL_ERR_ARGUMENT, "autocast_end: %s",
                    depth ? "the block was begun outside of this function or suspension" : "no block is open");
    autocast_end_to(t, depth - 1);
    return KL_OK;
}

kl_dtype kl_autocast_dtype(void)
{
    struct thread *t = thread_self();
    const struct autocast *a = t ? autocast_is_active(t) : NULL;
    return a ? block_dtype(a) : KL_F32;
}
