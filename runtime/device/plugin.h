/* Plug-ins: shared objects that bring devices (include/kiln/plugin.h).  Each is a driver (driver.h) as Kiln's own are,
 * and has a kind of devices from DEVICE_PLUGIN on. */
#ifndef KILN_RUNTIME_PLUGIN_H
#define KILN_RUNTIME_PLUGIN_H
#include "driver.h"

enum { PLUGINS_MAX = 3 };

/* Loads what KILN_PLUGINS names, once.  What could not be loaded is in the log, and is why (may be NULL), or "". */
void plugins_from_environment(const char **why);
const struct driver *plugin_driver(unsigned i);      /* NULL: there is no plug-in i */
const char *plugin_device_name(unsigned i, unsigned index); /* "npu:1"; NULL: there is no plug-in i */

#endif
