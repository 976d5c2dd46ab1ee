/* Dispatch: which kernel an op runs, and user-defined kernels.  Included by <kiln/kiln.h>.
 *
 * Every call of an op forms a set of keys and runs the kernel that the op's table has for the highest of them:
 *
 *     highest(((devices and layers of all arguments) or included here) minus excluded here) and not fallthrough(op)
 *
 * A set consists of components: devices (CPU, CUDA, ...) and layers above them (Sparse, Autograd, Tracer, ...).  A key
 * is a device, a layer, or a layer on a device (SparseCUDA).  Each op has a table with an entry for each key, which is
 * computed when kernels are registered or deregistered.  A layer without a kernel is skipped; a device without one is
 * an error.
 *
 *     static kl_status count(void *ctx, kl_call *call, kl_keyset keys)
 *     {
 *         ++*(int *)ctx;
 *         return kl_redispatch_below(call);
 *     }
 *
 *     kl_dispatch_fallback(KL_KEY_User1, &(kl_kernel){.name = "count", .call = count, .ctx = &n}, NULL);
 *     kl_guard before = kl_dispatch_guard(kl_keyset_of(KL_KEY_User1), (kl_keyset){0});
 *     y = kl_add(a, b);                                                         // n is 1
 *     kl_dispatch_restore(before);
 *
 * Any thread may dispatch while another registers: a call sees the table before or after.  A kernel's `call` runs on
 * the thread that records, its `run` on one that computes. */
#ifndef KILN_DISPATCH_H
#define KILN_DISPATCH_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- keys ---- */

/* X(name, its device, its layer), lowest priority first. */
#define KL_KEYS(X)                                                                                                   \
    X(Undefined, None, Dense) X(Ref, Ref, Dense) X(CPU, CPU, Dense) X(CUDA, CUDA, Dense) X(HIP, HIP, Dense)          \
    X(FPGA, FPGA, Dense) X(MSNPU, MSNPU, Dense) X(XLA, XLA, Dense) X(Vulkan, Vulkan, Dense) X(Metal, Metal, Dense)   \
    X(XPU, XPU, Dense) X(MKLDNN, MKLDNN, Dense) X(OpenGL, OpenGL, Dense) X(OpenCL, OpenCL, Dense)                    \
    X(IDEEP, IDEEP, Dense) X(PrivateUse1, PrivateUse1, Dense) X(PrivateUse2, PrivateUse2, Dense)                     \
    X(PrivateUse3, PrivateUse3, Dense)                                                                               \
    X(Sparse, None, Sparse) X(SparseCPU, CPU, Sparse) X(SparseCUDA, CUDA, Sparse) X(SparseHIP, HIP, Sparse)          \
    X(SparseXPU, XPU, Sparse)                                                                                        \
    X(Quantized, None, Quantized) X(QuantizedCPU, CPU, Quantized) X(QuantizedCUDA, CUDA, Quantized)                  \
    X(QuantizedXPU, XPU, Quantized) X(NestedTensor, None, Nested)                                                    \
    X(Complex, None, Complex) X(ComplexCPU, CPU, Complex) X(ComplexCUDA, CUDA, Complex)                              \
    X(MkldnnCPU, CPU, Mkldnn) X(CustomRNGKeyId, None, CustomRNG) X(Meta, None, Meta)                                 \
    X(BackendSelect, None, BackendSelect) X(Named, None, Named)                                                      \
    X(AutogradOther, None, Autograd) X(AutogradCPU, CPU, Autograd) X(AutogradCUDA, CUDA, Autograd)                   \
    X(AutogradXLA, XLA, Autograd) X(AutogradNestedTensor, None, Autograd) X(AutogradXPU, XPU, Autograd)              \
    X(AutogradPrivateUse1, PrivateUse1, Autograd) X(AutogradPrivateUse2, PrivateUse2, Autograd)                      \
    X(AutogradPrivateUse3, PrivateUse3, Autograd)                                                                    \
    X(Tracer, None, Tracer) X(Autocast, None, Autocast) X(Batched, None, Batched) X(VmapMode, None, VmapMode)        \
    X(TESTING_ONLY_GenericWrapper, None, GenericWrapper) X(TESTING_ONLY_GenericMode, None, GenericMode)              \
    X(Profiler, None, Profiler) X(TracerOuter, None, TracerOuter)                                                    \
    X(User1, None, User1) X(User2, None, User2) X(User3, None, User3) X(User4, None, User4) X(User5, None, User5)

/* The keys that tables have an entry for, then alias keys.  An alias is only used for registering and stands for
 * several keys: Autograd (every Autograd* key), Math (Undefined, all backends and all of Autograd: for a kernel made of
 * other ops) and DefaultBackend (Undefined and all backends). */
typedef enum kl_key {
#define KL_KEY_ENUM_(name, device, layer) KL_KEY_##name,
    KL_KEYS(KL_KEY_ENUM_)
#undef KL_KEY_ENUM_
    KL_KEY_COUNT,
    KL_KEY_Autograd = KL_KEY_COUNT, KL_KEY_Math, KL_KEY_DefaultBackend,
    KL_KEY_UNKNOWN = 255
} kl_key;
#ifdef __cplusplus
static_assert(KL_KEY_COUNT < 64, "keys fit a 64-bit set");
#else
_Static_assert(KL_KEY_COUNT < 64, "keys fit a 64-bit set");
#endif

/* "SparseCUDA"; "UNKNOWN_TENSOR_TYPE_ID" for an invalid key. */
KL_API const char *kl_key_name(kl_key key);
/* Finds a key by its name or by an alternative one: CPUTensorId, CUDATensorId, PrivateUse1_PreAutograd, Cpu, Cuda,
 * Nested, Vmap, CatchAll, CompositeImplicitAutograd, CompositeExplicitAutograd.  KL_KEY_UNKNOWN: no key has that
 * name. */
KL_API kl_key kl_key_find(const char *name);
KL_API bool kl_key_is_alias(kl_key key);
/* Whether the key is a device, or a layer that stands for storage on one (Sparse*, Quantized*, NestedTensor, Complex*,
 * MkldnnCPU, CustomRNGKeyId, Meta). */
KL_API bool kl_key_is_backend(kl_key key);
/* The key under which a backend's gradients are registered; AutogradOther for a backend without its own, and for a key
 * that is no backend. */
KL_API kl_key kl_key_autograd(kl_key backend);

/* ---- sets ---- */

typedef struct kl_keyset { uint64_t bits; } kl_keyset;

/* The components of a key; of the alias Autograd its layer; nothing for Undefined and for the other aliases. */
KL_API kl_keyset kl_keyset_of(kl_key key);
KL_API kl_keyset kl_keyset_add(kl_keyset set, kl_key key);
/* The set without the key's layer or, if the key is a device, without that device. */
KL_API kl_keyset kl_keyset_remove(kl_keyset set, kl_key key);
/* Whether all components of the key are in the set; false for Undefined. */
KL_API bool kl_keyset_has(kl_keyset set, kl_key key);
/* The highest layer on the highest device; Undefined for the empty set. */
KL_API kl_key kl_keyset_highest(kl_keyset set);
/* The components below the key's layer, or below the device if the key is a device: for kl_redispatch. */
KL_API kl_keyset kl_keyset_below(kl_keyset set, kl_key key);
/* The number of components. */
KL_API int64_t kl_keyset_count(kl_keyset set);
/* "{AutogradCPU, CPU}", highest first, cut at size; returns buf. */
KL_API char *kl_keyset_text(kl_keyset set, char *buf, size_t size);
static inline kl_keyset kl_keyset_union(kl_keyset a, kl_keyset b) { a.bits |= b.bits; return a; }
static inline kl_keyset kl_keyset_intersection(kl_keyset a, kl_keyset b) { a.bits &= b.bits; return a; }
static inline kl_keyset kl_keyset_minus(kl_keyset a, kl_keyset b) { a.bits &= ~b.bits; return a; }

/* ---- keys that a thread includes and excludes ---- */

typedef struct kl_guard { kl_keyset included, excluded; } kl_guard;
/* From here on this thread's calls include the first set and exclude the second; exclusion wins.  If an excluded set
 * has layers, only its layers are excluded.  Returns the previous state for kl_dispatch_restore; guards nest. */
KL_API kl_guard kl_dispatch_guard(kl_keyset include, kl_keyset exclude);
KL_API void kl_dispatch_restore(kl_guard before);
KL_API kl_guard kl_dispatch_guarded(void); /* the current state */

/* From here on calls on this handle include these layers; results of the calls do not.  [errors HANDLE] */
KL_API kl_status kl_dispatch_mark(kl_tensor t, kl_keyset layers);

/* ---- kernels ---- */

/* A call being dispatched; valid until the kernel's function returns. */
typedef struct kl_call kl_call;
struct kl_custom_call; /* <kiln/custom.h> */

/* The functions of a kernel.  Without any it is a fallthrough: the key is treated as if it were not in the set. */
typedef struct kl_kernel {
    const char *name;    /* in dumps, logs and errors, cut at 31 bytes; NULL: "kernel" */
    /* Runs while recording: makes the results by calling other ops, kl_redispatch, or both (kl_call_set_result). keys:
     * the whole set of the call.  An error it returns becomes the call's. */
    kl_status (*call)(void *ctx, kl_call *call, kl_keyset keys);
    /* For backends: computes the op on the host when its value is needed, as `run` of kl_custom_op does.  The op
     * becomes an opaque node that is never fused; its shapes, dtypes and gradient are the op's, and its operands are
     * broadcast first.  It must stay callable until everything recorded with it has run. */
    kl_status (*run)(void *ctx, const struct kl_custom_call *call);
    void *ctx;           /* passed to either */
    const char *schema;  /* "(Tensor _0, Tensor _1) -> Tensor": compared with the op's; NULL: not compared */
} kl_kernel;

KL_API const char *kl_call_op(const kl_call *call);             /* the op's name */
KL_API const char *kl_call_schema(const kl_call *call);         /* "add(Tensor a, Tensor b) -> Tensor" */
KL_API kl_key kl_call_key(const kl_call *call);                 /* the key whose kernel runs */
KL_API int64_t kl_call_inputs(const kl_call *call);
KL_API kl_tensor kl_call_input(const kl_call *call, int64_t i); /* kl_none: there is none */
/* sets the operand that kl_redispatch passes on */
KL_API void kl_call_set_input(kl_call *call, int64_t i, kl_tensor t);
KL_API int64_t kl_call_results(const kl_call *call);
KL_API kl_tensor kl_call_result(const kl_call *call, int64_t i); /* kl_none before it is set */
KL_API void kl_call_set_result(kl_call *call, int64_t i, kl_tensor t);
/* Runs the kernel of the highest key in `keys` (guards do not change them); its results become the call's. */
KL_API kl_status kl_redispatch(kl_call *call, kl_keyset keys);
/* Runs the next kernel: kl_redispatch(call, kl_keyset_below(keys, kl_call_key(call))). */
KL_API kl_status kl_redispatch_below(kl_call *call);

/* ---- registering ---- */

typedef struct kl_registration { uint64_t id; } kl_registration; /* {0} is none */

/* Defines an op that kl_dispatch can call, from "name(Tensor a, Tensor b) -> Tensor"; several results are a list in
 * parentheses.  Kernels may be registered for the name before. kl_custom_register also defines an op, with a shape
 * rule, a gradient and a kernel `run`. *out may be NULL, as below.  [errors ARGUMENT: bad schema, the name is taken, a
 * kernel's schema differs; MEMORY] */
KL_API kl_status kl_dispatch_define(const char *schema, kl_registration *out);
/* Registers a kernel for an op, by its name in `kiln ops` or by its defined name, and a key.  It overrides an existing
 * kernel with a warning (kl_dispatch_warning); deregistering it restores the previous one.  Otherwise the order of
 * registrations does not matter.  [errors ARGUMENT: no key, not dispatchable (MKLDNN, OpenGL, OpenCL, IDEEP), `run` for
 * a key that is no backend, `run` and `call` together, a schema that differs; MEMORY; nothing is changed then] */
KL_API kl_status kl_dispatch_register(const char *op, kl_key key, const kl_kernel *kernel, kl_registration *out);
/* Registers a kernel for all ops that have none for the key.  It must be a `call` or a fallthrough, and there can be
 * one for each key.  Kiln registers its own for Autocast, Batched, Profiler, Tracer and TracerOuter when their part of
 * <kiln/transform.h> is first used.  [errors ARGUMENT, also: there is one; MEMORY] */
KL_API kl_status kl_dispatch_fallback(kl_key key, const kl_kernel *kernel, kl_registration *out);
/* Removes a registration of any kind.  [errors ARGUMENT: it is not registered] */
KL_API kl_status kl_dispatch_deregister(kl_registration r);
/* What this thread's last registration overrode; "" if nothing.  Valid until its next registration. */
KL_API const char *kl_dispatch_warning(void);
/* Whether a kernel is registered for exactly this key, aliases included; and the number of keys that have one. */
KL_API bool kl_dispatch_has_kernel(const char *op, kl_key key);
KL_API int64_t kl_dispatch_kernel_count(const char *op);

/* ---- generators ---- */

/* A source of random bits.  Calls through it add this key to the op `random` besides its device's, so a kernel
 * registered for `random` and the key makes the bits from the seed.  Other random numbers do not change. */
typedef struct kl_generator {
    kl_key key;    /* KL_KEY_CustomRNGKeyId, or one of the user's layers */
    uint64_t seed;
} kl_generator;
/* As kl_random_bits, kl_rand and kl_randn.  [lazy; new handle; errors as theirs, and ARGUMENT: g is NULL, or its key no
 * layer] */
KL_API_AT kl_tensor kl_random_bits_from(const kl_generator *g, kl_device device, kl_dtype dtype, int rank,
                                        const int64_t *dims);
KL_API_AT kl_tensor kl_rand_from(const kl_generator *g, kl_device device, kl_dtype dtype, int rank,
                                 const int64_t *dims);
KL_API_AT kl_tensor kl_randn_from(const kl_generator *g, kl_device device, kl_dtype dtype, int rank,
                                  const int64_t *dims);

/* ---- calls by name: user-defined ops, elementwise ops, and custom ops without attributes ---- */

/* Calls an op with nin tensors and nout results.  [lazy; new handles; errors ARGUMENT: no such op, wrong numbers of
 * tensors, no kernel; those of the kernel; results are poison then] */
KL_API_AT kl_status kl_dispatch(const char *op, int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out);
/* The same with exactly these keys, in place of those of the tensors and the thread. */
KL_API_AT kl_status kl_dispatch_with(const char *op, kl_keyset keys, int64_t nin, const kl_tensor *in, int64_t nout,
                                     kl_tensor *out);
/* The same with the kernel of exactly this key. */
KL_API_AT kl_status kl_dispatch_direct(const char *op, kl_key key, int64_t nin, const kl_tensor *in, int64_t nout,
                                       kl_tensor *out);
/* The keys that a call on these tensors has on this thread now; and the key whose kernel it would run, Undefined if
 * none. */
KL_API kl_keyset kl_dispatch_keys(int64_t nin, const kl_tensor *in);
KL_API kl_key kl_dispatch_resolve(const char *op, kl_keyset keys);

/* ---- inspection ---- */

/* All registrations of an op, aliases included; overridden ones are marked (inactive); "" for no such op.  This text
 * and those below are valid until the thread calls one of these functions again; NULL: out of memory. */
KL_API const char *kl_dispatch_dump(const char *op);
/* The op's table: each key's kernel and the reason for it: [kernel], [default backend kernel], [math kernel],
 * [ambiguous autogradother], [autograd kernel], [layer kernel] (of SparseCPU by Sparse's), [backend fallback]; or
 * missing. */
KL_API const char *kl_dispatch_dump_table(const char *op);
/* Recomputes every table and compares it with the current one.  [errors INTERNAL] */
KL_API kl_status kl_dispatch_check(void);
/* Starts a log of this thread's calls. kl_dispatch_log_end returns it: a line "[call] op=[add], key=[CPU]" for each,
 * indented for calls made by kernels, "[redispatch]" for a redispatch, "[densify]" where a sparse operand is first
 * converted to a plain one.  With KILN_DISPATCH_TRACE=1 in the environment each thread prints the lines to stderr. */
KL_API void kl_dispatch_log_begin(void);
KL_API const char *kl_dispatch_log_end(void);
/* How often this thread has looked up its thread-local state: once for each recorded op, whatever layers it passes. */
KL_API uint64_t kl_dispatch_reads(void);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/dispatch.h> /* made from the prototypes marked KL_API_AT */
#endif
