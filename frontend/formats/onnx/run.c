/* Runs a call: frames of values, the nodes of a graph in order, and values that are known while recording. */
#include "onnx.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

static void list_unref(struct list *l)
{
    if (!l || --l->refs)
        return;
    for (uint32_t i = 0; i < l->n; i++)
        onnx_value_clear(&l->v[i]);
    free(l->v);
    free(l);
}

void onnx_value_clear(struct value *v)
{
    array_unref(v->known);
    list_unref(v->list);
    *v = (struct value){0};
}

void onnx_value_copy(struct value *to, const struct value *from)
{
    struct value copy = *from;
    array_ref(copy.known);
    if (copy.list)
        copy.list->refs++;
    copy.maker = NULL; /* it may end with its frame */
    copy.steady = false; /* another branch may give another value */
    onnx_value_clear(to);
    *to = copy;
}

struct value *frame_value(struct frame *f, struct place p)
{
    for (uint32_t i = 0; i < p.up && f; i++)
        f = f->outer;
    return p.at == NO_PLACE || !f ? NULL : &f->v[p.at];
}

bool frame_open(struct frame *f, const struct graph_def *g, struct frame *outer, struct run *r)
{
    *f = (struct frame){.g = g, .outer = outer};
    f->v = calloc(g->nvalue + 1, sizeof *f->v);
    f->node = calloc(g->nnode + 1, sizeof *f->node);
    if (!f->v || !f->node) {
        frame_close(f);
        return false;
    }
    for (uint32_t i = 0; i < g->nnode; i++)
        f->node[i] = (struct node){.def = &g->node[i], .frame = f, .run = r};
    for (uint32_t i = 0; i < g->ninitial; i++) {
        const struct initial *x = &g->initial[i];
        struct value *v = &f->v[x->at];
        v->set = true;
        v->weight = x->weight < 0 ? NULL : &r->m->weight[x->weight];
        if (v->weight)
            v->t = v->weight->t;
        else
            v->known = array_ref(x->array);
        v->constant = v->known != NULL;
        v->steady = true;
        v->element = x->array->element;
    }
    for (uint32_t i = 0; g->in_element && i < g->nin; i++)
        f->v[g->in[i]].element = g->in_element[i];
    return true;
}

void frame_close(struct frame *f)
{
    for (uint32_t i = 0; f->v && i < f->g->nvalue; i++)
        onnx_value_clear(&f->v[i]);
    free(f->v);
    free(f->node);
    f->v = NULL;
    f->node = NULL;
}

/* ---- functions that operators call ---- */

bool onnx_fails(struct node *n, kl_status code, const char *fmt, ...)
{
    char text[900];
    va_list ap;
    va_start(ap, fmt);
    int used = snprintf(text, sizeof text, "%s: ", n->def->proto->op_type);
    vsnprintf(text + used, sizeof text - (size_t)used, fmt, ap);
    va_end(ap);
    kl_fail(code, text);
    n->run->reported = true;
    return false;
}

uint32_t onnx_nin(const struct node *n) { return (uint32_t)n->def->proto->n_input; }
uint32_t onnx_nout(const struct node *n) { return (uint32_t)n->def->proto->n_output; }

struct value *onnx_value(const struct node *n, uint32_t i)
{
    return i < onnx_nin(n) ? frame_value(n->frame, n->def->in[i]) : NULL;
}

bool onnx_has(const struct node *n, uint32_t i)
{
    const struct value *v = onnx_value(n, i);
    return v && v->set;
}

bool onnx_wants(const struct node *n, uint32_t i) { return i < onnx_nout(n) && n->def->out[i] != NO_PLACE; }

kl_device onnx_device(const struct node *n) { return n->run->folding ? n->run->m->folding : n->run->m->device; }

struct type onnx_type_of(kl_tensor t)
{
    struct type y = {.dtype = kl_dtype_of(t)};
    y.rank = kl_shape(t, y.dims);
    return y;
}

struct type array_type(const struct array *a)
{
    struct type y = {.dtype = a->dtype, .rank = a->rank};
    memcpy(y.dims, a->dims, sizeof y.dims);
    return y;
}

bool onnx_type(struct node *n, uint32_t i, struct type *t)
{
    const struct value *v = onnx_value(n, i);
    if (!v || !v->set)
        return onnx_fails(n, KL_ERR_ARGUMENT, "it needs operand %u", i);
    if (v->list)
        return onnx_fails(n, KL_ERR_TYPE, "operand %u is a sequence, not a tensor", i);
    if (v->t.id && !n->run->folding) {
        *t = onnx_type_of(v->t);
        return t->rank >= 0 || onnx_fails(n, KL_ERR_HANDLE, "operand %u is no tensor", i);
    }
    const struct array *a = v->known;
    if (!a && v->weight)
        a = v->weight->array;
    if (!a)
        return onnx_fails(n, KL_ERR_TYPE, "operand %u is an optional without a value", i);
    *t = array_type(a);
    return true;
}

int32_t onnx_element(const struct node *n, uint32_t i)
{
    const struct value *v = onnx_value(n, i);
    return !v ? 0 : v->element ? v->element : v->known ? v->known->element : 0;
}

/* ---- known arrays as tensors ---- */

static uint64_t array_hash(const struct array *a)
{
    uint64_t h = (uint64_t)a->dtype * 31 + (uint64_t)a->count;
    const uint8_t *p = a->data;
    for (size_t i = 0, n = (size_t)a->count * kl_dtype_size(a->dtype); i < n; i++)
        h = (h ^ p[i]) * UINT64_C(1099511628211);
    return h;
}

static bool array_same(const struct array *a, const struct array *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && a->count == b->count &&
           !memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) &&
           !memcmp(a->data, b->data, (size_t)a->count * kl_dtype_size(a->dtype));
}

bool run_suspend(struct kl_model *m)
{
    if (m->suspended == 0 && kl_trace_suspend() != KL_OK)
        return false;
    m->suspended++;
    return true;
}

void run_resume(struct kl_model *m)
{
    if (--m->suspended == 0)
        kl_trace_resume();
}

/* Makes a constant that exists as long as the model, so that equal numbers in another call give the same tensor. */
static kl_tensor run_pooled(struct kl_model *m, struct array *a)
{
    uint64_t hash = array_hash(a);
    for (uint32_t i = 0; i < m->npool; i++)
        if (m->pool[i].hash == hash && array_same(m->pool[i].array, a))
            return m->pool[i].t;
    if (m->suspended) /* of a probe, in a region of which nothing can be kept */
        return kl_input(m->device, a->dtype, a->rank, a->dims, a->data);
    if (m->npool == m->pool_cap) {
        uint32_t cap = m->pool_cap ? 2 * m->pool_cap : 16;
        struct pooled *more = realloc(m->pool, cap * sizeof *more);
        if (!more)
            return kl_fail(KL_ERR_MEMORY, "a constant: out of memory"), kl_none;
        m->pool = more;
        m->pool_cap = cap;
    }
    if (!run_suspend(m))
        return kl_none;
    kl_tensor t = kl_keep(kl_input(m->device, a->dtype, a->rank, a->dims, a->data));
    bool ok = kl_check(t) == KL_OK;
    run_resume(m);
    if (!ok) {
        char why[600];
        snprintf(why, sizeof why, "a constant: %s", kl_last_error());
        return kl_fail(kl_last_error_code(), why), kl_none;
    }
    m->pool[m->npool++] = (struct pooled){array_ref(a), t, hash};
    return t;
}

kl_tensor onnx_number(struct node *n, kl_dtype dtype, double v) { return kl_const(onnx_device(n), dtype, v); }

/* Is the first element exact as a double?  A u64 of 2^63 or more is below 0 here. */
static bool is_exact(const struct array *a)
{
    int64_t v = array_int(a, 0);
    return (a->dtype != KL_I64 && a->dtype != KL_U64) ||
           (v <= INT64_C(1) << 53 && v >= (a->dtype == KL_U64 ? 0 : -(INT64_C(1) << 53)));
}

kl_tensor onnx_constant_of(struct kl_model *m, struct array *a)
{
    if (a->count == 0)
        return kl_zeros(m->device, a->dtype, a->rank, a->dims);
    if (a->count > 1 || !is_exact(a))
        return run_pooled(m, a);
    kl_tensor t = kl_const(m->device, a->dtype, array_float(a, 0));
    return a->rank ? kl_reshape(t, a->rank, a->dims) : t;
}

static kl_tensor array_recorded(struct node *n, struct array *a)
{
    if (a->symbolic && n->run->folding)
        return onnx_fails(n, KL_ERR_SHAPE, "a symbolic length has to be known while recording"), kl_none;
    if (a->symbolic)
        return onnx_lengths_tensor(n->run->m->device, a);
    if (n->run->folding)
        return kl_input(onnx_device(n), a->dtype, a->rank, a->dims, a->data);
    return onnx_constant_of(n->run->m, a);
}

kl_tensor onnx_tensor(struct node *n, struct array *a)
{
    if (!a)
        return onnx_fails(n, KL_ERR_MEMORY, "out of memory"), kl_none;
    kl_tensor t = array_recorded(n, a);
    array_unref(a);
    return t;
}

kl_tensor onnx_in(struct node *n, uint32_t i)
{
    struct value *v = onnx_value(n, i);
    if (!v || !v->set)
        return kl_none;
    if (v->list)
        return onnx_fails(n, KL_ERR_TYPE, "operand %u is a sequence, not a tensor", i), kl_none;
    if (v->t.id && !n->run->folding)
        return v->t;
    struct array *a = v->known ? v->known : v->weight ? v->weight->array : NULL;
    if (!a)
        return onnx_fails(n, KL_ERR_TYPE, "operand %u is an optional without a value", i), kl_none;
    kl_tensor t = array_recorded(n, a);
    if (!n->run->folding && !n->run->m->suspended && a->count > 1 && !a->symbolic && kl_check(t) == KL_OK)
        v->t = t; /* a tensor of the pool, which belongs to no trace or region */
    return t;
}

/* ---- results ---- */

static struct value *result_of(struct node *n, uint32_t i)
{
    if (!onnx_wants(n, i))
        return NULL;
    struct value *v = &n->frame->v[n->def->out[i]];
    if (!n->run->folding || !v->t.id)
        onnx_value_clear(v);
    v->set = true;
    return v;
}

static struct array *array_of_tensor(kl_tensor t, const struct type *y)
{
    struct array *a = y->rank < 0 ? NULL : array_new(y->dtype, y->rank, y->dims);
    if (a && kl_read_at(NULL, t, a->data, (size_t)a->count * kl_dtype_size(a->dtype)) == KL_OK)
        return a;
    if (!a)
        kl_fail(y->rank < 0 ? KL_ERR_HANDLE : KL_ERR_MEMORY, y->rank < 0 ? "it is no tensor" : "out of memory");
    array_unref(a);
    return NULL;
}

/* Is the work for an element of the result proportional to an operand's size?  Such a node of a small file can be
 * hours of work for the interpreter. */
static bool run_is_product(const struct node *n)
{
    static node_fn *const fn[] = {onnx_conv, onnx_conv_integer, onnx_conv_transpose, onnx_deform_conv, onnx_dft,
                                  onnx_einsum, onnx_gemm, onnx_matmul, onnx_matmul_integer, onnx_qlinear_conv,
                                  onnx_qlinear_matmul, onnx_rnn, onnx_stft};
    for (size_t i = 0; n->def->op && i < sizeof fn / sizeof *fn; i++)
        if (n->def->op->fn == fn[i])
            return true;
    return false;
}

/* An upper bound of the multiplications for a result: each element is a sum over at most the smaller of the first two
 * operands. */
static int64_t run_work(const struct node *n, kl_tensor result)
{
    int64_t min = INT64_MAX;
    if (!run_is_product(n))
        return 0;
    for (uint32_t i = 0; i < 2; i++) {
        const struct value *v = onnx_value(n, i);
        int64_t count = v && v->known ? v->known->count : INT64_MAX;
        min = count < min ? count : min;
    }
    int64_t elements = kl_numel(result);
    return elements && min > INT64_MAX / elements ? INT64_MAX : elements * min;
}

bool onnx_give(struct node *n, uint32_t i, kl_tensor t)
{
    if (!t.id) /* kl_none: of an operand that is missing, or of a function that has reported why */
        return n->run->reported ? false : onnx_fails(n, KL_ERR_ARGUMENT, "it lacks an operand that it needs");
    if (kl_check(t) != KL_OK)
        return false;
    struct value *v = result_of(n, i);
    if (!v)
        return true;
    v->maker = n;
    if (!n->run->folding) {
        v->t = t;
        return true;
    }
    int64_t work = run_work(n, t);
    n->run->large |= (kl_numel(t) > FOLDED_MAX || work > FOLDED_WORK) && !n->run->demanded;
    if (work > DEMANDED_WORK && n->run->demanded)
        return onnx_fails(n, KL_ERR_ARGUMENT, "its result has to be known while recording; it takes up to %lld "
                          "multiplications, and at most %lld are made on the host", (long long)work,
                          (long long)DEMANDED_WORK);
    if (n->run->large)
        return true;
    array_unref(v->known);
    struct type y = onnx_type_of(t);
    v->known = array_of_tensor(t, &y);
    v->constant = v->known && !v->t.id;
    return v->known != NULL;
}

bool onnx_give_element(struct node *n, uint32_t i, kl_tensor t, int32_t element)
{
    if (!onnx_give(n, i, t))
        return false;
    if (onnx_wants(n, i))
        n->frame->v[n->def->out[i]].element = element;
    return true;
}

bool onnx_give_known(struct node *n, uint32_t i, struct array *a)
{
    struct value *v = a ? result_of(n, i) : NULL;
    if (!a)
        return onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    if (v) {
        array_unref(v->known);
        v->known = a;
        v->constant = !v->t.id && !a->symbolic;
    } else {
        array_unref(a);
    }
    return true;
}

bool onnx_give_value(struct node *n, uint32_t i, const struct value *from)
{
    struct value *v = result_of(n, i);
    if (v)
        onnx_value_copy(v, from);
    return true;
}

/* ---- folding ---- */

static bool run_evaluate(struct node *n, struct value *v, uint32_t i);

bool run_operator(struct node *n)
{
    struct run *r = n->run;
    const char *outer = r->misread; /* of the node whose graph this one is in */
    r->misread = NULL;
    bool ok = strings_check(n) && n->def->op->fn(n);
    if (ok)
        strings_mark(n);
    if (r->misread)
        ok = onnx_fails(n, KL_ERR_TYPE, "attribute %.100s is of another type than the operator's", r->misread);
    r->misread = outer;
    return ok;
}

/* Runs the node on the host, after its operands have been computed there.  large: its results are too large, and are
 * not set. */
static bool run_fold(struct node *n, bool demanded, bool *large)
{
    struct run *r = n->run;
    *large = false;
    if (r->depth >= DEEPEST)
        return onnx_fails(n, KL_ERR_ARGUMENT, "too many nodes to compute on the host, one for another");
    if (++r->folds > FOLDS_MAX)
        return onnx_fails(n, KL_ERR_ARGUMENT, "more than %d nodes to compute on the host", FOLDS_MAX);
    r->depth++;
    for (uint32_t i = 0; i < onnx_nin(n); i++) {
        struct value *v = onnx_value(n, i);
        bool lengths = v && v->set && v->known && v->known->symbolic;
        if (lengths)
            onnx_fails(n, KL_ERR_SHAPE, "the value of operand %u has to be known while recording; it has a symbolic "
                       "length", i);
        if (lengths || (v && v->set && !run_evaluate(n, v, i))) {
            r->depth--;
            return false;
        }
    }
    bool suspended = run_suspend(r->m), ok = suspended && kl_scope_begin() == KL_OK;
    if (!ok) {
        if (suspended)
            run_resume(r->m);
        r->depth--;
        return onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    }
    struct run outer = *r; /* which may be folding, too */
    r->folding = true;
    r->large = false;
    r->demanded = demanded;
    ok = run_operator(n);
    *large = r->large;
    r->folding = outer.folding;
    r->large = outer.large;
    r->demanded = outer.demanded;
    kl_scope_end();
    run_resume(r->m);
    r->depth--;
    for (uint32_t i = 0; *large && i < onnx_nout(n); i++)
        if (n->def->out[i] != NO_PLACE)
            onnx_value_clear(&n->frame->v[n->def->out[i]]);
    return ok || kl_fail(kl_last_error_code(), kl_last_error()) == KL_OK; /* in the resumed trace, too */
}

static const char *operand_name(const struct node *n, uint32_t i)
{
    return i < onnx_nin(n) ? n->def->proto->input[i] : "of a region";
}

const struct array *onnx_numbers(const struct node *n, uint32_t i)
{
    const struct value *v = onnx_value(n, i);
    return v && v->set && v->known && !v->known->symbolic ? v->known : NULL;
}

bool onnx_try_read(struct node *n, struct value *v)
{
    n->run->varied |= v->varies;
    if (v->known || !v->t.id || !(v->given || !n->run->tracing))
        return v->known && !v->known->symbolic;
    struct type y = onnx_type_of(v->t); /* before run_suspend: handles of a suspended trace cannot be read */
    if (!run_suspend(n->run->m))
        return false;
    v->known = array_of_tensor(v->t, &y);
    run_resume(n->run->m);
    return v->known != NULL;
}

static bool run_read(struct node *n, struct value *v, uint32_t i)
{
    if (onnx_try_read(n, v))
        return true;
    char why[600];
    snprintf(why, sizeof why, "%s", kl_last_error());
    return onnx_fails(n, kl_last_error_code(), "the value of operand %u ('%.100s') has to be known while recording: %s",
                      i, operand_name(n, i), why);
}

static bool run_evaluate(struct node *n, struct value *v, uint32_t i)
{
    bool large;
    if (v->known)
        return true;
    if (v->list)
        return onnx_fails(n, KL_ERR_TYPE, "operand %u is a sequence, not a tensor", i);
    if (v->weight) {
        v->known = array_ref(v->weight->array);
        return true;
    }
    if (v->t.id && (v->given || !n->run->tracing))
        return run_read(n, v, i);
    if (v->maker)
        return run_fold(v->maker, true, &large) && v->known;
    return onnx_fails(n, KL_ERR_TRACE, "the value of operand %u ('%.100s') has to be known while recording; it depends "
                      "on what only a run computes (outside of a trace it could be read)", i, operand_name(n, i));
}

static bool can_evaluate(const struct node *n, const struct value *v, unsigned depth)
{
    if (v->known || v->weight || (v->t.id && v->given))
        return !v->list && !v->varies && !(v->known && v->known->symbolic);
    const struct node *maker = v->maker;
    bool can = maker && maker->def->op && depth < DEEPEST;
    for (uint32_t i = 0; can && i < onnx_nin(maker); i++) {
        const struct value *operand = onnx_value(maker, i);
        can = !operand || !operand->set || can_evaluate(n, operand, depth + 1);
    }
    return can;
}

bool onnx_can_evaluate(const struct node *n, const struct value *v) { return can_evaluate(n, v, 0); }

bool onnx_evaluate(struct node *n, struct value *v, uint32_t i) { return run_evaluate(n, v, i); }

/* Does the operator take symbolic lengths where it needs numbers while recording? */
static bool run_reads_lengths(const struct node *n)
{
    node_fn *fn = n->def->op->fn;
    return fn == onnx_reshape || fn == onnx_expand || fn == onnx_constant_of_shape || fn == onnx_slice ||
           fn == onnx_range;
}

const struct array *onnx_known(struct node *n, uint32_t i)
{
    struct value *v = onnx_value(n, i);
    if (v && v->known && v->known->symbolic && (n->run->folding || !run_reads_lengths(n)))
        return onnx_fails(n, KL_ERR_SHAPE, "operand %u ('%.100s') has a symbolic length, which this operator does not "
                          "take as a number", i, operand_name(n, i)), NULL;
    if (!v || !v->set)
        return onnx_fails(n, KL_ERR_ARGUMENT, "it needs operand %u", i), NULL;
    n->run->varied |= v->varies;
    if (n->run->folding)
        return v->known || run_evaluate(n, v, i) ? v->known : NULL; /* run_fold has computed it */
    return run_evaluate(n, v, i) ? v->known : NULL;
}

bool onnx_ints(struct node *n, uint32_t i, int64_t *v, int max, int *count)
{
    const struct array *a = onnx_known(n, i);
    if (!a)
        return false;
    if (a->count > max || a->rank > 1)
        return onnx_fails(n, KL_ERR_SHAPE, "operand %u has %lld numbers and %d axes, not a list of %d", i,
                          (long long)a->count, a->rank, max);
    for (int64_t k = 0; k < a->count; k++)
        v[k] = array_int(a, k);
    *count = (int)a->count;
    return true;
}

/* The operand, of one number; NULL: reported. */
static const struct array *known_one(struct node *n, uint32_t i)
{
    const struct array *a = onnx_known(n, i);
    if (a && a->count != 1)
        return onnx_fails(n, KL_ERR_SHAPE, "operand %u ('%.100s') has %lld numbers, not one", i, operand_name(n, i),
                          (long long)a->count), NULL;
    return a;
}

bool onnx_known_int(struct node *n, uint32_t i, int64_t *v)
{
    const struct array *a = known_one(n, i);
    if (a)
        *v = array_int(a, 0);
    return a != NULL;
}

bool onnx_known_float(struct node *n, uint32_t i, double *v)
{
    const struct array *a = known_one(n, i);
    if (a)
        *v = array_float(a, 0);
    return a != NULL;
}

/* Can the node be folded?  It has operands, and all are known constants. */
static bool run_can_fold(const struct node *n)
{
    int64_t all = 0;
    if (!onnx_nin(n) || !n->def->op || n->def->op->arg == ONNX_NEVER_FOLDED || n->def->op->fn == onnx_random ||
        n->run->folds >= FOLDS_MAX)
        return false;
    for (uint32_t i = 0; i < onnx_nin(n); i++) {
        const struct value *v = onnx_value(n, i);
        if (!v || !v->set)
            continue;
        if (!v->constant)
            return false;
        all += v->known->count;
    }
    return all <= FOLDED_MAX;
}

/* ---- nodes ---- */

static void make_site(const struct kl_model *m, struct node_def *d, const struct graph_def *g)
{
    char text[400];
    const Onnx__NodeProto *p = d->proto;
    int line = (int)(d - g->node) + 1;
    snprintf(text, sizeof text, p->name && *p->name ? "%.120s: node '%.160s' (%.60s, opset %d)"
             : "%.120s: node%.160s (%.60s, opset %d)", m->label, p->name && *p->name ? p->name : "", p->op_type,
             d->opset);
    d->site = site_forever(text, line, p->op_type);
}

static bool run_function(struct node *n)
{
    const struct graph_def *g = n->def->function;
    struct value *out = calloc(g->nout + 1, sizeof *out), *in = calloc(onnx_nin(n) + 1, sizeof *in);
    bool ok = (out && in) || onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    for (uint32_t i = 0; ok && i < onnx_nin(n); i++)
        if (onnx_has(n, i))
            onnx_value_copy(&in[i], onnx_value(n, i));
    ok = ok && graph_run(n, g, in, onnx_nin(n), out);
    for (uint32_t i = 0; ok && i < onnx_nout(n) && i < g->nout; i++)
        ok = onnx_give_value(n, i, &out[i]);
    for (uint32_t i = 0; out && i < g->nout; i++)
        onnx_value_clear(&out[i]);
    for (uint32_t i = 0; in && i < onnx_nin(n); i++)
        onnx_value_clear(&in[i]);
    free(in);
    free(out);
    return ok;
}

/* Does the operator take operands with symbolic lengths?  Their lengths are negative numbers (kl_symbol), with which
 * most operators would compute. */
static bool run_takes_symbols(const struct node *n)
{
    static node_fn *const fn[] = {
        onnx_unary, onnx_binary, onnx_cast, onnx_cast_like, onnx_elu, onnx_clip, onnx_gelu, onnx_hard_sigmoid,
        onnx_hard_swish, onnx_softmax, onnx_identity, onnx_is_inf, onnx_leaky_relu, onnx_variadic, onnx_mod, onnx_prelu,
        onnx_pow, onnx_relu, onnx_shrink, onnx_sign, onnx_softsign, onnx_thresholded_relu, onnx_where, onnx_gemm,
        onnx_matmul, onnx_reduce, onnx_concat, onnx_flatten, onnx_gather, onnx_pad, onnx_reshape, onnx_shape,
        onnx_slice, onnx_squeeze, onnx_transpose, onnx_unsqueeze, onnx_expand, onnx_size, onnx_trilu, onnx_split,
        onnx_average_pool, onnx_max_pool, onnx_batch_norm,
        onnx_conv, onnx_dropout, onnx_global_pool, onnx_layer_norm, onnx_rnn, onnx_arg, onnx_bit_shift, onnx_cumsum,
        onnx_einsum, onnx_nll_loss, onnx_softmax_cross_entropy, onnx_mean_variance_norm, onnx_lp_norm, onnx_lrn,
        onnx_optimizer, onnx_quantize_linear, onnx_dequantize_linear, onnx_dynamic_quantize_linear, onnx_tile,
        onnx_gather_elements, onnx_gather_nd, onnx_scatter_elements, onnx_scatter_nd, onnx_instance_norm,
        onnx_depth_space, onnx_conv_transpose, onnx_conv_integer, onnx_matmul_integer, onnx_qlinear_conv,
        onnx_qlinear_matmul, onnx_qgemm, onnx_dynamic_quantize_matmul, onnx_matmul_integer_to_float,
        onnx_dynamic_quantize_lstm, onnx_qlinear_binary, onnx_qlinear_unary, onnx_qlinear_softmax,
        onnx_qlinear_average_pool, onnx_qlinear_global_average_pool, onnx_qlinear_concat,
        onnx_bias_gelu, onnx_fused_conv, onnx_fused_gemm, onnx_fused_matmul, onnx_skip_layer_norm,
        onnx_attention, onnx_linear_attention, onnx_rms_norm, onnx_rotary_embedding, onnx_swish, onnx_tensor_scatter};
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++)
        if (n->def->op->fn == fn[i])
            return true;
    return false;
}

/* Only these operators have no operand, or may leave out the first one. */
static bool run_needs_operand(const struct node *n)
{
    static node_fn *const fn[] = {onnx_constant, onnx_random, onnx_sequence_empty, onnx_sequence_construct,
                                  onnx_optional, onnx_optional_has, onnx_loop};
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++)
        if (n->def->op->fn == fn[i])
            return false;
    return true;
}

static bool run_checks_operands(struct node *n)
{
    if (run_needs_operand(n) && !onnx_has(n, 0))
        return onnx_fails(n, KL_ERR_ARGUMENT, "it needs operand 0");
    for (uint32_t i = 0; !n->run->folding && i < onnx_nin(n); i++) {
        const struct value *v = onnx_value(n, i);
        struct type t = {.rank = 0};
        if (v && v->set && v->t.id)
            t = onnx_type_of(v->t);
        for (int k = 0; k < t.rank; k++)
            if (t.dims[k] < 0 && !run_takes_symbols(n))
                return onnx_fails(n, KL_ERR_SHAPE, "axis %d of operand %u ('%.100s') has a symbolic length, which this "
                                  "operator does not take", k, i, operand_name(n, i));
    }
    return true;
}

/* Marks results that are known because operands are, if these vary between the rounds of a loop. */
static bool run_marks_varying(struct node *n)
{
    bool varies = false;
    for (uint32_t i = 0; i < onnx_nin(n); i++) {
        const struct value *v = onnx_value(n, i);
        varies |= v && v->varies;
    }
    for (uint32_t i = 0; varies && i < onnx_nout(n); i++)
        if (n->def->out[i] != NO_PLACE)
            n->frame->v[n->def->out[i]].varies |= n->frame->v[n->def->out[i]].known != NULL;
    return true;
}

static bool run_node(struct node *n)
{
    const struct node_def *d = n->def;
    struct run *r = n->run;
    if (++r->steps > STEPS_MAX)
        return onnx_fails(n, KL_ERR_ARGUMENT, "the model runs more than %d nodes", STEPS_MAX);
    if (d->function)
        return run_function(n);
    bool large = true, done, steady = once_is_steady(n);
    if (!onnx_lengths_node(n, &done) || (!done && !run_checks_operands(n)))
        return false;
    if (!done && run_can_fold(n) && !run_fold(n, false, &large))
        return false;
    if (!done && large && steady && !once_node(n, &done))
        return false;
    if (!done && large && !run_operator(n))
        return false;
    if (steady)
        once_mark(n);
    return run_marks_varying(n);
}

bool frame_run(struct frame *f, struct run *r)
{
    if (r->depth >= DEEPEST)
        return kl_fail(KL_ERR_ARGUMENT, "graphs in one another are too deep") == KL_OK;
    r->depth++;
    bool ok = true;
    const kl_site *outer = kl_set_call_site(NULL);
    for (uint32_t i = 0; ok && i < f->g->nnode; i++) {
        if (!f->g->node[i].site)
            make_site(r->m, &f->g->node[i], f->g);
        kl_set_call_site(f->g->node[i].site); /* a node's calls, and its errors, have its place in the file */
        ok = run_node(&f->node[i]);
    }
    kl_set_call_site(outer);
    r->depth--;
    return ok;
}

/* Runs a graph in a frame of its own: a graph that is an attribute of n, or a function, which cannot refer to values
 * outside.  out: room for all its results, zeroed. */
bool graph_run(struct node *n, const struct graph_def *g, const struct value *in, uint32_t nin, struct value *out)
{
    struct frame f;
    bool inside = g->proto != NULL;
    if (!frame_open(&f, g, inside ? n->frame : NULL, n->run))
        return onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    f.caller = inside ? NULL : n;
    for (uint32_t i = 0; i < nin && i < g->nin; i++)
        onnx_value_copy(&f.v[g->in[i]], &in[i]);
    bool ok = frame_run(&f, n->run);
    for (uint32_t i = 0; ok && i < g->nout; i++) {
        const struct value *v = frame_value(&f, g->out[i]);
        if (!v || !v->set)
            ok = onnx_fails(n, KL_ERR_ARGUMENT, "its graph gives no result %u", i);
        else
            onnx_value_copy(&out[i], v);
    }
    frame_close(&f);
    return ok;
}
