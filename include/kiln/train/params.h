/* Parameters by name, and their initial values.  Included by <kiln/train.h>.
 *
 *     kl_params *params = kl_params_new(dev, KL_F32, 42);
 *     kl_init init = {.kind = KL_INIT_KAIMING_NORMAL, .gain = KL_GAIN_RELU, .fan_in = 784};
 *     kl_tensor w = kl_params_make(params, "fc.weight", 2, (int64_t[]){784, 10}, &init);
 *     kl_tensor b = kl_params_make(params, "fc.bias", 1, (int64_t[]){10}, NULL);
 *     kl_params_set_decay(params, "*.bias", 0);                     // no weight decay
 *     int64_t n;
 *     const kl_tensor *list = kl_params_trained(params, &n);
 *     kl_optimizer *opt = kl_adam(n, list, NULL);
 *     kl_optimizer_attach(opt, params);                             // <kiln/train/optim.h>: factors and names
 *
 * A name is a path with dots between its parts: "h.0.attn.qkv.weight".  A pattern is a name, which matches that tensor
 * and all tensors whose names begin with it and a dot ("h.0"), or a name with `*`, each for any number of characters
 * ("*.bias"); "" and "*" match everything.
 *
 * One thread at a time uses a tree. */
#ifndef KILN_PARAMS_H
#define KILN_PARAMS_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- initial values ---- */

typedef enum kl_init_kind {
    KL_INIT_ZEROS,
    KL_INIT_ONES,
    KL_INIT_UNIFORM,          /* in [low, high) */
    KL_INIT_NORMAL,           /* with the given mean and std */
    KL_INIT_TRUNCATED_NORMAL, /* with the given mean and std, restricted to values in [low, high] */
    KL_INIT_XAVIER_UNIFORM,   /* in +- gain sqrt(6 / (fan_in + fan_out)) */
    KL_INIT_XAVIER_NORMAL,    /* std gain sqrt(2 / (fan_in + fan_out)) */
    KL_INIT_KAIMING_UNIFORM,  /* in +- gain sqrt(3 / fan_in) */
    KL_INIT_KAIMING_NORMAL,   /* std gain / sqrt(fan_in) */
    KL_INIT_ORTHOGONAL,       /* gain times a matrix [dims[0], product of the other lengths] with orthonormal rows,
                                 or orthonormal columns if there are fewer columns than rows, uniformly distributed */
    KL_INIT_KINDS
} kl_init_kind;

#define KL_GAIN_RELU 1.4142135623730951 /* the gain for which kl_relu keeps the variance (He et al.  2015) */
#define KL_GAIN_TANH (5.0 / 3)

/* Fields that a kind does not use are ignored. */
typedef struct kl_init {
    kl_init_kind kind;
    double gain;              /* 0: 1 */
    double mean, std;
    double low, high;
    /* fan_in: the number of elements that each result is a sum of; fan_out: the number of results that each input
     * element contributes to.  For a weight [K, N] of kl_linear they are K and N, for a weight [M, C, K..] of
     * kl_conv they are C * K.. and M * K.. */
    int64_t fan_in, fan_out;
} kl_init;

/* Returns a float tensor with such values.  The seed determines them.  They have the same bits on every device,
 * because the host computes them: in f64 for KL_F64 and for orthogonal or truncated values, else in f32; then they
 * are cast to dtype.  [lazy; new handle; errors ARGUMENT: a field; SHAPE: orthogonal with fewer than two axes; TYPE;
 * DEVICE; MEMORY] */
KL_API_AT kl_tensor kl_init_values(const kl_init *init, kl_device device, kl_dtype dtype, int rank,
                                   const int64_t *dims, uint64_t seed);

/* ---- trees of parameters ---- */

typedef struct kl_params kl_params;

/* A tensor of a tree, as returned by kl_params_get. */
typedef struct kl_param {
    const char *name;         /* owned by the tree */
    kl_tensor tensor;
    bool buffer;              /* not a parameter, but a value that is saved with the parameters, such as batch norm's
                                 averages */
    bool frozen;              /* optimizers do not change it */
    double rate, decay;       /* an optimizer's learning rate and weight decay are multiplied by these factors */
} kl_param;

#define KL_PARAM_NAME 200     /* maximum bytes of a name */

/* Makes an empty tree.  kl_params_make uses the device, the dtype (a float type) and the seed.  [errors DEVICE,
 * TYPE, MEMORY: NULL] */
KL_API_AT kl_params *kl_params_new(kl_device device, kl_dtype dtype, uint64_t seed);
/* Frees the tree and releases its tensors.  NULL is allowed. */
KL_API void kl_params_free(kl_params *params);
KL_API kl_device kl_params_device(const kl_params *params);
KL_API kl_dtype kl_params_dtype(const kl_params *params);
KL_API uint64_t kl_params_seed(const kl_params *params);

/* Adds a parameter with initial values (NULL: zeros).  The values depend only on the tree's seed and the name, so
 * adding a layer does not change the values of other layers.  Returns the handle, which the tree owns; poison after
 * an error.  [errors as kl_params_add and kl_init_values] */
KL_API_AT kl_tensor kl_params_make(kl_params *params, const char *name, int rank, const int64_t *dims,
                                   const kl_init *init);
/* kl_params_add adds a float tensor as a parameter and calls kl_requires_grad on it; kl_params_add_buffer adds a
 * tensor of any dtype as a buffer.  From this call on the tree owns the handle (in a trace the tensor is kept);
 * after an error the handle is released.  [errors ARGUMENT: no tree; a name that is empty, too long or already in
 * the tree, or that has an empty part, a `*` or a character that is not printable ASCII; HANDLE; TYPE: a parameter
 * is not a float; MEMORY] */
KL_API_AT kl_status kl_params_add(kl_params *params, const char *name, kl_tensor tensor);
KL_API_AT kl_status kl_params_add_buffer(kl_params *params, const char *name, kl_tensor tensor);

/* The number of tensors in the tree; they are numbered from 0 in the order in which they were added. */
KL_API int64_t kl_params_count(const kl_params *params);
/* Tensor number i.  [errors ARGUMENT: no such number: *out is then empty] */
KL_API kl_status kl_params_get(const kl_params *params, int64_t i, kl_param *out);
/* The number of the tensor with this name, or of this tensor; -1: it is not in the tree, which is not an error. */
KL_API int kl_params_index(const kl_params *params, const char *name);
KL_API int kl_params_index_of(const kl_params *params, kl_tensor tensor);
/* The tensor with this name.  [errors ARGUMENT: there is none: poison] */
KL_API_AT kl_tensor kl_params_find(const kl_params *params, const char *name);
/* The first number that is at least `from` and whose name matches the pattern; -1: there is none.
 *
 *     for (int i = kl_params_next(params, "h.0", 0); i >= 0; i = kl_params_next(params, "h.0", i + 1)) */
KL_API int kl_params_next(const kl_params *params, const char *pattern, int from);
/* The number of elements of all parameters that match the pattern.  Frozen parameters are counted, buffers are not. */
KL_API int64_t kl_params_elements(const kl_params *params, const char *pattern);
/* The parameters that are neither frozen nor buffers, in order; *n is their number.  The tree owns the array, which
 * is valid until the tree changes or this function is called again.  [errors ARGUMENT: no tree; MEMORY: NULL] */
KL_API const kl_tensor *kl_params_trained(kl_params *params, int64_t *n);

/* Sets the parameters that match the pattern to new initial values, which the tree's seed and their names determine.
 * [errors ARGUMENT: no match; those of kl_init_values and kl_assign] */
KL_API_AT kl_status kl_params_reset(kl_params *params, const char *pattern, const kl_init *init);

/* These set the frozen flag and the factors of all tensors that match the pattern.  They apply from the next step of
 * an optimizer that is attached to the tree.  [errors ARGUMENT: no match; a factor that is negative or not finite] */
KL_API kl_status kl_params_freeze(kl_params *params, const char *pattern, bool frozen);
KL_API kl_status kl_params_set_rate(kl_params *params, const char *pattern, double rate);
KL_API kl_status kl_params_set_decay(kl_params *params, const char *pattern, double decay);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/train/params.h> /* made from the prototypes marked KL_API_AT */
#endif
