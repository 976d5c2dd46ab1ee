/* ai.onnx.ml: scaled, filled and joined features, and linear models. */
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

/* (x - offset) * scale, each one number or one for each column. */
bool onnx_scaler(struct node *n)
{
    kl_tensor x = kl_cast(onnx_in(n, 0), KL_F32), offset, scale;
    if (onnx_attr(n, "offset")) {
        if (!(offset = ml_matrix(n, "offset", 1, 0)).id)
            return false;
        x = kl_sub(x, offset);
    }
    if (onnx_attr(n, "scale")) {
        if (!(scale = ml_matrix(n, "scale", 1, 0)).id)
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

/* ---- features ---- */

/* Operands side by side, each cut, or filled with zeros, to its number of columns. */
bool onnx_feature_vectorizer(struct node *n)
{
    enum { MOST = 64 };
    int64_t width[MOST];
    kl_tensor part[MOST];
    int count = onnx_attr_ints(n, "inputdimensions", width, MOST);
    if (count < 1 || (uint32_t)count != onnx_nin(n))
        return count == -2 ? false : onnx_fails(n, KL_ERR_ARGUMENT, "%d inputdimensions for %u operands",
                                                count < 0 ? 0 : count, onnx_nin(n));
    for (int i = 0; i < count; i++) {
        struct type t;
        if (!onnx_type(n, (uint32_t)i, &t))
            return false;
        kl_tensor x = kl_cast(onnx_in(n, (uint32_t)i), KL_F32);
        x = t.rank == 1 ? kl_unsqueeze(x, 0) : x;
        struct type row = onnx_type_of(x);
        if (row.rank != 2 || width[i] < 1)
            return onnx_fails(n, KL_ERR_SHAPE, "operand %d has %d axes, its columns are %lld", i, t.rank,
                              (long long)width[i]);
        int64_t have = row.dims[1], zeros[2] = {row.dims[0], sat_sub(width[i], have)};
        part[i] = have > width[i] ? kl_narrow(x, 1, 0, width[i]) : x;
        if (have < width[i])
            part[i] = kl_concat(2, (kl_tensor[]){x, kl_expand(onnx_number(n, KL_F32, 0), 2, zeros)}, 1);
    }
    return onnx_give(n, 0, kl_concat(count, part, 1));
}

/* The value for one column, or for each, where an element is the replaced one. */
bool onnx_imputer(struct node *n)
{
    const Onnx__AttributeProto *f = onnx_attr(n, "imputed_value_floats"), *k = onnx_attr(n, "imputed_value_int64s");
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    bool floats = onnx_is_float(t.dtype);
    size_t count = floats ? f ? f->n_floats : 0 : k ? k->n_ints : 0;
    if (!count || t.rank < 1)
        return onnx_fails(n, KL_ERR_ARGUMENT, "it has no values for elements of %s", kl_dtype_name(t.dtype));
    bool each = t.rank <= 2 && (int64_t)count == t.dims[t.rank - 1];
    count = each ? count : 1;
    kl_tensor x = onnx_in(n, 0), value, old, same;
    if (floats) {
        double replaced = onnx_attr_float(n, "replaced_value_float", 0);
        value = ml_numbers(n, f->floats, (int64_t)count);
        old = onnx_number(n, t.dtype, replaced);
        same = replaced != replaced ? kl_is_nan(x) : kl_eq(x, old);
    } else {
        struct array *a = array_of_ints((int64_t)count, k->ints);
        value = a ? onnx_tensor(n, a) : (onnx_fails(n, KL_ERR_MEMORY, "out of memory"), kl_none);
        struct array *r = array_of_ints(1, (int64_t[]){onnx_attr_int(n, "replaced_value_int64", 0)});
        old = r ? onnx_tensor(n, r) : (onnx_fails(n, KL_ERR_MEMORY, "out of memory"), kl_none);
        same = value.id && old.id ? kl_eq(x, kl_cast(old, t.dtype)) : kl_none;
    }
    return value.id && same.id && onnx_give(n, 0, kl_where(same, kl_cast(value, t.dtype), x));
}

/* ---- linear models ---- */

/* x [N, F] or [F], a row, times the coefficients [targets, F] of attributes, plus intercepts: [N, targets]; kl_none:
 * reported. */
static kl_tensor linear_scores(struct node *n, int64_t targets)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return kl_none;
    if (t.rank != 1 && t.rank != 2)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand of %d axes, not rows of features", t.rank), kl_none;
    kl_tensor x = kl_cast(onnx_in(n, 0), KL_F32), w = ml_matrix(n, "coefficients", targets, 0), b;
    if (!w.id)
        return kl_none;
    kl_tensor y = kl_matmul(t.rank == 1 ? kl_unsqueeze(x, 0) : x, kl_transpose(w, 0, 1));
    if (!onnx_attr(n, "intercepts"))
        return y;
    b = ml_matrix(n, "intercepts", 1, targets);
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
