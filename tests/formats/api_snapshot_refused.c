/* <kiln/formats/snapshot.h>: loading a file assigns everything or nothing, wherever in it the fault is, and the file of
 * the step before is taken instead. */
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <unistd.h>

static kl_device dev;

static bool says(const char *text)
{
    if (strstr(kl_last_error(), text))
        return true;
    printf("  \"%s\" has no \"%s\"\n", kl_last_error(), text);
    return false;
}

enum { NUMBERS = 3 };
static struct { int64_t now; int sets; } number[NUMBERS];
static int64_t number_get(const void *of) { return number[*(const int *)of].now; }
static kl_status number_set(void *of, int64_t value)
{
    int i = *(int *)of;
    number[i].sets++;
    if (value < 0)
        return kl_fail(KL_ERR_ARGUMENT, "a number below 0");
    number[i].now = value;
    return KL_OK;
}

/* Everything that a snapshot can hold, with numbers around the tensors. */
struct everything {
    kl_tensor w, flag;
    int64_t step;
    double rate;
    int which[NUMBERS];
    kl_snapshot *c;
};

static void everything_is(const struct everything *e, int64_t v)
{
    float w[2];
    uint8_t flag;
    OK(kl_read(e->w, w, sizeof w));
    OK(kl_read(e->flag, &flag, sizeof flag));
    CHECK(w[0] == (float)v && w[1] == (float)v && flag == v % 2 && e->step == v && e->rate == (double)v / 2);
    for (int i = 0; i < NUMBERS; i++)
        CHECK(number[i].now == v + i);
    uint64_t seed = kl_next_seed(dev);
    kl_seed(dev, (uint64_t)v);
    CHECK(kl_next_seed(dev) == seed);
    kl_seed(dev, (uint64_t)v);
}

static void everything_set(struct everything *e, int64_t v)
{
    OK(kl_assign(e->w, kl_full(dev, KL_F32, 1, (int64_t[]){2}, (double)v)));
    OK(kl_assign(e->flag, kl_full(dev, KL_BOOL, 0, NULL, (double)(v % 2))));
    e->step = v;
    e->rate = (double)v / 2;
    for (int i = 0; i < NUMBERS; i++)
        number[i].now = v + i;
    kl_seed(dev, (uint64_t)v);
}

static void everything_start(struct everything *e)
{
    char name[10];
    *e = (struct everything){.w = kl_zeros(dev, KL_F32, 1, (int64_t[]){2}), .flag = kl_zeros(dev, KL_BOOL, 0, NULL)};
    e->c = kl_snapshot_new();
    OK(kl_snapshot_i64(e->c, "step", &e->step));
    for (int i = 0; i < NUMBERS; i++) {
        snprintf(name, sizeof name, "number%d", i);
        e->which[i] = i;
        OK(kl_snapshot_number(e->c, name, number_get, number_set, &e->which[i]));
        if (i == 0)
            OK(kl_snapshot_tensor(e->c, "w", e->w));
    }
    OK(kl_snapshot_tensor(e->c, "flag", e->flag));
    OK(kl_snapshot_f64(e->c, "rate", &e->rate));
    OK(kl_snapshot_seeds(e->c, dev));
}

/* Writes over the elements of a field of the file. */
static void damage(const char *path, const char *field, const void *bytes, size_t n)
{
    kl_file_entry e = {.offset = 0};
    kl_file *f = kl_file_open(path);
    OK(kl_file_get(f, (uint32_t)kl_file_find(f, field), &e));
    kl_file_close(f);
    FILE *file = fopen(path, "r+b");
    CHECK(file && !fseek(file, (long)e.offset, SEEK_SET) && fwrite(bytes, 1, n, file) == n && !fclose(file));
}

/* A load that is refused at any of the fields changes nothing and says which field it is; the file before it is
 * taken. */
static void all_or_none(const char *folder)
{
    static const char *const field[] = {"number0", "number1", "number2", "flag"};
    char where[300];
    struct everything e;
    everything_start(&e);
    snprintf(where, sizeof where, "%s/all", folder);
    for (int i = 0; i < 4; i++) {
        everything_set(&e, 4);
        OK(kl_snapshot_save_step(e.c, where, "m", 4, 0));
        everything_set(&e, 5);
        OK(kl_snapshot_save_step(e.c, where, "m", 5, 0));
        char path[400];
        snprintf(path, sizeof path, "%s/m-000000000005.safetensors", where);
        damage(path, field[i], i < 3 ? (const void *)&(int64_t){-7} : &(uint8_t){2}, i < 3 ? 8 : 1);
        everything_set(&e, 8);
        CHECK(kl_snapshot_load(e.c, path) == KL_ERR_IO && says(field[i]) && says("byte ") && says(path));
        everything_is(&e, 8);
        int64_t step = -1;
        OK(kl_snapshot_load_last(e.c, where, "m", &step));
        CHECK(step == 4);
        everything_is(&e, 4);
        snprintf(path, sizeof path, "%s/m-000000000004.safetensors", where); /* and then there is none */
        damage(path, "number2", &(int64_t){-8}, 8);
        everything_set(&e, 8);
        CHECK(kl_snapshot_load_last(e.c, where, "m", &step) == KL_ERR_IO && step == -1 && says("m-000000000005"));
        everything_is(&e, 8);
        unlink(path);
        snprintf(path, sizeof path, "%s/m-000000000005.safetensors", where);
        unlink(path);
    }
    rmdir(where);
    kl_snapshot_free(e.c);
    kl_release(e.w);
    kl_release(e.flag);
}

static kl_status fill(void *ctx, int64_t n, const int64_t *sample, void *batch, char *message)
{
    (void)ctx;
    (void)sample;
    (void)message;
    memset(batch, 0, (size_t)n * 4);
    return KL_OK;
}

/* A position that the loader refuses, and steps that the optimizer refuses. */
static void training(const char *folder)
{
    char path[300];
    snprintf(path, sizeof path, "%s/train.safetensors", folder);
    for (int which = 0; which < 2; which++) {
        kl_params *params = kl_params_new(dev, KL_F32, 1);
        kl_tensor w = kl_params_make(params, "w", 1, (int64_t[]){2}, NULL);
        kl_optimizer *opt = kl_sgd(1, &w, &(kl_sgd_options){.momentum = 0.9});
        kl_loader *loader = kl_loader_new(&(kl_loader_options){.count = 10, .batch = 2, .bytes = 4, .fill = fill,
                                                               .threads = -1});
        kl_snapshot *c = kl_snapshot_new();
        float v[2];
        OK(kl_snapshot_loader(c, "data", loader));
        OK(kl_snapshot_params(c, params));
        OK(kl_snapshot_optimizer(c, "sgd", opt));
        OK(kl_optimizer_set_steps(opt, 3));
        OK(kl_loader_seek(loader, 2));
        OK(kl_snapshot_save(c, path));
        damage(path, which ? "sgd.steps" : "data", &(int64_t){-7}, 8);
        OK(kl_assign(w, kl_ones(dev, KL_F32, 1, (int64_t[]){2})));
        OK(kl_optimizer_set_steps(opt, 5));
        OK(kl_loader_seek(loader, 4));
        CHECK(kl_snapshot_load(c, path) == KL_ERR_IO && says(which ? "field sgd.steps: -7 is refused"
                                                                   : "field data: -7 is refused"));
        OK(kl_read(w, v, sizeof v));
        CHECK(v[0] == 1 && kl_optimizer_steps(opt) == 5 && kl_loader_position(loader) == 4);
        kl_snapshot_free(c);
        kl_loader_free(loader);
        kl_optimizer_free(opt);
        kl_params_free(params);
    }
    unlink(path);
}

int main(void)
{
    char folder[] = "/tmp/kiln-refused-XXXXXX";
    dev = kl_device_named("ref");
    if (!CHECK(mkdtemp(folder) != NULL))
        return 1;
    all_or_none(folder);
    training(folder);
    rmdir(folder);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
