/* .npy: a magic number, a Python dict as text ({'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }),
 * then the elements. */
#include "npy.h"
#include <inttypes.h>
#include <string.h>

static const char magic[] = "\x93NUMPY";

/* NumPy's name of a dtype without the byte order: f4, u1, ...  It has no bf16. */
static void type_code(unsigned dtype, char buf[4])
{
    char kind = dtype_kind(dtype) == 'B' ? 'b' : (char)(dtype_kind(dtype) - 'A' + 'a');
    snprintf(buf, 4, "%c%zu", kind, dtype_size(dtype));
}

struct reader { const char *p, *end; struct err *e; };

static bool bad(struct reader *r, const char *why) { return err_set(r->e, KL_ERR_IO, "not a .npy array: %s", why); }

static bool npy_take(struct reader *r, const char *token)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n'))
        r->p++;
    size_t n = strlen(token);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, token, n))
        return false;
    r->p += n;
    return true;
}

static bool read_descr(struct reader *r, struct npy *out)
{
    char order, code[4];
    if (!npy_take(r, "'") || r->end - r->p < 4)
        return bad(r, "a structured or missing dtype");
    order = *r->p++;
    for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++) {
        type_code(dtype, code);
        if (dtype == KL_BF16 || memcmp(r->p, code, 2) || r->p[2] != '\'')
            continue;
        if (order != '<' && order != '|' && !(order == '=' || dtype_size(dtype) == 1))
            return bad(r, "big-endian elements");
        out->dtype = dtype;
        r->p += 3;
        return true;
    }
    return err_set(r->e, KL_ERR_IO, "a .npy array of dtype %.3s, which Kiln does not have", r->p - 1);
}

static bool read_shape(struct reader *r, struct shape *s)
{
    if (!npy_take(r, "("))
        return bad(r, "its shape is no tuple");
    while (!npy_take(r, ")")) {
        uint64_t d = 0;
        if ((s->rank && !npy_take(r, ",")))
            return bad(r, "its shape is broken");
        if (s->rank && npy_take(r, ")"))
            break;
        if (s->rank == KL_MAX_RANK)
            return err_set(r->e, KL_ERR_IO, "a .npy array of more than %d dimensions", KL_MAX_RANK);
        npy_take(r, "");
        const char *start = r->p;
        for (; r->p < r->end && *r->p >= '0' && *r->p <= '9' && d < UINT64_C(1) << 59; r->p++)
            d = d * 10 + (unsigned)(*r->p - '0');
        if (r->p == start || d >= UINT64_C(1) << 59)
            return bad(r, "a dimension is missing or too large");
        s->dim[s->rank++] = (int64_t)d;
    }
    return true;
}

static bool read_dict(struct reader *r, struct npy *out)
{
    bool descr = false, order = false, shape = false;
    if (!npy_take(r, "{"))
        return bad(r, "its header is no dict");
    while (!npy_take(r, "}")) {
        if (!descr && npy_take(r, "'descr':")) {
            descr = true;
            if (!read_descr(r, out))
                return false;
        } else if (!order && npy_take(r, "'fortran_order':")) {
            order = true;
            if (!npy_take(r, "False"))
                return bad(r, "Fortran order (numpy.ascontiguousarray makes C order)");
        } else if (!shape && npy_take(r, "'shape':")) {
            shape = true;
            if (!read_shape(r, &out->shape))
                return false;
        } else {
            return bad(r, "its header has an unknown or repeated key");
        }
        npy_take(r, ",");
    }
    return (descr && order && shape) || bad(r, "its header lacks descr, fortran_order or shape");
}

static bool is_bool_data(const struct npy *a)
{
    for (size_t i = 0; a->dtype == KL_BOOL && i < a->bytes; i++)
        if ((unsigned char)a->data[i] > 1)
            return false;
    return true;
}

bool npy_parse(const char *bytes, size_t len, struct npy *out, struct err *e)
{
    const unsigned char *b = (const unsigned char *)bytes;
    struct reader r = {.e = e};
    *out = (struct npy){0};
    if (len < 12 || memcmp(bytes, magic, 6))
        return bad(&r, "the magic number is missing");
    size_t start = b[6] == 1 ? 10 : 12, header = b[8] | (size_t)b[9] << 8;
    if (b[6] < 1 || b[6] > 3)
        return bad(&r, "its version is unknown");
    if (b[6] > 1)
        header |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (header > len - start)
        return bad(&r, "the file ends inside the header");
    r.p = bytes + start;
    r.end = r.p + header;
    int64_t count;
    if (!read_dict(&r, out))
        return false;
    if (!shape_numel(&out->shape, &count))
        return bad(&r, "its shape has too many elements");
    out->data = bytes + start + header;
    out->bytes = (size_t)count * dtype_size(out->dtype);
    size_t there = len - start - header;
    if (there != out->bytes)
        return err_set(e, KL_ERR_IO, "a .npy array with %zu bytes of elements where its shape needs %zu", there,
                       out->bytes);
    return is_bool_data(out) || bad(&r, "a bool that is neither 0 nor 1");
}

bool npy_write(FILE *f, unsigned dtype, const struct shape *s, const void *data)
{
    char code[4], dims[256] = "", header[512];
    size_t n = 0;
    for (uint32_t i = 0; i < s->rank; i++)
        n += (size_t)snprintf(dims + n, sizeof dims - n, "%" PRId64 "%s", s->dim[i],
                              s->rank == 1 ? "," : i + 1 < s->rank ? ", " : "");
    type_code(dtype, code);
    int text = snprintf(header, sizeof header, "{'descr': '%c%s', 'fortran_order': False, 'shape': (%s), }",
                        dtype_size(dtype) == 1 ? '|' : '<', code, dims);
    size_t padded = ((size_t)text + 1 + 10 + 63) / 64 * 64 - 10; /* the elements start at a multiple of 64 */
    unsigned char lead[4] = {1, 0, (unsigned char)(padded & 255), (unsigned char)(padded >> 8)};
    size_t bytes = (size_t)shape_count(s) * dtype_size(dtype);
    return fwrite(magic, 1, 6, f) == 6 && fwrite(lead, 1, 4, f) == 4 &&
           fprintf(f, "%-*s\n", (int)padded - 1, header) == (int)padded && fwrite(data, 1, bytes, f) == bytes;
}
