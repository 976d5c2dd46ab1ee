/* JAX and PyTorch beside the loops of bench/small/small.c, in processes of their own (bench/peers/small_turns.py),
 * where KILN_TEST_PYTHON names a Python that has them; and the table of all rows as Markdown. */
#ifndef BENCH_SMALL_PEERS_H
#define BENCH_SMALL_PEERS_H
#include "bench/bench.h"
#include "bench/peers/peer.h"
#include <math.h>

enum { SMALL_LINE = 400, SMALL_PEERS = 2, SMALL_SYSTEMS = 4, SMALL_MODES = 2 /* forward, gradient */ };
#define SMALL_SECONDS 0.02 /* of a turn, at least a call after the first */
#define SMALL_DEADLINE 120 /* seconds of an answer: XLA compiles some unrolled gradients for more than ten minutes */

static const char *const small_peer_name[SMALL_PEERS] = {"jax", "torch"};
static const struct small_system { const char *name; int peer; const char *variant; } small_system[SMALL_SYSTEMS] = {
    {"jax", 0, "scan"}, {"jax, unrolled", 0, "unrolled"}, {"torch", 1, "eager"}, {"torch.compile", 1, "compile"}};

/* The peers, and what they took in the case that is being measured. */
struct small_peers {
    struct peer peer[SMALL_PEERS];
    char folder[64];                                             /* of the operands */
    struct samples took[SMALL_SYSTEMS][SMALL_MODES], first[SMALL_SYSTEMS][SMALL_MODES];
    char why[SMALL_SYSTEMS][SMALL_MODES][SMALL_LINE];            /* why there are no turns; "": there are */
};

/* Starts a peer, where there is one. */
static inline void small_peer_start(struct peer *p, int which)
{
    const char *python = getenv("KILN_TEST_PYTHON"), *scripts = getenv("KILN_TEST_PEERS");
    char path[SMALL_LINE];
    snprintf(path, sizeof path, "%s/small_turns.py", scripts ? scripts : "");
    char *argv[] = {(char *)python, (char *)"-W", (char *)"ignore", path, (char *)small_peer_name[which], NULL};
    if (!python || !scripts)
        snprintf(p->why, sizeof p->why, "it is not installed");
    else if (peer_start(p, 1, which ? getenv("KILN_TEST_MKL") : NULL, argv))
        p->deadline = SMALL_DEADLINE;
}

static inline bool small_peers_open(struct small_peers *p)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(p->folder, sizeof p->folder, "%.40s/bench_small.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(p->folder))
        return false;
    for (int i = 0; i < SMALL_PEERS; i++)
        small_peer_start(&p->peer[i], i);
    return true;
}

static inline void small_peers_remove(struct small_peers *p, int operands)
{
    char path[SMALL_LINE];
    for (int i = 0; i < operands; i++) {
        snprintf(path, sizeof path, "%s/%d", p->folder, i);
        unlink(path);
    }
}

static inline void small_peers_close(struct small_peers *p, int operands)
{
    for (int i = 0; i < SMALL_PEERS; i++)
        peer_end(&p->peer[i]);
    small_peers_remove(p, operands);
    rmdir(p->folder);
}

/* Writes an operand of the next case. */
static inline bool small_peers_operand(const struct small_peers *p, int i, const float *x, size_t n)
{
    char path[SMALL_LINE];
    snprintf(path, sizeof path, "%s/%d", p->folder, i);
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(x, sizeof *x, n, f) == n;
    return f && fclose(f) == 0 && ok;
}

/* Asks for a turn.  false: there are none, p->why says why.  A peer that was ended starts anew for the other turns. */
static inline bool small_peers_ask(struct small_peers *p, int system, const char *name, int mode, int64_t steps,
                                   double seconds, char *answer)
{
    const struct small_system *s = &small_system[system];
    struct peer *peer = &p->peer[s->peer];
    char *why = p->why[system][mode];
    bool ran = peer->to;
    if (!peer_ask(peer, answer, SMALL_LINE, "%s %d %lld %s %s %g", name, mode, (long long)steps, p->folder, s->variant,
                  seconds)) {
        snprintf(why, SMALL_LINE, "%s", peer->why);
        if (ran)
            small_peer_start(peer, s->peer);
    } else if (!strncmp(answer, "error", 5)) {
        snprintf(why, SMALL_LINE, "%.*s", (int)strcspn(answer, "\n"), answer);
    }
    return !why[0];
}

/* Each system's first call of a case; sum: of the first elements of Kiln's results, by mode. */
static inline void small_peers_begin(struct small_peers *p, const char *name, int64_t steps, const double *sum)
{
    char answer[SMALL_LINE], *end;
    memset(p->took, 0, sizeof p->took);
    memset(p->first, 0, sizeof p->first);
    memset(p->why, 0, sizeof p->why);
    for (int s = 0; s < SMALL_SYSTEMS; s++)
        for (int mode = 0; mode < SMALL_MODES; mode++) {
            if (!small_peers_ask(p, s, name, mode, steps, 0, answer))
                continue;
            samples_add(&p->first[s][mode], strtod(answer, &end));
            double theirs = strtod(end, NULL);
            if (isfinite(theirs) && isfinite(sum[mode]) && fabs(theirs - sum[mode]) > 0.01 * (1 + fabs(sum[mode])))
                snprintf(p->why[s][mode], SMALL_LINE, "it computes something else: %g, Kiln %g", theirs, sum[mode]);
        }
}

/* A turn of each. */
static inline void small_peers_round(struct small_peers *p, const char *name, int64_t steps)
{
    char answer[SMALL_LINE];
    for (int s = 0; s < SMALL_SYSTEMS; s++)
        for (int mode = 0; mode < SMALL_MODES; mode++)
            if (!p->why[s][mode][0] && small_peers_ask(p, s, name, mode, steps, SMALL_SECONDS, answer))
                samples_add(&p->took[s][mode], strtod(answer, NULL));
}

/* Rows "jax", "jax gradient", "jax compile", ..; the baseline is Kiln's median seconds in that mode. */
static inline void small_peers_rows(struct bench *b, const struct small_peers *p, const char *name, const double *kiln)
{
    static const char *const mode_name[SMALL_MODES][2] = {{"", " compile"}, {" gradient", " compile-grad"}};
    char variant[32];
    for (int s = 0; s < SMALL_SYSTEMS; s++)
        for (int mode = 0; mode < SMALL_MODES; mode++) {
            snprintf(variant, sizeof variant, "%s%s", small_system[s].name, mode_name[mode][0]);
            if (p->why[s][mode][0] || !p->took[s][mode].n) {
                bench_missing(b, name, variant, 1, p->why[s][mode][0] ? p->why[s][mode] : "it has had no turn");
                continue;
            }
            bench_baseline(bench_add(b, name, variant, 1, &p->took[s][mode], "us", 0, 0), "kiln",
                           kiln[mode] / samples_median(&p->took[s][mode]));
            snprintf(variant, sizeof variant, "%s%s", small_system[s].name, mode_name[mode][1]);
            bench_add(b, name, variant, 1, &p->first[s][mode], "us", 0, 0);
        }
}

/* ---- the table ---- */

/* The median of a row; 0: there is none. */
static inline double small_median(const struct results *t, const char *name, const char *variant)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (!strcmp(t->row[i].name, name) && !strcmp(t->row[i].variant, variant) && !t->row[i].missing[0])
            return t->row[i].median;
    return 0;
}

/* The less of two systems' medians; 0: neither has one. */
static inline double small_faster(const struct results *t, const char *name, const char *one, const char *other)
{
    double a = small_median(t, name, one), b = small_median(t, name, other);
    return !a || (b && b < a) ? b : a;
}

static inline void small_times(double peer, double kiln)
{
    if (peer)
        printf(" %.4g | %.1f |", peer, peer / kiln);
    else
        printf(" | |");
}

static inline void small_table_row(const struct results *t, const char *name)
{
    double forward = small_median(t, name, "forward"), gradient = small_median(t, name, "gradient");
    double hand = small_median(t, name, "hand");
    if (!forward || !gradient || !hand)
        return;
    printf("| %s | %.4g | %.4g | %.2f | %.4g | %.1f | %.0f + %.0f |", name, forward, hand, forward / hand, gradient,
           gradient / forward, small_median(t, name, "compile") / 1000, small_median(t, name, "compile-grad") / 1000);
    small_times(small_faster(t, name, "jax", "jax, unrolled"), forward);
    small_times(small_faster(t, name, "jax gradient", "jax, unrolled gradient"), gradient);
    printf(" %.0f + %.0f |", small_median(t, name, "jax compile") / 1000,
           small_median(t, name, "jax compile-grad") / 1000);
    small_times(small_faster(t, name, "torch", "torch.compile"), forward);
    small_times(small_faster(t, name, "torch gradient", "torch.compile gradient"), gradient);
    printf("\n");
}

/* Prints the rows of all cases, microseconds, compile in milliseconds; peers: the faster of a peer's two systems. */
static inline void small_table(const struct results *t)
{
    printf("\n| case | Kiln | C | Kiln / C | gradient | gradient / forward | compile, ms | JAX | / Kiln | "
           "its gradient | / Kiln | its compile, ms | PyTorch | / Kiln | its gradient | / Kiln |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (uint32_t i = 0; i < t->n; i++)
        if (!strcmp(t->row[i].variant, "forward"))
            small_table_row(t, t->row[i].name);
}

#endif
