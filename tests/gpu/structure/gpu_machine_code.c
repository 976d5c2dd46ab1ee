/* Counts instructions in the machine code itself, and in nvdisasm's listing of it. */
#include "gpu_machine_code.h"
#include "disassembly.h"
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BRA = 0x147, HMMA = 0x3c, HGMMA = 0x1f0, FFMA = 0x23, LDS = 0x184, STS = 0x188, SHT_NV_INFO = 0x70000000 };

/* One instruction of 16 bytes of NVIDIA's machine code since Volta.  The low 9 bits say what it is, the 3 above them
 * what its operands are; bits 73 to 75 of an access are its size: 6 is 16 bytes. */
static void count_instruction(struct counts *c, uint64_t low, uint64_t high)
{
    enum { LDG = 0x181, STG = 0x186, LDL = 0x183, STL = 0x187, BAR = 0x11d, LDGSTS = 0x1ae, FMUL = 0x20, FADD = 0x21,
           UTMALDG = 0x1b4, CALL = 0x144 };
    const unsigned never = 15; /* the predicate !PT: ptxas emits such loads before asynchronous copies */
    unsigned op = low & 0x1ff, size = high >> 9 & 7;
    if ((low >> 12 & 15) == never)
        return;
    bool global = op == LDG || op == STG;
    c->global += global;
    c->wide += global && size == 6;
    c->local += op == LDL || op == STL;
    c->shared += op == LDS || op == STS;
    c->loads += op == LDS;
    c->barriers += op == BAR;
    c->hmma += op == HMMA;
    c->hgmma += op == HGMMA;
    c->async += op == LDGSTS;
    c->async_wide += op == LDGSTS && size == 6;
    c->ffma += op == FFMA;
    c->panels += op == UTMALDG;
    c->calls += op == CALL;
    c->burst = op == FMUL || op == FADD || op == FFMA ? 0 : c->burst + (op == LDG && size == 6);
    c->in_flight = c->burst > c->in_flight ? c->burst : c->in_flight;
}

static bool is_product(uint64_t low) { return (low & 0x1ff) == HMMA || (low & 0x1ff) == HGMMA; }

static uint64_t word_at(const uint8_t *p)
{
    uint64_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* The instructions of the loop whose last one, a branch back, is at `at`; 0: that is no such branch.  A branch's
 * distance from the next instruction, in bytes, is 256 times the upper half of the word, signed, and 4 times the byte
 * behind the operation. */
static unsigned loop_length(const uint8_t *p, uint64_t at)
{
    uint64_t low = word_at(p + at);
    int64_t far = (int64_t)(int32_t)(low >> 32) * 256 + (int64_t)(low >> 16 & 255) * 4;
    return (low & 0x1ff) != BRA || far >= -16 || -far > (int64_t)at + 16 ? 0 : (unsigned)(-far / 16);
}

/* The smallest loop with products of a matrix unit. */
static void count_loop(struct counts *c, const uint8_t *p, uint64_t size)
{
    for (uint64_t at = 0; at + 16 <= size; at += 16) {
        unsigned n = loop_length(p, at), products = 0;
        for (unsigned i = 0; i < n; i++)
            products += is_product(word_at(p + at - 16 * i));
        if (products && (!c->products || n < c->products + c->others)) {
            c->products = products;
            c->others = n - products;
        }
    }
}

void machine_code_count_ffma_loop(const struct counts *loop, struct counts *c)
{
    bool fewer = (uint64_t)loop->loop_ffma * c->loop_shared < (uint64_t)c->loop_ffma * loop->loop_shared;
    if (loop->ffma_loops && (!c->ffma_loops || fewer)) {
        c->loop_ffma = loop->loop_ffma;
        c->loop_shared = loop->loop_shared;
    }
    c->ffma_loops += loop->ffma_loops;
}

/* Loops without others in them, most of whose instructions are FFMA. */
static void count_ffma_loops(struct counts *c, const uint8_t *p, uint64_t size)
{
    for (uint64_t at = 0; at + 16 <= size; at += 16) {
        struct counts own = {.ffma_loops = 1};
        unsigned n = loop_length(p, at);
        bool inner = n > 0;
        for (unsigned i = 0; i < n; i++) {
            unsigned op = word_at(p + at - 16 * i) & 0x1ff;
            own.loop_ffma += op == FFMA;
            own.loop_shared += op == LDS || op == STS;
            inner &= !i || !loop_length(p, at - 16 * i);
        }
        if (inner && 2 * own.loop_ffma > n)
            machine_code_count_ffma_loop(&own, c);
    }
}

/* The instructions up to the last end of a thread.  Behind it are functions that the kernel calls, as for rare
 * quotients. */
static unsigned count_instructions(const uint8_t *p, uint64_t size)
{
    enum { NOP = 0x118, EXIT = 0x14d };
    unsigned n = 0, to_end = 0;
    for (uint64_t at = 0; at + 16 <= size; at += 16) {
        unsigned op = word_at(p + at) & 0x1ff;
        n += op != NOP;
        to_end = op == EXIT ? n : to_end;
    }
    return to_end;
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

bool machine_code_count(const struct code *code, struct counts *c)
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
        count_ffma_loops(c, p + s.sh_offset, s.sh_size);
        c->instructions += count_instructions(p + s.sh_offset, s.sh_size);
    }
    return true;
}

/* ---- the listing of NVIDIA's disassembler, where there is one ---- */

static struct disassembler nvdisasm = {.variable = "KILN_NVDISASM", .search = "command -v nvdisasm", .option = "-c"};

const char *machine_code_disassembler(void) { return disassembler_path(&nvdisasm); }

bool machine_code_listing(const struct code *code, struct counts *c)
{
    char line[4096];
    struct listing l;
    bool open = listing_open(&l, &nvdisasm, code->bytes, code->size);
    while (open && fgets(line, sizeof line, l.text)) {
        const char *at = strstr(line, "*/");
        bool global = at && (strstr(at, " LDG.") || strstr(at, " STG."));
        if (!at || strstr(at, " @!PT "))
            continue;
        c->global += global;
        c->wide += global && strstr(at, ".128");
        c->local += strstr(at, " LDL") || strstr(at, " STL");
        c->loads += strstr(at, " LDS ") || strstr(at, " LDS.");
        c->shared += strstr(at, " LDS ") || strstr(at, " LDS.") || strstr(at, " STS ") || strstr(at, " STS.");
        c->barriers += strstr(at, " BAR.") != NULL;
        c->hmma += strstr(at, " HMMA.") != NULL;
        c->hgmma += strstr(at, " HGMMA.") != NULL;
        c->async += strstr(at, " LDGSTS") != NULL;
        c->async_wide += strstr(at, " LDGSTS") && strstr(at, ".128");
        c->ffma += strstr(at, " FFMA") != NULL;
        c->panels += strstr(at, " UTMALDG") != NULL;
        c->calls += strstr(at, " CALL.") != NULL;
    }
    return listing_close(&l);
}
