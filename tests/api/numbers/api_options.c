/* Options of zeros mean the defaults, as NULL does, in every function that takes an options struct; where a field has
 * to be set, zeros are an ARGUMENT error that names a field.  tests/convention.sh checks that no function is missing
 * here; those of the optimizers are compared in api_optimizers. */
#include "tests/support/api_check.h"
#include <kiln/solve/solve.h>
#include <kiln/train.h>
#include <unistd.h>

static kl_device dev;

/* Whether both tensors have the same bits; both are released. */
static bool same(kl_tensor a, kl_tensor b)
{
    double *x = values_of(a), *y = values_of(b);
    bool ok = x && y && kl_numel(a) == kl_numel(b) && !memcmp(x, y, (size_t)kl_numel(a) * sizeof *x);
    free(x);
    free(y);
    kl_release(a);
    kl_release(b);
    return ok;
}

/* Whether the last error is of the argument, by its name; nothing else is left. */
static bool asks_for(const char *field)
{
    bool ok = kl_last_error_code() == KL_ERR_ARGUMENT && strstr(kl_last_error(), field);
    if (!ok)
        printf("%d '%s' does not name '%s'\n", kl_last_error_code(), kl_last_error(), field);
    kl_clear_error();
    return ok;
}

static void losses_and_attention(void)
{
    kl_tensor x = kl_randn_seeded(kl_random_seed(dev, 1), KL_F32, DIMS(4, 8));
    kl_tensor labels = kl_iota(dev, KL_I32, DIMS(4), 0);
    kl_class_loss_options loss = {0};
    CHECK(same(kl_cross_entropy_with(x, labels, NULL), kl_cross_entropy_with(x, labels, &loss)));
    CHECK(same(kl_cross_entropy_with(x, labels, &loss), kl_cross_entropy(x, labels)));
    CHECK(same(kl_nll_loss_with(x, labels, NULL), kl_nll_loss_with(x, labels, &loss)));
    kl_attention_options attention = {0};
    kl_tensor q = kl_reshape(x, DIMS(1, 1, 4, 8));
    CHECK(same(kl_attention_with(q, q, q, NULL, NULL, NULL), kl_attention_with(q, q, q, &attention, NULL, NULL)));
    kl_sample_options sample = {0};
    CHECK(same(kl_sample(x, kl_none, NULL), kl_sample(x, kl_none, &sample)));
    kl_nn_rotary_options rotary = {0};
    kl_tensor positions = kl_arange(dev, KL_I32, 4);
    CHECK(same(kl_nn_rotary_with(q, positions, NULL), kl_nn_rotary_with(q, positions, &rotary)));
    kl_release(positions);
    kl_tensor ints = kl_cast(kl_mul_scalar(x, 9), KL_I8), scale = kl_narrow(x, 1, 0, 2);
    const kl_qscheme scheme = {.type = KL_Q_I8, .axis = 1, .block = 4};
    CHECK(same(kl_quantized_with(ints, scheme, scale, NULL),
               kl_quantized_with(ints, scheme, scale, &(kl_quantized_options){0})));
    kl_release(ints), kl_release(scale);
    kl_nn_causal_options causal = {0};
    CHECK(same(kl_nn_causal_attention(q, q, q, NULL, 0, NULL), kl_nn_causal_attention(q, q, q, NULL, 0, &causal)));
    kl_nn_cache plain, with;
    OK(kl_nn_cache_init_with(&plain, dev, KL_F32, 1, 1, 1, 4, 8, NULL));
    OK(kl_nn_cache_init_with(&with, dev, KL_F32, 1, 1, 1, 4, 8, &(kl_nn_cache_options){0}));
    CHECK(plain.dtype == with.dtype && !plain.k_scale && !with.k_scale);
    kl_nn_cache_deinit(&plain), kl_nn_cache_deinit(&with);
    kl_release(q);
    kl_release(x);
    kl_release(labels);
}

static kl_status triple(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)n, (void)params;
    *y = kl_mul_scalar(x, 3);
    return KL_OK;
}

static kl_status bowl(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)n, (void)params;
    *y = kl_sum_all(kl_square(kl_sub_scalar(x, 2)));
    return KL_OK;
}

static kl_status growth(void *ctx, kl_tensor t, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)t;
    return triple(ctx, x, n, params, y);
}

static void solvers(void)
{
    kl_ode_options ode = {0};
    kl_solve_options o = {0};
    kl_tensor x = kl_randn_seeded(kl_random_seed(dev, 2), KL_F32, DIMS(4)), t = kl_linspace(dev, KL_F32, 0, 1, 3);
    CHECK(same(kl_odeint(growth, NULL, x, t, 0, NULL, NULL), kl_odeint(growth, NULL, x, t, 0, NULL, &ode)));
    CHECK(same(kl_root(triple, NULL, x, 0, NULL, NULL), kl_root(triple, NULL, x, 0, NULL, &o)));
    CHECK(same(kl_conjugate_gradient(triple, NULL, x, 0, NULL, NULL),
               kl_conjugate_gradient(triple, NULL, x, 0, NULL, &o)));
    CHECK(same(kl_minimize(bowl, NULL, x, 0, NULL, NULL), kl_minimize(bowl, NULL, x, 0, NULL, &o)));
    kl_release(x), kl_release(t);
}

static void images(void)
{
    kl_tensor x = kl_randn_seeded(kl_random_seed(dev, 2), KL_F32, DIMS(1, 2, 4, 4));
    kl_resize_options resize = {0};
    CHECK(same(kl_resize(x, 2, (int[]){2, 3}, (int64_t[]){8, 6}, NULL),
               kl_resize(x, 2, (int[]){2, 3}, (int64_t[]){8, 6}, &resize)));
    kl_tensor boxes = kl_input(dev, KL_F32, DIMS(1, 4), (float[]){0, 0, 3, 3}), image = kl_zeros(dev, KL_I64, DIMS(1));
    kl_tensor wrong = kl_roi_align(x, boxes, image, &(kl_roi_options){0});
    CHECK(kl_check(wrong) == KL_ERR_ARGUMENT && asks_for("height"));
    kl_release(wrong);
    wrong = kl_roi_align(x, boxes, image, NULL);
    CHECK(kl_check(wrong) == KL_ERR_ARGUMENT && asks_for("options"));
    kl_release(wrong);
    kl_roi_options roi = {.height = 2, .width = 2}, all = {2, 2, .samples = 2, .scale = 1};
    CHECK(same(kl_roi_align(x, boxes, image, &roi), kl_roi_align(x, boxes, image, &all)));
    kl_release(boxes);
    kl_release(image);
    kl_release(x);
}

static void recurrent(void)
{
    kl_tensor x = kl_randn_seeded(kl_random_seed(dev, 3), KL_F32, DIMS(3, 2, 4));
    kl_tensor w = kl_randn_seeded(kl_random_seed(dev, 4), KL_F32, DIMS(12, 4));
    kl_tensor r = kl_randn_seeded(kl_random_seed(dev, 5), KL_F32, DIMS(12, 3)), a[3], b[3];
    kl_recurrent_options options = {0};
    if (OK(kl_recurrent(KL_CELL_LSTM, x, w, r, NULL, a)) && OK(kl_recurrent(KL_CELL_LSTM, x, w, r, &options, b)))
        for (int i = 0; i < 3; i++)
            CHECK(same(a[i], b[i]));
    kl_release(x);
    kl_release(w);
    kl_release(r);
}

static void optimizers(void)
{
    kl_tensor p = kl_keep(kl_ones(dev, KL_F32, DIMS(2)));
    kl_optimizer *made[10] = {
        kl_sgd(1, &p, NULL), kl_sgd(1, &p, &(kl_sgd_options){0}), kl_adam(1, &p, NULL),
        kl_adam(1, &p, &(kl_adam_options){0}), kl_lion(1, &p, NULL), kl_lion(1, &p, &(kl_lion_options){0}),
        kl_rmsprop(1, &p, NULL), kl_rmsprop(1, &p, &(kl_rmsprop_options){0}), kl_adafactor(1, &p, NULL),
        kl_adafactor(1, &p, &(kl_adafactor_options){0})};
    for (int i = 0; i < 10; i++) {
        CHECK(made[i]);
        kl_optimizer_free(made[i]);
    }
    kl_release(p);
}

static void tokenizers(void)
{
    static const char path[] = "tests/formats/tokenizers/llama3.json";
    kl_tokenizer *t = kl_tokenizer_open(path, NULL);
    int32_t a[40], b[40];
    char x[40], y[40];
    int64_t n = 0, m = 0;
    CHECK(t && kl_tokenizer_encode_with(t, "the <|eot_id|>", 14, NULL, a, 40, &n) == KL_OK &&
          kl_tokenizer_encode_with(t, "the <|eot_id|>", 14, &(kl_encode_options){0}, b, 40, &m) == KL_OK && n == m &&
          !memcmp(a, b, (size_t)n * sizeof *a));
    CHECK(t && kl_tokenizer_decode_with(t, 2, a, NULL, x, 40, &n) == KL_OK &&
          kl_tokenizer_decode_with(t, 2, a, &(kl_decode_options){0}, y, 40, &m) == KL_OK && n == m &&
          !memcmp(x, y, (size_t)n));
    kl_tokenizer_close(t);
}

static void required_fields(void)
{
    kl_params *p = kl_params_new(dev, KL_F32, 1);
    kl_nn_conv conv;
    kl_nn_attention attention;
    kl_nn_block block;
    CHECK(kl_nn_conv_init(&conv, p, "c", &(kl_nn_conv_options){0}) == KL_ERR_ARGUMENT && asks_for("axes"));
    CHECK(kl_nn_conv_init(&conv, p, "c", NULL) == KL_ERR_ARGUMENT && asks_for("nn_conv_init"));
    CHECK(kl_nn_attention_init(&attention, p, "a", &(kl_nn_attention_options){0}) == KL_ERR_ARGUMENT &&
          asks_for("width"));
    CHECK(kl_nn_attention_init(&attention, p, "a", NULL) == KL_ERR_ARGUMENT && asks_for("nn_attention_init"));
    CHECK(kl_nn_block_init(&block, p, "b", &(kl_nn_block_options){0}) == KL_ERR_ARGUMENT && asks_for("width"));
    CHECK(kl_nn_block_init(&block, p, "b", NULL) == KL_ERR_ARGUMENT && asks_for("nn_block_init"));
    CHECK(kl_params_count(p) == 0);
    CHECK(!kl_loader_new(&(kl_loader_options){0}) && asks_for("fill"));
    CHECK(!kl_loader_new(NULL) && asks_for("loader_new"));
    kl_params_free(p);
}

static kl_status run_step(void *ctx)
{
    kl_trace_begin("options");
    kl_tensor y = kl_keep(kl_exp(*(kl_tensor *)ctx));
    kl_status status = kl_trace_end();
    kl_release(y);
    return status;
}

/* Functions of the whole process: both give something. */
static void measured(void)
{
    kl_tensor x = kl_ones(dev, KL_F32, DIMS(8));
    OK(run_step(&x));
    kl_status tuned = kl_tune_with("options", NULL);
    CHECK(kl_tune_with("options", &(kl_tune_options){0}) == tuned);
    kl_bench_report *r = kl_bench("options", run_step, &x, &(kl_bench_options){.rounds = 1});
    CHECK(r);
    kl_bench_free(r);
    kl_object *object = kl_object_new(&(kl_compile_options){0}), *plain = kl_object_new(NULL);
    CHECK(object && plain);
    kl_object_free(object);
    kl_object_free(plain);
    kl_comm *comm = kl_comm_new(&(kl_comm_options){0}), *alone = kl_comm_new(NULL);
    CHECK(comm && alone && kl_comm_ranks(comm) == 1 && kl_comm_ranks(alone) == 1);
    kl_comm_free(comm);
    kl_comm_free(alone);
    kl_release(x);
}

/* Files written with options of zeros are those written without. */
static void files(void)
{
    char path[100];
    snprintf(path, sizeof path, "/tmp/kiln-options-%ld.safetensors", (long)getpid());
    kl_file_item item = {.name = "x", .dtype = KL_F32, .data = &(float){1}};
    for (int i = 0; i < 2; i++) {
        kl_file_write_options zeros = {0};
        CHECK(kl_file_write_with(path, KL_FILE_SAFETENSORS, 1, &item, i ? &zeros : NULL) == KL_OK);
        kl_file *f = kl_file_open(path);
        CHECK(kl_file_count(f) == 1 && kl_file_meta_count(f) == 0);
        kl_params *p = kl_params_new(dev, KL_F32, 1);
        kl_params_load_options strict = {0};
        CHECK(kl_params_add(p, "x", kl_zeros(dev, KL_F32, 0, NULL)) == KL_OK);
        CHECK(kl_params_load_file(p, f, i ? &strict : NULL) == KL_OK);
        CHECK(kl_params_load(p, path, i ? &strict : NULL) == KL_OK && kl_item_f32(kl_params_find(p, "x")) == 1);
        kl_params_free(p);
        kl_file_close(f);
    }
    remove(path);
}

static void test(kl_device device)
{
    dev = device;
    losses_and_attention();
    solvers();
    images();
    recurrent();
    optimizers();
    tokenizers();
    required_fields();
    measured();
    files();
}

int main(void)
{
    return on_devices(test);
}
