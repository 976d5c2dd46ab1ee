/* Memory allocation: all of Kiln's own memory comes from these functions. */
#include "ir/ir.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void *system_grow(void *ctx, void *p, size_t bytes)
{
    (void)ctx;
    return realloc(p, bytes);
}

static void system_release(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

/* Without an alloc function: calloc, which need not clear fresh pages. */
static kl_memory memory = {.grow = system_grow, .release = system_release};
static atomic_bool in_use;

bool mem_use(const kl_memory *m)
{
    if (atomic_load(&in_use))
        return false;
    memory = *m;
    return true;
}

const kl_memory *mem_used(void)
{
    return &memory;
}

static void note_use(void)
{
    if (!atomic_load_explicit(&in_use, memory_order_relaxed))
        atomic_store_explicit(&in_use, true, memory_order_relaxed);
}

void *mem_alloc(size_t bytes)
{
    bytes += !bytes;
    note_use();
    if (!memory.alloc)
        return calloc(1, bytes);
    void *p = memory.alloc(memory.ctx, bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

void *mem_grow(void *p, size_t old_bytes, size_t new_bytes)
{
    note_use();
    char *q = memory.grow(memory.ctx, p, new_bytes + !new_bytes);
    if (q && new_bytes > old_bytes)
        memset(q + old_bytes, 0, new_bytes - old_bytes);
    return q;
}

char *mem_text(const char *s)
{
    char *copy = s ? mem_alloc(strlen(s) + 1) : NULL;
    return copy ? strcpy(copy, s) : NULL;
}

void mem_free(void *p)
{
    if (p)
        memory.release(memory.ctx, p);
}

/* In front of each allocation, with an alignment for everything. */
struct mem_arena_block { _Alignas(16) struct mem_arena_block *next; };

void *mem_arena_alloc(struct mem_arena *a, size_t bytes)
{
    struct mem_arena_block *b = a->failed ? NULL : mem_alloc(sizeof *b + bytes);
    a->failed = !b;
    if (!b)
        return NULL;
    b->next = a->blocks;
    a->blocks = b;
    return b + 1;
}

void mem_arena_free(struct mem_arena *a)
{
    while (a->blocks) {
        struct mem_arena_block *next = a->blocks->next;
        mem_free(a->blocks);
        a->blocks = next;
    }
}

/* Doubles, so that appending n elements costs O(n).  The array's address is read and written as bytes:
 * it may be a pointer of any type. */
bool mem_enlarge(void *array_ptr, uint32_t *cap, uint32_t need, size_t elem)
{
    uint64_t grown = *cap < 16 ? 16 : (uint64_t)*cap * 2;
    if (grown < need)
        grown = need;
    if (grown > UINT32_MAX)
        grown = UINT32_MAX;
    if (grown > SIZE_MAX / elem)
        return false;
    void *p;
    memcpy(&p, array_ptr, sizeof p);
    p = mem_grow(p, *cap * elem, (size_t)grown * elem);
    if (!p)
        return false;
    memcpy(array_ptr, &p, sizeof p);
    *cap = (uint32_t)grown;
    return true;
}
