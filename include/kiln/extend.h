/* Functions for code built on Kiln that should behave like a part of it: errors, call sites, composites, memory,
 * numbers as text.  The optimizers, modules and data formats of the library itself use these and the other public
 * headers only.
 *
 *     kl_tensor swish(kl_tensor x, double slope)
 *     {
 *         if (!(slope > 0))
 *             return kl_failf(NULL, KL_ERR_ARGUMENT, "swish: slope %g is not above 0", slope), kl_poison();
 *         if (kl_composite_begin("swish") != KL_OK)
 *             return kl_poison();
 *         kl_tensor y = kl_mul(x, kl_sigmoid(kl_mul_scalar(x, slope)));
 *         kl_composite_end(1, &y);
 *         return y;
 *     } */
#ifndef KILN_EXTEND_H
#define KILN_EXTEND_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KL_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define KL_PRINTF(text, first)
#endif

/* ---- errors ---- */

/* Sets kl_last_error to "file:line: message" and returns code; the open trace, if there is one, has failed.  A trace
 * that has failed before keeps its first error, whose code is returned.  site NULL: the thread's
 * call site (kl_set_call_site).  The message is made as by printf, with a decimal point whatever the locale. */
KL_API kl_status kl_failf(const kl_site *site, kl_status code, const char *format, ...) KL_PRINTF(3, 4);
/* Looks at an operand of the function `op` (a string that outlives the call): the names of such operands are added to
 * the message of a kl_failf of this call that shows their shapes.  Writes the shape as messages show it, "[2,n]", and
 * is the error of a bad handle, with `what` it is: "the matrix".  [errors HANDLE, TRACE, those of poison] */
KL_API kl_status kl_operand(const char *op, const char *what, kl_tensor t, char *shape, size_t size);
/* A poison handle whose cause is the thread's last error: the result of a function that failed.  In a trace it is a
 * temporary; outside a trace the caller releases it. */
KL_API kl_tensor kl_poison(void);

/* ---- call sites ---- */

/* Sets the thread's call site, which calls without one of their own have (plain functions, not kl_NAME_at and the
 * macros): errors, dumps and profiles name it.  For code whose user's line is not in a C source: a reader of models
 * names the file and the node, a binding the line of its own language.  Returns the one before, which the caller sets
 * again.
 *
 *     const kl_site *outer = kl_set_call_site(site);   e.g. {"model.onnx", 12, "Conv"}: file, line, function
 *     kl_tensor y = (kl_add)(a, b);
 *     kl_set_call_site(outer);
 *
 * NULL: no line is known.  The struct must be valid while it is set, its strings as long as the process: programs
 * keep them.  While a function of Kiln's runs that was called with a line, it is that line. */
KL_API const kl_site *kl_set_call_site(const kl_site *site);

/* ---- composites: functions made of other calls ---- */

/* Begins a composite.  Outside of a trace, the tensors that this thread makes until kl_composite_end are released
 * there, except the results; in a trace they are temporaries anyway.  Messages begin with `name` (a string that
 * outlives the call) in place of the op's name.  Composites nest; the outermost name is used.  A kl_scope_begin inside
 * must have its end inside; the function must not return in between.  [errors MEMORY] */
KL_API kl_status kl_composite_begin(const char *name);
KL_API void kl_composite_end(int64_t nresults, const kl_tensor *results);

/* ---- modules: functions with parameters ---- */

/* Begins the scope of names (kl_name_begin) of the module that has this parameter: the parameter's name without its
 * last `parts` parts, so that errors, dumps and profiles name the module: "encoder.3.fc" for 1 part of
 * "encoder.3.fc.weight".  What the open scope has of it already, of the user's or of a module around this one, is not
 * said again.  A parameter without a name, or with one of other characters or of 63 bytes or more, adds nothing.
 * [errors ARGUMENT: parts, 32 open scopes; MEMORY; kl_module_end: none is open] */
KL_API kl_status kl_module_begin(kl_tensor parameter, int parts);
KL_API kl_status kl_module_end(void);

/* ---- memory, from the functions given to kl_set_memory ---- */

/* Zeroed memory; NULL: none is left. */
KL_API void *kl_memory_alloc(size_t bytes);
/* Resizes p, which may be NULL; the bytes after the first old_bytes are zeroed.  NULL: it failed, and p is
 * unchanged. */
KL_API void *kl_memory_grow(void *p, size_t old_bytes, size_t new_bytes);
KL_API void kl_memory_free(void *p); /* NULL is fine */

/* ---- numbers as text, with a decimal point whatever the locale ---- */

/* As snprintf. */
KL_API int kl_format(char *text, size_t size, const char *format, ...) KL_PRINTF(3, 4);
/* As strtod. */
KL_API double kl_parse_f64(const char *text, char **end);

#ifdef __cplusplus
}
#endif
#endif
