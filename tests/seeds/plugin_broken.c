/* A plug-in with one thing wrong, which the environment names in PLUGIN_BROKEN. */
#include <kiln/plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kl_plugin plugin;

static unsigned none(kl_plugin_error *e)
{
    snprintf(e->message, sizeof e->message, "there is no such card in this machine");
    return 0;
}

static unsigned one(kl_plugin_error *e)
{
    (void)e;
    return 1;
}

static kl_plugin_device *open_device(unsigned index, kl_plugin_about *about, kl_plugin_error *e)
{
    (void)index, (void)e;
    snprintf(about->name, sizeof about->name, "half a device");
    about->dtypes = 1u << KL_I32;
    return (kl_plugin_device *)&plugin;
}

static bool no(kl_plugin_error *e)
{
    snprintf(e->message, sizeof e->message, "nothing works");
    return false;
}

static bool alloc(kl_plugin_device *d, size_t bytes, void **address, kl_plugin_error *e)
{
    return (void)d, (void)bytes, (void)address, no(e);
}
static void release(kl_plugin_device *d, void *address) { (void)d, (void)address; }
static bool launch(kl_plugin_device *d, const kl_plugin_launch *l, kl_plugin_error *e)
{
    return (void)d, (void)l, no(e);
}
static bool copy(kl_plugin_device *d, void *to, const void *from, size_t n, kl_plugin_error *e)
{
    return (void)d, (void)to, (void)from, (void)n, no(e);
}
static bool finish(kl_plugin_device *d, kl_plugin_error *e) { return (void)d, no(e); }

static bool is(const char *what)
{
    const char *broken = getenv("PLUGIN_BROKEN");
    return broken && !strcmp(broken, what);
}

KL_PLUGIN_ENTRY(host)
{
    plugin = (kl_plugin){.version = is("version") ? host->version + 1 : host->version,
                         .name = is("name") ? "Broken one" : is("taken") ? "vulkan" : "broken",
                         .count = is("count") ? none : one, .open = open_device, .alloc = alloc, .release = release,
                         .launch = is("function") ? NULL : launch, .copy = copy, .upload = copy, .download = copy,
                             .finish = finish};
    return is("unwilling") ? NULL : &plugin;
}
