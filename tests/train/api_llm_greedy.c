/* Greedy decoding of 64 tokens by examples/llm and by llama.cpp: the same tokens, of tiny random models of several
 * architectures with weights of f32; with blocks of 8 bits tokens that are nearly as likely.
 *
 *   api_llm_greedy PYTHON      a Python that has llama_cpp; without it nothing is compared */
#define _POSIX_C_SOURCE 200809L
#include "examples/llm/llm.h"
#include "llm_gguf.h"
#include <unistd.h>

enum { MORE = 64 };
static const int32_t prompt[TOKENS] = {3, 79, 14, 15, 0, 26, 53, 58, 9, 3, 23, 44};
static const char *python, *script = "tests/train/llama_greedy.py";

static bool has_llama_cpp(void)
{
    char line[400];
    snprintf(line, sizeof line, "'%.300s' -c 'import llama_cpp' 2>/dev/null", python);
    return system(line) == 0;
}

/* Runs n tokens, and gives the logits behind them; the most likely token. */
static int32_t next_token(const struct llm *m, kl_nn_cache *cache, const int32_t *tokens, int n, float logits[WORDS])
{
    int32_t best = 0;
    kl_trace_begin("next");
    kl_tensor hidden = llm_hidden(m, kl_input(m->device, KL_I32, DIMS(1, n), tokens), cache);
    kl_tensor y = kl_keep(llm_logits(m, kl_narrow(hidden, 1, n - 1, 1)));
    if (OK(kl_trace_end()) && OK(kl_read(y, logits, WORDS * sizeof *logits)))
        for (int i = 1; i < WORDS; i++)
            best = logits[i] > logits[best] ? i : best;
    kl_release(y);
    return best;
}

/* Goes on with llama.cpp's tokens.  near: how much less likely than ours they may be. */
static void follow(const struct llm *m, FILE *theirs, const char *type, double near)
{
    kl_nn_cache cache;
    float logits[WORDS] = {0};
    int32_t in[TOKENS];
    int want = 0, i = 0;
    char line[100];
    memcpy(in, prompt, sizeof in);
    bool same = CHECK(llm_cache_init(&cache, m, 1, TOKENS + MORE, NULL));
    for (int n = TOKENS; i < MORE && same; i++, n = 1) {
        int32_t token = next_token(m, &cache, in, n, logits);
        same = fscanf(theirs, "%d", &want) == 1 && want >= 0 && want < WORDS &&
               (double)(logits[token] - logits[want]) <= near;
        snprintf(line, sizeof line, "%s, token %d: %d, not %d", type, i, (int)token, want);
        in[0] = want;
    }
    check_at(same, __LINE__, line);
    kl_nn_cache_deinit(&cache);
}

static void compare(const struct llm_kind *kind, const char *architecture, const char *type, double near)
{
    char line[600];
    struct llm_reference r;
    struct llm m;
    struct llm_kind k = *kind;
    k.interleaved = k.frequencies = !strcmp(architecture, "llama");
    k.window = k.interleaved ? 0 : k.window;
    reference_init(&r, &k, 99);
    snprintf(line, sizeof line, "'%.300s' %s %s %d", python, script, path_of("model.gguf"), MORE);
    for (int i = 0; i < TOKENS; i++)
        snprintf(line + strlen(line), sizeof line - strlen(line), " %d", (int)prompt[i]);
    FILE *f = write_gguf(&r, architecture, type) ? popen(line, "r") : NULL;
    if (CHECK(f) && CHECK(llm_open(&m, kl_device_default(), path_of("model.gguf"), true))) {
        follow(&m, f, type, near);
        llm_close(&m);
    }
    if (f)
        CHECK(pclose(f) == 0);
    reference_free(&r);
}

int main(int argc, char **argv)
{
    /* not qwen2: llama.cpp has none with heads of these sizes */
    static const char *const gguf[] = {"llama", NULL, NULL, "qwen3", "gemma2", "gemma3"};
    python = argc > 1 ? argv[1] : "python3";
    if (!has_llama_cpp()) {
        printf("SKIP no-tool llama.cpp: %s has no module llama_cpp\n0 passed, 0 failed, 1 skipped\n", python);
        return 0;
    }
    snprintf(folder, sizeof folder, "/tmp/kiln-greedy-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    for (size_t i = 0; i < sizeof gguf / sizeof *gguf; i++) {
        device_now = kinds[i].name;
        if (gguf[i]) { /* llama.cpp keeps scales of activations as f16 */
            compare(&kinds[i], gguf[i], "F32", 0);
            compare(&kinds[i], gguf[i], "Q8_0", 0.1);
        }
    }
    unlink(path_of("model.gguf"));
    rmdir(folder);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
