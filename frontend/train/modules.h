/* What modules share. */
#ifndef KILN_TRAIN_MODULES_H
#define KILN_TRAIN_MODULES_H
#include "train.h"

/* prefix.leaf, or leaf, in KL_PARAM_NAME + 2 bytes: one that is too long stays so. */
void module_name(char *name, const char *prefix, const char *leaf);
/* A parameter of that name in *out; kl_none after an error. */
kl_status module_make(const kl_site *site, kl_params *params, const char *prefix, const char *leaf, int rank,
                      const int64_t *dims, const kl_init *init, kl_tensor *out);
/* "op: "prefix": what", KL_ERR_ARGUMENT */
kl_status module_refuse(const kl_site *site, const char *op, const char *prefix, const char *what);

#endif
