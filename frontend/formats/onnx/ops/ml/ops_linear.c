/* ai.onnx.ml: scaling of features, and linear models. */
#include "frontend/formats/onnx/ops/ml/labels.h"

/* The elements of the last axis at operand 1's indices; a vector is one row. */
bool onnx_array_feature_extractor(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    if (t.rank < 1)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand without axes");
    kl_tensor x = onnx_in(n, 0), at = kl_reshape(onnx_in(n, 1), 1, (int64_t[]){kl_numel(onnx_in(n, 1))});
    kl_tensor y = kl_take(x, t.rank - 1, at);
    return onnx_give(n, 0, t.rank == 1 ? kl_unsqueeze(y, 0) : y);
}

bool onnx_binarizer(struct node *n)
{
    kl_tensor x = onnx_in(n, 0);
    kl_dtype d = kl_dtype_of(x);
    return onnx_give(n, 0, kl_cast(kl_gt(x, onnx_number(n, d, onnx_attr_float(n, "threshold", 0))), d));
}

/* The numbers of an attribute as f32 [rows, columns], columns 0: as many as there are; kl_none: reported. */
static kl_tensor attribute_matrix(struct node *n, const char *name, int64_t rows, int64_t columns)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    int64_t have = a ? (int64_t)a->n_floats : 0, dims[2] = {rows, columns ? columns : have / (rows ? rows : 1)};
    if (!have || rows < 1 || sat_mul(dims[0], dims[1]) != have)
        return onnx_fails(n, KL_ERR_SHAPE, "attribute %s has %lld numbers for %lld rows", name, (long long)have,
                          (long long)rows), kl_none;
    struct array *v = array_new(KL_F32, 2, dims);
    for (int64_t i = 0; v && i < have; i++)
        ((float *)v->data)[i] = a->floats[i];
    return v ? onnx_tensor(n, v) : (onnx_fails(n, KL_ERR_MEMORY, "out of memory"), kl_none);
}

/* (x - offset) * scale, each one number or one for each column. */
bool onnx_scaler(struct node *n)
{
    kl_tensor x = kl_cast(onnx_in(n, 0), KL_F32), offset, scale;
    if (onnx_attr(n, "offset")) {
        if (!(offset = attribute_matrix(n, "offset", 1, 0)).id)
            return false;
        x = kl_sub(x, offset);
    }
    if (onnx_attr(n, "scale")) {
        if (!(scale = attribute_matrix(n, "scale", 1, 0)).id)
            return false;
        x = kl_mul(x, scale);
    }
    return onnx_give(n, 0, x);
}

/* Each row divided by its largest size, its sum of sizes, or its length; a row of zeros stays. */
bool onnx_normalizer(struct node *n)
{
    kl_tensor x = kl_cast(onnx_in(n, 0), KL_F32), by;
    int last = onnx_type_of(x).rank - 1;
    if (last < 0)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand without axes");
    if (onnx_attr_is(n, "norm", "MAX", true))
        by = kl_max(kl_abs(x), 1, &last, true);
    else if (onnx_attr_is(n, "norm", "L1", false))
        by = kl_sum(kl_abs(x), 1, &last, true);
    else if (onnx_attr_is(n, "norm", "L2", false))
        by = kl_norm(x, 1, &last, true);
    else
        return onnx_fails(n, KL_ERR_ARGUMENT, "a norm that is neither MAX, L1 nor L2");
    kl_tensor zero = onnx_number(n, KL_F32, 0);
    return onnx_give(n, 0, kl_div(x, kl_where(kl_eq(by, zero), onnx_number(n, KL_F32, 1), by)));
}

/* x [N, F] or [F], a row, times the coefficients [targets, F] of attributes, plus intercepts: [N, targets]; kl_none:
 * reported. */
static kl_tensor linear_scores(struct node *n, int64_t targets)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return kl_none;
    if (t.rank != 1 && t.rank != 2)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand of %d axes, not rows of features", t.rank), kl_none;
    kl_tensor x = kl_cast(onnx_in(n, 0), KL_F32), w = attribute_matrix(n, "coefficients", targets, 0), b;
    if (!w.id)
        return kl_none;
    kl_tensor y = kl_matmul(t.rank == 1 ? kl_unsqueeze(x, 0) : x, kl_transpose(w, 0, 1));
    if (!onnx_attr(n, "intercepts"))
        return y;
    b = attribute_matrix(n, "intercepts", 1, targets);
    return b.id ? kl_add(y, b) : kl_none;
}

bool onnx_linear_regressor(struct node *n)
{
    kl_tensor y = linear_scores(n, onnx_attr_int(n, "targets", 1));
    y = y.id ? ml_transform(n, y) : y;
    return y.id && onnx_give(n, 0, y);
}

/* Results: labels [N], scores [N, classes].  Two classes may have the score s of one: then, as in onnxruntime, the
 * scores are 1 - s and s, or with LOGISTIC its values of -s and s, and the class is the second where s is above 0. */
bool onnx_linear_classifier(struct node *n)
{
    const Onnx__AttributeProto *b = onnx_attr(n, "intercepts");
    struct array *labels = ml_labels(n, "classlabels_ints");
    int64_t targets = b && b->n_floats ? (int64_t)b->n_floats : labels ? labels->count : 0;
    kl_tensor s = labels ? linear_scores(n, targets) : kl_none, at = kl_none;
    bool two = labels && targets == 1 && labels->count == 2;
    bool fits = s.id && (two || targets == labels->count);
    if (s.id && !fits)
        onnx_fails(n, KL_ERR_ARGUMENT, "%lld scores for %lld labels", (long long)targets, (long long)labels->count);
    if (!fits) {
        array_unref(labels);
        return false;
    }
    if (two) {
        bool logistic = onnx_attr_is(n, "post_transform", "LOGISTIC", false);
        at = kl_cast(kl_squeeze(kl_gt(s, onnx_number(n, KL_F32, 0)), 1), KL_I64);
        kl_tensor other = logistic ? kl_neg(s) : kl_sub(onnx_number(n, KL_F32, 1), s);
        s = kl_concat(2, (kl_tensor[]){other, s}, 1);
        s = logistic ? kl_sigmoid(s) : s;
    } else {
        at = kl_argmax(s, 1);
        s = ml_transform(n, s);
    }
    if (!s.id) {
        array_unref(labels);
        return false;
    }
    return ml_give_labels(n, labels, at) && onnx_give(n, 1, s);
}
