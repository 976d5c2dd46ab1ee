/* Sampling at computed coordinates: the elements around each point are gathered and weighted. */
#include "frontend/nn/compose.h"

enum { SAMPLE_AXES = 3 };

/* a as rows [N L1..Ln, C]. */
struct sampler {
    kl_tensor rows, batch;        /* batch: i64, the number of a point's image, broadcast to the points */
    int n;                        /* axes */
    int64_t length[SAMPLE_AXES];
    kl_sample_border border;
    bool corners, cubic;
};

/* From -1 .. 1 to 0 .. length - 1, or half an element further. */
static kl_tensor sample_place(const struct sampler *s, kl_tensor x, int64_t length)
{
    double scale = s->corners ? (double)(length - 1) / 2 : (double)length / 2;
    return kl_add(kl_mul(x, same_number(x, scale)), same_number(x, (double)(length - 1) / 2));
}

/* Coordinates outside come back in by their distance from the border. */
static kl_tensor sample_reflected(const struct sampler *s, kl_tensor x, int64_t length)
{
    double low = s->corners ? 0 : -0.5, span = s->corners ? (double)(length - 1) : (double)length;
    if (span == 0)
        return kl_mul(x, same_number(x, 0));
    kl_tensor d = kl_abs(kl_sub(x, same_number(x, low))), whole = same_number(x, span);
    kl_tensor flips = kl_floor(kl_div(d, whole)), rest = kl_sub(d, kl_mul(flips, whole));
    kl_tensor half = kl_floor(kl_mul(flips, same_number(x, 0.5)));
    kl_tensor odd = kl_sub(flips, kl_add(half, half));
    rest = kl_where(kl_gt(odd, same_number(x, 0.5)), kl_sub(whole, rest), rest);
    return kl_add(rest, same_number(x, low));
}

static kl_tensor sample_held(kl_tensor x, int64_t length)
{
    return kl_minimum(kl_maximum(x, same_number(x, 0)), same_number(x, (double)(length - 1)));
}

static kl_tensor sample_border(const struct sampler *s, kl_tensor x, int64_t length)
{
    if (s->border == KL_SAMPLE_REFLECTION)
        x = sample_reflected(s, x, length);
    return s->border == KL_SAMPLE_ZEROS ? x : sample_held(x, length);
}

/* The elements at integer coordinates, one tensor an axis: [points..., C]. */
static kl_tensor sample_elements(const struct sampler *s, const kl_tensor *x)
{
    kl_tensor at = s->batch, inside = kl_none;
    for (int i = 0; i < s->n; i++) {
        kl_tensor place = sample_border(s, x[i], s->length[i]), held = sample_held(place, s->length[i]);
        at = kl_add(kl_mul(at, number(at, KL_I64, (double)s->length[i])), kl_cast(held, KL_I64));
        if (s->border == KL_SAMPLE_ZEROS) {
            kl_tensor in = kl_eq(held, place);
            inside = inside.id ? kl_and(inside, in) : in;
        }
    }
    kl_tensor v = kl_take(s->rows, 0, at);
    return inside.id ? kl_where(kl_unsqueeze(inside, -1), v, same_number(v, 0)) : v;
}

/* The weight of the tap at floor(x) + k, k from -1 (cubic) or 0; ratio is x - floor(x).  Cubic: Keys, a = -0.75. */
static kl_tensor sample_weight(const struct sampler *s, kl_tensor ratio, int k)
{
    kl_tensor d = kl_abs(kl_sub(ratio, same_number(ratio, k))), one = same_number(ratio, 1);
    if (!s->cubic)
        return k ? ratio : kl_sub(one, ratio);
    const double a = -0.75;
    kl_tensor near = kl_sub(kl_mul(d, same_number(d, a + 2)), same_number(d, a + 3));
    kl_tensor far = kl_mul(kl_sub(kl_mul(d, same_number(d, a)), same_number(d, 5 * a)), d);
    far = kl_sub(kl_mul(kl_add(far, same_number(d, 8 * a)), d), same_number(d, 4 * a));
    return k == 0 || k == 1 ? kl_add(kl_mul(kl_mul(near, d), d), one) : far;
}

/* The sum over the taps of axes from `axis` on; weight: of those before, or kl_none. */
static kl_tensor sample_taps(const struct sampler *s, int axis, const kl_tensor *floors, const kl_tensor *ratio,
                             kl_tensor *at, kl_tensor weight)
{
    if (axis == s->n) {
        kl_tensor v = sample_elements(s, at);
        return kl_mul(v, kl_cast(kl_unsqueeze(weight, -1), kl_dtype_of(v)));
    }
    kl_tensor sum = kl_none;
    for (int k = s->cubic ? -1 : 0; k <= (s->cubic ? 2 : 1); k++) {
        kl_tensor w = sample_weight(s, ratio[axis], k);
        at[axis] = kl_add(floors[axis], same_number(floors[axis], k));
        kl_tensor part = sample_taps(s, axis + 1, floors, ratio, at, weight.id ? kl_mul(weight, w) : w);
        sum = sum.id ? kl_add(sum, part) : part;
    }
    return sum;
}

/* a [N, C, L...] as rows. */
static kl_tensor channels_last_rows(kl_tensor a, const struct shape *s)
{
    int order[KL_MAX_RANK] = {0};
    for (uint32_t i = 1; i < s->rank; i++)
        order[i] = i + 1 < s->rank ? (int)i + 1 : 1;
    int64_t C = s->dim[1], rows = 1;
    for (uint32_t i = 0; i < s->rank; i++)
        rows = i == 1 ? rows : kl_length_mul(rows, s->dim[i]);
    return kl_reshape(kl_permute(a, order), 2, (int64_t[]){rows, C});
}

kl_tensor kl_grid_sample(kl_tensor a, kl_tensor grid, kl_sampling sampling, kl_sample_border border, bool corners)
{
    static const char op[] = "grid_sample";
    struct thread *t = thread_self();
    struct view v, g;
    char ta[SHAPE_TEXT], tg[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", a, &v) || !describe(t, op, "the grid", grid, &g))
        return op_failed();
    uint32_t rank = v.shape.rank, n = rank - 2;
    if (rank < 3 || n > SAMPLE_AXES || g.shape.rank != rank || g.shape.dim[rank - 1] != n ||
        g.shape.dim[0] != v.shape.dim[0] || (shape_count(&g.shape) && product_of(v.shape.dim + 2, (int)n) == 0))
        return refuse(t, KL_ERR_SHAPE, "%s: needs [N,C,L1..Ln] and a grid [N,O1..On,n], got %s and %s", op,
                      shape_text(&v.shape, ta, sizeof ta), shape_text(&g.shape, tg, sizeof tg));
    if ((unsigned)sampling > KL_SAMPLING_CUBIC || (unsigned)border > KL_SAMPLE_REFLECTION)
        return refuse(t, KL_ERR_ARGUMENT, "%s: there is no such sampling or border", op);
    if (!dtype_is_float(g.dtype) || v.dtype == KL_BOOL || (sampling && !dtype_is_float(v.dtype)))
        return refuse(t, KL_ERR_TYPE, "%s: needs floats, got %s and a grid of %s", op, dtype_name(v.dtype),
                      dtype_name(g.dtype));
    if (!axes_are_numbers(t, op, &v.shape, 2, n) || !(t = checked_begin(op)))
        return op_failed();
    struct sampler s = {channels_last_rows(widen(t, a), &v.shape), kl_none, (int)n, {0}, border,
                        corners, sampling == KL_SAMPLING_CUBIC};
    int64_t each[KL_MAX_RANK] = {v.shape.dim[0], 1, 1, 1};
    s.batch = kl_reshape(kl_arange(v.device, KL_I64, v.shape.dim[0]), (int)rank - 1, each);
    if (dtype_is_half(g.dtype))
        grid = kl_cast(grid, KL_F32);
    kl_tensor x[SAMPLE_AXES], ratio[SAMPLE_AXES], at[SAMPLE_AXES], r;
    for (int i = 0; i < s.n; i++) {
        s.length[i] = v.shape.dim[2 + i];
        x[i] = sample_place(&s, kl_squeeze(kl_narrow(grid, -1, s.n - 1 - i, 1), -1), s.length[i]);
        if (!s.cubic) /* a cubic's taps come in one by one */
            x[i] = sample_border(&s, x[i], s.length[i]);
        kl_tensor whole = sampling == KL_SAMPLING_NEAREST ? kl_round(x[i]) : kl_floor(x[i]);
        ratio[i] = kl_sub(x[i], whole);
        x[i] = whole;
    }
    r = sampling == KL_SAMPLING_NEAREST ? sample_elements(&s, x) : sample_taps(&s, 0, x, ratio, at, kl_none);
    int back[KL_MAX_RANK] = {0, (int)rank - 1};
    for (uint32_t i = 2; i < rank; i++)
        back[i] = (int)i - 1;
    return compose_end(t, kl_permute(r, back));
}

/* ---- boxes ---- */

/* The coordinates of all samples along one axis of each box, [R, n]: held inside, and in *in where they count. */
static kl_tensor roi_places(kl_tensor boxes, int from, int64_t n, int64_t length,
                            const kl_roi_options *o, kl_tensor *in)
{
    double scale = o->scale != 0 ? o->scale : 1, offset = o->aligned ? 0.5 : 0;
    kl_tensor low = kl_mul(kl_narrow(boxes, 1, from, 1), same_number(boxes, scale));
    kl_tensor high = kl_mul(kl_narrow(boxes, 1, from + 2, 1), same_number(boxes, scale));
    low = kl_sub(low, same_number(boxes, offset));
    kl_tensor extent = kl_sub(kl_sub(high, same_number(boxes, offset)), low);
    if (!o->aligned)
        extent = kl_maximum(extent, same_number(boxes, 1));
    kl_tensor i = kl_arange(kl_device_of(boxes), kl_dtype_of(boxes), n);
    i = kl_div(kl_add(i, same_number(i, 0.5)), same_number(i, (double)n));
    kl_tensor x = kl_add(low, kl_mul(extent, i));
    *in = kl_and(kl_ge(x, same_number(x, -1)), kl_le(x, same_number(x, (double)length)));
    return sample_held(x, length);
}

kl_tensor kl_roi_align(kl_tensor a, kl_tensor boxes, kl_tensor image, const kl_roi_options *options)
{
    static const char op[] = "roi_align";
    struct thread *t = thread_self();
    struct view v, b, im;
    char ta[SHAPE_TEXT], tb[SHAPE_TEXT], ti[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", a, &v) || !describe(t, op, "the boxes", boxes, &b) ||
        !describe(t, op, "the images", image, &im))
        return op_failed();
    enum { DEFAULT_SAMPLES = 2 };
    int64_t taps[2], samples = options && options->samples ? options->samples : DEFAULT_SAMPLES;
    if (!options || options->height < 1 || options->width < 1 || samples < 1 ||
        __builtin_mul_overflow(options->height, samples, &taps[0]) ||
        __builtin_mul_overflow(options->width, samples, &taps[1]))
        return refuse(t, KL_ERR_ARGUMENT, "%s: needs a height and a width of at least 1 and samples that are not "
                      "negative, whose products fit 64 bits", op);
    if (v.shape.rank != 4 || b.shape.rank != 2 || b.shape.dim[1] != 4 || im.shape.rank != 1 ||
        im.shape.dim[0] != b.shape.dim[0] || shape_count(&v.shape) == 0)
        return refuse(t, KL_ERR_SHAPE, "%s: needs [N,C,H,W], boxes [R,4] and images [R], got %s, %s and %s", op,
                      shape_text(&v.shape, ta, sizeof ta), shape_text(&b.shape, tb, sizeof tb),
                      shape_text(&im.shape, ti, sizeof ti));
    if (!dtype_is_float(v.dtype) || b.dtype != v.dtype || (dtype_kind(im.dtype) != 'I' && dtype_kind(im.dtype) != 'U'))
        return refuse(t, KL_ERR_TYPE, "%s: needs floats, boxes of the same type and integers, got %s, %s and %s",
                      op, dtype_name(v.dtype), dtype_name(b.dtype), dtype_name(im.dtype));
    if (!axes_are_numbers(t, op, &v.shape, 2, 2) || !(t = checked_begin(op)))
        return op_failed();
    const int64_t s = samples, R = b.shape.dim[0], C = v.shape.dim[1], h = options->height,
                  w = options->width;
    a = widen(t, a);
    boxes = widen(t, boxes);
    struct sampler sampler = {.rows = channels_last_rows(a, &v.shape), .n = 2,
                              .length = {v.shape.dim[2], v.shape.dim[3]}, .border = KL_SAMPLE_BORDER};
    kl_tensor in[2], floors[2], ratio[2], at[2];
    for (int i = 0; i < 2; i++) {
        kl_tensor x = roi_places(boxes, 1 - i, taps[i], sampler.length[i], options, &in[i]);
        x = kl_unsqueeze(x, i ? 1 : 2);
        in[i] = kl_unsqueeze(in[i], i ? 1 : 2);
        floors[i] = kl_floor(x);
        ratio[i] = kl_sub(x, floors[i]);
    }
    sampler.batch = kl_reshape(held_index(image, &im, v.shape.dim[0], 1), 3, (int64_t[]){R, 1, 1});
    kl_tensor r = sample_taps(&sampler, 0, floors, ratio, at, kl_none); /* [R, h s, w s, C] */
    r = kl_where(kl_unsqueeze(kl_and(in[0], in[1]), -1), r, same_number(r, 0));
    r = kl_reshape(r, 6, (int64_t[]){R, h, s, w, s, C});
    r = options->largest ? kl_max(r, 2, (int[]){2, 4}, false) : kl_mean(r, 2, (int[]){2, 4}, false);
    return compose_end(t, kl_permute(r, (int[]){0, 3, 1, 2}));
}
