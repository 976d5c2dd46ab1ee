/* Blocks of GGUF as quantized tensors: integers in one array, scales and minimums in others, as <kiln/storage.h> has
 * them.  The bytes of the file are copied once. */
#define _DEFAULT_SOURCE /* madvise */
#include "gguf.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PART_INTS, PART_SECOND, PART_THIRD, PART_SCALE, PART_MINIMUM, PART_SUPER_SCALE, PART_SUPER_MINIMUM, GGUF_PARTS };
enum { ALTERNATE = 16 };

/* A tensor whose blocks are taken apart. */
struct split_tensor {
    const struct blocks_kind *kind;
    const uint8_t *from;                /* the blocks */
    bool interleaved;
    kl_qtype type;                      /* of the integers in memory */
    int64_t rows, row;                  /* rows, and elements of one */
    uint8_t *part[GGUF_PARTS];          /* NULL: there is none */
    unsigned bytes[GGUF_PARTS];         /* of an element */
    int64_t each[GGUF_PARTS];           /* elements of the tensor that have one of the part */
    int64_t count[GGUF_PARTS];          /* elements of the part for one row */
};

static bool has_super(const struct blocks_kind *k) { return k->scales >= SCALES_SUPER; }
static bool has_minimum(const struct blocks_kind *k)
{
    return k->scales == SCALES_F16_MINIMUM || k->scales == SCALES_SUPER_MINIMUM;
}

/* Rows are taken apart together: those that alternate, or one.  Where element `at` of a part of such a group lies,
 * those of its rows side by side. */
static uint8_t *part_place(const struct split_tensor *s, int part, int64_t group, int64_t at)
{
    int64_t rows = s->interleaved ? ALTERNATE : 1;
    return s->part[part] + (size_t)((group * s->count[part] + at) * rows) * s->bytes[part];
}

/* Stores `count` scales or minimums of each row of a group, from number `first` on.  values: those of its first row,
 * a byte each, or two bytes that are the same for all; those of the next row lie in the next struct blocks_parts. */
static void put_scales(const struct split_tensor *s, int part, int64_t group, int64_t first, unsigned count,
                       const uint8_t *values, bool same)
{
    unsigned rows = s->interleaved ? ALTERNATE : 1;
    uint8_t *to = s->part[part] ? part_place(s, part, group, first) : NULL;
    for (unsigned i = 0; i < count && to; i++)
        for (unsigned r = 0; r < rows; r++) {
            const uint8_t *from = values + r * sizeof(struct blocks_parts) + (same ? 0 : i);
            *to++ = from[0];
            if (same)
                *to++ = from[1];
        }
}

/* Stores the bytes of a part for a block of each row.  values: those of the first row; those of the next one lie in the
 * next struct blocks_parts. */
static void put_ints(const struct split_tensor *s, int part, int64_t group, int64_t block, const uint8_t *values)
{
    size_t n = s->kind->elements / (size_t)s->each[part];
    uint8_t *to = part_place(s, part, group, block * (int64_t)n);
    if (!s->interleaved) {
        memcpy(to, values, n);
        return;
    }
    for (size_t i = 0; i < n; i += 4)
        for (int r = 0; r < ALTERNATE; r++, to += 4)
            memcpy(to, values + (size_t)r * sizeof(struct blocks_parts) + i, 4);
}

/* Stores a block of each of the rows that are taken apart together. */
static void put_block(const struct split_tensor *s, int64_t group, int64_t block, const struct blocks_parts *p)
{
    const struct blocks_kind *k = s->kind;
    unsigned subs = k->elements / k->sub_block;
    bool super = has_super(k); /* each sub-block has a number, else all of them the block's one */
    put_ints(s, PART_INTS, group, block, p->q);
    for (int i = 0; i < 2 && s->part[PART_SECOND]; i++)
        put_ints(s, PART_SECOND + i, group, block, p->more[i]);
    put_scales(s, PART_SCALE, group, block * subs, subs, super ? (const uint8_t *)p->scale : p->d, !super);
    put_scales(s, PART_MINIMUM, group, block * subs, subs, super ? p->minimum : p->m, !super);
    put_scales(s, PART_SUPER_SCALE, group, block, 1, p->d, true);
    put_scales(s, PART_SUPER_MINIMUM, group, block, 1, p->m, true);
}

/* Takes the groups of rows from number `begin` to `end` apart. */
static void split_groups(void *ctx, int64_t begin, int64_t end)
{
    const struct split_tensor *s = ctx;
    struct blocks_parts parts[ALTERNATE];
    int64_t rows = s->interleaved ? ALTERNATE : 1, blocks = s->row / s->kind->elements;
    size_t row_bytes = (size_t)blocks * s->kind->bytes;
    for (int64_t group = begin; group < end; group++)
        for (int64_t b = 0; b < blocks; b++) {
            const uint8_t *from = s->from + (size_t)(group * rows) * row_bytes + (size_t)b * s->kind->bytes;
            for (int64_t r = 0; r < rows; r++, from += row_bytes) {
                s->kind->split(from, &parts[r]);
                if (s->type == KL_Q_I6)
                    blocks_pack_six(&parts[r]);
            }
            put_block(s, group, b, parts);
        }
}

static void split_all(struct split_tensor *s)
{
    enum { PIECE = 1 << 18 }; /* elements that are worth a thread */
    int64_t rows = s->interleaved ? ALTERNATE : 1;
    if (s->row) /* else there is nothing in them, however many a file says that there are */
        kl_parallel(s->rows / rows, PIECE / (rows * s->row + 1) + 1, split_groups, s);
}

/* Memory for vectors of 64 bytes, in huge pages where it is large: these take a tenth of the time of small ones to
 * come from the system, and products read them faster.  It is given back by free. */
static void *part_alloc(size_t bytes)
{
    enum { VECTOR = 64, HUGE_PAGE = 2 << 20 };
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : VECTOR;
    void *p = NULL;
    if (posix_memalign(&p, align, bytes) != 0)
        return NULL;
#if defined(MADV_HUGEPAGE)
    if (align == HUGE_PAGE)
        madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}

/* Allocates the parts; false: out of memory. */
static bool split_begin(struct split_tensor *s)
{
    const struct blocks_kind *k = s->kind;
    const bool six = s->type == KL_Q_I6, super = has_super(k), minimum = has_minimum(k);
    const bool has[GGUF_PARTS] = {true, six, six, true, minimum, super, minimum && super};
    bool ok = true;
    for (int i = 0; i < GGUF_PARTS; i++) {
        bool ints = i < PART_SCALE;
        s->bytes[i] = ints || (i <= PART_MINIMUM && super) ? 1 : 2;
        s->each[i] = ints ? (six ? 4 : s->type == KL_Q_I8 ? 1 : 2) : i <= PART_MINIMUM ? k->sub_block : k->elements;
        s->count[i] = s->row / s->each[i];
        if (has[i])
            ok &= (s->part[i] = part_alloc((size_t)(s->rows * s->count[i]) * s->bytes[i] + 1)) != NULL;
    }
    return ok;
}

/* A part as a tensor, which owns its memory. */
static kl_tensor part_tensor(const struct split_tensor *s, int part, const struct file_entry *e, kl_device device,
                             kl_dtype dtype)
{
    int rank = e->is.rank, last = rank - 1;
    int64_t dims[KL_MAX_RANK], n = s->count[part];
    if (!s->part[part])
        return kl_none;
    memcpy(dims, e->is.dims, sizeof dims);
    dims[last] = n;
    if (s->interleaved) {
        bool ints = part < PART_SCALE;
        rank = ints ? 4 : 3;
        dims[0] = s->rows / ALTERNATE, dims[1] = ints ? n / 4 : n, dims[2] = ALTERNATE, dims[3] = 4;
    }
    return kl_wrap(device, dtype, rank, dims, s->part[part], free, s->part[part]);
}

/* The scales widened to f32, in memory of their own; NULL: out of memory. */
static uint8_t *wide_scales(const struct split_tensor *s)
{
    size_t n = (size_t)(s->rows * s->count[PART_SCALE]);
    float *wide = malloc(n * sizeof *wide + 1);
    for (size_t i = 0; wide && i < n; i++)
        wide[i] = blocks_half(s->part[PART_SCALE] + 2 * i);
    free(s->part[PART_SCALE]);
    return (uint8_t *)wide;
}

static kl_tensor tensor_of_parts(const struct split_tensor *s, const struct file_entry *e, kl_device device, bool wide)
{
    const struct blocks_kind *k = s->kind;
    kl_dtype half = k->scales == SCALES_BF16 ? KL_BF16 : KL_F16;
    kl_tensor ints = part_tensor(s, PART_INTS, e, device, s->type == KL_Q_I8 ? KL_I8 : KL_U8);
    kl_tensor scale = part_tensor(s, PART_SCALE, e, device, has_super(k) ? KL_I8 : wide ? KL_F32 : half), t;
    const kl_qscheme scheme = {.type = s->type, .axis = -1, .block = k->sub_block};
    kl_quantized_options o = {.interleaved = s->interleaved};
    o.second = part_tensor(s, PART_SECOND, e, device, KL_U8);
    o.third = part_tensor(s, PART_THIRD, e, device, KL_U8);
    o.minimum = part_tensor(s, PART_MINIMUM, e, device, has_super(k) ? KL_U8 : KL_F16);
    o.super_scale = part_tensor(s, PART_SUPER_SCALE, e, device, KL_F16);
    o.super_minimum = part_tensor(s, PART_SUPER_MINIMUM, e, device, KL_F16);
    t = wide ? kl_quantized(ints, scheme, scale, kl_none) : kl_quantized_with(ints, scheme, scale, &o);
    const kl_tensor parts[] = {ints, o.second, o.third, scale, o.minimum, o.super_scale, o.super_minimum};
    for (int i = 0; i < GGUF_PARTS; i++)
        if (parts[i].id)
            kl_release(parts[i]);
    return t;
}

/* Do products on the device read rows that alternate? */
static bool products_alternate(const struct file_entry *e, kl_device device)
{
    kl_device_kind kind = kl_device_kind_of(device);
    return (kind == KL_DEVICE_CPU || kind == KL_DEVICE_REF) && e->is.rank == 2 && e->is.dims[0] % ALTERNATE == 0;
}

kl_tensor blocks_tensor(kl_file *f, const struct file_entry *e, kl_device device, bool matrix)
{
    const struct blocks_kind *k = blocks_kind_of(e->blocks);
    struct split_tensor s = {.kind = k, .from = e->data, .row = e->is.dims[e->is.rank - 1], .rows = 1, .type = k->type};
    bool wide = !matrix && (e->blocks == BLOCKS_Q4_0 || e->blocks == BLOCKS_Q8_0);
    s.interleaved = matrix && products_alternate(e, device);
    if (s.interleaved && e->blocks == BLOCKS_Q6_K)
        s.type = KL_Q_I6;
    for (int i = 0; i + 1 < e->is.rank; i++) /* of no elements: the product may be any number */
        s.rows = __builtin_mul_overflow(s.rows, e->is.dims[i], &s.rows) ? 0 : s.rows;
    bool ok = split_begin(&s);
    if (ok) {
        split_all(&s);
        file_entry_forget(f, e);
        if (wide)
            ok = (s.part[PART_SCALE] = wide_scales(&s)) != NULL;
    }
    if (ok)
        return tensor_of_parts(&s, e, device, wide);
    for (int i = 0; i < GGUF_PARTS; i++)
        free(s.part[i]);
    return kl_failf(NULL, KL_ERR_MEMORY, "%.250s: out of memory", f->path), kl_none;
}
