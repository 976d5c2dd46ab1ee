/* A program of a seed: its leaves, its calls and their types, and recording it. */
#define _GNU_SOURCE /* memfd_create */
#include "tests/random_api/program.h"
#include <sys/mman.h>
#include <unistd.h>

/* Neighbouring seeds give unrelated sequences: the output function of SplitMix64 (Steele, Lea and Flood, "Fast
 * splittable pseudorandom number generators", 2014). */
struct rng rng_for(uint64_t seed, uint64_t stream)
{
    uint64_t z = (seed * 1000003 + stream + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (struct rng){(z ^ z >> 31) | 1};
}

/* ---- leaves ---- */

void leaf_fill(struct rng *r, const struct leaf_data *l, int wild)
{
    bool equal = is_float(l->dtype) && rng_below(r, 3) == 0; /* few different numbers, so that some are equal */
    size_t size = dtype_size(l->dtype);
    for (int64_t i = 0; i < l->count; i++) {
        char *at = (char *)l->data + (size_t)i * size;
        bool special = wild && rng_below(r, wild) == 0;
        uint64_t few = dtype_bits(l->dtype, (double)(rng_below(r, 5) - 2));
        if (equal && !special)
            memcpy(at, &few, size); /* little-endian */
        else
            fill_random(r, l->dtype, at, 1, special);
    }
}

static kl_dtype leaf_dtype(struct rng *r, int i, kl_dtype main_dtype)
{
    if (i < 3 || i >= INPUTS)
        return main_dtype;
    if (i == 3)
        return rng_below(r, 2) ? KL_I32 : KL_I64;
    return i == 4 ? KL_BOOL : (kl_dtype)rng_below(r, KL_DTYPE_COUNT);
}

/* The first `rank` of the axes that the leaf's elements stay few with. */
static void set_shape(struct random_program *p, struct leaf_data *l, int rank, const int *length)
{
    enum { MAX_COUNT = 3000 };
    l->count = 1;
    for (l->rank = 0; l->rank < rank; l->rank++) {
        int64_t n = l->count * p->length[length[l->rank]];
        if (n > MAX_COUNT)
            return;
        l->length[l->rank] = length[l->rank];
        l->count = n;
    }
}

static void make_leaves(struct random_program *p, struct rng *r)
{
    static const int lengths[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33}, ranks[] = {0, 1, 2, 2, 3, 3, 4},
                     wildness[] = {0, 0, 5, 20};
    static const kl_dtype main_dtypes[] = {KL_F32, KL_F32, KL_F32, KL_F64, KL_F16, KL_BF16};
    int sizes = rng_below(r, 4) ? 7 : 11, wild = wildness[rng_below(r, 4)];
    for (int i = 0; i < LENGTHS; i++)
        p->length[i] = rng_below(r, 5) ? lengths[rng_below(r, sizes)] : 0;
    kl_dtype main_dtype = main_dtypes[rng_below(r, 6)];
    for (int i = 0; i < LEAVES; i++) {
        struct leaf_data *l = &p->leaf[i];
        int length[4];
        for (int k = 0; k < 4; k++)
            length[k] = (int)rng_below(r, LENGTHS);
        int rank = i == 3 ? 1 + (int)rng_below(r, 2) : ranks[rng_below(r, 7)];
        bool like_first = (i == 1 || i == 2 || i >= INPUTS) && rng_below(r, 2);
        l->dtype = leaf_dtype(r, i, main_dtype);
        set_shape(p, l, like_first ? p->leaf[0].rank : rank, like_first ? p->leaf[0].length : length);
        l->data = calloc((size_t)l->count + 1, dtype_size(l->dtype));
        if (!l->data)
            abort(); /* no memory for the data */
        leaf_fill(r, l, wild);
    }
}

kl_tensor leaf_tensor(const struct recording *c, int i, const void *data)
{
    const struct leaf_data *l = &c->p->leaf[i];
    int64_t dims[4], symbols[4];
    for (int k = 0; k < l->rank; k++) {
        dims[k] = c->p->length[l->length[k]];
        symbols[k] = c->symbolic ? c->symbol[l->length[k]] : dims[k];
    }
    if (c->symbolic && i < INPUTS)
        return kl_input_symbolic(c->device, l->dtype, l->rank, symbols, dims, data);
    return kl_input(c->device, l->dtype, l->rank, dims, data);
}

void states_make(struct recording *c)
{
    for (int i = 0; i < STATES; i++)
        c->state[i] = leaf_tensor(c, INPUTS + i, c->p->leaf[INPUTS + i].data);
}

void states_release(struct recording *c)
{
    for (int i = 0; i < STATES; i++)
        kl_release(c->state[i]);
}

/* ---- recording ---- */

static bool learn_type(struct recording *c, int value)
{
    struct type *t = &c->p->type[value];
    kl_tensor v = c->value[value];
    t->known = v.id && kl_check(v) == KL_OK && !*kl_layer_name(v) && kl_numel(v) <= MAX_ELEMENTS;
    if (t->known) {
        t->dtype = kl_dtype_of(v);
        t->rank = kl_shape(v, t->dims);
    }
    return t->known;
}

static bool make_call(struct recording *c, int i)
{
    c->r = rng_for(c->p->seed, 1 + (uint64_t)i);
    c->second = kl_none;
    c->missing = false;
    const struct call *call = call_draw(&c->r);
    c->p->name[i] = call->name;
    int a = pick(c, call->need, call->rank_low, call->rank_high);
    kl_tensor first = value_of(c, a);
    if (!c->missing)
        first = call->make(c, a);
    if (c->missing || !first.id || kl_check(first) != KL_OK)
        return false;
    c->value[c->slots] = first;
    c->value[c->slots + 1] = c->second;
    return true;
}

int program_record(struct recording *c, bool dry)
{
    for (int i = 0; i < LEAVES; i++) {
        const struct leaf_data *l = &c->p->leaf[i];
        c->value[i] = i < INPUTS ? leaf_tensor(c, i, l->data) : c->state[i - INPUTS];
        if (i < INPUTS && is_float(l->dtype))
            kl_requires_grad(c->value[i]);
        if (dry)
            learn_type(c, i);
    }
    return program_calls(c, dry);
}

int program_calls(struct recording *c, bool dry)
{
    struct random_program *p = c->p;
    c->slots = LEAVES;
    for (int i = 0; i < p->calls; i++, c->slots += 2) {
        c->value[c->slots] = c->value[c->slots + 1] = kl_none;
        if (!p->on[i])
            continue;
        bool ok = make_call(c, i);
        if (!dry && !ok)
            return i;
        if (dry && (p->on[i] = ok && learn_type(c, c->slots)))
            learn_type(c, c->slots + 1);
    }
    return -1;
}

static void keep(struct recording *c, kl_tensor t, int origin)
{
    c->origin[c->outputs] = origin;
    c->output[c->outputs++] = kl_keep(t);
}

static bool has_value(const struct recording *c, int value) { return c->p->type[value].known && c->value[value].id; }

void program_keep(struct recording *c)
{
    enum { TERMS = 3 }; /* of the loss */
    kl_tensor loss = kl_none;
    c->outputs = 0;
    for (int v = LEAVES; v < c->slots; v++)
        if (has_value(c, v))
            keep(c, c->value[v], v);
    for (int v = c->slots - 1, terms = 0; v >= LEAVES && terms < TERMS; v--) {
        if (!has_value(c, v) || !is_float(c->p->type[v].dtype))
            continue;
        kl_tensor weighted = kl_mul(kl_cast(c->value[v], KL_F32), kl_const(c->device, KL_F32, 0.5 + terms));
        loss = terms++ ? kl_add(loss, kl_sum_all(weighted)) : kl_sum_all(weighted);
    }
    for (int order = 1; order <= c->p->order && loss.id; order++) {
        kl_tensor next = kl_none; /* the loss of the second order: the sum of squares of the gradients */
        kl_tensor of[INPUTS], gradient[INPUTS];
        int n = 0, k = 0;
        for (int i = 0; i < INPUTS; i++)
            if (is_float(c->p->leaf[i].dtype))
                of[n++] = c->value[i];
        kl_grads(loss, n, of, gradient);
        for (int i = 0; i < INPUTS; i++) {
            if (!is_float(c->p->leaf[i].dtype))
                continue;
            kl_tensor g = gradient[k++];
            keep(c, g, order * MAX_SLOTS + i);
            if (order < c->p->order) {
                kl_tensor square = kl_sum_all(kl_square(kl_cast(g, KL_F32)));
                next = next.id ? kl_add(next, square) : square;
            }
        }
        loss = next;
    }
}

/* ---- making a program whose calls all succeed ---- */

/* Records in a trace that does not run, as often as calls fail, and turns these off. */
static void turn_failing_off(struct random_program *p, bool symbolic)
{
    struct recording c = {.p = p, .device = kl_device_named("cpu"), .symbolic = symbolic};
    for (bool again = true; again;) {
        symbols_make(&c);
        states_make(&c);
        kl_clear_error();
        kl_trace_begin("probe");
        int bad = program_record(&c, false);
        if (bad >= 0)
            p->on[bad] = false;
        else
            program_keep(&c);
        again = bad >= 0;
        if (bad < 0 && kl_last_error_code() != KL_OK && p->order > 0) {
            p->order--; /* such a gradient is not defined */
            again = true;
        }
        kl_trace_abandon();
        states_release(&c);
    }
}

void symbols_make(struct recording *c)
{
    static const char *const names[LENGTHS] = {"n0", "n1", NULL};
    enum { MAX_COUNT = 40 };
    for (int i = 0; i < LENGTHS; i++) {
        int64_t n = c->p->length[i];
        c->symbol[i] = c->symbolic && names[i] ? kl_symbol(names[i], n ? 1 : 0, MAX_COUNT) : n;
    }
}

struct random_program *random_program_new(uint64_t seed, const bool *off)
{
    struct random_program *p = calloc(1, sizeof *p);
    if (!p)
        abort(); /* no memory */
    struct rng r = rng_for(seed, 0);
    p->seed = seed;
    p->order = rng_below(&r, 5) ? 1 : 2;
    p->modes = (rng_below(&r, 3) ? 0 : THREADS) | (rng_below(&r, 4) ? 0 : UNFUSED) | (rng_below(&r, 4) ? 0 : EAGER) |
               (rng_below(&r, 2) ? 0 : SYMBOLS) | (rng_below(&r, 3) ? 0 : STEP) |
               (rng_below(&r, 4) ? 0 : VMAP);
    p->calls = 3 + (int)rng_below(&r, MAX_CALLS - 2);
    for (int i = 0; i < p->calls; i++)
        p->on[i] = true;
    make_leaves(p, &r);

    struct recording c = {.p = p, .device = kl_device_named("meta")};
    kl_scope_begin();
    states_make(&c);
    program_record(&c, true);
    kl_scope_end();
    for (int i = 0; off && i < p->calls; i++)
        p->on[i] = p->on[i] && !off[i];
    if (p->modes & SYMBOLS)
        turn_failing_off(p, true);
    turn_failing_off(p, false);
    return p;
}

void random_program_free(struct random_program *p)
{
    for (int i = 0; i < LEAVES; i++)
        free(p->leaf[i].data);
    free(p);
}

bool program_empty(const struct random_program *p)
{
    for (int i = 0; i < p->calls; i++)
        if (p->on[i])
            return false;
    return true;
}

static void print_type(const struct type *t)
{
    printf("%s[", dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++)
        printf("%s%lld", i ? " " : "", (long long)t->dims[i]);
    printf("]");
}

static void print_graph(void) /* of the open trace */
{
    char path[40], text[4096];
    int file = memfd_create("graph", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (file >= 0 && kl_dump(NULL, "captured", path) == KL_OK) {
        lseek(file, 0, SEEK_SET);
        for (ssize_t n; (n = read(file, text, sizeof text)) > 0;)
            fwrite(text, 1, (size_t)n, stdout);
    }
    close(file);
}

void program_print(struct random_program *p)
{
    printf("leaves:");
    for (int i = 0; i < LEAVES; i++) {
        printf(" ");
        print_type(&p->type[i]);
    }
    printf("; gradients of order %d\ncalls:\n", p->order);
    for (int i = 0; i < p->calls; i++) {
        if (!p->on[i])
            continue;
        printf("  %2d: %s -> ", i, p->name[i]);
        print_type(&p->type[LEAVES + 2 * i]);
        printf("\n");
    }
    struct recording c = {.p = p, .device = kl_device_named("cpu")};
    states_make(&c);
    kl_trace_begin("print");
    program_record(&c, false);
    program_keep(&c);
    print_graph();
    kl_trace_abandon();
    states_release(&c);
}
