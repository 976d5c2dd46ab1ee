/* The program cache: captured graph -> program, and kernel -> loaded code, shared by all programs.  Below them is the
 * disk cache (disk.c), which is searched before a kernel is compiled.
 *
 * Both levels work in the same way.  An entry is found by hash and compared in full.  A thread that finds none inserts
 * an unfinished entry, builds it without holding the lock and signals its end.  A thread that finds an unfinished entry
 * waits, so that concurrent misses build once.  A failed entry is removed.  No thread waits while it owns an unfinished
 * kernel, so the waits cannot form a cycle.
 *
 * With option background_compile, a miss of a fused program builds the unfused one, and inserts an entry with a
 * fallback program that runs it until a background task has built the fused one.  If the task fails, the next caller
 * builds the program itself and gets the error. */
#include "cache.h"
#include <lower_sources.h>
#include "ir/graph/custom.h"
#include "runtime/profile/debugger.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cache_changed = PTHREAD_COND_INITIALIZER;
struct entry *cache_programs[CACHE_BUCKETS];
struct entry *cache_newest, *cache_named[CACHE_BUCKETS];

/* ---- fork: entries that other threads of the parent were building are unfinished in the child ---- */
static void cache_before_fork(void)
{
    pthread_mutex_lock(&cache_lock);
}

static void drop_unfinished(void)
{
    for (unsigned i = 0; i < CACHE_BUCKETS; i++) {
        for (struct entry **p = &cache_programs[i]; *p;) {
            if ((*p)->state == IN_BACKGROUND) (*p)->state = FAILED;
            if ((*p)->state != UNFINISHED) p = &(*p)->next;
            else *p = (*p)->next;
        }
        for (struct code_entry **p = &cache_codes[i]; *p;)
            if ((*p)->ready) p = &(*p)->next;
            else *p = (*p)->next;
    }
    cache_changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}

static void cache_after_fork(bool child)
{
    if (child) drop_unfinished();
    pthread_mutex_unlock(&cache_lock);
}
const struct fork_part cache_fork = {cache_before_fork, cache_after_fork};

/* ---- graph -> program ---- */
struct compile_all {
    struct exec *x;
    const uint64_t *needed;        /* per kernel: the devices that run its code, by bit */
    bool background;
    uint32_t at_once;              /* the most kernels that are compiled at once */
    unsigned threads;              /* that compile */
    const struct cancellation *cancel; /* asked before each share; NULL: none */
    pthread_mutex_t lock;          /* guards all below, and x->code */
    uint32_t ncode;                /* entries in x->code */
    uint32_t next;                 /* the next kernel to compile */
    uint64_t left;                 /* instructions of the kernels from there on */
    uint32_t failed;               /* the first kernel that failed, with its error */
    struct err err;
};

/* Gets the code of n kernels from number `first` on, for each device that runs them.  Returns the number of one that
 * failed with *e, or UINT32_MAX. */
static uint32_t get_codes(struct compile_all *all, uint32_t first, uint32_t n, struct err *e)
{
    if (all->background && !background_pause()) {
        err_set(e, KL_ERR_COMPILE, "the process ends");
        return first;
    }
    struct exec *x = all->x;
    for (int d = 0; d < DEVICE_END; d++) {
        const struct kernel *k[MODULE_KERNELS];
        struct code_entry *c[MODULE_KERNELS];
        uint32_t of[MODULE_KERNELS], m = 0;
        for (uint32_t i = first; i < first + n; i++)
            if (all->needed[i] >> d & 1) {
                k[m] = x->program->kernel[i];
                of[m++] = i;
            }
        uint32_t got = m ? code_get(k, m, d, !x->variant, c, e) : 0;
        pthread_mutex_lock(&all->lock);
        for (uint32_t i = 0; i < m; i++) {
            if (!c[i]) continue;
            x->code[all->ncode++] = c[i];
            if (device_is_host(d)) x->fn[of[i]] = c[i]->loaded.fn;
            else x->on[d][of[i]] = c[i]->on;
        }
        pthread_mutex_unlock(&all->lock);
        if (got < m) return of[got];
    }
    return UINT32_MAX;
}

/* Takes the next kernels to compile at once: the first, and those after it up to a share of the instructions that are
 * left.  The shares shrink, so that all threads end at about the same time; some kernels take a hundred times as long
 * as others (Polychronopoulos and Kuck 1987: guided self-scheduling). */
static uint32_t take_share(struct compile_all *all, uint32_t *first)
{
    struct kernel *const *k = all->x->program->kernel;
    pthread_mutex_lock(&all->lock);
    uint32_t n = 0, left = all->x->program->nkernel - all->next;
    uint64_t share = all->threads > 1 ? all->left / (2 * all->threads) : all->left, cost = 0;
    for (*first = all->next; n < left && n < all->at_once; n++) {
        uint64_t more = cost + k[*first + n]->ninst;
        if (n && more > share) break;
        cost = more;
    }
    all->next += n;
    all->left -= cost;
    pthread_mutex_unlock(&all->lock);
    return n;
}

static void compile_some(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)begin, (void)end, (void)worker;
    struct compile_all *all = ctx;
    const struct cancellation *own = cancellation_current();
    cancellation_here(all->cancel);
    for (uint32_t first, n; (n = take_share(all, &first));) {
        struct err e = {0};
        uint32_t failed = cancellation_requested(all->cancel, &e) ? first : get_codes(all, first, n, &e);
        if (failed == UINT32_MAX) continue;
        pthread_mutex_lock(&all->lock);
        if (failed < all->failed) {
            all->failed = failed;
            all->err = e;
        }
        all->next = all->x->program->nkernel; /* stops the others; kernels before these are being compiled already */
        pthread_mutex_unlock(&all->lock);
    }
    cancellation_here(own);
}

static bool checks_on(void)
{
#ifndef NDEBUG
    return true;
#else
    return option_verify();
#endif
}

enum { KEPT_NODES = 64 }; /* smaller graphs are planned as fast as their lowered kernels are read from disk */

/* Plans with the lowered kernels that an earlier process stored for this graph, or stores them for the next process.
 * Lowering is most of the time of a first run whose kernels are on disk.  Their instructions' order is that in which
 * the C compiler evaluates arguments of a call, so the key has the compiler (__VERSION__) beside the sources. */
static struct program *plan_kept(struct graph *g, const struct exec *x, const struct target_set *targets,
                                 struct err *e)
{
    struct disk_key key = {0};
    struct disk_code found;
    struct hash128 h = graph_hash(g);
    const char *target = targets->v[0].caps->name;
    char text[sizeof targets->v[0].caps->name + 320];
    snprintf(text, sizeof text, "lowered graph %016llx%016llx for %s%s, by " LOWER_SOURCES " " __VERSION__,
             (unsigned long long)h.hi, (unsigned long long)h.lo, target,
             x->graph_order ? " in the graph's order" : "");
    bool kept = g->nnode >= KEPT_NODES && option_cache_bytes() > 0 && disk_key_text(&key, text, g->name);
    if (kept && disk_load(&key, &found)) {
        memo_unpack(found.code.bytes, found.code.size);
        mem_free(found.file);
    }
    struct memo_pack *pack = kept ? memo_pack_new() : NULL;
    struct program *p = program_plan_for(g, targets, x->schedules, tuned_for(graph_devices(g)), pack, e);
    struct code code;
    code.bytes = memo_pack_end(pack, &code.size);
    if (p && code.bytes) disk_store(&key, &code);
    mem_free(code.bytes);
    disk_key_free(&key);
    return p;
}

/* Checks the plan; one for all values of symbols with their least and greatest values, and with some between. */
static bool check_program(const struct program *p, const struct graph *g, struct err *e)
{
    enum { VALUES = 4 };
    const struct placeholders *s = &p->placeholders;
    uint64_t slot[MAX_PLACEHOLDERS] = {0}, *all = slot;
    uint32_t last = 0;
    bool ok = program_check(p, e);
    for (uint32_t i = 0; i < s->n; i++) last = s->v[i].slot > last ? s->v[i].slot : last;
    if (s->n && last >= MAX_PLACEHOLDERS) all = mem_alloc((last + 1) * sizeof *all);
    for (int k = 0; ok && all && s->n && k < VALUES; k++) {
        for (uint32_t i = 0; i < s->n && !placeholder_is_sum(&s->v[i]); i++) {
            int64_t range = s->v[i].high - s->v[i].low;
            all[s->v[i].slot] = (uint64_t)(s->v[i].low + (k < 2 ? k * range : range / (2 + k + i)));
        }
        ok = program_check_for(p, all, e);
    }
    if (!all) ok = err_set(e, KL_ERR_MEMORY, "no memory to check the plan of graph %s", g->name);
    if (all != slot) mem_free(all);
    return ok;
}

/* Plans the program of g; without a code generator the interpreter runs it and nothing is compiled. */
static struct program *cache_plan_program(struct graph *g, const struct exec *x, const struct backend *b,
                            const struct target_set *targets, struct dump *dump, struct size_limit *varies,
                            struct err *e)
{
    struct placeholders placeholders = {0};
    struct pass_options o = {.fuse = x->fuse, .verify = checks_on(), .bf16_dot2 = device_bf16_dot2(g),
                             .bf16_tiles = x->graph_order ? 0 : device_bf16_tiles(g),
                             .processor = device_processor(g), .gpus = device_gpus(g),
                             .graph_order = x->graph_order, .dump = dump ? dump_graph : NULL, .ctx = dump,
                             .placeholders = &placeholders, .recorded = x->captured,
                             .cancel = cancellation_current()};
    struct program *p = NULL;
    int64_t began = span_begin();
    bool ok = passes_run(g, &o) || err_set(e, g->err.code, "%s", g->err.msg);
    *varies = placeholders.varies;
    span_end(SPAN_PASSES, g->name, began);
    began = span_begin();
    if (ok && placeholders.n) p = program_plan_symbolic(g, &placeholders, targets, e);
    else if (ok) p = b ? plan_kept(g, x, targets, e) : program_plan(g, NULL, true, e);
    span_end(SPAN_PLAN, g->name, began);
    if (p && checks_on() && !check_program(p, g, e)) {
        program_free(p);
        return NULL;
    }
    return p;
}

/* Finds the kernels that devices with a code generator run. */
static void find_needed(const struct program *p, uint64_t interpreted, uint64_t *needed)
{
    for (uint32_t i = 0; i < p->ncmd; i++) {
        const struct command *c = &p->cmd[i];
        if (c->kind == CMD_KERNEL && !(interpreted >> c->device & 1)) needed[c->kernel] |= UINT64_C(1) << c->device;
        for (int k = 0; k < 2; k++)
            if (c->sub[k]) find_needed(c->sub[k], interpreted, needed);
    }
}

/* Bytes of the workspace, and of the scratch of all blocks of the kernels that take it as an argument. */
static int64_t work_of(const struct exec *x, int device)
{
    int64_t max = 0;
    for (uint32_t i = 0; i < x->program->nkernel; i++) {
        const struct device_kernel *d = x->on[device][i];
        if (!d || !d->work) continue;
        int64_t bytes = x->program->scratch_bytes * accelerator_blocks(d, x->program->kernel[i]->extent);
        max = bytes > max ? bytes : max;
    }
    return x->program->workspace_bytes + max;
}

/* Finds the phases of all kernels.  They are known before a run, so that a run does not search kernels for them. */
static bool find_phases(struct exec *x)
{
    const struct program *p = x->program;
    struct phase phase;
    uint32_t n = 0;
    if (!x->accelerated && !p->placeholders.n) return true;
    for (uint32_t i = 0; i < p->nkernel; i++)
        for (phase = (struct phase){0}; kernel_phase(p->kernel[i], &phase);) n++;
    x->phases = mem_alloc((p->nkernel + 1) * sizeof *x->phases + n * sizeof *x->phases->v);
    if (!x->phases) return false;
    struct launch_phase *next = (struct launch_phase *)(x->phases + p->nkernel + 1);
    for (uint32_t i = 0; i < p->nkernel; i++) {
        const struct kernel *k = p->kernel[i];
        x->phases[i].v = next;
        for (phase = (struct phase){0}; kernel_phase(k, &phase); x->phases[i].n++)
            *next++ = (struct launch_phase){phase.base, phase.extent, p->placeholders.n ? kernel_active(k, &phase) : 0,
                                            kernel_shares(k, phase.first, phase.end)};
    }
    return true;
}

/* Whether the code generators of x's devices compile kernels together. */
static void find_modules(struct compile_all *all)
{
    const struct program *p = all->x->program;
    for (int d = 0; d < DEVICE_END; d++) {
        const struct backend *b = all->x->accelerated >> d & 1 ? device_backend(d, NULL) : NULL;
        if (!b || !b->compile_module) continue;
        all->at_once = MODULE_KERNELS;
        all->threads = b->serial ? 1 : all->threads;
    }
    for (uint32_t i = 0; i < p->nkernel; i++) all->left += p->kernel[i]->ninst;
}

/* Compiles on the pool's threads; in the background on this thread alone, because the pool runs the program
 * meanwhile. */
static bool compile_kernels(struct exec *x, bool background, struct err *e)
{
    uint32_t n = x->program->nkernel;
    uint64_t *needed = mem_alloc((n + 1) * sizeof *needed);
    x->fn = mem_alloc((n + 1) * sizeof *x->fn);
    uint32_t ncode = 0;
    bool room = needed && x->fn && find_phases(x);
    if (room) {
        find_needed(x->program, x->interpreted, needed);
        for (uint32_t i = 0; i < n; i++) ncode += (uint32_t)__builtin_popcountll(needed[i]);
        room = (x->code = mem_alloc((ncode + 1) * sizeof *x->code)) != NULL;
    }
    for (int d = 0; d < DEVICE_END; d++)
        if (x->accelerated >> d & 1) room &= (x->on[d] = mem_alloc((n + 1) * sizeof *x->on[d])) != NULL;
    struct compile_all all = {.x = x, .needed = needed, .background = background, .at_once = 1,
                              .threads = background ? 1 : pool_threads(), .lock = PTHREAD_MUTEX_INITIALIZER,
                              .cancel = cancellation_current(), .failed = UINT32_MAX};
    find_modules(&all);
    if (room) pool_run_max(compile_some, &all, n, 1, background ? 1 : UINT32_MAX);
    x->ncode = all.ncode;
    mem_free(needed);
    if (!room)
        return err_set(e, KL_ERR_MEMORY, "no memory for %u kernels of graph %s", n, x->captured->name);
    for (int d = 0; d < DEVICE_END && all.failed == UINT32_MAX; d++) {
        int64_t bytes = x->on[d] ? work_of(x, d) : 0;
        x->work_bytes = bytes > x->work_bytes ? bytes : x->work_bytes;
    }
    return all.failed == UINT32_MAX || err_set(e, all.err.code, "%s", all.err.msg);
}

void program_targets_free(struct program_targets *t)
{
    mem_free(t->v);
    *t = (struct program_targets){0};
}

/* Checks that all devices of g work; *b: the code generator of one, NULL if none has one. program_targets_free t, also
 * after an error. */
static bool find_targets(struct exec *x, const struct graph *g, const struct backend **b, struct program_targets *t,
                         struct err *e)
{
    uint64_t all = graph_devices(g) | UINT64_C(1) << x->device;
    size_t n = (size_t)__builtin_popcountll(all);
    t->v = mem_alloc(n * (sizeof *t->v + sizeof *t->caps)); /* a struct caps is too large for some hosts' stacks */
    if (!t->v) return err_set(e, KL_ERR_MEMORY, "no memory for the targets of graph %s", g->name);
    t->caps = (struct caps *)(void *)(t->v + n);
    t->set = (struct target_set){t->v, 0};
    *b = NULL;
    for (unsigned d = 0; d < MAX_DEVICES; d++) {
        if (!(all >> d & 1)) continue;
        if (!device_works(d, e)) return false;
        const struct backend *backend = device_backend((int)d, &t->caps[t->set.n]);
        if (!device_is_host((int)d)) x->accelerated |= UINT64_C(1) << d;
        if (!backend) {
            x->interpreted |= UINT64_C(1) << d;
            continue;
        }
        t->caps[t->set.n].graph_order = x->graph_order && t->caps[t->set.n].is_gpu;
        t->v[t->set.n] = (struct target){&t->caps[t->set.n], UINT64_C(1) << d};
        t->set.n++;
        *b = backend;
    }
    return true;
}

/* Why its devices have no program for all values of symbols, or NULL. */
static const char *without_symbols(const struct exec *x, const struct graph *g)
{
    if (x->interpreted) return "the interpreter computes with lengths that are numbers";
    if (x->accelerated && (g->nregion || g->ncustom))
        return "regions and custom ops on a device with a driver are made for lengths that are numbers";
    return x->schedules ? "it has user-supplied schedules" : NULL;
}

/* Frees what cache_build has made. */
static void exec_clear(struct exec *x)
{
    pthread_mutex_lock(&cache_lock);
    for (uint32_t i = 0; i < x->ncode; i++) x->code[i]->users--;
    pthread_mutex_unlock(&cache_lock);
    mem_free(x->code);
    x->code = NULL;
    x->ncode = 0;
    graph_free(x->captured);
    program_free(x->program);
    variants_free(x->variants);
    mem_free(x->phases);
    mem_free(atomic_load_explicit(&x->repeat, memory_order_relaxed));
    x->variants = NULL;
    x->phases = NULL;
    atomic_store_explicit(&x->repeat, NULL, memory_order_relaxed);
    mem_free(x->fn);
    for (int d = 0; d < DEVICE_END; d++) {
        mem_free(x->on[d]);
        x->on[d] = NULL;
    }
    x->work_bytes = 0;
    x->accelerated = 0;
    x->captured = NULL;
    x->program = NULL;
    x->fn = NULL;
    x->interpreted = 0;
}

/* Gives x a program for each value of the symbols, after a device has refused the one for all values: a kernel may have
 * too many iterations for the greatest value. */
static bool without_program(struct exec *x, const struct graph *captured, struct err *e)
{
    uint64_t accelerated = x->accelerated, interpreted = x->interpreted;
    exec_clear(x);
    x->accelerated = accelerated;
    x->interpreted = interpreted;
    x->captured = graph_clone(captured);
    x->variants = variants_new(e->msg, &(struct size_limit){0});
    if (!x->captured || !x->variants)
        return err_set(e, KL_ERR_MEMORY, "no memory to cache graph %s", captured->name);
    e->code = KL_OK;
    return true;
}

/* Fills in all fields of x except its key; on failure some may be set. */
static bool cache_build(struct exec *x, const struct graph *captured, struct dump *dump, bool background, struct err *e)
{
    struct program_targets targets = {0};
    const struct backend *b;
    struct graph *g = graph_clone(captured);
    if (!g || !(x->captured = graph_clone(captured))) {
        graph_free(g);
        return err_set(e, KL_ERR_MEMORY, "no memory to cache graph %s", captured->name);
    }
    struct size_limit varies = {0};
    graph_move(g, graph_device(g), (unsigned)x->device);
    custom_number(g, 0);
    bool ok = custom_check(g, e) && find_targets(x, g, &b, &targets, e);
    const char *why = ok && g->symbols ? without_symbols(x, g) : NULL;
    ok = ok && !why && (x->program = cache_plan_program(g, x, b, &targets.set, dump, &varies, e));
    program_targets_free(&targets);
    graph_free(g);
    if (captured->symbols && !ok && (why || e->code == KL_ERR_COMPILE)) {
        x->variants = variants_new(why ? why : e->msg, &varies);
        if (x->variants) e->code = KL_OK;
        return x->variants || err_set(e, KL_ERR_MEMORY, "no memory to cache graph %s", captured->name);
    }
    if (!ok) return false;
    count_one(&counters.graphs_built);
    if (dump) {
        fork_hold();
        dump_program(dump, x->program, b, x->fuse);
        fork_release();
    }
    if (compile_kernels(x, background, e)) return true;
    return x->program->placeholders.n && e->code == KL_ERR_DEVICE && without_program(x, captured, e);
}

/* What option order asks of this program: of one without kernels for a GPU or by tiles of bf16 nothing. */
static bool graph_order_of(const struct graph *g, int device)
{
    uint64_t all = graph_devices(g) | UINT64_C(1) << device, hosts = (UINT64_C(1) << DEVICE_HOSTS) - 1;
    return option_graph_order() && (all & ~hosts || device_bf16_tiles(g));
}

static struct entry *program_entry_new(struct hash128 key, const struct graph *captured, int device, bool fuse,
                                       bool graph_order, const struct sched_section *schedules)
{
    struct entry *t = mem_alloc(sizeof *t);
    if (!t) return NULL;
    t->exec.key = key;
    t->exec.device = device;
    t->exec.fuse = fuse;
    t->exec.graph_order = graph_order;
    t->exec.schedules = schedules;
    atomic_init(&t->exec.refs, 1);
    atomic_init(&t->exec.weak_refs, 1);
    t->graph = captured;
    return t;
}

/* ---- programs for the tuner ---- */

bool exec_targets(const struct graph *g, int device, struct program_targets *t, struct err *e)
{
    struct exec x = {.device = device, .graph_order = graph_order_of(g, device)};
    const struct backend *b;
    return find_targets(&x, g, &b, t, e);
}

struct exec *exec_variant(const struct graph *fused, int device, const struct tuned *tuned, struct err *e)
{
    struct program_targets targets = {0};
    const struct backend *b;
    struct exec *x = mem_alloc(sizeof *x);
    if (!x || !(x->captured = graph_clone(fused))) {
        err_set(e, KL_ERR_MEMORY, "no memory to tune graph %s", fused->name);
        mem_free(x);
        return NULL;
    }
    x->device = device;
    x->fuse = x->variant = true;
    x->graph_order = graph_order_of(fused, device);
    atomic_init(&x->refs, 1);
    bool ok = find_targets(x, fused, &b, &targets, e) &&
              (x->program = program_plan_for(fused, &targets.set, NULL, tuned, NULL, e)) &&
              compile_kernels(x, false, e);
    program_targets_free(&targets);
    if (ok) return x;
    exec_variant_free(x);
    return NULL;
}

void exec_variant_free(struct exec *x)
{
    struct code_entry *unused = NULL;
    if (!x) return;
    exec_clear(x);
    mem_free(x);
    pthread_mutex_lock(&cache_lock);
    code_take_unused(&unused);
    pthread_mutex_unlock(&cache_lock);
    code_free(unused);
}

void exec_outdate(const struct exec *x)
{
    pthread_mutex_lock(&cache_lock);
    ((struct entry *)x)->outdated = true;
    pthread_mutex_unlock(&cache_lock);
    schedules_changed();
}

static struct entry **find_by_name(const struct graph *g)
{
    return &cache_named[bytes_hash(g->name, strlen(g->name)).lo % CACHE_BUCKETS];
}

const struct exec *exec_named(const char *name)
{
    struct graph like = {0};
    snprintf(like.name, sizeof like.name, "%s", name);
    pthread_mutex_lock(&cache_lock);
    struct entry *found = NULL;
    uint64_t last = 0;
    for (struct entry *t = *find_by_name(&like); t; t = t->same_name_next) { /* from the newest to the oldest */
        uint64_t ran = atomic_load_explicit(&t->exec.ran, memory_order_relaxed);
        if (!t->outdated && !strcmp(t->graph->name, like.name) && (!found || ran > last)) {
            found = t;
            last = ran;
        }
    }
    if (found) exec_ref(&found->exec);
    pthread_mutex_unlock(&cache_lock);
    return found ? &found->exec : NULL;
}

/* Similarity of two programs: first by their graphs, then by name, then device, then fusion. */
static uint64_t program_similarity(const struct entry *t, const struct entry *k)
{
    uint64_t name = !strcmp(t->graph->name, k->graph->name), device = k->exec.device == t->exec.device;
    return graph_similarity(t->graph, k->graph) << 3 | name << 2 | device << 1 | (k->exec.fuse == t->exec.fuse);
}

/* The most similar program among the most recent ones and the most recent ones of its name; the limit keeps the cost of
 * a miss independent of the number of programs.  Takes a reference.  Needs the lock. */
static struct entry *most_similar(const struct entry *t)
{
    enum { LOOKED_AT = 16 };
    struct entry *best = NULL, *k = *find_by_name(t->graph);
    uint64_t max = 0, like;
    for (int i = 0; i < LOOKED_AT && k; i++, k = k->same_name_next)
        if ((like = program_similarity(t, k)) > max) max = like, best = k;
    k = cache_newest;
    for (int i = 0; i < LOOKED_AT && k; i++, k = k->older)
        if ((like = program_similarity(t, k)) > max) max = like, best = k;
    if (best) exec_ref(&best->exec);
    return best;
}

/* Records why t had to be built. */
static void record_miss_cause(struct entry *t, const struct entry *near, bool evicted)
{
    enum { ROOM = 2048 };
    char text[ROOM];
    if (evicted)
        snprintf(
            text, ROOM,
            "it was built before and evicted since: programs and kernels take more than option program_bytes, %lld",
            (long long)option_program_bytes());
    else if (!near)
        snprintf(text, ROOM, "it is the first program");
    else if (!graph_same(t->graph, near->graph))
        graph_difference(t->graph, near->graph, text, ROOM);
    else
        snprintf(text, ROOM, "the graph is known on device %s, %s%s", device_name(near->exec.device),
                 near->exec.fuse ? "fused" : "unfused",
                 near->outdated ? ", before it was tuned" :
                 near->exec.graph_order != t->exec.graph_order ? ", with another option order" :
                 near->exec.schedules == t->exec.schedules ? "" : ", with other schedules");
    t->exec.miss = mem_text(text);
}

void program_entry_free(struct entry *t)
{
    exec_clear(&t->exec);
    mem_free(t->exec.miss);
    graph_free(t->task_graph);
    exec_weak_unref(&t->exec);
}

/* Adds a READY program to the lists; needs the lock. */
static void program_entry_link(struct entry *t)
{
    struct entry **same = find_by_name(t->graph);
    t->older = cache_newest;
    t->older_at = &cache_newest;
    t->same_name_next = *same;
    t->same_name_link = same;
    if (t->older) t->older->older_at = &t->older;
    if (t->same_name_next) t->same_name_next->same_name_link = &t->same_name_next;
    cache_newest = *same = t;
}

static void program_entry_remove(struct entry *t)
{
    struct entry **p = &cache_programs[t->exec.key.lo % CACHE_BUCKETS];
    while (*p != t) p = &(*p)->next;
    *p = t->next;
}

void program_entry_unlink(struct entry *t)
{
    program_entry_remove(t);
    *t->older_at = t->older;
    *t->same_name_link = t->same_name_next;
    if (t->older) t->older->older_at = t->older_at;
    if (t->same_name_next) t->same_name_next->same_name_link = t->same_name_link;
}

/* Ends the building of an entry and wakes the waiting threads.  A failed entry without a fallback program is removed.
 * Takes a reference. */
static const struct exec *cache_finish(struct entry *t, bool ok)
{
    if (ok)
        t->bytes = (int64_t)(sizeof *t + graph_bytes(t->exec.captured) +
                             (t->exec.program ? program_bytes(t->exec.program) : 0));
    else exec_clear(&t->exec);
    pthread_mutex_lock(&cache_lock);
    struct exec *placeholder = ok ? t->placeholder : NULL;
    struct graph *own = ok ? t->task_graph : NULL;
    bool gone = !ok && !t->placeholder;
    t->state = ok ? READY : FAILED;
    if (ok) {
        exec_ref(&t->exec);
        t->graph = t->exec.captured;
        t->task_graph = NULL;
        t->placeholder = NULL;
        t->made = exec_runs();
        cache_bytes += t->bytes;
        program_entry_link(t);
        cache_rebuilt(&t->exec);
        if (placeholder) {
            exec_ref(&t->exec);
            atomic_store_explicit(&placeholder->newer, &t->exec, memory_order_release);
        }
    }
    if (gone) program_entry_remove(t);
    pthread_cond_broadcast(&cache_changed);
    pthread_mutex_unlock(&cache_lock);
    exec_unref(placeholder);
    graph_free(own);
    if (gone) program_entry_free(t);
    if (ok) cache_trim();
    return ok ? &t->exec : NULL;
}

/* Logs once why kernels are not kept on disk, unless the user disabled it. */
static void log_disk_off(void)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    const char *dir = getenv("KILN_CACHE_DIR");
    char path[4096];
    struct err e = {0};
    if (!log_wants(KL_LOG_WARN) || option_cache_bytes() == 0 || (dir && !strcmp(dir, "none"))) return;
    if (!disk_folder(path, sizeof path, &e) && !atomic_flag_test_and_set(&warned)) log_put(KL_LOG_WARN, "%s", e.msg);
}

static void log_program(const struct entry *t, int64_t began)
{
    const struct exec *x = &t->exec;
    if (!x->program) return;
    log_put(KL_LOG_INFO,
            "graph %s: a program of %u commands and %u different kernels for device %s, %s%s, built in %.3f ms: "
            "%s",
            x->captured->name, x->program->ncmd, x->program->nkernel, device_name(x->device),
            x->fuse ? "fused" : "unfused", x->graph_order ? ", in the graph's order" : "",
            1e-6 * (double)(timeline_now() - began), x->miss ? x->miss : "");
    log_disk_off();
}

static void build_in_background(void *ctx)
{
    struct entry *t = ctx;
    struct err ignored = {0}; /* the next caller builds in the foreground and gets the error */
    int64_t began = timeline_now();
    bool ok = cache_build(&t->exec, t->task_graph, t->dump, true, &ignored);
    dump_end(t->dump);
    if (ok) log_program(t, began);
    else log_put(KL_LOG_WARN, "graph %s: compiled in the background: %s", t->task_graph->name, ignored.msg);
    exec_unref(cache_finish(t, ok));
}

/* Makes the fallback program of a new entry and queues a task for the rest; NULL: *e, or, if *e is empty, not possible.
 * */
static const struct exec *start_background(struct entry *t, const struct graph *captured, struct dump *dump,
                                           struct err *e)
{
    const struct exec *unfused = exec_get(captured, t->exec.device, false, e);
    struct graph *own = unfused ? graph_clone(captured) : NULL;
    struct exec *s = own ? mem_alloc(sizeof *s) : NULL;
    char *miss = s ? mem_text(t->exec.miss) : NULL;
    if (!s) {
        graph_free(own);
        exec_unref(unfused);
        return NULL;
    }
    *s = (struct exec){.key = t->exec.key, .captured = unfused->captured, .program = unfused->program,
                       .fn = unfused->fn, .phases = unfused->phases,
                       .work_bytes = unfused->work_bytes, .interpreted = unfused->interpreted,
                           .accelerated = unfused->accelerated,
                       .device = unfused->device, .fuse = true, .graph_order = unfused->graph_order,
                       .schedules = t->exec.schedules,
                       .miss = miss, .base = unfused, .refs = 2, .weak_refs = 1}; /* of the entry and of the caller */
    memcpy(s->on, unfused->on, sizeof s->on);
    pthread_mutex_lock(&cache_lock);
    t->placeholder = s;
    t->task_graph = own;
    t->graph = own;
    t->dump = dump;
    t->state = IN_BACKGROUND;
    pthread_cond_broadcast(&cache_changed);
    pthread_mutex_unlock(&cache_lock);
    if (background_run(build_in_background, t)) return s;
    dump_end(dump);
    cache_finish(t, false);
    return s;
}

/* Is background compilation useful for this program? */
static bool is_background_useful(const struct graph *captured, int device, bool fuse)
{
    return fuse && option_background() && !captured->symbols && (device_backend(device, NULL) ||
                                           graph_devices(captured) != UINT64_C(1) << device);
}

const struct exec *exec_get(const struct graph *captured, int device, bool fuse, struct err *e)
{
    fork_watch();
    timeline_from_environment();
    const struct sched_section *schedules;
    if (!schedules_of(captured->name, fuse, &schedules, e)) return NULL;
    struct hash128 key = graph_hash(captured);
    bool graph_order = graph_order_of(captured, device);
    struct entry **bucket = &cache_programs[key.lo % CACHE_BUCKETS], *t;
    pthread_mutex_lock(&cache_lock);
    for (;;) {
        for (t = *bucket; t; t = t->next)
            if (same_key(t->exec.key, key) && t->exec.device == device && t->exec.fuse == fuse &&
                t->exec.graph_order == graph_order && t->exec.schedules == schedules && !t->outdated &&
                graph_same(t->graph, captured)) break;
        if (!t || t->state != UNFINISHED) break;
        pthread_cond_wait(&cache_changed, &cache_lock);
    }
    const struct exec *found = t && t->state != FAILED ? t->state == READY ? &t->exec : t->placeholder : NULL;
    if (found) exec_ref(found);
    bool later = !t && is_background_useful(captured, device, fuse);
    bool fresh = !t && (t = program_entry_new(key, captured, device, fuse, graph_order, schedules));
    if (fresh) {
        t->next = *bucket;
        *bucket = t;
    } else if (t && !found) {
        t->state = UNFINISHED;
    }
    struct entry *near = fresh ? most_similar(t) : NULL;
    bool evicted = fresh && cache_was_evicted(&t->exec);
    pthread_mutex_unlock(&cache_lock);
    if (fresh) record_miss_cause(t, near, evicted);
    if (near) exec_unref(&near->exec);
    count_one(found ? &counters.program_hits : &counters.program_misses);
    if (found) return option_tune() ? tune_repeated(found) : found;
    if (!t) {
        err_set(e, KL_ERR_MEMORY, "no memory to cache graph %s", captured->name);
        return NULL;
    }
    struct dump *dump = dump_begin(captured->name);
    if (later && (found = start_background(t, captured, dump, e))) return found;
    int64_t began = timeline_now();
    bool ok = !e->code && cache_build(&t->exec, captured, dump, false, e);
    if (ok && t->exec.variants) dump_again(dump);
    dump_end(dump);
    if (ok) log_program(t, began);
    return cache_finish(t, ok);
}
