/* Values of a graph's leaves, as arrays in the host's memory. */
#include "check.h"
#include <string.h>

size_t check_leaf_bytes(const struct graph *g, const struct leaf *l)
{
    return (size_t)shape_count(&g->shape[l->shape]) * dtype_size(l->dtype);
}

bool check_values_room(struct check_values *v, const struct graph *g, struct err *e)
{
    *v = (struct check_values){.ninput = g->input.n, .nstate = g->state.n};
    v->input = mem_alloc((g->input.n + 1) * sizeof *v->input);
    v->state = mem_alloc((g->state.n + 1) * sizeof *v->state);
    v->slot = mem_alloc((g->slot.n + 1) * sizeof *v->slot);
    return (v->input && v->state && v->slot) || err_set(e, KL_ERR_MEMORY, "out of memory: values of @%s", g->name);
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15); /* SplitMix64 */
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Floats from -2 to 2, integers from 0 to 7, which are valid indices of most axes. */
static uint64_t made_up(unsigned dtype, uint64_t *state)
{
    uint64_t x = next_random(state);
    if (dtype_is_float(dtype))
        return dtype_bits(dtype, (double)(x >> 11) * 0x1p-51 - 2);
    return dtype_bits(dtype, (double)(dtype == KL_BOOL ? x >> 63 : x >> 61));
}

static void *made_up_array(const struct graph *g, const struct leaf *l, uint64_t seed, uint32_t ordinal)
{
    size_t size = dtype_size(l->dtype), bytes = check_leaf_bytes(g, l);
    uint64_t state = seed * UINT64_C(0xd1342543de82ef95) + ordinal;
    char *all = mem_alloc(bytes + 1);
    for (size_t i = 0; all && i < bytes; i += size) {
        uint64_t bits = made_up(l->dtype, &state);
        memcpy(all + i, &bits, size);
    }
    return all;
}

static bool fill_arrays(void **to, const struct graph *g, const struct leaves *l, uint64_t seed)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (!to[i] && !(to[i] = made_up_array(g, &l->v[i], seed, i)))
            return false;
    return true;
}

bool check_values_fill(struct check_values *v, const struct graph *g, uint64_t seed, struct err *e)
{
    return (fill_arrays(v->input, g, &g->input, 2 * seed) && fill_arrays(v->state, g, &g->state, 2 * seed + 1)) ||
           err_set(e, KL_ERR_MEMORY, "out of memory: values of @%s", g->name);
}

bool check_values_made_up(struct check_values *v, const struct graph *g, uint64_t seed, struct err *e)
{
    if (!check_values_room(v, g, e))
        return false;
    for (uint32_t i = 0; i < g->slot.n; i++)
        v->slot[i] = values_slot(g->slot.v[i].dtype);
    return check_values_fill(v, g, seed, e);
}

void check_values_free(struct check_values *v)
{
    for (uint32_t i = 0; v->input && i < v->ninput; i++)
        mem_free(v->input[i]);
    for (uint32_t i = 0; v->state && i < v->nstate; i++)
        mem_free(v->state[i]);
    mem_free(v->input);
    mem_free(v->state);
    mem_free(v->slot);
    *v = (struct check_values){0};
}
