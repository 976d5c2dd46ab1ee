/* kiln run: runs a graph's text on arrays from files. */
#include "job.h"
#include "runtime/runtime.h"
#include "ir/text/text.h"
#include <kiln/train.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { SHOWN = 32 };

/* For an assignment the state's name; for a return the quoted name, or the value's name in the text. */
static const char *output_name(const struct graph *g, uint32_t k)
{
    bool written;
    return g->out[k].kind == OUT_ASSIGN ? g->state.v[g->out[k].state].name : graph_output_name(g, k, &written);
}

/* Each --output must name one output. */
static bool check_outputs(const struct job *j)
{
    for (unsigned i = 0; i < j->nbind; i++) {
        const struct job_value *b = &j->bind[i];
        uint32_t found = 0;
        if (strcmp(b->option, "--output"))
            continue;
        for (uint32_t k = 0; k < j->g->nout; k++)
            found += job_is_called(b, k, output_name(j->g, k));
        if (found == 1)
            continue;
        if (found)
            cli_error("--output: %u outputs are called '%.*s': use their numbers", found, (int)b->name_len, b->name);
        else
            cli_error("--output: no output has the number or name '%.*s'", (int)b->name_len, b->name);
        return false;
    }
    return true;
}

bool cli_write_array(const char *path, unsigned dtype, const struct shape *s, const void *data, bool bf16_bits)
{
    if (dtype == KL_BF16 && bf16_bits)
        dtype = KL_U16;
    if (dtype == KL_BF16) {
        cli_error("%s: a .npy array cannot hold bf16; cast it to f32 in the graph, or write its bits with --bf16-bits",
                  path);
        return false;
    }
    kl_file_item item = {.name = "", .dtype = (kl_dtype)dtype, .rank = (int)s->rank, .dims = s->dim, .data = data};
    if (kl_file_write(path, KL_FILE_NPY, 1, &item, 0, NULL) == KL_OK)
        return true;
    cli_error("%s", kl_last_error());
    return false;
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

/* Adds a result to the hash: its dtype's number, rank and lengths in 8 bytes each, then its elements, all with the
 * least byte first.  Every NaN counts as the same one: sign and payload of a computed one are not defined. */
static void hash_result(struct xxh3_state *h, unsigned dtype, const struct shape *s, const char *data)
{
    unsigned char bytes[4096];
    size_t size = dtype_size(dtype), n = 0;
    int64_t count = shape_count(s), head = 2 + (int64_t)s->rank;
    for (int64_t i = -head; i < count; i++) {
        uint64_t bits = i + head == 0 ? dtype : i + head == 1 ? s->rank : i < 0 ? (uint64_t)s->dim[i + head - 2] : 0;
        size_t width = i < 0 ? 8 : size;
        if (i >= 0)
            memcpy(&bits, data + (size_t)i * size, size);
        if (i >= 0 && dtype_is_float(dtype) && isnan(dtype_value(dtype, bits)))
            bits = dtype_bits(dtype, NAN);
        for (size_t b = 0; b < width; b++)
            bytes[n++] = (unsigned char)(bits >> (8 * b));
        if (n + 8 > sizeof bytes || i + 1 == count) {
            xxh3_update(h, bytes, n);
            n = 0;
        }
    }
}

void job_show_result(struct job *j, struct text *line, unsigned dtype, const struct shape *s, const void *data)
{
    if (!j->hashes) {
        cli_show_array(line, dtype, s, data);
        return;
    }
    hash_result(&j->hash, dtype, s, data);
    mem_free(line->s);
}

static void show_output(struct job *j, uint32_t k, unsigned dtype, const char *data)
{
    const struct graph *g = j->g;
    struct text t = {0};
    bool assign = g->out[k].kind == OUT_ASSIGN, written = true;
    const char *name = assign ? g->state.v[g->out[k].state].name : graph_output_name(g, k, &written);
    text_put(&t, "%s %u", assign ? "assign" : "return", k);
    if (written && *name) {
        text_put(&t, " ");
        text_quoted(&t, name);
    }
    job_show_result(j, &t, dtype, node_shape(g, g->out[k].value), data);
}

static bool give_outputs(struct job *j)
{
    const struct graph *g = j->g;
    bool ok = true;
    for (uint32_t k = 0; k < g->nout; k++) {
        const struct output *o = &g->out[k];
        const struct node *n = node_at(g, o->value);
        const char *name = output_name(g, k);
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
                ok &= cli_write_array(j->bind[i].value, n->dtype, node_shape(g, o->value), data, j->bf16_bits);
                written = true;
            }
        if (!written || j->hashes)
            show_output(j, k, n->dtype, data);
        mem_free(data);
    }
    return ok;
}

/* The graph's program, once, and its outputs.  seed: of the values that are not given; < 0: all are. */
static bool run_graph(struct job *j, bool fuse, double seed)
{
    struct err e = {0};
    if (!job_open(j) || !check_outputs(j) || !job_bind(j, seed < 0 ? MISSING_IS_ERROR : MISSING_LEFT) ||
        (seed >= 0 && !job_fill(j, (uint64_t)seed)))
        return false;
    if (!job_run(j, fuse, &e))
        return cli_error("%s", e.msg) == CLI_OK;
    return give_outputs(j);
}

int cli_run(int argc, char **argv)
{
    struct job j = {.gives_outputs = true};
    bool fuse = option_fuse();
    double seed = -1;
    const struct cli_option options[] = {{"--unfused", .flag = &fuse, .set = false},
                                         {"--seed", .take = cli_number, .ctx = &seed},
                                         {"--hash", .flag = &j.hashes, .set = true},
                                         {.value = &j.file, .needed = true}, {.take = job_argument, .ctx = &j}, {0}};
    if (!cli_parse(argc, argv, options, "run needs a file"))
        return job_end(&j, CLI_USAGE);
    bool model = cli_is_model(j.file) && seed < 0;
    if (model)
        option_fuse_here(fuse);
    xxh3_begin(&j.hash);
    bool ok = model ? cli_model_run(&j) : run_graph(&j, fuse, seed);
    struct xxh3_128 sum = xxh3_end(&j.hash);
    if (ok && j.hashes)
        printf("hash %016" PRIx64 "%016" PRIx64 "\n", sum.high, sum.low);
    return job_end(&j, ok ? CLI_OK : CLI_FAILED);
}
