/* ai.onnx.ml: labels and categories, which are integers or strings, ZipMap, and what classifiers share. */
#include "frontend/formats/onnx/ops/ml/labels.h"
#include <stdio.h>
#include <string.h>

struct array *ml_labels(struct node *n, const char *ints)
{
    const Onnx__AttributeProto *i = onnx_attr(n, ints), *s = onnx_attr(n, "classlabels_strings");
    struct array *a = NULL;
    if (i && i->n_ints)
        a = array_of_ints((int64_t)i->n_ints, i->ints);
    else if (s && s->n_strings)
        a = strings_array(&n->run->m->strings, s->n_strings, s->strings);
    else
        return onnx_fails(n, KL_ERR_TYPE, "it has neither %s nor classlabels_strings", ints), NULL;
    return a ? a : (onnx_fails(n, KL_ERR_MEMORY, "out of memory"), NULL);
}

bool ml_give_labels(struct node *n, struct array *labels, kl_tensor classes)
{
    int32_t element = labels->element;
    return onnx_give_element(n, 0, kl_take(onnx_tensor(n, labels), 0, classes), element);
}

kl_tensor ml_numbers(struct node *n, const float *v, int64_t count)
{
    struct array *a = array_new(KL_F32, 1, (int64_t[]){count});
    if (!a)
        return onnx_fails(n, KL_ERR_MEMORY, "out of memory"), kl_none;
    memcpy(a->data, v, (size_t)count * sizeof *v);
    return onnx_tensor(n, a);
}

kl_tensor ml_matrix(struct node *n, const char *name, int64_t rows, int64_t columns)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    int64_t have = a ? (int64_t)a->n_floats : 0, dims[2] = {rows, columns ? columns : have / (rows ? rows : 1)};
    if (!have || rows < 1 || sat_mul(dims[0], dims[1]) != have)
        return onnx_fails(n, KL_ERR_SHAPE, "attribute %s has %lld numbers for %lld rows", name, (long long)have,
                          (long long)rows), kl_none;
    kl_tensor t = ml_numbers(n, a->floats, have);
    return t.id ? kl_reshape(t, 2, dims) : t;
}

/* The quantile of the normal distribution, with the inverse of erf by S. Winitzki's formula, as onnxruntime has it. */
static kl_tensor ml_probit(struct node *n, kl_tensor p)
{
    const float a = 0.147f;
    kl_tensor one = onnx_number(n, KL_F32, 1), y = kl_sub(kl_mul(onnx_number(n, KL_F32, 2), p), one);
    kl_tensor log = kl_log(kl_mul(kl_sub(one, y), kl_add(one, y)));
    kl_tensor v = kl_add(onnx_number(n, KL_F32, 2 / (3.14159f * a)), kl_mul(onnx_number(n, KL_F32, 0.5), log));
    kl_tensor square = kl_sub(kl_square(v), kl_mul(onnx_number(n, KL_F32, 1 / a), log));
    kl_tensor size = kl_sqrt(kl_sub(kl_sqrt(square), v)), zero = onnx_number(n, KL_F32, 0);
    return kl_mul(onnx_number(n, KL_F32, 1.41421356f), kl_where(kl_lt(y, zero), kl_neg(size), size));
}

/* Softmax of the scores that are not 0; those stay 0. */
static kl_tensor softmax_zero(struct node *n, kl_tensor scores)
{
    int last = -1;
    kl_tensor most = kl_max(scores, 1, &last, true), zero = onnx_number(n, KL_F32, 0);
    kl_tensor some = kl_gt(kl_abs(scores), onnx_number(n, KL_F32, 1e-7));
    kl_tensor e = kl_where(some, kl_exp(kl_sub(scores, most)), zero);
    kl_tensor rest = kl_where(some, e, kl_mul(scores, kl_exp(kl_neg(most))));
    return kl_div(rest, kl_sum(e, 1, &last, true));
}

kl_tensor ml_transform(struct node *n, kl_tensor scores)
{
    if (onnx_attr_is(n, "post_transform", "NONE", true))
        return scores;
    if (onnx_attr_is(n, "post_transform", "LOGISTIC", false))
        return kl_sigmoid(scores);
    if (onnx_attr_is(n, "post_transform", "SOFTMAX", false))
        return kl_softmax(scores, -1);
    if (onnx_attr_is(n, "post_transform", "SOFTMAX_ZERO", false))
        return softmax_zero(n, scores);
    if (onnx_attr_is(n, "post_transform", "PROBIT", false))
        return ml_probit(n, scores);
    return onnx_fails(n, KL_ERR_ARGUMENT, "its post_transform is neither NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO nor "
                      "PROBIT"), kl_none;
}

/* ---- LabelEncoder, CategoryMapper, OneHotEncoder ---- */

/* The elements of attribute NAME_int64s, NAME_floats, NAME_strings or NAME_tensor, of one axis; NULL: reported. */
static struct array *label_list(struct node *n, const char *name)
{
    char text[4][20];
    static const char *const suffix[4] = {"_int64s", "_floats", "_strings", "_tensor"};
    const Onnx__AttributeProto *a[4];
    struct strings *strings = &n->run->m->strings;
    struct file_error why = {.code = KL_ERR_MEMORY, .text = "out of memory"};
    struct array *list = NULL;
    for (int i = 0; i < 4; i++) {
        snprintf(text[i], sizeof text[i], "%s%s", name, suffix[i]);
        a[i] = onnx_attr(n, text[i]);
    }
    if (a[0] && a[0]->n_ints) {
        list = array_of_ints((int64_t)a[0]->n_ints, a[0]->ints);
    } else if (a[1] && a[1]->n_floats) {
        list = array_new(KL_F32, 1, (int64_t[]){(int64_t)a[1]->n_floats});
        if (list)
            memcpy(list->data, a[1]->floats, a[1]->n_floats * sizeof *a[1]->floats);
    } else if (a[2] && a[2]->n_strings) {
        list = strings_array(strings, a[2]->n_strings, a[2]->strings);
    } else if (a[3] && a[3]->t) {
        list = array_read(a[3]->t, n->run->m->path, false, strings, &why);
    } else {
        return onnx_fails(n, KL_ERR_TYPE, "it has no %s of integers, floats or strings", name), NULL;
    }
    if (!list)
        return onnx_fails(n, why.code, "%s: %s", name, why.text), NULL;
    if (list->rank != 1 || !list->count)
        return onnx_fails(n, KL_ERR_SHAPE, "%s is no list", name), array_unref(list), NULL;
    return list;
}

/* What elements become that are no key, of the values' dtype; kl_none: reported. */
static kl_tensor label_default(struct node *n, const struct array *value)
{
    const Onnx__AttributeProto *t = onnx_attr(n, "default_tensor"), *s = onnx_attr(n, "default_string");
    struct strings *strings = &n->run->m->strings;
    struct file_error why = {0};
    if (t && t->t) {
        struct array *a = array_read(t->t, n->run->m->path, false, strings, &why);
        if (a && a->count == 1 && a->dtype == value->dtype && (a->element == ONNX_STRING) ==
            (value->element == ONNX_STRING))
            return kl_reshape(onnx_tensor(n, a), 0, NULL);
        array_unref(a);
        return onnx_fails(n, KL_ERR_TYPE, "default_tensor is not one of its values' type"), kl_none;
    }
    double missing = onnx_attr_float(n, "default_float", -0.0);
    if (value->element == ONNX_STRING)
        missing = (double)(s ? strings_number(strings, s->s.data, s->s.len)
                           : strings_number(strings, "_Unused", strlen("_Unused")));
    else if (value->dtype == KL_I64)
        missing = (double)onnx_attr_int(n, "default_int64", -1);
    return onnx_number(n, value->dtype, missing);
}

/* The value of the first key that equals an element, of NaN that of a NaN; without one the default. */
static bool label_encode(struct node *n, struct array *key, struct array *value)
{
    struct type x;
    bool text = onnx_element(n, 0) == ONNX_STRING, floats = onnx_is_float(key->dtype);
    int32_t element = value->element == ONNX_STRING ? ONNX_STRING : 0;
    if (!onnx_type(n, 0, &x))
        return false;
    if (key->count != value->count || x.dtype != key->dtype || text != (key->element == ONNX_STRING) ||
        x.rank >= KL_MAX_RANK)
        return onnx_fails(n, KL_ERR_TYPE, "%lld keys of %s and %lld values for elements of %s", (long long)key->count,
                          key->element == ONNX_STRING ? "string" : kl_dtype_name(key->dtype), (long long)value->count,
                          text ? "string" : kl_dtype_name(x.dtype));
    kl_tensor a = kl_unsqueeze(onnx_in(n, 0), -1), k = onnx_tensor(n, array_ref(key)), same = kl_eq(a, k);
    kl_tensor missing = label_default(n, value);
    if (!missing.id)
        return false;
    if (floats)
        same = kl_or(same, kl_and(kl_is_nan(a), kl_is_nan(k)));
    kl_tensor which = kl_cast(same, KL_I32), found = kl_any(same, 1, (int[]){-1}, false);
    kl_tensor y = kl_take(onnx_tensor(n, array_ref(value)), 0, kl_argmax(which, -1));
    return onnx_give_element(n, 0, kl_where(found, y, missing), element);
}

/* The strings of an attribute and integers, which are 0, 1, .. without one: the operand's are looked up, the others
 * are the result. */
static bool label_map(struct node *n, const Onnx__AttributeProto *text, const Onnx__AttributeProto *ints)
{
    size_t count = text->n_strings;
    if (!count || (ints && ints->n_ints != count))
        return onnx_fails(n, KL_ERR_ARGUMENT, "%zu strings for %zu integers", count, ints ? ints->n_ints : 0);
    struct array *t = strings_array(&n->run->m->strings, count, text->strings);
    struct array *k = array_new(KL_I64, 1, (int64_t[]){(int64_t)count});
    for (size_t i = 0; k && i < count; i++)
        ((int64_t *)k->data)[i] = ints ? ints->ints[i] : (int64_t)i;
    bool from_text = onnx_element(n, 0) == ONNX_STRING, ok = t && k;
    ok = ok ? label_encode(n, from_text ? t : k, from_text ? k : t) : onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    array_unref(t);
    array_unref(k);
    return ok;
}

bool onnx_label_encoder(struct node *n)
{
    const Onnx__AttributeProto *classes = onnx_attr(n, "classes_strings"); /* of version 1 */
    if (classes)
        return label_map(n, classes, NULL);
    struct array *key = label_list(n, "keys"), *value = key ? label_list(n, "values") : NULL;
    bool ok = value && label_encode(n, key, value);
    array_unref(key);
    array_unref(value);
    return ok;
}

bool onnx_category_mapper(struct node *n)
{
    const Onnx__AttributeProto *text = onnx_attr(n, "cats_strings"), *ints = onnx_attr(n, "cats_int64s");
    if (!text || !ints)
        return onnx_fails(n, KL_ERR_ARGUMENT, "it lacks cats_strings or cats_int64s");
    return label_map(n, text, ints);
}

/* A 1 at the place of each element among the categories; an unknown one has none, even where zeros is 0, with which
 * onnxruntime stops. */
bool onnx_one_hot_encoder(struct node *n)
{
    const Onnx__AttributeProto *text = onnx_attr(n, "cats_strings"), *ints = onnx_attr(n, "cats_int64s");
    bool strings = onnx_element(n, 0) == ONNX_STRING;
    struct array *a = NULL;
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    if (t.rank >= KL_MAX_RANK || (strings ? !text || !text->n_strings : !ints || !ints->n_ints))
        return onnx_fails(n, KL_ERR_ARGUMENT, "it has no categories of %s", strings ? "string" : "integers");
    a = strings ? strings_array(&n->run->m->strings, text->n_strings, text->strings) :
                  array_of_ints((int64_t)ints->n_ints, ints->ints);
    if (!a)
        return onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    kl_tensor x = kl_unsqueeze(kl_cast(onnx_in(n, 0), KL_I64), -1);
    return onnx_give(n, 0, kl_cast(kl_eq(x, onnx_tensor(n, a)), KL_F32));
}

/* ---- ZipMap ---- */

/* Rows of maps are the table of their values, a column for each key; kl_model_output says the keys. */
bool onnx_zip_map(struct node *n)
{
    struct type t;
    struct array *labels = ml_labels(n, "classlabels_int64s");
    int64_t count = labels ? labels->count : 0;
    array_unref(labels);
    if (!labels || !onnx_type(n, 0, &t))
        return false;
    if ((t.rank != 1 && t.rank != 2) || t.dims[t.rank - 1] != count)
        return onnx_fails(n, KL_ERR_SHAPE, "rows of %lld numbers for %lld labels", t.rank ?
                          (long long)t.dims[t.rank - 1] : 1, (long long)count);
    kl_tensor y = onnx_in(n, 0);
    return onnx_give(n, 0, t.rank == 1 ? kl_unsqueeze(y, 0) : y);
}
