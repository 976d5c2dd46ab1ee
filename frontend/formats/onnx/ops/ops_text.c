/* TfIdfVectorizer, of integers: counts of n-grams, computed on the host. */
#include "frontend/formats/onnx/onnx.h"
#include <string.h>

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
