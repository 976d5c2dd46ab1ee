/* A running program: the structures shared by executor.c and execute_device.c. */
#ifndef KILN_EXECUTE_H
#define KILN_EXECUTE_H
#include "runtime/runtime.h"

struct run {
    const struct exec *x;
    struct buffer *const *input, *const *state;
    struct buffer **out;
    const uint64_t *slot;
    void **table;                 /* the data of inputs, states and outputs */
    const int64_t *offset;        /* per value of program.layout: its offset in the arena; NULL: there is none */
    int64_t arena;                /* with a layout: bytes of the arena */
    int64_t *extent;              /* per kernel: iterations for the symbols' values; NULL: the program has no symbols */
    char *scratch;                /* of worker 0; those of the others follow at intervals of worker_bytes */
    size_t scratch_bytes, worker_bytes;
    unsigned workers;
    uint64_t launches, barriers;
    uint32_t made;                /* number of outputs that have a buffer */
    const struct exec_watch *watch; /* called after each command; or NULL */
    bool elide;                   /* omit barriers that the plan marks as unnecessary */
    bool bare;                    /* nothing but the results is asked for, and processors run all kernels, compiled */
    bool overwrites;              /* updates states in place */
    bool locked;                  /* this thread has its devices' locks */
    const struct cancellation *cancel; /* NULL: it cannot be cancelled, or not any more: it has overwritten a state */
    double (*clock)(void);
    struct profile_row *row;      /* its rows in this thread's profile, NULL without one */
    const uint16_t *timed;        /* profile.launches */
    /* commands that another thread runs (command.signal): one for each signal of the program, and how many of them were
     * started and have ended */
    struct async_call *async;
    uint32_t started, ended;
    atomic_bool async_failed;     /* one of them failed: those after it do nothing */
    struct times *times;          /* its times if the timeline is on, else NULL */
    unsigned home_device;         /* has the run's own memory on the host (executor.c) */
    uint64_t further;             /* the other devices that the program uses */
    char *home;                   /* the memory on its home device */
    struct buffer **memory, **work, **slots; /* by device: the arrays of struct run_memory */
};

/* own: the host's also has the tables and the scratch.  For devices with drivers, work: scratch passed as an argument;
 * slots: the runtime scalars. */
struct run_memory { struct buffer *own[MAX_DEVICES], *work[DEVICE_END], *slots[DEVICE_END]; };

/* What the symbols' lengths are in this run, in *v; NULL: the program has no symbols. */
static inline const struct size_values *run_sizes(const struct run *r, struct size_values *v)
{
    *v = (struct size_values){&r->x->program->placeholders, r->slot};
    return v->s->n ? v : NULL;
}

/* The program, or a region of it, that runs now, with its data. */
enum { FRAME_DATA = LOC_OUT + 1 };
struct frame {
    struct run *r;
    const struct program *p;
    /* by LOC_ARENA .. LOC_OUT: the data of its inputs, states and outputs; arenas by device, for those it uses */
    const void *const *data[FRAME_DATA];
    const struct command *cmd;    /* the current command */
};

struct region_frame { struct frame *f; const void *arena[MAX_DEVICES]; struct err *e; };

/* ---- executor.c ---- */
/* the address of an argument for one worker */
void *exec_resolve(const struct frame *f, const struct loc *l, unsigned worker);
void **exec_arguments(const struct frame *f, const struct command *c, unsigned worker);

/* ---- execute_device.c: running commands on devices with drivers ---- */
bool accelerators_prepare(struct run *r, struct err *e); /* allocates the memory that it needs */
void accelerators_free(struct run *r);
bool accelerators_begin(struct run *r, struct err *e);   /* locks the devices */
/* Where the program's last run had this memory; NULL: not known.  What it has again need not be set again in the
 * driver's list of launches. */
const void *accelerators_last_output(const struct run *r, uint32_t i);
const void *accelerators_last_arena(const struct run *r);
/* Adds the launches of the program's last run once more if they are the same, so that the host need not go through the
 * program's commands.  *done: it did. */
bool accelerators_repeat(struct run *r, bool *done, struct err *e);
/* submits the work, or drops it after a failure, and unlocks; returns ok, or false */
bool accelerators_end(struct run *r, bool ok, struct err *e);
bool accelerator_launch(const struct frame *f, struct err *e);
bool accelerator_copy(const struct frame *f, void *to, const void *from, size_t bytes, struct err *e);
/* The time that a command takes on its device: begun in front of it, ended behind it.  The end waits for the command;
 * seconds below 0: the device has no clock, or the host runs the command. */
bool accelerator_time_begin(const struct frame *f);
double accelerator_time_end(const struct frame *f, bool began);
bool accelerator_custom(const struct frame *f, struct err *e); /* runs on the host; operands and results are copied */
bool accelerator_peek(void *region_frame, const void *at, bool *value); /* of struct region_call */
/* Copies an argument of the command to the host, when the device is done with its work. */
bool accelerator_read(const struct frame *f, void *to, const void *from, size_t bytes, struct err *e);
bool accelerator_move(void *region_frame, void *to, const void *from, size_t bytes);

#endif
