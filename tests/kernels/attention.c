/* Attention against its decomposition into products and a softmax; what queries do not see; the keys' blocks; gradients
 * that store no scores; agreement of interpreter, fused and unfused kernels on all of that.  More gradients:
 * gradients.c.  Through the public API: api_nn.c. */
#include "tests/support/harness.h"

static struct rng rng = {4242};

/* What masks keys besides causality. */
enum masking { ALL, MASK, BOUNDS, MASKINGS };
static const char *const masking_name[MASKINGS] = {"all", "mask", "bounds"};

struct problem { int64_t batch, l, m, d, e; enum masking masking; bool causal; unsigned dtype; };

static struct shape matrices(int64_t batch, int64_t rows, int64_t columns)
{
    return shape_make(3, (int64_t[]){batch, rows, columns});
}

/* Returns attention's node; inputs 0 to 2 are q, k and v, 3 what queries see. */
static ref record(struct graph *g, const struct problem *p)
{
    struct shape q = matrices(p->batch, p->l, p->d), k = matrices(p->batch, p->m, p->d),
        v = matrices(p->batch, p->m, p->e);
    struct shape s = matrices(p->batch, p->l, p->masking == MASK ? p->m : 2);
    ref in[3] = {n_input(g, p->dtype, &q, "q"), n_input(g, p->dtype, &k, "k"), n_input(g, p->dtype, &v, "v")};
    ref mask = p->masking == ALL ? NIL : n_input(g, p->masking == MASK ? KL_BOOL : KL_I32, &s, "mask");
    return n_attention(g, in[0], in[1], in[2], mask, 1 / sqrt((double)p->d + 1), p->causal);
}

static void data(const struct graph *g, const struct problem *p, struct values *in)
{
    values_random(&rng, g, &g->input, false, in);
    if (p->masking == BOUNDS) /* windows, some of them empty, some beyond the keys */
        for (int64_t i = 0; i < p->batch * p->l; i++) {
            ((int32_t *)in->v[3])[2 * i] = (int32_t)rng_below(&rng, p->m + 2) - 1;
            ((int32_t *)in->v[3])[2 * i + 1] = ((int32_t *)in->v[3])[2 * i] + (int32_t)rng_below(&rng, p->m);
        }
}

static void name_of(const struct problem *p, char *text, size_t n)
{
    snprintf(text, n, "attention %s [%" PRId64 ",%" PRId64 ",%" PRId64 "] %" PRId64 " keys, %" PRId64 " values, %s%s",
             dtype_name(p->dtype),
             p->batch, p->l, p->d, p->m, p->e, masking_name[p->masking], p->causal ? ", causal" : "");
}

/* ---- the decomposition ---- */

/* Units in the last place of the largest value.  The decomposition rounds half floats' scores and weights, too: a score
 * of s by s / 2 units, a weight and what it makes by as many. */
static double bound(unsigned dtype)
{
    return dtype == KL_F64 ? 64 * 0x1p-52 : dtype == KL_F32 ? 64 * 0x1p-23 : dtype == KL_F16 ? 8 * 0x1p-10 : 8 * 0x1p-7;
}

static void against_decomposition(const struct problem *p)
{
    char what[160];
    struct graph *g = graph_new("attention");
    ref y = record(g, p), w = n_attention_weights(g, y), v = g->node[y].in[2];
    union attr at = {.dot = {.nbatch = 1, .ncon = 1, .con_a = 2, .con_b = 1}};
    ref z = n_dot(g, n_cast(g, w, p->dtype), v, &at);
    graph_output(g, OUT_RETURN, y, 0);
    graph_output(g, OUT_RETURN, z, 0);
    name_of(p, what, sizeof what);
    struct values in, out = {0};
    struct err e = {0};
    data(g, p, &in);
    bool ok = check(!g->err.code, "%s: %s", what, g->err.msg) &&
        agree_everywhere(g, &in, &(struct values){0}, NULL, what) &&
              check(run_on(g, "ref", true, &in, &(struct values){0}, NULL, &out, &e), "%s: %s", what, e.msg);
    double max = 0, worst = 0;
    for (int64_t i = 0; ok && i < p->batch * p->m * p->e; i++)
        max = fmax(max, fabs(element_value(p->dtype, in.v[2], i)));
    for (int64_t i = 0; ok && i < p->batch * p->l * p->e; i++)
        worst = fmax(worst, fabs(element_value(p->dtype, out.v[0], i) - element_value(p->dtype, out.v[1], i)));
    if (ok)
        check(worst <= bound(p->dtype) * max, "%s: the decomposition differs by %g of %g", what, worst, max);
    values_free(&in);
    values_free(&out);
    graph_free(g);
}

static void decompositions(void)
{
    static const int64_t sizes[][5] = {{2, 5, 7, 3, 2}, {1, 1, 70, 8, 8}, {3, 33, 64, 16, 9}, {1, 40, 130, 5, 16},
                                       {2, 66, 3, 4, 17}, {1, 64, 128, 32, 32}};
    static const unsigned dtypes[] = {KL_F64, KL_F32, KL_F16, KL_BF16};
    for (unsigned z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (unsigned t = 0; t < 4; t++)
            for (int how = 0; how < 2 * MASKINGS; how++) {
                const int64_t *s = sizes[z];
                if ((z + t + (unsigned)how) % (t == 1 ? 2 : 4) == 0)
                    against_decomposition(&(struct problem){s[0], s[1], s[2], s[3], s[4], (enum masking)(how / 2),
                                                            how % 2, dtypes[t]});
            }
}

/* ---- gradients ---- */

/* Those that store nothing of L x M against those made of products. */
static void gradient_against_composition(const struct problem *p)
{
    char what[160];
    struct graph *g = graph_new("gradient");
    ref y = record(g, p), block[3] = {NIL}, composed[MAX_OPERANDS] = {NIL};
    ref dy = n_input(g, p->dtype, node_shape(g, y), "dy");
    n_attention_gradient(g, y, dy, block);
    opinfo[OP_attention].vjp(g, y, dy, composed);
    for (int i = 0; i < 3; i++) {
        check(!block[i] || g->node[composed[i]].op != OP_attention_grad, "few scores: a gradient of products");
        graph_output(g, OUT_RETURN, block[i], 0);
        graph_output(g, OUT_RETURN, composed[i], 0);
    }
    name_of(p, what, sizeof what);
    struct values in, out = {0};
    struct err e = {0};
    data(g, p, &in);
    bool ok = check(!g->err.code, "gradient of %s: %s", what, g->err.msg) &&
        agree_everywhere(g, &in, &(struct values){0}, NULL, what) &&
              check(run_on(g, "ref", true, &in, &(struct values){0}, NULL, &out, &e), "%s: %s", what, e.msg);
    for (uint32_t i = 0; ok && i < 3; i++) {
        double max = 0, worst = 0;
        for (int64_t j = 0; j < node_numel(g, block[i]); j++) {
            double got = element_value(p->dtype, out.v[2 * i], j), want = element_value(p->dtype, out.v[2 * i + 1], j);
            max = fmax(max, fabs(want));
            worst = fmax(worst, fabs(got - want));
        }
        check(worst <= 4 * bound(p->dtype) * fmax(max, 1), "%s: gradient %u differs by %g of %g", what, i, worst,
              max);
    }
    values_free(&in);
    values_free(&out);
    graph_free(g);
}

static void gradients(void)
{
    static const int64_t sizes[][5] = {{2, 5, 7, 3, 2}, {1, 1, 70, 8, 8}, {2, 33, 64, 16, 9}, {1, 40, 130, 5, 16},
                                       {2, 66, 3, 4, 17}, {1, 130, 70, 32, 32}, {1, 3, 1, 1, 1}};
    static const unsigned dtypes[] = {KL_F64, KL_F32, KL_F16, KL_BF16};
    for (unsigned z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (unsigned t = 0; t < 4; t++)
            for (int how = 0; how < 2 * MASKINGS; how++) {
                const int64_t *s = sizes[z];
                if ((z + t + (unsigned)how) % (t == 1 ? 2 : 4) == 0)
                    gradient_against_composition(&(struct problem){s[0], s[1], s[2], s[3], s[4],
                                                                   (enum masking)(how / 2), how % 2, dtypes[t]});
            }
}

/* Scores of which one log-sum-exp would lose all but the largest: equal ones share the weight all the same. */
static void large_scores(void)
{
    enum { M = 70 };
    const struct problem p = {1, 1, M, 1, 1, ALL, false, KL_F32};
    struct graph *g = graph_new("large");
    ref y = record(g, &p), din[3] = {NIL}, dy = n_input(g, KL_F32, node_shape(g, y), "dy");
    n_attention_gradient(g, y, dy, din);
    graph_output(g, OUT_RETURN, din[2], 0);
    struct values in, out = {0};
    struct err e = {0};
    data(g, &p, &in);
    *(float *)in.v[0] = 1e6f;
    for (int j = 0; j < M; j++)
        ((float *)in.v[1])[j] = 1e3f;
    *(float *)in.v[3] = 1;
    if (agree_everywhere(g, &in, &(struct values){0}, NULL, "large scores") &&
        check(run_on(g, "cpu", true, &in, &(struct values){0}, NULL, &out, &e), "large scores: %s", e.msg))
        for (int j = 0; j < M; j += 23)
            check(fabs(element_value(KL_F32, out.v[0], j) - 1.0 / M) < 1e-6, "weight %d of equal scores: %g", j,
                  element_value(KL_F32, out.v[0], j));
    values_free(&in);
    values_free(&out);
    graph_free(g);
}

/* ---- what is not mask ---- */

static double special(int64_t i)
{
    return i % 3 == 0 ? (double)NAN : i % 3 == 1 ? (double)INFINITY : -(double)INFINITY;
}

/* Keys and values from `from` on in both halves are NaN or infinite, and no query attends to them: the bits are those
 * without. */
static void masked_keys(enum masking masking)
{
    const struct problem p = {2, 37, 90, 6, 5, masking, masking == ALL, KL_F32};
    int64_t from = masking == ALL ? 90 : 71; /* causality alone: each row is on its own, below */
    struct graph *g = graph_new("unseen");
    struct values in, out[2] = {{0}};
    struct err e = {0};
    graph_output(g, OUT_RETURN, record(g, &p), 0);
    data(g, &p, &in);
    for (int64_t i = 0; i < p.batch * p.l && masking == MASK; i++)
        for (int64_t j = 0; j < p.m; j++)
            ((uint8_t *)in.v[3])[i * p.m + j] = j < from && (i + j) % 3 != 0;
    for (int64_t i = 0; i < p.batch * p.l && masking == BOUNDS; i++) {
        ((int32_t *)in.v[3])[2 * i] = (int32_t)(i % 11);
        ((int32_t *)in.v[3])[2 * i + 1] = (int32_t)(from - i % 60);
    }
    bool ok = true;
    for (int turn = 0; turn < 2 && ok; turn++) {
        for (int64_t b = 0; turn && b < p.batch; b++)
            for (int64_t j = from; j < p.m; j++) {
                for (int64_t c = 0; c < p.d; c++)
                    ((float *)in.v[1])[(b * p.m + j) * p.d + c] = (float)special(j + c);
                for (int64_t c = 0; c < p.e; c++)
                    ((float *)in.v[2])[(b * p.m + j) * p.e + c] = (float)special(j + c);
            }
        ok = check(run_on(g, "ref", true, &in, &(struct values){0}, NULL, &out[turn], &e), "%s: %s",
                   masking_name[masking], e.msg) &&
             agree_everywhere(g, &in, &(struct values){0}, NULL, masking_name[masking]);
    }
    int64_t at = 0;
    if (ok) {
        bool same = same_values(KL_F32, out[0].v[0], out[1].v[0], p.batch * p.l * p.e, &at);
        check(same, "%s: a masked NaN changes element %" PRId64, masking_name[masking], at);
    }
    for (int i = 0; i < 2; i++)
        values_free(&out[i]);
    values_free(&in);
    graph_free(g);
}

/* A NaN in the last key spoils the one row that attends to it.  Scores far apart neither overflow nor lose the
 * largest. */
static void causal_rows(void)
{
    const struct problem p = {1, 70, 70, 4, 3, ALL, true, KL_F32};
    struct graph *g = graph_new("causal");
    struct values in, out = {0};
    struct err e = {0};
    graph_output(g, OUT_RETURN, record(g, &p), 0);
    data(g, &p, &in);
    for (int64_t c = 0; c < p.e; c++)
        ((float *)in.v[2])[69 * p.e + c] = NAN;
    for (int64_t c = 0; c < p.d; c++)
        ((float *)in.v[0])[68 * p.d + c] = ((float *)in.v[1])[65 * p.d + c] = 1e4f;
    if (agree_everywhere(g, &in, &(struct values){0}, NULL, "causal rows") &&
        check(run_on(g, "cpu", true, &in, &(struct values){0}, NULL, &out, &e), "causal rows: %s", e.msg)) {
        const float *y = out.v[0], *v = in.v[2];
        bool finite = true, lost = true;
        for (int64_t i = 0; i < 69 * p.e; i++)
            finite &= isfinite(y[i]) != 0;
        for (int64_t c = 0; c < p.e; c++)
            lost &= isnan(y[69 * p.e + c]);
        check(finite && lost, "a NaN of the last value is in the last row, and nowhere else");
        check(y[68 * p.e] == v[65 * p.e], "the largest score by far takes all: %g, not %g", y[68 * p.e], v[65 * p.e]);
    }
    values_free(&in);
    values_free(&out);
    graph_free(g);
}

/* A query's bits do not depend on the tile that it is in: those of some queries are those of all. */
static void alone(void)
{
    const struct problem p = {1, 75, 150, 12, 10, BOUNDS, false, KL_F32};
    struct graph *g = graph_new("alone");
    ref y = record(g, &p);
    struct node n = g->node[y];
    graph_output(g, OUT_RETURN, y, 0);
    for (int64_t i = 0; i < p.l; i += 13) {
        ref q = n_slice(g, n.in[0], 1, i, 1, 1), mask = n_slice(g, n.in[3], 1, i, 1, 1);
        graph_output(g, OUT_RETURN, n_attention(g, q, n.in[1], n.in[2], mask,
                                                dtype_value(KL_F64, n.attr.attention.scale), false), 0);
    }
    struct values in, out = {0};
    struct err e = {0};
    data(g, &p, &in);
    if (agree_everywhere(g, &in, &(struct values){0}, NULL, "alone") &&
        check(run_on(g, "cpu", true, &in, &(struct values){0}, NULL, &out, &e), "alone: %s", e.msg))
        for (uint32_t o = 1; o < g->nout; o++) {
            int64_t at, i = 13 * (int64_t)(o - 1);
            check(same_values(KL_F32, (float *)out.v[0] + i * p.e, out.v[o], p.e, &at),
                  "query %" PRId64 " alone differs at %" PRId64, i, at);
        }
    values_free(&in);
    values_free(&out);
    graph_free(g);
}

/* A single query, whose lanes are keys: squares of them, what is behind the squares, and fewer than one. */
static void one_query(void)
{
    static const int64_t keys[] = {1, 5, 16, 17, 31, 64, 70, 150}, depth[] = {8, 3, 27}, values[] = {10, 70, 1};
    static const unsigned dtypes[] = {KL_F32, KL_BF16, KL_F64};
    char what[160];
    int number = 0;
    for (unsigned m = 0; m < sizeof keys / sizeof *keys; m++)
        for (enum masking masking = ALL; masking < MASKINGS; masking++, number++) {
            const struct problem p = {3, 1, keys[m], depth[number % 3], values[number / 2 % 3], masking,
                                      number % 5 == 4, dtypes[number / 3 % 3]};
            struct graph *g = graph_new("one");
            struct values in;
            graph_output(g, OUT_RETURN, record(g, &p), 0);
            data(g, &p, &in);
            name_of(&p, what, sizeof what);
            check(agree_everywhere(g, &in, &(struct values){0}, NULL, what), "%s", what);
            if (p.dtype == KL_F32) /* masked for some queries only */
                ((float *)in.v[1])[p.m * p.d - 1] = NAN;
            check(agree_everywhere(g, &in, &(struct values){0}, NULL, what), "%s with a NaN", what);
            values_free(&in);
            graph_free(g);
        }
}

int main(void)
{
    decompositions();
    gradients();
    large_scores();
    one_query();
    for (enum masking s = ALL; s < MASKINGS; s++)
        masked_keys(s);
    causal_rows();
    alone();
    return finish();
}
