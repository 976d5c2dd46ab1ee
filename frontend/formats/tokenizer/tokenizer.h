/* Tokenizers (<kiln/train/tokenizer.h>): what reading one and using it share, grouped by file. */
#ifndef KILN_FORMATS_TOKENIZER_H
#define KILN_FORMATS_TOKENIZER_H
#include "frontend/formats/file_open.h"
#include "pattern.h"
#include "unicode.h"
#include <kiln/train.h>

/* How words become tokens. */
enum token_model {
    MODEL_PAIRS,   /* byte pairs: a list of pairs that are merged, by rank */
    MODEL_SCORES,  /* byte pairs: two adjacent tokens that together are a token, that of the highest score first */
    MODEL_UNIGRAM, /* the tokens with the highest sum of scores */
    MODEL_WORDS    /* WordPiece: the longest token first */
};
enum token_type { TOKEN_NORMAL, TOKEN_NONE, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_BYTE };

/* Two adjacent tokens that become one. */
struct token_merge { int32_t left, right, rank, id; };
/* Growing text; failed: out of memory, later calls do nothing. */
struct text_buffer { uint8_t *at; size_t n, cap; bool failed; };
/* Texts by their first bytes: edges of a tree, a hash table by node and byte.  Node 0 is the root. */
struct trie_edge { int32_t node, byte, to, id; };
struct token_trie { struct trie_edge *edge; uint64_t slots; int32_t nodes; };

/* A step of what is done to text before it is split into tokens, or to tokens' text. */
enum text_step_kind {
    /* changes text */
    STEP_REPLACE, STEP_PREPEND, STEP_STRIP, STEP_LOWERCASE, STEP_NORMAL_FORM, STEP_STRIP_ACCENTS, STEP_BERT,
    STEP_CHARSMAP, STEP_SPACES,
    /* splits text */
    STEP_SPLIT, STEP_PREFIX_SPACE, STEP_METASPACE,
    /* joins tokens */
    STEP_BYTES, STEP_FUSE, STEP_STRIP_TEXT, STEP_WORD_PIECES, STEP_METASPACE_JOIN, STEP_SUFFIX_SPACE
};
enum split_behaviour { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT, SPLIT_CONTIGUOUS };
enum prefix_scheme { PREFIX_ALWAYS, PREFIX_FIRST, PREFIX_NEVER };
struct text_step {
    enum text_step_kind kind;
    struct pattern *pattern;   /* REPLACE, SPLIT */
    const char *text;          /* what replaces it, what is put in front, METASPACE's character */
    size_t n;
    enum split_behaviour behaviour;
    enum prefix_scheme prefix;
    bool invert, split;        /* SPLIT: what is between matches is what the pattern is about; METASPACE: it splits */
    bool left, right;          /* STRIP */
    bool compose, compatible;  /* NORMAL_FORM */
    bool clean, chinese, accents, lower; /* BERT; clean: WORD_PIECES, too */
    bool graphemes;            /* CHARSMAP: a carriage return and the line feed behind it are replaced as one */
    bool put_first, trim, single, escape; /* SPACES: one in front, none at the ends, one of several, as U+2581 */
    int64_t first, last;       /* STRIP_TEXT: how many at either end */
    const struct charsmap *map;
};
enum { MAX_STEPS = 16 };
struct text_steps { int n; struct text_step step[MAX_STEPS]; };

/* Special tokens and others that are recognised in text before it is split. */
struct added_token { int32_t id; bool special, word, left, right; };
struct added_tokens { struct token_trie trie; struct added_token *token; int64_t n; uint32_t first[8]; };

struct kl_tokenizer {
    enum token_model model;
    int64_t count;
    uint8_t *text;              /* of all tokens, one after the other */
    int64_t *start;             /* token i: start[i] to start[i + 1] */
    int32_t *by_text;           /* hash table of ids, -1: empty; text_slots is a power of two */
    uint64_t text_slots;
    uint8_t *type;              /* enum token_type of each; NULL: all are normal */
    double *score;              /* SCORES: the rank, the best is 0; UNIGRAM; else NULL */
    struct token_merge *merge;  /* PAIRS: hash table by the pair, id -1: empty; NULL: none, it only decodes */
    uint64_t merge_slots;
    int32_t byte[256];          /* the tokens of single bytes, -1: there is none */
    bool byte_level;            /* words are bytes, not characters */
    bool byte_fallback;         /* characters without a token are bytes */
    bool by_rounds;             /* all pairs of a rank are merged before others are looked at, as GPT-2 does it */
    bool whole_words;           /* a word that is a token is not merged */
    bool fuse_unknown;
    bool cut_at_mark;           /* no token has U+2581 behind another character: text can be cut in front of it */
    int32_t unknown;            /* the token of what has none; -1: that is left out */
    double unknown_score;       /* UNIGRAM */
    struct token_trie trie;     /* UNIGRAM, WORDS: of the tokens */
    int64_t max_word;           /* WORDS: characters of a word; longer ones are unknown */
    const char *first_prefix, *next_prefix; /* WORDS: in front of the first token of a word, and of the others */
    const char *suffix;         /* PAIRS: behind the last character of a word */
    struct added_tokens raw, normalized; /* matched before and after the text is normalized */
    struct text_steps normalizer, splitter, decoder;
    bool join_by_spaces;        /* there is no decoder */
    int32_t *begin, *end;       /* ids in front of and behind a text */
    int64_t begin_n, end_n;
    int64_t special[KL_TOKEN_SPECIALS]; /* -1: there is none */
    const char *chat_template;  /* NULL: the file has none */
    struct token_memory *memory;
};

/* ---- vocabulary.c ---- */
/* Zeroed memory that lives as long as the tokenizer; NULL: file_no_memory. */
void *token_memory(struct kl_file *f, kl_tokenizer *t, size_t bytes);
void tokens_free_memory(kl_tokenizer *t);
const char *token_string(struct kl_file *f, kl_tokenizer *t, const char *text, size_t n);
uint64_t token_slots_for(int64_t n);
/* The slot with the id of these bytes, or the free slot for it. */
uint64_t token_slot(const kl_tokenizer *t, const uint8_t *text, int64_t n);
/* Makes room for n tokens with this total number of bytes; each is added by its next id. */
bool tokens_room(struct kl_file *f, kl_tokenizer *t, int64_t n, size_t bytes);

/* A token of a file; id: any order; at: its byte in the file, for messages. */
struct token_entry { const char *text; size_t n; int64_t id; size_t at; double score; enum token_type type; };
/* Makes the vocabulary.  Of two tokens with the same text the later one is found, unless it is not TOKEN_NORMAL. */
bool tokens_build(struct kl_file *f, kl_tokenizer *t, const struct token_entry *e, int64_t n, const char *field);
int64_t token_find(const kl_tokenizer *t, const char *text, size_t n); /* among all but added ones; -1 */
/* Finds the tokens of bytes: of one byte, or called <0x00> to <0xFF>. */
void tokens_find_bytes(kl_tokenizer *t);

/* The merge of a pair, NULL: it is not merged. */
const struct token_merge *token_merge_of(const kl_tokenizer *t, int32_t left, int32_t right);
bool merges_room(struct kl_file *f, kl_tokenizer *t, int64_t n);
void merge_put(kl_tokenizer *t, struct token_merge m);
/* The texts of two tokens, which change: GPT-2's characters become bytes. */
struct merge_text { uint8_t *left; size_t left_n; uint8_t *right; size_t right_n; };
/* Adds a merge, unless there is one of these two; both: memory that is used again. */
bool merge_add(struct kl_file *f, kl_tokenizer *t, struct merge_text m, int32_t rank, struct text_buffer *both,
               size_t at, const char *field);

bool trie_room(struct kl_file *f, struct token_trie *trie, size_t bytes); /* of all texts */
void trie_put(struct token_trie *trie, const uint8_t *text, size_t n, int32_t id);
/* NULL: no text goes on so. */
const struct trie_edge *trie_step(const struct token_trie *trie, int32_t node, uint8_t byte);
bool tokens_trie(struct kl_file *f, kl_tokenizer *t); /* of the normal and user's tokens */

/* Converts GPT-2's characters for bytes to bytes, in place; the number of bytes; -1: a character stands for none. */
int64_t bytes_of_characters(uint8_t *text, size_t n);
int base64_value(uint8_t c); /* of a digit; -1: it is none */
/* Sets what follows from the tokens: those of bytes, where text may be cut, the special ones with usual names. */
bool tokens_finish(struct kl_file *f, kl_tokenizer *t);

/* ---- sentencepiece.c, gguf_tokenizer.c ---- */
/* Makes scores ranks, the best is 0, and equal ones are equal. */
bool tokens_rank_scores(struct kl_file *f, struct token_entry *e, int64_t n);
double tokens_unknown_score(const struct token_entry *e, int64_t n); /* of a character without a token: Unigram */
/* Decoding: U+2581 is a space, bytes are bytes, and a space in front is removed if one is put there
 * (trim: all of them). */
bool tokens_join_marks(struct kl_file *f, kl_tokenizer *t, bool put_first, bool trim);
/* Control tokens are recognised in text as it is, the user's in normalized text. */
bool tokens_recognize(struct kl_file *f, kl_tokenizer *t, const struct token_entry *e, int64_t n);
bool sentencepiece_is(const struct kl_file *f);
bool sentencepiece_read(struct kl_file *f, kl_tokenizer *t);
kl_tokenizer *gguf_tokenizer_open(const char *path);

/* ---- gpt2_files.c: vocab.json, merges.txt, gpt2_tokenizer.bin ---- */
bool gpt2_is_llmc(const struct kl_file *f);
bool gpt2_read_vocabulary(struct kl_file *f, kl_tokenizer *t, bool encodes);
bool gpt2_read_merges(struct kl_file *f, kl_tokenizer *t);

/* ---- huggingface.c, huggingface_steps.c: tokenizer.json ---- */
struct json_value;
bool huggingface_read(struct kl_file *f, const struct json_value *v, kl_tokenizer *t);
bool huggingface_steps(struct kl_file *f, const struct json_value *v, kl_tokenizer *t);

/* ---- tokenizer.c ---- */
kl_tokenizer *tokenizer_new(void); /* NULL: kl_last_error */
/* Adds a token that is recognised in text. */
struct added_entry { const char *text; size_t n; struct added_token token; };
bool added_build(struct kl_file *f, struct added_tokens *a, const struct added_entry *e, int64_t n);
/* A step that begins a list's next place; NULL: f->why, too many. */
struct text_step *step_add(struct kl_file *f, struct text_steps *s, enum text_step_kind kind, size_t at);
bool step_pattern(struct kl_file *f, struct text_step *s, const char *text, size_t n, bool literal, size_t at,
                  const char *field);
#define gpt2_pattern "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" /* GPT-2's */

/* ---- encode.c ---- */
/* Where a special token is in a text; NULL: nowhere. */
const uint8_t *added_find_special(const kl_tokenizer *t, const uint8_t *text, size_t n);

/* ---- normalize.c ---- */
bool buffer_add(struct text_buffer *b, const void *text, size_t n);
bool buffer_put(struct text_buffer *b, uint32_t c);
void buffer_free(struct text_buffer *b);
/* Does a step that changes text: what it makes is appended to `to`.  Its pattern took too long: false. */
bool step_change(const struct text_step *s, const uint8_t *text, size_t n, struct text_buffer *to);
/* sentencepiece's table of replaced characters, checked; it copies what it needs. */
const struct charsmap *charsmap_read(struct kl_file *f, kl_tokenizer *t, const uint8_t *bytes, size_t n, size_t at,
                                     const char *field);

/* ---- words.c ---- */
/* Ids that were found: n of them, of which the first `room` are written. */
struct token_ids { int32_t *id; int64_t n, room; };
bool ids_add(struct token_ids *ids, int32_t id); /* true */

/* Byte pairs: a word is a list of tokens, which becomes shorter with each merge. */
struct token_word {
    const kl_tokenizer *t;
    const uint8_t *text;
    int32_t n, first;         /* bytes; where the first token begins */
    size_t cap;               /* capacity in bytes of a word */
    int32_t *id;              /* id of the token that begins at a byte */
    int32_t *next, *last;     /* positions where the next token and the one before begin; -1: there is none */
    uint64_t *heap, *found;   /* found: pairs that were made by the merges of one rank */
    size_t heap_n, found_n;
    bool unknown_before;      /* what has no token was the last */
    struct word_path { double score; int32_t from, id; } *path; /* Unigram: the best tokens up to a position */
    size_t path_cap;
};
/* Appends the tokens of a word of 1 to 2^31 - 1 bytes.  false: out of memory. */
bool word_encode(struct token_word *w, const uint8_t *text, size_t n, struct token_ids *ids);
void word_free(struct token_word *w);

#endif
