/* Registration of compiled kernels with debuggers and profilers. */
#ifndef KILN_DEBUGGER_H
#define KILN_DEBUGGER_H
#include "runtime/runtime.h"

/* ---- gdb's JIT interface, as defined in its manual ---- */
enum { JIT_NOACTION, JIT_REGISTER, JIT_UNREGISTER };
struct jit_code_entry {
    struct jit_code_entry *next, *prev;
    const char *symfile_addr;
    uint64_t symfile_size;
};
struct jit_descriptor {
    uint32_t version, action_flag;
    struct jit_code_entry *relevant_entry, *first_entry;
};
extern struct jit_descriptor __jit_debug_descriptor;
void __jit_debug_register_code(void);

struct code_symbol {
    uint64_t address, size;
    char name[80], file[128];   /* file "": the line is not known */
    int line;
};
/* Makes the ELF file for a kernel; mem_free it. false: out of memory. */
bool symbol_file(const struct code_symbol *s, void **file, size_t *size);

/* Registers a loaded kernel until debugger_unregister; NULL: out of memory. */
struct jit_code_entry *debugger_register(const struct kernel *k, const struct loaded *l);
void debugger_unregister(struct jit_code_entry *entry);       /* NULL is fine, also below */
size_t debugger_bytes(const struct jit_code_entry *entry);    /* bytes that it uses */
extern const struct fork_part debugger_fork;

#endif
