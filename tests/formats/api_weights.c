/* <kiln/formats/weights.h>: parameters from files of other people: without a copy where that can be, transposed, cut
 * out of fused tensors and put together of several, cast and decoded; from several files by an index; all that does not
 * fit in one error, and nothing changed then. */
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <unistd.h>

enum { N = 6, K = 4 };
static kl_device dev;
static char folder[] = "/tmp/kiln-weights-XXXXXX", path_text[300];
static float numbers[3 * N * 64];

static const char *path_of(const char *name)
{
    snprintf(path_text, sizeof path_text, "%s/%s", folder, name);
    return path_text;
}

static kl_file_item array(const char *name, int rank, const int64_t *dims)
{
    return (kl_file_item){.name = name, .dtype = KL_F32, .rank = rank, .dims = dims, .data = numbers};
}
#define ARRAY(name, ...) array(name, DIMS(__VA_ARGS__))

static void write_file(const char *name, int64_t n, const kl_file_item *items)
{
    OK(kl_file_write(path_of(name), strstr(name, ".gguf") ? KL_FILE_GGUF : KL_FILE_SAFETENSORS, n, items, 0, NULL));
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(path_of(name), "w");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
}

static kl_tensor add(kl_params *p, const char *name, kl_dtype dtype, int rank, const int64_t *dims)
{
    kl_tensor t = kl_full(dev, dtype, rank, dims, 7);
    OK(dtype == KL_I32 ? kl_params_add_buffer(p, name, t) : kl_params_add(p, name, t));
    return t;
}

/* The tensor's elements are numbers[from + i * by]. */
static bool holds(kl_tensor t, int64_t from, int64_t n)
{
    double *v = values_of(t);
    bool ok = v && kl_numel(t) == n;
    for (int64_t i = 0; ok && i < n; i++)
        ok = v[i] == (double)numbers[from + i];
    free(v);
    return ok;
}

static void *address_of(kl_tensor t)
{
    void *address = NULL;
    kl_memory_release(kl_memory_of(t, &address));
    return address;
}

/* ---- values without a copy ---- */

static kl_status split_rows(void *ctx, const kl_file_entry *e, int64_t part, kl_weight_map *map)
{
    (void)ctx;
    if (!strcmp(e->name, "qkv")) {
        snprintf(map->name, sizeof map->name, "%c", "qkv"[part]);
        map->start = part * N;
        map->length = N;
        map->more = part < 2;
    }
    return KL_OK;
}

static void mapped(void)
{
    const kl_file_item items[] = {ARRAY("emb", N, K), ARRAY("qkv", 3 * N, K), array("one", 0, NULL)};
    write_file("mapped.safetensors", 3, items);
    kl_params *p = kl_params_new(dev, KL_F32, 1);
    kl_tensor emb = add(p, "emb", KL_F32, DIMS(N, K)), q = add(p, "q", KL_F32, DIMS(N, K)),
              k = add(p, "k", KL_F32, DIMS(N, K)), v = add(p, "v", KL_F32, DIMS(N, K)),
              one = add(p, "one", KL_F32, 0, NULL);
    kl_file *f = kl_file_open(path_of("mapped.safetensors"));
    OK(kl_params_load_file(p, f, &(kl_params_load_options){.map = split_rows}));
    const char *data = kl_file_data(f, "qkv");
    bool cpu = kl_device_kind_of(dev) <= KL_DEVICE_CPU;
    CHECK(!cpu || address_of(emb) == kl_file_data(f, "emb"));
    CHECK(!cpu || (address_of(q) == data && address_of(v) == data + 2 * N * K * sizeof(float)));
    kl_file_close(f); /* the values stay */
    CHECK(holds(emb, 0, N * K) && holds(q, 0, N * K) && holds(k, N * K, N * K) && holds(v, 2 * N * K, N * K));
    CHECK(holds(one, 0, 1));
    /* a step of training gives them other memory, and the file stays as it was */
    for (int step = 0; step < 2; step++) {
        OK(kl_trace_begin("step"));
        kl_tensor loss = kl_sum_all(kl_mul(emb, q)), g = kl_grad(loss, emb);
        OK(kl_assign(emb, kl_sub(emb, g)));
        OK(kl_trace_end());
    }
    NEAR_LIST(kl_slice(emb, NULL, (int64_t[]){1, 3}, NULL), 1e-6, -(double)numbers[0], -(double)numbers[1],
              -(double)numbers[2]);
    f = kl_file_open(path_of("mapped.safetensors"));
    kl_tensor again = kl_file_tensor(f, dev, "emb");
    CHECK(holds(again, 0, N * K));
    kl_release(again);
    kl_file_close(f);
    kl_params_free(p);
}

/* ---- values that are made ---- */

static kl_status of_torch(void *ctx, const kl_file_entry *e, int64_t part, kl_weight_map *map)
{
    static const char *const parts[] = {"q", "k", "v"};
    (void)ctx;
    map->transpose = e->rank == 2 && !strstr(e->name, "emb");
    if (!strcmp(e->name, "c_attn")) { /* transposed it is [K, 3 N], of which each gets N columns */
        strcpy(map->name, parts[part]);
        map->axis = 1;
        map->start = part * N;
        map->length = N;
        map->more = part < 2;
    }
    for (int i = 0; i < 3; i++)
        if (strlen(e->name) == 6 && e->name[0] == parts[i][0] && !strcmp(e->name + 1, "_proj")) {
            strcpy(map->name, "fused");
            map->axis = 1;
            map->at = i * N;
        }
    if (!strcmp(e->name, "rotary"))
        *map->name = 0;
    return KL_OK;
}

static void converted(void)
{
    int32_t ids[] = {3, 1};
    const kl_file_item items[] = {
        ARRAY("c_attn", 3 * N, K), ARRAY("k_proj", N, K), ARRAY("v_proj", N, K), ARRAY("q_proj", N, K),
        ARRAY("rotary", 5), ARRAY("half", N, K),
        {.name = "ids", .dtype = KL_I32, .rank = 1, .dims = (int64_t[]){2}, .data = ids},
    };
    write_file("torch.safetensors", 7, items);
    kl_params *p = kl_params_new(dev, KL_F32, 1);
    kl_tensor v = add(p, "v", KL_F32, DIMS(K, N)), q = add(p, "q", KL_F32, DIMS(K, N)),
              fused = add(p, "fused", KL_F32, DIMS(K, 3 * N)), half = add(p, "half", KL_F16, DIMS(K, N)),
              i32 = add(p, "ids", KL_I32, DIMS(2));
    add(p, "k", KL_BF16, DIMS(K, N));
    OK(kl_params_load(p, path_of("torch.safetensors"), &(kl_params_load_options){.map = of_torch}));
    double want[3][K * N], all[K * 3 * N];
    for (int k = 0; k < K; k++)
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 3; i++) {
                want[i][k * N + n] = (double)numbers[(i * N + n) * K + k];
                all[k * 3 * N + i * N + n] = (double)numbers[n * K + k];
            }
        }
    kl_keep(v), kl_keep(q), kl_keep(fused), kl_keep(half), kl_keep(i32);
    NEAR(kl_cast(v, KL_F64), K * N, want[2], 0);
    NEAR(kl_cast(q, KL_F64), K * N, want[0], 0);
    NEAR(kl_cast(fused, KL_F64), K * 3 * N, all, 0);
    NEAR(kl_cast(half, KL_F64), K * N, want[0], 1e-3);
    NEAR_LIST(kl_cast(i32, KL_F64), 0, 3, 1);
    CHECK(kl_dtype_of(half) == KL_F16);
    kl_params_free(p);
}

static void quantized(void)
{
    kl_file_item items[] = {ARRAY("q4", N, 64), ARRAY("q8", N, 64), ARRAY("kept", N, 64), ARRAY("flat", N, 64)};
    const char *const types[] = {"Q4_0", "Q8_0", "Q8_0", "Q5_1"};
    for (int i = 0; i < 4; i++)
        items[i].type = types[i];
    write_file("quantized.gguf", 4, items);
    kl_file *f = kl_file_open(path_of("quantized.gguf"));
    kl_params *p = kl_params_new(dev, KL_F32, 1);
    kl_tensor q4 = add(p, "q4", KL_F32, DIMS(N, 64)), q8 = add(p, "q8", KL_F16, DIMS(N, 64)),
              flat = add(p, "flat", KL_F32, DIMS(N, 64));
    kl_tensor kept = kl_to_quantized(kl_zeros(dev, KL_F32, DIMS(N, 64)),
                                     (kl_qscheme){.type = KL_Q_I8, .axis = -1, .block = 32}, kl_none, kl_none);
    OK(kl_params_add_buffer(p, "kept", kept));
    OK(kl_params_load_file(p, f, NULL));
    const char *const names[] = {"q4", "q8", "kept", "flat"};
    const kl_tensor got[] = {q4, q8, kept, flat};
    for (int i = 0; i < 4; i++) {
        kl_tensor t = kl_file_tensor(f, dev, names[i]);
        double *want = values_of(t);
        double *v = values_of(got[i]);
        bool ok = want && v;
        for (int k = 0; ok && k < N * 64; k++)
            ok = fabs(want[k] - v[k]) <= (i == 1 ? 1e-2 : 0);
        CHECK(ok);
        free(v);
        free(want);
        kl_release(t);
    }
    CHECK(!strcmp(kl_layer_name(kept), "quantized"));
    kl_params_free(p);
    kl_file_close(f);
}

/* ---- several files ---- */

static void bad_index(const char *text, const char *words)
{
    device_now = words;
    write_text("bad.index.json", text);
    CHECK(!kl_file_open(path_of("bad.index.json")));
    if (!CHECK(strstr(kl_last_error(), words) && strstr(kl_last_error(), "bad.index.json: byte ")))
        printf("  %s\n", kl_last_error());
    kl_clear_error();
    device_now = "any";
}

static void sharded(void)
{
    const kl_file_item first[] = {ARRAY("emb", N, K), ARRAY("x", 3)}, second[] = {ARRAY("w", K, N)};
    write_file("m-1.safetensors", 2, first);
    write_file("m-2.safetensors", 1, second);
    write_text("m.index.json", "{\"metadata\": {\"size\": 1.5e2, \"a\": [1, {}, [], {\"b\": null, \"c\": \"}\"}]},\n"
                               "\"weight_map\": {\"w\": \"m-2.safetensors\", \"emb\": \"m-1.safetensors\"}}\n");
    kl_file *f = kl_file_open(path_of("m.index.json"));
    kl_file_entry e;
    CHECK(f && kl_file_count(f) == 2 && kl_file_format_of(f) == KL_FILE_SAFETENSORS);
    CHECK(kl_file_get(f, 0, &e) == KL_OK && !strcmp(e.name, "w") && e.dims[1] == N && kl_file_find(f, "x") == -1);
    const float *data = kl_file_data(f, "w");
    CHECK(data && data[5] == numbers[5]);
    kl_params *p = kl_params_new(dev, KL_F32, 1);
    kl_tensor w = add(p, "w", KL_F32, DIMS(K, N)), emb = add(p, "emb", KL_F32, DIMS(N, K));
    OK(kl_params_load_file(p, f, NULL));
    CHECK(kl_device_kind_of(dev) > KL_DEVICE_CPU || address_of(w) == data);
    OK(kl_file_write(path_of("joined.gguf"), KL_FILE_GGUF, 1, &(kl_file_item){.name = "w", .file = f}, 0, NULL));
    kl_file_close(f);
    CHECK(holds(w, 0, K * N) && holds(emb, 0, N * K));
    OK(kl_params_load(p, path_of("m.index.json"), NULL));
    kl_params_free(p);
    bad_index("{", "expected '\"'");
    bad_index("{}", "weight_map: neither .npy, .npz, safetensors nor GGUF, and no index");
    bad_index("{\"weight_map\":{}} 1", "something follows");
    bad_index("{\"weight_map\":{},\"weight_map\":{}}", "it is there twice");
    bad_index("{\"weight_map\":{\"w\":1}}", "field w: expected '\"'");
    bad_index("{\"metadata\":[1,{\"a\":2},3", "field metadata: expected ','");
    bad_index("{\"metadata\":[1}", "field metadata: expected ','");
    bad_index("{\"metadata\":}", "field metadata: expected a value");
    bad_index("{\"metadata\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "more than 64 values");
    bad_index("{\"weight_map\":{\"w\":\"../m-2.safetensors\"}}", "field w: '../m-2.safetensors' names no file in");
    bad_index("{\"weight_map\":{\"w\":\"none\"}}", "byte 19, field w: cannot open");
    bad_index("{\"weight_map\":{\"w\":\"m.index.json\"}}", "field w: m.index.json is no safetensors file");
    bad_index("{\"weight_map\":{\"w\":\"m-1.safetensors\"}}", "field w: \"m-1.safetensors\" has no such tensor");
    bad_index("{\"weight_map\":{\"w\":\"m-2.safetensors\",\"w\":\"m-2.safetensors\"}}", "two tensors are called \"w\"");
    static const char text[] = "{\"weight_map\":{\"w\":\"m-2.safetensors\"}}";
    CHECK(!kl_file_open_bytes("in memory", text, sizeof text - 1) && strstr(kl_last_error(), "names other files"));
    write_text("cut.safetensors", "12345678{");
    bad_index("{\"weight_map\":{\"w\":\"cut.safetensors\"}}", "field w: cut.safetensors");
}

/* ---- what does not fit ---- */

static int problems;
static char last_problem[600];
static void note_problem(void *ctx, const char *text)
{
    (void)ctx;
    problems++;
    snprintf(last_problem, sizeof last_problem, "%s", text);
}

static kl_weight_map wrong;
static kl_status map_wrong(void *ctx, const kl_file_entry *e, int64_t part, kl_weight_map *map)
{
    (void)ctx;
    (void)part;
    if (strcmp(e->name, "w"))
        return KL_OK;
    *map = wrong;
    strcpy(map->name, "w");
    return KL_OK;
}

static kl_status map_fails(void *ctx, const kl_file_entry *e, int64_t part, kl_weight_map *map)
{
    (void)ctx, (void)e, (void)part, (void)map;
    return kl_fail(KL_ERR_CHECK, "not this one");
}

static void refused(kl_params *p, const kl_params_load_options *options, kl_status code, const char *words)
{
    kl_status status = kl_params_load(p, path_of("fit.safetensors"), options);
    if (!check_at(status == code && strstr(kl_last_error(), words), __LINE__, words))
        printf("  %d: %s\n", status, kl_last_error());
    kl_clear_error();
}

static void mismatches(void)
{
    const kl_file_item items[] = {ARRAY("w", N, K), ARRAY("b", N), ARRAY("extra", 2), ARRAY("i", 2), ARRAY("other", 3)};
    write_file("fit.safetensors", 5, items);
    kl_params *p = kl_params_new(dev, KL_F32, 1);
    kl_tensor w = add(p, "w", KL_F32, DIMS(K, N));
    add(p, "gone", KL_F32, DIMS(2));
    add(p, "b", KL_F32, DIMS(N));
    add(p, "i", KL_I32, DIMS(2));
    refused(p, NULL, KL_ERR_IO, "fit.safetensors: byte ");
    refused(p, NULL, KL_ERR_IO, "field w: it is f32[6,4] in the file and f32[4,6] as \"w\" here; byte ");
    refused(p, NULL, KL_ERR_IO, "field extra: the tree has no \"extra\"; ");
    refused(p, NULL, KL_ERR_IO, "field i: it is f32[2] in the file and i32[2] as \"i\" here");
    refused(p, NULL, KL_ERR_IO, "the file has nothing for \"gone\"");
    problems = 0;
    kl_params_load_options loose = {.allow_missing = true, .allow_unexpected = true, .problem = note_problem};
    refused(p, &loose, KL_ERR_IO, "field w: it is f32[6,4]");
    CHECK(problems == 2 && strstr(last_problem, "field i: "));
    loose.problem = NULL;
    loose.map = map_wrong;
    static const struct { kl_weight_map map; const char *words; } maps[] = {
        {{.transpose = true, .axis = 2, .length = 1}, "\"w\" is [4,6] and has no 1 elements from 0 on along axis 2"},
        {{.transpose = true, .axis = 1, .start = 3, .length = 4}, "\"w\" is [4,6] and has no 4 elements from 3 on"},
        {{.transpose = true, .axis = 1, .start = -1, .length = 4}, "has no 4 elements from -1 on"},
        {{.transpose = true, .axis = 1, .start = INT64_MAX, .length = INT64_MAX}, "\"w\" is [4,6] and has no"},
        {{.transpose = true, .axis = 1, .length = 4}, "\"w\" gets elements 4 to 6 of axis 1 from nowhere"},
        {{.transpose = true, .axis = 1, .length = 4, .at = 2}, "\"w\" gets elements 0 to 2 of axis 1 from nowhere"},
        {{.transpose = true, .axis = 1, .length = 4, .at = 3}, "it is f32[4,4] in the file and f32[4,6] as \"w\""},
    };
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        wrong = maps[i].map;
        refused(p, &loose, KL_ERR_IO, maps[i].words);
    }
    loose.map = map_fails;
    refused(p, &loose, KL_ERR_CHECK, "not this one");
    CHECK(kl_params_load(p, path_of("nothing"), NULL) == KL_ERR_IO && strstr(kl_last_error(), "cannot open"));
    CHECK(kl_params_load(NULL, "x", NULL) == KL_ERR_ARGUMENT && kl_params_load(p, NULL, NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_params_load_file(p, NULL, NULL) == KL_ERR_ARGUMENT);
    double sevens[K * N];
    for (int i = 0; i < K * N; i++)
        sevens[i] = 7;
    NEAR(kl_mul_scalar(w, 1), K * N, sevens, 0); /* nothing has changed */
    kl_params_free(p);
    p = kl_params_new(dev, KL_F32, 1);
    add(p, "gone", KL_F32, DIMS(2));
    loose.map = NULL;
    refused(p, &loose, KL_ERR_IO, "none of its 5 tensors is in the tree");
    OK(kl_trace_begin("open"));
    CHECK(kl_params_load(p, path_of("fit.safetensors"), &loose) == KL_ERR_TRACE);
    kl_trace_abandon();
    kl_clear_error();
    kl_params_free(p);
    /* many problems: those that a message has no room for are counted, and the function gets all */
    p = kl_params_new(dev, KL_F32, 1);
    for (int i = 0; i < 40; i++) {
        char name[64];
        snprintf(name, sizeof name, "a.parameter.of.a.longer.name.%d", i);
        add(p, name, KL_F32, DIMS(1));
    }
    problems = 0;
    refused(p, &(kl_params_load_options){.problem = note_problem}, KL_ERR_IO, " more");
    CHECK(problems == 45);
    kl_params_free(p);
}

static void test(kl_device device)
{
    dev = device;
    mapped();
    converted();
    quantized();
    sharded();
    mismatches();
}

int main(void)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        numbers[i] = (float)(i * 37 % 101) / 8 - 6;
    if (!mkdtemp(folder))
        return 1;
    int status = on_devices(test);
    char line[300];
    snprintf(line, sizeof line, "rm -r %s", folder);
    return system(line) != 0 || status;
}
