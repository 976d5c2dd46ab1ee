/* The machine code of named kernels for an MI250, against a table that a change must not worsen.
 *
 *   gpu_structure_amd [CASE ...]    all cases, or those named; no device is needed
 *
 * The cases are graphs of gpu_structure_graphs.def.  Their kernels are lowered for gfx90a, compiled by hiprtc and
 * listed by llvm-objdump ($KILN_LLVM_OBJDUMP, or on the path), whose lines are counted.  gpu_structure_amd.def has the
 * counts; KILN_BLESS=1 writes what was counted into it.  Counts depend on the compiler: those of kernels and of kinds
 * of instructions are compared always, the others only where hiprtc has the version that the table names. */
#include "codegen/gpu/compilers/compile.h"
#include "codegen/gpu/source.h"
#include "disassembly.h"
#include "tests/support/harness.h"
#include <elf.h>

enum { PROCESSORS = 104, MAX_LINES = 1 << 16 };
static const char architecture[] = "gfx90a", table_path[] = "tests/gpu/structure/gpu_structure_amd.def";

static const struct { const char *name, *text; } graphs[] = {
#include "tests/gpu/gpu_structure_graphs.def"
};
static const char *const cases[] = {"f32_4096", "bf16_4096", "bf16_rows_16", "attention", "attention_grad_kv", "conv",
                                    "conv_channels_last", "conv_grad_weights", "conv_f32"};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- counts ---- */

/* X(field, heading).  Of all kernels of a case; registers, scratch and shared: the largest kernel's, in registers of a
 * lane and bytes. */
#define COUNTS(X) \
    X(kernels, "kernels") X(half_32, "32x32x8") X(half_16, "16x16x16") X(float_32, "32x32x2") X(float_16, "16x16x4") \
    X(fma, "fma") X(reads, "ds_read") X(reads_16, "b128") X(writes, "ds_write") X(writes_16, "b128") \
    X(global, "global") X(global_16, "x4") X(barriers, "barrier") X(registers, "registers") X(scratch, "scratch") \
    X(shared, "shared") X(loop_products, "loop mfma") X(loop_reads, "ds_read") X(loop_others, "others")
struct counts {
#define FIELD(field, heading) unsigned field;
    COUNTS(FIELD)
#undef FIELD
};

static const struct row { const char *name; struct counts c; } table[] = {
#define STRUCTURE(name, ...) {name, {__VA_ARGS__}},
#define COMPILER(version)
#include "gpu_structure_amd.def"
#undef STRUCTURE
#undef COMPILER
    {NULL, {0}}};
static const char compiler[] =
#define STRUCTURE(...)
#define COMPILER(version) version
#include "gpu_structure_amd.def"
#undef STRUCTURE
#undef COMPILER
    "";

/* ---- the listing ---- */

struct line { char op[48]; uint64_t address, target; bool branches; };

static bool begins(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }

static bool is_matrix(const char *op) { return begins(op, "v_mfma_"); }

static void count_line(const char *op, struct counts *c)
{
    bool global = begins(op, "global_load") || begins(op, "global_store");
    c->half_32 += begins(op, "v_mfma_f32_32x32x8");
    c->half_16 += begins(op, "v_mfma_f32_16x16x16");
    c->float_32 += begins(op, "v_mfma_f32_32x32x2");
    c->float_16 += begins(op, "v_mfma_f32_16x16x4");
    c->fma += begins(op, "v_fma_f32") || begins(op, "v_fmac_f32") || begins(op, "v_pk_fma_f32");
    c->reads += begins(op, "ds_read");
    c->reads_16 += begins(op, "ds_read_b128") || begins(op, "ds_read2_b64") || begins(op, "ds_read2st64_b64");
    c->writes += begins(op, "ds_write");
    c->writes_16 += begins(op, "ds_write_b128") || begins(op, "ds_write2_b64") || begins(op, "ds_write2st64_b64");
    c->global += global;
    c->global_16 += global && strstr(op, "dwordx4");
    c->barriers += begins(op, "s_barrier");
}

/* The smallest loop with matrix instructions: a branch goes back over them. */
static void count_loop(const struct line *l, unsigned n, struct counts *c)
{
    for (unsigned i = 0; i < n; i++) {
        unsigned products = 0, reads = 0, from = i;
        if (!l[i].branches || l[i].target >= l[i].address)
            continue;
        while (from && l[from].address > l[i].target) {
            from--;
            products += is_matrix(l[from].op);
            reads += begins(l[from].op, "ds_read");
        }
        unsigned others = i - from - products - reads;
        if (products && (!c->loop_products || i - from < c->loop_products + c->loop_reads + c->loop_others)) {
            c->loop_products = products;
            c->loop_reads = reads;
            c->loop_others = others;
        }
    }
}

static struct disassembler objdump = {.variable = "KILN_LLVM_OBJDUMP", .option = "-d",
                                      .search = "command -v llvm-objdump-19 || command -v llvm-objdump"};

/* A line of the listing: tab, operation, operands, "// " address ":" code and, of a branch, <symbol+0xoffset>. */
static bool parse_line(const char *text, uint64_t start, struct line *out)
{
    const char *at = strstr(text, "// "), *to = at ? strstr(at, "<kernel+0x") : NULL;
    unsigned long long address, target = 0;
    *out = (struct line){0};
    if (!at || sscanf(text, " %47s", out->op) != 1 || sscanf(at, "// %llx:", &address) != 1)
        return false;
    out->branches = begins(out->op, "s_cbranch") || begins(out->op, "s_branch");
    if (out->branches && at && strstr(at, "<kernel>"))
        target = start;
    else if (out->branches && (!to || sscanf(to, "<kernel+%llx>", &target) != 1))
        out->branches = false;
    out->address = address;
    out->target = target + (to ? start : 0);
    return true;
}

static bool list(const uint8_t *bytes, size_t size, struct counts *c)
{
    char text[4096];
    struct line *line = malloc(MAX_LINES * sizeof *line);
    struct listing listed;
    unsigned n = 0;
    bool ok = line && listing_open(&listed, &objdump, bytes, size);
    while (ok && fgets(text, sizeof text, listed.text) && n < MAX_LINES)
        n += parse_line(text, n ? line[0].address : 0, &line[n]);
    ok = line && listing_close(&listed) && n > 1 && n < MAX_LINES;
    for (unsigned i = 0; ok && i < n; i++)
        count_line(line[i].op, c);
    if (ok)
        count_loop(line, n, c);
    free(line);
    return ok;
}

/* The kernel's descriptor (LLVM, "User Guide for AMDGPU Backend: Kernel Descriptor"), which is the symbol kernel.kd of
 * 64 bytes: at 0 the bytes of shared memory and at 4 those of a lane's scratch; the low 6 bits at 48 are a lane's
 * registers / 8 - 1. */
static bool read_descriptor(const uint8_t *elf, struct counts *c)
{
    Elf64_Ehdr h;
    Elf64_Shdr s, strings, in;
    memcpy(&h, elf, sizeof h);
    for (unsigned i = 0; i < h.e_shnum; i++) {
        memcpy(&s, elf + h.e_shoff + i * sizeof s, sizeof s);
        if (s.sh_type != SHT_DYNSYM)
            continue;
        memcpy(&strings, elf + h.e_shoff + s.sh_link * sizeof s, sizeof s);
        for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= s.sh_size; at += sizeof(Elf64_Sym)) {
            Elf64_Sym y;
            uint32_t word[13];
            memcpy(&y, elf + s.sh_offset + at, sizeof y);
            if (strcmp((const char *)elf + strings.sh_offset + y.st_name, "kernel.kd"))
                continue;
            memcpy(&in, elf + h.e_shoff + y.st_shndx * sizeof in, sizeof in);
            memcpy(word, elf + in.sh_offset + (y.st_value - in.sh_addr), sizeof word);
            c->shared = word[0];
            c->scratch = word[1];
            c->registers = ((word[12] & 63) + 1) * 8;
            return true;
        }
    }
    return false;
}

/* What hiprtc gives may be a bundle of files, with this architecture's behind that of the host, which is empty. */
static bool count_code(const struct code *code, struct counts *c)
{
    const uint8_t *p = (const uint8_t *)code->bytes, *end = p + code->size;
    while (p + sizeof(Elf64_Ehdr) <= end && memcmp(p, ELFMAG, SELFMAG))
        p++;
    return p + sizeof(Elf64_Ehdr) <= end && list(p, (size_t)(end - p), c) && read_descriptor(p, c);
}

/* ---- one case ---- */

static unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

static bool count_kernel(const char *name, const struct kernel *k, const struct caps *caps, struct counts *sum)
{
    struct err e = {0};
    struct text source = {0};
    struct code code = {0};
    struct counts c = {.kernels = 1};
    const struct dialect *d = dialect_find("hip", &e);
    dialect_prelude(d, caps->features, &source);
    bool ok = check(source_kernel(k, d, "kernel", &source, NULL, &e) &&
                    gpu_compiler_find("hip", &e)->compile(source.s, architecture, GPU_BINARY, &code, &e), "%s: %s",
                    name, e.msg);
    if (ok && getenv("KILN_STRUCTURE_TEXT"))
        printf("%s\n", source.s);
    ok = ok && check(count_code(&code, &c), "%s: no listing", name);
    unsigned registers = max(sum->registers, c.registers), scratch = max(sum->scratch, c.scratch);
    unsigned shared = max(sum->shared, c.shared);
#define ADD(field, heading) sum->field += c.field;
    COUNTS(ADD)
#undef ADD
    sum->registers = registers;
    sum->scratch = scratch;
    sum->shared = shared;
    mem_free(code.bytes);
    mem_free(source.s);
    return ok;
}

static bool count_case(const char *name, const struct caps *caps, struct counts *sum)
{
    struct err e = {0};
    const char *text = "";
    struct program *p = NULL;
    *sum = (struct counts){0};
    for (unsigned i = 0; i < sizeof graphs / sizeof *graphs; i++)
        text = strcmp(graphs[i].name, name) ? text : graphs[i].text;
    struct graph *g = graph_parse(text, strlen(text), NULL, &e);
    if (g && passes_run(g, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX}))
        p = program_plan(g, caps, false, &e);
    bool ok = check(p, "%s: %s", name, g && g->err.code ? g->err.msg : e.msg);
    for (uint32_t n = 0; ok && n < p->nkernel; n++)
        ok = count_kernel(name, p->kernel[n], caps, sum);
    program_free(p);
    graph_free(g);
    return ok;
}

/* Is what was counted no worse than the table's row?  For each matrix instruction of a loop there may be no more of
 * anything else than there was. */
static void compare(const char *name, const struct counts *c, bool same_compiler)
{
    const struct counts *t = NULL;
    for (const struct row *r = table; r->name; r++)
        t = strcmp(r->name, name) ? t : &r->c;
    if (!check(t, "%s is not in %s", name, table_path))
        return;
    check(c->kernels <= t->kernels, "%s: %u kernels, were %u", name, c->kernels, t->kernels);
    check(!(t->half_32 || t->half_16) || c->half_32 || c->half_16, "%s: no matrix instruction of halves", name);
    check(!(t->float_32 || t->float_16) || c->float_32 || c->float_16, "%s: no matrix instruction of f32", name);
    if (!same_compiler)
        return;
    check(c->barriers <= t->barriers, "%s: %u barriers, were %u", name, c->barriers, t->barriers);
    check(c->scratch <= t->scratch, "%s: %u bytes of scratch, were %u", name, c->scratch, t->scratch);
    check((uint64_t)c->loop_reads * t->loop_products <= (uint64_t)t->loop_reads * c->loop_products,
          "%s: a loop reads shared memory %u times for %u products, did %u for %u", name, c->loop_reads,
          c->loop_products, t->loop_reads, t->loop_products);
    check((uint64_t)c->loop_others * t->loop_products <= (uint64_t)t->loop_others * c->loop_products,
          "%s: a loop has %u instructions beside %u products, had %u beside %u", name, c->loop_others,
          c->loop_products, t->loop_others, t->loop_products);
    check((uint64_t)c->global_16 * t->global >= (uint64_t)t->global_16 * c->global,
          "%s: %u of %u global accesses are 16 bytes wide, were %u of %u", name, c->global_16, c->global, t->global_16,
          t->global);
}

static void bless(const struct counts *c, const char *version)
{
    FILE *f = fopen(table_path, "w");
    if (!check(f, "%s cannot be written", table_path))
        return;
    fprintf(f, "/* Written by KILN_BLESS=1 build/tests/gpu_structure_amd: counts in the machine code for gfx90a.\n"
            " * STRUCTURE(case, kernels, matrix instructions of halves with sides of 32 and of 16, the same of f32,\n"
            " * fma, reads of shared memory, of these 16 bytes wide, writes, of these 16 bytes wide, global accesses,\n"
            " * of these 16 bytes wide, barriers, registers, bytes of scratch, bytes of shared memory; of the loop\n"
            " * with products: matrix instructions, reads of shared memory, other instructions) */\nCOMPILER(\"%s\")\n",
            version);
    for (unsigned i = 0; i < CASES; i++) {
        fprintf(f, "STRUCTURE(\"%s\"", cases[i]);
#define PUT(field, heading) fprintf(f, ", %u", c[i].field);
        COUNTS(PUT)
#undef PUT
        fprintf(f, ")\n");
    }
    fclose(f);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    char version[64];
    static struct counts counted[CASES];
    struct caps caps;
    const struct gpu_compiler *hiprtc = gpu_compiler_find("hip", &e);
    if (!hiprtc || !hiprtc->version(version, sizeof version, &e)) {
        printf("SKIP no-compiler hip: %s\n", e.msg);
        skipped++;
        return finish();
    }
    if (*disassembler_path(&objdump) == '-') {
        printf("SKIP no-tool llvm-objdump: it is not on the path\n");
        skipped++;
        return finish();
    }
    dialect_caps(dialect_find("hip", &e), &caps);
    dialect_architecture(dialect_find("hip", &e), architecture, &caps);
    caps.threads = PROCESSORS;
    caps.l2_bytes = 8 << 20;
    snprintf(caps.features, sizeof caps.features, "%s", architecture);
    bool blesses = getenv("KILN_BLESS") && argc < 2;
    printf("%-18s", "case");
#define HEAD(field, heading) printf(" %9s", heading);
    COUNTS(HEAD)
#undef HEAD
    printf("\n");
    for (unsigned i = 0; i < CASES; i++) {
        if (!is_named(cases[i], argc, argv) || !count_case(cases[i], &caps, &counted[i]))
            continue;
        printf("%-18s", cases[i]);
#define SHOW(field, heading) printf(" %9u", counted[i].field);
        COUNTS(SHOW)
#undef SHOW
        printf("\n");
        if (!blesses)
            compare(cases[i], &counted[i], !strcmp(version, compiler));
    }
    if (blesses && !failed)
        bless(counted, version);
    return finish();
}
