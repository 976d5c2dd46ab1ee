/* CUDA and HIP: lists of commands that come again, as graphs.  The first time a list is given one by one; the second
 * time it is captured, and from then on it is one call.  Lists are compared word by word: addresses and iterations are
 * among the words, the slots' values are not. */
#include "stream.h"
#include <string.h>

enum { SHORTEST = 3 };            /* commands: fewer cost less one by one */

static void stream_graph_forget(struct driver_device *d, struct captured *c)
{
    if (c->exec)
        d->l->exec_free(c->exec);
    mem_free(c->word);
    *c = (struct captured){0};
}

void stream_forget_graphs(struct driver_device *d)
{
    for (unsigned i = 0; i < CAPTURED; i++)
        stream_graph_forget(d, &d->captured[i]);
}

static struct captured *stream_graph_find(struct driver_device *d, struct hash128 key)
{
    for (unsigned i = 0; i < CAPTURED; i++) {
        struct captured *c = &d->captured[i];
        if (c->exec && c->key.lo == key.lo && c->key.hi == key.hi && c->n == d->nword &&
            !memcmp(c->word, d->word, c->n * sizeof *c->word))
            return c;
    }
    return NULL;
}

/* Was the list given before?  From here on it was. */
static bool seen(struct driver_device *d, uint64_t key)
{
    uint64_t *at = &d->seen[key % SEEN];
    bool yes = *at == key;
    *at = key;
    return yes;
}

static struct captured *least_used(struct driver_device *d)
{
    struct captured *least = &d->captured[0];
    for (unsigned i = 1; i < CAPTURED; i++)
        if (d->captured[i].used < least->used)
            least = &d->captured[i];
    return least;
}

/* NULL: there is no room for one, or the driver cannot; then it is not asked again. */
static struct captured *capture(struct driver_device *d, struct hash128 key)
{
    struct captured *c = least_used(d);
    gpu_graph graph = NULL;
    stream_graph_forget(d, c);
    *c = (struct captured){.key = key, .n = d->nword, .word = mem_alloc(d->nword * sizeof *c->word)};
    gpu_result r = c->word ? d->l->capture_begin(d->stream, GPU_CAPTURE_THREAD) : GPU_OUT_OF_MEMORY;
    if (!r) {
        r = stream_issue(d);
        gpu_result ended = d->l->capture_end(d->stream, &graph);
        r = r ? r : ended;
    }
    r = r ? r : d->l->exec_new(&c->exec, graph, 0);
    if (graph)
        d->l->graph_free(graph);
    if (!r) {
        memcpy(c->word, d->word, d->nword * sizeof *c->word);
        return c;
    }
    c->exec = NULL;
    stream_graph_forget(d, c);
    d->no_graphs = r != GPU_OUT_OF_MEMORY;
    return NULL;
}

bool stream_replay(struct driver_device *d, bool *done, struct err *e)
{
    *done = false;
    if (d->no_graphs || d->ncommand < SHORTEST)
        return true;
    struct hash128 key = bytes_hash(d->word, d->nword * sizeof *d->word);
    struct captured *c = stream_graph_find(d, key);
    if (!c && seen(d, key.lo))
        c = capture(d, key);
    if (!c)
        return true;
    c->used = ++d->clock;
    *done = true;
    return stream_ok(d, d->l->exec_launch(c->exec, d->stream), "running a captured step", e);
}
