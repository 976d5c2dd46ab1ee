/* Warp specialization: producer and consumer warps, full and empty barriers of a ring of stages, TMA loads, ping-pong.
 * The header says how they work together. */
#include "lower_pipeline.h"

/* Registers of a thread in each role.  The registers of a processor are divided among its blocks.  The hardware takes
 * multiples of 8, and numbers for 128 threads at a time: a producer of one warp has as many as a consumer.  A single
 * block with fewer consumers than 256 has enough for all. */
enum { REGISTERS = 64 << 10, UNIT = 8, PRODUCER_REGISTERS = 40, FRUGAL_PRODUCER = 24, CONSUMERS_OF_DIVIDED = 256 };

static int64_t registers_at_start(const struct pipeline *p)
{
    return REGISTERS / p->blocks / (p->consumers + p->producer) / UNIT * UNIT;
}

/* ---- barriers ---- */

uint32_t pipeline_barriers(const struct pipeline *p, int64_t count, int64_t arrivals)
{
    return k_buf(p->k, BUF_PHASES, KL_U64, count, (uint32_t)arrivals);
}

/* One thread arrives at a full barrier, with its loads; all consumers arrive at an empty one. */
struct pipeline_ring pipeline_ring_make(const struct pipeline *p)
{
    struct pipeline_ring r;
    r.full = pipeline_barriers(p, p->stages, 1);
    r.empty = pipeline_barriers(p, p->stages, p->consumers);
    return r;
}

void pipeline_arrive(const struct pipeline *p, uint32_t barriers, val number, int64_t loads)
{
    k_append(p->k, (struct linst){.op = L_ARRIVE, .dtype = KL_BOOL, .a = number,
                                  .imm = barriers | (uint64_t)loads << 32});
}

void pipeline_await(const struct pipeline *p, uint32_t barriers, val number, val phases)
{
    k_append(p->k, (struct linst){.op = L_AWAIT, .dtype = KL_BOOL, .a = number, .b = phases, .imm = barriers});
}

void pipeline_threads_barrier(struct kernel *k, int64_t threads)
{
    k_append(k, (struct linst){.op = L_BARRIER, .dtype = KL_BOOL, .imm = (uint64_t)threads});
}

/* ---- roles ---- */

static int64_t producer_registers(const struct pipeline *p)
{
    if (p->producer < p->subgroup)
        return registers_at_start(p);
    return p->frugal || p->blocks > 1 ? FRUGAL_PRODUCER : PRODUCER_REGISTERS;
}

/* What the producer leaves of the registers that the block has at its start. */
static int64_t consumer_registers(const struct pipeline *p)
{
    int64_t all = registers_at_start(p) * (p->consumers + p->producer);
    return (all - producer_registers(p) * p->producer) / p->consumers / UNIT * UNIT;
}

static val begin_warp_role(const struct pipeline *p, enum prim compare, val subgroup_number, int64_t registers)
{
    struct kernel *k = p->k;
    val role = k_if(k, k_prim(k, compare, subgroup_number, k_int(k, p->consumers / p->subgroup), 0));
    k->inst[role].imm = p->blocks > 1 || p->consumers == CONSUMERS_OF_DIVIDED ? (uint64_t)registers : 0;
    return role;
}

val pipeline_begin_producer(const struct pipeline *p, val subgroup_number)
{
    return begin_warp_role(p, P_EQ, subgroup_number, producer_registers(p));
}

val pipeline_begin_producer_thread(const struct pipeline *p, val t)
{
    return k_if(p->k, k_prim(p->k, P_EQ, t, k_int(p->k, p->consumers), 0));
}

val pipeline_begin_consumers(const struct pipeline *p, val subgroup_number)
{
    return begin_warp_role(p, P_LT, subgroup_number, consumer_registers(p));
}

/* ---- stages ---- */

val pipeline_stage(const struct pipeline *p, val step) { return ix_mod(p->k, step, p->stages); }

val pipeline_stage_before(const struct pipeline *p, val step)
{
    return pipeline_stage(p, ix_add(p->k, step, k_int(p->k, p->stages - 1)));
}

/* ---- the producer ---- */

uint32_t pipeline_tensor_map(struct kernel *k, val element, unsigned dtype, const struct lbuf *view)
{
    uint32_t of = (uint32_t)k->inst[element].imm;
    if (k->inst[element].op != L_LOAD || !view) {
        kernel_mark_unsupported(k, "an operand that TMA loads cannot take");
        return 0;
    }
    uint32_t b = k_buf(k, BUF_VIEW, dtype, k->buf[of].count, of);
    if (k->err.code)
        return 0;
    k->buf[b].first = view->first;
    for (unsigned i = 0; i < VIEW_DIMS; i++) {
        k->buf[b].size[i] = view->size[i];
        k->buf[b].step[i] = view->step[i];
    }
    return b;
}

int64_t pipeline_loads(const struct pipeline_tile *tile) { return tile->columns / PANEL_COLUMNS; }

void pipeline_acquire(const struct pipeline *p, const struct pipeline_ring *ring, val step, int64_t loads)
{
    val stage = pipeline_stage(p, step);
    pipeline_await(p, ring->empty, stage, ix_div(p->k, step, p->stages));
    pipeline_arrive(p, ring->full, stage, loads);
}

void pipeline_load_panel(const struct pipeline *p, const struct pipeline_tile *tile, val stage, int64_t i, val column,
                         val row, val matrix)
{
    struct kernel *k = p->k;
    val to = ix_add(k, ix_scale(k, stage, tile->elements), k_int(k, i * PANEL_COLUMNS));
    k_append(k, (struct linst){.op = L_COPY_PANEL, .dtype = KL_BOOL, .a = to, .b = column, .c = row, .d = matrix,
                               .imm = tile->buf | (uint64_t)tile->view << 32});
}

void pipeline_load(const struct pipeline *p, const struct pipeline_tile *tile, val stage, val column, val row,
                   val matrix)
{
    for (int64_t i = 0; i < pipeline_loads(tile); i++)
        pipeline_load_panel(p, tile, stage, i, ix_add(p->k, column, k_int(p->k, i * PANEL_COLUMNS)), row, matrix);
}

/* ---- consumers ---- */

void pipeline_wait_full(const struct pipeline *p, const struct pipeline_ring *ring, val step)
{
    val phases = ix_add(p->k, ix_div(p->k, step, p->stages), k_int(p->k, 1));
    pipeline_await(p, ring->full, pipeline_stage(p, step), phases);
}

void pipeline_wait_full_before(const struct pipeline *p, const struct pipeline_ring *ring, val step)
{
    val phases = ix_div(p->k, ix_add(p->k, step, k_int(p->k, p->stages - 1)), p->stages);
    pipeline_await(p, ring->full, pipeline_stage_before(p, step), phases);
}

void pipeline_release(const struct pipeline *p, const struct pipeline_ring *ring, val stage)
{
    pipeline_arrive(p, ring->empty, stage, 0);
}

void pipeline_commit_products(struct kernel *k)
{
    k_append(k, (struct linst){.op = L_COMMIT, .dtype = KL_BOOL, .kind = ASYNC_PRODUCTS});
}

void pipeline_wait_products(struct kernel *k, uint64_t left)
{
    k_append(k, (struct linst){.op = L_WAIT, .dtype = KL_BOOL, .kind = ASYNC_PRODUCTS, .imm = left});
}

/* ---- ping-pong ---- */

uint32_t pipeline_pingpong_make(const struct pipeline *p)
{
    return pipeline_barriers(p, PIPELINE_PINGPONG, p->subgroup);
}

/* The first group waits until the second one has begun i steps, the second one until the first one has begun i + 1. */
void pipeline_pingpong_wait(const struct pipeline *p, uint32_t pingpong, val group, val i)
{
    pipeline_await(p, pingpong, group, ix_add(p->k, i, group));
}

void pipeline_pingpong_pass(const struct pipeline *p, uint32_t pingpong, val group)
{
    pipeline_arrive(p, pingpong, ix_sub(p->k, k_int(p->k, PIPELINE_PINGPONG - 1), group), 0);
}
