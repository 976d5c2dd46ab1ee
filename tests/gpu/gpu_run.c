/* Programs on a device with a driver must mean what the interpreter says: integers, random bits and what only moves to
 * the bit, floats within bounds.
 *
 *   gpu_run [DEVICE [GRAPHS [SEED]]]     every op with every dtype that the device has, and random graphs (default:
 *                                        vulkan, 300)
 *   gpu_run share [DEVICE [..]]          of ops and reductions of dtypes other than f32, i32 and bool a third, and
 *                                        attention of f32 and f16 alone
 *   gpu_run graphs DEVICE GRAPHS SEED    random graphs alone
 *   gpu_run texts DEVICE                 tests/text/agree_*.kir, with the least values of symbols
 *   gpu_run symbols DEVICE GRAPHS SEED   graphs with symbols: those of tests/text/agree_symbolic_*.kir, which must
 *                                        have one program for all values if they have no region and the device is
 *                                        no plug-in, and random ones; "symbols fused": not unfused, too
 *
 * What arithmetic rounds: ULPS units in the last place of the result, or of the largest number of its output where sums
 * cancel; GRAPH_ULPS in random graphs, whose ops pass on what others rounded, and where a number that is not finite may
 * be another one.  With KILN_ORDER=graph none of this: all bits are the interpreter's.  Skipped, with the reason, where
 * there is no such device. */
#include "runtime/device/driver.h"
#include "runtime/measure/measure.h"
#include "runtime/profile/profile.h"
#include "tests/support/random/random_make.h"
#include <glob.h>

enum { ULPS = 16, GRAPH_ULPS = 4096, A_GRAPH = 8 };

static const char *device;
static int number;                 /* the device's */
static double ulps = ULPS;
static bool exact;                 /* option order is graph */
static unsigned pairs;            /* of an elementwise op and a dtype */

/* ---- comparing ---- */

static double unit(unsigned dtype)
{
    return dtype == KL_BF16 ? 0x1p-7 : dtype == KL_F16 ? 0x1p-10 : dtype == KL_F32 ? 0x1p-23 : 0x1p-52;
}

static double smallest(unsigned dtype) /* below it a device may give 0 */
{
    return dtype == KL_F16 ? 0x1p-14 : dtype == KL_F64 ? 0x1p-1022 : 0x1p-126;
}

/* Is y what x is, in an array whose largest finite number is `most`? */
static bool close_to(unsigned dtype, double x, double y, double max)
{
    if (x == y || (isnan(x) && isnan(y)) || (ulps == GRAPH_ULPS && !isfinite(x) && !isfinite(y)))
        return true;
    double scale = fabs(x) > max ? fabs(x) : max;
    return isfinite(x) && isfinite(y) && fabs(x - y) <= ulps * unit(dtype) * scale + smallest(dtype);
}

static bool compare(const struct graph *g, const struct values *want, const struct values *got, struct err *why)
{
    for (uint32_t o = 0; o < g->nout; o++) {
        unsigned dtype = node_at(g, g->out[o].value)->dtype;
        int64_t n = node_numel(g, g->out[o].value), at;
        double max = 0;
        if (same_values(dtype, want->v[o], got->v[o], n, &at))
            continue;
        for (int64_t i = 0; i < n; i++) {
            double x = fabs(element_value(dtype, want->v[o], i));
            max = isfinite(x) && x > max ? x : max;
        }
        for (int64_t i = 0; i < n; i++) {
            double x = element_value(dtype, want->v[o], i), y = element_value(dtype, got->v[o], i);
            bool differs = dtype_is_float(dtype) ? !close_to(dtype, x, y, max) : x != y;
            if (exact ? i == at : differs)
                return err_set(why, KL_OK, "output %u element %" PRId64 " is %.17g on %s, not %.17g", o, i, y, device,
                               x);
        }
    }
    return true;
}

/* What the graph means on the device: bf16 products have no order of their own there, as they may have on ref. */
static bool interpret(const struct graph *recorded, const struct values *in, const struct values *st,
                      const uint64_t *slot, struct values *out, struct err *why)
{
    struct graph *g = reference_graph(recorded, (unsigned)number, false, 0, why);
    out->n = g ? g->nout : 0;
    for (uint32_t i = 0; i < out->n; i++)
        out->v[i] = calloc(node_bytes(g, g->out[i].value) + 1, 1);
    struct bind bind = {(const void *const *)in->v, (const void *const *)st->v, slot, out->v, NULL, NULL};
    bool ok = g && reference_run(g, &bind, true, why);
    graph_free(g);
    return ok;
}

/* Both ways; refused: the device may say that it does not have a dtype or an op.  symbolic: the graph with symbols
 * whose program runs on the device, for `symbol` and with the lengths of g; else g itself. */
static bool agrees_for(const struct graph *symbolic, const struct graph *g, bool fuse, const uint64_t *symbol,
                       uint64_t seed, struct err *why)
{
    struct rng r = {seed * 2 + 1};
    struct values in, st, sl, want = {0}, got = {0};
    uint64_t slot[MAX_VALUES + MAX_SYMBOLS] = {0};
    values_random(&r, g, &g->input, false, &in);
    values_random(&r, g, &g->state, false, &st);
    values_random(&r, g, &g->slot, false, &sl);
    for (uint32_t i = 0; i < sl.n; i++)
        memcpy(&slot[i], sl.v[i], dtype_size(g->slot.v[i].dtype));
    for (uint32_t i = 0; symbol && i < symbolic->symbols->n; i++)
        slot[g->slot.n + i] = symbol[i];
    bool ok = (exact ? interpret(g, &in, &st, slot, &want, why)
                     : run_on(g, "ref", true, &in, &st, slot, &want, why)) &&
              run_for_values(symbolic, g, device, fuse, &in, &st, slot, &got, why) && compare(g, &want, &got, why);
    values_free(&in);
    values_free(&st);
    values_free(&sl);
    values_free(&want);
    values_free(&got);
    return ok;
}

static bool agrees(const struct graph *g, uint64_t seed, struct err *why)
{
    return agrees_for(g, g, true, NULL, seed, why);
}

static unsigned too_long; /* graphs with a kernel that the device's driver would end early */

static void try(struct graph *g, const char *what)
{
    struct err why = {0};
    bool ok = check(!g->err.code, "%s: %s", what, g->err.msg), same = ok && agrees(g, 1, &why);
    bool refused = ok && !same && why.code == KL_ERR_DEVICE && strstr(why.msg, "this device's driver ends loops");
    too_long += refused;
    if (!ok || !check(same || refused, "%s: %s", what, why.msg))
        graph_print(g, stdout);
    graph_free(g);
}

/* ---- every op with every dtype ---- */

static bool share; /* a share of what follows, by the command line */

static bool has(unsigned dtype) { return device_dtypes(number) >> dtype & 1; }

/* Operands that the ops of a graph share: whole vectors and a rest, one that is every second element of another. */
struct operands { ref v[3], choice; };

static struct operands operands_of(struct graph *g, unsigned dtype)
{
    struct shape s = shape_make(2, (int64_t[]){2, 37}), wide = shape_make(2, (int64_t[]){2, 74});
    struct operands o = {.choice = n_input(g, KL_BOOL, &s, "c")};
    for (unsigned i = 0; i < 3; i++)
        o.v[i] = i == 1 ? n_slice(g, n_input(g, dtype, &wide, "x"), 1, 0, 37, 2) : n_input(g, dtype, &s, "x");
    return o;
}

static ref elementwise(struct graph *g, unsigned op, const struct operands *o)
{
    struct node n = {.op = (uint16_t)op, .nin = opinfo[op].nin};
    for (unsigned i = 0; i < n.nin; i++)
        n.in[i] = op == OP_where && i == 0 ? o->choice : o->v[i];
    return graph_add(g, &n, NULL);
}

/* Does the op's row take the dtype? */
static bool takes(unsigned op, unsigned dtype)
{
    struct graph *g = graph_new("row");
    struct operands o = operands_of(g, dtype);
    bool ok = op_is_elementwise(op) && elementwise(g, op, &o) && !g->err.code;
    graph_free(g);
    return ok;
}

/* Ops [first, end) of the list as one graph, for most of a kernel's cost does not depend on what it does; where that is
 * wrong, halves of it, to name the op. */
static void try_ops(const unsigned *op, unsigned first, unsigned end, unsigned dtype)
{
    struct err why = {0};
    struct graph *g = graph_new("ops");
    struct operands o = operands_of(g, dtype);
    for (unsigned i = first; i < end; i++)
        graph_output(g, OUT_RETURN, elementwise(g, op[i], &o), 0);
    bool ok = !g->err.code && agrees(g, 1, &why);
    graph_free(g);
    if (ok) {
        passed += end - first;
    } else if (end - first > 1) {
        try_ops(op, first, (first + end) / 2, dtype);
        try_ops(op, (first + end) / 2, end, dtype);
    } else {
        check(false, "%s of %s: %s", opinfo[op[first]].name, dtype_name(dtype), why.msg);
    }
}

static void table_of(unsigned dtype)
{
    unsigned op[OP_COUNT], n = 0;
    for (unsigned i = 1; i < OP_COUNT; i++)
        if (takes(i, dtype))
            op[n++] = i;
    check(n > 10, "only %u ops take %s", n, dtype_name(dtype));
    bool every = !share || dtype == KL_F32 || dtype == KL_I32 || dtype == KL_BOOL;
    for (unsigned i = 0; i < n; i += A_GRAPH) {
        unsigned end = i + A_GRAPH < n ? i + A_GRAPH : n;
        if (every || (i / A_GRAPH + dtype) % 3 == 0) {
            try_ops(op, i, end, dtype);
            pairs += end - i;
        }
    }
}

/* What folds many elements into one: of a few dtypes along all axes and in all sizes, of the others once. */
static void folds(unsigned dtype)
{
    struct shape s = shape_make(3, (int64_t[]){3, 5, 70});
    bool all = dtype == KL_I32 || dtype == KL_F32 ||
        (!share && (dtype == KL_U8 || dtype == KL_F16 || dtype == KL_F64));
    char what[64];
    struct graph *g = graph_new("reduces");
    ref x = n_input(g, dtype, &s, "x");
    for (enum op op = OP_sum; op <= OP_reduce_prod; op++)
        for (unsigned axes = 1; axes < 8; axes += 3)
            if (axes == (all ? 1 : 4) || (all && op != OP_reduce_prod))
                graph_output(g, OUT_RETURN, n_reduce(g, op, x, axes), 0);
    graph_output(g, OUT_RETURN, n_argsort(g, x, 2, false, KL_I32), 0);
    ref i = n_input(g, KL_I32, &(struct shape){.rank = 1, .dim = {5}}, "i");
    graph_output(g, OUT_RETURN, n_scatter(g, x, i, n_flip(g, x, 4), 1, SCATTER_ADD), 0);
    if (all)
        graph_output(g, OUT_RETURN, n_scatter(g, x, i, n_flip(g, x, 4), 1, SCATTER_SET), 0);
    snprintf(what, sizeof what, "reduces, sorts and scatters of %s", dtype_name(dtype));
    try(g, what);
    g = graph_new("dots");
    const union attr dims = {.dot = {.con_a = 1, .con_b = 0, .ncon = 1}};
    for (int64_t m = 1; m < (all ? 200 : 7); m = 5 * m + 1) {
        ref a = n_input(g, dtype, &(struct shape){.rank = 2, .dim = {m, 33}}, "a");
        ref b = n_input(g, dtype, &(struct shape){.rank = 2, .dim = {33, m + 2}}, "b");
        if (all || m > 1)
            graph_output(g, OUT_RETURN, n_dot(g, a, b, &dims), 0);
    }
    snprintf(what, sizeof what, "products of %s", dtype_name(dtype));
    try(g, what);
}

static void attention(unsigned dtype)
{
    char what[64];
    struct graph *g = graph_new("attention");
    ref q = n_input(g, dtype, &(struct shape){.rank = 3, .dim = {2, 37, 12}}, "q"),
        k = n_input(g, dtype, &(struct shape){.rank = 3, .dim = {2, 83, 12}}, "k");
    ref v = n_input(g, dtype, &(struct shape){.rank = 3, .dim = {2, 83, 9}}, "v"),
        mask = n_input(g, KL_BOOL, &(struct shape){.rank = 3, .dim = {2, 37, 83}}, "m");
    ref y[2] = {n_attention(g, q, k, v, NIL, 0.01, true), n_attention(g, q, k, v, mask, 0.01, false)}, din[3];
    ref dy = n_input(g, dtype, node_shape(g, y[0]), "dy");
    for (int i = 0; i < 2; i++) {
        graph_output(g, OUT_RETURN, y[i], 0);
        n_attention_gradient(g, y[i], dy, din);
        for (int j = 0; j < 3; j++)
            graph_output(g, OUT_RETURN, din[j], 0);
    }
    snprintf(what, sizeof what, "attention of %s", dtype_name(dtype));
    try(g, what);
}

/* By the zeros that stand in a kernel's text. */
static void division(unsigned dtype)
{
    char what[64];
    struct graph *g = graph_new("division");
    ref x = n_input(g, dtype, &(struct shape){.rank = 1, .dim = {9}}, "x");
    graph_output(g, OUT_RETURN, n_div(g, x, n_k(g, x, 0)), 0);
    graph_output(g, OUT_RETURN, n_div(g, x, n_k(g, x, -0.0)), 0);
    snprintf(what, sizeof what, "division of %s", dtype_name(dtype));
    try(g, what);
}

static void of_dtype(unsigned dtype)
{
    struct shape s = shape_make(3, (int64_t[]){3, 5, 70});
    char what[64];
    struct graph *g = graph_new("casts");
    ref x = n_input(g, dtype, &s, "x");
    for (unsigned to = 0; to < KL_DTYPE_COUNT; to++)
        if (has(to))
            graph_output(g, OUT_RETURN, n_cast(g, x, to), 0);
    snprintf(what, sizeof what, "casts of %s", dtype_name(dtype));
    try(g, what);
    g = graph_new("vector"); /* that are loaded and stored at once */
    struct shape whole = shape_make(2, (int64_t[]){16, 128});
    x = n_input(g, dtype, &whole, "x");
    graph_output(g, OUT_RETURN, dtype == KL_BOOL ? n_cast(g, x, KL_U8) : n_add(g, x, n_k(g, x, 1)), 0);
    for (unsigned to = 0; to < KL_DTYPE_COUNT; to++)
        if (has(to))
            graph_output(g, OUT_RETURN, n_cast(g, x, to), 0);
    snprintf(what, sizeof what, "vector of %s", dtype_name(dtype));
    try(g, what);
    g = graph_new("views");
    x = n_input(g, dtype, &s, "x");
    uint8_t turn[KL_MAX_RANK] = {2, 0, 1};
    graph_output(g, OUT_RETURN, n_permute(g, x, turn), 0);
    graph_output(g, OUT_RETURN, n_flip(g, n_slice(g, x, 2, 3, 20, 3), 4), 0);
    graph_output(g, OUT_RETURN, n_concat(g, (ref[]){x, n_flip(g, x, 1)}, 2, 1), 0);
    ref i = n_input(g, KL_I32, &(struct shape){.rank = 1, .dim = {9}}, "i");
    graph_output(g, OUT_RETURN, n_gather(g, x, i, 1), 0);
    graph_output(g, OUT_ASSIGN, n_flip(g, n_state(g, dtype, &s, "w"), 4), 0);
    snprintf(what, sizeof what, "views of %s", dtype_name(dtype));
    try(g, what);
    if (dtype != KL_BOOL)
        folds(dtype);
    if (dtype_is_float(dtype)) {
        if (!share || dtype == KL_F32 || dtype == KL_F16)
            attention(dtype);
        division(dtype);
    }
}

/* ---- what is large ---- */

/* A buffer of more than 128 MiB, which is as much as a descriptor may hold in many drivers. */
static void large(void)
{
    struct graph *g = graph_new("large");
    const int64_t n = (INT64_C(130) << 18) + 3;
    struct shape s = shape_make(1, &n);
    ref x = n_input(g, KL_I32, &s, "x"), y = n_add(g, x, x);
    graph_output(g, OUT_RETURN, n_reduce(g, OP_reduce_max, x, 1), 0);
    graph_output(g, OUT_RETURN, n_slice(g, y, 0, n - 12, 12, 1), 0);
    try(g, "130 MiB");
}

/* The timeline's time of kernels is the device's, which is part of the time that passes here. */
static void times(void)
{
    struct err e = {0};
    struct timeline t;
    struct accelerator *a = accelerator_get(number);
    double seconds = -1;
    struct graph *g = graph_new("times");
    struct shape s = shape_make(2, (int64_t[]){128, 256}), t_shape = shape_make(2, (int64_t[]){256, 256});
    union attr dims = {.dot = {.con_a = 1, .con_b = 0, .ncon = 1}};
    graph_output(g, OUT_RETURN, n_dot(g, n_input(g, KL_F32, &s, "a"), n_input(g, KL_F32, &t_shape, "b"), &dims), 0);
    if (!check(timeline_start(false, &e), "%s", e.msg))
        return;
    bool ok = agrees(g, 1, &e);
    check(timeline_stop(false, &t, &e) && ok, "%s", e.msg);
    check(t.total[SPAN_KERNEL].calls && t.total[SPAN_KERNEL].ns &&
          (int64_t)t.total[SPAN_KERNEL].ns <= t.end - t.start, "kernels take %" PRIuFAST64 " ns of %" PRId64,
          (uint_fast64_t)t.total[SPAN_KERNEL].ns, t.end - t.start);
    timeline_free(&t);
    graph_free(g);
    if (!a || !accelerator_driver(a)->time_begin)
        return;
    double began = measure_now();
    accelerator_lock(a);
    ok = accelerator_driver(a)->time_begin(accelerator_device(a), &e) &&
         accelerator_driver(a)->time_end(accelerator_device(a), &seconds, &e);
    accelerator_unlock(a);
    double clock = measure_now() - began;
    check(ok && seconds >= 0 && seconds <= clock + 1e-3, "nothing takes %g of %g s: %s", seconds, clock, e.msg);
}

/* More numbers than push constants hold, each another one. */
static void many_slots(void)
{
    struct graph *g = graph_new("slots");
    struct shape s = shape_make(1, (int64_t[]){100});
    ref x = n_input(g, KL_F32, &s, "x");
    for (int i = 0; i < 60; i++)
        x = n_add(g, x, n_mul(g, x, n_broadcast(g, n_slot(g, KL_F32, "s"), &s)));
    graph_output(g, OUT_RETURN, x, 0);
    try(g, "60 slots");
}

/* A graph of tests/text; NULL: it cannot be read. */
static struct graph *text_parse(const char *path)
{
    static char text[1 << 16];
    struct err e = {0};
    FILE *f = fopen(path, "r");
    if (!check(f, "%s cannot be read", path))
        return NULL;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *expect = strstr(text, "\n# expect:\n");
    struct graph *g = graph_parse(text, expect ? (size_t)(expect + 1 - text) : n, NULL, &e);
    check(g, "%s: %s", path, e.msg);
    return g;
}

static void text_graph(const char *path)
{
    struct graph *g = text_parse(path);
    if (g)
        try(g, path);
}

static void table(void)
{
    for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++)
        if (has(dtype)) {
            table_of(dtype);
            of_dtype(dtype);
        } else {
            printf("%s has no %s\n", device, dtype_name(dtype));
        }
    if (number < DEVICE_PLUGIN) /* the tests' plug-in has less memory than that */
        large();
    many_slots();
    times();
    if (has(KL_F16))
        text_graph("tests/text/agree_gpu_phases.kir");
    if (has(KL_BF16))
        text_graph("tests/text/agree_gpu_skinny.kir"), text_graph("tests/text/agree_gpu_transpose.kir");
    if (has(KL_F16) && has(KL_BF16))
        text_graph("tests/text/agree_gpu_vectors.kir");
    if (has(KL_F16) && has(KL_BF16) && has(KL_F64))
        text_graph("tests/text/agree_gpu_wide.kir"), text_graph("tests/text/agree_gpu_sort.kir");
}

/* All graphs of tests/text that processors agree on, fused. */
static void texts(void)
{
    glob_t files;
    check(!glob("tests/text/agree_*.kir", 0, NULL, &files) && files.gl_pathc > 30, "no files in tests/text");
    for (size_t i = 0; i < files.gl_pathc; i++) {
        struct err e = {0};
        struct graph *g = text_parse(files.gl_pathv[i]);
        for (uint32_t s = 0; g && g->symbols && s < g->symbols->n; s++)
            graph_symbol_set(g, s, g->symbols->v[s].low, &e);
        if (g && g->symbols)
            graph_bind(g);
        if (g)
            try(g, files.gl_pathv[i]);
    }
    globfree(&files);
}

/* ---- symbols ---- */

static bool fused_only;            /* not each graph without fusion, too */
static unsigned ones, others;      /* programs for all values of symbols; graphs that have one for each value */

/* Has the graph one program?  Else *why is the reason. */
static bool has_one_program(const struct graph *s, bool fuse, struct err *why)
{
    const uint64_t zero[MAX_VALUES + MAX_SYMBOLS] = {0};
    const struct exec *x = exec_get(s, number, fuse, why);
    bool one = x && !x->variants;
    if (x && !one) {
        exec_pick_why(x, zero, why->msg, sizeof why->msg);
        why->msg[strcspn(why->msg, "\n")] = 0;
    }
    exec_unref(x);
    return one;
}

/* With the least, the greatest and random values of the symbols.  must: there has to be one program for all. */
static void try_symbols(const struct graph *s, const char *what, bool must, uint64_t seed, int values)
{
    struct rng r = {seed * UINT64_C(0x9e3779b97f4a7c15) | 1};
    for (int fuse = fused_only; fuse < 2; fuse++) {
        struct err why = {0};
        bool one = has_one_program(s, fuse, &why);
        /* lavapipe's limit of loops: random graphs, whose products in the graph's order may have no tiles */
        bool long_loops = exact && !must && strstr(why.msg, "this device's driver ends loops");
        too_long += long_loops;
        check(one || (!must && !why.code) || long_loops, "%s: no program for all values: %s", what, why.msg);
        ones += one;
        others += !one;
        if (!one && !must)
            printf("%s: %s\n", what, why.msg);
        for (int k = 0; one && k < values; k++) {
            struct graph *g = graph_clone(s);
            uint64_t value[MAX_SYMBOLS] = {0};
            bool ok = g != NULL;
            for (uint32_t i = 0; ok && i < s->symbols->n; i++) {
                const struct symbol *v = &s->symbols->v[i];
                int64_t some = v->low + rng_below(&r, v->high - v->low + 1);
                value[i] = (uint64_t)(k == 0 ? v->low : k == 1 ? v->high : some);
                ok = graph_symbol_set(g, i, (int64_t)value[i], &why);
            }
            ok = ok && graph_bind(g) == 1 && agrees_for(s, g, fuse, value, seed + (uint64_t)k, &why);
            if (!check(ok, "%s, %s = %" PRIu64 "%s: %s", what, s->symbols->v[0].name, value[0],
                       s->symbols->n > 1 ? ", .." : "", why.msg))
                graph_print(g, stdout);
            graph_free(g);
        }
    }
}

static void symbols(uint64_t graphs, uint64_t seed)
{
    enum { VALUES = 5, FILE_VALUES = 8 };
    glob_t files;
    int64_t found[MAX_SYMBOLS];
    check(!glob("tests/text/agree_symbolic_*.kir", 0, NULL, &files), "no files in tests/text");
    for (size_t i = 0; i < files.gl_pathc; i++) {
        struct graph *s = text_parse(files.gl_pathv[i]);
        if (s)
            try_symbols(s, files.gl_pathv[i], !s->nregion && !s->ncustom && number < DEVICE_PLUGIN, 1, FILE_VALUES);
        printf("%zu of %zu texts, %u failed: %s\n", i + 1, (size_t)files.gl_pathc, failed, files.gl_pathv[i]);
        fflush(stdout);
        graph_free(s);
    }
    globfree(&files);
    for (uint64_t i = 0; i < graphs && failed < 20; i++) {
        char what[32];
        struct graph *g = random_graph(seed + i), *s = g->err.code ? NULL : random_symbolic(g, seed + i, found);
        snprintf(what, sizeof what, "graph %" PRIu64, seed + i);
        if (s && s->slot.n + s->symbols->n <= MAX_VALUES)
            try_symbols(s, what, false, seed + i, VALUES);
        graph_free(s);
        graph_free(g);
    }
    printf("%s: %u programs for all values of symbols, %u graphs with one for each value\n", device, ones, others);
}

/* Graphs in which a unit in the last place of a sum makes quite another number: 262 takes cosines of sums of about
 * 1e38. */
static bool amplifies(uint64_t seed) { return seed == 262; }

int main(int argc, char **argv)
{
    struct err e = {0};
    share = argc > 1 && !strcmp(argv[1], "share");
    argc -= share;
    argv += share;
    bool texts_only = argc > 1 && !strcmp(argv[1], "texts"), symbols_only = argc > 1 && !strcmp(argv[1], "symbols");
    bool graphs_only = texts_only || symbols_only || (argc > 1 && !strcmp(argv[1], "graphs"));
    argc -= graphs_only;
    argv += graphs_only;
    fused_only = symbols_only && argc > 1 && !strcmp(argv[1], "fused");
    argc -= fused_only;
    argv += fused_only;
    device = argc > 1 ? argv[1] : "vulkan";
    uint64_t graphs = argc > 2 ? strtoull(argv[2], NULL, 10) : 300, seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    number = device_find(device, &e);
    if (number < 0) {
        printf("SKIP no-device %s: %s\n", device, e.msg);
        skipped++;
        return finish();
    }
    exact = option_graph_order();
    test_ops();
    if (texts_only)
        texts();
    if (!graphs_only)
        table();
    const unsigned long_ops = too_long;
    ulps = GRAPH_ULPS;
    if (symbols_only)
        symbols(graphs, seed);
    for (uint64_t i = 0; !symbols_only && !texts_only && i < graphs && failed < 20; i++) {
        char what[32];
        if (amplifies(seed + i))
            continue;
        snprintf(what, sizeof what, "graph %" PRIu64, seed + i);
        try(random_graph(seed + i), what);
    }
    check(long_ops <= 8 && too_long - long_ops <= graphs / 20,
          "%u of the ops' graphs and %u of the random ones have loops too long for this device", long_ops,
          too_long - long_ops);
    printf("%s: %u graphs with loops too long for its driver\n", device, too_long);
    printf("%s: %u pairs of an op and a dtype, %" PRIuFAST64 " kernels compiled, %" PRIuFAST64
           " from disk, %" PRIuFAST64 " launches, %" PRIuFAST64 " ops on the host\n",
           device, pairs, atomic_load(&counters.compiles), atomic_load(&counters.disk_hits),
           atomic_load(&counters.launches), atomic_load(&counters.host_ops));
    return finish();
}
