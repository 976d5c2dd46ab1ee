/* Text tests of kernels (.loop files):
 *   # test: parse          print the kernel
 *   # test: run            print each output's elements
 *   # test: agree          the outputs are those of the graph that stands behind a line "# graph:", bit for bit,
 *   # test: agree within X or as near as X, absolutely or relatively: there the kernel has an order of its own
 *   # test: fail           the interpreter refuses: expect its message
 * Lines between the first and the kernel give the data:
 *   # b0 = 1.0 2.0         elements, repeated to fill the buffer
 *   # b1 = random -1 to 6  random integers; without a line, inputs of an agree test are random, wild in the last round
 *   # slot 0 = 0.5:f32
 * Input i of the graph reads what the kernel's input buffer of that number holds; its returns are the output buffers in
 * their order.  What a code generator for this machine compiles must give the interpreter's bits; a GPU's kernel it
 * must refuse. */
#include "text_test.h"
#include "codegen/codegen.h"

enum { MAX_BUFS = 32, MAX_SLOTS = 8, ROUNDS = 4 };

struct data {
    const struct kernel *k;
    const char *given[MAX_BUFS];   /* behind the '=', or NULL */
    uint64_t slot[MAX_SLOTS];
    void *init[MAX_BUFS];
    void *got[MAX_BUFS];           /* the interpreter's */
};

static bool problem(struct test *t, const char *what)
{
    text_put(&t->problem, "    %s\n", what);
    return false;
}

/* ---- data ---- */

static bool read_slot(struct test *t, struct data *d, const char *s)
{
    unsigned long n = strtoul(s, (char **)&s, 10);
    const char *why = "expected '= LITERAL:DTYPE'", *colon = strchr(s, ':'), *end = s + strcspn(s, "\n");
    if (n >= MAX_SLOTS || strncmp(s, " = ", 3) || !colon || colon > end)
        return problem(t, why);
    int dtype = dtype_parse(colon + 1, (size_t)(end - colon - 1));
    return (dtype >= 0 && literal_parse((unsigned)dtype, s + 3, (size_t)(colon - s - 3), &d->slot[n], &why)) ||
        problem(t, why);
}

static bool read_head(struct test *t, struct data *d)
{
    const char *s = t->body;
    for (; *s == '#'; s += strcspn(s, "\n"), s += *s == '\n') {
        if (!strncmp(s, "# slot ", 7)) {
            if (!read_slot(t, d, s + 7))
                return false;
        } else if (!strncmp(s, "# b", 3) && s[3] >= '0' && s[3] <= '9') {
            char *eq;
            unsigned long b = strtoul(s + 3, &eq, 10);
            if (b >= d->k->nbuf || strncmp(eq, " = ", 3))
                return problem(t, "expected '# bN = ...' with N one of the kernel's buffers");
            d->given[b] = eq + 3;
        }
    }
    return true;
}

static void set_element(unsigned dtype, void *p, int64_t i, uint64_t bits)
{
    memcpy((char *)p + (size_t)i * dtype_size(dtype), &bits, dtype_size(dtype));
}

static bool fill(struct test *t, struct data *d, uint32_t b, struct rng *r, bool wild)
{
    const struct lbuf *l = &d->k->buf[b];
    const char *s = d->given[b], *why;
    long lo, hi;
    if (!s) {
        fill_random(r, l->dtype, d->init[b], l->count, wild);
    } else if (sscanf(s, "random %ld to %ld", &lo, &hi) == 2) {
        for (int64_t i = 0; i < l->count; i++)
            set_element(l->dtype, d->init[b], i, dtype_bits(l->dtype, (double)(lo + rng_below(r, hi - lo + 1))));
    } else {
        const char *p = s;
        for (int64_t i = 0; i < l->count; i++) {
            p += strspn(p, " ");
            if (*p == '\n' || !*p)
                p = s + strspn(s, " ");
            size_t n = strcspn(p, " \n");
            uint64_t bits;
            if (!literal_parse(l->dtype, p, n, &bits, &why))
                return problem(t, why);
            set_element(l->dtype, d->init[b], i, bits);
            p += n;
        }
    }
    return true;
}

/* ---- running ---- */

static size_t bytes(const struct lbuf *l) { return (size_t)l->count * dtype_size(l->dtype); }

/* A fresh set of buffers: inputs as they are, the rest sevens, so that what is not stored shows. */
static void buffers(const struct data *d, void **buf)
{
    for (uint32_t b = 0; b < d->k->nbuf; b++) {
        const struct lbuf *l = &d->k->buf[b];
        buf[b] = aligned_alloc(64, (bytes(l) + 64) / 64 * 64);
        memset(buf[b], l->dtype == KL_BOOL ? 1 : 7, bytes(l));
        if (l->role == BUF_IN)
            memcpy(buf[b], d->init[b], bytes(l));
    }
}

static void buffers_free(const struct data *d, void **buf)
{
    for (uint32_t b = 0; b < d->k->nbuf; b++)
        free(buf[b]);
}

static bool same_outputs(struct test *t, const struct data *d, void *const *buf)
{
    for (uint32_t b = 0; b < d->k->nbuf; b++) {
        const struct lbuf *l = &d->k->buf[b];
        int64_t at;
        if (l->role != BUF_OUT || same_values(l->dtype, d->got[b], buf[b], l->count, &at))
            continue;
        text_put(&t->problem, "    b%u[%" PRId64 "] is %.17g compiled, %.17g interpreted\n", b, at,
                 element_value(l->dtype, buf[b], at), element_value(l->dtype, d->got[b], at));
        return false;
    }
    return true;
}

/* The kernel's code, in two pieces as threads would run it, against the interpreter. */
static bool compiled_agrees(struct test *t, const struct data *d)
{
    struct err e = {0};
    const struct backend *b = device_backend(device_find("cpu", &e), NULL);
    struct code code = {0};
    struct loaded l = {0};
    void *buf[MAX_BUFS];
    if (!b)
        return t->skip = true;
    bool ok = b->compile(d->k, EMIT_OBJECT, &code, &e) && object_load(&code, &l, &e);
    if (kernel_needs_gpu(d->k)) {
        if (ok || !strstr(e.msg, "GPU"))
            ok = problem(t, "a processor's code generator does not say that this is a GPU's kernel");
        else
            ok = true;
    } else if (!ok) {
        text_put(&t->problem, "    %s\n", e.msg);
    } else {
        int64_t half = d->k->extent / 2;
        buffers(d, buf);
        if (half)
            l.fn(buf, d->slot, 0, half);
        l.fn(buf, d->slot, half, d->k->extent);
        ok = same_outputs(t, d, buf);
        buffers_free(d, buf);
    }
    object_unload(&l);
    mem_free(code.bytes);
    return ok;
}

static bool interpreted(struct test *t, const struct data *d, struct err *e)
{
    if (kernel_interp(d->k, d->got, d->slot, 0, d->k->extent, e))
        return true;
    text_put(&t->problem, "    %s\n", e->msg);
    return false;
}

static void run(struct test *t, struct data *d)
{
    struct text s = {0};
    struct err e = {0};
    struct rng r = {1};
    for (uint32_t b = 0; b < d->k->nbuf; b++)
        if (d->k->buf[b].role == BUF_IN && !d->given[b])
            problem(t, "an input without data: only an agree test makes its own");
        else if (d->k->buf[b].role == BUF_IN)
            fill(t, d, b, &r, false);
    if (t->problem.len)
        return;
    buffers(d, d->got);
    if (interpreted(t, d, &e) && compiled_agrees(t, d)) {
        for (uint32_t b = 0; b < d->k->nbuf; b++) {
            const struct lbuf *l = &d->k->buf[b];
            if (l->role != BUF_OUT)
                continue;
            text_put(&s, "b%u:", b);
            test_elements(&s, l->dtype, d->got[b], l->count);
        }
        test_expect(t, s.s ? s.s : "", false);
    }
    buffers_free(d, d->got);
    mem_free(s.s);
}

static void fails(struct test *t, struct data *d)
{
    struct err e = {0};
    struct text s = {0};
    struct rng r = {1};
    for (uint32_t b = 0; b < d->k->nbuf; b++)
        fill(t, d, b, &r, false);
    buffers(d, d->got);
    if (kernel_interp(d->k, d->got, d->slot, 0, d->k->extent, &e))
        problem(t, "ran, but should have been refused");
    buffers_free(d, d->got);
    text_put(&s, "%s\n", e.msg);
    if (!t->problem.len)
        test_expect(t, s.s, false);
    mem_free(s.s);
}

/* ---- a graph beside the kernel ---- */

static struct graph *graph_beside(struct test *t)
{
    static const char mark[] = "\n# graph:\n";
    struct err e = {0};
    const char *at = strstr(t->text, mark);
    if (!at) {
        problem(t, "no line '# graph:'");
        return NULL;
    }
    at += strlen(mark);
    struct graph *g = graph_parse(at, (size_t)(t->text + t->len - at), "the graph", &e);
    const struct pass_info *ad = pass_find("autodiff", 8), *numerics = pass_find("numerics", 8);
    if (!g || pass_run(ad, g, NULL) < 0 || pass_run(numerics, g, NULL) < 0) {
        problem(t, g ? g->err.msg : e.msg);
        graph_free(g);
        return NULL;
    }
    return g;
}

/* The output buffer of each return, the input buffer of each input; sizes and dtypes agree. */
static bool pair(struct test *t, const struct data *d, const struct graph *g, uint32_t *out, uint32_t *in)
{
    uint32_t outs = 0, ins = 0;
    for (uint32_t b = 0; b < d->k->nbuf; b++) {
        const struct lbuf *l = &d->k->buf[b];
        if (l->role == BUF_OUT && outs < g->nout) {
            ref r = g->out[outs].value;
            if (l->dtype != node_at(g, r)->dtype || l->count != node_numel(g, r))
                return problem(t, "a return of the graph is not of its output buffer's dtype and size");
            out[outs++] = b;
        } else if (l->role == BUF_IN && l->id < g->input.n) {
            const struct leaf *f = &g->input.v[l->id];
            if (l->dtype != f->dtype || l->count != shape_count(&g->shape[f->shape]))
                return problem(t, "an input of the graph is not of its buffer's dtype and size");
            in[l->id] = b;
            ins++;
        }
    }
    return (outs == g->nout && ins >= g->input.n && g->state.n == 0) ||
        problem(t, "kernel and graph have other arguments");
}

static bool near(unsigned dtype, const void *a, const void *b, int64_t n, double within, int64_t *at)
{
    for (*at = 0; *at < n; ++*at) {
        double x = element_value(dtype, a, *at), y = element_value(dtype, b, *at), d = fabs(x - y);
        if (!(d <= within || d <= within * fabs(x)) && !(isnan(x) && isnan(y)) && x != y)
            return false;
    }
    return true;
}

static bool equals_graph(struct test *t, const struct data *d, const struct graph *g, const uint32_t *out,
                         const uint32_t *in,
                         double within)
{
    struct err e = {0};
    const void *input[MAX_BUFS];
    void *want[MAX_BUFS];
    for (uint32_t i = 0; i < g->input.n; i++)
        input[i] = d->init[in[i]];
    for (uint32_t i = 0; i < g->nout; i++)
        want[i] = calloc(bytes(&d->k->buf[out[i]]) + 1, 1);
    bool ok = interp_run(g, &(struct bind){.input = input, .slot = d->slot, .out = want}, &e) || problem(t, e.msg);
    for (uint32_t i = 0; ok && i < g->nout; i++) {
        const struct lbuf *l = &d->k->buf[out[i]];
        int64_t at;
        ok = within > 0 ? near(l->dtype, want[i], d->got[out[i]], l->count, within, &at)
                        : same_values(l->dtype, want[i], d->got[out[i]], l->count, &at);
        if (!ok)
            text_put(&t->problem, "    b%u[%" PRId64 "] is %.17g, the graph's %.17g\n", out[i], at,
                     element_value(l->dtype, d->got[out[i]], at), element_value(l->dtype, want[i], at));
    }
    for (uint32_t i = 0; i < g->nout; i++)
        free(want[i]);
    return ok;
}

static void agree(struct test *t, struct data *d, double within)
{
    uint32_t out[MAX_BUFS], in[MAX_BUFS];
    struct graph *g = graph_beside(t);
    struct rng r = {20240229};
    bool ok = g && pair(t, d, g, out, in);
    for (int round = 0; ok && round < ROUNDS; round++) {
        struct err e = {0};
        bool wild = round == ROUNDS - 1 && within == 0;
        for (uint32_t b = 0; ok && b < d->k->nbuf; b++)
            ok = d->k->buf[b].role != BUF_IN || fill(t, d, b, &r, wild);
        buffers(d, d->got);
        ok = ok && interpreted(t, d, &e) && equals_graph(t, d, g, out, in, within) && compiled_agrees(t, d);
        buffers_free(d, d->got);
    }
    graph_free(g);
}

/* ---- the test ---- */

static void print(struct test *t, const struct kernel *k)
{
    char *s = kernel_text(k);
    test_expect(t, s ? s : "", true);
    mem_free(s);
}

void test_kernel(struct test *t, const char *what, size_t len)
{
    struct kernels k = {0};
    struct err e = {0};
    struct data d = {0};
    double within = 0;
    const char *end = strstr(t->text, "\n# graph:\n");
    if (!kernel_parse(t->text, end ? (size_t)(end - t->text) : test_end(t), t->path, &lower_families, &k, &e) ||
        k.n != 1 ||
        k.v[0]->nbuf > MAX_BUFS) {
        problem(t, e.code ? e.msg : "a test has one kernel of a few buffers");
        kernels_free(&k);
        return;
    }
    d.k = k.v[0];
    for (uint32_t b = 0; b < d.k->nbuf; b++)
        d.init[b] = calloc(bytes(&d.k->buf[b]) + 1, 1);
    if (!kernel_round_trip(d.k, &e))
        problem(t, e.msg);
    else if (!read_head(t, &d))
        ;
    else if (len == 5 && !memcmp(what, "parse", 5))
        print(t, d.k);
    else if (len == 3 && !memcmp(what, "run", 3))
        run(t, &d);
    else if (len == 4 && !memcmp(what, "fail", 4))
        fails(t, &d);
    else if ((len == 5 && !memcmp(what, "agree", 5)) || (len > 13 && sscanf(what, "agree within %lf", &within) == 1))
        agree(t, &d, within);
    else
        text_put(&t->problem, "    unknown test '%.*s'\n", (int)len, what);
    for (uint32_t b = 0; b < d.k->nbuf; b++)
        free(d.init[b]);
    kernels_free(&k);
}
