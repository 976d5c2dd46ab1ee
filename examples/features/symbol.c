/* kl_symbol: lengths that change from call to call, and one program for all of them.  Texts of 1 to 64 numbers are
 * normalized (softmax); the graph is recorded and compiled for the first one only. */
#include <kiln/kiln.h>
#include <stdio.h>

enum { LONGEST = 64 };

static kl_status show(kl_device dev, int64_t count, const float *data)
{
    int64_t n = kl_symbol("n", 1, LONGEST); /* the same name and bounds: the same length */
    kl_trace_begin("normalize");
    kl_tensor x = kl_input_symbolic(dev, KL_F32, 1, &n, &count, data); /* [n], of which `count` numbers are there now */
    kl_tensor p = kl_keep(kl_softmax(x, 0)), mean = kl_keep(kl_mean(x, 1, (int[]){0}, false));
    if (kl_trace_end() != KL_OK)
        return KL_ERR_ARGUMENT;
    float out[LONGEST];
    kl_status s = kl_read(p, out, (size_t)count * sizeof *out); /* [count] again: lengths of results are numbers */
    if (s == KL_OK)
        printf("%2lld numbers: mean %.3f, the last one's share %.3f\n", (long long)count, (double)kl_item_f32(mean),
               (double)out[count - 1]);
    kl_release(p);
    kl_release(mean);
    return s;
}

int main(void)
{
    kl_device dev = kl_device_default();
    float data[LONGEST];
    for (int i = 0; i < LONGEST; i++)
        data[i] = (float)(i % 7) / 4;
    static const int64_t counts[] = {5, 64, 1, 33};
    int64_t before = 0;
    for (int i = 0; i < 4; i++) {
        if (show(dev, counts[i], data) != KL_OK) {
            fprintf(stderr, "%s\n", kl_last_error());
            return 1;
        }
        if (i == 0)
            before = kl_counter("program_misses");
    }
    printf("programs built after the first: %lld\n", (long long)(kl_counter("program_misses") - before));
    return 0;
}
