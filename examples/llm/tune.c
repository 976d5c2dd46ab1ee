/* Fine-tuning a language model on a text by adapters of low rank: see llm.h. */
#include "llm.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The tokens of a file of text; *n of them, which the caller frees.  NULL: it failed. */
static int32_t *read_tokens(const char *model, const char *path, int64_t *n)
{
    char file[4096];
    struct stat s;
    bool folder = stat(model, &s) == 0 && S_ISDIR(s.st_mode);
    snprintf(file, sizeof file, "%s%s", model, folder ? "/tokenizer.json" : "");
    kl_tokenizer *t = kl_tokenizer_open(file, NULL);
    FILE *f = fopen(path, "rb");
    int64_t bytes = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    char *text = bytes > 0 ? malloc((size_t)bytes) : NULL;
    int32_t *ids = NULL;
    if (!t) {
        llm_fail("no tokenizer", kl_last_error());
    } else if (!text || fseek(f, 0, SEEK_SET) || fread(text, 1, (size_t)bytes, f) != (size_t)bytes) {
        llm_fail(path, "missing or empty");
    } else if (kl_tokenizer_encode_with(t, text, bytes, NULL, NULL, 0, n) != KL_OK ||
               !(ids = malloc((size_t)*n * sizeof *ids)) ||
               kl_tokenizer_encode_with(t, text, bytes, NULL, ids, *n, n) != KL_OK) {
        llm_fail(path, ids ? kl_last_error() : "out of memory");
        free(ids);
        ids = NULL;
    }
    if (f)
        fclose(f);
    free(text);
    kl_tokenizer_close(t);
    return ids;
}

/* One step on `length` + 1 tokens; false: see kl_last_error. */
static bool tune_step(const struct llm *m, kl_optimizer *adam, const int32_t *tokens, int64_t length, double rate,
                      double *loss)
{
    kl_trace_begin("tune");
    kl_tensor ids = kl_input(m->device, KL_I32, 2, (int64_t[]){1, length + 1}, tokens);
    kl_tensor next = kl_reshape(kl_narrow(ids, 1, 1, length), 1, &length);
    kl_tensor logits = llm_logits(m, llm_hidden(m, kl_narrow(ids, 1, 0, length), NULL));
    kl_tensor mean = kl_keep(kl_cross_entropy(kl_squeeze(logits, 0), next));
    kl_optimizer_step(adam, mean, rate);
    if (kl_trace_end() != KL_OK)
        return false;
    *loss = (double)kl_item_f32(mean);
    return kl_release(mean) == KL_OK;
}

bool llm_write_adapters(const kl_params *params, const char *path)
{
    int64_t n = kl_params_count(params);
    kl_file_item *items = calloc((size_t)n, sizeof *items);
    bool ok = items;
    for (int64_t i = 0; ok && i < n; i++) {
        kl_param p;
        ok = kl_params_get(params, i, &p) == KL_OK;
        items[i] = (kl_file_item){.name = p.name, .tensor = p.tensor};
    }
    ok = ok && kl_file_write(path, KL_FILE_SAFETENSORS, n, items, 0, NULL) == KL_OK;
    free(items);
    return ok || llm_fail(path, kl_last_error());
}

kl_params *llm_read_adapters(struct llm *m, const char *path)
{
    kl_file *f = kl_file_open(path);
    kl_file_entry e = {0};
    int64_t i = f ? kl_file_find(f, "blk.0.attn_q.down") : -1;
    bool ok = i >= 0 && kl_file_get(f, i, &e) == KL_OK && e.rank == 2;
    if (!ok)
        llm_fail(path, f ? "not a file of adapters" : kl_last_error());
    kl_params *params = ok ? llm_adapt(m, e.dims[1], 0) : NULL;
    if (params && kl_params_load_file(params, f, NULL) != KL_OK)
        llm_fail(path, kl_last_error()); /* those that there are now add nothing */
    kl_file_close(f);
    return params;
}

bool llm_tune(const char *model, const char *text, const struct llm_tune_options *o)
{
    struct llm m = {0};
    int64_t n = 0, trained = 0, length = (int64_t)o->length;
    int32_t *ids = read_tokens(model, text, &n);
    bool ok = ids && (n > length || llm_fail(text, "fewer tokens than --length")) &&
              llm_open(&m, kl_device_default(), model, false);
    kl_params *params = ok ? llm_adapt(&m, (int64_t)o->rank, (uint64_t)o->seed) : NULL;
    const kl_tensor *list = params ? kl_params_trained(params, &trained) : NULL;
    kl_optimizer *adam = list ? kl_adam(trained, list, NULL) : NULL;
    int steps = (int)o->steps;
    ok = adam;
    if (ok)
        printf("%" PRId64 " tokens, %" PRId64 " trained numbers\n", n, kl_params_elements(params, "*"));
    for (int i = 0; i < steps && ok; i++) {
        double loss = 0;
        int64_t at = n - length - 1 > 0 ? (int64_t)i * length % (n - length) : 0;
        ok = tune_step(&m, adam, ids + at, length, o->rate * kl_rate_linear(i, steps, 1, 0.1), &loss) ||
             llm_fail("tuning", kl_last_error());
        if (ok && (i == 0 || i + 1 == steps || i % 10 == 9))
            printf("step %d: loss %.4f\n", i + 1, loss), fflush(stdout);
    }
    ok = ok && (!o->write || llm_write_adapters(params, o->write));
    kl_optimizer_free(adam);
    llm_close(&m);
    kl_params_free(params);
    free(ids);
    return ok;
}
