/* A GPU: training steps of a classifier, a convolutional network and a small decoder, in f32 without TF32 and under
 * autocast in bf16, beside torch.compile where $KILN_TEST_PYTHON has PyTorch for this GPU (bench/run.sh looks for it).
 * A step is recorded, or run frozen, and waited for; PyTorch's likewise.  Adam and SGD as in bench/peers. */
#define _GNU_SOURCE /* bench/peers/peer.h */
#include "bench/peers/peer.h"
#include "bench/peers/peers_cases.h"
#include "gpu.h"

static const char *const wanted[] = {"mlp-128-adam", "cnn-64-sgd", "gpt-adam"};
static const char *const variant[] = {"compile", "graphs"}; /* torch.compile; and with CUDA graphs */
enum { VARIANTS = sizeof variant / sizeof *variant };

static struct peer torch;

static void start_torch(void)
{
    static char path[1024];
    const char *python = getenv("KILN_TEST_PYTHON"), *peers = getenv("KILN_TEST_PEERS");
    if (python && peers && getenv("KILN_TEST_PEER_DEVICE")) {
        snprintf(path, sizeof path, "%s/torch_turns.py", peers);
        peer_start(&torch, 0, NULL, (char *[]){(char *)(uintptr_t)python, path, NULL});
    } else {
        snprintf(torch.why, sizeof torch.why, "no python3 with PyTorch for this GPU");
    }
    if (torch.why[0])
        fprintf(stderr, "bench_gpu_steps: steps are compared with nothing: %s\n", torch.why);
}

/* Seconds of a step by PyTorch; 0: it has none, and why says so. */
static double turn_of_torch(const struct peer_case *c, const char *how, bool half, double seconds, char *why, int size)
{
    char line[512];
    double s = 0;
    bool answered = peer_ask(&torch, line, sizeof line, "%s 0 %lld,%lld %s%s %g", family_name[c->family],
                             (long long)c->size[0], (long long)c->size[1], how, half ? "-bf16" : "", seconds);
    if (answered && sscanf(line, "%lf", &s) == 1 && s > 0)
        return s;
    snprintf(why, (size_t)size, "%.*s", answered ? (int)strcspn(line, "\n") : size - 1, answered ? line : torch.why);
    return 0;
}

static void record_step(struct peer_run *r, bool half)
{
    kl_trace_begin(r->is->name);
    if (half)
        kl_autocast_begin(KL_BF16);
    peer_record(r);
    if (half)
        kl_autocast_end();
}

static bool traced(struct peer_run *r, bool half)
{
    record_step(r, half);
    bool ok = kl_trace_end() == KL_OK && kl_sync(r->device) == KL_OK;
    if (ok)
        peer_release_outputs(r);
    return ok;
}

static bool freeze(struct peer_run *r, bool half)
{
    record_step(r, half);
    r->frozen = kl_trace_end_step(0, NULL);
    return r->frozen != NULL;
}

static bool frozen(struct peer_run *r, bool half)
{
    (void)half;
    bool ok = peer_run_frozen(r);
    if (ok)
        peer_release_outputs(r);
    return ok;
}

static bool measure(struct gpu *g, struct peer_run *r, bool (*step)(struct peer_run *r, bool half), bool half,
                    struct samples *took)
{
    took->n = 0;
    for (int round = -5; round < 5 * g->rounds; round++) { /* compiled, seen, captured */
        double start = measure_now();
        if (!step(r, half))
            return false;
        if (round >= 0)
            samples_add(took, measure_now() - start);
        measure_progress(r->is->name, round + 5, 5 * g->rounds + 4);
    }
    return true;
}

static bool run_case(struct gpu *g, const struct peer_case *is, bool half)
{
    static struct samples took, theirs;
    static struct peer_run r;
    struct peer_case c = *is;
    char name[64], why[160];
    double best = 0;
    snprintf(name, sizeof name, "%s%s", c.name, half ? " bf16" : "");
    if (!bench_wants(&g->b, name))
        return true;
    if (g->small && c.family != GPT)
        c.size[0] = 4;
    for (int i = 0; i < VARIANTS; i++) {
        const char *row = i ? "torch-graphs" : "torch-compile";
        turn_of_torch(&c, variant[i], half, 0.1, why, sizeof why); /* compiled */
        double s = turn_of_torch(&c, variant[i], half, 2, why, sizeof why);
        if (!s) {
            bench_missing(&g->b, name, row, 1, why);
            continue;
        }
        theirs.n = 0;
        samples_add(&theirs, s);
        bench_add(&g->b, name, row, 1, &theirs, "us", 0, 0);
        best = !best || s < best ? s : best;
    }
    bool ok = peer_run_open(&r, g->device, &c);
    for (int how = 0; how < 2 && ok; how++) {
        ok = (!how || freeze(&r, half)) && measure(g, &r, how ? frozen : traced, half, &took);
        struct result *row = ok ? bench_add(&g->b, name, how ? "frozen" : "traced", 1, &took, "us", 0, 0) : NULL;
        if (row && best)
            bench_baseline(row, "torch.compile", best / samples_median(&took));
    }
    peer_run_close(&r);
    return ok;
}

int main(int argc, char **argv)
{
    static struct gpu g;
    if (!gpu_open(&g, "gpu_steps", argc, argv))
        return g.b.status;
    start_torch();
    bool ok = true;
    unsigned models = g.b.smoke ? 1 : sizeof wanted / sizeof *wanted;
    for (unsigned i = 0; i < 2 * models && ok; i++)
        for (unsigned k = 0; k < sizeof cases / sizeof *cases && ok; k++)
            if (!strcmp(cases[k].name, wanted[i / 2]) && (!g.small || cases[k].family != GPT))
                ok = run_case(&g, &cases[k], i % 2);
    peer_end(&torch);
    return gpu_close(&g, ok);
}
