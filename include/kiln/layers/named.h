/* Tensors whose axes have names.  Included by <kiln/kiln.h>; see storage.h.
 *
 *     kl_tensor x = kl_named(images, (const char *[]){"batch", "height", "width"});
 *     kl_tensor mean = kl_mean(x, 1, (int[]){kl_axis(x, "width")}, false);      // named batch, height
 *
 * Elementwise ops and concatenations match the names of corresponding axes, counted from the last one: two different
 * names are an error; a name and no name give the name. matmul and dot_general drop the names of contracted axes,
 * reductions those of reduced axes; views keep the name of an axis that is neither split nor merged.  A result with one
 * name twice is an error.  Ops that mix axes otherwise refuse named tensors.  A named tensor has one part, which may
 * itself be of another layer. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_NAMED_H
#define KILN_NAMED_H

#ifdef __cplusplus
extern "C" {
#endif

/* a with a name for each axis, NULL for none, in place of those it has; names NULL: without names, as it was before.  A
 * name occurs once, and is copied.  [ARGUMENT] */
KL_API_AT kl_tensor kl_named(kl_tensor a, const char *const *names);
/* Writes the name of each axis, NULL where there is none, valid as long as the process (room for KL_MAX_RANK is always
 * enough); returns the rank, -1 for a bad handle. */
KL_API int kl_names(kl_tensor t, const char **names);
/* The axis of that name; -1, and the error ARGUMENT: there is none. */
KL_API int kl_axis(kl_tensor t, const char *name);

#ifdef __cplusplus
}
#endif
#endif
