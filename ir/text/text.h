/* Growing strings, name tables and literals for the printer and parser of .kir text.  The grammar is in
 * ir/README.md. */
#ifndef KILN_TEXT_H
#define KILN_TEXT_H
#include "ir/ir.h"

/* ---- text.c ---- */
/* A growing string.  A failed allocation marks it, and further writes do nothing. */
struct text {
    char *s;              /* NUL-terminated once anything was written; mem_free it */
    size_t len, cap;
    bool failed;
};
void text_put(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text_quoted(struct text *t, const char *s); /* "s", with \" \\ and \xNN for control bytes */
void text_pad(struct text *t, size_t line_start, size_t column); /* spaces up to a column of the line, at least 2 */
char *text_take(struct text *t);                 /* its string, the caller's to mem_free; NULL: out of memory */
bool text_print(char *s, FILE *f);               /* writes a string of text_take and frees it; false: it could not */

/* A table from names to numbers.  Keys are not copied and must outlive it. */
struct name { const char *s; size_t len; uint32_t value; };
struct names { struct name *v; uint32_t n, size; };
/* The number stored for a name, 0 for a new one; NULL when out of memory.  Valid until the next call. */
uint32_t *names_at(struct names *t, const char *s, size_t len);
void names_free(struct names *t);

bool is_name_char(char c);                /* letter, digit, '_' or '.' */
bool is_name(const char *s);              /* name characters, the first a letter or '_' */

/* A dtype's value as text that parses back to the same bits, and back. */
void text_literal(struct text *t, unsigned dtype, uint64_t bits);
/* false: *why is the error in the literal (a static string). */
bool literal_parse(unsigned dtype, const char *s, size_t len, uint64_t *bits, const char **why);
#define MAX_LITERAL 48 /* longest literal accepted, in bytes */

/* ---- compare.c ---- */
/* the last two count lines about outputs, leaves and symbols */
struct graph_changes { uint32_t same, changed, removed, added, outputs, leaves; };
/* Adds a line for each node that was added, removed or changed from a to b, and for outputs, leaves and symbols; none
 * if the graphs are equal. false: out of memory. */
bool graph_compare(const struct graph *a, const struct graph *b, struct text *t, struct graph_changes *n);

enum { MAX_ATTR_TEXT = 255 }; /* bytes of a custom op's attribute that is written as text */

/* Names of the devices that have one, by number; the others print as @N. */
const char *device_text(unsigned device); /* NULL: no name */
int device_by_text(const char *s, size_t len); /* -1: unknown */

#endif
