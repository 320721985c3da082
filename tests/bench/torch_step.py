#!/usr/bin/env python3
"""keel's training step beside PyTorch's, in turns, in one run.

    python tests/bench/torch_step.py --keel build/keel [--case a b c] [--dtype f32 bf16] [--rounds 5]

Needs PyTorch (pip install torch); nothing else of keel does. For each configuration of `keel bench` a round is: a few steps of
PyTorch in this process, then `keel bench` on the same shape in another; the medians over rounds are compared, so a busy
neighbour slows both. PyTorch runs the plain Llama of its users: nn.Linear, scaled_dot_product_attention, torch.optim.AdamW (fused
where it has it), autocast for bf16, all processors. Twice: as installed, and (--tuned, a second process) with glibc's
allocator told to keep large buffers, which is worth much on a processor. Same useful FLOPs on both sides; keel's model,
loss and optimizer step are whole (gradient norm and clip included) on both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

CASES = {  # d, layers, heads, ffn, vocab, T, B
    "a": (288, 6, 6, 768, 512, 256, 8),
    "b": (512, 8, 8, 1376, 8192, 512, 4),
    "c": (768, 12, 12, 2048, 32000, 1024, 1),
}
TUNED = {"MALLOC_TOP_PAD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 40), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def torch_step(case, dtype, compile_model):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    d, layers, heads, ffn, vocab, seq, batch = CASES[case]
    head_dim = d // heads

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)
            self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
            self.gate, self.up, self.down = nn.Linear(d, ffn, bias=False), nn.Linear(d, ffn, bias=False), nn.Linear(ffn, d, bias=False)

        def forward(self, x, cos, sin):
            def rotate(t):
                a, b = t.chunk(2, -1)
                return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

            h = self.n1(x)
            split = lambda t: t.view(t.shape[0], t.shape[1], heads, head_dim).transpose(1, 2)
            q, k, v = rotate(split(self.q(h))), rotate(split(self.k(h))), split(self.v(h))
            y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(x.shape))
            h = self.n2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocab, d)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.RMSNorm(d, eps=1e-5)
            self.head = nn.Linear(d, vocab, bias=False)
            angle = torch.arange(seq)[:, None] * 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
            self.register_buffer("cos", angle.cos()), self.register_buffer("sin", angle.sin())

        def forward(self, ids, labels):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return F.cross_entropy(self.head(self.norm(x)).float().view(-1, vocab), labels.reshape(-1))

    torch.manual_seed(1)
    model = Llama()
    for p in model.parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(vocab, (batch, seq + 1))
    loss_of = torch.compile(model) if compile_model else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            loss = loss_of(ids[:, :-1], ids[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def keel_ms(keel, case, dtype):
    out = subprocess.run([keel, "bench", "--case", case, "--dtype", dtype, "--rounds", "3", "--json"], check=True,
                         capture_output=True, text=True).stdout
    steps = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return next(s["median_ms"] for s in steps if s.get("case") == case)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keel", default="build/keel")
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--dtype", nargs="+", default=["f32", "bf16"], choices=["f32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tuned", action="store_true", help="with glibc keeping large buffers")
    parser.add_argument("--compile", action="store_true", help="PyTorch through torch.compile")
    args = parser.parse_args()
    if args.tuned and "MALLOC_TOP_PAD_" not in os.environ:
        os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, **TUNED})
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed; there is nothing to compare with")
        return
    print(f"PyTorch {torch.__version__}, {'tuned allocator' if args.tuned else 'as installed'}"
          f"{', torch.compile' if args.compile else ''}; medians of {args.rounds} rounds, in turns")
    print(f"{'case':5} {'dtype':5} {'torch ms':>10} {'keel ms':>10} {'keel is':>9}")
    for dtype in args.dtype:
        for case in args.case:
            step = torch_step(case, dtype, args.compile)
            step(), step()
            torch_times, keel_times = [], []
            for _ in range(args.rounds):
                for _ in range(3):
                    start = time.perf_counter()
                    step()
                    torch_times.append(1e3 * (time.perf_counter() - start))
                keel_times.append(keel_ms(args.keel, case, dtype))
            t, k = statistics.median(torch_times), statistics.median(keel_times)
            print(f"{case:5} {dtype:5} {t:10.1f} {k:10.1f} {t / k:8.2f}x", flush=True)


if __name__ == "__main__":
    main()
