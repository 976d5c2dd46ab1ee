/* Operators that are computed on the host while recording: those whose results have shapes that depend on values, and
 * counts of n-grams. */
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

/* ---- TfIdfVectorizer, of integers: counts of n-grams ---- */

struct grams {
    const Onnx__AttributeProto *start, *index, *pool, *weight; /* weight NULL: all are 1 */
    int64_t min, max, skips; /* lengths of n-grams; how many items may lie between two of theirs */
    const char *mode;
};

static bool grams_read(struct node *n, struct grams *g)
{
    const Onnx__AttributeProto *mode = onnx_attr(n, "mode");
    g->start = onnx_attr(n, "ngram_counts");
    g->index = onnx_attr(n, "ngram_indexes");
    g->pool = onnx_attr(n, "pool_int64s");
    g->weight = onnx_attr(n, "weights");
    g->min = onnx_attr_int(n, "min_gram_length", 1);
    g->max = onnx_attr_int(n, "max_gram_length", 1);
    g->skips = onnx_attr_int(n, "max_skip_count", 0);
    g->mode = onnx_attr_is(n, "mode", "TF", false) ? "TF" : onnx_attr_is(n, "mode", "IDF", false) ? "IDF"
              : onnx_attr_is(n, "mode", "TFIDF", false) ? "TFIDF" : NULL;
    if (!mode || !g->mode || !g->start || !g->index)
        return onnx_fails(n, KL_ERR_ARGUMENT, "it needs mode (TF, IDF or TFIDF), ngram_counts and ngram_indexes");
    if (!g->pool)
        return onnx_fails(n, KL_ERR_TYPE, "strings are not supported: it needs pool_int64s");
    if (g->min < 1 || g->max < g->min || g->skips < 0 || (uint64_t)g->max > g->start->n_ints)
        return onnx_fails(n, KL_ERR_ARGUMENT, "n-grams of %lld to %lld items with %lld skipped, where ngram_counts has "
                          "%zu", (long long)g->min, (long long)g->max, (long long)g->skips, g->start->n_ints);
    size_t all = 0;
    for (size_t i = 0; i < g->start->n_ints; i++) {
        int64_t from = g->start->ints[i], to = i + 1 < g->start->n_ints ? g->start->ints[i + 1]
                                                                          : (int64_t)g->pool->n_ints;
        if (from < 0 || to < from || (uint64_t)to > g->pool->n_ints || (uint64_t)(to - from) % (i + 1))
            return onnx_fails(n, KL_ERR_ARGUMENT, "n-grams of %zu items do not fill %lld to %lld of the pool", i + 1,
                              (long long)from, (long long)to);
        all += (size_t)(to - from) / (i + 1);
    }
    if (g->index->n_ints < all || (g->weight && g->weight->n_floats < all))
        return onnx_fails(n, KL_ERR_ARGUMENT, "its pool has %zu n-grams, ngram_indexes or weights fewer", all);
    return true;
}

/* Adds those of `length` items with `apart` from one to the next to a row of results; first: the number in
 * ngram_indexes of the first n-gram of the length. */
static void grams_count(const struct grams *g, const struct array *x, int64_t from, int64_t items, int64_t length,
                        int64_t apart, size_t first, float *row)
{
    int64_t begin = g->start->ints[length - 1];
    int64_t end = (uint64_t)length < g->start->n_ints ? g->start->ints[length] : (int64_t)g->pool->n_ints;
    for (int64_t i = 0; i + (length - 1) * apart < items; i++)
        for (int64_t p = begin; p < end; p += length) {
            int64_t same = 0;
            while (same < length && array_int(x, from + i + same * apart) == g->pool->ints[p + same])
                same++;
            size_t gram = first + (size_t)((p - begin) / length);
            float weight = g->weight && strcmp(g->mode, "TF") ? g->weight->floats[gram] : 1;
            float *to = &row[g->index->ints[gram]];
            if (same == length)
                *to = !strcmp(g->mode, "IDF") ? weight : *to + weight;
        }
}

bool onnx_tf_idf(struct node *n)
{
    struct grams g;
    const struct array *x = onnx_known(n, 0);
    int64_t columns = 0;
    if (!x || !grams_read(n, &g))
        return false;
    for (size_t i = 0; i < g.index->n_ints; i++) {
        if (g.index->ints[i] < 0 || g.index->ints[i] > INT32_MAX)
            return onnx_fails(n, KL_ERR_ARGUMENT, "ngram_indexes has %lld", (long long)g.index->ints[i]);
        columns = columns > g.index->ints[i] ? columns : g.index->ints[i] + 1;
    }
    if (x->rank < 1 || x->rank > 2)
        return onnx_fails(n, KL_ERR_SHAPE, "its operand has %d axes, not 1 or 2", x->rank);
    int64_t rows = x->rank == 2 ? x->dims[0] : 1, items = x->dims[x->rank - 1];
    if (sat_mul(rows, columns) > 1 << 28)
        return onnx_fails(n, KL_ERR_SHAPE, "a result of %lld rows of %lld numbers", (long long)rows,
                          (long long)columns);
    struct array *y = array_new(KL_F32, x->rank, x->rank == 2 ? (int64_t[]){rows, columns} : (int64_t[]){columns, 1});
    if (!y)
        return onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    memset(y->data, 0, (size_t)y->count * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        size_t first = 0;
        for (int64_t length = 1; length <= g.max; length++) {
            int64_t end = (uint64_t)length < g.start->n_ints ? g.start->ints[length] : (int64_t)g.pool->n_ints;
            /* n-grams of one item have no skips; n-grams longer than a row are left out */
            for (int64_t skip = 0; length >= g.min && skip <= (length > 1 ? g.skips : 0) && skip < items; skip++)
                grams_count(&g, x, r * items, items, length, skip + 1, first, (float *)y->data + r * columns);
            first += (size_t)((end - g.start->ints[length - 1]) / length);
        }
    }
    return onnx_give_known(n, 0, y);
}
