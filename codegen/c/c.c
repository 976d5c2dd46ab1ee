/* The C backend: kernel to C, compiled to an object by `cc`, for the processor it runs on. */
#include "codegen/c/emit.h"
#include "codegen/codegen.h"
#include "ir/file_signal.h"
#include <c_image_format.h>
#include <c_prelude.h>
#include <c_runner.h>
#include <c_sources.h>
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#endif

extern char **environ;

static char version[256];
static struct caps host;
static struct err host_err;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The processor: its name, what its features are, and registers of vectors.  NULL, or what it lacks. */
#if defined(__aarch64__)
#define BRANCH_PROTECTION "-mbranch-protection=none"
static const char *c_processor(void)
{
    snprintf(host.name, sizeof host.name, HOST_ARCH);
    snprintf(host.features, sizeof host.features, "hwcap %lx %lx", getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
    host.vector_bytes = 16;
    host.vector_regs = 32;
    return NULL;
}
#elif defined(__x86_64__)
#define BRANCH_PROTECTION "-fcf-protection=none"
/* Clang 14, that of Debian 12, has no __builtin_cpu_supports("f16c"). */
static bool has_f16c(void)
{
    enum { FEATURES = 1, F16C = 29 };
    unsigned a, b, c = 0, d;
    return __get_cpuid(FEATURES, &a, &b, &c, &d) && c >> F16C & 1;
}

static const char *c_processor(void)
{
    FILE *cpu = fopen("/proc/cpuinfo", "r");
    char line[4096];
    while (cpu && fgets(line, sizeof line, cpu))
        if (!strncmp(line, "model name", 10) && strchr(line, ':'))
            snprintf(host.name, sizeof host.name, "%.*s", (int)strcspn(strchr(line, ':') + 2, "\n"),
                     strchr(line, ':') + 2);
        else if (!strncmp(line, "flags", 5))
            snprintf(host.features, sizeof host.features, "flags %016llx",
                     (unsigned long long)bytes_hash(line, strlen(line)).lo);
    if (cpu)
        fclose(cpu);
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl");
    host.vector_bytes = wide ? 64 : 32;
    host.vector_regs = wide ? 32 : 16;
    bool all = __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2") && has_f16c();
    return all ? NULL : "this processor lacks avx2, fma or f16c";
}
#else
#define BRANCH_PROTECTION "-fPIC"
static const char *c_processor(void) { return "kernels are not loaded on this kind of processor"; }
#endif

static void c_backend_init(void)
{
    FILE *f = popen("cc --version 2>/dev/null", "r");
    char line[4096] = "";
    bool there = f && fgets(line, sizeof line, f);
    line[strcspn(line, "\n")] = 0;
    snprintf(version, sizeof version, "%.180s sources %s", line, C_SOURCES);
    if (f)
        pclose(f);
    const char *lacks = c_processor();
    host.threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    host.l1_bytes = 32 << 10;
    host.l2_bytes = 1 << 20;
    host.l3_bytes = 8 << 20;
    if (!there)
        err_set(&host_err, KL_ERR_DEVICE, "there is no compiler cc");
    else if (lacks)
        err_set(&host_err, KL_ERR_DEVICE, "%s", lacks);
}

static const char *c_version(void)
{
    pthread_once(&once, c_backend_init);
    return version;
}

static bool c_caps(struct caps *out, struct err *e)
{
    pthread_once(&once, c_backend_init);
    *out = host;
    return !host_err.code || err_set(e, host_err.code, "%s", host_err.msg);
}

static bool read_file(const char *path, struct code *out)
{
    FILE *f = fopen(path, "rb");
    long n = f && !fseek(f, 0, SEEK_END) ? ftell(f) : -1;
    bool ok = n >= 0 && !fseek(f, 0, SEEK_SET) && (out->bytes = mem_alloc((size_t)n + 1));
    out->size = ok ? fread(out->bytes, 1, (size_t)n, f) : 0;
    if (f)
        fclose(f);
    return ok && out->size == (size_t)n;
}

/* No calls of C library functions, and no optimisation that is less exact than the source. */
static int run_compiler(const char *output, const char *source, const char *messages)
{
    const char *const arg[] = {"cc", "-O2", "-march=native", "-fPIC", "-std=gnu17", "-w", "-fwrapv", "-fno-math-errno",
                               "-ffp-contract=off", "-fno-strict-aliasing", "-fno-builtin",
                               "-fno-tree-loop-distribute-patterns", "-fno-stack-protector",
                               "-fno-asynchronous-unwind-tables", BRANCH_PROTECTION,
                               strrchr(output, '.')[1] == 's' ? "-S" : "-c", "-o", output, source, NULL};
    posix_spawn_file_actions_t to;
    pid_t pid;
    int status = -1;
    posix_spawn_file_actions_init(&to);
    posix_spawn_file_actions_addopen(&to, STDERR_FILENO, messages, 01101, 0600); /* O_WRONLY | O_CREAT | O_TRUNC */
    if (!posix_spawnp(&pid, arg[0], &to, NULL, (char *const *)(uintptr_t)arg, environ))
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    posix_spawn_file_actions_destroy(&to);
    return status;
}

static bool compile_in(const char *folder, const struct kernel *k, const struct text *source, bool assembly,
                       struct code *out, struct err *e)
{
    char in[64], made[64], said[64];
    snprintf(in, sizeof in, "%s/kernel.c", folder);
    snprintf(made, sizeof made, "%s/kernel.%c", folder, assembly ? 's' : 'o');
    snprintf(said, sizeof said, "%s/messages", folder);
    struct whole_file w;
    FILE *f = whole_file_open(&w, in);
    if (f)
        fprintf(f, "#define KILN_JIT\n%s%s", prelude, source->s);
    if (!whole_file_close(&w) || run_compiler(made, in, said) || !read_file(made, out)) {
        struct code why = {0};
        read_file(said, &why);
        err_set(e, KL_ERR_COMPILE, "kernel %s: cc cannot compile it: %.300s", k->name,
                why.bytes ? (char *)why.bytes : "");
        mem_free(why.bytes);
    }
    unlink(in);
    unlink(made);
    unlink(said);
    return !e->code;
}

static bool c_backend_compile(const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e)
{
    char folder[] = "/tmp/kiln-c-XXXXXX";
    struct text source = {0};
    struct caps ignored;
    *out = (struct code){0};
    if (kind == EMIT_LLVM)
        return err_set(e, KL_ERR_ARGUMENT, "code generator c makes no LLVM code; it has assembly");
    bool ok = c_caps(&ignored, e) && c_source(k, "kernel", &source, e) &&
              (mkdtemp(folder) || err_set(e, KL_ERR_IO, "%s: %s", folder, strerror(errno)));
    if (ok) {
        ok = compile_in(folder, k, &source, kind == EMIT_ASM, out, e);
        rmdir(folder);
    }
    mem_free(source.s);
    return ok;
}

/* For any processor: default caps to choose tiles and vectors. */
static bool c_target(const char *cpu, struct caps *out, struct err *e)
{
    *out = (struct caps){.name = "any", .features = "any", .vector_bytes = 32, .vector_regs = 16, .compact = 1,
                         .threads = 1, .l1_bytes = 32 << 10, .l2_bytes = 1 << 20, .l3_bytes = 8 << 20};
    return !strcmp(cpu, "baseline") ||
           err_set(e, KL_ERR_ARGUMENT, "no processor '%.60s' for C: its compiler chooses", cpu);
}

/* Little-endian words. */
static void c_image(struct text *t, const struct object_parts *o)
{
    const unsigned char *bytes = o->image;
    size_t words = (o->image_bytes + 7) / 8;
    text_put(t, "static const u64 kiln_image_%s[%zu] = {", o->prefix, words);
    for (size_t i = 0; i < words; i++) {
        uint64_t word = 0;
        for (size_t j = 0; j < 8 && 8 * i + j < o->image_bytes; j++)
            word |= (uint64_t)bytes[8 * i + j] << 8 * j;
        text_put(t, word < 10 ? "%s%llu," : "%s0x%llxu,", i % 8 ? "" : "\n", (unsigned long long)word);
    }
    text_put(t, "};\n\n");
}

/* next: the number of the first kernel that no program in front has. */
static bool c_kernels(struct text *t, const struct object_parts *o, uint32_t *next, struct err *e)
{
    for (uint32_t i = 0; i < o->nkernel; i++) {
        char name[128];
        if (o->number[i] != *next)
            continue;
        snprintf(name, sizeof name, "kiln_kernel_%u", (*next)++);
        text_put(t, "/* %s */\nstatic ", o->kernel[i]->name);
        if (!c_source(o->kernel[i], name, t, e))
            return false;
    }
    text_put(t, "static kiln_kernel *const kiln_kernels_%s[] = {", o->prefix);
    for (uint32_t i = 0; i < o->nkernel; i++)
        text_put(t, "kiln_kernel_%u, ", o->number[i]);
    text_put(t, "NULL};\n");
    return true;
}

/* The prelude, the runner, the kernels and the images; runtime/aot/object_source.c appends the programs' functions. */
static bool c_object(const struct object_parts *o, uint32_t n, const struct caps *target, struct code *out,
                     struct err *e)
{
    struct text t = {0};
    bool ok = true;
    uint32_t next = 0;
    (void)target;
    text_put(&t, "%s#define IMAGE_STRUCT struct KILN_ALIAS\n#define IMAGE_FN KILN_FN\n%s%s\n", prelude,
             image_format, runner);
    for (uint32_t i = 0; i < n && ok; i++) {
        ok = c_kernels(&t, &o[i], &next, e);
        c_image(&t, &o[i]);
    }
    if (ok && t.failed)
        ok = err_set(e, KL_ERR_MEMORY, "out of memory writing the C of %s", o->prefix);
    if (!ok)
        mem_free(t.s);
    *out = ok ? (struct code){.bytes = t.s, .size = t.len} : (struct code){0};
    return ok;
}

static const char *c_compiler_version(void) { return ""; } /* only the version is known */

__attribute__((visibility("default"))) const struct backend *kiln_backend_c(void);

const struct backend *kiln_backend_c(void)
{
    static const struct backend b = {.name = "c", .abi = KERNEL_ABI, .memory = mem_use, .caps = c_caps,
                                     .version = c_version, .compiler = c_compiler_version, .compile = c_backend_compile,
                                     .target = c_target, .object = c_object};
    return &b;
}
