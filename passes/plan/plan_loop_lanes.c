/* A scan over many equal loops as one kernel: where each element of all values depends only on the elements of the same
 * number, as in a batch of differential equations, the elements are lanes of vectors, and each vector runs through all
 * iterations with its carried values in registers.  Threads share the vectors out. */
#include "plan_loop.h"

/* The number of elements of carried values and results; 0: they differ. */
static int64_t lanes_count(const struct loop_kernel *b)
{
    int64_t n = shape_count(&b->body->shape[b->body->input.v[0].shape]);
    for (uint32_t i = 0; i < b->n->attr.region.carried; i++)
        if (shape_count(&b->body->shape[b->body->input.v[i].shape]) != n)
            return 0;
    for (uint32_t i = 0; i < b->nout; i++)
        if (node_numel(b->body, b->body->out[i].value) != n)
            return 0;
    return n;
}

/* Lanes of a vector: four registers, for operations of one wait for each other (256 fits of `./run bench small` take
 * 188 us, with two 282, and with arrays in memory 202), or all elements; 0: neither. */
static int64_t lanes_width(const struct loop_kernel *b, int64_t count)
{
    enum { REGISTERS = 4, MIN_WIDTH = 8 };
    int64_t bytes = (int64_t)dtype_size(b->body->input.v[0].dtype);
    int64_t width = REGISTERS * (int64_t)b->p->targets->v[0].caps->vector_bytes / bytes;
    width = width < MAX_VECTOR ? width : MAX_VECTOR;
    if (count >= MIN_WIDTH && count <= width && !(count & (count - 1)))
        return count;
    return count % width ? 0 : width;
}

static bool lanes_array(struct loop_kernel *b, struct inline_array *a, struct inline_array as)
{
    *a = as;
    return (a->scalar = mem_arena_alloc(&b->mem, sizeof *a->scalar));
}

/* The parameters of an iteration, and its values, which have none yet. */
static bool lanes_arrays(struct loop_kernel *b, val at, int64_t count)
{
    uint32_t carried = b->n->attr.region.carried;
    for (uint32_t i = 0; i < b->nin; i++) {
        const struct leaf *in = &b->body->input.v[i];
        struct inline_array a = {.lbuf = i, .count = shape_count(&b->body->shape[in->shape]), .dtype = in->dtype};
        a.first = i >= carried && i < carried + b->n->attr.region.scanned ? ix_scale(b->k, at, a.count) : 0;
        if (!lanes_array(b, &b->input[i], a))
            return false;
    }
    for (uint32_t i = 0; i < b->nout; i++)
        if (!lanes_array(b, &b->yield[i], (struct inline_array){.count = count, .local = true,
                                          .dtype = b->body->node[b->body->out[i].value].dtype}))
            return false;
    for (ref r = 1; r < b->body->nnode; r++)
        if (!lanes_array(b, &b->value[r], (struct inline_array){.count = node_numel(b->body, r), .local = true,
                                          .dtype = b->body->node[r].dtype}))
            return false;
    return true;
}

static bool lanes_command(struct loop_kernel *b, const struct command *c, val element, int64_t count)
{
    if (c->kind == CMD_COPY) {
        struct inline_array *to = loop_argument(b, c, 0), *from = loop_argument(b, c, 1);
        if (!*from->scalar && !from->local)
            *from->scalar = k_load(b->k, from->lbuf, from->first ? ix_add(b->k, from->first, element) : element, 0);
        *to->scalar = *from->scalar;
        return from->count == count && to->count == count;
    }
    struct inline_array **array = mem_arena_alloc(&b->mem, (c->narg + 1) * sizeof *array);
    for (uint32_t i = 0; array && i < c->narg; i++)
        if (!(array[i] = loop_argument(b, c, i)))
            return false;
    return array && c->kind == CMD_KERNEL &&
           kernel_inline_lanes(b->k, b->p->root->p->kernel[c->kernel], array, element, count);
}

/* One iteration. */
static bool lanes_body(struct loop_kernel *b, val at, val element, int64_t count, const val *carry)
{
    uint32_t carried = b->n->attr.region.carried;
    if (!lanes_arrays(b, at, count))
        return false;
    for (uint32_t i = 0; i < carried; i++)
        *b->input[i].scalar = carry[i];
    for (uint32_t c = 0; c < b->sub->ncmd; c++)
        if (!lanes_command(b, &b->sub->cmd[c], element, count))
            return false;
    for (uint32_t i = 0; i < b->nout; i++) {
        if (!*b->yield[i].scalar)
            return false;
        if (i >= carried && b->result[i])
            k_store(b->k, b->result[i] - 1, ix_add(b->k, ix_scale(b->k, at, count), element), *b->yield[i].scalar, 0);
    }
    for (uint32_t i = 0; i < carried; i++)
        k_next(b->k, carry[i], *b->yield[i].scalar);
    return !b->k->err.code;
}

bool loop_lanes_emit(struct loop_kernel *b)
{
    struct kernel *k = b->k;
    uint32_t carried = b->n->attr.region.carried;
    int64_t count = carried ? lanes_count(b) : 0, width = count ? lanes_width(b, count) : 0;
    val *carry = mem_arena_alloc(&b->mem, (carried + 1) * sizeof *carry);
    if (!width || !carry)
        return false;
    kernel_take_symbols(k, &b->p->root->p->placeholders);
    val task = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, count / width), 1);
    val length = ix_size(k, kernel_length(k, b->n->attr.region.length));
    val lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, width), 1);
    val element = ix_add(k, ix_scale(k, task, width), lane);
    for (uint32_t i = 0; i < carried; i++)
        carry[i] = k_load(k, i, element, 0);
    val loop = k_loop(k, LOOP_SERIAL, k_int(k, 0), length, 1), at = loop;
    for (uint32_t i = 0; i < carried; i++)
        carry[i] = k_carry(k, carry[i]);
    if (b->n->attr.region.flags & REGION_REVERSE)
        at = ix_sub(k, ix_sub(k, length, k_int(k, 1)), loop);
    val first = k->ninst;
    if (!lanes_body(b, at, element, count, carry))
        return false;
    int64_t work = loop_times_length(b, 2.0 * (k->ninst - first));
    k_end(k, loop);
    for (uint32_t i = 0; i < carried; i++) {
        val last = k_out(k, carry[i]);
        if (b->result[i])
            k_store(k, b->result[i] - 1, element, last, 0);
    }
    k_end(k, lane);
    k_end(k, task);
    k->extent = count / width;
    k->sched.grain = work >= plan_loop_task_work && k->extent > 1;
    return kernel_hoist(k, loop);
}
