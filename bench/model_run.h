/* An ONNX model with its inputs, run again and again by a frozen step, or recorded each time where no step can be made
 * (its shapes depend on values). */
#ifndef BENCH_MODEL_RUN_H
#define BENCH_MODEL_RUN_H
#include <kiln/onnx.h>
#include <kiln/train.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MODEL_VALUES = 64 };

struct model_run {
    kl_model *m;
    kl_step *step;    /* NULL: each run records */
    uint32_t nin, nout, nfed;
    kl_tensor in[MODEL_VALUES];  /* all inputs */
    kl_tensor fed[MODEL_VALUES]; /* those that a run of the step takes */
    void *result;     /* the last output that was read */
    size_t bytes;
};

/* Seconds: of all threads' processor time if there is one thread, else of elapsed time. */
static inline double model_clock(int threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Input i, from its file or of zeros.  kl_none: see kl_last_error. */
static inline kl_tensor model_input(kl_device dev, const char *path, uint32_t i, const kl_model_value *v)
{
    char file[700];
    int64_t dims[KL_MAX_RANK];
    snprintf(file, sizeof file, "%s.%u.npy", path, i);
    if (access(file, R_OK) == 0) {
        kl_file *f = kl_file_open(file);
        kl_tensor t = f ? kl_file_tensor(f, dev, "") : kl_none;
        kl_file_close(f);
        return t;
    }
    for (int k = 0; k < v->rank; k++)
        dims[k] = v->dims[k] < 0 ? 1 : v->dims[k];
    return kl_zeros(dev, v->dtype, v->rank, dims);
}

/* Records the model once as a step.  Inputs of one integer, lengths and the like, keep their values. */
static inline bool model_run_freeze(struct model_run *r, kl_device dev)
{
    kl_tensor in[MODEL_VALUES], traced[MODEL_VALUES], out[MODEL_VALUES];
    r->nfed = 0;
    kl_trace_begin("model");
    for (uint32_t i = 0; i < r->nin; i++) {
        int64_t dims[KL_MAX_RANK];
        int rank = kl_shape(r->in[i], dims);
        in[i] = r->in[i];
        if (kl_numel(r->in[i]) == 1 && kl_dtype_of(r->in[i]) < KL_F16)
            continue;
        void *zeros = calloc((size_t)kl_numel(r->in[i]) + 1, kl_dtype_size(kl_dtype_of(r->in[i])));
        in[i] = kl_input(dev, kl_dtype_of(r->in[i]), rank, dims, zeros);
        free(zeros);
        r->fed[r->nfed] = r->in[i];
        traced[r->nfed++] = in[i];
    }
    if (kl_model_call(r->m, r->nin, in, r->nout, out) != KL_OK)
        return kl_trace_abandon(), false;
    for (uint32_t i = 0; i < r->nout; i++)
        kl_keep(out[i]);
    r->step = kl_trace_end_step((int)r->nfed, traced);
    return r->step;
}

/* false: see kl_last_error; model_run_close has to be called anyway. */
static inline bool model_run_open(struct model_run *r, kl_device dev, const char *path)
{
    *r = (struct model_run){.m = kl_model_open(dev, path)};
    if (!r->m || kl_model_inputs(r->m) > MODEL_VALUES || kl_model_outputs(r->m) > MODEL_VALUES)
        return false;
    r->nout = (uint32_t)kl_model_outputs(r->m);
    for (uint32_t n = (uint32_t)kl_model_inputs(r->m); r->nin < n; r->nin++) {
        kl_model_value v;
        kl_model_input(r->m, r->nin, &v);
        r->in[r->nin] = model_input(dev, path, r->nin, &v);
        if (kl_check(r->in[r->nin]) != KL_OK)
            return false;
    }
    model_run_freeze(r, dev);
    return true;
}

/* Runs it and reads its results. */
static inline bool model_run_once(struct model_run *r)
{
    kl_tensor out[MODEL_VALUES];
    bool ok = (r->step ? kl_step_run(r->step, (int)r->nfed, r->fed, 0, NULL, (int)r->nout, out)
                       : kl_model_call(r->m, r->nin, r->in, r->nout, out)) == KL_OK;
    for (uint32_t i = 0; i < r->nout && ok; i++) {
        size_t bytes = (size_t)kl_numel(out[i]) * kl_dtype_size(kl_dtype_of(out[i]));
        void *larger = bytes > r->bytes ? realloc(r->result, bytes) : r->result;
        r->bytes = bytes > r->bytes ? bytes : r->bytes;
        r->result = larger;
        ok = kl_read(out[i], r->result, bytes) == KL_OK;
        kl_release(out[i]);
    }
    return ok;
}

static inline void model_run_close(struct model_run *r)
{
    for (uint32_t i = 0; i < r->nin; i++)
        kl_release(r->in[i]);
    kl_step_free(r->step);
    kl_model_close(r->m);
    free(r->result);
}

#endif
