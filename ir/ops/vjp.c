/* The gradient columns of ops.def as code: `g a b c y dy` and NIL are the names they may use. */
#include "ir/ir.h"

void elementwise_vjp(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    const ref a = n.in[0], b = n.in[1], c = n.in[2];
    (void)a, (void)b, (void)c;
    switch (n.op) {
#define EW1(name, types, value, ga, autocast, doc) \
    case OP_##name: din[0] = ga; return;
#define EW2(name, types, value, ga, gb, autocast, doc) \
    case OP_##name: din[0] = ga; din[1] = gb; return;
#define EW3(name, types, value, ga, gb, gc, autocast, doc) \
    case OP_##name: din[0] = ga; din[1] = gb; din[2] = gc; return;
#include "ops.def"
    }
}
