/* The table of operators, from ops.def. */
#include "onnx.h"
#include <string.h>

static const struct onnx_op table[] = {
#define OP(name, since, until, fn, arg) {name, since, until, fn, NULL, NULL, arg},
#define UNARY(name, since, until, op) {name, since, until, onnx_unary, kl_##op, NULL, 0},
#define BINARY(name, since, until, op) {name, since, until, onnx_binary, NULL, kl_##op, 0},
#include "ops.def"
#undef OP
#undef UNARY
#undef BINARY
};

const struct onnx_op *onnx_op_find(const char *domain, const char *name, int opset)
{
    bool training = !strcmp(domain, "ai.onnx.preview.training");
    if (*domain && strcmp(domain, "ai.onnx") && !training)
        return NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name) && opset >= table[i].since && opset <= table[i].until)
            return &table[i];
    return NULL;
}
