/* GPT-2's training step in plain C and double, every gradient by hand: what examples/gpt2.c is compared with. */
#ifndef TESTS_GPT2_REFERENCE_H
#define TESTS_GPT2_REFERENCE_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, WIDTH = 48, HEADS = 4, TOKENS = 32, LONGEST = 40, WORDS = 61, PADDED = 64, BATCH = 2 };
enum { HEAD = WIDTH / HEADS, HIDDEN = 4 * WIDTH };

/* The tensors of a checkpoint, in its order. */
enum { WTE, WPE, LN1W, LN1B, QKVW, QKVB, OUTW, OUTB, LN2W, LN2B, UPW, UPB, DOWNW, DOWNB, LNFW, LNFB, ARRAYS };
static const int array_size[ARRAYS] = {
    PADDED * WIDTH, LONGEST * WIDTH, WIDTH, WIDTH, 3 * WIDTH * WIDTH, 3 * WIDTH, WIDTH * WIDTH, WIDTH, WIDTH, WIDTH,
    HIDDEN * WIDTH, HIDDEN, WIDTH * HIDDEN, WIDTH, WIDTH, WIDTH}; /* of a layer */
static inline int array_layers(int a) { return a >= LN1W && a <= DOWNB ? LAYERS : 1; }
static inline int parameters_before(int array)
{
    int n = 0;
    for (int a = 0; a < array; a++)
        n += array_size[a] * array_layers(a);
    return n;
}

/* Of all parameters: values, gradients, Adam's moments. */
struct reference { int n; double *p, *g, *m, *v; };
static inline double *part(double *all, int array, int layer)
{
    return all + parameters_before(array) + layer * array_size[array];
}

typedef double rows[TOKENS * HIDDEN];
struct activations { /* of one layer; x: in front of it, y: behind attention */
    rows x, norm1, qkv, heads, y, norm2, up, gelu;
    double weights[HEADS][TOKENS][TOKENS];
};

/* y [T, out] = x [T, in] w^T + b; b may be NULL */
static inline void linear(double *y, const double *x, const double *w, const double *b, int in, int out)
{
    for (int t = 0; t < TOKENS; t++)
        for (int o = 0; o < out; o++) {
            double sum = b ? b[o] : 0;
            for (int i = 0; i < in; i++)
                sum += x[t * in + i] * w[o * in + i];
            y[t * out + o] = sum;
        }
}

/* dx is set; dw and db are added to. */
static inline void linear_back(double *dx, double *dw, double *db, const double *dy, const double *x, const double *w,
                               int in, int out)
{
    memset(dx, 0, (size_t)(TOKENS * in) * sizeof *dx);
    for (int t = 0; t < TOKENS; t++)
        for (int o = 0; o < out; o++) {
            double d = dy[t * out + o];
            for (int i = 0; i < in; i++) {
                dx[t * in + i] += d * w[o * in + i];
                dw[o * in + i] += d * x[t * in + i];
            }
            if (db)
                db[o] += d;
        }
}

static inline double norm_row(const double *x, double *mean)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < WIDTH; i++)
        sum += x[i];
    *mean = sum / WIDTH;
    for (int i = 0; i < WIDTH; i++)
        squares += (x[i] - *mean) * (x[i] - *mean);
    return 1 / sqrt(squares / WIDTH + 1e-5);
}

static inline void norm(double *y, const double *x, const double *w, const double *b)
{
    for (int t = 0; t < TOKENS; t++, x += WIDTH, y += WIDTH) {
        double mean, scale = norm_row(x, &mean);
        for (int i = 0; i < WIDTH; i++)
            y[i] = (x[i] - mean) * scale * w[i] + b[i];
    }
}

/* Everything is added to. */
static inline void norm_back(double *dx, double *dw, double *db, const double *dy, const double *x, const double *w)
{
    for (int t = 0; t < TOKENS; t++, x += WIDTH, dx += WIDTH, dy += WIDTH) {
        double mean, scale = norm_row(x, &mean), sum = 0, along = 0;
        for (int i = 0; i < WIDTH; i++) {
            double unit = (x[i] - mean) * scale;
            sum += dy[i] * w[i] / WIDTH;
            along += dy[i] * w[i] * unit / WIDTH;
            dw[i] += dy[i] * unit;
            db[i] += dy[i];
        }
        for (int i = 0; i < WIDTH; i++)
            dx[i] += scale * (dy[i] * w[i] - sum - (x[i] - mean) * scale * along);
    }
}

/* Element i of head h of row t of qkv: which 0 q, 1 k, 2 v. */
static inline int qkv_at(int t, int which, int h, int i) { return (t * 3 + which) * WIDTH + h * HEAD + i; }

static inline void attention(struct activations *a)
{
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < TOKENS; t++) {
            double *weight = a->weights[h][t], sum = 0;
            for (int s = 0; s <= t; s++) {
                weight[s] = 0;
                for (int i = 0; i < HEAD; i++)
                    weight[s] += a->qkv[qkv_at(t, 0, h, i)] * a->qkv[qkv_at(s, 1, h, i)];
                sum += weight[s] = exp(weight[s] / sqrt((double)HEAD));
            }
            for (int i = 0; i < HEAD; i++) {
                double *y = &a->heads[t * WIDTH + h * HEAD + i];
                *y = 0;
                for (int s = 0; s <= t; s++)
                    *y += weight[s] / sum * a->qkv[qkv_at(s, 2, h, i)];
            }
            for (int s = 0; s <= t; s++)
                weight[s] /= sum;
        }
}

static inline void attention_back(double *dqkv, const double *dy, const struct activations *a)
{
    memset(dqkv, 0, sizeof(rows));
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < TOKENS; t++) {
            const double *weight = a->weights[h][t], *d = dy + t * WIDTH + h * HEAD;
            double dweight[TOKENS] = {0}, mean = 0;
            for (int s = 0; s <= t; s++) {
                for (int i = 0; i < HEAD; i++) {
                    dweight[s] += d[i] * a->qkv[qkv_at(s, 2, h, i)];
                    dqkv[qkv_at(s, 2, h, i)] += d[i] * weight[s];
                }
                mean += dweight[s] * weight[s];
            }
            for (int s = 0; s <= t; s++)
                for (int i = 0; i < HEAD; i++) {
                    double score = weight[s] * (dweight[s] - mean) / sqrt((double)HEAD);
                    dqkv[qkv_at(t, 0, h, i)] += score * a->qkv[qkv_at(s, 1, h, i)];
                    dqkv[qkv_at(s, 1, h, i)] += score * a->qkv[qkv_at(t, 0, h, i)];
                }
        }
}

static inline double gelu(double x, double *slope)
{
    double c = sqrt(2 / acos(-1.0)), th = tanh(c * (x + 0.044715 * x * x * x));
    *slope = 0.5 * (1 + th) + 0.5 * x * (1 - th * th) * c * (1 + 3 * 0.044715 * x * x);
    return 0.5 * x * (1 + th);
}

static inline void block(struct reference *r, int l, struct activations *a, double *out)
{
    double *p = r->p, slope;
    norm(a->norm1, a->x, part(p, LN1W, l), part(p, LN1B, l));
    linear(a->qkv, a->norm1, part(p, QKVW, l), part(p, QKVB, l), WIDTH, 3 * WIDTH);
    attention(a);
    linear(a->y, a->heads, part(p, OUTW, l), part(p, OUTB, l), WIDTH, WIDTH);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        a->y[i] += a->x[i];
    norm(a->norm2, a->y, part(p, LN2W, l), part(p, LN2B, l));
    linear(a->up, a->norm2, part(p, UPW, l), part(p, UPB, l), WIDTH, HIDDEN);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        a->gelu[i] = gelu(a->up[i], &slope);
    linear(out, a->gelu, part(p, DOWNW, l), part(p, DOWNB, l), HIDDEN, WIDTH);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        out[i] += a->y[i];
}

/* d: of what the block gives; then of what it is given. */
static inline void block_back(struct reference *r, int l, const struct activations *a, double *d)
{
    static rows wide, narrow, dqkv;
    double *p = r->p, *g = r->g, slope;
    linear_back(wide, part(g, DOWNW, l), part(g, DOWNB, l), d, a->gelu, part(p, DOWNW, l), HIDDEN, WIDTH);
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        gelu(a->up[i], &slope);
        wide[i] *= slope;
    }
    linear_back(narrow, part(g, UPW, l), part(g, UPB, l), wide, a->norm2, part(p, UPW, l), WIDTH, HIDDEN);
    norm_back(d, part(g, LN2W, l), part(g, LN2B, l), narrow, a->y, part(p, LN2W, l));
    linear_back(narrow, part(g, OUTW, l), part(g, OUTB, l), d, a->heads, part(p, OUTW, l), WIDTH, WIDTH);
    attention_back(dqkv, narrow, a);
    linear_back(narrow, part(g, QKVW, l), part(g, QKVB, l), dqkv, a->norm1, part(p, QKVW, l), WIDTH, 3 * WIDTH);
    norm_back(d, part(g, LN1W, l), part(g, LN1B, l), narrow, a->x, part(p, LN1W, l));
}

/* Adds the gradients of one sequence's TOKENS + 1 tokens; its share of the mean loss. */
static inline double sequence(struct reference *r, const uint16_t *text)
{
    static struct activations a[LAYERS];
    static rows end, normed, d, dnormed;
    static double logits[TOKENS * WORDS];
    double loss = 0, *wte = part(r->p, WTE, 0), *wpe = part(r->p, WPE, 0);
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < WIDTH; i++)
            a[0].x[t * WIDTH + i] = wte[text[t] * WIDTH + i] + wpe[t * WIDTH + i];
    for (int l = 0; l < LAYERS; l++)
        block(r, l, &a[l], l + 1 < LAYERS ? a[l + 1].x : end);
    norm(normed, end, part(r->p, LNFW, 0), part(r->p, LNFB, 0));
    linear(logits, normed, wte, NULL, WIDTH, WORDS);
    for (int t = 0; t < TOKENS; t++) {
        double *row = logits + t * WORDS, sum = 0;
        for (int i = 0; i < WORDS; i++)
            sum += exp(row[i]);
        loss += (log(sum) - row[text[t + 1]]) / (BATCH * TOKENS);
        for (int i = 0; i < WORDS; i++)
            row[i] = (exp(row[i]) / sum - (i == text[t + 1])) / (BATCH * TOKENS);
    }
    linear_back(dnormed, part(r->g, WTE, 0), NULL, logits, normed, wte, WIDTH, WORDS);
    memset(d, 0, sizeof d);
    norm_back(d, part(r->g, LNFW, 0), part(r->g, LNFB, 0), dnormed, end, part(r->p, LNFW, 0));
    for (int l = LAYERS - 1; l >= 0; l--)
        block_back(r, l, &a[l], d);
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < WIDTH; i++) {
            part(r->g, WTE, 0)[text[t] * WIDTH + i] += d[t * WIDTH + i];
            part(r->g, WPE, 0)[t * WIDTH + i] += d[t * WIDTH + i];
        }
    return loss;
}

/* One step of AdamW on BATCH sequences, the step-th from 1; the loss before it. */
static inline double reference_step(struct reference *r, const uint16_t *text, int step, double rate, double decay)
{
    double loss = 0;
    memset(r->g, 0, (size_t)r->n * sizeof *r->g);
    for (int b = 0; b < BATCH; b++)
        loss += sequence(r, text + b * TOKENS);
    for (int i = 0; i < r->n; i++) {
        r->m[i] = 0.9 * r->m[i] + 0.1 * r->g[i];
        r->v[i] = 0.999 * r->v[i] + 0.001 * r->g[i] * r->g[i];
        double m = r->m[i] / (1 - pow(0.9, step)), v = r->v[i] / (1 - pow(0.999, step));
        r->p[i] -= rate * (m / (sqrt(v) + 1e-8) + decay * r->p[i]);
    }
    return loss;
}

#endif
