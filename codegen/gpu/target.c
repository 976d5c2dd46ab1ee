/* Kernels for GPUs without a device: capabilities by a target's name, and the kernels' text.  A target is a language,
 * or a language and a device's features: cuda:sm_90a, hip:gfx90a, vulkan:+subgroup32+fma.  Features are what
 * `kiln devices` prints; the architecture alone is enough, and stands for a card that has it. */
#include "codegen/gpu/compilers/compile.h"
#include "source.h"
#include <stdlib.h>
#include <string.h>

/* Processors and cache of a usual card of an architecture, where a target names no number. */
static const struct card { const char *arch; uint32_t processors; int64_t l2_bytes; } cards[] = {
    {"sm_80", 108, INT64_C(40) << 20},  {"sm_86", 84, INT64_C(6) << 20},    {"sm_89", 128, INT64_C(72) << 20},
    {"sm_90", 132, INT64_C(50) << 20},  {"sm_100", 148, INT64_C(126) << 20}, {"sm_120", 170, INT64_C(96) << 20},
    {"gfx90a", 104, INT64_C(8) << 20},  {"gfx942", 304, INT64_C(4) << 20},
};

struct gpu_target {
    const struct dialect *language;
    struct dialect own;             /* the language on a device with the features */
    const char *features;           /* in the target's text; NULL: none are named */
    char arch[32];                  /* their first word; "": the compiler's default */
};

static bool gpu_target_parse(const char *text, struct gpu_target *t, struct err *e)
{
    char language[16];
    const char *colon = text ? strchr(text, ':') : NULL;
    size_t n = !text ? 0 : colon ? (size_t)(colon - text) : strlen(text);
    *t = (struct gpu_target){0};
    if (text && (!n || n >= sizeof language || (colon && !colon[1])))
        return err_set(e, KL_ERR_ARGUMENT, "'%s' is no target: LANGUAGE or LANGUAGE:FEATURES, for example cuda:sm_90a",
                       text);
    snprintf(language, sizeof language, "%.*s", (int)n, text ? text : "");
    const char *name = !text ? "cuda" : !strcmp(language, "vulkan") ? "glsl" : language;
    t->language = dialect_find(name, e);
    if (!t->language)
        return false;
    t->features = colon ? colon + 1 : NULL;
    t->own = dialect_for(t->language, t->features);
    if (!colon || t->language->table)
        return true;
    size_t word = strcspn(colon + 1, " ");
    snprintf(t->arch, sizeof t->arch, "%.*s", (int)(word < sizeof t->arch ? word : 0), colon + 1);
    const char *prefix = t->language->arch;
    size_t letters = strcspn(prefix, "0123456789");
    return !strncmp(t->arch, prefix, letters) ||
           err_set(e, KL_ERR_ARGUMENT, "'%s' is no architecture of %s: they begin with %.*s", t->arch,
                   t->language->name, (int)letters, prefix);
}

/* "..., 132 processors, ...": as drivers write it in the features. */
static uint32_t processors_of(const char *features)
{
    const char *at = strstr(features, " processors");
    while (at && at > features && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return at ? (uint32_t)strtoul(at, NULL, 10) : 0;
}

static void set_card(const struct gpu_target *t, struct caps *out)
{
    const struct card *best = NULL;
    for (const struct card *c = cards; c < cards + sizeof cards / sizeof *cards; c++)
        if (!strncmp(t->arch, c->arch, strlen(c->arch)) && (!best || strlen(c->arch) > strlen(best->arch)))
            best = c;
    uint32_t processors = processors_of(t->features);
    out->threads = processors ? processors : best ? best->processors : out->threads;
    out->l2_bytes = best ? best->l2_bytes : out->l2_bytes;
}

bool target_caps(const char *target, struct caps *out, struct err *e)
{
    struct gpu_target t;
    if (!gpu_target_parse(target, &t, e))
        return false;
    dialect_caps(t.language, out);
    if (t.features) {
        snprintf(out->features, sizeof out->features, "%s", t.features);
        dialect_limits(t.language, t.features, out);
        set_card(&t, out);
    }
    dialect_architecture(t.language, t.features, out);
    return true;
}

static bool print_assembly(const struct kernel *k, const struct gpu_target *t, FILE *f, struct err *e)
{
    const struct gpu_compiler *c = gpu_compiler_find(t->language->name, e);
    struct text source = {0};
    struct code text = {0};
    if (!c)
        return false;
    dialect_prelude(&t->own, t->features, &source);
    bool ok = source_kernel(k, &t->own, "kernel", &source, NULL, e) &&
              c->compile(source.s, *t->arch ? t->arch : c->arch[0], GPU_ASSEMBLY, &text, e);
    if (ok)
        fwrite(text.bytes, 1, strnlen(text.bytes, text.size), f);
    mem_free(text.bytes);
    mem_free(source.s);
    return ok;
}

/* In languages whose functions have names, the prelude is printed once; in the others each kernel is a file of its
 * own. */
static bool print_source(const struct kernel *k, const struct array_names *names, const struct gpu_target *target,
                         uint32_t number, FILE *f, struct err *e)
{
    const struct dialect *d = &target->own;
    struct text t = {0}, source = {0};
    struct source_info info = {0};
    char entry[32];
    snprintf(entry, sizeof entry, "kernel_%u", number);
    if (d->table || !number)
        dialect_prelude(d, target->features, &t);
    bool ok = source_kernel(k, d, entry, &source, &info, e);
    if (ok) {
        source_put_title(&t, k, names, &info);
        source_put_named(&t, k, names, source.s);
        ok = !t.failed || err_set(e, KL_ERR_MEMORY, "out of memory printing kernel %s", k->name);
    }
    if (ok)
        fputs(t.s, f);
    source_info_free(&info);
    mem_free(source.s);
    mem_free(t.s);
    return ok;
}

static bool print_kernels(const struct kernel *const *k, const struct array_names *names, uint32_t n,
                          const struct gpu_target *t, const char *stage, FILE *f, struct err *e)
{
    if (!strcmp(stage, "llvm"))
        return err_set(e, KL_ERR_ARGUMENT, "kernels for %s have no stage llvm: there are scheduled, source and asm",
                       t->language->name);
    bool ok = true;
    for (uint32_t i = 0; ok && i < n; i++)
        ok = !strcmp(stage, "scheduled") ? kernel_print(k[i], f) ||
            err_set(e, KL_ERR_IO, "cannot write kernel %s", k[i]->name)
           : !strcmp(stage, "source") ? print_source(k[i], names ? &names[i] : NULL, t, i, f, e)
                                      : print_assembly(k[i], t, f, e);
    return ok;
}

bool target_print(const struct kernel *const *k, const struct array_names *names, uint32_t n, const char *target,
                  const char *stage, FILE *f, struct err *e)
{
    struct gpu_target t;
    return gpu_target_parse(target, &t, e) && print_kernels(k, names, n, &t, stage, f, e);
}

bool device_print(const struct kernel *const *k, const struct array_names *names, uint32_t n, const char *language,
                  const char *features, const char *stage, FILE *f, struct err *e)
{
    struct gpu_target t = {.language = dialect_find(language, e), .features = features};
    if (!t.language)
        return false;
    t.own = dialect_for(t.language, features);
    snprintf(t.arch, sizeof t.arch, "%.*s", (int)strcspn(features, " "), features);
    return print_kernels(k, names, n, &t, stage, f, e);
}
