/* Figures and a list of the kernels of a training step (gpu_step_figures.h). */
#include "gpu_step_figures.h"
#include "ir/loop/loop.h"
#include <stdio.h>
#include <stdlib.h>

static bool is_product(const struct kernel *k)
{
    return k->flops > 1000000000 && (k->sched.kind == SCHED_DOT_MATRIX || k->sched.kind == SCHED_DOT_BLOCKS ||
                                     k->sched.kind == SCHED_GPU_DOT_SKINNY);
}

/* Does a copy bring each operand to shared memory, by TMA or by cp.async? */
static bool copies_operands(const struct schedule *s)
{
    if (s->kind == SCHED_DOT_MATRIX)
        return s->dot_matrix.panels || (s->dot_matrix.copy_a && s->dot_matrix.copy_b);
    return s->kind == SCHED_DOT_BLOCKS && s->dot_blocks.copy_a && s->dot_blocks.copy_b;
}

static bool is_unstaged(const struct step_kernel *s)
{
    return is_product(s->k) && (!copies_operands(schedule_of(s->k)) ||
                                (!s->c.panels && (!s->c.async || s->c.async_wide < s->c.async)));
}

static int64_t step_bytes(const struct program *p, const struct step_kernel *v)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < p->nkernel; i++)
        sum += v[i].launches * v[i].k->bytes;
    return sum;
}

/* Loads of slots: numbers that are the same for all threads. */
static unsigned slot_loads(const struct kernel *k)
{
    unsigned n = 0;
    for (val v = 1; v < k->ninst; v++)
        n += k->inst[v].op == L_SLOT;
    return n;
}

/* Does the kernel move more than 1 % of the step's bytes, and arrays that it accesses below 16 bytes more than 2 % of
 * its own?  The rest of these are a number or two for each row: labels, means, maxima and sums, of which a thread has
 * one at a time.  What the text accesses by 16 bytes the machine code must access so, too: it has no more shorter
 * accesses than the text. */
static bool is_narrow(const struct step_kernel *s, int64_t all_bytes)
{
    enum { SHARE = 50 };
    unsigned narrow = s->c.global - s->c.wide, slots = slot_loads(s->k);
    return s->launches * s->k->bytes > all_bytes / 100 &&
           (s->narrow_bytes > s->k->bytes / SHARE || narrow > s->narrow + slots || s->c.async_wide < s->c.async);
}

static unsigned large_passes(const struct step_kernel *s, int64_t large)
{
    unsigned n = 0;
    for (uint32_t b = 0; b < s->k->nbuf; b++) {
        unsigned role = s->k->buf[b].role;
        n += s->k->buf[b].count >= large && (role == BUF_OUT || (role == BUF_IN && !is_product(s->k)));
    }
    return n * s->launches;
}

struct step_figures step_figures(const struct program *p, const struct step_kernel *v, int64_t large)
{
    struct step_figures f = {0};
    int64_t bytes = step_bytes(p, v);
    for (uint32_t i = 0; i < p->ncmd; i++)
        f.launches += p->cmd[i].kind == CMD_KERNEL || p->cmd[i].kind == CMD_COPY;
    for (uint32_t i = 0; i < p->nkernel; i++) {
        f.unstaged_products += is_unstaged(&v[i]) ? v[i].launches : 0;
        f.narrow_kernels += is_narrow(&v[i], bytes);
        f.large_passes += large_passes(&v[i], large);
        f.local_kernels += v[i].c.local > 0;
    }
    return f;
}

/* ---- the list ---- */

/* Microseconds of all launches on an H100 at the rates that good kernels reach: 3 TB/s, and of arithmetic 600 TFLOP/s
 * by tensor cores, else 45. */
static double ideal_us(const struct step_kernel *s)
{
    double bytes = (double)s->k->bytes / 3e6, flops = (double)s->k->flops / (s->c.hgmma || s->c.hmma ? 600e6 : 45e6);
    return s->launches * (bytes > flops ? bytes : flops);
}

static int costlier_first(const void *a, const void *b)
{
    double x = ideal_us(a), y = ideal_us(b);
    return (x < y) - (x > y);
}

void step_print(const struct program *p, struct step_kernel *v, int64_t large)
{
    int64_t bytes = step_bytes(p, v);
    qsort(v, p->nkernel, sizeof *v, costlier_first);
    printf("launches, us of them all at 3 TB/s and 600 or 45 TFLOP/s, MB and GFLOP of one, global accesses / of 16 "
           "bytes,\ncp.async / of 16 bytes, TMA loads, HGMMA, FFMA, shared accesses, registers, blocks x threads, "
           "passes over\nlogits, U: product with operands that come by neither, N: narrow accesses and over 1 %% of "
           "all bytes, L: local memory\n");
    for (uint32_t i = 0; i < p->nkernel; i++) {
        const struct step_kernel *s = &v[i];
        printf("%3u %7.1f us %7.1f MB %7.2f GF %4u/%-4u %3u/%-3u %2u T %3u H %5u F %4u S %3u R %5u x %-4u %u %s%s%s %s",
               s->launches, ideal_us(s), (double)s->k->bytes / 1e6, (double)s->k->flops / 1e9, s->c.global, s->c.wide,
               s->c.async, s->c.async_wide, s->c.panels, s->c.hgmma + s->c.hmma, s->c.ffma, s->c.shared,
               s->c.registers, s->c.blocks, s->c.threads, large_passes(s, large), is_unstaged(s) ? "U" : "-",
               is_narrow(s, bytes) ? "N" : "-", s->c.local ? "L" : "-", s->k->name);
        char *schedule = schedule_line(schedule_of(s->k));
        printf(" [%s]\n", schedule ? schedule : "");
        mem_free(schedule);
    }
    printf("%.2f GB a step in %u kernels\n", (double)bytes / 1e9, p->nkernel);
}
