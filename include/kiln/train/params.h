/* Parameters by name, and their initial values.  Included by <kiln/kiln.h>.
 *
 *     kl_params *params = kl_params_new(dev, KL_F32, 42);
 *     kl_init init = {.kind = KL_INIT_KAIMING_NORMAL, .gain = KL_GAIN_RELU, .fan_in = 784};
 *     kl_tensor w = kl_params_make(params, "fc.weight", 2, (int64_t[]){784, 10}, &init);
 *     kl_tensor b = kl_params_make(params, "fc.bias", 1, (int64_t[]){10}, NULL);
 *     kl_params_set_decay(params, "*.bias", 0);                     // no weight decay
 *     int n;
 *     const kl_tensor *list = kl_params_trained(params, &n);
 *     kl_optimizer *opt = kl_adam(list, n, NULL);
 *     kl_optimizer_attach(opt, params);                             // <kiln/train/optim.h>: factors and names
 *
 * A name is a path with dots between its parts: "h.0.attn.qkv.weight".  A pattern is a name, which matches that tensor
 * and all tensors whose names begin with it and a dot ("h.0"), or a name with `*`, each for any number of characters
 * ("*.bias"); "" and "*" match everything.
 *
 * One thread at a time uses a tree. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_PARAMS_H
#define KILN_PARAMS_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- initial values ---- */

typedef enum kl_init_kind {
    KL_INIT_ZEROS,
    KL_INIT_ONES,
    KL_INIT_UNIFORM,          /* in [low, high) */
    KL_INIT_NORMAL,           /* mean, std */
    KL_INIT_TRUNCATED_NORMAL, /* mean, std, restricted to values in [low, high] */
    KL_INIT_XAVIER_UNIFORM,   /* in +- gain sqrt(6 / (fan_in + fan_out)) */
    KL_INIT_XAVIER_NORMAL,    /* std gain sqrt(2 / (fan_in + fan_out)) */
    KL_INIT_KAIMING_UNIFORM,  /* in +- gain sqrt(3 / fan_in) */
    KL_INIT_KAIMING_NORMAL,   /* std gain / sqrt(fan_in) */
    KL_INIT_ORTHOGONAL,       /* gain times a matrix [dims[0], the other lengths' product] with orthonormal rows, or
                                 columns if there are fewer of those, uniformly distributed */
    KL_INIT_KINDS
} kl_init_kind;

#define KL_GAIN_RELU 1.4142135623730951 /* keeps the variance through kl_relu; Kaiming's gain */
#define KL_GAIN_TANH (5.0 / 3)

/* Fields that a kind does not use are ignored. */
typedef struct kl_init {
    kl_init_kind kind;
    double gain;              /* 0: 1 */
    double mean, std;
    double low, high;
    /* numbers that one result is a sum of, and results that one number contributes to: for a weight [K, N] of kl_linear
     * K and N, for kl_conv's [M, C, K..] C K.. and M K.. */
    int64_t fan_in, fan_out;
} kl_init;

/* A tensor of floats with such values, determined by the seed; the same bits on every device, because they are computed
 * on the host.  Computed in f64 for KL_F64 and orthogonal or truncated values, else in f32, and cast.  [lazy; new
 * handle; errors ARGUMENT: a field; SHAPE: orthogonal below two axes; TYPE; DEVICE; MEMORY] */
KL_API_AT kl_tensor kl_init_values(const kl_init *init, kl_device device, kl_dtype dtype, int rank,
                                   const int64_t *dims, uint64_t seed);

/* ---- trees of parameters ---- */

typedef struct kl_params kl_params;

/* A tensor of a tree, as returned by kl_params_get. */
typedef struct kl_param {
    const char *name;         /* owned by the tree */
    kl_tensor tensor;
    bool buffer;              /* not a parameter but a value beside them, such as batch norm's averages */
    bool frozen;              /* optimizers skip it */
    double rate, decay;       /* factors by which an optimizer's learning rate and weight decay are multiplied */
} kl_param;

#define KL_PARAM_NAME 200     /* maximum bytes of a name */

/* An empty tree. device, dtype (a float type) and seed are used by kl_params_make.  [errors DEVICE, TYPE, MEMORY:
 * NULL] */
KL_API_AT kl_params *kl_params_new(kl_device device, kl_dtype dtype, uint64_t seed);
/* Frees the tree and releases its tensors.  NULL is fine. */
KL_API void kl_params_free(kl_params *params);
KL_API kl_device kl_params_device(const kl_params *params);
KL_API kl_dtype kl_params_dtype(const kl_params *params);
KL_API uint64_t kl_params_seed(const kl_params *params);

/* Adds a parameter with initial values (NULL: zeros).  They depend only on the tree's seed and the name, so layers
 * added later do not change those of others.  Returns its handle, which the tree owns.  Poison after an error.  [errors
 * as kl_params_add and kl_init_values] */
KL_API_AT kl_tensor kl_params_make(kl_params *params, const char *name, int rank, const int64_t *dims,
                                   const kl_init *init);
/* Adds a tensor as a parameter, marked by kl_requires_grad, or as a buffer, of any dtype.  The tree owns the handle
 * from here on (in a trace it is kept), also after an error, which releases it.  [errors ARGUMENT: no tree, a name that
 * is empty, too long, in the tree already, or has an empty part, a `*` or a character that is no printable ASCII;
 * HANDLE; TYPE: a parameter is not a float; MEMORY] */
KL_API_AT kl_status kl_params_add(kl_params *params, const char *name, kl_tensor tensor);
KL_API_AT kl_status kl_params_add_buffer(kl_params *params, const char *name, kl_tensor tensor);

/* The number of tensors in the tree; they are numbered from 0 in the order in which they were added. */
KL_API int kl_params_count(const kl_params *params);
/* Tensor number i.  [errors ARGUMENT: no such number: *out is then empty] */
KL_API kl_status kl_params_get(const kl_params *params, int i, kl_param *out);
/* The number of a name, or of a tensor of the tree; -1: there is none, which is no error. */
KL_API int kl_params_index(const kl_params *params, const char *name);
KL_API int kl_params_index_of(const kl_params *params, kl_tensor tensor);
/* The tensor of a name.  [errors ARGUMENT: there is none, poison] */
KL_API_AT kl_tensor kl_params_find(const kl_params *params, const char *name);
/* The next number from `from` on whose name matches the pattern; -1: no more.
 *     for (int i = kl_params_next(params, "h.0", 0); i >= 0; i = kl_params_next(params, "h.0", i + 1)) */
KL_API int kl_params_next(const kl_params *params, const char *pattern, int from);
/* The number of elements of the parameters (not the buffers) that match the pattern; frozen ones count. */
KL_API int64_t kl_params_elements(const kl_params *params, const char *pattern);
/* The parameters that are neither frozen nor buffers, in order; *n is their number.  The array belongs to the tree and
 * is valid until the tree is changed or this is called again.  [errors ARGUMENT: no tree; MEMORY: NULL] */
KL_API const kl_tensor *kl_params_trained(kl_params *params, int *n);

/* Sets new initial values of the parameters that match the pattern, determined by the tree's seed and their names.
 * [errors ARGUMENT: no match; those of kl_init_values and kl_assign] */
KL_API_AT kl_status kl_params_init(kl_params *params, const char *pattern, const kl_init *init);

/* For all tensors that match the pattern: frozen or not, and the factors.  They apply from the next step of an
 * optimizer that is attached to the tree.  [errors ARGUMENT: no match; a factor that is negative or not finite] */
KL_API kl_status kl_params_freeze(kl_params *params, const char *pattern, bool frozen);
KL_API kl_status kl_params_set_rate(kl_params *params, const char *pattern, double rate);
KL_API kl_status kl_params_set_decay(kl_params *params, const char *pattern, double decay);

#ifdef __cplusplus
}
#endif
#endif
