/* Where somebody speaks in a recording, as it comes in.
 *
 *     voice MODEL.onnx < RECORDING.wav       16 bits, one channel, 16 kHz
 *
 * The model (silero_vad_v6.onnx) takes 512 samples with the 64 before them, and its own state, f32[1,1,128] twice; it
 * gives the probability of speech and the next state.  A line for each stretch of speech, in seconds; the last line is
 * the number of chunks and the mean probability.  voice_object has the model compiled in (infer.h). */
#include "infer.h"
#include <stdint.h>
#include <string.h>

enum { RATE = 16000, CHUNK = 512, BEFORE = 64, STATE = 128, QUIET_CHUNKS = 8 };

static uint32_t little(const uint8_t *p, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++)
        v |= (uint32_t)p[i] << 8 * i;
    return v;
}

/* Reads up to the samples.  A WAV file is "RIFF", a length, "WAVE", then chunks of a name, a length and data. */
static bool find_samples(FILE *f)
{
    uint8_t head[12], chunk[8], format[16] = {0};
    if (fread(head, 1, sizeof head, f) != sizeof head || memcmp(head, "RIFF", 4) || memcmp(head + 8, "WAVE", 4))
        return false;
    while (fread(chunk, 1, sizeof chunk, f) == sizeof chunk) {
        uint32_t n = little(chunk + 4, 4), done = 0;
        if (!memcmp(chunk, "data", 4))
            return little(format, 2) == 1 && little(format + 2, 2) == 1 && little(format + 4, 4) == RATE &&
                   little(format + 14, 2) == 16;
        if (!memcmp(chunk, "fmt ", 4) && n >= sizeof format)
            done = (uint32_t)fread(format, 1, sizeof format, f);
        for (n += n & 1; done < n && getc(f) != EOF; done++)
            ;
    }
    return false;
}

int main(int argc, char **argv)
{
    static float x[BEFORE + CHUNK], h[STATE], c[STATE], h2[STATE], c2[STATE];
    uint8_t bytes[2 * CHUNK];
    struct infer model;
    if (argc != 2)
        return fprintf(stderr, "usage: voice MODEL.onnx < RECORDING.wav\n"), 2;
    if (!find_samples(stdin))
        return fprintf(stderr, "voice: no WAV file of 16 bits, one channel and 16 kHz\n"), 1;
    if (!infer_open(&model, argv[1], 3, 3))
        return 1;
    int chunks = 0, quiet = 0, start = -1;
    double sum = 0, second = (double)CHUNK / RATE;
    bool ok = true;
    for (; ok && fread(bytes, 1, sizeof bytes, stdin) == sizeof bytes; chunks++) {
        float speech = 0;
        for (int i = 0; i < CHUNK; i++)
            x[BEFORE + i] = (float)(int16_t)little(bytes + 2 * i, 2) / 32768;
        ok = infer_run(&model, (const float *[]){x, h, c}, (float *[]){&speech, h2, c2});
        memcpy(h, h2, sizeof h);
        memcpy(c, c2, sizeof c);
        memcpy(x, x + CHUNK, BEFORE * sizeof *x);
        sum += (double)speech;
        quiet = speech > 0.35f ? 0 : quiet + 1;
        if (start < 0 && speech > 0.5f) {
            start = chunks;
        } else if (start >= 0 && quiet >= QUIET_CHUNKS) {
            printf("%.2f to %.2f s\n", start * second, (chunks - quiet + 1) * second);
            start = -1;
        }
    }
    if (start >= 0)
        printf("%.2f to %.2f s\n", start * second, (chunks - quiet) * second);
    printf("%d chunks, %.4f\n", chunks, chunks ? sum / chunks : 0);
    infer_close(&model);
    return ok ? 0 : 1;
}
