/* A program as C: the functions that its header declares, appended to the code of the C backend. */
#include "ir/text/text.h"
#include "object.h"

static void put_pointers(struct text *t, const struct graph *g)
{
    char name[OBJECT_MEMBER];
    uint32_t n = 0, returned = 0;
    for (uint32_t i = 0; i < g->input.n; i++, n++) {
        object_member(g, MEMBER_IN, i, name);
        text_put(t, "    pointer[%u] = args->%s;\n", n, name);
    }
    for (uint32_t i = 0; i < g->state.n; i++, n++) {
        object_member(g, MEMBER_STATE, i, name);
        text_put(t, "    pointer[%u] = args->%s;\n", n, name);
    }
    for (uint32_t i = 0; i < g->nout; i++)
        if (g->out[i].kind == OUT_RETURN) {
            object_member(g, MEMBER_OUT, returned++, name);
            text_put(t, "    pointer[%u] = args->%s;\n", n++, name);
        }
}

static void put_slot_values(struct text *t, const struct graph *g, const struct object_options *o)
{
    for (uint32_t i = 0; i < g->slot.n; i++) {
        char name[OBJECT_MEMBER];
        unsigned bits = 8 * (unsigned)dtype_size(g->slot.v[i].dtype);
        object_member(g, MEMBER_SLOT, object_slot(g, i), name);
        if (o->length && o->length[i])
            continue; /* kiln_run computes it */
        if (o->fixed && o->fixed[i])
            text_put(t, "    slot[%u] = 0x%llxu;\n", i, (unsigned long long)o->slot[i]);
        else
            text_put(t, "    { u%u x; memcpy(&x, &args->%s, sizeof x); slot[%u] = x; }\n", bits, name, i);
    }
    for (uint32_t i = 0; i < object_symbols(g); i++) {
        char name[OBJECT_MEMBER];
        object_member(g, MEMBER_LENGTH, i, name);
        text_put(t, "    slot[%u] = (u64)args->%s;\n", g->slot.n + i, name);
    }
}

void object_functions(struct text *t, const struct graph *g, const struct object_options *o, const char *prefix)
{
    uint32_t n = g->input.n + g->state.n + g->nout;
    text_put(t, "int %s_run(const %s_args *args)\n{\n    const void *pointer[%u];\n    u64 slot[%u];\n"
                "    if (!args) return KILN_BAD_ARGUMENT;\n", prefix, prefix, n + 1,
             g->slot.n + object_symbols(g) + MAX_PLACEHOLDERS + 1);
    put_pointers(t, g);
    put_slot_values(t, g, o);
    text_put(t, "    return kiln_run(kiln_image_%s, kiln_kernels_%s, pointer, slot, args->workspace, "
                "args->workspace_bytes);\n}\n\n"
                "size_t %s_workspace_bytes(void) { return kiln_workspace_bytes(kiln_image_%s); }\n\n"
                "const char *%s_error(int status)\n{\n    return status == KILN_OK ? \"ok\" : status == "
                "KILN_NO_MEMORY ? \"no memory for the workspace\"\n"
                "           : status == KILN_BAD_LENGTH ? \"a length is outside of the bounds of its symbol\"\n"
                "           : \"a pointer is NULL, or the workspace too small\";\n}\n\n",
             prefix, prefix, prefix, prefix, prefix);
}
