/* NVRTC and hiprtc for fake_gpu.c: a kernel's text through the C++ compiler.  They compile for one architecture
 * each.  What a text became is kept in the folder KILN_TEST_COMPILED, where that is set, under the text's hash: the
 * processes and programs of a test run compile the same kernels many times. */
#define _GNU_SOURCE
#include "fake_gpu.h"
#include "ir/hash/xxh3.h"
#include "tests/gpu/gpu_block.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define BOTH(cuda, hip) __attribute__((visibility("default"), alias(#cuda))) __typeof__(cuda) hip
struct program { char *source, *log, *code; size_t log_size, code_size; };

/* A launch passes addresses of parameters. */
static const char caller[] =
    "#include <utility>\n"
    "template <class... A, std::size_t... I> static void expand(void (*f)(A...), void **p, std::index_sequence<I...>)\n"
    "{\n    f(*(A *)p[I]...);\n}\n"
    "template <class... A> static void expand(void (*f)(A...), void **p) { expand(f, p, "
    "std::make_index_sequence<sizeof...(A)>()); }\n"
    "template <class... A> static unsigned count(void (*)(A...)) { return sizeof...(A); }\n"
    "template <class... A> static unsigned bytes(void (*)(A...), unsigned i) { const unsigned of[] = "
    "{sizeof(A)...}; return of[i]; }\n"
    "#define CALLER(k, threads) {#k, [](void **p) { expand(k, p); }, [] { return count(k); }, "
    "[](unsigned i) { return bytes(k, i); }, threads},\n"
    "struct caller { const char *name; void (*call)(void **p); unsigned (*count)(), (*bytes)(unsigned i), threads; };"
    "\n";

/* A caller of each kernel of the source, whose name stands before the parenthesis that follows it.  Its launch bounds,
 * the most threads of a block, are the first number behind the start. */
static void write_callers(FILE *f, const char *source)
{
    static const char start[] = "__global__ void ";
    fprintf(f, "%sextern \"C\" const caller callers[] = {", caller);
    for (const char *at = source; (at = strstr(at, start)); at += strlen(start)) {
        const char *name = strstr(at, " kernel");
        if (name)
            fprintf(f, "CALLER(%.*s, %lu)\n", (int)strcspn(name + 1, "("), name + 1,
                    strtoul(at + strcspn(at, "(") + 1, NULL, 10));
    }
    fputs("{}};\n", f);
}

static char *read_file(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    char *p = NULL;
    *size = 0;
    if (f && !fseek(f, 0, SEEK_END)) {
        *size = (size_t)ftell(f);
        rewind(f);
        p = calloc(*size + 1, 1);
        *size = fread(p, 1, *size, f);
    }
    if (f)
        fclose(f);
    return p;
}

/* Writes the program's code beside `kept` and gives it that name. */
static void keep_code(const struct program *p, const char *kept)
{
    char own[4128]; /* a thread compiles one program at a time */
    snprintf(own, sizeof own, "%s.%ld.%p", kept, (long)getpid(), (const void *)p);
    FILE *f = fopen(own, "wb");
    if (!f)
        return;
    bool whole = fwrite(p->code, 1, p->code_size, f) == p->code_size;
    if (fclose(f) || !whole || rename(own, kept))
        unlink(own);
}

static const char *compiler_name(void)
{
    const char *name = getenv("CXX");
    return name ? name : "c++";
}

/* The C++ of the program's text, of *size bytes. */
static char *program_text(const struct program *p, size_t *size)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, size);
    gpu_shim_write(f, p->source);
    write_callers(f, p->source);
    fclose(f);
    return text;
}

/* Where the library of that text is kept; false: nowhere. */
static bool kept_path(const char *text, size_t size, char *out, size_t room)
{
    const char *folder = getenv("KILN_TEST_COMPILED");
    if (!folder)
        return false;
    char *key = NULL;
    size_t n;
    FILE *f = open_memstream(&key, &n);
    fprintf(f, "%s " GPU_SHIM_FLAGS "\n", compiler_name());
    fwrite(text, 1, size, f);
    fclose(f);
    struct xxh3_128 h = xxh3_128(key, n);
    free(key);
    return snprintf(out, room, "%s/%016" PRIx64 "%016" PRIx64 ".so", folder, h.high, h.low) < (int)room;
}

/* Processes that compile the same text at the same time do it one after the other: all but the first find it.  The
 * file's descriptor, to be closed; -1: no lock. */
static int lock_file(const char *kept)
{
    char path[4128];
    snprintf(path, sizeof path, "%s.lock", kept);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        flock(fd, LOCK_EX);
    return fd;
}

/* Sets the program's log and, if the text is right, its code.  kept: the library's new name, NULL: none. */
static void run_compiler(struct program *p, const char *text, size_t size, const char *kept)
{
    char folder[] = "/tmp/kiln-fake-XXXXXX", source[64], library[64], log[64], command[512];
    if (!mkdtemp(folder))
        return;
    snprintf(source, sizeof source, "%s/kernel.cpp", folder);
    snprintf(library, sizeof library, "%s/kernel.so", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    FILE *f = fopen(source, "w");
    fwrite(text, 1, size, f);
    fclose(f);
    snprintf(command, sizeof command, "%s " GPU_SHIM_FLAGS " -o %s %s >%s 2>&1", compiler_name(), library, source, log);
    int status = system(command);
    p->log = read_file(log, &p->log_size);
    p->log_size++;
    p->code = status ? NULL : read_file(library, &p->code_size);
    unlink(source);
    if (p->code && kept)
        keep_code(p, kept);
    unlink(library);
    unlink(log);
    rmdir(folder);
}

EXPORT int nvrtcVersion(int *major, int *minor);
int nvrtcVersion(int *major, int *minor)
{
    *major = 12;
    *minor = 4;
    return 0;
}
BOTH(nvrtcVersion, hiprtcVersion);

EXPORT int nvrtcCreateProgram(struct program **p, const char *source, const char *name, int headers,
                              const char *const *header,
                              const char *const *include);
int nvrtcCreateProgram(struct program **p, const char *source, const char *name, int headers, const char *const *header,
                       const char *const *include)
{
    (void)name, (void)headers, (void)header, (void)include;
    *p = calloc(1, sizeof **p);
    (*p)->source = strdup(source);
    return 0;
}
BOTH(nvrtcCreateProgram, hiprtcCreateProgram);

EXPORT int nvrtcCompileProgram(struct program *p, int n, const char *const *option);
int nvrtcCompileProgram(struct program *p, int n, const char *const *option)
{
    static const char target[] = "--gpu-architecture=";
    const char *arch = n && !strncmp(option[0], target, strlen(target)) ? option[0] + strlen(target) : "";
    __atomic_fetch_add(&fake_gpu()->calls.compiles, 1, __ATOMIC_RELAXED);
    if (strcmp(arch, "sm_90a") && strcmp(arch, "gfx90a:sramecc+:xnack-")) {
        p->log = strdup("error: no such architecture");
        p->log_size = strlen(p->log) + 1;
        return 6;
    }
    if (fake_gpu()->refused && strstr(p->source, fake_gpu()->refused)) {
        p->log = strdup("error: refused");
        p->log_size = strlen(p->log) + 1;
        return 6;
    }
    size_t size;
    char *text = program_text(p, &size), kept[4096];
    bool keep = kept_path(text, size, kept, sizeof kept);
    int lock = keep ? lock_file(kept) : -1;
    p->code = keep ? read_file(kept, &p->code_size) : NULL;
    if (p->code) {
        p->log = strdup("");
        p->log_size = 1;
    } else {
        run_compiler(p, text, size, keep ? kept : NULL);
    }
    free(text);
    if (lock >= 0)
        close(lock);
    if (p->code)
        /* an image does not say how long it is: here its head does, where nobody looks */
        memcpy(p->code + 9, &p->code_size, 7);
    return !p->code;
}
BOTH(nvrtcCompileProgram, hiprtcCompileProgram);

EXPORT int nvrtcGetProgramLogSize(struct program *p, size_t *size);
int nvrtcGetProgramLogSize(struct program *p, size_t *size)
{
    *size = p->log_size;
    return 0;
}
BOTH(nvrtcGetProgramLogSize, hiprtcGetProgramLogSize);

EXPORT int nvrtcGetProgramLog(struct program *p, char *out);
int nvrtcGetProgramLog(struct program *p, char *out)
{
    memcpy(out, p->log, p->log_size);
    return 0;
}
BOTH(nvrtcGetProgramLog, hiprtcGetProgramLog);

EXPORT int nvrtcGetCUBINSize(struct program *p, size_t *size);
int nvrtcGetCUBINSize(struct program *p, size_t *size)
{
    *size = p->code_size;
    return 0;
}
BOTH(nvrtcGetCUBINSize, hiprtcGetCodeSize);

EXPORT int nvrtcGetCUBIN(struct program *p, char *out);
int nvrtcGetCUBIN(struct program *p, char *out)
{
    memcpy(out, p->code, p->code_size);
    return 0;
}
BOTH(nvrtcGetCUBIN, hiprtcGetCode);

/* There is no PTX of it. */
EXPORT int nvrtcGetPTXSize(struct program *p, size_t *size);
int nvrtcGetPTXSize(struct program *p, size_t *size)
{
    (void)p, (void)size;
    return 7;
}
EXPORT int nvrtcGetPTX(struct program *p, char *out);
int nvrtcGetPTX(struct program *p, char *out)
{
    (void)p, (void)out;
    return 7;
}

EXPORT int nvrtcDestroyProgram(struct program **p);
int nvrtcDestroyProgram(struct program **p)
{
    free((*p)->source);
    free((*p)->log);
    free((*p)->code);
    free(*p);
    *p = NULL;
    return 0;
}
BOTH(nvrtcDestroyProgram, hiprtcDestroyProgram);
