/* The counters for tests and users: programs planned, kernels compiled, loaded and launched. */
#include "runtime.h"

struct counters counters;
