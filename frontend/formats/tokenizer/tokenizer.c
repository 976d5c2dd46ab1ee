/* Tokenizers (<kiln/train/tokenizer.h>): opening one by its first bytes, its tokens. */
#include "tokenizer.h"
#include "frontend/formats/json.h"
#include "json_tree.h"
#include <string.h>

/* ---- steps and added tokens ---- */

struct text_step *step_add(kl_file *f, struct text_steps *s, enum text_step_kind kind, size_t at)
{
    if (s->n == MAX_STEPS)
        return file_bad(f, at, NULL, "more than %d steps", MAX_STEPS), NULL;
    s->step[s->n].kind = kind;
    return &s->step[s->n++];
}

bool step_pattern(kl_file *f, struct text_step *s, const char *text, size_t n, bool literal, size_t at,
                  const char *field)
{
    char why[200] = "";
    if (n == 0)
        return file_bad(f, at, field, "an empty pattern");
    s->pattern = literal ? pattern_new_literal(text, n) : pattern_new(text, n, why, sizeof why);
    return s->pattern || (*why ? file_bad(f, at, field, "%s", why) : file_no_memory(f));
}

bool added_build(kl_file *f, struct added_tokens *a, const struct added_entry *e, int64_t n)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < n; i++)
        bytes += e[i].n;
    if (n == 0)
        return true;
    a->token = kl_memory_alloc((size_t)n * sizeof *a->token);
    if (!a->token)
        return file_no_memory(f);
    if (!trie_room(f, &a->trie, bytes))
        return false;
    for (int64_t i = 0; i < n; i++) {
        if (!e[i].n)
            continue;
        uint8_t first = (uint8_t)e[i].text[0];
        a->token[a->n] = e[i].token;
        a->first[first / 32] |= 1u << first % 32;
        trie_put(&a->trie, (const uint8_t *)e[i].text, e[i].n, (int32_t)a->n++);
    }
    return true;
}

/* ---- opening ---- */

/* What a file is that has no tokenizer; NULL: unknown. */
static const char *file_kind(const kl_file *f)
{
    static const struct { const char *bytes; size_t n, at; const char *is; } kinds[] = {
        {"\x93NUMPY", 6, 0, "a .npy file"}, {"PK\3\4", 4, 0, "a zip archive (.npz, .pth)"},
        {"\x80\2", 2, 0, "a pickle"},
        {"\0\0\0{\"", 5, 5, "a safetensors file, which has no tokenizer: open tokenizer.json"},
        {"#version", 8, 0, "a list of merges (merges.txt): it goes beside vocab.json"},
        {"\x1f\x8b", 2, 0, "a gzip archive"}, {"\x89HDF", 4, 0, "an HDF5 file"},
        {"version https://git-lfs", 23, 0, "a pointer of Git LFS, not the file itself"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (f->size >= kinds[i].at + kinds[i].n && !memcmp(f->bytes + kinds[i].at, kinds[i].bytes, kinds[i].n))
            return kinds[i].is;
    size_t n = 0; /* a line of base64 and a number */
    while (n < f->size && n < 400 && (base64_value(f->bytes[n]) >= 0 || f->bytes[n] == '='))
        n++;
    bool ranked = n && n % 4 == 0 && n + 1 < f->size && f->bytes[n] == ' ';
    bool is_list = ranked && f->bytes[n + 1] >= '0' && f->bytes[n + 1] <= '9';
    return is_list ? "a list of tiktoken's (base64 and ranks), which does not say how text is split: open "
                     "tokenizer.json"
                   : NULL;
}

/* Is it an object whose first value is no number? */
static bool is_json_object(kl_file *f)
{
    struct json j = {.f = f, .start = f->bytes, .p = f->bytes, .end = f->bytes + f->size};
    size_t n;
    bool is = json_is(&j, '{') && !json_end(&j) && *j.p == '"' && json_text(&j, NULL, &n) && json_is(&j, ':') &&
              !json_end(&j) && strchr("\"{[ntf", *j.p);
    f->why.text[0] = 0;
    return is;
}

static bool tokenizer_read(kl_file *f, kl_tokenizer *t, bool merges)
{
    const char *kind = file_kind(f);
    if (kind)
        return file_bad(f, 0, NULL, "this is %s", kind);
    if (gpt2_is_llmc(f) || !merges) {
        if (sentencepiece_is(f))
            return sentencepiece_read(f, t);
        if (is_json_object(f)) {
            const struct json_value *v = json_tree(f, f->bytes, f->size);
            return v && huggingface_read(f, v, t);
        }
    }
    return gpt2_read_vocabulary(f, t, merges);
}

kl_tokenizer *tokenizer_new(void)
{
    kl_tokenizer *t = kl_memory_alloc(sizeof *t);
    if (!t)
        return kl_fail(KL_ERR_MEMORY, "tokenizer_open: out of memory"), NULL;
    memset(t->byte, -1, sizeof t->byte);
    memset(t->special, -1, sizeof t->special);
    t->unknown = -1;
    return t;
}

kl_tokenizer *kl_tokenizer_open(const char *vocabulary, const char *merges)
{
    if (!vocabulary)
        return kl_fail(KL_ERR_ARGUMENT, "tokenizer_open: no path"), NULL;
    const char *path[2] = {vocabulary, merges};
    kl_tokenizer *t = NULL;
    for (int i = 0; i < 2 && path[i]; i++) {
        kl_file *f = file_open_other(path[i]);
        if (f && !i && f->size >= 4 && !memcmp(f->bytes, "GGUF", 4)) {
            kl_file_close(f);
            return gguf_tokenizer_open(vocabulary);
        }
        if (f && !t && !(t = tokenizer_new())) {
            kl_file_close(f);
            return NULL;
        }
        if (f && (i ? gpt2_read_merges(f, t) : tokenizer_read(f, t, merges != NULL))) {
            kl_file_close(f);
            continue;
        }
        if (f)
            file_failed(f);
        kl_tokenizer_close(t);
        return NULL;
    }
    return t;
}

/* ---- closing ---- */

static void steps_free(struct text_steps *s)
{
    for (int i = 0; i < s->n; i++)
        pattern_free(s->step[i].pattern);
}

static void added_free(struct added_tokens *a)
{
    kl_memory_free(a->trie.edge);
    kl_memory_free(a->token);
}

void kl_tokenizer_close(kl_tokenizer *t)
{
    if (!t)
        return;
    kl_memory_free(t->text);
    kl_memory_free(t->start);
    kl_memory_free(t->by_text);
    kl_memory_free(t->type);
    kl_memory_free(t->score);
    kl_memory_free(t->merge);
    kl_memory_free(t->trie.edge);
    added_free(&t->raw);
    added_free(&t->normalized);
    steps_free(&t->normalizer);
    steps_free(&t->splitter);
    steps_free(&t->decoder);
    tokens_free_memory(t);
    kl_memory_free(t);
}

/* ---- tokens ---- */

int64_t kl_tokenizer_count(const kl_tokenizer *t) { return t ? t->count : 0; }

const char *kl_tokenizer_text(const kl_tokenizer *t, int64_t id, int64_t *bytes)
{
    bool there = t && id >= 0 && id < t->count && !(t->type && t->type[id] == TOKEN_NONE);
    if (bytes)
        *bytes = there ? t->start[id + 1] - t->start[id] : 0;
    return there ? (const char *)t->text + t->start[id] : NULL;
}

int64_t kl_tokenizer_find(const kl_tokenizer *t, const char *text, int64_t bytes)
{
    return t && text && bytes > 0 ? token_find(t, text, (size_t)bytes) : -1;
}

int64_t kl_tokenizer_special(const kl_tokenizer *t, kl_token_special which)
{
    return t && (unsigned)which < KL_TOKEN_SPECIALS ? t->special[which] : -1;
}
