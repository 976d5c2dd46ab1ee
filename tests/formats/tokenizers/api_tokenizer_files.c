/* Tokenizers of tokenizer.json, sentencepiece and GGUF: the tokens that the packages tokenizers and sentencepiece give
 * (tests/formats/tokenizers/), special tokens, chats, long words, files that are refused or damaged.
 * Argument: a Python with these packages, which computes the expectations again; without one python3, if that has
 * them. */
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <unistd.h>

#define FOLDER "tests/formats/tokenizers/"
enum { MAX_TEXT = 4096, MAX_FILES = 16 };
static int skipped;
static char scratch[64] = "/tmp/kiln-tokenizers-XXXXXX", scratch_file[100];

static kl_tokenizer *open_named(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, FOLDER "%s", name);
    return kl_tokenizer_open(path, NULL);
}

/* ---- expectations ---- */

static int64_t from_hex(const char *hex, char *to)
{
    int64_t n = 0;
    unsigned byte;
    for (; *hex != '-' && sscanf(hex, "%2x", &byte) == 1; hex += 2)
        to[n++] = (char)byte;
    return n;
}

static int64_t from_list(const char *list, int32_t *to)
{
    int64_t n = 0;
    char *past;
    for (; *list && *list != '-'; list = *past == ',' ? past + 1 : past)
        to[n++] = (int32_t)strtol(list, &past, 10);
    return n;
}

struct expectation {
    char name[40], options[8], text_hex[MAX_TEXT], ids_list[MAX_TEXT], decoded_hex[MAX_TEXT];
    char text[MAX_TEXT], decoded[MAX_TEXT];
    int32_t ids[MAX_TEXT];
    int64_t text_n, n, decoded_n;
};

static bool agrees(const kl_tokenizer *t, const struct expectation *e)
{
    int32_t ids[MAX_TEXT];
    char text[MAX_TEXT];
    int64_t n = -1, bytes = -1;
    kl_encode_options o = {.no_begin_end = strchr(e->options, 'n'), .plain_text = strchr(e->options, 'p')};
    bool same = kl_tokenizer_encode_with(t, e->text, e->text_n, &o, ids, MAX_TEXT, &n) == KL_OK && n == e->n &&
                !memcmp(ids, e->ids, (size_t)n * sizeof *ids);
    if (same && *e->decoded_hex != '?')
        same = kl_tokenizer_decode_with(t, e->n, e->ids, NULL, text, MAX_TEXT, &bytes) == KL_OK &&
               bytes == e->decoded_n && !memcmp(text, e->decoded, (size_t)bytes);
    return same;
}

/* The GGUF file with the same tokens; NULL: there is none. */
static const char *gguf_of(const char *name)
{
    return !strcmp(name, "bpe.model") ? "bpe.gguf" : !strcmp(name, "uni.model") ? "uni.gguf"
           : !strcmp(name, "llama3.json") ? "llama3.gguf" : NULL;
}

static void expected(void)
{
    static struct expectation e;
    FILE *f = fopen(FOLDER "expected.tsv", "r");
    char open_name[40] = "";
    kl_tokenizer *t[2] = {NULL, NULL};
    int lines = 0, files = 0;
    while (CHECK(f) && fscanf(f, "%39s %7s %4095s %4095s %4095s", e.name, e.options, e.text_hex, e.ids_list,
                              e.decoded_hex) == 5) {
        e.text_n = from_hex(e.text_hex, e.text);
        e.n = from_list(e.ids_list, e.ids);
        e.decoded_n = from_hex(e.decoded_hex, e.decoded);
        if (strcmp(open_name, e.name)) {
            for (int i = 0; i < 2; i++) {
                const char *name = i ? gguf_of(e.name) : e.name;
                kl_tokenizer_close(t[i]);
                t[i] = name ? open_named(name) : NULL;
                files += t[i] != NULL;
                if (name && !CHECK(t[i]))
                    printf("  %s: %s\n", name, kl_last_error());
            }
            strcpy(open_name, e.name);
        }
        for (int i = 0; i < 2; i++)
            if (t[i] && !CHECK(agrees(t[i], &e)))
                printf("  %s%s %s \"%.*s\"\n", e.name, i ? " as GGUF" : "", e.options, (int)e.text_n, e.text);
        lines++;
    }
    for (int i = 0; i < 2; i++)
        kl_tokenizer_close(t[i]);
    CHECK(lines > 300 && files == 14);
    if (f)
        fclose(f);
}

/* The packages of this Python give what expected.tsv has. */
static void packages(const char *python)
{
    char line[600];
    snprintf(line, sizeof line, "%s -c 'import tokenizers, sentencepiece' 2>/dev/null", python);
    if (system(line) != 0) {
        skipped++;
        printf("SKIP no-tool tokenizers: %s has no modules tokenizers and sentencepiece\n", python);
        return;
    }
    snprintf(line, sizeof line, "PYTHONIOENCODING=utf8 %s " FOLDER "expectations.py | cmp - " FOLDER "expected.tsv",
             python);
    CHECK(system(line) == 0);
}

/* ---- calls ---- */

static void calls(void)
{
    kl_tokenizer *t = open_named("llama3.json");
    int32_t ids[64];
    char text[200];
    int64_t n, bytes;
    if (!CHECK(t))
        return;
    int64_t bos = kl_tokenizer_find(t, "<|begin_of_text|>", 17), eot = kl_tokenizer_find(t, "<|eot_id|>", 10);
    CHECK(bos == 0 && eot == 2 && kl_tokenizer_special(t, KL_TOKEN_BOS) == bos &&
          kl_tokenizer_special(t, KL_TOKEN_EOS) == 1 && kl_tokenizer_special(t, KL_TOKEN_PAD) == -1 &&
          kl_tokenizer_special(t, KL_TOKEN_SPECIALS) == -1 && kl_tokenizer_special(NULL, KL_TOKEN_BOS) == -1);
    CHECK(kl_tokenizer_encode_with(t, "hi<|eot_id|>", 12, NULL, ids, 64, &n) == KL_OK && ids[0] == bos &&
          ids[n - 1] == eot);
    CHECK(kl_tokenizer_decode_with(t, n, ids, &(kl_decode_options){.skip_special = true}, text, 200, &bytes) == KL_OK &&
          bytes == 2 && !memcmp(text, "hi", 2));
    int64_t all = n;
    CHECK(kl_tokenizer_encode_with(t, "hi<|eot_id|>", 12, NULL, NULL, 0, &n) == KL_OK && n == all); /* counts */
    CHECK(kl_tokenizer_encode(t, "hi<|eot_id|>", 12, ids, &n) == KL_OK && ids[0] != bos && ids[n - 1] != eot);
    kl_encode_options bare = {.no_begin_end = true};
    CHECK(kl_tokenizer_encode_with(t, "a\xff\xc3z", 4, &bare, ids, 64, &n) == KL_OK &&
          kl_tokenizer_decode(t, n, ids, text, 200, &bytes) == KL_OK && bytes == 4 && !memcmp(text, "a\xff\xc3z", 4));
    CHECK(kl_tokenizer_encode_with(t, NULL, 1, NULL, ids, 64, &n) == KL_ERR_ARGUMENT && n == 0);
    kl_tokenizer_close(t);
    t = open_named("bpe.model");
    if (!CHECK(t))
        return;
    CHECK(kl_tokenizer_encode(t, "a", 1, ids, &n) == KL_ERR_ARGUMENT && n == 0); /* a space is put in front */
    CHECK(kl_tokenizer_encode_with(t, "the\xff", 4, NULL, ids, 64, &n) == KL_OK &&
          kl_tokenizer_decode(t, n, ids, text, 200, &bytes) == KL_OK && bytes == 6 &&
          !memcmp(text, "the\xef\xbf\xbd", 6)); /* a byte that is not UTF-8 */
    CHECK(kl_tokenizer_encode_with(t, "the fox", 7, NULL, ids, 64, &n) == KL_OK &&
          kl_tokenizer_decode_with(t, n, ids, &(kl_decode_options){.continued = true}, text, 200, &bytes) == KL_OK &&
          bytes == 8 && !memcmp(text, " the fox", 8));
    kl_tokenizer_close(t);
}

/* ---- chats ---- */

static void chat_is(const kl_tokenizer *t, kl_chat_family family, const char *want)
{
    static const kl_chat_message messages[] = {{"system", "Be brief."}, {"user", " Hi? "}, {"assistant", "Yes"},
                                               {"user", "So"}};
    char text[400], part[6];
    int64_t bytes = -1, n = -1;
    if (!CHECK(kl_chat_format(t, family, 4, messages, true, text, sizeof text, &bytes) == KL_OK &&
               bytes == (int64_t)strlen(want) && !strcmp(text, want)))
        printf("  %s: \"%s\"\n", kl_chat_family_name(family), text);
    CHECK(kl_chat_format(t, family, 4, messages, true, part, 6, &n) == KL_OK && n == bytes && !memcmp(part, want, 6));
}

/* Templates as their models have them, with an answer. */
static void chats(void)
{
    kl_tokenizer *chatml = open_named("qwen2.json"), *llama3 = open_named("llama3.json"),
                 *pieces = open_named("bpe.model");
    int64_t n = -1;
    if (!CHECK(chatml && llama3 && pieces))
        return;
    CHECK(kl_chat_family_of(chatml) == KL_CHAT_CHATML && kl_chat_family_of(pieces) == KL_CHAT_AUTO &&
          kl_chat_family_of(NULL) == KL_CHAT_AUTO);
    chat_is(chatml, KL_CHAT_AUTO, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi? <|im_end|>\n"
                                  "<|im_start|>assistant\nYes<|im_end|>\n<|im_start|>user\nSo<|im_end|>\n"
                                  "<|im_start|>assistant\n");
    chat_is(llama3, KL_CHAT_LLAMA3, "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
                                    "<|start_header_id|>user<|end_header_id|>\n\nHi?<|eot_id|>"
                                    "<|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|>"
                                    "<|start_header_id|>user<|end_header_id|>\n\nSo<|eot_id|>"
                                    "<|start_header_id|>assistant<|end_header_id|>\n\n");
    chat_is(pieces, KL_CHAT_MISTRAL, "<s>[INST] Be brief.\n\n Hi?  [/INST]Yes</s>[INST] So [/INST]");
    chat_is(pieces, KL_CHAT_LLAMA2,
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi? [/INST] Yes </s><s>[INST] So [/INST]");
    chat_is(pieces, KL_CHAT_GEMMA, "<s><start_of_turn>user\nBe brief.\n\nHi?<end_of_turn>\n<start_of_turn>model\nYes"
                                   "<end_of_turn>\n<start_of_turn>user\nSo<end_of_turn>\n<start_of_turn>model\n");
    CHECK(kl_chat_end_token(chatml, KL_CHAT_AUTO) == kl_tokenizer_find(chatml, "<|im_end|>", 10) &&
          kl_chat_end_token(llama3, KL_CHAT_LLAMA3) == 2 && kl_chat_end_token(pieces, KL_CHAT_LLAMA2) == 2 &&
          kl_chat_end_token(pieces, KL_CHAT_AUTO) == -1 && kl_chat_end_token(pieces, KL_CHAT_GEMMA) == -1);
    static const struct { kl_chat_family family; kl_chat_message message; const char *phrase; } *c, bad[] = {
        {KL_CHAT_AUTO, {"user", "x"}, "none that is known"}, {KL_CHAT_FAMILIES, {"user", "x"}, "none that is known"},
        {KL_CHAT_LLAMA2, {"tool", "x"}, "the role \"tool\""}, {KL_CHAT_LLAMA2, {"user", NULL}, "message 0 has no role"},
        {KL_CHAT_LLAMA2, {"user", "a</s>b"}, "a special token at byte 1 of its text"}};
    for (c = bad; c < bad + sizeof bad / sizeof *bad; c++)
        CHECK(kl_chat_format(pieces, c->family, 1, &c->message, false, NULL, 0, &n) == KL_ERR_ARGUMENT && n == 0 &&
              strstr(kl_last_error(), c->phrase));
    kl_tokenizer_close(chatml);
    kl_tokenizer_close(llama3);
    kl_tokenizer_close(pieces);
}

/* Many bytes without a space, and spaces alone: what grows with their square takes minutes. */
static void long_words(void)
{
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG);
    int32_t *ids = malloc((LONG + 8) * sizeof *ids);
    static const char *const names[] = {"llama3.json", "qwen2.json", "llama2.json", "uncased.json", "unigram.json",
                                        "bpe.model", "uni.model"};
    for (int k = 0; k < 3 && CHECK(text && ids); k++) {
        memset(text, "t \n"[k], LONG);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            kl_tokenizer *t = open_named(names[i]);
            int64_t n = -1;
            CHECK(t && kl_tokenizer_encode_with(t, text, LONG, NULL, ids, LONG + 8, &n) == KL_OK && n >= 0);
            kl_tokenizer_close(t);
        }
    }
    free(text);
    free(ids);
}

/* ---- files that are refused ---- */

static void write_scratch(const void *bytes, size_t n)
{
    FILE *f = fopen(scratch_file, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        perror(scratch_file);
        exit(1);
    }
}

static void refused(const char *text, size_t n, const char *phrase)
{
    write_scratch(text, n);
    kl_tokenizer *t = kl_tokenizer_open(scratch_file, NULL);
    if (!CHECK(!t && kl_last_error_code() == KL_ERR_IO && strstr(kl_last_error(), scratch_file) &&
               strstr(kl_last_error(), phrase)))
        printf("  wanted \"%s\"\n", phrase);
    kl_tokenizer_close(t);
}

#define MODEL(rest) \
    "{\"version\": \"1\", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, " rest
#define SPLIT "\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": \""
#define REGEX(text) WITH(SPLIT text "\"}}")
#define WITH(rest) MODEL("\"merges\": [\"a b\"]}, " rest "}")

static void refusals(void)
{
    static const struct { const char *text, *phrase; } *c, cases[] = {
        {"{\"a\": {\"b\": ", "cut off"}, {"{\"a\": [1, }", "expected a value"}, {"{\"a\": {}} x", "text behind"},
        {"{\"a\": {}}", "not a tokenizer.json"}, {"{\"a\": 1e999}", "byte"},
        {"{\"tokenizer_class\": \"x\"}", "this is a tokenizer_config.json"},
        {"{\"architectures\": [\"x\"]}", "this is the config.json of a model"},
        {"{\"config\": {}, \"vocab\": []}", "this is a tekken.json"},
        {"{\"model\": {\"type\": \"WordLevel\"}}", "BPE, WordPiece and Unigram are read"},
        {"{\"model\": {\"type\": 1}}", "field type: expected a text"},
        {"{\"model\": {\"vocab\": []}}", "field vocab: expected an object"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}}}", "expected a whole number"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 40000000}}}", "id 40000000 of 1 tokens"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 0}}}", "two tokens have the id 0"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}}}", "field merges: there is none"},
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\"]]}}", "expected a token and its score"},
        {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 7, \"vocab\": [[\"a\", 1]]}}", "field unk_id"},
        {MODEL("\"merges\": [\"ab\"]}}"), "a merge is two tokens"},
        {MODEL("\"merges\": [\"a x\"]}}"), "the second token is not in the vocabulary"},
        {MODEL("\"merges\": [\"b a\"]}}"), "what the two become is not"},
        {MODEL("\"merges\": [\"a b\"], \"unk_token\": \"?\"}}"), "\"?\" is not in the vocabulary"},
        {WITH("\"added_tokens\": [{\"id\": 0}]"), "field content: there is none"},
        {WITH("\"normalizer\": {\"type\": \"Nmt\"}"), "field normalizer: \"Nmt\" is not read"},
        {WITH("\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"////\"}"), "cut off"},
        {WITH("\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}"), "\"UnicodeScripts\" is not read"},
        {WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"x\", \"pattern\": {\"String\": \" \"}}"),
         "the behavior \"x\""},
        {REGEX("(a"),
         "a group without )"},
        {REGEX("a*?"),
         "a lazy quantifier at byte 2"},
        {REGEX("(a|b*)*"), "a repeated group that can be empty"},
        {REGEX("\\\\p{Greek}"), "a property"},
        {WITH("\"decoder\": {\"type\": \"CTC\"}"), "field decoder: \"CTC\" is not read"},
        {WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", "
              "\"single\": [{\"SpecialToken\": {\"id\": \"x\"}}]}"),
         "\"x\" is no special token"},
        {"PK\3\4 ", "this is a zip archive"}, {"#version: 0.2\na b\n", "this is a list of merges"},
        {"IQ== 0\nIg== 1\n", "this is a list of tiktoken's"}, {"\x93NUMPY\1", "this is a .npy file"}};
    for (c = cases; c < cases + sizeof cases / sizeof *cases; c++)
        refused(c->text, strlen(c->text), c->phrase);
    refused("\x10\0\0\0\0\0\0\0{\"a\":1}", 15, "this is a safetensors file");
    write_scratch(WITH("\"decoder\": null"), strlen(WITH("\"decoder\": null")));
    kl_tokenizer *t = kl_tokenizer_open(scratch_file, NULL);
    CHECK(t && kl_tokenizer_count(t) == 3); /* what the cases above break is read */
    kl_tokenizer_close(t);
}

/* A regular expression that takes exponential time is an error of the text, not an endless call. */
static void slow_pattern(void)
{
    static const char file[] =
        REGEX("((a+)+)+c");
    char text[200];
    int32_t ids[200];
    int64_t n;
    write_scratch(file, strlen(file));
    kl_tokenizer *t = kl_tokenizer_open(scratch_file, NULL);
    memset(text, 'a', sizeof text);
    CHECK(t && kl_tokenizer_encode_with(t, text, 200, NULL, ids, 200, &n) == KL_ERR_ARGUMENT && n == 0 &&
          strstr(kl_last_error(), "takes too long"));
    CHECK(t && kl_tokenizer_encode_with(t, "ab", 2, NULL, ids, 200, &n) == KL_OK && n == 1);
    kl_tokenizer_close(t);
}

/* Damaged files are refused with their name, or can be used. */
static void damaged(void)
{
    static const char *const names[] = {"llama3.json", "unigram.json", "uncased.json", "bpe.model", "uni.model",
                                        "llama3.gguf", "uni.gguf", "bpe.gguf"};
    static char bytes[1 << 15];
    static int32_t ids[1000];
    uint32_t seed = 5;
    int opened = 0, tried = 0;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        for (int round = 0; round < 200; round++, tried++) {
            char path[200];
            snprintf(path, sizeof path, FOLDER "%s", names[k]);
            FILE *f = fopen(path, "rb");
            size_t size = f ? fread(bytes, 1, sizeof bytes, f) : 0;
            if (!CHECK(size > 0 && size < sizeof bytes))
                return;
            fclose(f);
            for (int i = 0; i < 2; i++) {
                seed = seed * 1664525 + 1013904223;
                bytes[(seed >> 8) % size] = round % 2 ? (char)(seed >> 3) : (char)"\"{}[]:,019ae\\"[seed >> 8 & 7];
            }
            write_scratch(bytes, round % 5 ? size : seed % size);
            kl_tokenizer *t = kl_tokenizer_open(scratch_file, NULL);
            int64_t n;
            if (!t && !strstr(kl_last_error(), scratch_file))
                CHECK(!"an error names its file");
            if (t && kl_tokenizer_encode_with(t, "the fox isn't <s> 12", 20, NULL, ids, 1000, &n) == KL_OK)
                kl_tokenizer_decode(t, n, ids, bytes, sizeof bytes, &n);
            opened += t != NULL;
            kl_tokenizer_close(t);
        }
    }
    CHECK(opened > 0 && opened < tried);
}

int main(int argc, char **argv)
{
    if (!mkdtemp(scratch))
        return perror(scratch), 1;
    snprintf(scratch_file, sizeof scratch_file, "%s/file", scratch);
    expected();
    packages(argc > 1 ? argv[1] : "python3");
    calls();
    chats();
    long_words();
    refusals();
    slow_pattern();
    damaged();
    remove(scratch_file), remove(scratch);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
