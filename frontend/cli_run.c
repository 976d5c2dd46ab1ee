/* kiln run: a graph's text, arrays in, arrays out. */
#include "frontend/cli.h"
#include "frontend/npy.h"
#include "ir/text.h"
#include "runtime/runtime.h"
#include <errno.h>
#include <string.h>

enum { MAX_BINDINGS = 256, SHOWN = 32 };

struct binding { const char *option, *name, *value; size_t name_len; }; /* --option name=value */
struct array { char *bytes; struct npy npy; const struct binding *from; }; /* a file that was read, for a leaf */

struct job {
    const char *file, *device;
    bool fuse;
    struct binding bind[MAX_BINDINGS];
    unsigned nbind;
    struct cli_values values;
    struct graph *g;
    struct array *read_input, *read_state;
    struct buffer **input, **state, **out;
    uint64_t *slot;
    bool *exclusive, *have_slot;
};

static bool add_binding(struct job *j, struct cli_args *a, const char *option)
{
    const char *v = cli_value(a), *eq = v ? strchr(v, '=') : NULL;
    if (!v)
        return false;
    if (!eq || eq == v || !eq[1]) {
        cli_error("%s needs NAME=VALUE, not '%s'", option, v);
        return false;
    }
    if (j->nbind == MAX_BINDINGS) {
        cli_error("more than %d values", MAX_BINDINGS);
        return false;
    }
    j->bind[j->nbind++] = (struct binding){option, v, eq + 1, (size_t)(eq - v)};
    return true;
}

static int parse_args(struct job *j, int argc, char **argv)
{
    static const char *const binders[] = {"--input", "--state", "--slot", "--output"};
    struct cli_args a = {.argc = argc, .argv = argv};
    while (cli_next(&a)) {
        unsigned i = 0;
        while (i < 4 && !cli_is(&a, binders[i]))
            i++;
        if (i < 4) {
            if (!add_binding(j, &a, binders[i]))
                return CLI_USAGE;
        } else if (cli_is(&a, "--bind")) {
            cli_bind_option(&j->values, &a);
        } else if (cli_is(&a, "--device")) {
            j->device = cli_value(&a);
        } else if (cli_is(&a, "--unfused")) {
            j->fuse = false;
        } else if (!a.option && !j->file) {
            j->file = a.value;
        } else {
            return cli_unexpected(&a);
        }
    }
    if (!a.failed && !j->file)
        cli_error("run needs a file; see kiln help");
    return a.failed || !j->file ? CLI_USAGE : CLI_OK;
}

/* The ordinal as text or the name. */
static bool is_called(const struct binding *b, uint32_t ordinal, const char *name)
{
    char number[16];
    snprintf(number, sizeof number, "%u", ordinal);
    const char *either[] = {number, name};
    for (int i = 0; i < 2; i++)
        if (strlen(either[i]) == b->name_len && !memcmp(either[i], b->name, b->name_len))
            return true;
    return false;
}

static uint32_t find_leaf(const struct leaves *l, const struct binding *b)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (is_called(b, i, l->v[i].name))
            return i;
    cli_error("%s: the graph has no %s '%.*s'", b->option, b->option + 2, (int)b->name_len, b->name);
    return LEAF_NONE;
}

static bool fits_leaf(const struct job *j, const struct leaf *l, const struct array *a)
{
    const struct shape *s = &j->g->shape[l->shape];
    const struct binding *b = a->from;
    char want[SHAPE_TEXT], have[SHAPE_TEXT];
    if (a->npy.dtype == l->dtype && shape_equal(&a->npy.shape, s))
        return true;
    cli_error("%s: holds %s%s where the graph's %s '%.*s' is %s%s", b->value, dtype_name(a->npy.dtype),
              shape_text(&a->npy.shape, have, sizeof have), b->option + 2, (int)b->name_len, b->name,
              dtype_name(l->dtype), shape_text(s, want, sizeof want));
    return false;
}

static bool read_array(const struct job *j, const struct leaves *l, struct array *to, const struct binding *b)
{
    struct err e = {0};
    size_t len;
    uint32_t i = find_leaf(l, b);
    char *bytes = i == LEAF_NONE ? NULL : cli_read(b->value, &len);
    if (!bytes)
        return false;
    mem_free(to[i].bytes);
    to[i] = (struct array){.bytes = bytes, .from = b};
    if (npy_parse(bytes, len, &to[i].npy, &e))
        return shape_is_symbolic(&j->g->shape[l->v[i].shape]) || fits_leaf(j, &l->v[i], &to[i]);
    cli_error("%s: %s", b->value, e.msg);
    return false;
}

static bool read_arrays(struct job *j)
{
    for (unsigned i = 0; i < j->nbind; i++) {
        const struct binding *b = &j->bind[i];
        bool input = !strcmp(b->option, "--input");
        if ((input || !strcmp(b->option, "--state")) &&
            !read_array(j, input ? &j->g->input : &j->g->state, input ? j->read_input : j->read_state, b))
            return false;
    }
    return true;
}

/* ---- symbols: the shapes of the arrays say what they are ---- */

enum { WHAT = 160 };

static void add_extents(const struct graph *g, const struct leaves *l, const struct array *a, struct extents *x,
                        uint32_t *n, char (*what)[WHAT])
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (!a[i].bytes || !shape_is_symbolic(&g->shape[l->v[i].shape]))
            continue;
        snprintf(what[*n], WHAT, "%s: %s '%.*s'", a[i].from->value, a[i].from->option + 2, (int)a[i].from->name_len,
                 a[i].from->name);
        x[*n] = (struct extents){what[*n], g->shape[l->v[i].shape], a[i].npy.shape};
        ++*n;
    }
}

static bool find_values(struct job *j, int64_t *value)
{
    struct graph *g = j->g;
    struct err e = {0};
    uint32_t n = 0, most = g->input.n + g->state.n;
    struct extents *x = mem_alloc(most * sizeof *x);
    char (*what)[WHAT] = mem_alloc(most * sizeof *what);
    bool ok = x && what;
    if (ok) {
        add_extents(g, &g->input, j->read_input, x, &n, what);
        add_extents(g, &g->state, j->read_state, x, &n, what);
        ok = symbols_match(g, x, n, value, &e);
    }
    if (!ok)
        cli_error("%s", e.code ? e.msg : "out of memory");
    mem_free(x);
    mem_free(what);
    return ok;
}

static bool bind_symbols(struct job *j)
{
    struct graph *g = j->g;
    struct err e = {0};
    int64_t value[MAX_SYMBOLS];
    if (!cli_set_symbols(g, &j->values))
        return false;
    if (!g->symbols)
        return true;
    for (uint32_t i = 0; i < g->symbols->n; i++) {
        const struct symbol *s = &g->symbols->v[i];
        value[i] = s->low == s->high ? s->low : NO_VALUE;
    }
    if (!find_values(j, value))
        return false;
    for (uint32_t i = 0; i < g->symbols->n; i++) {
        if (value[i] == NO_VALUE) {
            cli_error("no array's shape says what symbol %s is: give --bind %s=NUMBER", g->symbols->v[i].name,
                      g->symbols->v[i].name);
            return false;
        }
        if (!graph_symbol_set(g, i, value[i], &e)) {
            cli_error("%s", e.msg);
            return false;
        }
    }
    return cli_bind(g);
}

/* ---- all leaves ---- */

static bool load_arrays(struct job *j, int device, const struct leaves *l, struct array *a, struct buffer **to)
{
    struct err e = {0};
    for (uint32_t i = 0; i < l->n; i++) {
        if (!a[i].bytes)
            continue;
        if (!fits_leaf(j, &l->v[i], &a[i]))
            return false;
        if (!(to[i] = buffer_new(device, a[i].npy.bytes, &e))) {
            cli_error("%s", e.msg);
            return false;
        }
        if (a[i].npy.bytes)
            memcpy(to[i]->data, a[i].npy.data, a[i].npy.bytes);
        mem_free(a[i].bytes);
        a[i].bytes = NULL;
    }
    return true;
}

static bool set_slot(struct job *j, const struct binding *b)
{
    const char *why;
    uint32_t i = find_leaf(&j->g->slot, b);
    if (i == LEAF_NONE)
        return false;
    if (!literal_parse(j->g->slot.v[i].dtype, b->value, strlen(b->value), &j->slot[i], &why)) {
        cli_error("--slot %.*s: %s (slot of %s)", (int)b->name_len, b->name, why, dtype_name(j->g->slot.v[i].dtype));
        return false;
    }
    return j->have_slot[i] = true;
}

/* Reports a leaf without value. */
static bool is_missing(const char *what, const struct leaves *l, uint32_t i, bool have)
{
    if (!have)
        cli_error("%s %u %s has no value: give --%s %u=...", what, i, l->v[i].name, what, i);
    return !have;
}

static bool bind_all(struct job *j, int device)
{
    struct graph *g = j->g;
    bool ok = true;
    for (unsigned i = 0; ok && i < j->nbind; i++)
        if (!strcmp(j->bind[i].option, "--slot"))
            ok = set_slot(j, &j->bind[i]);
    ok = ok && read_arrays(j);
    for (uint32_t i = 0; ok && i < g->input.n; i++)
        ok = !is_missing("input", &g->input, i, j->read_input[i].bytes);
    for (uint32_t i = 0; ok && i < g->state.n; i++)
        ok = !is_missing("state", &g->state, i, j->read_state[i].bytes);
    for (uint32_t i = 0; ok && i < g->slot.n; i++)
        ok = !is_missing("slot", &g->slot, i, j->have_slot[i]);
    return ok && bind_symbols(j) && load_arrays(j, device, &g->input, j->read_input, j->input) &&
           load_arrays(j, device, &g->state, j->read_state, j->state);
}

static const char *output_name(const struct graph *g, const struct output *o)
{
    return o->kind == OUT_ASSIGN ? g->state.v[o->state].name : "";
}

static bool check_outputs(const struct job *j)
{
    for (unsigned i = 0; i < j->nbind; i++) {
        const struct binding *b = &j->bind[i];
        bool found = strcmp(b->option, "--output") != 0;
        for (uint32_t k = 0; !found && k < j->g->nout; k++)
            found = is_called(b, k, output_name(j->g, &j->g->out[k]));
        if (!found) {
            cli_error("--output: no output is number or state '%.*s'", (int)b->name_len, b->name);
            return false;
        }
    }
    return true;
}

static bool write_array(const char *path, unsigned dtype, const struct shape *s, const void *data)
{
    if (dtype == KL_BF16) {
        cli_error("%s: a .npy array cannot hold bf16; cast it to f32 in the graph", path);
        return false;
    }
    FILE *f = fopen(path, "wb");
    bool ok = f && npy_write(f, dtype, s, data);
    int cause = errno;
    ok &= f && !fclose(f);
    if (!ok)
        cli_error("%s: %s", path, strerror(cause));
    return ok;
}

static void show_array(const struct output *o, uint32_t ordinal, const char *name, unsigned dtype,
                       const struct shape *s, const char *data)
{
    struct text t = {0};
    char buf[SHAPE_TEXT];
    int64_t n = shape_count(s);
    text_put(&t, "%s %u", o->kind == OUT_ASSIGN ? "assign" : "return", ordinal);
    if (*name) {
        text_put(&t, " ");
        text_quoted(&t, name);
    }
    text_put(&t, " : %s%s =", dtype_name(dtype), shape_text(s, buf, sizeof buf));
    for (int64_t i = 0; i < n && i < SHOWN; i++) {
        uint64_t bits = 0;
        memcpy(&bits, data + (size_t)i * dtype_size(dtype), dtype_size(dtype));
        text_put(&t, " ");
        text_literal(&t, dtype, bits);
    }
    puts(t.failed ? "out of memory" : t.s);
    if (n > SHOWN)
        printf("    and %lld more\n", (long long)(n - SHOWN));
    mem_free(t.s);
}

static bool give_outputs(const struct job *j)
{
    const struct graph *g = j->g;
    bool ok = true;
    for (uint32_t k = 0; k < g->nout; k++) {
        const struct output *o = &g->out[k];
        const struct node *n = node_at(g, o->value);
        const char *name = output_name(g, o);
        bool written = false;
        for (unsigned i = 0; i < j->nbind; i++)
            if (!strcmp(j->bind[i].option, "--output") && is_called(&j->bind[i], k, name)) {
                ok &= write_array(j->bind[i].value, n->dtype, node_shape(g, o->value), j->out[k]->data);
                written = true;
            }
        if (!written)
            show_array(o, k, name, n->dtype, node_shape(g, o->value), j->out[k]->data);
    }
    return ok;
}

static bool run_graph(struct job *j)
{
    struct graph *g = j->g;
    struct err e = {0};
    int device = cli_device(j->device);
    j->read_input = mem_alloc(g->input.n * sizeof *j->read_input);
    j->read_state = mem_alloc(g->state.n * sizeof *j->read_state);
    j->input = mem_alloc(g->input.n * sizeof *j->input);
    j->state = mem_alloc(g->state.n * sizeof *j->state);
    j->exclusive = mem_alloc(g->state.n * sizeof *j->exclusive);
    j->slot = mem_alloc(g->slot.n * sizeof *j->slot);
    j->have_slot = mem_alloc(g->slot.n * sizeof *j->have_slot);
    j->out = mem_alloc(g->nout * sizeof *j->out);
    if (!j->read_input || !j->read_state || !j->input || !j->state || !j->exclusive || !j->slot || !j->have_slot ||
        !j->out) {
        cli_error("out of memory");
        return false;
    }
    if (device < 0 || !check_outputs(j) || !bind_all(j, device))
        return false;
    for (uint32_t i = 0; i < g->state.n; i++)
        j->exclusive[i] = true;
    const struct exec *x = exec_get(g, device, j->fuse, &e);
    if (!x || !exec_run(x, j->input, j->state, j->exclusive, j->slot, j->out, &e)) {
        cli_error("%s", e.msg);
        return false;
    }
    return give_outputs(j);
}

static void free_arrays(struct array *a, uint32_t n)
{
    for (uint32_t i = 0; a && i < n; i++)
        mem_free(a[i].bytes);
    mem_free(a);
}

static void unref_all(struct buffer **b, uint32_t n)
{
    for (uint32_t i = 0; b && i < n; i++)
        buffer_unref(b[i]);
    mem_free(b);
}

int cli_run(int argc, char **argv)
{
    struct job j = {.fuse = option_fuse()};
    int status = parse_args(&j, argc, argv);
    if (status)
        return status;
    j.g = cli_load(j.file);
    bool ok = j.g && run_graph(&j);
    if (j.g) {
        free_arrays(j.read_input, j.g->input.n);
        free_arrays(j.read_state, j.g->state.n);
        unref_all(j.input, j.g->input.n);
        unref_all(j.state, j.g->state.n);
        unref_all(j.out, j.g->nout);
        mem_free(j.slot);
        mem_free(j.have_slot);
        mem_free(j.exclusive);
    }
    graph_free(j.g);
    return ok ? CLI_OK : CLI_FAILED;
}
