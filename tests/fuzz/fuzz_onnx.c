/* libFuzzer target: any bytes as an ONNX model (tests/fuzz.sh).
 *
 * A file gives a model, or NULL with a message that names the file.  A model says what its inputs, outputs and weights
 * are; where its inputs are small it is recorded in a trace, which may fail with a message, and is not run.  Nothing is
 * lost either way, and the next model is not disturbed. */
#define _GNU_SOURCE /* memfd_create */
#include <kiln/kiln.h>
#include <kiln/onnx.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_VALUES = 16, MAX_ELEMENTS = 4096 };

#define MUST(ok, ...) ((ok) ? (void)0 : (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), abort()))

static char path[40]; /* a file in memory: a disk would be slow */

/* Zeros of the input's type; lengths that are not known are 2.  false: too many, or no type. */
static bool small_input(kl_device dev, const kl_model *m, uint32_t i, kl_tensor *t)
{
    static const uint64_t zeros[MAX_ELEMENTS];
    kl_model_value v;
    int64_t n = 1;
    MUST(kl_model_input(m, i, &v) == KL_OK && v.name, "input %u: %s", i, kl_last_error());
    if (v.rank < 0 || v.dtype == KL_DTYPE_COUNT)
        return false;
    for (int k = 0; k < v.rank; k++) {
        v.dims[k] = v.dims[k] < 0 ? 2 : v.dims[k];
        if (v.dims[k] > MAX_ELEMENTS || (n *= v.dims[k]) > MAX_ELEMENTS)
            return false;
    }
    *t = kl_input(dev, v.dtype, v.rank, v.dims, zeros);
    return kl_check(*t) == KL_OK;
}

static void record(kl_device dev, kl_model *m)
{
    kl_tensor in[MAX_VALUES], out[MAX_VALUES];
    uint32_t nin = kl_model_inputs(m), nout = kl_model_outputs(m);
    if (nin > MAX_VALUES || nout > MAX_VALUES)
        return;
    kl_trace_begin("fuzz");
    bool small = true;
    for (uint32_t i = 0; small && i < nin; i++)
        small = small_input(dev, m, i, &in[i]);
    if (small && kl_model_call(m, nin, in, nout, out) != KL_OK)
        MUST(*kl_last_error(), "a call fails without a message");
    kl_trace_abandon();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int file = -1;
    kl_device dev = kl_device_named("ref");
    kl_model_value v;
    if (file < 0) {
        file = memfd_create("fuzz", 0);
        MUST(file >= 0, "no file for models");
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    MUST(!ftruncate(file, 0) && pwrite(file, data, size, 0) == (ssize_t)size, "cannot write %s", path);
    kl_clear_error();
    kl_model *m = kl_model_open(dev, path);
    if (!m) {
        MUST(strstr(kl_last_error(), path), "the message does not name the file: %s", kl_last_error());
        return 0;
    }
    for (uint32_t i = 0; i < kl_model_outputs(m); i++)
        MUST(kl_model_output(m, i, &v) == KL_OK && v.name, "output %u: %s", i, kl_last_error());
    for (uint32_t i = 0; i < kl_model_weights(m); i++)
        MUST(kl_model_weight_name(m, i) && kl_check(kl_model_weight(m, kl_model_weight_name(m, i))) == KL_OK,
             "weight %u: %s", i, kl_last_error());
    record(dev, m);
    kl_model_close(m);
    return 0;
}
