/* Processors that programs are compiled for ahead of time. */
#include "emit.h"
#include <string.h>

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

void target_vectors(struct caps *c)
{
    bool wide = target_has(c, "avx512f") && target_has(c, "avx512bw") && target_has(c, "avx512vl");
    c->vector_bytes = wide ? 64 : target_has(c, "avx2") ? 32 : 16;
    c->vector_regs = wide ? 32 : 16;
#if defined(__x86_64__)
    c->mma_bytes = 4;
#endif
}

/* The levels of the x86-64 psABI that have fused multiply-adds and half floats; elsewhere the least of the kind. */
static const struct { const char *cpu, *name, *features; } list[] = {
#if defined(__x86_64__)
#define LEVEL3 "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sse4.2"
    {"baseline", "x86-64-v3", LEVEL3},
    {"x86-64-v3", "x86-64-v3", LEVEL3},
    {"x86-64-v4", "x86-64-v4", LEVEL3 ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"},
#else
    {"baseline", "generic", ""},
#endif
};
enum { NAMES = sizeof list / sizeof *list };

bool target_named(const char *cpu, struct caps *out, struct err *e)
{
    char names[256] = "native";
    for (int i = 0; i < NAMES; i++) {
        if (!strcmp(cpu, list[i].cpu)) {
            *out = (struct caps){.threads = 1, .l1_bytes = 32 << 10, .l2_bytes = 1 << 20, .l3_bytes = 8 << 20};
            snprintf(out->name, sizeof out->name, "%s", list[i].name);
            snprintf(out->features, sizeof out->features, "%s", list[i].features);
            target_vectors(out);
            return true;
        }
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, ", %s", list[i].cpu);
    }
    return err_set(e, KL_ERR_ARGUMENT, "no processor is called '%s': there are %s", cpu, names);
}
