/* A plug-in: a device in a shared object of its own, which links with nothing of Kiln's.  This one has a memory of its
 * own in the host's, and computes on the host; where a real one calls its driver and its compiler, a comment says so.
 *
 * examples/features/plugin.c loads it and trains on it. */
#include <kiln/plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kl_plugin_device { unsigned kernels; /* loaded so far */ };

static const kl_plugin_host *kiln; /* what Kiln does for a plug-in */
static struct kl_plugin_device only;

static bool fail(kl_plugin_error *e, kl_status code, const char *message)
{
    e->code = code;
    snprintf(e->message, sizeof e->message, "%s", message);
    return false;
}

/* ---- the device ---- */

static unsigned count(kl_plugin_error *e)
{
    (void)e; /* with no device: return 0, and say why in e->message */
    return 1;
}

static kl_plugin_device *open_device(unsigned index, kl_plugin_about *about, kl_plugin_error *e)
{
    (void)index, (void)e;
    snprintf(about->name, sizeof about->name, "an example in the host's memory");
    about->dtypes = (1u << KL_DTYPE_COUNT) - 1; /* calls that need others are refused */
    return &only;
}

/* ---- memory: Kiln never follows these addresses ---- */

static bool alloc(kl_plugin_device *d, size_t bytes, void **address, kl_plugin_error *e)
{
    (void)d;
    *address = aligned_alloc(64, (bytes + 127) / 64 * 64);
    return *address || fail(e, KL_ERR_MEMORY, "the device is full");
}

static void release(kl_plugin_device *d, void *address)
{
    (void)d;
    free(address);
}

static bool copy(kl_plugin_device *d, void *to, const void *from, size_t bytes, kl_plugin_error *e)
{
    (void)d, (void)e; /* a real device's queue does it later: finish and download wait */
    if (bytes)
        memmove(to, from, bytes);
    return true;
}

static bool finish(kl_plugin_device *d, kl_plugin_error *e)
{
    (void)d, (void)e;
    return true;
}

/* ---- kernels ---- */

/* A real plug-in compiles the text, and keeps in *loaded what came of it; ir/README.md has the grammar. */
static bool load(kl_plugin_device *d, const kl_plugin_kernel *kernel, void **loaded, kl_plugin_error *e)
{
    (void)e;
    const char *text = kiln->text(kernel);
    *loaded = NULL;
    d->kernels++;
    if (getenv("EXAMPLE_SHOW"))
        printf("kernel %u: %.*s\n", d->kernels, (int)strcspn(text, "\n"), text);
    return true;
}

static void unload(kl_plugin_device *d, void *loaded) { (void)d, (void)loaded; }

/* Kiln's interpreter computes what a plug-in does not; it needs the host's addresses, which these are. */
static bool launch(kl_plugin_device *d, const kl_plugin_launch *l, kl_plugin_error *e)
{
    (void)d;
    return kiln->run(l->kernel, l->buffer, l->slots, l->begin, l->end, e);
}

KL_PLUGIN_ENTRY(host)
{
    static const kl_plugin plugin = {.version = KL_PLUGIN_VERSION, .name = "example", .count = count,
                                     .open = open_device,
                                     .alloc = alloc, .release = release, .load = load, .unload = unload,
                                         .launch = launch,
                                     .copy = copy, .upload = copy, .download = copy, .finish = finish};
    kiln = host;
    return &plugin;
}
