/* Plug-ins: shared objects that provide devices (include/kiln/plugin.h).  Each is a driver (driver.h) like Kiln's own,
 * and is a kind of devices from DEVICE_PLUGIN on. */
#ifndef KILN_RUNTIME_PLUGIN_H
#define KILN_RUNTIME_PLUGIN_H
#include "driver.h"

enum { PLUGINS_MAX = 3 };

/* Loads the plug-ins that KILN_PLUGINS names, once per process.  If one cannot be loaded, the reason is logged, and
 * *why (why may be NULL) is the first reason, else "". */
void plugins_from_environment(const char **why);
const struct driver *plugin_driver(unsigned i);      /* NULL: there is no plug-in number i */
const char *plugin_device_name(unsigned i, unsigned index); /* for example "npu:1"; NULL: there is no plug-in number
                                                               i */

#endif
