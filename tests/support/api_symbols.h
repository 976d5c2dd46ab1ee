/* What tests of symbolic lengths share: what was built meanwhile, and results beside those of fixed shapes. */
#ifndef API_SYMBOLS_H
#define API_SYMBOLS_H
#include "tests/support/api_check.h"

/* Has the device programs for all values? */
static inline bool whole_programs(kl_device dev)
{
    return !strcmp(kl_device_name(dev), "cpu") && kl_counter("compiles") + kl_counter("disk_hits") > 0;
}

struct counts { int64_t graphs, compiles, variants; };

static inline struct counts counts_now(void)
{
    return (struct counts){kl_counter("graphs_built"), kl_counter("compiles"), kl_counter("variants")};
}

static inline void add_since(struct counts *sum, struct counts from)
{
    struct counts now = counts_now();
    sum->graphs += now.graphs - from.graphs;
    sum->compiles += now.compiles - from.compiles;
    sum->variants += now.variants - from.variants;
}

/* Of f32. */
static inline void same_bits(kl_tensor a, kl_tensor b)
{
    size_t bytes = (size_t)kl_numel(a) * sizeof(float);
    float *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    OK(kl_read(a, x, bytes));
    OK(kl_read(b, y, bytes));
    CHECK(kl_numel(a) == kl_numel(b) && !memcmp(x, y, bytes));
    free(x);
    free(y);
}

#endif
