/* Snapshots of training runs (checkpoint files): all that a run goes on from, in one safetensors file.  Included by
 * <kiln/train.h>.
 *
 *     kl_snapshot *c = kl_snapshot_new();
 *     kl_snapshot_params(c, params);
 *     kl_snapshot_optimizer(c, "adam", opt);
 *     kl_snapshot_loader(c, "data", loader);
 *     kl_snapshot_i64(c, "step", &step);
 *     kl_snapshot_seeds(c, dev);
 *     kl_snapshot_load_last(c, "run1", "model", NULL);        // nothing at the first start
 *     for (; step < steps; step++) {
 *         ... a training step ...
 *         if (step % 100 == 99)
 *             kl_snapshot_save_step(c, "run1", "model", step, 3);
 *     }
 *     kl_snapshot_free(c);
 *
 * A snapshot holds what was named to it; tensors and variables stay the caller's and outlive it.  Saving writes their
 * values of that moment, loading assigns them, all or, after an error, none.  Values come back with the same bits, so a
 * run that goes on is the same as one that was never interrupted.
 *
 * A file is written beside the one whose place it takes, and flushed to the disk before it does: whenever the process
 * is killed, or the machine stops, each file is as it was or complete.
 *
 * One thread at a time uses a snapshot, outside of traces. */
#ifndef KILN_SNAPSHOT_H
#define KILN_SNAPSHOT_H
#include <kiln/train/data.h>
#include <kiln/train/optim.h>
#include <kiln/train/params.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kl_snapshot kl_snapshot;

KL_API kl_snapshot *kl_snapshot_new(void); /* [errors MEMORY: NULL] */
KL_API void kl_snapshot_free(kl_snapshot *snapshot); /* NULL is fine */

/* ---- what it holds ---- */

/* A dense tensor that loading gives a new value by kl_assign.  [errors ARGUMENT: no snapshot, or the name is there or
 * is no UTF-8; HANDLE; TYPE: it is stored in another way than dense; MEMORY] */
KL_API_AT kl_status kl_snapshot_tensor(kl_snapshot *snapshot, const char *name, kl_tensor tensor);
/* A variable: a step, the position of a loader, the state of a schedule.  [errors ARGUMENT, MEMORY] */
KL_API_AT kl_status kl_snapshot_i64(kl_snapshot *snapshot, const char *name, int64_t *value);
KL_API_AT kl_status kl_snapshot_f64(kl_snapshot *snapshot, const char *name, double *value);
/* A whole number of the caller's that functions give and take.  `set` may refuse a number, and then changes nothing;
 * where loading fails after it, it gets the number of before again.  [errors ARGUMENT, MEMORY] */
typedef int64_t kl_snapshot_get(const void *of);
typedef kl_status kl_snapshot_set(void *of, int64_t value);
KL_API_AT kl_status kl_snapshot_number(kl_snapshot *snapshot, const char *name, kl_snapshot_get *get,
                                       kl_snapshot_set *set, void *of);
/* All tensors of a tree, by their names, buffers, too; an optimizer's tensors, as NAME and their own names, and its
 * steps; where a loader is.  They outlive the snapshot, and get no more tensors.  [errors as above] */
KL_API_AT kl_status kl_snapshot_params(kl_snapshot *snapshot, const kl_params *params);
KL_API_AT kl_status kl_snapshot_optimizer(kl_snapshot *snapshot, const char *name, kl_optimizer *opt);
KL_API_AT kl_status kl_snapshot_loader(kl_snapshot *snapshot, const char *name, kl_loader *loader);
/* A device's seeds: kl_next_seed goes on where it was.  Named "seeds.cpu:0".  [errors ARGUMENT, DEVICE, MEMORY] */
KL_API_AT kl_status kl_snapshot_seeds(kl_snapshot *snapshot, kl_device device);
/* Text for people and tools, which loading does not look at; in place of what the key had.
 * [errors ARGUMENT, MEMORY] */
KL_API_AT kl_status kl_snapshot_note(kl_snapshot *snapshot, const char *key, const char *text);

/* ---- files ---- */

/* [errors ARGUMENT; TRACE: one is open; IO, MEMORY; those of kl_read] */
KL_API_AT kl_status kl_snapshot_save(kl_snapshot *snapshot, const char *path);
/* [errors as above; IO: also a file that lacks something, or has something else or of another type or shape than what
 * the snapshot was told, or a number that is refused: the message names it] */
KL_API_AT kl_status kl_snapshot_load(kl_snapshot *snapshot, const char *path);

/* Saves FOLDER/NAME-STEP.safetensors and removes the files of that name but for those of the highest `keep` steps and
 * this one, and what processes left there that were killed while they wrote.  The folder is made if it is not there.
 * keep 0: nothing is removed.  [errors as kl_snapshot_save; ARGUMENT: a negative step] */
KL_API_AT kl_status kl_snapshot_save_step(kl_snapshot *snapshot, const char *folder, const char *name,
                                            int64_t step, int keep);
/* Loads the one of the highest step, or where its file is damaged or does not fit the one before it.  *step, which may
 * be NULL: its step; -1: there is none, which is no error and changes nothing.  [errors as kl_snapshot_load: if none
 * could be loaded, that of the highest step] */
KL_API_AT kl_status kl_snapshot_load_last(kl_snapshot *snapshot, const char *folder, const char *name,
                                            int64_t *step);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/formats/snapshot.h> /* made from the prototypes marked KL_API_AT */
#endif
