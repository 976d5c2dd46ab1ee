/* Barrier elision.
 *
 * Normally all threads finish a kernel before any begins the next one, which may read anything that the first has
 * stored.  No barrier is placed between kernels that share no stored array, between kernels too small to be shared out,
 * which the same thread runs, and between kernels that split the arrays they share into the same parts. */
#include "ir/text/text.h"
#include "plan.h"

/* The memory of an argument: the state's if an output may overwrite it. */
static struct loc memory_of(const struct program *p, struct loc l)
{
    if (l.kind == LOC_OUT && p->in_place[l.index])
        return (struct loc){LOC_STATE, p->g->out[l.index].state, l.offset};
    return l;
}

static int64_t plan_barriers_bytes_of(const struct lbuf *b) { return b->count * (int64_t)dtype_size(b->dtype); }

/* May two arguments overlap? Different inputs of a region's program may be the same array. */
static bool may_alias(const struct planner *p, struct loc a, int64_t abytes, struct loc b, int64_t bbytes)
{
    if (a.kind >= LOC_SCRATCH || b.kind >= LOC_SCRATCH)
        return false;
    a = memory_of(p->p, a);
    b = memory_of(p->p, b);
    if (a.kind != b.kind || a.index != b.index)
        return p != p->root && a.kind != LOC_ARENA && b.kind != LOC_ARENA;
    return a.offset < b.offset + bbytes && b.offset < a.offset + abytes;
}

static const int64_t *partition_of_kernel(struct planner *p, uint32_t kernel)
{
    const struct kernel *k = p->root->p->kernel[kernel];
    struct kernel_facts *f = plan_kernel_facts(p, kernel);
    if (!f || f->step)
        return f ? f->step : NULL;
    int64_t *step = mem_alloc((k->nbuf + 1) * sizeof *step);
    if (step && kernel_partition(k, step))
        return f->step = step;
    mem_free(step);
    plan_no_memory(p);
    return NULL;
}

/* Do two kernels split two arguments, which share memory, into the same parts? */
static bool same_parts(struct planner *p, const struct command *x, uint32_t a, const struct command *y, uint32_t b)
{
    const struct kernel *kx = p->root->p->kernel[x->kernel], *ky = p->root->p->kernel[y->kernel];
    struct loc lx = memory_of(p->p, x->arg[a]), ly = memory_of(p->p, y->arg[b]);
    if (kx->extent != ky->extent || kx->sched.grain != ky->sched.grain || lx.kind != ly.kind || lx.index != ly.index ||
        lx.offset != ly.offset)
        return false;
    const int64_t *sx = partition_of_kernel(p, x->kernel), *sy = sx ? partition_of_kernel(p, y->kernel) : NULL;
    return sy && sx[a] > 0 && sy[b] > 0 &&
           sx[a] * (int64_t)dtype_size(kx->buf[a].dtype) == sy[b] * (int64_t)dtype_size(ky->buf[b].dtype);
}

static bool may_elide(struct planner *p, const struct command *x, const struct command *y)
{
    const struct kernel *kx = p->root->p->kernel[x->kernel], *ky = p->root->p->kernel[y->kernel];
    if (!kx->sched.grain && !ky->sched.grain) /* neither is shared out: the calling thread runs both */
        return true;
    if (p->root->p->placeholders.n) /* where values lie and what the threads' shares are depends on the symbols */
        return false;
    for (uint32_t a = 0; a < x->narg; a++)
        for (uint32_t b = 0; b < y->narg; b++) {
            bool stored = kx->buf[a].role != BUF_IN || ky->buf[b].role != BUF_IN;
            if (stored && may_alias(p, x->arg[a], plan_barriers_bytes_of(&kx->buf[a]), y->arg[b],
                                    plan_barriers_bytes_of(&ky->buf[b])) &&
                !same_parts(p, x, a, y, b))
                return false;
        }
    return true;
}

static bool has_one_phase(struct planner *p, uint32_t kernel)
{
    const struct kernel *k = p->root->p->kernel[kernel];
    struct kernel_facts *f = plan_kernel_facts(p, kernel);
    struct phase first = {0};
    if (f && !f->phases_known) {
        f->one_phase = kernel_phase(k, &first) && !kernel_phase(k, &first);
        f->phases_known = true;
    }
    return f && f->one_phase;
}

bool plan_elide_barriers(struct planner *p)
{
    for (uint32_t c = 1, first = 0; c < p->p->ncmd && !p->e->code; c++) {
        struct command *m = &p->p->cmd[c];
        const struct command *before = m - 1;
        bool may = !m->wait && m->kind == CMD_KERNEL && before->kind == CMD_KERNEL && m->device == before->device &&
                   c - first < MAX_KERNEL_RUN && has_one_phase(p, m->kernel) && has_one_phase(p, before->kernel);
        for (uint32_t i = first; may && i < c; i++)
            may = may_elide(p, &p->p->cmd[i], m);
        m->no_barrier = may;
        first = may ? first : c;
    }
    return !p->e->code;
}

/* ---- as text ---- */

static void plan_barriers_order(struct text *t, const struct program *p, unsigned depth)
{
    for (uint32_t c = 0; c < p->ncmd; c++) {
        const struct command *m = &p->cmd[c];
        if (!m->no_barrier)
            text_put(t, "%s#%*s", c ? "\n" : "", (int)(2 * depth + 1), "");
        switch (m->kind) {
        case CMD_KERNEL: text_put(t, "%s@%s", m->no_barrier ? ", no barrier, " : "", p->kernel[m->kernel]->name); break;
        case CMD_COPY:   text_put(t, "copy of %lld bytes", (long long)m->bytes); break;
        case CMD_INTERP: text_put(t, "the interpreter"); break;
        default:         text_put(t, "%s", opinfo[p->g->node[m->region].op].name);
        }
        for (int i = 0; i < 2; i++)
            if (m->sub[i]) {
                text_put(t, "\n");
                plan_barriers_order(t, m->sub[i], depth + 1);
            }
    }
}

char *program_order(const struct program *p)
{
    struct text t = {0};
    plan_barriers_order(&t, p, 0);
    text_put(&t, "\n");
    return text_take(&t);
}
