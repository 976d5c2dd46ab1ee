/* Runs programs that were compiled ahead of time: the executor for image.h, which uses neither graphs nor a
 * compiler. */
#include "image.h"
#include "runtime/float_env.h"
#include "runtime/runtime.h"
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

static size_t round_up(size_t n) { return (n + 63) & ~(size_t)63; }

static const void *image_at(const struct image *m, uint32_t offset) { return (const char *)m + offset; }

/* The workspace: parts of the run, then parts of each worker. */
struct aot_workspace { size_t later, table, pointers, slots, fixed, scratch, worker; };

struct aot_run {
    const struct image *m;
    kernel_fn *const *kernel;
    const uint64_t *slot;
    struct aot_workspace parts;
    /* of worker 0; those of the others follow at intervals of parts.worker: scratch, then a kernel's arguments */
    char *scratch;
    unsigned workers;
};

/* A size of the program for the symbols' values of this run. */
static int64_t aot_size(const struct aot_run *r, int64_t size)
{
    return image_size_at(r->m, size, r->slot + r->m->nslot);
}

/* The program, or a region of it, that runs now, with its data. */
struct aot_frame {
    const struct aot_run *r;
    const struct image_program *p;
    const void *const *input, *const *state;
    void *const *out;
    char *arena;
    const struct image_command *cmd; /* the current command */
};

static void *aot_run_resolve(const struct aot_frame *f, const struct image_loc *l, unsigned worker)
{
    const char *base = NULL;
    switch (l->kind) {
    case IMAGE_ARENA:   base = f->arena; break;
    case IMAGE_INPUT:   base = f->input[l->index]; break;
    case IMAGE_STATE:   base = f->state[l->index]; break;
    case IMAGE_OUT:     base = f->out[l->index]; break;
    case IMAGE_SCRATCH: base = f->r->scratch + worker * f->r->parts.worker; break;
    }
    return (char *)(uintptr_t)base + l->offset;
}

/* Runs a part of f->cmd or of one of the kernels in the same job. */
static void aot_run_kernel(void *ctx, uint32_t part, int64_t begin, int64_t end, unsigned worker)
{
    const struct aot_frame *f = ctx;
    const struct aot_run *r = f->r;
    const struct image_command *c = f->cmd + part;
    const struct image_loc *l = image_at(r->m, c->arg);
    void **arg = (void **)(r->scratch + worker * r->parts.worker + r->parts.scratch);
    for (uint32_t i = 0; i < c->narg; i++) arg[i] = aot_run_resolve(f, &l[i], worker);
    r->kernel[c->kernel](arg, r->slot, begin, end);
}

/* Runs f->cmd and the following kernels that need no barrier; returns their number. */
static uint32_t run_kernels(struct aot_frame *f, const struct image_command *end)
{
    const struct image_kernel *k = image_at(f->r->m, f->r->m->kernel);
    struct pool_part part[MAX_KERNEL_RUN];
    uint32_t n = 0;
    bool alone = true;
    for (const struct image_command *c = f->cmd; c < end && n < MAX_KERNEL_RUN && (!n || c->no_barrier); c++) {
        part[n] = (struct pool_part){image_extent_at(&k[c->kernel], image_at(f->r->m, k[c->kernel].active),
                                                     f->r->slot),
                                     k[c->kernel].grain, true};
        alone = pool_shares(&part[n++], f->r->workers) <= 1 && alone;
    }
    if (alone)
        pool_run_alone(aot_run_kernel, f, part, n);
    else
        pool_run_parts(aot_run_kernel, f, part, n, f->r->workers);
    return n;
}

static void run_copy(const struct aot_frame *f)
{
    const struct image_loc *l = image_at(f->r->m, f->cmd->arg);
    void *to = aot_run_resolve(f, &l[0], 0);
    const void *from = aot_run_resolve(f, &l[1], 0);
    int64_t bytes = aot_size(f->r, f->cmd->bytes);
    if (to != from && bytes) memcpy(to, from, (size_t)bytes);
}

static void run_commands(struct aot_frame *f);

/* ---- regions run in the workspace of their command ---- */
struct region_frame {
    const struct aot_frame *f;
    const struct image_region *region;
    char *arena;
};

static bool aot_run_region(void *ctx, uint32_t which, const void *const *in, void *const *out)
{
    const struct region_frame *r = ctx;
    const struct aot_run *run = r->f->r;
    struct aot_frame sub = {
        .r = run, .p = image_at(run->m, r->region->program[which]), .input = in, .out = out, .arena = r->arena};
    run_commands(&sub);
    return true;
}

static size_t region_bytes(const struct region_call *c, bool result, uint32_t i)
{
    const struct region_frame *r = c->ctx;
    const int64_t *bytes = image_at(r->f->r->m, r->region->bytes);
    return (size_t)aot_size(r->f->r, bytes[result ? c->nin + i : i]);
}

static void run_region_op(const struct aot_frame *f)
{
    static const unsigned op[] = {[IMAGE_COND] = OP_cond, [IMAGE_WHILE] = OP_while, [IMAGE_SCAN] = OP_scan};
    const struct image_command *c = f->cmd;
    const struct image_region *n = image_at(f->r->m, c->region);
    const struct image_loc *l = image_at(f->r->m, c->arg);
    char *work = aot_run_resolve(f, &l[c->narg - 1], 0);
    void **data = (void **)(work + n->pointers);
    for (uint32_t i = 0; i + 1 < c->narg; i++) data[i] = aot_run_resolve(f, &l[i], 0);
    struct region_frame sub = {f, n, work + n->arena};
    region_run(&(struct region_call){.op = op[n->kind], .nin = n->nin, .nout = n->nout, .carried = n->carried,
                                     .scanned = n->scanned, .length = aot_size(f->r, n->length), .reverse = n->reverse,
                                     .bytes = region_bytes, .run = aot_run_region, .ctx = &sub,
                                     .in = (const void *const *)data, .out = data + n->nin, .work = work + n->work});
}

static void run_commands(struct aot_frame *f)
{
    const struct image_command *c = image_at(f->r->m, f->p->cmd);
    for (uint32_t i = 0, n; i < f->p->ncmd; i += n) {
        f->cmd = &c[i];
        n = 1;
        switch (c[i].kind) {
        case IMAGE_KERNEL: n = run_kernels(f, c + f->p->ncmd); break;
        case IMAGE_COPY:   run_copy(f); break;
        default:           run_region_op(f); break;
        }
    }
}

/* ---- one run ---- */

static struct aot_workspace workspace_parts(const struct image *m)
{
    struct aot_workspace p;
    p.later = round_up((size_t)m->arena_bytes);
    p.table = p.later + round_up((size_t)m->later_bytes);
    p.pointers = p.table + round_up(m->nout * sizeof(void *));
    p.slots = p.pointers + round_up(m->weight ? (m->ninput + m->nstate + m->nreturn) * sizeof(void *) : 0);
    p.fixed = p.slots + round_up((m->nslot + m->nsymbol + m->nsum + 1) * sizeof(uint64_t));
    p.scratch = round_up((size_t)m->scratch_bytes);
    p.worker = p.scratch + round_up(m->max_args * sizeof(void *));
    return p;
}

enum { ALIGN = 64 };

size_t kiln_aot_workspace_bytes(const struct image *m)
{
    struct aot_workspace p = workspace_parts(m);
    return p.fixed + pool_threads() * p.worker + ALIGN - 1;
}

void kiln_aot_threads(unsigned n) { pool_set_threads(n); }

const char *kiln_aot_error(int status)
{
    switch (status) {
    case KL_OK:           return "ok";
    case KL_ERR_ARGUMENT: return "a pointer is NULL, or the workspace too small";
    case KL_ERR_SHAPE:    return "a length is outside of the bounds of its symbol";
    case KL_ERR_DEVICE:   return "the program was compiled for another processor than this one";
    case KL_ERR_MEMORY:   return "no memory for the workspace";
    case KL_ERR_COMPILE:  return "the program was compiled by another version of Kiln than that of its runtime";
    }
    return "no status";
}

static uint64_t processor_features(void)
{
    uint64_t have = 0;
#if defined(__x86_64__)
    unsigned i = 0;
    __builtin_cpu_init();
#define X(name) have |= (uint64_t)(__builtin_cpu_supports(#name) != 0) << i++;
    IMAGE_FEATURES(X)
#undef X
#elif defined(__aarch64__) && defined(__linux__)
    unsigned i = 0;
#define X(name) i++; /* of x86-64 */
    IMAGE_FEATURES(X)
#undef X
#define X(name, type, bit) have |= (uint64_t)(getauxval(type) >> (bit) & 1) << i++;
    IMAGE_FEATURES_AARCH64(X)
#undef X
#endif
    return have;
}

/* The processor is asked once: it takes longer than a small kernel. */
static bool processor_fits(uint64_t features)
{
    static _Atomic(uint64_t) known; /* features that it was found to have */
    if (!(features & ~atomic_load_explicit(&known, memory_order_relaxed))) return true;
    uint64_t have = processor_features();
    atomic_store_explicit(&known, have, memory_order_relaxed);
    return !(features & ~have);
}

static void run_with(const struct aot_run *r, char *work, const void *const *pointer)
{
    const struct image *m = r->m;
    const struct aot_workspace *p = &r->parts;
    const struct image_out *o = image_at(m, m->out);
    void **out = (void **)(work + p->table);
    for (uint32_t i = 0; i < m->nout; i++)
        out[i] = o[i].later >= 0 ? work + p->later + o[i].later : (void *)(uintptr_t)pointer[o[i].pointer];
    struct aot_frame f = {
        .r = r, .p = image_at(m, m->program), .input = pointer, .state = pointer + m->ninput, .out = out, .arena =
            work};
    run_commands(&f);
    for (uint32_t i = 0; i < m->nout; i++) {
        size_t bytes = (size_t)aot_size(r, o[i].bytes);
        if (o[i].later >= 0 && bytes) memcpy((void *)(uintptr_t)pointer[o[i].pointer], out[i], bytes);
    }
}

/* The workspace from the args, or *own: allocated for this run, to be freed.  NULL: *status. */
static char *find_workspace(const void *const *given, const struct aot_workspace *p, unsigned *workers, void **own,
                            int *status)
{
    size_t size = p->fixed + *workers * p->worker + ALIGN - 1;
    char *work = *own = given[0] ? NULL : malloc(size);
    if (given[0]) {
        work = (char *)(uintptr_t)given[0];
        memcpy(&size, &given[1], sizeof size);
    }
    size_t need = (ALIGN - (uintptr_t)work % ALIGN) % ALIGN + p->fixed;
    *status = !work ? KL_ERR_MEMORY : size < need + p->worker ? KL_ERR_ARGUMENT : KL_OK;
    if (*status) return NULL;
    if (size - need < *workers * p->worker) *workers = (unsigned)((size - need) / p->worker);
    return work + need - p->fixed;
}

/* The offset of the value of pointer i in the image, 0: none. */
static uint32_t weight_in_image(const struct image *m, uint32_t i)
{
    const uint32_t *weight = image_at(m, m->weight);
    return m->weight && i >= m->ninput && i - m->ninput < m->nstate ? weight[i - m->ninput] : 0;
}

/* The pointers of the args; NULL ones are replaced by the values in the image. */
static const void *const *with_weights(const struct image *m, const void *const *given, const void **to)
{
    if (!m->weight) return given;
    for (uint32_t i = 0; i < m->ninput + m->nstate + m->nreturn; i++) {
        uint32_t inside = given[i] ? 0 : weight_in_image(m, i);
        to[i] = inside ? image_at(m, inside) : given[i];
    }
    return to;
}

/* The values of the symbols, from the args, and of sums of them. */
static bool symbols_fit(const struct image *m, const void *args, uint64_t *value)
{
    const struct image_symbol *s = image_symbols(m);
    bool fit = true;
    for (uint32_t i = 0; i < m->nsymbol; i++) {
        int64_t v;
        memcpy(&v, (const char *)args + s[i].at, sizeof v);
        fit &= s[i].low <= v && v <= s[i].high;
        value[i] = (uint64_t)v;
    }
    if (fit) image_compute_sums(m, value);
    return fit;
}

static int aot_run_check(const struct image *m, const void *args, uint64_t *value)
{
    if (m->magic != IMAGE_MAGIC || m->version != IMAGE_VERSION) return KL_ERR_COMPILE;
    if (!processor_fits(m->features)) return KL_ERR_DEVICE;
    if (!args) return KL_ERR_ARGUMENT;
    if (!symbols_fit(m, args, value)) return KL_ERR_SHAPE;
    const void *const *pointer = args;
    const int64_t *bytes = image_at(m, m->pointer);
    for (uint32_t i = 0; i < m->ninput + m->nstate + m->nreturn; i++)
        if (!pointer[i] && !weight_in_image(m, i) && image_size_at(m, bytes[i], value))
            return KL_ERR_ARGUMENT;
    return KL_OK;
}

static void read_slots(const struct image *m, const void *args, const uint64_t *value, uint64_t *slot)
{
    const struct image_slot *s = image_at(m, m->slot);
    memcpy(slot + m->nslot, value, (m->nsymbol + m->nsum) * sizeof *value);
    for (uint32_t i = 0; i < m->nslot; i++) {
        slot[i] = s[i].fixed;
        if (s[i].steps)
            slot[i] = image_float((uint64_t)image_compute(image_at(m, s[i].length), s[i].steps, slot), s[i].mantissa,
                                  s[i].exponent);
        else
            memcpy(&slot[i], (const char *)args + s[i].at, s[i].bytes); /* little-endian, as all bits are */
    }
}

int kiln_aot_run(const struct image *m, kernel_fn *const *kernel, const void *args)
{
    uint64_t value[MAX_SYMBOLS + MAX_PLACEHOLDERS];
    int status = aot_run_check(m, args, value);
    if (status) return status;
    const void *const *pointer = args;
    struct aot_run r = {.m = m, .kernel = kernel, .parts = workspace_parts(m), .workers = pool_threads()};
    void *own;
    char *work = find_workspace(pointer + m->ninput + m->nstate + m->nreturn, &r.parts, &r.workers, &own, &status);
    if (!work) return status;
    uint64_t *slot = (uint64_t *)(work + r.parts.slots);
    read_slots(m, args, value, slot);
    r.slot = slot;
    r.scratch = work + r.parts.fixed;
    fp_env env = fp_enter();
    run_with(&r, work, with_weights(m, pointer, (const void **)(work + r.parts.pointers)));
    fp_leave(env);
    free(own);
    return KL_OK;
}
