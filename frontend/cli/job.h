/* The graph and the values of kiln run, bench and profile. */
#ifndef KILN_CLI_JOB_H
#define KILN_CLI_JOB_H
#include "cli.h"
#include "ir/hash/xxh3.h"
#include "runtime/runtime.h"
#include <kiln/kiln.h>

struct job_value {                       /* --option name=value */
    const char *option, *name, *value;
    size_t name_len;
    uint32_t leaf;                       /* an input of a model: its leaf + 1, UINT32_MAX: none; else 0 */
    bool done;                           /* leaf is an ordinal of the graph, no longer of the model */
};
/* The contents of a file, for a leaf. */
struct job_array { char *bytes; struct cli_array array; const struct job_value *from; };

struct job {
    const char *file, *device_name;
    struct job_value *bind; /* room for one per argument */
    unsigned nbind;
    struct cli_values values; /* of symbols, --bind */
    int device;
    struct graph *g;
    struct job_array *read_input, *read_state;
    struct buffer **input, **state, **out;
    uint64_t *slot;
    bool *exclusive, *have_slot;
    bool gives_outputs;                  /* --output is one of its options */
    bool hashes;                         /* --hash: the results' hash is printed in place of the results */
    struct xxh3_state hash;              /* of the results so far */
    bool bf16_bits;                      /* --bf16-bits: .npy arrays of u16 hold bits of bf16 */
};

/* ---- cli/job.c ---- */
/* For struct cli_option, the last row: --device, --bind, --schedules, --order, --bf16-bits or a binding of an input,
 * state, slot or, for job->gives_outputs, output. */
void job_argument(struct cli_args *a, void *job);
bool job_is_called(const struct job_value *b, uint32_t ordinal, const char *name); /* by ordinal or name */
bool job_make_room(struct job *j);       /* for values of the graph's leaves; false: reported */
bool job_open(struct job *j);            /* reads the graph and finds the device; false: reported */
enum job_missing { MISSING_IS_ERROR, MISSING_MADE_UP, MISSING_LEFT };
/* Reads the values.  Of those that are not given, MISSING_MADE_UP generates all, MISSING_LEFT the slots only (buffers
 * stay NULL).  false: reported. */
bool job_bind(struct job *j, enum job_missing missing);
/* After MISSING_LEFT: random inputs and states, those of kiln check, which depend on the graph and the seed alone. */
bool job_fill(struct job *j, uint64_t seed);
/* The program, run once: j->out has new references.  false: *e. */
bool job_run(struct job *j, bool fuse, struct err *e);
/* A kl_bench_fn: one run in which states get their new values. */
kl_status job_step(void *job);
void job_rounds(struct cli_args *a, void *rounds); /* for struct cli_option: the value of --rounds, an int */
int job_end(struct job *j, int status);  /* frees it; status */
/* ---- cli/run.c ---- */
/* Prints a result that goes to no file, or adds it to the hash; frees `line`, what is printed before it. */
void job_show_result(struct job *j, struct text *line, unsigned dtype, const struct shape *s, const void *data);
/* ---- cli/bind.c ---- */
bool job_bind_symbols(struct job *j);    /* by --bind and by the arrays' shapes; false: reported */

/* ---- cli/model.c: ONNX models in place of a graph's text ---- */
bool cli_is_model(const char *path);     /* by its ending */
bool cli_model_run(struct job *j);       /* kiln run; false: reported, as below */
/* as job_open: reads a model as a graph, with the values of all leaves but its inputs */
bool cli_model_open(struct job *j);
/* The model as a graph, with input shapes from the file and `values` of its symbols.  NULL: reported. */
struct graph *cli_model_graph(const char *path, const char *device, const struct cli_values *values);
bool cli_model_compile(const char *path, const struct cli_values *values, kl_object *object, const char *prefix);

#endif
