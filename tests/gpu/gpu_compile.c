/* Every different kernel that graphs of all kinds make for a GPU, through the compilers for GPUs: no device needed.
 *
 *   gpu_compile [GRAPHS [ARCHITECTURES]]   (random graphs, default 100; of each compiler, default 1, 0: only text)
 *   gpu_compile essential [GRAPHS]         those kernels alone that show the compilers something new
 *
 * Kernels: those of tests/text, of every op with every dtype, of the shapes that schedules treat differently, and of
 * random graphs; each once, by its hash.  They become text in every dialect, and are compiled 100 a file.  A compiler
 * that is not there is skipped.  Products of half floats are also made for an architecture as lowering finds them best
 * there: the code must hold instructions of its matrix units. */
#include "codegen/gpu/compilers/compile.h"
#include "codegen/gpu/source.h"
#include "gpu_kernels.h"
#include <elf.h>

enum { A_FILE = 100 };

/* ---- compiling ---- */

/* One file of the kernels [first, end). */
static bool make_file(const struct kernel_set *s, const struct dialect *d, uint32_t first, uint32_t end,
                      struct text *out)
{
    struct err e = {0};
    struct dialect own = *d;
    own.shared_bytes = dialect_find("cuda", &e)->shared_bytes; /* the kernels are made for that much */
    dialect_prelude(d, NULL, out);
    for (uint32_t i = first; i < end; i++) {
        char entry[32];
        snprintf(entry, sizeof entry, "kernel_%u", i);
        if (!check(source_kernel(s->v[i], &own, entry, out, NULL, &e), "%s", e.msg))
            return false;
    }
    return check(!out->failed, "out of memory");
}

static void make_all(const struct kernel_set *s, const char *name)
{
    struct err e = {0};
    struct text source = {0};
    if (make_file(s, dialect_find(name, &e), 0, s->n, &source))
        printf("%s: %zu bytes of source\n", name, source.len);
    mem_free(source.s);
}

static bool copies(const struct kernel *k)
{
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op == L_COPY || k->inst[v].op == L_WAIT)
            return true;
    return false;
}

/* CUDA's and HIP's text of a kernel is the same: what differs stands in their preludes, but for how copies to shared
 * memory wait. */
static void same_text(const struct kernel_set *s)
{
    struct err e = {0};
    unsigned same = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        struct text cuda = {0}, hip = {0};
        bool ok = check(source_kernel(s->v[i], dialect_find("cuda", &e), "kernel", &cuda, NULL, &e) &&
                        source_kernel(s->v[i], dialect_find("hip", &e), "kernel", &hip, NULL, &e), "%s", e.msg);
        if (ok && !strcmp(cuda.s, hip.s))
            same++;
        else if (ok)
            check(copies(s->v[i]), "%s: CUDA and HIP have not the same text:\n%s\n%s", s->v[i]->name, cuda.s, hip.s);
        mem_free(cuda.s);
        mem_free(hip.s);
    }
    printf("%u have the same text in CUDA and HIP\n", same);
    check(same > s->n / 10 * 9, "only %u of %u kernels have the same text in CUDA and HIP", same, s->n);
}

/* Compiles kernels [first, end) and, where they are refused, halves of them, to name the one. */
static void compile(const struct kernel_set *s, const struct gpu_compiler *c, const char *arch, uint32_t first,
                    uint32_t end)
{
    struct text source = {0};
    struct code code = {0};
    struct err e = {0};
    bool made = make_file(s, dialect_find(c->name, &e), first, end, &source);
    if (made && c->compile(source.s, arch, GPU_BINARY, &code, &e)) {
        bool spirv = !strcmp(c->name, "glsl");
        check(code.size > 64 && !memcmp(code.bytes, spirv ? "\3\2\43\7" : "\177ELF", 4), "%s for %s gives no %s file",
              c->name, arch,
              spirv ? "SPIR-V" : "ELF");
        passed += end - first - 1;
    } else if (made && end - first > 1) {
        compile(s, c, arch, first, (first + end) / 2);
        compile(s, c, arch, (first + end) / 2, end);
    } else if (made) {
        check(false, "%s for %s: %s", c->name, arch, e.msg);
        kernel_print(s->v[first], stdout);
    }
    mem_free(code.bytes);
    mem_free(source.s);
}

/* step: every one, or every second file of kernels, of which CUDA and HIP, whose sources are nearly the same, take the
 * even and the odd ones. */
static void compile_all(const struct kernel_set *s, const char *name, unsigned archs, unsigned step)
{
    char version[64];
    struct err e = {0};
    const struct gpu_compiler *c = gpu_compiler_find(name, &e);
    if (!c || !c->version(version, sizeof version, &e)) {
        printf("SKIP no-compiler %s: %s\n", name, e.msg);
        skipped++;
        return;
    }
    for (unsigned a = 0; a < archs && c->arch[a] && !failed; a++) {
        bool shader = !strcmp(name, "glsl");
        uint32_t a_file = shader ? 1 : A_FILE; /* a shader has one main */
        for (uint32_t i = 0, file = 0; i < s->n; i += a_file, file++)
            if (shader || step == 1 || file % step == !strcmp(name, "hip"))
                compile(s, c, c->arch[a], i, i + a_file < s->n ? i + a_file : s->n);
        printf("%s (%s): %u kernels for %s\n", name, version, s->n, c->arch[a]);
    }
}

/* ---- matrix units ---- */

/* Is it the first word of one of AMD's matrix instructions?  These begin with 9 bits 110100111, then come 1 and 6 bits
 * that say which: 0x44 f32_32x32x2f32, 0x45 f32_16x16x4f32, 0x4c f32_32x32x8f16, 0x4d f32_16x16x16f16, 0x66
 * f32_32x32x8bf16_1k, 0x67 f32_16x16x16bf16_1k. */
static bool is_mfma(uint32_t word)
{
    unsigned op = word >> 16 & 0x7f;
    return word >> 23 == 0x1a7 && (op == 0x44 || op == 0x45 || op == 0x4c || op == 0x4d || op == 0x66 || op == 0x67);
}

/* The instructions of a matrix unit in the code of a kernel.  NVIDIA's are 16 bytes, and the low 9 bits say which:
 * 0x03c and 0x1f0 are HMMA and HGMMA.  AMD's are of 4 or 8 bytes. */
static unsigned count_instructions(const uint8_t *code, size_t bytes, bool amd)
{
    unsigned n = 0;
    for (size_t at = 0; at + 16 <= bytes; at += amd ? 4 : 16) {
        uint32_t word;
        memcpy(&word, code + at, sizeof word);
        n += amd ? is_mfma(word) : (word & 0x1ff) == 0x3c || (word & 0x1ff) == 0x1f0;
    }
    return n;
}

/* The same of all sections of an ELF file that hold instructions.  What hiprtc gives may be a bundle of such files. */
static unsigned matrix_instructions(const struct code *c, bool amd)
{
    const uint8_t *p = (const uint8_t *)c->bytes, *end = p + c->size;
    unsigned n = 0;
    while (p + sizeof(Elf64_Ehdr) <= end && memcmp(p, ELFMAG, SELFMAG))
        p++;
    Elf64_Ehdr h;
    memcpy(&h, p, sizeof h);
    for (unsigned i = 0; i < h.e_shnum; i++) {
        Elf64_Shdr s;
        memcpy(&s, p + h.e_shoff + i * sizeof s, sizeof s);
        if (s.sh_type == SHT_PROGBITS && s.sh_flags & SHF_EXECINSTR && p + s.sh_offset + s.sh_size <= end)
            n += count_instructions(p + s.sh_offset, s.sh_size, amd);
    }
    return n;
}

/* A product, or attention by matrix units, with operands of that type. */
static bool is_product(const struct kernel *k, unsigned dtype)
{
    bool reads = false;
    for (uint32_t b = 0; b < k->nbuf; b++)
        reads |= k->buf[b].role == BUF_IN && k->buf[b].dtype == dtype;
    return reads && (strstr(k->name, "dot") || k->sched.kind == SCHED_ATTENTION_MATRIX);
}

/* Products and attention, made for one architecture: those that its matrix units can do have such instructions. */
static void compile_products(const char *name, const char *arch, bool f16, bool bf16, bool f32, unsigned attention_step)
{
    struct err e = {0};
    struct caps caps;
    char version[64];
    struct kernel_set s = {0};
    const struct gpu_compiler *c = gpu_compiler_find(name, &e);
    const struct dialect *d = dialect_find(name, &e);
    unsigned with = 0, products = 0;
    if (!c || !c->version(version, sizeof version, &e)) /* compile_all has said so */
        return;
    dialect_caps(d, &caps);
    dialect_architecture(d, arch, &caps);
    gpu_kernels_matrix(&s, &caps, attention_step);
    for (uint32_t i = 0; i < s.n; i++) {
        struct text source = {0};
        struct code code = {0};
        bool due = (f16 && is_product(s.v[i], KL_F16)) || (bf16 && is_product(s.v[i], KL_BF16)) ||
                   (f32 && is_product(s.v[i], KL_F32));
        bool made = make_file(&s, d, i, i + 1, &source) && c->compile(source.s, arch, GPU_BINARY, &code, &e);
        products += due;
        if (check(made, "%s for %s: %s", s.v[i]->name, arch, e.msg)) {
            bool is = matrix_instructions(&code, !strcmp(name, "hip"));
            with += is;
            check(is == due, "%s for %s has %s of a matrix unit", s.v[i]->name, arch, is ? "instructions" : "none");
        }
        mem_free(code.bytes);
        mem_free(source.s);
    }
    printf("%s: %u products by matrix units\n", arch, with);
    check(with == products && (products > 1 || !bf16), "%s: %u of %u products", arch, with, products);
    gpu_kernels_free(&s);
}

/* A source that is wrong gives the compiler's own words. */
static void refusal(const char *name)
{
    struct err e = {0};
    struct code code;
    char version[64];
    const struct gpu_compiler *c = gpu_compiler_find(name, &e);
    if (!c || !c->version(version, sizeof version, &e))
        return;
    const char *wrong = strcmp(name, "glsl") ? "static __device__ int f() { return nowhere; }\n"
        : "#version 460\nvoid main() { nowhere = 1; }\n";
    check(!c->compile(wrong, c->arch[0], GPU_BINARY, &code, &e) && strstr(e.msg, "nowhere") && !code.bytes,
          "%s says of a wrong source: %s", name, e.msg);
    check(!c->compile("", "nothing", GPU_BINARY, &code, &e) && e.code && !code.bytes,
          "%s takes an architecture that is none", name);
    if (strcmp(name, "cuda"))
        return;
    bool made = c->compile("extern \"C\" __global__ void kernel() {}\n", "sm_999", GPU_BINARY, &code, &e);
    check(made && strstr(code.bytes, ".version") && strstr(code.bytes, ".entry kernel"),
          "a GPU that NVRTC does not know gets no PTX: %s", e.msg);
    mem_free(code.bytes);
}

/* Kernels whose lanes exchange values, for a device of Vulkan that has subgroups. */
static void subgroups(const struct kernel_set *s)
{
    static const char features[] = "+f64+fma+threads256+shared49152+subgroup32";
    struct err e = {0};
    char version[64];
    const struct gpu_compiler *c = gpu_compiler_find("glsl", &e);
    const struct dialect with = dialect_for(dialect_find("glsl", &e), features);
    unsigned n = 0;
    for (uint32_t i = 0; i < s->n && c && c->version(version, sizeof version, &e); i++) {
        struct text source = {0};
        struct code code = {0};
        dialect_prelude(&with, features, &source);
        size_t prelude = source.len;
        if (check(source_kernel(s->v[i], &with, "kernel", &source, NULL, &e), "%s", e.msg) &&
            strstr(source.s + prelude, "lane_")) {
            check(c->compile(source.s, c->arch[0], GPU_BINARY, &code, &e), "%s: %s", s->v[i]->name, e.msg);
            n++;
        }
        mem_free(code.bytes);
        mem_free(source.s);
    }
    printf("glsl: %u kernels with subgroups\n", n);
    check(n > 10 || e.code, "only %u kernels with subgroups", n);
}

/* An elementwise kernel, whatever its axes: neighbouring threads have neighbouring elements, nobody waits for
 * anybody. */
static void elementwise(const char *name)
{
    struct kernel_set s = {0};
    struct err e = {0};
    struct text t = {0};
    struct source_info info = {0};
    struct graph *g = graph_new("elementwise");
    ref x = n_input(g, KL_F32, &(struct shape){.rank = 3, .dim = {3, 5, 1024}}, "x");
    graph_output(g, OUT_RETURN, n_cast(g, n_neg(g, x), KL_I32), 0);
    gpu_kernels_graph(&s, g);
    graph_free(g);
    if (check(s.n && source_kernel(s.v[0], dialect_find(name, &e), "kernel", &t, &info, &e), "%u kernels: %s", s.n,
              e.msg)) {
        check(info.threads == 64, "%s: blocks of %u threads", name, info.threads);
        check(!strstr(t.s, dialect_find(name, &e)->barrier) && !strstr(t.s, "turn") && !strstr(t.s, " / "), "%s: %s",
              name, t.s);
    }
    source_info_free(&info);
    mem_free(t.s);
    gpu_kernels_free(&s);
}

int main(int argc, char **argv)
{
    bool essential = argc > 1 && !strcmp(argv[1], "essential");
    argc -= essential;
    argv += essential;
    uint64_t graphs = argc > 1 ? strtoull(argv[1], NULL, 10) : 100;
    unsigned archs = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    struct kernel_set s = {0};
    gpu_kernels_folder(&s, "tests/text");
    printf("%u kernels of tests/text\n", s.n);
    gpu_kernels_ops(&s);
    printf("%u with ops\n", s.n);
    gpu_kernels_random(&s, graphs, 1);
    printf("%u with %" PRIu64 " random graphs\n", s.n, graphs);
    check(s.n > 1000, "only %u kernels", s.n);
    static const char *const names[] = {"cuda", "hip", "glsl"};
    for (unsigned i = 0; i < 3; i++)
        make_all(&s, names[i]);
    same_text(&s);
    if (essential) {
        gpu_kernels_essential(&s);
        printf("%u that differ by more than the order of their instructions\n", s.n);
    }
    for (unsigned i = 0; i < 3; i++) {
        compile_all(&s, names[i], archs, essential ? 2 : 1);
        refusal(names[i]);
        elementwise(names[i]);
    }
    if (archs) {
        subgroups(&s);
        compile_products("cuda", "sm_80", true, true, false, essential ? 3 : 1);
        compile_products("cuda", "sm_90a", true, true, false, essential ? 3 : 1);
        compile_products("hip", "gfx90a", false, true, true, essential ? 3 : 1);
    }
    if (archs > 1) {
        compile_products("cuda", "sm_75", false, false, false, essential ? 3 : 1);
        compile_products("hip", "gfx1030", false, false, false, essential ? 3 : 1);
    }
    gpu_kernels_free(&s);
    return finish();
}
