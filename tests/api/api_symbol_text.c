/* Symbolic batches of symbolic lengths: a 4-layer GPT's loss and its training step are one program, for any (batch,
 * length), and give the bits of kl_input with these shapes.  So is a step whose inputs and targets are one text,
 * shifted by a token: all lengths in it are sums. */
#include "tests/support/api_symbols.h"
#include "tests/support/symbol_gpt.h"

enum { PAIRS = 12 };
static const int64_t pair[PAIRS][2] = {{3, 17}, {6, 40}, {1, 2}, {2, 33}, {5, 8}, {1, 40}, {6, 2}, {4, 31}, {3, 17},
                                       {2, 16}, {1, 9}, {6, 39}};

static void test_forward(kl_device dev)
{
    kl_tensor p[PARTS];
    struct counts first = {0}, others = {0};
    make_parameters(dev, p);
    for (int i = 0; i < PAIRS; i++) {
        kl_tensor out[2];
        for (int k = 0; k < 2; k++) {
            struct sizes s = sizes_of(!k, pair[i]);
            struct counts before = counts_now();
            kl_trace_begin(k ? "fixed gpt" : "symbolic gpt");
            out[k] = kl_keep(kl_softmax(gpt_logits(dev, &s, p), 2));
            OK(kl_trace_end());
            if (!k)
                add_since(i ? &others : &first, before);
        }
        same_bits(out[0], out[1]);
        kl_release(out[0]), kl_release(out[1]);
    }
    CHECK(!whole_programs(dev) || (first.graphs == 1 && !others.graphs && !others.compiles && !others.variants));
    for (int i = 0; i < PARTS; i++)
        kl_release(p[i]);
}

static void test_training(kl_device dev)
{
    kl_tensor p[2][PARTS];
    struct counts first = {0}, others = {0};
    for (int k = 0; k < 2; k++)
        make_parameters(dev, p[k]);
    for (int i = 0; i < PAIRS; i++) {
        kl_tensor loss[2];
        for (int k = 0; k < 2; k++) {
            struct sizes s = sizes_of(!k, pair[i]);
            struct counts before = counts_now();
            kl_trace_begin(k ? "fixed gpt step" : "symbolic gpt step");
            loss[k] = kl_keep(gpt_loss(dev, &s, p[k]));
            for (int j = 0; j < PARTS; j++)
                kl_assign(p[k][j], kl_sub(p[k][j], kl_mul_scalar(kl_grad(loss[k], p[k][j]), 0.01)));
            OK(kl_trace_end());
            if (!k)
                add_since(i ? &others : &first, before);
        }
        same_bits(loss[0], loss[1]);
        kl_release(loss[0]), kl_release(loss[1]);
        for (int j = 0; j < PARTS; j++)
            same_bits(p[0][j], p[1][j]);
    }
    CHECK(!whole_programs(dev) || (first.graphs == 1 && !others.graphs && !others.compiles && !others.variants));
    for (int j = 0; j < 2 * PARTS; j++)
        kl_release(p[j / PARTS][j % PARTS]);
}

/* The loss of the text's tokens but the first, given those before; *last: the logits after the last of these. */
static kl_tensor shifted_loss(kl_device dev, const struct sizes *s, const kl_tensor *p, kl_tensor *last)
{
    kl_tensor text = text_input(dev, s, ids);
    struct sizes shorter = *s;
    shorter.l = kl_length_sub(s->l, 1);
    kl_tensor logits = gpt_logits_of(&shorter, p, kl_narrow(text, 1, 0, shorter.l));
    *last = kl_keep(kl_narrow(logits, 1, kl_length_sub(shorter.l, 1), 1));
    return kl_cross_entropy(kl_reshape(logits, 2, (int64_t[]){-1, WORDS}),
                            kl_reshape(kl_narrow(text, 1, 1, shorter.l), 1, (int64_t[]){-1}));
}

static void test_shifted(kl_device dev)
{
    kl_tensor p[2][PARTS];
    struct counts first = {0}, others = {0};
    for (int k = 0; k < 2; k++)
        make_parameters(dev, p[k]);
    for (int i = 0; i < PAIRS; i++) {
        kl_tensor loss[2], last[2];
        for (int k = 0; k < 2; k++) {
            struct sizes s = sizes_of(!k, pair[i]);
            struct counts before = counts_now();
            kl_trace_begin(k ? "fixed shifted step" : "symbolic shifted step");
            loss[k] = kl_keep(shifted_loss(dev, &s, p[k], &last[k]));
            for (int j = 0; j < PARTS; j++)
                kl_assign(p[k][j], kl_sub(p[k][j], kl_mul_scalar(kl_grad(loss[k], p[k][j]), 0.01)));
            OK(kl_trace_end());
            if (!k)
                add_since(i ? &others : &first, before);
        }
        same_bits(loss[0], loss[1]);
        same_bits(last[0], last[1]);
        for (int k = 0; k < 2; k++)
            kl_release(loss[k]), kl_release(last[k]);
        for (int j = 0; j < PARTS; j++)
            same_bits(p[0][j], p[1][j]);
    }
    CHECK(!whole_programs(dev) || (first.graphs == 1 && !others.graphs && !others.compiles && !others.variants));
    for (int j = 0; j < 2 * PARTS; j++)
        kl_release(p[j / PARTS][j % PARTS]);
}

static void test(kl_device dev)
{
    make_words();
    test_forward(dev);
    test_training(dev);
    test_shifted(dev);
}

int main(void)
{
    return on_devices(test);
}
