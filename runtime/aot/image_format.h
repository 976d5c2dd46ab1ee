/* The data of a program compiled ahead of time, as read by runtime/aot/run.c for objects and by codegen/c/runner.h,
 * into which this text is copied.  It uses fixed-width integers only, and no member needs an alignment above its size,
 * so the layout is the same on all targets.  Offsets are bytes from the image's start.
 *
 * A program with symbols has sizes in bytes for the primes that stand in for them, and for sums of them
 * (ir/symbols/README.md); a run computes its own sizes with image_size_at.  The values of a run follow its slots: those
 * of the symbols, then those of the sums. */
#ifndef KILN_IMAGE_FORMAT_H
#define KILN_IMAGE_FORMAT_H
#include <stdint.h>
#ifndef IMAGE_STRUCT
#define IMAGE_STRUCT struct /* with attributes, for a field of another type */
#define IMAGE_FN static inline
#endif

enum { IMAGE_MAGIC = 0x6b6c6e31, IMAGE_VERSION = 7 }; /* the version of everything in this file */

IMAGE_STRUCT image {
    uint32_t magic, version;
    uint32_t nkernel, ninput, nstate, nreturn, nslot, nout;
    uint32_t kernel;          /* struct image_kernel[nkernel] */
    uint32_t pointer;         /* int64_t[ninput + nstate + nreturn]: size in bytes of each array of the args */
    uint32_t slot;            /* struct image_slot[nslot] */
    uint32_t out;             /* struct image_out[nout] */
    uint32_t program;
    uint32_t max_args;        /* maximum number of arguments of a kernel */
    /* uint32_t[nstate], or 0: offset of the state's value, used where its pointer is NULL; 0: it has none */
    uint32_t weight;
    uint32_t nsymbol, symbol; /* struct image_symbol[nsymbol + nsum] */
    uint32_t nsum;            /* lengths that are sums of symbols */
    uint64_t features;        /* of the processor: bit i is number i of IMAGE_FEATURES */
    int64_t arena_bytes, scratch_bytes; /* scratch: of each thread */
    int64_t later_bytes;      /* bytes of new values of states that must not be overwritten before the end */
};
/* active: struct image_step[steps], the number of iterations that do anything, at most extent; steps 0: all do */
IMAGE_STRUCT image_kernel { int64_t extent, grain; uint32_t active, steps; };
/* at: offset in the args; bytes 0: the value is `fixed`, or, where there are steps, the length that struct
 * image_step[steps] at `length` computes from the symbols, as a float of so many bits */
IMAGE_STRUCT image_slot { uint32_t at, bytes; uint64_t fixed; uint32_t length, steps, mantissa, exponent; };
/* at: offset of its value in the args, an int64_t; prime 0: it is in no size.  Of a sum, that of struct
 * image_step[steps], for which slots are numbers of symbols. */
IMAGE_STRUCT image_symbol { int64_t prime, low, high; uint32_t at, steps; };
/* A computation in postfix order.  number: the constant, or the number of the slot. */
enum image_op {
    IMAGE_NUMBER, IMAGE_SLOT, IMAGE_ADD, IMAGE_SUB, IMAGE_MUL, IMAGE_DIV, IMAGE_LT, IMAGE_LE, IMAGE_SELECT
};
enum { IMAGE_STACK = 16 };    /* numbers that a computation may have at a time */
IMAGE_STRUCT image_step { uint32_t op, pad; int64_t number; };
/* The destination of an output: pointer `pointer` of the args; if later >= 0 it is first written to that offset. */
IMAGE_STRUCT image_out { uint32_t pointer, pad; int64_t later, bytes; };

/* The base of an address, as in struct loc. */
enum image_place { IMAGE_ARENA, IMAGE_INPUT, IMAGE_STATE, IMAGE_OUT, IMAGE_SCRATCH };
IMAGE_STRUCT image_loc { uint32_t kind, index; int64_t offset; };

IMAGE_STRUCT image_program { uint32_t ncmd, cmd; }; /* struct image_command[ncmd] */
enum image_command_kind { IMAGE_KERNEL, IMAGE_COPY, IMAGE_REGION };
IMAGE_STRUCT image_command {
    uint32_t kind;            /* enum image_command_kind */
    uint32_t kernel, region;  /* the kernel's number; struct image_region */
    uint32_t narg, arg;       /* struct image_loc[narg], as in struct command */
    uint32_t no_barrier;      /* CMD_KERNEL: no barrier between it and the kernel before it */
    int64_t bytes;            /* of a copy */
};
enum image_region_kind { IMAGE_COND, IMAGE_WHILE, IMAGE_SCAN };
IMAGE_STRUCT image_region {
    uint32_t kind, nin, nout, carried, scanned, reverse;
    int64_t length;
    uint32_t bytes;           /* int64_t[nin + nout]: of the operands and results */
    uint32_t program[2];      /* struct image_program; 0: none */
    uint32_t pad;
    int64_t work, pointers, arena; /* as in struct workspace */
};

/* ---- what a run computes from the symbols' values ---- */

IMAGE_FN const struct image_symbol *image_symbols(const struct image *m)
{
    return (const struct image_symbol *)(const void *)((const char *)m + m->symbol);
}

/* A size for these values, that is with each prime in it replaced by the value of its symbol or sum. */
IMAGE_FN int64_t image_size_at(const struct image *m, int64_t size, const uint64_t *value)
{
    const struct image_symbol *s = image_symbols(m);
    int64_t product = 1;
    for (uint32_t i = 0; i < m->nsymbol + m->nsum; i++)
        for (; s[i].prime && size && size % s[i].prime == 0; size /= s[i].prime)
            product *= (int64_t)value[i];
    return size * product;
}

IMAGE_FN int64_t image_compute(const struct image_step *s, uint32_t n, const uint64_t *slot)
{
    int64_t v[IMAGE_STACK + 1];
    uint32_t top = 0; /* v[top - 1] is the last number */
    v[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (s[i].op <= IMAGE_SLOT) {
            v[top++] = s[i].op == IMAGE_SLOT ? (int64_t)slot[s[i].number] : s[i].number;
            continue;
        }
        top -= s[i].op == IMAGE_SELECT ? 2 : 1;
        int64_t *a = &v[top - 1], b = v[top];
        switch (s[i].op) {
        case IMAGE_ADD: *a += b; break;
        case IMAGE_SUB: *a -= b; break;
        case IMAGE_MUL: *a *= b; break;
        case IMAGE_DIV: *a = b ? *a / b : 0; break;
        case IMAGE_LT:  *a = *a < b; break;
        case IMAGE_LE:  *a = *a <= b; break;
        default:        *a = *a ? b : v[top + 1]; break;
        }
    }
    return v[0];
}

/* Puts the values of sums behind those of the symbols. */
IMAGE_FN void image_compute_sums(const struct image *m, uint64_t *value)
{
    const struct image_symbol *s = image_symbols(m);
    for (uint32_t i = m->nsymbol; i < m->nsymbol + m->nsum; i++) {
        const void *steps = (const char *)m + s[i].at;
        value[i] = (uint64_t)image_compute((const struct image_step *)steps, s[i].steps, value);
    }
}

/* Iterations of a kernel that do anything; steps: at k->active. */
IMAGE_FN int64_t image_extent_at(const struct image_kernel *k, const struct image_step *steps, const uint64_t *slot)
{
    int64_t n = k->steps ? image_compute(steps, k->steps, slot) : k->extent;
    return n < 0 ? 0 : n < k->extent ? n : k->extent;
}

/* The bits of a number that is not below 0 as an IEEE float, rounded to nearest, ties to even. */
IMAGE_FN uint64_t image_float(uint64_t v, uint32_t mantissa, uint32_t exponent)
{
    uint64_t bias = (UINT64_C(1) << (exponent - 1)) - 1, max = 2 * bias + 1;
    uint32_t top = 0;
    if (!v)
        return 0;
    while (v >> top > 1)
        top++;
    uint64_t bits = top <= mantissa ? v << (mantissa - top) : v >> (top - mantissa);
    if (top > mantissa) {
        uint64_t rest = v & ((UINT64_C(1) << (top - mantissa)) - 1), half = UINT64_C(1) << (top - mantissa - 1);
        bits += rest > half || (rest == half && (bits & 1));
    }
    bits += (top + bias - 1) << mantissa; /* the highest bit of the significand adds 1 to the exponent */
    return bits >> mantissa >= max ? max << mantissa : bits;
}

#endif
