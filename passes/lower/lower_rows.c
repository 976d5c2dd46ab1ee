/* Lowers row kernels: several reduces over the same rows and what is computed from them (fuse_rows.c decides which
 * groups are such).
 *
 * A parallel iteration computes one row.  It loops over the row once for each reduce, in execution order, and a
 * last time for the stored members with one value for each element.  Members with one value for the row are
 * computed between these loops, which are called passes.  Lanes are used as in lower_reduce.c, so the order of a sum
 * is the same in both kinds of kernel.  A member that two passes need is computed in both, unless that costs more than
 * to keep its row in scratch: exp is kept, x - mean is computed again.
 *
 * On a GPU the threads of a block hold a row in registers, or iterate over a longer one in groups of elements, so many
 * that enough loads are on their way; then nothing is kept (lower_rows_gpu.c). */
#include "lower_rows.h"
#include <string.h>

enum { KEEP_COST = 12 }; /* number of instructions that cost as much as a store and a load */

bool rows_is_full(const struct rows *s, ref r)
{
    return lower_is_member(s->w, r) && !op_is_reduce(s->w->g->node[r].op) && node_numel(s->w->g, r) != s->space.rows;
}

bool lower_has_rows(const struct lowering *w)
{
    const struct graph *g = w->g;
    uint32_t reduces = 0;
    ref first = NIL;
    bool after = false; /* does a member with one value for each element depend on the reduce? */
    bool *made = mem_alloc(w->nmember * sizeof *made);
    for (uint32_t m = 0; made && m < w->nmember; m++) {
        ref r = w->member[m];
        if (op_is_reduce(g->node[r].op)) {
            reduces++;
            first = first ? first : r;
            made[m] = true;
        }
        for (unsigned i = 0; i < g->node[r].nin; i++) {
            bool linear;
            ref x = node_operand(g, r, i, &linear);
            made[m] |= lower_is_member(w, x) && made[w->place[x]];
        }
        after |= made[m] && first && node_numel(g, r) != node_numel(g, first);
    }
    if (!made)
        err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering @%s", g->name);
    mem_free(made);
    return reduces > 1 || after;
}

/* ---- which pass computes what ---- */

static void need_operand(const struct lowering *w, ref r, unsigned i, bool *need)
{
    bool linear;
    ref x = node_operand(w->g, r, i, &linear);
    if (lower_is_member(w, x))
        need[w->place[x]] = true;
}

/* Marks the members with one value for each element that pass `pass` computes: its results and their operands. */
static void mark_pass(struct rows *s, uint32_t pass, bool *need)
{
    const struct lowering *w = s->w;
    memset(need, 0, w->nmember * sizeof *need);
    for (uint32_t r = 0; r < s->nreduce; r++)
        if (r == pass || (pass == s->nreduce && s->late >> r & 1))
            need_operand(w, s->reduce[r], 0, need);
    for (uint32_t c = 0; c < s->ncolumn && pass == s->nreduce; c++)
        need_operand(w, s->column[c], 0, need);
    for (uint32_t m = w->nmember; m-- > 0;) {
        ref r = w->member[m];
        need[m] = rows_is_full(s, r) && (need[m] || (pass == s->nreduce && w->stored[r]));
        for (unsigned i = 0; need[m] && !w->row_copy[m] && i < w->g->node[r].nin; i++)
            need_operand(w, r, i, need);
    }
}

static void find_first(struct rows *s)
{
    for (uint32_t m = 0; m < s->w->nmember; m++)
        s->first[m] = s->nreduce + 1;
    for (uint32_t pass = s->nreduce + 1; pass-- > 0;) {
        mark_pass(s, pass, s->need);
        for (uint32_t m = 0; m < s->w->nmember; m++)
            if (s->need[m])
                s->first[m] = pass;
    }
}

/* Is r, which pass `pass` computes, read by a member that only a later pass computes? */
static bool read_later(const struct rows *s, ref r, uint32_t pass)
{
    const struct lowering *w = s->w;
    const struct graph *g = w->g;
    bool linear;
    for (uint32_t i = pass + 1; i < s->nreduce; i++)
        if (node_operand(g, s->reduce[i], 0, &linear) == r)
            return true;
    if (w->stored[r])
        return pass < s->nreduce;
    for (uint32_t m = w->place[r] + 1; m < w->nmember; m++)
        for (unsigned i = 0; rows_is_full(s, w->member[m]) && i < g->node[w->member[m]].nin; i++)
            if (s->first[m] > pass && node_operand(g, w->member[m], i, &linear) == r)
                return true;
    return false;
}

/* ---- one pass ---- */

/* Computes the coordinates of r at the current element. */
static void full_coord(const struct rows *s, ref r, val *coord)
{
    struct kernel *k = s->w->k;
    const struct shape *mine = node_shape(s->w->g, r);
    val own[KL_MAX_RANK], red[KL_MAX_RANK];
    uint32_t kept = s->shape.rank - s->row.rank;
    memset(own, 0, sizeof own);
    memcpy(own, s->row_coord, kept * sizeof *own);
    lower_unflatten(k, &s->row, s->w->column, red);
    memcpy(own + kept, red, s->row.rank * sizeof *own);
    if (shape_equal(mine, &s->shape))
        memcpy(coord, own, sizeof own);
    else
        lower_unflatten(k, mine, lower_flatten(k, &s->shape, own), coord);
}

/* The members whose rows may be kept: those that are needed after the pass that computes them first. */
static uint64_t may_keep(const struct rows *s)
{
    uint64_t set = 0;
    for (uint32_t m = 0; m < s->w->nmember && m < 64; m++)
        if (rows_is_full(s, s->w->member[m]) && s->first[m] < s->nreduce && read_later(s, s->w->member[m], s->first[m]))
            set |= UINT64_C(1) << m;
    return set;
}

/* Makes the scratch for the row of member m if pass `pass` is the first to compute it. */
static void lower_rows_keep(struct rows *s, uint32_t m, uint32_t pass, val value)
{
    struct lowering *w = s->w;
    if (m >= 64 || !(s->keep >> m & 1) || w->row_copy[m] || s->first[m] != pass)
        return;
    int64_t width = w->k->sched.width, padded = (s->space.length + width - 1) / width * width;
    w->row_copy[m] = 1 + k_buf(w->k, BUF_SCRATCH, val_dtype(w->k, value), padded, 0);
}

/* Counts the instructions from `from` on that compute data, not addresses. */
static uint32_t work_since(const struct kernel *k, val from)
{
    uint32_t n = 0;
    for (val v = from; v < k->ninst; v++)
        n += k->inst[v].op != L_CONST && !(k->inst[v].op >= L_PRIM && k->inst[v].kind == INST_INDEX);
    return n;
}

/* In a trial: counts the instructions of member m, from `from` on, and decides whether its row is kept. */
static void weigh_member(struct rows *s, uint32_t m, uint32_t pass, val from)
{
    const struct lowering *w = s->w;
    s->cost[m] = work_since(w->k, from);
    for (unsigned i = 0; i < w->g->node[w->member[m]].nin; i++) {
        bool linear;
        ref x = node_operand(w->g, w->member[m], i, &linear);
        uint32_t p = lower_is_member(w, x) ? w->place[x] : m;
        s->cost[m] += p != m && s->need[p] && !w->row_copy[p] ? s->cost[p] : 0;
    }
    if (m < 64 && s->first[m] == pass && s->cost[m] >= KEEP_COST && read_later(s, w->member[m], pass))
        s->keep |= UINT64_C(1) << m;
}

/* Computes all members of the pass at the current element. */
void rows_compute_members(struct rows *s, uint32_t pass)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    lower_point(w);
    for (uint32_t m = 0; m < w->nmember; m++) {
        ref r = w->member[m];
        if (!s->need[m] || (w->row_copy[m] && s->first[m] < pass) || (w->held && w->held->member[m]))
            continue;
        val coord[KL_MAX_RANK] = {0};
        uint32_t before = k->ninst, kept = w->row_copy[m];
        full_coord(s, r, coord);
        w->row_copy[m] = 0; /* computed here */
        val value = lower_at(w, r, coord);
        w->row_copy[m] = kept;
        if (w->held)
            w->held->member[m] = value;
        if (!kept && s->weighing)
            weigh_member(s, m, pass, before);
        lower_rows_keep(s, m, pass, value);
        if (w->row_copy[m] && s->first[m] == pass)
            k_store(k, w->row_copy[m] - 1, w->column, value, w->pred);
    }
}

/* The operand of a reduce at the current element, after rows_compute_members. */
val rows_operand(const struct rows *s, const struct node *n)
{
    val coord[KL_MAX_RANK] = {0};
    full_coord(s, n->in[0], coord);
    return k_cast(s->w->k, lower_at(s->w, n->in[0], coord), dtype_compute(n->dtype));
}

void rows_store_members(struct rows *s)
{
    struct lowering *w = s->w;
    for (uint32_t m = 0; m < w->nmember; m++) {
        ref r = w->member[m];
        val coord[KL_MAX_RANK] = {0};
        if (!rows_is_full(s, r) || !w->stored[r])
            continue;
        full_coord(s, r, coord);
        lower_store(w, r, node_shape(w->g, r), coord);
    }
}

void rows_load_operands(struct rows *s)
{
    const struct lowering *w = s->w;
    lower_point(s->w);
    for (uint32_t m = 0; m < w->nmember; m++) {
        const struct node *n = &w->g->node[w->member[m]];
        for (unsigned i = 0; rows_is_full(s, w->member[m]) && !op_is_select(n->op) && i < n->nin; i++) {
            bool linear;
            val coord[KL_MAX_RANK] = {0};
            ref x = node_operand(w->g, w->member[m], i, &linear);
            if (!linear || !lower_in_memory(w, x) || node_numel(w->g, x) != s->space.rows * s->space.length)
                continue;
            full_coord(s, n->in[i], coord);
            lower_at(s->w, n->in[i], coord);
        }
    }
}

/* Computes element `base` + lane of the row; only in the first `rest` lanes if rest is not 0. */
static void at_elements(struct rows *s, uint32_t pass, val base, val rest)
{
    struct lowering *w = s->w;
    w->column = ix_add(w->k, base, w->lane);
    w->pred = rest ? k_prim(w->k, P_LT, w->lane, rest, 0) : 0;
    rows_compute_members(s, pass);
}

/* Sets r, which has one value for the row, to `value`, and stores it if other kernels read it. */
void rows_fix(struct rows *s, ref r, val value)
{
    struct lowering *w = s->w;
    val coord[KL_MAX_RANK] = {0};
    lower_fix(w, r, value);
    s->fixed[w->place[r]] = true;
    lower_unflatten(w->k, node_shape(w->g, r), s->index, coord);
    if (w->stored[r])
        lower_store(w, r, node_shape(w->g, r), coord);
}

/* Finds the number of whole vectors of a row and of elements after them; 0 if there are none for any symbols. */
struct row_vectors { val full, tail; };

struct size rows_length(const struct rows *s) { return kernel_count(s->w->k, &s->row); }

/* Of `all` elements, a value; whole: they are a multiple of the width. */
static struct row_vectors vectors_of(struct kernel *k, val all, bool whole)
{
    int64_t width = k->sched.width;
    val full = ix_div(k, all, width);
    return (struct row_vectors){full, whole ? 0 : k_prim(k, P_SUB, all, ix_scale(k, full, width), 0)};
}

static struct row_vectors row_vectors_of(const struct rows *s)
{
    struct kernel *k = s->w->k;
    struct size size = rows_length(s);
    int64_t width = k->sched.width, length = s->space.length;
    if (!size_is_constant(size))
        return vectors_of(k, ix_size(k, size), size_divides(size, width));
    return (struct row_vectors){length / width ? k_int(k, length / width) : 0,
                                length % width ? k_int(k, length % width) : 0};
}

/* ---- rows ---- */

/* Folds the elements of a chunk from element `base` on, of `full` vectors and `tail` more elements (0: none), which
 * lanes accumulate; the fold of the lanes. */
static val reduce_chunk(struct rows *s, uint32_t pass, val base, val full, val tail)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    const struct node *n = &w->g->node[s->reduce[pass]];
    int64_t width = k->sched.width;
    enum fold fold = reduce_fold(n->op);
    unsigned dtype = dtype_compute(n->dtype);
    val acc = k_splat(k, k_bits(k, dtype, fold_identity(fold, dtype)));
    s->weighing = s->trial;
    if (full) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), full, 1), c = k_carry(k, acc);
        at_elements(s, pass, ix_add(k, base, ix_scale(k, j, width)), 0);
        k_next(k, c, k_fold_step(k, fold, c, rows_operand(s, n)));
        k_end(k, j);
        acc = k_out(k, c);
        s->weighing = false;
    }
    if (tail) {
        at_elements(s, pass, full ? ix_add(k, base, ix_scale(k, full, width)) : base, tail);
        acc = k_prim(k, P_SELECT, w->pred, k_fold_step(k, fold, acc, rows_operand(s, n)), acc);
        w->pred = 0;
    }
    return k_lane_reduce(k, fold, acc);
}

/* A row of several chunks of lanes, where the graph's order is followed: their results are combined in ascending
 * order.  The identity at the start changes no bit of the first one: -0 is no result, and NaN stays NaN. */
static val reduce_chunks(struct rows *s, uint32_t pass)
{
    struct kernel *k = s->w->k;
    const struct node *n = &s->w->g->node[s->reduce[pass]];
    struct size size = rows_length(s);
    bool symbolic = !size_is_constant(size);
    int64_t width = k->sched.width, chunk = (int64_t)n->attr.reduce.chunk, rest = s->space.length % chunk;
    enum fold fold = reduce_fold(n->op);
    unsigned dtype = dtype_compute(n->dtype);
    val start = k_bits(k, dtype, fold_identity(fold, dtype)), length = symbolic ? ix_size(k, size) : 0;
    val full = symbolic ? ix_div(k, length, chunk) : k_int(k, s->space.length / chunk);
    val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), full, 1), carry = k_carry(k, start);
    val part = reduce_chunk(s, pass, ix_scale(k, c, chunk), k_int(k, chunk / width), 0);
    k_next(k, carry, k_fold_step(k, fold, carry, part));
    k_end(k, c);
    val all = k_out(k, carry);
    if (symbolic) { /* the last chunk may be empty: its result is the identity */
        val before = ix_scale(k, full, chunk);
        struct row_vectors last = vectors_of(k, k_prim(k, P_SUB, length, before, 0), size_divides(size, width));
        return k_fold_step(k, fold, all, reduce_chunk(s, pass, before, last.full, last.tail));
    }
    val base = k_int(k, s->space.length - rest);
    if (!rest)
        return all;
    part = reduce_chunk(s, pass, base, rest / width ? k_int(k, rest / width) : 0,
                        rest % width ? k_int(k, rest % width) : 0);
    return k_fold_step(k, fold, all, part);
}

static void emit_reduce(struct rows *s, uint32_t pass)
{
    struct kernel *k = s->w->k;
    const struct node *n = &s->w->g->node[s->reduce[pass]];
    struct row_vectors of = row_vectors_of(s);
    if (s->each) {
        rows_reduce_held(s, pass);
        return;
    }
    bool chunks = (uint64_t)size_max(k->placeholders, rows_length(s)) > n->attr.reduce.chunk;
    val x = chunks ? reduce_chunks(s, pass) : reduce_chunk(s, pass, k_int(k, 0), of.full, of.tail);
    rows_fix(s, s->reduce[pass], k_cast(k, x, n->dtype));
}

static void emit_last(struct rows *s)
{
    struct kernel *k = s->w->k;
    if (s->each) {
        rows_store_held(s);
        return;
    }
    int64_t width = k->sched.width;
    struct row_vectors of = row_vectors_of(s);
    s->weighing = false;
    if (of.full) {
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), of.full, 1);
        at_elements(s, s->nreduce, ix_scale(k, j, width), 0);
        rows_store_members(s);
        k_end(k, j);
    }
    if (of.tail) {
        at_elements(s, s->nreduce, of.full ? ix_scale(k, of.full, width) : k_int(k, 0), of.tail);
        rows_store_members(s);
        s->w->pred = 0;
    }
}

/* Computes the members with one value for the row that are no reduces and whose operands have been computed. */
static void fix_members(struct rows *s)
{
    struct lowering *w = s->w;
    lower_point(w);
    for (uint32_t m = 0; m < w->nmember; m++) {
        ref r = w->member[m];
        const struct node *n = &w->g->node[r];
        bool known = !rows_is_full(s, r) && !op_is_reduce(n->op) && !s->fixed[m];
        for (unsigned i = 0; known && i < n->nin; i++) {
            bool linear;
            ref x = node_operand(w->g, r, i, &linear);
            known = !lower_is_member(w, x) || s->fixed[w->place[x]];
        }
        val coord[KL_MAX_RANK] = {0};
        if (!known)
            continue;
        lower_unflatten(w->k, node_shape(w->g, r), s->index, coord);
        rows_fix(s, r, lower_at(w, r, coord));
    }
}

void rows_emit_row(struct rows *s)
{
    struct lowering *w = s->w;
    fix_members(s);
    for (uint32_t pass = 0; pass < s->nreduce; pass++) {
        if (s->late >> pass & 1 || s->fixed[w->place[s->reduce[pass]]])
            continue;
        uint32_t sum = rows_online_sum(s, pass);
        mark_pass(s, pass, s->need);
        if (sum)
            rows_reduce_online(s, pass, sum);
        else
            emit_reduce(s, pass);
        fix_members(s);
    }
    mark_pass(s, s->nreduce, s->need);
    emit_last(s);
    if (s->late)
        fix_members(s);
}

static void lower_rows_emit_rows(struct rows *s)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    struct shape kept = {0};
    for (uint32_t d = 0; d + s->row.rank < s->shape.rank; d++)
        kept.dim[kept.rank++] = s->shape.dim[d];
    rows_make_held(s);
    rows_find_late(s);
    lower_scalars(w);
    if (s->ncolumn) {
        rows_emit_columns(s, &kept);
        rows_free_held(s);
        return;
    }
    struct tasks t;
    s->index = lower_tasks(w, s->space.rows, ix_size(k, kernel_count(k, &kept)), &t);
    lower_unflatten(k, &kept, s->index, s->row_coord);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    rows_emit_row(s);
    k_end(k, w->lane);
    w->lane = 0;
    lower_tasks_end(w, &t);
    rows_free_held(s);
}

/* Finds the rows of the group. */
static void find_rows(struct rows *s)
{
    struct lowering *w = s->w;
    for (uint32_t m = 0; m < w->nmember; m++) {
        const struct node *r = &w->g->node[w->member[m]];
        if (op_is_reduce(r->op) && r->attr.reduce.lanes == 1)
            s->column[s->ncolumn++] = w->member[m];
        else if (op_is_reduce(r->op))
            s->reduce[s->nreduce++] = w->member[m];
    }
    const struct node *n = &w->g->node[s->reduce[0]];
    s->shape = *node_shape(w->g, n->in[0]);
    reduce_rows(w->g, s->reduce[0], &s->space);
    for (uint32_t d = 0; d < s->shape.rank; d++)
        if (s->row.rank || ((n->attr.reduce.axes >> d & 1) && s->shape.dim[d] != 1))
            s->row.dim[s->row.rank++] = s->shape.dim[d];
    find_first(s);
}

/* Emits the rows into a kernel that is discarded, to find which of them to keep, and the bytes of the arrays. */
static void try_rows(struct rows_facts *f, const struct schedule *schedule)
{
    const struct rows *rows = f->of;
    struct lowering *w = f->w;
    struct trial t;
    if (trial_begin(&t, w)) {
        struct rows s = *rows;
        s.w = &t.w;
        s.trial = true;
        schedule_set(t.w.k, &schedule->record);
        lower_rows_emit_rows(&s);
        f->keep = s.keep;
        for (uint32_t i = 0; i < t.out.narg; i++)
            f->bytes += (int64_t)node_bytes(w->g, t.out.arg[i].node);
    }
    trial_end(&t, w);
    memset(rows->fixed, 0, w->nmember * sizeof *rows->fixed);
    memset(w->row_copy, 0, w->nmember * sizeof *w->row_copy);
}

void rows_emit(struct rows *s, const struct schedule *schedule)
{
    s->keep = schedule->rows.keep;
    lower_rows_emit_rows(s);
}

static bool has_chunks(const struct rows *s)
{
    uint64_t length = (uint64_t)size_max(s->w->k->placeholders, rows_length(s));
    for (uint32_t r = 0; r < s->nreduce; r++)
        if (length > s->w->g->node[s->reduce[r]].attr.reduce.chunk)
            return true;
    return false;
}

/* Elements of a chunk of all reduces; 0: they differ, or the length depends on symbols. */
static int64_t chunk_of_all(const struct rows *s)
{
    uint64_t chunk = s->w->g->node[s->reduce[0]].attr.reduce.chunk;
    for (uint32_t r = 1; r < s->nreduce; r++)
        if (s->w->g->node[s->reduce[r]].attr.reduce.chunk != chunk)
            return 0;
    return size_is_constant(rows_length(s)) ? (int64_t)chunk : 0;
}

static void find_columns(const struct rows *s, struct rows_facts *f)
{
    int64_t rows;
    f->columns = s->ncolumn;
    for (uint32_t c = 0; c < s->ncolumn; c++) {
        int64_t chunk = (int64_t)s->w->g->node[s->column[c]].attr.reduce.chunk;
        reduce_columns(s->w->g, s->column[c], &s->space, &rows);
        f->column_rows = common_divisor(rows, f->column_rows);
        f->column_chunk = chunk < rows ? chunk : rows;
    }
}

static void schedule_and_emit(struct rows *s)
{
    find_rows(s);
    struct rows_facts f = {.w = s->w, .find = try_rows, .of = s, .rows = s->space.rows, .length = s->space.length,
                           .reduces = s->nreduce, .members = s->w->nmember,
                           .symbolic = !size_is_constant(rows_length(s)), .may_keep = may_keep(s),
                           .chunks = has_chunks(s), .chunk = chunk_of_all(s),
                           .access = lower_row_access(s->w, rows_length(s), s->space.rows * s->space.length)};
    find_columns(s, &f);
    select_family(s->w, GROUP_rows, &f, s);
}

void lower_rows(struct lowering *w)
{
    uint32_t n = w->nmember;
    struct rows s = {.w = w};
    s.fixed = mem_alloc(n * sizeof *s.fixed);
    s.first = mem_alloc(n * sizeof *s.first);
    s.cost = mem_alloc(n * sizeof *s.cost);
    s.need = mem_alloc(n * sizeof *s.need);
    w->row_copy = mem_alloc(n * sizeof *w->row_copy);
    w->anchor = NIL; /* there are several reduces: each has its value when its pass ends */
    if (s.fixed && s.first && s.cost && s.need && w->row_copy)
        schedule_and_emit(&s);
    else
        err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering @%s", w->g->name);
    mem_free(s.fixed);
    mem_free(s.first);
    mem_free(s.cost);
    mem_free(s.need);
    mem_free(w->row_copy);
    w->row_copy = NULL;
}
