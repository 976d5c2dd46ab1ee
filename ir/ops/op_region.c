/* Region ops and proj.  The rules here check that regions are closed and that their types fit. region.c runs them,
 * interp.c evaluates them; pass autodiff makes their gradients, because a region op has several results.  A region op
 * is never part of a kernel. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <string.h>

enum { TYPE_TEXT = SHAPE_TEXT + 8 };

static const char *type_text(const struct graph *g, ref r, char buf[TYPE_TEXT])
{
    char shape[SHAPE_TEXT];
    snprintf(buf, TYPE_TEXT, "%s%s", dtype_name(node_at(g, r)->dtype),
             shape_text_in(g, node_shape(g, r), shape, sizeof shape));
    return buf;
}

static bool same_type(unsigned dtype, const struct shape *s, unsigned dtype2, const struct shape *s2)
{
    return dtype == dtype2 && shape_equal(s, s2);
}

/* Parameters and yields are on the op's device. */
static bool on_device(const struct graph *b, const struct node *n, struct err *e)
{
    char here[DEVICE_TEXT], there[DEVICE_TEXT];
    for (ref r = 1; r < b->nnode; r++)
        if (b->node[r].op == OP_input && b->node[r].device != n->device)
            return err_set(e, KL_ERR_DEVICE, "%s: value %u of region @%.63s is on device %s, the op on %s",
                           opinfo[n->op].name, b->node[r].attr.leaf.index, b->name,
                           device_label(b->node[r].device, there), device_label(n->device, here));
    for (uint32_t k = 0; k < b->nout; k++)
        if (node_at(b, b->out[k].value)->device != n->device)
            return err_set(e, KL_ERR_DEVICE, "%s: region @%.63s yields a value on device %s, the op is on %s",
                           opinfo[n->op].name, b->name, device_label(node_at(b, b->out[k].value)->device, there),
                           device_label(n->device, here));
    return true;
}

/* A region reads nothing from outside except its parameters, and returns only yields. */
static bool region_is_closed(const struct graph *g, const struct node *n, struct err *e)
{
    for (uint32_t i = 0; i < op_regions(n->op); i++) {
        const struct graph *b = node_region(g, n, i);
        if (!on_device(b, n, e))
            return false;
        bool yields = b->nout > 0;
        for (uint32_t k = 0; k < b->nout; k++)
            if (b->out[k].kind != OUT_RETURN)
                return err_set(e, KL_ERR_INTERNAL, "%s: region @%.63s assigns a state", opinfo[n->op].name, b->name);
        if (b->state.n || b->slot.n)
            return err_set(e, KL_ERR_INTERNAL, "%s: region @%.63s has a state or a slot of its own", opinfo[n->op].name,
                           b->name);
        if (!yields)
            return err_set(e, KL_ERR_INTERNAL, "%s: region @%.63s yields nothing", opinfo[n->op].name, b->name);
    }
    return true;
}

static bool attr_fits(const struct graph *g, const struct node *n, bool carried, bool scan, uint32_t flags,
                      struct err *e)
{
    bool ok = (carried || !n->attr.region.carried) && (scan || (!n->attr.region.scanned && !n->attr.region.length)) &&
              !(n->attr.region.flags & ~flags) && dim_exists(g, n->attr.region.length);
    return ok || err_set(e, KL_ERR_INTERNAL, "%s: has an attribute that is not its own", opinfo[n->op].name);
}

/* Input k of region `which` has the type of a value of g. */
static bool region_takes_value(const struct graph *g, const struct node *n, uint32_t which, uint32_t k, unsigned dtype,
                  const struct shape *s, struct err *e)
{
    const struct graph *b = node_region(g, n, which);
    if (k >= b->input.n)
        return err_set(e, KL_ERR_SHAPE, "%s: region @%.63s takes %u values and gets more", opinfo[n->op].name, b->name,
                       b->input.n);
    const struct leaf *in = &b->input.v[k];
    if (same_type(in->dtype, &b->shape[in->shape], dtype, s))
        return true;
    char want[SHAPE_TEXT], got[SHAPE_TEXT];
    return err_set(e, in->dtype == dtype ? KL_ERR_SHAPE : KL_ERR_TYPE,
                   "%s: value %u of region @%.63s is %s%s, but gets %s%s",
                   opinfo[n->op].name, k, b->name, dtype_name(in->dtype),
                   shape_text_in(b, &b->shape[in->shape], want, sizeof want), dtype_name(dtype),
                   shape_text_in(g, s, got, sizeof got));
}

static bool takes_all(const struct graph *g, const struct node *n, uint32_t which, uint32_t count, struct err *e)
{
    uint32_t has = node_region(g, n, which)->input.n;
    return has == count || err_set(e, KL_ERR_SHAPE, "%s: region @%.63s takes %u values and gets %u", opinfo[n->op].name,
                                   node_region(g, n, which)->name, has, count);
}

/* The region's inputs have the types of the operands from number `from` on. */
static bool takes_operands(const struct graph *g, const struct node *n, uint32_t which, uint32_t from, struct err *e)
{
    if (!takes_all(g, n, which, node_nin(n) - from, e))
        return false;
    for (uint32_t i = from; i < node_nin(n); i++) {
        ref r = node_in(g, n, i);
        if (!region_takes_value(g, n, which, i - from, node_at(g, r)->dtype, node_shape(g, r), e))
            return false;
    }
    return true;
}

/* The first yields of region `which` have the types of the carried operands. */
static bool region_carries_operands(const struct graph *g, const struct node *n, uint32_t which, struct err *e)
{
    const struct graph *b = node_region(g, n, which);
    uint32_t carried = n->attr.region.carried;
    if (carried > b->nout || carried > node_nin(n))
        return err_set(e, KL_ERR_SHAPE, "%s: %u values are carried, but the body yields %u", opinfo[n->op].name,
                       carried, b->nout);
    for (uint32_t i = 0; i < carried; i++) {
        ref in = node_in(g, n, i), y = b->out[i].value;
        if (same_type(node_at(g, in)->dtype, node_shape(g, in), node_at(b, y)->dtype, node_shape(b, y)))
            continue;
        char was[TYPE_TEXT], is[TYPE_TEXT];
        return err_set(e, node_at(g, in)->dtype == node_at(b, y)->dtype ? KL_ERR_SHAPE : KL_ERR_TYPE,
                       "%s: carried value %u is %s, but the body yields %s", opinfo[n->op].name, i,
                       type_text(g, in, was), type_text(b, y, is));
    }
    return true;
}

/* The node itself has no elements. */
static bool no_elements(struct node *n, struct shape *out)
{
    n->dtype = KL_BOOL;
    *out = shape_make(1, (int64_t[]){0});
    return true;
}

/* interp.c evaluates a region op, because it has several results. */
static bool no_eval(void)
{
    return false;
}

static void no_vjp(struct graph *g, ref y)
{
    err_set(&g->err, KL_ERR_INTERNAL, "%s: node %u has its gradient in pass autodiff", opinfo[g->node[y].op].name, y);
}

static uint32_t no_element(struct lower *l, ref r)
{
    err_set(&l->k->err, KL_ERR_INTERNAL, "%s: node %u is no element of a kernel", opinfo[node_at(l->g, r)->op].name, r);
    return 0;
}

#define REGION_OP(name)                                                                                      \
    bool eval_##name(const struct graph *g, const struct node *n, void *out, const void *const *in)          \
    {                                                                                                        \
        (void)g, (void)n, (void)out, (void)in;                                                               \
        return no_eval();                                                                                    \
    }                                                                                                        \
    void vjp_##name(struct graph *g, ref y, ref dy, ref *din)                                                \
    {                                                                                                        \
        (void)dy, (void)din;                                                                                 \
        no_vjp(g, y);                                                                                        \
    }                                                                                                        \
    uint32_t lower_##name(struct lower *l, ref r, const uint32_t *coord)                                     \
    {                                                                                                        \
        (void)coord;                                                                                         \
        return no_element(l, r);                                                                             \
    }

/* ---- proj ---- */

bool shape_proj(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct node *region = node_at(g, n->in[0]);
    uint32_t results = region_results(g, region);
    if (n->attr.proj.index >= results)
        return err_set(e, KL_ERR_INTERNAL, "proj: result %u of a %s that has %u", n->attr.proj.index,
                       opinfo[region->op].name, results);
    n->dtype = (uint8_t)region_result(g, region, n->attr.proj.index, out);
    return attr_clear_rest(n, sizeof n->attr.proj);
}

REGION_OP(proj)

/* ---- cond ---- */

bool shape_cond(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    if (!attr_fits(g, n, false, false, 0, e) || !region_is_closed(g, n, e))
        return false;
    if (!node_nin(n))
        return err_set(e, KL_ERR_INTERNAL, "cond: needs a bool");
    char a[TYPE_TEXT], b[TYPE_TEXT];
    ref p = node_in(g, n, 0);
    if (node_at(g, p)->dtype != KL_BOOL || node_shape(g, p)->rank)
        return err_set(e, node_at(g, p)->dtype == KL_BOOL ? KL_ERR_SHAPE : KL_ERR_TYPE,
                       "cond: the condition must be bool[], got %s", type_text(g, p, a));
    if (!takes_operands(g, n, 0, 1, e) || !takes_operands(g, n, 1, 1, e))
        return false;
    const struct graph *yes = node_region(g, n, 0), *no = node_region(g, n, 1);
    if (yes->nout != no->nout)
        return err_set(e, KL_ERR_SHAPE, "cond: the first branch yields %u values, the second %u", yes->nout, no->nout);
    for (uint32_t i = 0; i < yes->nout; i++) {
        ref x = yes->out[i].value, y = no->out[i].value;
        if (!same_type(node_at(yes, x)->dtype, node_shape(yes, x), node_at(no, y)->dtype, node_shape(no, y)))
            return err_set(e, node_at(yes, x)->dtype == node_at(no, y)->dtype ? KL_ERR_SHAPE : KL_ERR_TYPE,
                           "cond: result %u is %s in the first branch and %s in the second", i, type_text(yes, x, a),
                           type_text(no, y, b));
    }
    return no_elements(n, out);
}

REGION_OP(cond)

/* ---- while: operands are the carried values, then the other values that the regions read ---- */

bool shape_while(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    if (!attr_fits(g, n, true, false, 0, e) || !region_is_closed(g, n, e) || !region_carries_operands(g, n, 1, e))
        return false;
    const struct graph *condition = node_region(g, n, 0), *body = node_region(g, n, 1);
    if (body->nout != n->attr.region.carried)
        return err_set(e, KL_ERR_SHAPE, "while: %u values are carried, but the body yields %u", n->attr.region.carried,
                       body->nout);
    char text[TYPE_TEXT];
    ref p = condition->out[0].value;
    if (condition->nout != 1)
        return err_set(e, KL_ERR_SHAPE, "while: the condition yields %u values, not one bool[]", condition->nout);
    if (node_at(condition, p)->dtype != KL_BOOL || node_shape(condition, p)->rank)
        return err_set(e, node_at(condition, p)->dtype == KL_BOOL ? KL_ERR_SHAPE : KL_ERR_TYPE,
                       "while: the condition must yield bool[], not %s", type_text(condition, p, text));
    return takes_operands(g, n, 0, 0, e) && takes_operands(g, n, 1, 0, e) && no_elements(n, out);
}

REGION_OP(while)

/* ---- scan: operands are the carried values, those cut along axis 0, and the other values that the body reads ---- */

static bool takes_slice(const struct graph *g, const struct node *n, uint32_t i, struct err *e)
{
    ref r = node_in(g, n, i);
    struct shape s = *node_shape(g, r);
    if (!s.rank || s.dim[0] != n->attr.region.length) {
        char text[TYPE_TEXT], length[DIM_TEXT];
        return err_set(e, KL_ERR_SHAPE, "scan: of length %s, but a scanned value is %s",
                       dim_text(g, n->attr.region.length, length, sizeof length), type_text(g, r, text));
    }
    struct shape slice = shape_make(s.rank - 1, s.dim + 1);
    return region_takes_value(g, n, 0, i, node_at(g, r)->dtype, &slice, e);
}

bool shape_scan(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    uint64_t carried = n->attr.region.carried, cut = carried + n->attr.region.scanned;
    if (!attr_fits(g, n, true, true, REGION_REVERSE, e) || !region_is_closed(g, n, e))
        return false;
    if (cut > node_nin(n))
        return err_set(e, KL_ERR_INTERNAL, "scan: %u operands, but %llu are carried and scanned", node_nin(n),
                       (unsigned long long)cut);
    if (!region_carries_operands(g, n, 0, e) || !takes_all(g, n, 0, node_nin(n), e))
        return false;
    for (uint32_t i = 0; i < node_nin(n); i++) {
        ref r = node_in(g, n, i);
        bool sliced = i >= carried && i < cut;
        if (sliced ? !takes_slice(g, n, i, e) : !region_takes_value(g, n, 0, i, node_at(g, r)->dtype, node_shape(g, r),
                                                                    e))
            return false;
    }
    for (uint32_t i = (uint32_t)carried; i < region_results(g, n); i++) {
        struct shape s;
        char length[DIM_TEXT];
        region_result(g, n, i, &s);
        if (!shape_is_legal(g, &s))
            return err_set(e, KL_ERR_SHAPE, "scan: result %u has too many axes or elements when %s are stacked", i,
                           dim_text(g, n->attr.region.length, length, sizeof length));
    }
    return no_elements(n, out);
}

REGION_OP(scan)

/* ---- checkpoint ---- */

bool shape_checkpoint(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    return attr_fits(g, n, false, false, REGION_REMAT, e) && region_is_closed(g, n, e) && takes_operands(g, n, 0, 0,
                                                                                                         e) &&
           no_elements(n, out);
}

REGION_OP(checkpoint)

/* ---- custom_grad: the second region takes the operands that have a gradient, the results, the gradients of the
 * floating results, and the other operands; it yields the gradient of each floating one of the first ---- */

bool shape_custom_grad(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    if (!attr_fits(g, n, true, false, 0, e) || !region_is_closed(g, n, e) || !takes_operands(g, n, 0, 0, e))
        return false;
    uint32_t own = n->attr.region.carried, at = 0, results = region_results(g, n);
    if (own > node_nin(n))
        return err_set(e, KL_ERR_INTERNAL, "custom_grad: %u operands, but %u have a gradient", node_nin(n), own);
    struct shape s;
    for (uint32_t i = 0; i < own; i++) {
        ref r = node_in(g, n, i);
        if (!region_takes_value(g, n, 1, at++, node_at(g, r)->dtype, node_shape(g, r), e))
            return false;
    }
    for (int floats = 0; floats < 2; floats++)
        for (uint32_t i = 0; i < results; i++) {
            unsigned dtype = region_result(g, n, i, &s);
            if ((!floats || dtype_is_float(dtype)) && !region_takes_value(g, n, 1, at++, dtype, &s, e))
                return false;
        }
    for (uint32_t i = own; i < node_nin(n); i++) {
        ref r = node_in(g, n, i);
        if (!region_takes_value(g, n, 1, at++, node_at(g, r)->dtype, node_shape(g, r), e))
            return false;
    }
    const struct graph *back = node_region(g, n, 1);
    uint32_t given = 0;
    for (uint32_t i = 0; i < own; i++) {
        ref r = node_in(g, n, i), d = given < back->nout ? back->out[given].value : NIL;
        if (!dtype_is_float(node_at(g, r)->dtype))
            continue;
        given++;
        if (d && same_type(node_at(back, d)->dtype, node_shape(back, d), node_at(g, r)->dtype, node_shape(g, r)))
            continue;
        char a[TYPE_TEXT], b[TYPE_TEXT];
        return err_set(e, KL_ERR_SHAPE, "custom_grad: operand %u is %s, but its gradient is %s", i, type_text(g, r, a),
                       d ? type_text(back, d, b) : "missing");
    }
    if (given != back->nout)
        return err_set(e, KL_ERR_SHAPE, "custom_grad: the second region yields %u gradients for %u floating operands",
                       back->nout, given);
    return takes_all(g, n, 1, at, e) && no_elements(n, out);
}

REGION_OP(custom_grad)
