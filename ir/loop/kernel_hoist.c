/* Moves what is the same in each iteration of a serial loop to before it: values, and loops that fill an array with the
 * same elements each time, as the packing of a matrix that no iteration changes.
 *
 * The body of the loop is a list of items: instructions, and whole loops or ifs.  An item is moved if all that it uses
 * is defined before the loop or moved before it, it loads nothing that it or an item which stays stores, and it stores
 * only to arrays of the kernel's own that nothing else stores to, be it before the loop. */
#include "inline.h"
#include <string.h>

struct hoisting {
    const struct kernel *k;
    val loop, end;
    bool *moved;           /* per instruction of the loop */
    val *close;            /* per loop or if: its END */
    uint32_t *writers;     /* per lbuf: items that store to it and stay, so far as is known; and BEFORE the loop */
    val *item;             /* per lbuf: the last item that stores to it */
};

enum { BEFORE = 2 };

static bool is_effect(const struct linst *i) { return i->op == L_STORE || i->op == L_ATOMIC || i->op == L_COPY; }

/* The last instruction of the item that begins at v. */
static val item_end(const struct hoisting *h, val v)
{
    unsigned op = h->k->inst[v].op;
    return op == L_LOOP || op == L_IF ? h->close[v] : v;
}

/* Counts, for each array, the items that store to it. */
static void count_writers(struct hoisting *h)
{
    for (val v = 1; v < h->loop; v++)
        if (is_effect(&h->k->inst[v]))
            h->writers[(uint32_t)h->k->inst[v].imm] = BEFORE;
    for (val v = h->loop + 1, last; v < h->end; v = last + 1) {
        last = item_end(h, v);
        for (val u = v; u <= last; u++) {
            const struct linst *i = &h->k->inst[u];
            uint32_t b = (uint32_t)i->imm;
            if (!is_effect(i) || h->item[b] == v)
                continue;
            h->item[b] = v;
            h->writers[b]++;
        }
    }
}

static bool is_known(const struct hoisting *h, val operand, val first)
{
    return operand < h->loop || operand >= first || h->moved[operand] || h->k->inst[operand].op == L_CONST;
}

/* Is the array's only writer this item? */
static bool writes_alone(const struct hoisting *h, uint32_t b, val item)
{
    return h->writers[b] == 1 && h->item[b] == item;
}

static bool may_move(const struct hoisting *h, val u, val item)
{
    const struct linst *i = &h->k->inst[u];
    uint32_t b = (uint32_t)i->imm;
    if (u == item && (i->op == L_CARRY || i->op == L_NEXT)) /* of the loop itself */
        return false;
    if (!is_known(h, i->a, item) || !is_known(h, i->b, item) || !is_known(h, i->c, item) || !is_known(h, i->d, item))
        return false;
    switch (i->op) {
    case L_LOAD:  return !h->writers[b];
    case L_STORE: return h->k->buf[b].role == BUF_SCRATCH && writes_alone(h, b, item);
    case L_LOOP:  return i->kind != LOOP_PARALLEL;
    case L_CARRY:
    case L_NEXT:
    case L_END:
    case L_IF:
    case L_CONST:
    case L_OUT:
    case L_SLOT:
    case L_SPLAT:
    case L_LANE_REDUCE:
    case L_INTERLEAVE:
    case L_INDEX:
    case L_MMA:   return true;
    default:      return i->op >= L_PRIM;
    }
}

static void find_items(struct hoisting *h)
{
    for (val v = h->loop + 1, last; v < h->end; v = last + 1) {
        bool may = true;
        last = item_end(h, v);
        for (val u = v; u <= last && may; u++)
            may = may_move(h, u, v);
        for (val u = v; u <= last && may; u++) {
            h->moved[u] = true;
            if (h->k->inst[u].op == L_STORE) /* loads of it by items that follow may move, too */
                h->writers[h->k->inst[u].imm] = 0;
        }
    }
}

static void hoisting_emit(const struct hoisting *h, struct linst *to, val *map)
{
    const struct kernel *k = h->k;
    val n = 1;
    for (int pass = 0; pass < 4; pass++) { /* before the loop, what moves, what stays, behind it */
        val from = pass == 0 ? 1 : pass == 3 ? h->end : h->loop;
        val end = pass == 0 ? h->loop : pass == 3 ? k->ninst : h->end;
        for (val v = from; v < end; v++) {
            if ((pass == 1 || pass == 2) && h->moved[v] != (pass == 1))
                continue;
            struct linst i = k->inst[v];
            i.a = map[i.a];
            i.b = map[i.b];
            i.c = map[i.c];
            i.d = map[i.d];
            map[v] = n;
            to[n++] = i;
        }
    }
}

bool kernel_hoist(struct kernel *k, val loop)
{
    struct mem_arena mem = {0};
    struct hoisting h = {.k = k, .loop = loop, .moved = mem_arena_alloc(&mem, k->ninst * sizeof *h.moved),
                         .close = mem_arena_alloc(&mem, k->ninst * sizeof *h.close),
                         .writers = mem_arena_alloc(&mem, (k->nbuf + 1) * sizeof *h.writers),
                         .item = mem_arena_alloc(&mem, (k->nbuf + 1) * sizeof *h.item)};
    struct linst *inst = mem_arena_alloc(&mem, k->ninst * sizeof *inst);
    val *map = mem_arena_alloc(&mem, k->ninst * sizeof *map);
    if (!mem.failed && !k->err.code) {
        for (val v = 1; v < k->ninst; v++)
            if (k->inst[v].op == L_END)
                h.close[k->inst[v].a] = v;
        h.end = h.close[loop];
        count_writers(&h);
        find_items(&h);
        hoisting_emit(&h, inst, map);
        memcpy(k->inst + 1, inst + 1, (k->ninst - 1) * sizeof *inst);
    } else {
        err_set(&k->err, KL_ERR_MEMORY, "out of memory building kernel %s", k->name);
    }
    mem_arena_free(&mem);
    return !k->err.code;
}
