/* If, Loop and Scan.  If conditions and counts are known while recording, a graph is recorded once for each time that
 * it runs; else it becomes a region of kl_cond, kl_while or kl_scan. */
#include "frontend/formats/onnx/onnx.h"
#include <stdlib.h>
#include <string.h>

enum { UNROLLED_MAX = 64, ROUNDS_MAX = 1 << 16, CARRIED_MAX = 256 };

/* A graph that is recorded as a region. */
struct onnx_body {
    struct node *n;
    const struct graph_def *g, *other;
    uint32_t ncarried, nstacked;
    bool draws;                       /* of Scan: onnx_draws(g) */
};

static bool value_recorded(struct node *n, struct value *v, kl_tensor *t)
{
    if (v->list || (!v->t.id && !v->known))
        return onnx_fails(n, KL_ERR_TYPE, "a region takes and gives tensors only");
    *t = v->t.id ? v->t : onnx_tensor(n, array_ref(v->known));
    return kl_check(*t) == KL_OK;
}

/* Runs the graph on tensors; out: nout of its results, from number `skip` on. */
static kl_status body_run(struct onnx_body *b, const struct graph_def *g, const kl_tensor *in, uint32_t nin,
                          kl_tensor *out,
                          uint32_t skip, uint32_t nout)
{
    struct value *v = calloc(nin + 1, sizeof *v), *r = calloc(g->nout + 1, sizeof *r);
    bool ok = (v && r && skip + nout <= g->nout) || onnx_fails(b->n, KL_ERR_SHAPE, "its graph has %u results", g->nout);
    for (uint32_t i = 0; ok && i < nin; i++)
        v[i] = (struct value){.t = in[i], .set = true};
    ok = ok && graph_run(b->n, g, v, nin, r);
    for (uint32_t i = 0; ok && i < nout; i++)
        ok = value_recorded(b->n, &r[skip + i], &out[i]);
    for (uint32_t i = 0; r && i < g->nout; i++)
        onnx_value_clear(&r[i]);
    free(v);
    free(r);
    return ok ? KL_OK : kl_last_error_code();
}

/* ---- If ---- */

static kl_status then_branch(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct onnx_body *b = ctx;
    return body_run(b, b->g, in, nin, out, 0, nout);
}
static kl_status else_branch(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct onnx_body *b = ctx;
    return body_run(b, b->other, in, nin, out, 0, nout);
}

static bool run_branch(struct node *n, const struct graph_def *g)
{
    struct value *out = calloc(g->nout + 1, sizeof *out);
    bool ok = out && graph_run(n, g, NULL, 0, out);
    for (uint32_t i = 0; ok && i < onnx_nout(n) && i < g->nout; i++)
        ok = onnx_give_value(n, i, &out[i]);
    for (uint32_t i = 0; out && i < g->nout; i++)
        onnx_value_clear(&out[i]);
    free(out);
    return ok;
}

static bool same_types(const struct type *a, const struct type *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (a[i].dtype != b[i].dtype || a[i].rank != b[i].rank ||
            memcmp(a[i].dims, b[i].dims, (size_t)a[i].rank * sizeof *a[i].dims))
            return false;
    return true;
}

/* Is there a branch that cannot be recorded beside the other, while which of them runs can be known?  Models have
 * branches for inputs of different lengths or rates, of which only one fits. */
static bool if_takes_one(struct node *n, const struct value *condition, const struct onnx_body *b, uint32_t nout)
{
    if (!n->run->tracing || n->run->folding || !onnx_can_evaluate(n, condition))
        return false;
    struct type *result = calloc(2 * (size_t)nout + 1, sizeof *result);
    if (!result)
        return onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    enum probe_result yes = onnx_probe(n, b->g, result, nout), no = onnx_probe(n, b->other, result + nout, nout);
    bool one = yes == PROBE_FITS && no == PROBE_FITS ? !same_types(result, result + nout, nout)
                                                     : yes == PROBE_FAILS || no == PROBE_FAILS;
    free(result);
    return one;
}

bool onnx_if(struct node *n)
{
    struct onnx_body b = {.n = n, .g = onnx_attr_graph(n, "then_branch"), .other = onnx_attr_graph(n, "else_branch")};
    struct value *c = onnx_value(n, 0);
    kl_tensor out[CARRIED_MAX];
    uint32_t nout = onnx_nout(n);
    if (!b.g || !b.other || !c || !c->set || nout > CARRIED_MAX || nout > b.g->nout || nout > b.other->nout)
        return onnx_fails(n, KL_ERR_ARGUMENT, "it needs a condition and two branches");
    int64_t known;
    if (onnx_try_read(n, c) || if_takes_one(n, c, &b, nout))
        return onnx_known_int(n, 0, &known) && run_branch(n, known ? b.g : b.other);
    kl_tensor condition = kl_reshape(onnx_in(n, 0), 0, NULL);
    onnx_region_seed(n, b.g);
    onnx_region_seed(n, b.other);
    if (kl_cond(condition, then_branch, else_branch, &b, 0, NULL, nout, out) != KL_OK)
        return false;
    for (uint32_t i = 0; i < nout; i++)
        if (!onnx_give(n, i, out[i]))
            return false;
    return true;
}

/* ---- Loop ---- */

struct onnx_loop {
    const struct graph_def *g;
    uint32_t ncarried, nstacked;
    struct value *in, *out;           /* iteration number, condition, carried; condition, carried, stacked */
    kl_tensor *row;                   /* stacked results of all iterations: row[iteration * nstacked + i] */
    uint32_t rounds, row_cap;
    int64_t max;                     /* iterations; INT64_MAX: no limit */
    bool symbolic;                    /* `most` is a symbolic length */
    bool known, starts;               /* known: `most` and `starts`, whether it runs at all, are, while recording */
};

static void loop_free(struct onnx_loop *l)
{
    for (uint32_t i = 0; l->in && i < 2 + l->ncarried; i++)
        onnx_value_clear(&l->in[i]);
    for (uint32_t i = 0; l->out && i < l->g->nout; i++)
        onnx_value_clear(&l->out[i]);
    free(l->in);
    free(l->out);
    free(l->row);
}

static struct array *known_number(kl_dtype d, int64_t v)
{
    struct array *a = array_new(d, 0, NULL);
    if (a)
        memcpy(a->data, &v, kl_dtype_size(d));
    return a;
}

static bool loop_rows(struct node *n, struct onnx_loop *l)
{
    if ((l->rounds + 1) * l->nstacked > l->row_cap) {
        uint32_t cap = 2 * (l->rounds + 8) * l->nstacked;
        kl_tensor *more = realloc(l->row, cap * sizeof *more);
        if (!more)
            return onnx_fails(n, KL_ERR_MEMORY, "out of memory");
        l->row = more;
        l->row_cap = cap;
    }
    for (uint32_t i = 0; i < l->nstacked; i++)
        if (!value_recorded(n, &l->out[1 + l->ncarried + i], &l->row[l->rounds * l->nstacked + i]))
            return false;
    return true;
}

/* Records one iteration; *known: could its condition be read, and *goes_on: is that true? */
static bool loop_round(struct node *n, struct onnx_loop *l, bool *known, bool *goes_on)
{
    array_unref(l->in[0].known);
    l->in[0] = (struct value){.known = known_number(KL_I64, l->rounds), .constant = true, .varies = true,
                              .set = true};
    for (uint32_t i = 0; i < l->ncarried; i++)
        l->in[2 + i].varies = l->in[2 + i].known != NULL;
    for (uint32_t i = 0; i < l->g->nout; i++)
        onnx_value_clear(&l->out[i]);
    if (!l->in[0].known || !graph_run(n, l->g, l->in, 2 + l->ncarried, l->out))
        return l->in[0].known ? false : onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    if (!loop_rows(n, l))
        return false;
    *known = onnx_try_read(n, &l->out[0]);
    *goes_on = *known && l->out[0].known->count > 0 && array_int(l->out[0].known, 0);
    for (uint32_t i = 0; i < 1 + l->ncarried; i++)
        onnx_value_copy(&l->in[1 + i], &l->out[i]);
    l->rounds++;
    return true;
}

/* The type of stacked result i of one iteration: as the body declares it, if all of that are numbers, else that of an
 * iteration which is recorded for this, and used for nothing. */
static bool loop_row_type(struct node *n, struct onnx_loop *l, uint32_t i, struct type *t)
{
    uint32_t at = 1 + l->ncarried + i;
    const Onnx__ValueInfoProto *p = at < l->g->proto->n_output ? l->g->proto->output[at] : NULL;
    const Onnx__TypeProto__Tensor *tensor =
        p && p->type && p->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ? p->type->tensor_type : NULL;
    *t = (struct type){.dtype = tensor ? onnx_dtype(tensor->elem_type) : KL_DTYPE_COUNT};
    bool declared = t->dtype != KL_DTYPE_COUNT && tensor->shape && tensor->shape->n_dim <= KL_MAX_RANK;
    for (size_t k = 0; declared && k < tensor->shape->n_dim; k++) {
        const Onnx__TensorShapeProto__Dimension *d = tensor->shape->dim[k];
        declared = d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE && d->dim_value >= 0;
        t->dims[t->rank++] = d->dim_value;
    }
    kl_tensor row;
    if (declared)
        return true;
    l->in[0] = (struct value){.known = known_number(KL_I64, 0), .constant = true, .set = true};
    if (!l->in[0].known || !graph_run(n, l->g, l->in, 2 + l->ncarried, l->out))
        return l->in[0].known ? false : onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    if (!value_recorded(n, &l->out[at], &row))
        return false;
    *t = onnx_type_of(row);
    return true;
}

/* Stacked result i of no iterations: no rows. */
static bool loop_give_no_rows(struct node *n, struct onnx_loop *l, uint32_t i)
{
    struct type t;
    int64_t dims[KL_MAX_RANK] = {0};
    if (!loop_row_type(n, l, i, &t))
        return false;
    if (t.rank >= KL_MAX_RANK)
        return onnx_fails(n, KL_ERR_SHAPE, "stacked results of %d axes; %d are the most", t.rank + 1, KL_MAX_RANK);
    memcpy(dims + 1, t.dims, (size_t)t.rank * sizeof *dims);
    return onnx_give(n, l->ncarried + i, kl_zeros(onnx_device(n), t.dtype, t.rank + 1, dims));
}

static bool loop_give(struct node *n, struct onnx_loop *l)
{
    for (uint32_t i = 0; i < l->ncarried && i < onnx_nout(n); i++)
        if (!onnx_give_value(n, i, &l->in[2 + i]))
            return false;
    kl_tensor *part = malloc((l->rounds + 1) * sizeof *part);
    bool ok = part || onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    for (uint32_t i = 0; ok && i < l->nstacked && l->ncarried + i < onnx_nout(n); i++) {
        if (!onnx_wants(n, l->ncarried + i))
            continue;
        if (!l->rounds) {
            ok = loop_give_no_rows(n, l, i);
            continue;
        }
        for (uint32_t k = 0; k < l->rounds; k++)
            part[k] = l->row[k * l->nstacked + i];
        ok = ok && onnx_give(n, l->ncarried + i, kl_stack((int)l->rounds, part, 0));
    }
    free(part);
    return ok;
}

static kl_status loop_condition(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct node *n = ((struct onnx_body *)ctx)->n;
    (void)nin;
    (void)nout;
    kl_tensor max = onnx_has(n, 0) ? kl_reshape(kl_cast(onnx_in(n, 0), KL_I64), 0, NULL) : kl_none;
    out[0] = max.id ? kl_and(in[1], kl_lt(in[0], max)) : kl_and(in[1], in[1]);
    return KL_OK;
}

static kl_status loop_body(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct onnx_body *b = ctx;
    struct node *n = b->n;
    out[0] = kl_add(in[0], onnx_number(n, KL_I64, 1));
    kl_tensor around = onnx_round_begin(n, b->g, in[0]);
    kl_status status = body_run(b, b->g, in, nin, out + 1, 0, nout - 1);
    onnx_round_end(n, around);
    if (status == KL_OK)
        out[1] = kl_reshape(out[1], 0, NULL);
    return status;
}

/* Records a loop whose condition is known only when it runs, or what is left of it after the first rounds. */
static bool loop_while(struct node *n, struct onnx_loop *l)
{
    struct onnx_body b = {.n = n, .g = l->g, .ncarried = l->ncarried};
    kl_tensor in[CARRIED_MAX], out[CARRIED_MAX];
    if (l->nstacked)
        return onnx_fails(n, KL_ERR_TRACE, "a loop that stacks results as often as only a run knows (outside of a "
                          "trace its condition could be read)");
    in[0] = onnx_number(n, KL_I64, l->rounds);
    for (uint32_t i = 0; i < 1 + l->ncarried; i++)
        if (!value_recorded(n, &l->in[1 + i], &in[1 + i]))
            return false;
    in[1] = kl_reshape(in[1], 0, NULL);
    onnx_region_seed(n, l->g);
    if (kl_while(loop_condition, loop_body, &b, 2 + l->ncarried, in, out) != KL_OK)
        return false;
    for (uint32_t i = 0; i < l->ncarried; i++)
        if (!onnx_give(n, i, out[2 + i]))
            return false;
    return true;
}

static kl_status loop_scan_body(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct onnx_body *b = ctx;
    struct node *n = b->n;
    kl_tensor all[CARRIED_MAX]; /* iteration number, which is scanned and the last of in[]; condition; carried */
    all[0] = in[nin - 1];
    all[1] = onnx_number(n, KL_BOOL, 1);
    memcpy(all + 2, in, (nin - 1) * sizeof *in);
    kl_tensor around = onnx_round_begin(n, b->g, all[0]);
    kl_status status = body_run(b, b->g, all, nin + 1, out, 1, nout);
    onnx_round_end(n, around);
    return status;
}

/* Records a fixed number of iterations; the condition is always true. */
static bool loop_scan(struct node *n, struct onnx_loop *l, int64_t rounds)
{
    struct onnx_body b = {.n = n, .g = l->g};
    kl_tensor in[CARRIED_MAX], out[CARRIED_MAX], number = kl_arange(onnx_device(n), KL_I64, rounds);
    for (uint32_t i = 0; i < l->ncarried; i++)
        if (!value_recorded(n, &l->in[2 + i], &in[i]))
            return false;
    onnx_region_seed(n, l->g);
    if (kl_scan(loop_scan_body, &b, rounds, l->ncarried, in, 1, &number, l->nstacked, false, out) != KL_OK)
        return false;
    for (uint32_t i = 0; i < l->ncarried + l->nstacked && i < onnx_nout(n); i++)
        if (!onnx_give(n, i, out[i]))
            return false;
    return true;
}

/* Records the iterations one after the other.  In a trace a condition that only a run knows ends that: the others are
 * recorded as a region. */
static bool loop_unrolled(struct node *n, struct onnx_loop *l, int64_t max, bool goes_on)
{
    bool known = true;
    while (goes_on && l->rounds < max) {
        if (l->rounds == ROUNDS_MAX)
            return onnx_fails(n, KL_ERR_ARGUMENT, "a loop whose condition is still true after %d rounds, which are the "
                              "most that are recorded one after the other", ROUNDS_MAX);
        if (!loop_round(n, l, &known, &goes_on))
            return false;
        if (!known && l->rounds < max)
            return n->run->tracing ? loop_while(n, l) : onnx_evaluate(n, &l->in[1], UINT32_MAX);
    }
    return loop_give(n, l);
}

static bool loop_same_type(const struct value *a, const struct value *b)
{
    const struct value *v[2] = {a, b};
    struct type t[2];
    for (int i = 0; i < 2; i++) {
        if (v[i]->list)
            return false;
        if (v[i]->t.id)
            t[i] = onnx_type_of(v[i]->t);
        else if (v[i]->known)
            t[i] = (struct type){.dtype = v[i]->known->dtype, .rank = v[i]->known->rank};
        else
            return false;
        if (!v[i]->t.id)
            memcpy(t[i].dims, v[i]->known->dims, sizeof t[i].dims);
    }
    return t[0].dtype == t[1].dtype && t[0].rank == t[1].rank &&
           (t[0].rank <= 0 || !memcmp(t[0].dims, t[1].dims, (size_t)t[0].rank * sizeof *t[0].dims));
}

/* Can `max` rounds be recorded one after the other, as many as there will be? */
static bool loop_rounds_fit(struct node *n, int64_t max)
{
    return max <= ROUNDS_MAX ||
           onnx_fails(n, KL_ERR_ARGUMENT, "a loop of %lld rounds, which have to be recorded one after the other, since "
                      "carried shapes change or the round's number is needed while recording: %d are the most",
                      (long long)max, ROUNDS_MAX);
}

/* Records many iterations: as a scan, if the first one shows that their shapes stay the same and no number that varies
 * between them has to be known while recording.  Else one after the other. */
static bool loop_many(struct node *n, struct onnx_loop *l, int64_t max)
{
    bool known, goes_on, varied = n->run->varied, scans = true;
    struct value *first = calloc(2 + l->ncarried, sizeof *first);
    if (!first)
        return onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    for (uint32_t i = 1; i < 2 + l->ncarried; i++)
        onnx_value_copy(&first[i], &l->in[i]);
    n->run->varied = false;
    bool ok = loop_round(n, l, &known, &goes_on);
    for (uint32_t i = 2; ok && i < 2 + l->ncarried; i++)
        scans &= loop_same_type(&first[i], &l->in[i]);
    scans &= !n->run->varied;
    n->run->varied |= varied;
    for (uint32_t i = 1; ok && scans && i < 2 + l->ncarried; i++)
        onnx_value_copy(&l->in[i], &first[i]);
    for (uint32_t i = 1; i < 2 + l->ncarried; i++)
        onnx_value_clear(&first[i]);
    free(first);
    return ok && (scans ? loop_scan(n, l, max) : loop_rounds_fit(n, max) && loop_unrolled(n, l, max, true));
}

/* Does the graph return the condition that it was given, unchanged but for Identity? */
static bool passes_condition(const struct graph_def *g)
{
    struct place p = g->out[0];
    for (uint32_t i = g->nnode; i-- > 0 && p.up == 0;) {
        const struct node_def *d = &g->node[i];
        if (d->proto->n_output && d->out[0] == p.at) {
            if (!d->op || strcmp(d->op->name, "Identity") || !d->proto->n_input)
                return false;
            p = d->in[0];
        }
    }
    return p.up == 0 && p.at == g->in[1];
}

/* Reads how often the loop runs at most, and whether it runs at all, as far as that is known while recording. */
static bool loop_operands(struct node *n, struct onnx_loop *l)
{
    struct value *max = onnx_value(n, 0), *starts = onnx_value(n, 1);
    int64_t v = 1;
    if (onnx_has(n, 0) && max->known && max->known->count == 1 && onnx_is_length(max->known, 0)) {
        l->symbolic = true;
        l->max = array_int(max->known, 0);
    } else if (onnx_has(n, 0) && (l->known = onnx_try_read(n, max)) && !onnx_known_int(n, 0, &l->max)) {
        return false;
    }
    if (!onnx_has(n, 1)) {
        l->in[1] = (struct value){.known = known_number(KL_BOOL, 1), .constant = true, .set = true};
        return l->in[1].known || onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    }
    bool read = onnx_try_read(n, starts);
    if (read && !onnx_known_int(n, 1, &v))
        return false;
    onnx_value_copy(&l->in[1], starts);
    l->in[1].given = false;
    l->in[1].constant = l->in[1].known != NULL;
    l->known &= read;
    l->starts = v != 0;
    return true;
}

bool onnx_loop(struct node *n)
{
    struct onnx_loop l = {.g = onnx_attr_graph(n, "body"), .max = INT64_MAX, .known = true, .starts = true};
    if (!l.g || onnx_nin(n) < 2 || l.g->nin != onnx_nin(n) || l.g->nout < 1 + (l.g->nin - 2) ||
        l.g->nout > CARRIED_MAX || l.g->nin > CARRIED_MAX)
        return onnx_fails(n, KL_ERR_ARGUMENT, "its body does not fit its operands");
    l.ncarried = l.g->nin - 2;
    l.nstacked = l.g->nout - 1 - l.ncarried;
    l.in = calloc(2 + l.ncarried, sizeof *l.in);
    l.out = calloc(l.g->nout + 1, sizeof *l.out);
    bool ok = (l.in && l.out) || onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    for (uint32_t i = 0; ok && i < l.ncarried; i++) {
        if (onnx_has(n, 2 + i))
            onnx_value_copy(&l.in[2 + i], onnx_value(n, 2 + i));
        l.in[2 + i].given = false; /* the result of an iteration is no input of the model */
    }
    ok = ok && loop_operands(n, &l);
    bool counts = ok && l.known && l.starts && passes_condition(l.g); /* it runs `most` times */
    bool endless = n->run->tracing && l.starts && l.max == INT64_MAX && !l.nstacked;
    if (counts && l.symbolic)
        ok = loop_scan(n, &l, l.max);
    else if (counts && l.max > UNROLLED_MAX && l.max < INT64_MAX)
        ok = loop_many(n, &l, l.max);
    else if (ok && (!l.known || l.symbolic || endless))
        ok = loop_while(n, &l);
    else if (ok)
        ok = loop_unrolled(n, &l, l.max, l.starts);
    loop_free(&l);
    return ok;
}

/* ---- Scan ---- */

/* Where the graph draws random numbers, the last scanned value is the number of the round. */
static kl_status scan_body(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct onnx_body *b = ctx;
    if (!b->draws)
        return body_run(b, b->g, in, nin, out, 0, nout);
    kl_tensor around = onnx_round_begin(b->n, b->g, in[nin - 1]);
    kl_status status = body_run(b, b->g, in, nin - 1, out, 0, nout);
    onnx_round_end(b->n, around);
    return status;
}

/* Moves axis `axis` to the front or, with `back`, the first axis to that position. */
static kl_tensor axis_moved(kl_tensor a, int axis, bool back)
{
    int order[KL_MAX_RANK], rank = kl_rank(a);
    for (int i = 0; i < rank; i++)
        if (back)
            order[i] = i == axis ? 0 : i < axis ? i + 1 : i;
        else
            order[i] = i == 0 ? axis : i <= axis ? i - 1 : i;
    return axis == 0 ? a : kl_permute(a, order);
}

static int64_t scan_number(const struct node *n, const char *name, uint32_t i)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    return a && i < a->n_ints ? a->ints[i] : 0;
}

static kl_tensor scan_operand(struct node *n, uint32_t i, uint32_t k)
{
    struct type t;
    int axis, first = 0;
    if (!onnx_type(n, i, &t) || !onnx_axis(n, scan_number(n, "scan_input_axes", k), t.rank, &axis))
        return kl_none;
    kl_tensor a = axis_moved(onnx_in(n, i), axis, false);
    return scan_number(n, "scan_input_directions", k) ? kl_flip(a, 1, &first) : a;
}

bool onnx_scan(struct node *n)
{
    struct onnx_body b = {.n = n, .g = onnx_attr_graph(n, "body")};
    int64_t nscanned = onnx_attr_int(n, "num_scan_inputs", 0), length = 0;
    kl_tensor in[CARRIED_MAX + 1], out[CARRIED_MAX];
    if (!b.g || nscanned < 1 || nscanned > onnx_nin(n) || onnx_nin(n) > CARRIED_MAX || b.g->nout > CARRIED_MAX ||
        onnx_nin(n) != b.g->nin || b.g->nout < onnx_nin(n) - nscanned)
        return onnx_fails(n, KL_ERR_ARGUMENT, "its body does not fit its operands");
    uint32_t ncarried = onnx_nin(n) - (uint32_t)nscanned, nstacked = b.g->nout - ncarried;
    for (uint32_t i = 0; i < onnx_nin(n); i++) {
        in[i] = i < ncarried ? onnx_in(n, i) : scan_operand(n, i, i - ncarried);
        int64_t dims[KL_MAX_RANK];
        if (kl_shape(in[i], dims) < (i >= ncarried))
            return onnx_fails(n, KL_ERR_SHAPE, "operand %u cannot be scanned", i);
        length = i >= ncarried ? dims[0] : 0;
    }
    b.draws = onnx_draws(b.g);
    if (b.draws) {
        onnx_region_seed(n, b.g);
        in[onnx_nin(n)] = kl_arange(onnx_device(n), KL_I64, length);
    }
    if (kl_scan(scan_body, &b, length, ncarried, in, (uint32_t)nscanned + b.draws, in + ncarried, nstacked, false,
                out) != KL_OK)
        return false;
    for (uint32_t i = 0; i < onnx_nout(n) && i < ncarried + nstacked; i++) {
        kl_tensor r = out[i];
        int axis, first = 0;
        if (i >= ncarried) {
            if (scan_number(n, "scan_output_directions", i - ncarried))
                r = kl_flip(r, 1, &first);
            if (!onnx_axis(n, scan_number(n, "scan_output_axes", i - ncarried), kl_rank(r), &axis))
                return false;
            r = axis_moved(r, axis, true);
        }
        if (!onnx_give(n, i, r))
            return false;
    }
    return true;
}
