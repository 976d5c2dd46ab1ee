/* A program as the function of kl_vmap, on a batch of leaves, beside the program on each element. */
#include "tests/random_api/program.h"

enum { BATCH = 3, MAX_RESULTS = 2 * MAX_CALLS };

struct mapped {
    struct recording c;
    struct leaf_data batch[LEAVES]; /* count: of the whole batch */
    int bad;                   /* the call that failed, or -1 */
    uint32_t n;
    int value[MAX_RESULTS]; /* the numbers of the n results, in the order of the calls */
};

static kl_status function(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct mapped *m = ctx;
    (void)nin;
    memcpy(m->c.value, in, LEAVES * sizeof *in);
    m->bad = program_calls(&m->c, false);
    for (uint32_t i = 0; i < nout; i++)
        out[i] = m->bad < 0 ? m->c.value[m->value[i]] : kl_none;
    return m->bad < 0 ? KL_OK : KL_ERR_ARGUMENT;
}

static void list_results(struct mapped *m)
{
    const struct random_program *p = m->c.p;
    m->n = 0;
    for (int i = 0; i < p->calls; i++)
        for (int v = LEAVES + 2 * i; v < LEAVES + 2 * i + 2; v++)
            if (p->on[i] && p->type[v].known)
                m->value[m->n++] = v;
}

/* Records the leaves' elements from `first` on, a batch of them or one without a batch axis, and keeps the results. */
static bool record(struct mapped *m, int first, bool batch, kl_tensor *out)
{
    kl_tensor in[LEAVES];
    kl_trace_begin(batch ? "vmap" : "element");
    for (int i = 0; i < LEAVES; i++) {
        const struct leaf_data *l = &m->batch[i];
        int64_t dims[5] = {BATCH}, *d = dims + batch;
        for (int k = 0; k < l->rank; k++)
            d[k] = m->c.p->length[l->length[k]];
        size_t bytes = (size_t)(l->count / BATCH) * kl_dtype_size(l->dtype);
        in[i] = kl_input(m->c.device, l->dtype, l->rank + batch, dims, (const char *)l->data + (size_t)first * bytes);
    }
    m->bad = -1;
    if (batch)
        kl_vmap(function, m, LEAVES, in, NULL, m->n, NULL, KL_RANDOM_SAME, out);
    else
        function(m, in, LEAVES, out, m->n);
    if (m->bad >= 0) {
        kl_trace_abandon();
        return false;
    }
    for (uint32_t i = 0; i < m->n; i++)
        kl_keep(out[i]);
    return kl_trace_end() == KL_OK;
}

static char *read_data(kl_tensor t)
{
    size_t bytes = (size_t)kl_numel(t) * kl_dtype_size(kl_dtype_of(t));
    char *data = calloc(bytes + 1, 1);
    if (!data)
        abort(); /* no memory for the data */
    kl_read(t, data, bytes);
    return data;
}

static bool near(kl_dtype dtype, double x, double y)
{
    double tolerance = dtype == KL_F64 ? 1e-6 : dtype == KL_F32 ? 1e-3 : 0.05;
    return x == y || (isnan(x) && isnan(y)) || (is_float(dtype) && fabs(x - y) <= tolerance * (1 + fabs(x)));
}

/* Sums may be rounded otherwise in a batch, and the next call may make more of that (floor, sort): results are compared
 * in the order of the calls up to the first that differs in its last bits. */
static bool same_element(const struct mapped *m, int element, const kl_tensor *whole, const kl_tensor *single,
                         char *why, size_t size)
{
    bool exact = true, close = true;
    for (uint32_t i = 0; i < m->n && exact && close; i++) {
        kl_dtype dtype = kl_dtype_of(single[i]);
        int64_t n = kl_numel(single[i]), at = 0;
        int call = (m->value[i] - LEAVES) / 2;
        if (kl_dtype_of(whole[i]) != dtype || kl_numel(whole[i]) != n * BATCH) {
            snprintf(why, size, "vmap: call %d, %s: %lld elements of %s, not %lld of %s", call, m->c.p->name[call],
                     (long long)kl_numel(whole[i]), kl_dtype_name(kl_dtype_of(whole[i])), (long long)n * BATCH,
                     kl_dtype_name(dtype));
            return false;
        }
        char *x = read_data(single[i]), *all = read_data(whole[i]);
        const char *y = all + (size_t)(n * element) * kl_dtype_size(dtype);
        exact = same_values(dtype, x, y, n, &at);
        for (at = 0; at < n && close; at += close)
            close = near(dtype, element_value(dtype, x, at), element_value(dtype, y, at));
        if (!close)
            snprintf(why, size, "vmap: call %d, %s, element %lld of batch %d is %.17g, not %.17g", call,
                     m->c.p->name[call], (long long)at, element, element_value(dtype, y, at),
                     element_value(dtype, x, at));
        free(x);
        free(all);
    }
    return close;
}

static bool elements_agree(struct mapped *m, const kl_tensor *whole, char *why, size_t size)
{
    bool ok = true;
    for (int element = 0; element < BATCH && ok; element++) {
        kl_tensor single[MAX_RESULTS];
        if (!record(m, element, false, single)) {
            snprintf(why, size, "vmap: batch %d alone: %s", element, kl_last_error());
            return false;
        }
        ok = same_element(m, element, whole, single, why, size);
        for (uint32_t i = 0; i < m->n; i++)
            kl_release(single[i]);
    }
    return ok;
}

bool vmap_agrees(struct random_program *p, char *why, size_t size)
{
    struct mapped m = {.c = {.p = p, .device = kl_device_named("cpu")}, .bad = 0};
    struct rng r = rng_for(p->seed, MAX_CALLS + 2);
    kl_tensor whole[MAX_RESULTS];
    bool recorded = false, ok = true;
    for (int i = 0; i < LEAVES; i++) {
        m.batch[i] = p->leaf[i];
        m.batch[i].count *= BATCH;
        m.batch[i].data = calloc((size_t)m.batch[i].count + 1, dtype_size(p->leaf[i].dtype));
        if (!m.batch[i].data)
            abort(); /* no memory for the data */
        leaf_fill(&r, &m.batch[i], 0);
    }
    for (int v = LEAVES; v < LEAVES + 2 * p->calls; v++)
        if (p->type[v].known && p->type[v].rank == KL_MAX_RANK)
            p->on[(v - LEAVES) / 2] = false; /* no room for the batch's axis */
    for (list_results(&m); m.n && m.bad >= 0 && !recorded; list_results(&m)) {
        kl_clear_error();
        recorded = record(&m, 0, true, whole);
        if (m.bad >= 0)
            p->on[m.bad] = false; /* kl_assign, or an op without a rule */
    }
    if (recorded) {
        ok = elements_agree(&m, whole, why, size);
        for (uint32_t i = 0; i < m.n; i++)
            kl_release(whole[i]);
    } else if (m.n) {
        snprintf(why, size, "vmap: %s", kl_last_error());
        ok = false;
    }
    for (int i = 0; i < LEAVES; i++)
        free(m.batch[i].data);
    return ok;
}
