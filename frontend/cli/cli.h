/* The `kiln` command: one function for each subcommand, with the arguments after its name. */
#ifndef KILN_CLI_H
#define KILN_CLI_H
#ifndef KL_NO_CALL_SITES
#define KL_NO_CALL_SITES /* the command's own lines say nothing to its user */
#endif
#include "ir/ir.h"

enum { CLI_OK, CLI_FAILED, CLI_USAGE }; /* exit codes: success, error, wrong usage */

int cli_opt(int argc, char **argv);  /* cli/graph.c */
int cli_dump(int argc, char **argv);
enum { DIFF_SAME, DIFF_CHANGES, DIFF_TROUBLE }; /* its exit codes, as in diff(1) */
int cli_diff(int argc, char **argv);
int cli_run(int argc, char **argv);  /* cli/run.c */
int cli_check(int argc, char **argv); /* cli/check.c: exits as cli_diff */
int cli_compile(int argc, char **argv); /* cli/compile.c */
int cli_kernel(int argc, char **argv); /* cli/kernel.c */
int cli_ops(int argc, char **argv);  /* cli/ops.c */
int cli_bench(int argc, char **argv); /* cli/bench.c */
int cli_tune(int argc, char **argv); /* cli/bench.c */
int cli_profile(int argc, char **argv); /* cli/profile.c */
int cli_chart(int argc, char **argv); /* cli/chart.c */
int cli_cache(int argc, char **argv); /* cli/cache.c */
int cli_devices(int argc, char **argv);
int cli_summary(int argc, char **argv); /* cli/summary.c */
int cli_quantize(int argc, char **argv); /* cli/quantize.c */
int cli_train_log(int argc, char **argv); /* cli/train_log.c */
int cli_export(int argc, char **argv); /* cli/model.c */
int cli_dispatch(int argc, char **argv); /* cli/dispatch.c */
int cli_explain(int argc, char **argv);

/* ---- cli/main.c ---- */
struct cli_command {
    const char *name, *args, *doc;
    int (*run)(int argc, char **argv);
};
extern const struct cli_command cli_commands[];
extern const unsigned cli_command_count;
/* Iterates over the arguments.  An option's value is the next argument, or the text after '='. */
struct cli_args {
    int argc, at;
    char **argv;
    const char *option; /* the current option with its dashes; NULL: a plain argument */
    const char *value;  /* the plain argument; an option's value once cli_value was called */
    bool attached;      /* value came with '=' */
    bool failed;        /* an option without value: already reported */
};
bool cli_next(struct cli_args *a);               /* false: no more, or failed */
bool cli_is(const struct cli_args *a, const char *option);
const char *cli_value(struct cli_args *a);       /* the option's value; NULL: missing, and reported */
void cli_number(struct cli_args *a, void *number); /* for struct cli_option: a number from 0 on, a double */
int cli_unexpected(const struct cli_args *a);    /* reports the current argument; CLI_USAGE */
/* What a command does with an argument. */
struct cli_option {
    const char *name;      /* with its dashes; NULL: an argument without option or, with `take`, any that no row is */
    const char **value;    /* gets the text; without a name, if it has none yet */
    bool *flag, set;       /* or *flag becomes `set` */
    void (*take)(struct cli_args *a, void *ctx); /* or this handles it, and sets a->failed where it reports */
    void *ctx;
    bool needed;           /* *value must not stay NULL */
};
/* Reads all arguments by rows, which end with one of zeros; needs: of the message if a needed one is missing.
 * false: reported, CLI_USAGE. */
bool cli_parse(int argc, char **argv, const struct cli_option *rows, const char *needs);
int cli_error(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* "kiln: ..." on stderr; CLI_FAILED */
/* Reads a whole file, "-" for standard input, NUL-terminated; NULL: reported. */
char *cli_read(const char *path, size_t *len);
struct cli_values;
/* Reads a graph's text, or an ONNX model as a graph; values: of symbols, or NULL.  NULL: reported. */
struct graph *cli_load(const char *path, const struct cli_values *values);
int cli_device(const char *name);                /* of --device, NULL for the default; -1: reported */
/* reads the file of --schedules, or reports and sets a->failed; ctx is not used */
void cli_schedules(struct cli_args *a, void *ctx);
/* sets option order by the word of --order, or reports and sets a->failed; ctx is not used */
void cli_order(struct cli_args *a, void *ctx);
/* ---- cli/bind.c ---- */
struct cli_values {
    unsigned n;
    const char *name[MAX_SYMBOLS];
    size_t len[MAX_SYMBOLS];
    int64_t value[MAX_SYMBOLS], high[MAX_SYMBOLS]; /* the same but for --bind NAME=VALUE..HIGH */
    bool some; /* for several graphs, each of which has some of the symbols */
};
/* takes the value of --bind, or reports and sets a->failed; values: a struct cli_values */
void cli_bind_option(struct cli_args *a, void *values);
bool cli_set_symbols(struct graph *g, const struct cli_values *v); /* as graph_symbol_set; false: reported */
bool cli_bind(struct graph *g);                  /* as graph_bind; false: reported */

/* ---- cli/help.c ---- */
void cli_usage(FILE *f);
void cli_command_usage(FILE *f, const struct cli_command *c); /* of one command */
void cli_manual(FILE *f);                        /* as roff: the page kiln(1) */

/* ---- cli/model.c ---- */
struct cli_array { unsigned dtype; struct shape shape; const char *data; size_t bytes; };
/* Reads an array from a .npy file or, if it ends with .pb, a TensorProto; *bytes: the memory of out->data, for
 * mem_free. false: reported. */
bool cli_read_array(const char *path, char **bytes, struct cli_array *out);

/* ---- cli/run.c ---- */
struct text;
/* Writes an array as .npy; bf16_bits: bf16 is written as an array of u16. false: reported. */
bool cli_write_array(const char *path, unsigned dtype, const struct shape *s, const void *data, bool bf16_bits);
/* Prints a line with the type and first elements; frees t. */
void cli_show_array(struct text *t, unsigned dtype, const struct shape *s, const void *data);

#endif
