#!/usr/bin/env python3
"""tests/gpu/attention_torch.py FILE.json: PyTorch's attention at the shapes of tests/gpu/attention.cpp, by its flash and cuDNN kernels,
counted in the same way. An oracle for speed; run.sh calls it where PyTorch with CUDA is installed. The last line is for its table."""
import json
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def seconds(body):
    """Of one call: the median of five samples of about 10 ms."""
    def sample(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(times):
            body()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / times

    sample(1)
    times = max(1, int(0.01 / max(sample(1), 1e-6)))
    return sorted(sample(times) for _ in range(5))[2]


rows, words = [], []
for head_dim, batch, length in ((64, 16, 2048), (128, 1, 8192)):
    q = torch.randn(batch, 32, length, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    # The 8 heads of keys and values, each four times: what SDPA takes in every version.
    k, v = (torch.randn(batch, 8, length, head_dim, device="cuda", dtype=torch.bfloat16).repeat_interleave(4, 1).requires_grad_() for _ in "kv")
    dy = torch.randn_like(q)
    flops = 4 * batch * 32 * head_dim * length * (length + 1) / 2
    for name, kernel in (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
        try:
            with sdpa_kernel(kernel):
                forward = seconds(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
                y = scaled_dot_product_attention(q, k, v, is_causal=True)
                backward = seconds(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))
        except RuntimeError as e:
            rows.append({"who": f"torch {name}", "head_dim": head_dim, "error": str(e)})
            continue
        rows.append({"who": f"torch {torch.__version__} {name}", "head_dim": head_dim, "rows": batch, "seq_len": length, "forward_ms": 1e3 * forward,
                     "backward_ms": 1e3 * backward, "forward_TFLOP/s": flops / forward / 1e12, "backward_TFLOP/s": 2.5 * flops / backward / 1e12})
        words.append(f"{name} D={head_dim}: {flops / forward / 1e12:.0f} / {2.5 * flops / backward / 1e12:.0f}")
with open(sys.argv[1], "w") as f:
    json.dump(rows, f, indent=1)
print("; ".join(words) or "cannot: " + rows[0]["error"])
