/* kiln train-log: the log of a training run, a line of JSON a step as kl_train writes it, as one page with curves of
 * the loss and the learning rate.  A run that went on from a checkpoint has steps a second time: the later ones
 * count. */
#include "cli.h"
#include <errno.h>
#include <kiln/kiln.h>
#include <kiln/extend.h>
#include <math.h>
#include <string.h>

enum { STEP, LOSS, RATE, SECONDS, FIELDS };
static const char *const field_name[FIELDS] = {"step", "loss", "rate", "seconds"};
struct log_row { double v[FIELDS]; };        /* NaN: the line does not say */
struct train_log { struct log_row *row; uint32_t n, cap; };

/* ---- reading ---- */

static void skip_space(const char **s) { *s += strspn(*s, " \t\r"); }

/* A string in quotes, without what is escaped in it; false: it has no end. */
static bool take_string(const char **s, char *out, size_t size)
{
    size_t n = 0;
    for ((*s)++; **s && **s != '"' && **s != '\n'; (*s)++) {
        if (**s == '\\' && (*s)[1] && (*s)[1] != '\n')
            (*s)++;
        if (n + 1 < size)
            out[n++] = **s;
    }
    out[n] = 0;
    return *(*s)++ == '"';
}

/* One object of names with numbers or strings; NULL: it was taken, else what is wrong. */
static const char *take_line(const char **s, struct log_row *row)
{
    char name[32], text[32];
    for (int i = 0; i < FIELDS; i++)
        row->v[i] = NAN;
    if (*(*s)++ != '{')
        return "a line is an object: {\"step\": 1, \"loss\": 2.3}";
    for (;;) {
        skip_space(s);
        if (**s != '"' || !take_string(s, name, sizeof name))
            return "a name in quotes is missing";
        skip_space(s);
        if (*(*s)++ != ':')
            return "':' is missing";
        skip_space(s);
        if (**s == '"') {
            if (!take_string(s, text, sizeof text))
                return "a string has no end";
        } else {
            char *end;
            double v = kl_parse_f64(*s, &end);
            if (end == *s && !strncmp(*s, "null", 4))
                end += 4, v = NAN;
            if (end == *s)
                return "a number is missing";
            *s = end;
            for (int i = 0; i < FIELDS; i++)
                if (!strcmp(name, field_name[i]))
                    row->v[i] = v;
        }
        skip_space(s);
        if (**s == '}')
            break;
        if (*(*s)++ != ',')
            return "',' or '}' is missing";
    }
    (*s)++;
    skip_space(s);
    if (**s && **s != '\n')
        return "there is more behind the object";
    if (row->v[STEP] != row->v[STEP] || row->v[LOSS] != row->v[LOSS])
        return "\"step\" or \"loss\" is missing";
    return fabs(row->v[STEP]) <= 0x1p53 ? NULL : "\"step\" is beyond 2^53";
}

static bool log_read(struct train_log *l, const char *path, const char *s)
{
    for (int line = 1; *s; line++) {
        struct log_row row;
        skip_space(&s);
        bool empty = !*s || *s == '\n';
        const char *wrong = empty ? NULL : take_line(&s, &row);
        if (wrong)
            return cli_error("%s:%d: %s", path, line, wrong) == CLI_OK;
        if (!empty) {
            while (l->n && l->row[l->n - 1].v[STEP] >= row.v[STEP])
                l->n--;
            if (!mem_reserve(&l->row, &l->cap, l->n + 1, sizeof *l->row))
                return cli_error("out of memory") == CLI_OK;
            l->row[l->n++] = row;
        }
        s += *s == '\n';
    }
    return l->n || cli_error("%s: there is no step in it", path) == CLI_OK;
}

/* ---- the page ---- */

enum { WIDTH = 900, HEIGHT = 300, LEFT = 70, RIGHT = 20, TOP = 16, BOTTOM = 36, POINTS = 800, LINES = 20 };

struct curve { double low, high, first, last; }; /* what the axes show */

static double curve_x(const struct curve *c, double step)
{
    double span = c->last > c->first ? c->last - c->first : 1;
    return LEFT + (step - c->first) / span * (WIDTH - LEFT - RIGHT);
}

static double curve_y(const struct curve *c, double v)
{
    double span = c->high > c->low ? c->high - c->low : 1;
    return TOP + (c->high - v) / span * (HEIGHT - TOP - BOTTOM);
}

/* A number that a curve shows: neither infinite nor so large that differences overflow. */
static bool is_drawn(double v) { return fabs(v) <= 1e100; }

/* The distance between about n grid lines: 1, 2 or 5 times a power of ten. */
static double tick_step(double span, int n)
{
    double raw = span > 0 ? span / n : 1, unit = pow(10, floor(log10(raw)));
    return unit * (raw / unit > 5 ? 10 : raw / unit > 2 ? 5 : raw / unit > 1 ? 2 : 1);
}

static void put_axes(FILE *f, const struct curve *c)
{
    double by = tick_step(c->high - c->low, 5), first = ceil(c->low / by), v = first * by;
    for (int i = 1; i <= LINES && v <= c->high + by * 1e-6; v = (first + i++) * by)
        format_file(f, "<line class=grid x1=%d x2=%d y1=%.1f y2=%.1f /><text class=left x=%d y=%.1f>%.4g</text>\n",
                    LEFT, WIDTH - RIGHT, curve_y(c, v), curve_y(c, v), LEFT - 8, curve_y(c, v) + 4, fabs(v) < by / 1e6
                        ? 0 : v);
    by = tick_step(c->last - c->first, 8), first = ceil(c->first / by), v = first * by;
    for (int i = 1; i <= LINES && v <= c->last + by * 1e-6; v = (first + i++) * by)
        format_file(f, "<text class=below x=%.1f y=%d>%.6g</text>\n", curve_x(c, v), HEIGHT - BOTTOM + 18, v);
}

/* The curve through means of `window` steps, by at most POINTS points. */
static void put_curve(FILE *f, const struct train_log *l, int field, uint32_t window, const struct curve *c,
                      const char *kind)
{
    uint32_t by = l->n / POINTS + 1;
    fprintf(f, "<polyline class=%s points=\"", kind);
    for (uint32_t i = 0; i < l->n; i += by) {
        double sum = 0;
        uint32_t first = i + 1 >= window ? i + 1 - window : 0, n = 0;
        for (uint32_t k = first; k <= i; k++)
            if (is_drawn(l->row[k].v[field])) {
                sum += l->row[k].v[field];
                n++;
            }
        if (n)
            format_file(f, "%.1f,%.1f ", curve_x(c, l->row[i].v[STEP]), curve_y(c, sum / n));
    }
    fputs("\" />\n", f);
}

static void put_chart(FILE *f, const struct train_log *l, int field, const char *title)
{
    struct curve c = {INFINITY, -INFINITY, l->row[0].v[STEP], l->row[l->n - 1].v[STEP]};
    for (uint32_t i = 0; i < l->n; i++)
        if (is_drawn(l->row[i].v[field])) {
            c.low = fmin(c.low, l->row[i].v[field]);
            c.high = fmax(c.high, l->row[i].v[field]);
        }
    if (!(c.low <= c.high))
        return;
    if (field == RATE || c.low == c.high)
        c.low = fmin(c.low, 0);
    if (c.low == c.high)
        c.high = 0;
    fprintf(f, "<h2>%s</h2>\n<svg viewBox=\"0 0 %d %d\" data-field=%s>\n", title, WIDTH, HEIGHT, field_name[field]);
    put_axes(f, &c);
    uint32_t window = l->n / 50 + 1;
    if (field == LOSS && window > 1)
        put_curve(f, l, field, 1, &c, "thin");
    put_curve(f, l, field, field == LOSS ? window : 1, &c, "thick");
    fputs("<line class=cursor y1=0 y2=300 x1=-9 x2=-9 /></svg>\n", f);
}

static void put_html(FILE *f, const char *s)
{
    for (; *s; s++)
        if (*s == '<' || *s == '&')
            fputs(*s == '<' ? "&lt;" : "&amp;", f);
        else
            fputc(*s, f);
}

static void put_page(FILE *f, const struct train_log *l, const char *path)
{
    const struct log_row *first = &l->row[0], *last = &l->row[l->n - 1];
    double tail = 0, seconds = 0;
    uint32_t window = l->n / 50 + 1;
    for (uint32_t i = l->n - window; i < l->n; i++)
        tail += l->row[i].v[LOSS] / window;
    for (uint32_t i = 1; i < l->n; i++) /* a run that goes on counts its seconds from 0 again */
        if (l->row[i].v[SECONDS] > l->row[i - 1].v[SECONDS])
            seconds += l->row[i].v[SECONDS] - l->row[i - 1].v[SECONDS];
    fputs("<!doctype html><meta charset=utf-8><title>", f);
    put_html(f, path);
    fputs("</title>\n<style>body{font:14px sans-serif;max-width:940px;margin:24px auto;color:#222}h1{font-size:20px}"
          "h2{font-size:15px;margin:24px 0 4px}svg{width:100%;background:#fafafa;border:1px solid #ddd}"
          ".grid{stroke:#e4e4e4}.left{text-anchor:end}.below{text-anchor:middle}text{font:12px sans-serif;fill:#555}"
          "polyline{fill:none}.thin{stroke:#b9cde6}.thick{stroke:#1f5fa8;stroke-width:2}.cursor{stroke:#c33}"
          "td{padding:2px 18px 2px 0}#at{color:#c33;height:18px}</style>\n<h1>", f);
    put_html(f, path);
    format_file(f, "</h1>\n<table><tr><td>steps<td>%.0f to %.0f<tr><td>loss at first<td>%.4f"
                "<tr><td>mean loss of the last %u<td>%.4f",
                first->v[STEP], last->v[STEP], first->v[LOSS], window, tail);
    if (seconds > 0)
        format_file(f, "<tr><td>time<td>%.1f s, %.2f steps a second", seconds, (l->n - 1) / seconds);
    fputs("</table>\n<p id=at>\n", f);
    put_chart(f, l, LOSS, "loss (thin: each step)");
    put_chart(f, l, RATE, "learning rate");
    fputs("<script>const rows=[", f);
    for (uint32_t i = 0, by = l->n / (4 * POINTS) + 1; i < l->n; i += by)
        if (isfinite(l->row[i].v[LOSS]))
            format_file(f, "[%.9g,%.6g,%.6g],", l->row[i].v[STEP], l->row[i].v[LOSS],
                        isfinite(l->row[i].v[RATE]) ? l->row[i].v[RATE] : 0.0);
    fprintf(f, "];\n"
            "for(const svg of document.querySelectorAll('svg'))svg.onmousemove=e=>{const b=svg.getBoundingClientRect(),"
            "x=(e.clientX-b.left)/b.width*%d,a=rows[0][0],z=rows[rows.length-1][0],"
            "s=a+(x-%d)/%d*(z-a);let r=rows[0];for(const q of rows)if(Math.abs(q[0]-s)<Math.abs(r[0]-s))r=q;"
            "document.getElementById('at').textContent=`step ${r[0]}: loss ${r[1]}, rate ${r[2]}`;"
            "for(const c of document.querySelectorAll('.cursor')){c.setAttribute('x1',x);c.setAttribute('x2',x)}};\n"
            "</script>\n", WIDTH, LEFT, WIDTH - LEFT - RIGHT);
}

int cli_train_log(int argc, char **argv)
{
    const char *file = NULL, *out = "-";
    if (!cli_parse(argc, argv, (struct cli_option[]){{"-o", .value = &out}, {.value = &file, .needed = true}, {0}},
                   "train-log needs a file"))
        return CLI_USAGE;
    size_t len;
    char *text = cli_read(file, &len);
    struct train_log l = {0};
    bool ok = text && log_read(&l, file, text);
    FILE *f = !ok ? NULL : strcmp(out, "-") ? fopen(out, "w") : stdout;
    if (ok && !f)
        ok = cli_error("%s: %s", out, strerror(errno)) == CLI_OK;
    if (ok) {
        put_page(f, &l, file);
        ok = !ferror(f) && (f == stdout ? !fflush(f) : !fclose(f));
        if (!ok)
            cli_error("%s: cannot write it", out);
    }
    mem_free(l.row);
    mem_free(text);
    return ok ? CLI_OK : CLI_FAILED;
}
