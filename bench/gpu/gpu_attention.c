/* A GPU: attention in bf16, forward and with its gradients, of 16,384 tokens and a width of 2048, beside the published
 * figures of FlashAttention-3 on an H100 80GB SXM5 (Shah et al., FlashAttention-3: Fast and Accurate Attention with
 * Asynchrony and Low-precision, arXiv 2407.08608, 2024, figures 5 and 6, f16), whose sizes these are.
 *
 * Operations are counted as there: 4 tokens^2 width forward for each sequence, half of them if causal, and 2.5 times as
 * many for the gradients.  With gradients, the published time is the sum of the forward and backward times; there is
 * no published figure for causal gradients. */
#include "gpu.h"

enum { TOKENS = 16 << 10, WIDTH = 2048, LENGTHS = 6 };

/* TFLOP/s, of sequences of 512 to 16k tokens. */
static const struct published { int depth; bool causal; int forward[LENGTHS], backward[LENGTHS]; } published[] = {
    {64, false, {333, 392, 460, 476, 496, 497}, {272, 363, 422, 453, 472, 474}},
    {64, true, {197, 265, 371, 420, 460, 473}, {0}},
    {128, false, {467, 565, 625, 638, 646, 648}, {316, 424, 501, 542, 559, 561}},
    {128, true, {292, 423, 521, 579, 602, 616}, {0}}};

struct attention { kl_tensor q, k, v, upstream; bool causal, gradients; };

static int record(void *ctx, kl_tensor *out)
{
    const struct attention *a = ctx;
    out[0] = kl_attention(a->q, a->k, a->v, kl_none, a->causal);
    if (!a->gradients)
        return 1;
    kl_tensor y = kl_mul(out[0], a->upstream);
    out[1] = kl_grad(y, a->q);
    out[2] = kl_grad(y, a->k);
    out[3] = kl_grad(y, a->v);
    return 4;
}

/* Seconds for so many operations forward by published figures; 0: there is none. */
static double published_seconds(double flops, int forward, int backward, bool gradients)
{
    if (gradients && !backward)
        return 0;
    return 1e-12 * (flops / forward + (gradients ? 2.5 * flops / backward : 0));
}

static bool run_case(struct gpu *g, const struct published *p, int which, bool gradients)
{
    static struct samples took;
    char name[64];
    int64_t length = g->small ? 64 << which : 512 << which, tokens = g->small ? 128 : TOKENS,
            width = g->small ? 128 : WIDTH;
    int64_t shape[] = {tokens / length, width / p->depth, length, p->depth};
    snprintf(name, sizeof name, "%d%s %lld%s", p->depth, p->causal ? " causal" : "", (long long)length,
             gradients ? " with gradients" : "");
    if (!bench_wants(&g->b, name))
        return true;
    struct attention a = {.causal = p->causal, .gradients = gradients};
    kl_tensor *in[] = {&a.q, &a.k, &a.v, &a.upstream};
    kl_trace_begin("operands");
    for (int i = 0; i < 4; i++)
        *in[i] = kl_keep(kl_cast(kl_randn(g->device, KL_F32, 4, shape, (uint64_t)i), KL_BF16));
    struct gpu_trace t = {.name = name, .record = record, .ctx = &a, .runs = g->small ? 1 : 4, .parts = 1};
    bool ok = kl_trace_end() == KL_OK && gpu_measure(g, &t, &took);
    for (int i = 0; i < 4; i++)
        kl_release(*in[i]);
    if (!ok)
        return false;
    double flops = 4.0 * (double)tokens * (double)length * (double)width / (p->causal ? 2 : 1);
    double all = flops * (gradients ? 3.5 : 1), theirs = published_seconds(flops, p->forward[which],
                                                                           p->backward[which], gradients);
    bool compared = theirs && !g->small;
    struct result *r = bench_add(&g->b, name, "fused", 1, &took, "GFLOP/s", all,
                                 compared ? 1e-9 * all / theirs : 0);
    if (compared && r)
        bench_baseline(r, "FA3 paper, H100", theirs / samples_median(&took));
    return true;
}

int main(int argc, char **argv)
{
    static struct gpu g;
    if (!gpu_open(&g, "gpu_attention", argc, argv))
        return g.b.status;
    bool ok = true;
    for (unsigned i = 0; i < sizeof published / sizeof *published; i++)
        for (int gradients = 0; gradients < 2; gradients++)
            for (int which = 0; which < (g.b.smoke ? 1 : g.small ? 2 : LENGTHS) && ok; which++)
                ok = run_case(&g, &published[i], which, gradients);
    return gpu_close(&g, ok);
}
