/* .model files of sentencepiece: a protobuf message with the pieces, what they were trained with, and how text is
 * normalized (sentencepiece_model.proto). */
#include "tokenizer.h"
#include "frontend/formats/json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One field of a message. */
struct sp_field { uint32_t number, wire; uint64_t value; const uint8_t *bytes; size_t n, at; };
struct sp_message { kl_file *f; const uint8_t *p, *end; };
enum { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };

static bool sp_varint(struct sp_message *m, uint64_t *v)
{
    *v = 0;
    for (unsigned shift = 0; m->p < m->end && shift < 64; shift += 7) {
        uint8_t byte = *m->p++;
        *v |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return file_bad(m->f, (size_t)(m->p - m->f->bytes), NULL, "a number that is cut off or too long");
}

static bool sp_fixed(struct sp_message *m, size_t n, uint64_t *v)
{
    *v = 0;
    if ((size_t)(m->end - m->p) < n)
        return file_bad(m->f, (size_t)(m->p - m->f->bytes), NULL, "the message is cut off");
    for (size_t i = n; i--;)
        *v = *v << 8 | m->p[i];
    m->p += n;
    return true;
}

/* The next field; *more false: there is none. */
static bool sp_next(struct sp_message *m, struct sp_field *to, bool *more)
{
    uint64_t key;
    *more = m->p < m->end;
    *to = (struct sp_field){.at = (size_t)(m->p - m->f->bytes)};
    if (!*more)
        return true;
    if (!sp_varint(m, &key))
        return false;
    to->number = (uint32_t)(key >> 3);
    to->wire = key & 7;
    if (to->wire == WIRE_64 || to->wire == WIRE_32)
        return sp_fixed(m, to->wire == WIRE_64 ? 8 : 4, &to->value);
    if (to->wire != WIRE_VARINT && to->wire != WIRE_BYTES)
        return file_bad(m->f, to->at, NULL, "a field of wire type %u, which is none", (unsigned)to->wire);
    if (!sp_varint(m, &to->value))
        return false;
    if (to->wire == WIRE_VARINT)
        return true;
    if (to->value > (size_t)(m->end - m->p))
        return file_bad(m->f, to->at, NULL, "a field of %llu bytes: the message is cut off",
                        (unsigned long long)to->value);
    to->bytes = m->p;
    to->n = (size_t)to->value;
    m->p += to->n;
    return true;
}

/* ---- pieces ---- */

enum sp_type { SP_NORMAL = 1, SP_UNKNOWN, SP_CONTROL, SP_USER, SP_UNUSED, SP_BYTE };
enum sp_model { SP_UNIGRAM = 1, SP_PAIRS };
struct sp_state {
    kl_file *f;
    kl_tokenizer *t;
    struct token_entry *e;
    int64_t n;
    uint64_t model;
    int64_t special[KL_TOKEN_SPECIALS];
    bool suffix;              /* U+2581 is behind words */
    struct text_step spaces;
    const uint8_t *charsmap;
    size_t charsmap_n, charsmap_at;
};

static bool sp_piece(struct sp_state *s, const struct sp_field *field)
{
    static const enum token_type types[] = {TOKEN_NORMAL, TOKEN_NORMAL, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER,
                                            TOKEN_NONE, TOKEN_BYTE};
    struct sp_message m = {s->f, field->bytes, field->bytes + field->n};
    struct sp_field part;
    struct token_entry *e = &s->e[s->n];
    *e = (struct token_entry){.text = "", .id = s->n, .at = field->at, .type = TOKEN_NORMAL};
    for (bool more = true; more;) {
        if (!sp_next(&m, &part, &more))
            return false;
        float score;
        uint32_t bits = (uint32_t)part.value;
        if (part.number == 1 && part.wire == WIRE_BYTES) {
            e->text = (const char *)part.bytes;
            e->n = part.n;
        } else if (part.number == 2 && part.wire == WIRE_32) {
            memcpy(&score, &bits, sizeof score);
            e->score = (double)score;
        } else if (part.number == 3 && part.wire == WIRE_VARINT) {
            if (part.value < SP_NORMAL || part.value > SP_BYTE)
                return file_bad(s->f, part.at, "type", "%llu", (unsigned long long)part.value);
            e->type = types[part.value];
        }
    }
    if (!e->n || !isfinite(e->score))
        return file_bad(s->f, field->at, "pieces", "piece %lld has %s", (long long)s->n,
                        e->n ? "no finite score" : "no text");
    s->n++;
    return true;
}

/* ---- specifications ---- */

static bool sp_trainer(struct sp_state *s, const struct sp_field *field)
{
    struct sp_message m = {s->f, field->bytes, field->bytes + field->n};
    struct sp_field part;
    for (bool more = true; more;) {
        if (!sp_next(&m, &part, &more))
            return false;
        int64_t id = (int32_t)part.value;
        switch (part.wire == WIRE_VARINT ? part.number : 0) {
        case 3: s->model = part.value; break;
        case 24: s->suffix = part.value != 0; break;
        case 35: s->t->byte_fallback = part.value != 0; break;
        case 40: s->special[KL_TOKEN_UNKNOWN] = id; break;
        case 41: s->special[KL_TOKEN_BOS] = id; break;
        case 42: s->special[KL_TOKEN_EOS] = id; break;
        case 43: s->special[KL_TOKEN_PAD] = id; break;
        default: break;
        }
    }
    return true;
}

static bool sp_normalizer(struct sp_state *s, const struct sp_field *field)
{
    struct sp_message m = {s->f, field->bytes, field->bytes + field->n};
    struct sp_field part;
    for (bool more = true; more;) {
        if (!sp_next(&m, &part, &more))
            return false;
        bool flag = part.value != 0;
        if (part.number == 2 && part.wire == WIRE_BYTES) {
            s->charsmap = part.bytes;
            s->charsmap_n = part.n;
            s->charsmap_at = part.at;
        }
        switch (part.wire == WIRE_VARINT ? part.number : 0) {
        case 3: s->spaces.put_first = flag; break;
        case 4: s->spaces.trim = s->spaces.single = flag; break;
        case 5: s->spaces.escape = flag; break;
        default: break;
        }
    }
    return true;
}

static bool sp_read_message(struct sp_state *s)
{
    struct sp_message m = {s->f, s->f->bytes, s->f->bytes + s->f->size};
    struct sp_field field;
    bool ok = true;
    for (bool more = true; ok && more;) {
        ok = sp_next(&m, &field, &more);
        if (!ok || field.wire != WIRE_BYTES)
            continue;
        ok = field.number == 1 ? sp_piece(s, &field) : field.number == 2 ? sp_trainer(s, &field)
             : field.number == 3 ? sp_normalizer(s, &field) : true;
    }
    return ok;
}

/* ---- the tokenizer ---- */

bool sentencepiece_is(const kl_file *f)
{
    size_t n = f->size > 4 ? f->bytes[1] : 0; /* a first piece of a few bytes, which begins with its text */
    return n >= 2 && n < 128 && f->bytes[0] == 0x0a && f->bytes[2] == 0x0a && f->bytes[3] <= n - 2 && f->size >= n + 2;
}

static int token_score_order(const void *a, const void *b)
{
    double x = (*(const struct token_entry *const *)a)->score, y = (*(const struct token_entry *const *)b)->score;
    return x > y ? -1 : x < y;
}

bool tokens_rank_scores(kl_file *f, struct token_entry *e, int64_t n)
{
    struct token_entry **order = kl_memory_alloc((size_t)n * sizeof *order + 1);
    if (!order)
        return file_no_memory(f);
    for (int64_t i = 0; i < n; i++)
        order[i] = &e[i];
    qsort(order, (size_t)n, sizeof *order, token_score_order);
    double rank = -1, before = 0;
    for (int64_t i = 0; i < n; i++) {
        double score = order[i]->score;
        rank += i == 0 || score != before;
        before = score;
        order[i]->score = rank;
    }
    kl_memory_free(order);
    return true;
}

double tokens_unknown_score(const struct token_entry *e, int64_t n)
{
    double least = 0;
    bool any = false;
    for (int64_t i = 0; i < n; i++)
        if (e[i].type == TOKEN_NORMAL && (!any || e[i].score < least)) {
            least = e[i].score;
            any = true;
        }
    return least - 10;
}

bool tokens_join_marks(kl_file *f, kl_tokenizer *t, bool put_first, bool trim)
{
    static const enum text_step_kind kinds[] = {STEP_REPLACE, STEP_BYTES, STEP_FUSE, STEP_STRIP_TEXT};
    for (int i = 0; i < 3 + put_first; i++) {
        struct text_step *s = step_add(f, &t->decoder, kinds[i], 0);
        if (!s || (i == 0 && !step_pattern(f, s, "\xe2\x96\x81", 3, true, 0, NULL)))
            return false;
        s->text = " ";
        s->n = 1;
        s->first = i < 3 ? 0 : trim ? INT32_MAX : 1;
    }
    return true;
}

bool tokens_recognize(kl_file *f, kl_tokenizer *t, const struct token_entry *e, int64_t n)
{
    struct added_entry *a = kl_memory_alloc(2 * (size_t)n * sizeof *a + 1);
    int64_t count[2] = {0, 0};
    bool ok = a || file_no_memory(f);
    for (int64_t i = 0; ok && i < n; i++)
        if (e[i].type == TOKEN_CONTROL || e[i].type == TOKEN_USER) {
            bool user = e[i].type == TOKEN_USER && !t->byte_level;
            a[user * n + count[user]++] = (struct added_entry){
                e[i].text, e[i].n, {.id = (int32_t)e[i].id, .special = e[i].type == TOKEN_CONTROL}};
        }
    ok = ok && added_build(f, &t->raw, a, count[0]) && added_build(f, &t->normalized, a + n, count[1]);
    kl_memory_free(a);
    return ok;
}

/* Steps of the normalizer: the table of characters, then spaces. */
static bool sp_steps(struct sp_state *s)
{
    struct text_steps *to = &s->t->normalizer;
    if (s->charsmap_n) {
        struct text_step *c = step_add(s->f, to, STEP_CHARSMAP, s->charsmap_at);
        c->map = charsmap_read(s->f, s->t, s->charsmap, s->charsmap_n, s->charsmap_at, "precompiled_charsmap");
        if (!c->map)
            return false;
    }
    struct text_step *spaces = step_add(s->f, to, STEP_SPACES, 0);
    *spaces = s->spaces;
    spaces->kind = STEP_SPACES;
    return tokens_join_marks(s->f, s->t, s->spaces.put_first, s->spaces.trim);
}

static bool sp_build(struct sp_state *s)
{
    kl_tokenizer *t = s->t;
    if (s->suffix)
        return file_bad(s->f, 0, "treat_whitespace_as_suffix", "spaces behind words are not read");
    if (s->model != SP_UNIGRAM && s->model != SP_PAIRS)
        return file_bad(s->f, 0, "model_type", "%llu; 1 (Unigram) and 2 (byte pairs) are read",
                        (unsigned long long)s->model);
    t->model = s->model == SP_PAIRS ? MODEL_SCORES : MODEL_UNIGRAM;
    t->unknown_score = tokens_unknown_score(s->e, s->n);
    t->fuse_unknown = true;
    if ((t->model == MODEL_SCORES && !tokens_rank_scores(s->f, s->e, s->n)) ||
        !tokens_build(s->f, t, s->e, s->n, "pieces"))
        return false;
    for (int i = 0; i < KL_TOKEN_SPECIALS; i++)
        if (s->special[i] >= t->count)
            return file_bad(s->f, 0, "trainer_spec", "a special token has the id %lld of %lld pieces",
                            (long long)s->special[i], (long long)t->count);
    memcpy(t->special, s->special, sizeof t->special);
    t->unknown = (int32_t)s->special[KL_TOKEN_UNKNOWN];
    return sp_steps(s) && tokens_recognize(s->f, t, s->e, s->n) && tokens_finish(s->f, t);
}

bool sentencepiece_read(kl_file *f, kl_tokenizer *t)
{
    struct sp_state s = {.f = f, .t = t, .model = SP_UNIGRAM, .special = {1, 2, 0, -1},
                         .spaces = {.put_first = true, .trim = true, .single = true, .escape = true}};
    s.e = kl_memory_alloc((f->size / 4 + 1) * sizeof *s.e); /* a piece has at least four bytes */
    bool ok = s.e ? sp_read_message(&s) && sp_build(&s) : file_no_memory(f);
    kl_memory_free(s.e);
    return ok;
}
