/* Kernels as graphs of all kinds make them for a GPU, each once. */
#include "gpu_kernels.h"
#include "codegen/gpu/source.h"
#include "tests/support/random/random_make.h"
#include <dirent.h>

static bool grow_index(struct kernel_set *s)
{
    free(s->slot);
    s->size = s->size ? 2 * s->size : 1024;
    s->slot = calloc(s->size, sizeof *s->slot);
    for (uint32_t i = 0; s->slot && i < s->n; i++) {
        uint32_t at = (uint32_t)s->hash[i].lo & (s->size - 1);
        while (s->slot[at])
            at = (at + 1) & (s->size - 1);
        s->slot[at] = i + 1;
    }
    return s->slot;
}

/* Tiles that are too large for a thread have no text; loads of several adjacent elements and updates in place of
 * windows are for processors, barriers with phases for GPUs that copy panels (gpu_products, gpu_attention), blocks in
 * order for CUDA and HIP (gpu_scan). */
static bool has_text(const struct kernel *k)
{
    unsigned subgroup = 1;
    for (val v = 1; v < k->ninst; v++) {
        if (k->inst[v].op == L_LOOP && k->inst[v].kind == LOOP_BLOCK && k->inst[v].rows)
            subgroup = k->inst[v].rows;
        unsigned op = k->inst[v].op;
        if (op == L_ALIAS || (op == L_LOAD && load_elements(k, &k->inst[v]) > 1))
            return false;
        if (op == L_ARRIVE || op == L_AWAIT || op == L_PUBLISH || k->inst[v].rows * k->inst[v].cols > 256u * subgroup)
            return false;
    }
    return true;
}

void gpu_kernels_add(struct kernel_set *s, const struct kernel *k)
{
    struct hash128 h = kernel_hash(k);
    if (!has_text(k))
        return;
    if (s->n + 1 > s->size / 2 && !grow_index(s))
        exit(1);
    uint32_t at = (uint32_t)h.lo & (s->size - 1);
    for (; s->slot[at]; at = (at + 1) & (s->size - 1))
        if (!memcmp(&s->hash[s->slot[at] - 1], &h, sizeof h))
            return;
    char *text = kernel_text(k);
    struct kernels parsed = {0};
    struct err e = {0};
    if (check(text && kernel_parse(text, strlen(text), NULL, &lower_families, &parsed, &e), "%s: %s", k->name, e.msg)) {
        if (s->n == s->cap) {
            s->cap = s->cap ? 2 * s->cap : 1024;
            s->v = realloc(s->v, s->cap * sizeof *s->v);
            s->hash = realloc(s->hash, s->cap * sizeof *s->hash);
            if (!s->v || !s->hash)
                exit(1);
        }
        s->v[s->n] = parsed.v[0];
        s->hash[s->n] = h;
        s->slot[at] = ++s->n;
        parsed.n = 0;
    }
    kernels_free(&parsed);
    mem_free(text);
}

/* The kernels of g, fused and one by one.  A graph that cannot be planned is another test's matter. */
static void add_graph_for(struct kernel_set *s, const struct graph *g, const struct caps *caps, bool unfused)
{
    struct err e = {0};
    for (int fuse = 1; fuse >= !unfused; fuse--) {
        struct graph *h = graph_clone(g);
        struct program *p = NULL;
        if (h && passes_run(h, &(struct pass_options){.fuse = fuse, .gpus = UINT64_MAX}))
            p = program_plan(h, caps, false, &e);
        for (uint32_t i = 0; p && i < p->nkernel; i++)
            gpu_kernels_add(s, p->kernel[i]);
        program_free(p);
        graph_free(h);
    }
}

static bool has_prim_in(const struct kernel *k, enum prim p, enum loop_kind outermost)
{
    unsigned depth = 0, kind = LOOP_COUNT;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_LOOP && !depth)
            kind = i->kind;
        depth += i->op == L_LOOP || i->op == L_IF;
        depth -= i->op == L_END;
        if (i->op == L_OP(p) && depth && kind == outermost)
            return true;
    }
    return false;
}

bool gpu_kernels_have(const struct kernel_set *s, enum prim p, enum loop_kind outermost)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (has_prim_in(s->v[i], p, outermost))
            return true;
    return false;
}

/* For a GPU without matrix units and blocks in order: what these have is no text in every language. */
void gpu_kernels_graph(struct kernel_set *s, const struct graph *g)
{
    struct err e = {0};
    struct caps caps;
    dialect_caps(dialect_find("cuda", &e), &caps);
    caps.in_order = 0;
    add_graph_for(s, g, &caps, true);
}

static bool copies_panels(const struct kernel *k)
{
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op == L_COPY_PANEL)
            return true;
    return false;
}

static void add_file(struct kernel_set *s, const char *path, bool kernel)
{
    FILE *f = fopen(path, "r");
    if (!check(f, "%s cannot be read", path))
        return;
    static char text[1 << 20];
    size_t len = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    struct err e = {0};
    struct kernels k = {0};
    text[len] = 0;
    char *expect = strstr(text, "\n# expect:\n");
    if (expect)
        len = (size_t)(expect + 1 - text);
    struct graph *g = kernel ? NULL : graph_parse(text, len, NULL, &e);
    for (uint32_t i = 0; g && g->symbols && i < g->symbols->n; i++)
        graph_symbol_set(g, i, g->symbols->v[i].low, &e);
    if (g)
        gpu_kernels_graph(s, g);
    else if (kernel && kernel_parse(text, len, NULL, &lower_families, &k, &e))
        for (uint32_t i = 0; i < k.n; i++)
            /* only CUDA's text has panels; iterations in order are for processors */
            if (!copies_panels(k.v[i]) && !kernel_is_in_order(k.v[i]))
                gpu_kernels_add(s, k.v[i]);
    kernels_free(&k);
    graph_free(g);
}

void gpu_kernels_folder(struct kernel_set *s, const char *folder)
{
    DIR *d = opendir(folder);
    if (!check(d, "%s: no such folder", folder))
        return;
    for (struct dirent *f; (f = readdir(d));) {
        char path[1024];
        size_t n = strlen(f->d_name);
        bool kernel = n > 5 && !strcmp(f->d_name + n - 5, ".loop");
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        if (kernel || (n > 4 && !strcmp(f->d_name + n - 4, ".kir")))
            add_file(s, path, kernel);
    }
    closedir(d);
}

/* A product and what it is made into, by the axes that are contracted: of batches, of transposed operands, of one that
 * is computed, with a bias. */
static ref matrix_product(struct graph *g, unsigned dtype, const int64_t size[4], unsigned con_a, unsigned con_b)
{
    int64_t b = size[0], m = size[1], n = size[2], k = size[3];
    struct shape sa = shape_make(3, (int64_t[]){b, con_a == 1 ? k : m, con_a == 1 ? m : k});
    struct shape sb = shape_make(3, (int64_t[]){b, con_b == 1 ? k : n, con_b == 1 ? n : k});
    struct shape row = shape_make(3, (int64_t[]){1, 1, n}), all = shape_make(3, (int64_t[]){b, m, n});
    union attr dims = {.dot = {.con_a = con_a, .con_b = con_b, .ncon = 1, .nbatch = 1}};
    ref x = n_input(g, dtype, &sa, "a"), y = n_input(g, dtype, &sb, "b"), bias = n_input(g, dtype, &row, "bias");
    return n_add(g, n_dot(g, x, con_b == 1 ? y : n_exp(g, y), &dims), n_broadcast(g, bias, &all));
}

/* The same of arrays as they are. */
static ref copied_product(struct graph *g, unsigned dtype, const int64_t size[4], unsigned con_a, unsigned con_b)
{
    int64_t b = size[0], m = size[1], n = size[2], k = size[3];
    struct shape sa = shape_make(3, (int64_t[]){b, con_a == 1 ? k : m, con_a == 1 ? m : k});
    struct shape sb = shape_make(3, (int64_t[]){b, con_b == 1 ? k : n, con_b == 1 ? n : k});
    struct shape row = shape_make(3, (int64_t[]){1, 1, n}), all = shape_make(3, (int64_t[]){b, m, n});
    union attr dims = {.dot = {.con_a = con_a, .con_b = con_b, .ncon = 1, .nbatch = 1}};
    ref x = n_input(g, dtype, &sa, "a"), y = n_input(g, dtype, &sb, "b"), bias = n_input(g, dtype, &row, "bias");
    return n_tanh(g, n_add(g, n_dot(g, x, y, &dims), n_broadcast(g, bias, &all)));
}

ref gpu_product(struct graph *g, unsigned dtype, int64_t m, int64_t n, int64_t k, enum gpu_what what)
{
    bool transposed = what == TRANSPOSED;
    struct shape sa = transposed ? shape_make(3, (int64_t[]){2, k, m}) : shape_make(2, (int64_t[]){m, k});
    struct shape sb = transposed ? shape_make(3, (int64_t[]){2, n, k}) : shape_make(2, (int64_t[]){k, n});
    ref a = n_input(g, dtype, &sa, "a"), b = n_input(g, dtype, &sb, "b");
    union attr dims = {.dot = {.con_a = 1, .con_b = transposed ? 2 : 0, .ncon = 1, .nbatch = transposed}};
    if (what == COMPUTED) { /* each element twice; every second one of a longer operand */
        struct shape wide = shape_make(2, (int64_t[]){k, 2 * n});
        a = n_add(g, a, a);
        b = n_slice(g, n_input(g, dtype, &wide, "c"), 1, 0, n, 2);
    }
    return n_dot(g, a, b, &dims);
}

/* Rows left over on both sides, columns that are padded, more and fewer keys than queries, every kind of sight. */
const struct gpu_attention gpu_attentions[] = {
    {KL_BF16, 64, 64, 16, 16, false, 0, false, false, false}, {KL_F16, 70, 90, 24, 40, true, 0, false, true, false},
    {KL_BF16, 50, 33, 32, 8, true, 0, false, true, false}, {KL_BF16, 40, 100, 16, 16, false, 1, false, true, false},
    {KL_BF16, 33, 70, 40, 24, true, 2, false, true, false}, {KL_F16, 17, 16, 8, 136, false, 0, false, false, false},
    {KL_BF16, 64, 64, 16, 16, false, 0, true, false, false}, {KL_BF16, 70, 90, 24, 40, true, 0, true, true, false},
    {KL_BF16, 50, 33, 32, 8, true, 0, true, true, false}, {KL_BF16, 40, 100, 16, 16, false, 1, true, true, false},
    {KL_BF16, 33, 70, 40, 24, true, 2, true, true, false},
    /* for units that read panels of 64 columns; with several steps, at the edge and elsewhere */
    {KL_BF16, 70, 65, 64, 64, true, 0, false, true, false}, {KL_BF16, 64, 64, 64, 64, false, 2, true, true, false},
    {KL_F16, 70, 260, 64, 64, true, 0, false, false, true}, {KL_BF16, 64, 140, 64, 64, false, 2, false, false, false},
    {KL_BF16, 66, 140, 64, 64, true, 0, true, false, true},
    /* for register tiles: one block and several, at the edge and elsewhere, 8 and 16 threads side by side */
    {KL_F32, 64, 128, 64, 64, false, 0, false, false, false}, {KL_F32, 70, 150, 24, 40, true, 0, false, true, false},
    {KL_F32, 150, 70, 64, 64, true, 0, false, true, true}, {KL_F32, 40, 100, 64, 16, false, 1, false, true, false},
    {KL_F32, 33, 70, 72, 128, true, 2, false, true, false}, {KL_F32, 64, 128, 64, 64, false, 0, true, false, false},
    {KL_F32, 130, 90, 24, 40, true, 0, true, true, false}, {KL_F32, 66, 140, 64, 64, true, 0, true, true, true},
    {KL_F32, 40, 100, 64, 16, false, 1, true, true, false}, {KL_F32, 33, 70, 72, 128, true, 2, true, true, false},
    /* gradients for units that read panels (those of 128 columns have no room in the memory of AMD's blocks) */
    {KL_BF16, 130, 70, 128, 128, true, 0, true, true, false}, {KL_BF16, 64, 200, 64, 64, false, 0, true, true, false},
    /* for register tiles with scores of two sums */
    {KL_F32, 34, 66, 128, 120, false, 1, false, true, true}, {KL_F32, 36, 40, 128, 128, true, 0, true, true, false}};
const unsigned gpu_attention_count = sizeof gpu_attentions / sizeof *gpu_attentions;

/* An operand: [2, rows, columns], or that as a view of [rows, 2, columns]. */
static int put_operand(char *to, size_t size, const struct gpu_attention *c, const char *name, int number, int64_t rows,
                       int64_t columns)
{
    const char *t = dtype_name(c->dtype);
    int n = (int)rows, m = (int)columns;
    if (!c->heads)
        return snprintf(to, size, "  %%%s = input %d : %s[2,%d,%d]\n", name, number, t, n, m);
    return snprintf(to, size, "  %%%s_rows = input %d : %s[%d,2,%d]\n  %%%s = permute %%%s_rows perm(1, 0, 2) : "
                    "%s[2,%d,%d]\n", name, number, t, n, m, name, name, t, n, m);
}

struct graph *gpu_attention_graph(const struct gpu_attention *c)
{
    struct err e = {0};
    char text[4096] = "graph @g {\n", attr[64], seen[64] = "";
    const char *t = dtype_name(c->dtype), *s = c->seen ? ", %s" : "";
    int l = (int)c->l, m = (int)c->m, d = (int)c->d, v = (int)c->e, n = (int)strlen(text);
    const int size = sizeof text;
    snprintf(attr, sizeof attr, "scale(0.25)%s", c->causal ? " causal" : "");
    if (c->seen)
        snprintf(seen, sizeof seen, "  %%s = input 3 : %s[2,%d,%d]\n", c->seen == 1 ? "bool" : "i32", l,
                 c->seen == 1 ? m : 2);
    if (c->gradient) {
        n += put_operand(text + n, (size_t)(size - n), c, "x", 0, c->l, c->d + c->e);
        n += put_operand(text + n, (size_t)(size - n), c, "y", 1, c->m, c->d + c->e);
        n += snprintf(text + n, (size_t)(size - n),
                      "  %%t = input 2 : f32[2,%d,3]\n%s"
                      "  %%dq = attention_grad %%x, %%y, %%t%s of(queries) depth(%d) %s : %s[2,%d,%d]\n"
                      "  %%dk = attention_grad %%x, %%y, %%t%s of(keys) depth(%d) %s : %s[2,%d,%d]\n"
                      "  return %%dq\n  return %%dk\n}\n", l, seen, s, d, attr, t, l, d, s, d, attr, t, m, d + v);
    } else {
        n += put_operand(text + n, (size_t)(size - n), c, "q", 0, c->l, c->d);
        n += put_operand(text + n, (size_t)(size - n), c, "k", 1, c->m, c->d);
        n += put_operand(text + n, (size_t)(size - n), c, "v", 2, c->m, c->e);
        n += snprintf(text + n, (size_t)(size - n),
                      "%s  %%r = attention %%q, %%k, %%v%s %s : %s[2,%d,%d]\n"
                      "  %%w = attention_stats %%q, %%k%s %s : f32[2,%d,2]\n  return %%r\n  return %%w\n}\n", seen, s,
                      attr, t, l, v, s, attr, l);
    }
    struct graph *g = graph_parse(text, (size_t)n, NULL, &e);
    check(g, "%s", e.msg);
    return g;
}

/* Windows with and without padding, strides, dilation and groups, and of one element; images whose channels are
 * adjacent; channels that are vectors and, in the last two, not. */
const struct gpu_convolution gpu_convolutions[] = {
    {KL_BF16, 2, 16, 5, 6, 40, 3, 3, 1, 1, 1, 1, OF_RESULT, false},
    {KL_BF16, 2, 16, 5, 6, 40, 3, 3, 1, 1, 1, 1, OF_WEIGHTS, false},
    {KL_BF16, 2, 64, 5, 4, 64, 3, 3, 1, 2, 2, 2, OF_IMAGES, false},
    {KL_BF16, 2, 40, 6, 6, 48, 3, 3, 1, 0, 1, 1, OF_RESULT, true},
    {KL_F16, 2, 40, 7, 7, 72, 1, 1, 2, 0, 1, 1, OF_WEIGHTS, false},
    {KL_F16, 2, 24, 11, 6, 80, 3, 2, 2, 1, 1, 1, OF_RESULT, false},
    {KL_F16, 2, 32, 7, 6, 40, 3, 2, 2, 1, 1, 1, OF_IMAGES, false},
    {KL_F16, 2, 32, 7, 6, 40, 3, 2, 2, 1, 1, 1, OF_WEIGHTS, false},
    {KL_BF16, 2, 64, 5, 4, 64, 3, 3, 1, 2, 2, 2, OF_RESULT, false},
    {KL_BF16, 2, 64, 5, 4, 64, 3, 3, 1, 2, 2, 2, OF_WEIGHTS, false},
    {KL_BF16, 2, 40, 5, 5, 48, 3, 3, 1, 1, 1, 1, OF_WEIGHTS, true},
    {KL_F16, 2, 40, 7, 7, 72, 1, 1, 1, 0, 1, 1, OF_RESULT, false},
    {KL_BF16, 2, 16, 5, 6, 40, 3, 3, 1, 1, 1, 1, OF_IMAGES, false},
    {KL_BF16, 2, 3, 9, 8, 40, 3, 3, 2, 1, 1, 1, OF_RESULT, false},
    {KL_BF16, 2, 20, 5, 4, 36, 3, 3, 1, 1, 1, 1, OF_WEIGHTS, false}};
const unsigned gpu_convolution_count = sizeof gpu_convolutions / sizeof *gpu_convolutions;

/* Windows along axis 3 + i; each joins the channels, as kl_conv makes them. */
static ref windows_along(struct graph *g, ref x, uint32_t i, int64_t size, const struct gpu_convolution *c)
{
    static const uint8_t perm[] = {0, 1, 2, 5, 3, 4};
    ref y = n_permute(g, n_window(g, x, 3 + i, size, c->stride, c->dilation), perm);
    struct shape s = *node_shape(g, y);
    s.dim[2] *= s.dim[3];
    s.dim[3] = s.dim[4];
    s.dim[4] = s.dim[5];
    s.rank = 5;
    return n_reshape(g, y, &s);
}

struct graph *gpu_convolution_graph(const struct gpu_convolution *c)
{
    static const uint8_t channels_first[] = {0, 3, 1, 2}, channels_last[] = {0, 2, 3, 1}, result[] = {2, 0, 1, 3, 4};
    int64_t depth = c->c / c->groups, n = c->n, h = c->h + 2 * c->pad, w = c->w + 2 * c->pad;
    struct graph *g = graph_new("conv");
    struct shape sx = shape_make(4, c->last ? (int64_t[]){n, c->h, c->w, c->c} : (int64_t[]){n, c->c, c->h, c->w});
    struct shape sw = shape_make(4, c->last ? (int64_t[]){c->f, c->kh, c->kw, depth}
                                            : (int64_t[]){c->f, depth, c->kh, c->kw});
    struct shape grouped = shape_make(5, (int64_t[]){n, c->groups, depth, h, w});
    struct shape flat = shape_make(3, (int64_t[]){c->groups, c->f / c->groups, depth * c->kh * c->kw});
    ref x = n_input(g, c->dtype, &sx, "x"), k = n_input(g, c->dtype, &sw, "w"), zero = n_const(g, c->dtype, 0);
    ref at = c->last ? n_permute(g, x, channels_first) : x, filters = c->last ? n_permute(g, k, channels_first) : k;
    for (uint32_t axis = 2; c->pad && axis < 4; axis++)
        at = n_pad(g, at, zero, axis, c->pad, c->pad, 0);
    at = windows_along(g, windows_along(g, n_reshape(g, at, &grouped), 0, c->kh, c), 1, c->kw, c);
    union attr dims = {.dot = {.nbatch = 1, .batch_b = 1, .ncon = 1, .con_a = 2, .con_b = 2}};
    ref y = n_permute(g, n_dot(g, n_reshape(g, filters, &flat), at, &dims), result);
    struct shape s = *node_shape(g, y), out = shape_make(4, (int64_t[]){n, c->f, s.dim[3], s.dim[4]});
    y = n_reshape(g, y, &out);
    y = c->last ? n_permute(g, y, channels_last) : y;
    if (c->of != OF_RESULT)
        y = n_grad(g, n_mul(g, y, n_input(g, c->dtype, node_shape(g, y), "dy")), c->of == OF_IMAGES ? x : k);
    graph_output(g, OUT_RETURN, y, 0);
    check(!g->err.code, "%s", g->err.msg);
    return g;
}

static bool units_multiply(const struct caps *caps, unsigned dtype)
{
    bool any = false;
    for (unsigned i = 0; i < MMA_UNITS; i++)
        any |= caps->mma[i].dtypes >> dtype & 1;
    return any;
}

struct graph *gpu_odd_rows(unsigned dtype)
{
    struct graph *g = graph_new("odd_rows");
    int64_t m = 64, n = 331, k = 72;
    struct shape sx = shape_make(2, (int64_t[]){m, k}), sw = shape_make(2, (int64_t[]){n, k}),
                 sb = shape_make(2, (int64_t[]){n, m}), all = shape_make(2, (int64_t[]){m, n});
    union attr rows = {.dot = {.con_a = 1, .con_b = 0, .ncon = 1}}, columns = {.dot = {.ncon = 1}},
               both = {.dot = {.con_a = 1, .con_b = 1, .ncon = 1}};
    ref x = n_input(g, dtype, &sx, "x"), w = n_input(g, dtype, &sw, "w"), b = n_input(g, dtype, &sb, "b");
    ref y = n_dot(g, x, w, &both), max = n_reduce(g, OP_reduce_max, y, 1u << 1);
    ref e = n_exp(g, n_sub(g, y, n_expand(g, max, &all)));
    graph_output(g, OUT_RETURN, n_dot(g, e, b, &rows), 0);
    graph_output(g, OUT_RETURN, n_dot(g, e, x, &columns), 0);
    return g;
}

void gpu_kernels_matrix(struct kernel_set *s, const struct caps *caps, unsigned attention_step)
{
    enum { CONVOLUTIONS = 5 }; /* the first of the table are of all kinds */
    for (unsigned i = 0; i < CONVOLUTIONS; i++) {
        struct graph *g = gpu_convolution_graph(&gpu_convolutions[i]);
        add_graph_for(s, g, caps, false);
        graph_free(g);
    }
    struct caps one = *caps;
    one.threads = 1;
    for (int half = 0; half < 2; half++) {
        struct graph *odd = gpu_odd_rows(half ? KL_BF16 : KL_F32);
        add_graph_for(s, odd, &one, false);
        graph_free(odd);
    }
    bool chains = false;
    for (unsigned i = 0; i < MMA_UNITS; i++)
        chains |= caps->mma[i].chains;
    for (unsigned i = 0; chains && i < gpu_attention_count; i += attention_step) {
        if (!caps->mma_async.subgroup != (gpu_attentions[i].d < PANEL_COLUMNS))
            continue; /* as for the same processors without the unit, or with it */
        struct graph *g = gpu_attention_graph(&gpu_attentions[i]);
        add_graph_for(s, g, caps, false);
        graph_free(g);
    }
    /* tiles of all sizes */
    static const struct { int64_t size[4]; uint8_t dtype, con_a, con_b, copied; uint32_t processors; } product[] = {
        {{1, 64, 64, 40}, KL_BF16, 2, 1, 0, 1}, {{2, 50, 40, 70}, KL_F16, 1, 2, 0, 8},
        {{1, 33, 35, 17}, KL_BF16, 2, 2, 0, 100}, {{3, 16, 16, 5}, KL_F16, 1, 1, 0, 100},
        {{1, 70, 65, 9}, KL_BF16, 2, 1, 0, 1}, {{1, 17, 33, 600}, KL_F16, 2, 1, 0, 100},
        /* of operands that are copied: each of the two along the contraction or not, with columns or rows left over */
        {{1, 136, 264, 200}, KL_BF16, 2, 1, 1, 1}, {{1, 72, 136, 72}, KL_F16, 2, 2, 1, 1},
        {{2, 64, 64, 136}, KL_BF16, 1, 1, 1, 2}, {{1, 40, 72, 328}, KL_F16, 1, 2, 1, 1},
        {{2, 24, 40, 1096}, KL_BF16, 2, 1, 1, 100}, /* in parts of the contraction */
        {{1, 72, 68, 20}, KL_F32, 2, 1, 1, 1}, {{1, 40, 36, 28}, KL_F32, 1, 2, 1, 1},
        {{2, 17, 33, 35}, KL_F32, 2, 2, 0, 100}, {{1, 33, 70, 9}, KL_F32, 1, 1, 0, 1}};
    for (unsigned i = 0; i < sizeof product / sizeof *product; i++) {
        struct caps target = *caps;
        struct graph *g = graph_new(product[i].copied ? "copied" : "matrix");
        ref (*make)(struct graph *, unsigned, const int64_t[4], unsigned, unsigned) =
            product[i].copied ? copied_product : matrix_product;
        target.threads = product[i].processors;
        graph_output(g, OUT_RETURN, make(g, product[i].dtype, product[i].size, product[i].con_a, product[i].con_b), 0);
        check(!g->err.code, "%s", g->err.msg);
        if (units_multiply(caps, product[i].dtype) || product[i].dtype != KL_F32)
            add_graph_for(s, g, &target, false);
        graph_free(g);
    }
}

/* Every op on operands of one shape, and every cast. */
void gpu_kernels_ops(struct kernel_set *s)
{
    struct shape shape = shape_make(2, (int64_t[]){3, 70});
    for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++) {
        for (unsigned op = 1; op < OP_COUNT; op++) {
            struct graph *g = graph_new("op");
            struct node n = {.op = (uint16_t)op, .nin = opinfo[op].nin};
            for (unsigned i = 0; i < n.nin; i++)
                n.in[i] = n_input(g, op == OP_where && i == 0 ? KL_BOOL : dtype, &shape, "x");
            ref y = op_is_elementwise(op) ? graph_add(g, &n, NULL) : op >= OP_sum &&
                op <= OP_reduce_prod ? n_reduce(g, (enum op)op, n.in[0], 2) : NIL;
            if (y && !g->err.code) {
                graph_output(g, OUT_RETURN, y, 0);
                gpu_kernels_graph(s, g);
            }
            graph_free(g);
        }
        for (unsigned to = 0; to < KL_DTYPE_COUNT; to++) {
            struct graph *g = graph_new("cast");
            graph_output(g, OUT_RETURN, n_cast(g, n_input(g, dtype, &shape, "x"), to), 0);
            gpu_kernels_graph(s, g);
            graph_free(g);
        }
    }
}

void gpu_kernels_random(struct kernel_set *s, uint64_t graphs, uint64_t seed)
{
    for (uint64_t i = 0; i < graphs; i++) {
        struct graph *g = random_graph(seed + i);
        gpu_kernels_graph(s, g);
        graph_free(g);
    }
}

/* ---- kernels that show the emitters something new ---- */

/* What an instruction's text hangs on, as a number: itself, its operands' types, which of them are literals, the loop
 * around it. */
static uint64_t text_of(const struct kernel *k, val v, uint32_t width)
{
    const struct linst *i = &k->inst[v], *n = k->inst;
    bool prim = i->op >= L_PRIM, memory = i->op == L_LOAD || i->op == L_STORE || i->op == L_ATOMIC;
    bool lanes = i->op == L_LOOP || i->op == L_LANE_REDUCE || i->op == L_INTERLEAVE || i->op == L_STORE;
    val in[3] = {i->op == L_CONST || i->op == L_SLOT ? 0 : i->a, i->b, i->c};
    uint64_t h = i->op | (uint64_t)i->dtype << 8 | (uint64_t)(prim ? 0 : i->kind) << 16 |
        (uint64_t)(lanes && i->varying) << 24 |
                 (uint64_t)(memory ? k->buf[i->imm].role : i->op == L_LANE_REDUCE ||
                            i->op == L_INTERLEAVE ? i->imm : 0) << 26 |
                 (uint64_t)(lanes ? width : 0) << 34;
    for (int x = 0; x < 3; x++)
        h = (h ^ (in[x] ? 1 + n[in[x]].dtype + 16u * (n[in[x]].op == L_CONST) : 0)) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

enum { PLACES = 1 << 20 };     /* so many that two of the few thousand texts there are seldom share one */

struct place { uint32_t kernels, last; }; /* how many kernels have the text, and the last that was counted */

/* Counts kernel number n's texts, or takes them out again: by is 1 or -1.  The fewest kernels that had one of them. */
static uint32_t show(const struct kernel *k, uint32_t n, struct place *seen, int by)
{
    uint32_t width = 1, min = UINT32_MAX;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_LOOP && i->kind == LOOP_VECTOR)
            width = (uint32_t)k->inst[i->b].imm;
        if (i->op == L_END && k->inst[i->a].kind == LOOP_VECTOR)
            width = 1;
        struct place *at = &seen[text_of(k, v, width) % PLACES];
        if (at->last == n)
            continue;
        at->last = n;
        min = at->kernels < min ? at->kernels : min;
        at->kernels += (uint32_t)by;
    }
    return min;
}

static int by_length(const void *a, const void *b)
{
    const struct kernel *x = *(struct kernel *const *)a, *y = *(struct kernel *const *)b;
    return (x->ninst > y->ninst) - (x->ninst < y->ninst);
}

/* Takes out the kernels, from the longest on, whose texts all stand in others that are left. */
void gpu_kernels_essential(struct kernel_set *s)
{
    struct place *seen = calloc(PLACES, sizeof *seen);
    uint32_t n = 0, number = 0;
    if (!seen)
        exit(1);
    qsort(s->v, s->n, sizeof *s->v, by_length);
    for (uint32_t i = 0; i < s->n; i++)
        show(s->v[i], ++number, seen, 1);
    for (uint32_t i = s->n; i-- > 0;)
        if (show(s->v[i], ++number, seen, -1) == 1) {
            show(s->v[i], ++number, seen, 1);
        } else {
            kernel_free(s->v[i]);
            s->v[i] = NULL;
        }
    for (uint32_t i = 0; i < s->n; i++)
        if (s->v[i])
            s->v[n++] = s->v[i];
    s->n = n;
    free(seen);
}

void gpu_kernels_free(struct kernel_set *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        kernel_free(s->v[i]);
    free(s->v);
    free(s->hash);
    free(s->slot);
}

/* ---- running them ---- */

/* Arenas of devices lie one behind the other. */
static void *array_of(const struct program *p, const struct gpu_arrays *m, const struct loc *l, unsigned device)
{
    const struct values *of = l->kind == LOC_INPUT ? m->input : l->kind == LOC_STATE ? m->state : m->out;
    char *arena = m->arena;
    for (unsigned d = 0; d < device; d++)
        arena += p->arena_bytes[d];
    return l->kind == LOC_ARENA ? (void *)(arena + l->offset) : of->v[l->index];
}

static bool owns_memory(unsigned role) { return role == BUF_WORKSPACE || role == BUF_SCRATCH; }

bool gpu_kernels_run(const struct program *p, const struct gpu_arrays *m, struct err *e)
{
    for (uint32_t c = 0; c < p->ncmd; c++) {
        const struct command *cmd = &p->cmd[c];
        if (cmd->kind == CMD_COPY) {
            memmove(array_of(p, m, &cmd->arg[0], cmd->device), array_of(p, m, &cmd->arg[1], cmd->from),
                    (size_t)cmd->bytes);
            continue;
        }
        const struct kernel *k = p->kernel[cmd->kernel];
        void *buf[MAX_MEMBER_ARGUMENTS + 64];
        for (uint32_t b = 0; b < k->nbuf; b++)
            buf[b] = k->buf[b].role == BUF_IN || k->buf[b].role == BUF_OUT
                   ? array_of(p, m, &cmd->arg[b], cmd->device)
                   : owns_memory(k->buf[b].role) ? calloc((size_t)k->buf[b].count, dtype_size(k->buf[b].dtype))
                   : NULL;
        bool ok = kernel_round_trip(k, e) && kernel_interp(k, buf, m->slot, 0, k->extent, e);
        for (uint32_t b = 0; b < k->nbuf; b++)
            if (owns_memory(k->buf[b].role))
                free(buf[b]);
        if (!ok)
            return false;
    }
    return true;
}
