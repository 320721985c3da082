"""Model folders that keel wrote, read by the library they are for: the loss of random tokens is that of `keel eval`.

    python3 tests/cli/read_folders.py KEEL FOLDER… OUT

Each FOLDER goes through a checkpoint of keel's and comes out as a folder below OUT, in float32. Exit code 77: a package is not
installed (torch, transformers).
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
except ImportError as missing:
    print(f"not read: {missing}")
    sys.exit(77)

SAMPLES, LENGTH = 3, 300
keel, *folders, out = sys.argv[1:]
out = pathlib.Path(out)


def run(*words):
    return subprocess.run([keel, *map(str, words)], check=True, capture_output=True, text=True).stdout


for folder in map(pathlib.Path, folders):
    run("convert", folder, out / "checkpoint", "--dtype", "f32")
    run("convert", out / "checkpoint", out / folder.name)
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    draw = random.Random(folder.name)
    tokens = [draw.randrange(vocab) for _ in range(SAMPLES * LENGTH + 1)]
    data = out / f"{folder.name}.bin"  # an llm.q file: it says its vocabulary
    header = b"BIN.TOK\n" + struct.pack("<5i", 2, 4, len(tokens), vocab, 0)
    data.write_bytes(header.ljust(1024, b"\0") + struct.pack(f"<{len(tokens)}I", *tokens))
    ours = json.loads(run("eval", out / folder.name, "--data", data, "--seq-len", LENGTH, "--json"))["loss"]

    model = transformers.AutoModelForCausalLM.from_pretrained(out / folder.name, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    rows = torch.tensor([tokens[LENGTH * i : LENGTH * (i + 1) + 1] for i in range(SAMPLES)])
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits.double()
    theirs = torch.nn.functional.cross_entropy(logits.reshape(-1, vocab), rows[:, 1:].reshape(-1)).item()
    # The mean of 900 losses of about 5, each off by the rounding of some hundred float32 sums: 1e-5 of one, less of the mean.
    # Another base of the angles, eps or order of heads moves it by 1e-3 and more.
    print(f"{folder.name}: keel {ours:.7f}, transformers {theirs:.7f}")
    if not abs(ours - theirs) < 1e-5 * theirs:
        sys.exit(f"{folder.name}: the two losses differ by {ours - theirs:.3g}")
    subprocess.run(["rm", "-r", str(out / "checkpoint")], check=True)
