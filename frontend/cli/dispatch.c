/* kiln dispatch: prints keys and tables of ops. kiln explain: shows a call of an op from its keys to its code. */
#include "frontend/frontend.h"
#include "cli.h"
#include <stdlib.h>
#include <string.h>

/* ---- kiln dispatch ---- */

static void print_keys(void)
{
    char set[200];
    printf("%-28s %-10s %-10s %s\n", "key", "backend", "autograd", "components");
    for (unsigned i = KL_KEY_Undefined + 1; i < KL_KEY_COUNT; i++) {
        kl_key k = (kl_key)i;
        bool backend = kl_key_is_backend(k);
        printf("%-28s %-10s %-10s %s\n", kl_key_name(k), backend ? "yes" : "no",
               backend ? kl_key_name(kl_key_autograd(k)) + strlen("Autograd") : "-",
               kl_keyset_text(kl_keyset_of(k), set, sizeof set));
    }
    for (unsigned i = KL_KEY_COUNT; i <= KL_KEY_DefaultBackend; i++)
        printf("%-28s alias\n", kl_key_name((kl_key)i));
}

static bool print_op(const char *op)
{
    const char *state = kl_dispatch_dump(op);
    if (!state || !*state)
        return false;
    fputs(state, stdout);
    printf("table:\n%s", kl_dispatch_dump_table(op));
    return true;
}

int cli_dispatch(int argc, char **argv)
{
    if (!argc)
        print_keys();
    for (int i = 0; i < argc; i++)
        if (!print_op(argv[i]))
            return cli_error("no op is called '%s'; kiln ops lists them", argv[i]);
    return CLI_OK;
}

/* ---- kiln explain: the call ---- */

/* A composite with its own function here. */
static kl_tensor all_sum(const kl_tensor *a) { return kl_sum(a[0], 0, NULL, false); }
static kl_tensor all_mean(const kl_tensor *a) { return kl_mean(a[0], 0, NULL, false); }
static kl_tensor last_softmax(const kl_tensor *a) { return kl_softmax(a[0], -1); }
static kl_tensor dispatch_product(const kl_tensor *a) { return kl_matmul(a[0], a[1]); }
static kl_tensor example_gelu(const kl_tensor *a) { return kl_gelu(a[0]); }
static kl_tensor example_relu(const kl_tensor *a) { return kl_relu(a[0]); }

static const struct composite {
    const char *name;
    uint32_t nin;
    kl_tensor (*call)(const kl_tensor *in);
} composites[] = {{"sum", 1, all_sum}, {"mean", 1, all_mean}, {"softmax", 1, last_softmax},
                  {"matmul", 2, dispatch_product},
                  {"gelu", 1, example_gelu}, {"relu", 1, example_relu}};

static const struct composite *composite_find(const char *name)
{
    for (unsigned i = 0; i < sizeof composites / sizeof *composites; i++)
        if (!strcmp(composites[i].name, name))
            return &composites[i];
    return NULL;
}

/* "f32[2,3]"; false: no valid type. */
static bool parse_type(const char *s, unsigned *dtype, int *rank, int64_t *dims)
{
    size_t n = strcspn(s, "[");
    for (*dtype = 0; *dtype < KL_DTYPE_COUNT; ++*dtype)
        if (strlen(dtype_name(*dtype)) == n && !strncmp(dtype_name(*dtype), s, n))
            break;
    if (*dtype == KL_DTYPE_COUNT || s[n] != '[')
        return false;
    s += n + 1;
    for (*rank = 0; *s != ']'; ++*rank) {
        char *end;
        if (*rank == KL_MAX_RANK || *s < '0' || *s > '9')
            return false;
        dims[*rank] = strtoll(s, &end, 10);
        s = end + (*end == ',' && end[1] != ']');
    }
    return !s[1];
}

enum { MAX_COUNT = 4 };
struct explained {
    const char *op, *arg[MAX_COUNT];
    uint32_t narg;
    kl_device device;
    kl_tensor in[MAX_COUNT];
};

/* Makes zeros of the given types; by default f32[4] for each operand. false: reported. */
static bool make_inputs(struct explained *x, uint32_t nin)
{
    if (x->narg && x->narg != nin)
        return cli_error("%s takes %u operand%s, not %u", x->op, nin, nin == 1 ? "" : "s", x->narg), false;
    for (uint32_t i = 0; i < nin; i++) {
        unsigned dtype;
        int rank;
        int64_t dims[KL_MAX_RANK];
        const char *type = x->narg ? x->arg[i] : "f32[4]";
        if (!parse_type(type, &dtype, &rank, dims))
            return cli_error("'%s' is no type: one is f32[2,3]", type), false;
        size_t bytes = dtype_size(dtype);
        for (int k = 0; k < rank; k++)
            if (__builtin_mul_overflow(bytes, (size_t)dims[k], &bytes))
                return cli_error("'%s' is too large", type), false;
        void *zeros = mem_alloc(bytes + 1);
        x->in[i] = zeros ? kl_input(x->device, (kl_dtype)dtype, rank, dims, zeros) : kl_none;
        mem_free(zeros);
        if (kl_check(x->in[i]) != KL_OK)
            return cli_error("%s", kl_last_error()), false;
    }
    x->narg = nin;
    return true;
}

static void print_keys_of(const struct explained *x, const struct dispatch_op *op)
{
    char set[400];
    kl_keyset keys = kl_dispatch_keys(x->narg, x->in);
    printf("keys: %s\n", kl_keyset_text(keys, set, sizeof set));
    if (!op)
        return;
    kl_key key = kl_dispatch_resolve(op->name, keys);
    const struct op_kernel *k = atomic_load_explicit(&op->entry[key], memory_order_acquire);
    printf("schema: %s\nresolved: %s, kernel \"%s\"\n", op->schema, kl_key_name(key), k ? k->name : "none");
    printf("table:\n%s", kl_dispatch_dump_table(op->name));
}

/* Records the call in a trace; returns its graph with the results as outputs, NULL: reported. */
static struct graph *record_call(struct explained *x, const struct composite *c)
{
    kl_tensor out = kl_none;
    kl_trace_begin(x->op);
    if (!make_inputs(x, c ? c->nin : dispatch_find(x->op)->nin)) {
        kl_trace_abandon();
        return NULL;
    }
    print_keys_of(x, dispatch_find(x->op));
    kl_dispatch_log_begin();
    if (c)
        out = c->call(x->in);
    else
        kl_dispatch(x->op, x->narg, x->in, 1, &out);
    printf("dispatched:\n%s", kl_dispatch_log_end());
    struct trace *tr = thread_trace(thread_self());
    struct err e = {0};
    ref r = tr && !tr->err.code ? node_of_handle(tr, out, "the result", &e) : NIL;
    struct graph *g = r ? graph_clone(tr->r.g) : NULL;
    if (g && !graph_output(g, OUT_RETURN, r, 0)) {
        graph_free(g);
        g = NULL;
    }
    if (!g)
        cli_error("%s", *kl_last_error() ? kl_last_error() : "out of memory");
    kl_trace_abandon();
    return g;
}

static void take_operand(struct cli_args *a, void *explained)
{
    struct explained *x = explained;
    if (!a->option && x->narg < MAX_COUNT)
        x->arg[x->narg++] = a->value;
    else
        a->failed = cli_unexpected(a) != CLI_OK;
}

int cli_explain(int argc, char **argv)
{
    struct explained x = {0};
    const char *device = NULL, *target = NULL;
    const struct cli_option options[] = {{"--device", .value = &device}, {"--target", .value = &target},
                                         {.value = &x.op, .needed = true},
                                         {.take = take_operand, .ctx = &x}, {0}};
    if (!cli_parse(argc, argv, options, "explain needs an op"))
        return CLI_USAGE;
    int number = cli_device(device);
    if (number < 0)
        return CLI_FAILED;
    x.device = device_of((unsigned)number);
    const struct composite *c = composite_find(x.op);
    const struct dispatch_op *op = thread_self() ? dispatch_find(x.op) : NULL;
    if (!c && !(op && op->graph_op && op_is_elementwise(op->graph_op)))
        return cli_error(
            "'%s' is no op that can be called with tensors alone: those are the elementwise ones of kiln ops, sum, "
            "mean, softmax, matmul, gelu and relu",
            x.op);
    printf("op: %s\n", x.op);
    struct graph *g = record_call(&x, c);
    bool code = number != DEVICE_REF || target;
    const char *const stage[] = {"captured", "fused", "scheduled", target ? "source" : "llvm"};
    const char *const title[] = {"recorded", "fused", "kernels", "source"};
    int status = g ? CLI_OK : CLI_FAILED;
    for (int i = 0; i < (code ? 4 : 2) && status == CLI_OK; i++) {
        struct dump_request r = {.stage = stage[i], .target = i < 2 ? NULL : target, .device = number,
                                 .fuse = option_fuse()};
        struct err e = {0};
        printf("%s:\n", title[i]);
        status = dump_write(g, &r, stdout, &e) ? CLI_OK : cli_error("%s", e.msg);
    }
    graph_free(g);
    return status;
}
