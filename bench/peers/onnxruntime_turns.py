"""onnxruntime's turns for bench/models.c: reads lines "THREADS CALLS PATH", prints the median seconds of a call, of
processor time on one thread, else of elapsed time; -1: it cannot run this model.  Inputs as bench/models.c has them."""
import os
import sys
import time

import numpy
import onnxruntime

# Its threads wait for work by spinning after a call, 2^20 rounds of a pause: on as many processors as threads they would
# take Kiln's in the next turn.
SPINNING_SECONDS = 0.15
TYPES = {"float": "float32", "double": "float64"}
sessions = {}


def input_of(path, i, value):
    file = "%s.%d.npy" % (path, i)
    if os.path.exists(file):
        return numpy.load(file)
    kind = value.type[len("tensor("):-1]
    return numpy.zeros([d if isinstance(d, int) else 1 for d in value.shape], TYPES.get(kind, kind))


def session(path, threads):
    if (path, threads) not in sessions:
        sessions.clear()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        made = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        sessions[path, threads] = made, {v.name: input_of(path, i, v) for i, v in enumerate(made.get_inputs())}
    return sessions[path, threads]


def median(threads, calls, path):
    made, inputs = session(path, threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    took = []
    for _ in range(calls):
        start = clock()
        made.run(None, inputs)
        took.append(clock() - start)
    if threads > 1:
        time.sleep(SPINNING_SECONDS)
    took.sort()
    return took[len(took) // 2]


onnxruntime.set_default_logger_severity(4)
for line in sys.stdin:
    threads, calls, path = line.rstrip("\n").split(" ", 2)
    try:
        print(median(int(threads), int(calls), path), flush=True)
    except Exception:
        print(-1, flush=True)
