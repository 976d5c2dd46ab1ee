/* Vulkan: lists of launches that are submitted again.  A list is kept as it was submitted: commands in front of the
 * first launch, which copy what the host uploads, then the launches with their tables of addresses.  Where the same
 * copies are collected again, the launches are added as they were, with their barriers, and need not be made again. */
#include "vulkan.h"
#include <string.h>

static void list_free(struct vulkan_list *l)
{
    mem_free(l->op);
    mem_free(l->data);
    *l = (struct vulkan_list){0};
}

void vulkan_lists_free(struct driver_device *d)
{
    for (unsigned i = 0; i < LISTS; i++)
        list_free(&d->lists[i]);
}

/* The number of commands in front of the first launch, if no copy comes behind it; else all. */
static uint32_t copies_first(const struct driver_device *d)
{
    uint32_t first = 0, i;
    while (first < d->nop && !d->op[first].pipeline)
        first++;
    for (i = first; i < d->nop && d->op[i].pipeline; i++) {}
    return i == d->nop ? first : d->nop;
}

/* Are the collected commands, or the first ones of them, those of the list? */
static bool begins_as(const struct driver_device *d, const struct vulkan_list *l, uint32_t n)
{
    return d->nop == n && !memcmp(d->op, l->op, n * sizeof *d->op);
}

/* The kept list of the collected commands; NULL: there is none. */
static struct vulkan_list *list_same(struct driver_device *d)
{
    for (struct vulkan_list *l = d->lists; l < d->lists + LISTS; l++)
        if (l->number && d->nop == l->n && d->used == l->begin + l->bytes && begins_as(d, l, l->n) &&
            !memcmp(d->data + l->begin, l->data, l->bytes))
            return l;
    return NULL;
}

void vulkan_list_keep(struct driver_device *d)
{
    uint32_t first = copies_first(d);
    struct vulkan_list *l = d->repeated ? NULL : list_same(d), *oldest = d->lists;
    d->issued++;
    d->list = d->repeated ? d->repeated : l ? l->number : 0;
    if (d->list || first == d->nop)
        return;
    for (l = d->lists; l < d->lists + LISTS; l++)
        oldest = l->number < oldest->number ? l : oldest;
    l = oldest;
    l->number = 0;
    l->begin = (uint32_t)d->op[first].a; /* the first launch's table follows what is uploaded */
    l->bytes = d->used - l->begin;
    if (!mem_reserve(&l->op, &l->op_cap, d->nop, sizeof *l->op) || !mem_reserve(&l->data, &l->data_cap, l->bytes, 1))
        return; /* without memory for it the launches are made again */
    memcpy(l->op, d->op, d->nop * sizeof *l->op);
    memcpy(l->data, d->data + l->begin, l->bytes);
    l->n = d->nop;
    l->first = first;
    d->list = l->number = ++d->list_number;
}

uint64_t vulkan_list_issued(struct driver_device *d)
{
    uint64_t list = d->nop || d->issued != 1 ? 0 : d->list;
    d->issued = 0;
    return list;
}

/* The barriers of the launches are those behind these copies; the memory that the launches access is in the tables. */
bool vulkan_repeat(struct driver_device *d, uint64_t list, const struct memory_range *v, uint32_t n, bool *done,
                   struct err *e)
{
    struct vulkan_list *l = d->lists;
    uint64_t at;
    (void)v, (void)n;
    *done = false;
    if (d->lost)
        return vulkan_failed(d, "vkQueueSubmit", VK_ERROR_DEVICE_LOST, e);
    while (l < d->lists + LISTS && (!list || l->number != list))
        l++;
    if (l == d->lists + LISTS || d->used != l->begin || !begins_as(d, l, l->first))
        return true;
    char *data = vulkan_data(d, l->bytes, &at, e);
    if (!data || !mem_reserve(&d->op, &d->op_cap, l->n, sizeof *d->op))
        return !data ? false : err_set(e, KL_ERR_MEMORY, "device %s: no memory for the list of its commands", d->name);
    memcpy(data, l->data, l->bytes);
    memcpy(d->op + d->nop, l->op + l->first, (l->n - l->first) * sizeof *d->op);
    d->nop = l->n;
    d->touched[0] = (struct touched){0, UINT64_MAX, true};
    d->ntouched = 1;
    d->repeated = list;
    return *done = true;
}

void vulkan_lists_forget(struct driver_device *d)
{
    for (unsigned i = 0; i < LISTS; i++)
        d->lists[i].number = 0;
}
