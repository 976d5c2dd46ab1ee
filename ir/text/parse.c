/* .kir text as a graph (grammar: ir/README.md): the inverse of print.c.
 *
 * A recursive descent over one line at a time.  Nodes are made by graph_add, so each rule is the op's own
 * and so is its message; the parser adds the position.  Memory is proportional to the text, whatever
 * numbers stand in it, and each byte is looked at a bounded number of times. */
#include "parse.h"
#include <string.h>

/* Passes on the graph's own error with the position. */
bool parse_failed(struct parser *p, const char *at)
{
    return p->g->err.code == KL_ERR_MEMORY ? lex_no_memory(&p->l) : lex_fail(&p->l, at, "%s", p->g->err.msg);
}

/* %name: *slot is where its node stands in the table of names. */
static bool node_name(struct parser *p, struct word *name, uint32_t **slot)
{
    if (!lex_need(&p->l, '%', "a value such as %x"))
        return false;
    *name = (struct word){p->l.p, 0};
    if (p->l.p == p->l.end || !is_name_char(*p->l.p))
        return lex_expected(&p->l, "a name behind '%'");
    *name = lex_word(&p->l);
    *slot = names_at(&p->nodes, name->s, name->len);
    return *slot || lex_no_memory(&p->l);
}

bool parse_operand(struct parser *p, ref *out)
{
    struct word name;
    uint32_t *slot;
    lex_space(&p->l);
    const char *at = p->l.p;
    if (!node_name(p, &name, &slot))
        return false;
    if (!*slot)
        return lex_fail(&p->l, at, "%%%.*s is not defined above", name.len > 64 ? 64 : (int)name.len, name.s);
    *out = *slot;
    return true;
}

static bool device(struct parser *p, unsigned *out)
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

/* ---- attributes ---- */

/* axis numbers up to a closing character, none twice */
static bool axes(struct parser *p, char close, const char *what, uint8_t *list, unsigned *n)
{
    uint32_t seen = 0;
    for (*n = 0; !lex_at(&p->l, close); ++*n) {
        uint64_t axis;
        if (*n && !lex_need(&p->l, ',', what))
            return false;
        lex_space(&p->l);
        const char *at = p->l.p;
        if (!lex_number(&p->l, KL_MAX_RANK - 1, "an axis", &axis))
            return false;
        if (seen >> axis & 1)
            return lex_fail(&p->l, at, "axis %u is named twice", (unsigned)axis);
        seen |= 1u << axis;
        list[*n] = (uint8_t)axis;
    }
    p->l.p++;
    return true;
}

/* "axes of a; axes of b" as two lists of one length */
static bool axis_pairs(struct parser *p, uint32_t *a, uint32_t *b, uint8_t *count)
{
    uint8_t la[KL_MAX_RANK], lb[KL_MAX_RANK];
    unsigned na, nb;
    const char *at = p->l.p;
    if (!axes(p, ';', "',' or ';'", la, &na) || !axes(p, ')', "',' or ')'", lb, &nb))
        return false;
    if (na != nb)
        return lex_fail(&p->l, at, "%u axes of the first operand go with %u of the second", na, nb);
    *a = *b = 0;
    for (unsigned i = 0; i < na; i++) {
        *a = axis_put(*a, i, la[i]);
        *b = axis_put(*b, i, lb[i]);
    }
    *count = (uint8_t)na;
    return true;
}

/* "i32)" */
static bool sum_dtype(struct parser *p, struct node *n)
{
    if (!lex_need_word(&p->l, dtype_name(KL_I32)) || !lex_need(&p->l, ')', "')'"))
        return false;
    n->attr.dot.sum = KL_I32;
    return true;
}

/* "lanes N, chunk N)", for dot "lanes N, kblock N)", for attention "block N)" */
static bool graph_parse_order(struct parser *p, struct node *n)
{
    bool dot = n->op == OP_dot;
    uint64_t lanes, length;
    if (n->op == OP_attention) {
        if (!lex_need_word(&p->l, "block") || !lex_number(&p->l, UINT32_MAX, "a number of keys", &length) ||
            !lex_need(&p->l, ')', "')'"))
            return false;
        n->attr.attention.block = (uint32_t)length;
        return true;
    }
    uint64_t most_lanes = dot ? UINT8_MAX : UINT32_MAX;
    if (!lex_need_word(&p->l, "lanes") || !lex_number(&p->l, most_lanes, "a number of lanes", &lanes) ||
        !lex_need(&p->l, ',', "','") || !lex_need_word(&p->l, dot ? "kblock" : "chunk") ||
        !lex_number(&p->l, dot ? UINT32_MAX : UINT64_MAX, "a length", &length) || !lex_need(&p->l, ')', "')'"))
        return false;
    if (dot) {
        n->attr.dot.lanes = (uint8_t)lanes;
        n->attr.dot.kblock = (uint32_t)length;
    } else {
        n->attr.reduce.lanes = (uint32_t)lanes;
        n->attr.reduce.chunk = length;
    }
    return true;
}

enum {
    ATTR_AXES = 1, ATTR_PERM = 2, ATTR_AXIS = 4, ATTR_BATCH = 8, ATTR_CONTRACT = 16, ATTR_ORDER = 32,
    ATTR_START = 64, ATTR_COUNT = 128, ATTR_STEP = 256, ATTR_LOW = 512, ATTR_HIGH = 1024, ATTR_INTERIOR = 2048,
    ATTR_SIZE = 4096, ATTR_STRIDE = 8192, ATTR_DILATION = 16384, ATTR_KIND = 32768,
    ATTR_INDEX = 1 << 16, ATTR_CARRIED = 1 << 17, ATTR_SCANNED = 1 << 18, ATTR_LENGTH = 1 << 19,
        ATTR_DIRECTION = 1 << 20,
    ATTR_KEEP = 1 << 21, ATTR_SCALE = 1 << 22, ATTR_SUM = 1 << 23,
    ATTR_SCAN = ATTR_CARRIED | ATTR_SCANNED | ATTR_LENGTH,
    ATTR_SLICE = ATTR_AXIS | ATTR_START | ATTR_COUNT | ATTR_STEP,
    ATTR_WINDOW = ATTR_AXIS | ATTR_SIZE | ATTR_STRIDE | ATTR_DILATION,
    ATTR_PAD = ATTR_AXIS | ATTR_LOW | ATTR_HIGH | ATTR_INTERIOR,
};

static const struct { const char *word; unsigned bit; } attr_words[] = {
    {"axes", ATTR_AXES},   {"perm", ATTR_PERM},         {"axis", ATTR_AXIS},
    {"batch", ATTR_BATCH}, {"contract", ATTR_CONTRACT}, {"order", ATTR_ORDER},
    {"start", ATTR_START}, {"count", ATTR_COUNT},       {"step", ATTR_STEP},
    {"low", ATTR_LOW},     {"high", ATTR_HIGH},         {"interior", ATTR_INTERIOR},
    {"size", ATTR_SIZE},   {"stride", ATTR_STRIDE},     {"dilation", ATTR_DILATION},
    {"index", ATTR_INDEX}, {"carried", ATTR_CARRIED},   {"scanned", ATTR_SCANNED},
    {"length", ATTR_LENGTH},
    {"kind", ATTR_KIND},   {"direction", ATTR_DIRECTION}, {"keep", ATTR_KEEP},
    {"scale", ATTR_SCALE}, {"sum", ATTR_SUM},
};
enum { ATTR_WORDS = sizeof attr_words / sizeof *attr_words };

static unsigned attrs_allowed(unsigned op)
{
    return op_is_reduce(op)   ? ATTR_AXES | ATTR_ORDER
           : op == OP_flip    ? ATTR_AXES
           : op == OP_permute ? ATTR_PERM
           : op == OP_iota    ? ATTR_AXIS
           : op == OP_concat  ? ATTR_AXIS
           : op == OP_gather  ? ATTR_AXIS
           : op_is_cumulative(op) ? ATTR_AXIS
           : op == OP_dynamic_slice  ? ATTR_AXIS | ATTR_COUNT
           : op == OP_dynamic_update ? ATTR_AXIS
           : op == OP_scatter ? ATTR_AXIS | ATTR_KIND
           : op == OP_argsort ? ATTR_AXIS | ATTR_DIRECTION
           : op == OP_slice   ? ATTR_SLICE
           : op == OP_window  ? ATTR_WINDOW
           : op == OP_pad     ? ATTR_PAD
           : op == OP_proj    ? ATTR_INDEX
           : op == OP_grad    ? ATTR_KEEP
           : op == OP_scan    ? ATTR_SCAN
           : op == OP_while   ? ATTR_CARRIED
           : op == OP_custom_grad ? ATTR_CARRIED
           : op == OP_attention ? ATTR_SCALE | ATTR_ORDER
           : op == OP_dot     ? ATTR_BATCH | ATTR_CONTRACT | ATTR_SUM | ATTR_ORDER
                              : 0;
}

static unsigned attrs_required(unsigned op)
{
    return attrs_allowed(op) & (ATTR_AXES | ATTR_PERM | ATTR_SLICE | ATTR_WINDOW | ATTR_PAD | ATTR_KIND |
                                ATTR_DIRECTION | ATTR_INDEX | ATTR_SCAN | ATTR_SCALE);
}

/* "N)" as one of the numbers of a slice, a window or a pad; some may be symbolic */
static bool length(struct parser *p, struct node *n, unsigned bit)
{
    uint64_t v = 0;
    int64_t d = 0;
    bool symbolic = p->g->symbols && (bit & (ATTR_START | ATTR_COUNT | ATTR_LOW | ATTR_HIGH | ATTR_LENGTH));
    if (symbolic ? !parse_dim(p, &d) : !lex_number(&p->l, INT64_MAX - (bit == ATTR_KEEP), "a number of elements", &v))
        return false;
    if (!lex_need(&p->l, ')', "')'"))
        return false;
    if (bit == ATTR_KEEP)
        v++; /* 0 is without */
    int64_t *to = bit == ATTR_KEEP       ? &n->attr.grad.keep
                  : bit == ATTR_START      ? &n->attr.slice.start
                  : bit == ATTR_COUNT    ? &n->attr.slice.count
                  : bit == ATTR_STEP     ? &n->attr.slice.step
                  : bit == ATTR_SIZE     ? &n->attr.window.size
                  : bit == ATTR_STRIDE   ? &n->attr.window.stride
                  : bit == ATTR_DILATION ? &n->attr.window.dilation
                  : bit == ATTR_LOW      ? &n->attr.pad.low
                  : bit == ATTR_HIGH     ? &n->attr.pad.high
                  : bit == ATTR_LENGTH   ? &n->attr.region.length
                                         : &n->attr.pad.interior;
    *to = symbolic ? d : (int64_t)v;
    return true;
}

/* "N)" as a number of proj or of a region op */
static bool count_attr(struct parser *p, struct node *n, unsigned bit)
{
    uint64_t v;
    if (!lex_number(&p->l, UINT32_MAX, "a number", &v) || !lex_need(&p->l, ')', "')'"))
        return false;
    *(bit == ATTR_INDEX     ? &n->attr.proj.index
      : bit == ATTR_CARRIED ? &n->attr.region.carried
                            : &n->attr.region.scanned) = (uint32_t)v;
    return true;
}

/* A word without a number; false: not one that n may have, or have again. */
static bool graph_parse_mark(struct word w, struct node *n)
{
    unsigned flag = word_is(w, "stop") ? MARK_STOP : word_is(w, "remat") ? MARK_REMAT : 0;
    unsigned region = word_is(w, "reverse") && n->op == OP_scan            ? REGION_REVERSE
                      : word_is(w, "backward") && n->op == OP_checkpoint ? REGION_REMAT
                                                                           : 0;
    if (word_is(w, "causal") && n->op == OP_attention && !n->attr.attention.causal) {
        n->attr.attention.causal = 1;
        return true;
    }
    bool known = flag ? !(n->flags & flag) : region && !n->attr.region.flags;
    if (known) {
        n->flags |= (uint16_t)flag;
        if (region)
            n->attr.region.flags = region;
    }
    return known;
}

/* "word)" as scatter's kind */
static bool kind(struct parser *p, struct node *n)
{
    lex_space(&p->l);
    const char *at = p->l.p;
    struct word w = lex_word(&p->l);
    int k = scatter_kind_by_text(w.s, w.len);
    if (k < 0) {
        p->l.p = at;
        return lex_expected(&p->l, "add, max, min or set");
    }
    n->attr.scatter.kind = (uint32_t)k;
    return lex_need(&p->l, ')', "')'");
}

/* "word)" as argsort's direction */
static bool direction(struct parser *p, struct node *n)
{
    lex_space(&p->l);
    const char *at = p->l.p;
    struct word w = lex_word(&p->l);
    n->attr.sort.descending = word_is(w, "descending");
    if (!n->attr.sort.descending && !word_is(w, "ascending")) {
        p->l.p = at;
        return lex_expected(&p->l, "ascending or descending");
    }
    return lex_need(&p->l, ')', "')'");
}

/* "NUMBER)" as attention's scale, an f64 */
static bool scale(struct parser *p, struct node *n)
{
    struct word w;
    const char *why;
    lex_space(&p->l);
    const char *at = p->l.p;
    w.s = at;
    while (p->l.p < p->l.end && *p->l.p && *p->l.p != ')' && *p->l.p != '(')
        p->l.p++;
    if (p->l.p < p->l.end && *p->l.p == '(') /* bits(..) */
        while (p->l.p < p->l.end && *p->l.p && *p->l.p++ != ')') {}
    w.len = (size_t)(p->l.p - w.s);
    if (!literal_parse(KL_F64, w.s, w.len, &n->attr.attention.scale, &why))
        return lex_fail(&p->l, at, "%s", why);
    return lex_need(&p->l, ')', "')'");
}

/* One attribute behind its word and '('. */
static bool attr(struct parser *p, struct node *n, unsigned bit)
{
    uint8_t list[KL_MAX_RANK];
    unsigned count;
    const char *at = p->l.p;
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
            return lex_fail(&p->l, at, "perm names %u axes of an operand of rank %u", count,
                           node_shape(p->g, n->in[0])->rank);
        memcpy(n->attr.permute.perm, list, count);
        return true;
    case ATTR_AXIS:
        if (!axes(p, ')', "')'", list, &count))
            return false;
        if (count != 1)
            return lex_fail(&p->l, at, "expected one axis, found %u", count);
        n->attr.axis.axis = list[0];
        return true;
    case ATTR_BATCH:
        return axis_pairs(p, &n->attr.dot.batch_a, &n->attr.dot.batch_b, &n->attr.dot.nbatch);
    case ATTR_CONTRACT:
        return axis_pairs(p, &n->attr.dot.con_a, &n->attr.dot.con_b, &n->attr.dot.ncon);
    case ATTR_SUM:
        return sum_dtype(p, n);
    case ATTR_ORDER:
        return graph_parse_order(p, n);
    case ATTR_INDEX: case ATTR_CARRIED: case ATTR_SCANNED:
        return count_attr(p, n, bit);
    case ATTR_KIND:
        return kind(p, n);
    case ATTR_SCALE:
        return scale(p, n);
    case ATTR_DIRECTION:
        return direction(p, n);
    default:
        return length(p, n, bit);
    }
}

static bool expected_attr(struct parser *p, unsigned allowed)
{
    char what[192] = "";
    size_t n = 0;
    for (unsigned i = 0; i < ATTR_WORDS; i++)
        if (allowed & attr_words[i].bit)
            n += (size_t)snprintf(what + n, sizeof what - n, "%s(...), ", attr_words[i].word);
    snprintf(what + n, sizeof what - n, "stop or ':' and the result's type");
    return lex_expected(&p->l, what);
}

/* Attributes and flags, up to the ':' of the type. */
bool parse_attrs(struct parser *p, struct node *n)
{
    unsigned seen = 0, allowed = attrs_allowed(n->op);
    while (!lex_at(&p->l, ':')) {
        const char *at = p->l.p;
        struct word w = lex_word(&p->l);
        unsigned i = 0;
        while (i < ATTR_WORDS && !word_is(w, attr_words[i].word))
            i++;
        if (graph_parse_mark(w, n))
            continue;
        if (i == ATTR_WORDS || !(allowed & ~seen & attr_words[i].bit)) {
            p->l.p = at;
            return expected_attr(p, allowed & ~seen);
        }
        seen |= attr_words[i].bit;
        if (!lex_need(&p->l, '(', "'('") || !attr(p, n, attr_words[i].bit))
            return false;
    }
    unsigned missing = attrs_required(n->op) & ~seen;
    for (unsigned i = 0; i < ATTR_WORDS; i++)
        if (missing & attr_words[i].bit)
            return lex_fail(&p->l, p->l.p, "%s needs %s(...)", opinfo[n->op].name, attr_words[i].word);
    return true;
}

/* ---- lines ---- */

/* A const's literal: kept as it stands until the dtype is known. */
static bool graph_parse_literal(struct parser *p, struct word *w)
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

/* The type that was written must be the one the op gives. */
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
        if (!device(p, &t->device))
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

/* "op operands attributes : type ..." behind "%name =" */
static bool node(struct parser *p, ref *out)
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
    struct word value = {0};
    if (leaves_of(p->g, op) ? !leaf_text(p, &leaf) : op == OP_const && !graph_parse_literal(p, &value))
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
    if (!parse_attrs(p, &n))
        return false;
    struct tail tail;
    const char *why;
    if (!parse_type(p, &t) || !parse_tail(p, false, &tail))
        return false;
    if (leaves_of(p->g, op)) {
        if (!mention_leaf(p, op, &leaf, &t))
            return false;
        n.attr.leaf.index = leaf.ordinal;
    } else if (op == OP_const && !literal_parse(t.dtype, value.s, value.len, &n.attr.konst.bits, &why)) {
        return lex_fail(&p->l, value.s, "%s (const of %s)", why, dtype_name(t.dtype));
    }
    n.dtype = (uint8_t)t.dtype;
    ref r = graph_add(p->g, &n, &t.shape);
    if (!r)
        return parse_failed(p, op_at);
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
    if (!node_name(p, &name, &slot))
        return false;
    if (*slot)
        return lex_fail(&p->l, at, "%%%.*s is defined twice", name.len > 64 ? 64 : (int)name.len, name.s);
    if (!lex_need(&p->l, '=', "'='") || !node(p, &r))
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

static bool line(struct parser *p)
{
    if (*p->l.p == '%')
        return node_line(p);
    const char *at = p->l.p;
    struct word w = lex_word(&p->l);
    for (unsigned op = OP_input; op <= OP_slot; op++)
        if (leaves_of(p->g, op) && word_is(w, opinfo[op].name))
            return leaf_line(p, op);
    if (word_is(w, "assign"))
        return assign_line(p);
    if (word_is(w, "return"))
        return return_line(p);
    p->l.p = at;
    return lex_expected(&p->l, "a line '%x = ...', 'assign N = %x' or 'return %x', or '}'");
}

static bool header(struct parser *p)
{
    lex_lines(&p->l);
    if (!lex_need_word(&p->l, "graph") || !lex_need(&p->l, '@', "'@' and the graph's name"))
        return false;
    const char *at = p->l.p;
    if (p->l.p < p->l.end && *p->l.p == '"') {
        if (!lex_quoted(&p->l, p->g->name, sizeof p->g->name))
            return false;
    } else {
        struct word w = p->l.p < p->l.end && is_name_char(*p->l.p) ? lex_word(&p->l) : (struct word){p->l.p, 0};
        if (!w.len)
            return lex_expected(&p->l, "the graph's name");
        if (w.len >= sizeof p->g->name)
            return lex_fail(&p->l, at, "a graph's name has at most %zu bytes", sizeof p->g->name - 1);
        memcpy(p->g->name, w.s, w.len);
        p->g->name[w.len] = 0;
    }
    if (lex_take(&p->l, '@') && !device(p, &p->home_device))
        return false;
    return lex_need(&p->l, '{', "'{'") && lex_end_line(&p->l);
}

/* Hands the groups that were read to the graph, one entry a node. */
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
    if (!header(p) || !parse_symbols(p))
        return false;
    for (lex_lines(&p->l); !lex_at(&p->l, '}'); lex_lines(&p->l)) {
        if (p->l.p == p->l.end)
            return lex_expected(&p->l, "'}'");
        if (!line(p))
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

static bool text(struct parser *p)
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
