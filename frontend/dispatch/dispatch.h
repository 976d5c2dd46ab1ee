/* Internal header of dispatch: components of key sets, the tables of ops, and resolving. include/kiln/dispatch.h
 * defines the semantics.
 *
 * An op's table is written under a lock and read without one.  Entries point to kernel records, which are never changed
 * or freed, so a reader during a change sees each entry either before or after it. */
#ifndef KILN_DISPATCH_INTERNAL_H
#define KILN_DISPATCH_INTERNAL_H
#define KL_NO_CALL_SITES
#include "ir/graph/custom.h"
#include "ir/ir.h"
#include <kiln/dispatch.h>
#include <stdatomic.h>

/* ---- key.c: components ---- */
enum { /* positions of devices in a set, + 1 */
    DEV_None, DEV_Ref, DEV_CPU, DEV_CUDA, DEV_HIP, DEV_FPGA, DEV_MSNPU, DEV_XLA, DEV_Vulkan, DEV_Metal, DEV_XPU,
        DEV_MKLDNN,
    DEV_OpenGL, DEV_OpenCL, DEV_IDEEP, DEV_PrivateUse1, DEV_PrivateUse2, DEV_PrivateUse3, DEV_SLOTS
};
enum { DEV_BITS = 20 };                     /* the bits of layers are above */
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
/* All component bits. */
#define COMPONENTS                                                                                                     \
    ((UINT64_C(1) << (DEV_BITS + LAYER_COUNT - 1)) - 1 - DEV_MASK + ((UINT64_C(1) << (DEV_SLOTS - 1)) - 1))
/* A set with this bit orders its layers as kl_key16. */
#define ORDER_16 (UINT64_C(1) << 63)
_Static_assert(DEV_BITS + LAYER_COUNT - 1 < 64, "it is no component");
#define SET_BITS (COMPONENTS | ORDER_16)
/* Keys that every call has besides those of its arguments. */
#define ALWAYS_INCLUDED (LAYER_BIT(LAYER_Autograd) | LAYER_BIT(LAYER_BackendSelect))
/* Storage layers whose gradients are AutogradOther's. */
#define AUTOGRAD_OTHER                                                                                     \
    (LAYER_BIT(LAYER_Sparse) | LAYER_BIT(LAYER_Quantized) | LAYER_BIT(LAYER_Complex) | LAYER_BIT(LAYER_Mkldnn) | \
     LAYER_BIT(LAYER_CustomRNG) | LAYER_BIT(LAYER_Meta))
struct key_info { const char *name; uint8_t device, layer; };
extern const struct key_info key_info[KL_KEY_COUNT];
/* The key of a layer on a device if there is one, else the layer's key,
 * by position of the device; a power of two, so that indexing a row needs no multiplication */
extern uint8_t key_at[LAYER_COUNT][32];
void keys_start(void);                      /* fills key_at; once */
extern const uint64_t key_own_bit[KL_KEY_COUNT + 1]; /* the bit of each key, and of the alias Autograd */
/* all components below the key, and ORDER_16; valid for sets without ORDER_16 */
extern const uint64_t key_below[KL_KEY_COUNT + 1];
static inline uint64_t key_own(kl_key key)  /* the bit of its layer or, for a device key, of the device */
{
    return (unsigned)key <= KL_KEY_Autograd ? key_own_bit[key] : 0;
}
unsigned highest_16(uint64_t layers);       /* the position of the highest bit in that order; there is at least one */
uint64_t below_16(uint64_t bits, uint64_t own); /* the components below in that order; own: a key's bit */
static inline uint64_t keys_below(uint64_t bits, kl_key key)
{
    return __builtin_expect((bits & ORDER_16) != 0, 0) ? below_16(bits, key_own_bit[key]) : bits & key_below[key];
}
/* ---- compat/alias.c ---- */
bool key_in_alias(kl_key key, kl_key alias); /* does the alias stand for the key? */
const char *alias_name(kl_key key);          /* the alias's name; "UNKNOWN_TENSOR_TYPE_ID" for no key */
kl_key key_other_name(const char *name);     /* by an alternative name, else KL_KEY_UNKNOWN */
unsigned device_component(const char *device); /* "cpu", "cuda:1"; DEV_None: there is no such key */

static inline unsigned top_device(uint64_t bits)
{
    return 64 - (unsigned)__builtin_clzll((bits & DEV_MASK) << 1 | 1) - 1;
}
/* The Autograd key for tensors that are not stored dense. */
static inline kl_key autograd_key(uint64_t bits, kl_key dense)
{
    return bits & AUTOGRAD_OTHER ? KL_KEY_AutogradOther
           : bits & LAYER_BIT(LAYER_Nested) ? KL_KEY_AutogradNestedTensor : dense;
}

/* ---- dispatch.c: ops and their tables ---- */
enum kernel_kind { KERNEL_BUILTIN, KERNEL_SELECT, KERNEL_FALLTHROUGH, KERNEL_CALL, KERNEL_RUN, KERNEL_AMBIGUOUS,
                   KERNEL_LAYER, KERNEL_TRANSFORM /* KERNEL_TRANSFORM: vmap, autocast and other transforms */ };
/* Would the kernel pass this call on unchanged? Called before the call's data is prepared. found: the entries of its
 * nin operands, NULL for invalid handles. */
struct thread;
struct call;
struct entry;
typedef bool call_idle(const struct thread *t, const struct call *call, uint32_t nin, struct entry *const *found);
/* Never changed or freed: registering the same functions finds the same record. */
struct op_kernel {
    struct op_kernel *next;
    uint8_t kind;
    /* called without further checks: users' kernels, most transforms */
    bool at_once;
    char name[32];
    kl_kernel fn;
    char *schema;                           /* NULL: not given */
    const struct layer *layer;              /* KERNEL_LAYER: the layer it belongs to (layers/wrapper.h) */
    call_idle *idle;                        /* KERNEL_TRANSFORM: or NULL */
    uint64_t marks;                         /* KERNEL_TRANSFORM: layers that its results get */
    const struct custom_op *custom;         /* KERNEL_RUN: the custom op of its nodes */
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
    /* by device: the layers with a kernel that is not a fallthrough, and ORDER_16 */
    _Atomic uint64_t mask[DEV_SLOTS];
    _Atomic(const struct op_kernel *) entry[KL_KEY_COUNT]; /* NULL: missing */
    uint8_t tag[KL_KEY_COUNT];              /* this and the fields below are guarded by the lock */
    uint16_t graph_op;                      /* of ops.def; 0: user-defined */
    struct registration *impl;              /* newest first */
    uint64_t defined;                       /* the defining registration; 0: only kernels so far */
    uint32_t nin, nout;                     /* from its schema; VARIES: any number */
    char name[CUSTOM_NAME];
    char *schema;
    struct dispatch_op *next;
};
#define VARIES UINT32_MAX
extern struct dispatch_op graph_ops[OP_COUNT];
extern const struct op_kernel kernel_builtin;
bool dispatch_start(void);                  /* called once before the first call; false: out of memory */
struct dispatch_op *dispatch_find(const char *name); /* NULL: nothing is registered under the name */
bool dispatch_defined(const struct dispatch_op *op); /* false for NULL */
/* Adds a custom op: defined, with its own function as the kernel of DefaultBackend. */
bool dispatch_define_custom(const struct custom_op *op, struct err *e);
void dispatch_lock(void);
void dispatch_unlock(void);
/* The numbers of tensors in "(Tensor a, Tensor b) -> Tensor"; false: no valid schema. */
bool schema_counts(const char *schema, uint32_t *nin, uint32_t *nout);

/* Registers a kernel of Kiln's for a layer, for one op or, without a name, for all ops that have none.  A kernel that a
 * user has registered for the op stays. false: *e, also if there is a fallback of a user. */
struct transform {
    kl_kernel kernel;
    call_idle *idle;                        /* NULL: it is never idle */
    /* nonzero: `call` only adds these layers to the results of what it passes on */
    uint64_t marks;
};
bool dispatch_layer(const char *op, kl_key key, const struct transform *transform, struct err *e);

/* The highest layer's kernel or, without one, the device's, and its key; *rest: the bits without it. order_16: for bits
 * with that flag. */
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
/* The kernel for a set of keys, and its key.  NULL: there is none for *key.  dispatch_top returns only the first
 * look-up: NULL or a fallthrough where more is needed. */
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

/* Is the kernel the one that records the op's own node, with no layer above it? Always false for sets with ORDER_16,
 * which are rare. */
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
/* Logs that the thread's call resolved to this key: "call", "redispatch", or "densify" for a layer's conversion before
 * it. */
void dispatch_note(struct thread *t, const struct dispatch_op *op, kl_key key, const char *how);
/* The error for a missing kernel. */
bool dispatch_missing(const struct dispatch_op *op, kl_key key, struct err *e);

/* ---- backend_kernel.c: a kernel `run` as a custom op ---- */
/* Registers the custom op for nodes of this kernel, if it is not; NULL: *e. */
const struct custom_op *backend_custom(const struct dispatch_op *op, const kl_kernel *fn, struct err *e);

#endif
