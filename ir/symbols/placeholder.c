/* Primes that stand in for symbols (README.md, "One program for all values"). */
#include "ir/ir.h"
#include <inttypes.h>
#include <string.h>

enum { MIN_PRIME = 61 };              /* above every length that a schedule treats as a special case */
#define MAX_BOUND (INT64_C(1) << 31)

static bool placeholder_refused(struct err *e, const char *what, const char *name)
{
    return err_set(e, KL_ERR_COMPILE, what, name);
}

/* ---- which graphs have placeholders ---- */

/* The number of the placeholder of a sum; s->n: there is none. */
static uint32_t find_sum(const struct placeholders *s, const struct affine *sum)
{
    uint32_t i = 0;
    while (i < s->n && (!placeholder_is_sum(&s->v[i]) || memcmp(&s->v[i].sum, sum, sizeof *sum)))
        i++;
    return i;
}

/* Has the length a placeholder for each factor?  A sum gets one here, if there is room. */
static bool dim_has_factors(const struct graph *g, int64_t d, struct placeholders *s)
{
    struct affine a;
    if (d >= 0)
        return true;
    if (!dim_affine(g, d, &a))
        return false;
    struct length_factors f = length_factors_of(&a);
    struct placeholder x = {.sum = f.sum};
    if (!f.sum.n || find_sum(s, &f.sum) < s->n)
        return true;
    if (s->n == MAX_PLACEHOLDERS || !affine_range(g, &f.sum, &x.low, &x.high) || x.low < 0 || x.high > MAX_BOUND)
        return false;
    s->v[s->n++] = x;
    return true;
}

/* Of attention: have queries, keys and values numbers of elements that are no symbols?  Of what queries see, the last
 * axis is the keys'. */
static bool columns_are_numbers(const struct graph *g, const struct node *n)
{
    bool numbers = true;
    for (unsigned i = 0; i <= n->nin; i++) {
        const struct shape *s = i < n->nin ? node_shape(g, n->in[i]) : &g->shape[n->shape];
        bool mask = i < n->nin && i + 1u == opinfo[n->op].nin && g->node[n->in[i]].dtype == KL_BOOL;
        numbers &= mask || s->dim[s->rank - 1] >= 0;
    }
    return numbers;
}

static int64_t dim_low(const struct graph *g, int64_t d)
{
    int64_t low = 0, high;
    return dim_range(g, d, &low, &high) ? low : 0;
}

/* Does the op find an element of its result by coordinates alone, along symbolic axes? */
static bool op_takes_symbols(const struct graph *g, const struct node *n)
{
    switch (n->op) {
    case OP_input: case OP_state: case OP_iota: case OP_random: case OP_cast: case OP_proj: case OP_gather:
    case OP_concat: case OP_dynamic_slice:
        return true;
    case OP_dynamic_update: /* an element of what is put in is read even where it is not the result's */
        return dim_low(g, node_shape(g, n->in[1])->dim[n->attr.axis.axis]) > 0;
    case OP_scatter:
        return !shape_is_symbolic(&g->shape[n->shape]);
    default:
        if (op_is_attention(n->op))
            return columns_are_numbers(g, n);
        return op_is_view(n->op) || op_is_masked(n->op) || op_is_elementwise(n->op) || op_is_quant(n->op) ||
               op_is_reduce(n->op) || op_is_product(n->op);
    }
}

/* May the order of a reduce's elements be another one for some values, but for how many there are?  The length of its
 * chunks depends on the last reduced axes together, where there are others (pass numerics). */
static bool order_varies(const struct graph *g, const struct node *n)
{
    const struct shape *s = node_shape(g, n->in[0]);
    uint32_t axes = n->attr.reduce.axes, end = s->rank;
    int64_t run = 1;
    bool symbolic = false, more = false, more_symbolic = false;
    for (; end && axes >> (end - 1) & 1; end--) {
        symbolic |= s->dim[end - 1] < 0;
        run *= s->dim[end - 1] < 0 ? 1 : s->dim[end - 1];
    }
    while (end-- > 0) {
        more |= axes >> end & 1 && s->dim[end] != 1;
        more_symbolic |= axes >> end & 1 && s->dim[end] < 0;
    }
    return (more && symbolic) || (more_symbolic && run > LANE_CHUNK);
}

/* By its shapes, or by its attributes alone: a slice of a number of elements may start at a symbolic one. */
static bool node_is_symbolic(const struct graph *g, const struct node *n)
{
    int64_t *dim[2];
    struct node copy = *n;
    bool any = shape_is_symbolic(&g->shape[n->shape]);
    for (unsigned i = 0; i < n->nin; i++)
        any |= shape_is_symbolic(node_shape(g, n->in[i]));
    for (unsigned i = node_dims(&copy, dim); i-- > 0;)
        any |= *dim[i] < 0;
    return any;
}

static bool shape_has_factors(const struct graph *g, const struct shape *s, struct placeholders *p)
{
    bool all = true;
    for (uint32_t i = 0; i < s->rank; i++)
        all &= dim_has_factors(g, s->dim[i], p);
    return all;
}

/* Have the lengths that kernels of the node compute with placeholders: of its result, and where a slice starts and
 * how much is before a pad's operand? */
static bool node_has_factors(const struct graph *g, const struct node *n, struct placeholders *s)
{
    return shape_has_factors(g, &g->shape[n->shape], s) &&
           (!slice_step(n) || dim_has_factors(g, n->attr.slice.start, s)) &&
           (!op_is_masked(n->op) || dim_has_factors(g, n->attr.pad.low, s));
}

/* Are the lengths that a region op needs when it runs products?  Its regions and results are checked as nodes. */
static bool region_op_takes(const struct graph *g, const struct node *n, struct placeholders *s)
{
    bool takes = n->op != OP_scan || dim_has_factors(g, n->attr.region.length, s);
    for (uint32_t i = 0; n->op == OP_custom && i < node_custom(g, n)->nresult; i++)
        takes &= shape_has_factors(g, &g->shape[node_custom(g, n)->result[i].shape], s);
    return takes;
}

static bool graph_takes(const struct graph *g, struct placeholders *s, struct err *e)
{
    for (uint32_t i = 0; i < g->nregion; i++)
        if (!graph_takes(g->region[i], s, e))
            return false;
    for (ref r = 1; r < g->nnode; r++) {
        const struct node *n = &g->node[r];
        if (op_is_region(n->op) && !region_op_takes(g, n, s))
            return placeholder_refused(e, "the lengths of op %s are too many sums of symbols, or too long",
                                       opinfo[n->op].name);
        if (op_is_region(n->op) || !node_is_symbolic(g, n))
            continue;
        if (!op_takes_symbols(g, n))
            return placeholder_refused(e, "op %s is made for lengths that are numbers", opinfo[n->op].name);
        if (op_is_reduce(n->op) && order_varies(g, n))
            return placeholder_refused(e, "the order of op %s depends on how long each of its reduced axes is",
                                    opinfo[n->op].name);
        if (!node_has_factors(g, n, s))
            return placeholder_refused(e, "the lengths of op %s are too many sums of symbols, or too long",
                                       opinfo[n->op].name);
    }
    return true;
}

/* ---- primes ---- */

static bool is_prime(int64_t n)
{
    for (int64_t d = 2; d * d <= n; d++)
        if (n % d == 0)
            return false;
    return n > 1;
}

static bool divides_number_of(const struct graph *g, int64_t d, int64_t prime)
{
    struct affine a;
    dim_affine(g, d, &a);
    int64_t number = length_factors_of(&a).number;
    return number && number % prime == 0;
}

/* Does it divide a number that the graph has for a length, or the number that all terms of one are multiples of? */
static bool divides_a_length(const struct graph *g, int64_t prime)
{
    for (ref r = 1; r < g->nnode; r++) {
        const struct shape *s = node_shape(g, r);
        int64_t *dim[2];
        struct node copy = g->node[r];
        for (uint32_t i = 0; i < s->rank; i++)
            if (divides_number_of(g, s->dim[i], prime))
                return true;
        for (unsigned i = node_dims(&copy, dim); i-- > 0;)
            if (divides_number_of(g, *dim[i], prime))
                return true;
    }
    for (uint32_t i = 0; i < g->nregion; i++)
        if (divides_a_length(g->region[i], prime))
            return true;
    return false;
}

static void choose_prime(const struct graph *g, const struct placeholders *s, struct placeholder *x)
{
    int64_t p = x->high > MIN_PRIME ? x->high : MIN_PRIME;
    for (bool taken = true; taken; p += taken) {
        taken = !is_prime(p) || divides_a_length(g, p);
        for (uint32_t i = 0; i < s->n; i++)
            taken |= s->v[i].prime == p;
    }
    x->prime = p;
}

static uint32_t recorded_number(const struct symbols *recorded, const char *name)
{
    uint32_t i = 0;
    while (i < recorded->n && strcmp(recorded->v[i].name, name))
        i++;
    return i;
}

/* Says what varies by the numbers of the recorded symbols. */
static void note_limit(const struct graph *g, const struct symbols *recorded, struct placeholders *s)
{
    const struct size_limit *l = &g->symbols->varies;
    s->varies = *l;
    memset(s->varies.power, 0, sizeof s->varies.power);
    for (uint32_t i = 0; i < g->symbols->n; i++)
        if (l->power[i])
            s->varies.power[recorded_number(recorded, g->symbols->v[i].name)] = l->power[i];
}

int64_t placeholder_value(const struct placeholders *s, uint32_t i, const uint64_t *slot)
{
    const struct placeholder *x = &s->v[i];
    if (!placeholder_is_sum(x))
        return (int64_t)slot[x->slot];
    int64_t sum = x->sum.constant;
    for (uint32_t k = 0; k < x->sum.n; k++) {
        const struct symbol_term *t = &x->sum.term[k];
        int64_t other = t->times ? (int64_t)slot[s->v[t->times - 1].slot] : 1;
        sum += t->by * (int64_t)slot[s->v[t->symbol].slot] * other;
    }
    return sum;
}

/* The number that stands for a length.  One of a shape that no node has may have no factors: it gets any number. */
static int64_t number_of_length(const void *ctx, const struct affine *a)
{
    const struct placeholders *s = ctx;
    struct length_factors f = length_factors_of(a);
    int64_t number = f.number;
    for (uint32_t i = 0; i < f.nsymbol; i++)
        number *= s->v[f.symbol[i]].prime;
    uint32_t sum = f.sum.n ? find_sum(s, &f.sum) : s->n;
    return sum < s->n ? number * s->v[sum].prime : number;
}

/* Reshapes of products of sums, whose factors factors_of does not find, have other numbers of elements. */
static bool reshapes_agree(const struct graph *g)
{
    for (ref r = 1; r < g->nnode; r++)
        if (g->node[r].op == OP_reshape && node_numel(g, r) != node_numel(g, g->node[r].in[0]))
            return false;
    for (uint32_t i = 0; i < g->nregion; i++)
        if (!reshapes_agree(g->region[i]))
            return false;
    return true;
}

bool graph_use_placeholders(struct graph *g, const struct symbols *recorded, uint32_t slots, struct placeholders *s,
                            struct err *e)
{
    struct placeholders found = {0};
    *s = (struct placeholders){0};
    if (!g->symbols)
        return true;
    if (g->symbols->n > MAX_PLACEHOLDERS)
        return placeholder_refused(e, "there are more than sixteen symbols%s", "");
    for (uint32_t i = 0; i < g->symbols->n; i++) {
        const struct symbol *v = &g->symbols->v[i];
        if (v->high > MAX_BOUND)
            return placeholder_refused(e, "the bound of symbol %s is above 2^31", v->name);
        found.v[found.n++] = (struct placeholder){.low = v->low, .high = v->high,
                                                  .slot = slots + recorded_number(recorded, v->name)};
    }
    if (!graph_takes(g, &found, e) || g->symbols->varies.why) {
        note_limit(g, recorded, s);
        return e->code ? false : placeholder_refused(e, "%s", s->varies.why);
    }
    for (uint32_t i = 0; i < found.n; i++) {
        struct placeholder x = found.v[i];
        choose_prime(g, s, &x);
        s->v[s->n++] = x;
    }
    if (!graph_bind_numbers(g, number_of_length, s))
        return err_set(e, g->err.code, "%s", g->err.msg);
    return reshapes_agree(g) || placeholder_refused(e, "a reshape is of a product of sums of symbols%s", "");
}
