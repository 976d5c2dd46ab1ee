/* Programs as one module: the objects that runtime/aot/image.h describes. */
#include "emit.h"
#include <string.h>

/* The kernels, each a function with internal linkage, and a table of them.  made: functions by the kernels' numbers;
 * those that are NULL are emitted. */
static LLVMValueRef emit_kernels(const struct object_parts *o, const struct caps *target, LLVMModuleRef module,
                                 LLVMContextRef ctx, LLVMValueRef *made, struct err *e)
{
    LLVMTypeRef ptr = LLVMPointerTypeInContext(ctx, 0);
    LLVMValueRef *fn = mem_alloc((o->nkernel + 1) * sizeof *fn);
    if (!fn)
        err_set(e, KL_ERR_MEMORY, "out of memory emitting %s", o->prefix);
    for (uint32_t i = 0; i < o->nkernel && !e->code; i++) {
        char name[160];
        fn[i] = made[o->number[i]];
        if (fn[i])
            continue;
        snprintf(name, sizeof name, "%.63s.%u.%.63s", o->prefix, i, o->kernel[i]->name);
        if (emit_kernel(o->kernel[i], name, target, module, ctx, e)) {
            fn[i] = LLVMGetNamedFunction(module, name);
            LLVMSetLinkage(fn[i], LLVMInternalLinkage);
            made[o->number[i]] = fn[i];
        }
    }
    LLVMValueRef table = NULL;
    if (!e->code) {
        table = LLVMAddGlobal(module, LLVMArrayType2(ptr, o->nkernel), "kernels");
        LLVMSetInitializer(table, LLVMConstArray2(ptr, fn, o->nkernel));
        LLVMSetGlobalConstant(table, true);
        LLVMSetLinkage(table, LLVMInternalLinkage);
    }
    mem_free(fn);
    return table;
}

static LLVMValueRef emit_image(const struct object_parts *o, LLVMModuleRef module, LLVMContextRef ctx)
{
    LLVMValueRef bytes = LLVMConstStringInContext2(ctx, o->image, o->image_bytes, true);
    LLVMValueRef image = LLVMAddGlobal(module, LLVMTypeOf(bytes), "image");
    LLVMSetInitializer(image, bytes);
    LLVMSetGlobalConstant(image, true);
    LLVMSetLinkage(image, LLVMInternalLinkage);
    LLVMSetAlignment(image, 64);
    return image;
}

/* Function PREFIX_name, which calls kiln_aot_name with first[] and then its own parameters. */
static void emit_entry(const struct object_parts *o, LLVMModuleRef module, LLVMContextRef ctx, const char *name,
                       LLVMTypeRef result, const LLVMValueRef *first, unsigned nfirst, unsigned nparam)
{
    enum { MAX_COUNT = 4 };
    char text[256];
    LLVMTypeRef ptr = LLVMPointerTypeInContext(ctx, 0), type[MAX_COUNT] = {ptr, ptr, ptr, ptr};
    LLVMTypeRef inner = LLVMFunctionType(result, type, nfirst + nparam, false);
    LLVMTypeRef outer = LLVMFunctionType(result, type, nparam, false);
    snprintf(text, sizeof text, "kiln_aot_%s", name);
    LLVMValueRef callee = LLVMGetNamedFunction(module, text), arg[MAX_COUNT];
    callee = callee ? callee : LLVMAddFunction(module, text, inner);
    snprintf(text, sizeof text, "%s_%s", o->prefix, name);
    LLVMValueRef fn = LLVMAddFunction(module, text, outer);
    LLVMBuilderRef b = LLVMCreateBuilderInContext(ctx);
    LLVMPositionBuilderAtEnd(b, LLVMAppendBasicBlockInContext(ctx, fn, "entry"));
    for (unsigned i = 0; i < nfirst; i++)
        arg[i] = first[i];
    for (unsigned i = 0; i < nparam; i++)
        arg[nfirst + i] = LLVMGetParam(fn, i);
    LLVMValueRef call = LLVMBuildCall2(b, inner, callee, arg, nfirst + nparam, "");
    LLVMSetTailCall(call, true);
    LLVMBuildRet(b, call);
    LLVMDisposeBuilder(b);
}

bool emit_object(const struct object_parts *o, uint32_t n, const struct caps *target, LLVMModuleRef module,
                 LLVMContextRef ctx, struct err *e)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < n; i++)
        all += o[i].nkernel;
    LLVMValueRef *made = mem_alloc((all + 1) * sizeof *made);
    if (!made)
        err_set(e, KL_ERR_MEMORY, "out of memory emitting %s", n ? o->prefix : "an object");
    for (uint32_t i = 0; i < n && !e->code; i++) {
        LLVMValueRef kernels = emit_kernels(&o[i], target, module, ctx, made, e);
        if (!kernels)
            break;
        LLVMValueRef image = emit_image(&o[i], module, ctx);
        emit_entry(&o[i], module, ctx, "run", LLVMInt32TypeInContext(ctx), (LLVMValueRef[]){image, kernels}, 2, 1);
        emit_entry(&o[i], module, ctx, "workspace_bytes", LLVMInt64TypeInContext(ctx), &image, 1, 0);
    }
    mem_free(made);
    return !e->code;
}
