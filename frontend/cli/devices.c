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
    if (!cli_parse(argc, argv, (struct cli_option[]){{0}}, NULL))
        return CLI_USAGE;
    device_list(devices_show, NULL);
    return CLI_OK;
}
