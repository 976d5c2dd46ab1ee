/* A lexer for .kir text.  Every bool function that can fail has then written "file:line:column: reason" to the
 * error. */
#ifndef KILN_LEX_H
#define KILN_LEX_H
#include "text.h"

struct lexer {
    const char *p, *end;          /* the rest of the text */
    const char *line_start;
    uint32_t line;                /* from 1 */
    const char *file;             /* for messages; may be NULL */
    struct err *e;
};

struct word { const char *s; size_t len; };
bool word_is(struct word w, const char *s);

/* ---- lex.c ---- */
bool lex_fail(struct lexer *l, const char *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));               /* an error at a position of the current line; returns false */
bool lex_expected(struct lexer *l, const char *what);    /* "expected WHAT, found ..."; false */
bool lex_no_memory(struct lexer *l);                     /* false */
void lex_space(struct lexer *l);                         /* skips blanks of the line */
void lex_comment(struct lexer *l);                       /* skips the rest of the line */
void lex_lines(struct lexer *l);                         /* skips blank lines and comment lines */
bool lex_end_line(struct lexer *l);                      /* nothing but a comment may follow on the line */
bool lex_at(struct lexer *l, char c);                    /* is c the next character after blanks? */
bool lex_take(struct lexer *l, char c);                  /* takes c if it is next */
bool lex_need(struct lexer *l, char c, const char *what); /* takes c, or expected what */
/* %name: *slot is its number in the table. */
bool lex_value_name(struct lexer *l, struct names *names, struct word *name, uint32_t **slot);
struct word lex_word(struct lexer *l);                   /* name characters after blanks; may be empty */
bool lex_need_word(struct lexer *l, const char *word);
bool lex_number(struct lexer *l, uint64_t max, const char *what, uint64_t *out); /* decimal, at most max */
bool lex_quoted(struct lexer *l, char *buf, size_t size); /* at a '"': the string, at most size - 1 bytes */
bool lex_title(struct lexer *l, const char *word, char *buf, size_t size); /* "WORD @name" or "WORD @"name"" */

#endif
