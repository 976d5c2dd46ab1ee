/* The executor: runs a program command by command.  The iterations of each kernel are shared out over the thread pool;
 * kernels without barriers between them are one job.
 *
 * A run uses one pooled buffer besides its outputs: the program's arena, then for each worker its scratch and the table
 * of its kernel's arguments; if these are small, they are on its stack. (Arenas of further devices are separate
 * buffers.) So concurrent runs of one program share nothing, and the steady state allocates nothing.  Allocation comes
 * first.  After the first command has started nothing can fail except the interpreters and custom ops; if a program has
 * these, no state is written in place, unless they are custom ops of another thread that end before the first state is
 * written.  A device with a driver gets the whole program before it starts, so a failure on the way drops all of it.
 * If its work must start earlier, because parts of the program are on other devices, no state is written in place.
 *
 * A run that can be cancelled asks before each command, at each iteration of a loop, and between the parts or pieces of
 * a long kernel, whether it is to end.  From the first command that overwrites a state on it runs to its end; if
 * there are loops from there on, which may take long or not end, no state is written in place. */
#include "ir/graph/custom.h"
#include "execute.h"
#include "runtime/async.h"
#include "runtime/float_env.h"
#include <string.h>

static size_t round_up(size_t n) { return (n + 63) & ~(size_t)63; }

static inline void *resolve_loc(const struct frame *f, const struct loc *l, unsigned worker)
{
    const char *base = NULL;
    if (l->kind < FRAME_DATA)
        base = f->data[l->kind][l->index];
    else if (l->kind == LOC_SCRATCH)
        base = f->r->scratch + worker * f->r->worker_bytes;
    else if (l->kind == LOC_LAYOUT)
        base = (const char *)f->data[LOC_ARENA][f->p->layout->device] + f->r->offset[l->index];
    return base ? (char *)base + l->offset : NULL; /* workspace and kernel-local memory are of kernels for GPUs only */
}

void *exec_resolve(const struct frame *f, const struct loc *l, unsigned worker) { return resolve_loc(f, l, worker); }

static inline void **command_arguments(const struct frame *f, const struct command *c, unsigned worker)
{
    void **arg = (void **)(f->r->scratch + worker * f->r->worker_bytes + f->r->scratch_bytes), **at = arg;
    for (const struct loc *l = c->arg, *end = l + c->narg; l < end; l++) *at++ = resolve_loc(f, l, worker);
    return arg;
}

void **exec_arguments(const struct frame *f, const struct command *c, unsigned worker)
{
    return command_arguments(f, c, worker);
}

/* Runs a part of f->cmd or of one of the kernels in the same job. */
static void executor_run_kernel(void *ctx, uint32_t part, int64_t begin, int64_t end, unsigned worker)
{
    const struct frame *f = ctx;
    const struct command *c = f->cmd + part;
    int64_t began = worker && f->r->times ? timeline_now() : 0;
    f->r->x->fn[c->kernel](command_arguments(f, c, worker), f->r->slot, begin, end);
    if (began) span_end(SPAN_SHARE, f->p->kernel[c->kernel]->name, began);
}

/* A size of the program for the symbols' values of this run. */
static int64_t size_now(const struct run *r, int64_t size)
{
    const struct placeholders *s = &r->x->program->placeholders;
    return s->n ? size_at(s, size, r->slot) : size;
}

static inline size_t output_bytes(const struct run *r, uint32_t i)
{
    const struct graph *g = r->x->program->g;
    const struct node *n = node_at(g, g->out[i].value);
    return (size_t)size_now(r, node_numel(g, g->out[i].value)) * dtype_size(n->dtype);
}

static bool run_copy(const struct frame *f, struct err *e)
{
    int64_t bytes = size_now(f->r, f->cmd->bytes);
    void *to = exec_resolve(f, &f->cmd->arg[0], 0);
    const void *from = exec_resolve(f, &f->cmd->arg[1], 0);
    /* A state assigned to itself in place.  No bytes: there may be no arena. */
    if (!bytes || (to == from && f->cmd->device == f->cmd->from)) return true;
    bool host = device_is_host(f->cmd->device), from_host = device_is_host(f->cmd->from);
    if (f->cmd->device != f->cmd->from && (host || from_host)) atomic_fetch_add_explicit(&counters.peer_copies, 1,
                                                                                         memory_order_relaxed);
    if (!host || !from_host) return accelerator_copy(f, to, from, (size_t)bytes, e);
    memcpy(to, from, (size_t)bytes);
    return true;
}

/* A kernel on a device without a code generator, in the pool's floating-point environment. */
struct kernel_call {
    struct frame *f;
    struct err *e;
    int64_t begin, end;           /* iterations */
    bool ok;
};

static void call_kernel_interp(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)begin, (void)end;
    struct kernel_call *c = ctx;
    const struct command *cmd = c->f->cmd;
    const struct kernel *k = c->f->p->kernel[cmd->kernel];
    void **arg = exec_arguments(c->f, cmd, worker);
    /* a kernel made for a GPU of the same program may have phases */
    char *workspace = mem_alloc((size_t)c->f->p->workspace_bytes);
    for (uint32_t i = 0; workspace && i < cmd->narg; i++)
        if (cmd->arg[i].kind == LOC_WORKSPACE) arg[i] = workspace + cmd->arg[i].offset;
    c->ok = workspace ? kernel_interp(k, arg, c->f->r->slot, c->begin, c->end, c->e)
                      : err_set(c->e, KL_ERR_MEMORY, "out of memory running kernel %s", k->name);
    mem_free(workspace);
}

/* How often a timed command is executed. */
static uint32_t times_of(const struct frame *f)
{
    bool kernel = f->cmd->kind == CMD_KERNEL && !device_is_host(f->cmd->device);
    return kernel && f->r->timed && f->r->timed[f->cmd->kernel] ? f->r->timed[f->cmd->kernel] : 1;
}

static void call_kernel(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)begin, (void)end;
    struct kernel_call *c = ctx;
    executor_run_kernel(c->f, 0, c->begin, c->end, worker);
    c->ok = true;
}

/* A kernel on one thread.  If its iterations are in order, they may take long: asks before each whether the run is
 * cancelled. */
static bool run_kernel_alone(struct frame *f, pool_fn *call, struct err *e)
{
    const struct kernel *k = f->p->kernel[f->cmd->kernel];
    bool asks = f->r->cancel && kernel_is_in_order(k);
    struct kernel_call c = {.f = f, .e = e, .end = asks ? 0 : k->extent, .ok = true};
    f->r->launches++;
    do {
        if (asks && cancellation_requested(f->r->cancel, e)) return false;
        c.end += asks;
        pool_run(call, &c, 1, 0);
        c.begin = c.end;
    } while (c.ok && c.end < k->extent);
    return c.ok;
}

int64_t executor_piece_work = INT64_C(1) << 31;

struct piece { struct frame *f; int64_t first; };

static void run_piece(void *ctx, uint32_t part, int64_t begin, int64_t end, unsigned worker)
{
    const struct piece *p = ctx;
    executor_run_kernel(p->f, part, p->first + begin, p->first + end, worker);
}

/* A kernel of a run that can be cancelled: in pieces of some tenths of a second, and asks between them. */
static bool run_in_pieces(struct frame *f, struct pool_part part, struct err *e)
{
    const struct kernel *k = f->p->kernel[f->cmd->kernel];
    int64_t extent = part.extent, work = k->flops + k->bytes;
    double share = (double)executor_piece_work / (double)work;
    if (share < 1) part.extent = (int64_t)((double)extent * share);
    int64_t each = part.extent += !part.extent;
    for (int64_t first = 0; first < extent; first += each) {
        struct piece piece = {f, first};
        part.extent = extent - first < each ? extent - first : each;
        if (first && cancellation_requested(f->r->cancel, e)) return false;
        pool_run_parts(run_piece, &piece, &part, 1, f->r->workers);
    }
    return true;
}

/* Runs f->cmd and the following kernels that need no barrier; *n: their number. */
static bool run_command_kernels(struct frame *f, uint32_t *n, struct err *e)
{
    const struct command *end = f->p->cmd + f->p->ncmd;
    struct pool_part part[MAX_KERNEL_RUN];
    *n = 0;
    if (!device_is_host(f->cmd->device)) {
        f->r->launches++;
        *n = 1;
        bool ok = true;
        for (uint32_t times = times_of(f); ok && times; times--) ok = accelerator_launch(f, e);
        return ok;
    }
    if (f->r->x->interpreted >> f->cmd->device & 1) {
        *n = 1;
        return run_kernel_alone(f, call_kernel_interp, e);
    }
    const struct command *c = f->cmd;
    if (f->r->cancel && kernel_is_in_order(f->p->kernel[c->kernel])) {
        *n = 1;
        f->r->barriers++;
        return run_kernel_alone(f, call_kernel, e);
    }
    bool alone = true;
    /* a run that can be cancelled asks before each kernel */
    for (; c < end && *n < MAX_KERNEL_RUN && (!*n || (c->no_barrier && f->r->elide && !f->r->cancel)); c++) {
        const struct kernel *k = f->p->kernel[c->kernel];
        int64_t extent = f->r->extent ? f->r->extent[c->kernel] : k->extent;
        part[*n] = (struct pool_part){extent, k->sched.grain, true};
        alone = pool_shares(&part[(*n)++], f->r->workers) <= 1 && alone;
    }
    f->r->launches += *n;
    f->r->barriers++;
    if (f->r->cancel) return run_in_pieces(f, part[0], e);
    if (alone)
        pool_run_alone(executor_run_kernel, f, part, *n);
    else
        pool_run_parts(executor_run_kernel, f, part, *n, f->r->workers);
    return true;
}

/* A program for the interpreter has one command. */
static bool run_interp(const struct frame *f, struct err *e)
{
    struct bind bind = {f->data[LOC_INPUT], f->data[LOC_STATE], f->r->slot, (void *const *)f->data[LOC_OUT], NULL,
                        f->r->cancel};
    return reference_run(f->p->g, &bind, false, e);
}

static bool program_is_interpreted(const struct program *p) { return p->ncmd == 1 && p->cmd[0].kind == CMD_INTERP; }

static bool run_commands(struct frame *f, struct err *e);

/* Is the run to end before its next command, whose number is i? */
static bool is_cancelled(const struct frame *f, uint32_t i, struct err *e)
{
    struct run *r = f->r;
    if (cancellation_requested(r->cancel, e)) return true;
    if (r->overwrites && f->p == r->x->program && i == f->p->overwrites) r->cancel = NULL;
    return false;
}

/* ---- region ops: the programs of their regions run in the workspace of the command ---- */
static bool executor_run_region(void *ctx, uint32_t which, const void *const *in, void *const *out)
{
    const struct region_frame *r = ctx;
    struct frame sub = {.r = r->f->r, .p = r->f->cmd->sub[which]};
    sub.data[LOC_ARENA] = r->arena, sub.data[LOC_INPUT] = in, sub.data[LOC_OUT] = (const void *const *)out;
    return !cancellation_requested(sub.r->cancel, r->e) && run_commands(&sub, r->e);
}

/* Of an operand or a result, for the symbols' values of this run. */
static size_t region_bytes_now(const struct region_call *c, bool result, uint32_t i)
{
    const struct region_frame *r = c->ctx;
    size_t bytes = result ? region_result_bytes(c->g, c->n, i) : node_bytes(c->g, node_in(c->g, c->n, i));
    return (size_t)size_now(r->f->r, (int64_t)bytes);
}

static bool run_region_op(struct frame *f, struct err *e)
{
    const struct command *c = f->cmd;
    const struct node *n = node_at(f->p->g, c->region);
    struct workspace w = command_workspace(f->p, c);
    char *work = exec_resolve(f, &c->arg[c->narg - 1], 0);
    bool here = device_is_host(c->device);
    void **own = here ? NULL : mem_alloc(4 * c->narg * sizeof *own); /* if the host cannot access the workspace */
    void **at = here ? (void **)(work + w.pointers) : own;
    if (!at) return err_set(e, KL_ERR_MEMORY, "no memory for the operands of op %s", opinfo[n->op].name);
    for (uint32_t i = 0; i + 1 < c->narg; i++) at[i] = exec_resolve(f, &c->arg[i], 0);
    struct region_frame sub;
    sub.f = f;
    sub.e = e;
    for (unsigned d = 0; d < MAX_DEVICES; d++)
        if (f->p->region_bytes[d])
            sub.arena[d] = (const char *)f->data[LOC_ARENA][d] + f->p->arena_bytes[d] - f->p->region_bytes[d];
    sub.arena[c->device] = work + w.arena;
    struct region_call call = region_call(f->p->g, n);
    call.in = (const void *const *)at, call.out = at + node_nin(n), call.work = work + w.work;
    call.run = executor_run_region, call.ctx = &sub;
    call.length = size_now(f->r, call.length), call.bytes = region_bytes_now;
    if (!here) call.pointers = own + 2 * c->narg, call.peek = accelerator_peek, call.move = accelerator_move;
    bool ok = region_run(&call);
    mem_free(own);
    return ok;
}

/* Adds a command to the profile; kernels of a region are added separately.  took: on its device, or below 0. */
static void note_time(const struct frame *f, double start, double took)
{
    uint32_t i = f->cmd->kernel, kernels = f->r->x->program->nkernel;
    if (f->cmd->kind == CMD_REGION) return;
    if (f->cmd->kind == CMD_COPY) f->r->row[i = kernels].bytes += 2 * f->cmd->bytes;
    if (f->cmd->kind == CMD_CUSTOM) i = kernels + 1;
    if (f->cmd->kind == CMD_INTERP) i = kernels + 2;
    f->r->row[i].calls++;
    f->r->row[i].seconds += (took < 0 ? f->r->clock() - start : took) / times_of(f);
}

/* Adds a command to the program's times and to the timeline.  took: on its device, or below 0. */
static void note_span(const struct frame *f, int64_t began, double took)
{
    static const enum span kinds[] = {[CMD_KERNEL] = SPAN_KERNEL, [CMD_COPY] = SPAN_COPY, [CMD_INTERP] = SPAN_INTERP,
                                      [CMD_REGION] = SPAN_REGION, [CMD_CUSTOM] = SPAN_CUSTOM};
    const struct command *c = f->cmd;
    const struct kernel *k = c->kind == CMD_KERNEL ? f->p->kernel[c->kernel] : NULL;
    const struct graph *g = f->p->g;
    struct command_time *t = &f->r->times->row[c->row];
    const char *name = k ? k->name : c->kind == CMD_COPY ? "copy" : c->kind == CMD_INTERP ? g->name
                       : c->kind == CMD_REGION ? opinfo[node_at(g, c->region)->op].name
                                               : node_custom(g, node_at(g, c->region))->name;
    int64_t ns = took < 0 ? timeline_now() - began : (int64_t)(1e9 * took + 0.5);
    atomic_fetch_add_explicit(&t->calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->ns, (uint64_t)ns, memory_order_relaxed);
    span_add(kinds[c->kind], name, began, ns, k ? k->bytes : c->kind == CMD_COPY ? 2 * c->bytes : 0, k ? k->flops : 0);
}

/* ---- custom ops: the user's functions, in the pool's floating-point environment ---- */
struct custom_call {
    const struct frame *f;
    struct err *e;
    bool ok;
};

static void call_custom(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)begin, (void)end, (void)worker;
    struct custom_call *call = ctx;
    const struct frame *f = call->f;
    const struct command *c = f->cmd;
    const struct node *n = node_at(f->p->g, c->region);
    struct workspace w = command_workspace(f->p, c);
    char *work = exec_resolve(f, &c->arg[c->narg - 1], 0);
    void **at = (void **)(work + w.pointers);
    for (uint32_t i = 0; i + 1 < c->narg; i++) at[i] = exec_resolve(f, &c->arg[i], 0);
    struct size_values sizes;
    call->ok = custom_run(f->p->g, n, run_sizes(f->r, &sizes), (const void *const *)at, at + node_nin(n),
                          work + w.work, call->e);
}

static bool run_custom(const struct frame *f, struct err *e)
{
    struct custom_call call = {f, e, false};
    if (!device_is_host(f->cmd->device)) return accelerator_custom(f, e);
    pool_run(call_custom, &call, 1, 0);
    return call.ok;
}

/* ---- custom ops that another thread runs, one after the other (command.signal) ---- */
struct async_call {
    struct async_task task;
    struct frame f;               /* with the command */
    struct custom_call call;
    struct err e;
    double seconds;               /* for a profile */
};

static void run_async(void *ctx)
{
    struct async_call *a = ctx;
    struct run *r = a->f.r;
    double start = r->row ? r->clock() : 0;
    int64_t began = r->times ? timeline_now() : 0;
    if (!atomic_load_explicit(&r->async_failed, memory_order_relaxed)) pool_run(call_custom, &a->call, 1, 0);
    if (!a->call.ok) atomic_store_explicit(&r->async_failed, true, memory_order_relaxed);
    if (r->row) a->seconds = r->clock() - start;
    if (began) note_span(&a->f, began, -1);
}

static void start_async(const struct frame *f)
{
    struct async_call *a = &f->r->async[f->r->started++];
    a->f = *f;
    a->call = (struct custom_call){&a->f, &a->e, false};
    a->task = (struct async_task){.run = run_async, .ctx = a};
    async_start(&a->task);
}

/* Waits for the first n of them; false: *e is the first one's error. */
static bool wait_async(struct run *r, uint32_t n, struct err *e)
{
    bool ok = true;
    for (; r->ended < n && r->ended < r->started; r->ended++) {
        struct async_call *a = &r->async[r->ended];
        async_wait(&a->task);
        if (r->row) {
            struct profile_row *row = &r->row[r->x->program->nkernel + 1];
            row->calls++;
            row->seconds += a->seconds;
        }
        if (ok && !a->call.ok && !e->code) *e = a->e;
        ok &= a->call.ok;
    }
    return ok;
}

/* Runs a kernel of a bare run that is one share, with all in its job. false: it is not one. */
static inline bool run_directly(const struct frame *f, const struct command *c)
{
    struct run *r = f->r;
    if (c->kind != CMD_KERNEL) return false;
    const struct kernel *k = f->p->kernel[c->kernel];
    int64_t extent = r->extent ? r->extent[c->kernel] : k->extent;
    if (r->workers > 1) {
        bool last = c + 1 == f->p->cmd + f->p->ncmd || !c[1].no_barrier;
        if (c->no_barrier || !last || (k->sched.grain > 0 && extent / 2 >= k->sched.grain)) return false;
    }
    r->launches++;
    r->barriers += !c->no_barrier || !r->elide;
    if (extent > 0) r->x->fn[c->kernel](command_arguments(f, c, 0), r->slot, 0, extent);
    return true;
}

/* Only the interpreters, custom ops and devices with a driver can fail, and what is cancelled. */
static bool run_commands(struct frame *f, struct err *e)
{
    bool ok = true, bare = f->r->bare;
    for (uint32_t i = 0, n = 1; i < f->p->ncmd && ok; i += n) {
        f->cmd = &f->p->cmd[i];
        n = 1;
        if (bare && run_directly(f, f->cmd)) continue;
        if (f->r->x->skip && f->r->x->skip[i]) continue;
        if (f->r->cancel && is_cancelled(f, i, e)) return false;
        bool async = f->cmd->signal && device_is_host(f->cmd->device) && !f->r->watch;
        /* one that this thread runs itself, for a device with a driver, keeps its place among the others */
        uint32_t wait = f->cmd->signal && !async ? f->cmd->signal : f->cmd->wait;
        if (f->p->signals && i == f->p->overwrites) wait = f->p->signals;
        if (wait && !(ok = wait_async(f->r, wait, e))) break;
        if (async) {
            start_async(f);
            continue;
        }
        double start = f->r->row ? f->r->clock() : 0;
        int64_t began = f->r->times ? timeline_now() : 0;
        bool timed = (f->r->row || began) && accelerator_time_begin(f);
        switch (f->cmd->kind) {
        case CMD_KERNEL: ok = run_command_kernels(f, &n, e); break;
        case CMD_COPY:   ok = run_copy(f, e); break;
        case CMD_REGION: ok = run_region_op(f, e); break;
        case CMD_CUSTOM: ok = run_custom(f, e); break;
        default:         ok = run_interp(f, e); break;
        }
        double took = f->r->row || began ? accelerator_time_end(f, timed) : 0;
        if (f->r->row) note_time(f, start, took);
        if (began) note_span(f, began, took);
        if (ok && f->r->watch && f->p == f->r->x->program) ok = f->r->watch->command(f->r->watch->ctx, f, e);
    }
    return ok;
}

const struct command *exec_watched_command(const struct frame *f) { return f->cmd; }

bool exec_read_argument(const struct frame *f, uint32_t i, void *to, size_t bytes, struct err *e)
{
    const void *from = exec_resolve(f, &f->cmd->arg[i], 0);
    if (!device_is_host(f->cmd->device)) return !bytes || accelerator_read(f, to, from, bytes, e);
    if (bytes) memcpy(to, from, bytes);
    return true;
}

/* ---- the whole program ---- */

static bool is_in_place(const struct run *r, const bool *exclusive, uint32_t i)
{
    const struct program *p = r->x->program;
    const struct output *o = &p->g->out[i];
    if (o->kind != OUT_ASSIGN || !p->in_place[i] || !exclusive[o->state]) return false;
    /* several devices, not all with host memory */
    bool apart = (p->devices & r->x->accelerated) && (p->devices & (p->devices - 1));
    bool can_fail = program_is_interpreted(p) || p->calls || (r->x->interpreted & p->devices) || apart ||
                    (r->cancel && p->loops);
    return !can_fail;
}

/* Gets a buffer for every output: a new one, or the state's if it may be updated in place. */
static bool make_outputs(struct run *r, const bool *exclusive, struct err *e)
{
    const struct graph *g = r->x->program->g;
    for (uint32_t i = 0; i < g->nout; i++) {
        const struct output *o = &g->out[i];
        bool in_place = o->kind == OUT_ASSIGN && is_in_place(r, exclusive, i);
        const void *last = r->x->accelerated ? accelerators_last_output(r, i) : NULL;
        r->overwrites |= in_place;
        r->out[i] = in_place ? buffer_ref(r->state[o->state])
                             : buffer_new_at(node_at(g, o->value)->device, output_bytes(r, i), last, e);
        if (!r->out[i]) return false;
        r->made++;
    }
    return true;
}

/* The device that has the table of data and the workers' areas: the program's, if it uses host memory. */
static unsigned home_of(const struct exec *x) { return device_is_host(x->device) ? (unsigned)x->device : DEVICE_CPU; }

/* The run's own memory on that device: the arena, the table of data with the kernels' iterations, and the workers'
 * areas.  If it is small, it is on the stack: a buffer costs more than some kernels. */
struct home { size_t arena, table, bytes; bool small; };
enum { SMALL_HOME = 2048, HOME_ALIGN = 64 };

static inline struct home home_memory(struct run *r)
{
    const struct program *p = r->x->program;
    const struct graph *g = p->g;
    struct home h;
    h.arena = round_up((size_t)(r->offset ? r->arena : p->arena_bytes[r->home_device]));
    h.table = ((size_t)g->input.n + g->state.n + g->nout) * sizeof(void *);
    h.table = round_up(h.table + (p->placeholders.n ? p->nkernel : 0) * sizeof *r->extent);
    r->scratch_bytes = round_up((size_t)p->scratch_bytes);
    r->worker_bytes = r->scratch_bytes + round_up(p->max_args * sizeof(void *));
    h.bytes = h.arena + h.table + r->workers * r->worker_bytes;
    h.small = !r->x->accelerated && h.bytes <= SMALL_HOME;
    return h;
}

/* Takes the lowest device out of a set; false: it is empty. */
static bool next_device(uint64_t *set, unsigned *d)
{
    if (!*set) return false;
    *d = (unsigned)__builtin_ctzll(*set);
    *set &= *set - 1;
    return true;
}

/* Is all memory that the run is about to allocate within the limits of its devices? */
static bool within_limits(struct run *r, const bool *exclusive, struct err *e)
{
    const struct program *p = r->x->program;
    const struct graph *g = p->g;
    size_t need[MAX_DEVICES] = {0};
    char what[128];
    for (uint32_t i = 0; i < g->nout; i++) {
        int device = node_at(g, g->out[i].value)->device;
        if (!is_in_place(r, exclusive, i)) need[device] += buffer_charge(device, output_bytes(r, i));
    }
    for (unsigned d = 0; d < MAX_DEVICES; d++)
        if (p->arena_bytes[d] && d != r->home_device) need[d] += buffer_charge((int)d, (size_t)p->arena_bytes[d]);
    struct home h = home_memory(r);
    need[r->home_device] += (h.small ? 0 : buffer_charge((int)r->home_device, h.bytes)) + (size_t)p->interp_bytes;
    snprintf(what, sizeof what, "graph %s", g->name);
    for (unsigned d = 0; d < MAX_DEVICES; d++)
        if (need[d] && !buffer_room((int)d, need[d], what, e)) return false;
    return true;
}

/* Finds where values lie for the symbols' values.  Of the bounds' arena, half of it, a quarter and so on the run takes
 * the smallest that is large enough: the pool keeps a buffer of each size, so there should be few. */
static void find_offsets(struct run *r, int64_t *offset)
{
    enum { SMALL_ARENA = 1 << 16 };
    const struct program *p = r->x->program;
    if (!p->layout || !p->layout->n) return;
    int64_t bytes = layout_offsets(p, option_arena_of_bounds() ? NULL : r->slot, offset);
    r->offset = offset;
    r->arena = p->arena_bytes[p->layout->device];
    while (r->arena > SMALL_ARENA && r->arena / 2 >= bytes) r->arena /= 2;
}

/* How many iterations each kernel has for the symbols' values. */
static void find_extents(struct run *r)
{
    const struct program *p = r->x->program;
    r->extent = (int64_t *)(void *)(r->table + p->g->input.n + p->g->state.n + p->g->nout);
    for (uint32_t i = 0; i < p->nkernel; i++) {
        const struct launch_phases *phases = &r->x->phases[i]; /* kernels for processors have one phase */
        int64_t extent = p->kernel[i]->extent;
        r->extent[i] = kernel_extent_at(p->kernel[i], phases->n ? phases->v->active : 0, extent, r->slot);
    }
}

/* Allocates the run's own memory: each device's arena; on the home device the table of data and the workers' areas
 * follow it. */
static bool make_workspace(struct run *r, struct err *e)
{
    const struct program *p = r->x->program;
    unsigned home = r->home_device, d;
    struct home h = home_memory(r);
    for (uint64_t left = r->further; next_device(&left, &d);)
        if (p->arena_bytes[d] && !(r->memory[d] = buffer_new_at((int)d, (size_t)p->arena_bytes[d],
                                                                accelerators_last_arena(r), e)))
            return false;
    if (!h.small) {
        if (!(r->memory[home] = buffer_new((int)home, h.bytes, e))) return false;
        r->home = r->memory[home]->data;
    }
    r->table = (void **)(void *)(r->home + h.arena);
    if (p->placeholders.n) find_extents(r);
    r->scratch = r->home + h.arena + h.table;
    if (p->signals && !(r->async = mem_alloc(p->signals * sizeof *r->async)))
        return err_set(e, KL_ERR_MEMORY, "out of memory running @%s", p->g->name);
    return true;
}

static bool make_memory(struct run *r, struct err *e)
{
    return make_workspace(r, e) && (!r->x->accelerated || accelerators_prepare(r, e));
}

static bool run_program(struct run *r, struct err *e)
{
    const struct program *p = r->x->program;
    const struct graph *g = p->g;
    void **state = r->table + g->input.n, **out = state + g->state.n;
    for (uint32_t i = 0; i < g->input.n; i++) r->table[i] = r->input[i]->data;
    for (uint32_t i = 0; i < g->state.n; i++) state[i] = r->state[i]->data;
    for (uint32_t i = 0; i < g->nout; i++) out[i] = r->out[i]->data;
    const void *arena[MAX_DEVICES];
    unsigned d;
    arena[r->home_device] = r->home;
    for (uint64_t left = r->further; next_device(&left, &d);)
        arena[d] = r->memory[d] ? r->memory[d]->data : NULL;
    struct frame f = {.r = r, .p = p};
    f.data[LOC_ARENA] = arena, f.data[LOC_INPUT] = (const void *const *)r->table;
    f.data[LOC_STATE] = (const void *const *)state, f.data[LOC_OUT] = (const void *const *)out;
    bool repeated = false, driven = r->x->accelerated != 0;
    fp_env env = fp_enter();
    bool ok = !driven || (accelerators_begin(r, e) && (r->watch || accelerators_repeat(r, &repeated, e)));
    ok = ok && (repeated || run_commands(&f, e));
    fp_leave(env);
    /* also after an error: they use the memory that is freed next */
    if (p->signals) ok = wait_async(r, p->signals, e) && ok;
    if (driven) ok = accelerators_end(r, ok, e);
    atomic_fetch_add_explicit(&counters.launches, r->launches, memory_order_relaxed);
    atomic_fetch_add_explicit(&counters.barriers, r->barriers, memory_order_relaxed);
    return ok;
}

static _Atomic(uint64_t) runs;

uint64_t exec_runs(void) { return atomic_load_explicit(&runs, memory_order_relaxed); }

/* The program that runs in place of x; notes that both ran. */
static const struct exec *count_run(const struct exec *x)
{
    uint64_t number = exec_runs() + 1; /* of two runs that begin at once both may have it */
    atomic_store_explicit(&runs, number, memory_order_relaxed);
    atomic_store_explicit(&((struct exec *)x)->ran, number, memory_order_relaxed);
    x = exec_latest(x);
    atomic_store_explicit(&((struct exec *)x)->ran, number, memory_order_relaxed);
    return x;
}

/* Prepares for a profile and for the timeline, which measure each kernel separately.  Without memory the timeline does
 * not have the run. */
static bool observe_run(struct run *r, struct profile *profile, struct err *e)
{
    if (profile && !(r->row = profile_rows(profile, r->x)))
        return err_set(e, KL_ERR_MEMORY, "no memory for the times of graph %s", r->x->program->g->name);
    if (profile) r->clock = profile->clock, r->timed = profile->launches;
    if (atomic_load_explicit(&timeline_is_on, memory_order_relaxed) && !r->x->variant) r->times = exec_times(r->x);
    if (profile || r->times) r->elide = r->bare = false;
    return true;
}

/* Frees what only the run used. */
static void end_run(struct run *r)
{
    unsigned d;
    buffer_unref(r->memory[r->home_device]);
    for (uint64_t left = r->further; next_device(&left, &d);) buffer_unref(r->memory[d]);
    if (r->x->accelerated) accelerators_free(r);
    if (r->async) mem_free(r->async);
}

/* The arrays of all devices are not cleared, which would take as long as a small kernel. */
static bool exec_run_with(const struct exec *x, struct buffer *const *input, struct buffer *const *state,
                          const bool *state_exclusive, const uint64_t *slot, const struct exec_watch *watch,
                          struct buffer **out, struct err *e)
{
    struct run_memory memory;
    _Alignas(HOME_ALIGN) char small[SMALL_HOME];
    int64_t offset[MAX_LAYOUT_VALUES];
    x = count_run(x);
    unsigned home = home_of(x), d;
    struct run r = {.x = x, .input = input, .state = state, .out = out, .slot = slot, .watch = watch, .home = small,
                    .workers = pool_threads(), .cancel = cancellation_current(), .home_device = home,
                    .further = x->program->devices & ~(UINT64_C(1) << home),
                    .elide = option_elide_barriers() && !watch,
                    .memory = memory.own, .work = memory.work, .slots = memory.slots};
    r.bare = !r.cancel && !watch && !x->skip && !x->program->signals && !x->interpreted && !x->accelerated;
    if (x->accelerated) memset(&memory, 0, sizeof memory);
    memory.own[home] = NULL;
    for (uint64_t left = r.further; next_device(&left, &d);) memory.own[d] = NULL;

    struct profile *profile = profile_current();
    bool observed = profile || atomic_load_explicit(&timeline_is_on, memory_order_relaxed);
    if (cancellation_requested(r.cancel, e) || (observed && !observe_run(&r, profile, e))) return false;
    find_offsets(&r, offset);
    /* First what only the run uses: it is where it was in the run before, also if results of that are still in use. */
    bool first = x->accelerated != 0, ok = !buffer_limited() || within_limits(&r, state_exclusive, e);
    ok = ok && (!first || make_memory(&r, e)) && make_outputs(&r, state_exclusive, e) &&
         (first || make_memory(&r, e)) && run_program(&r, e);
    end_run(&r);
    for (uint32_t i = 0; i < x->program->g->nout && !ok; i++) {
        if (i < r.made) buffer_unref(out[i]);
        out[i] = NULL;
    }
    return ok;
}

bool exec_run(const struct exec *x, struct buffer *const *input, struct buffer *const *state,
              const bool *state_exclusive, const uint64_t *slot, struct buffer **out, struct err *e)
{
    return exec_run_with(x, input, state, state_exclusive, slot, NULL, out, e);
}

bool exec_run_watched(const struct exec *x, struct buffer *const *input, struct buffer *const *state,
                      const uint64_t *slot, const struct exec_watch *watch, struct buffer **out, struct err *e)
{
    const struct graph *g = x->program->g;
    bool *exclusive = mem_alloc((g->state.n + 1) * sizeof *exclusive); /* none: all states stay as they are */
    bool ok = exclusive || err_set(e, KL_ERR_MEMORY, "out of memory running @%s", g->name);
    ok = ok && exec_run_with(x, input, state, exclusive, slot, watch, out, e);
    mem_free(exclusive);
    return ok;
}

int exec_leaf_device(const struct graph *g, int device, unsigned op, uint32_t ordinal)
{
    for (ref r = 1; r < g->nnode; r++) {
        const struct node *n = node_at(g, r);
        if (n->op == op && n->attr.leaf.index == ordinal) return n->device == graph_device(g) ? device : n->device;
    }
    return device;
}
