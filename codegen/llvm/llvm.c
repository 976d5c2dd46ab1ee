/* The LLVM backend: kernel to object through the LLVM 19 C API, for the processor it runs on. */
#include "codegen/codegen.h"
#include "emit.h"
#include <llvm-c/Analysis.h>
#include <llvm-c/Error.h>
#include <llvm-c/Support.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
    char *triple, *cpu, *features;
    LLVMTargetRef target;
    struct caps caps;
    struct caps native;      /* without the restrictions of sanitizer builds */
    struct err err;
} host;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Target machines are not shared between threads, and making one costs as much as compiling a small kernel. */
enum { MAX_SPARE = 16 };
static LLVMTargetMachineRef spare[MAX_SPARE];
static unsigned nspare;
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;

static int64_t cache_size(int name, int64_t otherwise)
{
    long n = sysconf(name);
    return n > 0 ? n : otherwise;
}

/* The size of one cache; the other function adds up several. */
static int64_t last_level_size(void)
{
    unsigned long kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    bool ok = f && fscanf(f, "%luK", &kib) == 1 && kib > 0 && kib < 1ul << 30;
    if (f)
        fclose(f);
    return ok ? (int64_t)kib << 10 : cache_size(_SC_LEVEL3_CACHE_SIZE, 8 << 20);
}

static void fill_caps(void)
{
    struct caps *c = &host.caps;
    snprintf(c->name, sizeof c->name, "%s", host.cpu);
    snprintf(c->features, sizeof c->features, "%s", host.features);
    target_vectors(c);
    c->threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    c->l1_bytes = cache_size(_SC_LEVEL1_DCACHE_SIZE, 32 << 10);
    c->l2_bytes = cache_size(_SC_LEVEL2_CACHE_SIZE, 1 << 20);
    c->l3_bytes = last_level_size();
}

/* Turns off passes that cost a third of the time of a small kernel and do not improve the code of any kind of kernel.
 * - Loop strength reduction needs analyses that nothing else uses; the address computations that the emitter leaves fit
 *   the addressing modes.
 * - The list scheduler after register allocation repeats the work of the one before it.
 * - Hoisting and common subexpression elimination find little, because emit_invariant.c and kernel_clean.c do both.
 * - The others handle code that the emitter does not make: addresses far from their use, copies, calls to memcmp or
 *   libm, expensive integer constants, arrays on the stack, equal ends of blocks, chains to reassociate, AMX tiles,
 *   paths that need no frame.
 *
 * These options are the only way to turn them off; they apply to every user of this libLLVM in the process. */
static void set_options(void)
{
    static const char *const option[] = {
        "kiln", "-disable-lsr", "-disable-post-ra", "-disable-cgp", "-disable-copyprop", "-disable-constant-hoisting",
        "-disable-mergeicmps", "-enable-shrink-wrap=false", "-disable-machine-cse", "-disable-machine-sink",
        "-disable-machine-dce", "-disable-postra-machine-licm", "-disable-branch-fold", "-disable-ssc",
        "-disable-replace-with-vec-lib",
#if defined(__x86_64__)
        "-x86-machine-combiner=false", "-x86-tile-ra=false",
        "-disable-machine-licm", /* masks are memory operands here, not instructions that could be hoisted */
#endif
    };
    LLVMParseCommandLineOptions(sizeof option / sizeof *option, option, NULL);
}

static void llvm_init(void)
{
    char *why = NULL;
    set_options();
    LLVMInitializeNativeTarget();
    LLVMInitializeNativeAsmPrinter();
    host.triple = LLVMGetDefaultTargetTriple();
    host.cpu = LLVMGetHostCPUName();
#if defined(__aarch64__)
    static char features[sizeof host.caps.features];
    target_host_features(features, sizeof features);
    host.features = features;
#else
    host.features = LLVMGetHostCPUFeatures();
#endif
    if (LLVMGetTargetFromTriple(host.triple, &host.target, &why)) {
        err_set(&host.err, KL_ERR_DEVICE, "LLVM: no target for %s: %s", host.triple, why);
        LLVMDisposeMessage(why);
        return;
    }
    fill_caps();
    host.native = host.caps;
#if defined(KILN_TSAN)
    host.caps.vector_bytes = 16; /* the widest access that the thread sanitizer's pass instruments */
    host.caps.vector_regs = 16;
#endif
#if defined(KILN_TSAN) || defined(KILN_ASAN)
    host.caps.bf16_tiles = 0; /* the passes do not instrument its instructions */
#endif
#if defined(__x86_64__)
    if (!target_has(&host.caps, "fma"))
        err_set(&host.err, KL_ERR_DEVICE,
                "LLVM: this processor (%s) has no fused multiply-add, which Kiln's arithmetic needs", host.cpu);
    if (!target_has(&host.caps, "f16c"))
        err_set(&host.err, KL_ERR_DEVICE, "LLVM: this processor (%s) does not convert half floats (f16c)", host.cpu);
#endif
}

/* What a sanitizer looks at is in the module before machine code is made: making that fast is no use there. */
#if defined(KILN_ASAN) || defined(KILN_TSAN)
static const LLVMCodeGenOptLevel codegen_level = LLVMCodeGenLevelNone;
#else
static const LLVMCodeGenOptLevel codegen_level = LLVMCodeGenLevelDefault;
#endif

static LLVMTargetMachineRef machine_of(LLVMTargetRef target, const char *triple, const char *cpu,
                                       const char *features)
{
    return LLVMCreateTargetMachine(target, triple, cpu, features, codegen_level, LLVMRelocPIC, LLVMCodeModelSmall);
}

static LLVMTargetMachineRef machine_new(const char *cpu, const char *features)
{
    return machine_of(host.target, host.triple, cpu, features);
}

static void init_other_targets(void)
{
    LLVMInitializeAllTargetInfos();
    LLVMInitializeAllTargets();
    LLVMInitializeAllTargetMCs();
    LLVMInitializeAllAsmPrinters();
}

/* For a processor that may be of another architecture than this machine's.  NULL: this LLVM has no code generator for
 * it. */
static LLVMTargetMachineRef machine_for(const struct caps *t, struct err *e)
{
    static pthread_once_t others = PTHREAD_ONCE_INIT;
    char triple[64], *why = NULL;
    LLVMTargetRef target;
    if (!*t->arch)
        return machine_new(t->name, t->features);
    pthread_once(&others, init_other_targets);
    snprintf(triple, sizeof triple, "%s-unknown-linux-gnu", t->arch);
    if (!LLVMGetTargetFromTriple(triple, &target, &why))
        return machine_of(target, triple, t->name, t->features);
    err_set(e, KL_ERR_DEVICE, "LLVM: no target for %s: %s", triple, why);
    LLVMDisposeMessage(why);
    return NULL;
}

static LLVMTargetMachineRef machine_get(void)
{
    LLVMTargetMachineRef tm = NULL;
    pthread_mutex_lock(&spare_lock);
    if (nspare)
        tm = spare[--nspare];
    pthread_mutex_unlock(&spare_lock);
    return tm ? tm : machine_new(host.cpu, host.features);
}

static void machine_put(LLVMTargetMachineRef tm)
{
    pthread_mutex_lock(&spare_lock);
    if (nspare < MAX_SPARE) {
        spare[nspare++] = tm;
        tm = NULL;
    }
    pthread_mutex_unlock(&spare_lock);
    if (tm)
        LLVMDisposeTargetMachine(tm);
}

static bool llvm_caps(struct caps *out, struct err *e)
{
    pthread_once(&once, llvm_init);
    *out = host.caps;
    return !host.err.code || err_set(e, host.err.code, "%s", host.err.msg);
}

static bool copy_out(const char *bytes, size_t size, struct code *out, struct err *e)
{
    out->bytes = mem_alloc(size + 1);
    out->size = size;
    if (!out->bytes)
        return err_set(e, KL_ERR_MEMORY, "out of memory keeping a kernel's code");
    memcpy(out->bytes, bytes, size);
    return true;
}

/* Removes constructors: a loaded kernel runs none, because the sanitizer is initialised already and kernels register no
 * data. */
static void drop_constructors(LLVMModuleRef module)
{
    static const char *const list[] = {"llvm.global_ctors", "llvm.global_dtors", "llvm.used"};
    for (int i = 0; i < 3; i++) {
        LLVMValueRef v = LLVMGetNamedGlobal(module, list[i]);
        if (v)
            LLVMDeleteGlobal(v);
    }
    for (LLVMValueRef f = LLVMGetFirstFunction(module), next; f; f = next) {
        next = LLVMGetNextFunction(f);
        if (!LLVMCountBasicBlocks(f) || !strcmp(LLVMGetValueName(f), "kernel"))
            continue;
        /* the elements of the deleted lists still count as uses */
        LLVMReplaceAllUsesWith(f, LLVMConstNull(LLVMTypeOf(f)));
        LLVMDeleteFunction(f);
    }
}

/* Sanitizer builds instrument every kernel in the same way as the compiler instruments the library. */
static bool llvm_instrument(LLVMModuleRef module, LLVMTargetMachineRef tm, struct err *e)
{
    const char *pass = NULL;
#if defined(KILN_ASAN)
    pass = "asan";
#elif defined(KILN_TSAN)
    pass = "tsan-module,function(tsan)";
#endif
    if (!pass)
        return true;
    LLVMPassBuilderOptionsRef o = LLVMCreatePassBuilderOptions();
    LLVMErrorRef fail = LLVMRunPasses(module, pass, tm, o);
    LLVMDisposePassBuilderOptions(o);
    drop_constructors(module);
    if (!fail)
        return true;
    char *msg = LLVMGetErrorMessage(fail);
    err_set(e, KL_ERR_COMPILE, "LLVM: pass %s: %s", pass, msg);
    LLVMDisposeErrorMessage(msg);
    return false;
}

static bool llvm_verify(LLVMModuleRef module, const char *name, struct err *e)
{
#if !defined(NDEBUG)
    char *why = NULL;
    if (LLVMVerifyModule(module, LLVMReturnStatusAction, &why))
        err_set(e, KL_ERR_INTERNAL, "kernel %s: LLVM refuses it: %s", name, why);
    LLVMDisposeMessage(why);
#else
    (void)module, (void)name;
#endif
    return !e->code;
}

static bool llvm_generate(LLVMModuleRef module, LLVMTargetMachineRef tm, const char *name, enum emit_kind kind,
                     struct code *out, struct err *e)
{
    if (kind == EMIT_LLVM) {
        char *text = LLVMPrintModuleToString(module);
        bool ok = copy_out(text, strlen(text), out, e);
        LLVMDisposeMessage(text);
        return ok;
    }
    LLVMMemoryBufferRef buf;
    char *why = NULL;
    if (LLVMTargetMachineEmitToMemoryBuffer(tm, module, kind == EMIT_ASM ? LLVMAssemblyFile : LLVMObjectFile, &why,
                                            &buf)) {
        err_set(e, KL_ERR_COMPILE, "kernel %s: LLVM cannot compile it: %s", name, why);
        LLVMDisposeMessage(why);
        return false;
    }
    bool ok = copy_out(LLVMGetBufferStart(buf), LLVMGetBufferSize(buf), out, e);
    LLVMDisposeMemoryBuffer(buf);
    return ok;
}

static LLVMModuleRef module_new(const char *name, LLVMContextRef ctx, LLVMTargetMachineRef tm)
{
    LLVMModuleRef module = LLVMModuleCreateWithNameInContext(name, ctx);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(tm);
    char *triple = LLVMGetTargetMachineTriple(tm);
    LLVMSetModuleDataLayout(module, layout);
    LLVMSetTarget(module, triple);
    LLVMDisposeMessage(triple);
    LLVMDisposeTargetData(layout);
    return module;
}

static bool compile_with(LLVMTargetMachineRef tm, const struct caps *target, const struct kernel *k,
                         enum emit_kind kind,
                         struct code *out, struct err *e)
{
    LLVMContextRef ctx = LLVMContextCreate();
    LLVMModuleRef module = module_new(k->name, ctx, tm);
    bool ok = emit_kernel(k, "kernel", target, module, ctx, e) && llvm_verify(module, k->name, e) &&
              llvm_instrument(module, tm, e) && llvm_generate(module, tm, k->name, kind, out, e);
    LLVMDisposeModule(module);
    LLVMContextDispose(ctx);
    return ok;
}

static bool llvm_compile(const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e)
{
    *out = (struct code){0};
    pthread_once(&once, llvm_init);
    if (host.err.code)
        return err_set(e, host.err.code, "%s", host.err.msg);
    struct caps caps = host.caps;
    caps.bf16_tiles = caps.bf16_tiles && tiles_permitted();
    LLVMTargetMachineRef tm = machine_get();
    bool ok = compile_with(tm, &caps, k, kind, out, e);
    machine_put(tm);
    return ok;
}

static bool compile_for(const struct kernel *k, const struct caps *target, enum emit_kind kind, struct code *out,
                        struct err *e)
{
    *out = (struct code){0};
    pthread_once(&once, llvm_init);
    if (!host.target)
        return err_set(e, host.err.code, "%s", host.err.msg);
    LLVMTargetMachineRef tm = machine_for(target, e);
    bool ok = tm && compile_with(tm, target, k, kind, out, e);
    if (tm)
        LLVMDisposeTargetMachine(tm);
    return ok;
}

static bool llvm_target(const char *cpu, struct caps *out, struct err *e)
{
    pthread_once(&once, llvm_init);
    if (!host.target)
        return err_set(e, host.err.code, "%s", host.err.msg);
    if (strcmp(cpu, "native"))
        return target_named(cpu, out, e);
    *out = host.native;
    out->bf16_tiles = 0; /* the process that runs the object may not have asked for them */
    return !host.err.code || err_set(e, host.err.code, "%s", host.err.msg);
}

/* One module for all kernels.  It is not instrumented: it is for programs without sanitizers. */
static bool llvm_object(const struct object_parts *o, uint32_t n, const struct caps *t, struct code *out, struct err *e)
{
    *out = (struct code){0};
    pthread_once(&once, llvm_init);
    if (!host.target)
        return err_set(e, host.err.code, "%s", host.err.msg);
    LLVMTargetMachineRef tm = machine_for(t, e);
    if (!tm)
        return false;
    LLVMContextRef ctx = LLVMContextCreate();
    LLVMModuleRef module = module_new(o->prefix, ctx, tm);
    bool ok = emit_object(o, n, t, module, ctx, e) && llvm_verify(module, o->prefix, e) &&
              llvm_generate(module, tm, o->prefix, EMIT_OBJECT, out, e);
    LLVMDisposeModule(module);
    LLVMContextDispose(ctx);
    LLVMDisposeTargetMachine(tm);
    return ok;
}

__attribute__((visibility("default"))) const struct backend *kiln_backend_llvm(void);

const struct backend *kiln_backend_llvm(void)
{
    static const struct backend b = {.name = "llvm",
                                     .abi = KERNEL_ABI,
                                     .memory = mem_use,
                                     .caps = llvm_caps,
                                     .version = llvm_version,
                                     .compiler = llvm_file,
                                     .compile = llvm_compile,
                                     .compile_for = compile_for,
                                     .target = llvm_target,
                                     .object = llvm_object};
    return &b;
}
