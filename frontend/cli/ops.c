/* kiln ops: prints the table of ops, one of its rows, or a function of the public headers. */
#include "cli.h"
#include <string.h>

struct ops_row { unsigned op; const char *grad[3]; }; /* the gradient columns of an elementwise row as text */

static const struct ops_row rows[] = {
#define ST(name, ...) {OP_##name, {NULL}},
#define EW1(name, types, value, ga, ...) {OP_##name, {#ga}},
#define EW2(name, types, value, ga, gb, ...) {OP_##name, {#ga, #gb}},
#define EW3(name, types, value, ga, gb, gc, ...) {OP_##name, {#ga, #gb, #gc}},
#include "ir/ops/ops.def"
};
enum { ROWS = sizeof rows / sizeof *rows };

static const char *types_of(const struct opinfo *o)
{
    switch ((enum op_class)o->cls) {
    case CLASS_ANY: return "numbers";
    case CLASS_FLOAT: return "floats";
    case CLASS_LOGIC: return "integers, bool";
    case CLASS_INT: return "integers";
    case CLASS_PREDICATE: return "floats -> bool";
    case CLASS_COMPARE: return "any -> bool";
    case CLASS_WHERE: return "bool, any, any";
    case CLASS_STRUCT: break;
    }
    return "by its rule";
}

/* The operand that is an index or a zero point: it has no gradient. */
static unsigned index_operand(unsigned op)
{
    return op == OP_dynamic_slice || op == OP_gather || op == OP_scatter ? 1 : op == OP_dynamic_update ||
        op_is_quant(op) ? 2
           : op_is_attention(op) ? opinfo[op].nin - 1u : MAX_OPERANDS;
}

/* The operands that have a gradient, such as "a b". */
static const char *gradient_of(const struct ops_row *r, char buf[8])
{
    const struct opinfo *o = &opinfo[r->op];
    size_t n = 0;
    if (r->op == OP_bitcast || r->op == OP_argsort || r->op == OP_while)
        return "no";
    if (r->op == OP_custom)
        return "its own";
    if (op_is_region(r->op))
        return "floats"; /* operands beyond letters */
    for (unsigned i = 0; i < o->nin; i++)
        if (i < 3 && r->grad[i] ? strcmp(r->grad[i], "NIL") != 0
                                : i != index_operand(r->op) && strcmp(o->batching, "LEAF") != 0)
            n += (size_t)snprintf(buf + n, 8 - n, "%s%c", n ? " " : "", 'a' + (int)i);
    return n ? buf : "no";
}

static const char *operands_of(const struct opinfo *o, unsigned op, char buf[8])
{
    if (op_is_region(op))
        return "any";
    snprintf(buf, 8, "%u", o->nin);
    return buf;
}

static void print_table(void)
{
    printf("%-14s %-12s %8s  %-15s %-9s %-9s %-9s %s\n", "name", "kind", "operands", "types", "gradient", "autocast",
           "batching", "meaning");
    for (unsigned i = 0; i < ROWS; i++) {
        const struct opinfo *o = &opinfo[rows[i].op];
        char grad[8], nin[8];
        printf("%-14s %-12s %8s  %-15s %-9s %-9s %-9s %s\n", o->name,
               op_is_elementwise(rows[i].op) ? "elementwise" : "structural", operands_of(o, rows[i].op, nin),
                   types_of(o),
               gradient_of(&rows[i], grad), o->autocast, o->batching, o->doc);
    }
}

/* "attributes axis(axis) start(dim) [keep(length)]": the form of each in .kir text. */
static void print_attributes(const struct attr_info *a)
{
    static const char *const kinds[] = {
        [ATTR_AXIS] = "axis", [ATTR_AXES] = "axes", [ATTR_PERM] = "axes", [ATTR_PAIRS] = "axes; axes",
            [ATTR_DIM] = "dim",
        [ATTR_LENGTH] = "number", [ATTR_COUNT] = "number", [ATTR_REAL] = "literal"};
    printf("  attributes");
    for (; a->word; a++) {
        printf(" %s%s", a->optional ? "[" : "", a->word);
        for (unsigned i = 0; a->kind == ATTR_WORD && a->words[i]; i++)
            printf("%s%s", i ? " | " : "(", a->words[i]);
        for (unsigned i = 0; a->kind == ATTR_ORDER && i < 2 && a->part[i].word; i++)
            printf("%s%s number", i ? ", " : "(", a->part[i].word);
        if (a->kind < sizeof kinds / sizeof *kinds && kinds[a->kind])
            printf("(%s", kinds[a->kind]);
        printf("%s%s", a->kind == ATTR_FLAG ? "" : ")", a->optional ? "]" : "");
    }
    printf("\n");
}

static bool print_op(const char *name)
{
    for (unsigned i = 0; i < ROWS; i++) {
        const struct opinfo *o = &opinfo[rows[i].op];
        if (strcmp(o->name, name))
            continue;
        printf("%s: %s\n", o->name, o->doc);
        char nin[8];
        printf("  operands  %s, %s\n", operands_of(o, rows[i].op, nin), types_of(o));
        if (o->attr && o->attr->word)
            print_attributes(o->attr);
        if (o->value)
            printf("  value     %s\n", o->value);
        for (unsigned k = 0; k < 3 && rows[i].grad[k]; k++)
            printf("  gradient  of %c: %s\n", 'a' + (int)k, rows[i].grad[k]);
        printf("  autocast  %s\n  batching  %s\n", o->autocast, o->batching);
        return true;
    }
    return false;
}

/* ---- functions of the public headers: what makes an op's node, and composites of ops ---- */

struct public_function { const char *name, *header, *prototype, *comment; };
static const struct public_function functions[] = {
#define FUNCTION(...) {__VA_ARGS__},
#include "functions.inc"
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static const struct public_function *find_function(const char *name)
{
    name += strncmp(name, "kl_", 3) ? 0 : 3;
    for (unsigned i = 0; i < FUNCTIONS; i++)
        if (!strcmp(functions[i].name + 3, name))
            return &functions[i];
    return NULL;
}

/* Prints words of a text in lines of at most 100 columns behind a margin. */
static void print_wrapped(const char *text)
{
    for (int column = 0; *text;) {
        int word = (int)strcspn(text, " ");
        if (column && column + 1 + word > 98)
            column = 0, printf("\n");
        printf("%s%.*s", column ? " " : "  ", word, text);
        column += 1 + word;
        text += word + (text[word] == ' ');
    }
    printf("\n");
}

/* of_op: behind the op's own lines */
static bool print_function(const char *name, bool of_op)
{
    const struct public_function *f = find_function(name);
    if (!f)
        return false;
    if (!of_op)
        printf("%s: %s of <%s>\n", f->name + 3,
               strstr(f->prototype, "kl_tensor") ? "a function of other ops" : "a function", f->header);
    else
        printf("  in C, <%s>:\n", f->header);
    print_wrapped(f->prototype);
    if (!of_op && *f->comment)
        print_wrapped(f->comment);
    return true;
}

/* No such name: lists the functions whose names have it in them. */
static int print_similar(const char *name)
{
    char list[400] = "";
    size_t n = 0;
    for (unsigned i = 0; i < FUNCTIONS && n + 64 < sizeof list; i++)
        if (strstr(functions[i].name + 3, name))
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", functions[i].name + 3);
    return cli_error("no op or function is called '%s'; %s%s", name,
                     n ? "these have it in their names: " : "kiln ops lists the ops", list);
}

int cli_ops(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        bool op = print_op(argv[i]);
        if (!print_function(argv[i], op) && !op)
            return print_similar(argv[i]);
    }
    if (!argc)
        print_table();
    return CLI_OK;
}
