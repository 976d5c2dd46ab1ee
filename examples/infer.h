/* A model of floats as a function of arrays, for the examples with ONNX models.  Two ways, with the same results:
 *
 * - the library reads the file, compiles it for this machine, and keeps that as a step;
 * - with INFER_OBJECT the program was compiled before, by
 *       kiln compile FILE.onnx --prefix model -o model.o --header model.h [--bind SYMBOL=1]
 *   which has the weights inside, and all that is linked of Kiln is libkiln-aot.a. */
#ifndef INFER_H
#define INFER_H
#include <stdbool.h>
#include <stdio.h>

enum { INFER_VALUES = 4 };

#ifdef INFER_OBJECT
#include "model.h"

struct infer { int nin, nout; };

static inline bool infer_open(struct infer *f, const char *path, int nin, int nout)
{
    (void)path;
    *f = (struct infer){nin, nout};
    return nin <= INFER_VALUES && nout <= INFER_VALUES;
}

/* The struct of arguments starts with the inputs, and has the outputs beside one another, too. */
static inline bool infer_run(struct infer *f, const float *const *in, float *const *out)
{
    model_args args = {0};
    const float **inputs = (const float **)&args;
    for (int i = 0; i < f->nin; i++)
        inputs[i] = in[i];
    for (int i = 0; i < f->nout; i++)
        (&args.out_0)[i] = out[i];
    int status = model_run(&args);
    if (status)
        fprintf(stderr, "%s\n", kiln_aot_error(status));
    return !status;
}

static inline void infer_close(struct infer *f) { (void)f; }

#else
#include <kiln/kiln.h>
#include <kiln/onnx.h>
#include <stdlib.h>

struct infer {
    int nin, nout;
    kl_device device;
    kl_model *model;
    kl_step *step;
    kl_model_value type[INFER_VALUES]; /* of the inputs */
};

static inline bool infer_failed(void) { return fprintf(stderr, "%s\n", kl_last_error()) < 0; }

/* A length that the model leaves open is 1. */
static inline bool infer_open(struct infer *f, const char *path, int nin, int nout)
{
    kl_tensor in[INFER_VALUES], out[INFER_VALUES];
    *f = (struct infer){nin, nout, .device = kl_device_default(), .model = NULL};
    f->model = kl_model_open(f->device, path);
    if (!f->model)
        return infer_failed();
    kl_trace_begin("model");
    for (int i = 0; i < nin; i++) {
        kl_model_value *v = &f->type[i];
        if (kl_model_input(f->model, (uint32_t)i, v) != KL_OK)
            break;
        size_t n = 1;
        for (int k = 0; k < v->rank; k++) {
            v->dims[k] = v->dims[k] < 0 ? 1 : v->dims[k];
            n *= (size_t)v->dims[k];
        }
        float *zeros = calloc(n, sizeof *zeros);
        in[i] = kl_input(f->device, v->dtype, v->rank, v->dims, zeros);
        free(zeros);
    }
    if (kl_model_call(f->model, (uint32_t)nin, in, (uint32_t)nout, out) == KL_OK)
        for (int i = 0; i < nout; i++)
            kl_keep(out[i]);
    f->step = kl_trace_end_step(nin, in);
    return f->step || infer_failed();
}

static inline bool infer_run(struct infer *f, const float *const *in, float *const *out)
{
    kl_tensor x[INFER_VALUES], y[INFER_VALUES];
    for (int i = 0; i < f->nin; i++)
        x[i] = kl_input(f->device, KL_F32, f->type[i].rank, f->type[i].dims, in[i]);
    bool ok = kl_step_run(f->step, f->nin, x, 0, NULL, f->nout, y) == KL_OK;
    for (int i = 0; ok && i < f->nout; i++)
        ok = kl_read(y[i], out[i], (size_t)kl_numel(y[i]) * sizeof(float)) == KL_OK;
    for (int i = 0; i < f->nout; i++)
        kl_release(y[i]);
    for (int i = 0; i < f->nin; i++)
        kl_release(x[i]);
    return ok || infer_failed();
}

static inline void infer_close(struct infer *f)
{
    kl_step_free(f->step);
    kl_model_close(f->model);
}
#endif
#endif
