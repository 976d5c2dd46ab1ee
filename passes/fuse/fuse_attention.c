/* Adds attention_stats, which the gradient of an attention needs, to the attention's kernel: the kernel has both
 * numbers at the end of each row.  Makes one kernel of both gradients of an attention, which compute the same scores
 * (lower_attention_grad.c).  Except for these and row kernels, a kernel has one anchor. */
#include "fuse.h"
#include <string.h>

/* Does `stats` compute the statistics of attention node r? */
static bool is_statistics_of(const struct graph *g, ref stats, ref r)
{
    const struct node *n = &g->node[r], *s = &g->node[stats];
    bool seen = s->nin == opinfo[OP_attention_stats].nin;
    return n->op == OP_attention && n->device == s->device && n->in[0] == s->in[0] && n->in[1] == s->in[1] &&
           n->nin == (seen ? 4 : 3) && (!seen || n->in[3] == s->in[2]) && !memcmp(&n->attr, &s->attr, sizeof n->attr);
}

void fuse_attention(struct fuser *f)
{
    const struct graph *g = f->g;
    for (ref s = 1; s < g->nnode; s++) {
        if (g->node[s].op != OP_attention_stats || group_of(f, s) == GROUP_NONE)
            continue;
        bool linear;
        ref q = node_operand(g, s, 0, &linear);
        for (uint32_t i = f->readers[q]; i < f->readers[q + 1]; i++) {
            ref r = f->reader[i];
            uint32_t a = group_of(f, r), b = group_of(f, s);
            if (a == b || a == GROUP_NONE || !is_statistics_of(g, s, r) || f->group[a].remat != f->group[b].remat ||
                fuse_indirect_path(f, a, b))
                continue;
            fuse_join(f, a, b, JOIN_SIBLINGS);
            break;
        }
    }
}

/* A kernel of both gradients has a task for each matrix, and computes 5 products of L x M where two kernels, whose
 * tasks are tiles of rows, compute 7.  Is it faster, if the thread with the most matrices is what is waited for? */
static bool enough_matrices(const struct fuser *f, int64_t matrices)
{
    int64_t threads = f->processor.threads, max = threads ? (matrices + threads - 1) / threads : 0;
    return threads && matrices < INT32_MAX && 5 * max * threads <= 7 * matrices;
}

/* Tiles of queries are the blocks of the numeric order: a width that vector loops can have. */
static bool block_is_width(uint32_t block) { return block && block <= 64 && !(block & (block - 1)); }

static bool can_fuse_gradients(const struct fuser *f, ref queries, ref keys)
{
    const struct graph *g = f->g;
    const struct node *n = &g->node[queries], *m = &g->node[keys];
    union attr same = m->attr;
    same.attention.of = ATTENTION_QUERIES;
    const struct shape *s = node_shape(g, queries);
    int64_t rows = s->dim[s->rank - 2], depth = s->dim[s->rank - 1];
    return m->op == OP_attention_grad && m->attr.attention.of == ATTENTION_KEYS && n->device == m->device &&
           f->processor.devices >> n->device & 1 && n->nin == m->nin && !memcmp(n->in, m->in, n->nin * sizeof *n->in) &&
           !memcmp(&n->attr, &same, sizeof same) && block_is_width(n->attr.attention.block) &&
           rows > 0 && depth > 0 && node_shape(g, keys)->dim[s->rank - 1] > depth && node_numel(g, keys) > 0 &&
           enough_matrices(f, node_numel(g, queries) / (rows * depth));
}

void fuse_attention_gradients(struct fuser *f)
{
    const struct graph *g = f->g;
    for (ref q = 1; q < g->nnode; q++) {
        if (g->node[q].op != OP_attention_grad || g->node[q].attr.attention.of != ATTENTION_QUERIES ||
            group_of(f, q) == GROUP_NONE)
            continue;
        bool linear;
        ref x = node_operand(g, q, 0, &linear);
        for (uint32_t i = f->readers[x]; i < f->readers[x + 1]; i++) {
            uint32_t a = group_of(f, q), b = group_of(f, f->reader[i]);
            if (a == b || b == GROUP_NONE || !can_fuse_gradients(f, q, f->reader[i]) ||
                f->group[a].remat != f->group[b].remat || fuse_indirect_path(f, a, b))
                continue;
            fuse_join(f, a, b, JOIN_SIBLINGS);
            break;
        }
    }
}
