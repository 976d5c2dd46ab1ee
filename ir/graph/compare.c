/* Compares two graphs node by node and describes the changes.
 *
 * Nodes are first matched by everything except their operands: a longest common subsequence, which keeps the order.
 * The remaining nodes are matched by op, then by result type and operands.  A matched node counts as unchanged if its
 * operands match, too; a node is not reported as changed only because an operand changed. */
#include "ir/text/text.h"
#include <string.h>

/* maximum entries of the subsequence table; lookahead in nodes where there is no table */
enum { MAX_TABLE = 1 << 22, WINDOW = 64 };

struct differ {
    const struct graph *a, *b;
    struct hash128 *ka, *kb;       /* hash of each node without its operands */
    ref *to, *from;                /* for each node of a, and of b: its match; NIL: none */
    struct text *t;
    unsigned indent;
    struct graph_changes *n;
};

/* ---- nodes without their operands ---- */

static struct shape stable_shape(const struct graph *g, const struct shape *from)
{
    struct shape s = {.rank = from->rank};
    for (uint32_t i = 0; i < s.rank; i++)
        s.dim[i] = dim_digest(g, from->dim[i]);
    return s;
}

static bool same_shape(const struct differ *d, uint32_t x, uint32_t y)
{
    struct shape s = stable_shape(d->a, &d->a->shape[x]), t = stable_shape(d->b, &d->b->shape[y]);
    return shape_equal(&s, &t);
}

static struct hash128 key_of(const struct graph *g, ref r)
{
    struct node n = g->node[r];
    struct { struct node n; struct shape shape; struct hash128 custom; } k;
    int64_t *dim[2];
    memset(&k, 0, sizeof k);
    k.shape = stable_shape(g, &g->shape[n.shape]);
    for (unsigned i = node_dims(&n, dim); i-- > 0;)
        *dim[i] = dim_digest(g, *dim[i]);
    if (n.op == OP_custom) {
        const struct custom *c = node_custom(g, &g->node[r]);
        struct { char name[CUSTOM_NAME]; struct hash128 attr; uint32_t nattr, nresult; } own;
        memset(&own, 0, sizeof own);
        memcpy(own.name, c->name, strlen(c->name));
        own.attr = bytes_hash(c->attr, c->nattr);
        own.nattr = c->nattr;
        own.nresult = c->nresult;
        k.custom = bytes_hash(&own, sizeof own);
        n.attr.region.length = 0;
    }
    if (op_is_region(n.op))
        n.attr.region.first = n.attr.region.operands = 0;
    n.site = n.shape = 0;
    memset(n.in, 0, sizeof n.in);
    k.n = n;
    return bytes_hash(&k, sizeof k);
}

static bool same_key(struct hash128 x, struct hash128 y) { return x.lo == y.lo && x.hi == y.hi; }

static bool same_operands(const struct differ *d, ref x, ref y)
{
    const struct node *p = node_at(d->a, x), *q = node_at(d->b, y);
    bool same = node_nin(p) == node_nin(q);
    for (unsigned i = 0; same && i < node_nin(p); i++)
        same = d->to[node_in(d->a, p, i)] == node_in(d->b, q, i);
    return same;
}

static bool same_type(const struct differ *d, ref x, ref y)
{
    return node_at(d->a, x)->dtype == node_at(d->b, y)->dtype &&
        same_shape(d, node_at(d->a, x)->shape, node_at(d->b, y)->shape);
}

/* The name of the first field in which two matched nodes differ; NULL: none. */
static const char *changed_field(const struct differ *d, ref x, ref y)
{
    const struct node *p = node_at(d->a, x), *q = node_at(d->b, y);
    if (p->op != q->op)
        return "op";
    if (p->dtype != q->dtype)
        return "dtype";
    if (!same_type(d, x, y))
        return "shape";
    if (p->device != q->device)
        return "device";
    if (p->flags != q->flags)
        return "mark";
    if (!same_key(d->ka[x], d->kb[y]))
        return p->op == OP_const ? "value" : node_nin(p) != node_nin(q) ? "number of operands" : "attributes";
    if (!same_operands(d, x, y))
        return "operands";
    for (uint32_t i = 0; i < op_regions(p->op); i++)
        if (!graph_same(node_region(d->a, p, i), node_region(d->b, q, i)))
            return "region";
    return NULL;
}

/* ---- matching ---- */

static void compare_match_nodes(struct differ *d, ref x, ref y)
{
    d->to[x] = y;
    d->from[y] = x;
}

/* Matches n nodes x0.. of a with m nodes y0.. of b, by a table of the lengths of common subsequences of the rest. */
static bool match_table(struct differ *d, ref x0, uint32_t n, ref y0, uint32_t m)
{
    size_t row = (size_t)m + 1;
    uint32_t *len = mem_alloc(((size_t)n + 1) * row * sizeof *len);
    if (!len)
        return false;
    for (uint32_t i = n; i-- > 0;)
        for (uint32_t j = m; j-- > 0;) {
            uint32_t skip = len[(i + 1) * row + j], other = len[i * row + j + 1];
            len[i * row + j] = same_key(d->ka[x0 + i], d->kb[y0 + j]) ? len[(i + 1) * row + j + 1] + 1 : skip > other
                ? skip : other;
        }
    for (uint32_t i = 0, j = 0; i < n && j < m;)
        if (same_key(d->ka[x0 + i], d->kb[y0 + j]))
            compare_match_nodes(d, x0 + i++, y0 + j++);
        else if (len[(i + 1) * row + j] >= len[i * row + j + 1])
            i++;
        else
            j++;
    mem_free(len);
    return true;
}

/* The same for graphs too long for a table: takes the next equal node within WINDOW. */
static void match_ahead(struct differ *d, ref x0, uint32_t n, ref y0, uint32_t m)
{
    for (uint32_t i = 0, j = 0; i < n; i++)
        for (uint32_t k = j; k < m && k < j + WINDOW; k++)
            if (same_key(d->ka[x0 + i], d->kb[y0 + k])) {
                compare_match_nodes(d, x0 + i, y0 + k);
                j = k + 1;
                break;
            }
}

/* Matches the nodes between two matched ones, in order: those of one op, or (by_op false) those with the same type and
 * operands. */
static void match_rest(struct differ *d, bool by_op)
{
    ref y = 1;
    for (ref x = 1; x < d->a->nnode; x++) {
        if (d->to[x]) {
            y = d->to[x] + 1;
            continue;
        }
        for (ref k = y; k < d->b->nnode && !d->from[k]; k++)
            if (by_op ? node_at(d->a, x)->op == node_at(d->b, k)->op : same_type(d, x, k) && same_operands(d, x, k)) {
                compare_match_nodes(d, x, k);
                y = k + 1;
                break;
            }
    }
}

static bool match_all(struct differ *d)
{
    ref first = 1, ea = d->a->nnode, eb = d->b->nnode;
    for (; first < ea && first < eb && same_key(d->ka[first], d->kb[first]); first++)
        compare_match_nodes(d, first, first);
    while (ea > first && eb > first && same_key(d->ka[ea - 1], d->kb[eb - 1]))
        ea--, eb--, compare_match_nodes(d, ea, eb);
    uint32_t n = ea - first, m = eb - first;
    if ((uint64_t)(n + 1) * (m + 1) > MAX_TABLE)
        match_ahead(d, first, n, first, m);
    else if (!match_table(d, first, n, first, m))
        return false;
    match_rest(d, true);
    match_rest(d, false);
    return true;
}

/* ---- describing ---- */

static void put_line(struct differ *d, const char *what, const char *field, const struct graph *g, ref r)
{
    char head[64], *line = node_text(g, r);
    snprintf(head, sizeof head, "%s%s%s:", what, *field ? " " : "", field);
    text_put(d->t, "%*s%s %s\n", (int)d->indent, "", head, line ? line : "");
    d->t->failed |= !line;
    mem_free(line);
}

static bool graph_compare_compare(struct differ *d);

static bool compare_regions(struct differ *d, const struct node *p, const struct node *q)
{
    for (uint32_t i = 0; i < op_regions(p->op); i++) {
        struct differ sub = {.a = node_region(d->a, p, i), .b = node_region(d->b, q, i), .t = d->t,
                             .indent = d->indent + 2, .n = d->n};
        if (graph_same(sub.a, sub.b))
            continue;
        text_put(d->t, "%*sin its region %u:\n", (int)d->indent, "", i);
        if (!graph_compare_compare(&sub))
            return false;
    }
    return true;
}

static bool report_nodes(struct differ *d)
{
    ref y = 1;
    for (ref x = 1; x < d->a->nnode || y < d->b->nnode;) {
        if (y < d->b->nnode && !d->from[y]) {
            put_line(d, "added", "", d->b, y++);
            d->n->added++;
            continue;
        }
        if (!d->to[x]) {
            put_line(d, "removed", "", d->a, x++);
            d->n->removed++;
            continue;
        }
        const char *field = changed_field(d, x, y);
        if (field) {
            put_line(d, "changed", field, d->a, x);
            put_line(d, "    now", "", d->b, y);
            d->n->changed++;
            if (!strcmp(field, "region") && !compare_regions(d, node_at(d->a, x), node_at(d->b, y)))
                return false;
        } else {
            d->n->same++;
        }
        x++, y++;
    }
    return true;
}

static void put_output(struct differ *d, const char *what, const struct graph *g, uint32_t i)
{
    const struct output *o = &g->out[i];
    text_put(d->t, "%*s%s output %u: ", (int)d->indent, "", what, i);
    if (o->kind == OUT_ASSIGN)
        text_put(d->t, "assign %u = %%%u\n", o->state, o->value);
    else
        text_put(d->t, "return %%%u\n", o->value);
    d->n->outputs++;
}

static void report_outputs(struct differ *d)
{
    for (uint32_t i = 0; i < d->a->nout || i < d->b->nout; i++) {
        const struct output *p = &d->a->out[i], *q = &d->b->out[i];
        bool in_a = i < d->a->nout, in_b = i < d->b->nout;
        if (in_a && in_b && p->kind == q->kind && p->state == q->state && d->to[p->value] == q->value)
            continue;
        if (in_a)
            put_output(d, in_b ? "changed" : "removed", d->a, i);
        if (in_b)
            put_output(d, in_a ? "    now" : "added", d->b, i);
    }
}

/* Reports leaves that no node uses. */
static void report_leaves(struct differ *d, const char *what, const struct leaves *x, const struct leaves *y)
{
    for (uint32_t i = 0; i < x->n || i < y->n; i++) {
        char s[SHAPE_TEXT] = "", t[SHAPE_TEXT] = "";
        const struct leaf *p = i < x->n ? &x->v[i] : NULL, *q = i < y->n ? &y->v[i] : NULL;
        if (p)
            shape_text_in(d->a, &d->a->shape[p->shape], s, sizeof s);
        if (q)
            shape_text_in(d->b, &d->b->shape[q->shape], t, sizeof t);
        if (p && q && p->dtype == q->dtype && same_shape(d, p->shape, q->shape))
            continue;
        text_put(d->t, "%*s%s %s %u: %s%s", (int)d->indent, "", p && q ? "changed" : p ? "removed" : "added", what, i,
                 dtype_name((p ? p : q)->dtype), p ? s : t);
        if (p && q)
            text_put(d->t, ", now %s%s", dtype_name(q->dtype), t);
        text_put(d->t, "\n");
        d->n->leaves++;
    }
}

static void report_symbols(struct differ *d)
{
    const struct symbols *x = d->a->symbols, *y = d->b->symbols;
    for (uint32_t i = 0; i < (x ? x->n : 0) || i < (y ? y->n : 0); i++) {
        const struct symbol *p = x && i < x->n ? &x->v[i] : NULL, *q = y && i < y->n ? &y->v[i] : NULL;
        if (p && q && p->low == q->low && p->high == q->high)
            continue;
        text_put(d->t, "%s symbol %s %lld..%lld", p && q ? "changed" : p ? "removed" : "added", (p ? p : q)->name,
                 (long long)(p ? p : q)->low, (long long)(p ? p : q)->high);
        if (p && q)
            text_put(d->t, ", now %lld..%lld", (long long)q->low, (long long)q->high);
        text_put(d->t, "\n");
        d->n->leaves++;
    }
}

static bool graph_compare_compare(struct differ *d)
{
    uint32_t n = d->a->nnode, m = d->b->nnode;
    d->ka = mem_alloc(n * sizeof *d->ka);
    d->kb = mem_alloc(m * sizeof *d->kb);
    d->to = mem_alloc(n * sizeof *d->to);
    d->from = mem_alloc(m * sizeof *d->from);
    bool ok = d->ka && d->kb && d->to && d->from;
    for (ref r = 1; ok && r < n; r++)
        d->ka[r] = key_of(d->a, r);
    for (ref r = 1; ok && r < m; r++)
        d->kb[r] = key_of(d->b, r);
    ok = ok && match_all(d);
    if (ok) {
        report_leaves(d, "input", &d->a->input, &d->b->input);
        report_leaves(d, "state", &d->a->state, &d->b->state);
        report_leaves(d, "slot", &d->a->slot, &d->b->slot);
        ok = report_nodes(d);
        report_outputs(d);
    }
    mem_free(d->ka);
    mem_free(d->kb);
    mem_free(d->to);
    mem_free(d->from);
    return ok;
}

bool graph_compare(const struct graph *a, const struct graph *b, struct text *t, struct graph_changes *n)
{
    struct differ d = {.a = a, .b = b, .t = t, .n = n};
    *n = (struct graph_changes){0};
    report_symbols(&d);
    return graph_compare_compare(&d) && !t->failed;
}
