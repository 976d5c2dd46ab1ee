/* .kir text as a graph (grammar: ir/README.md): the inverse of print.c.
 *
 * A recursive descent over one line at a time.  Nodes are made by graph_add, so the rules and messages are those of the
 * ops; the parser adds the position.  Memory is proportional to the text, whatever numbers it contains, and each byte
 * is read a bounded number of times. */
#include "parse.h"
#include <string.h>

/* Reports the graph's error with the position. */
bool parse_failed(struct parser *p, const char *at)
{
    return p->g->err.code == KL_ERR_MEMORY ? lex_no_memory(&p->l) : lex_fail(&p->l, at, "%s", p->g->err.msg);
}

bool parse_operand(struct parser *p, ref *out)
{
    struct word name;
    uint32_t *slot;
    lex_space(&p->l);
    const char *at = p->l.p;
    if (!lex_value_name(&p->l, &p->nodes, &name, &slot))
        return false;
    if (!*slot)
        return lex_fail(&p->l, at, "%%%.*s is not defined above", name.len > 64 ? 64 : (int)name.len, name.s);
    *out = *slot;
    return true;
}

static bool parse_device_name(struct parser *p, unsigned *out)
{
    lex_space(&p->l);
    const char *at = p->l.p;
    if (p->l.p < p->l.end && *p->l.p >= '0' && *p->l.p <= '9') {
        uint64_t v;
        if (!lex_number(&p->l, MAX_DEVICES - 1, "a device number", &v))
            return false;
        *out = (unsigned)v;
        return true;
    }
    struct word w = lex_word(&p->l);
    int d = device_by_text(w.s, w.len);
    if (d < 0) {
        p->l.p = at;
        return lex_expected(&p->l, "a device: ref, cpu or a number");
    }
    *out = (unsigned)d;
    return true;
}

/* ---- call sites: "# file:line" or "# file:line function" after a node ---- */

static const char *back_over_digits(const char *start, const char *end)
{
    while (end > start && end[-1] >= '0' && end[-1] <= '9')
        end--;
    return end;
}

/* Splits text that ends in ":digits". */
static bool split_line_number(const char *s, const char *end, const char **colon, int *line)
{
    const char *digits = back_over_digits(s, end);
    if (digits == end || end - digits > 9 || digits - 1 <= s || digits[-1] != ':')
        return false;
    *colon = digits - 1;
    *line = 0;
    for (; digits < end; digits++)
        *line = *line * 10 + (*digits - '0');
    return true;
}

/* The site in a comment, 0 for another kind of comment. */
static bool site_comment(struct parser *p, uint32_t *site)
{
    *site = 0;
    if (!lex_at(&p->l, '#'))
        return true;
    const char *s = p->l.p + 1;
    lex_comment(&p->l);
    const char *end = p->l.p, *colon;
    while (s < end && *s == ' ')
        s++;
    while (end > s && (end[-1] == ' ' || end[-1] == '\r' || end[-1] == '\t'))
        end--;
    kl_site at = {0};
    const char *func = NULL, *func_end = end;
    if (!split_line_number(s, end, &colon, &at.line)) {
        func = end;
        while (func > s && is_name_char(func[-1]))
            func--;
        if (func == end || func - 1 <= s || func[-1] != ' ' || !split_line_number(s, func - 1, &colon, &at.line))
            return true;
    }
    if (memchr(s, 0, (size_t)(func_end - s)))
        return true;
    at.file = graph_string(p->g, s, (size_t)(colon - s));
    at.func = func ? graph_string(p->g, func, (size_t)(func_end - func)) : NULL;
    if (at.file && (at.func || !func))
        *site = graph_site(p->g, &at);
    return !p->g->err.code || parse_failed(p, s);
}

/* ---- lines ---- */

/* A const's literal: kept as text until the dtype is known. */
bool parse_literal(struct parser *p, struct word *w)
{
    lex_space(&p->l);
    w->s = p->l.p;
    while (p->l.p < p->l.end && *p->l.p && (is_name_char(*p->l.p) || strchr("+-()", *p->l.p)))
        p->l.p++;
    w->len = (size_t)(p->l.p - w->s);
    return w->len || lex_expected(&p->l, "a number");
}

static struct leaves *leaves_of(struct graph *g, unsigned op)
{
    return op == OP_input ? &g->input : op == OP_state ? &g->state : op == OP_slot ? &g->slot : NULL;
}

struct leaf_text { const char *at; uint32_t ordinal; char name[sizeof ((struct leaf *)0)->name]; };

static bool leaf_text(struct parser *p, struct leaf_text *l)
{
    uint64_t ordinal;
    lex_space(&p->l);
    *l = (struct leaf_text){.at = p->l.p};
    if (!lex_number(&p->l, UINT32_MAX - 1, "an ordinal", &ordinal))
        return false;
    l->ordinal = (uint32_t)ordinal;
    return !lex_at(&p->l, '"') || lex_quoted(&p->l, l->name, sizeof l->name);
}

/* A leaf is declared by its first mention; later ones must agree. */
static bool mention_leaf(struct parser *p, unsigned op, const struct leaf_text *l, const struct type *t)
{
    struct leaves *all = leaves_of(p->g, op);
    if (l->ordinal > all->n)
        return lex_fail(&p->l, l->at, "%s %u comes before %s %u: ordinals ascend from 0", opinfo[op].name,
                       l->ordinal, opinfo[op].name, all->n);
    if (l->ordinal == all->n)
        return graph_leaf(p->g, all, t->dtype, &t->shape, l->name) != LEAF_NONE || parse_failed(p, l->at);
    const struct leaf *known = &all->v[l->ordinal];
    if (known->dtype != t->dtype || !shape_equal(&p->g->shape[known->shape], &t->shape) ||
        strcmp(known->name, l->name))
        return lex_fail(&p->l, l->at, "%s %u has another name or type above", opinfo[op].name, l->ordinal);
    return true;
}

/* The written type must be the one that the op's rule gives. */
static bool check_type(struct parser *p, ref r, const struct type *t)
{
    const struct node *n = node_at(p->g, r);
    const struct shape *s = node_shape(p->g, r);
    if (n->dtype == t->dtype && shape_equal(s, &t->shape))
        return true;
    char given[SHAPE_TEXT], written[SHAPE_TEXT];
    return lex_fail(&p->l, t->at, "%s gives %s%s, not %s%s", opinfo[n->op].name, dtype_name(n->dtype),
                   shape_text_in(p->g, s, given, sizeof given), dtype_name(t->dtype),
                   shape_text_in(p->g, &t->shape, written, sizeof written));
}

bool parse_group(struct parser *p, ref r, uint64_t group, const char *at)
{
    uint32_t old = p->group_cap;
    if (!mem_reserve(&p->group, &p->group_cap, r + 1, sizeof *p->group))
        return lex_no_memory(&p->l);
    for (uint32_t i = old; i < p->group_cap; i++)
        p->group[i] = GROUP_NONE;
    p->group[r] = (uint32_t)group;
    if (group >= p->ngroup) {
        p->ngroup = (uint32_t)group + 1;
        p->group_at = at;
        p->group_line = p->l.line;
        p->group_line_start = p->l.line_start;
    }
    return true;
}

bool parse_tail(struct parser *p, bool regions, struct tail *t)
{
    *t = (struct tail){.device = p->home_device, .group = GROUP_NONE};
    lex_space(&p->l);
    const char *at = p->l.p;
    if (lex_take(&p->l, '@')) {
        t->device_at = at;
        if (!parse_device_name(p, &t->device))
            return false;
    }
    lex_space(&p->l);
    t->group_at = p->l.p;
    if (lex_at(&p->l, 'g') &&
        (!lex_need_word(&p->l, "group") || !lex_number(&p->l, GROUP_NONE - 2, "a group", &t->group)))
        return false;
    if ((regions && !lex_need(&p->l, '{', "'{' and the regions")) || !site_comment(p, &t->site) || !lex_end_line(&p->l))
        return false;
    p->g->cur_site = t->site;
    p->g->cur_device = (uint16_t)t->device;
    return true;
}

bool parse_device(struct parser *p, ref r, const struct tail *t, const char *at)
{
    const struct node *n = node_at(p->g, r);
    char here[DEVICE_TEXT], there[DEVICE_TEXT];
    return !t->device_at || n->device == t->device ||
           lex_fail(&p->l, at, "%s is on device %s, as its operands are, not on %s", opinfo[n->op].name,
                    device_label(n->device, here), device_label(t->device, there));
}

/* "op operands attributes : type ..." after "%name =" */
static bool parse_node(struct parser *p, ref *out)
{
    lex_space(&p->l);
    const char *op_at = p->l.p;
    struct word w = lex_word(&p->l);
    unsigned op = OP_nil + 1;
    while (op < OP_COUNT && !word_is(w, opinfo[op].name))
        op++;
    if (op == OP_COUNT) {
        p->l.p = op_at;
        return lex_expected(&p->l, "an op such as add");
    }
    if (op_is_region(op))
        return parse_region_op(p, op, out);
    struct node n = {.op = (uint16_t)op, .nin = opinfo[op].nin};
    struct leaf_text leaf = {0};
    struct literals value = {0};
    struct attr_lists lists = {0};
    lex_space(&p->l);
    if (leaves_of(p->g, op) ? !leaf_text(p, &leaf) : op == OP_const && !parse_list(p, &value))
        return false;
    for (unsigned i = 0; i < n.nin; i++) {
        if (i >= op_min_operands(op) && !lex_at(&p->l, ','))
            n.nin = (uint8_t)i;
        else if ((i && !lex_need(&p->l, ',', "',' and the next operand")) || !parse_operand(p, &n.in[i]))
            return false;
    }
    if (lex_at(&p->l, ','))
        return lex_fail(&p->l, p->l.p, "%s takes %s%u operand%s", opinfo[op].name,
                        op_min_operands(op) < n.nin ? "at most " : "", n.nin, n.nin == 1 ? "" : "s");
    struct type t;
    if (!parse_attrs(p, &n, &lists))
        return false;
    struct tail tail;
    if (!parse_type(p, &t) || !parse_tail(p, false, &tail))
        return false;
    if (leaves_of(p->g, op)) {
        if (!mention_leaf(p, op, &leaf, &t))
            return false;
        n.attr.leaf.index = leaf.ordinal;
    }
    n.dtype = (uint8_t)t.dtype;
    ref r = NIL;
    if (op == OP_expand && !(n.in[0] = prepend_unit_axes(p->g, n.in[0], t.shape.rank)))
        return parse_failed(p, op_at);
    if (op == OP_const ? !parse_const(p, &n, &value, &t, op_at, &r)
        : lists.naxes > 1 ? !parse_axes(p, &n, &lists, op_at, &r)
                          : !(r = graph_add(p->g, &n, &t.shape)) && !parse_failed(p, op_at))
        return false;
    *out = r;
    return check_type(p, r, &t) && parse_device(p, r, &tail, tail.device_at) &&
           (tail.group == GROUP_NONE || parse_group(p, r, tail.group, tail.group_at));
}

static bool node_line(struct parser *p)
{
    const char *at = p->l.p;
    struct word name;
    uint32_t *slot;
    ref r = NIL;
    if (!lex_value_name(&p->l, &p->nodes, &name, &slot))
        return false;
    if (*slot)
        return lex_fail(&p->l, at, "%%%.*s is defined twice", name.len > 64 ? 64 : (int)name.len, name.s);
    if (!lex_need(&p->l, '=', "'='") || !parse_node(p, &r))
        return false;
    slot = names_at(&p->nodes, name.s, name.len); /* operands may have moved the table */
    return slot ? (*slot = r) : lex_no_memory(&p->l);
}

/* "input 0 "x" : f32[2]": a leaf that no node reads */
static bool leaf_line(struct parser *p, unsigned op)
{
    struct leaf_text l;
    struct type t;
    return leaf_text(p, &l) && parse_type(p, &t) && lex_end_line(&p->l) && mention_leaf(p, op, &l, &t);
}

static bool assign_line(struct parser *p)
{
    uint64_t state;
    ref value;
    lex_space(&p->l);
    const char *at = p->l.p;
    if (!lex_number(&p->l, UINT32_MAX - 1, "a state's ordinal", &state) || !lex_need(&p->l, '=', "'='") ||
        !parse_operand(p, &value) || !lex_end_line(&p->l))
        return false;
    return graph_output(p->g, OUT_ASSIGN, value, (uint32_t)state) || parse_failed(p, at);
}

/* return %x, or return %x "name"; without one an %x that is no number is the name. */
static bool return_line(struct parser *p)
{
    char quoted[sizeof p->g->input.v->name];
    ref value;
    lex_space(&p->l);
    const char *at = p->l.p, *name = at + 1;
    if (!parse_operand(p, &value))
        return false;
    size_t len = (size_t)(p->l.p - name);
    bool written = lex_at(&p->l, '"');
    if (written && !lex_quoted(&p->l, quoted, sizeof quoted))
        return false;
    if (!lex_end_line(&p->l))
        return false;
    bool named = written ? *quoted != 0 : strspn(name, "0123456789") < len;
    return (graph_output(p->g, OUT_RETURN, value, 0) &&
            (!named || graph_name_output(p->g, written ? quoted : name, written ? strlen(quoted) : len, written))) ||
           parse_failed(p, at);
}

static bool parse_graph_line(struct parser *p)
{
    if (*p->l.p == '%')
        return node_line(p);
    const char *at = p->l.p;
    struct word w = lex_word(&p->l);
    for (unsigned op = OP_nil + 1; op < OP_COUNT; op++)
        if (leaves_of(p->g, op) && word_is(w, opinfo[op].name))
            return leaf_line(p, op);
    if (word_is(w, "assign"))
        return assign_line(p);
    if (word_is(w, "return"))
        return return_line(p);
    p->l.p = at;
    return lex_expected(&p->l, "a line '%x = ...', 'assign N = %x' or 'return %x', or '}'");
}

static bool parse_graph_header(struct parser *p)
{
    lex_lines(&p->l);
    if (!lex_title(&p->l, "graph", p->g->name, sizeof p->g->name))
        return false;
    if (lex_take(&p->l, '@') && !parse_device_name(p, &p->home_device))
        return false;
    return lex_need(&p->l, '{', "'{'") && lex_end_line(&p->l);
}

/* Passes the groups to the graph, one entry for each node. */
static bool finish_groups(struct parser *p)
{
    if (!p->group)
        return true;
    if (p->ngroup >= p->g->nnode) {
        p->l.line = p->group_line;
        p->l.line_start = p->group_line_start;
        return lex_fail(&p->l, p->group_at, "group %u in a graph of %u nodes", p->ngroup - 1,
                       p->g->nnode - 1);
    }
    p->g->group = mem_alloc(p->g->nnode * sizeof *p->g->group);
    if (!p->g->group)
        return lex_no_memory(&p->l);
    for (ref r = 0; r < p->g->nnode; r++)
        p->g->group[r] = r < p->group_cap ? p->group[r] : GROUP_NONE;
    p->g->ngroup = p->ngroup;
    return true;
}

bool parse_whole(struct parser *p)
{
    if (!parse_graph_header(p) || !parse_symbols(p))
        return false;
    for (lex_lines(&p->l); !lex_at(&p->l, '}'); lex_lines(&p->l)) {
        if (p->l.p == p->l.end)
            return lex_expected(&p->l, "'}'");
        if (!parse_graph_line(p))
            return false;
    }
    const char *brace = p->l.p++;
    struct err broken = {0};
    if (!finish_groups(p))
        return false;
    if (!graph_verify(p->g, &broken))
        return lex_fail(&p->l, brace, "%s", broken.msg);
    return lex_end_line(&p->l);
}

static bool parse_graph_text(struct parser *p)
{
    if (!parse_whole(p))
        return false;
    lex_lines(&p->l);
    return p->l.p == p->l.end || lex_expected(&p->l, "nothing behind the graph's '}'");
}

struct graph *graph_parse(const char *s, size_t len, const char *file, struct err *e)
{
    struct parser p = {.l = {.p = s, .end = s + len, .line_start = s, .line = 1, .file = file, .e = e}};
    p.g = graph_new("graph");
    if (!p.g) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return NULL;
    }
    bool ok = parse_graph_text(&p);
    p.g->cur_site = 0;
    p.g->cur_device = (uint16_t)p.home_device;
    names_free(&p.nodes);
    mem_free(p.group);
    if (!ok) {
        graph_free(p.g);
        return NULL;
    }
    return p.g;
}
