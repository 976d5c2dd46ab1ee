/* examples/gpt2.c in a small size, with files written here: its losses beside those of a step in plain C, samples with
 * and without a cache, files that are damaged.
 *   api_gpt2 BUILD_FOLDER */
#include "gpt2_reference.h"
#include "tests/support/api_check.h"
#include <unistd.h>

enum { STEPS = 10, OUTPUT = 4000, HEADER = 256 };
static char folder[64] = "/tmp/kiln-gpt2-XXXXXX", checkpoint[100], text_path[100], other[100];
static const char *build;

/* Runs the example; its output, stderr's behind it.  *status: what it ended with. */
static const char *run(const char *arguments, int *status)
{
    static char text[OUTPUT], command[600];
    snprintf(command, sizeof command, "%s/examples/gpt2 %s 2>&1", build, arguments);
    FILE *f = popen(command, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    *status = f ? pclose(f) : -1;
    return text;
}

/* The losses of the steps in an output; their number. */
static int losses_of(const char *text, double *loss)
{
    int n = 0;
    for (const char *p = text; n < 50 && (p = strstr(p, ": loss ")); p++)
        loss[n++] = strtod(p + 7, NULL);
    return n;
}

/* ---- files ---- */

static uint32_t random_state = 12345;
static uint32_t random_next(void) { return random_state = random_state * 1664525 + 1013904223, random_state >> 8; }
static double random_normal(void)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double)random_next() / (1 << 24);
    return sum;
}

static void write_file(const char *path, const int32_t *header, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(header, sizeof *header, HEADER, f) != HEADER || fwrite(data, 1, bytes, f) != bytes ||
        fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

/* A checkpoint of these values, as f32 or, cut off to what that has, bf16; r has the same. */
static void write_checkpoint(struct reference *r, bool bf16)
{
    int32_t header[HEADER] = {20240326, bf16 ? 5 : 3, LONGEST, WORDS, LAYERS, HEADS, WIDTH, PADDED};
    float *f = malloc((size_t)r->n * sizeof *f);
    uint16_t *half = malloc((size_t)r->n * sizeof *half);
    if (!f || !half)
        exit(1);
    for (int i = 0; i < r->n; i++) {
        uint32_t bits;
        f[i] = (float)r->p[i];
        memcpy(&bits, &f[i], sizeof bits);
        half[i] = (uint16_t)(bits >> 16);
        bits &= bf16 ? 0xffff0000 : 0xffffffff;
        memcpy(&f[i], &bits, sizeof bits);
        r->p[i] = (double)f[i];
    }
    write_file(checkpoint, header, bf16 ? (void *)half : f, (size_t)r->n * (bf16 ? sizeof *half : sizeof *f));
    free(f);
    free(half);
}

static struct reference reference_new(void)
{
    struct reference r = {.n = parameters_before(ARRAYS)};
    r.p = calloc((size_t)r.n * 4, sizeof *r.p);
    if (!r.p)
        exit(1);
    r.g = r.p + r.n, r.m = r.g + r.n, r.v = r.m + r.n;
    for (int a = 0; a < ARRAYS; a++)
        for (int l = 0; l < array_layers(a); l++)
            for (int i = 0; i < array_size[a]; i++)
                part(r.p, a, l)[i] = random_normal() * 0.1 + (a == LN1W || a == LN2W || a == LNFW);
    memset(part(r.p, WTE, 0) + WORDS * WIDTH, 0, sizeof(double) * (PADDED - WORDS) * WIDTH);
    return r;
}

static uint16_t text[STEPS * BATCH * TOKENS + 1];

static void write_text(const char *path, int version, int said)
{
    int32_t header[HEADER] = {20240520, version, said};
    write_file(path, header, text, sizeof text);
}

/* ---- checks ---- */

/* Ten steps of AdamW on ten batches: the same losses, but for the rounding of products in bf16. */
static void same_losses(double decay, bool bf16, bool autocast)
{
    struct reference r = reference_new();
    char arguments[500];
    int status;
    double loss[50], worst = 0;
    write_checkpoint(&r, bf16);
    snprintf(arguments, sizeof arguments, "%s --tokens %s --batch %d --length %d --steps %d --rate 1e-3 --decay %d%s",
             checkpoint, text_path, BATCH, TOKENS, STEPS, (int)decay, autocast ? " --autocast bf16" : "");
    const char *out = run(arguments, &status);
    int n = losses_of(out, loss);
    if (!CHECK(status == 0 && n == STEPS))
        printf("%s\n", out);
    for (int i = 0; i < n && i < STEPS; i++) {
        double want = reference_step(&r, text + i * BATCH * TOKENS, i + 1, 1e-3, decay);
        worst = fabs(loss[i] - want) > worst ? fabs(loss[i] - want) : worst;
    }
    if (!CHECK(worst < (autocast ? 2e-2 : 1e-4) && (!autocast || worst > 1e-5)))
        printf("  losses differ by %g\n", worst);
    free(r.p);
}

/* Saved after training, opened again: the samples of both are the same, and those without a cache. */
static void samples(const char *temperature)
{
    char arguments[500], first[OUTPUT];
    int status;
    snprintf(arguments, sizeof arguments, "--random 2,4,48,40,61 --length 32 --steps 60 --rate 3e-3 --sample 40 "
             "--temperature %s --save %s", temperature, other);
    const char *out = run(arguments, &status), *tokens = strstr(out, "tokens: ");
    double loss[60];
    int n = losses_of(out, loss), spaces = 0;
    CHECK(status == 0 && n == 50 && loss[0] > 3.9 && loss[0] < 4.4 && loss[49] < 2.5); /* ln 61 = 4.1, ln 3 = 1.1 */
    snprintf(first, sizeof first, "%.*s", tokens ? (int)strcspn(tokens, "\n") : 0, tokens ? tokens : "");
    for (const char *p = first; *p; p++)
        spaces += *p == ' ';
    if (!CHECK(spaces == 40))
        printf("%s\n", out);
    for (int recompute = 0; recompute < 2; recompute++) {
        snprintf(arguments, sizeof arguments, "%s --steps 0 --sample 40 --temperature %s%s", other, temperature,
                 recompute ? " --recompute" : "");
        out = run(arguments, &status);
        tokens = strstr(out, "tokens: ");
        if (!CHECK(status == 0 && tokens && !strncmp(tokens, first, strlen(first))))
            printf("%s\n%s\n", first, out);
    }
}

static void refused(const char *arguments, const char *file, const char *phrase)
{
    int status;
    const char *out = run(arguments, &status);
    if (!CHECK(status != 0 && strstr(out, file) && strstr(out, phrase)))
        printf("  wanted \"%s\": %s\n", phrase, out);
}

static void damaged(void)
{
    struct reference r = reference_new();
    char arguments[500];
    int32_t header[HEADER] = {20240326, 3, LONGEST, WORDS, LAYERS, HEADS, WIDTH, PADDED};
    snprintf(arguments, sizeof arguments, "%s --steps 0", other);
    write_file(other, header, r.p, 5000);
    refused(arguments, other, "cut off");
    header[7] = WORDS - 1;
    write_file(other, header, r.p, 5000);
    refused(arguments, other, "fewer rows than words");
    header[4] = -1;
    write_file(other, header, r.p, 5000);
    refused(arguments, other, "a size in the header");
    header[1] = 1;
    write_file(other, header, r.p, 0);
    refused(arguments, other, "version 3 or 5");
    refused("/nonexistent.bin", "/nonexistent.bin", "No such file");
    refused("", "usage: gpt2", "CHECKPOINT");
    refused("/nonexistent.bin --autocast f8", "usage: gpt2", "--autocast bf16");
    write_checkpoint(&r, false);
    snprintf(arguments, sizeof arguments, "%s --tokens %s --length 32", checkpoint, other);
    refused(arguments, other, "not a file of llm.c's tokens");
    write_text(other, 1, 7);
    refused(arguments, other, "not as many tokens");
    text[3] = WORDS;
    write_text(other, 1, sizeof text / sizeof *text);
    refused(arguments, other, "not in the vocabulary");
    snprintf(arguments, sizeof arguments, "%s --length 41", checkpoint);
    refused(arguments, "--length", "longer than the model's longest");
    free(r.p);
}

int main(int argc, char **argv)
{
    build = argc > 1 ? argv[1] : "build";
    if (!mkdtemp(folder))
        return perror(folder), 1;
    snprintf(checkpoint, sizeof checkpoint, "%s/gpt2.bin", folder);
    snprintf(text_path, sizeof text_path, "%s/text.bin", folder);
    snprintf(other, sizeof other, "%s/other.bin", folder);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        text[i] = (uint16_t)(random_next() % WORDS);
    write_text(text_path, 1, sizeof text / sizeof *text);
    same_losses(0, false, false);
    same_losses(1, true, false);
    same_losses(0, false, true);
    samples("0");
    samples("1");
    damaged();
    remove(checkpoint), remove(text_path), remove(other), remove(folder);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
