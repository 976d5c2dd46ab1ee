/* Loops of small steps, on one thread: scans over a few numbers or small matrices, and their gradients, in alternation
 * with the same loops by hand in C, and with JAX and PyTorch in each fifth round.  Forward passes are measured beside
 * C, gradients beside forward passes; `compile` and `compile-grad` are their first calls, without a cache on disk.  All
 * times are the processor's. */
#define _GNU_SOURCE
#include "small_hand.h"
#include "small_peers.h"

enum { ROUNDS = 15, PEER_ROUNDS = 5, MAX_CASE_STEPS = 100000, SMOKE_STEPS = 50, COMPARED = 64,
       MAX_OPERANDS_OF_CASE = 4 };

struct small_data {
    kl_device device;
    int64_t steps;
    kl_tensor (*inverse)(kl_tensor a); /* of a Kalman filter */
    kl_tensor t[MAX_OPERANDS_OF_CASE]; /* operands */
    float *host[MAX_OPERANDS_OF_CASE], *out; /* the same for C, and its result */
};

struct small_case {
    const char *name;
    int64_t steps;
    void (*open)(struct small_data *d);
    kl_tensor (*record)(const struct small_data *d);
    void (*hand)(const struct small_data *d);
    int wrt;                   /* the operand whose gradient is measured */
};

/* Operand i, and its copy for C. */
static void take(struct small_data *d, int i, kl_tensor x)
{
    size_t n = (size_t)kl_numel(x);
    d->t[i] = kl_keep(x);
    d->host[i] = calloc(n + 1, sizeof(float));
    if (d->host[i])
        kl_read(d->t[i], d->host[i], n * sizeof(float));
}

static void make(struct small_data *d, int i, int rank, const int64_t *dims, double scale, double shift)
{
    kl_tensor x = kl_randn(d->device, KL_F32, rank, dims, (uint64_t)i + 1);
    take(d, i, kl_add_scalar(kl_mul_scalar(x, scale), shift));
}

/* ---- logistic map ---- */

static kl_status logistic_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_mul(kl_mul(in[1], in[0]), kl_add_scalar(kl_neg(in[0]), 1));
    out[1] = out[0];
    return KL_OK;
}

/* The element at i of a vector. */
static kl_tensor at(kl_tensor x, int64_t i) { return kl_squeeze(kl_narrow(x, 0, i, 1), 0); }

static void open_logistic(struct small_data *d)
{
    make(d, 0, 1, (int64_t[]){d->steps}, 0.1, 3.5);
    make(d, 1, 0, NULL, 0, 0.3);
}

static kl_tensor record_logistic(const struct small_data *d)
{
    kl_tensor out[2];
    kl_scan(logistic_step, NULL, d->steps, 1, &d->t[1], 1, &d->t[0], 1, false, out);
    return out[1];
}

static void logistic_by_hand(const struct small_data *d)
{
    hand_logistic(d->out, d->host[0], d->host[1][0], d->steps);
}

/* ---- a Kalman filter of 3 states, all measured ---- */

/* a, rotated by r rows and c columns */
static kl_tensor rotated(kl_tensor a, int r, int c) { return kl_roll(kl_roll(a, 0, -r), 1, -c); }

/* The inverse of a [3, 3] by its cofactors. */
static kl_tensor inverse3(kl_tensor a)
{
    kl_tensor plus = kl_mul(rotated(a, 1, 1), rotated(a, 2, 2)), minus = kl_mul(rotated(a, 1, 2), rotated(a, 2, 1));
    kl_tensor cofactors = kl_sub(plus, minus);
    kl_tensor det = kl_sum_all(kl_narrow(kl_mul(a, cofactors), 0, 0, 1));
    return kl_mul(kl_transpose(cofactors, 0, 1), kl_recip(det));
}

/* The same by elimination with pivots, a loop in the loop. */
static kl_tensor eliminated(kl_tensor a) { return kl_inverse(a); }

/* in: x [3], p [3, 3], z [3]; ctx: f, q, r */
static kl_status kalman_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    const struct small_data *d = ctx;
    const kl_tensor *t = d->t;
    kl_tensor p = kl_add(kl_matmul(kl_matmul(t[1], in[1]), kl_transpose(t[1], 0, 1)), t[2]);
    kl_tensor ahead = kl_squeeze(kl_matmul(t[1], kl_unsqueeze(in[0], 1)), 1);
    kl_tensor k = kl_matmul(p, d->inverse(kl_add(p, t[3])));
    kl_tensor moved = kl_squeeze(kl_matmul(k, kl_unsqueeze(kl_sub(in[2], ahead), 1)), 1);
    out[0] = kl_add(ahead, moved);
    out[1] = kl_sub(p, kl_matmul(k, p));
    out[2] = out[0];
    return KL_OK;
}

static void open_kalman(struct small_data *d)
{
    d->inverse = inverse3;
    make(d, 0, 2, (int64_t[]){d->steps, 3}, 1, 0);
    for (int i = 1; i < 4; i++) {
        kl_tensor eye = kl_mul_scalar(kl_eye(d->device, KL_F32, 3, 3), i == 1 ? 0.9 : 0.5);
        take(d, i, i == 1 ? kl_add_scalar(eye, 0.05) : eye);
    }
}

static void open_elimination(struct small_data *d)
{
    open_kalman(d);
    d->inverse = eliminated;
}

static kl_tensor record_kalman(const struct small_data *d)
{
    kl_tensor out[3], start[2] = {kl_zeros(d->device, KL_F32, 1, (int64_t[]){3}), kl_eye(d->device, KL_F32, 3, 3)};
    kl_scan(kalman_step, (void *)d, d->steps, 2, start, 1, &d->t[0], 1, false, out);
    return out[2];
}

static void kalman_by_hand(const struct small_data *d)
{
    hand_kalman(d->out, d->host[1], d->host[2], d->host[3], d->host[0], d->steps);
}

/* ---- Lotka and Volterra's equations by Runge and Kutta's method: one, and 256 with rates of their own ---- */

static const double step_size = 0.01;

static void prey(const kl_tensor *k, kl_tensor x, kl_tensor y, kl_tensor *dx, kl_tensor *dy)
{
    kl_tensor xy = kl_mul(x, y);
    *dx = kl_sub(kl_mul(k[0], x), kl_mul(k[1], xy));
    *dy = kl_sub(kl_mul(k[2], xy), kl_mul(k[3], y));
}

static kl_tensor ahead_by(kl_tensor x, double h, kl_tensor d) { return kl_add(x, kl_mul_scalar(d, h)); }

static kl_tensor slope(const kl_tensor *k)
{
    return kl_add(kl_add(k[0], k[3]), kl_mul_scalar(kl_add(k[1], k[2]), 2));
}

/* in: x, y; ctx: 4 rates of their shape */
static kl_status lotka_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    kl_tensor dx[4], dy[4];
    for (int i = 0; i < 4; i++) {
        double h = i == 3 ? step_size : step_size / 2;
        prey(ctx, i ? ahead_by(in[0], h, dx[i - 1]) : in[0], i ? ahead_by(in[1], h, dy[i - 1]) : in[1], &dx[i], &dy[i]);
    }
    out[0] = ahead_by(in[0], step_size / 6, slope(dx));
    out[1] = ahead_by(in[1], step_size / 6, slope(dy));
    return KL_OK;
}

static kl_status lotka_stacked(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    lotka_step(ctx, in, nin, out, nout);
    out[2] = kl_stack(2, out, 0);
    return KL_OK;
}

static void open_lotka(struct small_data *d) { make(d, 0, 1, (int64_t[]){4}, 0.1, 1); }
static void open_fits(struct small_data *d) { make(d, 0, 2, (int64_t[]){4, HAND_FITS}, 0.1, 1); }

static kl_tensor record_lotka(const struct small_data *d)
{
    kl_tensor k[4], out[3], one = kl_ones(d->device, KL_F32, 0, NULL);
    for (int i = 0; i < 4; i++)
        k[i] = at(d->t[0], i);
    kl_scan(lotka_stacked, k, d->steps, 2, (kl_tensor[]){one, one}, 0, NULL, 1, false, out);
    return out[2];
}

static void lotka_by_hand(const struct small_data *d) { hand_lotka(d->out, d->host[0], (float)step_size, d->steps); }

static kl_tensor record_fits(const struct small_data *d)
{
    kl_tensor k[4], out[2], one = kl_ones(d->device, KL_F32, 1, (int64_t[]){HAND_FITS});
    for (int i = 0; i < 4; i++)
        k[i] = at(d->t[0], i);
    kl_scan(lotka_step, k, d->steps, 2, (kl_tensor[]){one, one}, 0, NULL, 0, false, out);
    return kl_stack(2, out, 0);
}

static void fits_by_hand(const struct small_data *d)
{
    hand_fits(d->out, d->out + HAND_FITS, d->host[0], (float)step_size, d->steps);
}

/* ---- a vehicle: position, heading, speeds along and across, yaw rate; two controls ---- */

static kl_status vehicle_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor a = in[2], v = in[3], w = in[4], r = in[5], gas = at(in[6], 0), wheel = at(in[6], 1);
    kl_tensor square = kl_mul(a, a), ca = kl_add_scalar(kl_mul_scalar(square, -0.5), 1);
    kl_tensor sa = kl_sub(a, kl_mul_scalar(kl_mul(square, a), 1.0 / 6)), d[6];
    d[0] = kl_sub(kl_mul(v, ca), kl_mul(w, sa));
    d[1] = kl_add(kl_mul(v, sa), kl_mul(w, ca));
    d[2] = r;
    d[3] = kl_add(kl_sub(gas, kl_mul_scalar(v, 0.1)), kl_mul(w, r));
    d[4] = kl_sub(kl_sub(wheel, kl_mul_scalar(w, 2)), kl_mul(v, r));
    d[5] = kl_sub(kl_sub(kl_mul_scalar(wheel, 3), kl_mul_scalar(r, 4)), kl_mul_scalar(a, 0.5));
    for (int i = 0; i < 6; i++)
        out[i] = ahead_by(in[i], step_size, d[i]);
    out[6] = kl_stack(3, out, 0);
    return KL_OK;
}

static void open_vehicle(struct small_data *d) { make(d, 0, 2, (int64_t[]){d->steps, 2}, 0.1, 0); }

static kl_tensor record_vehicle(const struct small_data *d)
{
    kl_tensor out[7], zero = kl_zeros(d->device, KL_F32, 0, NULL), one = kl_ones(d->device, KL_F32, 0, NULL);
    kl_tensor start[6] = {zero, zero, zero, one, zero, zero};
    kl_scan(vehicle_step, NULL, d->steps, 6, start, 1, &d->t[0], 1, false, out);
    return out[6];
}

static void vehicle_by_hand(const struct small_data *d)
{
    hand_vehicle(d->out, d->host[0], (float)step_size, d->steps);
}

/* ---- a recurrence of 60 numbers ---- */

/* in: h, x; ctx: w */
static kl_status units_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    kl_tensor drawn = kl_mul(kl_mul_scalar(kl_roll(in[0], 0, -1), 0.1), kl_add_scalar(kl_neg(in[0]), 1));
    out[0] = kl_add(kl_add(in[0], kl_mul(*(kl_tensor *)ctx, kl_sub(in[1], in[0]))), drawn);
    out[1] = out[0];
    return KL_OK;
}

static void open_units(struct small_data *d)
{
    make(d, 0, 1, (int64_t[]){HAND_UNITS}, 0.02, 0.3);
    make(d, 1, 2, (int64_t[]){d->steps, HAND_UNITS}, 0.5, 0);
}

static kl_tensor record_units(const struct small_data *d)
{
    kl_tensor out[2], w = d->t[0], start = kl_zeros(d->device, KL_F32, 1, (int64_t[]){HAND_UNITS});
    kl_scan(units_step, &w, d->steps, 1, &start, 1, &d->t[1], 1, false, out);
    return out[1];
}

static void units_by_hand(const struct small_data *d) { hand_units(d->out, d->host[0], d->host[1], d->steps); }

/* ---- an LSTM of width 16 on one sequence ---- */

/* in: h, c, x [1, 16]; ctx: weights of x and h */
static kl_status lstm_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    const kl_tensor *w = ctx;
    kl_tensor g = kl_add(kl_matmul(in[2], w[0]), kl_matmul(in[0], w[1])), part[4];
    for (int i = 0; i < 4; i++)
        part[i] = kl_narrow(g, 1, i * HAND_WIDTH, HAND_WIDTH);
    out[1] = kl_add(kl_mul(kl_sigmoid(part[1]), in[1]), kl_mul(kl_sigmoid(part[0]), kl_tanh(part[2])));
    out[0] = kl_mul(kl_sigmoid(part[3]), kl_tanh(out[1]));
    out[2] = out[0];
    return KL_OK;
}

static void open_lstm(struct small_data *d)
{
    for (int i = 0; i < 2; i++)
        make(d, i, 2, (int64_t[]){HAND_WIDTH, 4 * HAND_WIDTH}, 0.2, 0);
    make(d, 2, 3, (int64_t[]){d->steps, 1, HAND_WIDTH}, 1, 0);
}

static kl_tensor record_lstm(const struct small_data *d)
{
    kl_tensor out[3], zero = kl_zeros(d->device, KL_F32, 2, (int64_t[]){1, HAND_WIDTH}), w[2] = {d->t[0], d->t[1]};
    kl_scan(lstm_step, w, d->steps, 2, (kl_tensor[]){zero, zero}, 1, &d->t[2], 1, false, out);
    return out[2];
}

static void lstm_by_hand(const struct small_data *d)
{
    hand_lstm(d->out, d->host[0], d->host[1], d->host[2], d->steps);
}

/* ---- measuring ---- */

enum { FORWARD, GRADIENT, BY_HAND, VARIANTS };

static const struct small_case cases[] = {
    {"logistic", 100000, open_logistic, record_logistic, logistic_by_hand, 1},
    {"kalman", 10000, open_kalman, record_kalman, kalman_by_hand, 2},
    {"kalman-inverse", 10000, open_elimination, record_kalman, kalman_by_hand, 2},
    {"lotka", 10000, open_lotka, record_lotka, lotka_by_hand, 0},
    {"vehicle", 100000, open_vehicle, record_vehicle, vehicle_by_hand, 0},
    {"units", 614, open_units, record_units, units_by_hand, 0},
    {"lstm", 1000, open_lstm, record_lstm, lstm_by_hand, 1},
    {"fits", 1000, open_fits, record_fits, fits_by_hand, 0},
};

/* The case as a frozen step; gradient: of the sum of the results. */
static kl_step *small_step(const struct small_case *c, const struct small_data *d, bool gradient)
{
    kl_trace_begin(c->name);
    kl_tensor y = c->record(d);
    kl_keep(gradient ? kl_grad(kl_sum_all(y), d->t[c->wrt]) : y);
    return kl_trace_end_step(0, NULL);
}

/* The sum of the first elements. */
static bool sum_of_first(kl_tensor y, double *sum)
{
    static float got[3 * MAX_CASE_STEPS];
    *sum = 0;
    if (kl_read(y, got, (size_t)kl_numel(y) * sizeof *got) != KL_OK)
        return false;
    for (int64_t i = 0; i < COMPARED && i < kl_numel(y); i++)
        *sum += got[i];
    return true;
}

/* Is the library's result that of C, but for rounding?  Of chaotic loops the first elements are. */
static bool same_result(struct bench *b, const struct small_case *c, struct small_data *d, kl_tensor y, double sum)
{
    double by_hand = 0;
    c->hand(d);
    for (int64_t i = 0; i < COMPARED && i < kl_numel(y); i++)
        by_hand += d->out[i];
    if (fabs(sum - by_hand) < 1e-3 * (1 + fabs(by_hand)))
        return true;
    fprintf(stderr, "bench_small: %s: %g, by hand %g\n", c->name, sum, by_hand);
    b->status = 1;
    return false;
}

/* Compiles and runs one of the two, and compares a forward pass with C; NULL: see kl_last_error.  *sum: of the first
 * elements of the result. */
static kl_step *first_call(struct bench *b, const struct small_case *c, struct small_data *d, bool gradient,
                           double *sum)
{
    kl_tensor y = kl_none;
    kl_step *step = small_step(c, d, gradient);
    bool ok = step && kl_step_run(step, 0, NULL, 0, NULL, 1, &y) == KL_OK && sum_of_first(y, sum);
    ok = ok && (gradient || same_result(b, c, d, y, *sum));
    kl_release(y);
    if (ok)
        return step;
    kl_step_free(step);
    return NULL;
}

static bool run_step(const struct small_data *d, const kl_step *step)
{
    kl_tensor y;
    return kl_step_run(step, 0, NULL, 0, NULL, 1, &y) == KL_OK && kl_sync(d->device) == KL_OK &&
           kl_release(y) == KL_OK;
}

/* Rounds of the forward pass, the gradient, C and the peers. */
static bool measure_rounds(struct bench *b, const struct small_case *c, struct small_data *d, kl_step *const *step,
                           struct samples *took, struct small_peers *p)
{
    for (int round = 0; round < bench_rounds(b, ROUNDS); round++) {
        for (int i = 0; i < VARIANTS; i++) {
            double start = measure_cpu_now();
            if (i == BY_HAND)
                c->hand(d);
            else if (!run_step(d, step[i]))
                return false;
            samples_add(&took[i], measure_cpu_now() - start);
        }
        if (round % PEER_ROUNDS == 0)
            small_peers_round(p, c->name, d->steps);
    }
    return true;
}

static bool write_operands(const struct small_data *d, const struct small_peers *p)
{
    bool ok = true;
    for (int i = 0; i < MAX_OPERANDS_OF_CASE && d->host[i]; i++)
        ok = ok && small_peers_operand(p, i, d->host[i], (size_t)kl_numel(d->t[i]));
    return ok;
}

static bool measure_case(struct bench *b, const struct small_case *c, struct small_data *d, struct small_peers *p)
{
    static struct samples took[VARIANTS], first[2];
    kl_step *step[2] = {NULL, NULL};
    double sum[SMALL_MODES] = {0}, kiln[SMALL_MODES];
    bool ok = write_operands(d, p);
    memset(took, 0, sizeof took);
    memset(first, 0, sizeof first);
    for (int gradient = 0; gradient < 2 && ok; gradient++) {
        double start = measure_cpu_now();
        ok = (step[gradient] = first_call(b, c, d, gradient, &sum[gradient]));
        samples_add(&first[gradient], measure_cpu_now() - start);
    }
    if (ok)
        small_peers_begin(p, c->name, d->steps, sum);
    ok = ok && measure_rounds(b, c, d, step, took, p);
    kl_step_free(step[0]);
    kl_step_free(step[1]);
    if (!ok)
        return false;
    double by_hand = samples_median(&took[BY_HAND]), forward = samples_median(&took[0]), limit = 1e6 * by_hand;
    bench_baseline(bench_add(b, c->name, "forward", 1, &took[0], "us", 0, limit), "hand", by_hand / forward);
    bench_baseline(bench_add(b, c->name, "gradient", 1, &took[1], "us", 0, limit), "forward",
                   forward / samples_median(&took[1]));
    bench_add(b, c->name, "hand", 1, &took[BY_HAND], "us", 0, limit);
    bench_add(b, c->name, "compile", 1, &first[0], "us", 0, 0);
    bench_add(b, c->name, "compile-grad", 1, &first[1], "us", 0, 0);
    for (int mode = 0; mode < SMALL_MODES; mode++)
        kiln[mode] = samples_median(&took[mode]);
    small_peers_rows(b, p, c->name, kiln);
    return true;
}

/* Elements of the largest result, with room for each case. */
#define RESULT_OF(steps) ((size_t)(HAND_UNITS * (steps) + 2 * HAND_FITS))

/* The cases that are wanted. */
static bool measure_cases(struct bench *b, kl_device dev, struct small_peers *p)
{
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct small_case *c = &cases[i];
        if (!bench_wants(b, c->name))
            continue;
        int64_t steps = bench_size(b, (int)c->steps, SMOKE_STEPS);
        struct small_data d = {.device = dev, .steps = steps, .out = limit_array(RESULT_OF(steps))};
        if (!d.out)
            return bench_fail(b, "out of memory"), false;
        c->open(&d);
        bool ok = measure_case(b, c, &d, p);
        for (int k = 0; k < MAX_OPERANDS_OF_CASE; k++) {
            kl_release(d.t[k]);
            free(d.host[k]);
        }
        limit_array_free(d.out, RESULT_OF(steps));
        if (!ok)
            return bench_fail(b, c->name), false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct small_peers peers;
    if (!bench_open(&b, "small", argc, argv))
        return b.status;
    setenv("KILN_CACHE_DIR", "none", 1);
    kl_device dev = bench_device(&b);
    kl_set_option("threads", 1);
    if (!small_peers_open(&peers))
        return bench_fail(&b, "a folder for operands");
    bool ok = measure_cases(&b, dev, &peers);
    small_peers_close(&peers, MAX_OPERANDS_OF_CASE);
    if (!ok)
        return 1;
    if (!b.smoke)
        small_table(&b.results);
    return bench_close(&b);
}
