/* ONNX models beside onnxruntime, in alternation, on one and on two threads: mnist-cnn.onnx, opt-mnist.onnx,
 * ultraface_slim.onnx and silero_vad_v6.onnx, as many as are in the folder that KILN_TEST_MODELS names; one inference,
 * all inputs zeros.  A row's baseline is onnxruntime, its ratio the peer's time over Kiln's.  Also what a process takes
 * from its start to the first result when its kernels are on disk.
 *
 * onnxruntime runs in a process of its own, peers/onnxruntime_turns.py by the Python that KILN_TEST_PYTHON names;
 * `./run bench models` installs it into build/onnxruntime.  Without it Kiln is measured alone. */
#define _GNU_SOURCE
#include "bench.h"
#include "bench/peers/peer.h"
#include <kiln/onnx.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 15, VALUES = 8 };
static const char *const names[] = {"opt-mnist", "mnist-cnn", "silero_vad_v6", "ultraface_slim"};

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

/* ---- Kiln ---- */

struct run { kl_model *m; kl_step *step; uint32_t nin, nout; kl_tensor in[VALUES]; };

static bool run_open(struct run *r, kl_device dev, const char *path)
{
    kl_tensor out[VALUES];
    *r = (struct run){.m = kl_model_open(dev, path)};
    r->nin = kl_model_inputs(r->m);
    r->nout = kl_model_outputs(r->m);
    if (!r->m || r->nin > VALUES || r->nout > VALUES)
        return false;
    kl_trace_begin("model");
    kl_tensor in[VALUES];
    for (uint32_t i = 0; i < r->nin; i++) {
        kl_model_value v;
        size_t n = 1;
        kl_model_input(r->m, i, &v);
        for (int k = 0; k < v.rank; k++) {
            v.dims[k] = v.dims[k] < 0 ? 1 : v.dims[k];
            n *= (size_t)v.dims[k];
        }
        float *zeros = calloc(n, sizeof *zeros);
        in[i] = kl_input(dev, v.dtype, v.rank, v.dims, zeros);
        kl_trace_suspend();
        r->in[i] = kl_input(dev, v.dtype, v.rank, v.dims, zeros);
        kl_trace_resume();
        free(zeros);
    }
    bool ok = kl_model_call(r->m, r->nin, in, r->nout, out) == KL_OK;
    for (uint32_t i = 0; ok && i < r->nout; i++)
        kl_keep(out[i]);
    r->step = kl_trace_end_step((int)r->nin, in);
    return ok && r->step;
}

/* Runs it and reads its first result. */
static bool run_once(struct run *r, float *to)
{
    kl_tensor out[VALUES];
    if (kl_step_run(r->step, (int)r->nin, r->in, 0, NULL, (int)r->nout, out) != KL_OK)
        return false;
    bool ok = kl_read(out[0], to, (size_t)kl_numel(out[0]) * sizeof *to) == KL_OK;
    for (uint32_t i = 0; i < r->nout; i++)
        kl_release(out[i]);
    return ok;
}

static void run_close(struct run *r)
{
    for (uint32_t i = 0; i < r->nin; i++)
        kl_release(r->in[i]);
    kl_step_free(r->step);
    kl_model_close(r->m);
}

static int by_value(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

static bool run_turn(struct run *r, int calls, float *to, double *median)
{
    double took[1000];
    for (int i = 0; i < calls; i++) {
        double start = measure_now();
        if (!run_once(r, to))
            return false;
        took[i] = measure_now() - start;
    }
    qsort(took, (size_t)calls, sizeof *took, by_value);
    *median = took[calls / 2];
    return true;
}

static bool measure_model(struct bench *b, kl_device dev, struct peer *p, const char *name, const char *path,
                          int threads)
{
    static struct samples ours, theirs;
    static float result[1 << 16];
    struct run r;
    double one;
    ours.n = theirs.n = 0;
    kl_set_option("threads", threads);
    bool ok = run_open(&r, dev, path) && run_turn(&r, 3, result, &one);
    int calls = ok ? (int)(0.02 / one) : 1; /* 20 ms a sample */
    calls = calls < 3 ? 3 : calls > 1000 ? 1000 : calls;
    for (int round = -1; ok && round < bench_rounds(b, ROUNDS); round++) {
        double mine = 0;
        usleep(20000); /* the peer's threads wait in a loop for a while */
        ok = run_turn(&r, calls, result, &mine);
        double other = peer_turn(p, path, threads, calls);
        if (!ok || round < 0) /* that round starts the threads */
            continue;
        samples_add(&ours, mine);
        if (other > 0)
            samples_add(&theirs, other);
    }
    run_close(&r);
    if (!ok)
        return false;
    struct result *row = bench_add(b, name, "kiln", threads, &ours, "us", 0, 0);
    if (theirs.n) {
        bench_baseline(row, "onnxruntime", samples_median(&theirs) / samples_median(&ours));
        bench_add(b, name, "onnxruntime", threads, &theirs, "us", 0, 0);
    } else {
        bench_missing(b, name, "onnxruntime", threads, p->why[0] ? p->why : "it cannot run this model");
    }
    return true;
}

/* ---- a process's first inference ---- */

static int first_inference(const char *path)
{
    static float result[1 << 16];
    struct run r;
    return run_open(&r, kl_device_default(), path) && run_once(&r, result) ? 0 : 1;
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
    bench_add(b, name, "first inference", 1, &took, "us", 0, 20e3);
    return true;
}

/* ---- --smoke: a small model of its own in place of the trained ones ---- */

static kl_status predict(void *weight, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_softmax(kl_relu(kl_matmul(in[0], *(kl_tensor *)weight)), -1);
    return KL_OK;
}

static void model_path(char *path, size_t size, const char *folder, const char *name)
{
    snprintf(path, size, "%s/%s.onnx", folder, name);
}

/* Makes the folder, of which the last letters are replaced, and a model in it.  false: see kl_last_error. */
static bool make_model(char *folder)
{
    char path[600];
    kl_device dev = kl_device_default();
    if (!mkdtemp(folder))
        return false;
    model_path(path, sizeof path, folder, names[0]);
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
    model_path(path, sizeof path, folder, names[0]);
    unlink(path);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct peer p;
    struct stat st;
    if (argc == 3 && !strcmp(argv[1], "--first"))
        return first_inference(argv[2]);
    if (!bench_open(&b, "models", argc, argv))
        return b.status;
    char made[] = "/tmp/kiln-models-XXXXXX";
    const char *folder = b.smoke && make_model(made) ? made : getenv("KILN_TEST_MODELS");
    if (!folder) {
        fprintf(stderr, "bench_models: KILN_TEST_MODELS is not a folder of trained models\n");
        return bench_close(&b);
    }
    start_onnxruntime(&p);
    kl_device dev = bench_device(&b);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[600];
        model_path(path, sizeof path, folder, names[i]);
        if (!bench_wants(&b, names[i]) || stat(path, &st))
            continue;
        for (int threads = 1; threads <= 2; threads++)
            if (!measure_model(&b, dev, &p, names[i], path, threads))
                return bench_fail(&b, names[i]);
        if (!measure_first(&b, argv[0], names[i], path))
            return bench_fail(&b, names[i]);
    }
    peer_end(&p);
    if (folder == made)
        remove_model(made);
    return bench_close(&b);
}
