/* Training steps as text: recorded on device ref, dumped while the trace is open, and dropped. */
#define _GNU_SOURCE /* mkstemp */
#include "bench/peers/peers_cases.h"
#include "gpu_step_text.h"
#include <unistd.h>

const char *const gpu_step_names[] = {"mlp-128-adam", "cnn-64-sgd", "gpt-adam", "attention-2048-causal-grad",
                                      "gpt2-124m", NULL};

static char *file_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    long n = f && !fseek(f, 0, SEEK_END) ? ftell(f) : -1;
    char *text = n > 0 ? calloc((size_t)n + 1, 1) : NULL;
    if (text && (fseek(f, 0, SEEK_SET) || fread(text, 1, (size_t)n, f) != (size_t)n)) {
        free(text);
        text = NULL;
    }
    if (f)
        fclose(f);
    return text;
}

char *gpu_captured_text(void)
{
    char path[] = "/tmp/kiln-step-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0)
        return NULL;
    close(fd);
    char *text = kl_dump(NULL, "captured", path) == KL_OK ? file_text(path) : NULL;
    unlink(path);
    return text;
}

static char *captured(struct peer_run *r, bool half)
{
    kl_trace_begin("step");
    if (half)
        kl_autocast_begin(KL_BF16);
    peer_record(r);
    if (half)
        kl_autocast_end();
    char *text = gpu_captured_text();
    kl_trace_abandon();
    return text;
}

char *gpu_step_text(const char *name, bool half)
{
    static struct peer_run r;
    char *text = strcmp(name, "gpt2-124m") ? NULL : gpu_gpt2_text(half);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, name))
            continue;
        if (peer_run_open(&r, kl_device_named("ref"), &cases[i]))
            text = captured(&r, half);
        peer_run_close(&r);
    }
    return text;
}
