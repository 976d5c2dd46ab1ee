/* A Llama of 1.24 billion random parameters (the shape of Llama 3.2 1B) beside llama.cpp, in alternation, on one and on
 * two threads: a prompt of 256 tokens, one token more behind it, and one token of each of 16 sequences at once, with
 * weights of each type, and activations of 8 bits beside those of blocks.  A row's baseline is llama.cpp, its ratio
 * that one's time over Kiln's; its limit is the time in which one thread reads the weights' bytes from the mapped
 * file.  Then, for the cases start-TYPE, what a new process takes from opening the file to the first token, with the
 * steps of a prompt and of a token compiled, or found in the cache of kernels.
 *
 * It writes its models, GGUF files, into the folder that KILN_TEST_LLM names (6 GB).  llama.cpp runs in a process of
 * its own, by the Python that KILN_TEST_PYTHON names (llm_turns.py); `./run bench llm` installs it into
 * build/llamacpp. */
#define _GNU_SOURCE
#include "bench/bench.h"
#include "bench/peers/peer.h"
#include "examples/llm/llm.h"
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROMPT = 256, TOKENS = 16, SEQUENCES = 16, BEFORE = 32, ROUNDS = 5 };
enum work { TOKEN, WHOLE_PROMPT, BATCH, WORKS }; /* BATCH: behind BEFORE tokens of each sequence */
static const char *const works[WORKS] = {"token", "prompt", "batch"};

struct llama_shape { int64_t layers, width, heads, kv_heads, hidden, vocabulary; };
static const struct llama_shape large = {16, 2048, 32, 8, 8192, 128256}, small = {2, 256, 4, 2, 512, 512};
static const char *const types[] = {"F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"};

/* ---- the models ---- */

struct weight { const char *name; int64_t rows, columns; };

/* The tensors of one layer, and of the model; rows 0: a vector. */
enum { IN_LAYER = 9, WEIGHTS = 12 };
static void shape_weights(const struct llama_shape *s, struct weight w[WEIGHTS])
{
    int64_t kv = s->width / s->heads * s->kv_heads;
    const struct weight all[WEIGHTS] = {
        {"attn_norm.weight", 0, s->width}, {"ffn_norm.weight", 0, s->width}, {"attn_q.weight", s->width, s->width},
        {"attn_k.weight", kv, s->width}, {"attn_v.weight", kv, s->width}, {"attn_output.weight", s->width, s->width},
        {"ffn_gate.weight", s->hidden, s->width}, {"ffn_up.weight", s->hidden, s->width},
        {"ffn_down.weight", s->width, s->hidden}, {"output_norm.weight", 0, s->width},
        {"token_embd.weight", s->vocabulary, s->width}, {"output.weight", s->vocabulary, s->width}};
    memcpy(w, all, sizeof all);
}

static float *random_floats(int64_t n, double mean, double spread)
{
    float *x = malloc((size_t)n * sizeof *x);
    uint32_t state = 12345;
    for (int64_t i = 0; x && i < n; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++)
            sum += (double)(int32_t)(state = state * 1664525 + 1013904223) / 2147483648.0;
        x[i] = (float)(mean + spread * sum);
    }
    return x;
}

/* One layer and the model's own tensors, quantized; all layers of the model have these elements. */
static bool write_parts(const struct llama_shape *s, const char *type, const char *path)
{
    struct weight w[WEIGHTS];
    kl_file_item items[WEIGHTS];
    int64_t dims[WEIGHTS][2];
    float *data[WEIGHTS] = {0};
    bool ok = true;
    shape_weights(s, w);
    for (int i = 0; i < WEIGHTS; i++) {
        int64_t n = (w[i].rows ? w[i].rows : 1) * w[i].columns;
        data[i] = random_floats(n, w[i].rows ? 0 : 1, w[i].rows ? 0.8 / sqrt((double)w[i].columns) : 0.1);
        ok = ok && data[i];
        dims[i][0] = w[i].rows ? w[i].rows : w[i].columns, dims[i][1] = w[i].columns;
        items[i] = (kl_file_item){.name = w[i].name, .dtype = KL_F32, .rank = w[i].rows ? 2 : 1, .dims = dims[i],
                                  .data = data[i], .type = w[i].rows ? type : NULL};
    }
    ok = ok && kl_file_write_with(path, KL_FILE_GGUF, WEIGHTS, items, NULL) == KL_OK;
    for (int i = 0; i < WEIGHTS; i++)
        free(data[i]);
    return ok;
}

static bool write_model(const struct llama_shape *s, const char *type, const char *parts, const char *path)
{
    struct weight w[WEIGHTS];
    int64_t n = 0, count = s->layers * IN_LAYER + WEIGHTS - IN_LAYER;
    double numbers[] = {(double)s->layers, (double)s->width, (double)s->heads, (double)s->kv_heads, (double)s->hidden,
                        PROMPT * 2, (double)s->vocabulary, (double)(s->width / s->heads)};
    static const char *const keys[] = {"llama.block_count", "llama.embedding_length", "llama.attention.head_count",
                                       "llama.attention.head_count_kv", "llama.feed_forward_length",
                                       "llama.context_length", "llama.vocab_size", "llama.rope.dimension_count"};
    enum { KEYS = sizeof keys / sizeof *keys };
    uint32_t values[KEYS];
    float eps = 1e-5F;
    kl_file_value meta[KEYS + 3] = {{.key = "general.architecture", .text = "llama"},
                                    {.key = "tokenizer.ggml.model", .text = "no_vocab"},
                                    {.key = "llama.attention.layer_norm_rms_epsilon", .dtype = KL_F32, .data = &eps}};
    for (int i = 0; i < KEYS; i++) {
        values[i] = (uint32_t)numbers[i];
        meta[i + 3] = (kl_file_value){.key = keys[i], .dtype = KL_U32, .data = &values[i]};
    }
    kl_file *from = write_parts(s, type, parts) ? kl_file_open(parts) : NULL;
    kl_file_item *items = calloc((size_t)count, sizeof *items);
    char (*names)[64] = calloc((size_t)count, sizeof *names);
    shape_weights(s, w);
    for (int64_t layer = 0; items && names && layer < s->layers; layer++)
        for (int i = 0; i < IN_LAYER; i++, n++) {
            snprintf(names[n], sizeof names[n], "blk.%d.%s", (int)layer, w[i].name);
            items[n] = (kl_file_item){.name = names[n], .file = from, .from = w[i].name};
        }
    for (int i = IN_LAYER; items && i < WEIGHTS; i++)
        items[n++] = (kl_file_item){.name = w[i].name, .file = from};
    kl_file_write_options options = {.nmeta = KEYS + 3, .meta = meta};
    bool ok = from && items && names && kl_file_write_with(path, KL_FILE_GGUF, count, items, &options) == KL_OK;
    kl_file_close(from);
    unlink(parts);
    free(items), free(names);
    return ok;
}

/* Writes the model of a type unless it is there, and gives its path. */
static bool model_path(const struct bench *b, const char *type, char path[512])
{
    const char *folder = getenv("KILN_TEST_LLM");
    char parts[512];
    struct stat st;
    snprintf(path, 512, "%s/llama-%s-%s.gguf", folder ? folder : "/tmp", b->smoke ? "small" : "1.2b", type);
    snprintf(parts, sizeof parts, "%.500s.parts", path);
    if (stat(path, &st) == 0)
        return true;
    fprintf(stderr, "bench_llm: writing %s ...\n", path);
    return write_model(b->smoke ? &small : &large, type, parts, path);
}

/* ---- Kiln ---- */

struct run {
    struct llm m;
    kl_nn_cache cache[2];     /* of one sequence, of SEQUENCES */
    kl_step *step[WORKS];
    int32_t ids[PROMPT];
};

static kl_nn_cache *cache_of(struct run *r, enum work w) { return &r->cache[w == BATCH]; }
static int64_t tokens_at_once(enum work w) { return w == WHOLE_PROMPT ? PROMPT : 1; }

/* The step of n tokens of each sequence: their ids, i32 [B, n], give the most likely next ones. */
static kl_step *record_step(struct run *r, enum work w)
{
    int64_t dims[2] = {cache_of(r, w)->batch, tokens_at_once(w)};
    kl_trace_begin(works[w]);
    kl_tensor ids = kl_input(r->m.device, KL_I32, 2, dims, r->ids);
    kl_tensor hidden = llm_hidden(&r->m, ids, cache_of(r, w));
    kl_keep(kl_argmax(llm_logits(&r->m, kl_narrow(hidden, 1, dims[1] - 1, 1)), -1));
    kl_step *step = kl_trace_end_step(1, &ids);
    memset(cache_of(r, w)->at, 0, (size_t)dims[0] * sizeof *cache_of(r, w)->at); /* it has not run */
    return step;
}

static bool run_step(struct run *r, enum work w)
{
    kl_nn_cache *cache = cache_of(r, w);
    int64_t dims[2] = {cache->batch, tokens_at_once(w)}, counts[SEQUENCES];
    int32_t next[SEQUENCES];
    for (int i = 0; i < SEQUENCES; i++)
        counts[i] = dims[1];
    kl_tensor y, in = kl_input(r->m.device, KL_I32, 2, dims, r->ids);
    bool ok = kl_nn_cache_count(cache, dims[0], NULL, counts) == KL_OK &&
              kl_step_run(r->step[w], 1, &in, 0, NULL, 1, &y) == KL_OK;
    kl_release(in);
    if (!ok)
        return false;
    ok = kl_read(y, next, (size_t)dims[0] * sizeof *next) == KL_OK && next[0] >= 0;
    kl_release(y);
    return ok;
}

/* The sequences have their first n tokens only. */
static bool go_back(struct run *r, enum work w, int64_t n)
{
    kl_nn_cache *cache = cache_of(r, w);
    bool ok = true;
    for (int64_t row = 0; row < cache->batch; row++)
        ok = ok && kl_nn_cache_truncate(cache, row, n) == KL_OK;
    return ok;
}

static void run_close(struct run *r)
{
    for (int w = 0; w < WORKS; w++)
        kl_step_free(r->step[w]);
    kl_nn_cache_deinit(&r->cache[0]), kl_nn_cache_deinit(&r->cache[1]);
    llm_close(&r->m);
}

/* With a cache of one sequence. */
static bool open_model(struct run *r, kl_device device, const char *path)
{
    *r = (struct run){0};
    if (!llm_open(&r->m, device, path, true))
        return false;
    for (int i = 0; i < PROMPT; i++)
        r->ids[i] = (int32_t)((i * 7919 + 13) % r->m.vocabulary);
    return llm_cache_init(&r->cache[0], &r->m, 1, PROMPT + TOKENS, "f16");
}

static bool run_open(struct run *r, kl_device device, const char *path)
{
    bool ok = open_model(r, device, path) &&
              llm_cache_init(&r->cache[1], &r->m, SEQUENCES, BEFORE + TOKENS, "f16");
    for (int w = 0; w < WORKS && ok; w++)
        ok = (r->step[w] = record_step(r, w)) != NULL;
    ok = ok && run_step(r, WHOLE_PROMPT) && run_step(r, TOKEN);
    for (int i = 0; i < BEFORE && ok; i++)
        ok = run_step(r, BATCH);
    return ok;
}

/* Seconds of a prompt, of a token, or of a token of each sequence. */
static double kiln_turn(struct run *r, enum work w)
{
    int n = w == WHOLE_PROMPT ? 1 : TOKENS;
    bool ok = go_back(r, w, w == WHOLE_PROMPT ? 0 : w == TOKEN ? PROMPT : BEFORE);
    double start = measure_now();
    for (int i = 0; i < n; i++)
        ok = ok && run_step(r, w);
    return ok ? (measure_now() - start) / n : -1;
}

/* ---- rows ---- */

static void start_llamacpp(struct peer *p, int threads)
{
    const char *python = getenv("KILN_TEST_PYTHON"), *script = getenv("KILN_TEST_LLM_TURNS");
    *p = (struct peer){.why = "llama.cpp is not installed"};
    if (python && script)
        peer_start(p, threads, NULL, (char *[]){(char *)python, (char *)script, NULL});
}

/* Bytes of all weights that a token reads. */
static double weight_bytes(const struct llm *m)
{
    double bytes = 0;
    kl_file_entry e;
    for (int64_t i = 0; i < kl_file_count(m->file[0]); i++)
        if (kl_file_get(m->file[0], (uint32_t)i, &e) == KL_OK && strcmp(e.name, "token_embd.weight") != 0)
            bytes += (double)e.bytes;
    return bytes;
}

/* A file mapped to be read, and how many floats its bytes would make. */
struct mapped { const float *data; size_t floats; };

static bool map_file(struct mapped *m, const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *data = fd >= 0 && fstat(fd, &st) == 0 ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0)
                                                : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    *m = (struct mapped){0};
    if (data == MAP_FAILED)
        return false;
    *m = (struct mapped){data, (size_t)st.st_size / sizeof(float)};
    return true;
}

static void unmap_file(struct mapped *m)
{
    if (m->data)
        munmap((void *)m->data, m->floats * sizeof(float));
    *m = (struct mapped){0};
}

/* Seconds that one thread takes to read `bytes` of the file, whatever they mean as floats. */
static double read_time(const struct mapped *m, double bytes)
{
    double start = measure_now();
    volatile float sink = limit_sum(m->data, 0, m->floats);
    (void)sink;
    return (measure_now() - start) * bytes / ((double)m->floats * sizeof(float));
}

/* What measures a type: a model, llama.cpp, and the file for the speed of reading it. */
struct measured { struct run r; struct peer p; struct mapped file; const char *type, *path; int threads; };

static bool measure_work(struct bench *b, struct measured *m, enum work w)
{
    char name[64], line[64];
    struct samples own = {0}, peer = {0}, limit = {0};
    double ratios[ROUNDS];
    int n = 0, rounds = bench_rounds(b, ROUNDS);
    for (int i = 0; i < rounds; i++) {
        double took = kiln_turn(&m->r, w), other = -1;
        if (took <= 0)
            return false;
        samples_add(&own, took);
        samples_add(&limit, read_time(&m->file, weight_bytes(&m->r.m)));
        if (peer_ask(&m->p, line, sizeof line, "%d %s %d %s", m->threads, works[w],
                     w == WHOLE_PROMPT ? PROMPT : TOKENS, m->path))
            other = strtod(line, NULL);
        if (other > 0) {
            samples_add(&peer, other);
            ratios[n++] = other / took;
        }
    }
    snprintf(name, sizeof name, "%s-%s", works[w], m->type);
    double least = w == WHOLE_PROMPT ? 0 : samples_median(&limit) * 1e6;
    struct result *row = bench_add(b, name, "kiln", m->threads, &own, "us", 0, least);
    if (n) {
        bench_baseline(row, "llama.cpp", measure_quantile(ratios, n, 0.5));
        bench_add(b, name, "llama.cpp", m->threads, &peer, "us", 0, 0);
    } else {
        bench_missing(b, name, "llama.cpp", m->threads, m->p.why);
    }
    return true;
}

/* Measures a type, and prints its rows as soon as they are there: all take 20 minutes. */
static bool measure_type(struct bench *b, kl_device device, const char *type, int threads)
{
    char path[512];
    struct measured m = {.type = type, .path = path, .threads = threads};
    if (!model_path(b, type, path) || !map_file(&m.file, path))
        return false;
    read_time(&m.file, 1); /* its pages, mapped */
    bool ok = run_open(&m.r, device, path);
    start_llamacpp(&m.p, threads);
    for (int w = 0; w < WORKS && ok; w++) {
        uint32_t before = b->results.n;
        ok = measure_work(b, &m, (enum work)w);
        struct results made = {.row = b->results.row + before, .n = b->results.n - before};
        results_table(&made, stderr);
    }
    peer_end(&m.p);
    run_close(&m.r);
    unmap_file(&m.file);
    return ok;
}

/* ---- the start of a process ---- */

/* In a process of its own: for a line of its input, opens the model, records the steps of a prompt and of a token and
 * computes a token.  Prints the seconds, and its resident bytes less those of the file. */
static int start_here(const char *path, int threads)
{
    char line[8];
    struct run r;
    struct rusage use;
    struct stat file;
    kl_set_option("threads", threads);
    if (!fgets(line, sizeof line, stdin) || stat(path, &file))
        return 1;
    double start = measure_now();
    if (!open_model(&r, kl_device_cpu(), path) || !(r.step[WHOLE_PROMPT] = record_step(&r, WHOLE_PROMPT)) ||
        !(r.step[TOKEN] = record_step(&r, TOKEN)) || !run_step(&r, TOKEN))
        return 1;
    double took = measure_now() - start;
    getrusage(RUSAGE_SELF, &use);
    printf("%.9f %.0f\n", took, (double)use.ru_maxrss * 1024 - (double)file.st_size);
    fflush(stdout);
    run_close(&r);
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

/* The first process finds an empty folder of kernels, those after it a full one.  The file is read once before, so
 * that none waits for the disk. */
static bool measure_start(struct bench *b, const char *name, const char *type, int threads)
{
    char folder[] = "/tmp/kiln-bench-llm-XXXXXX", path[512], self[512], count[12], line[64];
    struct samples cold = {0}, warm = {0};
    struct mapped file;
    double most[2] = {0}; /* with the empty folder, with the full one */
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0 || !model_path(b, type, path) || !map_file(&file, path) || !mkdtemp(folder))
        return false;
    read_time(&file, 1);
    unmap_file(&file);
    self[n] = 0;
    snprintf(count, sizeof count, "%d", threads);
    setenv("KILN_CACHE_DIR", folder, 1);
    bool ok = true;
    for (int i = 0, rounds = 1 + bench_rounds(b, ROUNDS); i < rounds && ok; i++) {
        struct peer p;
        peer_start(&p, threads, NULL, (char *[]){self, "--start", path, count, NULL});
        char *end = line;
        double took = peer_ask(&p, line, sizeof line, "go") ? strtod(line, &end) : -1, bytes = strtod(end, NULL);
        peer_end(&p);
        ok = took > 0;
        samples_add(i ? &warm : &cold, took);
        most[i > 0] = bytes > most[i > 0] ? bytes : most[i > 0];
    }
    unsetenv("KILN_CACHE_DIR");
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (!ok)
        return false;
    bench_add(b, name, "cold", threads, &cold, "us", 0, 3e6);
    bench_add(b, name, "warm", threads, &warm, "us", 0, 1e6);
    fprintf(stderr, "bench_llm: %s on %d threads: at most %.0f MB resident beside those of the file when kernels are "
            "compiled, %.0f MB when they are found in the cache\n", name, threads, most[0] / 1e6, most[1] / 1e6);
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (argc == 4 && !strcmp(argv[1], "--start"))
        return start_here(argv[2], atoi(argv[3]));
    if (!bench_open(&b, "llm", argc, argv))
        return b.status;
    kl_device device = bench_device(&b);
    for (int threads = 1; threads <= 2; threads++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            if (!bench_wants(&b, types[i]))
                continue;
            kl_set_option("threads", threads);
            if (!measure_type(&b, device, types[i], threads))
                return bench_fail(&b, types[i]);
        }
    for (int threads = 1; threads <= 2; threads++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            char name[64];
            snprintf(name, sizeof name, "start-%s", types[i]);
            if (bench_wants(&b, name) && !measure_start(&b, name, types[i], threads))
                return bench_fail(&b, name);
        }
    return bench_close(&b);
}
