/* All of Kiln's own memory goes through these few functions. */
#include "ir/ir.h"
#include <stdlib.h>
#include <string.h>

void *mem_alloc(size_t bytes)
{
    return calloc(1, bytes ? bytes : 1);
}

void *mem_grow(void *p, size_t old_bytes, size_t new_bytes)
{
    char *q = realloc(p, new_bytes ? new_bytes : 1);
    if (q && new_bytes > old_bytes)
        memset(q + old_bytes, 0, new_bytes - old_bytes);
    return q;
}

void mem_free(void *p)
{
    free(p);
}

/* Doubles, so that appending n elements costs O(n).  The array's address is read and written as bytes:
 * it may be a pointer of any type. */
bool mem_reserve(void *array_ptr, uint32_t *cap, uint32_t need, size_t elem)
{
    if (need <= *cap)
        return true;
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
