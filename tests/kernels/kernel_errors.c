/* Kernels that break a rule of ir/loop/loop.h, each refused by name; accesses out of bounds and of what is not there
 * yet, caught by the interpreter. */
#include "kernel_test.h"
#include <stdlib.h>

/* Memory that fails at one allocation: so many from now on; below 0: never. */
static int left = -1;
static bool memory_fails(void) { return left >= 0 && left-- == 0; }
static void *failing_alloc(void *ctx, size_t bytes) { return (void)ctx, memory_fails() ? NULL : calloc(1, bytes); }
static void failing_release(void *ctx, void *p) { (void)ctx, free(p); }
static void *failing_grow(void *ctx, void *p, size_t bytes)
{
    return (void)ctx, memory_fails() ? NULL : realloc(p, bytes);
}

enum { A, B, OUT, WORK }; /* the buffers of every kernel here: in f32[64], in i64[8], out f32[64], scratch f32[64] */

static struct kernel *begin(void)
{
    struct kernel *k = kernel_new("broken");
    k_buf(k, BUF_IN, KL_F32, 64, 0);
    k_buf(k, BUF_IN, KL_I64, 8, 1);
    k_buf(k, BUF_OUT, KL_F32, 64, 2);
    k_buf(k, BUF_SCRATCH, KL_F32, 64, 3);
    return k;
}

static val vector(struct kernel *k, int64_t width) { return k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, width), 1); }
static val serial(struct kernel *k) { return k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, 4), 1); }

static void refused(struct kernel *k, const char *rule)
{
    struct err e = {0};
    check(!kernel_verify(k, &e) && e.code == KL_ERR_INTERNAL && strstr(e.msg, rule) && strstr(e.msg, "broken: %"),
          "not \"%s\" but \"%s\"", rule, e.msg);
    kernel_free(k);
}

static void test_scopes(void)
{
    struct kernel *k = begin();
    k_inst(k, L_OP(P_NEG), KL_F32, 9, 0, 0, 0);
    refused(k, "out of range");

    k = begin();
    val one = k_const(k, KL_F32, 1);
    k_inst(k, L_OP(P_NEG), KL_F32, one, 0, 0, 0);
    k->inst[2].a = 2;
    refused(k, "not an earlier value");

    k = begin();
    val v = vector(k, 16), x = k_load(k, A, v, 0);
    k_end(k, v);
    k_store(k, OUT, k_int(k, 0), k_prim(k, P_NEG, x, 0, 0), 0);
    refused(k, "loop has ended");

    k = begin();
    val s = serial(k);
    k_end(k, s);
    k_store(k, OUT, s, k_const(k, KL_F32, 0), 0);
    refused(k, "loop has ended");

    k = begin();
    val c = k_if(k, k_const(k, KL_BOOL, 1));
    x = k_load(k, A, k_int(k, 0), 0);
    k_end(k, c);
    k_store(k, OUT, k_int(k, 0), x, 0);
    refused(k, "loop has ended");

    k = begin();
    k_store(k, OUT, k_int(k, 0), k_const(k, KL_F32, 0), 0);
    k_prim(k, P_NEG, k->ninst - 1, 0, 0);
    refused(k, "not a value");
}

static void test_loops(void)
{
    struct kernel *k = begin();
    val v = vector(k, 16);
    k_end(k, vector(k, 4));
    k_end(k, v);
    refused(k, "inside a vector loop");

    static const int64_t widths[] = {0, 3, 24, 512};
    for (int i = 0; i < 4; i++) {
        k = begin();
        k_end(k, vector(k, widths[i]));
        refused(k, "power of two");
    }

    k = begin();
    val s = serial(k);
    k_end(k, k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, 4), 1));
    k_end(k, s);
    refused(k, "outermost");

    k = begin();
    k_end(k, k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, 4), 1));
    k_end(k, k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, 4), 1));
    refused(k, "outermost");

    k = begin();
    k_end(k, k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, 4), 0));
    refused(k, "step");

    k = begin();
    k_end(k, k_loop(k, LOOP_SERIAL, k_int(k, 0), k_const(k, KL_I32, 4), 1));
    refused(k, "not i64");

    k = begin();
    v = vector(k, 4);
    k_end(k, k_loop(k, LOOP_SERIAL, k_int(k, 0), v, 1));
    k_end(k, v);
    refused(k, "varying loop bounds");

    k = begin();
    v = vector(k, 4);
    k_end(k, k_if(k, k_prim(k, P_LT, v, k_int(k, 2), 0)));
    k_end(k, v);
    refused(k, "varying condition");

    k = begin();
    serial(k);
    refused(k, "never ends");

    k = begin();
    s = serial(k);
    k_end(k, s);
    k_end(k, s);
    refused(k, "another loop");

    k = begin();
    s = serial(k);
    k->inst[s].kind = 9;
    k_end(k, s);
    refused(k, "loop kind");
}

/* A loop with one carry from init to next, whose out is returned. */
static val loop_with(struct kernel *k, val init, val next)
{
    val s = serial(k), c = k_carry(k, init);
    k_next(k, c, next);
    k_end(k, s);
    return k_out(k, c);
}

static void test_carries(void)
{
    struct kernel *k = begin();
    val zero = k_const(k, KL_F32, 0), s = serial(k), x = k_load(k, A, s, 0);
    val c = k_carry(k, zero);
    k_next(k, c, x);
    k_end(k, s);
    refused(k, "behind a serial loop");

    k = begin();
    zero = k_const(k, KL_F32, 0);
    s = serial(k);
    k_carry(k, zero);
    k_end(k, s);
    refused(k, "without next");

    k = begin();
    zero = k_const(k, KL_F32, 0);
    s = serial(k);
    c = k_carry(k, zero);
    k_next(k, c, zero);
    k_store(k, OUT, s, c, 0);
    k_end(k, s);
    refused(k, "next");

    k = begin();
    zero = k_const(k, KL_F32, 0);
    s = serial(k);
    c = k_carry(k, zero);
    k_next(k, c, zero);
    k_next(k, c, c);
    k_end(k, s);
    refused(k, "second next");

    k = begin();
    loop_with(k, k_const(k, KL_F32, 0), k_int(k, 1));
    refused(k, "another dtype");

    k = begin();
    val v = vector(k, 8), lanes = k_load(k, A, v, 0);
    loop_with(k, k_const(k, KL_F32, 0), lanes);
    k_end(k, v);
    refused(k, "uniform carry");

    k = begin();
    zero = k_const(k, KL_F32, 0);
    s = serial(k);
    c = k_carry(k, zero);
    val early = k_out(k, c);
    k_next(k, c, early);
    k_end(k, s);
    refused(k, "before the loop's end");

    k = begin();
    zero = k_const(k, KL_F32, 0);
    val outer = serial(k);
    s = serial(k);
    c = k_carry(k, zero);
    k_next(k, c, c);
    k_end(k, s);
    k_end(k, outer);
    k_store(k, OUT, k_int(k, 0), k_out(k, c), 0);
    refused(k, "loop has ended");

    k = begin();
    zero = k_const(k, KL_F32, 0);
    k_store(k, OUT, k_int(k, 0), k_out(k, zero), 0);
    refused(k, "not of a carry");
}

static void test_types(void)
{
    struct {
        enum prim p;
        unsigned dtype;
        unsigned operands;
        const char *rule;
    } bad[] = {
        {P_ADD, KL_F32, 1, "number of operands"}, {P_NEG, KL_F32, 2, "number of operands"},
        {P_FMA, KL_I32, 3, "floating"},           {P_SQRT, KL_I64, 1, "floating"},
        {P_AND, KL_F32, 2, "integers or bool"},   {P_SHL, KL_F64, 2, "integers"},
        {P_ADD, KL_BOOL, 2, "numbers"},           {P_SHR, KL_BOOL, 2, "numbers"},
        {P_SELECT, KL_F32, 3, "not bool"},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kernel *k = begin();
        val x = k_const(k, bad[i].dtype, 1);
        k_prim(k, bad[i].p, x, bad[i].operands > 1 ? x : 0, bad[i].operands > 2 ? x : 0);
        refused(k, bad[i].rule);
    }
    struct kernel *k = begin();
    val half = k_const(k, KL_F16, 1);
    k_prim(k, P_MUL, half, half, 0);
    refused(k, "computes on a half float");
    k = begin();
    k_inst(k, L_OP(P_CAST), KL_F64, k_const(k, KL_BF16, 1), 0, 0, 0);
    refused(k, "another dtype than f32");
    k = begin();
    val single = k_const(k, KL_F32, 1), wide = k_const(k, KL_F64, 1);
    k_prim(k, P_ADD, single, wide, 0);
    refused(k, "different dtypes");
    k = begin();
    k_inst(k, L_OP(P_BITS), KL_I64, k_const(k, KL_F32, 1), 0, 0, 0);
    refused(k, "width");
    k = begin();
    k_inst(k, L_OP(P_BITS), KL_BOOL, k_const(k, KL_U8, 2), 0, 0, 0);
    refused(k, "width");
    k = begin();
    val five = k_int(k, 5);
    k_inst(k, L_OP(P_EQ), KL_F32, five, five, 0, 0);
    refused(k, "result dtype");
    k = begin();
    k_inst(k, L_CONST, 99, 0, 0, 0, 0);
    refused(k, "out of range");
    k = begin();
    k_inst(k, L_PRIM + P_COUNT, KL_F32, 0, 0, 0, 0);
    refused(k, "unknown instruction");
}

static void test_lanes(void)
{
    struct kernel *k = begin();
    k_splat(k, k_const(k, KL_F32, 1));
    refused(k, "outside a vector loop");
    k = begin();
    k_lane_reduce(k, FOLD_ADD, k_const(k, KL_F32, 1));
    refused(k, "outside a vector loop");
    k = begin();
    val v = vector(k, 8);
    k_inst(k, L_LANE_REDUCE, KL_I32, k_load(k, A, v, 0), 0, 0, FOLD_ADD);
    k_end(k, v);
    refused(k, "dtype");
    k = begin();
    v = vector(k, 8);
    k_inst(k, L_LANE_REDUCE, KL_F32, k_load(k, A, v, 0), 0, 0, 7);
    k_end(k, v);
    refused(k, "unknown fold");
    k = begin();
    v = vector(k, 8);
    k_inst(k, L_SPLAT, KL_I64, v, 0, 0, 0);
    k_end(k, v);
    refused(k, "varies already");
    static const unsigned distances[] = {0, 3, 8};
    for (int i = 0; i < 3; i++) {
        k = begin();
        v = vector(k, 8);
        k_interleave(k, INTERLEAVE_LO, v, v, distances[i]);
        k_end(k, v);
        refused(k, "wrong distance");
    }
    k = begin();
    v = vector(k, 8);
    val one = k_int(k, 1);
    k_interleave(k, INTERLEAVE_LO, one, one, 2);
    k_end(k, v);
    refused(k, "of no lanes");
    k = begin();
    v = vector(k, 8);
    val y = k_load(k, A, v, 0);
    k_interleave(k, INTERLEAVE_HI, v, y, 2);
    k_end(k, v);
    refused(k, "different dtypes");
    k = begin();
    v = vector(k, 8);
    val x = k_load(k, A, v, 0);
    k->inst[x].varying = 0;
    k_end(k, v);
    refused(k, "not marked as varying");
}

static void test_memory(void)
{
    struct kernel *k = begin();
    k_load(k, 9, k_int(k, 0), 0);
    refused(k, "no such buffer");
    k = begin();
    k_store(k, A, k_int(k, 0), k_const(k, KL_F32, 1), 0);
    refused(k, "store to an input");
    k = begin();
    k_store(k, OUT, k_int(k, 0), k_const(k, KL_F64, 1), 0);
    refused(k, "another dtype");
    k = begin();
    k_load(k, A, k_const(k, KL_U64, 0), 0);
    refused(k, "not i64");
    k = begin();
    k_load(k, A, k_int(k, 0), k_int(k, 1));
    refused(k, "not bool");
    k = begin();
    k_prefetch(k, PREFETCH_READ, 9, k_int(k, 0));
    refused(k, "no such buffer");
    k = begin();
    k_prefetch(k, PREFETCH_READ, A, k_const(k, KL_F32, 1));
    refused(k, "not i64");
    k = begin();
    val v = vector(k, 8);
    k_prefetch(k, PREFETCH_WRITE, OUT, v);
    k_end(k, v);
    refused(k, "varying index");
    k = begin();
    k_prefetch(k, (enum prefetch)2, A, k_int(k, 0));
    refused(k, "unknown prefetch");
}

/* Interprets a kernel that reads or writes where it may not. */
static void bad_access(struct kernel *k, const char *where)
{
    void *init[MAX_BUFS], *buf[MAX_BUFS];
    struct guarded g[MAX_BUFS];
    struct err e = {0};
    for (uint32_t b = 0; b < k->nbuf; b++) init[b] = calloc(buf_bytes(k, b), 1);
    set_up(k, (const void *const *)init, g, buf);
    bool ok = kernel_interp(k, buf, NULL, 0, k->extent, &e);
    check(!ok && strstr(e.msg, where) && strstr(e.msg, "kernel broken: %"), "not \"%s\" but \"%s\"", where, e.msg);
    tear_down(k, g);
    for (uint32_t b = 0; b < k->nbuf; b++) free(init[b]);
    kernel_free(k);
}

static void test_bounds(void)
{
    struct kernel *k = begin();
    k_store(k, OUT, k_int(k, 64), k_const(k, KL_F32, 1), 0);
    bad_access(k, "element 64 of buffer 2, which has 64");
    k = begin();
    val v = vector(k, 16);
    k_store(k, OUT, v, k_load(k, A, ix_add(k, v, k_int(k, 50)), 0), 0);
    k_end(k, v);
    bad_access(k, "element 64 of buffer 0");
    k = begin();
    v = vector(k, 16);
    val back = ix_sub(k, k_int(k, 7), v);
    k_store(k, WORK, back, k_const(k, KL_F32, 1), k_prim(k, P_LE, k_int(k, -1), back, 0));
    k_end(k, v);
    bad_access(k, "element -1 of buffer 3");
    k = begin();
    k_store(k, OUT, k_int(k, 0), k_cast(k, k_load(k, B, k_int(k, INT64_MIN), 0), KL_F32), 0);
    bad_access(k, "element -9223372036854775808 of buffer 1");
}

/* An output may be read back, but only what the same iteration has stored. */
static void test_outputs(void)
{
    struct kernel *k = begin();
    k_store(k, OUT, k_int(k, 1), k_const(k, KL_F32, 1), 0);
    k_store(k, OUT, k_int(k, 0), k_load(k, OUT, k_int(k, 0), 0), 0);
    bad_access(k, "loads element 0 of buffer 2 before this iteration stores it");
    k = begin();
    k->extent = 2;
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, 2), 1);
    k_store(k, OUT, p, k_const(k, KL_F32, 1), 0);
    k_store(k, OUT, ix_add(k, p, k_int(k, 2)), k_load(k, OUT, k_int(k, 0), 0), 0);
    k_end(k, p);
    bad_access(k, "loads element 0 of buffer 2 before this iteration stores it");
}

/* Each allocation of the verifier fails once: the kernel does not pass for verified. */
static void test_lack_of_memory(void)
{
    struct kernel *k = begin();
    val grid = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, 4), 1), block = k_loop(k, LOOP_BLOCK, k_int(k, 0),
                                                                                 k_int(k, 16), 1);
    k_store(k, OUT, ix_add(k, ix_scale(k, grid, 16), block), k_const(k, KL_F32, 1), 0);
    k_end(k, block);
    k_end(k, grid);
    k->extent = kernel_extent(k);
    for (int n = 0;; n++) {
        struct err e = {0};
        left = n;
        bool ok = kernel_verify(k, &e), all = left >= 0;
        left = -1;
        if (all) {
            check(ok && n >= 5, "after %d allocations: %s", n, e.msg);
            break;
        }
        check(!ok && e.code == KL_ERR_MEMORY, "allocation %d fails: %s, %s", n, ok ? "verified" : "refused", e.msg);
    }
    kernel_free(k);
}

int main(void)
{
    const kl_memory memory = {.alloc = failing_alloc, .grow = failing_grow, .release = failing_release};
    if (!check(mem_use(&memory), "memory is in use already"))
        return finish();
    test_scopes();
    test_loops();
    test_carries();
    test_types();
    test_lanes();
    test_memory();
    test_bounds();
    test_outputs();
    test_lack_of_memory();
    return finish();
}
