/* Tokenizers from the files that models come with.  Included by <kiln/train.h>.
 *
 *     kl_tokenizer *t = kl_tokenizer_open("tokenizer.json", NULL);
 *     int64_t n;
 *     kl_tokenizer_encode_with(t, text, length, NULL, ids, room, &n);
 *     kl_tokenizer_decode_with(t, n, ids, &(kl_decode_options){.skip_special = true}, text, room, &length);
 *     int64_t end_of_text = kl_tokenizer_special(t, KL_TOKEN_EOS);
 *
 * Text is UTF-8.  Tokenizers of bytes (GPT-2, Llama 3, Qwen) encode any bytes, and decoding gives the same ones; of the
 * others, each byte that is not UTF-8 is encoded as U+FFFD.  An open tokenizer is immutable: any number of threads may
 * use it. */
#ifndef KILN_TOKENIZER_H
#define KILN_TOKENIZER_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_tokenizer kl_tokenizer;

/* vocabulary: one of
 *   - tokenizer.json of Hugging Face's tokenizers: byte pairs (of bytes, or of characters with bytes for those that
 *     have no token), WordPiece and Unigram, with its added tokens, normalizer, pre-tokenizer, post-processor and
 *     decoder;
 *   - a .model of sentencepiece: byte pairs or Unigram;
 *   - a GGUF file that has a tokenizer: llama, gpt2 (with tokenizer.ggml.pre), bert or t5;
 *   - a JSON object of tokens and their ids 0 to n - 1, with the tokens' bytes written as GPT-2's characters
 *     (vocab.json, encoder.json), or llm.c's gpt2_tokenizer.bin.
 * The file's bytes decide which it is.
 * merges: only beside vocab.json and gpt2_tokenizer.bin: a file with a pair of tokens on each line, in the order in
 * which they are merged (merges.txt, vocab.bpe); NULL: such a tokenizer can only decode.  With merges each of the 256
 * bytes must have a token.  Errors name the file and its byte or line, and the field.
 * [errors ARGUMENT; IO: a file is missing, truncated, not in its format, or has what is not read; MEMORY: NULL] */
KL_API kl_tokenizer *kl_tokenizer_open(const char *vocabulary, const char *merges);
KL_API void kl_tokenizer_close(kl_tokenizer *tokenizer); /* NULL is allowed */

KL_API int64_t kl_tokenizer_count(const kl_tokenizer *tokenizer); /* number of ids; each id is below it */
/* The text of a token as the vocabulary has it, which the tokenizer owns: bytes of byte-level tokenizers, U+2581 for a
 * space of sentencepiece's; *bytes is its length.  NULL: no token has this id, which is not an error. */
KL_API const char *kl_tokenizer_text(const kl_tokenizer *tokenizer, int64_t id, int64_t *bytes);
/* The id of the token with this text; -1: there is none, which is not an error. */
KL_API int64_t kl_tokenizer_find(const kl_tokenizer *tokenizer, const char *text, int64_t bytes);

typedef enum kl_token_special {
    KL_TOKEN_BOS,     /* begin of a text, or BERT's [CLS] */
    KL_TOKEN_EOS,     /* end of a text or of an answer, or BERT's [SEP] */
    KL_TOKEN_UNKNOWN, /* what has no token */
    KL_TOKEN_PAD,
    KL_TOKEN_SPECIALS
} kl_token_special;
/* The id of a special token; -1: the file names none, which is not an error.  A tokenizer.json does not say which
 * tokens these are: they are then known by usual names ("<s>", "<|endoftext|>", ..). */
KL_API int64_t kl_tokenizer_special(const kl_tokenizer *tokenizer, kl_token_special which);

/* Zeros: as Hugging Face's encode(): special tokens in the text are recognised, and the tokens that a model expects in
 * front of and behind a text are added, if the file says so. */
typedef struct kl_encode_options {
    bool no_begin_end;    /* these are not added (add_special_tokens=False) */
    bool plain_text;      /* special tokens in the text are text */
} kl_encode_options;
/* Encodes text as tokens; writes at most `room` ids.  *count is the number of all, even if it exceeds the room.
 * options: NULL: zeros.  [errors ARGUMENT: no merges, 2^31 bytes or more, a regular expression of the file that takes
 * too long on this text; MEMORY: *count is then 0] */
KL_API kl_status kl_tokenizer_encode_with(const kl_tokenizer *tokenizer, const char *text, int64_t bytes,
                                          const kl_encode_options *options, int32_t *ids, int64_t room,
                                          int64_t *count);
/* kl_tokenizer_encode_with, with plain_text and no_begin_end.  ids must have room for `bytes` elements, which is always
 * enough for tokenizers of bytes. [errors as kl_tokenizer_encode_with; ARGUMENT: more ids than bytes: *count is 0] */
KL_API kl_status kl_tokenizer_encode(const kl_tokenizer *tokenizer, const char *text, int64_t bytes, int32_t *ids,
                                     int64_t *count);

/* Zeros: all tokens, as Hugging Face's decode(skip_special_tokens=False). */
typedef struct kl_decode_options {
    bool skip_special;    /* special tokens have no text */
    bool continued;       /* text precedes: a space in front is not removed, as it is at the beginning of a text */
} kl_decode_options;
/* Writes the text of n tokens, at most `room` bytes, without a terminating zero.  *bytes is the total number, even if
 * it exceeds the room.  Bytes of a character whose other bytes are not among the tokens are written as they are.
 * options: NULL: zeros.  [errors ARGUMENT: an invalid id: nothing is written; MEMORY] */
KL_API kl_status kl_tokenizer_decode_with(const kl_tokenizer *tokenizer, int64_t n, const int32_t *ids,
                                          const kl_decode_options *options, char *text, int64_t room, int64_t *bytes);
/* kl_tokenizer_decode_with, with zeros. */
KL_API kl_status kl_tokenizer_decode(const kl_tokenizer *tokenizer, int64_t n, const int32_t *ids, char *text,
                                     int64_t room, int64_t *bytes);

/* ---- chats: messages as the text that models of a family were trained on ---- */

typedef enum kl_chat_family {
    KL_CHAT_AUTO,    /* the one that the file's chat template or its tokens show */
    KL_CHAT_LLAMA3,  /* <|start_header_id|>user<|end_header_id|> */
    KL_CHAT_CHATML,  /* <|im_start|>user: Qwen and many others */
    KL_CHAT_MISTRAL, /* [INST] */
    KL_CHAT_GEMMA,   /* <start_of_turn>user */
    KL_CHAT_LLAMA2,  /* [INST] with <<SYS>> */
    KL_CHAT_FAMILIES
} kl_chat_family;
KL_API const char *kl_chat_family_name(kl_chat_family family); /* "auto", "llama3", .. */
/* The family that the tokenizer shows; KL_CHAT_AUTO: none that is known, which is not an error.  A GGUF file has the
 * model's template; of other files only the tokens are looked at: Llama 2 and the first Mistral are then not known. */
KL_API kl_chat_family kl_chat_family_of(const kl_tokenizer *tokenizer);

typedef struct kl_chat_message {
    const char *role; /* "system", "user" or "assistant"; Llama 3 and ChatML: any */
    const char *text;
} kl_chat_message;
/* Writes n messages as text, at most `room` bytes, with a terminating zero if there is room; *bytes is the number of
 * all, without the zero.  answer: the beginning of the assistant's answer is added.  It is encoded with no_begin_end:
 * the begin of text is in it.  A system message of a family that has none goes in front of the user's next one.  No
 * default system message is added, as templates of some models do.
 * [errors ARGUMENT: a family that is not known; a message with the text of a special token, by which its author could
 * end it and write the next one; a role that the family does not have; MEMORY: *bytes is then 0] */
KL_API kl_status kl_chat_format(const kl_tokenizer *tokenizer, kl_chat_family family, int64_t n,
                                const kl_chat_message *messages, bool answer, char *text, int64_t room,
                                int64_t *bytes);
/* The id of the token that ends an answer; -1: the tokenizer has it not, or the family is not known. */
KL_API int64_t kl_chat_end_token(const kl_tokenizer *tokenizer, kl_chat_family family);

#ifdef __cplusplus
}
#endif
#endif
