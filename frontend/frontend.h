/* Internal header of the frontend: handles, recording and traces.
 *
 * A call on tensors takes one path, record() in record.c: check the operands, dispatch, append a node to the recording,
 * make a handle.  The recording is the open trace of the thread or, outside of traces, the deferred graph of the
 * process.  Composites (nn/, random.c, parts of ops.c) consist of such calls.
 *
 * One lock guards the table's free list, handles that are not temporaries, and the deferred graph.  Temporaries and
 * their trace are used only by the trace's own thread, without the lock. */
#ifndef KILN_FRONTEND_H
#define KILN_FRONTEND_H
#define KL_NO_CALL_SITES
#include "frontend/layers/layers.h"
#include "frontend/nn/nn.h"
#include "frontend/ops/ops.h"
#include "frontend/record/region.h"

/* ---- library/compile.c ---- */
struct object_file *object_file_of(kl_object *object);

#endif
