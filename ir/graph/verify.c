/* The verifier: checks every invariant of node.h, and each index before it is used.  Dtypes and shapes are recomputed
 * by the ops' own rules. */
#include "ir/ir.h"
#include <string.h>

static bool verify_fail(const struct graph *g, struct err *e, const char *what, uint32_t index, const char *rule)
{
    return err_set(e, KL_ERR_INTERNAL, "graph @%.63s: %s %u: %s", g->name, what, index, rule);
}

static bool verify_shapes(const struct graph *g, struct err *e)
{
    if (g->nshape == 0 || g->shape[0].rank != 0)
        return verify_fail(g, e, "shape", 0, "is not the scalar");
    for (uint32_t i = 0; i < g->nshape; i++) {
        const struct shape *s = &g->shape[i];
        for (uint32_t k = 0; s->rank <= KL_MAX_RANK && k < s->rank; k++)
            if (s->dim[k] < 0 && dim_verify(g, s->dim[k]))
                return verify_fail(g, e, "shape", i, dim_verify(g, s->dim[k]));
        if (!shape_is_legal(g, s))
            return verify_fail(g, e, "shape", i, s->rank > KL_MAX_RANK ? "has a bad rank" : "is not legal");
        struct shape clean = shape_make(s->rank, s->dim);
        if (memcmp(&clean, s, sizeof clean) != 0)
            return verify_fail(g, e, "shape", i, "has unused fields that are not 0");
        if (intern_shape_find(g, s) != i)
            return verify_fail(g, e, "shape", i, "is not interned, or interned twice");
    }
    return true;
}

static bool verify_leaves(const struct graph *g, const char *what, const struct leaves *l, bool scalar, struct err *e)
{
    for (uint32_t i = 0; i < l->n; i++) {
        const struct leaf *leaf = &l->v[i];
        if (leaf->dtype >= KL_DTYPE_COUNT)
            return verify_fail(g, e, what, i, "has no valid dtype");
        if (leaf->shape >= g->nshape)
            return verify_fail(g, e, what, i, "has no valid shape");
        if (scalar && g->shape[leaf->shape].rank != 0)
            return verify_fail(g, e, what, i, "is not a scalar");
        if (!memchr(leaf->name, 0, sizeof leaf->name))
            return verify_fail(g, e, what, i, "has an unterminated name");
    }
    return true;
}

static bool verify_graph(const struct graph *g, bool placeholders, struct err *e);

/* Operands and regions are in the graph's pools in the order of the nodes, and the regions are valid. */
static bool verify_region_op(const struct graph *g, ref r, uint32_t operands, uint32_t regions, bool placeholders,
                             struct err *e)
{
    const struct node *n = node_at(g, r);
    uint64_t last = (uint64_t)operands + n->attr.region.count, last_region = (uint64_t)regions + op_regions(n->op);
    if (n->attr.region.operands != operands || last > g->noperand)
        return verify_fail(g, e, "node", r, "has not its own part of the operands");
    if (n->attr.region.first != regions || last_region > g->nregion)
        return verify_fail(g, e, "node", r, "has not its own regions");
    for (uint32_t i = operands; i < last; i++)
        if (g->operand[i] == NIL || g->operand[i] >= r || op_is_region(g->node[g->operand[i]].op))
            return verify_fail(g, e, "node", r, "has an operand that is no value before it");
    if (n->op == OP_custom && (n->attr.region.length < 0 || n->attr.region.length >= g->ncustom))
        return verify_fail(g, e, "node", r, "has no description of its custom op");
    for (uint32_t i = regions; i < last_region; i++) {
        if (g->region[i]->depth >= g->depth)
            return verify_fail(g, e, "node", r, "has a region as deep as its graph");
        if (g->region[i]->symbols != g->symbols)
            return verify_fail(g, e, "node", r, "has a region with other symbols");
        if (!verify_graph(g->region[i], placeholders, e))
            return false;
    }
    return true;
}

/* Custom ops have one description for each node, in the order of the nodes. */
static bool verify_customs(const struct graph *g, struct err *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->ncustom; i++) {
        const struct custom *c = &g->custom[i];
        if (!memchr(c->name, 0, sizeof c->name) || !c->name[0])
            return verify_fail(g, e, "custom", i, "has no name, or one that does not end");
        if (!c->nresult || (c->nattr && !c->attr))
            return verify_fail(g, e, "custom", i, "has no result, or attributes that are not there");
        for (uint32_t k = 0; k < c->nresult; k++)
            if (c->result[k].dtype >= KL_DTYPE_COUNT || c->result[k].shape >= g->nshape)
                return verify_fail(g, e, "custom", i, "has a result of no valid type");
    }
    for (ref r = 1; r < g->nnode; r++)
        if (g->node[r].op == OP_custom && g->node[r].attr.region.length != n++)
            return verify_fail(g, e, "node", r, "has not its own description of a custom op");
    return n == g->ncustom || verify_fail(g, e, "custom", n, "belongs to no node");
}

static bool verify_device(const struct graph *g, ref r, struct err *e)
{
    const struct node *n = node_at(g, r);
    char a[DEVICE_TEXT], b[DEVICE_TEXT];
    if (n->device >= MAX_DEVICES)
        return verify_fail(g, e, "node", r, "has no valid device");
    for (unsigned i = n->op == OP_grad; i < node_nin(n) && n->op != OP_copy; i++)
        if (node_at(g, node_in(g, n, i))->device != n->device)
            return err_set(e, KL_ERR_DEVICE, "graph @%.63s: node %u: %s on device %s has an operand on device %s",
                           g->name,
                           r, opinfo[n->op].name, device_label(n->device, a),
                           device_label(node_at(g, node_in(g, n, i))->device, b));
    return true;
}

/* Does the op compute the length of an axis by adding to another one, or compare two that may have different symbols?
 * A placeholder for a sum is not the sum of placeholders, and one for a shorter length may be the larger number. */
static bool adds_lengths(const struct node *n)
{
    return slice_step(n) || n->op == OP_concat || n->op == OP_window || n->op == OP_dynamic_slice ||
           n->op == OP_dynamic_update || op_is_masked(n->op);
}

static bool verify_node(const struct graph *g, ref r, bool placeholders, struct err *e)
{
    const struct node *n = node_at(g, r);
    if (n->op == OP_nil)
        return verify_fail(g, e, "node", r, "has no valid op");
    const struct opinfo *o = &opinfo[n->op];
    if (n->nin < op_min_operands(n->op) || n->nin > o->nin)
        return verify_fail(g, e, "node", r, "has the wrong number of operands for its op");
    for (unsigned i = 0; i < MAX_OPERANDS; i++) {
        if (i >= n->nin && n->in[i] != NIL)
            return verify_fail(g, e, "node", r, "has an operand behind its last");
        if (i < n->nin && (n->in[i] == NIL || n->in[i] >= r))
            return verify_fail(g, e, "node", r, "has an operand that does not stand before it");
        if (i < n->nin && op_is_region(g->node[n->in[i]].op) != (n->op == OP_proj))
            return verify_fail(g, e, "node", r, "reads a region op: proj does, and only of one");
    }
    if (n->dtype >= KL_DTYPE_COUNT)
        return verify_fail(g, e, "node", r, "has no valid dtype");
    if (n->shape >= g->nshape)
        return verify_fail(g, e, "node", r, "has no valid shape");
    if (n->site >= g->nsite)
        return verify_fail(g, e, "node", r, "has no valid call site");
    if (n->flags & ~MARKS)
        return verify_fail(g, e, "node", r, "has unknown marks");
    if (!verify_device(g, r, e))
        return false;
    if (placeholders && adds_lengths(n))
        return true;
    struct node derived = *n;
    int64_t *dim[2];
    for (unsigned i = g->symbols ? node_dims(&derived, dim) : 0; i-- > 0;)
        if (dim_verify(g, *dim[i]))
            return verify_fail(g, e, "node", r, dim_verify(g, *dim[i]));
    struct shape shape = g->shape[n->shape];
    struct err why = {0};
    if (!o->shape(g, &derived, &shape, &why))
        return err_set(e, why.code, "graph @%.63s: node %u: %s", g->name, r, why.msg);
    if (memcmp(&derived.attr, &n->attr, sizeof n->attr) != 0)
        return verify_fail(g, e, "node", r, "has unused attribute bytes that are not 0");
    if (derived.dtype != n->dtype)
        return verify_fail(g, e, "node", r, "has another dtype than its op gives");
    if (!shape_equal(&shape, &g->shape[n->shape]))
        return verify_fail(g, e, "node", r, "has another shape than its op gives");
    return true;
}

/* assigned: one zeroed entry for each state */
static bool verify_output(const struct graph *g, uint32_t i, bool *assigned, struct err *e)
{
    const struct output *o = &g->out[i];
    if (o->kind != OUT_RETURN && o->kind != OUT_ASSIGN)
        return verify_fail(g, e, "output", i, "is neither return nor assign");
    if (o->value == NIL || o->value >= g->nnode || op_is_region(g->node[o->value].op))
        return verify_fail(g, e, "output", i, "is not a value");
    if (o->pad != 0 || (o->kind == OUT_RETURN && o->state != 0))
        return verify_fail(g, e, "output", i, "has unused fields that are not 0");
    if (o->kind == OUT_RETURN)
        return true;
    if (o->state >= g->state.n)
        return verify_fail(g, e, "output", i, "assigns a state that does not exist");
    if (g->state.v[o->state].dtype != node_at(g, o->value)->dtype)
        return verify_fail(g, e, "output", i, "has another dtype than the state it assigns");
    if (g->state.v[o->state].shape != node_at(g, o->value)->shape)
        return verify_fail(g, e, "output", i, "has another shape than the state it assigns");
    if (assigned[o->state])
        return verify_fail(g, e, "output", i, "assigns a state that is assigned already");
    if (!g->state.v[o->state].assigned)
        return verify_fail(g, e, "output", i, "assigns a state that is not marked as assigned");
    return assigned[o->state] = true;
}

static bool verify_outputs(const struct graph *g, struct err *e)
{
    bool *assigned = mem_alloc(g->state.n * sizeof *assigned);
    if (!assigned)
        return err_set(e, KL_ERR_MEMORY, "graph @%.63s: out of memory", g->name);
    bool ok = true;
    for (uint32_t i = 0; ok && i < g->nout; i++)
        ok = verify_output(g, i, assigned, e);
    for (uint32_t i = 0; ok && i < g->state.n; i++)
        ok = assigned[i] == g->state.v[i].assigned ||
             verify_fail(g, e, "state", i, "is marked as assigned, but no output assigns it");
    mem_free(assigned);
    return ok;
}

static bool verify_groups(const struct graph *g, struct err *e)
{
    uint32_t *device = g->group ? mem_alloc(g->ngroup * sizeof *device) : NULL; /* + 1; 0: none yet */
    bool ok = !g->group || device || err_set(e, KL_ERR_MEMORY, "graph @%.63s: out of memory", g->name);
    for (uint32_t i = 0; device && ok && i < g->nnode; i++) {
        if (g->group[i] == GROUP_NONE)
            continue;
        if (g->group[i] >= g->ngroup) {
            ok = verify_fail(g, e, "node", i, "is in a group that does not exist");
        } else {
            uint32_t *d = &device[g->group[i]], own = g->node[i].device + 1u;
            ok = !*d || *d == own || verify_fail(g, e, "node", i, "is in a group of another device");
            *d = own;
        }
    }
    mem_free(device);
    return ok;
}

/* Each result has at most one proj, so that its value has one location. */
static bool verify_results(const struct graph *g, struct err *e)
{
    uint32_t *first = mem_alloc(g->nnode * sizeof *first), total = 0;
    for (ref r = 1; first && r < g->nnode; r++)
        if (op_is_region(g->node[r].op)) {
            first[r] = total;
            total += region_results(g, &g->node[r]);
        }
    bool *read = mem_alloc(total), ok = first && read;
    if (!ok)
        err_set(e, KL_ERR_MEMORY, "graph @%.63s: out of memory", g->name);
    for (ref r = 1; ok && r < g->nnode; r++) {
        const struct node *n = node_at(g, r);
        if (n->op != OP_proj)
            continue;
        bool *mine = &read[first[n->in[0]] + n->attr.proj.index];
        ok = !*mine || verify_fail(g, e, "node", r, "reads a result that another proj reads already");
        *mine = true;
    }
    mem_free(first);
    mem_free(read);
    return ok;
}

static bool verify_graph(const struct graph *g, bool placeholders, struct err *e)
{
    static const struct node nil;
    if (g->nnode == 0 || memcmp(&g->node[0], &nil, sizeof nil) != 0)
        return verify_fail(g, e, "node", 0, "is not NIL");
    if (!verify_shapes(g, e) || !verify_leaves(g, "input", &g->input, false, e) ||
        !verify_leaves(g, "state", &g->state, false, e) || !verify_leaves(g, "slot", &g->slot, true, e))
        return false;
    if (!verify_customs(g, e))
        return false;
    uint32_t operands = 0, regions = 0;
    for (ref r = 1; r < g->nnode; r++) {
        if (g->node[r].op >= OP_COUNT)
            return verify_fail(g, e, "node", r, "has no valid op");
        bool region = op_is_region(g->node[r].op);
        if (region && !verify_region_op(g, r, operands, regions, placeholders, e))
            return false;
        if (!verify_node(g, r, placeholders, e))
            return false;
        operands += region ? g->node[r].attr.region.count : 0;
        regions += region ? op_regions(g->node[r].op) : 0;
    }
    if (operands != g->noperand || regions != g->nregion || g->depth > MAX_REGION_DEPTH)
        return verify_fail(g, e, "node", g->nnode - 1, "is the last, and operands or regions are left");
    if ((g->nregion || g->ncustom) && !verify_results(g, e))
        return false;
    return verify_outputs(g, e) && verify_groups(g, e);
}

bool graph_verify(const struct graph *g, struct err *e) { return symbols_verify(g, e) && verify_graph(g, false, e); }

bool graph_verify_placeholders(const struct graph *g, struct err *e)
{
    return symbols_verify(g, e) && verify_graph(g, true, e);
}
