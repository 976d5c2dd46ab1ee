/* Functions that the files of this folder share.  The folder includes public headers only. */
#ifndef KILN_SOLVE_SOLVE_H
#define KILN_SOLVE_SOLVE_H
#define KL_NO_CALL_SITES
#include <kiln/extend.h>
#include <kiln/solve/solve.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { SOLVE_SHAPE_TEXT = 128 };

/* ---- numbers ---- */

/* [] A number of t's dtype, compiled in. */
static inline kl_tensor solve_number(kl_tensor t, double value)
{
    return kl_const(kl_device_of(t), kl_dtype_of(t), value);
}
/* The distance from 1 to the next number of the dtype. */
static inline double solve_epsilon(kl_dtype d) { return d == KL_F64 ? 0x1p-52 : 0x1p-23; }
/* The square root of the smallest normal number over solve_epsilon: squares of smaller numbers lose digits. */
static inline double solve_tiny(kl_dtype d) { return d == KL_F64 ? 0x1p-485 : 0x1p-51; }
/* Sizes to divide by: 1 where one is 0 or not finite. */
static inline kl_tensor solve_divisor(kl_tensor size)
{
    kl_tensor valid = kl_and(kl_gt(size, solve_number(size, 0)), kl_is_finite(size));
    return kl_where(valid, size, solve_number(size, 1));
}
static inline kl_tensor solve_transposed(kl_tensor a) { return kl_transpose(a, -1, -2); }

/* ---- matrix.c ---- */

/* What a function of matrices computes with: its operands as [B, m, n], in f32 or f64. */
struct solve_matrices {
    const char *op;
    int64_t B, m, n; /* B may be symbolic */
    int rank;        /* of the user's matrices */
    int64_t dims[KL_MAX_RANK];
    kl_device device;
    kl_dtype dtype, given; /* computed in; the user's */
};

/* Begins a composite of matrices [..., m, n], or [..., n, n], which it reshapes to [B, m, n] and widens.  false:
 * reported. */
bool solve_begin(const char *op, kl_tensor *a, bool square, struct solve_matrices *x);
/* The same of any tensors; ends by solve_end. */
bool solve_begin_block(const char *op);
/* A second operand with the same batch, [..., rows, any], as [B, rows, any]; its last length.  -1: reported, and the
 * composite has ended. */
int64_t solve_operand(const struct solve_matrices *x, const char *what, int64_t rows, kl_tensor *b);
/* t, [B, ...], in the user's shape: the batch, then what is behind B; in the user's dtype if it is floating. */
kl_tensor solve_result(const struct solve_matrices *x, kl_tensor t);
/* Ends the composite.  Results: `first` and, where they are not NULL, the others. */
kl_tensor solve_end(kl_tensor first, int64_t n, kl_tensor *const *others);
/* [B, 1]: 0, but NaN for a matrix with a NaN or an infinity. */
kl_tensor solve_poison(kl_tensor a);
/* fn of a [B, m, n], whose first argument is x, to nout results [B, ...].  Small matrices are computed a vector's lanes
 * at a time, so that their arrays stay in the cache through all steps; threads share these out where fn is one kernel.
 */
kl_status solve_in_blocks(kl_region_fn *fn, const struct solve_matrices *x, kl_tensor a, kl_tensor *out, int64_t nout);
/* Zeros [B, ...] that depend on a [B, m, n], which has no elements: a gradient that flows to it is empty, not missing.
 */
kl_tensor solve_zeros(kl_tensor a, int rank, const int64_t *dims);
/* [B, n, n] */
kl_tensor solve_identity(const struct solve_matrices *x, int64_t n);

/* ---- eigen/eigen.c, eigen/svd.c ---- */

/* kl_eigh with another function for the values: in: a [B, n, n]; out: eigenvalues [B, n], eigenvectors [B, n, n]. */
kl_tensor solve_eigh(const char *op, kl_region_fn *fn, kl_tensor a, kl_tensor *vectors);
/* kl_svd, likewise: in: a [B, m, n]; out: u [B, m, k], s [B, k], v [B, n, k]. */
kl_tensor solve_svd_by(const char *op, kl_region_fn *fn, kl_tensor a, kl_tensor *s, kl_tensor *vt);
/* Singular values, recorded where it is called: the same results. */
void solve_svd(const struct solve_matrices *x, kl_tensor a, kl_tensor *out);

/* ---- function.c ---- */

enum { SOLVE_MAX_PARAMS = 60 };

/* The user's function; one of the two. */
struct solve_function {
    const char *op;
    kl_solve_fn *fn;
    kl_ode_fn *ode;
    void *ctx;
    int64_t n;        /* parameters */
    bool scalar;      /* it returns [], otherwise x's shape */
    kl_status status; /* the first error */
};

/* f(x), or f(t, x); poison after an error, which f->status has then. */
kl_tensor solve_call(struct solve_function *f, kl_tensor t, kl_tensor x, const kl_tensor *params);
/* The gradients of sum(f cotangent) by x and the n parameters. */
void solve_vjp(struct solve_function *f, kl_tensor t, kl_tensor x, const kl_tensor *params, kl_tensor cotangent,
               kl_tensor *gradients);
/* Begins the composite of a solver that starts from x, after checks: f32 or f64 of one dtype and device, in list[0] and
 * the n parameters behind it.  false: reported. */
bool solve_begin_function(struct solve_function *f, const char *what, kl_tensor x, int64_t n, const kl_tensor *params,
                          kl_tensor *list);
/* The options, with defaults; false: reported. */
bool solve_options(const char *op, const kl_solve_options *given, kl_dtype dtype, kl_solve_options *o);
/* sum(a b), [] */
kl_tensor solve_inner(kl_tensor a, kl_tensor b);

/* ---- gradient.c ---- */

/* A linear map of a tensor, recorded where it is called. */
typedef kl_tensor solve_map(void *ctx, kl_tensor x);
/* x with map(x) = b, of a symmetric positive definite map, by conjugate gradients. */
kl_tensor solve_conjugate(solve_map *map, void *ctx, kl_tensor b, double tolerance, int64_t max_steps);
#endif
