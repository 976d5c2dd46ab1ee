/* Attributes: access to fields by their descriptors, dot's axis lists, and the rule that unused bytes are 0. */
#include "ir/ir.h"
#include <string.h>

uint64_t attr_get(const union attr *a, unsigned at, unsigned size)
{
    uint8_t byte;
    uint32_t word;
    uint64_t whole;
    const char *from = (const char *)a + at;
    return size == 1 ? (memcpy(&byte, from, 1), byte) : size == 4 ? (memcpy(&word, from, 4), word)
                                                                  : (memcpy(&whole, from, 8), whole);
}

void attr_set(union attr *a, unsigned at, unsigned size, uint64_t v)
{
    uint8_t byte = (uint8_t)v;
    uint32_t word = (uint32_t)v;
    memcpy((char *)a + at, size == 1 ? (const void *)&byte : size == 4 ? (const void *)&word : &v, size);
}

unsigned node_dims(struct node *n, int64_t *at[2])
{
    unsigned count = 0;
    for (const struct attr_info *i = n->op < OP_COUNT ? opinfo[n->op].attr : NULL; i && i->word; i++)
        if (i->kind == ATTR_DIM)
            at[count++] = (int64_t *)(void *)((char *)&n->attr + i->at);
    return count;
}

uint32_t node_axis(const struct node *n)
{
    for (const struct attr_info *i = opinfo[n->op].attr; i && i->word; i++)
        if (i->kind == ATTR_AXIS)
            return (uint32_t)attr_get(&n->attr, i->at, i->size);
    return 0;
}

bool node_wants_order(const struct node *n)
{
    bool wants = false;
    for (const struct attr_info *i = opinfo[n->op].attr; i && i->word; i++)
        for (unsigned k = 0; i->kind == ATTR_ORDER && k < 2 && i->part[k].word; k++)
            wants |= !attr_get(&n->attr, i->part[k].at, i->part[k].size);
    return wants;
}

bool attr_clear_rest(struct node *n, size_t used)
{
    memset((char *)&n->attr + used, 0, sizeof n->attr - used);
    return true;
}

static bool in_list(uint32_t list, unsigned n, unsigned axis)
{
    for (unsigned i = 0; i < n; i++)
        if (axis_get(list, i) == axis)
            return true;
    return false;
}

uint32_t dot_free_axes(uint32_t rank, uint32_t batch, unsigned nbatch, uint32_t con, unsigned ncon, uint8_t *out)
{
    uint32_t n = 0;
    for (uint32_t axis = 0; axis < rank; axis++)
        if (!in_list(batch, nbatch, axis) && !in_list(con, ncon, axis))
            out[n++] = (uint8_t)axis;
    return n;
}

struct dot_dims dot_sizes(const struct graph *g, const struct node *n)
{
    const struct shape *a = node_shape(g, n->in[0]), *b = node_shape(g, n->in[1]);
    struct dot_dims d = {1, 1, 1, 1};
    for (unsigned i = 0; i < n->attr.dot.nbatch; i++)
        d.batch *= a->dim[axis_get(n->attr.dot.batch_a, i)];
    for (unsigned i = 0; i < n->attr.dot.ncon; i++)
        d.k *= a->dim[axis_get(n->attr.dot.con_a, i)];
    uint8_t free_axis[KL_MAX_RANK];
    uint32_t nfree = dot_free_axes(a->rank, n->attr.dot.batch_a, n->attr.dot.nbatch, n->attr.dot.con_a,
                                   n->attr.dot.ncon, free_axis);
    for (uint32_t i = 0; i < nfree; i++)
        d.m *= a->dim[free_axis[i]];
    nfree = dot_free_axes(b->rank, n->attr.dot.batch_b, n->attr.dot.nbatch, n->attr.dot.con_b, n->attr.dot.ncon,
                          free_axis);
    for (uint32_t i = 0; i < nfree; i++)
        d.n *= b->dim[free_axis[i]];
    return d;
}
