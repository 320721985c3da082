"""Writes model_*.golden: whole Llama-shaped models in float64, to which tests/engine/model_test.cpp holds keel.

    python3 -m venv venv && venv/bin/pip install torch transformers numpy
    venv/bin/python tests/golden/make_models.py                  # writes the files beside this script
    venv/bin/python tests/golden/make_models.py --cross-check    # compares with transformers and torch.optim instead

Independent of keel: the forward pass is written out below in PyTorch double precision, gradients are autograd's. With
--cross-check the same weights run through the Llama, Mistral, Qwen2, Qwen3, OLMo-2 and Phi-3 classes of `transformers`,
unmodified but for "float" meaning double while they run (they compute norms, angles and softmax in float32), and the trajectory
through torch.optim.AdamW. Measured with torch 2.15.0 and transformers 5.24.0, largest difference over all models:
  logits 2.5e-14, gradients 6.6e-15, losses of the 20 steps 1.5e-14, parameters after them 1.3e-13
  (the library as it is, in float32, is up to 4.3e-5 away in a logit: what float32 costs).

Weights are not stored. They and the token ids come from a hash (see `hashed`) that tests/engine/model_golden.h repeats;
every value is exact in bfloat16, so float64, float32 and bfloat16 models start from the same numbers and what differs
afterwards is arithmetic alone.

A file is text lines ("set KEY VALUE", "documents N…", "rows N… / N…", "tensor NAME DIMS…", "end"), then all tensors as
little-endian float64, in the order of their lines:
  logits           [300, vocab]  of one row of 300 tokens
  loss             [2]           summed loss and count of labels of that row
  grad/PARAM                     gradient of the mean loss (sum / count) of that row
  step/loss        [20]          mean loss at each step of AdamW, before the update
  step/grad_norm   [20]          global norm of the gradient of the mean loss, before clipping
  bf16/loss, bf16/grad_norm [20]  the same steps by the same program, with a bfloat16 model, float32 master weights and
                                 float32 AdamW: how far from the float64 curve an ordinary bfloat16 run may stray
  final/probe      [params, 2]   per parameter after the 20 steps: sum of elements, dot product with hashed(PARAM/probe)
  final/PARAM                    whole parameters after the 20 steps, for `llama` alone
  wrong/FAULT      [1]           largest change of a logit if the model had this fault, see `faults`
"""
import argparse
import math
import pathlib

import torch

POSITIONS, STEPS, ROWS, ROW_TOKENS = 300, 20, 2, 64
# eps is large for AdamW: with a tiny one, an element whose gradient is nothing but rounding noise takes a step of full
# size in a random direction, and where a float32 run goes then tells more about luck than about the program.
LR, BETA1, BETA2, EPS, DECAY = 1e-3, 0.9, 0.95, 1e-5, 0.1

BASE = dict(vocab=64, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, norm_eps=1e-5, rope_base=10000.0,
            tied=0, qkv_bias=0, qk_norm=0, window=0, clip=1.0)
ONE_DOCUMENT = dict(documents=[POSITIONS], rows=[[ROW_TOKENS]] * ROWS)
MODELS = {
    # eps is large enough to be seen through bfloat16 when it is on the wrong side of the root.
    "llama": dict(BASE, **ONE_DOCUMENT, norm_eps=1e-3),
    "llama_tied": dict(BASE, **ONE_DOCUMENT, tied=1, vocab=61, kv_heads=1, ffn=44),
    "mistral": dict(BASE, **ONE_DOCUMENT, window=16),
    "qwen2": dict(BASE, **ONE_DOCUMENT, qkv_bias=1, norm_eps=1e-6, rope_base=1e6),
    # This clip is passed by some of the 20 gradient norms and not by others; the other models' clip at every step.
    "qwen3": dict(BASE, **ONE_DOCUMENT, qk_norm=1, head_dim=16, tied=1, clip=1.5, norm_eps=1e-6, rope_base=1e6),
    # head_dim 16 gives eight frequencies: one kept, two blended, five divided by the factor; 300 positions > 64.
    "llama3_rope": dict(BASE, **ONE_DOCUMENT, head_dim=16, kv_heads=4, rope_scaling="llama3", rope_factor=8.0,
                        rope_original_max_position=64.0, rope_low_freq_factor=1.0, rope_high_freq_factor=4.0),
    # The ramp runs from pair 1 to pair 4; 300 positions > 256.
    "yarn_rope": dict(BASE, **ONE_DOCUMENT, head_dim=16, kv_heads=1, rope_scaling="yarn", rope_factor=4.0,
                      rope_original_max_position=256.0, rope_beta_fast=8.0, rope_beta_slow=1.0),
    # Norms behind the branches, and of all of q and all of k.
    "olmo2": dict(BASE, **ONE_DOCUMENT, post_norm=1, qk_norm=1, qk_norm_whole=1, head_dim=16, norm_eps=1e-3),
    # Six of eight pairs turn, each at its own share of the plain frequency; 300 positions > 64, so those are the long ones,
    # and the 64 of the trajectory's rows are not: they take the short ones.
    "phi3": dict(BASE, **ONE_DOCUMENT, heads=2, kv_heads=2, head_dim=16, window=47,
                 rope_fraction=0.75, rope_scaling="longrope", rope_factor=8.0, rope_original_max_position=64.0,
                 rope_short_factors=[1.0, 1.0, 1.25, 1.5, 1.75, 2.0],
                 rope_long_factors=[1.0, 1.5, 2.5, 4.0, 6.0, 8.0]),
    "packed": dict(BASE, documents=[1, 37, 100, 1, 1, 160], rows=[[1, 20, 43], [30, 33, 1]]),
}

MASK = (1 << 64) - 1


def fnv1a(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def bits(name, index):
    """splitmix64 of stream `name` at `index`."""
    z = (fnv1a(name) + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def hashed(name, n):
    """n values k/128 with k odd in -127…127: symmetric, never 0, exact in bfloat16."""
    return torch.tensor([(2 * (bits(name, i) >> 57) - 127) / 128 for i in range(n)], dtype=torch.float64)


def token_ids(name, n, vocab):
    """Three of four tokens follow from the one before, so that there is something to learn."""
    ids = []
    for i in range(n):
        r = bits(name, i)
        ids.append((r & 0xFFFFFFFF) % vocab if i == 0 or (r >> 32) % 4 == 0 else (5 * ids[-1] + 3) % vocab)
    return ids


def shapes(m):
    q, kv, hidden, ffn = m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"], m["hidden"], m["ffn"]
    yield "embed", (m["vocab"], hidden)
    for i in range(m["layers"]):
        layer = f"layers.{i}."
        yield layer + "attn_norm", (hidden,)
        yield layer + "qkv", (q + 2 * kv, hidden)
        if m["qkv_bias"]:
            yield layer + "qkv_bias", (q + 2 * kv,)
        if m["qk_norm"]:
            whole = m.get("qk_norm_whole")
            yield layer + "q_norm", (q if whole else m["head_dim"],)
            yield layer + "k_norm", (kv if whole else m["head_dim"],)
        yield layer + "out", (hidden, q)
        yield layer + "ffn_norm", (hidden,)
        yield layer + "gate_up", (2 * ffn, hidden)
        yield layer + "down", (hidden, ffn)
    yield "final_norm", (hidden,)
    if not m["tied"]:
        yield "head", (m["vocab"], hidden)


def initial(m, name, shape):
    values = hashed(name, math.prod(shape))
    if name.endswith("norm"):
        values = 1 + torch.round(values * 31.5) / 128  # gains within 1 ± 0.25
    elif name == "embed" and not m["tied"]:
        values = values / 16  # as small as a fresh model's: eps matters at the first norm
    elif name.endswith("qkv"):
        values = values * 0.5  # attention that prefers some keys to others
    else:
        values = values * 0.25
    return values.reshape(shape)


def rope_frequencies(m, row_tokens):
    """Angle per position of each pair that turns, and what cos and sin are multiplied by."""
    dim, base, kind = int(m["head_dim"] * m.get("rope_fraction", 1)), m["rope_base"], m.get("rope_scaling", "none")
    plain = [base ** (-2.0 * i / dim) for i in range(dim // 2)]
    if kind == "none":
        return plain, 1.0
    factor, original = m["rope_factor"], m["rope_original_max_position"]
    if kind == "llama3":
        low, high, out = m["rope_low_freq_factor"], m["rope_high_freq_factor"], []
        for theta in plain:
            wavelength = 2 * math.pi / theta
            if wavelength < original / high:
                out.append(theta)
            elif wavelength > original / low:
                out.append(theta / factor)
            else:
                s = (original / wavelength - low) / (high - low)
                out.append((1 - s) * theta / factor + s * theta)
        return out, 1.0
    if kind == "longrope":
        divisors = m["rope_long_factors" if row_tokens > original else "rope_short_factors"]
        return [theta / d for theta, d in zip(plain, divisors)], math.sqrt(1 + math.log(factor) / math.log(original))
    assert kind == "yarn"

    def index(rotations):
        return dim * math.log(original / (2 * math.pi * rotations)) / (2 * math.log(base))

    lo = max(math.floor(index(m["rope_beta_fast"])), 0)
    hi = min(math.ceil(index(m["rope_beta_slow"])), dim - 1)
    out = []
    for i, theta in enumerate(plain):
        t = min(max((i - lo) / (hi - lo), 0.0), 1.0)
        out.append(theta * (1 - t) + theta / factor * t)
    return out, 0.1 * math.log(factor) + 1


def wide(x):
    """What norms, softmax and loss are computed in: float32 for a bfloat16 model."""
    return x.float() if x.dtype == torch.bfloat16 else x


def rms_norm(x, gain, eps, fault):
    h = wide(x)
    mean_square = (h * h).mean(-1, keepdim=True)
    rstd = 1 / (mean_square.sqrt() + eps) if fault == "eps_outside" else 1 / (mean_square + eps).sqrt()
    return gain * (h * rstd).to(x.dtype)


def rotate(x, cos, sin, fault):
    """x [tokens, heads, head_dim]; cos and sin [tokens, 1, pairs]. What is past the pairs stays as it is."""
    half = cos.shape[-1]
    if 2 * half < x.shape[-1]:
        return torch.cat((rotate(x[..., : 2 * half], cos, sin, fault), x[..., 2 * half :]), -1)
    if fault == "interleaved_rope":
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def forward(m, p, ids, documents, fault=None):
    """Logits [tokens, vocab] of one row made of documents of the given lengths."""
    tokens, heads, kv_heads, dim, eps = len(ids), m["heads"], m["kv_heads"], m["head_dim"], m["norm_eps"]
    if fault == "leak":
        documents = [tokens]
    if fault == "unscaled_rope":
        m = dict(m, rope_scaling="none")
    if fault == "whole_rope":
        m = dict(m, rope_fraction=1, rope_scaling="none")
    if fault == "short_rope":
        m = dict(m, rope_long_factors=m["rope_short_factors"])
    if fault == "window_plus_one":
        m = dict(m, window=m["window"] + 1)
    starts = torch.tensor([sum(documents[:d]) for d, n in enumerate(documents) for _ in range(n)])
    index = torch.arange(tokens)
    positions = (index - starts).double()
    query, key = index[:, None], index[None, :]
    visible = (key <= query) & (key >= starts[:, None])
    if m["window"]:
        visible &= query - key < m["window"]

    frequencies, attention_factor = rope_frequencies(m, tokens)
    angles = positions[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    cos, sin = (f(angles)[:, None, :] * attention_factor for f in (torch.cos, torch.sin))
    cos, sin = cos.to(p["embed"].dtype), sin.to(p["embed"].dtype)

    x = p["embed"][torch.tensor(ids)]
    for i in range(m["layers"]):
        w = {k.rsplit(".", 1)[1]: v for k, v in p.items() if k.startswith(f"layers.{i}.")}
        post = m.get("post_norm")
        h = (x if post else rms_norm(x, w["attn_norm"], eps, fault)) @ w["qkv"].T
        if m["qkv_bias"]:
            h = h + w["qkv_bias"]
        q, k, v = torch.split(h, [heads * dim, kv_heads * dim, kv_heads * dim], -1)
        if m.get("qk_norm_whole"):
            q, k = rms_norm(q, w["q_norm"], eps, fault), rms_norm(k, w["k_norm"], eps, fault)
        q, k, v = (part.reshape(tokens, -1, dim) for part in (q, k, v))
        if m["qk_norm"] and not m.get("qk_norm_whole"):
            q, k = rms_norm(q, w["q_norm"], eps, fault), rms_norm(k, w["k_norm"], eps, fault)
        q, k = rotate(q, cos, sin, fault), rotate(k, cos, sin, fault)
        k, v = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
        weights = wide(scores).masked_fill(~visible, -math.inf).softmax(-1).to(x.dtype)
        branch = torch.einsum("hqk,khd->qhd", weights, v).reshape(tokens, -1) @ w["out"].T
        x = x + (rms_norm(branch, w["attn_norm"], eps, fault) if post else branch)
        gate, up = ((x if post else rms_norm(x, w["ffn_norm"], eps, fault)) @ w["gate_up"].T).chunk(2, -1)
        branch = (gate * torch.sigmoid(gate) * up) @ w["down"].T
        x = x + (rms_norm(branch, w["ffn_norm"], eps, fault) if post else branch)
    return wide(rms_norm(x, p["final_norm"], eps, fault) @ p["embed" if m["tied"] else "head"].T)


def row_of(m, name, documents):
    """ids and labels of one row; the last token of each document but a lone one predicts nothing, as does a cut row."""
    n = sum(documents)
    ids = token_ids(name, n + 1, m["vocab"])
    labels = ids[1:]
    if len(documents) > 1:
        for d in range(len(documents)):
            labels[sum(documents[: d + 1]) - 1] = -1
    return ids[:n], labels


def summed_loss(logits, labels):
    return torch.nn.functional.cross_entropy(logits, torch.tensor(labels), ignore_index=-1, reduction="sum")


def parameters(m):
    return {name: initial(m, name, shape).requires_grad_() for name, shape in shapes(m)}


def mean_loss(m, p, rows, run=forward):
    """rows: (ids, labels, documents). Sum over all rows, divided once."""
    total = sum(summed_loss(run(m, p, ids, documents), labels) for ids, labels, documents in rows)
    return total / sum(label >= 0 for _, labels, _ in rows for label in labels)


def step_rows(m, step):
    return [(*row_of(m, f"step{step}/row{r}", documents), documents) for r, documents in enumerate(m["rows"])]


def clip_factor(m, norm):
    return min(1.0, m["clip"] / (norm + 1e-6))


def train(m, p, dtype=torch.float64):
    """20 steps of AdamW on p in place; the model runs in `dtype`. Returns mean losses and gradient norms."""
    moments = {k: (torch.zeros_like(v), torch.zeros_like(v)) for k, v in p.items()}
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        run = {k: w.detach().to(dtype).requires_grad_() for k, w in p.items()}
        loss = mean_loss(m, run, step_rows(m, step - 1))
        grads = dict(zip(p, (g.to(p["embed"].dtype) for g in torch.autograd.grad(loss, list(run.values())))))
        norm = math.sqrt(sum((g * g).sum().item() for g in grads.values()))
        losses.append(loss.item())
        norms.append(norm)
        with torch.no_grad():
            for k, w in p.items():
                g, (mean, square) = grads[k] * clip_factor(m, norm), moments[k]
                mean.mul_(BETA1).add_((1 - BETA1) * g)
                square.mul_(BETA2).add_((1 - BETA2) * g * g)
                direction = mean / (1 - BETA1**step) / ((square / (1 - BETA2**step)).sqrt() + EPS)
                w -= LR * (direction + (DECAY if w.dim() == 2 else 0.0) * w)
    return losses, norms


def faults(m):
    """Ways to be wrong that still train. A test that does not notice one of them protects nothing."""
    yield "interleaved_rope"  # pairs (2i, 2i + 1)
    yield "eps_outside"       # 1 / (sqrt(mean square) + eps)
    if len(m["documents"]) > 1:
        yield "leak"          # attention and positions run on across documents
    if "rope_scaling" in m:
        yield "unscaled_rope"
    if m["window"]:
        yield "window_plus_one"
    if m.get("rope_scaling") == "longrope":
        yield "whole_rope"
        yield "short_rope"


def golden(name, m):
    """(tensor name, float64 tensor) in file order."""
    p = parameters(m)
    ids, labels = row_of(m, "row", m["documents"])
    logits = forward(m, p, ids, m["documents"])
    total, count = summed_loss(logits, labels), sum(label >= 0 for label in labels)
    yield "logits", logits.detach()
    yield "loss", torch.tensor([total.item(), count], dtype=torch.float64)
    for key, grad in zip(p, torch.autograd.grad(total / count, list(p.values()))):
        yield "grad/" + key, grad
    for fault in faults(m):
        wrong = forward(m, p, ids, m["documents"], fault)
        yield "wrong/" + fault, (wrong - logits).detach().abs().max().reshape(1)
    losses, norms = train(m, p)
    yield "step/loss", torch.tensor(losses, dtype=torch.float64)
    yield "step/grad_norm", torch.tensor(norms, dtype=torch.float64)
    probes = [[w.sum().item(), (w.flatten() @ hashed(key + "/probe", w.numel())).item()] for key, w in p.items()]
    yield "final/probe", torch.tensor(probes, dtype=torch.float64)
    single = {key: w.detach().float() for key, w in parameters(m).items()}
    losses, norms = train(m, single, torch.bfloat16)
    yield "bf16/loss", torch.tensor(losses, dtype=torch.float64)
    yield "bf16/grad_norm", torch.tensor(norms, dtype=torch.float64)
    if name == "llama":
        for key, w in p.items():
            yield "final/" + key, w.detach()


def write(path, m, tensors):
    def text(value):
        return " ".join(map(str, value)) if isinstance(value, list) else value

    lines = [f"set {k} {text(v)}" for k, v in m.items() if k not in ("documents", "rows")]
    lines.append("documents " + " ".join(map(str, m["documents"])))
    lines.append("rows " + " / ".join(" ".join(map(str, row)) for row in m["rows"]))
    lines += ["tensor " + key + " " + " ".join(map(str, value.shape)) for key, value in tensors]
    with open(path, "wb") as file:
        file.write(("\n".join(["keel-golden 1"] + lines + ["end"]) + "\n").encode())
        for _, value in tensors:
            file.write(value.contiguous().numpy().astype("<f8").tobytes())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cross-check", action="store_true")
    parser.add_argument("--only", nargs="*", help="names of models; without it all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.cross_check:
        import cross_check_models

        cross_check_models.main(arguments.only)
    else:
        for model_name, spec in MODELS.items():
            if arguments.only and model_name not in arguments.only:
                continue
            tensors = list(golden(model_name, spec))
            target = pathlib.Path(__file__).parent / f"model_{model_name}.golden"
            write(target, spec, tensors)
            values = dict(tensors)
            print(model_name, target.stat().st_size, "bytes; loss",
                  *(f"{x:.4f}" for x in values["step/loss"][[0, 9, 19]]), "wrong",
                  *(f"{k[6:]} {v.item():.3g}" for k, v in tensors if k.startswith("wrong/")))
