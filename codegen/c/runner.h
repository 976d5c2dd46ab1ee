/* Runs a program in C: its image (runtime/aot/image_format.h, whose text stands in front) and its kernels.  A text in
 * the library, behind that of prelude.h.  One thread, or those of OpenMP where the compiler is told to use it. */
#include <stdlib.h>
#include <string.h>
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the program's data are little-endian"
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

typedef void kiln_kernel(void *const *buf, const u64 *slot, i64 begin, i64 end);

enum { KILN_OK = 0, KILN_BAD_ARGUMENT = 1, KILN_NO_MEMORY = 2, KILN_BAD_LENGTH = 3 };
struct kiln_run {
    const char *image;
    kiln_kernel *const *kernel;
    const u64 *slot;
    char *scratch; /* worker 0's; the others' follow, worker_bytes apart: scratch, then a kernel's arguments */
    size_t scratch_bytes, worker_bytes;
    int workers;
};

/* The program, or a region of it that runs now, with its data. */
struct kiln_frame {
    const struct kiln_run *run;
    const void *const *input, *const *state;
    void *const *out;
    char *arena;
};

KILN_FN size_t kiln_round(size_t n) { return (n + 63) / 64 * 64; }
KILN_FN const struct image *kiln_head(const struct kiln_run *r) { return (const struct image *)(const void *)r->image; }
KILN_FN const void *kiln_at(const struct kiln_run *r, u32 offset) { return r->image + offset; }

/* A size of the program for the symbols' values of this run. */
KILN_FN i64 kiln_size(const struct kiln_run *r, i64 size)
{
    const struct image *m = kiln_head(r);
    return image_size_at(m, size, r->slot + m->nslot);
}

KILN_FN void *kiln_place(const struct kiln_frame *f, const struct image_loc *l, int worker)
{
    const void *base = l->kind == IMAGE_ARENA ? f->arena : l->kind == IMAGE_INPUT ? f->input[l->index]
                       : l->kind == IMAGE_STATE ? f->state[l->index] : l->kind == IMAGE_OUT ? f->out[l->index]
                       : f->run->scratch + (size_t)worker * f->run->worker_bytes;
    return base ? (char *)(uintptr_t)base + l->offset : NULL;
}

KILN_FN void kiln_part(const struct kiln_frame *f, const struct image_command *c, i64 extent, int part, int parts)
{
    const struct kiln_run *r = f->run;
    const struct image_loc *l = (const struct image_loc *)kiln_at(r, c->arg);
    void **arg = (void **)(void *)(r->scratch + (size_t)part * r->worker_bytes + r->scratch_bytes);
    i64 begin = extent / parts * part, end = part + 1 < parts ? extent / parts * (part + 1) : extent;
    for (u32 i = 0; i < c->narg; i++) arg[i] = kiln_place(f, &l[i], part);
    r->kernel[c->kernel](arg, r->slot, begin, end);
}

KILN_FN void kiln_run_kernel(const struct kiln_frame *f, const struct image_command *c)
{
    const struct image_kernel *k =
        (const struct image_kernel *)kiln_at(f->run, kiln_head(f->run)->kernel) + c->kernel;
    i64 extent = image_extent_at(k, (const struct image_step *)kiln_at(f->run, k->active), f->run->slot);
    int parts = k->grain && extent / f->run->workers ? f->run->workers : 1;
#if defined(_OPENMP)
#pragma omp parallel for num_threads(parts) if (parts > 1) schedule(static, 1)
#endif
    for (int part = 0; part < parts; part++) kiln_part(f, c, extent, part, parts);
}

static void kiln_run_commands(const struct kiln_frame *f, u32 program);

/* ---- regions: a branch, or a loop whose rounds hand values on ---- */
struct kiln_loop {
    const struct kiln_frame *f;
    const struct image_region *n;
    const m_i64 *bytes; /* of operands, then results */
    const void **in;    /* this round's parameters */
    void **out, **result;
    char *more, *second, *arena;
};

KILN_FN size_t kiln_loop_bytes(const struct kiln_loop *l, u32 i) { return (size_t)kiln_size(l->f->run, l->bytes[i]); }

KILN_FN void kiln_round_of(const struct kiln_loop *l, u32 which, const void *const *in, void *const *out)
{
    struct kiln_frame sub = {l->f->run, in, NULL, out, l->arena};
    kiln_run_commands(&sub, l->n->program[which]);
}

/* Where this round's carried values go: never where it reads them. */
KILN_FN void kiln_aim(const struct kiln_loop *l, int second)
{
    char *at = l->second;
    for (u32 i = 0; i < l->n->carried; i++) {
        l->out[i] = second ? (void *)at : l->result[i];
        at += kiln_round(kiln_loop_bytes(l, l->n->nin + i));
    }
}

KILN_FN void kiln_carry(const struct kiln_loop *l)
{
    for (u32 i = 0; i < l->n->carried; i++) l->in[i] = l->out[i];
}

KILN_FN void kiln_while(const struct kiln_loop *l)
{
    void *more[1];
    more[0] = l->more;
    for (int second = 0;; second = !second) {
        kiln_round_of(l, 0, l->in, more);
        if (!*l->more) return;
        kiln_aim(l, second);
        kiln_round_of(l, 1, l->in, l->out);
        kiln_carry(l);
    }
}

KILN_FN void kiln_scan(const struct kiln_loop *l, void *const *operand)
{
    const struct image_region *n = l->n;
    i64 rounds = kiln_size(l->f->run, n->length);
    for (i64 k = 0; k < rounds; k++) {
        size_t at = (size_t)(n->reverse ? rounds - 1 - k : k), length = (size_t)rounds;
        for (u32 i = n->carried; i < n->carried + n->scanned; i++)
            l->in[i] = (const char *)operand[i] + at * (kiln_loop_bytes(l, i) / length);
        for (u32 i = n->carried; i < n->nout; i++)
            l->out[i] = (char *)l->result[i] + at * (kiln_loop_bytes(l, n->nin + i) / length);
        kiln_aim(l, (rounds - 1 - k) & 1);
        kiln_round_of(l, 0, l->in, l->out);
        kiln_carry(l);
    }
}

KILN_FN void kiln_run_region(const struct kiln_frame *f, const struct image_command *c)
{
    const struct image_region *n = (const struct image_region *)kiln_at(f->run, c->region);
    const struct image_loc *at = (const struct image_loc *)kiln_at(f->run, c->arg);
    char *work = (char *)kiln_place(f, &at[c->narg - 1], 0);
    void **operand = (void **)(void *)(work + n->pointers);
    struct kiln_loop l = {f, n, (const m_i64 *)kiln_at(f->run, n->bytes), NULL, NULL, operand + n->nin, NULL, NULL,
                          work + n->arena};
    for (u32 i = 0; i + 1 < c->narg; i++) operand[i] = kiln_place(f, &at[i], 0);
    if (n->kind == IMAGE_COND) {
        kiln_round_of(&l, *(const char *)operand[0] ? 0 : 1, (const void *const *)operand + 1, l.result);
        return;
    }
    l.in = (const void **)(void *)(work + n->work);
    l.out = (void **)(void *)(l.in + n->nin);
    l.more = (char *)l.in + kiln_round((n->nin + n->nout) * sizeof(void *));
    l.second = l.more + 64;
    for (u32 i = 0; i < n->nin; i++) l.in[i] = operand[i];
    for (u32 i = 0; i < n->nout; i++) l.out[i] = l.result[i];
    if (n->kind == IMAGE_WHILE) kiln_while(&l);
    else kiln_scan(&l, operand);
    for (u32 i = 0; i < n->carried; i++)
        if (l.in[i] != l.result[i] && l.bytes[n->nin + i])
            memcpy(l.result[i], l.in[i], kiln_loop_bytes(&l, n->nin + i));
}

static void kiln_run_commands(const struct kiln_frame *f, u32 program)
{
    const struct image_program *p = (const struct image_program *)kiln_at(f->run, program);
    const struct image_command *c = (const struct image_command *)kiln_at(f->run, p->cmd);
    for (u32 i = 0; i < p->ncmd; i++, c++) {
        const struct image_loc *l = (const struct image_loc *)kiln_at(f->run, c->arg);
        if (c->kind == IMAGE_KERNEL) {
            kiln_run_kernel(f, c);
        } else if (c->kind == IMAGE_COPY) {
            void *to = kiln_place(f, &l[0], 0), *from = kiln_place(f, &l[1], 0);
            i64 bytes = kiln_size(f->run, c->bytes);
            if (to != from && bytes) memcpy(to, from, (size_t)bytes);
        } else {
            kiln_run_region(f, c);
        }
    }
}

/* ---- one run ---- */

/* The workspace: what one run has, then what each worker has. */
struct kiln_parts { size_t later, table, scratch, worker, each; };

KILN_FN struct kiln_parts kiln_workspace(const struct image *m)
{
    struct kiln_parts p;
    p.later = kiln_round((size_t)m->arena_bytes);
    p.table = p.later + kiln_round((size_t)m->later_bytes);
    p.worker = p.table + kiln_round(m->nout * sizeof(void *));
    p.scratch = kiln_round((size_t)m->scratch_bytes);
    p.each = p.scratch + kiln_round(m->max_args * sizeof(void *));
    return p;
}

KILN_FN int kiln_workers(void)
{
#if defined(_OPENMP)
    return omp_get_max_threads();
#else
    return 1;
#endif
}

KILN_FN size_t kiln_workspace_bytes(const void *image)
{
    struct kiln_parts p = kiln_workspace((const struct image *)image);
    return p.worker + (size_t)kiln_workers() * p.each + 63;
}

/* Are the symbols' values behind the slots within their bounds?  Sums, and slots that are lengths, get their values. */
KILN_FN bool kiln_symbols_fit(const struct kiln_run *r, u64 *slot)
{
    const struct image *m = kiln_head(r);
    const struct image_symbol *s = image_symbols(m);
    const struct image_slot *l = (const struct image_slot *)kiln_at(r, m->slot);
    for (u32 i = 0; i < m->nsymbol; i++)
        if ((i64)slot[m->nslot + i] < s[i].low || (i64)slot[m->nslot + i] > s[i].high) return false;
    image_compute_sums(m, slot + m->nslot);
    for (u32 i = 0; i < m->nslot; i++)
        if (l[i].steps)
            slot[i] = image_float((u64)image_compute((const struct image_step *)kiln_at(r, l[i].length), l[i].steps,
                                                     slot), l[i].mantissa, l[i].exponent);
    return true;
}

/* pointer: inputs, states, returned values; those of states that are NULL get what the image has.  slot: the slots,
 * then the symbols' values, then room for those of sums. */
KILN_FN int kiln_run(const void *image, kiln_kernel *const *kernel, const void **pointer, u64 *slot, void *given,
                     size_t size)
{
    const struct image *m = (const struct image *)image;
    struct kiln_run r = {(const char *)image, kernel, slot, NULL, 0, 0, kiln_workers()};
    struct kiln_parts p = kiln_workspace(m);
    const struct image_out *o = (const struct image_out *)kiln_at(&r, m->out);
    const m_i64 *bytes = (const m_i64 *)kiln_at(&r, m->pointer);
    const m_u32 *weight = m->weight ? (const m_u32 *)kiln_at(&r, m->weight) : NULL;
    if (!kiln_symbols_fit(&r, slot)) return KILN_BAD_LENGTH;
    for (u32 i = 0; i < m->ninput + m->nstate + m->nreturn; i++) {
        u32 inside = weight && i >= m->ninput && i - m->ninput < m->nstate ? weight[i - m->ninput] : 0;
        if (!pointer[i] && inside) pointer[i] = kiln_at(&r, inside);
        if (!pointer[i] && kiln_size(&r, bytes[i])) return KILN_BAD_ARGUMENT;
    }
    void *own = given ? NULL : malloc(kiln_workspace_bytes(image));
    if (!given && !own) return KILN_NO_MEMORY;
    char *work = (char *)(given ? given : own);
    size_t skip = (64 - (uintptr_t)work % 64) % 64, min = skip + p.worker + p.each;
    if (given && size < min) return KILN_BAD_ARGUMENT;
    work += skip;
    if (given && (size - skip - p.worker) / p.each < (size_t)r.workers)
        r.workers = (int)((size - skip - p.worker) / p.each);
    r.scratch = work + p.worker;
    r.scratch_bytes = p.scratch;
    r.worker_bytes = p.each;
    void **out = (void **)(void *)(work + p.table);
    for (u32 i = 0; i < m->nout; i++)
        out[i] = o[i].later >= 0 ? work + p.later + o[i].later : (void *)(uintptr_t)pointer[o[i].pointer];
    struct kiln_frame f = {&r, pointer, pointer + m->ninput, out, work};
    kiln_run_commands(&f, m->program);
    for (u32 i = 0; i < m->nout; i++)
        if (o[i].later >= 0 && o[i].bytes)
            memcpy((void *)(uintptr_t)pointer[o[i].pointer], out[i], (size_t)kiln_size(&r, o[i].bytes));
    free(own);
    return KILN_OK;
}
