/* Random programs of public calls.
 *
 * A program is a seed: it has leaves (inputs and states) with random dtypes, lengths and data, and a list of calls.
 * Value 0 .. LEAVES - 1 are the leaves; call i makes the values LEAVES + 2i and, where it has a second result,
 * LEAVES + 2i + 1.  What call i is and on which values depends on the seed, i and the types of the values before it
 * alone, so a call keeps its meaning when others are turned off. */
#ifndef RANDOM_API_PROGRAM_H
#define RANDOM_API_PROGRAM_H
#include "tests/support/harness.h"
#include <kiln/kiln.h>

enum {
    INPUTS = 7,
    STATES = 2, /* tensors from outside the trace, which it may assign */
    LEAVES = INPUTS + STATES,
    MAX_CALLS = 16,
    MAX_SLOTS = LEAVES + 2 * MAX_CALLS,
    LENGTHS = 3,         /* different lengths of the leaves' axes; the first two may be symbols */
    MAX_ELEMENTS = 6000, /* larger results are turned off */
    MAX_OUTPUTS = 2 * MAX_CALLS + 2 * INPUTS
};

struct type {
    bool known; /* false: no such value, or none that a call may use */
    kl_dtype dtype;
    int rank;
    int64_t dims[KL_MAX_RANK];
};

struct leaf_data {
    kl_dtype dtype;
    int rank, length[4]; /* axis k has length number length[k] */
    int64_t count;       /* elements */
    void *data;
};

/* How a program is run beside the interpreter and fused kernels. */
enum mode { THREADS = 1, UNFUSED = 2, EAGER = 4, SYMBOLS = 8, STEP = 16, VMAP = 32 };

struct random_program {
    uint64_t seed;
    unsigned modes;
    int order; /* of the gradients: 0 none, 1 or 2 */
    int64_t length[LENGTHS];
    struct leaf_data leaf[LEAVES];
    int calls;
    bool on[MAX_CALLS];
    const char *name[MAX_CALLS];
    struct type type[MAX_SLOTS]; /* for these lengths, found out on the device "meta" */
};

/* One recording of a program. */
struct recording {
    struct random_program *p;
    kl_device device;
    bool symbolic;
    int64_t symbol[LENGTHS];
    kl_tensor state[STATES];
    kl_tensor value[MAX_SLOTS];
    int slots;       /* the values so far, those that are off included */
    int outputs;     /* what was kept: */
    kl_tensor output[MAX_OUTPUTS];
    int origin[MAX_OUTPUTS]; /* its value, or MAX_SLOTS * order + input for a gradient */
    /* of the call that is being made */
    struct rng r;
    kl_tensor second; /* its second result */
    bool missing;     /* an operand is off or does not exist */
};

/* Which dtypes an operand may have. */
enum need { ANY, BOOLS, NUMBERS, INTEGERS, FLOATS, WIDE_FLOATS /* f32, f64 */, F32S };

struct call {
    const char *name;
    int weight; /* how often it is drawn, of the sum of all weights */
    enum need need;
    int rank_low, rank_high;                    /* of its first operand */
    kl_tensor (*make)(struct recording *c, int a); /* a: the value that is the first operand */
};
const struct call *call_draw(struct rng *r); /* calls.c: a row of calls.def */

/* ---- program.c ---- */
struct rng rng_for(uint64_t seed, uint64_t stream);
/* off: calls that are turned off, or NULL.  Calls that fail, in whatever mode, are turned off, too. */
struct random_program *random_program_new(uint64_t seed, const bool *off);
void random_program_free(struct random_program *p);
void program_print(struct random_program *p);
bool program_empty(const struct random_program *p); /* no call is left */
/* wild: one element in so many is any bit pattern or a special value; 0: none. */
void leaf_fill(struct rng *r, const struct leaf_data *l, int wild);
kl_tensor leaf_tensor(const struct recording *c, int i, const void *data);
void symbols_make(struct recording *c);
void states_make(struct recording *c);
void states_release(struct recording *c);
/* Makes the calls; dry: learns the types and turns failing calls off.  The number of the call that failed, or -1. */
int program_record(struct recording *c, bool dry);
int program_calls(struct recording *c, bool dry); /* the same with the leaves that are in c->value */
/* Keeps all results and the gradients of a loss that is made of the last ones. */
void program_keep(struct recording *c);

/* ---- compare.c ---- */
/* Runs the program everywhere and compares bits; false: why, of `size` bytes, says where they differ. */
bool program_agrees(struct random_program *p, char *why, size_t size);
/* Have its programs on another device the interpreter's bits, fused and unfused?  refused: it does not run them. */
bool program_agrees_on(struct random_program *p, const char *device, bool *refused, char *why, size_t size);

/* ---- vmap.c ---- */
/* The same of the program in kl_vmap and on each element; turns off what kl_vmap refuses. */
bool vmap_agrees(struct random_program *p, char *why, size_t size);

/* ---- pick.c: random choices of the call that is being made ---- */
int below(struct recording *c, int n); /* 0 .. n - 1; 0 if there is none */
bool chance(struct recording *c, int n); /* one in n */
#define ONE_OF(c, table) (table)[below(c, (int)(sizeof(table) / sizeof *(table)))]
/* A value, recent ones more often; -1: none is such. */
int pick(struct recording *c, enum need need, int rank_low, int rank_high);
/* A value's tensor; notes when it is missing. */
kl_tensor value_of(struct recording *c, int value);
/* Another operand of these dtypes. */
kl_tensor pick_other(struct recording *c, enum need need);
/* A value of a's dtype and shape, perhaps a itself. */
kl_tensor pick_like(struct recording *c, int a);
/* The number of a value of a's dtype whose shape and a's broadcast. */
int pick_broadcast(struct recording *c, int a);
int pick_axis(struct recording *c, int a);            /* a has rank 1 at least */
int pick_axes(struct recording *c, int a, int *axes); /* any number of them */
kl_dtype pick_dtype(struct recording *c);
/* A length of the leaves, perhaps symbolic. */
int64_t pick_length(struct recording *c);
/* a's shape, with symbolic lengths; its rank. */
int symbolic_shape(struct recording *c, int a, int64_t *dims);
void fill_below(struct recording *c, int64_t *list, int n, int low, int high); /* low .. high, both included */
bool is_float(kl_dtype dtype);

#endif
