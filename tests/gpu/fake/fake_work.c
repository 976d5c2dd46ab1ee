/* Lists of work, and the handles that a driver has given out and not taken back: others are refused. */
#include "fake_work.h"
#include <stdlib.h>
#include <string.h>

/* ---- lists of work ---- */

void list_add(struct list *l, struct work *w)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        l->v = realloc(l->v, l->cap * sizeof *l->v);
    }
    l->v[l->n++] = w;
}

struct work *work_copy(const struct work *w)
{
    struct work *c = malloc(sizeof *c + w->n * sizeof *w->parameter);
    memcpy(c, w, sizeof *c + w->n * sizeof *w->parameter);
    return c;
}

void list_free(struct list *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        free(l->v[i]);
    free(l->v);
    *l = (struct list){0};
}

/* ---- handles: of streams, events, modules, graphs and pinned memory; few of each are in use at a time ---- */

static struct { enum live_kind kind; const void *handle; } *live;
static uint32_t lives, lives_cap;

static uint32_t live_find(enum live_kind kind, const void *handle)
{
    uint32_t i = lives; /* the last ones are asked for most */
    while (i-- > 0)
        if (live[i].handle == handle && live[i].kind == kind)
            return i;
    return lives;
}

void live_add(enum live_kind kind, const void *handle)
{
    if (lives == lives_cap) {
        lives_cap = lives_cap ? 2 * lives_cap : 64;
        live = realloc(live, lives_cap * sizeof *live);
    }
    live[lives].kind = kind;
    live[lives++].handle = handle;
}

bool live_has(enum live_kind kind, const void *handle) { return handle && live_find(kind, handle) < lives; }

bool live_remove(enum live_kind kind, const void *handle)
{
    uint32_t i = handle ? live_find(kind, handle) : lives;
    if (i == lives)
        return false;
    live[i] = live[--lives];
    return true;
}
