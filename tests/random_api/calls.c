/* The table of calls. */
#include "tests/random_api/calls.h"

static const struct call calls[] = {
#define CALL(name, weight, need, low, high) {#name, weight, need, low, high, make_##name},
#include "tests/random_api/calls.def"
#undef CALL
};

const struct call *call_draw(struct rng *r)
{
    enum { N = sizeof calls / sizeof *calls };
    int sum = 0, i = 0;
    for (int k = 0; k < N; k++)
        sum += calls[k].weight;
    for (int at = (int)rng_below(r, sum); at >= calls[i].weight; i++)
        at -= calls[i].weight;
    return &calls[i];
}
