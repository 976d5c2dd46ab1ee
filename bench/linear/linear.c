/* Linear algebra: products, equations and factors of matrices, alone and up to 256 small ones at once, by Kiln's
 * compiled loops (`kiln`) and by its functions over LAPACK (`kiln-lapack`), in alternation with the same routines of
 * LAPACK called directly (`lapack`; `lapack-upper`: by the other triangle), on copies that are made outside of the
 * time.  The table has the residuals too, in units of the dtype's rounding.  Without a LAPACK Kiln's loops alone are
 * measured. */
#define _GNU_SOURCE
#include "bench/bench.h"
#include "linear_cases.h"

enum { ROUNDS = 15, LEAST_ROUNDS = 3, CALLS_OF_TURN = 10000 };
enum { OWN, BY_LAPACK, DIRECT, OTHER, VARIANTS };
#define SECONDS_OF_TURN 0.001 /* of repeated calls */
#define SECONDS_OF_CASE 1.5   /* no more rounds after that */

static const char *const variant_name[VARIANTS] = {"kiln", "kiln-lapack", "lapack", "lapack-upper"};

/* What is measured of a case. */
struct linear_run {
    struct bench *b;
    const struct linear_case *c;
    struct linear *x;
    char name[48];
    int threads;
    kl_step *step[2];                 /* OWN, BY_LAPACK */
    bool there[VARIANTS];
    struct samples took[VARIANTS];
    double residual[VARIANTS];        /* of OWN to DIRECT */
};

/* ---- operands ---- */

static void put(const struct linear *x, char *a, int64_t at, double v)
{
    if (x->f64)
        ((double *)(void *)a)[at] = v;
    else
        ((float *)(void *)a)[at] = (float)v;
}

static double got(const struct linear *x, const char *a, int64_t at)
{
    return x->f64 ? ((const double *)(const void *)a)[at] : (double)((const float *)(const void *)a)[at];
}

static int64_t columns_of(const struct linear_operand *o) { return o->columns ? o->columns : 1; }

/* Bytes of one matrix of an operand as LAPACK has it. */
static size_t bytes_of(const struct linear *x, const struct linear_operand *o)
{
    return (size_t)((o->rows + o->extra) * columns_of(o)) * x->direct.size;
}

/* The operand for Kiln and, column-major, for LAPACK. */
static void open_operand(struct linear *x, int i)
{
    struct linear_operand *o = &x->in[i];
    int64_t rows = o->rows, columns = columns_of(o), height = rows + o->extra;
    kl_tensor t = kl_input(x->device, KL_F64, o->columns ? 3 : 2, (int64_t[]){x->B, rows, o->columns}, o->v);
    x->t[i] = kl_keep(kl_cast(t, x->f64 ? KL_F64 : KL_F32));
    o->column_major = calloc((size_t)x->B, bytes_of(x, o));
    x->failed |= !o->column_major || kl_sync(x->device) != KL_OK;
    for (int64_t k = 0; !x->failed && k < x->B * rows * columns; k++)
        put(x, o->column_major, (k / (rows * columns) * columns + k % columns) * height + o->extra + k / columns % rows,
            o->v[k]);
}

static bool open_case(struct linear *x, const struct linear_case *c)
{
    struct linear_direct *d = &x->direct;
    size_t all = (size_t)(2 * x->n * x->n);
    c->open(x);
    d->n = (int)x->n;
    d->f64 = x->f64;
    d->size = x->f64 ? sizeof(double) : sizeof(float);
    d->lwork = (int)(8 * x->n * x->n + 200 * x->n + 1000);
    d->work = calloc((size_t)d->lwork, d->size);
    d->iwork = calloc((size_t)(8 * x->n + 8), sizeof *d->iwork);
    x->failed |= !d->work || !d->iwork;
    for (int i = 0; i < LINEAR_ARRAYS && !x->failed; i++) {
        d->a[i] = calloc(all + 16, d->size);
        x->failed |= !d->a[i];
        if (i < x->count && !x->failed)
            open_operand(x, i);
    }
    return !x->failed;
}

static void close_case(struct linear *x)
{
    for (int i = 0; i < LINEAR_ARRAYS; i++) {
        free(x->direct.a[i]);
        free(x->in[i].v);
        free(x->in[i].column_major);
        kl_release(x->t[i]);
    }
    free(x->direct.work);
    free(x->direct.iwork);
}

/* ---- calls ---- */

/* On one thread its processor's time, which other processes do not add to. */
static double seconds_now(int threads) { return threads == 1 ? measure_cpu_now() : measure_now(); }

/* The operands of matrix b. */
static void copy_operands(struct linear *x, int64_t b)
{
    for (int i = 0; i < x->count && x->in[i].rows * columns_of(&x->in[i]) <= 2 * x->n * x->n; i++) {
        size_t bytes = bytes_of(x, &x->in[i]);
        memcpy(x->direct.a[i], x->in[i].column_major + (size_t)b * bytes, bytes);
    }
}

/* Result k of Kiln for matrix b, row-major, in f64. */
static void keep_result(const struct linear *x, const struct linear_case *c, int k, int64_t b, double *result)
{
    char form = c->result[k].form;
    int64_t rows = form == 's' ? 1 : x->n, columns = strchr("mlu", form) ? x->n : 1;
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t row = i / columns, column = i % columns;
        bool zero = (form == 'l' && column > row) || (form == 'u' && column < row);
        result[b * rows * columns + i] = zero ? 0 : got(x, x->direct.a[c->result[k].array], column * rows + row);
    }
}

/* Seconds of LAPACK's calls for all matrices, without those of copying operands, which are measured alone. */
static double call_directly(struct linear *x, linear_call *call, int threads)
{
    double start = seconds_now(threads), between;
    for (int64_t b = 0; b < x->B; b++) {
        copy_operands(x, b);
        call(&x->direct);
    }
    between = seconds_now(threads);
    for (int64_t b = 0; b < x->B; b++)
        copy_operands(x, b);
    double calls = 2 * between - start - seconds_now(threads);
    return calls > 0 ? calls : 0;
}

/* Runs a step; out: NULL, or its results. */
static bool run_step(const struct linear_run *r, int variant, kl_tensor *out)
{
    kl_tensor got_out[LINEAR_RESULTS];
    bool ok = kl_step_run(r->step[variant], 0, NULL, 0, NULL, r->c->results, out ? out : got_out) == KL_OK &&
              kl_sync(r->x->device) == KL_OK;
    for (int k = 0; k < r->c->results && ok && !out; k++)
        kl_release(got_out[k]);
    return ok;
}

/* Seconds of a call; negative: failed. */
static double call(const struct linear_run *r, int variant)
{
    if (variant >= DIRECT)
        return call_directly(r->x, variant == DIRECT ? r->c->direct : r->c->other, r->threads);
    double start = seconds_now(r->threads);
    return run_step(r, variant, NULL) ? seconds_now(r->threads) - start : -1;
}

/* A turn: the mean of calls that take SECONDS_OF_TURN, after one that brings operands into the cache; negative: failed.
 */
static double turn(const struct linear_run *r, int variant)
{
    double sum = 0;
    if (call(r, variant) < 0)
        return -1;
    int n = 0;
    for (; !n || (sum < SECONDS_OF_TURN && n < CALLS_OF_TURN && !r->b->smoke); n++) {
        double seconds = call(r, variant);
        if (seconds < 0)
            return seconds;
        sum += seconds;
    }
    return sum / n;
}

static bool measure_rounds(struct linear_run *r)
{
    double begin = measure_now();
    for (int round = 0; round < bench_rounds(r->b, ROUNDS); round++) {
        if (round >= LEAST_ROUNDS && measure_now() - begin > SECONDS_OF_CASE)
            break;
        for (int v = 0; v < VARIANTS; v++) {
            if (!r->there[v] || (v == OWN && round && r->took[v].s[0] > SECONDS_OF_CASE / 2))
                continue;
            double seconds = turn(r, v);
            if (seconds < 0)
                return false;
            samples_add(&r->took[v], seconds);
        }
    }
    return true;
}

/* ---- residuals ---- */

/* The residual of results, in units of the dtype's rounding. */
static bool residual(const struct linear_run *r, const kl_tensor *out, double *value)
{
    kl_tensor in[LINEAR_ARRAYS], results[LINEAR_RESULTS];
    kl_scope_begin();
    for (int i = 0; i < r->x->count; i++)
        in[i] = kl_cast(r->x->t[i], KL_F64);
    for (int k = 0; k < r->c->results; k++)
        results[k] = kl_cast(out[k], KL_F64);
    bool ok = kl_read(r->c->residual(in, results), value, sizeof *value) == KL_OK;
    *value /= r->x->f64 ? 0x1p-52 : 0x1p-23;
    return kl_scope_end() == KL_OK && ok;
}

static bool residual_of_step(struct linear_run *r, int variant)
{
    kl_tensor out[LINEAR_RESULTS];
    bool ok = run_step(r, variant, out) && residual(r, out, &r->residual[variant]);
    for (int k = 0; k < r->c->results && ok; k++)
        kl_release(out[k]);
    return ok;
}

static bool residual_directly(struct linear_run *r)
{
    double *results[LINEAR_RESULTS] = {NULL};
    kl_tensor out[LINEAR_RESULTS];
    bool ok = true;
    for (int k = 0; k < r->c->results; k++)
        ok = ok && (results[k] = calloc((size_t)(r->x->B * r->x->n * r->x->n), sizeof(double)));
    for (int64_t b = 0; b < r->x->B && ok; b++) {
        copy_operands(r->x, b);
        r->c->direct(&r->x->direct);
        for (int k = 0; k < r->c->results; k++)
            keep_result(r->x, r->c, k, b, results[k]);
    }
    kl_scope_begin();
    for (int k = 0; k < r->c->results && ok; k++) {
        char form = r->c->result[k].form;
        int rank = form == 's' ? 1 : form == 'v' ? 2 : 3;
        int64_t n = r->x->n, dims[3] = {r->x->B, n, form == 'c' ? 1 : n};
        out[k] = kl_input(r->x->device, KL_F64, rank, dims, results[k]);
    }
    ok = ok && residual(r, out, &r->residual[DIRECT]);
    for (int k = 0; k < r->c->results; k++)
        free(results[k]);
    return kl_scope_end() == KL_OK && ok;
}

/* ---- a case ---- */

static kl_step *record(const struct linear_run *r, linear_record *f)
{
    kl_tensor out[LINEAR_RESULTS] = {{0}};
    kl_trace_begin(r->name);
    f(r->x->t, out);
    for (int k = 0; k < r->c->results; k++)
        kl_keep(out[k]);
    return kl_trace_end_step(0, NULL);
}

static void add_rows(struct linear_run *r)
{
    double lapack = r->took[DIRECT].n ? samples_median(&r->took[DIRECT]) : 0;
    for (int v = 0; v < VARIANTS; v++) {
        if (!r->took[v].n && v == DIRECT)
            bench_missing(r->b, r->name, variant_name[v], r->threads, "no LAPACK (Debian: libopenblas0)");
        if (!r->took[v].n)
            continue;
        struct result *row = bench_add(r->b, r->name, variant_name[v], r->threads, &r->took[v], "us", 0, 0);
        if (lapack && v != DIRECT)
            bench_baseline(row, "lapack", lapack / samples_median(&r->took[v]));
    }
}

static void print_time(const struct linear_run *r, int v)
{
    if (r->took[v].n)
        printf(" %.4g |", 1e6 * samples_median(&r->took[v]));
    else
        printf(" |");
}

/* A row of the table: times, the direct call's over that of the faster of Kiln's, residuals. */
static void print_row(const struct linear_run *r)
{
    double best = 0;
    for (int v = OWN; v <= BY_LAPACK; v++)
        if (r->took[v].n && (!best || samples_median(&r->took[v]) < best))
            best = samples_median(&r->took[v]);
    printf("| %s | %d |", r->name, r->threads);
    for (int v = 0; v < VARIANTS; v++)
        print_time(r, v);
    if (r->took[DIRECT].n && best)
        printf(" %.2f |", samples_median(&r->took[DIRECT]) / best);
    else
        printf(" |");
    const char *comma = "";
    for (int v = 0; v < OTHER; v++)
        if (r->there[v]) {
            printf("%s %.2g", comma, r->residual[v]);
            comma = ",";
        }
    printf(" |\n");
    fflush(stdout);
}

static bool measure_case(struct linear_run *r)
{
    const struct linear_case *c = r->c;
    linear_record *const records[2] = {c->own, c->lapack};
    bool lapack = r->x->direct.f.gemm, ok = open_case(r->x, c);
    r->there[OWN] = r->x->n <= c->own_up_to;
    r->there[BY_LAPACK] = lapack && c->lapack;
    r->there[DIRECT] = lapack;
    r->there[OTHER] = lapack && c->other;
    for (int v = 0; v < 2 && ok; v++)
        if (r->there[v])
            ok = (r->step[v] = record(r, records[v])) && residual_of_step(r, v);
    if (ok && lapack)
        ok = residual_directly(r);
    ok = ok && measure_rounds(r);
    kl_step_free(r->step[OWN]);
    kl_step_free(r->step[BY_LAPACK]);
    if (!ok)
        return false;
    add_rows(r);
    print_row(r);
    return true;
}

static bool measure_size(struct bench *b, const struct linear_case *c, void *library, bool f64, int64_t B, int64_t n)
{
    static struct linear_run r;
    char name[sizeof r.name], batch[16] = "";
    if (B > 1)
        snprintf(batch, sizeof batch, "x%d", (int)B);
    snprintf(name, sizeof name, "%s-%s-%d%s", c->name, f64 ? "f64" : "f32", (int)n, batch);
    if (!bench_wants_work(b, name, (double)(n * B), 8))
        return true;
    for (int threads = 1; threads <= 2; threads++) {
        struct linear x = {.device = kl_device_default(), .f64 = f64, .B = B, .n = n};
        if (!linear_find(library, f64, &x.direct.f))
            memset(&x.direct.f, 0, sizeof x.direct.f);
        kl_set_option("threads", threads);
        linear_threads(library, threads);
        r = (struct linear_run){.b = b, .c = c, .x = &x, .threads = threads};
        memcpy(r.name, name, sizeof name);
        bool ok = measure_case(&r);
        close_case(&x);
        if (!ok)
            return bench_fail(b, name), false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static const struct { int64_t B, n; } sizes[] = {{256, 8}, {64, 32}, {16, 64}, {1, 8}, {1, 64}, {1, 256},
                                                     {1, 1024}};
    static struct bench b;
    if (!bench_open(&b, "linear", argc, argv))
        return b.status;
    bench_device(&b);
    void *library = kl_lapack_load(NULL) == KL_OK ? linear_library() : NULL;
    printf("| case | threads | Kiln, us | Kiln by LAPACK | LAPACK | its upper triangle | LAPACK / Kiln | residuals |\n"
           "|---|---|---|---|---|---|---|---|\n");
    for (size_t c = 0; c < sizeof linear_cases / sizeof *linear_cases; c++)
        for (int f64 = 1; f64 >= 0; f64--)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
                if (!measure_size(&b, &linear_cases[c], library, f64, sizes[s].B, sizes[s].n))
                    return 1;
    return bench_close(&b);
}
