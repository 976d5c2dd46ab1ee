/* Symbolic lengths: what kl_symbol gave, as lengths of a graph that is recorded, and their values at a run.
 *
 * A length of kl_symbol's is a number of the process; a length of a graph is an expression over the symbols of that
 * graph (ir/symbols/symbol.h).  A graph gets a symbol when an input with it is recorded. */
#include "frontend/frontend.h"
#include <inttypes.h>
#include <string.h>

enum { MAX_LENGTHS = 4096, FIRST_LENGTH = 1 << 20 }; /* length i is -(FIRST_LENGTH + i): never a graph's */
_Static_assert(-(FIRST_LENGTH + MAX_LENGTHS) > -(1 << 24), "lengths of graphs lie below");

/* The values are `multiple` times those of the graph's symbol. */
static struct length { char name[24]; int64_t low, high, multiple; } *known; /* under the lock */
static uint32_t nknown, known_cap;

static bool length_is(int64_t dim) { return dim <= -FIRST_LENGTH && dim > -(FIRST_LENGTH + MAX_LENGTHS); }

static bool length_known(int64_t dim, struct length *l)
{
    front_lock();
    uint32_t i = (uint32_t)(-dim - FIRST_LENGTH);
    bool found = length_is(dim) && i < nknown;
    if (found)
        *l = known[i];
    front_unlock();
    return found;
}

/* That of the open trace. */
static const struct graph *text_graph(void)
{
    struct thread *t = thread_self();
    return t && thread_trace(t) ? thread_trace(t)->r.g : NULL;
}

static int64_t add_length(const struct length *l)
{
    shape_text_graph = text_graph;
    front_lock();
    uint32_t i = 0;
    while (i < nknown && memcmp(&known[i], l, sizeof *l))
        i++;
    bool ok = i < nknown || (i < MAX_LENGTHS && mem_reserve(&known, &known_cap, i + 1, sizeof *known));
    if (ok && i == nknown)
        known[nknown++] = *l;
    front_unlock();
    return ok ? -(int64_t)(FIRST_LENGTH + i) : INT64_MIN;
}

static int64_t new_length(const char *op, const char *name, int64_t low, int64_t high, int64_t multiple)
{
    struct thread *t = thread_self();
    struct length l = {.low = low, .high = high, .multiple = multiple};
    if (!t)
        return INT64_MIN;
    struct graph *scratch = graph_new("symbol"); /* says what is wrong with a symbol */
    bool positive = multiple > 0;
    if (positive && low >= 0 && low <= high) {
        l.low = low / multiple + (low % multiple != 0);
        l.high = high / multiple;
    }
    if (scratch && name && positive) {
        int n = multiple == 1 ? snprintf(l.name, sizeof l.name, "%s", name)
                              : snprintf(l.name, sizeof l.name, "%s.%" PRId64, name, multiple);
        bool fits = n > 0 && (size_t)n < sizeof l.name;
        graph_symbol(scratch, fits ? l.name : name, l.low, l.high);
    }
    int64_t length = INT64_MIN;
    if (!scratch)
        fail(t, KL_ERR_MEMORY, "%s: out of memory", op);
    else if (!name)
        fail(t, KL_ERR_ARGUMENT, "%s: name is NULL", op);
    else if (!positive)
        fail(t, KL_ERR_ARGUMENT, "%s: multiple_of is %" PRId64 ", not above 0", op, multiple);
    else if (scratch->err.code)
        fail(t, scratch->err.code, "%s: %s, got %" PRId64 "..%" PRId64, op, scratch->err.msg, low, high);
    else if ((length = add_length(&l)) == INT64_MIN)
        fail(t, KL_ERR_ARGUMENT, "%s: there are %d other lengths, or no memory", op, MAX_LENGTHS);
    graph_free(scratch);
    return length;
}

int64_t kl_symbol(const char *name, int64_t low, int64_t high)
{
    return new_length("symbol", name, low, high, 1);
}

int64_t kl_symbol_multiple(const char *name, int64_t low, int64_t high, int64_t multiple_of)
{
    return new_length("symbol_multiple", name, low, high, multiple_of);
}

/* ---- lengths of a graph ---- */

static bool symbol_length(struct graph *g, int64_t *dim, bool declare, struct err *e)
{
    struct length l;
    if (!length_known(*dim, &l))
        return err_set(e, KL_ERR_SHAPE, "%" PRId64 " is no length of kl_symbol", *dim);
    uint32_t s = graph_symbol_find(g, l.name, strlen(l.name));
    if (s == NO_SYMBOL && !declare)
        return err_set(e, KL_ERR_SHAPE, "symbol %s is the length of no input of this trace so far", l.name);
    if (s == NO_SYMBOL && (s = graph_symbol_add(g, l.name, l.low, l.high)) == NO_SYMBOL) {
        err_set(e, g->err.code, "%s", g->err.msg);
        g->err.code = KL_OK;
        return false;
    }
    const struct symbol *v = &g->symbols->v[s];
    if (v->low != l.low || v->high != l.high)
        return err_set(e, KL_ERR_SHAPE, "symbol %s has bounds %" PRId64 "..%" PRId64 " in this trace, not %" PRId64
                       "..%" PRId64, l.name, v->low, v->high, l.low, l.high);
    struct affine a = {.n = 1, .term = {{.symbol = s, .by = l.multiple}}};
    return affine_dim(g, &a, dim) || err_set(e, KL_ERR_SHAPE, "symbol %s gets too long", l.name);
}

bool symbolic_lengths(struct graph *g, struct shape *s, bool declare, struct err *e)
{
    for (uint32_t i = 0; i < s->rank; i++)
        if (length_is(s->dim[i]) && !symbol_length(g, &s->dim[i], declare, e))
            return false;
    return true;
}

void symbolic_key(const struct graph *g, const struct symbolic *x, bool slot, union attr *key)
{
    struct { struct shape lengths; struct affine a; struct symbol v[MAX_SYMBOL_TERMS][2]; } all;
    memset(&all, 0, sizeof all);
    if (!slot)
        all.lengths = x->lengths;
    else if (dim_affine(g, x->length, &all.a))
        for (uint32_t i = 0; i < all.a.n; i++) {
            all.v[i][0] = g->symbols->v[all.a.term[i].symbol];
            if (all.a.term[i].times)
                all.v[i][1] = g->symbols->v[all.a.term[i].times - 1];
        }
    struct hash128 h = bytes_hash(&all, sizeof all);
    *key = (union attr){.word = {h.lo, h.hi, 1}};
}

bool recording_symbolic(struct recording *r, unsigned op, uint32_t ordinal, const struct symbolic *x)
{
    uint32_t had = op == OP_input ? r->actual_cap : r->length_cap;
    if (!x && ordinal >= had) /* nothing is noted of it */
        return true;
    bool ok = op == OP_input ? mem_reserve(&r->actual, &r->actual_cap, ordinal + 1, sizeof *r->actual)
                             : mem_reserve(&r->length, &r->length_cap, ordinal + 1, sizeof *r->length);
    for (uint32_t i = had; ok && op == OP_input && i < r->actual_cap; i++)
        r->actual[i].rank = NO_ACTUAL;
    if (ok && op == OP_input)
        r->actual[ordinal] = x ? x->actual : (struct shape){.rank = NO_ACTUAL};
    else if (ok)
        r->length[ordinal] = x ? x->length : 0;
    return ok;
}

/* ---- arithmetic with lengths ---- */

static struct graph *open_graph(struct thread *t)
{
    struct trace *tr = thread_trace(t);
    return tr ? tr->r.g : NULL;
}

/* Both as lengths of the open trace; false: reported. */
static bool lengths_of(struct thread *t, const char *op, int64_t *a, int64_t *b)
{
    struct graph *g = open_graph(t);
    struct shape s = {.rank = 2, .dim = {*a, *b}};
    struct err e = {.code = KL_OK};
    if (g && !symbolic_lengths(g, &s, false, &e)) {
        fail(t, e.code, "%s: %s", op, e.msg);
        return false;
    }
    *a = s.dim[0];
    *b = s.dim[1];
    if (dim_exists(g, *a) && dim_exists(g, *b))
        return true;
    fail(t, KL_ERR_SHAPE, "%s: %" PRId64 " is no length of the open trace", op, dim_exists(g, *a) ? *b : *a);
    return false;
}

static int64_t length_result(struct thread *t, const char *op, int64_t a, int64_t b, bool ok, int64_t result)
{
    char x[DIM_TEXT], y[DIM_TEXT], bounds[BOUNDS_TEXT];
    const struct graph *g = open_graph(t);
    const struct shape both = {.rank = 2, .dim = {a, b}};
    if (ok)
        return result;
    fail(t, KL_ERR_SHAPE, "%s: of %s and %s it is no length: it may be negative or too long, or is no sum of "
         "products of at most two symbols%s", op, dim_text(g, a, x, sizeof x), dim_text(g, b, y, sizeof y),
         bounds_text(g, &both, bounds, sizeof bounds));
    return INT64_MIN;
}

static int64_t length_sum(const char *op, int64_t a, int64_t b, int64_t by)
{
    struct thread *t = thread_self();
    int64_t sum = 0;
    if (!t || a == INT64_MIN || b == INT64_MIN || !lengths_of(t, op, &a, &b))
        return INT64_MIN;
    bool ok = dims_sum(open_graph(t), 2, (struct scaled[]){{a, 1}, {b, by}}, 0, &sum);
    return length_result(t, op, a, b, ok, sum);
}

int64_t kl_length_add(int64_t a, int64_t b) { return length_sum("length_add", a, b, 1); }
int64_t kl_length_sub(int64_t a, int64_t b) { return length_sum("length_sub", a, b, -1); }

int64_t kl_length_mul(int64_t a, int64_t b)
{
    struct thread *t = thread_self();
    int64_t product = 0;
    if (!t || a == INT64_MIN || b == INT64_MIN || !lengths_of(t, "length_mul", &a, &b))
        return INT64_MIN;
    bool ok = dim_multiply(open_graph(t), a, b, &product);
    return length_result(t, "length_mul", a, b, ok, product);
}

int64_t kl_length_div(int64_t a, int64_t b)
{
    struct thread *t = thread_self();
    int64_t quotient = 0;
    if (!t || a == INT64_MIN || b == INT64_MIN || !lengths_of(t, "length_div", &a, &b))
        return INT64_MIN;
    if (!b)
        return fail(t, KL_ERR_ARGUMENT, "length_div: by 0"), INT64_MIN;
    struct graph *g = open_graph(t);
    const struct shape whole = {.rank = 1, .dim = {a}}, part = {.rank = 1, .dim = {b}};
    bool ok = b > 0 ? dim_divide(g, a, b, &quotient) : shape_rest(g, &whole, &part, &quotient);
    return length_result(t, "length_div", a, b, ok, quotient);
}

bool kl_length_range(int64_t length, int64_t *low, int64_t *high)
{
    struct thread *t = thread_self();
    struct graph *g = t ? open_graph(t) : NULL;
    struct shape s = {.rank = 1, .dim = {length}};
    struct err e = {.code = KL_OK};
    return t && (!g || symbolic_lengths(g, &s, false, &e)) && dim_range(g, s.dim[0], low, high);
}

kl_tensor kl_length_scalar(kl_device device, kl_dtype dtype, int64_t length)
{
    struct thread *t = thread_self();
    int64_t one = 1;
    if (!t || length >= 0)
        return kl_const(device, dtype, (double)length);
    if (length == INT64_MIN || !lengths_of(t, "length_scalar", &length, &one))
        return poison(t);
    kl_tensor like = kl_const(device, dtype, 0); /* checks the device and the dtype */
    struct view v;
    if (!describe(t, "length_scalar", "the result", like, &v))
        return like;
    v.shape = (struct shape){.rank = 1, .dim = {length}};
    return count_like(t, "length_scalar", &v, 1, 0);
}

/* ---- values ---- */

static bool uses_symbol(const struct graph *g, uint32_t symbol)
{
    for (ref r = 1; r < g->nnode; r++) {
        const struct shape *s = node_shape(g, r);
        struct affine a;
        for (uint32_t i = 0; i < s->rank; i++)
            for (uint32_t k = s->dim[i] < 0 && dim_affine(g, s->dim[i], &a) ? a.n : 0; k-- > 0;)
                if (a.term[k].symbol == symbol || a.term[k].times == symbol + 1)
                    return true;
    }
    return false;
}

/* Within the bounds of its symbols. */
static int64_t value_of(const struct graph *g, int64_t dim, const uint64_t *slot)
{
    struct affine a;
    dim_affine(g, dim, &a);
    int64_t v = a.constant;
    for (uint32_t i = 0; i < a.n; i++) {
        int64_t part = 0;
        term_value(&a.term[i], (const int64_t *)slot + g->slot.n, &part);
        v += part;
    }
    return v;
}

struct shape symbolic_actual(const struct graph *g, const struct shape *s, const uint64_t *slot)
{
    struct shape out = *s;
    for (uint32_t i = 0; g->symbols && i < s->rank; i++)
        if (s->dim[i] < 0)
            out.dim[i] = value_of(g, s->dim[i], slot);
    return out;
}

static bool match_inputs(const struct graph *g, const struct shape *actual, int64_t *value, struct err *e)
{
    enum { FEW = 8 };
    struct extents some[FEW], *x = some;
    char few[FEW][24], (*name)[24] = few;
    uint32_t n = 0;
    if (g->input.n > FEW) {
        x = mem_alloc(g->input.n * sizeof *x);
        name = mem_alloc(g->input.n * sizeof *name);
    }
    bool ok = x && name;
    for (uint32_t i = 0; ok && i < g->input.n; i++) {
        const struct shape *want = &g->shape[g->input.v[i].shape];
        if (!shape_is_symbolic(want))
            continue;
        snprintf(name[n], sizeof name[n], "input %u", i + 1);
        x[n] = (struct extents){name[n], *want, actual[i]};
        n++;
    }
    ok = ok ? symbols_match(g, x, n, value, e) : err_set(e, KL_ERR_MEMORY, "out of memory");
    if (x != some)
        mem_free(x);
    if (name != few)
        mem_free(name);
    return ok;
}

bool symbolic_values(const struct graph *g, const struct shape *actual, const int64_t *length, uint64_t *slot,
                     struct err *e)
{
    int64_t value[MAX_SYMBOLS];
    for (uint32_t i = 0; i < g->symbols->n; i++)
        value[i] = NO_VALUE;
    if (!match_inputs(g, actual, value, e))
        return false;
    for (uint32_t i = 0; i < g->symbols->n; i++) {
        if (value[i] == NO_VALUE && uses_symbol(g, i))
            return err_set(e, KL_ERR_SHAPE, "no input says what symbol %s is", g->symbols->v[i].name);
        slot[g->slot.n + i] = (uint64_t)(value[i] == NO_VALUE ? g->symbols->v[i].low : value[i]);
    }
    for (uint32_t i = 0; length && i < g->slot.n; i++)
        if (length[i])
            slot[i] = dtype_bits(g->slot.v[i].dtype, (double)value_of(g, length[i], slot));
    return true;
}

/* ---- inputs ---- */

kl_tensor kl_input_symbolic(kl_device device, kl_dtype dtype, int rank, const int64_t *lengths,
                            const int64_t *dims, const void *data)
{
    static const char op[] = "input_symbolic";
    struct thread *t = thread_self();
    struct symbolic x = {.lengths = {0}};
    struct trace *tr = t ? thread_trace(t) : NULL;
    if (!t)
        return kl_none;
    if (!tr || tr->region)
        return refuse(t, KL_ERR_TRACE, "%s: %s", op, tr ? "a region is recorded" : "no trace is open");
    if (!shape_of(t, op, rank, dims, &x.actual))
        return poison(t);
    if (rank && !lengths)
        return refuse(t, KL_ERR_ARGUMENT, "%s: lengths is NULL", op);
    x.lengths = shape_make((uint32_t)rank, lengths);
    bool any = false;
    for (int i = 0; i < rank; i++) {
        any |= length_is(lengths[i]);
        if (!length_is(lengths[i]) && lengths[i] != dims[i])
            return refuse(t, KL_ERR_SHAPE, "%s: axis %d has %" PRId64 " elements, but is to have %" PRId64, op, i,
                          dims[i], lengths[i]);
    }
    return input_of(op, device, dtype, &x.actual, any ? &x : NULL, data);
}
