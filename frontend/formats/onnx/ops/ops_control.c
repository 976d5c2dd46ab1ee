/* If, Loop and Scan.  If conditions and counts are known while recording, a graph is recorded once for each time that
 * it runs; else it becomes a region of kl_cond, kl_while or kl_scan. */
#include "frontend/formats/onnx/onnx.h"
#include <stdlib.h>
#include <string.h>

enum { UNROLLED_MOST = 64, ROUNDS_MOST = 1 << 16, CARRIED_MOST = 256 };

/* A graph that is recorded as a region. */
struct body {
    struct node *n;
    const struct graph_def *g, *other;
    uint32_t ncarried, nstacked;
};

static bool value_recorded(struct node *n, struct value *v, kl_tensor *t)
{
    if (v->list || (!v->t.id && !v->known))
        return onnx_fails(n, KL_ERR_TYPE, "a region takes and gives tensors only");
    *t = v->t.id ? v->t : onnx_tensor(n, array_ref(v->known));
    return kl_check(*t) == KL_OK;
}

/* Runs the graph on tensors; out: nout of its results, from number `skip` on. */
static kl_status body_run(struct body *b, const struct graph_def *g, const kl_tensor *in, uint32_t nin, kl_tensor *out,
                          uint32_t skip, uint32_t nout)
{
    struct value *v = calloc(nin + 1, sizeof *v), *r = calloc(g->nout + 1, sizeof *r);
    bool ok = (v && r && skip + nout <= g->nout) || onnx_fails(b->n, KL_ERR_SHAPE, "its graph has %u results", g->nout);
    for (uint32_t i = 0; ok && i < nin; i++)
        v[i] = (struct value){.t = in[i], .weight = -1, .set = true};
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

static kl_status then_branch(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    struct body *b = ctx;
    return body_run(b, b->g, in, nin, out, 0, nout);
}
static kl_status else_branch(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    struct body *b = ctx;
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

bool onnx_if(struct node *n)
{
    struct body b = {.n = n, .g = onnx_attr_graph(n, "then_branch"), .other = onnx_attr_graph(n, "else_branch")};
    struct value *c = onnx_value(n, 0);
    kl_tensor out[CARRIED_MOST];
    uint32_t nout = onnx_nout(n);
    if (!b.g || !b.other || !c || !c->set || nout > CARRIED_MOST || nout > b.g->nout || nout > b.other->nout)
        return onnx_fails(n, KL_ERR_ARGUMENT, "it needs a condition and two branches");
    int64_t known;
    if (onnx_try_read(n, c))
        return onnx_known_int(n, 0, &known) && run_branch(n, known ? b.g : b.other);
    kl_tensor condition = kl_reshape(onnx_in(n, 0), 0, NULL);
    if (kl_cond(condition, then_branch, else_branch, &b, 0, NULL, nout, out) != KL_OK)
        return false;
    for (uint32_t i = 0; i < nout; i++)
        if (!onnx_give(n, i, out[i]))
            return false;
    return true;
}

/* ---- Loop ---- */

struct loop {
    const struct graph_def *g;
    uint32_t ncarried, nstacked;
    struct value *in, *out;           /* iteration number, condition, carried; condition, carried, stacked */
    kl_tensor *row;                   /* stacked results of all iterations: row[iteration * nstacked + i] */
    uint32_t rounds, row_cap;
    int64_t most;                     /* iterations; INT64_MAX: no limit */
    bool symbolic;                    /* `most` is a symbolic length */
    bool known, starts;               /* known: `most` and `starts`, whether it runs at all, are, while recording */
};

static void loop_free(struct loop *l)
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

static bool loop_rows(struct node *n, struct loop *l)
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

static bool loop_round(struct node *n, struct loop *l, bool *goes_on)
{
    array_unref(l->in[0].known);
    l->in[0] = (struct value){.known = known_number(KL_I64, l->rounds), .weight = -1, .constant = true, .set = true};
    for (uint32_t i = 0; i < l->g->nout; i++)
        onnx_value_clear(&l->out[i]);
    if (!l->in[0].known || !graph_run(n, l->g, l->in, 2 + l->ncarried, l->out))
        return l->in[0].known ? false : onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    if (!loop_rows(n, l) || !onnx_know(n, &l->out[0], UINT32_MAX))
        return false;
    *goes_on = l->out[0].known->count > 0 && array_int(l->out[0].known, 0);
    for (uint32_t i = 0; i < 1 + l->ncarried; i++)
        onnx_value_copy(&l->in[1 + i], &l->out[i]);
    l->rounds++;
    return true;
}

static bool loop_give(struct node *n, struct loop *l)
{
    for (uint32_t i = 0; i < l->ncarried && i < onnx_nout(n); i++)
        if (!onnx_give_value(n, i, &l->in[2 + i]))
            return false;
    kl_tensor *part = malloc((l->rounds + 1) * sizeof *part);
    bool ok = part || onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    for (uint32_t i = 0; ok && i < l->nstacked && l->ncarried + i < onnx_nout(n); i++) {
        if (!onnx_wants(n, l->ncarried + i))
            continue;
        if (!l->rounds)
            ok = onnx_fails(n, KL_ERR_SHAPE, "a loop of no rounds, whose stacked results have no shape");
        for (uint32_t k = 0; k < l->rounds; k++)
            part[k] = l->row[k * l->nstacked + i];
        ok = ok && onnx_give(n, l->ncarried + i, kl_stack((int)l->rounds, part, 0));
    }
    free(part);
    return ok;
}

/* Records the iterations one after the other. */
static bool loop_unrolled(struct node *n, struct loop *l, int64_t most, bool goes_on)
{
    while (goes_on && l->rounds < most) {
        if (l->rounds == ROUNDS_MOST)
            return onnx_fails(n, KL_ERR_ARGUMENT, "a loop of more than %d rounds", ROUNDS_MOST);
        if (!loop_round(n, l, &goes_on))
            return false;
    }
    return loop_give(n, l);
}

static kl_status loop_condition(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    struct node *n = ((struct body *)ctx)->n;
    (void)nin;
    (void)nout;
    kl_tensor most = onnx_has(n, 0) ? kl_reshape(kl_cast(onnx_in(n, 0), KL_I64), 0, NULL) : kl_none;
    out[0] = most.id ? kl_and(in[1], kl_lt(in[0], most)) : kl_and(in[1], in[1]);
    return KL_OK;
}

static kl_status loop_body(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    struct body *b = ctx;
    struct node *n = b->n;
    out[0] = kl_add(in[0], onnx_number(n, KL_I64, 1));
    kl_status status = body_run(b, b->g, in, nin, out + 1, 0, nout - 1);
    if (status == KL_OK)
        out[1] = kl_reshape(out[1], 0, NULL);
    return status;
}

/* Records a loop whose condition is known only when it runs. */
static bool loop_while(struct node *n, struct loop *l)
{
    struct body b = {.n = n, .g = l->g, .ncarried = l->ncarried};
    kl_tensor in[CARRIED_MOST], out[CARRIED_MOST];
    if (l->nstacked)
        return onnx_fails(n, KL_ERR_TRACE, "a loop that stacks results as often as only a run knows (outside of a "
                          "trace its condition could be read)");
    in[0] = onnx_number(n, KL_I64, 0);
    for (uint32_t i = 0; i < 1 + l->ncarried; i++)
        if (!value_recorded(n, &l->in[1 + i], &in[1 + i]))
            return false;
    in[1] = kl_reshape(in[1], 0, NULL);
    if (kl_while(loop_condition, loop_body, &b, 2 + l->ncarried, in, out) != KL_OK)
        return false;
    for (uint32_t i = 0; i < l->ncarried; i++)
        if (!onnx_give(n, i, out[2 + i]))
            return false;
    return true;
}

static kl_status loop_scan_body(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    struct body *b = ctx;
    struct node *n = b->n;
    kl_tensor all[CARRIED_MOST]; /* iteration number, which is scanned and the last of in[]; condition; carried */
    all[0] = in[nin - 1];
    all[1] = onnx_number(n, KL_BOOL, 1);
    memcpy(all + 2, in, (nin - 1) * sizeof *in);
    return body_run(b, b->g, all, nin + 1, out, 1, nout);
}

/* Records a fixed number of iterations; the condition is always true. */
static bool loop_scan(struct node *n, struct loop *l, int64_t rounds)
{
    struct body b = {.n = n, .g = l->g};
    kl_tensor in[CARRIED_MOST], out[CARRIED_MOST], number = kl_arange(onnx_device(n), KL_I64, rounds);
    for (uint32_t i = 0; i < l->ncarried; i++)
        if (!value_recorded(n, &l->in[2 + i], &in[i]))
            return false;
    if (kl_scan(loop_scan_body, &b, rounds, l->ncarried, in, 1, &number, l->nstacked, false, out) != KL_OK)
        return false;
    for (uint32_t i = 0; i < l->ncarried + l->nstacked && i < onnx_nout(n); i++)
        if (!onnx_give(n, i, out[i]))
            return false;
    return true;
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
static bool loop_operands(struct node *n, struct loop *l)
{
    struct value *most = onnx_value(n, 0), *starts = onnx_value(n, 1);
    int64_t v = 1;
    if (onnx_has(n, 0) && most->known && most->known->count == 1 && onnx_is_length(most->known, 0)) {
        l->symbolic = true;
        l->most = array_int(most->known, 0);
    } else if (onnx_has(n, 0) && (l->known = onnx_try_read(n, most)) && !onnx_known_int(n, 0, &l->most)) {
        return false;
    }
    if (!onnx_has(n, 1)) {
        l->in[1] = (struct value){.known = known_number(KL_BOOL, 1), .weight = -1, .constant = true, .set = true};
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
    struct loop l = {.g = onnx_attr_graph(n, "body"), .most = INT64_MAX, .known = true, .starts = true};
    if (!l.g || onnx_nin(n) < 2 || l.g->nin != onnx_nin(n) || l.g->nout < 1 + (l.g->nin - 2) ||
        l.g->nout > CARRIED_MOST || l.g->nin > CARRIED_MOST)
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
    if (counts && (l.symbolic || (l.most > UNROLLED_MOST && l.most < INT64_MAX)))
        ok = loop_scan(n, &l, l.most);
    else if (ok && (!l.known || l.symbolic || (n->run->tracing && l.most == INT64_MAX)))
        ok = loop_while(n, &l);
    else if (ok)
        ok = loop_unrolled(n, &l, l.most, l.starts);
    loop_free(&l);
    return ok;
}

/* ---- Scan ---- */

static kl_status scan_body(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    struct body *b = ctx;
    return body_run(b, b->g, in, nin, out, 0, nout);
}

/* Moves axis `axis` to the front or, with `back`, the first axis to that position. */
static kl_tensor axis_moved(struct node *n, kl_tensor a, int axis, bool back)
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
    kl_tensor a = axis_moved(n, onnx_in(n, i), axis, false);
    return scan_number(n, "scan_input_directions", k) ? kl_flip(a, 1, &first) : a;
}

bool onnx_scan(struct node *n)
{
    struct body b = {.n = n, .g = onnx_attr_graph(n, "body")};
    int64_t nscanned = onnx_attr_int(n, "num_scan_inputs", 0), length = 0;
    kl_tensor in[CARRIED_MOST], out[CARRIED_MOST];
    if (!b.g || nscanned < 1 || nscanned > onnx_nin(n) || onnx_nin(n) > CARRIED_MOST || b.g->nout > CARRIED_MOST ||
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
    if (kl_scan(scan_body, &b, length, ncarried, in, (uint32_t)nscanned, in + ncarried, nstacked, false, out) != KL_OK)
        return false;
    for (uint32_t i = 0; i < onnx_nout(n) && i < ncarried + nstacked; i++) {
        kl_tensor r = out[i];
        int axis, first = 0;
        if (i >= ncarried) {
            if (scan_number(n, "scan_output_directions", i - ncarried))
                r = kl_flip(r, 1, &first);
            if (!onnx_axis(n, scan_number(n, "scan_output_axes", i - ncarried), kl_rank(r), &axis))
                return false;
            r = axis_moved(n, r, axis, true);
        }
        if (!onnx_give(n, i, r))
            return false;
    }
    return true;
}
