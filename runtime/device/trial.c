/* Tries out the matrix unit of a device whose compiler or driver may not be up to it: a kernel multiplies two matrices
 * of the unit's size, of small whole numbers, so that the sums have one result.  It reads the second factor by columns.
 * Where the unit fails, the device computes products without it. */
#include "devices.h"
#include "driver.h"
#include "ir/math/half.h"

enum { FACTOR_A, FACTOR_B, SUMS, BUFFERS };

/* Does each thread of a subgroup have the same number of elements of all three matrices? */
static bool matrix_divides_evenly(const struct mma_caps *u)
{
    return u->m * u->k % u->subgroup == 0 && u->k * u->n % u->subgroup == 0 && u->m * u->n % u->subgroup == 0;
}

/* The threads t of a subgroup copy n elements. */
static void trial_copy(struct kernel *k, val t, uint32_t from, uint32_t to, int64_t n, int64_t subgroup)
{
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, n), subgroup), e = k_prim(k, P_ADD, i, t, 0);
    k_store(k, to, e, k_load(k, from, e, 0), 0);
    k_end(k, i);
}

static val trial_tile(struct kernel *k, uint32_t buf, enum tile_order order, unsigned stride, unsigned rows,
                      unsigned cols)
{
    return k_append(k, (struct linst){.op = L_LOAD, .dtype = k->buf[buf].dtype, .kind = (uint8_t)order,
                                      .rows = (uint16_t)rows, .cols = (uint16_t)cols, .a = k_int(k, 0),
                                      .d = k_int(k, stride), .imm = buf});
}

/* NULL: out of memory. */
static struct kernel *trial_kernel(const struct mma_caps *u, unsigned dtype)
{
    const int64_t n[BUFFERS] = {u->m * u->k, u->k * u->n, u->m * u->n};
    struct kernel *k = kernel_new("matrices");
    uint32_t in[BUFFERS], shared[BUFFERS];
    if (!k)
        return NULL;
    for (unsigned i = 0; i < BUFFERS; i++)
        in[i] = k_buf(k, i == SUMS ? BUF_OUT : BUF_IN, i == SUMS ? KL_F32 : dtype, n[i], i);
    for (unsigned i = 0; i < BUFFERS; i++)
        shared[i] = k_buf(k, BUF_SHARED, i == SUMS ? KL_F32 : dtype, n[i], 0);
    val block = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, 1), 1);
    val t = k_loop(k, LOOP_BLOCK, k_int(k, 0), k_int(k, u->subgroup), 1);
    k->inst[t].rows = u->subgroup;
    trial_copy(k, t, in[FACTOR_A], shared[FACTOR_A], n[FACTOR_A], u->subgroup);
    trial_copy(k, t, in[FACTOR_B], shared[FACTOR_B], n[FACTOR_B], u->subgroup);
    k_inst(k, L_BARRIER, KL_BOOL, 0, 0, 0, 0);
    val zero = k_append(k, (struct linst){.op = L_SPLAT, .dtype = KL_F32, .rows = u->m, .cols = u->n,
                                          .a = k_bits(k, KL_F32, 0)});
    val a = trial_tile(k, shared[FACTOR_A], TILE_ROWS, u->k, u->m, u->k);
    val b = trial_tile(k, shared[FACTOR_B], TILE_COLS, u->k, u->k, u->n);
    val sums = k_append(k, (struct linst){.op = L_MMA, .dtype = KL_F32, .kind = MMA_ANY, .rows = u->m, .cols = u->n,
                                          .a = a, .b = b, .c = zero});
    k_append(k, (struct linst){.op = L_STORE, .dtype = KL_F32, .kind = TILE_ROWS, .a = k_int(k, 0), .b = sums,
                               .d = k_int(k, u->n), .imm = shared[SUMS]});
    k_inst(k, L_BARRIER, KL_BOOL, 0, 0, 0, 0);
    trial_copy(k, t, shared[SUMS], in[SUMS], n[SUMS], u->subgroup);
    k_end(k, t);
    k_end(k, block);
    k->extent = 1;
    if (kernel_clean(k))
        return k;
    kernel_free(k);
    return NULL;
}

/* Elements of the factors: [m, k], and [k, n] by columns. */
static int element_a(uint32_t row, uint32_t i) { return (int)((3 * row + i) % 7) - 3; }
static int element_b(uint32_t i, uint32_t col) { return (int)((2 * i + 5 * col) % 9) - 4; }

static uint16_t trial_half_bits(unsigned dtype, int x) { return dtype == KL_F16 ? f16_of(x).bits : bf16_of(x).bits; }

/* Are the sums right? */
static bool is_product(const struct mma_caps *u, const float *sums)
{
    for (uint32_t r = 0; r < u->m; r++)
        for (uint32_t c = 0; c < u->n; c++) {
            int want = 0;
            for (uint32_t i = 0; i < u->k; i++)
                want += element_a(r, i) * element_b(i, c);
            if (sums[r * u->n + c] != (float)want)
                return false;
        }
    return true;
}

static bool trial_run(struct accelerator *a, const struct device_kernel *k, const struct mma_caps *u, unsigned dtype)
{
    enum { MAX_COUNT = 32 * 32 };
    struct err ignored = {0};
    const struct driver *d = accelerator_driver(a);
    struct driver_device *device = accelerator_device(a);
    uint16_t factor[2][MAX_COUNT];
    float sums[MAX_COUNT] = {0};
    void *buf[BUFFERS] = {0};
    for (uint32_t i = 0; i < u->k; i++) {
        for (uint32_t r = 0; r < u->m; r++)
            factor[FACTOR_A][r * u->k + i] = trial_half_bits(dtype, element_a(r, i));
        for (uint32_t c = 0; c < u->n; c++)
            factor[FACTOR_B][c * u->k + i] = trial_half_bits(dtype, element_b(i, c));
    }
    bool ok = true;
    for (unsigned i = 0; i < BUFFERS && ok; i++)
        ok = d->alloc(device, sizeof sums, &buf[i], &ignored) &&
             (i == SUMS || d->upload(device, buf[i], factor[i], sizeof factor[i], &ignored));
    ok = ok && d->launch(device, &(struct launch){.kernel = k->kernel, .buffer = buf, .n = BUFFERS, .end = 1,
                                                  .blocks = 1}, &ignored) &&
         d->download(device, sums, buf[SUMS], sizeof sums, &ignored);
    for (unsigned i = 0; i < BUFFERS; i++)
        if (buf[i])
            d->release(device, buf[i]);
    return ok && is_product(u, sums);
}

static bool try_dtype(struct accelerator *a, const struct mma_caps *u, unsigned dtype)
{
    struct err ignored = {0};
    struct code code = {0};
    struct device_kernel *d = NULL;
    struct kernel *k = matrix_divides_evenly(u) ? trial_kernel(u, dtype) : NULL;
    bool ok = k && accelerator_backend(a)->compile_for(k, accelerator_caps(a), EMIT_OBJECT, &code, &ignored) &&
              (d = accelerator_load(a, k, &code, NULL, &ignored)) && trial_run(a, d, u, dtype);
    if (d)
        accelerator_unload(a, d);
    mem_free(code.bytes);
    kernel_free(k);
    return ok;
}

uint32_t accelerator_try_matrices(struct accelerator *a)
{
    const struct mma_caps *u = &accelerator_caps(a)->mma[0];
    uint32_t works = 0;
    for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++)
        if (u->dtypes >> dtype & 1 && try_dtype(a, u, dtype))
            works |= 1u << dtype;
    return works;
}
