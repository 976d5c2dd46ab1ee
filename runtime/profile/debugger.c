/* Registers compiled kernels with debuggers and profilers, under their names and the user's lines.
 *
 * gdb: each kernel gets a small ELF file in memory, with a symbol, a line table and minimal DWARF.  The files are in
 * the list of gdb's JIT interface, which a debugger reads when it attaches or when its breakpoint is reached. perf:
 * each kernel is a line in /tmp/perf-PID.map, which `perf report` reads, if option "perf_map" or KILN_PERF is on. */
#define _GNU_SOURCE
#include "debugger.h"
#include "codegen/codegen.h"
#include "ir/file_signal.h"
#include "ir/text/text.h"
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- gdb's interface: gdb requires these names and types ---- */

struct jit_descriptor __jit_debug_descriptor = {1, JIT_NOACTION, NULL, NULL};

void __attribute__((noinline)) __jit_debug_register_code(void)
{
    __asm__ volatile("" ::: "memory"); /* the debugger sets a breakpoint here; the list must be complete in memory */
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list and perf's file */

/* ---- bytes of a file ---- */

struct debugger_bytes { unsigned char *p; size_t n, cap; bool failed; };

static void debugger_put(struct debugger_bytes *b, const void *p, size_t n)
{
    uint32_t cap = (uint32_t)b->cap;
    if (b->failed || !mem_reserve(&b->p, &cap, (uint32_t)(b->n + n), 1)) {
        b->failed = true;
        return;
    }
    b->cap = cap;
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
}

/* Little-endian, like the machine. */
static void debugger_put_number(struct debugger_bytes *b, uint64_t v, unsigned size) { debugger_put(b, &v, size); }
static void debugger_put_string(struct debugger_bytes *b, const char *s) { debugger_put(b, s, strlen(s) + 1); }

/* LEB128 of a non-negative number; `sign`: leaves room for a sign bit. */
static void put_leb(struct debugger_bytes *b, uint64_t v, bool sign)
{
    bool more;
    do {
        more = v >> 7 || (sign && v & 0x40);
        debugger_put_number(b, (v & 0x7f) | (more ? 0x80u : 0), 1);
        v >>= 7;
    } while (more);
}

/* Writes the length of everything after `at` to the bytes before it. */
static void set_length(struct debugger_bytes *b, size_t at)
{
    uint32_t n = (uint32_t)(b->n - at - 4);
    if (!b->failed)
        memcpy(b->p + at, &n, 4);
}

/* ---- DWARF 4: a unit with one function, all of it on one line ---- */

static void put_abbreviations(struct debugger_bytes *b)
{
    static const unsigned char table[] = {
        /* unit: name, from, size, lines */
        1, 0x11, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x07, 0x10, 0x17, 0, 0,
        /* function: name, file, line, from, size */
        2, 0x2e, 0, 0x03, 0x08, 0x3a, 0x0b, 0x3b, 0x06, 0x11, 0x01, 0x12, 0x07, 0, 0,
        0};
    debugger_put(b, table, sizeof table);
}

static void put_info(struct debugger_bytes *b, const struct code_symbol *s)
{
    debugger_put_number(b, 0, 4);
    debugger_put_number(b, 4, 2);  /* version */
    debugger_put_number(b, 0, 4);  /* its abbreviations */
    debugger_put_number(b, 8, 1);  /* bytes of an address */
    debugger_put_number(b, 1, 1);
    debugger_put_string(b, s->file);
    debugger_put_number(b, s->address, 8);
    debugger_put_number(b, s->size, 8);
    debugger_put_number(b, 0, 4);  /* its lines */
    debugger_put_number(b, 2, 1);
    debugger_put_string(b, s->name);
    debugger_put_number(b, 1, 1);
    debugger_put_number(b, (uint64_t)s->line, 4);
    debugger_put_number(b, s->address, 8);
    debugger_put_number(b, s->size, 8);
    debugger_put_number(b, 0, 1);
    set_length(b, 0);
}

static void put_lines(struct debugger_bytes *b, const struct code_symbol *s)
{
    static const unsigned char operands[12] = {0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1}; /* of the standard opcodes */
    debugger_put_number(b, 0, 4);
    debugger_put_number(b, 4, 2);
    debugger_put_number(b, 0, 4);
    size_t header = b->n;
    /* bytes of an instruction, of a bundle; statements; line base -5, range 14, 13 opcodes */
    debugger_put(b, "\1\1\1\xfb\x0e\x0d", 6);
    debugger_put(b, operands, sizeof operands);
    debugger_put_number(b, 0, 1);             /* no folders */
    debugger_put_string(b, s->file);
    debugger_put(b, "\0\0\0\0", 4);           /* folder, time and size are unknown; no more files */
    uint32_t n = (uint32_t)(b->n - header);
    if (!b->failed)
        memcpy(b->p + header - 4, &n, 4);
    debugger_put(b, "\0\x09\x02", 3);         /* from this address */
    debugger_put_number(b, s->address, 8);
    debugger_put_number(b, 3, 1);             /* advance the line from 1 */
    put_leb(b, s->line > 1 ? (uint64_t)s->line - 1 : 0, true);
    debugger_put_number(b, 1, 1);             /* a row */
    debugger_put_number(b, 2, 1);             /* advance the address */
    put_leb(b, s->size, false);
    debugger_put(b, "\0\1\1", 3);             /* the end of the sequence */
    set_length(b, 0);
}

/* ---- ELF ---- */

enum { S_NONE, S_TEXT, S_SYMTAB, S_STRTAB, S_INFO, S_ABBREV, S_LINE, S_SHSTRTAB, SECTIONS };

bool symbol_file(const struct code_symbol *s, void **file, size_t *size)
{
    static const char names[] = "\0.text\0.symtab\0.strtab\0.debug_info\0.debug_abbrev\0.debug_line\0.shstrtab";
    static const unsigned name_at[SECTIONS] = {0, 1, 7, 15, 23, 35, 49, 61};
    struct debugger_bytes part[SECTIONS] = {0}, out = {0};
    Elf64_Sym symbol[2] = {{0}, {.st_name = 1, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), .st_shndx = S_TEXT,
                                 .st_value = s->address, .st_size = s->size}};
    debugger_put(&part[S_SYMTAB], symbol, sizeof symbol);
    debugger_put_number(&part[S_STRTAB], 0, 1);
    debugger_put_string(&part[S_STRTAB], s->name);
    if (*s->file && s->line > 0) {
        put_info(&part[S_INFO], s);
        put_abbreviations(&part[S_ABBREV]);
        put_lines(&part[S_LINE], s);
    }
    debugger_put(&part[S_SHSTRTAB], names, sizeof names);
    Elf64_Ehdr h = {.e_type = ET_EXEC, .e_machine = HOST_ELF_MACHINE, .e_version = EV_CURRENT, .e_shoff = sizeof h,
                    .e_ehsize = sizeof h,
                    .e_shentsize = sizeof(Elf64_Shdr), .e_shnum = SECTIONS, .e_shstrndx = S_SHSTRTAB};
    memcpy(h.e_ident, ELFMAG, SELFMAG);
    h.e_ident[EI_CLASS] = ELFCLASS64;
    h.e_ident[EI_DATA] = ELFDATA2LSB;
    h.e_ident[EI_VERSION] = EV_CURRENT;
    Elf64_Shdr sh[SECTIONS] = {{0}};
    size_t at = sizeof h + sizeof sh;
    for (int i = 1; i < SECTIONS; i++) {
        sh[i] = (Elf64_Shdr){.sh_name = name_at[i], .sh_type = SHT_PROGBITS, .sh_offset = at, .sh_size = part[i].n,
                             .sh_addralign = 8};
        at += (part[i].n + 7) & ~(size_t)7;
    }
    sh[S_TEXT].sh_type = SHT_NOBITS;
    sh[S_TEXT].sh_flags = SHF_ALLOC | SHF_EXECINSTR;
    sh[S_TEXT].sh_addr = s->address;
    sh[S_TEXT].sh_size = s->size;
    sh[S_TEXT].sh_addralign = 1;
    sh[S_SYMTAB].sh_type = SHT_SYMTAB;
    sh[S_SYMTAB].sh_link = S_STRTAB;
    sh[S_SYMTAB].sh_info = 1;
    sh[S_SYMTAB].sh_entsize = sizeof(Elf64_Sym);
    sh[S_STRTAB].sh_type = sh[S_SHSTRTAB].sh_type = SHT_STRTAB;
    debugger_put(&out, &h, sizeof h);
    debugger_put(&out, sh, sizeof sh);
    for (int i = 1; i < SECTIONS; i++) {
        debugger_put(&out, part[i].p, part[i].n);
        debugger_put(&out, "\0\0\0\0\0\0\0", -part[i].n & 7);
        out.failed |= part[i].failed;
        mem_free(part[i].p);
    }
    if (out.failed) {
        mem_free(out.p);
        return false;
    }
    *file = out.p;
    *size = out.n;
    return true;
}

/* ---- both ---- */

/* A kernel without a line has none here; if memory runs out, the kernel is not registered. */
static struct jit_code_entry *register_gdb(const struct code_symbol *s)
{
    void *file;
    size_t size;
    struct jit_code_entry *entry = mem_alloc(sizeof *entry);
    if (!entry || !symbol_file(s, &file, &size)) {
        mem_free(entry);
        return NULL;
    }
    *entry = (struct jit_code_entry){.next = __jit_debug_descriptor.first_entry, .symfile_addr = file,
                                     .symfile_size = size};
    if (entry->next)
        entry->next->prev = entry;
    __jit_debug_descriptor.first_entry = __jit_debug_descriptor.relevant_entry = entry;
    __jit_debug_descriptor.action_flag = JIT_REGISTER;
    __jit_debug_register_code();
    __jit_debug_descriptor.action_flag = JIT_NOACTION;
    return entry;
}

void debugger_unregister(struct jit_code_entry *entry)
{
    if (!entry)
        return;
    pthread_mutex_lock(&lock);
    *(entry->prev ? &entry->prev->next : &__jit_debug_descriptor.first_entry) = entry->next;
    if (entry->next)
        entry->next->prev = entry->prev;
    __jit_debug_descriptor.relevant_entry = entry;
    __jit_debug_descriptor.action_flag = JIT_UNREGISTER;
    __jit_debug_register_code();
    __jit_debug_descriptor.action_flag = JIT_NOACTION;
    __jit_debug_descriptor.relevant_entry = NULL;
    pthread_mutex_unlock(&lock);
    mem_free((void *)(uintptr_t)entry->symfile_addr);
    mem_free(entry);
}

size_t debugger_bytes(const struct jit_code_entry *entry)
{
    return entry ? sizeof *entry + entry->symfile_size : 0;
}

static void register_perf(const struct code_symbol *s)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    struct file_signal saved = file_signal_block();
    dprintf(fd, "%llx %llx %s", (unsigned long long)s->address, (unsigned long long)s->size, s->name);
    if (*s->file && s->line > 0)
        dprintf(fd, " [%s:%d]", s->file, s->line);
    dprintf(fd, "\n");
    close(fd);
    file_signal_restore(&saved);
}

struct jit_code_entry *debugger_register(const struct kernel *k, const struct loaded *l)
{
    struct code_symbol s = {.line = k->line, .size = l->size};
    memcpy(&s.address, &l->fn, sizeof s.address);
    snprintf(s.name, sizeof s.name, "kiln_%s", k->name);
    snprintf(s.file, sizeof s.file, "%s", k->file);
    for (char *c = s.name; *c; c++)
        if (!is_name_char(*c))
            *c = '_';
    for (char *c = s.file; *c; c++)
        if ((unsigned char)*c < 0x20)
            *c = '?';
    pthread_mutex_lock(&lock);
    struct jit_code_entry *entry = register_gdb(&s);
    if (option_perf_map())
        register_perf(&s);
    pthread_mutex_unlock(&lock);
    return entry;
}

static void debugger_before_fork(void) { pthread_mutex_lock(&lock); }
static void debugger_after_fork(bool child) { (void)child, pthread_mutex_unlock(&lock); }
const struct fork_part debugger_fork = {debugger_before_fork, debugger_after_fork};
