/* The elements and results of the adjacent columns of a lane, or the adjacent elements of its row, for all that a
 * reduce's kernel stores beside them: all of a lane are computed before one is stored, so that a GPU accesses adjacent
 * ones at once. */
#include "lower_gpu.h"
#include "passes/lower/lower_reduce.h"
#include <string.h>

void reduce_set_adjacent(struct reduce *r, const struct shape *inner, uint32_t nouter, val first)
{
    struct kernel *k = r->w->k;
    lower_unflatten(k, inner, first, r->kept_coord + nouter);
    for (uint32_t n = 0; n < r->each; n++) {
        memcpy(r->adjacent[n], r->kept_coord, nouter * sizeof(val));
        lower_unflatten(k, inner, ix_add(k, first, k_int(k, n)), r->adjacent[n] + nouter);
    }
}

/* The reduce at adjacent column n of the lane's columns. */
struct reduce reduce_at_vector_element(const struct reduce *r, uint32_t n)
{
    struct reduce own = *r;
    if (r->each)
        memcpy(own.kept_coord, r->adjacent[n], sizeof own.kept_coord);
    return own;
}

/* Begins the epilogue of the result at kept_coord, and sets its coordinates. */
static void begin_epilogue(const struct reduce *r, val result, val *coord)
{
    struct lowering *w = r->w;
    uint32_t nkept = 0;
    for (uint32_t d = 0; d < r->in.rank; d++)
        coord[d] = r->n->attr.reduce.axes >> d & 1 ? k_int(w->k, 0) : r->kept_coord[nkept++];
    lower_point(w);
    w->anchor_value = k_cast(w->k, result, r->n->dtype);
}

static bool in_epilogue(const struct lowering *w, uint32_t m)
{
    return w->stored[w->member[m]] && !lower_in_prologue(w, w->member[m]);
}

void reduce_epilogue(const struct reduce *r, val result)
{
    struct lowering *w = r->w;
    val coord[KL_MAX_RANK] = {0};
    begin_epilogue(r, result, coord);
    for (uint32_t m = 0; m < w->nmember; m++)
        if (in_epilogue(w, m))
            lower_store(w, w->member[m], &w->g->shape[r->n->shape], coord);
}

/* Returns element i, and sets e[m] to the element that member m has there, if the kernel stores it. */
static val evaluate_element(const struct reduce *r, val i, struct element *e)
{
    struct lowering *w = r->w;
    val coord[KL_MAX_RANK] = {0};
    reduce_operand_coord(r, i, r->kept_coord, coord);
    lower_point(w);
    for (uint32_t m = 0; m < w->nmember; m++)
        if (w->stored[w->member[m]] && lower_in_prologue(w, w->member[m]))
            e[m] = lower_element(w, w->member[m], &r->in, coord);
    return k_cast(w->k, lower_at(w, r->n->in[0], coord), dtype_compute(r->n->dtype));
}

/* Stores the members of the prologue at n elements. */
static void put_elements(struct lowering *w, const struct element *e, uint32_t n)
{
    for (uint32_t m = 0; m < w->nmember; m++)
        for (uint32_t u = 0; u < n && w->stored[w->member[m]] && lower_in_prologue(w, w->member[m]); u++)
            lower_put(w, &e[u * w->nmember + m]);
}

void reduce_row_elements(const struct reduce *r, const val *i, uint32_t n, val *x)
{
    struct lowering *w = r->w;
    struct element *e = mem_alloc(n * w->nmember * sizeof *e);
    for (uint32_t u = 0; u < n; u++)
        x[u] = e ? evaluate_element(r, i[u], e + u * w->nmember) : reduce_identity(r);
    if (e)
        put_elements(w, e, n);
    else
        err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering %s", w->k->name);
    mem_free(e);
}

/* Element i of each adjacent column.  All are computed before members are stored: then adjacent elements are accessed
 * at once. */
void reduce_vector_elements(const struct reduce *r, val i, val *x)
{
    struct lowering *w = r->w;
    struct element *e = r->each ? mem_alloc(r->each * w->nmember * sizeof *e) : NULL;
    if (r->each && !e)
        err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering %s", w->k->name);
    if (!e) {
        for (uint32_t n = 0; n < reduce_vector_width(r); n++)
            x[n] = reduce_element(r, i);
        return;
    }
    for (uint32_t n = 0; n < r->each; n++) {
        struct reduce own = reduce_at_vector_element(r, n);
        x[n] = evaluate_element(&own, i, e + n * w->nmember);
    }
    put_elements(w, e, r->each);
    mem_free(e);
}

/* The elements of the epilogue that are stored, of the result at kept_coord. */
static void epilogue_elements(const struct reduce *r, val result, struct element *e)
{
    struct lowering *w = r->w;
    val coord[KL_MAX_RANK] = {0};
    begin_epilogue(r, result, coord);
    for (uint32_t m = 0; m < w->nmember; m++)
        if (in_epilogue(w, m))
            e[m] = lower_element(w, w->member[m], &w->g->shape[r->n->shape], coord);
}

/* All are computed before one is stored: then adjacent elements are accessed at once. */
void reduce_epilogues(const struct reduce *r, const val *result)
{
    struct lowering *w = r->w;
    if (!r->each) {
        reduce_epilogue(r, result[0]);
        return;
    }
    struct element *e = mem_alloc(r->each * w->nmember * sizeof *e);
    if (!e) {
        err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering %s", w->k->name);
        return;
    }
    for (uint32_t n = 0; n < r->each; n++) {
        struct reduce own = reduce_at_vector_element(r, n);
        epilogue_elements(&own, result[n], e + n * w->nmember);
    }
    for (uint32_t m = 0; m < w->nmember; m++)
        for (uint32_t n = 0; n < r->each && in_epilogue(w, m); n++)
            lower_put(w, &e[n * w->nmember + m]);
    mem_free(e);
}
