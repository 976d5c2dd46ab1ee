/* tokenizer.json: the normalizer, pre-tokenizer, post-processor and decoder. */
#include "json_tree.h"
#include "tokenizer.h"
#include <string.h>

/* What a step is read with. */
struct hf_reader { kl_file *f; kl_tokenizer *t; struct text_steps *to; const char *field; };

static struct text_step *hf_step(struct hf_reader *r, const struct json_value *v, enum text_step_kind kind)
{
    return step_add(r->f, r->to, kind, v->at);
}

/* A text of a field, kept; NULL: f->why. */
static bool hf_text(struct hf_reader *r, const struct json_value *v, const char *name, struct text_step *s)
{
    const struct json_value *text;
    if (!json_want(r->f, v, name, JSON_STRING, true, &text))
        return false;
    s->text = token_string(r->f, r->t, text->text, text->n);
    s->n = text->n;
    return s->text != NULL;
}

/* {"String": ..} or {"Regex": ..} */
static bool hf_pattern(struct hf_reader *r, const struct json_value *v, struct text_step *s)
{
    const struct json_value *pattern, *text;
    if (!json_want(r->f, v, "pattern", JSON_OBJECT, true, &pattern))
        return false;
    bool literal = json_member(pattern, "String") != NULL;
    return json_want(r->f, pattern, literal ? "String" : "Regex", JSON_STRING, true, &text) &&
           step_pattern(r->f, s, text->text, text->n, literal, text->at, r->field);
}

/* ---- the normalizer ---- */

static bool hf_bert(struct hf_reader *r, const struct json_value *v)
{
    struct text_step *s = hf_step(r, v, STEP_BERT);
    return s && json_flag(r->f, v, "clean_text", true, &s->clean) &&
           json_flag(r->f, v, "handle_chinese_chars", true, &s->chinese) &&
           json_flag(r->f, v, "lowercase", true, &s->lower) &&
           json_flag(r->f, v, "strip_accents", s->lower, &s->accents);
}

static bool hf_normal_form(struct hf_reader *r, const struct json_value *v)
{
    const char *name = json_member(v, "type")->text; /* NFC, NFD, NFKC, NFKD */
    struct text_step *s = hf_step(r, v, STEP_NORMAL_FORM);
    if (!s)
        return false;
    s->compatible = name[2] == 'K';
    s->compose = name[strlen(name) - 1] == 'C';
    return true;
}

static bool hf_strip(struct hf_reader *r, const struct json_value *v)
{
    struct text_step *s = hf_step(r, v, STEP_STRIP);
    return s && json_flag(r->f, v, "strip_left", true, &s->left) && json_flag(r->f, v, "strip_right", true, &s->right);
}

static bool hf_replace(struct hf_reader *r, const struct json_value *v)
{
    struct text_step *s = hf_step(r, v, STEP_REPLACE);
    return s && hf_pattern(r, v, s) && hf_text(r, v, "content", s);
}

static bool hf_prepend(struct hf_reader *r, const struct json_value *v)
{
    struct text_step *s = hf_step(r, v, STEP_PREPEND);
    return s && hf_text(r, v, "prepend", s);
}

static bool hf_lowercase(struct hf_reader *r, const struct json_value *v) { return hf_step(r, v, STEP_LOWERCASE); }
static bool hf_accents(struct hf_reader *r, const struct json_value *v) { return hf_step(r, v, STEP_STRIP_ACCENTS); }
static bool hf_nothing(struct hf_reader *r, const struct json_value *v) { return r && v; }

static bool hf_charsmap(struct hf_reader *r, const struct json_value *v)
{
    const struct json_value *text;
    if (!json_want(r->f, v, "precompiled_charsmap", JSON_STRING, false, &text))
        return false;
    if (!text || !text->n)
        return true;
    uint8_t *bytes = file_memory(r->f, text->n);
    size_t n = 0;
    unsigned bits = 0, have = 0;
    for (size_t i = 0; bytes && i < text->n && text->text[i] != '='; i++) {
        int value = base64_value((uint8_t)text->text[i]);
        if (value < 0)
            return file_bad(r->f, text->at, "precompiled_charsmap", "no base64");
        bits = bits << 6 | (unsigned)value;
        have += 6;
        if (have >= 8) {
            have -= 8;
            bytes[n++] = (uint8_t)(bits >> have);
        }
    }
    struct text_step *s = bytes ? hf_step(r, v, STEP_CHARSMAP) : NULL;
    if (!s)
        return false;
    s->graphemes = true;
    s->map = charsmap_read(r->f, r->t, bytes, n, text->at, "precompiled_charsmap");
    return s->map != NULL;
}

/* ---- the pre-tokenizer ---- */

/* What becomes of the matches. */
static bool hf_behaviour(struct hf_reader *r, const struct json_value *v, struct text_step *s)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const struct json_value *name;
    s->behaviour = SPLIT_ISOLATED;
    if (!json_want(r->f, v, "behavior", JSON_STRING, false, &name))
        return false;
    for (int i = 0; name && i < 5; i++)
        if (json_text_is(name, names[i])) {
            s->behaviour = (enum split_behaviour)i;
            return true;
        }
    return !name || file_bad(r->f, name->at, r->field, "the behavior \"%.60s\" is not read", name->text);
}

/* A split by a pattern that the format does not have in the file. */
static bool hf_split_by(struct hf_reader *r, const struct json_value *v, const char *pattern,
                        enum split_behaviour behaviour)
{
    struct text_step *s = hf_step(r, v, STEP_SPLIT);
    if (s)
        s->behaviour = behaviour;
    return s && step_pattern(r->f, s, pattern, strlen(pattern), false, v->at, r->field);
}

static bool hf_byte_level(struct hf_reader *r, const struct json_value *v)
{
    bool space, split;
    if (!json_flag(r->f, v, "add_prefix_space", true, &space) || !json_flag(r->f, v, "use_regex", true, &split))
        return false;
    return (!space || hf_step(r, v, STEP_PREFIX_SPACE)) && (!split || hf_split_by(r, v, gpt2_pattern, SPLIT_ISOLATED));
}

static bool hf_split(struct hf_reader *r, const struct json_value *v)
{
    struct text_step *s = hf_step(r, v, STEP_SPLIT);
    return s && hf_pattern(r, v, s) && hf_behaviour(r, v, s) && json_flag(r->f, v, "invert", false, &s->invert);
}

static bool hf_digits(struct hf_reader *r, const struct json_value *v)
{
    bool each;
    return json_flag(r->f, v, "individual_digits", false, &each) &&
           hf_split_by(r, v, each ? "\\p{N}" : "\\p{N}+", SPLIT_ISOLATED);
}

static const char punctuation[] = "[\\p{P}$+<=>^`|~]"; /* Unicode's and ASCII's */

static bool hf_punctuation(struct hf_reader *r, const struct json_value *v)
{
    return hf_split_by(r, v, punctuation, SPLIT_ISOLATED) && hf_behaviour(r, v, &r->to->step[r->to->n - 1]);
}

static bool hf_white_space(struct hf_reader *r, const struct json_value *v)
{
    bool ok = hf_split_by(r, v, "\\w+|[^\\w\\s]+", SPLIT_REMOVED);
    if (ok)
        r->to->step[r->to->n - 1].invert = true;
    return ok;
}

static bool hf_space_split(struct hf_reader *r, const struct json_value *v)
{
    return hf_split_by(r, v, "\\s", SPLIT_REMOVED);
}

static bool hf_bert_split(struct hf_reader *r, const struct json_value *v)
{
    return hf_space_split(r, v) && hf_split_by(r, v, punctuation, SPLIT_ISOLATED);
}

static bool hf_delimiter(struct hf_reader *r, const struct json_value *v)
{
    const struct json_value *text;
    struct text_step *s = hf_step(r, v, STEP_SPLIT);
    return s && json_want(r->f, v, "delimiter", JSON_STRING, true, &text) &&
           step_pattern(r->f, s, text->text, text->n, true, text->at, r->field);
}

/* Metaspace, of the pre-tokenizer and of the decoder. */
static bool hf_metaspace(struct hf_reader *r, const struct json_value *v)
{
    struct text_step *s = hf_step(r, v, r->to == &r->t->decoder ? STEP_METASPACE_JOIN : STEP_METASPACE);
    const struct json_value *scheme;
    bool prefix;
    if (!s || !hf_text(r, v, "replacement", s) || !json_want(r->f, v, "prepend_scheme", JSON_STRING, false, &scheme) ||
        !json_flag(r->f, v, "add_prefix_space", true, &prefix) || !json_flag(r->f, v, "split", true, &s->split))
        return false;
    s->prefix = !prefix || json_text_is(scheme, "never") ? PREFIX_NEVER
                : json_text_is(scheme, "first") ? PREFIX_FIRST : PREFIX_ALWAYS;
    return s->n > 0 || file_bad(r->f, v->at, r->field, "an empty replacement of spaces");
}

/* ---- the decoder ---- */

static bool hf_join_pieces(struct hf_reader *r, const struct json_value *v)
{
    struct text_step *s = hf_step(r, v, STEP_WORD_PIECES);
    return s && hf_text(r, v, "prefix", s) && json_flag(r->f, v, "cleanup", true, &s->clean);
}

static bool hf_join_bytes(struct hf_reader *r, const struct json_value *v) { return hf_step(r, v, STEP_BYTES); }
static bool hf_fuse(struct hf_reader *r, const struct json_value *v) { return hf_step(r, v, STEP_FUSE); }

static bool hf_strip_text(struct hf_reader *r, const struct json_value *v)
{
    struct text_step *s = hf_step(r, v, STEP_STRIP_TEXT);
    const struct json_value *start, *stop;
    return s && hf_text(r, v, "content", s) && json_want(r->f, v, "start", JSON_NUMBER, true, &start) &&
           json_want(r->f, v, "stop", JSON_NUMBER, true, &stop) &&
           json_whole(r->f, start, r->field, INT32_MAX, &s->first) &&
           json_whole(r->f, stop, r->field, INT32_MAX, &s->last) &&
           (s->n || file_bad(r->f, v->at, r->field, "an empty text to strip"));
}

static bool hf_suffix(struct hf_reader *r, const struct json_value *v)
{
    struct text_step *s = hf_step(r, v, STEP_SUFFIX_SPACE);
    return s && hf_text(r, v, "suffix", s) && (s->n || file_bad(r->f, v->at, r->field, "an empty suffix"));
}

/* ---- lists of steps ---- */

enum hf_part { PART_NORMALIZER, PART_SPLITTER, PART_DECODER };
static const struct hf_kind {
    const char *type;
    enum hf_part part;
    bool (*read)(struct hf_reader *r, const struct json_value *v);
} hf_kinds[] = {
    {"BertNormalizer", PART_NORMALIZER, hf_bert}, {"NFC", PART_NORMALIZER, hf_normal_form},
    {"NFD", PART_NORMALIZER, hf_normal_form}, {"NFKC", PART_NORMALIZER, hf_normal_form},
    {"NFKD", PART_NORMALIZER, hf_normal_form}, {"Strip", PART_NORMALIZER, hf_strip},
    {"StripAccents", PART_NORMALIZER, hf_accents}, {"Lowercase", PART_NORMALIZER, hf_lowercase},
    {"Replace", PART_NORMALIZER, hf_replace}, {"Prepend", PART_NORMALIZER, hf_prepend},
    {"Precompiled", PART_NORMALIZER, hf_charsmap}, {"ByteLevel", PART_NORMALIZER, hf_nothing},
    {"ByteLevel", PART_SPLITTER, hf_byte_level}, {"Split", PART_SPLITTER, hf_split},
    {"Digits", PART_SPLITTER, hf_digits}, {"Punctuation", PART_SPLITTER, hf_punctuation},
    {"Whitespace", PART_SPLITTER, hf_white_space}, {"WhitespaceSplit", PART_SPLITTER, hf_space_split},
    {"BertPreTokenizer", PART_SPLITTER, hf_bert_split}, {"Metaspace", PART_SPLITTER, hf_metaspace},
    {"CharDelimiterSplit", PART_SPLITTER, hf_delimiter}, {"ByteLevel", PART_DECODER, hf_nothing},
    {"WordPiece", PART_DECODER, hf_join_pieces}, {"ByteFallback", PART_DECODER, hf_join_bytes},
    {"Fuse", PART_DECODER, hf_fuse}, {"Strip", PART_DECODER, hf_strip_text}, {"Replace", PART_DECODER, hf_replace},
    {"Metaspace", PART_DECODER, hf_metaspace}, {"BPEDecoder", PART_DECODER, hf_suffix}};

static bool hf_read_step(struct hf_reader *r, enum hf_part part, const struct json_value *v)
{
    static const char *const lists[] = {"normalizers", "pretokenizers", "decoders"};
    const struct json_value *type, *list;
    if (v->kind != JSON_OBJECT || !json_want(r->f, v, "type", JSON_STRING, true, &type))
        return v->kind == JSON_OBJECT ? false : file_bad(r->f, v->at, r->field, "expected an object");
    if (json_text_is(type, "Sequence")) {
        bool ok = json_want(r->f, v, lists[part], JSON_ARRAY, true, &list);
        for (const struct json_value *c = ok ? list->child : NULL; ok && c; c = c->next)
            ok = hf_read_step(r, part, c);
        return ok;
    }
    for (size_t i = 0; i < sizeof hf_kinds / sizeof *hf_kinds; i++)
        if (hf_kinds[i].part == part && json_text_is(type, hf_kinds[i].type))
            return hf_kinds[i].read(r, v);
    return file_bad(r->f, v->at, r->field, "\"%.60s\" is not read", type->text);
}

static bool hf_read_part(kl_file *f, kl_tokenizer *t, enum hf_part part, const struct json_value *v)
{
    static const char *const fields[] = {"normalizer", "pre_tokenizer", "decoder"};
    struct text_steps *const to[] = {&t->normalizer, &t->splitter, &t->decoder};
    struct hf_reader r = {f, t, to[part], fields[part]};
    const struct json_value *of = json_member(v, fields[part]);
    return !of || hf_read_step(&r, part, of);
}

/* ---- the post-processor: ids in front of and behind a text ---- */

static bool hf_add_end(kl_file *f, kl_tokenizer *t, bool behind, const struct json_value *id)
{
    int64_t v, *n = behind ? &t->end_n : &t->begin_n;
    int32_t **list = behind ? &t->end : &t->begin;
    if (!id || !json_whole(f, id, "post_processor", t->count - 1, &v))
        return id ? false : file_bad(f, 0, "post_processor", "a token without an id");
    int32_t *longer = token_memory(f, t, ((size_t)*n + 1) * sizeof *longer);
    if (!longer)
        return false;
    if (*n)
        memcpy(longer, *list, (size_t)*n * sizeof *longer);
    longer[(*n)++] = (int32_t)v;
    *list = longer;
    return true;
}

/* The parts of a text by itself: special tokens and the text, which is a Sequence. */
static bool hf_template(kl_file *f, kl_tokenizer *t, const struct json_value *v)
{
    const struct json_value *single, *tokens, *name, *ids;
    bool behind = false, ok = json_want(f, v, "single", JSON_ARRAY, true, &single) &&
                              json_want(f, v, "special_tokens", JSON_OBJECT, false, &tokens);
    for (const struct json_value *c = ok ? single->child : NULL; ok && c; c = c->next) {
        const struct json_value *special = json_member(c, "SpecialToken");
        if (json_member(c, "Sequence")) {
            ok = !behind || file_bad(f, c->at, "post_processor", "a text that is there twice");
            behind = true;
            continue;
        }
        ok = special ? json_want(f, special, "id", JSON_STRING, true, &name)
                     : file_bad(f, c->at, "post_processor", "expected a SpecialToken or a Sequence");
        const struct json_value *token = ok ? json_member(tokens, name->text) : NULL;
        ok = ok && (token ? json_want(f, token, "ids", JSON_ARRAY, true, &ids)
                          : file_bad(f, c->at, "post_processor", "\"%.60s\" is no special token of it", name->text));
        for (const struct json_value *id = ok ? ids->child : NULL; ok && id; id = id->next)
            ok = hf_add_end(f, t, behind, id);
    }
    return ok;
}

/* BERT's and RoBERTa's: ["[CLS]", 101] and ["[SEP]", 102]. */
static bool hf_begin_end(kl_file *f, kl_tokenizer *t, const struct json_value *v)
{
    static const char *const names[] = {"cls", "sep"};
    bool ok = true;
    for (int i = 0; ok && i < 2; i++) {
        const struct json_value *pair;
        ok = json_want(f, v, names[i], JSON_ARRAY, true, &pair) &&
             hf_add_end(f, t, i, pair->child ? pair->child->next : NULL);
    }
    return ok;
}

static bool hf_post(kl_file *f, kl_tokenizer *t, const struct json_value *v)
{
    const struct json_value *type, *list;
    if (!json_want(f, v, "type", JSON_STRING, true, &type))
        return false;
    if (json_text_is(type, "TemplateProcessing"))
        return hf_template(f, t, v);
    if (json_text_is(type, "BertProcessing") || json_text_is(type, "RobertaProcessing"))
        return hf_begin_end(f, t, v);
    bool ok = true;
    if (json_text_is(type, "Sequence")) {
        ok = json_want(f, v, "processors", JSON_ARRAY, true, &list);
        for (const struct json_value *c = ok ? list->child : NULL; ok && c; c = c->next)
            ok = hf_post(f, t, c);
        return ok;
    }
    return json_text_is(type, "ByteLevel") || /* is about offsets */
           file_bad(f, v->at, "post_processor", "\"%.60s\" is not read", type->text);
}

bool huggingface_steps(kl_file *f, const struct json_value *v, kl_tokenizer *t)
{
    const struct json_value *post = json_member(v, "post_processor");
    t->join_by_spaces = !json_member(v, "decoder");
    return hf_read_part(f, t, PART_NORMALIZER, v) && hf_read_part(f, t, PART_SPLITTER, v) &&
           hf_read_part(f, t, PART_DECODER, v) && (!post || hf_post(f, t, post));
}
