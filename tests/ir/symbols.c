/* Symbols in dims: arithmetic and ranges against every value of the symbols, interning, hashes, what the verifier sees,
 * matching shapes, binding, and programs for two sizes. */
#include "tests/support/harness.h"

#define SHAPE(...) (&(struct shape){.rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dim = {__VA_ARGS__}})
#define CHECK(cond) check(cond, "%s:%d: %s", __FILE__, __LINE__, #cond)

enum { SYMBOLS = 3, LOW = 1, HIGH = 4 };

static struct graph *with_symbols(int64_t dim[SYMBOLS])
{
    static const char *const names[SYMBOLS] = {"n", "m", "k"};
    struct graph *g = graph_new("g");
    for (uint32_t i = 0; i < SYMBOLS; i++) {
        const struct affine a = {.n = 1, .term = {{.symbol = graph_symbol(g, names[i], LOW, HIGH), .by = 1}}};
        CHECK(affine_dim(g, &a, &dim[i]));
    }
    return g;
}

static int64_t value_of(const struct affine *a, const int64_t *v)
{
    int64_t sum = a->constant;
    for (uint32_t i = 0; i < a->n; i++)
        sum += a->term[i].by * v[a->term[i].symbol] * (a->term[i].times ? v[a->term[i].times - 1] : 1);
    return sum;
}

/* Is no term a product of two symbols? */
static bool linear(const struct affine *a)
{
    bool is = true;
    for (uint32_t i = 0; i < a->n; i++)
        is &= !a->term[i].times;
    return is;
}

static bool next_value(int64_t v[SYMBOLS])
{
    for (int i = 0; i < SYMBOLS; i++) {
        if (++v[i] <= HIGH)
            return true;
        v[i] = LOW;
    }
    return false;
}

/* ---- ranges ---- */

/* Narrowed bounds are within the former ones, have the values, and are all on one side of the limit. */
static void test_narrow(void)
{
    struct rng r = {7};
    for (int round = 0; round < 3000; round++) {
        struct symbols s = {.n = 3}, old;
        struct size_limit l = {.number = 1 + rng_below(&r, 4)};
        int64_t value[SYMBOLS], min = l.number, max = l.number, product = l.number;
        for (uint32_t i = 0; i < 3; i++) {
            s.v[i].low = rng_below(&r, 4);
            s.v[i].high = s.v[i].low + rng_below(&r, 40);
            value[i] = s.v[i].low + rng_below(&r, s.v[i].high - s.v[i].low + 1);
            l.power[i] = (uint8_t)rng_below(&r, 3);
        }
        l.limit = 1 + rng_below(&r, 2000);
        old = s;
        size_limit_narrow(&s, &l, value);
        bool inside = true;
        for (uint32_t i = 0; i < 3; i++) {
            inside &= old.v[i].low <= s.v[i].low && s.v[i].low <= value[i] && value[i] <= s.v[i].high &&
                      s.v[i].high <= old.v[i].high;
            for (uint8_t k = 0; k < l.power[i]; k++) {
                min *= s.v[i].low;
                max *= s.v[i].high;
                product *= value[i];
            }
        }
        if (!check(inside && (product < l.limit ? max < l.limit : min >= l.limit), "round %d: narrowed bounds",
                   round))
            break;
    }
}

/* ---- arithmetic ---- */

/* A random expression is a dim only if no value of the symbols makes it negative, and exactly then if it has no
 * products of symbols; sums, products, quotients and comparisons are those of the values. */
static void test_arithmetic(void)
{
    struct rng r = {42};
    int64_t dim[SYMBOLS], known[64];
    struct graph *g = with_symbols(dim);
    unsigned n = 0, accepted = 0, refused = 0;
    memcpy(known, dim, sizeof dim);
    for (n = SYMBOLS; n < 8; n++)
        known[n] = rng_below(&r, 5);
    for (int round = 0; round < 3000; round++) {
        int64_t a = known[rng_below(&r, n)], b = known[rng_below(&r, n)], c = rng_below(&r, 9) - 4;
        int64_t x = rng_below(&r, 7) - 3, y = rng_below(&r, 7) - 3, min = INT64_MAX, sum, quotient, product;
        int64_t low, high, by = 1 + rng_below(&r, 3);
        struct affine p, q, s;
        bool ok = dims_sum(g, 2, (struct scaled[]){{a, x}, {b, y}}, c, &sum);
        bool at_most = dim_at_most(g, a, b), less = true;
        bool divides = dim_divide(g, a, by, &quotient), multiplies = dim_multiply(g, a, b, &product), same = true;
        CHECK(dim_affine(g, a, &p) && dim_affine(g, b, &q));
        int64_t v[SYMBOLS] = {LOW, LOW, LOW};
        do {
            int64_t is = x * value_of(&p, v) + y * value_of(&q, v) + c;
            min = is < min ? is : min;
            less &= value_of(&p, v) <= value_of(&q, v);
            if (ok)
                same &= dim_affine(g, sum, &s) && value_of(&s, v) == is;
            if (divides)
                same &= dim_affine(g, quotient, &s) && value_of(&s, v) == value_of(&p, v) / by;
            if (multiplies)
                same &= dim_affine(g, product, &s) && value_of(&s, v) == value_of(&p, v) * value_of(&q, v);
        } while (next_value(v));
        bool exact = linear(&p) && linear(&q);
        bool right = (exact ? ok == (min >= 0) && at_most == less : ok <= (min >= 0) && at_most <= less) && same;
        right = right && (multiplies || (p.n && q.n)); /* else it may have too many terms */
        right = right && (!ok || (dim_range(g, sum, &low, &high) && (exact ? low == min : low <= min)));
        if (!check(right, "round %d: expressions and their values differ", round))
            break;
        ok ? accepted++ : refused++;
        if (ok && n < 48 && dim_range(g, sum, &low, &high) && high < 1000)
            known[n++] = sum;
        if (multiplies && n >= 48 && n < 64 && dim_range(g, product, &low, &high) && high < 1000)
            known[n++] = product;
    }
    CHECK(accepted > 500 && refused > 500);
    struct err e = {0};
    graph_shape(g, SHAPE(known[n - 1], 3));
    CHECK(check(graph_verify(g, &e), "%s", e.msg));
    graph_free(g);
}

static void test_sizes(void)
{
    int64_t d[SYMBOLS], n2, m1, x, nm;
    struct graph *g = with_symbols(d);
    CHECK(dims_sum(g, 1, &(struct scaled){d[0], 2}, 0, &n2) && dims_sum(g, 1, &(struct scaled){d[1], 1}, -1, &m1));
    CHECK(dims_sum(g, 2, (struct scaled[]){{d[0], 6}, {d[1], 4}}, 2, &nm));
    CHECK(dims_sum(g, 2, (struct scaled[]){{d[0], 3}, {d[1], 2}}, 1, &x));
    CHECK(shape_same_size(g, SHAPE(n2, 3), SHAPE(d[0], 6)) && shape_same_size(g, SHAPE(n2, m1), SHAPE(m1, 2, d[0])));
    CHECK(shape_same_size(g, SHAPE(nm), SHAPE(x, 2)) && shape_same_size(g, SHAPE(d[0], 0), SHAPE(0, 5)));
    CHECK(!shape_same_size(g, SHAPE(d[0]), SHAPE(d[1])) && !shape_same_size(g, SHAPE(d[0], d[0]), SHAPE(d[0])));
    CHECK(!shape_same_size(g, SHAPE(d[0], 2), SHAPE(d[0], 3)) && !shape_same_size(g, SHAPE(d[0], 0), SHAPE(d[0])));
    CHECK(shape_is_symbolic(SHAPE(2, d[0])) && !shape_is_symbolic(SHAPE(2, 3)) && shape_is_legal(g, SHAPE(n2, m1, x)));
    CHECK(!shape_is_legal(g, SHAPE(d[0] + 1)) && !shape_is_legal(g, SHAPE(-1)) && !shape_is_legal(g, SHAPE(2 * d[0])));
    struct graph *plain = graph_new("plain");
    CHECK(!shape_is_legal(plain, SHAPE(d[0])));
    CHECK(graph_shape(plain, SHAPE(d[0])) == 0 && plain->err.code == KL_ERR_SHAPE);
    graph_free(plain);
    graph_free(g);
}

/* ---- tables ---- */

static void refuses(const char *name, int64_t low, int64_t high, const char *why)
{
    struct graph *g = graph_new("g");
    CHECK(graph_symbol(g, "n", 1, 4) == 0);
    bool refused = graph_symbol(g, name, low, high) == NO_SYMBOL && strstr(g->err.msg, why);
    check(refused, "symbol %s %" PRId64 "..%" PRId64 ": '%s', not '%s'", name, low, high, g->err.msg, why);
    graph_free(g);
}

static void test_tables(void)
{
    refuses("n", 1, 4, "declared already");
    refuses("1n", 1, 4, "starts with a letter");
    refuses("", 1, 4, "starts with a letter");
    refuses("abcdefghijklmnopqrstuvwx", 1, 4, "at most 23");
    refuses("m", 4, 1, "bounds");
    refuses("m", -1, 1, "bounds");
    refuses("m", 0, MAX_DIM + 1, "bounds");
    int64_t d[SYMBOLS];
    struct graph *g = with_symbols(d), *c, *plain = graph_new("plain"), *region = graph_new("region");
    ref x = n_input(g, KL_F32, SHAPE(d[0], 2), "x"), y = n_neg(g, x);
    graph_output(g, OUT_RETURN, y, 0);
    struct err e = {0};
    CHECK(graph_verify(g, &e) && !graph_is_bound(g, &e) && strstr(e.msg, "symbol n has no value"));
    c = graph_clone(g);
    CHECK(c->symbols != g->symbols && graph_same(g, c) && graph_hash(g).lo == graph_hash(c).lo);
    e = (struct err){0};
    CHECK(!graph_symbol_set(c, 1, HIGH + 1, &e) && strstr(e.msg, "cannot be 5") && graph_symbol_set(c, 1, 2, &e) == 1);
    CHECK(!graph_same(g, c) && graph_hash(g).lo != graph_hash(c).lo && g->symbols->v[1].high == HIGH);
    graph_free(c);
    c = graph_clone_part(g);
    CHECK(c->symbols == g->symbols && graph_same(g, c));
    graph_free(c);
    /* a region without symbols takes those of the graph around it; one with others does not fit */
    ref in = n_input(region, KL_F32, SHAPE(2), "");
    graph_output(region, OUT_RETURN, in, 0);
    const ref two = n_input(g, KL_F32, SHAPE(2), "y");
    const struct node checkpoint = {.op = OP_checkpoint};
    CHECK(graph_add_region(g, &checkpoint, &two, 1, &region) && region->symbols == g->symbols);
    CHECK(check(graph_verify(g, &e), "%s", e.msg));
    struct graph *other = graph_clone(region);
    CHECK(!graph_add_region(g, &checkpoint, &two, 1, &other) && strstr(g->err.msg, "other symbols"));
    graph_output(plain, OUT_RETURN, n_const(plain, KL_F32, 0), 0);
    CHECK(graph_symbol(plain, "n", 1, 2) == NO_SYMBOL && strstr(plain->err.msg, "before nodes"));
    graph_free(plain);
    graph_free(g);
}

/* Two graphs that intern their expressions in another order are the same. */
static void test_order(void)
{
    int64_t d[SYMBOLS], e[SYMBOLS], s, t;
    struct graph *g = with_symbols(d), *h = with_symbols(e);
    for (int64_t i = 50; i > 0; i--)
        CHECK(dims_sum(h, 1, &(struct scaled){e[1], 1}, i, &t));
    CHECK(dims_sum(g, 2, (struct scaled[]){{d[0], 2}, {d[1], 1}}, 5, &s));
    CHECK(dims_sum(h, 2, (struct scaled[]){{e[1], 1}, {e[0], 2}}, 5, &t) && s != t);
    graph_output(g, OUT_RETURN, n_iota(g, KL_F32, SHAPE(s), 0), 0);
    graph_output(h, OUT_RETURN, n_iota(h, KL_F32, SHAPE(t), 0), 0);
    struct hash128 a = graph_hash(g), b = graph_hash(h);
    CHECK(graph_same(g, h) && a.lo == b.lo && a.hi == b.hi);
    graph_free(g);
    graph_free(h);
}

static void broken(const struct graph *from, int what)
{
    struct graph *g = graph_clone(from);
    struct err e = {0};
    struct symbols *s = g->symbols;
    switch (what) {
    case 0: s->v[1].low = HIGH + 1; break;
    case 1: memcpy(s->v[1].name, "n", 2); break;
    case 2: s->v[0].name[0] = '2'; break;
    case 3: s->expr[s->nexpr - 1].constant = -100; break;
    case 4: s->expr[s->nexpr - 1].term[0].symbol = SYMBOLS; break;
    case 5: s->expr[s->nexpr - 1].term[0].by = 0; break;
    case 6: s->expr[s->nexpr - 1] = s->expr[0]; break;
    case 7: s->n = 0; break;
    case 8: g->shape[g->nshape - 1].dim[0]--; break;
    default: g->node[g->nnode - 1].attr.slice.count--; break;
    }
    check(!graph_verify(g, &e) && e.msg[0], "broken table %d: the verifier sees nothing", what);
    if (what == 7)
        s->n = SYMBOLS;
    graph_free(g);
}

static void test_verify(void)
{
    int64_t d[SYMBOLS], s;
    struct graph *g = with_symbols(d);
    CHECK(dims_sum(g, 2, (struct scaled[]){{d[0], 2}, {d[1], 1}}, 5, &s));
    graph_output(g, OUT_RETURN, n_slice(g, n_iota(g, KL_F32, SHAPE(s), 0), 0, 1, d[0], 1), 0);
    struct err e = {0};
    CHECK(check(graph_verify(g, &e), "%s", e.msg));
    for (int what = 0; what < 10; what++)
        broken(g, what);
    graph_free(g);
}

/* The gradient of a product over two symbolic axes would need rows of n * m elements.
 * Over several symbolic axes: axis by axis, since n * m is no dim. */
static void test_gradient_of_product(void)
{
    int64_t d[SYMBOLS];
    struct graph *g = with_symbols(d);
    ref x = n_input(g, KL_F32, SHAPE(d[0], 2, d[1]), "x");
    graph_output(g, OUT_RETURN, n_grad(g, n_reduce(g, OP_reduce_prod, x, 5), x), 0);
    CHECK(pass_autodiff(g, NULL) >= 0 && !g->err.code &&
          shape_equal(node_shape(g, g->out[0].value), SHAPE(d[0], 2, d[1])));
    graph_free(g);
}

/* ---- values ---- */

static void matches(const char *want, const struct shape *a, const struct shape *got_a, const struct shape *b,
                    const struct shape *got_b, const struct graph *g)
{
    int64_t v[MAX_SYMBOLS];
    struct err e = {0};
    char text[200] = "";
    for (int i = 0; i < MAX_SYMBOLS; i++)
        v[i] = NO_VALUE;
    const struct extents x[] = {{"a", *a, *got_a}, {"b", *b, *got_b}};
    if (symbols_match(g, x, 2, v, &e))
        snprintf(text, sizeof text, "%d %d %d", (int)v[0], (int)v[1], (int)v[2]);
    check(!strcmp(want, *text ? text : e.msg), "expected '%s', got '%s'", want, *text ? text : e.msg);
}

static void test_match(void)
{
    int64_t d[SYMBOLS], s, t;
    struct graph *g = with_symbols(d);
    CHECK(dims_sum(g, 2, (struct scaled[]){{d[0], 2}, {d[1], 3}}, 1, &s));
    CHECK(dims_sum(g, 1, &(struct scaled){d[2], -1}, HIGH, &t));
    matches("2 3 -1", SHAPE(s), SHAPE(14), SHAPE(d[1]), SHAPE(3), g);
    matches("2 3 4", SHAPE(s, t), SHAPE(14, 0), SHAPE(d[1]), SHAPE(3), g);
    matches("-1 -1 -1", SHAPE(s), SHAPE(14), SHAPE(7), SHAPE(7), g);
    matches("a: axis 0 has 13 elements, but is to have 2*n+3*m+1 with m = 3", SHAPE(s), SHAPE(13), SHAPE(d[1]),
            SHAPE(3), g);
    matches("a: axis 0 has 30 elements, but is to have 2*n+3*m+1 with m = 3", SHAPE(s), SHAPE(30), SHAPE(d[1]),
            SHAPE(3), g);
    matches("b: axis 1 has 4 elements, but is to have m with m = 3", SHAPE(d[1]), SHAPE(3), SHAPE(2, d[1]),
            SHAPE(2, 4), g);
    matches("b: axis 0 has 5 elements, but is to have m for m in 1..4", SHAPE(1), SHAPE(1), SHAPE(d[1]), SHAPE(5), g);
    matches("b: axis 1 has 3 elements, but is to have 2", SHAPE(1), SHAPE(1), SHAPE(d[1], 2), SHAPE(1, 3), g);
    matches("a: has shape [3,1], but is to have [n]", SHAPE(d[0]), SHAPE(3, 1), SHAPE(1), SHAPE(1), g);
    graph_free(g);
}

/* Two sizes alternate with two compiles, ever. */
static void test_two_sizes(const char *device)
{
    static const char text[] = "graph @g {\n  symbol n 1..512\n  %x = input 0 \"x\" : f32[n,4]\n"
                               "  %y = tanh %x : f32[n,4]\n  %z = sum %y axes(0) : f32[1,4]\n  return %z\n}\n";
    struct err e = {0};
    int d = device_find(device, &e);
    struct graph *g = graph_parse(text, strlen(text), NULL, &e);
    const struct exec *seen[2] = {NULL};
    CHECK(g && d >= 0);
    uint64_t built = atomic_load(&counters.graphs_built), compiles = 0;
    for (int i = 0; i < 10; i++) {
        struct graph *b = graph_clone(g);
        CHECK(graph_symbol_set(b, 0, i % 2 ? 37 : 128, &e) && graph_bind(b) == 1);
        const struct exec *x = exec_get(b, d, true, &e);
        check(x && (i < 2 || x == seen[i % 2]), "size %d on %s: %s", i % 2, device, e.msg);
        seen[i % 2] = x;
        graph_free(b);
        if (i == 1)
            compiles = atomic_load(&counters.compiles);
    }
    CHECK(seen[0] != seen[1] && atomic_load(&counters.graphs_built) == built + 2);
    CHECK(atomic_load(&counters.compiles) == compiles);
    CHECK(exec_get(g, d, true, &e) != NULL); /* without a value: one program for all values, or one for each */
    graph_free(g);
}

int main(void)
{
    struct err e = {0};
    test_narrow();
    test_arithmetic();
    test_sizes();
    test_tables();
    test_order();
    test_verify();
    test_gradient_of_product();
    test_match();
    test_two_sizes("ref");
    if (device_find("cpu", &e) >= 0)
        test_two_sizes("cpu");
    else
        skipped++;
    return finish();
}
