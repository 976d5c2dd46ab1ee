/* <kiln/formats/dlpack.h>: tensors given and taken without a copy, by structs as dlpack.h has them.
 * Arguments: a device, `cuda`; without one all devices of the host; and a library in place of CUDA's driver. */
#include "tests/support/api_check.h"
#include <kiln/formats/dlpack.h>

/* Version 1.0 of dlpack.h. */
typedef struct { int32_t device_type, device_id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
typedef struct DLManagedTensorVersioned {
    struct { uint32_t major, minor; } version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

static int deleted;
static void theirs_deleted(DLManagedTensorVersioned *m) { deleted += m->version.major > 0; }
static void plain_deleted(DLManagedTensor *m) { deleted += m->dl_tensor.ndim > 0; }

static bool says(const char *text)
{
    if (strstr(kl_last_error(), text))
        return true;
    printf("  \"%s\" has no \"%s\"\n", kl_last_error(), text);
    return false;
}

static DLManagedTensorVersioned theirs_of(void *data, int rank, int64_t *shape, int64_t *strides)
{
    return (DLManagedTensorVersioned){.version = {1, 1}, .deleter = theirs_deleted,
                                      .dl_tensor = {data, {1, 0}, rank, {2, 32, 1}, shape, strides, 0}};
}

static void gives(kl_device dev)
{
    static const float six[6] = {1, 2, 3, 4, 5, 6};
    kl_tensor a = kl_input(dev, KL_F32, 2, (int64_t[]){2, 3}, six), x = kl_mul_scalar(a, 2);
    DLManagedTensorVersioned *m = kl_to_dlpack(x); /* computed by it */
    DLManagedTensor *plain = kl_to_dlpack_unversioned(x);
    if (!CHECK(m && plain))
        return;
    DLTensor *t = &m->dl_tensor;
    CHECK(m->version.major == 1 && m->flags == 1 && t->ndim == 2 && t->shape[0] == 2 && t->shape[1] == 3 &&
          t->strides[0] == 3 && t->strides[1] == 1 && t->dtype.code == 2 && t->dtype.bits == 32 &&
          t->dtype.lanes == 1 && t->byte_offset == 0 && t->device.device_id == 0);
    bool host = KL_DEVICES(kl_device_kind_of(dev)) & KL_DEVICES_HOST;
    CHECK(t->device.device_type == (host ? 1 : kl_device_kind_of(dev) == KL_DEVICE_CUDA ? 2 : 10));
    CHECK(plain->dl_tensor.data == t->data);
    CHECK(!host || ((float *)t->data)[5] == 12);
    /* a new value goes elsewhere */
    OK(kl_trace_begin("assign"));
    OK(kl_assign(x, kl_add_scalar(x, 1)));
    OK(kl_trace_end());
    NEAR_LIST(kl_slice(x, (int64_t[]){0, 0}, (int64_t[]){1, 3}, (int64_t[]){1, 1}), 0, 3, 5, 7);
    CHECK(!host || ((float *)t->data)[5] == 12);
    kl_release(x);
    kl_release(a);
    /* taken again, it is the same memory, and has the first value */
    void *memory = t->data;
    kl_tensor y = kl_from_dlpack(m);
    if (host && strcmp(kl_device_name(kl_device_of(y)), kl_device_name(dev)))
        CHECK(!strcmp(kl_device_name(kl_device_of(y)), "cpu")); /* of ref */
    DLManagedTensorVersioned *again = kl_to_dlpack(y);
    CHECK(again && again->dl_tensor.data == memory);
    again->deleter(again);
    plain->deleter(plain);
    NEAR_LIST(y, 0, 2, 4, 6, 8, 10, 12);
    CHECK(host ? kl_device_stream(dev) == NULL : kl_device_stream(dev) != NULL);
}

static void takes(void)
{
    static const float values[13] = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    float data[13];
    int64_t shape[3] = {2, 3, 2}, permuted[3] = {2, 4, 1}, gaps[2] = {6, 2}, back[1] = {-2};
    memcpy(data, values, sizeof data);
    DLManagedTensorVersioned m = theirs_of(data, 3, shape, NULL);
    m.dl_tensor.byte_offset = 4;
    deleted = 0;
    kl_tensor x = kl_from_dlpack(&m);
    SHAPE(x, 2, 3, 2);
    data[12] = 99; /* no copy */
    NEAR_LIST(x, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99);
    CHECK(deleted == 1);
    data[12] = 11;
    m.dl_tensor.strides = permuted;
    x = kl_from_dlpack(&m);
    kl_requires_grad(x);
    SHAPE(x, 2, 3, 2);
    double want[12];
    for (int i = 0; i < 12; i++)
        want[i] = i / 6 * 2 + i / 2 % 3 * 4 + i % 2;
    NEAR(x, 12, want, 0);
    CHECK(deleted == 2);
    m = theirs_of(data + 1, 2, (int64_t[]){2, 3}, gaps); /* every other element */
    x = kl_from_dlpack(&m);
    CHECK(deleted == 3);
    NEAR_LIST(x, 0, 0, 2, 4, 6, 8, 10);
    m = theirs_of(data + 12, 1, (int64_t[]){4}, back);
    NEAR_LIST(kl_from_dlpack(&m), 0, 11, 9, 7, 5);
    m = theirs_of(NULL, 2, (int64_t[]){0, 3}, NULL);
    x = kl_from_dlpack(&m);
    SHAPE(x, 0, 3);
    kl_release(x);
    CHECK(deleted == 5);
    DLManagedTensor plain = {.dl_tensor = {data, {1, 0}, 1, {2, 32, 1}, (int64_t[]){2}, (int64_t[]){1}, 4},
                             .deleter = plain_deleted};
    NEAR_LIST(kl_from_dlpack_unversioned(&plain), 0, 0, 1);
    CHECK(deleted == 6);
    /* an assignment does not write to it */
    x = kl_from_dlpack_unversioned(&plain);
    for (int i = 0; i < 2; i++) {
        OK(kl_trace_begin("assign"));
        OK(kl_assign(x, kl_add_scalar(x, 1)));
        OK(kl_trace_end());
    }
    NEAR_LIST(x, 0, 2, 3);
    CHECK(deleted == 7 && !memcmp(data, values, sizeof data));
    uint16_t half[2] = {0x3c00, 0xbf80};
    for (int b = 0; b < 2; b++) {
        m = theirs_of(half + b, 1, (int64_t[]){1}, NULL);
        m.dl_tensor.dtype = (DLDataType){b ? 4 : 2, 16, 1};
        NEAR_LIST(kl_from_dlpack(&m), 0, b ? -1 : 1);
    }
}

static void mistakes(void)
{
    float data[9] = {0};
    int64_t shape[9] = {2, 2, 1, 1, 1, 1, 1, 1, 1};
    kl_clear_error();
    deleted = 0;
    CHECK(!kl_from_dlpack(NULL).id && kl_last_error_code() == KL_ERR_ARGUMENT);
    DLManagedTensorVersioned m = theirs_of(data, 2, shape, NULL);
    m.version.major = 2;
    CHECK(!kl_from_dlpack(&m).id && says("another major version (2)"));
    m = theirs_of(data, 9, shape, NULL);
    CHECK(!kl_from_dlpack(&m).id && says("number of dimensions (9)") && kl_last_error_code() == KL_ERR_SHAPE);
    m = theirs_of(data, 2, (int64_t[]){2, -2}, NULL);
    CHECK(!kl_from_dlpack(&m).id && says("below 0"));
    m = theirs_of(data, 2, (int64_t[]){INT64_MAX, 4}, NULL);
    CHECK(!kl_from_dlpack(&m).id && says("too many elements"));
    m = theirs_of(NULL, 2, shape, NULL);
    CHECK(!kl_from_dlpack(&m).id && says("data is NULL"));
    m = theirs_of((char *)data + 1, 2, shape, NULL);
    CHECK(!kl_from_dlpack(&m).id && says("not aligned"));
    m = theirs_of(data, 2, shape, NULL);
    m.dl_tensor.dtype.lanes = 4;
    CHECK(!kl_from_dlpack(&m).id && kl_last_error_code() == KL_ERR_TYPE);
    m = theirs_of(data, 2, shape, NULL);
    m.dl_tensor.device.device_type = 8;
    CHECK(!kl_from_dlpack(&m).id && kl_last_error_code() == KL_ERR_DEVICE && says("(8)"));
    m = theirs_of(data, 2, shape, NULL);
    m.dl_tensor.device = (DLDevice){2, 77};
    CHECK(!kl_from_dlpack(&m).id && kl_last_error_code() == KL_ERR_DEVICE);
    CHECK(deleted == 9); /* each of them */
    CHECK(!kl_to_dlpack(kl_none) && !kl_to_dlpack((kl_tensor){12345}));
    kl_device ref = kl_device_ref();
    kl_tensor w = kl_ones(ref, KL_F32, 2, shape), q = kl_to_quantized(w, (kl_qscheme){.type = KL_Q_I8}, kl_none,
                                                                      kl_none);
    CHECK(!kl_to_dlpack(q) && kl_last_error_code() == KL_ERR_TYPE && says("not dense"));
    kl_release(w);
    kl_release(q);
}

static void on_device(kl_device dev)
{
    gives(dev);
    if (kl_device_kind_of(dev) == KL_DEVICE_REF) {
        takes();
        mistakes();
    }
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return on_devices(on_device);
    if (argc > 2) {
        setenv("KILN_CUDA_DRIVER", argv[2], 1);
        setenv("KILN_CUDA_COMPILER", argv[2], 1);
    }
    device_now = argv[1];
    kl_device dev = kl_device_named(argv[1]);
    if (!dev.id) {
        printf("SKIP no-device %s: %s\n0 passed, 0 failed, 1 skipped\n", argv[1], kl_last_error());
        return 0;
    }
    gives(dev);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
