/* Programs compiled ahead of time: from a graph to its image and kernels.
 *
 * All nodes are on the CPU here, whatever device they were recorded for: results do not depend on it.  The image is
 * written bottom-up, so that the offset of each part is known when it is referred to. */
#include "object.h"
#include "image.h"
#include "ir/graph/custom.h"
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(struct image_loc) == sizeof(struct loc) && (int)IMAGE_ARENA == LOC_ARENA &&
                   (int)IMAGE_INPUT == LOC_INPUT && (int)IMAGE_STATE == LOC_STATE && (int)IMAGE_OUT == LOC_OUT &&
                   (int)IMAGE_SCRATCH == LOC_SCRATCH, "places are written as they are");

struct image_writer {
    unsigned char *bytes;
    uint32_t n, cap;
    bool failed;
};

/* Appends a part; returns its offset. */
static uint32_t aot_object_put(struct image_writer *w, const void *part, size_t size)
{
    uint32_t at = (w->n + 7) & ~7u;
    w->failed |= size > INT32_MAX || at > INT32_MAX || !mem_reserve(&w->bytes, &w->cap, at + (uint32_t)size, 1);
    if (w->failed)
        return 0;
    if (part && size)
        memcpy(w->bytes + at, part, size);
    w->n = at + (uint32_t)size;
    return at;
}

/* ---- commands ---- */

static uint32_t put_program(struct image_writer *w, const struct program *p);

static uint32_t put_region(struct image_writer *w, const struct program *p, const struct command *c)
{
    const struct node *n = node_at(p->g, c->region);
    struct workspace space = command_workspace(p, c);
    struct region_call call = region_call(p->g, n);
    struct image_region r = {.kind = n->op == OP_cond ? IMAGE_COND : n->op == OP_while ? IMAGE_WHILE : IMAGE_SCAN,
                             .nin = call.nin, .nout = call.nout, .carried = call.carried, .scanned = call.scanned,
                             .reverse = call.reverse, .length = call.length, .work = space.work,
                             .pointers = space.pointers, .arena = space.arena};
    int64_t *bytes = mem_alloc((call.nin + call.nout) * sizeof *bytes);
    w->failed |= !bytes;
    for (uint32_t i = 0; bytes && i < call.nin + call.nout; i++)
        bytes[i] = (int64_t)call.bytes(&call, i >= call.nin, i < call.nin ? i : i - call.nin);
    r.bytes = bytes ? aot_object_put(w, bytes, (call.nin + call.nout) * sizeof *bytes) : 0;
    mem_free(bytes);
    for (int i = 0; i < 2; i++)
        r.program[i] = c->sub[i] ? put_program(w, c->sub[i]) : 0;
    return aot_object_put(w, &r, sizeof r);
}

/* Writes the arguments of a command.  Values of the layout are where they are for the bounds of the symbols. */
static uint32_t put_args(struct image_writer *w, const struct program *p, const struct command *c)
{
    int64_t offset[MAX_LAYOUT_VALUES];
    uint32_t at = aot_object_put(w, c->arg, c->narg * sizeof *c->arg);
    if (!p->layout || w->failed)
        return at;
    layout_offsets(p, NULL, offset);
    for (uint32_t i = 0; i < c->narg; i++) {
        struct loc l = c->arg[i];
        if (l.kind == LOC_LAYOUT)
            l = (struct loc){LOC_ARENA, p->layout->device, offset[l.index] + l.offset};
        memcpy(w->bytes + at + i * sizeof l, &l, sizeof l);
    }
    return at;
}

static uint32_t put_program(struct image_writer *w, const struct program *p)
{
    struct image_command *cmd = mem_alloc((p->ncmd + 1) * sizeof *cmd);
    w->failed |= !cmd;
    for (uint32_t i = 0; cmd && i < p->ncmd; i++) {
        const struct command *c = &p->cmd[i];
        uint32_t kind = c->kind == CMD_KERNEL ? IMAGE_KERNEL : c->kind == CMD_COPY ? IMAGE_COPY : IMAGE_REGION;
        cmd[i] = (struct image_command){.kind = kind, .kernel = c->kernel, .narg = c->narg, .no_barrier = c->no_barrier,
                                        .bytes = c->bytes};
        cmd[i].arg = put_args(w, p, c);
        cmd[i].region = c->kind == CMD_REGION ? put_region(w, p, c) : 0;
    }
    struct image_program own = {.ncmd = p->ncmd, .cmd = cmd ? aot_object_put(w, cmd, p->ncmd * sizeof *cmd) : 0};
    mem_free(cmd);
    return aot_object_put(w, &own, sizeof own);
}

/* ---- arguments ---- */

static void aot_object_put_kernels(struct image_writer *w, const struct program *p, struct image *m)
{
    struct image_kernel k;
    m->nkernel = p->nkernel;
    m->kernel = aot_object_put(w, NULL, p->nkernel * sizeof k);
    for (uint32_t i = 0; i < p->nkernel && !w->failed; i++) {
        struct image_step step[OBJECT_STEPS];
        uint32_t steps = p->placeholders.n ? object_active(p->kernel[i], step) : 0;
        k = (struct image_kernel){p->kernel[i]->extent, p->kernel[i]->sched.grain,
                                  aot_object_put(w, step, steps * sizeof *step), steps};
        if (w->failed)
            break;
        memcpy(w->bytes + m->kernel + i * sizeof k, &k, sizeof k);
    }
}

/* Writes the pointers of the args and the destinations of outputs.  States are written in place; those that must not be
 * are copied at the end. */
static void put_leaves(struct image_writer *w, const struct program *p, struct image *m)
{
    const struct graph *g = p->g;
    uint32_t n = g->input.n + g->state.n;
    int64_t *bytes = mem_alloc((n + g->nout + 1) * sizeof *bytes);
    struct image_out *out = mem_alloc((g->nout + 1) * sizeof *out);
    w->failed |= !bytes || !out;
    for (uint32_t i = 0; !w->failed && i < n; i++) {
        const struct leaf *l = i < g->input.n ? &g->input.v[i] : &g->state.v[i - g->input.n];
        bytes[i] = shape_count(&g->shape[l->shape]) * (int64_t)dtype_size(l->dtype);
    }
    m->ninput = g->input.n;
    m->nstate = g->state.n;
    for (uint32_t i = 0; !w->failed && i < g->nout; i++) {
        const struct output *o = &g->out[i];
        out[i] = (struct image_out){.later = -1, .bytes = (int64_t)node_bytes(g, o->value)};
        if (o->kind == OUT_RETURN) {
            bytes[n + m->nreturn] = out[i].bytes;
            out[i].pointer = n + m->nreturn++;
            continue;
        }
        out[i].pointer = g->input.n + o->state;
        if (!p->in_place[i]) {
            out[i].later = m->later_bytes;
            m->later_bytes += (out[i].bytes + 63) / 64 * 64;
        }
    }
    m->nout = g->nout;
    if (!w->failed) {
        m->pointer = aot_object_put(w, bytes, (n + m->nreturn) * sizeof *bytes);
        m->out = aot_object_put(w, out, g->nout * sizeof *out);
    }
    mem_free(bytes);
    mem_free(out);
}

size_t object_args_layout(const struct graph *g, const bool *fixed, size_t *slot_at)
{
    size_t at = object_symbol_at(g, object_symbols(g));
    for (uint32_t i = 0; i < g->slot.n; i++) {
        uint32_t first = object_slot(g, i);
        size_t bytes = dtype_size(g->slot.v[i].dtype), own = (at + bytes - 1) / bytes * bytes;
        bool member = first == i && !(fixed && fixed[i]);
        if (slot_at)
            slot_at[i] = fixed && fixed[i] ? SIZE_MAX : first < i ? slot_at[first] : own;
        at = member ? own + bytes : at;
    }
    return (at + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *);
}

/* A slot that is a length is a float. */
static struct image_slot length_slot(struct image_writer *w, const struct graph *g, uint32_t i, int64_t length)
{
    struct image_step step[OBJECT_STEPS];
    unsigned dtype = g->slot.v[i].dtype;
    uint32_t steps = object_length(g, length, step), bits = 8 * (uint32_t)dtype_size(dtype);
    uint32_t exponent = dtype == KL_F16 ? 5 : dtype == KL_F64 ? 11 : 8;
    w->failed |= !steps;
    return (struct image_slot){.length = aot_object_put(w, step, steps * sizeof *step), .steps = steps,
                               .mantissa = bits - 1 - exponent, .exponent = exponent};
}

/* captured: the graph as recorded, with symbols in its shapes; p: its program. */
static void put_symbols(struct image_writer *w, const struct graph *captured, const struct program *p, struct image *m)
{
    struct image_symbol s[MAX_SYMBOLS + MAX_PLACEHOLDERS];
    const struct placeholders *v = &p->placeholders;
    m->nsymbol = object_symbols(captured);
    if (m->nsymbol)
        object_put_symbols(captured, v, s);
    for (uint32_t i = 0; i < v->n; i++) {
        struct image_step step[OBJECT_STEPS];
        if (!placeholder_is_sum(&v->v[i]))
            continue;
        struct image_symbol *sum = &s[m->nsymbol + m->nsum++];
        sum->steps = object_sum(captured, v, i, step);
        sum->at = aot_object_put(w, step, sum->steps * sizeof *step);
        w->failed |= !sum->steps;
    }
    m->symbol = aot_object_put(w, s, (m->nsymbol + m->nsum) * sizeof *s);
}

static void put_slots(struct image_writer *w, const struct graph *g, const struct object_options *o, struct image *m)
{
    size_t *at = mem_alloc((g->slot.n + 1) * sizeof *at);
    struct image_slot *slot = mem_alloc((g->slot.n + 1) * sizeof *slot);
    w->failed |= !at || !slot;
    if (!w->failed) {
        object_args_layout(g, o->fixed, at);
        for (uint32_t i = 0; i < g->slot.n; i++)
            slot[i] = o->length && o->length[i] ? length_slot(w, g, i, o->length[i])
                      : at[i] == SIZE_MAX
                          ? (struct image_slot){.fixed = o->slot[i]}
                          : (struct image_slot){.at = (uint32_t)at[i],
                                                  .bytes = (uint32_t)dtype_size(g->slot.v[i].dtype)};
        m->slot = aot_object_put(w, slot, g->slot.n * sizeof *slot);
    }
    m->nslot = g->slot.n;
    mem_free(at);
    mem_free(slot);
}

static uint64_t features_of(const struct caps *target)
{
    uint64_t all = 0;
    char list[sizeof target->features + 2];
    unsigned bit = 0;
    snprintf(list, sizeof list, "%s,", target->features);
#define X(name)                             \
    if (strstr(list, "+" #name ","))        \
        all |= UINT64_C(1) << bit;          \
    bit++;
#define WITH_BIT(name, type, number) X(name)
    IMAGE_FEATURES(X)
    IMAGE_FEATURES_AARCH64(WITH_BIT)
#undef WITH_BIT
#undef X
    (void)bit;
    return all;
}

size_t object_state_bytes(const struct graph *g, uint32_t i)
{
    const struct leaf *l = &g->state.v[i];
    return (size_t)shape_count(&g->shape[l->shape]) * dtype_size(l->dtype);
}

enum { WEIGHT_ALIGN = 64 }; /* the image's own alignment */

static void put_weights(struct image_writer *w, const struct graph *g, const struct object_options *o, struct image *m)
{
    if (!o->state || o->weights_separate || !g->state.n)
        return;
    m->weight = aot_object_put(w, NULL, g->state.n * sizeof m->weight);
    for (uint32_t i = 0; i < g->state.n && !w->failed; i++) {
        uint32_t at = 0;
        if (o->state[i]) {
            aot_object_put(w, NULL, (size_t)(-(int64_t)w->n & (WEIGHT_ALIGN - 1)));
            at = aot_object_put(w, o->state[i], object_state_bytes(g, i));
        }
        if (!w->failed)
            memcpy(w->bytes + m->weight + i * sizeof at, &at, sizeof at);
    }
}

size_t object_weight_at(const struct graph *g, const struct object_options *o, uint32_t state)
{
    size_t at = o->weights_at;
    for (uint32_t i = 0; i < g->state.n; i++)
        if (o->state[i]) { /* a program without weights has no part in the file */
            at += OBJECT_WEIGHTS_HEADER;
            break;
        }
    for (uint32_t i = 0; i < state; i++)
        at += o->state[i] ? (object_state_bytes(g, i) + WEIGHT_ALIGN - 1) / WEIGHT_ALIGN * WEIGHT_ALIGN : 0;
    return at;
}

void object_weights_header(const struct graph *g, const struct object_options *o, unsigned char out[OBJECT_WEIGHTS_ID])
{
    struct hash128 h = graph_hash(g);
    uint64_t number[3] = {h.lo, h.hi, object_weight_at(g, o, g->state.n) - o->weights_at};
    memcpy(out, "KILNWTS1", 8);
    for (int i = 0; i < 24; i++)
        out[8 + i] = (unsigned char)(number[i / 8] >> 8 * (i % 8));
}

static bool write_image(struct image_writer *w, const struct graph *captured, const struct program *p,
                        const struct object_options *o, const struct caps *target, struct err *e)
{
    struct image m = {.magic = IMAGE_MAGIC, .version = IMAGE_VERSION, .features = features_of(target),
                      .max_args = p->max_args, .arena_bytes = program_arenas(p), .scratch_bytes = p->scratch_bytes};
    aot_object_put(w, NULL, sizeof m);
    aot_object_put_kernels(w, p, &m);
    put_leaves(w, p, &m);
    put_symbols(w, captured, p, &m);
    put_slots(w, captured, o, &m);
    put_weights(w, p->g, o, &m);
    m.program = put_program(w, p);
    if (w->failed)
        return err_set(e, KL_ERR_MEMORY, "no memory for the commands and weights of @%s (at most 2 GiB)",
                       p->g->name);
    memcpy(w->bytes, &m, sizeof m);
    return true;
}

/* ---- a graph ---- */

/* Only custom ops cannot be compiled: their code belongs to the process. */
static bool graph_is_compilable(const struct graph *g, struct err *e)
{
    for (ref r = 1; g->ncustom && r < g->nnode; r++) {
        if (g->node[r].op != OP_custom)
            continue;
        char place[300], label[CUSTOM_LABEL];
        return err_set(e, KL_ERR_COMPILE, "%s%s: its function is part of this process, not of a compiled object",
                       site_text(&g->site[g->node[r].site], "", ": ", place, sizeof place),
                       custom_label(node_custom(g, &g->node[r])->name, label));
    }
    for (uint32_t i = 0; i < g->nregion; i++)
        if (!graph_is_compilable(g->region[i], e))
            return false;
    return true;
}

/* A program for all values of the symbols, if the graph has any. */
static struct program *object_plan(const struct graph *captured, bool fuse, const struct caps *caps, struct err *e)
{
    const struct sched_section *schedules;
    if (!schedules_of(captured->name, fuse, &schedules, e))
        return NULL;
    if (schedules && captured->symbols)
        return err_set(e, KL_ERR_ARGUMENT, "graph @%s has symbols: it takes no user-supplied schedules",
                       captured->name), NULL;
    struct graph *g = graph_clone(captured);
    struct program *p = NULL;
    struct placeholders placeholders = {0};
    if (!g)
        err_set(e, KL_ERR_MEMORY, "no memory to compile graph @%s", captured->name);
    for (unsigned d = 0; g && d < MAX_DEVICES; d++)
        graph_move(g, d, DEVICE_CPU);
    const uint64_t cpu = UINT64_C(1) << DEVICE_CPU;
    struct target_set targets = {&(struct target){caps, 0}, 1};
    if (g && !passes_run(g, &(struct pass_options){.fuse = fuse, .verify = true, .bf16_dot2 = caps->dot2 ? cpu : 0,
                                                   .processor = {cpu, caps->threads, lower_reads_windows(caps),
                                                                 caps->l1_bytes},
                                                   .placeholders = &placeholders,
                                                   .recorded = captured}))
        err_set(e, g->err.code, "%s", g->err.msg);
    else if (g)
        p = placeholders.n ? program_plan_symbolic(g, &placeholders, &targets, e)
                        : program_plan_with(g, caps, schedules, NULL, NULL, e);
    if (p && !program_check(p, e)) {
        program_free(p);
        p = NULL;
    }
    if (!p && captured->symbols && e->code == KL_ERR_COMPILE) {
        struct err why = *e;
        e->code = KL_OK;
        err_set(e, KL_ERR_COMPILE, "graph @%s has no one program for all values of its symbols: %s; give them values "
                "(kiln compile --bind %s=NUMBER)", captured->name, why.msg, captured->symbols->v[0].name);
    }
    graph_free(g);
    return p;
}

struct program *object_program(const struct graph *captured, const struct object_options *o, const struct caps *target,
                               unsigned char **image, uint32_t *image_bytes, struct err *e)
{
    struct image_writer w = {0};
    struct program *p = graph_is_compilable(captured, e) ? object_plan(captured, o->fuse, target, e) : NULL;
    if (p && !write_image(&w, captured, p, o, target, e)) {
        mem_free(w.bytes);
        program_free(p);
        return NULL;
    }
    *image = w.bytes;
    *image_bytes = w.n;
    return p;
}
