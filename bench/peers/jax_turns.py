"""JAX's turns for bench/peers/peers.c (cases.py has the protocol), jitted.  Layouts are those it likes: images [N, H, W, C],
attention [batch, tokens, heads, width]."""
import jax
import jax.numpy as jnp
import numpy
from jax import lax

import cases
from cases import GPT


def cross_entropy(logits, y):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))


def conv(x, w, stride=1, pad=1, groups=1):
    axes = "DHW"[5 - x.ndim:]
    return lax.conv_general_dilated(x, w, [stride] * len(axes), [(pad, pad)] * len(axes), feature_group_count=groups,
                                    dimension_numbers=("N" + axes + "C", axes + "IO", "N" + axes + "C"))


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def layer_norm(x, w, b):
    mean = jnp.mean(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.mean(jnp.square(x - mean), -1, keepdims=True) + 1e-5) * w + b


def mlp(p, x, y):
    x = jax.nn.relu(x @ p[0] + p[1])
    x = jax.nn.relu(x @ p[2] + p[3])
    return cross_entropy(x @ p[4] + p[5], y)


def cnn(p, x, y):
    x = pool(jax.nn.relu(conv(x, p[0]) + p[1]))
    x = pool(jax.nn.relu(conv(x, p[2]) + p[3]))
    x = jax.nn.relu(x.reshape(x.shape[0], -1) @ p[4] + p[5])
    return cross_entropy(x @ p[6] + p[7], y)


def gpt(p, ids, y):
    width, heads, batch, tokens = GPT["width"], GPT["heads"], GPT["batch"], GPT["tokens"]
    x = p[0][ids] + p[1]
    for i in range(GPT["layers"]):
        q = p[2 + 10 * i:]
        qkv = jnp.split(layer_norm(x, q[0], q[1]) @ q[2], 3, -1)
        seen = jax.nn.dot_product_attention(*(u.reshape(batch, tokens, heads, width // heads) for u in qkv),
                                            is_causal=True)
        x = x + seen.reshape(batch, tokens, width) @ q[3]
        x = x + jax.nn.gelu(layer_norm(x, q[4], q[5]) @ q[6] + q[7], approximate=True) @ q[8] + q[9]
    q = p[2 + 10 * GPT["layers"]:]
    return cross_entropy((layer_norm(x, q[0], q[1]) @ q[2]).reshape(batch * tokens, GPT["words"]), y)


def sgd(rate):
    def update(p, gradients, state):
        return [w - rate * g for w, g in zip(p, gradients)], state

    return update, lambda p: ()


def adam(rate):
    def update(p, gradients, state):
        m, v, n = state
        n = n + 1
        m = [0.9 * a + 0.1 * g for a, g in zip(m, gradients)]
        v = [0.999 * a + 0.001 * g * g for a, g in zip(v, gradients)]
        c1, c2 = 1 - 0.9 ** n.astype(jnp.float32), 1 - 0.999 ** n.astype(jnp.float32)
        p = [w - rate * (a / c1) / (jnp.sqrt(b / c2) + 1e-8) for w, a, b in zip(p, m, v)]
        return p, (m, v, n)

    return update, lambda p: ([jnp.zeros_like(w) for w in p], [jnp.zeros_like(w) for w in p], jnp.int32(0))


def make_model(family, size):
    p, (x, y) = cases.parameters(family), cases.inputs(family, size, False)
    if family == "cnn":
        x = x.transpose(0, 2, 3, 1)
        p = [w.transpose(2, 3, 1, 0) if w.ndim == 4 else w for w in p]
        p[4] = p[4].reshape(64, 7, 7, 128).transpose(1, 2, 0, 3).reshape(3136, 128)  # its rows in the order of NHWC
    p = [jnp.asarray(numpy.ascontiguousarray(w)) for w in p]
    x, y = jnp.asarray(numpy.ascontiguousarray(x)), jnp.asarray(y)
    update, start = (adam if size[1] else sgd)(1e-3 if family == "cnn" or size[1] else 0.01)
    loss_of = {"mlp": mlp, "cnn": cnn, "gpt": gpt}[family]

    def step(p, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(p, x, y)
        return *update(p, gradients, state), loss

    compiled, now = jax.jit(step, donate_argnums=(0, 1)), [p, start(p)]

    def call():
        p, state, loss = compiled(now[0], now[1], x, y)
        now[:] = p, state
        jax.block_until_ready((now, loss))
        return (loss,)

    return call


def ops(x, one, count):
    for _ in range(count):
        x = x + one
    return x


def make(family, backward, size, variant):
    if family in ("mlp", "cnn", "gpt"):
        return make_model(family, size)
    given = cases.inputs(family, size, backward)
    if family == "attention":
        given = [v.transpose(0, 2, 1, 3) for v in given]
    if family == "conv":
        axes = range(2, given[0].ndim)
        order = [(0, *axes, 1), (*axes, 1, 0), (0, *axes, 1)]
        given = [v.transpose(o) for v, o in zip(given, order)]
    given = [jnp.asarray(numpy.ascontiguousarray(v)) for v in given]
    upstream = given.pop() if backward else None
    if cases.is_bf16(family, size):
        given = [v.astype(jnp.bfloat16) for v in given]
    ids = given.pop() if family == "embedding" else None
    f = {
        "attention": lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=bool(size[1])),
        "chain": lambda x, a, b, c, d: jax.nn.gelu(x * a + b, approximate=True) * c + jnp.tanh(d),
        "gelu": lambda x: x * jax.nn.gelu(x, approximate=True),
        "sum": jnp.sum,
        "softmax": lambda x: jax.nn.softmax(x, -1),
        "layer_norm": layer_norm,
        "conv": lambda x, w: conv(x, w, size[4], size[5], size[6] or 1),
        "matvec": jnp.matmul,
        "embedding": lambda w: w[ids],
        "ops": lambda x, one: ops(x, one, size[0]),
    }[family]
    if not backward:
        compiled = jax.jit(f)
        return lambda: (jax.block_until_ready(compiled(*given)),)

    def both(given, upstream):
        y, pullback = jax.vjp(f, *given)
        return (y, *pullback(upstream))

    compiled = jax.jit(both)
    return lambda: jax.block_until_ready(compiled(given, upstream))


cases.serve(make, lambda result: [float(numpy.abs(numpy.asarray(u, numpy.float64)).sum()) for u in result])
