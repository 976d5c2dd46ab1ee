/* Row D11: devices that shared objects bring while the program runs, several at once, next to Kiln's own: found,
 * refused with reasons, training, copies that are counted, failures, kernels and gradients on their keys.
 *
 *   api_seeds_plugins [ROW ...]      the plug-ins lie beside it: plugin_device.c under three names, plugin_broken.c
 *
 * What a whole device is for, the other tests of the public interface show on these: KILN_PLUGINS=..
 * KILN_DEVICE=far. */
#include "api_seeds.h"
#include "plugin_device.h"
#include <dlfcn.h>
#include <kiln/control.h>
#include <kiln/custom.h>
#include <kiln/plugin.h>
#include <unistd.h>

static kl_device far, far1, near; /* two of one plug-in, one of another */
static struct plugin_control *of_far, *of_near;

static const char *beside(const char *name)
{
    static char path[4200];
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    snprintf(path, sizeof path, "%.*s/%s", (int)(strrchr(exe, '/') - exe), exe, name);
    return path;
}

/* ---- what is no plug-in ---- */

static void refused(const char *broken, kl_status code, const char *text)
{
    setenv("PLUGIN_BROKEN", broken, 1);
    kl_clear_error();
    CHECK(kl_plugin_load(beside("plugin_broken.so")) == code && says(text));
    unsetenv("PLUGIN_BROKEN");
}

static void loading(void)
{
    CHECK(!kl_device_named("far").id && says("unknown device \"far\"") && says("plug-ins (KILN_PLUGINS)"));
    CHECK(kl_plugin_load(NULL) == KL_ERR_ARGUMENT && says("path is NULL"));
    CHECK(kl_plugin_load("/nowhere/plugin.so") == KL_ERR_DEVICE && says("/nowhere/plugin.so"));
    CHECK(kl_plugin_load(beside("../libkiln.so")) == KL_ERR_DEVICE &&
          says("is no plug-in: it has no function kl_plugin_entry"));
    refused("version", KL_ERR_DEVICE, "was built for version 2 of plug-ins, this Kiln has 1");
    refused("name", KL_ERR_DEVICE, "calls its devices \"Broken one\"");
    refused("taken", KL_ERR_DEVICE, "there are devices called vulkan already");
    refused("function", KL_ERR_DEVICE, "has no function launch");
    refused("unwilling", KL_ERR_DEVICE, "has no use for this Kiln");
    CHECK(!kl_device_named("broken").id && says("unknown device"));

    OK(kl_plugin_load(beside("plugin_far.so")));
    void *own = dlopen(beside("plugin_far.so"), RTLD_NOW), *other;
    of_far = own ? dlsym(own, "plugin_control") : NULL;
    CHECK(of_far != NULL && !kl_device_named("near").id);
    OK(kl_plugin_load(beside("plugin_near.so")));
    OK(kl_plugin_load(beside("plugin_far.so"))); /* it is loaded */
    other = dlopen(beside("plugin_near.so"), RTLD_NOW);
    of_near = other ? dlsym(other, "plugin_control") : NULL;
    CHECK(of_near && of_near != of_far);
    if (own && other)
        CHECK(!dlclose(own) && !dlclose(own) && !dlclose(other)); /* once more than it was opened here: Kiln holds on */

    far = kl_device_named("far");
    far1 = kl_device_named("far:1");
    near = kl_device_named("near:0");
    CHECK(far.id && far1.id && near.id && kl_device_named("far:0").id == far.id && far1.id != far.id);
    CHECK(!strcmp(kl_device_name(far1), "far:1") && !strcmp(kl_device_name(near), "near:0"));
    CHECK(!kl_device_named("near:2").id && says("device near:2: there is no device near:2, there are 2"));
    CHECK(strcmp(kl_device_name(kl_device_default()), "far:0")); /* nobody gets it unasked */
}

/* After the two others: the third takes the last place, and devices that do not work are known by their reasons. */
static void full(void)
{
    setenv("PLUGIN_BROKEN", "count", 1);
    OK(kl_plugin_load(beside("plugin_broken.so")));
    CHECK(!kl_device_named("broken").id && says("device broken:0: there is no such card in this machine"));
    unsetenv("PLUGIN_BROKEN");
    CHECK(!kl_device_named("broken:1").id && says("device broken:1: "));
    CHECK(kl_plugin_load(beside("plugin_third.so")) == KL_ERR_DEVICE &&
          says("3 plug-ins are loaded, and no more can be"));
}

/* ---- keys ---- */

static kl_tensor on(kl_device d, float a, float b) { return kl_input(d, KL_F32, 1, (int64_t[]){2}, (float[]){a, b}); }

static kl_status always_7(void *ctx, const kl_custom_call *call)
{
    ++*(int *)ctx;
    for (int i = 0; i < 2; i++)
        ((float *)call->out[0])[i] = 7;
    return KL_OK;
}

static void keys(void)
{
    kl_tensor x = on(far, 1, 2), y = on(near, 3, 4);
    CHECK(kl_keyset_has(kl_dispatch_keys(1, &x), KL_KEY_PrivateUse1) &&
          kl_keyset_has(kl_dispatch_keys(1, &y), KL_KEY_PrivateUse2));
    kl_dispatch_log_begin();
    kl_release(kl_neg(x));
    CHECK(keys_are(kl_dispatch_log_end(), "PrivateUse1"));
    int calls = 0;
    kl_registration r = reg("tanh", KL_KEY_PrivateUse1, (kl_kernel){.name = "seven", .run = always_7, .ctx = &calls});
    NEAR_LIST(kl_tanh(x), 0, 7, 7);
    CHECK(calls == 1);
    NEAR_LIST(kl_tanh(y), 1e-6, tanh(3), tanh(4));
    CHECK(calls == 1);
    drop(r);
    CHECK(kl_rank(kl_add(x, y)) < 0 && says("operands are on devices far:0 and near:0"));
    kl_clear_error();
    kl_release(x);
    kl_release(y);
}

/* ---- graphs over several devices ---- */

static kl_tensor noise(kl_device d, int n, int seed)
{
    float v[64];
    for (int i = 0; i < n * n; i++)
        v[i] = sinf((float)(i * 7 + seed)) * 2;
    return kl_input(d, KL_F32, 2, (int64_t[]){n, n}, v);
}

enum { N = 6, STEPS = 4, VALUES = N * N };

/* Trains two layers, each on its device, inputs and loss on a third; what comes of it in out. */
static void train(kl_device a, kl_device b, kl_device c, float out[2][VALUES])
{
    kl_tensor w = noise(a, N, 1), v = noise(b, N, 2);
    OK(kl_requires_grad(w));
    OK(kl_requires_grad(v));
    for (int step = 0; step < STEPS; step++) {
        OK(kl_trace_begin("train"));
        kl_tensor x = noise(c, N, 10 + step), h = kl_tanh(kl_matmul(kl_to(x, a), w));
        kl_tensor y = kl_softmax(kl_matmul(kl_to(h, b), v), 1), gap = kl_sub(kl_to(y, c), x);
        kl_tensor loss = kl_sum_all(kl_mul(gap, gap));
        kl_tensor dw = kl_grad(loss, w), dv = kl_grad(loss, v); /* each where its variable is */
        CHECK(kl_device_of(dw).id == a.id && kl_device_of(dv).id == b.id);
        OK(kl_assign(w, kl_sub(w, kl_mul_scalar(dw, 0.125))));
        OK(kl_assign(v, kl_sub(v, kl_mul_scalar(dv, 0.125))));
        OK(kl_trace_end());
    }
    OK(kl_read(w, out[0], sizeof out[0]));
    OK(kl_read(v, out[1], sizeof out[1]));
    kl_release(w);
    kl_release(v);
}

/* Whatever the split, the bits of one device. */
static void several(void)
{
    static float want[2][VALUES], got[2][VALUES];
    train(cpu, cpu, cpu, want);
    const kl_device split[][3] = {{far, far, far}, {near, near, cpu}, {far, near, cpu}, {far, far1, near},
                                  {cpu, far, near}};
    for (unsigned i = 0; i < sizeof split / sizeof *split; i++)
        for (int fuse = 0; fuse < 2; fuse++) {
            OK(kl_set_option("fuse", fuse));
            train(split[i][0], split[i][1], split[i][2], got);
            CHECK(!memcmp(want, got, sizeof want));
        }
}

/* A copy is a node: it moves its bytes, once, and nothing else moves. */
static void copies(void)
{
    float out[2];
    kl_tensor x = on(far, 1, 2);
    kl_item_f32(kl_sum_all(x)); /* the data is there */
    size_t up = of_far->upload_bytes, peers = of_far->peer_bytes;
    int64_t via = kl_counter("bytes_via_host");
    OK(kl_trace_begin("peers"));
    kl_tensor y = kl_keep(kl_mul_scalar(kl_to(kl_neg(x), far1), 3));
    OK(kl_trace_end());
    CHECK(kl_counter("bytes_via_host") == via && of_far->peer_bytes == peers + 8);
    CHECK(of_far->upload_bytes - up <= 2 * 8); /* the number 3, which is a slot, to either device */
    OK(kl_read(y, out, sizeof out));
    CHECK(out[0] == -3 && out[1] == -6);

    OK(kl_trace_begin("through the host"));
    kl_tensor z = kl_keep(kl_to(kl_neg(x), near));
    size_t from = of_far->download_bytes, to = of_near->upload_bytes;
    OK(kl_trace_end());
    CHECK(kl_counter("bytes_via_host") == via + 8 && of_far->download_bytes == from + 8 &&
          of_near->upload_bytes == to + 8);
    CHECK(of_far->peer_bytes == peers + 8);
    NEAR_LIST(z, 0, -1, -2);
    kl_release(y);
    kl_release(x);
}

/* ---- failures ---- */

static void failures(void)
{
    kl_tensor w = on(far, 1, 2);
    for (int n = 1; n <= 2; n++) { /* the first kernel fails, or the second, behind one that waits */
        of_far->fail_launch = n;
        size_t dropped = of_far->dropped;
        OK(kl_trace_begin("fails"));
        kl_tensor h = kl_matmul(kl_reshape(w, 2, (int64_t[]){2, 1}), kl_reshape(w, 2, (int64_t[]){1, 2}));
        OK(kl_assign(w, kl_reshape(kl_max(h, 1, (int[]){1}, false), 1, (int64_t[]){2})));
        kl_status s = kl_trace_end();
        if (s == KL_OK && n == 2)
            break; /* it was one kernel */
        CHECK(s == KL_ERR_DEVICE && says("device far has dropped its work"));
        CHECK(of_far->dropped >= dropped);
        of_far->fail_launch = 0;
        NEAR_LIST(kl_neg(w), 0, -1, -2); /* the value from before; the device works */
    }
    of_far->fail_launch = 0;
    kl_release(w);

    kl_tensor big = kl_zeros(near, KL_F32, 1, (int64_t[]){PLUGIN_BYTES / 4 + 64});
    float *none = NULL;
    CHECK(kl_read(kl_neg(big), none, 0) != KL_OK);
    kl_clear_error();
    kl_tensor huge = kl_neg(kl_rand(near, KL_F32, 1, (int64_t[]){PLUGIN_BYTES}, 1));
    OK(kl_trace_begin("too large"));
    kl_keep(kl_sort(huge, 0, false));
    CHECK(kl_trace_end() == KL_ERR_MEMORY && says("the device is full"));
    NEAR_LIST(kl_neg(on(near, 5, 6)), 0, -5, -6);
    kl_release(huge);
    kl_release(big);
}

/* Memory of a device goes back to it. */
static void memory(void)
{
    kl_memory_trim();
    size_t before = of_near->live;
    OK(kl_trace_begin("memory"));
    kl_tensor t = kl_keep(kl_neg(noise(near, 8, 3)));
    OK(kl_trace_end());
    CHECK(of_near->live > before);
    kl_release(t);
    kl_memory_trim();
    CHECK(of_near->live == before);
}

/* Threads work with devices of one plug-in and of two. */
struct job { kl_device from, to; float got[2]; bool ok; };

static void *chain(void *ctx)
{
    struct job *job = ctx;
    job->ok = true;
    for (int i = 0; i < 10 && job->ok; i++) {
        job->ok = kl_trace_begin("chain") == KL_OK;
        kl_tensor x = kl_neg(on(job->from, (float)i, 2)), y =
            kl_keep(kl_add(kl_to(x, job->to), kl_to(kl_neg(x), job->to)));
        job->ok &= kl_trace_end() == KL_OK && kl_read(y, job->got, sizeof job->got) == KL_OK && job->got[0] == 0 &&
            job->got[1] == 0;
        kl_release(y);
    }
    return NULL;
}

static void threads(void)
{
    struct job job[] = {
        {far, near, {1, 1}, false}, {near, far, {1, 1}, false}, {far, far1, {1, 1}, false}, {far1, far, {1, 1}, false}};
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&thread[i], NULL, chain, &job[i]));
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        CHECK(job[i].ok);
    }
}

static void D11(void)
{
    loading();
    if (!far.id || !far1.id || !near.id || !of_far || !of_near)
        return;
    keys();
    several();
    copies();
    threads();
    failures();
    memory();
    full();
    kl_keep(on(far, 1, 2)); /* alive when the process ends */
}

int main(int argc, char **argv)
{
    static const struct row rows[] = {{"D11", D11}};
    return RUN_ROWS(rows);
}
