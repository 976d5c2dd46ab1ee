/* Custom ops: registering them, and recording their calls.  A call of an op with a gradient is recorded inside a
 * custom_grad as its region, so that no user function runs between recording and the op's own run. */
#include "frontend/frontend.h"
#include <string.h>

static bool name_fits(const char *name)
{
    return name && *name && memchr(name, 0, CUSTOM_NAME);
}

kl_status kl_custom_register(const char *name, const kl_custom_op *op, void *ctx)
{
    struct thread *t = thread_self();
    struct err e;
    e.code = KL_OK;
    if (!t)
        return KL_ERR_MEMORY;
    if (!name_fits(name))
        return report(t, KL_ERR_ARGUMENT, "custom_register: a name has 1 to %d bytes", CUSTOM_NAME - 1);
    if (!op || !op->types || !op->run)
        return report(t, KL_ERR_ARGUMENT, "custom_register: \"%s\" needs functions types and run", name);
    const struct dispatch_op *taken = dispatch_find(name);
    /* memory ran out before its table was made */
    const struct custom_op *half = dispatch_defined(taken) ? NULL : custom_find(name);
    if (taken && taken->graph_op)
        err_set(&e, KL_ERR_ARGUMENT, "\"%s\" is the name of an op of Kiln's", name);
    else if (half && half->functions.run == op->run && half->functions.types == op->types && half->ctx == ctx)
        dispatch_define_custom(half, &e);
    else if (custom_register(name, op, ctx, &e))
        dispatch_define_custom(custom_find(name), &e);
    return e.code ? report(t, e.code, "custom_register: %s", e.msg) : KL_OK;
}

/* A call being recorded: the context of the functions below. */
struct custom_recording {
    struct custom_use custom;
    const struct custom_op *base; /* the op that has the types and the gradient, whatever kernel computes it */
    const char *label;         /* custom "name" */
};

static kl_status custom_value(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct custom_recording *u = ctx;
    return record_custom(u->label, &u->custom, nin, in, nout, out);
}

static kl_status record_custom_gradient(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct custom_recording *u = ctx;
    return u->base->functions.gradient(u->base->ctx, u->custom.attr, u->custom.nattr, in, nin, out, nout);
}

/* Collects the types of the operands and asks the op for those of the results; false: reported. */
static bool find_types(struct thread *t, const struct custom_recording *u, uint32_t nin, const kl_tensor *in,
                       uint32_t nout,
                       kl_type *type)
{
    struct err e;
    e.code = KL_OK;
    for (uint32_t i = 0; i < nin; i++) {
        char what[32];
        struct view v;
        snprintf(what, sizeof what, "operand %u", i + 1);
        if (!describe(t, u->label, what, in[i], &v))
            return false;
        type[i] = custom_type(v.dtype, &v.shape);
    }
    kl_custom_call call = {.nin = nin, .nout = nout, .in_type = type, .attr = u->custom.attr,
                           .attr_bytes = u->custom.nattr};
    return custom_types(u->base, &call, type + nin, &e) || fail(t, e.code, "%s", e.msg) == KL_OK;
}

static bool any_float(const kl_type *type, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= dtype_is_float(type[i].dtype);
    return any;
}

static bool arguments_fit(struct thread *t, const char *name, const void *attr, size_t attr_bytes,
                          uint32_t nin, const kl_tensor *in, uint32_t nout, const kl_tensor *out)
{
    const char *why = !nin || !nout                ? "needs at least one operand and one result"
                      : !in || !out                ? "a list of tensors is NULL"
                      : attr_bytes && !attr        ? "attr is NULL"
                      : attr_bytes > CUSTOM_ATTR ? "has more than 64 KiB of attributes"
                      : !custom_find(name)         ? "no op of this name is registered"
                                                   : NULL;
    return !why || fail(t, KL_ERR_ARGUMENT, "custom \"%s\": %s", name, why) == KL_OK;
}

/* Results of a call that failed before it was recorded. */
static kl_status give_poison(struct thread *t, uint32_t nout, kl_tensor *out)
{
    for (uint32_t i = 0; out && i < nout; i++)
        out[i] = poison(t);
    return t->tracing ? t->trace->err.code : t->last.code;
}

/* Records a call whose arguments were checked. */
static kl_status record_use(struct thread *t, struct custom_recording *u, const void *attr, uint32_t nin,
                            const kl_tensor *in,
                            uint32_t nout,
                            kl_tensor *out)
{
    size_t attr_bytes = u->custom.nattr;
    void *bytes = attr_bytes ? mem_alloc(attr_bytes) : NULL; /* a copy, aligned for any struct */
    kl_type *type = mem_alloc(((size_t)nin + nout) * sizeof *type);
    kl_status status = KL_OK;
    if (!type || (attr_bytes && !bytes)) {
        fail(t, KL_ERR_MEMORY, "%s: out of memory", u->label);
        status = give_poison(t, nout, out);
    } else {
        if (attr_bytes)
            memcpy(bytes, attr, attr_bytes);
        u->custom.attr = bytes;
        u->custom.type = type + nin;
        if (!find_types(t, u, nin, in, nout, type))
            status = give_poison(t, nout, out);
        else if (u->base->functions.gradient && any_float(type, nin) && any_float(type + nin, nout))
            status = record_custom_grad(u->label, custom_value, record_custom_gradient, u, nin, in, nout, out);
        else
            status = record_custom(u->label, &u->custom, nin, in, nout, out);
    }
    mem_free(bytes);
    mem_free(type);
    return status;
}

kl_status kl_custom(const char *name, const void *attr, size_t attr_bytes, int64_t nin,
                    const kl_tensor *in, int64_t nout, kl_tensor *out)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    uint32_t ni = count_or_none(nin), no = count_or_none(nout);
    for (uint32_t i = 0; out && i < no; i++)
        out[i] = kl_none;
    if (t->tracing && t->trace->err.code)
        return give_poison(t, no, out);
    if (!name_fits(name)) {
        fail(t, KL_ERR_ARGUMENT, "custom: a name has 1 to %d bytes", CUSTOM_NAME - 1);
        return give_poison(t, no, out);
    }
    char label[CUSTOM_NAME + 16];
    snprintf(label, sizeof label, "custom \"%s\"", name);
    if (!counts_valid(t, label, COUNTS({"nin", nin}, {"nout", nout})) ||
        !arguments_fit(t, name, attr, attr_bytes, ni, in, no, out))
        return give_poison(t, no, out);
    const struct custom_op *op = custom_find(name);
    struct custom_recording u = {{.op = op, .table = dispatch_find(name), .nattr = attr_bytes}, op, label};
    return record_use(t, &u, attr, ni, in, no, out);
}

kl_status record_custom_by(const char *name, const struct custom_op *op, uint32_t nin,
                           const kl_tensor *in, uint32_t nout, kl_tensor *out)
{
    struct custom_recording u = {{.op = op}, custom_find(name), name};
    struct thread *t = thread_self();
    if (u.base && nin && nout)
        return record_use(t, &u, NULL, nin, in, nout, out);
    fail(t, KL_ERR_ARGUMENT, "%s: %s", name, u.base ? "needs an operand and a result"
         : "its kernel computes values, but no "
         "rule says their shapes: kl_custom_register defines ops with one");
    return give_poison(t, nout, out);
}
