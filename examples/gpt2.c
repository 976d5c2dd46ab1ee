/* GPT-2 from llm.c's files: trains it with AdamW and samples text with a cache of keys and values.
 *
 *     gpt2 gpt2_124M.bin --tokens tiny_shakespeare_train.bin --sample 64 --tokenizer gpt2_tokenizer.bin
 *     gpt2 --random 12,12,768,1024,50257 --save random.bin            without any file
 *     gpt2 gpt2_124M.bin --steps 0 --sample 64 --quantize int8        with weights of 8 bits
 *     gpt2 gpt2_124M.bin --device cuda:0 --autocast bf16              trained with products in bf16
 *
 * Read gpt2_logits and train first; the rest is files and options. */
#include <errno.h>
#include <inttypes.h>
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the network ---- */

struct gpt2 {
    kl_device device;
    int64_t layers, heads, width, length, vocabulary, padded; /* padded: rows of wte in checkpoints */
    kl_params *params;
    kl_nn_embedding wte, wpe; /* of tokens, which also makes the logits; of positions */
    kl_nn_block *block;
    kl_nn_norm norm;
    kl_tensor *quantized; /* weights as integers (gpt2_quantize), NULL: none */
    int quantized_count;
};

static bool gpt2_init(struct gpt2 *m, uint64_t seed)
{
    kl_nn_block_options block = {
        .attention = {.width = m->width, .heads = (int)m->heads, .bias = true, .causal = true}};
    m->params = kl_params_new(m->device, KL_F32, seed);
    m->block = calloc((size_t)m->layers, sizeof *m->block);
    if (!m->block || kl_nn_embedding_init(&m->wte, m->params, "wte", m->vocabulary, m->width) != KL_OK ||
        kl_nn_embedding_init(&m->wpe, m->params, "wpe", m->length, m->width) != KL_OK)
        return false;
    for (int64_t i = 0; i < m->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "h.%" PRId64, i);
        if (kl_nn_block_init(&m->block[i], m->params, name, &block) != KL_OK)
            return false;
    }
    return kl_nn_layer_norm_init(&m->norm, m->params, "norm", m->width) == KL_OK;
}

/* ids [B, T] -> [B, T, width].  With a cache the tokens stand behind those that it has. */
static kl_tensor gpt2_hidden(const struct gpt2 *m, kl_tensor ids, int64_t length, kl_nn_cache *cache)
{
    kl_tensor at = cache ? kl_nn_embedding_forward(&m->wpe, kl_nn_positions(m->device, length, cache))
                         : kl_narrow(m->wpe.weight, 0, 0, length);
    kl_tensor x = kl_add(kl_nn_embedding_forward(&m->wte, ids), at);
    for (int i = 0; i < m->layers; i++)
        x = kl_nn_block_forward(&m->block[i], x, kl_none, cache, i, kl_none);
    return kl_nn_norm_forward(&m->norm, x, false);
}

/* [B, T, width] -> [n, vocabulary], n = B T */
static kl_tensor gpt2_logits(const struct gpt2 *m, kl_tensor hidden, int64_t n)
{
    return kl_matmul(kl_reshape(hidden, 2, (int64_t[]){n, m->width}), kl_transpose(m->wte.weight, 0, 1));
}

/* Quantizes a weight in the place of its floats, which the tree of parameters keeps.  in_axis: the axis that products
 * sum over.  int8 has a scale for each output, q4_0 one for each block of 32 inputs. */
static bool quantize_weight(struct gpt2 *m, kl_tensor *weight, int in_axis, kl_qtype type)
{
    kl_qscheme scheme = {.type = type, .per_axis = true, .axis = 1 - in_axis};
    if (type == KL_Q_I4)
        scheme = (kl_qscheme){.type = type, .axis = in_axis, .block = 32};
    kl_trace_begin("quantize");
    kl_tensor q = kl_keep(kl_to_quantized(*weight, scheme, kl_none, kl_none));
    if (kl_trace_end() != KL_OK)
        return false;
    *weight = m->quantized[m->quantized_count++] = q;
    return true;
}

/* Quantizes the weights of all products, for sampling.  false: see kl_last_error. */
static bool gpt2_quantize(struct gpt2 *m, kl_qtype type)
{
    m->quantized = calloc((size_t)m->layers * 4 + 1, sizeof *m->quantized);
    bool ok = m->quantized && quantize_weight(m, &m->wte.weight, 1, type);
    for (int64_t i = 0; i < m->layers && ok; i++) {
        kl_nn_block *b = &m->block[i];
        ok = quantize_weight(m, &b->attention.qkv.weight, 0, type) &&
             quantize_weight(m, &b->attention.out.weight, 0, type) && quantize_weight(m, &b->up.weight, 0, type) &&
             quantize_weight(m, &b->down.weight, 0, type);
    }
    return ok;
}

static void gpt2_free(struct gpt2 *m)
{
    for (int i = 0; i < m->quantized_count; i++)
        kl_release(m->quantized[i]);
    free(m->quantized);
    kl_params_free(m->params);
    free(m->block);
}

/* ---- llm.c's checkpoints: a header of 256 i32, then these tensors; of a layer's all layers, one after the other.
 * Weights are [out, in]; ours are [in, out], which makes a step faster. ---- */

enum { HEADER = 256, CHECKPOINT = 20240326, TOKENS = 20240520, F32_VERSION = 3, BF16_VERSION = 5, MAX_SIZE = 1 << 24 };

static const struct { const char *name; bool in_layers, transposed; double std; } order[] = {
    {"wte.weight", false, false, 0}, {"wpe.weight", false, false, 0},
    {"norm1.weight", true, false, 0}, {"norm1.bias", true, false, 0},
    {"attention.qkv.weight", true, true, 0.02}, {"attention.qkv.bias", true, false, 0},
    {"attention.out.weight", true, true, -0.02}, {"attention.out.bias", true, false, 0},
    {"norm2.weight", true, false, 0}, {"norm2.bias", true, false, 0},
    {"mlp.up.weight", true, true, 0.02}, {"mlp.up.bias", true, false, 0},
    {"mlp.down.weight", true, true, -0.02}, {"mlp.down.bias", true, false, 0},
    {"norm.weight", false, false, 0}, {"norm.bias", false, false, 0}};
enum { ORDER = sizeof order / sizeof *order };

static bool fail(const char *what, const char *why)
{
    fprintf(stderr, "gpt2: %s: %s\n", what, why);
    return false;
}

/* Tensor k of a layer; its shape in the file. */
static kl_tensor checkpoint_tensor(const struct gpt2 *m, int k, int64_t layer, int *rank, int64_t dims[2])
{
    char name[64];
    if (order[k].in_layers)
        snprintf(name, sizeof name, "h.%" PRId64 ".%s", layer, order[k].name);
    else
        snprintf(name, sizeof name, "%s", order[k].name);
    kl_tensor t = kl_params_find(m->params, name);
    int64_t own[2] = {0, 0};
    *rank = kl_shape(t, own);
    dims[0] = k == 0 ? m->padded : own[order[k].transposed];
    dims[1] = own[!order[k].transposed];
    return t;
}

static bool checkpoint_header(struct gpt2 *m, FILE *f, const char *path, kl_dtype *dtype)
{
    int32_t h[HEADER];
    if (fread(h, sizeof h, 1, f) != 1 || h[0] != CHECKPOINT || (h[1] != F32_VERSION && h[1] != BF16_VERSION))
        return fail(path, "not a checkpoint of llm.c, version 3 or 5");
    for (int i = 2; i <= 7; i++)
        if (h[i] < 1 || h[i] > MAX_SIZE)
            return fail(path, "a size in the header is not from 1 to 2^24");
    m->length = h[2], m->vocabulary = h[3], m->layers = h[4], m->heads = h[5], m->width = h[6], m->padded = h[7];
    *dtype = h[1] == F32_VERSION ? KL_F32 : KL_BF16;
    return m->padded >= m->vocabulary || fail(path, "fewer rows than words");
}

/* Gives every parameter its values from the file. */
static bool checkpoint_read(const struct gpt2 *m, FILE *f, const char *path, kl_dtype dtype)
{
    for (int k = 0; k < ORDER; k++)
        for (int64_t layer = 0; layer < (order[k].in_layers ? m->layers : 1); layer++) {
            int64_t dims[2];
            int rank;
            kl_tensor to = checkpoint_tensor(m, k, layer, &rank, dims);
            size_t n = (size_t)(dims[0] * (rank == 2 ? dims[1] : 1));
            void *data = malloc(n * kl_dtype_size(dtype));
            if (!data || fread(data, kl_dtype_size(dtype), n, f) != n) {
                free(data);
                return fail(path, data ? "it is cut off" : "no memory");
            }
            kl_trace_begin("load");
            kl_tensor x = kl_cast(kl_input(m->device, dtype, rank, dims, data), KL_F32);
            kl_assign(to, k == 0 ? kl_narrow(x, 0, 0, m->vocabulary) : order[k].transposed ? kl_transpose(x, 0, 1) : x);
            kl_status s = kl_trace_end();
            free(data);
            if (s != KL_OK)
                return fail(path, kl_last_error());
        }
    return fgetc(f) == EOF || fail(path, "it has more than its header says");
}

static bool checkpoint_write(const struct gpt2 *m, const char *path)
{
    int32_t h[HEADER] = {CHECKPOINT, F32_VERSION, (int32_t)m->length, (int32_t)m->vocabulary, (int32_t)m->layers,
                         (int32_t)m->heads, (int32_t)m->width, (int32_t)m->padded};
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(h, sizeof h, 1, f) == 1;
    for (int k = 0; k < ORDER; k++)
        for (int64_t layer = 0; ok && layer < (order[k].in_layers ? m->layers : 1); layer++) {
            int64_t dims[2];
            int rank;
            kl_tensor t = checkpoint_tensor(m, k, layer, &rank, dims);
            size_t n = (size_t)(dims[0] * (rank == 2 ? dims[1] : 1));
            kl_tensor x = order[k].transposed ? kl_transpose(t, 0, 1) : kl_mul_scalar(t, 1);
            float *data = calloc(n, sizeof *data); /* rows behind the vocabulary are zeros */
            ok = data && kl_read(x, data, (size_t)kl_numel(x) * sizeof *data) == KL_OK &&
                 fwrite(data, sizeof *data, n, f) == n;
            free(data);
            kl_release(x);
        }
    ok = f && (fclose(f) == 0) && ok;
    return ok || fail(path, *kl_last_error() ? kl_last_error() : strerror(errno));
}

/* ---- options ---- */

struct options {
    const char *checkpoint, *random, *tokens, *tokenizer, *save, *device, *quantize, *autocast;
    double batch, length, steps, rate, decay, sample, temperature, seed;
    bool recompute;
};

static bool parse_options(struct options *o, int argc, char **argv)
{
    const struct { const char *name, **text; double *number; } known[] = {
        {"--random", &o->random, NULL}, {"--tokens", &o->tokens, NULL}, {"--tokenizer", &o->tokenizer, NULL},
        {"--save", &o->save, NULL}, {"--quantize", &o->quantize, NULL}, {"--device", &o->device, NULL},
        {"--autocast", &o->autocast, NULL},
        {"--batch", NULL, &o->batch}, {"--length", NULL, &o->length}, {"--steps", NULL, &o->steps},
        {"--rate", NULL, &o->rate},
        {"--decay", NULL, &o->decay}, {"--sample", NULL, &o->sample}, {"--temperature", NULL, &o->temperature},
        {"--seed", NULL, &o->seed}};
    bool good = true;
    for (int i = 1; i < argc && good; i++) {
        size_t k = 0, n = sizeof known / sizeof *known;
        while (k < n && strcmp(argv[i], known[k].name) != 0)
            k++;
        if (k < n && known[k].text && i + 1 < argc) {
            *known[k].text = argv[++i];
        } else if (k < n && known[k].number && i + 1 < argc) {
            char *end;
            *known[k].number = strtod(argv[++i], &end);
            good = !*end && *known[k].number >= 0 && *known[k].number < MAX_SIZE;
        } else if (!strcmp(argv[i], "--recompute")) {
            o->recompute = true;
        } else if (argv[i][0] != '-' && !o->checkpoint) {
            o->checkpoint = argv[i];
        } else {
            good = false;
        }
    }
    good = good && (!o->quantize || !strcmp(o->quantize, "int8") || !strcmp(o->quantize, "q4_0")) &&
           (!o->autocast || !strcmp(o->autocast, "bf16"));
    if (good && !o->checkpoint != !o->random && o->batch >= 1 && o->length >= 1)
        return true;
    fprintf(stderr,
            "usage: gpt2 CHECKPOINT | --random LAYERS,HEADS,WIDTH,LENGTH,VOCABULARY  [OPTIONS]\n"
            "  --tokens FILE      what it is trained on (tokens of llm.c); without: made here, easy to learn\n"
            "  --batch N          sequences a step (%g)\n"
            "  --length N         tokens of a sequence (%g)\n"
            "  --steps N          (%g)\n"
            "  --rate X           learning rate of AdamW (%g)\n"
            "  --decay X          its weight decay (%g)\n"
            "  --autocast bf16    train with products in bf16 and the rest in f32\n"
            "  --sample N         tokens to write after training (%g)\n"
            "  --temperature X    of the sampling; 0: always the likeliest token (%g)\n"
            "  --quantize TYPE    sample with weights of type int8 or q4_0\n"
            "  --recompute        sample without a cache: slow, the same tokens\n"
            "  --tokenizer FILE   gpt2_tokenizer.bin or vocab.json, to show samples as text\n"
            "  --save FILE        write a checkpoint at the end\n"
            "  --device NAME, --seed N\n",
            o->batch, o->length, o->steps, o->rate, o->decay, o->sample, o->temperature);
    return false;
}

static bool gpt2_open(struct gpt2 *m, const struct options *o)
{
    m->device = o->device ? kl_device_named(o->device) : kl_device_default();
    if (!m->device.id)
        return fail("no device", kl_last_error());
    if (o->random) {
        kl_init init = {.kind = KL_INIT_NORMAL};
        if (sscanf(o->random, "%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64, &m->layers, &m->heads,
                   &m->width, &m->length, &m->vocabulary) != 5 || m->layers < 1 || m->layers > MAX_SIZE)
            return fail("--random", "five numbers with commas between them");
        m->padded = (m->vocabulary + 127) / 128 * 128;
        bool ok = gpt2_init(m, (uint64_t)o->seed);
        for (int k = 0; k < ORDER && ok; k++) { /* what adds to the residual stream is smaller by its depth */
            char pattern[64];
            snprintf(pattern, sizeof pattern, "h.*.%s", order[k].name);
            init.std = order[k].std < 0 ? -order[k].std / sqrt(2 * (double)m->layers) : order[k].std;
            ok = init.std == 0 || kl_params_reset(m->params, pattern, &init) == KL_OK;
        }
        return ok || fail("no model", kl_last_error());
    }
    kl_dtype dtype = KL_F32;
    FILE *f = fopen(o->checkpoint, "rb");
    if (!f)
        return fail(o->checkpoint, strerror(errno));
    bool ok = checkpoint_header(m, f, o->checkpoint, &dtype) &&
              (gpt2_init(m, 1) || fail(o->checkpoint, kl_last_error())) && checkpoint_read(m, f, o->checkpoint, dtype);
    fclose(f);
    return ok;
}

/* ---- training ---- */

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* The tokens of a file, or ones that count up by one to three. */
static bool tokens_open(kl_tokens *tokens, const struct gpt2 *m, const char *path)
{
    static uint16_t made[1 << 16];
    if (!path) {
        uint32_t random = 1;
        for (size_t i = 1; i < sizeof made / sizeof *made; i++) {
            random = random * 1664525 + 1013904223;
            made[i] = (uint16_t)((made[i - 1] + 1 + (random >> 16) % 3) % (uint64_t)m->vocabulary);
        }
        *tokens = (kl_tokens){.count = sizeof made / sizeof *made, .width = 2, .data = made};
        return true;
    }
    int32_t h[3] = {0};
    FILE *f = fopen(path, "rb");
    bool ok = f && fread(h, sizeof h, 1, f) == 1 && h[0] == TOKENS && h[1] == 1;
    if (f)
        fclose(f);
    if (!ok)
        return fail(path, f ? "not a file of llm.c's tokens, version 1" : strerror(errno));
    if (kl_tokens_open(path, 2, HEADER * (int64_t)sizeof(int32_t), tokens) != KL_OK)
        return fail(path, kl_last_error());
    if (tokens->count != h[2])
        return fail(path, "it has not as many tokens as its header says");
    for (int64_t i = 0; i < tokens->count; i++)
        if (((const uint16_t *)tokens->data)[i] >= m->vocabulary)
            return fail(path, "a token that is not in the vocabulary");
    return true;
}

/* One step on `batch`, i32 [B, T + 1]: recorded, compiled if it is new, run.  false: see kl_last_error. */
static bool train_step(const struct gpt2 *m, kl_optimizer *adam, const struct options *o, const void *batch,
                       double *loss)
{
    int64_t b = (int64_t)o->batch, t = (int64_t)o->length;
    kl_trace_begin("train_step");
    kl_autocast_begin(o->autocast ? KL_BF16 : KL_F32);
    kl_tensor text = kl_input(m->device, KL_I32, 2, (int64_t[]){b, t + 1}, batch);
    kl_tensor next = kl_reshape(kl_narrow(text, 1, 1, t), 1, (int64_t[]){b * t});
    kl_tensor hidden = gpt2_hidden(m, kl_narrow(text, 1, 0, t), t, NULL);
    kl_tensor mean = kl_keep(kl_cross_entropy(gpt2_logits(m, hidden, b * t), next));
    kl_autocast_end();
    kl_optimizer_step(adam, mean, o->rate);
    if (kl_trace_end() != KL_OK)
        return false;
    *loss = (double)kl_item_f32(mean);
    return kl_release(mean) == KL_OK;
}

static bool train(const struct gpt2 *m, const struct options *o)
{
    kl_tokens tokens = {0};
    kl_tokens_windows windows = {.tokens = &tokens, .length = (int64_t)o->length};
    kl_adam_options options = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = o->decay};
    int64_t n;
    int steps = (int)o->steps;
    const kl_tensor *list = kl_params_trained(m->params, &n);
    if (steps && windows.length > m->length)
        return fail("--length", "longer than the model's longest");
    if (steps && !tokens_open(&tokens, m, o->tokens))
        return false;
    kl_loader_options load = {.count = steps ? kl_tokens_windows_count(&windows) : 1, .batch = (int64_t)o->batch,
                              .bytes = (size_t)(o->batch * (o->length + 1)) * sizeof(int32_t),
                              .fill = kl_tokens_windows_fill, .ctx = &windows, .in_order = true, .drop_last = true};
    kl_loader *loader = steps ? kl_loader_new(&load) : NULL;
    kl_optimizer *adam = steps ? kl_adam(n, list, &options) : NULL;
    bool ok = !steps || (loader && adam);
    for (int i = 1; i <= steps && ok; i++) {
        kl_batch batch;
        double loss = 0, start = now_ms();
        ok = kl_loader_next(loader, &batch) == KL_OK && train_step(m, adam, o, batch.data, &loss);
        if (ok)
            printf("step %d/%d: loss %.6f, %.1f ms\n", i, steps, loss, now_ms() - start);
        fflush(stdout);
    }
    if (!ok)
        fail("training", kl_last_error());
    kl_optimizer_free(adam);
    kl_loader_free(loader);
    kl_tokens_close(&tokens);
    return ok;
}

/* ---- sampling ---- */

/* Records the step that gives the token behind one more, which the cache then has; cache NULL: behind number `at` of
 * all of ids [1, length].  false: see kl_last_error. */
static kl_step *sample_step(const struct gpt2 *m, const struct options *o, int64_t length, kl_nn_cache *cache)
{
    int32_t zero = 0, *zeros = calloc((size_t)length, sizeof *zeros);
    kl_trace_begin("sample");
    kl_tensor ids = kl_input(m->device, KL_I32, 2, (int64_t[]){1, cache ? 1 : length}, zeros);
    kl_tensor at = cache ? kl_reshape(cache->used, 1, (int64_t[]){1})
                         : kl_input(m->device, KL_I32, 1, (int64_t[]){1}, &zero);
    kl_tensor hidden = gpt2_hidden(m, ids, cache ? 1 : length, cache);
    if (!cache)
        hidden = kl_embedding(kl_reshape(hidden, 2, (int64_t[]){length, m->width}), at);
    kl_tensor logits = gpt2_logits(m, hidden, 1), next;
    if (o->temperature > 0) {
        kl_tensor seed = kl_random_fold_in(kl_scalar(m->device, KL_U64, o->seed), kl_sum_all(at));
        next = kl_categorical(kl_mul_scalar(logits, 1 / o->temperature), 1, seed);
    } else {
        next = kl_argmax(logits, 1);
    }
    kl_keep(kl_reshape(next, 2, (int64_t[]){1, 1}));
    if (cache)
        kl_nn_cache_advance(cache, 1);
    kl_step *step = kl_trace_end_step(cache ? 1 : 2, (kl_tensor[]){ids, at});
    free(zeros);
    return step;
}

/* Writes tokens from the end-of-text one on, which is GPT-2's last. */
static bool sample(const struct gpt2 *m, const struct options *o)
{
    int64_t n = (int64_t)o->sample, end = m->vocabulary - 1, bytes;
    if (n > m->length)
        return fail("--sample", "more than the model's longest sequence");
    kl_tokenizer *names = o->tokenizer ? kl_tokenizer_open(o->tokenizer, NULL) : NULL;
    kl_nn_cache cache = {0};
    int32_t *ids = calloc((size_t)n + 1, sizeof *ids);
    bool ok = ids && (names || !o->tokenizer) &&
              (o->recompute || kl_nn_cache_init(&cache, m->device, KL_F32, (int)m->layers, 1, m->heads, n,
                                                m->width / m->heads) == KL_OK);
    kl_step *step = ok ? sample_step(m, o, n, o->recompute ? NULL : &cache) : NULL;
    double start = 0;
    if (step)
        ids[0] = (int32_t)end;
    for (int32_t i = 0; i < n && step && ok; i++) {
        kl_tensor in[2] = {kl_none, kl_none}, next;
        in[0] = kl_input(m->device, KL_I32, 2, (int64_t[]){1, o->recompute ? n : 1}, o->recompute ? ids : ids + i);
        if (o->recompute)
            in[1] = kl_input(m->device, KL_I32, 1, (int64_t[]){1}, &i);
        ok = kl_step_run(step, o->recompute ? 2 : 1, in, 0, NULL, 1, &next) == KL_OK;
        if (ok) {
            ids[i + 1] = (int32_t)kl_item_i64(next);
            const char *text = names ? kl_tokenizer_text(names, ids[i + 1], &bytes) : NULL;
            if (text)
                printf("%.*s", (int)bytes, text);
            else
                printf("%s%" PRId32, i ? " " : "tokens: ", ids[i + 1]);
            fflush(stdout);
            kl_release(next);
        }
        kl_release(in[0]);
        if (o->recompute)
            kl_release(in[1]);
        start = i ? start : now_ms(); /* the first may be slower */
    }
    if (!step || !ok)
        fail("sampling", kl_last_error());
    else if (n > 1)
        printf("\nsampling: %.2f ms a token\n", (now_ms() - start) / (double)(n - 1));
    ok = ok && step;
    kl_step_free(step);
    kl_nn_cache_deinit(&cache);
    kl_tokenizer_close(names);
    free(ids);
    return ok;
}

int main(int argc, char **argv)
{
    struct options o = {.batch = 4, .length = 64, .steps = 40, .rate = 1e-4, .temperature = 1, .seed = 1337};
    struct gpt2 m = {0};
    if (!parse_options(&o, argc, argv))
        return 2;
    bool ok = gpt2_open(&m, &o);
    if (ok)
        printf("GPT-2 with %" PRId64 " parameters: %" PRId64 " layers of width %" PRId64 " and %" PRId64
               " heads, %" PRId64 " tokens of %" PRId64 "\n", kl_params_elements(m.params, "*"), m.layers, m.width,
               m.heads, m.length, m.vocabulary);
    ok = ok && train(&m, &o) && (!o.save || checkpoint_write(&m, o.save));
    if (ok && o.quantize)
        ok = gpt2_quantize(&m, o.quantize[0] == 'i' ? KL_Q_I8 : KL_Q_I4) || fail("--quantize", kl_last_error());
    ok = ok && (o.sample < 1 || sample(&m, &o));
    gpt2_free(&m);
    return ok ? 0 : 1;
}
