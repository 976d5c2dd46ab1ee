/* Values for a graph's inputs, states and slots, from files or generated, and runs of its program. */
#include "job.h"
#include "frontend/check/check.h"
#include "frontend/frontend.h"
#include "ir/graph/custom.h"
#include "ir/text/text.h"
#include <stdlib.h>
#include <string.h>

static bool add_binding(struct job *j, struct cli_args *a, const char *option)
{
    const char *v = cli_value(a), *eq = v ? strchr(v, '=') : NULL;
    if (!v)
        return false;
    if (!eq || eq == v || !eq[1])
        return cli_error("%s needs NAME=VALUE, not '%s'", option, v) == CLI_OK;
    if (!j->bind && !(j->bind = mem_alloc((size_t)a->argc * sizeof *j->bind)))
        return cli_error("out of memory") == CLI_OK;
    j->bind[j->nbind++] = (struct job_value){option, v, eq + 1, (size_t)(eq - v), 0, false};
    return true;
}

void job_argument(struct cli_args *a, void *job)
{
    static const char *const binders[] = {"--input", "--state", "--slot", "--output"};
    struct job *j = job;
    for (int i = 0; i < (j->gives_outputs ? 4 : 3); i++)
        if (cli_is(a, binders[i])) {
            a->failed |= !add_binding(j, a, binders[i]);
            return;
        }
    if (cli_is(a, "--bind"))
        cli_bind_option(a, &j->values);
    else if (cli_is(a, "--bf16-bits"))
        j->bf16_bits = true;
    else if (cli_is(a, "--schedules"))
        cli_schedules(a, NULL);
    else if (cli_is(a, "--order"))
        cli_order(a, NULL);
    else if (cli_is(a, "--device"))
        j->device_name = cli_value(a);
    else
        a->failed = cli_unexpected(a) != CLI_OK;
}

/* Does the option name this leaf, by ordinal or name? */
bool job_is_called(const struct job_value *b, uint32_t ordinal, const char *name)
{
    char number[16];
    snprintf(number, sizeof number, "%u", ordinal);
    const char *either[] = {number, name};
    for (int i = 0; i < 2; i++)
        if (strlen(either[i]) == b->name_len && !memcmp(either[i], b->name, b->name_len))
            return true;
    return false;
}

static uint32_t find_leaf(const struct leaves *l, const struct job_value *b)
{
    if (b->leaf)
        return b->leaf - 1;
    for (uint32_t i = 0; i < l->n; i++)
        if (job_is_called(b, i, l->v[i].name))
            return i;
    cli_error("%s: the graph has no %s '%.*s'", b->option, b->option + 2, (int)b->name_len, b->name);
    return LEAF_NONE;
}

static bool fits_leaf(const struct job *j, const struct leaf *l, const struct job_array *a)
{
    const struct shape *s = &j->g->shape[l->shape];
    const struct job_value *b = a->from;
    char want[SHAPE_TEXT], have[SHAPE_TEXT];
    bool bits = l->dtype == KL_BF16 && a->array.dtype == KL_U16;
    if ((a->array.dtype == l->dtype || (bits && j->bf16_bits)) && shape_equal(&a->array.shape, s))
        return true;
    cli_error("%s: holds %s%s where the graph's %s '%.*s' is %s%s%s", b->value, dtype_name(a->array.dtype),
              shape_text(&a->array.shape, have, sizeof have), b->option + 2, (int)b->name_len, b->name,
              dtype_name(l->dtype), shape_text(s, want, sizeof want),
              bits && !j->bf16_bits ? "; --bf16-bits takes it as bits of bf16" : "");
    return false;
}

static bool read_array(const struct job *j, const struct leaves *l, struct job_array *to, const struct job_value *b)
{
    uint32_t i = find_leaf(l, b);
    if (i == LEAF_NONE)
        return false;
    mem_free(to[i].bytes);
    to[i] = (struct job_array){.from = b};
    if (!cli_read_array(b->value, &to[i].bytes, &to[i].array))
        return false;
    return shape_is_symbolic(&j->g->shape[l->v[i].shape]) || fits_leaf(j, &l->v[i], &to[i]);
}

static bool read_arrays(struct job *j)
{
    for (unsigned i = 0; i < j->nbind; i++) {
        const struct job_value *b = &j->bind[i];
        bool input = !strcmp(b->option, "--input");
        if (b->leaf != UINT32_MAX && (input || !strcmp(b->option, "--state")) &&
            !read_array(j, input ? &j->g->input : &j->g->state, input ? j->read_input : j->read_state, b))
            return false;
    }
    return true;
}

static unsigned leaf_op(const struct job *j, const struct leaves *l) { return l == &j->g->input ? OP_input : OP_state; }

static struct buffer *leaf_buffer(const struct job *j, const struct leaves *l, uint32_t i, const void *data,
                                  size_t bytes)
{
    struct err e = {0};
    struct buffer *b = buffer_new(exec_leaf_device(j->g, j->device, leaf_op(j, l), i), bytes, &e);
    if (b && buffer_write(b, data, bytes, &e))
        return b;
    cli_error("%s", e.msg);
    buffer_unref(b);
    return NULL;
}

static bool load_arrays(struct job *j, const struct leaves *l, struct job_array *a, struct buffer **to)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (!a[i].bytes)
            continue;
        if (!fits_leaf(j, &l->v[i], &a[i]))
            return false;
        if (!(to[i] = leaf_buffer(j, l, i, a[i].array.data, a[i].array.bytes)))
            return false;
        mem_free(a[i].bytes);
        a[i].bytes = NULL;
    }
    return true;
}

static bool set_slot(struct job *j, const struct job_value *b)
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

/* Makes up values for the leaves that have none. */
static bool fill_leaves(const struct job *j, const struct leaves *l, struct buffer **to)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct err e = {0};
        int device = exec_leaf_device(j->g, j->device, leaf_op(j, l), i);
        if (!to[i] && !(to[i] = values_buffer(device, l->v[i].dtype, shape_count(&j->g->shape[l->v[i].shape]), &e)))
            return cli_error("%s", e.msg), false;
    }
    return true;
}

static bool copy_leaves(const struct job *j, const struct leaves *l, void *const *from, struct buffer **to)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (!to[i] && !(to[i] = leaf_buffer(j, l, i, from[i], check_leaf_bytes(j->g, &l->v[i]))))
            return false;
    return true;
}

bool job_fill(struct job *j, uint64_t seed)
{
    struct check_values v = {0};
    struct err e = {0};
    bool ok = check_values_made_up(&v, j->g, seed, &e) || (cli_error("%s", e.msg), false);
    ok = ok && copy_leaves(j, &j->g->input, v.input, j->input) && copy_leaves(j, &j->g->state, v.state, j->state);
    check_values_free(&v);
    return ok;
}

static bool fill_slots(struct job *j)
{
    for (uint32_t i = 0; i < j->g->slot.n; i++)
        if (!j->have_slot[i])
            j->slot[i] = values_slot(j->g->slot.v[i].dtype);
    return true;
}

bool job_bind(struct job *j, enum job_missing missing)
{
    struct graph *g = j->g;
    bool ok = true, all = missing == MISSING_IS_ERROR;
    for (unsigned i = 0; ok && i < j->nbind; i++)
        if (!strcmp(j->bind[i].option, "--slot"))
            ok = set_slot(j, &j->bind[i]);
    ok = ok && read_arrays(j);
    for (uint32_t i = 0; ok && all && i < g->input.n; i++)
        ok = !is_missing("input", &g->input, i, j->read_input[i].bytes);
    for (uint32_t i = 0; ok && all && i < g->state.n; i++)
        ok = !is_missing("state", &g->state, i, j->read_state[i].bytes || j->state[i]);
    for (uint32_t i = 0; ok && all && i < g->slot.n; i++)
        ok = !is_missing("slot", &g->slot, i, j->have_slot[i]);
    ok = ok && job_bind_symbols(j) && load_arrays(j, &g->input, j->read_input, j->input) &&
         load_arrays(j, &g->state, j->read_state, j->state);
    if (ok && missing == MISSING_MADE_UP)
        ok = fill_leaves(j, &g->input, j->input) && fill_leaves(j, &g->state, j->state);
    return ok && (all || fill_slots(j));
}

bool job_make_room(struct job *j)
{
    struct graph *g = j->g;
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
    for (uint32_t i = 0; i < g->state.n; i++)
        j->exclusive[i] = true;
    j->device = cli_device(j->device_name);
    return j->device >= 0;
}

bool job_open(struct job *j)
{
    if (cli_is_model(j->file))
        return cli_model_open(j);
    j->g = cli_load(j->file, NULL);
    return j->g && job_make_room(j);
}

bool job_run(struct job *j, bool fuse, struct err *e)
{
    const struct exec *x = exec_get(j->g, j->device, fuse, e);
    bool ok = x && exec_run_checked(x, j->g, j->input, j->state, j->exclusive, j->slot, j->out, e);
    exec_unref(x);
    if (!ok)
        custom_locate(j->g, e);
    return ok;
}

/* One run; the buffer of a state that was not updated in place is replaced by its new value. */
kl_status job_step(void *ctx)
{
    struct job *j = ctx;
    struct err e = {0};
    if (!job_run(j, option_fuse(), &e))
        return report_err(&e);
    for (uint32_t k = 0; k < j->g->nout; k++) {
        const struct output *o = &j->g->out[k];
        if (o->kind == OUT_ASSIGN) {
            buffer_unref(j->state[o->state]);
            j->state[o->state] = j->out[k];
        } else {
            buffer_unref(j->out[k]);
        }
        j->out[k] = NULL;
    }
    return KL_OK;
}

void job_rounds(struct cli_args *a, void *rounds)
{
    const char *s = cli_value(a);
    char *end;
    long n = s ? strtol(s, &end, 10) : 0;
    if (s && (!*s || *end || n < 1 || n > 1000))
        a->failed = cli_error("--rounds: '%s' is not a number from 1 to 1000", s) != CLI_OK;
    *(int *)rounds = (int)n;
}

static void free_arrays(struct job_array *a, uint32_t n)
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

int job_end(struct job *j, int status)
{
    if (j->g) {
        free_arrays(j->read_input, j->g->input.n);
        free_arrays(j->read_state, j->g->state.n);
        unref_all(j->input, j->g->input.n);
        unref_all(j->state, j->g->state.n);
        unref_all(j->out, j->g->nout);
    }
    mem_free(j->bind);
    mem_free(j->slot);
    mem_free(j->have_slot);
    mem_free(j->exclusive);
    graph_free(j->g);
    return status;
}
