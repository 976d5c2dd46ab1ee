/* Training steps and gradients of bench/peers/peers_cases.h as the text of their graph, as captured. */
#ifndef GPU_STEP_TEXT_H
#define GPU_STEP_TEXT_H

extern const char *const gpu_step_names[]; /* ends with NULL */
/* The step's graph; nothing is computed.  half: under autocast in bf16.  The caller frees it with free; NULL: see
 * kl_last_error. */
char *gpu_step_text(const char *name, bool half);

#endif
