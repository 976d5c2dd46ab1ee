/* What can end this thread's runs and compilations before they are complete.  The frontend sets it
 * (kl_set_cancel_token, kl_set_deadline); the caches and the executor pass it on to the threads that work for this
 * one. */
#include "runtime/runtime.h"

static THREAD_LOCAL const struct cancellation *here;

void cancellation_here(const struct cancellation *c) { here = c; }
const struct cancellation *cancellation_current(void) { return here; }
