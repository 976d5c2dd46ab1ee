/* kiln run: a graph's text, arrays in, arrays out. */
#include "job.h"
#include "npy.h"
#include "ir/text/text.h"
#include <errno.h>
#include <string.h>

enum { SHOWN = 32 };

static const char *output_name(const struct graph *g, const struct output *o)
{
    return o->kind == OUT_ASSIGN ? g->state.v[o->state].name : "";
}

static bool check_outputs(const struct job *j)
{
    for (unsigned i = 0; i < j->nbind; i++) {
        const struct job_value *b = &j->bind[i];
        bool found = strcmp(b->option, "--output") != 0;
        for (uint32_t k = 0; !found && k < j->g->nout; k++)
            found = job_is_called(b, k, output_name(j->g, &j->g->out[k]));
        if (!found) {
            cli_error("--output: no output is number or state '%.*s'", (int)b->name_len, b->name);
            return false;
        }
    }
    return true;
}

bool cli_write_array(const char *path, unsigned dtype, const struct shape *s, const void *data)
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

void cli_show_array(struct text *t, unsigned dtype, const struct shape *s, const void *data)
{
    char buf[SHAPE_TEXT];
    int64_t n = shape_count(s);
    text_put(t, " : %s%s =", dtype_name(dtype), shape_text(s, buf, sizeof buf));
    for (int64_t i = 0; i < n && i < SHOWN; i++) {
        uint64_t bits = 0;
        memcpy(&bits, (const char *)data + (size_t)i * dtype_size(dtype), dtype_size(dtype));
        text_put(t, " ");
        text_literal(t, dtype, bits);
    }
    puts(t->failed ? "out of memory" : t->s);
    if (n > SHOWN)
        printf("    and %lld more\n", (long long)(n - SHOWN));
    mem_free(t->s);
}

static void show_output(const struct output *o, uint32_t ordinal, const char *name, unsigned dtype,
                        const struct shape *s, const char *data)
{
    struct text t = {0};
    text_put(&t, "%s %u", o->kind == OUT_ASSIGN ? "assign" : "return", ordinal);
    if (*name) {
        text_put(&t, " ");
        text_quoted(&t, name);
    }
    cli_show_array(&t, dtype, s, data);
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
        size_t bytes = node_bytes(g, o->value);
        struct err e = {0};
        char *data = mem_alloc(bytes + 1);
        if (!data || !buffer_read(j->out[k], data, bytes, &e)) {
            cli_error("%s", data ? e.msg : "out of memory");
            mem_free(data);
            return false;
        }
        for (unsigned i = 0; i < j->nbind; i++)
            if (!strcmp(j->bind[i].option, "--output") && job_is_called(&j->bind[i], k, name)) {
                ok &= cli_write_array(j->bind[i].value, n->dtype, node_shape(g, o->value), data);
                written = true;
            }
        if (!written)
            show_output(o, k, name, n->dtype, node_shape(g, o->value), data);
        mem_free(data);
    }
    return ok;
}

int cli_run(int argc, char **argv)
{
    static const char *const binders[] = {"--input", "--state", "--slot", "--output", NULL};
    struct cli_args a = {.argc = argc, .argv = argv};
    struct job j = {0};
    bool fuse = option_fuse();
    while (cli_next(&a)) {
        if (cli_is(&a, "--unfused"))
            fuse = false;
        else if (!job_argument(&j, &a, binders))
            return job_free(&j), CLI_USAGE;
    }
    if (a.failed || !j.file) {
        if (!a.failed)
            cli_error("run needs a file; see kiln help");
        job_free(&j);
        return CLI_USAGE;
    }
    struct err e = {0};
    bool ok = job_open(&j) && check_outputs(&j) && job_bind(&j, false);
    if (ok && !job_run(&j, fuse, &e)) {
        cli_error("%s", e.msg);
        ok = false;
    }
    ok = ok && give_outputs(&j);
    job_free(&j);
    return ok ? CLI_OK : CLI_FAILED;
}
