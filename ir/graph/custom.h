/* Custom ops: what is registered under a name, and what the ops of a graph are asked to do. */
#ifndef KILN_IR_CUSTOM_H
#define KILN_IR_CUSTOM_H
#define KL_NO_CALL_SITES
#include "ir/ir.h"
#include <kiln/custom.h>

enum { CUSTOM_MESSAGE = 256, CUSTOM_ATTR = 1 << 16 }; /* room for an op's message; most bytes of attributes */

struct custom_op {
    char name[CUSTOM_NAME];
    kl_custom_op functions;
    void *ctx;
    bool async;                  /* runs on the thread of async.h while the kernels behind it run */
    struct custom_op *next;
};

/* ---- inspect.c: ops that are always there ---- */
#define INSPECT_PRINT "kl.print"
#define INSPECT_ASSERT "kl.assert"
enum { INSPECT_TEXT = 255 };                                  /* most bytes of what the user calls a value */
extern struct custom_op inspect_ops[2];
void inspect_printer(void (*print)(void *ctx, const char *line), void *ctx); /* NULL: standard output */
bool inspect_is_quiet(void);                                  /* a program is run a second time to find something */
void inspect_quiet(bool on);                                  /* on this thread they do nothing */

/* ---- custom.c ---- */
bool custom_add(struct custom_op *op, struct err *e); /* op lives as long as the process */
bool custom_register(const char *name, const kl_custom_op *functions, void *ctx, struct err *e); /* the name fits */
const struct custom_op *custom_find(const char *name);        /* NULL: not registered */
kl_type custom_type(unsigned dtype, const struct shape *s);
/* Asks the op for the types of its results; call has no message yet.  false: *e is its error, or types that are
 * none. */
bool custom_types(const struct custom_op *op, kl_custom_call *call, kl_type *out, struct err *e);
/* Runs the op of a node; work: custom_work_bytes.  false: *e, with e->call for custom_locate. */
bool custom_run(const struct graph *g, const struct node *n, const void *const *in, void *const *out, void *work,
                struct err *e);
size_t custom_work_bytes(const struct graph *g, const struct node *n);
/* Every custom op in g and its regions is registered and says what its node says; false: *e as above. */
bool custom_check(const struct graph *g, struct err *e);
bool custom_is_async(const struct graph *g, const struct node *n);
bool custom_any(const struct graph *g);                       /* is there any? */
/* Numbers them from `from` on, in an order that passes do not change; returns the next number. */
uint32_t custom_number(struct graph *g, uint32_t from);
/* Adds to an error of custom_run or custom_check where the op stands in the graph that was recorded, from 0 on the same
 * as the one that was numbered. */
void custom_locate(const struct graph *recorded, struct err *e);

#endif
