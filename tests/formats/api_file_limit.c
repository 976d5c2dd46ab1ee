/* A limit of file sizes (RLIMIT_FSIZE, ulimit -f), past which the kernel sends SIGXFSZ: each function that writes a
 * file fails with KL_ERR_IO, or does without the file where that is optional (kernels on disk, dumps of KILN_DUMP), the
 * process lives, and the next call works. Nothing is left of SIGXFSZ: it is neither blocked nor pending. */
#define _GNU_SOURCE
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LIMIT = 256, N = 1024 }; /* bytes; elements of a tensor: its file is larger */

static kl_device dev;
static char folder[] = "/tmp/kiln-limit-XXXXXX", path[sizeof folder + 32], header[sizeof folder + 8];

static void set_limit(rlim_t bytes)
{
    struct rlimit r;
    fflush(stdout); /* what is printed under the limit could not be written */
    getrlimit(RLIMIT_FSIZE, &r);
    r.rlim_cur = bytes < r.rlim_max ? bytes : r.rlim_max;
    setrlimit(RLIMIT_FSIZE, &r);
}

static kl_status record(double factor)
{
    kl_trace_begin("limited");
    kl_keep(kl_sum_all(kl_mul_scalar(kl_exp(kl_ones(dev, KL_F32, DIMS(N))), factor)));
    return kl_trace_end();
}

/* ---- functions that write a file ---- */

static kl_status write_tensor(void)
{
    kl_file_item item = {.name = "x", .tensor = kl_ones(dev, KL_F32, DIMS(N))};
    kl_status s = kl_file_write(path, KL_FILE_NPY, 1, &item, 0, NULL);
    return kl_release(item.tensor), s;
}

static kl_status write_snapshot(void)
{
    kl_snapshot *snapshot = kl_snapshot_new();
    kl_tensor x = kl_ones(dev, KL_F32, DIMS(N));
    kl_snapshot_tensor(snapshot, "x", x);
    kl_status s = kl_snapshot_save(snapshot, path);
    kl_snapshot_free(snapshot);
    return kl_release(x), s;
}

static kl_status write_profile(void)
{
    kl_profile_begin();
    record(2);
    kl_profile *p = kl_profile_end();
    kl_status s = kl_profile_trace(p, path);
    return kl_profile_free(p), s;
}

static kl_status write_dump(void)
{
    return record(3) == KL_OK ? kl_dump("limited", "captured", path) : KL_ERR_INTERNAL;
}

static kl_status count_step(void *ctx, int64_t i, double rate, double *loss)
{
    (void)ctx, (void)rate;
    *loss = (double)i;
    return KL_OK;
}

static kl_status write_log(void)
{
    return kl_train(&(kl_train_loop){.steps = 100, .step = count_step, .quiet = true, .log = path});
}

static kl_status write_object(void)
{
    kl_trace_begin("object");
    kl_keep(kl_exp(kl_input(dev, KL_F32, DIMS(N), (float[N]){0})));
    return kl_trace_compile(path, header, NULL);
}

static kl_status bench_step(void *ctx) { return (void)ctx, record(5); }
static kl_status write_report(void)
{
    kl_bench_report *r = kl_bench("limited", bench_step, NULL, NULL);
    kl_status s = kl_bench_json(r, path);
    return kl_bench_free(r), s;
}

static const struct { const char *name; kl_status (*write)(void); } writer[] = {
    {"kl_file_write", write_tensor}, {"kl_snapshot_save", write_snapshot}, {"kl_profile_trace", write_profile},
    {"kl_dump", write_dump}, {"kl_train's log", write_log}, {"kl_trace_compile", write_object},
    {"kl_bench_json", write_report},
};

static bool signal_is_as_before(void)
{
    sigset_t blocked, pending;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    sigpending(&pending);
    return !sigismember(&blocked, SIGXFSZ) && !sigismember(&pending, SIGXFSZ);
}

static void try_writers(void)
{
    for (size_t i = 0; i < sizeof writer / sizeof *writer; i++) {
        device_now = writer[i].name;
        set_limit(LIMIT);
        kl_status s = writer[i].write();
        set_limit(RLIM_INFINITY);
        CHECK(s == KL_ERR_IO);
        CHECK(signal_is_as_before());
        unlink(path);
        OK(writer[i].write());
        unlink(path);
    }
}

/* Kernels are compiled, and no entry of the folder of kernels can be written. */
static void without_cache(void)
{
    device_now = "kernels on disk";
    setenv("KILN_DUMP", "captured", 1);
    set_limit(LIMIT);
    kl_status s = record(4);
    set_limit(RLIM_INFINITY);
    unsetenv("KILN_DUMP");
    OK(s);
    CHECK(signal_is_as_before());
}

/* A signal that the host blocks and that is pending stays so. */
static void pending_stays(void)
{
    sigset_t x, before, pending;
    device_now = "a pending signal";
    sigemptyset(&x);
    sigaddset(&x, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &x, &before);
    raise(SIGXFSZ);
    OK(write_tensor());
    sigpending(&pending);
    CHECK(sigismember(&pending, SIGXFSZ));
    sigtimedwait(&x, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int main(void)
{
    dev = kl_device_default();
    if (!mkdtemp(folder))
        return perror("mkdtemp"), 1;
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(header, sizeof header, "%s/file.h", folder);
    setenv("KILN_DUMP_DIR", folder, 1);
    without_cache();
    try_writers();
    pending_stays();
    unlink(header);
    snprintf(path, sizeof path, "%s/limited.captured.kir", folder);
    unlink(path);
    rmdir(folder);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
