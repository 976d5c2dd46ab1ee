/* Regular expressions, as pre-tokenizers have them, by backtracking.  Read: alternatives, groups ( ), (?: ), (?i: ),
 * (?= ), (?! ), (?<= ), (?<! ), classes [ ] with ranges, \s \d \w \p{..} and their complements, ^ $ and the quantifiers
 * ? * + {m,n}, greedy, or possessive on one character or class.  Others are an error that names them. */
#ifndef KILN_FORMATS_PATTERN_H
#define KILN_FORMATS_PATTERN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pattern;
/* From n bytes of UTF-8.  NULL: it is not read, and why[room] says why; an empty why: out of memory. */
struct pattern *pattern_new(const char *text, size_t n, char *why, size_t room);
/* The pattern that matches just these bytes. */
struct pattern *pattern_new_literal(const char *text, size_t n);
void pattern_free(struct pattern *p); /* NULL is fine */

enum pattern_result { PATTERN_NONE, PATTERN_FOUND, PATTERN_TOO_LONG }; /* TOO_LONG: of time or memory */
/* The first match in [start, end) that begins at `from` or after it and is not empty. */
enum pattern_result pattern_find(const struct pattern *p, const uint8_t *start, const uint8_t *end,
                                 const uint8_t *from, const uint8_t **match, const uint8_t **match_end);

#endif
