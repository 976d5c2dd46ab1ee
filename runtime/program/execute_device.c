/* Runs a program on devices with drivers.  Commands are submitted in order and start when all are submitted.  The host
 * waits for them where it needs their results. */
#include "ir/graph/custom.h"
#include "runtime/device/driver.h"
#include "execute.h"
#include <string.h>

/* Executes DO with the accelerator a of each device d that the run uses, in order. */
#define EACH(r, d, a)                                                                            \
    for (uint64_t left = (r)->x->accelerated & (r)->x->program->devices; left; left &= left - 1) \
        for (int d = __builtin_ctzll(left), once = 1; once; once = 0)                            \
            for (struct accelerator *a = accelerator_get(d); a; a = NULL)

void accelerators_free(struct run *r)
{
    for (int d = DEVICE_HOSTS; r->x->accelerated && d < DEVICE_END; d++) {
        buffer_unref(r->work[d]);
        buffer_unref(r->slots[d]);
    }
}

/* The host continues while the device works; readers of a result wait for it. */
static bool device_submit_commands(struct accelerator *a, struct err *e)
{
    const struct driver *d = accelerator_driver(a);
    return d->submit ? d->submit(accelerator_device(a), e) : d->finish(accelerator_device(a), e);
}

/* All devices of the run, or none. */
static bool lock_devices(struct run *r, struct err *e)
{
    uint64_t locked = 0;
    EACH(r, d, a)
    {
        if (!accelerator_lock_cancellable(a, e)) {
            for (; locked; locked &= locked - 1) accelerator_unlock(accelerator_get(__builtin_ctzll(locked)));
            return false;
        }
        locked |= UINT64_C(1) << d;
    }
    return r->locked = true;
}

/* Work that others have submitted must not be dropped with this run, so it is started first. */
bool accelerators_begin(struct run *r, struct err *e)
{
    bool ok = lock_devices(r, e);
    if (!ok) return false;
    EACH(r, d, a)
    {
        ok = ok && device_submit_commands(a, e) &&
             (!r->slots[d] || buffer_write(r->slots[d], r->slot, r->slots[d]->bytes, e));
    }
    return ok;
}

/* ---- repeated runs ----
 *
 * A program whose commands are all kernels of one device, without symbols, launches the same kernels in each run.  If
 * all of its memory is where it was in the run before, as that of a frozen step usually is, their arguments are the
 * same, too.  Then the driver launches the list of the run before again. */

struct repeat {
    bool never;                   /* the program is no such program */
    uint64_t list;                /* the driver's number of the last run's list; 0: it cannot be repeated */
    uint64_t launches;
    uint32_t n;
    struct memory_range *memory;  /* that the last run used, in the order of run_memory; guarded by the device's lock */
    _Atomic(const void *) address[]; /* the same addresses, for threads without the lock */
};

/* The memory of a run: inputs, states, results, the arena, scratch and slots. */
static uint32_t run_memory_count(const struct run *r)
{
    const struct graph *g = r->x->program->g;
    return g->input.n + g->state.n + g->nout + 3;
}

static struct memory_range run_memory(const struct run *r, int device, uint32_t i)
{
    const struct graph *g = r->x->program->g;
    const struct buffer *const others[] = {r->memory[device], r->work[device], r->slots[device]}, *b;
    if (i < g->input.n) b = r->input[i];
    else if ((i -= g->input.n) < g->state.n) b = r->state[i];
    else if ((i -= g->state.n) < g->nout) b = r->out[i];
    else b = others[i - g->nout];
    return b ? (struct memory_range){b->data, b->bytes} : (struct memory_range){0};
}

static size_t round_up_16(size_t n) { return (n + 15) & ~(size_t)15; }

static bool is_repeatable(const struct exec *x)
{
    const struct program *p = x->program;
    bool one = p->devices && !(p->devices & (p->devices - 1)) && (p->devices & x->accelerated);
    const struct driver *d = one ? driver_of(__builtin_ctzll(p->devices)) : NULL;
    bool yes = d && d->repeat && !x->captured->symbols;
    for (uint32_t i = 0; i < p->ncmd && yes; i++) yes = p->cmd[i].kind == CMD_KERNEL;
    return yes;
}

/* The program's record for its only device.  NULL: it has none, or each command is measured or left out by itself. */
static struct repeat *repeat_of(struct run *r)
{
    struct exec *x = (struct exec *)r->x;
    if (!(x->accelerated & x->program->devices) || r->row || r->times || x->skip) return NULL;
    struct repeat *last = atomic_load_explicit(&x->repeat, memory_order_relaxed);
    uint32_t n = run_memory_count(r);
    size_t head = round_up_16(sizeof *last + n * sizeof *last->address);
    if (!last && (last = mem_alloc(head + n * sizeof *last->memory))) {
        last->memory = (struct memory_range *)(void *)((char *)last + head);
        last->never = !is_repeatable(x);
        last->n = n;
        atomic_store_explicit(&x->repeat, last, memory_order_release);
    }
    return last && !last->never ? last : NULL;
}

/* The address of memory i, from the end of the list. */
static const void *last_address(const struct run *r, uint32_t from_end)
{
    const struct repeat *last = atomic_load_explicit(&((struct exec *)r->x)->repeat, memory_order_acquire);
    return last ? atomic_load_explicit(&last->address[last->n - from_end], memory_order_relaxed) : NULL;
}

enum { FROM_SLOTS = 1, FROM_WORK, FROM_ARENA };

const void *accelerators_last_arena(const struct run *r) { return last_address(r, FROM_ARENA); }
const void *accelerators_last_output(const struct run *r, uint32_t i)
{
    return last_address(r, FROM_ARENA + r->x->program->g->nout - i);
}

bool accelerators_prepare(struct run *r, struct err *e)
{
    if (!r->x->accelerated) return true;
    const struct graph *g = r->x->captured; /* the symbols' values stand behind the slots */
    size_t slots = (g->slot.n + (g->symbols ? g->symbols->n : 0)) * sizeof *r->slot;
    EACH(r, d, a)
    {
        if (r->x->work_bytes &&
            !(r->work[d] = buffer_new_at(d, (size_t)r->x->work_bytes, last_address(r, FROM_WORK), e))) return false;
        if (slots && (!(r->slots[d] = buffer_new_at(d, slots, last_address(r, FROM_SLOTS), e)))) return false;
    }
    return true;
}

bool accelerators_repeat(struct run *r, bool *done, struct err *e)
{
    struct repeat *last = repeat_of(r);
    if (!last) return true;
    int device = __builtin_ctzll(r->x->program->devices);
    struct accelerator *a = accelerator_get(device);
    const struct driver *d = accelerator_driver(a);
    bool same = last->list != 0;
    for (uint32_t i = 0; i < last->n; i++) {
        struct memory_range now = run_memory(r, device, i), *was = &last->memory[i];
        same &= now.address == was->address;
        *was = now;
        atomic_store_explicit(&last->address[i], now.address, memory_order_relaxed);
    }
    if (same && d->repeat && !d->repeat(accelerator_device(a), last->list, last->memory, last->n, done, e))
        return false;
    if (*done) r->launches = last->launches;
    else last->list = 0;
    if (d->list) d->list(accelerator_device(a)); /* it counts from here on */
    return true;
}

/* Called after the run's commands were submitted. */
static void note_run(struct run *r)
{
    struct repeat *last = repeat_of(r);
    if (!last) return;
    struct accelerator *a = accelerator_get(__builtin_ctzll(r->x->program->devices));
    last->list = accelerator_driver(a)->list ? accelerator_driver(a)->list(accelerator_device(a)) : 0;
    last->launches = r->launches;
}

bool accelerators_end(struct run *r, bool ok, struct err *e)
{
    if (!r->locked) return false;
    EACH(r, d, a)
    {
        if (ok) ok = device_submit_commands(a, e);
        else accelerator_driver(a)->drop(accelerator_device(a));
    }
    if (ok) note_run(r);
    EACH(r, d, a) accelerator_unlock(a);
    return ok;
}

/* ---- commands ---- */

/* The first `extent` iterations of phase p of a kernel.  A phase without iterations is launched, too, so that the list
 * of launches is the same for all values of symbols. */
static bool device_launch_phase(const struct frame *f, struct accelerator *a, const struct launch_phase *p,
                                int64_t extent,
                   const struct device_kernel *code, struct err *e)
{
    const struct command *c = f->cmd;
    void **buf = exec_arguments(f, c, 0);
    struct launch l = {.kernel = code->kernel, .buffer = buf, .begin = p->base, .end = p->base + extent,
                       .blocks = accelerator_blocks(code, extent > 0 ? extent : 1), .use = code->use,
                       .shares = p->shares};
    const char *work = f->r->work[c->device] ? f->r->work[c->device]->data : NULL;
    if (f->r->slots[c->device]) l.slots = f->r->slots[c->device]->data;
    for (uint32_t b = 0; b < c->narg; b++) { /* skips buffers that are no arguments */
        if (code->local[b]) continue;
        void *at = buf[b];
        if (c->arg[b].kind == LOC_WORKSPACE) at = (void *)(work + c->arg[b].offset);
        if (c->arg[b].kind == LOC_SCRATCH)
            at = (void *)(work + f->r->x->program->workspace_bytes + c->arg[b].offset * l.blocks);
        buf[l.n++] = at;
    }
    return accelerator_driver(a)->launch(accelerator_device(a), &l, e);
}

bool accelerator_launch(const struct frame *f, struct err *e)
{
    const struct kernel *k = f->p->kernel[f->cmd->kernel];
    if (!k->extent) return true;
    const struct device_kernel *code = f->r->x->on[f->cmd->device][f->cmd->kernel];
    const struct launch_phases *phases = &f->r->x->phases[f->cmd->kernel];
    bool ok = true;
    for (const struct launch_phase *p = phases->v; ok && p < phases->v + phases->n; p++) {
        int64_t extent = p->active ? kernel_extent_at(k, p->active, p->extent, f->r->slot) : p->extent;
        if (p->extent) ok = device_launch_phase(f, accelerator_get(f->cmd->device), p, extent, code, e);
    }
    return ok;
}

/* Between two devices without a direct path: through the host, in pieces. */
static bool copy_across(struct accelerator *to_device, struct accelerator *from_device, char *to, const char *from,
                        size_t bytes,
                        struct err *e)
{
    enum { PART = 1 << 20 };
    char *part = mem_alloc(PART);
    bool ok = part || err_set(e, KL_ERR_MEMORY, "no memory to copy between devices");
    atomic_fetch_add_explicit(&counters.bytes_via_host, bytes, memory_order_relaxed);
    for (size_t at = 0, n; ok && at < bytes; at += n) {
        n = bytes - at < PART ? bytes - at : PART;
        ok = accelerator_driver(from_device)->download(accelerator_device(from_device), part, from + at, n, e) &&
             accelerator_driver(to_device)->upload(accelerator_device(to_device), to + at, part, n, e);
    }
    mem_free(part);
    return ok;
}

bool accelerator_copy(const struct frame *f, void *to, const void *from, size_t bytes, struct err *e)
{
    const struct command *c = f->cmd;
    struct accelerator *there = accelerator_get(c->device), *here = accelerator_get(c->from);
    if (!here) return accelerator_driver(there)->upload(accelerator_device(there), to, from, bytes, e);
    if (!there) return accelerator_driver(here)->download(accelerator_device(here), to, from, bytes, e);
    if (here == there) return accelerator_driver(here)->copy(accelerator_device(here), to, from, bytes, e);
    const struct driver *d = accelerator_driver(there);
    if (!d->peer || d != accelerator_driver(here)) return copy_across(there, here, to, from, bytes, e);
    atomic_fetch_add_explicit(&counters.peer_copies, 1, memory_order_relaxed);
    return d->peer(accelerator_device(there), to, accelerator_device(here), from, bytes, e);
}

/* The next command reports an error, too. */
bool accelerator_time_begin(const struct frame *f)
{
    struct err ignored = {0};
    struct accelerator *a = accelerator_get(f->cmd->device);
    bool device_works = f->cmd->kind == CMD_KERNEL || f->cmd->kind == CMD_COPY;
    return a && device_works && accelerator_driver(a)->time_begin &&
           accelerator_driver(a)->time_begin(accelerator_device(a), &ignored);
}

double accelerator_time_end(const struct frame *f, bool began)
{
    struct err ignored = {0};
    double seconds = -1;
    struct accelerator *a = accelerator_get(f->cmd->device);
    if (a && began && accelerator_driver(a)->time_end(accelerator_device(a), &seconds, &ignored)) return seconds;
    if (a) accelerator_driver(a)->finish(accelerator_device(a), &ignored);
    return -1;
}

bool accelerator_peek(void *region_frame, const void *at, bool *value)
{
    const struct region_frame *r = region_frame;
    struct accelerator *a = accelerator_get(r->f->cmd->device);
    return accelerator_driver(a)->download(accelerator_device(a), value, at, sizeof *value, r->e);
}

bool accelerator_read(const struct frame *f, void *to, const void *from, size_t bytes, struct err *e)
{
    struct accelerator *a = accelerator_get(f->cmd->device);
    return accelerator_driver(a)->download(accelerator_device(a), to, from, bytes, e);
}

bool accelerator_move(void *region_frame, void *to, const void *from, size_t bytes)
{
    const struct region_frame *r = region_frame;
    struct accelerator *a = accelerator_get(r->f->cmd->device);
    return accelerator_driver(a)->copy(accelerator_device(a), to, from, bytes, r->e);
}

/* ---- custom ops: host functions ---- */

struct host_call {
    const struct frame *f;
    void **at;
    void *work;
    struct err *e;
    bool ok;
};

static void call_custom(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)begin, (void)end, (void)worker;
    struct host_call *c = ctx;
    const struct node *n = node_at(c->f->p->g, c->f->cmd->region);
    struct size_values sizes;
    const struct size_values *values = run_sizes(c->f->r, &sizes);
    c->ok = custom_run(c->f->p->g, n, values, (const void *const *)c->at, c->at + node_nin(n), c->work, c->e);
}

static size_t execute_device_round64(size_t n) { return (n + 63) / 64 * 64; }

/* Bytes of argument i, an operand or a result. */
static size_t argument_bytes(const struct frame *f, const struct node *n, uint32_t i)
{
    const struct graph *g = f->p->g;
    size_t bytes = i < node_nin(n) ? node_bytes(g, node_in(g, n, i)) : region_result_bytes(g, n, i - node_nin(n));
    struct size_values sizes;
    return run_sizes(f->r, &sizes) ? (size_t)size_at(sizes.s, (int64_t)bytes, sizes.slot) : bytes;
}

/* Runs it on the device's own memory. */
static bool run_at_device(const struct frame *f, const struct node *n, struct err *e)
{
    const struct command *c = f->cmd;
    uint32_t args = c->narg - 1;
    size_t table = execute_device_round64(args * sizeof(void *));
    char *room = mem_alloc(table + custom_work_bytes(f->p->g, n));
    if (!room) return err_set(e, KL_ERR_MEMORY, "no memory for the operands of op %s", opinfo[n->op].name);
    void **at = (void **)(void *)room;
    for (uint32_t i = 0; i < args; i++) at[i] = exec_resolve(f, &c->arg[i], 0);
    struct size_values sizes;
    bool ok = custom_run_at(f->p->g, n, c->device, run_sizes(f->r, &sizes), (const void *const *)at, at + node_nin(n),
                            room + table, e);
    mem_free(room);
    return ok;
}

bool accelerator_custom(const struct frame *f, struct err *e)
{
    const struct command *c = f->cmd;
    const struct node *n = node_at(f->p->g, c->region);
    if (custom_takes(f->p->g, n, c->device)) return run_at_device(f, n, e);
    struct accelerator *a = accelerator_get(c->device);
    const struct driver *d = accelerator_driver(a);
    uint32_t args = c->narg - 1;
    size_t table = execute_device_round64(args * sizeof(void *)),
        work = execute_device_round64(region_work_bytes(f->p->g, n)), total = table + work;
    for (uint32_t i = 0; i < args; i++) total += execute_device_round64(argument_bytes(f, n, i));
    struct buffer *b = buffer_new(DEVICE_CPU, total, e);
    if (!b) return false;
    struct host_call call = {f, b->data, (char *)b->data + table, e, false};
    char *p = (char *)b->data + table + work;
    bool ok = true;
    for (uint32_t i = 0; i < args; i++) {
        call.at[i] = p;
        p += execute_device_round64(argument_bytes(f, n, i));
        if (ok && i < node_nin(n))
            ok = d->download(accelerator_device(a), call.at[i], exec_resolve(f, &c->arg[i], 0), argument_bytes(f, n, i),
                             e);
    }
    if (ok) pool_run(call_custom, &call, 1, 0);
    ok = ok && call.ok;
    for (uint32_t i = node_nin(n); ok && i < args; i++)
        ok = d->upload(accelerator_device(a), exec_resolve(f, &c->arg[i], 0), call.at[i], argument_bytes(f, n, i), e);
    buffer_unref(b);
    atomic_fetch_add_explicit(&counters.host_ops, 1, memory_order_relaxed);
    return ok;
}
