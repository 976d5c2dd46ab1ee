/* examples/llm on tiny random models of each architecture: its logits against plain C in double, in one piece and
 * through a cache in pieces of several lengths; weights of several types; adapters of low rank. */
#define _POSIX_C_SOURCE 200809L
#include "examples/llm/llm.h"
#include "llm_gguf.h"
#include <sys/stat.h>
#include <unistd.h>

/* ---- a folder with config.json and safetensors ---- */

static const char *const safetensors_names[PER_LAYER] = {
    "input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
    "self_attn.v_proj.weight", "self_attn.o_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
    "mlp.down_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
    "self_attn.q_norm.weight", "self_attn.k_norm.weight", "post_attention_layernorm.weight",
    "post_feedforward_layernorm.weight"};

static void safetensors_name(char name[96], const struct llm_reference *r, int i)
{
    static const char *const of_model[] = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"};
    int part = i % PER_LAYER;
    if (i >= EMBEDDING)
        snprintf(name, 96, "%s", of_model[i - EMBEDDING]);
    else
        snprintf(name, 96, "model.layers.%d.%s", i / PER_LAYER,
                 r->kind->gemma && part == NORM2 ? "pre_feedforward_layernorm.weight" : safetensors_names[part]);
}

static void write_config(const struct llm_kind *k)
{
    FILE *f = fopen(path_of("config.json"), "w");
    if (!CHECK(f))
        return;
    fprintf(f, "{\n  \"model_type\": \"%s\", \"num_hidden_layers\": %d,\n", k->name, LAYERS);
    fprintf(f, "  \"hidden_size\": %d, \"num_attention_heads\": %d,\n", WIDTH, HEADS);
    fprintf(f, "  \"num_key_value_heads\": %d, \"head_dim\": %d,\n", KV_HEADS, k->head);
    fprintf(f, "  \"intermediate_size\": %d, \"rms_norm_eps\": 1e-05, \"rope_theta\": %g,\n", HIDDEN, k->rotary_base);
    if (k->window)
        fprintf(f, "  \"sliding_window\": %d,\n", k->window);
    if (k->score_cap > 0)
        fprintf(f, "  \"attn_logit_softcapping\": %g, \"final_logit_softcapping\": %g,\n", k->score_cap, k->logit_cap);
    if (k->rotary_factor > 1)
        fprintf(f, "  \"rope_scaling\": {\"%s\": \"%s\", \"factor\": %g, "
                   "\"original_max_position_embeddings\": %d},\n", k->scaling ? "type" : "rope_type",
                k->scaling ? k->scaling : "linear", k->rotary_factor, ORIGINAL);
    fprintf(f, "  \"max_position_embeddings\": 64\n}\n");
    fclose(f);
}

/* The model in two files, as large ones are. */
static void write_folder(const struct llm_reference *r)
{
    static char names[ARRAYS][96];
    static float shifted[ARRAYS][WIDTH];
    static int64_t dims[ARRAYS][2];
    kl_file_item items[ARRAYS];
    int n = 0;
    for (int i = 0; i < FREQUENCIES; i++) {
        if (!r->columns[i])
            continue;
        bool norm = !r->rows[i] && !(i < EMBEDDING && i % PER_LAYER >= Q_BIAS && i % PER_LAYER <= V_BIAS);
        for (int k = 0; norm && r->kind->gemma && k < r->columns[i]; k++) /* Gemma's files have the weight minus 1 */
            shifted[n][k] = r->data[i][k] - 1;
        safetensors_name(names[n], r, i);
        dims[n][0] = r->rows[i] ? r->rows[i] : r->columns[i], dims[n][1] = r->columns[i];
        items[n] = (kl_file_item){.name = names[n], .dtype = KL_F32, .rank = r->rows[i] ? 2 : 1, .dims = dims[n],
                                  .data = norm && r->kind->gemma ? shifted[n] : r->data[i]};
        n++;
    }
    write_config(r->kind);
    for (int i = 0; i < 2; i++) {
        const char *path = path_of(i ? "model-00002-of-00002.safetensors" : "model-00001-of-00002.safetensors");
        int64_t first = i ? n / 2 : 0, count = i ? n - n / 2 : n / 2;
        OK(kl_file_write(path, KL_FILE_SAFETENSORS, count, items + first, 0, NULL));
    }
}

/* The weights become those that the file has: rounded, or the floats that its blocks stand for. */
static void read_back(struct llm_reference *r)
{
    char name[96];
    kl_file *f = kl_file_open(path_of("model.gguf"));
    if (!CHECK(f))
        return;
    for (int i = 0; i < ARRAYS; i++)
        if (r->columns[i] && r->rows[i]) {
            kl_tensor t = kl_file_tensor(f, kl_device_default(), gguf_name(name, i));
            kl_tensor x = kl_cast(kl_dense(t), KL_F32);
            OK(kl_read(x, r->data[i], (size_t)(r->rows[i] * r->columns[i]) * sizeof(float)));
            kl_release(t), kl_release(x);
        }
    kl_file_close(f);
}

/* ---- comparing ---- */

static const int32_t tokens[TOKENS] = {3, 79, 14, 15, 0, 26, 53, 58, 9, 3, 23, 44};

/* Runs tokens from number `at` on, which the cache has before them; their logits go to got. */
static bool run_piece(const struct llm *m, kl_nn_cache *cache, int32_t at, int n, float (*got)[WORDS])
{
    kl_trace_begin("piece");
    kl_tensor ids = kl_input(m->device, KL_I32, DIMS(1, n), tokens + at);
    kl_tensor logits = kl_keep(llm_logits(m, llm_hidden(m, ids, cache)));
    bool ok = OK(kl_trace_end()) && OK(kl_read(logits, got[at], (size_t)n * sizeof *got));
    kl_release(logits);
    return ok;
}

static double distance(float (*got)[WORDS], double (*want)[WORDS])
{
    double worst = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int w = 0; w < WORDS; w++) {
            double d = fabs((double)got[t][w] - want[t][w]);
            if (isnan(d))
                return d;
            worst = fmax(worst, d);
        }
    return worst;
}

/* Activations of 8 bits: near to those of floats, and a row's logits do not depend on the others of its piece. */
static void compare_bytes(const char *path, double (*want)[WORDS])
{
    static float whole[TOKENS][WORDS], got[TOKENS][WORDS];
    struct llm open, *m = &open;
    if (!CHECK(llm_open(m, kl_device_default(), path, true)))
        return;
    run_piece(m, NULL, 0, TOKENS, whole);
    double off = distance(whole, want);
    CHECK(off > 1e-4 && off < 0.3);
    for (int piece = 1; piece <= 5; piece += 4) {
        kl_nn_cache cache;
        if (!CHECK(llm_cache_init(&cache, m, 1, 32, NULL)))
            continue;
        for (int at = 0; at < TOKENS; at += piece)
            run_piece(m, &cache, at, piece < TOKENS - at ? piece : TOKENS - at, got);
        CHECK(!memcmp(got, whole, sizeof got));
        kl_nn_cache_deinit(&cache);
    }
    llm_close(m);
}

enum { ROWS = 3 };

/* One step: row i of the batch, number which[i] of the cache, takes counts[i] of n tokens; logits go to got[row]. */
static bool run_rows(const struct llm *m, kl_nn_cache *cache, int nrows, const int32_t *which, const int32_t *counts,
                     int n, float (*got)[TOKENS][WORDS])
{
    static float logits[ROWS * TOKENS][WORDS];
    int32_t ids[ROWS * TOKENS];
    int64_t rows[ROWS], more[ROWS];
    for (int i = 0; i < nrows; i++) {
        rows[i] = which[i], more[i] = counts[i];
        for (int k = 0; k < n; k++)
            ids[i * n + k] = k < counts[i] ? tokens[cache->at[which[i]] + k] : 77; /* tokens that do not count */
    }
    kl_trace_begin("rows");
    kl_tensor in = kl_input(m->device, KL_I32, DIMS(nrows, n), ids);
    kl_tensor which_in = nrows < ROWS ? kl_input(m->device, KL_I32, DIMS(nrows), which) : kl_none;
    OK(kl_nn_cache_select(cache, which_in, kl_input(m->device, KL_I32, DIMS(nrows), counts)));
    kl_tensor y = kl_keep(llm_logits(m, llm_hidden(m, in, cache)));
    bool ok = OK(kl_trace_end()) && OK(kl_read(y, logits, (size_t)(nrows * n) * sizeof *logits));
    for (int i = 0; i < nrows; i++)
        memcpy(got[which[i]][cache->at[which[i]]], logits[i * n], (size_t)counts[i] * sizeof *logits);
    kl_release(y);
    return ok && OK(kl_nn_cache_count(cache, nrows, rows, more));
}

/* Three rows that go on by different numbers of tokens in steps of n, with one row by itself in between, and one that
 * is shortened: the logits of each are those of the whole sequence. */
static void compare_rows(const struct llm *m, double (*want)[WORDS], const char *type, int n, double near)
{
    static float got[ROWS][TOKENS][WORDS];
    static const int32_t all[ROWS] = {0, 1, 2};
    kl_nn_cache cache;
    if (!CHECK(llm_cache_init(&cache, m, ROWS, TOKENS, type)))
        return;
    bool shortened = false, ok = true;
    for (int step = 0; step < 60 && ok; step++) {
        int32_t counts[ROWS];
        for (int i = 0; i < ROWS; i++) {
            int left = (int)(TOKENS - cache.at[i]), k = (step * 7 + i * 3) % (n + 1);
            counts[i] = k < left ? k : left;
        }
        int32_t alone = step % ROWS;
        ok = step % 4 == 3 ? run_rows(m, &cache, 1, &alone, &counts[alone], n, got)
                           : run_rows(m, &cache, ROWS, all, counts, n, got);
        if (!shortened && cache.at[1] > 6) {
            OK(kl_nn_cache_truncate(&cache, 1, 3));
            memset(got[1][3], 0, sizeof got[1] - 3 * sizeof *got[1]);
            shortened = true;
        }
        if (cache.at[0] + cache.at[1] + cache.at[2] == ROWS * TOKENS && shortened)
            break;
    }
    for (int i = 0; i < ROWS; i++)
        if (!CHECK(cache.at[i] == TOKENS && distance(got[i], want) < near))
            printf("  row %d, type %s, pieces of %d: off by %g\n", i, type ? type : "f32", n, distance(got[i], want));
    kl_nn_cache_deinit(&cache);
}

static void compare(const struct llm_reference *r, const char *path)
{
    static double want[TOKENS][WORDS];
    static float got[TOKENS][WORDS], whole[TOKENS][WORDS];
    struct llm m;
    reference_logits(want, tokens, r);
    if (!CHECK(llm_open(&m, kl_device_default(), path, false)))
        return;
    run_piece(&m, NULL, 0, TOKENS, whole);
    CHECK(distance(whole, want) < 1e-4);
    for (int piece = 1; piece <= TOKENS; piece += piece == 1 ? 4 : 7) { /* 1, 5, 12 */
        kl_nn_cache cache;
        if (!CHECK(llm_cache_init(&cache, &m, 1, 32, NULL)))
            continue;
        for (int at = 0; at < TOKENS; at += piece)
            run_piece(&m, &cache, at, piece < TOKENS - at ? piece : TOKENS - at, got);
        CHECK(distance(got, want) < 1e-4);
        kl_nn_cache_deinit(&cache);
    }
    for (int n = 1; n <= TOKENS; n += n == 1 ? 4 : 7)
        compare_rows(&m, want, NULL, n, 1e-4);
    compare_rows(&m, want, "f16", 5, 0.03);
    if (r->kind->head % 32 == 0)
        compare_rows(&m, want, "q8_0", 5, 0.3);
    if (!strcmp(kl_layer_name(m.layer[0].q.weight), "quantized"))
        compare_bytes(path, want);
    llm_close(&m);
}

/* The file of a kind with matrices of a type. */
static void compare_gguf(const struct llm_kind *kind, const char *architecture, const char *type)
{
    struct llm_reference r;
    struct llm_kind k = *kind;
    k.interleaved = k.frequencies = !strcmp(architecture, "llama");
    k.window = k.interleaved ? 0 : k.window;
    reference_init(&r, &k, 99);
    if (write_gguf(&r, architecture, type)) {
        read_back(&r);
        compare(&r, path_of("model.gguf"));
    }
    reference_free(&r);
}

/* One step of Adam on the adapters of a quantized model: the loss falls, as often as it is asked, and the model's own
 * weights are not touched. */
static void adapt(void)
{
    struct llm_reference r;
    struct llm m;
    double first = 0, last = 0;
    static float before[TOKENS][WORDS], after[TOKENS][WORDS];
    reference_init(&r, &kinds[0], 5);
    if (write_gguf(&r, "llama", "Q8_0") && CHECK(llm_open(&m, kl_device_default(), path_of("model.gguf"), false))) {
        run_piece(&m, NULL, 0, TOKENS, before);
        kl_params *params = llm_adapt(&m, 4, 3);
        int64_t n = 0;
        const kl_tensor *list = kl_params_trained(params, &n);
        kl_optimizer *adam = kl_adam(n, list, NULL);
        CHECK(adam && n == LAYERS * 14);
        run_piece(&m, NULL, 0, TOKENS, after);
        CHECK(!memcmp(before, after, sizeof before)); /* adding zeros changes nothing */
        for (int step = 0; step < 30; step++) {
            kl_trace_begin("adapt");
            kl_tensor ids = kl_input(m.device, KL_I32, DIMS(1, TOKENS), tokens);
            kl_tensor next = kl_reshape(kl_narrow(ids, 1, 1, TOKENS - 1), 1, (int64_t[]){TOKENS - 1});
            kl_tensor logits = llm_logits(&m, llm_hidden(&m, kl_narrow(ids, 1, 0, TOKENS - 1), NULL));
            kl_tensor loss = kl_keep(kl_cross_entropy(kl_squeeze(logits, 0), next));
            OK(kl_optimizer_step(adam, loss, 1e-2));
            OK(kl_trace_end());
            last = (double)kl_item_f32(loss);
            first = step ? first : last;
            kl_release(loss);
        }
        CHECK(last < first / 10);
        kl_optimizer_free(adam);
        llm_close(&m);
        kl_params_free(params);
        if (CHECK(llm_open(&m, kl_device_default(), path_of("model.gguf"), false))) {
            run_piece(&m, NULL, 0, TOKENS, after);
            CHECK(!memcmp(before, after, sizeof before));
            llm_close(&m);
        }
    }
    reference_free(&r);
}

/* Opening fails and says `words`. */
static void refused(const char *path, const char *words)
{
    char said[512] = "";
    struct llm m;
    fflush(stderr);
    int old = dup(STDERR_FILENO);
    const char *file = path_of("stderr");
    FILE *f = freopen(file, "w", stderr);
    CHECK(f && !llm_open(&m, kl_device_default(), path, false) && !m.layer && !m.files);
    fflush(stderr);
    dup2(old, STDERR_FILENO);
    close(old);
    if ((f = fopen(file, "r"))) {
        said[fread(said, 1, sizeof said - 1, f)] = 0;
        fclose(f);
    }
    unlink(file);
    check_at(strstr(said, words), __LINE__, words);
}

static void refusals(void)
{
    struct llm_reference r;
    refused(path_of("none.gguf"), "none.gguf");
    reference_init(&r, &kinds[0], 1);
    write_folder(&r);
    refused(path_of("model-00001-of-00002.safetensors"), "not a GGUF file, nor a folder");
    write_gguf(&r, "gpt9", NULL);
    refused(path_of("model.gguf"), "gpt9: not one of llama,");
    struct llm_kind longer = kinds[0];
    longer.scaling = "longrope", r.kind = &longer;
    write_gguf(&r, "llama", NULL);
    refused(path_of("model.gguf"), "\"longrope\" is none of linear, llama3, yarn");
    r.kind = &kinds[0];
    r.columns[2 * PER_LAYER + V] = 0;
    write_gguf(&r, "llama", NULL);
    refused(path_of("model.gguf"), "blk.2.attn_v.weight: the model has no tensor of this name");
    write_folder(&r);
    refused(folder, "model.layers.2.self_attn.v_proj.weight: the model has no tensor of this name");
    reference_free(&r);
    reference_init(&r, &kinds[0], 1);
    r.rows[PER_LAYER + UP]--;
    write_gguf(&r, "llama", NULL);
    refused(path_of("model.gguf"), "blk.1.ffn_up.weight: its shape is [95,256], not [96,256]");
    reference_free(&r);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--write")) { /* a model for tests of examples: in this folder */
        struct llm_reference r;
        snprintf(folder, sizeof folder, "%s", argv[2]);
        reference_init(&r, &kinds[0], 12);
        for (int i = BYTES; i < WORDS; i++) /* as likely as another token before it: greedy answers never end */
            memcpy(r.data[HEAD_WEIGHT] + i * WIDTH, r.data[HEAD_WEIGHT] + 'A' * WIDTH, WIDTH * sizeof(float));
        bool ok = write_gguf(&r, "llama", "Q8_0");
        reference_free(&r);
        return !ok;
    }
    static const char *const gguf[KINDS] = {"llama", NULL, "qwen2", "qwen3", "gemma2", "gemma3", NULL, "qwen3"};
    static const char *const types[] = {NULL, "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "Q4_K", "Q6_K"};
    struct llm_reference r;
    snprintf(folder, sizeof folder, "/tmp/kiln-llm-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    for (int i = 0; i < KINDS; i++) {
        device_now = kinds[i].name;
        reference_init(&r, &kinds[i], 7 + (uint64_t)i);
        write_folder(&r);
        compare(&r, folder);
        reference_free(&r);
        for (size_t t = 0; gguf[i] && t < (i ? 1 : sizeof types / sizeof *types); t++)
            compare_gguf(&kinds[i], gguf[i], types[t]);
    }
    device_now = "adapters";
    adapt();
    device_now = "refusals";
    refusals();
    const char *const written[] = {"model.gguf", "config.json", "model-00001-of-00002.safetensors",
                                   "model-00002-of-00002.safetensors"};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        unlink(path_of(written[i]));
    rmdir(folder);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
