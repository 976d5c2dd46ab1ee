/* The exact identity of this code generator: the version of the LLVM it runs on, the build id of that library, and the
 * hash of the generator's sources (codegen/sources.cmake). */
#define _GNU_SOURCE
#include "emit.h"
#include <codegen_sources.h>
#include <dlfcn.h>
#include <link.h>
#include <llvm-c/Core.h>
#include <pthread.h>
#include <string.h>

static char version[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

struct build_id { uintptr_t inside; char hex[65]; }; /* of the library that contains the address `inside` */

static bool library_holds_address(const struct dl_phdr_info *lib, uintptr_t address)
{
    for (unsigned i = 0; i < lib->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &lib->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && address - (lib->dlpi_addr + p->p_vaddr) < p->p_memsz)
            return true;
    }
    return false;
}

static void read_notes(const char *at, size_t size, struct build_id *id)
{
    ElfW(Nhdr) n;
    while (size >= sizeof n) {
        memcpy(&n, at, sizeof n);
        size_t name = (n.n_namesz + 3) & ~(size_t)3, whole = sizeof n + name + ((n.n_descsz + 3) & ~(size_t)3);
        if (whole > size)
            return;
        if (n.n_type == NT_GNU_BUILD_ID && n.n_namesz == 4 && !memcmp(at + sizeof n, "GNU", 4))
            for (size_t i = 0; i < n.n_descsz && 2 * i + 3 <= sizeof id->hex; i++)
                snprintf(id->hex + 2 * i, 3, "%02x", (unsigned char)at[sizeof n + name + i]);
        at += whole;
        size -= whole;
    }
}

static int look_into(struct dl_phdr_info *lib, size_t size, void *ctx)
{
    struct build_id *id = ctx;
    (void)size;
    if (!library_holds_address(lib, id->inside))
        return 0;
    for (unsigned i = 0; i < lib->dlpi_phnum; i++)
        if (lib->dlpi_phdr[i].p_type == PT_NOTE)
            read_notes((const char *)(lib->dlpi_addr + lib->dlpi_phdr[i].p_vaddr), lib->dlpi_phdr[i].p_memsz, id);
    return 1;
}

static void make_version(void)
{
    unsigned major, minor, patch;
    LLVMGetVersion(&major, &minor, &patch);
    struct build_id id = {.inside = (uintptr_t)LLVMGetVersion};
    dl_iterate_phdr(look_into, &id);
    snprintf(version, sizeof version, "llvm %u.%u.%u build %s sources %s", major, minor, patch,
             *id.hex ? id.hex : "none",
             CODEGEN_SOURCES);
}

const char *llvm_file(void)
{
    Dl_info at;
    return dladdr((void *)(uintptr_t)LLVMGetVersion, &at) && at.dli_fname ? at.dli_fname : "";
}

const char *llvm_version(void)
{
    pthread_once(&once, make_version);
    return version;
}
