/* What tests ask of the plug-in tests/seeds/plugin_device.c, and tell it: they open it a second time and look up
 * "plugin_control". */
#ifndef PLUGIN_DEVICE_H
#define PLUGIN_DEVICE_H
#include <stdatomic.h>
#include <stddef.h>

enum { PLUGIN_DEVICES = 2, PLUGIN_BYTES = 256 << 20 }; /* of memory a device */

struct plugin_control {
    atomic_size_t upload_bytes, download_bytes, copy_bytes, peer_bytes;
    atomic_size_t launches, dropped, live; /* live: bytes that are allocated */
    atomic_int fail_launch;                /* the launch after so many fails; 0: none does */
};

#endif
