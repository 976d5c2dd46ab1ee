/* Byte-pair tokenizers (<kiln/train/tokenizer.h>): what reading one and using it share. */
#ifndef KILN_FORMATS_TOKENIZER_H
#define KILN_FORMATS_TOKENIZER_H
#include "frontend/formats/file_open.h"
#include <kiln/train.h>

/* Two neighbouring tokens that become one. */
struct token_merge { int32_t left, right, rank, id; };

struct kl_tokenizer {
    int64_t count;
    uint8_t *text;              /* of all tokens, one after the other */
    int64_t *start;             /* token i: start[i] to start[i + 1] */
    int32_t *by_text;           /* hash table of ids, -1: empty; text_slots is a power of two */
    uint64_t text_slots;
    struct token_merge *merge;  /* hash table by the pair, id -1: empty; NULL: none, it only decodes */
    uint64_t merge_slots;
    int32_t byte[256];          /* the tokens of single bytes, -1: there is none */
};

/* ---- tokenizer.c ---- */
/* The merge of a pair, NULL: it is not merged. */
const struct token_merge *token_merge_of(const kl_tokenizer *t, int32_t left, int32_t right);

/* ---- words.c ---- */
/* The length of the first word of text, which is not empty, by GPT-2's pattern. */
int64_t word_length(const uint8_t *text, const uint8_t *end);

#endif
