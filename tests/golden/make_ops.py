#!/usr/bin/env python3
"""Writes tests/golden/ops/*.golden: inputs and results of the row-wise ops in float64, by a program that is not keel.

Needs numpy and xxhash. Run by hand when an op's meaning changes; the files are committed, tests never run Python.

Gradients are not derived here: a complex step gives them from the forward formula alone, exact to float64
(f(x + ih) = f(x) + ih f'(x) + O(h^2), with h = 1e-30 there is nothing to cancel). So a wrong derivation in keel cannot
be wrong here in the same way. Inputs are rounded to bfloat16, so that float, bf16 and double read the same numbers.
"""
import math
import os

import numpy as np
import xxhash

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ops")
rng = np.random.default_rng(20240601)


def bf16(x):
    """Nearest bfloat16, ties to even."""
    u = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    u = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16) << 16
    return u.astype(np.uint32).view(np.float32).astype(np.float64)


def normal(*shape, scale=1.0):
    return bf16(rng.standard_normal(shape) * scale)


def write(name, **tensors):
    """Text: a comment line, then per tensor 'tensor NAME DIMS…' and its values as hexadecimal floats."""
    with open(os.path.join(OUT, name + ".golden"), "w") as f:
        f.write("# keel golden, float64 as hexadecimal text; written by tests/golden/make_ops.py\n")
        for key, value in tensors.items():
            a = np.asarray(value, np.float64)
            f.write("tensor " + " ".join([key] + [str(d) for d in (a.shape or (1,))]) + "\n")
            flat = [float(v).hex() for v in a.reshape(-1)]
            for i in range(0, len(flat), 6):
                f.write(" ".join(flat[i:i + 6]) + "\n")


def complex_step(f, x, dy):
    """Gradient of sum(dy * f(x)) with respect to x."""
    g = np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        z = x.astype(np.complex128)
        z[i] += 1e-30j
        g[i] = np.sum(dy * f(z)).imag / 1e-30
    return g


def rmsnorm(x, gain, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def make_rmsnorm():
    tokens, hidden, eps = 5, 12, float(np.float32(1e-3))
    x, residual, gain, dy, dres = (normal(tokens, hidden), normal(tokens, hidden), normal(hidden) + 1.0,
                                   normal(tokens, hidden), normal(tokens, hidden))
    gain = bf16(gain)
    x[1] = bf16(x[1] * 0.01)  # a row whose mean square is below eps: where eps stands matters there
    summed = bf16(x + residual)
    dx = complex_step(lambda z: rmsnorm(z, gain, eps), x, dy)
    write("rmsnorm", eps=eps, x=x, residual=residual, gain=gain, dy=dy, dresidual=dres, sum=summed,
          y=rmsnorm(x, gain, eps), y_sum=rmsnorm(summed, gain, eps),
          rstd=1 / np.sqrt(np.mean(x * x, axis=-1) + eps), dx=dx, dx_residual=dx + dres,
          dgain=complex_step(lambda z: rmsnorm(x, z, eps), gain, dy))


def make_head_norm():
    tokens, heads, head_dim, eps = 3, 2, 6, float(np.float32(1e-3))
    x, dy = normal(tokens, heads, head_dim, scale=0.1), normal(tokens, heads, head_dim)
    gain = bf16(normal(head_dim) + 1.0)
    write("head_norm", eps=eps, x=x.reshape(tokens, -1), gain=gain, dy=dy.reshape(tokens, -1),
          y=rmsnorm(x, gain, eps).reshape(tokens, -1), rstd=1 / np.sqrt(np.mean(x * x, axis=-1) + eps),
          dx=complex_step(lambda z: rmsnorm(z, gain, eps), x, dy).reshape(tokens, -1),
          dgain=complex_step(lambda z: rmsnorm(x, z, eps), gain, dy))


def swiglu(gu):
    gate, up = np.split(gu, 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


def make_swiglu():
    gate_up, dy = normal(4, 14, scale=2.0), normal(4, 7)
    gate_up[0, :4] = [0.0, 20.0, -20.0, -80.0]
    write("swiglu", gate_up=gate_up, dy=dy, y=swiglu(gate_up), dgate_up=complex_step(swiglu, gate_up, dy))


def make_cross_entropy():
    tokens, vocab = 6, 11
    logits = normal(tokens, vocab, scale=3.0)
    labels = np.array([0, 10, -1, 5, 3, 7])
    logits[3] += bf16(10000.0)  # the largest logits a model could produce must neither overflow nor lose the loss
    logits[3] = bf16(logits[3])
    logits[4] = bf16(logits[4] - 10000.0)
    keep = labels >= 0

    def losses(z, z_loss):
        top = np.max(z.real, axis=-1, keepdims=True)
        lse = (np.log(np.sum(np.exp(z - top), axis=-1)) + top[:, 0])
        # The target is subtracted from the maximum first, so that float64 keeps the loss to its last digit.
        log_sum = np.log(np.sum(np.exp(z - top), axis=-1))
        loss = log_sum + (top[:, 0] - z[np.arange(tokens), np.maximum(labels, 0)])
        return np.where(keep, loss + z_loss * lse * lse, 0)

    z = float(np.float32(1e-3))
    write("cross_entropy", z_loss=z, logits=logits, labels=labels, loss=losses(logits, 0.0), loss_z=losses(logits, z),
          dlogits=complex_step(lambda a: losses(a, 0.0), logits, 1.0),
          dlogits_z=complex_step(lambda a: losses(a, z), logits, 1.0))


def make_embedding():
    vocab, hidden, begin = 5, 6, 4
    w, ids = normal(vocab, hidden), np.array([4, 8, 3, 4, 9, 6, 4])
    dy, before = normal(len(ids), hidden), normal(vocab, hidden)
    y, dw = np.zeros((len(ids), hidden)), before.copy()
    for t, i in enumerate(ids):
        if begin <= i < begin + vocab:
            y[t] = w[i - begin]
            dw[i - begin] += dy[t]
    write("embedding", vocab_begin=begin, w=w, ids=ids, y=y, dy=dy, dw_before=before, dw=dw)


def make_adamw():
    n, lr, b1, b2, eps, decay, scale = 9, 0.01, 0.9, 0.95, 1e-8, 0.1, 0.25
    f = np.float32  # the op takes float scalars; the golden uses the very same numbers, widened
    lr, b1, b2, eps, decay, scale = (float(f(v)) for v in (lr, b1, b2, eps, decay, scale))
    p, m, v = normal(n), np.zeros(n), np.zeros(n)
    grads, start, out = normal(3, n), p.copy(), []
    grads[0, 0] = 0.0
    for t in range(1, 4):
        g = grads[t - 1] * scale
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        p = p - lr * ((m / (1 - b1 ** t)) / (np.sqrt(v / (1 - b2 ** t)) + eps) + decay * p)
        out.append((p, m, v))
    write("adamw", scalars=[lr, b1, b2, eps, decay, scale], param=start, grads=grads, params=[o[0] for o in out],
          ms=[o[1] for o in out], vs=[o[2] for o in out])


def rope_frequencies(base, dim, kind, factor, context, low, high, fast, slow):
    theta = base ** (-np.arange(0, dim, 2) / dim)
    if kind == "linear":
        return theta / factor
    if kind == "llama3":
        w = 2 * np.pi / theta
        s = (context / w - low) / (high - low)
        blend = (1 - s) * theta / factor + s * theta
        return np.where(w < context / high, theta, np.where(w > context / low, theta / factor, blend))
    if kind == "yarn":
        def g(turns):
            return dim * math.log(context / (2 * math.pi * turns)) / (2 * math.log(base))
        lo, hi = max(math.floor(g(fast)), 0), min(math.ceil(g(slow)), dim - 1)
        t = np.clip((np.arange(dim // 2) - lo) / (hi - lo), 0, 1)
        return theta * (1 - t) + theta / factor * t
    return theta


def make_rope():
    kinds = ["none", "linear", "llama3", "yarn"]
    configs = [(10000.0, 8, 0, 1.0, 0, 1, 4, 32, 1), (10000.0, 16, 1, 4.0, 0, 1, 4, 32, 1),
               (500000.0, 128, 2, 8.0, 8192, 1, 4, 32, 1), (500000.0, 64, 2, 32.0, 8192, 1, 4, 32, 1),
               (1e6, 128, 3, 4.0, 32768, 1, 4, 32, 1)]
    tensors = {"configs": np.array(configs)}
    for c, (base, dim, kind, *rest) in enumerate(configs):
        tensors[f"frequency{c}"] = rope_frequencies(base, dim, kinds[kind], *rest)
    # Two heads of 12 with the first 8 rotated, at near and far positions; the layout pairs i with i + 4.
    positions, dim, head_dim = np.array([0, 1, 3, 257, 4095]), 8, 12
    x, dy = normal(len(positions), 2, head_dim), normal(len(positions), 2, head_dim)
    angle = positions[:, None, None] * rope_frequencies(10000.0, dim, "none", 1, 0, 0, 0, 0, 0)

    def rotate(z):
        z1, z2 = z[..., :4], z[..., 4:8]
        return np.concatenate([z1 * np.cos(angle) - z2 * np.sin(angle), z2 * np.cos(angle) + z1 * np.sin(angle),
                               z[..., 8:]], axis=-1)

    flat = (len(positions), 2 * head_dim)
    write("rope", **tensors, positions=positions, x=x.reshape(flat), y=rotate(x).reshape(flat), dy=dy.reshape(flat),
          dx=complex_step(rotate, x, dy).reshape(flat))


def make_reduce():
    x = normal(200) * np.array([1e-3, 1.0, 1e4, -1e4])[np.arange(200) % 4]
    x = np.asarray(x, np.float32).astype(np.float64)
    # Hash: byte i is (31 i + 7) mod 256, over lengths that are empty, one byte, one block, one past it, three blocks.
    lengths = [0, 1, 16384, 16385, 40000]
    halves = []
    for n in lengths:
        data = bytes((31 * i + 7) % 256 for i in range(n))
        blocks = b"".join(xxhash.xxh3_64_intdigest(data[i:i + 16384]).to_bytes(8, "little") for i in range(0, n, 16384))
        h = xxhash.xxh3_64_intdigest(blocks)
        halves.append([h >> 32, h & 0xFFFFFFFF])
    write("reduce", x=x, sum=math.fsum(x), sum_of_squares=math.fsum(v * v for v in x), hash_lengths=lengths,
          hash_halves=halves)


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    for make in (make_rmsnorm, make_head_norm, make_swiglu, make_cross_entropy, make_embedding, make_adamw, make_rope,
                 make_reduce):
        make()
