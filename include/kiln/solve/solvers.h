/* Solvers: initial value problems, roots, symmetric linear systems, minima.  Included by <kiln/solve/solve.h>.
 *
 *     static kl_status decay(void *ctx, kl_tensor t, kl_tensor y, int64_t n, const kl_tensor *params, kl_tensor *dy)
 *     {
 *         *dy = kl_mul(y, params[0]);                       // y' = rate y
 *         return KL_OK;
 *     }
 *     kl_tensor y = kl_odeint(decay, NULL, y0, times, 1, &rate, NULL);
 *     kl_tensor g = kl_grad(loss(y), rate);
 *
 * The user's function is called while recording, as those of <kiln/control.h>, several times; in it no values can be
 * read.  It must depend on the n parameters through params[] alone: gradients flow to these and to the start, not to
 * other tensors that it uses.  Tensors are f32 or f64, of one dtype; at most 60 parameters.  The gradients are those of
 * the solution, however many steps were made; they are exact as far as it is.  They are first gradients [GRAD].
 *
 * All errors may be HANDLE, MEMORY, ARGUMENT (a function is NULL, bad numbers in the options), TYPE, SHAPE (also of
 * what the function returns), and the function's own. */
#ifndef KILN_SOLVE_SOLVERS_H
#define KILN_SOLVE_SOLVERS_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- initial value problems ---- */

/* Sets *dy to the derivative of y at time t ([], of y's dtype), of y's shape. */
typedef kl_status kl_ode_fn(void *ctx, kl_tensor t, kl_tensor y, int64_t n, const kl_tensor *params, kl_tensor *dy);

typedef struct kl_ode_options {
    /* tolerated error of a step: absolute + relative |y|; 0: 1e-8 and 1e-10, of f32 1e-5 and 1e-7 */
    double relative, absolute;
    int64_t max_steps; /* from one time to the next; 0: 10000; what is not reached is NaN */
} kl_ode_options;

/* y' = f(t, y, params), y = y0 at times[0]  ->  y at the times, [T, ...]; the times [T] ascend or descend.  Dormand and
 * Prince's pair of orders 5 and 4, with steps that follow the error, the same for all elements of y; by kl_vmap each
 * element of a batch has its own.  Gradients by the adjoint method, for y0, the times and the parameters: integrated
 * back with the same tolerance. */
KL_API_AT kl_tensor kl_odeint(kl_ode_fn *f, void *ctx, kl_tensor y0, kl_tensor times, int64_t n,
                              const kl_tensor *params, const kl_ode_options *options);

/* ---- equations and minima ---- */

/* Sets *y to the function's value at x. */
typedef kl_status kl_solve_fn(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y);

typedef struct kl_solve_options {
    double tolerance;  /* 0: 1e-10, f32 1e-5 */
    int64_t max_steps; /* 0: 1000 */
} kl_solve_options;

/* x [k] with |f(x)| <= tolerance for each of the k values of f, from x0 [k], by Newton's method with the Jacobian of f,
 * whose steps are halved until the largest |f| shrinks; the last x where it does not shrink any more.  Gradients flow
 * to the parameters, 0 to x0. */
KL_API_AT kl_tensor kl_root(kl_solve_fn *f, void *ctx, kl_tensor x0, int64_t n, const kl_tensor *params,
                            const kl_solve_options *options);
/* x with f(x) = 0 for each element of x, between low and high, of one shape, where f has different signs; NaN where it
 * has not.  f computes each element of its result from that of x alone.  By bisection, to the last bit but one or two.
 * Gradients flow to the parameters, 0 to low and high. */
KL_API_AT kl_tensor kl_bisect(kl_solve_fn *f, void *ctx, kl_tensor low, kl_tensor high, int64_t n,
                              const kl_tensor *params);
/* x of b's shape with f(x) = b for a linear f whose matrix is symmetric and positive definite, to |f(x) - b| <=
 * tolerance |b|, by conjugate gradients from 0.  Gradients flow to b and the parameters. */
KL_API_AT kl_tensor kl_conjugate_gradient(kl_solve_fn *f, void *ctx, kl_tensor b, int64_t n, const kl_tensor *params,
                                          const kl_solve_options *options);
/* x of x0's shape where f, which returns [], has a local minimum: no element of its gradient is above the tolerance, or
 * no step along the direction makes it smaller; by L-BFGS with 10 pairs, from x0.  Gradients flow to the parameters, 0
 * to x0: by conjugate gradients with the second derivatives of f, which it must have, unless n is 0. */
KL_API_AT kl_tensor kl_minimize(kl_solve_fn *f, void *ctx, kl_tensor x0, int64_t n, const kl_tensor *params,
                                const kl_solve_options *options);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/solve/solvers.h>
#endif
