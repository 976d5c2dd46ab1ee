/* Values of the leaves of a graph that an edit made of another. */
#include "check.h"
#include <string.h>

/* What the interpreter gives for a node of g; NULL: it has no value of its own there, or there is no memory. */
static void *node_value(const struct graph *g, ref r, const struct check_values *v)
{
    struct edit keep = {.kind = EDIT_KEEP_VALUE, .of = g, .node = r};
    struct edit_leaves leaves = {0};
    struct err e = {0};
    struct graph *cone = edit_apply(g, &keep, &leaves);
    struct check_values own = {0};
    struct check_outputs out = {0};
    void *value = NULL;
    if (cone && check_values_edited(&own, cone, &leaves, v, g, NULL, 0, &e) &&
        check_reference(cone, (int)graph_device(g), &own, &out, &e)) {
        value = out.data[0];
        out.data[0] = NULL;
    }
    check_outputs_free(&out);
    check_values_free(&own);
    edit_leaves_free(&leaves);
    graph_free(cone);
    return value;
}

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = mem_alloc(bytes + 1);
    return copy ? memcpy(copy, data, bytes) : NULL;
}

static bool leaves_same_type(const struct graph *g, const struct leaf *a, const struct graph *h, const struct leaf *b)
{
    return a->dtype == b->dtype && shape_equal(&g->shape[a->shape], &h->shape[b->shape]);
}

static void keep_arrays(void **to, const struct graph *edited, const struct leaves *now, const uint32_t *origin,
                        void *const *from, const struct graph *g, const struct leaves *old)
{
    for (uint32_t i = 0; i < now->n; i++)
        if (!(origin[i] & EDIT_NEW_LEAF) && leaves_same_type(edited, &now->v[i], g, &old->v[origin[i]]))
            to[i] = copy_of(from[origin[i]], check_leaf_bytes(edited, &now->v[i]));
}

bool check_values_edited(struct check_values *now, const struct graph *edited, const struct edit_leaves *leaves,
                         const struct check_values *v, const struct graph *g, void *const *known, uint64_t seed,
                         struct err *e)
{
    if (!check_values_room(now, edited, e))
        return false;
    keep_arrays(now->input, edited, &edited->input, leaves->input, v->input, g, &g->input);
    keep_arrays(now->state, edited, &edited->state, leaves->state, v->state, g, &g->state);
    for (uint32_t i = 0; i < edited->slot.n; i++)
        now->slot[i] = v->slot[leaves->slot[i]];
    for (uint32_t i = 0; i < edited->input.n; i++)
        if (leaves->input[i] & EDIT_NEW_LEAF) {
            ref r = leaves->input[i] & ~(uint32_t)EDIT_NEW_LEAF;
            now->input[i] = known && known[r] ? copy_of(known[r], node_bytes(g, r)) : node_value(g, r, v);
        }
    return check_values_fill(now, edited, seed, e);
}
