/* Small models in place of the trained ones, of the same inputs and outputs, for the examples that run ONNX models, and
 * inputs of which their answers are known (tests/bench/smoke.sh).
 *
 *   api_example_models FOLDER     writes classify.onnx, faces.onnx, voice.onnx, bytes, picture and recording there */
#include <kiln/kiln.h>
#include <kiln/onnx.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIXELS = 784, DIGITS = 10, WIDTH = 320, HEIGHT = 240, PLACES = 4420, FACE = 1234, SAMPLES = 576, CHUNK = 512,
       STATE = 128 };

static kl_device dev;
static const char *folder;

/* The brightest of the first ten pixels tells the digit. */
static kl_status classify(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor pixels = kl_narrow(kl_reshape(in[0], 2, (int64_t[]){1, PIXELS}), 1, 0, DIGITS);
    out[0] = kl_log_softmax(kl_mul_scalar(pixels, 2), -1);
    return KL_OK;
}

/* One face in the middle of each picture that is not black, and none in those that are. */
static kl_status faces(void *table, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    const kl_tensor *t = table;
    kl_tensor light = kl_sigmoid(kl_mul_scalar(kl_add_scalar(kl_mean(in[0], 0, NULL, false), 0.9), 100));
    out[0] = kl_mul(t[0], kl_expand(light, 3, (int64_t[]){1, PLACES, 2}));
    out[1] = kl_add_scalar(t[1], 0);
    return KL_OK;
}

/* Loud is speech.  The state counts the chunks. */
static kl_status voice(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor loud = kl_max(kl_abs(in[0]), 1, (int[]){1}, true);
    out[0] = kl_sigmoid(kl_mul_scalar(kl_add_scalar(loud, -0.25), 100));
    out[1] = kl_add_scalar(in[1], 1);
    out[2] = kl_add_scalar(in[2], 1);
    return KL_OK;
}

static FILE *create(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f)
        perror(path);
    return f;
}

static bool write_bytes(const char *name, const void *head, size_t nhead, const void *bytes, size_t n)
{
    FILE *f = create(name);
    bool ok = f && fwrite(head, 1, nhead, f) == nhead && fwrite(bytes, 1, n, f) == n;
    return f && fclose(f) == 0 && ok;
}

static bool save(const char *name, kl_region_fn *fn, void *ctx, uint32_t nin, const kl_tensor *in, uint32_t nout)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.onnx", folder, name);
    bool ok = kl_model_save(path, fn, ctx, nin, in, NULL, nout, NULL) == KL_OK;
    if (!ok)
        fprintf(stderr, "%s\n", kl_last_error());
    return ok;
}

static bool save_models(void)
{
    static float score[PLACES][2], box[PLACES][4];
    score[FACE][1] = 0.9f;
    memcpy(box[FACE], (float[]){0.25f, 0.25f, 0.75f, 0.75f}, sizeof *box);
    kl_tensor table[2] = {kl_input(dev, KL_F32, 3, (int64_t[]){1, PLACES, 2}, score),
                          kl_input(dev, KL_F32, 3, (int64_t[]){1, PLACES, 4}, box)};
    kl_tensor image = kl_zeros(dev, KL_F32, 4, (int64_t[]){1, 1, 28, 28});
    kl_tensor picture = kl_zeros(dev, KL_F32, 4, (int64_t[]){1, 3, HEIGHT, WIDTH});
    kl_tensor state = kl_zeros(dev, KL_F32, 3, (int64_t[]){1, 1, STATE});
    kl_tensor sound[3] = {kl_zeros(dev, KL_F32, 2, (int64_t[]){1, SAMPLES}), state, state};
    return save("classify", classify, NULL, 1, &image, 1) && save("faces", faces, table, 1, &picture, 2) &&
           save("voice", voice, NULL, 3, sound, 3);
}

/* Two images, of a 7 and of a 2; a grey picture; a chunk of silence and one of noise. */
static bool write_inputs(void)
{
    static const uint8_t wav[] = "RIFF\0\0\0\0WAVEfmt "
                                 "\20\0\0\0\1\0\1\0\200\76\0\0\0\175\0\0\2\0\20\0"
                                 "data\377\377\377\177";
    static uint8_t images[2][PIXELS], grey[30 * 20 * 3];
    static int16_t sound[2][CHUNK];
    images[0][7] = images[1][2] = 255;
    memset(grey, 128, sizeof grey);
    for (int i = 0; i < CHUNK; i++)
        sound[1][i] = i % 2 ? 20000 : -20000;
    return write_bytes("bytes", "", 0, images, sizeof images) &&
           write_bytes("picture", "P6\n30 20\n255\n", 13, grey, sizeof grey) &&
           write_bytes("recording", wav, sizeof wav - 1, sound, sizeof sound);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "usage: api_example_models FOLDER\n"), 2;
    folder = argv[1];
    dev = kl_device_default();
    return save_models() && write_inputs() ? 0 : 1;
}
