/* .kir text as a graph (grammar: ir/README.md): the inverse of print.c.
 *
 * A recursive descent over one line at a time.  Nodes are made by graph_add, so each rule is the op's own
 * and so is its message; the parser adds the position.  Memory is proportional to the text, whatever
 * numbers stand in it, and each byte is looked at a bounded number of times. */
#include "text.h"
#include <limits.h>
#include <stdarg.h>
#include <string.h>

struct parser {
    const char *p, *end;          /* the rest of the text */
    const char *line_start;
    uint32_t line;
    const char *file;
    struct graph *g;
    struct err *e;
    struct names nodes;           /* %name -> node */
    unsigned home_device;         /* of nodes that name none */
    uint32_t *group;              /* per node, once a node has one */
    uint32_t group_cap, ngroup;
    const char *group_at, *group_line_start; /* where the largest group stands */
    uint32_t group_line;
};

struct type { const char *at; unsigned dtype; struct shape shape; };

/* ---- errors ---- */

static bool fail_at(struct parser *p, const char *at, kl_status code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static bool fail_at(struct parser *p, const char *at, kl_status code, const char *fmt, ...)
{
    char msg[768];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return err_set(p->e, code, "%s%s%u:%zu: %s", p->file ? p->file : "", p->file ? ":" : "", p->line,
                   (size_t)(at - p->line_start) + 1, msg);
}

/* What stands at p, for "found ...": a word or a character, short and printable. */
static const char *found(const struct parser *p, char buf[48])
{
    if (p->p == p->end)
        return "the end of the text";
    unsigned char c = (unsigned char)*p->p;
    if (c == '\n' || c == '#')
        return "the end of the line";
    int n = 0;
    while (n < 24 && p->p + n < p->end && is_name_char(p->p[n]))
        n++;
    if (n)
        snprintf(buf, 48, "'%.*s'%s", n, p->p, n == 24 ? "..." : "");
    else if (c < 0x20 || c >= 0x7f)
        snprintf(buf, 48, "byte 0x%02x", c);
    else
        snprintf(buf, 48, "'%c'", c);
    return buf;
}

static bool expected(struct parser *p, const char *what)
{
    char buf[48];
    return fail_at(p, p->p, KL_ERR_PARSE, "expected %s, found %s", what, found(p, buf));
}

/* Passes on the graph's own error with the position. */
static bool graph_failed(struct parser *p, const char *at)
{
    kl_status code = p->g->err.code == KL_ERR_MEMORY ? KL_ERR_MEMORY : KL_ERR_PARSE;
    return fail_at(p, at, code, "%s", p->g->err.msg);
}

static bool no_memory(struct parser *p) { return fail_at(p, p->p, KL_ERR_MEMORY, "out of memory"); }

/* ---- tokens ---- */

static void skip_space(struct parser *p)
{
    while (p->p < p->end && (*p->p == ' ' || *p->p == '\t' || *p->p == '\r'))
        p->p++;
}

static void skip_comment(struct parser *p)
{
    const char *nl = p->p < p->end ? memchr(p->p, '\n', (size_t)(p->end - p->p)) : NULL;
    p->p = nl ? nl : p->end;
}

/* Blank lines and comment lines, up to the next thing that counts. */
static void skip_lines(struct parser *p)
{
    for (;;) {
        skip_space(p);
        if (p->p < p->end && *p->p == '#')
            skip_comment(p);
        if (p->p == p->end || *p->p != '\n')
            return;
        p->line_start = ++p->p;
        p->line++;
    }
}

static bool end_line(struct parser *p)
{
    skip_space(p);
    if (p->p < p->end && *p->p == '#')
        skip_comment(p);
    return p->p == p->end || *p->p == '\n' || expected(p, "the end of the line");
}

static bool at_char(struct parser *p, char c)
{
    skip_space(p);
    return p->p < p->end && *p->p == c;
}

static bool take(struct parser *p, char c)
{
    return at_char(p, c) && p->p++;
}

static bool need(struct parser *p, char c, const char *what) { return take(p, c) || expected(p, what); }

struct word { const char *s; size_t len; };

static struct word take_word(struct parser *p)
{
    skip_space(p);
    struct word w = {p->p, 0};
    while (p->p < p->end && is_name_char(*p->p))
        p->p++;
    w.len = (size_t)(p->p - w.s);
    return w;
}

static bool word_is(struct word w, const char *s) { return strlen(s) == w.len && !memcmp(w.s, s, w.len); }

/* A decimal number of at most `max`. */
static bool number(struct parser *p, uint64_t max, const char *what, uint64_t *out)
{
    skip_space(p);
    const char *start = p->p;
    uint64_t v = 0;
    for (; p->p < p->end && *p->p >= '0' && *p->p <= '9'; p->p++) {
        unsigned d = (unsigned)(*p->p - '0');
        if (v > (max - d) / 10 || max < d)
            return fail_at(p, start, KL_ERR_PARSE, "%s is above %llu", what, (unsigned long long)max);
        v = v * 10 + d;
    }
    *out = v;
    return p->p > start || expected(p, what);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "text" into buf, at most size - 1 bytes. */
static bool quoted(struct parser *p, char *buf, size_t size)
{
    const char *start = p->p++;
    for (size_t n = 0;; n++) {
        if (p->p == p->end || *p->p == '\n')
            return fail_at(p, start, KL_ERR_PARSE, "the name that starts here has no closing '\"'");
        if (*p->p == '"') {
            buf[n] = 0;
            return ++p->p;
        }
        if (n + 1 == size)
            return fail_at(p, start, KL_ERR_PARSE, "the name that starts here is longer than %zu bytes", size - 1);
        char c = *p->p++;
        if (c == '\\') {
            const char *s = p->p;
            int64_t left = p->end - s;
            if (left >= 1 && (*s == '"' || *s == '\\')) {
                c = *p->p++;
            } else if (left >= 3 && *s == 'x' && hex_digit(s[1]) >= 0 && hex_digit(s[2]) >= 0) {
                c = (char)(hex_digit(s[1]) << 4 | hex_digit(s[2]));
                p->p += 3;
            } else {
                return fail_at(p, s - 1, KL_ERR_PARSE, "expected \\\", \\\\ or \\xNN");
            }
        }
        if (!c)
            return fail_at(p, p->p - 1, KL_ERR_PARSE, "a name cannot hold a zero byte");
        buf[n] = c;
    }
}

/* %name: *slot is where its node stands in the table of names. */
static bool node_name(struct parser *p, struct word *name, uint32_t **slot)
{
    if (!need(p, '%', "a value such as %x"))
        return false;
    *name = (struct word){p->p, 0};
    if (p->p == p->end || !is_name_char(*p->p))
        return expected(p, "a name behind '%'");
    *name = take_word(p);
    *slot = names_at(&p->nodes, name->s, name->len);
    return *slot || no_memory(p);
}

static bool operand(struct parser *p, ref *out)
{
    struct word name;
    uint32_t *slot;
    skip_space(p);
    const char *at = p->p;
    if (!node_name(p, &name, &slot))
        return false;
    if (!*slot)
        return fail_at(p, at, KL_ERR_PARSE, "%%%.*s is not defined above", name.len > 64 ? 64 : (int)name.len, name.s);
    *out = *slot;
    return true;
}

static bool type(struct parser *p, struct type *t)
{
    *t = (struct type){0};
    if (!need(p, ':', "':' and the result's type"))
        return false;
    skip_space(p);
    t->at = p->p;
    struct word w = take_word(p);
    int dtype = dtype_parse(w.s, w.len);
    if (dtype < 0) {
        p->p = t->at;
        return expected(p, "a dtype such as f32");
    }
    t->dtype = (unsigned)dtype;
    if (!need(p, '[', "'[' and the dimensions"))
        return false;
    while (!take(p, ']')) {
        uint64_t d;
        if (t->shape.rank && !need(p, ',', "',' or ']'"))
            return false;
        skip_space(p);
        if (t->shape.rank == KL_MAX_RANK)
            return fail_at(p, p->p, KL_ERR_PARSE, "a tensor has at most %d dimensions", KL_MAX_RANK);
        if (!number(p, INT64_MAX, "a dimension", &d))
            return false;
        t->shape.dim[t->shape.rank++] = (int64_t)d;
    }
    int64_t n;
    return shape_numel(&t->shape, &n) || fail_at(p, t->at, KL_ERR_PARSE, "a tensor of this shape has too many elements");
}

static bool device(struct parser *p, unsigned *out)
{
    skip_space(p);
    const char *at = p->p;
    if (p->p < p->end && *p->p >= '0' && *p->p <= '9') {
        uint64_t v;
        if (!number(p, UINT16_MAX, "a device number", &v))
            return false;
        *out = (unsigned)v;
        return true;
    }
    struct word w = take_word(p);
    int d = device_by_text(w.s, w.len);
    if (d < 0) {
        p->p = at;
        return expected(p, "a device: ref, cpu or a number");
    }
    *out = (unsigned)d;
    return true;
}

/* ---- call sites: "# file:line" or "# file:line function" behind a node ---- */

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

/* The site that a comment names, 0 if it is a comment of another kind. */
static bool site_comment(struct parser *p, uint32_t *site)
{
    *site = 0;
    if (!at_char(p, '#'))
        return true;
    const char *s = p->p + 1;
    skip_comment(p);
    const char *end = p->p, *colon;
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
    return !p->g->err.code || graph_failed(p, s);
}

/* ---- attributes ---- */

/* axis numbers up to a closing character, none twice */
static bool axes(struct parser *p, char close, const char *what, uint8_t *list, unsigned *n)
{
    uint32_t seen = 0;
    for (*n = 0; !at_char(p, close); ++*n) {
        uint64_t axis;
        if (*n && !need(p, ',', what))
            return false;
        skip_space(p);
        const char *at = p->p;
        if (!number(p, KL_MAX_RANK - 1, "an axis", &axis))
            return false;
        if (seen >> axis & 1)
            return fail_at(p, at, KL_ERR_PARSE, "axis %u is named twice", (unsigned)axis);
        seen |= 1u << axis;
        list[*n] = (uint8_t)axis;
    }
    p->p++;
    return true;
}

/* "axes of a; axes of b" as two lists of one length */
static bool axis_pairs(struct parser *p, uint32_t *a, uint32_t *b, uint8_t *count)
{
    uint8_t la[KL_MAX_RANK], lb[KL_MAX_RANK];
    unsigned na, nb;
    const char *at = p->p;
    if (!axes(p, ';', "',' or ';'", la, &na) || !axes(p, ')', "',' or ')'", lb, &nb))
        return false;
    if (na != nb)
        return fail_at(p, at, KL_ERR_PARSE, "%u axes of the first operand go with %u of the second", na, nb);
    *a = *b = 0;
    for (unsigned i = 0; i < na; i++) {
        *a = axis_put(*a, i, la[i]);
        *b = axis_put(*b, i, lb[i]);
    }
    *count = (uint8_t)na;
    return true;
}

static bool need_word(struct parser *p, const char *word)
{
    skip_space(p);
    const char *at = p->p;
    if (word_is(take_word(p), word))
        return true;
    p->p = at;
    char quoted_word[16];
    snprintf(quoted_word, sizeof quoted_word, "'%s'", word);
    return expected(p, quoted_word);
}

/* "lanes N, chunk N)" or, for dot, "lanes N, kblock N)" */
static bool order(struct parser *p, struct node *n)
{
    bool dot = n->op == OP_dot;
    uint64_t lanes, length;
    if (!need_word(p, "lanes") || !number(p, dot ? UINT16_MAX : UINT32_MAX, "a number of lanes", &lanes) ||
        !need(p, ',', "','") || !need_word(p, dot ? "kblock" : "chunk") ||
        !number(p, dot ? UINT32_MAX : UINT64_MAX, "a length", &length) || !need(p, ')', "')'"))
        return false;
    if (dot) {
        n->attr.dot.lanes = (uint16_t)lanes;
        n->attr.dot.kblock = (uint32_t)length;
    } else {
        n->attr.reduce.lanes = (uint32_t)lanes;
        n->attr.reduce.chunk = length;
    }
    return true;
}

enum { ATTR_AXES = 1, ATTR_PERM = 2, ATTR_AXIS = 4, ATTR_BATCH = 8, ATTR_CONTRACT = 16, ATTR_ORDER = 32 };

static const struct { const char *word; unsigned bit; } attr_words[] = {
    {"axes", ATTR_AXES},   {"perm", ATTR_PERM},         {"axis", ATTR_AXIS},
    {"batch", ATTR_BATCH}, {"contract", ATTR_CONTRACT}, {"order", ATTR_ORDER},
};
enum { ATTR_WORDS = sizeof attr_words / sizeof *attr_words };

static unsigned attrs_allowed(unsigned op)
{
    return op_is_reduce(op)   ? ATTR_AXES | ATTR_ORDER
           : op == OP_permute ? ATTR_PERM
           : op == OP_iota    ? ATTR_AXIS
           : op == OP_dot     ? ATTR_BATCH | ATTR_CONTRACT | ATTR_ORDER
                              : 0;
}

static unsigned attrs_required(unsigned op) { return attrs_allowed(op) & (ATTR_AXES | ATTR_PERM | ATTR_AXIS); }

/* One attribute behind its word and '('. */
static bool attr(struct parser *p, struct node *n, unsigned bit)
{
    uint8_t list[KL_MAX_RANK];
    unsigned count;
    const char *at = p->p;
    switch (bit) {
    case ATTR_AXES:
        if (!axes(p, ')', "',' or ')'", list, &count))
            return false;
        for (unsigned i = 0; i < count; i++)
            n->attr.reduce.axes |= 1u << list[i];
        return true;
    case ATTR_PERM:
        if (!axes(p, ')', "',' or ')'", list, &count))
            return false;
        if (count != node_shape(p->g, n->in[0])->rank)
            return fail_at(p, at, KL_ERR_PARSE, "perm names %u axes of an operand of rank %u", count,
                           node_shape(p->g, n->in[0])->rank);
        memcpy(n->attr.permute.perm, list, count);
        return true;
    case ATTR_AXIS:
        if (!axes(p, ')', "')'", list, &count))
            return false;
        if (count != 1)
            return fail_at(p, at, KL_ERR_PARSE, "expected one axis, found %u", count);
        n->attr.axis.axis = list[0];
        return true;
    case ATTR_BATCH:
        return axis_pairs(p, &n->attr.dot.batch_a, &n->attr.dot.batch_b, &n->attr.dot.nbatch);
    case ATTR_CONTRACT:
        return axis_pairs(p, &n->attr.dot.con_a, &n->attr.dot.con_b, &n->attr.dot.ncon);
    default:
        return order(p, n);
    }
}

static bool expected_attr(struct parser *p, unsigned allowed)
{
    char what[128] = "";
    size_t n = 0;
    for (unsigned i = 0; i < ATTR_WORDS; i++)
        if (allowed & attr_words[i].bit)
            n += (size_t)snprintf(what + n, sizeof what - n, "%s(...), ", attr_words[i].word);
    snprintf(what + n, sizeof what - n, "stop or ':' and the result's type");
    return expected(p, what);
}

/* Attributes and flags, up to the ':' of the type. */
static bool attrs(struct parser *p, struct node *n)
{
    unsigned seen = 0, allowed = attrs_allowed(n->op);
    while (!at_char(p, ':')) {
        const char *at = p->p;
        struct word w = take_word(p);
        unsigned i = 0;
        while (i < ATTR_WORDS && !word_is(w, attr_words[i].word))
            i++;
        if (word_is(w, "stop") && !(n->flags & MARK_STOP)) {
            n->flags |= MARK_STOP;
            continue;
        }
        if (i == ATTR_WORDS || !(allowed & ~seen & attr_words[i].bit)) {
            p->p = at;
            return expected_attr(p, allowed & ~seen);
        }
        seen |= attr_words[i].bit;
        if (!need(p, '(', "'('") || !attr(p, n, attr_words[i].bit))
            return false;
    }
    unsigned missing = attrs_required(n->op) & ~seen;
    for (unsigned i = 0; i < ATTR_WORDS; i++)
        if (missing & attr_words[i].bit)
            return fail_at(p, p->p, KL_ERR_PARSE, "%s needs %s(...)", opinfo[n->op].name, attr_words[i].word);
    return true;
}

/* ---- lines ---- */

/* A const's literal: kept as it stands until the dtype is known. */
static bool literal(struct parser *p, struct word *w)
{
    skip_space(p);
    w->s = p->p;
    while (p->p < p->end && (is_name_char(*p->p) || *p->p == '-' || *p->p == '+' || *p->p == '(' || *p->p == ')'))
        p->p++;
    w->len = (size_t)(p->p - w->s);
    return w->len || expected(p, "a number");
}

static struct leaves *leaves_of(struct graph *g, unsigned op)
{
    return op == OP_input ? &g->input : op == OP_state ? &g->state : op == OP_slot ? &g->slot : NULL;
}

struct leaf_text { const char *at; uint32_t ordinal; char name[sizeof ((struct leaf *)0)->name]; };

static bool leaf_text(struct parser *p, struct leaf_text *l)
{
    uint64_t ordinal;
    skip_space(p);
    *l = (struct leaf_text){.at = p->p};
    if (!number(p, UINT32_MAX - 1, "an ordinal", &ordinal))
        return false;
    l->ordinal = (uint32_t)ordinal;
    return !at_char(p, '"') || quoted(p, l->name, sizeof l->name);
}

/* A leaf is declared by its first mention; later ones must agree. */
static bool mention_leaf(struct parser *p, unsigned op, const struct leaf_text *l, const struct type *t)
{
    struct leaves *all = leaves_of(p->g, op);
    if (l->ordinal > all->n)
        return fail_at(p, l->at, KL_ERR_PARSE, "%s %u comes before %s %u: ordinals ascend from 0", opinfo[op].name,
                       l->ordinal, opinfo[op].name, all->n);
    if (l->ordinal == all->n)
        return graph_leaf(p->g, all, t->dtype, &t->shape, l->name) != LEAF_NONE || graph_failed(p, l->at);
    const struct leaf *known = &all->v[l->ordinal];
    if (known->dtype != t->dtype || !shape_equal(&p->g->shape[known->shape], &t->shape) ||
        strcmp(known->name, l->name))
        return fail_at(p, l->at, KL_ERR_PARSE, "%s %u has another name or type above", opinfo[op].name, l->ordinal);
    return true;
}

/* The type that was written must be the one the op gives. */
static bool check_type(struct parser *p, ref r, const struct type *t)
{
    const struct node *n = node_at(p->g, r);
    const struct shape *s = node_shape(p->g, r);
    if (n->dtype == t->dtype && shape_equal(s, &t->shape))
        return true;
    char given[SHAPE_TEXT], written[SHAPE_TEXT];
    return fail_at(p, t->at, KL_ERR_PARSE, "%s gives %s%s, not %s%s", opinfo[n->op].name, dtype_name(n->dtype),
                   shape_text(s, given, sizeof given), dtype_name(t->dtype),
                   shape_text(&t->shape, written, sizeof written));
}

static bool set_group(struct parser *p, ref r, uint64_t group, const char *at)
{
    uint32_t old = p->group_cap;
    if (!mem_reserve(&p->group, &p->group_cap, r + 1, sizeof *p->group))
        return no_memory(p);
    for (uint32_t i = old; i < p->group_cap; i++)
        p->group[i] = GROUP_NONE;
    p->group[r] = (uint32_t)group;
    if (group >= p->ngroup) {
        p->ngroup = (uint32_t)group + 1;
        p->group_at = at;
        p->group_line = p->line;
        p->group_line_start = p->line_start;
    }
    return true;
}

/* "@device group N # site", each optional */
static bool node_tail(struct parser *p, unsigned *dev, uint64_t *group, const char **group_at, uint32_t *site)
{
    *dev = p->home_device;
    *group = GROUP_NONE;
    if (take(p, '@') && !device(p, dev))
        return false;
    skip_space(p);
    *group_at = p->p;
    if (p->p < p->end && *p->p == 'g' && (!need_word(p, "group") || !number(p, GROUP_NONE - 2, "a group", group)))
        return false;
    return site_comment(p, site) && end_line(p);
}

/* "op operands attributes : type ..." behind "%name =" */
static bool node(struct parser *p, ref *out)
{
    skip_space(p);
    const char *op_at = p->p;
    struct word w = take_word(p);
    unsigned op = OP_nil + 1;
    while (op < OP_COUNT && !word_is(w, opinfo[op].name))
        op++;
    if (op == OP_COUNT) {
        p->p = op_at;
        return expected(p, "an op such as add");
    }
    struct node n = {.op = (uint16_t)op, .nin = opinfo[op].nin};
    struct leaf_text leaf = {0};
    struct word value = {0};
    if (leaves_of(p->g, op) ? !leaf_text(p, &leaf) : op == OP_const && !literal(p, &value))
        return false;
    for (unsigned i = 0; i < n.nin; i++)
        if ((i && !need(p, ',', "',' and the next operand")) || !operand(p, &n.in[i]))
            return false;
    if (at_char(p, ','))
        return fail_at(p, p->p, KL_ERR_PARSE, "%s takes %u operand%s", opinfo[op].name, n.nin, n.nin == 1 ? "" : "s");
    struct type t;
    if (!attrs(p, &n))
        return false;
    unsigned dev;
    uint64_t group;
    const char *group_at, *why;
    uint32_t site;
    if (!type(p, &t) || !node_tail(p, &dev, &group, &group_at, &site))
        return false;
    if (leaves_of(p->g, op)) {
        if (!mention_leaf(p, op, &leaf, &t))
            return false;
        n.attr.leaf.index = leaf.ordinal;
    } else if (op == OP_const && !literal_parse(t.dtype, value.s, value.len, &n.attr.konst.bits, &why)) {
        return fail_at(p, value.s, KL_ERR_PARSE, "%s (const of %s)", why, dtype_name(t.dtype));
    }
    n.dtype = (uint8_t)t.dtype;
    p->g->cur_site = site;
    p->g->cur_device = (uint16_t)dev;
    ref r = graph_add(p->g, &n, &t.shape);
    if (!r)
        return graph_failed(p, op_at);
    *out = r;
    return check_type(p, r, &t) && (group == GROUP_NONE || set_group(p, r, group, group_at));
}

static bool node_line(struct parser *p)
{
    const char *at = p->p;
    struct word name;
    uint32_t *slot;
    ref r = NIL;
    if (!node_name(p, &name, &slot))
        return false;
    if (*slot)
        return fail_at(p, at, KL_ERR_PARSE, "%%%.*s is defined twice", name.len > 64 ? 64 : (int)name.len, name.s);
    if (!need(p, '=', "'='") || !node(p, &r))
        return false;
    slot = names_at(&p->nodes, name.s, name.len); /* operands may have moved the table */
    return slot ? (*slot = r) : no_memory(p);
}

/* "input 0 "x" : f32[2]": a leaf that no node reads */
static bool leaf_line(struct parser *p, unsigned op)
{
    struct leaf_text l;
    struct type t;
    return leaf_text(p, &l) && type(p, &t) && end_line(p) && mention_leaf(p, op, &l, &t);
}

static bool assign_line(struct parser *p)
{
    uint64_t state;
    ref value;
    skip_space(p);
    const char *at = p->p;
    if (!number(p, UINT32_MAX - 1, "a state's ordinal", &state) || !need(p, '=', "'='") || !operand(p, &value) ||
        !end_line(p))
        return false;
    return graph_output(p->g, OUT_ASSIGN, value, (uint32_t)state) || graph_failed(p, at);
}

static bool return_line(struct parser *p)
{
    ref value;
    skip_space(p);
    const char *at = p->p;
    return operand(p, &value) && end_line(p) && (graph_output(p->g, OUT_RETURN, value, 0) || graph_failed(p, at));
}

static bool line(struct parser *p)
{
    if (*p->p == '%')
        return node_line(p);
    const char *at = p->p;
    struct word w = take_word(p);
    for (unsigned op = OP_input; op <= OP_slot; op++)
        if (leaves_of(p->g, op) && word_is(w, opinfo[op].name))
            return leaf_line(p, op);
    if (word_is(w, "assign"))
        return assign_line(p);
    if (word_is(w, "return"))
        return return_line(p);
    p->p = at;
    return expected(p, "a line '%x = ...', 'assign N = %x' or 'return %x', or '}'");
}

static bool header(struct parser *p)
{
    skip_lines(p);
    if (!need_word(p, "graph") || !need(p, '@', "'@' and the graph's name"))
        return false;
    const char *at = p->p;
    if (p->p < p->end && *p->p == '"') {
        if (!quoted(p, p->g->name, sizeof p->g->name))
            return false;
    } else {
        struct word w = p->p < p->end && is_name_char(*p->p) ? take_word(p) : (struct word){p->p, 0};
        if (!w.len)
            return expected(p, "the graph's name");
        if (w.len >= sizeof p->g->name)
            return fail_at(p, at, KL_ERR_PARSE, "a graph's name has at most %zu bytes", sizeof p->g->name - 1);
        memcpy(p->g->name, w.s, w.len);
        p->g->name[w.len] = 0;
    }
    if (take(p, '@') && !device(p, &p->home_device))
        return false;
    return need(p, '{', "'{'") && end_line(p);
}

/* Hands the groups that were read to the graph, one entry a node. */
static bool finish_groups(struct parser *p)
{
    if (!p->group)
        return true;
    if (p->ngroup >= p->g->nnode) {
        p->line = p->group_line;
        p->line_start = p->group_line_start;
        return fail_at(p, p->group_at, KL_ERR_PARSE, "group %u in a graph of %u nodes", p->ngroup - 1,
                       p->g->nnode - 1);
    }
    p->g->group = mem_alloc(p->g->nnode * sizeof *p->g->group);
    if (!p->g->group)
        return no_memory(p);
    for (ref r = 0; r < p->g->nnode; r++)
        p->g->group[r] = r < p->group_cap ? p->group[r] : GROUP_NONE;
    p->g->ngroup = p->ngroup;
    return true;
}

static bool text(struct parser *p)
{
    if (!header(p))
        return false;
    for (skip_lines(p); !at_char(p, '}'); skip_lines(p)) {
        if (p->p == p->end)
            return expected(p, "'}'");
        if (!line(p))
            return false;
    }
    const char *brace = p->p++;
    struct err broken = {0};
    if (!graph_verify(p->g, &broken))
        return fail_at(p, brace, KL_ERR_PARSE, "%s", broken.msg);
    if (!end_line(p))
        return false;
    skip_lines(p);
    return p->p == p->end ? finish_groups(p) : expected(p, "nothing behind the graph's '}'");
}

struct graph *graph_parse(const char *s, size_t len, const char *file, struct err *e)
{
    struct parser p = {.p = s, .end = s + len, .line_start = s, .line = 1, .file = file, .e = e};
    p.g = graph_new("graph");
    if (!p.g) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return NULL;
    }
    bool ok = text(&p);
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
