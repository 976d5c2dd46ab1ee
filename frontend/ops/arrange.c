/* Rearrangements made of views, concat and comparisons of indices: stack, split, tile, repeat, roll, triangles, eye,
 * linspace. */
#include "frontend/frontend.h"
#include <inttypes.h>

/* ---- joining and splitting ---- */

kl_tensor kl_stack(int64_t n, const kl_tensor *parts, int axis)
{
    struct thread *t = thread_self();
    struct view v;
    if (t && !counts_valid(t, "stack", COUNTS({"n", n})))
        return op_failed();
    if (t && (n < 1 || !parts))
        return refuse(t, KL_ERR_ARGUMENT, "stack: no tensors");
    if (!t || !describe(t, "stack", "the first tensor", parts[0], &v))
        return t ? poison(t) : kl_none;
    kl_tensor *whole = mem_alloc((size_t)n * sizeof *whole);
    if (!whole)
        return refuse(t, KL_ERR_MEMORY, "stack: out of memory");
    if (!(t = checked_begin("stack"))) {
        mem_free(whole);
        return op_failed();
    }
    for (int64_t i = 0; i < n; i++)
        whole[i] = kl_unsqueeze(parts[i], axis);
    /* after the last axis, -1 is the new axis, as in unsqueeze */
    kl_tensor r = kl_concat(n, whole, axis);
    mem_free(whole);
    return compose_end(t, r);
}

kl_status kl_split(kl_tensor a, int axis, int64_t n, const int64_t *counts, kl_tensor *parts)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    char text[SHAPE_TEXT];
    if (!t)
        return KL_ERR_MEMORY;
    if (!counts_valid(t, "split", COUNTS({"n", n})))
        return t->last.code;
    if (n < 1 || !parts)
        return fail(t, KL_ERR_ARGUMENT, "split: no parts");
    for (int64_t i = 0; i < n; i++)
        parts[i] = kl_none;
    if (!describe(t, "split", "the tensor", a, &v) || !axis_of(t, "split", &v.shape, axis, &at))
        return t->last.code;
    int64_t length = v.shape.dim[at], sum = 0;
    bool fits = counts || length % n == 0;
    for (int64_t i = 0; fits && i < n; i++)
        fits = !counts || (counts[i] >= 0 && !__builtin_add_overflow(sum, counts[i], &sum));
    if (!fits || (counts && sum != length))
        return fail(t, KL_ERR_SHAPE, "split: axis %d of %s does not fall into %s %d parts", axis,
                    shape_text(&v.shape, text, sizeof text), counts ? "these" : "equal", (int)n);
    int64_t start = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t count = counts ? counts[i] : length / n;
        parts[i] = kl_narrow(a, axis, start, count);
        start += count;
    }
    return kl_check(parts[n - 1]);
}

/* ---- repeating ---- */

/* Product of the dimensions from one axis up to another. */
static int64_t arrange_product(const struct shape *s, uint32_t from, uint32_t to)
{
    int64_t n = 1;
    for (uint32_t i = from; i < to; i++)
        n *= s->dim[i];
    return n;
}

/* Repeats every block of `inner` elements: the blocks of a whole axis, or those of its elements.  Three axes suffice
 * for any tensor. */
static kl_tensor repeat_blocks(const char *op, kl_tensor a, struct shape *s, uint32_t axis, int64_t times, bool whole)
{
    int64_t inner = arrange_product(s, whole ? axis : axis + 1, s->rank),
        outer = arrange_product(s, 0, whole ? axis : axis + 1);
    struct shape once = shape_make(3, (int64_t[]){outer, 1, inner}),
        all = shape_make(3, (int64_t[]){outer, times, inner});
    s->dim[axis] *= times;
    kl_tensor r = broadcast_to(op, reshape_to(op, a, &once), &once, &all);
    return reshape_to(op, r, s);
}

/* Is s with the axis repeated a valid shape? false: reported. */
static bool times_ok(struct thread *t, const char *op, struct shape s, uint32_t axis, int64_t times)
{
    int64_t count;
    char text[SHAPE_TEXT];
    shape_text(&s, text, sizeof text);
    if (times >= 0 && !__builtin_mul_overflow(s.dim[axis], times, &s.dim[axis]) && shape_numel(&s, &count))
        return true;
    fail(t, KL_ERR_SHAPE, "%s: axis %u of %s cannot be there %" PRId64 " times", op, axis, text, times);
    return false;
}

kl_tensor kl_tile(kl_tensor a, const int64_t *times)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, "tile", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    if (v.shape.rank && !times)
        return refuse(t, KL_ERR_ARGUMENT, "tile: times is NULL");
    if (!(t = checked_begin("tile")))
        return op_failed();
    kl_tensor r = reshape_to("tile", a, &v.shape);
    for (uint32_t i = 0; i < v.shape.rank; i++) {
        if (!times_ok(t, "tile", v.shape, i, times[i]))
            return compose_end(t, poison(t));
        if (times[i] != 1)
            r = repeat_blocks("tile", r, &v.shape, i, times[i], true);
    }
    return compose_end(t, r);
}

kl_tensor kl_repeat(kl_tensor a, int axis, int64_t times)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    if (!t || !describe(t, "repeat", "the tensor", a, &v) || !axis_of(t, "repeat", &v.shape, axis, &at) ||
        !times_ok(t, "repeat", v.shape, at, times))
        return t ? poison(t) : kl_none;
    if (!(t = checked_begin("repeat")))
        return op_failed();
    return compose_end(t, repeat_blocks("repeat", a, &v.shape, at, times, false));
}

kl_tensor kl_roll(kl_tensor a, int axis, int64_t shift)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    if (!t || !describe(t, "roll", "the tensor", a, &v) || !axis_of(t, "roll", &v.shape, axis, &at))
        return t ? poison(t) : kl_none;
    int64_t length = v.shape.dim[at];
    int64_t first = length ? shift % length : 0; /* number of elements that come from the end */
    first += first < 0 ? length : 0;
    if (!(t = checked_begin("roll")))
        return op_failed();
    if (!first)
        return compose_end(t, reshape_to("roll", a, &v.shape));
    const kl_tensor parts[2] = {kl_narrow(a, axis, length - first, first),
                                kl_narrow(a, axis, 0, length - first)};
    return compose_end(t, kl_concat(2, parts, axis));
}

/* ---- by the position of an element ---- */

/* Elements with column - row >= diagonal, or <= it, the others 0. */
static kl_tensor mask_triangle(const char *op, kl_tensor a, int64_t diagonal, bool upper)
{
    struct thread *t = thread_self();
    struct view v;
    char text[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    if (v.shape.rank < 2)
        return refuse(t, KL_ERR_SHAPE, "%s: needs two axes, got shape %s", op, shape_text(&v.shape, text, sizeof text));
    const int64_t rows = v.shape.dim[v.shape.rank - 2], columns = v.shape.dim[v.shape.rank - 1];
    if (!(t = checked_begin(op)))
        return op_failed();
    /* beyond these bounds all elements are on one side; the sum below must not overflow */
    const int64_t min = rows < 0 ? -MAX_DIM : -rows, max = columns < 0 ? MAX_DIM : columns; /* symbolic ones */
    diagonal = diagonal < min ? min : diagonal > max ? max : diagonal;
    const struct view place = {.dtype = KL_I64, .device = v.device};
    kl_tensor column = kl_arange(v.device, KL_I64, columns);
    kl_tensor row = kl_unsqueeze(kl_arange(v.device, KL_I64, rows), 1);
    kl_tensor edge = kl_add(row, const_like(&place, (double)diagonal));
    kl_tensor inside = upper ? kl_ge(column, edge) : kl_le(column, edge);
    return compose_end(t, kl_where(inside, a, const_like(&v, 0)));
}

kl_tensor kl_triu(kl_tensor a, int64_t diagonal)
{
    return mask_triangle("triu", a, diagonal, true);
}

kl_tensor kl_tril(kl_tensor a, int64_t diagonal)
{
    return mask_triangle("tril", a, diagonal, false);
}

kl_tensor kl_eye(kl_device device, kl_dtype dtype, int64_t rows, int64_t columns)
{
    struct thread *t = checked_begin("eye");
    if (!t)
        return op_failed();
    const int64_t dims[2] = {rows, columns};
    kl_tensor same = kl_eq(kl_iota(device, KL_I64, 2, dims, 0), kl_iota(device, KL_I64, 2, dims, 1));
    return compose_end(t, kl_cast(same, dtype));
}

/* Computed from both ends towards the middle, so that both ends are exact. */
kl_tensor kl_linspace(kl_device device, kl_dtype dtype, double start, double stop, int64_t n)
{
    struct thread *t = checked_begin("linspace");
    if (!t)
        return op_failed();
    if ((unsigned)dtype >= KL_DTYPE_COUNT || !dtype_is_float(dtype))
        return compose_end(t, refuse(t, KL_ERR_TYPE, "linspace: needs a floating dtype, got %s",
                                     (unsigned)dtype < KL_DTYPE_COUNT ? dtype_name(dtype) : "none"));
    if (n < 0) /* a symbolic length, too: the step would be computed of it */
        return compose_end(t, refuse(t, KL_ERR_SHAPE, "linspace: %" PRId64 " is no number of elements", n));
    const struct view place = {.dtype = KL_I64, .device = device};
    kl_tensor i = kl_arange(device, KL_I64, n);
    kl_tensor back = kl_sub(const_like(&place, (double)(n - 1)), i);
    kl_tensor step = kl_scalar(device, dtype, n > 1 ? stop / (double)(n - 1) - start / (double)(n - 1) : 0);
    kl_tensor from = kl_scalar(device, dtype, start),
        to = kl_scalar(device, dtype, n > 1 ? stop : start);
    kl_tensor up = kl_add(from, kl_mul(kl_cast(i, dtype), step));
    kl_tensor down = kl_sub(to, kl_mul(kl_cast(back, dtype), step));
    return compose_end(t, kl_where(kl_lt(i, back), up, down));
}
