/* What graph_core.c and graph_interp.c share: counting, random numbers, a graph or the end. */
#ifndef GRAPH_TEST_H
#define GRAPH_TEST_H
#include "ir/ir.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static unsigned passed, failed;

static inline bool check_at(const char *file, int line, bool ok, const char *what)
{
    if (ok)
        passed++;
    else
        failed++, printf("%s:%d: %s\n", file, line, what);
    return ok;
}
#define CHECK(cond) check_at(__FILE__, __LINE__, cond, #cond)
#define SHAPE(...) (&(struct shape){.rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dim = {__VA_ARGS__}})
static const struct shape scalar;

static uint64_t random_state = 88172645463325252u;

static inline uint64_t rnd(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static inline unsigned below(unsigned n)
{
    return (unsigned)(rnd() % n);
}

static inline double unit(void)
{
    return (double)(rnd() >> 11) / 9007199254740992.0 * 2 - 1;
}

static inline struct graph *new_graph(void)
{
    struct graph *g = graph_new("test");
    if (!g)
        printf("out of memory\n"), exit(1);
    return g;
}

static inline void *array(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p)
        printf("out of memory\n"), exit(1);
    return p;
}
#endif
