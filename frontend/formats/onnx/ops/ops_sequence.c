/* Sequences and optional values: lists of values while recording, nothing at run time. */
#include "frontend/formats/onnx/onnx.h"
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 1 << 16 };

static struct list *new_list(struct node *n, uint32_t count)
{
    struct list *l = calloc(1, sizeof *l);
    if (l && (l->v = calloc(count + 1, sizeof *l->v))) {
        l->refs = 1;
        l->n = count;
        return l;
    }
    free(l);
    onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    return NULL;
}

static bool give_list(struct node *n, struct list *l) /* takes it over */
{
    struct value v = {.list = l, .set = true};
    bool ok = l && onnx_give_value(n, 0, &v);
    if (l)
        onnx_value_clear(&v);
    return ok;
}

static struct list *list_operand(struct node *n)
{
    struct value *v = onnx_value(n, 0);
    if (v && v->list)
        return v->list;
    onnx_fails(n, KL_ERR_TYPE, "operand 0 is no sequence");
    return NULL;
}

/* Reads a position in a list of `count` elements from operand i, or `without`; false: reported. */
static bool list_place(struct node *n, uint32_t i, int64_t count, int64_t without, int64_t *at)
{
    *at = without;
    if (onnx_has(n, i) && !onnx_known_int(n, i, at))
        return false;
    *at += *at < 0 ? count : 0;
    return (*at >= 0 && *at <= without) ||
           onnx_fails(n, KL_ERR_SHAPE, "no position %lld in a sequence of %lld", (long long)*at, (long long)count);
}

bool onnx_sequence_empty(struct node *n) { return give_list(n, new_list(n, 0)); }

bool onnx_sequence_construct(struct node *n)
{
    for (uint32_t i = 0; i < onnx_nin(n); i++)
        if (!onnx_has(n, i))
            return onnx_fails(n, KL_ERR_ARGUMENT, "it needs operand %u", i);
    struct list *l = new_list(n, onnx_nin(n));
    for (uint32_t i = 0; l && i < l->n; i++)
        onnx_value_copy(&l->v[i], onnx_value(n, i));
    return give_list(n, l);
}

bool onnx_sequence_insert(struct node *n)
{
    struct list *from = list_operand(n);
    int64_t at;
    if (!from || !list_place(n, 2, from->n, from->n, &at))
        return false;
    if (!onnx_has(n, 1) || from->n >= LIST_MAX)
        return onnx_fails(n, KL_ERR_ARGUMENT, "nothing to insert, or %u elements already", from->n);
    struct list *l = new_list(n, from->n + 1);
    for (uint32_t i = 0, k = 0; l && i < l->n; i++)
        onnx_value_copy(&l->v[i], i == at ? onnx_value(n, 1) : &from->v[k++]);
    return give_list(n, l);
}

bool onnx_sequence_erase(struct node *n)
{
    struct list *from = list_operand(n);
    int64_t at;
    if (!from || !list_place(n, 1, from->n, (int64_t)from->n - 1, &at))
        return false;
    struct list *l = new_list(n, from->n - 1);
    for (uint32_t i = 0, k = 0; l && i < from->n; i++)
        if (i != at)
            onnx_value_copy(&l->v[k++], &from->v[i]);
    return give_list(n, l);
}

bool onnx_sequence_at(struct node *n)
{
    struct list *from = list_operand(n);
    int64_t at;
    return from && list_place(n, 1, from->n, (int64_t)from->n - 1, &at) && onnx_give_value(n, 0, &from->v[at]);
}

bool onnx_sequence_length(struct node *n)
{
    struct list *from = list_operand(n);
    struct array *a = from ? array_new(KL_I64, 0, NULL) : NULL;
    if (a)
        *(int64_t *)a->data = from->n;
    return from && onnx_give_known(n, 0, a);
}

bool onnx_split_to_sequence(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    const struct array *split = NULL;
    struct type t;
    int axis;
    if (!onnx_type(n, 0, &t) || !onnx_axis(n, onnx_attr_int(n, "axis", 0), t.rank, &axis) ||
        (onnx_has(n, 1) && !(split = onnx_known(n, 1))))
        return false;
    int64_t length = t.dims[axis], each = split && split->rank == 0 ? array_int(split, 0) : 1;
    int64_t count = split && split->rank ? split->count : each > 0 ? length / each + (length % each > 0) : -1;
    if (count < 0 || count > LIST_MAX)
        return onnx_fails(n, KL_ERR_SHAPE, "%lld parts", (long long)count);
    struct list *l = new_list(n, (uint32_t)count);
    int64_t start = 0;
    for (int64_t i = 0; l && i < count; i++) {
        int64_t part = split && split->rank ? array_int(split, i) : each < length - start ? each : length - start;
        kl_tensor piece = kl_narrow(a, axis, start, part);
        if (!split && !onnx_attr_int(n, "keepdims", 1))
            piece = kl_squeeze(piece, axis);
        l->v[i] = (struct value){.t = piece, .set = true};
        start = sat_add(start, part);
        if (kl_check(piece) != KL_OK)
            return give_list(n, l), false;
    }
    return give_list(n, l);
}

/* Returns an element as a tensor. */
static kl_tensor list_tensor(struct node *n, const struct value *v)
{
    if (v->t.id)
        return v->t;
    if (v->known)
        return onnx_tensor(n, array_ref(v->known));
    onnx_fails(n, KL_ERR_TYPE, "an element is no tensor");
    return kl_none;
}

bool onnx_concat_from_sequence(struct node *n)
{
    struct list *l = list_operand(n);
    int axis = onnx_attr_int32(n, "axis", 0);
    kl_tensor *part = l && l->n ? malloc(l->n * sizeof *part) : NULL;
    if (!part)
        return l ? onnx_fails(n, KL_ERR_SHAPE, "an empty sequence") : false;
    for (uint32_t i = 0; i < l->n; i++)
        part[i] = list_tensor(n, &l->v[i]);
    bool stacks = onnx_attr_int(n, "new_axis", 0);
    bool ok = onnx_give(n, 0, stacks ? kl_stack((int)l->n, part, axis) : kl_concat((int)l->n, part, axis));
    free(part);
    return ok;
}

/* Runs the body once for each element; operands that are no sequences are passed to each run. */
bool onnx_sequence_map(struct node *n)
{
    const struct graph_def *g = onnx_attr_graph(n, "body");
    struct list *first = list_operand(n);
    uint32_t nin = onnx_nin(n), nout = onnx_nout(n);
    if (!first || !g || g->nin != nin || nout > g->nout)
        return first ? onnx_fails(n, KL_ERR_ARGUMENT, "its body does not fit its operands") : false;
    struct value *in = calloc(nin + 1, sizeof *in), *out = calloc(g->nout + 1, sizeof *out);
    struct list **all = calloc(nout + 1, sizeof *all);
    bool ok = (in && out && all) || onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    for (uint32_t k = 0; ok && k < nout; k++)
        ok = (all[k] = new_list(n, first->n)) != NULL;
    for (uint32_t i = 0; ok && i < first->n; i++) {
        for (uint32_t k = 0; ok && k < nin; k++) {
            const struct value *v = onnx_value(n, k);
            ok = v && (!v->list || i < v->list->n);
            if (ok)
                onnx_value_copy(&in[k], v->list ? &v->list->v[i] : v);
            else
                onnx_fails(n, KL_ERR_SHAPE, "sequences of different lengths");
        }
        ok = ok && graph_run(n, g, in, nin, out);
        for (uint32_t k = 0; ok && k < g->nout; k++) {
            if (k < nout)
                onnx_value_copy(&all[k]->v[i], &out[k]);
            onnx_value_clear(&out[k]);
        }
    }
    for (uint32_t k = 0; all && k < nout; k++) {
        struct value v = {.list = all[k], .set = true};
        if (ok)
            onnx_give_value(n, k, &v);
        onnx_value_clear(&v);
    }
    for (uint32_t k = 0; in && k < nin; k++)
        onnx_value_clear(&in[k]);
    free(in);
    free(out);
    free(all);
    return ok;
}

/* ---- optional values: a value that is set but neither tensor nor list is none ---- */

bool onnx_optional(struct node *n)
{
    struct value none = {.set = true};
    return onnx_give_value(n, 0, onnx_has(n, 0) ? onnx_value(n, 0) : &none);
}

static bool has_value(const struct node *n)
{
    const struct value *v = onnx_value(n, 0);
    return v && v->set && (v->t.id || v->known || v->list);
}

bool onnx_optional_has(struct node *n)
{
    struct array *a = array_new(KL_BOOL, 0, NULL);
    if (a)
        *(uint8_t *)a->data = has_value(n);
    return onnx_give_known(n, 0, a);
}

bool onnx_optional_get(struct node *n)
{
    return has_value(n) ? onnx_give_value(n, 0, onnx_value(n, 0)) : onnx_fails(n, KL_ERR_ARGUMENT, "there is no value");
}
