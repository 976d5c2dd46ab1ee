/* What debuggers and profilers are told of kernels: the list of gdb's JIT interface, read as gdb reads it, and perf's
 * map. */
#include "tests/support/harness.h"
#include "runtime/profile/debugger.h"
#include <elf.h>
#include <unistd.h>

/* The newest entry of gdb's list. */
static const struct jit_code_entry *newest(uint32_t *count)
{
    const struct jit_code_entry *e = __jit_debug_descriptor.first_entry;
    *count = 0;
    for (const struct jit_code_entry *x = e; x; x = x->next) {
        check(!x->next || x->next->prev == x, "the list is linked both ways");
        ++*count;
    }
    return e;
}

static const Elf64_Shdr *section(const char *file, const char *name)
{
    const Elf64_Ehdr *h = (const void *)file;
    const Elf64_Shdr *sh = (const void *)(file + h->e_shoff);
    for (unsigned i = 0; i < h->e_shnum; i++)
        if (!strcmp(file + sh[h->e_shstrndx].sh_offset + sh[i].sh_name, name))
            return &sh[i];
    return NULL;
}

static bool holds(const char *file, const char *name, const char *text)
{
    const Elf64_Shdr *s = section(file, name);
    size_t n = strlen(text) + 1;
    for (size_t i = 0; s && i + n <= s->sh_size; i++)
        if (!memcmp(file + s->sh_offset + i, text, n))
            return true;
    return false;
}

/* Runs the line table's program; the line of the only row, 0: it is not what it should be. */
static int line_of(const char *file, uint64_t *from, uint64_t *size)
{
    const Elf64_Shdr *s = section(file, ".debug_line");
    const unsigned char *p = (const unsigned char *)file + s->sh_offset, *end = p + s->sh_size;
    uint32_t length, header;
    memcpy(&length, p, 4);
    memcpy(&header, p + 6, 4);
    if (length != s->sh_size - 4)
        return 0;
    int line = 1, row = 0;
    for (p += 10 + header; p < end;) {
        unsigned char op = *p++;
        uint64_t v = 0;
        unsigned shift = 0;
        if (op == 0) {
            unsigned n = *p++;
            if (*p == 2)
                memcpy(from, p + 1, 8);
            else if (*p == 1)
                return p + n == end ? row : 0;
            p += n;
        } else if (op == 1) {
            row = line;
        } else {
            do
                v |= (uint64_t)(*p & 0x7f) << shift, shift += 7;
            while (*p++ & 0x80);
            if (op == 3)
                line += (int)(v & (UINT64_C(1) << (shift - 1)) ? v | -(UINT64_C(1) << shift) : v);
            else
                *size = v;
        }
    }
    return 0;
}

static bool map_holds(const char *line)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    FILE *f = fopen(path, "r");
    bool found = false;
    while (f && fgets(text, sizeof text, f))
        found |= !strcmp(text, line);
    if (f)
        fclose(f);
    return found;
}

/* A graph of its own, whose kernel is not known yet. */
static const struct exec *compile(const char *file, int line, int64_t n, int device)
{
    struct err e = {0};
    struct graph *g = graph_new("debugged");
    struct shape s = shape_make(1, &n);
    ref x = n_input(g, KL_F32, &s, "x");
    g->cur_site = graph_site(g, &(kl_site){file, line, "user"});
    graph_output(g, OUT_RETURN, n_tanh(g, n_exp(g, x)), 0);
    const struct exec *exec = exec_get(g, device, true, &e);
    check(exec != NULL, "compiling: %s", e.msg);
    graph_free(g);
    return exec;
}

static void test_gdb(int device)
{
    static const int lines[] = {1, 2, 63, 64, 65, 128, 8191, 8192, 123456, 2000000};
    for (unsigned i = 0; i < sizeof lines / sizeof *lines; i++) {
        uint32_t before, after;
        newest(&before);
        const struct exec *x = compile("model.c", lines[i], 1000 + i, device);
        const struct jit_code_entry *e = newest(&after);
        if (!x || !check(after == before + 1 && __jit_debug_descriptor.relevant_entry == e,
                         "an entry a kernel: %u, then %u", before, after))
            return;
        uint64_t address = 0, from = 0, size = 0;
        memcpy(&address, &x->fn[0], sizeof address);
        const char *f = e->symfile_addr;
        const Elf64_Shdr *text = section(f, ".text"), *symbols = section(f, ".symtab");
        const Elf64_Sym *sym = (const Elf64_Sym *)(const void *)(f + symbols->sh_offset) + 1;
        check(!memcmp(f, ELFMAG, SELFMAG) && text->sh_addr == address && text->sh_size > 16, "the section is the code");
        check(sym->st_value == address && sym->st_size == text->sh_size && ELF64_ST_TYPE(sym->st_info) == STT_FUNC,
              "the symbol is the kernel");
        check(holds(f, ".strtab", "kiln_k0_exp_tanh") && holds(f, ".debug_info", "kiln_k0_exp_tanh") &&
              holds(f, ".debug_info", "model.c"), "names");
        int line = line_of(f, &from, &size);
        check(line == lines[i] && from == address && size == text->sh_size, "line %d is %d", lines[i], line);
    }
    uint32_t before, after;
    newest(&before);
    compile("model.c", 1, 1000, device); /* known */
    compile("", 0, 999, device);
    const struct jit_code_entry *e = newest(&after);
    check(after == before + 1 && !section(e->symfile_addr, ".debug_line")->sh_size,
          "a kernel without a line has a symbol alone");
}

static void test_perf(int device)
{
    struct err e = {0};
    int64_t on = -1;
    check(option_get("perf_map", &on, &e) && on == 0, "not without being asked");
    check(option_set("perf_map", 1, &e), "%s", e.msg);
    const struct exec *x = compile("some dir/a\nb.c", 42, 777, device);
    check(option_set("perf_map", 0, &e), "%s", e.msg);
    uint32_t n;
    const char *f = newest(&n)->symfile_addr;
    uint64_t address = 0;
    if (x)
        memcpy(&address, &x->fn[0], sizeof address);
    char line[256];
    snprintf(line, sizeof line, "%" PRIx64 " %" PRIx64 " kiln_k0_exp_tanh [some dir/a?b.c:42]\n", address,
             (uint64_t)section(f, ".text")->sh_size);
    check(map_holds(line), "perf's map has %s", line);
    compile("off.c", 43, 778, device);
    snprintf(line, sizeof line, "/tmp/perf-%ld.map", (long)getpid());
    FILE *map = fopen(line, "r");
    int kernels = 0;
    for (int c; map && (c = fgetc(map)) != EOF;)
        kernels += c == '\n';
    if (map)
        fclose(map);
    check(kernels == 1, "one line, not %d", kernels);
    unlink(line);
}

int main(void)
{
    struct err e = {0};
    int device = device_find("cpu", &e);
    if (device < 0) {
        skipped++;
        return finish();
    }
    test_gdb(device);
    test_perf(device);
    return finish();
}
