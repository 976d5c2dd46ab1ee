/* What all of Kiln is built on: errors, memory, element types, numbers as text. */
#ifndef KILN_IR_BASE_H
#define KILN_IR_BASE_H
#include <kiln/types.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- errors: filled once, the first cause stays ---- */
struct err {
    kl_status code;
    uint32_t call;                /* of a custom op: which (custom_locate in custom.h), + 1; else 0 */
    char msg[1024];
};

/* ---- error.c ---- */
/* Records an error unless one is there already; returns false. */
bool err_set(struct err *e, kl_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
const char *status_name(kl_status s);

/* ---- mem.c: all of Kiln's own memory ---- */
bool mem_use(const kl_memory *m);                 /* from these functions; false: too late, there is some in use */
const kl_memory *mem_used(void);                  /* for libraries with a mem.c of their own */
/* What a module does around a fork of the process: takes its locks before, and opens them after, in both processes; in
 * the child it also resets what other threads were doing.  The parts stand in runtime/fork.c. */
struct fork_part { void (*before)(void), (*after)(bool child); };

void *mem_alloc(size_t bytes);                    /* zeroed; NULL when out of memory */
void *mem_grow(void *p, size_t old_bytes, size_t new_bytes); /* new bytes zeroed; NULL leaves p as it was */
void mem_free(void *p);                           /* NULL is fine */
/* Makes room for one more element of a growable array; false when out of memory. */
bool mem_reserve(void *array_ptr, uint32_t *cap, uint32_t need, size_t elem);

/* ---- dtype.c ---- */
size_t dtype_size(unsigned dt);
const char *dtype_name(unsigned dt);
int dtype_parse(const char *s, size_t len);       /* -1: unknown */
char dtype_kind(unsigned dt);                     /* 'B' 'U' 'I' 'F' */
static inline bool dtype_is_float(unsigned dt) { return dtype_kind(dt) == 'F'; }
static inline bool dtype_is_half(unsigned dt) { return dt == KL_F16 || dt == KL_BF16; }
/* What an op on dt computes and accumulates in. */
static inline unsigned dtype_compute(unsigned dt) { return dtype_is_half(dt) ? (unsigned)KL_F32 : dt; }
uint64_t dtype_bits(unsigned dt, double v);       /* v converted to dt, as bits */
uint64_t dtype_bits_i64(unsigned dt, int64_t v);
double dtype_value(unsigned dt, uint64_t bits);

/* ---- number.c ---- printf and strtod as in the C locale, whatever locale the host has set. */
int format_text(char *s, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int format_text_v(char *s, size_t size, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));
int format_file(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int format_file_v(FILE *f, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
double parse_double(const char *s, char **end);
float parse_float(const char *s, char **end);

#endif
