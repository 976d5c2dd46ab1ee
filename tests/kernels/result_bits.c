/* Results are the same bits on every kind of processor: hashes of graphs' results, and of the demo network's weights
 * after 100 steps, are those of result_bits.def, which this program compares on x86-64 and on AArch64 alike.
 * KILN_BLESS=1 writes the table, for a change of the numeric order.
 * Arguments: `share`, without the slowest row, or the names of rows. */
#include "tests/support/harness.h"
#include "ir/hash/xxh3.h"
#include <kiln/kiln.h>
#include <kiln/train.h>

#define TABLE "tests/kernels/result_bits.def"
enum { NAME = 64, ROWS = 200 };
struct row { char name[NAME], hash[40]; };
static struct row row[ROWS];
static int nrow;

/* ---- hashes ---- */

/* Any NaN counts as the same one: sign and payload of a computed one are not defined. */
static void add_array(struct xxh3_state *h, unsigned dtype, const void *data, int64_t n)
{
    size_t size = dtype_size(dtype);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, (const char *)data + (size_t)i * size, size); /* little-endian */
        if (dtype_is_float(dtype) && isnan(dtype_value(dtype, bits)))
            bits = dtype_bits(dtype, NAN);
        xxh3_update(h, &bits, size);
    }
}

static void hash_text(const struct xxh3_state *h, char out[40])
{
    struct xxh3_128 sum = xxh3_end(h);
    snprintf(out, 40, "%016" PRIx64 "%016" PRIx64, sum.high, sum.low);
}

/* ---- graphs ---- */

/* Sums of bf16 products have another order on processors with an instruction for it (include/kiln/order.md). */
static bool depends_on_processor(const struct graph *g)
{
    for (ref r = 1; r < g->nnode; r++)
        if (node_at(g, r)->op == OP_dot && node_at(g, r)->dtype == KL_BF16)
            return true;
    return false;
}

static bool hash_graph(const char *name, char out[40])
{
    char path[NAME + 32];
    struct err e = {0};
    snprintf(path, sizeof path, "tests/text/%.63s.kir", name);
    FILE *f = fopen(path, "r");
    static char text[1 << 20];
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    struct graph *g = n ? graph_parse(text, n, path, &e) : NULL;
    bool suits = g && !g->slot.n && !g->symbols && !depends_on_processor(g);
    if (!check(suits, "%s: no graph for this test: %s", path, e.msg))
        return graph_free(g), false;
    struct rng rng = {.s = xxh3_64(name, strlen(name)) | 1};
    struct values in, state, result = {0};
    struct xxh3_state h;
    values_random(&rng, g, &g->input, false, &in);
    values_random(&rng, g, &g->state, false, &state);
    bool ok = check(run_on(g, "cpu", true, &in, &state, NULL, &result, &e), "%s: %s", path, e.msg);
    xxh3_begin(&h);
    for (uint32_t i = 0; ok && i < g->nout; i++)
        add_array(&h, node_at(g, g->out[i].value)->dtype, result.v[i], node_numel(g, g->out[i].value));
    hash_text(&h, out);
    values_free(&in);
    values_free(&state);
    values_free(&result);
    graph_free(g);
    return ok;
}

/* ---- the network of examples/fashion_mnist.c, on images by chance ---- */

enum { PIXELS = 784, CLASSES = 10, STEPS = 100, LAYERS = 3, MAX_HIDDEN = 512, MAX_BATCH = 128 };

static kl_tensor network(kl_tensor x, const kl_tensor *weight, const kl_tensor *bias)
{
    x = kl_mul_scalar(kl_cast(x, KL_F32), 1.0 / 255);
    for (int i = 0; i < LAYERS; i++) {
        x = kl_linear(x, weight[i], bias[i]);
        if (i + 1 < LAYERS)
            x = kl_relu(x);
    }
    return x;
}

static bool train(kl_optimizer *adam, int batch, const kl_tensor *weight, const kl_tensor *bias)
{
    static uint8_t images[MAX_BATCH * PIXELS], labels[MAX_BATCH];
    struct rng rng = {.s = 42};
    kl_device cpu = kl_device_cpu();
    for (int step = 0; step < STEPS; step++) {
        fill_random(&rng, KL_U8, images, batch * PIXELS, true);
        for (int i = 0; i < batch; i++)
            labels[i] = (uint8_t)rng_below(&rng, CLASSES);
        kl_trace_begin("train_step");
        kl_tensor x = kl_input(cpu, KL_U8, 2, (int64_t[]){batch, PIXELS}, images);
        kl_tensor loss = kl_cross_entropy(network(x, weight, bias),
                                          kl_input(cpu, KL_U8, 1, (int64_t[]){batch}, labels));
        kl_optimizer_step(adam, loss, 1e-3);
        if (!check(kl_trace_end() == KL_OK, "step %d: %s", step, kl_last_error()))
            return false;
    }
    return true;
}

static bool hash_demo(int hidden, int batch, char out[40])
{
    const int64_t width[LAYERS + 1] = {PIXELS, hidden, hidden, CLASSES};
    static float data[PIXELS * MAX_HIDDEN];
    kl_device cpu = kl_device_cpu();
    kl_tensor parameter[2 * LAYERS];
    struct xxh3_state h;
    for (int i = 0; i < LAYERS; i++) {
        parameter[i] = kl_mul_scalar(kl_randn(cpu, KL_F32, 2, width + i, (uint64_t)i), sqrt(2.0 / (double)width[i]));
        parameter[LAYERS + i] = kl_zeros(cpu, KL_F32, 1, width + i + 1);
    }
    kl_optimizer *adam = kl_adam(2 * LAYERS, parameter, NULL);
    bool ok = train(adam, batch, parameter, parameter + LAYERS);
    xxh3_begin(&h);
    for (int i = 0; i < 2 * LAYERS; i++) {
        int64_t n = i < LAYERS ? width[i] * width[i + 1] : width[i - LAYERS + 1];
        ok &= check(kl_read(parameter[i], data, (size_t)n * sizeof *data) == KL_OK, "weights: %s", kl_last_error());
        add_array(&h, KL_F32, data, n);
        kl_release(parameter[i]);
    }
    kl_optimizer_free(adam);
    hash_text(&h, out);
    return ok;
}

/* ---- the table ---- */

static void read_table(void)
{
    FILE *f = fopen(TABLE, "r");
    char line[256];
    while (f && fgets(line, sizeof line, f) && nrow < ROWS)
        if (*line != '#' && sscanf(line, "%63s %39s", row[nrow].name, row[nrow].hash) >= 1)
            nrow++;
    if (f)
        fclose(f);
    check(nrow > 0, "no rows in " TABLE);
}

static void write_table(void)
{
    FILE *f = fopen(TABLE, "w");
    if (!check(f, "cannot write " TABLE))
        return;
    fprintf(f, "# Hashes of results, which are the same on every kind of processor: result_bits.c.\n");
    for (int i = 0; i < nrow; i++)
        fprintf(f, "%-40s %s\n", row[i].name, row[i].hash);
    fclose(f);
}

static bool hash_row(const char *name, char hash[40])
{
    if (!strcmp(name, "demo"))
        return hash_demo(MAX_HIDDEN, MAX_BATCH, hash);
    return !strcmp(name, "demo_small") ? hash_demo(MAX_HIDDEN / 4, MAX_BATCH / 4, hash) : hash_graph(name, hash);
}

int main(int argc, char **argv)
{
    bool share = argc > 1 && !strcmp(argv[1], "share"); /* without the whole demo: minutes of an emulator */
    const char *bless = getenv("KILN_BLESS");
    struct err e = {0};
    if (!backend_get("llvm", &e) && !backend_get("c", &e)) {
        skipped++;
        printf("SKIP not-built cpu: %s\n", e.msg);
        return finish();
    }
    read_table();
    for (int i = 0; i < nrow; i++) {
        char hash[40] = "";
        if ((share && !strcmp(row[i].name, "demo")) || (!share && !is_named(row[i].name, argc, argv)))
            continue;
        bool ok = hash_row(row[i].name, hash);
        if (bless)
            memcpy(row[i].hash, hash, sizeof hash);
        else
            check(ok && !strcmp(hash, row[i].hash), "%s: its results' hash is %s, not %s", row[i].name, hash,
                  row[i].hash);
    }
    if (bless)
        write_table();
    return finish();
}
