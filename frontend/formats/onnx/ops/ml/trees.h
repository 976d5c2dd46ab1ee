/* Tables of decision trees, for operators of ensembles (ops_trees.c, ops_tree_ensemble.c). */
#ifndef KILN_ONNX_TREES_H
#define KILN_ONNX_TREES_H
#include "frontend/formats/onnx/onnx.h"

enum { TREE_NODES = 1 << 22, TREE_LEVELS = 256, TREE_TARGETS = 1 << 16 };
/* As the attribute nodes_modes of ai.onnx.ml 5 numbers them; leaves are Kiln's. */
enum tree_mode { MODE_LEQ, MODE_LT, MODE_GTE, MODE_GT, MODE_EQ, MODE_NEQ, MODE_MEMBER, MODE_LEAF, MODES };

struct tree_key { int64_t tree, id; size_t row; }; /* a node, as the file numbers it */
struct trees {
    struct node *n;
    kl_dtype dtype;                 /* of features, their limits, and weights */
    size_t nodes, roots, targets;
    struct tree_key *key;           /* sorted; of ai.onnx.ml 5 NULL */
    struct array *feature, *value, *yes, *no, *mode, *missing, *weight, *root;
    struct array *member;           /* [nodes, most members of a set], NaN behind them; NULL: there are no sets */
    bool has_mode[MODES], has_missing;
    bool one, positive;             /* the weights are of one target only; none is negative */
    int64_t target;                 /*   that target */
    int levels;
};
/* The integers of an attribute that has to have `count`; NULL: reported. */
const int64_t *tree_ints(struct node *n, const char *name, size_t count);
/* Zeros [rows, columns], of columns 0 [rows]; NULL: reported. */
struct array *tree_array(struct trees *t, kl_dtype d, size_t rows, size_t columns);
/* Makes the tables that nodes fill. */
bool tree_tables(struct trees *t);
/* Sets t->levels, which have an end: of nodes that are their own followers, leaves, there are none behind. */
bool tree_levels(struct trees *t);
/* The weights of the leaves that each row reaches in each tree, [N, trees, targets]; kl_none: reported. */
kl_tensor tree_leaves(struct trees *t);
void trees_free(struct trees *t);

#endif
