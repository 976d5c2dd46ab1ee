/* ONNX models in place of a graph's text. */
#ifndef KILN_CLI_MODEL_H
#define KILN_CLI_MODEL_H
#include "job.h"
#include <kiln/kiln.h>

/* ---- cli/model.c ---- */
bool cli_is_model(const char *path);     /* by its ending */
bool cli_model_run(struct job *j);       /* kiln run; false: reported, as below */
/* as job_open: reads a model as a graph, with the values of all leaves but its inputs */
bool cli_model_open(struct job *j);
/* The model as a graph, with input shapes from the file and `values` of its symbols.  NULL: reported. */
struct graph *cli_model_graph(const char *path, const char *device, const struct cli_values *values);
bool cli_model_compile(const char *path, const struct cli_values *values, kl_object *object, const char *prefix);

#endif
