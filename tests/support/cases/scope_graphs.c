/* Small graphs of elementwise kernels, of reductions and of those that select, scan and sort: see scope_graphs.h. */
#include "scope_graphs.h"

static const int64_t few[] = {1, 2, 3, 4, 5, 7, 8, 9};
static const int64_t more[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33};
/* those around the 64 lanes of a reduction, too */
static const int64_t long_rows[] = {1, 2, 3, 5, 8, 9, 16, 17, 31, 33, 63, 64, 65, 70, 127, 129};
static const unsigned dtypes[] = {KL_F32, KL_BF16, KL_I32, KL_F64};

uint64_t digit(struct digits *d, uint64_t n)
{
    uint64_t x = d->rest % n;
    d->rest /= n;
    d->count *= n;
    return x;
}

int64_t digit_of(struct digits *d, const int64_t *list, unsigned n) { return list[digit(d, n)]; }

static unsigned dtype_of(struct digits *d) { return dtypes[digit(d, sizeof dtypes / sizeof *dtypes)]; }

static struct shape shape_of(struct digits *d)
{
    int64_t a = DIGIT_OF(d, few), b = DIGIT_OF(d, few), c = DIGIT_OF(d, more);
    return shape_make(3, (int64_t[]){a, b, c});
}

static ref input(struct graph *g, unsigned dtype, const struct shape *s) { return n_input(g, dtype, s, "x"); }

/* ---- operands ---- */

static struct shape with(const struct shape *s, uint32_t axis, int64_t length)
{
    struct shape r = *s;
    r.dim[axis] = length;
    return r;
}

static ref reversed_axes(struct graph *g, unsigned dtype, const struct shape *s)
{
    struct shape from = {.rank = s->rank};
    uint8_t perm[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < s->rank; i++) {
        from.dim[i] = s->dim[s->rank - 1 - i];
        perm[i] = (uint8_t)(s->rank - 1 - i);
    }
    return n_permute(g, input(g, dtype, &from), perm);
}

/* Windows of two elements that overlap, joined to one axis; of one element if the length is odd. */
static ref joined_windows(struct graph *g, unsigned dtype, const struct shape *s, uint32_t axis)
{
    if (s->rank == KL_MAX_RANK)
        return input(g, dtype, s);
    int64_t size = s->dim[axis] % 2 ? 1 : 2, count = s->dim[axis] / size;
    struct shape from = with(s, axis, count + size - 1);
    uint8_t perm[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i <= s->rank; i++)
        perm[i] = (uint8_t)(i < axis ? i : i == axis ? s->rank : i - 1);
    return n_reshape(g, n_permute(g, n_window(g, input(g, dtype, &from), axis, size, 1, 1), perm), s);
}

static ref padded(struct graph *g, unsigned dtype, const struct shape *s, uint32_t axis)
{
    int64_t n = s->dim[axis], high = n > 2 ? 1 : 0, low = n > 1 ? 1 : 0;
    struct shape from = with(s, axis, n - low - high);
    return n_pad(g, input(g, dtype, &from), n_const(g, dtype, dtype_bits(dtype, 2)), axis, low, high, 0);
}

static ref spread(struct graph *g, unsigned dtype, const struct shape *s, uint32_t axis)
{
    int64_t n = s->dim[axis];
    struct shape from = with(s, axis, (n + 1) / 2);
    return n_pad(g, input(g, dtype, &from), n_const(g, dtype, 0), axis, 0, n % 2 ? 0 : 1, 1);
}

/* The transposed matrix of all elements, whose rows are not those of the shape. */
static ref turned(struct graph *g, unsigned dtype, const struct shape *s)
{
    int64_t rows = s->dim[s->rank - 1], cols = shape_count(s) / rows;
    struct shape from = shape_make(2, (int64_t[]){rows, cols});
    return n_reshape(g, n_permute(g, input(g, dtype, &from), (uint8_t[KL_MAX_RANK]){1, 0}), s);
}

static ref joined(struct graph *g, unsigned dtype, const struct shape *s, uint32_t axis)
{
    int64_t n = s->dim[axis];
    struct shape a = with(s, axis, n - n / 2), b = with(s, axis, n / 2);
    if (!b.dim[axis])
        return input(g, dtype, s);
    return n_concat(g, (ref[]){input(g, dtype, &a), input(g, dtype, &b)}, 2, axis);
}

static ref gathered(struct graph *g, unsigned dtype, const struct shape *s, uint32_t axis)
{
    struct shape from = with(s, axis, 5), index = shape_make(1, (int64_t[]){s->dim[axis]});
    return n_gather(g, input(g, dtype, &from), n_input(g, KL_I32, &index, "index"), axis);
}

static ref sliced(struct graph *g, unsigned dtype, const struct shape *s, uint32_t axis, int64_t start, int64_t step)
{
    struct shape from = with(s, axis, start + s->dim[axis] * step + 1);
    return n_slice(g, input(g, dtype, &from), axis, start, s->dim[axis], step);
}

ref scope_operand(struct graph *g, struct digits *d, unsigned dtype, const struct shape *s)
{
    uint64_t kind = digit(d, 16);
    uint32_t axis = (uint32_t)digit(d, 3) % s->rank;
    axis = s->rank - 1 - axis;
    struct shape flat = shape_make(1, (int64_t[]){shape_count(s)}), one = with(s, axis, 1);
    switch (kind) {
    case 1: return reversed_axes(g, dtype, s);
    case 2: return sliced(g, dtype, s, axis, 2, 1);
    case 3: return sliced(g, dtype, s, axis, 1, 2);
    case 4: return joined_windows(g, dtype, s, axis);
    case 5: return n_expand(g, input(g, dtype, &one), s);
    case 6: return n_flip(g, input(g, dtype, s), UINT32_C(1) << axis);
    case 7: return padded(g, dtype, s, axis);
    case 8: return spread(g, dtype, s, axis);
    case 9: return n_reshape(g, input(g, dtype, &flat), s);
    case 10: return turned(g, dtype, s);
    case 11: return joined(g, dtype, s, axis);
    case 12: return n_mul(g, input(g, dtype, s), n_broadcast(g, input(g, dtype, &one), s));
    case 13: return gathered(g, dtype, s, axis);
    case 14: return n_cast(g, input(g, KL_I8, s), dtype);
    case 15: return n_add(g, reversed_axes(g, dtype, s), input(g, dtype, s));
    default: return input(g, dtype, s);
    }
}

/* ---- elementwise ---- */

struct graph *scope_map(struct digits *d)
{
    struct graph *g = graph_new("map");
    struct shape s = shape_of(d);
    unsigned dtype = dtype_of(d);
    uint64_t form = digit(d, 6);
    ref x = scope_operand(g, d, dtype, &s), y = scope_operand(g, d, dtype, &s), z = n_add(g, x, y);
    uint8_t perm[KL_MAX_RANK] = {2, 0, 1};
    switch (form) {
    case 0: z = n_add(g, n_mul(g, z, x), y); break;
    case 1: z = n_where(g, n_lt(g, x, y), z, x); break;
    case 2: graph_output(g, OUT_RETURN, n_lt(g, x, y), 0); break;
    case 3: graph_output(g, OUT_RETURN, n_permute(g, z, perm), 0); break;
    case 4: graph_output(g, OUT_RETURN, n_cast(g, z, KL_I8), 0); break;
    default: graph_output(g, OUT_RETURN, n_slice(g, z, 2, 0, (s.dim[2] + 1) / 2, 1), 0);
    }
    graph_output(g, OUT_RETURN, z, 0);
    return g;
}

/* Views that are stored, states and updates of windows of them. */
struct graph *scope_move(struct digits *d)
{
    struct graph *g = graph_new("move");
    struct shape s = shape_of(d);
    unsigned dtype = dtype_of(d);
    uint64_t form = digit(d, 4);
    uint32_t axis = (uint32_t)digit(d, 3);
    ref x = scope_operand(g, d, dtype, &s), start = n_slot(g, KL_I64, "start");
    struct shape part = with(&s, axis, (s.dim[axis] + 1) / 2);
    ref state = n_state(g, dtype, &s, "w");
    switch (form) {
    case 0: graph_output(g, OUT_RETURN, n_dynamic_slice(g, x, start, axis, part.dim[axis]), 0); break;
    case 1:
        graph_output(g, OUT_RETURN, n_dynamic_update(g, x, n_input(g, dtype, &part, "u"), start, axis), 0);
        break;
    case 2:
        graph_output(g, OUT_ASSIGN, n_dynamic_update(g, state, n_slice(g, x, axis, 0, part.dim[axis], 1), start, axis),
                     0);
        break;
    default: graph_output(g, OUT_ASSIGN, n_add(g, state, x), 0);
    }
    graph_output(g, OUT_RETURN, n_flip(g, x, UINT32_C(1) << axis), 0);
    return g;
}

/* ---- reductions ---- */

static ref ordered(struct graph *g, ref r, uint64_t order)
{
    static const struct { uint32_t lanes; uint64_t chunk; } orders[] = {{0, 0}, {64, 5}, {64, 70}, {1, 3}, {64, 64}};
    g->node[r].attr.reduce.lanes = orders[order].lanes;
    g->node[r].attr.reduce.chunk = orders[order].chunk;
    return r;
}

struct graph *scope_reduce(struct digits *d)
{
    static const enum op ops[] = {OP_sum, OP_reduce_max, OP_reduce_prod, OP_reduce_min};
    struct graph *g = graph_new("reduce");
    int64_t a = DIGIT_OF(d, few), b = DIGIT_OF(d, more), c = DIGIT_OF(d, long_rows);
    uint64_t turn = digit(d, 3);
    struct shape s = shape_make(3, turn == 0 ? (int64_t[]){a, b, c} : turn == 1 ? (int64_t[]){c, a, b}
                                                                                 : (int64_t[]){b, c, a});
    unsigned dtype = dtype_of(d);
    enum op op = ops[digit(d, 4)];
    uint32_t axes = 1 + (uint32_t)digit(d, 7);
    uint64_t form = digit(d, 4), order = digit(d, 5);
    ref x = scope_operand(g, d, dtype, &s);
    if (op == OP_reduce_prod) /* no infinity, which times 0 is no number in one order and 0 in another */
        x = n_max(g, n_min(g, x, n_k(g, x, 1)), n_k(g, x, 0));
    ref y = ordered(g, n_reduce(g, op, form & 1 ? n_add(g, x, x) : x, axes), order);
    if (form & 2) {
        struct shape kept = *node_shape(g, y);
        graph_output(g, OUT_RETURN, n_mul(g, y, n_sub(g, y, input(g, dtype, &kept))), 0);
    }
    graph_output(g, OUT_RETURN, y, 0);
    return g;
}

/* A reduction of the rows of a matrix. */
static ref reduced(struct graph *g, uint64_t order, enum op op, ref x)
{
    return ordered(g, n_reduce(g, op, x, 2), order);
}

/* Several reductions over the same rows. */
struct graph *scope_rows(struct digits *d)
{
    struct graph *g = graph_new("rows");
    int64_t rows = DIGIT_OF(d, more), length = DIGIT_OF(d, long_rows);
    struct shape s = shape_make(2, (int64_t[]){rows, length});
    unsigned dtype = digit(d, 2) ? KL_F32 : KL_F16;
    uint64_t form = digit(d, 4), order = digit(d, 5);
    ref x = scope_operand(g, d, dtype, &s), max = reduced(g, order, OP_reduce_max, x), y;
    if (form == 0) {
        ref e = n_exp(g, n_sub(g, x, n_expand(g, max, &s)));
        y = n_div(g, e, n_expand(g, reduced(g, order, OP_sum, e), &s));
    } else if (form == 1) {
        ref off = n_sub(g, x, n_expand(g, reduced(g, order, OP_sum, x), &s));
        y = n_mul(g, off, n_expand(g, reduced(g, order, OP_sum, n_mul(g, off, off)), &s));
    } else if (form == 2) {
        ref sum = reduced(g, order, OP_sum, n_mul(g, x, n_expand(g, max, &s)));
        graph_output(g, OUT_RETURN, max, 0);
        y = n_sub(g, sum, max);
    } else {
        ref z = n_sub(g, x, n_expand(g, reduced(g, order, OP_reduce_min, x), &s));
        graph_output(g, OUT_RETURN, reduced(g, order, OP_sum, z), 0);
        y = n_add(g, z, n_expand(g, max, &s));
    }
    graph_output(g, OUT_RETURN, y, 0);
    return g;
}

/* ---- selection, scans, sorts ---- */

struct graph *scope_scatter(struct digits *d)
{
    struct graph *g = graph_new("scatter");
    struct shape s = shape_of(d);
    unsigned dtype = dtype_of(d);
    uint32_t axis = (uint32_t)digit(d, 3);
    int64_t count = DIGIT_OF(d, few);
    enum scatter_kind kind = (enum scatter_kind)digit(d, 4);
    struct shape update = with(&s, axis, count), list = shape_make(1, (int64_t[]){count});
    ref u = scope_operand(g, d, dtype, &update), to = digit(d, 2) ? input(g, dtype, &s) : NIL;
    ref at = n_input(g, digit(d, 2) ? KL_I64 : KL_I32, &list, "index");
    if (!to)
        to = n_expand(g, n_reshape(g, n_const(g, dtype, 0), &(struct shape){.rank = 3, .dim = {1, 1, 1}}), &s);
    graph_output(g, OUT_RETURN, n_scatter(g, to, at, u, axis, kind), 0);
    return g;
}

struct graph *scope_gather(struct digits *d)
{
    struct graph *g = graph_new("gather");
    struct shape s = shape_of(d), list = shape_make(1, (int64_t[]){DIGIT_OF(d, more)});
    unsigned dtype = dtype_of(d);
    uint32_t axis = (uint32_t)digit(d, 3);
    ref x = scope_operand(g, d, dtype, &s), y = n_gather(g, x, n_input(g, KL_I32, &list, "index"), axis);
    graph_output(g, OUT_RETURN, digit(d, 2) ? y : n_reduce(g, OP_sum, y, 4), 0);
    return g;
}

struct graph *scope_scan(struct digits *d)
{
    static const enum op ops[] = {OP_cumsum, OP_cumprod, OP_cummax, OP_cummin};
    struct graph *g = graph_new("scan");
    int64_t a = DIGIT_OF(d, few), b = DIGIT_OF(d, more), c = DIGIT_OF(d, long_rows);
    struct shape s = shape_make(3, (int64_t[]){a, b, c});
    unsigned dtype = dtype_of(d);
    uint32_t axis = (uint32_t)digit(d, 3);
    uint64_t op = digit(d, 5);
    ref x = scope_operand(g, d, dtype, &s);
    ref y = op < 4 ? n_cumulative(g, ops[op], x, axis) : n_recurrence(g, input(g, dtype, &s), x, axis);
    graph_output(g, OUT_RETURN, digit(d, 2) ? n_add(g, y, input(g, dtype, &s)) : y, 0);
    return g;
}

struct graph *scope_sort(struct digits *d)
{
    struct graph *g = graph_new("sort");
    int64_t a = DIGIT_OF(d, few), b = DIGIT_OF(d, more), c = DIGIT_OF(d, long_rows);
    struct shape s = shape_make(3, (int64_t[]){a, b, c});
    unsigned dtype = dtype_of(d);
    uint32_t axis = (uint32_t)digit(d, 3);
    bool descending = digit(d, 2);
    unsigned index = digit(d, 2) ? KL_I64 : KL_I32;
    graph_output(g, OUT_RETURN, n_argsort(g, scope_operand(g, d, dtype, &s), axis, descending, index), 0);
    return g;
}

/* ---- the list ---- */

const struct scope_family scope_families[] = {
    {"map", scope_map, 3, false}, {"move", scope_move, 1, false}, {"reduce", scope_reduce, 4, false},
    {"rows", scope_rows, 2, false}, {"dot", scope_dot, 4, false}, {"dot_runs", scope_dot_runs, 4, false},
    {"sweep", scope_sweep, 1, false},
    {"skinny", scope_skinny, 3, false}, {"skinny_gpu", scope_skinny, 1, true}, {"bytes", scope_bytes, 1, false},
    {"quantized", scope_quantized, 2, false}, {"block_dot", scope_block_dot, 2, false},
    {"windows", scope_windows, 4, false}, {"bytes_conv", scope_bytes_conv, 2, false},
    {"conv", scope_conv, 4, false}, {"attention", scope_attention, 3, false}, {"scatter", scope_scatter, 1, false},
    {"gather", scope_gather, 1, false}, {"scan", scope_scan, 1, false}, {"sort", scope_sort, 1, false},
    {"transpose", scope_transpose, 1, true}, {"levels", scope_levels, 1, true}, {"units", scope_units, 1, true},
    {"channels", scope_channels, 1, true}, {"attention_units", scope_attention_units, 1, true}};
const unsigned scope_family_count = sizeof scope_families / sizeof *scope_families;

uint64_t scope_count(const struct scope_family *f)
{
    struct digits d = {.count = 1};
    graph_free(f->make(&d));
    return d.count;
}

struct graph *scope_graph(const struct scope_family *f, uint64_t number)
{
    return f->make(&(struct digits){.rest = number, .count = 1});
}
