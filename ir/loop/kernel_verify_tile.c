/* The shapes of tiles: which operands may be tiles, and that the result's shape follows from theirs. */
#include "loop.h"

static bool tile_rule_broken(const char **rule, const char *why)
{
    *rule = why;
    return false;
}

/* Can a tile, or a scalar, be broadcast to rows x cols? */
static bool verify_tile_fits(const struct linst *i, unsigned rows, unsigned cols)
{
    return !i->cols || ((i->rows == rows || i->rows == 1) && (i->cols == cols || i->cols == 1));
}

static bool prim_shapes(const struct kernel *k, const struct linst *i, const char **rule)
{
    const val in[3] = {i->a, i->b, i->c};
    unsigned rows = 0, cols = 0;
    for (int o = 0; o < 3; o++) {
        const struct linst *x = &k->inst[in[o]];
        if (!in[o] || !x->cols)
            continue;
        rows = x->rows > rows ? x->rows : rows;
        cols = x->cols > cols ? x->cols : cols;
    }
    if (i->rows != rows || i->cols != cols)
        return tile_rule_broken(rule, "the shape is not that of the operands");
    for (int o = 0; o < 3 && cols; o++)
        if (in[o] && !verify_tile_fits(&k->inst[in[o]], rows, cols))
            return tile_rule_broken(rule, "tiles of different shapes");
    return true;
}

static bool verify_tile_same(const struct linst *a, const struct linst *b)
{
    return a->cols == b->cols && (!a->cols || a->rows == b->rows);
}

static bool tile_operands_none(const struct kernel *k, const struct linst *i, const char **rule)
{
    bool tile = i->cols || k->inst[i->a].cols || k->inst[i->b].cols || k->inst[i->c].cols;
    return !tile || tile_rule_broken(rule, "a tile where none can be");
}

bool tile_shapes(const struct kernel *k, val v, const char **rule)
{
    const struct linst *i = &k->inst[v], *a = &k->inst[i->a], *b = &k->inst[i->b], *c = &k->inst[i->c];
    if (i->cols && (!i->rows || i->rows > MAX_TILE_SIDE || i->cols > MAX_TILE_SIDE || i->rows * i->cols > MAX_TILE))
        return tile_rule_broken(rule, "a tile of more than 256 rows, 256 columns or 16384 elements");
    switch (i->op) {
    case L_LOAD:
        if (!i->cols != !i->d)
            return tile_rule_broken(rule, "a tile has a stride between its rows or columns, what is none has not");
        return i->cols ? verify_tile_fits(b, i->rows, i->cols) || tile_rule_broken(rule, "tiles of different shapes")
                       : !b->cols || tile_rule_broken(rule, "a tile where none can be");
    case L_STORE:
        if (!b->cols != !i->d)
            return tile_rule_broken(rule, "a tile has a stride between its rows or columns, what is none has not");
        return b->cols ? verify_tile_fits(c, b->rows, b->cols) || tile_rule_broken(rule, "tiles of different shapes")
                       : !c->cols || tile_rule_broken(rule, "a tile where none can be");
    case L_CARRY:
    case L_OUT:
        return verify_tile_same(i, a) || tile_rule_broken(rule, "the shape is not that of the operands");
    case L_NEXT: /* checked together with its carry: carry_rules */
        return true;
    case L_SPLAT:
        return !a->cols || tile_rule_broken(rule, "a tile where none can be");
    case L_INDEX:
        return (i->cols && i->kind < TILE_ORDER_COUNT && i->dtype == KL_I64 &&
                (i->kind == TILE_ROWS ? i->cols : i->rows) == 1) ||
               tile_rule_broken(rule, "indices are of one column of rows or one row of columns, i64");
    case L_LANE_REDUCE:
        if (!a->cols)
            return tile_operands_none(k, i, rule);
        return (i->cols && i->cols <= a->cols && i->rows == a->rows && !(i->cols & (i->cols - 1)) &&
                !(a->cols & (a->cols - 1))) ||
               tile_rule_broken(rule, "a fold of a tile's rows is from a power of two of columns to another one");
    case L_COLUMNS:
        return (i->cols && i->rows == a->rows && i->imm <= MAX_TILE_SIDE && i->imm + i->cols <= a->cols) ||
               tile_rule_broken(rule, "columns that the tile does not have");
    case L_MMA:
        return (a->cols && b->cols && c->cols && a->cols == (i->kind == MMA_EVEN_ODD ? 2 : 1) * b->rows &&
                verify_tile_same(i, c) && c->rows == a->rows &&
                c->cols == b->cols) ||
               tile_rule_broken(rule, "mma is of [MxK], [KxN] and [MxN]");
    default:
        return i->op >= L_PRIM ? prim_shapes(k, i, rule) : tile_operands_none(k, i, rule);
    }
}
