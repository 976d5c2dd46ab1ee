"""PyTorch's turns for bench/peers/peers.c (cases.py has the protocol).  Variants: eager; compile: torch.compile;
channels_last: eager with convolutions in that layout; graphs: torch.compile with CUDA graphs.  With "-bf16" behind the
variant a model's loss is computed under autocast.  Weights of dense layers lie as torch has them, [out, in].

$KILN_TEST_PEER_DEVICE: where tensors are, the CPU without it.  On a GPU a call ends when its work does, and products of
f32 are without TF32."""
import os

import torch
import torch.nn.functional as F

import cases
from cases import GPT


DEVICE = os.environ.get("KILN_TEST_PEER_DEVICE", "cpu")
torch.backends.cudnn.allow_tf32 = False


def tensor(x):
    return torch.from_numpy(x).to(DEVICE)


def wait():
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def mlp(p, x, y):
    x = F.relu(F.linear(x, p[0], p[1]))
    x = F.relu(F.linear(x, p[2], p[3]))
    return F.cross_entropy(F.linear(x, p[4], p[5]), y)


def cnn(p, x, y):
    x = F.max_pool2d(F.relu(F.conv2d(x, p[0], p[1], padding=1)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, p[2], p[3], padding=1)), 2)
    return F.cross_entropy(F.linear(F.relu(F.linear(x.flatten(1), p[4], p[5])), p[6], p[7]), y)


def gpt(p, ids, y):
    width, heads, batch, tokens = GPT["width"], GPT["heads"], GPT["batch"], GPT["tokens"]
    x = F.embedding(ids, p[0]) + p[1]
    for i in range(GPT["layers"]):
        q = p[2 + 10 * i:]
        qkv = F.linear(F.layer_norm(x, (width,), q[0], q[1]), q[2]).split(width, 2)
        qkv = [u.view(batch, tokens, heads, width // heads).transpose(1, 2) for u in qkv]
        seen = F.scaled_dot_product_attention(*qkv, is_causal=True).transpose(1, 2).reshape(batch, tokens, width)
        x = x + F.linear(seen, q[3])
        hidden = F.gelu(F.linear(F.layer_norm(x, (width,), q[4], q[5]), q[6], q[7]), approximate="tanh")
        x = x + F.linear(hidden, q[8], q[9])
    q = p[2 + 10 * GPT["layers"]:]
    return F.cross_entropy(F.linear(F.layer_norm(x, (width,), q[0], q[1]), q[2]).flatten(0, 1), y)


def make_model(family, size, variant):
    embeddings = 2 if family == "gpt" else 0
    p = [tensor(w if w.ndim != 2 or i < embeddings else w.T.copy()) for i, w in enumerate(cases.parameters(family))]
    x, y = (tensor(v) for v in cases.inputs(family, size, False))
    y = y.long()
    if variant == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
        p = [w.contiguous(memory_format=torch.channels_last) if w.dim() == 4 else w for w in p]
    p = [torch.nn.Parameter(w) for w in p]
    rate = 1e-3 if family == "cnn" or size[1] else 0.01
    optimizer = (torch.optim.Adam if size[1] else torch.optim.SGD)(p, lr=rate, fused=True)
    loss_of = {"mlp": mlp, "cnn": cnn, "gpt": gpt}[family]
    variant, _, half = variant.partition("-")
    if variant in ("compile", "graphs"):
        loss_of = torch.compile(loss_of, mode="reduce-overhead" if variant == "graphs" else None)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.partition(":")[0], torch.bfloat16, enabled=bool(half)):
            loss = loss_of(p, x, y)
        loss.backward()
        optimizer.step()
        wait()
        return (loss,)

    return step


def ops(x, one, count):
    for _ in range(count):
        x = x + one
    return x


def make(family, backward, size, variant):
    torch.compiler.reset()
    if family in ("mlp", "cnn", "gpt"):
        return make_model(family, size, variant)
    given = [tensor(v) for v in cases.inputs(family, size, backward)]
    if variant == "channels_last":
        layout = torch.channels_last if given[0].dim() == 4 else torch.channels_last_3d
        given = [v.contiguous(memory_format=layout) for v in given]
    upstream = given.pop() if backward else None
    if family == "matvec":
        given[1] = given[1].T.contiguous()
    if cases.is_bf16(family, size):
        given = [v.to(torch.bfloat16) for v in given]
    if family == "embedding":
        ids = given.pop().long()
    conv = F.conv2d if given[0].dim() == 4 else F.conv3d
    f = {
        "attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=bool(size[1])),
        "chain": lambda x, a, b, c, d: F.gelu(x * a + b, approximate="tanh") * c + torch.tanh(d),
        "gelu": lambda x: x * F.gelu(x, approximate="tanh"),
        "sum": lambda x: x.sum(),
        "softmax": lambda x: torch.softmax(x, -1),
        "layer_norm": lambda x, w, b: F.layer_norm(x, (size[1],), w, b),
        "conv": lambda x, w: conv(x, w, stride=size[4], padding=size[5], groups=size[6] or 1),
        "matvec": F.linear,
        "embedding": lambda w: F.embedding(ids, w),
        "ops": lambda x, one: ops(x, one, size[0]),
    }[family]
    if variant == "compile":
        f = torch.compile(f)
    if not backward:

        def forward():
            with torch.no_grad():
                return (f(*given),)

        return forward
    for v in given:
        v.requires_grad_(True)

    def both():
        y = f(*given)
        return (y, *torch.autograd.grad(y, given, upstream))

    return both


cases.serve(make, lambda result: [float(u.detach().double().abs().sum()) for u in result])
