/* The object loader on a good object and on every damage to it: an error or a loaded kernel, never a crash. */
#include "kernel_test.h"
#include <elf.h>
#include <fcntl.h>
#include <sys/wait.h>

#if defined(__aarch64__)
enum { OWN_MACHINE = EM_AARCH64, OTHER_MACHINE = EM_X86_64, RELATIVE = R_AARCH64_PREL32, JUMP = R_AARCH64_CALL26 };
#define OWN_NAME "AArch64"
#else
enum { OWN_MACHINE = EM_X86_64, OTHER_MACHINE = EM_AARCH64, RELATIVE = R_X86_64_PC32, JUMP = R_X86_64_PLT32 };
#define OWN_NAME "x86-64"
#endif

/* out[i] = in[i] + 1.5 in lanes: code, constants to relocate, and symbols. */
static struct kernel *small_kernel(void)
{
    struct kernel *k = kernel_new("small");
    uint32_t a = k_buf(k, BUF_IN, KL_F32, 16, 0), o = k_buf(k, BUF_OUT, KL_F32, 16, 1);
    val v = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, 16), 1);
    k_store(k, o, v, k_prim(k, P_ADD, k_load(k, a, v, 0), k_const(k, KL_F32, 1.5), 0), 0);
    k_end(k, v);
    return k;
}

static bool loads(const void *bytes, size_t size, struct err *e)
{
    struct loaded l;
    *e = (struct err){0};
    bool ok = object_load(&(struct code){(void *)(uintptr_t)bytes, size}, &l, e);
    if (ok != (e->code == KL_OK) || ok != (l.fn != NULL))
        check(false, "loading says %d, its error %d (%s)", ok, (int)e->code, e->msg);
    if (ok) object_unload(&l);
    return ok;
}

static void test_good(const struct code *c)
{
    struct err e = {0};
    struct loaded l;
    if (!check(object_load(c, &l, &e), "a good object: %s", e.msg)) return;
    float in[16], out[16];
    for (int i = 0; i < 16; i++) in[i] = (float)i;
    l.fn((void *const[]){in, out}, NULL, 0, 1);
    check(out[0] == 1.5f && out[15] == 16.5f, "the loaded kernel gives %g and %g", (double)out[0], (double)out[15]);
    object_unload(&l);
    check(!l.fn && !l.map, "unloading leaves addresses");
    object_unload(&l);
}

/* Each cut, in memory that ends where the object does. */
static void test_truncated(const struct code *c)
{
    struct err e;
    size_t loaded = 0;
    for (size_t n = 0; n < c->size; n++) {
        struct guarded g = guarded_new((n + 7) / 8 * 8); /* the end is not aligned, the start must be */
        memcpy(g.p, c->bytes, n);
        loaded += loads(g.p, n, &e);
        guarded_free(&g);
    }
    check(loaded == 0, "%zu truncated objects of %zu load", loaded, c->size);
}

static void test_flipped(const struct code *c)
{
    struct err e;
    size_t refused = 0;
    struct guarded g = guarded_new((c->size + 7) / 8 * 8);
    static const uint8_t flips[] = {0x01, 0x80, 0xff};
    for (size_t i = 0; i < c->size; i++) {
        for (unsigned f = 0; f < 3; f++) {
            memcpy(g.p, c->bytes, c->size);
            ((uint8_t *)g.p)[i] ^= flips[f];
            refused += !loads(g.p, c->size, &e);
        }
    }
    check(refused > 64, "only %zu of %zu damaged objects are refused", refused, 3 * c->size);
    guarded_free(&g);
}

static void test_random_damage(const struct code *c, struct rng *rng)
{
    struct err e;
    struct guarded g = guarded_new((c->size + 7) / 8 * 8);
    for (int round = 0; round < 20000; round++) {
        memcpy(g.p, c->bytes, c->size);
        for (int64_t n = 1 + rng_below(rng, 6); n > 0; n--) {
            uint64_t word = rng_below(rng, 2) ? rng_next(rng) >> rng_below(rng, 64) : UINT64_MAX;
            size_t at = (size_t)rng_below(rng, (int64_t)c->size - 8), size = (size_t)1 << rng_below(rng, 4);
            memcpy((char *)g.p + at, &word, size);
        }
        loads(g.p, c->size, &e);
    }
    check(loads(c->bytes, c->size, &e), "after the damaged objects a good one: %s", e.msg);
    guarded_free(&g);
}

#if defined(KILN_ASAN)
/* Compiled kernels are instrumented: one that reads past a buffer ends its process with a report. */
static void test_instrumented(const struct targets *t)
{
    struct kernel *k = kernel_new("past");
    uint32_t a = k_buf(k, BUF_IN, KL_F32, 17, 0), o = k_buf(k, BUF_OUT, KL_F32, 17, 1);
    val s = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, 17), 1);
    k_store(k, o, s, k_load(k, a, s, 0), 0);
    k_end(k, s);
    for (size_t n = 16; n <= 17; n++) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            dup2(open("/dev/null", O_WRONLY), 2);
            void *buf[2] = {calloc(n, 4), calloc(17, 4)};
            struct err e = {0};
            _exit(run_compiled(t, &t->v[t->n - 1], k, buf, NULL, &e) ? 0 : 99);
        }
        int status = -1;
        check(child > 0 && waitpid(child, &status, 0) == child, "no child process");
        check(WIFEXITED(status) && (WEXITSTATUS(status) == 0) == (n == 17) && WEXITSTATUS(status) != 99,
              "17 elements of %zu read: status %#x", n, status);
    }
    kernel_free(k);
}
#endif

/* ---- objects made here: what the loader promises about symbols and relocations ---- */

struct made { /* 0 null, 1 .text, 2 .rela.text, 3 .symtab, 4 .strtab */
    Elf64_Ehdr h;
    Elf64_Shdr s[5];
    Elf64_Sym sym[3];
    Elf64_Rela r;
    uint8_t text[16];
    char str[32];
};

static struct made make(uint32_t type, const char *extern_name)
{
    struct made m = {0};
    memcpy(m.h.e_ident, ELFMAG, SELFMAG);
    m.h.e_ident[EI_CLASS] = ELFCLASS64;
    m.h.e_type = ET_REL;
    m.h.e_machine = OWN_MACHINE;
    m.h.e_shoff = offsetof(struct made, s);
    m.h.e_shentsize = sizeof *m.s;
    m.h.e_shnum = 5;
    m.s[1] = (Elf64_Shdr){.sh_type = SHT_PROGBITS,
                          .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
                          .sh_offset = offsetof(struct made, text),
                          .sh_size = 16,
                          .sh_addralign = 16};
    m.s[2] = (Elf64_Shdr){
        .sh_type = SHT_RELA, .sh_offset = offsetof(struct made, r), .sh_size = sizeof m.r, .sh_link = 3, .sh_info = 1};
    m.s[3] = (Elf64_Shdr){
        .sh_type = SHT_SYMTAB, .sh_offset = offsetof(struct made, sym), .sh_size = sizeof m.sym, .sh_link = 4};
    m.s[4] = (Elf64_Shdr){.sh_type = SHT_STRTAB, .sh_offset = offsetof(struct made, str), .sh_size = sizeof m.str};
    snprintf(m.str, sizeof m.str, "_kernel");
    snprintf(m.str + 8, sizeof m.str - 8, "%s", extern_name);
    m.sym[1] = (Elf64_Sym){.st_name = 1, .st_shndx = 1};
    m.sym[2] = (Elf64_Sym){.st_name = 8, .st_shndx = SHN_UNDEF};
    m.r = (Elf64_Rela){.r_offset = 4, .r_info = ELF64_R_INFO(1, type), .r_addend = -4};
    m.text[0] = 0xc3; /* ret */
    return m;
}

static void refused(const struct made *m, const char *why, const char *what)
{
    struct err e;
    check(!loads(m, sizeof *m, &e) && strstr(e.msg, why), "%s: \"%s\"", what, e.msg);
}

static void test_made(void)
{
    struct err e;
    struct made good = make(RELATIVE, "nowhere"), m;
    check(loads(&good, sizeof good, &e), "an object made by hand: %s", e.msg);
    m = make(JUMP, "nowhere_at_all");
    m.r.r_info = ELF64_R_INFO(2, JUMP);
    refused(&m, "nowhere_at_all", "an import names its symbol");
    m = make(99, "x");
    refused(&m, "type 99", "an unknown relocation");
    m = good;
    m.r.r_offset = 13;
    refused(&m, "relocation offset", "a relocation across the section's end");
    m.r.r_offset = UINT64_MAX - 1;
    refused(&m, "relocation offset", "a relocation whose end wraps around");
    m = good;
    m.r.r_addend = INT64_C(1) << 40;
    refused(&m, "out of reach", "an addend too far");
    m = good;
    m.r.r_info = ELF64_R_INFO(77, RELATIVE);
    refused(&m, "symbol number", "a relocation of a symbol that is not there");
    m = good;
    m.sym[1].st_value = 16;
    refused(&m, "'kernel'", "a kernel at its section's end");
    m = good;
    m.str[1] = 'K';
    refused(&m, "'kernel'", "no function of that name");
    m = good;
    m.h.e_machine = OTHER_MACHINE;
    refused(&m, OWN_NAME, "another processor's object");
    m = good;
    m.s[1].sh_size = UINT64_MAX - 8;
    refused(&m, "outside", "a section whose end wraps around");
    m = good;
    memset(m.str, 'x', sizeof m.str);
    refused(&m, "no symbols", "names without an end");
}

int main(void)
{
#if defined(__x86_64__) || defined(__aarch64__)
    test_made();
    struct targets t = find_targets();
    struct kernel *k = small_kernel();
    struct code c = {0};
    struct err e = {0};
    if (t.b && check(t.b->compile_for(k, &t.v[t.n - 1], EMIT_OBJECT, &c, &e), "compiling: %s", e.msg)) {
        struct rng rng = {77};
        test_good(&c);
        test_truncated(&c);
        test_flipped(&c);
        test_random_damage(&c, &rng);
#if defined(KILN_ASAN)
        test_instrumented(&t);
#endif
    }
    mem_free(c.bytes);
    kernel_free(k);
#else
    struct loaded l;
    struct err e = {0};
    check(!object_load(&(struct code){0}, &l, &e) && e.code == KL_ERR_DEVICE, "loading on another processor: %s",
          e.msg);
#endif
    return finish();
}
