/* What lowering notes of indices: that a value is within limits.
 *
 * A note is true where the index is used, and not always elsewhere: the coordinates of an element under a mask are
 * within the shape only if the element exists, and the run number 8 of 8 runs does not.  So a note is in force up to
 * the end of the loop or if in which it was made, or of the evaluation of the element (ix_facts_begin, ix_facts_end).
 * Then the ranges are what they were, and quotients made meanwhile, which may be simplified by them, are not used
 * again. */
#include "index.h"

/* Keeps what is known of v, before it is changed.  false: out of memory. */
static bool index_note(struct kernel *k, struct index_table *x, val v)
{
    if (!mem_reserve(&x->note, &x->note_cap, x->nnote + 1, sizeof *x->note))
        return err_set(&k->err, KL_ERR_MEMORY, "out of memory building kernel %s", k->name);
    x->note[x->nnote++] = (struct note){.v = v, .at = k->ninst, .before = x->e[v], .ndiv = x->ndiv,
                                        .ntimes = x->ntimes};
    return true;
}

/* Withdraws the last note. */
static void index_withdraw(struct index_table *x)
{
    const struct note *n = &x->note[--x->nnote];
    if (!n->v) {
        x->below[--x->nbelow % MAX_BELOW].v = 0;
        return;
    }
    if (x->e[n->v].t != n->before.t)
        mem_free(x->e[n->v].t);
    x->e[n->v] = n->before;
    x->ndiv = x->ndiv < n->ndiv ? x->ndiv : n->ndiv;
    x->ntimes = x->ntimes < n->ntimes ? x->ntimes : n->ntimes;
}

void index_notes_free(struct index_table *x)
{
    while (x->nnote)
        index_withdraw(x);
    mem_free(x->note);
}

uint32_t ix_facts_begin(const struct kernel *k) { return k->index ? k->index->nnote : 0; }

void ix_facts_end(struct kernel *k, uint32_t begin)
{
    while (k->index && k->index->nnote > begin)
        index_withdraw(k->index);
}

/* Quotients are reused only inside the loop body in which they were made. */
void index_scope_end(struct kernel *k, val scope)
{
    struct index_table *x = k->index;
    if (!x)
        return;
    while (x->nnote && x->note[x->nnote - 1].at > scope)
        index_withdraw(x);
    x->ndiv = x->ntimes = 0;
    for (uint32_t i = 0; i < x->nnote; i++)
        x->note[i].ndiv = x->note[i].ntimes = 0;
}

void ix_bound(struct kernel *k, val v, int64_t lo, int64_t hi)
{
    struct index_table *x = index_table(k);
    struct form f = index_form(k, v);
    if (!x || !v || (f.lo >= lo && f.hi <= hi) || !index_note(k, x, v))
        return;
    f.lo = f.lo > lo ? f.lo : lo;
    f.hi = f.hi < hi ? f.hi : hi;
    if (x->e[v].known) {
        x->e[v].lo = f.lo;
        x->e[v].hi = f.hi;
    } else {
        index_remember(k, v, &f);
    }
}

void ix_assume_range(struct kernel *k, val v, int64_t lo, int64_t hi)
{
    struct index_table *x = index_table(k);
    struct form atom = {.n = 1, .lo = lo, .hi = hi};
    if (!x || !v || k->inst[v].op == L_CONST || !index_note(k, x, v))
        return;
    x->e[v] = (struct entry){0};
    atom.t[0] = (struct term){v, 1};
    index_remember(k, v, &atom);
}

void ix_assume_below(struct kernel *k, val v, struct size size)
{
    struct index_table *x = size_is_constant(size) ? NULL : index_table(k);
    if (!x || !v || !index_note(k, x, 0))
        return;
    uint32_t i = x->nbelow++ % MAX_BELOW;
    x->below[i].v = v;
    x->below[i].size = size;
}
