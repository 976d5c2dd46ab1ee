/* Region ops in .kir text: operands without number, the types of the results, and the regions as whole graphs; or, of
 * a custom op, its name and attributes. */
#include "ir/graph/custom.h"
#include "parse.h"
#include <stdlib.h>
#include <string.h>

/* A region: a whole graph, on lines of its own. */
static bool parse_one_region(struct parser *p, struct graph **out)
{
    struct parser c = {.l = p->l, .g = graph_new("graph"), .depth = p->depth + 1};
    if (!c.g)
        return lex_no_memory(&p->l);
    symbols_share(c.g, p->g);
    bool ok = parse_whole(&c);
    c.g->cur_site = 0;
    c.g->cur_device = (uint16_t)c.home_device;
    names_free(&c.nodes);
    mem_free(c.group);
    if (ok)
        *out = c.g;
    else
        graph_free(c.g);
    p->l = c.l;
    return ok;
}

/* "{ region region }", of which '{' has been read */
static bool parse_region_list(struct parser *p, unsigned op, struct graph **list, const char **brace)
{
    for (uint32_t i = 0; i < op_regions(op); i++) {
        lex_lines(&p->l);
        if (!parse_one_region(p, &list[i]))
            return false;
    }
    lex_lines(&p->l);
    lex_space(&p->l);
    *brace = p->l.p;
    return lex_need(&p->l, '}', "'}' behind the regions") && lex_end_line(&p->l);
}

struct region_text {              /* the parts of a region op's line besides the node */
    ref *in;           uint32_t nin, in_cap;
    struct type *type; uint32_t ntype, type_cap;
    struct graph *region[2];
    struct custom custom;
    uint32_t attr_cap;
};

static bool region_operands(struct parser *p, struct region_text *t)
{
    if (!lex_at(&p->l, '%'))
        return true;
    do {
        ref r;
        if (!mem_reserve(&t->in, &t->in_cap, t->nin + 1, sizeof *t->in))
            return lex_no_memory(&p->l);
        if (!parse_operand(p, &r))
            return false;
        t->in[t->nin++] = r;
    } while (lex_take(&p->l, ','));
    return true;
}

static bool result_types(struct parser *p, struct region_text *t)
{
    struct type first;
    if (!parse_type(p, &first))
        return false;
    for (;;) {
        if (!mem_reserve(&t->type, &t->type_cap, t->ntype + 1, sizeof *t->type))
            return lex_no_memory(&p->l);
        t->type[t->ntype++] = first;
        if (!lex_take(&p->l, ','))
            return true;
        if (!parse_more_type(p, &first))
            return false;
    }
}

/* "attr(00ff..)": bytes, if the word is next */
static bool parse_region_bytes(struct parser *p, struct region_text *t)
{
    struct custom *c = &t->custom;
    lex_space(&p->l);
    const char *at = p->l.p;
    if (!word_is(lex_word(&p->l), "attr")) {
        p->l.p = at;
        return true;
    }
    if (!lex_need(&p->l, '(', "'('"))
        return false;
    lex_space(&p->l);
    at = p->l.p;
    if (lex_at(&p->l, '"')) {
        char s[MAX_ATTR_TEXT + 1];
        if (!lex_quoted(&p->l, s, sizeof s))
            return false;
        c->nattr = (uint32_t)strlen(s);
        if (!mem_reserve(&c->attr, &t->attr_cap, c->nattr + 1, 1))
            return lex_no_memory(&p->l);
        memcpy(c->attr, s, c->nattr);
        return lex_need(&p->l, ')', "')'");
    }
    struct word w = lex_word(&p->l);
    for (size_t i = 0; i < w.len; i++)
        if (!strchr("0123456789abcdef", w.s[i]) || w.len % 2)
            return lex_fail(&p->l, at, "attr is bytes of two digits each, 0 to 9 and a to f");
    if (!w.len)
        return lex_expected(&p->l, "bytes such as 00ff");
    if (w.len / 2 > CUSTOM_ATTR)
        return lex_fail(&p->l, at, "attr has at most %d bytes", CUSTOM_ATTR);
    if (!mem_reserve(&c->attr, &t->attr_cap, (uint32_t)(w.len / 2), 1))
        return lex_no_memory(&p->l);
    for (c->nattr = 0; c->nattr < w.len / 2; c->nattr++) {
        char digits[3] = {w.s[2 * c->nattr], w.s[2 * c->nattr + 1], 0};
        ((unsigned char *)c->attr)[c->nattr] = (unsigned char)strtoul(digits, NULL, 16);
    }
    return lex_need(&p->l, ')', "')'");
}

/* The written types must be those of the results. */
static bool check_results(struct parser *p, ref r, const struct region_text *t, const char *at)
{
    const struct node *n = node_at(p->g, r);
    if (region_results(p->g, n) != t->ntype)
        return lex_fail(&p->l, at, "%s has %u results, but %u types are written", opinfo[n->op].name,
                       region_results(p->g, n), t->ntype);
    for (uint32_t i = 0; i < t->ntype; i++) {
        struct shape s;
        unsigned dtype = region_result(p->g, n, i, &s);
        char given[SHAPE_TEXT], written[SHAPE_TEXT];
        if (dtype != t->type[i].dtype || !shape_equal(&s, &t->type[i].shape))
            return lex_fail(&p->l, at, "%s: result %u is %s%s, not %s%s", opinfo[n->op].name, i, dtype_name(dtype),
                           shape_text_in(p->g, &s, given, sizeof given), dtype_name(t->type[i].dtype),
                           shape_text_in(p->g, &t->type[i].shape, written, sizeof written));
    }
    return true;
}

static bool region_parts(struct parser *p, struct node *n, struct region_text *t, ref *out)
{
    struct tail tail;
    const char *brace;
    if (p->depth == MAX_REGION_DEPTH)
        return lex_fail(&p->l, p->l.p, "regions in regions are more than %d deep", MAX_REGION_DEPTH);
    if (!region_operands(p, t) || !parse_attrs(p, n, NULL) || !result_types(p, t) ||
        !parse_tail(p, true, &tail) || !parse_region_list(p, n->op, t->region, &brace))
        return false;
    ref r = graph_add_region(p->g, n, t->in, t->nin, t->region);
    t->region[0] = t->region[1] = NULL;
    if (!r)
        return parse_failed(p, brace);
    *out = r;
    return check_results(p, r, t, brace) && parse_device(p, r, &tail, brace) &&
           (tail.group == GROUP_NONE || parse_group(p, r, tail.group, tail.group_at));
}

/* "name" operands attr(..) : types */
static bool custom_parts(struct parser *p, struct node *n, struct region_text *t, ref *out)
{
    struct tail tail;
    struct custom *c = &t->custom;
    lex_space(&p->l);
    const char *at = p->l.p;
    if (!lex_at(&p->l, '"'))
        return lex_expected(&p->l, "the op's name in quotes");
    if (!lex_quoted(&p->l, c->name, sizeof c->name))
        return false;
    if (!c->name[0])
        return lex_fail(&p->l, at, "a custom op has a name");
    if (!region_operands(p, t) || !parse_region_bytes(p, t) || !parse_attrs(p, n, NULL) || !result_types(p, t) ||
        !parse_tail(p, false, &tail))
        return false;
    c->nresult = t->ntype;
    c->result = mem_alloc(t->ntype * sizeof *c->result);
    for (uint32_t i = 0; c->result && i < t->ntype; i++)
        c->result[i] = (struct custom_result){t->type[i].dtype, graph_shape(p->g, &t->type[i].shape)};
    if (!c->result || p->g->err.code)
        return lex_no_memory(&p->l);
    ref r = graph_add_custom(p->g, n, t->in, t->nin, c);
    if (!r)
        return parse_failed(p, at);
    *out = r;
    return parse_device(p, r, &tail, tail.device_at) &&
           (tail.group == GROUP_NONE || parse_group(p, r, tail.group, tail.group_at));
}

bool parse_region_op(struct parser *p, unsigned op, ref *out)
{
    struct node n = {.op = (uint16_t)op};
    struct region_text t = {0};
    bool ok = op == OP_custom ? custom_parts(p, &n, &t, out) : region_parts(p, &n, &t, out);
    for (int i = 0; i < 2; i++)
        graph_free(t.region[i]);
    mem_free(t.in);
    mem_free(t.type);
    mem_free(t.custom.result);
    mem_free(t.custom.attr);
    return ok;
}
