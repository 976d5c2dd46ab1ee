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

/* ---- schedule_text.c: the record of scheduling decisions, on one line ---- */
void schedule_put(struct text *t, const struct schedule *s);
/* After the word "schedule", to the end of the line. column (may be NULL): as in struct sched_line. */
bool schedule_read(struct lexer *l, struct schedule *s, uint32_t *column);

#endif
