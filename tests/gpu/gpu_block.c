/* A block of threads as coroutines. */
#include "gpu_block.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { STACK = 1 << 16 };

static const char gpu_shim[] =
    "extern \"C\" { float fmaf(float, float, float); double fma(double, double, double); float sqrtf(float); double "
    "sqrt(double);\n"
    "float rintf(float); double rint(double); float fabsf(float); double fabs(double);\n"
    "float exp2f(float); }\n"
    "static unsigned char *emulated_arena;\n#define uniform(x) (x)\n"
    "#define SHARED_ARENA(bytes) alignas(1024) static u8 arena[bytes]; emulated_arena = arena\n"
    "#define __cvta_generic_to_shared(p) (unsigned long long)((const unsigned char *)(p) - emulated_arena)\n"
    "#define __grid_constant__\n#define __global__\n#define __device__\n#define __launch_bounds__(...)\n"
    "#define __shared__ static\n"
    "struct emulated_dim { unsigned x; };\n"
    "extern \"C\" { emulated_dim threadIdx, blockIdx, gridDim, blockDim; void (*__syncthreads)(void);\n"
    "unsigned long long (*emulated_exchange)(unsigned long long x, unsigned from);\n"
    "void (*emulated_barrier)(unsigned id, unsigned threads); void (*emulated_spin)(unsigned long long steps); }\n"
    "template <class A, class B> static A bits(B b)\n{\n    A a;\n    static_assert(sizeof a == sizeof b, \"\");\n"
    "    __builtin_memcpy(&a, &b, sizeof a);\n    return a;\n}\n"
    "#define __uint_as_float bits<float, unsigned>\n#define __float_as_uint bits<unsigned, float>\n"
    "#define __longlong_as_double bits<double, long long>\n#define __double_as_longlong bits<long long, double>\n"
    "template <class T> static T exchange(T x, unsigned from)\n{\n    unsigned long long b = 0;\n    "
    "__builtin_memcpy(&b, &x, sizeof x);\n"
    "    b = emulated_exchange(b, from);\n    __builtin_memcpy(&x, &b, sizeof x);\n    return x;\n}\n"
    /* blocks may be processes; waits: for a word, else the block has taken the number of an iteration */
    "extern \"C\" { void (*emulated_pause)(bool waits); }\n"
    "template <class T> static T atomicAdd(T *p, T x)\n{\n    T old = __atomic_fetch_add(p, x, __ATOMIC_RELAXED);\n"
    "    if (emulated_pause)\n        emulated_pause(false);\n    return old;\n}\n"
    "#define WORD_PAUSE if (emulated_pause) emulated_pause(true)\n"
    "#define __HIP_MEMORY_SCOPE_AGENT 0\n#define __hip_atomic_load(p, order, scope) __atomic_load_n(p, order)\n"
    "#define __hip_atomic_store(p, x, order, scope) __atomic_store_n(p, x, order)\n"
    "template <class T> static void atomicMax(T *p, T x) { *p = x > *p ? x : *p; }\n"
    "template <class T> static void atomicMin(T *p, T x) { *p = x < *p ? x : *p; }\n"
    "#define lane_of(w) (threadIdx.x & ((w) - 1u))\n"
    "#define __shfl_down(v, h, w) exchange(v, lane_of(w) + (h) < (w) ? threadIdx.x + (h) : threadIdx.x)\n"
    "#define __shfl_xor(v, h, w) exchange(v, threadIdx.x ^ (h))\n"
    "#define __shfl(v, l, w) exchange(v, threadIdx.x - lane_of(w) + (l))\n"
    /* CUDA C++ Programming Guide, Warp Shuffle Functions: the width is a power of two in the range [1, warpSize] */
    "template <unsigned w> static void of_a_warp() { static_assert(w && w <= 32 && !(w & (w - 1)), \"\"); }\n"
    "#define __shfl_down_sync(m, v, h, w) (of_a_warp<w>(), __shfl_down(v, h, w))\n"
    "#define __shfl_xor_sync(m, v, h, w) (of_a_warp<w>(), __shfl_xor(v, h, w))\n"
    "#define __shfl_sync(m, v, l, w) (of_a_warp<w>(), __shfl(v, l, w))\n"
    "#define __syncwarp() exchange(0, threadIdx.x)\n";

/* Products by subgroups.  Element for element it is asked which lane and register has it, and the sum is one
 * ascending chain of fma, as the interpreter's is.  Threads give their factors in turns of two arrays, so that one
 * barrier is enough: who gives for the next turn but one has passed another barrier.  Of PTX's mma.m16n8k16 (PTX ISA):
 * a[r][k] and b[k][c], k in pairs, are of the lane with groupID r mod 8, or c, and threadID_in_group k mod 8 / 2;
 * sum[r][c] of groupID r mod 8 and threadID_in_group c / 2.  Of its ldmatrix: lane 8 j + i says where row i of matrix j
 * lies; lane 4 i + c / 2 gets its elements c, or element i of rows c.  Of CDNA 2's with sides of 16 and 32: a[r][k] of
 * lane r + side (k / 4), b[k][c] of lane c + side (k / 4), or of f32, r + side k and c + side k; sum[r][c] of lane c +
 * side (r / 4 % (64 / side)), in its element 4 (r / (256 / side)) + r % 4. */
static const char matrix_units[] =
    "static unsigned emulated_a[2][1024][4], emulated_b[2][1024][2], emulated_turns[1024];\n"
    "static float emulated_half(bool bf16, unsigned pair, unsigned k)\n{\n    unsigned short h = pair >> 16 * (k & "
    "1);\n"
    "    return bf16 ? bits<float, unsigned>((unsigned)h << 16) : float(bits<_Float16, unsigned short>(h));\n}\n"
    "static void emulated_ptx_mma(bool bf16, float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, "
    "unsigned a2,\n"
    "                             unsigned a3, unsigned b0, unsigned b1)\n{\n"
    "    unsigned t = threadIdx.x, first = t & ~31u, a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};\n"
    "    unsigned turn = emulated_turns[t] ^= 1;\n    float *d[4] = {&d0, &d1, &d2, &d3};\n"
    "    __builtin_memcpy(emulated_a[turn][t], a, sizeof a);\n"
    "    __builtin_memcpy(emulated_b[turn][t], b, sizeof b);\n    __syncthreads();\n"
    "    for (unsigned r = 0; r < 16; r++)\n        for (unsigned c = 0; c < 8; c++)\n"
    "            for (unsigned k = 0; k < 16 && t == first + r % 8 * 4 + c / 2; k++) {\n"
    "                const unsigned *p = emulated_a[turn][first + r % 8 * 4 + k % 8 / 2];\n"
    "                float x = emulated_half(bf16, p[k / 8 * 2 + r / 8], k), *sum = d[r / 8 * 2 + c % 2];\n"
    "                float y = emulated_half(bf16, emulated_b[turn][first + c * 4 + k % 8 / 2][k / 8], k);\n"
    "                *sum = fmaf(x, y, *sum);\n            }\n}\n"
    "static const unsigned short *emulated_row[2][1024];\n"
    "static void emulated_rows(unsigned n, bool turned, unsigned &r0, unsigned &r1, unsigned &r2, unsigned &r3, const "
    "unsigned short *row)\n{\n"
    "    unsigned t = threadIdx.x, first = t & ~31u, turn = emulated_turns[t] ^= 1, *r[4] = {&r0, &r1, &r2, &r3};\n"
    "    if (t - first < 8 * n && (unsigned long long)row % 16)\n        __builtin_trap();\n"
    "    emulated_row[turn][t] = row;\n    __syncthreads();\n"
    "    for (unsigned j = 0; j < n; j++) {\n        const unsigned short **m = emulated_row[turn] + first + 8 * j;\n"
    "        unsigned i = t % 32 / 4, c = t % 4 * 2;\n"
    "        *r[j] = turned ? m[c][i] | m[c + 1][i] << 16 : m[i][c] | m[i][c + 1] << 16;\n    }\n"
    "    __syncthreads();\n}\n"
    "static float emulated_factor[2][2][1024][4];\n"
    "template <class F> static float emulated_value(bool bf16, const F &x, unsigned e)\n{\n"
    "    unsigned short h[4];\n    float f;\n"
    "    __builtin_memcpy(sizeof x == sizeof f ? (void *)&f : h, &x, sizeof x);\n"
    "    return sizeof x == sizeof f ? f : emulated_half(bf16, h[e], 0);\n}\n"
    "template <unsigned side, class F, class S> static S emulated_mfma(bool bf16, const F &a, const F &b, S d)\n{\n"
    "    unsigned t = threadIdx.x, first = t & ~63u, lane = t & 63u, each = sizeof a == 4 ? 1 : 4;\n"
    "    auto &f = emulated_factor[emulated_turns[t] ^= 1];\n"
    "    for (unsigned e = 0; e < each; e++) {\n        f[0][t][e] = emulated_value(bf16, a, e);\n"
    "        f[1][t][e] = emulated_value(bf16, b, e);\n    }\n    __syncthreads();\n"
    "    for (unsigned i = 0; i < side * side / 64; i++)\n"
    "        for (unsigned k = 0, r = 256 / side * (i / 4) + 4 * (lane / side) + i % 4; k < 64 / side * each; k++)\n"
    "            d[i] = fmaf(f[0][first + r + side * (k / each)][k % each],\n"
    "                        f[1][first + lane % side + side * (k / each)][k % each], d[i]);\n"
    "    return d;\n}\n"
    "#define __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, d, x, y, z) emulated_mfma<16>(false, a, b, d)\n"
    "#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, d, x, y, z) emulated_mfma<16>(true, a, b, d)\n"
    "#define __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, d, x, y, z) emulated_mfma<16>(false, a, b, d)\n"
    "#define __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, d, x, y, z) emulated_mfma<32>(false, a, b, d)\n"
    "#define __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, d, x, y, z) emulated_mfma<32>(true, a, b, d)\n"
    "#define __builtin_amdgcn_mfma_f32_32x32x2f32(a, b, d, x, y, z) emulated_mfma<32>(false, a, b, d)\n";

/* Copies land when the thread waits for them and no sooner.  unfenced: wgmma may not see some that have landed, because
 * no fence.proxy.async came after them. */
static const char copies[] =
    "static struct { struct { void *to; const void *from; unsigned bytes, batch; bool there; } v[64]; unsigned n, "
    "batch; bool unfenced; } emulated_copies[1024];\n"
    "static void emulated_copy(void *to, const void *from, unsigned bytes, bool there)\n{\n"
    "    auto &c = emulated_copies[threadIdx.x];\n"
    "    if ((unsigned long long)to % bytes || (there && (unsigned long long)from % bytes) || c.n == 64)\n        "
    "__builtin_trap();\n"
    "    c.v[c.n++] = {to, from, bytes, c.batch, there};\n}\n"
    "static void emulated_commit() { emulated_copies[threadIdx.x].batch++; }\n"
    "static void emulated_wait(unsigned left)\n{\n    auto &c = emulated_copies[threadIdx.x];\n    unsigned n = 0;\n"
    "    c.unfenced |= c.n;\n"
    "    for (unsigned i = 0; i < c.n; i++) {\n        if (c.v[i].batch + left >= c.batch)\n            c.v[n++] = "
    "c.v[i];\n"
    "        else if (c.v[i].there)\n            __builtin_memcpy(c.v[i].to, c.v[i].from, c.v[i].bytes);\n"
    "        else\n            __builtin_memset(c.v[i].to, 0, c.v[i].bytes);\n    }\n    c.n = n;\n}\n";

/* Of PTX's wgmma.mma_async.m64nNk16: what a descriptor says of element (side, k) of a factor, in shared memory with
 * rows of 128 bytes of which every 16 are exchanged: bits 4 to 6 of an address by its bits 7 to 9.  A thread has the
 * sums of rows 16 (t / 32 % 4) + t % 32 / 4 and 8 more, columns 2 (t % 4) and 1 more of every 8.  a may be in
 * registers, which have the elements of mma.m16n8k16's for each 16 rows.
 *
 * A product happens at any time between its statement and the wait that completes its group: here at the wait if
 * emulated_late, else at the statement.  A thread has a ring of products, of which others read a's registers. */
static const char wgmma[] =
    "static float emulated_panel(bool bf16, unsigned long long d, bool turned, unsigned side, unsigned k)\n{\n"
    "    unsigned start = (d & 0x3fff) << 4, leading = (d >> 16 & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4;\n"
    "    unsigned at = start + (turned ? side / 64 * leading + k / 8 * stride + k % 8 * 128 + side % 64 * 2\n"
    "                                  : side / 8 * stride + side % 8 * 128 + k * 2);\n"
    "    if (d >> 62 != 1 || d >> 49 & 7)\n        __builtin_trap();\n"
    "    return emulated_half(bf16, *(unsigned short *)(emulated_arena + (at ^ (at >> 7 & 7) << 4)), 0);\n}\n"
    "struct emulated_product { bool adds, bf16, registers, turned_a, turned_b; unsigned count, batch, a[4];\n"
    "    unsigned long long at, b; float *d[128]; };\n"
    "static struct { emulated_product v[32]; unsigned first, next, batch; } emulated_products[1024];\n"
    "extern \"C\" { bool emulated_late; unsigned emulated_unfinished; }\n"
    "static void emulated_complete(unsigned n)\n{\n"
    "    unsigned t = threadIdx.x;\n    const emulated_product &p = emulated_products[t].v[n % 32];\n"
    "    for (unsigned e = 0; e < p.count; e++) {\n        unsigned row = t % 32 / 4 + 8 * (e / 2 % 2);\n"
    "        unsigned c = e / 4 * 8 + t % 4 * 2 + e % 2;\n"
    "        *p.d[e] = p.adds ? *p.d[e] : 0;\n        for (unsigned k = 0; k < 16; k++) {\n"
    "            const unsigned *a = emulated_products[(t & ~31u) + row % 8 * 4 + k % 8 / 2].v[n % 32].a;\n"
    "            *p.d[e] = fmaf(p.registers ? emulated_half(p.bf16, a[k / 8 * 2 + row / 8], k)\n"
    "                                       : emulated_panel(p.bf16, p.at, p.turned_a, 16 * (t / 32 % 4) + row, k),\n"
    "                           emulated_panel(p.bf16, p.b, p.turned_b, c, k), *p.d[e]);\n        }\n    }\n"
    "    emulated_products[t].first++;\n    emulated_unfinished--;\n}\n"
    "template <unsigned count> static void emulated_wgmma(emulated_product p, float *const (&d)[count])\n{\n"
    "    auto &q = emulated_products[threadIdx.x];\n"
    "    if (q.next - q.first == 32 || count > 128 || emulated_copies[threadIdx.x].unfenced)\n        "
    "__builtin_trap();\n"
    "    p.count = count;\n    p.batch = q.batch;\n    __builtin_memcpy(p.d, d, sizeof d);\n"
    "    q.v[q.next++ % 32] = p;\n    emulated_unfinished++;\n    if (emulated_late)\n        return;\n"
    "    if (p.registers)\n        emulated_barrier(16 + threadIdx.x / 128, 128);\n    emulated_complete(q.first);\n}\n"
    "static void emulated_products_wait(unsigned left)\n{\n    auto &q = emulated_products[threadIdx.x];\n"
    "    emulated_barrier(16 + threadIdx.x / 128, 128); /* a warpgroup waits as a whole */\n"
    "    while (q.first != q.next && q.v[q.first % 32].batch + left < q.batch)\n        emulated_complete(q.first);\n"
    "}\n";

/* PTX's mbarrier and TMA loads.  A barrier's 8 bytes: bits 0 to 19 pending arrivals, 20 to 39 arrivals of a
 * phase, 40 the parity of the current phase, 41 to 62 the bytes that are still expected + 2^20, 63 whether it is
 * valid.  A copy is complete when a thread tests the barrier and no sooner: row r and column c of the box are at
 * 128 r + 2 c, where bits 4 to 6 of the address are exchanged by its bits 7 to 9; there are zeros outside of the
 * tensor.  gpu_map_make says what a map is here. */
static const char phases[] =
    "static unsigned long long emulated_steps;\n"
    "static unsigned long long &emulated_mbarrier(unsigned at)\n{\n    if (at % 8)\n        __builtin_trap();\n"
    "    emulated_steps++;\n    return *(unsigned long long *)(emulated_arena + at);\n}\n"
    "static void emulated_phase_end(unsigned long long &b)\n{\n"
    "    if (!(b >> 63))\n        __builtin_trap();\n"
    "    if (!(b & 0xfffff) && (b >> 41 & 0x3fffff) == 1u << 20)\n        b = (b ^ 1ull << 40) + (b >> 20 & 0xfffff);\n"
    "}\n"
    "static void emulated_phases_begin(unsigned at, unsigned long long n)\n{\n"
    "    unsigned long long &b = emulated_mbarrier(at);\n    if (b >> 63 || !n || n >> 20)\n        __builtin_trap();\n"
    "    b = n | n << 20 | 1ull << 61 | 1ull << 63;\n}\n"
    "static struct emulated_panel_copy { unsigned to, barrier; const unsigned long long *map; int at[3]; } "
    "emulated_panels[256];\nstatic unsigned emulated_npanel;\n"
    "static void emulated_phases_end(unsigned at)\n{\n    unsigned long long &b = emulated_mbarrier(at);\n"
    "    if (!(b >> 63) || (b >> 41 & 0x3fffff) != 1u << 20 || emulated_npanel)\n        __builtin_trap();\n"
    "    b = 0;\n}\n"
    "static void emulated_expect(unsigned at, long long bytes)\n{\n    unsigned long long &b = emulated_mbarrier(at);\n"
    "    long long left = (long long)(b >> 41 & 0x3fffff) - (1 << 20) + bytes;\n"
    "    if (left >= 1 << 20 || left <= -(1 << 20))\n        __builtin_trap();\n"
    "    b = (b & ~(0x3fffffull << 41)) | (unsigned long long)(left + (1 << 20)) << 41;\n}\n"
    "static void emulated_arrive(unsigned at, unsigned bytes)\n{\n    emulated_expect(at, bytes);\n"
    "    unsigned long long &b = emulated_mbarrier(at);\n    if (!(b & 0xfffff))\n        __builtin_trap();\n    b--;\n"
    "    emulated_phase_end(b);\n}\n"
    "static void emulated_copy_panel(unsigned to, const void *map, int x, int y, int z, unsigned barrier)\n{\n"
    "    const unsigned long long *m = (const unsigned long long *)map;\n"
    "    if (emulated_npanel == 256 || to % 128 || (unsigned long long)map % 64 || m[0] != 0x70616d726f736e65ull)\n"
    "        __builtin_trap();\n    emulated_steps++;\n"
    "    emulated_panels[emulated_npanel++] = {to, barrier, m, {x, y, z}};\n}\n"
    "static void emulated_land(const emulated_panel_copy &p)\n{\n    const unsigned long long *m = p.map;\n"
    "    unsigned n = 0;\n    for (unsigned c = 0; c < m[9]; c++)\n        for (unsigned b = 0; b < m[8]; b++)\n"
    "            for (unsigned a = 0; a < m[7]; a++, n += 2) {\n"
    "                long long i[3] = {p.at[0] + (long long)a, p.at[1] + (long long)b, p.at[2] + (long long)c};\n"
    "                bool in = true;\n                for (unsigned d = 0; d < 3; d++)\n"
    "                    in &= i[d] >= 0 && i[d] < (long long)m[2 + d];\n"
    "                unsigned at = p.to + n;\n"
    "                *(unsigned short *)(emulated_arena + (at ^ (at >> 7 & 7) << 4)) =\n"
    "                    in ? *(unsigned short *)(m[1] + i[0] * 2 + i[1] * m[5] + i[2] * m[6]) : 0;\n            }\n"
    "    emulated_expect(p.barrier, -(long long)n);\n    emulated_phase_end(emulated_mbarrier(p.barrier));\n}\n"
    "static unsigned emulated_test(unsigned at, unsigned parity)\n{\n    unsigned left = 0;\n"
    "    for (unsigned i = 0; i < emulated_npanel; i++)\n        if (emulated_panels[i].barrier == at)\n"
    "            emulated_land(emulated_panels[i]);\n        else\n"
    "            emulated_panels[left++] = emulated_panels[i];\n    emulated_npanel = left;\n"
    "    unsigned long long b = *(unsigned long long *)(emulated_arena + at);\n"
    "    if (!(b >> 63))\n        __builtin_trap();\n    if ((b >> 40 & 1) != parity)\n        return 1;\n"
    "    emulated_spin(emulated_steps);\n    return 0;\n}\n";

void gpu_map_make(uint64_t word[16], const void *address, const uint64_t size[3], const uint64_t step[2],
                  const unsigned box[3])
{
    memset(word, 0, 16 * sizeof *word);
    word[0] = GPU_MAP;
    word[1] = (uint64_t)(uintptr_t)address;
    memcpy(word + 2, size, 3 * sizeof *size);
    memcpy(word + 5, step, 2 * sizeof *step);
    for (unsigned d = 0; d < 3; d++)
        word[7 + d] = box[d];
}

/* PTX: a fence must stand between an access to a register and a wgmma that uses it, except between wgmma with the same
 * sums.  So the text from the last fence up to the wgmma `s`, whose registers are named from `list` to `end`, has none
 * of these names but in other wgmma. */
static bool is_fenced(const char *text, const char *s, const char *list, const char *end)
{
    static const char fence[] = "products_fence();\n";
    const char *from = NULL;
    for (const char *f = text; (f = strstr(f, fence)) && f < s; f += strlen(fence))
        from = f;
    for (const char *p = list; from && (p = strstr(p, "(v")) && p < end; p++) {
        size_t n = strcspn(p + 1, ")");
        for (const char *q = from, *line; q < s; q = line + 1) {
            line = strchr(q, '\n');
            if (strstr(q, "wgmma.mma_async") > line || !strstr(q, "wgmma.mma_async"))
                for (const char *x = q; x + n < line; x++)
                    if (!strncmp(x, p + 1, n) && strchr(" ,;)", x[n]) && memchr(p, '_', n))
                        return false;
        }
    }
    return from;
}

/* A statement of wgmma as a call: its sums are all that stands between its first and its last "+f", which become the
 * addresses of the variables.  Behind it. */
static const char *write_wgmma(FILE *f, const char *text, const char *s)
{
    const char *end = strstr(s, ");\n") + strlen(");\n"), *list = strstr(s, "\"+f\"("), *in = strstr(list, " : \"");
    char a[4][32], b[32];
    int turned_a = 0, turned_b = 0;
    const char *signs = strstr(s, ", 1, 1, ");
    bool adds = memcmp(signs - 3, ", 0", 3); /* else the product is stored */
    signs += adds ? 3 : 0;
    int flags = sscanf(signs, ", 1, 1, %d, %d", &turned_a, &turned_b);
    int places = sscanf(in, " : \"l\"(%31[a-z0-9_]), \"l\"(%31[a-z0-9_])", a[0], b);
    int registers = sscanf(in, " : \"r\"(%31[a-z0-9_]), \"r\"(%31[a-z0-9_]), \"r\"(%31[a-z0-9_]), \"r\"(%31[a-z0-9_]), "
                           "\"l\"(%31[a-z0-9_])", a[0], a[1], a[2], a[3], b);
    if ((!(flags == 2 && places == 2) && !(flags == 1 && registers == 5)) || !is_fenced(text, s, list, end)) {
        fprintf(stderr, "a wgmma whose registers no fence orders: %.400s\n", s);
        abort();
    }
    fprintf(f, "{ float *const d[] = {");
    for (const char *p = list; p < in; p++)
        if (!strncmp(p, "\"+f\"", 4)) {
            fputc('&', f);
            p += 3;
        } else {
            fputc(*p, f);
        }
    const char *bf16 = strstr(s, ".f32.bf16.");
    fprintf(f, "}; emulated_wgmma({%d, %d, ", adds, bf16 && bf16 < list);
    if (registers == 5)
        fprintf(f, "true, false, %d, 0, 0, {%s, %s, %s, %s}, 0, %s}, d); }\n", turned_a, a[0], a[1], a[2], a[3], b);
    else
        fprintf(f, "false, %d, %d, 0, 0, {}, %s, %s}, d); }\n", turned_a, turned_b, a[0], b);
    return end;
}

void gpu_shim_write(FILE *f, const char *text)
{
    fprintf(f, "%s%s%s%s%s", gpu_shim, matrix_units, copies, wgmma, phases);
    gpu_shim_text(f, text);
}

/* PTX as calls, by how the statement begins. */
void gpu_shim_text(FILE *f, const char *text)
{
    static const char products[] = "asm volatile(\"wgmma.mma_async.sync.aligned.m64n";
    static const char end[] = ");\n";
    static const char *const ptx[][2] = {
        {"asm(\"cvt.f32.f16 ", "x = f32(bits<_Float16, unsigned short>(h));\n"},
        {"asm(\"cvt.rn.f16.f32 ", "h = bits<unsigned short, _Float16>(_Float16(x));\n"},
        {"asm(\"ex2.approx.ftz.f32 ", "y = exp2f(x);\n"},
        {"asm(\"rcp.approx.ftz.f32 ", "y = 1 / x;\n"},
        {"asm(\"cvt.rn.bf16.f32 ", ";\n"},
        {"asm(\"max.NaN.f32 ", "y = b < a || a != a ? a : b;\n"},
        {"asm(\"cvt.rn.f16x2.f32 ", "x = f16_of_f32(low) | u32(f16_of_f32(high)) << 16;\n"},
        {"asm(\"cvt.rn.bf16x2.f32 ", "x = bf16_of_f32(low) | u32(bf16_of_f32(high)) << 16;\n"},
        {"asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.f16.",
         "emulated_ptx_mma(false, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1);\n"},
        {"asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.bf16.",
         "emulated_ptx_mma(true, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1);\n"},
        {"asm volatile(\"ldmatrix.sync.aligned.m8n8.x2.shared", "emulated_rows(2, false, r0, r1, r0, r1, row);\n"},
        {"asm volatile(\"ldmatrix.sync.aligned.m8n8.x2.trans", "emulated_rows(2, true, r0, r1, r0, r1, row);\n"},
        {"asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.shared", "emulated_rows(4, false, r0, r1, r2, r3, row);\n"},
        {"asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.trans", "emulated_rows(4, true, r0, r1, r2, r3, row);\n"},
        {"asm volatile(\"cp.async.ca.shared.global [%0 + %3], [%1 + %4], 4,",
         "emulated_copy((char *)to + by, (const char *)from + far, 4, there);\n"},
        {"asm volatile(\"cp.async.ca.shared.global [%0 + %3], [%1 + %4], 8,",
         "emulated_copy((char *)to + by, (const char *)from + far, 8, there);\n"},
        {"asm volatile(\"cp.async.cg.shared.global [%0 + %3], [%1 + %4], 16,",
         "emulated_copy((char *)to + by, (const char *)from + far, 16, there);\n"},
        {"asm volatile(\"st.global.v4.b32", "__builtin_memcpy(to, from, 16);\n"},
        {"asm volatile(\"cp.async.commit_group;", "emulated_commit();\n"},
        {"asm volatile(\"cp.async.wait_group ", "emulated_wait(left);\n"},
        {"asm volatile(\"wgmma.fence", ";\n"}, {"asm volatile(\"\" : ", ";\n"},
        {"asm volatile(\"wgmma.commit", "emulated_products[threadIdx.x].batch++;\n"},
        {"asm volatile(\"wgmma.wait", "emulated_products_wait(left);\n"},
        {"asm volatile(\"mbarrier.init.", "emulated_phases_begin(shared_address(b), arrivals);\n"},
        {"asm volatile(\"mbarrier.inval.", "emulated_phases_end(shared_address(b));\n"},
        {"asm volatile(\"mbarrier.arrive.expect_tx.", "emulated_arrive(shared_address(b), bytes);\n"},
        {"asm volatile(\"mbarrier.arrive.shared", "emulated_arrive(shared_address(b), 0);\n"},
        {"asm volatile(\"{\\n.reg .pred p;\\nmbarrier.try_wait.parity.",
         "done = emulated_test(shared_address(b), parity);\n"},
        {"asm volatile(\"cp.async.bulk.tensor.3d.",
         "emulated_copy_panel(shared_address(to), map, x, y, z, shared_address(b));\n"},
        {"asm volatile(\"setmaxnreg.", ";\n"}, {"asm volatile(\"bar.sync 1, ", "emulated_barrier(1, n);\n"},
        {"asm volatile(\"fence.proxy", "emulated_copies[threadIdx.x].unfenced = false;\n"}};
    for (const char *s = text; *s;) {
        if (!strncmp(s, products, strlen(products))) {
            s = write_wgmma(f, text, s);
            continue;
        }
        unsigned i = 0, n = sizeof ptx / sizeof *ptx;
        while (i < n && strncmp(s, ptx[i][0], strlen(ptx[i][0])))
            i++;
        if (i < n)
            fputs(ptx[i][1], f);
        else
            fputc(*s, f);
        s = i < n ? strstr(s, end) + strlen(end) : s + 1;
    }
}

static struct {
    ucontext_t scheduler, thread[GPU_BLOCK_THREADS];
    char *stack[GPU_BLOCK_THREADS];
    bool ended[GPU_BLOCK_THREADS], spins[GPU_BLOCK_THREADS];
    unsigned now, waits[GPU_BLOCK_THREADS]; /* waits: threads that its barrier is for; 0: it is at none */
    unsigned id[GPU_BLOCK_THREADS];         /* of its barrier */
    unsigned long long steps;               /* of mbarriers */
    unsigned long long given[GPU_BLOCK_THREADS];
    const struct gpu_module_code *m;
    void (*call)(void *ctx);
    void *ctx;
} block;

static void give_way(void)
{
    unsigned me = block.now;
    swapcontext(&block.thread[me], &block.scheduler);
    *block.m->thread = me;
}

static void barrier(unsigned id, unsigned threads)
{
    block.id[block.now] = id;
    block.waits[block.now] = threads;
    give_way();
}

static void barrier_of_all(void) { barrier(0, *block.m->size); }

/* Lets the other threads run until the mbarrier's phase is complete. */
static void spin(unsigned long long steps)
{
    block.steps = steps;
    block.spins[block.now] = true;
    give_way();
}

/* Of 64 threads at a time: subgroups of both sizes exchange values, and other roles of the block do not. */
static unsigned long long exchange(unsigned long long x, unsigned from)
{
    enum { GROUP = 64, FIRST_ID = 64 };
    unsigned first = block.now / GROUP * GROUP, left = *block.m->size - first, n = left < GROUP ? left : GROUP;
    block.given[block.now] = x;
    barrier(FIRST_ID + first / GROUP, n);
    unsigned long long y = block.given[from % GPU_BLOCK_THREADS];
    barrier(FIRST_ID + first / GROUP, n);
    return y;
}

bool gpu_module_code(void *so, struct gpu_module_code *m)
{
    void (**all)(void) = dlsym(so, "__syncthreads"), (**some)(unsigned, unsigned) = dlsym(so, "emulated_barrier");
    void (**spins)(unsigned long long) = dlsym(so, "emulated_spin");
    unsigned long long (**exchanges)(unsigned long long, unsigned) = dlsym(so, "emulated_exchange");
    m->thread = dlsym(so, "threadIdx");
    m->block = dlsym(so, "blockIdx");
    m->grid = dlsym(so, "gridDim");
    m->size = dlsym(so, "blockDim");
    m->late = dlsym(so, "emulated_late");
    m->unfinished = dlsym(so, "emulated_unfinished");
    if (!m->late || !m->unfinished)
        return false;
    if (!all || !some || !spins || !exchanges || !m->thread || !m->block || !m->grid || !m->size)
        return false;
    *all = barrier_of_all;
    *some = barrier;
    *spins = spin;
    *exchanges = exchange;
    return true;
}

static void thread_main(void)
{
    block.call(block.ctx);
    block.ended[block.now] = true;
    swapcontext(&block.thread[block.now], &block.scheduler);
}

/* Not in gpu_block_run: GCC takes getcontext for a setjmp, after which the variables around it are lost. */
static void start_thread(unsigned t)
{
    if (!block.stack[t] && !(block.stack[t] = malloc(STACK)))
        abort();
    getcontext(&block.thread[t]);
    block.thread[t].uc_stack.ss_sp = block.stack[t];
    block.thread[t].uc_stack.ss_size = STACK;
    block.thread[t].uc_link = NULL;
    makecontext(&block.thread[t], thread_main, 0);
    block.ended[t] = false;
    block.waits[t] = 0;
}

/* Lets the threads of a barrier pass when as many are there as it is for.  Returns whether any do. */
static bool pass_barriers(unsigned threads)
{
    bool any = false;
    for (unsigned t = 0; t < threads; t++) {
        unsigned there = 0, id = block.id[t], of = block.waits[t];
        for (unsigned u = 0; of && u < threads; u++)
            there += block.waits[u] == of && block.id[u] == id && !block.ended[u];
        if (!of || there != of)
            continue;
        for (unsigned u = 0; u < threads; u++)
            if (block.waits[u] == of && block.id[u] == id)
                block.waits[u] = 0;
        any = true;
    }
    return any;
}

bool gpu_block_run(const struct gpu_module_code *m, unsigned threads, bool backwards, void (*call)(void *ctx),
                   void *ctx)
{
    block.m = m;
    block.call = call;
    block.ctx = ctx;
    *m->size = threads;
    *m->late = backwards;
    for (unsigned t = 0; t < threads; t++)
        start_thread(t);
    for (;;) {
        bool moves = false;
        unsigned left = 0;
        unsigned long long steps = block.steps;
        for (unsigned i = 0; i < threads; i++) {
            unsigned t = backwards ? threads - 1 - i : i;
            if (block.ended[t] || block.waits[t])
                continue;
            block.spins[t] = false;
            block.now = *m->thread = t;
            swapcontext(&block.scheduler, &block.thread[t]);
            moves |= !block.spins[t];
        }
        for (unsigned t = 0; t < threads; t++)
            left += !block.ended[t];
        if (!left)
            return !*m->unfinished;
        moves |= pass_barriers(threads) || block.steps != steps;
        if (!moves)
            return false; /* some have ended, or are at another barrier */
    }
}

void gpu_block_free(void)
{
    for (unsigned t = 0; t < GPU_BLOCK_THREADS; t++) {
        free(block.stack[t]);
        block.stack[t] = NULL;
    }
}
