/* Arrays on the host, and tensors as files hold them: TensorProto, with its data in one of several fields or in
 * another file. */
#include "onnx.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays ---- */

/* Also of an empty tensor the product of the other lengths must fit: strides are such products. */
static bool count_elements(int rank, const int64_t *dims, int64_t *count)
{
    int64_t product = 1;
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 0 || __builtin_mul_overflow(product, dims[i] ? dims[i] : 1, &product) ||
            product >= INT64_MAX / 16)
            return false;
        empty |= dims[i] == 0;
    }
    *count = empty ? 0 : product;
    return true;
}

/* Makes an array without memory for its elements. */
static struct array *array_empty(kl_dtype dtype, int rank, const int64_t *dims)
{
    int64_t count;
    if (rank > KL_MAX_RANK || !count_elements(rank, dims, &count))
        return NULL;
    struct array *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->dtype = dtype;
    a->rank = rank;
    a->count = count;
    atomic_init(&a->refs, 1);
    if (rank)
        memcpy(a->dims, dims, (size_t)rank * sizeof *dims);
    return a;
}

struct array *array_new(kl_dtype dtype, int rank, const int64_t *dims)
{
    struct array *a = array_empty(dtype, rank, dims);
    if (a && !(a->data = calloc((size_t)a->count + 1, kl_dtype_size(dtype)))) {
        array_unref(a);
        return NULL;
    }
    return a;
}

struct array *array_of_ints(int64_t n, const int64_t *v)
{
    struct array *a = array_new(KL_I64, 1, &n);
    if (a && n)
        memcpy(a->data, v, (size_t)n * sizeof *v);
    return a;
}

struct array *array_ref(struct array *a)
{
    if (a)
        atomic_fetch_add(&a->refs, 1);
    return a;
}

void array_unref(struct array *a)
{
    if (!a || atomic_fetch_sub(&a->refs, 1) != 1)
        return;
    if (a->file)
        mapping_unref(a->file);
    else
        free(a->data);
    free(a);
}

static double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double v = exponent ? 1024 + fraction : fraction;
    if (exponent == 31)
        v = fraction ? __builtin_nan("") : __builtin_inf();
    else
        v = __builtin_ldexp(v, (exponent ? exponent : 1) - 25);
    return h >> 15 ? -v : v;
}

double array_float(const struct array *a, int64_t i)
{
    uint64_t u = 0;
    float f;
    double d;
    if (i < 0 || i >= a->count)
        return 0;
    const char *p = (const char *)a->data + (size_t)i * kl_dtype_size(a->dtype);
    memcpy(&u, p, kl_dtype_size(a->dtype));
    switch (a->dtype) {
    case KL_I8: return (int8_t)u;
    case KL_I16: return (int16_t)u;
    case KL_I32: return (int32_t)u;
    case KL_I64: return (double)(int64_t)u;
    case KL_F16: return half_value((uint16_t)u);
    case KL_BF16: u <<= 16; /* fall through */
    case KL_F32: memcpy(&f, &u, sizeof f); return (double)f;
    case KL_F64: memcpy(&d, p, sizeof d); return d;
    default: return (double)u;
    }
}

int64_t array_int(const struct array *a, int64_t i)
{
    int64_t v;
    if (i < 0 || i >= a->count)
        return 0;
    if (a->dtype == KL_I64 || a->dtype == KL_U64) {
        memcpy(&v, (const char *)a->data + (size_t)i * sizeof v, sizeof v);
        return v;
    }
    double d = array_float(a, i);
    return d != d ? 0 : d >= 0x1p63 ? INT64_MAX : d < -0x1p63 ? INT64_MIN : (int64_t)d;
}

/* ---- element types ---- */

/* `bits`: of an element in a file, if Kiln holds it in a wider dtype; 0: the dtype has the same number. */
static const struct { const char *name; kl_dtype dtype; int bits; } element_types[] = {
    {"undefined", KL_DTYPE_COUNT, 0}, {"float", KL_F32, 0}, {"uint8", KL_U8, 0}, {"int8", KL_I8, 0},
    {"uint16", KL_U16, 0}, {"int16", KL_I16, 0}, {"int32", KL_I32, 0}, {"int64", KL_I64, 0},
    {"string", KL_DTYPE_COUNT, 0}, {"bool", KL_BOOL, 0}, {"float16", KL_F16, 0}, {"double", KL_F64, 0},
    {"uint32", KL_U32, 0}, {"uint64", KL_U64, 0}, {"complex64", KL_DTYPE_COUNT, 0}, {"complex128", KL_DTYPE_COUNT, 0},
    {"bfloat16", KL_BF16, 0}, {"float8e4m3fn", KL_F16, 8}, {"float8e4m3fnuz", KL_F16, 8}, {"float8e5m2", KL_F16, 8},
    {"float8e5m2fnuz", KL_F16, 8}, {"uint4", KL_U8, 4}, {"int4", KL_I8, 4}, {"float4e2m1", KL_F16, 4},
    {"float8e8m0", KL_F32, 8}, {"uint2", KL_U8, 2}, {"int2", KL_I8, 2}, {"float6e2m3", KL_DTYPE_COUNT, 0},
    {"float6e3m2", KL_DTYPE_COUNT, 0},
};
enum { ELEMENT_TYPES = sizeof element_types / sizeof *element_types };

static bool is_element_type(int32_t t) { return t >= 0 && t < ELEMENT_TYPES; }

kl_dtype onnx_dtype(int32_t t) { return is_element_type(t) ? element_types[t].dtype : KL_DTYPE_COUNT; }

kl_dtype onnx_held_dtype(int32_t t) { return t == ONNX_STRING ? KL_I64 : onnx_dtype(t); }

const char *onnx_dtype_name(int32_t t) { return is_element_type(t) ? element_types[t].name : "an unknown type"; }

bool onnx_is_widened(int32_t t) { return is_element_type(t) && element_types[t].bits != 0; }

int onnx_bits(int32_t t) { return is_element_type(t) ? element_types[t].bits : 0; }

/* ---- tensors in files ---- */

/* Reads elements from a field whose numbers may be wider. */
#define NARROW(type, from, n)                        \
    for (size_t i = 0; i < (n); i++)                 \
        ((type *)a->data)[i] = (type)(from)[i]

static bool copy_field(struct array *a, const Onnx__TensorProto *t)
{
    size_t n = (size_t)a->count;
    if (n == 0)
        return true; /* is_there: no field has numbers */
    switch (a->dtype) {
    case KL_F32:
        if (t->n_float_data != n)
            return false;
        memcpy(a->data, t->float_data, n * sizeof(float));
        return true;
    case KL_F64:
        if (t->n_double_data != n)
            return false;
        memcpy(a->data, t->double_data, n * sizeof(double));
        return true;
    case KL_I64:
        if (t->n_int64_data != n)
            return false;
        memcpy(a->data, t->int64_data, n * sizeof(int64_t));
        return true;
    case KL_U32: case KL_U64:
        if (t->n_uint64_data != n)
            return false;
        if (a->dtype == KL_U64)
            memcpy(a->data, t->uint64_data, n * sizeof(uint64_t));
        else
            NARROW(uint32_t, t->uint64_data, n);
        return true;
    default:
        break;
    }
    if (t->n_int32_data != n)
        return false;
    switch (kl_dtype_size(a->dtype)) {
    case 1: NARROW(uint8_t, t->int32_data, n); break;
    case 2: NARROW(uint16_t, t->int32_data, n); break;
    default: memcpy(a->data, t->int32_data, n * sizeof(int32_t)); break;
    }
    return true;
}

/* A number of bytes as external data says it: decimal digits. */
static bool external_number(const char *text, uint64_t *v)
{
    *v = 0;
    for (const char *p = text; *p; p++)
        if (*p < '0' || *p > '9' || __builtin_mul_overflow(*v, UINT64_C(10), v) ||
            __builtin_add_overflow(*v, (uint64_t)(*p - '0'), v))
            return false;
    return *text != 0;
}

/* Where the bytes of a tensor are. */
struct external { const char *location; uint64_t offset, length; };

static bool external_place(const Onnx__TensorProto *t, const char *name, struct external *e, struct file_error *why)
{
    uint64_t length;
    for (size_t i = 0; i < t->n_external_data; i++) {
        const Onnx__StringStringEntryProto *x = t->external_data[i];
        const char *key = x->key ? x->key : "", *value = x->value ? x->value : "";
        bool offset = !strcmp(key, "offset");
        if (!strcmp(key, "location")) {
            e->location = value;
        } else if (offset || !strcmp(key, "length")) {
            if (!external_number(value, offset ? &e->offset : &length))
                return file_fails(why, KL_ERR_IO, "tensor '%.200s': the %s of its external data is '%.50s', which is "
                                   "no number of bytes", name, key, value);
            if (!offset && length != e->length)
                return file_fails(why, KL_ERR_IO, "tensor '%.200s' has %llu bytes of external data, not %llu", name,
                                   (unsigned long long)length, (unsigned long long)e->length);
        }
    }
    if (t->has_raw_data || t->n_float_data + t->n_int32_data + t->n_int64_data + t->n_double_data + t->n_uint64_data)
        return file_fails(why, KL_ERR_IO, "tensor '%.200s' has data in the model and external data", name);
    return e->location || file_fails(why, KL_ERR_IO, "tensor '%.200s': its external data has no location", name);
}

static bool read_external(struct array *a, const Onnx__TensorProto *t, const char *path, struct file_error *why)
{
    const char *name = t->name ? t->name : "";
    struct external e = {.length = (uint64_t)a->count * kl_dtype_size(a->dtype)};
    struct file_error cause;
    if (!external_place(t, name, &e, why))
        return false;
    struct mapping *m = mapping_new(path, e.location, &cause);
    if (!m)
        return file_fails(why, cause.code, "tensor '%.200s': its external data: %.600s", name, cause.text);
    size_t size = kl_dtype_size(a->dtype);
    bool ok = e.offset <= m->b.size && e.length <= m->b.size - e.offset;
    if (!ok) {
        file_fails(why, KL_ERR_IO, "tensor '%.200s': %llu bytes from byte %llu on are outside of %.300s, which has "
                    "%zu", name, (unsigned long long)e.length, (unsigned long long)e.offset, e.location, m->b.size);
    } else if (e.length && e.offset % size == 0 && a->dtype != KL_BOOL) {
        a->data = (void *)(uintptr_t)(m->b.data + e.offset); /* never written: kl_wrap does not change the memory */
        a->file = m;
        return true;
    } else if (!(a->data = malloc(e.length + 1))) {
        ok = file_fails(why, KL_ERR_MEMORY, "out of memory: tensor '%.200s'", name);
    } else if (e.length) {
        memcpy(a->data, m->b.data + e.offset, e.length);
    }
    mapping_unref(m);
    return ok;
}

/* Elements of fewer than 8 bits fill bytes from the lowest bits on. */
static size_t packed_bytes(int64_t count, int bits)
{
    int each = 8 / bits;
    return (size_t)(count / each + (count % each != 0));
}

/* Can the file hold so many elements?  This is checked before memory is allocated for them. */
static bool is_there(const Onnx__TensorProto *t, int64_t count, const char *name, struct file_error *why)
{
    size_t have = t->n_float_data + t->n_int32_data + t->n_int64_data + t->n_double_data + t->n_uint64_data;
    int bits = element_types[t->data_type].bits;
    size_t bytes = bits ? packed_bytes(count, bits) : (size_t)count * kl_dtype_size(onnx_dtype(t->data_type));
    size_t fields = bits ? bytes : (size_t)count; /* of packed elements an int32 is a byte */
    if (t->has_data_location && t->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL) {
        if (count < INT64_C(1) << 40)
            return true;
    } else if (t->has_raw_data ? t->raw_data.len == bytes : have == fields) {
        return true;
    }
    return file_fails(why, KL_ERR_IO, "tensor '%.200s' has %zu %s of data where its shape has %lld elements", name,
                       t->has_raw_data ? t->raw_data.len : have, t->has_raw_data ? "bytes" : "numbers",
                       (long long)count);
}

static bool read_own(struct array *a, Onnx__TensorProto *t, bool take, struct file_error *why)
{
    const char *name = t->name ? t->name : "";
    size_t bytes = (size_t)a->count * kl_dtype_size(a->dtype);
    if (take && t->has_raw_data && bytes) { /* protobuf-c allocates with malloc */
        a->data = t->raw_data.data;
        t->raw_data = (ProtobufCBinaryData){0, NULL};
        return true;
    }
    if (!(a->data = calloc(bytes + 1, 1)))
        return file_fails(why, KL_ERR_MEMORY, "out of memory: tensor '%.200s'", name);
    if (!t->has_raw_data)
        return copy_field(a, t) || file_fails(why, KL_ERR_IO, "tensor '%.200s' has numbers in another field", name);
    if (bytes)
        memcpy(a->data, t->raw_data.data, bytes);
    return true;
}

/* Converts an 8-bit float to f16, which is exact: shifts its fields, and treats subnormals and NaN separately. */
static uint16_t float8_as_half(int32_t type, uint8_t code)
{
    bool e4m3 = type == ONNX_FLOAT8E4M3FN || type == ONNX_FLOAT8E4M3FNUZ;
    bool one_nan = type == ONNX_FLOAT8E4M3FNUZ || type == ONNX_FLOAT8E5M2FNUZ;
    int mantissa = e4m3 ? 3 : 2, bias = (e4m3 ? 7 : 15) + one_nan, magnitude = code & 0x7f;
    uint16_t sign = (uint16_t)((code & 0x80) << 8);
    if (one_nan ? code == 0x80 : e4m3 ? magnitude == 0x7f : magnitude > 0x7c)
        return 0x7e00;
    if (!one_nan && !e4m3 && magnitude == 0x7c)
        return sign | 0x7c00;
    int exponent = magnitude >> mantissa, fraction = magnitude & ((1 << mantissa) - 1);
    int power = (exponent ? exponent : 1) - bias - mantissa;
    int whole = exponent ? fraction + (1 << mantissa) : fraction; /* the value is whole * 2^power */
    if (!whole)
        return sign;
    while (whole < 1 << 10 && power > -24) { /* until the leading bit is that of f16, or the exponent is its least */
        whole *= 2;
        power--;
    }
    return (uint16_t)(sign | (whole < 1 << 10 ? whole : (power + 25) << 10 | (whole & 0x3ff)));
}

/* Element i of a, from its code. */
static void widen_element(struct array *a, int64_t i, int32_t type, uint8_t code)
{
    static const uint16_t e2m1[8] = {0, 0x3800, 0x3c00, 0x3e00, 0x4000, 0x4200, 0x4400, 0x4600}; /* 0, 0.5, .. 6 */
    uint32_t power = code == 255 ? 0x7fc00000 : code ? (uint32_t)code << 23 : 0x00400000; /* 2^(code - 127); NaN */
    int bits = element_types[type].bits;
    if (type == ONNX_FLOAT8E8M0)
        ((uint32_t *)a->data)[i] = power;
    else if (type == ONNX_FLOAT4E2M1)
        ((uint16_t *)a->data)[i] = (uint16_t)(e2m1[code & 7] | (code & 8) << 12);
    else if (a->dtype == KL_F16)
        ((uint16_t *)a->data)[i] = float8_as_half(type, code);
    else /* i8: copies of the sign fill the upper bits */
        ((uint8_t *)a->data)[i] = a->dtype == KL_I8 && code >> (bits - 1) ? (uint8_t)(code | 0xff << bits) : code;
}

/* Converts elements of fewer than 8 bits, or 8-bit floats, to the wider dtype of a. */
static bool read_widened(struct array *a, const Onnx__TensorProto *t, const char *path, struct file_error *why)
{
    const char *name = t->name ? t->name : "";
    int bits = element_types[t->data_type].bits;
    struct array *bytes = array_empty(KL_U8, 1, (int64_t[]){(int64_t)packed_bytes(a->count, bits)});
    bool external = t->has_data_location && t->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    bool ok = bytes != NULL;
    if (ok && external) {
        ok = read_external(bytes, t, path, why);
    } else if (ok && (ok = (bytes->data = calloc((size_t)bytes->count + 1, 1)) != NULL)) {
        if (t->has_raw_data && bytes->count)
            memcpy(bytes->data, t->raw_data.data, (size_t)bytes->count);
        for (int64_t i = 0; !t->has_raw_data && i < bytes->count; i++)
            ((uint8_t *)bytes->data)[i] = (size_t)i < t->n_int32_data ? (uint8_t)t->int32_data[i] : 0;
    }
    if (ok && !(a->data = malloc((size_t)a->count * kl_dtype_size(a->dtype) + 1)))
        ok = false;
    if (!ok && !external)
        file_fails(why, KL_ERR_MEMORY, "out of memory: tensor '%.200s'", name);
    for (int64_t i = 0, each = 8 / bits; ok && i < a->count; i++)
        widen_element(a, i, t->data_type,
                      (uint8_t)(((const uint8_t *)bytes->data)[i / each] >> (i % each * bits) & ((1 << bits) - 1)));
    array_unref(bytes);
    return ok;
}

/* The numbers of strings, `count` of them. */
static struct array *read_strings(const Onnx__TensorProto *t, int64_t count, struct strings *strings,
                                  struct file_error *why)
{
    const char *name = t->name ? t->name : "";
    if ((uint64_t)count != t->n_string_data)
        return file_fails(why, KL_ERR_IO, "tensor '%.200s' has %zu strings where its shape has %lld elements", name,
                          t->n_string_data, (long long)count), NULL;
    struct array *a = strings_array(strings, t->n_string_data, t->string_data);
    if (!a)
        return file_fails(why, KL_ERR_TYPE, "tensor '%.200s': a string has a zero byte, or memory is out", name), NULL;
    a->rank = (int)t->n_dims;
    memcpy(a->dims, t->dims, t->n_dims * sizeof *t->dims);
    return a;
}

struct array *array_read(Onnx__TensorProto *t, const char *path, bool take, struct strings *strings,
                         struct file_error *why)
{
    const char *name = t->name ? t->name : "";
    kl_dtype dtype = strings ? onnx_held_dtype(t->data_type) : onnx_dtype(t->data_type);
    int64_t count;
    if (dtype == KL_DTYPE_COUNT)
        return file_fails(why, KL_ERR_TYPE, "tensor '%.200s' has elements of %s, which Kiln does not have", name,
                           onnx_dtype_name(t->data_type)), NULL;
    if (t->n_dims > KL_MAX_RANK)
        return file_fails(why, KL_ERR_SHAPE, "tensor '%.200s' has %zu dimensions; %d is the most", name, t->n_dims,
                           KL_MAX_RANK), NULL;
    if (!count_elements((int)t->n_dims, t->dims, &count))
        return file_fails(why, KL_ERR_IO, "tensor '%.200s' has dimensions too large to hold, or below 0", name), NULL;
    if (t->data_type == ONNX_STRING)
        return read_strings(t, count, strings, why);
    if (!is_there(t, count, name, why))
        return NULL;
    struct array *a = array_empty(dtype, (int)t->n_dims, t->dims);
    if (!a)
        return file_fails(why, KL_ERR_MEMORY, "out of memory: tensor '%.200s'", name), NULL;
    bool external = t->has_data_location && t->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    a->element = t->data_type;
    bool ok = onnx_is_widened(t->data_type) ? read_widened(a, t, path, why)
              : external ? read_external(a, t, path, why) : read_own(a, t, take, why);
    for (int64_t i = 0; ok && dtype == KL_BOOL && i < count; i++)
        ((uint8_t *)a->data)[i] = ((uint8_t *)a->data)[i] != 0;
    if (ok)
        return a;
    array_unref(a);
    return NULL;
}

bool array_flush_subnormals(struct array *a)
{
    const uint32_t exponent = UINT32_C(0xff) << 23, size = UINT32_MAX >> 1;
    uint32_t *bits = a->data, any = 0;
    size_t bytes = (size_t)a->count * sizeof *bits;
    for (int64_t i = 0; a->dtype == KL_F32 && i < a->count; i++)
        any |= !(bits[i] & exponent) & ((bits[i] & size) != 0);
    if (!any)
        return true;
    if (a->file) {
        void *own = malloc(bytes);
        if (!own)
            return false;
        bits = memcpy(own, a->data, bytes);
        a->data = own;
        mapping_unref(a->file);
        a->file = NULL;
    }
    for (int64_t i = 0; i < a->count; i++)
        bits[i] = bits[i] & exponent ? bits[i] : bits[i] & ~size;
    return true;
}
