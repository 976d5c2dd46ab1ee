/* Describes where two graphs first differ: the node, the field, and the node's line in both. */
#include "ir/ir.h"
#include <string.h>

/* The name of the first field that differs; likely causes come before their consequences. */
static const char *first_different_field(const struct graph *a, const struct node *x, const struct graph *b,
                                         const struct node *y)
{
    if (x->op != y->op)
        return "op";
    if (x->dtype != y->dtype)
        return "dtype";
    if (x->nin != y->nin || node_nin(x) != node_nin(y))
        return "number of operands";
    for (unsigned i = 0; i < node_nin(x); i++)
        if (node_in(a, x, i) != node_in(b, y, i))
            return "operands";
    char s[SHAPE_TEXT], t[SHAPE_TEXT];
    if (strcmp(shape_text_in(a, &a->shape[x->shape], s, sizeof s), shape_text_in(b, &b->shape[y->shape], t, sizeof t)))
        return "shape";
    if (x->device != y->device)
        return "device";
    if (x->flags != y->flags)
        return "gradient mark";
    return op_is_region(x->op) ? "region or attributes" : x->op == OP_const ? "value" : "attributes";
}

uint64_t graph_similarity(const struct graph *a, const struct graph *b)
{
    ref r = graph_common(a, b);
    uint64_t like = (uint64_t)r << 4 | (uint64_t)(a->nnode == b->nnode) << 3;
    if (r < a->nnode && r < b->nnode) {
        const struct node *x = node_at(a, r), *y = node_at(b, r);
        char s[SHAPE_TEXT], t[SHAPE_TEXT];
        shape_text_in(a, &a->shape[x->shape], s, sizeof s);
        shape_text_in(b, &b->shape[y->shape], t, sizeof t);
        like += 3u * (x->op == y->op && x->device == y->device) + 2u * !strcmp(s, t) + (x->dtype == y->dtype);
    } else {
        like += graph_same(a, b);
    }
    return like;
}

static void put_site(const struct graph *g, ref r, char *text, size_t n)
{
    site_text(&g->site[node_at(g, r)->site], "", ": ", text, n);
}

void graph_difference(const struct graph *g, const struct graph *known, char *text, size_t n)
{
    char site[256];
    ref r = graph_common(g, known);
    if (r < g->nnode && r < known->nnode) {
        char *here = node_text(g, r), *there = node_text(known, r);
        const struct node *x = node_at(g, r);
        put_site(g, r, site, sizeof site);
        snprintf(text, n,
                 "%snode %u, %s: its %s differs from trace \"%s\", the nearest known: it is\n  %s\nand was\n  %s",
                 site, r, opinfo[x->op].name, first_different_field(g, x, known, node_at(known, r)), known->name, here
                     ? here : "",
                 there ? there : "");
        mem_free(here);
        mem_free(there);
    } else if (r < g->nnode || r < known->nnode) {
        const struct graph *longer = r < g->nnode ? g : known;
        put_site(longer, r, site, sizeof site);
        snprintf(text, n, "%snode %u, %s: trace \"%s\", the nearest known, %s", site, r,
                 opinfo[node_at(longer, r)->op].name, known->name,
                     r < g->nnode ? "ended before it" : "went on with it");
    } else {
        ref last = r - 1;
        for (uint32_t i = 0; i < g->nout; i++) {
            const struct output *o = &g->out[i], *p = i < known->nout ? &known->out[i] : NULL;
            if (p && !memcmp(o, p, sizeof *o))
                continue;
            last = o->value;
            break;
        }
        put_site(g, last, site, sizeof site);
        snprintf(text, n,
                 "%snode %u, %s: the nodes are those of trace \"%s\", the nearest known, but not what is kept and "
                 "assigned",
                 site, last, opinfo[node_at(g, last)->op].name, known->name);
    }
}
