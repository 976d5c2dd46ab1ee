/* Trees of parameters: names, patterns, counts, options, ownership, errors. */
#include "tests/support/api_check.h"
#include <kiln/extend.h>
#include <kiln/train.h>

static kl_device dev;

static kl_params *tree(void)
{
    kl_params *p = kl_params_new(dev, KL_F32, 42);
    kl_init normal = {.kind = KL_INIT_NORMAL, .std = 0.5};
    kl_params_make(p, "h.0.fc.weight", DIMS(3, 4), &normal);
    kl_params_make(p, "h.0.fc.bias", DIMS(4), NULL);
    kl_params_make(p, "h.1.fc.weight", DIMS(4, 5), &normal);
    kl_params_make(p, "h.1.fc.bias", DIMS(5), NULL);
    kl_params_make(p, "h.10.scale", DIMS(2), NULL);
    kl_params_add_buffer(p, "h.1.seen", kl_zeros(dev, KL_I64, 0, NULL));
    return p;
}

static void names(void)
{
    kl_params *p = tree();
    CHECK(kl_params_count(p) == 6);
    kl_param is;
    OK(kl_params_get(p, 0, &is));
    CHECK(!strcmp(is.name, "h.0.fc.weight") && !is.buffer && !is.frozen && is.rate == 1 && is.decay == 1);
    SHAPE(is.tensor, 3, 4);
    CHECK(kl_params_index(p, "h.1.fc.bias") == 3 && kl_params_index(p, "h.1.fc") == -1);
    CHECK(kl_params_index_of(p, is.tensor) == 0 && kl_params_index_of(p, kl_none) == -1);
    CHECK(kl_params_find(p, "h.10.scale").id == (kl_params_get(p, 4, &is), is.tensor.id));
    OK(kl_params_get(p, 5, &is));
    CHECK(is.buffer && kl_dtype_of(is.tensor) == KL_I64);
    CHECK(kl_params_device(p).id == dev.id && kl_params_dtype(p) == KL_F32 && kl_params_seed(p) == 42);

    static const struct { const char *pattern; int count; int64_t elements; } row[] = {
        {"", 6, 43}, {"*", 6, 43}, {"h", 6, 43}, {"h.1", 3, 25}, {"h.1*", 4, 27}, {"*.bias", 2, 9},
        {"h.*.fc.*", 4, 41},
        {"h.0.fc.bias", 1, 4}, {"h.0.fc.bia", 0, 0}, {"*.fc", 0, 0}, {"*fc*ght", 2, 32},
        {"h.1.seen", 1, 0}, {"**s", 2, 9}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        int n = 0;
        for (int k = kl_params_next(p, row[i].pattern, 0); k >= 0; k = kl_params_next(p, row[i].pattern, k + 1))
            n++;
        if (!CHECK(n == row[i].count) || !CHECK(kl_params_elements(p, row[i].pattern) == row[i].elements))
            printf("pattern \"%s\": %d tensors, %lld elements\n", row[i].pattern, n,
                   (long long)kl_params_elements(p, row[i].pattern));
    }
    kl_params_free(p);
    kl_params_free(NULL);
}

static void options(void)
{
    kl_params *p = tree();
    kl_param is;
    int64_t n;
    const kl_tensor *list = kl_params_trained(p, &n);
    CHECK(n == 5 && list && list[4].id == kl_params_find(p, "h.10.scale").id);
    OK(kl_params_freeze(p, "h.0", true));
    OK(kl_params_set_decay(p, "*.bias", 0));
    OK(kl_params_set_rate(p, "h.1", 0.25));
    OK(kl_params_get(p, 1, &is));
    CHECK(is.frozen && is.decay == 0 && is.rate == 1);
    OK(kl_params_get(p, 3, &is));
    CHECK(!is.frozen && is.decay == 0 && is.rate == 0.25);
    list = kl_params_trained(p, &n);
    CHECK(n == 3 && list[0].id == kl_params_find(p, "h.1.fc.weight").id);
    OK(kl_params_freeze(p, "*weight", false));
    kl_params_trained(p, &n);
    CHECK(n == 4);
    CHECK(kl_params_freeze(p, "h.7", true) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "\"h.7\""));
    CHECK(kl_params_set_rate(p, "*", -1) == KL_ERR_ARGUMENT && kl_params_set_decay(p, "*", NAN) == KL_ERR_ARGUMENT);
    CHECK(kl_params_set_rate(NULL, "*", 1) == KL_ERR_ARGUMENT && !kl_params_trained(NULL, &n));
    kl_params_free(p);
}

/* Values depend on the seed and the name, not on what else is in the tree. */
static void seeds(void)
{
    kl_params *p = tree(), *q = kl_params_new(dev, KL_F32, 42), *r = kl_params_new(dev, KL_F32, 43);
    kl_init normal = {.kind = KL_INIT_NORMAL, .std = 0.5};
    float a[20], b[20], c[20], d[20];
    OK(kl_read(kl_params_find(p, "h.1.fc.weight"), a, sizeof a));
    OK(kl_read(kl_params_make(q, "h.1.fc.weight", DIMS(4, 5), &normal), b, sizeof b));
    OK(kl_read(kl_params_make(q, "h.2.fc.weight", DIMS(4, 5), &normal), c, sizeof c));
    OK(kl_read(kl_params_make(r, "h.1.fc.weight", DIMS(4, 5), &normal), d, sizeof d));
    CHECK(!memcmp(a, b, sizeof a) && memcmp(a, c, sizeof a) && memcmp(a, d, sizeof a));
    kl_params_free(p);
    kl_params_free(q);
    kl_params_free(r);
}

/* Made in a trace they are computed by one program, and outlive it; of a failed trace they are errors, not crashes. */
static void traces(void)
{
    kl_trace_begin("init");
    kl_params *p = tree();
    OK(kl_trace_end());
    float a[12];
    OK(kl_read(kl_params_find(p, "h.0.fc.weight"), a, sizeof a));
    kl_trace_begin("use");
    kl_tensor w = kl_params_find(p, "h.0.fc.weight"), loss = kl_keep(kl_sum_all(kl_square(w)));
    OK(kl_assign(w, kl_sub(w, kl_grad(loss, w))));
    OK(kl_trace_end());
    kl_release(loss);
    kl_params_free(p);

    kl_trace_begin("fails");
    p = tree();
    kl_reshape(kl_params_find(p, "h.0.fc.weight"), DIMS(5));
    CHECK(kl_trace_end() == KL_ERR_SHAPE);
    CHECK(kl_params_count(p) == 6);
    kl_params_free(p);
}

static int64_t live(void)
{
    kl_memory_use use;
    return kl_memory_used(dev, &use) == KL_OK ? use.live : -1;
}

static void errors(void)
{
    kl_params *p = tree();
    int64_t before = live();
    static const char *const bad[] = {"", ".a", "a.", "a..b", "a b", "a*", "h.0.fc.bias", NULL, "\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kl_tensor t = kl_ones(dev, KL_F32, DIMS(1000));
        CHECK(kl_params_add(p, bad[i], t) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "params_add: name"));
        CHECK(kl_check(t) == KL_ERR_HANDLE); /* released */
        kl_tensor made = kl_params_make(p, bad[i], DIMS(2), NULL);
        CHECK(kl_check(made) == KL_ERR_ARGUMENT);
        kl_release(made);
    }
    char long_name[KL_PARAM_NAME + 2];
    memset(long_name, 'x', sizeof long_name);
    long_name[KL_PARAM_NAME + 1] = 0;
    CHECK(kl_params_add(p, long_name, kl_ones(dev, KL_F32, DIMS(3))) == KL_ERR_ARGUMENT);
    long_name[KL_PARAM_NAME] = 0;
    OK(kl_params_add(p, long_name, kl_zeros(dev, KL_F32, DIMS(0))));
    CHECK(kl_params_add(p, "whole", kl_ones(dev, KL_I32, DIMS(3))) == KL_ERR_TYPE);
    CHECK(kl_params_add(p, "none", kl_none) == KL_ERR_HANDLE);
    CHECK(kl_params_add(NULL, "a", kl_ones(dev, KL_F32, DIMS(3))) == KL_ERR_ARGUMENT);
    kl_tensor poison = kl_reshape(kl_params_find(p, "h.0.fc.bias"), DIMS(7));
    CHECK(kl_params_add(p, "poison", poison) == KL_ERR_SHAPE && kl_check(poison) == KL_ERR_HANDLE);
    kl_tensor none = kl_params_find(p, "h.2");
    CHECK(kl_check(none) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "api_params.c"));
    kl_release(none);
    kl_param is;
    CHECK(kl_params_get(p, 7, &is) == KL_ERR_ARGUMENT && !is.name && kl_params_get(p, -1, &is) == KL_ERR_ARGUMENT);
    CHECK(!kl_params_new((kl_device){0}, KL_F32, 1) && kl_last_error_code() == KL_ERR_DEVICE);
    CHECK(!kl_params_new(dev, KL_I8, 1) && kl_last_error_code() == KL_ERR_TYPE);
    CHECK(kl_params_count(p) == 7 && live() == before);
    kl_params_free(p);

    p = kl_params_new(dev, KL_F32, 0); /* many: the index grows */
    for (int i = 0; i < 500; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%d", i);
        kl_params_make(p, name, 0, NULL, NULL);
    }
    CHECK(kl_params_count(p) == 500 && kl_params_index(p, "layer.499") == 499 && kl_params_index(p, "layer.500") == -1);
    kl_params_free(p);
}

/* What a module of one's own is made of (<kiln/extend.h>). */
static void extending(void)
{
    int64_t before = live();
    kl_tensor x = kl_ones(dev, KL_F32, DIMS(1000)), y = kl_none;
    OK(kl_composite_begin("twice"));
    y = kl_mul_scalar(kl_add(kl_exp(x), x), 2);
    kl_composite_end(1, &y);
    CHECK(fabs(kl_item_f64(kl_max(y, 0, NULL, false)) - 7.436563656918090) < 1e-6);
    OK(kl_composite_begin("twice"));
    kl_tensor bad = kl_matmul(x, kl_zeros(dev, KL_F32, DIMS(3)));
    kl_composite_end(1, &bad);
    CHECK(strstr(kl_last_error(), "twice: "));
    kl_release(bad);
    CHECK(kl_failf(NULL, KL_ERR_IO, "weight %.2f of %d", 1.5, 3) == KL_ERR_IO);
    CHECK(!strcmp(kl_last_error(), "weight 1.50 of 3") && kl_last_error_code() == KL_ERR_IO);
    kl_tensor p = kl_poison();
    CHECK(kl_check(p) == KL_ERR_IO);
    kl_release(p);
    kl_release(y);
    kl_release(x);
    CHECK(live() <= before + 8);

    kl_trace_begin("fails");
    CHECK(kl_failf(KL_HERE, KL_ERR_CHECK, "first") == KL_ERR_CHECK);
    CHECK(kl_failf(NULL, KL_ERR_IO, "second") == KL_ERR_CHECK);
    CHECK(kl_trace_end() == KL_ERR_CHECK && strstr(kl_last_error(), "first"));
    CHECK(strstr(kl_last_error(), "api_params.c"));
    char text[16], *end;
    CHECK(kl_format(text, sizeof text, "%.3f", 0.25) == 5 && !strcmp(text, "0.250"));
    CHECK(kl_parse_f64("2.5e3x", &end) == 2500 && *end == 'x');
    char *p1 = kl_memory_alloc(10), *p2 = kl_memory_grow(p1, 10, 1000);
    CHECK(p2 && !p2[0] && !p2[999]);
    kl_memory_free(p2);

    kl_tensor w = kl_ones(dev, KL_F32, DIMS(2)), v = kl_ones(dev, KL_F32, DIMS(2)), g[2];
    kl_requires_grad(w), kl_requires_grad(v);
    kl_trace_begin("grads");
    OK(kl_grads(kl_sum_all(kl_square(w)), 2, (kl_tensor[]){w, v}, g));
    kl_keep(g[0]), kl_keep(g[1]);
    OK(kl_trace_end());
    NEAR_LIST(g[0], 0, 2, 2);
    NEAR_LIST(g[1], 0, 0, 0);
    kl_trace_begin("grads of nothing");
    CHECK(kl_grads(kl_sum_all(kl_detach(w)), 2, (kl_tensor[]){w, v}, g) == KL_ERR_GRAD && !g[0].id && !g[1].id);
    CHECK(kl_trace_end() == KL_ERR_GRAD);
    kl_release(w), kl_release(v);
}

/* Plain calls have the thread's call site, calls with a line their own, and those inside of them that. */
static void chosen_call_sites(const kl_nn_linear *m, kl_tensor x)
{
    static const kl_site node = {"model.onnx", 3, "MatMul"};
    char line[40];
    CHECK(!kl_set_call_site(&node));
    kl_tensor bad[4] = {(kl_matmul)(x, x)};
    CHECK(strstr(kl_last_error(), "model.onnx:3: ") && strstr(kl_last_error(), "[2,3]"));
    bad[1] = (kl_nn_linear_forward)(m, x);
    CHECK(strstr(kl_last_error(), "model.onnx:3: ") && strstr(kl_last_error(), "[2,3]"));
    CHECK(!(kl_file_open)("no such file") && !strncmp(kl_last_error(), "model.onnx:3: ", 14));
    snprintf(line, sizeof line, "api_params.c:%d: ", __LINE__ + 1);
    bad[2] = kl_nn_linear_forward(m, x);
    CHECK(strstr(kl_last_error(), line) && !strstr(kl_last_error(), "model.onnx"));
    snprintf(line, sizeof line, "api_params.c:%d: ", __LINE__ + 1);
    CHECK(!kl_file_open("no such file") && strstr(kl_last_error(), line));
    bad[3] = (kl_matmul)(x, x); /* it is set as before */
    CHECK(strstr(kl_last_error(), "model.onnx:3: "));
    CHECK(kl_set_call_site(NULL) == &node);
    CHECK(!(kl_file_open)("no such file") && !strstr(kl_last_error(), ".onnx:") && !strstr(kl_last_error(), ".c:"));
    for (int i = 0; i < 4; i++)
        kl_release(bad[i]);
}

/* A call with a line gives it to all calls inside of the function, and to none after it; a plain call has none. */
static void call_sites(void)
{
    kl_params *p = kl_params_new(dev, KL_F32, 1);
    kl_nn_linear m;
    OK(kl_nn_linear_init(&m, p, "fc", 4, 5, true));
    kl_tensor x = kl_zeros(dev, KL_F32, DIMS(2, 3)), bad[4];
    char line[40];
    snprintf(line, sizeof line, "api_params.c:%d: ", __LINE__ + 1);
    bad[0] = kl_nn_linear_forward(&m, x); /* a product inside of it fails */
    CHECK(strstr(kl_last_error(), line) && strstr(kl_last_error(), "[2,3]"));
    bad[1] = (kl_matmul)(x, x);
    CHECK(strstr(kl_last_error(), "[2,3]") && !strstr(kl_last_error(), ".c:"));
    bad[2] = (kl_nn_linear_forward)(&m, x);
    CHECK(strstr(kl_last_error(), "[2,3]") && !strstr(kl_last_error(), ".c:"));
    bad[3] = kl_nn_linear_forward_at(&(kl_site){"model.py", 7, "f"}, &m, x);
    CHECK(strstr(kl_last_error(), "model.py:7: "));
    CHECK(kl_failf(NULL, KL_ERR_IO, "outside") == KL_ERR_IO && !strcmp(kl_last_error(), "outside"));
    for (int i = 0; i < 4; i++)
        kl_release(bad[i]);
    chosen_call_sites(&m, x);
    kl_release(x);
    kl_params_free(p);
}

static void all(kl_device device)
{
    dev = device;
    names();
    options();
    seeds();
    traces();
    errors();
    extending();
    call_sites();
}

int main(void) { return on_devices(all); }
