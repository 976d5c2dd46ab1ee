/* Running a regular expression on text, by backtracking (pattern.h). */
#include "pattern_code.h"
#include <kiln/extend.h>
#include <string.h>

static bool pattern_item_has(const struct pattern_item *i, uint32_t c)
{
    bool is;
    switch (i->property) {
    case PATTERN_RANGE: is = c >= i->low && c <= i->high; break;
    case PATTERN_CATEGORIES: is = unicode_category_bit(c) & i->low; break;
    case PATTERN_SPACE: is = unicode_is_space(c); break;
    case PATTERN_WORD: is = unicode_is_word(c); break;
    default: is = unicode_is_han(c); break;
    }
    return is != i->negate;
}

bool pattern_set_has(const struct pattern *p, const struct pattern_set *s, uint32_t c)
{
    for (int32_t i = 0; i < s->n; i++)
        if (pattern_item_has(&p->item[s->first + i], c))
            return !s->negate;
    return s->negate;
}

/* Is the character at `at`, which is before end, of the set?  *n: its bytes. */
static bool pattern_set_at(const struct pattern *p, const struct pattern_set *s, const uint8_t *at, const uint8_t *end,
                           size_t *n)
{
    if (*at < 0x80) {
        *n = 1;
        return s->ascii[*at / 32] >> *at % 32 & 1;
    }
    uint32_t c = unicode_at(at, end, n);
    return pattern_set_has(p, s, c);
}

void pattern_first_bytes(const struct pattern *p, int32_t pc, int depth, uint32_t first[8])
{
    for (;; pc++) {
        const struct pattern_op *o = &p->op[pc];
        switch (o->kind) {
        case PATTERN_SET:
        case PATTERN_LOOP:
            for (int i = 0; i < 8; i++)
                first[i] |= i < 4 ? p->set[o->set].ascii[i] : UINT32_MAX;
            if (o->kind == PATTERN_SET || o->min > 0)
                return;
            break;
        case PATTERN_BYTES:
            first[p->literal[0] / 32] |= 1u << p->literal[0] % 32;
            return;
        case PATTERN_SPLIT:
            if (depth == 0)
                goto any;
            pattern_first_bytes(p, pc + o->jump, depth - 1, first);
            break;
        case PATTERN_JUMP:
            if (o->jump < 0)
                goto any;
            pc += o->jump - 1;
            break;
        case PATTERN_LOOK: pc += o->jump - 1; break;
        case PATTERN_BEHIND:
        case PATTERN_START:
        case PATTERN_END: break;
        case PATTERN_ACCEPT: goto any;
        }
    }
any:
    memset(first, 0xff, 8 * sizeof *first);
}

/* Where to go on when a match fails: at pos, or at a position before it down to low, where low is not NULL. */
struct pattern_retry { int32_t pc; const uint8_t *pos, *low; };
enum { PATTERN_STACK = 48, PATTERN_STEPS = 1 << 24 };
struct pattern_run {
    const struct pattern *p;
    const uint8_t *start, *end;
    struct pattern_retry *stack, few[PATTERN_STACK];
    size_t n, cap;
    int64_t steps;            /* left */
};

static bool pattern_push(struct pattern_run *r, struct pattern_retry retry)
{
    if (r->n == r->cap) {
        bool few = r->stack == r->few;
        struct pattern_retry *grown = kl_memory_grow(few ? NULL : r->stack, few ? 0 : r->cap * sizeof *grown,
                                                     2 * r->cap * sizeof *grown);
        if (!grown)
            return false;
        if (few)
            memcpy(grown, r->few, sizeof r->few);
        r->stack = grown;
        r->cap *= 2;
    }
    r->stack[r->n++] = retry;
    return true;
}

/* Takes characters of a loop; NULL: there are too few.  low: where it may end at the earliest. */
static const uint8_t *pattern_loop(struct pattern_run *r, const struct pattern_op *o, const uint8_t *at,
                                   const uint8_t **low)
{
    const struct pattern_set *s = &r->p->set[o->set];
    int64_t count = 0;
    *low = at;
    for (size_t n; count < o->max && at < r->end && pattern_set_at(r->p, s, at, r->end, &n); at += n)
        if (++count == o->min)
            *low = at + n;
    r->steps -= count;
    return count < o->min ? NULL : at;
}

static enum pattern_result pattern_run_from(struct pattern_run *r, int32_t pc, const uint8_t *at,
                                            const uint8_t **stop);

/* Does what a PATTERN_LOOK stands before match here?  Its retries are above those that there are. */
static enum pattern_result pattern_look(struct pattern_run *r, int32_t pc, const uint8_t *at)
{
    size_t n = r->n;
    const uint8_t *stop;
    struct pattern_run inner = *r;
    inner.stack = inner.few;
    inner.n = 0;
    inner.cap = PATTERN_STACK;
    enum pattern_result found = pattern_run_from(&inner, pc + 1, at, &stop);
    r->steps = inner.steps;
    r->n = n;
    if (inner.stack != inner.few)
        kl_memory_free(inner.stack);
    return found;
}

static bool pattern_line_edge(const struct pattern_run *r, bool is_end, const uint8_t *at)
{
    return is_end ? at == r->end || *at == '\n' : at == r->start || at[-1] == '\n';
}

/* One operation at *at.  Returns the next pc; -1: it does not match; -2: no memory. */
static int32_t pattern_step(struct pattern_run *r, int32_t pc, const uint8_t **at)
{
    const struct pattern_op *o = &r->p->op[pc];
    const uint8_t *low, *past;
    enum pattern_result found;
    size_t n;
    switch (o->kind) {
    case PATTERN_SET:
        if (*at == r->end || !pattern_set_at(r->p, &r->p->set[o->set], *at, r->end, &n))
            return -1;
        *at += n;
        return pc + 1;
    case PATTERN_LOOP:
        if (!(past = pattern_loop(r, o, *at, &low)))
            return -1;
        *at = past;
        if (past > low && !o->possessive && r->p->op[pc + 1].kind != PATTERN_ACCEPT &&
            !pattern_push(r, (struct pattern_retry){pc + 1, past, low}))
            return -2;
        return pc + 1;
    case PATTERN_BYTES:
        if ((size_t)(r->end - *at) < r->p->literal_n || memcmp(*at, r->p->literal, r->p->literal_n) != 0)
            return -1;
        *at += r->p->literal_n;
        return pc + 1;
    case PATTERN_SPLIT:
        if (*at < r->end && !(o->first[**at / 32] >> **at % 32 & 1))
            return pc + o->jump;
        return pattern_push(r, (struct pattern_retry){pc + o->jump, *at, NULL}) ? pc + 1 : -2;
    case PATTERN_JUMP: return pc + o->jump;
    case PATTERN_LOOK:
        found = pattern_look(r, pc, *at);
        return found == PATTERN_TOO_LONG ? -2 : (found == PATTERN_FOUND) != o->negate ? pc + o->jump : -1;
    case PATTERN_BEHIND:
        if (*at == r->start)
            return o->negate ? pc + 1 : -1;
        past = *at - unicode_before(r->start, *at);
        return pattern_set_at(r->p, &r->p->set[o->set], past, *at, &n) != o->negate ? pc + 1 : -1;
    case PATTERN_START: return pattern_line_edge(r, false, *at) ? pc + 1 : -1;
    case PATTERN_END: return pattern_line_edge(r, true, *at) ? pc + 1 : -1;
    case PATTERN_ACCEPT: break;
    }
    return -1;
}

/* Takes the last retry that is left; its pc, or -1: none is. */
static int32_t pattern_backtrack(struct pattern_run *r, const uint8_t **at)
{
    if (r->n == 0)
        return -1;
    struct pattern_retry *top = &r->stack[r->n - 1];
    if (top->low)
        top->pos -= unicode_before(top->low, top->pos);
    *at = top->pos;
    if (top->pos == top->low || !top->low)
        r->n--;
    return top->pc;
}

static enum pattern_result pattern_run_from(struct pattern_run *r, int32_t pc, const uint8_t *at,
                                            const uint8_t **stop)
{
    while (r->p->op[pc].kind != PATTERN_ACCEPT) {
        pc = pattern_step(r, pc, &at);
        if (pc == -1)
            pc = pattern_backtrack(r, &at);
        if (pc == -1)
            return PATTERN_NONE;
        if (pc < 0 || r->steps-- < 0)
            return PATTERN_TOO_LONG;
    }
    *stop = at;
    return PATTERN_FOUND;
}

enum pattern_result pattern_find(const struct pattern *p, const uint8_t *start, const uint8_t *end,
                                 const uint8_t *from, const uint8_t **match, const uint8_t **match_end)
{
    struct pattern_run r = {.p = p, .start = start, .end = end, .cap = PATTERN_STACK, .steps = PATTERN_STEPS};
    r.stack = r.few;
    r.steps += 64 * (int64_t)(end - from);
    enum pattern_result found = PATTERN_NONE;
    size_t n;
    for (; from < end && found == PATTERN_NONE; from += n) {
        n = 1;
        if (!(p->first[*from / 32] >> *from % 32 & 1))
            continue;
        unicode_at(from, end, &n);
        r.n = 0;
        found = pattern_run_from(&r, 0, from, match_end);
        if (found == PATTERN_FOUND && *match_end == from)
            found = PATTERN_NONE;
        *match = from;
    }
    if (r.stack != r.few)
        kl_memory_free(r.stack);
    return found;
}
