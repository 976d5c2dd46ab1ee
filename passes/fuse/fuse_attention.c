/* Adds attention_stats, which the gradient of an attention needs, to the attention's kernel: the kernel has both
 * numbers at the end of each row.  Except for these and row kernels, a kernel has one anchor. */
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
