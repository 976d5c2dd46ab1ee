/* Functions that the files of modules share. */
#ifndef KILN_TRAIN_MODULES_H
#define KILN_TRAIN_MODULES_H
#include "train.h"

/* Writes prefix.leaf, or leaf without a prefix, into KL_PARAM_NAME + 2 bytes.  A name that is too long is truncated to
 * a name that is still too long. */
void module_name(char *name, const char *prefix, const char *leaf);
/* Makes a parameter with this name in *out; kl_none after an error. */
kl_status module_make(kl_params *params, const char *prefix, const char *leaf, int rank,
                      const int64_t *dims, const kl_init *init, kl_tensor *out);
/* Ends the scope of names of a module, which kl_module_begin began, and returns its result. */
kl_tensor module_end(kl_tensor result);
/* reports `op: "prefix": what` as KL_ERR_ARGUMENT */
kl_status module_refuse(const char *op, const char *prefix, const char *what);

#endif
