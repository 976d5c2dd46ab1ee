/* The counters that tests and users read: what was planned, compiled, loaded and launched. */
#include "runtime.h"

struct counters counters;
