/* <kiln/formats/snapshot.h>: a run that goes on from a snapshot has the bits of one that was never interrupted, also
 * after its process was killed at any moment, 100 times; writes that end early leave the file as it was. */
#include "tests/support/api_check.h"
#include "tests/support/deadlines.h"
#include <kiln/train.h>
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static kl_device dev;
static char folder[] = "/tmp/kiln-snapshot-XXXXXX", path_text[300];

static const char *path_of(const char *name)
{
    snprintf(path_text, sizeof path_text, "%s/%s", folder, name);
    return path_text;
}

static bool says(const char *text)
{
    if (strstr(kl_last_error(), text))
        return true;
    printf("  \"%s\" has no \"%s\"\n", kl_last_error(), text);
    return false;
}

static int files_with(const char *where, const char *part)
{
    int n = 0;
    DIR *d = opendir(where);
    for (struct dirent *e; d && (e = readdir(d));)
        n += strstr(e->d_name, part) != NULL;
    if (d)
        closedir(d);
    return n;
}

/* A run: parameters, an optimizer's state, a schedule, seeds and the position in the data. */
enum { STEPS = 120, WIDE = 16 };
struct run {
    kl_tensor w;
    kl_tensor average;
    int64_t step, position;
    double rate;
    kl_snapshot *c;
};

static void run_start(struct run *r, uint64_t seed)
{
    kl_seed(dev, seed);
    *r = (struct run){.rate = 0.1};
    r->w = kl_randn(dev, KL_F32, 2, (int64_t[]){WIDE, WIDE}, kl_next_seed(dev));
    r->average = kl_zeros(dev, KL_F32, 2, (int64_t[]){WIDE, WIDE});
    r->c = kl_snapshot_new();
    OK(kl_snapshot_tensor(r->c, "w", r->w));
    OK(kl_snapshot_tensor(r->c, "average", r->average));
    OK(kl_snapshot_i64(r->c, "step", &r->step));
    OK(kl_snapshot_i64(r->c, "position", &r->position));
    OK(kl_snapshot_f64(r->c, "rate", &r->rate));
    OK(kl_snapshot_seeds(r->c, dev));
    OK(kl_snapshot_note(r->c, "model", "first"));
    OK(kl_snapshot_note(r->c, "model", "a test"));
}

static void run_step(struct run *r)
{
    kl_trace_begin("step");
    int64_t position = r->position * 7;
    kl_tensor x = kl_rand(dev, KL_F32, 2, (int64_t[]){8, WIDE}, kl_next_seed(dev));
    kl_tensor y = kl_matmul(x, r->w), shift = kl_scalar(dev, KL_F32, (double)(position % 5));
    kl_tensor g = kl_grad(kl_mul_scalar(kl_sum_all(kl_square(kl_sub(y, shift))), 0.01), r->w);
    kl_assign(r->average, kl_add(kl_mul_scalar(r->average, 0.9), g));
    kl_assign(r->w, kl_sub(r->w, kl_mul_scalar(r->average, r->rate)));
    if (kl_trace_end() != KL_OK)
        CHECK(!"a step");
    r->rate *= 0.99;
    r->position = (r->position * 31 + 7) % 1009;
    r->step++;
}

/* All of its state as one number. */
static uint64_t run_bits(const struct run *r)
{
    float v[2][WIDE * WIDE];
    uint64_t h = 14695981039346656037u, numbers[4] = {(uint64_t)r->step, (uint64_t)r->position, 0, kl_seed_state(dev)};
    memcpy(&numbers[2], &r->rate, sizeof r->rate);
    if (kl_read(r->w, v[0], sizeof v[0]) != KL_OK || kl_read(r->average, v[1], sizeof v[1]) != KL_OK)
        return 0;
    for (size_t i = 0; i < sizeof v; i++)
        h = (h ^ ((const uint8_t *)v)[i]) * 1099511628211u;
    for (size_t i = 0; i < sizeof numbers; i++)
        h = (h ^ ((const uint8_t *)numbers)[i]) * 1099511628211u;
    return h;
}

static void run_end(struct run *r)
{
    kl_release(r->w);
    kl_release(r->average);
    kl_snapshot_free(r->c);
}

static uint64_t bits_at[STEPS + 1]; /* of the run that is not interrupted */

static void uninterrupted(void)
{
    struct run r;
    run_start(&r, 5);
    for (bits_at[0] = run_bits(&r); r.step < STEPS; bits_at[r.step] = run_bits(&r))
        run_step(&r);
    CHECK(bits_at[1] != bits_at[2] && bits_at[1] && bits_at[STEPS]);
    run_end(&r);
}

static void resumed(void)
{
    struct run r;
    const char *path = path_of("one.safetensors");
    run_start(&r, 5);
    while (r.step < 40)
        run_step(&r);
    OK(kl_snapshot_save(r.c, path));
    run_step(&r); /* what was saved does not change */
    run_end(&r);
    run_start(&r, 99);
    OK(kl_snapshot_load(r.c, path));
    CHECK(r.step == 40 && run_bits(&r) == bits_at[40]);
    while (r.step < STEPS) {
        run_step(&r);
        if (!CHECK(run_bits(&r) == bits_at[r.step]))
            break;
    }
    OK(kl_snapshot_load(r.c, path)); /* back */
    CHECK(run_bits(&r) == bits_at[40]);
    kl_file *f = kl_file_open(path);
    int64_t note = kl_file_meta_find(f, "model");
    CHECK(note >= 0 && !strcmp(kl_file_meta_text(f, (uint32_t)note, 0), "a test"));
    kl_file_close(f);
    run_end(&r);
}

static void mistakes(void)
{
    struct run r;
    const char *path = path_of("one.safetensors");
    run_start(&r, 3);
    uint64_t before = run_bits(&r);
    int64_t more = 11;
    CHECK(kl_snapshot_i64(r.c, "step", &more) == KL_ERR_ARGUMENT && says("it has a \"step\""));
    OK(kl_snapshot_i64(r.c, "more", &more));
    CHECK(kl_snapshot_load(r.c, path) == KL_ERR_IO && says("one.safetensors has no \"more\""));
    CHECK(run_bits(&r) == before && more == 11);
    kl_snapshot *c = kl_snapshot_new();
    kl_tensor other = kl_zeros(dev, KL_F32, 1, (int64_t[]){3});
    OK(kl_snapshot_tensor(c, "w", other));
    CHECK(kl_snapshot_load(c, path) == KL_ERR_IO && says("field w: it is f32[16,16] in the file and f32[3] here"));
    kl_snapshot_free(c);
    c = kl_snapshot_new();
    OK(kl_snapshot_tensor(c, "w", r.w));
    CHECK(kl_snapshot_load(c, path) == KL_ERR_IO && says("it is in the file alone"));
    CHECK(run_bits(&r) == before);
    kl_trace_begin("open");
    CHECK(kl_snapshot_save(c, path_of("two.safetensors")) == KL_ERR_TRACE);
    kl_trace_abandon();
    kl_tensor q = kl_to_quantized(r.w, (kl_qscheme){.type = KL_Q_I8}, kl_none, kl_none);
    CHECK(kl_snapshot_tensor(c, "q", q) == KL_ERR_TYPE && says("\"q\" is no dense tensor"));
    CHECK(kl_snapshot_save(NULL, path) == KL_ERR_ARGUMENT && kl_snapshot_load(c, NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_snapshot_save_step(c, "/nowhere/at/all", "x", 1, 1) == KL_ERR_IO && says("/nowhere/at/all"));
    CHECK(kl_snapshot_save_step(c, folder, "x", -1, 1) == KL_ERR_ARGUMENT);
    CHECK(kl_snapshot_load(c, path_of("none")) == KL_ERR_IO && says("cannot open"));
    kl_snapshot_free(c);
    kl_release(q);
    kl_release(other);
    run_end(&r);
}

/* ---- a tree of parameters, Adam and a shuffled loader ---- */

static kl_status fill_numbers(void *ctx, int64_t n, const int64_t *samples, void *batch, char *message)
{
    (void)ctx;
    (void)message;
    for (int64_t i = 0; i < n; i++)
        ((float *)batch)[i] = (float)samples[i] / 40;
    return KL_OK;
}

struct trained { kl_params *params; kl_optimizer *opt; kl_loader *loader; kl_snapshot *c; };

static struct trained trained_new(uint64_t seed)
{
    struct trained t = {.params = kl_params_new(dev, KL_F32, seed), .c = kl_snapshot_new()};
    kl_init init = {.kind = KL_INIT_NORMAL, .std = 1};
    kl_params_make(t.params, "fc.weight", 2, (int64_t[]){4, 3}, &init);
    kl_params_make(t.params, "fc.bias", 1, (int64_t[]){3}, NULL);
    int64_t n;
    const kl_tensor *list = kl_params_trained(t.params, &n);
    t.opt = kl_adam(n, list, NULL);
    OK(kl_optimizer_attach(t.opt, t.params));
    t.loader = kl_loader_new(&(kl_loader_options){.count = 40, .batch = 4, .bytes = 16, .fill = fill_numbers,
                                                  .seed = 3});
    OK(kl_snapshot_params(t.c, t.params));
    OK(kl_snapshot_optimizer(t.c, "adam", t.opt));
    OK(kl_snapshot_loader(t.c, "data", t.loader));
    return t;
}

static void trained_steps(struct trained *t, int steps, float *losses)
{
    for (int i = 0; i < steps; i++) {
        kl_batch b;
        OK(kl_loader_next(t->loader, &b));
        kl_trace_begin("trained");
        kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){1, 4}, b.data);
        kl_tensor y = kl_linear(x, kl_params_find(t->params, "fc.weight"), kl_params_find(t->params, "fc.bias"));
        kl_tensor loss = kl_keep(kl_sum_all(kl_square(y)));
        kl_optimizer_step(t->opt, loss, 0.01);
        OK(kl_trace_end());
        losses[i] = kl_item_f32(loss);
        kl_release(loss);
    }
}

static void trained_free(struct trained *t)
{
    kl_snapshot_free(t->c);
    kl_loader_free(t->loader);
    kl_optimizer_free(t->opt);
    kl_params_free(t->params);
}

static void trains_on(void)
{
    float whole[30], half[15];
    char path[300];
    snprintf(path, sizeof path, "%s", path_of("trained.safetensors"));
    struct trained t = trained_new(1);
    trained_steps(&t, 15, whole);
    OK(kl_snapshot_save(t.c, path));
    trained_steps(&t, 15, whole + 15);
    trained_free(&t);
    t = trained_new(2);
    OK(kl_snapshot_load(t.c, path));
    CHECK(kl_optimizer_steps(t.opt) == 15 && kl_loader_position(t.loader) == 15);
    trained_steps(&t, 15, half);
    CHECK(!memcmp(half, whole + 15, sizeof half) && whole[15] != whole[0]);
    kl_file *f = kl_file_open(path);
    CHECK(kl_file_find(f, "fc.weight") >= 0 && kl_file_find(f, "adam.fc.weight.m") >= 0 &&
          kl_file_find(f, "adam.steps") >= 0 && kl_file_find(f, "data") >= 0 && kl_file_count(f) == 8);
    kl_file_close(f);
    trained_free(&t);
}

/* The disk takes n bytes more: each save fails, and the file is the one before. */
static void short_writes(void)
{
    struct run r;
    const char *path = path_of("one.safetensors");
    struct rlimit old, few;
    run_start(&r, 7);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
    int wrong = 0, saves = 0;
    for (rlim_t n = 0; n < 100000; n += n < 64 ? 1 : 97) {
        few = (struct rlimit){n, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &few);
        kl_status status = kl_snapshot_save(r.c, path);
        setrlimit(RLIMIT_FSIZE, &old);
        if (status == KL_OK)
            break;
        saves++;
        kl_file *f = kl_file_open(path);
        wrong += status != KL_ERR_IO || !f || *(const int64_t *)kl_file_data(f, "step") != 40;
        kl_file_close(f);
    }
    CHECK(wrong == 0 && saves > 70 && saves < 400);
    CHECK(files_with(folder, "part") == 0);
    uint64_t bits = run_bits(&r);
    r.step = 77;
    OK(kl_snapshot_load(r.c, path)); /* the first that fitted */
    CHECK(run_bits(&r) == bits);
    run_end(&r);
}

static void keeps_last(void)
{
    struct run r;
    char where[300];
    int64_t step;
    snprintf(where, sizeof where, "%s", path_of("kept"));
    run_start(&r, 5);
    OK(kl_snapshot_load_last(r.c, where, "m", &step));
    CHECK(step == -1 && r.step == 0);
    while (r.step < 12) {
        run_step(&r);
        OK(kl_snapshot_save_step(r.c, where, "m", r.step, 3));
        OK(kl_snapshot_save_step(r.c, where, "m-2", r.step, 0));
    }
    CHECK(files_with(where, "m-0") == 3 && files_with(where, "m-2-0") == 12);
    OK(kl_snapshot_load_last(r.c, where, "m", &step));
    CHECK(step == 12 && run_bits(&r) == bits_at[12]);
    /* a file that a machine's end has cut off, and one that a killed process left */
    char line[1000];
    snprintf(line, sizeof line, "cd %s && truncate -s 100 m-000000000012.safetensors && "
             "touch m-000000000099.safetensors.999999999.0.part m-000000000099.safetensors.1.0.part", where);
    CHECK(system(line) == 0);
    OK(kl_snapshot_load_last(r.c, where, "m", &step));
    CHECK(step == 11 && run_bits(&r) == bits_at[11]);
    OK(kl_snapshot_save_step(r.c, where, "m", 4, 3)); /* an older step than those that are there */
    CHECK(files_with(where, "m-0") == 4 + 1 && files_with(where, "part") == 1); /* process 1 runs */
    run_end(&r);
}

/* ---- killed ---- */

static void child_runs(const char *where)
{
    struct run r;
    run_start(&r, 5);
    int64_t step;
    if (kl_snapshot_load_last(r.c, where, "run", &step) != KL_OK)
        _exit(3);
    while (r.step < STEPS) {
        run_step(&r);
        if (kl_snapshot_save_step(r.c, where, "run", r.step, 2) != KL_OK)
            _exit(4);
    }
    _exit(failed ? 5 : 0);
}

/* Has the child ended?  It is not waited for. */
static bool is_over(pid_t child)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == child;
}

static void killed(void)
{
    struct run r;
    char where[300];
    enum { KILLS = 100, MAX_STARTS = 100000 };
    int kills = 0, writing = 0, wrong = 0, starts = 0;
    uint64_t seed = 1;
    int64_t last = -1, step = -1;
    snprintf(where, sizeof where, "%s", path_of("killed"));
    run_start(&r, 8);
    fflush(NULL);
    for (; (kills < KILLS || !writing) && starts < MAX_STARTS && !wrong; starts++) {
        pid_t child = fork();
        if (child == 0)
            child_runs(where);
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        /* after so many steps more, and a part of one */
        int64_t to = (last < 0 ? 0 : last) + (starts % 3 == 0);
        char path[400];
        snprintf(path, sizeof path, "%s/run-%012lld.safetensors", where, (long long)to);
        for (int i = 0; i < 10 * WAIT_MS && to > 0 && access(path, F_OK) != 0 && !is_over(child); i++)
            nanosleep(&(struct timespec){0, 100000}, NULL);
        nanosleep(&(struct timespec){0, (long)(seed >> 40) % 3000000}, NULL);
        int status;
        kill(child, SIGKILL);
        if (waitpid(child, &status, 0) == child && WIFSIGNALED(status))
            kills++;
        writing += files_with(where, "part") > 0;
        kl_status loaded = kl_snapshot_load_last(r.c, where, "run", &step);
        wrong += loaded != KL_OK || step < last || (step >= 0 && (r.step != step || run_bits(&r) != bits_at[step]));
        if (step == STEPS) { /* it was through: once more from the start */
            char line[400];
            snprintf(line, sizeof line, "rm -r %s", where);
            CHECK(system(line) == 0);
            step = -1;
        }
        last = step;
    }
    printf("killed %d times, %d of them while it wrote\n", kills, writing);
    CHECK(kills >= KILLS && wrong == 0 && writing > 0);
    pid_t child = fork();
    if (child == 0)
        child_runs(where);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(kl_snapshot_load_last(r.c, where, "run", &step));
    CHECK(step == STEPS && run_bits(&r) == bits_at[STEPS]);
    CHECK(files_with(where, "part") == 0 && files_with(where, "run-") == 2);
    run_end(&r);
}

int main(void)
{
    dev = kl_device_named("ref");
    if (!mkdtemp(folder))
        return 1;
    uninterrupted();
    resumed();
    mistakes();
    trains_on();
    short_writes();
    keeps_last();
    killed();
    char line[300];
    snprintf(line, sizeof line, "rm -r %s", folder);
    CHECK(system(line) == 0);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
