/* Byte-pair tokenizers: GPT-2's, from its own files.  Included by <kiln/train.h>.
 *
 *     kl_tokenizer *t = kl_tokenizer_open("vocab.json", "merges.txt");
 *     int32_t *ids = malloc(length * sizeof *ids);
 *     int64_t n;
 *     kl_tokenizer_encode(t, text, length, ids, &n);
 *     int64_t end_of_text = kl_tokenizer_find(t, "<|endoftext|>", 13);
 *
 * Text is any bytes, as a rule UTF-8; decoding what was encoded gives the same bytes.  An open tokenizer is immutable:
 * any number of threads may use it. */
#ifndef KILN_TOKENIZER_H
#define KILN_TOKENIZER_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_tokenizer kl_tokenizer;

/* vocabulary: either a JSON object of tokens and their ids 0 to n - 1, with the tokens' bytes written as GPT-2's
 * characters (vocab.json, encoder.json), or llm.c's gpt2_tokenizer.bin, which is recognised by its first bytes.
 * merges: a file with a pair of tokens on each line, in the order in which they are merged (merges.txt, vocab.bpe).
 * merges NULL: the tokenizer can only decode.  With merges each of the 256 bytes must have a token.  Errors name the
 * file and its byte or line.
 * [errors ARGUMENT; IO: a file is missing, truncated or not in its format; MEMORY: NULL] */
KL_API kl_tokenizer *kl_tokenizer_open(const char *vocabulary, const char *merges);
KL_API void kl_tokenizer_close(kl_tokenizer *tokenizer); /* NULL is allowed */

KL_API int64_t kl_tokenizer_count(const kl_tokenizer *tokenizer); /* number of tokens; each id is below it */
/* The bytes of a token, which the tokenizer owns; *bytes is their number.  NULL: no token has this id, which is not
 * an error. */
KL_API const char *kl_tokenizer_text(const kl_tokenizer *tokenizer, int64_t id, int64_t *bytes);
/* The id of the token with these bytes; -1: there is none, which is not an error. */
KL_API int64_t kl_tokenizer_find(const kl_tokenizer *tokenizer, const char *text, int64_t bytes);

/* Splits text into words as GPT-2 does (contractions; letters, numbers and other characters with one space before
 * them; white space; all by Unicode's classes) and merges the bytes of each word.  ids must have room for `bytes`
 * elements, which is always enough; *count is the number of ids.  Special tokens are not recognised: "<|endoftext|>"
 * is encoded as text.  [errors ARGUMENT: no merges, 2^31 bytes or more; MEMORY: *count is then 0] */
KL_API kl_status kl_tokenizer_encode(const kl_tokenizer *tokenizer, const char *text, int64_t bytes, int32_t *ids,
                                     int64_t *count);
/* Writes the bytes of n tokens to text, at most `room` bytes, without a terminating zero.  *bytes is the total
 * number, even if it exceeds the room.  [errors ARGUMENT: an invalid id: nothing is written] */
KL_API kl_status kl_tokenizer_decode(const kl_tokenizer *tokenizer, int64_t n, const int32_t *ids, char *text,
                                     int64_t room, int64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
