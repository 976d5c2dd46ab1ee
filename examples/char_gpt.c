/* A small GPT of characters that learns the King James Bible (Debian's bible-kjv), or another text, and shows samples
 * as it learns.  With --checkpoints FOLDER it can be stopped at any moment and goes on with the same bits.
 *
 * With its defaults, 2,500 steps, it comes to 1.03 nats a character on text that it has not seen, in about 750 s of one
 * processor's time (AMD EPYC, Zen 5); after 500 steps it is at 1.32.
 *
 *     char_gpt --checkpoints run1
 *     char_gpt --text book.txt --steps 1000
 *
 * Read gpt_logits, train_step and evaluate first; the rest is the text, samples and options. */
#define _POSIX_C_SOURCE 200809L /* popen */
#include <errno.h>
#include <inttypes.h>
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
    const char *text, *checkpoints, *device, *log;
    double layers, width, heads, length, batch, steps, until, every, rate, sample, temperature, seed;
    bool quiet;
};

struct text {
    uint8_t *train, *held_out;             /* class numbers of characters */
    int64_t train_count, held_out_count;
    int classes;
    uint8_t class_of[256], byte_of[256];
};

struct gpt {
    kl_params *params;
    kl_nn_embedding embedding;
    kl_nn_block *block;
    kl_nn_norm norm;
    kl_nn_linear head;
    int layers;
};

struct run {
    struct options opt;
    struct text text;
    struct gpt gpt;
    kl_device device;
    kl_optimizer *adam;
    kl_tokens train_tokens, held_out_tokens;
    kl_tokens_windows train_windows, held_out_windows;
    kl_loader *loader;
    kl_snapshot *snapshot;
    kl_nn_cache cache;
    kl_step *sample_step;
    int64_t step;                          /* steps done */
    double started;                        /* seconds */
};

static bool fail(const char *what, const char *why)
{
    fprintf(stderr, "char_gpt: %s: %s\n", what, why);
    return false;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the network: blocks with rotary positions and RMS norms ---- */

static bool gpt_init(struct gpt *m, const struct options *o, kl_device device, int classes)
{
    kl_nn_block_options block = {
        .attention = {.width = (int64_t)o->width, .heads = (int)o->heads, .causal = true, .rotary_base = 10000},
        .rms_norm = true};
    m->layers = (int)o->layers;
    m->params = kl_params_new(device, KL_F32, (uint64_t)o->seed);
    m->block = calloc((size_t)m->layers, sizeof *m->block);
    if (!m->block || kl_nn_embedding_init(&m->embedding, m->params, "embedding", classes, (int64_t)o->width) != KL_OK)
        return false;
    for (int i = 0; i < m->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "block.%d", i);
        if (kl_nn_block_init(&m->block[i], m->params, name, &block) != KL_OK)
            return false;
    }
    return kl_nn_rms_norm_init(&m->norm, m->params, "norm", (int64_t)o->width) == KL_OK &&
           kl_nn_linear_init(&m->head, m->params, "head", (int64_t)o->width, classes, false) == KL_OK;
}

/* ids [B, T] -> [B, T, classes].  With a cache the characters stand behind those that it has. */
static kl_tensor gpt_logits(const struct gpt *m, kl_tensor ids, kl_nn_cache *cache)
{
    kl_tensor x = kl_nn_embedding_forward(&m->embedding, ids);
    for (int i = 0; i < m->layers; i++)
        x = kl_nn_block_forward(&m->block[i], x, kl_none, cache, i, kl_none);
    return kl_nn_linear_forward(&m->head, kl_nn_norm_forward(&m->norm, x, false));
}

/* batch, i32 [B, T + 1] -> the mean loss of each character after the first ones, in nats */
static kl_tensor gpt_loss(const struct run *r, const void *batch)
{
    int64_t b = (int64_t)r->opt.batch, t = (int64_t)r->opt.length;
    kl_tensor text = kl_input(r->device, KL_I32, 2, (int64_t[]){b, t + 1}, batch);
    kl_tensor logits = gpt_logits(&r->gpt, kl_narrow(text, 1, 0, t), NULL);
    return kl_cross_entropy(kl_reshape(logits, 2, (int64_t[]){b * t, r->text.classes}),
                            kl_reshape(kl_narrow(text, 1, 1, t), 1, (int64_t[]){b * t}));
}

/* ---- training ---- */

static double rate_of(void *ctx, int64_t i)
{
    const struct options *o = &((struct run *)ctx)->opt;
    return kl_rate_warmup(i, 100) * kl_rate_cosine(i, (int64_t)o->steps, o->rate, o->rate / 20);
}

static kl_status train_step(void *ctx, int64_t i, double rate, double *loss)
{
    struct run *r = ctx;
    kl_batch batch;
    kl_status status = kl_loader_next(r->loader, &batch);
    if (status != KL_OK)
        return status;
    kl_trace_begin("train_step");
    kl_tensor mean = kl_keep(gpt_loss(r, batch.data));
    kl_optimizer_step(r->adam, mean, rate);
    if ((status = kl_trace_end()) != KL_OK)
        return status;
    *loss = (double)kl_item_f32(mean);
    r->step = i + 1;
    return kl_release(mean);
}

/* The mean loss of the text held out, in full batches of windows that do not overlap. */
static kl_status evaluate(struct run *r, double *loss)
{
    int64_t windows = kl_tokens_windows_count(&r->held_out_windows), batch = (int64_t)r->opt.batch;
    int64_t *index = calloc((size_t)batch, sizeof *index);
    int32_t *ids = calloc((size_t)(batch * (r->held_out_windows.length + 1)), sizeof *ids);
    char message[256];
    kl_metric_mean mean = {0};
    kl_status status = index && ids ? KL_OK : KL_ERR_MEMORY;
    for (int64_t first = 0; first + batch <= windows && status == KL_OK; first += batch) {
        for (int64_t i = 0; i < batch; i++)
            index[i] = first + i;
        kl_tokens_windows_fill(&r->held_out_windows, batch, index, ids, message);
        kl_trace_begin("evaluate");
        kl_tensor one = kl_keep(gpt_loss(r, ids));
        status = kl_trace_end();
        kl_metric_add(&mean, (double)kl_item_f32(one), 1);
        kl_release(one);
    }
    free(index);
    free(ids);
    *loss = kl_metric_value(&mean);
    return status;
}

/* ---- samples, with a cache of keys and values ---- */

/* Records the step that draws the character behind one more, which the cache then has. */
static bool sample_init(struct run *r)
{
    const struct options *o = &r->opt;
    int32_t zero = 0;
    if (kl_nn_cache_init(&r->cache, r->device, KL_F32, r->gpt.layers, 1, (int64_t)o->heads, (int64_t)o->length,
                         (int64_t)(o->width / o->heads)) != KL_OK)
        return false;
    kl_trace_begin("sample");
    kl_tensor id = kl_input(r->device, KL_I32, 2, (int64_t[]){1, 1}, &zero);
    kl_tensor seed = kl_scalar(r->device, KL_U64, 0);
    kl_set_name(seed, "seed");
    kl_tensor at = kl_reshape(r->cache.used, 0, NULL); /* its value before the step */
    kl_tensor logits = kl_reshape(gpt_logits(&r->gpt, id, &r->cache), 2, (int64_t[]){1, r->text.classes});
    kl_keep(kl_categorical(kl_mul_scalar(logits, 1 / o->temperature), 1, kl_random_fold_in(seed, at)));
    kl_nn_cache_advance(&r->cache, 1);
    r->sample_step = kl_trace_end_step(1, &id);
    return r->sample_step;
}

/* Writes characters behind a line's end. */
static kl_status sample(struct run *r)
{
    int64_t n = (int64_t)r->opt.sample;
    int32_t id = r->text.class_of['\n'];
    kl_slot seed = {"seed", r->opt.seed + (double)r->step};
    kl_status status = kl_nn_cache_reset(&r->cache);
    for (int64_t i = 0; i < n && status == KL_OK; i++) {
        kl_tensor in = kl_input(r->device, KL_I32, 2, (int64_t[]){1, 1}, &id), next;
        status = kl_step_run(r->sample_step, 1, &in, 1, &seed, 1, &next);
        kl_release(in);
        if (status == KL_OK) {
            id = (int32_t)kl_item_i64(next);
            putchar(r->text.byte_of[id]);
            kl_release(next);
        }
    }
    printf("\n\n");
    return status;
}

/* Every so many steps: the loss on the text held out, a sample, a checkpoint. */
static kl_status report(void *ctx, int64_t i, double loss)
{
    struct run *r = ctx;
    double held_out;
    kl_status status = evaluate(r, &held_out);
    if (status != KL_OK)
        return status;
    printf("step %" PRId64 ": %.4f nats a character, %.4f held out, %.0f s\n", i + 1, loss, held_out,
           now() - r->started);
    if (r->opt.sample >= 1 && (status = sample(r)) != KL_OK)
        return status;
    fflush(stdout);
    return r->opt.checkpoints ? kl_snapshot_save_step(r->snapshot, r->opt.checkpoints, "char_gpt", i + 1, 2) : KL_OK;
}

/* ---- the text ---- */

static char *read_all(FILE *f, size_t *n)
{
    size_t room = 1 << 20;
    char *data = malloc(room);
    *n = 0;
    while (data) {
        size_t got = fread(data + *n, 1, room - *n, f);
        if (!got)
            return data;
        *n += got;
        if (*n == room) {
            char *more = realloc(data, room *= 2);
            if (!more)
                free(data);
            data = more;
        }
    }
    return NULL;
}

/* Reads the text, numbers its characters, and holds one in twenty of its parts out. */
static bool text_open(struct text *t, const struct options *o)
{
    static const char bible[] = "bible -f gen1:1-rev22:21 | cut -d' ' -f2-"; /* a verse a line, without its number */
    const char *name = o->text ? o->text : "bible";
    size_t n = 0;
    FILE *f = o->text ? fopen(o->text, "rb") : popen(bible, "r");
    if (!f)
        return fail(name, strerror(errno));
    char *data = read_all(f, &n);
    bool broken = ferror(f);
    if (o->text)
        fclose(f);
    else
        pclose(f);
    t->train = malloc(n + 1);
    t->held_out = malloc(n + 1);
    if (!data || broken || !t->train || !t->held_out) {
        free(data);
        return fail(name, broken ? "it cannot be read" : "no memory");
    }
    bool used[256] = {['\n'] = true}; /* samples start behind one */
    for (size_t i = 0; i < n; i++)
        used[(uint8_t)data[i]] = true;
    for (int c = 0; c < 256; c++)
        if (used[c]) {
            t->byte_of[t->classes] = (uint8_t)c;
            t->class_of[c] = (uint8_t)t->classes++;
        }
    size_t part = n / 20 < 16384 ? n / 20 + 1 : 16384;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = t->class_of[(uint8_t)data[i]];
        if (i / part % 20 == 19)
            t->held_out[t->held_out_count++] = c;
        else
            t->train[t->train_count++] = c;
    }
    free(data);
    if (!n && !o->text)
        return fail(name, "no text: install bible-kjv, or name a file with --text");
    return t->held_out_count >= (int64_t)o->length * (int64_t)o->batch + 1 ||
           fail(name, "too short: a twentieth of it is no batch");
}

/* ---- options ---- */

static bool parse_options(struct options *o, int argc, char **argv)
{
    const struct { const char *name, **text; double *number; } known[] = {
        {"--text", &o->text, NULL}, {"--checkpoints", &o->checkpoints, NULL}, {"--device", &o->device, NULL},
        {"--log", &o->log, NULL}, {"--layers", NULL, &o->layers}, {"--width", NULL, &o->width},
        {"--heads", NULL, &o->heads}, {"--length", NULL, &o->length}, {"--batch", NULL, &o->batch},
        {"--steps", NULL, &o->steps}, {"--until", NULL, &o->until}, {"--every", NULL, &o->every},
        {"--rate", NULL, &o->rate}, {"--sample", NULL, &o->sample}, {"--temperature", NULL, &o->temperature},
        {"--seed", NULL, &o->seed}};
    bool good = true;
    for (int i = 1; i < argc && good; i++) {
        size_t k = 0, n = sizeof known / sizeof *known;
        while (k < n && strcmp(argv[i], known[k].name) != 0)
            k++;
        if (!strcmp(argv[i], "--quiet")) {
            o->quiet = true;
        } else if (k < n && known[k].text && i + 1 < argc) {
            *known[k].text = argv[++i];
        } else if (k < n && i + 1 < argc) {
            char *end;
            *known[k].number = strtod(argv[++i], &end);
            good = !*end && *known[k].number >= 0 && *known[k].number < 1 << 24;
        } else {
            good = false;
        }
    }
    if (good && o->layers >= 1 && o->heads >= 1 && o->width >= o->heads && o->length >= 1 && o->batch >= 1 &&
        o->steps >= 1 && o->temperature > 0) {
        o->sample = o->sample < o->length ? o->sample : o->length; /* the cache's length */
        return true;
    }
    fprintf(stderr,
            "usage: char_gpt [OPTIONS]\n"
            "  --text FILE        what it learns (the Bible of Debian's bible-kjv)\n"
            "  --checkpoints DIR  saves there with each report, and goes on from the last one\n"
            "  --layers N, --width N, --heads N     the network (%g, %g, %g)\n"
            "  --length N         characters of a sequence (%g)\n"
            "  --batch N          sequences a step (%g)\n"
            "  --steps N          (%g)\n"
            "  --until N          stop after step N, to go on later\n"
            "  --every N          steps from one report to the next (%g)\n"
            "  --rate X           learning rate of AdamW (%g)\n"
            "  --sample N         characters of a sample, at most a sequence's (%g)\n"
            "  --temperature X    of the sampling (%g)\n"
            "  --log FILE         a line of JSON a step\n"
            "  --quiet            no progress\n"
            "  --device NAME, --seed N\n",
            o->layers, o->width, o->heads, o->length, o->batch, o->steps, o->every, o->rate, o->sample,
            o->temperature);
    return false;
}

/* ---- the program ---- */

static bool prepare(struct run *r)
{
    const struct options *o = &r->opt;
    kl_adam_options adam = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
    int64_t n;
    r->device = o->device ? kl_device_named(o->device) : kl_device_default();
    if (!r->device.id)
        return fail("no device", kl_last_error());
    if (!text_open(&r->text, o))
        return false;
    if (!gpt_init(&r->gpt, o, r->device, r->text.classes))
        return fail("no model", kl_last_error());
    r->train_tokens = (kl_tokens){.count = r->text.train_count, .width = 1, .data = r->text.train};
    r->held_out_tokens = (kl_tokens){.count = r->text.held_out_count, .width = 1, .data = r->text.held_out};
    r->held_out_windows = (kl_tokens_windows){.tokens = &r->held_out_tokens, .length = (int64_t)o->length};
    r->train_windows = (kl_tokens_windows){.tokens = &r->train_tokens, .length = (int64_t)o->length,
                                           .stride = (int64_t)o->length / 8 + 1};
    kl_loader_options load = {.count = kl_tokens_windows_count(&r->train_windows), .batch = (int64_t)o->batch,
                              .bytes = (size_t)(o->batch * (o->length + 1)) * sizeof(int32_t),
                              .fill = kl_tokens_windows_fill, .ctx = &r->train_windows, .seed = (uint64_t)o->seed,
                              .drop_last = true};
    const kl_tensor *list = kl_params_trained(r->gpt.params, &n);
    r->loader = kl_loader_new(&load);
    r->adam = kl_adam(n, list, &adam);
    r->snapshot = kl_snapshot_new();
    if (!r->loader || !r->adam || !r->snapshot || (o->sample >= 1 && !sample_init(r)) ||
        kl_snapshot_params(r->snapshot, r->gpt.params) != KL_OK ||
        kl_snapshot_optimizer(r->snapshot, "adam", r->adam) != KL_OK ||
        kl_snapshot_loader(r->snapshot, "data", r->loader) != KL_OK ||
        kl_snapshot_i64(r->snapshot, "step", &r->step) != KL_OK)
        return fail("no model", kl_last_error());
    if (o->checkpoints && kl_snapshot_load_last(r->snapshot, o->checkpoints, "char_gpt", NULL) != KL_OK)
        return fail(o->checkpoints, kl_last_error());
    printf("%" PRId64 " parameters, %" PRId64 " characters of %d kinds, %" PRId64 " held out; %s %" PRId64 "\n",
           kl_params_elements(r->gpt.params, "*"), r->text.train_count, r->text.classes, r->text.held_out_count,
           r->step ? "going on at step" : "starting at step", r->step);
    fflush(stdout);
    return true;
}

int main(int argc, char **argv)
{
    static struct run r = {.opt = {.layers = 4, .width = 128, .heads = 4, .length = 256, .batch = 16, .steps = 2500,
                                   .until = 1 << 24, .every = 500, .rate = 2e-3, .sample = 250, .temperature = 0.8,
                                   .seed = 1}};
    const struct options *o = &r.opt;
    if (!parse_options(&r.opt, argc, argv))
        return 2;
    r.started = now();
    bool ok = prepare(&r);
    kl_train_loop loop = {.first = r.step, .steps = (int64_t)(o->until < o->steps ? o->until : o->steps),
                          .step = train_step, .rate = rate_of, .each = report, .every = (int64_t)o->every, .ctx = &r,
                          .unit = "characters", .units = (int64_t)(o->batch * o->length), .quiet = o->quiet,
                          .log = o->log};
    if (ok && kl_train(&loop) != KL_OK)
        ok = fail("training", kl_last_error());
    kl_step_free(r.sample_step);
    kl_nn_cache_deinit(&r.cache);
    kl_snapshot_free(r.snapshot);
    kl_optimizer_free(r.adam);
    kl_loader_free(r.loader);
    kl_params_free(r.gpt.params);
    free(r.gpt.block);
    free(r.text.train);
    free(r.text.held_out);
    return ok ? 0 : 1;
}
