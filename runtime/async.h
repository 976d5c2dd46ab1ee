/* A thread that runs tasks one after the other, in the order in which they are given, beside the program that waits for
 * them: communication between processes. */
#ifndef KILN_ASYNC_H
#define KILN_ASYNC_H
#include <stdbool.h>

/* The caller's, until async_wait has returned. */
struct async_task {
    void (*run)(void *ctx);
    void *ctx;
    struct async_task *next;
    bool done;
};
void async_start(struct async_task *t);  /* where no thread can be made the task is run here and now */
void async_wait(struct async_task *t);

#endif
