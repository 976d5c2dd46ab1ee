/* The schedules of sums over blocks of products of integers, on a processor. */
#include "lower_dot.h"
#include "passes/lower/lower_schedule.h"

/* MAX_WORDS: words of a column in a block, whose loads are unrolled.  FEW_REGISTERS: the least number; tiles have half
 * as many rows as there are. */
enum { MAX_BLOCK = 256, MAX_WORDS = 16, FEW_REGISTERS = 16, STRIP_VECTORS = 4, FEW_STRIPS = 16 };

/* Is the load v of an element of one byte, of which it is `side` elements from one column to the next, and one along
 * the contraction? */
static bool is_word_load(struct kernel *k, val v, val column, val step)
{
    int64_t side, along;
    const struct linst *i = &k->inst[v];
    return i->op == L_LOAD && !i->b && dtype_size(i->dtype) == 1 && ix_stride(k, i->a, column, &side) &&
           ix_stride(k, i->a, step, &along) && side == DOT_GROUP && along == 1;
}

/* The load in the expression of the second operand's element (n, kk), if it is the only one of its array; 0: none. */
static val find_word_load(const struct dot *d, val n, val kk, val column, val step)
{
    struct kernel *k = d->w->k;
    val first = k->ninst, found = 0, loads = 0;
    dot_stored_element(d, true, n, kk);
    for (val v = first; v < k->ninst && !found; v++)
        found = is_word_load(k, v, column, step) ? v : 0;
    for (val v = first; v < k->ninst; v++)
        loads += k->inst[v].op == L_LOAD && k->inst[v].imm == k->inst[found].imm;
    return loads == 1 ? found : 0;
}

/* Do words of four bytes of as many columns as a vector has lanes lie side by side in memory, each byte having `packed`
 * elements? */
static bool has_word_order(struct block_dot *s, int64_t packed)
{
    struct trial t;
    const struct dot *d = &s->d;
    int64_t lanes = d->w->chooser->caps->vector_bytes / 4;
    s->words = false;
    if (d->size.n % lanes || d->size.k % (DOT_GROUP * packed) || d->size.k > MAX_WORDS * DOT_GROUP * packed ||
        !d->size.k)
        return false;
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        copy.w = &t.w;
        copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        val tile = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.n / lanes), 1);
        val column = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, lanes), 1);
        val word = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k / (DOT_GROUP * packed)), 1);
        val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, DOT_GROUP), 1);
        val n = ix_add(k, ix_scale(k, tile, lanes), column);
        val kk = ix_scale(k, ix_add(k, ix_scale(k, word, DOT_GROUP), step), packed);
        val x = find_word_load(&copy, n, kk, column, step);
        val y = find_word_load(&copy, n, ix_add(k, kk, k_int(k, packed - 1)), column, step);
        s->words = x && y && k->err.code == KL_OK && k->inst[x].imm == k->inst[y].imm &&
                   ix_same(k, k->inst[x].a, k->inst[y].a);
        if (s->words)
            s->order = (struct skinny_order){.along_k = true, .element = 1, .side = DOT_GROUP, .packed = packed,
                                             .source = t.out.arg[k->buf[k->inst[x].imm].id].node};
    }
    trial_end(&t, d->w);
    return s->words;
}

/* The largest number that the unsigned byte v may be. */
static uint64_t max_byte(const struct kernel *k, val v)
{
    const struct linst *i = &k->inst[v], *b = &k->inst[i->b];
    if (i->op < L_PRIM || b->op != L_CONST || i->dtype != KL_U8)
        return UINT8_MAX;
    uint64_t x = max_byte(k, i->a), by = b->imm & UINT8_MAX, all = 1;
    while (all <= (x | by))
        all *= 2;
    return i->op == L_OP(P_AND) ? (x < by ? x : by) : i->op == L_OP(P_XOR) ? all - 1 : UINT8_MAX;
}

val dot_scaled_unsigned(const struct kernel *k, val v, int64_t *offset)
{
    const struct linst *sub = &k->inst[v], *bits = &k->inst[sub->a], *by = &k->inst[sub->b];
    bool is = sub->op == L_OP(P_SUB) && sub->dtype == KL_I8 && by->op == L_CONST && bits->op == L_OP(P_BITS) &&
              k->inst[bits->a].dtype == KL_U8 && max_byte(k, bits->a) <= INT8_MAX;
    *offset = is ? (int8_t)by->imm : 0;
    return *offset >= 0 && is ? bits->a : 0;
}

/* Finds by how much the second operand's bytes are changed. */
static void find_offset(struct block_dot *s)
{
    struct trial t;
    s->offset = 128;
    if (!s->has_order || !s->flip || s->tb != KL_I8)
        return;
    if (trial_begin(&t, s->d.w)) {
        struct dot copy = s->d;
        int64_t offset;
        copy.w = &t.w;
        copy.batch_index = k_int(t.w.k, 0);
        val x = dot_stored_element(&copy, true, k_int(t.w.k, 0), k_int(t.w.k, 0));
        if (dot_scaled_unsigned(t.w.k, x, &offset))
            s->offset = offset;
    }
    trial_end(&t, s->d.w);
}

/* Can instructions for bytes multiply the operands?  The elements of a column have to be adjacent in memory, or
 * words of them beside those of the next columns. */
static bool has_byte_order(struct block_dot *s)
{
    const struct dot *d = &s->d;
    int64_t group;
    if (d->w->chooser->caps->mma_bytes != DOT_GROUP || d->con.rank != 1 || d->size.k <= 0)
        return false;
    if (has_word_order(s, 1) || has_word_order(s, 2))
        return true;
    if (!dot_skinny_order(d, &s->order))
        return false;
    group = DOT_GROUP * s->order.packed;
    return s->order.along_k && s->order.element == 1 && s->order.source && d->size.k % group == 0 &&
           d->size.k / s->order.packed <= MAX_BLOCK;
}

bool dot_scaled_fits(struct block_dot *s)
{
    bool processor = !s->d.w->chooser->caps->is_gpu;
    s->has_order = processor && has_byte_order(s);
    find_offset(s);
    return processor;
}

/* The columns of a task.  One tile of rows reads the second operand once, in the order of memory.  Several tiles read
 * it again from the cache of the core, and copy their rows for each strip, so that strips are wide. */
static int64_t strip_columns(const struct block_dot *s, int64_t tiles, int64_t nr)
{
    const struct dot *d = &s->d;
    int64_t strip = STRIP_VECTORS * nr, column = d->size.k * d->size.batch / (s->has_order ? s->order.packed : 1);
    if (d->size.n / strip * tiles < FEW_STRIPS)
        return nr;
    while (tiles > 1 && dot_parts(d->size.n, 2 * strip) * tiles >= FEW_STRIPS && strip < d->size.n &&
           4 * strip * column <= d->w->chooser->caps->l2_bytes)
        strip *= 2;
    return strip;
}

bool dot_scaled_choose(struct block_dot *s, struct schedule *to)
{
    const struct dot *d = &s->d;
    const struct caps *caps = d->w->chooser->caps;
    bool open = !d->w->chooser->want;
    if (open) {
        int64_t rows = (caps->vector_regs > FEW_REGISTERS ? caps->vector_regs : FEW_REGISTERS) / 2;
        int64_t tiles = dot_parts(d->size.m, rows < MAX_ROWS ? rows : MAX_ROWS);
        to->dot_scaled.mr = (uint16_t)dot_parts(d->size.m, tiles);
        to->dot_scaled.nr = (uint16_t)(caps->vector_bytes / 4);
        to->dot_scaled.bytes = s->has_order;
    }
    unsigned mr = to->dot_scaled.mr, nr = to->dot_scaled.nr;
    if (mr < 1 || mr > MAX_ROWS || nr < 1 || nr > 64 || (nr & (nr - 1)))
        return reject_schedule(d->w, "tile", "a tile has 1 to %d rows and 1, 2, 4 .. 64 columns, not %ux%u", MAX_ROWS,
                               mr, nr);
    if (!to->width)
        to->width = (uint16_t)nr;
    int64_t tiles = dot_parts(d->size.m, mr);
    if (!to->dot_scaled.strip)
        to->dot_scaled.strip = (uint32_t)strip_columns(s, tiles, nr);
    if (open)
        to->grain = lower_grain(dot_parts(d->size.n, to->dot_scaled.strip) * tiles,
                                (int64_t)mr * to->dot_scaled.strip * d->size.k * d->size.batch / 16);
    return true;
}

bool dot_scaled_legal(const struct block_dot *s, const struct schedule *to)
{
    const struct lowering *w = s->d.w;
    unsigned nr = to->dot_scaled.nr;
    if (to->width != nr)
        return reject_schedule(w, "width", "width %u: that of a product is the %u columns of its tile", to->width, nr);
    if (to->dot_scaled.strip % nr)
        return reject_schedule(w, "strip", "strip %u: a multiple of the tile's columns, %u", to->dot_scaled.strip, nr);
    if (to->dot_scaled.bytes && s->words && w->chooser->caps->vector_bytes / 4 % nr)
        return reject_schedule(w, "tile", "tile of %u columns: words of at most %u columns are adjacent in memory", nr,
                               w->chooser->caps->vector_bytes / 4);
    return !to->dot_scaled.bytes || s->has_order ||
           reject_schedule(w, "bytes", "bytes: the columns of the second operand are no bytes that are adjacent");
}
