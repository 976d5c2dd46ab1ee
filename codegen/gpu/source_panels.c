/* Warp specialization (passes/lower/gpu/lower_pipeline.h): full and empty barriers with phases (PTX's mbarrier), TMA
 * loads of panels (cp.async.bulk.tensor), and registers of producer and consumers (setmaxnreg). */
#include "emit_source.h"
#include <inttypes.h>

enum { WARP = 32 };

/* The arrivals that the hardware counts.  Where a barrier counts all threads of whole subgroups, one thread of each
 * warp arrives for its warp. */
static unsigned arrivals_of(const struct lbuf *l) { return l->id % WARP ? l->id : l->id / WARP; }

static void each_barrier(struct emitter *m, const char *format)
{
    bool any = false;
    for (uint32_t b = 0; b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        if (l->role != BUF_PHASES)
            continue;
        if (!any) {
            source_line(m);
            text_put(m->t, "if (t == 0u) {\n");
        }
        any = true;
        source_line(m);
        text_put(m->t, "    for (u32 i = 0u; i < %" PRId64 "u; i++)\n", l->count);
        source_line(m);
        text_put(m->t, format, b, arrivals_of(l));
    }
    if (any) {
        source_line(m);
        text_put(m->t, "}\n");
    }
}

static bool has_phases(const struct emitter *m)
{
    for (uint32_t b = 0; b < m->k->nbuf; b++)
        if (m->k->buf[b].role == BUF_PHASES)
            return true;
    return false;
}

/* All threads, and the copies, see the barriers from here on. */
void source_begin_phases(struct emitter *m)
{
    if (!has_phases(m) || m->phase.base) /* a later phase of the kernel has no roles */
        return;
    each_barrier(m, "        phases_begin(b%u + i, %uu);\n");
    source_line(m);
    text_put(m->t, "proxy_fence();\n");
    source_line(m);
    text_put(m->t, "%s\n", m->d->barrier);
}

void source_end_phases(struct emitter *m)
{
    if (!m->phase.base)
        each_barrier(m, "        phases_end(b%u + i);\n");
}

enum { REGISTERS = 64 << 10 /* of a processor */, UNIT = 8 };

/* A block has one subgroup of the role with the fewest registers, the producer. */
unsigned source_role_blocks(const struct emitter *m)
{
    uint64_t least = UINT64_MAX, most = 0, groups = 0;
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        if (i->op == L_LOOP && i->kind == LOOP_BLOCK && i->rows && !groups)
            groups = (m->info.threads + i->rows - 1) / i->rows;
        if (i->op == L_IF && i->imm) {
            least = i->imm < least ? i->imm : least;
            most = i->imm > most ? i->imm : most;
        }
    }
    if (!most || !groups)
        return 0;
    uint64_t blocks = REGISTERS / ((least + (groups - 1) * most) * m->info.threads / groups);
    return blocks ? (unsigned)blocks : 1;
}

/* A role gets fewer registers than the kernel's threads have at its start, or more. */
void source_registers(struct emitter *m, uint64_t registers)
{
    if (!registers)
        return;
    unsigned start = REGISTERS / source_role_blocks(m) / m->info.threads / UNIT * UNIT;
    if (registers == start)
        return;
    source_line(m);
    text_put(m->t, "registers_%s<%" PRIu64 ">();\n", registers < start ? "fewer" : "more", registers);
}

/* "b6 + index" of the barrier that the instruction names. */
static void put_barrier(struct emitter *m, const struct linst *i)
{
    char x[MAX_OPERAND];
    bool fits;
    text_put(m->t, "b%u + %s", (uint32_t)i->imm, source_index(m, i->a, &fits, x));
}

static unsigned panel_bytes(const struct emitter *m, const struct linst *i)
{
    const struct lbuf *l = &m->k->buf[(uint32_t)i->imm];
    return (unsigned)(l->panel_rows * PANEL_COLUMNS * dtype_size(l->dtype));
}

/* Does the innermost loop around an arrival, or the kernel, access shared memory that is no panel?  Then a thread that
 * arrives for its warp does so after the accesses of all threads of the warp. */
static bool follows_accesses(const struct kernel *k, val v)
{
    val from = v - 1, end = v + 1;
    for (int depth = 0; from && (depth || k->inst[from].op != L_LOOP); from--)
        depth += (k->inst[from].op == L_END) - (k->inst[from].op == L_LOOP || k->inst[from].op == L_IF);
    while (end < k->ninst && !(k->inst[end].op == L_END && k->inst[end].a == from))
        end++;
    for (val x = from + 1; x < end; x++) {
        const struct linst *i = &k->inst[x];
        const struct lbuf *l = i->op == L_LOAD || i->op == L_STORE ? &k->buf[(uint32_t)i->imm] : NULL;
        if (l && l->role == BUF_SHARED && !l->panel_rows)
            return true;
    }
    return false;
}

void source_arrive(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint64_t panels = i->imm >> 32;
    unsigned bytes = 0;
    for (val c = v + 1; panels; c++)
        if (m->k->inst[c].op == L_COPY_PANEL) {
            bytes += panel_bytes(m, &m->k->inst[c]);
            panels--;
        }
    source_line(m);
    if (m->k->buf[(uint32_t)i->imm].id % WARP == 0)
        text_put(m->t, "%sif ((t & %uu) == 0u) ", follows_accesses(m->k, v) ? "__syncwarp(); " : "", WARP - 1);
    text_put(m->t, bytes ? "phases_expect_bytes(" : "phases_arrive(");
    put_barrier(m, i);
    text_put(m->t, bytes ? ", %uu);\n" : ");\n", bytes);
}

/* The hardware knows the parity of a phase: n phases are complete if the one before the n-th is, or n is 0. */
void source_await(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char x[MAX_OPERAND];
    bool fits;
    source_line(m);
    text_put(m->t, "phases_wait(");
    put_barrier(m, i);
    text_put(m->t, ", u32(%s) + 1u & 1u);\n", source_index(m, i->b, &fits, x));
}

void source_copy_panel(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint32_t to = (uint32_t)i->imm;
    char place[PANEL_PLACE], x[MAX_OPERAND];
    const val at[VIEW_DIMS] = {i->b, i->c, i->d};
    bool fits;
    val arrive = v;
    while (m->k->inst[arrive].op != L_ARRIVE)
        arrive--;
    if (!source_panel_place(m, to, i->a, place, sizeof place))
        m->t->failed = true;
    source_line(m);
    text_put(m->t, "copy_panel(b%u + %s, &b%u", to, place, (uint32_t)(i->imm >> 32));
    for (unsigned d = 0; d < VIEW_DIMS; d++)
        text_put(m->t, ", i32(%s)", source_index(m, at[d], &fits, x));
    text_put(m->t, ", ");
    put_barrier(m, &m->k->inst[arrive]);
    text_put(m->t, ");\n");
}
