/* Tiny random language models and their logits in plain C and double, from the formulas of the models' papers: what
 * examples/llm is compared with. */
#ifndef TESTS_LLM_REFERENCE_H
#define TESTS_LLM_REFERENCE_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 12, LAYERS = 3, WIDTH = 256, HEADS = 4, KV_HEADS = 2, HIDDEN = 96, WORDS = 264 };
enum { MAX_HEAD = 32, MAX_Q = HEADS * MAX_HEAD, MAX_KV = KV_HEADS * MAX_HEAD };

/* What a kind of model has. */
struct llm_kind {
    const char *name;
    int head;                       /* elements of a head */
    bool interleaved;               /* positions rotate the pairs (2i, 2i + 1) */
    bool bias, head_norms, gemma, tied, frequencies;
    int window, local_of;           /* of local_of layers all but the last attend to `window` tokens */
    double score_cap, logit_cap, rotary_base, local_base, rotary_factor;
    const char *scaling;            /* "llama3" or "yarn", of ORIGINAL positions; NULL: angles / rotary_factor */
};
enum { ORIGINAL = 40 };

/* The tensors of a layer, in this order, [out, in] or [columns]; then those of the model. */
enum { NORM1, NORM2, Q, K, V, OUT, GATE, UP, DOWN, Q_BIAS, K_BIAS, V_BIAS, Q_NORM, K_NORM, AFTER1, AFTER2, PER_LAYER };
enum { EMBEDDING = LAYERS * PER_LAYER, NORM, HEAD_WEIGHT, FREQUENCIES, ARRAYS };

struct llm_reference {
    const struct llm_kind *kind;
    int rows[ARRAYS], columns[ARRAYS]; /* rows 0: a vector; columns 0: this kind has no such tensor */
    float *data[ARRAYS];
};

static inline void reference_shape(struct llm_reference *r, int i)
{
    const struct llm_kind *k = r->kind;
    int q = HEADS * k->head, kv = KV_HEADS * k->head;
    const struct { int rows, columns; bool is; } per_layer[PER_LAYER] = {
        [NORM1] = {0, WIDTH, true}, [NORM2] = {0, WIDTH, true}, [Q] = {q, WIDTH, true}, [K] = {kv, WIDTH, true},
        [V] = {kv, WIDTH, true}, [OUT] = {WIDTH, q, true}, [GATE] = {HIDDEN, WIDTH, true}, [UP] = {HIDDEN, WIDTH, true},
        [DOWN] = {WIDTH, HIDDEN, true}, [Q_BIAS] = {0, q, k->bias}, [K_BIAS] = {0, kv, k->bias},
        [V_BIAS] = {0, kv, k->bias}, [Q_NORM] = {0, k->head, k->head_norms}, [K_NORM] = {0, k->head, k->head_norms},
        [AFTER1] = {0, WIDTH, k->gemma}, [AFTER2] = {0, WIDTH, k->gemma}};
    const struct { int rows, columns; bool is; } of_model[] = {
        {WORDS, WIDTH, true}, {0, WIDTH, true}, {WORDS, WIDTH, !k->tied}, {0, k->head / 2, k->frequencies}};
    bool is = i < EMBEDDING ? per_layer[i % PER_LAYER].is : of_model[i - EMBEDDING].is;
    r->rows[i] = i < EMBEDDING ? per_layer[i % PER_LAYER].rows : of_model[i - EMBEDDING].rows;
    r->columns[i] = !is ? 0 : i < EMBEDDING ? per_layer[i % PER_LAYER].columns : of_model[i - EMBEDDING].columns;
}

static inline double random_unit(uint64_t *state) /* -1 .. 1 */
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (double)(*state >> 40) / (double)(1 << 23) - 1;
}

/* Random weights: matrices around 0, vectors of norms around 1, divisors of frequencies from 2 to 4. */
static inline void reference_init(struct llm_reference *r, const struct llm_kind *kind, uint64_t seed)
{
    *r = (struct llm_reference){.kind = kind};
    for (int i = 0; i < ARRAYS; i++) {
        reference_shape(r, i);
        int n = r->columns[i] * (r->rows[i] ? r->rows[i] : 1), part = i % PER_LAYER;
        r->data[i] = calloc((size_t)n + 1, sizeof(float));
        bool bias = i < EMBEDDING && part >= Q_BIAS && part <= V_BIAS;
        double mean = r->rows[i] || bias ? 0 : i == FREQUENCIES ? 3 : 1, spread = i == EMBEDDING ? 0.85 : 0.175;
        for (int k = 0; k < n; k++)
            r->data[i][k] = (float)(mean + spread * random_unit(&seed));
    }
}

static inline void reference_free(struct llm_reference *r)
{
    for (int i = 0; i < ARRAYS; i++)
        free(r->data[i]);
}

static inline void reference_linear(double *y, const double *x, const struct llm_reference *r, int weight, int bias)
{
    int out = r->rows[weight], in = r->columns[weight];
    for (int o = 0; o < out; o++) {
        double sum = bias && r->columns[bias] ? (double)r->data[bias][o] : 0;
        for (int i = 0; i < in; i++)
            sum += x[i] * (double)r->data[weight][o * in + i];
        y[o] = sum;
    }
}

/* In place, n vectors; without a weight of this kind nothing. */
static inline void reference_norm(double *x, int n, const struct llm_reference *r, int weight)
{
    int width = r->columns[weight];
    for (int v = 0; v < n && width; v++, x += width) {
        double squares = 0;
        for (int i = 0; i < width; i++)
            squares += x[i] * x[i];
        for (int i = 0; i < width; i++)
            x[i] = x[i] / sqrt(squares / width + 1e-5) * (double)r->data[weight][i];
    }
}

static inline bool reference_local(const struct llm_kind *k, int layer)
{
    return k->window && !(k->local_of && (layer + 1) % k->local_of == 0);
}

/* The divisor of the angle of pair i, by the formulas of the models' papers. */
static inline double reference_divisor(const struct llm_kind *k, int i)
{
    double turns = ORIGINAL / (2 * 3.141592653589793 * pow(k->rotary_base, 2.0 * i / k->head)), kept;
    if (!k->scaling)
        return k->rotary_factor;
    if (!strcmp(k->scaling, "llama3")) { /* 1 to 4 turns: in part */
        kept = (turns - 1) / 3;
    } else { /* 1 to 32 turns, in whole pairs */
        double pair = k->head / (2 * log(k->rotary_base)), low = pair * log(ORIGINAL / (32 * 2 * 3.141592653589793));
        double high = ceil(pair * log(ORIGINAL / (2 * 3.141592653589793)));
        low = floor(low) > 0 ? floor(low) : 0;
        kept = 1 - (i - low) / (high - low);
    }
    kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
    return 1 / (kept + (1 - kept) / k->rotary_factor);
}

/* Rotates the pairs of `heads` heads of a token. */
static inline void reference_rotate(double *x, int heads, int token, int layer, const struct llm_reference *r)
{
    const struct llm_kind *k = r->kind;
    bool local = k->local_base > 0 && reference_local(k, layer);
    for (int h = 0; h < heads; h++, x += k->head)
        for (int i = 0; i < k->head / 2; i++) {
            double angle = token * pow(local ? k->local_base : k->rotary_base, -2.0 * i / k->head);
            angle /= k->frequencies ? (double)r->data[FREQUENCIES][i] : local ? 1 : reference_divisor(k, i);
            double *a = &x[k->interleaved ? 2 * i : i], *b = &x[k->interleaved ? 2 * i + 1 : i + k->head / 2];
            double first = *a, second = *b;
            double factor = k->scaling && !strcmp(k->scaling, "yarn") ? 1 + log(k->rotary_factor) / 10 : 1;
            *a = factor * (first * cos(angle) - second * sin(angle));
            *b = factor * (second * cos(angle) + first * sin(angle));
        }
}

static inline double reference_cap(double x, double cap) { return cap > 0 ? cap * tanh(x / cap) : x; }

/* One head of token t: out [head]. */
static inline void reference_attend(double *out, const double *q, double (*keys)[MAX_KV], double (*values)[MAX_KV],
                                    int t, int kv, int layer, const struct llm_kind *k)
{
    double weight[TOKENS], sum = 0, greatest = -INFINITY;
    int first = reference_local(k, layer) && t - k->window + 1 > 0 ? t - k->window + 1 : 0;
    for (int j = first; j <= t; j++) {
        double score = 0;
        for (int i = 0; i < k->head; i++)
            score += q[i] * keys[j][kv * k->head + i];
        weight[j] = reference_cap(score / sqrt(k->head), k->score_cap);
        greatest = fmax(greatest, weight[j]);
    }
    for (int j = first; j <= t; j++)
        sum += weight[j] = exp(weight[j] - greatest);
    for (int i = 0; i < k->head; i++) {
        out[i] = 0;
        for (int j = first; j <= t; j++)
            out[i] += weight[j] / sum * values[j][kv * k->head + i];
    }
}

static inline void reference_layer(double (*x)[WIDTH], int layer, const struct llm_reference *r)
{
    const struct llm_kind *k = r->kind;
    static double q[TOKENS][MAX_Q], key[TOKENS][MAX_KV], value[TOKENS][MAX_KV];
    int at = layer * PER_LAYER;
    for (int t = 0; t < TOKENS; t++) {
        double h[WIDTH];
        memcpy(h, x[t], sizeof h);
        reference_norm(h, 1, r, at + NORM1);
        reference_linear(q[t], h, r, at + Q, at + Q_BIAS);
        reference_linear(key[t], h, r, at + K, at + K_BIAS);
        reference_linear(value[t], h, r, at + V, at + V_BIAS);
        reference_norm(q[t], HEADS, r, at + Q_NORM);
        reference_norm(key[t], KV_HEADS, r, at + K_NORM);
        reference_rotate(q[t], HEADS, t, layer, r);
        reference_rotate(key[t], KV_HEADS, t, layer, r);
    }
    for (int t = 0; t < TOKENS; t++) {
        double heads[MAX_Q], y[WIDTH], h[WIDTH], gate[HIDDEN], up[HIDDEN];
        for (int i = 0; i < HEADS; i++)
            reference_attend(&heads[i * k->head], &q[t][i * k->head], key, value, t, i / (HEADS / KV_HEADS), layer, k);
        reference_linear(y, heads, r, at + OUT, 0);
        reference_norm(y, 1, r, at + AFTER1);
        for (int i = 0; i < WIDTH; i++)
            h[i] = x[t][i] += y[i];
        reference_norm(h, 1, r, at + NORM2);
        reference_linear(gate, h, r, at + GATE, 0);
        reference_linear(up, h, r, at + UP, 0);
        for (int i = 0; i < HIDDEN; i++) {
            double g = gate[i];
            g = k->gemma ? g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) / 2 : g / (1 + exp(-g));
            up[i] *= g;
        }
        reference_linear(y, up, r, at + DOWN, 0);
        reference_norm(y, 1, r, at + AFTER2);
        for (int i = 0; i < WIDTH; i++)
            x[t][i] += y[i];
    }
}

/* logits [TOKENS][WORDS] of these tokens */
static inline void reference_logits(double (*logits)[WORDS], const int32_t *ids, const struct llm_reference *r)
{
    static double x[TOKENS][WIDTH];
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < WIDTH; i++)
            x[t][i] = (double)r->data[EMBEDDING][ids[t] * WIDTH + i] * (r->kind->gemma ? sqrt(WIDTH) : 1);
    for (int layer = 0; layer < LAYERS; layer++)
        reference_layer(x, layer, r);
    for (int t = 0; t < TOKENS; t++) {
        reference_norm(x[t], 1, r, NORM);
        reference_linear(logits[t], x[t], r, r->kind->tied ? EMBEDDING : HEAD_WEIGHT, 0);
        for (int w = 0; w < WORDS; w++)
            logits[t][w] = reference_cap(logits[t][w], r->kind->logit_cap);
    }
}
#endif
