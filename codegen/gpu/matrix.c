/* The matrix units of GPUs: which architectures have them, and who holds what.  Here alone is it said how the elements of a
 * tile are spread over the lanes of a team. */
#include "source.h"
#include <stdlib.h>
#include <string.h>

/* NVIDIA since sm_80: mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type").  In the
 * words of its figures a lane is group = lane / 4, number = lane % 4 of it:
 *     a   row group or, a2 a3 a6 a7, 8 more; column 2 number + 0, 1 and, a4 to a7, 8 more
 *     b   row 2 number + 0, 1 and, b2 b3, 8 more; column group
 *     sum row group or, c2 c3, 8 more; column 2 number + 0, 1 */
const struct matrix_unit matrix_nvidia = {
    .caps = {.team = 32, .m = 16, .n = 8, .k = 16, .dtypes = 1u << KL_F16 | 1u << KL_BF16},
    .a = {8, {4, 8, 1, {0, 0, 8, 8, 0, 0, 8, 8}}, {1, 4, 2, {0, 1, 0, 1, 8, 9, 8, 9}}},
    .b = {4, {1, 4, 2, {0, 1, 8, 9}}, {4, 8, 1, {0}}},
    .sum = {4, {4, 8, 1, {0, 0, 8, 8}}, {1, 4, 2, {0, 1, 0, 1}}},
};

/* AMD since CDNA 2: v_mfma_f32_16x16x16_f16 and _bf16_1k (AMD's ISA documents, "Matrix arithmetic instructions": a wave of 64
 * lanes, one block).
 *     a   row lane % 16, column 4 (lane / 16) + 0 .. 3
 *     b   row 4 (lane / 16) + 0 .. 3, column lane % 16
 *     sum row 4 (lane / 16) + 0 .. 3, column lane % 16 */
const struct matrix_unit matrix_amd = {
    .caps = {.team = 64, .m = 16, .n = 16, .k = 16, .dtypes = 1u << KL_F16 | 1u << KL_BF16},
    .a = {4, {1, 16, 1, {0}}, {16, 4, 4, {0, 1, 2, 3}}},
    .b = {4, {16, 4, 4, {0, 1, 2, 3}}, {1, 16, 1, {0}}},
    .sum = {4, {16, 4, 4, {0, 1, 2, 3}}, {1, 16, 1, {0}}},
};

bool matrix_nvidia_has(const char *arch) { return !strncmp(arch, "sm_", 3) && atoi(arch + 3) >= 80; }

bool matrix_amd_has(const char *arch)
{
    static const char *const cdna[] = {"gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"};
    for (unsigned i = 0; i < sizeof cdna / sizeof *cdna; i++)
        if (!strncmp(arch, cdna[i], 6))
            return true;
    return false;
}
