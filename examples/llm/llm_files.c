/* Opening a language model's files: see llm.h. */
#define _POSIX_C_SOURCE 200809L
#include "llm.h"
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- numbers: of GGUF's metadata, or of a folder's config.json ---- */

/* The text behind the first `"key":` of config.json, or NULL. */
static const char *config_value(const struct llm *m, const char *key)
{
    size_t n = strlen(key);
    for (const char *at = m->config; (at = strchr(at, '"')); at++)
        if (!strncmp(at + 1, key, n) && at[n + 1] == '"') {
            at += n + 2 + strspn(at + n + 2, " \t\r\n");
            if (*at == ':')
                return at + 1 + strspn(at + 1, " \t\r\n");
        }
    return NULL;
}

/* A number of the model, in GGUF of the key "architecture.gguf"; of a key with one for each layer the first.  missing:
 * its value where there is no such key. */
static double number_or(const struct llm *m, const char *gguf, const char *config, double missing)
{
    double value = NAN;
    if (m->config) {
        const char *text = config ? config_value(m, config) : NULL;
        char *end;
        value = text ? strtod(text, &end) : NAN;
        return text && end != text ? value : missing;
    }
    char key[128];
    snprintf(key, sizeof key, "%s.%s", m->architecture, gguf);
    int64_t i = kl_file_meta_find(m->file[0], key);
    value = i < 0 ? NAN : kl_file_meta_f64(m->file[0], (uint32_t)i, 0);
    return isnan(value) ? missing : value;
}

/* A count from 1 on. */
static bool count(const struct llm *m, const char *gguf, const char *config, double missing, int64_t *value)
{
    double number = number_or(m, gguf, config, missing);
    *value = number >= 1 && number <= INT32_MAX ? (int64_t)number : 0;
    if (*value)
        return true;
    fprintf(stderr, "the model's %s is missing or not a number from 1 to 2^31 - 1\n", m->config ? config : gguf);
    return false;
}

enum trait { INTERLEAVED = 1, GEMMA = 2, WINDOWS = 4};
static const struct { const char *name; unsigned traits; int local_of; } architectures[] = {
    {"llama", INTERLEAVED, 0}, {"mistral", WINDOWS, 0}, {"qwen2", 0, 0}, {"qwen3", 0, 0},
    {"gemma2", GEMMA | WINDOWS, 2}, {"gemma3", GEMMA | WINDOWS, 6}, {"gemma3_text", GEMMA | WINDOWS, 6}};
enum { ARCHITECTURES = sizeof architectures / sizeof *architectures };

static bool read_architecture(struct llm *m, unsigned *traits)
{
    const char *name = m->config ? config_value(m, "model_type") : NULL;
    if (m->config && name) {
        snprintf(m->architecture, sizeof m->architecture, "%.*s", (int)strcspn(name + 1, "\""), name + 1);
    } else if (!m->config) {
        int64_t i = kl_file_meta_find(m->file[0], "general.architecture");
        name = i < 0 ? NULL : kl_file_meta_text(m->file[0], (uint32_t)i, 0);
        snprintf(m->architecture, sizeof m->architecture, "%s", name ? name : "");
    }
    for (int a = 0; a < ARCHITECTURES; a++)
        if (!strcmp(m->architecture, architectures[a].name)) {
            *traits = architectures[a].traits & ~(m->config ? (unsigned)INTERLEAVED : 0U);
            m->local_of = architectures[a].local_of;
            return true;
        }
    return llm_fail(*m->architecture ? m->architecture : "a model without a name of its architecture",
                    "not one of llama, mistral, qwen2, qwen3, gemma2, gemma3");
}

static bool read_numbers(struct llm *m)
{
    unsigned traits = 0;
    if (!read_architecture(m, &traits))
        return false;
    bool gemma = traits & GEMMA;
    m->gelu = gemma, m->interleaved = traits & INTERLEAVED;
    if (!count(m, "block_count", "num_hidden_layers", 0, &m->layers) ||
        !count(m, "embedding_length", "hidden_size", 0, &m->width) ||
        !count(m, "attention.head_count", "num_attention_heads", 0, &m->heads) ||
        !count(m, "attention.head_count_kv", "num_key_value_heads", (double)m->heads, &m->kv_heads) ||
        !count(m, "attention.key_length", "head_dim", floor((double)m->width / (double)m->heads), &m->head_width) ||
        !count(m, "feed_forward_length", "intermediate_size", 0, &m->hidden) ||
        !count(m, "context_length", "max_position_embeddings", 2048, &m->context) ||
        !count(m, "rope.dimension_count", NULL, (double)m->head_width, &m->rotated))
        return false;
    if (m->heads % m->kv_heads || m->rotated > m->head_width || m->rotated % 2)
        return llm_fail(m->architecture, "its heads do not share keys evenly, or positions rotate no part of a head");
    m->eps = number_or(m, "attention.layer_norm_rms_epsilon", "rms_norm_eps", 1e-6);
    m->embedding_scale = gemma ? sqrt((double)m->width) : 1;
    double scaled = number_or(m, "attention.query_pre_attn_scalar", "query_pre_attn_scalar", (double)m->head_width);
    if (!m->config && gemma && m->layers == (m->local_of == 2 ? 46 : 62)) /* the 27b models: GGUF does not say it */
        scaled = (double)m->width / (double)m->heads;
    m->score_scale = 1 / sqrt(scaled);
    m->score_cap = number_or(m, "attn_logit_softcapping", "attn_logit_softcapping", 0);
    m->logit_cap = number_or(m, "final_logit_softcapping", "final_logit_softcapping", 0);
    m->window = traits & WINDOWS ? (int64_t)number_or(m, "attention.sliding_window", "sliding_window", 0) : 0;
    m->norms_from_zero = m->config && gemma;
    return true;
}

/* ---- weights ---- */

/* GGUF's names of a layer's tensors, and those of safetensors. */
static const char *const names[][2] = {
    {"attn_norm", "input_layernorm"}, {"attn_q", "self_attn.q_proj"}, {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"}, {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_gate", "mlp.gate_proj"}, {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}, {"ffn_norm", "post_attention_layernorm"},
    {"post_attention_norm", NULL}, {"post_ffw_norm", "post_feedforward_layernorm"}};
/* Gemma has one norm more, so that two names of safetensors mean others. */
static const char *const gemma_names[][2] = {
    {"ffn_norm", "pre_feedforward_layernorm"}, {"post_attention_norm", "post_attention_layernorm"}};

static const char *layer_name(const struct llm *m, const char *gguf)
{
    for (size_t i = 0; m->norms_from_zero && i < sizeof gemma_names / sizeof *gemma_names; i++)
        if (!strcmp(gguf, gemma_names[i][0]))
            return gemma_names[i][1];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(gguf, names[i][0]))
            return names[i][1];
    return NULL;
}

/* A tensor of the shape [rows, columns], or [columns] with rows 0.  name NULL: there is none in files of this kind.
 * Where it is optional and missing, kl_none. */
static bool read_tensor(struct llm *m, kl_tensor *t, bool optional, int64_t rows, int64_t columns, const char *name)
{
    kl_file_entry e;
    kl_file *file = NULL;
    int64_t i = -1;
    for (int k = 0; name && k < m->files && i < 0; k++)
        if ((i = kl_file_find(m->file[k], name)) >= 0)
            file = m->file[k];
    *t = kl_none;
    if (i < 0)
        return optional || llm_fail(name ? name : "a weight", "the model has no tensor of this name");
    if (kl_file_get(file, (uint32_t)i, &e) != KL_OK)
        return llm_fail(name, kl_last_error());
    if (e.rank != (rows ? 2 : 1) || e.dims[e.rank - 1] != columns || (rows && e.dims[0] != rows)) {
        fprintf(stderr, "%s: its shape is [", name);
        for (int k = 0; k < e.rank; k++)
            fprintf(stderr, "%s%" PRId64, k ? "," : "", e.dims[k]);
        fprintf(stderr, rows ? "], not [%" PRId64 ",%" PRId64 "]\n" : "], not [%" PRId64 "]\n", rows ? rows : columns,
                columns);
        return false;
    }
    *t = kl_file_tensor(file, m->device, name);
    return t->id || llm_fail(name, kl_last_error());
}

/* A norm's weight; Gemma's safetensors have its distance from 1. */
static bool read_norm(struct llm *m, kl_tensor *t, bool optional, int64_t columns, const char *name)
{
    if (!read_tensor(m, t, optional, 0, columns, name))
        return false;
    if (!m->norms_from_zero || !t->id)
        return true;
    kl_tensor stored = *t;
    *t = kl_add_scalar(kl_cast(stored, KL_F32), 1);
    kl_release(stored);
    return t->id || llm_fail(name, kl_last_error());
}

/* The full name of a layer's tensor; NULL: files of this kind have none. */
static const char *full_name(const struct llm *m, char full[96], int64_t layer, const char *name, const char *part)
{
    const char *other = m->config ? layer_name(m, name) : name;
    snprintf(full, 96, m->config ? "model.layers.%" PRId64 ".%s.%s" : "blk.%" PRId64 ".%s.%s", layer,
             other ? other : "", part);
    return other ? full : NULL;
}

static bool layer_norm(struct llm *m, kl_tensor *t, bool optional, int64_t layer, const char *name, int64_t columns)
{
    char full[96];
    return read_norm(m, t, optional, columns, full_name(m, full, layer, name, "weight"));
}

static bool layer_linear(struct llm *m, struct llm_linear *l, int64_t layer, const char *name, int64_t out, int64_t in)
{
    char full[96];
    return read_tensor(m, &l->weight, false, out, in, full_name(m, full, layer, name, "weight")) &&
           read_tensor(m, &l->bias, true, 0, out, full_name(m, full, layer, name, "bias"));
}

static bool read_layer(struct llm *m, int64_t i)
{
    struct llm_layer *l = &m->layer[i];
    int64_t w = m->width, q = m->heads * m->head_width, kv = m->kv_heads * m->head_width;
    bool local = m->local_of && (i + 1) % m->local_of != 0, gemma3 = m->local_of == 6;
    l->window = m->local_of && !local ? 0 : m->window;
    l->rotary_base = local && gemma3 ? 10000 : number_or(m, "rope.freq_base", "rope_theta", 10000);
    l->rotary_scale = 1;
    if (!m->frequencies.id && !(local && gemma3))
        l->rotary_scale = 1 / number_or(m, "rope.scaling.factor", "factor", 1);
    return layer_norm(m, &l->norm1, false, i, "attn_norm", w) && layer_norm(m, &l->norm2, false, i, "ffn_norm", w) &&
           layer_norm(m, &l->after1, true, i, "post_attention_norm", w) &&
           layer_norm(m, &l->after2, true, i, "post_ffw_norm", w) &&
           layer_norm(m, &l->q_norm, true, i, "attn_q_norm", m->head_width) &&
           layer_norm(m, &l->k_norm, true, i, "attn_k_norm", m->head_width) &&
           layer_linear(m, &l->q, i, "attn_q", q, w) && layer_linear(m, &l->k, i, "attn_k", kv, w) &&
           layer_linear(m, &l->v, i, "attn_v", kv, w) && layer_linear(m, &l->out, i, "attn_output", w, q) &&
           layer_linear(m, &l->gate, i, "ffn_gate", m->hidden, w) &&
           layer_linear(m, &l->up, i, "ffn_up", m->hidden, w) && layer_linear(m, &l->down, i, "ffn_down", w, m->hidden);
}

/* Divisors of the rotary angles: a tensor of GGUF's, or by Llama 3.1's rule from config.json. */
static bool read_frequencies(struct llm *m)
{
    const char *kind = m->config ? config_value(m, "rope_type") : NULL;
    int64_t half = m->rotated / 2;
    if (!m->config)
        return read_tensor(m, &m->frequencies, true, 0, half, "rope_freqs.weight");
    if (!kind || !strncmp(kind, "\"default\"", 9) || !strncmp(kind, "\"linear\"", 8))
        return true;
    if (strncmp(kind, "\"llama3\"", 8) != 0)
        return llm_fail("rope_scaling", "its rope_type is none of default, linear, llama3");
    double factor = number_or(m, NULL, "factor", 8), low = number_or(m, NULL, "low_freq_factor", 1);
    double high = number_or(m, NULL, "high_freq_factor", 4), base = number_or(m, NULL, "rope_theta", 10000);
    double length = number_or(m, NULL, "original_max_position_embeddings", 8192);
    float *divisor = calloc((size_t)half, sizeof *divisor);
    for (int64_t i = 0; divisor && i < half; i++) { /* few turns in the original length: slower; between: in part */
        double turns = length / (2 * 3.14159265358979323846) * pow(base, -2 * (double)i / (double)m->rotated);
        double share = fmin(fmax((turns - low) / (high - low), 0), 1);
        divisor[i] = (float)(1 / (share + (1 - share) / factor));
    }
    m->frequencies = divisor ? kl_input(m->device, KL_F32, 1, &half, divisor) : kl_none;
    free(divisor);
    return m->frequencies.id || llm_fail("rope_scaling", kl_last_error());
}

/* ---- files ---- */

/* Opens one more file. */
static bool add_file(struct llm *m, const char *path)
{
    kl_file **more = realloc(m->file, (size_t)(m->files + 1) * sizeof *more);
    if (!more)
        return llm_fail(path, "out of memory");
    m->file = more;
    m->file[m->files] = kl_file_open(path);
    if (!m->file[m->files])
        return llm_fail("no model", kl_last_error());
    m->files++;
    return true;
}

static bool read_config(struct llm *m, const char *folder)
{
    enum { MOST = 1 << 20 };
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "rb");
    m->config = f ? calloc(1, MOST) : NULL;
    bool ok = m->config && fread(m->config, 1, MOST - 1, f) > 0;
    if (f)
        fclose(f);
    return ok || llm_fail(path, "missing or empty");
}

/* config.json and all *.safetensors of a folder. */
static bool open_folder(struct llm *m, const char *folder)
{
    DIR *d = opendir(folder);
    bool ok = d && read_config(m, folder);
    for (struct dirent *e; ok && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        char path[4096];
        if (n < 12 || strcmp(e->d_name + n - 12, ".safetensors") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ok = add_file(m, path);
    }
    if (d)
        closedir(d);
    return ok && (m->files || llm_fail(folder, "it has no *.safetensors"));
}

/* The vocabulary is as long as the embedding. */
static bool read_vocabulary(struct llm *m, const char *name)
{
    kl_file_entry e;
    for (int k = 0; k < m->files; k++) {
        int64_t i = kl_file_find(m->file[k], name);
        if (i >= 0 && kl_file_get(m->file[k], (uint32_t)i, &e) == KL_OK && e.rank == 2) {
            m->vocabulary = e.dims[0];
            return true;
        }
    }
    return llm_fail(name, "the model has no such matrix");
}

bool llm_open(struct llm *m, kl_device device, const char *path)
{
    struct stat s;
    *m = (struct llm){.device = device};
    bool folder = stat(path, &s) == 0 && S_ISDIR(s.st_mode);
    bool ok = folder ? open_folder(m, path) : add_file(m, path);
    if (ok && !folder && kl_file_format_of(m->file[0]) != KL_FILE_GGUF)
        ok = llm_fail(path, "not a GGUF file, nor a folder with config.json and safetensors");
    const char *embedding = folder ? "model.embed_tokens.weight" : "token_embd.weight";
    ok = ok && read_numbers(m) && read_frequencies(m) && read_vocabulary(m, embedding) &&
         read_tensor(m, &m->embedding, false, m->vocabulary, m->width, embedding) &&
         read_norm(m, &m->norm, false, m->width, folder ? "model.norm.weight" : "output_norm.weight") &&
         read_tensor(m, &m->head.weight, true, m->vocabulary, m->width, folder ? "lm_head.weight" : "output.weight");
    m->layer = ok ? calloc((size_t)m->layers, sizeof *m->layer) : NULL;
    ok = ok && (m->layer || llm_fail(path, "out of memory"));
    for (int64_t i = 0; ok && i < m->layers; i++)
        ok = read_layer(m, i);
    if (!ok)
        llm_close(m);
    return ok;
}
