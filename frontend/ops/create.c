/* Ops without operands: the caller's data, numbers, indices, random bits. */
#include "frontend/frontend.h"
#include <string.h>

/* Checks a dtype and resolves KL_FLOAT and KL_INT for the device. */
static bool dtype_ok(struct thread *t, const char *op, kl_device device, kl_dtype *dtype)
{
    *dtype = device_dtype(device, *dtype);
    if ((unsigned)*dtype < KL_DTYPE_COUNT)
        return true;
    fail(t, KL_ERR_TYPE, "%s: dtype %u does not exist", op, (unsigned)*dtype);
    return false;
}

/* Checks the arguments of ops that fill a shape and puts them into c. */
static bool leaf_call(struct thread *t, struct call *c, kl_device device, kl_dtype dtype, int rank,
                      const int64_t *dims)
{
    bool ok = dtype_ok(t, c->op, device, &dtype);
    c->device = device;
    c->proto.dtype = (uint8_t)dtype;
    c->has_target = true;
    return ok && shape_of(t, c->op, rank, dims, &c->target);
}

static bool device_ok(struct thread *t, const char *op, kl_device device)
{
    if (device_valid(device))
        return true;
    fail(t, KL_ERR_DEVICE, "%s: %u is no device", op, device.id);
    return false;
}

kl_tensor input_of(const char *op, kl_device device, kl_dtype dtype, const struct shape *actual,
                   const struct symbolic *symbolic, const void *data)
{
    struct thread *t = thread_self();
    struct call c = {.op = op, .proto.op = OP_input, .symbolic = symbolic};
    if (!t || !leaf_call(t, &c, device, dtype, (int)actual->rank, actual->dim) || !device_ok(t, op, device))
        return t ? poison(t) : kl_none;
    size_t bytes = (size_t)shape_count(&c.target) * dtype_size(c.proto.dtype);
    struct err e;
    e.code = KL_OK;
    if (device_index(device) == DEVICE_META)
        return (c.data = meta_value(&e)) ? record(&c) : refuse(t, e.code, "%s: %s", op, e.msg);
    if (bytes && !data)
        return refuse(t, KL_ERR_ARGUMENT, "%s: data is NULL", op);
    if (!(c.data = buffer_copy_of(device_index(device), data, bytes, &e)))
        return refuse(t, e.code, "%s: %s", op, e.msg);
    return record(&c);
}

kl_tensor kl_input(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, const void *data)
{
    struct thread *t = thread_self();
    struct shape s;
    if (!t || !shape_of(t, "input", rank, dims, &s))
        return t ? poison(t) : kl_none;
    if (shape_is_symbolic(&s))
        return refuse(t, KL_ERR_SHAPE, "input: a length is a symbol: kl_input_symbolic takes the array's, too");
    return input_of("input", device, dtype, &s, NULL, data);
}

static void keep_memory(void *ctx) { (void)ctx; }

typedef struct buffer *wrap_fn(int device, void *data, size_t bytes, void (*release)(void *), void *ctx,
                               struct err *e);
static kl_tensor wrap_memory(wrap_fn *as_buffer, kl_device device, kl_dtype dtype, int rank,
                             const int64_t *dims, void *data, void (*release)(void *ctx), void *ctx)
{
    struct thread *t = thread_self();
    struct call c = {.op = "wrap", .proto.op = OP_input};
    struct err e;
    e.code = KL_OK;
    if (!release)
        release = keep_memory;
    if (t && leaf_call(t, &c, device, dtype, rank, dims) && device_ok(t, "wrap", device)) {
        size_t bytes = (size_t)shape_count(&c.target) * dtype_size(c.proto.dtype);
        if (shape_is_symbolic(&c.target))
            fail(t, KL_ERR_SHAPE, "wrap: a length is a symbol: kl_input_symbolic takes the array's, too");
        else if (bytes && !data)
            fail(t, KL_ERR_ARGUMENT, "wrap: data is NULL");
        else if ((uintptr_t)data % dtype_size(c.proto.dtype))
            fail(t, KL_ERR_ARGUMENT, "wrap: data is not aligned to an element");
        else if (!(c.data = as_buffer(device_index(device), data, bytes, release, ctx, &e)))
            fail(t, e.code, "wrap: %s", e.msg);
    }
    if (c.data)
        return record(&c);
    release(ctx);
    return t ? poison(t) : kl_none;
}

kl_tensor kl_wrap(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, void *data,
                  void (*release)(void *ctx), void *ctx)
{
    return wrap_memory(buffer_wrap, device, dtype, rank, dims, data, release, ctx);
}
kl_tensor kl_wrap_device(kl_device device, kl_dtype dtype, int rank, const int64_t *dims,
                         void *address, void (*release)(void *ctx), void *ctx)
{
    return wrap_memory(buffer_adopt, device, dtype, rank, dims, address, release, ctx);
}

/* ---- numbers ---- */

kl_tensor kl_scalar(kl_device device, kl_dtype dtype, double value)
{
    struct thread *t = thread_self();
    if (!t || !dtype_ok(t, "scalar", device, &dtype))
        return t ? poison(t) : kl_none;
    struct call c = {.op = "scalar", .proto = {.op = OP_slot, .dtype = (uint8_t)dtype},
                     .device = device, .bits = dtype_bits(dtype, value)};
    return record(&c);
}

kl_tensor kl_const(kl_device device, kl_dtype dtype, double value)
{
    struct thread *t = thread_self();
    if (!t || !dtype_ok(t, "const", device, &dtype))
        return t ? poison(t) : kl_none;
    struct call c = {.op = "const", .proto = {.op = OP_const, .dtype = (uint8_t)dtype},
                     .device = device};
    c.proto.attr.konst.bits = dtype_bits(dtype, value);
    return record(&c);
}

kl_tensor const_like(const struct view *x, double value)
{
    return kl_const(x->device, (kl_dtype)x->dtype, value);
}

/* A number in every element; constant: compiled in. */
static kl_tensor create_fill(const char *op, kl_device device, kl_dtype dtype, int rank,
                      const int64_t *dims, double value, bool constant)
{
    static const struct shape scalar;
    struct thread *t = thread_self();
    struct shape s;
    if (!t || !dtype_ok(t, op, device, &dtype) || !shape_of(t, op, rank, dims, &s))
        return t ? poison(t) : kl_none;
    if (!(t = compose_begin(op)))
        return kl_none;
    kl_tensor number = constant ? kl_const(device, dtype, value) : kl_scalar(device, dtype, value);
    return compose_end(t, rank ? broadcast_to(op, number, &scalar, &s) : number);
}

kl_tensor kl_zeros(kl_device device, kl_dtype dtype, int rank, const int64_t *dims)
{
    return create_fill("zeros", device, dtype, rank, dims, 0, true);
}

kl_tensor kl_ones(kl_device device, kl_dtype dtype, int rank, const int64_t *dims)
{
    return create_fill("ones", device, dtype, rank, dims, 1, true);
}

kl_tensor kl_full(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, double value)
{
    return create_fill("full", device, dtype, rank, dims, value, false);
}

/* ---- indices ---- */

static kl_tensor create_iota(const char *op, kl_device device, kl_dtype dtype, int rank, const int64_t *dims, int axis)
{
    struct thread *t = thread_self();
    struct call c = {.op = op, .proto.op = OP_iota};
    uint32_t at;
    if (!t || !leaf_call(t, &c, device, dtype, rank, dims) || !axis_of(t, op, &c.target, axis, &at))
        return t ? poison(t) : kl_none;
    c.proto.attr.axis.axis = at;
    return record(&c);
}

kl_tensor kl_iota(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, int axis)
{
    return create_iota("iota", device, dtype, rank, dims, axis);
}

kl_tensor kl_arange(kl_device device, kl_dtype dtype, int64_t n)
{
    return create_iota("arange", device, dtype, 1, &n, 0);
}

/* ---- random bits ---- */

kl_tensor kl_random_seed(kl_device device, uint64_t seed)
{
    struct call c = {.op = "random_seed", .proto = {.op = OP_slot, .dtype = KL_U64}, .device = device,
                     .bits = seed};
    return record(&c);
}

kl_tensor kl_random_bits_seeded(kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims)
{
    struct thread *t = thread_self();
    struct view v;
    struct call c = {.op = "random_bits", .proto.op = OP_random, .in = {seed}};
    if (!t)
        return kl_none;
    if (!describe(t, c.op, "the seed", seed, &v) || !leaf_call(t, &c, v.device, dtype, rank, dims))
        return poison(t);
    c.keys = t->generator;
    return record(&c);
}

kl_tensor kl_random_bits(kl_device device, kl_dtype dtype, int rank, const int64_t *dims, uint64_t seed)
{
    struct thread *t = thread_self();
    struct call s = {.op = "random_bits", .proto = {.op = OP_slot, .dtype = KL_U64}, .device = device,
                     .bits = seed};
    struct call c = {.op = "random_bits", .proto.op = OP_random};
    if (!t || !leaf_call(t, &c, device, dtype, rank, dims))
        return t ? poison(t) : kl_none;
    if (!(t = compose_begin("random_bits")))
        return kl_none;
    c.in[0] = record(&s);
    c.keys = t->generator;
    return compose_end(t, record(&c));
}
