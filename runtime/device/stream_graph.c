/* CUDA and HIP: sequences of kernels as graphs.  When a sequence occurs for the first time, its kernels are launched
 * one by one.  The second time a graph is made of them, and from then on one call launches all of them.  Two sequences
 * are equal if their functions are, with the same numbers of threads.  Addresses of inputs, results and slots may
 * differ, and so may numbers of blocks and of iterations, which depend on symbols: they are set in the graph before a
 * launch, which does not affect launches that have begun. */
#include "stream.h"
#include <string.h>

enum { SHORTEST = 3 };            /* number of kernels; shorter sequences take less time without a graph */

static void stream_graph_forget(struct driver_device *d, struct captured *c)
{
    if (c->exec && c->running)    /* a graph must not be freed while it runs */
        d->l->stream_finish(d->stream);
    if (c->exec)
        d->l->exec_free(c->exec);
    if (c->graph)
        d->l->graph_free(c->graph);
    mem_free(c->word);
    mem_free(c->node);
    *c = (struct captured){0};
}

void stream_forget_graphs(struct driver_device *d)
{
    for (unsigned i = 0; i < CAPTURED; i++)
        stream_graph_forget(d, &d->captured[i]);
}

void stream_graphs_ended(struct driver_device *d)
{
    for (unsigned i = 0; i < CAPTURED; i++)
        d->captured[i].running = false;
}

/* ---- comparing sequences ---- */

enum { HEAD = 3 };                /* words of a kernel before its parameters */

/* The words that make kernels equal: number of parameters, function, threads and shared memory. */
struct same { uint64_t word[HEAD]; };

static struct same kernel_same_words(const uint64_t *w) { return (struct same){{w[0], w[1], w[2] >> 32}}; }

static bool same_hash(struct hash128 a, struct hash128 b) { return a.lo == b.lo && a.hi == b.hi; }

static struct hash128 kernels_key(const uint64_t *word, uint32_t n)
{
    struct hash128 h = {n, 0};
    for (const uint64_t *w = word; w < word + n; w += kernel_words(w)) {
        struct { struct hash128 before; struct same own; } all = {h, kernel_same_words(w)};
        h = bytes_hash(&all, sizeof all);
    }
    return h;
}

static bool same_kernels(const uint64_t *a, const uint64_t *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += kernel_words(a + i)) {
        struct same x = kernel_same_words(a + i), y = kernel_same_words(b + i);
        if (memcmp(&x, &y, sizeof x))
            return false;
    }
    return true;
}

static struct captured *stream_graph_find(struct driver_device *d, struct hash128 key, const uint64_t *word, uint32_t n)
{
    for (unsigned i = 0; i < CAPTURED; i++) {
        struct captured *c = &d->captured[i];
        if (c->exec && same_hash(c->key, key) && c->n == n && same_kernels(c->word, word, n))
            return c;
    }
    return NULL;
}

/* Has the sequence occurred before?  If not, adds it to the last SEEN ones. */
static bool sequence_seen_before(struct driver_device *d, struct hash128 key)
{
    uint32_t at = 0;
    while (at < d->nseen && !same_hash(d->seen[at], key))
        at++;
    bool yes = at < d->nseen;
    if (!yes && d->nseen < SEEN)
        d->nseen++;
    at = at < SEEN ? at : SEEN - 1;
    memmove(d->seen + 1, d->seen, at * sizeof *d->seen);
    d->seen[0] = key;
    return yes;
}

/* ---- making graphs and setting arguments ---- */

static struct captured *least_used(struct driver_device *d)
{
    struct captured *min = &d->captured[0];
    for (unsigned i = 1; i < CAPTURED; i++)
        if (d->captured[i].used < min->used)
            min = &d->captured[i];
    return min;
}

/* The kernel at w; `parameter` receives pointers to its parameters. */
static struct graph_kernel graph_kernel(uint64_t *w, void **parameter)
{
    kernel_addresses(w, parameter);
    return (struct graph_kernel){(gpu_function)(uintptr_t)w[1], (unsigned)w[2], kernel_threads(w), kernel_shared(w),
                                 parameter};
}

static gpu_result make_graph(struct driver_device *d, struct captured *c)
{
    void *parameter[MAX_PARAMETERS];
    gpu_result r = d->l->graph_new(&c->graph, 0);
    uint32_t made = 0;
    for (uint64_t *w = c->word; w < c->word + c->n && !r; w += kernel_words(w), made++) {
        struct graph_kernel k = graph_kernel(w, parameter);
        r = d->l->node_add(&c->node[made], c->graph, made ? &c->node[made - 1] : NULL, &k);
    }
    return r ? r : d->l->exec_new(&c->exec, c->graph, 0);
}

/* NULL: out of memory, or the driver fails; then no graphs are made any more. */
static struct captured *sequence_capture(struct driver_device *d, struct hash128 key, const uint64_t *word, uint32_t n,
                                uint32_t kernels)
{
    struct captured *c = least_used(d);
    stream_graph_forget(d, c);
    *c = (struct captured){.key = key, .n = n, .word = mem_alloc(n * sizeof *c->word), .nnode = kernels,
                           .node = mem_alloc(kernels * sizeof *c->node)};
    gpu_result r = GPU_OUT_OF_MEMORY;
    if (c->word && c->node) {
        memcpy(c->word, word, n * sizeof *c->word);
        r = make_graph(d, c);
    }
    c->number = ++d->clock;
    if (!r)
        return c;
    c->exec = NULL;
    stream_graph_forget(d, c);
    d->no_graphs = r != GPU_OUT_OF_MEMORY;
    return NULL;
}

/* Sets the arguments of the kernels whose arguments differ from the last launch. */
static gpu_result set_arguments(struct driver_device *d, struct captured *c, const uint64_t *word)
{
    void *parameter[MAX_PARAMETERS];
    gpu_result r = 0;
    uint32_t node = 0;
    for (uint32_t i = 0; i < c->n && !r; i += kernel_words(word + i), node++) {
        size_t bytes = kernel_words(word + i) * sizeof *word;
        if (!memcmp(c->word + i, word + i, bytes))
            continue;
        memcpy(c->word + i, word + i, bytes);
        struct graph_kernel k = graph_kernel(c->word + i, parameter);
        r = d->l->node_set(c->exec, c->node[node], &k);
        c->number = ++d->clock;
    }
    return r;
}

struct captured *stream_graph_numbered(struct driver_device *d, uint64_t number)
{
    for (unsigned i = 0; i < CAPTURED; i++)
        if (d->captured[i].exec && d->captured[i].number == number)
            return &d->captured[i];
    return NULL;
}

static bool launch_graph(struct driver_device *d, struct captured *c, struct err *e)
{
    c->used = ++d->clock;
    c->running = true;
    return stream_ok(d, d->l->exec_launch(c->exec, d->stream), "running a graph", e);
}

bool stream_replay_number(struct driver_device *d, uint64_t number, struct err *e)
{
    struct captured *c = stream_graph_numbered(d, number);
    return c ? launch_graph(d, c, e) : err_set(e, KL_ERR_DEVICE, "device %s: a graph to be launched is gone", d->name);
}

bool stream_replay(struct driver_device *d, const uint64_t *word, uint32_t n, uint32_t kernels, uint64_t *number,
                   struct err *e)
{
    *number = 0;
    if (d->no_graphs || kernels < SHORTEST)
        return true;
    struct hash128 key = kernels_key(word, n);
    struct captured *c = stream_graph_find(d, key, word, n);
    gpu_result r = c ? set_arguments(d, c, word) : 0;
    if (r) {                      /* some arguments are set and others are not, so the graph cannot be used */
        stream_graph_forget(d, c);
        d->no_graphs = r != GPU_OUT_OF_MEMORY;
        return true;
    }
    if (!c && sequence_seen_before(d, key))
        c = sequence_capture(d, key, word, n, kernels);
    if (!c)
        return true;
    *number = c->number;
    return launch_graph(d, c, e);
}
