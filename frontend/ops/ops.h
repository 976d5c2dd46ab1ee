/* Internal header of ops: shapes and axes from arguments, functions that record one node, gradients. */
#ifndef KILN_OPS_INTERNAL_H
#define KILN_OPS_INTERNAL_H
#include "frontend/record/region.h"

/* ---- device.c ---- */
#define META_HAS_NO_DATA "Cannot copy out of meta tensor; no data!"
/* A value on device meta; NULL: *e. */
static inline struct buffer *meta_value(struct err *e) { return buffer_wrap(DEVICE_META, NULL, 0, NULL, NULL, e); }
bool device_valid(kl_device d);
/* Resolves KL_FLOAT and KL_INT for a call that makes a tensor; the device cannot be configured afterwards. */
kl_dtype device_dtype(kl_device d, kl_dtype dtype);

/* ---- gradients.c ---- */
bool gradient_flows(struct thread *t, kl_tensor h); /* from a live handle to a marked tensor */
/* Does the loss depend on one of n tensors, at least, as far as this can be known here?  false: reported. */
bool grads_check_dependence(struct thread *t, const char *op, kl_tensor loss, int n, const kl_tensor *wrt);

/* ---- gradient_checks.c: gradients that are all zeros ---- */
/* Does a gradient flow from node `from` to each of to[0..n), NIL where there is none, into reached[]; false: out of
 * memory. */
bool gradient_reaches_each(const struct graph *g, ref from, const ref *to, uint32_t n, bool *reached);
/* Does a gradient flow from node `from` to node `to`?  Out of memory: yes. */
bool gradient_reaches(const struct graph *g, ref from, ref to);
/* Was the variable h, whose node is wrt, assigned in the trace after everything that the loss depends on? true: *e. */
bool gradient_is_too_late(struct trace *tr, ref loss, kl_tensor h, ref wrt, struct err *e);
/* For the graph of a program that was built: warns about each gradient that is all zeros and each loss that is no
 * scalar. */
void gradients_warn(const struct graph *g);

/* ---- autodiff.c: autodiff as a property of devices ---- */
bool strategy_valid(unsigned strategy);           /* 0, of a plain device, is valid */
const char *strategy_device_name(unsigned strategy, int device);
int64_t strategy_bytes(unsigned strategy);        /* a kl_checkpointing */
/* Combines the flags of one more operand: all operands are on autodiff devices or none, with one strategy. false:
 * *e. */
bool ad_join(uint16_t *ad, const struct entry *first, const struct entry *x, struct err *e);
/* a float on an autodiff device; false: reported */
bool ad_requires(struct thread *t, const char *op, kl_tensor h);
bool ad_replaces(const struct entry *x, const struct entry *gradient, struct err *e); /* may it be x's gradient? */
bool ad_to(uint16_t ad, const struct entry *x, kl_device to, struct err *e); /* may x go to that device? */

/* ---- ops.c ---- */
/* kl_grad, which is zeros if the loss does not depend on wrt, and not an error. */
kl_tensor grad_or_zeros(kl_tensor loss, kl_tensor wrt);
/* rank and dims as a shape, as the caller gives them, with lengths of kl_symbol's as those of the open trace.
 * false: reported. */
bool shape_of(struct thread *t, const char *op, int rank, const int64_t *dims, struct shape *s);
/* create.c: kl_input of an array of this shape, with the lengths that it has in the graph or NULL. */
kl_tensor input_of(const char *op, kl_device device, kl_dtype dtype, const struct shape *actual,
                   const struct symbolic *symbolic, const void *data);
/* Lengths of the open trace, which may be symbolic: length * by + more if it is never negative, length / by rounded
 * down if that is an affine expression, and a * b.  false: there is no such length. */
bool length_add(struct thread *t, int64_t length, int64_t by, int64_t more, int64_t *out);
bool length_divide(struct thread *t, int64_t length, int64_t by, int64_t *out);
bool length_times(struct thread *t, int64_t a, int64_t b, int64_t *out);
bool length_at_most(struct thread *t, int64_t a, int64_t b); /* whatever the symbols' values */
/* Are the lengths of n axes numbers, and not symbolic?  What is recorded depends on them.  false: reported. */
bool axes_are_numbers(struct thread *t, const char *op, const struct shape *s, uint32_t first, uint32_t n);
/* A possibly negative axis as a position below rank; false: reported. */
bool axis_of(struct thread *t, const char *op, const struct shape *s, int axis, uint32_t *at);
kl_tensor broadcast_to(const char *op, kl_tensor a, const struct shape *from, const struct shape *to);
kl_tensor reshape_to(const char *op, kl_tensor a, const struct shape *s);

/* ---- indexing.c ---- */
/* clamped to 0..length - less, as i64; the length may be symbolic */
kl_tensor held_index(kl_tensor index, const struct view *x, int64_t length, int64_t less);

/* ---- pieces.c: functions that record one node ---- */
/* `count` elements of an axis, every step-th from start on */
kl_tensor slice_of(const char *op, kl_tensor a, uint32_t axis, int64_t start, int64_t count, int64_t step);
/* a scalar value: `interior` elements between those of an axis, low before and high after them */
kl_tensor pad_of(const char *op, kl_tensor a, kl_tensor value, uint32_t axis, int64_t low,
                 int64_t high, int64_t interior);
kl_tensor window_of(const char *op, kl_tensor a, uint32_t axis, int64_t size, int64_t stride, int64_t dilation);

/* ---- create.c ---- */
/* A compile-time constant on x's device, in x's dtype. */
kl_tensor const_like(const struct view *x, double value);
/* contract.c: in x's dtype the number of elements in the axes of the mask, less a number; NaN if `less` is not 0 and
 * nothing is left.  Of symbolic lengths it is a number given at each run. */
kl_tensor count_like(struct thread *t, const char *op, const struct view *x, uint32_t mask, int64_t less);
/* nn/loss.c: parts / whole, by one division for each element of whole; parts broadcasts. */
kl_tensor shares(const struct view *v, kl_tensor parts, kl_tensor whole);

/* ---- contract.c ---- */
/* The axes as a bit mask, all of them for NULL; false: reported. */
bool axis_mask(struct thread *t, const char *op, const struct shape *s, int naxes, const int *axes, uint32_t *mask);
/* The product of a and b over the axes in dims->dot; `op` is the name in errors. */
kl_tensor record_dot(const char *op, kl_tensor a, kl_tensor b, const union attr *dims);

#endif
