/* The machine code and the launches of named kernels for an H200, against a table that a change must not worsen.
 *
 *   gpu_structure [CASE ...]    all cases, or those named; no device is needed
 *
 * Each case is a graph.  Its kernels are lowered for sm_90a, compiled by NVRTC, and the instructions of the machine
 * code are counted.  gpu_structure.def has the counts; KILN_BLESS=1 writes what was counted into it.  Registers depend
 * on the compiler: they are compared only where NVRTC has the version that the table names.  Where nvdisasm is found
 * ($KILN_NVDISASM, or on the path), its listing must give the same counts. */
#define _GNU_SOURCE /* popen, mkstemp */
#include "codegen/gpu/compilers/compile.h"
#include "codegen/gpu/source.h"
#include "tests/support/harness.h"
#include <elf.h>
#include <unistd.h>

enum { PROCESSORS = 132, REGISTERS_MORE = 8, MANY_BLOCKS = 64 /* registers: half of all threads run */,
       THREADS = 512 /* of a processor: enough */, SHT_NV_INFO = 0x70000000 };
static const char architecture[] = "sm_90a", table_path[] = "tests/gpu/gpu_structure.def";

/* ---- the cases ---- */

static const struct { const char *name, *text; } cases[] = {
#include "gpu_structure_graphs.def"
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- counts ---- */

/* Of all kernels of a case; barriers, registers and shared: the largest kernel's; blocks and threads: of the launch
 * that has the fewest threads in all. */
struct counts {
    unsigned kernels, global, wide, barriers, local, registers, hmma, hgmma, ffma, shared, async, panels;
    unsigned blocks, threads;
    /* of the smallest loop with instructions of the matrix unit: these, and all others */
    unsigned products, others;
};

static const struct row { const char *name; struct counts c; } table[] = {
#define STRUCTURE(name, ...) {name, {__VA_ARGS__}},
#define COMPILER(version)
#include "gpu_structure.def"
#undef STRUCTURE
#undef COMPILER
    {NULL, {0}}};
static const char compiler[] =
#define STRUCTURE(...)
#define COMPILER(version) version
#include "gpu_structure.def"
#undef STRUCTURE
#undef COMPILER
    "";

static const struct counts *row_of(const char *name)
{
    for (const struct row *r = table; r->name; r++)
        if (!strcmp(r->name, name))
            return &r->c;
    return NULL;
}

enum { BRA = 0x147, HMMA = 0x3c, HGMMA = 0x1f0 };

/* One instruction of 16 bytes of NVIDIA's machine code since Volta.  The low 9 bits say what it is, the 3 above them
 * what its operands are; bits 73 to 75 of an access are its size: 6 is 16 bytes. */
static void count_instruction(struct counts *c, uint64_t low, uint64_t high)
{
    enum { LDG = 0x181, STG = 0x186, LDL = 0x183, STL = 0x187, LDS = 0x184, STS = 0x188, BAR = 0x11d, LDGSTS = 0x1ae,
           FFMA = 0x23, UTMALDG = 0x1b4 };
    unsigned op = low & 0x1ff, size = high >> 9 & 7;
    bool global = op == LDG || op == STG;
    c->global += global;
    c->wide += global && size == 6;
    c->local += op == LDL || op == STL;
    c->shared += op == LDS || op == STS;
    c->barriers += op == BAR;
    c->hmma += op == HMMA;
    c->hgmma += op == HGMMA;
    c->async += op == LDGSTS;
    c->ffma += op == FFMA;
    c->panels += op == UTMALDG;
}

static bool is_product(uint64_t low) { return (low & 0x1ff) == HMMA || (low & 0x1ff) == HGMMA; }

static uint64_t word_at(const uint8_t *p)
{
    uint64_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* The smallest loop with products: a branch goes back over them.  Its distance from the next instruction, in bytes, is
 * 256 times the upper half of the word, signed, and 4 times the byte behind the operation. */
static void count_loop(struct counts *c, const uint8_t *p, uint64_t size)
{
    for (uint64_t at = 0; at + 16 <= size; at += 16) {
        uint64_t low = word_at(p + at);
        int64_t far = (int64_t)(int32_t)(low >> 32) * 256 + (int64_t)(low >> 16 & 255) * 4;
        if ((low & 0x1ff) != BRA || far >= -16 || -far > (int64_t)at + 16)
            continue;
        unsigned n = (unsigned)(-far / 16), products = 0;
        for (uint64_t i = at + 16 - (uint64_t)-far; i <= at; i += 16)
            products += is_product(word_at(p + i));
        if (products && (!c->products || n < c->products + c->others)) {
            c->products = products;
            c->others = n - products;
        }
    }
}

/* The attributes of a file: form, name, bytes, and as many of these.  REGISTERS: a symbol's number, and how many. */
static unsigned count_registers(const uint8_t *p, uint64_t n)
{
    enum { SIZED = 4, REGISTERS = 0x2f };
    uint32_t found = 0;
    for (uint64_t at = 0; at + 4 <= n; at += 4) {
        uint16_t bytes;
        memcpy(&bytes, p + at + 2, sizeof bytes);
        if (p[at] != SIZED)
            continue;
        if (p[at + 1] == REGISTERS && bytes >= 8 && at + 12 <= n)
            memcpy(&found, p + at + 8, sizeof found);
        at += bytes;
    }
    return found;
}

/* Counts the code of one kernel. */
static bool count_code(const struct code *code, struct counts *c)
{
    const uint8_t *p = (const uint8_t *)code->bytes;
    Elf64_Ehdr h;
    if (code->size < sizeof h || memcmp(p, ELFMAG, SELFMAG))
        return false;
    memcpy(&h, p, sizeof h);
    for (unsigned i = 0; i < h.e_shnum; i++) {
        Elf64_Shdr s;
        memcpy(&s, p + h.e_shoff + i * sizeof s, sizeof s);
        if (s.sh_type == SHT_NV_INFO && !s.sh_info && s.sh_offset + s.sh_size <= code->size)
            c->registers = count_registers(p + s.sh_offset, s.sh_size);
        if (s.sh_type != SHT_PROGBITS || !(s.sh_flags & SHF_EXECINSTR) || s.sh_offset + s.sh_size > code->size)
            continue;
        for (uint64_t at = 0; at + 16 <= s.sh_size; at += 16) {
            uint64_t w[2];
            memcpy(w, p + s.sh_offset + at, sizeof w);
            count_instruction(c, w[0], w[1]);
        }
        count_loop(c, p + s.sh_offset, s.sh_size);
    }
    return true;
}

/* ---- the listing of NVIDIA's disassembler, where there is one ---- */

static const char *disassembler(void)
{
    static char path[1024];
    const char *given = getenv("KILN_NVDISASM");
    if (given || *path)
        return given ? given : path;
    FILE *f = popen("command -v nvdisasm", "r");
    if (!f || !fgets(path, sizeof path, f))
        strcpy(path, "-");
    path[strcspn(path, "\n")] = 0;
    if (f)
        pclose(f);
    return path;
}

static bool listing(const struct code *code, struct counts *c)
{
    char file[] = "/tmp/kiln-structure-XXXXXX", command[1200], line[4096];
    int fd = mkstemp(file);
    bool ok = fd >= 0 && write(fd, code->bytes, code->size) == (ssize_t)code->size;
    if (fd >= 0)
        close(fd);
    snprintf(command, sizeof command, "%s -c %s", disassembler(), file);
    FILE *f = ok ? popen(command, "r") : NULL;
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "*/");
        bool global = at && (strstr(at, " LDG.") || strstr(at, " STG."));
        if (!at)
            continue;
        c->global += global;
        c->wide += global && strstr(at, ".128");
        c->local += strstr(at, " LDL") || strstr(at, " STL");
        c->shared += strstr(at, " LDS ") || strstr(at, " LDS.") || strstr(at, " STS ") || strstr(at, " STS.");
        c->barriers += strstr(at, " BAR.") != NULL;
        c->hmma += strstr(at, " HMMA.") != NULL;
        c->hgmma += strstr(at, " HGMMA.") != NULL;
        c->async += strstr(at, " LDGSTS") != NULL;
        c->ffma += strstr(at, " FFMA") != NULL;
        c->panels += strstr(at, " UTMALDG") != NULL;
    }
    ok = f && !pclose(f);
    unlink(file);
    return ok;
}

static unsigned listed;

static void compare_listing(const char *name, const struct code *code, const struct counts *c)
{
    struct counts l = {.registers = c->registers, .products = c->products, .others = c->others};
    if (*disassembler() == '-')
        return;
    if (!check(listing(code, &l), "%s: %s fails", name, disassembler()))
        return;
    check(!memcmp(&l, c, sizeof l),
          "%s: nvdisasm lists %u global accesses, %u wide, %u barriers, %u local, %u HMMA, %u HGMMA, %u FFMA, %u "
          "shared, %u copies; counted are %u, %u, %u, %u, %u, %u, %u, %u, %u", name, l.global, l.wide, l.barriers,
          l.local, l.hmma, l.hgmma, l.ffma, l.shared, l.async, c->global, c->wide, c->barriers, c->local, c->hmma,
          c->hgmma, c->ffma, c->shared, c->async);
    listed++;
}

/* ---- one case ---- */

static unsigned most(unsigned a, unsigned b) { return a > b ? a : b; }

/* The launches of a kernel: one for each phase. */
static void count_launches(const struct kernel *k, const struct source_info *info, struct counts *c)
{
    struct phase p = {0};
    struct device_kernel *d = calloc(1, sizeof *d + k->nbuf);
    for (uint32_t b = 0; d && b < k->nbuf; b++)
        if (k->buf[b].role == BUF_SCRATCH && !info->local[b])
            d->work += k->buf[b].count * (int64_t)dtype_size(k->buf[b].dtype);
    while (d && kernel_phase(k, &p)) {
        unsigned blocks = accelerator_blocks(d, p.extent);
        if (p.extent && (!c->blocks || (uint64_t)blocks * info->threads < (uint64_t)c->blocks * c->threads)) {
            c->blocks = blocks;
            c->threads = info->threads;
        }
    }
    free(d);
}

static bool count_kernel(const char *name, const struct kernel *k, const struct caps *caps, struct counts *sum)
{
    struct err e = {0};
    struct text source = {0};
    struct code code = {0};
    struct source_info info = {0};
    struct counts c = {0};
    const struct dialect *d = dialect_find("cuda", &e);
    const struct gpu_compiler *nvrtc = gpu_compiler_find("cuda", &e);
    dialect_prelude(d, caps->features, &source);
    bool ok = check(source_kernel(k, d, "kernel", &source, &info, &e) &&
                    nvrtc->compile(source.s, architecture, GPU_BINARY, &code, &e), "%s: %s", name, e.msg) &&
              check(count_code(&code, &c), "%s: no machine code", name);
    if (ok && getenv("KILN_STRUCTURE_TEXT"))
        printf("%s\n", source.s);
    if (ok) {
        compare_listing(name, &code, &c);
        count_launches(k, &info, sum);
        sum->kernels++;
        sum->global += c.global;
        sum->wide += c.wide;
        sum->local += c.local;
        sum->hmma += c.hmma;
        sum->hgmma += c.hgmma;
        sum->async += c.async;
        sum->panels += c.panels;
        sum->ffma += c.ffma;
        sum->shared += c.shared;
        sum->products += c.products;
        sum->others += c.others;
        sum->barriers = most(sum->barriers, c.barriers);
        sum->registers = most(sum->registers, c.registers);
    }
    source_info_free(&info);
    mem_free(code.bytes);
    mem_free(source.s);
    return ok;
}

static bool count_case(unsigned i, const struct caps *caps, struct counts *sum)
{
    struct err e = {0};
    struct graph *g = graph_parse(cases[i].text, strlen(cases[i].text), NULL, &e);
    struct program *p = NULL;
    *sum = (struct counts){0};
    if (g && passes_run(g, &(struct pass_options){.fuse = true}))
        p = program_plan(g, caps, false, &e);
    bool ok = check(p, "%s: %s", cases[i].name, g && g->err.code ? g->err.msg : e.msg);
    for (uint32_t n = 0; ok && n < p->nkernel; n++)
        ok = count_kernel(cases[i].name, p->kernel[n], caps, sum);
    program_free(p);
    graph_free(g);
    return ok;
}

static unsigned share(unsigned part, unsigned whole) { return whole ? 100 * part / whole : 0; }

/* Is what was counted no worse than the table's row?  Of matrix instructions there have to be some if there were. */
static void compare(const char *name, const struct counts *c, bool registers)
{
    const struct counts *t = row_of(name);
    if (!check(t, "%s is not in %s", name, table_path))
        return;
    check(share(c->wide, c->global) >= share(t->wide, t->global), "%s: %u of %u global accesses are 16 bytes wide, "
          "were %u of %u", name, c->wide, c->global, t->wide, t->global);
    check(c->kernels <= t->kernels, "%s: %u kernels, were %u", name, c->kernels, t->kernels);
    check(c->barriers <= t->barriers, "%s: %u barriers, were %u", name, c->barriers, t->barriers);
    check(c->local <= t->local, "%s: %u accesses to local memory, were %u", name, c->local, t->local);
    check(!registers || c->registers <= MANY_BLOCKS || c->registers <= t->registers + REGISTERS_MORE,
          "%s: %u registers, were %u", name, c->registers, t->registers);
    check(!t->hmma || c->hmma || c->hgmma, "%s: no instruction of a matrix unit", name);
    check(!t->hgmma || c->hgmma, "%s: no HGMMA", name);
    check((uint64_t)c->ffma * t->shared >= (uint64_t)t->ffma * c->shared, "%s: %u FFMA for %u accesses to shared "
          "memory, were %u for %u", name, c->ffma, c->shared, t->ffma, t->shared);
    check((uint64_t)c->others * t->products <= (uint64_t)t->others * c->products, "%s: a loop has %u instructions "
          "beside %u products, had %u beside %u", name, c->others, c->products, t->others, t->products);
    check(!t->async || c->async || c->panels, "%s: no copy to shared memory", name);
    check(!t->panels || c->panels, "%s: no tensor copy", name);
    check((uint64_t)c->blocks * c->threads >= (uint64_t)t->blocks * t->threads ||
          c->blocks * c->threads >= PROCESSORS * THREADS,
          "%s: a launch of %u blocks of %u threads, was of %u of %u", name, c->blocks, c->threads, t->blocks,
          t->threads);
}

static void put_row(FILE *f, const char *name, const struct counts *c)
{
    fprintf(f, "STRUCTURE(\"%s\", %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u)\n", name, c->kernels,
            c->global, c->wide, c->barriers, c->local, c->registers, c->hmma, c->hgmma, c->ffma, c->shared, c->async,
            c->panels, c->blocks, c->threads, c->products, c->others);
}

static void bless(const struct counts *c, const char *version)
{
    FILE *f = fopen(table_path, "w");
    if (!check(f, "%s cannot be written", table_path))
        return;
    fprintf(f, "/* Written by KILN_BLESS=1 build/tests/gpu_structure: counts in the machine code for sm_90a and the "
            "smallest\n * launch.  STRUCTURE(case, kernels, global accesses, of these 16 bytes wide, barriers, local "
            "accesses,\n * registers, HMMA, HGMMA, FFMA, shared accesses, LDGSTS, tensor copies, blocks, threads, "
            "products in\n * a loop, other instructions of it) */\n");
    fprintf(f, "COMPILER(\"%s\")\n", version);
    for (unsigned i = 0; i < CASES; i++)
        put_row(f, cases[i].name, &c[i]);
    fclose(f);
}

static bool wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], name))
            return true;
    return argc < 2;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    char version[64];
    static struct counts counted[CASES];
    struct caps caps;
    const struct gpu_compiler *nvrtc = gpu_compiler_find("cuda", &e);
    if (!nvrtc || !nvrtc->version(version, sizeof version, &e)) {
        printf("SKIP no-compiler cuda: %s\n", e.msg);
        skipped++;
        return finish();
    }
    dialect_caps(dialect_find("cuda", &e), &caps);
    dialect_architecture(dialect_find("cuda", &e), architecture, &caps);
    caps.threads = PROCESSORS;
    caps.l2_bytes = 50 << 20;
    snprintf(caps.features, sizeof caps.features, "%s", architecture);
    bool all = argc < 2, blesses = getenv("KILN_BLESS") && all;
    printf("%-14s %7s %6s %5s %7s %5s %9s %5s %5s %6s %6s %6s %6s %7s %8s %6s\n", "case", "kernels", "global", "wide",
           "barrier", "local", "registers", "hmma", "hgmma", "ffma", "shared", "async", "blocks", "threads", "products",
           "others");
    for (unsigned i = 0; i < CASES; i++) {
        struct counts *c = &counted[i];
        if (!wanted(cases[i].name, argc, argv) || !count_case(i, &caps, c))
            continue;
        printf("%-14s %7u %6u %5u %7u %5u %9u %5u %5u %6u %6u %6u %6u %7u %8u %6u\n", cases[i].name, c->kernels,
               c->global, c->wide, c->barriers, c->local, c->registers, c->hmma, c->hgmma, c->ffma, c->shared, c->async,
               c->blocks, c->threads, c->products, c->others);
        if (!blesses)
            compare(cases[i].name, c, !strcmp(version, compiler));
    }
    if (listed)
        printf("%u kernels listed by %s\n", listed, disassembler());
    if (blesses && !failed)
        bless(counted, version);
    return finish();
}
