/* ai.onnx.ml 5: TreeEnsemble, whose leaves have numbers of their own.  The tables of trees.h have the nodes, then the
 * leaves. */
#include "frontend/formats/onnx/ops/ml/trees.h"
#include <math.h>
#include <string.h>

enum { AGGREGATE_AVERAGE, AGGREGATE_SUM, AGGREGATE_MIN, AGGREGATE_MAX };

/* A tensor of an attribute, of the dtype and count elements (0: of any); NULL: reported. */
static struct array *ensemble_tensor(struct node *n, const char *name, kl_dtype dtype, int64_t count)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    struct file_error why = {0};
    struct array *x = a && a->t ? array_read(a->t, n->run->m->path, false, NULL, &why) : NULL;
    if (x && x->dtype == dtype && (!count || x->count == count))
        return x;
    onnx_fails(n, KL_ERR_ARGUMENT, "%s is no tensor of %lld numbers of %s", name, (long long)count,
               kl_dtype_name(dtype));
    array_unref(x);
    return NULL;
}

static void ensemble_put(struct array *a, size_t i, double v)
{
    if (a->dtype == KL_F64)
        ((double *)a->data)[i] = v;
    else
        ((float *)a->data)[i] = (float)v;
}

/* Where a node's side leads: a row of the tables; t->nodes: nowhere. */
static size_t ensemble_row(const struct trees *t, size_t inner, int64_t id, int64_t leaf)
{
    size_t count = leaf ? t->nodes - inner : inner;
    return id >= 0 && (uint64_t)id < count ? (size_t)id + (leaf ? inner : 0) : t->nodes;
}

/* Fills the tables of `inner` nodes and the leaves behind them. */
static bool ensemble_nodes(struct trees *t, size_t inner, const struct array *mode, const struct array *split)
{
    struct node *n = t->n;
    const Onnx__AttributeProto *missing = onnx_attr(n, "nodes_missing_value_tracks_true");
    const int64_t *feature = tree_ints(n, "nodes_featureids", inner), *id[2], *leaf[2];
    if (!feature || !(id[0] = tree_ints(n, "nodes_truenodeids", inner)) ||
        !(leaf[0] = tree_ints(n, "nodes_trueleafs", inner)) ||
        !(id[1] = tree_ints(n, "nodes_falsenodeids", inner)) ||
        !(leaf[1] = tree_ints(n, "nodes_falseleafs", inner)) || !tree_tables(t))
        return false;
    for (size_t i = 0; i < t->nodes; i++) {
        bool is_leaf = i >= inner;
        int64_t m = is_leaf ? MODE_LEAF : array_int(mode, (int64_t)i);
        if (!is_leaf && (m < 0 || m > MODE_MEMBER))
            return onnx_fails(n, KL_ERR_ARGUMENT, "node %zu has mode %lld, which is not known", i, (long long)m);
        for (int side = 0; side < 2; side++) {
            size_t to = is_leaf ? i : ensemble_row(t, inner, id[side][i], leaf[side][i]);
            if (to == t->nodes || (!is_leaf && to == i))
                return onnx_fails(n, KL_ERR_ARGUMENT, "node %zu is followed by none that is there", i);
            ((int64_t *)(side ? t->no : t->yes)->data)[i] = (int64_t)to;
        }
        ((uint8_t *)t->mode->data)[i] = (uint8_t)m;
        t->has_mode[m] = true;
        bool tracks = !is_leaf && missing && missing->n_ints == inner && missing->ints[i];
        ((uint8_t *)t->missing->data)[i] = tracks;
        t->has_missing |= tracks;
        if (!is_leaf)
            ((int64_t *)t->feature->data)[i] = feature[i], ensemble_put(t->value, i, array_float(split, (int64_t)i));
    }
    return true;
}

/* Fills the table of sets: those of attribute membership_values, each ended by a NaN, in the order of their nodes. */
static bool ensemble_sets(struct trees *t, size_t inner)
{
    struct array *all = ensemble_tensor(t->n, "membership_values", t->dtype, 0);
    int64_t most = 1, run = 0, at = 0;
    for (int64_t i = 0; all && i < all->count; i++) {
        run = isnan(array_float(all, i)) ? 0 : run + 1;
        most = run > most ? run : most;
    }
    bool ok = all && (most <= TREE_NODES / (int64_t)t->nodes ||
                      onnx_fails(t->n, KL_ERR_ARGUMENT, "a set of %lld members", (long long)most)) &&
              (t->member = tree_array(t, t->dtype, t->nodes, (size_t)most));
    for (size_t i = 0; ok && i < t->nodes; i++) {
        bool has = i < inner && ((const uint8_t *)t->mode->data)[i] == MODE_MEMBER, more = has;
        if (has && at >= all->count)
            ok = onnx_fails(t->n, KL_ERR_ARGUMENT, "membership_values has no set for node %zu", i);
        for (int64_t k = 0; ok && k < most; k++) {
            double v = more && at < all->count ? array_float(all, at++) : NAN;
            more = more && !isnan(v);
            ensemble_put(t->member, i * (size_t)most + (size_t)k, v);
        }
        at += more; /* the NaN behind a set of `most` members */
    }
    array_unref(all);
    return ok;
}

/* Fills the table of weights, and that of roots. */
static bool ensemble_leaves(struct trees *t, size_t inner, const struct array *weight)
{
    size_t leaves = t->nodes - inner;
    const int64_t *target = tree_ints(t->n, "leaf_targetids", leaves);
    const Onnx__AttributeProto *roots = onnx_attr(t->n, "tree_roots");
    t->roots = roots ? roots->n_ints : 0;
    if (!target || !(t->weight = tree_array(t, t->dtype, t->nodes, t->targets)) ||
        !(t->root = tree_array(t, KL_I64, 1, t->roots ? t->roots : 1)))
        return false;
    for (size_t i = 0; i < leaves; i++) {
        if (target[i] < 0 || (size_t)target[i] >= t->targets)
            return onnx_fails(t->n, KL_ERR_ARGUMENT, "leaf %zu is of target %lld of %zu", i, (long long)target[i],
                              t->targets);
        ensemble_put(t->weight, (inner + i) * t->targets + (size_t)target[i], array_float(weight, (int64_t)i));
    }
    for (size_t i = 0; i < t->roots; i++) {
        if (roots->ints[i] < 0 || (uint64_t)roots->ints[i] >= inner)
            return onnx_fails(t->n, KL_ERR_ARGUMENT, "tree %zu begins at no node", i);
        ((int64_t *)t->root->data)[i] = roots->ints[i];
    }
    return t->roots || onnx_fails(t->n, KL_ERR_ARGUMENT, "it has no tree_roots");
}

/* The weights of all trees as one number a target; kl_none: reported. */
static kl_tensor ensemble_aggregate(struct trees *t, kl_tensor leaves)
{
    int64_t how = onnx_attr_int(t->n, "aggregate_function", AGGREGATE_SUM);
    int trees[] = {1};
    if (how == AGGREGATE_SUM || how == AGGREGATE_AVERAGE) {
        kl_tensor sum = kl_sum(leaves, 1, trees, false);
        return how == AGGREGATE_SUM ? sum : kl_div(sum, onnx_number(t->n, t->dtype, (double)t->roots));
    }
    if ((how != AGGREGATE_MIN && how != AGGREGATE_MAX) || t->targets != 1)
        return onnx_fails(t->n, KL_ERR_ARGUMENT, "aggregate_function %lld of %zu targets", (long long)how,
                          t->targets), kl_none;
    return how == AGGREGATE_MIN ? kl_min(leaves, 1, trees, false) : kl_max(leaves, 1, trees, false);
}

/* By onnxruntime's numbers: ONNX's text has 1 for softmax and 2 for the logistic function. */
static kl_tensor ensemble_transform(struct node *n, kl_tensor y)
{
    enum { TRANSFORM_NONE, TRANSFORM_LOGISTIC, TRANSFORM_SOFTMAX };
    switch (onnx_attr_int(n, "post_transform", TRANSFORM_NONE)) {
    case TRANSFORM_NONE: return y;
    case TRANSFORM_SOFTMAX: return kl_softmax(y, -1);
    case TRANSFORM_LOGISTIC: return kl_sigmoid(y);
    default: return onnx_fails(n, KL_ERR_ARGUMENT, "its post_transform is none of 0 to 2"), kl_none;
    }
}

static bool ensemble_read(struct trees *t)
{
    struct array *weight = ensemble_tensor(t->n, "leaf_weights", t->dtype, 0);
    struct array *mode = weight ? ensemble_tensor(t->n, "nodes_modes", KL_U8, 0) : NULL;
    struct array *split = mode ? ensemble_tensor(t->n, "nodes_splits", t->dtype, mode->count) : NULL;
    bool ok = split != NULL;
    if (ok && (mode->count < 1 || weight->count < 1 || mode->count > TREE_NODES / 2 || weight->count > TREE_NODES / 2))
        ok = onnx_fails(t->n, KL_ERR_ARGUMENT, "%lld nodes and %lld leaves; 1 to %d are supported",
                        (long long)mode->count, (long long)weight->count, TREE_NODES / 2);
    if (ok) {
        size_t inner = (size_t)mode->count;
        t->nodes = inner + (size_t)weight->count;
        ok = (t->targets >= 1 && t->targets <= TREE_TARGETS && t->nodes <= (size_t)TREE_NODES * 8 / t->targets) ||
             onnx_fails(t->n, KL_ERR_ARGUMENT, "%zu targets of %zu nodes", t->targets, t->nodes);
        ok = ok && ensemble_nodes(t, inner, mode, split) && (!t->has_mode[MODE_MEMBER] || ensemble_sets(t, inner)) &&
             ensemble_leaves(t, inner, weight) && tree_levels(t);
    }
    array_unref(weight);
    array_unref(mode);
    array_unref(split);
    return ok;
}

bool onnx_tree_ensemble(struct node *n)
{
    struct type x;
    int64_t targets = onnx_attr_int(n, "n_targets", 1);
    if (!onnx_type(n, 0, &x))
        return false;
    if (x.dtype != KL_F32 && x.dtype != KL_F64)
        return onnx_fails(n, KL_ERR_TYPE, "features of %s; f32 and f64 are supported", kl_dtype_name(x.dtype));
    struct trees t = {.n = n, .dtype = x.dtype, .targets = targets < 0 ? 0 : (size_t)targets};
    kl_tensor y = ensemble_read(&t) ? tree_leaves(&t) : kl_none;
    y = y.id ? ensemble_aggregate(&t, y) : y;
    trees_free(&t);
    y = y.id ? ensemble_transform(n, y) : y;
    return y.id && onnx_give(n, 0, y);
}
