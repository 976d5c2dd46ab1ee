/* Programs compiled ahead of time: a trace as an object file and a C header.  Included by <kiln/kiln.h>.
 *
 *     kl_trace_begin("step");
 *     kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){128, 784}, images);
 *     kl_set_name(x, "x");
 *     kl_keep(kl_softmax(kl_matmul(x, w), -1));
 *     if (kl_trace_compile("step.o", "step.h", NULL) != KL_OK) { fprintf(stderr, "%s\n", kl_last_error()); return 1; }
 *
 * The header declares step_run(), which takes pointers to the inputs, the states (here w) and the outputs, and the
 * runtime scalars.  A program that includes it links step.o and libkiln-aot.a, the small runtime, and nothing else of
 * Kiln.  Its results are the same bits as Kiln's; for products of bf16, as Kiln's on the kind of processor that the
 * program is compiled for, with AMX as with option "order" KL_ORDER_GRAPH.  `kiln compile` does the same with a graph
 * as text. */
#ifndef KILN_AOT_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_AOT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Zeros are the defaults. */
typedef struct kl_compile_options {
    const char *prefix; /* prefix of all names in the header: a C identifier; NULL: derived from the trace's name */
    /* The processor: "baseline" (also NULL), the oldest of this machine's architecture that Kiln supports; "x86-64"
     * (v3, the baseline there), "x86-64-v3", "x86-64-v4", "aarch64", "armv8.4-a", "armv8.6-a"; "native", this one. */
    const char *cpu;
    /* The values of states that the trace only reads are stored in the object.  A run uses them where the pointer in
     * its arguments is NULL. */
    bool weights_inside;
    /* Or they are stored in this file, behind a header with the program's hash and each at a multiple of 64 bytes;
     * PREFIX_weights(args, bytes of the file) in the header compares the hash (not 0: another program's file) and
     * sets the pointers.  NULL: no file. */
    const char *weights_path;
    /* "object" (also NULL), or "c": one C99 file for any processor, which needs no library of Kiln; cpu must be NULL.
     * The file contains the declarations, too, so header_path may be NULL. */
    const char *emit;
} kl_compile_options;

/* Ends the open trace without running it, and writes its program.  The struct of arguments has a member in_NAME for
 * each kl_input and kl_wrap, state_NAME for each tensor from outside the trace, and out_NUMBER for each kept
 * temporary; NAME is that of kl_set_name, or a number.  A kl_scalar with a name becomes slot_NAME; scalars of one name
 * and type share it.  A length of kl_symbol becomes length_NAME, an int64_t that each run gives within the symbol's
 * bounds (of kl_symbol_multiple: the length divided by multiple_of), and the header has the number of elements of each
 * array for given lengths and at most; one program serves all lengths.  All other numbers stay as recorded.  The
 * program runs on the CPU, whatever the devices of the trace. After an error no files are written.  [errors TRACE
 * without a begin; ARGUMENT: a path is NULL, no such processor, a prefix that is no identifier, or nothing is kept or
 * assigned; COMPILE: a custom op, whose function no object can hold, or a graph with symbols that has no one program
 * for all their values; IO: a file cannot be written; DEVICE: no code generator is built in; those of kl_trace_end] */
KL_API_AT kl_status kl_trace_compile(const char *object_path, const char *header_path,
                                     const kl_compile_options *options);

/* Several programs in one file, such as a training step and inference.  In a C file they share common parts.
 *
 *     kl_object *o = kl_object_new(NULL);
 *     ...                                  a trace
 *     kl_object_add(o, "train");           train_run
 *     ...                                  another
 *     kl_object_add(o, "predict");         predict_run
 *     kl_status s = kl_object_write(o, "net.o", "net.h");
 *     kl_object_free(o); */
typedef struct kl_object kl_object;
/* options->prefix is ignored: each program has its own prefix.  NULL: it failed.  [errors ARGUMENT: no such processor
 * or language; DEVICE: no code generator is built in; MEMORY] */
KL_API_AT kl_object *kl_object_new(const kl_compile_options *options);
/* Ends the open trace without running it, and adds its program, as kl_trace_compile does.  After an error the object is
 * as before.  [errors those of kl_trace_compile but IO; ARGUMENT: another program has this prefix] */
KL_API_AT kl_status kl_object_add(kl_object *object, const char *prefix);
/* Writes the files; it can be called once.  With weights_path all programs store their weights in that one file, and
 * the PREFIX_weights of each takes its bytes.  [errors ARGUMENT: no program was added, a path is NULL; COMPILE, MEMORY;
 * IO] */
KL_API_AT kl_status kl_object_write(kl_object *object, const char *object_path, const char *header_path);
KL_API void kl_object_free(kl_object *object); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
#endif
