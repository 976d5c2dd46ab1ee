/* The tokenizer in the metadata of a GGUF file: tokenizer.ggml.model says which kind, tokenizer.ggml.pre how text is
 * split for byte pairs. */
#include "frontend/formats/json.h"
#include "tokenizer.h"
#include <string.h>

#define KEY "tokenizer.ggml."
struct gguf_words {
    kl_file *f;
    kl_tokenizer *t;
    struct token_entry *e;
    int64_t n;
};

/* An entry of the metadata, -1: there is none.  need: it has to be there. */
static bool gguf_key(struct gguf_words *g, const char *key, bool need, int64_t *i)
{
    *i = kl_file_meta_find(g->f, key);
    return *i >= 0 || !need || file_bad(g->f, 0, key, "there is none: this GGUF file has no tokenizer");
}

static size_t gguf_at(const struct gguf_words *g, int64_t i) { return (size_t)(g->f->meta[i].numbers - g->f->bytes); }

/* A list of texts or numbers, as many as there are tokens unless n is -1. */
static bool gguf_list(struct gguf_words *g, const char *key, bool need, bool texts, int64_t n, int64_t *i)
{
    if (!gguf_key(g, key, need, i) || *i < 0)
        return *i < 0 && !need;
    const kl_file_meta *m = &g->f->meta[*i].is;
    if (!m->array || (m->dtype == KL_DTYPE_COUNT) != texts)
        return file_bad(g->f, gguf_at(g, *i), key, "expected a list of %s", texts ? "texts" : "numbers");
    return n < 0 || m->count == n || file_bad(g->f, gguf_at(g, *i), key, "%lld values for %lld tokens",
                                              (long long)m->count, (long long)n);
}

static bool gguf_flag(const struct gguf_words *g, const char *key, bool otherwise)
{
    int64_t i = kl_file_meta_find(g->f, key);
    return i < 0 ? otherwise : kl_file_meta_i64(g->f, (uint32_t)i, 0) != 0;
}

static const char *gguf_text(const struct gguf_words *g, const char *key, const char *otherwise)
{
    int64_t i = kl_file_meta_find(g->f, key);
    const char *text = i < 0 ? NULL : kl_file_meta_text(g->f, (uint32_t)i, 0);
    return text ? text : otherwise;
}

/* ---- tokens ---- */

static bool gguf_tokens(struct gguf_words *g)
{
    static const enum token_type types[] = {TOKEN_NORMAL, TOKEN_NORMAL, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER,
                                            TOKEN_NONE, TOKEN_BYTE};
    int64_t tokens, scores, type;
    if (!gguf_list(g, KEY "tokens", true, true, -1, &tokens))
        return false;
    g->n = g->f->meta[tokens].is.count;
    bool scored = g->t->model == MODEL_SCORES || g->t->model == MODEL_UNIGRAM;
    if (!gguf_list(g, KEY "scores", scored, false, g->n, &scores) ||
        !gguf_list(g, KEY "token_type", false, false, g->n, &type))
        return false;
    g->e = kl_memory_alloc((size_t)g->n * sizeof *g->e + 1);
    if (!g->e)
        return file_no_memory(g->f);
    for (int64_t i = 0; i < g->n; i++) {
        struct token_entry *e = &g->e[i];
        const char *text = kl_file_meta_text(g->f, (uint32_t)tokens, i);
        int64_t kind = type < 0 ? 1 : kl_file_meta_i64(g->f, (uint32_t)type, i);
        *e = (struct token_entry){.text = text, .n = strlen(text), .id = i, .at = gguf_at(g, tokens)};
        if (kind < 0 || kind > 6)
            return file_bad(g->f, gguf_at(g, type), KEY "token_type", "token %lld is of type %lld", (long long)i,
                            (long long)kind);
        e->type = types[kind];
        e->score = scores < 0 ? 0 : kl_file_meta_f64(g->f, (uint32_t)scores, i);
        if (e->score - e->score != 0)
            return file_bad(g->f, gguf_at(g, scores), KEY "scores", "token %lld has no finite score", (long long)i);
        int64_t bytes = g->t->byte_level && e->type == TOKEN_NORMAL
                            ? bytes_of_characters((uint8_t *)(uintptr_t)e->text, e->n) : -1;
        if (bytes >= 0)
            e->n = (size_t)bytes;
    }
    return true;
}

/* An id of a special token, or -1. */
static bool gguf_special(struct gguf_words *g, const char *key, kl_token_special which)
{
    int64_t i = kl_file_meta_find(g->f, key), id = i < 0 ? -1 : kl_file_meta_i64(g->f, (uint32_t)i, 0);
    if (id >= g->n) /* 2^32 - 1 means none */
        return id == UINT32_MAX || file_bad(g->f, gguf_at(g, i), key, "id %lld of %lld tokens", (long long)id,
                                            (long long)g->n);
    if (id >= 0)
        g->t->special[which] = id;
    return true;
}

/* Tokens in front of and behind a text. */
static bool gguf_ends(struct gguf_words *g, bool begin, bool end)
{
    kl_tokenizer *t = g->t;
    int32_t *ids = token_memory(g->f, t, 2 * sizeof *ids);
    if (!ids)
        return false;
    ids[0] = (int32_t)t->special[KL_TOKEN_BOS];
    ids[1] = (int32_t)t->special[KL_TOKEN_EOS];
    t->begin = ids;
    t->end = ids + 1;
    t->begin_n = ids[0] >= 0 && gguf_flag(g, KEY "add_bos_token", begin);
    t->end_n = ids[1] >= 0 && gguf_flag(g, KEY "add_eos_token", end);
    return true;
}

/* ---- byte pairs of bytes ---- */

#define LLAMA3_WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define OTHERS_AND_SPACES " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(ending) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ending "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ending "|"
#define OTHERS_WITH_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* How models split text: patterns, each of what the one before it left; NULL: GPT-2's. */
static const struct gguf_split {
    const char *names;        /* with spaces around each */
    const char *pattern[3];
    bool whole_words, begin;
} gguf_splits[] = {
    {" gpt-2 phi-2 mpt olmo jina-es jina-de jina-v2-es jina-v2-de roberta-bpe gigachat modern-bert trillion default ",
     {gpt2_pattern}, false, false},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b ", {"\\p{N}", gpt2_pattern}, false, false},
    {" falcon ", {"[\\p{P}$+<=>^~|`]+", gpt2_pattern, "[0-9][0-9][0-9]"}, false, false},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral dbrx smaug-bpe ",
     {LLAMA3_WORDS "\\p{N}{1,3}|" OTHERS_AND_SPACES}, true, true},
    {" qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan ", {LLAMA3_WORDS "\\p{N}|" OTHERS_AND_SPACES}, false, false},
    {" chatglm-bpe ", {LLAMA3_WORDS "\\p{N}{1,3}|" OTHERS_AND_SPACES}, false, false},
    {" tekken ", {CASED("") "\\p{N}|" OTHERS_WITH_SLASH}, true, true},
    {" gpt-4o llama4 kanana2 ", {CASED("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") "\\p{N}{1,3}|" OTHERS_WITH_SLASH}, true, false},
    {" deepseek-v3 deepseek-r1 ",
     {"\\p{N}{1,3}", "[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
      " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}, false, true}};

static const struct gguf_split *gguf_split_of(struct gguf_words *g)
{
    const char *pre = gguf_text(g, KEY "pre", "default");
    char name[60];
    if (kl_format(name, sizeof name, " %s ", pre) < (int)sizeof name && !strchr(pre, ' '))
        for (size_t i = 0; i < sizeof gguf_splits / sizeof *gguf_splits; i++)
            if (strstr(gguf_splits[i].names, name))
                return &gguf_splits[i];
    file_bad(g->f, 0, KEY "pre", "the splitting of text \"%.60s\" is not read", pre);
    return NULL;
}

static bool gguf_merges(struct gguf_words *g)
{
    int64_t list;
    struct text_buffer both = {0};
    if (!gguf_list(g, KEY "merges", true, true, -1, &list))
        return false;
    int64_t n = g->f->meta[list].is.count;
    bool ok = n < INT32_MAX / 4 ? merges_room(g->f, g->t, n)
                                : file_bad(g->f, gguf_at(g, list), KEY "merges", "too many");
    for (int64_t i = 0; ok && i < n; i++) {
        const char *text = kl_file_meta_text(g->f, (uint32_t)list, i), *space = *text ? strchr(text + 1, ' ') : NULL;
        size_t left = space ? (size_t)(space - text) : 0;
        ok = space ? merge_add(g->f, g->t, (struct merge_text){(uint8_t *)(uintptr_t)text, left,
                                                              (uint8_t *)(uintptr_t)space + 1, strlen(space + 1)},
                               (int32_t)i, &both, gguf_at(g, list), KEY "merges")
                   : file_bad(g->f, gguf_at(g, list), KEY "merges", "merge %lld is not two tokens with a space between",
                              (long long)i);
    }
    buffer_free(&both);
    return ok;
}

static bool gguf_bytes(struct gguf_words *g)
{
    g->t->byte_level = true;
    const struct gguf_split *split = gguf_split_of(g);
    if (!split || !gguf_tokens(g) || !tokens_build(g->f, g->t, g->e, g->n, KEY "tokens") || !gguf_merges(g))
        return false;
    g->t->whole_words = split->whole_words;
    for (int i = 0; i < 3 && split->pattern[i]; i++) {
        struct text_step *s = step_add(g->f, &g->t->splitter, STEP_SPLIT, 0);
        if (!s || !step_pattern(g->f, s, split->pattern[i], strlen(split->pattern[i]), false, 0, KEY "pre"))
            return false;
        s->behaviour = SPLIT_ISOLATED;
    }
    return gguf_ends(g, split->begin, false);
}

/* ---- sentencepiece's two models ---- */

static bool gguf_spaces(struct gguf_words *g, bool single)
{
    struct text_step *s = step_add(g->f, &g->t->normalizer, STEP_SPACES, 0);
    s->put_first = gguf_flag(g, KEY "add_space_prefix", true);
    s->single = s->trim = gguf_flag(g, KEY "remove_extra_whitespaces", single);
    s->escape = true;
    return tokens_join_marks(g->f, g->t, s->put_first, s->trim);
}

static bool gguf_pieces(struct gguf_words *g)
{
    g->t->model = MODEL_SCORES;
    g->t->byte_fallback = true;
    g->t->fuse_unknown = true;
    return gguf_tokens(g) && tokens_rank_scores(g->f, g->e, g->n) &&
           tokens_build(g->f, g->t, g->e, g->n, KEY "tokens") && gguf_spaces(g, false) && gguf_ends(g, true, false);
}

static bool gguf_charsmap(struct gguf_words *g)
{
    int64_t i;
    if (!gguf_list(g, KEY "precompiled_charsmap", false, false, -1, &i))
        return false;
    if (i < 0 || g->f->meta[i].is.count == 0)
        return true;
    const struct file_value *v = &g->f->meta[i];
    if (kl_dtype_size(v->is.dtype) != 1)
        return file_bad(g->f, gguf_at(g, i), KEY "precompiled_charsmap", "expected a list of bytes");
    struct text_step *s = step_add(g->f, &g->t->normalizer, STEP_CHARSMAP, 0);
    s->map = charsmap_read(g->f, g->t, v->numbers, (size_t)v->is.count, gguf_at(g, i), KEY "precompiled_charsmap");
    return s->map != NULL;
}

static bool gguf_unigram(struct gguf_words *g)
{
    g->t->model = MODEL_UNIGRAM;
    g->t->fuse_unknown = true;
    if (!gguf_tokens(g))
        return false;
    g->t->unknown_score = tokens_unknown_score(g->e, g->n);
    return tokens_build(g->f, g->t, g->e, g->n, KEY "tokens") && gguf_charsmap(g) && gguf_spaces(g, true) &&
           gguf_ends(g, false, true);
}

/* ---- BERT's: the file has U+2581 in front of what begins a word, and nothing in front of the rest ---- */

static bool gguf_word_pieces(struct gguf_words *g)
{
    static const char *const splits[] = {"\\s", "[\\p{P}$+<=>^`|~]"};
    g->t->model = MODEL_WORDS;
    g->t->first_prefix = "\xe2\x96\x81";
    g->t->next_prefix = "";
    g->t->max_word = INT32_MAX;
    struct text_step *s = step_add(g->f, &g->t->normalizer, STEP_BERT, 0);
    s->clean = s->chinese = s->accents = s->lower = true;
    for (int i = 0; i < 2; i++) {
        s = step_add(g->f, &g->t->splitter, STEP_SPLIT, 0);
        s->behaviour = i ? SPLIT_ISOLATED : SPLIT_REMOVED;
        if (!step_pattern(g->f, s, splits[i], strlen(splits[i]), false, 0, KEY "model"))
            return false;
    }
    return gguf_tokens(g) && tokens_build(g->f, g->t, g->e, g->n, KEY "tokens") &&
           gguf_special(g, KEY "cls_token_id", KL_TOKEN_BOS) && gguf_special(g, KEY "bos_token_id", KL_TOKEN_BOS) &&
           gguf_special(g, KEY "eos_token_id", KL_TOKEN_EOS) &&
           gguf_special(g, KEY "seperator_token_id", KL_TOKEN_EOS) && /* the format's spelling */
           tokens_join_marks(g->f, g->t, true, false) && gguf_ends(g, true, true);
}

/* ---- the file ---- */

static bool gguf_words_read(struct gguf_words *g)
{
    static const struct { const char *model; bool (*read)(struct gguf_words *g); } kinds[] = {
        {"gpt2", gguf_bytes}, {"llama", gguf_pieces}, {"bert", gguf_word_pieces}, {"t5", gguf_unigram}};
    int64_t i, tokens;
    if (!gguf_key(g, KEY "model", true, &i))
        return false;
    const char *model = gguf_text(g, KEY "model", ""), *template = gguf_text(g, "tokenizer.chat_template", NULL);
    size_t k = 0;
    while (k < 4 && strcmp(kinds[k].model, model) != 0)
        k++;
    if (k == 4)
        return file_bad(g->f, gguf_at(g, i), KEY "model", "\"%.60s\"; gpt2, llama, bert and t5 are read", model);
    if (!gguf_list(g, KEY "tokens", true, true, -1, &tokens))
        return false;
    g->n = g->f->meta[tokens].is.count;
    if (!gguf_special(g, KEY "bos_token_id", KL_TOKEN_BOS) || !gguf_special(g, KEY "eos_token_id", KL_TOKEN_EOS) ||
        !gguf_special(g, KEY "unknown_token_id", KL_TOKEN_UNKNOWN) ||
        !gguf_special(g, KEY "padding_token_id", KL_TOKEN_PAD) || !kinds[k].read(g))
        return false;
    if (template && !(g->t->chat_template = token_string(g->f, g->t, template, strlen(template))))
        return false;
    g->t->unknown = g->t->byte_level ? -1 : (int32_t)g->t->special[KL_TOKEN_UNKNOWN];
    return tokens_recognize(g->f, g->t, g->e, g->n) && tokens_finish(g->f, g->t);
}

kl_tokenizer *gguf_tokenizer_open(const char *path)
{
    kl_file *f = kl_file_open(path);
    kl_tokenizer *t = f ? tokenizer_new() : NULL;
    if (!t) {
        kl_file_close(f);
        return NULL;
    }
    struct gguf_words g = {.f = f, .t = t};
    bool ok = gguf_words_read(&g);
    kl_memory_free(g.e);
    if (ok) {
        kl_file_close(f);
        return t;
    }
    file_failed(f);
    kl_tokenizer_close(t);
    return NULL;
}
