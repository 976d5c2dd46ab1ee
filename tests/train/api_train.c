/* Metrics against loops in C, progress as text, and the training loop. */
#include "tests/support/api_check.h"
#include <kiln/extend.h>
#include <kiln/train.h>
#include <unistd.h>

static kl_device dev;

enum { ROWS = 6, CLASSES = 4 };

static void metrics(void)
{
    static const float logits[ROWS * CLASSES] = {1, 5, 2, 0, /* 1 */  3, 3, 1, 3, /* 0, then 1, 3 */ 0, 0, 0, 0,
                                                 9, 8, 7, 6,         -1, -2, -3, NAN,               4, 1, 3, 2};
    static const int32_t labels[ROWS] = {1, 3, 0, 3, 1, 7};
    /* places among equals by number: 0, 2, 0, 3, 1 (a NaN is not ahead), none */
    static const double share[CLASSES] = {2.0 / 6, 3.0 / 6, 4.0 / 6, 5.0 / 6};
    kl_tensor x = kl_input(dev, KL_F32, DIMS(ROWS, CLASSES), logits), y = kl_input(dev, KL_I32, DIMS(ROWS), labels);
    for (int k = 1; k <= CLASSES; k++)
        NEAR(kl_metric_topk(x, y, k), 1, &share[k - 1], 1e-7);
    NEAR(kl_metric_accuracy(x, y), 1, &share[0], 1e-7);
    kl_tensor some = kl_input(dev, KL_I8, DIMS(ROWS), ((int8_t[]){1, -100, 0, -100, -1, 7})); /* two are not counted */
    NEAR_LIST(kl_metric_accuracy(x, some), 1e-7, 2.0 / 4);
    kl_release(some);
    kl_tensor bad = kl_metric_topk(x, y, 0);
    CHECK(kl_check(bad) == KL_ERR_ARGUMENT);
    kl_release(bad);
    bad = kl_metric_topk(y, y, 1);
    CHECK(kl_check(bad) == KL_ERR_SHAPE && strstr(kl_last_error(), "metric_topk"));
    kl_release(bad);

    kl_tensor guess = kl_input(dev, KL_U8, DIMS(ROWS), ((uint8_t[]){1, 3, 2, 3, 9, 0}));
    NEAR_LIST(kl_metric_confusion(guess, y, 4), 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2);
    bad = kl_metric_confusion(guess, y, 0);
    CHECK(kl_check(bad) == KL_ERR_ARGUMENT);
    kl_release(bad);
    bad = kl_metric_confusion(x, y, 4);
    CHECK(kl_check(bad) == KL_ERR_SHAPE);
    kl_release(bad), kl_release(x), kl_release(y), kl_release(guess);

    kl_metric_mean mean = {0};
    CHECK(isnan(kl_metric_value(&mean)));
    kl_metric_add(&mean, 0.5, 100);
    kl_metric_add(&mean, 1, 50);
    CHECK(fabs(kl_metric_value(&mean) - 100.0 / 150) < 1e-15);
    CHECK(fabs(kl_metric_perplexity(log(50)) - 50) < 1e-12);
}

/* What a file that is no terminal gets: plain lines. */
static void progress(void)
{
    char text[2000] = "";
    FILE *f = tmpfile();
    kl_progress *p = kl_progress_new(f, "images", 400);
    CHECK(f && p);
    kl_progress_every(p, 0);
    for (int i = 0; i < 4; i++)
        kl_progress_add(p, 100, "epoch 1/2", 2.5);
    kl_progress_free(p);
    rewind(f);
    CHECK(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    int lines = 0;
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    if (!CHECK(lines == 5 && !strncmp(text, "epoch 1/2: 25%, loss 2.5000, ", 29) &&
               strstr(text, " images/s, 0:00 left\n") && strstr(text, "epoch 1/2: 100%, ") && !strchr(text, '\r')))
        printf("%s", text);
    f = tmpfile();
    p = kl_progress_new(f, NULL, 0); /* without an end */
    kl_progress_every(p, 0);
    kl_progress_add(p, 7, NULL, 1);
    kl_progress_free(p);
    rewind(f);
    memset(text, 0, sizeof text);
    CHECK(fread(text, 1, sizeof text - 1, f) > 0 && !strncmp(text, "7 steps, loss 1.0000, ", 22));
    fclose(f);
    CHECK(!kl_progress_new(NULL, "x", -1) && kl_last_error_code() == KL_ERR_ARGUMENT);
    kl_progress_add(NULL, 1, NULL, 0);
    kl_progress_free(NULL);
}

/* ---- the loop: a line is fitted ---- */

struct fit {
    kl_params *params;
    kl_nn_linear line;
    kl_optimizer *opt;
    int steps, each;
    double last;
    int64_t fail_at, nan_at;
};

static kl_status fit_step(void *ctx, int64_t i, double rate, double *loss)
{
    struct fit *f = ctx;
    static const float x[4] = {-1, 0, 1, 2}, y[4] = {-2, 1, 4, 7}; /* 3 x + 1 */
    f->steps++;
    if (i == f->fail_at)
        return kl_failf(KL_HERE, KL_ERR_IO, "no data");
    kl_trace_begin("fit");
    kl_tensor in = kl_input(dev, KL_F32, DIMS(4, 1), x), want = kl_input(dev, KL_F32, DIMS(4, 1), y);
    kl_tensor mean = kl_keep(kl_mse_loss(kl_nn_linear_forward(&f->line, in), want));
    kl_optimizer_step(f->opt, mean, rate);
    kl_status s = kl_trace_end();
    if (s != KL_OK)
        return s;
    *loss = i == f->nan_at ? (double)NAN : kl_item_f64(mean);
    return kl_release(mean);
}

static double fit_rate(void *ctx, int64_t i)
{
    (void)ctx;
    return kl_rate_warmup(i, 10) * kl_rate_linear(i, 150, 0.1, 0.01);
}

static kl_status fit_each(void *ctx, int64_t i, double loss)
{
    struct fit *f = ctx;
    f->each++;
    f->last = loss;
    return (i + 1) % 40 == 0 || i == 149 ? KL_OK : KL_ERR_INTERNAL;
}

static void loop(void)
{
    struct fit f = {.params = kl_params_new(dev, KL_F32, 3), .fail_at = -1, .nan_at = -1};
    char log[] = "/tmp/kiln-train-XXXXXX", line[256];
    int fd = mkstemp(log), lines = 0;
    int64_t n;
    CHECK(fd >= 0);
    OK(kl_nn_linear_init(&f.line, f.params, "line", 1, 1, true));
    const kl_tensor *trained = kl_params_trained(f.params, &n);
    f.opt = kl_sgd(n, trained, &(kl_sgd_options){.momentum = 0.5, .nesterov = true});
    kl_train_loop l = {.steps = 150, .step = fit_step, .rate = fit_rate, .each = fit_each, .every = 40, .ctx = &f,
                       .quiet = true, .log = log};
    OK(kl_train(&l));
    CHECK(f.steps == 150 && f.each == 4 && f.last < 1e-3);
    CHECK(fabs(kl_item_f64(f.line.weight) - 3) < 1e-2);
    FILE *file = fopen(log, "r");
    long long step = -1;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "{\"step\": %lld, \"loss\": ", &step) == 1 && step == lines)
            lines++;
    CHECK(lines == 150 && file && strstr(line, "\"rate\": 0.01") && strstr(line, "\"seconds\": "));
    if (file)
        fclose(file);

    f.steps = 0, f.fail_at = 3, l.each = NULL, l.log = NULL;
    CHECK(kl_train(&l) == KL_ERR_IO && f.steps == 4 && strstr(kl_last_error(), "no data"));
    f.fail_at = -1, f.nan_at = 5;
    CHECK(kl_train(&l) == KL_ERR_CHECK && strstr(kl_last_error(), "the loss of step 5 is"));
    l.first = 150;
    OK(kl_train(&l)); /* nothing left to do */
    l.log = "/nowhere/log";
    CHECK(kl_train(&l) == KL_ERR_IO && strstr(kl_last_error(), "/nowhere/log"));
    l.step = NULL;
    CHECK(kl_train(&l) == KL_ERR_ARGUMENT && kl_train(NULL) == KL_ERR_ARGUMENT);
    kl_optimizer_free(f.opt);
    kl_params_free(f.params);
    remove(log);
}

static void all(kl_device device)
{
    dev = device;
    metrics();
    progress();
    loop();
}

int main(void) { return on_devices(all); }
