/* Products of half floats by a matrix unit that works asynchronously, where the subgroups of a block have two roles:
 * one thread of the last subgroup copies panels of both factors to shared memory (NVIDIA's tensor copies), the other
 * subgroups multiply them.  The roles wait for each other by two barriers with phases for each stage of the ring:
 *
 *   filled     its phase n is complete when the copies of the stage's n-th step are
 *   used       its phase n is complete when the threads that multiply have finished with that step
 *
 * Step i is the (i / stages)-th one of stage i % stages.  Of step i:
 *
 *   the thread that copies                      the subgroups that multiply
 *   await    used, i / stages phases            await    filled, i / stages + 1 phases
 *   arrive   filled; copies of panels           multiply step i: begins; commit products
 *                                               wait     for the products of step i - 1
 *                                               arrive   used, of the stage of step i - 1
 *
 * So while one step is multiplied, the next stages - 2 steps can be on their way, and there is no barrier of all
 * threads.
 * The results are stored as lower_dot_matrix.c says, by the threads that multiply. */
#include "lower_dot_matrix.h"

/* Registers of a thread in each role.  64 Ki registers of a processor are divided among 128 threads that copy and 256
 * that multiply; the hardware takes multiples of 8. */
enum { COPYING_REGISTERS = 40, MULTIPLYING_REGISTERS = 232, DIVIDED = 256 };

struct stages dot_warp_specialized_stages(const struct subgroups *s)
{
    struct kernel *k = s->d->w->k;
    struct stages at;
    at.filled = k_buf(k, BUF_PHASES, KL_U64, s->s.dot_matrix.stages, 1);
    at.used = k_buf(k, BUF_PHASES, KL_U64, s->s.dot_matrix.stages, (uint32_t)s->threads);
    return at;
}

static void arrive(const struct subgroups *s, uint32_t phases, val stage, uint64_t panels)
{
    k_append(s->d->w->k, (struct linst){.op = L_ARRIVE, .dtype = KL_BOOL, .a = stage, .imm = phases | panels << 32});
}

static void await(const struct subgroups *s, uint32_t phases, val stage, val n)
{
    k_append(s->d->w->k, (struct linst){.op = L_AWAIT, .dtype = KL_BOOL, .a = stage, .b = n, .imm = phases});
}

static val begin_warp_role(const struct subgroups *s, val condition, uint64_t registers)
{
    struct kernel *k = s->d->w->k;
    val role = k_if(k, condition);
    k->inst[role].imm = s->threads == DIVIDED ? registers : 0;
    return role;
}

/* ---- the role that copies ---- */

/* The view of an operand.  The load that finds its buffer is not used, so kernel_clean removes it. */
static uint32_t view_of(const struct subgroups *s, bool second)
{
    struct kernel *k = s->d->w->k;
    struct lbuf view;
    val x = dot_stored_element(s->d, second, k_int(k, 0), k_int(k, 0));
    uint32_t of = (uint32_t)k->inst[x].imm;
    if (k->inst[x].op != L_LOAD || !dot_matrix_view(s->d, second, &view)) {
        kernel_mark_unsupported(k, "an operand that tensor copies cannot take");
        return 0;
    }
    uint32_t b = k_buf(k, BUF_VIEW, s->dtype, k->buf[of].count, of);
    if (k->err.code)
        return 0;
    k->buf[b].first = view.first;
    for (unsigned i = 0; i < VIEW_DIMS; i++) {
        k->buf[b].size[i] = view.size[i];
        k->buf[b].step[i] = view.step[i];
    }
    return b;
}

/* Panels of an operand's step. */
static int64_t panels_of(const struct subgroups *s, bool second)
{
    const struct factor *f = &s->factor[second];
    return f->row / PANEL_COLUMNS;
}

static void copy_panels(const struct subgroups *s, bool second, uint32_t view, val step, val stage)
{
    struct kernel *k = s->d->w->k;
    const struct factor *f = &s->factor[second];
    val kk = ix_add(k, s->k0, ix_scale(k, step, s->s.dot_matrix.step));
    val col = f->by_k ? kk : f->first, row = f->by_k ? f->first : kk;
    val batch = !k->err.code && k->buf[view].size[2] > 1 ? s->d->batch_index : k_int(k, 0);
    for (int64_t p = 0; p < panels_of(s, second); p++) {
        val more = k_int(k, p * PANEL_COLUMNS);
        val to = ix_add(k, ix_scale(k, stage, f->elements), more);
        k_append(k, (struct linst){.op = L_COPY_PANEL, .dtype = KL_BOOL, .a = to, .b = ix_add(k, col, more), .c = row,
                                   .d = batch, .imm = f->buf | (uint64_t)view << 32});
    }
}

static void emit_copies(const struct subgroups *s, struct stages at)
{
    struct kernel *k = s->d->w->k;
    const int64_t stages = s->s.dot_matrix.stages, steps = s->steps;
    uint32_t a = view_of(s, false), b = view_of(s, true);
    val one = k_if(k, k_prim(k, P_EQ, s->t, k_int(k, s->threads), 0));
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, steps), 1);
    val stage = ix_mod(k, step, stages);
    await(s, at.used, stage, ix_div(k, step, stages));
    arrive(s, at.filled, stage, (uint64_t)(panels_of(s, false) + panels_of(s, true)));
    copy_panels(s, false, a, step, stage);
    copy_panels(s, true, b, step, stage);
    k_end(k, step);
    k_end(k, one);
}

/* ---- the role that multiplies ---- */

static void emit_products(const struct subgroups *s, struct stages at)
{
    struct kernel *k = s->d->w->k;
    const int64_t stages = s->s.dot_matrix.stages, steps = s->steps;
    val sum[MAX_SLABS], next[MAX_SLABS], zero = dot_splat(k, k_bits(k, KL_F32, 0), s->unit.m, s->s.dot_matrix.nr);
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, steps), 1);
    for (unsigned i = 0; i < s->slabs; i++)
        sum[i] = dot_carry(k, zero);
    val stage = ix_mod(k, step, stages);
    await(s, at.filled, stage, ix_add(k, ix_div(k, step, stages), k_int(k, 1)));
    dot_matrix_multiply(s, stage, sum, next);
    dot_matrix_commit(s);
    dot_matrix_wait(s, 1);
    val later = k_if(k, k_prim(k, P_LT, k_int(k, 0), step, 0));
    arrive(s, at.used, ix_mod(k, ix_add(k, step, k_int(k, stages - 1)), stages), 0);
    k_end(k, later);
    for (unsigned i = 0; i < s->slabs; i++)
        k_next(k, sum[i], next[i]);
    k_end(k, step);
    for (unsigned i = 0; i < s->slabs; i++)
        sum[i] = dot_out(k, sum[i]);
    dot_matrix_wait(s, 0);
    dot_matrix_results(s, sum);
}

/* The number of a subgroup that multiplies: there are one or two.  It is one value, and not number - 2 (number / 2),
 * which would be terms of indices that are no places in a panel one by one. */
static val multiplying(const struct subgroups *s, val number)
{
    struct kernel *k = s->d->w->k;
    int64_t n = s->threads / s->s.dot_matrix.subgroup;
    if (n == 1 || n & (n - 1))
        return ix_mod(k, number, n);
    val v = k_prim(k, P_AND, number, k_int(k, n - 1), 0);
    ix_bound(k, v, 0, n - 1);
    return v;
}

void dot_emit_warp_specialized(struct subgroups *s, struct stages at)
{
    struct kernel *k = s->d->w->k;
    const int64_t subgroup = s->s.dot_matrix.subgroup;
    val number = ix_div(k, s->t, subgroup), last = k_int(k, s->threads / subgroup);
    val copies = begin_warp_role(s, k_prim(k, P_EQ, number, last, 0), COPYING_REGISTERS);
    emit_copies(s, at);
    k_end(k, copies);
    val multiplies = begin_warp_role(s, k_prim(k, P_LT, number, last, 0), MULTIPLYING_REGISTERS);
    s->t = ix_mod(k, s->t, s->threads); /* the same numbers, whose ranges are known */
    dot_matrix_place(s, multiplying(s, number));
    emit_products(s, at);
    k_end(k, multiplies);
}
