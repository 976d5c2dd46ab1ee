/* How the operands of a product lie in memory.  This does not depend on the target; schedules are chosen by it. */
#include "lower_dot.h"

enum { MAX_STEP = 4 }; /* the largest distance between elements that are loaded as whole vectors, of which some
                          elements are then selected */
enum { MIN_PANEL = 16, MAX_PANEL = 64 }; /* columns of a panel of B */

/* The distance in memory, as dot_find_steps defines it, by which element x moves when loop variable v increases by
 * one.  An element may be a cast of one in memory, as a half float is that is widened where it is packed. */
static int64_t step_of(struct kernel *k, val x, val v)
{
    int64_t step = 0;
    while (k->inst[x].op == L_OP(P_CAST))
        x = k->inst[x].a;
    return k->inst[x].op == L_LOAD && !ix_stride(k, k->inst[x].a, v, &step) ? -1 : step;
}

/* The same for steps of k of the second operand, each given as step i of run number o, where a run has `run` steps. */
static int64_t k_step(const struct dot *d, int64_t run)
{
    struct kernel *k = d->w->k;
    val n = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.n), 1);
    val o = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, run ? d->size.k / run : 0), 1);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, run), 1);
    int64_t step = step_of(k, dot_stored_element(d, true, n, ix_add(k, ix_scale(k, o, run), i)), i);
    k_end(k, i);
    k_end(k, o);
    k_end(k, n);
    return step;
}

/* The same for rows of the first operand or columns of the second, each given as number i of run number o, where a
 * run has `run` of them. */
static int64_t side_step(const struct dot *d, bool second, int64_t run)
{
    struct kernel *k = d->w->k;
    val o = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, run ? (second ? d->size.n : d->size.m) / run : 0), 1);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, run), 1);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k), 1);
    int64_t step = step_of(k, dot_stored_element(d, second, ix_add(k, ix_scale(k, o, run), i), j), i);
    k_end(k, j);
    k_end(k, i);
    k_end(k, o);
    return step;
}

/* Finds both distances of an operand: along its rows or columns, and along k. */
static void operand_steps(const struct dot *d, bool second, int64_t *side, int64_t *along_k)
{
    struct kernel *k = d->w->k;
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, second ? d->size.n : d->size.m), 1);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k), 1);
    val x = dot_stored_element(d, second, i, j);
    *side = step_of(k, x, i);
    *along_k = step_of(k, x, j);
    k_end(k, j);
    k_end(k, i);
}

/* The number of steps of k whose addresses are at fixed distances from the first one's: a whole small window of a
 * convolution, or a row of it.  Each k-block has the end of one or has a whole one.  0: there is no such number. */
static int64_t find_period(const struct dot *d)
{
    enum { MAX_COUNT = 16 };
    struct kernel *k = d->w->k;
    int64_t row = 0;
    for (int64_t period = MAX_COUNT; period > 1; period--) {
        if (d->size.k % period || (d->blocks > 1 && d->kblock < period))
            continue;
        val n = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.n), 1);
        val o = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k / period), 1);
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, period), 1);
        val x = dot_stored_element(d, true, n, ix_add(k, ix_scale(k, o, period), i));
        bool outer = step_of(k, x, o) > 0, inner = step_of(k, x, i) > 0;
        k_end(k, i);
        k_end(k, o);
        k_end(k, n);
        if (outer)
            return period;
        if (inner && !row)
            row = period;
    }
    return row;
}

/* The number of columns in each of the second operand's panels; 0: there are none. */
static int64_t find_panels(const struct dot *d)
{
    for (int64_t panel = MAX_PANEL; panel >= MIN_PANEL; panel /= 2)
        if (d->free_b.rank == 1 && !d->symbolic_n && d->size.n > panel && side_step(d, true, panel) == 1)
            return panel;
    return 0;
}

void dot_find_steps(struct dot *d)
{
    struct trial t;
    if (d->has_steps)
        return;
    d->has_steps = true;
    d->run_m = d->size.m;
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        int64_t run = 1;
        copy.w = &t.w;
        copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        operand_steps(&copy, true, &d->b_step_n, &d->b_step_k);
        operand_steps(&copy, false, &d->a_step_m, &d->a_step_k);
        bool apart = d->b_step_n == -1, apart_k = d->b_step_k == -1;
        int64_t step_n = 0;
        for (uint32_t axis = d->free_b.rank; apart && axis-- > 1;) {
            run *= d->free_b.dim[axis];
            if (!size_is_constant(kernel_length(k, run))) /* runs have a length that is a number */
                break;
            int64_t step = run > 1 ? side_step(&copy, true, run) : 0;
            if (step > 0 && step <= MAX_STEP && (!step_n || step <= step_n)) {
                d->columns_run = run;
                step_n = step;
            }
            if (step == 1 && run == d->size.n)
                d->b_step_n = 1;
            else if (step == 1)
                d->whole_run = run;
        }
        d->panels = apart && !d->whole_run && !d->columns_run ? find_panels(&copy) : 0;
        int64_t step_k = 0;
        run = 1;
        for (uint32_t axis = d->con.rank; apart_k && axis-- > 1;) {
            run *= d->con.dim[axis];
            if (!size_is_constant(kernel_length(k, run)))
                break;
            int64_t step = run > 1 ? k_step(&copy, run) : 0;
            if (step > 0 && step <= MAX_STEP && (!step_k || step <= step_k)) {
                d->steps_run = run;
                step_k = step;
            }
        }
        if (apart && apart_k)
            d->period_k = find_period(&copy);
        for (run = MAX_ROWS; d->a_step_m == -1 && run >= FEW_ROWS; run--) {
            int64_t step = d->size.m % run ? -1 : side_step(&copy, false, run);
            if (step >= 0) {
                d->run_m = run;
                d->a_step_m = step;
            }
        }
    }
    trial_end(&t, d->w);
}

/* Are the operand's elements at each `each`-th step of the contraction adjacent in memory, and not those of adjacent
 * rows or columns? */
static bool along_k_by(const struct dot *d, bool second, int64_t each)
{
    struct trial t;
    const struct size one = size_constant(1);
    struct size step_side = {0}, step_k = {0};
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        copy.w = &t.w;
        copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, second ? d->size.n : d->size.m), 1);
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k / each), 1);
        dot_element(&copy, second, i, ix_scale(k, j, each));
        /* the first load that has such adjacent elements */
        for (val v = j; v < k->ninst && !size_equal(step_k, one); v++)
            if (k->inst[v].op == L_LOAD && (!ix_stride_size(k, k->inst[v].a, i, &step_side) ||
                                            !ix_stride_size(k, k->inst[v].a, j, &step_k)))
                step_side = step_k = size_constant(0);
    }
    trial_end(&t, d->w);
    return size_equal(step_k, one) && !size_equal(step_side, one);
}

bool dot_along_k(const struct dot *d, bool second)
{
    return along_k_by(d, second, 1);
}

bool dot_pairs_along_k(const struct dot *d, bool second)
{
    return !d->symbolic_k && d->size.k % 2 == 0 && along_k_by(d, second, 2);
}

/* Opens loops over `size` indices in runs of `run` and returns the index; v: the variables of runs and in a run. */
static val open_runs(struct kernel *k, int64_t size, int64_t run, val v[2])
{
    v[0] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, size / run), 1);
    v[1] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, run), 1);
    return ix_add(k, ix_scale(k, v[0], run), v[1]);
}

bool dot_along_k_in_runs(const struct dot *d, bool second, int64_t run)
{
    struct trial t;
    int64_t size = second ? d->size.n : d->size.m, step_side = 0, step_k = 0;
    if (d->symbolic_m || d->symbolic_n || d->size.k % run)
        return false;
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        val side[2], con[2];
        copy.w = &t.w;
        copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        val free = open_runs(k, size, size % run ? 1 : run, side), at = open_runs(k, d->size.k, run, con);
        dot_element(&copy, second, free, at);
        /* the first load of adjacent elements */
        for (val x = con[1]; x < k->ninst && step_side != 1 && step_k != 1; x++) {
            if (k->inst[x].op != L_LOAD)
                continue;
            step_side = step_of(k, x, size % run ? side[0] : side[1]);
            step_k = step_of(k, x, con[1]);
        }
    }
    trial_end(&t, d->w);
    return step_k == 1 && step_side != 1;
}

/* ---- operands of vectors ---- */

bool dot_is_vector(struct kernel *k, val at, val j, int64_t vector)
{
    int64_t step, left;
    val quotient, rest;
    return ix_stride(k, at, j, &step) && step == 1 &&
           ix_split(k, ix_sub(k, at, j), vector, &quotient, &rest) == vector && ix_const(k, rest, &left) && !left;
}

/* Does the operand, an array, consist of vectors of adjacent elements along the contraction or along its own dimension?
 * Of a length that is no multiple of a vector, the last vector ends in memory behind the row. */
static bool has_vectors_along(const struct dot *d, bool second, bool along_k)
{
    struct trial t;
    int64_t vector = dot_vector(d->dtype), side = second ? d->size.n : d->size.m;
    int64_t length = along_k ? d->size.k : side, vectors = (length + vector - 1) / vector, lo, hi, row;
    const struct shape *axes = along_k ? &d->con : second ? &d->free_b : &d->free_a;
    bool ok = false;
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        copy.w = &t.w;
        copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        val other = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, along_k ? side : d->size.k), 1);
        val o = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, vectors), 1);
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, vector), 1), i = ix_add(k, ix_scale(k, o, vector), j);
        val element = dot_stored_element(&copy, second, along_k ? other : i, along_k ? i : other);
        const struct linst load = k->inst[element];
        ok = !k->err.code && load.op == L_LOAD && !load.b && k->buf[load.imm].role == BUF_IN &&
             k->buf[load.imm].count % vector == 0 && ix_range(k, load.a, &lo, &hi) && lo >= 0 &&
             hi < k->buf[load.imm].count && dot_is_vector(k, load.a, j, vector);
        if (ok && length % vector)
            ok = axes->rank == 1 && ix_stride(k, load.a, other, &row) && row >= vectors * vector;
    }
    trial_end(&t, d->w);
    return ok;
}

bool dot_vectors_along_k(const struct dot *d, bool second) { return has_vectors_along(d, second, true); }

bool dot_has_vectors(const struct dot *d, bool second)
{
    bool same = d->w->g->node[d->n->in[second]].dtype == d->dtype && dtype_size(d->dtype) >= sizeof(float);
    return same && !d->symbolic && (has_vectors_along(d, second, true) || has_vectors_along(d, second, false));
}
