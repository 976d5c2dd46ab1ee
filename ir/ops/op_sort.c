/* argsort: the positions of the elements of one axis in sorted order.  The order is that of integer keys; equal keys
 * keep their order, so every stable sort gives the same result. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <math.h>
#include <string.h>

bool shape_argsort(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    uint32_t axis = n->attr.sort.axis;
    char text[SHAPE_TEXT];
    *out = *node_shape(g, n->in[0]);
    if (!axis_in_range("argsort", out, axis, e))
        return false;
    if (n->dtype != KL_I32 && n->dtype != KL_I64)
        return err_set(e, KL_ERR_TYPE, "argsort: gives i32 or i64, not %s", dtype_name(n->dtype));
    if (n->dtype == KL_I32 && !dim_at_most(g, out->dim[axis], INT32_MAX))
        return err_set(e, KL_ERR_SHAPE, "argsort: axis %u of %s is too long for i32", axis,
                       shape_text_in(g, out, text, sizeof text));
    if (n->attr.sort.descending > 1)
        return err_set(e, KL_ERR_INTERNAL, "argsort: unknown direction %u", n->attr.sort.descending);
    return attr_clear_rest(n, sizeof n->attr.sort);
}

/* A key whose order is that of the elements; NaN is last in both directions. */
static uint64_t order_key(unsigned dtype, const void *p, bool descending)
{
    uint64_t bits = 0, top = UINT64_C(1) << 63;
    size_t size = dtype_size(dtype);
    memcpy(&bits, p, size); /* little-endian */
    if (dtype_is_float(dtype)) {
        double v = dtype_value(dtype, bits);
        if (isnan(v))
            return UINT64_MAX;
        v = v == 0 ? 0 : v; /* -0 is equal to 0 */
        memcpy(&bits, &v, sizeof bits);
        bits = bits & top ? ~bits : bits | top;
    } else if (dtype_kind(dtype) == 'I') {
        unsigned shift = 64 - 8 * (unsigned)size;
        bits = (uint64_t)((int64_t)(bits << shift) >> shift) ^ top;
    }
    return descending ? ~bits : bits;
}

/* Merges runs of 1, 2, 4, .. positions by key; the result is in place[] or, if *swapped, in other[]. */
static void sort_places(const uint64_t *key, int64_t *place, int64_t *other, int64_t n, bool *swapped)
{
    *swapped = false;
    for (int64_t run = 1; run < n; run *= 2) {
        const int64_t *from = *swapped ? other : place;
        int64_t *to = *swapped ? place : other;
        for (int64_t lo = 0; lo < n; lo += 2 * run) {
            int64_t mid = lo + run < n ? lo + run : n, hi = mid + run < n ? mid + run : n, i = lo, j = mid;
            for (int64_t k = lo; k < hi; k++)
                to[k] = i < mid && (j == hi || key[from[i]] <= key[from[j]]) ? from[i++] : from[j++];
        }
        *swapped = !*swapped;
    }
}

bool eval_argsort(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    struct split s = split_at(&g->shape[n->shape], n->attr.sort.axis);
    unsigned dtype = node_at(g, n->in[0])->dtype;
    size_t from = dtype_size(dtype), to = dtype_size(n->dtype);
    uint64_t *key = mem_alloc((size_t)s.len * sizeof *key);
    int64_t *place = mem_alloc((size_t)s.len * sizeof *place), *other = mem_alloc((size_t)s.len * sizeof *other);
    bool ok = key && place && other, swapped;
    for (int64_t row = 0; ok && row < s.outer * s.inner; row++) {
        int64_t first = row / s.inner * s.len * s.inner + row % s.inner;
        for (int64_t i = 0; i < s.len; i++) {
            key[i] = order_key(dtype, (const char *)in[0] + (size_t)(first + i * s.inner) * from,
                               n->attr.sort.descending);
            place[i] = i;
        }
        sort_places(key, place, other, s.len, &swapped);
        for (int64_t i = 0; i < s.len; i++) /* little-endian: i32 are the low bytes */
            memcpy((char *)out + (size_t)(first + i * s.inner) * to, swapped ? &other[i] : &place[i], to);
    }
    mem_free(key);
    mem_free(place);
    mem_free(other);
    return ok;
}

void vjp_argsort(struct graph *g, ref y, ref dy, ref *din)
{
    (void)g, (void)y, (void)dy;
    din[0] = NIL;
}

/* One sort computes all elements of a row, so this is an anchor, which passes/ schedules. */
uint32_t lower_argsort(struct lower *l, ref r, const uint32_t *coord)
{
    (void)coord;
    err_set(&l->k->err, KL_ERR_INTERNAL, "argsort: node %u cannot be lowered element by element", r);
    return 0;
}

/* The bits of a float, read as a signed integer, ascend with its value where it is positive and descend where it is
 * negative; flipping all bits but the sign of the latter puts both in order. */
val lower_sort_key(struct kernel *k, val x, bool descending)
{
    unsigned t = val_dtype(k, x);
    if (t == KL_BOOL)
        x = k_cast(k, x, KL_U8);
    if (!dtype_is_float(t))
        return descending ? k_prim(k, P_NOT, x, 0, 0) : x;
    x = k_cast(k, x, dtype_compute(t));
    unsigned key_type = val_dtype(k, x) == KL_F32 ? KL_I32 : KL_I64;
    int64_t max = key_type == KL_I32 ? INT32_MAX : INT64_MAX;
    val zero = k_const(k, val_dtype(k, x), 0), last = k_bits(k, key_type, (uint64_t)max);
    val plain = k_prim(k, P_SELECT, k_prim(k, P_EQ, x, zero, 0), zero, x); /* -0 is equal to 0 */
    val bits = k_inst(k, L_OP(P_BITS), key_type, plain, 0, 0, 0);
    val sign = k_prim(k, P_SHR, bits, k_bits(k, key_type, key_type == KL_I32 ? 31 : 63), 0);
    val key = k_prim(k, P_XOR, bits, k_prim(k, P_AND, sign, last, 0), 0);
    if (descending)
        key = k_prim(k, P_NOT, key, 0, 0);
    return k_prim(k, P_SELECT, k_prim(k, P_NE, x, x, 0), last, key);
}
