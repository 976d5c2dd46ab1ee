/* Lines of .kir text that stand for several nodes: attributes of several axes (one node for each axis, in the written
 * order), expand of an operand of lower rank, const with a shape or a list of numbers. */
#include "parse.h"
#include <stdio.h>
#include <string.h>

/* Each attribute must have one number for all axes, or one for each. */
bool parse_axes_check(struct parser *p, const struct node *n, const struct attr_lists *l)
{
    for (unsigned k = 0; k < ATTR_LISTS && opinfo[n->op].attr && opinfo[n->op].attr[k].word; k++)
        if (l->of[k].n > 1 && l->of[k].n != l->naxes)
            return lex_fail(&p->l, l->of[k].at, "%s(...) has %u numbers for %u ax%cs", opinfo[n->op].attr[k].word,
                            l->of[k].n, l->naxes, l->naxes == 1 ? 'i' : 'e');
    return true;
}

/* The attributes of axis number i. */
static void set_axis(struct node *n, const struct attr_lists *l, unsigned i)
{
    const struct attr_info *a = opinfo[n->op].attr;
    for (unsigned k = 0; a[k].word; k++) {
        if (a[k].kind == ATTR_AXIS)
            attr_set(&n->attr, a[k].at, a[k].size, l->axis[i]);
        else if (l->of[k].n)
            attr_set(&n->attr, a[k].at, a[k].size, l->of[k].v[l->of[k].n > 1 ? i : 0]);
    }
}

/* Element i of a vector, as a scalar. */
static ref vector_element(struct graph *g, ref vector, unsigned i)
{
    static const struct shape scalar;
    ref one = n_slice(g, vector, 0, i, 1, 1);
    return one ? n_reshape(g, one, &scalar) : NIL;
}

/* The start on each axis: elements of the last operand. */
static bool parse_axis_starts(struct parser *p, const struct node *n, const struct attr_lists *l, const char *at,
                              ref *start)
{
    ref all = n->in[n->nin - 1];
    const struct shape *s = node_shape(p->g, all);
    char text[SHAPE_TEXT];
    if (s->rank != 1 || s->dim[0] != l->naxes)
        return lex_fail(&p->l, at, "%s of %u axes takes a start of shape [%u], not %s", opinfo[n->op].name, l->naxes,
                        l->naxes, shape_text_in(p->g, s, text, sizeof text));
    for (unsigned i = 0; i < l->naxes; i++)
        if (!(start[i] = vector_element(p->g, all, i)))
            return parse_failed(p, at);
    return true;
}

/* Takes a slice of the update's size, axis by axis; then, from the last axis back, writes each slice into the one that
 * it was taken from. */
static ref update_axes(struct graph *g, const struct node *n, const struct attr_lists *l, const ref *start)
{
    ref of[KL_MAX_RANK], r = n->in[1];
    const struct shape update = *node_shape(g, r);
    for (unsigned i = 0; i < l->naxes; i++) {
        int64_t count = l->axis[i] < update.rank ? update.dim[l->axis[i]] : 0;
        of[i] = i ? n_dynamic_slice(g, of[i - 1], start[i - 1], l->axis[i - 1],
                                    l->axis[i - 1] < update.rank ? update.dim[l->axis[i - 1]] : 0)
                  : n->in[0];
        if (!of[i] || (!count && l->axis[i] >= update.rank)) {
            if (of[i])
                err_set(&g->err, KL_ERR_SHAPE, "dynamic_update: axis %u is out of range", (unsigned)l->axis[i]);
            return NIL;
        }
    }
    struct node one = *n;
    for (unsigned i = l->naxes; i-- > 0 && r;) {
        one.in[0] = of[i];
        one.in[1] = r;
        one.in[2] = start[i];
        set_axis(&one, l, i);
        r = graph_add(g, &one, NULL);
    }
    return r;
}

bool parse_axes(struct parser *p, const struct node *n, const struct attr_lists *l, const char *at, ref *out)
{
    struct node one = *n;
    ref start[KL_MAX_RANK], r = n->in[0];
    bool computed = n->op == OP_dynamic_slice || n->op == OP_dynamic_update;
    if (computed && !parse_axis_starts(p, n, l, at, start))
        return false;
    if (n->op == OP_dynamic_update) {
        r = update_axes(p->g, n, l, start);
    } else {
        for (unsigned i = 0; i < l->naxes && r; i++) {
            set_axis(&one, l, i);
            one.in[0] = r;
            if (computed)
                one.in[1] = start[i];
            r = graph_add(p->g, &one, NULL);
        }
    }
    *out = r;
    return r || parse_failed(p, at);
}

/* ---- shapes ---- */

ref prepend_unit_axes(struct graph *g, ref r, unsigned rank)
{
    const struct shape *s = node_shape(g, r);
    if (s->rank >= rank)
        return r;
    struct shape to = {.rank = (uint8_t)rank};
    for (unsigned i = 0; i < rank; i++)
        to.dim[i] = i < rank - s->rank ? 1 : s->dim[i - (rank - s->rank)];
    return n_reshape(g, r, &to);
}

/* The numbers of a list in square brackets. */
bool parse_list(struct parser *p, struct literals *l)
{
    l->at = p->l.p;
    l->list = lex_take(&p->l, '[');
    do {
        if (l->n == MAX_LITERALS)
            return lex_fail(&p->l, p->l.p, "a const has at most %d numbers", MAX_LITERALS);
        if (!parse_literal(p, &l->v[l->n++]))
            return false;
    } while (l->list && lex_take(&p->l, ','));
    return !l->list || lex_need(&p->l, ']', "',' or ']'");
}

/* One number for all elements, or one an element, in row-major order. */
bool parse_const(struct parser *p, const struct node *n, const struct literals *l, const struct type *t, const char *at,
                 ref *out)
{
    static const struct shape scalar;
    struct node number = *n; /* the marks of the line apply to each number */
    const struct shape one = {.rank = 1, .dim = {1}};
    ref part[MAX_LITERALS];
    const char *why;
    int64_t numel = 1;
    for (unsigned i = 0; i < t->shape.rank; i++)
        numel = t->shape.dim[i] < 0 || numel > MAX_LITERALS ? -1 : numel * t->shape.dim[i];
    char elements[32];
    snprintf(elements, sizeof elements, "%lld element%s", (long long)numel, numel == 1 ? "" : "s");
    if (l->list && numel != l->n)
        return lex_fail(&p->l, l->at, "const has %u number%s, its type %s", l->n, l->n == 1 ? "" : "s",
                        numel < 0 ? "other elements" : elements);
    for (unsigned i = 0; i < l->n; i++) {
        if (!literal_parse(t->dtype, l->v[i].s, l->v[i].len, &number.attr.konst.bits, &why))
            return lex_fail(&p->l, l->v[i].s, "%s (const of %s)", why, dtype_name(t->dtype));
        ref r = graph_add(p->g, &number, &scalar);
        part[i] = r && t->shape.rank && l->list ? n_reshape(p->g, r, &one) : r;
        if (!part[i])
            return parse_failed(p, at);
    }
    ref r = l->list && t->shape.rank ? n_concat(p->g, part, l->n, 0) : part[0];
    if (r && t->shape.rank)
        r = l->list ? n_reshape(p->g, r, &t->shape) : prepend_unit_axes(p->g, r, t->shape.rank);
    if (r && t->shape.rank && !l->list)
        r = n_expand(p->g, r, &t->shape);
    *out = r;
    return r || parse_failed(p, at);
}
