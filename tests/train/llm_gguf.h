/* Tiny random models of each architecture as GGUF files, as examples/llm and llama.cpp read them. */
#ifndef TESTS_LLM_GGUF_H
#define TESTS_LLM_GGUF_H
#include "llm_reference.h"
#include "tests/support/api_check.h"
#include <kiln/train.h>

static const struct llm_kind kinds[] = {
    {.name = "llama", .head = 16, .rotary_base = 10000, .rotary_factor = 1},
    {.name = "mistral", .head = 16, .window = 5, .rotary_base = 10000, .rotary_factor = 1},
    {.name = "qwen2", .head = 16, .bias = true, .tied = true, .rotary_base = 1e6, .rotary_factor = 1},
    {.name = "qwen3", .head = 24, .head_norms = true, .rotary_base = 1e6, .rotary_factor = 1},
    {.name = "gemma2", .head = 24, .gemma = true, .tied = true, .window = 5, .local_of = 2, .score_cap = 5,
     .logit_cap = 30, .rotary_base = 10000, .rotary_factor = 1},
    {.name = "gemma3_text", .head = 24, .head_norms = true, .gemma = true, .tied = true, .window = 5, .local_of = 6,
     .rotary_base = 1e6, .local_base = 10000, .rotary_factor = 8},
    {.name = "qwen2", .head = 32, .bias = true, .rotary_base = 500, .rotary_factor = 6, .scaling = "llama3"},
    {.name = "qwen3", .head = 32, .head_norms = true, .rotary_base = 500, .rotary_factor = 8, .scaling = "yarn"}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static char folder[64];

static const char *path_of(const char *name)
{
    static char path[2][128]; /* the last two stay valid */
    static int at;
    at = !at;
    snprintf(path[at], sizeof path[at], "%s/%s", folder, name);
    return path[at];
}

static const char *const gguf_names[PER_LAYER] = {
    "attn_norm.weight", "ffn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight",
    "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", "attn_q.bias", "attn_k.bias", "attn_v.bias",
    "attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight", "post_ffw_norm.weight"};

static const char *gguf_name(char name[96], int i)
{
    static const char *const of_model[] = {"token_embd.weight", "output_norm.weight", "output.weight",
                                           "rope_freqs.weight"};
    if (i >= EMBEDDING)
        snprintf(name, 96, "%s", of_model[i - EMBEDDING]);
    else
        snprintf(name, 96, "blk.%d.%s", i / PER_LAYER, gguf_names[i % PER_LAYER]);
    return name;
}

/* A tokenizer of single bytes, in GPT-2's characters, with the special tokens of ChatML. */
enum { BYTES = 256, START = BYTES, END, TEXT_END, OTHERS };
static const char *token_text(int token)
{
    static char text[WORDS][24];
    static const char *const special[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
    int c = token, moved = 0;
    if (token >= BYTES) {
        if (token < OTHERS)
            return special[token - BYTES];
        snprintf(text[token], sizeof *text, "<other %d>", token);
        return text[token];
    }
    for (int b = 0; b < token; b++) /* bytes that are no visible character of Latin-1 have those from 256 on */
        moved += b < 33 || (b > 126 && b < 161) || b == 173;
    if (c < 33 || (c > 126 && c < 161) || c == 173)
        c = 256 + moved;
    if (c < 128)
        snprintf(text[token], sizeof *text, "%c", c);
    else
        snprintf(text[token], sizeof *text, "%c%c", 0xC0 | c >> 6, 0x80 | (c & 63));
    return text[token];
}

/* Appends the tokenizer's values to meta. */
static int tokenizer_meta(kl_file_value *meta, int n)
{
    static const char *tokens[WORDS], *merges[] = {"a b"};
    static int32_t types[WORDS];
    static const uint32_t end = END;
    for (int i = 0; i < WORDS; i++) {
        tokens[i] = token_text(i);
        types[i] = i >= START && i < OTHERS ? 3 : i >= OTHERS ? 5 : 1; /* control, unused, normal */
    }
    const kl_file_value values[] = {
        {.key = "tokenizer.ggml.model", .text = "gpt2"}, {.key = "tokenizer.ggml.pre", .text = "qwen2"},
        {.key = "tokenizer.ggml.tokens", .dtype = KL_DTYPE_COUNT, .array = true, .count = WORDS, .data = tokens},
        {.key = "tokenizer.ggml.token_type", .dtype = KL_I32, .array = true, .count = WORDS, .data = types},
        {.key = "tokenizer.ggml.merges", .dtype = KL_DTYPE_COUNT, .array = true, .count = 0, .data = merges},
        {.key = "tokenizer.ggml.eos_token_id", .dtype = KL_U32, .data = &end},
        {.key = "tokenizer.chat_template",
         .text = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
                 "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
                 "{% endif %}"}};
    memcpy(meta + n, values, sizeof values);
    return n + (int)(sizeof values / sizeof *values);
}

/* Its matrices are of `type`; rows that its blocks do not divide are of Q8_0. */
static const char *type_of(const struct llm_reference *r, int i, const char *type)
{
    const char *k = type ? strchr(type, 'K') : NULL;
    return !r->rows[i] ? NULL : k && r->columns[i] % 256 ? "Q8_0" : type;
}

static bool write_gguf(const struct llm_reference *r, const char *architecture, const char *type)
{
    static char names[ARRAYS][96], keys[16][64], scaling[64];
    static int64_t dims[ARRAYS][2];
    const struct llm_kind *k = r->kind;
    enum { FIRST_FLOAT = 10, NUMBERS = 15 };
    const struct { const char *key; double value; } numbers[NUMBERS] = {
        {"block_count", LAYERS}, {"embedding_length", WIDTH}, {"attention.head_count", HEADS},
        {"attention.head_count_kv", KV_HEADS}, {"attention.key_length", k->head}, {"attention.value_length", k->head},
        {"feed_forward_length", HIDDEN}, {"context_length", 64}, {"attention.sliding_window", k->window},
        {"rope.scaling.original_context_length", ORIGINAL},
        [FIRST_FLOAT] = {"attention.layer_norm_rms_epsilon", 1e-5}, {"rope.freq_base", k->rotary_base},
        {"attn_logit_softcapping", k->score_cap}, {"final_logit_softcapping", k->logit_cap},
        {"rope.scaling.factor", k->rotary_factor}};
    static uint32_t whole[NUMBERS];
    static float real[NUMBERS];
    kl_file_value meta[NUMBERS + 11] = {{.key = "general.architecture", .text = architecture}};
    kl_file_item items[ARRAYS];
    int n = 0, nmeta = 1;
    for (int i = 0; i < NUMBERS; i++)
        if (numbers[i].value > 0) {
            snprintf(keys[i], sizeof keys[i], "%s.%s", architecture, numbers[i].key);
            whole[i] = (uint32_t)numbers[i].value, real[i] = (float)numbers[i].value;
            meta[nmeta++] = i < FIRST_FLOAT ? (kl_file_value){.key = keys[i], .dtype = KL_U32, .data = &whole[i]}
                                            : (kl_file_value){.key = keys[i], .dtype = KL_F32, .data = &real[i]};
        }
    snprintf(scaling, sizeof scaling, "%s.rope.scaling.type", architecture);
    if (k->scaling)
        meta[nmeta++] = (kl_file_value){.key = scaling, .text = k->scaling};
    nmeta = tokenizer_meta(meta, nmeta);
    for (int i = 0; i < ARRAYS; i++)
        if (r->columns[i]) {
            dims[n][0] = r->rows[i] ? r->rows[i] : r->columns[i], dims[n][1] = r->columns[i];
            items[n] = (kl_file_item){.name = gguf_name(names[n], i), .dtype = KL_F32, .rank = r->rows[i] ? 2 : 1,
                                      .dims = dims[n], .data = r->data[i], .type = type_of(r, i, type)};
            n++;
        }
    kl_file_write_options options = {.nmeta = nmeta, .meta = meta};
    return OK(kl_file_write_with(path_of("model.gguf"), KL_FILE_GGUF, n, items, &options));
}

#endif
