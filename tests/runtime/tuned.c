/* Candidates and tuned schedules: every candidate computes the same bits; a record on disk is followed by programs
 * built from then on, also in a process that did not write it, and only for the threads it was measured with.
 *
 *   tuned                 cpu
 *   tuned vulkan|cuda     only that every candidate for the device computes the same bits; cuda: the tests' library in
 *                         place of the driver, which takes long to compile, so only some of the graphs */
#include "passes/passes.h"
#include "runtime/program/tune.h"
#include "tests/gpu/fake/fake_load.h"
#include "tests/support/harness.h"
#include <fcntl.h>
#include <kiln/kiln.h>
#include <unistd.h>

static char folder[64];
static unsigned warnings;
static int device = DEVICE_CPU;

static const char *const graphs[] = {
    "graph @map @cpu {\n  %x = input 0 \"x\" : f32[37,129]\n  %y = tanh %x : f32[37,129]\n"
    "  %z = mul %y, %x : f32[37,129]\n  return %z\n}\n",
    "graph @large @cpu {\n  %x = input 0 \"x\" : f32[3000003]\n  %y = mul %x, %x : f32[3000003]\n  return %y\n}\n",
    "graph @rows @cpu {\n  %x = input 0 \"x\" : f32[65,300]\n  %m = reduce_max %x axes(1) : f32[65,1]\n"
    "  %e = expand %m : f32[65,300]\n  %d = sub %x, %e : f32[65,300]\n  %p = exp %d : f32[65,300]\n"
    "  %s = sum %p axes(1) : f32[65,1]\n  %t = expand %s : f32[65,300]\n  %q = div %p, %t : f32[65,300]\n"
    "  return %q\n}\n",
    "graph @columns @cpu {\n  %x = input 0 \"x\" : f32[301,77]\n  %s = sum %x axes(0) : f32[1,77]\n  return %s\n}\n",
    "graph @pairs @cpu {\n  %x = input 0 \"x\" : f32[90,2048]\n  %s = sum %x axes(0) : f32[1,2048]\n  return %s\n}\n",
    "graph @long @cpu {\n  %x = input 0 \"x\" : f32[3,5001]\n  %m = reduce_max %x axes(1) : f32[3,1]\n"
    "  %e = expand %m : f32[3,5001]\n  %d = sub %x, %e : f32[3,5001]\n  %p = exp %d : f32[3,5001]\n"
    "  %s = sum %p axes(1) : f32[3,1]\n  %t = expand %s : f32[3,5001]\n  %q = div %p, %t : f32[3,5001]\n"
    "  return %q\n}\n",
    "graph @product @cpu {\n  %x = input 0 \"x\" : f32[45,130]\n  %w = state 0 \"w\" : f32[130,70]\n"
    "  %b = input 1 \"b\" : f32[70]\n  %h = dot %x, %w contract(1; 0) : f32[45,70]\n  %e = expand %b : f32[45,70]\n"
    "  %s = add %h, %e : f32[45,70]\n  %t = tanh %s : f32[45,70]\n  %u = mul %t, %s : f32[45,70]\n"
    "  %v = sub %u, %e : f32[45,70]\n  %r = mul %v, %v : f32[45,70]\n  return %r\n}\n",
    "graph @halves @cpu {\n  %x = input 0 \"x\" : bf16[300,70]\n  %w = input 1 \"w\" : bf16[70,96]\n"
    "  %h = dot %x, %w contract(1; 0) : bf16[300,96]\n  return %h\n}\n",
    "graph @skinny @cpu {\n  %x = input 0 \"x\" : f32[2,700]\n  %w = input 1 \"w\" : f32[700,900]\n"
    "  %h = dot %x, %w contract(1; 0) : f32[2,900]\n  return %h\n}\n",
    "graph @windows @cpu {\n  %x = input 0 \"x\" : f32[4,40,6]\n  %w = input 1 \"w\" : f32[3,6,20]\n"
    "  %v = window %x axis(1) size(3) stride(1) dilation(1) : f32[4,38,6,3]\n"
    "  %y = dot %v, %w contract(2,3; 1,0) : f32[4,38,20]\n  return %y\n}\n",
    "graph @attend @cpu {\n  %q = input 0 \"q\" : f32[2,3,40,16]\n  %k = input 1 \"k\" : f32[2,3,50,16]\n"
    "  %v = input 2 \"v\" : f32[2,3,50,24]\n  %a = attention %q, %k, %v scale(0.25) : f32[2,3,40,24]\n  return %a\n}\n",
    "graph @attend_halves @cpu {\n  %q = input 0 \"q\" : bf16[1,2,80,64]\n  %k = input 1 \"k\" : bf16[1,2,96,64]\n"
    "  %v = input 2 \"v\" : bf16[1,2,96,64]\n  %a = attention %q, %k, %v scale(0.25) : bf16[1,2,80,64]\n"
    "  return %a\n}\n",
    "graph @runs @cpu {\n  %x = input 0 \"x\" : f32[20,90,33]\n  %c = cumsum %x axis(1) : f32[20,90,33]\n"
    "  return %c\n}\n",
    "graph @sort @cpu {\n  %x = input 0 \"x\" : f32[9,70]\n  %s = argsort %x axis(1) direction(ascending) : i64[9,70]\n"
    "  return %s\n}\n",
};
enum { GRAPHS = sizeof graphs / sizeof *graphs };

static struct graph *parse(const char *text)
{
    struct err e = {0};
    struct graph *g = graph_parse(text, strlen(text), "test", &e);
    check(g != NULL, "parsed: %s", e.msg);
    for (ref r = 1; g && device != DEVICE_CPU && r < g->nnode; r++) g->node[r].device = (uint8_t)device;
    return g;
}

/* ---- candidates ---- */

struct one { struct tuned tuned; struct hash128 key; struct schedule sched; };

static bool find_one(const struct tuned *t, struct hash128 group, struct schedule *out)
{
    const struct one *o = (const struct one *)t;
    *out = o->sched;
    return group.lo == o->key.lo && group.hi == o->key.hi;
}

/* Runs a program on the same values each time; out[0 .. nout - 1]: arrays to free. */
static bool run_variant(const struct graph *g, const struct tuned *t, char **out, struct schedule *first)
{
    struct err e = {0};
    struct exec *x = exec_variant(g, device, t, &e);
    struct buffer *in[8] = {0}, *state[8] = {0}, *got[8] = {0};
    bool exclusive[8] = {0}, ok = x && g->input.n < 8 && g->state.n < 8 && g->nout < 8;
    for (uint32_t i = 0; ok && i < g->input.n + g->state.n; i++) {
        const struct leaf *l = i < g->input.n ? &g->input.v[i] : &g->state.v[i - g->input.n];
        struct buffer **to = i < g->input.n ? &in[i] : &state[i - g->input.n];
        ok = (*to = values_buffer(device, l->dtype, shape_count(&g->shape[l->shape]), &e)) != NULL;
    }
    ok = ok && exec_run(x, in, state, exclusive, NULL, got, &e);
    for (uint32_t i = 0; ok && i < g->nout; i++) {
        out[i] = mem_alloc(node_bytes(g, g->out[i].value) + 1);
        ok = out[i] && buffer_read(got[i], out[i], node_bytes(g, g->out[i].value), &e);
    }
    if (ok && first) *first = *schedule_of(x->program->kernel[0]);
    for (int i = 0; i < 8; i++) {
        buffer_unref(in[i]);
        buffer_unref(state[i]);
        buffer_unref(got[i]);
    }
    exec_variant_free(x);
    return check(ok, "a variant of %s runs: %s", g->name, e.msg);
}

static uint32_t candidates;

static uint32_t test_candidates_of(const struct graph *g, struct lowerer *s, uint32_t group, char *const *want)
{
    struct err e = {0};
    struct lowered l;
    struct schedule list[MAX_CANDIDATES];
    uint32_t n = 0;
    if (!check(lower_group(s, group, NULL, &l, &e), "lowered: %s", e.msg)) return 0;
    check(lower_candidates(s, group, l.k, 2, list, &n, &e), "candidates: %s", e.msg);
    for (uint32_t i = 0; i < n; i++) {
        struct one one = {{find_one}, l.group, list[i]};
        char *got[8] = {0}, *line = schedule_line(&list[i]);
        struct schedule has = {0};
        bool same = run_variant(g, &one.tuned, got, &has);
        for (uint32_t k = 0; same && k < g->nout; k++)
            same = same_values(node_at(g, g->out[k].value)->dtype, want[k], got[k], node_numel(g, g->out[k].value),
                               &(int64_t){0});
        check(same, "%s, \"%s\": the same bits", g->name, line);
        check(g->ngroup != 1 || !memcmp(&has, &list[i], sizeof has), "%s follows \"%s\"", g->name, line);
        check(memcmp(&l.k->sched, &list[i], sizeof has) != 0, "%s: \"%s\" is another", g->name, line);
        mem_free(line);
        for (uint32_t k = 0; k < g->nout; k++) mem_free(got[k]);
    }
    kernel_free(l.k);
    mem_free(l.arg);
    return n;
}

static void test_candidates(const char *text)
{
    struct graph *g = parse(text);
    struct err e = {0};
    struct program_targets targets = {0};
    uint32_t n = 0;
    char *want[8] = {0};
    struct pass_options o = {.fuse = true};
    if (!g || !check(passes_run(g, &o), "passes: %s", g->err.msg) || !exec_targets(g, device, &targets, &e) ||
        !run_variant(g, NULL, want, NULL)) {
        graph_free(g);
        return;
    }
    struct lowerer *s = lowerer_new(g, &targets.set, 0, NULL, NULL);
    for (uint32_t group = 0; s && group < g->ngroup; group++) n += test_candidates_of(g, s, group, want);
    if (device == DEVICE_CPU) check(n > 0, "%s has candidates", g->name);
    else printf("%s: %u candidates\n", g->name, n);
    candidates += n;
    for (uint32_t k = 0; k < g->nout; k++) mem_free(want[k]);
    lowerer_free(s);
    program_targets_free(&targets);
    graph_free(g);
}

/* ---- records ---- */

/* The schedule of the only kernel of the program that there is for g now. */
static struct schedule schedule_now(const struct graph *g)
{
    struct err e = {0};
    const struct exec *x = exec_get(g, DEVICE_CPU, true, &e);
    struct schedule s = {0};
    if (check(x != NULL, "a program: %s", e.msg)) {
        s = *schedule_of(x->program->kernel[0]);
        exec_outdate(x); /* the next is planned anew */
    }
    exec_unref(x);
    return s;
}

static bool is_now(const struct graph *g, const struct schedule *want)
{
    struct schedule s = schedule_now(g);
    return !memcmp(&s, want, sizeof s);
}

/* The entry of tuned schedules; how many there are. */
static int find_tuned(char path[160])
{
    struct disk_entries all = {0};
    struct err e = {0};
    int found = 0;
    bool ok = disk_list(&all, &e);
    for (uint32_t i = 0; ok && i < all.n; i++)
        if (disk_verify(&all.v[i], &e) && !strcmp(all.v[i].name, "tuned schedules")) {
            snprintf(path, 160, "%s/%s", folder, all.v[i].file);
            found++;
        }
    mem_free(all.v);
    return found;
}

static void count_warnings(void *ctx, kl_log_level level, const char *text)
{
    (void)ctx;
    warnings += level == KL_LOG_WARN && strstr(text, "is not used: its bytes do not give its sum") != NULL;
}

static void test_damage(const struct graph *g, const struct schedule *chosen)
{
    char path[160] = "", byte = 0;
    check(find_tuned(path) == 1, "one entry");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool ok = fd >= 0 && pread(fd, &byte, 1, 120) == 1;
    byte ^= 1;
    check(ok && pwrite(fd, &byte, 1, 120) == 1, "a damaged entry");
    if (fd >= 0) close(fd);
    tuned_forget();
    warnings = 0;
    kl_set_log(count_warnings, NULL, KL_LOG_WARN);
    check(is_now(g, chosen) && warnings == 1, "a damaged entry is ignored, with a note: %u", warnings);
    kl_set_log(NULL, NULL, KL_LOG_WARN);
}

static void test_records(void)
{
    struct graph *g = parse(graphs[4]), *fused = parse(graphs[4]);
    struct err e = {0};
    struct program_targets targets = {0};
    struct schedule chosen = schedule_now(g), list[MAX_CANDIDATES], wrong;
    struct lowered l = {0};
    uint32_t n = 0;
    char path[160];
    bool ok = passes_run(fused, &(struct pass_options){.fuse = true}) && exec_targets(fused, DEVICE_CPU, &targets, &e);
    struct lowerer *s = ok ? lowerer_new(fused, &targets.set, 0, NULL, NULL) : NULL;
    ok = s && lower_group(s, 0, NULL, &l, &e) && lower_candidates(s, 0, l.k, 1, list, &n, &e) && n > 1;
    if (check(ok, "candidates: %s", e.msg)) {
        check(find_tuned(path) == 0 && is_now(g, &chosen), "no record");
        check(tuned_keep(DEVICE_CPU, &(struct tuned_record){l.group, list[0]}, 1, &e), "kept: %s", e.msg);
        check(is_now(g, &list[0]), "a record is followed");
        check(tuned_keep(DEVICE_CPU, &(struct tuned_record){l.group, list[1]}, 1, &e), "kept: %s", e.msg);
        check(is_now(g, &list[1]) && find_tuned(path) == 1, "the newest record");
        tuned_forget();
        lower_memo_clear();
        check(is_now(g, &list[1]), "it is read from disk");
        pool_set_threads(3);
        check(is_now(g, &chosen), "records are for a number of threads");
        pool_set_threads(1);
        check(is_now(g, &list[1]), "and are found again");
        wrong = list[1];
        wrong.dot.mr = 0;
        wrong.dot.nr = wrong.width = 3;
        check(tuned_keep(DEVICE_CPU, &(struct tuned_record){l.group, wrong}, 1, &e), "kept: %s", e.msg);
        check(is_now(g, &chosen), "a record that lowering cannot follow is passed over");
        check(tuned_keep(DEVICE_CPU, &(struct tuned_record){l.group, list[1]}, 1, &e), "kept: %s", e.msg);
        test_damage(g, &chosen);
        check(tuned_keep(DEVICE_CPU, &(struct tuned_record){l.group, list[0]}, 1, &e), "kept: %s", e.msg);
        tuned_forget();
        check(is_now(g, &list[0]), "the entry was written anew");
    }
    kernel_free(l.k);
    mem_free(l.arg);
    lowerer_free(s);
    program_targets_free(&targets);
    graph_free(g);
    graph_free(fused);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    const char *name = argc > 1 ? argv[1] : "cpu";
    bool cuda = !strcmp(name, "cuda");
    if (cuda && !fake_gpu_load(argv[0])) return 1;
    if ((device = device_find(name, &e)) < 0) {
        printf("SKIP %s %.*s: %s\n", argc > 1 ? "no-device" : "not-built", (int)strcspn(name, ":"), name, e.msg);
        skipped++;
        return finish();
    }
    snprintf(folder, sizeof folder, "/tmp/kiln-tuned-XXXXXX");
    if (!check(mkdtemp(folder) != NULL, "a folder")) return finish();
    setenv("KILN_CACHE_DIR", folder, 1);
    pool_set_threads(1);
    if (device == DEVICE_CPU) test_records();
    for (int i = 0; i < GRAPHS; i++)
        if (!cuda || strstr(graphs[i], "@map") || strstr(graphs[i], "@halves") || strstr(graphs[i], "@attend_halves") ||
            strstr(graphs[i], "@pairs"))
            test_candidates(graphs[i]);
    check(candidates >= 4, "%u candidates", candidates);
    check(disk_prune(0, &(struct disk_entries){0}, &e) && !rmdir(folder), "the folder is emptied: %s", e.msg);
    return finish();
}
