/* The tuner: measures other schedules for a program's kernels and keeps those that are faster.
 *
 * All kernels of a program are tuned at the same time.  In each round, every kernel gets its next candidate
 * (passes/tune/candidates.c).  A program with these candidates and the program with the schedules kept so far run in
 * alternation.  A kernel's candidate is kept if the median of the ratios of its times in neighbouring runs is below
 * KEEP, so that noise does not change schedules.  Later candidates of the kernel are compared with it and derived from
 * it.  A candidate that changes `stream` also changes what later kernels find in the caches, so it is measured in a
 * round of its own and judged by the time of the whole program.
 *
 * At the end, the program with all kept schedules and the original program run in alternation.  Kernels that are not
 * faster there get their first schedules back; so do all kernels if the program as a whole is not faster. */
#include "tune_measure.h"
#include "cache.h"
#include "runtime/measure/measure.h"
#include <string.h>

/* A pair is one sample of each of the two programs. */
enum { MIN_PAIRS = 3, SURE_PAIRS = 7, MAX_PAIRS = 9, MAX_TRIED = 3 * MAX_CANDIDATES };
/* A candidate's time divided by the time of the schedule kept so far: */
#define KEEP 0.97            /* below it a candidate is kept, after SURE_PAIRS */
#define CLEARLY 0.85         /* below it a candidate is kept after MIN_PAIRS */
#define HOPELESS 0.99        /* above it a candidate is dropped after MIN_PAIRS */
#define BAD 1.1              /* above it a candidate is dropped after one pair */
#define SHARE 0.005          /* kernels with a smaller part of the program's time are not tuned */
#define SAMPLE_SECONDS 2e-3  /* a sample is as many runs as take this long, */
enum { MAX_TIMES = 8 };     /*   at most this many */
#define WARM_SECONDS 2e-2    /* if samples are shorter, one that is not counted comes first */
/* On a device with a driver, a kernel is launched so often between two events that this takes about so long, but not
 * more often than MAX_LAUNCHES: the first launch follows the event by what the host takes to issue it. */
#define LAUNCHES_SECONDS 2e-4
enum { MAX_LAUNCHES = 20 };
enum { MAX_RUNS = 256 };    /* then states are reset, so that those which decay do not become subnormal */

/* A kernel, or several groups' equal kernels. */
struct tunable {
    char name[64];
    uint32_t group;                        /* one of its groups */
    int device;
    struct schedule first, now, trial;
    struct schedule list[MAX_CANDIDATES];  /* candidates derived from an earlier value of `now` */
    uint32_t nlist, next;                  /* next: the first that was not considered yet */
    struct schedule tried[MAX_TRIED];
    uint32_t ntried;
    double ratio[MAX_PAIRS];
    int pairs;                             /* number of pairs after which its candidate was decided; 0: undecided */
    double seconds[2];                     /* of its calls in a sample; at the end in one run, before and after */
    bool worth;                            /* its part of the program's time is at least SHARE */
    bool trying, kept;                     /* it has a candidate in this round; the candidate is kept */
    bool done;                             /* all its candidates were measured */
    bool moved;                            /* `now` has changed since the list was made, or there is no list */
};

/* One graph whose kernels are tuned: that of the program, or of a region. */
struct unit {
    struct mem_arena mem;
    struct measured m;
    struct program_targets targets;
    struct lowerer *lowerer;
    struct hash128 *key;                   /* per group */
    uint32_t *of_group;                    /* per group: its tunable's number + 1 */
    struct tunable *v;
    uint32_t n;
    int times;                             /* runs in a sample */
    int runs;                              /* runs since the states were reset */
    double sample;                         /* seconds of a sample on the wall clock */
    double *took;                          /* per tunable: its seconds in the last sample */
    bool *wanted;                          /* per tunable: is it measured now? */
};

struct tuner {
    const struct tune_options *o;
    double end;                            /* when the time budget ends, by measure_now */
    int done, total;                       /* rounds */
    struct err *e;
};

static bool tune_no_memory(struct tuner *t) { return err_set(t->e, KL_ERR_MEMORY, "no memory to tune a program"); }

/* ---- schedules for planning: the first ones, those kept so far, or the candidates of this round ---- */

enum which { FIRST, NOW, TRIAL };
struct pick { struct tuned tuned; const struct unit *u; enum which which; };

static bool pick_find(const struct tuned *tuned, struct hash128 group, struct schedule *out)
{
    const struct pick *p = (const struct pick *)tuned;
    const struct unit *u = p->u;
    for (uint32_t i = 0; i < u->m.g->ngroup; i++) {
        if (!u->of_group[i] || !same_key(u->key[i], group)) continue;
        const struct tunable *k = &u->v[u->of_group[i] - 1];
        *out = p->which == FIRST ? k->first : p->which == TRIAL && k->trying ? k->trial : k->now;
        return true;
    }
    return false;
}

static bool tune_make_variant(struct tuner *t, struct unit *u, enum which which, struct variant *v)
{
    struct pick p = {{pick_find}, u, which};
    return variant_make(v, &u->m, u->of_group, &p.tuned, t->e);
}

/* ---- the kernels ---- */

/* Numbers the kernels of the program as it is, and finds each group's key and schedule. */
static bool find_tunables(struct tuner *t, struct unit *u, const struct program *p)
{
    uint32_t *number = mem_alloc((p->nkernel + 1) * sizeof *number);
    bool ok = number || tune_no_memory(t);
    for (uint32_t i = 0; ok && i < p->ncmd; i++) {
        const struct command *c = &p->cmd[i];
        struct lowered l;
        /* the interpreter has no schedules, nor has a loop that is one kernel */
        if (c->kind != CMD_KERNEL || !device_backend(c->device, NULL) || !p->kernel[c->kernel]->family) continue;
        if (!lower_group(u->lowerer, c->group, NULL, &l, t->e)) {
            ok = false;
            break;
        }
        if (!number[c->kernel]) {
            struct tunable *k = &u->v[u->n];
            number[c->kernel] = ++u->n;
            k->group = c->group;
            k->device = c->device;
            k->first = k->now = *schedule_of(p->kernel[c->kernel]);
            memcpy(k->name, p->kernel[c->kernel]->name, sizeof k->name);
        }
        u->key[c->group] = l.group;
        u->of_group[c->group] = number[c->kernel];
        kernel_free(l.k);
        mem_free(l.arg);
    }
    mem_free(number);
    return ok;
}

static bool unit_open(struct tuner *t, struct unit *u, const struct graph *g, int device)
{
    const struct tuned *tuned = tuned_for(graph_devices(g) | UINT64_C(1) << device);
    *u = (struct unit){.times = 1};
    if (!measured_open(&u->m, g, device, t->e) || !exec_targets(g, device, &u->targets, t->e)) return false;
    uint32_t n = g->ngroup + 1;
    u->lowerer = lowerer_new(g, &u->targets.set, 0, NULL, NULL);
    u->key = mem_arena_alloc(&u->mem, n * sizeof *u->key);
    u->of_group = mem_arena_alloc(&u->mem, n * sizeof *u->of_group);
    u->v = mem_arena_alloc(&u->mem, n * sizeof *u->v);
    u->took = mem_arena_alloc(&u->mem, n * sizeof *u->took);
    u->wanted = mem_arena_alloc(&u->mem, n * sizeof *u->wanted);
    if (!u->lowerer || u->mem.failed) return tune_no_memory(t);
    struct program *p = program_plan_for(g, &u->targets.set, NULL, tuned, NULL, t->e);
    bool ok = p && find_tunables(t, u, p);
    program_free(p);
    return ok;
}

static void unit_close(struct unit *u)
{
    lowerer_free(u->lowerer);
    program_targets_free(&u->targets);
    mem_arena_free(&u->mem);
    measured_close(&u->m);
}

/* ---- measuring ---- */

static bool tune_sample(struct tuner *t, struct unit *u, struct variant *v, double *whole)
{
    memset(u->took, 0, u->n * sizeof *u->took);
    u->runs += u->times;
    return variant_run(v, &u->m, u->times, u->took, whole, t->e);
}

/* Sets how often kernels on devices with drivers are launched in one measured time.  *any: some are more than once. */
static void choose_launches(struct unit *u, bool *any)
{
    for (uint32_t k = 0; k < u->n; k++) {
        double times = u->v[k].seconds[0] > 0 ? LAUNCHES_SECONDS / u->v[k].seconds[0] : MAX_LAUNCHES;
        if (device_is_host(u->v[k].device)) continue;
        u->m.launches[k] = (uint16_t)(times < 1 ? 1 : times > MAX_LAUNCHES ? MAX_LAUNCHES : times);
        *any |= u->m.launches[k] > 1;
    }
}

/* Determines which kernels are tuned, how many runs make a sample, and how many launches a measured time. */
static bool first_look(struct tuner *t, struct unit *u, struct variant *now)
{
    enum { RUNS = 4 };
    double whole = 0, min = 0;
    for (int i = 0; i < RUNS; i++) {
        double began = measure_now();
        if (!tune_sample(t, u, now, &whole)) return false;
        u->sample = measure_now() - began;
        if (i == 0) continue; /* the first brings code and data into the caches */
        min = i == 1 || whole < min ? whole : min;
        for (uint32_t k = 0; k < u->n; k++) u->v[k].seconds[0] += u->took[k] / (RUNS - 1);
    }
    bool often = false;
    choose_launches(u, &often);
    double began = measure_now(), again;
    if (often && !tune_sample(t, u, now, &again)) return false;
    u->sample = often ? measure_now() - began : u->sample;
    double times = min > 0 ? SAMPLE_SECONDS / min : MAX_TIMES;
    u->times = times < 1 ? 1 : times > MAX_TIMES ? MAX_TIMES : (int)times;
    u->sample *= u->times;
    for (uint32_t k = 0; k < u->n; k++) {
        u->v[k].worth = u->v[k].seconds[0] > SHARE * whole;
        u->v[k].seconds[0] = 0;
    }
    return true;
}

/* Measures pair `number`: a sample of each program, in alternating order.  Sets each tunable's ratio: its time in
 * `second` divided by that in `first`. */
static bool tune_measure_pair(struct tuner *t, struct unit *u, struct variant *first, struct variant *second,
                              int number,
                 double *whole_ratio)
{
    double whole[2] = {0};
    for (int i = 0; i < 2; i++) {
        int which = (i + number) % 2;
        if (!tune_sample(t, u, which ? second : first, &whole[which])) return false;
        for (uint32_t k = 0; k < u->n; k++) u->v[k].seconds[which] = u->took[k];
    }
    for (uint32_t k = 0; k < u->n; k++) {
        struct tunable *x = &u->v[k];
        x->ratio[number] = x->seconds[0] > 0 ? x->seconds[1] / x->seconds[0] : 1;
    }
    whole_ratio[number] = whole[0] > 0 ? whole[1] / whole[0] : 1;
    return true;
}

/* Is the decision about a candidate final, given the median of its ratios in so many pairs? */
static bool decision_is_final(double median, int pairs)
{
    bool clear = median > HOPELESS || median < CLEARLY;
    return (pairs > 0 && median > BAD) || (pairs >= MIN_PAIRS && clear) || pairs >= SURE_PAIRS;
}

/* Lets both programs run only kernels whose candidates are not decided after so many pairs; *any: there are some. */
static bool tune_drop_decided(struct tuner *t, struct unit *u, struct variant *now, struct variant *trial, int pairs,
                              bool *any)
{
    *any = false;
    for (uint32_t k = 0; k < u->n; k++) {
        struct tunable *x = &u->v[k];
        bool open = x->trying && !x->pairs;
        if (open && decision_is_final(measure_quantile(x->ratio, pairs, 0.5), pairs)) {
            open = false;
            x->pairs = pairs;
        }
        u->wanted[k] = open;
        *any |= open;
    }
    return (variant_only(now, u->wanted, u->n) && variant_only(trial, u->wanted, u->n)) || tune_no_memory(t);
}

/* Measures the candidates of a round and marks those that are kept.  alone: the only one, which is judged by the whole
 * program. */
static bool measure_round(struct tuner *t, struct unit *u, struct variant *now, struct variant *trial,
                          const struct tunable *alone)
{
    double whole[MAX_PAIRS], ignored;
    int pairs = 0;
    bool ok = true, open = true;
    if (u->runs > MAX_RUNS && !measured_reset(&u->m, t->e)) return false;
    u->runs = u->runs > MAX_RUNS ? 0 : u->runs;
    if (!alone) ok = tune_drop_decided(t, u, now, trial, 0, &open);
    if (u->sample < WARM_SECONDS) ok = ok && tune_sample(t, u, now, &ignored) && tune_sample(t, u, trial, &ignored);
    for (; ok && open && pairs < MAX_PAIRS && (pairs < MIN_PAIRS || measure_now() < t->end); pairs++) {
        ok = tune_measure_pair(t, u, now, trial, pairs, whole);
        if (alone) open = !decision_is_final(measure_quantile(whole, pairs + 1, 0.5), pairs + 1);
        else ok = ok && tune_drop_decided(t, u, now, trial, pairs + 1, &open);
    }
    variant_all(now);
    if (!ok) return false;
    for (uint32_t k = 0; k < u->n; k++) {
        struct tunable *x = &u->v[k];
        int own = x->pairs ? x->pairs : pairs;
        double median = measure_quantile(alone ? whole : x->ratio, own, 0.5);
        x->kept = x->trying && own >= MIN_PAIRS && median < (alone ? HOPELESS : KEEP);
    }
    return true;
}

/* ---- the search ---- */

static bool was_tried(const struct tunable *k, const struct schedule *s)
{
    bool seen = !memcmp(s, &k->now, sizeof *s);
    for (uint32_t i = 0; i < k->ntried && !seen; i++) seen = !memcmp(s, &k->tried[i], sizeof *s);
    return seen;
}

/* Advances k->next to a candidate that was not measured yet, or sets k->done.  At the end of the list, a new one is
 * made if `now` has changed. */
static bool next_candidate(struct tuner *t, struct unit *u, struct tunable *k)
{
    while (!k->done) {
        while (k->next < k->nlist && was_tried(k, &k->list[k->next])) k->next++;
        if (k->next < k->nlist && k->ntried < MAX_TRIED) return true;
        k->done = !k->moved || k->ntried == MAX_TRIED;
        if (k->done) return true;
        struct lowered l;
        k->moved = false;
        k->next = 0;
        if (!lower_group(u->lowerer, k->group, &k->now, &l, t->e)) return false;
        bool ok = lower_candidates(u->lowerer, k->group, l.k, pool_threads(), k->list, &k->nlist, t->e);
        kernel_free(l.k);
        mem_free(l.arg);
        if (!ok) return false;
        int left = t->done + (int)k->nlist;
        t->total = left > t->total ? left : t->total;
    }
    return true;
}

static void take_candidate(struct tunable *k)
{
    k->trial = k->tried[k->ntried++] = k->list[k->next++];
    k->trying = true;
    k->pairs = 0;
}

/* Gives the kernels their candidates for a round.  *alone: the only one, if that changes `stream`; else NULL.  false:
 * no candidate is left, or an error in t->e. */
static bool next_round(struct tuner *t, struct unit *u, const struct tunable **alone)
{
    bool any = false;
    struct tunable *storing = NULL;
    *alone = NULL;
    for (uint32_t i = 0; i < u->n; i++) {
        struct tunable *k = &u->v[i];
        k->trying = k->kept = false;
        if (!k->worth || k->done) continue;
        if (!next_candidate(t, u, k)) return false;
        if (k->done) continue;
        if (k->list[k->next].stream != k->now.stream) {
            storing = storing ? storing : k;
            continue;
        }
        take_candidate(k);
        any = true;
    }
    if (!any && storing) {
        take_candidate(storing);
        *alone = storing;
        any = true;
    }
    return any;
}

static void keep_found(struct unit *u)
{
    for (uint32_t i = 0; i < u->n; i++) {
        struct tunable *k = &u->v[i];
        if (!k->kept) continue;
        k->now = k->trial;
        k->moved = true;
    }
}

static bool any_kept(const struct unit *u)
{
    for (uint32_t i = 0; i < u->n; i++)
        if (u->v[i].kept) return true;
    return false;
}

static bool tune_search(struct tuner *t, struct unit *u, struct variant *now)
{
    const struct tunable *alone;
    double last = 2 * MIN_PAIRS * u->sample, deciding = (2 * SURE_PAIRS + 2) * u->sample;
    while (measure_now() + last + deciding < t->end && next_round(t, u, &alone)) {
        struct variant trial;
        double began = measure_now();
        bool ok = tune_make_variant(t, u, TRIAL, &trial);
        ok = ok && (trial.merged || measure_round(t, u, now, &trial, alone));
        if (ok && any_kept(u)) {
            struct variant before = *now;
            keep_found(u);
            ok = tune_make_variant(t, u, NOW, now); /* while the old program keeps the code that both use */
            variant_free(&before);
        }
        variant_free(&trial);
        if (!ok) return false;
        t->done++;
        t->total = t->total > t->done ? t->total : t->done;
        if (t->o->progress) t->o->progress(t->o->ctx, t->done, t->total);
        last = measure_now() - began;
    }
    return !t->e->code;
}

/* Compares the original program with the tuned one and restores the schedules of kernels that are not faster. */
static bool commit_variant(struct tuner *t, struct unit *u, struct variant *now)
{
    struct variant first;
    double whole[MAX_PAIRS], ignored;
    int pairs = 0, max = 1; /* where nothing has changed, a pair says how long it takes; else in any case SURE_PAIRS */
    for (uint32_t i = 0; i < u->n; i++)
        if (memcmp(&u->v[i].now, &u->v[i].first, sizeof u->v[i].now)) max = MAX_PAIRS;
    bool ok = tune_make_variant(t, u, FIRST, &first) && measured_reset(&u->m, t->e) &&
              (max == 1 || (tune_sample(t, u, now, &ignored) && tune_sample(t, u, &first, &ignored)));
    double *min = mem_alloc((2 * u->n + 1) * sizeof *min); /* seconds of each kernel, first and now */
    ok = ok && (min || tune_no_memory(t));
    for (; ok && pairs < max && (pairs < SURE_PAIRS || measure_now() < t->end); pairs++) {
        ok = tune_measure_pair(t, u, &first, now, pairs, whole);
        for (uint32_t k = 0; k < 2 * u->n; k++)
            min[k] = pairs == 0 || u->v[k / 2].seconds[k % 2] < min[k] ? u->v[k / 2].seconds[k % 2] : min[k];
    }
    for (uint32_t i = 0; ok && i < u->n; i++) {
        struct tunable *k = &u->v[i];
        for (int w = 0; w < 2; w++) k->seconds[w] = min[2 * i + w] / u->times;
        bool changed = memcmp(&k->now, &k->first, sizeof k->now);
        bool whole_only = changed && k->now.stream != k->first.stream;
        double median = whole_only ? 0 : measure_quantile(k->ratio, pairs, 0.5);
        if (changed && (median > HOPELESS || measure_quantile(whole, pairs, 0.5) > 1)) {
            k->now = k->first;
            changed = false;
        }
        if (!changed) k->seconds[0] = k->seconds[1] = (k->seconds[0] + k->seconds[1]) / 2;
    }
    mem_free(min);
    variant_free(&first);
    return ok;
}

/* ---- what is kept ---- */

/* The key of a record that marks a program whose kernels were all tuned to the end. */
static struct hash128 mark_of(const struct graph *captured)
{
    struct { char what[16]; struct hash128 graph; } mark = {"tuned program", graph_hash(captured)};
    return bytes_hash(&mark, sizeof mark);
}

static bool is_marked(const struct exec *x)
{
    struct schedule ignored;
    const struct tuned *t = tuned_for(UINT64_C(1) << x->device);
    return t && t->find(t, mark_of(x->captured), &ignored);
}

/* The records of the kernels of a device. */
static bool keep_of_device(struct tuner *t, const struct unit *u, int device, struct tuned_record *kept)
{
    uint32_t n = 0;
    for (uint32_t group = 0; group < u->m.g->ngroup; group++) {
        const struct tunable *k = u->of_group[group] ? &u->v[u->of_group[group] - 1] : NULL;
        if (k && k->ntried && k->device == device && (k->done || memcmp(&k->now, &k->first, sizeof k->now)))
            kept[n++] = (struct tuned_record){u->key[group], k->now};
    }
    return !n || tuned_keep(device, kept, n, t->e);
}

static bool commit_tuned(struct tuner *t, const struct unit *u, struct tune_result *r)
{
    struct tuned_record *kept = mem_alloc((u->m.g->ngroup + 1) * sizeof *kept);
    bool ok = kept || tune_no_memory(t);
    for (int d = 0; ok && d < DEVICE_END; d++) ok = keep_of_device(t, u, d, kept);
    mem_free(kept);
    for (uint32_t i = 0; ok && i < u->n; i++) {
        const struct tunable *k = &u->v[i];
        r->seconds[0] += k->seconds[0];
        r->seconds[1] += k->seconds[1];
        r->complete &= !k->worth || k->done;
        if (!k->ntried) continue;
        r->kernels++;
        r->changed += memcmp(&k->now, &k->first, sizeof k->now) != 0;
        struct tune_kernel found = {k->name, k->first, k->now, {k->seconds[0], k->seconds[1]}, k->ntried, k->done};
        if (t->o->found) t->o->found(t->o->ctx, &found);
    }
    return ok;
}

static bool tune_unit(struct tuner *t, const struct graph *g, int device, struct tune_result *r)
{
    struct unit u;
    struct variant now = {0};
    const struct tuned *tuned = tuned_for(graph_devices(g) | UINT64_C(1) << device);
    bool ok = unit_open(t, &u, g, device) && u.n > 0 && tune_make_variant(t, &u, NOW, &now) && first_look(t, &u, &now);
    for (uint32_t i = 0; ok && i < u.n; i++) {
        struct schedule ignored;
        u.v[i].done = !t->o->again && tuned && tuned->find(tuned, u.key[u.v[i].group], &ignored);
        u.v[i].moved = true; /* there is no list yet */
    }
    ok = ok && tune_search(t, &u, &now) && commit_variant(t, &u, &now) && commit_tuned(t, &u, r);
    variant_free(&now);
    bool empty = !t->e->code && !u.n;
    unit_close(&u);
    return ok || empty;
}

/* Tunes a graph and its regions until `end`.  Regions have the smaller part of the time: how often each of them runs is
 * not known. */
static bool tune_graph(struct tuner *t, const struct graph *g, int device, double end, struct tune_result *r)
{
    double now = measure_now();
    t->end = g->nregion ? now + 0.7 * (end - now) : end;
    bool ok = !g->ngroup || tune_unit(t, g, device, r);
    for (uint32_t i = 0; ok && i < g->nregion; i++) {
        now = measure_now();
        ok = tune_graph(t, g->region[i], device, now + (end - now) / (g->nregion - i), r);
    }
    return ok;
}

static bool has_compiled(const struct program *p, uint64_t interpreted)
{
    bool any = false;
    for (uint32_t i = 0; i < p->ncmd && !any; i++) {
        const struct command *c = &p->cmd[i];
        any = c->kind == CMD_KERNEL && !(interpreted >> c->device & 1);
        for (int k = 0; k < 2 && !any; k++) any = c->sub[k] && has_compiled(c->sub[k], interpreted);
    }
    return any;
}

static bool tuning_is_enabled(const struct exec *x, struct err *e)
{
    const char *name = x->captured->name;
    if (x->captured->symbols)
        return err_set(e, KL_ERR_ARGUMENT, "tune: graph %s has symbols; only lengths that are numbers are tuned",
                       name);
    if (x->schedules)
        return err_set(e, KL_ERR_ARGUMENT, "tune: graph %s has user-supplied schedules, which hold in any case",
                       name);
    return has_compiled(x->program, x->interpreted) ||
           err_set(e, KL_ERR_DEVICE, "tune: graph %s has no kernel that a code generator compiles for device %s", name,
                   device_name(x->device));
}

bool tune_program(const struct exec *x, const struct tune_options *o, struct tune_result *r, struct err *e)
{
    struct tuner t = {.o = o, .e = e, .total = 1};
    *r = (struct tune_result){.complete = true};
    if (!tuning_is_enabled(x, e) || !tuned_can_keep(e)) return false;
    if (o->seconds <= 0) return !(r->complete = false);
    bool ok = tune_graph(&t, x->program->g, x->device, measure_now() + o->seconds, r);
    struct tuned_record mark = {.group = mark_of(x->captured)};
    if (ok && r->complete) ok = tuned_keep(x->device, &mark, 1, e);
    if (ok && r->changed) exec_outdate(x);
    return ok;
}

/* ---- option tune ---- */

static void say_progress(void *ctx, int done, int total)
{
    measure_progress_lines(ctx, "tuning", done, total);
}

const struct exec *tune_repeated(const struct exec *x)
{
    static _Thread_local bool tuning;
    struct err e = {0};
    struct tune_result r;
    if (tuning || atomic_exchange(&((struct exec *)x)->tuned, true) || !x->fuse || x->base || x->schedules ||
        !tuning_is_enabled(x, &e) || is_marked(x)) return x;
    bool aloud = environment_switch("KILN_TUNE", false);
    double line = measure_now(), began = line;
    struct tune_options o = {.seconds = option_tune_seconds(), .progress = aloud ? say_progress : NULL, .ctx = &line};
    const char *name = x->captured->name;
    tuning = true;
    bool ok = tune_program(x, &o, &r, &e);
    const struct exec *tuned = ok && r.changed ? exec_get(x->captured, x->device, true, &e) : NULL;
    tuning = false;
    /* once in a process, even if there was no time for all candidates */
    if (tuned) atomic_store(&((struct exec *)tuned)->tuned, true);
    char text[256];
    if (ok)
        format_text(text, sizeof text,
                    "tuned %s in %.1f s: %u of %u kernels have other schedules, %.2f ms -> %.2f ms%s", name,
                    measure_now() - began, r.changed, r.kernels, 1e3 * r.seconds[0], 1e3 * r.seconds[1],
                    r.complete ? "" : "; there was no time for all");
    else
        format_text(text, sizeof text, "%s is not tuned: %s", name, e.msg);
    if (aloud) fprintf(stderr, "kiln: %s\n", text);
    log_put(ok ? KL_LOG_INFO : KL_LOG_WARN, "%s", text);
    if (!tuned) return x;
    exec_unref(x);
    return tuned;
}
