/* Internal header of index arithmetic: linear forms and what is known of their ranges (index.c, index_facts.c). */
#ifndef KILN_INDEX_H
#define KILN_INDEX_H
#include "loop.h"

enum { MAX_TERMS = 12, MAX_BELOW = 8, MAX_QUOTIENTS = 64 };

struct term { val atom; int64_t coef; };
struct form {
    uint32_t n;
    int64_t c, lo, hi;       /* constant term; inclusive range, known only if lo <= hi */
    struct term t[MAX_TERMS];
};
struct entry { bool known; uint32_t n; int64_t c, lo, hi; struct term *t; };

/* What was known of v before something was noted of it.  at: the number of instructions then; v 0: ix_assume_below.
 * ndiv, ntimes: those of the table then, which were made without it. */
struct note { val v, at; struct entry before; uint32_t ndiv, ntimes; };

struct index_table {
    struct entry *e;         /* by val */
    uint32_t cap;
    struct { val a; struct size c; val q; } div[MAX_QUOTIENTS]; /* quotients a / c of this loop body */
    uint32_t ndiv;
    struct { val a, b, product; } times[MAX_QUOTIENTS];     /* products of atoms made in this loop body */
    uint32_t ntimes;
    /* the last values of which ix_assume_below was told; v 0: none */
    struct { val v; struct size size; } below[MAX_BELOW];
    uint32_t nbelow;
    struct note *note; uint32_t nnote, note_cap;     /* in force, in the order in which they were made */
};

#define RANGE_MAX (INT64_C(1) << 61)

/* ---- index.c ---- */
struct index_table *index_table(struct kernel *k);           /* with room for all values; NULL: out of memory */
struct form index_form(const struct kernel *k, val v);
void index_remember(struct kernel *k, val v, const struct form *f); /* unless a form is known */
/* ---- index_facts.c ---- */
void index_notes_free(struct index_table *x);

#endif
