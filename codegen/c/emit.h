/* Kernels as C99. */
#ifndef KILN_C_EMIT_H
#define KILN_C_EMIT_H
#include "ir/loop/loop.h"
#include "ir/text/text.h"

/* Adds kernel k as a function of this name (kernel_fn in ir/loop/loop.h), for code after the text of prelude.h. false:
 * *e. */
bool c_source(const struct kernel *k, const char *name, struct text *t, struct err *e);

#endif
