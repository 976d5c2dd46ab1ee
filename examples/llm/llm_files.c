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
    *t = rows && m->bytes ? kl_file_matrix(file, m->device, name) : kl_file_tensor(file, m->device, name);
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
    l->unscaled = local && gemma3;
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

/* The name of the rule by which positions are scaled, or NULL. */
static const char *scaling_name(const struct llm *m, char name[32])
{
    const char *text = NULL;
    int64_t i;
    char key[64];
    if (m->config) {
        text = config_value(m, "rope_type");
        text = text ? text : config_value(m, "rope_scaling") ? config_value(m, "type") : NULL; /* of older files */
        if (text && *text == '"')
            snprintf(name, 32, "%.*s", (int)strcspn(text + 1, "\""), text + 1);
        return text && *text == '"' ? name : NULL;
    }
    snprintf(key, sizeof key, "%s.rope.scaling.type", m->architecture);
    if ((i = kl_file_meta_find(m->file[0], key)) >= 0)
        text = kl_file_meta_text(m->file[0], (uint32_t)i, 0);
    return text;
}

static bool compute_frequencies(struct llm *m, const kl_nn_rotary_scaling *scaling)
{
    int64_t half = m->rotated / 2;
    float *divisors = calloc((size_t)half + 1, sizeof *divisors);
    bool ok = divisors && kl_nn_rotary_divisors(m->rotated, scaling, divisors, &m->rotary_factor) == KL_OK;
    m->frequencies = ok ? kl_input(m->device, KL_F32, 1, &half, divisors) : kl_none;
    free(divisors);
    return m->frequencies.id || llm_fail("rope scaling", kl_last_error());
}

/* Divisors of the rotary angles: a tensor of GGUF's, or by the rule that the metadata or config.json name. */
static bool read_frequencies(struct llm *m)
{
    char text[32];
    const char *name = scaling_name(m, text);
    if (!m->config && !read_tensor(m, &m->frequencies, true, 0, m->rotated / 2, "rope_freqs.weight"))
        return false;
    double factor = number_or(m, "rope.scaling.factor", name ? "factor" : NULL, 1);
    kl_nn_rotary_scaling s = {.base = number_or(m, "rope.freq_base", "rope_theta", 10000), .factor = factor,
        .original = number_or(m, "rope.scaling.original_context_length", "original_max_position_embeddings",
                              (double)m->context)};
    if (m->frequencies.id || (name && (!strcmp(name, "none") || !strcmp(name, "default"))))
        return true;
    if (!name || !strcmp(name, "linear"))
        return factor == 1 || compute_frequencies(m, &s);
    if (!strcmp(name, "llama3")) {
        s.kind = KL_NN_ROTARY_LLAMA3;
        s.low = number_or(m, NULL, "low_freq_factor", 1), s.high = number_or(m, NULL, "high_freq_factor", 4);
    } else if (!strcmp(name, "yarn")) {
        s.kind = KL_NN_ROTARY_YARN;
        s.fast = number_or(m, "rope.scaling.yarn_beta_fast", "beta_fast", 32);
        s.slow = number_or(m, "rope.scaling.yarn_beta_slow", "beta_slow", 1);
        s.attention_factor = number_or(m, NULL, "attention_factor", 0);
        if (!m->config) /* GGUF's is beside YaRN's own */
            s.attention_factor = number_or(m, "rope.scaling.attn_factor", NULL, 1) *
                                 (factor > 1 ? 1 + log(factor) / 10 : 1);
    } else {
        fprintf(stderr, "rope scaling: \"%s\" is none of linear, llama3, yarn\n", name);
        return false;
    }
    return compute_frequencies(m, &s);
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

bool llm_open(struct llm *m, kl_device device, const char *path, bool bytes)
{
    struct stat s;
    *m = (struct llm){.device = device, .bytes = bytes};
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

/* FNV-1a (Fowler, Noll, Vo). */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    for (const uint8_t *p = data; bytes--; p++)
        hash = (hash ^ *p) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t llm_hash(const struct llm *m)
{
    enum { FIRST = 256 }; /* bytes of each tensor's elements */
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    kl_file_entry e;
    for (int k = 0; k < m->files; k++)
        for (int64_t i = 0; i < kl_file_count(m->file[k]); i++)
            if (kl_file_get(m->file[k], i, &e) == KL_OK) {
                const void *data = kl_file_data(m->file[k], e.name);
                hash = hash_bytes(hash, e.name, strlen(e.name));
                hash = hash_bytes(hash, e.dims, (size_t)e.rank * sizeof *e.dims);
                hash = data ? hash_bytes(hash, data, e.bytes < FIRST ? e.bytes : FIRST) : hash;
            }
    return hash;
}
