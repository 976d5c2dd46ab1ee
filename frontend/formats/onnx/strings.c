/* Strings: a model's own are numbered, and a value of strings is an array or a tensor of such numbers, i64.  Operators
 * that move elements take them, Equal and LabelEncoder compare them, and no operator computes with them. */
#include "onnx.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

int64_t strings_number(struct strings *s, const void *text, size_t len)
{
    if (len && memchr(text, 0, len))
        return -1;
    char *copy = malloc(len + 1);
    if (!copy)
        return -1;
    memcpy(copy, len ? text : "", len);
    copy[len] = 0;
    uint32_t at = onnx_names_find(&s->names, copy);
    uint32_t cap = s->n < s->cap ? s->cap : s->cap ? 2 * s->cap : 16;
    char **more = at == NO_PLACE && cap > s->cap ? realloc(s->text, cap * sizeof *more) : s->text;
    if (at == NO_PLACE && more) {
        s->text = more;
        s->cap = cap;
        if (onnx_names_put(&s->names, copy, s->n)) {
            s->text[s->n] = copy;
            return s->n++;
        }
    }
    free(copy);
    return at == NO_PLACE ? -1 : (int64_t)at;
}

void strings_free(struct strings *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        free(s->text[i]);
    free(s->text);
    onnx_names_free(&s->names);
}

struct array *strings_array(struct strings *s, size_t n, const ProtobufCBinaryData *text)
{
    struct array *a = array_new(KL_I64, 1, (int64_t[]){(int64_t)n});
    for (size_t i = 0; a && i < n; i++) {
        int64_t number = strings_number(s, text[i].data, text[i].len);
        ((int64_t *)a->data)[i] = number;
        if (number < 0) {
            array_unref(a);
            return NULL;
        }
    }
    if (a)
        a->element = ONNX_STRING;
    return a;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), k = strlen(suffix);
    return n >= k && !strcmp(name + n - k, suffix);
}

/* Those of nodes are numbered when the model is loaded, so that a caller can ask for them before the first call. */
bool strings_of_node(struct strings *s, const Onnx__NodeProto *p)
{
    bool ok = true;
    for (size_t i = 0; ok && i < p->n_attribute; i++) {
        const Onnx__AttributeProto *a = p->attribute[i];
        bool list = a->name && has_suffix(a->name, "_strings"), one = a->name && has_suffix(a->name, "_string");
        const Onnx__TensorProto *t = a->t && a->t->data_type == ONNX_STRING ? a->t : NULL;
        for (size_t k = 0; ok && list && k < a->n_strings; k++)
            ok = strings_number(s, a->strings[k].data, a->strings[k].len) >= 0;
        for (size_t k = 0; ok && t && k < t->n_string_data; k++)
            ok = strings_number(s, t->string_data[k].data, t->string_data[k].len) >= 0;
        ok = ok && (!one || strings_number(s, a->s.data, a->s.len) >= 0);
    }
    return ok;
}

/* ---- operators ---- */

#define ALL UINT32_MAX
/* Bits of operands that may be strings, all of them or none, and of results that then are. */
static const struct strings_rule { node_fn *fn; uint32_t in, out; } strings_rules[] = {
    {onnx_array_feature_extractor, 1, 1}, {onnx_cast, 1, 1}, {onnx_category_mapper, 1, 0}, {onnx_compress, 1, 1},
    {onnx_concat, ALL, 1}, {onnx_expand, 1, 1}, {onnx_flatten, 1, 1}, {onnx_gather, 1, 1},
    {onnx_gather_elements, 1, 1}, {onnx_gather_nd, 1, 1}, {onnx_identity, 1, 1}, {onnx_label_encoder, 1, 0},
    {onnx_one_hot_encoder, 1, 0}, {onnx_reshape, 1, 1}, {onnx_shape, 1, 0}, {onnx_size, 1, 0}, {onnx_slice, 1, 1},
    {onnx_split, 1, ALL}, {onnx_squeeze, 1, 1}, {onnx_tile, 1, 1}, {onnx_transpose, 1, 1}, {onnx_unsqueeze, 1, 1},
    {onnx_where, 6, 1},
};

static struct strings_rule strings_rule_of(const struct node *n)
{
    for (size_t i = 0; i < sizeof strings_rules / sizeof *strings_rules; i++)
        if (strings_rules[i].fn == n->def->op->fn)
            return strings_rules[i];
    bool equal = !*n->def->op->domain && !strcmp(n->def->op->name, "Equal");
    return (struct strings_rule){n->def->op->fn, equal ? 3 : 0, 0};
}

static bool in_mask(uint32_t mask, uint32_t i) { return mask == ALL || (i < 32 && mask >> i & 1); }

/* The operands that are strings. */
static uint32_t strings_count(const struct node *n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < onnx_nin(n); i++)
        count += onnx_element(n, i) == ONNX_STRING;
    return count;
}

bool strings_check(struct node *n)
{
    uint32_t count = strings_count(n), allowed = 0;
    struct strings_rule rule = count ? strings_rule_of(n) : (struct strings_rule){0};
    for (uint32_t i = 0; count && i < onnx_nin(n); i++) {
        if (onnx_element(n, i) == ONNX_STRING && !in_mask(rule.in, i))
            return onnx_fails(n, KL_ERR_TYPE, "operand %u ('%.100s') is of strings, which this operator does not take",
                              i, n->def->proto->input[i]);
        allowed += in_mask(rule.in, i) && onnx_has(n, i);
    }
    return !count || count == allowed || onnx_fails(n, KL_ERR_TYPE, "some of its operands are of strings, others not");
}

void strings_mark(struct node *n)
{
    uint32_t out = strings_count(n) ? strings_rule_of(n).out : 0;
    for (uint32_t i = 0; i < onnx_nout(n); i++) {
        struct value *v = onnx_wants(n, i) ? &n->frame->v[n->def->out[i]] : NULL;
        if (v && v->set && (in_mask(out, i) || (v->known && v->known->element == ONNX_STRING)))
            v->element = ONNX_STRING;
    }
}

/* ---- maps: the columns of a result ---- */

/* The node of the main graph that gives output i if it is a ZipMap; NULL: another one does. */
static const Onnx__NodeProto *zip_map_of(const struct graph_def *g, uint32_t i)
{
    for (uint32_t k = 0; !g->out[i].up && k < g->nnode; k++) {
        const struct node_def *d = &g->node[k];
        if (d->op && d->op->fn == onnx_zip_map && d->proto->n_output && d->out[0] == g->out[i].at)
            return d->proto;
    }
    return NULL;
}

bool strings_is_map(const struct graph_def *g, uint32_t i) { return zip_map_of(g, i) != NULL; }

static const char *key_text(const Onnx__AttributeProto *a, size_t k)
{
    char text[24];
    if (k >= a->n_ints) {
        char *copy = strndup((const char *)a->strings[k].data, a->strings[k].len);
        const char *stays = copy ? string_forever(copy) : "";
        free(copy);
        return stays;
    }
    snprintf(text, sizeof text, "%lld", (long long)a->ints[k]);
    return string_forever(text);
}

bool strings_keys(struct kl_model *m)
{
    const struct graph_def *g = m->main;
    if (!(m->keys = calloc(g->nout + 1, sizeof *m->keys)))
        return false;
    for (uint32_t i = 0; i < g->nout; i++) {
        const Onnx__NodeProto *p = zip_map_of(g, i);
        for (size_t k = 0; p && k < p->n_attribute; k++) {
            const Onnx__AttributeProto *a = p->attribute[k];
            bool labels = a->name && !strncmp(a->name, "classlabels_", 12);
            size_t n = a->n_ints ? a->n_ints : a->n_strings;
            if (!labels || !n || m->keys[i].key)
                continue;
            if (!(m->keys[i].key = calloc(n, sizeof *m->keys[i].key)))
                return false;
            for (size_t at = 0; at < n; at++)
                m->keys[i].key[at] = key_text(a, at);
            m->keys[i].n = (int64_t)n;
        }
    }
    return true;
}

void strings_keys_free(struct kl_model *m)
{
    for (uint32_t i = 0; m->keys && i < m->main->nout; i++)
        free(m->keys[i].key);
    free(m->keys);
}

/* ---- <kiln/formats/model.h> ---- */

int64_t kl_model_strings(const kl_model *m) { return m ? m->strings.n : 0; }

const char *kl_model_string(const kl_model *m, int64_t number)
{
    return m && number >= 0 && number < m->strings.n ? m->strings.text[number] : NULL;
}

int64_t kl_model_string_number(const kl_model *m, const char *text)
{
    uint32_t at = m && text ? onnx_names_find(&m->strings.names, text) : NO_PLACE;
    return at == NO_PLACE ? -1 : (int64_t)at;
}
