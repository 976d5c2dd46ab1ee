/* Elements at several coordinates: the coordinates are combined into one index, their axes into one axis of rows; then
 * gather and scatter of rows apply. */
#include "frontend/nn/compose.h"

/* Row indices, built one axis at a time. */
struct indices {
    const char *op;
    unsigned flags;
    kl_tensor at, inside;    /* i64, any shape; with DROP: bool, whether each is inside */
    int64_t rows;            /* the product of the axes so far */
};

/* One more axis, of `length` elements, with its coordinates. */
static void indices_add(struct indices *p, kl_tensor index, int64_t length)
{
    kl_dtype d = kl_dtype_of(index);
    if (d == KL_U64) /* i64 does not represent all of them */
        index = kl_minimum(index, kl_length_scalar(kl_device_of(index), d, length));
    const kl_device device = kl_device_of(index);
    kl_tensor i = d == KL_I64 ? index : kl_cast(index, KL_I64), zero = number(index, KL_I64, 0);
    kl_tensor count = kl_length_scalar(device, KL_I64, length);
    if (p->flags & KL_INDEX_FROM_END && dtype_kind(d) == 'I')
        i = kl_where(kl_lt(i, zero), kl_add(i, count), i);
    if (p->flags & KL_INDEX_DROP) {
        kl_tensor in = kl_and(kl_ge(i, zero), kl_lt(i, count));
        p->inside = p->inside.id ? kl_and(p->inside, in) : in;
    }
    kl_tensor last = length < 0 ? kl_sub(count, kl_const(device, KL_I64, 1))
                                : kl_const(device, KL_I64, (double)(length - 1));
    i = kl_maximum(kl_minimum(i, last), zero);
    p->at = p->at.id ? kl_add(kl_mul(p->at, count), i) : i;
    p->rows = kl_length_mul(p->rows, length);
}

/* As a vector; indices outside become the row after the last. */
static kl_tensor indices_flat(struct indices *p, int64_t count)
{
    kl_tensor at = p->at;
    if (p->inside.id)
        at = kl_where(p->inside, at, kl_length_scalar(kl_device_of(at), KL_I64, p->rows));
    return kl_reshape(at, 1, &count);
}

/* [rows, rest] with one row of zeros added at the end. */
static kl_tensor with_spare_row(const struct indices *p, kl_tensor rows)
{
    return p->flags & KL_INDEX_DROP ? kl_pad(rows, NULL, (int64_t[]){1, 0}, 0) : rows;
}

/* Rows by place as [count, rest]. */
static kl_tensor indices_gather(struct indices *p, kl_tensor a, int64_t rest, int64_t count)
{
    kl_tensor rows = with_spare_row(p, kl_reshape(a, 2, (int64_t[]){p->rows, rest}));
    return kl_take(rows, 0, indices_flat(p, count));
}

/* Multiplies rows with the same index.  They are sorted to be adjacent; in each step a row is multiplied with the one
 * at twice the distance before it, if that has the same index.  The last row of each index has the product and is
 * scattered. */
static kl_tensor multiply_rows(kl_tensor rows, kl_tensor place, kl_tensor update, int64_t count)
{
    kl_tensor order = kl_argsort(place, 0, false), one = same_number(rows, 1);
    place = kl_take(place, 0, order);
    update = kl_take(update, 0, order);
    for (int64_t step = 1; step < count; step *= 2) {
        kl_tensor same = kl_eq(kl_narrow(place, 0, step, count - step), kl_narrow(place, 0, 0, count - step));
        kl_tensor before = kl_where(kl_unsqueeze(same, -1), kl_narrow(update, 0, 0, count - step), one);
        kl_tensor parts[2] = {kl_narrow(update, 0, 0, step),
                              kl_mul(kl_narrow(update, 0, step, count - step), before)};
        update = kl_concat(2, parts, 0);
    }
    return kl_index_copy(rows, 0, place, kl_mul(kl_take(rows, 0, place), update));
}

static kl_tensor mean_rows(kl_tensor rows, int64_t nrows, kl_tensor place, kl_tensor update, int64_t count)
{
    kl_device device = kl_device_of(rows);
    kl_tensor counts = kl_index_add(kl_ones(device, KL_I32, 2, (int64_t[]){nrows, 1}), 0, place,
                                   kl_ones(device, KL_I32, 2, (int64_t[]){count, 1}));
    return kl_div(kl_index_add(rows, 0, place, update), kl_cast(counts, kl_dtype_of(rows)));
}

/* a [rows, rest] and update [count, rest], both of any shape, combined; the result is [rows, rest]. */
static kl_tensor indices_scatter(struct thread *t, struct indices *p, kl_tensor a, kl_tensor update, int64_t rest,
                                int64_t count, kl_scatter_kind kind)
{
    bool drops = p->flags & KL_INDEX_DROP;
    int64_t nrows = kl_length_add(p->rows, drops);
    if (kind == KL_SCATTER_MUL && count < 0)
        return refuse(t, KL_ERR_SHAPE, "%s: products of symbolically many rows", p->op);
    if (kind == KL_SCATTER_MUL || kind == KL_SCATTER_MEAN) {
        a = widen(t, a);
        update = widen(t, update);
    }
    kl_tensor rows = with_spare_row(p, kl_reshape(a, 2, (int64_t[]){p->rows, rest})), place = indices_flat(p, count), r;
    update = kl_reshape(update, 2, (int64_t[]){count, rest});
    switch (kind) {
    case KL_SCATTER_SET: r = kl_index_copy(rows, 0, place, update); break;
    case KL_SCATTER_ADD: r = kl_index_add(rows, 0, place, update); break;
    case KL_SCATTER_MIN: r = kl_index_min(rows, 0, place, update); break;
    case KL_SCATTER_MAX: r = kl_index_max(rows, 0, place, update); break;
    case KL_SCATTER_MUL: r = multiply_rows(rows, place, update, count); break;
    default: r = mean_rows(rows, nrows, place, update, count); break;
    }
    return drops ? kl_narrow(r, 0, 0, p->rows) : r;
}

/* ---- arguments ---- */

/* Views of a, an index and, unless it is NULL, an update; false: reported. */
static bool indexed_views(struct thread *t, const char *op, kl_tensor a, kl_tensor index,
                          const kl_tensor *update, unsigned kind, unsigned flags, struct view *v, struct view *x,
                          struct view *u)
{
    if (!t || !describe(t, op, "the tensor", a, v) || !describe(t, op, "the index", index, x) ||
        (update && !describe(t, op, "the update", *update, u)))
        return false;
    if (dtype_kind(x->dtype) != 'I' && dtype_kind(x->dtype) != 'U')
        return fail(t, KL_ERR_TYPE, "%s: the index must be integers, got %s", op, dtype_name(x->dtype)), false;
    if (update && u->dtype != v->dtype)
        return fail(t, KL_ERR_TYPE, "%s: dtypes %s of the tensor and %s of the update differ", op,
                    dtype_name(v->dtype), dtype_name(u->dtype)), false;
    if (flags & ~(unsigned)(KL_INDEX_FROM_END | KL_INDEX_DROP) || kind > KL_SCATTER_MEAN)
        return fail(t, KL_ERR_ARGUMENT, "%s: %s are none", op, kind > KL_SCATTER_MEAN ? "such kinds"
                                                                                              : "these flags"), false;
    return true;
}

/* Axes first..first+n-1 of s that are indexed must have elements; false: reported. */
static bool rows_exist(struct thread *t, const char *op, const struct shape *s, uint32_t first,
                       uint32_t n, int64_t count, unsigned flags)
{
    char text[SHAPE_TEXT];
    for (uint32_t i = first; i < first + n; i++)
        if (s->dim[i] == 0 && count && !(flags & KL_INDEX_DROP))
            return fail(t, KL_ERR_SHAPE, "%s: axis %u of %s has no elements", op, i,
                        shape_text(s, text, sizeof text)), false;
    return true;
}

static kl_tensor fits_not(struct thread *t, const char *op, const struct shape *index, const struct shape *a)
{
    char ti[SHAPE_TEXT], ta[SHAPE_TEXT];
    return refuse(t, KL_ERR_SHAPE, "%s: index %s does not fit %s", op, shape_text(index, ti, sizeof ti),
                  shape_text(a, ta, sizeof ta));
}

static kl_tensor update_differs(struct thread *t, const char *op, const struct shape *want, const struct shape *got)
{
    char tw[SHAPE_TEXT], tg[SHAPE_TEXT];
    return refuse(t, KL_ERR_SHAPE, "%s: the update must be %s, got %s", op, shape_text(want, tw, sizeof tw),
                  shape_text(got, tg, sizeof tg));
}

/* ---- rows of coordinates ---- */

/* index [..., K] as row indices for K axes of s from `first` on */
static void indices_coordinates(struct indices *p, kl_tensor index, const struct shape *s, uint32_t first, int64_t K)
{
    for (int64_t k = 0; k < K; k++)
        indices_add(p, kl_squeeze(kl_narrow(index, -1, k, 1), -1), s->dim[first + k]);
}

/* index [I..., K] into s with `batch` axes in common; *out: [I..., rest...], *rest: its elements a row; false: it does
 * not fit, which is not reported. */
static bool nd_shape(const struct shape *s, const struct shape *index, uint32_t batch, struct shape *out, int64_t *rest)
{
    *out = (struct shape){0};
    *rest = 1;
    if (!index->rank || batch >= index->rank || batch > s->rank)
        return false;
    int64_t K = index->dim[index->rank - 1];
    if (K < 1 || K > s->rank - batch || index->rank - 1 + s->rank - batch - K > KL_MAX_RANK ||
        memcmp(s->dim, index->dim, batch * sizeof *s->dim) != 0)
        return false;
    for (uint32_t i = 0; i + 1 < index->rank; i++)
        out->dim[out->rank++] = index->dim[i];
    for (uint32_t i = batch + (uint32_t)K; i < s->rank; i++) {
        *rest = kl_length_mul(*rest, s->dim[i]);
        out->dim[out->rank++] = s->dim[i];
    }
    return true;
}

kl_tensor kl_gather_nd(kl_tensor a, kl_tensor index, int batch, unsigned flags)
{
    static const char op[] = "gather_nd";
    struct thread *t = thread_self();
    struct view v, x;
    struct shape out;
    int64_t rest;
    if (!indexed_views(t, op, a, index, NULL, 0, flags, &v, &x, NULL))
        return op_failed();
    if (batch < 0 || !nd_shape(&v.shape, &x.shape, (uint32_t)batch, &out, &rest))
        return fits_not(t, op, &x.shape, &v.shape);
    int64_t K = x.shape.dim[x.shape.rank - 1];
    int64_t count = product_of_lengths(x.shape.dim, (int)x.shape.rank - 1);
    if (!rows_exist(t, op, &v.shape, (uint32_t)batch, (uint32_t)K, count, flags) ||
        !(t = checked_begin(op)))
        return op_failed();
    struct indices p = {.op = op, .flags = flags, .rows = 1};
    for (int i = 0; i < batch; i++) { /* each element of the batch has its own rows */
        struct shape own = x.shape;
        own.rank--;
        for (uint32_t k = 0; k < own.rank; k++)
            own.dim[k] = k == (uint32_t)i ? own.dim[k] : 1;
        indices_add(&p, kl_iota(v.device, KL_I64, (int)own.rank, own.dim, i), v.shape.dim[i]);
    }
    indices_coordinates(&p, index, &v.shape, (uint32_t)batch, K);
    return compose_end(t, reshape_to(op, indices_gather(&p, a, rest, count), &out));
}

kl_tensor kl_scatter_nd(kl_tensor a, kl_tensor index, kl_tensor update, kl_scatter_kind kind, unsigned flags)
{
    static const char op[] = "scatter_nd";
    struct thread *t = thread_self();
    struct view v, x, u;
    struct shape want;
    int64_t rest;
    if (!indexed_views(t, op, a, index, &update, (unsigned)kind, flags, &v, &x, &u))
        return op_failed();
    if (!nd_shape(&v.shape, &x.shape, 0, &want, &rest))
        return fits_not(t, op, &x.shape, &v.shape);
    if (!shape_equal(&want, &u.shape))
        return update_differs(t, op, &want, &u.shape);
    int64_t K = x.shape.dim[x.shape.rank - 1];
    int64_t count = product_of_lengths(x.shape.dim, (int)x.shape.rank - 1);
    if (!rows_exist(t, op, &v.shape, 0, (uint32_t)K, count, flags) || !(t = checked_begin(op)))
        return op_failed();
    struct indices p = {.op = op, .flags = flags, .rows = 1};
    indices_coordinates(&p, index, &v.shape, 0, K);
    return compose_end(t, reshape_to(op, indices_scatter(t, &p, a, update, rest, count, kind), &v.shape));
}

/* ---- an index along an axis ---- */

/* The row indices of all coordinates: the index along the axis, the element's own position along the others.  An axis
 * of length 1, or one that the index covers completely, needs no clamping. */
static void elements_indices(struct indices *p, kl_tensor index, const struct view *x, const struct shape *s,
                            uint32_t axis)
{
    for (uint32_t i = 0; i < s->rank; i++) {
        struct shape own = {.rank = s->rank};
        for (uint32_t k = 0; k < s->rank; k++)
            own.dim[k] = k == i ? x->shape.dim[k] : 1;
        indices_add(p, i == axis ? index : kl_iota(x->device, KL_I64, (int)s->rank, own.dim, (int)i), s->dim[i]);
    }
}

/* The index must have as many axes as a, and be longer only along the one axis; false: reported. */
static bool elements_fit(struct thread *t, const char *op, const struct view *v,
                         const struct view *x, int axis, unsigned flags, uint32_t *at)
{
    if (!axis_of(t, op, &v->shape, axis, at))
        return false;
    bool fits = v->shape.rank == x->shape.rank;
    for (uint32_t i = 0; fits && i < v->shape.rank; i++)
        fits = i == *at || length_at_most(t, x->shape.dim[i], v->shape.dim[i]);
    if (!fits)
        return fits_not(t, op, &x->shape, &v->shape), false;
    return rows_exist(t, op, &v->shape, *at, 1, shape_count(&x->shape), flags);
}

kl_tensor kl_take_along_axis_with(kl_tensor a, int axis, kl_tensor index, unsigned flags)
{
    static const char op[] = "take_along_axis_with";
    struct thread *t = thread_self();
    struct view v, x;
    uint32_t at;
    if (!indexed_views(t, op, a, index, NULL, 0, flags, &v, &x, NULL) ||
        !elements_fit(t, op, &v, &x, axis, flags, &at) || !(t = checked_begin(op)))
        return op_failed();
    struct indices p = {.op = op, .flags = flags, .rows = 1};
    elements_indices(&p, index, &x, &v.shape, at);
    int64_t count = product_of_lengths(x.shape.dim, (int)x.shape.rank);
    return compose_end(t, reshape_to(op, indices_gather(&p, a, 1, count), &x.shape));
}

kl_tensor kl_put_along_axis_with(kl_tensor a, int axis, kl_tensor index, kl_tensor update,
                                 kl_scatter_kind kind, unsigned flags)
{
    static const char op[] = "put_along_axis_with";
    struct thread *t = thread_self();
    struct view v, x, u;
    uint32_t at;
    if (!indexed_views(t, op, a, index, &update, (unsigned)kind, flags, &v, &x, &u) ||
        !elements_fit(t, op, &v, &x, axis, flags, &at))
        return op_failed();
    if (!shape_equal(&x.shape, &u.shape))
        return update_differs(t, op, &x.shape, &u.shape);
    if (!(t = checked_begin(op)))
        return op_failed();
    struct indices p = {.op = op, .flags = flags, .rows = 1};
    elements_indices(&p, index, &x, &v.shape, at);
    int64_t count = product_of_lengths(x.shape.dim, (int)x.shape.rank);
    kl_tensor r = indices_scatter(t, &p, a, update, 1, count, kind);
    return compose_end(t, reshape_to(op, r, &v.shape));
}

/* ---- several indices ---- */

/* How a's axes and those of the indices form the result's. */
struct several {
    struct view v;
    int order[KL_MAX_RANK], back[KL_MAX_RANK]; /* indexed axes of a first; and the other way round */
    struct shape index, first, out;            /* of the indices; [index..., rest...]; and of the result */
    int to_out[KL_MAX_RANK], to_first[KL_MAX_RANK]; /* the corresponding axis of the other */
    int64_t rest;
    uint32_t used;                             /* axes indexed */
};

static bool broadcast_with(struct shape *s, const struct shape *x)
{
    uint32_t rank = s->rank > x->rank ? s->rank : x->rank;
    struct shape r = {.rank = rank};
    for (uint32_t i = 0; i < rank; i++) {
        int64_t a = i < s->rank ? s->dim[s->rank - 1 - i] : 1, b = i < x->rank ? x->dim[x->rank - 1 - i] : 1;
        if (a != b && a != 1 && b != 1)
            return false;
        r.dim[rank - 1 - i] = a == 1 ? b : a;
    }
    *s = r;
    return true;
}

static bool several_of(struct thread *t, const char *op, kl_tensor a, int n,
                       const kl_tensor *index, const kl_tensor *update, unsigned kind, unsigned flags,
                       struct several *s)
{
    struct view x, u;
    *s = (struct several){.rest = 1};
    if (!t || !describe(t, op, "the tensor", a, &s->v))
        return false;
    const struct shape *sa = &s->v.shape;
    uint32_t first = KL_MAX_RANK, last = 0, at = 0;
    if (n < 1 || n > (int)sa->rank || !index)
        return fail(t, KL_ERR_ARGUMENT, "%s: %d indices for %u axes", op, index ? n : 0, sa->rank), false;
    for (int i = 0; i < n; i++) {
        if (!index[i].id)
            continue;
        if (!indexed_views(t, op, a, index[i], update, kind, flags, &s->v, &x, &u))
            return false;
        if (!broadcast_with(&s->index, &x.shape))
            return fits_not(t, op, &x.shape, &s->index), false;
        first = s->used ? first : (uint32_t)i;
        last = (uint32_t)i;
        s->order[s->used++] = i;
    }
    if (!s->used)
        return fail(t, KL_ERR_ARGUMENT, "%s: all %d indices are kl_none", op, n), false;
    uint32_t front = last - first + 1 == s->used ? first : 0; /* axes of the result before the indices' */
    if (s->index.rank + sa->rank - s->used > KL_MAX_RANK)
        return fail(t, KL_ERR_SHAPE, "%s: the result has more than %d axes", op, KL_MAX_RANK), false;
    int64_t count = shape_count(&s->index);
    for (uint32_t k = 0; k < s->used; k++)
        if (!rows_exist(t, op, sa, (uint32_t)s->order[k], 1, count, flags))
            return false;
    s->first = s->index;
    at = s->used;
    for (uint32_t i = 0; i < sa->rank; i++)
        if (i >= (uint32_t)n || !index[i].id) {
            s->order[at++] = (int)i;
            s->rest = kl_length_mul(s->rest, sa->dim[i]);
            s->first.dim[s->first.rank++] = sa->dim[i];
        }
    for (uint32_t i = 0; i < sa->rank; i++)
        s->back[s->order[i]] = (int)i;
    s->out.rank = s->first.rank;
    for (uint32_t i = 0; i < s->out.rank; i++) {
        uint32_t from = i < front ? s->index.rank + i : i < front + s->index.rank ? i - front : i;
        s->to_out[i] = (int)from;
        s->to_first[from] = (int)i;
        s->out.dim[i] = s->first.dim[from];
    }
    return true;
}

/* Broadcasts the indices and combines them into row indices. */
static void several_indices(struct indices *p, const struct several *s, int n, const kl_tensor *index)
{
    for (int i = 0; i < n; i++)
        if (index[i].id)
            indices_add(p, kl_expand(index[i], (int)s->index.rank, s->index.dim), s->v.shape.dim[i]);
}

kl_tensor kl_index(kl_tensor a, int n, const kl_tensor *index, unsigned flags)
{
    static const char op[] = "index";
    struct thread *t = thread_self();
    struct several s;
    if (!several_of(t, op, a, n, index, NULL, 0, flags, &s) || !(t = checked_begin(op)))
        return op_failed();
    struct indices p = {.op = op, .flags = flags, .rows = 1};
    several_indices(&p, &s, n, index);
    int64_t count = product_of_lengths(s.index.dim, (int)s.index.rank);
    kl_tensor r = indices_gather(&p, kl_permute(a, s.order), s.rest, count);
    r = reshape_to(op, r, &s.first);
    return compose_end(t, kl_permute(r, s.to_out));
}

kl_tensor kl_index_put(kl_tensor a, int n, const kl_tensor *index, kl_tensor update,
                       kl_scatter_kind kind, unsigned flags)
{
    static const char op[] = "index_put";
    struct thread *t = thread_self();
    struct several s;
    if (!several_of(t, op, a, n, index, &update, (unsigned)kind, flags, &s) || !(t = checked_begin(op)))
        return op_failed();
    struct indices p = {.op = op, .flags = flags, .rows = 1};
    several_indices(&p, &s, n, index);
    struct shape rows = s.v.shape;
    for (uint32_t i = 0; i < rows.rank; i++)
        rows.dim[i] = s.v.shape.dim[s.order[i]];
    update = kl_permute(kl_expand(update, (int)s.out.rank, s.out.dim), s.to_first);
    int64_t count = product_of_lengths(s.index.dim, (int)s.index.rank);
    kl_tensor r = indices_scatter(t, &p, kl_permute(a, s.order), update, s.rest, count, kind);
    return compose_end(t, kl_permute(reshape_to(op, r, &rows), s.back));
}
