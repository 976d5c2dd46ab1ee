/* States of a program run: their buffers are acquired before the run and rebound to the new values after it. */
#include "frontend/frontend.h"

/* Waits until every state has a value and none is being written to; needs the lock and may release it temporarily. */
static bool launch_resolve(const struct launch *l, struct err *e)
{
    for (uint32_t i = 0; i < l->nbound;) {
        const struct entry *x = l->bound[i].entry;
        if (!entry_has(x, l->bound[i].h))
            return err_set(e, KL_ERR_HANDLE, "state \"%s\" was released%s", l->g->state.v[i].name,
                           l->frozen ? "" : " by another thread");
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
    l->assigns = false;
    for (uint32_t i = 0; i < l->nbound; i++) {
        if (!l->bound[i].assigned)
            continue;
        l->assigns = true;
        shared |= !buffer_exclusive(l->bound[i].entry->buffer);
    }
    if (shared)
        deferred_collect();
    for (uint32_t i = 0; i < l->nbound; i++) {
        const struct binding *b = &l->bound[i];
        l->exclusive[i] = b->assigned && may_overwrite(b->entry->buffer);
        l->state[i] = buffer_ref(b->entry->buffer);
        if (b->assigned)
            b->entry->busy = true;
    }
    return true;
}

void launch_unmark(struct launch *l)
{
    if (!l->assigns)
        return;
    for (uint32_t i = 0; i < l->nbound; i++) {
        if (!l->bound[i].assigned)
            continue;
        front_drop(l->state[i]); /* before the next run asks whether it may overwrite the value */
        l->state[i] = NULL;
        l->bound[i].entry->busy = false;
    }
    front_wake();
}

void launch_drop(struct launch *l)
{
    for (uint32_t i = 0; i < l->nbound; i++)
        buffer_unref(l->state[i]);
}

void launch_commit(struct launch *l, struct entry *const *kept)
{
    const struct graph *g = l->g;
    for (uint32_t i = 0; i < g->nout; i++) {
        const struct output *o = &g->out[i];
        struct entry *x;
        if (o->kind == OUT_ASSIGN) {
            x = l->bound[o->state].entry;
            deferred_unbind(x); /* lazily recorded nodes keep the old version */
            front_drop(x->buffer);
            x->version++;
        } else if (i >= l->nkept) {
            buffer_unref(l->out[i]); /* never the user's own memory */
            continue;
        } else {
            const struct node *n = node_at(g, o->value);
            x = kept[i];
            x->dtype = n->dtype;
            x->device = n->device;
            x->shape = g->symbols ? symbolic_actual(g, &g->shape[n->shape], l->slot) : g->shape[n->shape];
            x->kind = KIND_VALUE;
        }
        x->buffer = l->out[i];
    }
}
