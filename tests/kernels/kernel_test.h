/* What the tests of kernels share: the CPU targets this machine can run, memory with a page behind it that
 * faults, and one comparison of the interpreter with the compiled code of every target. */
#ifndef KERNEL_TEST_H
#define KERNEL_TEST_H
#define _GNU_SOURCE
#include "codegen/codegen.h"
#include "tests/support/harness.h"
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_TARGETS = 8, MAX_BUFS = 48 };
struct targets {
    const struct backend *b;
    struct caps v[MAX_TARGETS];
    unsigned n;
};

static inline void add_target(struct targets *t, const char *cpu, uint32_t vector_bytes)
{
    struct caps *c = &t->v[t->n++];
    *c = t->v[0];
    snprintf(c->name, sizeof c->name, "%s", cpu);
    c->features[0] = 0;
    c->vector_bytes = vector_bytes;
    c->bf16_tiles = 0;
}

/* This processor, and older ones whose code it runs too.  Without a code generator only the interpreter is left. */
static inline struct targets find_targets(void)
{
    struct targets t = {0};
    struct err e = {0};
    t.b = backend_get("llvm", &e);
    if (!t.b) {
        printf("SKIP not-built cpu: %s\n", e.msg);
        skipped++;
        return t;
    }
    t.n = 1;
    check(t.b->caps(&t.v[0], &e), "the target: %s", e.msg);
    t.v[0].bf16_tiles = t.v[0].bf16_tiles && tiles_permitted();
    bool avx512 = strstr(t.v[0].features, "+avx512f,") && strstr(t.v[0].features, "+avx512vl,");
    if (avx512) add_target(&t, "x86-64-v4", 64);
    if (avx512) add_target(&t, "x86-64-v4", 16);
    if (strstr(t.v[0].features, "+avx2,")) {
        add_target(&t, "x86-64-v3", 32);
        add_target(&t, "x86-64-v3", 16);
    }
#if defined(__aarch64__)
    if (strstr(t.v[0].features, "+i8mm")) {
        add_target(&t, "generic", 16);
        snprintf(t.v[t.n - 1].features, sizeof t.v->features, "+dotprod");
    }
    if (strstr(t.v[0].features, "+dotprod")) add_target(&t, "generic", 16);
#endif
    return t;
}

/* ---- memory that ends where a page that faults begins ---- */
struct guarded {
    char *map;
    size_t size;
    void *p;
};

static inline struct guarded guarded_new(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page + page;
    struct guarded g = {.size = size};
    g.map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect(g.map + size - page, page, PROT_NONE)) {
        perror("mmap");
        exit(1);
    }
    g.p = g.map + size - page - bytes;
    return g;
}

static inline void guarded_free(struct guarded *g) { munmap(g->map, g->size); }

static inline size_t buf_bytes(const struct kernel *k, uint32_t b)
{
    size_t n = (size_t)k->buf[b].count * dtype_size(k->buf[b].dtype);
    return k->buf[b].role == BUF_SCRATCH ? (n + 63) / 64 * 64 : n; /* scratch is aligned, so its end is, too */
}

/* Inputs are copied from init[]; the rest starts as sevens, so that what is not stored shows, too. */
static inline void set_up(const struct kernel *k, const void *const *init, struct guarded *g, void **buf)
{
    for (uint32_t b = 0; b < k->nbuf; b++) {
        g[b] = guarded_new(buf_bytes(k, b));
        buf[b] = g[b].p;
        memset(buf[b], 7, buf_bytes(k, b));
        if (k->buf[b].dtype == KL_BOOL) memset(buf[b], 1, buf_bytes(k, b));
        if (k->buf[b].role == BUF_IN && k->buf[b].count) memcpy(buf[b], init[b], buf_bytes(k, b));
    }
}

static inline void tear_down(const struct kernel *k, struct guarded *g)
{
    for (uint32_t b = 0; b < k->nbuf; b++) guarded_free(&g[b]);
}

static inline bool run_compiled(const struct targets *t, const struct caps *target, const struct kernel *k, void **buf,
                                const uint64_t *slot, struct err *e)
{
    struct code code;
    struct loaded l = {0};
    bool ok = t->b->compile_for(k, target, EMIT_OBJECT, &code, e) && object_load(&code, &l, e);
    if (ok) { /* in two pieces, as threads would */
        int64_t half = k->extent / 2;
        if (half) l.fn(buf, slot, 0, half);
        l.fn(buf, slot, half, k->extent);
    }
    object_unload(&l);
    mem_free(code.bytes);
    return ok;
}

/* Interprets k, runs its code on every target, and compares all outputs; prints the kernel on a difference.
 * want: what each output must be, or NULL where the interpreter's word is taken. */
static inline bool agree(const struct targets *t, const struct kernel *k, const void *const *init, const uint64_t *slot,
                         const void *const *want, const char *what)
{
    struct err e = {0};
    struct guarded gi[MAX_BUFS], gc[MAX_BUFS];
    void *bi[MAX_BUFS], *bc[MAX_BUFS];
    if (!check(k->nbuf <= MAX_BUFS && !k->err.code && kernel_verify(k, &e), "%s: %s%s", what, k->err.msg, e.msg))
        return kernel_print(k, stdout) && false;
    check(kernel_round_trip(k, &e), "%s: %s", what, e.msg);
    set_up(k, init, gi, bi);
    bool ok = check(kernel_interp(k, bi, slot, 0, k->extent, &e), "%s interpreted: %s", what, e.msg);
    for (unsigned i = 0; i <= t->n && ok; i++) { /* round 0: the interpreter and what is expected */
        set_up(k, init, gc, bc);
        const char *name = i ? t->v[i - 1].name : "interpreter";
        unsigned width = i ? t->v[i - 1].vector_bytes : 0;
        ok = !i || check(run_compiled(t, &t->v[i - 1], k, bc, slot, &e), "%s for %s/%u: %s", what, name, width, e.msg);
        for (uint32_t b = 0; b < k->nbuf && ok; b++) {
            const void *a = i ? bi[b] : want ? want[b] : NULL, *x = i ? bc[b] : bi[b];
            int64_t at;
            if (k->buf[b].role != BUF_OUT || !a) continue;
            ok = same_values(k->buf[b].dtype, a, x, k->buf[b].count, &at);
            check(ok, "%s: buffer %u element %" PRId64 " is %.17g on %s/%u, not %.17g", what, b, at,
                  ok ? 0 : element_value(k->buf[b].dtype, x, at), name, width,
                  ok ? 0 : element_value(k->buf[b].dtype, a, at));
        }
        tear_down(k, gc);
    }
    tear_down(k, gi);
    if (!ok) kernel_print(k, stdout);
    return ok;
}

/* ---- plans of one kernel ---- */

/* The kernel of a plan that should have one; NULL: it has not, which is a failure. */
static inline const struct kernel *only_kernel(const struct program *p, const char *what, const struct err *e)
{
    return check(p && p->ncmd == 1, "%s: not one kernel: %s", what, e->msg) ? p->kernel[p->cmd[0].kernel] : NULL;
}

/* agree for that kernel, with these inputs of the graph; want: its result. */
static inline bool agree_planned(const struct targets *t, const struct program *p, const struct values *in,
                                 const void *want, const char *what)
{
    const struct command *c = &p->cmd[0];
    const struct kernel *k = p->kernel[c->kernel];
    const void *init[MAX_BUFS] = {0}, *expected[MAX_BUFS] = {0};
    for (uint32_t b = 0; b < k->nbuf; b++) {
        if (k->buf[b].role == BUF_IN) init[b] = in->v[c->arg[b].index];
        if (k->buf[b].role == BUF_OUT) expected[b] = want;
    }
    return agree(t, k, init, NULL, expected, what);
}

#endif
