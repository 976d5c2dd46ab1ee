/* Users' functions of solvers: calling them, checking what they return, products of vectors with their Jacobians. */
#include "solve.h"

static void function_failed(struct solve_function *f, kl_status status)
{
    if (f->status == KL_OK)
        f->status = status == KL_OK ? KL_ERR_ARGUMENT : status;
}

kl_tensor solve_call(struct solve_function *f, kl_tensor t, kl_tensor x, const kl_tensor *params)
{
    kl_tensor y = kl_none;
    kl_clear_error();
    kl_status status = f->ode ? f->ode(f->ctx, t, x, f->n, params, &y) : f->fn(f->ctx, x, f->n, params, &y);
    if (status == KL_OK && !y.id)
        status = kl_failf(NULL, KL_ERR_ARGUMENT, "%s: the function set no result", f->op);
    if (status == KL_OK)
        status = kl_check(y);
    if (status != KL_OK) {
        if (!*kl_last_error())
            kl_failf(NULL, status, "%s: the function returned %s", f->op, kl_status_name(status));
        function_failed(f, status);
        return kl_poison();
    }
    int64_t have[KL_MAX_RANK], want[KL_MAX_RANK];
    int rank = f->scalar ? 0 : kl_shape(x, want);
    if (kl_shape(y, have) != rank || memcmp(have, want, (size_t)rank * sizeof *have) ||
        kl_dtype_of(y) != kl_dtype_of(x)) {
        char text[2][SOLVE_SHAPE_TEXT];
        kl_operand(f->op, "the result", y, text[0], sizeof text[0]);
        kl_operand(f->op, "the argument", x, text[1], sizeof text[1]);
        function_failed(f, kl_failf(NULL, KL_ERR_SHAPE, "%s: the function returned %s %s of %s %s; it must return %s",
                                    f->op, kl_dtype_name(kl_dtype_of(y)), text[0], kl_dtype_name(kl_dtype_of(x)),
                                    text[1], f->scalar ? "[]" : "the same"));
        return kl_poison();
    }
    return y;
}

void solve_vjp(struct solve_function *f, kl_tensor t, kl_tensor x, const kl_tensor *params, kl_tensor cotangent,
               kl_tensor *gradients)
{
    kl_tensor own[1 + SOLVE_MAX_PARAMS] = {kl_detach(x)}; /* nodes of this region */
    for (int64_t i = 0; i < f->n; i++)
        own[1 + i] = kl_detach(params[i]);
    kl_tensor loss = kl_sum_all(kl_mul(solve_call(f, t, own[0], own + 1), cotangent));
    for (int64_t i = 0; i <= f->n; i++) /* so that it depends on each; no gradient comes of it */
        loss = kl_add(loss, kl_sum_all(kl_mul(own[i], solve_number(own[i], 0))));
    kl_status status = f->status != KL_OK ? f->status : kl_grads(loss, 1 + f->n, own, gradients);
    for (int64_t i = 0; i <= f->n && status != KL_OK; i++)
        gradients[i] = kl_poison();
    if (status != KL_OK)
        function_failed(f, status);
}

bool solve_begin_function(struct solve_function *f, const char *what, kl_tensor x, int64_t n, const kl_tensor *params,
                          kl_tensor *list)
{
    char text[SOLVE_SHAPE_TEXT];
    bool ok = false;
    f->n = n;
    list[0] = x;
    if (n < 0 || n > SOLVE_MAX_PARAMS || (n && !params))
        kl_failf(NULL, KL_ERR_ARGUMENT, "%s: n is %" PRId64 "; it must be 0 to %d, of params %s", f->op, n,
                 SOLVE_MAX_PARAMS, params ? "in a list" : "NULL");
    else if (!f->fn && !f->ode)
        kl_failf(NULL, KL_ERR_ARGUMENT, "%s: the function is NULL", f->op);
    else if (kl_operand(f->op, what, x, text, sizeof text) == KL_OK)
        ok = true;
    if (ok && kl_dtype_of(x) != KL_F32 && kl_dtype_of(x) != KL_F64) {
        kl_failf(NULL, KL_ERR_TYPE, "%s: %s %s is %s; it must be f32 or f64", f->op, what, text,
                 kl_dtype_name(kl_dtype_of(x)));
        ok = false;
    }
    for (int64_t i = 0; i < n && ok; i++) {
        list[1 + i] = params[i];
        ok = kl_operand(f->op, "a parameter", params[i], text, sizeof text) == KL_OK;
        if (ok && kl_dtype_of(params[i]) != kl_dtype_of(x)) {
            kl_failf(NULL, KL_ERR_TYPE, "%s: parameter %" PRId64 " %s is %s, %s %s", f->op, i, text,
                     kl_dtype_name(kl_dtype_of(params[i])), what, kl_dtype_name(kl_dtype_of(x)));
            ok = false;
        }
    }
    return ok && solve_begin_block(f->op);
}

bool solve_options(const char *op, const kl_solve_options *given, kl_dtype dtype, kl_solve_options *o)
{
    *o = given ? *given : (kl_solve_options){0};
    if (!(o->tolerance >= 0) || o->max_steps < 0 || o->max_steps > INT32_MAX)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: tolerance %g, max_steps %" PRId64, op, o->tolerance, o->max_steps),
               false;
    o->tolerance = o->tolerance > 0 ? o->tolerance : dtype == KL_F64 ? 1e-10 : 1e-5;
    o->max_steps = o->max_steps ? o->max_steps : 1000;
    return true;
}

kl_tensor solve_inner(kl_tensor a, kl_tensor b) { return kl_sum_all(kl_mul(a, b)); }
