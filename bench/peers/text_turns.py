"""Training steps on text of varying length for bench/symbols.c, in PyTorch or JAX.

    text_turns.py torch|jax LAYERS WIDTH HEADS TOKENS BATCH WORDS

torch: torch.compile(dynamic=True), so one compile is for many lengths; jax: jax.jit, which compiles for each length.
Prints "ready"; then for each line of input, a length, does a step of Adam on a batch of this length, and prints its
seconds, compiling included, and the most memory of the process so far in MB."""
import resource
import sys
import time

import numpy

system = sys.argv[1]
layers, width, heads, tokens, batch, words = (int(n) for n in sys.argv[2:8])
random = numpy.random.default_rng(1)
text = random.integers(0, words, batch * tokens + 1, numpy.int32)


def parameters():
    def normal(*shape):
        return (0.02 * random.standard_normal(shape)).astype(numpy.float32)

    one, zero = numpy.ones(width, numpy.float32), numpy.zeros(width, numpy.float32)
    p = [normal(words, width), normal(tokens, width)]
    for _ in range(layers):
        p += [one, zero, normal(width, 3 * width), normal(width, width), one, zero, normal(width, 4 * width),
              numpy.zeros(4 * width, numpy.float32), normal(4 * width, width), zero]
    return p + [one, zero, normal(width, words)]


def batch_of(length):
    """Tokens [batch, length], and the ones that follow them."""
    n = batch * length
    return text[:n].reshape(batch, length), text[1:n + 1]


def torch_step():
    import torch
    import torch.nn.functional as F

    p = [torch.nn.Parameter(torch.from_numpy(w.copy())) for w in parameters()]
    optimizer = torch.optim.Adam(p, lr=1e-3, fused=True)

    def loss_of(p, ids, y):
        b, t = ids.shape
        x = F.embedding(ids, p[0]) + p[1][:t]
        for i in range(layers):
            q = p[2 + 10 * i:]
            qkv = (F.layer_norm(x, (width,), q[0], q[1]) @ q[2]).split(width, 2)
            qkv = [u.view(b, t, heads, width // heads).transpose(1, 2) for u in qkv]
            seen = F.scaled_dot_product_attention(*qkv, is_causal=True).transpose(1, 2).reshape(b, t, width)
            x = x + seen @ q[3]
            hidden = F.gelu(F.layer_norm(x, (width,), q[4], q[5]) @ q[6] + q[7], approximate="tanh")
            x = x + hidden @ q[8] + q[9]
        q = p[2 + 10 * layers:]
        return F.cross_entropy((F.layer_norm(x, (width,), q[0], q[1]) @ q[2]).flatten(0, 1), y)

    compiled = torch.compile(loss_of, dynamic=True)

    def step(length):
        ids, y = (torch.from_numpy(v).long() for v in batch_of(length))
        optimizer.zero_grad(set_to_none=True)
        loss = compiled(p, ids, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def jax_step():
    import jax
    import jax.numpy as jnp
    from jax import lax

    def layer_norm(x, w, b):
        mean = jnp.mean(x, -1, keepdims=True)
        return (x - mean) * lax.rsqrt(jnp.mean(jnp.square(x - mean), -1, keepdims=True) + 1e-5) * w + b

    def loss_of(p, ids, y):
        b, t = ids.shape
        x = p[0][ids] + p[1][:t]
        for i in range(layers):
            q = p[2 + 10 * i:]
            qkv = jnp.split(layer_norm(x, q[0], q[1]) @ q[2], 3, -1)
            seen = jax.nn.dot_product_attention(*(u.reshape(b, t, heads, width // heads) for u in qkv), is_causal=True)
            x = x + seen.reshape(b, t, width) @ q[3]
            x = x + jax.nn.gelu(layer_norm(x, q[4], q[5]) @ q[6] + q[7], approximate=True) @ q[8] + q[9]
        q = p[2 + 10 * layers:]
        scores = jax.nn.log_softmax((layer_norm(x, q[0], q[1]) @ q[2]).reshape(b * t, words))
        return -jnp.mean(jnp.take_along_axis(scores, y[:, None], 1))

    def adam(p, m, v, n, ids, y):
        loss, gradients = jax.value_and_grad(loss_of)(p, ids, y)
        n = n + 1
        m = [0.9 * a + 0.1 * g for a, g in zip(m, gradients)]
        v = [0.999 * a + 0.001 * g * g for a, g in zip(v, gradients)]
        c1, c2 = 1 - 0.9 ** n.astype(jnp.float32), 1 - 0.999 ** n.astype(jnp.float32)
        p = [w - 1e-3 * (a / c1) / (jnp.sqrt(b / c2) + 1e-8) for w, a, b in zip(p, m, v)]
        return p, m, v, n, loss

    compiled = jax.jit(adam, donate_argnums=(0, 1, 2))
    p = [jnp.array(w) for w in parameters()]
    state = [p, [jnp.zeros_like(w) for w in p], [jnp.zeros_like(w) for w in p], jnp.int32(0)]

    def step(length):
        ids, y = batch_of(length)
        *state[:], loss = compiled(*state, ids, y)
        return float(loss)

    return step


step = {"torch": torch_step, "jax": jax_step}[system]()
print("ready", flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    step(int(line))
    seconds = time.perf_counter() - start
    print(f"{seconds:.6f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f}", flush=True)
