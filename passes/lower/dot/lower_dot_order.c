/* Orders of a product on matrix units in which both operands consist of vectors of adjacent elements.
 *
 * The unit adds products in an unspecified order, and rows and columns may have any place in the block.  So the kernel
 * may count the contraction, the rows or the columns in another order than the graph.  In a convolution one of them
 * counts channels and, within a channel, the positions of the window: index c * positions + p.  The kernel counts p *
 * channels + c, so that adjacent columns are different channels at the same pixel of the image.
 *
 * Channels are adjacent in memory if they are the array's last dimension.  An array in another order, such as [N, C, H,
 * W], is packed: a phase before the product copies it to a workspace with the channels last, an array [outer, inner,
 * channels] of what is [outer, channels, inner].  The product's loads then become loads of the workspace.  The windows
 * themselves are never copied. */
#include "lower_dot.h"

enum { ROWS, COLUMNS, CONTRACTION, DIMENSIONS, VECTOR = DOT_VECTOR };

static int64_t length_of(const struct dot *d, unsigned dimension)
{
    return dimension == ROWS ? d->size.m : dimension == COLUMNS ? d->size.n : d->size.k;
}

static val reorder_index(const struct dot *d, const struct dot_order *o, unsigned dimension, val i)
{
    struct kernel *k = d->w->k;
    int64_t positions = o->positions[dimension], channels = length_of(d, dimension) / positions;
    if (positions == 1)
        return i;
    return ix_add(k, ix_scale(k, ix_mod(k, i, channels), positions), ix_div(k, i, channels));
}

val dot_order_row(const struct dot *d, const struct dot_order *o, val m) { return reorder_index(d, o, ROWS, m); }
val dot_order_column(const struct dot *d, const struct dot_order *o, val n) { return reorder_index(d, o, COLUMNS, n); }

/* The same index, as coordinates of the dimension's axes whose ranges are known.  Without them, quotients of an address
 * that is the sum of several such coordinates would not cancel. */
static val separate_axes(struct kernel *k, const struct shape *axes, val i)
{
    val at[KL_MAX_RANK];
    int64_t step;
    lower_unflatten(k, axes, i, at);
    for (uint32_t a = 0; a < axes->rank; a++)
        if (!ix_stride(k, at[a], at[a], &step) || step != 1) /* not yet a value of its own */
            ix_assume_range(k, at[a], 0, axes->dim[a] - 1);
    return lower_flatten(k, axes, at);
}

/* The index, in the graph's order, of an element of an operand whose vectors are along the contraction or not. */
static val operand_index(const struct dot *d, const struct dot_order *o, unsigned dimension, bool along_k, val i)
{
    const struct shape *axes = dimension == ROWS ? &d->free_a : dimension == COLUMNS ? &d->free_b : &d->con;
    bool vector = along_k == (dimension == CONTRACTION);
    if (o->positions[dimension] > 1 || vector)
        return reorder_index(d, o, dimension, i);
    return separate_axes(d->w->k, axes, i);
}

/* The element of an operand. */
static val load_of(const struct dot *d, const struct dot_order *o, bool second, val free, val at)
{
    bool along_k = o->packing[second].along_k;
    val side = operand_index(d, o, second ? COLUMNS : ROWS, along_k, free);
    return dot_stored_element(d, second, side, operand_index(d, o, CONTRACTION, along_k, at));
}

/* The index in the workspace of element `at` of the array. */
static val packed_index(struct kernel *k, const struct dot_packing *p, val at)
{
    val matrix = ix_div(k, at, p->channels * p->inner), channel = ix_mod(k, ix_div(k, at, p->inner), p->channels);
    val row = ix_add(k, ix_scale(k, matrix, p->inner), ix_mod(k, at, p->inner));
    return ix_add(k, ix_scale(k, row, p->channels), channel);
}

val dot_order_element(const struct dot *d, const struct dot_order *o, bool second, val free, val at, uint32_t *buf)
{
    struct kernel *k = d->w->k;
    const struct dot_packing *p = &o->packing[second];
    val x = load_of(d, o, second, free, at);
    if (!p->channels)
        *buf = (uint32_t)k->inst[x].imm;
    return p->channels ? packed_index(k, p, k->inst[x].a) : k->inst[x].a;
}

/* ---- which order ---- */

/* The index of a dimension as loops: over positions of the window, channels in vectors if `vector`.  *j: the element of
 * the vector. */
static val loops_of(const struct dot *d, const struct dot_order *o, unsigned dimension, bool vector, val *j)
{
    struct kernel *k = d->w->k;
    int64_t positions = o->positions[dimension], channels = length_of(d, dimension) / positions;
    val p = positions > 1 ? k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, positions), 1) : k_int(k, 0);
    val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, vector ? channels / VECTOR : channels), 1);
    if (vector) {
        *j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, VECTOR), 1);
        c = ix_add(k, ix_scale(k, c, VECTOR), *j);
    }
    return ix_add(k, ix_scale(k, p, channels), c);
}

/* Are there vectors of an operand along its contraction or its side?  packed: in a workspace, which this finds.  An
 * array is packed only if each element is used often, and if most of its elements are used. */
static bool has_vectors(const struct dot *d, struct dot_order *o, bool second, bool along_k, bool packed)
{
    enum { MIN_USES = 32, MAX_UNUSED = 4 };
    unsigned side = second ? COLUMNS : ROWS, along = along_k ? CONTRACTION : side;
    struct dot_packing *p = &o->packing[second];
    struct trial t;
    bool ok = false;
    *p = (struct dot_packing){.along_k = along_k};
    if (length_of(d, along) / o->positions[along] % VECTOR)
        return false;
    if (packed && length_of(d, second ? ROWS : COLUMNS) < MIN_USES)
        return false;
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        val j = 0;
        copy.w = &t.w;
        copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        val free = loops_of(&copy, o, side, !along_k, &j), at = loops_of(&copy, o, CONTRACTION, along_k, &j);
        val x = load_of(&copy, o, second, free, at);
        const struct linst *load = &k->inst[x];
        int64_t lo, hi, count = 0;
        val index = load->a;
        ok = !k->err.code && load->op == L_LOAD && !load->b && k->buf[load->imm].role == BUF_IN &&
             ix_range(k, index, &lo, &hi) && lo >= 0;
        if (ok)
            count = k->buf[load->imm].count;
        if (ok && packed) {
            p->channels = length_of(d, along) / o->positions[along];
            ok = ix_stride(k, index, j, &p->inner) && p->inner > 1 && p->inner <= count / p->channels &&
                 count % (p->channels * p->inner) == 0 &&
                 count / MAX_UNUSED <= d->size.batch * length_of(d, side) * d->size.k;
            index = ok ? packed_index(k, p, index) : index;
        }
        p->count = count;
        ok = ok && count % VECTOR == 0 && dot_is_vector(k, index, j, VECTOR);
    }
    trial_end(&t, d->w);
    return ok;
}

static bool has_packing(const struct dot *d, struct dot_order *o, bool second)
{
    for (int packed = 0; packed < 2; packed++)
        if (has_vectors(d, o, second, true, packed) || has_vectors(d, o, second, false, packed))
            return true;
    return false;
}

/* The positions of the windows of which an operand consists; 1: it has none. */
static int64_t positions_of(const struct dot *d, bool second)
{
    const struct graph *g = d->w->g;
    int64_t n = 1;
    for (ref r = d->n->in[second]; op_is_view(g->node[r].op); r = g->node[r].in[0])
        if (g->node[r].op == OP_window)
            n *= g->node[r].attr.window.size;
    return n;
}

bool dot_order_find(const struct dot *d, struct dot_order *o)
{
    int64_t first = positions_of(d, false), second = positions_of(d, true), along_k = first > second ? first : second;
    const int64_t tried[][DIMENSIONS] = {{1, 1, 1}, {1, 1, along_k}, {1, second, 1}, {first, 1, 1}};
    for (unsigned i = 0; i < sizeof tried / sizeof *tried && !d->symbolic; i++) {
        bool possible = !i || tried[i][0] * tried[i][1] * tried[i][2] > 1;
        for (unsigned dimension = 0; dimension < DIMENSIONS; dimension++) {
            o->positions[dimension] = tried[i][dimension];
            possible = possible && length_of(d, dimension) % tried[i][dimension] == 0;
        }
        if (possible && has_packing(d, o, false) && has_packing(d, o, true))
            return true;
    }
    return false;
}

/* ---- packing ---- */

/* Adjacent pixels of the image that a thread copies, so that it loads these elements at once. */
static int64_t pixels_together(const struct dot_packing *p)
{
    return p->inner % 4 == 0 ? 4 : p->inner % 2 == 0 ? 2 : 1;
}

/* A thread copies a vector of channels of a few pixels.  Two threads have adjacent vectors of the same pixels, so that
 * they store whole sectors of 32 bytes; the next threads have the next pixels. */
void dot_order_pack(struct dot *d, const struct dot_packing *p, bool second, uint32_t to, int64_t threads,
                    uint16_t subgroup)
{
    enum { MAX_INDICES = 4 };
    struct kernel *k = d->w->k;
    int64_t pixels = pixels_together(p), vectors = p->channels / VECTOR, pair = vectors % 2 ? 1 : 2;
    int64_t items = p->count / VECTOR / pixels, blocks = dot_parts(items, threads);
    val b = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, blocks), 1);
    val t = k_loop(k, LOOP_BLOCK, k_int(k, 0), k_int(k, threads), 1), there = 0, x[VECTOR][MAX_INDICES];
    val e = ix_add(k, ix_scale(k, b, threads), t);
    k->extent += blocks;
    k->inst[t].rows = subgroup;
    if (items % threads) {
        there = k_if(k, k_prim(k, P_LT, e, k_int(k, items), 0));
        ix_assume_range(k, e, 0, items - 1);
    }
    d->batch_index = k_int(k, 0);
    val any = dot_stored_element(d, second, k_int(k, 0), k_int(k, 0)); /* names the array */
    uint32_t from = (uint32_t)k->inst[any].imm;
    val rest = ix_div(k, e, pair), place = ix_scale(k, ix_mod(k, rest, p->inner / pixels), pixels);
    val groups = ix_div(k, rest, p->inner / pixels);
    val vector = ix_add(k, ix_scale(k, ix_mod(k, groups, vectors / pair), pair), ix_mod(k, e, pair));
    val channel = ix_scale(k, vector, VECTOR), matrix = ix_div(k, groups, vectors / pair);
    for (int64_t c = 0; c < VECTOR; c++)
        for (int64_t i = 0; i < pixels; i++) {
            val row = ix_add(k, ix_scale(k, matrix, p->channels), ix_add(k, channel, k_int(k, c)));
            x[c][i] = k_load(k, from, ix_add(k, ix_scale(k, row, p->inner), ix_add(k, place, k_int(k, i))), 0);
        }
    for (int64_t i = 0; i < pixels; i++)
        for (int64_t c = 0; c < VECTOR; c++) {
            val row = ix_add(k, ix_scale(k, matrix, p->inner), ix_add(k, place, k_int(k, i)));
            k_store(k, to, ix_add(k, ix_scale(k, row, p->channels), ix_add(k, channel, k_int(k, c))), x[c][i], 0);
        }
    if (there)
        k_end(k, there);
    k_end(k, t);
    k_end(k, b);
}
