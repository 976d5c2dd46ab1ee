/* JSON as a tree (json_tree.h). */
#include "json_tree.h"
#include <math.h>
#include <string.h>

enum { JSON_MAX_DEPTH = 40, JSON_MAX_NUMBER = 60 };
static const char *const json_kind_names[] = {"null", "true or false", "a number", "a text", "a list", "an object"};

static bool json_read_value(struct json *j, struct json_value *v, int depth);

static struct json_value *json_new_child(struct json *j, struct json_value *parent, struct json_value **last)
{
    struct json_value *v = file_memory(j->f, sizeof *v);
    if (v) {
        if (*last)
            (*last)->next = v;
        else
            parent->child = v;
        *last = v;
        parent->n++;
    }
    return v;
}

/* What is between { } or [ ], behind the opening bracket. */
static bool json_read_members(struct json *j, struct json_value *v, int depth)
{
    char close = v->kind == JSON_OBJECT ? '}' : ']';
    struct json_value *last = NULL;
    if (depth == JSON_MAX_DEPTH)
        return file_bad(j->f, json_at(j), NULL, "lists and objects that are nested too deeply");
    if (json_is(j, close))
        return true;
    do {
        struct json_value *child = json_new_child(j, v, &last);
        if (!child)
            return false;
        if (close == '}' && (!(child->name = json_text(j, NULL, &child->name_n)) ||
                             !json_expect(j, ':', child->name)))
            return false;
        if (!json_read_value(j, child, depth + 1))
            return false;
    } while (json_is(j, ','));
    return json_expect(j, close, v->name);
}

static size_t json_digits(const uint8_t *p, const uint8_t *end)
{
    size_t n = 0;
    while (p + n < end && p[n] >= '0' && p[n] <= '9')
        n++;
    return n;
}

static bool json_read_real(struct json *j, struct json_value *v)
{
    char text[JSON_MAX_NUMBER];
    const uint8_t *p = j->p;
    p += *p == '-';
    size_t whole = json_digits(p, j->end), fraction = 1, exponent = 1;
    bool zero = whole > 1 && *p == '0';
    p += whole;
    if (p < j->end && *p == '.')
        p += 1 + (fraction = json_digits(p + 1, j->end));
    if (p < j->end && (*p == 'e' || *p == 'E')) {
        p += 1 + (j->end - p > 1 && (p[1] == '+' || p[1] == '-'));
        p += exponent = json_digits(p, j->end);
    }
    size_t n = (size_t)(p - j->p);
    if (!whole || zero || !fraction || !exponent || n >= sizeof text)
        return file_bad(j->f, v->at, v->name, "expected a value");
    memcpy(text, j->p, n);
    text[n] = 0;
    j->p = p;
    v->kind = JSON_NUMBER;
    v->number = kl_parse_f64(text, NULL);
    return isfinite(v->number) || file_bad(j->f, v->at, v->name, "a number that is too large");
}

static bool json_read_word(struct json *j, struct json_value *v)
{
    static const struct { const char *text; enum json_kind kind; double number; } words[] = {
        {"true", JSON_BOOL, 1}, {"false", JSON_BOOL, 0}, {"null", JSON_NULL, 0}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i].text);
        if ((size_t)(j->end - j->p) >= n && !memcmp(j->p, words[i].text, n)) {
            j->p += n;
            v->kind = words[i].kind;
            v->number = words[i].number;
            return true;
        }
    }
    return file_bad(j->f, v->at, v->name, "expected a value");
}

static bool json_read_value(struct json *j, struct json_value *v, int depth)
{
    json_end(j); /* skips white space */
    v->at = json_at(j);
    if (j->p == j->end)
        return file_bad(j->f, v->at, v->name, "the text is cut off");
    if (*j->p == '"') {
        v->kind = JSON_STRING;
        return (v->text = json_text(j, v->name, &v->n)) != NULL;
    }
    if (*j->p == '{' || *j->p == '[') {
        v->kind = *j->p++ == '{' ? JSON_OBJECT : JSON_ARRAY;
        return json_read_members(j, v, depth);
    }
    return *j->p == '-' || (*j->p >= '0' && *j->p <= '9') ? json_read_real(j, v) : json_read_word(j, v);
}

const struct json_value *json_tree(kl_file *f, const uint8_t *start, size_t n)
{
    struct json j = {.f = f, .start = start, .p = start, .end = start + n};
    struct json_value *v = file_memory(f, sizeof *v);
    if (!v || !json_read_value(&j, v, 0))
        return NULL;
    return json_end(&j) ? v : (file_bad(f, json_at(&j), NULL, "text behind the value"), NULL);
}

const struct json_value *json_member(const struct json_value *v, const char *name)
{
    size_t n = strlen(name);
    const struct json_value *found = NULL; /* the last one of a name counts */
    for (const struct json_value *c = v && v->kind == JSON_OBJECT ? v->child : NULL; c; c = c->next)
        if (c->name_n == n && !memcmp(c->name, name, n))
            found = c->kind == JSON_NULL ? NULL : c;
    return found;
}

bool json_want(kl_file *f, const struct json_value *v, const char *name, enum json_kind kind, bool need,
               const struct json_value **to)
{
    *to = json_member(v, name);
    if (!*to)
        return !need || file_bad(f, v->at, name, "there is none");
    return (*to)->kind == kind || file_bad(f, (*to)->at, name, "expected %s, this is %s", json_kind_names[kind],
                                           json_kind_names[(*to)->kind]);
}

bool json_flag(kl_file *f, const struct json_value *v, const char *name, bool otherwise, bool *to)
{
    const struct json_value *flag;
    *to = otherwise;
    if (!json_want(f, v, name, JSON_BOOL, false, &flag))
        return false;
    if (flag)
        *to = flag->number != 0;
    return true;
}

bool json_text_is(const struct json_value *v, const char *text)
{
    return v && v->kind == JSON_STRING && v->n == strlen(text) && !memcmp(v->text, text, v->n);
}

bool json_whole(kl_file *f, const struct json_value *v, const char *field, int64_t most, int64_t *to)
{
    if (v->kind != JSON_NUMBER || v->number != floor(v->number) || v->number < 0 || v->number > (double)most)
        return file_bad(f, v->at, field, "expected a whole number from 0 to %lld", (long long)most);
    *to = (int64_t)v->number;
    return true;
}
