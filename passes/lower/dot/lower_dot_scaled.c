/* Sums over blocks of products of integers: quantized operands that have a scale for each block along the contraction.
 * The inner product's batch are the blocks; what its sums of integers are scaled by are members of the group, and the
 * group's reduce adds the scaled sums in the order of its node.
 *
 * A task computes a strip of columns for MR rows.  It multiplies tiles of MR rows and NR columns, one block after the
 * other; the sums of integers of a block, in any order, go through scratch to a vector loop over columns, which scales
 * them and adds them to the totals.  Of few rows it does so for several blocks at once, unrolled: what they are scaled
 * by in common is then loaded once, and the totals stay in registers between them.
 *
 * With `bytes` (caps.mma_bytes) the second operand is read in the order of memory.  Where the elements of a column are
 * adjacent, a block of NR columns is transposed in registers to words of four bytes of each; where such words of
 * adjacent columns are adjacent, they are loaded as they are, also from several arrays, each with some bits of the
 * elements.  They are unpacked there if elements share a byte.
 *
 * Rows of the first operand are copied to scratch first, in the order in which they are multiplied: block by block of
 * all rows, of each those that meet the lower halves of bytes, then those that meet the upper ones.  The instruction
 * multiplies unsigned by signed bytes: if both operands are of one kind, the upper bits of the second operand's are
 * inverted, which changes its elements by 128; sums begin with -128 times the sum of the row's block. */
#include "lower_dot.h"

struct block_tile { val m0, n0; int64_t rows, cols; val tile; }; /* tile: its number among the whole ones, or 0 */
/* From what is multiplied to what is prefetched: bytes of words, blocks of scales. */
enum { WORDS_AHEAD = 2048, BLOCKS_AHEAD = 8 };
/* Rows of blocks that are scaled together: as many as super-blocks have blocks of 32. */
enum { TOGETHER = 8 };

bool lower_has_block_dot(const struct lowering *w)
{
    bool product = false;
    for (uint32_t m = 0; m < w->nmember; m++)
        product |= op_is_product(w->g->node[w->member[m]].op);
    return product && op_is_reduce(w->g->node[w->anchor].op);
}

/* ---- the first operand ---- */

/* The first of the rows' copied elements of a block. */
static val rows_block(const struct block_dot *s, val block)
{
    return ix_scale(s->d.w->k, block, s->d.mr * s->d.size.k);
}

/* Copies rows m0 .. of the first operand, `of` elements of a part of each block at a time. */
static void copy_rows(const struct block_dot *s, val m0, int64_t rows)
{
    struct dot d = s->d;
    struct lowering *w = d.w;
    struct kernel *k = w->k;
    int64_t packed = s->apart ? 1 : s->order.packed, of = d.size.k / packed, lanes = 1;
    while (lanes < 32 && of % (2 * lanes) == 0)
        lanes *= 2;
    d.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d.size.batch), 1);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, rows), 1);
    val row = ix_add(k, ix_scale(k, i, d.size.k), rows_block(s, d.batch_index));
    for (int64_t part = 0; part < packed; part++)
        for (int64_t at = 0; at < of; at += lanes) {
            w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, lanes), 1);
            val number = ix_add(k, k_int(k, at), w->lane);
            val kk = ix_add(k, ix_scale(k, number, packed), k_int(k, part));
            val x = dot_stored_element(&d, false, ix_add(k, m0, i), kk);
            k_store(k, s->rows, ix_add(k, row, ix_add(k, k_int(k, part * of), number)), x, 0);
            k_end(k, w->lane);
            w->lane = 0;
        }
    k_end(k, i);
    k_end(k, d.batch_index);
}

/* ---- sums of integers by instructions for bytes ---- */

/* The load of the element of array `source` from which the second operand's at (n, kk) is computed. */
static struct linst source_load(const struct block_dot *s, ref source, val n, val kk)
{
    const struct lowering *w = s->d.w;
    struct kernel *k = w->k;
    val v = k->ninst;
    dot_stored_element(&s->d, true, n, kk);
    while (v < k->ninst && (k->inst[v].op != L_LOAD || k->buf[k->inst[v].imm].role != BUF_IN ||
                            w->out->arg[k->buf[k->inst[v].imm].id].node != source))
        v++;
    return k->inst[v < k->ninst ? v : 0]; /* it is there, unless memory ran out */
}

/* Tiles of the arrays from which the second operand is computed. */
struct source_tiles { ref source[MAX_SOURCES]; val tile[MAX_SOURCES]; unsigned n; };

/* Gives the shape of tile v to what has been computed from it, and from others of its shape, since `from`. */
static void shape_tiles(struct kernel *k, val v, val from)
{
    for (val x = from; x < k->ninst; x++) {
        struct linst *i = &k->inst[x];
        const val operand[] = {i->a, i->b, i->c};
        for (unsigned o = 0; o < 3 && i->op >= L_PRIM; o++)
            if (operand[o] && k->inst[operand[o]].cols) {
                i->rows = k->inst[v].rows;
                i->cols = k->inst[v].cols;
            }
    }
}

/* The part of the block of the second operand's columns that is computed from tiles of its arrays, its first element
 * being number `part` of the block. */
static val unpack_part(const struct block_dot *s, const struct block_tile *t, const struct source_tiles *from,
                       int64_t part)
{
    const struct dot *d = &s->d;
    struct kernel *k = d->w->k;
    val at = k_int(k, part), first = k->ninst;
    for (unsigned i = 0; i < from->n; i++)
        lower_fix(d->w, from->source[i], from->tile[i]);
    val b = dot_stored_element(d, true, t->n0, at);
    for (unsigned i = 0; i < from->n; i++)
        lower_unfix(d->w, from->source[i]);
    shape_tiles(k, from->tile[0], first);
    return b;
}

static val block_zero(struct kernel *k, int64_t rows, int64_t cols)
{
    return dot_splat(k, k_bits(k, KL_I32, 0), (unsigned)rows, (unsigned)cols);
}

static val scaled_tile_prim(struct kernel *k, enum prim p, val a, val b, val shape)
{
    struct linst like = k->inst[shape];
    return k_append(k, (struct linst){.op = (uint8_t)L_OP(p), .dtype = KL_I32, .rows = like.rows, .cols = like.cols,
                                      .a = a, .b = b});
}

/* Prefetches the same block of some of the next columns: a cache line of each in so many blocks as it has. */
static void prefetch_columns(const struct block_dot *s, const struct block_tile *t, struct linst load)
{
    const struct dot *d = &s->d;
    struct kernel *k = d->w->k;
    int64_t turns = LINE_BYTES * s->order.packed / d->size.k, each;
    turns = turns < 1 ? 1 : turns > t->cols ? t->cols : turns;
    each = dot_parts(t->cols, turns);
    val first = ix_scale(k, ix_mod(k, d->batch_index, turns), each * s->order.side);
    for (int64_t i = 0; i < each; i++)
        k_prefetch(k, PREFETCH_READ, (uint32_t)load.imm,
                   ix_add(k, ix_add(k, load.a, first), k_int(k, (t->cols + i) * s->order.side)));
}

/* The second operand's bytes in the other dtype, s->offset more or less than they are. */
static val flip_bytes(const struct block_dot *s, val b)
{
    struct kernel *k = s->d.w->k;
    int64_t offset;
    val x = dot_scaled_unsigned(k, b, &offset);
    if (x && offset == s->offset)
        return x;
    unsigned other = s->tb == KL_I8 ? KL_U8 : KL_I8;
    struct linst like = k->inst[b];
    struct linst bits = {.op = L_OP(P_BITS), .dtype = (uint8_t)other, .rows = like.rows, .cols = like.cols, .a = b};
    val same = k_append(k, bits);
    struct linst moved = {.op = L_OP(P_XOR), .dtype = (uint8_t)other, .rows = like.rows, .cols = like.cols, .a = same,
                          .b = k_bits(k, other, 0x80)};
    return k_append(k, moved);
}

/* Adds the products of the first operand with what is unpacked from tiles: in each column of the source its bytes from
 * number `first` of the block on. */
static val add_tile(const struct block_dot *s, const struct block_tile *t, const struct source_tiles *from,
                    int64_t first, int64_t bytes, val sums)
{
    const struct dot *d = &s->d;
    struct kernel *k = d->w->k;
    int64_t of = d->size.k / s->order.packed;
    for (int64_t part = 0; part < s->order.packed; part++) {
        int64_t element = first * s->order.packed + part * (s->apart ? DOT_GROUP : 1);
        val b = unpack_part(s, t, from, element);
        val at = ix_add(k, rows_block(s, d->batch_index), k_int(k, s->apart ? element : part * of + first));
        val a = dot_load(k, s->rows, at, TILE_ROWS, k_int(k, d->size.k), t->rows, bytes, 0);
        sums = dot_mma(k, MMA_CHAIN, a, s->flip ? flip_bytes(s, b) : b, sums);
    }
    return sums;
}

/* The products with the words of a block, which are those of NR adjacent columns, one vector after the other. */
static val add_words(const struct block_dot *s, const struct block_tile *t, val sums)
{
    struct kernel *k = s->d.w->k;
    for (int64_t first = 0; first < s->d.size.k / s->order.packed; first += DOT_GROUP) {
        struct source_tiles from = {.n = s->sources};
        for (unsigned i = 0; i < s->sources; i++) {
            struct linst load = source_load(s, s->source[i], t->n0, k_int(k, first * s->order.packed));
            k_prefetch(k, PREFETCH_READ, (uint32_t)load.imm, ix_add(k, load.a, k_int(k, WORDS_AHEAD)));
            from.source[i] = s->source[i];
            from.tile[i] = dot_load(k, (uint32_t)load.imm, load.a, TILE_COLS, k_int(k, DOT_GROUP), DOT_GROUP, t->cols,
                                    0);
        }
        sums = add_tile(s, t, &from, first, DOT_GROUP, sums);
    }
    return sums;
}

/* Sums of a tile before its products are added. */
static val first_sums(const struct block_dot *s, const struct block_tile *t)
{
    struct kernel *k = s->d.w->k;
    val zero = block_zero(k, t->rows, t->cols);
    if (!s->flip)
        return zero;
    val at = ix_scale(k, s->d.batch_index, s->d.mr * DOT_GROUP);
    val excess = dot_load(k, s->excess, at, TILE_ROWS, k_int(k, DOT_GROUP), t->rows, 1, 0);
    return scaled_tile_prim(k, P_ADD, zero, excess, zero);
}

/* Sums of integers, stored as those of row `at` of scratch and the rows behind it. */
static void byte_sums(const struct block_dot *s, const struct block_tile *t, int64_t at)
{
    const struct dot *d = &s->d;
    struct kernel *k = d->w->k;
    val sums = first_sums(s, t);
    if (s->words) {
        sums = add_words(s, t, sums);
    } else {
        int64_t of = d->size.k / s->order.packed;
        struct linst load = source_load(s, s->order.source, t->n0, k_int(k, 0));
        prefetch_columns(s, t, load);
        val tile = dot_load(k, (uint32_t)load.imm, load.a, TILE_COLS, k_int(k, s->order.side), of, t->cols, 0);
        sums = add_tile(s, t, &(struct source_tiles){{s->order.source}, {tile}, 1}, 0, of, sums);
    }
    dot_store(k, s->sums, k_int(k, at * d->nr), TILE_ROWS, k_int(k, d->nr), sums);
}

/* What takes from the sums of each block of the copied rows s->flip adds to them. */
static void find_excess(const struct block_dot *s, int64_t rows)
{
    const struct dot *d = &s->d;
    struct kernel *k = d->w->k;
    unsigned other = s->ta == KL_I8 ? KL_U8 : KL_I8;
    val block = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
    val sums = block_zero(k, rows, DOT_GROUP), ones = dot_splat(k, k_bits(k, other, 1), DOT_GROUP, DOT_GROUP);
    for (int64_t at = 0; at < d->size.k; at += DOT_GROUP) {
        val first = ix_add(k, rows_block(s, block), k_int(k, at));
        val a = dot_load(k, s->rows, first, TILE_ROWS, k_int(k, d->size.k), rows, DOT_GROUP, 0);
        sums = dot_mma(k, MMA_CHAIN, a, ones, sums);
    }
    val offset = k_bits(k, KL_I32, (uint32_t)(s->tb == KL_I8 ? -s->offset : s->offset));
    sums = scaled_tile_prim(k, P_MUL, sums, offset, sums);
    dot_store(k, s->excess, ix_scale(k, block, d->mr * DOT_GROUP), TILE_ROWS, k_int(k, DOT_GROUP), sums);
    k_end(k, block);
}

/* ---- the same for any operands ---- */

static void plain_sums(const struct block_dot *s, const struct block_tile *t, int64_t at)
{
    const struct dot *d = &s->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    dot_begin_columns(d, t->cols);
    for (int64_t i = 0; i < t->rows; i++) {
        val zero = k_splat(k, k_bits(k, KL_I32, 0));
        val kk = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k), 1), acc = k_carry(k, zero);
        val b = dot_element(d, true, ix_add(k, t->n0, w->lane), kk), pred = w->pred;
        w->pred = 0; /* rows that are loaded exist */
        val a = dot_element(d, false, ix_add(k, t->m0, k_int(k, i)), kk);
        w->pred = pred;
        k_next(k, acc, dot_multiply_add(k, a, b, acc));
        k_end(k, kk);
        k_store(k, s->sums, ix_add(k, k_int(k, (at + i) * d->nr), w->lane), k_out(k, acc), w->pred);
    }
    dot_end_columns(d);
}

/* ---- scaled sums ---- */

static val total_at(const struct block_dot *s, int64_t row)
{
    return ix_add(s->d.w->k, k_int(s->d.w->k, row * s->d.nr), s->d.w->lane);
}

/* Number `n` of the blocks from `first` on. */
static val block_at(const struct block_dot *s, val first, int64_t n)
{
    struct kernel *k = s->d.w->k;
    val block = ix_add(k, first, k_int(k, n));
    ix_bound(k, block, 0, s->d.size.batch - 1);
    return block;
}

static void clear_scaled(const struct block_dot *s, const struct block_tile *t, uint32_t buf, double zero)
{
    struct kernel *k = s->d.w->k;
    dot_begin_columns(&s->d, t->cols);
    for (int64_t i = 0; i < t->rows; i++)
        k_store(k, buf, total_at(s, i), k_splat(k, k_bits(k, KL_F32, dtype_bits(KL_F32, zero))), s->d.w->pred);
    dot_end_columns(&s->d);
}

/* Prefetches what a block a few blocks on is scaled by.  In memory this is far from the block at hand, unlike what is
 * multiplied. */
static void prefetch_scales(const struct block_dot *s, const struct block_tile *t)
{
    struct dot d = s->d;
    struct lowering *w = d.w;
    struct kernel *k = w->k;
    val coord[KL_MAX_RANK] = {0};
    d.batch_index = ix_add(k, d.batch_index, k_int(k, BLOCKS_AHEAD));
    dot_result_coord(&d, t->m0, t->n0, coord);
    lower_point(w);
    w->anchor_value = k_bits(k, KL_I32, 0);
    val first = k->ninst;
    lower_at(w, w->g->node[s->sum].in[0], coord);
    for (val v = first, end = k->ninst; v < end; v++)
        if (k->inst[v].op == L_LOAD && ix_depends(k, k->inst[v].a, t->tile))
            lower_prefetch_load(w, v, first);
}

/* Adds the scaled sums of so many blocks, one after the other, to the chunk's.  What scales a column is loaded once for
 * all rows. */
static void add_scaled(const struct block_dot *s, const struct block_tile *t, val first, int64_t blocks)
{
    struct dot d = s->d;
    struct lowering *w = d.w;
    struct kernel *k = w->k;
    val coord[KL_MAX_RANK] = {0};
    struct held_element loaded = {.member = mem_alloc((w->nmember + 1) * sizeof(val))};
    w->held = loaded.member ? &loaded : NULL;
    dot_begin_columns(&d, t->cols);
    for (int64_t i = 0; i < t->rows; i++) {
        val total = k_load(k, s->parts, total_at(s, i), 0);
        for (int64_t b = 0; b < blocks; b++) {
            d.batch_index = block_at(s, first, b);
            dot_result_coord(&d, ix_add(k, t->m0, k_int(k, i)), ix_add(k, t->n0, w->lane), coord);
            lower_point(w);
            w->anchor_value = k_load(k, s->sums, total_at(s, b * t->rows + i), 0);
            total = k_prim(k, P_ADD, total, lower_at(w, w->g->node[s->sum].in[0], coord), 0);
        }
        k_store(k, s->parts, total_at(s, i), total, w->pred);
    }
    dot_end_columns(&d);
    w->held = NULL;
    mem_free(loaded.member);
    mem_free(loaded.load);
}

static void add_chunk(const struct block_dot *s, const struct block_tile *t)
{
    struct kernel *k = s->d.w->k;
    dot_begin_columns(&s->d, t->cols);
    for (int64_t i = 0; i < t->rows; i++) {
        val at = total_at(s, i), before = k_load(k, s->totals, at, 0);
        k_store(k, s->totals, at, k_prim(k, P_ADD, before, k_load(k, s->parts, at, 0), 0), s->d.w->pred);
    }
    dot_end_columns(&s->d);
}

/* Stores what the group computes from the totals. */
static void store_totals(const struct block_dot *s, const struct block_tile *t)
{
    struct dot d = s->d;
    struct lowering *w = d.w;
    struct kernel *k = w->k;
    val coord[KL_MAX_RANK] = {0};
    d.batch_index = k_int(k, 0);
    dot_begin_columns(&d, t->cols);
    for (int64_t i = 0; i < t->rows; i++) {
        dot_result_coord(&d, ix_add(k, t->m0, k_int(k, i)), ix_add(k, t->n0, w->lane), coord);
        for (uint32_t axis = 0; axis < d.batch.rank; axis++)
            coord[axis] = k_int(k, 0);
        lower_point(w);
        lower_fix(w, s->sum, k_load(k, s->totals, total_at(s, i), 0));
        for (uint32_t m = 0; m < w->nmember; m++)
            if (w->stored[w->member[m]])
                lower_store(w, w->member[m], node_shape(w->g, s->sum), coord);
        lower_unfix(w, s->sum);
    }
    dot_end_columns(&d);
}

/* ---- tiles ---- */

static void add_together(const struct block_dot *s, const struct block_tile *t, val first, int64_t blocks)
{
    struct block_dot here = *s;
    for (int64_t b = 0; b < blocks; b++) {
        here.d.batch_index = block_at(s, first, b);
        if (s->bytes)
            byte_sums(&here, t, b * t->rows);
        else
            plain_sums(&here, t, b * t->rows);
    }
    here.d.batch_index = first;
    if (s->bytes && s->d.size.m <= s->d.mr && t->tile) /* the second operand is read from memory */
        prefetch_scales(&here, t);
    add_scaled(s, t, first, blocks);
}

static void add_blocks(const struct block_dot *s, const struct block_tile *t, val first, int64_t count)
{
    struct kernel *k = s->d.w->k;
    int64_t turns = count / s->together, rest = count % s->together;
    if (turns) {
        val number = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, turns), 1);
        add_together(s, t, ix_add(k, first, ix_scale(k, number, s->together)), s->together);
        k_end(k, number);
    }
    if (rest)
        add_together(s, t, block_at(s, first, turns * s->together), rest);
}

static void scaled_tile(const struct block_dot *s, const struct block_tile *t)
{
    struct kernel *k = s->d.w->k;
    int64_t rest = s->d.size.batch - (s->chunks - 1) * s->chunk;
    clear_scaled(s, t, s->totals, s->chunks > 1 ? -0.0 : 0.0);
    if (s->chunks > 1) {
        val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->chunks - 1), 1);
        clear_scaled(s, t, s->parts, 0.0);
        add_blocks(s, t, ix_scale(k, c, s->chunk), s->chunk);
        add_chunk(s, t);
        k_end(k, c);
        clear_scaled(s, t, s->parts, 0.0);
    }
    add_blocks(s, t, k_int(k, (s->chunks - 1) * s->chunk), rest);
    if (s->chunks > 1)
        add_chunk(s, t);
    store_totals(s, t);
}

static void scaled_rows(const struct block_dot *s, val m0, int64_t rows, val n0, int64_t cols)
{
    struct kernel *k = s->d.w->k;
    int64_t whole = cols / s->d.nr;
    if (s->bytes)
        copy_rows(s, m0, rows);
    if (s->bytes && s->flip)
        find_excess(s, rows);
    if (whole) {
        val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), 1);
        scaled_tile(s, &(struct block_tile){m0, ix_add(k, n0, ix_scale(k, i, s->d.nr)), rows, s->d.nr, i});
        k_end(k, i);
    }
    if (cols % s->d.nr)
        scaled_tile(s, &(struct block_tile){m0, ix_add(k, n0, k_int(k, whole * s->d.nr)), rows, cols % s->d.nr, 0});
}

/* ---- the kernel ---- */

/* Opens an `if` around the parts numbered below `full`, or around the last one, which has `rest` elements, if there are
 * both, and sets the length of these parts; 0: there is no `if`. */
static val if_part(struct kernel *k, val number, int64_t length, int64_t part, bool last, int64_t *here)
{
    int64_t full = length / part, rest = length % part;
    *here = last ? rest : full ? part : 0;
    return full && rest ? k_if(k, k_prim(k, last ? P_EQ : P_LT, number, k_int(k, full), 0)) : 0;
}

/* The task of one strip and one tile of rows. */
static void scaled_tasks(const struct block_dot *s, val strip, val tile)
{
    struct kernel *k = s->d.w->k;
    val n0 = ix_scale(k, strip, s->strip), m0 = ix_scale(k, tile, s->d.mr);
    for (int last = 0; last < 2; last++) {
        int64_t cols, rows;
        val here = if_part(k, strip, s->d.size.n, s->strip, last, &cols);
        for (int below = 0; below < 2 && cols; below++) {
            val inner = if_part(k, tile, s->d.size.m, s->d.mr, below, &rows);
            if (rows)
                scaled_rows(s, m0, rows, n0, cols);
            if (inner)
                k_end(k, inner);
        }
        if (here)
            k_end(k, here);
    }
}

void dot_scaled_emit(struct block_dot *s, const struct schedule *schedule)
{
    struct dot *d = &s->d;
    struct lowering *w = d->w;
    struct kernel *k = w->k;
    d->mr = schedule->dot_scaled.mr;
    d->nr = d->lanes = schedule->dot_scaled.nr;
    s->strip = schedule->dot_scaled.strip;
    s->bytes = schedule->dot_scaled.bytes;
    s->chunk = (int64_t)w->g->node[s->sum].attr.reduce.chunk;
    s->chunks = dot_parts(d->size.batch, s->chunk);
    s->together = TOGETHER / d->mr ? TOGETHER / d->mr : 1;
    lower_scalars(w);
    if (s->bytes)
        s->rows = k_buf(k, BUF_SCRATCH, s->ta, d->mr * d->size.batch * d->size.k, 0);
    if (s->bytes && s->flip)
        s->excess = k_buf(k, BUF_SCRATCH, KL_I32, d->mr * d->size.batch * DOT_GROUP, 0);
    s->sums = k_buf(k, BUF_SCRATCH, KL_I32, d->mr * d->nr * s->together, 0);
    s->parts = s->totals = k_buf(k, BUF_SCRATCH, KL_F32, d->mr * d->nr, 0);
    if (s->chunks > 1)
        s->parts = k_buf(k, BUF_SCRATCH, KL_F32, d->mr * d->nr, 0);
    struct tasks t;
    int64_t tiles = dot_parts(d->size.m, d->mr);
    val number = lower_tasks(w, dot_parts(d->size.n, s->strip) * tiles, 0, &t);
    scaled_tasks(s, ix_div(k, number, tiles), ix_mod(k, number, tiles));
    lower_tasks_end(w, &t);
}

void lower_block_dot_group(struct lowering *w)
{
    struct block_dot s = {.sum = w->anchor};
    ref product = NIL;
    for (uint32_t m = 0; m < w->nmember; m++)
        product = op_is_product(w->g->node[w->member[m]].op) ? w->member[m] : product;
    w->anchor = product; /* its value is given where the others are evaluated */
    bool known = dot_begin(&s.d, w, product);
    if (known && s.d.symbolic) {
        kernel_mark_unsupported(w->k, "a symbol says how long a sum over blocks of products of integers is");
        known = false;
    }
    const struct node *n = &w->g->node[product];
    s.ta = w->g->node[n->in[0]].dtype;
    s.tb = w->g->node[n->in[1]].dtype;
    s.flip = s.ta == s.tb;
    if (known)
        select_family(w, GROUP_block_dot, &s, &s);
}
