/* Control flow over symbolic batches and lengths: an LSTM, that of train/modules.h and one by hand, is one program for
 * any (batch, length) and gives the bits of kl_input with these shapes; so do loops, branches and custom ops. */
#include "tests/support/api_symbols.h"
#include <kiln/train.h>

enum { IN = 6, WIDTH = 10, CLASSES = 4, MAX_BATCH = 9, MAX_LENGTH = 30, PAIRS = 12, PARTS = 6 };

static float data[MAX_LENGTH * MAX_BATCH * IN];
static int32_t label[MAX_BATCH];
static const int64_t pair[PAIRS][2] = {{3, 17}, {9, 30}, {1, 1}, {2, 23}, {5, 8}, {1, 30}, {9, 1}, {4, 21}, {3, 17},
                                       {2, 16}, {1, 9}, {7, 2}};

/* Lengths in the graph; numbers, or symbols where `symbolic`. */
struct sizes { bool symbolic; int64_t b, l, count[2]; };

static struct sizes scan_sizes(bool symbolic, const int64_t *count)
{
    struct sizes s = {symbolic, count[0], count[1], {count[0], count[1]}};
    if (symbolic) {
        s.b = kl_symbol("b", 1, MAX_BATCH);
        s.l = kl_symbol("l", 1, MAX_LENGTH);
    }
    return s;
}

/* f32[l, b, IN] */
static kl_tensor sequence(kl_device dev, const struct sizes *s)
{
    int64_t lengths[3] = {s->l, s->b, IN}, dims[3] = {s->count[1], s->count[0], IN};
    return s->symbolic ? kl_input_symbolic(dev, KL_F32, 3, lengths, dims, data)
                       : kl_input(dev, KL_F32, 3, dims, data);
}

static kl_tensor labels(kl_device dev, const struct sizes *s)
{
    return s->symbolic ? kl_input_symbolic(dev, KL_I32, 1, &s->b, &s->count[0], label)
                       : kl_input(dev, KL_I32, 1, &s->count[0], label);
}

/* ---- an LSTM by hand: its parts are weights of x and h, a bias, and a head ---- */

struct cell { const kl_tensor *p; const struct sizes *s; };

/* in: h, c, x */
static kl_status cell_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct cell *c = ctx;
    (void)nin, (void)nout;
    kl_tensor a = kl_add(kl_linear(in[2], c->p[0], c->p[2]), kl_matmul(in[0], c->p[1])), gate[4];
    for (int i = 0; i < 4; i++)
        gate[i] = kl_narrow(a, 1, i * WIDTH, WIDTH);
    kl_tensor ones = kl_ones(kl_device_of(a), KL_F32, 2, (int64_t[]){c->s->b, WIDTH}); /* b: of the trace around */
    out[1] = kl_add(kl_mul(kl_sigmoid(gate[0]), in[1]), kl_mul(kl_sigmoid(gate[1]), kl_tanh(gate[2])));
    out[0] = out[2] = kl_mul(kl_mul(kl_sigmoid(gate[3]), ones), kl_tanh(out[1]));
    return KL_OK;
}

static kl_tensor logits_by_hand(kl_device dev, const struct sizes *s, kl_tensor x, const kl_tensor *p)
{
    kl_tensor zero = kl_zeros(dev, KL_F32, 2, (int64_t[]){s->b, WIDTH}), out[3];
    struct cell c = {p, s};
    OK(kl_scan(cell_step, &c, s->l, 2, (kl_tensor[]){zero, zero}, 1, &x, 1, false, out));
    return kl_linear(kl_add(out[0], kl_mean(out[2], AXES(0), false)), p[3], kl_none);
}

static void parts_by_hand(kl_device dev, kl_tensor *p)
{
    static float read[WIDTH * 4 * WIDTH];
    p[0] = kl_randn(dev, KL_F32, DIMS(IN, 4 * WIDTH), 1), p[1] = kl_randn(dev, KL_F32, DIMS(WIDTH, 4 * WIDTH), 2);
    p[2] = kl_randn(dev, KL_F32, DIMS(4 * WIDTH), 3), p[3] = kl_randn(dev, KL_F32, DIMS(WIDTH, CLASSES), 4);
    for (int i = 0; i < 4; i++) /* computed here, not in the first trace that reads them */
        OK(kl_read(p[i], read, (size_t)kl_numel(p[i]) * sizeof *read));
}

/* ---- the module: its parts are those of the module, and a head ---- */

struct modules { kl_params *params; kl_nn_recurrent lstm; kl_tensor head; };

static kl_tensor logits_of_module(kl_device dev, const struct sizes *s, const struct modules *m)
{
    kl_tensor h = kl_none;
    kl_tensor y = kl_nn_recurrent_forward(&m->lstm, sequence(dev, s), &h, NULL);
    return kl_linear(kl_add(h, kl_mean(y, AXES(0), false)), m->head, kl_none);
}

static void module_open(kl_device dev, struct modules *m)
{
    m->params = kl_params_new(dev, KL_F32, 7);
    OK(kl_nn_lstm_init(&m->lstm, m->params, "lstm", IN, WIDTH));
    m->head = kl_params_make(m->params, "head", 2, (int64_t[]){WIDTH, CLASSES},
                             &(kl_init){.kind = KL_INIT_UNIFORM, .low = -1, .high = 1});
}

/* ---- both, symbolic beside fixed ---- */

struct model { struct modules m; kl_tensor p[PARTS]; int n; bool by_hand; };

static void model_open(kl_device dev, struct model *m, bool by_hand)
{
    *m = (struct model){.n = by_hand ? 4 : 5, .by_hand = by_hand};
    if (by_hand) {
        parts_by_hand(dev, m->p);
        return;
    }
    module_open(dev, &m->m);
    const kl_nn_recurrent *l = &m->m.lstm;
    memcpy(m->p, (kl_tensor[]){l->x_weight, l->h_weight, l->x_bias, l->h_bias, m->m.head}, 5 * sizeof *m->p);
    static float read[WIDTH * 4 * WIDTH];
    for (int i = 0; i < m->n; i++)
        OK(kl_read(m->p[i], read, (size_t)kl_numel(m->p[i]) * sizeof *read));
}

static void model_close(struct model *m)
{
    for (int i = 0; m->by_hand && i < m->n; i++)
        kl_release(m->p[i]);
    kl_params_free(m->m.params);
}

static kl_tensor logits_of(kl_device dev, const struct sizes *s, const struct model *m)
{
    return m->by_hand ? logits_by_hand(dev, s, sequence(dev, s), m->p) : logits_of_module(dev, s, &m->m);
}

static void test_lstm(kl_device dev, bool by_hand, bool train)
{
    struct model m[2];
    struct counts first = {0}, fixed = {0}, others = {0};
    char name[2][32];
    for (int k = 0; k < 2; k++) {
        model_open(dev, &m[k], by_hand);
        snprintf(name[k], sizeof name[k], "%s %s %s", k ? "fixed" : "symbolic", by_hand ? "hand" : "module",
                 train ? "step" : "forward");
    }
    for (int i = 0; i < PAIRS; i++) {
        kl_tensor out[2];
        for (int k = 0; k < 2; k++) {
            struct sizes s = scan_sizes(!k, pair[i]);
            struct counts before = counts_now();
            kl_trace_begin(name[k]);
            kl_tensor y = logits_of(dev, &s, &m[k]);
            out[k] = kl_keep(train ? kl_cross_entropy(y, labels(dev, &s)) : kl_softmax(y, 1));
            for (int j = 0; train && j < m[k].n; j++)
                kl_assign(m[k].p[j], kl_sub(m[k].p[j], kl_mul_scalar(kl_grad(out[k], m[k].p[j]), 0.1)));
            OK(kl_trace_end());
            if (!k)
                add_since(i ? &others : &first, before);
            else if (!i)
                add_since(&fixed, before);
        }
        same_bits(out[0], out[1]);
        kl_release(out[0]), kl_release(out[1]);
        for (int j = 0; j < m[0].n; j++)
            same_bits(m[0].p[j], m[1].p[j]);
    }
    CHECK(!whole_programs(dev) || (first.graphs == 1 && !others.graphs && !others.compiles && !others.variants));
    /* of the one by hand some kernels are those of the module; a small loop of fixed sizes is one kernel */
    CHECK(by_hand || !whole_programs(dev) || !fixed.compiles || first.compiles <= 3 * fixed.compiles);
    for (int k = 0; k < 2; k++)
        model_close(&m[k]);
}

/* ---- frozen steps ---- */

static void test_step(kl_device dev)
{
    struct model m;
    const int64_t some[2] = {2, 3};
    struct sizes s = scan_sizes(true, some);
    model_open(dev, &m, true);
    kl_trace_begin("frozen lstm");
    kl_tensor x = sequence(dev, &s), got, want;
    kl_keep(logits_by_hand(dev, &s, x, m.p));
    kl_step *step = kl_trace_end_step(1, &x);
    CHECK(step != NULL);
    for (int i = 0; step && i < PAIRS; i++) {
        struct sizes f = scan_sizes(false, pair[i]);
        kl_trace_begin("lstm beside the frozen one");
        want = kl_keep(logits_of(dev, &f, &m));
        OK(kl_trace_end());
        x = kl_input(dev, KL_F32, 3, (int64_t[]){pair[i][1], pair[i][0], IN}, data);
        OK(kl_step_run(step, 1, &x, 0, NULL, 1, &got));
        same_bits(got, want);
        kl_release(x), kl_release(got), kl_release(want);
    }
    kl_step_free(step);
    model_close(&m);
}

/* ---- branches, loops, custom ops ---- */

static kl_status grown(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_add_scalar(in[0], 1);
    out[1] = kl_mul(kl_tanh(in[1]), kl_cast(out[0], KL_F32));
    return KL_OK;
}

static kl_status below_four(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_lt(in[0], kl_full(kl_device_of(in[0]), KL_I32, 0, NULL, 4));
    return KL_OK;
}

static kl_status doubled(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_add(in[0], in[0]);
    return KL_OK;
}

static kl_status negated(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_neg(in[0]);
    return KL_OK;
}

static kl_status same_type(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    out[0] = call->in_type[0];
    return KL_OK;
}

/* Adds the number of the last axis but one to each element. */
static kl_status add_count(void *ctx, const kl_custom_call *call)
{
    const kl_type *t = call->in_type;
    int64_t n = 1;
    (void)ctx;
    for (int i = 0; i < t->rank; i++)
        n *= t->dims[i];
    for (int64_t i = 0; i < n; i++)
        ((float *)call->out[0])[i] = ((const float *)call->in[0])[i] + (float)call->out_type[0].dims[t->rank - 2];
    return KL_OK;
}

static kl_status longer_type(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    out[0] = call->in_type[0];
    out[0].dims[0] *= 2;
    return KL_OK;
}

static kl_tensor branches(kl_device dev, const struct sizes *s)
{
    kl_tensor x = sequence(dev, s), zero = kl_zeros(dev, KL_I32, 0, NULL), loop[2], y, z;
    kl_while(below_four, grown, NULL, 2, (kl_tensor[]){zero, x}, loop);
    kl_tensor positive = kl_lt(kl_zeros(dev, KL_F32, 0, NULL), kl_sum(loop[1], 3, (int[]){0, 1, 2}, false));
    kl_cond(positive, doubled, negated, NULL, 1, &loop[1], 1, &y);
    kl_custom("add_count", NULL, 0, 1, &y, 1, &z);
    return kl_keep(kl_sum(z, AXES(2), false));
}

static void test_branches(kl_device dev)
{
    struct counts first = {0}, others = {0};
    for (int i = 0; i < PAIRS; i++) {
        kl_tensor out[2];
        for (int k = 0; k < 2; k++) {
            struct sizes s = scan_sizes(!k, pair[i]);
            struct counts before = counts_now();
            kl_trace_begin(k ? "fixed branches" : "symbolic branches");
            out[k] = branches(dev, &s);
            OK(kl_trace_end());
            if (!k)
                add_since(i ? &others : &first, before);
        }
        same_bits(out[0], out[1]);
        kl_release(out[0]), kl_release(out[1]);
    }
    CHECK(!whole_programs(dev) || (first.graphs == 1 && !others.graphs && !others.compiles && !others.variants));
}

static void test_errors(kl_device dev)
{
    struct sizes s = scan_sizes(true, pair[0]);
    kl_tensor out[3], zero;
    struct model m;
    model_open(dev, &m, true);
    struct cell c = {m.p, &s};
    kl_trace_begin("negative");
    kl_tensor x = sequence(dev, &s);
    zero = kl_zeros(dev, KL_F32, 2, (int64_t[]){s.b, WIDTH});
    CHECK(kl_scan(cell_step, &c, -3, 2, (kl_tensor[]){zero, zero}, 1, &x, 1, false, out) == KL_ERR_ARGUMENT &&
          strstr(kl_last_error(), "scan: length -3 is negative"));
    CHECK(kl_trace_end() == KL_ERR_ARGUMENT);
    kl_trace_begin("another length");
    x = sequence(dev, &s);
    zero = kl_zeros(dev, KL_F32, 2, (int64_t[]){s.b, WIDTH});
    CHECK(kl_scan(cell_step, &c, s.b, 2, (kl_tensor[]){zero, zero}, 1, &x, 1, false, out) == KL_ERR_SHAPE &&
          strstr(kl_last_error(), "scan: of length b, but scanned tensor 0 is f32[l,b,6]"));
    CHECK(kl_trace_end() == KL_ERR_SHAPE);
    kl_trace_begin("undeclared length");
    zero = kl_zeros(dev, KL_F32, 2, (int64_t[]){2, WIDTH});
    CHECK(kl_scan(cell_step, &c, s.l, 2, (kl_tensor[]){zero, zero}, 0, NULL, 1, false, out) == KL_ERR_SHAPE &&
          strstr(kl_last_error(), "symbol l is the length of no input of this trace so far"));
    CHECK(kl_trace_end() == KL_ERR_SHAPE);
    kl_trace_begin("custom with a length of its own");
    x = sequence(dev, &s);
    CHECK(kl_custom("longer", NULL, 0, 1, &x, 1, out) == KL_ERR_SHAPE &&
          strstr(kl_last_error(), "a symbolic length of a result must be one of an operand"));
    CHECK(kl_trace_end() == KL_ERR_SHAPE);
    model_close(&m);
}

static void test(kl_device dev)
{
    for (int i = 0; i < MAX_LENGTH * MAX_BATCH * IN; i++)
        data[i] = (float)((i * 37) % 101) / 50 - 1;
    for (int i = 0; i < MAX_BATCH; i++)
        label[i] = i * i % CLASSES;
    for (int k = 0; k < 4; k++)
        test_lstm(dev, k & 1, k >> 1);
    test_step(dev);
    test_branches(dev);
    test_errors(dev);
}

int main(void)
{
    OK(kl_custom_register("add_count", &(kl_custom_op){.types = same_type, .run = add_count}, NULL));
    OK(kl_custom_register("longer", &(kl_custom_op){.types = longer_type, .run = add_count}, NULL));
    return on_devices(test);
}
