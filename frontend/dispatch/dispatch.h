/* Dispatch inside the library: components of key sets, the tables of ops, and resolving.  include/kiln/dispatch.h says
 * what it means.
 *
 * An op's table is written under a lock and read without one: entries point to kernels, which never change and are
 * never freed, and a reader that sees half of a change sees, key by key, the table before or after. */
#ifndef KILN_DISPATCH_INTERNAL_H
#define KILN_DISPATCH_INTERNAL_H
#define KL_NO_CALL_SITES
#include "ir/graph/custom.h"
#include "ir/ir.h"
#include <kiln/dispatch.h>
#include <stdatomic.h>

/* ---- key.c: components ---- */
enum { /* places of devices in a set, + 1 */
    DEV_None, DEV_Ref, DEV_CPU, DEV_CUDA, DEV_HIP, DEV_FPGA, DEV_MSNPU, DEV_XLA, DEV_Vulkan, DEV_Metal, DEV_XPU,
        DEV_MKLDNN,
    DEV_OpenGL, DEV_OpenCL, DEV_IDEEP, DEV_PrivateUse1, DEV_PrivateUse2, DEV_PrivateUse3, DEV_SLOTS
};
enum { DEV_BITS = 20 };                     /* layers come above them */
enum {
    LAYER_Dense, LAYER_Sparse, LAYER_Quantized, LAYER_Nested, LAYER_Complex, LAYER_Mkldnn, LAYER_CustomRNG, LAYER_Meta,
    LAYER_BackendSelect, LAYER_Named, LAYER_Autograd, LAYER_Tracer, LAYER_Autocast, LAYER_Batched, LAYER_VmapMode,
    LAYER_GenericWrapper, LAYER_GenericMode, LAYER_Profiler, LAYER_TracerOuter, LAYER_User1, LAYER_User2, LAYER_User3,
    LAYER_User4, LAYER_User5, LAYER_COUNT
};
_Static_assert((int)KL_KEY_PrivateUse3 == (int)DEV_PrivateUse3, "a device's key has its number");
_Static_assert(DEV_SLOTS - 1 <= DEV_BITS && DEV_BITS + LAYER_COUNT - 1 <= 64, "a set holds all components");
#define DEV_BIT(dev) (UINT64_C(1) << ((dev)-1))
#define LAYER_BIT(layer) (UINT64_C(1) << (DEV_BITS + (layer)-1))
#define DEV_MASK ((UINT64_C(1) << DEV_BITS) - 1)
/* All bits that are components. */
#define COMPONENTS                                                                                                     \
    ((UINT64_C(1) << (DEV_BITS + LAYER_COUNT - 1)) - 1 - DEV_MASK + ((UINT64_C(1) << (DEV_SLOTS - 1)) - 1))
/* A set with this bit has its layers in the order of kl_key16. */
#define ORDER_16 (UINT64_C(1) << 63)
_Static_assert(DEV_BITS + LAYER_COUNT - 1 < 64, "it is no component");
#define SET_BITS (COMPONENTS | ORDER_16)
/* What every call has besides its arguments' keys. */
#define ALWAYS_INCLUDED (LAYER_BIT(LAYER_Autograd) | LAYER_BIT(LAYER_BackendSelect))
/* Storage whose gradients are AutogradOther's. */
#define AUTOGRAD_OTHER                                                                                     \
    (LAYER_BIT(LAYER_Sparse) | LAYER_BIT(LAYER_Quantized) | LAYER_BIT(LAYER_Complex) | LAYER_BIT(LAYER_Mkldnn) | \
     LAYER_BIT(LAYER_CustomRNG) | LAYER_BIT(LAYER_Meta))
struct key_info { const char *name; uint8_t device, layer; };
extern const struct key_info key_info[KL_KEY_COUNT];
/* The key of a layer on a device: its own, else the layer's. */
/* by place of the device; a power of two, so that finding a row takes nothing */
extern uint8_t key_at[LAYER_COUNT][32];
void keys_start(void);                      /* fills key_at; once */
extern const uint64_t key_own_bit[KL_KEY_COUNT + 1]; /* of each key, and of the alias Autograd */
/* all that is below it, and ORDER_16, in sets without which it is true */
extern const uint64_t key_below[KL_KEY_COUNT + 1];
static inline uint64_t key_own(kl_key key)  /* its layer's bit, or the device's that it is */
{
    return (unsigned)key <= KL_KEY_Autograd ? key_own_bit[key] : 0;
}
unsigned highest_16(uint64_t layers);       /* the place of the bit of the highest one in that order; there is one */
uint64_t below_16(uint64_t bits, uint64_t own); /* what is below in that order; own: a key's */
static inline uint64_t keys_below(uint64_t bits, kl_key key)
{
    return __builtin_expect((bits & ORDER_16) != 0, 0) ? below_16(bits, key_own_bit[key]) : bits & key_below[key];
}
/* ---- compat/alias.c ---- */
bool key_in_alias(kl_key key, kl_key alias); /* is the key one that the alias stands for? */
const char *alias_name(kl_key key);          /* of an alias; of no key: "UNKNOWN_TENSOR_TYPE_ID" */
kl_key key_other_name(const char *name);     /* another spelling of a key's name, else KL_KEY_UNKNOWN */
unsigned device_component(const char *device); /* "cpu", "cuda:1"; DEV_None: no key is called that */

static inline unsigned top_device(uint64_t bits)
{
    return 64 - (unsigned)__builtin_clzll((bits & DEV_MASK) << 1 | 1) - 1;
}
/* Autograd on what is stored in another way than dense. */
static inline kl_key autograd_key(uint64_t bits, kl_key dense)
{
    return bits & AUTOGRAD_OTHER ? KL_KEY_AutogradOther
           : bits & LAYER_BIT(LAYER_Nested) ? KL_KEY_AutogradNestedTensor : dense;
}

/* ---- dispatch.c: ops and their tables ---- */
enum kernel_kind { KERNEL_BUILTIN, KERNEL_SELECT, KERNEL_FALLTHROUGH, KERNEL_CALL, KERNEL_RUN, KERNEL_AMBIGUOUS,
                   KERNEL_LAYER, KERNEL_TRANSFORM /* of vmap, autocast and their kin */ };
/* Would the kernel pass this call on as it is?  Asked before anything is made for the call.  found: the entries of its
 * nin operands, or NULL for what is no handle. */
struct thread;
struct call;
struct entry;
typedef bool call_idle(const struct thread *t, const struct call *call, uint32_t nin, struct entry *const *found);
/* Never changed, never freed: registering an equal one again finds it. */
struct op_kernel {
    struct op_kernel *next;
    uint8_t kind;
    /* it is given the call, and nothing is asked before: a user's, most transforms */
    bool at_once;
    char name[32];
    kl_kernel fn;
    char *schema;                           /* NULL: not given */
    const struct layer *layer;              /* KERNEL_LAYER: whose it is (layers/wrapper.h) */
    call_idle *idle;                        /* KERNEL_TRANSFORM: or NULL */
    uint64_t marks;                         /* KERNEL_TRANSFORM: layers that its results get */
    const struct custom_op *custom;         /* KERNEL_RUN: what its nodes name */
};
enum kernel_tag { TAG_MISSING, TAG_KERNEL, TAG_DEFAULT, TAG_MATH, TAG_AMBIGUOUS, TAG_AUTOGRAD, TAG_LAYER,
                  TAG_FALLBACK };
struct registration {
    struct registration *next;
    const struct op_kernel *kernel;
    uint64_t id;
    uint8_t key;
};
struct dispatch_op {
    /* by device: the layers with a kernel that is no fallthrough, and ORDER_16 */
    _Atomic uint64_t mask[DEV_SLOTS];
    _Atomic(const struct op_kernel *) entry[KL_KEY_COUNT]; /* NULL: missing */
    uint8_t tag[KL_KEY_COUNT];              /* from here on guarded by the lock */
    uint16_t graph_op;                      /* of ops.def; 0: the user's own */
    struct registration *impl;              /* newest first */
    uint64_t defined;                       /* by which registration; 0: only kernels so far */
    uint32_t nin, nout;                     /* of its schema; VARIES: any */
    char name[CUSTOM_NAME];
    char *schema;
    struct dispatch_op *next;
};
#define VARIES UINT32_MAX
extern struct dispatch_op graph_ops[OP_COUNT];
extern const struct op_kernel kernel_builtin;
bool dispatch_start(void);                  /* once, before the first call; false: out of memory */
struct dispatch_op *dispatch_find(const char *name); /* NULL: nothing is registered under the name */
bool dispatch_defined(const struct dispatch_op *op); /* false for NULL */
/* A custom op joins: defined, with its own function as the kernel of DefaultBackend. */
bool dispatch_define_custom(const struct custom_op *op, struct err *e);
void dispatch_lock(void);
void dispatch_unlock(void);
const struct registration *dispatch_fallback_of(kl_key key); /* needs the lock */
const struct op_kernel *dispatch_compute(const struct dispatch_op *op, kl_key key, uint8_t *tag); /* needs the lock */
const struct dispatch_op *dispatch_next(const struct dispatch_op *op); /* all of them, NULL first; needs the lock */
/* How many tensors "(Tensor a, Tensor b) -> Tensor" has; false: it is no schema. */
bool schema_counts(const char *schema, uint32_t *nin, uint32_t *nout);

/* Kiln's own kernel for a layer, of one op or, without a name, of all that have none: there from now on.  One that a
 * user has registered for the op stays.  false: *e, also where a user's fallback is. */
struct transform {
    kl_kernel kernel;
    call_idle *idle;                        /* NULL: it never is */
    /* 0, or all that `call` does to what it passes on: its results get these layers */
    uint64_t marks;
};
bool dispatch_layer(const char *op, kl_key key, const struct transform *transform, struct err *e);

/* The highest layer's kernel or, without one, the device's, and its key; bits without it in *rest.  order_16: of bits
 * with that. */
static inline const struct op_kernel *dispatch_highest(const struct dispatch_op *op, uint64_t bits, unsigned dev,
                                                       bool order_16,
                                                       kl_key *key, uint64_t *rest)
{
    uint64_t layers = bits & atomic_load_explicit(&op->mask[dev], memory_order_relaxed);
    if (order_16)
        layers &= ~ORDER_16;
    unsigned top = !layers ? DEV_BITS - 1 : order_16 ? highest_16(layers) : 63 - (unsigned)__builtin_clzll(layers);
    unsigned layer = top + 1 - DEV_BITS;
    kl_key k = (kl_key)key_at[layer][dev];
    if (__builtin_expect(layer == LAYER_Autograd, 0))
        k = autograd_key(bits, k);
    *key = k;
    *rest = bits & ~(layers ? UINT64_C(1) << top : dev ? DEV_BIT(dev) : 0);
    return atomic_load_explicit(&op->entry[k], memory_order_acquire);
}
/* The kernel for a set of keys, and the key.  NULL: there is none for *key.  The top: what is found at first, where it
 * takes more to say NULL or a fallthrough. */
const struct op_kernel *dispatch_resolve_lower(const struct dispatch_op *op, uint64_t bits, kl_key *key);
static inline const struct op_kernel *dispatch_top(const struct dispatch_op *op, uint64_t bits, unsigned dev,
                                                   kl_key *key)
{
    uint64_t rest;
    if (__builtin_expect(bits & ORDER_16, 0))
        return NULL;
    return dispatch_highest(op, bits, dev, false, key, &rest);
}
static inline const struct op_kernel *dispatch_from_top(const struct dispatch_op *op, uint64_t bits,
                                                        const struct op_kernel *top,
                                                        kl_key *key)
{
    return __builtin_expect(top && top->kind != KERNEL_FALLTHROUGH, 1) ? top : dispatch_resolve_lower(op, bits, key);
}
static inline const struct op_kernel *dispatch_resolve(const struct dispatch_op *op, uint64_t bits, kl_key *key)
{
    return dispatch_from_top(op, bits, dispatch_top(op, bits, top_device(bits), key), key);
}

/* Is that the kernel that records the op's own node, with no layer above it?  Never of a set with ORDER_16: those are
 * seldom. */
static inline bool dispatch_is_node_on(const struct dispatch_op *op, uint64_t bits, unsigned dev)
{
    return !(bits & atomic_load_explicit(&op->mask[dev], memory_order_relaxed)) &&
           atomic_load_explicit(&op->entry[dev], memory_order_acquire) == &kernel_builtin;
}
static inline bool dispatch_is_node(const struct dispatch_op *op, uint64_t bits)
{
    return dispatch_is_node_on(op, bits, top_device(bits));
}

/* ---- text.c ---- */
struct text;
struct dispatch_log { char *s; uint32_t len, cap; bool on, print; };
void dispatch_log_start(struct thread *t);
/* The thread, which watches, has resolved a call to this key: "call", "redispatch", or what its layer does first,
 * "densify". */
void dispatch_note(struct thread *t, const struct dispatch_op *op, kl_key key, const char *how);
/* What is missing, as the error that a user gets. */
bool dispatch_missing(const struct dispatch_op *op, kl_key key, struct err *e);
void dispatch_table_text(const struct dispatch_op *op, struct text *t); /* takes the lock */

/* ---- backend_kernel.c: a kernel `run` as a custom op ---- */
/* The op that nodes of this kernel name, registered now; NULL: *e. */
const struct custom_op *backend_custom(const struct dispatch_op *op, const kl_kernel *fn, struct err *e);

#endif
