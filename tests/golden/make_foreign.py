#!/usr/bin/env python3
"""Writes tests/golden/foreign/: one tiny model in the forms of other systems, and files that are hard to read, by PyTorch.

    pip install torch numpy safetensors && python3 tests/golden/make_foreign.py

The model is spelled out by the names and shapes of a Hugging Face folder; element i of a tensor is
((fnv1a32(name) + 7919 i) mod 255 - 127) / 128, which bf16 holds exactly, and tests/ckpt/foreign_model_test.cpp expects just
that. Each form is made from it here by the operations of the system's own converters.
"""
import argparse
import collections
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import zipfile

import numpy
import safetensors.torch
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties

OUT = pathlib.Path(__file__).parent / "foreign"
V, H, I, A, K, D = 24, 16, 24, 4, 2, 4


def fnv1a32(text):
    h = 2166136261
    for byte in text.encode():
        h = ((h ^ byte) * 16777619) % 2**32
    return h


def values(name, *shape):
    i = numpy.arange(int(numpy.prod(shape)), dtype=numpy.uint64)
    x = (((fnv1a32(name) + i * 7919) % 255).astype(numpy.float32) - 127) / 128
    return torch.from_numpy(x).reshape(shape)


def model(layers=2, tied=False, bias=False, qk_norm=False, d=D):
    out = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,)}
    if not tied:
        out["lm_head.weight"] = (V, H)
    for i in range(layers):
        p = f"model.layers.{i}."
        out |= {
            p + "input_layernorm.weight": (H,), p + "post_attention_layernorm.weight": (H,),
            p + "self_attn.q_proj.weight": (A * d, H), p + "self_attn.k_proj.weight": (K * d, H),
            p + "self_attn.v_proj.weight": (K * d, H), p + "self_attn.o_proj.weight": (H, A * d),
            p + "mlp.gate_proj.weight": (I, H), p + "mlp.up_proj.weight": (I, H), p + "mlp.down_proj.weight": (H, I),
        }
        if bias:
            out |= {p + "self_attn.q_proj.bias": (A * d,), p + "self_attn.k_proj.bias": (K * d,), p + "self_attn.v_proj.bias": (K * d,)}
        if qk_norm:
            out |= {p + "self_attn.q_norm.weight": (d,), p + "self_attn.k_norm.weight": (d,)}
    return {name: values(name, *shape) for name, shape in out.items()}


def neighbours(w, heads):
    """Rotary pairs as halves of a head -> pairs as neighbours: the inverse of what converters to Hugging Face do."""
    rows, cols = w.shape
    return w.view(heads, 2, rows // heads // 2, cols).transpose(1, 2).reshape(rows, cols).contiguous()


def meta_names(hf, layers):
    out = {"tok_embeddings.weight": hf["model.embed_tokens.weight"], "norm.weight": hf["model.norm.weight"]}
    if "lm_head.weight" in hf:
        out["output.weight"] = hf["lm_head.weight"]
    for i in range(layers):
        p, l = f"model.layers.{i}.", f"layers.{i}."
        out |= {
            l + "attention.wq.weight": neighbours(hf[p + "self_attn.q_proj.weight"], A),
            l + "attention.wk.weight": neighbours(hf[p + "self_attn.k_proj.weight"], K),
            l + "attention.wv.weight": hf[p + "self_attn.v_proj.weight"],
            l + "attention.wo.weight": hf[p + "self_attn.o_proj.weight"],
            l + "feed_forward.w1.weight": hf[p + "mlp.gate_proj.weight"],
            l + "feed_forward.w2.weight": hf[p + "mlp.down_proj.weight"],
            l + "feed_forward.w3.weight": hf[p + "mlp.up_proj.weight"],
            l + "attention_norm.weight": hf[p + "input_layernorm.weight"],
            l + "ffn_norm.weight": hf[p + "post_attention_layernorm.weight"],
        }
    return out


def meta_rank(whole, rank, ranks, embed_dim):
    out = {}
    for name, w in whole.items():
        kind = name.split(".")[-2]
        dim = {"wo": 1, "w2": 1, "tok_embeddings": embed_dim}.get(kind, None if "norm" in kind else 0)
        out[name] = (w if dim is None else w.chunk(ranks, dim)[rank]).clone()
    return out


def meta(folder, params, ranks, embed_dim, tied=False):
    path = OUT / folder
    path.mkdir()
    (path / "params.json").write_text(json.dumps(params))
    whole = {name: w.bfloat16() for name, w in meta_names(model(tied=tied), 2).items()}
    for rank in range(ranks):
        part = meta_rank(whole, rank, ranks, embed_dim)
        if embed_dim == 1:
            part["rope.freqs"] = torch.ones(D // 2)
        torch.save(part, path / f"consolidated.{rank:02}.pth")


# ---- Megatron-LM

def megatron_args(**more):
    args = argparse.Namespace(
        num_layers=2, hidden_size=H, num_attention_heads=A, group_query_attention=True, num_query_groups=K, kv_channels=D,
        ffn_hidden_size=I, normalization="RMSNorm", norm_epsilon=1e-5, swiglu=True, add_bias_linear=False, add_qkv_bias=False,
        position_embedding_type="rope", rotary_base=500000, rotary_percent=1.0, rotary_interleaved=False,
        untie_embeddings_and_output_weights=True, qk_layernorm=False, num_experts=None, max_position_embeddings=512,
        padded_vocab_size=32, vocab_size=V, tokenizer_type="HuggingFaceTokenizer", params_dtype=torch.bfloat16,
        rampup_batch_size=None, train_iters=100, data_path=["a b", pathlib.PurePosixPath("c")], init_method_std=0.01)
    for key, value in more.items():
        setattr(args, key, value)
    return args


def grouped(q, k, v):
    """q, k, v apart -> group by group."""
    q, k, v = (w.reshape(K, -1, *w.shape[1:]) for w in (q, k, v))
    return torch.cat([q, k, v], 1).flatten(0, 1)


def padded(w):
    return torch.cat([w, torch.full((8, H), 9.0, dtype=w.dtype)])


NAMES = {  # of a layer: fused norms of Transformer Engine, norms apart, and the older names
    "core": ("decoder.layers.{}.", "self_attention.linear_qkv.layer_norm_weight", "mlp.linear_fc1.layer_norm_weight",
             "self_attention.linear_qkv", "self_attention.linear_proj.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"),
    "local": ("decoder.layers.{}.", "input_layernorm.weight", "pre_mlp_layernorm.weight", "self_attention.linear_qkv",
              "self_attention.linear_proj.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"),
    "older": ("layers.{}.", "input_norm.weight", "post_attention_norm.weight", "self_attention.query_key_value",
              "self_attention.dense.weight", "mlp.dense_h_to_4h.weight", "mlp.dense_4h_to_h.weight"),
}


def megatron_layers(hf, names, which, rank, tp):
    prefix, norm1, norm2, qkv, out, fc1, fc2 = NAMES[names]
    result = collections.OrderedDict()
    for local, i in enumerate(which):
        p, l = f"model.layers.{i}.self_attn.", prefix.format(local)
        result[l + norm1] = hf[f"model.layers.{i}.input_layernorm.weight"]
        fused = grouped(*(hf[p + x + "_proj.weight"] for x in "qkv"))
        result[l + qkv + ".weight"] = fused.chunk(tp)[rank]
        if p + "q_proj.bias" in hf:
            result[l + qkv + ".bias"] = grouped(*(hf[p + x + "_proj.bias"] for x in "qkv")).chunk(tp)[rank]
        if p + "q_norm.weight" in hf:
            result[l + "self_attention.q_layernorm.weight"] = hf[p + "q_norm.weight"]
            result[l + "self_attention.k_layernorm.weight"] = hf[p + "k_norm.weight"]
        if names == "core":
            result[l + "self_attention.linear_qkv._extra_state"] = torch.zeros(3, dtype=torch.uint8)
            result[l + "mlp.linear_fc1._extra_state"] = None
        result[l + out] = hf[p + "o_proj.weight"].chunk(tp, 1)[rank]
        m = f"model.layers.{i}.mlp."
        result[l + norm2] = hf[f"model.layers.{i}.post_attention_layernorm.weight"]
        result[l + fc1] = torch.cat([hf[m + "gate_proj.weight"].chunk(tp)[rank], hf[m + "up_proj.weight"].chunk(tp)[rank]])
        result[l + fc2] = hf[m + "down_proj.weight"].chunk(tp, 1)[rank]
    return result


def megatron_core(hf, names, which, rank, tp, first, last):
    result = collections.OrderedDict()
    if first:
        result["embedding.word_embeddings.weight"] = padded(hf["model.embed_tokens.weight"]).chunk(tp)[rank]
    result |= megatron_layers(hf, names, which, rank, tp)
    if last:
        result["decoder.final_layernorm.weight"] = hf["model.norm.weight"]
        head = hf.get("lm_head.weight", hf["model.embed_tokens.weight"])
        result["output_layer.weight"] = padded(head).chunk(tp)[rank]
    return collections.OrderedDict((name, w.clone() if w is not None else None) for name, w in result.items())


def sharded(pieces, shape):
    """A tensor of which this one process holds all the pieces that the ranks of a run would."""
    shards = [Shard.from_tensor_and_offsets(w.contiguous(), list(offset), 0) for offset, w in pieces]
    meta = ShardedTensorMetadata(shards_metadata=[s.metadata for s in shards], size=torch.Size(shape),
                                 tensor_properties=TensorProperties(dtype=pieces[0][1].dtype))
    return ShardedTensor._init_from_local_shards_and_global_metadata(shards, sharded_tensor_metadata=meta, process_group=None)


def cut(w, dim, parts, layer=None):
    """Pieces of w along dim, with a leading axis for the layer if there is one."""
    size, out = w.shape[dim] // parts, []
    for r, part in enumerate(w.chunk(parts, dim)):
        offset = [0] * w.dim()
        offset[dim] = r * size
        out.append((offset, part) if layer is None else ([layer] + offset, part.unsqueeze(0)))
    return out


def megatron_dist():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    hf = {name: w.bfloat16() for name, w in model().items()}
    layers = megatron_layers(hf, "core", range(2), 0, 1)
    state = {"embedding.word_embeddings.weight": sharded(cut(padded(hf["model.embed_tokens.weight"]), 0, 2), (32, H)),
             "output_layer.weight": sharded(cut(padded(hf["lm_head.weight"]), 0, 2), (32, H)),
             "decoder.final_layernorm.weight": hf["model.norm.weight"]}
    dims = {"linear_qkv.weight": (0, 2), "linear_proj.weight": (1, 2), "linear_fc1.weight": (0, 4), "linear_fc2.weight": (1, 2)}
    for name, w in layers.items():
        if not name.startswith("decoder.layers.0.") or name.endswith("_extra_state"):
            continue
        rest = name.removeprefix("decoder.layers.0.")
        dim, parts = next((d for end, d in dims.items() if name.endswith(end)), (0, 1))
        pieces = [p for i in range(2) for p in cut(layers[f"decoder.layers.{i}.{rest}"], dim, parts, i)]
        state["decoder.layers." + rest] = sharded(pieces, (2, *w.shape))
    state["decoder.layers.self_attention.linear_qkv._extra_state/shard_0_2"] = io.BytesIO(b"float8")
    state["optimizer.state.exp_avg.decoder.final_layernorm.weight"] = torch.ones(H)
    path = OUT / "megatron_dist/iter_0000010"
    path.mkdir(parents=True)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, thread_count=1))
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.storage_meta = None  # a path of this machine
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    torch.save({"args": megatron_args(), "checkpoint_version": 3.0, "iteration": 10}, path / "common.pt")
    (path / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}))
    (OUT / "megatron_dist/latest_checkpointed_iteration.txt").write_text("10")


def save_rank(folder, rank, stage, args, models):
    path = OUT / folder / "iter_0000010" / (f"mp_rank_{rank:02}" + (f"_{stage:03}" if stage is not None else ""))
    path.mkdir(parents=True)
    state = {"args": args, "checkpoint_version": 3.0, "iteration": 10, "num_floating_point_operations_so_far": 1e30,
             "rng_state": [{"np": numpy.random.RandomState(1).get_state()[:1], "cuda": torch.zeros(4, dtype=torch.uint8)}]}
    torch.save(state | models, path / "model_optim_rng.pt")
    (OUT / folder / "latest_checkpointed_iteration.txt").write_text("10")


def megatron():
    hf = {name: w.bfloat16() for name, w in model().items()}
    for stage in range(2):
        for rank in range(2):
            save_rank("megatron_tp2_pp2", rank, stage, megatron_args(tensor_model_parallel_size=2, pipeline_model_parallel_size=2),
                      {"model": megatron_core(hf, "core", [stage], rank, 2, stage == 0, stage == 1)})
    hf = model(4, bias=True)
    for stage in range(2):  # chunk 0 of both stages, then chunk 1 of both
        args = megatron_args(num_layers=4, add_qkv_bias=True, virtual_pipeline_model_parallel_size=2, vocab_size=None)
        save_rank("megatron_virtual", 0, stage, args, {
            "model0": megatron_core(hf, "local", [stage], 0, 1, stage == 0, False),
            "model1": megatron_core(hf, "local", [2 + stage], 0, 1, False, stage == 1)})
    hf = {name: w.half() for name, w in model(2, tied=True, qk_norm=True).items()}
    for rank in range(2):
        args = megatron_args(untie_embeddings_and_output_weights=False, qk_layernorm=True)
        del args.position_embedding_type
        args.use_rotary_position_embeddings = True
        encoder = megatron_layers(hf, "older", range(2), rank, 2)
        encoder["final_norm.weight"] = hf["model.norm.weight"]
        language_model = {"embedding": {"word_embeddings": collections.OrderedDict(weight=padded(hf["model.embed_tokens.weight"]).chunk(2)[rank].clone())},
                          "encoder": collections.OrderedDict((n, w.clone()) for n, w in encoder.items())}
        save_rank("megatron_older", rank, None, args, {"model": {"language_model": language_model}})


# ---- one file

def raw(w):
    return w.contiguous().view(torch.int16 if w.dtype == torch.bfloat16 else torch.int32).numpy().tobytes()


def llmc(file, dtype):
    hf = {name: w.to(dtype) for name, w in model().items()}
    header = numpy.zeros(256, dtype="<i4")
    header[:14] = [20240803, 3 if dtype == torch.float32 else 5, 8192, V, 2, A, K, H, 1, 4, 0, 500000, 1, 4]
    l = [f"model.layers.{i}." for i in range(2)]
    qkv = [torch.cat([neighbours(hf[p + "self_attn.q_proj.weight"], A), neighbours(hf[p + "self_attn.k_proj.weight"], K), hf[p + "self_attn.v_proj.weight"]]) for p in l]
    parts = [hf["model.embed_tokens.weight"], *(hf[p + "input_layernorm.weight"] for p in l), *qkv, *(hf[p + "self_attn.o_proj.weight"] for p in l),
             *(hf[p + "post_attention_layernorm.weight"] for p in l), *(hf[p + "mlp.up_proj.weight"] for p in l),
             *(hf[p + "mlp.gate_proj.weight"] for p in l), *(hf[p + "mlp.down_proj.weight"] for p in l), hf["model.norm.weight"], hf["lm_head.weight"]]
    (OUT / file).write_bytes(header.tobytes() + b"".join(raw(w) for w in parts))


def llama2c(file, version, tied):
    m = meta_names(model(tied=tied), 2)
    layers = lambda kind: [m[f"layers.{i}.{kind}.weight"] for i in range(2)]
    matrices = [layers("attention." + k) for k in ("wq", "wk", "wv", "wo")]
    ffn = [layers("feed_forward." + k) for k in ("w1", "w2", "w3")]
    ints = (H, I, 2, A, K, V if tied or version else -V, 64)
    if version == 0:
        head = struct.pack("<7i", *ints)
        parts = [m["tok_embeddings.weight"], *layers("attention_norm"), *sum(matrices, []), *layers("ffn_norm"), *sum(ffn, []),
                 m["norm.weight"], torch.full((64, D // 2), 7.0), torch.full((64, D // 2), 7.0)]
    else:
        head = (struct.pack("<I8iB", 0x616B3432, 1, *ints, tied)).ljust(256, b"\0")
        parts = [*layers("attention_norm"), *layers("ffn_norm"), m["norm.weight"], m["tok_embeddings.weight"], *sum(matrices + ffn, [])]
    if not tied:
        parts.append(m["output.weight"])
    (OUT / file).write_bytes(head + b"".join(raw(w) for w in parts))


# ---- files of torch.save and pickles for their own sake

class Evil:
    def __reduce__(self):
        return os.system, ("touch keel-was-here",)


class WithState:
    def __init__(self):
        self.answer = 42


def torch_files():
    base = torch.arange(24.0).reshape(4, 6)
    shared = torch.arange(6, dtype=torch.int64)
    torch.save({
        "f32": base, "bf16": base.bfloat16(), "f16": base.half(), "f64": base.double(), "i64": shared, "u8": shared.to(torch.uint8),
        "rows": base[1:3], "every_second_row": base[::2], "columns": base[:, 2:4], "parameter": torch.nn.Parameter(base[0].clone()),
        "nested": {"deeper": collections.OrderedDict(x=shared[2:])}, "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3),
        "not_a_tensor": [1, "two", 3.0, None, True, (4,), {5}], "evil": Evil(), "args": argparse.Namespace(a=1, b=None)}, OUT / "kinds.pt")
    torch.save({"transposed": base.t()}, OUT / "transposed.pt")
    buffer = io.BytesIO()
    torch.save({"x": base}, buffer, _use_new_zipfile_serialization=False)
    (OUT / "old.pt").write_bytes(buffer.getvalue()[:64])  # what follows has addresses in it
    with zipfile.ZipFile(OUT / "compressed.pt", "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in (("archive/data.pkl", pickle.dumps({}, 2)), ("archive/version", b"3\n")):
            z.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    zipfile.ZIP64_LIMIT, limit = 10, zipfile.ZIP64_LIMIT  # every size and offset past 10 goes where those past 4 GiB go
    buffer = io.BytesIO()
    torch.save({"x": base}, buffer)
    with zipfile.ZipFile(buffer) as small, zipfile.ZipFile(OUT / "zip64.pt", "w") as z:
        for entry in small.infolist():
            z.writestr(zipfile.ZipInfo(entry.filename, (1980, 1, 1, 0, 0, 0)), small.read(entry))
    zipfile.ZIP64_LIMIT = limit
    plain = {"none": None, "true": True, "int": 255, "negative": -70000, "big": 2**40, "huge": 2**80, "real": -1.5, "text": "h\u00e9", "bytes": b"\x00\xff",
             "list": [1, [2, []]], "tuple": (1, 2, 3, 4), "set": {7}, "ordered": collections.OrderedDict(a=1, b=2),
             "object": argparse.Namespace(answer=42), "twice": None}
    plain["twice"] = plain["list"]
    for protocol in range(2, 6):
        (OUT / f"plain{protocol}.pkl").write_bytes(pickle.dumps(plain, protocol))
    (OUT / "plain0.pkl").write_bytes(pickle.dumps(plain, 0))
    knot = []
    knot.append({"knot": knot})
    (OUT / "knot.pkl").write_bytes(pickle.dumps(knot, 4))


shutil.rmtree(OUT, ignore_errors=True)
OUT.mkdir()
torch.manual_seed(0)
sizes = {"dim": H, "n_layers": 2, "n_heads": A, "n_kv_heads": K, "multiple_of": 4, "ffn_dim_multiplier": 0.55, "norm_eps": 1e-5}
meta("meta_llama2", sizes | {"vocab_size": -1}, 2, 1)
meta("meta_llama3", sizes | {"vocab_size": V, "rope_theta": 500000.0, "use_scaled_rope": True}, 2, 0)
meta("meta_tied", sizes | {"vocab_size": V, "rope_theta": 500000.0}, 1, 0, tied=True)
(OUT / "mistral").mkdir()
(OUT / "mistral/params.json").write_text(json.dumps({"dim": H, "n_layers": 2, "head_dim": D, "hidden_dim": I, "n_heads": A, "n_kv_heads": K,
                                                     "norm_eps": 1e-5, "vocab_size": V, "rope_theta": 1e6, "sliding_window": 4096}))
safetensors.torch.save_file({n: w.bfloat16() for n, w in meta_names(model(), 2).items()}, OUT / "mistral/consolidated.safetensors")
megatron()
megatron_dist()
llmc("llmc_f32.bin", torch.float32)
llmc("llmc_bf16.bin", torch.bfloat16)
llama2c("llama2c_v0.bin", 0, True)
llama2c("llama2c_v1.bin", 1, False)
torch_files()
