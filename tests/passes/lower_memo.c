/* Planning a program whose kernels were all lowered before lowers none again, and what is found is what lowering gives.
 *
 *   lower_memo [COUNT]   random graphs */
#include "tests/support/random/random_make.h"
#include <pthread.h>
#include <stdatomic.h>

#define CHECK(cond) check(cond, "%s:%d: %s", __FILE__, __LINE__, #cond)

static const struct shape square = {.rank = 2, .dim = {16, 16}};
static const struct caps cpu = {.name = "test", .vector_bytes = 32, .vector_regs = 16, .threads = 1,
                                .l1_bytes = 32 << 10, .l2_bytes = 1 << 20, .l3_bytes = 8 << 20};

static struct program *plan_packing(struct graph *g, const struct caps *caps, bool fuse, struct memo_pack *pack)
{
    struct err e = {0};
    struct program *p = NULL;
    if (!g->err.code && passes_run(g, &(struct pass_options){.fuse = fuse}))
        p = program_plan_with(g, caps, NULL, NULL, pack, &e);
    if (!p && e.code != KL_OK)
        printf("@%s: %s\n", g->name, e.msg);
    return p;
}

static struct program *plan(struct graph *g, const struct caps *caps, bool fuse)
{
    return plan_packing(g, caps, fuse, NULL);
}

/* A link's kernels depend on its number alone, not on what it reads or what reads it. */
static ref make_link(struct graph *g, ref x, ref w, int number)
{
    static const union attr product = {.dot = {.con_a = 1, .ncon = 1}};
    static const uint8_t crossed[] = {1, 0};
    ref k = n_k(g, x, 1 + number / 1024.0);
    switch (number % 4) {
    case 0:
        return n_permute(g, n_tanh(g, n_add(g, n_mul(g, x, k), w)), crossed);
    case 1: {
        ref e = n_exp(g, n_sub(g, x, n_expand(g, n_reduce(g, OP_reduce_max, x, 2), &square)));
        return n_permute(g, n_mul(g, k, n_div(g, e, n_expand(g, n_reduce(g, OP_sum, e, 2), &square))), crossed);
    }
    case 2:
        return n_permute(g, n_mul(g, n_dot(g, x, w, &product), k), crossed);
    default:
        return n_permute(g, n_mul(g, x, n_expand(g, n_reduce(g, OP_sum, n_mul(g, x, k), 1), &square)), crossed);
    }
}

static struct graph *make_links(int links, int turn)
{
    struct graph *g = graph_new("links");
    ref w[3], x = n_permute(g, n_input(g, KL_F32, &square, "x"), (const uint8_t[]){1, 0});
    for (int i = 0; i < 3; i++)
        w[i] = n_input(g, KL_F32, &square, "w");
    for (int i = 0; i < links; i++)
        x = make_link(g, x, w[(i + turn) % 3], (i + turn) % links);
    graph_output(g, OUT_RETURN, x, 0);
    return g;
}

/* Groups lowered for the links from number `turn` on. */
static uint64_t lowered_for(int turn, uint32_t *commands)
{
    struct graph *g = make_links(40, turn);
    uint64_t before = atomic_load(&lower_misses);
    struct program *p = plan(g, &cpu, true);
    uint64_t n = atomic_load(&lower_misses) - before;
    if (CHECK(p))
        *commands = p->ncmd;
    program_free(p);
    graph_free(g);
    return n;
}

static void test_known(void)
{
    uint32_t commands = 0;
    lower_memo_clear();
    uint64_t first = lowered_for(0, &commands);
    CHECK(first >= 40 && first <= commands);
    for (int turn = 1; turn < 4; turn++) {
        uint64_t again = lowered_for(turn, &commands);
        printf("40 links from number %d on: %u kernels, %llu lowered\n", turn, commands, (unsigned long long)again);
        CHECK(!again && commands >= 40);
    }
}

/* ---- what is found is what lowering gives ---- */

static bool same_programs(const struct program *a, const struct program *b)
{
    bool same = a->nkernel == b->nkernel && a->ncmd == b->ncmd;
    for (uint32_t i = 0; same && i < a->nkernel; i++) {
        char *s = kernel_text(a->kernel[i]), *t = kernel_text(b->kernel[i]);
        same = s && t && !strcmp(s, t) && a->kernel[i]->flops == b->kernel[i]->flops &&
               a->kernel[i]->bytes == b->kernel[i]->bytes;
        if (!same)
            printf("found:\n%s\nlowered:\n%s\n", s, t);
        mem_free(s);
        mem_free(t);
    }
    for (uint32_t i = 0; same && i < a->ncmd; i++) {
        same = a->cmd[i].narg == b->cmd[i].narg;
        for (uint32_t k = 0; same && a->cmd[i].value && k < a->cmd[i].narg; k++)
            same = a->cmd[i].value[k] == b->cmd[i].value[k];
    }
    return same;
}

/* Plans g with what is kept, and without. */
static bool found_as_lowered(struct graph *g, const struct caps *caps, bool fuse)
{
    struct graph *copy = graph_clone(g);
    struct program *found = plan(g, caps, fuse);
    lower_memo_clear();
    struct program *lowered = plan(copy, caps, fuse);
    bool same = !found == !lowered && (!found || same_programs(found, lowered));
    program_free(found);
    program_free(lowered);
    graph_free(copy);
    graph_free(g);
    return same;
}

/* Each of the pairs differs in nothing but what lowering reads beyond the group's own nodes. */
static void exp_of(struct graph *g, bool down)
{
    ref x = n_input(g, KL_F32, &square, "x"), max = n_reduce(g, OP_reduce_max, x, 2);
    ref y = n_sub(g, x, n_expand(g, down ? max : n_reduce(g, OP_reduce_min, x, 2), &square));
    graph_output(g, OUT_RETURN, n_exp(g, y), 0);
}

static void large(struct graph *g, bool assign)
{
    struct shape s = shape_make(1, (int64_t[]){1 << 24});
    ref x = n_state(g, KL_F32, &s, "x");
    graph_output(g, assign ? OUT_ASSIGN : OUT_RETURN, n_mul(g, x, x), 0);
}

static void stored(struct graph *g, bool both)
{
    ref x = n_input(g, KL_F32, &square, "x"), y = n_sin(g, x);
    graph_output(g, OUT_RETURN, n_exp(g, y), 0);
    if (both)
        graph_output(g, OUT_RETURN, y, 0);
}

static void kept_apart(const char *name, void (*make)(struct graph *, bool), bool fuse)
{
    struct graph *one = graph_new(name), *other = graph_new(name);
    make(one, false);
    make(other, true);
    lower_memo_clear();
    program_free(plan(one, &cpu, fuse));
    if (!CHECK(found_as_lowered(other, &cpu, fuse)))
        printf("%s\n", name);
    graph_free(one);
}

static void test_kept_apart(void)
{
    kept_apart("exp_of_what_is_stored", exp_of, false);
    kept_apart("past_the_caches", large, true);
    kept_apart("stored", stored, true);
    struct caps wide = cpu;
    wide.vector_bytes = 64;
    uint32_t commands;
    lowered_for(0, &commands);
    CHECK(found_as_lowered(make_links(40, 0), &wide, true));
}

static void test_random(unsigned count)
{
    enum { BATCH = 20 };
    struct rng r = {88172645463325252u};
    for (unsigned first = 0; first < count; first += BATCH) {
        lower_memo_clear();
        for (unsigned i = 0; i < BATCH; i++) { /* what is kept of one is looked through for the next */
            struct graph *g = random_graph(first + i);
            program_free(plan(g, &cpu, i % 2));
            graph_free(g);
        }
        if (!CHECK(found_as_lowered(random_graph(first + (uint64_t)rng_below(&r, BATCH)), &cpu, first / BATCH % 2)))
            printf("random graphs from %u on\n", first);
    }
}

/* ---- packs ---- */

/* What another process would find: packed, dropped, unpacked. */
static bool found_in_pack(struct graph *g)
{
    size_t size = 0, none = 1;
    lower_memo_clear();
    struct graph *copy = graph_clone(g);
    struct memo_pack *pack = memo_pack_new();
    program_free(plan_packing(copy, &cpu, true, pack));
    void *bytes = memo_pack_end(pack, &size);
    graph_free(copy);
    lower_memo_clear();
    if (!bytes) /* a graph without a kernel */
        return graph_free(g), !size;
    bool ok = memo_unpack(bytes, size) && lower_memo_bytes() > 0;
    uint64_t before = atomic_load(&lower_misses);
    copy = graph_clone(g);
    pack = memo_pack_new();
    program_free(plan_packing(copy, &cpu, true, pack));
    ok &= atomic_load(&lower_misses) == before && !memo_pack_end(pack, &none) && !none;
    graph_free(copy);
    ok &= found_as_lowered(g, &cpu, true);
    mem_free(bytes);
    return ok;
}

/* Each beginning of a pack is a pack or refused, and so is one whose entry has another size. */
static void test_damaged(void)
{
    size_t size = 0, whole = 0;
    struct graph *g = make_links(5, 0);
    lower_memo_clear();
    struct memo_pack *pack = memo_pack_new();
    CHECK(!memo_pack_end(NULL, &size) && !size);
    program_free(plan_packing(g, &cpu, true, pack));
    unsigned char *bytes = memo_pack_end(pack, &size);
    graph_free(g);
    if (!CHECK(bytes && size > 1000))
        return;
    for (size_t cut = 0; cut < size; cut++) {
        unsigned char *part = malloc(cut + 1);
        memcpy(part + 1, bytes, cut); /* at an odd address, and ending where its memory does */
        whole += memo_unpack(part + 1, cut);
        free(part);
    }
    CHECK(whole < 20);
    CHECK(memo_unpack(bytes, size));
    for (size_t i = 0; i < size; i += 3) {
        unsigned char was = bytes[i];
        bytes[i] ^= 0x80;
        memo_unpack(bytes, size);
        bytes[i] = was;
    }
    mem_free(bytes);
    lower_memo_clear();
}

static void test_packs(unsigned count)
{
    CHECK(found_in_pack(make_links(40, 0)));
    for (unsigned i = 0; i < count; i++)
        if (!CHECK(found_in_pack(random_graph(5000 + i))))
            printf("random graph %u\n", 5000 + i);
    test_damaged();
}

/* ---- bounds, threads ---- */

static void test_bound(void)
{
    enum { MAX_COUNT = 16 << 20 };
    size_t max = 0;
    uint32_t rounds = 0;
    lower_memo_clear();
    CHECK(lower_memo_bytes() == 0);
    for (size_t last = 0; rounds < 200 && lower_memo_bytes() >= last; rounds++) {
        last = lower_memo_bytes();
        struct graph *g = graph_new("many");
        for (int i = 0; i < 40; i++) {
            static const union attr product = {.dot = {.con_a = 1, .ncon = 1}};
            struct shape s = shape_make(2, (int64_t[]){64 + i, 64 + rounds});
            struct shape t = shape_make(2, (int64_t[]){64 + rounds, 64});
            ref a = n_input(g, KL_F32, &s, "a"), b = n_input(g, KL_F32, &t, "b");
            graph_output(g, OUT_RETURN, n_dot(g, a, b, &product), 0);
        }
        program_free(plan(g, &cpu, true));
        graph_free(g);
        max = lower_memo_bytes() > max ? lower_memo_bytes() : max;
    }
    printf("%u rounds: at most %zu bytes are kept\n", rounds, max);
    CHECK(max <= MAX_COUNT && max > MAX_COUNT / 2 && rounds < 200);
}

static void *plan_links(void *ctx)
{
    int *ok = ctx;
    for (int i = 0; i < 20; i++) {
        struct graph *g = make_links(40, i);
        struct program *p = plan(g, &cpu, true);
        *ok += p != NULL;
        program_free(p);
        graph_free(g);
        if (i % 5 == 0)
            lower_memo_clear();
    }
    return NULL;
}

static void test_threads(void)
{
    pthread_t thread[3];
    int ok[3] = {0};
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&thread[i], NULL, plan_links, &ok[i]));
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_join(thread[i], NULL) && ok[i] == 20);
}

int main(int argc, char **argv)
{
    test_known();
    test_kept_apart();
    test_random(argc > 1 ? (unsigned)atoi(argv[1]) : 400);
    test_packs(argc > 1 ? (unsigned)atoi(argv[1]) / 4 : 100);
    test_bound();
    test_threads();
    return finish();
}
