/* What finding the place of a difference knows so far: for check_isolate. */
#ifndef KILN_CHECK_LOCATE_H
#define KILN_CHECK_LOCATE_H
#include "check.h"

struct locating {
    const struct graph *g;       /* the one recorded */
    int device;
    bool fuse;
    double tolerance;
    const struct check_values *v;
    const struct program *p;     /* the program of g */
    void **value;                /* per node of p->g: what the interpreter gives, for nodes that commands store */
    bool *stored, failed;        /* failed: out of memory */
    uint32_t group;              /* of the command that differs, or its node's */
    ref node;                    /* the first that differs; NIL: none does */
    struct check_place *place;
    check_isolate_fn *isolate;
};

#endif
