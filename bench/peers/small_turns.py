"""Turns of JAX and PyTorch for bench/small/small.c, on one thread.

    small_turns.py jax|torch

A line "CASE GRADIENT STEPS FOLDER VARIANT SECONDS" asks for a turn.  Operands are FOLDER/0, FOLDER/1, ..: raw f32.
GRADIENT 1: that of the sum of the results by one operand, the forward pass included.  With 0 seconds it is compiled and
called once, and the seconds that this took are printed with the sum of the first COMPARED elements of the result.
Otherwise calls are made for so many seconds, and the median seconds of a call are printed.  Times are of the processor.
An error is printed as "error" and its text.

Variants: "scan", jax.lax.scan; "unrolled", the same with 8 iterations an iteration; "eager", a loop in Python with
PyTorch's ops; "compile", the same with a body by torch.compile.  A loop in Python has at most TORCH_STEPS iterations,
and its time is scaled; the sum is then "nan" where it depends on them all.  The LSTM is torch.nn.LSTM's."""
import sys
import time

import numpy

COMPARED = 64
TORCH_STEPS = 1000
H = 0.01


# ---- the steps: step(lib, operands, state, x) returns the next state and a result ----


def logistic(lib, t, s, r):
    x = r * s[0] * (1 - s[0])
    return (x,), x


def cofactors_inverse(lib, a):
    def rotated(r, c):
        return lib.roll(lib.roll(a, -r, 0), -c, 1)

    c = rotated(1, 1) * rotated(2, 2) - rotated(1, 2) * rotated(2, 1)
    return c.T / (a[0] * c[0]).sum()


def kalman_with(inverse):
    def kalman(lib, t, s, z):
        x, p = s
        p = t[1] @ p @ t[1].T + t[2]
        ahead = t[1] @ x
        k = p @ inverse(lib, p + t[3])
        x = ahead + k @ (z - ahead)
        return (x, p - k @ p), x

    return kalman


def prey(k, x, y):
    return k[0] * x - k[1] * x * y, k[2] * x * y - k[3] * y


def lotka_state(k, x, y):
    a, b = prey(k, x, y)
    c, d = prey(k, x + H / 2 * a, y + H / 2 * b)
    e, f = prey(k, x + H / 2 * c, y + H / 2 * d)
    g, i = prey(k, x + H * e, y + H * f)
    return x + H / 6 * (a + 2 * (c + e) + g), y + H / 6 * (b + 2 * (d + f) + i)


def lotka(lib, t, s, _):
    x, y = lotka_state(t[0], *s)
    return (x, y), lib.stack((x, y))


def fits(lib, t, s, _):
    return lotka_state(t[0], *s), None


def vehicle(lib, t, s, u):
    x, y, a, v, w, r = s
    square = a * a
    ca, sa = 1 - 0.5 * square, a - square * a / 6
    d = (v * ca - w * sa, v * sa + w * ca, r, u[0] - 0.1 * v + w * r, u[1] - 2 * w - v * r,
         3 * u[1] - 4 * r - 0.5 * a)
    s = tuple(q + H * e for q, e in zip(s, d))
    return s, lib.stack(s[:3])


def units(lib, t, s, x):
    h = s[0]
    h = h + t[0] * (x - h) + 0.1 * lib.roll(h, -1, 0) * (1 - h)
    return (h,), h


def lstm(lib, t, s, x):
    h, c = s
    z = x @ t[0] + h @ t[1]
    i, f, g, o = (z[:, 16 * n:16 * n + 16] for n in range(4))
    c = lib.sigmoid(f) * c + lib.sigmoid(i) * lib.tanh(g)
    h = lib.sigmoid(o) * lib.tanh(c)
    return (h, c), h


# step, shapes of the operands (0: the number of steps), the scanned operand, the operand of the gradient, the state
# before the first step
CASES = {
    "logistic": (logistic, [(0,), ()], 0, 1, lambda lib, t: (t[1],)),
    "kalman": (kalman_with(cofactors_inverse), [(0, 3)] + [(3, 3)] * 3, 0, 2,
               lambda lib, t: (lib.zeros(3), lib.eye(3))),
    "kalman-inverse": (kalman_with(lambda lib, a: lib.linalg.inv(a)), [(0, 3)] + [(3, 3)] * 3, 0, 2,
                       lambda lib, t: (lib.zeros(3), lib.eye(3))),
    "lotka": (lotka, [(4,)], None, 0, lambda lib, t: (lib.ones(()), lib.ones(()))),
    "vehicle": (vehicle, [(0, 2)], 0, 0, lambda lib, t: tuple(lib.ones(()) * (i == 3) for i in range(6))),
    "units": (units, [(60,), (0, 60)], 1, 0, lambda lib, t: (lib.zeros(60),)),
    "lstm": (lstm, [(16, 64), (16, 64), (0, 1, 16)], 2, 1, lambda lib, t: (lib.zeros((1, 16)),) * 2),
    "fits": (fits, [(4, 256)], None, 0, lambda lib, t: (lib.ones(256), lib.ones(256))),
}


def operands(name, steps, folder):
    shapes = CASES[name][1]
    return [numpy.fromfile(f"{folder}/{i}", numpy.float32, int(numpy.prod([d or steps for d in s]))).reshape(
        [d or steps for d in s]) for i, s in enumerate(shapes)]


# ---- the systems: make(case, gradient, operands, steps, variant) returns a call and how much of the steps it does ----


def jax_system():
    import jax
    import jax.numpy as jnp
    from jax import lax

    class lib:
        roll, stack, tanh, sigmoid = jnp.roll, jnp.stack, jnp.tanh, jax.nn.sigmoid
        zeros, ones, eye, linalg = jnp.zeros, jnp.ones, jnp.eye, jnp.linalg

    def make(name, gradient, given, steps, variant):
        step, _, scanned, wrt, first = CASES[name]
        given = [jnp.asarray(v) for v in given]

        def forward(t):
            end, out = lax.scan(lambda s, x: step(lib, t, s, x), first(lib, t), None if scanned is None else t[scanned],
                                length=steps, unroll=8 if variant == "unrolled" else 1)
            return jnp.stack(end) if out is None else out

        def by(x):
            return forward([x if i == wrt else v for i, v in enumerate(given)]).sum()

        compiled = jax.jit(jax.grad(by) if gradient else forward)
        argument = given[wrt] if gradient else given
        return lambda: jax.block_until_ready(compiled(argument)), 1.0

    return make


def torch_system():
    import torch

    torch.set_num_threads(1)

    def make(name, gradient, given, steps, variant):
        torch.compiler.reset()
        step, _, scanned, wrt, first = CASES[name]
        given = [torch.from_numpy(v) for v in given]
        given[wrt].requires_grad_(bool(gradient))
        count = min(steps, TORCH_STEPS) if name != "lstm" else steps
        one = torch.compile(step, dynamic=False) if variant == "compile" else step

        def forward():
            if name == "lstm":
                zero = torch.zeros(1, 1, 16)
                return torch._VF.lstm(given[2], (zero, zero), [given[0].T, given[1].T], False, 1, 0.0, False, False,
                                      False)[0]
            state, out = first(torch, given), []
            for i in range(count):
                state, y = one(torch, given, state, None if scanned is None else given[scanned][i])
                out.append(y)
            return torch.stack(state if out[0] is None else out)

        def call():
            if gradient:
                return torch.autograd.grad(forward().sum(), given[wrt])[0]
            with torch.no_grad():
                return forward()

        return call, count / steps

    return make


def median(numbers):
    return sorted(numbers)[len(numbers) // 2]


def serve(make):
    made = {}
    for line in sys.stdin:
        name, gradient, steps, folder, variant, seconds = line.split()
        key = name, gradient, variant
        try:
            begun = time.process_time()
            first = key not in made
            if first:
                made = {k: v for k, v in made.items() if k[0] == name}
                made[key] = make(name, int(gradient), operands(name, int(steps), folder), int(steps), variant)
            if first and float(seconds) > 0:  # the process that had compiled it was ended
                made[key][0]()
                begun = time.process_time()
            if float(seconds) == 0:
                call, part = made[key]
                result = numpy.asarray(call().detach() if variant in ("eager", "compile") else call(), numpy.float64)
                took = time.process_time() - begun
                whole = part == 1 or (gradient == "0" and name != "fits")
                print(took, result.reshape(-1)[:COMPARED].sum() if whole else "nan", flush=True)
                continue
            (call, part), took = made[key], []
            while not took or time.process_time() - begun < float(seconds):
                start = time.process_time()
                call()
                took.append(time.process_time() - start)
            print(median(took) / part, flush=True)
        except Exception as error:  # a peer that lacks something is left out of the case
            print("error", " ".join(f"{type(error).__name__}: {error}".split())[:200], flush=True)


serve({"jax": jax_system, "torch": torch_system}[sys.argv[1]]())
