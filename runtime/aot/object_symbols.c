/* Programs compiled ahead of time for all values of symbols: what a run computes from the values. */
#include "object.h"
#include "image.h"

size_t object_symbol_at(const struct graph *g, uint32_t symbol)
{
    size_t at = (g->input.n + g->state.n + 2) * sizeof(void *);
    for (uint32_t i = 0; i < g->nout; i++)
        at += g->out[i].kind == OUT_RETURN ? sizeof(void *) : 0;
    return at + symbol * sizeof(int64_t);
}

void object_put_symbols(const struct graph *g, const struct placeholders *s, struct image_symbol *out)
{
    for (uint32_t i = 0; i < g->symbols->n; i++)
        out[i] = (struct image_symbol){.low = g->symbols->v[i].low, .high = g->symbols->v[i].high,
                                       .at = (uint32_t)object_symbol_at(g, i)};
    struct image_symbol *sum = out + g->symbols->n;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct placeholder *x = &s->v[i];
        if (placeholder_is_sum(x))
            *sum++ = (struct image_symbol){.prime = x->prime, .low = x->low, .high = x->high};
        else
            out[x->slot - g->slot.n].prime = x->prime;
    }
}

/* The code that is written. */
struct symbol_code { struct image_step *v; uint32_t n, stack; bool failed; };

static void put_step(struct symbol_code *s, enum image_op op, int64_t number)
{
    s->stack += op <= IMAGE_SLOT ? 1 : op == IMAGE_SELECT ? -2u : -1u;
    s->failed |= s->n == OBJECT_STEPS || s->stack > IMAGE_STACK;
    if (!s->failed)
        s->v[s->n++] = (struct image_step){.op = op, .number = number};
}

/* Those that kernel_active allows. */
static enum image_op image_op_of(unsigned prim)
{
    return prim == P_ADD ? IMAGE_ADD : prim == P_SUB ? IMAGE_SUB : prim == P_MUL ? IMAGE_MUL
           : prim == P_DIV ? IMAGE_DIV : prim == P_LT ? IMAGE_LT : prim == P_LE ? IMAGE_LE : IMAGE_SELECT;
}

static void put_steps_of(struct symbol_code *s, const struct kernel *k, val v)
{
    const struct linst *i = &k->inst[v];
    if (s->failed)
        return;
    if (i->op == L_CONST || i->op == L_SLOT) {
        put_step(s, i->op == L_CONST ? IMAGE_NUMBER : IMAGE_SLOT, i->op == L_CONST ? (int64_t)i->imm : slot_number(i));
        return;
    }
    enum image_op op = image_op_of((unsigned)(i->op - L_PRIM));
    put_steps_of(s, k, i->a);
    put_steps_of(s, k, i->b);
    if (op == IMAGE_SELECT)
        put_steps_of(s, k, i->c);
    put_step(s, op, 0);
}

uint32_t object_active(const struct kernel *k, struct image_step *out)
{
    struct phase phase = {0};
    val active = kernel_phase(k, &phase) ? kernel_active(k, &phase) : 0;
    struct symbol_code s = {.v = out};
    if (active)
        put_steps_of(&s, k, active);
    return s.failed ? 0 : s.n;
}

/* The steps of a sum: of its term of symbol i the value is in slot[i]. */
static void put_sum(struct symbol_code *s, const struct affine *a, const uint32_t *slot)
{
    put_step(s, IMAGE_NUMBER, a->constant);
    for (uint32_t i = 0; i < a->n; i++) {
        const struct symbol_term *t = &a->term[i];
        put_step(s, IMAGE_NUMBER, t->by);
        put_step(s, IMAGE_SLOT, slot[t->symbol]);
        put_step(s, IMAGE_MUL, 0);
        if (t->times) {
            put_step(s, IMAGE_SLOT, slot[t->times - 1]);
            put_step(s, IMAGE_MUL, 0);
        }
        put_step(s, IMAGE_ADD, 0);
    }
}

uint32_t object_length(const struct graph *g, int64_t length, struct image_step *out)
{
    struct affine a;
    struct symbol_code s = {.v = out};
    uint32_t slot[MAX_SYMBOLS];
    for (uint32_t i = 0; i < MAX_SYMBOLS; i++)
        slot[i] = g->slot.n + i;
    s.failed = !dim_affine(g, length, &a);
    if (!s.failed)
        put_sum(&s, &a, slot);
    return s.failed ? 0 : s.n;
}

uint32_t object_sum(const struct graph *g, const struct placeholders *s, uint32_t i, struct image_step *out)
{
    struct symbol_code code = {.v = out};
    uint32_t slot[MAX_PLACEHOLDERS];
    for (uint32_t k = 0; k < s->n; k++)
        slot[k] = s->v[k].slot - g->slot.n;
    put_sum(&code, &s->v[i].sum, slot);
    return code.failed ? 0 : code.n;
}
