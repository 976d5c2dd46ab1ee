/* kl_rfft and kl_irfft: the frequencies of a signal, and the signal without those above a limit. */
#include <kiln/kiln.h>
#include <math.h>
#include <stdio.h>

enum { N = 1000, BINS = N / 2 + 1, LIMIT = 50 };

int main(void)
{
    static float signal[N], low[N], power[BINS];
    for (int i = 0; i < N; i++) { /* one second: 5 Hz, 12 Hz, and a disturbance of 200 Hz */
        double t = 2 * 3.14159265358979 * i / N;
        signal[i] = (float)(sin(5 * t) + 0.5 * sin(12 * t) + 0.7 * sin(200 * t));
    }
    kl_device dev = kl_device_default();
    kl_scope_begin(); /* releases the tensors below at its end */
    kl_trace_begin("low_pass");
    kl_tensor x = kl_input(dev, KL_F32, 1, (int64_t[]){N}, signal);
    kl_tensor f = kl_rfft(x, 0); /* complex [BINS]: element k is that of k Hz */
    kl_tensor p = kl_keep(kl_add(kl_square(kl_real(f)), kl_square(kl_imag(f))));
    kl_tensor passes = kl_cast(kl_lt(kl_arange(dev, KL_I32, BINS), kl_full(dev, KL_I32, 0, NULL, LIMIT)), KL_F32);
    kl_tensor y = kl_keep(kl_irfft(kl_mul(f, passes), 0, N));
    kl_status s = kl_trace_end();
    if (s == KL_OK && (s = kl_read(p, power, sizeof power)) == KL_OK)
        s = kl_read(y, low, sizeof low);
    kl_scope_end();
    if (s != KL_OK) {
        fprintf(stderr, "%s\n", kl_last_error());
        return 1;
    }
    for (int k = 0; k < BINS; k++)
        if (power[k] > N)
            printf("%d Hz: %.2f\n", k, 2 * sqrt((double)power[k]) / N);
    double worst = 0;
    for (int i = 0; i < N; i++) {
        double t = 2 * 3.14159265358979 * i / N, wanted = sin(5 * t) + 0.5 * sin(12 * t);
        worst = fmax(worst, fabs((double)low[i] - wanted));
    }
    printf("error of the filtered signal below 1e-4: %s\n", worst < 1e-4 ? "yes" : "no");
    return 0;
}
