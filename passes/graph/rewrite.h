/* Rewriting: a pass builds a new graph from the old one, node by node, and then swaps them. */
#ifndef KILN_REWRITE_H
#define KILN_REWRITE_H
#include "ir/ir.h"

struct rewrite {
    struct graph *from, *to; /* `to` starts as from's leaves, sites and name without nodes */
    ref *map;                /* from's node -> to's node, NIL where there is none yet */
};

/* ---- rewrite.c ---- */
bool rewrite_begin(struct rewrite *w, struct graph *g);
ref rewrite_copy(struct rewrite *w, ref r);  /* copies node r with its operands mapped; sets and returns map[r] */
void rewrite_site(struct rewrite *w, ref r); /* nodes built from here on get r's call site, device and MARK_REMAT */
/* Maps the outputs, replaces g's contents and frees the scratch memory; must also be called after a failure. -1 on
 * error, 1, or 0 if the new graph equals the old one, which is then kept with its kernel groups. */
int rewrite_end(struct rewrite *w);

#endif
