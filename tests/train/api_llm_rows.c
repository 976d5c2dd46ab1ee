/* examples/llm: the logits of a sequence are the same bits alone and in a batch of 16, in pieces of 1, 7 and 64 tokens,
 * on one and two threads, for weights of floats and of blocks; a random Llama whose rows have whole super-blocks.
 *
 *   api_llm_rows          with weights of bf16 and q4_k
 *   api_llm_rows all      and of f32, f16, q8_0, q4_0 and q6_k */
#define _POSIX_C_SOURCE 200809L
#include "examples/llm/llm.h"
#include "tests/support/api_check.h"
#include <unistd.h>

enum { LAYERS = 2, WIDTH = 256, HEADS = 4, KV_HEADS = 2, HIDDEN = 512, WORDS = 80, LENGTH = 64, BATCH = 16, OURS = 5 };
enum { IN_LAYER = 9, OTHERS = 3, TENSORS = LAYERS * IN_LAYER + OTHERS };
static char path[64];
static int32_t tokens[BATCH][LENGTH];
static float want[LENGTH][WORDS], got[BATCH][LENGTH][WORDS];

static float noise(void)
{
    static uint32_t state = 5;
    state = state * 1664525U + 1013904223U;
    return (float)(int32_t)state * 0x1p-31F;
}

/* Writes a model whose matrices have a type. */
static bool write_model(const char *type)
{
    enum { KV = WIDTH / HEADS * KV_HEADS, KEYS = 8 };
    static const struct { const char *name; int64_t rows, columns; } parts[IN_LAYER + OTHERS] = {
        {"attn_norm", 0, WIDTH}, {"ffn_norm", 0, WIDTH}, {"attn_q", WIDTH, WIDTH}, {"attn_k", KV, WIDTH},
        {"attn_v", KV, WIDTH}, {"attn_output", WIDTH, WIDTH}, {"ffn_gate", HIDDEN, WIDTH}, {"ffn_up", HIDDEN, WIDTH},
        {"ffn_down", WIDTH, HIDDEN}, {"output_norm", 0, WIDTH}, {"token_embd", WORDS, WIDTH},
        {"output", WORDS, WIDTH}};
    static const struct { const char *key; uint32_t value; } keys[KEYS] = {
        {"llama.block_count", LAYERS}, {"llama.embedding_length", WIDTH}, {"llama.attention.head_count", HEADS},
        {"llama.attention.head_count_kv", KV_HEADS}, {"llama.feed_forward_length", HIDDEN},
        {"llama.context_length", 2 * LENGTH}, {"llama.vocab_size", WORDS},
        {"llama.rope.dimension_count", WIDTH / HEADS}};
    static const float eps = 1e-5F;
    static char names[TENSORS][64];
    int64_t dims[TENSORS][2];
    kl_file_item items[TENSORS];
    kl_file_value meta[KEYS + 2] = {{.key = "general.architecture", .text = "llama"},
                                    {.key = "llama.attention.layer_norm_rms_epsilon", .dtype = KL_F32, .data = &eps}};
    float *data[TENSORS];
    for (int i = 0; i < KEYS; i++)
        meta[i + 2] = (kl_file_value){.key = keys[i].key, .dtype = KL_U32, .data = &keys[i].value};
    for (int i = 0; i < TENSORS; i++) {
        bool in_layer = i < LAYERS * IN_LAYER;
        int part = in_layer ? i % IN_LAYER : IN_LAYER + i - LAYERS * IN_LAYER;
        int64_t rows = parts[part].rows, columns = parts[part].columns, n = (rows ? rows : 1) * columns;
        data[i] = malloc((size_t)n * sizeof **data);
        for (int64_t k = 0; k < n && data[i]; k++)
            data[i][k] = rows ? 0.12F * noise() : 1 + 0.1F * noise();
        if (in_layer)
            snprintf(names[i], sizeof names[i], "blk.%d.%s.weight", i / IN_LAYER, parts[part].name);
        else
            snprintf(names[i], sizeof names[i], "%s.weight", parts[part].name);
        dims[i][0] = rows ? rows : columns, dims[i][1] = columns;
        items[i] = (kl_file_item){.name = names[i], .dtype = KL_F32, .rank = rows ? 2 : 1, .dims = dims[i],
                                  .data = data[i], .type = rows ? type : NULL};
    }
    bool ok = OK(kl_file_write_with(path, KL_FILE_GGUF, TENSORS, items,
                                    &(kl_file_write_options){.nmeta = KEYS + 2, .meta = meta}));
    for (int i = 0; i < TENSORS; i++)
        free(data[i]);
    return ok;
}

/* Runs `rows` sequences from number `first` on in pieces of `length` tokens; got: [row][token]. */
static bool run_pieces(const struct llm *m, int first, int rows, int length)
{
    static int32_t ids[BATCH * LENGTH];
    static float logits[BATCH * LENGTH * WORDS];
    kl_nn_cache cache;
    bool ok = CHECK(llm_cache_init(&cache, m, rows, LENGTH, NULL));
    for (int at = 0; at < LENGTH && ok; at += length) {
        int n = length < LENGTH - at ? length : LENGTH - at;
        for (int r = 0; r < rows; r++)
            memcpy(ids + r * n, tokens[first + r] + at, (size_t)n * sizeof *ids);
        kl_trace_begin("piece");
        kl_tensor x = kl_input(m->device, KL_I32, DIMS(rows, n), ids);
        kl_tensor y = kl_keep(llm_logits(m, llm_hidden(m, x, &cache)));
        ok = OK(kl_trace_end()) && OK(kl_read(y, logits, (size_t)(rows * n * WORDS) * sizeof *logits));
        for (int r = 0; r < rows; r++)
            memcpy(got[r][at], logits + r * n * WORDS, (size_t)(n * WORDS) * sizeof *logits);
        kl_release(y);
    }
    kl_nn_cache_deinit(&cache);
    return ok;
}

static void compare(const char *type)
{
    static const struct { const char *name; int rows, length; } ways[] = {
        {"one piece", 1, LENGTH}, {"token by token", 1, 1}, {"pieces of 7", 1, 7}, {"a batch of 16", BATCH, LENGTH},
        {"a batch of 16, token by token", BATCH, 1}};
    struct llm m;
    if (!write_model(type) || !CHECK(llm_open(&m, kl_device_cpu(), path, true)))
        return;
    for (int threads = 1; threads <= 2; threads++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            char what[100];
            int first = ways[i].rows > 1 ? 0 : OURS;
            OK(kl_set_option("threads", threads));
            if (!run_pieces(&m, first, ways[i].rows, ways[i].length))
                continue;
            const void *mine = got[OURS - first];
            if (!i && threads == 1)
                memcpy(want, mine, sizeof want);
            snprintf(what, sizeof what, "%s, %s, %d threads", type, ways[i].name, threads);
            check_at(!memcmp(want, mine, sizeof want), __LINE__, what);
        }
    bool differ = false; /* the logits say something of the tokens */
    for (int t = 1; t < LENGTH; t++)
        differ |= memcmp(want[t], want[0], sizeof *want) != 0;
    CHECK(differ && isfinite(want[LENGTH - 1][WORDS - 1]));
    OK(kl_set_option("threads", 0));
    llm_close(&m);
}

int main(int argc, char **argv)
{
    static const char *const types[] = {"BF16", "Q4_K", "F32", "F16", "Q8_0", "Q4_0", "Q6_K"};
    int count = argc > 1 && !strcmp(argv[1], "all") ? 7 : 2;
    snprintf(path, sizeof path, "/tmp/kiln-rows-%ld.gguf", (long)getpid());
    for (int r = 0; r < BATCH; r++)
        for (int t = 0; t < LENGTH; t++)
            tokens[r][t] = (t * 31 + r * 17 + t * t * r) % WORDS;
    for (int i = 0; i < count; i++) {
        device_now = types[i];
        compare(types[i]);
    }
    unlink(path);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
