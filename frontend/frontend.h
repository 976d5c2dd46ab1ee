/* Handles, recording and traces: all internal headers of the folder.
 *
 * A call on tensors goes through one path, record() in record.c: check the operands, dispatch on their device,
 * append a node to the recording, make a handle.  The recording is the open trace of the thread or, outside of
 * traces, the deferred graph of the process.  Composites (nn/, random.c, parts of ops.c) are made of
 * such calls.
 *
 * One lock guards the table's free list, everything about handles that are not temporaries, and the deferred
 * graph.  Temporaries and their trace are touched by the trace's own thread only, without the lock. */
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
