/* Models from files: ONNX.  Included by <kiln/onnx.h>.
 *
 *     kl_model *m = kl_model_open(dev, "mnist.onnx");
 *     if (!m) { fprintf(stderr, "%s\n", kl_last_error()); return 1; }
 *     kl_tensor x = kl_input(dev, KL_F32, 4, (int64_t[]){1, 1, 28, 28}, pixels), y;
 *     if (kl_model_call(m, 1, &x, 1, &y) == KL_OK)
 *         kl_read(y, scores, sizeof scores);
 *
 * A call records the model's operators as Kiln's ops, in a trace or outside of one, and they are fused, differentiated
 * and run on every device like other ops.  Operators of opset 7 to 28 are supported, and the most used ones of
 * onnxruntime's own domain com.microsoft and of ai.onnx.ml (frontend/formats/onnx/ops.def and contrib.def in Kiln's
 * sources list them); a newer opset is read as 28, with a warning in the log.  A model with other operators is not
 * loaded, and the error names all of them.
 *
 * Values that determine shapes (such as the operand `shape` of Reshape) must be known while a call records, and so
 * must the condition of an If of whose branches one does not fit the inputs.  They are computed from constants and from
 * the shapes of the inputs.  Where that is not enough, values of inputs are read and, outside of a trace, values
 * recorded so far.  In a trace such an input must have been made before the trace; a frozen step (<kiln/step.h>) keeps
 * the values of its recording.
 *
 * Random operators draw other numbers in each call; a frozen step (<kiln/step.h>) and a compiled program draw the same
 * ones in each run, unless the slot "random_seed" gets another number.
 *
 * A model is used by one thread at a time. */
#ifndef KILN_MODEL_H
#define KILN_MODEL_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_model kl_model;

/* Reads a model; its weights become tensors on the device.  Files that the model refers to must be, after all
 * links, in its folder; they are mapped, so they must not change while the model exists.  NULL: it failed.
 * [errors ARGUMENT; IO: the file, or one it refers to, is missing or damaged; TYPE: operators, or types of values, that
 * are not known; DEVICE; MEMORY] */
KL_API_AT kl_model *kl_model_open(kl_device device, const char *path);
/* Releases its weights; what was recorded stays as it is.  Not while a function of a region is recorded.  NULL is
 * fine. */
KL_API void kl_model_close(kl_model *model);

/* The description of an input or output. */
typedef struct kl_model_value {
    const char *name;                 /* valid as long as the model, as are the symbols */
    kl_dtype dtype;                   /* KL_DTYPE_COUNT: not specified */
    int rank;                         /* -1: not specified */
    int64_t dims[KL_MAX_RANK];        /* -1: any length, where */
    const char *symbol[KL_MAX_RANK];  /*   lengths with one name are equal; NULL: it has no name */
    bool strings;                     /* its elements, i64, are numbers of strings (kl_model_string) */
    const char *const *keys;          /* of a list of maps, an output of ZipMap, which is a table [rows, keys]: the
                                       * keys, as texts, dims[1] of them; NULL: it is no such list */
} kl_model_value;
KL_API int64_t kl_model_inputs(const kl_model *model);  /* not counting those that are weights */
KL_API int64_t kl_model_outputs(const kl_model *model);
KL_API int64_t kl_model_weights(const kl_model *model);
/* [errors ARGUMENT: there is none of that number] */
KL_API kl_status kl_model_input(const kl_model *model, int64_t i, kl_model_value *value);
KL_API kl_status kl_model_output(const kl_model *model, int64_t i, kl_model_value *value);
/* The name of weight i: its floating-point initializers, in the order of the file.  NULL: there is none. */
KL_API const char *kl_model_weight_name(const kl_model *model, int64_t i);
/* Strings, such as labels, are numbered in a model, from 0 on: a tensor of strings is one of such numbers, i64.  A
 * text that the model does not have has the number -1, which equals no label.  Texts are valid as long as the
 * model. */
KL_API int64_t kl_model_strings(const kl_model *model);
KL_API const char *kl_model_string(const kl_model *model, int64_t number);      /* NULL: there is none */
KL_API int64_t kl_model_string_number(const kl_model *model, const char *text); /* -1: there is none */
/* A weight by name: the model's own handle, which can be read, assigned and differentiated with respect to, while
 * the model exists. kl_none: there is none of that name.  Values of a weight that determine shapes stay those of the
 * file.  What depends on constants and on weights alone that nobody has asked for is computed once, at the first call,
 * and frozen steps keep it: ask for weights that change before the calls.  [errors TRACE: what depends on this weight
 * has been computed already, and a trace is open, which may have it] */
KL_API kl_tensor kl_model_weight(const kl_model *model, const char *name);

/* Records the model once: in[] has a tensor for each input, in their order, of its dtype and shape; out[] gets the
 * first nout outputs, new handles, or kl_none after an error.  Operators are recorded with a call site of their own,
 * the model's name and the node's, for dumps, profiles and messages.
 * [lazy; new handles; errors ARGUMENT, HANDLE, SHAPE, TYPE, DEVICE, TRACE, MEMORY: the message names the node, or the
 * input] */
KL_API_AT kl_status kl_model_call(kl_model *model, int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out);

/* ---- writing ---- */

/* Calls the function once, outside of traces, and writes what it records from in[] to out[] as an ONNX model of opset
 * 18: nin inputs and nout outputs of these types, and every other tensor that the function uses as an initializer with
 * its present value.  in_names, out_names or single names may be NULL: the names are then "input0", "output0" and so
 * on.  Scans, loops and branches become Scan, Loop and If, gradients the nodes that compute them, and quantized values
 * QuantizeLinear and DequantizeLinear.  An operator that does not take an element
 * type is written between casts.  Casts of floats to integers saturate and integers divided by 0 are 0, as in Kiln, by
 * nodes of comparisons.  An op that ONNX does not have, such as a random number, is an error that names the op, its
 * types and the line that recorded it.  ONNX does not define the order of sums, so results may differ by
 * rounding, nor which of several rows wins if kl_index_copy selects a row twice.
 *     static kl_status predict(void *net, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout);
 *     kl_model_save("net.onnx", predict, &net, 1, &x, (const char *[]){"image"}, 1, (const char *[]){"logits"});
 * [errors ARGUMENT: a name twice, or empty, or 2 GiB; TRACE: one is open; TYPE: no such op in ONNX; IO; those of the
 * function] */
KL_API_AT kl_status kl_model_save(const char *path, kl_region_fn *fn, void *ctx, int64_t nin, const kl_tensor *in,
                                  const char *const *in_names, int64_t nout, const char *const *out_names);

/* Reads one tensor from an ONNX file (.pb: a TensorProto).  [new handle; errors IO, TYPE, DEVICE, MEMORY] */
KL_API_AT kl_tensor kl_model_read_tensor(kl_device device, const char *path);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/formats/model.h> /* made from the prototypes marked KL_API_AT */
#endif
