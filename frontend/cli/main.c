/* The `kiln` command: dispatches to its subcommands. */
#include "cli.h"
#include "job.h"
#include "runtime/runtime.h"
#include <errno.h>
#include <kiln/extend.h>
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

static const struct cli_command *find_command(const char *name)
{
    for (unsigned i = 0; i < cli_command_count; i++)
        if (!strcmp(name, cli_commands[i].name))
            return &cli_commands[i];
    return NULL;
}

static int print_help(int argc, char **argv)
{
    bool manual = argc == 1 && !strcmp(argv[0], "man");
    const struct cli_command *c = argc == 1 && !manual ? find_command(argv[0]) : NULL;
    if (argc && !manual && !c)
        return cli_error("unexpected argument '%s'; see kiln help", argv[argc - 1]), CLI_USAGE;
    if (c)
        cli_command_usage(stdout, c);
    else
        (manual ? cli_manual : cli_usage)(stdout);
    return CLI_OK;
}

/* FILE: a graph's text (.kir) or an ONNX model (.onnx) */
const struct cli_command cli_commands[] = {
    {"help", "[COMMAND | man]", "print this, or what one command takes, as kiln COMMAND --help does; man: as a manual\n"
     "      page, for man -l or mandoc", print_help},
    {"opt", "FILE [-p PASS,PASS...] [--bind SYMBOL=NUMBER] [-o FILE]",
     "run passes (all of the pipeline without -p) and print the graph",
     cli_opt},
    {"dump", "FILE --stage STAGE [--format text|dot|html] [--target TARGET] [--bind SYMBOL=NUMBER]\n"
     "           [--device DEVICE] [--unfused] [--schedules FILE] [--order graph|schedule] [-o FILE]",
     "print one stage of the way to machine code, as text or for Graphviz; html: a page with all stages; -o says the\n"
     "      format by its ending, too (.dot, .html)",
     cli_dump},
    {"diff", "A.kir B.kir",
     "what has changed from one graph to the other; exit code 0: nothing, 1: something, 2: they cannot be compared",
         cli_diff},
    {"run", "FILE [--input NAME=FILE.npy] [--state NAME=FILE.npy] [--slot NAME=NUMBER]\n"
     "           [--output NAME=FILE.npy] [--bf16-bits] [--bind SYMBOL=NUMBER] [--device DEVICE] [--unfused]\n"
     "           [--schedules FILE] [--order graph|schedule] [--hash] [--seed N]",
     "run the graph; outputs that go to no file are printed; a NAME is a number, a leaf's or return's name in\n"
     "      quotes, or the %x of a return; symbols are what the arrays' shapes say; a model is run once for each\n"
     "      --input of one NAME, on one program for all lengths where its operators allow that; --bf16-bits: .npy\n"
     "      arrays of u16 hold bits of bf16; --hash: print one number of 128 bits in place of all outputs, which\n"
     "      depends on their types, shapes and elements (any NaN is one) and on nothing of the machine; --seed:\n"
     "      inputs and states that are not given are random, those of kiln check with this seed, slots a constant",
     cli_run},
    {"check", "FILE [--device DEVICE] [--input NAME=FILE.npy] [--state NAME=FILE.npy] [--slot NAME=NUMBER]\n"
     "           [--bind SYMBOL=NUMBER] [--bf16-bits] [--schedules FILE] [--order graph|schedule] [--seed N]\n"
     "           [--tolerance X] [--seconds S] [-o SMALL.kir]",
     "run the graph unfused and fused, and compare with the interpreter; values that are not given are random. If\n"
     "      they differ: the first pass or kernel and node that does, and in SMALL.kir (FILE.check.kir) the smallest\n"
     "      graph found within S seconds (60) that does; --tolerance: the largest difference, as a share of the\n"
     "      largest value (0 on processors and with --order graph, where bits are equal); exit code 0: no\n"
     "      difference, 1: some, 2: it cannot be compared",
     cli_check},
    {"compile", "[NAME=]FILE.. -o FILE.o --header FILE.h [--emit object|c] [--prefix NAME] [--target TARGET]\n"
     "           [--bind SYMBOL=NUMBER or LOW..HIGH] [--unfused] [--schedules FILE] [--weights inside|file]",
     "compile graphs to an object that runs without Kiln's compiler, linked with libkiln-aot.a, or with --emit c\n"
     "      to one C99 file (-o FILE.c) that needs nothing and has its declarations, too; a model's weights are in\n"
     "      it, or with --weights file beside it, in FILE.weights; TARGET, which may also be given by --cpu: baseline\n"
     "      (also without it), x86-64 (v3), x86-64-v3, x86-64-v4, aarch64, armv8.4-a, armv8.6-a, native", cli_compile},
    {"kernel", "FILE.loop [--stage STAGE] [--target TARGET] [--run] [--input bN=FILE.npy] [--slot N=NUMBER]\n"
     "           [--output bN=FILE.npy] [--bf16-bits] [--device DEVICE]",
     "check kernels and print them or their code; --run one: outputs that go to no file are printed", cli_kernel},
    {"ops", "[OP...]", "the table of ops, or all that is known of some, or of functions such as softmax", cli_ops},
    {"dispatch", "[OP...]", "the dispatch keys, or all that is registered for some ops and their tables", cli_dispatch},
    {"explain", "OP [TYPE...] [--device DEVICE] [--target TARGET]",
     "what becomes of a call of an op on tensors such as f32[2,3]: keys, table, recorded nodes, kernels, source",
         cli_explain},
    {"cache", "list | verify | prune [--max BYTES] | clear",
     "the kernels kept on disk: show them, look for damaged ones, remove the least recently used, remove all",
         cli_cache},
    {"bench", "FILE [--json FILE] [--svg FILE] [--rounds N] [--device DEVICE]\n"
     "           [--input NAME=FILE.npy] [--state NAME=FILE.npy] [--slot NAME=NUMBER] [--bind SYMBOL=NUMBER]\n"
     "           [--bf16-bits] [--schedules FILE] [--order graph|schedule]",
     "measure the graph fused and unfused, kernel by kernel; values that are not given are made up", cli_bench},
    {"devices", "", "the devices of this machine, or why there are none of a kind", cli_devices},
    {"profile", "FILE [--trace FILE.json] [--page FILE.html] [--rounds N] [--device DEVICE] [--unfused]\n"
     "           [--input NAME=FILE.npy] [--state NAME=FILE.npy] [--slot NAME=NUMBER] [--bind SYMBOL=NUMBER]\n"
     "           [--bf16-bits] [--order graph|schedule]",
     "run the graph N times: the time of each kernel and source line; --trace: a timeline for ui.perfetto.dev;\n"
     "      --page: all stages and kernels, with these times", cli_profile},
    {"tune", "FILE [--seconds SECONDS] [--device DEVICE] [--input NAME=FILE.npy] [--state NAME=FILE.npy]\n"
     "           [--slot NAME=NUMBER] [--bind SYMBOL=NUMBER] [--bf16-bits] [--order graph|schedule]",
     "measure other schedules for the graph's kernels, for at most so long (30), and keep the fastest beside the\n"
     "      compiled kernels, for this processor and number of threads: later runs use them; results are the same bits",
     cli_tune},
    {"summary", "FILE.safetensors | FILE.gguf | FILE.npz | FILE.npy | FILE.onnx",
     "the tensors of a file, or of an index of several (.index.json): names, types, shapes, bytes and their sums;\n"
     "      metadata; a model's inputs and outputs",
     cli_summary},
    {"quantize", "IN OUT.gguf --type TYPE [--embedding TYPE]",
     "write the tensors of a GGUF or safetensors file, or of an index of several (.index.json), as GGUF,\n"
     "      matrices as q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4, f16, bf16\n"
     "      or f32; these stay as they are: tensors of one axis and of integers, and tables of embeddings (names with\n"
     "      embd, embed, wte. or wpe.), unless --embedding names a type for them; rows whose length is no multiple of\n"
     "      a type's block (256 elements of types with k and of iq4_xs, 32 of others) become q4_0 for q2_k and q3_k,\n"
     "      q5_0 for q4_k, q5_1 for q5_k, q8_0 for q6_k, iq4_nl for iq4_xs, or stay; names and metadata are copied,\n"
     "      but for general.file_type and general.quantization_version, which are llama.cpp's", cli_quantize},
    {"export", "FILE -o FILE.onnx [--bind NAME=NUMBER ..]",
     "a graph as an ONNX model: its inputs, states and slots become inputs", cli_export},
    {"train-log", "FILE.jsonl [-o FILE.html]", "curves of the loss and rate of a training run (kl_train_loop.log)",
     cli_train_log},
    {"chart", "RESULTS.json [-o FILE.svg]", "draw the results of benchmarks", cli_chart},
};
const unsigned cli_command_count = sizeof cli_commands / sizeof *cli_commands;

int cli_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("kiln: ", stderr);
    format_file_v(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return CLI_FAILED;
}

bool cli_next(struct cli_args *a)
{
    if (a->failed || a->at >= a->argc)
        return false;
    const char *s = a->argv[a->at++];
    a->attached = false;
    if (s[0] != '-' || !s[1]) { /* "-" alone is a file */
        a->option = NULL;
        a->value = s;
        return true;
    }
    a->option = s;
    const char *eq = strchr(s, '=');
    a->value = eq ? eq + 1 : NULL;
    a->attached = eq != NULL;
    return true;
}

bool cli_is(const struct cli_args *a, const char *option)
{
    if (!a->option)
        return false;
    size_t n = a->attached ? (size_t)(a->value - 1 - a->option) : strlen(a->option);
    return strlen(option) == n && !memcmp(option, a->option, n);
}

const char *cli_value(struct cli_args *a)
{
    if (!a->attached) {
        a->value = a->at < a->argc ? a->argv[a->at++] : NULL;
        if (!a->value) {
            a->failed = true;
            cli_error("%s needs a value", a->option);
        }
    }
    return a->value;
}

void cli_number(struct cli_args *a, void *number)
{
    const char *s = cli_value(a);
    char *end = NULL;
    double v = s ? kl_parse_f64(s, &end) : 0;
    if (s && (end == s || *end || !(v >= 0) || isinf(v)))
        a->failed = cli_error("%s: '%s' is no number from 0 on", a->option, s) != CLI_OK;
    *(double *)number = v;
}

int cli_unexpected(const struct cli_args *a)
{
    if (a->option)
        cli_error("unknown option %s; see kiln help", a->option);
    else
        cli_error("unexpected argument '%s'; see kiln help", a->value);
    return CLI_USAGE;
}

/* Does the row handle the current argument? */
static bool cli_option_takes(struct cli_args *a, const struct cli_option *o)
{
    if (o->name ? !cli_is(a, o->name) : !o->take && (a->option || *o->value))
        return false;
    if (o->take)
        o->take(a, o->ctx);
    else if (o->flag)
        *o->flag = o->set;
    else
        *o->value = o->name ? cli_value(a) : a->value;
    return true;
}

bool cli_parse(int argc, char **argv, const struct cli_option *rows, const char *needs)
{
    struct cli_args a = {.argc = argc, .argv = argv};
    while (cli_next(&a)) {
        const struct cli_option *o = rows;
        while ((o->name || o->value || o->take) && !cli_option_takes(&a, o))
            o++;
        if (!o->name && !o->value && !o->take)
            a.failed = cli_unexpected(&a) != CLI_OK;
    }
    bool missing = false;
    for (const struct cli_option *o = rows; o->name || o->value || o->take; o++)
        missing |= o->needed && !*o->value;
    if (!a.failed && missing)
        cli_error("%s; see kiln help", needs);
    return !a.failed && !missing;
}

char *cli_read(const char *path, size_t *len)
{
    struct err e = {0};
    bool in = !strcmp(path, "-");
    char *s = in ? text_stream_read(stdin, len) : text_file_read(path, len, &e);
    if (in && (!s || ferror(stdin))) {
        err_set(&e, KL_ERR_IO, "standard input: %s", s ? strerror(errno) : "out of memory");
        mem_free(s);
        s = NULL;
    }
    if (!s)
        cli_error("%s", e.msg);
    return s;
}

struct graph *cli_load(const char *path, const struct cli_values *values)
{
    size_t len;
    struct err e = {0};
    if (cli_is_model(path))
        return cli_model_graph(path, NULL, values);
    char *s = cli_read(path, &len);
    if (!s)
        return NULL;
    struct graph *g = graph_parse(s, len, strcmp(path, "-") ? path : "stdin", &e);
    if (!g)
        fprintf(stderr, "%s\n", e.msg);
    mem_free(s);
    if (g && values && !cli_set_symbols(g, values)) {
        graph_free(g);
        return NULL;
    }
    return g;
}

void cli_schedules(struct cli_args *a, void *ctx)
{
    (void)ctx;
    const char *path = cli_value(a);
    size_t len;
    struct err e = {0};
    char *s = path ? cli_read(path, &len) : NULL;
    bool ok = s && schedules_set(s, len, strcmp(path, "-") ? path : "stdin", &e);
    if (s && !ok)
        fprintf(stderr, "%s\n", e.msg);
    mem_free(s);
    a->failed |= !ok;
}

void cli_order(struct cli_args *a, void *ctx)
{
    (void)ctx;
    const char *word = cli_value(a);
    struct err e = {0};
    int order = option_order_of(word);
    if (word && order < 0)
        a->failed = cli_error("--order is graph or schedule, not '%s'", word) != CLI_OK;
    else if (word)
        option_set("order", order, &e);
}

int cli_device(const char *name)
{
    struct err e = {0};
    const char *why = "";
    int device = name ? device_find(name, &e) : device_default(&why, &e);
    if (device < 0)
        cli_error("%s", e.msg);
    else if (*why && device == DEVICE_REF)
        fprintf(stderr, "kiln: using device %s: %s\n", device_name(device), why);
    return device;
}

static void main_print_log(void *ctx, const char *text)
{
    (void)ctx;
    fprintf(stderr, "kiln: %s\n", text);
}

static bool is_help(const char *argument) { return !strcmp(argument, "--help") || !strcmp(argument, "-h"); }

int main(int argc, char **argv)
{
    environment_check(main_print_log, NULL);
    log_from_environment();
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "--version") && argc == 2)
        return printf("kiln %s\n", kl_version()), CLI_OK;
    if (is_help(name))
        name = "help";
    const struct cli_command *c = find_command(name);
    if (c && argc == 3 && is_help(argv[2]))
        return cli_command_usage(stdout, c), CLI_OK;
    if (c)
        return c->run(argc - 2, argv + 2);
    if (*name)
        cli_error("no command is called '%s'", name);
    cli_usage(stderr);
    return CLI_USAGE;
}
