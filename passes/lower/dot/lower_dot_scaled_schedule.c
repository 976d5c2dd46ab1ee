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

/* The loads of words in the expression of an element of the second operand, one of each array. */
struct word_loads { val v[MAX_SOURCES]; unsigned n; };

/* The variables of the loops by which a trial goes through the second operand: element kk of column n's block. */
struct word_trial { val n, kk, column, word, step; };

/* Does a load depend on the element? */
static bool is_of_element(struct kernel *k, val v, const struct dot *d, const struct word_trial *at)
{
    const val var[] = {d->batch_index, at->column, at->word, at->step};
    bool depends = false;
    for (int i = 0; i < 4 && k->inst[v].op == L_LOAD; i++)
        depends |= ix_depends(k, k->inst[v].a, var[i]);
    return depends;
}

static bool same_load(const struct kernel *k, val x, val y)
{
    return k->inst[x].imm == k->inst[y].imm && ix_same(k, k->inst[x].a, k->inst[y].a);
}

/* Finds them for element kk + more; false: the element is computed from something else, too. */
static bool find_word_loads(const struct dot *d, const struct word_trial *at, int64_t more, struct word_loads *found)
{
    struct kernel *k = d->w->k;
    val first = k->ninst;
    found->n = 0;
    dot_stored_element(d, true, at->n, ix_add(k, at->kk, k_int(k, more)));
    for (val v = first, end = k->ninst; v < end; v++) {
        unsigned i = 0;
        if (!is_of_element(k, v, d, at))
            continue;
        while (i < found->n && k->inst[found->v[i]].imm != k->inst[v].imm)
            i++;
        if (i == MAX_SOURCES || !is_word_load(k, v, at->column, at->step) ||
            (i < found->n && !same_load(k, v, found->v[i])))
            return false;
        found->v[i] = v;
        found->n += i == found->n;
    }
    return found->n;
}

static bool same_loads(const struct kernel *k, const struct word_loads *x, const struct word_loads *y)
{
    bool same = x->n == y->n;
    for (unsigned i = 0; i < x->n && same; i++)
        same = same_load(k, x->v[i], y->v[i]);
    return same;
}

/* Do words of four bytes of as many columns as a vector has lanes lie side by side in memory, each byte having `packed`
 * elements, or bits of so many?  apart: these are DOT_GROUP elements apart. */
static bool has_word_order(struct block_dot *s, int64_t packed, bool apart)
{
    struct trial t;
    const struct dot *d = &s->d;
    int64_t lanes = d->w->chooser->caps->vector_bytes / 4;
    s->words = s->apart = false;
    if (d->size.n % lanes || d->size.k % (DOT_GROUP * packed) || d->size.k > MAX_WORDS * DOT_GROUP * packed ||
        !d->size.k)
        return false;
    if (trial_begin(&t, d->w)) {
        struct dot copy = *d;
        struct kernel *k = t.w.k;
        struct word_trial at;
        struct word_loads x, y;
        copy.w = &t.w;
        copy.batch_index = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.batch), 1);
        val tile = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.n / lanes), 1);
        at.column = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, lanes), 1);
        at.word = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, d->size.k / (DOT_GROUP * packed)), 1);
        at.step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, DOT_GROUP), 1);
        at.n = ix_add(k, ix_scale(k, tile, lanes), at.column);
        at.kk = ix_add(k, ix_scale(k, at.word, DOT_GROUP * packed), ix_scale(k, at.step, apart ? 1 : packed));
        int64_t more = (packed - 1) * (apart ? DOT_GROUP : 1);
        s->words = find_word_loads(&copy, &at, 0, &x) && find_word_loads(&copy, &at, more, &y) &&
                   k->err.code == KL_OK && same_loads(k, &x, &y);
        s->apart = s->words && apart;
        s->sources = s->words ? x.n : 0;
        for (unsigned i = 0; i < s->sources; i++)
            s->source[i] = t.out.arg[k->buf[k->inst[x.v[i]].imm].id].node;
        if (s->words)
            s->order = (struct skinny_order){.along_k = true, .element = 1, .side = DOT_GROUP, .packed = packed,
                                             .source = s->source[0]};
    }
    trial_end(&t, d->w);
    return s->words;
}

/* The largest number that the unsigned byte v may be. */
static uint64_t max_byte(const struct kernel *k, val v)
{
    const struct linst *i = &k->inst[v];
    if (i->op == L_CONST)
        return i->imm & UINT8_MAX;
    if (i->op < L_PRIM || i->dtype != KL_U8 || !i->b)
        return UINT8_MAX;
    uint64_t x = max_byte(k, i->a), by = max_byte(k, i->b), all = 1;
    while (all <= (x | by))
        all *= 2;
    switch (i->op) {
    case L_OP(P_AND): return x < by ? x : by;
    case L_OP(P_OR): case L_OP(P_XOR): return all - 1;
    case L_OP(P_SHR): return k->inst[i->b].op == L_CONST && by < 8 ? x >> by : x;
    case L_OP(P_SELECT): x = max_byte(k, i->c); return x < by ? by : x;
    default: return UINT8_MAX;
    }
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
    if (has_word_order(s, 4, true) || has_word_order(s, 2, false) || has_word_order(s, 1, false))
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
    int64_t strip = STRIP_VECTORS * nr, column = d->size.k * d->size.batch;
    if (s->has_order)
        column = column * (s->words ? s->sources : 1) / s->order.packed;
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
