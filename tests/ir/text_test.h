/* What the two halves of the text tests share: text.c for graphs and files, text_kernel.c for kernels. */
#ifndef TEXT_TEST_H
#define TEXT_TEST_H
#include "tests/support/harness.h"
#include "ir/text/text.h"

struct test {
    const char *path;
    char *text;             /* the whole file */
    size_t len;
    const char *body;       /* behind the first line */
    const char *expect;     /* behind "# expect:", or NULL */
    struct text problem;    /* why it failed; empty: passed */
    bool bless, skip;       /* skip: what it needs is not built */
    bool kernel;            /* a .loop file */
};
static const char expect_line[] = "\n# expect:\n";

/* ---- text.c ---- */
size_t test_end(const struct test *t);                                        /* where the text under test ends */
/* Compares with the expectation, or rewrites it.  `own`: without one, the body itself is expected. */
void test_expect(struct test *t, const char *got, bool own);
void test_lines(struct text *t, const char *sign, const char *s, const char *end); /* lines with a sign before each */
void test_elements(struct text *s, unsigned dtype, const void *data, int64_t n);   /* as literals, and a line break */
/* ---- text_kernel.c ---- */
void test_kernel(struct test *t, const char *what, size_t len);               /* what: the words behind "# test: " */

#endif
