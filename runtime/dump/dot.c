/* Writes graphs and programs for Graphviz: `dot -Tsvg FILE`. */
#include "dump.h"
#include <string.h>

/* For a quoted string; invalid UTF-8 becomes '?', because Graphviz would refuse the whole file. */
static void put_escaped(struct text *t, const char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            text_put(t, "\\%c", c);
        else if (c == '\n')
            text_put(t, "\\l");
        else
            text_put(t, "%c", c < 0x20 || c >= 0x7f ? '?' : c);
    }
}

static void put_head(struct text *t, const char *name)
{
    text_put(t, "digraph \"");
    put_escaped(t, name);
    text_put(t,
             "\" {\n"
             "  graph [fontname=\"Helvetica\", fontsize=11, labeljust=l, style=\"rounded,filled\", color=\"#9db4c8\","
             " fillcolor=\"#eef4f9\", nodesep=0.15, ranksep=0.3];\n"
             "  node [fontname=\"Helvetica\", fontsize=10, shape=box, style=\"rounded,filled\", fillcolor=white,"
             " color=\"#5b6b7a\", margin=\"0.08,0.04\"];\n"
             "  edge [color=\"#5b6b7a\", arrowsize=0.6];\n");
}

static const char *leaf_color(unsigned op)
{
    return op == OP_input ? "#d7efd9" : op == OP_state ? "#fde7c4" : op == OP_slot || op == OP_const ? "#eeeeee" : NULL;
}

/* The node's line as text without name and site, then the site. */
static void put_label(struct text *t, const struct graph *g, ref r)
{
    const kl_site *s = &g->site[g->node[r].site];
    char *line = node_text(g, r), at[160] = "";
    if (line) {
        char *hash = strstr(line, "  # "), *equals = strstr(line, "= ");
        if (hash)
            *hash = 0;
        size_t n = strlen(line);
        while (n && (line[n - 1] == ' ' || line[n - 1] == '{'))
            line[--n] = 0;
        text_put(t, "%%%u ", r);
        put_escaped(t, equals ? equals : line);
    }
    if (s->file && *s->file && s->line)
        snprintf(at, sizeof at, "\n%.100s:%d", s->file, s->line);
    put_escaped(t, at);
    text_put(t, "%s", *at ? "\\l" : "");
    mem_free(line);
}

static void dot_put_node(struct text *t, const struct graph *g, ref r, const char *path, int indent)
{
    const char *color = leaf_color(g->node[r].op);
    text_put(t, "%*s\"%s%u\" [label=\"", indent, "", path, r);
    put_label(t, g, r);
    text_put(t, "\"%s%s%s];\n", color ? ", fillcolor=\"" : "", color ? color : "", color ? "\"" : "");
}

static void put_cluster(struct text *t, const char *path, const char *kind, uint32_t i, const char *label, int indent)
{
    text_put(t, "%*ssubgraph \"cluster_%s%s%u\" {\n%*slabel=\"%s\";\n", indent, "", path, kind, i, indent + 2, "",
             label);
}

static void put_graph(struct text *t, const struct graph *g, const char *path, int indent);

static void put_regions(struct text *t, const struct graph *g, ref r, const char *path, int indent)
{
    for (uint32_t i = 0; i < op_regions(g->node[r].op); i++) {
        char inner[128], label[64];
        snprintf(inner, sizeof inner, "%.80s%u/%u/", path, r, i);
        snprintf(label, sizeof label, "%s %u, region %u", opinfo[g->node[r].op].name, r, i);
        put_cluster(t, path, "region", r * 2 + i, label, indent);
        put_graph(t, node_region(g, &g->node[r], i), inner, indent + 2);
        text_put(t, "%*s}\n", indent, "");
    }
}

/* The nodes of each kernel in a box, then the other nodes, then the edges. */
static void put_graph(struct text *t, const struct graph *g, const char *path, int indent)
{
    for (uint32_t k = 0; g->group && k < g->ngroup; k++) {
        char label[32];
        snprintf(label, sizeof label, "group %u", k);
        put_cluster(t, path, "group", k, label, indent);
        for (ref r = 1; r < g->nnode; r++)
            if (g->group[r] == k)
                dot_put_node(t, g, r, path, indent + 2);
        text_put(t, "%*s}\n", indent, "");
    }
    for (ref r = 1; r < g->nnode; r++) {
        if (!g->group || g->group[r] == GROUP_NONE)
            dot_put_node(t, g, r, path, indent);
        put_regions(t, g, r, path, indent);
    }
    for (ref r = 1; r < g->nnode; r++)
        for (unsigned i = 0; i < node_nin(&g->node[r]); i++)
            text_put(t, "%*s\"%s%u\" -> \"%s%u\";\n", indent, "", path, node_in(g, &g->node[r], i), path, r);
    for (uint32_t i = 0; i < g->nout; i++) {
        const struct output *o = &g->out[i];
        text_put(t, "%*s\"%sout%u\" [shape=plaintext, style=\"\", label=\"", indent, "", path, i);
        if (o->kind == OUT_ASSIGN) {
            text_put(t, "assign ");
            put_escaped(t, g->state.v[o->state].name);
        } else {
            text_put(t, "return");
        }
        text_put(t, "\"];\n%*s\"%s%u\" -> \"%sout%u\";\n", indent, "", path, o->value, path, i);
    }
}

void dot_graph(const struct graph *g, struct text *t)
{
    put_head(t, g->name);
    put_graph(t, g, "", 2);
    text_put(t, "}\n");
}

/* ---- programs ---- */

static void put_command(struct text *t, const struct program *p, uint32_t i)
{
    static const char *const kind[] = {"kernel", "copy", "interpreter", "region", "call"};
    const struct command *c = &p->cmd[i];
    char label[256];
    if (c->kind == CMD_KERNEL)
        format_text(label, sizeof label, "%u: %s\n%.0f kflop, %.1f kB", i, p->kernel[c->kernel]->name,
                 1e-3 * (double)p->kernel[c->kernel]->flops, 1e-3 * (double)p->kernel[c->kernel]->bytes);
    else if (c->region)
        snprintf(label, sizeof label, "%u: %s", i, opinfo[p->g->node[c->region].op].name);
    else
        snprintf(label, sizeof label, "%u: %s", i, kind[c->kind]);
    text_put(t, "  \"c%u\" [label=\"", i);
    put_escaped(t, label);
    text_put(t, "\"];\n");
}

/* May argument i of a command be written by it? */
static bool argument_is_written(const struct program *p, const struct command *c, uint32_t i)
{
    if (c->kind == CMD_KERNEL)
        return p->kernel[c->kernel]->buf[i].role == BUF_OUT;
    return c->kind == CMD_COPY ? i == 0 : i >= node_nin(&p->g->node[c->region]);
}

void dot_program(const struct program *p, struct text *t)
{
    put_head(t, p->g->name);
    uint32_t *writer = mem_alloc(p->g->nnode * sizeof *writer); /* per node: the command + 1 */
    for (uint32_t i = 0; writer && i < p->ncmd; i++) {
        const struct command *c = &p->cmd[i];
        put_command(t, p, i);
        for (uint32_t a = 0; c->value && a < c->narg; a++) {
            ref r = c->value[a];
            char shape[SHAPE_TEXT];
            if (!r || argument_is_written(p, c, a))
                continue;
            const struct node *n = &p->g->node[r];
            if (writer[r])
                text_put(t, "  \"c%u\" -> \"c%u\"", writer[r] - 1, i);
            else
                text_put(t, "  \"n%u\" [label=\"%s\", fillcolor=\"%s\"];\n  \"n%u\" -> \"c%u\"", r, opinfo[n->op].name,
                         leaf_color(n->op) ? leaf_color(n->op) : "white", r, i);
            text_put(t, " [label=\"%%%u %s%s\", fontsize=8];\n", r, dtype_name(n->dtype),
                     shape_text_in(p->g, node_shape(p->g, r), shape, sizeof shape));
        }
        for (uint32_t a = 0; c->value && a < c->narg; a++)
            if (c->value[a] && argument_is_written(p, c, a))
                writer[c->value[a]] = i + 1;
    }
    t->failed |= !writer;
    mem_free(writer);
    text_put(t, "}\n");
}
