/* Products of half floats by Vulkan's cooperative matrices.
 *
 *   gpu_matrices M N K         a device with such matrices, of f16 and bf16
 *   gpu_matrices M N K f16     of f16 alone
 *   gpu_matrices M N K wrong   a device whose products are wrong: Kiln must notice, and compute without them
 *
 * Mesa's device on the CPU need not have such matrices.  So a loader in front of the driver says that it has them
 * (vulkan_matrices.c), and a compiler in front of the real one checks the SPIR-V with matrices, and compiles plain code
 * in their place (matrix_compiler.c).  All else is what runs on a GPU. */
#define _GNU_SOURCE
#include "passes/passes.h"
#include "runtime/device/devices.h"
#include "tests/gpu/gpu_kernels.h"
#include "vulkan_matrices.h"
#include <dlfcn.h>
#include <libgen.h>
#include <unistd.h>

static struct rng rng = {123};
static struct matrix_compiler *compiler;

/* A graph of gpu_product. */
static struct graph *product(unsigned dtype, int64_t m, int64_t n, int64_t k, enum gpu_what what)
{
    static const char *const names[] = {"plain", "transposed", "computed", "epilogue"};
    struct graph *g = graph_new(names[what]);
    ref y = gpu_product(g, dtype, m, n, k, what);
    if (what == EPILOGUE)
        y = n_max(g, n_add(g, y, y), n_input(g, dtype, node_shape(g, y), "c"));
    graph_output(g, OUT_RETURN, y, 0);
    return g;
}

/* Sums are added in another order: errors are relative to the largest result. */
static bool near(unsigned dtype, const void *want, const void *got, int64_t n, int64_t *at)
{
    double max = 0;
    for (int64_t i = 0; i < n; i++)
        max = fmax(max, fabs(element_value(dtype, want, i)));
    for (*at = 0; *at < n; ++*at)
        if (!(fabs(element_value(dtype, want, *at) - element_value(dtype, got, *at)) <=
              ldexp(max, dtype == KL_BF16 ? -7 : -10)))
            return false;
    return true;
}

/* matrices: must the product be by matrices? */
static void try(unsigned dtype, int64_t m, int64_t n, int64_t k, enum gpu_what what, bool matrices)
{
    struct graph *g = product(dtype, m, n, k, what);
    struct values in, none = {0}, want = {0}, got = {0};
    struct err e = {0};
    int64_t at = 0;
    unsigned before = compiler->kernels;
    char name[128];
    snprintf(name, sizeof name, "%s %s %d x %d x %d", dtype_name(dtype), g->name, (int)m, (int)n, (int)k);
    values_random(&rng, g, &g->input, false, &in);
    if (check(run_on(g, "ref", true, &in, &none, NULL, &want, &e) &&
              run_on(g, "vulkan", true, &in, &none, NULL, &got, &e), "%s: %s", name, e.msg)) {
        bool ok = near(dtype, want.v[0], got.v[0], node_numel(g, g->out[0].value), &at);
        at = ok ? 0 : at;
        check(ok, "%s: element %d is %g, not %g", name, (int)at, element_value(dtype, got.v[0], at),
              element_value(dtype, want.v[0], at));
    }
    check((compiler->kernels != before) == matrices, "%s: %u kernels by matrices", name, compiler->kernels - before);
    values_free(&in);
    values_free(&want);
    values_free(&got);
    graph_free(g);
}

static void products(bool f16, bool bf16)
{
    static const int64_t shape[][3] = {{64, 64, 64}, {33, 70, 21}, {100, 24, 200}, {64, 40, 96}};
    for (unsigned i = 0; i < sizeof shape / sizeof *shape; i++) {
        try(i & 1 ? KL_BF16 : KL_F16, shape[i][0], shape[i][1], shape[i][2], (enum gpu_what)i, i & 1 ? bf16 : f16);
        try(i & 1 ? KL_F16 : KL_BF16, shape[i][0], shape[i][1], shape[i][2], (enum gpu_what)((i + 2) % WHATS),
            i & 1 ? f16 : bf16);
    }
}

/* Loads a library of this program's folder; NULL: there is none. */
static void *beside(const char *folder, const char *library)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, library);
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

int main(int argc, char **argv)
{
    char self[4096] = "";
    struct err e = {0};
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *folder = n > 0 ? dirname(self) : ".", *how = argc > 4 ? argv[4] : "";
    void *loader = beside(folder, "vulkan_matrices.so"), *shaderc = beside(folder, "libkiln-shaderc.so");
    struct vulkan_matrices_loader *l = loader ? dlsym(loader, "vulkan_matrices") : NULL;
    compiler = shaderc ? dlsym(shaderc, "matrix_compiler") : NULL;
    setenv("KILN_CACHE_DIR", "none", 1); /* what this compiler makes is for this program alone */
    if (l && compiler && argc > 3) {
        *l = (struct vulkan_matrices_loader){.m = (unsigned)atoi(argv[1]), .n = (unsigned)atoi(argv[2]),
                                             .k = (unsigned)atoi(argv[3]), .bf16 = strcmp(how, "f16") != 0};
        compiler->wrong = !strcmp(how, "wrong");
    }
    int device = l && compiler ? device_find("vulkan", &e) : -1;
    if (device < 0) {
        printf("SKIP no-device vulkan: %s\n", l && compiler ? e.msg : "no loader was found when this was built");
        skipped++;
        return finish();
    }
    struct caps caps;
    device_backend(device, &caps);
    bool works = !compiler->wrong;
    check(l->asked, "the device was not asked for what matrices need");
    check(compiler->kernels == 1u + l->bf16, "%u kernels try out the device", compiler->kernels);
    const struct mma_caps *u = &caps.mma[0];
    check(strstr(caps.features, "matrix_f16_") && (u->m == l->m) == works && (u->n == l->n) == works &&
          (u->k == l->k) == works, "unit %ux%ux%u of %s", u->m, u->n, u->k, caps.features);
    products(works, works && l->bf16);
    check(!compiler->refused, "%u of %u kernels: %s", compiler->refused, compiler->kernels, compiler->why);
    return finish();
}
