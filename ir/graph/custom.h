/* Custom ops: registered functions and how graphs call them. */
#ifndef KILN_IR_CUSTOM_H
#define KILN_IR_CUSTOM_H
#define KL_NO_CALL_SITES
#include "ir/ir.h"
#include <kiln/custom.h>

enum { CUSTOM_MESSAGE = 256, CUSTOM_ATTR = 1 << 16 }; /* bytes of an op's message; maximum bytes of attributes */

struct custom_op {
    char name[CUSTOM_NAME];
    kl_custom_op functions;
    void *ctx;
    bool async;                  /* runs on the thread of async.h while the kernels behind it run */
    /* For devices with separate memory.  takes: does run_at run the op on addresses of this device?  If not, or if
     * takes is NULL, the operands are copied to the host and the results back. */
    bool (*takes)(void *ctx, int device);
    kl_status (*run_at)(void *ctx, const kl_custom_call *call, int device);
    struct custom_op *next;
};

/* ---- inspect.c: the built-in custom ops ---- */
#define INSPECT_PRINT "kl.print"
#define INSPECT_ASSERT "kl.assert"
enum { INSPECT_TEXT = 255 };                                  /* maximum bytes of the label of kl_print */
extern struct custom_op inspect_ops[2];
void inspect_printer(void (*print)(void *ctx, const char *line), void *ctx); /* NULL: standard output */
bool inspect_is_quiet(void);                              /* the program runs a second time to find an element */
void inspect_quiet(bool on);                                  /* true: they do nothing on this thread */

/* ---- custom.c ---- */
enum { CUSTOM_LABEL = CUSTOM_NAME + 16 };
/* What messages call an op: print and assert, the library's own, by the public function's name, others custom "NAME".
 * Returns text, which has room for CUSTOM_LABEL bytes. */
char *custom_label(const char *name, char *text);
bool custom_add(struct custom_op *op, struct err *e); /* op lives as long as the process */
/* the name has a valid length */
bool custom_register(const char *name, const kl_custom_op *functions, void *ctx, struct err *e);
const struct custom_op *custom_find(const char *name);        /* NULL: not registered */
kl_type custom_type(unsigned dtype, const struct shape *s);
/* Calls the op's `types` function; call->message is unset. false: *e is the op's error, or the types are invalid. */
bool custom_types(const struct custom_op *op, kl_custom_call *call, kl_type *out, struct err *e);
/* Runs the op of a node; sizes: what is in g's lengths in place of symbols, or NULL; work: custom_work_bytes.  false:
 * *e, with e->call for custom_locate. */
bool custom_run(const struct graph *g, const struct node *n, const struct size_values *sizes, const void *const *in,
                void *const *out, void *work, struct err *e);
/* The same on addresses of a device with separate memory. */
bool custom_takes(const struct graph *g, const struct node *n, int device);
bool custom_run_at(const struct graph *g, const struct node *n, int device, const struct size_values *sizes,
                   const void *const *in, void *const *out, void *work, struct err *e);
size_t custom_work_bytes(const struct graph *g, const struct node *n);
/* Checks that every custom op in g and its regions is registered and gives the types that its node records; false: *e
 * as above. */
bool custom_check(const struct graph *g, struct err *e);
bool custom_is_async(const struct graph *g, const struct node *n);
bool custom_any(const struct graph *g);                       /* does g, or a region of it, have a custom op? */
/* Numbers the custom ops, starting with `from`, in an order that passes preserve; returns the next number. */
uint32_t custom_number(struct graph *g, uint32_t from);
/* Adds the call site to an error of custom_run or custom_check. `recorded` is the graph as recorded, with the same
 * numbering from 0. */
void custom_locate(const struct graph *recorded, struct err *e);

#endif
