/* Memory of the embedder's, and what happens when it has none: the allocations of the demo's program (three dense
 * layers and Adam, only smaller), from the weights over the compilation to its first steps, fail one by one, each in a
 * process of its own.  The call that meets it fails with MEMORY or does without, every value is as it was before, the
 * same call made again works, and the end is the same bits.  The same with a batch whose length is a symbol: then the
 * steps have programs for ranges of it.
 *
 * Argument: how many of the allocations to try, spread evenly; 0: each. */
#define _GNU_SOURCE
#include "tests/support/api_check.h"
#include "tests/support/deadlines.h"
#include <kiln/train.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(KILN_ASAN)
int __lsan_do_recoverable_leak_check(void);
#endif

/* ---- the memory ---- */

static atomic_llong taken, fail_at;      /* allocations so far; the one that fails, 0: none */
static atomic_bool fail_elsewhere;       /* every one on other threads fails */
static atomic_int failed_elsewhere;
static _Thread_local bool here;

static bool fails(void)
{
    if (!here && atomic_load(&fail_elsewhere)) {
        atomic_fetch_add(&failed_elsewhere, 1);
        return true;
    }
    return atomic_fetch_add(&taken, 1) + 1 == atomic_load(&fail_at);
}

static void *take(void *ctx, size_t bytes)
{
    void *p = fails() || ctx != &taken ? NULL : malloc(bytes);
    return p ? memset(p, 0xa5, bytes) : NULL;
}

static void *grow(void *ctx, void *p, size_t bytes) { return fails() || ctx != &taken ? NULL : realloc(p, bytes); }

static void release(void *ctx, void *p)
{
    if (ctx == &taken && p)
        free(p);
}

/* ---- the program ---- */

enum { BATCH = 8, IN = 12, HIDDEN = 10, OUT = 4, STEPS = 3, LAYERS = 3, STATES = 2 * LAYERS };
static const int64_t width[LAYERS + 1] = {IN, HIDDEN, HIDDEN, OUT};
static const int64_t length[STATES] = {IN * HIDDEN, HIDDEN, HIDDEN * HIDDEN, HIDDEN, HIDDEN * OUT, OUT};

struct result {
    float state[STATES][IN * HIDDEN];
    float loss[STEPS];
    int64_t taken;
    int errors, wrong, wrong_line;       /* what should not be: where first, and what was said */
    char message[256];
};

static kl_device dev;
static struct result *now;
static bool symbolic; /* is the batch a symbol? */

static void wrong(int line)
{
    if (now->wrong++)
        return;
    now->wrong_line = line;
    snprintf(now->message, sizeof now->message, "%s", kl_last_error());
}

/* A call has failed: for want of memory and nothing else, and not twice. */
static bool excused(int line)
{
    if (now->errors++ || kl_last_error_code() != KL_ERR_MEMORY)
        wrong(line);
    kl_clear_error();
    return now->errors == 1;
}
#define RETRY(call, ok) do { call; } while (!(ok) && excused(__LINE__))

static void read_states(kl_tensor *s, float (*to)[IN * HIDDEN])
{
    for (int i = 0; i < STATES; i++) {
        kl_status status;
        RETRY(status = kl_read(s[i], to[i], (size_t)length[i] * sizeof(float)), status == KL_OK);
    }
}

/* A layer, recorded by a function, so that regions are recorded and replayed too. */
static kl_status layer(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const kl_tensor *s = ctx;
    (void)nin, (void)nout;
    out[0] = kl_relu(kl_linear(in[0], s[0], s[1]));
    return KL_OK;
}

/* The weights and the optimizer, in a trace of their own. */
static kl_status init(kl_tensor *s, kl_optimizer **adam)
{
    if (kl_trace_begin("init") != KL_OK)
        return kl_last_error_code();
    for (int i = 0; i < LAYERS; i++) {
        s[2 * i] = kl_keep(kl_mul_scalar(kl_randn(dev, KL_F32, 2, &width[i], (uint64_t)i), 0.5));
        s[2 * i + 1] = kl_keep(kl_zeros(dev, KL_F32, 1, &width[i + 1]));
    }
    *adam = kl_adam(STATES, s, NULL);
    return kl_trace_end();
}

static kl_tensor batch_input(kl_dtype dtype, int rank, int64_t count, const void *data)
{
    const int64_t dims[2] = {count, IN}, lengths[2] = {symbolic ? kl_symbol("batch", 1, 2 * BATCH) : 0, IN};
    return symbolic ? kl_input_symbolic(dev, dtype, rank, lengths, dims, data) : kl_input(dev, dtype, rank, dims, data);
}

static kl_status record_step(kl_tensor *s, kl_optimizer *adam, int number, kl_tensor *loss)
{
    uint8_t x[2 * BATCH * IN], label[2 * BATCH];
    int64_t count = symbolic ? BATCH - 3 + 5 * number : BATCH; /* up to 8 rows and more have programs of their own */
    for (int i = 0; i < count * IN; i++)
        x[i] = (uint8_t)((i * 7 + number * 3) % 11 * 23);
    for (int i = 0; i < count; i++)
        label[i] = (uint8_t)((i + number) % OUT);
    if (kl_trace_begin("step") != KL_OK)
        return kl_last_error_code();
    kl_tensor h = kl_mul_scalar(kl_cast(batch_input(KL_U8, 2, count, x), KL_F32), 1.0 / 255);
    kl_tensor x1 = h;
    kl_checkpoint(layer, s, 1, &x1, 1, &h);
    for (int i = 1; i < LAYERS; i++) {
        h = kl_linear(h, s[2 * i], s[2 * i + 1]);
        h = i + 1 < LAYERS ? kl_relu(h) : h;
    }
    *loss = kl_keep(kl_cross_entropy(h, batch_input(KL_U8, 1, count, label)));
    kl_optimizer_step(adam, *loss, 0.01 / (1 + number));
    return kl_trace_end();
}

/* Products in bf16: the weights' casts, each for two of them, are computed again (passes/fuse/fuse_remat.c). */
static kl_status step(kl_tensor *s, kl_optimizer *adam, int number, kl_tensor *loss)
{
    kl_status status;
    RETRY(status = kl_autocast_begin(KL_BF16), status == KL_OK);
    status = record_step(s, adam, number, loss);
    if (kl_autocast_end() != KL_OK)
        wrong(__LINE__);
    return status;
}

static void train(void)
{
    static float before[STATES][IN * HIDDEN], after[STATES][IN * HIDDEN];
    kl_optimizer *adam = NULL;
    kl_tensor s[STATES], loss = kl_none;
    kl_status status;
    if ((status = init(s, &adam)) != KL_OK) {
        excused(__LINE__);
        kl_optimizer_free(adam);
        if (init(s, &adam) != KL_OK)
            wrong(__LINE__);
    }
    for (int n = 0; n < STEPS; n++) {
        read_states(s, before);
        if ((status = step(s, adam, n, &loss)) != KL_OK) {
            excused(__LINE__);
            if (kl_optimizer_set_steps(adam, n) != KL_OK) /* as optim.h says */
                wrong(__LINE__);
            read_states(s, after);
            if (memcmp(before, after, sizeof before))
                wrong(__LINE__);
            if (step(s, adam, n, &loss) != KL_OK)
                wrong(__LINE__);
        }
        RETRY(now->loss[n] = kl_item_f32(loss), !isnan(now->loss[n]));
        if (kl_release(loss) != KL_OK)
            wrong(__LINE__);
    }
    read_states(s, now->state);
    for (int i = 0; i < STATES; i++)
        kl_release(s[i]);
    kl_optimizer_free(adam);
}

/* ---- one process each ---- */

static struct result *shared;

/* Trains in a child where allocation n fails; 0: none.  false: it crashed, hung or leaked. */
static bool train_in_child(int64_t n)
{
    int status = 1;
    memset(shared, 0, sizeof *shared);
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        end_when_stuck();
        now = shared;
        atomic_store(&taken, 0);
        atomic_store(&fail_at, n);
        train();
        now->taken = atomic_load(&taken);
#if defined(KILN_ASAN)
        _exit(__lsan_do_recoverable_leak_check() ? 2 : 0);
#else
        _exit(0);
#endif
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status);
}

static bool same_end(const struct result *a, const struct result *b)
{
    return !memcmp(a->state, b->state, sizeof a->state) && !memcmp(a->loss, b->loss, sizeof a->loss);
}

/* At least `share` of the allocations tried must end in an error, so that the calls are known to notice.  The rest do
 * without: an entry on disk is not kept or not read, a miss is not explained.  Fewer than ENOUGH say nothing about a
 * share. */
enum { ENOUGH = 12 };
static void one_by_one(const char *what, int64_t max, double share)
{
    static struct result good;
    train_in_child(0); /* fills the folder of kernels, if there is one */
    if (!CHECK(train_in_child(0) && shared->taken > 100 && !shared->errors && !shared->wrong && shared->loss[0] > 0))
        return;
    good = *shared;
    int64_t tried = 0, reported = 0, each = max && max < good.taken ? good.taken / max : 1;
    for (int64_t n = each > 1 ? 1 + (int64_t)getpid() % each : 1; n <= good.taken; n += each) {
        bool fine = train_in_child(n);
        tried++;
        reported += shared->errors;
        if (!fine || shared->wrong || !same_end(shared, &good)) {
            printf("allocation %lld of %lld: %s, line %d: %s; %d errors, %s end\n", (long long)n, (long long)good.taken,
                   !fine ? "crashed or leaked" : shared->wrong ? "wrong" : "fine", shared->wrong_line, shared->message,
                   shared->errors, same_end(shared, &good) ? "same" : "other");
            CHECK(!"an allocation that fails");
        } else {
            passed++;
        }
    }
    printf("%s: %lld allocations, %lld tried, %lld of them an error\n", what, (long long)good.taken, (long long)tried,
           (long long)reported);
    CHECK(tried < ENOUGH || (double)reported > share * (double)tried);
}

/* ---- a compilation in the background that fails is made up for by the next that is asked for ---- */

/* Runs a chain; *kernels: of how many. */
static bool run_chain(kl_tensor w, const char *name, double factor, int64_t *kernels)
{
    kl_run_info info;
    kl_trace_begin(name);
    kl_tensor y = kl_keep(kl_sum(kl_tanh(kl_mul(kl_mul(w, w), kl_const(dev, KL_F32, factor))), 0, NULL, false));
    bool ok = kl_trace_end() == KL_OK && kl_trace_info(&info) == KL_OK && !isnan(kl_item_f32(y));
    *kernels = info.kernels;
    return kl_release(y) == KL_OK && ok;
}

static bool background_fails(void)
{
    kl_tensor w = kl_randn(dev, KL_F32, DIMS(31), 5);
    int64_t first, fused, again = -1;
    bool ok = run_chain(w, "fused", 2.5, &fused) && kl_set_option("background_compile", 1) == KL_OK;
    atomic_store(&fail_elsewhere, true);
    ok = ok && run_chain(w, "first", 1.5, &first);
    for (int ms = 0; ok && ms < WAIT_MS && !atomic_load(&failed_elsewhere); ms++)
        usleep(1000);
    usleep(20000); /* more of them fail */
    atomic_store(&fail_elsewhere, false);
    for (int ms = 0; ok && ms < WAIT_MS && again != fused; ms++) { /* the thread may still be about to give up */
        ok = run_chain(w, "again", 1.5, &again);
        usleep(1000);
    }
    kl_release(w);
    return ok && first > fused && again == fused && atomic_load(&failed_elsewhere) > 0;
}

static void background(void)
{
    int status = 1;
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        end_when_stuck();
        exit(background_fails() ? 0 : 1);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
    kl_memory m = {take, grow, NULL, &taken};
    int64_t max = argc > 1 ? atoll(argv[1]) : 300;
    char folder[] = "/tmp/kiln-failures-XXXXXX";
    here = true;
    CHECK(kl_set_memory(NULL) == KL_ERR_ARGUMENT && kl_set_memory(&m) == KL_ERR_ARGUMENT);
    m.release = release;
    CHECK(kl_set_memory(&m) == KL_OK);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED && mkdtemp(folder));
    OK(kl_set_option("threads", 1)); /* children are forked from one thread */
    if (!getenv("KILN_DEVICE"))
        setenv("KILN_DEVICE", "cpu", 0);
    dev = kl_device_default();
    if (!CHECK(dev.id != 0))
        return 1;
    setenv("KILN_CACHE_DIR", folder, 1);
    one_by_one("kernels from disk", max, 0.4); /* lowered kernels that cannot be read from disk are made again */
    setenv("KILN_CACHE_DIR", "none", 1);
    one_by_one("kernels compiled", max / 8, 0.6);
    if (!strcmp(kl_device_name(dev), "cpu")) {
        symbolic = true;
        one_by_one("a symbolic batch", max / 4, 0.6);
        background();
    }
    OK(kl_scope_begin());
    OK(kl_scope_end());
    CHECK(kl_set_memory(&m) == KL_ERR_ARGUMENT); /* too late */
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(!system(command));
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
