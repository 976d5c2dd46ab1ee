/* Faces in a picture.
 *
 *     faces MODEL.onnx < PICTURE.ppm > BOXES.ppm
 *
 * The model (ultraface_slim.onnx) takes f32[1,3,240,320], (value - 127) / 128, and gives for 4420 places the
 * probabilities of background and face, and a box: left, top, right, bottom as parts of the picture.  Each box that is
 * a face's is a line on stderr, in pixels; the picture on stdout has them drawn.  faces_object has the model compiled
 * in (infer.h). */
#include "infer.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 320, HEIGHT = 240, PLACES = 4420, MAX_SIDE = 1 << 14 };
static const float min_probability = 0.7f, most_overlap = 0.3f;

struct picture { int width, height; uint8_t *rgb; };

static int next_number(FILE *f)
{
    int c = getc(f), n = 0, digits = 0;
    while (c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '#') {
        while (c == '#' && (c = getc(f)) != '\n' && c != EOF)
            c = '#';
        c = getc(f);
    }
    for (; c >= '0' && c <= '9' && n <= MAX_SIDE; c = getc(f), digits++)
        n = 10 * n + c - '0';
    return digits ? n : -1; /* one white space behind it is read, too */
}

static bool read_picture(struct picture *p, FILE *f)
{
    if (getc(f) != 'P' || getc(f) != '6')
        return false;
    p->width = next_number(f);
    p->height = next_number(f);
    if (next_number(f) != 255 || p->width < 1 || p->width > MAX_SIDE || p->height < 1 || p->height > MAX_SIDE)
        return false;
    size_t n = (size_t)p->width * (size_t)p->height * 3;
    p->rgb = malloc(n);
    return p->rgb && fread(p->rgb, 1, n, f) == n;
}

/* Each pixel of the model is the mean of those of the picture that it covers. */
static void shrink(const struct picture *p, float *x)
{
    for (int i = 0; i < HEIGHT * WIDTH; i++) {
        int y = i / WIDTH, at = i % WIDTH;
        int top = y * p->height / HEIGHT, bottom = (y + 1) * p->height / HEIGHT;
        int left = at * p->width / WIDTH, right = (at + 1) * p->width / WIDTH;
        bottom = bottom > top ? bottom : top + 1;
        right = right > left ? right : left + 1;
        for (int k = 0; k < 3; k++) {
            double sum = 0;
            for (int r = top; r < bottom; r++)
                for (int c = left; c < right; c++)
                    sum += p->rgb[((size_t)r * (size_t)p->width + (size_t)c) * 3 + (size_t)k];
            x[k * HEIGHT * WIDTH + i] = (float)(sum / ((bottom - top) * (right - left)) - 127) / 128;
        }
    }
}

static float area(const float *b) { return b[2] > b[0] && b[3] > b[1] ? (b[2] - b[0]) * (b[3] - b[1]) : 0; }

/* What two boxes share, as a part of what they cover. */
static float overlap(const float *a, const float *b)
{
    float both[4] = {a[0] > b[0] ? a[0] : b[0], a[1] > b[1] ? a[1] : b[1], a[2] < b[2] ? a[2] : b[2],
                     a[3] < b[3] ? a[3] : b[3]};
    float shared = area(both), all = area(a) + area(b) - shared;
    return all > 0 ? shared / all : 0;
}

static int clamp(float part, int n)
{
    float v = part * (float)n;
    return !(v > 0) ? 0 : v > (float)(n - 1) ? n - 1 : (int)v;
}

static void draw(struct picture *p, const float *b)
{
    int left = clamp(b[0], p->width), top = clamp(b[1], p->height);
    int right = clamp(b[2], p->width), bottom = clamp(b[3], p->height);
    for (int y = top; y <= bottom; y++)
        for (int x = left; x <= right; x += y == top || y == bottom || x == right ? 1 : right - left) {
            uint8_t *rgb = p->rgb + ((size_t)y * (size_t)p->width + (size_t)x) * 3;
            rgb[0] = 255;
            rgb[1] = rgb[2] = 0;
        }
}

/* The likeliest box, then the next one that is not nearly the same, and so on. */
static int show_faces(struct picture *p, float *score, const float *box)
{
    int n = 0;
    for (;;) {
        int best = 0;
        for (int i = 1; i < PLACES; i++)
            best = score[2 * i + 1] > score[2 * best + 1] ? i : best;
        if (!(score[2 * best + 1] >= min_probability))
            return n;
        const float *b = box + 4 * best;
        fprintf(stderr, "%d %d %d %d %.0f%%\n", clamp(b[0], p->width), clamp(b[1], p->height), clamp(b[2], p->width),
                clamp(b[3], p->height), 100 * (double)score[2 * best + 1]);
        draw(p, b);
        n++;
        for (int i = 0; i < PLACES; i++)
            if (i == best || overlap(b, box + 4 * i) > most_overlap)
                score[2 * i + 1] = 0;
    }
}

int main(int argc, char **argv)
{
    static float x[3 * HEIGHT * WIDTH], score[2 * PLACES], box[4 * PLACES];
    struct picture p = {0};
    struct infer model;
    if (argc != 2)
        return fprintf(stderr, "usage: faces MODEL.onnx < PICTURE.ppm > BOXES.ppm\n"), 2;
    if (!read_picture(&p, stdin))
        return fprintf(stderr, "faces: no PPM picture (P6) of 8 bits and at most %d pixels a side\n", MAX_SIDE), 1;
    shrink(&p, x);
    bool ok = infer_open(&model, argv[1], 1, 2) && infer_run(&model, (const float *[]){x}, (float *[]){score, box});
    if (ok) {
        fprintf(stderr, "%d faces\n", show_faces(&p, score, box));
        printf("P6\n%d %d\n255\n", p.width, p.height);
        size_t n = (size_t)p.width * (size_t)p.height * 3;
        ok = fwrite(p.rgb, 1, n, stdout) == n;
        infer_close(&model);
    }
    free(p.rgb);
    return ok ? 0 : 1;
}
