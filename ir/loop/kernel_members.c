/* Kernels with members: one launch of a GPU runs the kernel for several sets of arguments (horizontal fusion of equal
 * kernels, "multi-tensor apply").
 *
 * The instructions are those of one member and name its buffers, which come first.  Behind them are the arguments of
 * the second member, in the same order, then those of the third.  Memory of a block or thread is there once.  A phase
 * has the iterations of the first member, then those of the second, and so on. */
#include "loop.h"
#include <string.h>

static bool is_argument(const struct lbuf *l)
{
    return l->role == BUF_IN || l->role == BUF_OUT || l->role == BUF_WORKSPACE;
}

/* The arguments among the first n buffers. */
static uint32_t count_arguments(const struct kernel *k, uint32_t n)
{
    uint32_t arguments = 0;
    for (uint32_t b = 0; b < n; b++)
        arguments += is_argument(&k->buf[b]);
    return arguments;
}

uint32_t kernel_arguments(const struct kernel *k) { return count_arguments(k, k->nbuf); }

uint32_t kernel_own_buffers(const struct kernel *k)
{
    uint32_t members = kernel_members(k);
    return members == 1 ? k->nbuf : k->nbuf - count_arguments(k, k->nbuf) / members * (members - 1);
}

uint32_t kernel_member_buffer(const struct kernel *k, uint32_t b, uint32_t member)
{
    uint32_t own = kernel_own_buffers(k);
    if (!member || !is_argument(&k->buf[b]))
        return b;
    return own + (member - 1) * count_arguments(k, own) + count_arguments(k, b);
}

uint32_t kernel_first_buffer(const struct kernel *k, uint32_t b, uint32_t *member)
{
    uint32_t own = kernel_own_buffers(k), each = count_arguments(k, own), first = 0;
    *member = 0;
    if (b < own)
        return b;
    *member = 1 + (b - own) / each;
    for (uint32_t left = (b - own) % each; left || !is_argument(&k->buf[first]); first++)
        left -= is_argument(&k->buf[first]);
    return first;
}

/* The buffers that an instruction accesses are below n; in an iteration, if they are arguments. */
static bool accesses_are(const struct kernel *k, const struct linst *i, uint32_t n, bool in_loop)
{
    bool copy = i->op == L_COPY || i->op == L_COPY_PANEL;
    if (i->op != L_LOAD && i->op != L_STORE && i->op != L_ATOMIC && i->op != L_PREFETCH && !copy)
        return true;
    uint32_t b = (uint32_t)i->imm, from = copy ? (uint32_t)(i->imm >> 32) : b;
    return b < n && from < n && (in_loop || !is_argument(&k->buf[b]));
}

const char *kernel_members_conflict(const struct kernel *k)
{
    uint32_t own = kernel_own_buffers(k), loop = 0;
    for (uint32_t b = 0; b < own; b++)
        if (k->buf[b].role == BUF_SCRATCH || k->buf[b].role == BUF_VIEW || k->buf[b].role == BUF_PHASES)
            return "a kernel with members has no scratch, views or barriers with phases";
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_LOOP && (i->kind == LOOP_PARALLEL || i->kind == LOOP_GRID))
            loop = v;
        if (loop == v && i->kind == LOOP_GRID && i->rows)
            return "the blocks of a kernel with members are in any order";
        if (i->op == L_ALIAS || !accesses_are(k, i, own, loop))
            return "a kernel with members accesses the arguments of the first one, in its iterations";
        if (i->op == L_END && i->a == loop)
            loop = 0;
    }
    return NULL;
}

const char *kernel_members_check(const struct kernel *k)
{
    uint32_t members = kernel_members(k), own = kernel_own_buffers(k), each = count_arguments(k, own);
    if (members > MAX_MEMBERS || !each || k->nbuf != own + (members - 1) * each)
        return "its members have not the same number of arguments";
    for (uint32_t b = own; b < k->nbuf; b++) {
        uint32_t member;
        const struct lbuf *l = &k->buf[b], *first = &k->buf[kernel_first_buffer(k, b, &member)];
        if (l->role != first->role || l->dtype != first->dtype || l->count != first->count)
            return "an argument of a member is not like that of the first one";
    }
    return kernel_members_conflict(k);
}

struct kernel kernel_one_member(const struct kernel *k)
{
    struct kernel one = *k;
    one.nbuf = kernel_own_buffers(k);
    one.members = 0;
    one.extent /= kernel_members(k);
    return one;
}

struct kernel *kernel_join(const struct kernel *k, uint32_t members, uint32_t arguments)
{
    struct kernel *all = kernel_new(k->name);
    if (!all)
        return NULL;
    for (val v = 1; v < k->ninst; v++)
        k_append(all, k->inst[v]);
    for (uint32_t m = 0; m < members; m++)
        for (uint32_t b = 0; b < k->nbuf; b++) {
            const struct lbuf *l = &k->buf[b];
            if (!m || is_argument(l))
                k_buf(all, l->role, l->dtype, l->count, is_argument(l) ? l->id + m * arguments : l->id);
            if (!m && !all->err.code)
                all->buf[b].panel_rows = l->panel_rows;
        }
    memcpy(all->file, k->file, sizeof all->file);
    all->line = k->line;
    all->family = k->family;
    all->sched = k->sched;
    all->flops = k->flops * members;
    all->bytes = k->bytes * members;
    all->extent = k->extent * members;
    all->members = members;
    if (all->err.code) {
        kernel_free(all);
        return NULL;
    }
    return all;
}
