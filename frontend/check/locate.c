/* Finds where a graph's values on a device part from the interpreter's: after which pass, or in which kernel.
 *
 * The interpreter runs the graph that the program was planned from and keeps the values that commands store.  Then the
 * program runs command by command, and what each has stored is compared with the value of its node.  If a command
 * differs, what it read was right, so it is the one that is wrong, or its code is. */
#include "locate.h"
#include <string.h>

/* ---- what commands store ---- */

/* Is argument i of the command what it stores? */
static bool is_result(const struct program *p, const struct command *c, uint32_t i)
{
    if (!c->value || !c->value[i])
        return false;
    switch (c->kind) {
    case CMD_KERNEL: return p->kernel[c->kernel]->buf[i].role == BUF_OUT;
    case CMD_COPY:   return i == 0;
    default:         return c->kind != CMD_INTERP && i >= node_nin(node_at(p->g, c->region)) && i + 1 < c->narg;
    }
}

static bool find_stored(struct locating *l)
{
    const struct program *p = l->p;
    l->value = mem_alloc(p->g->nnode * sizeof *l->value);
    l->stored = mem_alloc(p->g->nnode * sizeof *l->stored);
    for (uint32_t c = 0; l->value && l->stored && c < p->ncmd; c++)
        for (uint32_t i = 0; i < p->cmd[c].narg; i++)
            if (is_result(p, &p->cmd[c], i))
                l->stored[p->cmd[c].value[i]] = true;
    return l->value && l->stored;
}

static void keep_value(void *ctx, const struct graph *g, ref r, void *const *value)
{
    struct locating *l = ctx;
    if (g != l->p->g || !l->stored[r] || op_is_region(node_at(g, r)->op))
        return;
    size_t bytes = node_bytes(g, r);
    l->value[r] = mem_alloc(bytes + 1);
    if (l->value[r])
        memcpy(l->value[r], value[r], bytes);
    l->failed |= !l->value[r];
}

/* ---- comparing a command ---- */

/* The elements of node r without the gaps between rows that it has in memory. */
static void close_gaps(const struct program *p, ref r, char *data)
{
    const struct shape *s = node_shape(p->g, r);
    if (!p->pitch || !p->pitch[r] || !s->rank)
        return;
    size_t size = dtype_size(node_at(p->g, r)->dtype), row = (size_t)s->dim[s->rank - 1] * size,
           step = (size_t)p->pitch[r] * size;
    int64_t rows = row ? (int64_t)(node_bytes(p->g, r) / row) : 0;
    for (int64_t i = 1; i < rows; i++)
        memmove(data + (size_t)i * row, data + (size_t)i * step, row);
}

/* The node's text, without its group; mem_free it, NULL: out of memory. */
static char *node_line(const struct graph *g, ref r)
{
    char *line = node_text(g, r), *group = line ? strstr(line, " group ") : NULL;
    if (group) {
        size_t n = 7 + strspn(group + 7, "0123456789");
        memmove(group, group + n, strlen(group + n) + 1);
    }
    return line;
}

static bool locate_describe(struct locating *l, const struct command *c, ref r, const struct difference *d)
{
    const struct program *p = l->p;
    const char *name = c->kind == CMD_KERNEL ? p->kernel[c->kernel]->name : c->kind == CMD_COPY ? "copy"
                       : opinfo[node_at(p->g, c->region)->op].name;
    l->node = r;
    l->group = c->kind == CMD_KERNEL ? c->group : p->g->group ? p->g->group[r] : GROUP_NONE;
    l->place->kernel = mem_text(name);
    l->place->node = node_line(p->g, r);
    l->place->difference = check_difference_text(node_at(p->g, r)->dtype, d);
    return l->place->kernel && l->place->node && l->place->difference;
}

static bool compare_result(struct locating *l, const struct frame *f, uint32_t i, struct err *e)
{
    const struct command *c = exec_watched_command(f);
    ref r = c->value[i];
    unsigned dtype = node_at(l->p->g, r)->dtype;
    size_t bytes = (size_t)pitched_numel(l->p->g, l->p->pitch, r) * dtype_size(dtype);
    char *have = l->value[r] ? mem_alloc(bytes + 1) : NULL;
    if (l->value[r] && !have)
        return err_set(e, KL_ERR_MEMORY, "out of memory: a value of @%s", l->g->name);
    struct difference d;
    bool ok = !have || exec_read_argument(f, i, have, bytes, e);
    if (ok && have) {
        close_gaps(l->p, r, have);
        if (!check_same(dtype, l->value[r], have, node_numel(l->p->g, r), l->tolerance, &d) && !locate_describe(l, c,
                                                                                                                r, &d))
            ok = err_set(e, KL_ERR_MEMORY, "out of memory: a value of @%s", l->g->name);
    }
    mem_free(have);
    return ok;
}

static bool compare_command(void *ctx, const struct frame *f, struct err *e)
{
    struct locating *l = ctx;
    const struct command *c = exec_watched_command(f);
    bool ok = true;
    for (uint32_t i = 0; ok && !l->node && i < c->narg; i++)
        if (is_result(l->p, c, i))
            ok = compare_result(l, f, i, e);
    return ok;
}

/* ---- which pass? ---- */

static bool same_outputs(const struct graph *g, const struct check_outputs *a, const struct check_outputs *b)
{
    bool same = a->n == b->n;
    for (uint32_t i = 0; same && i < a->n; i++) {
        ref r = g->out[i].value;
        struct difference d;
        same = check_same(node_at(g, r)->dtype, a->data[i], b->data[i], node_numel(g, r), 0, &d);
    }
    return same;
}

/* The first pass whose graph the interpreter gives another result for; NULL: none. */
static const char *find_pass(const struct locating *l, const struct check_outputs *want)
{
    for (unsigned n = 1; n <= pass_count; n++) {
        struct err e = {0};
        struct graph *g = reference_graph(l->g, (unsigned)l->device, l->fuse, n, &e);
        struct check_outputs out = {0};
        bool same = !g || !check_interpret(g, l->v, NULL, &out, &e) || same_outputs(l->g, want, &out);
        check_outputs_free(&out);
        graph_free(g);
        if (!same)
            return pass_list[n - 1].name;
    }
    return NULL;
}

/* Names the first pass after which the interpreter gives other outputs, if the program's graph does. */
static bool locate_pass(struct locating *l, struct err *e)
{
    struct check_outputs want = {0}, now = {0};
    const struct interp_watch watch = {keep_value, l};
    bool ok = check_reference(l->g, l->device, l->v, &want, e) && check_interpret(l->p->g, l->v, &watch, &now, e);
    const char *pass = ok && !same_outputs(l->g, &want, &now) ? find_pass(l, &want) : NULL;
    l->place->pass = mem_text(pass);
    check_outputs_free(&want);
    check_outputs_free(&now);
    return ok && ((!l->failed && (!pass || l->place->pass)) ||
                  err_set(e, KL_ERR_MEMORY, "out of memory: values of @%s", l->g->name));
}

/* Runs the program and compares what each command stores. */
static bool locate_kernel(struct locating *l, const struct exec *x, struct err *e)
{
    struct check_outputs now = {0};
    const struct exec_watch commands = {compare_command, l};
    bool ok = check_run_program(x, l->g, l->device, l->v, &commands, &now, e);
    check_outputs_free(&now);
    return ok && (!l->node || !l->isolate || l->isolate(l, e));
}

bool check_locate(const struct graph *g, int device, bool fuse, double tolerance, const struct check_values *v,
                  check_isolate_fn *isolate, struct check_place *place, struct err *e)
{
    *place = (struct check_place){0};
    const struct exec *x = exec_get(g, device, fuse, e);
    if (!x)
        return false;
    struct locating l = {.g = g, .device = device, .fuse = fuse, .tolerance = tolerance, .v = v, .p = x->program,
                         .place = place, .isolate = isolate};
    bool ok = (find_stored(&l) || err_set(e, KL_ERR_MEMORY, "out of memory: @%s", g->name)) &&
              locate_pass(&l, e) && locate_kernel(&l, x, e);
    for (ref r = 0; l.value && r < l.p->g->nnode; r++)
        mem_free(l.value[r]);
    mem_free(l.value);
    mem_free(l.stored);
    exec_unref(x);
    return ok;
}

void check_place_free(struct check_place *p)
{
    mem_free(p->pass);
    mem_free(p->kernel);
    mem_free(p->node);
    mem_free(p->difference);
    graph_free(p->graph);
    check_values_free(&p->values);
    *p = (struct check_place){0};
}
