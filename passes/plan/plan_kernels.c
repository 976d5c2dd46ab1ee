/* The kernels of a program, each once.
 *
 * Groups that are lowered to equal kernels share one from then on, so that a graph of many equal layers does not fill
 * memory with copies.  A kernel gets its number in the program, its name and its line when the first command has it,
 * in the order of the commands. */
#include "plan.h"
#include <string.h>

/* Where a kernel with this hash is in the table, or would be. */
static uint32_t *kernel_place(const struct planner *root, const struct kernel *k, struct hash128 h)
{
    uint32_t at = (uint32_t)h.lo & (root->table_size - 1);
    for (; root->table[at]; at = (at + 1) & (root->table_size - 1)) {
        const struct plan_kernel *x = &root->kernel[root->table[at] - 1];
        if (x->hash.lo == h.lo && x->hash.hi == h.hi && kernel_same(x->k, k))
            break;
    }
    return &root->table[at];
}

/* Makes room for one more kernel in the table, which stays half empty. */
static bool grow_table(struct planner *root)
{
    if (2 * (root->nkernel + 1) <= root->table_size)
        return true;
    uint32_t size = root->table_size ? 2 * root->table_size : 64, *table = mem_alloc(size * sizeof *table);
    if (!table)
        return false;
    for (uint32_t i = 0; i < root->nkernel; i++) {
        uint32_t at = (uint32_t)root->kernel[i].hash.lo & (size - 1);
        while (table[at])
            at = (at + 1) & (size - 1);
        table[at] = i + 1;
    }
    mem_free(root->table);
    root->table = table;
    root->table_size = size;
    return true;
}

bool plan_share_kernel(struct planner *p, uint32_t group)
{
    struct planner *root = p->root;
    struct lowered *l = &p->low[group];
    struct kernel *k = l->k;
    l->k = NULL; /* until the table has it */
    if (!grow_table(root) ||
        !mem_reserve(&root->kernel, &root->kernel_cap, root->nkernel + 1, sizeof *root->kernel)) {
        kernel_free(k);
        return plan_no_memory(p);
    }
    struct hash128 h = kernel_hash(k);
    uint32_t *at = kernel_place(root, k, h);
    if (*at) {
        kernel_free(k);
    } else {
        root->kernel[root->nkernel++] = (struct plan_kernel){.k = k, .hash = h};
        *at = root->nkernel;
    }
    p->shared[group] = *at - 1;
    l->k = root->kernel[*at - 1].k;
    return true;
}

bool plan_number_kernel(struct planner *p, uint32_t group, uint32_t *number)
{
    struct program *all = p->root->p;
    struct plan_kernel *x = &p->root->kernel[p->shared[group]];
    if (!x->number) {
        if (!mem_reserve(&all->kernel, &all->kernel_cap, all->nkernel + 1, sizeof *all->kernel))
            return plan_no_memory(p);
        lower_name(p->lowerer, x->named_by ? x->named_by - 1 : group, x->k);
        all->kernel[all->nkernel++] = x->k;
        x->number = all->nkernel;
    }
    *number = x->number - 1;
    return true;
}

struct kernel_facts *plan_kernel_facts(struct planner *p, uint32_t number)
{
    struct planner *root = p->root;
    if (!mem_reserve(&root->facts, &root->facts_cap, root->p->nkernel, sizeof *root->facts))
        return plan_no_memory(p), NULL;
    return &root->facts[number];
}

static void facts_free(struct kernel_facts *f)
{
    mem_free(f->step);
    mem_free(f->access);
    *f = (struct kernel_facts){0};
}

void plan_drop_kernels(struct planner *root, uint32_t first)
{
    for (uint32_t i = 0; i < root->nkernel; i++)
        if (root->kernel[i].number > first)
            root->kernel[i].number = root->kernel[i].own = 0;
    for (uint32_t i = first; i < root->facts_cap; i++)
        facts_free(&root->facts[i]);
    root->p->nkernel = first;
}

void plan_free_kernels(struct planner *root)
{
    for (uint32_t i = 0; i < root->nkernel; i++)
        if (!root->kernel[i].number) /* the program has the others */
            kernel_free(root->kernel[i].k);
    for (uint32_t i = 0; i < root->facts_cap; i++)
        facts_free(&root->facts[i]);
    mem_free(root->facts);
    mem_free(root->kernel);
    mem_free(root->table);
}
