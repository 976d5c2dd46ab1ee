/* GPT-2 with 124M parameters, by the functions of examples/gpt2.c.
 *
 * train-THREADS: a training step of AdamW on 4 sequences of 64 tokens on one or two threads, in alternation with llm.c,
 * PyTorch and torch.compile.  All start from the same random checkpoint and get the same batches.  Their losses must be
 * Kiln's within 1e-3.
 * decode-TYPE: one more token with a cache of keys and values and weights of this type.  The rate is bytes of weights
 * per second, the limit is that of copying memory in the same rounds, counted as bytes read and bytes written.
 *
 * The peers are the programs that KILN_TEST_LLMC and KILN_TEST_PYTHON name (llmc/turns.c, gpt2_turns.py);
 * `./run bench gpt2` makes them.  Checkpoint and batches are written into the folder KILN_TEST_GPT2.  All of it takes
 * about ten minutes and 10 GB of memory. */
#define _GNU_SOURCE
#include "peer.h"
#include "bench/streams.h"
#include <kiln/train.h>
int gpt2_example(int argc, char **argv);
#define main gpt2_example
#include "examples/gpt2.c"
#undef main
#include <math.h>

enum { BATCH = 4, LENGTH = 64, STEPS = 10, WARM_STEPS = 2, LINE = 200, PATH = 600 };
enum { DECODE_ROUNDS = 12, DECODE_TOKENS = 12, DECODE_LENGTH = 256, SMOKE_LENGTH = 32, COPIED = 256 << 20 };
#define MAX_DIFFERENCE 1e-3

enum { KILN, LLMC, EAGER, COMPILE, SYSTEMS };
static int steps; /* of training: fewer with --smoke */
static const char *const system_name[SYSTEMS] = {"kiln", "llm.c", "torch", "torch.compile"};
static char checkpoint[PATH], batches_path[PATH];
static int32_t batches[STEPS][BATCH][LENGTH + 1];

static bool write_inputs(kl_device device, bool smoke)
{
    struct options random = {.random = smoke ? "1,2,64,64,50257" : "12,12,768,1024,50257", .seed = 1337,
                             .device = kl_device_name(device)};
    struct gpt2 m = {0};
    const char *folder = getenv("KILN_TEST_GPT2");
    uint32_t state = 1;
    folder = folder ? folder : ".";
    snprintf(checkpoint, sizeof checkpoint, "%s/random.bin", folder);
    snprintf(batches_path, sizeof batches_path, "%s/batches.bin", folder);
    int32_t token = 0, *at = &batches[0][0][0];
    for (size_t i = 0; i < sizeof batches / sizeof *at; i++) {
        state = state * 1664525 + 1013904223;
        at[i] = token = (token + 1 + (int32_t)(state >> 16) % 300) % 50257;
    }
    FILE *f = fopen(batches_path, "wb");
    bool ok = f && fwrite(batches, sizeof batches, 1, f) == 1;
    ok = (f && fclose(f) == 0) && ok;
    if (!ok)
        return fail(batches_path, strerror(errno));
    ok = gpt2_open(&m, &random) && checkpoint_write(&m, checkpoint);
    gpt2_free(&m);
    return ok;
}

/* ---- training ---- */

static void start_system(struct peer *p, int system, int threads)
{
    char batch[12], tokens[12], count[12], script[PATH], line[LINE];
    const char *python = getenv("KILN_TEST_PYTHON"), *llmc = getenv("KILN_TEST_LLMC");
    const char *here = getenv("KILN_TEST_PEERS");
    snprintf(batch, sizeof batch, "%d", BATCH);
    snprintf(tokens, sizeof tokens, "%d", LENGTH);
    snprintf(count, sizeof count, "%d", STEPS);
    snprintf(script, sizeof script, "%s/gpt2_turns.py", here ? here : ".");
    char *const of_llmc[] = {(char *)llmc, checkpoint, batches_path, batch, tokens, count, NULL};
    char *const of_torch[] = {(char *)python, (char *)"-W", (char *)"ignore", script, checkpoint, batches_path, batch,
                              tokens, count, system == COMPILE ? (char *)"compile" : (char *)"eager", NULL};
    bool ok = peer_start(p, threads, system == LLMC ? NULL : getenv("KILN_TEST_MKL"),
                         system == LLMC ? of_llmc : of_torch) && peer_answer(p, line, sizeof line);
    if (ok && strcmp(line, "ready\n")) {
        peer_end(p);
        snprintf(p->why, sizeof p->why, "%.*s", (int)strcspn(line, "\n"), line);
    }
    if (p->why[0])
        fprintf(stderr, "bench_gpt2: no %s to compare with: %s\n", system_name[system], p->why);
}

/* One step of another system.  false: it has ended. */
static bool peer_step(struct peer *p, double *seconds, double *loss)
{
    char line[LINE];
    usleep(20000); /* threads of the one before wait in a loop for a while */
    return peer_ask(p, line, sizeof line, "%s", "") && sscanf(line, "%lf %lf", seconds, loss) == 2;
}

static const char *const train_case[] = {"train-1", "train-2"};

static bool show_training(struct bench *b, const struct samples *took, double (*loss)[STEPS], int threads)
{
    int best = 0;
    bool ok = true;
    for (int s = 1; s < SYSTEMS; s++)
        if (took[s].n && (!best || samples_median(&took[s]) < samples_median(&took[best])))
            best = s;
    for (int s = 0; s < SYSTEMS; s++) {
        struct result *row = took[s].n ? bench_add(b, train_case[threads - 1], system_name[s], threads, &took[s],
                                                     "us", 0, 0) : NULL;
        if (s == KILN && best)
            bench_baseline(row, system_name[best], samples_median(&took[best]) / samples_median(&took[s]));
        if (s == KILN || !row)
            continue;
        double max = 0;
        for (int i = 0; i < steps; i++)
            max = fmax(max, fabs(loss[s][i] - loss[KILN][i]));
        ok = ok && max <= MAX_DIFFERENCE;
        fprintf(stderr, "bench_gpt2: %d threads: the losses of %d steps, from %.6f to %.6f, are those of %s within "
                        "%.1e\n", threads, steps, loss[KILN][0], loss[KILN][steps - 1], system_name[s], max);
    }
    if (!ok)
        fprintf(stderr, "bench_gpt2: that is more than %g\n", MAX_DIFFERENCE);
    return ok;
}

static bool measure_training(struct bench *b, kl_device device, int threads)
{
    static struct samples took[SYSTEMS];
    double loss[SYSTEMS][STEPS] = {{0}};
    struct options o = {.checkpoint = checkpoint, .batch = BATCH, .length = LENGTH, .rate = 1e-4,
                        .device = kl_device_name(device)};
    kl_adam_options options = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    struct peer peer[SYSTEMS] = {0};
    struct gpt2 m = {0};
    int64_t n;
    kl_set_option("threads", threads);
    for (int s = 0; s < SYSTEMS; s++) {
        took[s].n = 0;
        if (s != KILN)
            start_system(&peer[s], s, threads);
    }
    bool ok = gpt2_open(&m, &o);
    const kl_tensor *trained = ok ? kl_params_trained(m.params, &n) : NULL;
    kl_optimizer *adam = ok ? kl_adam(n, trained, &options) : NULL;
    ok = ok && adam;
    for (int step = 0; step < steps && ok; step++) {
        for (int s = 0; s < SYSTEMS && ok; s++) {
            double seconds = 0, start = measure_now();
            if (s == KILN) {
                ok = train_step(&m, adam, &o, batches[step], &loss[s][step]);
                seconds = measure_now() - start;
            } else if (peer[s].to && !peer_step(&peer[s], &seconds, &loss[s][step])) {
                fprintf(stderr, "bench_gpt2: %s has no more turns: %s\n", system_name[s], peer[s].why);
                took[s].n = 0;
                peer_wait(&peer[s]);
            }
            if (step >= WARM_STEPS && (s == KILN || peer[s].to))
                samples_add(&took[s], seconds);
        }
        measure_progress("gpt2", step + 1, steps);
    }
    for (int s = 1; s < SYSTEMS; s++)
        if (ok && !took[s].n)
            bench_missing(b, train_case[threads - 1], system_name[s], threads, peer[s].why);
    for (int s = 1; s < SYSTEMS; s++)
        peer_end(&peer[s]);
    kl_optimizer_free(adam);
    gpt2_free(&m);
    if (!ok)
        fail(train_case[threads - 1], kl_last_error());
    return ok && show_training(b, took, loss, threads);
}

/* ---- decoding ---- */

static int64_t stored_bytes(kl_tensor t)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < kl_layer_parts(t); i++) {
        kl_tensor part = kl_layer_part(t, i);
        if (part.id)
            sum += kl_numel(part) * (int64_t)kl_dtype_size(kl_dtype_of(part));
        kl_release(part);
    }
    return sum ? sum : kl_numel(t) * (int64_t)kl_dtype_size(kl_dtype_of(t));
}

/* The bytes that a token reads: all weights but the embeddings of positions. */
static double weight_bytes(const struct gpt2 *m)
{
    int64_t rest = kl_params_elements(m->params, "*") - kl_numel(m->wpe.weight) - kl_numel(m->wte.weight);
    int64_t bytes = stored_bytes(m->wte.weight);
    for (int64_t i = 0; i < m->layers; i++) {
        const kl_nn_block *k = &m->block[i];
        const kl_tensor weight[] = {k->attention.qkv.weight, k->attention.out.weight, k->up.weight, k->down.weight};
        for (int j = 0; j < 4; j++) {
            bytes += stored_bytes(weight[j]);
            rest -= kl_numel(weight[j]);
        }
    }
    return (double)(bytes + rest * (int64_t)sizeof(float));
}

/* Seconds a token; negative: see kl_last_error. */
static double decode_turn(const struct gpt2 *m, kl_step *step)
{
    double start = measure_now();
    int32_t id = 1;
    for (int i = 0; i < DECODE_TOKENS; i++) {
        kl_tensor in = kl_input(m->device, KL_I32, 2, (int64_t[]){1, 1}, &id), next;
        bool ok = kl_step_run(step, 1, &in, 0, NULL, 1, &next) == KL_OK;
        kl_release(in);
        if (!ok)
            return -1;
        id = (int32_t)kl_item_i64(next);
        kl_release(next);
    }
    return (measure_now() - start) / DECODE_TOKENS;
}

static bool measure_decoding(struct bench *b, const struct gpt2 *m, const char *name, int threads, float *const *array)
{
    static struct samples took, copies;
    struct options o = {.temperature = 0};
    kl_nn_cache cache = {0};
    int64_t length = bench_size(b, DECODE_LENGTH, SMOKE_LENGTH);
    kl_set_option("threads", threads);
    took.n = copies.n = 0;
    bool ok = kl_nn_cache_init(&cache, m->device, KL_F32, (int)m->layers, 1, m->heads, length,
                               m->width / m->heads) == KL_OK;
    kl_step *step = ok ? sample_step(m, &o, length, &cache) : NULL;
    ok = step;
    for (int round = -1; round < bench_rounds(b, DECODE_ROUNDS) && ok; round++) { /* round -1 compiles */
        double seconds = decode_turn(m, step), copied = stream_seconds(array, COPIED, true, threads);
        ok = seconds > 0;
        if (round >= 0 && ok) {
            samples_add(&took, seconds);
            samples_add(&copies, copied);
        }
    }
    kl_step_free(step);
    kl_nn_cache_deinit(&cache);
    if (!ok)
        return fail(name, kl_last_error());
    double bytes = weight_bytes(m), limit = COPIED / samples_median(&copies) * 1e-9;
    bench_add(b, name, "kiln", threads, &took, "GB/s", bytes, limit);
    fprintf(stderr, "bench_gpt2: %s, %d threads: %.2f tokens/s, %.1f MB of weights read at %.2f of the speed of a "
                    "copy\n", name, threads, 1 / samples_median(&took), bytes * 1e-6,
            bytes / samples_median(&took) * 1e-9 / limit);
    return true;
}

static bool decode(struct bench *b, kl_device device, const char *name, int type)
{
    struct options o = {.checkpoint = checkpoint, .device = kl_device_name(device)};
    struct gpt2 m = {0};
    float *array[2] = {limit_array(COPIED / sizeof(float)), limit_array(COPIED / sizeof(float))};
    bool ok = array[0] && array[1] && gpt2_open(&m, &o);
    if (ok && type >= 0)
        ok = gpt2_quantize(&m, (kl_qtype)type) || fail(name, kl_last_error());
    for (int threads = 1; threads <= 2 && ok; threads++)
        ok = measure_decoding(b, &m, name, threads, array);
    for (int i = 0; i < 2; i++)
        limit_array_free(array[i], COPIED / sizeof(float));
    gpt2_free(&m);
    return ok;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static const struct { const char *name; int type; } types[] = {
        {"decode-f32", -1}, {"decode-int8", KL_Q_I8}, {"decode-q4_0", KL_Q_I4}};
    if (!bench_open(&b, "gpt2", argc, argv))
        return b.status;
    kl_device device = bench_device(&b);
    steps = bench_size(&b, STEPS, WARM_STEPS + 1);
    bool ok = write_inputs(device, b.smoke);
    for (int i = 0; i < 3 && ok; i++)
        ok = !bench_wants(&b, types[i].name) || decode(&b, device, types[i].name, types[i].type);
    for (int threads = 1; threads <= 2 && ok; threads++)
        ok = !bench_wants(&b, train_case[threads - 1]) || measure_training(&b, device, threads);
    int status = bench_close(&b);
    return ok ? status : 1;
}
