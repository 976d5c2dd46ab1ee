/* examples/llm on tiny random models of each architecture: its logits against plain C in double, in one piece and
 * through a cache in pieces of several lengths; and files that lack something. */
#define _POSIX_C_SOURCE 200809L
#include "examples/llm/llm.h"
#include "llm_reference.h"
#include "tests/support/api_check.h"
#include <sys/stat.h>
#include <unistd.h>

static const struct llm_kind kinds[] = {
    {.name = "llama", .head = 16, .rotary_base = 10000, .rotary_factor = 1},
    {.name = "mistral", .head = 16, .window = 5, .rotary_base = 10000, .rotary_factor = 1},
    {.name = "qwen2", .head = 16, .bias = true, .tied = true, .rotary_base = 1e6, .rotary_factor = 1},
    {.name = "qwen3", .head = 24, .head_norms = true, .rotary_base = 1e6, .rotary_factor = 1},
    {.name = "gemma2", .head = 24, .gemma = true, .tied = true, .window = 5, .local_of = 2, .score_cap = 5,
     .logit_cap = 30, .rotary_base = 10000, .rotary_factor = 1},
    {.name = "gemma3_text", .head = 24, .head_norms = true, .gemma = true, .tied = true, .window = 5, .local_of = 6,
     .rotary_base = 1e6, .local_base = 10000, .rotary_factor = 8}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static char folder[64];

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

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
        fprintf(f, "  \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": %g},\n", k->rotary_factor);
    fprintf(f, "  \"max_position_embeddings\": 64\n}\n");
    fclose(f);
}

/* The model in two files, as large ones are. */
static void write_folder(const struct llm_reference *r)
{
    static char names[ARRAYS][96];
    static float shifted[ARRAYS][2 * MAX_Q];
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

/* ---- comparing ---- */

static const int32_t tokens[TOKENS] = {3, 79, 14, 15, 0, 26, 53, 58, 9, 3, 23, 44};

/* Runs tokens from number `at` on; their logits go to got. */
static bool run_piece(const struct llm *m, struct llm_cache *cache, int32_t at, int n, float (*got)[WORDS])
{
    kl_trace_begin("piece");
    kl_tensor ids = kl_input(m->device, KL_I32, DIMS(1, n), tokens + at);
    kl_tensor from = cache ? kl_input(m->device, KL_I32, DIMS(1), &at) : kl_none;
    kl_tensor logits = kl_keep(llm_logits(m, llm_hidden(m, ids, from, cache)));
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

static void compare(const struct llm_reference *r, const char *path)
{
    static double want[TOKENS][WORDS];
    static float got[TOKENS][WORDS], whole[TOKENS][WORDS];
    struct llm m;
    reference_logits(want, tokens, r);
    if (!CHECK(llm_open(&m, kl_device_default(), path)))
        return;
    run_piece(&m, NULL, 0, TOKENS, whole);
    CHECK(distance(whole, want) < 1e-4);
    for (int piece = 1; piece <= TOKENS; piece += piece == 1 ? 4 : 7) { /* 1, 5, 12 */
        struct llm_cache cache;
        if (!CHECK(llm_cache_init(&cache, &m, 1, 32)))
            continue;
        for (int at = 0; at < TOKENS; at += piece)
            run_piece(&m, &cache, at, piece < TOKENS - at ? piece : TOKENS - at, got);
        CHECK(distance(got, want) < 1e-4);
        llm_cache_deinit(&cache);
    }
    llm_close(&m);
}

int main(void)
{
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
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
