/* Adapters of low rank: see llm.h. */
#include "llm.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* The pair of one product. */
static bool adapt_linear(struct llm_linear *l, kl_params *params, int64_t layer, const char *name, int64_t rank)
{
    int64_t dims[2] = {0, 0};
    char full[64];
    kl_shape(l->weight, dims); /* [out, in] */
    kl_init init = {.kind = KL_INIT_NORMAL, .std = 1 / sqrt((double)dims[1])};
    snprintf(full, sizeof full, "blk.%" PRId64 ".%s.down", layer, name);
    l->down = kl_params_make(params, full, 2, (int64_t[]){dims[1], rank}, &init);
    snprintf(full, sizeof full, "blk.%" PRId64 ".%s.up", layer, name);
    l->up = kl_params_make(params, full, 2, (int64_t[]){rank, dims[0]}, NULL);
    return kl_check(l->down) == KL_OK && kl_check(l->up) == KL_OK;
}

kl_params *llm_adapt(struct llm *m, int64_t rank, uint64_t seed)
{
    kl_params *params = kl_params_new(m->device, KL_F32, seed);
    bool ok = params;
    for (int64_t i = 0; ok && i < m->layers; i++) {
        struct llm_layer *l = &m->layer[i];
        const struct { struct llm_linear *product; const char *name; } products[] = {
            {&l->q, "attn_q"}, {&l->k, "attn_k"}, {&l->v, "attn_v"}, {&l->out, "attn_output"},
            {&l->gate, "ffn_gate"}, {&l->up, "ffn_up"}, {&l->down, "ffn_down"}};
        for (size_t k = 0; ok && k < sizeof products / sizeof *products; k++)
            ok = adapt_linear(products[k].product, params, i, products[k].name, rank);
    }
    if (ok)
        return params;
    llm_fail("adapters", kl_last_error());
    for (int64_t i = 0; i < m->layers; i++) {
        struct llm_linear *all[] = {&m->layer[i].q, &m->layer[i].k, &m->layer[i].v, &m->layer[i].out,
                                    &m->layer[i].gate, &m->layer[i].up, &m->layer[i].down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            all[k]->down = all[k]->up = kl_none;
    }
    kl_params_free(params);
    return NULL;
}
