/* kiln devices: lists the devices of this machine. */
#include "cli.h"
#include "runtime/runtime.h"

static void devices_show(void *ctx, const char *name, bool works, const char *text)
{
    (void)ctx;
    printf("%-10s %s%s\n", name, works ? "" : "- ", text);
}

int cli_devices(int argc, char **argv)
{
    struct cli_args a = {.argc = argc, .argv = argv};
    if (cli_next(&a))
        return cli_unexpected(&a);
    device_list(devices_show, NULL);
    return CLI_OK;
}
