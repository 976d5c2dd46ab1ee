/* A library with static thread-local storage of its own, of which loading.c opens twelve before Kiln. */
__attribute__((visibility("default"))) char *tls_module_bytes(void);

static _Thread_local char bytes[104] __attribute__((tls_model("initial-exec")));

char *tls_module_bytes(void)
{
    return bytes;
}
