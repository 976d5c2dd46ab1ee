/* ONNX models where a graph's text goes. */
#ifndef KILN_CLI_MODEL_H
#define KILN_CLI_MODEL_H
#include "job.h"
#include <kiln/kiln.h>

/* ---- cli/model.c ---- */
bool cli_is_model(const char *path);     /* by its ending */
bool cli_model_run(struct job *j);       /* kiln run; false: reported, as below */
bool cli_model_open(struct job *j);      /* job_open of a model: the graph, and the values of all but its inputs */
/* The model on inputs whose shapes it says, or `values` of its symbols.  NULL: reported. */
struct graph *cli_model_graph(const char *path, const char *device, const struct cli_values *values);
bool cli_model_compile(const char *path, const struct cli_values *values, kl_object *object, const char *prefix);

#endif
