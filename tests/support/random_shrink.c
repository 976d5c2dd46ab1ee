/* Shrinking: one edit at a time, kept if it makes the graph lighter and it still fails the same way, until none is. */
#define _GNU_SOURCE
#include "random_shrink.h"
#include "tests/support/patience.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const verdict_text[] = {"agrees", "differs", "is refused", "crashes", "hangs"};

/* ---- a check in a process of its own ---- */

enum verdict check_apart(check_fn *check_graph, const struct graph *g, double seconds)
{
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        abort();
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        struct err why = {0};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        end_when_stuck_after(seconds);
        _exit((int)check_graph(g, &why));
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status) && is_stuck_signal(WTERMSIG(status)))
        return HANGS;
    return WIFEXITED(status) && WEXITSTATUS(status) <= REFUSED ? (enum verdict)WEXITSTATUS(status) : CRASHED;
}

/* ---- edits ---- */

enum edit_kind { ONLY_VALUE, DROP_OUTPUT, TAKE_OPERAND, TAKE_INPUT, TAKE_REGION, SET_DIM, SET_DTYPE };
struct edit {
    enum edit_kind kind;
    const struct graph *of; /* the graph it is about, one of the regions; SET_DIM, SET_DTYPE: all of them */
    ref node;           /* the node it is about; DROP_OUTPUT: the output */
    uint32_t operand;   /* TAKE_OPERAND; TAKE_REGION: which of a cond's or a checkpoint's, in place of the node */
    int64_t from, to;   /* SET_DIM, SET_DTYPE: everywhere */
};

/* How an edit's graph comes to be: nodes that something still needs, in order. */
struct rebuild {
    const struct graph *from;
    struct graph *to;
    const struct edit *edit;  /* what it is to this graph */
    const struct edit *whole; /* and to its regions */
    ref *map;           /* from's node -> to's */
    uint32_t *leaf[3];  /* inputs, states, slots: ordinal + 1 in `to`, 0: none yet */
    ref *result;        /* TAKE_REGION: what the region yields */
};

static struct shape edited_shape(const struct rebuild *b, const struct shape *s)
{
    struct shape t = *s;
    for (uint32_t i = 0; b->edit->kind == SET_DIM && i < t.rank; i++)
        if (t.dim[i] == b->edit->from)
            t.dim[i] = b->edit->to;
    return t;
}

static unsigned edited_dtype(const struct rebuild *b, unsigned dtype)
{
    return b->edit->kind == SET_DTYPE && dtype == (unsigned)b->edit->from ? (unsigned)b->edit->to : dtype;
}

static const struct leaves *table(const struct graph *g, unsigned which)
{
    return which == 0 ? &g->input : which == 1 ? &g->state : &g->slot;
}

/* The ordinal in the new graph of a leaf of the old one. */
static uint32_t leaf_ordinal(struct rebuild *b, unsigned which, uint32_t old)
{
    uint32_t *known = &b->leaf[which][old];
    if (!*known) {
        const struct leaf *l = &table(b->from, which)->v[old];
        struct shape s = edited_shape(b, &b->from->shape[l->shape]);
        struct leaves *to = which == 0 ? &b->to->input : which == 1 ? &b->to->state : &b->to->slot;
        *known = graph_leaf(b->to, to, edited_dtype(b, l->dtype), &s, l->name) + 1;
    }
    return *known - 1;
}

/* A reshape whose operand has another size now: groups of axes with equal products change together. */
static struct shape refit(const struct shape *old_in, const struct shape *new_in, const struct shape *old_out,
                          const struct shape *wanted)
{
    struct shape t = *wanted;
    uint32_t i = 0, o = 0;
    while (i < old_in->rank && o < old_out->rank) {
        uint32_t first = o;
        int64_t pi = old_in->dim[i], po = old_out->dim[o], now_in = new_in->dim[i++], now_out = t.dim[o++];
        while (pi != po) {
            if (pi < po && i < old_in->rank)
                pi *= old_in->dim[i], now_in *= new_in->dim[i++];
            else if (po < pi && o < old_out->rank)
                po *= old_out->dim[o], now_out *= t.dim[o++];
            else
                return t;
        }
        if (now_in == now_out)
            continue;
        for (uint32_t k = first; k < o; k++)
            t.dim[k] = k == first ? now_in : 1;
    }
    return t;
}

static struct graph *edited(const struct graph *g, const struct edit *e, bool region);

static ref rebuild_custom(struct rebuild *b, const struct node *copy, const struct node *n, const ref *in)
{
    struct custom c = *node_custom(b->from, n);
    struct custom_result *result = calloc(c.nresult, sizeof *result);
    if (!result)
        abort();
    for (uint32_t i = 0; i < c.nresult; i++) {
        struct shape s = edited_shape(b, &b->from->shape[c.result[i].shape]);
        result[i] = (struct custom_result){edited_dtype(b, c.result[i].dtype), graph_shape(b->to, &s)};
    }
    c.result = result;
    ref r = graph_add_custom(b->to, copy, in, node_nin(n), &c);
    free(result);
    return r;
}

static ref rebuild_region_op(struct rebuild *b, ref r)
{
    const struct node *n = node_at(b->from, r);
    const struct edit *e = b->edit;
    struct node copy = {.op = n->op, .flags = n->flags, .attr = n->attr};
    struct graph *region[2] = {NULL};
    bool taken = e->kind == TAKE_REGION && e->node == r;
    uint32_t nin = node_nin(n), skip = n->op == OP_cond;
    ref *in = calloc(nin + 1, sizeof *in), out = NIL;
    if (!in)
        abort();
    for (uint32_t i = 0; i < nin; i++)
        in[i] = b->map[node_in(b->from, n, i)];
    for (uint32_t i = 0; i < op_regions(n->op) && !b->to->err.code && !taken; i++)
        if (!(region[i] = edited(node_region(b->from, n, i), b->whole, true)))
            err_set(&b->to->err, KL_ERR_INTERNAL, "a region is broken");
    if (e->kind == SET_DIM && n->op == OP_scan && n->attr.region.length == e->from)
        copy.attr.region.length = e->to;
    if (taken) {
        const struct graph *g = node_region(b->from, n, e->operand);
        b->result = calloc(g->nout + 1, sizeof *b->result);
        if (!b->result)
            abort();
        graph_splice(b->to, g, in + skip, 0, b->result);
    } else {
        b->to->cur_device = n->device;
        out = n->op == OP_custom ? rebuild_custom(b, &copy, n, in) : graph_add_region(b->to, &copy, in, nin, region);
    }
    free(in);
    return out;
}

static ref rebuild_node(struct rebuild *b, ref r)
{
    const struct node *n = node_at(b->from, r);
    const struct edit *e = b->edit;
    const struct shape *old = node_shape(b->from, r);
    if (op_is_region(n->op))
        return rebuild_region_op(b, r);
    if (n->op == OP_proj && e->kind == TAKE_REGION && n->in[0] == e->node)
        return b->result[n->attr.proj.index];
    if (e->kind == TAKE_OPERAND && e->node == r)
        return b->map[n->in[e->operand]];
    if (e->kind == TAKE_INPUT && e->node == r)
        return n_input(b->to, n->dtype, old, "x");
    struct node copy = {.op = n->op, .dtype = (uint8_t)edited_dtype(b, n->dtype), .nin = n->nin, .flags = n->flags,
                        .attr = n->attr};
    struct shape s = edited_shape(b, old);
    for (unsigned i = 0; i < n->nin; i++)
        copy.in[i] = b->map[n->in[i]];
    if (n->op >= OP_input && n->op <= OP_slot && n->op != OP_const)
        copy.attr.leaf.index = leaf_ordinal(b, n->op == OP_input ? 0 : n->op == OP_state ? 1 : 2, n->attr.leaf.index);
    if (n->op == OP_const)
        copy.attr.konst.bits = dtype_bits(copy.dtype, dtype_value(n->dtype, n->attr.konst.bits));
    if (n->op == OP_const && copy.dtype == n->dtype)
        copy.attr.konst.bits = n->attr.konst.bits;
    if (n->op == OP_slice || n->op == OP_dynamic_slice) /* the count is a dimension too */
        copy.attr.slice.count = s.dim[n->attr.slice.axis];
    if (n->op == OP_reshape)
        s = refit(node_shape(b->from, n->in[0]), node_shape(b->to, copy.in[0]), old, &s);
    b->to->cur_device = n->device;
    return graph_add(b->to, &copy, &s);
}

static bool dropped(const struct edit *e, uint32_t out)
{
    return e->kind == ONLY_VALUE || (e->kind == DROP_OUTPUT && e->node == out);
}

static void mark_live(const struct rebuild *b, bool *live)
{
    const struct edit *e = b->edit;
    const struct graph *g = b->from;
    for (uint32_t i = 0; i < g->nout; i++)
        live[g->out[i].value] |= !dropped(e, i);
    if (e->kind == ONLY_VALUE)
        live[e->node] = true;
    for (ref r = g->nnode - 1; r > 0; r--)
        for (unsigned i = 0; live[r] && i < node_nin(&g->node[r]); i++)
            if (e->node != r || e->kind == TAKE_REGION || e->kind == DROP_OUTPUT || e->kind == ONLY_VALUE ||
                (e->kind == TAKE_OPERAND && e->operand == i) || e->kind >= SET_DIM)
                live[node_in(g, &g->node[r], i)] = true;
}

/* The graph after an edit; NULL: the edit makes no valid graph.  A region keeps its parameters. */
static struct graph *edited(const struct graph *g, const struct edit *e, bool region)
{
    static const struct edit none = {.kind = SET_DIM, .from = -1}; /* nothing has this dimension */
    struct rebuild b = {.from = g, .to = graph_new(g->name), .edit = e->kind >= SET_DIM || e->of == g ? e : &none,
                        .whole = e,
                        .map = calloc(g->nnode, sizeof *b.map)};
    bool *live = calloc(g->nnode, sizeof *live);
    for (unsigned i = 0; i < 3; i++)
        b.leaf[i] = calloc(table(g, i)->n + 1, sizeof *b.leaf[i]);
    if (!b.to || !b.map || !live || !b.leaf[0] || !b.leaf[1] || !b.leaf[2])
        abort();
    e = b.edit;
    mark_live(&b, live);
    for (uint32_t i = 0; region && i < g->input.n && !b.to->err.code; i++)
        leaf_ordinal(&b, 0, i);
    for (ref r = 1; r < g->nnode && !b.to->err.code; r++)
        if (live[r])
            b.map[r] = rebuild_node(&b, r);
    for (uint32_t i = 0; i < g->nout && !b.to->err.code; i++)
        if (!dropped(e, i))
            graph_output(b.to, g->out[i].kind, b.map[g->out[i].value],
                         g->out[i].kind == OUT_ASSIGN ? leaf_ordinal(&b, 1, g->out[i].state) : 0);
    if (e->kind == ONLY_VALUE && !b.to->err.code)
        graph_output(b.to, OUT_RETURN, b.map[e->node], 0);
    struct err bad = {0};
    if (b.to->err.code || !b.to->nout || !graph_verify(b.to, &bad)) {
        graph_free(b.to);
        b.to = NULL;
    }
    for (unsigned i = 0; i < 3; i++)
        free(b.leaf[i]);
    free(b.map);
    free(b.result);
    free(live);
    return b.to;
}

/* ---- the search ---- */

struct search {
    struct graph *g;
    check_fn *check;
    enum verdict verdict;
    double seconds;
};

static const unsigned simple[] = {KL_F32, KL_I32, KL_I64, KL_U32, KL_U8, KL_BOOL}; /* dtypes, simplest first */
enum { SIMPLE = sizeof simple / sizeof *simple };

struct size { uint64_t nodes, dims, types; };

static void add_size(const struct graph *g, struct size *w)
{
    w->nodes += g->nnode;
    for (ref r = 1; r < g->nnode; r++) {
        const struct shape *s = node_shape(g, r);
        unsigned rank = 0;
        w->nodes += g->node[r].op != OP_input;
        for (uint32_t i = 0; i < s->rank; i++)
            w->dims += (uint64_t)s->dim[i];
        while (rank < SIMPLE && simple[rank] != g->node[r].dtype)
            rank++;
        w->types += rank;
    }
    for (uint32_t i = 0; i < g->nregion; i++)
        add_size(g->region[i], w);
}

/* Outputs count most, then nodes (twice those that are no inputs), dimensions and dtypes. */
static uint64_t weight(const struct graph *g)
{
    struct size w = {0};
    add_size(g, &w);
    for (uint32_t i = 0; i < g->nout; i++)
        w.nodes += g->out[i].kind == OUT_ASSIGN;
    return ((uint64_t)g->nout << 56) + (w.nodes << 40) + (w.dims << 12) + w.types;
}

static bool try_edit(struct search *s, struct edit e)
{
    if (!e.of)
        e.of = s->g;
    struct graph *g = edited(s->g, &e, false);
    if (!g)
        return false;
    if (weight(g) >= weight(s->g) || check_apart(s->check, g, s->seconds) != s->verdict) {
        graph_free(g);
        return false;
    }
    graph_free(s->g);
    s->g = g;
    return true;
}

/* After an edit that is kept, node numbers mean something else, so each loop starts at the node below. */
static bool shrink_outputs(struct search *s)
{
    bool any = false;
    for (ref r = 1; r < s->g->nnode && !any; r++) /* also what no output needs: passes before dce look at it */
        any = try_edit(s, (struct edit){.kind = ONLY_VALUE, .node = r});
    for (uint32_t i = s->g->nout; !any && i-- > 0;)
        any |= s->g->nout > 1 && i < s->g->nout && try_edit(s, (struct edit){.kind = DROP_OUTPUT, .node = i});
    return any;
}

static bool shrink_nodes(struct search *s)
{
    bool any = false;
    for (ref r = s->g->nnode; r-- > 1;) {
        if (r >= s->g->nnode)
            continue;
        bool done = false;
        for (uint32_t i = 0; !done && i < s->g->node[r].nin; i++)
            done = try_edit(s, (struct edit){.kind = TAKE_OPERAND, .node = r, .operand = i});
        any |= done;
    }
    for (ref r = s->g->nnode; r-- > 1;)
        if (r < s->g->nnode && s->g->node[r].op != OP_input)
            any |= try_edit(s, (struct edit){.kind = TAKE_INPUT, .node = r});
    return any;
}

/* A region in place of its op, and nodes of regions.  true: s->g is another now. */
static bool shrink_region(struct search *s, const struct graph *g)
{
    for (ref r = g->nnode; r-- > 1;) {
        const struct node *n = &g->node[r];
        for (uint32_t i = 0; op_is_region(n->op) && n->op != OP_while && n->op != OP_scan &&
             i < 1u + (n->op == OP_cond); i++)
            if (try_edit(s, (struct edit){.kind = TAKE_REGION, .of = g, .node = r, .operand = i}))
                return true;
        for (uint32_t i = 0; g != s->g && i < n->nin; i++)
            if (try_edit(s, (struct edit){.kind = TAKE_OPERAND, .of = g, .node = r, .operand = i}))
                return true;
    }
    for (uint32_t i = 0; i < g->nregion; i++)
        if (shrink_region(s, g->region[i]))
            return true;
    return false;
}

static bool shrink_dims(struct search *s)
{
    bool any = false;
    for (uint32_t id = 0; id < s->g->nshape; id++)
        for (uint32_t i = 0; id < s->g->nshape && i < s->g->shape[id].rank; i++) {
            int64_t d = s->g->shape[id].dim[i], to[] = {1, 2, 3, d / 4, d / 2, d - d / 8, d - 1};
            for (unsigned k = 0; k < sizeof to / sizeof *to; k++)
                if (to[k] > 0 && to[k] < d && try_edit(s, (struct edit){.kind = SET_DIM, .from = d, .to = to[k]})) {
                    any = true;
                    break;
                }
        }
    return any;
}

static bool shrink_dtypes(struct search *s)
{
    bool any = false;
    for (unsigned from = 0; from < KL_DTYPE_COUNT; from++)
        for (unsigned i = 0; i < SIMPLE && simple[i] != from; i++)
            if (try_edit(s, (struct edit){.kind = SET_DTYPE, .from = from, .to = simple[i]})) {
                any = true;
                break;
            }
    return any;
}

struct graph *shrink(const struct graph *g, check_fn *check_graph, enum verdict verdict, double seconds)
{
    struct search s = {graph_clone(g), check_graph, verdict, seconds};
    bool more = s.g;
    while (more) {
        more = false;
        while (shrink_outputs(&s))
            more = true;
        more |= shrink_dims(&s); /* before nodes: the checks become quick */
        more |= shrink_nodes(&s);
        while (shrink_region(&s, s.g))
            more = true;
        more |= shrink_dtypes(&s);
    }
    return s.g;
}
