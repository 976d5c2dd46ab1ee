/* Tiles in shared memory that all lanes of a subgroup load.  Each lane loads one element, and the lanes pass their
 * elements to each other.  This is for devices where a load of one element by all lanes costs as much as a load of
 * different elements: processors that run the lanes of a subgroup as a vector. */
#include "emit_source.h"

/* Is it a quotient of the thread's number that is the same for all threads of a subgroup? */
static bool numbers_subgroups(const struct emitter *m, const struct linst *i)
{
    const struct linst *t = &m->k->inst[i->a], *by = &m->k->inst[i->b];
    return i->op == L_OP(P_DIV) && i->dtype == KL_I64 && t->op == L_LOOP && t->kind == LOOP_BLOCK &&
           by->op == L_CONST && by->imm && by->imm % m->d->broadcast == 0;
}

/* Is the value the same in all lanes, given what `uniform` says of its operands? */
static bool is_uniform(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const uint8_t *uniform = m->uniform;
    if (i->op == L_CONST || i->op == L_SLOT || numbers_subgroups(m, i))
        return true;
    if (i->op == L_LOOP)
        return i->kind != LOOP_BLOCK && i->kind != LOOP_VECTOR && uniform[i->a] && uniform[i->b];
    return i->op >= L_PRIM && i->op < L_PRIM + P_COUNT && uniform[i->a] && (!i->b || uniform[i->b]) &&
           (!i->c || uniform[i->c]);
}

bool source_uniform(struct emitter *m)
{
    const struct kernel *k = m->k;
    unsigned depth = 0, divergent = 0;  /* number of open loops and ifs; number + 1 of the first one that not all lanes
                                       execute, or 0 */
    if (!m->d->broadcast || m->shuffle != m->d->broadcast || !m->own_threads || m->unit)
        return true;
    m->uniform = mem_arena_alloc(&m->mem, k->ninst);
    for (val v = 1; m->uniform && v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        bool whole = i->op == L_IF ? m->uniform[i->a] : i->op == L_LOOP && (is_uniform(m, v) || i->kind == LOOP_BLOCK);
        if (i->op == L_IF || i->op == L_LOOP) {
            depth++;
            divergent = !divergent && !whole ? depth : divergent;
        } else if (i->op == L_END) {
            divergent = divergent == depth ? 0 : divergent;
            depth--;
        }
        m->uniform[v] = i->op == L_LOAD ? !divergent && m->uniform[i->a] : is_uniform(m, v);
    }
    return m->uniform != NULL;
}

/* Is v the load of a row, or of a column of adjacent elements, without a condition? */
bool source_is_broadcast(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *stride = &m->k->inst[i->d];
    bool number = i->dtype == KL_F32 || i->dtype == KL_F64 || i->dtype == KL_I32 || i->dtype == KL_U32;
    bool along = i->kind == TILE_ROWS ? i->rows == 1 : i->cols == 1;
    bool next = stride->op == L_CONST && stride->imm == 1;
    bool line = along || ((i->kind == TILE_ROWS ? i->cols : i->rows) == 1 && next);
    return m->uniform[v] && number && line && !i->b && i->rows * i->cols > 1 && m->k->buf[i->imm].role == BUF_SHARED;
}

void source_broadcast(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    unsigned count = i->rows * i->cols, lanes = m->d->broadcast;
    char at[3 * MAX_OPERAND], own[4 * MAX_OPERAND];
    bool fits = source_memory_place(m, i, false, at);
    for (unsigned e = 0; e < count; e++) {
        if (e % lanes == 0) {
            unsigned left = count - e < lanes ? count - e : lanes;
            snprintf(own, sizeof own, "%s + %s(gl_SubgroupInvocationID %% %uu + %uu)", at, fits ? "i32" : "i64", left,
                     e);
            source_line(m);
            text_put(m->t, "%s q%u_%u = ", dtype_name(i->dtype), v, e / lanes);
            source_memory_element(m, (uint32_t)i->imm, own, fits);
            text_put(m->t, ";\n");
        }
        m->row = i->cols == 1 ? e : 0;
        m->col = i->cols == 1 ? 0 : e;
        source_declare(m, v);
        text_put(m->t, "subgroupShuffle(q%u_%u, %uu);\n", v, e / lanes, e % lanes);
    }
    m->row = m->col = 0;
}
