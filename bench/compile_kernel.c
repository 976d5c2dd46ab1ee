/* Time of the code generator: one kernel from loop IR to loaded code, elementwise and with reductions along rows. */
#include "bench.h"
#include "passes/passes.h"
#include "runtime/runtime.h"

enum { ROUNDS = 40 };

#define GRAPH(name, body) "graph @" name " {\n" body "}\n"
#define ROWS "f32[4096,1024]"
#define ROW "f32[4096,1]"

/* A row's softmax %p, then its normalisation %z. */
#define SOFTMAX \
    "%x = input 0 : " ROWS "\n%m = reduce_max %x axes(1) : " ROW "\n%mx = expand %m : " ROWS "\n" \
    "%d = sub %x, %mx : " ROWS \
    "\n%e = exp %d : " ROWS "\n%s = sum %e axes(1) : " ROW "\n%sx = expand %s : " ROWS "\n" \
    "%p = div %e, %sx : " ROWS "\n"
#define NORMALISE \
    "%n = const 1024 : f32[]\n%nr = reshape %n : f32[1,1]\n%nx = expand %nr : " ROW "\n%a = sum %p axes(1) : " ROW \
    "\n%am = div %a, %nx : " ROW "\n%ax = expand %am : " ROWS "\n%c = sub %p, %ax : " ROWS "\n%q = mul %c, %c : " ROWS \
    "\n%v = sum %q axes(1) : " ROW "\n%vm = div %v, %nx : " ROW "\n%r = rsqrt %vm : " ROW "\n%rx = expand %r : " ROWS \
    "\n%z = mul %c, %rx : " ROWS "\n"

/* Elementwise ops on a million elements. */
#define LONG "[1000000]\n"
#define OP(to, what) "%" to " = " what " : f32" LONG
#define TEST(to, what) "%" to " = " what " : bool" LONG

/* gelu(a * b + c) * d + tanh(e): the chain of bench fusion. */
#define NUMBER(to, value) \
    "%" to "0 = const " value " : f32[]\n%" to "1 = reshape %" to "0 : f32[1]\n" OP(to, "expand %" to "1")
#define CLAMPED \
    NUMBER("hi", "30.0") NUMBER("lo", "-30.0") TEST("over", "gt %x, %hi") OP("y", "where %over, %hi, %x") \
    TEST("under", "lt %y, %lo") OP("z", "where %under, %lo, %y")
#define CUBIC \
    NUMBER("c3", "0.071354814") NUMBER("c1", "1.5957692") OP("zz", "mul %z, %z") OP("q3", "mul %zz, %c3") \
    OP("q", "add %q3, %c1") OP("u", "mul %z, %q")
#define SIGMOID \
    NUMBER("one", "1.0") NUMBER("nil", "0.0") TEST("below", "lt %u, %nil") OP("v", "neg %u") \
    OP("w", "where %below, %u, %v") OP("p", "exp %w") OP("p1", "add %one, %p") OP("r", "div %one, %p1") \
    OP("pr", "mul %p, %r") OP("s", "where %below, %pr, %r")
#define GELU_CHAIN \
    OP("a", "input 0") OP("b", "input 1") OP("c", "input 2") OP("d", "input 3") OP("e", "input 4") \
    OP("ab", "mul %a, %b") OP("x", "add %ab, %c") CLAMPED CUBIC SIGMOID OP("g", "mul %x, %s") \
    OP("gd", "mul %g, %d") OP("t", "tanh %e") OP("res", "add %gd, %t")

static const struct { const char *name, *text; } cases[] = {
    {"add", GRAPH("add", OP("a", "input 0") OP("b", "input 1") OP("c", "add %a, %b") "return %c\n")},
    {"exp", GRAPH("exp", OP("a", "input 0") OP("b", "exp %a") "return %b\n")},
    {"chain", GRAPH("chain", OP("a", "input 0") OP("b", "input 1") OP("c", "input 2") OP("d", "mul %a, "
    "%b") OP("e", "add %d, %c")
                             OP("f", "tanh %e") OP("g", "mul %f, %e") OP("h", "tanh %c") OP("i", "add %g, "
                             "%h") "return %i\n")},
    {"gelu-chain", GRAPH("gelu", GELU_CHAIN "return %res\n")},
    {"sum", GRAPH("sum", OP("a", "input 0") "%s = sum %a axes(0) : f32[1]\nreturn %s\n")},
    {"softmax", GRAPH("softmax", SOFTMAX "return %p\n")},
    {"five-reductions", GRAPH("five", SOFTMAX NORMALISE "%w = mul %z, %x : " ROWS "\n%y = sum %w axes(1) : " ROW "\n"
                                     "return %z\nreturn %y\n")},
    {"product", GRAPH("product", "%a = input 0 : f32[128,512]\n%b = input 1 : f32[512,512]\n"
                                 "%c = dot %a, %b contract(1; 0) : f32[128,512]\nreturn %c\n")},
    {"attention", GRAPH("attention", "%q = input 0 : f32[8,1024,64]\n%k = input 1 : f32[8,1024,64]\n"
    "%v = input 2 : f32[8,1024,64]\n"
                                     "%y = attention %q, %k, %v scale(0.125) causal : f32[8,1024,64]\nreturn %y\n")},
};

static struct program *plan(const char *text, const struct caps *caps, struct err *e)
{
    struct graph *g = graph_parse(text, strlen(text), "case", e);
    if (!g)
        return NULL;
    struct program *p = NULL;
    if (passes_run(g, &(struct pass_options){.fuse = true}))
        p = program_plan(g, caps, false, e);
    else
        err_set(e, g->err.code, "%s", g->err.msg);
    graph_free(g);
    return p;
}

/* Compiles all kernels of a program: the cases have one each. */
static bool compile(const struct program *p, const struct backend *b, struct samples *took, struct err *e)
{
    double start = measure_cpu_now();
    for (uint32_t i = 0; i < p->nkernel; i++) {
        struct code code = {0};
        struct loaded loaded;
        bool ok = b->compile(p->kernel[i], EMIT_OBJECT, &code, e) && object_load(&code, &loaded, e);
        mem_free(code.bytes);
        if (!ok)
            return false;
        object_unload(&loaded);
    }
    samples_add(took, measure_cpu_now() - start);
    return true;
}

static bool run_case(struct bench *b, size_t i, int device, struct err *e)
{
    struct caps caps;
    const struct backend *backend = device_backend(device, &caps);
    struct samples took = {.n = 0};
    struct program *p = plan(cases[i].text, &caps, e);
    bool ok = p != NULL;
    if (ok && p->nkernel != 1)
        printf("%s: %u kernels\n", cases[i].name, p->nkernel);
    for (int round = 0; ok && round < bench_rounds(b, ROUNDS); round++)
        ok = compile(p, backend, &took, e);
    if (ok)
        bench_add(b, cases[i].name, "fused", 1, &took, "us", 0, 0);
    program_free(p);
    return ok;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct err e = {0};
    if (!bench_open(&b, "compile_kernel", argc, argv))
        return b.status;
    int device = device_find("cpu", &e);
    for (size_t i = 0; device >= 0 && !e.code && i < sizeof cases / sizeof *cases; i++)
        if (bench_wants(&b, cases[i].name))
            run_case(&b, i, device, &e);
    if (e.code) {
        fprintf(stderr, "bench_compile_kernel: %s\n", e.msg);
        return 1;
    }
    return bench_close(&b);
}
