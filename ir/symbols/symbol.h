/* Dims of graphs with symbols, and binding them to numbers. */
#ifndef KILN_IR_SYMBOL_H
#define KILN_IR_SYMBOL_H
#include "ir/graph/node.h"

/* ---- symbol.c: dims of graphs with symbols ---- */
struct scaled { int64_t dim, by; };
/* The dim constant + the sum of by * dim.  false: it may be negative or too long, or has too many terms. */
bool dims_sum(const struct graph *g, unsigned n, const struct scaled *t, int64_t constant, int64_t *out);
bool dims_never_negative(const struct graph *g, unsigned n, const struct scaled *t, int64_t constant);
int64_t dims_build(struct graph *g, const char *op, unsigned n, const struct scaled *t, int64_t constant); /* for
                                                  gradients: dims_sum, or 0 and g->err */
bool dim_divide(const struct graph *g, int64_t d, int64_t by, int64_t *out); /* rounded down; false: not affine */
/* false: a term would be of more than two symbols, or it is too long */
bool dim_multiply(const struct graph *g, int64_t a, int64_t b, int64_t *out);
const char *shape_fault(const struct graph *g, const struct shape *s); /* what an illegal one of legal rank has */
bool dim_range(const struct graph *g, int64_t d, int64_t *low, int64_t *high); /* false: no dim */
static inline bool dim_at_most(const struct graph *g, int64_t a, int64_t b)  /* whatever the symbols' values */
{
    return dims_never_negative(g, 2, (struct scaled[]){{b, 1}, {a, -1}}, 0);
}
/* hash.c: of graphs whose symbols are the same */
bool dim_same(const struct graph *a, int64_t x, const struct graph *b, int64_t y);
bool shape_is_symbolic(const struct shape *s);
bool symbolic_shape_is_legal(const struct graph *g, const struct shape *s);
static inline bool shape_is_legal(const struct graph *g, const struct shape *s) /* for every value of the symbols */
{
    int64_t n;
    return shape_numel(s, &n) || (g->symbols && symbolic_shape_is_legal(g, s));
}
/* whole has `rest` times the elements of part, whatever the symbols' values; false: there is no such dim */
bool shape_rest(const struct graph *g, const struct shape *whole, const struct shape *part, int64_t *rest);
bool shape_same_size(const struct graph *g, const struct shape *a, const struct shape *b); /* likewise */
unsigned node_dims(struct node *n, int64_t *at[2]); /* attr.c: the attributes that are dims; returns how many */
uint32_t node_axis(const struct node *n);         /* attr.c: its attribute "axis", 0 without */
bool node_wants_order(const struct node *n);      /* attr.c: does pass numerics still have to write its order? */
bool dim_affine(const struct graph *g, int64_t d, struct affine *a); /* false: no dim */
bool dim_exists(const struct graph *g, int64_t d);  /* a number, or an expression of this graph? */
/* factor.c: an expression as number * product of symbols * sum; sum.n 0: without a sum.  Equal lengths have equal
 * factors; a product of two sums is a sum of its own. */
struct length_factors { int64_t number; uint32_t nsymbol, symbol[2]; struct affine sum; };
struct length_factors length_factors_of(const struct affine *a);
int64_t common_divisor(int64_t a, int64_t b); /* the greatest, not below 0; of 0 and b: |b| */
bool affine_add(struct affine *a, const struct affine *b, int64_t by); /* a + by * b; false: too large, too long */
/* The value of a term for these values of the symbols; false: too large. */
bool term_value(const struct symbol_term *t, const int64_t *value, int64_t *out);
bool affine_range(const struct graph *g, const struct affine *a, int64_t *low, int64_t *high); /* false: too large */
bool affine_dim(const struct graph *g, const struct affine *a, int64_t *d); /* false: as dims_sum */
#define SYMBOLIC_DIM (-(INT64_C(1) << 24))          /* the greatest that an expression may be */
int64_t dim_of_expression(uint32_t id);
enum { DIM_TEXT = 400, BOUNDS_TEXT = 160 };
const char *affine_text(const struct graph *g, const struct affine *a, char *buf, size_t n); /* "2*n+m-1" */
const char *dim_text(const struct graph *g, int64_t d, char *buf, size_t n);
/* shape_text asks it for the graph of this thread whose symbols are in shapes; where that is NULL it prints "?" */
extern const struct graph *(*_Atomic shape_text_graph)(void) __attribute__((visibility("hidden")));
const char *shape_text_in(const struct graph *g, const struct shape *s, char *buf, size_t n); /* "[n,3]" */
/* " for n in 1..8, m in 0..4": the symbols of expressions or of a shape; "" without any */
const char *affine_bounds(const struct graph *g, const struct affine *a, unsigned count, char *buf, size_t n);
const char *bounds_text(const struct graph *g, const struct shape *s, char *buf, size_t n);

/* ---- symbol_table.c ---- */
#define NO_SYMBOL UINT32_MAX
/* Declares a symbol of a graph that has no nodes yet; its number, NO_SYMBOL: g->err. */
uint32_t graph_symbol(struct graph *g, const char *name, int64_t low, int64_t high);
uint32_t graph_symbol_add(struct graph *g, const char *name, int64_t low, int64_t high); /* of one with nodes, too */
uint32_t graph_symbol_find(const struct graph *g, const char *name, size_t len); /* NO_SYMBOL: none */
bool graph_symbol_set(struct graph *g, uint32_t symbol, int64_t value, struct err *e); /* its only value from here on */
bool graph_is_bound(const struct graph *g, struct err *e);        /* without symbols? */
bool symbols_share(struct graph *g, const struct graph *from);    /* g, without symbols so far, has from's */
bool symbols_copy(struct graph *g, const struct symbols *from);   /* g has a table of its own; from may be NULL */
/* *table, which borrows g's expressions: the symbols up to the last one that a shape of g has.  Ids stay what they are.
 * NULL: no shape has any. */
struct symbols *symbols_of_shapes(const struct graph *g, struct symbols *table);
void symbols_use(struct graph *g, struct symbols *s);
void symbols_release(struct graph *g);
bool symbols_verify(const struct graph *g, struct err *e);        /* names and bounds */
const char *dim_verify(const struct graph *g, int64_t d);         /* NULL, or what is wrong with it */

/* ---- symbol_bind.c ---- */
enum { NO_VALUE = -1 };
struct extents { const char *what; struct shape want, got; }; /* want: a shape of the graph; got: numbers */
/* Finds the symbols' values (value[], NO_VALUE where not known) that make each `want` what was got; what the shapes do
 * not decide stays unknown.  false: *e names the axis that does not fit. */
bool symbols_match(const struct graph *g, const struct extents *x, uint32_t n, int64_t *value, struct err *e);
/* g and its regions use the table of `to`, which has symbols of the same names.  false: g->err. */
bool graph_move_symbols(struct graph *g, const struct graph *to);
/* Puts in the value of each symbol that can have only one: -1 g->err, 0 there is none, 1. */
int graph_bind(struct graph *g);
/* Puts numbers in place of all expressions.  false: g->err. */
typedef int64_t number_of_affine(const void *ctx, const struct affine *a);
bool graph_bind_numbers(struct graph *g, number_of_affine *number, const void *ctx);

/* ---- size_limit.c ---- */
/* Notes that g was made for lengths whose product is below `limit`, or for those whose product is not, if the symbols'
 * bounds allow both.  why: in a sentence, static. */
void graph_depends_on(const struct graph *g, const int64_t *length, uint32_t n, int64_t limit, const char *why);
void graph_depends_on_values(const struct graph *g, const char *why); /* likewise, on the values themselves */
/* Narrows the bounds of g's symbols around their values, so that all of them are on one side of the limit. */
void size_limit_narrow(struct symbols *s, const struct size_limit *l, const int64_t *value);

/* ---- placeholder.c: primes in place of symbols ----
 * A length of such a graph says by its prime factors which symbols are in it (README.md). */
enum { MAX_PLACEHOLDERS = 16 };
/* Of a symbol, whose value a run has in `slot`; or, where it has terms, of a sum, whose symbols are numbers of
 * placeholders before it. */
struct placeholder { int64_t prime, low, high; uint32_t slot; struct affine sum; };
/* varies: the reason why there is no program for all values, if that is a size_limit, over the symbols that were
 * recorded; number 0: it is not. */
struct placeholders { uint32_t n; struct placeholder v[MAX_PLACEHOLDERS]; struct size_limit varies; };
/* The symbols' values of a run. */
struct size_values { const struct placeholders *s; const uint64_t *slot; };
static inline bool placeholder_is_sum(const struct placeholder *x) { return x->sum.n > 0; }
int64_t placeholder_value(const struct placeholders *s, uint32_t i, const uint64_t *slot); /* of number i in a run */
/* Puts primes in place of g's symbols and of sums of them.  The symbols are among those recorded, whose values stand
 * behind `slots` slots.  false: *e; of code COMPILE: the graph needs a program for each value. */
bool graph_use_placeholders(struct graph *g, const struct symbols *recorded, uint32_t slots, struct placeholders *s,
                    struct err *e);

/* ---- size.c: sizes (README.md, "Sizes") ----
 * number * v[0]^power[0] * ..., where v are the placeholders' symbols and sums.  bound: the same with their primes,
 * for which schedules are chosen: no less than the size's greatest value, and the size itself if it is constant. */
struct size { int64_t bound, number; uint8_t power[MAX_PLACEHOLDERS]; };
struct size size_constant(int64_t n);
/* Of a length of the graph, or a product or quotient of such; never of a number that a schedule chose.  s may be
 * NULL. */
struct size size_of_length(const struct placeholders *s, int64_t length);
struct size size_of_shape(const struct placeholders *s, const struct shape *shape);  /* the number of elements */
struct size size_mul(struct size a, struct size b);
bool size_add(struct size *a, struct size b);    /* *a += b; false: the sum is no such product, *a is undefined */
bool size_is_constant(struct size a);
bool size_equal(struct size a, struct size b);   /* whatever the symbols' values */
bool size_is_multiple(struct size a, struct size of); /* likewise */
static inline bool size_divides(struct size a, int64_t by) { return a.number % by == 0; } /* is a a multiple of it? */
int64_t size_max(const struct placeholders *s, struct size a); /* the greatest that it may be */
int64_t size_min(const struct placeholders *s, struct size a); /* the least */
/* The bytes or elements `size`, a product of lengths, of the symbols' values. */
int64_t size_at(const struct placeholders *s, int64_t size, const uint64_t *slot);

#endif
