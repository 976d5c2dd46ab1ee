#include "harness.h"
#include <pthread.h>
#include <stdarg.h>

unsigned passed, failed, skipped;

bool check(bool ok, const char *fmt, ...)
{
    ok ? passed++ : failed++;
    if (!ok) {
        va_list ap;
        va_start(ap, fmt);
        printf("FAIL: ");
        vprintf(fmt, ap);
        printf("\n");
        va_end(ap);
    }
    return ok;
}

int finish(void)
{
    printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
    return failed != 0;
}

bool is_named(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], name))
            return true;
    return argc < 2;
}

uint64_t rng_next(struct rng *r)
{
    r->s ^= r->s >> 12;
    r->s ^= r->s << 25;
    r->s ^= r->s >> 27;
    return r->s * UINT64_C(0x2545F4914F6CDD1D);
}

int64_t rng_below(struct rng *r, int64_t n) { return n > 0 ? (int64_t)(rng_next(r) % (uint64_t)n) : 0; }
double rng_unit(struct rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; }

static const double specials[] = {0.0, -0.0, 1, -1, 0.5, INFINITY, -INFINITY, NAN, 1e-310, -1e-310, 1e-40, -1e-40,
                                  0x1p-149,
                                  3.4028234663852886e38, 1.7976931348623157e308, 0x1p-126, 88.7, -103.9, 710.0,
                                      2147483648.0, 4294967296.0, 1e19};

static double random_number(struct rng *r, bool wild)
{
    if (wild && rng_below(r, 4) == 0)
        return specials[rng_below(r, sizeof specials / sizeof *specials)];
    double u = 4 * rng_unit(r) - 2;
    return wild && rng_below(r, 4) == 0 ? u * pow(2, (double)rng_below(r, 200) - 100) : u;
}

void fill_random(struct rng *r, unsigned dtype, void *p, int64_t n, bool wild)
{
    size_t size = dtype_size(dtype);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits;
        if (dtype == KL_BOOL)
            bits = rng_next(r) & 1;
        else if (dtype_is_float(dtype))
            bits = wild && rng_below(r, 8) == 0 ? rng_next(r) : dtype_bits(dtype, random_number(r, wild));
        else if (wild)
            bits = rng_below(r, 2) ? rng_next(r) : (uint64_t)(rng_below(r, 5) - 2);
        else
            bits = (uint64_t)(rng_below(r, 19) - (dtype_kind(dtype) == 'I' ? 9 : 0));
        memcpy((char *)p + (size_t)i * size, &bits, size); /* little-endian */
    }
}

void values_random(struct rng *r, const struct graph *g, const struct leaves *l, bool wild, struct values *out)
{
    out->n = l->n;
    for (uint32_t i = 0; i < l->n; i++) {
        int64_t n = shape_count(&g->shape[l->v[i].shape]);
        out->v[i] = calloc((size_t)n + 1, dtype_size(l->v[i].dtype));
        if (!out->v[i])
            abort(); /* no memory for the data */
        fill_random(r, l->v[i].dtype, out->v[i], n, wild);
    }
}

void values_free(struct values *v)
{
    for (uint32_t i = 0; i < v->n; i++)
        free(v->v[i]);
    v->n = 0;
}

static bool upload(int device, const struct graph *g, const struct leaves *l, const struct values *v, struct buffer **b,
                   struct err *e)
{
    for (uint32_t i = 0; i < l->n; i++) {
        size_t bytes = (size_t)shape_count(&g->shape[l->v[i].shape]) * dtype_size(l->v[i].dtype);
        int there = exec_leaf_device(g, device, l == &g->input ? OP_input : OP_state, i);
        if (!(b[i] = buffer_new(there, bytes, e)) || !buffer_write(b[i], v->v[i], bytes, e))
            return false;
    }
    return true;
}

/* What was uploaded is still there, but for the states that outputs were written over. */
static bool untouched(const struct graph *g, const struct leaves *l, const struct values *v, struct buffer *const *b,
                      struct buffer *const *res, struct err *e)
{
    for (uint32_t i = 0; i < l->n; i++) {
        size_t bytes = (size_t)shape_count(&g->shape[l->v[i].shape]) * dtype_size(l->v[i].dtype);
        bool in_place = false;
        for (uint32_t o = 0; o < g->nout; o++)
            in_place |= res[o] == b[i];
        char *now = in_place ? NULL : calloc(bytes + 1, 1);
        bool same = in_place || (now && buffer_read(b[i], now, bytes, e) && (!bytes || !memcmp(now, v->v[i], bytes)));
        free(now);
        if (!same)
            return err_set(e, KL_OK, "leaf %u was written to", i);
    }
    return true;
}

/* of: g, or a graph with symbols that g is for the values behind the slots. */
static bool run_with(const struct graph *of, const struct graph *g, const char *device, bool fuse, bool in_place,
                     const struct values *input, const struct values *state, const uint64_t *slot, struct values *out,
                     struct err *e)
{
    struct buffer *in[MAX_VALUES] = {0}, *st[MAX_VALUES] = {0}, *res[MAX_VALUES] = {0};
    bool exclusive[MAX_VALUES];
    int dev = device_find(device, e);
    const struct exec *x = dev < 0 ? NULL : exec_get(of, dev, fuse, e), *now = x ? exec_pick(x, slot, e) : NULL;
    for (uint32_t i = 0; i < g->state.n; i++)
        exclusive[i] = in_place;
    bool ok = now && upload(dev, g, &g->input, input, in, e) && upload(dev, g, &g->state, state, st, e) &&
              exec_run(now, in, st, exclusive, slot, res, e);
    exec_unref(now);
    exec_unref(x);
    out->n = ok ? g->nout : 0;
    for (uint32_t i = 0; ok && i < g->nout; i++) {
        size_t bytes = node_bytes(g, g->out[i].value);
        out->v[i] = calloc(bytes + 1, 1);
        ok = out->v[i] ? buffer_read(res[i], out->v[i], bytes, e)
                       : err_set(e, KL_ERR_MEMORY, "no memory to compare output %u", i);
    }
    ok = ok && untouched(g, &g->input, input, in, res, e) && untouched(g, &g->state, state, st, res, e);
    for (int i = 0; i < MAX_VALUES; i++) {
        buffer_unref(in[i]);
        buffer_unref(st[i]);
        buffer_unref(res[i]);
    }
    return ok;
}

bool run_on(const struct graph *g, const char *device, bool fuse, const struct values *input,
            const struct values *state,
            const uint64_t *slot, struct values *out, struct err *e)
{
    return run_with(g, g, device, fuse, true, input, state, slot, out, e);
}

bool run_for_values(const struct graph *symbolic, const struct graph *g, const char *device, bool fuse,
                    const struct values *input, const struct values *state, const uint64_t *slot, struct values *out,
                    struct err *e)
{
    return run_with(symbolic, g, device, fuse, true, input, state, slot, out, e);
}

double element_value(unsigned dtype, const void *p, int64_t i)
{
    uint64_t bits = 0;
    memcpy(&bits, (const char *)p + (size_t)i * dtype_size(dtype), dtype_size(dtype));
    return dtype_value(dtype, bits);
}

bool same_values(unsigned dtype, const void *a, const void *b, int64_t n, int64_t *at)
{
    size_t size = dtype_size(dtype);
    for (*at = 0; *at < n; ++*at) {
        if (!memcmp((const char *)a + (size_t)*at * size, (const char *)b + (size_t)*at * size, size))
            continue;
        if (dtype_is_float(dtype) && isnan(element_value(dtype, a, *at)) && isnan(element_value(dtype, b, *at)))
            continue;
        return false;
    }
    return true;
}

/* ---- custom ops ---- */

static uint32_t turn_of(const kl_custom_call *call)
{
    return call->attr_bytes ? *(const unsigned char *)call->attr : 0;
}

static kl_status turn_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    if (call->nin != call->nout) {
        snprintf(call->message, call->message_bytes, "%d results of %d operands", (int)call->nout, (int)call->nin);
        return KL_ERR_ARGUMENT;
    }
    for (uint32_t i = 0; i < call->nout; i++)
        out[i] = call->in_type[(i + turn_of(call)) % call->nin];
    return KL_OK;
}

static kl_status turn_run(void *ctx, const kl_custom_call *call)
{
    (void)ctx;
    for (uint32_t i = 0; i < call->nout; i++) {
        size_t size = dtype_size(call->out_type[i].dtype);
        int64_t n = 1;
        for (int d = 0; d < call->out_type[i].rank; d++)
            n *= call->out_type[i].dims[d];
        const char *from = call->in[(i + turn_of(call)) % call->nin];
        for (int64_t k = 0; k < n; k++)
            memcpy((char *)call->out[i] + k * (int64_t)size, from + (n - 1 - k) * (int64_t)size, size);
    }
    return KL_OK;
}

static pthread_once_t ops_once = PTHREAD_ONCE_INIT;

static void register_ops(void)
{
    struct err e = {0};
    if (!custom_register("test.turn", &(kl_custom_op){.types = turn_types, .run = turn_run}, NULL, &e))
        abort();
}

void test_ops(void)
{
    pthread_once(&ops_once, register_ops);
}

ref n_custom(struct graph *g, const ref *in, uint32_t n, unsigned a)
{
    struct custom_result result[MAX_VALUES];
    unsigned char byte = (unsigned char)a;
    struct custom c = {.name = "test.turn", .result = result, .nresult = n, .nattr = a ? 1 : 0,
                       .attr = a ? &byte : NULL};
    for (uint32_t i = 0; i < n; i++) {
        const struct node *x = node_at(g, in[(i + a) % n]);
        result[i] = (struct custom_result){x->dtype, x->shape};
    }
    return graph_add_custom(g, &(struct node){.op = OP_custom}, in, n, &c);
}

/* ---- kernels as text ---- */

/* A copy in its normal form. */
static struct kernel *canonicalized(const struct kernel *k)
{
    struct kernel *c = kernel_new(k->name);
    for (uint32_t b = 0; b < k->nbuf; b++) {
        k_buf(c, (enum buf_role)k->buf[b].role, k->buf[b].dtype, k->buf[b].count, k->buf[b].id);
        c->buf[b] = k->buf[b];
    }
    for (val v = 1; v < k->ninst; v++)
        k_append(c, k->inst[v]);
    c->family = k->family;
    c->sched = k->sched;
    c->extent = k->extent;
    c->members = k->members;
    c->flops = k->flops;
    c->bytes = k->bytes;
    kernel_canonicalize(c, NULL);
    return c;
}

bool kernel_round_trip(const struct kernel *k, struct err *why)
{
    struct kernels back = {0};
    struct kernel *normal = canonicalized(k);
    char *text = kernel_text(k), *plain = kernel_text(normal), *again = NULL;
    bool ok = text && plain && kernel_parse(text, strlen(text), "printed", &lower_families, &back, why) &&
        (again = kernel_text(back.v[0]));
    if (!ok && !why->code)
        err_set(why, KL_ERR_INTERNAL, "kernel %s: out of memory for its text", k->name);
    if (ok) {
        struct hash128 a = kernel_hash(normal), b = kernel_hash(back.v[0]);
        ok = back.n == 1 && kernel_same(normal, back.v[0]) && a.lo == b.lo && a.hi == b.hi;
        if (!ok || strcmp(plain, again))
            ok = err_set(why, KL_ERR_INTERNAL, "kernel %s: its text parses to another kernel", k->name);
    }
    mem_free(text);
    mem_free(plain);
    mem_free(again);
    kernels_free(&back);
    kernel_free(normal);
    return ok;
}

/* Is it, but for its name, a kernel that this has seen lately? */
static bool kernel_is_known(const struct kernel *k)
{
    enum { KNOWN = 1 << 12 };
    static struct hash128 known[KNOWN];
    struct hash128 h = kernel_hash(k), *at = &known[h.lo % KNOWN];
    bool same = at->lo == h.lo && at->hi == h.hi;
    *at = h;
    return same;
}

/* All kernels of the program that ran g; a kernel that many programs have once. */
static bool kernels_round_trip(const struct graph *g, const char *device, bool fuse, struct err *why)
{
    const struct exec *x = exec_get(g, device_find(device, why), fuse, why);
    for (uint32_t i = 0; x && i < x->program->nkernel; i++)
        if (!kernel_is_known(x->program->kernel[i]) && !kernel_round_trip(x->program->kernel[i], why))
            return false;
    return x;
}

/* Every way to run a graph, all of it on one device or, without a device, each node where it is; the first is the one
 * that the others must equal. */
static const struct way { const char *device; bool fuse, in_place; unsigned threads; const char *text; } ways[] = {
    {"ref", true, true, 1, "interpreted"},
    {"cpu", true, true, 2, "on cpu with 2 threads"},
    {"cpu", true, false, 1, "on cpu with 1 thread, not in place"},
    {"cpu", false, true, 2, "on cpu unfused"},
    {NULL, true, true, 2, "on the devices of its nodes"},
    {NULL, false, true, 1, "on the devices of its nodes unfused"},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* The graph in a way: a copy on one device, or g itself. */
static const struct graph *placed(const struct graph *g, const struct way *w)
{
    uint64_t devices = graph_devices(g);
    if (!w->device || !(devices & (devices - 1)))
        return g;
    struct graph *one = graph_clone(g);
    for (unsigned d = 0; one && d < MAX_DEVICES; d++)
        graph_move(one, d, 0);
    return one;
}

static bool agree(const struct graph *g, const struct values *input, const struct values *state, const uint64_t *slot,
                  struct err *why)
{
    struct values out[WAYS] = {{0}};
    bool ok = true;
    for (int i = 0; i < WAYS && ok; i++) {
        struct err e = {0};
        const struct graph *own = placed(g, &ways[i]);
        const char *device = ways[i].device ? ways[i].device : device_name((int)graph_device(g));
        if (!ways[i].device && !(graph_devices(g) & (graph_devices(g) - 1)))
            break; /* all on one device */
        pool_set_threads(ways[i].threads);
        ok = run_with(own, own, device, ways[i].fuse, ways[i].in_place, input, state, slot, &out[i], &e) ||
             err_set(why, e.code, "%s: %s", ways[i].text, e.msg);
        if (ok && i > 1)
            ok = kernels_round_trip(own, device, ways[i].fuse, why);
        if (own != g)
            graph_free((struct graph *)own);
        for (uint32_t o = 0; i > 0 && ok && o < g->nout; o++) {
            unsigned dtype = g->node[g->out[o].value].dtype;
            int64_t at;
            ok = same_values(dtype, out[0].v[o], out[i].v[o], node_numel(g, g->out[o].value), &at) ||
                 err_set(why, KL_OK, "output %u element %" PRId64 " is %.17g %s, %.17g %s", o, at,
                         element_value(dtype, out[i].v[o], at), ways[i].text, element_value(dtype, out[0].v[o], at),
                         ways[0].text);
        }
    }
    pool_set_threads(0);
    for (int i = 0; i < WAYS; i++)
        values_free(&out[i]);
    return ok;
}

bool agree_everywhere(const struct graph *g, const struct values *input, const struct values *state,
                      const uint64_t *slot,
                      const char *what)
{
    struct err why = {0};
    bool ok = check(agree(g, input, state, slot, &why), "%s: %s", what, why.msg);
    if (!ok)
        graph_print(g, stdout);
    return ok;
}

/* A leaf's data depend on its ordinal alone, so that most stay what they were while a graph shrinks. */
static void leaves_data(const struct graph *g, const struct leaves *l, uint64_t seed, bool wild, struct values *out)
{
    out->n = l->n;
    for (uint32_t i = 0; i < l->n; i++) {
        struct rng r = {(seed + i) * UINT64_C(0x9e3779b97f4a7c15) | 1};
        int64_t n = shape_count(&g->shape[l->v[i].shape]);
        rng_next(&r);
        out->v[i] = calloc((size_t)n + 1, dtype_size(l->v[i].dtype));
        fill_random(&r, l->v[i].dtype, out->v[i], n, wild);
    }
}

bool agree_on_random_data(const struct graph *g, struct err *why)
{
    if (g->input.n > MAX_VALUES || g->state.n > MAX_VALUES || g->slot.n > MAX_VALUES || g->nout > MAX_VALUES)
        return err_set(why, KL_ERR_ARGUMENT, "more than %d leaves or outputs", MAX_VALUES);
    bool ok = true;
    for (int wild = 0; wild < 2 && ok; wild++) {
        struct values in, st, sl;
        uint64_t slot[MAX_VALUES] = {0};
        leaves_data(g, &g->input, 1, wild, &in);
        leaves_data(g, &g->state, 1001, wild, &st);
        leaves_data(g, &g->slot, 2001, wild, &sl);
        for (uint32_t i = 0; i < sl.n; i++)
            memcpy(&slot[i], sl.v[i], dtype_size(g->slot.v[i].dtype));
        ok = agree(g, &in, &st, slot, why);
        values_free(&in);
        values_free(&st);
        values_free(&sl);
    }
    return ok;
}
