/* ONNX models beside onnxruntime, in alternation, on one and on two threads: all *.onnx in the folder that
 * KILN_TEST_MODELS names and in those below it, the smallest file first.  One inference; input i is read from
 * MODEL.onnx.i.npy beside the model, where there is one (tests/onnx/real_models.py writes them), else it is zeros with
 * lengths of 1 where the model leaves them open.  Times on one thread are processor time, on two elapsed time.  A row's
 * baseline is onnxruntime, its ratio the peer's time over Kiln's; the cases' geometric means stand at the end.  Cases
 * first/MODEL, measured last, are what a process takes from its start to the first result when its kernels are on disk.
 * A line for each model goes to stderr as soon as it is measured.
 *
 * onnxruntime runs in a process of its own, peers/onnxruntime_turns.py by the Python that KILN_TEST_PYTHON names;
 * `./run bench models` installs it into build/onnxruntime.  Without it Kiln is measured alone. */
#define _GNU_SOURCE
#include "bench.h"
#include "bench/model_run.h"
#include "bench/peers/peer.h"
#include <ftw.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 15, MODELS = 200 };

static void start_onnxruntime(struct peer *p)
{
    const char *python = getenv("KILN_TEST_PYTHON"), *script = getenv("KILN_TEST_TURNS");
    *p = (struct peer){.why = "onnxruntime is not installed"};
    if (python && script)
        peer_start(p, 0, NULL, (char *[]){(char *)python, (char *)script, NULL});
    if (p->why[0])
        fprintf(stderr, "bench_models: models are compared with nothing: %s\n", p->why);
}

/* One sample: the median of `calls`, in seconds; negative: it cannot. */
static double peer_turn(struct peer *p, const char *path, int threads, int calls)
{
    char line[100] = "";
    return peer_ask(p, line, sizeof line, "%d %d %s", threads, calls, path) ? strtod(line, NULL) : -1;
}

/* ---- one model ---- */

static bool run_turn(struct model_run *r, int threads, int calls, double *median)
{
    struct samples took = {0};
    for (int i = 0; i < calls; i++) {
        double start = model_clock(threads);
        if (!model_run_once(r))
            return false;
        samples_add(&took, model_clock(threads) - start);
    }
    *median = samples_median(&took);
    return true;
}

static bool measure_turns(struct bench *b, struct peer *p, struct model_run *r, const char *path, int threads,
                          struct samples *ours, struct samples *theirs)
{
    double one = 0;
    if (!run_turn(r, threads, 2, &one))
        return false;
    int calls = (int)(0.02 / one), rounds = one > 0.1 ? ROUNDS / 3 : ROUNDS; /* 20 ms a sample */
    calls = calls < 1 ? 1 : calls > MAX_SAMPLES ? MAX_SAMPLES : calls;
    for (int round = -1; round < bench_rounds(b, rounds); round++) {
        double mine = 0;
        usleep(20000); /* the peer's threads wait in a loop for a while */
        if (!run_turn(r, threads, calls, &mine))
            return false;
        double other = peer_turn(p, path, threads, calls);
        if (round < 0) /* that round starts the threads */
            continue;
        samples_add(ours, mine);
        if (other > 0)
            samples_add(theirs, other);
    }
    return true;
}

static void measure_model(struct bench *b, kl_device dev, struct peer *p, const char *name, const char *path,
                          int threads)
{
    static struct samples ours, theirs;
    struct model_run r;
    ours.n = theirs.n = 0;
    kl_set_option("threads", threads);
    bool ok = model_run_open(&r, dev, path) && measure_turns(b, p, &r, path, threads, &ours, &theirs);
    const char *variant = r.step ? "kiln" : "kiln, recorded";
    char why[160];
    snprintf(why, sizeof why, "%s", ok ? "" : kl_last_error());
    model_run_close(&r);
    if (!ok) {
        bench_missing(b, name, "kiln", threads, why);
        fprintf(stderr, "bench_models: %s, %d threads: %s\n", name, threads, why);
        return;
    }
    fprintf(stderr, "bench_models: %s, %d threads: %.0f us, onnxruntime %.0f us, %.3f\n", name, threads,
            1e6 * samples_median(&ours), theirs.n ? 1e6 * samples_median(&theirs) : NAN,
            theirs.n ? samples_median(&theirs) / samples_median(&ours) : NAN);
    struct result *row = bench_add(b, name, variant, threads, &ours, "us", 0, 0);
    if (theirs.n) {
        bench_baseline(row, "onnxruntime", samples_median(&theirs) / samples_median(&ours));
        bench_add(b, name, "onnxruntime", threads, &theirs, "us", 0, 0);
    } else {
        bench_missing(b, name, "onnxruntime", threads, p->why[0] ? p->why : "it cannot run this model");
    }
}

/* ---- a process's first inference ---- */

static int first_inference(const char *path)
{
    struct model_run r;
    return model_run_open(&r, kl_device_default(), path) && model_run_once(&r) ? 0 : 1;
}

static bool measure_first(struct bench *b, const char *self, const char *name, const char *path)
{
    static struct samples took;
    took.n = 0;
    for (int round = -1; round < bench_rounds(b, 7); round++) { /* round -1 leaves the kernels on disk */
        double start = measure_now();
        pid_t pid = fork();
        int status = 1;
        if (pid == 0) {
            execl(self, self, "--first", path, (char *)NULL);
            _exit(127);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
            return false;
        if (round >= 0)
            samples_add(&took, measure_now() - start);
    }
    bench_add(b, name, "kiln", 1, &took, "us", 0, 20e3);
    return true;
}

/* ---- --smoke: a small model of its own in place of the trained ones ---- */

static kl_status predict(void *weight, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_softmax(kl_relu(kl_matmul(in[0], *(kl_tensor *)weight)), -1);
    return KL_OK;
}

/* Makes the folder, of which the last letters are replaced, and a model in it.  false: see kl_last_error. */
static bool make_model(char *folder)
{
    char path[600];
    kl_device dev = kl_device_default();
    if (!mkdtemp(folder))
        return false;
    snprintf(path, sizeof path, "%s/classes.onnx", folder);
    kl_tensor like = kl_zeros(dev, KL_F32, 2, (int64_t[]){1, 16});
    kl_tensor weight = kl_randn(dev, KL_F32, 2, (int64_t[]){16, 10}, 1);
    bool ok = kl_model_save(path, predict, &weight, 1, &like, NULL, 1, NULL) == KL_OK;
    kl_release(like);
    kl_release(weight);
    return ok;
}

static void remove_model(const char *folder)
{
    char path[600];
    snprintf(path, sizeof path, "%s/classes.onnx", folder);
    unlink(path);
    rmdir(folder);
}

/* ---- all models of a folder ---- */

static struct model_file { char path[600]; int64_t size; } models[MODELS];
static size_t model_count;

static int visit(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)at;
    size_t length = strlen(path);
    struct model_file *f = &models[model_count];
    if (kind != FTW_F || length < 5 || strcmp(path + length - 5, ".onnx") || model_count == MODELS)
        return 0;
    f->size = st->st_size;
    model_count += (size_t)snprintf(f->path, sizeof f->path, "%s", path) < sizeof f->path;
    return 0;
}

static int by_size(const void *a, const void *b)
{
    const struct model_file *x = a, *y = b;
    return (x->size > y->size) - (x->size < y->size);
}

/* The model's name: its path from the folder on, without the ending. */
static void name_of(const char *path, const char *folder, char *name, size_t size)
{
    snprintf(name, size, "%s", path + strlen(folder) + 1);
    name[strlen(name) - 5] = 0;
}

static bool measure_all(struct bench *b, struct peer *p, const char *self, const char *folder)
{
    kl_device dev = bench_device(b);
    char name[600], first[620];
    for (size_t i = 0; i < model_count; i++) {
        name_of(models[i].path, folder, name, sizeof name);
        for (int threads = 1; threads <= 2 && bench_wants(b, name); threads++)
            measure_model(b, dev, p, name, models[i].path, threads);
    }
    for (size_t i = 0; i < model_count; i++) {
        name_of(models[i].path, folder, name, sizeof name);
        snprintf(first, sizeof first, "first/%s", name);
        if (bench_wants(b, first) && !measure_first(b, self, first, models[i].path))
            return bench_fail(b, first), false;
    }
    return true;
}

static void print_means(const struct results *r)
{
    for (int threads = 1; threads <= 2; threads++) {
        double sum = 0, least = INFINITY;
        int n = 0;
        for (int i = 0; i < (int)r->n; i++)
            if (r->row[i].ratio > 0 && r->row[i].threads == threads) {
                sum += log(r->row[i].ratio);
                least = r->row[i].ratio < least ? r->row[i].ratio : least;
                n++;
            }
        if (n)
            fprintf(stderr, "bench_models: onnxruntime's time over Kiln's, %d models, %d threads: geometric mean %.3f, "
                            "least %.3f\n", n, threads, exp(sum / n), least);
    }
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct peer p;
    if (argc == 3 && !strcmp(argv[1], "--first"))
        return first_inference(argv[2]);
    if (!bench_open(&b, "models", argc, argv))
        return b.status;
    char made[] = "/tmp/kiln-models-XXXXXX";
    const char *folder = b.smoke && make_model(made) ? made : getenv("KILN_TEST_MODELS");
    if (!folder) {
        fprintf(stderr, "bench_models: KILN_TEST_MODELS is not a folder of models\n");
        return bench_close(&b);
    }
    nftw(folder, visit, 8, FTW_PHYS);
    qsort(models, model_count, sizeof *models, by_size);
    start_onnxruntime(&p);
    bool ok = measure_all(&b, &p, argv[0], folder);
    peer_end(&p);
    if (folder == made)
        remove_model(made);
    print_means(&b.results);
    return ok ? bench_close(&b) : 1;
}
