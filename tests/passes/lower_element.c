/* Each structural op's lower_ rule against its eval_ rule, bit for bit: a kernel that computes every element
 * of one node, in a serial loop or eight lanes at a time, run by the loop IR's interpreter. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static unsigned passed, failed;
static uint64_t random_state = 88172645463325252u;

static uint64_t rnd(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

#define SHAPE(...) (&(struct shape){.rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dim = {__VA_ARGS__}})
static const struct shape scalar;

/* ---- one element of an operand: a load from its buffer, where the lane's predicate and the rule's are true ---- */

struct frame {
    struct lower l; /* first: `at` gets a pointer to it */
    ref node;
    uint32_t buf[MAX_OPERANDS];
    val pred;
};

/* Where both are true; 0 is always. */
static val both(struct kernel *k, val a, val b)
{
    return a && b ? k_prim(k, P_AND, a, b, 0) : a ? a : b;
}

static val load_element(struct lower *l, ref r, const val *coord)
{
    struct frame *f = (struct frame *)l;
    const struct node *n = node_at(l->g, f->node);
    const struct shape *s = node_shape(l->g, r), stride = coord_strides(s);
    val index = k_int(l->k, 0);
    for (uint32_t i = 0; i < s->rank; i++)
        index = ix_add(l->k, index, ix_scale(l->k, coord[i], stride.dim[i]));
    for (unsigned i = 0; i < n->nin; i++)
        if (n->in[i] == r)
            return k_load(l->k, f->buf[i], index, both(l->k, f->pred, l->where));
    return 0;
}

/* for each element i: out[i] = lower(i), where lanes is 1 for a serial loop */
static struct kernel *element_kernel(const struct graph *g, ref r, int64_t lanes)
{
    const struct node *n = node_at(g, r);
    const struct shape *s = node_shape(g, r), stride = coord_strides(s);
    int64_t count = shape_count(s);
    struct kernel *k = kernel_new("element");
    if (!k)
        return NULL;
    struct frame f = {.l = {.k = k, .g = g, .at = load_element}, .node = r};
    for (unsigned i = 0; i < n->nin; i++)
        f.buf[i] = k_buf(k, BUF_IN, node_at(g, n->in[i])->dtype, node_numel(g, n->in[i]), i);
    uint32_t out = k_buf(k, BUF_OUT, n->dtype, count, MAX_OPERANDS);
    val zero = k_int(k, 0), end = k_int(k, count), width = k_int(k, lanes);
    val loop = k_loop(k, LOOP_SERIAL, zero, end, lanes), lane = 0, index = loop;
    if (lanes > 1) {
        lane = k_loop(k, LOOP_VECTOR, zero, width, 1);
        index = ix_add(k, loop, lane);
        f.pred = k_prim(k, P_LT, index, end, 0);
    }
    val coord[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < s->rank; i++)
        coord[i] = ix_mod(k, ix_div(k, index, stride.dim[i] ? stride.dim[i] : 1), s->dim[i] ? s->dim[i] : 1);
    k_store(k, out, index, opinfo[n->op].lower(&f.l, r, coord), f.pred);
    if (lane)
        k_end(k, lane);
    k_end(k, loop);
    return k;
}

static void fill_random(void *p, unsigned dtype, int64_t n)
{
    size_t size = dtype_size(dtype);
    for (int64_t i = 0; i < n; i++) {
        double v = (double)(int64_t)(rnd() % 2001) / 100 - 10;
        uint64_t bits = dtype_is_float(dtype) ? dtype_bits(dtype, v) : dtype == KL_BOOL ? rnd() & 1 : rnd();
        memcpy((char *)p + (size_t)i * size, &bits, size);
    }
}

static void *array(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p)
        printf("out of memory\n"), exit(1);
    return p;
}

/* NaNs compare equal whatever their payload. */
static bool same_values(unsigned dtype, const void *a, const void *b, int64_t n)
{
    size_t size = dtype_size(dtype);
    for (int64_t i = 0; i < n; i++) {
        const char *x = (const char *)a + (size_t)i * size, *y = (const char *)b + (size_t)i * size;
        uint64_t p = 0, q = 0;
        memcpy(&p, x, size);
        memcpy(&q, y, size);
        bool nans = dtype_is_float(dtype) && isnan(dtype_value(dtype, p)) && isnan(dtype_value(dtype, q));
        if (p != q && !nans)
            return false;
    }
    return true;
}

static void compare_at(int line, const struct graph *g, ref r)
{
    if (g->err.code != KL_OK) {
        failed++, printf("lower_element.c:%d: %s\n", line, g->err.msg);
        return;
    }
    const struct node *n = node_at(g, r);
    void *buf[MAX_OPERANDS + 1] = {0};
    for (unsigned i = 0; i < n->nin; i++) {
        buf[i] = array(node_bytes(g, n->in[i]));
        fill_random(buf[i], node_at(g, n->in[i])->dtype, node_numel(g, n->in[i]));
    }
    void *want = array(node_bytes(g, r));
    bool ok = interp_node(g, n, want, (const void *const *)buf);
    for (int64_t lanes = 1; lanes <= 8; lanes += 7) {
        struct err e = {0};
        struct kernel *k = element_kernel(g, r, lanes);
        buf[n->nin] = array(node_bytes(g, r));
        bool same = ok && k && k->err.code == KL_OK && kernel_verify(k, &e) && kernel_interp(k, buf, NULL, 0, 1, &e) &&
                    same_values(n->dtype, want, buf[n->nin], node_numel(g, r));
        if (same)
            passed++;
        else
            failed++, printf("lower_element.c:%d: %s with %d lanes differs %s %s\n", line, opinfo[n->op].name,
                             (int)lanes,
                             e.msg, k ? k->err.msg : "out of memory");
        kernel_free(k);
        free(buf[n->nin]);
    }
    for (unsigned i = 0; i < n->nin; i++)
        free(buf[i]);
    free(want);
}
#define COMPARE(node) (compare_at(__LINE__, g, node), graph_reset(g))

static ref reduce(struct graph *g, enum op op, ref x, uint32_t axes, uint64_t chunk)
{
    ref y = n_reduce(g, op, x, axes);
    g->node[y].attr.reduce.lanes = 1;
    g->node[y].attr.reduce.chunk = chunk;
    return y;
}

static ref dot(struct graph *g, ref a, ref b, union attr dims, uint32_t kblock)
{
    ref y = n_dot(g, a, b, &dims);
    g->node[y].attr.dot.lanes = 1;
    g->node[y].attr.dot.kblock = kblock;
    return y;
}

static void compare_views(struct graph *g)
{
#define X(dtype, s) n_input(g, dtype, s, "x")
    COMPARE(n_reshape(g, X(KL_F32, SHAPE(2, 3, 4)), SHAPE(4, 6)));
    COMPARE(n_reshape(g, X(KL_I8, SHAPE(5, 7)), SHAPE(7, 1, 5)));
    COMPARE(n_reshape(g, X(KL_F64, SHAPE(3, 1, 3, 1)), SHAPE(9)));
    COMPARE(n_reshape(g, X(KL_F32, SHAPE(1, 1)), &scalar));
    COMPARE(n_reshape(g, X(KL_F32, SHAPE(0, 3)), SHAPE(7, 0)));
    COMPARE(n_permute(g, X(KL_F32, SHAPE(2, 3, 5)), (uint8_t[]){2, 0, 1}));
    COMPARE(n_permute(g, X(KL_BOOL, SHAPE(4, 3)), (uint8_t[]){1, 0}));
    COMPARE(n_expand(g, X(KL_F32, SHAPE(1, 3, 1)), SHAPE(4, 3, 5)));
    COMPARE(n_expand(g, X(KL_U16, SHAPE(1)), SHAPE(17)));
    COMPARE(n_expand(g, X(KL_F32, SHAPE(1, 1)), SHAPE(1, 1)));
    COMPARE(n_slice(g, X(KL_F32, SHAPE(3, 10)), 1, 2, 3, 3));
    COMPARE(n_slice(g, X(KL_I8, SHAPE(7, 5)), 0, 6, 1, 1));
    COMPARE(n_slice(g, X(KL_F64, SHAPE(4, 3)), 0, 4, 0, 1));
    COMPARE(n_window(g, X(KL_F32, SHAPE(3, 10)), 1, 3, 2, 2));
    COMPARE(n_window(g, X(KL_I8, SHAPE(7, 5)), 0, 7, 3, 1));
    COMPARE(n_window(g, X(KL_F64, SHAPE(9, 0)), 0, 2, 1, 4));
    COMPARE(n_window(g, X(KL_BOOL, SHAPE(6, 2)), 0, 1, INT64_MAX, INT64_MAX));
    COMPARE(n_flip(g, X(KL_F32, SHAPE(3, 4, 5)), 5));
    COMPARE(n_flip(g, X(KL_U16, SHAPE(13)), 1));
    COMPARE(n_flip(g, X(KL_F32, SHAPE(2, 0)), 3));
    COMPARE(n_cumulative(g, OP_cumsum, X(KL_F32, SHAPE(3, 7, 2)), 1));
    COMPARE(n_cumulative(g, OP_cumprod, X(KL_I8, SHAPE(9)), 0));
    COMPARE(n_cumulative(g, OP_cummax, X(KL_BF16, SHAPE(5, 1, 3)), 0));
    COMPARE(n_cumulative(g, OP_cummin, X(KL_U16, SHAPE(2, 1)), 1));
    COMPARE(n_cumulative(g, OP_cumsum, X(KL_F16, SHAPE(0, 4)), 1));
    COMPARE(n_recurrence(g, X(KL_F64, SHAPE(4, 6)), X(KL_F64, SHAPE(4, 6)), 1));
    COMPARE(n_recurrence(g, X(KL_I32, SHAPE(4, 6)), X(KL_I32, SHAPE(4, 6)), 0));
}

static void compare_selects(struct graph *g)
{
    for (int64_t low = 0; low < 3; low++)
        for (int64_t high = 0; high < 3; high++)
            for (int64_t interior = 0; interior < 3; interior++)
                for (int64_t len = 0; len < 4; len++) {
                    COMPARE(n_pad(g, X(KL_F32, SHAPE(len, 3)), X(KL_F32, &scalar), 0, low, high, interior));
                    COMPARE(n_pad(g, X(KL_U8, SHAPE(2, len)), X(KL_U8, &scalar), 1, low, high, interior));
                }
    for (int64_t len = 0; len < 3; len++)
        for (uint32_t axis = 0; axis < 2; axis++) {
            const struct shape *s = axis ? SHAPE(3, len) : SHAPE(len, 5), *t = axis ? SHAPE(3, 4) : SHAPE(4, 5);
            COMPARE(n_concat(g, (ref[]){X(KL_F32, s), X(KL_F32, t)}, 2, axis));
            COMPARE(n_concat(g, (ref[]){X(KL_I16, t), X(KL_I16, s), X(KL_I16, s)}, 3, axis));
            COMPARE(n_concat(g, (ref[]){X(KL_BOOL, s), X(KL_BOOL, s), X(KL_BOOL, t), X(KL_BOOL, s)}, 4, axis));
        }
    static const unsigned index[] = {KL_U8, KL_I8, KL_U16, KL_I32, KL_U32, KL_I64, KL_U64};
    for (unsigned i = 0; i < sizeof index / sizeof *index; i++) {
        COMPARE(n_gather(g, X(KL_F32, SHAPE(100, 3)), X(index[i], SHAPE(9)), 0));
        COMPARE(n_gather(g, X(KL_F64, SHAPE(2, 1)), X(index[i], SHAPE(40)), 1));
        COMPARE(n_gather(g, X(KL_F32, SHAPE(0, 3)), X(index[i], SHAPE(0)), 0));
    }
    for (unsigned i = 0; i < sizeof index / sizeof *index; i++)
        for (int64_t count = 0; count <= 4; count++) {
            COMPARE(n_dynamic_slice(g, X(KL_F32, SHAPE(4, 3)), X(index[i], &scalar), 0, count));
            COMPARE(n_dynamic_slice(g, X(KL_BF16, SHAPE(2, 4)), X(index[i], &scalar), 1, count));
            COMPARE(n_dynamic_update(g, X(KL_F32, SHAPE(4, 3)), X(KL_F32, SHAPE(count, 3)), X(index[i], &scalar), 0));
            COMPARE(n_dynamic_update(g, X(KL_BOOL, SHAPE(2, 4)), X(KL_BOOL, SHAPE(2, count)), X(index[i], &scalar), 1));
        }
    static const unsigned types[] = {KL_F32, KL_BF16, KL_F16, KL_I64, KL_U8, KL_F64};
    for (unsigned kind = SCATTER_ADD; kind <= SCATTER_SET; kind++)
        for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
            unsigned t = types[i], it = index[i];
            enum scatter_kind how = (enum scatter_kind)kind;
            COMPARE(n_scatter(g, X(t, SHAPE(4, 3)), X(it, SHAPE(9)), X(t, SHAPE(9, 3)), 0, how));
            COMPARE(n_scatter(g, X(t, SHAPE(2, 5)), X(it, SHAPE(3)), X(t, SHAPE(2, 3)), 1, how));
            COMPARE(n_scatter(g, X(t, SHAPE(1, 5)), X(it, SHAPE(0)), X(t, SHAPE(1, 0)), 1, how));
        }
    COMPARE(n_scatter(g, X(KL_BOOL, SHAPE(7)), X(KL_I8, SHAPE(5)), X(KL_BOOL, SHAPE(5)), 0, SCATTER_SET));
    COMPARE(n_bitcast(g, X(KL_F32, SHAPE(3, 7)), KL_I32));
    COMPARE(n_bitcast(g, X(KL_U64, SHAPE(19)), KL_F64));
    COMPARE(n_bitcast(g, X(KL_BOOL, SHAPE(19)), KL_BOOL));
}

static void compare_leaves(struct graph *g)
{
    COMPARE(n_const(g, KL_F32, dtype_bits(KL_F32, -2.5)));
    COMPARE(n_const(g, KL_BOOL, 1));
    COMPARE(n_iota(g, KL_F32, SHAPE(3, 5), 0));
    COMPARE(n_iota(g, KL_U8, SHAPE(2, 300), 1));
    COMPARE(n_random(g, KL_U32, SHAPE(3, 7), X(KL_U64, &scalar)));
    COMPARE(n_random(g, KL_U64, &scalar, X(KL_U64, &scalar)));
    COMPARE(n_cast(g, X(KL_F32, SHAPE(3, 7)), KL_I8));
    COMPARE(n_cast(g, X(KL_I64, SHAPE(19)), KL_F32));
    COMPARE(n_cast(g, X(KL_I64, SHAPE(19)), KL_BF16));
    COMPARE(n_cast(g, X(KL_F64, SHAPE(19)), KL_F16));
    COMPARE(n_cast(g, X(KL_F32, SHAPE(5)), KL_F32));
    COMPARE(n_where(g, X(KL_BOOL, SHAPE(5)), X(KL_F32, SHAPE(5)), X(KL_F32, SHAPE(5))));
    COMPARE(n_exp(g, X(KL_F64, SHAPE(5, 5))));
}

static void compare_reduces(struct graph *g)
{
    static const uint64_t chunks[] = {1, 4, 7, 1000};
    for (unsigned c = 0; c < sizeof chunks / sizeof *chunks; c++)
        for (unsigned max = 0; max < 2; max++) {
            enum op op = max ? OP_reduce_max : OP_sum;
            for (uint32_t axes = 0; axes < 8; axes++)
                COMPARE(reduce(g, op, X(KL_F32, SHAPE(3, 4, 5)), axes, chunks[c]));
            COMPARE(reduce(g, op, X(KL_F64, SHAPE(23)), 1, chunks[c]));
            COMPARE(reduce(g, op, X(KL_F16, SHAPE(23)), 1, chunks[c]));
            COMPARE(reduce(g, op, X(KL_BF16, SHAPE(7, 5)), 2, chunks[c]));
            COMPARE(reduce(g, op, X(KL_BF16, SHAPE(4, 0)), 2, chunks[c]));
            COMPARE(reduce(g, op, X(KL_I8, SHAPE(9, 4)), 1, chunks[c]));
            COMPARE(reduce(g, op, X(KL_F32, SHAPE(4, 0)), 2, chunks[c]));
        }
}

static void compare_dots(struct graph *g)
{
    const union attr matrix = {.dot = {.con_a = 1, .con_b = 0, .ncon = 1}};
    const union attr outer = {.dot = {.ncon = 0}};
    union attr batched = {.dot = {.nbatch = 1, .ncon = 2, .batch_a = 1, .batch_b = 2}};
    batched.dot.con_a = axis_put(axis_put(0, 0, 3), 1, 0);
    batched.dot.con_b = axis_put(axis_put(0, 0, 1), 1, 3);
    static const uint32_t kblocks[] = {1, 3, 8, 512};
    for (unsigned i = 0; i < sizeof kblocks / sizeof *kblocks; i++) {
        COMPARE(dot(g, X(KL_F32, SHAPE(3, 17)), X(KL_F32, SHAPE(17, 5)), matrix, kblocks[i]));
        COMPARE(dot(g, X(KL_F64, SHAPE(2, 9)), X(KL_F64, SHAPE(9, 3)), matrix, kblocks[i]));
        COMPARE(dot(g, X(KL_F16, SHAPE(3, 17)), X(KL_F16, SHAPE(17, 5)), matrix, kblocks[i]));
        COMPARE(dot(g, X(KL_BF16, SHAPE(2, 9)), X(KL_BF16, SHAPE(9, 3)), matrix, kblocks[i]));
        COMPARE(dot(g, X(KL_U16, SHAPE(2, 9)), X(KL_U16, SHAPE(9, 3)), matrix, kblocks[i]));
        COMPARE(dot(g, X(KL_F32, SHAPE(2, 0)), X(KL_F32, SHAPE(0, 3)), matrix, kblocks[i]));
        COMPARE(dot(g, X(KL_F32, SHAPE(3)), X(KL_F32, SHAPE(4)), outer, kblocks[i]));
        COMPARE(dot(g, X(KL_F32, SHAPE(4, 2, 3, 5)), X(KL_F32, SHAPE(2, 5, 2, 4)), batched, kblocks[i]));
    }
}

int main(void)
{
    struct graph *g = graph_new("lower");
    if (!g)
        return 1;
    compare_views(g);
    compare_selects(g);
    compare_leaves(g);
    compare_reduces(g);
    compare_dots(g);
    graph_free(g);
    printf("%u passed, %u failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
