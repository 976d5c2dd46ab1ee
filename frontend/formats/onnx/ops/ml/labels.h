/* What classifiers of ai.onnx.ml have in common (ops_labels.c). */
#ifndef KILN_ONNX_LABELS_H
#define KILN_ONNX_LABELS_H
#include "frontend/formats/onnx/onnx.h"

/* The labels of the classes: the integers of the attribute `ints`, or the strings of "classlabels_strings", as their
 * numbers; [classes]; NULL: reported. */
struct array *ml_labels(struct node *n, const char *ints);
/* Result 0: the labels, which it takes over, of classes, i64 [N]. */
bool ml_give_labels(struct node *n, struct array *labels, kl_tensor classes);
/* Numbers of an attribute, f32 [count]; kl_none: reported. */
kl_tensor ml_numbers(struct node *n, const float *v, int64_t count);
/* The numbers of an attribute, f32 [rows, columns], columns 0: as many as there are; kl_none: reported. */
kl_tensor ml_matrix(struct node *n, const char *name, int64_t rows, int64_t columns);
/* Attribute post_transform of scores [N, classes]; kl_none: reported. */
kl_tensor ml_transform(struct node *n, kl_tensor scores);

#endif
