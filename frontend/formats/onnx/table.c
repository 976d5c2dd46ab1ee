/* The table of operators, from ops.def and contrib.def. */
#include "onnx.h"
#include <string.h>

static const struct onnx_op table[] = {
#define OP(name, since, until, fn, arg) {"", name, since, until, fn, NULL, NULL, arg},
#define UNARY(name, since, until, op) {"", name, since, until, onnx_unary, kl_##op, NULL, 0},
#define BINARY(name, since, until, op) {"", name, since, until, onnx_binary, NULL, kl_##op, 0},
#define CONTRIB(domain, name, fn, arg) {domain, name, 0, ONNX_LAST_OPSET, fn, NULL, NULL, arg},
#include "ops.def"
#include "contrib.def"
#undef CONTRIB
#undef OP
#undef UNARY
#undef BINARY
};

const struct onnx_op *onnx_op_find(const char *domain, const char *name, int opset)
{
    if (!strcmp(domain, "ai.onnx") || !strcmp(domain, "ai.onnx.preview.training"))
        domain = "";
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name) && !strcmp(table[i].domain, domain) && opset >= table[i].since &&
            opset <= table[i].until)
            return &table[i];
    return NULL;
}
