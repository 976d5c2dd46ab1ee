/* A code generator turns one kernel (loop IR) into code.  Every backend is one struct, listed in backends.def; the
 * shared library of each is opened on first use. */
#ifndef KILN_CODEGEN_H
#define KILN_CODEGEN_H
#include "ir/loop/loop.h"

/* The architecture that this library was built for: as struct caps names it, which is part of the keys on disk, and its
 * number in <elf.h>. */
#if defined(__x86_64__)
#define HOST_ARCH "x86_64"
#define HOST_ELF_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define HOST_ARCH "aarch64"
#define HOST_ELF_MACHINE EM_AARCH64
#else
#define HOST_ARCH ""
#define HOST_ELF_MACHINE EM_NONE
#endif

/* May this process use the registers of AMX (caps.bf16_tiles)?  It asks for them. */
bool tiles_permitted(void);

/* Machine code as a relocatable object with one function, `kernel`. It has no external symbols, so it can be kept on
 * disk and loaded without the generator. */
struct code {
    void *bytes;  /* mem_alloc'ed; free with mem_free */
    size_t size;
};

enum emit_kind { EMIT_OBJECT, EMIT_LLVM, EMIT_ASM }; /* the last two are text */

/* One program of an object file for a linker.  The object defines the functions of runtime/aot/image.h under `prefix`,
 * which call Kiln's small runtime with the image and the kernels, and needs nothing else. */
struct object_parts {
    const char *prefix;
    const struct kernel *const *kernel; uint32_t nkernel;
    const uint32_t *number; /* of each kernel: equal kernels of all programs have one, from 0 in their order */
    const void *image; size_t image_bytes;
};

struct backend {
    const char *name;
    uint32_t abi;                                          /* the KERNEL_ABI it was built with */
    /* mem_use of its own copy of mem.c: code.bytes is freed by the caller */
    bool (*memory)(const kl_memory *m);
    bool (*caps)(struct caps *out, struct err *e);         /* this machine's target */
    /* one line: compiler, its build and this generator's sources */
    const char *(*version)(void);
    /* the file of the compiler's library, as found by the loader */
    const char *(*compiler)(void);
    bool (*compile)(const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e); /* thread-safe */
    /* As compile, for another processor of this machine's architecture: target's name, features and vector_bytes. */
    bool (*compile_for)(const struct kernel *k, const struct caps *target, enum emit_kind kind, struct code *out,
                        struct err *e);
    /* Compiles n kernels for a target at once, which takes less time than one by one.  out[i] is the code of k[i]
     * without the binary, which all share: *module.  NULL: this code generator has no use for that.  serial: the
     * compiler takes one module at a time, however many threads ask. */
    bool serial;
    bool (*compile_module)(const struct kernel *const *k, uint32_t n, const struct caps *target, struct code *out,
                           struct code *module, struct err *e);
    /* A processor of this machine's architecture by name ("baseline": the oldest that Kiln supports, "native": this
     * one, ..), with the features that programs check for. */
    bool (*target)(const char *cpu, struct caps *out, struct err *e);
    /* n programs in one file */
    bool (*object)(const struct object_parts *o, uint32_t n, const struct caps *target, struct code *out,
                   struct err *e);
};
#define KERNEL_ABI 13u

/* ---- codegen.c ---- */
/* The backend by name, its library opened on the first call; NULL: *e says why (not built, not found). */
const struct backend *backend_get(const char *name, struct err *e);
const char *backend_name(unsigned i); /* of backends.def, from 0; NULL: there are no more */
/* The file that backend_get would open; false: there is none. */
bool backend_file(const char *name, char *path, size_t size);

/* ---- library.c ---- */
/* A function of one of Kiln's own libraries, which is searched beside libkiln.so and never closed. */
bool library_entry(const char *what, const char *library, const char *entry, void **out, struct err *e);
/* The path of such a library; false: the system's loader may still find it elsewhere. */
bool library_file(const char *library, char *path, size_t size);

/* ---- identity.c ---- */
/* A text that identifies code generator `name` and this processor without opening the generator, except for files that
 * only the loader finds. false: unknown. */
bool backend_identity(const char *name, char *text, size_t size);
/* A file by its path, number, size and times; false: there is none. */
bool file_identity(const char *path, char *text, size_t size);

/* ---- objload.c: loads an object made by a backend: ELF of x86-64 or AArch64; other machines report an error ---- */
struct loaded {
    kernel_fn *fn;
    size_t size;      /* of its code */
    void *map;
    size_t map_size;
};
bool object_load(const struct code *c, struct loaded *out, struct err *e);
void object_unload(struct loaded *l);

#endif
