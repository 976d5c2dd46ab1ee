"""onnxruntime's turns for bench/models.c: reads lines "THREADS CALLS PATH", prints the median seconds of a call."""
import sys
import time

import numpy
import onnxruntime

sessions = {}


def session(path, threads):
    if (path, threads) not in sessions:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        made = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        zeros = {i.name: numpy.zeros([d if isinstance(d, int) else 1 for d in i.shape], numpy.float32)
                 for i in made.get_inputs()}
        sessions[path, threads] = made, zeros
    return sessions[path, threads]


onnxruntime.set_default_logger_severity(4)
for line in sys.stdin:
    threads, calls, path = line.rstrip("\n").split(" ", 2)
    made, zeros = session(path, int(threads))
    took = []
    for _ in range(int(calls)):
        start = time.perf_counter()
        made.run(None, zeros)
        took.append(time.perf_counter() - start)
    took.sort()
    print(took[len(took) // 2], flush=True)
