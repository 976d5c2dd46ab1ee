/* The program that a regular expression becomes: pattern.c compiles it, pattern_match.c runs it. */
#ifndef KILN_FORMATS_PATTERN_CODE_H
#define KILN_FORMATS_PATTERN_CODE_H
#include "pattern.h"
#include "unicode.h"

enum pattern_kind {
    PATTERN_SET,    /* one character of a set */
    PATTERN_LOOP,   /* min to max of them, as many as there are; fewer where what follows needs it, unless possessive */
    PATTERN_BYTES,  /* the literal of the pattern */
    PATTERN_SPLIT,  /* what follows, or else what is `jump` further on */
    PATTERN_JUMP,
    PATTERN_LOOK,   /* what follows, up to its PATTERN_ACCEPT, matches here (negate: does not); goes on at `jump` */
    PATTERN_BEHIND, /* the character before is of a set */
    PATTERN_START, PATTERN_END, /* of a line */
    PATTERN_ACCEPT
};
enum { PATTERN_NO_MAX = INT32_MAX };
struct pattern_op {
    enum pattern_kind kind;
    bool negate, possessive;
    int32_t set, min, max, jump;
    uint32_t first[8];        /* SPLIT: the bytes with which what follows can begin, as bits */
};

/* What a character may be: a range, general categories, or a property. */
enum pattern_property { PATTERN_RANGE, PATTERN_CATEGORIES, PATTERN_SPACE, PATTERN_WORD, PATTERN_HAN };
struct pattern_item { enum pattern_property property; bool negate; uint32_t low, high; };
struct pattern_set { bool negate; int32_t first, n; uint32_t ascii[4]; };

struct pattern {
    struct pattern_op *op;
    struct pattern_set *set;
    struct pattern_item *item;
    int32_t nop, nset, nitem, op_cap, set_cap, item_cap;
    uint8_t *literal;
    size_t literal_n;
    uint32_t first[8];        /* the bytes with which a match can begin */
};

bool pattern_set_has(const struct pattern *p, const struct pattern_set *s, uint32_t c);
/* The bytes with which a match of the program from pc on can begin. */
void pattern_first_bytes(const struct pattern *p, int32_t pc, int depth, uint32_t first[8]);

#endif
