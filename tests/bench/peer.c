/* Peers of benchmarks (bench/peers/peer.h): found in PATH, missing, ended early, killed; what then stands in rows. */
#define _GNU_SOURCE
#include "bench/peers/peer.h"
#include "runtime/measure/measure.h"
#include "tests/support/harness.h"

/* A shell as a peer: `script` is its program. */
static bool start_shell(struct peer *p, const char *script)
{
    return peer_start(p, 0, NULL, (char *[]){(char *)"sh", (char *)"-c", (char *)(uintptr_t)script, NULL});
}

static void test_answers(void)
{
    struct peer p;
    char line[64] = "";
    bool ok = check(peer_start(&p, 1, NULL, (char *[]){(char *)"cat", NULL}), "cat, by PATH: %s", p.why);
    for (int i = 0; i < 3 && ok; i++) {
        char want[64];
        snprintf(want, sizeof want, "turn %d of 0.5\n", i);
        check(peer_ask(&p, line, sizeof line, "turn %d of %g", i, 0.5) && !strcmp(line, want), "answer %d: %s", i,
              line);
    }
    peer_end(&p);
    check(!p.to && !p.from && !p.pid && !p.why[0], "a peer that was told to end has no reason");
    check(!peer_ask(&p, line, sizeof line, "one more"), "a peer that was told to end answers");
    check(start_shell(&p, "echo $OMP_NUM_THREADS,$CUDA_VISIBLE_DEVICES.") && peer_answer(&p, line, sizeof line) &&
          !strcmp(line, ",.\n"), "its environment: %s", line);
    peer_end(&p);
}

/* Each script ends before it answers; the benchmark goes on, and the reason is what `why` says. */
static void test_early_ends(void)
{
    static const struct { const char *script, *why; } cases[] = {
        {"exit 3", "it ended with exit status 3"},
        {"exec 0<&-; exit 0", "it ended with exit status 0"},
        {"kill -KILL $$", "it was ended by signal 9 (Killed)"},
        {"kill -PIPE $$", "it was ended by signal 13 (Broken pipe)"}, /* not ignored as in the benchmark */
        {"exec no-such-program-here 2>/dev/null", "it ended with exit status 127"},
    };
    char line[64];
    struct peer p;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!check(start_shell(&p, cases[i].script), "%s: %s", cases[i].script, p.why))
            continue;
        usleep(i % 2 ? 0 : 20000); /* it may have ended before it is asked, or not */
        check(!peer_ask(&p, line, sizeof line, "%s", "turn") && !strcmp(p.why, cases[i].why), "%s: \"%s\"",
              cases[i].script, p.why);
        check(!peer_ask(&p, line, sizeof line, "%s", "turn") && !strcmp(p.why, cases[i].why),
              "%s, asked again: \"%s\"", cases[i].script, p.why);
        peer_end(&p);
    }
}

static void test_missing(void)
{
    static const struct { const char *program, *why; } cases[] = {
        {"no-such-program-here", "cannot run no-such-program-here: No such file or directory"},
        {"/dev/null", "cannot run /dev/null: Permission denied"},
    };
    struct peer p;
    char line[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check(!peer_start(&p, 0, NULL, (char *[]){(char *)(uintptr_t)cases[i].program, NULL}) &&
              !strcmp(p.why, cases[i].why) && !p.pid && !p.to && !p.from, "%s: \"%s\"", cases[i].program, p.why);
        check(!peer_ask(&p, line, sizeof line, "%s", "turn"), "%s answers", cases[i].program);
        peer_end(&p);
    }
    check(!peer_start(&p, 0, NULL, (char *[]){NULL}) && p.why[0], "no program");
}

/* The reason reaches the table, the JSON and its reader; the chart has no bar for it. */
static void test_rows(void)
{
    struct results t = {0}, back = {0};
    struct samples took = {.n = 0};
    struct err e = {0};
    char *text = NULL;
    size_t len;
    samples_add(&took, 1e-3);
    results_add(&t, "b", "case", "kiln", 1, &took, "us", 0, 0);
    results_missing(&t, "b", "case", "torch", 1, "cannot run python3: \"No such file\"");
    for (int i = 0; i < 3; i++) {
        FILE *f = open_memstream(&text, &len);
        (i == 0 ? results_table : i == 1 ? results_json : results_svg)(&t, f);
        fclose(f);
        if (i == 0)
            check(strstr(text, "not measured: cannot run python3: \"No such file\"\n"), "table: %s", text);
        if (i == 1)
            check(strstr(text, "\"median\": null") && results_parse(&back, text, len, "json", &e) && back.n == 2 &&
                  !strcmp(back.row[1].missing, t.row[1].missing) && !back.row[0].missing[0], "JSON: %s", text);
        if (i == 2)
            check(strstr(text, "kiln") && !strstr(text, "torch"), "chart: %s", text);
        free(text);
    }
    results_free(&t);
    results_free(&back);
}

int main(void)
{
    test_answers();
    test_early_ends();
    test_missing();
    test_rows();
    return finish();
}
