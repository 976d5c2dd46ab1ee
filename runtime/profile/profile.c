/* Profiles: each thread has one, which the executor fills. */
#include "runtime/runtime.h"

static THREAD_LOCAL struct profile *current;

void profile_here(struct profile *p) { current = p; }
struct profile *profile_current(void) { return current; }

struct profile_row *profile_rows(struct profile *p, const struct exec *x)
{
    uint32_t kernels = x->program->nkernel, at = 0;
    while (at < p->n && p->row[at].x != x)
        at += p->row[at].x->program->nkernel + PROFILE_OTHERS;
    if (at < p->n)
        return &p->row[at];
    if (!mem_reserve(&p->row, &p->cap, p->n + kernels + PROFILE_OTHERS, sizeof *p->row))
        return NULL;
    for (uint32_t i = 0; i < kernels + PROFILE_OTHERS; i++)
        p->row[p->n++] = (struct profile_row){
            .x = x, .kernel = i < kernels ? i : PROFILE_COPY + (i - kernels)};
    exec_ref(x);
    return &p->row[at];
}

void profile_free(struct profile *p)
{
    for (uint32_t at = 0, rows; at < p->n; at += rows) {
        const struct exec *x = p->row[at].x;
        rows = x->program->nkernel + PROFILE_OTHERS;
        exec_unref(x);
    }
    mem_free(p->row);
    *p = (struct profile){0};
}
