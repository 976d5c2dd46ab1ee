/* What this machine can do: the arithmetic peak and the bandwidth of plain streams, one thread. */
#include "bench.h"
#include "hand.h"

enum { ROUNDS = 15, FEW = 1 << 20, MANY = 16 << 20 };

static float *arrays[6];

static void run_stream(int inputs, size_t n)
{
    float **a = arrays;
    if (inputs == 1)
        stream_1(a[0], a[1], n);
    else if (inputs == 2)
        stream_2(a[0], a[1], a[2], n);
    else
        stream_5(a[0], a[1], a[2], a[3], a[4], a[5], n);
}

static void measure_stream(struct bench *b, int inputs, size_t n)
{
    static struct samples took;
    char name[64];
    took.n = 0;
    run_stream(inputs, n);
    for (int r = 0; r < ROUNDS; r++) {
        double start = bench_cpu_now();
        run_stream(inputs, n);
        samples_add(&took, bench_cpu_now() - start);
    }
    snprintf(name, sizeof name, "read-%d-write-1-%zuM", inputs, n >> 20);
    bench_add(b, name, "hand", 1, &took, "GB/s", (double)(n * sizeof(float)) * (inputs + 1), 0);
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct samples peak;
    if (!bench_open(&b, "limits", argc, argv))
        return b.status;
    for (int i = 0; i < 6; i++) {
        arrays[i] = malloc(MANY * sizeof(float));
        if (!arrays[i]) {
            fprintf(stderr, "bench_limits: out of memory\n");
            return 1;
        }
        for (size_t j = 0; j < MANY; j++)
            arrays[i][j] = (float)(j % 7);
    }
    for (int r = 0; r < ROUNDS; r++)
        samples_add(&peak, bench_peak_seconds());
    bench_add(&b, "fma-f32", "hand", 1, &peak, "GFLOP/s", bench_peak_flops(), 0);
    static const int inputs[] = {1, 2, 5};
    for (int i = 0; i < 3; i++) {
        measure_stream(&b, inputs[i], FEW);
        measure_stream(&b, inputs[i], MANY);
    }
    for (int i = 0; i < 6; i++)
        free(arrays[i]);
    return bench_close(&b);
}
