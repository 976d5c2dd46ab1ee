/* Random programs against a model: handles with plain arrays beside them, through ops, assignments, releases,
 * scopes, traces that run, fail or are abandoned, and reads at any time.  A seed as argument runs only that one. */
#include "tests/support/api_check.h"

enum { N = 4, POOL = 24, SEEDS = 60, ACTIONS = 400 };

struct item {
    kl_tensor t;     /* kl_none: a free place */
    double v[N];     /* what it means now */
    double before[N]; /* what it means again if the trace fails */
    bool temporary, kept, scoped, released, assigned;
};

static kl_device dev;
static struct item pool[POOL];
static bool tracing, trace_failed;
static int scope_depth;
static uint64_t rng;

static unsigned below(unsigned n)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (unsigned)((rng >> 11) % n);
}

static struct item *free_place(void)
{
    for (int i = 0; i < POOL; i++)
        if (!pool[i].t.id)
            return &pool[i];
    return NULL;
}

/* Some usable handle; NULL: there is none. */
static struct item *any(void)
{
    unsigned start = below(POOL);
    for (unsigned i = 0; i < POOL; i++) {
        struct item *x = &pool[(start + i) % POOL];
        if (x->t.id && !x->released)
            return x;
    }
    return NULL;
}

static void put(kl_tensor t, const double *v)
{
    struct item *x = free_place();
    *x = (struct item){.t = t, .temporary = tracing, .scoped = !tracing && scope_depth > 0};
    memcpy(x->v, v, sizeof x->v);
    memcpy(x->before, v, sizeof x->before);
}

static void make_input(void)
{
    double v[N];
    for (int i = 0; i < N; i++)
        v[i] = (int)below(17) - 8;
    put(kl_input(dev, KL_F64, 1, (int64_t[]){N}, v), v);
}

/* Two or three rounded operations a new value, the same in C and in Kiln. */
static void make_op(void)
{
    const struct item *a = any(), *b = any();
    double v[N], number = (int)below(9) - 4;
    unsigned kind = below(6);
    kl_tensor t = kl_none, u;
    if (!a || !b)
        return;
    for (int i = 0; i < N; i++) {
        double half = b->v[i] * 0.5;
        v[i] = kind == 0   ? a->v[i] + b->v[i]
               : kind == 1 ? a->v[i] - half
               : kind == 2 ? a->v[i] * number
               : kind == 3 ? (b->v[i] < a->v[i] ? a->v[i] : b->v[i])
               : kind == 4 ? a->v[(i + 2) % N] + 0.0 /* a sum from 0 has no -0 */
                           : (a->v[i] < b->v[i] ? number : a->v[i]);
    }
    switch (kind) {
    case 0: t = kl_add(a->t, b->t); break;
    case 1:
        u = kl_mul_scalar(b->t, 0.5);
        t = kl_sub(a->t, u);
        kl_release(u);
        break;
    case 2: t = kl_mul_scalar(a->t, number); break;
    case 3: t = kl_maximum(a->t, b->t); break;
    case 4: /* a rotation by two: halves exchanged through views and a product with a permutation */
        kl_scope_begin();
        u = kl_reshape(a->t, DIMS(2, 2));
        t = kl_ne(kl_iota(dev, KL_I32, DIMS(2, 2), 0), kl_iota(dev, KL_I32, DIMS(2, 2), 1));
        t = kl_matmul(kl_cast(t, KL_F64), u);
        t = kl_keep(kl_reshape(t, DIMS(4)));
        kl_scope_end();
        break;
    default:
        kl_scope_begin();
        t = kl_keep(kl_where(kl_lt(a->t, b->t), kl_full(dev, KL_F64, DIMS(4), number), a->t));
        kl_scope_end();
    }
    put(t, v);
    if (kind >= 4) {
        struct item *x = NULL;
        for (int i = 0; i < POOL; i++)
            if (pool[i].t.id == t.id)
                x = &pool[i];
        x->scoped = false; /* kept: no scope's, and a value after the trace */
        x->kept = tracing;
    }
}

static void assign(void)
{
    struct item *a = any();
    const struct item *b = any();
    if (!a || !b || a->temporary)
        return;
    OK(kl_assign(a->t, b->t));
    memcpy(a->v, b->v, sizeof a->v);
    if (tracing)
        a->assigned = true;
    else
        memcpy(a->before, a->v, sizeof a->v);
}

static void release(void)
{
    struct item *a = any();
    if (!a)
        return;
    OK(kl_release(a->t));
    if (tracing)
        a->released = true;
    else
        a->t = kl_none;
}

static void read_one(void)
{
    const struct item *a = any();
    double v[N];
    if (!a || (tracing && (a->temporary || a->assigned)))
        return;
    OK(kl_read(a->t, v, sizeof v));
    CHECK(!memcmp(v, a->v, sizeof v));
}

static void keep(void)
{
    struct item *a = any();
    if (!a)
        return;
    kl_keep(a->t);
    a->scoped = false;
    a->kept = a->temporary;
}

static void end_trace(bool run)
{
    if (run)
        CHECK(kl_trace_end() == (trace_failed ? KL_ERR_SHAPE : KL_OK));
    else
        kl_trace_abandon();
    bool ok = run && !trace_failed;
    kl_status failed_with = trace_failed ? KL_ERR_SHAPE : KL_OK;
    tracing = trace_failed = false;
    for (int i = 0; i < POOL; i++) {
        struct item *x = &pool[i];
        if (!x->t.id)
            continue;
        if (x->released || (x->temporary && !(ok && x->kept))) {
            CHECK(kl_check(x->t) == (x->released || ok || !failed_with ? KL_ERR_HANDLE : failed_with));
            x->t = kl_none;
            continue;
        }
        if (!ok)
            memcpy(x->v, x->before, sizeof x->v);
        memcpy(x->before, x->v, sizeof x->v);
        x->temporary = x->kept = x->assigned = false;
    }
}

static void fail_trace(void)
{
    const struct item *a = any();
    if (!a)
        return;
    kl_tensor bad = kl_reshape(a->t, DIMS(3));
    CHECK(kl_check(bad) == KL_ERR_SHAPE);
    trace_failed = true;
}

static void end_scope(void)
{
    OK(kl_scope_end());
    scope_depth--;
    for (int i = 0; i < POOL; i++)
        if (pool[i].t.id && pool[i].scoped) {
            CHECK(kl_check(pool[i].t) == KL_ERR_HANDLE);
            pool[i].t = kl_none;
        }
}

static void act(void)
{
    unsigned dice = below(100);
    bool room = free_place() != NULL;
    if (trace_failed) {
        end_trace(below(4) > 0);
        return;
    }
    if (!room)
        release();
    else if (dice < 12)
        make_input();
    else if (dice < 55)
        make_op();
    else if (dice < 67)
        assign();
    else if (dice < 74)
        release();
    else if (dice < 82)
        read_one();
    else if (dice < 86)
        keep();
    else if (dice < 94 && !tracing)
        tracing = OK(kl_trace_begin("random"));
    else if (dice < 97 && tracing)
        dice == 94 ? fail_trace() : end_trace(dice > 94);
    else if (dice < 99 && tracing)
        end_trace(dice == 97);
    else if (!tracing && !scope_depth)
        OK(kl_scope_begin()), scope_depth++;
    else if (!tracing)
        end_scope();
}

static void program(uint64_t seed)
{
    rng = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    int before = failed;
    for (int i = 0; i < ACTIONS; i++)
        act();
    if (tracing)
        end_trace(true);
    if (scope_depth)
        end_scope();
    for (int i = 0; i < POOL; i++) {
        double v[N];
        if (!pool[i].t.id)
            continue;
        OK(kl_read(pool[i].t, v, sizeof v));
        CHECK(!memcmp(v, pool[i].v, sizeof v));
        OK(kl_release(pool[i].t));
        pool[i].t = kl_none;
    }
    if (failed > before)
        printf("  in the program of seed %llu\n", (unsigned long long)seed);
}

static unsigned long long only;

static void test(kl_device d)
{
    dev = d;
    bool ref = !strcmp(device_now, "ref");
    for (uint64_t seed = 1; seed <= (ref ? SEEDS : SEEDS / 6); seed++) /* cpu compiles almost every trace */
        if (!only || only == seed)
            program(seed);
    if (only > SEEDS)
        program(only);
}

int main(int argc, char **argv)
{
    only = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    return on_devices(test);
}
