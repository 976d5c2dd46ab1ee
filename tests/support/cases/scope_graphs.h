/* Small graphs of each family of kernels, numbered: all shapes near the limits of lanes, tiles, runs, blocks and panels
 * times all views in front, dtypes and forms. */
#ifndef SCOPE_GRAPHS_H
#define SCOPE_GRAPHS_H
#include "tests/support/harness.h"

/* Choices are digits of the graph's number; each has as many values wherever it is made, so that the product of those
 * is the number of graphs. */
struct digits { uint64_t rest, count; };
uint64_t digit(struct digits *d, uint64_t n);
int64_t digit_of(struct digits *d, const int64_t *list, unsigned n);
#define DIGIT_OF(d, list) digit_of(d, list, sizeof (list) / sizeof *(list))

/* An operand of this shape, made by a view or a computation from an input: the kind and the axis are digits. */
ref scope_operand(struct graph *g, struct digits *d, unsigned dtype, const struct shape *s);
/* Sets one of four blocks of the contraction, which pass numerics would write only for long ones; 0: none. */
void scope_set_block(struct graph *g, ref dot, uint64_t which);

typedef struct graph *scope_make(struct digits *d);
scope_make scope_map, scope_move, scope_reduce, scope_rows, scope_dot, scope_dot_runs, scope_sweep, scope_bytes,
    scope_windows, scope_bytes_conv,
    scope_conv, scope_attention, scope_scatter, scope_gather, scope_scan, scope_sort, scope_transpose, scope_levels,
    scope_units, scope_channels, scope_attention_units, scope_skinny, scope_quantized, scope_block_dot;
/* share: graphs of it among all; on_gpu: on processors it is what other families are, too */
struct scope_family { const char *name; scope_make *make; unsigned share; bool on_gpu; };
extern const struct scope_family scope_families[];
extern const unsigned scope_family_count;
uint64_t scope_count(const struct scope_family *f);
struct graph *scope_graph(const struct scope_family *f, uint64_t number); /* graph_free it */

#endif
