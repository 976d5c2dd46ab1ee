/* What the arrays of a program's kernels are called, for a person who reads their source.
 *
 * An array is called as the value in it: a parameter, an input or an output by its name, the next value of a parameter
 * NAME.next, anything else by the scope and the op that compute it.  Commands share equal kernels, and a launch may
 * have several sets of arrays; then a name is made of the parts that all its values' names have, in their order:
 * h.0.query.weight and h.11.key.weight are h.weight.  So a kernel has one text, in which nothing is said of one layer
 * that does not hold for the others. */
#include "dump.h"
#include <string.h>

enum { NAME_PARTS = 16 };
struct name_parts { struct { const char *s; size_t len; } v[NAME_PARTS]; uint32_t n; };

static struct name_parts name_split(const char *name)
{
    struct name_parts p = {0};
    while (*name && p.n < NAME_PARTS) {
        size_t len = strcspn(name, ".");
        if (len)
            p.v[p.n].s = name, p.v[p.n++].len = len;
        name += len + (name[len] == '.');
    }
    return p;
}

static bool parts_equal(const struct name_parts *a, uint32_t i, const struct name_parts *b, uint32_t j)
{
    return a->v[i].len == b->v[j].len && !memcmp(a->v[i].s, b->v[j].s, a->v[i].len);
}

/* Leaves of a name the longest sequence of its parts that the other has, too. */
static void name_keep_common(char name[ARRAY_NAME], const char *other)
{
    char before[ARRAY_NAME];
    memcpy(before, name, sizeof before);
    const struct name_parts a = name_split(before), b = name_split(other);
    uint8_t common[NAME_PARTS + 1][NAME_PARTS + 1] = {{0}}; /* of the parts from i and from j on */
    for (uint32_t i = a.n; i-- > 0;)
        for (uint32_t j = b.n; j-- > 0;) {
            uint8_t skip = common[i + 1][j] > common[i][j + 1] ? common[i + 1][j] : common[i][j + 1];
            common[i][j] = parts_equal(&a, i, &b, j) ? (uint8_t)(common[i + 1][j + 1] + 1) : skip;
        }
    size_t at = 0;
    for (uint32_t i = 0, j = 0; i < a.n && j < b.n;)
        if (parts_equal(&a, i, &b, j)) {
            at += (size_t)snprintf(name + at, ARRAY_NAME - at, "%s%.*s", at ? "." : "", (int)a.v[i].len, a.v[i].s);
            i++;
            j++;
        } else if (common[i + 1][j] >= common[i][j + 1]) {
            i++;
        } else {
            j++;
        }
    name[at] = '\0';
}

/* The name of the leaf or output that value r is; "": it is neither, or has no name. */
static void name_of_user(const struct graph *g, ref r, char name[ARRAY_NAME])
{
    const struct node *n = &g->node[r];
    const struct leaves *l = n->op == OP_input ? &g->input : n->op == OP_state ? &g->state : n->op == OP_slot ? &g->slot
                           : NULL;
    snprintf(name, ARRAY_NAME, "%s", l && n->attr.leaf.index < l->n ? l->v[n->attr.leaf.index].name : "");
    for (uint32_t i = 0; i < g->nout && !*name; i++) {
        bool written;
        if (node_stored(g, g->out[i].value) != r)
            continue;
        if (g->out[i].kind == OUT_RETURN)
            snprintf(name, ARRAY_NAME, "%s", graph_output_name(g, i, &written));
        else if (g->state.v[g->out[i].state].name[0])
            snprintf(name, ARRAY_NAME, "%s.next", g->state.v[g->out[i].state].name);
    }
}

static void name_of_value(const struct graph *g, ref r, char name[ARRAY_NAME])
{
    name_of_user(g, r, name);
    if (*name)
        return;
    char function[ARRAY_NAME];
    trail_function(&g->site[g->node[r].site], function, sizeof function);
    const char *path = strchr(function, '.'); /* FUNCTION.PATH (frontend/library/names.c) */
    snprintf(name, ARRAY_NAME, "%.*s%s%s", ARRAY_NAME / 2, path ? path + 1 : "", path ? "." : "",
             opinfo[g->node[r].op].name);
}

/* Names the arrays of the kernels by the commands of p, which is the program or one of its regions. */
static void name_by_commands(const struct program *p, struct kernel *const *kernel, struct array_names *names)
{
    for (uint32_t i = 0; i < p->ncmd; i++) {
        const struct command *c = &p->cmd[i];
        const struct kernel *k = c->kind == CMD_KERNEL ? kernel[c->kernel] : NULL;
        for (uint32_t a = 0; k && c->value && a < c->narg && a < k->nbuf; a++) {
            char own[ARRAY_NAME];
            uint32_t member, first = kernel_first_buffer(k, a, &member);
            struct array_name *name = &names[c->kernel].array[first];
            if (!c->value[a])
                continue;
            name_of_value(p->g, c->value[a], own);
            if (name->known)
                name_keep_common(name->text, own);
            else
                memcpy(name->text, own, sizeof own);
            name->known = true;
        }
        for (uint32_t s = 0; s < 2; s++)
            if (c->sub[s])
                name_by_commands(c->sub[s], kernel, names);
    }
}

struct array_names *array_names(const struct program *p)
{
    struct array_names *names = mem_alloc((p->nkernel + 1) * sizeof *names);
    for (uint32_t i = 0; names && i < p->nkernel; i++)
        if (!(names[i].array = mem_alloc((p->kernel[i]->nbuf + 1) * sizeof *names[i].array))) {
            array_names_free(names, i);
            return NULL;
        }
    if (names)
        name_by_commands(p, p->kernel, names);
    return names;
}

void array_names_free(struct array_names *names, uint32_t n)
{
    for (uint32_t i = 0; names && i < n; i++)
        mem_free(names[i].array);
    mem_free(names);
}
