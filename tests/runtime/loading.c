/* libkiln.so and every code generator opened at run time, in a process that links none of them and has opened a dozen
 * libraries with static thread-local storage before; then used as a foreign-function interface does: by address,
 * without headers' macros.  Argument: the build folder. */
#define KL_NO_CALL_SITES
#include <dirent.h>
#include <dlfcn.h>
#include <kiln/kiln.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int passed, failed;

static void *handle;

static int check(int ok, const char *what, const char *why)
{
    passed += !!ok;
    failed += !ok;
    if (!ok)
        printf("FAIL %s: %s\n", what, why ? why : "");
    return ok;
}

static void open_modules(const char *build)
{
    for (int i = 1; i <= 12; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/tests/tls_%d.so", build, i);
        void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!check(module != NULL, path, dlerror()))
            continue;
        char *(*bytes)(void);
        *(void **)&bytes = dlsym(module, "tls_module_bytes");
        check(bytes && (bytes()[0] = 1), path, "no storage");
    }
}

/* A function of the library, by its name. */
#define FUNCTION(result, name, ...)                                            \
    result (*name##_)(__VA_ARGS__);                                            \
    *(void **)&name##_ = dlsym(handle, #name);                                 \
    if (!check(name##_ != NULL, #name, dlerror()))                             \
        return NULL

/* (a + a) * exp(-a) at a = 0, 1, in each thread. */
static void *compute(void *device)
{
    FUNCTION(kl_device, kl_device_named, const char *);
    FUNCTION(kl_tensor, kl_input, kl_device, kl_dtype, int, const int64_t *, const void *);
    FUNCTION(kl_tensor, kl_add, kl_tensor, kl_tensor);
    FUNCTION(kl_tensor, kl_mul, kl_tensor, kl_tensor);
    FUNCTION(kl_tensor, kl_exp, kl_tensor);
    FUNCTION(kl_tensor, kl_neg, kl_tensor);
    FUNCTION(kl_status, kl_read, kl_tensor, void *, size_t);
    FUNCTION(void, kl_release, kl_tensor);
    FUNCTION(const char *, kl_last_error, void);
    FUNCTION(const char *, kl_cache_off_reason, void);
    const float x[2] = {0, 1};
    float y[2] = {-1, -1};
    kl_tensor a = kl_input_(kl_device_named_(device), KL_F32, 1, (int64_t[]){2}, x);
    kl_tensor b = kl_mul_(kl_add_(a, a), kl_exp_(kl_neg_(a)));
    check(kl_read_(b, y, sizeof y) == KL_OK, device, kl_last_error_());
    check(y[0] == 0 && y[1] > 0.7357f && y[1] < 0.7359f, device, "a wrong value");
    check(kl_cache_off_reason_() != NULL, device, "no reason");
    kl_release_(a);
    kl_release_(b);
    return NULL;
}

static void open_generators(const char *build)
{
    struct dirent *d;
    DIR *folder = opendir(build);
    int found = 0;
    if (!check(folder != NULL, build, "no such folder"))
        return;
    while ((d = readdir(folder))) {
        size_t n = strlen(d->d_name);
        if (strncmp(d->d_name, "libkiln-", 8) || n < 3 || strcmp(d->d_name + n - 3, ".so"))
            continue;
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", build, d->d_name);
        check(dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL, path, dlerror());
        found++;
    }
    closedir(folder);
    check(found > 0, build, "no code generator");
}

/* The library stays where it is after dlclose, so that cycles of opening it keep no memory each. */
static void reopen(const char *path)
{
    void *before = dlsym(handle, "kl_add");
    for (int i = 0; i < 3; i++) {
        check(!dlclose(handle), path, "dlclose fails");
        handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        if (!check(handle != NULL, path, "it is not loaded any more"))
            return;
        check(dlsym(handle, "kl_add") == before, path, "it is elsewhere");
        compute("ref");
    }
}

int main(int argc, char **argv)
{
    const char *build = argc > 1 ? argv[1] : "build";
    char path[1024];
    open_modules(build);
    snprintf(path, sizeof path, "%s/libkiln.so", build);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (check(handle != NULL, path, dlerror())) {
        static char *const devices[] = {"ref", "cpu"};
        open_generators(build);
        for (int i = 0; i < 2; i++) {
            pthread_t thread;
            compute(devices[i]);
            check(!pthread_create(&thread, NULL, compute, devices[i]) && !pthread_join(thread, NULL), devices[i],
                  "no thread");
        }
        reopen(path);
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
