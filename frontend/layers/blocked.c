/* Blocked: matrices tile by tile, under the key that MKL-DNN's layouts had (MkldnnCPU). */
#include "wrapper.h"
#include <inttypes.h>

static kl_tensor tiles_of(kl_tensor h) { return wrapper_of(h, &layer_blocked)->part[0]; }

static int64_t block_of(kl_tensor h)
{
    const struct wrapper *w = wrapper_of(h, &layer_blocked);
    return w ? w->number[0] : 0;
}

/* From [M / b, N / b, b, b]. */
static kl_tensor blocked_make(struct thread *t, kl_tensor tiles)
{
    struct view v = view_of(tiles);
    int64_t block = v.shape.dim[2], number[WRAPPER_NUMBERS] = {block};
    v.shape = shape_make(2, (int64_t[]){v.shape.dim[0] * block, v.shape.dim[1] * block});
    return wrap(t, &layer_blocked, &v, 1, &tiles, number);
}

static const int exchange[4] = {0, 2, 1, 3}; /* swaps rows of tiles with rows in tiles; its own inverse */

static kl_tensor blocked_dense(struct thread *t, kl_tensor h)
{
    (void)t;
    struct view v = view_of(h);
    return reshape_to("blocked", kl_permute(tiles_of(h), exchange), &v.shape);
}

/* Are the operands matrices with equal blocks, or numbers? */
static bool blocks_match(const struct call *c)
{
    int64_t block = 0;
    struct shape shape = {0};
    for (unsigned i = 0; i < call_operands(c); i++) {
        struct view v = view_of(c->in[i]);
        int64_t own = block_of(c->in[i]);
        if (own ? block && (own != block || !shape_equal(&shape, &v.shape)) : v.shape.rank != 0)
            return false;
        block = own ? own : block;
        shape = own ? v.shape : shape;
    }
    return true;
}

static kl_tensor call_blocked(struct thread *t, const struct call *c)
{
    static const int swapped[4] = {1, 0, 3, 2};
    unsigned op = c->proto.op;
    if ((op_is_elementwise(op) || op == OP_cast) && blocks_match(c)) {
        struct call inner = *c;
        for (unsigned i = 0; i < call_operands(c); i++)
            inner.in[i] = block_of(c->in[i]) ? tiles_of(c->in[i]) : c->in[i];
        return blocked_make(t, record(&inner));
    }
    if (op == OP_permute && c->proto.attr.permute.perm[0] == 1)
        return blocked_make(t, kl_permute(tiles_of(c->in[0]), swapped));
    bool product = op_is_product(op) && c->proto.attr.dot.ncon == 1 && !c->proto.attr.dot.nbatch &&
                   block_of(c->in[0]) == block_of(c->in[1]);
    if (product) { /* over tiles, and inside of them: [M / b, b, N / b, b] */
        int a = (int)axis_get(c->proto.attr.dot.con_a, 0), b = (int)axis_get(c->proto.attr.dot.con_b, 0);
        kl_tensor y = kl_dot_general(tiles_of(c->in[0]), tiles_of(c->in[1]), 0, NULL, NULL, 2, (int[]){a, a + 2},
                                     (int[]){b, b + 2});
        return blocked_make(t, kl_permute(y, exchange));
    }
    return call_dense(t, c, &layer_blocked);
}

const struct layer layer_blocked = {.name = "blocked", .key = LAYER_Mkldnn, .grad_parts = 1, .call = call_blocked,
                                    .dense = blocked_dense};

kl_tensor kl_blocked(kl_tensor a, int64_t block)
{
    struct thread *t = checked_begin("blocked");
    struct view v;
    char text[SHAPE_TEXT];
    if (!t)
        return op_failed();
    if (!describe(t, "blocked", "the tensor", a, &v))
        return compose_end(t, poison(t));
    if (v.shape.rank != 2 || block < 1 || v.shape.dim[0] % block || v.shape.dim[1] % block)
        return compose_end(t, refuse(t, KL_ERR_SHAPE, "blocked: %s is not cut into tiles of %" PRId64,
                                     shape_text(&v.shape, text, sizeof text), block));
    if (wrapper_of(a, NULL))
        a = kl_dense(a);
    kl_tensor cut = kl_reshape(a, 4, (int64_t[]){v.shape.dim[0] / block, block, v.shape.dim[1] / block, block});
    return compose_end(t, blocked_make(t, kl_permute(cut, exchange)));
}
