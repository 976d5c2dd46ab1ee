/* Errors, memory, element types and numbers as text, for all of Kiln. */
#ifndef KILN_IR_BASE_H
#define KILN_IR_BASE_H
#include <kiln/types.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- errors: the first cause is kept ---- */
struct err {
    kl_status code;
    uint32_t call;                /* of a custom op: its number (custom_locate in custom.h) + 1; else 0 */
    uint32_t inst;                /* of a kernel: its instruction that is wrong; 0: none, or all of it */
    const char *field;            /* of a schedule: the word of its field that is wrong; NULL: none, or all of it */
    char msg[1024];
};

/* Whether a run is to end before it is complete: asked between kernels and at each iteration of a loop. */
struct cancellation {
    bool (*requested)(void *ctx, struct err *e); /* true: *e says by what */
    void *ctx;
};
static inline bool cancellation_requested(const struct cancellation *c, struct err *e) /* c may be NULL */
{
    return c && c->requested(c->ctx, e);
}

/* ---- error.c ---- */
/* Records an error unless one is there already; returns false. */
bool err_set(struct err *e, kl_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool err_set_v(struct err *e, kl_status code, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));
const char *status_name(kl_status s);

/* ---- mem.c: all of Kiln's own memory ---- */
bool mem_use(const kl_memory *m);                 /* sets the functions; false: memory is in use already */
const kl_memory *mem_used(void);                  /* for libraries with their own copy of mem.c */
/* A module's handlers for a fork of the process: `before` takes its locks, `after` releases them in both processes and,
 * in the child, resets the state of other threads. runtime/fork.c lists the modules. */
struct fork_part { void (*before)(void), (*after)(bool child); };

void *mem_alloc(size_t bytes);                    /* zeroed; NULL when out of memory */
void *mem_grow(void *p, size_t old_bytes, size_t new_bytes); /* new bytes zeroed; NULL leaves p as it was */
void mem_free(void *p);                           /* NULL is fine */
char *mem_text(const char *s);                    /* a copy; NULL: s is NULL, or out of memory */
/* Makes room for one more element of a growable array; false when out of memory. */
bool mem_enlarge(void *array_ptr, uint32_t *cap, uint32_t need, size_t elem); /* need is more than *cap */
static inline bool mem_reserve(void *array_ptr, uint32_t *cap, uint32_t need, size_t elem)
{
    return need <= *cap || mem_enlarge(array_ptr, cap, need, elem);
}

/* Memory of several arrays that are freed together, such as those of a pass.  It begins as zeroes. */
struct mem_arena {
    struct mem_arena_block *blocks;
    bool failed;              /* memory ran out: the allocations since then gave NULL */
};
void *mem_arena_alloc(struct mem_arena *a, size_t bytes); /* zeroed; NULL: a->failed */
void mem_arena_free(struct mem_arena *a);

/* ---- dtype.c ---- */
size_t dtype_size(unsigned dt);
const char *dtype_name(unsigned dt);
int dtype_parse(const char *s, size_t len);       /* -1: unknown */
char dtype_kind(unsigned dt);                     /* 'B' 'U' 'I' 'F' */
static inline bool dtype_is_float(unsigned dt) { return dtype_kind(dt) == 'F'; }
static inline bool dtype_is_half(unsigned dt) { return dt == KL_F16 || dt == KL_BF16; }
/* The dtype in which an op on dt computes and accumulates. */
static inline unsigned dtype_compute(unsigned dt) { return dtype_is_half(dt) ? (unsigned)KL_F32 : dt; }
uint64_t dtype_bits(unsigned dt, double v);       /* v converted to dt, as bits */
uint64_t dtype_bits_i64(unsigned dt, int64_t v);
double dtype_value(unsigned dt, uint64_t bits);

/* ---- number.c: printf and strtod as in the C locale, whatever locale the host has set ---- */
int format_text(char *s, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int format_text_v(char *s, size_t size, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));
int format_file(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int format_file_v(FILE *f, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
double parse_double(const char *s, char **end);
float parse_float(const char *s, char **end);

/* ---- text_file.c ---- */
/* A user's file of text, which has to be a regular one (ir/regular_file.h), with a NUL behind its bytes.  mem_free it.
 * NULL: e says why, with the path. */
char *text_file_read(const char *path, size_t *len, struct err *e);
/* All that is left of a stream, likewise; NULL: out of memory.  ferror(f) says whether it could be read to its end. */
char *text_stream_read(FILE *f, size_t *len);

#endif
