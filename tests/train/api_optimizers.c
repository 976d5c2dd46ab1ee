/* Optimizers beside Adam and SGD (tests/api/api_optim.c) against their formulas in double: states by name, factors of a
 * tree, frozen parameters and steps; clipping, accumulation, averages, learning rates. */
#include "tests/support/api_check.h"
#include <kiln/train.h>

enum { ROWS = 2, COLUMNS = 3, N = ROWS * COLUMNS, STEPS = 12 };

static kl_device dev;

static double begin_at(int i) { return 1.5 * sin(2.3 * i + 1); }
static double target_at(int i) { return 2 * cos(1.7 * i); }
static double rate_at(int t) { return 0.05 / (1 + 0.1 * t); }

/* ---- the formulas ---- */

/* One optimizer's numbers in double: p, and three states. */
struct model {
    int rows, columns; /* rows 0: a vector */
    double p[N], a[N], b[N], c[N];
};
typedef void rule_fn(struct model *m, int n, const double *g, int t, double lr, double decay);

static void nesterov(struct model *m, int n, const double *g, int t, double lr, double decay)
{
    (void)t;
    for (int i = 0; i < n; i++) {
        double d = g[i] + 0.1 * decay * m->p[i];
        m->a[i] = 0.9 * m->a[i] + d;
        m->p[i] -= lr * (0.9 * m->a[i] + d);
    }
}

static void adamw(struct model *m, int n, const double *g, int t, double lr, double decay)
{
    for (int i = 0; i < n; i++) {
        m->a[i] = 0.8 * m->a[i] + 0.2 * g[i];
        m->b[i] = 0.9 * m->b[i] + 0.1 * g[i] * g[i];
        double mh = m->a[i] / (1 - pow(0.8, t)), vh = m->b[i] / (1 - pow(0.9, t));
        m->p[i] = (1 - lr * 0.3 * decay) * m->p[i] - lr * mh / (sqrt(vh) + 1e-6);
    }
}

static void lion(struct model *m, int n, const double *g, int t, double lr, double decay)
{
    (void)t;
    for (int i = 0; i < n; i++) {
        double c = 0.9 * m->a[i] + 0.1 * g[i];
        m->p[i] = (1 - lr * 0.2 * decay) * m->p[i] - lr * (c > 0 ? 1 : c < 0 ? -1 : 0);
        m->a[i] = 0.6 * m->a[i] + 0.4 * g[i];
    }
}

static void rmsprop_with(struct model *m, int n, const double *g, double lr, double decay, bool centered, bool heavy)
{
    for (int i = 0; i < n; i++) {
        double d = g[i] + 0.05 * decay * m->p[i];
        m->a[i] = 0.9 * m->a[i] + 0.1 * d * d;
        m->b[i] = 0.9 * m->b[i] + 0.1 * d;
        double u = d / (sqrt(m->a[i] - (centered ? m->b[i] * m->b[i] : 0)) + 1e-3);
        m->c[i] = (heavy ? 0.7 : 0) * m->c[i] + u;
        m->p[i] -= lr * m->c[i];
    }
}

static void rmsprop(struct model *m, int n, const double *g, int t, double lr, double decay)
{
    (void)t;
    rmsprop_with(m, n, g, lr, decay, false, false);
}

static void rmsprop_all(struct model *m, int n, const double *g, int t, double lr, double decay)
{
    (void)t;
    rmsprop_with(m, n, g, lr, decay, true, true);
}

static double root_mean(int n, const double *x)
{
    double s = 0;
    for (int i = 0; i < n; i++)
        s += x[i] * x[i] / n;
    return sqrt(s);
}

static void adafactor(struct model *m, int n, const double *g, int t, double lr, double decay)
{
    double b = (double)(float)(1 - pow(t, -0.7)), u[N];
    if (!m->rows)
        for (int i = 0; i < n; i++) {
            m->a[i] = b * m->a[i] + (1 - b) * (g[i] * g[i] + 1e-20);
            u[i] = g[i] / sqrt(m->a[i]);
        }
    double mean = 0;
    for (int r = 0; r < m->rows; r++) {
        double s = 0;
        for (int c = 0; c < m->columns; c++)
            s += (g[r * m->columns + c] * g[r * m->columns + c] + 1e-20) / m->columns;
        m->a[r] = b * m->a[r] + (1 - b) * s;
        mean += m->a[r] / m->rows;
    }
    for (int c = 0; c < m->columns && m->rows; c++) {
        double s = 0;
        for (int r = 0; r < m->rows; r++)
            s += (g[r * m->columns + c] * g[r * m->columns + c] + 1e-20) / m->rows;
        m->b[c] = b * m->b[c] + (1 - b) * s;
        for (int r = 0; r < m->rows; r++)
            u[r * m->columns + c] = g[r * m->columns + c] / sqrt(m->a[r] * m->b[c] / mean);
    }
    double over = fmax(1, root_mean(n, u) / 0.5), a = lr * fmax(0.01, root_mean(n, m->p));
    for (int i = 0; i < n; i++)
        m->p[i] = (1 - lr * 0.1 * decay) * m->p[i] - a * u[i] / over;
}

/* ---- the optimizers ---- */

static const kl_sgd_options nesterov_is = {.momentum = 0.9, .weight_decay = 0.1, .nesterov = true};
static const kl_adam_options adam_is = {0.8, 0.9, 1e-6, 0.3};
static const kl_lion_options lion_is = {0.9, 0.6, 0.2};
static const kl_rmsprop_options rmsprop_is = {.alpha = 0.9, .eps = 1e-3, .weight_decay = 0.05};
static const kl_rmsprop_options rmsprop_all_is = {0.9, 1e-3, 0.7, 0.05, true};
static const kl_adafactor_options adafactor_is = {0.7, 1e-20, 0.01, 0.5, 0.1, false};

static kl_optimizer *make_nesterov(const kl_tensor *p, int n) { return kl_sgd(n, p, &nesterov_is); }
static kl_optimizer *make_adam(const kl_tensor *p, int n) { return kl_adam(n, p, &adam_is); }
static kl_optimizer *make_lion(const kl_tensor *p, int n) { return kl_lion(n, p, &lion_is); }
static kl_optimizer *make_rmsprop(const kl_tensor *p, int n) { return kl_rmsprop(n, p, &rmsprop_is); }
static kl_optimizer *make_rmsprop_all(const kl_tensor *p, int n) { return kl_rmsprop(n, p, &rmsprop_all_is); }
static kl_optimizer *make_adafactor(const kl_tensor *p, int n) { return kl_adafactor(n, p, &adafactor_is); }

static const struct kind {
    const char *name;
    rule_fn *rule;
    kl_optimizer *(*make)(const kl_tensor *p, int n);
    int states; /* of the two parameters that are tested */
    const char *first, *last;
} kinds[] = {
    {"nesterov", nesterov, make_nesterov, 2, "w.m", "v.m"},
    {"adam", adamw, make_adam, 4, "w.m", "v.v"},
    {"lion", lion, make_lion, 2, "w.m", "v.m"},
    {"rmsprop", rmsprop, make_rmsprop, 2, "w.v", "v.v"},
    {"rmsprop, all", rmsprop_all, make_rmsprop_all, 6, "w.v", "v.m"},
    {"adafactor", adafactor, make_adafactor, 3, "w.r", "v.v"},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* A tree with parameters "w" [2,3] and "v" [3] in f64. */
static kl_params *tree(kl_tensor *p)
{
    double x[N];
    for (int i = 0; i < N; i++)
        x[i] = begin_at(i);
    kl_params *t = kl_params_new(dev, KL_F64, 1);
    p[0] = kl_input(dev, KL_F64, DIMS(ROWS, COLUMNS), x);
    p[1] = kl_input(dev, KL_F64, DIMS(COLUMNS), x);
    OK(kl_params_add(t, "w", p[0]));
    OK(kl_params_add(t, "v", p[1]));
    return t;
}

/* The sum of (1 + i / 4) (p[i] - target)^2 of both. */
static kl_tensor distance(const kl_tensor *p)
{
    double target[N], weight[N];
    for (int i = 0; i < N; i++)
        target[i] = target_at(i), weight[i] = 1 + 0.25 * i;
    kl_tensor d = kl_sub(p[0], kl_input(dev, KL_F64, DIMS(ROWS, COLUMNS), target));
    kl_tensor e = kl_sub(p[1], kl_input(dev, KL_F64, DIMS(COLUMNS), target));
    d = kl_mul(kl_mul(d, d), kl_input(dev, KL_F64, DIMS(ROWS, COLUMNS), weight));
    e = kl_mul(kl_mul(e, e), kl_input(dev, KL_F64, DIMS(COLUMNS), weight));
    return kl_add(kl_sum_all(d), kl_sum_all(e));
}

static void model_start(struct model *m, int n)
{
    *m = (struct model){.rows = n == N ? ROWS : 0, .columns = COLUMNS};
    for (int i = 0; i < n; i++)
        m->p[i] = begin_at(i);
}

static void model_step(const struct kind *k, struct model *m, int n, int t, double lr, double decay)
{
    double g[N];
    for (int i = 0; i < n; i++)
        g[i] = 2 * (1 + 0.25 * i) * (m->p[i] - target_at(i));
    k->rule(m, n, g, t, lr, decay);
}

static bool same(const char *what, kl_tensor t, int n, const double *want)
{
    double *v = values_of(t), worst = 0;
    for (int i = 0; v && i < n; i++)
        worst = fmax(worst, fabs(v[i] - want[i]) / (1 + fabs(want[i])));
    bool ok = v && kl_numel(t) == n && worst < 1e-11;
    if (!CHECK(ok))
        printf("%s: off by %g\n", what, worst);
    free(v);
    return ok;
}

enum how { BY_LOSS, BY_GRADIENTS, UNFUSED, FACTORS, FROZEN_STEP };

static void compare(const struct kind *k, enum how how)
{
    kl_tensor p[2];
    kl_params *t = tree(p);
    kl_optimizer *o = k->make(p, 2);
    struct model w, v;
    double rate = how == FACTORS ? 0.5 : 1, decay = how == FACTORS ? 3 : 1;
    int64_t built = 0;
    model_start(&w, N);
    model_start(&v, COLUMNS);
    CHECK(o != NULL);
    OK(kl_optimizer_attach(o, t));
    if (how == FACTORS)
        CHECK(kl_params_set_rate(t, "w", rate) == KL_OK && kl_params_set_decay(t, "w", decay) == KL_OK);
    OK(kl_set_option("fuse", how != UNFUSED));
    kl_step *step = NULL;
    for (int i = 1; i <= STEPS; i++) {
        model_step(k, &w, N, i, rate_at(i) * rate, decay);
        model_step(k, &v, COLUMNS, i, rate_at(i), 1);
        if (step) {
            kl_slot slot[KL_OPTIMIZER_SLOTS];
            int n = kl_optimizer_slots(o, rate_at(i), slot);
            OK(kl_step_run(step, 0, NULL, n, slot, 0, NULL));
            continue;
        }
        kl_trace_begin("optimizers");
        if (how == BY_GRADIENTS) {
            kl_tensor g[2];
            OK(kl_grads(distance(p), 2, p, g));
            OK(kl_optimizer_step_gradients(o, g, rate_at(i)));
        } else {
            OK(kl_optimizer_step(o, distance(p), rate_at(i)));
        }
        if (how == FROZEN_STEP) {
            step = kl_trace_end_step(0, NULL);
            OK(kl_optimizer_set_steps(o, 0));
            i--;
            model_start(&w, N);
            model_start(&v, COLUMNS);
            if (!CHECK(step != NULL))
                break;
            continue;
        }
        OK(kl_trace_end());
        if (i == 1)
            built = kl_counter("graphs_built");
    }
    CHECK(how == FROZEN_STEP || kl_counter("graphs_built") == built); /* one program */
    CHECK(kl_optimizer_steps(o) == STEPS);
    same(k->name, p[0], N, w.p);
    same(k->name, p[1], COLUMNS, v.p);

    CHECK(kl_optimizer_states(o) == k->states);
    const char *name;
    kl_tensor state;
    OK(kl_optimizer_state(o, 0, &name, &state));
    CHECK(!strcmp(name, k->first));
    if (k->rule == adafactor) {
        same("row state", state, ROWS, w.a);
        OK(kl_optimizer_state(o, 1, &name, &state));
        CHECK(!strcmp(name, "w.c"));
        same("column state", state, COLUMNS, w.b);
    } else {
        same("state", state, N, w.a);
    }
    OK(kl_optimizer_state(o, k->states - 1, &name, &state));
    CHECK(!strcmp(name, k->last));
    CHECK(kl_optimizer_state(o, k->states, &name, &state) == KL_ERR_ARGUMENT);
    OK(kl_set_option("fuse", 1));
    kl_step_free(step);
    kl_optimizer_free(o);
    kl_params_free(t);
}

/* ---- options ---- */

enum { OPTIMIZERS = 5, VARIANTS = 3 };
static const char *const named[OPTIMIZERS] = {"sgd", "adam", "lion", "rmsprop", "adafactor"};

/* Options: none, zeros, or the defaults that the header gives; with_decay: zeros and a weight decay, or all given. */
static kl_optimizer *with_defaults(int which, int variant, double decay, const kl_tensor *p)
{
    bool none = variant == 0 && decay == 0, zeros = variant <= 1;
    kl_sgd_options sgd = {.weight_decay = decay};
    kl_adam_options adam = zeros ? (kl_adam_options){.weight_decay = decay}
                                 : (kl_adam_options){0.9, 0.999, 1e-8, decay};
    kl_lion_options lion = zeros ? (kl_lion_options){.weight_decay = decay} : (kl_lion_options){0.9, 0.99, decay};
    kl_rmsprop_options rms = zeros ? (kl_rmsprop_options){.weight_decay = decay}
                                   : (kl_rmsprop_options){0.99, 1e-8, 0, decay, false};
    kl_adafactor_options ada = zeros ? (kl_adafactor_options){.weight_decay = decay}
                                     : (kl_adafactor_options){0.8, 1e-30, 1e-3, 1, decay, false};
    switch (which) {
    case 0: return kl_sgd(2, p, none ? NULL : &sgd);
    case 1: return kl_adam(2, p, none ? NULL : &adam);
    case 2: return kl_lion(2, p, none ? NULL : &lion);
    case 3: return kl_rmsprop(2, p, none ? NULL : &rms);
    default: return kl_adafactor(2, p, none ? NULL : &ada);
    }
}

static void zeros_are_defaults(void)
{
    for (int which = 0; which < OPTIMIZERS; which++)
        for (int decays = 0; decays < 2; decays++) {
            double *got[VARIANTS];
            bool finite = true, same_bits = true;
            for (int variant = 0; variant < VARIANTS; variant++) {
                kl_tensor p[2];
                kl_params *t = tree(p);
                kl_optimizer *o = with_defaults(which, variant, decays ? 0.1 : 0, p);
                for (int i = 1; i <= 2; i++) {
                    kl_trace_begin("defaults");
                    /* elements of gradient 0, at which eps counts */
                    OK(kl_optimizer_step(o, kl_sum_all(kl_square(kl_narrow(p[0], 1, 0, 1))), 0.1));
                    OK(kl_trace_end());
                }
                got[variant] = values_of(p[0]);
                for (int i = 0; i < N; i++)
                    finite &= isfinite(got[variant][i]) != 0;
                same_bits &= !memcmp(got[variant], got[0], N * sizeof(double));
                kl_optimizer_free(o);
                kl_params_free(t);
            }
            if (!CHECK(finite && same_bits))
                printf("%s with decay %d: finite %d, same %d\n", named[which], decays, finite, same_bits);
            for (int variant = 0; variant < VARIANTS; variant++)
                free(got[variant]);
        }
}

static void options_out_of_range(void)
{
    kl_tensor p[2];
    kl_params *t = tree(p);
    const double bad[] = {NAN, INFINITY, 1, 2};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!kl_adam(2, p, &(kl_adam_options){.beta2 = bad[i]}) && strstr(kl_last_error(), "adam: beta2 is"));
        CHECK(!kl_lion(2, p, &(kl_lion_options){.beta1 = bad[i]}) && strstr(kl_last_error(), "lion: beta1 is"));
        CHECK(!kl_rmsprop(2, p, &(kl_rmsprop_options){.alpha = bad[i]}));
        CHECK(kl_last_error_code() == KL_ERR_ARGUMENT && strstr(kl_last_error(), "rmsprop: alpha is"));
    }
    CHECK(!kl_sgd(2, p, &(kl_sgd_options){.momentum = NAN}) && strstr(kl_last_error(), "sgd: momentum is"));
    CHECK(!kl_adam(2, p, &(kl_adam_options){.weight_decay = INFINITY}) && strstr(kl_last_error(), "weight_decay is"));
    CHECK(!kl_adafactor(2, p, &(kl_adafactor_options){.eps1 = -1}) && strstr(kl_last_error(), "eps1 is -1"));
    kl_params_free(t);
}

/* A frozen parameter and its states keep their values; so does one whose gradient is kl_none. */
static void freezing(const struct kind *k)
{
    kl_tensor p[2];
    kl_params *t = tree(p);
    kl_optimizer *o = k->make(p, 2);
    struct model w, v;
    model_start(&w, N);
    model_start(&v, COLUMNS);
    OK(kl_optimizer_attach(o, t));
    OK(kl_params_freeze(t, "w", true));
    kl_trace_begin("frozen");
    OK(kl_optimizer_step(o, distance(p), 0.1));
    OK(kl_trace_end());
    model_step(k, &v, COLUMNS, 1, 0.1, 1);
    same("a frozen parameter", p[0], N, w.p);
    same("the other one", p[1], COLUMNS, v.p);
    OK(kl_params_freeze(t, "w", false));
    kl_trace_begin("no gradient");
    kl_tensor g[2];
    OK(kl_grads(distance(p), 2, p, g));
    g[0] = kl_none;
    OK(kl_optimizer_step_gradients(o, g, 0.1));
    OK(kl_trace_end());
    model_step(k, &v, COLUMNS, 2, 0.1, 1);
    same("one without a gradient", p[0], N, w.p);
    same("the other one", p[1], COLUMNS, v.p);
    kl_optimizer_free(o);
    kl_params_free(t);
}

/* Gradients of 0: a state is 0 instead of a subnormal number, or one whose next change is; others decay as they do
 * anyway, and a NaN stays one.  The bits are the interpreter's, fused and unfused. */
static void decay_to_zero(const struct kind *k, kl_dtype dtype)
{
    double min = dtype == KL_F64 ? 0x1p-1022 : 0x1p-126;
    const double begin[] = {min * 0.7, -min * 0.7, min * 0x1p-10, min * 0x1p30, -min * 0x1p30, 0, NAN,
                            INFINITY};
    enum { SIZE = sizeof begin / sizeof *begin, RUNS = 3 };
    double *got[RUNS][3] = {{0}};
    int states = 0;
    for (int run = 0; run < RUNS; run++) {
        kl_device on = run == 2 ? kl_device_named("ref") : dev;
        OK(kl_set_option("fuse", run != 1));
        kl_tensor p = kl_keep(kl_zeros(on, dtype, DIMS(SIZE))), g = kl_keep(kl_zeros(on, dtype, DIMS(SIZE)));
        kl_optimizer *o = k->make(&p, 1);
        states = kl_optimizer_states(o);
        const char *name;
        kl_tensor state;
        kl_trace_begin("small states");
        for (int i = 0; i < states; i++) {
            OK(kl_optimizer_state(o, i, &name, &state));
            OK(kl_assign(state, kl_cast(kl_input(on, KL_F64, DIMS(SIZE), begin), dtype)));
        }
        OK(kl_trace_end());
        kl_trace_begin("decay");
        OK(kl_optimizer_step_gradients(o, &g, 0.1));
        OK(kl_trace_end());
        for (int i = 0; i < states && i < 3; i++) {
            OK(kl_optimizer_state(o, i, &name, &state));
            got[run][i] = values_of(state);
        }
        kl_optimizer_free(o);
        kl_release(p), kl_release(g);
    }
    OK(kl_set_option("fuse", 1));
    for (int i = 0; i < states; i++) {
        const double *x = got[0][i];
        CHECK(x && x[0] == 0 && x[1] == 0 && x[2] == 0 && x[3] > 0 && x[3] <= begin[3] && x[4] <= 0 && x[5] == 0 &&
              isnan(x[6]) && !isfinite(x[7]));
        for (int run = 1; run < RUNS; run++)
            for (int j = 0; x && got[run][i] && j < SIZE; j++)
                CHECK(!memcmp(&x[j], &got[run][i][j], sizeof *x) || (isnan(x[j]) && isnan(got[run][i][j])));
    }
    for (int run = 0; run < RUNS; run++)
        for (int i = 0; i < 3; i++)
            free(got[run][i]);
}

/* ---- clipping, accumulation, averages ---- */

static void clipping(void)
{
    for (int traced = 0; traced < 2; traced++)
        for (int k = 0; k < 2; k++) {
            double max = k ? 2 : 100, x[2] = {3, -4}, y[1] = {12}, f = k ? 2.0 / 13 : 1;
            if (traced)
                kl_trace_begin("clip");
            kl_tensor g[3] = {kl_input(dev, KL_F64, DIMS(2), x), kl_none, kl_input(dev, KL_F64, DIMS(1), y)};
            kl_tensor made[2] = {g[0], g[2]}, norm = kl_clip_norm(3, g, max);
            CHECK(!g[1].id);
            if (traced) {
                kl_keep(norm), kl_keep(g[0]), kl_keep(g[2]);
                OK(kl_trace_end());
            } else {
                kl_release(made[0]), kl_release(made[1]);
            }
            NEAR_LIST(norm, 1e-14, 13);
            NEAR_LIST(g[0], 1e-14, 3 * f, -4 * f);
            NEAR_LIST(g[2], 1e-14, 12 * f);
        }
    kl_trace_begin("clip zero");
    kl_tensor g[2] = {kl_zeros(dev, KL_F64, DIMS(2)), kl_zeros(dev, KL_F64, DIMS(2))};
    kl_keep(kl_clip_norm(1, g, 1));
    kl_tensor c = kl_input(dev, KL_F64, DIMS(3), ((double[]){-3, 0.5, 9}));
    OK(kl_clip_value(1, &c, 1));
    kl_keep(g[0]), kl_keep(c);
    OK(kl_trace_end());
    NEAR_LIST(g[0], 0, 0, 0);
    NEAR_LIST(c, 0, -1, 0.5, 1);
    kl_tensor none = kl_none;
    kl_tensor bad = kl_clip_norm(1, &none, 1);
    CHECK(kl_check(bad) == KL_ERR_ARGUMENT);
    kl_release(bad);
    CHECK(kl_clip_value(1, NULL, 1) == KL_ERR_ARGUMENT && kl_clip_value(1, &none, -1) == KL_ERR_ARGUMENT);
}

/* Three batches of 2 added up are a batch of 6. */
static void accumulating(void)
{
    kl_tensor p[2];
    kl_params *t = tree(p);
    kl_accumulator *acc = kl_accumulator_new(2, p);
    kl_tensor got[2] = {kl_none, kl_none};
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3; i++) {
            kl_tensor g[2];
            kl_trace_begin("accumulate");
            OK(kl_grads(kl_mul_scalar(distance(p), 1 + i), 2, p, g));
            if (i < 2) {
                OK(kl_accumulator_add(acc, g));
            } else {
                OK(kl_accumulator_take(acc, g));
                kl_release(got[0]), kl_release(got[1]);
                got[0] = kl_keep(g[0]), got[1] = kl_keep(g[1]);
            }
            OK(kl_trace_end());
        }
    double want[N];
    for (int i = 0; i < N; i++) /* the mean of the factors 1, 2, 3 is 2 */
        want[i] = 4 * (1 + 0.25 * i) * (begin_at(i) - target_at(i));
    same("mean of gradients", got[0], N, want);
    same("mean of gradients", got[1], COLUMNS, want);
    CHECK(kl_accumulator_add(acc, got) == KL_ERR_TRACE && kl_accumulator_add(NULL, got) == KL_ERR_ARGUMENT);
    kl_release(got[0]), kl_release(got[1]);
    kl_accumulator_free(acc);
    kl_params_free(t);
}

static void averaging(void)
{
    kl_tensor p[2];
    kl_params *t = tree(p);
    kl_ema *e = kl_ema_new(2, p, 0.9);
    CHECK(e != NULL);
    double average[N], now[N];
    for (int i = 0; i < N; i++)
        average[i] = now[i] = begin_at(i);
    for (int s = 0; s < 4; s++) {
        kl_trace_begin("ema");
        for (int i = 0; i < 2; i++)
            OK(kl_assign(p[i], kl_add_scalar(p[i], 1 + s)));
        OK(kl_ema_update(e));
        OK(kl_trace_end());
        for (int i = 0; i < N; i++) {
            now[i] += 1 + s;
            average[i] = 0.9 * average[i] + 0.1 * now[i];
        }
    }
    same("average", kl_ema_average(e, 0), N, average);
    same("average", kl_ema_average(e, 1), COLUMNS, average);
    for (int twice = 0; twice < 2; twice++) {
        kl_trace_begin("swap");
        OK(kl_ema_swap(e));
        OK(kl_trace_end());
        same("swapped parameter", p[0], N, twice ? now : average);
        same("swapped average", kl_ema_average(e, 1), COLUMNS, twice ? average : now);
    }
    CHECK(!kl_ema_average(e, 2).id && !kl_ema_new(2, p, 1.5) && !kl_ema_new(1, NULL, 0.5));
    CHECK(kl_ema_update(e) == KL_ERR_TRACE);
    kl_ema_free(e);
    kl_ema_free(NULL);
    kl_params_free(t);
}

static void rates(void)
{
    CHECK(kl_rate_warmup(0, 4) == 0.25 && kl_rate_warmup(3, 4) == 1 && kl_rate_warmup(9, 4) == 1);
    CHECK(kl_rate_warmup(0, 0) == 1);
    CHECK(kl_rate_linear(0, 10, 2, 1) == 2 && kl_rate_linear(5, 10, 2, 1) == 1.5 && kl_rate_linear(10, 10, 2, 1) == 1);
    CHECK(kl_rate_linear(-3, 10, 2, 1) == 2 && kl_rate_linear(11, 10, 2, 1) == 1 && kl_rate_linear(0, 0, 2, 1) == 1);
    CHECK(kl_rate_cosine(0, 8, 3, 1) == 3 && fabs(kl_rate_cosine(4, 8, 3, 1) - 2) < 1e-12);
    CHECK(fabs(kl_rate_cosine(2, 8, 3, 1) - (2 + sqrt(0.5))) < 1e-12 && kl_rate_cosine(8, 8, 3, 1) == 1);
    CHECK(kl_rate_steps(0, 3, 8, 0.5) == 8 && kl_rate_steps(2, 3, 8, 0.5) == 8 && kl_rate_steps(3, 3, 8, 0.5) == 4);
    CHECK(kl_rate_steps(9, 3, 8, 0.5) == 1 && kl_rate_steps(-4, 3, 8, 0.5) == 8 && kl_rate_steps(5, 0, 8, 0.5) == 8);
}

static int64_t live(void)
{
    kl_memory_use use;
    return kl_memory_used(dev, &use) == KL_OK ? use.live : -1;
}

static void errors(void)
{
    int64_t before = live();
    kl_tensor p[2], g[2];
    kl_params *t = tree(p), *other = kl_params_new(dev, KL_F32, 1);
    CHECK(!kl_sgd(2, p, &(kl_sgd_options){.nesterov = true}) && kl_last_error_code() == KL_ERR_ARGUMENT);
    kl_optimizer *o = kl_lion(2, p, NULL);
    CHECK(kl_optimizer_attach(o, other) == KL_ERR_ARGUMENT && kl_optimizer_attach(NULL, t) == KL_ERR_ARGUMENT);
    const char *name;
    kl_tensor state;
    OK(kl_optimizer_state(o, 1, &name, &state)); /* no tree: by number */
    CHECK(!strcmp(name, "1.m"));
    CHECK(kl_optimizer_step_gradients(o, NULL, 0.1) == KL_ERR_ARGUMENT);
    kl_trace_begin("shapes");
    g[0] = kl_zeros(dev, KL_F64, DIMS(ROWS, COLUMNS)), g[1] = kl_zeros(dev, KL_F64, DIMS(1));
    CHECK(kl_optimizer_step_gradients(o, g, 0.1) == KL_ERR_SHAPE);
    CHECK(kl_trace_end() == KL_ERR_SHAPE && strstr(kl_last_error(), "optimizer_step: gradient 1"));
    CHECK(kl_optimizer_steps(o) == 0 && strstr(kl_last_error(), "api_optimizers.c"));
    kl_optimizer_free(o);
    kl_params_free(t);
    kl_params_free(other);
    CHECK(live() == before);
}

static void all(kl_device device)
{
    dev = device;
    for (int k = 0; k < KINDS; k++) {
        for (int how = BY_LOSS; how <= FROZEN_STEP; how++)
            compare(&kinds[k], (enum how)how);
        freezing(&kinds[k]);
        if (kinds[k].rule != adafactor) { /* adds eps1 to squares */
            decay_to_zero(&kinds[k], KL_F32);
            decay_to_zero(&kinds[k], KL_F64);
        }
    }
    clipping();
    accumulating();
    averaging();
    rates();
    zeros_are_defaults();
    options_out_of_range();
    errors();
}

int main(void) { return on_devices(all); }
