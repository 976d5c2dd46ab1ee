/* A strict reader of JSON (RFC 8259), value by value in the order of the text. */
#ifndef KILN_FORMATS_JSON_H
#define KILN_FORMATS_JSON_H
#include "tensor_file.h"

struct json { kl_file *f; const uint8_t *start, *p, *end; };
/* Each is false, or NULL, after an error, which f->why then has. */
size_t json_at(const struct json *j);                    /* the byte of the file */
bool json_is(struct json *j, char c);                    /* takes it, behind white space, if it is there; no error */
bool json_end(struct json *j);                           /* nothing but white space is left; no error */
bool json_expect(struct json *j, char c, const char *field);
char *json_string(struct json *j, const char *field);    /* unescaped, in the file's memory */
char *json_text(struct json *j, const char *field, size_t *n); /* the same, of n bytes, some of which may be zero */
bool json_number(struct json *j, const char *field, uint64_t *v); /* a whole one from 0 on, below 2^63 */
size_t utf8_length(const uint8_t *p, const uint8_t *end); /* bytes of the character at p, 0: it is none */
bool utf8_is_valid(const char *s);

#endif
