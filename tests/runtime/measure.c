/* Results: JSON that reads back the same, errors with their place, charts of anything; quantiles; the limits' loops. */
#include "tests/support/harness.h"
#include "runtime/measure/measure.h"

static struct rng rng = {12345};

static void random_name(char *to, size_t size)
{
    size_t n = 1 + (size_t)rng_below(&rng, (int64_t)size - 1);
    for (size_t i = 0; i < n; i++)
        to[i] = rng_below(&rng, 4) ? (char)('a' + rng_below(&rng, 26)) : (char)(1 + rng_below(&rng, 127));
    to[n] = 0;
}

static void random_row(struct results *t)
{
    static const char *const unit[] = {"us", "GFLOP/s", "GB/s"};
    static const double scale[] = {1e-9, 1e-6, 1e-3, 1, 100};
    struct samples took = {.n = 0};
    char bench[40], name[80];
    random_name(bench, sizeof bench);
    random_name(name, sizeof name);
    for (int i = (int)rng_below(&rng, 9); i >= 0; i--)
        samples_add(&took, (0.1 + rng_unit(&rng)) * scale[rng_below(&rng, 5)]);
    int u = (int)rng_below(&rng, 3);
    struct result *r = results_add(t, rng_below(&rng, 2) ? bench : "one", rng_below(&rng, 2) ? name : "two",
                                   rng_below(&rng, 2) ? "fused" : "other", (int)rng_below(&rng, 9), &took, unit[u],
                                   u ? 1e6 : 0, rng_below(&rng, 2) ? 0 : rng_unit(&rng) * 100);
    if (rng_below(&rng, 2)) {
        snprintf(r->baseline, sizeof r->baseline, "<\"base\"&>");
        r->ratio = rng_unit(&rng) * 10;
    }
}

/* What one of the writers gives. */
static char *written(const struct results *t, void (*write)(const struct results *, FILE *), size_t *len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, len);
    write(t, f);
    fclose(f);
    return text;
}

static bool close_to(double a, double b, double relative) { return fabs(a - b) <= relative * fabs(b); }

static bool same_row(const struct result *a, const struct result *b)
{
    return !strcmp(a->bench, b->bench) && !strcmp(a->name, b->name) && !strcmp(a->variant, b->variant) &&
           !strcmp(a->unit, b->unit) && !strcmp(a->baseline, b->baseline) && a->threads == b->threads &&
           close_to(a->median, b->median, 1e-5) && close_to(a->min, b->min, 1e-5) && close_to(a->max, b->max, 1e-5) &&
           close_to(a->limit, b->limit, 1e-5) && fabs(a->ratio - (b->baseline[0] ? b->ratio : 0)) < 1e-4;
}

/* Tags match and nothing reserved stands in the text: enough of XML for what the chart writes. */
static bool well_formed(const char *s)
{
    char open[16][16];
    int depth = 0, roots = 0;
    for (; *s; s++) {
        if (*s == '&' && !strchr("lga#", s[1]))
            return false;
        if (*s != '<')
            continue;
        const char *end = strchr(s, '>');
        size_t n = strcspn(s + 1, " />");
        if (!end || n > 15)
            return false;
        if (s[1] == '/') {
            size_t m = (size_t)(end - s) - 2;
            if (!depth || strlen(open[depth - 1]) != m || memcmp(open[--depth], s + 2, m))
                return false;
        } else if (end[-1] != '/') {
            if (depth == 16)
                return false;
            roots += !depth;
            memcpy(open[depth], s + 1, n);
            open[depth++][n] = 0;
        }
        s = end;
    }
    return !depth && roots == 1;
}

/* Rows with a limit of the case of r. */
static int rows_of_case(const struct results *t, const struct result *r)
{
    int n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        n += !strcmp(t->row[i].bench, r->bench) && !strcmp(t->row[i].name, r->name) &&
             t->row[i].threads == r->threads && (t->row[i].limit > 0) == (r->limit > 0);
    return n;
}

static void test_round_trip(int rows)
{
    struct results t = {0}, back = {0};
    struct err e = {0};
    size_t len;
    for (int i = 0; i < rows; i++)
        random_row(&t);
    char *json = written(&t, results_json, &len);
    check(results_parse(&back, json, len, "json", &e) && back.n == t.n, "%d rows: %s", rows, e.msg);
    for (uint32_t i = 0; i < back.n && i < t.n; i++)
        check(same_row(&back.row[i], &t.row[i]), "row %u differs: %.2000s", i, json);
    struct results cut = {0};
    for (size_t n = 0; n + 1 < len; n += 1 + len / 50) {
        struct err why = {0};
        check(!results_parse(&cut, json, n, "json", &why) && strstr(why.msg, "json:"), "cut at %zu: %s", n, why.msg);
    }
    results_free(&cut);
    free(json);
    char *svg = written(&t, results_svg, &len);
    check(well_formed(svg), "the chart of %d rows is not XML: %.3000s", rows, svg);
    unsigned limited = 0, bars = 0;
    for (uint32_t i = 0; i < t.n; i++)
        limited += t.row[i].limit > 0 && rows_of_case(&t, &t.row[i]) > 1;
    for (const char *p = svg; (p = strstr(p, "<rect class=\"time\"")); p++)
        bars++;
    check(bars == limited, "%u time bars for %u rows with a limit and others in their case", bars, limited);
    free(svg);
    char *table = written(&t, results_table, &len);
    check(len > 20, "a table of %d rows has %zu bytes", rows, len);
    free(table);
    results_free(&back);
    results_free(&t);
}

static void test_wrong_json(void)
{
    static const struct { const char *text, *why; } bad[] = {
        {"", "x:1:1: expected '['"},
        {"[", "x:1:2: expected '{'"},
        {"[{}", "x:1:4: expected ']'"},
        {"[{}]\n 1", "x:2:2: something behind the array"},
        {"[{\"case\": 1}]", "x:1:11: expected a string"},
        {"[{\"median\": \"a\"}]", "x:1:13: expected a number"},
        {"[{\"median\": 1e999}]", "expected a string, a number or null"},
        {"[{\"median\": nan}]", "expected a string, a number or null"},
        {"[{\"bench\": \"a\\q\"}]", "an escape that JSON does not have"},
        {"[{\"bench\": \"a\\u12g4\"}]", "an escape that JSON does not have"},
        {"[{\"bench\": \"a\nb\"}]", "x:1:14: a control character in a string"},
        {"[{\"bench\": \"a]", "x:1:15: expected '\"'"},
        {"[{\"bench\": {}}]", "expected a string, a number or null"},
        {"[{\"bench\" \"a\"}]", "x:1:11: expected ':'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct results t = {0};
        struct err e = {0};
        check(!results_parse(&t, bad[i].text, strlen(bad[i].text), "x", &e) && strstr(e.msg, bad[i].why),
              "%s gives: %s",
              bad[i].text, e.msg);
        results_free(&t);
    }
    static const char good[] =
        " [ {\"other\" : true, \"more\":-1.5e3 ,\"text\":\"\\u0041\",\"case\":\"\\u0041\\n\\\"\"}, {} ] \n";
    struct results t = {0};
    struct err e = {0};
    check(results_parse(&t, good, sizeof good - 1, "x", &e) && t.n == 2 && !strcmp(t.row[0].name, "A\n\""), "%s",
          e.msg);
    results_free(&t);
}

static void test_numbers(void)
{
    static const double s[] = {5, 1, 4, 2, 3};
    check(measure_quantile(s, 5, 0) == 1 && measure_quantile(s, 5, 1) == 5 && measure_quantile(s, 5, 0.5) == 3 &&
          measure_quantile(s, 4, 0.5) == 3 && measure_quantile(s, 1, 0.3) == 5 && measure_quantile(s, 0, 0.5) == 0,
          "quantiles");
    struct samples many = {.n = 0};
    for (int i = 0; i < MAX_SAMPLES + 10; i++)
        samples_add(&many, i);
    check(many.n == MAX_SAMPLES && samples_median(&many) == (MAX_SAMPLES - 1) / 2.0, "samples are bounded");
    struct result time = {.unit = "us", .median = 4, .limit = 2}, rate = {.unit = "GB/s", .median = 4, .limit = 5};
    check(result_fraction(&time) == 0.5 && result_fraction(&rate) == 0.8, "fractions");
    time.limit = rate.limit = 0;
    check(result_fraction(&time) == 0 && result_fraction(&rate) == 0, "fractions without a limit");
}

/* The loops compute what they say, for lengths around their widths, and touch nothing else. */
static void test_limits(void)
{
    enum { N = 300 };
    float *a[LIMIT_INPUTS + 1];
    for (int i = 0; i <= LIMIT_INPUTS; i++)
        a[i] = limit_array(N);
    for (int inputs = 1; inputs <= LIMIT_INPUTS; inputs++)
        for (size_t from = 0; from < 5; from += 2)
            for (size_t to = from; to < N; to += 1 + to / 7) {
                bool ok = true;
                memset(a[0], 0, N * sizeof(float));
                limit_stream(a, inputs, from, to);
                for (size_t i = 0; i < N; i++)
                    ok &= (a[0][i] != 0) == (i >= from && i < to && (i > 0 || a[1][0] != 0));
                check(ok, "stream of %d from %zu to %zu", inputs, from, to);
            }
    double sum = 0;
    for (size_t i = 3; i < 290; i++)
        sum += (double)a[1][i];
    check(fabs((double)limit_sum(a[1], 3, 290) - sum) < 1e-3, "sum");
    float before = a[2][17], added = a[3][17];
    limit_update(a, 16, 32);
    check(a[2][17] == before + added && a[2][32] == a[1][32], "update");
    check(limit_fma() > 1e6, "multiply-adds");
    for (int i = 0; i <= LIMIT_INPUTS; i++)
        limit_array_free(a[i], N);
    limit_array_free(NULL, 3);
}

int main(void)
{
    static const int rows[] = {0, 1, 2, 3, 17, 100};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        test_round_trip(rows[i]);
    test_wrong_json();
    test_numbers();
    test_limits();
    return finish();
}
