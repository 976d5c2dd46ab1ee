/* Scans in one pass: blocks that wait for each other, running at the same time.
 *
 *   gpu_scan [DIALECT [RUNS]]      (cuda or hip, which is the default; runs of each case, default 2)
 *
 * A table of scans by dtype, fold, rows, length and threads of a block.  The values of each kernel in the kernel
 * interpreter are those of the graph, and the bits that its text computes are those of the kernel interpreter, in any
 * order in which blocks begin and end.  Blocks are processes with their arrays in common memory, which sleep now and
 * then after they have begun an iteration, so that others wait for them.  The text is compiled as in gpu_emulate. */
#define _GNU_SOURCE
#include "codegen/gpu/source.h"
#include "tests/gpu/gpu_block.h"
#include "tests/gpu/gpu_kernels.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_BUFS = 8, BLOCKS = 4, TIMEOUT_SECONDS = 60 };
/* exact: of small integers, whose sums have no rounding error; special: NaN, infinities and zeros of both signs; any */
enum data { EXACT, SPECIAL, ANY };
static const struct scan_case {
    enum op op;
    unsigned dtype;
    int64_t rows, length, threads, tiles, groups;   /* tiles and groups of a row, as they must be */
    enum data data;
} table[] = {
    /* a tile has 4 lines of 4 f32 of each thread: here 64 elements, and a group has 4 tiles */
    {OP_cumsum, KL_F32, 1, 256, 4, 4, 1, EXACT},
    {OP_cumsum, KL_F32, 1, 260, 4, 5, 2, SPECIAL},
    {OP_cumsum, KL_F32, 1, 512, 4, 8, 2, ANY},
    {OP_cumsum, KL_F32, 3, 516, 4, 9, 3, EXACT},
    {OP_cumsum, KL_F32, 2, 1100, 4, 18, 5, ANY},
    {OP_cumsum, KL_F32, 1, 257, 4, 5, 2, EXACT},     /* a rest behind the whole accesses, in a tile of its own */
    {OP_cumsum, KL_F32, 1, 319, 4, 5, 2, ANY},
    {OP_cumsum, KL_F32, 1, 323, 4, 6, 2, SPECIAL},
    {OP_cumsum, KL_F32, 3, 257, 4, 17, 5, EXACT},    /* rows that are no whole accesses */
    {OP_cumsum, KL_F32, 5, 303, 16, 5, 1, ANY},
    {OP_cumsum, KL_F32, 1, 4200, 2, 132, 66, ANY},   /* a chain of 66 groups */
    {OP_cumsum, KL_F32, 1, 4096, 64, 4, 1, ANY},
    {OP_cumsum, KL_F32, 1, 66000, 64, 65, 2, ANY},
    {OP_cumsum, KL_F64, 2, 300, 4, 10, 3, ANY},
    {OP_cumsum, KL_F64, 1, 258, 8, 5, 1, SPECIAL},
    {OP_cumsum, KL_F16, 2, 520, 4, 5, 2, EXACT},
    {OP_cumsum, KL_BF16, 1, 264, 2, 5, 3, SPECIAL},
    {OP_cumsum, KL_I64, 2, 300, 4, 10, 3, ANY},
    {OP_cumprod, KL_U64, 1, 301, 4, 10, 3, ANY},
    {OP_cumprod, KL_I32, 3, 300, 4, 5, 2, ANY},
    {OP_cumsum, KL_I8, 2, 272, 2, 5, 3, ANY},
    {OP_cumsum, KL_U16, 1, 1000, 4, 8, 2, ANY},
    {OP_cummax, KL_F32, 2, 300, 4, 5, 2, SPECIAL},
    {OP_cummin, KL_F64, 1, 300, 4, 10, 3, SPECIAL},
    {OP_cummax, KL_I32, 1, 259, 8, 3, 1, ANY},
    {OP_cumsum, KL_BF16, 1, 263, 2, 5, 3, EXACT},
    {OP_cumsum, KL_F32, 1, 4103, 64, 5, 1, ANY},
    {OP_cummin, KL_I16, 2, 520, 4, 5, 2, ANY},
    /* one tile: no block waits */
    {OP_cumsum, KL_F32, 2, 256, 16, 1, 1, EXACT},
};
enum { CASES = sizeof table / sizeof *table };

struct subject {
    const struct scan_case *c;
    char name[64];
    struct program *p;
    const struct kernel *k;
    struct source_info info;
    void *want[MAX_BUFS];            /* by the kernel interpreter; inputs, too */
};
static struct rng rng = {41};

typedef void call_fn(void **buf, const uint64_t *slot, int64_t begin, int64_t end);
struct call { call_fn *fn; void **buf; int64_t begin, end; };

static void call(void *ctx)
{
    const struct call *c = ctx;
    c->fn(c->buf, NULL, c->begin, c->end);
}

static size_t buffer_bytes(const struct kernel *k, uint32_t b)
{
    return (size_t)k->buf[b].count * dtype_size(k->buf[b].dtype);
}

static void set_element(unsigned dtype, void *p, int64_t i, double x)
{
    uint64_t bits = dtype_bits(dtype, x);
    memcpy((char *)p + (size_t)i * dtype_size(dtype), &bits, dtype_size(dtype));
}

static void fill(const struct scan_case *c, void *p)
{
    const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN};
    int64_t n = c->rows * c->length;
    fill_random(&rng, c->dtype, p, n, false);
    for (int64_t i = 0; i < n && c->data != ANY; i++)
        set_element(c->dtype, p, i, c->data == SPECIAL && rng_below(&rng, 90) == 0 ? special[rng_below(&rng, 5)]
                                                                                : (double)rng_below(&rng, 9) - 4);
}

/* ---- the kernel, and its values ---- */

/* Equal as numbers; sums that are rounded: within the errors of the longest chain. */
static bool agrees(const struct subject *s, const void *got, const void *want)
{
    const struct scan_case *c = s->c;
    bool rounded = dtype_is_float(c->dtype) && c->data == ANY && c->op == OP_cumsum;
    double most = 0, error = 0;
    for (int64_t i = 0; i < c->rows * c->length; i++) {
        double x = element_value(c->dtype, got, i), y = element_value(c->dtype, want, i);
        if (!rounded && !(x == y || (isnan(x) && isnan(y))))
            return check(false, "%s: element %" PRId64 " is %g, not %g", s->name, i, x, y);
        most = fabs(y) > most ? fabs(y) : most;
        error = fabs(x - y) > error ? fabs(x - y) : error;
    }
    return check(!rounded || error <= most * (c->dtype == KL_F64 ? 1e-13 : 1e-4),
                 "%s: an error of %g, numbers up to %g", s->name, error, most);
}

static struct program *plan(const struct scan_case *c, struct graph *h)
{
    struct err e = {0};
    struct caps caps;
    dialect_caps(dialect_find("cuda", &e), &caps);
    caps.block_threads = (uint32_t)c->threads;
    struct program *p = passes_run(h, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX})
        ? program_plan(h, &caps, false, &e) : NULL;
    check(p, "%s", h->err.code ? h->err.msg : e.msg);
    return p;
}

/* Are there the launches, tiles and words that there must be? */
static bool has_form(const struct subject *s, const struct kernel *k)
{
    const struct scan_case *c = s->c;
    struct phase p = {0};
    unsigned phases = 0, waits = c->tiles > 1;
    int64_t values = c->rows * (c->tiles + c->groups), words = 0;
    while (kernel_phase(k, &p))
        phases++;
    for (uint32_t b = 0; b < k->nbuf; b++)
        words += k->buf[b].role == BUF_WORKSPACE ? k->buf[b].count : 0;
    values *= dtype_size(c->dtype) == sizeof(uint64_t) ? 2 : 1;
    return check(schedule_of(k)->gpu_scan.one_pass == waits && phases == 1 + waits, "%s: %u phases", s->name, phases) &&
           check(p.extent == c->rows * c->tiles, "%s: %" PRId64 " tiles", s->name, p.extent) &&
           check(words == (waits ? (1 + values + 1) / 2 * 2 : 0), "%s: %" PRId64 " words", s->name, words);
}

static bool run_interpreter(struct subject *s, const void *in)
{
    struct err e = {0};
    for (uint32_t b = 0; b < s->k->nbuf; b++) {
        s->want[b] = calloc(1, buffer_bytes(s->k, b) + 1);
        if (s->k->buf[b].role == BUF_IN)
            memcpy(s->want[b], in, buffer_bytes(s->k, b));
    }
    return check(kernel_interp(s->k, s->want, NULL, 0, s->k->extent, &e), "%s: %s", s->name, e.msg);
}

static bool make(struct subject *s)
{
    const struct scan_case *c = s->c;
    struct err e = {0};
    struct values in = {0}, out = {0}, state = {0};
    struct graph *g = graph_new("scan");
    const struct shape shape = {.rank = 2, .dim = {c->rows, c->length}};
    graph_output(g, OUT_RETURN, n_cumulative(g, c->op, n_input(g, c->dtype, &shape, "x"), 1), 0);
    snprintf(s->name, sizeof s->name, "%s of %s[%d,%d], blocks of %d", opinfo[c->op].name, dtype_name(c->dtype),
             (int)c->rows, (int)c->length, (int)c->threads);
    struct graph *h = graph_clone(g);
    values_random(&rng, g, &g->input, false, &in);
    fill(c, in.v[0]);
    bool ok = check(!g->err.code && h && run_on(g, "ref", true, &in, &state, NULL, &out, &e), "%s: %s", s->name,
                    e.msg);
    ok = ok && (s->p = plan(c, h)) && check(s->p->nkernel == 1, "%s: %u kernels", s->name, s->p->nkernel);
    s->k = ok ? s->p->kernel[0] : NULL;
    ok = ok && has_form(s, s->k) && run_interpreter(s, in.v[0]);
    for (uint32_t b = 0; ok && b < s->k->nbuf; b++)
        if (s->k->buf[b].role == BUF_OUT)
            ok = agrees(s, s->want[b], out.v[0]);
    values_free(&in);
    values_free(&out);
    graph_free(h);
    graph_free(g);
    return ok;
}

/* ---- its text ---- */

static bool write_text(FILE *f, const struct dialect *d, struct subject *s, unsigned number)
{
    struct text t = {0};
    struct err e = {0};
    char entry[32];
    snprintf(entry, sizeof entry, "kernel_%u", number);
    bool ok = check(source_kernel(s->k, d, entry, &t, &s->info, &e), "%s: %s", s->name, e.msg);
    text_put(&t, "extern \"C\" void call_%u(void **buf, const u64 *slots, i64 begin, i64 end)\n{\n    %s(", number,
             entry);
    for (uint32_t b = 0; ok && b < s->k->nbuf; b++)
        if (!s->info.local[b])
            text_put(&t, "(%s *)buf[%u], ", dtype_name(s->k->buf[b].dtype), b);
    text_put(&t, "slots, begin, end);\n}\n");
    gpu_shim_text(f, t.s);
    mem_free(t.s);
    return ok;
}

static unsigned long *waited;      /* in common memory: how often blocks have found no word */

static void pause_block(bool waits)
{
    if (waits)
        __atomic_fetch_add(waited, 1, __ATOMIC_RELAXED);
    usleep(waits ? 20 : rng_below(&rng, 4) ? 0 : (unsigned)rng_below(&rng, 300));
}

/* Runs a block in a process of its own. */
static pid_t begin_block(const struct subject *s, const struct gpu_module_code *m, const struct call *c, unsigned block,
                         bool backwards)
{
    rng_next(&rng);
    pid_t child = fork();
    if (child)
        return child;
    alarm(TIMEOUT_SECONDS);
    *m->grid = BLOCKS;
    *m->block = block;
    _exit(!gpu_block_run(m, s->info.threads, backwards, call, (void *)c));
}

static bool run_phase(const struct subject *s, const struct gpu_module_code *m, const struct call *c, bool backwards)
{
    bool ok = true;
    int status;
    for (unsigned i = 0; i < BLOCKS; i++)
        ok &= begin_block(s, m, c, backwards ? BLOCKS - 1 - i : i, backwards) > 0;
    for (unsigned i = 0; i < BLOCKS; i++)
        ok &= wait(&status) > 0 && WIFEXITED(status) && !WEXITSTATUS(status);
    return check(ok, "%s: a block has not come to its end", s->name);
}

static void run(const struct subject *s, const struct gpu_module_code *m, call_fn *fn, bool backwards)
{
    void *got[MAX_BUFS];
    struct phase p = {0};
    bool ok = true;
    for (uint32_t b = 0; b < s->k->nbuf; b++) {
        size_t bytes = buffer_bytes(s->k, b) + 1;
        got[b] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (got[b] == MAP_FAILED)
            exit(1);
        memset(got[b], 7, bytes);
        if (s->k->buf[b].role == BUF_IN)
            memcpy(got[b], s->want[b], bytes);
    }
    struct call c = {.fn = fn, .buf = got};
    while (ok && kernel_phase(s->k, &p)) {
        c.begin = p.base;
        c.end = p.base + p.extent;
        ok = run_phase(s, m, &c, backwards);
    }
    for (uint32_t b = 0; b < s->k->nbuf; b++) {
        int64_t at = 0;
        unsigned dtype = s->k->buf[b].dtype;
        if (ok && s->k->buf[b].role == BUF_OUT && !same_values(dtype, s->want[b], got[b], s->k->buf[b].count, &at))
            ok = check(false, "%s: element %" PRId64 " is %.17g, not %.17g", s->name, at,
                       element_value(dtype, got[b], at), element_value(dtype, s->want[b], at));
        munmap(got[b], buffer_bytes(s->k, b) + 1);
    }
    passed += ok;
}

static bool compile(const struct dialect *d, struct subject *s, unsigned n, const char *folder, char *library,
                    size_t room)
{
    char source[256], command[1024];
    struct text prelude = {0};
    const char *compiler = getenv("CXX");
    bool ok = true;
    snprintf(source, sizeof source, "%s/kernels.cpp", folder);
    snprintf(library, room, "%s/kernels.so", folder);
    FILE *f = fopen(source, "w");
    if (!check(f, "%s cannot be written", source))
        return false;
    dialect_prelude(d, NULL, &prelude);
    gpu_shim_write(f, prelude.s);
    mem_free(prelude.s);
    for (unsigned i = 0; i < n; i++)
        ok &= write_text(f, d, &s[i], i);
    fclose(f);
    snprintf(command, sizeof command, "%s " GPU_SHIM_FLAGS " -O0 -o %s %s", compiler ? compiler : "c++", library,
             source);
    ok = ok && check(!system(command), "the kernels' text does not compile: %s", command);
    unlink(source);
    return ok;
}

int main(int argc, char **argv)
{
    static struct subject s[CASES];
    struct err e = {0};
    char folder[] = "/tmp/kiln-scan-XXXXXX", library[256];
    const struct dialect *d = dialect_find(argc > 1 ? argv[1] : "hip", &e);
    unsigned long runs = argc > 2 ? strtoul(argv[2], NULL, 10) : 2;
    unsigned n = 0;
    if (system("echo '_Float16 x;' | ${CXX:-c++} -x c++ -fsyntax-only - >/dev/null 2>&1")) {
        printf("SKIP no-compiler c++: none that has 16-bit floats\n");
        skipped++;
        return finish();
    }
    if (!check(d && !d->table, "no dialect whose blocks wait: %s", e.msg) || !mkdtemp(folder))
        return finish();
    for (unsigned i = 0; i < CASES; i++) {
        s[n].c = &table[i];
        n += make(&s[n]);
    }
    struct gpu_module_code m = {0};
    void *so = NULL;
    waited = mmap(NULL, sizeof *waited, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (waited != MAP_FAILED && compile(d, s, n, folder, library, sizeof library) &&
        check((so = dlopen(library, RTLD_NOW | RTLD_LOCAL)) && gpu_module_code(so, &m), "%s is no kernel's", library)) {
        *(void (**)(bool))dlsym(so, "emulated_pause") = pause_block;
        for (unsigned long r = 0; r < runs * n && failed < 5; r++) {
            char name[32];
            call_fn *fn;
            snprintf(name, sizeof name, "call_%lu", r % n);
            *(void **)&fn = dlsym(so, name);
            run(&s[r % n], &m, fn, r / n % 2);
        }
        printf("blocks have waited %lu times\n", *waited);
        check(*waited > runs * n, "blocks have waited %lu times", *waited);
    }
    if (so)
        dlclose(so);
    unlink(library);
    rmdir(folder);
    for (unsigned i = 0; i < CASES; i++) {
        for (uint32_t b = 0; s[i].k && b < s[i].k->nbuf; b++)
            free(s[i].want[b]);
        source_info_free(&s[i].info);
        program_free(s[i].p);
    }
    gpu_block_free();
    return finish();
}
