/* Runs a program in all modes, each twice, the second time as a replay, and compares results and states with those of
 * the interpreter. */
#include "tests/random_api/program.h"

enum { RUNS = 2, MAX_RESULTS = RUNS * (MAX_OUTPUTS + STATES) };

struct array { kl_dtype dtype; int64_t count; int origin; void *data; }; /* origin: as in a recording, -1 for a state */
struct result {
    kl_status status; /* the first error, and its message */
    char message[300];
    int n;
    struct array array[MAX_RESULTS];
};

static void fail_with(struct result *r, const char *what)
{
    r->status = kl_last_error_code() ? kl_last_error_code() : KL_ERR_INTERNAL;
    snprintf(r->message, sizeof r->message, "%s: %s", what, kl_last_error());
}

static void read_one(struct result *r, kl_tensor t, int origin)
{
    struct array *a = &r->array[r->n++];
    *a = (struct array){kl_dtype_of(t), kl_numel(t), origin, NULL};
    size_t bytes = a->count < 0 ? 0 : (size_t)a->count * kl_dtype_size(a->dtype);
    a->data = calloc(bytes + 1, 1);
    if (!a->data)
        abort(); /* no memory for the data */
    if (kl_read(t, a->data, bytes) != KL_OK && !r->status)
        fail_with(r, "read");
}

static void read_all(struct result *r, struct recording *c)
{
    for (int i = 0; i < c->outputs; i++) {
        read_one(r, c->output[i], c->origin[i]);
        kl_release(c->output[i]);
    }
    for (int i = 0; i < STATES; i++)
        read_one(r, c->state[i], -1);
}

static void result_free(struct result *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->array[i].data);
}

static bool record(struct recording *c, struct result *r)
{
    kl_clear_error();
    if (program_record(c, false) < 0)
        return program_keep(c), true;
    fail_with(r, "recording");
    return false;
}

static void run(struct random_program *p, const char *device, bool symbolic, bool eager, struct result *r)
{
    struct recording c = {.p = p, .device = kl_device_named(device), .symbolic = symbolic};
    *r = (struct result){0};
    symbols_make(&c);
    states_make(&c);
    for (int i = 0; i < RUNS && !r->status; i++) {
        if (eager) {
            kl_scope_begin();
            if (record(&c, r))
                read_all(r, &c);
            kl_scope_end();
            continue;
        }
        kl_trace_begin(symbolic ? "symbols" : "numbers");
        if (!record(&c, r))
            kl_trace_abandon();
        else if (kl_trace_end() != KL_OK)
            fail_with(r, "trace_end");
        else
            read_all(r, &c);
    }
    states_release(&c);
}

/* Records the step for other values of the symbols, and inputs of zeros. */
static bool record_other(struct recording *c, struct result *r)
{
    struct random_program *p = c->p;
    struct rng random = rng_for(p->seed, MAX_CALLS + 1);
    int64_t length[LENGTHS];
    void *data[INPUTS];
    memcpy(length, p->length, sizeof length);
    for (int i = 0; i < LENGTHS; i++)
        if (c->symbol[i] < 0)
            p->length[i] = 1 + rng_below(&random, 7);
    for (int i = 0; i < INPUTS; i++) {
        int64_t n = 1;
        for (int k = 0; k < p->leaf[i].rank; k++)
            n *= p->length[p->leaf[i].length[k]];
        data[i] = p->leaf[i].data;
        p->leaf[i].data = calloc((size_t)n + 1, dtype_size(p->leaf[i].dtype));
        if (!p->leaf[i].data)
            abort(); /* no memory for the data */
    }
    bool ok = record(c, r);
    memcpy(p->length, length, sizeof length);
    for (int i = 0; i < INPUTS; i++) {
        free(p->leaf[i].data);
        p->leaf[i].data = data[i];
    }
    return ok;
}

/* A frozen step. */
static void run_step(struct random_program *p, bool symbolic, struct result *r)
{
    struct recording c = {.p = p, .device = kl_device_named("cpu"), .symbolic = symbolic};
    kl_tensor in[INPUTS];
    *r = (struct result){0};
    symbols_make(&c);
    states_make(&c);
    kl_trace_begin("step");
    kl_step *step = NULL;
    if (symbolic ? record_other(&c, r) : record(&c, r)) {
        step = kl_trace_end_step(INPUTS, c.value);
        if (!step)
            fail_with(r, "trace_end_step");
    } else {
        kl_trace_abandon();
    }
    for (int i = 0; i < RUNS && !r->status; i++) {
        struct recording numbers = {.p = p, .device = c.device};
        for (int k = 0; k < INPUTS; k++)
            in[k] = leaf_tensor(&numbers, k, p->leaf[k].data);
        if (kl_step_run(step, INPUTS, in, 0, NULL, c.outputs, c.output) != KL_OK)
            fail_with(r, "step_run");
        else
            read_all(r, &c);
        for (int k = 0; k < INPUTS; k++)
            kl_release(in[k]);
    }
    kl_step_free(step);
    states_release(&c);
}

/* ---- comparing ---- */

static void describe(const struct random_program *p, const struct array *a, char *text, size_t size)
{
    int order = a->origin / MAX_SLOTS, call = (a->origin - LEAVES) / 2;
    if (a->origin < 0)
        snprintf(text, size, "a state");
    else if (order)
        snprintf(text, size, "the gradient of order %d of input %d", order, a->origin % MAX_SLOTS);
    else
        snprintf(text, size, "result %d of call %d, %s", (a->origin - LEAVES) % 2, call, p->name[call]);
}

static bool same(const struct random_program *p, const struct result *want, const struct result *r, const char *mode,
                 char *why, size_t size)
{
    bool eager = !strcmp(mode, "eager");
    if (r->status != want->status || r->n != want->n) {
        snprintf(why, size, "%s: %s (%s) and %d results, the interpreter: %s (%s) and %d", mode,
                 kl_status_name(r->status), r->message, r->n, kl_status_name(want->status), want->message, want->n);
        return false;
    }
    for (int i = 0; i < r->n; i++) {
        const struct array *a = &want->array[i], *b = &r->array[i];
        char name[100];
        int64_t at = 0;
        describe(p, a, name, sizeof name);
        if (a->dtype != b->dtype || a->count != b->count) {
            snprintf(why, size, "%s: %s has %lld elements of %s, not %lld of %s", mode, name, (long long)b->count,
                     kl_dtype_name(b->dtype), (long long)a->count, kl_dtype_name(a->dtype));
            return false;
        }
        /* Outside a trace gradients of second order are made of finished ones of first order, and rounded otherwise. */
        if (eager && a->origin >= 2 * MAX_SLOTS)
            continue;
        if (!same_values(a->dtype, a->data, b->data, a->count, &at)) {
            snprintf(why, size, "%s: %s, element %lld of %lld of %s is %.17g, not %.17g (run %d)", mode, name,
                     (long long)at, (long long)a->count, kl_dtype_name(a->dtype), element_value(a->dtype, b->data, at),
                     element_value(a->dtype, a->data, at), 1 + i / (r->n / RUNS));
            return false;
        }
    }
    return true;
}

struct verdict { const struct random_program *p; const struct result *want; char *why; size_t size; bool agrees; };

/* Outside a trace a gradient may be refused that a trace has, where the loss does not depend on the tensor. */
static void compare(struct verdict *v, struct result *r, const char *mode)
{
    bool refused = !strcmp(mode, "eager") && r->status == KL_ERR_GRAD;
    if (v->agrees && !refused)
        v->agrees = same(v->p, v->want, r, mode, v->why, v->size);
    result_free(r);
}

bool program_agrees(struct random_program *p, char *why, size_t size)
{
    static struct result want, r; /* large */
    struct verdict v = {p, &want, why, size, true};
    bool symbols = p->modes & SYMBOLS;
    kl_set_option("threads", 1);
    run(p, "ref", false, false, &want);
    run(p, "cpu", false, false, &r);
    compare(&v, &r, "fused");
    if (p->modes & THREADS) {
        kl_set_option("threads", 2);
        run(p, "cpu", false, false, &r);
        compare(&v, &r, "2 threads");
        kl_set_option("threads", 1);
    }
    if (p->modes & UNFUSED) {
        kl_set_option("fuse", 0);
        run(p, "cpu", false, false, &r);
        compare(&v, &r, "unfused");
        kl_set_option("fuse", 1);
    }
    if (p->modes & EAGER) {
        run(p, "cpu", false, true, &r);
        compare(&v, &r, "eager");
    }
    if (symbols) {
        run(p, "cpu", true, false, &r);
        compare(&v, &r, "symbols");
    }
    if (p->modes & STEP) {
        run_step(p, symbols, &r);
        compare(&v, &r, symbols ? "frozen step with symbols" : "frozen step");
    }
    result_free(&want);
    return v.agrees && (!(p->modes & VMAP) || vmap_agrees(p, why, size));
}

/* A device may lack a dtype, and lavapipe ends long loops. */
bool program_agrees_on(struct random_program *p, const char *device, bool *refused, char *why, size_t size)
{
    static struct result r; /* large */
    run(p, "cpu", false, false, &r);
    kl_clear_error();
    kl_status status = r.status ? KL_OK : kl_check_bits("numbers", kl_device_named(device)); /* else nothing ran */
    *refused = status == KL_ERR_DEVICE;
    if (status)
        snprintf(why, size, "%s: %s", device, kl_last_error());
    result_free(&r);
    return !status || *refused;
}
