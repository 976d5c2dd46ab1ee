/* Training steps and gradients of bench/peers/peers_cases.h, and GPT-2's step, as the text of their graph, as
 * captured. */
#ifndef GPU_STEP_TEXT_H
#define GPU_STEP_TEXT_H
#include <stdbool.h>

extern const char *const gpu_step_names[]; /* ends with NULL */
/* The step's graph; nothing is computed.  half: under autocast in bf16.  The caller frees it with free; NULL: see
 * kl_last_error. */
char *gpu_step_text(const char *name, bool half);

enum { GPT2_BATCH = 8, GPT2_TOKENS = 1024, GPT2_WORDS = 50257 };
char *gpu_gpt2_text(bool half); /* the step gpt2-124m of gpu_step_text */
char *gpu_captured_text(void);  /* the graph of the trace that is being recorded, likewise */

#endif
