/* A program at work: what executor.c and execute_device.c share. */
#ifndef KILN_EXECUTE_H
#define KILN_EXECUTE_H
#include "runtime/runtime.h"

struct run {
    const struct exec *x;
    struct buffer *const *input, *const *state;
    struct buffer **out;
    const uint64_t *slot;
    void **table;                 /* the data of inputs, states and outputs */
    struct buffer *memory[MAX_DEVICES]; /* by device; the exec's own has the tables and the scratch, too */
    char *scratch;                /* worker 0's; the others' follow, worker_bytes apart */
    size_t scratch_bytes, worker_bytes;
    unsigned workers;
    uint64_t launches, barriers;
    bool join;                    /* no barriers where the plan says that none is needed */
    double (*clock)(void);
    struct profile_row *row;      /* its rows of this thread's profile, NULL without one */
    /* what another thread runs (command.signal): one a signal of the program, and how many of them were given to it
     * and have ended */
    struct async_call *async;
    uint32_t started, ended;
    atomic_bool async_failed;     /* one of them: those behind it do nothing */
    struct times *times;          /* its times while the timeline is on, else NULL */
    /* of devices with drivers: scratch that is an argument, the slots' bits */
    struct buffer *work[DEVICE_END], *slots[DEVICE_END];
};

/* The program, or a region of it that runs now, with its data. */
struct frame {
    struct run *r;
    const struct program *p;
    const void *const *input, *const *state;
    void *const *out;
    char *const *arena;           /* by device, for those that the program uses */
    const struct command *cmd;    /* the one that runs now */
};

struct region_frame { struct frame *f; char *arena[MAX_DEVICES]; struct err *e; };

/* ---- executor.c ---- */
/* where an argument lies for one worker */
void *exec_resolve(const struct frame *f, const struct loc *l, unsigned worker);
void **exec_arguments(const struct frame *f, const struct command *c, unsigned worker);

/* ---- execute_device.c: what a program does on devices with drivers ---- */
bool accelerators_prepare(struct run *r, struct err *e); /* what it needs of memory */
void accelerators_free(struct run *r);
bool accelerators_begin(struct run *r, struct err *e);   /* locks the devices */
/* lets the devices begin, or drops what was not begun, and unlocks; ok, or false */
bool accelerators_end(struct run *r, bool ok, struct err *e);
bool accelerator_launch(const struct frame *f, struct err *e);
bool accelerator_copy(const struct frame *f, void *to, const void *from, struct err *e);
void accelerator_wait(const struct frame *f);            /* for the command that was given last */
bool accelerator_custom(const struct frame *f, struct err *e); /* on the host, its operands and results copied */
bool accelerator_peek(void *region_frame, const void *at, bool *value); /* of struct region_call */
bool accelerator_move(void *region_frame, void *to, const void *from, size_t bytes);

#endif
