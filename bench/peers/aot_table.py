"""Models compiled ahead of time (kiln compile) beside onnxruntime, as a table: size of the program, largest memory of a
process, time of a run on one thread.  The program is a C program of this file's own with the model's object, stripped;
onnxruntime's size is that of its libraries and the model.  Times are the least of three processes each, one after the
other in turns, after a run that is not counted.  onnx2c is not in Debian or the package index; it is not measured.

Arguments: the build folder of Kiln, models (.onnx) whose inputs have constant shapes.  Needs onnxruntime."""
import os
import re
import subprocess
import sys
import tempfile

import onnxruntime

RUNS = 50
MAIN = """#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}
int main(void)
{
    model_args a = {0};
    double least = 1e30;
    kiln_aot_threads(1);
%s    a.workspace_bytes = model_workspace_bytes();
    a.workspace = malloc(a.workspace_bytes + 1);
    for (int i = 0; i <= %d; i++) {
        double start = now(), took;
        if (model_run(&a)) return 1;
        took = now() - start;
        if (i && took < least) least = took;
    }
    char line[200];
    long memory = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "VmHWM: %%ld", &memory);
    printf("%%.1f %%ld\\n", least, memory);
}
"""
PEER = """import sys, time, numpy as np, onnxruntime as ort
o = ort.SessionOptions()
o.intra_op_num_threads = o.inter_op_num_threads = 1
s = ort.InferenceSession(sys.argv[1], o, ["CPUExecutionProvider"])
kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(uint8)": np.uint8}
x = {i.name: np.zeros(i.shape, kinds[i.type]) for i in s.get_inputs()}
least = 1e30
for i in range(int(sys.argv[2]) + 1):
    start = time.perf_counter()
    s.run(None, x)
    took = (time.perf_counter() - start) * 1e6
    least = min(least, took) if i else least
memory = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print("%.1f" % least, memory[0])
"""


def measured(command):
    """What the command prints: microseconds, and the largest memory of its process in KB; None: it failed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return tuple(map(float, done.stdout.split())) if done.returncode == 0 else None


def build(folder, model, work):
    """Compiles the model and its program; the program's path."""
    path = lambda name: os.path.join(work, name)
    subprocess.run([os.path.join(folder, "kiln"), "compile", "model=" + model, "-o", path("model.o"), "--header",
                    path("model.h"), "--cpu", "native"], check=True, stdout=subprocess.DEVNULL)
    with open(path("model.h")) as f:
        fields = re.findall(r"^    (?:const )?(\w+) \*((?:in|out)_\w+);", f.read(), re.M)
    room = "".join("    a.%s = calloc(model_count_%s + 1, sizeof(%s));\n" % (name, name, kind) for kind, name in fields)
    with open(path("main.c"), "w") as f:
        f.write(MAIN % (room, RUNS))
    subprocess.run(["cc", "-std=c17", "-O2", "-s", path("main.c"), path("model.o"),
                    os.path.join(folder, "libkiln-aot.a"), "-lm", "-pthread", "-o", path("program")], check=True)
    return path("program")


def size_of_peer():
    at = os.path.dirname(onnxruntime.__file__)
    return sum(os.path.getsize(os.path.join(at, "capi", n)) for n in os.listdir(os.path.join(at, "capi"))
               if ".so" in n)


def row(folder, model):
    with tempfile.TemporaryDirectory() as work:
        program, runs = build(folder, model, work), {"kiln": [], "onnxruntime": []}
        size = os.path.getsize(program)
        for _ in range(3):
            runs["kiln"].append(measured([program]))
            runs["onnxruntime"].append(measured([sys.executable, "-c", PEER, model, str(RUNS)]))
    cells = [os.path.basename(model)[:-5], "%.0f" % (os.path.getsize(model) / 1024)]
    for name, bytes in (("kiln", size), ("onnxruntime", size_of_peer() + os.path.getsize(model))):
        done = [r for r in runs[name] if r]
        cells += ["%.0f" % (bytes / 1024)]
        cells += ["%.1f" % (min(r[1] for r in done) / 1024), "%.1f" % min(r[0] for r in done)] if done else ["-", "-"]
    return "| " + " | ".join(cells) + " |"


def main(folder, models):
    print("| model | KB | Kiln: program, KB | memory, MB | run, us | onnxruntime %s: libraries and model, KB | memory, "
          "MB | run, us |\n|---|---|---|---|---|---|---|---|" % onnxruntime.__version__)
    for model in models:
        print(row(folder, model), flush=True)


main(sys.argv[1], sys.argv[2:])
