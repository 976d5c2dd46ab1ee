/* States of a program run: their buffers are acquired before the run and rebound to the new values after it. */
#include "frontend/frontend.h"

/* Looks up a state; needs the lock. */
static struct entry *state_entry(const struct launch *l, uint32_t i, struct err *e)
{
    struct entry *x = entry_find(l->bound[i].h, "", e);
    if (!x) {
        e->code = KL_OK;
        err_set(e, KL_ERR_HANDLE, "state \"%s\" was released%s", l->g->state.v[i].name,
                l->frozen ? "" : " by another thread");
    }
    return x;
}

/* Waits until every state has a value and none is being written to; needs the lock and may release it temporarily. */
static bool launch_resolve(const struct launch *l, struct err *e)
{
    for (uint32_t i = 0; i < l->nbound;) {
        struct entry *x = state_entry(l, i, e);
        if (!x)
            return false;
        if (!x->buffer) {
            /* One program computes all lazy states; the rest of h is unused. */
            kl_tensor *h = mem_alloc(l->nbound * sizeof *h);
            for (uint32_t j = 0; h && j < l->nbound; j++)
                h[j] = l->bound[j].h;
            bool ok = h ? deferred_compute(h, l->nbound, e) : err_set(e, KL_ERR_MEMORY, "out of memory");
            mem_free(h);
            if (!ok)
                return false;
            i = 0;
        } else if (x->busy) {
            if (!front_wait_cancellable(e))
                return false;
            i = 0;
        } else {
            i++;
        }
    }
    return true;
}

static bool may_overwrite(const struct buffer *b)
{
    return buffer_exclusive(b) && !b->release; /* never the user's own memory */
}

/* Old versions that only unreachable lazy nodes hold are released first, so that updates are in place. */
bool launch_take(struct launch *l, struct err *e)
{
    if (!launch_resolve(l, e))
        return false;
    bool shared = false;
    for (uint32_t i = 0; i < l->nbound; i++)
        shared |= l->bound[i].assigned && !buffer_exclusive(entry_at((uint32_t)l->bound[i].h.id)->buffer);
    if (shared)
        deferred_collect();
    for (uint32_t i = 0; i < l->nbound; i++) {
        struct binding *b = &l->bound[i];
        struct entry *x = entry_at((uint32_t)b->h.id);
        l->exclusive[i] = b->assigned && may_overwrite(x->buffer);
        l->state[i] = b->buffer = buffer_ref(x->buffer);
        x->busy = b->assigned;
    }
    return true;
}

void launch_release(struct launch *l)
{
    bool any = false;
    for (uint32_t i = 0; i < l->nbound; i++) {
        struct binding *b = &l->bound[i];
        front_drop(b->buffer);
        b->buffer = NULL;
        if (b->assigned)
            entry_at((uint32_t)b->h.id)->busy = false, any = true;
    }
    if (any)
        front_wake();
}

void launch_commit(struct launch *l, struct entry *const *kept)
{
    const struct graph *g = l->g;
    for (uint32_t i = 0; i < g->nout; i++) {
        const struct output *o = &g->out[i];
        struct entry *x;
        if (o->kind == OUT_ASSIGN) {
            x = entry_at((uint32_t)l->bound[o->state].h.id);
            deferred_unbind(x); /* lazily recorded nodes keep the old version */
            front_drop(x->buffer);
            x->version++;
        } else if (i >= l->nkept) {
            front_drop(l->out[i]);
            continue;
        } else {
            const struct node *n = node_at(g, o->value);
            x = kept[i];
            x->dtype = n->dtype;
            x->device = n->device;
            x->shape = symbolic_actual(g, &g->shape[n->shape], l->slot);
            x->kind = KIND_VALUE;
        }
        x->buffer = l->out[i];
    }
}
