/* ai.onnx.ml: labels of classes, which are integers or strings: LabelEncoder, ZipMap, and what classifiers share. */
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

kl_tensor ml_transform(struct node *n, kl_tensor scores)
{
    if (onnx_attr_is(n, "post_transform", "NONE", true))
        return scores;
    if (onnx_attr_is(n, "post_transform", "LOGISTIC", false))
        return kl_sigmoid(scores);
    if (onnx_attr_is(n, "post_transform", "SOFTMAX", false))
        return kl_softmax(scores, -1);
    return onnx_fails(n, KL_ERR_ARGUMENT, "its post_transform is neither NONE, LOGISTIC nor SOFTMAX"), kl_none;
}

/* ---- LabelEncoder ---- */

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

bool onnx_label_encoder(struct node *n)
{
    struct array *key = label_list(n, "keys"), *value = key ? label_list(n, "values") : NULL;
    bool ok = value && label_encode(n, key, value);
    array_unref(key);
    array_unref(value);
    return ok;
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
