/* States that their next value may overwrite: nothing reads the old value later, and the kernel that writes the new one
 * reads each old element only before it stores the new one there.
 *
 * A kernel of many parts (passes/fuse/fuse_parts.c) writes many states.  Where its loads and stores are is found once
 * for all of them. */
#include "plan.h"
#include <stdatomic.h>

/* The loads and stores of a kernel, as lists in ascending order; 0 ends them. */
struct kernel_accesses {
    const val *load, *next_load;      /* per lbuf: its loads */
    const val *store, *next_store;    /* per value: the stores at that index */
};

struct in_place_search {
    struct planner *p;
    uint64_t steps;                   /* instructions visited */
};

static void list_accesses(const struct kernel *k, val *load, val *next_load, val *store, val *next_store)
{
    for (val v = k->ninst; v-- > 1;) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_LOAD && i->imm < k->nbuf) {
            next_load[v] = load[i->imm];
            load[i->imm] = v;
        } else if (i->op == L_STORE) {
            next_store[v] = store[i->a];
            store[i->a] = v;
        }
    }
}

/* One array has all four lists; false: out of memory. */
static bool find_accesses(struct in_place_search *w, uint32_t kernel, struct kernel_accesses *a)
{
    const struct kernel *k = w->p->root->p->kernel[kernel];
    struct kernel_facts *f = plan_kernel_facts(w->p, kernel);
    if (!f)
        return false;
    bool known = f->access;
    if (!known && !(f->access = mem_alloc((k->nbuf + 3 * (size_t)k->ninst) * sizeof *f->access)))
        return plan_no_memory(w->p);
    val *load = f->access, *next_load = load + k->nbuf, *store = next_load + k->ninst, *next_store = store + k->ninst;
    if (!known) {
        list_accesses(k, load, next_load, store, next_store);
        w->steps += k->ninst;
    }
    *a = (struct kernel_accesses){load, next_load, store, next_store};
    return true;
}

static bool in_phases(const struct kernel *k)
{
    struct phase p = {0};
    return kernel_phase(k, &p) && kernel_phase(k, &p);
}

/* Does the kernel read lbuf `in` only at elements that the same iteration overwrites through lbuf `out` afterwards?  A
 * scatter of one phase stores an element repeatedly: its first store there must be the value it read. */
static bool reads_what_it_writes(struct in_place_search *w, uint32_t kernel, uint32_t in, uint32_t out)
{
    const struct kernel *k = w->p->root->p->kernel[kernel];
    struct kernel_accesses a = {0};
    uint32_t reader, writer;
    in = kernel_first_buffer(k, in, &reader);
    out = kernel_first_buffer(k, out, &writer);
    if (reader != writer || !find_accesses(w, kernel, &a))
        return false;
    for (val v = a.load[in]; v; v = a.next_load[v]) {
        val s = a.store[k->inst[v].a];
        for (; s && k->inst[s].imm != out; s = a.next_store[s])
            w->steps++;
        w->steps++;
        if (s < v || (sched_is_scatter(k->sched.kind) && k->inst[s].b != v && !in_phases(k)) ||
            load_elements(k, &k->inst[v]) > 1)
            return false;
    }
    return true;
}

bool plan_kernel_overwrites(struct planner *p, uint32_t kernel, uint32_t in, uint32_t out)
{
    struct in_place_search w = {.p = p};
    bool may = reads_what_it_writes(&w, kernel, in, out);
    atomic_fetch_add_explicit(&pass_steps, w.steps, memory_order_relaxed);
    return may;
}

/* May node `value` overwrite the state that the kernel at this position reads as argument `in`? */
static bool allows_overwrite(struct in_place_search *w, uint32_t pos, uint32_t in, ref value)
{
    const struct planner *p = w->p;
    const struct lowered *l = &p->low[p->order[pos]];
    if (p->non_fusible[p->order[pos]])
        return false; /* a region may read anything in any iteration */
    uint32_t kernel = p->p->cmd[p->first_kernel + pos].kernel;
    const struct kernel *k = p->root->p->kernel[kernel];
    for (uint32_t b = 0; b < k->nbuf; b++) {
        if (k->buf[b].role != BUF_IN || k->buf[b].id != in)
            continue;
        for (uint32_t out = 0; out < k->nbuf; out++)
            if (k->buf[out].role == BUF_OUT && l->arg[k->buf[out].id].node == value &&
                !reads_what_it_writes(w, kernel, b, out))
                return false;
    }
    return true;
}

/* May output i, an assign, overwrite the state's old value? Nothing may read the state later. */
static bool may_be_in_place(struct in_place_search *w, uint32_t i)
{
    const struct planner *p = w->p;
    const struct output *o = &p->g->out[i];
    const struct value *v = &p->value[node_stored(p->g, o->value)];
    if (o->kind != OUT_ASSIGN || !v->node || v->loc.kind != LOC_OUT || v->loc.index != i)
        return false;
    for (uint32_t r = plan_readers_of(p, o->state); r < p->nreader && p->reader[r].state == o->state; r++) {
        uint32_t pos = p->reader[r].position;
        if (p->first_kernel + pos > v->first || p->signal[p->reader[r].group])
            return false;
        const struct lowered *l = &p->low[p->reader[r].group];
        for (uint32_t a = 0; p->first_kernel + pos == v->first && a < l->narg; a++) {
            const struct node *n = &p->g->node[l->arg[a].node];
            if (n->op == OP_state && n->attr.leaf.index == o->state && !allows_overwrite(w, pos, a, v->node))
                return false;
        }
    }
    return true;
}

bool plan_in_place(struct planner *p)
{
    struct in_place_search w = {.p = p};
    for (uint32_t i = 0; i < p->g->nout && !p->e->code; i++)
        p->p->in_place[i] = may_be_in_place(&w, i);
    atomic_fetch_add_explicit(&pass_steps, w.steps, memory_order_relaxed);
    return !p->e->code;
}
