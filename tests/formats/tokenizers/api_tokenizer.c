/* Byte-pair tokenizers on vocabularies made here: words, merges against a plain loop, round trips, damaged files. */
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <unistd.h>

static char folder[64] = "/tmp/kiln-tokenizer-XXXXXX", vocab_path[100], merges_path[100], llmc_path[100];

struct text { char *at; size_t n, cap; };

static void put(struct text *t, const void *bytes, size_t n)
{
    if (t->n + n + 1 > t->cap) {
        t->cap = 2 * (t->n + n + 1);
        t->at = realloc(t->at, t->cap);
        if (!t->at)
            exit(1);
    }
    memcpy(t->at + t->n, bytes, n);
    t->n += n;
    t->at[t->n] = 0;
}

static void puts_to(struct text *t, const char *s) { put(t, s, strlen(s)); }

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

static uint32_t random_next(uint32_t *state) { return *state = *state * 1664525 + 1013904223, *state >> 8; }

/* ---- vocabularies: the 256 bytes, then what merges make ---- */

enum { MAX_COUNT = 12000, LONGEST = 64 };
struct token { uint8_t text[LONGEST]; int n; };
static struct token token[MAX_COUNT];
static int tokens, merges, left[MAX_COUNT], right[MAX_COUNT], made[MAX_COUNT];

static void vocab_start(void)
{
    tokens = merges = 0;
    for (int i = 0; i < 256; i++)
        token[tokens++] = (struct token){{(uint8_t)i}, 1};
}

static int vocab_find(const void *text, int n)
{
    for (int i = 0; i < tokens; i++)
        if (token[i].n == n && !memcmp(token[i].text, text, (size_t)n))
            return i;
    return -1;
}

/* What the two become; nothing new where they are merged already. */
static int merge(int a, int b)
{
    for (int i = 0; i < merges; i++)
        if (left[i] == a && right[i] == b)
            return made[i];
    struct token t = {.n = token[a].n + token[b].n};
    memcpy(t.text, token[a].text, (size_t)token[a].n);
    memcpy(t.text + token[a].n, token[b].text, (size_t)token[b].n);
    int id = vocab_find(t.text, t.n);
    if (id < 0)
        token[id = tokens++] = t;
    left[merges] = a, right[merges] = b, made[merges++] = id;
    return id;
}

static int merge_text(const char *a, const char *b)
{
    return merge(vocab_find(a, (int)strlen(a)), vocab_find(b, (int)strlen(b)));
}

/* GPT-2's characters: printable bytes of Latin-1 are themselves, the others count up from 256. */
static void put_token(struct text *t, const struct token *k, bool json)
{
    for (int i = 0; i < k->n; i++) {
        unsigned c = 0, others = 0;
        for (unsigned b = 0; b <= k->text[i]; b++) {
            bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
            c = itself ? b : 256 + others++;
        }
        if (c >= 0x80)
            put(t, (char[]){(char)(0xc0 | c >> 6), (char)(0x80 | (c & 63))}, 2);
        else
            put(t, (char[]){json && (c == '"' || c == '\\') ? '\\' : (char)c, (char)c},
                json && (c == '"' || c == '\\') ? 2 : 1);
    }
}

static void put_number(struct text *t, uint32_t v) { put(t, &v, 4); }

static struct text vocab_text, merges_text, llmc_text;

/* The files of the vocabulary, in memory and in the folder. */
static void vocab_write(void)
{
    char number[32];
    vocab_text.n = merges_text.n = llmc_text.n = 0;
    puts_to(&merges_text, "#version: 0.2\n");
    for (int i = tokens - 1; i >= 0; i--) { /* the order in the object does not matter */
        puts_to(&vocab_text, i == tokens - 1 ? "{\"" : ", \"");
        put_token(&vocab_text, &token[i], true);
        snprintf(number, sizeof number, "\": %d", i);
        puts_to(&vocab_text, number);
    }
    puts_to(&vocab_text, "}\n");
    for (int i = 0; i < merges; i++) {
        put_token(&merges_text, &token[left[i]], false);
        puts_to(&merges_text, " ");
        put_token(&merges_text, &token[right[i]], false);
        puts_to(&merges_text, "\n");
    }
    for (int i = 0; i < 256; i++)
        put_number(&llmc_text, i == 0 ? 20240328 : i == 1 ? 2 : i == 2 ? (uint32_t)tokens : 0);
    for (int i = 0; i < tokens; i++) {
        put(&llmc_text, &(uint8_t){(uint8_t)token[i].n}, 1);
        put(&llmc_text, token[i].text, (size_t)token[i].n);
    }
    write_file(vocab_path, vocab_text.at, vocab_text.n);
    write_file(merges_path, merges_text.at, merges_text.n);
    write_file(llmc_path, llmc_text.at, llmc_text.n);
}

/* ---- checks ---- */

/* The ids of a text; their number. */
static int64_t encode(const kl_tokenizer *t, const void *text, int64_t n, int32_t *ids)
{
    int64_t count = -1;
    CHECK(kl_tokenizer_encode(t, text, n, ids, &count) == KL_OK && count <= n);
    return count;
}

static bool round_trip(const kl_tokenizer *t, const uint8_t *text, int64_t n)
{
    static int32_t ids[20000];
    static char back[20000];
    int64_t count = encode(t, text, n, ids), bytes = -1;
    return kl_tokenizer_decode(t, count, ids, back, sizeof back, &bytes) == KL_OK && bytes == n &&
           !memcmp(back, text, (size_t)n);
}

static void by_hand(void)
{
    vocab_start();
    int ll = merge_text("l", "l"), he = merge_text("h", "e"), hell = merge_text("he", "ll");
    int hello = merge_text("hell", "o"), space_w = merge_text(" ", "w"), aa = merge_text("a", "a");
    merge_text("o", " "); /* no word has it */
    token[tokens++] = (struct token){"<|end|>", 7};
    vocab_write();
    kl_tokenizer *t = kl_tokenizer_open(vocab_path, merges_path);
    if (!CHECK(t && kl_tokenizer_count(t) == tokens))
        return;
    static const struct { const char *text; int n, ids[8]; } *c, cases[] = {
        {"hello", 1, {259}}, {"hello wo", 3, {259, 260, 'o'}}, {"llll", 2, {256, 256}}, {"hel", 2, {257, 'l'}},
        {"aaa", 2, {261, 'a'}}, {"", 0, {0}}, {"o  w", 3, {'o', ' ', 260}},
        {"<|end|>", 7, {'<', '|', 'e', 'n', 'd', '|', '>'}}};
    CHECK(ll == 256 && he == 257 && hell == 258 && hello == 259 && space_w == 260 && aa == 261);
    for (c = cases; c < cases + sizeof cases / sizeof *cases; c++) {
        int32_t ids[16];
        int64_t n = encode(t, c->text, (int64_t)strlen(c->text), ids);
        bool same = n == c->n;
        for (int i = 0; same && i < c->n; i++)
            same = ids[i] == c->ids[i];
        if (!CHECK(same))
            printf("  \"%s\": %lld tokens, the first %d\n", c->text, (long long)n, (int)ids[0]);
    }
    int64_t bytes;
    CHECK(kl_tokenizer_find(t, "<|end|>", 7) == tokens - 1 && kl_tokenizer_find(t, "xyz", 3) == -1);
    CHECK(!strncmp(kl_tokenizer_text(t, hello, &bytes), "hello", 5) && bytes == 5);
    CHECK(!kl_tokenizer_text(t, -1, &bytes) && bytes == 0 && !kl_tokenizer_text(t, tokens, NULL));
    char text[8] = "......";
    CHECK(kl_tokenizer_decode(t, 2, (int32_t[]){he, hello}, text, 4, &bytes) == KL_OK && bytes == 7 &&
          !memcmp(text, "hehe..", 6)); /* as much as there is room for */
    CHECK(kl_tokenizer_decode(t, 1, &(int32_t){tokens}, text, 4, &bytes) == KL_ERR_ARGUMENT &&
          strstr(kl_last_error(), "there are 264 tokens"));
    kl_tokenizer_close(t);
}

/* The words of a text: every part of it is a token and any two that are adjacent are merged, so each is one token. */
static void words(const char *text, int n, const char *const *want)
{
    int length = (int)strlen(text);
    vocab_start();
    for (int size = 2; size <= length; size++)
        for (int from = 0; from + size <= length; from++) {
            if (vocab_find(text + from, size) >= 0)
                continue;
            for (int cut = 1; cut < size; cut++)
                merge(vocab_find(text + from, cut), vocab_find(text + from + cut, size - cut));
        }
    vocab_write();
    kl_tokenizer *t = kl_tokenizer_open(vocab_path, merges_path);
    int32_t ids[LONGEST];
    int64_t count = t ? encode(t, text, length, ids) : -1, bytes = 0;
    bool same = count == n;
    for (int i = 0; i < n && same; i++) {
        const char *word = kl_tokenizer_text(t, ids[i], &bytes);
        same = (size_t)bytes == strlen(want[i]) && !memcmp(word, want[i], (size_t)bytes);
    }
    if (!CHECK(same))
        for (int64_t i = 0; i < count; i++) {
            const char *word = kl_tokenizer_text(t, ids[i], &bytes);
            printf("  \"%.*s\"\n", (int)bytes, word);
        }
    kl_tokenizer_close(t);
}
#define WORDS(text, ...) \
    words(text, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *[]){__VA_ARGS__})

static void splitting(void)
{
    WORDS("I'll say we've it's", "I", "'ll", " say", " we", "'ve", " it", "'s");
    WORDS("a 'S ''s", "a", " '", "S", " ''", "s");
    WORDS("  two\n\nlines \t x", " ", " two", "\n", "\n", "lines", " \t", " x");
    WORDS("end  \n", "end", "  \n");
    WORDS("12th, 3.5!? $4", "12", "th", ",", " 3", ".", "5", "!?", " $", "4");
    WORDS("\u00e9t\u00e9 \u00df\u00bd \u03b1\u4e2d\u0663", "\u00e9t\u00e9", " \u00df", "\u00bd", " \u03b1\u4e2d",
          "\u0663");
    WORDS("x\u00a0y\u2003\u00d7", "x", "\u00a0", "y", "\u2003", "\u00d7");
    WORDS("a\xff\xc3 \xe2\x82", "a", "\xff\xc3", " \xe2\x82"); /* no UTF-8 */
}

/* Merges by rank as in the paper: all pairs of the lowest rank, then again. */
static int64_t plain_encode(const uint8_t *text, int64_t n, int32_t *ids)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = text[i];
    for (;;) {
        int best = merges;
        for (int64_t i = 0; i + 1 < n; i++)
            for (int m = 0; m < best; m++)
                if (left[m] == ids[i] && right[m] == ids[i + 1])
                    best = m;
        if (best == merges)
            return n;
        int64_t to = 0;
        for (int64_t i = 0; i < n; i++) {
            bool pair = i + 1 < n && ids[i] == left[best] && ids[i + 1] == right[best];
            ids[to++] = pair ? made[best] : ids[i];
            i += pair;
        }
        n = to;
    }
}

/* Random merges, also ones that no training would give: of tokens that only a later merge makes. */
static void random_merges(void)
{
    uint32_t seed = 7;
    int right_ones = 0;
    for (int round = 0; round < 20; round++) {
        vocab_start();
        while (merges < 60) {
            unsigned known = (unsigned)(tokens - 252); /* "a" to "d", and what was merged */
            int a = (int)(random_next(&seed) % known), b = (int)(random_next(&seed) % known);
            a = a < 4 ? 'a' + a : a + 252, b = b < 4 ? 'a' + b : b + 252;
            if (token[a].n + token[b].n <= 12)
                merge(a, b);
        }
        for (int i = merges - 1; i > 0; i--) { /* the ranks in another order */
            int j = round % 2 ? i : (int)(random_next(&seed) % (unsigned)(i + 1));
            int l = left[i], r = right[i], m = made[i];
            left[i] = left[j], right[i] = right[j], made[i] = made[j];
            left[j] = l, right[j] = r, made[j] = m;
        }
        vocab_write();
        kl_tokenizer *t = kl_tokenizer_open(vocab_path, merges_path);
        for (int k = 0; k < 20; k++) {
            uint8_t text[300];
            int32_t ids[300], want[300];
            int64_t n = 1 + random_next(&seed) % 299;
            for (int64_t i = 0; i < n; i++)
                text[i] = (uint8_t)('a' + random_next(&seed) % 4);
            int64_t count = encode(t, text, n, ids), plain = plain_encode(text, n, want);
            right_ones += count == plain && !memcmp(ids, want, (size_t)count * sizeof *ids);
        }
        kl_tokenizer_close(t);
    }
    CHECK(right_ones == 400);
}

static void random_bytes(void)
{
    static uint8_t text[20000];
    uint32_t seed = 3;
    int same = 0;
    vocab_start();
    for (int i = 0; i < 300; i++)
        merge((int)(random_next(&seed) % 256), (int)(random_next(&seed) % 256));
    vocab_write();
    kl_tokenizer *t = kl_tokenizer_open(vocab_path, merges_path), *other = kl_tokenizer_open(llmc_path, NULL);
    if (!CHECK(t && other && kl_tokenizer_count(other) == tokens))
        return;
    for (int round = 0; round < 100; round++) {
        int64_t n = round == 0 ? (int64_t)sizeof text : random_next(&seed) % 500;
        for (int64_t i = 0; i < n; i++)
            text[i] = (uint8_t)(random_next(&seed) % (round % 2 ? 256 : 128));
        same += round_trip(t, text, n);
    }
    CHECK(same == 100);
    memset(text, 'x', sizeof text); /* one word */
    CHECK(round_trip(t, text, sizeof text));
    char bytes[4];
    int64_t n;
    int differ = 0;
    for (int i = 0; i < tokens; i++)
        differ += kl_tokenizer_decode(other, 1, &i, bytes, sizeof bytes, &n) != KL_OK || n != token[i].n ||
                  memcmp(bytes, token[i].text, (size_t)n) != 0;
    CHECK(differ == 0);
    CHECK(kl_tokenizer_encode(other, "x", 1, &(int32_t){0}, &n) == KL_ERR_ARGUMENT && n == 0 &&
          strstr(kl_last_error(), "without merges"));
    kl_tokenizer_close(t);
    kl_tokenizer_close(other);
}

/* ---- damaged files ---- */

static void refused(const char *path, const char *text, size_t n, const char *phrase)
{
    write_file(path, text, n);
    bool vocabulary = path != merges_path;
    kl_tokenizer *t = kl_tokenizer_open(vocabulary ? path : vocab_path, path == llmc_path ? NULL : merges_path);
    if (!CHECK(!t && kl_last_error_code() == KL_ERR_IO && strstr(kl_last_error(), path) &&
               strstr(kl_last_error(), phrase)))
        printf("  wanted \"%s\"\n", phrase);
    kl_tokenizer_close(t);
}

static void damaged(void)
{
    vocab_start();
    merge_text("h", "e");
    vocab_write();
    CHECK(!kl_tokenizer_open(NULL, NULL) && kl_last_error_code() == KL_ERR_ARGUMENT);
    CHECK(!kl_tokenizer_open("/nonexistent/vocab.json", NULL) && kl_last_error_code() == KL_ERR_IO);
    static const struct { const char *text, *phrase; } *c, vocabularies[] = {
        {"", "byte 0"}, {"[]", "byte 0"}, {"{}", "no tokens"}, {"{\"a\":0} x", "byte 8"}, {"{\"a\":1}", "id 1 of 1"},
        {"{\"a\":0,\"b\":0}", "two tokens have the id 0"}, {"{\"a\":0,\"a\":1}", "the same bytes"},
        {"{\"\":0}", "an empty token"}, {"{\"\xe4\xb8\xad\":0}", "stands for no byte"}, {"{\"a\":-1}", "byte 5"},
        {"{\"a\":0.5}", "byte 5"}, {"{\"a\" 0}", "expected ':'"}, {"{\"a\":0", "expected '}'"},
        {"{\"a\":0}", "byte 0x00 has no token"}};
    for (c = vocabularies; c < vocabularies + sizeof vocabularies / sizeof *vocabularies; c++)
        refused(vocab_path, c->text, strlen(c->text), c->phrase);
    vocab_write();
    static const struct { const char *text, *phrase; } *m, lists[] = {
        {"h e\nh e\n", ":2: an earlier line"}, {"#version: 0.2\nhe\n", ":2: a merge is two"},
        {"h e x\n", ":1: a merge is two"}, {"h e\n\nhey x\n", ":3: the first token is not"},
        {"h hex", "the second token is not"}, {"h h", "what the two become"}, {"h \xff", "stands for no byte"}};
    for (m = lists; m < lists + sizeof lists / sizeof *lists; m++)
        refused(merges_path, m->text, strlen(m->text), m->phrase);
    vocab_write();
    size_t n = llmc_text.n;
    refused(llmc_path, llmc_text.at, 1000, "cut off");
    refused(llmc_path, llmc_text.at, n - 1, "token 256 of 257 is cut off");
    puts_to(&llmc_text, "!");
    refused(llmc_path, llmc_text.at, n + 1, "1 bytes behind the last token");
    llmc_text.at[1024] = 0;
    refused(llmc_path, llmc_text.at, n, "byte 1024: token 0 of 257 is empty");
    llmc_text.at[4] = 9;
    refused(llmc_path, llmc_text.at, n, "field version: 9");

    uint32_t seed = 5; /* bytes changed and files cut: opened or refused, and what opens works */
    int opened = 0;
    for (int round = 0; round < 600; round++) {
        vocab_write();
        struct text *t = round % 3 == 0 ? &vocab_text : round % 3 == 1 ? &merges_text : &llmc_text;
        const char *path = round % 3 == 0 ? vocab_path : round % 3 == 1 ? merges_path : llmc_path;
        size_t keep = round % 2 ? t->n : random_next(&seed) % t->n;
        for (int i = 0; i < 3 && keep; i++)
            t->at[random_next(&seed) % keep] = (char)random_next(&seed);
        write_file(path, t->at, keep);
        bool llmc = path == llmc_path;
        kl_tokenizer *k = kl_tokenizer_open(llmc ? path : vocab_path, llmc ? NULL : merges_path);
        if (!k && !strstr(kl_last_error(), path))
            CHECK(!"an error names its file");
        opened += k != NULL;
        if (k && path != llmc_path)
            CHECK(round_trip(k, (const uint8_t *)"he said: hehe", 13));
        kl_tokenizer_close(k);
    }
    CHECK(opened > 0 && opened < 600);
}

int main(void)
{
    if (!mkdtemp(folder))
        return perror(folder), 1;
    snprintf(vocab_path, sizeof vocab_path, "%s/vocab.json", folder);
    snprintf(merges_path, sizeof merges_path, "%s/merges.txt", folder);
    snprintf(llmc_path, sizeof llmc_path, "%s/gpt2_tokenizer.bin", folder);
    by_hand();
    splitting();
    random_merges();
    random_bytes();
    damaged();
    remove(vocab_path), remove(merges_path), remove(llmc_path), remove(folder);
    free(vocab_text.at), free(merges_text.at), free(llmc_text.at);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
