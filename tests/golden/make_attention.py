#!/usr/bin/env python3
"""Writes tests/golden/ops/attention.golden and linear.golden in float64, by a program that is not keel.

Needs numpy. Run by hand when an op's meaning changes; the files are committed, tests never run Python. Gradients come from
a complex step through the forward formula alone, as in make_ops.py. Inputs are small multiples of 1/8: exact in bfloat16.
"""
import os

import numpy as np

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ops")
rng = np.random.default_rng(7)


def eighths(*shape):
    return rng.integers(-12, 13, shape) / 8.0


def write(name, **tensors):
    with open(os.path.join(OUT, name + ".golden"), "w") as f:
        f.write("# keel golden, float64 as hexadecimal text; written by tests/golden/make_attention.py\n")
        for key, value in tensors.items():
            a = np.asarray(value, np.float64)
            f.write("tensor " + " ".join([key] + [str(d) for d in (a.shape or (1,))]) + "\n")
            flat = [float(v).hex() for v in a.reshape(-1)]
            for i in range(0, len(flat), 6):
                f.write(" ".join(flat[i:i + 6]) + "\n")


def gradient(f, x, dy):
    g = np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        z = x.astype(np.complex128)
        z[i] += 2.0 ** -100 * 1j  # a power of two: dividing by it is exact
        g[i] = np.sum(dy * f(z)).imag / 2.0 ** -100
    return g


def attention(q, k, v, lo, offset, scale):
    """[tokens, heads, head_dim] against [kv_tokens, kv_heads, head_dim]; a query at a time, from the definition."""
    tokens, heads, _ = q.shape
    group = heads // k.shape[1]
    y = np.zeros(q.shape, np.result_type(q, k, v))
    lse = np.zeros((heads, tokens), y.dtype)
    for i in range(tokens):
        for h in range(heads):
            seen = slice(lo[i], offset + i + 1)
            s = scale * (k[seen, h // group] @ q[i, h])
            top = s.real.max()
            e = np.exp(s - top)
            lse[h, i] = top + np.log(e.sum())
            y[i, h] = (e / e.sum()) @ v[seen, h // group]
    return y, lse


def make_attention():
    tokens, kv_tokens, heads, kv_heads, head_dim, offset = 5, 8, 4, 2, 6, 2
    scale = float(np.float32(0.4))
    lo = np.array([0, 3, 3, 2, 6])
    q, k, v = eighths(tokens, heads, head_dim), eighths(kv_tokens, kv_heads, head_dim), eighths(kv_tokens, kv_heads, head_dim)
    dy = eighths(tokens, heads, head_dim)
    y, lse = attention(q, k, v, lo, offset, scale)
    write("attention", sizes=[tokens, kv_tokens, heads, kv_heads, head_dim, offset], scale=scale, lo=lo, q=q, k=k, v=v, dy=dy, y=y, lse=lse,
          dq=gradient(lambda z: attention(z, k, v, lo, offset, scale)[0], q, dy),
          dk=gradient(lambda z: attention(q, z, v, lo, offset, scale)[0], k, dy),
          dv=gradient(lambda z: attention(q, k, z, lo, offset, scale)[0], v, dy))


def make_linear():
    x, w, bias, dy = eighths(3, 5), eighths(4, 5), eighths(4), eighths(3, 4)
    write("linear", x=x, w=w, bias=bias, dy=dy, y=x @ w.T + bias, dx=gradient(lambda z: z @ w.T, x, dy),
          dw=gradient(lambda z: x @ z.T, w, dy), dbias=gradient(lambda z: x @ w.T + z, bias, dy))


make_attention()
make_linear()
