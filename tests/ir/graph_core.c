/* The graph core: shapes, interning, error texts, hash and verifier. */
#include "tests/support/graph_test.h"

/* ---- values: dtypes, shapes, memory ---- */

static void test_dtypes(void)
{
    CHECK(dtype_size(KL_BOOL) == 1 && dtype_size(KL_U16) == 2 && dtype_size(KL_F32) == 4 && dtype_size(KL_I64) == 8);
    CHECK(dtype_size(KL_F16) == 2 && dtype_size(KL_BF16) == 2 && dtype_kind(KL_F16) == 'F' &&
          dtype_kind(KL_BF16) == 'F');
    CHECK(dtype_kind(KL_BOOL) == 'B' && dtype_kind(KL_U8) == 'U' && dtype_kind(KL_I8) == 'I' &&
          dtype_kind(KL_F64) == 'F');
    for (unsigned dt = 0; dt < KL_DTYPE_COUNT; dt++) {
        CHECK(dtype_parse(dtype_name(dt), strlen(dtype_name(dt))) == (int)dt);
        CHECK(dtype_value(dt, dtype_bits(dt, 1)) == 1);
        CHECK(dtype_value(dt, dtype_bits(dt, 0)) == 0);
        CHECK(dtype_bits_i64(dt, 1) == dtype_bits(dt, 1));
    }
    CHECK(dtype_parse("f3", 2) == -1 && dtype_parse("f320", 4) == -1 && dtype_parse("", 0) == -1);
    CHECK(dtype_bits(KL_U8, 255.9) == 255 && dtype_bits(KL_U8, 1e9) == 255 && dtype_bits(KL_U8, -3) == 0);
    CHECK(dtype_bits(KL_I8, -1.9) == 0xFF && dtype_bits(KL_I8, -1e9) == 0x80 && dtype_bits(KL_I8, 1e9) == 0x7F);
    CHECK(dtype_bits(KL_I64, 1e300) == INT64_MAX && dtype_bits(KL_U64, 1e300) == UINT64_MAX);
    CHECK(dtype_bits(KL_I64, -1e300) == (uint64_t)INT64_MIN && dtype_bits(KL_I32, NAN) == 0 &&
          dtype_bits(KL_BOOL, NAN) == 1);
    CHECK(dtype_bits(KL_F32, -0.0) == 0x80000000u && dtype_value(KL_F32, 0x3FC00000u) == 1.5);
    CHECK(dtype_bits_i64(KL_U8, -1) == 255 && dtype_bits_i64(KL_I16, 65537) == 1 && dtype_bits_i64(KL_BOOL, -7) == 1);
    CHECK(dtype_bits_i64(KL_F32, 16777217) == dtype_bits(KL_F32, 16777216));
    CHECK(dtype_value(KL_I8, 0x80) == -128 && dtype_value(KL_U8, 0x80) == 128);
}

static void test_shapes(void)
{
    int64_t n;
    char text[SHAPE_TEXT];
    CHECK(shape_numel(&scalar, &n) && n == 1);
    CHECK(shape_numel(SHAPE(2, 3, 4), &n) && n == 24);
    CHECK(shape_numel(SHAPE(2, 0, 4), &n) && n == 0);
    CHECK(!shape_numel(SHAPE(2, -1), &n));
    CHECK(!shape_numel(SHAPE(INT64_MAX, INT64_MAX), &n) && !shape_numel(SHAPE(0, INT64_MAX, INT64_MAX), &n));
    CHECK(shape_numel(SHAPE((INT64_C(1) << 59) - 1), &n) && !shape_numel(SHAPE(INT64_C(1) << 59), &n));
    CHECK(!shape_numel(&(struct shape){.rank = 9}, &n));
    CHECK(strcmp(shape_text(SHAPE(2, 3), text, sizeof text), "[2,3]") == 0);
    CHECK(strcmp(shape_text(&scalar, text, sizeof text), "[]") == 0);
    CHECK(strcmp(shape_text(SHAPE(123456), text, 4), "[12") == 0);
    CHECK(shape_equal(SHAPE(2, 3), SHAPE(2, 3)) && !shape_equal(SHAPE(2, 3), SHAPE(3, 2)));
    CHECK(!shape_equal(SHAPE(2), SHAPE(2, 1)) && shape_equal(&scalar, &scalar));
    struct shape t = coord_strides(SHAPE(2, 3, 4));
    CHECK(t.rank == 3 && t.dim[0] == 12 && t.dim[1] == 4 && t.dim[2] == 1);
}

static void test_interning(void)
{
    struct graph *g = new_graph();
    CHECK(graph_shape(g, &scalar) == 0);
    uint32_t a = graph_shape(g, SHAPE(2, 3));
    CHECK(a == graph_shape(g, SHAPE(2, 3)) && a != graph_shape(g, SHAPE(3, 2)) && a != graph_shape(g, SHAPE(2, 3, 1)));
    for (int64_t i = 0; i < 5000; i++)
        graph_shape(g, SHAPE(i, 7));
    uint32_t n = g->nshape;
    bool same = true;
    for (int64_t i = 0; i < 5000; i++)
        same &= g->shape[graph_shape(g, SHAPE(i, 7))].dim[0] == i;
    CHECK(same && g->nshape == n);
    kl_site s1 = {"a.c", 3, "f"}, s2 = {"a.c", 4, "f"}, s3 = {"a.c", 3, "g"}, nowhere = {0};
    char file[] = "a.c";
    kl_site s4 = {file, 3, "f"};
    CHECK(graph_site(g, NULL) == 0 && graph_site(g, &s1) == graph_site(g, &s4));
    CHECK(graph_site(g, &s1) != graph_site(g, &s2) && graph_site(g, &s1) != graph_site(g, &s3));
    CHECK(graph_site(g, &nowhere) != 0 && g->err.code == KL_OK);
    const char *owned = graph_string(g, "hello", 4);
    CHECK(owned && strcmp(owned, "hell") == 0 && graph_string(g, "hell", 4) == owned);
    CHECK(graph_owns(g, owned) && !graph_owns(g, "hell") && !graph_owns(g, NULL));
    CHECK(graph_shape(g, SHAPE(-1)) == 0 && g->err.code == KL_ERR_SHAPE);
    CHECK(strstr(g->err.msg, "[-1]") != NULL);
    graph_reset(g);
    CHECK(g->err.code == KL_OK && g->nnode == 1 && g->nshape == 1 && g->nsite == 1 && g->ntext == 0);
    CHECK(graph_shape(g, SHAPE(4, 7)) == 1);
    graph_free(g);
    graph_free(NULL);
}

/* ---- errors: what a bad call says, and that all calls behind it stay silent ---- */

static struct graph *bad;

/* The last call on `bad` failed with this code and exactly this text. */
static void refused_at(int line, ref r, kl_status code, const char *text)
{
    if (r != NIL || bad->err.code != code || strcmp(bad->err.msg, text) != 0)
        check_at(__FILE__, line, false, "expected another error"),
            printf("    want %d %s\n    got  %d %s\n", (int)code, text,
                                                                 (int)bad->err.code, bad->err.msg);
    else
        passed++;
    struct err first = bad->err;
    ref later = n_input(bad, KL_F32, &scalar, "later");
    CHECK(later == NIL && n_exp(bad, later) == NIL && n_k(bad, later, 1) == NIL &&
          n_broadcast(bad, later, &scalar) == NIL);
    CHECK(memcmp(&first, &bad->err, sizeof first) == 0);
    graph_reset(bad);
}
#define REFUSED(call, code, text) refused_at(__LINE__, call, code, text)

static ref in(unsigned dtype, const struct shape *s)
{
    return n_input(bad, dtype, s, "x");
}

static ref dot_of(const struct shape *a, const struct shape *b, unsigned nbatch, uint32_t ba, uint32_t bb,
                  unsigned ncon,
                  uint32_t ca, uint32_t cb)
{
    union attr d = {.dot = {.batch_a = ba, .batch_b = bb, .con_a = ca, .con_b = cb, .nbatch = (uint8_t)nbatch,
                            .ncon = (uint8_t)ncon}};
    return n_dot(bad, in(KL_F32, a), in(KL_F32, b), &d);
}

static void test_errors(void)
{
    bad = new_graph();
    const struct shape *s23 = SHAPE(2, 3);
    REFUSED(n_add(bad, in(KL_F32, s23), in(KL_F32, SHAPE(3, 2))), KL_ERR_SHAPE, "add: shapes [2,3] and [3,2] differ");
    REFUSED(n_add(bad, in(KL_F32, s23), in(KL_F64, s23)), KL_ERR_TYPE, "add: dtypes f32 and f64 differ");
    REFUSED(n_exp(bad, in(KL_I32, s23)), KL_ERR_TYPE, "exp: needs a floating dtype, got i32");
    REFUSED(n_neg(bad, in(KL_BOOL, s23)), KL_ERR_TYPE, "neg: needs a number dtype, got bool");
    REFUSED(n_not(bad, in(KL_F32, s23)), KL_ERR_TYPE, "not: needs an integer or bool dtype, got f32");
    REFUSED(n_where(bad, in(KL_F32, s23), in(KL_F32, s23), in(KL_F32, s23)), KL_ERR_TYPE,
            "where: the first operand must be bool, got f32");
    REFUSED(n_where(bad, in(KL_BOOL, s23), in(KL_F32, s23), in(KL_I8, s23)), KL_ERR_TYPE,
            "where: dtypes f32 and i8 differ");
    REFUSED(n_where(bad, in(KL_BOOL, &scalar), in(KL_F32, s23), in(KL_F32, s23)), KL_ERR_SHAPE,
            "where: shapes [] and [2,3] differ");
    REFUSED(n_reshape(bad, in(KL_F32, s23), SHAPE(5)), KL_ERR_SHAPE,
            "reshape: [2,3] and [5] differ in their number of elements");
    REFUSED(n_permute(bad, in(KL_F32, s23), (uint8_t[]){0, 2}), KL_ERR_SHAPE,
            "permute: axis 2 is out of range for rank 2");
    REFUSED(n_permute(bad, in(KL_F32, s23), (uint8_t[]){1, 1}), KL_ERR_SHAPE, "permute: axis 1 occurs twice");
    REFUSED(n_expand(bad, in(KL_F32, s23), SHAPE(4, 3)), KL_ERR_SHAPE,
            "expand: [2,3] does not fit [4,3]: only axes of length 1 can be expanded");
    REFUSED(n_expand(bad, in(KL_F32, s23), SHAPE(1, 2, 3)), KL_ERR_SHAPE, "expand: [2,3] and [1,2,3] differ in rank");
    REFUSED(n_expand(bad, in(KL_F32, SHAPE(1)), SHAPE(-2)), KL_ERR_SHAPE,
            "expand: result shape [-2] has a negative dimension");
    REFUSED(n_expand(bad, in(KL_F32, SHAPE(1, 1)), SHAPE(INT64_C(1) << 40, INT64_C(1) << 40)), KL_ERR_SHAPE,
            "expand: result shape [1099511627776,1099511627776] has too many elements");
    REFUSED(n_broadcast(bad, in(KL_F32, s23), SHAPE(3)), KL_ERR_SHAPE, "broadcast: shape [2,3] does not fit [3]");
    REFUSED(n_cast(bad, in(KL_F32, s23), 99), KL_ERR_TYPE, "cast: dtype 99 does not exist");
    REFUSED(n_reduce(bad, OP_sum, in(KL_BOOL, s23), 1), KL_ERR_TYPE, "sum: needs a number dtype, got bool");
    REFUSED(n_reduce(bad, OP_reduce_max, in(KL_F32, s23), 5), KL_ERR_SHAPE,
            "reduce_max: axis 2 is out of range for shape [2,3]");
    REFUSED(n_iota(bad, KL_F32, s23, 2), KL_ERR_SHAPE, "iota: axis 2 is out of range for shape [2,3]");
    REFUSED(n_iota(bad, KL_BOOL, s23, 0), KL_ERR_TYPE, "iota: needs a number dtype, got bool");
    REFUSED(n_const(bad, KL_U8, 256), KL_ERR_INTERNAL, "const: bits 0x100 do not fit u8");
    REFUSED(n_random(bad, KL_F32, s23, n_const(bad, KL_U64, 1)), KL_ERR_TYPE, "random: makes u32 or u64, not f32");
    REFUSED(n_random(bad, KL_U32, s23, n_const(bad, KL_U32, 1)), KL_ERR_TYPE, "random: the seed must be u64, got u32");
    REFUSED(n_random(bad, KL_U32, s23, in(KL_U64, s23)), KL_ERR_SHAPE,
            "random: the seed must be a scalar, got shape [2,3]");
    REFUSED(n_grad(bad, in(KL_I32, &scalar), in(KL_F32, s23)), KL_ERR_TYPE,
            "grad: the loss needs a floating dtype, got i32");
    REFUSED(dot_of(s23, SHAPE(4, 5), 0, 0, 0, 1, 1, 0), KL_ERR_SHAPE,
            "dot: contracted axes 1 of [2,3] and 0 of [4,5] differ in length");
    REFUSED(dot_of(s23, s23, 0, 0, 0, 1, 2, 0), KL_ERR_SHAPE,
            "dot: axis 2 is out of range for operand a of shape [2,3]");
    REFUSED(dot_of(s23, s23, 1, 0, 0, 1, 1, 0), KL_ERR_SHAPE, "dot: axis 0 of operand b occurs twice");
    REFUSED(dot_of(s23, SHAPE(3), 1, 0, 0, 1, 1, 0), KL_ERR_SHAPE,
            "dot: 1 batch and 1 contracted axes are too many for shapes [2,3] and [3]");
    REFUSED(dot_of(SHAPE(1, 1, 1, 1, 1), SHAPE(1, 1, 1, 1), 0, 0, 0, 0, 0, 0), KL_ERR_SHAPE,
            "dot: the result of [1,1,1,1,1] and [1,1,1,1] has rank 9, above the maximum of 8");
    REFUSED(n_input(bad, KL_F32, &(struct shape){.rank = 9}, "x"), KL_ERR_SHAPE, "rank 9 is above the maximum of 8");
    REFUSED(n_exp(bad, 1), KL_ERR_INTERNAL, "exp: operand 0 is no value of graph @test");
    REFUSED(n_exp(bad, NIL), KL_ERR_INTERNAL, "exp: operand 0 is no value of graph @test");
    n_state(bad, KL_F32, s23, "w");
    REFUSED(graph_output(bad, OUT_ASSIGN, in(KL_F32, SHAPE(3, 2)), 0), KL_ERR_SHAPE,
            "assign: value f32[3,2] does not fit state \"w\" of f32[2,3]");
    ref w = n_state(bad, KL_F32, s23, "w");
    CHECK(graph_output(bad, OUT_ASSIGN, w, 0));
    REFUSED(graph_output(bad, OUT_ASSIGN, w, 0), KL_ERR_INTERNAL, "assign: state \"w\" is assigned twice");
    struct err e = {0};
    CHECK(!err_set(&e, KL_ERR_IO, "%d", 1) && !err_set(&e, KL_ERR_TYPE, "%d", 2) && e.code == KL_ERR_IO &&
          e.msg[0] == '1');
    graph_free(bad);
}

/* ---- hash: sites, names and the numbering of shapes do not count, all else does ---- */

enum change { NONE, SITE, NAME, SHAPES, LEAF_NAME, OP, CONST, DIM, LEAF_DTYPE, DEVICE, MARK, OPERAND, AXES, ORDER,
              OUT_VALUE,
              OUT_KIND, EXTRA_LEAF, EXTRA_NODE, CHANGES };

static struct graph *varied(enum change c)
{
    struct graph *g = graph_new(c == NAME ? "other" : "same");
    if (!g)
        exit(1);
    if (c == SHAPES)
        graph_shape(g, SHAPE(9, 9));
    if (c == SITE)
        g->cur_site = graph_site(g, &(kl_site){"a.c", 7, "f"});
    if (c == DEVICE)
        g->cur_device = 1;
    int64_t d = c == DIM ? 5 : 4;
    ref x = n_input(g, c == LEAF_DTYPE ? KL_F64 : KL_F32, SHAPE(3, d), c == LEAF_NAME ? "y" : "x");
    ref w = n_state(g, KL_F32, SHAPE(3, 1), "w");
    if (c == LEAF_DTYPE)
        x = n_cast(g, x, KL_F32);
    ref y = n_mul(g, x, n_k(g, x, c == CONST ? 3 : 2));
    ref z = c == OP ? n_log(g, y) : n_exp(g, c == OPERAND ? x : y);
    ref s = n_reduce(g, OP_sum, z, c == AXES ? 3 : 2);
    if (c == AXES)
        s = n_expand(g, s, SHAPE(3, 1));
    if (c == ORDER) {
        g->node[s].attr.reduce.lanes = 64;
        g->node[s].attr.reduce.chunk = 128;
    }
    if (c == MARK)
        g->node[z].flags = MARK_STOP;
    if (c == EXTRA_LEAF)
        graph_leaf(g, &g->slot, KL_F32, &scalar, "lr");
    if (c == EXTRA_NODE)
        n_neg(g, z);
    graph_output(g, OUT_RETURN, c == OUT_VALUE ? y : z, 0);
    graph_output(g, c == OUT_KIND ? OUT_RETURN : OUT_ASSIGN, s, 0);
    CHECK(w != NIL && g->err.code == KL_OK);
    return g;
}

static bool hash_equal(const struct graph *a, const struct graph *b)
{
    struct hash128 x = graph_hash(a), y = graph_hash(b);
    bool equal = x.lo == y.lo && x.hi == y.hi;
    CHECK(equal == graph_same(a, b));
    return equal;
}

static void test_hash(void)
{
    struct graph *v[CHANGES];
    for (int i = 0; i < CHANGES; i++)
        v[i] = varied((enum change)i);
    for (int i = 0; i < CHANGES; i++)
        for (int j = 0; j < i; j++)
            CHECK(hash_equal(v[i], v[j]) == (i <= LEAF_NAME && j <= LEAF_NAME));
    for (int i = 0; i < CHANGES; i++) {
        struct err e = {0};
        struct graph *c = graph_clone(v[i]);
        CHECK(c && graph_verify(v[i], &e) && graph_verify(c, &e) && hash_equal(c, v[i]) && c->nsite == v[i]->nsite);
        graph_free(c);
        graph_free(v[i]);
    }
    struct hash128 a = bytes_hash("abc", 3), b = bytes_hash("abd", 3);
    CHECK(a.lo != b.lo && a.hi != b.hi);
    /* a clone keeps call sites whose strings the original owned */
    struct graph *g = new_graph();
    kl_site s = {graph_string(g, "file.c", 6), 12, graph_string(g, "main", 4)};
    g->cur_site = graph_site(g, &s);
    n_const(g, KL_F32, 0);
    struct graph *c = graph_clone(g);
    graph_free(g);
    CHECK(c && strcmp(c->site[c->node[1].site].file, "file.c") == 0 && c->site[c->node[1].site].line == 12);
    graph_free(c);
}

/* ---- verifier: a graph with any byte changed is refused or still runs without a fault ---- */

static struct graph *sample(void)
{
    struct graph *g = new_graph();
    ref x = n_input(g, KL_F32, SHAPE(2, 3), "x"), w = n_state(g, KL_F32, SHAPE(3, 2), "w"),
        lr = n_slot(g, KL_F32, "lr");
    union attr d = {.dot = {.con_a = 1, .con_b = 0, .ncon = 1}};
    ref y = n_dot(g, x, w, &d), t = n_permute(g, n_reshape(g, x, SHAPE(2, 3, 1)), (uint8_t[]){1, 0, 2});
    ref u = n_mul(g, n_reshape(g, t, SHAPE(3, 2)), n_broadcast(g, lr, SHAPE(3, 2)));
    ref s = n_reduce(g, OP_sum, n_add(g, u, w), 1), m = n_reduce(g, OP_reduce_max, y, 3);
    ref i = n_iota(g, KL_I32, SHAPE(3, 2), 1), r = n_random(g, KL_U32, SHAPE(2), n_const(g, KL_U64, 7));
    ref p = n_where(g, n_lt(g, i, n_k(g, i, 1)), w, n_cast(g, i, KL_F32));
    g->node[y].attr.dot.lanes = 1;
    g->node[y].attr.dot.kblock = 2;
    g->node[s].attr.reduce.lanes = 1;
    g->node[s].attr.reduce.chunk = 2;
    g->node[m].attr.reduce.lanes = 64;
    g->node[m].attr.reduce.chunk = 3;
    graph_output(g, OUT_ASSIGN, p, 0);
    graph_output(g, OUT_RETURN, s, 0);
    graph_output(g, OUT_RETURN, m, 0);
    graph_output(g, OUT_RETURN, r, 0);
    if (!CHECK(g->err.code == KL_OK))
        printf("    %s\n", g->err.msg);
    return g;
}

/* Small shapes only, so a changed graph that is still valid runs in the same buffers. */
static bool run_sample(const struct graph *g, struct err *e)
{
    static const double zeros[64];
    double out[4][64];
    const void *data[] = {zeros};
    uint64_t slots[] = {0};
    void *outs[] = {out[0], out[1], out[2], out[3]};
    return interp_run(g, &(struct bind){.input = data, .state = data, .slot = slots, .out = outs}, e);
}

static void test_verify(void)
{
    struct graph *g = sample();
    struct err e = {0};
    if (!CHECK(graph_verify(g, &e) && run_sample(g, &e)))
        printf("    %s\n", e.msg);
    struct graph *c = graph_clone(g);
    unsigned refused = 0, trials = 0;
    unsigned char *bytes = (unsigned char *)c->node;
    for (size_t i = 0; i < c->nnode * sizeof *c->node; i++)
        for (int how = 0; how < 6; how++) {
            static const unsigned char to[] = {0, 1, 2, 127, 255};
            unsigned char was = bytes[i];
            bytes[i] = how < 5 ? to[how] : (unsigned char)(was ^ 1);
            struct err why = {0};
            trials++;
            if (graph_verify(c, &why))
                run_sample(c, &why);
            else {
                refused++;
                if (why.code == KL_OK || !why.msg[0])
                    CHECK(!"a refusal without a reason");
            }
            bytes[i] = was;
        }
    CHECK(refused > trials / 4 && refused < trials);
    CHECK(graph_same(c, g) && graph_verify(c, &e));
    struct err why = {0};
    c->out[1].value = c->nnode;
    CHECK(!graph_verify(c, &why) && strstr(why.msg, "output 1"));
    c->out[1].value = g->out[1].value;
    c->out[0].state = 1;
    CHECK(!graph_verify(c, &(struct err){0}));
    c->out[0].state = 0;
    c->shape[1].dim[7] = 1;
    CHECK(!graph_verify(c, &(struct err){0}));
    c->shape[1] = c->shape[2];
    CHECK(!graph_verify(c, &(struct err){0}));
    c->shape[1] = g->shape[1];
    c->input.v[0].shape = c->nshape;
    CHECK(!graph_verify(c, &(struct err){0}));
    c->input.v[0].shape = g->input.v[0].shape;
    memset(c->input.v[0].name, 'x', sizeof c->input.v[0].name);
    CHECK(!graph_verify(c, &(struct err){0}));
    graph_free(c);
    graph_free(g);
}

int main(void)
{
    test_dtypes();
    test_shapes();
    test_interning();
    test_errors();
    test_hash();
    test_verify();
    printf("%u passed, %u failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
