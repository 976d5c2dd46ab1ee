/* Tables of numbers as text: fields between separators, one row a line. */
#include "file_open.h"
#include <kiln/train.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct csv {
    const char *path;
    const char *at, *end;    /* the text that is not read yet */
    char separator;
    int64_t line, column;    /* position of the field that is being read, from 1 */
    char *field;             /* its text without quotes */
    size_t field_cap, length;
    kl_csv *out;
    int64_t cap;             /* capacity of out->data, in numbers */
};

static kl_status csv_fault(const struct csv *c, const char *what)
{
    return kl_failf(NULL, KL_ERR_IO, "csv_open: %s:%lld: column %lld: %s", c->path, (long long)c->line,
                   (long long)c->column, what);
}

static kl_status csv_no_memory(const struct csv *c)
{
    return kl_failf(NULL, KL_ERR_MEMORY, "csv_open: out of memory for %s", c->path);
}

/* Reads the whole file and adds a terminating zero. */
static kl_status csv_load(const char *path, char **text, size_t *bytes)
{
    int64_t size;
    struct file_error why;
    int fd = file_open_read(path, &size, &why);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "rb");
    if (!f) {
        if (fd >= 0)
            close(fd);
        return fd < 0 ? file_error_report("csv_open", &why)
                      : kl_failf(NULL, KL_ERR_MEMORY, "csv_open: out of memory for %s", path);
    }
    kl_status s = KL_OK;
    if (!(*text = kl_memory_alloc((size_t)size + 1)))
        s = kl_failf(NULL, KL_ERR_MEMORY, "csv_open: out of memory: %lld bytes of %s", (long long)size, path);
    else if ((*bytes = fread(*text, 1, (size_t)size, f)) < (size_t)size)
        s = kl_failf(NULL, KL_ERR_IO, "csv_open: cannot read %s: %lld of %lld bytes", path, (long long)*bytes,
                    (long long)size);
    fclose(f);
    return s;
}

static bool csv_put(struct csv *c, char x)
{
    if (c->length + 1 >= c->field_cap) {
        size_t cap = c->field_cap ? 2 * c->field_cap : 64;
        char *field = kl_memory_grow(c->field, c->field_cap, cap);
        if (!field)
            return false;
        c->field = field;
        c->field_cap = cap;
    }
    c->field[c->length++] = x;
    c->field[c->length] = 0;
    return true;
}

static bool csv_at_line_end(const struct csv *c)
{
    return c->at == c->end || *c->at == '\n' || (*c->at == '\r' && (c->at + 1 == c->end || c->at[1] == '\n'));
}

/* Reads one field, without the spaces around it; *last: it is the last one of its line. */
static kl_status csv_field(struct csv *c, bool *last)
{
    c->length = 0;
    c->column++;
    bool ok = true;
    while (c->at < c->end && (*c->at == ' ' || (*c->at == '\t' && c->separator != '\t')))
        c->at++;
    if (c->at < c->end && *c->at == '"') {
        int64_t line = c->line;
        for (c->at++; c->at < c->end && ok; c->at++) {
            if (*c->at == '"' && (c->at + 1 == c->end || c->at[1] != '"'))
                break;
            c->at += *c->at == '"';
            line += *c->at == '\n';
            ok = csv_put(c, *c->at);
        }
        if (ok && c->at == c->end)
            return csv_fault(c, "a quote is not closed");
        c->line = line;
        c->at++;
        while (ok && c->at < c->end && *c->at == ' ')
            c->at++;
        if (ok && !csv_at_line_end(c) && *c->at != c->separator)
            return csv_fault(c, "text behind a closing quote");
    } else {
        while (ok && !csv_at_line_end(c) && *c->at != c->separator)
            ok = csv_put(c, *c->at++);
        while (c->length && (c->field[c->length - 1] == ' ' || c->field[c->length - 1] == '\t'))
            c->field[--c->length] = 0;
    }
    if (!ok)
        return csv_no_memory(c);
    *last = csv_at_line_end(c);
    c->at += !*last;
    return KL_OK;
}

/* Goes to the next line that is not empty; false: there is none. */
static bool csv_line(struct csv *c, bool first)
{
    bool begun = first;
    c->column = 0;
    for (;;) {
        if (!begun) {
            c->at += c->at < c->end && *c->at == '\r';
            if (c->at == c->end)
                return false;
            c->at++;
            c->line++;
        }
        begun = false;
        if (c->at == c->end)
            return false;
        if (!csv_at_line_end(c))
            return true;
    }
}

static kl_status csv_name(struct csv *c)
{
    kl_csv *out = c->out;
    char **name = kl_memory_grow(out->name, (size_t)out->columns * sizeof *name,
                                 (size_t)(out->columns + 1) * sizeof *name);
    if (!name)
        return csv_no_memory(c);
    out->name = name;
    name[out->columns] = kl_memory_alloc(c->length + 1);
    if (!name[out->columns])
        return csv_no_memory(c);
    memcpy(name[out->columns++], c->length ? c->field : "", c->length);
    return KL_OK;
}

static kl_status csv_number(struct csv *c)
{
    kl_csv *out = c->out;
    int64_t at = out->rows * out->columns + c->column - 1;
    if (out->rows == 0 && !out->name)
        out->columns = c->column, at = c->column - 1;
    if (c->column > out->columns)
        return csv_fault(c, "the row has more fields than the first");
    if (at >= c->cap) {
        int64_t cap = c->cap ? 2 * c->cap : 256;
        double *data = kl_memory_grow(out->data, (size_t)c->cap * sizeof *data, (size_t)cap * sizeof *data);
        if (!data)
            return csv_no_memory(c);
        out->data = data;
        c->cap = cap;
    }
    char *end = c->field;
    out->data[at] = c->length ? kl_parse_f64(c->field, &end) : (double)NAN;
    if (!c->length || (end != c->field && end == c->field + c->length))
        return KL_OK;
    char what[96];
    kl_format(what, sizeof what, "\"%.40s\" is not a number", c->field);
    return csv_fault(c, what);
}

static kl_status csv_rows(struct csv *c, bool header)
{
    kl_status s = KL_OK;
    for (bool first = true; s == KL_OK && csv_line(c, first); first = false) {
        bool names = header && first, last = false;
        while (s == KL_OK && !last) {
            s = csv_field(c, &last);
            if (s == KL_OK)
                s = names ? csv_name(c) : csv_number(c);
        }
        if (s == KL_OK && !names && c->column < c->out->columns)
            s = csv_fault(c, "the row ends: it has fewer fields than the first");
        c->out->rows += s == KL_OK && !names;
    }
    return s;
}

kl_status kl_csv_open(const char *path, char separator, bool header, kl_csv *out)
{
    if (out)
        *out = (kl_csv){0};
    if (!out || !path || separator == '"' || separator == '\n')
        return kl_failf(NULL, KL_ERR_ARGUMENT, "csv_open: %s", !out || !path ? "an argument is NULL" : "the separator");
    char *text = NULL;
    size_t bytes = 0;
    kl_status s = csv_load(path, &text, &bytes);
    struct csv c = {.path = path, .at = text, .end = text ? text + bytes : NULL, .line = 1, .out = out,
                    .separator = separator ? separator : ','};
    if (s == KL_OK)
        s = csv_rows(&c, header);
    if (s == KL_OK && !out->data && !(out->data = kl_memory_alloc(sizeof *out->data)))
        s = csv_no_memory(&c);
    kl_memory_free(c.field);
    kl_memory_free(text);
    if (s != KL_OK)
        kl_csv_close(out);
    return s;
}

int64_t kl_csv_column(const kl_csv *csv, const char *name)
{
    for (int64_t i = 0; csv && csv->name && name && i < csv->columns; i++)
        if (!strcmp(csv->name[i], name))
            return i;
    return -1;
}

void kl_csv_close(kl_csv *csv)
{
    if (!csv)
        return;
    for (int64_t i = 0; csv->name && i < csv->columns; i++)
        kl_memory_free(csv->name[i]);
    kl_memory_free(csv->name);
    kl_memory_free(csv->data);
    *csv = (kl_csv){0};
}
