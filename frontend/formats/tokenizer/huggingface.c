/* tokenizer.json of Hugging Face's tokenizers: the model, its tokens and added tokens; huggingface_steps.c reads what
 * is done before and after. */
#include "json_tree.h"
#include "tokenizer.h"
#include <string.h>

enum { HF_MAX_ID = 1 << 26 };

/* Is there an object of this type anywhere? */
static bool has_type(const struct json_value *v, const char *type)
{
    bool is = false;
    for (const struct json_value *c = v ? v->child : NULL; c && !is; c = c->next)
        is = (c->name_n == 4 && !memcmp(c->name, "type", 4) && json_text_is(c, type)) || has_type(c, type);
    return is;
}

/* ---- tokens ---- */

struct hf_tokens { struct token_entry *e; int64_t n; uint8_t *seen; int64_t seen_n; };

/* A token as the vocabulary has it: GPT-2's characters as bytes, other text as it is. */
static void hf_token_text(const kl_tokenizer *t, const struct json_value *v, bool name, struct token_entry *e)
{
    e->text = name ? v->name : v->text;
    e->n = name ? v->name_n : v->n;
    e->at = v->at;
    int64_t bytes = t->byte_level ? bytes_of_characters((uint8_t *)(uintptr_t)e->text, e->n) : -1;
    if (bytes >= 0)
        e->n = (size_t)bytes;
}

static bool hf_vocabulary_object(kl_file *f, const kl_tokenizer *t, const struct json_value *vocab,
                                 struct hf_tokens *to)
{
    for (const struct json_value *v = vocab->child; v; v = v->next) {
        struct token_entry *e = &to->e[to->n++];
        if (!json_whole(f, v, "model.vocab", HF_MAX_ID, &e->id))
            return false;
        hf_token_text(t, v, true, e);
    }
    return true;
}

static bool hf_vocabulary_list(kl_file *f, kl_tokenizer *t, const struct json_value *vocab, struct hf_tokens *to)
{
    double least = 0;
    for (const struct json_value *v = vocab->child; v; v = v->next) {
        struct token_entry *e = &to->e[to->n];
        const struct json_value *text = v->kind == JSON_ARRAY && v->n == 2 ? v->child : NULL;
        if (!text || text->kind != JSON_STRING || text->next->kind != JSON_NUMBER)
            return file_bad(f, v->at, "model.vocab", "expected a token and its score");
        hf_token_text(t, text, false, e);
        e->score = text->next->number;
        least = to->n == 0 || e->score < least ? e->score : least;
        e->id = to->n++;
    }
    t->unknown_score = least - 10;
    return true;
}

/* Ids that the vocabulary has: an added token may be one of them. */
static bool hf_mark_seen(kl_file *f, struct hf_tokens *to)
{
    for (int64_t i = 0; i < to->n; i++)
        to->seen_n = to->e[i].id + 1 > to->seen_n ? to->e[i].id + 1 : to->seen_n;
    to->seen = kl_memory_alloc((size_t)to->seen_n + 1);
    if (!to->seen)
        return file_no_memory(f);
    for (int64_t i = 0; i < to->n; i++)
        to->seen[to->e[i].id] = 1;
    return true;
}

static bool hf_added(kl_file *f, const struct json_value *added, struct hf_tokens *to)
{
    for (const struct json_value *v = added ? added->child : NULL; v; v = v->next) {
        const struct json_value *id, *text;
        struct token_entry *e = &to->e[to->n];
        if (v->kind != JSON_OBJECT)
            return file_bad(f, v->at, "added_tokens", "expected an object");
        if (!json_want(f, v, "id", JSON_NUMBER, true, &id) || !json_want(f, v, "content", JSON_STRING, true, &text) ||
            !json_whole(f, id, "added_tokens.id", HF_MAX_ID, &e->id))
            return false;
        if (e->id < to->seen_n && to->seen[e->id])
            continue;
        *e = (struct token_entry){.text = text->text, .n = text->n, .at = v->at, .id = e->id, .type = TOKEN_USER};
        to->n++;
    }
    return true;
}

static bool hf_tokens(kl_file *f, kl_tokenizer *t, const struct json_value *vocab, const struct json_value *added)
{
    struct hf_tokens to = {0};
    to.e = kl_memory_alloc((vocab->n + (added ? added->n : 0)) * sizeof *to.e + 1);
    bool ok = to.e || file_no_memory(f);
    ok = ok && (vocab->kind == JSON_OBJECT ? hf_vocabulary_object(f, t, vocab, &to)
                                           : hf_vocabulary_list(f, t, vocab, &to));
    ok = ok && hf_mark_seen(f, &to) && hf_added(f, added, &to) && tokens_build(f, t, to.e, to.n, "model.vocab");
    kl_memory_free(to.e);
    kl_memory_free(to.seen);
    return ok;
}

/* ---- added tokens ---- */

static bool hf_added_flags(kl_file *f, const struct json_value *v, struct added_token *a, bool *normalized)
{
    return json_flag(f, v, "special", false, &a->special) && json_flag(f, v, "single_word", false, &a->word) &&
           json_flag(f, v, "lstrip", false, &a->left) && json_flag(f, v, "rstrip", false, &a->right) &&
           json_flag(f, v, "normalized", !a->special, normalized);
}

/* The text of a token as the normalizer makes it, by which it is found in normalized text. */
static bool hf_normalize(kl_file *f, kl_tokenizer *t, struct added_entry *e)
{
    struct text_buffer b[2] = {{0}};
    const uint8_t *text = (const uint8_t *)e->text;
    bool ok = true;
    for (int i = 0; ok && i < t->normalizer.n; i++) {
        b[i % 2].n = 0;
        ok = step_change(&t->normalizer.step[i], text, e->n, &b[i % 2]) && !b[i % 2].failed;
        text = b[i % 2].at;
        e->n = b[i % 2].n;
    }
    e->text = ok ? token_string(f, t, (const char *)text, e->n) : NULL;
    buffer_free(&b[0]);
    buffer_free(&b[1]);
    return e->text || (ok ? false : file_no_memory(f));
}

static bool hf_recognize_added(kl_file *f, kl_tokenizer *t, const struct json_value *added)
{
    size_t count = added ? added->n : 0;
    struct added_entry *e = kl_memory_alloc(2 * count * sizeof *e + 1);
    int64_t n[2] = {0, 0};
    bool ok = e || file_no_memory(f);
    for (const struct json_value *v = added ? added->child : NULL; ok && v; v = v->next) {
        struct added_entry a = {0};
        int64_t id;
        bool normalized;
        const struct json_value *text = json_member(v, "content");
        ok = json_whole(f, json_member(v, "id"), "id", HF_MAX_ID, &id) && hf_added_flags(f, v, &a.token, &normalized);
        a.text = text->text;
        a.n = text->n;
        a.token.id = (int32_t)id;
        ok = ok && (!normalized || hf_normalize(f, t, &a));
        if (!ok)
            break;
        t->type[id] = a.token.special ? TOKEN_CONTROL : TOKEN_USER;
        e[normalized * count + (size_t)n[normalized]++] = a;
    }
    ok = ok && added_build(f, &t->raw, e, n[0]) && added_build(f, &t->normalized, e + count, n[1]);
    kl_memory_free(e);
    return ok;
}

/* ---- models ---- */

/* The id of a token that a field of the model names; -1: it names none. */
static bool hf_named_token(kl_file *f, const kl_tokenizer *t, const struct json_value *model, const char *field,
                           int32_t *id)
{
    const struct json_value *v;
    if (!json_want(f, model, field, JSON_STRING, false, &v))
        return false;
    *id = v ? (int32_t)token_find(t, v->text, v->n) : -1;
    return !v || *id >= 0 || file_bad(f, v->at, field, "\"%.100s\" is not in the vocabulary", v->text);
}

/* The two tokens of a merge: "a b" or ["a", "b"]. */
static bool hf_merge_halves(kl_file *f, const struct json_value *v, struct json_value half[2])
{
    if (v->kind == JSON_ARRAY && v->n == 2 && v->child->kind == JSON_STRING && v->child->next->kind == JSON_STRING) {
        half[0] = *v->child;
        half[1] = *v->child->next;
        return true;
    }
    char *space = v->kind == JSON_STRING ? memchr(v->text, ' ', v->n) : NULL;
    if (!space || memchr(space + 1, ' ', v->n - (size_t)(space + 1 - v->text)))
        return file_bad(f, v->at, "model.merges", "a merge is two tokens with a space between them");
    half[0] = half[1] = *v;
    half[0].n = (size_t)(space - v->text);
    half[1].n = v->n - half[0].n - 1;
    half[1].text = space + 1;
    return true;
}

static bool hf_merge(kl_file *f, kl_tokenizer *t, const struct json_value *v, int32_t rank, struct text_buffer *both)
{
    struct json_value half[2] = {{0}};
    return hf_merge_halves(f, v, half) &&
           merge_add(f, t, (struct merge_text){(uint8_t *)half[0].text, half[0].n, (uint8_t *)half[1].text, half[1].n},
                     rank, both, v->at, "model.merges");
}

static bool hf_pairs(kl_file *f, kl_tokenizer *t, const struct json_value *model)
{
    const struct json_value *merges, *prefix, *suffix;
    struct text_buffer both = {0};
    if (!json_want(f, model, "merges", JSON_ARRAY, true, &merges) ||
        !json_want(f, model, "continuing_subword_prefix", JSON_STRING, false, &prefix) ||
        !json_want(f, model, "end_of_word_suffix", JSON_STRING, false, &suffix) ||
        !json_flag(f, model, "fuse_unk", false, &t->fuse_unknown) ||
        !json_flag(f, model, "byte_fallback", false, &t->byte_fallback) ||
        !json_flag(f, model, "ignore_merges", false, &t->whole_words) ||
        !hf_named_token(f, t, model, "unk_token", &t->unknown))
        return false;
    if (prefix && prefix->n)
        return file_bad(f, prefix->at, "continuing_subword_prefix", "a prefix, which byte pairs are not read with");
    if (suffix && suffix->n && (suffix->n > 40 || !(t->suffix = token_string(f, t, suffix->text, suffix->n))))
        return file_bad(f, suffix->at, "end_of_word_suffix", "a suffix of %zu bytes", suffix->n);
    bool ok = merges_room(f, t, (int64_t)merges->n);
    int32_t rank = 0;
    for (const struct json_value *v = merges->child; ok && v; v = v->next)
        ok = hf_merge(f, t, v, rank++, &both);
    buffer_free(&both);
    return ok;
}

static bool hf_word_pieces(kl_file *f, kl_tokenizer *t, const struct json_value *model)
{
    const struct json_value *prefix, *longest;
    t->max_word = 100;
    if (!json_want(f, model, "continuing_subword_prefix", JSON_STRING, false, &prefix) ||
        !json_want(f, model, "max_input_chars_per_word", JSON_NUMBER, false, &longest) ||
        !hf_named_token(f, t, model, "unk_token", &t->unknown) ||
        (longest && !json_whole(f, longest, "max_input_chars_per_word", INT32_MAX, &t->max_word)))
        return false;
    t->first_prefix = "";
    t->next_prefix = prefix ? token_string(f, t, prefix->text, prefix->n) : "##";
    return t->next_prefix != NULL;
}

static bool hf_unigram(kl_file *f, kl_tokenizer *t, const struct json_value *model)
{
    const struct json_value *unknown;
    int64_t id = -1;
    t->fuse_unknown = true;
    if (!json_want(f, model, "unk_id", JSON_NUMBER, false, &unknown) ||
        (unknown && !json_whole(f, unknown, "unk_id", t->count - 1, &id)) ||
        !json_flag(f, model, "byte_fallback", false, &t->byte_fallback))
        return false;
    t->unknown = (int32_t)id;
    return true;
}

static const struct hf_model {
    const char *type;
    enum token_model model;
    enum json_kind vocab;
    bool (*read)(kl_file *f, kl_tokenizer *t, const struct json_value *model);
} hf_models[] = {{"BPE", MODEL_PAIRS, JSON_OBJECT, hf_pairs}, {"WordPiece", MODEL_WORDS, JSON_OBJECT, hf_word_pieces},
                 {"Unigram", MODEL_UNIGRAM, JSON_ARRAY, hf_unigram}};

/* The model by its type or, in old files, by what it has. */
static const struct hf_model *hf_model_of(kl_file *f, const struct json_value *model)
{
    const struct json_value *type;
    if (!json_want(f, model, "type", JSON_STRING, false, &type))
        return NULL;
    const char *name = type ? type->text : json_member(model, "merges") ? "BPE"
                       : json_member(model, "unk_id") ? "Unigram" : "WordPiece";
    for (size_t i = 0; i < sizeof hf_models / sizeof *hf_models; i++)
        if (!strcmp(hf_models[i].type, name))
            return &hf_models[i];
    file_bad(f, model->at, "model.type", "\"%.60s\"; BPE, WordPiece and Unigram are read", name);
    return NULL;
}

/* What another file of a model's folder is. */
static const char *hf_other_kind(const struct json_value *v)
{
    static const char *const kinds[][2] = {
        {"tokenizer_class", "a tokenizer_config.json: open tokenizer.json"},
        {"chat_template", "a tokenizer_config.json: open tokenizer.json"},
        {"architectures", "the config.json of a model: open tokenizer.json"},
        {"weight_map", "the index of a sharded model: open tokenizer.json"},
        {"bos_token", "a special_tokens_map.json: open tokenizer.json"},
        {"config", "a tekken.json of mistral-common, which is not read: open tokenizer.json"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (json_member(v, kinds[i][0]))
            return kinds[i][1];
    return "a JSON file without a \"model\", not a tokenizer.json";
}

bool huggingface_read(kl_file *f, const struct json_value *v, kl_tokenizer *t)
{
    const struct json_value *model = json_member(v, "model"), *vocab, *added;
    if (!model || model->kind != JSON_OBJECT)
        return file_bad(f, 0, NULL, "this is %s", hf_other_kind(v));
    const struct hf_model *m = hf_model_of(f, model);
    if (!m || !json_want(f, model, "vocab", m->vocab, true, &vocab) ||
        !json_want(f, v, "added_tokens", JSON_ARRAY, false, &added))
        return false;
    t->model = m->model;
    t->byte_level = m->model == MODEL_PAIRS && (has_type(json_member(v, "pre_tokenizer"), "ByteLevel") ||
                                                has_type(json_member(v, "normalizer"), "ByteLevel") ||
                                                has_type(json_member(v, "decoder"), "ByteLevel"));
    return hf_tokens(f, t, vocab, added) && m->read(f, t, model) && huggingface_steps(f, v, t) &&
           hf_recognize_added(f, t, added) && tokens_finish(f, t);
}
