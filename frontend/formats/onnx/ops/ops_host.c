/* Operators whose results have shapes that depend on values: computed on the host while recording. */
#include "frontend/formats/onnx/onnx.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- NonMaxSuppression ---- */

struct box { double low[2], high[2], area; };
struct box_candidate { double score; int64_t at; };

static struct box box_at(const struct array *a, int64_t i, bool center)
{
    double v[4];
    struct box b;
    for (int k = 0; k < 4; k++)
        v[k] = array_float(a, 4 * i + k);
    for (int k = 0; k < 2; k++) {
        double p = center ? v[k] - v[k + 2] / 2 : v[k], q = center ? v[k] + v[k + 2] / 2 : v[k + 2];
        b.low[k] = p < q ? p : q;
        b.high[k] = p < q ? q : p;
    }
    b.area = (b.high[0] - b.low[0]) * (b.high[1] - b.low[1]);
    return b;
}

static double box_overlap(const struct box *a, const struct box *b)
{
    double area = 1;
    for (int k = 0; k < 2; k++) {
        double low = a->low[k] > b->low[k] ? a->low[k] : b->low[k];
        double high = a->high[k] < b->high[k] ? a->high[k] : b->high[k];
        area *= high > low ? high - low : 0;
    }
    double all = a->area + b->area - area;
    return all > 0 ? area / all : 0;
}

static int by_score(const void *p, const void *q)
{
    const struct box_candidate *a = p, *b = q;
    return a->score > b->score ? -1 : a->score < b->score ? 1 : a->at < b->at ? -1 : a->at > b->at;
}

/* Reads an optional operand of one number; false: reported. */
static bool host_number(struct node *n, uint32_t i, double without, double *v)
{
    *v = without;
    return !onnx_has(n, i) || onnx_known_float(n, i, v);
}

struct suppression {
    const struct array *boxes, *scores;
    double max, iou, min;
    bool center;
    int64_t *out, n, cap;             /* rows of three */
};

static bool suppress_boxes(struct suppression *s, int64_t batch, int64_t label, struct box_candidate *c,
                           struct box *kept)
{
    int64_t N = s->boxes->dims[1], count = 0, first = s->n;
    for (int64_t i = 0; i < N; i++) {
        double score = array_float(s->scores, (batch * s->scores->dims[1] + label) * N + i);
        if (score > s->min)
            c[count++] = (struct box_candidate){score, i};
    }
    qsort(c, (size_t)count, sizeof *c, by_score);
    for (int64_t i = 0; i < count && (double)(s->n - first) < s->max; i++) {
        struct box b = box_at(s->boxes, batch * N + c[i].at, s->center);
        bool stays = true;
        for (int64_t k = 0; stays && k < s->n - first; k++)
            stays = box_overlap(&b, &kept[k]) <= s->iou;
        if (!stays)
            continue;
        if (s->n == s->cap) {
            int64_t cap = 2 * s->cap + 64, *more = realloc(s->out, (size_t)cap * 3 * sizeof *more);
            if (!more)
                return false;
            s->out = more;
            s->cap = cap;
        }
        kept[s->n - first] = b;
        memcpy(s->out + 3 * s->n++, (int64_t[]){batch, label, c[i].at}, 3 * sizeof *s->out);
    }
    return true;
}

bool onnx_non_max_suppression(struct node *n)
{
    struct suppression s = {.boxes = onnx_known(n, 0), .center = onnx_attr_int(n, "center_point_box", 0)};
    s.scores = s.boxes ? onnx_known(n, 1) : NULL;
    if (!s.scores || !host_number(n, 2, 0, &s.max) || !host_number(n, 3, 0, &s.iou) ||
        !host_number(n, 4, -__builtin_inf(), &s.min))
        return false;
    const struct array *b = s.boxes, *c = s.scores;
    if (b->rank != 3 || c->rank != 3 || b->dims[2] != 4 || b->dims[0] != c->dims[0] || b->dims[1] != c->dims[2])
        return onnx_fails(n, KL_ERR_SHAPE, "boxes are [B, N, 4], scores [B, C, N]");
    struct box_candidate *sorted = malloc(((size_t)b->dims[1] + 1) * sizeof *sorted);
    struct box *kept = malloc(((size_t)b->dims[1] + 1) * sizeof *kept);
    bool ok = sorted && kept;
    for (int64_t batch = 0; ok && batch < c->dims[0]; batch++)
        for (int64_t label = 0; ok && label < c->dims[1]; label++)
            ok = suppress_boxes(&s, batch, label, sorted, kept);
    struct array *r = ok ? array_new(KL_I64, 2, (int64_t[]){s.n, 3}) : NULL;
    if (r && s.n)
        memcpy(r->data, s.out, (size_t)s.n * 3 * sizeof *s.out);
    free(sorted);
    free(kept);
    free(s.out);
    return onnx_give_known(n, 0, r);
}

/* ---- Unique ---- */

/* slice i: inner elements of each outer row */
struct unique_slices { const struct array *a; int64_t outer, length, inner; };
struct unique_slice { const struct unique_slices *all; int64_t at; };

/* -1, 0 or 1: elements in ascending order, NaNs last and equal to one another, as NumPy's unique has them. */
static int compare_elements(const struct array *a, int64_t p, int64_t q)
{
    int64_t k = array_int(a, p), l = array_int(a, q);
    if (a->dtype == KL_U64)
        return (uint64_t)k < (uint64_t)l ? -1 : (uint64_t)k > (uint64_t)l;
    if (a->dtype == KL_I64)
        return k < l ? -1 : k > l;
    double x = array_float(a, p), y = array_float(a, q);
    if (x != x || y != y)
        return (x != x) - (y != y);
    return x < y ? -1 : x > y;
}

static int compare_slices(const struct unique_slice *x, const struct unique_slice *y)
{
    const struct unique_slices *s = x->all;
    for (int64_t o = 0; o < s->outer; o++)
        for (int64_t i = 0; i < s->inner; i++) {
            int64_t p = (o * s->length + x->at) * s->inner + i, q = (o * s->length + y->at) * s->inner + i;
            int c = compare_elements(s->a, p, q);
            if (c)
                return c;
        }
    return 0;
}
static int by_elements(const void *p, const void *q)
{
    const struct unique_slice *x = p, *y = q;
    int c = compare_slices(x, y);
    return c ? c : x->at < y->at ? -1 : x->at > y->at;
}
static int by_first(const void *p, const void *q)
{
    const int64_t *x = p, *y = q;
    return x[0] < y[0] ? -1 : x[0] > y[0];
}

/* Groups equal slices.  group: first position, count and sorted number of each group; inverse: the sorted number of
 * each slice.  Returns the number of groups. */
static int64_t find_groups(struct unique_slice *s, int64_t n, int64_t (*group)[3], int64_t *inverse)
{
    int64_t groups = 0;
    qsort(s, (size_t)n, sizeof *s, by_elements);
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || compare_slices(&s[i - 1], &s[i])) {
            group[groups][0] = s[i].at;
            group[groups][1] = 0;
            group[groups][2] = groups;
            groups++;
        }
        group[groups - 1][1]++;
        inverse[s[i].at] = groups - 1;
    }
    return groups;
}

static bool give_groups(struct node *n, int64_t (*group)[3], int64_t groups, const int64_t *inverse, int64_t length,
                        int axis, bool flat)
{
    struct array *first = array_new(KL_I64, 1, &groups), *count = array_new(KL_I64, 1, &groups);
    struct array *back = array_new(KL_I64, 1, &length);
    int64_t *number = malloc((size_t)(groups + 1) * sizeof *number);
    bool ok = (first && count && back && number) || onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    for (int64_t i = 0; ok && i < groups; i++) {
        ((int64_t *)first->data)[i] = group[i][0];
        ((int64_t *)count->data)[i] = group[i][1];
        number[group[i][2]] = i;
    }
    for (int64_t i = 0; ok && i < length; i++)
        ((int64_t *)back->data)[i] = number[inverse[i]];
    free(number);
    if (ok) {
        kl_tensor a = onnx_in(n, 0);
        if (flat)
            a = kl_reshape(a, 1, (int64_t[]){-1});
        ok = onnx_give(n, 0, kl_take(a, axis, onnx_tensor(n, array_ref(first))));
    }
    return onnx_give_known(n, 1, first) && onnx_give_known(n, 2, back) && onnx_give_known(n, 3, count) && ok;
}

bool onnx_unique(struct node *n)
{
    const struct array *a = onnx_known(n, 0);
    int axis = 0;
    bool flat = !onnx_attr(n, "axis");
    if (!a || (!flat && !onnx_axis(n, onnx_attr_int(n, "axis", 0), a->rank, &axis)))
        return false;
    struct unique_slices all = {.a = a, .outer = 1, .length = flat ? a->count : a->dims[axis], .inner = 1};
    for (int i = 0; !flat && i < a->rank; i++)
        *(i < axis ? &all.outer : i > axis ? &all.inner : &(int64_t){1}) *= i == axis ? 1 : a->dims[i];
    struct unique_slice *s = malloc((size_t)(all.length + 1) * sizeof *s);
    int64_t (*group)[3] = malloc((size_t)(all.length + 1) * sizeof *group);
    int64_t *inverse = malloc((size_t)(all.length + 1) * sizeof *inverse);
    bool ok = (s && group && inverse) || onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    for (int64_t i = 0; ok && i < all.length; i++)
        s[i] = (struct unique_slice){&all, i};
    int64_t groups = ok ? find_groups(s, all.length, group, inverse) : 0;
    if (ok && !onnx_attr_int(n, "sorted", 1))
        qsort(group, (size_t)groups, sizeof *group, by_first);
    ok = ok && give_groups(n, group, groups, inverse, all.length, axis, flat);
    free(s);
    free(group);
    free(inverse);
    return ok;
}
