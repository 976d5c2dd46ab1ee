/* What this machine can do: the arithmetic peak and the bandwidth of plain streams, one thread. */
#include "bench.h"

enum { ROUNDS = 15, FEW = 1 << 20, MAX_COUNT = 16 << 20 };

static float *arrays[6];

static void measure_stream(struct bench *b, int inputs, size_t n)
{
    static struct samples took;
    char name[64];
    snprintf(name, sizeof name, "read-%d-write-1-%zuM", inputs, n >> 20);
    if (!bench_wants(b, name))
        return;
    took.n = 0;
    limit_stream(arrays, inputs, 0, n);
    for (int r = 0; r < bench_rounds(b, ROUNDS); r++) {
        double start = measure_cpu_now();
        limit_stream(arrays, inputs, 0, n);
        samples_add(&took, measure_cpu_now() - start);
    }
    bench_add(b, name, "hand", 1, &took, "GB/s", (double)(n * sizeof(float)) * (inputs + 1), 0);
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct samples peak;
    if (!bench_open(&b, "limits", argc, argv))
        return b.status;
    size_t many = (size_t)bench_size(&b, MAX_COUNT, FEW);
    for (int i = 0; i < 6; i++) {
        arrays[i] = limit_array(many);
        if (!arrays[i]) {
            fprintf(stderr, "bench_limits: out of memory\n");
            return 1;
        }
    }
    double flops = 0;
    for (int r = 0; r < bench_rounds(&b, ROUNDS); r++)
        flops = bench_peak(&peak);
    if (bench_wants(&b, "fma-f32"))
        bench_add(&b, "fma-f32", "hand", 1, &peak, "GFLOP/s", flops, 0);
    static const int inputs[] = {1, 2, 5};
    for (int i = 0; i < 3; i++) {
        measure_stream(&b, inputs[i], FEW);
        if (many > FEW)
            measure_stream(&b, inputs[i], many);
    }
    for (int i = 0; i < 6; i++)
        limit_array_free(arrays[i], many);
    return bench_close(&b);
}
