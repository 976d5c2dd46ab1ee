/* How long tests wait.  No verdict may depend on how fast a machine is, so what ends a test that loops or waits for
 * ever is far beyond what it takes on the slowest one: loops are counted in seconds of the processor, and what waits
 * for something that comes in milliseconds waits for minutes.  tests/run.sh ends a command that uses no processor time
 * at all. */
#ifndef TEST_DEADLINES_H
#define TEST_DEADLINES_H
#include <signal.h>
#include <stdbool.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    WAIT_MS = 600000,       /* for what another thread or process does within milliseconds */
    STUCK_SECONDS = 300,    /* of the processor, for work of less than one; sanitizers included */
    STUCK_CLOCK = 3600      /* seconds of a clock */
};

/* Ends this process by a signal once it has used so many seconds of the processor from now on, or after an hour.  For
 * children of a test, which then says what they were doing. */
static inline void end_when_stuck_after(double seconds)
{
    struct itimerval timer = {.it_value = {(time_t)seconds, (suseconds_t)(1e6 * (seconds - (double)(time_t)seconds))}};
    setitimer(ITIMER_PROF, &timer, NULL);
    alarm(STUCK_CLOCK);
}

static inline void end_when_stuck(void) { end_when_stuck_after(STUCK_SECONDS); }

/* Is this the signal by which such a process ends? */
static inline bool is_stuck_signal(int number) { return number == SIGPROF || number == SIGALRM; }

#endif
