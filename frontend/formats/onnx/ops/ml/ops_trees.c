/* ai.onnx.ml: ensembles of decision trees, for all rows and trees at once.
 *
 * The nodes of all trees are rows of tables: the feature, the number it is compared with, and the rows that follow.  A
 * leaf is followed by itself, so as many rounds as the deepest tree has levels bring each row of the operand to a leaf
 * of each tree; a leaf has a weight for each target. */
#include "frontend/formats/onnx/ops/ml/labels.h"
#include "frontend/formats/onnx/ops/ml/trees.h"
#include <stdlib.h>
#include <string.h>

static const char *const mode_names[MODES] = {"BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ",
                                              "BRANCH_NEQ", NULL, "LEAF"};

/* ---- attributes ---- */

const int64_t *tree_ints(struct node *n, const char *name, size_t count)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    if (a && a->n_ints == count)
        return a->ints;
    onnx_fails(n, KL_ERR_ARGUMENT, "%s has %zu numbers, not %zu", name, a ? a->n_ints : 0, count);
    return NULL;
}

static const float *tree_floats(struct node *n, const char *name, size_t count)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    if (a && a->n_floats == count)
        return a->floats;
    onnx_fails(n, KL_ERR_ARGUMENT, "%s has %zu numbers, not %zu", name, a ? a->n_floats : 0, count);
    return NULL;
}

static int tree_key_order(const void *a, const void *b)
{
    const struct tree_key *x = a, *y = b;
    return x->tree != y->tree ? (x->tree > y->tree) - (x->tree < y->tree) : (x->id > y->id) - (x->id < y->id);
}

/* Sorts the nodes by their numbers in the file, which have to differ. */
static bool tree_sort(struct trees *t, const int64_t *tree, const int64_t *id)
{
    t->key = calloc(t->nodes, sizeof *t->key);
    if (!t->key)
        return onnx_fails(t->n, KL_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < t->nodes; i++)
        t->key[i] = (struct tree_key){tree[i], id[i], i};
    qsort(t->key, t->nodes, sizeof *t->key, tree_key_order);
    for (size_t i = 1; i < t->nodes; i++)
        if (!tree_key_order(&t->key[i - 1], &t->key[i]))
            return onnx_fails(t->n, KL_ERR_ARGUMENT, "node %lld of tree %lld is there twice",
                              (long long)t->key[i].id, (long long)t->key[i].tree);
    return true;
}

/* The row of a node; the number of nodes: there is none. */
static size_t tree_row(const struct trees *t, int64_t tree, int64_t id)
{
    struct tree_key key = {tree, id, 0}, *at = bsearch(&key, t->key, t->nodes, sizeof key, tree_key_order);
    return at ? at->row : t->nodes;
}

struct array *tree_array(struct trees *t, kl_dtype d, size_t rows, size_t columns)
{
    struct array *a = array_new(d, columns ? 2 : 1, (int64_t[]){(int64_t)rows, (int64_t)columns});
    if (a)
        memset(a->data, 0, (size_t)a->count * kl_dtype_size(d));
    else
        onnx_fails(t->n, KL_ERR_MEMORY, "out of memory");
    return a;
}

static bool tree_mode_of(struct trees *t, size_t i, const ProtobufCBinaryData *name)
{
    unsigned m = 0;
    while (m < MODES && (!mode_names[m] || strlen(mode_names[m]) != name->len ||
                         memcmp(mode_names[m], name->data, name->len)))
        m++;
    if (m == MODES)
        return onnx_fails(t->n, KL_ERR_ARGUMENT, "node %zu has a mode that is not known", i);
    ((uint8_t *)t->mode->data)[i] = (uint8_t)m;
    t->has_mode[m] = true;
    return true;
}

bool tree_tables(struct trees *t)
{
    return (t->feature = tree_array(t, KL_I64, t->nodes, 0)) && (t->value = tree_array(t, t->dtype, t->nodes, 0)) &&
           (t->yes = tree_array(t, KL_I64, t->nodes, 0)) && (t->no = tree_array(t, KL_I64, t->nodes, 0)) &&
           (t->mode = tree_array(t, KL_U8, t->nodes, 0)) && (t->missing = tree_array(t, KL_BOOL, t->nodes, 0));
}

/* Fills the tables of nodes. */
static bool tree_nodes(struct trees *t)
{
    struct node *n = t->n;
    const Onnx__AttributeProto *modes = onnx_attr(n, "nodes_modes"), *missing = onnx_attr(n, "nodes_missing_value_"
                                                                                            "tracks_true");
    t->nodes = modes ? modes->n_strings : 0;
    if (!t->nodes || t->nodes > TREE_NODES)
        return onnx_fails(n, KL_ERR_ARGUMENT, "%zu nodes; 1 to %d are supported", t->nodes, TREE_NODES);
    const int64_t *feature = tree_ints(n, "nodes_featureids", t->nodes), *yes, *no, *tree, *id;
    const float *value = feature ? tree_floats(n, "nodes_values", t->nodes) : NULL;
    if (!value || !(tree = tree_ints(n, "nodes_treeids", t->nodes)) ||
        !(id = tree_ints(n, "nodes_nodeids", t->nodes)) || !(yes = tree_ints(n, "nodes_truenodeids", t->nodes)) ||
        !(no = tree_ints(n, "nodes_falsenodeids", t->nodes)) || !tree_sort(t, tree, id))
        return false;
    if (!tree_tables(t))
        return false;
    for (size_t i = 0; i < t->nodes; i++) {
        if (!tree_mode_of(t, i, &modes->strings[i]))
            return false;
        bool leaf = ((uint8_t *)t->mode->data)[i] == MODE_LEAF;
        size_t to[2] = {leaf ? i : tree_row(t, tree[i], yes[i]), leaf ? i : tree_row(t, tree[i], no[i])};
        if (to[0] == t->nodes || to[1] == t->nodes || (!leaf && (to[0] == i || to[1] == i)))
            return onnx_fails(n, KL_ERR_ARGUMENT, "node %lld of tree %lld is followed by none that is there",
                              (long long)id[i], (long long)tree[i]);
        ((int64_t *)t->feature->data)[i] = leaf ? 0 : feature[i];
        ((float *)t->value->data)[i] = value[i];
        ((int64_t *)t->yes->data)[i] = (int64_t)to[0];
        ((int64_t *)t->no->data)[i] = (int64_t)to[1];
        bool tracks = missing && missing->n_ints == t->nodes && missing->ints[i] && !leaf;
        ((uint8_t *)t->missing->data)[i] = tracks;
        t->has_missing |= tracks;
    }
    return true;
}

bool tree_levels(struct trees *t)
{
    int64_t *level = calloc(t->nodes + 1, sizeof *level);
    bool ok = level || onnx_fails(t->n, KL_ERR_MEMORY, "out of memory"), moved = true;
    while (ok && moved) {
        moved = false;
        for (size_t i = 0; ok && i < t->nodes; i++)
            for (int side = 0; side < 2; side++) {
                size_t to = (size_t)((int64_t *)(side ? t->no : t->yes)->data)[i];
                bool deeper = to != i && level[to] <= level[i];
                level[to] = deeper ? level[i] + 1 : level[to];
                moved |= deeper;
                t->levels = level[to] > t->levels ? (int)level[to] : t->levels;
            }
        if (t->levels > TREE_LEVELS)
            ok = onnx_fails(t->n, KL_ERR_ARGUMENT, "a tree has more than %d levels, or a cycle", TREE_LEVELS);
    }
    free(level);
    return ok;
}

/* Finds the first node of each tree, and the levels. */
static bool tree_roots(struct trees *t)
{
    int64_t *root = calloc(t->nodes + 1, sizeof *root);
    bool ok = root || onnx_fails(t->n, KL_ERR_MEMORY, "out of memory");
    for (size_t i = 0; ok && i < t->nodes; i++) {
        if (!i || t->key[i].tree != t->key[i - 1].tree)
            root[t->roots++] = INT64_MAX;
        int64_t *first = &root[t->roots - 1], row = (int64_t)t->key[i].row;
        *first = row < *first ? row : *first;
    }
    ok = ok && tree_levels(t) && (t->root = tree_array(t, KL_I64, 1, t->roots));
    if (ok)
        memcpy(t->root->data, root, t->roots * sizeof *root);
    free(root);
    return ok;
}

/* Fills the table of weights, of the attributes "class_.." or "target_..". */
static bool tree_weights(struct trees *t, const char *prefix)
{
    char name[4][40];
    static const char *const suffix[4] = {"treeids", "nodeids", "ids", "weights"};
    for (int i = 0; i < 4; i++) {
        strcpy(name[i], prefix);
        strcat(name[i], suffix[i]);
    }
    const Onnx__AttributeProto *a = onnx_attr(t->n, name[3]);
    size_t count = a ? a->n_floats : 0;
    const int64_t *tree = tree_ints(t->n, name[0], count), *id = tree ? tree_ints(t->n, name[1], count) : NULL;
    const int64_t *target = id ? tree_ints(t->n, name[2], count) : NULL;
    if (!target || t->targets < 1 || t->targets > TREE_TARGETS || t->nodes > (size_t)TREE_NODES * 8 / t->targets)
        return target ? onnx_fails(t->n, KL_ERR_ARGUMENT, "%zu targets of %zu nodes", t->targets, t->nodes) : false;
    if (!(t->weight = tree_array(t, KL_F32, t->nodes, t->targets)))
        return false;
    t->one = t->positive = count > 0;
    t->target = count ? target[0] : 0;
    for (size_t i = 0; i < count; i++) {
        size_t row = tree_row(t, tree[i], id[i]);
        if (row == t->nodes || target[i] < 0 || (size_t)target[i] >= t->targets)
            return onnx_fails(t->n, KL_ERR_ARGUMENT, "weight %zu is of target %lld of node %lld of tree %lld", i,
                              (long long)target[i], (long long)id[i], (long long)tree[i]);
        ((float *)t->weight->data)[row * t->targets + (size_t)target[i]] += a->floats[i];
        t->one &= target[i] == t->target;
        t->positive &= a->floats[i] >= 0;
    }
    return true;
}

/* ---- the walk ---- */

static kl_tensor tree_take(struct trees *t, struct array *table, kl_tensor at)
{
    return kl_take(onnx_tensor(t->n, array_ref(table)), 0, at);
}

static kl_tensor tree_compare(enum tree_mode m, kl_tensor x, kl_tensor v)
{
    switch (m) {
    case MODE_LT: return kl_lt(x, v);
    case MODE_GTE: return kl_ge(x, v);
    case MODE_GT: return kl_gt(x, v);
    case MODE_EQ: return kl_eq(x, v);
    case MODE_NEQ: return kl_ne(x, v);
    default: return kl_le(x, v);
    }
}

/* Is the feature a member of the node's set? */
static kl_tensor tree_is_member(struct trees *t, kl_tensor seen, kl_tensor at)
{
    return kl_any(kl_eq(kl_unsqueeze(seen, -1), tree_take(t, t->member, at)), 1, (int[]){-1}, false);
}

/* One level down: at, rows of the tables, [N, trees]. */
static kl_tensor tree_step(struct trees *t, kl_tensor x, kl_tensor at)
{
    kl_tensor v = tree_take(t, t->value, at), goes = kl_none;
    kl_tensor seen = kl_take_along_axis(x, 1, tree_take(t, t->feature, at));
    for (unsigned m = 0; m < MODE_LEAF; m++) {
        if (!t->has_mode[m])
            continue;
        kl_tensor c = m == MODE_MEMBER ? tree_is_member(t, seen, at) : tree_compare((enum tree_mode)m, seen, v);
        goes = !goes.id ? c : kl_where(kl_eq(tree_take(t, t->mode, at), onnx_number(t->n, KL_U8, m)), c, goes);
    }
    if (t->has_missing)
        goes = kl_or(goes, kl_and(kl_is_nan(seen), tree_take(t, t->missing, at)));
    return kl_where(goes, tree_take(t, t->yes, at), tree_take(t, t->no, at));
}

kl_tensor tree_leaves(struct trees *t)
{
    struct type x;
    if (!onnx_type(t->n, 0, &x))
        return kl_none;
    for (size_t i = 0; i < t->nodes && x.rank == 2; i++)
        if (((int64_t *)t->feature->data)[i] < 0 || ((int64_t *)t->feature->data)[i] >= x.dims[1])
            return onnx_fails(t->n, KL_ERR_ARGUMENT, "a node compares feature %lld of %lld",
                              (long long)((int64_t *)t->feature->data)[i], (long long)x.dims[1]), kl_none;
    if (x.rank != 2)
        return onnx_fails(t->n, KL_ERR_SHAPE, "an operand of %d axes, not rows of features", x.rank), kl_none;
    kl_tensor row = kl_cast(onnx_in(t->n, 0), t->dtype);
    kl_tensor at = kl_expand(onnx_tensor(t->n, array_ref(t->root)), 2, (int64_t[]){x.dims[0], (int64_t)t->roots});
    for (int i = 0; i < t->levels; i++)
        at = tree_step(t, row, at);
    return tree_take(t, t->weight, at);
}

void trees_free(struct trees *t)
{
    struct array *all[] = {t->feature, t->value, t->yes, t->no, t->mode, t->missing, t->weight, t->root, t->member};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        array_unref(all[i]);
    free(t->key);
}

/* The sums with the numbers of base_values, [N, targets]; kl_none: reported. */
static kl_tensor trees_compute(struct trees *t, const char *prefix)
{
    const Onnx__AttributeProto *base = onnx_attr(t->n, "base_values");
    bool average = onnx_attr_is(t->n, "aggregate_function", "AVERAGE", false);
    if (!average && !onnx_attr_is(t->n, "aggregate_function", "SUM", true))
        return onnx_fails(t->n, KL_ERR_ARGUMENT, "its aggregate_function is neither SUM nor AVERAGE"), kl_none;
    if (!tree_nodes(t) || !tree_roots(t) || !tree_weights(t, prefix))
        return kl_none;
    kl_tensor sums = tree_leaves(t);
    sums = sums.id ? kl_sum(sums, 1, (int[]){1}, false) : sums;
    if (sums.id && average)
        sums = kl_div(sums, onnx_number(t->n, KL_F32, (double)t->roots));
    if (!sums.id || !base || !base->n_floats)
        return sums;
    if (base->n_floats != 1 && base->n_floats != t->targets)
        return onnx_fails(t->n, KL_ERR_ARGUMENT, "%zu base_values for %zu targets", base->n_floats,
                          t->targets), kl_none;
    struct array *a = tree_array(t, KL_F32, 1, base->n_floats);
    if (a)
        memcpy(a->data, base->floats, base->n_floats * sizeof *base->floats);
    return a ? kl_add(sums, onnx_tensor(t->n, a)) : kl_none;
}

bool onnx_tree_regressor(struct node *n)
{
    int64_t targets = onnx_attr_int(n, "n_targets", 1);
    struct trees t = {.n = n, .dtype = KL_F32, .targets = targets < 0 ? 0 : (size_t)targets};
    kl_tensor y = trees_compute(&t, "target_");
    trees_free(&t);
    y = y.id ? ml_transform(n, y) : y;
    return y.id && onnx_give(n, 0, y);
}

/* The scores of two classes of which only one has weights, with the sum s, as onnxruntime has them: 0 and s if it is
 * the second; else 1 - s and s if no weight is negative, or -s and s, or both through the logistic function.
 * *second: [N], bool, is it that one? */
static kl_tensor tree_two_classes(struct trees *t, kl_tensor sums, kl_tensor *second)
{
    struct node *n = t->n;
    kl_tensor s = kl_sum(sums, 1, (int[]){1}, true), other;
    *second = kl_squeeze(kl_gt(s, onnx_number(n, KL_F32, t->positive ? 0.5 : 0)), 1);
    if (t->target == 1)
        return ml_transform(n, sums);
    if (t->positive) {
        other = kl_sub(onnx_number(n, KL_F32, 1), s);
    } else {
        bool logistic = onnx_attr_is(n, "post_transform", "LOGISTIC", false);
        other = logistic ? kl_sigmoid(kl_neg(s)) : kl_neg(s);
        s = logistic ? kl_sigmoid(s) : s;
    }
    return kl_concat(2, (kl_tensor[]){other, s}, 1);
}

bool onnx_tree_classifier(struct node *n)
{
    const Onnx__AttributeProto *base = onnx_attr(n, "base_values");
    struct array *labels = ml_labels(n, "classlabels_int64s");
    if (!labels)
        return false;
    struct trees t = {.n = n, .dtype = KL_F32, .targets = (size_t)labels->count};
    kl_tensor sums = trees_compute(&t, "class_"), at = kl_none, scores = kl_none;
    bool two = sums.id && t.targets == 2 && t.one;
    if (two && base && base->n_floats)
        onnx_fails(n, KL_ERR_ARGUMENT, "base_values of two classes with the weights of one");
    else if (two)
        scores = tree_two_classes(&t, sums, &at);
    else if (sums.id)
        scores = ml_transform(n, sums);
    trees_free(&t);
    if (!scores.id) {
        array_unref(labels);
        return false;
    }
    return ml_give_labels(n, labels, two ? kl_cast(at, KL_I64) : kl_argmax(sums, 1)) && onnx_give(n, 1, scores);
}
