/* Draws results as a bar chart.
 *
 * Cases differ by orders of magnitude.  So the first bar of a row is the fraction of its case's limit: the limits of
 * all cases are one line, and longer is better.  The second bar, in cases of several rows, is time, relative to the
 * slowest row of the case: shorter is better (for a rate, the time of the same work).  The measured value is printed
 * after it.  Rows without a limit are in a separate panel for each unit, in which the longest bar is the largest
 * value. */
#include "measure.h"
#include <string.h>

enum { WIDTH = 1080, LEFT = 260, BARS = 320, TIMES = LEFT + BARS + 36, TIME_BARS = 160,
       NUMBERS = TIMES + TIME_BARS + 12, BAR = 14, GAP = 3, CASE_GAP = 12, HEAD = 56,
       FOOT = 48, LABEL_CHARS = 30 };

#define MAX_SCALE 1.5 /* fraction of the limit at which a bar is cut; its number is still printed */

static const struct { const char *variant, *color; } colors[] = {
    {"fused", "#2563a8"}, {"unfused", "#a8b4c4"}, {"hand", "#d98b2b"}, {"", "#5b8f63"}, /* the last one: any other */
};
enum { COLORS = sizeof colors / sizeof colors[0] };

static unsigned color_of(const char *variant)
{
    unsigned i = 0;
    while (i + 1 < COLORS && strcmp(colors[i].variant, variant))
        i++;
    return i;
}

static bool same_panel(const struct result *a, const struct result *b)
{
    return !strcmp(a->bench, b->bench) && (a->limit > 0) == (b->limit > 0) &&
           (a->limit > 0 || !strcmp(a->unit, b->unit));
}

static bool same_case(const struct result *a, const struct result *b)
{
    return same_panel(a, b) && !strcmp(a->name, b->name) && a->threads == b->threads;
}

/* The first row of the same panel, or of the same case. */
static uint32_t first_like(const struct results *t, uint32_t i,
                           bool (*same)(const struct result *, const struct result *))
{
    uint32_t j = 0;
    while (!same(&t->row[j], &t->row[i]))
        j++;
    return j;
}

/* Escapes text for XML and cuts it to so many characters, with an ellipsis. */
static void put_text(FILE *f, const char *s, int max)
{
    bool cut = (int)strlen(s) > max;
    for (int i = 0; s[i] && i < (cut ? max - 1 : max); i++)
        switch (s[i]) {
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '&': fputs("&amp;", f); break;
        default: fputc((unsigned char)s[i] < 32 ? ' ' : s[i], f);
        }
    if (cut)
        fputs("&#8230;", f);
}

static void put_value(FILE *f, const struct result *r)
{
    double v = r->median;
    if (strcmp(r->unit, "us")) {
        format_file(f, v < 100 ? "%.1f " : "%.0f ", v);
        put_text(f, r->unit, 16);
    } else if (v < 1000) {
        format_file(f, v < 10 ? "%.2f &#181;s" : v < 100 ? "%.1f &#181;s" : "%.0f &#181;s", v);
    } else {
        format_file(f, v < 1e6 ? "%.2f ms" : "%.2f s", v < 1e6 ? v / 1e3 : v / 1e6);
    }
}

/* The time of a row, in a unit that the rows of one case share. */
static double time_of(const struct result *r)
{
    return !strcmp(r->unit, "us") ? r->median : r->median > 0 ? 1 / r->median : 0;
}

/* Has its case other rows, with whose times its own can be compared? */
static bool is_compared(const struct results *t, const struct result *r)
{
    int n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        n += same_case(&t->row[i], r);
    return n > 1;
}

static double slowest_of_case(const struct results *t, const struct result *r)
{
    double max = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (same_case(&t->row[i], r) && time_of(&t->row[i]) > max)
            max = time_of(&t->row[i]);
    return max;
}

static void put_time_bar(FILE *f, const struct results *t, const struct result *r, double y)
{
    double max = slowest_of_case(t, r), length = max > 0 ? TIME_BARS * time_of(r) / max : 0;
    format_file(f, "<rect class=\"time\" x=\"%d\" y=\"%.0f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", TIMES,
                y + 3,
            length > 1 ? length : 1, BAR - 6, colors[color_of(r->variant)].color);
}

static void put_bar(FILE *f, const struct result *r, double share, double y)
{
    double length = share > 1 ? BARS : BARS * share > 1 ? BARS * share : 1, text = y + BAR - 3;
    format_file(f, "<rect x=\"%d\" y=\"%.0f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", LEFT, y, length, BAR,
            colors[color_of(r->variant)].color);
    format_file(f, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">", NUMBERS + 76, text);
    put_value(f, r);
    fputs("</text>\n", f);
    if (r->limit > 0)
        format_file(f, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">%.0f %%</text>\n", NUMBERS + 130, text,
                100 * result_fraction(r));
    if (r->baseline[0]) {
        format_file(f, "<text x=\"%d\" y=\"%.0f\" class=\"quiet\">%.2f &#215; ", NUMBERS + 146, text, r->ratio);
        put_text(f, r->baseline, 14);
        fputs("</text>\n", f);
    }
}

/* Writes the variants and the panel's name. */
static void put_head(FILE *f, const struct results *t, uint32_t first, double y)
{
    static const struct { const char *name, *anchor; int x; } columns[] = {
        {"median", "end", NUMBERS + 76}, {"of limit", "end", NUMBERS + 130}, {"speed", "start", NUMBERS + 146}};
    bool limited = t->row[first].limit > 0, timed = false, speeds = false;
    for (uint32_t i = first; i < t->n; i++)
        if (same_panel(&t->row[i], &t->row[first])) {
            timed |= limited && is_compared(t, &t->row[i]);
            speeds |= t->row[i].baseline[0] != 0;
        }
    double x = LEFT;
    fputs("<text class=\"head\" x=\"16\" y=\"", f);
    format_file(f, "%.0f\">", y + 26);
    put_text(f, t->row[first].bench, 28);
    fputs("</text>\n", f);
    for (int i = 0; i < 2 + speeds; i += limited ? 1 : 2)
        format_file(f, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"%s\" class=\"quiet\">%s</text>\n", columns[i].x, y + 44,
                columns[i].anchor, columns[i].name);
    if (timed)
        format_file(f, "<text x=\"%d\" y=\"%.0f\" class=\"quiet\">time</text>\n", TIMES, y + 44);
    char shown[8][sizeof t->row->variant];
    unsigned n = 0;
    for (uint32_t i = first; i < t->n && n < 8; i++) {
        unsigned k = 0;
        while (k < n && strcmp(shown[k], t->row[i].variant))
            k++;
        if (k < n || !same_panel(&t->row[i], &t->row[first]))
            continue;
        memcpy(shown[n++], t->row[i].variant, sizeof shown[0]);
        format_file(f,
                    "<rect x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%.0f\" y=\"%.0f\">",
                    x, y + 16, colors[color_of(t->row[i].variant)].color, x + 17, y + 26);
        put_text(f, t->row[i].variant, 12);
        fputs("</text>\n", f);
        x += 36 + 7.4 * (double)(strlen(t->row[i].variant) < 12 ? strlen(t->row[i].variant) : 12);
    }
}

/* Draws the lines at quarters of the limit from top to bottom, with labels: of the limit, or of all. */
static void put_axis(FILE *f, double top, double bottom, double scale, bool limit)
{
    for (int percent = 0; percent <= 100 * scale; percent += 25) {
        double x = LEFT + BARS * percent / 100 / scale;
        if (limit != (percent == 100))
            continue;
        format_file(f, "<line x1=\"%.1f\" y1=\"%.0f\" x2=\"%.1f\" y2=\"%.0f\" class=\"%s\"/>\n", x,
                    top - (limit ? 8 : 4), x,
                bottom + 4, limit ? "limit" : "grid");
        format_file(f, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\" class=\"%s\">%s%d %%</text>\n", x,
                    bottom + 18,
                limit ? "limit" : "quiet", limit ? "limit " : "", percent);
    }
}

/* Draws the panel of row `first` from y on, or with f NULL only measures it; returns the y of the next panel. */
static double put_panel(FILE *f, const struct results *t, uint32_t first, double y)
{
    bool limited = t->row[first].limit > 0;
    double scale = limited ? 1 : 0, at = y + HEAD;
    for (uint32_t i = first; i < t->n; i++) {
        double v = limited ? result_fraction(&t->row[i]) : t->row[i].median;
        if (same_panel(&t->row[i], &t->row[first]) && v > scale)
            scale = limited && v > MAX_SCALE ? MAX_SCALE : v;
    }
    double bottom = at;
    for (int draw = 0; draw < (f ? 2 : 1); draw++) {
        if (draw) {
            put_head(f, t, first, y);
            if (limited)
                put_axis(f, at, bottom, scale, false);
        }
        bottom = at;
        for (uint32_t c = first; c < t->n; c++) {
            if (!same_panel(&t->row[c], &t->row[first]) || first_like(t, c, same_case) != c)
                continue;
            double start = bottom;
            for (uint32_t i = c; i < t->n; i++)
                if (same_case(&t->row[i], &t->row[c])) {
                    double v = limited ? result_fraction(&t->row[i]) : t->row[i].median;
                    if (draw) {
                        put_bar(f, &t->row[i], scale > 0 ? v / scale : 0, bottom);
                        if (limited && is_compared(t, &t->row[i]))
                            put_time_bar(f, t, &t->row[i], bottom);
                    }
                    bottom += BAR + GAP;
                }
            if (draw) {
                format_file(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 10,
                            (start + bottom - GAP) / 2 + 4);
                put_text(f, t->row[c].name, LABEL_CHARS);
                fputs("</text>\n", f);
            }
            bottom += CASE_GAP;
        }
        bottom -= CASE_GAP + GAP;
        if (draw && limited)
            put_axis(f, at, bottom, scale, true);
    }
    return bottom + (limited ? FOOT : FOOT / 2);
}

/* The rows that have numbers. */
static struct results measured_rows(const struct results *t)
{
    struct results shown = {0};
    for (uint32_t i = 0; i < t->n && mem_reserve(&shown.row, &shown.cap, t->n, sizeof *shown.row); i++)
        if (!t->row[i].missing[0])
            shown.row[shown.n++] = t->row[i];
    return shown;
}

static void put_chart(const struct results *t, FILE *f)
{
    double height = 12;
    for (uint32_t i = 0; i < t->n; i++)
        if (first_like(t, i, same_panel) == i)
            height = put_panel(NULL, t, i, height);
    format_file(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\">\n",
                WIDTH,
            height + 28, WIDTH, height + 28);
    fputs(
        "<style>text{font:12px system-ui,'DejaVu Sans',Arial,sans-serif;fill:#222}.head{font-size:16px;font-weight:600}"
        ".quiet{fill:#667}text.limit{fill:#b3261e}line.limit{stroke:#b3261e;stroke-width:1.5;stroke-dasharray:5 3}"
        "line.grid{stroke:#dde1e6}</style>\n",
        f);
    fputs("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", f);
    double y = 12;
    for (uint32_t i = 0; i < t->n; i++)
        if (first_like(t, i, same_panel) == i)
            y = put_panel(f, t, i, y);
    format_file(f,
                "<text class=\"quiet\" x=\"16\" y=\"%.0f\">Left bars: the fraction of the limit that the median "
                "reaches, longer is better; where no limit is known, the value itself. Right bars, in cases of several "
                "rows: time, shorter is better."
                "</text>\n</svg>\n",
                height + 12);
}

void results_svg(const struct results *t, FILE *f)
{
    struct results shown = measured_rows(t);
    put_chart(&shown, f);
    results_free(&shown);
}
