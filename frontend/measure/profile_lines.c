/* Divides the time of kernels among the source lines of the ops that they compute. */
#include "profile.h"
#include <string.h>

bool lines_open(struct line_sites *s, const struct graph *g)
{
    *s = (struct line_sites){.g = g, .row = mem_alloc(g->nsite * sizeof *s->row)};
    return s->row != NULL;
}

void lines_close(struct line_sites *s)
{
    mem_free(s->row);
    mem_free(s->stamp);
}

static kl_profile_row *row_called(struct profile_rows *line, const struct row_name *n)
{
    uint32_t i = 0;
    while (i < line->n && (strcmp(line->name[i].name, n->name) || strcmp(line->name[i].where, n->where)))
        i++;
    return i < line->n ? &line->v[i] : rows_add(line, n->name, n->where);
}

/* The row of a node's line, which nodes of other graphs may share. */
static kl_profile_row *row_of(struct line_sites *s, struct profile_rows *line, ref r)
{
    uint32_t site = node_at(s->g, r)->site;
    const kl_site *at = &s->g->site[site];
    struct row_name n = {"", ""};
    if (s->row[site])
        return &line->v[s->row[site] - 1];
    if (!site || !at->file || !at->file[0]) {
        snprintf(n.name, sizeof n.name, "? %s", opinfo[node_at(s->g, r)->op].name);
        return row_called(line, &n);
    }
    size_t length = strlen(at->file), room = sizeof n.name - 16; /* the end of a long path */
    snprintf(n.name, sizeof n.name, "%s:%d", at->file + (length > room ? length - room : 0), at->line);
    snprintf(n.where, sizeof n.where, "%s", at->func ? at->func : "");
    kl_profile_row *row = row_called(line, &n);
    if (row)
        s->row[site] = (uint32_t)(row - line->v) + 1;
    return row;
}

/* The operations and elements that a node adds to its kernel. */
static double work_of(const struct graph *g, ref r)
{
    const struct node *n = node_at(g, r);
    double max = (double)shape_count(node_shape(g, r));
    if (op_is_product(n->op))
        return 2 * max * (double)dot_sizes(g, n).k;
    if (op_is_attention(n->op))
        return attention_flops(g, n);
    for (unsigned i = 0; i < node_nin(n) && !op_is_select(n->op); i++) {
        double in = (double)shape_count(node_shape(g, node_in(g, n, i)));
        max = in > max ? in : max;
    }
    return max;
}

static bool add_part(struct line_sites *s, struct profile_rows *line, ref r, double part, const kl_profile_row *took)
{
    kl_profile_row *row = row_of(s, line, r);
    if (!row || !mem_reserve(&s->stamp, &s->stamp_cap, line->n, sizeof *s->stamp))
        return false;
    /* a kernel counts once for a line, however many of its nodes are from there */
    uint32_t *stamp = &s->stamp[row - line->v];
    row->calls += *stamp != s->now ? took->calls : 0;
    *stamp = s->now;
    row->seconds += part * took->seconds;
    row->bytes += (int64_t)(part * (double)took->bytes + 0.5);
    row->flops += (int64_t)(part * (double)took->flops + 0.5);
    row->limit += part * took->limit;
    return true;
}

static bool add_nodes(struct line_sites *s, struct profile_rows *line, const ref *node, uint32_t n,
                      const kl_profile_row *took)
{
    double all = 0;
    for (uint32_t i = 0; i < n; i++)
        all += work_of(s->g, node[i]);
    for (uint32_t i = 0; i < n; i++)
        if (!add_part(s, line, node[i], all > 0 ? work_of(s->g, node[i]) / all : i == 0, took))
            return false;
    return true;
}

/* The interpreter's only command computes the whole graph; a region op counts as one node. */
static bool add_graph(struct line_sites *s, struct profile_rows *line, const kl_profile_row *took)
{
    uint32_t n = 0;
    ref *node = mem_alloc(s->g->nnode * sizeof *node);
    for (ref r = 1; node && r < s->g->nnode; r++)
        if (!op_is_leaf(s->g->node[r].op) && !op_is_view(s->g->node[r].op))
            node[n++] = r;
    bool ok = node && add_nodes(s, line, node, n, took);
    mem_free(node);
    return ok;
}

bool lines_add(struct line_sites *s, struct profile_rows *line, const struct command *c, const struct groups *groups,
               const kl_profile_row *took)
{
    s->now++;
    switch (c->kind) {
    case CMD_KERNEL:
        return add_nodes(s, line, groups->member + groups->first[c->group],
                         groups->first[c->group + 1] - groups->first[c->group],
                         took);
    case CMD_INTERP: return add_graph(s, line, took);
    case CMD_COPY: return add_part(s, line, c->value[0], 1, took);
    default: return add_part(s, line, c->region, 1, took);
    }
}
