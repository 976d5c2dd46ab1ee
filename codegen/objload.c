/* A loader for the relocatable ELF objects that code generators make: one function, no imports.
 *
 * The allocatable sections are copied into one mapping in file order, relocated, and made read-only or executable.
 * Objects of sanitizer builds do have imports (functions of the sanitizer's runtime); each imported symbol gets a table
 * entry and a jump stub.  Every offset in the file is checked: a damaged object is an error. */
#define _GNU_SOURCE
#include "codegen.h"
#include <dlfcn.h>
#include <elf.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__aarch64__)

enum { MAX_SECTIONS = 64, STUB = 16 };

struct object {
    const uint8_t *file;
    size_t size;
    const Elf64_Shdr *sh;
    unsigned nsh;
    size_t at[MAX_SECTIONS];   /* offset of each section in the mapping, SIZE_MAX: not loaded */
    const Elf64_Sym *sym;
    size_t nsym;
    const char *str;
    size_t nstr;
    uint8_t *map;
    size_t stubs, got, map_size; /* offsets in the mapping; per symbol STUB and 8 bytes */
    struct err *e;
};

/* One relocation, of `width` bytes at `at`; all sums are modulo 2^64, because the file determines the values. */
struct relocation {
    unsigned type;
    uint8_t *at;
    uint64_t pc;                 /* the address of `at` */
    uint64_t symbol;             /* the address of the symbol */
    uint64_t code;               /* where code jumps to for it: its stub, if it is imported */
    uint64_t addend;
    uint8_t *entry;              /* of the symbol in the table of addresses */
};

/* ---- relocations of each processor ---- */

enum relocated { RELOCATED, OUT_OF_REACH, UNKNOWN_TYPE };

static bool fits_bits(uint64_t v, unsigned bits) /* as a signed number */
{
    return v + (UINT64_C(1) << (bits - 1)) < UINT64_C(1) << bits;
}

#if defined(__x86_64__)
#define OBJECT_MACHINE_NAME "x86-64"

static void stub_write(uint8_t *stub, const uint8_t *entry) /* jmp *entry(%rip) */
{
    int32_t rel = (int32_t)(entry - (stub + 6));
    stub[0] = 0xff, stub[1] = 0x25;
    memcpy(stub + 2, &rel, 4);
}

static size_t relocation_width(unsigned type) { return type == R_X86_64_64 ? 8 : 4; }

static enum relocated relocation_apply(const struct relocation *r)
{
    uint64_t v = r->symbol + r->addend;
    switch (r->type) {
    case R_X86_64_64: memcpy(r->at, &v, 8); return RELOCATED;
    case R_X86_64_PC32:
    case R_X86_64_PLT32: v = r->code + r->addend - r->pc; break;
    case R_X86_64_GOTPCREL:
    case R_X86_64_GOTPCRELX:
    case R_X86_64_REX_GOTPCRELX:
        memcpy(r->entry, &r->symbol, 8);
        v = (uint64_t)(uintptr_t)r->entry + r->addend - r->pc;
        break;
    default: return UNKNOWN_TYPE;
    }
    memcpy(r->at, &v, 4); /* the low bytes come first */
    return fits_bits(v, 32) ? RELOCATED : OUT_OF_REACH;
}

#else
#define OBJECT_MACHINE_NAME "AArch64"

static void stub_write(uint8_t *stub, const uint8_t *entry) /* the address is in the stub: its reach is short */
{
    static const uint32_t code[2] = {0x58000050, 0xd61f0200}; /* ldr x16, #8; br x16 */
    memcpy(stub, code, 8);
    memcpy(stub + 8, entry, 8);
}

static size_t relocation_width(unsigned type)
{
    return type == R_AARCH64_ABS64 || type == R_AARCH64_PREL64 ? 8 : type == R_AARCH64_PREL16 ? 2 : 4;
}

/* The low `bits` bits of v become those of the instruction from bit `shift` on. */
static void put_field(uint8_t *at, uint64_t v, unsigned shift, unsigned bits)
{
    uint32_t inst, mask = ((UINT32_C(1) << bits) - 1) << shift;
    memcpy(&inst, at, 4);
    inst = (inst & ~mask) | ((uint32_t)(v << shift) & mask);
    memcpy(at, &inst, 4);
}

/* adrp: the number of pages of 4 KB from this instruction's to that of `to`. */
static enum relocated put_page(uint8_t *at, uint64_t pc, uint64_t to)
{
    uint64_t bytes = (to & ~UINT64_C(0xfff)) - (pc & ~UINT64_C(0xfff)), pages = bytes >> 12;
    put_field(at, pages, 29, 2);
    put_field(at, pages >> 2, 5, 19);
    return fits_bits(bytes, 33) ? RELOCATED : OUT_OF_REACH;
}

/* A load's or store's offset within a page, in units of the 2^scale bytes that it accesses. */
static enum relocated put_offset(uint8_t *at, uint64_t to, unsigned scale)
{
    put_field(at, (to & 0xfff) >> scale, 10, 12);
    return to & ((1u << scale) - 1) ? OUT_OF_REACH : RELOCATED;
}

static enum relocated put_relative(uint8_t *at, uint64_t v, size_t bytes)
{
    memcpy(at, &v, bytes); /* the low bytes come first */
    return bytes == 8 || fits_bits(v, 8 * (unsigned)bytes) ? RELOCATED : OUT_OF_REACH;
}

static enum relocated relocation_apply(const struct relocation *r)
{
    uint64_t v = r->symbol + r->addend, jump = r->code + r->addend - r->pc;
    uint64_t entry = (uint64_t)(uintptr_t)r->entry;
    switch (r->type) {
    case R_AARCH64_ABS64: return put_relative(r->at, v, 8);
    case R_AARCH64_PREL64: return put_relative(r->at, v - r->pc, 8);
    case R_AARCH64_PREL32: return put_relative(r->at, v - r->pc, 4);
    case R_AARCH64_PREL16: return put_relative(r->at, v - r->pc, 2);
    case R_AARCH64_CALL26:
    case R_AARCH64_JUMP26:
        put_field(r->at, jump >> 2, 0, 26);
        return fits_bits(jump, 28) && !(jump & 3) ? RELOCATED : OUT_OF_REACH;
    case R_AARCH64_ADR_PREL_PG_HI21: return put_page(r->at, r->pc, v);
    case R_AARCH64_ADD_ABS_LO12_NC:
    case R_AARCH64_LDST8_ABS_LO12_NC: return put_offset(r->at, v, 0);
    case R_AARCH64_LDST16_ABS_LO12_NC: return put_offset(r->at, v, 1);
    case R_AARCH64_LDST32_ABS_LO12_NC: return put_offset(r->at, v, 2);
    case R_AARCH64_LDST64_ABS_LO12_NC: return put_offset(r->at, v, 3);
    case R_AARCH64_LDST128_ABS_LO12_NC: return put_offset(r->at, v, 4);
    case R_AARCH64_ADR_GOT_PAGE: memcpy(r->entry, &r->symbol, 8); return put_page(r->at, r->pc, entry);
    case R_AARCH64_LD64_GOT_LO12_NC: return put_offset(r->at, entry, 3);
    }
    return UNKNOWN_TYPE;
}
#endif

/* ---- the object ---- */

static bool object_bad(struct object *o, const char *what)
{
    return err_set(o->e, KL_ERR_COMPILE, "object code is damaged: %s", what);
}

static bool in_file(const struct object *o, uint64_t at, uint64_t n) { return at <= o->size && n <= o->size - at; }

static size_t align_up(size_t n, size_t a) { return (n + a - 1) / a * a; }

static bool read_headers(struct object *o)
{
    const Elf64_Ehdr *h = (const Elf64_Ehdr *)(const void *)o->file;
    if (o->size < sizeof *h || memcmp(h->e_ident, ELFMAG, SELFMAG) || h->e_ident[EI_CLASS] != ELFCLASS64 ||
        h->e_type != ET_REL || h->e_machine != HOST_ELF_MACHINE)
        return object_bad(o, "not an " OBJECT_MACHINE_NAME " ELF object");
    if (h->e_shentsize != sizeof(Elf64_Shdr) || h->e_shnum > MAX_SECTIONS || h->e_shoff % 8 ||
        !in_file(o, h->e_shoff, h->e_shnum * sizeof(Elf64_Shdr)))
        return object_bad(o, "section headers");
    o->sh = (const Elf64_Shdr *)(const void *)(o->file + h->e_shoff);
    o->nsh = h->e_shnum;
    for (unsigned i = 0; i < o->nsh; i++) {
        const Elf64_Shdr *s = &o->sh[i];
        if (s->sh_type != SHT_NOBITS && !in_file(o, s->sh_offset, s->sh_size))
            return object_bad(o, "a section lies outside the file");
        if (s->sh_type != SHT_SYMTAB)
            continue;
        if (s->sh_offset % 8 || s->sh_link >= o->nsh || o->sh[s->sh_link].sh_type != SHT_STRTAB)
            return object_bad(o, "symbol table");
        o->sym = (const Elf64_Sym *)(const void *)(o->file + s->sh_offset);
        o->nsym = s->sh_size / sizeof *o->sym;
        o->str = (const char *)o->file + o->sh[s->sh_link].sh_offset;
        o->nstr = o->sh[s->sh_link].sh_size;
    }
    for (unsigned i = 0; i < o->nsh; i++)
        if (o->sh[i].sh_type == SHT_STRTAB && !in_file(o, o->sh[i].sh_offset, o->sh[i].sh_size))
            return object_bad(o, "string table");
    return o->sym && o->nstr && !o->str[o->nstr - 1] ? true : object_bad(o, "no symbols");
}

/* Places the allocatable sections, then a stub and a table entry for each symbol. */
static bool lay_out(struct object *o)
{
    size_t end = 0;
    for (unsigned i = 0; i < o->nsh; i++) {
        const Elf64_Shdr *s = &o->sh[i];
        o->at[i] = SIZE_MAX;
        if (!(s->sh_flags & SHF_ALLOC))
            continue;
        if (s->sh_addralign > 4096 || (s->sh_addralign & (s->sh_addralign - 1)) || s->sh_size > (1u << 28))
            return object_bad(o, "section size or alignment");
        end = align_up(end, s->sh_addralign > 1 ? s->sh_addralign : 1);
        o->at[i] = end;
        end += s->sh_size;
    }
    o->stubs = align_up(end, STUB);
    o->got = o->stubs + o->nsym * STUB;
    o->map_size = align_up(o->got + o->nsym * 8 + 1, (size_t)sysconf(_SC_PAGESIZE));
    void *p = mmap(NULL, o->map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_set(o->e, KL_ERR_MEMORY, "out of memory loading object code");
    o->map = p;
    for (unsigned i = 0; i < o->nsh; i++)
        if (o->at[i] != SIZE_MAX && o->sh[i].sh_type != SHT_NOBITS && o->sh[i].sh_size)
            memcpy(o->map + o->at[i], o->file + o->sh[i].sh_offset, o->sh[i].sh_size);
    return true;
}

/* Only a sanitizer's pass makes imports. */
static void *object_import(const char *name)
{
#if defined(KILN_ASAN) || defined(KILN_TSAN)
    return dlsym(RTLD_DEFAULT, name);
#else
    (void)name;
    return NULL;
#endif
}

/* The address of symbol i; *imported: code reaches it through its stub or table entry. */
static bool symbol_address(struct object *o, size_t i, uint64_t *addr, bool *imported)
{
    *imported = false;
    if (i >= o->nsym)
        return object_bad(o, "symbol number");
    const Elf64_Sym *s = &o->sym[i];
    if (s->st_shndx != SHN_UNDEF) {
        if (s->st_shndx >= o->nsh || o->at[s->st_shndx] == SIZE_MAX || s->st_value > o->sh[s->st_shndx].sh_size)
            return object_bad(o, "symbol address");
        *addr = (uint64_t)(uintptr_t)o->map + o->at[s->st_shndx] + s->st_value;
        return true;
    }
    const char *name = s->st_name < o->nstr ? o->str + s->st_name : "";
    void *p = object_import(name);
    if (!p)
        return err_set(o->e, KL_ERR_COMPILE, "object code needs symbol '%.60s', which kernels may not", name);
    *addr = (uint64_t)(uintptr_t)p;
    *imported = true;
    memcpy(o->map + o->got + 8 * i, addr, 8);
    stub_write(o->map + o->stubs + STUB * i, o->map + o->got + 8 * i);
    return true;
}

static bool relocate_one(struct object *o, unsigned target, const Elf64_Rela *r)
{
    unsigned type = (unsigned)ELF64_R_TYPE(r->r_info);
    size_t sym = ELF64_R_SYM(r->r_info), width = relocation_width(type);
    bool imported;
    if (!type)
        return true;
    if (r->r_offset > o->sh[target].sh_size || o->sh[target].sh_size - r->r_offset < width)
        return object_bad(o, "relocation offset");
    struct relocation x = {.type = type, .addend = (uint64_t)r->r_addend};
    if (!symbol_address(o, sym, &x.symbol, &imported))
        return false;
    x.at = o->map + o->at[target] + r->r_offset;
    x.pc = (uint64_t)(uintptr_t)x.at;
    x.code = imported ? (uint64_t)(uintptr_t)(o->map + o->stubs + STUB * sym) : x.symbol;
    x.entry = o->map + o->got + 8 * sym;
    switch (relocation_apply(&x)) {
    case RELOCATED: return true;
    case OUT_OF_REACH: return object_bad(o, "relocation out of reach");
    case UNKNOWN_TYPE: break;
    }
    return err_set(o->e, KL_ERR_COMPILE, "object code has relocations of unknown type %u", type);
}

static const Elf64_Sym *kernel_symbol(const struct object *o)
{
    for (size_t i = 0; i < o->nsym; i++) {
        const Elf64_Sym *s = &o->sym[i];
        if (s->st_name >= o->nstr || strcmp(o->str + s->st_name, "kernel") || s->st_shndx >= o->nsh ||
            o->at[s->st_shndx] == SIZE_MAX)
            continue;
        if ((o->sh[s->st_shndx].sh_flags & SHF_EXECINSTR) && s->st_value < o->sh[s->st_shndx].sh_size)
            return s;
    }
    return NULL;
}

/* The kernel's own code and its constants.  Unwind tables and the sanitizers' module constructors, which refer to
 * symbols of the linker, are copied but never used. */
static bool object_section_is_needed(const struct object *o, unsigned section)
{
    const Elf64_Shdr *s = &o->sh[section];
    if (s->sh_type != SHT_PROGBITS || !(s->sh_flags & SHF_EXECINSTR))
        return s->sh_type == SHT_PROGBITS && !(s->sh_flags & SHF_WRITE);
    const Elf64_Sym *k = kernel_symbol(o);
    return k && k->st_shndx == section;
}

static bool object_relocate(struct object *o)
{
    for (unsigned i = 0; i < o->nsh; i++) {
        const Elf64_Shdr *s = &o->sh[i];
        if (s->sh_type == SHT_REL)
            return object_bad(o, "relocations without addends");
        if (s->sh_type != SHT_RELA)
            continue;
        if (s->sh_offset % 8 || s->sh_info >= o->nsh)
            return object_bad(o, "relocation section");
        if (o->at[s->sh_info] == SIZE_MAX || !object_section_is_needed(o, s->sh_info))
            continue;
        const Elf64_Rela *r = (const Elf64_Rela *)(const void *)(o->file + s->sh_offset);
        for (size_t j = 0; j < s->sh_size / sizeof *r; j++)
            if (!relocate_one(o, s->sh_info, &r[j]))
                return false;
    }
    return true;
}

static kernel_fn *find_kernel(const struct object *o)
{
    const Elf64_Sym *s = kernel_symbol(o);
    if (!s)
        return NULL;
    kernel_fn *fn;
    void *p = o->map + o->at[s->st_shndx] + s->st_value;
    memcpy(&fn, &p, sizeof fn);
    return fn;
}

bool object_load(const struct code *c, struct loaded *out, struct err *e)
{
    struct object o = {.file = c->bytes, .size = c->size, .e = e};
    *out = (struct loaded){0};
    bool ok = read_headers(&o) && lay_out(&o) && object_relocate(&o);
    if (ok && !(out->fn = find_kernel(&o)))
        ok = object_bad(&o, "no function 'kernel'");
    if (ok)
        __builtin___clear_cache((char *)o.map, (char *)o.map + o.map_size);
    if (ok && mprotect(o.map, o.map_size, PROT_READ | PROT_EXEC))
        ok = err_set(e, KL_ERR_MEMORY, "the system does not let memory become executable");
    if (!ok) {
        if (o.map)
            munmap(o.map, o.map_size);
        out->fn = NULL;
        return false;
    }
    out->size = kernel_symbol(&o)->st_size;
    out->map = o.map;
    out->map_size = o.map_size;
    return true;
}

#else

bool object_load(const struct code *c, struct loaded *out, struct err *e)
{
    (void)c;
    *out = (struct loaded){0};
    return err_set(e, KL_ERR_DEVICE, "loading kernels is not written for this processor yet; use device ref");
}

#endif

void object_unload(struct loaded *l)
{
    if (l->map)
        munmap(l->map, l->map_size);
    *l = (struct loaded){0};
}
