/* Collectives between processes: custom ops (runtime/comm/) that give a tensor and a token.  As kl_print's, they are
 * chained by their tokens, the last of which is an output of the program: so they all run, in the order of their
 * calls, which is the same on all ranks. */
#include "frontend/frontend.h"
#include "ir/graph/custom.h"
#include "runtime/comm/comm.h"
#include <string.h>

#define DEFAULT_TIMEOUT 10.0

kl_comm *kl_comm_new(const kl_comm_options *options)
{
    static const kl_comm_options none;
    const kl_comm_options *o = options ? options : &none;
    struct thread *t = thread_self();
    struct comm_place place;
    struct err e;
    e.code = KL_OK;
    if (!t)
        return NULL;
    if (o->timeout < 0 || o->timeout != o->timeout || o->ranks < 0 || o->port < 0 || o->port > 65535 ||
        (o->ranks && (o->rank < 0 || o->rank >= o->ranks))) {
        report(t, KL_ERR_ARGUMENT, "comm_new: rank %d of %d, port %d, timeout %g s", o->rank, o->ranks, o->port,
               o->timeout);
        return NULL;
    }
    kl_comm *c = NULL;
    if (comm_place_find(&place, &e)) {
        if (o->ranks) {
            place.rank = place.local_rank = o->rank;
            place.ranks = o->ranks;
            place.mpi = false;
        }
        place.address = o->address ? o->address : place.address;
        place.port = o->port ? o->port : place.port;
        place.secret = o->secret ? o->secret : place.secret;
        c = comm_open(o->transport, &place, o->timeout > 0 ? o->timeout : DEFAULT_TIMEOUT, &e);
    }
    if (!c)
        report(t, e.code, "comm_new: %s", e.msg);
    return c;
}

int kl_comm_rank(const kl_comm *comm) { return comm ? comm->rank : -1; }
int kl_comm_ranks(const kl_comm *comm) { return comm ? comm->ranks : -1; }
int kl_comm_local_rank(const kl_comm *comm) { return comm ? comm->local_rank : -1; }
const char *kl_comm_transport(const kl_comm *comm) { return comm ? comm_transport_name() : "none"; }

kl_status kl_comm_barrier(kl_comm *comm)
{
    struct thread *t = thread_self();
    struct err e;
    e.code = KL_OK;
    if (!t)
        return KL_ERR_MEMORY;
    if (!comm)
        return report(t, KL_ERR_ARGUMENT, "comm_barrier: no communicator");
    return comm_barrier(comm, &e) ? KL_OK : report(t, e.code, "comm_barrier: %s", e.msg);
}

void kl_comm_free(kl_comm *comm)
{
    if (comm)
        comm_close(comm);
}

/* A collective on its way. */
struct collect {
    struct thread *t;
    const char *name;         /* in messages */
    kl_comm *comm;
    enum comm_op op;
    enum comm_reduction kind;
    int root;
    int number;               /* among the collectives of the trace */
};

/* Records the op of a collective.  in: the tensor and, but for a gradient, the last token if there is one.  part_of: ""
 * or the collective of which it is a part. */
static kl_status record_op(const struct collect *c, enum comm_op op, int gradient_of, const char *part_of,
                           const kl_tensor *in, uint32_t nin, kl_tensor out[2])
{
    struct view v;
    char text[COMM_ATTR], message[CUSTOM_MESSAGE] = "";
    kl_type in_type[2], type[2];
    struct comm_attr attr = {.number = c->comm->number, .ranks = c->comm->ranks, .kind = c->kind, .root = c->root,
                             .gradient_of = gradient_of};
    struct err e;
    e.code = KL_OK;
    if (!describe(c->t, c->name, "the tensor", in[0], &v))
        return KL_ERR_HANDLE;
    snprintf(attr.part_of, sizeof attr.part_of, "%s", part_of);
    in_type[0] = custom_type(v.dtype, &v.shape);
    in_type[1] = (kl_type){.dtype = KL_U8};
    struct custom_use use = {.op = custom_find(comm_op_name(op)), .attr = text, .type = type};
    use.nattr = (size_t)comm_op_attr(text, sizeof text, &attr);
    kl_custom_call call = {.nin = nin, .nout = 2, .in_type = in_type, .attr = text, .attr_bytes = use.nattr,
                           .message = message, .message_bytes = sizeof message};
    if (!custom_types(use.op, &call, type, &e))
        return fail(c->t, e.code, "%s: %s", c->name, e.msg);
    return record_custom(c->name, &use, nin, in, 2, out);
}

/* Row r of a matrix, as a vector. */
static kl_tensor rank_row(kl_tensor matrix, int64_t row, int64_t length)
{
    return kl_reshape(kl_narrow(matrix, 0, row, 1), 1, &length);
}

/* The rows of a [ranks, length] matrix, combined in their order as runtime/comm/reduce.c does it. */
static kl_tensor combine_rows(const struct collect *c, kl_tensor rows, int64_t length)
{
    kl_dtype dtype = kl_dtype_of(rows);
    bool half = dtype == KL_F16 || dtype == KL_BF16;
    kl_tensor wide = half ? kl_cast(rows, KL_F32) : rows, sum = rank_row(wide, 0, length);
    for (int r = 1; r < c->comm->ranks; r++) {
        kl_tensor row = rank_row(wide, r, length);
        sum = c->kind == COMM_MAX   ? kl_maximum(sum, row)
              : c->kind == COMM_MIN ? kl_minimum(sum, row)
                                    : kl_add(sum, row);
    }
    if (c->kind == COMM_MEAN)
        sum = kl_div_scalar(sum, c->comm->ranks);
    return half ? kl_cast(sum, dtype) : sum;
}

/* A reduction of values on a device whose memory the transport can access: each rank receives its part of all ranks'
 * tensors, and kernels of the program combine the parts in the order of the ranks.  So the result has the same bits as
 * that of the host, whatever order the transport's own sums have. */
static kl_status record_on_device(const struct collect *c, int gradient_of, const kl_tensor *in, uint32_t nin,
                                  kl_tensor out[2])
{
    int64_t dims[KL_MAX_RANK], n = kl_numel(in[0]), ranks = c->comm->ranks, length = (n + ranks - 1) / ranks;
    int rank = kl_shape(in[0], dims);
    char part_of[COMM_PART], text[SHAPE_TEXT];
    struct shape shape = shape_make((uint32_t)rank, dims);
    snprintf(part_of, sizeof part_of, "%s %s %s%.80s", c->name + strlen("comm_"), comm_reduction_name(c->kind),
             dtype_name(kl_dtype_of(in[0])), shape_text(&shape, text, sizeof text));
    kl_tensor flat = kl_reshape(in[0], 1, &n), next[2] = {kl_none, nin > 1 ? in[1] : kl_none};
    if (length * ranks > n) {
        int64_t rest = length * ranks - n;
        kl_tensor both[2] = {flat, kl_zeros(kl_device_of(flat), kl_dtype_of(flat), 1, &rest)};
        flat = kl_concat(2, both, 0);
    }
    next[0] = kl_reshape(flat, 2, (int64_t[]){ranks, length});
    kl_status status = record_op(c, COMM_ALL_TO_ALL, gradient_of, part_of, next, nin, out);
    if (status != KL_OK)
        return status;
    kl_tensor own = combine_rows(c, out[0], length);
    if (c->op == COMM_REDUCE_SCATTER) {
        dims[0] /= ranks;
        out[0] = kl_reshape(own, rank, dims);
        return kl_check(out[0]);
    }
    next[0] = own;
    next[1] = out[1];
    status = record_op(c, COMM_ALL_GATHER, gradient_of, part_of, next, nin > 1 ? 2 : 1, out);
    if (status == KL_OK)
        out[0] = kl_reshape(kl_narrow(out[0], 0, 0, n), rank, dims);
    return status;
}

static kl_status record_collective(const struct collect *c, int gradient_of, const kl_tensor *in, uint32_t nin,
                                   kl_tensor out[2])
{
    bool reduces = c->op == COMM_ALL_REDUCE || c->op == COMM_REDUCE_SCATTER;
    struct view v;
    if (!describe(c->t, c->name, "the tensor", in[0], &v))
        return KL_ERR_HANDLE;
    if (reduces && kl_numel(in[0]) > 0 && comm_moves_device(c->comm, device_index(v.device)))
        return record_on_device(c, gradient_of, in, nin, out);
    return record_op(c, c->op, gradient_of, "", in, nin, out);
}

static kl_status collect_value(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nout;
    return record_collective(ctx, 0, in, nin, out);
}

/* The gradient of the sum of what all ranks compute.  in: the tensor, a token or none, both results, and the gradient
 * of the first result. */
static kl_status collect_gradient(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    static const enum comm_op of[] = {[COMM_ALL_REDUCE] = COMM_ALL_REDUCE, [COMM_REDUCE_SCATTER] = COMM_ALL_GATHER,
                                      [COMM_ALL_GATHER] = COMM_REDUCE_SCATTER, [COMM_BROADCAST] = COMM_REDUCE};
    const struct collect *forward = ctx;
    struct collect c = *forward;
    kl_tensor result[2] = {kl_none, kl_none}, given = in[nin - 1];
    (void)nout;
    c.op = of[forward->op];
    if (c.op == COMM_REDUCE_SCATTER || c.op == COMM_REDUCE)
        c.kind = COMM_SUM;
    kl_status status = record_collective(&c, forward->number, &given, 1, result);
    if (status == KL_OK && forward->op == COMM_REDUCE_SCATTER && forward->kind == COMM_MEAN)
        result[0] = kl_div_scalar(result[0], c.comm->ranks);
    out[0] = result[0];
    return status;
}

/* The node in the open trace, of a tensor whose axis 0 is the one that is cut or grows. */
static kl_tensor collect_node(struct collect *c, kl_tensor a)
{
    struct thread *t = c->t;
    struct view v;
    kl_tensor out[2], operand[2] = {a};
    struct trace *outermost = t->trace;
    if (!describe(t, c->name, "the tensor", a, &v))
        return op_failed();
    operand[1] = region_token(t, v.device);
    if (t->trace->err.code)
        return op_failed();
    while (outermost->outer)
        outermost = outermost->outer;
    c->number = ++outermost->collectives;
    uint32_t nin = operand[1].id ? 2 : 1;
    bool differentiable = dtype_is_float(v.dtype) && c->kind != COMM_MAX && c->kind != COMM_MIN;
    kl_status status = differentiable ? record_custom_grad(c->name, collect_value, collect_gradient, c, nin,
                                                           operand, 2, out)
                                      : collect_value(c, operand, nin, out, 2);
    if (status != KL_OK)
        return op_failed();
    t->trace->token = out[1];
    return out[0];
}

/* The same along any axis. */
static kl_tensor collect_along(struct collect *c, kl_tensor a, uint32_t axis)
{
    int order[KL_MAX_RANK], back[KL_MAX_RANK], rank = kl_rank(a);
    struct thread *t = compose_begin(c->name);
    if (!t)
        return kl_none;
    for (int i = 0; i < rank; i++)
        order[i] = i == 0 ? (int)axis : i <= (int)axis ? i - 1 : i;
    for (int i = 0; i < rank; i++)
        back[order[i]] = i;
    kl_tensor moved = axis ? kl_permute(a, order) : a, all = collect_node(c, moved);
    return compose_end(t, axis ? kl_permute(all, back) : all);
}

/* Outside of a trace it is one of its own. */
static kl_tensor collect_now(struct collect *c, kl_tensor a, uint32_t axis)
{
    if (kl_trace_begin(c->name) != KL_OK)
        return op_failed();
    kl_tensor y = kl_keep(collect_along(c, a, axis));
    return kl_trace_end() == KL_OK ? y : op_failed();
}

static kl_tensor collect_checked(struct collect *c, kl_tensor a, int axis)
{
    struct view v;
    uint32_t at = 0;
    struct thread *t = c->t = thread_self();
    bool reduces = c->op == COMM_ALL_REDUCE || c->op == COMM_REDUCE_SCATTER;
    bool parts = c->op == COMM_REDUCE_SCATTER || c->op == COMM_ALL_GATHER;
    if (!t)
        return kl_none;
    if ((t->tracing && t->trace->err.code) || effects_reject_in_region(t, c->name))
        return op_failed();
    if (!c->comm)
        return fail(t, KL_ERR_ARGUMENT, "%s: no communicator", c->name), op_failed();
    if (c->root < 0 || c->root >= c->comm->ranks)
        return fail(t, KL_ERR_ARGUMENT, "%s: there is no rank %d of %d", c->name, c->root, c->comm->ranks),
               op_failed();
    if (reduces && (unsigned)c->kind > COMM_MIN)
        return fail(t, KL_ERR_ARGUMENT, "%s: %u is no reduction", c->name, (unsigned)c->kind), op_failed();
    if (!describe(t, c->name, "the tensor", a, &v))
        return op_failed();
    if (*kl_layer_name(a))
        return fail(t, KL_ERR_TYPE, "%s: takes a plain tensor, not a %s one (kl_dense)", c->name,
                    kl_layer_name(a)), op_failed();
    if (device_index(v.device) == DEVICE_META)
        return fail(t, KL_ERR_DEVICE, "%s: " META_HAS_NO_DATA, c->name), op_failed();
    if (reduces && (c->kind == COMM_MEAN ? !dtype_is_float(v.dtype) : c->kind == COMM_SUM && v.dtype == KL_BOOL))
        return fail(t, KL_ERR_TYPE, "%s: no %s of %s", c->name, comm_reduction_name(c->kind),
                    dtype_name(v.dtype)), op_failed();
    if (parts && !axis_of(t, c->name, &v.shape, axis, &at))
        return op_failed();
    char text[SHAPE_TEXT];
    if (c->op == COMM_REDUCE_SCATTER && v.shape.dim[at] % c->comm->ranks)
        return fail(t, KL_ERR_SHAPE, "%s: axis %u of %s is not %d equal parts", c->name, at,
                    shape_text(&v.shape, text, sizeof text), c->comm->ranks), op_failed();
    return t->tracing ? collect_along(c, a, at) : collect_now(c, a, at);
}

kl_tensor kl_comm_all_reduce(kl_comm *comm, kl_reduction kind, kl_tensor a)
{
    struct collect c = {.name = "comm_all_reduce", .comm = comm, .op = COMM_ALL_REDUCE,
                        .kind = (enum comm_reduction)kind};
    return collect_checked(&c, a, 0);
}

kl_tensor kl_comm_reduce_scatter(kl_comm *comm, kl_reduction kind, int axis, kl_tensor a)
{
    struct collect c = {.name = "comm_reduce_scatter", .comm = comm, .op = COMM_REDUCE_SCATTER,
                        .kind = (enum comm_reduction)kind};
    return collect_checked(&c, a, axis);
}

kl_tensor kl_comm_all_gather(kl_comm *comm, int axis, kl_tensor a)
{
    struct collect c = {.name = "comm_all_gather", .comm = comm, .op = COMM_ALL_GATHER};
    return collect_checked(&c, a, axis);
}

kl_tensor kl_comm_broadcast(kl_comm *comm, int root, kl_tensor a)
{
    struct collect c = {.name = "comm_broadcast", .comm = comm, .op = COMM_BROADCAST,
                        .root = root};
    return collect_checked(&c, a, 0);
}
