/* A graph as .kir text (grammar: ir/README.md).  Everything that is hashed is written, and also names, call sites and
 * kernel groups, so parse.c reproduces the same graph.
 *
 * A node is named %N by its index, or by the leaf it reads if that name is an identifier and unique.  Printing never
 * fails on an invalid graph, because dumps are used to find the error. */
#include "text.h"
#include <string.h>

enum { SITE_COLUMN = 64 };

struct graph_printer {
    struct text t;
    const struct graph *g;
    bool *named;            /* per node: called by its leaf's name */
    uint32_t declared[3];   /* inputs, states, slots written so far */
    unsigned indent;        /* of the graph's own line */
};

static const struct leaves *leaves_of(const struct graph *g, unsigned op)
{
    return op == OP_input ? &g->input : op == OP_state ? &g->state : op == OP_slot ? &g->slot : NULL;
}

static const struct leaf *leaf_of(const struct graph *g, const struct node *n)
{
    const struct leaves *l = leaves_of(g, n->op);
    return l && n->attr.leaf.index < l->n ? &l->v[n->attr.leaf.index] : NULL;
}

static bool choose_names(struct graph_printer *p)
{
    struct names taken = {0};
    bool ok = true;
    for (ref r = 1; ok && r < p->g->nnode; r++) {
        const struct leaf *l = leaf_of(p->g, &p->g->node[r]);
        if (!l || !is_name(l->name))
            continue;
        uint32_t *owner = names_at(&taken, l->name, strlen(l->name));
        ok = owner;
        if (ok && !*owner) {
            *owner = r;
            p->named[r] = true;
        }
    }
    names_free(&taken);
    return ok;
}

static void put_name(struct graph_printer *p, ref r)
{
    if (r < p->g->nnode && p->named[r])
        text_put(&p->t, "%%%s", leaf_of(p->g, &p->g->node[r])->name);
    else
        text_put(&p->t, "%%%u", r);
}

static void put_dim(struct graph_printer *p, int64_t d)
{
    char buf[DIM_TEXT];
    text_put(&p->t, "%s", dim_text(p->g, d, buf, sizeof buf));
}

static void put_dtype_and_dims(struct graph_printer *p, unsigned dtype, const struct shape *s)
{
    text_put(&p->t, "%s[", dtype_name(dtype));
    for (uint32_t i = 0; i < s->rank && i < KL_MAX_RANK; i++) {
        text_put(&p->t, i ? "," : "");
        put_dim(p, s->dim[i]);
    }
    text_put(&p->t, "]");
}

static void put_type(struct graph_printer *p, unsigned dtype, uint32_t shape)
{
    text_put(&p->t, " : ");
    if (shape < p->g->nshape)
        put_dtype_and_dims(p, dtype, &p->g->shape[shape]);
    else
        text_put(&p->t, "%s[?]", dtype_name(dtype));
}

static void put_leaf(struct graph_printer *p, unsigned op, uint32_t ordinal)
{
    const struct leaves *l = leaves_of(p->g, op);
    text_put(&p->t, "%s %u", opinfo[op].name, ordinal);
    if (ordinal < l->n && l->v[ordinal].name[0]) {
        text_put(&p->t, " ");
        text_quoted(&p->t, l->v[ordinal].name);
    }
}

static void put_indent(struct graph_printer *p, unsigned more) { text_put(&p->t, "%*s", (int)(p->indent + more), ""); }

/* Writes lines for the leaves below `end` that no node has used: ordinals ascend through the text. */
static void declare_leaves(struct graph_printer *p, unsigned op, uint32_t end)
{
    const struct leaves *l = leaves_of(p->g, op);
    uint32_t *seen = &p->declared[op == OP_input ? 0 : op == OP_state ? 1 : 2];
    for (; *seen < end && *seen < l->n; ++*seen) {
        put_indent(p, 2);
        put_leaf(p, op, *seen);
        put_type(p, l->v[*seen].dtype, l->v[*seen].shape);
        text_put(&p->t, "\n");
    }
}

static void mention_leaf(struct graph_printer *p, const struct node *n)
{
    uint32_t *seen = &p->declared[n->op == OP_input ? 0 : n->op == OP_state ? 1 : 2];
    declare_leaves(p, n->op, n->attr.leaf.index);
    if (*seen == n->attr.leaf.index)
        ++*seen;
}

static void put_mask(struct graph_printer *p, const char *word, uint32_t mask)
{
    const char *sep = "";
    text_put(&p->t, " %s(", word);
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1) {
            text_put(&p->t, "%s%u", sep, i);
            sep = ", ";
        }
    text_put(&p->t, ")");
}

static void put_axis_pairs(struct graph_printer *p, const char *word, uint32_t a, uint32_t b, unsigned n)
{
    if (!n)
        return;
    text_put(&p->t, " %s(", word);
    for (unsigned i = 0; i < n && i < KL_MAX_RANK; i++)
        text_put(&p->t, "%s%u", i ? ", " : "", axis_get(a, i));
    text_put(&p->t, "; ");
    for (unsigned i = 0; i < n && i < KL_MAX_RANK; i++)
        text_put(&p->t, "%s%u", i ? ", " : "", axis_get(b, i));
    text_put(&p->t, ")");
}

/* Printable bytes as text, others as digits. */
static void put_bytes(struct graph_printer *p, const struct custom *c)
{
    bool text = c->nattr && c->nattr <= MAX_ATTR_TEXT;
    for (uint32_t i = 0; i < c->nattr; i++)
        text &= ((const unsigned char *)c->attr)[i] >= 0x20 && ((const unsigned char *)c->attr)[i] < 0x7f;
    if (text) {
        char s[MAX_ATTR_TEXT + 1] = "";
        memcpy(s, c->attr, c->nattr);
        text_put(&p->t, " attr(");
        text_quoted(&p->t, s);
        text_put(&p->t, ")");
        return;
    }
    for (uint32_t i = 0; i < c->nattr; i++)
        text_put(&p->t, "%s%02x%s", i ? "" : " attr(", ((const unsigned char *)c->attr)[i],
                 i + 1 < c->nattr ? "" : ")");
}

static void put_order(struct graph_printer *p, const union attr *a, const struct attr_info *i)
{
    for (unsigned k = 0; k < 2 && i->part[k].word; k++)
        text_put(&p->t, "%s%s %llu", k ? ", " : " order(", i->part[k].word,
                 (unsigned long long)attr_get(a, i->part[k].at, i->part[k].size));
    text_put(&p->t, ")");
}

static bool attr_is_written(const union attr *a, const struct attr_info *i)
{
    uint64_t v = i->kind == ATTR_PAIRS ? attr_get(a, i->part[1].at, i->part[1].size) : 0;
    for (unsigned k = 0; i->kind == ATTR_ORDER && k < 2 && i->part[k].word; k++)
        v |= attr_get(a, i->part[k].at, i->part[k].size);
    if (i->size && i->kind != ATTR_PAIRS)
        v = i->kind == ATTR_PERM ? 1 : attr_get(a, i->at, i->size);
    return !i->optional || (i->kind == ATTR_FLAG ? v & i->more : v);
}

static void put_attr(struct graph_printer *p, const struct node *n, const struct attr_info *i)
{
    const union attr *a = &n->attr;
    uint64_t v = i->size && i->kind != ATTR_PERM ? attr_get(a, i->at, i->size) : 0;
    uint32_t rank = n->shape < p->g->nshape ? p->g->shape[n->shape].rank : 0;
    unsigned word = 0;
    switch ((enum attr_kind)i->kind) {
    case ATTR_AXES: put_mask(p, i->word, (uint32_t)v); return;
    case ATTR_ORDER: put_order(p, a, i); return;
    case ATTR_FLAG: text_put(&p->t, " %s", i->word); return;
    case ATTR_PAIRS:
        put_axis_pairs(p, i->word, (uint32_t)v, (uint32_t)attr_get(a, i->part[0].at, i->part[0].size),
                       (unsigned)attr_get(a, i->part[1].at, i->part[1].size));
        return;
    default: break;
    }
    text_put(&p->t, " %s(", i->word);
    if (i->kind == ATTR_PERM)
        for (uint32_t k = 0; k < rank && k < KL_MAX_RANK; k++)
            text_put(&p->t, "%s%u", k ? ", " : "", (unsigned)attr_get(a, i->at + k, 1));
    else if (i->kind == ATTR_DIM)
        put_dim(p, (int64_t)v);
    else if (i->kind == ATTR_REAL)
        text_literal(&p->t, KL_F64, v);
    else if (i->kind == ATTR_WORD) {
        while (i->words[word] && word + i->more != v)
            word++;
        text_put(&p->t, "%s", i->words[word] ? i->words[word] : "?");
    } else
        text_put(&p->t, "%lld", (long long)v - i->more);
    text_put(&p->t, ")");
}

static void put_attrs(struct graph_printer *p, const struct node *n)
{
    if (n->op == OP_custom)
        put_bytes(p, node_custom(p->g, n));
    for (const struct attr_info *i = opinfo[n->op].attr; i && i->word; i++)
        if (attr_is_written(&n->attr, i))
            put_attr(p, n, i);
}

static void put_device(struct graph_printer *p, unsigned device)
{
    if (device_text(device))
        text_put(&p->t, " @%s", device_text(device));
    else
        text_put(&p->t, " @%u", device);
}

/* A call site as a trailing comment.  Control characters, which would end it, print as '?'. */
static void put_site(struct graph_printer *p, uint32_t site, size_t line_start)
{
    if (!site || site >= p->g->nsite || !p->g->site[site].file || !p->g->site[site].file[0])
        return;
    const kl_site *s = &p->g->site[site];
    text_pad(&p->t, line_start, SITE_COLUMN);
    text_put(&p->t, "# ");
    for (const char *c = s->file; *c; c++)
        text_put(&p->t, "%c", (unsigned char)*c < 0x20 ? '?' : *c);
    text_put(&p->t, ":%d", s->line > 0 ? s->line : 0);
    if (s->func && is_name(s->func))
        text_put(&p->t, " %s", s->func);
}

/* Does a region op have all its operands and regions, with their yields? */
static bool has_parts(const struct graph *g, const struct node *n)
{
    if ((uint64_t)n->attr.region.operands + n->attr.region.count > g->noperand ||
        (uint64_t)n->attr.region.first + op_regions(n->op) > g->nregion)
        return false;
    if (n->op == OP_custom && (n->attr.region.length < 0 || n->attr.region.length >= g->ncustom))
        return false;
    for (uint32_t i = 0; n->op == OP_custom && i < node_custom(g, n)->nresult; i++)
        if (node_custom(g, n)->result[i].shape >= g->nshape)
            return false;
    for (uint32_t i = 0; i < op_regions(n->op); i++) {
        const struct graph *b = node_region(g, n, i);
        for (uint32_t k = 0; k < b->nout; k++)
            if (b->out[k].value >= b->nnode || b->node[b->out[k].value].shape >= b->nshape)
                return false;
    }
    return true;
}

static void put_result_types(struct graph_printer *p, const struct node *n)
{
    for (uint32_t i = 0; i < region_results(p->g, n); i++) {
        struct shape s;
        unsigned dtype = region_result(p->g, n, i, &s);
        text_put(&p->t, i ? ", " : " : ");
        put_dtype_and_dims(p, dtype, &s);
    }
}

static void put_whole(struct text *t, const struct graph *g, unsigned indent);

static void put_regions(struct graph_printer *p, const struct node *n)
{
    for (uint32_t i = 0; i < op_regions(n->op); i++)
        put_whole(&p->t, node_region(p->g, n, i), p->indent + 4);
    put_indent(p, 2);
    text_put(&p->t, "}\n");
}

static void graph_print_put_node(struct graph_printer *p, ref r, unsigned home_device)
{
    const struct node *n = &p->g->node[r];
    if (n->op == OP_nil || n->op >= OP_COUNT || (op_is_region(n->op) && !has_parts(p->g, n))) {
        put_indent(p, 2);
        text_put(&p->t, "%%%u = ?\n", r);
        return;
    }
    if (leaves_of(p->g, n->op))
        mention_leaf(p, n);
    size_t line_start = p->t.len;
    put_indent(p, 2);
    put_name(p, r);
    text_put(&p->t, " = ");
    if (leaves_of(p->g, n->op)) {
        put_leaf(p, n->op, n->attr.leaf.index);
    } else {
        text_put(&p->t, "%s", opinfo[n->op].name);
        if (n->op == OP_custom) {
            text_put(&p->t, " ");
            text_quoted(&p->t, node_custom(p->g, n)->name);
        }
        for (unsigned i = 0; i < node_nin(n) && (op_is_region(n->op) || i < MAX_OPERANDS); i++) {
            text_put(&p->t, i ? ", " : " ");
            put_name(p, node_in(p->g, n, i));
        }
        if (n->op == OP_const) {
            text_put(&p->t, " ");
            text_literal(&p->t, n->dtype, n->attr.konst.bits);
        } else {
            put_attrs(p, n);
        }
    }
    if (n->flags & MARK_STOP)
        text_put(&p->t, " stop");
    if (n->flags & MARK_REMAT)
        text_put(&p->t, " remat");
    if (n->flags & MARK_HIDDEN_RESULT)
        text_put(&p->t, " hidden");
    if (n->flags & MARK_HIDDEN_LEFT)
        text_put(&p->t, " hidden_left");
    if (n->flags & MARK_HIDDEN_RIGHT)
        text_put(&p->t, " hidden_right");
    if (op_is_region(n->op))
        put_result_types(p, n);
    else
        put_type(p, n->dtype, n->shape);
    if (n->device != home_device)
        put_device(p, n->device);
    if (p->g->group && p->g->group[r] != GROUP_NONE)
        text_put(&p->t, " group %u", p->g->group[r]);
    if (op_regions(n->op))
        text_put(&p->t, " {");
    put_site(p, n->site, line_start);
    text_put(&p->t, "\n");
    if (op_regions(n->op))
        put_regions(p, n);
}

static void put_graph(struct graph_printer *p)
{
    const struct graph *g = p->g;
    unsigned home_device = graph_device(g);
    put_indent(p, 0);
    text_put(&p->t, "graph @");
    if (is_name(g->name))
        text_put(&p->t, "%s", g->name);
    else
        text_quoted(&p->t, g->name);
    if (home_device)
        put_device(p, home_device);
    text_put(&p->t, " {\n");
    for (uint32_t i = 0; !p->indent && g->symbols && i < g->symbols->n; i++) /* the outermost graph's */
        text_put(&p->t, "  symbol %s %lld..%lld\n", g->symbols->v[i].name, (long long)g->symbols->v[i].low,
                 (long long)g->symbols->v[i].high);
    for (ref r = 1; r < g->nnode; r++)
        graph_print_put_node(p, r, home_device);
    declare_leaves(p, OP_input, UINT32_MAX);
    declare_leaves(p, OP_state, UINT32_MAX);
    declare_leaves(p, OP_slot, UINT32_MAX);
    for (uint32_t i = 0; i < g->nout; i++) {
        put_indent(p, 2);
        if (g->out[i].kind == OUT_ASSIGN)
            text_put(&p->t, "assign %u = ", g->out[i].state);
        else
            text_put(&p->t, "return ");
        put_name(p, g->out[i].value);
        bool written;
        const char *name = graph_output_name(g, i, &written);
        if (written) {
            text_put(&p->t, " ");
            text_quoted(&p->t, name);
        }
        text_put(&p->t, "\n");
    }
    put_indent(p, 0);
    text_put(&p->t, "}\n");
}

static void put_whole(struct text *t, const struct graph *g, unsigned indent)
{
    struct graph_printer p = {.t = *t, .g = g, .named = mem_alloc((g->nnode + 1) * sizeof(bool)), .indent = indent};
    if (p.named && choose_names(&p))
        put_graph(&p);
    else
        p.t.failed = true;
    mem_free(p.named);
    *t = p.t;
}

char *graph_text(const struct graph *g)
{
    struct text t = {0};
    put_whole(&t, g, 0);
    return text_take(&t);
}

bool graph_print(const struct graph *g, FILE *f) { return text_print(graph_text(g), f); }

char *node_text(const struct graph *g, ref r)
{
    struct graph_printer p = {.g = g, .named = mem_alloc((g->nnode + 1) * sizeof(bool)),
                        .declared = {UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    if (p.named)
        graph_print_put_node(&p, r, graph_device(g));
    mem_free(p.named);
    if (!p.t.s)
        return NULL;
    p.t.s[strcspn(p.t.s, "\n")] = 0; /* a region op's line continues with its regions */
    size_t indent = strspn(p.t.s, " ");
    memmove(p.t.s, p.t.s + indent, strlen(p.t.s + indent) + 1);
    return p.t.s;
}
