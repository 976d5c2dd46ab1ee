"""What all peers of bench/peers/peers.c share: the numbers, a case as it is sent, and turns.

A line "FAMILY BACKWARD SIZES VARIANT SECONDS" asks for a turn: one call is made, then calls for so many seconds, and
the median seconds of a call are printed.  With 0 seconds one call is made, and "0" is printed with the sum of the
magnitudes of each of its outputs, by which Kiln checks that all compute the same.  An error is printed as "error" and
its text.  peers_cases.h says what a family computes.

A process that may use one core only measures the time of the processor that it used, one that may use more the time of
a clock."""
import os
import sys
import time

import numpy

SEED_INPUT = 1000
GPT = dict(layers=4, width=256, heads=8, tokens=128, batch=8, words=128)


def numbers24(n, seed):
    """n numbers from 0 to 2^24 - 1: a hash of the index (lowbias32, Christopher Wellons)."""
    with numpy.errstate(over="ignore"):
        x = numpy.arange(n, dtype=numpy.uint32) + numpy.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF)
        x = (x ^ x >> numpy.uint32(16)) * numpy.uint32(0x7FEB352D)
        x = (x ^ x >> numpy.uint32(15)) * numpy.uint32(0x846CA68B)
    return (x ^ x >> numpy.uint32(16)) >> numpy.uint32(8)


def floats(shape, seed, deviation=1.0, mean=0.0):
    """Uniform numbers of this standard deviation and mean, f32."""
    x = numbers24(int(numpy.prod(shape)), seed).astype(numpy.float32) * numpy.float32(2.0**-24) - numpy.float32(0.5)
    return (x * numpy.float32(deviation * numpy.sqrt(12.0)) + numpy.float32(mean)).reshape(shape)


def integers(shape, seed, bound):
    x = numbers24(int(numpy.prod(shape)), seed).astype(numpy.int64)
    return (x * bound >> 24).astype(numpy.int32).reshape(shape)


def parameters(family):
    """Weights of dense layers are [in, out], of convolutions [out, in, kernel, kernel]."""
    made = []

    def add(deviation, mean, *shape):
        made.append(floats(shape, len(made) + 1, deviation, mean))

    if family == "mlp":
        for n, m in ((784, 512), (512, 512), (512, 10)):
            add(numpy.sqrt(2.0 / n), 0, n, m)
            add(0, 0, m)
    elif family == "cnn":
        for fan, shape in ((9, (32, 1, 3, 3)), (288, (64, 32, 3, 3)), (3136, (3136, 128)), (128, (128, 10))):
            add(numpy.sqrt(2.0 / fan), 0, *shape)
            add(0, 0, shape[0] if len(shape) == 4 else shape[1])
    else:
        c = GPT["width"]
        add(0.02, 0, GPT["words"], c)
        add(0.02, 0, GPT["tokens"], c)
        for _ in range(GPT["layers"]):
            add(0, 1, c)
            add(0, 0, c)
            add(0.02, 0, c, 3 * c)
            add(0.02, 0, c, c)
            add(0, 1, c)
            add(0, 0, c)
            add(0.02, 0, c, 4 * c)
            add(0, 0, 4 * c)
            add(0.02, 0, 4 * c, c)
            add(0, 0, c)
        add(0, 1, c)
        add(0, 0, c)
        add(0.02, 0, c, GPT["words"])
    return made


def inputs(family, size, backward):
    """The inputs in order, the upstream gradient last."""
    made = []

    def add(deviation, *shape):
        made.append(floats(shape, SEED_INPUT + len(made), deviation))

    def add_integers(bound, *shape):
        made.append(integers(shape, SEED_INPUT + len(made), bound))

    n = size
    if family == "mlp":
        add(1, n[0], 784)
        add_integers(10, n[0])
    elif family == "cnn":
        add(1, n[0], 1, 28, 28)
        add_integers(10, n[0])
    elif family == "gpt":
        add_integers(GPT["words"], GPT["batch"], GPT["tokens"])
        add_integers(GPT["words"], GPT["batch"] * GPT["tokens"])
    elif family == "attention":
        for _ in range(3 + backward):
            add(1, 8, 8, n[0], 64)
    elif family == "chain":
        for _ in range(5):
            add(1, n[0])
    elif family in ("gelu", "sum"):
        add(1, n[0])
    elif family in ("softmax", "layer_norm"):
        add(1, n[0], n[1])
        if family == "layer_norm":
            add(1, n[1])
            add(1, n[1])
        if backward:
            add(1, n[0], n[1])
    elif family == "conv":
        axes = ([n[7]] if n[7] else []) + [n[1], n[1]]
        add(1, 8, n[0], *axes)
        add(0.05, n[2], n[0] // (n[6] or 1), *[n[3] for _ in axes])
        if backward:
            add(1, 8, n[2], *[(a + 2 * n[5] - n[3]) // n[4] + 1 for a in axes])
    elif family == "matvec":
        add(1, n[2], n[0])
        add(0.02, n[0], n[0])
    elif family == "embedding":
        add(0.02, n[0], n[1])
        add_integers(n[0], n[2])
        add(1, n[2], n[1])
    else:
        add(1, 16)
        add(1, 16)
    return made


def is_bf16(family, size):
    """Are the inputs of a case rounded to bf16?"""
    return (family == "matvec" and size[1] != 0) or (family == "conv" and size[8] != 0)


def serve(make, magnitudes):
    """Answers lines.  make(family, backward, size, variant): a function that makes one call to its end;
    magnitudes(result): the sums."""
    made = {}
    now = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
    for line in sys.stdin:
        family, backward, size, variant, seconds = line.split()
        key = family, backward, size, variant
        try:
            if key not in made:
                if {k[:3] for k in made} != {key[:3]}:
                    made.clear()
                made[key] = make(family, backward == "1", [int(s) for s in size.split(",")], variant)
            call, took, begun = made[key], [], now()
            result = call()
            if float(seconds) == 0:
                print(0, *magnitudes(result), flush=True)
                continue
            while not took or now() - begun < float(seconds):
                start = now()
                result = call()
                took.append(now() - start)
            print(sorted(took)[len(took) // 2], flush=True)
        except Exception as error:  # a peer that lacks something is left out of the case
            print("error", " ".join(f"{type(error).__name__}: {error}".split())[:200], flush=True)
