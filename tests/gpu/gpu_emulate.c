/* The C of kernels for GPUs must mean what the kernel interpreter says, bit for bit, whatever the order of the threads.
 *
 *   gpu_emulate [KERNELS [GRAPHS [SEED]]]   (random kernels and graphs, default 60 and 20)
 *   gpu_emulate essential ...              of the graphs' kernels those alone whose text shows something new
 *
 * The text is compiled as C++ for this machine (c++, or $CXX) and run by gpu_block.c: a block's threads between
 * barriers first to last and then last to first, so that where a barrier is missing one of the two orders goes wrong.
 * Kernels: those of tests/text, of random graphs, random ones, and products by the matrix units of either dialect. */
#include "codegen/gpu/source.h"
#include "gpu_block.h"
#include "gpu_kernels.h"
#include "tests/support/random/random_make.h"
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

enum { A_FILE = 50, MAX_BUFS = 160, MAX_SLOTS = 64, MAX_ELEMENTS = 1 << 15,
       MOST_WILD = 1 << 13 }; /* elements of an input some of which are not finite: attention repeats such rows */

typedef void call_fn(void **buf, const uint64_t *slot, int64_t begin, int64_t end);
struct module {
    void *so;
    struct gpu_module_code code;
};
struct call {
    call_fn *fn;
    void **buf;
    const uint64_t *slot;
    int64_t begin, end;
};

static void call(void *ctx)
{
    const struct call *c = ctx;
    c->fn(c->buf, c->slot, c->begin, c->end);
}

/* ---- one kernel ---- */

static unsigned runs;             /* that went well */

struct subject {
    const struct kernel *k;
    const struct dialect *d;
    struct source_info info;
    unsigned blocks;
};

static size_t buffer_bytes(const struct subject *s, uint32_t b)
{
    return (size_t)s->k->buf[b].count * dtype_size(s->k->buf[b].dtype) *
        (s->k->buf[b].role == BUF_SCRATCH ? s->blocks : 1);
}

static void *make_map(const struct kernel *k, uint32_t b, void *of)
{
    const struct lbuf *l = &k->buf[b];
    size_t each = dtype_size(l->dtype);
    uint64_t size[3], step[2] = {(uint64_t)l->step[1] * each, (uint64_t)l->step[2] * each};
    unsigned box[3] = {PANEL_COLUMNS, 0, 1};
    uint64_t *map = aligned_alloc(64, 128);
    for (unsigned d = 0; d < 3; d++)
        size[d] = (uint64_t)l->size[d];
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op == L_COPY_PANEL && k->inst[v].imm >> 32 == b)
            box[1] = k->buf[(uint32_t)k->inst[v].imm].panel_rows;
    if (!map)
        exit(1);
    gpu_map_make(map, (char *)of + (size_t)l->first * each, size, step, box);
    return map;
}

/* Inputs depend on their number alone; the rest are sevens, so that what is not stored shows. */
static void set_up(const struct subject *s, void **buf)
{
    for (uint32_t b = 0; b < s->k->nbuf; b++) {
        if (s->k->buf[b].role == BUF_VIEW) {
            buf[b] = make_map(s->k, b, buf[s->k->buf[b].id]);
            continue;
        }
        struct rng r = {(b + 1) * UINT64_C(0x9e3779b97f4a7c15)};
        buf[b] = malloc(buffer_bytes(s, b) + 1);
        if (!buf[b])
            exit(1);
        memset(buf[b], s->k->buf[b].dtype == KL_BOOL ? 1 : 7, buffer_bytes(s, b));
        if (s->k->buf[b].role == BUF_IN)
            fill_random(&r, s->k->buf[b].dtype, buf[b], s->k->buf[b].count,
                        b & 1 && s->k->buf[b].count <= MOST_WILD);
    }
}

static bool compare(const struct subject *s, void **want, void **got, const char *how)
{
    bool ok = true;
    for (uint32_t b = 0; b < s->k->nbuf && ok; b++) {
        int64_t at;
        const struct lbuf *l = &s->k->buf[b];
        if (l->role == BUF_OUT && !same_values(l->dtype, want[b], got[b], l->count, &at))
            ok = check(false, "%s, %s: buffer %u element %" PRId64 " is %.17g, not %.17g", s->k->name, how, b, at,
                       element_value(l->dtype, got[b], at), element_value(l->dtype, want[b], at));
    }
    return ok;
}

static void run(const struct module *m, const struct subject *s, uint32_t number)
{
    struct err e = {0};
    uint64_t slot[MAX_SLOTS];
    void *want[MAX_BUFS], *got[MAX_BUFS];
    char name[32];
    snprintf(name, sizeof name, "call_%u", number);
    for (unsigned i = 0; i < MAX_SLOTS; i++)
        slot[i] = dtype_bits(KL_F32, 0.75);
    set_up(s, want);
    /* else another test's matter: an index out of range */
    bool ok = kernel_interp(s->k, want, slot, 0, s->k->extent, &e);
    for (int backwards = 0; backwards < 2 && ok; backwards++) {
        struct call c = {.buf = got, .slot = slot};
        struct phase p = {0};
        *(void **)&c.fn = dlsym(m->so, name);
        *m->code.grid = s->blocks;
        set_up(s, got);
        while (ok && kernel_phase(s->k, &p)) {
            c.begin = p.base;
            c.end = p.base + p.extent;
            for (unsigned b = 0; b < s->blocks && ok; b++) {
                *m->code.block = b;
                ok = check(gpu_block_run(&m->code, s->info.threads, backwards, call, &c),
                           "%s: threads part at a barrier", s->k->name);
            }
        }
        ok = ok && compare(s, want, got, backwards ? "threads last to first" : "threads first to last");
        runs += ok;
        for (uint32_t b = 0; b < s->k->nbuf; b++)
            free(got[b]);
    }
    if (failed && !ok)
        kernel_print(s->k, stdout);
    for (uint32_t b = 0; b < s->k->nbuf; b++)
        free(want[b]);
}

/* ---- files ---- */

/* The kernel and a function that calls it with the buffers it takes. */
static bool write_kernel(FILE *f, struct subject *s, uint32_t number)
{
    struct text t = {0};
    struct err e = {0};
    char entry[32];
    snprintf(entry, sizeof entry, "kernel_%u", number);
    bool ok = check(source_kernel(s->k, s->d, entry, &t, &s->info, &e) && s->info.threads <= GPU_BLOCK_THREADS, "%s",
                    e.msg);
    text_put(&t, "extern \"C\" void call_%u(void **buf, const u64 *slots, i64 begin, i64 end)\n{\n    %s(", number,
             entry);
    for (uint32_t b = 0; ok && b < s->k->nbuf; b++)
        if (s->k->buf[b].role == BUF_VIEW)
            text_put(&t, "*(const tensor_map *)buf[%u], ", b);
    if (kernel_members(s->k) > 1) {
        text_put(&t, "addresses<%u>{", kernel_arguments(s->k));
        for (uint32_t b = 0; ok && b < s->k->nbuf; b++)
            if (!s->info.local[b])
                text_put(&t, "(u64)buf[%u], ", b);
        text_put(&t, "}, ");
    }
    for (uint32_t b = 0; ok && b < s->k->nbuf && kernel_members(s->k) == 1; b++)
        if (!s->info.local[b])
            text_put(&t, "(%s *)buf[%u], ", s->k->buf[b].dtype == KL_BOOL ? "u8" : dtype_name(s->k->buf[b].dtype), b);
    text_put(&t, "slots, begin, end);\n}\n");
    gpu_shim_text(f, t.s);
    mem_free(t.s);
    return ok;
}

static bool open_module(struct module *m, const char *path)
{
    m->so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!check(m->so, "%s", dlerror()))
        return false;
    return check(gpu_module_code(m->so, &m->code), "%s is no kernel's", path);
}

static void run_file(struct subject *s, uint32_t n, const char *folder)
{
    char source[512], library[512], command[2048];
    struct module m = {0};
    struct text prelude = {0};
    snprintf(source, sizeof source, "%s/kernels.cpp", folder);
    snprintf(library, sizeof library, "%s/kernels.so", folder);
    FILE *f = fopen(source, "w");
    if (!check(f, "%s cannot be written", source))
        return;
    dialect_prelude(s->d, NULL, &prelude);
    gpu_shim_write(f, prelude.s);
    mem_free(prelude.s);
    bool ok = true;
    for (uint32_t i = 0; i < n; i++)
        ok &= write_kernel(f, &s[i], i);
    fclose(f);
    const char *compiler = getenv("CXX");
    /* not optimised: compiling takes longer than running */
    snprintf(command, sizeof command, "%s " GPU_SHIM_FLAGS " -O0 -o %s %s",
             compiler ? compiler : "c++", library, source);
    ok = ok && check(!system(command), "the kernels' text does not compile: %s", command) && open_module(&m, library);
    for (uint32_t i = 0; i < n && ok && failed < 5; i++)
        run(&m, &s[i], i);
    if (m.so)
        dlclose(m.so);
    unlink(source);
    unlink(library);
    for (uint32_t i = 0; i < n; i++)
        source_info_free(&s[i].info);
}

static unsigned count_products(const struct kernel_set *set, const struct mma_caps *u)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < set->n; i++)
        n += set->v[i]->sched.kind == SCHED_DOT_MATRIX && schedule_of(set->v[i])->dot_matrix.unit_m == u->m;
    return n;
}

/* Products by matrix units: the layout of every dialect's. */
static void run_matrix(const char *name, const char *arch, unsigned attention_step, const char *folder)
{
    struct err e = {0};
    struct caps caps;
    struct kernel_set set = {0};
    const struct dialect *d = dialect_find(name, &e);
    struct subject s[A_FILE];
    dialect_caps(d, &caps);
    dialect_architecture(d, arch, &caps);
    gpu_kernels_matrix(&set, &caps, attention_step);
    check(set.n > 4 && set.n <= A_FILE, "%s: %u products by matrix units", name, set.n);
    for (unsigned u = 0; u < MMA_UNITS && caps.mma[u].subgroup && !caps.mma_async.subgroup; u++) {
        unsigned n = count_products(&set, &caps.mma[u]);
        check(n > 2, "%s: %u products by the unit with %u rows", arch, n, caps.mma[u].m);
    }
    for (uint32_t i = 0; i < set.n; i++)
        s[i] = (struct subject){.k = set.v[i], .d = d, .blocks = 2};
    run_file(s, set.n, folder);
    gpu_kernels_free(&set);
}

static bool small(const struct kernel *k)
{
    int64_t elements = 0;
    for (uint32_t b = 0; b < k->nbuf; b++)
        elements += k->buf[b].count;
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op == L_SLOT && slot_number(&k->inst[v]) >= MAX_SLOTS)
            return false;
    return k->nbuf <= MAX_BUFS && elements <= MAX_ELEMENTS && k->flops < 1 << 20;
}

/* blocks: of the grid. */
static void run_set(const struct kernel_set *set, const struct dialect *d, unsigned blocks, const char *folder)
{
    struct subject s[A_FILE];
    uint32_t n = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        if (blocks == 1 || small(set->v[i]))
            s[n++] = (struct subject){.k = set->v[i], .d = d, .blocks = blocks};
        if (n == A_FILE || (n && i + 1 == set->n)) {
            run_file(s, n, folder);
            n = 0;
        }
    }
}

/* Kernels of the set that may have members, with some: every `step`-th. */
static void run_members(const struct kernel_set *set, uint32_t step, const struct dialect *d, const char *folder)
{
    struct kernel_set joined = {0};
    for (uint32_t i = 0; i < set->n; i += step) {
        const struct kernel *k = set->v[i];
        uint32_t members = 2 + i % 3;
        if (kernel_members(k) > 1 || kernel_members_conflict(k) || k->extent < 1 || !small(k) ||
            members * k->nbuf > MAX_BUFS)
            continue;
        struct kernel *all = kernel_join(k, members, k->nbuf);
        if (check(all, "no memory"))
            gpu_kernels_add(&joined, all);
        kernel_free(all);
    }
    check(joined.n > 10, "only %u kernels with members", joined.n);
    run_set(&joined, d, 3, folder);
    gpu_kernels_free(&joined);
}

int main(int argc, char **argv)
{
    bool essential = argc > 1 && !strcmp(argv[1], "essential");
    argc -= essential;
    argv += essential;
    uint64_t kernels = argc > 1 ? strtoull(argv[1], NULL, 10) : 60,
        graphs = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    char folder[] = "/tmp/kiln-emulate-XXXXXX";
    struct err e = {0};
    struct kernel_set made = {0}, random = {0};
    if (system("echo '_Float16 x;' | ${CXX:-c++} -x c++ -fsyntax-only - >/dev/null 2>&1")) {
        printf("SKIP no-compiler c++: none that has 16-bit floats\n");
        skipped++;
        return finish();
    }
    if (!mkdtemp(folder))
        return 1;
    gpu_kernels_folder(&made, "tests/text");
    gpu_kernels_random(&made, graphs, seed);
    check(gpu_kernels_have(&made, P_RECIP, LOOP_PARALLEL) && gpu_kernels_have(&made, P_RECIP, LOOP_GRID),
          "no reciprocals of 1 + e^-|x| in parallel loops and in grids");
    if (essential)
        gpu_kernels_essential(&made);
    run_set(&made, dialect_find("hip", &e), 3, folder);
    run_members(&made, essential ? 4 : 1, dialect_find("hip", &e), folder);
    for (uint64_t i = 0; i < kernels; i++) {
        struct kernel *k = random_kernel(seed + i, false);
        gpu_kernels_add(&random, k);
        kernel_free(k);
    }
    /* Their iterations read scratch as the one before left it: one block, and scratch that can be set before. */
    struct dialect apart = *dialect_find("hip", &e);
    apart.shared_bytes = 0;
    run_set(&random, &apart, 1, folder);
    run_matrix("cuda", "sm_90", essential ? 3 : 1, folder);
    run_matrix("cuda", "sm_90a", essential ? 3 : 1, folder);
    run_matrix("hip", "gfx942", essential ? 3 : 1, folder);
    gpu_block_free();
    gpu_kernels_free(&made);
    gpu_kernels_free(&random);
    rmdir(folder);
    check(runs > 200, "only %u runs", runs);
    return finish();
}
