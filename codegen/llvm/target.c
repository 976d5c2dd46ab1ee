/* What code generation knows of a processor: its vectors, its features, and those for which programs are compiled
 * ahead of time. */
#include "codegen/codegen.h"
#include "emit.h"
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

bool target_has(const struct caps *c, const char *f)
{
    char key[40];
    snprintf(key, sizeof key, "+%s,", f);
    size_t n = strlen(key) - 1; /* the last one has no comma */
    for (const char *s = c->features; (s = strstr(s, "+")); s++)
        if (!strncmp(s, key, n) && (s[n] == ',' || !s[n]))
            return true;
    return false;
}

bool target_is(const struct caps *c, const char *arch) { return !strcmp(*c->arch ? c->arch : HOST_ARCH, arch); }

void target_vectors(struct caps *c)
{
    bool x86 = target_is(c, "x86_64");
    bool wide = target_has(c, "avx512f") && target_has(c, "avx512bw") && target_has(c, "avx512vl");
    c->vector_bytes = wide ? 64 : target_has(c, "avx2") ? 32 : 16;
    c->vector_regs = wide || target_is(c, "aarch64") ? 32 : 16;
    c->half_vectors = wide && !strcmp(c->name, "znver4"); /* its units have 256 bits */
    c->mma_bytes = x86 || target_is(c, "aarch64") ? 4 : 0;
    c->bf16_tiles = x86 && wide && target_has(c, "amx-tile") && target_has(c, "amx-bf16");
    /* Intel's cores with AMX, which a hypervisor may hide, have one slow unit for vdpbf16ps: half the rate of fma. */
    c->dot2 = x86 && wide && target_has(c, "avx512bf16") && !target_has(c, "amx-bf16") && !strstr(c->name, "rapids");
}

#if defined(__aarch64__)
/* Bits of the auxiliary vector (Linux's arch/arm64/include/uapi/asm/hwcap.h), and what LLVM calls these features. */
static const struct { const char *name; unsigned long type; unsigned bit; } reported[] = {
    {"neon", AT_HWCAP, 1}, {"lse", AT_HWCAP, 8}, {"fullfp16", AT_HWCAP, 10}, {"dotprod", AT_HWCAP, 20},
    {"sve", AT_HWCAP, 22}, {"i8mm", AT_HWCAP2, 13}, {"bf16", AT_HWCAP2, 14},
};

/* LLVM reads /proc/cpuinfo, which has not all of them. */
void target_host_features(char *features, size_t size)
{
    size_t n = 0;
    *features = 0;
    for (size_t i = 0; i < sizeof reported / sizeof *reported && n < size; i++) {
        bool has = getauxval(reported[i].type) >> reported[i].bit & 1;
        n += (size_t)snprintf(features + n, size - n, "%s%c%s", i ? "," : "", has ? '+' : '-', reported[i].name);
    }
}
#endif

/* The levels of the x86-64 psABI that have fused multiply-adds and half floats; AArch64 always has both. */
#define LEVEL3 "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sse4.2"
static const struct { const char *cpu, *arch, *name, *features; } list[] = {
    {"x86-64", "x86_64", "x86-64-v3", LEVEL3},
    {"x86-64-v3", "x86_64", "x86-64-v3", LEVEL3},
    {"x86-64-v4", "x86_64", "x86-64-v4", LEVEL3 ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"},
    {"aarch64", "aarch64", "generic", "+neon"},
    {"armv8.4-a", "aarch64", "generic", "+neon,+lse,+dotprod"}, /* of features that kernels use, what the level has */
    {"armv8.6-a", "aarch64", "generic", "+neon,+lse,+dotprod,+i8mm,+bf16"},
};
enum { NAMES = sizeof list / sizeof *list };

bool target_named(const char *cpu, struct caps *out, struct err *e)
{
    /* of "baseline" on a machine of no architecture in the list */
    const char *arch = HOST_ARCH, *name = "generic", *features = "";
    char names[256] = "native, baseline";
    bool baseline = !strcmp(cpu, "baseline"), found = baseline;
    for (int i = NAMES; i-- > 0;) {
        /* the first of its architecture */
        if (baseline ? !strcmp(list[i].arch, HOST_ARCH) : !strcmp(cpu, list[i].cpu)) {
            arch = list[i].arch, name = list[i].name, features = list[i].features;
            found = true;
        }
    }
    for (int i = 0; i < NAMES; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), ", %s", list[i].cpu);
    if (!found)
        return err_set(e, KL_ERR_ARGUMENT, "no processor is called '%s': there are %s", cpu, names);
    *out = (struct caps){.threads = 1, .l1_bytes = 32 << 10, .l2_bytes = 1 << 20, .l3_bytes = 8 << 20};
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(out->features, sizeof out->features, "%s", features);
    snprintf(out->arch, sizeof out->arch, "%s", strcmp(arch, HOST_ARCH) ? arch : "");
    target_vectors(out);
    return true;
}
