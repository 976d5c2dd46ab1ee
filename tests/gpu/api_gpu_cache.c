/* Kernels of a device with a driver in the folder on disk, each step a process of its own: a second one compiles
 * nothing; what is damaged, cut short or was being written when its process was killed is made anew, and the numbers
 * are right.  For CUDA and HIP, the tests' library stands in for the driver, and kernels share entries of modules.
 *
 *   api_gpu_cache [DEVICE]   (default vulkan) */
#define _GNU_SOURCE
#include "tests/gpu/fake/fake_load.h"
#include "tests/support/api_check.h"
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *name;
static char folder[] = "/tmp/kiln-gpu-cache-XXXXXX";

/* ---- the process that works ---- */

struct report { int right, compiles, hits, calls; /* of the compiler, for `fake` */ };
static struct fake_gpu *fake;       /* NULL: the driver is a real one */

static struct report work(void)
{
    struct report r = {0};
    kl_device dev = kl_device_named(name);
    static float x[40 * 30];
    for (int i = 0; i < 40 * 30; i++)
        x[i] = (float)(i % 7);
    int64_t compiled = kl_counter("compiles"), found = kl_counter("disk_hits"); /* not those that try the device out */
    kl_tensor a = kl_input(dev, KL_F32, DIMS(40, 30), x), s, p;
    int calls = fake ? (int)fake->calls.compiles : 0;
    kl_trace_begin("work");
    kl_keep(s = kl_sum(kl_mul_scalar(a, 2), AXES(1), false));
    kl_keep(p = kl_matmul(a, kl_ones(dev, KL_F32, DIMS(30, 40))));
    if (kl_trace_end() == KL_OK) {
        double *v = values_of(s), *w = values_of(p);
        r.right = v && w;
        for (int i = 0; r.right && i < 40; i++) {
            double want = 0;
            for (int j = 0; j < 30; j++)
                want += (30 * i + j) % 7;
            r.right = v[i] == 2 * want && w[40 * i + i] == want;
        }
        free(v);
        free(w);
    }
    r.compiles = (int)(kl_counter("compiles") - compiled);
    r.hits = (int)(kl_counter("disk_hits") - found);
    r.calls = (fake ? (int)fake->calls.compiles : 0) - calls;
    return r;
}

/* Runs `work` in a child, killed after so many microseconds if these are not 0. */
static struct report child(useconds_t kill_after)
{
    struct report r = {0};
    int pipes[2];
    pid_t pid = pipe(pipes) ? -1 : fork();
    if (!pid) {
        r = work();
        _exit(write(pipes[1], &r, sizeof r) != sizeof r);
    }
    close(pipes[1]);
    if (kill_after) {
        usleep(kill_after);
        kill(pid, SIGKILL);
    }
    if (read(pipes[0], &r, sizeof r) != sizeof r)
        r = (struct report){0};
    close(pipes[0]);
    waitpid(pid, NULL, 0);
    return r;
}

/* ---- what happens to the files ---- */

enum harm { DAMAGE, CUT, REMOVE };

static unsigned each_file(enum harm harm, off_t min_bytes)
{
    unsigned n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *f; d && (f = readdir(d));) {
        char path[1024];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        if (stat(path, &st) || !S_ISREG(st.st_mode) || st.st_size < min_bytes)
            continue;
        n++;
        FILE *file = harm == DAMAGE ? fopen(path, "r+") : NULL;
        if (file) {
            int c = fseek(file, st.st_size * 3 / 4, SEEK_SET) ? 0 : fgetc(file);
            fseek(file, st.st_size * 3 / 4, SEEK_SET);
            fputc(c ^ 0x55, file);
            fclose(file);
        }
        if (harm == CUT)
            CHECK(!truncate(path, st.st_size / 2));
        if (harm == REMOVE)
            unlink(path);
    }
    if (d)
        closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    name = argc > 1 ? argv[1] : "vulkan";
    device_now = name;
    if (!mkdtemp(folder))
        return 1;
    setenv("KILN_CACHE_DIR", folder, 1);
    if (!strcmp(name, "cuda") || !strcmp(name, "hip")) {
        if (system("echo '_Float16 x;' | ${CXX:-c++} -x c++ -fsyntax-only - >/dev/null 2>&1")) {
            printf("SKIP no-compiler c++: none that has 16-bit floats\n");
            return 0;
        }
        setenv("KILN_THREADS", "1", 1); /* more threads compile more modules with fewer kernels */
        if (!(fake = fake_gpu_load(argv[0])))
            return 1;
    }
    struct report r = child(0);
    if (!r.right && !r.compiles) { /* asked here, for the reason: children must be the first to open the device */
        kl_device dev = kl_device_named(name);
        CHECK(!dev.id);
        printf("SKIP no-device %s: %s\n%d passed, %d failed, 1 skipped\n", name, kl_last_error(), passed, failed);
        rmdir(folder);
        return failed != 0;
    }
    int kernels = r.compiles;
    CHECK(r.right && kernels > 1 && r.hits == 0);
    r = child(0);
    CHECK(r.right && r.compiles == 0 && r.hits == kernels);
    if (fake) { /* the largest entry is the module's; each kernel has another */
        enum { MIN_COUNT = 12 << 10 };
        CHECK(each_file(DAMAGE, 0) > (unsigned)kernels && each_file(REMOVE, 0));
        r = child(0);
        CHECK(r.right && r.calls == 1 && r.compiles == kernels);
        CHECK(each_file(REMOVE, MIN_COUNT) == 1);
        r = child(0);
        CHECK(r.right && r.calls == 1 && r.compiles == kernels && r.hits == 0);
    }
    for (int harm = DAMAGE; harm <= CUT; harm++) {
        CHECK(each_file((enum harm)harm, 0) >= (unsigned)kernels);
        r = child(0);
        CHECK(r.right && r.compiles == kernels && r.hits == 0);
        r = child(0);
        CHECK(r.right && r.compiles == 0 && r.hits == kernels);
    }
    each_file(REMOVE, 0);
    for (useconds_t us = 20000; us < 150000; us += 20000) {
        child(us);
        if (us % 60000 == 0)
            each_file(REMOVE, 0);
    }
    r = child(0);
    CHECK(r.right && r.compiles + r.hits == kernels);
    r = child(0);
    CHECK(r.right && r.compiles == 0 && r.hits == kernels);
    each_file(REMOVE, 0);
    CHECK(!rmdir(folder));
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
