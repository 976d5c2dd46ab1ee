/* Many processes: this program starts itself as the ranks of jobs, with the built-in sockets, where mpirun is with MPI,
 * and with NCCL, for which a library stands that moves the data of pretended GPUs (tests/gpu/fake/fake_nccl.c), and
 * compares what they print.  `api_comm rank NAME` is one rank, `api_comm rank NAME nccl` one with NCCL. */
#define _GNU_SOURCE
#include "tests/support/api_check.h"
#include "tests/train/comm_jobs.h"
#include <kiln/train.h>
#include <signal.h>
#include <unistd.h>

/* ---- what one rank does ---- */

static kl_comm *comm;
static kl_device dev;
static int rank, ranks;
static bool by_nccl;

/* Element i of the tensor of a rank. */
static double element(int of, int64_t i) { return (double)((i * 7 + of * 5) % 11) - (of % 2 ? 3 : 0); }

static kl_tensor tensor_of(kl_dtype dtype, int64_t n)
{
    float *v = malloc(((size_t)n + 1) * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)element(rank, i);
    kl_tensor t = kl_cast(kl_input(dev, KL_F32, 1, &n, v), dtype);
    free(v);
    return t;
}

static double combined(kl_reduction kind, int64_t i)
{
    double sum = element(0, i);
    for (int r = 1; r < ranks; r++) {
        double x = element(r, i);
        sum = kind == KL_REDUCE_MAX ? fmax(sum, x) : kind == KL_REDUCE_MIN ? fmin(sum, x) : sum + x;
    }
    return kind == KL_REDUCE_MEAN ? sum / ranks : sum;
}

/* Collectives of one dtype and length, outside of traces and in one. */
static void check_values(kl_dtype dtype, int64_t n)
{
    bool number = dtype != KL_U8 && dtype != KL_BOOL, real = dtype >= KL_F16;
    double *want = malloc(((size_t)n * MAX_RANKS + 1) * sizeof *want);
    for (kl_reduction kind = KL_REDUCE_SUM; kind <= KL_REDUCE_MIN; kind++) {
        if (!number || (kind == KL_REDUCE_MEAN && !real))
            continue;
        for (int64_t i = 0; i < n; i++)
            want[i] = combined(kind, i);
        NEAR(kl_comm_all_reduce(comm, kind, tensor_of(dtype, n)), n, want, dtype == KL_BF16 ? 0.02 : 2e-3);
        kl_trace_begin("reduce");
        kl_tensor a = kl_mul_scalar(tensor_of(dtype, n), 2);
        kl_tensor twice = kl_keep(kl_add(kl_comm_all_reduce(comm, kind, a), kl_comm_all_reduce(comm, kind, a)));
        OK(kl_trace_end());
        for (int64_t i = 0; i < n; i++)
            want[i] *= 4;
        NEAR(twice, n, want, dtype == KL_BF16 ? 0.02 : 2e-3);
    }
    for (int64_t i = 0; i < n * ranks; i++)
        want[i] = element((int)(i / n), i % n);
    if (dtype == KL_F32)
        NEAR(kl_comm_all_gather(comm, 0, tensor_of(dtype, n)), n * ranks, want, 0);
    for (int64_t i = 0; i < n; i++)
        want[i] = element(ranks - 1, i);
    if (number)
        NEAR(kl_comm_broadcast(comm, ranks - 1, tensor_of(dtype, n)), n, want, 0);
    free(want);
}

/* Along axis 1 of a matrix. */
static void check_axes(void)
{
    enum { ROWS = 3, COLUMNS = 2 };
    float v[ROWS * COLUMNS * MAX_RANKS];
    double want[ROWS * COLUMNS * MAX_RANKS];
    int64_t columns = COLUMNS * ranks;
    for (int64_t i = 0; i < ROWS * columns; i++)
        v[i] = (float)element(rank, i);
    kl_tensor whole = kl_input(dev, KL_F32, 2, (int64_t[]){ROWS, columns}, v);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        want[i] = combined(KL_REDUCE_SUM, i / COLUMNS * columns + COLUMNS * rank + i % COLUMNS);
    NEAR(kl_comm_reduce_scatter(comm, KL_REDUCE_SUM, 1, whole), ROWS * COLUMNS, want, 0);
    kl_tensor part = kl_narrow(whole, 1, 0, COLUMNS);
    for (int64_t i = 0; i < ROWS * columns; i++)
        want[i] = element((int)(i % columns / COLUMNS), i / columns * columns + i % COLUMNS);
    NEAR(kl_comm_all_gather(comm, -1, part), ROWS * columns, want, 0);
}

/* Gradients of the sum of all ranks' losses sum(w * collective(x * x)), w differing from rank to rank. */
static double weight(int of, int64_t i) { return (double)((i * 3 + of * 2) % 5) - 1; }

static double weights_of_all(int64_t i)
{
    double sum = 0;
    for (int r = 0; r < ranks; r++)
        sum += weight(r, i);
    return sum;
}

static void gradient_is(const char *what, kl_tensor x, kl_tensor y, const double *want)
{
    float w[64];
    int64_t n = kl_numel(y);
    for (int64_t i = 0; i < n; i++)
        w[i] = (float)weight(rank, i);
    kl_tensor loss = kl_sum_all(kl_mul(kl_reshape(y, 1, &n), kl_input(dev, KL_F32, 1, &n, w)));
    kl_tensor g = kl_keep(kl_grad(loss, x));
    bool ended = kl_trace_end() == KL_OK;
    CHECK(ended && what);
    if (ended)
        NEAR(g, kl_numel(x), want, 1e-5);
    else
        printf("%s: %s\n", what, kl_last_error());
}

static void check_gradients(void)
{
    enum { M = 3 };
    int64_t n = (int64_t)M * ranks, m = M;
    double want[M * MAX_RANKS];
    float v[M * MAX_RANKS];
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)(0.5 + (double)((i + rank) % 4) / 4);
    kl_tensor x = kl_keep(kl_input(dev, KL_F32, DIMS(n), v)), part = kl_keep(kl_input(dev, KL_F32, DIMS(M), v));
    kl_requires_grad(x);
    kl_requires_grad(part);
    for (kl_reduction kind = KL_REDUCE_SUM; kind <= KL_REDUCE_MEAN; kind++) {
        double scale = kind == KL_REDUCE_MEAN ? 1.0 / ranks : 1;
        for (int64_t i = 0; i < n; i++)
            want[i] = 2 * (double)v[i] * scale * weights_of_all(i);
        kl_trace_begin("all_reduce");
        gradient_is("all_reduce", x, kl_comm_all_reduce(comm, kind, kl_square(x)), want);
        for (int64_t i = 0; i < n; i++)
            want[i] = 2 * (double)v[i] * scale * weight((int)(i / m), i % m);
        kl_trace_begin("reduce_scatter");
        gradient_is("reduce_scatter", x, kl_comm_reduce_scatter(comm, kind, 0, kl_square(x)), want);
    }
    for (int64_t i = 0; i < m; i++)
        want[i] = 2 * (double)v[i] * weights_of_all(rank * m + i);
    kl_trace_begin("all_gather");
    gradient_is("all_gather", part, kl_comm_all_gather(comm, 0, kl_square(part)), want);
    for (int64_t i = 0; i < m; i++) /* as a column, of which the ranks' are one beside the other */
        want[i] = 2 * (double)v[i] * weights_of_all(i * ranks + rank);
    kl_trace_begin("columns");
    gradient_is("columns", part, kl_comm_all_gather(comm, 1, kl_reshape(kl_square(part), 2, (int64_t[]){M, 1})), want);
    for (int64_t i = 0; i < m; i++)
        want[i] = rank == ranks - 1 ? 2 * (double)v[i] * weights_of_all(i) : 0;
    kl_trace_begin("broadcast");
    gradient_is("broadcast", part, kl_comm_broadcast(comm, ranks - 1, kl_square(part)), want);
    /* the gradient of one goes through another: sum over ranks of w * (sum of x) * ranks */
    for (int64_t i = 0; i < m; i++)
        want[i] = 2 * (double)v[i] * ranks * weights_of_all(i);
    kl_trace_begin("twice");
    kl_tensor once = kl_comm_all_reduce(comm, KL_REDUCE_SUM, kl_square(part));
    gradient_is("twice", part, kl_comm_all_reduce(comm, KL_REDUCE_SUM, once), want);
    kl_trace_begin("greatest");
    kl_keep(kl_grad(kl_sum_all(kl_comm_all_reduce(comm, KL_REDUCE_MAX, x)), x));
    CHECK(kl_trace_end() == KL_ERR_GRAD && strstr(kl_last_error(), by_nccl ? "api_comm.c" : "all_reduce"));
    kl_release(x);
    kl_release(part);
}

/* The address of a tensor's elements. */
static void *address_of(kl_tensor t)
{
    void *address = NULL;
    kl_memory_release(kl_memory_of(t, &address));
    return address;
}

/* A state that is assigned behind all collectives of the trace is updated in place; one that is assigned before a
 * collective starts is not, so that it has its old value if the collective fails. */
static void check_in_place(void)
{
    enum { N = 5000 };
    for (int behind = 0; behind < 2; behind++) {
        kl_tensor w = kl_ones(dev, KL_F32, DIMS(N)), v = kl_keep(kl_zeros(dev, KL_F32, DIMS(N)));
        w = kl_keep(w);
        void *at[2] = {address_of(w), address_of(v)};
        kl_trace_begin("place");
        kl_tensor g = kl_comm_all_reduce(comm, KL_REDUCE_SUM, kl_mul_scalar(w, 2));
        OK(kl_assign(v, kl_add(v, g)));
        OK(kl_assign(w, kl_sub(w, kl_mul_scalar(v, 0.25))));
        kl_tensor more = behind ? kl_keep(kl_comm_all_gather(comm, 0, w)) : kl_none;
        OK(kl_trace_end());
        CHECK((address_of(w) == at[0] && address_of(v) == at[1]) == !behind);
        CHECK(kl_item_f32(kl_narrow(w, 0, N - 1, 1)) == 1 - 0.5f * (float)ranks);
        kl_release(more);
        kl_release(w);
        kl_release(v);
    }
}

static void rank_values(void)
{
    const char *const names[] = {by_nccl ? "cuda" : "cpu", "ref"};
    static const kl_dtype dtypes[] = {KL_F32, KL_F64, KL_F16, KL_BF16, KL_I8, KL_I32, KL_I64};
    static const int64_t lengths[] = {0, 1, 7, 1000};
    for (int d = 0; d < 2 - by_nccl; d++)
        for (int fuse = 1; fuse >= 0; fuse--) {
            device_now = names[d];
            dev = kl_device_named(names[d]);
            kl_set_option("fuse", fuse);
            for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++)
                for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                    if ((d == 0 || k == 0) && (!by_nccl || (fuse && i < 3 && k < 6))) /* compiling takes long */
                        check_values(dtypes[k], lengths[i]);
            check_axes();
            check_gradients();
        }
    kl_set_option("fuse", 1);
    dev = kl_device_named("cpu"); /* with NCCL values of the host go through the sockets */
    device_now = "cpu";
    check_values(KL_F32, 7);
    check_in_place();
    kl_tensor x = kl_zeros(dev, KL_F32, DIMS(2 * ranks + 1)), mask = kl_zeros(dev, KL_BOOL, DIMS(4));
    CHECK(kl_check(kl_comm_reduce_scatter(comm, KL_REDUCE_SUM, 0, x)) == KL_ERR_SHAPE || ranks == 1);
    CHECK(kl_check(kl_comm_all_reduce(comm, KL_REDUCE_SUM, mask)) == KL_ERR_TYPE);
    CHECK(kl_check(kl_comm_all_reduce(comm, KL_REDUCE_MEAN, kl_cast(x, KL_I32))) == KL_ERR_TYPE);
    CHECK(kl_check(kl_comm_all_reduce(NULL, KL_REDUCE_SUM, x)) == KL_ERR_ARGUMENT);
    CHECK(kl_check(kl_comm_broadcast(comm, ranks, x)) == KL_ERR_ARGUMENT);
    CHECK(kl_check(kl_comm_all_gather(comm, 1, x)) != KL_OK);
    OK(kl_comm_barrier(comm));
    printf("rank %d: %d passed, %d failed\n", rank, passed, failed);
}

/* ---- training ---- */

enum { IN = 13, HIDDEN = 37, OUT = 5, BATCH = 24, STEPS = 6, PARAMS = 4 };

struct model { kl_tensor param[PARAMS]; };

static void model_make(struct model *m, uint64_t seed)
{
    m->param[0] = kl_mul_scalar(kl_randn(dev, KL_F32, DIMS(IN, HIDDEN), seed), 0.3);
    m->param[1] = kl_zeros(dev, KL_F32, DIMS(HIDDEN));
    m->param[2] = kl_mul_scalar(kl_randn(dev, KL_F32, DIMS(HIDDEN, OUT), seed + 1), 0.3);
    m->param[3] = kl_zeros(dev, KL_F32, DIMS(OUT));
    for (int i = 0; i < PARAMS; i++)
        kl_requires_grad(m->param[i]);
}

/* This rank's rows of the batch, n of them from `first` on. */
static kl_tensor model_loss(const struct model *m, int step, int first, int n)
{
    float x[BATCH * IN];
    int32_t y[BATCH];
    for (int i = 0; i < n; i++) {
        y[i] = (first + i + step) % OUT;
        for (int k = 0; k < IN; k++)
            x[i * IN + k] = (float)((step * 31 + (first + i) * 17 + k * 5 + y[i] * k) % 19) / 9 - 1;
    }
    kl_tensor in = kl_input(dev, KL_F32, DIMS(n, IN), x), labels = kl_input(dev, KL_I32, DIMS(n), y);
    kl_tensor h = kl_tanh(kl_linear(in, m->param[0], m->param[1]));
    return kl_cross_entropy(kl_linear(h, m->param[2], m->param[3]), labels);
}

static uint64_t checksum(const struct model *m)
{
    uint64_t sum = 1469598103934665603u;
    for (int i = 0; i < PARAMS; i++) {
        int64_t n = kl_numel(m->param[i]);
        float *v = malloc((size_t)n * sizeof *v);
        CHECK(kl_read(m->param[i], v, (size_t)n * sizeof *v) == KL_OK);
        for (size_t k = 0; k < (size_t)n * sizeof *v; k++)
            sum = (sum ^ ((unsigned char *)v)[k]) * 1099511628211u;
        free(v);
    }
    return sum;
}

enum way { WHOLE, AVERAGED, SHARDED };

/* Trains, and prints losses and a checksum of the parameters behind `label`. */
static void train_way(enum way way, const char *label, int64_t bucket)
{
    struct model m;
    kl_comm_shards *shards = NULL;
    kl_adam_options adam = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
    model_make(&m, way == WHOLE ? 3 : 3 + (uint64_t)rank * 10);
    if (way != WHOLE)
        OK(kl_comm_sync(comm, PARAMS, m.param));
    const kl_tensor *list = m.param;
    int64_t n = PARAMS;
    if (way == SHARDED) {
        shards = kl_comm_shards_new(comm, PARAMS, m.param, bucket);
        CHECK(shards != NULL);
        list = kl_comm_shards_parts(shards, &n);
    }
    kl_optimizer *opt = kl_adam(n, list, &adam);
    printf("%s:", label);
    for (int step = 0; step < STEPS; step++) {
        int rows = way == WHOLE ? BATCH : BATCH / ranks;
        kl_tensor g[PARAMS];
        kl_trace_begin("train");
        kl_tensor loss = model_loss(&m, step, way == WHOLE ? 0 : rank * rows, rows);
        OK(kl_grads(loss, PARAMS, m.param, g));
        if (way == AVERAGED)
            OK(kl_comm_gradients(comm, PARAMS, g, bucket));
        if (way == SHARDED)
            OK(kl_comm_shards_step(shards, opt, g, 1e-2));
        else
            OK(kl_optimizer_step_gradients(opt, g, 1e-2));
        loss = kl_keep(way == WHOLE ? loss : kl_comm_all_reduce(comm, KL_REDUCE_MEAN, loss));
        OK(kl_trace_end());
        printf(" %a", (double)kl_item_f32(loss));
        kl_release(loss);
    }
    printf(" %016llx\n", (unsigned long long)checksum(&m));
    kl_optimizer_free(opt);
    kl_comm_shards_free(shards);
    for (int i = 0; i < PARAMS; i++)
        kl_release(m.param[i]);
}

/* ---- training with groups, clipping, averages and accumulation ---- */

enum { VALUES = IN * HIDDEN + HIDDEN + HIDDEN * OUT + OUT };

static void read_values(const struct model *m, float *to)
{
    for (int i = 0; i < PARAMS; i++) {
        int64_t n = kl_numel(m->param[i]);
        OK(kl_read(m->param[i], to, (size_t)n * sizeof *to));
        to += n;
    }
}

/* values: those of the parameters, then of their averages.  Each step sums the gradients of two batches. */
static void train_groups(bool sharded, float values[2][VALUES])
{
    static const char *const name[PARAMS] = {"in.weight", "in.bias", "out.weight", "out.bias"};
    struct model m;
    kl_adam_options adam = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
    kl_params *tree = kl_params_new(dev, KL_F32, 1);
    kl_comm_shards *shards = NULL;
    model_make(&m, 5);
    for (int i = 0; i < PARAMS; i++)
        OK(kl_params_add(tree, name[i], m.param[i]));
    OK(kl_params_set_rate(tree, "out", 0.5));
    OK(kl_params_set_decay(tree, "*.bias", 0));
    OK(kl_params_freeze(tree, "in.bias", true));
    int64_t trained, n;
    const kl_tensor *list = kl_params_trained(tree, &trained), *of;
    CHECK(trained == PARAMS - 1);
    if (sharded) {
        shards = kl_comm_shards_new_params(comm, tree, 900);
        of = kl_comm_shards_parts(shards, &n);
        CHECK(n == 3); /* the factors of all three differ */
    } else {
        of = list;
        n = trained;
    }
    kl_optimizer *opt = kl_adam(n, of, &adam);
    kl_tensor g[PARAMS], part[PARAMS], norm = kl_none;
    if (sharded) { /* not attached yet */
        kl_trace_begin("apart");
        OK(kl_grads(model_loss(&m, 0, 0, 4), trained, list, g));
        CHECK(kl_comm_shards_step(shards, opt, g, 1e-2) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "attached"));
        kl_trace_abandon();
    }
    OK(kl_optimizer_attach(opt, sharded ? kl_comm_shards_params(shards) : tree));
    kl_accumulator *acc = kl_accumulator_new(n, of);
    kl_ema *ema = kl_ema_new(n, of, 0.75);
    for (int step = 0; step < 2 * STEPS; step++) {
        int rows = BATCH / ranks;
        kl_trace_begin("groups");
        OK(kl_grads(model_loss(&m, step, rank * rows, rows), trained, list, g));
        if (sharded)
            OK(kl_comm_shards_reduce(shards, g, part));
        else
            OK(kl_comm_gradients(comm, trained, memcpy(part, g, sizeof g), 0));
        if (step % 2 == 0) {
            OK(kl_accumulator_add(acc, part));
        } else {
            OK(kl_accumulator_take(acc, part));
            norm = sharded ? kl_comm_shards_clip_norm(shards, part, 0.1) : kl_clip_norm(n, part, 0.1);
            kl_keep(norm);
            OK(kl_optimizer_step_gradients(opt, part, 1e-2));
            OK(kl_ema_update(ema));
            if (sharded)
                OK(kl_comm_shards_gather(shards));
        }
        OK(kl_trace_end());
        if (step % 2)
            CHECK(kl_item_f32(norm) > 0.1f); /* it was clipped */
        kl_release(norm);
    }
    read_values(&m, values[0]);
    kl_trace_begin("averages");
    OK(kl_ema_swap(ema));
    if (sharded)
        OK(kl_comm_shards_gather(shards));
    OK(kl_trace_end());
    read_values(&m, values[1]);
    if (sharded) { /* each parameter has a bucket of its own here, so that its factors may change */
        OK(kl_params_set_rate(tree, "out.weight", 0.25));
        kl_trace_begin("changed");
        OK(kl_grads(model_loss(&m, 0, 0, 4), trained, list, g));
        OK(kl_comm_shards_reduce(shards, g, part));
        OK(kl_trace_end());
        kl_param is;
        OK(kl_params_get(kl_comm_shards_params(shards), 1, &is));
        CHECK(is.rate == 0.25);
    }
    kl_ema_free(ema);
    kl_accumulator_free(acc);
    kl_optimizer_free(opt);
    kl_comm_shards_free(shards);
    kl_params_free(tree);
}

static void rank_groups(void)
{
    static float whole[2][VALUES], sharded[2][VALUES], again[2][VALUES];
    double worst = 0;
    train_groups(false, whole);
    train_groups(true, sharded);
    train_groups(true, again);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < VALUES; i++)
            worst = fmax(worst, fabs((double)whole[k][i] - (double)sharded[k][i]));
    CHECK(worst < 1e-5 && !memcmp(sharded, again, sizeof again));
    CHECK(memcmp(whole[0], whole[1], sizeof whole[0]));
    printf("rank %d: values of sharded training with groups, clipping, averages and accumulation differ by %.1e\n",
           rank, worst);
}

static void rank_train(void)
{
    train_way(WHOLE, "whole", 0);
    train_way(AVERAGED, "averaged", 0);
    train_way(AVERAGED, "averaged", 700);
    train_way(SHARDED, "sharded", 0);
    train_way(SHARDED, "sharded", 700);
    kl_set_option("fuse", 0);
    if (!by_nccl)
        train_way(AVERAGED, "averaged", 700);
    printf("failed %d\n", failed);
}

/* ---- what goes wrong ---- */

/* A step that adds `more` to w by a collective of n elements; the error's text or "". */
static const char *step_of(kl_tensor w, int64_t n, kl_dtype dtype, kl_comm *by)
{
    kl_trace_begin("wrong");
    kl_tensor sum = kl_comm_all_reduce(by, KL_REDUCE_SUM, kl_ones(dev, dtype, 1, &n));
    kl_assign(w, kl_add(w, kl_cast(kl_sum_all(sum), KL_F32)));
    return kl_trace_end() == KL_OK ? "" : kl_last_error();
}

static void rank_mismatch(void)
{
    kl_tensor w = kl_zeros(dev, KL_F32, 0, NULL);
    kl_comm *second = kl_comm_new(NULL);
    CHECK(second && kl_comm_ranks(second) == ranks);
    const char *text = step_of(w, rank ? 5 : 4, KL_F32, comm);
    printf("rank %d: %s\n", rank, text);
    CHECK(strstr(text, "f32[4]") && strstr(text, "f32[5]") && strstr(text, "api_comm.c:"));
    text = step_of(w, 4, rank ? KL_F32 : KL_F64, comm);
    CHECK(strstr(text, "f32[4]") && strstr(text, "f64[4]"));
    text = step_of(w, 4, KL_F32, rank ? comm : second);
    CHECK(strstr(text, "communicator 1") && strstr(text, "communicator 2"));
    kl_trace_begin("ops");
    kl_tensor one = kl_ones(dev, KL_F32, DIMS(ranks));
    kl_keep(rank ? kl_comm_all_gather(second, 0, one) : kl_comm_broadcast(second, 0, one));
    CHECK(kl_trace_end() == KL_ERR_ARGUMENT);
    CHECK(strstr(kl_last_error(), "all_gather") && strstr(kl_last_error(), "broadcast"));
    CHECK(kl_item_f32(w) == 0); /* as it was */
    kl_comm_free(second);
    text = step_of(w, 4, KL_F32, second = kl_comm_new(NULL)); /* the next call works */
    CHECK(!*text && kl_item_f32(w) == (float)(4 * ranks));
    kl_comm_free(second);
    printf("rank %d: %d failed\n", rank, failed);
}

/* Seconds that ranks wait for one that is late. */
static double timeout_of_late(void)
{
    const char *text = getenv("KILN_TEST_TIMEOUT");
    return text ? atof(text) : 1;
}

/* The last rank is gone in the middle, or late. */
static void rank_lost(bool killed)
{
    kl_tensor w = kl_zeros(dev, KL_F32, 0, NULL);
    CHECK(!*step_of(w, 4, KL_F32, comm));
    float before = kl_item_f32(w);
    if (rank == ranks - 1 && killed)
        raise(SIGKILL);
    if (rank == ranks - 1)
        sleep(3 + (unsigned)timeout_of_late());
    double start = now();
    const char *text = step_of(w, 4, KL_F32, comm);
    double took = now() - start;
    CHECK(*text && kl_item_f32(w) == before);
    CHECK(*step_of(w, 4, KL_F32, comm) && kl_item_f32(w) == before);
    printf("rank %d after %.1f s: %s\n", rank, took, text);
    printf("rank %d: %d failed\n", rank, failed);
}

/* A rank whose tensor is on the host, and one whose tensor is on a GPU, do not exchange data. */
static void rank_apart(void)
{
    static const float v[4] = {1, 2, 3, 4};
    dev = rank ? dev : kl_device_named("cpu");
    kl_tensor x = kl_input(dev, KL_F32, DIMS(4), v);
    CHECK(kl_check(kl_comm_all_gather(comm, 0, x)) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "by nccl"));
    printf("rank %d: %s\n", rank, kl_last_error());
    dev = kl_device_named("cuda");
    NEAR(kl_comm_broadcast(comm, 0, kl_input(dev, KL_F32, DIMS(4), v)), 4, ((double[]){1, 2, 3, 4}), 0);
    x = kl_input(kl_device_named("cuda:1"), KL_F32, DIMS(4), v);
    CHECK(kl_check(kl_comm_broadcast(comm, 0, x)) == KL_ERR_IO && strstr(kl_last_error(), "one GPU"));
}

static int rank_main(const char *what)
{
    kl_comm_options options = {.timeout = !strcmp(what, "late") ? timeout_of_late() : 600,
                               .transport = by_nccl ? "nccl" : NULL};
    comm = kl_comm_new(&options);
    if (!comm) {
        printf("no communicator: %s\n", kl_last_error());
        return 1;
    }
    dev = kl_device_named(by_nccl ? "cuda" : "cpu");
    rank = kl_comm_rank(comm);
    ranks = kl_comm_ranks(comm);
    CHECK(!by_nccl || !strcmp(kl_comm_transport(comm), "nccl"));
    if (!strcmp(what, "values"))
        rank_values();
    else if (!strcmp(what, "train"))
        rank_train();
    else if (!strcmp(what, "mismatch"))
        rank_mismatch();
    else if (!strcmp(what, "groups"))
        rank_groups();
    else if (!strcmp(what, "apart"))
        rank_apart();
    else
        rank_lost(!strcmp(what, "killed"));
    kl_comm_free(comm);
    return failed != 0;
}

/* ---- the checks ---- */

/* Line number i of those that begin with a word; its text is ended in place. */
static const char *line_of(char *text, const char *word, int i)
{
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (!strncmp(line, word, strlen(word)) && !i--)
            return line;
    return "";
}

static void copy_line(const char *text, const char *word, int i, char *out)
{
    static char copy[OUTPUT];
    snprintf(copy, sizeof copy, "%s", text);
    snprintf(out, 512, "%s", line_of(copy, word, i));
}

static void check_training(int n, enum transport by)
{
    bool mpi = by == MPI;
    static struct job first, again;
    char whole[512], average[512], other[512];
    if (!job_run(&first, n, "train", by) || !job_run(&again, n, "train", by) || !CHECK(job_good(&first)) ||
        !CHECK(job_good(&again)))
        return;
    copy_line(first.out[0], "whole:", 0, whole);
    copy_line(first.out[0], "averaged:", 0, average);
    char *w = whole + 6, *a = average + 9;
    double worst = 0;
    for (int step = 0; step < STEPS; step++) {
        double x = strtod(w, &w), y = strtod(a, &a);
        worst = fmax(worst, fabs(x - y) / fabs(x));
    }
    CHECK(*whole && *average && worst < 1e-5);
    printf("%s, %d ranks: losses differ from one process's by %.1e\n", carrier_name[by], n, worst);
    const char *bits = strchr(average, ' ');
    for (int r = 0; r < (mpi ? 1 : n); r++) {
        for (int i = 0; i < (by == NCCL ? 2 : 3) * (mpi ? n : 1); i++) { /* every rank, with other buckets, unfused */
            copy_line(first.out[r], "averaged:", i, other);
            CHECK(*other && bits && !strcmp(strchr(other, ' '), bits));
        }
        for (int i = 0; i < 2 * (mpi ? n : 1); i++) {
            copy_line(first.out[r], "sharded:", i, other);
            CHECK(*other && bits && !strcmp(strchr(other, ' '), bits));
        }
        copy_line(again.out[r], "averaged:", 0, other);
        CHECK(*other && bits && !strcmp(strchr(other, ' '), bits));
    }
}

static void check_job(int n, const char *what, enum transport by)
{
    static struct job j;
    CHECK(job_run(&j, n, what, by) && job_good(&j));
}

/* A rank that comes too late is noticed.  On a machine so slow that ranks which are not late miss a timeout of a
 * second, a longer one has to do. */
static void check_late(int n, enum transport by)
{
    static struct job j;
    static const char *const seconds[] = {"1", "8", "64"};
    bool ok = false;
    for (int i = 0; i < 3 && !ok; i++) {
        setenv("KILN_TEST_TIMEOUT", seconds[i], 1);
        ok = job_run(&j, n, "late", by) && job_good(&j);
    }
    unsetenv("KILN_TEST_TIMEOUT");
    CHECK(ok);
}

static void check_killed(int n, enum transport by)
{
    static struct job j;
    bool mpi = by == MPI;
    CHECK(job_run(&j, n, "killed", by));
    printf("%s, %d ranks, one killed: all ended after %.1f s\n", carrier_name[by], n, j.seconds);
    if (mpi) /* mpirun ends the others itself */
        CHECK(!WIFEXITED(j.status[0]) || WEXITSTATUS(j.status[0]));
    for (int r = 0; r < n - 1 && !mpi; r++)
        CHECK(WIFEXITED(j.status[r]) && !WEXITSTATUS(j.status[r]) && strstr(j.out[r], "is gone"));
}

static void check_one(void)
{
    comm = kl_comm_new(NULL);
    CHECK(comm && kl_comm_rank(comm) == 0 && kl_comm_ranks(comm) == 1 && !strcmp(kl_comm_transport(comm), "none"));
    rank = 0, ranks = 1;
    dev = kl_device_named("cpu");
    rank_values();
    kl_tensor w = kl_zeros(dev, KL_F32, DIMS(4));
    kl_comm_free(comm);
    kl_trace_begin("freed");
    kl_comm *other = kl_comm_new(NULL);
    kl_keep(kl_comm_all_reduce(other, KL_REDUCE_SUM, w));
    kl_comm_free(other);
    CHECK(kl_trace_end() == KL_ERR_ARGUMENT && strstr(kl_last_error(), "no communicator"));
    CHECK(!kl_comm_new(&(kl_comm_options){.transport = "pigeon"}) && kl_last_error_code() == KL_ERR_ARGUMENT);
    CHECK(!kl_comm_new(&(kl_comm_options){.rank = 3, .ranks = 2}) && kl_last_error_code() == KL_ERR_ARGUMENT);
    kl_comm_options alone = {.rank = 0, .ranks = 2, .port = free_port(), .timeout = 0.3};
    CHECK(!kl_comm_new(&alone) && kl_last_error_code() == KL_ERR_IO && strstr(kl_last_error(), "within 0.3 s"));
    alone.rank = 1;
    CHECK(!kl_comm_new(&alone) && kl_last_error_code() == KL_ERR_IO && strstr(kl_last_error(), "rank 0"));
    setenv("RANK", "x", 1), setenv("WORLD_SIZE", "2", 1);
    CHECK(!kl_comm_new(NULL) && strstr(kl_last_error(), "RANK"));
    setenv("RANK", "2", 1);
    CHECK(!kl_comm_new(NULL) && strstr(kl_last_error(), "WORLD_SIZE"));
    unsetenv("RANK"), unsetenv("WORLD_SIZE");
}

/* The path of a file beside this program. */
static void beside(const char *name, char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 64);
    path[n > 0 ? n : 0] = 0;
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash : path, name);
}

static void check_nccl(void)
{
    static struct job j;
    check_job(2, "values", NCCL);
    check_job(3, "values", NCCL);
    check_training(2, NCCL);
    check_job(2, "groups", NCCL);
    check_job(2, "mismatch", NCCL);
    check_job(2, "apart", NCCL);
    check_late(2, NCCL);
    check_killed(3, NCCL);
    setenv("FAKE_NCCL_SILENT", "1", 1); /* the lost rank is found by its closed connection */
    check_killed(2, NCCL);
    unsetenv("FAKE_NCCL_SILENT");
    setenv("FAKE_NCCL_VERSION", "21003", 1);
    CHECK(job_run(&j, 1, "values", NCCL) && WEXITSTATUS(j.status[0]) && strstr(j.out[0], "version 2.10"));
    unsetenv("FAKE_NCCL_VERSION");
    char *file = fake_gpu + strlen(fake_gpu) - 1;
    char last = *file;
    *file = 'x';
    CHECK(job_run(&j, 1, "values", NCCL) && WEXITSTATUS(j.status[0]) && strstr(j.out[0], "libfake-gpu.sx") &&
          strstr(j.out[0], "KILN_NCCL_LIBRARY"));
    printf("%s", j.out[0]);
    *file = last;
}

int main(int argc, char **argv)
{
    self = argv[0];
    setvbuf(stdout, NULL, _IOLBF, 0);
    by_nccl = argc == 4 && !strcmp(argv[3], "nccl");
    if (argc >= 3 && !strcmp(argv[1], "rank"))
        return rank_main(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "only")) { /* one job with sockets, with what its ranks say */
        static struct job j;
        CHECK(job_run(&j, 2, argv[2], SOCKETS) && job_good(&j));
        printf("%s%s%d passed, %d failed, 0 skipped\n", j.out[0], j.out[1], passed, failed);
        return failed != 0;
    }
    char library[4096];
    beside("/../libkiln-mpi.so", library, sizeof library);
    beside("/libfake-gpu.so", fake_gpu, sizeof fake_gpu);
    if (argc == 2 && !strcmp(argv[1], "nccl")) {
        check_nccl();
        printf("%d passed, %d failed, 0 skipped\n", passed, failed);
        return failed != 0;
    }
#ifdef KILN_TSAN
    *library = 0; /* MPI's own threads are not built for it */
#endif
    int skipped = access(library, R_OK) || system("command -v mpirun >/dev/null") != 0;
    check_one();
    for (int n = 2; n <= MAX_RANKS; n += 2)
        for (enum transport by = SOCKETS; by <= (skipped ? SOCKETS : MPI); by++) {
            check_job(n, "values", by);
            check_training(n, by);
            check_job(n, "groups", by);
            check_killed(n, by);
        }
    check_job(2, "mismatch", SOCKETS);
    check_late(3, SOCKETS);
    if (skipped)
        printf("SKIP no-tool mpi: no mpirun, or Kiln was built without mpi.h\n");
    else
        check_job(2, "mismatch", MPI);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
