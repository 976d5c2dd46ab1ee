/* Runs programs: command by command, each kernel shared out over the pool.
 *
 * One buffer from the pool is all that an execution owns besides its outputs: the program's arena, then for each
 * worker its scratch and the table of its kernel's arguments.  So executions of one program never meet, and in
 * the steady state nothing is allocated.  Allocating comes first; once the first command runs nothing can fail,
 * but for the interpreter, which writes fresh buffers only. */
#include "runtime/runtime.h"
#include <string.h>

struct run {
    const struct exec *x;
    struct buffer *const *input, *const *state;
    struct buffer **out;
    const uint64_t *slot;
    char *arena, *scratch;        /* scratch: worker 0's; the others' follow, worker_bytes apart */
    size_t scratch_bytes, worker_bytes;
    const struct command *cmd;    /* the one that runs now */
};

static size_t round_up(size_t n) { return (n + 63) & ~(size_t)63; }

/* Where an argument lies for one worker. */
static void *resolve(const struct run *r, const struct loc *l, unsigned worker)
{
    char *base = NULL;
    switch (l->kind) {
    case LOC_ARENA:   base = r->arena; break;
    case LOC_INPUT:   base = r->input[l->index]->data; break;
    case LOC_STATE:   base = r->state[l->index]->data; break;
    case LOC_OUT:     base = r->out[l->index]->data; break;
    case LOC_SCRATCH: base = r->scratch + worker * r->worker_bytes; break;
    }
    return base + l->offset;
}

static void run_kernel(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    const struct run *r = ctx;
    const struct command *c = r->cmd;
    void **arg = (void **)(r->scratch + worker * r->worker_bytes + r->scratch_bytes);
    for (uint32_t i = 0; i < c->narg; i++) arg[i] = resolve(r, &c->arg[i], worker);
    r->x->fn[c->kernel](arg, r->slot, begin, end);
}

static void run_copy(const struct run *r)
{
    void *to = resolve(r, &r->cmd->arg[0], 0);
    const void *from = resolve(r, &r->cmd->arg[1], 0);
    if (to != from) memcpy(to, from, (size_t)r->cmd->bytes); /* the same: a state assigned to itself in place */
}

/* The interpreter in the pool's floating-point environment. */
struct interp_call {
    const struct graph *g;
    struct bind bind;
    struct err *e;
    bool ok;
};

static void call_interp(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)begin, (void)end, (void)worker;
    struct interp_call *c = ctx;
    c->ok = interp_run(c->g, &c->bind, c->e);
}

/* A program for the interpreter is one command.  The pointers that struct bind wants lie in the scratch. */
static bool run_interp(const struct run *r, struct err *e)
{
    const struct graph *g = r->x->program->g;
    void **p = (void **)r->scratch;
    for (uint32_t i = 0; i < g->input.n; i++) p[i] = r->input[i]->data;
    void **state = p + g->input.n, **out = state + g->state.n;
    for (uint32_t i = 0; i < g->state.n; i++) state[i] = r->state[i]->data;
    for (uint32_t i = 0; i < g->nout; i++) out[i] = r->out[i]->data;
    struct interp_call c = {g, {(const void *const *)p, (const void *const *)state, r->slot, out}, e, false};
    pool_run(call_interp, &c, 1, 0);
    return c.ok;
}

static bool interprets(const struct program *p) { return p->ncmd == 1 && p->cmd[0].kind == CMD_INTERP; }

/* A buffer for every output: its own, or the state's where it may be updated in place. */
static bool make_outputs(const struct run *r, const bool *exclusive, struct err *e)
{
    const struct program *p = r->x->program;
    const struct graph *g = p->g;
    for (uint32_t i = 0; i < g->nout; i++) {
        const struct output *o = &g->out[i];
        bool in_place = o->kind == OUT_ASSIGN && p->in_place[i] && exclusive[o->state] && !interprets(p);
        r->out[i] = in_place ? buffer_ref(r->state[o->state])
                             : buffer_new(r->x->device, node_bytes(g, o->value), e);
        if (!r->out[i]) return false;
    }
    return true;
}

/* The execution's own memory: the arena, then each worker's part. */
static struct buffer *make_workspace(struct run *r, unsigned workers, struct err *e)
{
    const struct program *p = r->x->program;
    size_t pointers = interprets(p) ? (size_t)p->g->input.n + p->g->state.n + p->g->nout : r->x->max_args;
    size_t arena = round_up((size_t)p->arena_bytes);
    r->scratch_bytes = interprets(p) ? 0 : round_up((size_t)p->scratch_bytes);
    r->worker_bytes = r->scratch_bytes + round_up(pointers * sizeof(void *));
    struct buffer *b = buffer_new(r->x->device, arena + workers * r->worker_bytes, e);
    if (!b) return NULL;
    r->arena = b->data;
    r->scratch = r->arena + arena;
    return b;
}

static bool run_commands(struct run *r, unsigned workers, struct err *e)
{
    const struct program *p = r->x->program;
    uint64_t launches = 0;
    for (uint32_t i = 0; i < p->ncmd; i++) {
        r->cmd = &p->cmd[i];
        if (r->cmd->kind == CMD_KERNEL) {
            const struct kernel *k = p->kernel[r->cmd->kernel];
            pool_run_max(run_kernel, r, k->extent, k->sched.grain, workers);
            launches++;
        } else if (r->cmd->kind == CMD_COPY) {
            run_copy(r);
        } else if (!run_interp(r, e)) {
            return false;
        }
    }
    atomic_fetch_add_explicit(&counters.launches, launches, memory_order_relaxed);
    return true;
}

bool exec_run(const struct exec *x, struct buffer *const *input, struct buffer *const *state,
              const bool *state_exclusive, const uint64_t *slot, struct buffer **out, struct err *e)
{
    uint32_t nout = x->program->g->nout;
    unsigned workers = pool_threads();
    struct run r = {.x = x, .input = input, .state = state, .out = out, .slot = slot};
    for (uint32_t i = 0; i < nout; i++) out[i] = NULL;
    struct buffer *workspace = NULL;
    bool ok = make_outputs(&r, state_exclusive, e) && (workspace = make_workspace(&r, workers, e)) &&
              run_commands(&r, workers, e);
    buffer_unref(workspace);
    for (uint32_t i = 0; i < nout && !ok; i++) {
        buffer_unref(out[i]);
        out[i] = NULL;
    }
    return ok;
}
