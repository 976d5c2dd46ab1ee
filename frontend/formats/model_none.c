/* <kiln/formats/model.h> in a build without protobuf-c: loading a model is an error. */
#define KL_NO_CALL_SITES
#include <kiln/onnx.h>

static const char why[] = "this build of Kiln reads no ONNX models: protobuf-c or onnx.proto was not found (Debian: "
                          "libprotobuf-c-dev protobuf-c-compiler libonnx-dev)";

kl_model *kl_model_open(kl_device device, const char *path)
{
    (void)device;
    (void)path;
    kl_fail(KL_ERR_IO, why);
    return NULL;
}

kl_tensor kl_model_read_tensor(kl_device device, const char *path)
{
    (void)device;
    (void)path;
    kl_fail(KL_ERR_IO, why);
    return kl_none;
}

/* These need a model, and there is none in this build. */
void kl_model_close(kl_model *model) { (void)model; }
int64_t kl_model_inputs(const kl_model *model) { return (void)model, 0; }
int64_t kl_model_outputs(const kl_model *model) { return (void)model, 0; }
int64_t kl_model_weights(const kl_model *model) { return (void)model, 0; }
int64_t kl_model_strings(const kl_model *model) { return (void)model, 0; }
const char *kl_model_string(const kl_model *model, int64_t number) { return (void)model, (void)number, NULL; }
int64_t kl_model_string_number(const kl_model *model, const char *text) { return (void)model, (void)text, -1; }
const char *kl_model_weight_name(const kl_model *model, int64_t i) { return (void)model, (void)i, NULL; }
kl_tensor kl_model_weight(const kl_model *model, const char *name) { return (void)model, (void)name, kl_none; }

kl_status kl_model_input(const kl_model *model, int64_t i, kl_model_value *value)
{
    (void)model;
    (void)i;
    (void)value;
    return kl_fail(KL_ERR_ARGUMENT, why);
}
kl_status kl_model_output(const kl_model *model, int64_t i, kl_model_value *value)
{
    return kl_model_input(model, i, value);
}

kl_status kl_model_call(kl_model *model, int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out)
{
    (void)model;
    (void)nin;
    (void)in;
    for (int64_t i = 0; out && i < nout; i++)
        out[i] = kl_none;
    return kl_fail(KL_ERR_ARGUMENT, why);
}
