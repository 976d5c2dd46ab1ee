/* The record of scheduling decisions that a kernel has, as far as ir/ and code generators know it: numbers that are
 * kept, hashed and printed with the kernel.  What they mean is known to the kernel's family (passes/lower), whose table
 * of fields says how its records are written as text and what numbers they may have. */
#ifndef KILN_SCHED_RECORD_H
#define KILN_SCHED_RECORD_H
#include "ir/ir.h"

struct sched_record {
    uint16_t kind;          /* the family's number */
    uint16_t width;         /* lanes of the vector loops; where threads share the work: threads of a block */
    uint8_t stream;         /* results are stored non-temporally, where vectors lie at whole registers */
    uint8_t graph_order;    /* of a GPU's kernel: caps.graph_order; a word behind the fields of its text */
    uint8_t pad[2];
    int64_t grain;          /* parallel iterations worth one task; 0: never split */
    uint64_t own[4];        /* members of the family's own */
};
_Static_assert(sizeof(struct sched_record) == 48, "no padding: records are hashed and compared as bytes");

enum sched_form { FORM_NUMBER, FORM_SIDES, FORM_FLAG, FORM_WORD, FORM_SET };
struct sched_field {
    const char *word;           /* in the text */
    uint8_t form;               /* enum sched_form */
    uint8_t offset, size;       /* of the member in the record */
    uint8_t sides;              /* FORM_SIDES: so many members, one behind the other, as AxB or AxBxC */
    bool chosen;                /* 0, which the text does not say: is chosen */
    bool power;                 /* a power of two */
    int64_t min, max;           /* what a user may supply; other than 0 if `chosen` */
    const char *const *name;    /* FORM_WORD: of the values, NULL: no word; `max` is the last */
};
enum { MAX_SCHED_FIELDS = 15 };
struct sched_family { const char *word; const struct sched_field *field; uint32_t n; };
struct sched_families { const struct sched_family *v; uint16_t n; };     /* by kind */

/* ---- sched_record.c ---- */
uint64_t sched_get(const struct sched_record *s, const struct sched_field *f, unsigned side);
void sched_set(struct sched_record *s, const struct sched_field *f, unsigned side, uint64_t v);
/* The number of a field by its word; MAX_SCHED_FIELDS: the family has none. */
uint32_t sched_field_find(const struct sched_family *f, const char *word);

/* Has each field a number that the table allows?  false: *e, with the field.  [errors ARGUMENT] */
bool sched_in_range(const struct sched_family *f, const struct sched_record *s, struct err *e);

#endif
