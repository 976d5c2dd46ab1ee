/* Arrays in NumPy's .npy format, versions 1 to 3: little-endian, C order, the dtypes Kiln has. */
#ifndef KILN_NPY_H
#define KILN_NPY_H
#include "ir/ir.h"

struct npy {
    unsigned dtype;
    struct shape shape;
    const char *data;  /* inside the bytes that were parsed, not aligned */
    size_t bytes;
};

/* ---- npy.c ---- */
bool npy_parse(const char *bytes, size_t len, struct npy *out, struct err *e);
bool npy_write(FILE *f, unsigned dtype, const struct shape *s, const void *data); /* not bf16; false: writing failed */

#endif
