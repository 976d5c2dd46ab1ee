/* Attention and its gradients by a GPU's matrix units, and in f32 by register tiles: the kernels are run by the kernel
 * interpreter, which checks every access and every meeting of threads, and compared with the graph's interpreter; and
 * records that no kernel can have.
 *
 *   gpu_attention [all]        (all: values that are not finite in large operands, too)
 *
 * Rows with such values are computed again, one product at a time: the interpreter takes up to a minute for large
 * ones. */
#include "codegen/gpu/source.h"
#include "gpu_kernels.h"
#include "tests/support/harness.h"

enum { MOST_WILD = 1 << 19 }; /* products of an operand that has values that are not finite, unless all are tried */
static struct rng rng = {5};
static struct caps caps;
static bool all_wild;

/* Factors of the second product are rounded to `bits` bits, so a result may be off by as much of the largest one. */
static bool is_near(unsigned dtype, const void *want, const void *got, int64_t n, int bits, int64_t *at)
{
    double max = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(element_value(dtype, want, i)))
            max = fmax(max, fabs(element_value(dtype, want, i)));
    for (*at = 0; *at < n; ++*at) {
        double x = element_value(dtype, want, *at), y = element_value(dtype, got, *at);
        if (isfinite(x) ? !(fabs(x - y) <= ldexp(max, dtype == KL_F32 ? -17 : 1 - bits)) : isnan(x) ? !isnan(y)
            : x != y)
            return false;
    }
    return true;
}

/* Asynchronous units are for panels of 64 columns and as many rows.  panels: TMA loads are expected. */
static bool uses_units(const struct gpu_attention *c, const struct program *p, bool panels)
{
    bool all = p->nkernel > 0;
    for (uint32_t i = 0; c->dtype == KL_F32 && i < p->nkernel; i++)
        all &= p->kernel[i]->sched.kind == SCHED_ATTENTION_BLOCKS;
    if (c->dtype == KL_F32)
        return all;
    unsigned async = caps.mma_async.subgroup && c->l >= 64 && c->m >= 64 && c->d % 64 == 0 && c->e % 64 == 0;
    for (uint32_t i = 0; i < p->nkernel; i++)
        all &= p->kernel[i]->sched.kind == SCHED_ATTENTION_MATRIX &&
               schedule_of(p->kernel[i])->attention_matrix.async == async &&
               schedule_of(p->kernel[i])->attention_matrix.panels == (async && panels);
    return all;
}

/* In f32 all sums have the order of the interpreter, but for scores of more than ONE_SUM columns, the gradient in q,
 * and what is computed again because it is not finite. */
static bool is_exact(const struct gpu_attention *c, uint32_t output)
{
    enum { ONE_SUM = 64 };
    return c->dtype == KL_F32 && !c->wild && !(c->gradient && output == 0) && c->d <= ONE_SUM && c->e <= ONE_SUM;
}

/* No score is above the largest one of the statistics.  Some elements of all operands but the first are not finite; for
 * a gradient no q and no k is infinite, because a score would be above the largest one. */
static void fill(const struct graph *g, const struct gpu_attention *c, struct values *in)
{
    values_random(&rng, g, &g->input, false, in);
    for (uint32_t i = 0; i < g->input.n; i++) {
        int64_t n = shape_count(&g->shape[g->input.v[i].shape]);
        unsigned dtype = g->input.v[i].dtype;
        bool statistics = c->gradient && i == 2;
        for (int64_t x = 0; dtype_is_float(dtype) && x < n; x++) {
            double y = dtype_value(dtype, dtype_bits(dtype, (double)rng_below(&rng, 2000) / 1000 - 1));
            if (statistics)
                y = x % 3 == 0 ? 5 + y / 4 : x % 3 == 1 ? 0.5 + y / 100 : y;
            if (c->wild && i && !statistics && rng_below(&rng, 300) == 0)
                y = rng_below(&rng, 2) || (c->gradient && x % (c->d + c->e) < c->d) ? NAN : INFINITY;
            uint64_t bits = dtype_bits(dtype, y);
            memcpy((char *)in->v[i] + (size_t)x * dtype_size(dtype), &bits, dtype_size(dtype));
        }
        for (int64_t x = 0; dtype == KL_I32 && x < n; x++) { /* ranges of keys, some of them empty or too long */
            int32_t y = (int32_t)rng_below(&rng, (uint64_t)c->m + 6) - 3;
            memcpy((char *)in->v[i] + (size_t)x * sizeof y, &y, sizeof y);
        }
    }
}

static void agrees(const struct gpu_attention *which, const char *schedules)
{
    struct err e = {0};
    struct gpu_attention own = *which, *c = &own;
    struct values in, none = {0}, want = {0};
    struct sched_sections s = {0};
    struct graph *g = gpu_attention_graph(c), *h = graph_clone(g);
    struct program *p = NULL;
    char name[160];
    snprintf(name, sizeof name, "attention l %d m %d d %d e %d causal %d seen %d gradient %d %s", (int)c->l, (int)c->m,
             (int)c->d, (int)c->e, c->causal, c->seen, c->gradient, schedules ? schedules : "");
    c->wild = c->wild && (all_wild || c->l * c->m * (c->d + c->e) <= MOST_WILD);
    fill(g, c, &in);
    if (schedules && !check(schedules_parse(schedules, strlen(schedules), NULL, &s, &e), "%s", e.msg))
        goto done;
    if (!check(run_on(g, "ref", true, &in, &none, NULL, &want, &e), "%s: %s", name, e.msg))
        goto done;
    if (passes_run(h, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX, .verify = true}))
        p = program_plan_with(h, &caps, schedules ? s.v : NULL, NULL, NULL, &e);
    bool panels = caps.panel_copies && (!schedules || strstr(schedules, "panels"));
    if (!check(p && uses_units(c, p, panels), "%s: %s", name, p ? "it does not use this matrix unit" : e.msg))
        goto done;
    struct values out = {.n = g->nout};
    for (uint32_t o = 0; o < g->nout; o++)
        out.v[o] = calloc(node_bytes(g, g->out[o].value) + 64, 1);
    struct gpu_arrays m = {calloc((size_t)program_arenas(p) + 64, 1), &in, &out, NULL, NULL};
    if (check(gpu_kernels_run(p, &m, &e), "%s: %s", name, e.msg))
        for (uint32_t o = 0; o < g->nout; o++) {
            int64_t at = 0, n = node_numel(g, g->out[o].value);
            unsigned dtype = g->node[g->out[o].value].dtype;
            bool ok = is_exact(c, o) ? same_values(dtype, want.v[o], out.v[o], n, &at)
                                     : is_near(dtype, want.v[o], out.v[o], n, c->dtype == KL_BF16 ? 8 : 11, &at);
            at = ok ? 0 : at;
            check(ok, "%s: output %u element %d is %g, not %g", name, o, (int)at, element_value(dtype, out.v[o], at),
                  element_value(dtype, want.v[o], at));
        }
    free(m.arena);
    values_free(&out);
done:
    program_free(p);
    schedules_free(&s);
    values_free(&in);
    values_free(&want);
    graph_free(g);
    graph_free(h);
}

static void refuses(const struct gpu_attention *c, const char *kind, const char *record, const char *phrase)
{
    struct err e = {0};
    struct sched_sections s = {0};
    struct graph *g = gpu_attention_graph(c);
    struct program *p = NULL;
    char text[256];
    snprintf(text, sizeof text, "@k0_attention_attention_stats schedule %s %s\n", kind, record);
    if (passes_run(g, &(struct pass_options){.fuse = true, .gpus = UINT64_MAX}) &&
        check(schedules_parse(text, strlen(text), NULL, &s, &e), "%s", e.msg))
        p = program_plan_with(g, &caps, s.v, NULL, NULL, &e);
    check(!p && strstr(e.msg, phrase), "%s: %s", record, p ? "taken" : e.msg);
    program_free(p);
    schedules_free(&s);
    graph_free(g);
}

static void refuses_record(const char *record, const char *phrase)
{
    struct gpu_attention c = {.dtype = KL_BF16, .l = 40, .m = 40, .d = 16, .e = 16};
    refuses(&c, "attention_matrix", record, phrase);
}

static void on(const char *dialect, const char *arch, int64_t min, unsigned step)
{
    struct err e = {0};
    dialect_caps(dialect_find(dialect, &e), &caps);
    dialect_architecture(dialect_find(dialect, &e), arch, &caps);
    for (unsigned i = 0; i < gpu_attention_count; i += step)
        if (gpu_attentions[i].dtype == KL_F32 ? !strcmp(arch, "sm_90a") : gpu_attentions[i].d >= min)
            agrees(&gpu_attentions[i], NULL);
}

int main(int argc, char **argv)
{
    all_wild = argc > 1 && !strcmp(argv[1], "all");
    on("cuda", "sm_90a", 64, 1);
    struct gpu_attention tiles = {.dtype = KL_F32, .l = 150, .m = 130, .d = 16, .e = 16, .causal = true};
    agrees(&tiles, "@k0_attention_attention_stats schedule attention_blocks width 128 rows 128\n");
    agrees(&tiles, "@k0_attention_attention_stats schedule attention_blocks rows 32\n");
    for (int i = 0; i < 5; i++) { /* a gradient's block that has fewer threads than a step has rows, or as many */
        static const struct { int d, rows, width; } few[] = {{16, 8, 16}, {16, 16, 32}, {16, 24, 48}, {80, 8, 32},
                                                             {16, 32, 64}};
        struct gpu_attention c = {.dtype = KL_F32, .l = 70, .m = 70, .d = few[i].d, .e = 16, .gradient = true};
        char records[160];
        snprintf(records, sizeof records, "@k0_attention_grad schedule attention_blocks width %d rows %d\n"
                 "@k1_attention_grad schedule attention_blocks width %d rows %d\n", few[i].width, few[i].rows,
                 few[i].width, few[i].rows);
        agrees(&c, records);
    }
    refuses(&tiles, "attention_blocks", "width 96 rows 128", "threads of 8 side by side");
    refuses(&tiles, "attention_blocks", "rows 1024", "fewer threads");
    refuses_record("width 128 rows 64 step 64 async", "no such unit");
    struct gpu_attention small = {.dtype = KL_BF16, .l = 64, .m = 64, .d = 64, .e = 64};
    struct gpu_attention one = {.dtype = KL_F16, .l = 64, .m = 100, .d = 64, .e = 128, .seen = 1, .wild = true};
    agrees(&one, "@k0_attention_attention_stats schedule attention_matrix width 128 rows 64 step 32 stages 3 async\n");
    agrees(&one, "@k0_attention_attention_stats schedule attention_matrix width 128 rows 64 step 32 stages 3 async "
           "panels\n");
    caps.panel_copies = 0; /* an old driver */
    agrees(&small, NULL);
    refuses(&one, "attention_matrix", "width 128 rows 64 step 32 async panels", "panels: they are for");
    on("cuda", "sm_80", 0, 1);
    struct gpu_attention wide = {.dtype = KL_F32, .l = 34, .m = 66, .d = 128, .e = 64}; /* no room for 128 rows */
    caps.threads = 1;
    agrees(&wide, NULL);
    struct gpu_attention c = {.dtype = KL_BF16, .l = 70, .m = 90, .d = 16, .e = 24, .causal = true, .wild = true};
    agrees(&c, "@k0_attention_attention_stats schedule attention_matrix width 64 rows 32 step 32 stages 3\n");
    agrees(&c, "@k0_attention_attention_stats schedule attention_matrix width 32 step 16 stages 4\n");
    refuses_record("width 64 rows 64", "each subgroup has 16 of them");
    refuses_record("step 8", "a whole number of the unit's steps");
    refuses_record("stages 1", "another one is on its way");
    refuses_record("unit 8x8x8", "unit: it is another");
    refuses_record("subgroup 64", "subgroup: it has");
    refuses_record("width 128 rows 64 step 256 stages 8", "no room for them");
    on("hip", "gfx942", 0, 4);
    agrees(&c, "@k0_attention_attention_stats schedule attention_matrix width 128 rows 32 step 32 stages 3\n");
    refuses_record("unit 32x32x8", "unit: it is another");
    return finish();
}
