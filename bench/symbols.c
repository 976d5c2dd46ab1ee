/* One program for all lengths: models with symbolic batches and lengths against the same with a program a shape.
 *
 *   mlp, gpt, gpt-step,  300 random (batch, length) pairs: what was built and compiled for them, the process's memory,
 *   lstm, lstm-step,     and for some the time beside that of a program for this shape, in alternation on one thread
 *   mobile-step
 *   host                 a frozen step of one small kernel: the host's time with a symbol and without
 *   text                 1000 training steps on batches of sentences, each as long as its longest: time and memory of
 *   text-longest         the same with batches that are all as long as the longest sentence there is
 *   text-torch, text-jax the same as `text` in PyTorch (torch.compile, dynamic) and in JAX (a compile for each length),
 *                        by peers/text_turns.py, where build/peers has them; memory is that of the process at most, so
 *                        it is comparable only where one case is run alone
 */
#define _GNU_SOURCE
#include "bench/peers/peer.h"
#include "bench.h"
#include "models.h"
#include <kiln/train.h>
#include <sys/resource.h>

enum { LSTM_IN = 32, LSTM_WIDTH = 128 };
enum { PAIRS = 300, COMPARED = 16, TURNS = 9, STEPS = 1000, SMOKE_STEPS = 4 };
enum { MAX_BATCH = 8, MAX_LENGTH = 64, MAX_IMAGES = 128 };
enum { MOBILE_BLOCKS = 6, MOBILE_SIDE = 32, MOBILE_CLASSES = 10, MAX_PICTURES = 64 };
static const int64_t mobile_width[MOBILE_BLOCKS + 1] = {32, 64, 128, 128, 256, 256, 512};
static int all_pairs, steps; /* how many there are: fewer with --smoke */
static const struct gpt_size size = {4, 128, 4, MAX_LENGTH, MAX_BATCH, 128};

struct state {
    struct gpt gpt;
    struct mlp mlp;
    struct lstm { kl_params *params; kl_nn_recurrent layer; kl_tensor head; kl_optimizer *adam; float *x; } lstm;
    struct mobile { struct parameters p; kl_optimizer *adam; float *pictures; int32_t *labels; } mobile;
    int64_t b, l, n, m;       /* symbols */
    int32_t *ids;
    uint8_t *images;
};
typedef bool step_fn(struct state *s, bool symbolic, int64_t batch, int64_t length);

static uint32_t random_below(uint32_t n)
{
    static uint32_t state = 12345;
    state = state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(state >> 8) * n >> 24);
}

/* ---- models ---- */

static bool step_mlp(struct state *s, bool symbolic, int64_t batch, int64_t length)
{
    (void)length;
    const int64_t dims[2] = {batch, mlp_width[0]}, lengths[2] = {s->n, mlp_width[0]};
    kl_trace_begin(symbolic ? "mlp symbolic" : "mlp fixed");
    kl_tensor x = symbolic ? kl_input_symbolic(s->mlp.device, KL_U8, 2, lengths, dims, s->images)
                           : kl_input(s->mlp.device, KL_U8, 2, dims, s->images);
    x = kl_mul_scalar(kl_cast(x, KL_F32), 1.0 / 255);
    for (int i = 0; i < MLP_LAYERS; i++) {
        x = kl_linear(x, s->mlp.p.t[2 * i], s->mlp.p.t[2 * i + 1]);
        x = i + 1 < MLP_LAYERS ? kl_relu(x) : x;
    }
    kl_keep(x);
    bool ok = kl_trace_end() == KL_OK && kl_sync(s->mlp.device) == KL_OK;
    kl_release(x);
    return ok;
}

static kl_tensor text_input(struct state *s, bool symbolic, const int64_t *dims, const int32_t *ids)
{
    return symbolic ? kl_input_symbolic(s->gpt.device, KL_I32, 2, (int64_t[]){s->b, s->l}, dims, ids)
                    : kl_input(s->gpt.device, KL_I32, 2, dims, ids);
}

/* The loss, and with `train` a step of Adam. */
static bool run_gpt(struct state *s, bool symbolic, int64_t batch, int64_t length, bool train)
{
    struct gpt m = s->gpt;
    const int64_t dims[2] = {batch, length};
    const kl_tensor *end = m.p.t + 2 + m.size.layers * GPT_BLOCK;
    m.size.batch = symbolic ? s->b : batch;
    m.size.tokens = symbolic ? s->l : length;
    kl_trace_begin(symbolic ? train ? "gpt step symbolic" : "gpt symbolic" : train ? "gpt step fixed" : "gpt fixed");
    kl_tensor x = kl_embedding(m.p.t[0], text_input(s, symbolic, dims, s->ids));
    x = kl_add(x, kl_narrow(m.p.t[1], 0, 0, m.size.tokens));
    for (int64_t i = 0; i < m.size.layers; i++)
        x = gpt_block(&m, x, m.p.t + 2 + i * GPT_BLOCK);
    kl_tensor logits = kl_linear(kl_layer_norm(x, 1, end[0], end[1], 1e-5), end[2], kl_none);
    kl_tensor next = kl_reshape(text_input(s, symbolic, dims, s->ids + 1), 1, (int64_t[]){-1});
    kl_tensor loss = kl_keep(kl_cross_entropy(kl_reshape(logits, 2, (int64_t[]){-1, m.size.vocabulary}), next));
    if (train)
        kl_optimizer_step(m.adam, loss, 1e-3);
    bool ok = kl_trace_end() == KL_OK && kl_sync(m.device) == KL_OK;
    kl_release(loss);
    return ok;
}

static bool step_gpt_forward(struct state *s, bool symbolic, int64_t batch, int64_t length)
{
    return run_gpt(s, symbolic, batch, length, false);
}

static bool step_gpt_train(struct state *s, bool symbolic, int64_t batch, int64_t length)
{
    return run_gpt(s, symbolic, batch, length, true);
}

static bool lstm_open(struct lstm *m, kl_device device)
{
    int64_t n;
    m->params = kl_params_new(device, KL_F32, 7);
    m->x = calloc(MAX_BATCH * MAX_LENGTH * LSTM_IN, sizeof *m->x);
    for (int i = 0; m->x && i < MAX_BATCH * MAX_LENGTH * LSTM_IN; i++)
        m->x[i] = (float)random_below(1000) / 500 - 1;
    bool ok = m->params && m->x &&
              kl_nn_lstm_init(&m->layer, m->params, "lstm", LSTM_IN, LSTM_WIDTH) == KL_OK;
    m->head = ok ? kl_params_make(m->params, "head", 2, (int64_t[]){LSTM_WIDTH, size.vocabulary}, NULL) : kl_none;
    const kl_tensor *list = ok ? kl_params_trained(m->params, &n) : NULL;
    for (int i = 0; list && i < n; i++)
        ok &= kl_check(list[i]) == KL_OK; /* computed here, not by the first step */
    return list && ok && kl_sync(device) == KL_OK && (m->adam = kl_adam(n, list, NULL));
}

static void lstm_close(struct lstm *m)
{
    kl_optimizer_free(m->adam);
    kl_params_free(m->params);
    free(m->x);
}

/* The loss of what the last state says, and with `train` a step of Adam. */
static bool run_lstm(struct state *s, bool symbolic, int64_t batch, int64_t length, bool train)
{
    const struct lstm *m = &s->lstm;
    kl_device device = s->gpt.device;
    const int64_t dims[3] = {length, batch, LSTM_IN}, lengths[3] = {s->l, s->b, LSTM_IN};
    kl_trace_begin(symbolic ? train ? "lstm step symbolic" : "lstm symbolic"
                            : train ? "lstm step fixed" : "lstm fixed");
    kl_tensor x = symbolic ? kl_input_symbolic(device, KL_F32, 3, lengths, dims, m->x)
                           : kl_input(device, KL_F32, 3, dims, m->x), h = kl_none;
    kl_tensor label = symbolic ? kl_input_symbolic(device, KL_I32, 1, &s->b, &batch, s->ids)
                               : kl_input(device, KL_I32, 1, &batch, s->ids);
    kl_tensor y = kl_nn_recurrent_forward(&m->layer, x, &h, NULL);
    int first = 0;
    kl_tensor loss = kl_cross_entropy(kl_linear(kl_add(h, kl_mean(y, 1, &first, false)), m->head, kl_none), label);
    kl_keep(loss);
    if (train)
        kl_optimizer_step(m->adam, loss, 1e-3);
    bool ok = kl_trace_end() == KL_OK && kl_sync(device) == KL_OK;
    kl_release(loss);
    return ok;
}

static bool step_lstm_forward(struct state *s, bool symbolic, int64_t batch, int64_t length)
{
    return run_lstm(s, symbolic, batch, length, false);
}

static bool step_lstm_train(struct state *s, bool symbolic, int64_t batch, int64_t length)
{
    return run_lstm(s, symbolic, batch, length, true);
}

/* Separable convolutions, every second of which halves the sides: each channel by itself, then all of a position. */
static bool mobile_open(struct mobile *m, kl_device device)
{
    m->pictures = calloc(MAX_PICTURES * 3 * MOBILE_SIDE * MOBILE_SIDE, sizeof *m->pictures);
    m->labels = calloc(MAX_PICTURES, sizeof *m->labels);
    for (int i = 0; m->pictures && i < MAX_PICTURES * 3 * MOBILE_SIDE * MOBILE_SIDE; i++)
        m->pictures[i] = (float)random_below(1000) / 500 - 1;
    kl_trace_begin("mobile init");
    for (int i = -1; i < 2 * MOBILE_BLOCKS; i++) { /* the first one is of three channels, the others in pairs */
        const int64_t in = i < 0 ? 3 : mobile_width[i / 2], out = mobile_width[i < 0 ? 0 : (i + 1) / 2];
        const bool apart = i >= 0 && i % 2 == 0;
        const int64_t side = i < 0 || apart ? 3 : 1, dims[4] = {out, apart ? 1 : in, side, side};
        parameter_new(&m->p, device, 4, dims, 0, sqrt(2.0 / (double)(dims[1] * side * side)));
        parameter_new(&m->p, device, 1, &out, 1, 0);
        parameter_new(&m->p, device, 1, &out, 0, 0);
    }
    parameter_new(&m->p, device, 2, (int64_t[]){mobile_width[MOBILE_BLOCKS], MOBILE_CLASSES}, 0, 0.02);
    m->adam = kl_adam(m->p.n, m->p.t, NULL);
    return kl_trace_end() == KL_OK && m->pictures && m->labels && m->adam;
}

static void mobile_close(struct mobile *m)
{
    kl_optimizer_free(m->adam);
    parameters_release(&m->p);
    free(m->pictures);
    free(m->labels);
}

static bool step_mobile_train(struct state *s, bool symbolic, int64_t batch, int64_t length)
{
    (void)length;
    const struct mobile *m = &s->mobile;
    kl_device device = s->gpt.device;
    const int64_t dims[4] = {batch, 3, MOBILE_SIDE, MOBILE_SIDE}, lengths[4] = {s->m, 3, MOBILE_SIDE, MOBILE_SIDE};
    const int sides[2] = {2, 3};
    kl_trace_begin(symbolic ? "mobile step symbolic" : "mobile step fixed");
    kl_tensor x = symbolic ? kl_input_symbolic(device, KL_F32, 4, lengths, dims, m->pictures)
                           : kl_input(device, KL_F32, 4, dims, m->pictures);
    kl_tensor label = symbolic ? kl_input_symbolic(device, KL_I32, 1, &s->m, &batch, m->labels)
                               : kl_input(device, KL_I32, 1, &batch, m->labels);
    const kl_tensor *p = m->p.t;
    for (int i = -1; i < 2 * MOBILE_BLOCKS; i++, p += 3) {
        const bool apart = i >= 0 && i % 2 == 0;
        const int64_t stride = i < 0 || i % 4 == 2 ? 2 : 1, pad = i < 0 || apart;
        x = kl_conv(x, p[0], kl_none, (int64_t[]){stride, stride}, (int64_t[]){pad, pad}, (int64_t[]){pad, pad}, NULL,
                    apart ? (int)mobile_width[i / 2] : 1);
        x = kl_relu(kl_batch_norm(x, p[1], p[2], kl_none, kl_none, true, 0.1, 1e-5));
    }
    kl_tensor loss = kl_keep(kl_cross_entropy(kl_linear(kl_mean(x, 2, sides, false), p[0], kl_none), label));
    kl_optimizer_step(m->adam, loss, 1e-3);
    bool ok = kl_trace_end() == KL_OK && kl_sync(device) == KL_OK;
    kl_release(loss);
    return ok;
}

/* ---- pairs ---- */

static double megabytes(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)r.ru_maxrss / 1024;
}

struct built { int64_t graphs, compiles, variants; };

static struct built built_now(void)
{
    return (struct built){kl_counter("graphs_built"), kl_counter("compiles") + kl_counter("disk_hits"),
                          kl_counter("variants")};
}

static void print_built(const char *name, const char *what, struct built since)
{
    struct built now = built_now();
    printf("%-9s %-34s %4lld graphs, %5lld kernels, %3lld variants\n", name, what,
           (long long)(now.graphs - since.graphs), (long long)(now.compiles - since.compiles),
           (long long)(now.variants - since.variants));
}

static bool timed(step_fn *step, struct state *s, bool symbolic, const int64_t *pair, double *best)
{
    double start = measure_cpu_now();
    bool ok = step(s, symbolic, pair[0], pair[1]);
    double took = measure_cpu_now() - start;
    *best = took < *best ? took : *best;
    return ok;
}

static bool compare_pairs(struct bench *b, const char *name, step_fn *step, struct state *s, int64_t max_batch)
{
    static struct samples ratio, took;
    int64_t pair[PAIRS][2];
    struct built before = built_now();
    double early = 0;
    ratio.n = took.n = 0;
    for (int i = 0; i < all_pairs; i++) {
        pair[i][0] = 1 + random_below((uint32_t)max_batch);
        pair[i][1] = 2 + random_below(MAX_LENGTH - 1);
    }
    for (int i = 0; i < all_pairs; i++) {
        if (!step(s, true, pair[i][0], pair[i][1]))
            return false;
        if (!i)
            print_built(name, "first pair", before), before = built_now();
        early = i == 29 ? megabytes() : early;
    }
    print_built(name, "other pairs", before);
    printf("%-9s the process's memory: %.1f MB after 30 pairs, %.1f MB after %d\n", name, early, megabytes(),
           all_pairs);
    int compared = bench_rounds(b, COMPARED), turns = bench_rounds(b, TURNS);
    for (int i = 0; i < compared; i++) {
        double best[2] = {1e9, 1e9};
        before = built_now();
        if (!step(s, false, pair[i][0], pair[i][1]))
            return false;
        if (!i)
            print_built(name, "fixed shape", before);
        for (int turn = 0; turn < turns; turn++)
            for (int symbolic = 0; symbolic < 2; symbolic++)
                if (!timed(step, s, symbolic, pair[i], &best[symbolic]))
                    return false;
        printf("%-9s %3lld x %2lld: %9.1f us fixed, %9.1f us symbolic, %.3f\n", name, (long long)pair[i][0],
               (long long)pair[i][1], 1e6 * best[0], 1e6 * best[1], best[1] / best[0]);
        samples_add(&ratio, best[1] / best[0]);
        samples_add(&took, best[1]);
        measure_progress(name, i + 1, compared);
    }
    printf("%-9s symbolic / fixed: %.3f, the median; %.3f to %.3f\n", name, samples_median(&ratio),
           measure_quantile(ratio.s, ratio.n, 0), measure_quantile(ratio.s, ratio.n, 1));
    bench_baseline(bench_add(b, name, "symbolic", 1, &took, "us", 0, 0), "fixed", 1 / samples_median(&ratio));
    return true;
}

/* ---- the host's time ---- */

static kl_step *host_step(struct state *s, bool symbolic)
{
    const int64_t dims[1] = {16};
    kl_trace_begin(symbolic ? "host symbolic" : "host fixed");
    kl_tensor x = symbolic ? kl_input_symbolic(s->gpt.device, KL_F32, 1, &s->n, dims, s->images)
                           : kl_input(s->gpt.device, KL_F32, 1, dims, s->images);
    kl_keep(kl_add_scalar(x, 1));
    return kl_trace_end_step(1, &x);
}

static bool compare_host(struct bench *b, struct state *s)
{
    enum { ROUNDS = 30, RUNS = 2000 };
    static struct samples took[2];
    kl_step *step[2] = {host_step(s, false), host_step(s, true)};
    kl_tensor x = kl_input(s->gpt.device, KL_F32, 1, (int64_t[]){16}, s->images), out;
    bool ok = step[0] && step[1];
    for (int round = 0; ok && round < bench_rounds(b, ROUNDS); round++)
        for (int k = 0; ok && k < 2; k++) {
            double start = measure_cpu_now();
            for (int i = 0; ok && i < RUNS; i++) {
                ok = kl_step_run(step[k], 1, &x, 0, NULL, 1, &out) == KL_OK;
                kl_release(out);
            }
            samples_add(&took[k], (measure_cpu_now() - start) / RUNS);
        }
    for (int k = 0; ok && k < 2; k++)
        bench_add(b, "host", k ? "symbolic" : "fixed", 1, &took[k], "us", 0, 0);
    kl_step_free(step[0]);
    kl_step_free(step[1]);
    kl_release(x);
    return ok;
}

/* ---- text of sentences ---- */

/* The longest sentence of each batch; most sentences are short.  The same numbers whatever ran before. */
static const int64_t *text_lengths(void)
{
    static int64_t length[STEPS];
    uint32_t state = 7;
    for (int i = 0; i < STEPS && !length[STEPS - 1]; i++)
        for (int k = 0; k < MAX_BATCH; k++) {
            state = state * 1664525u + 1013904223u;
            double u = (state >> 8) / (double)(1 << 24);
            int64_t sentence = 4 + (int64_t)(u * u * u * (MAX_LENGTH - 3));
            length[i] = sentence > length[i] ? sentence : length[i];
        }
    return length;
}

static void print_text(const char *what, int done, double all, double memory)
{
    printf("text      %-34s %5d steps, %7.2f s in all, %.0f MB at most\n", what, done, all, memory);
    fflush(stdout);
}

static bool run_text(struct bench *b, struct state *s, bool symbolic)
{
    static struct samples took;
    const char *what = symbolic ? "symbolic length" : "all as long as the longest";
    struct built before = built_now();
    double start = measure_cpu_now();
    took.n = 0;
    for (int i = 0; i < steps; i++) {
        double from = measure_cpu_now();
        if (!step_gpt_train(s, symbolic, MAX_BATCH, symbolic ? text_lengths()[i] : MAX_LENGTH))
            return false;
        if (i)
            samples_add(&took, measure_cpu_now() - from);
    }
    print_text(what, steps, measure_cpu_now() - start, megabytes());
    print_built("text", what, before);
    bench_add(b, symbolic ? "text" : "text-longest", symbolic ? "symbolic" : "longest", 1, &took, "us", 0, 0);
    return true;
}

/* PyTorch or JAX; false: it failed on the way.  Where there is none, a row says so. */
static bool run_peer(struct bench *b, const char *system)
{
    static struct samples took;
    const char *python = getenv("KILN_TEST_PYTHON"), *here = getenv("KILN_TEST_PEERS");
    char script[512], number[6][12], name[32], line[128];
    const int64_t numbers[6] = {size.layers, size.width, size.heads, size.tokens, size.batch, size.vocabulary};
    char *argv[] = {(char *)python, (char *)"-W", (char *)"ignore", script, (char *)system, number[0], number[1],
                    number[2], number[3], number[4], number[5], NULL};
    struct peer p;
    double all = 0, memory = 0, seconds;
    snprintf(script, sizeof script, "%s/text_turns.py", here ? here : ".");
    snprintf(name, sizeof name, "text-%s", system);
    for (int i = 0; i < 6; i++)
        snprintf(number[i], sizeof number[i], "%lld", (long long)numbers[i]);
    if (!python)
        snprintf(p.why, sizeof p.why, "no Python with it is named");
    if (!python || !peer_start(&p, 1, getenv("KILN_TEST_MKL"), argv) || !peer_answer(&p, line, sizeof line)) {
        bench_missing(b, name, system, 1, p.why);
        return true;
    }
    took.n = 0;
    int i = 0;
    for (; i < steps; i++) {
        if (!peer_ask(&p, line, sizeof line, "%lld", (long long)text_lengths()[i]) ||
            sscanf(line, "%lf %lf", &seconds, &memory) != 2)
            break;
        all += seconds;
        samples_add(&took, seconds);
        if (i % 250 == 249)
            print_text(name, i + 1, all, memory);
    }
    if (i < steps)
        bench_missing(b, name, system, 1, p.why[0] ? p.why : line);
    else
        bench_add(b, name, system, 1, &took, "us", 0, 0);
    peer_end(&p);
    return i == steps;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct state s;
    if (!bench_open(&b, "symbols", argc, argv))
        return b.status;
    kl_device device = bench_device(&b);
    all_pairs = bench_size(&b, PAIRS, SMOKE_STEPS);
    steps = bench_size(&b, STEPS, SMOKE_STEPS);
    kl_set_option("threads", 1);
    s.b = kl_symbol("batch", 1, MAX_BATCH), s.l = kl_symbol("length", 2, MAX_LENGTH);
    s.n = kl_symbol("images", 1, MAX_IMAGES), s.m = kl_symbol("pictures", 1, MAX_PICTURES);
    s.ids = calloc(MAX_BATCH * MAX_LENGTH + 1, sizeof *s.ids);
    s.images = calloc((size_t)(MAX_IMAGES * mlp_width[0]), 1);
    for (int i = 0; s.ids && i <= MAX_BATCH * MAX_LENGTH; i++)
        s.ids[i] = (int32_t)random_below((uint32_t)size.vocabulary);
    bool ok = s.ids && s.images && gpt_open(&s.gpt, device, size) && mlp_open(&s.mlp, device, MAX_IMAGES) &&
              lstm_open(&s.lstm, device) && mobile_open(&s.mobile, device);
    ok = ok && (!bench_wants(&b, "mlp") || compare_pairs(&b, "mlp", step_mlp, &s, MAX_IMAGES));
    ok = ok && (!bench_wants(&b, "gpt") || compare_pairs(&b, "gpt", step_gpt_forward, &s, MAX_BATCH));
    ok = ok && (!bench_wants(&b, "gpt-step") || compare_pairs(&b, "gpt-step", step_gpt_train, &s, MAX_BATCH));
    ok = ok && (!bench_wants(&b, "lstm") || compare_pairs(&b, "lstm", step_lstm_forward, &s, MAX_BATCH));
    ok = ok && (!bench_wants(&b, "lstm-step") || compare_pairs(&b, "lstm-step", step_lstm_train, &s, MAX_BATCH));
    ok = ok && (!bench_wants(&b, "mobile-step") ||
                compare_pairs(&b, "mobile-step", step_mobile_train, &s, MAX_PICTURES));
    ok = ok && (!bench_wants(&b, "host") || compare_host(&b, &s));
    ok = ok && (!bench_wants(&b, "text") || run_text(&b, &s, true));
    ok = ok && (!bench_wants(&b, "text-longest") || run_text(&b, &s, false));
    ok = ok && (!bench_wants(&b, "text-torch") || run_peer(&b, "torch"));
    ok = ok && (!bench_wants(&b, "text-jax") || run_peer(&b, "jax"));
    gpt_close(&s.gpt);
    mlp_close(&s.mlp);
    lstm_close(&s.lstm);
    mobile_close(&s.mobile);
    free(s.ids);
    free(s.images);
    return ok ? bench_close(&b) : bench_fail(&b, "run");
}
