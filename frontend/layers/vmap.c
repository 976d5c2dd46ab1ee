/* vmap: the function is recorded for one element into a graph of its own, which is then recorded again with the batch
 * (batch.h).
 *
 * While the function runs, layers above key Batched act on its calls, and Batched itself, which marks what depends on
 * the batch.  Those below it, devices included, act on the calls of the second recording; only autocast, which must see
 * the ops as they were meant, has acted before. */
#include "transform.h"
#include "batch.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#define ABOVE(layer) (COMPONENTS & ~(LAYER_BIT(layer) * 2 - 1))

struct mapped {
    struct thread *t;
    kl_region_fn *fn;
    void *ctx;
    uint32_t nin, nout;
    int64_t size;
    kl_tensor *in;            /* the batch's axis first */
    bool *batched;
    struct view *view;        /* of one element */
    struct vmap level;
};

/* ---- keys ---- */

/* Where there is more on the way than a node of its own: else the transform's `marks` do the same. */
static kl_status vmap_call(void *ctx, kl_call *c, kl_keyset keys)
{
    (void)ctx, (void)keys;
    kl_status status = kl_redispatch_below(c);
    for (uint32_t i = 0; i < c->nout && !status; i++) {
        struct entry *x = entry_peek(c->out[i]);
        if (x)
            x->layers |= LAYER_BIT(LAYER_Batched);
    }
    return status;
}

static kl_status no_random(void *ctx, kl_call *c, kl_keyset keys)
{
    (void)ctx, (void)keys;
    const struct entry *seed = c->nin ? entry_peek(c->in[0]) : NULL;
    if (seed && seed->layers & LAYER_BIT(LAYER_Batched))
        return kl_redispatch_below(c); /* each element has its own */
    for (const struct vmap *v = c->t->vmap; v; v = v->outer)
        if (v->randomness == KL_RANDOM_ERROR)
            return fail(
                c->t, KL_ERR_ARGUMENT,
                "vmap: We do not yet support calling random operations inside of vmap. "
                "Please perform random operations outside of vmap as a workaround, or say which numbers are meant: "
                "KL_RANDOM_SAME or KL_RANDOM_DIFFERENT");
    return kl_redispatch_below(c);
}

static bool vmap_install(struct err *e)
{
    static const struct transform rule = {.kernel = {.name = "batching rules", .call = vmap_call},
                                          .marks = LAYER_BIT(LAYER_Batched)};
    static const struct transform random = {.kernel = {.name = "vmap's random numbers", .call = no_random}};
    static atomic_bool done;
    if (atomic_load_explicit(&done, memory_order_acquire))
        return true;
    if (!dispatch_layer(NULL, KL_KEY_Batched, &rule, e) || !dispatch_layer("random", KL_KEY_VmapMode, &random, e))
        return false;
    atomic_store_explicit(&done, true, memory_order_release);
    return true;
}

/* ---- the function, for one element ---- */

static kl_status call_function(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct mapped *m = ctx;
    struct thread *t = m->t;
    struct thread_layers before = layers_save(t);
    for (uint32_t i = 0; i < nin; i++)
        if (m->batched[i])
            entry_peek(in[i])->layers |= LAYER_BIT(LAYER_Batched);
    t->included |= LAYER_BIT(LAYER_VmapMode);
    t->excluded |= DEV_MASK | LAYER_BIT(LAYER_BackendSelect) | LAYER_BIT(LAYER_Autograd) | LAYER_BIT(LAYER_Tracer);
    m->level.outer = t->vmap;
    m->level.trace = thread_trace(t);
    t->vmap = &m->level;
    kl_status status = m->fn(m->ctx, in, nin, out, nout);
    t->vmap = m->level.outer;
    layers_restore(t, before);
    return status;
}

/* ---- arguments ---- */

/* The axis of in[i] that is mapped; it leaves the view.  false: reported. */
static bool take_axis(struct mapped *m, uint32_t i, kl_tensor h, int axis)
{
    struct view *v = &m->view[i];
    char text[SHAPE_TEXT];
    m->in[i] = h;
    if (axis == KL_NO_AXIS)
        return true;
    int rank = (int)v->shape.rank;
    shape_text(&v->shape, text, sizeof text);
    if (axis < -rank || axis >= rank)
        return fail(m->t, KL_ERR_ARGUMENT, "vmap: in_axes[%u] is %d, which is out of range for in[%u] of shape %s", i,
                    axis, i, text) == KL_OK;
    uint32_t at = (uint32_t)(axis < 0 ? axis + rank : axis);
    int64_t size = v->shape.dim[at];
    if (!size)
        return fail(m->t, KL_ERR_ARGUMENT, "vmap: axis %d of in[%u] of shape %s has no elements: a batch has at least "
                    "one", axis, i, text) == KL_OK;
    const struct trace *tr = thread_trace(m->t);
    char have[DIM_TEXT], before[DIM_TEXT];
    if (m->size && m->size != size)
        return fail(m->t, KL_ERR_ARGUMENT,
                    "vmap: axis %d of in[%u] of shape %s has length %s, but the batch of the tensors before it has %s",
                    axis, i, text, dim_text(tr ? tr->r.g : NULL, size, have, sizeof have),
                    dim_text(tr ? tr->r.g : NULL, m->size, before, sizeof before)) == KL_OK;
    m->size = size;
    m->batched[i] = true;
    m->in[i] = batch_move_axis(h, v->shape.rank, at, 0);
    v->shape.rank--;
    memmove(&v->shape.dim[at], &v->shape.dim[at + 1], (v->shape.rank - at) * sizeof v->shape.dim[0]);
    v->shape.dim[v->shape.rank] = 0;
    return true;
}

static bool is_plain(const struct mapped *m, uint32_t i, kl_tensor h)
{
    return !*kl_layer_name(h) || fail(m->t, KL_ERR_TYPE,
                                      "vmap: in[%u] is a %s tensor: map its parts (kl_layer_part) or "
                                      "kl_dense of it", i, kl_layer_name(h)) == KL_OK;
}

static bool take_arguments(struct mapped *m, const kl_tensor *in, const int *in_axes)
{
    for (uint32_t i = 0; i < m->nin; i++) {
        char what[32];
        snprintf(what, sizeof what, "in[%u]", i);
        if (!describe(m->t, "vmap", what, in[i], &m->view[i]) ||
            !is_plain(m, i, in[i]) || !take_axis(m, i, in[i], in_axes ? in_axes[i] : 0))
            return false;
        if (m->view[i].device.id != m->view[0].device.id)
            return fail(m->t, KL_ERR_DEVICE, "vmap: in[0] is on device %s, in[%u] on %s",
                        kl_device_name(m->view[0].device), i, kl_device_name(m->view[i].device)) == KL_OK;
    }
    return m->size || fail(m->t, KL_ERR_ARGUMENT, "vmap: no tensor is mapped, so there is no batch") == KL_OK;
}

/* ---- the batch ---- */

/* Result i, which the function's graph gives as shape s, with its batch in place; false: reported. */
static bool place_result(struct mapped *m, const struct batch *b, uint32_t i, kl_tensor *h, bool batched,
                         const struct shape *s, int axis)
{
    int rank = (int)s->rank + 1;
    char text[SHAPE_TEXT];
    if (axis < -rank || axis >= rank)
        return fail(m->t, KL_ERR_ARGUMENT,
                    "vmap: out_axes[%u] is %d, which is out of range for a result of shape %s and "
                    "the batch", i, axis, shape_text(s, text, sizeof text)) == KL_OK;
    if (rank > KL_MAX_RANK)
        return fail(m->t, KL_ERR_SHAPE, "vmap: the result %s has no room for the batch's axis",
                    shape_text(s, text, sizeof text)) == KL_OK;
    *h = batch_spread(b, *h, batched, s);
    *h = batch_move_axis(*h, (uint32_t)rank, 0, (uint32_t)(axis < 0 ? axis + rank : axis));
    return true;
}

/* Records the function's graph with the batch; false: reported. */
static bool record_batch(struct mapped *m, const struct graph *g, const struct handle_list *captured, kl_tensor *out,
                         const int *out_axes)
{
    struct batch b = {.t = m->t, .size = m->size,
                      .different = m->level.randomness == KL_RANDOM_DIFFERENT};
    uint32_t n = m->nin + captured->n;
    kl_tensor *in = mem_alloc((n + 1) * sizeof *in);
    bool *batched = mem_alloc(n + m->nout + 1), ok = in && batched;
    struct thread_layers before = layers_save(m->t);
    m->t->excluded |= ABOVE(LAYER_Batched) | LAYER_BIT(LAYER_Autocast);
    if (ok) {
        memcpy(in, m->in, m->nin * sizeof *in);
        memcpy(batched, m->batched, m->nin);
        for (uint32_t i = 0; i < captured->n; i++)
            in[m->nin + i] = captured->h[i];
        ok = batch_graph(&b, g, in, batched, out, batched + n);
    }
    if (!ok)
        fail(m->t, KL_ERR_MEMORY, "vmap: out of memory");
    for (uint32_t i = 0; i < m->nout && ok; i++)
        ok = place_result(m, &b, i, &out[i], batched[n + i], node_shape(g, g->out[i].value),
                          out_axes ? out_axes[i] : 0);
    layers_restore(m->t, before);
    mem_free(in);
    mem_free(batched);
    return ok;
}

/* For the next vmap: a graph that has grown need not grow again. */
static void keep_graph(struct thread *t, struct graph *g)
{
    graph_free(t->spare);
    graph_reset(g);
    t->spare = g;
}

static bool vmap_run(struct mapped *m, const kl_tensor *in, const int *in_axes, kl_tensor *out, const int *out_axes)
{
    struct region region;
    struct region_recorder c = {.t = m->t, .op = "vmap", .ctx = m, .views = m->in, .unlogged = true,
                                .silent = true};
    if (!take_arguments(m, in, in_axes))
        return false;
    c.device = m->view[0].device;
    c.empty = m->t->spare;
    m->t->spare = NULL; /* a vmap in the function has its own */
    bool ok = region_record(&c, 0, "function", call_function, m->view, m->nin, m->nout, &region);
    if (ok) {
        ok = record_batch(m, region.g, &c.captured, out, out_axes);
        keep_graph(m->t, region.g);
    }
    struct err last = m->t->last; /* releasing reports nothing of its own */
    region_recorder_free(&c);
    m->t->last = last;
    return ok;
}

static bool arguments_fit(struct mapped *m, const kl_tensor *in, const kl_tensor *out)
{
    struct err e;
    e.code = KL_OK;
    const char *why = !m->fn                        ? "the function is NULL"
                      : !m->nin || !m->nout         ? "needs at least one tensor and one result"
                      : !in || !out                 ? "a list of tensors is NULL"
                      : m->level.randomness > KL_RANDOM_DIFFERENT ? "there is no such randomness"
                      : m->nin > INT16_MAX || m->nout > INT16_MAX ? "too many tensors" : NULL;
    if (why)
        return fail(m->t, KL_ERR_ARGUMENT, "vmap: %s", why) == KL_OK;
    return vmap_install(&e) || fail(m->t, e.code, "vmap: %s", e.msg) == KL_OK;
}

kl_status kl_vmap(kl_region_fn *fn, void *ctx, int64_t nin, const kl_tensor *in, const int *in_axes,
                  int64_t nout, const int *out_axes, kl_randomness randomness, kl_tensor *out)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    struct mapped m = {.t = t, .fn = fn, .ctx = ctx, .nin = count_or_none(nin),
                       .nout = count_or_none(nout), .level.randomness = randomness};
    for (uint32_t i = 0; out && i < m.nout; i++)
        out[i] = kl_none;
    bool ok = !(t->tracing && t->trace->err.code) &&
              counts_valid(t, "vmap", COUNTS({"nin", nin}, {"nout", nout})) && arguments_fit(&m, in, out);
    if (ok && (!(m.in = mem_alloc(m.nin * (sizeof *m.in + sizeof *m.view + sizeof *m.batched))) ||
               !compose_begin_on(t, NULL))) {
        ok = fail(t, KL_ERR_MEMORY, "vmap: out of memory") == KL_OK;
    } else if (ok) {
        m.view = (struct view *)(m.in + m.nin);
        m.batched = (bool *)(m.view + m.nin);
        ok = vmap_run(&m, in, in_axes, out, out_axes);
        compose_end_all(t, out, ok ? m.nout : 0);
    }
    mem_free(m.in);
    for (uint32_t i = 0; out && i < m.nout; i++) {
        if (!ok)
            out[i] = poison(t);
        else if (kl_check(out[i]) != KL_OK)
            return kl_check(out[i]);
    }
    return ok ? KL_OK : t->tracing ? t->trace->err.code : t->last.code;
}
