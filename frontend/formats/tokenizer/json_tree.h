/* A JSON text as a tree, for files whose keys may be in any order. */
#ifndef KILN_FORMATS_JSON_TREE_H
#define KILN_FORMATS_JSON_TREE_H
#include "frontend/formats/json.h"

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };
struct json_value {
    enum json_kind kind;
    size_t at;                /* its byte in the file */
    const char *name;         /* of a member of an object; NULL: an element of an array */
    size_t name_n;
    char *text;               /* of a string, in the file's memory, with a zero behind it */
    size_t n;                 /* bytes of the text; elements or members */
    double number;            /* 0 or 1 of a bool */
    struct json_value *child, *next;
};

/* The whole text; it lives as long as the file.  NULL: f->why. */
const struct json_value *json_tree(kl_file *f, const uint8_t *start, size_t n);
/* A member of an object; NULL: there is none, or it is null, or v is NULL or no object. */
const struct json_value *json_member(const struct json_value *v, const char *name);
/* The same, which has to be of this kind.  false: f->why.  need: it has to be there, else *to may be NULL. */
bool json_want(kl_file *f, const struct json_value *v, const char *name, enum json_kind kind, bool need,
               const struct json_value **to);
bool json_flag(kl_file *f, const struct json_value *v, const char *name, bool otherwise, bool *to); /* false: f->why */
bool json_text_is(const struct json_value *v, const char *text); /* v may be NULL */
/* A whole number from 0 to most; false: f->why. */
bool json_whole(kl_file *f, const struct json_value *v, const char *field, int64_t most, int64_t *to);

#endif
