/* A process that has nothing to compile does not open the code generator, nor LLVM: what they would say is kept with
 * the kernels.  One that has, or whose LLVM, loader or folder is not as it was, opens them, and all compute the same.
 *
 * Each case is a process of its own: this program, started anew. */
#define _GNU_SOURCE
#include "tests/support/harness.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <kiln/kiln.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], libraries[80], copy[160];

/* ---- in the child: its exit status says what happened ---- */

enum { WRONG = 1, OPENED = 2, COMPILED = 4, FOUND = 8, NO_CPU = 64 };

static bool llvm_is_here(void)
{
    char line[4096];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f))
        found |= strstr(line, "libLLVM") != NULL;
    if (f)
        fclose(f);
    return found;
}

static int be_child(double factor)
{
    struct err e = {0};
    if (device_find("cpu", &e) < 0)
        return NO_CPU;
    float x[40], got[40];
    kl_device cpu = kl_device_named("cpu");
    for (int i = 0; i < 40; i++)
        x[i] = (float)i;
    kl_tensor t = kl_input(cpu, KL_F32, 1, (int64_t[]){40}, x);
    t = factor == 2 ? kl_mul_scalar(t, 2) : factor == 4 ? kl_sub_scalar(t, 4) : kl_div_scalar(t, 8); /* three kernels */
    bool right = kl_read(t, got, sizeof got) == KL_OK;
    for (int i = 0; i < 40; i++)
        right &= got[i] == (float)(factor == 2 ? i * 2 : factor == 4 ? i - 4 : i / 8.0);
    return (right ? 0 : WRONG) | (llvm_is_here() ? OPENED : 0) | (atomic_load(&counters.compiles) ? COMPILED : 0) |
           (atomic_load(&counters.disk_hits) ? FOUND : 0);
}

/* ---- in the parent ---- */

static int run(const char *factor)
{
    int status = -1;
    pid_t pid = fork();
    if (!pid) {
        execl("/proc/self/exe", "warm_start", factor, (char *)NULL);
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *what, const char *factor, int want)
{
    int got = run(factor);
    check(got == want, "%s: status %d, not %d", what, got, want);
}

static bool copy_file(const char *from, const char *to)
{
    struct stat s;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = in >= 0 && out >= 0 && !fstat(in, &s);
    for (off_t left = ok ? s.st_size : 0; ok && left;) {
        ssize_t n = copy_file_range(in, NULL, out, NULL, (size_t)left, 0);
        ok = n > 0;
        left -= n;
    }
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    return ok;
}

/* The entry that says what cpu is. */
static bool find_entry(char path[160])
{
    struct disk_entries all = {0};
    struct err e = {0};
    bool found = false, ok = disk_list(&all, &e);
    for (uint32_t i = 0; ok && i < all.n; i++)
        if (disk_verify(&all.v[i], &e) && !strcmp(all.v[i].name, "(this processor)")) {
            snprintf(path, 160, "%s/%s", folder, all.v[i].file);
            found = true;
        }
    mem_free(all.v);
    return found;
}

static void test_damaged(void)
{
    char path[160], byte = 0;
    int fd = find_entry(path) ? open(path, O_RDWR | O_CLOEXEC) : -1;
    bool ok = fd >= 0 && pread(fd, &byte, 1, 1000) == 1;
    byte ^= 1;
    check(ok && pwrite(fd, &byte, 1, 1000) == 1, "an entry for the processor");
    if (fd >= 0)
        close(fd);
    expect("with that damaged", "2", OPENED | FOUND);
    expect("it has been written anew", "2", FOUND);
    check(find_entry(path) && !truncate(path, 50), "cut");
    expect("with that cut", "2", OPENED | FOUND);
    expect("it has been written anew, again", "2", FOUND);
}

/* The loader takes LLVM from a folder of the test's: the same LLVM, but who knows that. */
static void test_other_llvm(const char *llvm)
{
    snprintf(copy, sizeof copy, "%s/%s", libraries, strrchr(llvm, '/') + 1);
    check(!mkdir(libraries, 0700), "a folder for libraries");
    setenv("LD_LIBRARY_PATH", libraries, 1);
    expect("the loader looks elsewhere first", "2", OPENED | FOUND);
    expect("and then has", "2", FOUND);
    if (!check(copy_file(llvm, copy), "a copy of %s", llvm))
        return;
    expect("a new library is found by a process that compiles", "8", OPENED | COMPILED);
    setenv("LD_LIBRARY_PATH", "/nowhere", 1);
    expect("another path", "2", OPENED | FOUND);
    check(disk_prune(0, &(struct disk_entries){0}, &(struct err){0}), "an empty folder");
    setenv("LD_LIBRARY_PATH", libraries, 1);
    expect("all anew, with that LLVM", "2", OPENED | COMPILED);
    expect("nothing is opened", "2", FOUND);
    struct timespec t[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
    check(!utimensat(AT_FDCWD, copy, t, 0), "LLVM is touched");
    expect("LLVM has changed", "2", OPENED | FOUND);
    expect("and is known again", "2", FOUND);
    unlink(copy);
    expect("LLVM has gone", "2", OPENED | FOUND);
    unsetenv("LD_LIBRARY_PATH");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return be_child(atof(argv[1]));
    snprintf(folder, sizeof folder, "/tmp/kiln-warm-XXXXXX");
    if (!check(mkdtemp(folder) != NULL, "a folder"))
        return finish();
    snprintf(libraries, sizeof libraries, "%s/lib", folder);
    unsetenv("LD_LIBRARY_PATH");
    setenv("KILN_CACHE_DIR", folder, 1);
    int first = run("2");
    if (first == NO_CPU) {
        printf("SKIP not-built cpu\n");
        skipped++;
        rmdir(folder);
        return finish();
    }
    check(first == (OPENED | COMPILED), "the first process compiles: %d", first);
    expect("the second opens nothing", "2", FOUND);
    expect("what has to be compiled opens it", "4", OPENED | COMPILED);
    expect("and is there for the next", "4", FOUND);
    setenv("KILN_CACHE_DIR", "none", 1);
    expect("without a cache", "2", OPENED | COMPILED);
    setenv("KILN_CACHE_DIR", folder, 1);
    test_damaged();
    struct err e = {0};
    const struct backend *b = backend_get("llvm", &e);
    if (check(b && *b->compiler() == '/', "LLVM's file: %s", b ? b->compiler() : e.msg))
        test_other_llvm(b->compiler());
    check(disk_prune(0, &(struct disk_entries){0}, &e), "the folder is emptied: %s", e.msg);
    rmdir(libraries);
    check(!rmdir(folder), "and nothing of anybody's is left in it");
    return finish();
}
