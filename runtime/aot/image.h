/* A program compiled ahead of time: constant data, the image, beside its kernels in an object file.
 *
 * The object defines, for a prefix P,
 *
 *     int P_run(const P_args *args)            one run; KL_OK or what kiln_aot_error says in words
 *     size_t P_workspace_bytes(void)           memory that a run works in, with the threads that there are now
 *
 * which call the functions below, those of the library that such programs are linked with, with its image and its
 * kernels.  The header beside the object declares them, and the struct P_args, whose members are
 *
 *     a pointer for each input, state and returned value, in this order
 *     void *workspace; size_t workspace_bytes
 *     each slot that is not fixed, in its own type; those of one name and type are one member
 *
 * The image refers to its parts by offsets from its start, so it needs no relocations. */
#ifndef KILN_IMAGE_H
#define KILN_IMAGE_H
#include "image_format.h"
#include "passes/passes.h"

/* The features that a processor may have to have: of x86-64, by names that both the code generator and the compiler
 * accept; of AArch64, by LLVM's names, and the bits of Linux's auxiliary vector. */
#define IMAGE_FEATURES(X)                                                                                       \
    X(avx2) X(fma) X(bmi) X(bmi2) X(avx512f) X(avx512bw) X(avx512vl) X(avx512dq) X(avx512cd) X(avx512vbmi)       \
    X(avx512ifma) X(avx512vnni) X(avx512vbmi2) X(avx512bitalg) X(avx512vpopcntdq) X(avx512bf16) X(gfni)
#define IMAGE_FEATURES_AARCH64(X) /* numbered behind those */                                                   \
    X(lse, AT_HWCAP, 8) X(fullfp16, AT_HWCAP, 10) X(dotprod, AT_HWCAP, 20) X(sve, AT_HWCAP, 22)                 \
    X(i8mm, AT_HWCAP2, 13) X(bf16, AT_HWCAP2, 14)

/* ---- run.c: the library ---- */
int kiln_aot_run(const struct image *m, kernel_fn *const *kernel, const void *args);
size_t kiln_aot_workspace_bytes(const struct image *m);
void kiln_aot_threads(unsigned n);      /* as pool_set_threads */
const char *kiln_aot_error(int status); /* the message for a status of kiln_aot_run */

#endif
