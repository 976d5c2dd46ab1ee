/* Identifies the code generator that would be opened and the processor that it would find, without opening it.  A
 * description of the two on disk is valid while this identity is unchanged. */
#include "codegen.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct writing { char *s; size_t n, size; bool full; };

static void identity_put(struct writing *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void identity_put(struct writing *w, const char *fmt, ...)
{
    va_list a;
    va_start(a, fmt);
    int n = w->full ? 0 : format_text_v(w->s + w->n, w->size - w->n, fmt, a);
    va_end(a);
    if (n < 0 || (size_t)n >= w->size - w->n) w->full = true;
    else w->n += (size_t)n;
}

/* A file that is rewritten or replaced has a new change time (ctime), even if a program restores its other times. */
static bool put_file(struct writing *w, const char *path)
{
    struct stat s;
    if (stat(path, &s)) return false;
    identity_put(w, "%s %llx:%llx %lld bytes %lld.%09ld %lld.%09ld\n", path, (unsigned long long)s.st_dev,
                 (unsigned long long)s.st_ino,
        (long long)s.st_size, (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec, (long long)s.st_ctim.tv_sec,
            s.st_ctim.tv_nsec);
    return !w->full;
}

bool file_identity(const char *path, char *text, size_t size)
{
    struct writing w = {text, 0, size, false};
    return put_file(&w, path);
}

#if defined(__x86_64__)
#include <cpuid.h>

/* CPUID leaves from which compilers and this library read a processor's name, features and caches. */
static const unsigned leaf[][2] = {{0, 0}, {1, 0}, {4, 0}, {4, 1}, {4, 2}, {4, 3}, {7, 0}, {7, 1}, {7, 2}, {0xd, 1},
                                   {0x14, 0},
                                   {0x19, 0}, {0x1e, 1}, {0x24, 0}, {0x80000001, 0}, {0x80000008, 0}, {0x8000001d, 0},
                                   {0x8000001d, 1}, {0x8000001d, 2}, {0x8000001d, 3}, {0x80000021, 0}};

static bool put_processor(struct writing *w)
{
    enum { OSXSAVE = 1 << 27 };
    bool xsave = false;
    for (size_t i = 0; i < sizeof leaf / sizeof *leaf; i++) {
        unsigned a, b, c, d;
        if (!__get_cpuid_count(leaf[i][0], leaf[i][1], &a, &b, &c, &d)) continue;
        if (leaf[i][0] == 1) {
            b = 0; /* masks the number of the processor that this thread runs on */
            xsave = c & OSXSAVE;
        }
        identity_put(w, "%x.%x %08x%08x%08x%08x\n", leaf[i][0], leaf[i][1], a, b, c, d);
    }
    unsigned lo = 0, hi = 0; /* the register state enabled by the operating system */
    if (xsave) __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    identity_put(w, "registers %08x%08x\nprocessors %ld\n", hi, lo, sysconf(_SC_NPROCESSORS_ONLN));
    return !w->full;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

/* The kind of each core (MIDR_EL1), where the system tells it, and the features that programs may use. */
static bool put_processor(struct writing *w)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN), caches[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE,
                                                        _SC_LEVEL3_CACHE_SIZE};
    for (long i = 0; i < n && !w->full; i++) {
        char path[80], kind[32] = "";
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%ld/regs/identification/midr_el1", i);
        FILE *f = fopen(path, "r");
        bool known = f && fgets(kind, sizeof kind, f);
        if (f) fclose(f);
        if (!known) break;
        identity_put(w, "core %s", kind);
    }
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) identity_put(w, "cache %ld\n", sysconf((int)caches[i]));
    identity_put(w, "features %lx %lx\nprocessors %ld\n", getauxval(AT_HWCAP), getauxval(AT_HWCAP2), n);
    return !w->full;
}
#else
static bool put_processor(struct writing *w)
{
    (void)w;
    return false;
}
#endif

bool backend_identity(const char *name, char *text, size_t size)
{
    static const char *const search[] = {"LD_LIBRARY_PATH", "LD_PRELOAD"};
    char path[4096];
    struct writing w = {text, 0, size, false};
    identity_put(&w, "backend %s abi %u\n", name, KERNEL_ABI);
    if (!backend_file(name, path, sizeof path) || !put_file(&w, path)) return false;
    for (size_t i = 0; i < sizeof search / sizeof *search; i++) identity_put(&w, "%s=%s\n", search[i],
                                                                             getenv(search[i]) ? getenv(search[i])
        : "");
    if (!put_file(&w, "/etc/ld.so.cache")) identity_put(&w, "no loader cache\n");
    return put_processor(&w);
}
