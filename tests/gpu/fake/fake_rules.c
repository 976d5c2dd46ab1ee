/* The limits of NVIDIA's driver and its images (fake_rules.h). */
#define _GNU_SOURCE
#include "fake_rules.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- tensor maps ---- */

enum { MAP_RANK = 3, ELEMENT_BYTES = 2, SWIZZLE_128 = 3, ROW_BYTES = 128, ALIGNMENT = 16, MAX_BOX = 256 };

/* Sizes of the array and the box: globalDim is 1 to 2^32, boxDim 1 to 256, elementStrides 1 to 8 (Kiln uses 1). */
static bool map_sizes_are_valid(const struct map_request *m)
{
    bool ok = true;
    for (unsigned d = 0; d < MAP_RANK; d++)
        ok &= m->size[d] && m->size[d] <= UINT64_C(1) << 32 && m->box[d] && m->box[d] <= MAX_BOX &&
              m->element_step[d] == 1;
    return ok;
}

/* globalStrides: multiples of 16 below 2^40, each a multiple of the one before it; a row is not longer than its
 * stride. */
static bool map_strides_are_valid(const struct map_request *m)
{
    bool ok = m->step[0] >= ELEMENT_BYTES * m->size[0];
    for (unsigned d = 0; d < MAP_RANK - 1 && ok; d++)
        ok = m->step[d] && m->step[d] % ALIGNMENT == 0 && m->step[d] < UINT64_C(1) << 40 &&
             (!d || m->step[d] % m->step[d - 1] == 0);
    return ok;
}

bool fake_map_is_valid(const struct map_request *m)
{
    enum { FLOAT16 = 6, BFLOAT16 = 9, PROMOTIONS = 4 };
    return (m->dtype == FLOAT16 || m->dtype == BFLOAT16) && m->rank == MAP_RANK &&
           (uintptr_t)m->map % _Alignof(gpu_map) == 0 && (uintptr_t)m->address % ALIGNMENT == 0 && !m->interleave &&
           m->swizzle == SWIZZLE_128 && m->promotion >= 0 && m->promotion < PROMOTIONS && !m->fill &&
           map_sizes_are_valid(m) && map_strides_are_valid(m) && ELEMENT_BYTES * m->box[0] == ROW_BYTES;
}

uint64_t fake_map_bytes(const struct map_request *m)
{
    return m->size[0] * ELEMENT_BYTES + (m->size[1] - 1) * m->step[0] + (m->size[2] - 1) * m->step[1];
}

/* ---- images ---- */

/* Is the image an ELF file?  fake_compiler.c has put its length where a loader wants zeros. */
void *fake_image_load(const void *image)
{
    enum { LENGTH_AT = 9, LENGTH_BYTES = 7 };
    static const char zeros[LENGTH_BYTES];
    size_t bytes = 0;
    if (memcmp(image, "\177ELF", 4))
        return NULL;
    memcpy(&bytes, (const char *)image + LENGTH_AT, LENGTH_BYTES);
    char path[] = "/tmp/kiln-fake-XXXXXX"; /* the loader takes files of one name for one library */
    int fd = mkstemp(path);
    void *so = NULL;
    if (fd >= 0 && write(fd, image, bytes) == (ssize_t)bytes && pwrite(fd, zeros, sizeof zeros, LENGTH_AT) ==
        (ssize_t)sizeof zeros)
        so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (fd >= 0)
        close(fd);
    unlink(path);
    return so;
}
