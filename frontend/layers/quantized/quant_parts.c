/* Quantized tensors of integers that are there, and how their parts are stored: scales and minimums of any number
 * dtype, scaled by those of super-blocks, integers of 6 bits in three arrays, and matrices whose rows alternate.
 * Each call that reads such a tensor records the floats and the order of rows that its parts stand for, so that nothing
 * else knows of it; kernels compute them where they are read. */
#include "quantized.h"

/* number[4] of the wrapper: the parts are those of kl_quantized_with. */
enum { PARTS_STORED = 1, PARTS_INTERLEAVED = 2 };
enum { PART_SUPER = 3, PART_SECOND = 6 }; /* from a scale or minimum to that of super-blocks */
static const int rows_before_blocks[3] = {0, 2, 1};

/* x with each element along the axis r times, in shape `to`. */
static kl_tensor quant_repeat(kl_tensor x, const struct shape *to, uint32_t axis, int64_t r)
{
    struct shape cut = quant_cut_shape(to, axis, r), one = cut;
    one.dim[axis + 1] = 1;
    return reshape_to("quantized", broadcast_to("quantized", reshape_to("quantized", x, &one), &one, &cut), to);
}

void quant_cut_blocks(struct quant *q, int64_t block)
{
    int64_t r = q->block / block;
    q->block = block;
    struct shape to = quant_scale_shape(q);
    for (int i = 1; i < QUANT_PARTS && r > 1; i++)
        if (q->part[i].id)
            q->part[i] = quant_repeat(q->part[i], &to, q->axis, r);
}

/* ---- reading ---- */

void quant_stored_part(kl_tensor h, unsigned part, kl_tensor to[2])
{
    const struct wrapper *w = wrapper_of(h, &layer_quantized);
    to[0] = w->part[part];
    to[1] = part != 2 ? w->part[part == 1 ? 1 + PART_SUPER : 2 + PART_SUPER] : kl_none;
    for (int i = 0; i < 2 && w->number[4] & PARTS_INTERLEAVED; i++)
        if (to[i].id) {
            struct shape s = view_of(to[i]).shape, rows = {.rank = 2, .dim = {s.dim[0] * s.dim[2], s.dim[1]}};
            to[i] = reshape_to("quantized", kl_permute(to[i], rows_before_blocks), &rows);
        }
}

kl_tensor quant_scale_of(const kl_tensor stored[2], const struct shape *to, uint32_t axis, unsigned dtype)
{
    kl_tensor x = quant_cast(stored[0], dtype);
    if (!stored[1].id)
        return x;
    struct view v = view_of(stored[1]);
    int64_t n = v.shape.dim[axis];
    return kl_mul(x, quant_repeat(quant_cast(stored[1], dtype), to, axis, n ? to->dim[axis] / n : 1));
}

/* Bytes of integers as rows of the tensor. */
static kl_tensor quant_rows_of_bytes(kl_tensor bytes, bool interleaved)
{
    static const int rows_first[4] = {0, 2, 1, 3};
    if (!interleaved)
        return bytes;
    struct shape s = view_of(bytes).shape, rows = {.rank = 2, .dim = {s.dim[0] * s.dim[2], s.dim[1] * s.dim[3]}};
    return reshape_to("quantized", kl_permute(bytes, rows_first), &rows);
}

bool quant_stored_six(kl_tensor h, kl_tensor to[QUANT_SIX])
{
    const struct wrapper *w = wrapper_of(h, &layer_quantized);
    if (w->number[0] != KL_Q_I6)
        return false;
    for (int i = 0; i < QUANT_SIX; i++)
        to[i] = quant_rows_of_bytes(w->part[i ? PART_SECOND + i - 1 : 0], w->number[4] & PARTS_INTERLEAVED);
    return true;
}

kl_tensor quant_join_six(const kl_tensor bytes[QUANT_SIX])
{
    struct view v = view_of(bytes[0]), byte = {.dtype = KL_U8, .device = v.device};
    const struct view number = {.dtype = KL_I8, .device = v.device};
    const kl_tensor two = const_like(&byte, 2), six = const_like(&byte, 6), mask = const_like(&byte, 63);
    uint32_t last = v.shape.rank - 1;
    v.shape.dim[last] *= 4;
    struct shape blocks = quant_cut_shape(&v.shape, last, 16), four = quant_cut_shape(&blocks, last + 1, 4), one = four;
    one.dim[last + 1] = 1;
    kl_tensor x[QUANT_SIX], which = kl_iota(v.device, KL_U8, (int)four.rank, four.dim, -2);
    for (int i = 0; i < QUANT_SIX; i++)
        x[i] = broadcast_to("quantized", reshape_to("quantized", bytes[i], &one), &one, &four);
    kl_tensor low = kl_shr(x[0], six), middle = kl_and(kl_shr(x[1], const_like(&byte, 4)), const_like(&byte, 12));
    kl_tensor high = kl_and(kl_shr(x[2], two), const_like(&byte, 48));
    kl_tensor last_one = kl_or(kl_or(low, middle), high);
    kl_tensor u = kl_and(x[2], mask);
    u = kl_where(kl_lt(which, two), kl_and(x[1], mask), u);
    u = kl_where(kl_lt(which, const_like(&byte, 1)), kl_and(x[0], mask), u);
    u = kl_where(kl_lt(two, which), last_one, u);
    return reshape_to("quantized", kl_sub(kl_bitcast(u, KL_I8), const_like(&number, 32)), &v.shape);
}

struct quant quant_of(struct thread *t, kl_tensor h)
{
    const struct wrapper *w = wrapper_of(h, &layer_quantized);
    struct quant q = {.type = (kl_qtype)w->number[0], .grain = (enum quant_grain)w->number[1],
                      .axis = (uint32_t)w->number[2], .block = w->number[3], .v = view_of(h)};
    for (int i = 0; i < QUANT_PARTS; i++)
        q.part[i] = w->part[i];
    kl_tensor six[QUANT_SIX];
    if (quant_stored_six(h, six))
        q.part[0] = quant_join_six(six), q.type = KL_Q_I8;
    else
        q.part[0] = quant_rows_of_bytes(q.part[0], w->number[4] & PARTS_INTERLEAVED);
    struct shape scales = quant_scale_shape(&q);
    for (unsigned i = 1; i < QUANT_PARTS && w->number[4]; i += 2)
        if (q.part[i].id) {
            kl_tensor stored[2];
            quant_stored_part(h, i, stored);
            q.part[i] = quant_scale_of(stored, &scales, q.axis, q.v.dtype);
        }
    if (q.type == KL_Q_I4)
        q.made = quant_made_ints(t, q.part[0]);
    return q;
}

kl_tensor quant_make(struct thread *t, const struct quant *q)
{
    const int64_t number[WRAPPER_NUMBERS] = {q->type, q->grain, q->axis, q->block};
    return wrap(t, &layer_quantized, &q->v, q->part[3].id ? 4 : 3, q->part, number);
}

/* ---- making ---- */

kl_tensor quant_align_scale(struct thread *t, const char *what, const struct quant *q, kl_tensor p, unsigned dtype)
{
    struct shape want = quant_scale_shape(q);
    struct view v;
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    if (!describe(t, "quantized", what, p, &v))
        return kl_none;
    bool fits = shape_equal(&v.shape, &want) || (q->grain == QUANT_TENSOR && !v.shape.rank) ||
                (q->grain == QUANT_AXIS && v.shape.rank == 1 && v.shape.dim[0] == want.dim[q->axis]);
    if (!fits)
        fail(t, KL_ERR_SHAPE, "quantized: %s has shape %s, not %s", what, shape_text(&v.shape, a, sizeof a),
             shape_text(&want, b, sizeof b));
    else if (v.dtype != dtype)
        fail(t, KL_ERR_TYPE, "quantized: %s is %s, not %s", what, dtype_name(v.dtype), dtype_name(dtype));
    else
        return reshape_to("quantized", p, &want);
    return kl_none;
}

/* The dtype of the integers in memory. */
static unsigned quant_bytes_dtype(kl_qtype type) { return type == KL_Q_I8 ? KL_I8 : KL_U8; }

/* The shape of the tensor that integers of this shape stand for; false: reported. */
static bool quant_shape_of(struct thread *t, kl_qscheme scheme, bool interleaved, struct shape *s)
{
    char text[SHAPE_TEXT];
    if (interleaved) {
        if (s->rank != 4 || s->dim[0] < 0 || s->dim[1] < 0 || s->dim[2] != QUANT_INTERLEAVED || s->dim[3] != 4 ||
            scheme.block <= 0 || (scheme.axis != 1 && scheme.axis != -1))
            return fail(t, KL_ERR_SHAPE, "quantized: interleaved integers have shape [N/%d, bytes/4, %d, 4] and blocks "
                        "along axis 1, not %s", QUANT_INTERLEAVED, QUANT_INTERLEAVED,
                        shape_text(s, text, sizeof text)) == KL_OK;
        *s = (struct shape){.rank = 2, .dim = {s->dim[0] * QUANT_INTERLEAVED, s->dim[1] * 4}};
    }
    if (s->rank)
        s->dim[s->rank - 1] *= quant_is_nibbles(scheme.type) ? 2 : scheme.type == KL_Q_I6 ? 4 : 1;
    return true;
}

/* Is p a number for each block, in super-blocks if `super`?  false: reported. */
static bool quant_is_scale(struct thread *t, const char *what, const struct quant *q, kl_tensor p, bool interleaved,
                           bool super)
{
    struct shape want = quant_scale_shape(q);
    struct view v;
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    uint32_t axis = q->axis; /* that of blocks: 1 where rows alternate */
    if (interleaved)
        want = (struct shape){.rank = 3, .dim = {want.dim[0] / QUANT_INTERLEAVED, want.dim[1], QUANT_INTERLEAVED}};
    if (!describe(t, "quantized", what, p, &v))
        return false;
    if (v.dtype == KL_BOOL || wrapper_of(p, NULL))
        return fail(t, KL_ERR_TYPE, "quantized: %s is no plain tensor of numbers", what) == KL_OK;
    if (super && q->grain == QUANT_BLOCK && v.shape.rank == want.rank && v.shape.dim[axis] > 0 &&
        want.dim[axis] % v.shape.dim[axis] == 0)
        want.dim[axis] = v.shape.dim[axis];
    return shape_equal(&v.shape, &want) ||
           fail(t, KL_ERR_SHAPE, "quantized: %s has shape %s, not %s%s", what, shape_text(&v.shape, a, sizeof a),
                shape_text(&want, b, sizeof b), super ? " or a divisor of its blocks" : "") == KL_OK;
}

static bool quant_take_zero_point(struct thread *t, const struct quant *q, const kl_quantized_options *o,
                                  kl_tensor part[MAX_PARTS])
{
    if (!o->zero_point.id)
        return true;
    if (o->interleaved || q->type == KL_Q_I4 || q->type == KL_Q_I6)
        return fail(t, KL_ERR_ARGUMENT, "quantized: %s integers have no zero point",
                    o->interleaved ? "interleaved" : q->type == KL_Q_I4 ? "4-bit" : "6-bit") == KL_OK;
    part[2] = quant_align_scale(t, "the zero point", q, o->zero_point, quant_bytes_dtype(q->type));
    return part[2].id;
}

/* The other arrays of KL_Q_I6; false: reported. */
static bool quant_take_six(struct thread *t, const struct quant *q, const kl_quantized_options *o, kl_tensor ints,
                           kl_tensor part[MAX_PARTS])
{
    static const char *const what[] = {"the second array", "the third array"};
    struct view v, first = view_of(ints);
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    bool six = q->type == KL_Q_I6;
    for (int i = 0; i < 2; i++) {
        kl_tensor x = i ? o->third : o->second;
        if (six != (x.id != 0))
            return fail(t, KL_ERR_ARGUMENT, six ? "quantized: 6-bit integers are three arrays"
                                                : "quantized: three arrays are of 6-bit integers") == KL_OK;
        if (!six)
            continue;
        if (!describe(t, "quantized", what[i], x, &v))
            return false;
        if (v.dtype != KL_U8 || wrapper_of(x, NULL))
            return fail(t, KL_ERR_TYPE, "quantized: %s is %s, not plain u8", what[i], dtype_name(v.dtype)) == KL_OK;
        if (!shape_equal(&v.shape, &first.shape))
            return fail(t, KL_ERR_SHAPE, "quantized: %s has shape %s, not %s", what[i],
                        shape_text(&v.shape, a, sizeof a), shape_text(&first.shape, b, sizeof b)) == KL_OK;
        part[PART_SECOND + i] = x;
    }
    return true;
}

/* The parts in the order of the wrapper; false: reported. */
static bool quant_take_parts(struct thread *t, const struct quant *q, kl_tensor scale, const kl_quantized_options *o,
                             kl_tensor part[MAX_PARTS])
{
    static const char *const what[MAX_PARTS] = {[1] = "the scale", [3] = "the minimum",
                                                [4] = "the scale of super-blocks", [5] = "the minimum of super-blocks"};
    part[1] = scale, part[3] = o->minimum, part[4] = o->super_scale, part[5] = o->super_minimum;
    for (unsigned i = 1; i < PART_SECOND; i++)
        if (part[i].id && i != 2 && !quant_is_scale(t, what[i], q, part[i], o->interleaved, i > PART_SUPER))
            return false;
    if (part[5].id && !part[3].id)
        return fail(t, KL_ERR_ARGUMENT, "quantized: a minimum of super-blocks without a minimum") == KL_OK;
    return quant_take_zero_point(t, q, o, part);
}

/* What integers of a scheme stand for, v without its shape; false: reported. */
static bool quant_of_ints(struct thread *t, kl_tensor ints, kl_qscheme scheme, bool interleaved, struct view v,
                          struct quant *q)
{
    struct view number;
    unsigned want = quant_bytes_dtype(scheme.type);
    if (!describe(t, "quantized", "the integers", ints, &number))
        return false;
    if (number.dtype != want || wrapper_of(ints, NULL))
        return fail(t, KL_ERR_TYPE, "quantized: the integers are %s, not plain %s", dtype_name(number.dtype),
                    dtype_name(want)) == KL_OK;
    number.dtype = v.dtype;
    return quant_shape_of(t, scheme, interleaved, &number.shape) &&
           quant_scheme(t, "quantized", scheme, &number, q);
}

kl_tensor kl_quantized(kl_tensor ints, kl_qscheme scheme, kl_tensor scale, kl_tensor zero_point)
{
    struct view v;
    struct quant q;
    struct thread *t = floats_begin("quantized", scale, &v);
    if (!t)
        return op_failed();
    const kl_quantized_options options = {.zero_point = zero_point};
    kl_tensor part[MAX_PARTS] = {kl_none};
    if (!quant_of_ints(t, ints, scheme, false, v, &q) || !quant_take_six(t, &q, &options, ints, part) ||
        !quant_take_zero_point(t, &q, &options, part))
        return compose_end(t, poison(t));
    q.part[0] = ints;
    q.part[1] = quant_align_scale(t, "the scale", &q, scale, v.dtype);
    q.part[2] = part[2];
    return compose_end(t, q.part[1].id ? quant_make(t, &q) : poison(t));
}

kl_tensor kl_quantized_with(kl_tensor ints, kl_qscheme scheme, kl_tensor scale, const kl_quantized_options *options)
{
    static const kl_quantized_options none;
    const kl_quantized_options *o = options ? options : &none;
    struct quant q;
    struct thread *t = checked_begin("quantized");
    if (!t)
        return op_failed();
    kl_tensor part[MAX_PARTS] = {ints};
    const struct view v = {.dtype = KL_F32, .device = view_of(ints).device};
    if (!quant_of_ints(t, ints, scheme, o->interleaved, v, &q) || !quant_take_six(t, &q, o, ints, part) ||
        !quant_take_parts(t, &q, scale, o, part))
        return compose_end(t, poison(t));
    const int64_t number[WRAPPER_NUMBERS] = {q.type, q.grain, q.axis, q.block,
                                             PARTS_STORED | (o->interleaved ? PARTS_INTERLEAVED : 0)};
    uint32_t parts = part[PART_SECOND].id ? MAX_PARTS : PART_SECOND;
    return compose_end(t, wrap(t, &layer_quantized, &q.v, parts, part, number));
}
