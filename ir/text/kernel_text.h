/* The words of the kernel language, used by printer and parser. */
#ifndef KILN_KERNEL_TEXT_H
#define KILN_KERNEL_TEXT_H
#include "lex.h"
#include "ir/loop/loop.h"

/* ---- kernel_words.c ---- */
struct words { const char *const *v; unsigned n; };
extern const struct words prim_words, loop_words, fold_words, interleave_words, prefetch_words, role_words, tile_words,
    mma_words, async_words;
int words_find(const struct words *w, struct word name); /* -1: none of them */

/* ---- sched_record_text.c: the record of scheduling decisions, on one line ---- */
void record_put(struct text *t, const struct sched_family *f, const struct sched_record *s);
/* After the word "schedule", to the end of the line.  column (may be NULL): set to columns of the text, from 1, of the
 * kind in column[0], of field i in column[1 + i], if the text has it. */
bool record_read(struct lexer *l, const struct sched_families *f, struct sched_record *s, uint32_t *column);

#endif
