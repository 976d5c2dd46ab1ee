/* Other schedules for a kernel: what a tuner (runtime/program/tune.c) measures.
 *
 * Each family proposes variations of the schedule that the kernel has, one or two fields at a time.  A tuner that
 * starts again from a schedule that it has found reaches combinations without trying all of them.  Each proposal is
 * lowered.  Those that lowering refuses for the group, and those that give the same kernel, are dropped. */
#include "propose.h"
#include <string.h>

void propose_schedule(struct proposals *p, struct schedule s)
{
    bool known = !memcmp(&s, &p->own, sizeof s);
    for (uint32_t i = 0; i < p->n && !known; i++)
        known = !memcmp(&s, &p->v[i], sizeof s);
    if (!known && p->n < MAX_PROPOSALS)
        p->v[p->n++] = s;
}

/* Sizes of a task: one for each thread, four for each, four times and a quarter of what it is, and all in one. */
static void propose_grains(struct proposals *p)
{
    int64_t extent = p->k->extent, share = (extent + p->threads - 1) / p->threads, now = p->own.grain;
    const int64_t choices[] = {share, (share + 3) / 4, now <= INT64_MAX / 4 ? 4 * now : now, now / 4, 0};
    for (unsigned i = 0; i < sizeof choices / sizeof *choices && p->threads > 1 && extent > 1; i++) {
        struct schedule s = p->own;
        s.grain = choices[i];
        bool one_task = s.grain == 0 || s.grain >= extent, is_one = now == 0 || now >= extent;
        if (choices[i] > 0 ? s.grain < extent : !one_task || !is_one)
            propose_schedule(p, s);
    }
}

static void (*const propose_by_family[SCHED_COUNT])(struct proposals *p) = {
#define FAMILY(KIND, word, group, fits, legal, propose) propose_##propose,
#include "passes/lower/families.def"
};

/* Lowers the group as `wanted` says: *got is the schedule with the fields that it leaves open, *hash the kernel's.
 * *had: it is legal for the group.  false: out of memory, *e. */
static bool try_schedule(struct lowerer *s, uint32_t group, const struct schedule *wanted, struct schedule *got,
                         struct hash128 *hash, bool *had, struct err *e)
{
    struct lowered l;
    struct err why = {0};
    *had = false;
    if (!lower_group(s, group, wanted, &l, &why))
        return why.code != KL_ERR_MEMORY || err_set(e, KL_ERR_MEMORY, "%s", why.msg);
    *got = *schedule_of(l.k);
    *hash = kernel_hash(l.k);
    *had = true;
    kernel_free(l.k);
    mem_free(l.arg);
    return true;
}

bool lower_candidates(struct lowerer *s, uint32_t group, const struct kernel *k, unsigned threads, struct schedule *out,
                      uint32_t *n, struct err *e)
{
    struct hash128 seen[MAX_CANDIDATES + 1] = {kernel_hash(k)};
    struct proposals p = {.k = k, .own = *schedule_of(k), .threads = threads ? threads : 1};
    uint32_t nseen = 1;
    lowerer_look(s, group, &p.g, &p.caps, &p.anchor, &p.members);
    propose_by_family[p.own.kind](&p);
    if (!p.caps->is_gpu)
        propose_grains(&p);
    *n = 0;
    for (uint32_t i = 0; i < p.n && *n < MAX_CANDIDATES; i++) {
        struct schedule got, again;
        struct hash128 hash, same;
        bool had, fixed;
        if (!try_schedule(s, group, &p.v[i], &got, &hash, &had, e))
            return false;
        for (uint32_t j = 0; j < nseen && had; j++)
            had = seen[j].lo != hash.lo || seen[j].hi != hash.hi;
        if (!had)
            continue;
        /* the whole record, as it will be kept, must give the same kernel */
        if (!try_schedule(s, group, &got, &again, &same, &fixed, e))
            return false;
        if (!fixed || same.lo != hash.lo || same.hi != hash.hi)
            continue;
        seen[nseen++] = hash;
        out[(*n)++] = got;
    }
    return true;
}
