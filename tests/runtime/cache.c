/* The program cache: what compiles once, what compiles again, and the dumps that a miss writes. */
#define _GNU_SOURCE
#include "tests/support/harness.h"
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

struct counts { uint64_t built, compiled; };

static struct counts counts_now(void)
{
    return (struct counts){atomic_load(&counters.graphs_built), atomic_load(&counters.compiles)};
}

/* y = tanh(x * k + slot) of n elements; then another such layer on y for each of `layers`. */
static struct graph *layers_graph(const char *name, int64_t n, double k, int layers)
{
    struct graph *g = graph_new(name);
    struct shape s = shape_make(1, &n);
    ref y = n_input(g, KL_F32, &s, "x"), slot = n_slot(g, KL_F32, "bias");
    for (int i = 0; i < layers; i++)
        y = n_tanh(g, n_add(g, n_mul(g, y, n_k(g, y, k)), n_broadcast(g, slot, &s)));
    graph_output(g, OUT_RETURN, y, 0);
    return g;
}

static const struct exec *get(const struct graph *g, int device, bool fuse)
{
    struct err e = {0};
    const struct exec *x = exec_get(g, device, fuse, &e);
    check(x != NULL, "exec_get of %s on %s: %s", g->name, device_name(device), e.msg);
    return x;
}

static void test_hits(int device)
{
    struct graph *g = layers_graph("hits", 100, 2, 1), *same = layers_graph("other_name", 100, 2, 1);
    struct graph *larger = layers_graph("hits", 101, 2, 1), *factor = layers_graph("hits", 100, 3, 1);
    struct counts before = counts_now();
    const struct exec *x = get(g, device, true);
    struct counts once = counts_now();
    check(once.built == before.built + 1, "a miss plans one program");
    check(device == DEVICE_REF ? once.compiled == before.compiled : once.compiled > before.compiled,
          "a miss compiles kernels, but for the interpreter");
    check(get(same, device, true) == x && get(g, device, true) == x, "an equal graph hits, whatever its name");
    check(counts_now().built == once.built && counts_now().compiled == once.compiled, "a hit builds nothing");
    check(get(larger, device, true) != x && get(factor, device, true) != x, "another shape or constant misses");
    check(get(g, device, false) != x, "unfused is another program");
    check(counts_now().built == once.built + 3, "each of them is planned");
    uint64_t built = counts_now().built, hits = atomic_load(&counters.program_hits),
        misses = atomic_load(&counters.program_misses);
    for (int i = 0; i < 10; i++)
        get(i % 2 ? g : larger, device, true);
    check(counts_now().built == built, "alternating shapes plan nothing again");
    check(atomic_load(&counters.program_hits) == hits + 10 && atomic_load(&counters.program_misses) == misses,
          "and are counted as hits");
    graph_free(g);
    graph_free(same);
    graph_free(larger);
    graph_free(factor);
}

/* Unfused, forty equal layers are forty times the kernels of one layer. */
static void test_kernels_shared(int device)
{
    struct graph *one = layers_graph("one_layer", 777, 2, 1), *many = layers_graph("many_layers", 777, 2, 40);
    uint64_t before = counts_now().compiled, misses = atomic_load(&counters.kernel_misses);
    get(one, device, false);
    uint64_t kernels = counts_now().compiled - before;
    const struct exec *x = get(many, device, false);
    uint64_t more = counts_now().compiled - before - kernels;
    check(atomic_load(&counters.kernel_misses) == misses + kernels && atomic_load(&counters.kernel_hits) >= kernels,
          "kernels found are counted, and those not found");
    check(kernels > 0 && more == 0, "forty layers compile %d kernels more than one", (int)more);
    check(x && x->program->ncmd >= 40 * kernels, "and run each kernel forty times");
    graph_free(one);
    graph_free(many);
}

struct racer { const struct graph *g; int device; pthread_barrier_t *start; const struct exec *x; };

static void *race(void *ctx)
{
    struct racer *r = ctx;
    struct err e = {0};
    struct graph *own = graph_clone(r->g); /* every thread has recorded its own */
    pthread_barrier_wait(r->start);
    r->x = exec_get(own, r->device, true, &e);
    graph_free(own);
    return NULL;
}

static void test_race(int device)
{
    enum { THREADS = 6, ROUNDS = 10 };
    bool same = true;
    struct counts before = counts_now();
    for (int round = 0; round < ROUNDS; round++) {
        struct graph *g = layers_graph("race", 50, 10 + round, 3);
        pthread_barrier_t start;
        pthread_barrier_init(&start, NULL, THREADS);
        pthread_t thread[THREADS];
        struct racer racer[THREADS];
        for (int i = 0; i < THREADS; i++) {
            racer[i] = (struct racer){g, device, &start, NULL};
            pthread_create(&thread[i], NULL, race, &racer[i]);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(thread[i], NULL);
            same &= racer[i].x && racer[i].x == racer[0].x;
        }
        pthread_barrier_destroy(&start);
        graph_free(g);
    }
    check(same, "threads that miss together share one program");
    check(counts_now().built == before.built + ROUNDS, "which is planned once");
}

/* A graph that the verifier refuses: an error each time, and nothing stays behind. */
static void test_failure(int device)
{
    struct graph *g = graph_new("bad");
    struct shape s = shape_make(1, (int64_t[]){4});
    ref x = n_input(g, KL_F32, &s, "x");
    graph_output(g, OUT_RETURN, n_add(g, x, x), 0);
    struct shape wrong = shape_make(1, (int64_t[]){5});
    g->node[g->out[0].value].shape = graph_shape(g, &wrong);
    struct counts before = counts_now();
    for (int i = 0; i < 2; i++) {
        struct err e = {0};
        check(!exec_get(g, device, true, &e) && e.code == KL_ERR_INTERNAL && *e.msg, "a bad graph: %s", e.msg);
    }
    check(counts_now().built == before.built, "a bad graph is no program");
    graph_free(g);
}

/* ---- dumps ---- */
static bool file_has(const char *dir, const char *file, const char *phrase)
{
    char path[512], text[16384];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    remove(path);
    return strstr(text, phrase) != NULL;
}

static void test_dumps(int device)
{
    char dir[] = "/tmp/kiln-dump-XXXXXX";
    if (!check(mkdtemp(dir) != NULL, "a folder for the dumps"))
        return;
    struct graph *g = layers_graph("dump/ed", 60, 5 + device, 1), *again = layers_graph("later", 61, 5 + device, 1);
    dump_next_to(dir);
    get(g, device, true);
    static const char *const graphs[] = {"captured", "differentiated", "simplified", "numerics", "fused"};
    for (int i = 0; i < 5; i++) {
        char file[64];
        snprintf(file, sizeof file, "dump_ed.%s.kir", graphs[i]);
        check(file_has(dir, file, "tanh"), "dump %s", file);
    }
    check(file_has(dir, "dump_ed.scheduled.loop", device == DEVICE_REF ? "" : "loop"), "dump scheduled");
    check(file_has(dir, "dump_ed.source.cu", "__global__"), "dump source");
    check(file_has(dir, "dump_ed.schedules.txt", "graph @\"dump/ed\"\n"), "dump schedules");
    if (device != DEVICE_REF) {
        check(file_has(dir, "dump_ed.llvm.ll", "define"), "dump llvm");
        check(file_has(dir, "dump_ed.asm.s", "kernel:"), "dump asm");
    }
    get(again, device, true);
    check(!file_has(dir, "later.captured.kir", ""), "one request dumps one program");
    setenv("KILN_DUMP", "captured,fused,dot,html", 1);
    setenv("KILN_DUMP_DIR", dir, 1);
    graph_free(again);
    again = layers_graph("by_name", 62, 5 + device, 1);
    get(again, device, true);
    graph_free(again);
    again = layers_graph("by_name", 64, 5 + device, 1); /* another program of the name has a number */
    get(again, device, true);
    unsetenv("KILN_DUMP");
    static unsigned number;
    static const char *const file[] = {"html", "captured.dot", "fused.dot", "captured.kir", "fused.kir"};
    static const char *const has[] = {"<title>by_name</title>", "tanh", "cluster_group0", "tanh", "tanh"};
    for (int program = 0; program < 2; program++) {
        char name[32] = "by_name", path[64];
        if (++number > 1)
            snprintf(name, sizeof name, "by_name.%u", number);
        for (int i = 0; i < 5; i++) {
            snprintf(path, sizeof path, "%s.%s", name, file[i]);
            check(file_has(dir, path, has[i]), "%s of KILN_DUMP", path);
        }
    }
    check(rmdir(dir) == 0, "and no others");
    dump_next_to("/nowhere/at/all");
    graph_free(again);
    again = layers_graph("unwritable", 63, 5 + device, 1);
    get(again, device, true); /* that its files cannot be written is no error */
    graph_free(g);
    graph_free(again);
}

static void test_devices(void)
{
    struct err e = {0};
    const char *why = NULL;
    check(device_find("tpu", &e) < 0 && e.code == KL_ERR_DEVICE && strstr(e.msg, "tpu") && strstr(e.msg, "ref") &&
              strstr(e.msg, "cpu"), "an unknown device: %s", e.msg);
    setenv("KILN_DEVICE", "tpu", 1);
    e = (struct err){0};
    check(device_default(&why, &e) < 0 && strstr(e.msg, "tpu"), "KILN_DEVICE is not passed over: %s", e.msg);
    setenv("KILN_DEVICE", "ref", 1);
    check(device_default(&why, &e) == DEVICE_REF && !*why, "KILN_DEVICE=ref");
    unsetenv("KILN_DEVICE");
    e = (struct err){0};
    bool cpu = device_find("cpu", &e) == DEVICE_CPU;
    check(cpu || (e.code == KL_ERR_DEVICE && strstr(e.msg, "KILN_DEVICE=ref")), "no cpu: what to do: %s", e.msg);
    check(device_default(&why, &e) == (cpu ? DEVICE_CPU : DEVICE_REF) && cpu == !strstr(why, "cpu") &&
          strstr(why, "cuda"), "the default and its reason");
}

int main(void)
{
    struct err e = {0};
    unsetenv("KILN_DUMP");
    setenv("KILN_CACHE_DIR", "none", 1); /* what is compiled here is counted; tests/runtime/disk.c has the rest */
    test_devices();
    for (int device = DEVICE_REF; device < DEVICE_HOSTS; device++) {
        if (device != DEVICE_REF && device_find(device_name(device), &e) < 0) {
            printf("SKIP not-built %s: %s\n", device_name(device), e.msg);
            skipped++;
            continue;
        }
        test_hits(device);
        test_race(device);
        test_failure(device);
        test_dumps(device);
        if (device != DEVICE_REF)
            test_kernels_shared(device);
    }
    pool_set_threads(1);
    return finish();
}
