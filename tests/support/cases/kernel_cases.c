/* Kernels by many schedules against the interpreter of graphs: see kernel_cases.h. */
#define _GNU_SOURCE
#include "kernel_cases.h"
#include "schedule_vary.h"
#include "codegen/codegen.h"
#include "codegen/gpu/source.h"
#include <unistd.h>

enum { MAX_BUFFERS = 64 };

/* ---- targets ---- */

static void add_processor(struct kernel_cases *c, const char *name, uint32_t vector_bytes, uint32_t regs, int64_t l1)
{
    c->target[c->ntarget] = (struct caps){.vector_bytes = vector_bytes, .vector_regs = regs, .threads = 2,
                                          .l1_bytes = l1, .l2_bytes = 4 * l1, .l3_bytes = 16 * l1};
    snprintf(c->target[c->ntarget++].name, sizeof c->target->name, "%s", name);
    c->processors = c->ntarget;
}

static void add_gpu(struct kernel_cases *c, const char *dialect, const char *features)
{
    struct err e = {0};
    struct caps *t = &c->target[c->ntarget++];
    const struct dialect *d = dialect_find(dialect, &e);
    dialect_caps(d, t);
    if (features)
        dialect_architecture(d, features, t);
    snprintf(t->name, sizeof t->name, "%s", features ? features : dialect);
}

void kernel_cases_init(struct kernel_cases *c, uint64_t seed)
{
    struct err e = {0};
    *c = (struct kernel_cases){.r = {seed * UINT64_C(0x9e3779b97f4a7c15) | 1}, .variants = 8};
    add_processor(c, "vectors of 8 bytes", 8, 8, 128);
    add_processor(c, "vectors of 16 bytes", 16, 16, 256);
    c->target[c->ntarget - 1].mma_bytes = 4;
    add_processor(c, "vectors of 32 bytes", 32, 16, 1024);
    c->target[c->ntarget - 1].mma_bytes = 4;
    add_processor(c, "vectors of 64 bytes", 64, 32, 32 << 10);
    c->target[c->ntarget - 1].half_vectors = 1;
    c->target[c->ntarget - 1].mma_bytes = 4;
    add_processor(c, "short kernels", 16, 16, 512);
    c->target[c->ntarget - 1].compact = true;
    add_processor(c, "pairs of bf16", 16, 16, 512);
    c->target[c->ntarget - 1].dot2 = 1;
    add_processor(c, "tiles of bf16", 64, 32, 512);
    c->target[c->ntarget - 1].bf16_tiles = 1;
    add_gpu(c, "cuda", NULL);
    add_gpu(c, "hip", NULL);
    add_gpu(c, "glsl", NULL);
    add_gpu(c, "cuda", "sm_90");
    add_gpu(c, "cuda", "sm_90a");
    add_gpu(c, "hip", "gfx90a");
    c->backend = backend_get("llvm", &e);
    if (c->backend && !c->backend->caps(&c->host, &e))
        c->backend = NULL;
    c->host.bf16_tiles = c->host.bf16_tiles && tiles_permitted();
}

/* ---- what the graph's interpreter computes ---- */

/* The value of each node, copied when it is computed: those of one graph. */
struct oracle { const struct graph *g; void **value; };

static void keep_value(void *ctx, const struct graph *g, ref r, void *const *value)
{
    struct oracle *o = ctx;
    if (g != o->g || op_is_region(g->node[r].op) || /* it is called for nodes of regions, too */
        node_at(g, r)->op == OP_custom || !value[r])
        return;
    size_t bytes = node_bytes(g, r);
    o->value[r] = malloc(bytes + 1);
    if (o->value[r])
        memcpy(o->value[r], value[r], bytes);
}

static void oracle_free(struct oracle *o, const struct graph *g)
{
    for (ref r = 1; o->value && r < g->nnode; r++)
        free(o->value[r]);
    free(o->value);
    o->value = NULL;
}

/* Small integers, of which every order of additions gives the same sum: GPUs have orders of their own. */
static void make_whole(const struct graph *g, const struct leaves *l, struct values *v, struct rng *r)
{
    for (uint32_t i = 0; i < l->n; i++) {
        size_t size = dtype_size(l->v[i].dtype);
        int64_t n = shape_count(&g->shape[l->v[i].shape]);
        for (int64_t j = 0; dtype_is_float(l->v[i].dtype) && j < n; j++) {
            uint64_t bits = dtype_bits(l->v[i].dtype, (double)(rng_below(r, 7) - 3));
            memcpy((char *)v->v[i] + (size_t)j * size, &bits, size);
        }
    }
}

struct run_data { struct values input, state, out; uint64_t slot[MAX_VALUES]; struct oracle o; };

static void run_data_free(struct run_data *d, const struct graph *g)
{
    values_free(&d->input);
    values_free(&d->state);
    values_free(&d->out);
    oracle_free(&d->o, g);
}

/* Makes data and interprets the graph after the passes, whose orders are written. */
static bool interpret_graph(struct kernel_cases *c, const struct graph *g, bool whole, struct run_data *d,
                            struct err *e)
{
    values_random(&c->r, g, &g->input, false, &d->input);
    values_random(&c->r, g, &g->state, false, &d->state);
    if (whole) {
        make_whole(g, &g->input, &d->input, &c->r);
        make_whole(g, &g->state, &d->state, &c->r);
    }
    for (uint32_t i = 0; i < g->slot.n; i++)
        fill_random(&c->r, g->slot.v[i].dtype, &d->slot[i], 1, false);
    d->out.n = g->nout;
    for (uint32_t i = 0; i < g->nout; i++)
        d->out.v[i] = calloc(node_bytes(g, g->out[i].value) + 1, 1);
    d->o = (struct oracle){g, calloc(g->nnode, sizeof *d->o.value)};
    struct interp_watch watch = {keep_value, &d->o};
    struct bind b = {.input = (const void *const *)d->input.v, .state = (const void *const *)d->state.v,
                     .slot = d->slot, .out = d->out.v, .watch = &watch};
    return interp_run(g, &b, e);
}

/* ---- one kernel ---- */

/* Does the record of a GPU's kernel decide the order of its sums (passes/lower/schedule.h)? */
static bool has_own_order(unsigned kind)
{
    return kind == SCHED_GPU_ROW_REDUCE || kind == SCHED_COLUMN_REDUCE || kind == SCHED_GPU_SCAN ||
           kind == SCHED_GPU_DOT_SKINNY || kind == SCHED_DOT_BLOCKS || kind == SCHED_DOT_MATRIX || kind == SCHED_ROWS ||
           kind == SCHED_ATTENTION_MATRIX || kind == SCHED_ATTENTION_BLOCKS;
}

static bool near(const struct caps *t, const struct kernel *k, unsigned dtype, const void *want, const void *got,
                 int64_t n, int64_t *at)
{
    if (same_values(dtype, want, got, n, at))
        return true;
    if (!t->is_gpu || !dtype_is_float(dtype) || !has_own_order(k->sched.kind))
        return false;
    double max = 0;
    for (int64_t i = 0; i < n; i++)
        max = fmax(max, fabs(element_value(dtype, want, i)));
    double off = ldexp(max > 1 ? max : 1, dtype == KL_F64 ? -40 : dtype == KL_F32 ? -16 : dtype == KL_F16 ? -8 : -6);
    for (*at = 0; *at < n; ++*at)
        if (!(fabs(element_value(dtype, want, *at) - element_value(dtype, got, *at)) <= off) &&
            !same_values(dtype, (const char *)want + *at * (int64_t)dtype_size(dtype),
                         (const char *)got + *at * (int64_t)dtype_size(dtype), 1, &(int64_t){0}))
            return false;
    return true;
}

/* Room for the kernel's buffers: inputs are the oracle's values, what is written starts as sevens. */
static bool fill_buffers(const struct lowered *l, const struct graph *g, const struct oracle *o, void **buf)
{
    const struct kernel *k = l->k;
    for (uint32_t b = 0; b < k->nbuf; b++) {
        unsigned role = k->buf[b].role;
        size_t bytes = (size_t)k->buf[b].count * dtype_size(k->buf[b].dtype);
        buf[b] = NULL;
        if (role == BUF_IN) {
            buf[b] = o->value[l->arg[k->buf[b].id].node];
            if (!buf[b] || node_bytes(g, l->arg[k->buf[b].id].node) != bytes)
                return false;
        } else if (role == BUF_OUT || role == BUF_SCRATCH || role == BUF_WORKSPACE) {
            buf[b] = aligned_alloc(64, (bytes / 64 + 1) * 64);
            memset(buf[b], k->buf[b].dtype == KL_BOOL ? 1 : 7, bytes);
        }
    }
    return true;
}

static void free_buffers(const struct kernel *k, void **buf)
{
    for (uint32_t b = 0; b < k->nbuf; b++)
        if (k->buf[b].role != BUF_IN)
            free(buf[b]);
}

static bool run_code(struct kernel_cases *c, const struct kernel *k, void **buf, const uint64_t *slot, struct err *e)
{
    struct code code;
    struct loaded l = {0};
    if (!c->backend->compile_for(k, &c->host, EMIT_OBJECT, &code, e))
        return false;
    bool ok = object_load(&code, &l, e);
    int64_t half = k->extent / 2;
    if (ok && half)
        l.fn(buf, slot, 0, half);
    if (ok)
        l.fn(buf, slot, half, k->extent);
    object_unload(&l);
    mem_free(code.bytes);
    return ok;
}

/* Runs the kernel once and compares what it stores.  false: *e. */
static bool run_kernel(struct kernel_cases *c, const struct lowered *l, const struct graph *g,
                       const struct run_data *d, const struct caps *t, bool compile, struct err *e)
{
    const struct kernel *k = l->k;
    void *buf[MAX_BUFFERS] = {0};
    bool ok = k->nbuf <= MAX_BUFFERS && fill_buffers(l, g, &d->o, buf);
    if (!ok)
        err_set(e, KL_ERR_INTERNAL, "an argument has no value");
    ok = ok && (compile ? run_code(c, k, buf, d->slot, e) : kernel_interp(k, buf, d->slot, 0, k->extent, e));
    for (uint32_t b = 0; b < k->nbuf && ok; b++) {
        int64_t at = 0;
        unsigned dt = k->buf[b].dtype;
        if (k->buf[b].role != BUF_OUT)
            continue;
        const void *want = d->o.value[l->arg[k->buf[b].id].node];
        if (want && !near(t, k, dt, want, buf[b], k->buf[b].count, &at))
            ok = err_set(e, KL_ERR_INTERNAL, "buffer %u element %" PRId64 " is %.17g %s, not %.17g", b, at,
                         element_value(dt, buf[b], at), compile ? "compiled" : "interpreted",
                         element_value(dt, want, at));
    }
    free_buffers(k, buf);
    return ok;
}

/* ---- another kind of kernel ---- */

static uint16_t power(struct kernel_cases *c, unsigned max) { return (uint16_t)(1u << rng_below(&c->r, max)); }
static uint16_t up_to(struct kernel_cases *c, int64_t max) { return (uint16_t)(1 + rng_below(&c->r, max)); }

/* Sides of a block as so many tiles of threads, or of subgroups. */
static void blocks_of(struct kernel_cases *c, struct schedule *s, unsigned mr, unsigned nr, unsigned holders)
{
    unsigned down = power(c, 4), across = power(c, 4);
    s->dot_blocks.mr = (uint16_t)mr;
    s->dot_blocks.nr = (uint16_t)nr;
    s->dot_blocks.block_m = (uint16_t)(mr * down);
    s->dot_blocks.block_n = (uint16_t)(nr * across);
    s->width = (uint16_t)(down * across * holders);
}

static void on_units(struct kernel_cases *c, const struct caps *t, struct schedule *s)
{
    const struct mma_caps *u = &t->mma[rng_below(&c->r, MMA_UNITS)];
    s->dot_matrix.async = t->mma_async.m && rng_below(&c->r, 2);
    if (s->dot_matrix.async)
        u = &t->mma_async;
    unsigned n = u->n ? u->n : 8, across = (unsigned)up_to(c, 4) * n;
    blocks_of(c, s, (unsigned)up_to(c, 2) * (u->m ? u->m : 16), across, u->subgroup ? u->subgroup : 32);
    s->dot_matrix.step = (uint16_t)((u->k ? u->k : 16) * up_to(c, 4));
    s->dot_matrix.unit_m = u->m;
    s->dot_matrix.unit_n = (uint16_t)(s->dot_matrix.async ? across : u->n);
    s->dot_matrix.unit_k = u->k;
    s->dot_matrix.copy_a = (uint8_t)rng_below(&c->r, 2);
    s->dot_matrix.copy_b = (uint8_t)rng_below(&c->r, 2);
    s->dot_matrix.stages = (uint8_t)rng_below(&c->r, 4);
    s->dot_matrix.panels = s->dot_matrix.async && rng_below(&c->r, 2);
    s->dot_matrix.reordered = rng_below(&c->r, 4) == 0;
    s->dot_matrix.split = rng_below(&c->r, 3) ? 0 : (uint32_t)s->dot_matrix.step * up_to(c, 3);
}

/* The fields of a product, so that they often fit each other: of numbers by chance few tiles divide their blocks. */
static void any_product(struct kernel_cases *c, const struct caps *t, struct schedule *s)
{
    s->dot.mr = up_to(c, 8);
    s->dot.nr = s->width = power(c, 6);
    switch (s->kind) {
    case SCHED_DOT:
        s->dot.pack_b = (uint8_t)rng_below(&c->r, 2);
        s->dot.pack_by = s->dot.pack_b ? (uint8_t)rng_below(&c->r, PACK_COUNT) : 0;
        s->dot.square = rng_below(&c->r, 2) ? power(c, 5) : 0;
        s->dot.lanes = rng_below(&c->r, 2) ? power(c, 5) : 0;
        s->dot.epilogue = (uint8_t)rng_below(&c->r, EPILOGUE_COUNT);
        break;
    case SCHED_DOT_SKINNY:
        s->dot_skinny.strip = rng_below(&c->r, 2) ? (uint32_t)s->dot_skinny.nr * up_to(c, 3) : 0;
        s->dot_skinny.widen = (uint16_t)rng_below(&c->r, 2);
        break;
    case SCHED_DOT_BYTES:
        s->dot_bytes.pack_b = (uint8_t)rng_below(&c->r, 2);
        s->dot_bytes.prefetch_b = (uint8_t)rng_below(&c->r, 2);
        s->dot_bytes.panel = rng_below(&c->r, 2) ? 4 * (uint32_t)up_to(c, 3) : 0;
        break;
    case SCHED_DOT_TILES:
        s->dot_tiles.mr = (uint16_t)(16 * up_to(c, 2));
        s->dot_tiles.nr = s->width = (uint16_t)(16 * up_to(c, 2));
        s->dot_tiles.rows = rng_below(&c->r, 2) ? s->dot_tiles.mr : 0;
        s->dot_tiles.panel = rng_below(&c->r, 2) ? 32 * (uint32_t)up_to(c, 3) : 0;
        s->dot_tiles.pack_a = (uint8_t)rng_below(&c->r, 2);
        s->dot_tiles.run = rng_below(&c->r, 3) ? 0 : (uint32_t)s->dot_tiles.nr * up_to(c, 2);
        break;
    case SCHED_DOT_WINDOWS:
        s->dot_windows.rows = rng_below(&c->r, 2) ? up_to(c, 4) : 0;
        s->dot_windows.channels = rng_below(&c->r, 2) ? up_to(c, 4) : 0;
        s->dot_windows.square = rng_below(&c->r, 2) ? power(c, 4) : 0;
        break;
    case SCHED_DOT_WINDOWS_WEIGHTS: /* a row or a plane of a kernel, often */
        s->dot_windows_weights.mr = up_to(c, 3) * up_to(c, 4);
        s->dot_windows_weights.tiles = rng_below(&c->r, 2) ? up_to(c, 4) : 0;
        s->dot_windows_weights.square = rng_below(&c->r, 2) ? power(c, 4) : 0;
        break;
    case SCHED_DOT_DIRECT:
        s->dot_direct.rows = rng_below(&c->r, 2) ? up_to(c, 4) : 0;
        s->dot_direct.tiles = rng_below(&c->r, 2) ? up_to(c, 3) : 0;
        s->dot_direct.elements = rng_below(&c->r, 2) ? up_to(c, 12) : 0;
        s->dot_direct.lines = rng_below(&c->r, 2) ? up_to(c, 20) : 0;
        s->dot_direct.widen = (uint16_t)rng_below(&c->r, 2);
        break;
    case SCHED_DOT_BLOCKS:
        blocks_of(c, s, power(c, 4), power(c, 4), 1);
        s->dot_blocks.step = power(c, 5);
        s->dot_blocks.copy_a = (uint8_t)rng_below(&c->r, 2);
        s->dot_blocks.copy_b = (uint8_t)rng_below(&c->r, 2);
        s->dot_blocks.stages = s->dot_blocks.copy_a || s->dot_blocks.copy_b ? (uint8_t)(2 + rng_below(&c->r, 3)) : 0;
        s->dot_blocks.split = rng_below(&c->r, 3) ? 0 : (uint32_t)s->dot_blocks.step * up_to(c, 3);
        break;
    case SCHED_DOT_MATRIX: on_units(c, t, s); break;
    default:
        s->dot.nr = power(c, 4);
        s->width = (uint16_t)(power(c, 4) * 32);
        s->gpu_dot_skinny.split = rng_below(&c->r, 2) ? 4 * (uint32_t)up_to(c, 6) : 0;
    }
}

/* A record of another kind of kernel for the same group, most fields of which are chosen. */
static struct schedule another_kind(struct kernel_cases *c, const struct caps *t, const struct schedule *own)
{
    struct schedule s = {.kind = (uint16_t)schedule_other_kind(&c->r, own->kind), .grain = own->grain};
    if (schedule_group(s.kind) == GROUP_dot) {
        s.dot.kc = own->dot.kc;
        any_product(c, t, &s);
        return s;
    }
    if (s.kind == SCHED_COLUMN_REDUCE)
        s.column_reduce.short_rows = (uint16_t)rng_below(&c->r, 2);
    s.width = rng_below(&c->r, 2) ? power(c, 8) : 0;
    return s;
}

static void count_fields(struct kernel_cases *c, const struct schedule *own, const struct schedule *s)
{
    const struct sched_family *family = &sched_families[s->kind];
    c->kinds[s->kind]++;
    if (own->kind != s->kind)
        return;
    for (uint32_t i = 0; i < family->n; i++)
        for (unsigned side = 0; side < (family->field[i].sides ? family->field[i].sides : 1u); side++)
            if (sched_get(&own->record, &family->field[i], side) != sched_get(&s->record, &family->field[i], side)) {
                c->fields[s->kind][i]++;
                break;
            }
}

/* ---- all kernels of a graph ---- */

struct scope {
    struct kernel_cases *c;
    const struct graph *g, *source;     /* after the passes; before them */
    const struct run_data *d;
    const struct caps *caps;
    const char *what;
    bool fuse;
};

static void report_case(const struct scope *s, const struct lowered *l, bool compiled, const char *why)
{
    char *line = schedule_line(schedule_of(l->k));
    check(false, "%s, %s%s, kernel @%s%s by \"%s\": %s", s->what, s->caps->name, s->fuse ? "" : ", unfused",
          l->k->name, compiled ? " compiled" : "", line ? line : "", why);
    mem_free(line);
    graph_print(s->source, stdout);
    if (getenv("KERNEL_CASES_PRINT"))
        kernel_print(l->k, stdout);
    fflush(stdout);
    s->c->failures++;
}

/* Lowers the group and runs the kernel.  Returns false if a difference was found; *k: the kernel's record. */
static bool run_case(const struct scope *s, struct lowerer *lowerer, uint32_t group, const struct schedule *want,
                     struct schedule *k)
{
    struct kernel_cases *c = s->c;
    struct lowered l = {0};
    struct err e = {0};
    if (!lower_group(lowerer, group, want, &l, &e)) {
        if (want && e.code == KL_ERR_ARGUMENT && e.msg[0]) {
            c->refused++;
            return true;
        }
        char *line = want ? schedule_line(want) : NULL;
        check(false, "%s, %s%s, group %u by \"%s\": %s", s->what, s->caps->name, s->fuse ? "" : ", unfused", group,
              line ? line : "", e.msg);
        mem_free(line);
        graph_print(s->source, stdout);
        c->failures++;
        return false;
    }
    if (!want)
        *k = *schedule_of(l.k);
    c->cases++;
    count_fields(c, k, schedule_of(l.k));
    bool ok = run_kernel(c, &l, s->g, s->d, s->caps, false, &e), compile = false;
    if (ok && c->backend && c->compile_every && !s->caps->is_gpu && rng_below(&c->r, c->compile_every) == 0) {
        compile = true;
        c->compiled++;
        ok = run_kernel(c, &l, s->g, s->d, s->caps, true, &e);
    }
    if (!ok)
        report_case(s, &l, compile, e.msg);
    kernel_free(l.k);
    mem_free(l.arg);
    return ok;
}

/* A number that the table does not allow for the field; false: it allows all. */
static bool out_of_range(const struct sched_field *f, uint64_t *v)
{
    uint64_t largest = f->size == 8 ? INT64_MAX : UINT64_MAX >> (64 - 8 * f->size);
    *v = f->power && f->max >= 3 ? 3 : f->min && !f->chosen ? 0 : (uint64_t)f->max + 1;
    return f->form != FORM_SET && *v <= largest;
}

/* Are records refused, each with one number that the table does not allow, by that field?  Nothing may be computed from
 * such a number before, so what is chosen is left open. */
static bool refuse_out_of_range(const struct scope *s, struct lowerer *lowerer, uint32_t group,
                                const struct schedule *own)
{
    const struct sched_family *family = &sched_families[own->kind];
    bool ok = true;
    for (uint32_t i = 0; i < family->n; i++) {
        const struct sched_field *f = &family->field[i];
        struct schedule want = *own;
        struct lowered l = {0};
        struct err e = {0};
        uint64_t v;
        for (uint32_t j = 0; j < family->n; j++)
            for (unsigned side = 0; family->field[j].chosen &&
                                    side < (family->field[j].sides ? family->field[j].sides : 1u); side++)
                sched_set(&want.record, &family->field[j], side, 0);
        if (!out_of_range(f, &v))
            continue;
        sched_set(&want.record, f, 0, v);
        bool refused = !lower_group(lowerer, group, &want, &l, &e);
        ok &= check(refused && e.code == KL_ERR_ARGUMENT && e.field && !strcmp(e.field, f->word),
                    "%s, %s: %s %s %" PRIu64 " is not refused", s->what, s->caps->name, family->word, f->word, v);
        kernel_free(l.k);
        mem_free(l.arg);
    }
    s->c->failures += !ok;
    return ok;
}

static bool is_fusible(const struct graph *g, uint32_t group)
{
    for (ref r = 1; r < g->nnode; r++)
        if (g->group[r] == group && op_is_non_fusible(g->node[r].op))
            return false;
    return true;
}

static bool run_groups(const struct scope *s)
{
    struct target target = {.caps = s->caps};
    struct target_set targets = {&target, 1};
    struct lowerer *l = lowerer_new(s->g, &targets, 0, NULL, NULL);
    bool ok = l;
    for (uint32_t group = 0; ok && group < s->g->ngroup; group++) {
        struct schedule own = {0};
        if (!is_fusible(s->g, group))
            continue;
        ok = run_case(s, l, group, NULL, &own) && refuse_out_of_range(s, l, group, &own);
        for (unsigned i = 0; ok && i < s->c->variants; i++) {
            struct schedule other = rng_below(&s->c->r, 6) ? schedule_vary(&s->c->r, &own)
                                                           : another_kind(s->c, s->caps, &own);
            ok = run_case(s, l, group, &other, &own);
        }
    }
    lowerer_free(l);
    return ok;
}

/* Products of bf16 in even_odd order, which pass numerics chooses for larger ones. */
static void order_even_odd(struct graph *g)
{
    for (ref r = 1; r < g->nnode; r++) {
        struct node *n = &g->node[r];
        if (n->op == OP_dot && n->dtype == KL_BF16 && !n->attr.dot.kblock) {
            n->attr.dot.lanes = 1;
            n->attr.dot.kblock = EVEN_ODD_BLOCK;
            n->attr.dot.order |= DOT_EVEN_ODD;
        }
    }
    for (uint32_t i = 0; i < g->nregion; i++)
        order_even_odd(g->region[i]);
}

bool kernel_cases_run(struct kernel_cases *c, const struct graph *g, unsigned t, bool fuse, const char *what)
{
    const struct caps *caps = &c->target[t];
    struct graph *h = graph_clone(g);
    struct pass_options o = {.fuse = fuse, .bf16_dot2 = caps->dot2 ? UINT64_MAX : 0,
                             .bf16_tiles = caps->bf16_tiles ? UINT64_MAX : 0,
                             .processor = {caps->is_gpu ? 0 : UINT64_MAX, 2, lower_reads_windows(caps), caps->l1_bytes},
                             .gpus = caps->is_gpu ? UINT64_MAX : 0};
    struct run_data d = {0};
    struct err e = {0};
    if (c->verbose) {
        printf("%s, %s\n", what, caps->name);
        graph_print(g, stdout);
        fflush(stdout);
    }
    if (h && caps->bf16_tiles)
        order_even_odd(h);
    bool ok = h && check(passes_run(h, &o), "%s: %s", what, h->err.msg) &&
              check(interpret_graph(c, h, caps->is_gpu, &d, &e), "%s: %s", what, e.msg);
    const struct scope s = {c, h, g, &d, caps, what, fuse};
    ok = ok && run_groups(&s);
    c->graphs++;
    if (h)
        run_data_free(&d, h);
    graph_free(h);
    return ok;
}

void kernel_cases_print(const struct kernel_cases *c)
{
    for (unsigned k = 0; k < SCHED_COUNT; k++) {
        printf("%s: %" PRIu64 " cases", sched_families[k].word, c->kinds[k]);
        for (uint32_t i = 0; i < sched_families[k].n; i++)
            printf(", %s %" PRIu64, sched_families[k].field[i].word, c->fields[k][i]);
        printf("\n");
    }
    printf("%" PRIu64 " graphs, %" PRIu64 " cases, %" PRIu64 " of them compiled, too; %" PRIu64 " records refused\n",
           c->graphs, c->cases, c->compiled, c->refused);
}
