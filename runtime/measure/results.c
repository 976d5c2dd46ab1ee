/* Lists of results: building, printing, writing and reading JSON. */
#include "measure.h"
#include "ir/text/text.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct result *new_row(struct results *t)
{
    if (!mem_reserve(&t->row, &t->cap, t->n + 1, sizeof *t->row)) {
        t->failed = true;
        return &t->dropped;
    }
    return &t->row[t->n++];
}

static struct result *new_named_row(struct results *t, const char *bench, const char *name, const char *variant,
                                    int threads)
{
    struct result *r = new_row(t);
    *r = (struct result){.threads = threads};
    snprintf(r->bench, sizeof r->bench, "%s", bench);
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->variant, sizeof r->variant, "%s", variant);
    return r;
}

struct result *results_add(struct results *t, const char *bench, const char *name, const char *variant, int threads,
                           const struct samples *took, const char *unit, double work, double limit)
{
    struct result *r = new_named_row(t, bench, name, variant, threads);
    r->limit = limit;
    snprintf(r->unit, sizeof r->unit, "%s", unit);
    double min = measure_quantile(took->s, took->n, 0), max = measure_quantile(took->s, took->n, 1);
    double mid = samples_median(took);
    r->median = work > 0 ? work / mid * 1e-9 : mid * 1e6;
    r->min = work > 0 ? work / max * 1e-9 : min * 1e6;
    r->max = work > 0 ? work / min * 1e-9 : max * 1e6;
    return r;
}

void results_missing(struct results *t, const char *bench, const char *name, const char *variant, int threads,
                     const char *why)
{
    struct result *r = new_named_row(t, bench, name, variant, threads);
    snprintf(r->missing, sizeof r->missing, "%s", why[0] ? why : "no reason is known");
}

void results_free(struct results *t)
{
    mem_free(t->row);
    *t = (struct results){0};
}

double result_fraction(const struct result *r)
{
    double of = strcmp(r->unit, "us") ? r->median / r->limit : r->limit / r->median;
    return r->limit > 0 && isfinite(of) ? of : 0;
}

void results_table(const struct results *t, FILE *f)
{
    int width = 4, variants = 8;
    for (uint32_t i = 0; i < t->n; i++) {
        width = (int)strlen(t->row[i].name) > width ? (int)strlen(t->row[i].name) : width;
        variants = (int)strlen(t->row[i].variant) > variants ? (int)strlen(t->row[i].variant) : variants;
    }
    format_file(f, "%-8s %-*s %-*s %3s %11s %11s %11s %-8s %11s %6s  %s\n", "bench", width, "case", variants, "variant",
                "thr", "median", "min", "max", "unit", "limit", "frac", "baseline (ratio)");
    for (uint32_t i = 0; i < t->n; i++) {
        const struct result *r = &t->row[i];
        if (r->missing[0]) {
            format_file(f, "%-8s %-*s %-*s %3d  not measured: %s\n", r->bench, width, r->name, variants, r->variant,
                        r->threads, r->missing);
            continue;
        }
        format_file(f, "%-8s %-*s %-*s %3d %11.2f %11.2f %11.2f %-8s", r->bench, width, r->name, variants, r->variant,
                r->threads, r->median, r->min, r->max, r->unit);
        if (r->limit > 0)
            format_file(f, " %11.2f %6.3f", r->limit, result_fraction(r));
        else
            format_file(f, " %11s %6s", "-", "-");
        if (r->baseline[0])
            format_file(f, "  %s (%.2f)\n", r->baseline, r->ratio);
        else
            format_file(f, "  -\n");
    }
}

/* ---- JSON ---- */

static void results_put_string(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++)
        if ((unsigned char)*s < 32)
            format_file(f, "\\u%04x", (unsigned)(unsigned char)*s);
        else
            format_file(f, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
    fputc('"', f);
}

static void results_put_number(FILE *f, const char *field, const char *format, double v, bool known)
{
    format_file(f, ", \"%s\": ", field);
    if (known && isfinite(v))
        format_file(f, format, v);
    else
        fputs("null", f);
}

static void put_row(FILE *f, const struct result *r)
{
    fputs("{\"bench\": ", f);
    results_put_string(f, r->bench);
    fputs(", \"case\": ", f);
    results_put_string(f, r->name);
    fputs(", \"variant\": ", f);
    results_put_string(f, r->variant);
    format_file(f, ", \"threads\": %d", r->threads);
    results_put_number(f, "median", "%.6g", r->median, !r->missing[0]);
    results_put_number(f, "min", "%.6g", r->min, !r->missing[0]);
    results_put_number(f, "max", "%.6g", r->max, !r->missing[0]);
    fputs(", \"unit\": ", f);
    results_put_string(f, r->unit);
    results_put_number(f, "limit", "%.6g", r->limit, r->limit > 0);
    results_put_number(f, "fraction", "%.4f", result_fraction(r), r->limit > 0);
    fputs(", \"baseline\": ", f);
    if (r->baseline[0])
        results_put_string(f, r->baseline);
    else
        fputs("null", f);
    results_put_number(f, "ratio", "%.4f", r->ratio, r->baseline[0] != 0);
    if (r->missing[0]) {
        fputs(", \"missing\": ", f);
        results_put_string(f, r->missing);
    }
    fputc('}', f);
}

void results_json(const struct results *t, FILE *f)
{
    fputc('[', f);
    for (uint32_t i = 0; i < t->n; i++) {
        fputs(i ? ",\n " : "\n ", f);
        put_row(f, &t->row[i]);
    }
    fputs("\n]\n", f);
}

/* A reader for arrays of flat objects: all of JSON's syntax except nested values. */
struct results_reader {
    const char *text, *at, *end, *file;
    struct err *e;
};

static bool results_error(struct results_reader *r, const char *what)
{
    int line = 1, column = 1;
    for (const char *p = r->text; p < r->at; p++) {
        column = *p == '\n' ? 1 : column + 1;
        line += *p == '\n';
    }
    return err_set(r->e, KL_ERR_PARSE, "%s:%d:%d: %s", r->file, line, column, what);
}

static void skip_space(struct results_reader *r)
{
    while (r->at < r->end && memchr(" \t\r\n", *r->at, 4))
        r->at++;
}

static bool results_take(struct results_reader *r, char c)
{
    skip_space(r);
    bool is = r->at < r->end && *r->at == c;
    r->at += is;
    return is;
}

static bool results_need_char(struct results_reader *r, char c)
{
    char what[] = "expected ' '";
    what[10] = c;
    return results_take(r, c) || results_error(r, what);
}

/* Reads the escape after a backslash as a byte; a character that needs more than one byte becomes '?'. */
static bool read_escape(struct results_reader *r, char *c)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *known = r->at < r->end ? memchr(from, *r->at, sizeof from - 1) : NULL;
    if (known) {
        *c = to[known - from];
        r->at++;
        return true;
    }
    unsigned code = 0;
    if (r->end - r->at < 5 || *r->at != 'u')
        return results_error(r, "an escape that JSON does not have");
    for (int i = 1; i < 5; i++) {
        char h = r->at[i];
        if (!memchr("0123456789abcdefABCDEF", h, 22))
            return results_error(r, "an escape that JSON does not have");
        code = code * 16 + (unsigned)(h <= '9' ? h - '0' : (h | 32) - 'a' + 10);
    }
    r->at += 5;
    *c = code && code < 128 ? (char)code : '?';
    return true;
}

/* Reads a string, cut to the size of out. */
static bool read_string(struct results_reader *r, char *out, size_t size)
{
    size_t n = 0;
    if (!results_need_char(r, '"'))
        return false;
    while (r->at < r->end && *r->at != '"') {
        char c = *r->at++;
        if ((unsigned char)c < 32) {
            r->at--;
            return results_error(r, "a control character in a string");
        }
        if (c == '\\' && !read_escape(r, &c))
            return false;
        if (n + 1 < size)
            out[n++] = c;
    }
    out[n] = 0;
    return results_need_char(r, '"');
}

static bool read_word(struct results_reader *r, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n))
        return false;
    r->at += n;
    return true;
}

static bool read_number(struct results_reader *r, double *v)
{
    char digits[64], *stop;
    size_t n = 0;
    while (r->at + n < r->end && n + 1 < sizeof digits && memchr("+-.eE0123456789", r->at[n], 15))
        n++;
    memcpy(digits, r->at, n);
    digits[n] = 0;
    *v = parse_double(digits, &stop);
    if (!n || *stop || !isfinite(*v))
        return results_error(r, "expected a string, a number or null");
    r->at += n;
    return true;
}

static bool read_field(struct results_reader *r, struct result *row)
{
    const struct { const char *name; char *text; size_t size; double *number; } fields[] = {
        {"bench", row->bench, sizeof row->bench, NULL},   {"case", row->name, sizeof row->name, NULL},
        {"variant", row->variant, sizeof row->variant, NULL}, {"unit", row->unit, sizeof row->unit, NULL},
        {"baseline", row->baseline, sizeof row->baseline, NULL}, {"median", NULL, 0, &row->median},
        {"min", NULL, 0, &row->min}, {"max", NULL, 0, &row->max}, {"limit", NULL, 0, &row->limit},
        {"ratio", NULL, 0, &row->ratio}, {"missing", row->missing, sizeof row->missing, NULL},
    };
    char name[32], text[8];
    double number;
    if (!read_string(r, name, sizeof name) || !results_need_char(r, ':'))
        return false;
    size_t i = 0;
    while (i < sizeof fields / sizeof *fields && strcmp(fields[i].name, name))
        i++;
    bool known = i < sizeof fields / sizeof *fields;
    skip_space(r);
    if (read_word(r, "null") || read_word(r, "true") || read_word(r, "false"))
        return true;
    const char *start = r->at;
    if (r->at < r->end && *r->at == '"') {
        bool is_text = known && fields[i].text;
        if (known && !is_text)
            return results_error(r, "expected a number");
        return read_string(r, is_text ? fields[i].text : text, is_text ? fields[i].size : sizeof text);
    }
    if (!read_number(r, known && fields[i].number ? fields[i].number : &number))
        return false;
    if (known && fields[i].text) {
        r->at = start;
        return results_error(r, "expected a string");
    }
    if (!strcmp(name, "threads"))
        row->threads = number > 0 && number < 1e6 ? (int)number : 0;
    return true;
}

static bool read_row(struct results_reader *r, struct results *t)
{
    struct result row = {0};
    if (!results_need_char(r, '{'))
        return false;
    if (!results_take(r, '}')) {
        do
            if (!read_field(r, &row))
                return false;
        while (results_take(r, ','));
        if (!results_need_char(r, '}'))
            return false;
    }
    *new_row(t) = row;
    return !t->failed || err_set(r->e, KL_ERR_MEMORY, "%s: out of memory", r->file);
}

bool results_parse(struct results *t, const char *text, size_t len, const char *file, struct err *e)
{
    struct results_reader r = {text, text, text + len, file, e};
    if (!results_need_char(&r, '['))
        return false;
    if (!results_take(&r, ']')) {
        do
            if (!read_row(&r, t))
                return false;
        while (results_take(&r, ','));
        if (!results_need_char(&r, ']'))
            return false;
    }
    skip_space(&r);
    return r.at == r.end || results_error(&r, "something behind the array");
}

/* ---- progress ---- */

void measure_progress(const char *what, int done, int total)
{
    enum { WIDTH = 30 };
    if (!isatty(STDERR_FILENO) || total < 1)
        return;
    int full = done * WIDTH / total;
    format_file(stderr, "\r%s [%.*s%.*s] %d/%d\033[K", what, full, "##############################", WIDTH - full,
            "..............................", done, total);
    if (done == total)
        fputs("\r\033[K", stderr);
    fflush(stderr);
}

void measure_progress_lines(double *last, const char *what, int done, int total)
{
    enum { EVERY = 5 }; /* seconds */
    double now = measure_now();
    measure_progress(what, done, total);
    if (isatty(STDERR_FILENO) || now - *last < EVERY)
        return;
    *last = now;
    format_file(stderr, "%s: %d of %d rounds\n", what, done, total);
}
