"""PyTorch's turns for gpt2.c: GPT-2's training step, eager or by torch.compile.

    gpt2_turns.py CHECKPOINT BATCHES B T STEPS eager|compile

Arguments and protocol are those of llmc/turns.c: "ready", then for each line of input a step, its seconds and its loss.
Weights are stored [out, in], as torch and the checkpoint have them."""
import sys
import time

import numpy
import torch
import torch.nn.functional as F

checkpoint, batches, B, T, steps, variant = sys.argv[1:7]
B, T, steps = int(B), int(T), int(steps)
header = numpy.fromfile(checkpoint, numpy.int32, 256)
length, words, layers, heads, width, padded = (int(n) for n in header[2:8])
values = numpy.fromfile(checkpoint, numpy.float32, offset=1024)
text = torch.from_numpy(numpy.fromfile(batches, numpy.int32).reshape(steps, B, T + 1)).long()

LAYER = ((width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,),
         (4 * width, width), (4 * width,), (width, 4 * width), (width,))
parameters, at = [], 0


def take(*shape):
    global at
    n = int(numpy.prod(shape))
    at += n
    return torch.from_numpy(values[at - n:at].reshape(shape).copy())


def parameter(x):
    parameters.append(torch.nn.Parameter(x.contiguous()))
    return parameters[-1]


wte = parameter(take(padded, width)[:words])
wpe = parameter(take(length, width))
stacked = [take(layers, *shape) for shape in LAYER]
blocks = [[parameter(x[i].clone()) for x in stacked] for i in range(layers)]
norm = [parameter(take(width)), parameter(take(width))]
assert at == values.size


def loss_of(ids, targets):
    x = F.embedding(ids, wte) + wpe[:T]
    for w1, b1, wqkv, bqkv, wo, bo, w2, b2, wup, bup, wdown, bdown in blocks:
        qkv = F.linear(F.layer_norm(x, (width,), w1, b1), wqkv, bqkv).split(width, 2)
        qkv = [u.view(B, T, heads, width // heads).transpose(1, 2) for u in qkv]
        seen = F.scaled_dot_product_attention(*qkv, is_causal=True).transpose(1, 2).reshape(B, T, width)
        x = x + F.linear(seen, wo, bo)
        hidden = F.gelu(F.linear(F.layer_norm(x, (width,), w2, b2), wup, bup), approximate="tanh")
        x = x + F.linear(hidden, wdown, bdown)
    logits = F.linear(F.layer_norm(x, (width,), *norm), wte)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, fused=True)
if variant == "compile":
    loss_of = torch.compile(loss_of)
print("ready", flush=True)
for step, _ in enumerate(sys.stdin):
    batch = text[step % steps]
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(batch[:, :-1], batch[:, 1:])
    loss.backward()
    optimizer.step()
    value = loss.item()
    print(f"{time.perf_counter() - start:.6f} {value:.9g}", flush=True)
