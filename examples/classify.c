/* A server that tells digits: images in, a line for each out.
 *
 *     classify MODEL.onnx < IMAGES           images: 28 x 28 bytes each, one after another
 *     classify MODEL.onnx PORT               the same for each connection to 127.0.0.1, one at a time
 *
 * The model (mnist-cnn.onnx) takes f32[1,1,28,28], normalized as it was trained, and gives the logarithms of ten
 * probabilities.  A line is the digit and its probability.  classify_object is the same program with the model compiled
 * in (infer.h); it takes any name for MODEL. */
#include "infer.h"
#include <arpa/inet.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIXELS = 28 * 28, DIGITS = 10 };

static bool answer(struct infer *model, const uint8_t *image, FILE *to)
{
    float x[PIXELS], score[DIGITS];
    int best = 0;
    for (int i = 0; i < PIXELS; i++)
        x[i] = ((float)image[i] / 255 - 0.1307f) / 0.3081f;
    if (!infer_run(model, (const float *[]){x}, (float *[]){score}))
        return false;
    for (int i = 1; i < DIGITS; i++)
        best = score[i] > score[best] ? i : best;
    return fprintf(to, "%d %.0f%%\n", best, 100 * exp((double)score[best])) > 0 && !fflush(to);
}

static bool serve(struct infer *model, FILE *from, FILE *to)
{
    uint8_t image[PIXELS];
    while (fread(image, 1, PIXELS, from) == PIXELS)
        if (!answer(model, image, to))
            return false;
    return true;
}

static int listen_at(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (s < 0 || setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
        bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 8)) {
        perror("classify");
        return -1;
    }
    return s;
}

int main(int argc, char **argv)
{
    struct infer model;
    if (argc < 2 || argc > 3)
        return fprintf(stderr, "usage: classify MODEL.onnx [PORT]\n"), 2;
    if (!infer_open(&model, argv[1], 1, 1))
        return 1;
    bool ok = true;
    if (argc == 2) {
        ok = serve(&model, stdin, stdout);
    } else {
        int s = listen_at(atoi(argv[2]));
        ok = s >= 0;
        for (int c; ok && (c = accept(s, NULL, NULL)) >= 0;) {
            FILE *from = fdopen(c, "rb"), *to = fdopen(dup(c), "wb");
            if (from && to)
                serve(&model, from, to); /* a client that hangs up is no reason to end */
            if (to)
                fclose(to);
            if (from)
                fclose(from);
        }
    }
    infer_close(&model);
    return ok ? 0 : 1;
}
