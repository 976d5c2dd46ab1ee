/* Trains on a device that a plug-in brings, next to Kiln's own: the first layer there, the second here.
 *
 *   plugin [PLUGIN]      (default plugin_device.so beside this program) */
#include <kiln/kiln.h>
#include <kiln/plugin.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    char beside[4096];
    const char *slash = strrchr(argv[0], '/');
    snprintf(beside, sizeof beside, "%.*splugin_device.so", slash ? (int)(slash + 1 - argv[0]) : 2,
             slash ? argv[0] : "./");
    if (kl_plugin_load(argc > 1 ? argv[1] : beside) != KL_OK) { /* KILN_PLUGINS=FILE does the same */
        fprintf(stderr, "%s\n", kl_last_error());
        return 1;
    }
    kl_device there = kl_device_named("example"), here = kl_device_default();
    printf("devices: %s and %s\n", kl_device_name(there), kl_device_name(here));

    static const float x[4][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}}, y[4][1] = {{0}, {1}, {1}, {0}}; /* exclusive or */
    kl_tensor w = kl_randn(there, KL_F32, 2, (int64_t[]){2, 8}, 1), b = kl_zeros(there, KL_F32, 1, (int64_t[]){8});
    kl_tensor v = kl_randn(here, KL_F32, 2, (int64_t[]){8, 1}, 2);
    kl_tensor all[] = {w, b, v};
    for (int i = 0; i < 3; i++)
        kl_requires_grad(all[i]);
    for (int step = 0; step < 300; step++) {
        kl_trace_begin("step");
        kl_tensor h = kl_tanh(kl_linear(kl_input(there, KL_F32, 2, (int64_t[]){4, 2}, x), w, b));
        kl_tensor gap = kl_sub(kl_matmul(kl_to(h, here), v), kl_input(here, KL_F32, 2, (int64_t[]){4, 1}, y));
        kl_tensor loss = kl_keep(kl_mul_scalar(kl_sum_all(kl_square(gap)), 0.25)), slope[3];
        for (int i = 0; i < 3; i++)
            slope[i] = kl_grad(loss, all[i]); /* on the device of all[i] */
        for (int i = 0; i < 3; i++)
            kl_assign(all[i], kl_sub(all[i], kl_mul_scalar(slope[i], 0.2)));
        if (kl_trace_end() != KL_OK) {
            fprintf(stderr, "%s\n", kl_last_error());
            return 1;
        }
        if (step % 100 == 99)
            printf("step %d: loss %.4f\n", step + 1, kl_item_f32(loss));
        kl_release(loss);
    }
}
