/* The readers of states, before the groups that overwrite them.
 *
 * A reader is to run before the group that writes the state's next value, so that this can be in place, unless it
 * depends on that group.  A topological order of the groups, as ranks, is kept while such edges are added: what is
 * ranked behind the reader is on no path to it.  If the writer is ranked before the reader, the groups found on the
 * search forward from it move behind the reader, as in Pearce and Kelly, A Dynamic Topological Sort Algorithm for
 * Directed Acyclic Graphs (2006).  Gaps between ranks make it possible to move these alone. */
#include "plan.h"
#include <stdatomic.h>
#include <stdlib.h>

enum { MAX_SEARCH = 4096 }; /* groups that a search for a path visits before it assumes that there is one */
static const uint64_t GAP = UINT64_C(1) << 30;

/* Per group; the order as a list, which begins and ends at number ngroup. */
struct group_rank { uint64_t rank; uint32_t before, after; };

struct reader_search {
    struct planner *p;
    struct group_rank *at;
    uint32_t *found, nfound;  /* by the last search, the writer included */
    uint64_t steps;           /* groups and edges visited */
};

static int by_state(const void *a, const void *b)
{
    const struct reader *x = a, *y = b;
    return x->state != y->state ? (x->state > y->state) - (x->state < y->state)
        : (x->group > y->group) - (x->group < y->group);
}

/* Lists the readers of states. */
static bool find_readers(struct planner *p)
{
    for (uint32_t i = 0; i < p->g->ngroup; i++)
        for (uint32_t a = 0; a < p->low[i].narg; a++) {
            const struct node *n = &p->g->node[p->low[i].arg[a].node];
            if (n->op != OP_state)
                continue;
            if (!mem_reserve(&p->reader, &p->reader_cap, p->nreader + 1, sizeof *p->reader))
                return plan_no_memory(p);
            p->reader[p->nreader++] = (struct reader){.state = n->attr.leaf.index, .group = i};
        }
    if (p->nreader)
        qsort(p->reader, p->nreader, sizeof *p->reader, by_state);
    return true;
}

uint32_t plan_readers_of(const struct planner *p, uint32_t state)
{
    uint32_t lo = 0, hi = p->nreader;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (p->reader[mid].state < state)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The group that computes output i's value directly into its buffer, GROUP_NONE if it is copied there. */
static uint32_t writer_of(const struct planner *p, uint32_t i)
{
    bool linear;
    ref r = node_source(p->g, p->g->out[i].value, &linear);
    return linear ? p->g->group[r] : p->g->group[p->g->out[i].value];
}

static void rank_link(struct reader_search *s, uint32_t group, uint32_t before)
{
    struct group_rank *x = &s->at[group];
    x->before = before;
    x->after = s->at[before].after;
    s->at[before].after = s->at[x->after].before = group;
}

static void rank_unlink(struct reader_search *s, uint32_t group)
{
    s->at[s->at[group].before].after = s->at[group].after;
    s->at[s->at[group].after].before = s->at[group].before;
}

static void rank_all(struct reader_search *s)
{
    uint64_t rank = 0;
    for (uint32_t n = s->p->g->ngroup, i = s->at[n].after; i != n; i = s->at[i].after)
        s->at[i].rank = rank += GAP;
}

/* Makes the order, near that of recording; false: out of memory.  The dependences have no cycle. */
static bool search_begin(struct reader_search *s, struct planner *p)
{
    uint32_t n = p->g->ngroup, ready = 0, *pending = mem_alloc((n + 1) * sizeof *pending);
    *s = (struct reader_search){.p = p, .at = mem_alloc((n + 1) * sizeof *s->at),
                         .found = mem_alloc((MAX_SEARCH + 1) * sizeof *s->found)};
    if (!pending || !s->at || !s->found) {
        mem_free(pending);
        return plan_no_memory(p);
    }
    s->at[n] = (struct group_rank){.before = n, .after = n};
    for (uint32_t i = n; i-- > 0;)
        if (!(pending[i] = p->pending[i]))
            plan_heap_push(p->stack, &ready, i);
    while (ready) {
        uint32_t next = plan_heap_pop(p->stack, &ready);
        rank_link(s, next, s->at[n].before);
        for (uint32_t i = 0; i < p->succ[next].n; i++)
            if (!--pending[p->succ[next].v[i]])
                plan_heap_push(p->stack, &ready, p->succ[next].v[i]);
    }
    mem_free(pending);
    rank_all(s);
    return true;
}

static void search_end(struct reader_search *s)
{
    mem_free(s->at);
    mem_free(s->found);
    atomic_fetch_add_explicit(&pass_steps, s->steps, memory_order_relaxed);
}

/* Does `to`, which is ranked behind `from`, depend on it?  Yes if the search is too long. */
static bool search_path(struct reader_search *s, uint32_t from, uint32_t to)
{
    struct planner *p = s->p;
    s->nfound = 0;
    s->found[s->nfound++] = from;
    p->seen[from] = ++p->stamp;
    for (uint32_t next = 0; next < s->nfound; next++)
        for (uint32_t i = 0, at = s->found[next]; i < p->succ[at].n; i++, s->steps++) {
            uint32_t x = p->succ[at].v[i];
            if (x == to)
                return true;
            if (p->seen[x] == p->stamp || s->at[x].rank > s->at[to].rank)
                continue;
            if (s->nfound == MAX_SEARCH)
                return true;
            p->seen[x] = p->stamp;
            s->found[s->nfound++] = x;
        }
    return false;
}

static int by_rank(const void *a, const void *b)
{
    const struct group_rank *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Moves what the search found behind group `to`, in its order; false: out of memory. */
static bool rank_move_found(struct reader_search *s, uint32_t to)
{
    struct group_rank *v = mem_alloc(s->nfound * sizeof *v); /* before: the group */
    if (!v)
        return plan_no_memory(s->p);
    for (uint32_t i = 0; i < s->nfound; i++) {
        v[i] = (struct group_rank){.rank = s->at[s->found[i]].rank, .before = s->found[i]};
        rank_unlink(s, s->found[i]);
    }
    qsort(v, s->nfound, sizeof *v, by_rank);
    uint32_t next = s->at[to].after, n = s->p->g->ngroup;
    uint64_t low = s->at[to].rank, high = next == n ? low + (s->nfound + 1) * GAP : s->at[next].rank;
    uint64_t gap = (high - low) / (s->nfound + 1);
    for (uint32_t i = 0; i < s->nfound; to = v[i++].before) {
        rank_link(s, v[i].before, to);
        s->at[v[i].before].rank = low + (i + 1) * gap;
    }
    mem_free(v);
    if (!gap)
        rank_all(s);
    return true;
}

/* Puts the reader before the writer, unless it depends on it; false: out of memory. */
static bool reader_put_before(struct reader_search *s, uint32_t reader, uint32_t writer)
{
    if (s->at[writer].rank < s->at[reader].rank) {
        if (search_path(s, writer, reader))
            return true;
        if (!rank_move_found(s, reader))
            return false;
    }
    return plan_add_edge(s->p, reader, writer);
}

/* The other readers of a state run before the group that overwrites it. */
bool plan_readers(struct planner *p)
{
    struct reader_search s = {0};
    bool ok = find_readers(p) && search_begin(&s, p);
    for (uint32_t i = 0; ok && i < p->g->nout; i++) {
        uint32_t w = p->g->out[i].kind == OUT_ASSIGN ? writer_of(p, i) : GROUP_NONE, state = p->g->out[i].state;
        for (uint32_t r = plan_readers_of(p, state); ok && w != GROUP_NONE && r < p->nreader; r++) {
            if (p->reader[r].state != state)
                break;
            ok = p->reader[r].group == w || reader_put_before(&s, p->reader[r].group, w);
        }
    }
    search_end(&s);
    return ok;
}
