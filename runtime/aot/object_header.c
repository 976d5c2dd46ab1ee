/* The C header of a program compiled ahead of time: self-contained, for C99 and C++. */
#include "ir/text/text.h"
#include "object.h"
#include <string.h>

static const char *c_type(unsigned dtype)
{
    static const char *const type[KL_DTYPE_COUNT] = {
        [KL_BOOL] = "bool", [KL_U8] = "uint8_t", [KL_U16] = "uint16_t", [KL_U32] = "uint32_t", [KL_U64] = "uint64_t",
        [KL_I8] = "int8_t", [KL_I16] = "int16_t", [KL_I32] = "int32_t", [KL_I64] = "int64_t",
        [KL_F16] = "uint16_t", [KL_BF16] = "uint16_t", [KL_F32] = "float", [KL_F64] = "double"};
    return type[dtype];
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* Characters that are invalid in an identifier become '_', but never two in a row, which C++ reserves. */
static void make_identifier(const char *name, char *out, size_t size)
{
    size_t n = 0;
    for (; *name && n + 1 < size; name++)
        if (is_digit(*name) || is_letter(*name))
            out[n++] = *name;
        else if (!n || out[n - 1] != '_')
            out[n++] = '_';
    out[n] = 0;
}

bool object_prefix(const char *name, bool exact, char out[OBJECT_NAME], struct err *e)
{
    char text[OBJECT_NAME];
    make_identifier(name, text, sizeof text);
    if (exact && (!is_letter(text[0]) || strcmp(text, name)))
        return err_set(e, KL_ERR_ARGUMENT,
                       "the prefix '%.80s' is no C identifier that starts with a letter, has no two '_' "
                       "in a row and at most %d bytes",
                       name, OBJECT_NAME - 1);
    snprintf(out, OBJECT_NAME, "%s%.*s", is_letter(text[0]) ? "" : "graph", OBJECT_NAME - 6, text);
    return true;
}

/* ---- members ---- */

static const char *member_name(const struct graph *g, enum object_member kind, uint32_t i)
{
    return kind == MEMBER_IN ? g->input.v[i].name : kind == MEMBER_STATE ? g->state.v[i].name
           : kind == MEMBER_SLOT ? g->slot.v[i].name : kind == MEMBER_LENGTH ? g->symbols->v[i].name : "";
}

/* Could the name be one to which a number was added? */
static bool ends_with_number(const char *text)
{
    size_t n = strlen(text), digits = 0;
    while (digits < n && is_digit(text[n - 1 - digits]))
        digits++;
    return digits && (digits == n || (n - digits >= 3 && !memcmp(text + n - digits - 3, "_no", 3)));
}

uint32_t object_slot(const struct graph *g, uint32_t slot)
{
    const struct leaf *l = g->slot.v;
    for (uint32_t i = 0; i < slot && l[slot].name[0]; i++)
        if (l[i].dtype == l[slot].dtype && !strcmp(l[i].name, l[slot].name))
            return i;
    return slot;
}

void object_member(const struct graph *g, enum object_member kind, uint32_t ordinal, char out[OBJECT_MEMBER])
{
    static const char *const word[] = {"in", "state", "out", "slot", "length"};
    char text[32], other[32];
    make_identifier(member_name(g, kind, ordinal), text, sizeof text);
    snprintf(out, OBJECT_MEMBER, "%s_%s", word[kind], text);
    bool taken = !text[0] || ends_with_number(text);
    uint32_t n = kind == MEMBER_IN      ? g->input.n
                 : kind == MEMBER_STATE ? g->state.n
                 : kind == MEMBER_SLOT  ? g->slot.n
                 : kind == MEMBER_LENGTH ? object_symbols(g)
                                        : 0;
    for (uint32_t i = 0; i < n && !taken; i++) {
        make_identifier(member_name(g, kind, i), other, sizeof other);
        taken = i != ordinal && !strcmp(text, other) && !(kind == MEMBER_SLOT && object_slot(g, i) == ordinal);
    }
    if (taken) /* no name, or not a unique one: the number distinguishes it */
        snprintf(out, OBJECT_MEMBER, "%s_%s%s%u", word[kind], text, text[0] ? "_no" : "", ordinal);
}

static const struct shape *member_type(const struct graph *g, enum object_member kind, uint32_t i, unsigned *dtype)
{
    if (kind == MEMBER_OUT) {
        ref r = g->out[i].value;
        *dtype = node_at(g, r)->dtype;
        return node_shape(g, r);
    }
    const struct leaf *l = kind == MEMBER_IN ? &g->input.v[i] : kind == MEMBER_STATE ? &g->state.v[i] : &g->slot.v[i];
    *dtype = l->dtype;
    return &g->shape[l->shape];
}

static const char *stored_as(unsigned dtype) { return dtype == KL_F16 || dtype == KL_BF16 ? ", its bits" : ""; }

static bool is_assigned(const struct graph *g, uint32_t state)
{
    for (uint32_t i = 0; i < g->nout; i++)
        if (g->out[i].kind == OUT_ASSIGN && g->out[i].state == state)
            return true;
    return false;
}

static void put_member(struct text *t, const struct graph *g, const struct object_options *o, enum object_member kind,
                       uint32_t i, uint32_t number)
{
    unsigned dtype;
    char name[OBJECT_MEMBER], shape[SHAPE_TEXT];
    const struct shape *s = member_type(g, kind, i, &dtype);
    bool written = kind == MEMBER_OUT || (kind == MEMBER_STATE && is_assigned(g, i));
    object_member(g, kind, number, name);
    size_t start = t->len;
    text_put(t, "    %s%s %s%s;", kind == MEMBER_SLOT || written ? "" : "const ", c_type(dtype),
             kind == MEMBER_SLOT ? "" : "*", name);
    text_pad(t, start, 40);
    text_put(t, "/* %s%s%s", dtype_name(dtype), shape_text_in(g, s, shape, sizeof shape), stored_as(dtype));
    if (kind == MEMBER_STATE)
        text_put(t, "%s", written ? ": read, and given its new value"
                          : o->state && o->state[i] && !o->weights_separate ? ": read; NULL: its value in the object"
                          : ": read");
    text_put(t, " */\n");
}

/* The value of a symbol. */
static void put_length(struct text *t, const struct graph *g, uint32_t i)
{
    char name[OBJECT_MEMBER];
    const struct symbol *s = &g->symbols->v[i];
    size_t start = t->len;
    object_member(g, MEMBER_LENGTH, i, name);
    text_put(t, "    int64_t %s;", name);
    text_pad(t, start, 40);
    text_put(t, "/* %s, from %lld to %lld */\n", s->name, (long long)s->low, (long long)s->high);
}

static void put_members(struct text *t, const struct graph *g, const struct object_options *o)
{
    for (uint32_t i = 0; i < g->input.n; i++)
        put_member(t, g, o, MEMBER_IN, i, i);
    for (uint32_t i = 0; i < g->state.n; i++)
        put_member(t, g, o, MEMBER_STATE, i, i);
    for (uint32_t i = 0, n = 0; i < g->nout; i++)
        if (g->out[i].kind == OUT_RETURN)
            put_member(t, g, o, MEMBER_OUT, i, n++);
    text_put(t, "    void *workspace;                    /* NULL: of malloc, for the time of the run */\n"
                "    size_t workspace_bytes;\n");
    for (uint32_t i = 0; i < object_symbols(g); i++)
        put_length(t, g, i);
    for (uint32_t i = 0; i < g->slot.n; i++)
        if (!(o->fixed && o->fixed[i]) && object_slot(g, i) == i)
            put_member(t, g, o, MEMBER_SLOT, i, i);
}

/* A length as C, over the names of the members that have the symbols' values. */
static void put_dim(struct text *t, const struct graph *g, int64_t dim)
{
    struct affine a;
    char name[OBJECT_MEMBER];
    dim_affine(g, dim, &a);
    text_put(t, "((int64_t)%lld", (long long)a.constant);
    for (uint32_t i = 0; i < a.n; i++) {
        object_member(g, MEMBER_LENGTH, a.term[i].symbol, name);
        text_put(t, " + (int64_t)%lld * (%s)", (long long)a.term[i].by, name);
        if (a.term[i].times) {
            object_member(g, MEMBER_LENGTH, a.term[i].times - 1, name);
            text_put(t, " * (%s)", name);
        }
    }
    text_put(t, ")");
}

/* The number of elements of an array: a macro, with the symbols' values as arguments where its shape has symbols, and
 * then another one for the greatest number. */
static void put_count(struct text *t, const struct graph *g, const char *prefix, const char *name,
                      const struct shape *s)
{
    if (!shape_is_symbolic(s)) {
        text_put(t, "#define %s_count_%s %lld\n", prefix, name, (long long)shape_count(s));
        return;
    }
    char symbol[OBJECT_MEMBER];
    int64_t max = 1, low, high;
    text_put(t, "#define %s_count_%s(", prefix, name);
    for (uint32_t i = 0; i < g->symbols->n; i++) {
        object_member(g, MEMBER_LENGTH, i, symbol);
        text_put(t, "%s%s", i ? ", " : "", symbol);
    }
    text_put(t, ") (");
    for (uint32_t i = 0; i < s->rank; i++) {
        text_put(t, "%s", i ? " * " : "");
        put_dim(t, g, s->dim[i]);
        max *= dim_range(g, s->dim[i], &low, &high) ? high : 1;
    }
    text_put(t, ")\n#define %s_most_%s %lld\n", prefix, name, (long long)max);
}

static void put_counts(struct text *t, const struct graph *g, const char *prefix)
{
    uint32_t returned = 0;
    const uint32_t n[] = {g->input.n, g->state.n, g->nout};
    for (int kind = MEMBER_IN; kind <= MEMBER_OUT; kind++)
        for (uint32_t i = 0; i < n[kind]; i++) {
            unsigned dtype;
            char name[OBJECT_MEMBER];
            if (kind == MEMBER_OUT && g->out[i].kind != OUT_RETURN)
                continue;
            object_member(g, (enum object_member)kind, kind == MEMBER_OUT ? returned++ : i, name);
            put_count(t, g, prefix, name, member_type(g, (enum object_member)kind, i, &dtype));
        }
}

/* A function that points states into the file of weights. */
static void put_weights_function(struct text *t, const struct graph *g, const struct object_options *o,
                                 const char *prefix)
{
    char name[OBJECT_MEMBER];
    unsigned dtype;
    if (!o->state || !o->weights_separate)
        return;
    text_put(t, "\n/* Points the states whose values are in the weights' file to the file's bytes, which start at a "
                "multiple of 64.\n * 0; or 1, and nothing is set: the file was not written with this program. */\n"
                "#define %s_weights_bytes %zu\n"
                "static inline int %s_weights(%s_args *args, const void *bytes)\n{\n", prefix,
             object_weight_at(g, o, g->state.n), prefix, prefix);
    if (object_weight_at(g, o, 0) > o->weights_at) {
        unsigned char id[OBJECT_WEIGHTS_ID];
        object_weights_header(g, o, id);
        text_put(t, "    static const unsigned char own[%d] = {", OBJECT_WEIGHTS_ID);
        for (int i = 0; i < OBJECT_WEIGHTS_ID; i++)
            text_put(t, "%s%u", i ? "," : "", id[i]);
        text_put(t, "};\n    for (int i = 0; i < %d; i++)\n"
                    "        if (((const unsigned char *)bytes)[%zu + i] != own[i]) return 1;\n", OBJECT_WEIGHTS_ID,
                 o->weights_at);
    }
    for (uint32_t i = 0; i < g->state.n; i++) {
        if (!o->state[i])
            continue;
        object_member(g, MEMBER_STATE, i, name);
        member_type(g, MEMBER_STATE, i, &dtype);
        text_put(t, "    args->%s = (const %s *)((const char *)bytes + %zu);\n", name, c_type(dtype),
                 object_weight_at(g, o, i));
    }
    text_put(t, "    (void)args, (void)bytes; /* where there are none */\n    return 0;\n}\n");
}

/* Declarations besides those of a run: for an object, which shares a runtime with others, and for C. */
static void put_shared(struct text *t, bool source, const char *prefix)
{
    if (source)
        text_put(t, "const char *%s_error(int status); /* of %s_run, in words */\n\n", prefix, prefix);
    else
        text_put(t, "/* Sets, for all programs, how many threads share a run: 0 is the number in environment variable\n"
                    " * KILN_THREADS, or else one for each processor; 1 is the caller alone.  Results do not depend\n"
                    " * on it. */\n"
                    "void kiln_aot_threads(unsigned n);\n"
                    "const char *kiln_aot_error(int status);\n\n");
}

char *object_header(const struct graph *g, const struct object_options *o, const char *prefix, const char *cpu)
{
    struct text t = {0};
    text_put(&t, o->source ? "/* Program %s, compiled by Kiln to C for %s processor: one C99 file, to be compiled with "
                             "optimization\n * (-O3 -march=native; -fopenmp for several threads). */\n"
                           : "/* Program %s, compiled by Kiln for %s.  Link the object beside this header, "
                             "libkiln-aot.a and the threads'\n * library (-pthread). */\n", prefix, cpu);
    text_put(
        &t,
        "#ifndef KILN_AOT_%s_H\n#define KILN_AOT_%s_H\n#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n"
        "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n",
        prefix, prefix);
    text_put(
        &t,
        "/* What a run reads and writes: arrays in row-major order, aligned as their elements, none of those written\n"
        " * overlapping another. */\n"
        "typedef struct %s_args {\n",
        prefix);
    put_members(&t, g, o);
    text_put(&t, "} %s_args;\n\n", prefix);
    if (!o->source)
        text_put(&t, "/* As the object has it. */\ntypedef char %s_args_size[sizeof(%s_args) == %zu ? 1 : -1];\n\n",
                 prefix, prefix, object_args_layout(g, o->fixed, NULL));
    text_put(&t, "/* Elements of the arrays%s. */\n",
             g->symbols ? "; of one whose shape has symbols, for their values, and at most" : "");
    put_counts(&t, g, prefix);
    put_weights_function(&t, g, o, prefix);
    text_put(&t,
             "\n/* One run.  0, or why it did nothing: %s_error says it in words.  Any number of threads may run "
             "at once,\n"
             " * each with arrays to write and a workspace of its own. */\n"
             "int %s_run(const %s_args *args);\n"
             "/* What a workspace must have, of any alignment, for runs on as many threads as there are now; a smaller "
             "one is\n"
             " * used by fewer.%s */\n"
             "size_t %s_workspace_bytes(void);\n\n",
             o->source ? prefix : "kiln_aot", prefix, prefix,
             g->symbols ? "  It is enough for all values of the symbols." : "", prefix);
    put_shared(&t, o->source, prefix);
    text_put(&t, "#ifdef __cplusplus\n}\n#endif\n#endif\n");
    return text_take(&t);
}
